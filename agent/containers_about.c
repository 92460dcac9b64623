#include "agent/containers_about.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <string.h>

#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

#define NAMED_MAX 4096 /* files that are named in it */

static bool is_missing(const TreeUnit *u, const CopyEntry *e) {
        for (size_t i = 0; i < u->n_missing; i++)
                if (strcmp(u->missing[i], e->path) == 0)
                        return true;
        return false;
}

static void put_left_out(const TreeUnit *u, const CopyDocument *d, StrBuf *b) {
        size_t n = 0;
        json_out_array(b, "left_out");
        for (size_t i = 0; i < d->n_entries && n < NAMED_MAX; i++) {
                const CopyEntry *e = &d->entries[i];
                if (strcmp(e->unit, u->unit) != 0 || (!e->detail && !is_missing(u, e)))
                        continue;
                json_out_object(b, NULL);
                json_out_path(b, "path", e->path);
                json_out_u64(b, "bytes", e->bytes);
                json_out_string(b, "detail",
                                e->detail ? e->detail
                                          : "it was seen, and the copy ended before it was whole");
                json_out_end_object(b);
                n++;
        }
        json_out_end_array(b);
}

void about_compose(const TreeUnit *u, const CopyDocument *d, size_t n_files, StrBuf *b) {
        json_out_object(b, NULL);
        json_out_string(b, "schema", CONTAINER_COPY_SCHEMA);
        json_out_string(b, "source", u->source);
        json_out_string(b, "unit", u->unit);
        json_out_path(b, "relative", u->relative);
        json_out_path(b, "path", u->path);
        json_out_string(b, "container", u->container[0] ? u->container : NULL);
        json_out_u64(b, "uid", u->uid);
        json_out_array(b, "notes");
        for (size_t i = 0; i < u->n_notes; i++)
                json_out_string(b, NULL, u->notes[i]);
        json_out_end_array(b);
        json_out_u64(b, "files", n_files);
        json_out_bool(b, "is_whole", u->is_whole);
        json_out_string(b, "detail", d->detail);
        put_left_out(u, d, b);
        json_out_end_object(b);
        strbuf_add(b, "\n");
}

/* ---- read again ---- */

char *tree_unit_file(const char *source, const char *unit) {
        char *name = NULL;
        return asprintf(&name, "%s.%s.json", source, unit) < 0 ? NULL : name;
}

char *tree_unit_path(const char *root, const TreeUnit *u) {
        char *path = NULL;
        if (asprintf(&path, "%s/%s/%s%s%s", root, u->source, u->unit, u->relative[0] ? "/" : "",
                     u->relative) < 0)
                return NULL;
        return path;
}

static int take_left_out(TreeUnit *u, const json_t *v) {
        const json_t *e;
        size_t i;
        int r = 0;
        json_array_foreach(json_object_get(v, "left_out"), i, e) {
                const char *text = json_string_value(json_object_get(e, "path"));
                _cleanup_free_ char *path = NULL;
                if (r == 0 && text && path_unescape(text, &path) == 0 && copy_path_is_valid(path))
                        r = tree_unit_add_missing(u, path);
        }
        return r;
}

static int take(TreeUnit *u, const json_t *v) {
        const char *source = json_string_value(json_object_get(v, "source"));
        const char *unit = json_string_value(json_object_get(v, "unit"));
        const char *relative = json_string_value(json_object_get(v, "relative"));
        json_int_t uid = json_integer_value(json_object_get(v, "uid"));
        if (!source || !unit || !relative || !copy_unit_is_valid(unit) || uid < 0 ||
            uid >= UINT_MAX)
                return -EBADMSG;
        int r = path_unescape(relative, &u->relative);
        if (r < 0)
                return r == -EINVAL ? -EBADMSG : r;
        if (u->relative[0] && !copy_path_is_valid(u->relative))
                return -EBADMSG;
        strcpy(u->unit, unit);
        u->uid = (uid_t)uid;
        u->is_whole = json_is_true(json_object_get(v, "is_whole"));
        u->source = strdup(source);
        return u->source ? take_left_out(u, v) : -ENOMEM;
}

int tree_unit_read(TreeUnit *u, int units_fd, const char *name) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        *u = (TreeUnit){ .about_fd = -1 };
        int r = fs_read_file(units_fd, name, CONTAINER_COPY_MAX_BYTES, &text, &n);
        if (r < 0)
                return r;
        json_t *v = json_loadb(text, n, 0, NULL);
        r = v ? take(u, v) : -EBADMSG;
        json_decref(v);
        if (r < 0)
                tree_unit_done(u);
        return r;
}
