/* The collector process: the processes that the request names.
 *
 * Each is read by a part of its own (child_pool.h), which writes record by record: first what never
 * waits (process_status.c, process_threads.c), then what may (process_memory.c, and the jobs of
 * neighbours). A process that makes its reader wait loses its own last records and no other's. The
 * last record says how reading the process has ended. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/host/device_holders.h"
#include "collectors/host/process_memory.h"
#include "collectors/host/process_report.h"
#include "collectors/host/process_status.h"
#include "collectors/host/process_threads.h"
#include "collectors/host/procfs.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/strbuf.h"

enum { PARTS_AT_ONCE = 8, LINE_BYTES_MAX = 512 << 10 };

typedef struct ProcessRun {
        const CollectRequest *request;
        CollectOut *out;
        const DeviceHolders *scan;
} ProcessRun;

static void report_all(ProcessReport *report, const DeviceHolders *scan) {
        DeviceHolder mine = { 0 };
        int outcome = device_holders_inspect(report->request, report->p, &mine);

        process_status_record(report);
        process_status_place(report);
        process_status_limits(report);
        process_status_devices(report, scan, &mine, outcome);
        process_status_children(report);
        process_threads_record(report);
        process_memory_maps(report);
        process_memory_command(report);
        process_memory_environment(report);
        if (outcome == 0)
                process_status_neighbours(report, scan, &mine);
}

/* The last record of a process: how reading it ended. */
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

static int run_part(const PoolTask *task, int fd, void *userdata) {
        const CollectProcess *process = task->userdata;
        const ProcessRun *run = userdata;
        uint64_t start_ticks = process->start_ticks;
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        int r = procfs_open(&p, run->request->proc_root, process->pid, process->start_ticks);

        if (r == 0) {
                start_ticks = p.stat.start_ticks;
                ProcessReport report = { .request = run->request,
                                         .p = &p,
                                         .fd = fd,
                                         .has_raw_files = run->out->dir_fd >= 0 };
                report_all(&report, run->scan);
                r = report.result != 0 ? report.result : procfs_check(&p);
                strbuf_done(&report.b);
        }
        if (r < 0)
                return r;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        add_outcome(&b, process, start_ticks, r);
        return collect_write_line(fd, &b);
}

static int on_end(const PoolTask *task, int result, void *userdata) {
        _cleanup_(strbuf_done) StrBuf record = STRBUF_INIT;
        const CollectProcess *process = task->userdata;
        const ProcessRun *run = userdata;

        if (result == 0)
                return 0;
        add_outcome(&record, process, process->start_ticks, result);
        return collect_emit_fitting(run->out, &record);
}

static int run_parts(ProcessRun *run) {
        const CollectRequest *request = run->request;
        size_t n = request->n_processes;
        PoolTask tasks[COLLECT_PROCESSES_MAX] = { 0 };
        ChildPool pool = { .run = run_part,
                           .out = run->out,
                           .on_end = on_end,
                           .userdata = run,
                           .max_at_once = PARTS_AT_ONCE,
                           .kept_fd = run->out->dir_fd,
                           .timeout_usec = request->timeout_usec / 10 * 9,
                           .max_line_bytes = LINE_BYTES_MAX,
                           .max_bytes_each = run->out->max_bytes / n };

        for (size_t i = 0; i < n; i++)
                tasks[i] = (PoolTask){ .name = "process", .userdata = &request->processes[i] };
        return child_pool_run(&pool, tasks, n);
}

int collect_process(const CollectRequest *request, CollectOut *out) {
        _cleanup_(device_holders_done) DeviceHolders scan = { 0 };
        ProcessRun run = { .request = request, .out = out, .scan = &scan };

        if (request->n_processes == 0)
                return 0;
        if (request->n_processes > COLLECT_PROCESSES_MAX)
                return -E2BIG;
        int r = device_holders_scan(request, DEVICE_HOLDERS_BY_FDS, &scan);
        return r == 0 ? run_parts(&run) : r;
}
