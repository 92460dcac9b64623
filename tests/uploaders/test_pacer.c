/* A line at a rate: no second has more than it may, nothing that was saved up within bounds is lost, and the windows of the day. */
#include "uploaders/ratelimit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/cleanup.h"

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
        PacerRule rule;
        uint64_t booked, now_usec, random;
        Gone gone[N_GONE_MAX];
        size_t n_gone;
        uint64_t largest_charge, total;
} Sim;

static Sim *sim_new(uint64_t seed) {
        static Sim s;

        s.random = seed;
        s.now_usec = USEC_PER_SEC + random_next(&s.random) % USEC_PER_DAY;
        s.rule = (PacerRule){ .rate = UINT64_C(1) << (10 + random_next(&s.random) % 25),
                              .saving_usec = PACER_SAVING_USEC };
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
static uint64_t take(Sim *s, uint64_t n) {
        s->booked = pacer_book(&s->rule, s->booked, n, s->now_usec);
        uint64_t wait = pacer_wait_usec(s->booked, s->now_usec);
        go(s, s->now_usec + wait, n);
        return wait;
}

/* It has gone already. */
static void charge(Sim *s, uint64_t n) {
        s->booked = pacer_book(&s->rule, s->booked, n, s->now_usec);
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
        (void)state;
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                Sim *s = sim_new(seed);
                uint64_t piece = MAX(s->rule.rate / (40 + random_next(&s->random) % 400), 1U);

                for (size_t i = 0; i < N_GONE_MAX / 2; i++) {
                        s->now_usec += take(s, 1 + random_next(&s->random) % piece);
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
        (void)state;
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                Sim *s = sim_new(seed);
                uint64_t piece = MAX(s->rule.rate / 300, 1U), last = 0;

                for (size_t i = 0; i < 1200; i++) { /* all ask in one moment */
                        uint64_t wait = take(s, 1 + random_next(&s->random) % piece);
                        assert_true(wait >= last); /* in the order of asking */
                        last = wait;
                }
                assert_true((double)most_in_a_second(s) <= 1.025 * (double)s->rule.rate + 1);
        }
}

static void who_always_asks_gets_all_even_when_timers_are_late(void **state) {
        (void)state;
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
                Sim *s = sim_new(seed);
                uint64_t piece = MAX(s->rule.rate / 100, 1U), begin = s->now_usec;

                for (size_t i = 0; i < 1500; i++) {
                        uint64_t wait = take(s, piece);
                        if (wait > 0)
                                s->now_usec += wait + random_next(&s->random) % 14000;
                }
                double sec = (double)(s->now_usec - begin) / (double)USEC_PER_SEC;
                assert_true((double)s->total >= 0.99 * sec * (double)s->rule.rate);
        }
}

static void what_is_returned_is_there_for_the_next(void **state) {
        PacerRule rule = { .rate = MIB, .saving_usec = PACER_SAVING_USEC };
        uint64_t now = USEC_PER_MINUTE, line = pacer_book(&rule, 0, MIB, now);

        (void)state;
        assert_in_range(pacer_wait_usec(line, now), 974999, 975001);
        line = pacer_return(line, pacer_span_nsec(&rule, MIB));
        line = pacer_book(&rule, line, MIB / 50, now);
        assert_int_equal(pacer_wait_usec(line, now), 0);
        assert_int_equal(pacer_return(5, pacer_span_nsec(&rule, MIB)), 0); /* more than there is */
}

static void what_is_wasted_is_gone(void **state) {
        PacerRule rule = { .rate = MIB, .saving_usec = PACER_SAVING_USEC };
        uint64_t now = USEC_PER_MINUTE, line = pacer_discard_savings(0, now);

        (void)state;
        line = pacer_book(&rule, line, MIB / 50, now);
        assert_in_range(pacer_wait_usec(line, now), 19999, 20001);
        assert_int_equal(pacer_discard_savings(line, now), line); /* a debt stays */
}

static void without_a_limit_nobody_waits(void **state) {
        PacerRule none = { .saving_usec = PACER_SAVING_USEC };

        (void)state;
        assert_int_equal(pacer_book(&none, 77, UINT64_MAX, USEC_PER_SEC), 77);
        assert_int_equal(pacer_span_nsec(&none, UINT64_MAX), 0);
}

static void absurd_amounts_do_not_wrap(void **state) {
        PacerRule slow = { .rate = 1, .saving_usec = UINT64_MAX };
        uint64_t line = 0;

        (void)state;
        for (int i = 0; i < 10; i++)
                line = pacer_book(&slow, line, UINT64_MAX, USEC_PER_SEC);
        assert_true(pacer_wait_usec(line, USEC_PER_SEC) > 100 * 365 * USEC_PER_DAY);
        assert_true(pacer_wait_usec(line, UINT64_MAX) == 0);
        assert_true(pacer_book(&slow, line, 1, UINT64_MAX) >= line);
}

static void each_minute_of_the_day_has_its_rate(void **state) {
        static const PacerWindow windows[] = {
                { 8 * 60, 20 * 60, 50 }, /* the day */
                { 22 * 60, 6 * 60, 0 },  /* over midnight, without a limit */
                { 12 * 60, 21 * 60,
                  9 }, /* only from 20:00 on: the first that holds a minute counts */
        };
        const PacerSchedule s = { .rate = 7, .windows = windows, .n_windows = ELEMENTSOF(windows) };
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

        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_int_equal(pacer_rate_at(&s, cases[i].minute), cases[i].rate);
}

static void equal_ends_are_the_whole_day(void **state) {
        static const PacerWindow window = { 600, 600, 3 };
        const PacerSchedule s = { .rate = 7, .windows = &window, .n_windows = 1 };

        (void)state;
        for (unsigned minute = 0; minute < 24 * 60; minute++)
                assert_int_equal(pacer_rate_at(&s, minute), 3);
        assert_int_equal(pacer_rate_at(&(PacerSchedule){ .rate = 7 }, 0), 7);
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
                cmocka_unit_test(equal_ends_are_the_whole_day),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
