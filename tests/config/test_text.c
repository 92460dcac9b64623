/* Quoting: what is written must be read back by libyaml as the same text, on one line. */
#include "tests/config/config_test.h"

#include "config/faults.h"

static char *yaml_of(const char *s) {
        StrBuf b = STRBUF_INIT;
        text_add_yaml(&b, s, true);
        return strbuf_detach(&b);
}

static void plain_words_and_paths_stay_plain(void **state) {
        static const char *const words[] = { "a",        "prod-a",    "/fsx/neuron/%d-%c",
                                             "NEURON_*", "us-east-1", "a@b+c=d",
                                             "_x" };

        for (size_t i = 0; i < ELEMENTSOF(words); i++) {
                _cleanup_free_ char *yaml = yaml_of(words[i]);
                assert_string_equal(yaml, words[i]);
        }
}

static void what_yaml_would_accept_for_something_else_is_quoted(void **state) {
        static const char *const words[] = { "true", "False", "YES",  "no",  "on",   "Off", "y",
                                             "N",    "null",  "Null", "~",   "",     "1",   "1.5",
                                             "0x1f", "08:00", ".5",   "+1",  "-",    "-x",  "*.tmp",
                                             "&a",   "!b",    "%d",   "@x",  "`x",   "{a}", "[a]",
                                             "a,b",  "a: b",  "a:",   "# x", "a #b", "?",   "|",
                                             ">",    "'a'",   " a",   "a ",  "<<",   "=" };

        for (size_t i = 0; i < ELEMENTSOF(words); i++) {
                _cleanup_free_ char *yaml = yaml_of(words[i]), *expected = NULL;
                assert_true(asprintf(&expected, "\"%s\"", words[i]) > 0);
                assert_string_equal(yaml, expected);
        }
}

static void control_characters_and_quotes_are_escaped(void **state) {
        static const char *const pairs[][2] = {
                { "a\nb", "\"a\\nb\"" },
                { "\t", "\"\\t\"" },
                { "\x01\x1f\x7f", "\"\\x01\\x1F\\x7F\"" },
                { "say \"x\"", "\"say \\\"x\\\"\"" },
                { "c:\\d", "\"c:\\\\d\"" },
                { "\xc2\x85\u00a0", "\"\\x85\\xA0\"" },
                { "\u2028\u2029\ufeff\uffff", "\"\\u2028\\u2029\\uFEFF\\uFFFF\"" },
                { "grün 🚀", "\"grün 🚀\"" },
        };

        for (size_t i = 0; i < ELEMENTSOF(pairs); i++) {
                _cleanup_free_ char *yaml = yaml_of(pairs[i][0]);
                assert_string_equal(yaml, pairs[i][1]);
        }
}

static void a_dollar_before_a_brace_is_doubled(void **state) {
        static const char *const pairs[][2] = {
                { "${A}", "\"$${A}\"" }, { "$${A}", "\"$$${A}\"" }, { "$A", "\"$A\"" },
                { "a${", "\"a$${\"" },   { "$", "\"$\"" },
        };

        for (size_t i = 0; i < ELEMENTSOF(pairs); i++) {
                _cleanup_free_ char *yaml = yaml_of(pairs[i][0]);
                assert_string_equal(yaml, pairs[i][1]);
        }
}

static void a_name_is_not_expanded_so_its_dollar_stays(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        text_add_yaml(&b, "${A}", false);
        assert_string_equal(b.text, "\"${A}\"");
}

/* A label takes any text, so it shows whether the loader reads what was written. */
static void every_nasty_text_is_read_back_the_same(void **state) {
        static const char *const texts[] = {
                "",         " ",       "a\nb\n", "\r\n",   "${A}", "$${A}", "$$${",  "\x01\x7f",
                "'",        "\"",      "\\",     "\\n",    "- a",  "a: b",  "a # b", "#",
                "\xc2\x85", "\u2028x", "\ufeff", "\uffff", "😀",    "\t\t",  "yes",   "012",
                "%",        "@",       "`",      "{",      "}",    "[",     "]",     ",",
                "? a",      "---",     "...",    "<<"
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                _cleanup_(config_freep) Config *c = NULL;
                _cleanup_(diag_done) Diags diags = { 0 };
                _cleanup_free_ char *yaml = yaml_of(texts[i]), *text = NULL;
                assert_null(strchr(yaml, '\n'));
                assert_true(asprintf(&text,
                                     "node: {labels: {a: %s, b: last}} # end\n"
                                     "sources: [{name: s, kind: directory, path: /s}]\n"
                                     "destinations: [{name: d, type: volume, path: /d}]\n",
                                     yaml) > 0);
                assert_int_equal(config_test_parse(&c, text, &diags), 0);
                assert_int_equal(c->node.labels.n, 2);
                assert_string_equal(c->node.labels.items[1], texts[i]);
                assert_string_equal(c->node.labels.items[3], "last");
        }
}

static void a_shown_value_is_short_and_on_one_line(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        char text[200];

        memset(text, 'x', sizeof text);
        text[sizeof text - 1] = '\0';
        text[1] = '\n';
        text_add_shown(&b, text);
        assert_null(strchr(b.text, '\n'));
        assert_non_null(strstr(b.text, "x\\x0a") ? strstr(b.text, "x\\x0a")
                                                 : strstr(b.text, "x\\x0A"));
        assert_true(b.n < 100);
        strbuf_clear(&b);
        text_add_shown(&b, "short");
        assert_string_equal(b.text, "'short'");
}

static void who_logs_in_with_what_is_not_shown(void **state) {
        static const char *const pairs[][2] = {
                { "http://me:secret@proxy:3128", "'http://…@proxy:3128'" },
                { "http://secret@proxy", "'http://…@proxy'" },
                { "https://me:sec@ret@store:9000/x", "'https://…@store:9000/x'" },
                { "http://me:sec/r#et@proxy", "'http://…@proxy'" },
                { "me:secret@127.0.0.1:9733", "'…@127.0.0.1:9733'" },
                { "sec ret://me:secret@proxy", "'…@proxy'" },
                { "://secret@proxy", "'…@proxy'" },
                { "http://me:secret@", "'http://…@'" },
                { "@proxy", "'…@proxy'" },
                { "/a:b@c/../d", "'/a:b@c/../d'" },
                { "http://proxy:3128/x", "'http://proxy:3128/x'" },
        };
        char text[400];

        for (size_t i = 0; i < ELEMENTSOF(pairs); i++) {
                _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
                text_add_shown(&b, pairs[i][0]);
                assert_string_equal(b.text, pairs[i][1]);
        }
        (void)snprintf(text, sizeof text, "http://me:secret%0200d@proxy", 0);
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        text_add_shown(&b, text);
        assert_string_equal(b.text,
                            "'http://…@proxy'"); /* also where it would be cut before the @ */
}

static void utf8_is_reported_from_other_bytes(void **state) {
        assert_true(text_is_utf8(""));
        assert_true(text_is_utf8("grün 🚀"));
        assert_false(text_is_utf8("gr\xfcn"));
        assert_false(text_is_utf8("\xed\xa0\x80"));
        assert_false(text_is_utf8("\xc0\xaf"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(plain_words_and_paths_stay_plain),
                cmocka_unit_test(what_yaml_would_accept_for_something_else_is_quoted),
                cmocka_unit_test(control_characters_and_quotes_are_escaped),
                cmocka_unit_test(a_dollar_before_a_brace_is_doubled),
                cmocka_unit_test(a_name_is_not_expanded_so_its_dollar_stays),
                cmocka_unit_test(every_nasty_text_is_read_back_the_same),
                cmocka_unit_test(a_shown_value_is_short_and_on_one_line),
                cmocka_unit_test(who_logs_in_with_what_is_not_shown),
                cmocka_unit_test(utf8_is_reported_from_other_bytes),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
