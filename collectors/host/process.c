/* Processes that the snapshot is about. Each is read by a part of its own (crew.h), which writes record by record: first what never waits (status,
 * limits, descriptors, threads), then what may (maps, command line, environment), so that a process which makes its reader wait costs its own
 * last records and nobody else's. Raw files are written here: a part has no descriptor but its pipe. */
#include <errno.h>
#include <string.h>

#include "collectors/host/process_private.h"
#include "collectors/runner/collector.h"
#include "collectors/runner/crew.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"

enum {
        PARTS_AT_ONCE = 8,
        LINE_BYTES_MAX = 512 << 10,
        NOT_BEGUN = -1, /* raw files */
        NOT_TO_BE_HAD = -2,
};

typedef struct ProcessRun {
        const CollectOrder *order;
        CollectOut *out;
        const JobsScan *scan;
        int *maps_fds, *limits_fds; /* by the process's place in the order; */
} ProcessRun;

void process_begin(ProcessReport *report, const char *about) {
        strbuf_clear(&report->b);
        json_out_object(&report->b, NULL);
        json_out_i64(&report->b, "pid", report->p->stat.pid);
        json_out_u64(&report->b, "start_ticks", report->p->stat.start_ticks);
        json_out_string(&report->b, "about", about);
}

void process_end(ProcessReport *report) {
        int r;

        json_out_end_object(&report->b);
        strbuf_add(&report->b, "\n");
        if (report->result != 0)
                return;
        r = strbuf_error(&report->b);
        if (r == 0)
                r = procfs_check(report->p) == PROCFS_E_REPLACED ? PROCFS_E_REPLACED : 0;
        if (r == 0)
                r = fs_write_all(report->fd, report->b.text, report->b.n);
        report->result = r;
}

void process_add_missing(StrBuf *b, const char *key, int outcome) {
        char name[64];

        json_out_null(b, key);
        (void)snprintf(name, sizeof name, "%s_unavailable", key);
        json_out_string(b, name, procfs_reason(outcome));
}

void process_raw_line(ProcessReport *report, char kind, const char *line, size_t n) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;

        if (report->result != 0)
                return;
        strbuf_add_n(&clean, &kind, 1);
        redact_text(&clean, line, n);
        for (size_t i = 0; i < clean.n; i++)
                if (clean.text[i] == '\n' || clean.text[i] == '\0')
                        clean.text[i] = '?';
        strbuf_add(&clean, "\n");
        report->result = strbuf_error(&clean);
        if (report->result == 0)
                report->result = fs_write_all(report->fd, clean.text, clean.n);
}

static void report_all(ProcessReport *report, const JobsScan *scan) {
        process_status(report);
        process_place(report);
        process_limits(report);
        process_devices(report, scan);
        process_children(report);
        process_threads(report);
        process_maps(report);
        process_command(report);
        process_environment(report);
        process_neighbours(report, scan);
}

/* A record of a process that cannot be read (any more). */
static void add_outcome(StrBuf *b, const CollectProcess *process, uint64_t start_ticks,
                        int outcome) {
        static const char *const words[] = { [0] = "complete",
                                             [PROCFS_E_GONE] = "gone",
                                             [PROCFS_E_REPLACED] = "replaced",
                                             [PROCFS_E_HIDDEN] = "hidden" };

        json_out_object(b, NULL);
        json_out_i64(b, "pid", process->pid);
        json_out_u64(b, "start_ticks", start_ticks);
        json_out_string(b, "about", "end");
        json_out_string(b, "outcome",
                        outcome >= 0 && outcome <= PROCFS_E_HIDDEN ? words[outcome]
                        : outcome == -ETIMEDOUT                    ? "timeout"
                                                                   : "failed");
        json_out_string(b, "detail", procfs_reason(outcome));
        json_out_end_object(b);
}

/* In a process of its own. */
static int run_part(const CrewTask *task, int fd, void *userdata) {
        const CollectProcess *process = task->userdata;
        const ProcessRun *run = userdata;
        uint64_t start_ticks = process->start_ticks;
        Proc p;
        int r = procfs_open(&p, run->order->proc_root, process->pid, process->start_ticks);

        if (r == 0) {
                start_ticks = p.stat.start_ticks;
                ProcessReport report = { .order = run->order, .p = &p, .fd = fd };
                report_all(&report, run->scan);
                r = report.result != 0 ? report.result : procfs_check(&p);
                strbuf_done(&report.b);
                procfs_close(&p);
        }
        if (r < 0)
                return r;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        add_outcome(&b, process, start_ticks, r);
        strbuf_add(&b, "\n");
        r = strbuf_error(&b);
        return r < 0 ? r : fs_write_all(fd, b.text, b.n);
}

/* @return the fd of a raw file of the process, made at its first line; < 0 when there is none */
static int raw_file(const ProcessRun *run, const CollectProcess *process, char kind) {
        int *fd =
                (kind == 'M' ? run->maps_fds : run->limits_fds) + (process - run->order->processes);
        char name[64];

        if (*fd == NOT_BEGUN) {
                (void)snprintf(name, sizeof name, "process-%d-%s.txt", process->pid,
                               kind == 'M' ? "maps" : "limits");
                *fd = collect_raw_file(run->out, name);
                if (*fd < 0)
                        *fd = NOT_TO_BE_HAD;
        }
        return *fd;
}

static int on_line(const CrewTask *task, char *line, size_t n, void *userdata) {
        _cleanup_(strbuf_done) StrBuf record = STRBUF_INIT;
        const ProcessRun *run = userdata;
        int r = 0;

        if (n > 0 && (line[0] == 'M' || line[0] == 'L')) {
                int fd = raw_file(run, task->userdata, line[0]);
                line[n] = '\n'; /* in the place of its NUL */
                if (fd >= 0)
                        r = collect_write(run->out, fd, line + 1, n);
        } else {
                strbuf_add_n(&record, line, n);
                r = collect_emit(run->out, &record);
        }
        return r == -EFBIG ? 0 : r;
}

static void close_raw(int *fd) {
        if (*fd >= 0)
                (void)close(*fd); /* written for others to read: a loss is seen there */
        *fd = NOT_TO_BE_HAD;
}

static int on_end(const CrewTask *task, int result, void *userdata) {
        _cleanup_(strbuf_done) StrBuf record = STRBUF_INIT;
        const CollectProcess *process = task->userdata;
        const ProcessRun *run = userdata;
        size_t place = (size_t)(process - run->order->processes);
        int r;

        close_raw(&run->maps_fds[place]);
        close_raw(&run->limits_fds[place]);
        if (result == 0)
                return 0;
        add_outcome(&record, process, process->start_ticks, result);
        r = collect_emit(run->out, &record);
        return r == -EFBIG ? 0 : r;
}

static int run_parts(ProcessRun *run) {
        const CollectOrder *order = run->order;
        size_t n = order->n_processes;
        CrewTask tasks[COLLECT_PROCESSES_MAX];
        Crew crew = { .run = run_part,
                      .on_line = on_line,
                      .on_end = on_end,
                      .userdata = run,
                      .max_at_once = PARTS_AT_ONCE,
                      .timeout_usec = order->timeout_usec / 10 * 9,
                      .max_line_bytes = LINE_BYTES_MAX,
                      .max_bytes_each = run->out->max_bytes / n };

        for (size_t i = 0; i < n; i++)
                tasks[i] = (CrewTask){ .name = "process", .userdata = &order->processes[i] };
        return crew_run(&crew, tasks, n);
}

int collect_process(const CollectOrder *order, CollectOut *out) {
        _cleanup_(jobs_scan_done) JobsScan scan = { 0 };
        int maps_fds[COLLECT_PROCESSES_MAX], limits_fds[COLLECT_PROCESSES_MAX], r;
        ProcessRun run = { .order = order,
                           .out = out,
                           .scan = &scan,
                           .maps_fds = maps_fds,
                           .limits_fds = limits_fds };

        if (order->n_processes == 0)
                return 0;
        if (order->n_processes > COLLECT_PROCESSES_MAX)
                return -E2BIG;
        for (size_t i = 0; i < order->n_processes; i++)
                maps_fds[i] = limits_fds[i] = NOT_BEGUN;
        r = jobs_scan(order, JOBS_BY_DEVICES, &scan);
        if (r == 0)
                r = run_parts(&run);
        for (size_t i = 0; i < order->n_processes; i++) { /* of those that did not end in order */
                close_raw(&maps_fds[i]);
                close_raw(&limits_fds[i]);
        }
        return r;
}
