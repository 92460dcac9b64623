/* The runtime's flags, in each form that they may have. */
#include "hook/args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/cleanup.h"

static int parse(HookNote *n, const char *const *words) {
        char *argv[ARGS_MAX + 100] = { (char *)"neuron-dump" };
        int argc = 1;
        for (; *words; words++)
                argv[argc++] = (char *)*words;
        return args_parse(argc, argv, n);
}

#define PARSE(n, ...) parse(n, (const char *const[]){ __VA_ARGS__, NULL })

static void every_documented_flag_is_known(void **state) {
        (void)state;
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(PARSE(&n, "--s3-output-prefix", "s3://b/k", "--neff-name", "file.neff",
                               "--neff-uuid", "u", "--date-time", "20260527-051233", "--pid", "17",
                               "--tid", "18", "--log-id", "1", "--instance-id", "i-0",
                               "--cluster-id", "c", "--error-location", "nrt_execute",
                               "--error-code", "1200", "--local-output-dir", "/tmp/x"),
                         0);
        assert_string_equal(n.neff_name, "file.neff");
        assert_string_equal(n.neff_uuid, "u");
        assert_string_equal(n.date_time, "20260527-051233");
        assert_string_equal(n.pid, "17");
        assert_string_equal(n.tid, "18");
        assert_string_equal(n.log_id, "1");
        assert_string_equal(n.instance_id, "i-0");
        assert_string_equal(n.cluster_id, "c");
        assert_string_equal(n.error_location, "nrt_execute");
        assert_string_equal(n.error_code, "1200");
        assert_string_equal(n.local_output_dir, "/tmp/x");
        assert_string_equal(n.s3_output_prefix, "s3://b/k");
        assert_int_equal(n.n_extra, 0);
}

static void values_may_follow_an_equals_sign(void **state) {
        (void)state;
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(PARSE(&n, "--pid=17", "--neff-name=a=b", "--neff-uuid=", "--tid", ""), 0);
        assert_string_equal(n.pid, "17");
        assert_string_equal(n.neff_name, "a=b");
        assert_string_equal(n.neff_uuid, "");
        assert_string_equal(n.tid, "");
}

static void a_missing_value_is_told_and_swallows_nothing(void **state) {
        (void)state;
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(PARSE(&n, "--neff-name", "--neff-uuid", "--pid", "-1", "--error-code"), 0);
        assert_null(n.neff_name);
        assert_null(n.neff_uuid);
        assert_null(n.error_code);
        assert_string_equal(n.pid, "-1");
        assert_int_equal(n.n_extra, 3);
        assert_string_equal(n.extra[0].name, "--neff-name");
        assert_null(n.extra[0].value);
        assert_string_equal(n.extra[2].name, "--error-code");
}

static void what_is_not_known_is_kept(void **state) {
        (void)state;
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(PARSE(&n, "--new", "7", "--newer=8", "--pid", "17", "word", "--", "-x",
                               "--pidx", "9"),
                         0);
        static const char *const want[][2] = { { "--new", "7" }, { "--newer", "8" },
                                               { "word", NULL }, { "--", NULL },
                                               { "-x", NULL },   { "--pidx", "9" } };
        assert_int_equal(n.n_extra, ELEMENTSOF(want));
        for (size_t i = 0; i < ELEMENTSOF(want); i++) {
                assert_string_equal(n.extra[i].name, want[i][0]);
                if (want[i][1])
                        assert_string_equal(n.extra[i].value, want[i][1]);
                else
                        assert_null(n.extra[i].value);
        }
        assert_string_equal(n.pid, "17");
}

static void the_last_of_two_counts(void **state) {
        (void)state;
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(PARSE(&n, "--pid", "1", "--pid=2", "--pid"), 0);
        assert_string_equal(n.pid, "2");
}

static void only_what_is_no_usage_at_all_is_refused(void **state) {
        (void)state;
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(parse(&n, (const char *const[]){ NULL }), ARGS_E_USAGE);
        assert_int_equal(args_parse(0, NULL, &n), ARGS_E_USAGE);
        static const char *const bad[] = { "word", "", "-p", "--" };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(PARSE(&n, bad[i], "--pid", "1"), ARGS_E_USAGE);
        assert_int_equal(PARSE(&n, "--help"), ARGS_E_HELP);
        assert_int_equal(PARSE(&n, "--version"), ARGS_E_VERSION);
        assert_int_equal(PARSE(&n, "--help", "--pid"), 0);
}

static void counts_and_lengths_are_bounded(void **state) {
        (void)state;
        enum { N = ARGS_MAX + 50 };
        const char *words[N + 1];
        static char longest[100001];
        memset(longest, 'x', sizeof longest - 1);
        longest[0] = longest[1] = '-';
        for (size_t i = 0; i < N; i++)
                words[i] = i % 2 ? "v" : longest;
        words[N] = NULL;
        words[N - 2] = "--pid"; /* beyond what is looked at */
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(parse(&n, words), 0);
        assert_int_equal(n.n_extra, NOTE_EXTRA_MAX + 1);
        assert_in_range(strlen(n.extra[0].name), 1, 200);
        assert_null(n.pid);
        _cleanup_(hook_note_done) HookNote m = { 0 };
        assert_int_equal(PARSE(&m, "--neff-name", longest + 2), 0);
        assert_int_equal(strlen(m.neff_name), NOTE_VALUE_MAX + 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_documented_flag_is_known),
                cmocka_unit_test(values_may_follow_an_equals_sign),
                cmocka_unit_test(a_missing_value_is_told_and_swallows_nothing),
                cmocka_unit_test(what_is_not_known_is_kept),
                cmocka_unit_test(the_last_of_two_counts),
                cmocka_unit_test(only_what_is_no_usage_at_all_is_refused),
                cmocka_unit_test(counts_and_lengths_are_bounded),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
