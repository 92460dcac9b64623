#include "agent/containers_copy.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define SECTION "container_dumps"
#define NESTING_MAX 16
#define FILE_DIGITS_MIN 6 /* "f%06u" */
#define FILE_DIGITS_MAX 10

/* ---- what may be ---- */

bool copy_path_is_valid(const char *path) {
        size_t depth = 0;
        if (strlen(path) >= PATH_MAX)
                return false;
        for (;;) {
                size_t n = strcspn(path, "/");
                if (n == 0 || n > NAME_MAX || strspn(path, ".") >= n || ++depth > COPY_DEPTH_MAX)
                        return false;
                if (path[n] == '\0')
                        return true;
                path += n + 1;
        }
}

static bool consists_of(const char *s, size_t max, const char *characters) {
        size_t n = strlen(s);
        return n > 0 && n <= max && strspn(s, characters) == n;
}

bool copy_unit_is_valid(const char *unit) {
        return consists_of(unit, COPY_UNIT_SIZE - 1, "0123456789");
}

/* The digits before are those which the numbers of all namespaces have in common. */
static void take_unit(char ret[static COPY_UNIT_SIZE], const char *unit) {
        size_t n = strlen(unit);
        strcpy(ret, n > COPY_UNIT_DIGITS ? unit + n - COPY_UNIT_DIGITS : unit);
}

/* As the collector names them: what else lies beside them is the agent's. */
static bool file_is_valid(const char *file) {
        return file[0] == 'f' && strlen(file + 1) >= FILE_DIGITS_MIN &&
               consists_of(file + 1, FILE_DIGITS_MAX, "0123456789");
}

static bool container_is_valid(const char *id) {
        return consists_of(id, COPY_CONTAINER_SIZE - 1, "0123456789abcdef");
}

static const char *text_of(const json_t *v, const char *key) {
        return json_string_value(json_object_get(v, key));
}

/* ---- a note ---- */

void copy_dump_done(CopyDump *d) {
        free(d->note);
        free(d->detail);
        free(d->path);
        *d = (CopyDump){ 0 };
}

/* @return 0, 1: it says what cannot be; -ENOMEM */
static int take_dump(CopyDump *ret, const json_t *v) {
        const char *note = text_of(v, "note"), *where = text_of(v, "where");
        const char *unit = text_of(v, "unit"), *container = text_of(v, "container");
        const char *detail = text_of(v, "detail"), *path = text_of(v, "path");
        if (!note || !where)
                return 1;
        CopyDump d = { .is_here = strcmp(where, "here") == 0 };
        if (strcmp(where, "container") == 0) {
                if (!unit || !copy_unit_is_valid(unit) || !path ||
                    path_unescape(path, &d.path) != 0)
                        return 1;
                take_unit(d.unit, unit);
                if (container && container_is_valid(container))
                        strcpy(d.container, container);
        }
        d.note = strdup(note);
        d.detail = detail ? strdup(detail) : NULL;
        if (!d.note || (detail && !d.detail)) {
                copy_dump_done(&d);
                return -ENOMEM;
        }
        *ret = d;
        return 0;
}

int copy_dump_parse(CopyDump *ret, const char *text, size_t n) {
        if (parse_json_nests_deeper(text, n, NESTING_MAX))
                return -EBADMSG;
        json_t *v = json_loadb(text, n, 0, NULL);
        const char *type = text_of(v, "type");
        int r = type && strcmp(type, "dump") == 0 ? take_dump(ret, v) : 1;
        json_decref(v);
        return r > 0 ? -EBADMSG : r;
}

static int add_dump(CopyDocument *d, const json_t *v) {
        CopyDump dump;
        if (d->n_dumps >= COPY_DUMPS_MAX)
                return 1;
        int r = take_dump(&dump, v);
        if (r != 0)
                return r;
        for (size_t i = 0; i < d->n_dumps; i++)
                if (strcmp(d->dumps[i].note, dump.note) == 0) {
                        copy_dump_done(&d->dumps[i]);
                        d->dumps[i] = dump;
                        return 0;
                }
        CopyDump *more = reallocarray(d->dumps, d->n_dumps + 1, sizeof *more);
        if (!more) {
                copy_dump_done(&dump);
                return -ENOMEM;
        }
        d->dumps = more;
        more[d->n_dumps++] = dump;
        return 0;
}

/* ---- files ---- */

static void entry_done(CopyEntry *e) {
        free(e->path);
        free(e->detail);
}

/* @return as take_dump() */
static int take_entry(CopyEntry *ret, const json_t *v, const char *type) {
        const char *unit = text_of(v, "unit"), *path = text_of(v, "path");
        const char *file = text_of(v, "file"), *detail = text_of(v, "detail");
        const json_int_t bytes = json_integer_value(json_object_get(v, "bytes"));
        CopyEntry e = { .mtime_nsec = json_integer_value(json_object_get(v, "mtime_nsec")),
                        .is_renamed = strcmp(type, "renamed") == 0 };
        e.has_bytes = json_object_get(v, "bytes") != NULL;
        if (!unit || !path || !copy_unit_is_valid(unit) || bytes < 0)
                return 1;
        if (strcmp(type, "file") == 0) {
                if (!file || !file_is_valid(file))
                        return 1;
                strcpy(e.file, file);
        }
        take_unit(e.unit, unit);
        e.bytes = (uint64_t)bytes;
        if (path_unescape(path, &e.path) != 0)
                return 1;
        if (!copy_path_is_valid(e.path)) {
                entry_done(&e);
                return 1;
        }
        if (strcmp(type, "left_out") == 0 && !(e.detail = strdup(detail ? detail : "not said"))) {
                entry_done(&e);
                return -ENOMEM;
        }
        *ret = e;
        return 0;
}

static int add_entry(CopyDocument *d, const json_t *v, const char *type) {
        CopyEntry e;
        if (d->n_entries >= COPY_ENTRIES_MAX)
                return 1;
        int r = take_entry(&e, v, type);
        if (r != 0)
                return r;
        if ((d->n_entries & (d->n_entries - 1)) == 0) { /* it is full */
                size_t max = MAX(2 * d->n_entries, (size_t)1);
                CopyEntry *more = reallocarray(d->entries, max, sizeof *more);
                if (!more) {
                        entry_done(&e);
                        return -ENOMEM;
                }
                d->entries = more;
        }
        e.order = d->n_entries;
        d->entries[d->n_entries++] = e;
        return 0;
}

static int by_path(const void *x, const void *y) {
        const CopyEntry *a = x, *b = y;
        int c = strcmp(a->unit, b->unit);
        c = c ? c : strcmp(a->path, b->path);
        return c ? c : (a->order > b->order) - (a->order < b->order);
}

/* What a later record says of a path counts; but what was copied of it stays, unless it is told of under another name. */
static void fold(CopyEntry *into, CopyEntry *later) {
        if (later->is_renamed)
                into->file[0] = '\0';
        into->is_renamed = later->is_renamed;
        if (later->file[0]) {
                memcpy(into->file, later->file, sizeof into->file);
                into->mtime_nsec = later->mtime_nsec;
        }
        if (later->has_bytes && (!later->detail || !into->file[0]))
                into->bytes = later->bytes;
        if (later->detail || later->file[0]) {
                free(into->detail);
                into->detail = TAKE_PTR(later->detail);
        }
        entry_done(later);
}

static void put_in_order(CopyDocument *d) {
        size_t n = 0;
        if (d->n_entries > 0)
                qsort(d->entries, d->n_entries, sizeof *d->entries, by_path);
        for (size_t i = 0; i < d->n_entries; i++) {
                CopyEntry *last = n > 0 ? &d->entries[n - 1] : NULL;
                if (last && strcmp(last->unit, d->entries[i].unit) == 0 &&
                    strcmp(last->path, d->entries[i].path) == 0)
                        fold(last, &d->entries[i]);
                else
                        d->entries[n++] = d->entries[i];
        }
        d->n_entries = n;
}

static void leave_out_renamed(CopyDocument *d) {
        size_t n = 0;
        for (size_t i = 0; i < d->n_entries; i++)
                if (d->entries[i].is_renamed)
                        entry_done(&d->entries[i]);
                else
                        d->entries[n++] = d->entries[i];
        d->n_entries = n;
}

/* ---- the whole ---- */

static int add_end(CopyDocument *d, const json_t *v) {
        const char *unit = text_of(v, "unit");
        if (!unit || !copy_unit_is_valid(unit) || d->n_whole >= COPY_DUMPS_MAX)
                return 1;
        if (!json_is_true(json_object_get(v, "is_whole")))
                return 0;
        char(*more)[COPY_UNIT_SIZE] = reallocarray(d->whole, d->n_whole + 1, sizeof *more);
        if (!more)
                return -ENOMEM;
        d->whole = more;
        take_unit(more[d->n_whole++], unit);
        return 0;
}

static int add_record(CopyDocument *d, const json_t *v) {
        const char *type = text_of(v, "type");
        if (!type)
                return 1;
        if (strcmp(type, "dump") == 0)
                return add_dump(d, v);
        if (strcmp(type, "end") == 0)
                return add_end(d, v);
        if (strcmp(type, "seen") == 0 || strcmp(type, "file") == 0 ||
            strcmp(type, "left_out") == 0 || strcmp(type, "renamed") == 0)
                return add_entry(d, v, type);
        return 1;
}

static int add_section(CopyDocument *d, const json_t *section) {
        const char *state = text_of(section, "state"), *detail = text_of(section, "detail");
        const json_t *record;
        size_t i;
        int r = 0;
        json_array_foreach(json_object_get(section, "records"), i, record) {
                r = add_record(d, record);
                if (r < 0)
                        return r;
                d->n_bad += r > 0;
        }
        if (!state || strcmp(state, "complete") != 0) {
                free(d->detail);
                d->detail = strdup(detail && detail[0] ? detail : state ? state : "not said");
                r = d->detail ? 0 : -ENOMEM;
        }
        return MIN(r, 0);
}

int copy_document_parse(CopyDocument *ret, const char *text, size_t n) {
        CopyDocument d = { 0 };
        if (parse_json_nests_deeper(text, n, NESTING_MAX))
                return -EBADMSG;
        json_t *v = json_loadb(text, n, 0, NULL);
        const json_t *section, *sections = json_object_get(v, "sections");
        size_t i;
        int r = json_is_array(sections) ? 0 : -EBADMSG;
        json_array_foreach(sections, i, section) {
                const char *name = text_of(section, "name");
                if (r == 0 && name && strcmp(name, SECTION) == 0)
                        r = add_section(&d, section);
        }
        json_decref(v);
        if (r < 0) {
                copy_document_done(&d);
                return r;
        }
        put_in_order(&d);
        leave_out_renamed(&d);
        *ret = d;
        return 0;
}

bool copy_document_is_whole(const CopyDocument *d, const char *unit) {
        for (size_t i = 0; i < d->n_whole; i++)
                if (strcmp(d->whole[i], unit) == 0)
                        return true;
        return false;
}

void copy_document_done(CopyDocument *d) {
        for (size_t i = 0; i < d->n_dumps; i++)
                copy_dump_done(&d->dumps[i]);
        for (size_t i = 0; i < d->n_entries; i++)
                entry_done(&d->entries[i]);
        free(d->dumps);
        free(d->entries);
        free(d->whole);
        free(d->detail);
        *d = (CopyDocument){ 0 };
}
