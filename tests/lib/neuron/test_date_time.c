/* Both spellings of the runtime's date-time, against the C library's calendar. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/neuron/names.h"

static void check(const char *s, uint64_t sec) {
        uint64_t usec = 1;

        if (date_time_parse(s, &usec) != 0 || usec != sec * USEC_PER_SEC)
                fail_msg("%s gives %llu us", s, (unsigned long long)usec);
}

/* Seconds from `date -u -d '2026-05-27 05:12:33' +%s` and the like. */
static void real_directories_and_the_documentation_are_understood(void **state) {
        check("20260527-051233", 1779858753);
        check("20250917-194443", 1758138283);
        check("2026-05-27-05-12", 1779858720);
        check("19700101-000000", 0);
        check("1970-01-01-00-00", 0);
        check("99991231-235959", UINT64_C(253402300799));
        check("9999-12-31-23-59", UINT64_C(253402300740));
        check("20000229-000000", 951782400);
}

static void every_day_until_2400_agrees_with_the_c_library(void **state) {
        for (uint64_t sec = 0; sec < UINT64_C(13569465600); sec += 86400 + 3661) {
                time_t t = (time_t)sec;
                struct tm tm;
                char text[64];

                assert_non_null(gmtime_r(&t, &tm));
                (void)strftime(text, sizeof text, "%Y%m%d-%H%M%S", &tm);
                check(text, sec);
                (void)strftime(text, sizeof text, "%Y-%m-%d-%H-%M", &tm);
                check(text, sec - (uint64_t)tm.tm_sec);
        }
}

static void impossible_dates_are_refused(void **state) {
        static const char *const bad[] = {
                "20260229-000000",  "20260431-000000",  "20260013-000000",  "20261301-000000",
                "20260100-000000",  "20260132-000000",  "20260101-240000",  "20260101-006000",
                "20260101-000060",  "19691231-235959",  "00000101-000000",  "2026-02-29-00-00",
                "2026-13-01-00-00", "2026-00-01-00-00", "2026-01-01-24-00", "2026-01-01-00-60",
                "1969-12-31-23-59", "21000229-000000",
        };

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                uint64_t usec = 42;

                if (date_time_parse(bad[i], &usec) != -EINVAL)
                        fail_msg("%s is taken", bad[i]);
                assert_int_equal(usec, 42);
        }
}

static void other_spellings_are_refused(void **state) {
        static const char *const bad[] = {
                "",
                "20260527",
                "20260527-05123",
                "20260527-0512333",
                "20260527 051233",
                "20260527-051233 ",
                " 20260527-051233",
                "20260527T051233",
                "20260527-0512:3",
                "2026-05-27-05-12-33",
                "2026-05-27-05-1",
                "2026-5-27-05-12",
                "2026-05-27 05:12",
                "+2026052-051233",
                "2026052a-051233",
                "-0260527-051233",
                "20260527-05123\n",
                "\331\241026052-051233",
        };

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                uint64_t usec;

                if (date_time_parse(bad[i], &usec) != -EINVAL)
                        fail_msg("%s is taken", bad[i]);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(real_directories_and_the_documentation_are_understood),
                cmocka_unit_test(every_day_until_2400_agrees_with_the_c_library),
                cmocka_unit_test(impossible_dates_are_refused),
                cmocka_unit_test(other_spellings_are_refused),
        };

        return cmocka_run_group_tests_name("date_time", tests, NULL, NULL);
}
