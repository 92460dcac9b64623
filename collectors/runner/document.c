#include "collectors/runner/document.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"

#define DEPTH_MAX 32 /* of a record; the document adds three */

const char *section_state_name(SectionState s) {
        static const char *const names[N_SECTION_STATES] = { "complete", "timeout", "cut", "failed",
                                                             "skipped" };
        return s < N_SECTION_STATES ? names[s] : "failed";
}

/* ---- files ---- */

/* Takes fd over. */
static int make_stream(FILE **ret, int fd, const char *mode) {
        *ret = fdopen(fd, mode);
        if (*ret)
                return 0;
        (void)close(fd); /* nothing was written */
        return -ENOMEM;
}

int document_create(FILE **ret, int dir_fd, const char *name) {
        if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
                return -errno;
        int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        return fd < 0 ? -errno : make_stream(ret, fd, "w");
}

int document_lines(int dir_fd, const char *name,
                   int (*on_line)(const char *line, size_t n, void *userdata), void *userdata) {
        int fd = fs_open_regular(dir_fd, name, NULL);
        if (fd < 0)
                return fd == -ENOENT ? 0 : fd;
        _cleanup_fclose_ FILE *f = NULL;
        int r = make_stream(&f, fd, "r");
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
        if (!line || parse_json_nests_deeper(line, n, DEPTH_MAX))
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

static int put_record(const char *line, size_t n, void *userdata) {
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
static int put_lines(Writer *w, int dir_fd, const char *key, const char *part) {
        w->n_records = w->n_dropped = 0;
        if (fprintf(w->f, ",\"%s\":[", key) < 0)
                return -EIO;
        int r = part ? document_lines(dir_fd, part, put_record, w) : 0;
        if (r < 0)
                return r;
        return fputs("]", w->f) < 0 ? -EIO : 0;
}

/* What b holds is an object that is still open. */
static int put_open(Writer *w, const StrBuf *b) {
        int r = strbuf_error(b);
        return r < 0 ? r : fputs(b->text, w->f) < 0 ? -EIO : 0;
}

static void put_time(StrBuf *b, const char *key, uint64_t usec) {
        char buf[CLOCK_ISO_SIZE];
        if (usec)
                json_out_string(b, key, clock_format_iso(buf, usec));
        else
                json_out_null(b, key);
}

static int put_section(Writer *w, int dir_fd, const DocumentSection *s) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "name", s->name);
        json_out_string(&b, "state", section_state_name(s->state));
        json_out_string(&b, "detail", s->detail && *s->detail ? s->detail : NULL);
        put_time(&b, "begin", s->begun_usec);
        json_out_u64(&b, "duration_ms", s->duration_usec / USEC_PER_MSEC);
        json_out_array(&b, "files");
        for (char *const *f = s->files; f && *f; f++)
                json_out_string(&b, NULL, *f);
        json_out_end_array(&b);
        int r = put_open(w, &b);
        if (r == 0)
                r = put_lines(w, dir_fd, "records", s->part);
        if (r == 0 &&
            fprintf(w->f, ",\"dropped_lines\":%llu}", (unsigned long long)w->n_dropped) < 0)
                r = -EIO;
        return r;
}

static int put_head(Writer *w, const Document *d) {
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
        put_time(&b, "begin", d->begun_usec);
        put_time(&b, "end", d->ended_usec);
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
        return put_open(w, &b);
}

static int put_document(Writer *w, const Document *d, int dir_fd) {
        int r = put_head(w, d);
        if (r == 0 && fputs(",\"sections\":[", w->f) < 0)
                r = -EIO;
        for (size_t i = 0; i < d->n_sections && r == 0; i++) {
                r = fputs(i ? ",\n" : "\n", w->f) < 0 ? -EIO : 0;
                if (r == 0)
                        r = put_section(w, dir_fd, &d->sections[i]);
        }
        if (r == 0 && fputs("]", w->f) < 0)
                r = -EIO;
        if (r == 0 && d->differences)
                r = put_lines(w, dir_fd, "differences", d->differences);
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
        r = put_document(&w, d, dir_fd);
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
