/* How hard the machine is pressed, and how long our workers rest for it. Measures how long tasks
 * wait for a CPU according to the kernel (PSI, schedstat), and decides which share of the time a
 * worker may work.
 *
 * Idle priority (lib/event/worker_pool.h) already lets the job go first, but only among the threads
 * of one cgroup: with a job in another cgroup the CPUs are shared by CPUWeight=. That is measured
 * here, and answered by resting.
 *
 * Our own threads wait as well, the more the better they yield, and that must not be mistaken for
 * the job's distress. What the job can have lost to us is at most the least of three times: that
 * others waited (all waiting less our own), that we ran, and that we waited, since where we compete
 * with others they get at least as much as we do.
 *
 * PSI says when some task waited at a CPU, not how many. Where several of our threads wait at one
 * CPU, their waiting hides the job's: others then lost at most what they ran.
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

/* What others may lose to one of our threads, of one CPU's time. Half of the two percent that a job
 * is promised. */
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
#define THREADS_MAX 256

typedef struct ThreadTimes {
        uint64_t tid, run_usec, wait_usec;
} ThreadTimes;

typedef struct PressureReading {
        uint64_t at_usec, cpu_usec, busy_usec, run_usec;
        size_t n_threads; /* 0: unknown, as a busy_usec of 0 is */
        ThreadTimes threads[THREADS_MAX];
} PressureReading;

struct Pressure {
        Clock *clock;
        char *cpu_path, *stat_path, *task_path;

        atomic_flag reading; /* held by the one thread that samples; guards the two below */
        PressureReading before, now;
        bool has_before;

        _Atomic uint64_t next_usec;
        _Atomic double share;
        /* What workers report as work, since the last sample; and for each such microsecond,
         * how long the busiest of our threads was on a CPU: less than one where idle priority keeps
         * it off, more where a thread compresses what a quicker one has read. */
        _Atomic uint64_t worked_usec;
        _Atomic double cpu_per_worked;
};

/* ---- deciding ---- */

static double cpu_lost(const PressureSample *s) {
        double elapsed = (double)s->elapsed_usec;
        /* `some` is an average over the CPUs that are not idle. */
        double all_waited = (double)s->cpu_usec / elapsed * (double)s->busy_usec;
        double others_waited = all_waited - (double)s->own_wait_usec;
        if ((double)s->others_run_usec < NO_JOB_MAX * elapsed)
                return 0;
        if (others_waited < 0)
                others_waited = (double)s->others_run_usec;
        return MIN(others_waited, (double)s->in_the_way_usec) / elapsed;
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

static bool read_thread(int dir_fd, const char *name, ThreadTimes *ret) {
        _cleanup_free_ char *path = path_join(name, "schedstat"), *text = NULL;
        uint64_t nsec[2]; /* on a CPU, waiting for one */
        if (parse_u64(name, &ret->tid) < 0)
                return false; /* . and .. */
        if (!path || fs_read_file(dir_fd, path, FILE_BYTES_MAX, &text, NULL) < 0 ||
            read_numbers(text, nsec, ELEMENTSOF(nsec)) < 0)
                return false; /* it has ended */
        ret->run_usec = nsec[0] / 1000;
        ret->wait_usec = nsec[1] / 1000;
        return true;
}

static size_t read_threads(const char *path, ThreadTimes *ret) {
        _cleanup_closedir_ DIR *d = opendir(path);
        struct dirent *entry;
        size_t n = 0;
        while (d && n < THREADS_MAX && (entry = readdir(d)))
                n += read_thread(dirfd(d), entry->d_name, &ret[n]);
        return n;
}

/* A file that cannot be read any more counts as no waiting, so that no worker stays slow for ever
 * because of it. */
static void read_all(const Pressure *p, PressureReading *ret) {
        ret->at_usec = p->clock->boottime_usec(p->clock);
        ret->cpu_usec = 0;
        (void)read_some(p->cpu_path, &ret->cpu_usec);
        read_cpus(p->stat_path, ret);
        ret->n_threads = read_threads(p->task_path, ret->threads);
}

/* ---- from two readings to a sample ---- */

static uint64_t elapsed_between(uint64_t before, uint64_t now, uint64_t at_most) {
        return now > before ? MIN(now - before, at_most) : 0;
}

static const ThreadTimes *find_thread(const PressureReading *r, uint64_t tid) {
        for (size_t i = 0; i < r->n_threads; i++)
                if (r->threads[i].tid == tid)
                        return &r->threads[i];
        return NULL;
}

/* @param ret_run_usec  of all of ours  @return how long the busiest was on a CPU */
static uint64_t compare_threads(const PressureReading *before, const PressureReading *now,
                                PressureSample *s, uint64_t *ret_run_usec) {
        uint64_t busiest = 0;
        *ret_run_usec = 0;
        for (size_t i = 0; i < now->n_threads; i++) {
                const ThreadTimes *t = &now->threads[i], *old = find_thread(before, t->tid);
                uint64_t run =
                        elapsed_between(old ? old->run_usec : 0, t->run_usec, s->elapsed_usec);
                uint64_t wait =
                        elapsed_between(old ? old->wait_usec : 0, t->wait_usec, s->elapsed_usec);
                busiest = MAX(busiest, run);
                *ret_run_usec += run;
                s->own_wait_usec += wait;
                s->in_the_way_usec = MAX(s->in_the_way_usec, MIN(run, wait));
        }
        if (now->n_threads == 0)
                s->in_the_way_usec = s->elapsed_usec;
        return busiest;
}

/* Takes a reading; unless it is the first after a while, also a decision. Only with p->reading
 * held. */
static void sample(Pressure *p) {
        read_all(p, &p->now);
        uint64_t elapsed = elapsed_between(p->before.at_usec, p->now.at_usec, UINT64_MAX);
        if (p->has_before && elapsed <= STALE_USEC) {
                const PressureReading *b = &p->before, *n = &p->now;
                PressureSample s = {
                        .elapsed_usec = elapsed,
                        .cpu_usec = elapsed_between(b->cpu_usec, n->cpu_usec, elapsed),
                        /* unknown: as if one CPU were there */
                        .busy_usec = n->busy_usec > 0 ? elapsed_between(b->busy_usec, n->busy_usec,
                                                                        UINT64_MAX)
                                                      : elapsed,
                };
                uint64_t own_run, busiest = compare_threads(b, n, &s, &own_run);
                s.others_run_usec = n->run_usec > 0 ? elapsed_between(b->run_usec + own_run,
                                                                      n->run_usec, UINT64_MAX)
                                                    : elapsed;
                uint64_t worked = atomic_load(&p->worked_usec);
                if (n->n_threads > 0 && worked > 0)
                        atomic_store(&p->cpu_per_worked, (double)busiest / (double)worked);
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
        p->task_path = path_join(proc_root, "self/task");
        if (!p->cpu_path || !p->stat_path || !p->task_path)
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
        free(p->task_path);
        free(p);
        return NULL;
}
