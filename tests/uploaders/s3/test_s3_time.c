/* Dates in answers: what is read, and what is not taken for one. */
#include "uploaders/aws/aws_parse.h"

#include <errno.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

typedef struct Case {
        const char *text;
        uint64_t usec;
} Case;

static void dates_of_xml_and_json_are_read(void **state) {
        static const Case cases[] = {
                { "1970-01-01T00:00:00Z", 0 },
                { "2026-05-27T05:12:33Z", UINT64_C(1779858753000000) },
                { "2026-05-27T05:12:33.000Z", UINT64_C(1779858753000000) },
                { "2026-05-27T05:12:33.25Z", UINT64_C(1779858753250000) },
                { "2026-05-27T05:12:33.123456789Z", UINT64_C(1779858753123456) },
                { "2026-05-27T05:12:33+00:00", UINT64_C(1779858753000000) },
                { "2026-05-27T07:12:33+02:00", UINT64_C(1779858753000000) },
                { "2026-05-26T21:42:33-0730", UINT64_C(1779858753000000) },
                { "2024-02-29T00:00:00Z", UINT64_C(1709164800000000) },
                { "2000-03-01T00:00:00Z", UINT64_C(951868800000000) },
                { "2016-12-31T23:59:60Z", UINT64_C(1483228800000000) },
                { "9999-12-31T23:59:59Z", UINT64_C(253402300799000000) },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                uint64_t usec = 1;

                assert_int_equal(aws_time_parse(cases[i].text, &usec), 0);
                assert_int_equal(usec, cases[i].usec);
        }
}

static void what_is_no_date_of_xml_is_refused(void **state) {
        static const char *const texts[] = {
                "",
                "2026-05-27",
                "2026-05-27T05:12Z",
                "2026-05-27T05:12:33",
                "2026-05-27T05:12:33.Z",
                "2026-05-27T05:12:33Zx",
                "2026-05-27 05:12:33Z",
                " 2026-05-27T05:12:33Z",
                "2026-5-27T05:12:33Z",
                "2026-13-27T05:12:33Z",
                "2026-00-27T05:12:33Z",
                "2026-02-29T05:12:33Z",
                "2100-02-29T05:12:33Z",
                "2026-05-00T05:12:33Z",
                "2026-05-27T24:00:00Z",
                "2026-05-27T05:60:00Z",
                "2026-05-27T05:12:61Z",
                "1969-12-31T23:59:59Z",
                "1970-01-01T00:00:00+00:01",
                "2026-05-27T05:12:33+1",
                "2026-05-27T05:12:33+15:00",
                "2026-05-27T05:12:33+01:60",
                "2026-05-27T05:12:33+01:00x",
                "-026-05-27T05:12:33Z",
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                uint64_t usec = 42;

                assert_int_equal(aws_time_parse(texts[i], &usec), -EINVAL);
                assert_int_equal(usec, 42);
        }
}

static void dates_of_headers_are_read(void **state) {
        static const Case cases[] = {
                { "Wed, 27 May 2026 05:12:33 GMT", UINT64_C(1779858753000000) },
                { "Thu, 01 Jan 1970 00:00:00 GMT", 0 },
                { "Tue, 31 Dec 2024 23:59:59 GMT", UINT64_C(1735689599000000) },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                uint64_t usec = 1;

                assert_int_equal(http_date_parse(cases[i].text, &usec), 0);
                assert_int_equal(usec, cases[i].usec);
        }
}

static void what_is_no_date_of_a_header_is_refused(void **state) {
        static const char *const texts[] = {
                "",
                "120",
                "Wed, 27 May 2026 05:12:33 UTC",
                "Wed, 27 May 2026 05:12:33 GMT ",
                "Wed, 27 Mai 2026 05:12:33 GMT",
                "Wed, 31 Jun 2026 05:12:33 GMT",
                "Wed 27 May 2026  05:12:33 GMT",
                "Wednesday, 27-May-26 05:12:33",
                "Wed May 27 05:12:33 2026",
                "\377\377\377, 27 May 2026 05:12:3\377 GMT",
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                uint64_t usec = 42;

                assert_int_equal(http_date_parse(texts[i], &usec), -EINVAL);
                assert_int_equal(usec, 42);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(dates_of_xml_and_json_are_read),
                cmocka_unit_test(what_is_no_date_of_xml_is_refused),
                cmocka_unit_test(dates_of_headers_are_read),
                cmocka_unit_test(what_is_no_date_of_a_header_is_refused),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
