/* A growing string, and what becomes of it when it cannot grow. */
#include "lib/base/strbuf.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

static void text_comes_out_as_it_went_in(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        strbuf_add(&b, "a");
        strbuf_add_n(&b, "bcd", 2);
        strbuf_addf(&b, "-%d-%s", 42, "x");
        assert_string_equal(b.text, "abc-42-x");
        assert_int_equal(b.n, strlen(b.text));
        assert_int_equal(strbuf_error(&b), 0);
}

static void it_grows_in_steps_of_any_size(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        size_t n = 0;

        for (int i = 0; i < 2000; i++) {
                strbuf_addf(&b, "%*d", i % 100 + 1, i);
                n += (size_t)MAX(i % 100 + 1, snprintf(NULL, 0, "%d", i));
                assert_int_equal(b.n, n);
                assert_int_equal(b.text[b.n], '\0');
        }
}

static void bytes_may_hold_a_nul(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        strbuf_add_n(&b, "a\0b", 3);
        assert_int_equal(b.n, 3);
        assert_memory_equal(b.text, "a\0b", 4);
}

static void detaching_hands_over_and_restarts(void **state) {
        StrBuf b = STRBUF_INIT;
        _cleanup_free_ char *first = NULL, *second = NULL;

        strbuf_add(&b, "one");
        first = strbuf_detach(&b);
        assert_string_equal(first, "one");
        assert_null(b.text);
        second = strbuf_detach(&b);
        assert_string_equal(second, "");
}

static void clearing_keeps_the_memory(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        const char *text;

        strbuf_add(&b, "one");
        text = b.text;
        strbuf_clear(&b);
        assert_int_equal(b.n, 0);
        strbuf_add(&b, "two");
        assert_ptr_equal(b.text, text);
        assert_string_equal(b.text, "two");
}

static void a_failure_is_remembered_until_it_is_reported(void **state) {
        StrBuf b = STRBUF_INIT;

        strbuf_add(&b, "kept");
        strbuf_add_n(&b, "x", SIZE_MAX - 2); /* a size that overflows */
        assert_int_equal(strbuf_error(&b), -ENOMEM);
        strbuf_add(&b, "more"); /* would leave a hole in the text */
        assert_string_equal(b.text, "kept");
        assert_null(strbuf_detach(&b));
        assert_int_equal(strbuf_error(&b), 0);
        assert_null(b.text);
}

static void a_formatted_text_needs_no_buffer(void **state) {
        _cleanup_free_ char *text = strbuf_format("%s=%d", "size", 7);

        assert_string_equal(text, "size=7");
}

static void escaped_text_is_one_line(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        strbuf_add_escaped(&b, "");
        assert_int_equal(b.n, 0);
        strbuf_add_escaped(&b, "a\n\xff\u00e9");
        assert_string_equal(b.text, "a\\x0a\\xff\u00e9");
}

static void code_of_markdown_holds_no_markup(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        strbuf_add_code(&b, "");
        assert_int_equal(b.n, 0);
        strbuf_add_code(&b, "a`|\n<b>\\");
        assert_string_equal(b.text, "`a\\x60\\x7c\\x0a<b>\\`");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(text_comes_out_as_it_went_in),
                cmocka_unit_test(it_grows_in_steps_of_any_size),
                cmocka_unit_test(bytes_may_hold_a_nul),
                cmocka_unit_test(detaching_hands_over_and_restarts),
                cmocka_unit_test(clearing_keeps_the_memory),
                cmocka_unit_test(a_failure_is_remembered_until_it_is_reported),
                cmocka_unit_test(a_formatted_text_needs_no_buffer),
                cmocka_unit_test(escaped_text_is_one_line),
                cmocka_unit_test(code_of_markdown_holds_no_markup),
        };

        return cmocka_run_group_tests_name("base/strbuf", tests, NULL, NULL);
}
