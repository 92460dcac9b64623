/* Times as text, checked against date(1) and by hand; the fake clock of the other tests. */
#include "lib/base/clock.h"

#include <string.h>
#include <time.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "tests/harness/fake_clock.h"

static void iso_has_six_digits_of_a_second(void **state) {
        char buf[CLOCK_ISO_SIZE];

        /* date -u -d 2026-05-27T05:21:35 +%s */
        assert_string_equal(clock_format_iso(buf, 1779859295 * USEC_PER_SEC + 123456),
                            "2026-05-27T05:21:35.123456Z");
        assert_string_equal(clock_format_iso(buf, 0), "1970-01-01T00:00:00.000000Z");
        assert_string_equal(clock_format_iso(buf, 951782400 * USEC_PER_SEC + 1),
                            "2000-02-29T00:00:00.000001Z");
}

static void iso_holds_the_largest_time_there_is(void **state) {
        char buf[CLOCK_ISO_SIZE];

        /* date -u -d @18446744073709 +%FT%T */
        assert_string_equal(clock_format_iso(buf, UINT64_MAX), "586524-01-19T08:01:49.551615Z");
}

static void nanoseconds_before_1970_are_written(void **state) {
        char buf[CLOCK_ISO_SIZE];

        assert_string_equal(clock_format_iso_nsec(buf, 1779859295, 123456789),
                            "2026-05-27T05:21:35.123456789Z");
        assert_string_equal(clock_format_iso_nsec(buf, -1, 5), "1969-12-31T23:59:59.000000005Z");
        assert_string_equal(clock_format_iso_nsec(buf, -62167219200, 0),
                            "0000-01-01T00:00:00.000000000Z");
}

static void a_hostile_mtime_fits_into_the_buffer(void **state) {
        static const int64_t seconds[] = { INT64_MIN, INT64_MAX, INT64_MAX / 100 };
        static const uint32_t nsecs[] = { 0, UINT32_MAX };
        char buf[CLOCK_ISO_SIZE + 1];

        for (size_t i = 0; i < ELEMENTSOF(seconds); i++)
                for (size_t j = 0; j < ELEMENTSOF(nsecs); j++) {
                        size_t n;

                        memset(buf, '#', sizeof buf);
                        n = strlen(clock_format_iso_nsec(buf, seconds[i], nsecs[j]));
                        assert_true(n < CLOCK_ISO_SIZE);
                        assert_int_equal(buf[n - 1], 'Z'); /* nothing was cut off */
                        assert_int_equal(buf[CLOCK_ISO_SIZE], '#');
                }
        /* What no struct tm can hold becomes the last time that it can. */
        assert_string_equal(clock_format_iso_nsec(buf, INT64_MAX, 0),
                            "2147485547-12-31T23:59:59.000000000Z");
        assert_string_equal(clock_format_iso_nsec(buf, INT64_MIN, 0),
                            "-2147481748-01-01T00:00:00.000000000Z");
}

static void compact_comes_with_either_separator(void **state) {
        char buf[CLOCK_ISO_SIZE];

        assert_string_equal(clock_format_compact(buf, 1779859295999999, 'T'), "20260527T052135");
        assert_string_equal(clock_format_compact(buf, 1779859295999999, '-'), "20260527-052135");
        assert_true(strlen(clock_format_compact(buf, UINT64_MAX, 'T')) < CLOCK_ISO_SIZE);
}

static void a_span_shows_its_two_largest_units(void **state) {
        static const struct {
                uint64_t usec;
                const char *text;
        } cases[] = {
                { 0, "0s" },
                { 1, "1us" },
                { 250 * USEC_PER_MSEC, "250ms" },
                { 1500, "1ms 500us" },
                { 5 * USEC_PER_SEC, "5s" },
                { 2 * USEC_PER_HOUR + 3 * USEC_PER_MINUTE + 4 * USEC_PER_SEC, "2h 3m" },
                { 2 * USEC_PER_HOUR + 4 * USEC_PER_SEC, "2h" },
                { 7 * USEC_PER_DAY, "7d" },
                { USEC_INFINITY, "forever" },
        };
        char buf[CLOCK_ISO_SIZE];

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_string_equal(clock_format_duration(buf, cases[i].usec), cases[i].text);
        assert_true(strlen(clock_format_duration(buf, UINT64_MAX - 1)) < CLOCK_ISO_SIZE);
}

static void the_system_clock_is_the_kernels(void **state) {
        struct timespec before, after;
        uint64_t now;
        Clock *c = clock_system();

        assert_int_equal(clock_gettime(CLOCK_REALTIME, &before), 0);
        now = c->realtime_usec(c);
        assert_int_equal(clock_gettime(CLOCK_REALTIME, &after), 0);
        assert_in_range(now, (uint64_t)before.tv_sec * USEC_PER_SEC,
                        ((uint64_t)after.tv_sec + 1) * USEC_PER_SEC);
        assert_int_equal(clock_gettime(CLOCK_BOOTTIME, &before), 0);
        now = c->boottime_usec(c);
        assert_int_equal(clock_gettime(CLOCK_BOOTTIME, &after), 0);
        assert_in_range(now, (uint64_t)before.tv_sec * USEC_PER_SEC,
                        ((uint64_t)after.tv_sec + 1) * USEC_PER_SEC);
}

static void the_fake_clock_moves_only_when_set(void **state) {
        FakeClock fake = FAKE_CLOCK(1000, 10);
        Clock *c = &fake.clock;

        assert_int_equal(c->realtime_usec(c), 1000);
        assert_int_equal(c->boottime_usec(c), 10);
        fake_clock_advance(&fake, 5);
        assert_int_equal(c->realtime_usec(c), 1005);
        assert_int_equal(c->boottime_usec(c), 15);
        fake_clock_set_date(&fake, 3);
        assert_int_equal(c->realtime_usec(c), 3);
        assert_int_equal(c->boottime_usec(c), 15);
}

static void it_is_reported_for_how_long_the_clock_was_not_set_forward(void **state) {
        FakeClock fake = FAKE_CLOCK(USEC_PER_DAY, 10);
        Clock *c = &fake.clock;
        ClockStep s = { 0 };

        assert_int_equal(clock_step_age_usec(&s, c), USEC_INFINITY);
        fake_clock_advance(&fake, 30 * USEC_PER_DAY); /* time has passed */
        assert_int_equal(clock_step_age_usec(&s, c), USEC_INFINITY);
        fake_clock_set_date(&fake, 31 * USEC_PER_DAY + 59 * USEC_PER_MINUTE); /* no step */
        assert_int_equal(clock_step_age_usec(&s, c), USEC_INFINITY);
        fake_clock_set_date(&fake, USEC_PER_DAY); /* back */
        assert_int_equal(clock_step_age_usec(&s, c), USEC_INFINITY);
        fake_clock_set_date(&fake, 10 * USEC_PER_DAY);
        assert_int_equal(clock_step_age_usec(&s, c), 0);
        fake_clock_advance(&fake, USEC_PER_DAY);
        assert_int_equal(clock_step_age_usec(&s, c), USEC_PER_DAY);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(iso_has_six_digits_of_a_second),
                cmocka_unit_test(iso_holds_the_largest_time_there_is),
                cmocka_unit_test(nanoseconds_before_1970_are_written),
                cmocka_unit_test(a_hostile_mtime_fits_into_the_buffer),
                cmocka_unit_test(compact_comes_with_either_separator),
                cmocka_unit_test(a_span_shows_its_two_largest_units),
                cmocka_unit_test(the_system_clock_is_the_kernels),
                cmocka_unit_test(the_fake_clock_moves_only_when_set),
                cmocka_unit_test(it_is_reported_for_how_long_the_clock_was_not_set_forward),
        };

        return cmocka_run_group_tests_name("base/clock", tests, NULL, NULL);
}
