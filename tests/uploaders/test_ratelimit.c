/* No second has more than the rate allows, several threads together get the rate, the windows of
 * the day are kept, and an abort ends a wait. */
#include "uploaders/ratelimit.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "tests/harness/fake_clock.h"

#define N_SEEDS 3000
#define N_GONE_MAX 4000

static uint64_t random_next(uint64_t *state) { /* splitmix64 */
        uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

typedef struct Gone {
        uint64_t usec, n;
} Gone;

typedef struct Sim {
        RateRule rule;
        uint64_t booked, now_usec, random;
        Gone gone[N_GONE_MAX];
        size_t n_gone;
        uint64_t largest_charge, total;
} Sim;

static Sim *sim_new(uint64_t seed) {
        static Sim s;

        s.random = seed;
        s.now_usec = USEC_PER_SEC + random_next(&s.random) % USEC_PER_DAY;
        s.rule = (RateRule){ .rate = UINT64_C(1) << (10 + random_next(&s.random) % 25),
                             .saving_usec = RATE_SAVING_USEC };
        s.rule.rate += random_next(&s.random) % s.rule.rate;
        s.booked = 0;
        s.n_gone = 0;
        s.largest_charge = s.total = 0;
        return &s;
}

static void go(Sim *s, uint64_t usec, uint64_t n) {
        assert_true(s->n_gone < N_GONE_MAX);
        s->gone[s->n_gone++] = (Gone){ .usec = usec, .n = n };
        s->total += n;
}

/* Goes as soon as it may. @return how long it waited */
static uint64_t book(Sim *s, uint64_t n) {
        s->booked = rate_book(&s->rule, s->booked, n, s->now_usec);
        uint64_t wait = rate_wait_usec(s->booked, s->now_usec);
        go(s, s->now_usec + wait, n);
        return wait;
}

/* It has gone already. */
static void charge(Sim *s, uint64_t n) {
        s->booked = rate_book(&s->rule, s->booked, n, s->now_usec);
        s->largest_charge = MAX(s->largest_charge, n);
        go(s, s->now_usec, n);
}

/* Every window of a second that begins when something went. */
static uint64_t most_in_a_second(const Sim *s) {
        uint64_t most = 0, sum = 0;

        for (size_t first = 0, next = 0; first < s->n_gone; first++) {
                for (; next < s->n_gone && s->gone[next].usec < s->gone[first].usec + USEC_PER_SEC;
                     next++)
                        sum += s->gone[next].n;
                most = MAX(most, sum);
                sum -= s->gone[first].n;
        }
        return most;
}

static void no_second_has_more_than_rate_and_savings(void **state) {
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                Sim *s = sim_new(seed);
                uint64_t piece = MAX(s->rule.rate / (40 + random_next(&s->random) % 400), 1U);

                for (size_t i = 0; i < N_GONE_MAX / 2; i++) {
                        s->now_usec += book(s, 1 + random_next(&s->random) % piece);
                        if (random_next(&s->random) % 50 == 0) /* idle, for up to two seconds */
                                s->now_usec += random_next(&s->random) % (2 * USEC_PER_SEC);
                        if (random_next(&s->random) % 20 == 0) /* headers, learned of afterwards */
                                charge(s, 1 + random_next(&s->random) % piece);
                }
                assert_true((double)most_in_a_second(s) <=
                            1.025 * (double)s->rule.rate + (double)s->largest_charge + 1);
        }
}

static void many_who_wait_at_once_do_not_get_more(void **state) {
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                Sim *s = sim_new(seed);
                uint64_t piece = MAX(s->rule.rate / 300, 1U), last = 0;

                for (size_t i = 0; i < 1200; i++) { /* all ask in one moment */
                        uint64_t wait = book(s, 1 + random_next(&s->random) % piece);
                        assert_true(wait >= last); /* in the order of asking */
                        last = wait;
                }
                assert_true((double)most_in_a_second(s) <= 1.025 * (double)s->rule.rate + 1);
        }
}

static void who_always_asks_gets_all_even_when_timers_are_late(void **state) {
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                Sim *s = sim_new(seed);
                uint64_t piece = MAX(s->rule.rate / 100, 1U), begin = s->now_usec;

                for (size_t i = 0; i < 1500; i++) {
                        uint64_t wait = book(s, piece);
                        if (wait > 0)
                                s->now_usec += wait + random_next(&s->random) % 14000;
                }
                double sec = (double)(s->now_usec - begin) / (double)USEC_PER_SEC;
                assert_true((double)s->total >= 0.99 * sec * (double)s->rule.rate);
        }
}

static void what_is_returned_is_there_for_the_next(void **state) {
        RateRule rule = { .rate = MIB, .saving_usec = RATE_SAVING_USEC };
        uint64_t now = USEC_PER_MINUTE, line = rate_book(&rule, 0, MIB, now);

        assert_in_range(rate_wait_usec(line, now), 974999, 975001);
        line = rate_refund(line, rate_span_nsec(&rule, MIB));
        line = rate_book(&rule, line, MIB / 50, now);
        assert_int_equal(rate_wait_usec(line, now), 0);
        assert_int_equal(rate_refund(5, rate_span_nsec(&rule, MIB)), 0); /* more than there is */
}

static void what_is_wasted_is_gone(void **state) {
        RateRule rule = { .rate = MIB, .saving_usec = RATE_SAVING_USEC };
        uint64_t now = USEC_PER_MINUTE, line = rate_discard_savings(0, now);

        line = rate_book(&rule, line, MIB / 50, now);
        assert_in_range(rate_wait_usec(line, now), 19999, 20001);
        assert_int_equal(rate_discard_savings(line, now), line); /* a debt stays */
}

static void without_a_limit_nobody_waits(void **state) {
        RateRule none = { .saving_usec = RATE_SAVING_USEC };

        assert_int_equal(rate_book(&none, 77, UINT64_MAX, USEC_PER_SEC), 77);
        assert_int_equal(rate_span_nsec(&none, UINT64_MAX), 0);
}

static void absurd_amounts_do_not_wrap(void **state) {
        RateRule slow = { .rate = 1, .saving_usec = UINT64_MAX };
        uint64_t line = 0;

        for (int i = 0; i < 10; i++)
                line = rate_book(&slow, line, UINT64_MAX, USEC_PER_SEC);
        assert_true(rate_wait_usec(line, USEC_PER_SEC) > 100 * 365 * USEC_PER_DAY);
        assert_true(rate_wait_usec(line, UINT64_MAX) == 0);
        assert_true(rate_book(&slow, line, 1, UINT64_MAX) >= line);
}

static void each_minute_of_the_day_has_its_rate(void **state) {
        static const RateWindow windows[] = {
                { 8 * 60, 20 * 60, 50 }, /* the day */
                { 22 * 60, 6 * 60, 0 },  /* over midnight, without a limit */
                { 12 * 60, 21 * 60,
                  9 }, /* only from 20:00 on: the first that holds a minute counts */
        };
        const RateSchedule s = { .rate = 7, .windows = windows, .n_windows = ELEMENTSOF(windows) };
        static const struct {
                unsigned minute;
                uint64_t rate;
        } cases[] = {
                { 0, 0 },
                { 5 * 60 + 59, 0 },
                { 6 * 60, 7 },
                { 7 * 60 + 59, 7 },
                { 8 * 60, 50 },
                { 12 * 60, 50 },
                { 19 * 60 + 59, 50 },
                { 20 * 60, 9 },
                { 20 * 60 + 59, 9 },
                { 21 * 60, 7 },
                { 21 * 60 + 59, 7 },
                { 22 * 60, 0 },
                { 23 * 60 + 59, 0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_int_equal(rate_at(&s, cases[i].minute), cases[i].rate);
}

static void equal_ends_are_all_day(void **state) {
        static const RateWindow window = { 600, 600, 3 };
        const RateSchedule s = { .rate = 7, .windows = &window, .n_windows = 1 };

        for (unsigned minute = 0; minute < 24 * 60; minute++)
                assert_int_equal(rate_at(&s, minute), 3);
        assert_int_equal(rate_at(&(RateSchedule){ .rate = 7 }, 0), 7);
}

#define N_THREADS 2

static RateLimit *throttle_at(Clock *clock, uint64_t rate) {
        RateLimit *t = NULL;

        assert_int_equal(
                ratelimit_new(&t, clock, &(RateSchedule){ .rate = rate }, RATE_SAVING_USEC), 0);
        return t;
}

static void no_throttle_is_no_limit(void **state) {
        assert_int_equal(ratelimit_book(NULL, SIZE_MAX, NULL), 0);
        assert_int_equal(ratelimit_wait(NULL, 12345678, NULL), 12345678);
        assert_int_equal(ratelimit_rate(NULL), 0);
        assert_true(ratelimit_piece(NULL) == SIZE_MAX);
        ratelimit_refund(NULL, 1);
        ratelimit_discard_savings(NULL);
        assert_null(ratelimit_ref(NULL));
        assert_null(ratelimit_unref(NULL));
}

static void bookings_follow_each_other(void **state) {
        FakeClock fake = FAKE_CLOCK(0, USEC_PER_MINUTE);
        RateLimit *t = throttle_at(&fake.clock, 1000);
        uint64_t nsec = 0;

        assert_int_equal(ratelimit_book(t, 25, NULL), 0); /* saved up */
        assert_in_range(ratelimit_book(t, 100, NULL), 100000, 100001);
        assert_in_range(ratelimit_book(t, 100, &nsec), 200000, 200001);
        ratelimit_refund(t, nsec);
        fake_clock_advance(&fake, 50000);
        assert_in_range(ratelimit_book(t, 100, NULL), 150000, 150001);
        fake_clock_advance(&fake, USEC_PER_MINUTE);
        ratelimit_discard_savings(t);
        assert_in_range(ratelimit_book(t, 1, NULL), 1000, 1001);
        ratelimit_unref(t);
}

static void a_piece_is_half_of_what_is_saved_up(void **state) {
        FakeClock fake = FAKE_CLOCK(0, USEC_PER_MINUTE);
        static const struct {
                uint64_t rate;
                size_t piece;
        } cases[] = {
                { 0, SIZE_MAX }, { 1, 1024 }, { 8 * MIB, 8 * MIB / 80 }, { TIB, (size_t)(TIB / 80) }
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                RateLimit *t = throttle_at(&fake.clock, cases[i].rate);
                assert_in_range(ratelimit_piece(t), MIN(cases[i].piece, GIB) - 1,
                                MIN(cases[i].piece, i == 0 ? SIZE_MAX : GIB));
                ratelimit_unref(t);
        }
}

/* What the clock on the wall is asked for. */
typedef struct CountingClock {
        FakeClock fake;
        unsigned n_looks;
} CountingClock;

static uint64_t counted_realtime_usec(Clock *c) {
        CountingClock *counting = (CountingClock *)(void *)c;

        counting->n_looks++;
        return fake_clock_realtime_usec(c);
}

static void the_rate_follows_the_local_time_checked_once_a_second(void **state) {
        static const RateWindow windows[] = { { 9 * 60, 10 * 60, 500 } };
        const RateSchedule schedule = { .rate = 2000, .windows = windows, .n_windows = 1 };
        /* 08:59:58.5 at two hours east of Greenwich */
        CountingClock c = { .fake = FAKE_CLOCK((UINT64_C(6) * 3600 + 3598) * USEC_PER_SEC + 500000,
                                               USEC_PER_MINUTE) };
        RateLimit *t = NULL;

        c.fake.clock.realtime_usec = counted_realtime_usec;
        assert_int_equal(setenv("TZ", "TEST-2", 1), 0);
        tzset();
        assert_int_equal(ratelimit_new(&t, &c.fake.clock, &schedule, RATE_SAVING_USEC), 0);
        for (unsigned msec = 0; msec < 1500; msec++) {
                assert_int_equal(ratelimit_rate(t), 2000);
                fake_clock_advance(&c.fake, USEC_PER_MSEC);
        }
        assert_int_equal(ratelimit_rate(t),
                         500); /* at the minute's edge, not up to a second later */
        assert_in_range(c.n_looks, 2, 3);
        fake_clock_advance(&c.fake, USEC_PER_HOUR);
        assert_int_equal(ratelimit_rate(t), 2000);
        ratelimit_unref(t);
        assert_int_equal(unsetenv("TZ"), 0);
        tzset();
}

#define MINUTE_10 UINT64_C(600) /* of the day, in seconds: the window's beginning */

/* `before` until ten minutes past midnight, then for a minute `after`; the local time is UTC. */
static RateLimit *throttle_that_changes(Clock *clock, uint64_t before, uint64_t after) {
        const RateWindow windows[] = { { 10, 11, after } };
        const RateSchedule schedule = { .rate = before, .windows = windows, .n_windows = 1 };
        RateLimit *t = NULL;

        assert_int_equal(setenv("TZ", "UTC0", 1), 0);
        tzset();
        assert_int_equal(ratelimit_new(&t, clock, &schedule, RATE_SAVING_USEC), 0);
        return t;
}

static void what_is_given_back_is_what_was_booked_whatever_the_rate_is_now(void **state) {
        static const struct {
                uint64_t before, after;
                uint64_t left_usec; /* of another's second, booked at the rate before */
        } cases[] = {
                { 1000, 10, 999 * USEC_PER_MSEC },
                { 1000, 100000, 999 * USEC_PER_MSEC },
                { 1000, 1000, 999 * USEC_PER_MSEC },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                FakeClock fake =
                        FAKE_CLOCK(MINUTE_10 * USEC_PER_SEC - USEC_PER_MSEC, USEC_PER_MINUTE);
                RateLimit *t = throttle_that_changes(&fake.clock, cases[i].before, cases[i].after);
                uint64_t nsec = 0;

                assert_int_equal(ratelimit_book(t, 1025, NULL), USEC_PER_SEC);
                assert_in_range(ratelimit_book(t, 100, &nsec), 1100000, 1100001);
                fake_clock_advance(&fake, USEC_PER_MSEC);
                assert_int_equal(ratelimit_rate(t), cases[i].after);
                ratelimit_refund(t, nsec);
                assert_in_range(ratelimit_book(t, 0, NULL), cases[i].left_usec,
                                cases[i].left_usec + 1);
                ratelimit_unref(t);
        }
}

static void what_was_booked_without_a_limit_gives_nothing_back(void **state) {
        FakeClock fake = FAKE_CLOCK(MINUTE_10 * USEC_PER_SEC - USEC_PER_MSEC, USEC_PER_MINUTE);
        RateLimit *t = throttle_that_changes(&fake.clock, 0, 1000);
        uint64_t nsec = 77;

        assert_int_equal(ratelimit_book(t, MIB, &nsec), 0);
        fake_clock_advance(&fake, USEC_PER_MSEC);
        assert_int_equal(ratelimit_book(t, 1025, NULL), USEC_PER_SEC);
        ratelimit_refund(t, nsec);
        assert_int_equal(ratelimit_book(t, 0, NULL), USEC_PER_SEC);
        ratelimit_unref(t);
}

/* A millisecond passes whenever it is asked. */
static uint64_t hasty_boottime_usec(Clock *c) {
        fake_clock_advance((FakeClock *)(void *)c, USEC_PER_MSEC);
        return fake_clock_boottime_usec(c);
}

static void a_piece_is_booked_at_the_rate_that_it_was_measured_by(void **state) {
        FakeClock fake = FAKE_CLOCK(MINUTE_10 * USEC_PER_SEC - 2 * USEC_PER_MSEC, USEC_PER_MINUTE);
        RateLimit *t;

        fake.clock.boottime_usec = hasty_boottime_usec;
        t = throttle_that_changes(&fake.clock, 0, MIB);
        assert_int_equal(ratelimit_wait(t, MIB, NULL), MIB); /* begins before the window … */
        assert_int_equal(ratelimit_rate(t), MIB);            /* … which is there now, */
        assert_int_equal(ratelimit_book(t, 0, NULL), 0);     /* and nobody waits for it */
        assert_int_equal(ratelimit_wait(t, MIB, NULL), MIB / 80);
        ratelimit_unref(t);
}

typedef struct Party {
        RateLimit *throttle;
        uint64_t total, booked_until; /* virtual: when the last of it may go */
        FakeClock *clock;
} Party;

static void *book_much(void *userdata) {
        Party *p = userdata;

        for (unsigned i = 0; i < 200000; i++) {
                p->booked_until = MAX(p->booked_until, ratelimit_book(p->throttle, 1000, NULL));
                p->total += 1000;
        }
        return NULL;
}

static void two_threads_share_one_line_and_lose_nothing(void **state) {
        FakeClock fake = FAKE_CLOCK(0, USEC_PER_MINUTE);
        RateLimit *t = throttle_at(&fake.clock, MIB);
        Party parties[N_THREADS] = { { .throttle = t }, { .throttle = t } };
        pthread_t threads[N_THREADS];
        uint64_t last = 0, total = 0;

        for (size_t i = 0; i < N_THREADS; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, book_much, &parties[i]), 0);
        for (size_t i = 0; i < N_THREADS; i++) {
                assert_int_equal(pthread_join(threads[i], NULL), 0);
                last = MAX(last, parties[i].booked_until);
                total += parties[i].total;
        }
        /* The line's end is what all have booked together: had one overwritten the other, it would
         * come sooner. */
        double expected = (double)total / (double)MIB - 0.025;
        assert_true((double)last / (double)USEC_PER_SEC >= 0.9999 * expected);
        assert_true((double)last / (double)USEC_PER_SEC <= 1.001 * expected + 1);
        ratelimit_unref(t);
}

static void *wait_much(void *userdata) {
        Party *p = userdata;

        while (p->total < MIB)
                p->total += ratelimit_wait(p->throttle, MIB - p->total, NULL);
        return NULL;
}

static void who_waits_together_gets_the_rate_together(void **state) {
        Clock *clock = clock_system();
        RateLimit *t = throttle_at(clock, 2 * MIB);
        Party parties[N_THREADS] = { { .throttle = t }, { .throttle = t } };
        pthread_t threads[N_THREADS];
        uint64_t begin = clock->boottime_usec(clock);

        for (size_t i = 0; i < N_THREADS; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, wait_much, &parties[i]), 0);
        for (size_t i = 0; i < N_THREADS; i++)
                assert_int_equal(pthread_join(threads[i], NULL), 0);
        /* 2 MiB at 2 MiB/s: never quicker than the rate; how much slower is the machine's
         * business */
        assert_true(clock->boottime_usec(clock) - begin >= 970000);
        ratelimit_unref(t);
}

typedef struct Sleeper {
        RateLimit *throttle;
        atomic_bool abort;
        size_t got;
        atomic_bool ended;
} Sleeper;

static void *sleep_long(void *userdata) {
        Sleeper *s = userdata;

        s->got = ratelimit_wait(s->throttle, MIB, &s->abort);
        atomic_store(&s->ended, true);
        return NULL;
}

static void an_abort_ends_a_wait_and_gives_back(void **state) {
        Clock *clock = clock_system();
        RateLimit *t = throttle_at(clock, KIB);
        Sleeper s = { .throttle = t, .got = 77 };
        pthread_t thread;
        uint64_t debt, begin;

        (void)ratelimit_book(t, MIB, NULL); /* 17 minutes */
        assert_int_equal(pthread_create(&thread, NULL, sleep_long, &s), 0);
        assert_true(ratelimit_sleep(50000, NULL));
        assert_false(atomic_load(&s.ended));
        begin = clock->boottime_usec(clock);
        atomic_store(&s.abort, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_true(clock->boottime_usec(clock) - begin < 10 * USEC_PER_SEC);
        assert_int_equal(s.got, 0);
        debt = ratelimit_book(t, 0, NULL);
        assert_in_range(debt, 900 * USEC_PER_SEC, 1024 * USEC_PER_SEC);
        ratelimit_unref(t);
}

static void the_last_reference_frees(void **state) {
        FakeClock fake = FAKE_CLOCK(0, USEC_PER_MINUTE);
        RateLimit *t = throttle_at(&fake.clock, 1000), *again = ratelimit_ref(t);

        assert_ptr_equal(t, again);
        assert_null(ratelimit_unref(t));
        assert_int_equal(ratelimit_rate(again), 1000);
        assert_null(ratelimit_unref(again));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(no_second_has_more_than_rate_and_savings),
                cmocka_unit_test(many_who_wait_at_once_do_not_get_more),
                cmocka_unit_test(who_always_asks_gets_all_even_when_timers_are_late),
                cmocka_unit_test(what_is_returned_is_there_for_the_next),
                cmocka_unit_test(what_is_wasted_is_gone),
                cmocka_unit_test(without_a_limit_nobody_waits),
                cmocka_unit_test(absurd_amounts_do_not_wrap),
                cmocka_unit_test(each_minute_of_the_day_has_its_rate),
                cmocka_unit_test(equal_ends_are_all_day),
                cmocka_unit_test(no_throttle_is_no_limit),
                cmocka_unit_test(bookings_follow_each_other),
                cmocka_unit_test(a_piece_is_half_of_what_is_saved_up),
                cmocka_unit_test(the_rate_follows_the_local_time_checked_once_a_second),
                cmocka_unit_test(what_is_given_back_is_what_was_booked_whatever_the_rate_is_now),
                cmocka_unit_test(what_was_booked_without_a_limit_gives_nothing_back),
                cmocka_unit_test(a_piece_is_booked_at_the_rate_that_it_was_measured_by),
                cmocka_unit_test(two_threads_share_one_line_and_lose_nothing),
                cmocka_unit_test(who_waits_together_gets_the_rate_together),
                cmocka_unit_test(an_abort_ends_a_wait_and_gives_back),
                cmocka_unit_test(the_last_reference_frees),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
