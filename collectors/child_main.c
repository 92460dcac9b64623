#include "collectors/child_main.h"

#include <errno.h>
#include <linux/capability.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "collectors/runner/probe_request.h"
#include "collectors/runner/sandbox.h"
#include "collectors/supervisor.h"
#include "lib/base/cleanup.h"

#define CAP(x) (UINT64_C(1) << CAP_##x)

/* What a collector needs beside its capabilities. */
enum {
        OPENS_DEVICES = 1,   /* nodes of Neuron, for ioctl(2) */
        MAKES_FILES = 2,     /* raw ones, in the directory that it is given */
        READS_PROCESSES = 4, /* of others: /proc/PID/environ, maps, fd, root … */
        MAY_EXEC = 8,        /* rpm */
        RUNS_COMMANDS = 16,
};

#define OF_OTHERS (CAP(SYS_PTRACE) | CAP(DAC_READ_SEARCH))

/* The capabilities are those that a collector cannot do without, where the supervisor has them.
 * neuron_sysfs: core_count and connected_devices are 0400 before driver 2.28. neuron_device:
 * whether others hold a device decides whether it may be opened. @see capabilities(7) */
/* clang-format off */
const Collector collectors[] = {
        { .name = "neuron_sysfs", .run = collect_neuron_sysfs,
          .capabilities = CAP(DAC_READ_SEARCH), .needs = 0, .twice = true, .is_public = true },
        { .name = "neuron_device", .run = collect_neuron_device,
          .capabilities = OF_OTHERS, .needs = OPENS_DEVICES | READS_PROCESSES },
        { .name = "kmsg", .run = collect_kmsg,
          .capabilities = CAP(SYSLOG) | CAP(DAC_READ_SEARCH), .needs = 0 },
        { .name = "process", .run = collect_process,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES | MAKES_FILES, .per_process = true },
        { .name = "jobs", .run = collect_jobs,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES },
        { .name = "packages", .run = collect_packages,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES | MAY_EXEC, .is_public = true },
        { .name = "process_packages", .run = collect_process_packages,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES | MAY_EXEC, .per_process = true },
        { .name = "runtime_log", .run = collect_runtime_log,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES | MAKES_FILES, .again = true },
        { .name = "commands", .run = collect_commands,
          .capabilities = OF_OTHERS, .needs = OPENS_DEVICES | MAKES_FILES | MAY_EXEC | RUNS_COMMANDS },
};
/* clang-format on */
const size_t n_collectors = ELEMENTSOF(collectors);

const Collector *collector_find(const char *name) {
        for (size_t i = 0; i < n_collectors; i++)
                if (strcmp(collectors[i].name, name) == 0)
                        return &collectors[i];
        return NULL;
}

static int usage(void) {
        static const char text[] =
                "neuron-collectd: --child is how the agent starts parts of itself, not for people; "
                "`neuron-collect snapshot` takes a snapshot\n";
        (void)!write(STDERR_FILENO, text, sizeof text - 1); /* nobody is left to hear */
        return CHILD_USAGE;
}

static int report_reason(const char *what, int error) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_addf(&b, "%s%s%s\n", what, error ? ": " : "", error ? strerror(-error) : "");
        if (b.text)
                (void)!write(CHILD_WHY_FD, b.text, b.n); /* then the section has no reason */
        return CHILD_FAILED;
}

static int read_order(ProbeRequest *ret) {
        _cleanup_free_ char *text = NULL;
        const char *why = "";
        size_t n;
        int r = probe_request_read_fd(CHILD_ORDER_FD, PROBE_REQUEST_MAX_BYTES, &text, &n);
        return r < 0 ? r : probe_request_parse(text, n, ret, &why);
}

static int find_directory(void) {
        struct stat st;
        return fstat(CHILD_DIR_FD, &st) == 0 && S_ISDIR(st.st_mode) ? CHILD_DIR_FD : -1;
}

static int enter_sandbox(const Collector *c, const CollectRequest *order, int dir_fd) {
        _cleanup_(strbuf_done) StrBuf left_out = STRBUF_INIT;
        Sandbox s = { .dir_fd = c->needs & MAKES_FILES ? dir_fd : -1,
                      .device_directory = c->needs & OPENS_DEVICES ? order->device_directory : NULL,
                      .capabilities = c->capabilities,
                      .cpu_usec = order->timeout_usec,
                      .may_exec = c->needs & MAY_EXEC,
                      .runs_commands = c->needs & RUNS_COMMANDS,
                      .reads_processes = c->needs & READS_PROCESSES };
        s.max_file_bytes = s.dir_fd >= 0 ? order->max_bytes : 0;
        int r = sandbox_enter(&s, &left_out);
        if (r == 0 && left_out.n)
                (void)report_reason(left_out.text, 0); /* no failure, reported in the same place */
        return r;
}

/* The supervisor may be gone before the signal was asked for. */
static int die_with_parent(pid_t parent) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
                return -errno;
        return getppid() == parent ? 0 : -ESRCH;
}

/* `snapshot-more-1.json` lies in the directory of `snapshot.json`, and so do the raw files of both.
 * @return into buf; NULL: it is the first */
static const char *raw_file_prefix(const ProbeRequest *order,
                                   char buf[static PROBE_REQUEST_NAME_MAX]) {
        static const char prefix[] = "snapshot-";
        const char *name = order->document;
        if (!name || strncmp(name, prefix, sizeof prefix - 1) != 0)
                return NULL;
        name += sizeof prefix - 1;
        (void)snprintf(buf, PROBE_REQUEST_NAME_MAX, "%.*s-", (int)strcspn(name, "."), name);
        return buf;
}

static int run(const char *name, bool follows) {
        _cleanup_(probe_request_done) ProbeRequest order = { 0 };
        const Collector *collector = collector_find(name);
        pid_t parent = getppid();
        if (!collector)
                return usage();
        if (read_order(&order) < 0) /* what a person has as fd 0 is no request */
                return usage();
        int dir_fd = find_directory();
        (void)syscall(SYS_close_range, dir_fd + 1 > 3 ? 4U : 3U, ~0U,
                      0); /* an old kernel: then all had O_CLOEXEC */
        int r = enter_sandbox(collector, &order.collect, dir_fd);
        if (r == 0)
                r = die_with_parent(parent);
        if (r < 0)
                return report_reason("it could not be confined, so nothing was collected", r);
        CollectOut out = { .fd = CHILD_OUT_FD,
                           .dir_fd = order.mode == PROBE_AFTER ? -1 : dir_fd,
                           .max_bytes = follows ? UINT64_MAX : order.collect.max_bytes };
        if (!follows && collector->per_process && order.collect.n_processes == 0) {
                (void)report_reason("no process is known that it could be about", 0);
                return CHILD_SKIPPED;
        }
        char prefix[PROBE_REQUEST_NAME_MAX];
        out.raw_prefix = raw_file_prefix(&order, prefix);
        order.collect.instance_id = order.instance_id;
        r = follows ? follow_kmsg(&order.collect, &out) : collector->run(&order.collect, &out);
        if (r == -ENOSYS)
                return report_reason("it is not there in this version", 0);
        if (r == COLLECT_E_NOTHING) {
                (void)report_reason(out.why, 0); /* no failure, reported in the same place */
                return CHILD_SKIPPED;
        }
        if (r < 0 && r != -EFBIG)
                return *out.why ? report_reason(out.why, 0)
                                : report_reason("it could not be collected", r);
        if (*out.why)
                (void)report_reason(out.why, 0); /* as above */
        return out.is_cut ? CHILD_CUT : CHILD_DONE;
}

int child_main(const char *name) {
        if (strcmp(name, "probe") == 0) {
                int r = supervisor_main(STDIN_FILENO);
                return r == -ENOTSOCK ? usage() : r < 0 ? CHILD_FAILED : CHILD_DONE;
        }
        if (strncmp(name, "collect:", 8) == 0)
                return run(name + 8, false);
        if (strcmp(name, "follow:kmsg") == 0)
                return run("kmsg", true);
        return usage();
}
