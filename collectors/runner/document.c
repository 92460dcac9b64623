#include "collectors/runner/document.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/json_text.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

#define DEPTH_MAX 32 /* of a record; the document adds three */
static const char *section_state_name(SectionState s) {
        static const char *const names[N_SECTION_STATES] = { "complete", "timeout", "cut", "failed",
                                                             "skipped" };
        return s < N_SECTION_STATES ? names[s] : "failed";
}

/* ---- files ---- */

/* Takes fd over. */
static int open_stream(FILE **ret, int fd, const char *mode) {
        *ret = fdopen(fd, mode);
        if (*ret)
                return 0;
        (void)close(fd); /* nothing was written */
        return -ENOMEM;
}

static int document_create(FILE **ret, int dir_fd, const char *name) {
        if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
                return -errno;
        int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        return fd < 0 ? -errno : open_stream(ret, fd, "w");
}

/* Calls on_line for each whole line of a file, NUL-terminated. @param on_line  NULL line: one that
 * is too long, or was not ended
 * @return 0, what on_line returned when it is negative, -errno; a file that is not there has no
 * lines */
static int document_lines(int dir_fd, const char *name,
                          int (*on_line)(const char *line, size_t n, void *userdata),
                          void *userdata) {
        int fd = fs_open_regular(dir_fd, name, NULL);
        if (fd < 0)
                return fd == -ENOENT ? 0 : fd;
        _cleanup_fclose_ FILE *f = NULL;
        int r = open_stream(&f, fd, "r");
        if (r < 0)
                return r;
        _cleanup_free_ char *line = NULL;
        size_t n_allocated = 0;
        for (;;) {
                errno = 0;
                ssize_t n = getline(&line, &n_allocated, f); /* the file itself is bounded */
                if (n < 0)
                        return ferror(f) ? -EIO : errno == ENOMEM ? -ENOMEM : 0;
                bool is_whole = line[n - 1] == '\n' && n <= DOCUMENT_LINE_MAX;
                if (line[n - 1] == '\n')
                        line[--n] = '\0';
                r = on_line(is_whole ? line : NULL, (size_t)n, userdata);
                if (r < 0)
                        return r;
        }
}

static bool is_record(const char *line, size_t n) {
        if (!line || parse_json_exceeds_depth(line, n, DEPTH_MAX))
                return false;
        json_t *v = json_loadb(line, n, 0, NULL);
        bool is_object = json_is_object(v);
        json_decref(v);
        return is_object;
}

/* ---- the document ---- */

typedef struct Writer {
        FILE *f;
        uint64_t n_records, n_dropped;
} Writer;

static int write_record(const char *line, size_t n, void *userdata) {
        Writer *w = userdata;
        if (!is_record(line, n)) {
                w->n_dropped++;
                return 0;
        }
        if (fputs(w->n_records++ ? ",\n" : "\n", w->f) < 0 || fwrite(line, 1, n, w->f) != n)
                return -EIO;
        return 0;
}

/* @param key  of the list  @return 0, -errno */
static int write_lines(Writer *w, int dir_fd, const char *key, const char *part) {
        w->n_records = w->n_dropped = 0;
        if (fprintf(w->f, ",\"%s\":[", key) < 0)
                return -EIO;
        int r = part ? document_lines(dir_fd, part, write_record, w) : 0;
        if (r < 0)
                return r;
        return fputs("]", w->f) < 0 ? -EIO : 0;
}

/* What b holds is an object that is still open. */
static int write_open(Writer *w, const StrBuf *b) {
        int r = strbuf_error(b);
        return r < 0 ? r : fputs(b->text, w->f) < 0 ? -EIO : 0;
}

static void add_time(StrBuf *b, const char *key, uint64_t usec) {
        char buf[CLOCK_ISO_SIZE];
        if (usec)
                json_out_string(b, key, clock_format_iso(buf, usec));
        else
                json_out_null(b, key);
}

static int write_section(Writer *w, int dir_fd, const DocumentSection *s) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "name", s->name);
        json_out_string(&b, "state", section_state_name(s->state));
        json_out_string(&b, "detail", s->detail && *s->detail ? s->detail : NULL);
        add_time(&b, "begin", s->begun_usec);
        json_out_u64(&b, "duration_ms", s->duration_usec / USEC_PER_MSEC);
        json_out_array(&b, "files");
        for (char *const *f = s->files; f && *f; f++)
                json_out_string(&b, NULL, *f);
        json_out_end_array(&b);
        int r = write_open(w, &b);
        if (r == 0)
                r = write_lines(w, dir_fd, "records", s->part);
        if (r == 0 &&
            fprintf(w->f, ",\"dropped_lines\":%llu}", (unsigned long long)w->n_dropped) < 0)
                r = -EIO;
        return r;
}

static int write_head(Writer *w, const Document *d) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "schema", SNAPSHOT_SCHEMA);
        json_out_string(&b, "name", d->name);
        json_out_string(&b, "trigger", d->trigger);
        json_out_string(&b, "instance_id", d->instance_id);
        json_out_string(&b, "hostname", d->hostname);
        json_out_object(&b, "agent");
        json_out_string(&b, "version", PACKAGE_VERSION);
        json_out_end_object(&b);
        add_time(&b, "begin", d->begun_usec);
        add_time(&b, "end", d->ended_usec);
        json_out_array(&b, "processes");
        for (size_t i = 0; i < d->n_processes; i++) {
                json_out_object(&b, NULL);
                json_out_i64(&b, "pid", d->processes[i].pid);
                json_out_u64(&b, "start_ticks", d->processes[i].start_ticks);
                json_out_end_object(&b);
        }
        json_out_end_array(&b);
        if (d->before)
                json_out_string(&b, "before", d->before);
        return write_open(w, &b);
}

static int write_body(Writer *w, const Document *d, int dir_fd) {
        int r = write_head(w, d);
        if (r == 0 && fputs(",\"sections\":[", w->f) < 0)
                r = -EIO;
        for (size_t i = 0; i < d->n_sections && r == 0; i++) {
                r = fputs(i ? ",\n" : "\n", w->f) < 0 ? -EIO : 0;
                if (r == 0)
                        r = write_section(w, dir_fd, &d->sections[i]);
        }
        if (r == 0 && fputs("]", w->f) < 0)
                r = -EIO;
        if (r == 0 && d->differences)
                r = write_lines(w, dir_fd, "differences", d->differences);
        if (r == 0 && (fputs("}\n", w->f) < 0 || fflush(w->f) != 0))
                r = -EIO;
        return r;
}

int document_write(const Document *d, int dir_fd, const char *name) {
        char temporary[128];
        if ((size_t)snprintf(temporary, sizeof temporary, ".%s.tmp", name) >= sizeof temporary)
                return -ENAMETOOLONG;
        _cleanup_fclose_ FILE *f = NULL;
        int r = document_create(&f, dir_fd, temporary);
        if (r < 0)
                return r;
        Writer w = { .f = f };
        r = write_body(&w, d, dir_fd);
        if (r == 0 && fsync(fileno(f)) < 0)
                r = -errno;
        if (r == 0 && renameat(dir_fd, temporary, dir_fd, name) < 0)
                r = -errno;
        if (r < 0) {
                (void)unlinkat(dir_fd, temporary, 0); /* the next try removes it */
                return r;
        }
        return fs_sync_dir(dir_fd);
}

#define VALUES_MAX (512 * 1024) /* 64 devices of 8 cores have some 100,000 */
typedef struct DocumentValue {
        char *path, *text; /* text: JSON */
} DocumentValue;

typedef struct Values {
        DocumentValue *items;
        size_t n;
        bool is_cut;
} Values;

static void values_done(Values *v) {
        for (size_t i = 0; i < v->n; i++) {
                free(v->items[i].path);
                free(v->items[i].text);
        }
        free(v->items);
        *v = (Values){ 0 };
}

static int add_value(Values *v, const char *record, const char *leaf, const json_t *value) {
        if (json_is_object(value) || json_is_array(value))
                return 0;
        if (v->n >= VALUES_MAX) {
                v->is_cut = true;
                return 0;
        }
        if (array_grow(&v->items, v->n, sizeof *v->items) < 0)
                return -ENOMEM;
        DocumentValue x = { .path = strbuf_format("%s%s%s", record, *record ? "/" : "", leaf),
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

static int add_record(Values *v, json_t *record) {
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
        return strcmp(((const DocumentValue *)a)->path, ((const DocumentValue *)b)->path);
}

static int read_values(int dir_fd, const char *name, Values *ret) {
        int r = document_lines(dir_fd, name, on_values_line, ret);
        if (r == 0 && ret->n > 0)
                qsort(ret->items, ret->n, sizeof *ret->items, by_path);
        return r;
}

/* Counters come as numbers or, from sysfs, as text of decimal digits. */
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

static int write_difference(FILE *f, const DocumentValue *before, const DocumentValue *after) {
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

/* Both are in order of their paths. */
static int compare(FILE *f, const Values *before, const Values *after) {
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

int document_write_differences(int dir_fd, const char *before, const char *after, const char *out) {
        _cleanup_(values_done) Values x = { 0 }, y = { 0 };
        int r = read_values(dir_fd, before, &x);
        if (r == 0)
                r = read_values(dir_fd, after, &y);
        _cleanup_fclose_ FILE *f = NULL;
        r = document_create(&f, dir_fd, out);
        if (r == 0)
                r = compare(f, &x, &y);
        if (r == 0 && fflush(f) != 0)
                r = -EIO;
        return r < 0 ? r : x.is_cut || y.is_cut ? -EFBIG : 0;
}
