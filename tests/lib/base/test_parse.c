/* Numbers and words from outside: what is taken, what is refused and why, and that text and number
 * go round. */
#include "lib/base/parse.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

typedef struct Case {
        const char *text;
        int r;
        uint64_t value;
} Case;

#define UNTOUCHED UINT64_C(0x5555555555555555)

static void check_cases(int (*parse)(const char *, uint64_t *), const Case *cases, size_t n) {
        for (size_t i = 0; i < n; i++) {
                uint64_t value = UNTOUCHED;
                int r = parse(cases[i].text, &value);

                if (r != cases[i].r || value != (r == 0 ? cases[i].value : UNTOUCHED))
                        fail_msg("'%s' gives %d and %ju", cases[i].text, r, (uintmax_t)value);
        }
}

static void only_digits_are_a_number(void **state) {
        static const Case cases[] = {
                { "0", 0, 0 },
                { "42", 0, 42 },
                { "007", 0, 7 },
                { "18446744073709551615", 0, UINT64_MAX },
                { "00000000000000000000000001", 0, 1 },
                { "18446744073709551616", -ERANGE, 0 },
                { "99999999999999999999999999", -ERANGE, 0 },
                { "99999999999999999999999999x", -EINVAL, 0 },
                { "", -EINVAL, 0 },
                { " 1", -EINVAL, 0 },
                { "1 ", -EINVAL, 0 },
                { "1\n", -EINVAL, 0 },
                { "+1", -EINVAL, 0 },
                { "-1", -EINVAL, 0 },
                { "0x10", -EINVAL, 0 },
                { "1.0", -EINVAL, 0 },
                { "1e3", -EINVAL, 0 },
                { "\xd9\xa1", -EINVAL, 0 }, /* ARABIC-INDIC DIGIT ONE */
        };

        check_cases(parse_u64, cases, ELEMENTSOF(cases));
}

static void a_range_includes_its_ends(void **state) {
        uint64_t n = UNTOUCHED;

        assert_int_equal(parse_u64_range("4", 5, 7, &n), -ERANGE);
        assert_int_equal(parse_u64_range("8", 5, 7, &n), -ERANGE);
        assert_int_equal(parse_u64_range("x", 5, 7, &n), -EINVAL);
        assert_int_equal(n, UNTOUCHED);
        assert_int_equal(parse_u64_range("5", 5, 7, &n), 0);
        assert_int_equal(n, 5);
        assert_int_equal(parse_u64_range("7", 5, 7, &n), 0);
        assert_int_equal(n, 7);
}

static void hex_bytes_are_exactly_as_many_as_requested(void **state) {
        uint8_t bytes[4] = { 1, 2, 3, 4 };

        assert_int_equal(parse_hex_bytes("00fFa9", bytes, 3), 0);
        assert_memory_equal(bytes, ((const uint8_t[]){ 0x00, 0xff, 0xa9, 4 }), 4);
        assert_int_equal(parse_hex_bytes("", bytes, 0), 0);
        assert_int_equal(parse_hex_bytes("00ff", bytes, 3), -EINVAL);
        assert_int_equal(parse_hex_bytes("00ffa", bytes, 3), -EINVAL);
        assert_int_equal(parse_hex_bytes("00ffa9a9", bytes, 3), -EINVAL);
        assert_int_equal(parse_hex_bytes("11111g", bytes, 3), -EINVAL);
        assert_int_equal(parse_hex_bytes("0x1111", bytes, 3), -EINVAL);
        assert_int_equal(parse_hex_bytes("11 111", bytes, 3), -EINVAL);
        assert_memory_equal(bytes, ((const uint8_t[]){ 0x00, 0xff, 0xa9, 4 }), 4);
}

static void yes_and_no_come_in_three_words_and_any_case(void **state) {
        static const char *const yes[] = { "true", "True", "TRUE", "yes", "Yes", "on", "ON" };
        static const char *const no[] = { "false", "False", "no", "NO", "off", "Off" };
        static const char *const neither[] = { "", "y", "n", "1", "0", "t", "yes ", "enabled" };
        bool b;

        for (size_t i = 0; i < ELEMENTSOF(yes); i++) {
                b = false;
                assert_int_equal(parse_bool(yes[i], &b), 0);
                assert_true(b);
        }
        for (size_t i = 0; i < ELEMENTSOF(no); i++) {
                b = true;
                assert_int_equal(parse_bool(no[i], &b), 0);
                assert_false(b);
        }
        for (size_t i = 0; i < ELEMENTSOF(neither); i++)
                assert_int_equal(parse_bool(neither[i], &b), -EINVAL);
}

static void sizes_have_binary_units(void **state) {
        static const Case cases[] = {
                { "0", 0, 0 },
                { "1000", 0, 1000 },
                { "64KiB", 0, 65536 },
                { "64K", 0, 65536 },
                { "8MiB", 0, 8388608 },
                { "8M", 0, 8388608 },
                { "1GiB", 0, 1073741824 },
                { "1G", 0, 1073741824 },
                { "2TiB", 0, UINT64_C(2199023255552) },
                { "2T", 0, UINT64_C(2199023255552) },
                { "16777215TiB", 0, UINT64_C(0xffffff0000000000) },
                { "16777216TiB", -ERANGE, 0 },
                { "18446744073709551616", -ERANGE, 0 },
                { "99999999999999999999KiB", -ERANGE, 0 },
                { "8MB", -EINVAL, 0 },
                { "8mib", -EINVAL, 0 },
                { "8 MiB", -EINVAL, 0 },
                { "MiB", -EINVAL, 0 },
                { "1.5GiB", -EINVAL, 0 },
                { "-1K", -EINVAL, 0 },
                { "8MiBx", -EINVAL, 0 },
                { "", -EINVAL, 0 },
        };

        check_cases(parse_bytes, cases, ELEMENTSOF(cases));
}

static void rates_are_sizes_a_second(void **state) {
        static const Case cases[] = {
                { "0", 0, 0 },
                { "off", 0, 0 },
                { "0/s", 0, 0 },
                { "50MiB/s", 0, 52428800 },
                { "1G/s", 0, 1073741824 },
                { "1000/s", 0, 1000 },
                { "50MiB", -EINVAL, 0 },
                { "50MiB/m", -EINVAL, 0 },
                { "50/s/s", -EINVAL, 0 },
                { "/s", -EINVAL, 0 },
                { "s", -EINVAL, 0 },
                { "", -EINVAL, 0 },
                { "99999999T/s", -ERANGE, 0 },
                { "0000000000000000000000000000000000000000001/s", -EINVAL, 0 },
        };

        check_cases(parse_rate, cases, ELEMENTSOF(cases));
}

static void times_need_a_unit(void **state) {
        static const Case cases[] = {
                { "0", 0, 0 },
                { "0s", 0, 0 },
                { "7us", 0, 7 },
                { "250ms", 0, 250000 },
                { "5s", 0, 5000000 },
                { "10m", 0, 600000000 },
                { "2h", 0, UINT64_C(7200000000) },
                { "7d", 0, UINT64_C(604800000000) },
                { "213503982d", 0, UINT64_C(213503982) * 86400000000 },
                { "213503983d", -ERANGE, 0 },
                { "5", -EINVAL, 0 },
                { "00", -EINVAL, 0 },
                { "5 s", -EINVAL, 0 },
                { "5S", -EINVAL, 0 },
                { "5sec", -EINVAL, 0 },
                { "1h30m", -EINVAL, 0 },
                { "1.5s", -EINVAL, 0 },
                { "-5s", -EINVAL, 0 },
                { "s", -EINVAL, 0 },
                { "", -EINVAL, 0 },
        };

        check_cases(parse_duration_usec, cases, ELEMENTSOF(cases));
}

static int permille_as_u64(const char *s, uint64_t *ret) {
        unsigned n;
        int r = parse_permille(s, &n);

        if (r == 0)
                *ret = n;
        return r;
}

static void percents_have_at_most_one_decimal(void **state) {
        static const Case cases[] = {
                { "5%", 0, 50 },
                { "0.5%", 0, 5 },
                { "0%", 0, 0 },
                { "100%", 0, 1000 },
                { "100.0%", 0, 1000 },
                { "99.9%", 0, 999 },
                { "100.1%", -ERANGE, 0 },
                { "101%", -ERANGE, 0 },
                { "5", -EINVAL, 0 },
                { "%", -EINVAL, 0 },
                { ".5%", -EINVAL, 0 },
                { "5.%", -EINVAL, 0 },
                { "5.55%", -EINVAL, 0 },
                { "-5%", -EINVAL, 0 },
                { "5 %", -EINVAL, 0 },
                { "5%%", -EINVAL, 0 },
                { "", -EINVAL, 0 },
                { "429496734.5%", -ERANGE, 0 },
                { "18446744073709551621%", -ERANGE, 0 },
        };

        check_cases(permille_as_u64, cases, ELEMENTSOF(cases));
}

static void formatted_sizes_and_times_are_exact(void **state) {
        char buf[PARSE_FORMAT_SIZE];

        assert_string_equal(parse_format_bytes(buf, 8 * MIB), "8MiB");
        assert_string_equal(parse_format_bytes(buf, 1000), "1000");
        assert_string_equal(parse_format_bytes(buf, 1536), "1536");
        assert_string_equal(parse_format_bytes(buf, 3 * KIB), "3KiB");
        assert_string_equal(parse_format_bytes(buf, 5000 * TIB), "5000TiB");
        assert_string_equal(parse_format_bytes(buf, 0), "0");
        assert_string_equal(parse_format_bytes(buf, UINT64_MAX), "18446744073709551615");
        assert_string_equal(parse_format_duration(buf, 90 * USEC_PER_SEC), "90s");
        assert_string_equal(parse_format_duration(buf, 250 * USEC_PER_MSEC), "250ms");
        assert_string_equal(parse_format_duration(buf, 2 * USEC_PER_HOUR), "2h");
        assert_string_equal(parse_format_duration(buf, 24 * USEC_PER_HOUR), "1d");
        assert_string_equal(parse_format_duration(buf, 1001), "1001us");
        assert_string_equal(parse_format_duration(buf, 0), "0");
}

static void what_is_formatted_parses_to_the_same(void **state) {
        static const uint64_t near[] = { 1,
                                         KIB,
                                         MIB,
                                         GIB,
                                         TIB,
                                         USEC_PER_MSEC,
                                         USEC_PER_SEC,
                                         USEC_PER_HOUR,
                                         USEC_PER_DAY,
                                         UINT64_MAX };

        for (size_t i = 0; i < ELEMENTSOF(near); i++)
                for (uint64_t d = 0; d < 3; d++) {
                        uint64_t n = near[i] - 1 + d, back; /* wraps to 0 and 1: fine too */
                        char buf[PARSE_FORMAT_SIZE];

                        assert_int_equal(parse_bytes(parse_format_bytes(buf, n), &back), 0);
                        assert_int_equal(back, n);
                        assert_int_equal(parse_duration_usec(parse_format_duration(buf, n), &back),
                                         0);
                        assert_int_equal(back, n);
                }
}

static void people_read_sizes_with_one_decimal(void **state) {
        static const struct {
                uint64_t bytes;
                const char *text;
        } cases[] = {
                { 0, "0 B" },
                { 1, "1 B" },
                { 1023, "1023 B" },
                { 1024, "1.0 KiB" },
                { 1536, "1.5 KiB" },
                { 1024 * 1024 - 1, "1.0 MiB" },
                { 1023 * 1024, "1023.0 KiB" },
                { 3 * GIB / 2, "1.5 GiB" },
                { 2 * TIB, "2.0 TiB" },
                { 1024 * TIB, "1.0 PiB" },
                { UINT64_MAX, "16.0 EiB" },
        };
        char buf[PARSE_FORMAT_SIZE];

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_string_equal(parse_format_human(buf, cases[i].bytes), cases[i].text);
}

static void a_number_is_read_from_where_it_stands_and_no_further(void **state) {
        static const struct {
                const char *text;
                bool is_one;
                uint64_t value;
                const char *rest;
        } cases[] = {
                { "12x", true, 12, "x" },
                { "0", true, 0, "" },
                { "18446744073709551615,", true, UINT64_MAX, "," },
                { "18446744073709551616", false, 0, NULL },
                { "", false, 0, "" },
                { "-1", false, 0, "-1" },
                { " 1", false, 0, " 1" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                const char *at = cases[i].text;
                uint64_t value = 0;
                assert_int_equal(parse_u64_prefix(&at, at + strlen(at), &value), cases[i].is_one);
                assert_int_equal(value, cases[i].value);
                if (cases[i].rest)
                        assert_string_equal(at, cases[i].rest);
        }
        const char *at = "123";
        uint64_t value;
        assert_true(parse_u64_prefix(&at, at + 2, &value));
        assert_int_equal(value, 12);
}

static void brackets_in_strings_do_not_nest(void **state) {
        static const struct {
                const char *text;
                unsigned depth;
        } cases[] = {
                { "", 0 },
                { "1", 0 },
                { "[[{}]]", 3 },
                { "[]{}[]", 1 },
                { "\"[[[\"", 0 },
                { "[\"\\\"[\"]", 1 },
                { "[\"\\\\\",[]]", 2 },
                { "]]]][", 1 },
                { "{\"a\":[\"{\"]}", 2 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                size_t n = strlen(cases[i].text);
                assert_false(parse_json_exceeds_depth(cases[i].text, n, cases[i].depth));
                if (cases[i].depth > 0)
                        assert_true(parse_json_exceeds_depth(cases[i].text, n, cases[i].depth - 1));
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(only_digits_are_a_number),
                cmocka_unit_test(a_number_is_read_from_where_it_stands_and_no_further),
                cmocka_unit_test(brackets_in_strings_do_not_nest),
                cmocka_unit_test(a_range_includes_its_ends),
                cmocka_unit_test(hex_bytes_are_exactly_as_many_as_requested),
                cmocka_unit_test(yes_and_no_come_in_three_words_and_any_case),
                cmocka_unit_test(sizes_have_binary_units),
                cmocka_unit_test(rates_are_sizes_a_second),
                cmocka_unit_test(times_need_a_unit),
                cmocka_unit_test(percents_have_at_most_one_decimal),
                cmocka_unit_test(formatted_sizes_and_times_are_exact),
                cmocka_unit_test(what_is_formatted_parses_to_the_same),
                cmocka_unit_test(people_read_sizes_with_one_decimal),
        };

        return cmocka_run_group_tests_name("base/parse", tests, NULL, NULL);
}
