/* The collector runtime_log: the log files of the Neuron runtime.
 *
 * For each log it records the file, the blocks that the runtime writes for support, and the error
 * lines, and keeps the tail as a raw file. Everything is redacted, and of the environment in a
 * block only what the configuration allows is kept.
 *
 * Logs come from the dumps of the request and from notes that name a file. Which of them may be
 * read is decided in runtime_log_files.c; nrt_log.c parses them. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "collectors/neuron/nrt_log.h"
#include "collectors/neuron/runtime_log_files.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"
#include "lib/neuron/job.h"

enum {
        TAIL_BYTES_MAX = 256 << 10,
        BLOCKS_MAX = 4, /* the last ones: a process that fails in many threads writes many */
        BLOCK_LINES_MAX = 512,
        ERRORS_MAX = 64, /* the first half and the last half of the tail's */
        LINE_BYTES_MAX = 8 << 10,
        VALUE_BYTES_MAX = 4 << 10,
        RECORD_BYTES_MAX = 256 << 10,
        RAW_NAME_SIZE = 128,
};

/* A log that is read. */
typedef struct RuntimeLog {
        const CollectRequest *request;
        CollectOut *out;
        size_t number; /* in the snapshot, from 0 */
        char *text;    /* redacted in one piece, before anything is copied from it: redact_text()
                          needs the words around a secret */
        size_t n;
        uint64_t tail_from; /* offset in the file */
        struct stat st;
} RuntimeLog;

static void add_span(StrBuf *b, const char *key, NrtSpan s) {
        json_out_text(b, key, s.s, MIN(s.n, (size_t)VALUE_BYTES_MAX));
}

static int emit(const RuntimeLog *log, StrBuf *b) {
        json_out_end_object(b);
        return collect_emit_fitting(log->out, b);
}

static void start_record(const RuntimeLog *log, StrBuf *b, const char *about) {
        json_out_object(b, NULL);
        json_out_u64(b, "log", log->number);
        json_out_string(b, "about", about);
}

static bool variable_is_allowed(const CollectRequest *request, const NrtInfoItem *item) {
        char name[256];

        if (item->name.n >= sizeof name)
                return false;
        memcpy(name, item->name.s, item->name.n);
        name[item->name.n] = '\0';
        return environment_is_allowed(request->environment, name);
}

/* Variables that the allow-list keeps out of the records must not be in the raw file either. */
static void mask_variables(const RuntimeLog *log) {
        NrtInfodump dump;
        NrtInfoItem item;

        for (size_t at = 0; nrt_infodump_find(log->text, log->n, &at, &dump);) {
                bool in_environment = false;
                for (size_t line = 0;
                     nrt_infodump_next(&dump.lines, &line, &in_environment, &item);)
                        if (item.kind == NRT_INFO_ENVIRONMENT &&
                            !variable_is_allowed(log->request, &item))
                                memset(log->text + (item.value.s - log->text), '*', item.value.n);
        }
}

/* The tail starts at the beginning of a line: half a line could contain a secret without the name
 * by which redact_text() finds it. */
static int read_tail(RuntimeLog *log, int fd) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;
        _cleanup_free_ char *raw = NULL;
        size_t n, skip = 0;

        if (log->st.st_size > TAIL_BYTES_MAX)
                log->tail_from = (uint64_t)log->st.st_size - TAIL_BYTES_MAX;
        raw = malloc(TAIL_BYTES_MAX);
        if (!raw)
                return -ENOMEM;
        ssize_t got = fs_pread(fd, raw, TAIL_BYTES_MAX, log->tail_from);
        if (got < 0)
                return (int)got;
        n = (size_t)got;
        if (log->tail_from > 0) {
                const char *newline = memchr(raw, '\n', n);
                skip = newline ? (size_t)(newline + 1 - raw) : n;
        }
        redact_text(&clean, raw + skip, n - skip);
        explicit_bzero(raw, n);
        log->tail_from += skip;
        log->n = clean.n;
        log->text = strbuf_detach(&clean);
        if (!log->text)
                return -ENOMEM;
        mask_variables(log);
        return 0;
}

/* @param why  the file could not be read; NULL: it was */
static int emit_file(const RuntimeLog *log, const char *path, const char *why) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        start_record(log, &b, "file");
        json_out_path(&b, "path", path);
        if (why) {
                json_out_null(&b, "bytes");
                json_out_string(&b, "unavailable", why);
        } else {
                json_out_u64(&b, "bytes", (uint64_t)log->st.st_size);
                json_out_u64(&b, "uid", log->st.st_uid);
                json_out_i64(&b, "mtime", log->st.st_mtime);
                json_out_u64(&b, "tail_from", log->tail_from);
        }
        return emit(log, &b);
}

static int write_raw(const RuntimeLog *log) {
        const CollectOut *out = log->out;
        char name[RAW_NAME_SIZE];

        if (log->n > out->max_bytes - out->used_bytes) {
                log->out->is_cut = true; /* rather no file than an empty one */
                return 0;
        }
        (void)snprintf(name, sizeof name, "runtime-log-%s%zu.txt",
                       out->raw_prefix ? out->raw_prefix : "", log->number);
        _cleanup_close_ int fd = collect_raw_file(log->out, name);
        if (fd < 0)
                return 0; /* raw files are not wanted; the records are complete without */
        int r = collect_write(log->out, fd, log->text, log->n);
        return r == -EFBIG ? 0 : r;
}

static void add_field(StrBuf *b, const NrtInfoItem *item) {
        char name[64];
        size_t n = 0;

        for (size_t i = 0; i < item->name.n && n + 1 < sizeof name; i++)
                name[n++] = item->name.s[i] != '\0' ? item->name.s[i] : '?';
        name[n] = '\0';
        if (item->value.n > 0)
                add_span(b, name, item->value);
}

/* Adds the items of one kind. A record has an object for each kind, so that a block is read once
 * for each. @return how many variables the allow-list has left out */
static size_t add_items(const RuntimeLog *log, StrBuf *b, const NrtSpan *block, NrtInfoKind kind) {
        bool in_environment = false;
        size_t at = 0, n_left_out = 0;
        NrtInfoItem item;

        for (size_t n = 0;
             n < BLOCK_LINES_MAX && nrt_infodump_next(block, &at, &in_environment, &item); n++) {
                if (item.kind != kind || b->n > RECORD_BYTES_MAX)
                        continue;
                if (kind == NRT_INFO_OTHER)
                        add_span(b, NULL, item.value);
                else if (kind == NRT_INFO_FIELD)
                        add_field(b, &item);
                else if (variable_is_allowed(log->request, &item))
                        add_field(b, &item);
                else
                        n_left_out++;
        }
        return n_left_out;
}

static int emit_block(const RuntimeLog *log, const NrtSpan *block, bool is_whole) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        start_record(log, &b, "infodump");
        json_out_bool(&b, "whole", is_whole);
        json_out_object(&b, "fields");
        (void)add_items(log, &b, block, NRT_INFO_FIELD); /* only variables are left out */
        json_out_end_object(&b);
        json_out_object(&b, "environment");
        size_t n_left_out = add_items(log, &b, block, NRT_INFO_ENVIRONMENT);
        json_out_end_object(&b);
        json_out_u64(&b, "environment_left_out", n_left_out);
        json_out_array(&b, "other");
        (void)add_items(log, &b, block, NRT_INFO_OTHER); /* only variables are left out */
        json_out_end_array(&b);
        return emit(log, &b);
}

static int emit_blocks(const RuntimeLog *log) {
        NrtInfodump dump;
        size_t n = 0, at = 0;
        int r = 0;

        while (nrt_infodump_find(log->text, log->n, &at, &dump))
                n++;
        at = 0;
        for (size_t i = 0; r == 0 && nrt_infodump_find(log->text, log->n, &at, &dump); i++)
                if (i + BLOCKS_MAX >= n)
                        r = emit_block(log, &dump.lines, dump.is_whole);
        return r;
}

static int emit_error(const RuntimeLog *log, const NrtLine *l) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        start_record(log, &b, "error");
        json_out_text(&b, "time", l->time.s, l->time.n);
        json_out_u64(&b, "pid", l->pid);
        json_out_u64(&b, "tid", l->tid);
        json_out_text(&b, "level", l->level.s, l->level.n);
        add_span(&b, "module", l->module);
        add_span(&b, "function", l->function);
        if (l->device >= 0)
                json_out_i64(&b, "device", l->device);
        if (l->core >= 0)
                json_out_i64(&b, "core", l->core);
        add_span(&b, "message", l->message);
        return emit(log, &b);
}

/* Counts the error lines, and reports the first and the last ones. @param n_all  how many the log
 * has; 0: only count them */
static int walk_errors(const RuntimeLog *log, size_t n_all, size_t *ret_n) {
        const char *end = log->text + log->n;
        size_t n = 0;
        int r = 0;

        for (const char *line = log->text; r == 0 && line < end;) {
                const char *stop = memchr(line, '\n', (size_t)(end - line));
                size_t size = (size_t)((stop ? stop : end) - line);
                NrtLine l;
                if (nrt_log_parse_line(line, MIN(size, (size_t)LINE_BYTES_MAX), &l) &&
                    nrt_log_is_error(&l)) {
                        if (n_all > 0 && (n < ERRORS_MAX / 2 || n + ERRORS_MAX / 2 >= n_all))
                                r = emit_error(log, &l);
                        n++;
                }
                line += size + 1;
        }
        *ret_n = n;
        return r;
}

static int emit_errors(const RuntimeLog *log) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        size_t n = 0;
        int r = walk_errors(log, 0, &n);

        if (r < 0 || n == 0)
                return r;
        start_record(log, &b, "errors");
        json_out_u64(&b, "error_lines", n);
        json_out_u64(&b, "shown", MIN(n, (size_t)ERRORS_MAX));
        r = emit(log, &b);
        return r < 0 ? r : walk_errors(log, n, &n);
}

/* The files that were read: 128 ranks may write one file. */
typedef struct SeenFiles {
        struct stat *items;
        size_t n;
} SeenFiles;

static bool was_read_before(const RuntimeLog *log, SeenFiles *seen) {
        for (size_t i = 0; i < seen->n; i++)
                if (seen->items[i].st_dev == log->st.st_dev &&
                    seen->items[i].st_ino == log->st.st_ino)
                        return true;
        seen->items[seen->n++] = log->st;
        return false;
}

/* @param fd  negative: the file could not be opened because of why */
static int collect_log(RuntimeLog *log, int fd, const char *path, const char *why) {
        int r = fd < 0 ? 0 : read_tail(log, fd);

        if (r < 0)
                why = strerror(-r);
        r = emit_file(log, path, why);
        if (why || r < 0)
                return r;
        r = emit_blocks(log);
        if (r == 0)
                r = emit_errors(log);
        return r < 0 ? r : write_raw(log);
}

static int collect_named(RuntimeLog *log, const CollectLogFile *f, SeenFiles *seen) {
        const char *why = NULL;
        _cleanup_close_ int fd = runtime_log_files_open_named(log->request, f, &log->st, &why);

        return fd >= 0 && was_read_before(log, seen) ? 0 : collect_log(log, fd, f->path, why);
}

static int emit_dump(const RuntimeLog *log, const RuntimeLogFile *f) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        start_record(log, &b, "dump");
        json_out_path(&b, "path", f->path);
        json_out_string(&b, "unavailable", strerror(-f->error));
        return emit(log, &b);
}

static int collect_found(RuntimeLog *log, const RuntimeLogFile *f, SeenFiles *seen) {
        const char *why = NULL;

        if (!f->name)
                return emit_dump(log, f);
        _cleanup_close_ int fd = runtime_log_files_open_in_dump(f, &log->st, &why);
        if (fd == -ENOENT || (fd >= 0 && was_read_before(log, seen)))
                return 0;
        return collect_log(log, fd, f->path, why);
}

static int emit_left_out(const CollectRequest *request, CollectOut *out, size_t n_left_out) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        const RuntimeLog log = { .request = request, .out = out, .number = COLLECT_FILES_MAX };

        start_record(&log, &b, "dump");
        json_out_u64(&b, "left_out", n_left_out);
        return emit(&log, &b);
}

/* Each log gets an equal share of the remaining bytes, so that the last of 128 ranks is reported,
 * too.
 */
static int collect_dumps(const CollectRequest *request, CollectOut *out,
                         const RuntimeLogFiles *logs, SeenFiles *seen) {
        uint64_t max_bytes = out->max_bytes;
        int r = 0;

        for (size_t i = 0; r == 0 && i < logs->n; i++) {
                RuntimeLog log = { .request = request, .out = out, .number = i };
                uint64_t n_shares = logs->n - i + request->n_log_files;
                out->max_bytes = out->used_bytes + (max_bytes - out->used_bytes) / n_shares;
                r = collect_found(&log, &logs->items[i], seen);
                free(log.text);
        }
        out->max_bytes = max_bytes;
        return r < 0 || logs->n_left_out == 0 ? r : emit_left_out(request, out, logs->n_left_out);
}

int collect_runtime_log(const CollectRequest *request, CollectOut *out) {
        _cleanup_(runtime_log_files_done) RuntimeLogFiles logs = { 0 };
        _cleanup_free_ struct stat *items = calloc(2 * COLLECT_FILES_MAX, sizeof *items);
        SeenFiles seen = { .items = items };
        int r = items ? runtime_log_files_find(request, &logs) : -ENOMEM;

        if (r == 0 && logs.n == 0 && request->n_log_files == 0) {
                (void)snprintf(out->why, sizeof out->why,
                               "no log of the runtime is known: no dump has one, and no hook named "
                               "a file (NEURON_RT_LOG_LOCATION)");
                return COLLECT_E_NOTHING;
        }
        if (r == 0)
                r = collect_dumps(request, out, &logs, &seen);
        for (size_t i = 0; r == 0 && i < MIN(request->n_log_files, (size_t)COLLECT_FILES_MAX);
             i++) {
                RuntimeLog log = { .request = request, .out = out, .number = logs.n + i };
                r = collect_named(&log, &request->log_files[i], &seen);
                free(log.text);
        }
        return r;
}
