/* The runtime's flags, in each form that they may have. */
#include "hook/note.h"

#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

enum { WORDS_MAX = 64 };

static int parse(HookNote *n, const char *const *words) {
        char *argv[WORDS_MAX + 1] = { (char *)"neuron-dump" };
        int argc = 1;
        size_t n_left_out;
        for (; *words; words++)
                argv[argc++] = (char *)*words;
        return note_parse_args(argc, argv, n, &n_left_out);
}

#define PARSE(n, ...) parse(n, (const char *const[]){ __VA_ARGS__, NULL })

static void every_documented_flag_is_known(void **state) {
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
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(PARSE(&n, "--pid=17", "--neff-name=a=b", "--neff-uuid=", "--tid", ""), 0);
        assert_string_equal(n.pid, "17");
        assert_string_equal(n.neff_name, "a=b");
        assert_string_equal(n.neff_uuid, "");
        assert_string_equal(n.tid, "");
}

static void a_missing_value_is_reported_and_swallows_nothing(void **state) {
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
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(PARSE(&n, "--pid", "1", "--pid=2", "--pid"), 0);
        assert_string_equal(n.pid, "2");
}

static void only_what_is_no_usage_at_all_is_refused(void **state) {
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(parse(&n, (const char *const[]){ NULL }), NOTE_ARGS_USAGE);
        size_t n_left_out;
        assert_int_equal(note_parse_args(0, NULL, &n, &n_left_out), NOTE_ARGS_USAGE);
        static const char *const bad[] = { "word", "", "-p", "--" };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(PARSE(&n, bad[i], "--pid", "1"), NOTE_ARGS_USAGE);
        assert_int_equal(PARSE(&n, "--help"), NOTE_ARGS_HELP);
        assert_int_equal(PARSE(&n, "--version"), NOTE_ARGS_VERSION);
        assert_int_equal(PARSE(&n, "--help", "--pid"), 0);
}

static void counts_and_lengths_are_bounded(void **state) {
        enum { N_PAIRS = 5000 };
        static char *argv[1 + 2 * N_PAIRS], longest[100001];
        size_t n_left_out = 0;
        memset(longest, 'x', sizeof longest - 1);
        longest[0] = longest[1] = '-';
        for (size_t i = 1; i < ELEMENTSOF(argv); i++)
                argv[i] = i % 2 ? longest : (char *)"v";
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(note_parse_args(ELEMENTSOF(argv), argv, &n, &n_left_out), 0);
        assert_int_equal(n.n_extra, NOTE_EXTRA_MAX + 1);
        assert_int_equal(n_left_out, N_PAIRS - NOTE_EXTRA_MAX);
        assert_in_range(strlen(n.extra[0].name), 1, 200);
        _cleanup_(hook_note_done) HookNote m = { 0 };
        assert_int_equal(PARSE(&m, "--neff-name", longest + 2), 0);
        assert_int_equal(strlen(m.neff_name), NOTE_VALUE_MAX + 1);
}

static void a_known_flag_is_found_behind_any_number_of_others(void **state) {
        enum { N_PAIRS = 5000 };
        static char *argv[1 + 2 * N_PAIRS + 2];
        size_t n_left_out = 0;
        for (size_t i = 1; i < ELEMENTSOF(argv); i++)
                argv[i] = (char *)(i % 2 ? "--new" : "v");
        argv[1 + 2 * N_PAIRS] = (char *)"--local-output-dir";
        argv[2 + 2 * N_PAIRS] = (char *)"/tmp/x";
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(note_parse_args(ELEMENTSOF(argv), argv, &n, &n_left_out), 0);
        assert_non_null(n.local_output_dir);
        assert_string_equal(n.local_output_dir, "/tmp/x");
        assert_int_equal(n_left_out, N_PAIRS - NOTE_EXTRA_MAX);
}

static void of_as_many_as_a_note_shows_none_is_left_out(void **state) {
        static char *argv[1 + NOTE_EXTRA_MAX];
        size_t n_left_out = 1;
        for (size_t i = 1; i < ELEMENTSOF(argv); i++)
                argv[i] = (char *)"--new";
        _cleanup_(hook_note_done) HookNote n = { 0 };
        assert_int_equal(note_parse_args(ELEMENTSOF(argv), argv, &n, &n_left_out), 0);
        assert_int_equal(n.n_extra, NOTE_EXTRA_MAX);
        assert_int_equal(n_left_out, 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_documented_flag_is_known),
                cmocka_unit_test(values_may_follow_an_equals_sign),
                cmocka_unit_test(a_missing_value_is_reported_and_swallows_nothing),
                cmocka_unit_test(what_is_not_known_is_kept),
                cmocka_unit_test(the_last_of_two_counts),
                cmocka_unit_test(only_what_is_no_usage_at_all_is_refused),
                cmocka_unit_test(counts_and_lengths_are_bounded),
                cmocka_unit_test(a_known_flag_is_found_behind_any_number_of_others),
                cmocka_unit_test(of_as_many_as_a_note_shows_none_is_left_out),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
