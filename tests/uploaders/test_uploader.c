/* Waits between tries grow, are bounded and spread; the number of requests at once follows what the
 * store can do. */
#include "uploaders/uploader.h"

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "uploaders/s3/aimd.h"

static void the_bound_doubles_until_the_maximum(void **state) {
        static const uint64_t bounds[] = {
                1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300
        }; /* seconds; 0 counts as 1 */

        for (unsigned n = 0; n < ELEMENTSOF(bounds); n++) {
                uint64_t least = UINT64_MAX, most = 0, bound = bounds[n] * USEC_PER_SEC;
                for (uint64_t i = 0; i < 1000; i++) {
                        uint64_t wait = backoff_next_usec(n, USEC_PER_SEC, 5 * USEC_PER_MINUTE,
                                                          i * UINT64_C(2654435761));
                        least = MIN(least, wait);
                        most = MAX(most, wait);
                }
                assert_true(least >= bound / 10 && most <= bound);
                assert_true(least < bound / 2 &&
                            most > bound / 2); /* spread, or all nodes come back at once */
        }
        assert_true(backoff_next_usec(UINT32_MAX, USEC_PER_SEC, 5 * USEC_PER_MINUTE, UINT64_MAX) <=
                    5 * USEC_PER_MINUTE);
}

static void absurd_settings_wait_at_least_a_moment(void **state) {
        for (uint64_t random = 0; random < 100; random++) {
                assert_true(backoff_next_usec(1, 0, 0, random) == 1);
                assert_true(backoff_next_usec(70, 1, UINT64_MAX, random) > 0);
                assert_true(backoff_next_usec(1, 10 * USEC_PER_SEC, USEC_PER_SEC, random) <=
                            USEC_PER_SEC);
                assert_true(backoff_next_usec(3, UINT64_MAX, UINT64_MAX, random) >=
                            UINT64_MAX / 10);
        }
}

static void it_begins_with_all_and_never_has_more(void **state) {
        Aimd a;

        aimd_init(&a, 4);
        assert_int_equal(a.limit, 4);
        for (int i = 0; i < 100; i++)
                aimd_succeeded(&a);
        assert_int_equal(a.limit, 4);
}

static void each_cut_halves_down_to_one(void **state) {
        static const unsigned limits[] = { 8, 4, 2, 1, 1, 1 };
        Aimd a;

        aimd_init(&a, 16);
        for (unsigned i = 0; i < ELEMENTSOF(limits); i++) {
                aimd_slowed_down(&a, 10 * i + 5, 10 * i + 9);
                assert_int_equal(a.limit, limits[i]);
        }
}

static void what_began_before_a_cut_does_not_cut_again(void **state) {
        Aimd a;

        aimd_init(&a, 16);
        for (unsigned i = 0; i < 16; i++) /* sixteen were under way, and all hear the same */
                aimd_slowed_down(&a, 100 + i, 1000 + i);
        assert_int_equal(a.limit, 8);
        aimd_slowed_down(&a, 1000, 2000);
        assert_int_equal(a.limit, 4);
}

static void one_more_after_a_round_of_successes(void **state) {
        Aimd a;
        unsigned n_successes = 0;

        aimd_init(&a, 8);
        for (unsigned i = 0; i < 3; i++)
                aimd_slowed_down(&a, i, i);
        assert_int_equal(a.limit, 1);
        for (unsigned want = 2; want <= 8; want++) {
                for (unsigned i = 0; i + 1 < want; i++, n_successes++) {
                        assert_int_equal(a.limit, want - 1);
                        aimd_succeeded(&a);
                }
                assert_int_equal(a.limit, want);
        }
        assert_int_equal(n_successes, 28);
}

static void a_cut_begins_the_round_anew(void **state) {
        Aimd a;

        aimd_init(&a, 8);
        aimd_slowed_down(&a, 1, 1);
        for (int i = 0; i < 3; i++)
                aimd_succeeded(&a);
        aimd_slowed_down(&a, 0, 2); /* cuts nothing, but it was no success either */
        for (int i = 0; i < 3; i++)
                aimd_succeeded(&a);
        assert_int_equal(a.limit, 4);
        aimd_succeeded(&a);
        assert_int_equal(a.limit, 5);
}

static void the_longest_wait_counts(void **state) {
        Aimd a;

        aimd_init(&a, 4);
        assert_int_equal(a.not_before_usec, 0);
        aimd_hold(&a, 1000, 500);
        aimd_hold(&a, 1100, 100);
        assert_int_equal(a.not_before_usec, 1500);
        aimd_hold(&a, 1100, UINT64_MAX);
        assert_true(a.not_before_usec == UINT64_MAX);
        assert_int_equal(a.limit, 4);
}

/* A store that serves so many at once and turns the others away: the limit stays near what it can
 * do. */
static void it_settles_near_what_a_store_can_do(void **state) {
        for (unsigned capacity = 1; capacity <= 32; capacity++) {
                uint64_t now = 1, sum = 0;
                Aimd a;

                aimd_init(&a, 32);
                for (unsigned round = 0; round < 2000; round++) {
                        unsigned n = a.limit;
                        uint64_t begun = now++;
                        for (unsigned i = 0; i < n; i++)
                                if (i < capacity)
                                        aimd_succeeded(&a);
                                else
                                        aimd_slowed_down(&a, begun, now);
                        assert_true(a.limit >= 1 && a.limit <= 32);
                        if (round >= 100)
                                sum += n;
                        now++;
                }
                assert_in_range(sum / 1900, (capacity + 1) / 2, capacity + 2);
        }
}

static void ids_of_a_request_make_no_other_error(void **state) {
        static const char one[] = "403 AccessDenied; allow it [x-amz-request-id A, x-amz-id-2 B]";

        assert_true(upload_error_is_same(one, "403 AccessDenied; allow it [x-amz-request-id C]"));
        assert_true(upload_error_is_same(one, "403 AccessDenied; allow it"));
        assert_false(upload_error_is_same(one, "403 AccessDenied; allow [x-amz-request-id A]"));
        assert_false(upload_error_is_same(one, NULL));
        assert_true(upload_error_is_same(NULL, NULL));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_bound_doubles_until_the_maximum),
                cmocka_unit_test(ids_of_a_request_make_no_other_error),
                cmocka_unit_test(absurd_settings_wait_at_least_a_moment),
                cmocka_unit_test(it_begins_with_all_and_never_has_more),
                cmocka_unit_test(each_cut_halves_down_to_one),
                cmocka_unit_test(what_began_before_a_cut_does_not_cut_again),
                cmocka_unit_test(one_more_after_a_round_of_successes),
                cmocka_unit_test(a_cut_begins_the_round_anew),
                cmocka_unit_test(the_longest_wait_counts),
                cmocka_unit_test(it_settles_near_what_a_store_can_do),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
