/* batch.json, beside the raw files: what an order was about, for the agent that finds it after a crash. */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "agent/containers_private.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

#define BATCH_FILE "batch.json"
#define BATCH_FILE_MAX ((size_t)8 << 20)

int batch_write(const ContainersBatch *b) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        json_out_object(&text, NULL);
        json_out_u64(&text, "begin_usec", b->begun_usec);
        json_out_u64(&text, "uid", b->uid);
        json_out_array(&text, "notes");
        LIST_FOREACH (l, (ListLink *)&b->notes) {
                const ContainerNote *n = CONTAINER_OF(l, ContainerNote, link);
                json_out_object(&text, NULL);
                json_out_string(&text, "note", n->id);
                json_out_string(&text, "source", n->source);
                json_out_path(&text, "relative", n->relative);
                json_out_path(&text, "path", n->path);
                if (n->s3_prefix)
                        json_out_path(&text, "s3_prefix", n->s3_prefix);
                json_out_end_object(&text);
        }
        json_out_end_array(&text);
        json_out_end_object(&text);
        int r = strbuf_error(&text);
        return r < 0 ? r : fs_write_file(b->dir_fd, BATCH_FILE, text.text, text.n, 0600);
}

static char *unescaped(const json_t *v, const char *key) {
        const char *s = json_string_value(json_object_get(v, key));
        char *ret = NULL;
        return s && path_unescape(s, &ret) == 0 ? ret : NULL;
}

static int read_note(ContainersBatch *b, const json_t *v) {
        const char *id = json_string_value(json_object_get(v, "note"));
        ContainerNote *n = calloc(1, sizeof *n);
        if (!n)
                return -ENOMEM;
        list_init(&n->link);
        (void)snprintf(n->id, sizeof n->id, "%s", id ? id : "");
        n->source = unescaped(v, "source");
        n->relative = unescaped(v, "relative");
        n->path = unescaped(v, "path");
        n->s3_prefix = unescaped(v, "s3_prefix");
        n->uid = b->uid;
        n->has_finished = true; /* nobody has listened to it to the end */
        if (!n->source || !n->relative || !n->path) {
                container_note_free(n);
                return -EBADMSG;
        }
        list_append(&b->notes, &n->link);
        b->n_notes++;
        return 0;
}

int batch_read(ContainersBatch *b) {
        _cleanup_free_ char *text = NULL;
        size_t n, i;
        int r = fs_read_file(b->dir_fd, BATCH_FILE, BATCH_FILE_MAX, &text, &n);
        if (r < 0)
                return r;
        json_t *v = json_loadb(text, n, 0, NULL);
        const json_t *note;
        b->begun_usec = (uint64_t)json_integer_value(json_object_get(v, "begin_usec"));
        b->uid = (uid_t)json_integer_value(json_object_get(v, "uid"));
        r = v ? 0 : -EBADMSG;
        json_array_foreach(json_object_get(v, "notes"), i, note) if (r == 0) r = read_note(b, note);
        json_decref(v);
        return r;
}
