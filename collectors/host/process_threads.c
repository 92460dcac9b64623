/* The threads of a process: its state, and what the kernel says where it stands (wchan, the system
 * call, the kernel stack). Each thread has a record of its own, so that those that were written
 * before a deadline are complete. */
#include "collectors/host/process_threads.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"

enum { THREADS_MAX = 2000, STACK_BYTES_MAX = 8 << 10, STACK_LINES_MAX = 64 };

static void add_thread_word(ProcessReport *report, int tid, const char *name) {
        char path[64];

        (void)snprintf(path, sizeof path, "task/%d/%s", tid, name);
        process_report_add_word(report, name, path);
}

static void add_stack(ProcessReport *report, int tid) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        char path[64];

        (void)snprintf(path, sizeof path, "task/%d/stack", tid);
        int r = procfs_read(report->p, (ProcFile){ path, STACK_BYTES_MAX }, &text, NULL);
        if (r != 0)
                process_report_add_missing(&report->b, "kernel_stack", r);
        else
                process_report_add_lines(report, "kernel_stack", text.text, STACK_LINES_MAX);
}

static void add_state(ProcessReport *report, int tid) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        char path[64];
        ProcStat stat;

        (void)snprintf(path, sizeof path, "task/%d/stat", tid);
        int r = procfs_read(report->p, (ProcFile){ path, 4096 }, &text, NULL);
        if (r != 0 || !text.text || !procfs_parse_stat(text.text, text.n, &stat)) {
                process_report_add_missing(&report->b, "state", r != 0 ? r : -EBADMSG);
                return;
        }
        json_out_text(&report->b, "state", &stat.state, 1);
        json_out_string(&report->b, "name", stat.comm);
}

void process_threads_record(ProcessReport *report) {
        _cleanup_(procfs_numbers_done) ProcNumbers tids = { 0 };
        int r = procfs_list(report->p->dir_fd, "task", THREADS_MAX, &tids);

        process_report_begin(report, "threads");
        if (r < 0)
                process_report_add_missing(&report->b, "threads", r);
        else
                json_out_u64(&report->b, "threads", tids.n);
        json_out_bool(&report->b, "cut", tids.is_cut);
        process_report_end(report);
        for (size_t i = 0; i < tids.n && report->result == 0; i++) {
                process_report_begin(report, "thread");
                json_out_i64(&report->b, "tid", tids.items[i]);
                add_state(report, tids.items[i]);
                add_thread_word(report, tids.items[i], "wchan");
                add_thread_word(report, tids.items[i], "syscall");
                add_stack(report, tids.items[i]);
                process_report_end(report);
        }
}
