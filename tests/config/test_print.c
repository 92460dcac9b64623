/* What --print-config writes is the same configuration again. */
#include "tests/config/config_test.h"

static void fail_on_key(const char *key, bool needs_restart, void *userdata) {
        (void)needs_restart;
        (void)userdata;
        fail_msg("%s differs", key);
}

/* Cuts the comment off each line; what is printed has no other ` # ` outside of quotes. */
static char *without_comments(const char *text) {
        char *out = strdup(text), *to = out;
        bool in_quotes = false, in_comment = false;

        assert_non_null(out);
        for (const char *p = text; *p; p++) {
                if (*p == '\n')
                        in_comment = false;
                else if (!in_comment && *p == '\\' && in_quotes)
                        *to++ = *p++;
                else if (!in_comment && *p == '"')
                        in_quotes = !in_quotes;
                else if (!in_comment && !in_quotes && strncmp(p, " # ", 3) == 0)
                        in_comment = true;
                if (!in_comment)
                        *to++ = *p;
        }
        *to = '\0';
        return out;
}

static void expect_round_trip(const Config *c) {
        _cleanup_free_ char *first = config_test_print(c), *second = NULL, *plain_first = NULL,
                            *plain_second = NULL;
        _cleanup_(config_freep) Config *again = NULL;
        _cleanup_(diag_done) Diags diags = { 0 };
        int r = config_parse(&again, "printed.yaml", first, strlen(first), NULL,
                             &diags); /* no environment: nothing is expanded */

        if (r != 0) {
                _cleanup_free_ char *faults = config_test_faults(&diags);
                fail_msg("%s\n%s", faults, first);
        }
        config_compare(c, again, fail_on_key, NULL);
        config_compare(again, c, fail_on_key, NULL);
        second = config_test_print(again);
        plain_first = without_comments(first);
        plain_second = without_comments(second);
        assert_string_equal(plain_first, plain_second);
}

static Config *parse(const char *text) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;
        int r = config_test_parse(&c, text, &diags);

        faults = config_test_faults(&diags);
        if (r != 0)
                fail_msg("%s", faults);
        return c;
}

static void the_five_lines_are_read_back_the_same(void **state) {
        _cleanup_(config_freep) Config *c = NULL;

        assert_int_equal(config_defaults(&c), 0);
        expect_round_trip(c);
}

static void every_good_golden_file_is_read_back_the_same(void **state) {
        static const char *const names[] = { "minimal", "full" };
        const char *srcdir = getenv("srcdir");

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                _cleanup_free_ char *path = NULL;
                _cleanup_(config_freep) Config *c = NULL;
                _cleanup_(diag_done) Diags diags = { 0 };
                assert_true(asprintf(&path, "%s/tests/golden/config/%s.yaml", srcdir ? srcdir : ".",
                                     names[i]) > 0);
                assert_int_equal(config_load(&c, path, config_test_environment, &diags), 0);
                expect_round_trip(c);
        }
}

static void nasty_strings_survive(void **state) {
        _cleanup_(config_freep) Config *c =
                parse("node:\n"
                      "  labels:\n"
                      "    \"a # b: \\\"c\\\"\": \"$${X} \\x01 \\n \\u2028 \"\n"
                      "    \"true\": |\n"
                      "      many\n"
                      "      lines # : -\n"
                      "    '${': $$${\n"
                      "sources: [{name: 'off', kind: directory, path: \"/s #%%/ü/{\", exclude: [' "
                      "x ', \"\\\\\"]}]\n"
                      "destinations: [{name: \"1.5\", type: volume, path: '/d: e'}]\n");

        assert_string_equal(c->node.labels.items[3], "many\nlines # : -\n");
        assert_string_equal(c->node.labels.items[5], "$${");
        expect_round_trip(c);
}

static void each_line_reports_where_its_value_comes_from(void **state) {
        _cleanup_(config_freep) Config *c =
                parse("sources: [{name: s, kind: neuron-core-dump, path: /s}]\n"
                      "destinations:\n"
                      "- name: d\n"
                      "  type: volume\n"
                      "  path: /d\n"
                      "log:\n"
                      "  level: debug\n");
        _cleanup_free_ char *printed = config_test_print(c);

        assert_non_null(strstr(
                printed, "\n    path: /d/%d-%c # neuron-collectd.yaml:5, with /%d-%c appended\n"));
        assert_non_null(strstr(printed, "\n  - name: d # neuron-collectd.yaml:3\n"));
        assert_non_null(strstr(
                printed, "\n  level: debug # neuron-collectd.yaml:7\n  format: auto # default\n"));
        assert_non_null(strstr(printed, "\n    scan_interval: 60s # default\n"));
        assert_null(strstr(printed, "bucket")); /* keys of s3 do not apply */
        for (const char *line = printed; *line; line = strchr(line, '\n') + 1) {
                const char *end = strchr(line, '\n'), *comment = strstr(line, " # ");
                assert_non_null(end);
                assert_true(comment && comment < end);
        }
}

static void a_file_name_cannot_break_the_output(void **state) {
        static const char text[] = "sources: [{name: s, kind: directory, path: /s}]\n"
                                   "destinations: [{name: d, type: volume, path: /d}]\n";
        _cleanup_(config_freep) Config *c = NULL;
        _cleanup_(diag_done) Diags diags = { 0 };

        assert_int_equal(config_parse(&c, "a\nversion: 7\n\xff#", text, strlen(text), NULL, &diags),
                         0);
        expect_round_trip(c);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_five_lines_are_read_back_the_same),
                cmocka_unit_test(every_good_golden_file_is_read_back_the_same),
                cmocka_unit_test(nasty_strings_survive),
                cmocka_unit_test(each_line_reports_where_its_value_comes_from),
                cmocka_unit_test(a_file_name_cannot_break_the_output),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
