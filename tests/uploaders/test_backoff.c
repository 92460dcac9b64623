/* Waits between tries: they grow, are bounded, never nothing, and spread. */
#include "uploaders/uploader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/base/cleanup.h"

static void the_bound_doubles_until_the_maximum(void **state) {
        static const uint64_t bounds[] = {
                1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300
        }; /* seconds; 0 counts as 1 */

        (void)state;
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
        (void)state;
        for (uint64_t random = 0; random < 100; random++) {
                assert_true(backoff_next_usec(1, 0, 0, random) == 1);
                assert_true(backoff_next_usec(70, 1, UINT64_MAX, random) > 0);
                assert_true(backoff_next_usec(1, 10 * USEC_PER_SEC, USEC_PER_SEC, random) <=
                            USEC_PER_SEC);
                assert_true(backoff_next_usec(3, UINT64_MAX, UINT64_MAX, random) >=
                            UINT64_MAX / 10);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_bound_doubles_until_the_maximum),
                cmocka_unit_test(absurd_settings_wait_at_least_a_moment),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
