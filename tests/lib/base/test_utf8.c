/* Every code point and every malformed neighbour, and how they are shown. */
#include "lib/base/parse.h"

#include <stdbool.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

static size_t encode(uint32_t c, char out[4]) {
        if (c < 0x80) {
                out[0] = (char)c;
                return 1;
        }
        if (c < 0x800) {
                out[0] = (char)(0xc0 | c >> 6);
                out[1] = (char)(0x80 | (c & 0x3f));
                return 2;
        }
        if (c < 0x10000) {
                out[0] = (char)(0xe0 | c >> 12);
                out[1] = (char)(0x80 | (c >> 6 & 0x3f));
                out[2] = (char)(0x80 | (c & 0x3f));
                return 3;
        }
        out[0] = (char)(0xf0 | c >> 18);
        out[1] = (char)(0x80 | (c >> 12 & 0x3f));
        out[2] = (char)(0x80 | (c >> 6 & 0x3f));
        out[3] = (char)(0x80 | (c & 0x3f));
        return 4;
}

static void every_scalar_value_is_a_character_and_nothing_else_is(void **state) {
        for (uint32_t c = 0; c < 0x200000; c++) {
                bool scalar = c < 0xd800 || (c > 0xdfff && c <= 0x10ffff);
                char s[4];
                size_t n = encode(c, s);

                if (utf8_char_size(s, n) != (scalar ? n : 0))
                        fail_msg("U+%04X of %zu bytes gives %zu", c, n, utf8_char_size(s, n));
                if (n > 1 && utf8_char_size(s, n - 1) != 0)
                        fail_msg("U+%04X cut short is taken", c);
        }
}

static void overlong_forms_are_refused(void **state) {
        assert_int_equal(utf8_char_size("\xc0\x80", 2), 0);
        assert_int_equal(utf8_char_size("\xc1\xbf", 2), 0);
        assert_int_equal(utf8_char_size("\xe0\x80\xaf", 3), 0);
        assert_int_equal(utf8_char_size("\xe0\x9f\xbf", 3), 0);
        assert_int_equal(utf8_char_size("\xf0\x8f\xbf\xbf", 4), 0);
        assert_int_equal(utf8_char_size("\x80", 1), 0);
        assert_int_equal(utf8_char_size("\xe2\x28\xa1", 3), 0);
        assert_int_equal(utf8_char_size("\xe2\x82\x28", 3), 0);
}

static void what_moves_a_cursor_is_escaped(void **state) {
        static const struct {
                const char *text, *spelled;
                size_t used;
        } cases[] = {
                { "a", "a", 1 },
                { "\\", "\\", 1 },
                { "\n", "\\x0a", 1 },
                { "\033", "\\x1b", 1 },
                { "\x7f", "\\x7f", 1 },
                { "\xc2\x9b", "\\xc2\\x9b", 2 }, /* CSI */
                { "\xc2\xa0", "\xc2\xa0", 2 },
                { "€", "€", 3 },
                /* what turns the direction of writing around, or ends a line */
                { "\u202a", "\\xe2\\x80\\xaa", 3 },
                { "\u202e", "\\xe2\\x80\\xae", 3 },
                { "\u2066", "\\xe2\\x81\\xa6", 3 },
                { "\u2069", "\\xe2\\x81\\xa9", 3 },
                { "\u2028", "\\xe2\\x80\\xa8", 3 },
                { "\u202f", "\u202f", 3 },
                { "\u2065", "\u2065", 3 },
                { "\u206a", "\u206a", 3 },
                { "𝄞", "𝄞", 4 },
                { "\xff"
                  "a",
                  "\\xff", 1 },
                { "\xe2\x82", "\\xe2", 1 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char buf[UTF8_ESCAPE_SIZE];

                assert_int_equal(utf8_escape(cases[i].text, strlen(cases[i].text), buf),
                                 cases[i].used);
                assert_string_equal(buf, cases[i].spelled);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_scalar_value_is_a_character_and_nothing_else_is),
                cmocka_unit_test(overlong_forms_are_refused),
                cmocka_unit_test(what_moves_a_cursor_is_escaped),
        };

        return cmocka_run_group_tests_name("base/parse, UTF-8", tests, NULL, NULL);
}
