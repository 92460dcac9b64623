/* Compares two snapshots: the values of one collector's records, before and after.
 *
 * Both files are read into memory as pairs of path and value, sorted by path, and merged. Only
 * records with `values` count (docs/BUNDLE.md); a number that is written as text counts as one.
 * Putting the differences into a document is left to document.c. */
#include "collectors/runner/differences.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/runner/record_file.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/json_text.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

#define VALUES_MAX (512 * 1024) /* 64 devices of 8 cores have some 100,000 */
/* A value of a record, by the path of its file. */
typedef struct SnapshotValue {
        char *path;
        char *text; /* JSON */
} SnapshotValue;

typedef struct SnapshotValues {
        SnapshotValue *items;
        size_t n;
        bool is_cut;
} SnapshotValues;

static void values_done(SnapshotValues *v) {
        for (size_t i = 0; i < v->n; i++) {
                free(v->items[i].path);
                free(v->items[i].text);
        }
        free(v->items);
        *v = (SnapshotValues){ 0 };
}

static int add_value(SnapshotValues *v, const char *record, const char *leaf, const json_t *value) {
        if (json_is_object(value) || json_is_array(value))
                return 0;
        if (v->n >= VALUES_MAX) {
                v->is_cut = true;
                return 0;
        }
        if (array_grow(&v->items, v->n, sizeof *v->items) < 0)
                return -ENOMEM;
        SnapshotValue x = { .path = strbuf_format("%s%s%s", record, *record ? "/" : "", leaf),
                            .text = json_text(value, JSON_ENCODE_ANY) };
        if (!x.path || !x.text) {
                free(x.path);
                free(x.text);
                return -ENOMEM;
        }
        v->items[v->n++] = x;
        return 0;
}

static const char *text_of(const json_t *record, const char *key) {
        const char *s = json_string_value(json_object_get(record, key));
        return s ? s : "";
}

static int add_record(SnapshotValues *v, json_t *record) {
        json_t *values = json_object_get(record, "values"), *value;
        const char *device = text_of(record, "device"), *directory = text_of(record, "directory"),
                   *leaf;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_addf(&b, "%s%s%s", device, *device && *directory ? "/" : "", directory);
        int r = strbuf_error(&b);
        if (r < 0 || !json_is_object(values))
                return r;
        json_object_foreach(values, leaf, value) {
                r = add_value(v, b.text, leaf, value);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int on_values_line(const char *line, size_t n, void *userdata) {
        json_t *record = line ? json_loadb(line, n, 0, NULL) : NULL;
        int r = json_is_object(record) ? add_record(userdata, record) : 0;
        json_decref(record);
        return r;
}

static int by_path(const void *a, const void *b) {
        return strcmp(((const SnapshotValue *)a)->path, ((const SnapshotValue *)b)->path);
}

static int read_values(int dir_fd, const char *name, SnapshotValues *ret) {
        int r = record_file_lines(dir_fd, name, on_values_line, ret);
        if (r == 0 && ret->n > 0)
                qsort(ret->items, ret->n, sizeof *ret->items, by_path);
        return r;
}

/* Counters are numbers or, from sysfs, texts of decimal digits. */
static bool as_number(const char *json, uint64_t *ret) {
        char digits[24];
        size_t n = strlen(json);
        bool is_quoted = n >= 2 && json[0] == '"' && json[n - 1] == '"';
        if (n >= sizeof digits)
                return false;
        memcpy(digits, json + is_quoted, n - 2 * is_quoted);
        digits[n - 2 * is_quoted] = '\0';
        return parse_u64(digits, ret) == 0;
}

static int write_difference(FILE *f, const SnapshotValue *before, const SnapshotValue *after) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        uint64_t x, y;
        json_out_object(&b, NULL);
        json_out_string(&b, "path", before ? before->path : after->path);
        json_out_raw(&b, "before", before ? before->text : "null");
        json_out_raw(&b, "after", after ? after->text : "null");
        if (before && after && as_number(before->text, &x) && as_number(after->text, &y))
                json_out_i64(&b, "delta", (int64_t)(y - x));
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        int r = strbuf_error(&b);
        return r < 0 ? r : fwrite(b.text, 1, b.n, f) != b.n ? -EIO : 0;
}

/* Both lists are sorted by path. */
static int compare(FILE *f, const SnapshotValues *before, const SnapshotValues *after) {
        size_t i = 0, j = 0;
        int r = 0;
        while (r == 0 && (i < before->n || j < after->n)) {
                int order = i == before->n  ? 1
                            : j == after->n ? -1
                                            : by_path(&before->items[i], &after->items[j]);
                if (order < 0)
                        r = write_difference(f, &before->items[i++], NULL);
                else if (order > 0)
                        r = write_difference(f, NULL, &after->items[j++]);
                else {
                        if (strcmp(before->items[i].text, after->items[j].text) != 0)
                                r = write_difference(f, &before->items[i], &after->items[j]);
                        i++;
                        j++;
                }
        }
        return r;
}

int differences_write(int dir_fd, const char *before, const char *after, const char *out) {
        _cleanup_(values_done) SnapshotValues x = { 0 }, y = { 0 };
        int r = read_values(dir_fd, before, &x);
        if (r == 0)
                r = read_values(dir_fd, after, &y);
        _cleanup_fclose_ FILE *f = NULL;
        if (r == 0)
                r = record_file_create(&f, dir_fd, out);
        if (r == 0)
                r = compare(f, &x, &y);
        if (r == 0 && fflush(f) != 0)
                r = -EIO;
        return r < 0 ? r : x.is_cut || y.is_cut ? -EFBIG : 0;
}
