/* JSON member by member: whatever comes in, a parser that shares no code with it reads it, and gets
 * it back. */
#include "lib/base/json_out.h"

#include <string.h>

#include "tests/harness/unit.h"
#include <jansson.h>

static json_t *read_back(const StrBuf *b) {
        json_error_t error;
        assert_int_equal(strbuf_error(b), 0);
        json_t *value = json_loadb(b->text, b->n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
        if (!value)
                fail_msg("%s: %s", error.text, b->text);
        return value;
}

static void commas_stand_where_they_belong(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_u64(&b, "u", UINT64_MAX);
        json_out_i64(&b, "i", INT64_MIN);
        json_out_hex(&b, "x", UINT64_MAX);
        json_out_array(&b, "empty");
        json_out_end_array(&b);
        json_out_array(&b, "list");
        json_out_string(&b, NULL, "{[,");
        json_out_object(&b, NULL);
        json_out_end_object(&b);
        json_out_null(&b, NULL);
        json_out_end_array(&b);
        json_out_bool(&b, "yes", true);
        json_out_bool(&b, "no", false);
        json_out_string(&b, "none", NULL);
        json_out_path(&b, "nowhere", NULL);
        json_out_raw(&b, "raw", "[1,2]");
        json_out_end_object(&b);
        assert_string_equal(
                b.text,
                "{\"u\":18446744073709551615,\"i\":-9223372036854775808,\"x\":"
                "\"0xffffffffffffffff\",\"empty\":[],\"list\":[\"{["
                ",\",{},"
                "null],\"yes\":true,\"no\":false,\"none\":null,\"nowhere\":null,\"raw\":[1,2]}");
}

static void records_of_one_buffer_stand_on_lines(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        for (int i = 0; i < 2; i++) {
                json_out_object(&b, NULL);
                json_out_u64(&b, "n", 1);
                json_out_end_object(&b);
                strbuf_add(&b, "\n");
        }
        assert_string_equal(b.text, "{\"n\":1}\n{\"n\":1}\n");
}

static void a_text_that_ends_like_an_opening_still_has_its_comma(void **state) {
        static const char *const ends[] = { "{", "[", "\n", "x{\n[" };
        for (size_t i = 0; i < ELEMENTSOF(ends); i++) {
                _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
                json_out_object(&b, NULL);
                json_out_string(&b, ends[i], ends[i]);
                json_out_string(&b, "b", "");
                json_out_end_object(&b);
                json_t *value = read_back(&b);
                assert_string_equal(json_string_value(json_object_get(value, ends[i])), ends[i]);
                assert_string_equal(json_string_value(json_object_get(value, "b")), "");
                json_decref(value);
        }
}

/* Each byte alone, and each pair: as a text, a key and a path. */
static void every_pair_of_bytes_becomes_valid_json(void **state) {
        for (unsigned c = 0; c < 0x10000; c++) {
                _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
                const char bytes[] = { (char)(c >> 8), (char)c, '\0' };
                json_out_object(&b, NULL);
                json_out_text(&b, "t", bytes, 2);
                json_out_path(&b, "p", bytes);
                json_out_string(&b, bytes, "k");
                json_out_end_object(&b);
                if (strcmp(bytes, "t") == 0 || strcmp(bytes, "p") == 0)
                        continue;
                json_t *value = read_back(&b), *text = json_object_get(value, "t");
                assert_non_null(text);
                if ((c >> 8) < 0x80 && (c & 0xff) < 0x80) { /* ASCII comes back as it was */
                        assert_int_equal(json_string_length(text), 2);
                        assert_memory_equal(json_string_value(text), bytes, 2);
                }
                json_decref(value);
        }
}

static void assert_text(const char *s, size_t n, const char *want) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_array(&b, NULL);
        json_out_text(&b, NULL, s, n);
        json_out_end_array(&b);
        json_t *value = read_back(&b);
        assert_string_equal(json_string_value(json_array_get(value, 0)), want);
        json_decref(value);
}

static void what_is_no_utf8_is_escaped(void **state) {
        assert_text("a\xff\x62", 3, "a\\xffb");
        assert_text("\xc3", 1, "\\xc3");                   /* cut short */
        assert_text("\xc0\x80", 2, "\\xc0\\x80");          /* overlong */
        assert_text("\xed\xa0\x80", 3, "\\xed\\xa0\\x80"); /* surrogate */
        assert_text("\xc3\xa4\xf0\x9f\x98\x80", 6, "\xc3\xa4\xf0\x9f\x98\x80");
        assert_text("a\\b", 3, "a\\b");
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_path(&b, NULL, "/a\\b\xff");
        assert_string_equal(b.text, "\"/a\\\\x5cb\\\\xff\"");
}

static void a_failed_buffer_stays_failed(void **state) {
        StrBuf b = { .failed = true };
        json_out_object(&b, "k");
        json_out_string(&b, "k", "v");
        json_out_end_object(&b);
        assert_true(b.failed);
        assert_null(b.text);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(commas_stand_where_they_belong),
                cmocka_unit_test(records_of_one_buffer_stand_on_lines),
                cmocka_unit_test(a_text_that_ends_like_an_opening_still_has_its_comma),
                cmocka_unit_test(every_pair_of_bytes_becomes_valid_json),
                cmocka_unit_test(what_is_no_utf8_is_escaped),
                cmocka_unit_test(a_failed_buffer_stays_failed),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
