/* How hard the machine is pressed, and how long our workers rest for it. Measures whether tasks
 * wait for a CPU according to the kernel (PSI) while others run besides us, and decides which share
 * of the time a worker may work.
 *
 * Idle priority (lib/event/worker_pool.h) already lets the job go first, but only among the threads
 * of one cgroup: with a job in another cgroup the CPUs are shared by CPUWeight=, which counts for a
 * machine as a whole. Where a job has threads on all of 128 CPUs, two of ours can get most of two
 * CPUs. That is measured here, and answered by resting.
 *
 * What others can have lost to us is at most the lesser of two times: that tasks waited, and that
 * we ran. PSI does not say who waited. Where we compete only with ourselves, /proc/stat says so:
 * nobody else has run. Beside a job, the waiting of our own threads counts as the job's.
 *
 * Who rests, and when, is rate_limits.c's business. pressure_pause_usec() may be called by any
 * thread. */
#include "agent/delivery/pressure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

/* What others may lose to us, of one CPU's time. Half of the two percent that a job is promised. */
#define CPU_LOST_MAX 0.01
/* Others who run for less than that, of one CPU's time, are the kernel's threads that write what we
 * ship, and no job. */
#define NO_JOB_MAX 0.25
#define DECREASE 0.25
#define INCREASE 1.5 /* from the least to all in twelve samples */
#define SAMPLE_USEC (USEC_PER_SEC / 10)
#define STALE_USEC (10 * USEC_PER_SEC) /* too old to compare with */
#define REST_MAX_USEC (2 * USEC_PER_SEC)

#define FILE_BYTES_MAX (64 * KIB)
#define STAT_BYTES_MAX (4 * MIB) /* a line for each CPU, and one of all interrupts */

typedef struct PressureReading {
        uint64_t at_usec, waited_usec, busy_usec, run_usec, own_run_usec; /* busy, run 0: unknown */
} PressureReading;

struct Pressure {
        Clock *clock;
        char *cpu_path, *stat_path;

        atomic_flag reading; /* held by the one thread that samples; guards the two below */
        PressureReading before, now;
        bool has_before;

        _Atomic uint64_t next_usec;
        _Atomic double share;
        /* What workers report as work, since the last sample; and for each such microsecond, how
         * long our threads were on a CPU: less than one where idle priority keeps them off, more
         * where others compress what one has read. */
        _Atomic uint64_t worked_usec;
        _Atomic double cpu_per_worked;
};

/* ---- deciding ---- */

static double cpu_lost(const PressureSample *s) {
        double elapsed = (double)s->elapsed_usec;
        /* `some` is an average over the CPUs that are not idle. */
        double waited = (double)s->waited_usec / elapsed * (double)s->busy_usec;
        if ((double)s->others_run_usec < NO_JOB_MAX * elapsed)
                return 0;
        return MIN(waited, (double)s->own_run_usec) / elapsed;
}

double pressure_share(double share, const PressureSample *s) {
        if (s->elapsed_usec == 0)
                return share;
        return cpu_lost(s) > CPU_LOST_MAX ? MAX(share * DECREASE, PRESSURE_SHARE_MIN)
                                          : MIN(share * INCREASE, 1.0);
}

/* ---- reading ---- */

/* So many decimal numbers, with blanks between them. */
static int read_numbers(const char *text, uint64_t *ret, size_t n) {
        char number[24]; /* 2^64 has 20 digits */
        for (size_t i = 0; i < n; i++) {
                text += strspn(text, " ");
                size_t length = strspn(text, "0123456789");
                if (length >= sizeof number)
                        return -EBADMSG;
                memcpy(number, text, length);
                number[length] = '\0';
                if (parse_u64(number, &ret[i]) < 0)
                        return -EBADMSG;
                text += length;
        }
        return 0;
}

/* `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, the first line. @return 0, -EBADMSG, or the
 * kernel's answer */
static int read_some(const char *path, uint64_t *ret_usec) {
        static const char total[] = " total=";
        _cleanup_free_ char *text = NULL;
        int r = fs_read_file(AT_FDCWD, path, FILE_BYTES_MAX, &text, NULL);
        if (r < 0)
                return r;
        text[strcspn(text, "\n")] = '\0';
        const char *at = strncmp(text, "some ", 5) == 0 ? strstr(text, total) : NULL;
        return at ? read_numbers(at + strlen(total), ret_usec, 1) : -EBADMSG;
}

/* /proc/stat's first line: user, nice, system, IDLE, iowait, irq, softirq, steal. Busy is all but
 * idle; running leaves out iowait and what the hypervisor gave to other machines (proc(5)). Both
 * stay 0 when they are not known. */
static void read_cpus(const char *path, PressureReading *ret) {
        _cleanup_free_ char *text = NULL;
        uint64_t t[8];
        long hz = sysconf(_SC_CLK_TCK);
        ret->busy_usec = ret->run_usec = 0;
        if (fs_read_file(AT_FDCWD, path, STAT_BYTES_MAX, &text, NULL) < 0 || hz <= 0 ||
            strncmp(text, "cpu ", 4) != 0 || read_numbers(text + 4, t, ELEMENTSOF(t)) < 0)
                return;
        ret->run_usec = (t[0] + t[1] + t[2] + t[5] + t[6]) * (USEC_PER_SEC / (uint64_t)hz);
        ret->busy_usec = ret->run_usec + (t[4] + t[7]) * (USEC_PER_SEC / (uint64_t)hz);
}

/* A file that cannot be read any more counts as no waiting, so that no worker stays slow for ever
 * because of it. */
static void read_all(const Pressure *p, PressureReading *ret) {
        ret->at_usec = p->clock->boottime_usec(p->clock);
        ret->own_run_usec = p->clock->cpu_usec(p->clock);
        ret->waited_usec = 0;
        (void)read_some(p->cpu_path, &ret->waited_usec);
        read_cpus(p->stat_path, ret);
}

/* ---- from two readings to a sample ---- */

static uint64_t elapsed_between(uint64_t before, uint64_t now, uint64_t at_most) {
        return now > before ? MIN(now - before, at_most) : 0;
}

/* Takes a reading; unless it is the first after a while, also a decision. Only with p->reading
 * held. */
static void sample(Pressure *p) {
        read_all(p, &p->now);
        uint64_t elapsed = elapsed_between(p->before.at_usec, p->now.at_usec, UINT64_MAX);
        if (p->has_before && elapsed <= STALE_USEC) {
                const PressureReading *b = &p->before, *n = &p->now;
                uint64_t own = elapsed_between(b->own_run_usec, n->own_run_usec, UINT64_MAX);
                PressureSample s = {
                        .elapsed_usec = elapsed,
                        .waited_usec = elapsed_between(b->waited_usec, n->waited_usec, elapsed),
                        /* unknown: as if one CPU were there, and others had it */
                        .busy_usec = n->busy_usec > 0 ? elapsed_between(b->busy_usec, n->busy_usec,
                                                                        UINT64_MAX)
                                                      : elapsed,
                        .others_run_usec = n->run_usec > 0
                                                   ? elapsed_between(b->run_usec + own, n->run_usec,
                                                                     UINT64_MAX)
                                                   : elapsed,
                        .own_run_usec = own,
                };
                uint64_t worked = atomic_load(&p->worked_usec);
                if (worked > 0)
                        atomic_store(&p->cpu_per_worked, (double)own / (double)worked);
                atomic_store(&p->share, pressure_share(atomic_load(&p->share), &s));
        }
        atomic_store(&p->worked_usec, 0);
        p->before = p->now;
        p->has_before = true;
        atomic_store(&p->next_usec, p->now.at_usec + SAMPLE_USEC);
}

static bool is_due(const Pressure *p) {
        return p->clock->boottime_usec(p->clock) >= atomic_load(&p->next_usec);
}

uint64_t pressure_pause_usec(Pressure *p, uint64_t worked_usec) {
        if (!p)
                return 0;
        atomic_fetch_add(&p->worked_usec, worked_usec);
        if (is_due(p) && !atomic_flag_test_and_set(&p->reading)) {
                if (is_due(p)) /* no other thread has sampled meanwhile */
                        sample(p);
                atomic_flag_clear(&p->reading);
        }
        double on_cpu = (double)worked_usec * atomic_load(&p->cpu_per_worked);
        double rest = on_cpu * (1 / atomic_load(&p->share) - 1);
        return rest < (double)REST_MAX_USEC ? (uint64_t)rest : REST_MAX_USEC;
}

double pressure_share_now(const Pressure *p) {
        return p ? atomic_load(&p->share) : 1;
}

int pressure_new(Pressure **ret, Clock *clock, const char *proc_root, char **ret_note) {
        uint64_t total;
        _cleanup_(pressure_freep) Pressure *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        p->clock = clock;
        p->cpu_path = path_join(proc_root, "pressure/cpu");
        p->stat_path = path_join(proc_root, "stat");
        if (!p->cpu_path || !p->stat_path)
                return -ENOMEM;
        atomic_flag_clear(&p->reading);
        atomic_init(&p->share, 1);
        atomic_init(&p->cpu_per_worked, 1);
        int r = read_some(p->cpu_path, &total);
        if (r == -ENOMEM)
                return r;
        *ret_note = NULL;
        *ret = NULL;
        if (r < 0) { /* without it there is no file, or one that answers EOPNOTSUPP */
                *ret_note = strbuf_format(
                        "the kernel has no pressure information (CONFIG_PSI, psi=1): '%s': %s; "
                        "deliveries run at idle priority, and do not slow down further while the "
                        "machine is busy",
                        p->cpu_path, r == -EBADMSG ? "not as expected" : strerror(-r));
                return *ret_note ? 0 : -ENOMEM;
        }
        *ret = TAKE_PTR(p);
        return 0;
}

Pressure *pressure_free(Pressure *p) {
        if (!p)
                return NULL;
        free(p->cpu_path);
        free(p->stat_path);
        free(p);
        return NULL;
}
