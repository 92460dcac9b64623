/* What a set of profile files lacks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/path.h"
#include "lib/bundle/validate.h"

typedef struct Reasons {
        char text[32][256];
        size_t n;
} Reasons;

static void add_reason(const char *reason, void *userdata) {
        Reasons *h = userdata;
        assert_true(h->n < 32);
        (void)snprintf(h->text[h->n++], sizeof h->text[0], "%s", reason);
}

static int compare_texts(const void *a, const void *b) {
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static Reasons check(const char *const *paths) {
        _cleanup_(plan_freep) Plan *plan = NULL;
        _cleanup_fclose_ FILE *f = tmpfile();
        const char *sorted[2000];
        Reasons h = { .n = 0 };
        size_t n = 0;

        for (; paths[n]; n++)
                sorted[n] = paths[n];
        qsort(sorted, n, sizeof *sorted, compare_texts);
        assert_int_equal(plan_new(&plan), 0);
        for (size_t i = 0; i < n; i++) {
                DumpName name;
                dump_name_parse(SOURCE_NEURON_PROFILE, path_name(sorted[i]), &name);
                assert_int_equal(plan_add(plan, sorted[i], name.kind, fileno(f)), 0);
        }
        assert_int_equal(validate_set(plan, add_reason, &h), 0);
        return h;
}
#define CHECK(...) check((const char *const[]){ __VA_ARGS__, NULL })

static void model_mode_with_each_neff_beside_its_ntff_lacks_nothing(void **state) {
        Reasons h = CHECK("12_instid_0_vnc_0.ntff", "12_instid_0_vnc_1.ntff",
                          "7_instid_0_vnc_0.ntff", "cpu_util.pb", "host_mem.pb", "neff_12.neff",
                          "neff_7.neff", "ntrace.pb", "trace_info.pb");
        assert_int_equal(h.n, 0);
}

static void an_ntff_without_its_neff_is_reported_once_a_number(void **state) {
        Reasons h = CHECK("12_instid_0_vnc_0.ntff", "12_instid_0_vnc_1.ntff",
                          "7_instid_0_vnc_0.ntff", "neff_7.neff");
        assert_int_equal(h.n, 1);
        assert_string_equal(h.text[0], "ntff '12_*.ntff' has no matching neff_12.neff");
}

static void a_neff_in_another_directory_is_not_beside_it(void **state) {
        Reasons h = CHECK("a/12_instid_0_vnc_0.ntff", "b/12_instid_0_vnc_0.ntff", "b/neff_12.neff");
        assert_int_equal(h.n, 1);
        assert_string_equal(h.text[0], "ntff 'a/12_*.ntff' has no matching neff_12.neff");
}

static void session_mode_needs_no_pairs(void **state) {
        Reasons h = CHECK("1/profile_nc_0_session_0.ntff", "1/profile_nc_1_session_0.ntff",
                          "1/neff_5_vnc_0.neff");
        assert_int_equal(h.n, 0);
}

static void a_neff_of_session_mode_does_not_serve_a_model_mode_ntff(void **state) {
        assert_int_equal(CHECK("5_instid_0_vnc_0.ntff", "neff_5_vnc_0.neff").n, 1);
}

static void a_capture_without_a_neff_is_nothing_to_report(void **state) {
        assert_int_equal(CHECK("profile.ntff", "profile_rank_3.ntff", "profile_exec_2.ntff").n, 0);
}

static void a_system_profile_names_which_files_it_lacks(void **state) {
        Reasons h = CHECK("ntrace.pb", "t/cpu_util.pb", "t/host_mem.pb", "t/ntrace.pb");
        assert_int_equal(h.n, 2);
        assert_string_equal(h.text[0],
                            "system profile has no trace_info.pb, cpu_util.pb, host_mem.pb");
        assert_string_equal(h.text[1], "system profile in 't' has no trace_info.pb");
}

static void a_directory_name_from_outside_is_escaped(void **state) {
        Reasons h = CHECK("a\n\xff/ntrace.pb");
        assert_int_equal(h.n, 1);
        assert_non_null(strstr(h.text[0], "'a\\x0a\\xff'"));
}

static void after_twenty_reasons_there_is_a_count(void **state) {
        static char text[1975][64];
        const char *paths[1976] = { NULL };
        size_t n = 0;

        for (int i = 0; i < 1000; i++)
                (void)snprintf(text[n++], sizeof text[0], "d%d/%d_instid_0_vnc_0.ntff", i % 10, i);
        for (int i = 25; i < 1000; i++)
                (void)snprintf(text[n++], sizeof text[0], "d%d/neff_%d.neff", i % 10, i);
        for (size_t i = 0; i < n; i++)
                paths[i] = text[i];
        Reasons h = check(paths);
        assert_int_equal(h.n, 21);
        assert_string_equal(h.text[0], "ntff 'd0/0_*.ntff' has no matching neff_0.neff");
        assert_string_equal(h.text[20], "and 5 more");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(model_mode_with_each_neff_beside_its_ntff_lacks_nothing),
                cmocka_unit_test(an_ntff_without_its_neff_is_reported_once_a_number),
                cmocka_unit_test(a_neff_in_another_directory_is_not_beside_it),
                cmocka_unit_test(session_mode_needs_no_pairs),
                cmocka_unit_test(a_neff_of_session_mode_does_not_serve_a_model_mode_ntff),
                cmocka_unit_test(a_capture_without_a_neff_is_nothing_to_report),
                cmocka_unit_test(a_system_profile_names_which_files_it_lacks),
                cmocka_unit_test(a_directory_name_from_outside_is_escaped),
                cmocka_unit_test(after_twenty_reasons_there_is_a_count),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
