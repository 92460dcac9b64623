/* The document of a snapshot.
 *
 * It is streamed: the members that the supervisor knows, and then the records of each section, line
 * by line from the file that its child has written, so that no document is ever held in memory. A
 * child is not trusted to write JSON: a line that is no record is left out and counted. The
 * document appears under its name only when it is complete and on disk. */
#include "collectors/runner/document.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "collectors/runner/record_file.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

#define DEPTH_MAX 32 /* of a record; the document adds three */

static const char *section_state_name(SectionState s) {
        static const char *const names[N_SECTION_STATES] = { "complete", "timeout", "cut", "failed",
                                                             "skipped" };
        return s < N_SECTION_STATES ? names[s] : "failed";
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

/* A document that is being written. */
typedef struct DocumentWriter {
        FILE *f;
        uint64_t n_records, n_dropped;
} DocumentWriter;

static int write_record(const char *line, size_t n, void *userdata) {
        DocumentWriter *w = userdata;
        if (!is_record(line, n)) {
                w->n_dropped++;
                return 0;
        }
        if (fputs(w->n_records++ ? ",\n" : "\n", w->f) < 0 || fwrite(line, 1, n, w->f) != n)
                return -EIO;
        return 0;
}

/* @param key  of the list  @return 0, -errno */
static int write_lines(DocumentWriter *w, int dir_fd, const char *key, const char *part) {
        w->n_records = w->n_dropped = 0;
        if (fprintf(w->f, ",\"%s\":[", key) < 0)
                return -EIO;
        int r = part ? record_file_lines(dir_fd, part, write_record, w) : 0;
        if (r < 0)
                return r;
        return fputs("]", w->f) < 0 ? -EIO : 0;
}

/* Writes an object that is not closed yet. */
static int write_open(DocumentWriter *w, const StrBuf *b) {
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

static int write_section(DocumentWriter *w, int dir_fd, const DocumentSection *s) {
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

static int write_head(DocumentWriter *w, const Document *d) {
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

static int write_body(DocumentWriter *w, const Document *d, int dir_fd) {
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
        int r = record_file_create(&f, dir_fd, temporary);
        if (r < 0)
                return r;
        DocumentWriter w = { .f = f };
        r = write_body(&w, d, dir_fd);
        if (r == 0 && fsync(fileno(f)) < 0)
                r = -errno;
        if (r == 0 && renameat(dir_fd, temporary, dir_fd, name) < 0)
                r = -errno;
        if (r < 0) {
                (void)unlinkat(dir_fd, temporary, 0); /* on error the next try removes it */
                return r;
        }
        return fs_sync_dir(dir_fd);
}
