/* The ranks of this node, with real processes whose ends are seen, and with a /proc of the test's.
 */
#include "tests/harness/unit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "agent/failures/ranks.c"
#include "lib/base/clock.h"
#include "tests/lib/base/scratch.h"

#define KEY "torchrun:run=7,master=10.0.0.1:41000"
#define JOB "{\"source\":\"torchrun\",\"key\":\"" KEY "\",\"rank\":3,\"world_size\":64}"

typedef struct Fixture {
        sd_event *event;
        Scratch *scratch; /* a proc_root */
        const char *proc_root;
        RankWatch *watches[4];
        size_t n_watches;
        pid_t child;
        uint64_t start_ticks;
        uint64_t before_usec, after_usec; /* the child was started in between */
        Rank last;                        /* that was read */
        int error;                        /* of the last watch */
        unsigned n_ended;
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

static void on_end(void *userdata) {
        ((Fixture *)userdata)->n_ended++;
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

static void end_watches(Fixture *f) {
        while (f->n_watches > 0)
                rank_watch_free(f->watches[--f->n_watches]);
}

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0 || sd_event_new(&f->event) < 0)
                return -1;
        f->scratch = scratch;
        f->proc_root = "/proc";
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
        end_watches(f);
        sd_event_unref(f->event);
        free(f);
        return scratch_teardown(&scratch);
}

static void see(Fixture *f, pid_t pid, uint64_t ticks) {
        assert_true(f->n_watches < ELEMENTSOF(f->watches));
        f->error = rank_watch_new(&f->watches[f->n_watches],
                                  &(RankWatchOptions){ .event = f->event,
                                                       .proc_root = f->proc_root,
                                                       .pid = pid,
                                                       .start_ticks = ticks,
                                                       .on_end = on_end,
                                                       .userdata = f });
        f->n_watches += f->error == 0;
}

static void see_child(Fixture *f) {
        see(f, f->child, f->start_ticks);
}

static bool read_record(Fixture *f, pid_t pid, uint64_t ticks, unsigned uid, const char *job) {
        char record[2048];
        int n = snprintf(record, sizeof record,
                         "{\"pid\":%d,\"start_ticks\":%llu,\"uid\":%u,\"comm\":\"python3\","
                         "\"devices\":[0],\"maps_runtime\":false,\"container\":null,\"job\":%s,"
                         "\"cmdline\":[\"train.py\"]}",
                         (int)pid, (unsigned long long)ticks, uid, job);
        assert_in_range(n, 1, sizeof record - 1);
        return rank_parse(record, &f->last);
}

/* ---- real processes ---- */

static void the_end_of_a_process_is_reported_at_once(void **state) {
        Fixture *f = *state;
        see_child(f);
        assert_int_equal(f->error, 0);
        uint64_t tick_usec = USEC_PER_SEC / (uint64_t)sysconf(_SC_CLK_TCK);
        assert_in_range(rank_start_usec(f->start_ticks), f->before_usec - tick_usec, f->after_usec);
        assert_int_equal(sd_event_run(f->event, 0), 0); /* nothing wakes the agent while it lives */
        kill_child(f);
        assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
        assert_int_equal(f->n_ended, 1);
        see_child(f); /* the record of a scan that ran before, of a zombie */
        assert_int_equal(f->error, -ESRCH);
        pid_t pid = f->child;
        reap_child(f);
        see(f, pid, f->start_ticks);
        assert_int_equal(f->error, -ESRCH);
}

static void whose_pid_is_another_process_s_is_not_taken_for_it(void **state) {
        Fixture *f = *state;
        see(f, f->child, f->start_ticks - 1);
        assert_int_equal(f->error, -ESRCH);
        see(f, f->child, f->start_ticks + 1);
        assert_int_equal(f->error, -ESRCH);
}

static Fixture *dying;
static void end_child_at_pidfd(void) {
        kill_child(dying);
        reap_child(dying);
}

static void one_that_ends_between_pidfd_and_check_is_not_watched(void **state) {
        Fixture *f = dying = *state;
        at_pidfd = end_child_at_pidfd;
        see_child(f);
        assert_int_equal(f->error, -ESRCH);
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
        see_child(f);
        assert_int_equal(n_descriptors(), n + 1);
        see(f, f->child, f->start_ticks + 1); /* refused */
        assert_int_equal(n_descriptors(), n + 1);
        end_watches(f);
        assert_int_equal(n_descriptors(), n);
        assert_null(rank_watch_free(NULL));
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
        for (size_t i = 0; i < ELEMENTSOF(jobs); i++)
                assert_false(read_record(f, f->child, f->start_ticks, 1000, jobs[i]));
        (void)snprintf(long_key, sizeof long_key, "{\"key\":\"%0*d\"}", JOB_KEY_SIZE, 7);
        assert_false(read_record(f, f->child, f->start_ticks, 1000, long_key));
        assert_false(read_record(f, f->child, f->start_ticks, UINT32_MAX, JOB));
        assert_false(read_record(f, f->child, 0, 1000, JOB));
        for (size_t i = 0; i < ELEMENTSOF(heads); i++) {
                (void)snprintf(record, sizeof record,
                               "{%s,\"start_ticks\":%llu,\"uid\":0,\"job\":" JOB "}", heads[i],
                               (unsigned long long)f->start_ticks);
                assert_false(rank_parse(record, &f->last));
        }
        assert_false(rank_parse("", &f->last));
        assert_false(rank_parse("{\"libnrt_holders\":0}", &f->last));
        assert_false(rank_parse("{\"pid\":1", &f->last));
        assert_true(read_record(f, f->child, f->start_ticks, 1000, JOB)); /* it was not the rest */
        assert_int_equal(f->last.pid, f->child);
        assert_int_equal(f->last.start_ticks, f->start_ticks);
        assert_int_equal(f->last.uid, 1000);
}

static void what_a_record_says_of_the_job_is_read(void **state) {
        Fixture *f = *state;
        assert_true(read_record(
                f, f->child, f->start_ticks, 0,
                "{\"source\":\"neuron-pjrt\",\"key\":\"neuron-pjrt:slurm=17\",\"rank\":2147483648,"
                "\"world_size\":-4,\"local_rank\":\"1\",\"restart_count\":2,"
                "\"root_comm_id\":\"10.0.0.1:5\",\"master_addr\":\"ip-10-0-0-1\",\"more\":[1]}"));
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
        for (size_t i = 0; i < f->n_watches; i++)
                if (sd_event_source_get_enabled(f->watches[i]->source, NULL) > 0) {
                        assert_true(sd_event_source_set_time(f->watches[i]->source, 0) >= 0);
                        assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
                }
}

static void where_there_are_no_pidfds_they_are_looked_at_every_five_seconds(void **state) {
        Fixture *f = *state;
        uint64_t at = 0, now = 0;
        clockid_t clock = CLOCK_MONOTONIC;
        pidfd_error = ENOSYS;
        see_child(f);
        assert_int_equal(f->error, 0);
        sd_event_source *timer = f->watches[0]->source;
        assert_true(sd_event_source_get_time_clock(timer, &clock) >= 0);
        assert_true(sd_event_source_get_time(timer, &at) >= 0);
        assert_true(sd_event_now(f->event, clock, &now) >= 0);
        assert_in_range(at, now + 1, now + POLL_USEC);
        poll_now(f);
        assert_int_equal(f->n_ended, 0);
        kill_child(f); /* a zombie has ended */
        poll_now(f);
        assert_int_equal(f->n_ended, 1);
        assert_int_equal(sd_event_source_get_enabled(timer, NULL), 0);
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
        char *root = strdup(f->scratch->path);
        f->proc_root = root;
        pidfd_error = EPERM;
        plant(f, 4711, 100);
        plant(f, 4712, 100);
        see(f, 4711, 100);
        see(f, 4712, 100);
        free(root); /* a reload */
        assert_int_equal(f->n_watches, 2);
        assert_int_equal(scratch_write(f->scratch, "4711/stat", "nonsense"), 0);
        poll_now(f); /* what cannot be read is not an end */
        assert_int_equal(f->n_ended, 0);
        plant(f, 4711, 200);
        poll_now(f);
        assert_int_equal(f->n_ended, 1);
        unplant(f, 4711);
        unplant(f, 4712);
        poll_now(f);
        assert_int_equal(f->n_ended, 2);
}

/* ---- whether others are to be waited for, and who meets where ---- */

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
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                for (int has_host = cases[i].rendezvous_is_here ? 0 : 1; has_host < 2; has_host++) {
                        JobIdentity job = { .key = "a", .world_size = cases[i].world_size };
                        JobFacts facts = { .n_here = cases[i].n_here,
                                           .has_rendezvous = has_host,
                                           .rendezvous_is_own = cases[i].rendezvous_is_here };
                        if (job_scope(&job, &facts).is_local != cases[i].is_local)
                                fail_msg("case %zu", i);
                }
        assert_false(job_scope(&(JobIdentity){ .world_size = -1 }, &(JobFacts){ 0 }).is_local);
}

static void the_agent_at_the_rendezvous_is_the_centre_of_a_job_on_many_nodes(void **state) {
        static const struct {
                JobFacts facts;
                bool is_dialled;
                Role role;
        } cases[] = {
                { { 8, true, true, true }, true, ROLE_CENTRE },
                { { 8, true, false, true }, true, ROLE_LEAF },
                { { 8, true, true, false }, true, ROLE_NONE }, /* nobody would listen */
                { { 8, true, false, false }, true, ROLE_NONE },
                { { 8, false, false, true }, false, ROLE_NONE },
                { { 64, true, true, true }, false, ROLE_NONE }, /* all are here */
                { { 64, true, false, true }, false, ROLE_NONE },
        };
        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                JobScope s =
                        job_scope(&(JobIdentity){ .key = "a", .world_size = 64 }, &cases[i].facts);
                if (s.role != cases[i].role || s.is_dialled != cases[i].is_dialled)
                        fail_msg("case %zu", i);
        }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(the_end_of_a_process_is_reported_at_once),
                TEST(whose_pid_is_another_process_s_is_not_taken_for_it),
                TEST(one_that_ends_between_pidfd_and_check_is_not_watched),
                TEST(their_descriptors_are_closed_with_them),
                TEST(a_record_without_a_job_key_or_process_is_ignored),
                TEST(what_a_record_says_of_the_job_is_read),
                TEST(where_there_are_no_pidfds_they_are_looked_at_every_five_seconds),
                TEST(a_polled_one_whose_pid_is_given_to_another_has_ended),
                cmocka_unit_test(a_job_is_local_when_all_are_here_or_nothing_speaks_of_others),
                cmocka_unit_test(the_agent_at_the_rendezvous_is_the_centre_of_a_job_on_many_nodes),
        };
        return cmocka_run_group_tests_name("agent/failures/ranks", tests, NULL, NULL);
}
