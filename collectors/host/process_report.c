/* The records about one process.
 *
 * Before a record is written, the process is checked: if another one has got its pid, what was read
 * may be a mixture of both, and nothing more is written. What cannot be read is null in the record,
 * with the reason beside it. What the records contain is decided in process_status.c,
 * process_threads.c and process_memory.c. */
#include "collectors/host/process_report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "collectors/runner/child_pool.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"

enum { WORD_BYTES_MAX = 256 };

void process_report_begin(ProcessReport *report, const char *about) {
        strbuf_clear(&report->b);
        json_out_object(&report->b, NULL);
        json_out_i64(&report->b, "pid", report->p->stat.pid);
        json_out_u64(&report->b, "start_ticks", report->p->stat.start_ticks);
        json_out_string(&report->b, "about", about);
}

void process_report_end(ProcessReport *report) {
        json_out_end_object(&report->b);
        strbuf_add(&report->b, "\n");
        if (report->result != 0)
                return;
        int r = strbuf_error(&report->b);
        if (r == 0)
                r = procfs_check(report->p) == PROCFS_E_REPLACED ? PROCFS_E_REPLACED : 0;
        if (r == 0)
                r = fs_write_all(report->fd, report->b.text, report->b.n);
        report->result = r;
}

void process_report_add_missing(StrBuf *b, const char *key, int outcome) {
        char name[64];

        json_out_null(b, key);
        (void)snprintf(name, sizeof name, "%s_unavailable", key);
        json_out_string(b, name, procfs_reason(outcome));
}

void process_report_write_raw(const ProcessReport *report, const char *kind, const StrBuf *text) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;
        CollectOut out = { .dir_fd = CHILD_POOL_KEPT_FD };
        size_t n = MIN(text->n, (size_t)PROCESS_RAW_BYTES_MAX);
        char name[64];

        while (n > 0 && n < text->n && text->text[n - 1] != '\n')
                n--;
        if (n == 0 || !report->has_raw_files)
                return;
        redact_text(&clean, text->text, n);
        (void)snprintf(name, sizeof name, "process-%d-%s.txt", report->p->stat.pid, kind);
        _cleanup_close_ int fd = collect_raw_file(&out, name);
        if (fd >= 0 && strbuf_error(&clean) == 0)
                (void)fs_write_all(fd, clean.text,
                                   clean.n); /* a file that was cut shows it itself */
}

void process_report_add_word(ProcessReport *report, const char *key, const char *name) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(report->p, (ProcFile){ name, WORD_BYTES_MAX }, &text, NULL);

        if (r == 0)
                json_out_text(&report->b, key, text.text ? text.text : "",
                              text.text ? strcspn(text.text, "\n") : 0);
        else
                process_report_add_missing(&report->b, key, r);
}

void process_report_add_lines(ProcessReport *report, const char *key, const char *text,
                              size_t n_max) {
        json_out_array(&report->b, key);
        for (const char *line = text; line && *line != '\0' && n_max > 0; n_max--) {
                size_t n = strcspn(line, "\n");
                json_out_text(&report->b, NULL, line, n);
                line = line[n] == '\n' ? line + n + 1 : NULL;
        }
        json_out_end_array(&report->b);
}
