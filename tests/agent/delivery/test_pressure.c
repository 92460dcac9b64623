#include "agent/delivery/pressure.h"

#include <errno.h>
#include <pthread.h>

#include "tests/harness/unit.h"

#include "tests/harness/fake_clock.h"
#include "tests/lib/base/scratch.h"

#define SEC(n) ((uint64_t)((n)*USEC_PER_SEC))
#define HALF_SECOND (USEC_PER_SEC / 2)

/* ---- the decision, against a small model of a machine ---- */

/* Half a second of a machine of two CPUs on which a job takes all it can get and one thread of ours
 * wants a CPU for `share` of the time. Our thread gets `weight` of a CPU that both want. */
static PressureSample contended(double share, double weight) {
        double wants = share * HALF_SECOND;
        return (PressureSample){
                .elapsed_usec = HALF_SECOND,
                .busy_usec = 2 * HALF_SECOND,
                .waited_usec = (uint64_t)(wants / 2), /* all of the time on one CPU of the two */
                .others_run_usec = (uint64_t)(2 * HALF_SECOND - wants * weight),
                .own_run_usec = (uint64_t)(wants * weight),
        };
}

/* Nothing but ours: `cpu` of the time one of our threads waits for another one of ours. */
static PressureSample alone(double cpu) {
        return (PressureSample){
                .elapsed_usec = HALF_SECOND,
                .busy_usec = HALF_SECOND,
                .waited_usec = (uint64_t)(cpu * HALF_SECOND),
                .own_run_usec = HALF_SECOND,
        };
}

static void a_job_that_must_share_its_cpu_with_us_loses_next_to_nothing_within_seconds(
        void **state) {
        double share = 1, lost = 0, least = 1, most = 0;
        for (unsigned i = 0; i < 10; i++) {
                PressureSample s = contended(share, 0.5);
                share = pressure_share(share, &s);
        }
        for (unsigned i = 0; i < 1000; i++) {
                PressureSample s = contended(share, 0.5);
                share = pressure_share(share, &s);
                lost += share * 0.5 / 1000;
                least = MIN(least, share);
                most = MAX(most, share);
        }
        assert_true(lost < 0.02);
        assert_true(least >= PRESSURE_SHARE_MIN);
        assert_true(most <= 4 * least); /* it looks for more now and then, but never far */
}

static void where_idle_priority_does_its_work_waiting_does_not_slow_us_down(void **state) {
        double share = 1;
        for (unsigned i = 0; i < 1000; i++) {
                PressureSample s = contended(share, 0.003);
                share = pressure_share(share, &s);
                assert_true(share == 1);
        }
}

static void own_threads_that_wait_for_each_other_are_no_pressure(void **state) {
        double share = PRESSURE_SHARE_MIN;
        PressureSample s = alone(1);
        for (unsigned i = 0; i < 15; i++)
                share = pressure_share(share, &s);
        assert_true(share == 1);
}

/* Measured on two CPUs: a job on both in another scheduling group, five of our threads. */
static void what_others_run_beside_us_makes_our_waiting_theirs(void **state) {
        PressureSample s = { .elapsed_usec = 500121,
                             .waited_usec = 398309,
                             .busy_usec = 980000,
                             .others_run_usec = 489848,
                             .own_run_usec = 490152 };
        assert_true(pressure_share(1, &s) == 0.25);
        s.others_run_usec = 100000; /* the kernel's threads that write */
        assert_true(pressure_share(1, &s) == 1);
}

static void what_nobody_waits_for_may_be_used(void **state) {
        /* Two CPUs, and the job needs one of them. */
        PressureSample s = { .elapsed_usec = HALF_SECOND,
                             .busy_usec = 2 * HALF_SECOND,
                             .others_run_usec = HALF_SECOND,
                             .own_run_usec = HALF_SECOND };
        assert_true(pressure_share(1, &s) == 1);
        s.waited_usec = HALF_SECOND / 100; /* of both, so 2 % of one */
        assert_true(pressure_share(1, &s) == 0.25);
}

static void when_the_job_ends_all_of_the_time_is_ours_within_seconds(void **state) {
        double share = PRESSURE_SHARE_MIN, before;
        unsigned n = 0;
        for (PressureSample s = alone(0); share < 1; n++) {
                before = share;
                share = pressure_share(share, &s);
                assert_true(share > before);
        }
        assert_in_range(n, 8, 12); /* at ten a second */
}

static void constant_pressure_that_nobody_can_explain_leads_to_the_least(void **state) {
        /* All of PSI is taken for others', and for our doing. */
        PressureSample s = { .elapsed_usec = HALF_SECOND,
                             .busy_usec = HALF_SECOND,
                             .waited_usec = HALF_SECOND / 4,
                             .others_run_usec = HALF_SECOND,
                             .own_run_usec = HALF_SECOND };
        double share = 1;
        for (unsigned i = 0; i < 10; i++)
                share = pressure_share(share, &s);
        assert_true(share == PRESSURE_SHARE_MIN);
}

static void whatever_the_numbers_are_the_share_stays_in_its_bounds(void **state) {
        double share = 1;
        uint64_t x = 88172645463325252U;
        for (unsigned i = 0; i < 200000; i++) {
                uint64_t v[5];
                for (size_t j = 0; j < ELEMENTSOF(v); j++) {
                        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
                        v[j] = x >> (x % 64);
                }
                PressureSample s = { v[0], v[1], v[2], v[3], v[4] };
                share = pressure_share(share, &s);
                assert_true(share >= PRESSURE_SHARE_MIN && share <= 1);
        }
        PressureSample nothing = { 0 };
        assert_true(pressure_share(0.3, &nothing) == 0.3);
}

/* ---- the reader, on a tree that looks like procfs ---- */

static void put(const Scratch *s, const char *name, const char *text) {
        char path[256];
        assert_true(snprintf(path, sizeof path, "%s", name) < (int)sizeof path);
        for (char *slash = path; (slash = strchr(slash, '/')); slash++) {
                *slash = '\0';
                (void)mkdirat(s->fd, path, 0755);
                *slash = '/';
        }
        _cleanup_close_ int fd =
                openat(s->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void put_pressure(const Scratch *s, const char *name, uint64_t total_usec) {
        char text[200];
        (void)snprintf(text, sizeof text,
                       "some avg10=0.00 avg60=0.00 avg300=0.00 total=%llu\n"
                       "full avg10=0.00 avg60=0.00 avg300=0.00 total=77\n",
                       (unsigned long long)total_usec);
        put(s, name, text);
}

static void put_stat(const Scratch *s, uint64_t busy_ticks) {
        char text[200];
        (void)snprintf(text, sizeof text, "cpu  %llu 0 0 999999 0 0 0 0 0 0\ncpu0 1 2 3\n",
                       (unsigned long long)busy_ticks);
        put(s, "stat", text);
}

typedef struct Fixture {
        Scratch *s;
        FakeClock clock;
        Pressure *p;
} Fixture;

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup((void **)&f->s) < 0)
                return -1;
        f->clock = FAKE_CLOCK(SEC(1700000000), SEC(100));
        put_pressure(f->s, "pressure/cpu", SEC(1000));
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        pressure_free(f->p);
        void *scratch = f->s;
        int r = scratch_teardown(&scratch);
        free(f);
        return r;
}

static Pressure *opened(Fixture *f) {
        char *note = NULL;
        assert_int_equal(pressure_new(&f->p, &f->clock.clock, f->s->path, &note), 0);
        assert_null(note);
        assert_non_null(f->p);
        return f->p;
}

/* @param own_usec  for which our threads are on a CPU meanwhile */
static void after_half_a_second(Fixture *f, uint64_t own_usec) {
        fake_clock_advance(&f->clock, HALF_SECOND);
        f->clock.now_cpu_usec += own_usec;
        (void)pressure_pause_usec(f->p, HALF_SECOND);
}

static void under_pressure_a_worker_pauses_and_after_it_no_more(void **state) {
        Fixture *f = *state;
        Pressure *p = opened(f);
        uint64_t total = SEC(1000);

        assert_int_equal(pressure_pause_usec(p, 1000), 0);
        for (unsigned i = 0; i < 10; i++) {
                put_pressure(f->s, "pressure/cpu", total += HALF_SECOND);
                after_half_a_second(f, HALF_SECOND);
        }
        assert_true(pressure_share_now(p) == PRESSURE_SHARE_MIN);
        assert_int_equal(pressure_pause_usec(p, 1000), 99000); /* 1 % of the time */
        assert_int_equal(pressure_pause_usec(p, SEC(3600)), SEC(2));
        for (unsigned i = 0; i < 15; i++)
                after_half_a_second(f, HALF_SECOND);
        assert_true(pressure_share_now(p) == 1);
        assert_int_equal(pressure_pause_usec(p, 1000), 0);
}

static void what_idle_priority_kept_from_us_is_not_paused_again(void **state) {
        Fixture *f = *state;
        uint64_t total = SEC(1000), ticks = 1000;
        Pressure *p = opened(f);
        put_stat(f->s, ticks);
        (void)pressure_pause_usec(p, 1);

        /* Our thread and three others want one CPU all of the time; ours gets a tenth. */
        for (unsigned i = 0; i < 10; i++) {
                put_pressure(f->s, "pressure/cpu", total += HALF_SECOND);
                put_stat(f->s, ticks += (uint64_t)sysconf(_SC_CLK_TCK));
                after_half_a_second(f, HALF_SECOND / 10);
        }
        assert_true(pressure_share_now(p) == PRESSURE_SHARE_MIN);
        assert_in_range(pressure_pause_usec(p, 10000), 98900, 99100);
}

static void what_another_thread_compresses_for_a_reader_counts_as_work(void **state) {
        Fixture *f = *state;
        uint64_t total = SEC(1000), ticks = 1000;
        Pressure *p = opened(f);
        put_stat(f->s, ticks);
        (void)pressure_pause_usec(p, 1);

        for (unsigned i = 0; i < 10;
             i++) { /* the reader needs 50 ms for what takes half a second */
                put_pressure(f->s, "pressure/cpu", total += HALF_SECOND);
                put_stat(f->s, ticks += 2 * (uint64_t)sysconf(_SC_CLK_TCK));
                fake_clock_advance(&f->clock, HALF_SECOND);
                f->clock.now_cpu_usec += HALF_SECOND;
                (void)pressure_pause_usec(p, 50 * USEC_PER_MSEC);
        }
        assert_true(pressure_share_now(p) == PRESSURE_SHARE_MIN);
        assert_in_range(pressure_pause_usec(p, 1000), 989000, 991000);
}

static void our_own_running_is_no_job(void **state) {
        Fixture *f = *state;
        uint64_t total = SEC(1000), ticks = 1000;
        Pressure *p = opened(f);
        put_stat(f->s, ticks);
        (void)pressure_pause_usec(p, 1);

        for (unsigned i = 0; i < 10; i++) { /* one CPU, and it is ours that wait for it */
                put_pressure(f->s, "pressure/cpu", total += HALF_SECOND / 2);
                put_stat(f->s, ticks += (uint64_t)sysconf(_SC_CLK_TCK) / 2);
                after_half_a_second(f, HALF_SECOND);
                assert_true(pressure_share_now(p) == 1);
        }
}

static void what_the_hypervisor_takes_is_no_job(void **state) {
        Fixture *f = *state;
        uint64_t total = SEC(1000);
        char text[100];
        (void)opened(f);
        for (unsigned i = 0; i < 10; i++) { /* it takes half of two CPUs, and ours wait for ours */
                (void)snprintf(text, sizeof text, "cpu %u 0 0 9 9 0 0 %u\n", 1000 + 50 * i,
                               1000 + 50 * i);
                put(f->s, "stat", text);
                put_pressure(f->s, "pressure/cpu", total += HALF_SECOND / 4);
                after_half_a_second(f, HALF_SECOND);
                assert_true(pressure_share_now(f->p) == 1);
        }
}

static void it_asks_no_more_than_ten_times_a_second_and_forgets_what_is_long_ago(void **state) {
        Fixture *f = *state;
        Pressure *p = opened(f);

        (void)pressure_pause_usec(p, 1);
        put_pressure(f->s, "pressure/cpu", SEC(1010));
        f->clock.now_cpu_usec += HALF_SECOND;
        fake_clock_advance(&f->clock, HALF_SECOND / 5 - 1);
        (void)pressure_pause_usec(p, 1);
        assert_true(pressure_share_now(p) == 1);
        fake_clock_advance(&f->clock, 1);
        (void)pressure_pause_usec(p, 1);
        assert_true(pressure_share_now(p) == 0.25);

        put_pressure(f->s, "pressure/cpu", SEC(5000));
        f->clock.now_cpu_usec += HALF_SECOND;
        fake_clock_advance(&f->clock, SEC(3600));
        (void)pressure_pause_usec(p, 1);
        assert_true(pressure_share_now(p) == 0.25);
}

static void expect_note(Fixture *f, const char *part) {
        char *note = NULL;
        assert_int_equal(pressure_new(&f->p, &f->clock.clock, f->s->path, &note), 0);
        assert_null(f->p);
        assert_non_null(note);
        assert_non_null(
                strstr(note, "the kernel has no pressure information (CONFIG_PSI, psi=1): "));
        assert_non_null(strstr(note, part));
        free(note);
}

static void a_kernel_without_pressure_information_is_reported(void **state) {
        Fixture *f = *state;
        assert_int_equal(unlinkat(f->s->fd, "pressure/cpu", 0), 0);
        expect_note(f, strerror(ENOENT));
        put(f->s, "pressure/cpu", "");
        expect_note(f, "not as expected");
        assert_int_equal(pressure_pause_usec(NULL, SEC(1)), 0);
        assert_true(pressure_share_now(NULL) == 1);
}

static void what_is_not_as_expected_is_refused_at_the_start(void **state) {
        Fixture *f = *state;
        static const char *const bad[] = {
                "some avg10=0.00 total=",
                "some total=-5\n",
                "full total=5\n",
                "some total=99999999999999999999999999\n",
                "some avg10=0.00\nx total=3\n",
                "some total=18446744073709551616\n",
        };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                put(f->s, "pressure/cpu", bad[i]);
                expect_note(f, "not as expected");
        }
        _cleanup_close_ int fd = openat(f->s->fd, "pressure/cpu", O_WRONLY | O_CLOEXEC);
        assert_int_equal(ftruncate(fd, 1 << 20), 0);
        expect_note(f, strerror(EFBIG));
}

static void files_that_turn_bad_later_or_go_back_leave_no_one_slow(void **state) {
        Fixture *f = *state;
        static const char *const bad[] = {
                "",
                "some total=0\n",
                "some total=x\n",
                "\xff\xfe some total=1",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
        };
        uint64_t total = SEC(1000);
        Pressure *p = opened(f);
        (void)pressure_pause_usec(p, 1);
        for (unsigned i = 0; i < 10; i++) {
                put_pressure(f->s, "pressure/cpu", total += HALF_SECOND);
                after_half_a_second(f, HALF_SECOND);
        }
        assert_true(pressure_share_now(p) == PRESSURE_SHARE_MIN);
        put(f->s, "stat", "cpu 1 2\n");
        for (unsigned i = 0; i < 15; i++) {
                put(f->s, "pressure/cpu", bad[i % ELEMENTSOF(bad)]);
                after_half_a_second(f, HALF_SECOND);
        }
        assert_true(pressure_share_now(p) == 1);
}

/* What is asked of the kernel of this machine, by several threads at once. */
static void *ask_for_a_while(void *userdata) {
        Pressure *p = userdata;
        for (unsigned i = 0; i < 20000; i++)
                if (pressure_pause_usec(p, 1000) > SEC(2))
                        return userdata;
        return NULL;
}

static void several_threads_may_ask_at_once(void **state) {
        _cleanup_(pressure_freep) Pressure *p = NULL;
        _cleanup_free_ char *note = NULL;
        pthread_t threads[4];
        assert_int_equal(pressure_new(&p, clock_system(), "/proc", &note), 0);
        if (!p)
                skip();
        for (size_t i = 0; i < ELEMENTSOF(threads); i++)
                assert_int_equal(pthread_create(&threads[i], NULL, ask_for_a_while, p), 0);
        for (size_t i = 0; i < ELEMENTSOF(threads); i++) {
                void *failed;
                assert_int_equal(pthread_join(threads[i], &failed), 0);
                assert_null(failed);
        }
        double share = pressure_share_now(p);
        assert_true(share >= PRESSURE_SHARE_MIN && share <= 1);
}

#define ON_A_TREE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(
                        a_job_that_must_share_its_cpu_with_us_loses_next_to_nothing_within_seconds),
                cmocka_unit_test(where_idle_priority_does_its_work_waiting_does_not_slow_us_down),
                cmocka_unit_test(own_threads_that_wait_for_each_other_are_no_pressure),
                cmocka_unit_test(what_others_run_beside_us_makes_our_waiting_theirs),
                cmocka_unit_test(what_nobody_waits_for_may_be_used),
                cmocka_unit_test(when_the_job_ends_all_of_the_time_is_ours_within_seconds),
                cmocka_unit_test(constant_pressure_that_nobody_can_explain_leads_to_the_least),
                cmocka_unit_test(whatever_the_numbers_are_the_share_stays_in_its_bounds),
                ON_A_TREE(under_pressure_a_worker_pauses_and_after_it_no_more),
                ON_A_TREE(what_idle_priority_kept_from_us_is_not_paused_again),
                ON_A_TREE(what_another_thread_compresses_for_a_reader_counts_as_work),
                ON_A_TREE(our_own_running_is_no_job),
                ON_A_TREE(what_the_hypervisor_takes_is_no_job),
                ON_A_TREE(it_asks_no_more_than_ten_times_a_second_and_forgets_what_is_long_ago),
                ON_A_TREE(a_kernel_without_pressure_information_is_reported),
                ON_A_TREE(what_is_not_as_expected_is_refused_at_the_start),
                ON_A_TREE(files_that_turn_bad_later_or_go_back_leave_no_one_slow),
                cmocka_unit_test(several_threads_may_ask_at_once),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
