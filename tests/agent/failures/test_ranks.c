/* The ranks of this node, with real processes whose ends are seen, and with a /proc of the test's.
 */
#include "tests/harness/unit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "agent/failures/ranks.c"
#include "tests/lib/base/scratch.h"

#define KEY "torchrun:run=7,master=10.0.0.1:41000"
#define JOB "{\"source\":\"torchrun\",\"key\":\"" KEY "\",\"rank\":3,\"world_size\":64}"

typedef struct FakeClock {
        Clock clock;
        uint64_t usec;
} FakeClock;

typedef struct Fixture {
        sd_event *event;
        FakeClock clock;
        Scratch *scratch; /* a proc_root */
        Ranks *ranks;
        pid_t child;
        uint64_t start_ticks;
        uint64_t before_usec, after_usec; /* the child was started in between */
        Rank last;                        /* that was reported */
        unsigned n_new, n_ended;
} Fixture;

static int pidfd_error;        /* that pidfd_open() has; 0 = what the kernel says */
static void (*at_pidfd)(void); /* what happens at once after it */

long __real_syscall(long number, long a, long b, long c, long d);
long __wrap_syscall(long number, long a, long b, long c, long d);
long __wrap_syscall(long number, long a, long b, long c, long d) {
        if (number != SYS_pidfd_open)
                return __real_syscall(number, a, b, c, d);
        errno = pidfd_error;
        long fd = pidfd_error ? -1 : __real_syscall(number, a, b, c, d);
        if (at_pidfd)
                at_pidfd();
        return fd;
}

static uint64_t boot(Clock *c) {
        return CONTAINER_OF(c, FakeClock, clock)->usec;
}

static void on_rank(const Rank *rank, void *userdata) {
        Fixture *f = userdata;
        f->last = *rank;
        *(rank->has_ended ? &f->n_ended : &f->n_new) += 1;
}

static void start(Fixture *f, const char *proc_root) {
        RanksContext context = { .event = f->event,
                                 .clock = &f->clock.clock,
                                 .proc_root = proc_root,
                                 .on_rank = on_rank,
                                 .userdata = f };
        assert_int_equal(ranks_new(&f->ranks, &context), 0);
}

static void start_child(Fixture *f) {
        Proc p;
        f->before_usec = clock_boottime_usec();
        f->child = fork();
        assert_true(f->child >= 0);
        if (f->child == 0)
                for (;;)
                        (void)pause(); /* until it is killed */
        f->after_usec = clock_boottime_usec();
        assert_int_equal(procfs_open(&p, "/proc", f->child, 0), 0);
        f->start_ticks = p.stat.start_ticks;
        procfs_close(&p);
}

/* It is a zombie then. */
static void kill_child(const Fixture *f) {
        siginfo_t info;
        assert_int_equal(kill(f->child, SIGKILL), 0); /* it is ours, and not reaped */
        assert_int_equal(waitid(P_PID, (id_t)f->child, &info, WEXITED | WNOWAIT), 0);
}

static void reap_child(Fixture *f) {
        assert_int_equal(waitpid(f->child, NULL, 0), f->child);
        f->child = 0;
}

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0 || sd_event_new(&f->event) < 0)
                return -1;
        f->scratch = scratch;
        f->clock = (FakeClock){ .clock = { boot, boot }, .usec = USEC_PER_HOUR };
        *state = f;
        start_child(f);
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        pidfd_error = 0;
        at_pidfd = NULL;
        if (f->child > 0) {
                (void)kill(f->child, SIGKILL);
                (void)waitpid(f->child, NULL, 0);
        }
        ranks_free(f->ranks);
        sd_event_unref(f->event);
        free(f);
        return scratch_teardown(&scratch);
}

static void see(Fixture *f, pid_t pid, uint64_t ticks, unsigned uid, const char *job) {
        char record[2048];
        int n = snprintf(record, sizeof record,
                         "{\"pid\":%d,\"start_ticks\":%llu,\"uid\":%u,\"comm\":\"python3\","
                         "\"devices\":[0],\"maps_runtime\":false,\"container\":null,\"job\":%s,"
                         "\"cmdline\":[\"train.py\"]}",
                         (int)pid, (unsigned long long)ticks, uid, job);
        assert_in_range(n, 1, sizeof record - 1);
        ranks_on_job(f->ranks, record);
}

static void see_child(Fixture *f) {
        see(f, f->child, f->start_ticks, 1000, JOB);
}

static void turn_until_ended(Fixture *f) {
        while (f->n_ended == 0)
                assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
}

/* ---- real processes ---- */

static void a_process_of_a_job_is_reported_once_and_so_is_its_end(void **state) {
        Fixture *f = *state;
        start(f, "/proc");
        see_child(f);
        assert_int_equal(f->n_new, 1);
        assert_int_equal(f->last.pid, f->child);
        assert_int_equal(f->last.start_ticks, f->start_ticks);
        assert_int_equal(f->last.uid, 1000);
        assert_string_equal(f->last.job.key, KEY);
        assert_int_equal(f->last.job.rank, 3);
        assert_int_equal(f->last.seen_usec, USEC_PER_HOUR);
        assert_int_equal(f->last.ended_usec, 0);
        uint64_t tick_usec = USEC_PER_SEC / (uint64_t)sysconf(_SC_CLK_TCK);
        assert_in_range(f->last.started_usec, f->before_usec - tick_usec, f->after_usec);
        f->clock.usec += USEC_PER_MINUTE;
        see_child(f);
        assert_int_equal(f->n_new, 1);
        assert_int_equal(ranks_n(f->ranks), 1);
        assert_true(ranks_has_job(f->ranks, KEY));
        assert_false(ranks_has_job(f->ranks, "torchrun:run=8"));
        assert_null(f->ranks->poll); /* nothing wakes the agent while they live */

        kill_child(f);
        turn_until_ended(f);
        assert_true(f->last.has_ended);
        assert_int_equal(f->last.pid, f->child);
        assert_string_equal(f->last.job.key, KEY);
        assert_int_equal(f->last.seen_usec, USEC_PER_HOUR);
        assert_int_equal(f->last.ended_usec, USEC_PER_HOUR + USEC_PER_MINUTE);
        assert_int_equal(ranks_n(f->ranks), 0);
        assert_false(ranks_has_job(f->ranks, KEY));

        see_child(f); /* the record of a scan that ran before, of a zombie */
        reap_child(f);
        see(f, f->last.pid, f->start_ticks, 1000, JOB);
        assert_int_equal(f->n_new, 1);
        assert_int_equal(f->n_ended, 1);
}

static void whose_pid_is_another_process_s_is_not_taken_for_it(void **state) {
        Fixture *f = *state;
        start(f, "/proc");
        see(f, f->child, f->start_ticks - 1, 1000, JOB);
        see(f, f->child, f->start_ticks + 1, 1000, JOB);
        see(f, f->child, 0, 1000, JOB);
        assert_int_equal(f->n_new, 0);
}

static Fixture *dying;
static void end_child_at_pidfd(void) {
        kill_child(dying);
        reap_child(dying);
}

static void one_that_ends_between_pidfd_and_check_is_not_reported(void **state) {
        Fixture *f = dying = *state;
        pid_t pid = f->child;
        start(f, "/proc");
        at_pidfd = end_child_at_pidfd;
        see(f, pid, f->start_ticks, 1000, JOB);
        assert_int_equal(f->n_new, 0);
        assert_int_equal(ranks_n(f->ranks), 0);
}

static unsigned n_descriptors(void) {
        unsigned n = 0;
        for (int fd = 0; fd < 256; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static void their_descriptors_are_closed_with_them(void **state) {
        Fixture *f = *state;
        unsigned n = n_descriptors();
        start(f, "/proc");
        see_child(f);
        assert_int_equal(n_descriptors(), n + 1);
        see(f, f->child, f->start_ticks + 1, 1000, JOB); /* refused */
        assert_int_equal(n_descriptors(), n + 1);
        f->ranks = ranks_free(f->ranks);
        assert_int_equal(n_descriptors(), n);
        assert_null(ranks_free(NULL));
}

/* ---- records ---- */

static void a_record_without_a_job_key_or_process_is_ignored(void **state) {
        Fixture *f = *state;
        char long_key[2 * JOB_KEY_SIZE], record[1024];
        static const char *const jobs[] = {
                "null",
                "{}",
                "[]",
                "7",
                "{\"source\":\"torchrun\",\"rank\":3}",
                "{\"key\":\"\"}",
                "{\"key\":7}",
                "{\"key\":\"a b\"}",
                "{\"key\":\"a\\u0000b\"}",
                "{\"key\":\"a\\u001b\"}",
                "{\"key\":\"a\\u007f\"}",
                "{\"key\":\"\\u00e4\"}",
                "{\"key\":\"a\",\"root_comm_id\":7}",
                "{\"key\":\"a\",\"key\":\"b\"}",
        };
        static const char *const heads[] = {
                "\"pid\":0",    "\"pid\":-1",  "\"pid\":4294967296", "\"pid\":\"1\"",
                "\"pid\":null", "\"pid\":1.0", "\"nothing\":1",
        };
        start(f, "/proc");
        for (size_t i = 0; i < ELEMENTSOF(jobs); i++)
                see(f, f->child, f->start_ticks, 1000, jobs[i]);
        (void)snprintf(long_key, sizeof long_key, "{\"key\":\"%0*d\"}", JOB_KEY_SIZE, 7);
        see(f, f->child, f->start_ticks, 1000, long_key);
        see(f, f->child, f->start_ticks, UINT32_MAX, JOB);
        for (size_t i = 0; i < ELEMENTSOF(heads); i++) {
                (void)snprintf(record, sizeof record,
                               "{%s,\"start_ticks\":%llu,\"uid\":0,\"job\":" JOB "}", heads[i],
                               (unsigned long long)f->start_ticks);
                ranks_on_job(f->ranks, record);
        }
        ranks_on_job(f->ranks, "");
        ranks_on_job(f->ranks, "{\"libnrt_holders\":0}");
        ranks_on_job(f->ranks, "{\"pid\":1");
        assert_int_equal(f->n_new, 0);
        see_child(f); /* it was not the process */
        assert_int_equal(f->n_new, 1);
}

static void what_a_record_says_of_the_job_is_read(void **state) {
        Fixture *f = *state;
        start(f, "/proc");
        see(f, f->child, f->start_ticks, 0,
            "{\"source\":\"neuron-pjrt\",\"key\":\"neuron-pjrt:slurm=17\",\"rank\":2147483648,"
            "\"world_size\":-4,\"local_rank\":\"1\",\"restart_count\":2,"
            "\"root_comm_id\":\"10.0.0.1:5\",\"master_addr\":\"ip-10-0-0-1\",\"more\":[1]}");
        assert_int_equal(f->n_new, 1);
        const JobIdentity *job = &f->last.job;
        assert_string_equal(job->source, "neuron-pjrt");
        assert_int_equal(job->rank, -1);
        assert_int_equal(job->world_size, -1);
        assert_int_equal(job->local_rank, -1);
        assert_int_equal(job->restart_count, 2);
        assert_int_equal(job->first_device, -1);
        assert_string_equal(job->root_comm_id, "10.0.0.1:5");
        assert_string_equal(job->master_addr, "ip-10-0-0-1");
        assert_string_equal(job->pod_uid, "");
}

/* ---- without pidfds ---- */

static void poll_now(const Fixture *f) {
        assert_non_null(f->ranks->poll);
        assert_true(sd_event_source_get_enabled(f->ranks->poll, NULL) > 0);
        assert_true(sd_event_source_set_time(f->ranks->poll, 0) >= 0);
        assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
}

static void where_there_are_no_pidfds_they_are_looked_at_every_five_seconds(void **state) {
        Fixture *f = *state;
        uint64_t at = 0, now = 0;
        clockid_t clock = CLOCK_MONOTONIC;
        start(f, "/proc");
        pidfd_error = ENOSYS;
        see_child(f);
        assert_int_equal(f->n_new, 1);
        assert_true(sd_event_source_get_time_clock(f->ranks->poll, &clock) >= 0);
        assert_true(sd_event_source_get_time(f->ranks->poll, &at) >= 0);
        assert_true(sd_event_now(f->event, clock, &now) >= 0);
        assert_in_range(at, now + 1, now + POLL_USEC);
        poll_now(f);
        assert_int_equal(f->n_ended, 0);
        kill_child(f); /* a zombie has ended */
        poll_now(f);
        assert_int_equal(f->n_ended, 1);
        assert_int_equal(ranks_n(f->ranks), 0);
        assert_int_equal(sd_event_source_get_enabled(f->ranks->poll, NULL), 0);
}

/* ---- a /proc of the test's ---- */

static void plant(const Fixture *f, pid_t pid, uint64_t ticks) {
        char name[32], text[256];
        (void)snprintf(name, sizeof name, "%d", (int)pid);
        (void)mkdirat(f->scratch->fd, name, 0755); /* or it is there */
        (void)snprintf(name, sizeof name, "%d/stat", (int)pid);
        (void)snprintf(text, sizeof text,
                       "%d (python3) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %llu 0 0\n", (int)pid,
                       (unsigned long long)ticks);
        assert_int_equal(scratch_write(f->scratch, name, text), 0);
}

static void unplant(const Fixture *f, pid_t pid) {
        char name[32];
        (void)snprintf(name, sizeof name, "%d/stat", (int)pid);
        assert_int_equal(unlinkat(f->scratch->fd, name, 0), 0);
        (void)snprintf(name, sizeof name, "%d", (int)pid);
        assert_int_equal(unlinkat(f->scratch->fd, name, AT_REMOVEDIR), 0);
}

static void a_polled_one_whose_pid_is_given_to_another_has_ended(void **state) {
        Fixture *f = *state;
        start(f, f->scratch->path);
        pidfd_error = EPERM;
        plant(f, 4711, 100);
        plant(f, 4712, 100);
        see(f, 4711, 100, 1000, JOB);
        see(f, 4712, 100, 1000, JOB);
        assert_int_equal(ranks_n(f->ranks), 2);
        assert_int_equal(f->last.started_usec, 100 * USEC_PER_SEC / (uint64_t)sysconf(_SC_CLK_TCK));
        assert_int_equal(scratch_write(f->scratch, "4711/stat", "nonsense"), 0);
        poll_now(f); /* what cannot be read is not an end */
        assert_int_equal(f->n_ended, 0);
        plant(f, 4711, 200);
        poll_now(f);
        assert_int_equal(f->n_ended, 1);
        assert_int_equal(f->last.pid, 4711);
        assert_int_equal(f->last.start_ticks, 100);
        see(f, 4711, 200, 1000, JOB);
        assert_int_equal(ranks_n(f->ranks), 2);
        unplant(f, 4711);
        unplant(f, 4712);
        poll_now(f);
        assert_int_equal(f->n_ended, 3);
        assert_int_equal(ranks_n(f->ranks), 0);
}

static void another_proc_root_takes_effect(void **state) {
        Fixture *f = *state;
        char *root = strdup(f->scratch->path);
        start(f, root);
        ranks_rebind(f->ranks, "/proc");
        free(root);
        see_child(f);
        assert_int_equal(f->n_new, 1);
}

static void who_has_most_gives_way_to_others(void **state) {
        Fixture *f = *state;
        start(f, f->scratch->path);
        pidfd_error = ENOSYS;
        for (pid_t pid = 1; pid <= RANKS_MAX + 2; pid++)
                plant(f, pid, 100);
        for (pid_t pid = 1; pid <= RANKS_MAX; pid++)
                see(f, pid, 100, 1000, "{\"key\":\"a\"}");
        assert_int_equal(ranks_n(f->ranks), RANKS_MAX);
        see(f, RANKS_MAX + 1, 100, 1000, "{\"key\":\"b\"}");
        assert_false(ranks_has_job(f->ranks, "b"));
        see(f, RANKS_MAX + 2, 100, 1001, "{\"key\":\"c\"}");
        assert_true(ranks_has_job(f->ranks, "c"));
        assert_true(ranks_are_others(f->ranks, "c", 1000));
        assert_false(ranks_are_others(f->ranks, "c", 1001));
        assert_false(ranks_are_others(f->ranks, "d", 1000));
        assert_int_equal(ranks_n(f->ranks), RANKS_MAX);
        assert_int_equal(f->n_new, RANKS_MAX + 1);
        assert_int_equal(f->n_ended, 1);                 /* of which nobody would see the end */
        see(f, RANKS_MAX, 100, 1000, "{\"key\":\"a\"}"); /* that gave way */
        assert_int_equal(f->n_new, RANKS_MAX + 1);
        unplant(f, 1);
        poll_now(f);
        assert_int_equal(f->n_ended, 2);
        see(f, RANKS_MAX, 100, 1000, "{\"key\":\"a\"}"); /* there is room */
        assert_int_equal(f->n_new, RANKS_MAX + 2);
        assert_int_equal(ranks_n(f->ranks), RANKS_MAX);
}

/* ---- whether others are to be waited for ---- */

static void a_job_is_local_when_all_are_here_or_nothing_speaks_of_others(void **state) {
        static const struct {
                int64_t world_size;
                size_t n_here;
                bool rendezvous_is_here, is_local;
        } cases[] = {
                { 8, 8, false, true },
                { 8, 9, true, true },
                { 8, 7, false, false },
                { 8, 7, true, false }, /* the root of a job on many nodes */
                { 8, 0, true, false },
                { 1, 1, false, true },
                { 1, 0, false, false },
                { -1, 1, true, true },
                { -1, 0, true, true },
                { -1, 8, false, false },
                { 0, 1, false, false },
                { 0, 1, true, true },
                { INT64_MAX, SIZE_MAX / 4, true, false },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                JobIdentity job = { .world_size = cases[i].world_size };
                if (job_is_local(&job, cases[i].n_here, cases[i].rendezvous_is_here) !=
                    cases[i].is_local)
                        fail_msg("case %zu", i);
        }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_process_of_a_job_is_reported_once_and_so_is_its_end),
                TEST(whose_pid_is_another_process_s_is_not_taken_for_it),
                TEST(one_that_ends_between_pidfd_and_check_is_not_reported),
                TEST(their_descriptors_are_closed_with_them),
                TEST(a_record_without_a_job_key_or_process_is_ignored),
                TEST(what_a_record_says_of_the_job_is_read),
                TEST(where_there_are_no_pidfds_they_are_looked_at_every_five_seconds),
                TEST(a_polled_one_whose_pid_is_given_to_another_has_ended),
                TEST(another_proc_root_takes_effect),
                TEST(who_has_most_gives_way_to_others),
                cmocka_unit_test(a_job_is_local_when_all_are_here_or_nothing_speaks_of_others),
        };
        return cmocka_run_group_tests_name("agent/failures/ranks", tests, NULL, NULL);
}
