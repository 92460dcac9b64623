/* What is known beside a core: whatever comes is bounded, and what is of another form is left out.
 */
#include <string.h>

#include "tests/harness/unit.h"

#include "collectors/crash/context.h"

static int parse(Context *ret, const char *text) {
        return context_parse(ret, text, strlen(text));
}

static void assert_json(const Context *c, const char *wanted) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        context_write_json(c, &b);
        assert_string_equal(b.text, wanted);
}

static void without_one_nothing_is_known(void **state) {
        Context c;
        const char *since;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        assert_int_equal(context_parse(&c, "", 0), 0);
        assert_int_equal(context_seen(&c, "00", &since), 0);
        assert_json(&c, "\"kernel\":[],\"job\":null");
        context_write_kernel(&c, &b);
        context_write_job(&c, &b);
        assert_int_equal(b.n, 0);
        context_done(&c);
}

static void what_is_known_is_written_as_it_is(void **state) {
        Context c;
        const char *since;
        _cleanup_(strbuf_done) StrBuf kernel = STRBUF_INIT, job = STRBUF_INIT;
        assert_int_equal(
                parse(&c, "{\"pid\":4711,\"signatures\":{\"ab\":{\"count\":3,\"since\":\"T\"},"
                          "\"cd\":{\"count\":-1}},\"kernel\":[{\"time\":\"T\",\"text\":\"a\\nb|\","
                          "\"kind\":\"mce\"},{\"text\":\"c\",\"kind\":\"unheard of\"},7],"
                          "\"job\":{\"rank\":3,\"name\":\"a\",\"list\":[1]}}"),
                0);
        assert_int_equal(c.pid, 4711);
        assert_int_equal(context_seen(&c, "ab", &since), 3);
        assert_string_equal(since, "T");
        assert_int_equal(context_seen(&c, "cd", &since), 0);
        assert_int_equal(c.lines[0].kind, CONTEXT_MCE);
        assert_json(&c, "\"kernel\":[{\"time\":\"T\",\"kind\":\"mce\",\"text\":\"a\\u000ab|\"},"
                        "{\"time\":null,\"kind\":\"other\",\"text\":\"c\"},"
                        "{\"time\":null,\"kind\":\"other\",\"text\":\"\"}],"
                        "\"job\":{\"rank\":3,\"name\":\"a\",\"list\":[1]}");
        context_write_kernel(&c, &kernel);
        assert_string_equal(kernel.text,
                            "- kernel: `T` `a\\x0ab\\x7c`\n- kernel: `c`\n- kernel: \n");
        context_write_job(&c, &job);
        assert_string_equal(job.text, "| Job | |\n|---|---|\n| `rank` | `3` |\n| `name` | `a` |\n"
                                      "| `list` | `[1]` |\n\n");
        context_done(&c);
}

static void what_is_no_object_or_too_deep_is_refused(void **state) {
        static const char *const bad[] = {
                "[]", "7", "{", "{} {}", "{\"a\":1,\"a\":1}", "{\"job\":[[[[[[[[[[]]]]]]]]]]}"
        };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                Context c;
                assert_int_equal(parse(&c, bad[i]), CONTEXT_E_INVALID);
                context_done(&c);
        }
}

static void members_of_another_type_are_left_out(void **state) {
        Context c;
        const char *since;
        assert_int_equal(parse(&c, "{\"pid\":\"1\",\"signatures\":[],\"kernel\":{},\"job\":[1]}"),
                         0);
        assert_int_equal(c.pid, 0);
        assert_int_equal(context_seen(&c, "ab", &since), 0);
        assert_json(&c, "\"kernel\":[],\"job\":null");
        context_done(&c);
}

static void lines_are_limited(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        Context c;
        strbuf_add(&b, "{\"kernel\":[{}");
        for (size_t i = 0; i < 2 * CONTEXT_LINES_MAX; i++)
                strbuf_add(&b, ",{}");
        strbuf_add(&b, "]}");
        assert_int_equal(context_parse(&c, b.text, b.n), 0);
        assert_int_equal(c.n_lines, CONTEXT_LINES_MAX);
        context_done(&c);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(without_one_nothing_is_known),
                cmocka_unit_test(what_is_known_is_written_as_it_is),
                cmocka_unit_test(what_is_no_object_or_too_deep_is_refused),
                cmocka_unit_test(members_of_another_type_are_left_out),
                cmocka_unit_test(lines_are_limited),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
