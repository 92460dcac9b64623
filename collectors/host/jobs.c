/* Jobs: one record for each process that holds a Neuron device or has the runtime loaded, so that a rank that dies without a word can still be named.
 * Two steps: the scan of descriptors waits for nothing and finds the holders; what may wait for ever (environ, cmdline, maps) is read by parts
 * that can each be killed without the others' loss. */
#include <errno.h>
#include <string.h>

#include "collectors/host/jobs.h"
#include "collectors/runner/collector.h"
#include "collectors/runner/crew.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"

enum { CMDLINE_BYTES_MAX = 16 << 10, RECORD_BYTES_MAX = 128 << 10, PARTS_AT_ONCE = 2 };
/* Many holders share a part: forking costs more than reading. A part that hangs takes along those that come after it in its share. */
enum { HOLDERS_A_PART = 8, PARTS_MAX = JOBS_HOLDERS_MAX / HOLDERS_A_PART + 1 };

typedef struct JobsRun {
        const CollectOrder *order;
        CollectOut *out;
        const JobsScan *scan;
        bool *is_said;     /* by the holder's place in the scan */
        uint64_t n_libnrt; /* that hold no device */
        bool maps_are_whole;
} JobsRun;

typedef struct JobsPart {
        size_t first, n; /* holders; n = 0: the part that looks at maps */
        JobsRun *run;
} JobsPart;

static void add_head(StrBuf *b, const JobsHolder *h) {
        json_out_object(b, NULL);
        json_out_i64(b, "pid", h->stat.pid);
        json_out_u64(b, "start_ticks", h->stat.start_ticks);
        json_out_u64(b, "uid", h->uid);
        json_out_string(b, "comm", h->stat.comm);
        jobs_add_devices(b, h);
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

/* In a process of its own. */
static int describe(const CollectOrder *order, const JobsHolder *h, int fd) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        Proc p;
        int r = procfs_open(&p, order->proc_root, h->stat.pid, h->stat.start_ticks);

        if (r != 0)
                return 0; /* gone meanwhile: the caller says what was seen of it */
        add_head(&b, h);
        jobs_add_identity(&b, &p);
        add_cmdline(&b, &p);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        r = strbuf_error(&b);
        if (r == 0 && procfs_check(&p) != PROCFS_E_REPLACED)
                r = fs_write_all(fd, b.text, b.n);
        procfs_close(&p);
        return r;
}

static bool holds_device(const JobsScan *scan, pid_t pid) {
        for (size_t i = 0; i < scan->n_holders; i++)
                if (scan->holders[i].stat.pid == pid)
                        return true;
        return false;
}

static int run_part(const CrewTask *task, int fd, void *userdata) {
        const JobsPart *part = task->userdata;
        const CollectOrder *order = ((const JobsRun *)userdata)->order;
        _cleanup_(jobs_scan_done) JobsScan maps = { 0 };
        int r = 0;

        if (part->n > 0) {
                for (size_t i = 0; r == 0 && i < part->n; i++)
                        r = describe(order, &part->run->scan->holders[part->first + i], fd);
                return r;
        }
        r = jobs_scan(order, JOBS_BY_MAPS, &maps);
        for (size_t i = 0; r == 0 && i < maps.n_holders; i++)
                if (!holds_device(part->run->scan, maps.holders[i].stat.pid))
                        r = describe(order, &maps.holders[i], fd);
        return r;
}

/* A line begins as add_head() has made it. */
static void note_said(const JobsRun *run, const JobsPart *part, const char *line) {
        int pid;

        if (sscanf(line, "{\"pid\":%d,", &pid) != 1)
                return;
        for (size_t i = part->first; i < part->first + part->n; i++)
                if (run->scan->holders[i].stat.pid == pid)
                        run->is_said[i] = true;
}

static int on_line(const CrewTask *task, char *line, size_t n, void *userdata) {
        _cleanup_(strbuf_done) StrBuf record = STRBUF_INIT;
        JobsRun *run = userdata;
        int r;

        note_said(run, task->userdata, line);
        run->n_libnrt += ((const JobsPart *)task->userdata)->n == 0;
        strbuf_add_n(&record, line, n);
        r = collect_emit(run->out, &record);
        return r == -EFBIG ? 0 : r;
}

/* What is known of a process that could not be read: it is there, and holds devices. */
static int emit_silent(const JobsRun *run, const JobsHolder *h, const char *why) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r;

        add_head(&b, h);
        json_out_null(&b, "job");
        json_out_string(&b, "detail", why);
        json_out_end_object(&b);
        r = collect_emit(run->out, &b);
        return r == -EFBIG ? 0 : r;
}

static int on_end(const CrewTask *task, int result, void *userdata) {
        const JobsPart *part = task->userdata;
        JobsRun *run = userdata;
        const char *why = result == 0 ? "it ended while it was looked at"
                          : result == -ETIMEDOUT
                                  ? "reading it, or one before it, did not end in time"
                                  : strerror(-result);

        if (part->n == 0)
                run->maps_are_whole = result == 0;
        for (size_t i = part->first; i < part->first + part->n; i++)
                if (!run->is_said[i]) {
                        int r = emit_silent(run, &run->scan->holders[i], why);
                        if (r < 0)
                                return r;
                }
        return 0;
}

static int run_parts(JobsRun *run) {
        _cleanup_free_ JobsPart *parts = calloc(PARTS_MAX + 1, sizeof *parts);
        _cleanup_free_ CrewTask *tasks = calloc(PARTS_MAX + 1, sizeof *tasks);
        Crew crew = { .run = run_part,
                      .on_line = on_line,
                      .on_end = on_end,
                      .userdata = run,
                      .max_at_once = PARTS_AT_ONCE,
                      .timeout_usec = run->order->timeout_usec / 10 * 9,
                      .max_line_bytes = RECORD_BYTES_MAX,
                      .max_bytes_each = run->out->max_bytes };
        size_t n = 0;

        if (!parts || !tasks)
                return -ENOMEM;
        for (size_t first = 0; first < run->scan->n_holders; first += HOLDERS_A_PART)
                parts[n++] =
                        (JobsPart){ .first = first,
                                    .n = MIN(run->scan->n_holders - first, (size_t)HOLDERS_A_PART),
                                    .run = run };
        parts[n++] = (JobsPart){ .run = run };
        for (size_t i = 0; i < n; i++)
                tasks[i] = (CrewTask){ .name = parts[i].n > 0 ? "holders" : "maps",
                                       .userdata = &parts[i] };
        return crew_run(&crew, tasks, n);
}

static int emit_summary(const JobsScan *scan, CollectOut *out) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r;

        json_out_object(&b, NULL);
        json_out_u64(&b, "processes", scan->n_processes);
        json_out_u64(&b, "hidden", scan->n_hidden);
        json_out_u64(&b, "device_holders", scan->n_holders);
        json_out_bool(&b, "cut", scan->is_cut);
        json_out_end_object(&b);
        r = collect_emit(out, &b);
        return r == -EFBIG ? 0 : r;
}

/* The last record. Without it not all maps were looked at. */
static int emit_libnrt_holders(const JobsRun *run) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r;

        json_out_object(&b, NULL);
        json_out_u64(&b, "libnrt_holders", run->n_libnrt);
        json_out_end_object(&b);
        r = collect_emit(run->out, &b);
        return r == -EFBIG ? 0 : r;
}

int collect_jobs(const CollectOrder *order, CollectOut *out) {
        _cleanup_(jobs_scan_done) JobsScan scan = { 0 };
        _cleanup_free_ bool *is_said = NULL;
        int r = jobs_scan(order, JOBS_BY_DEVICES, &scan);

        if (r < 0)
                return r;
        is_said = calloc(JOBS_HOLDERS_MAX, sizeof *is_said);
        if (!is_said)
                return -ENOMEM;
        r = emit_summary(&scan, out);
        if (r < 0)
                return r;
        JobsRun run = { .order = order, .out = out, .scan = &scan, .is_said = is_said };
        r = run_parts(&run);
        return r == 0 && run.maps_are_whole ? emit_libnrt_holders(&run) : r;
}
