/* The collector jobs: one record for each process that holds a Neuron device or has the runtime
 * loaded, so that a rank that dies without leaving evidence can still be named.
 *
 * It works in two steps. The scan of descriptors, which never waits, finds the holders. What may
 * wait for ever (environment, command line, maps) is read by parts, each of which can be killed
 * without the loss of the others; a holder whose part was killed has a record of what the scan
 * knows. device_holders.c scans, job_record.c has the identity of a job. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/host/device_holders.h"
#include "collectors/host/job_record.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"

enum { CMDLINE_BYTES_MAX = 16 << 10, RECORD_BYTES_MAX = 128 << 10, PARTS_AT_ONCE = 2 };

/* Several holders share a part, because forking costs more than reading. When a part hangs, the
 * holders that follow in its share are lost with it. */
enum { HOLDERS_A_PART = 8, PARTS_MAX = DEVICE_HOLDERS_MAX / HOLDERS_A_PART + 1 };

typedef struct JobsRun {
        const CollectRequest *request;
        CollectOut *out;
        DeviceHolders *scan;
        uint64_t n_libnrt; /* processes with the runtime, but without a device */
        bool maps_are_whole;
} JobsRun;

typedef struct JobsPart {
        size_t first, n; /* holders; n = 0: this part reads the maps of all processes */
} JobsPart;

static void add_head(StrBuf *b, const DeviceHolder *h) {
        json_out_object(b, NULL);
        json_out_i64(b, "pid", h->stat.pid);
        json_out_u64(b, "start_ticks", h->stat.start_ticks);
        json_out_u64(b, "uid", h->uid);
        json_out_string(b, "comm", h->stat.comm);
        device_holders_add_devices(b, h);
        json_out_bool(b, "maps_runtime", h->maps_runtime);
}

static void add_cmdline(StrBuf *b, const Proc *p) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        bool is_cut = false;
        int r = procfs_read(p, (ProcFile){ "cmdline", CMDLINE_BYTES_MAX }, &text, &is_cut);

        if (r != 0) {
                json_out_null(b, "cmdline");
                return;
        }
        json_out_array(b, "cmdline");
        if (text.n > 0)
                redact_cmdline(b, text.text, text.n);
        json_out_end_array(b);
        if (is_cut)
                json_out_bool(b, "cmdline_cut", true);
}

static int describe(const CollectRequest *request, const DeviceHolder *h, int fd) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        int r = procfs_open(&p, request->proc_root, h->stat.pid, h->stat.start_ticks);

        if (r != 0)
                return 0; /* it has ended: on_end() reports what the scan has seen */
        add_head(&b, h);
        job_record_add_identity(&b, &p);
        add_cmdline(&b, &p);
        json_out_end_object(&b);
        return procfs_check(&p) == PROCFS_E_REPLACED ? 0 : collect_write_line(fd, &b);
}

static bool holds_device(const DeviceHolders *scan, pid_t pid) {
        for (size_t i = 0; i < scan->n_holders; i++)
                if (scan->holders[i].stat.pid == pid)
                        return true;
        return false;
}

static int run_part(const PoolTask *task, int fd, void *userdata) {
        const JobsPart *part = task->userdata;
        const JobsRun *run = userdata;
        _cleanup_(device_holders_done) DeviceHolders maps = { 0 };
        int r = 0;

        if (part->n > 0) {
                for (size_t i = 0; r == 0 && i < part->n; i++)
                        r = describe(run->request, &run->scan->holders[part->first + i], fd);
                return r;
        }
        r = device_holders_scan(run->request, DEVICE_HOLDERS_BY_MAPS, &maps);
        for (size_t i = 0; r == 0 && i < maps.n_holders; i++)
                if (!holds_device(run->scan, maps.holders[i].stat.pid))
                        r = describe(run->request, &maps.holders[i], fd);
        return r;
}

/* Every line begins as add_head() writes it. */
static void mark_reported(const JobsRun *run, const JobsPart *part, const char *line) {
        int pid;

        if (sscanf(line, "{\"pid\":%d,", &pid) != 1)
                return;
        for (size_t i = part->first; i < part->first + part->n; i++)
                if (run->scan->holders[i].stat.pid == pid)
                        run->scan->holders[i].is_reported = true;
}

static int on_line(const PoolTask *task, char *line, size_t n, void *userdata) {
        JobsRun *run = userdata;

        mark_reported(run, task->userdata, line);
        run->n_libnrt += ((const JobsPart *)task->userdata)->n == 0;
        return collect_emit_line(run->out, line, n);
}

/* Of a process that could not be read, the scan still knows which devices it holds. */
static int emit_unread(const JobsRun *run, const DeviceHolder *h, const char *why) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        add_head(&b, h);
        json_out_null(&b, "job");
        json_out_string(&b, "detail", why);
        json_out_end_object(&b);
        return collect_emit_fitting(run->out, &b);
}

static int on_end(const PoolTask *task, int result, void *userdata) {
        const JobsPart *part = task->userdata;
        JobsRun *run = userdata;
        const char *why = result == 0 ? "it ended while it was inspected"
                          : result == -ETIMEDOUT
                                  ? "reading it, or a process before it, did not end in time"
                                  : strerror(-result);

        if (part->n == 0)
                run->maps_are_whole = result == 0;
        for (size_t i = part->first; i < part->first + part->n; i++)
                if (!run->scan->holders[i].is_reported) {
                        int r = emit_unread(run, &run->scan->holders[i], why);
                        if (r < 0)
                                return r;
                }
        return 0;
}

static int run_parts(JobsRun *run) {
        _cleanup_free_ JobsPart *parts = calloc(PARTS_MAX + 1, sizeof *parts);
        _cleanup_free_ PoolTask *tasks = calloc(PARTS_MAX + 1, sizeof *tasks);
        ChildPool pool = { .run = run_part,
                           .on_line = on_line,
                           .on_end = on_end,
                           .userdata = run,
                           .max_at_once = PARTS_AT_ONCE,
                           .timeout_usec = run->request->timeout_usec / 10 * 9,
                           .max_line_bytes = RECORD_BYTES_MAX,
                           .max_bytes_each = run->out->max_bytes };
        size_t n = 0;

        if (!parts || !tasks)
                return -ENOMEM;
        for (size_t first = 0; first < run->scan->n_holders; first += HOLDERS_A_PART)
                parts[n++] = (JobsPart){ first, MIN(run->scan->n_holders - first,
                                                    (size_t)HOLDERS_A_PART) };
        parts[n++] = (JobsPart){ 0 };
        for (size_t i = 0; i < n; i++)
                tasks[i] = (PoolTask){ .name = parts[i].n > 0 ? "holders" : "maps",
                                       .userdata = &parts[i] };
        return child_pool_run(&pool, tasks, n);
}

static int emit_summary(const DeviceHolders *scan, CollectOut *out) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_u64(&b, "processes", scan->n_processes);
        json_out_u64(&b, "hidden", scan->n_hidden);
        json_out_u64(&b, "device_holders", scan->n_holders);
        json_out_bool(&b, "cut", scan->is_cut);
        json_out_end_object(&b);
        return collect_emit_fitting(out, &b);
}

/* The last record. If it is missing, not all maps were examined. */
static int emit_libnrt_holders(const JobsRun *run) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_u64(&b, "libnrt_holders", run->n_libnrt);
        json_out_end_object(&b);
        return collect_emit_fitting(run->out, &b);
}

int collect_jobs(const CollectRequest *request, CollectOut *out) {
        _cleanup_(device_holders_done) DeviceHolders scan = { 0 };
        int r = device_holders_scan(request, DEVICE_HOLDERS_BY_FDS, &scan);

        if (r == 0)
                r = emit_summary(&scan, out);
        if (r < 0)
                return r;
        JobsRun run = { .request = request, .out = out, .scan = &scan };
        r = run_parts(&run);
        return r == 0 && run.maps_are_whole ? emit_libnrt_holders(&run) : r;
}
