/* Threads of a process: where each stands. One record a thread, so that what was written before a deadline is whole. */
#include <errno.h>
#include <string.h>

#include "collectors/host/process_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"

enum { THREADS_MAX = 2000, WORD_BYTES_MAX = 256, STACK_BYTES_MAX = 8 << 10, STACK_LINES_MAX = 64 };

/* Adds the one line of a thread's file, or null and why. */
static void add_word(ProcessReport *report, const char *key, int tid, const char *name) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        char path[64];
        int r;

        (void)snprintf(path, sizeof path, "task/%d/%s", tid, name);
        r = procfs_read(report->p, (ProcFile){ path, WORD_BYTES_MAX }, &text, NULL);
        if (r == 0)
                json_out_text(&report->b, key, text.text ? text.text : "",
                              text.text ? strcspn(text.text, "\n") : 0);
        else
                process_add_missing(&report->b, key, r);
}

static void add_stack(ProcessReport *report, int tid) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        char path[64];
        unsigned n_lines = 0;
        int r;

        (void)snprintf(path, sizeof path, "task/%d/stack", tid);
        r = procfs_read(report->p, (ProcFile){ path, STACK_BYTES_MAX }, &text, NULL);
        if (r != 0) {
                process_add_missing(&report->b, "kernel_stack", r);
                return;
        }
        json_out_array(&report->b, "kernel_stack");
        for (char *line = text.text; line && *line != '\0' && n_lines < STACK_LINES_MAX;
             n_lines++) {
                size_t n = strcspn(line, "\n");
                json_out_text(&report->b, NULL, line, n);
                line = line[n] == '\n' ? line + n + 1 : NULL;
        }
        json_out_end_array(&report->b);
}

static void add_state(ProcessReport *report, int tid) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        char path[64];
        ProcStat stat;
        int r;

        (void)snprintf(path, sizeof path, "task/%d/stat", tid);
        r = procfs_read(report->p, (ProcFile){ path, 4096 }, &text, NULL);
        if (r != 0 || !text.text || !procfs_parse_stat(text.text, text.n, &stat)) {
                process_add_missing(&report->b, "state", r != 0 ? r : -EBADMSG);
                return;
        }
        json_out_text(&report->b, "state", &stat.state, 1);
        json_out_string(&report->b, "name", stat.comm);
}

void process_threads(ProcessReport *report) {
        _cleanup_(procfs_numbers_done) ProcNumbers tids = { 0 };
        int r = procfs_list(report->p->dir_fd, "task", THREADS_MAX, &tids);

        process_begin(report, "threads");
        if (r < 0)
                process_add_missing(&report->b, "threads", r);
        else
                json_out_u64(&report->b, "threads", tids.n);
        json_out_bool(&report->b, "cut", tids.is_cut);
        process_end(report);
        for (size_t i = 0; i < tids.n && report->result == 0; i++) {
                process_begin(report, "thread");
                json_out_i64(&report->b, "tid", tids.items[i]);
                add_state(report, tids.items[i]);
                add_word(report, "wchan", tids.items[i], "wchan");
                add_word(report, "syscall", tids.items[i], "syscall");
                add_stack(report, tids.items[i]);
                process_end(report);
        }
}
