/* One collector, in the program that the supervisor has executed again.
 *
 * The process reads its request, closes all other descriptors, gives up its privileges
 * (runner/sandbox.h), arranges to die with its supervisor, and only then calls the collector. It
 * reports the outcome by its exit code and, where records are missing, by one line on CHILD_WHY_FD.
 * It keeps no time and counts no processes: the supervisor kills it (collector_process.h). */
#include "collectors/collector_child.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectors/runner/probe_request.h"
#include "collectors/runner/sandbox.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/strbuf.h"

int collector_child_usage(void) {
        static const char text[] =
                "neuron-collectd: --child is how the agent starts parts of itself, not for people; "
                "`neuron-collect snapshot` takes a snapshot\n";
        (void)!write(STDERR_FILENO, text, sizeof text - 1); /* stderr may be closed */
        return CHILD_USAGE;
}

static void write_reason(const char *what, int error) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_addf(&b, "%s%s%s\n", what, error ? ": " : "", error ? strerror(-error) : "");
        if (b.text)
                (void)!write(CHILD_WHY_FD, b.text, b.n); /* on error the section has no reason */
}

static int fail(const char *what, int error) {
        write_reason(what, error);
        return CHILD_FAILED;
}

static int find_directory(void) {
        struct stat st;
        return fstat(CHILD_DIR_FD, &st) == 0 && S_ISDIR(st.st_mode) ? CHILD_DIR_FD : -1;
}

static int enter_sandbox(const Collector *c, const ProbeRequest *request, int dir_fd,
                         uint64_t cpu_usec) {
        const CollectRequest *collect = &request->collect;
        _cleanup_(strbuf_done) StrBuf left_out = STRBUF_INIT;
        Sandbox s = { .dir_fd = c->needs & COLLECTOR_MAKES_FILES ? dir_fd : -1,
                      .device_directory =
                              c->needs & COLLECTOR_OPENS_DEVICES ? collect->device_directory : NULL,
                      .capabilities = c->capabilities,
                      .cpu_usec = cpu_usec,
                      .may_exec = c->needs & COLLECTOR_MAY_EXEC,
                      .runs_commands = c->needs & COLLECTOR_RUNS_COMMANDS,
                      .reads_processes = c->needs & COLLECTOR_READS_PROCESSES,
                      .reads_kernel_log = c->needs & COLLECTOR_READS_KERNEL_LOG };
        s.max_file_bytes = s.dir_fd >= 0 ? collect->max_bytes : 0;
        int r = sandbox_enter(&s, &left_out);
        if (r == 0 && left_out.n)
                write_reason(left_out.text, 0); /* what the kernel lacks is no failure */
        return r;
}

/* @param parent  read before: the supervisor may have died before the signal was requested */
static int die_with_parent(pid_t parent) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
                return -errno;
        return getppid() == parent ? 0 : -ESRCH;
}

/* The raw files of `snapshot-more-1.json` lie in the same directory as those of `snapshot.json`, so
 * their names get the prefix `more-1-`. @return into buf; NULL: this is the first snapshot */
static const char *raw_file_prefix(const ProbeRequest *request,
                                   char buf[static PROBE_REQUEST_NAME_MAX]) {
        static const char prefix[] = "snapshot-";
        const char *name = request->document;
        if (!name || strncmp(name, prefix, sizeof prefix - 1) != 0)
                return NULL;
        name += sizeof prefix - 1;
        (void)snprintf(buf, PROBE_REQUEST_NAME_MAX, "%.*s-", (int)strcspn(name, "."), name);
        return buf;
}

static int run(const Collector *collector, ProbeRequest *request, int dir_fd, bool follows) {
        char prefix[PROBE_REQUEST_NAME_MAX];
        CollectOut out = { .fd = CHILD_OUT_FD,
                           .dir_fd = request->mode == PROBE_AFTER ? -1 : dir_fd,
                           .max_bytes = follows ? UINT64_MAX : request->collect.max_bytes,
                           .raw_prefix = raw_file_prefix(request, prefix) };
        if (!follows && collector->needs_process && request->collect.n_processes == 0) {
                write_reason("no process is known that the snapshot is about", 0);
                return CHILD_SKIPPED;
        }
        request->collect.instance_id = request->instance_id;
        int r = (follows ? collector->follow : collector->run)(&request->collect, &out);
        if (r < 0 && r != -EFBIG)
                return *out.why ? fail(out.why, 0) : fail("it could not be collected", r);
        if (*out.why || r == COLLECT_E_NOTHING)
                write_reason(out.why, 0);
        return r == COLLECT_E_NOTHING ? CHILD_SKIPPED : out.is_cut ? CHILD_CUT : CHILD_DONE;
}

int collector_child_main(const CollectorTable *table, const char *name, bool follows) {
        _cleanup_(probe_request_done) ProbeRequest request = { 0 };
        const Collector *collector = collector_table_find(table, name);
        pid_t parent = getppid();
        const char *why = "";
        if (!collector || (follows && !collector->follow))
                return collector_child_usage();
        /* The terminal or pipe that a person has as fd 0 is no request. */
        if (probe_request_read(CHILD_ORDER_FD, &request, &why) < 0)
                return collector_child_usage();
        int dir_fd = find_directory();
        (void)syscall(SYS_close_range, dir_fd + 1 > 3 ? 4U : 3U, ~0U,
                      0); /* before Linux 5.9 O_CLOEXEC has closed them all */
        int r = enter_sandbox(collector, &request, dir_fd,
                              follows ? USEC_INFINITY
                                      : collector_timeout_usec(collector, &request));
        if (r == 0)
                r = die_with_parent(parent);
        if (r < 0)
                return fail("its sandbox could not be entered, so that nothing was collected", r);
        return run(collector, &request, dir_fd, follows);
}
