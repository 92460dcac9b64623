/* What a set of profile files lacks. */
#include <stdio.h>
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

static void add(SetCheck *c, SourceKind source, const char *path) {
        DumpName name;
        dump_name_parse(source, path_name(path), &name);
        assert_int_equal(set_check_add(c, path, &name, 1), 0);
}

static Reasons check(SourceKind source, const char *const *paths) {
        SetCheck *c = NULL;
        Reasons h = { .n = 0 };
        assert_int_equal(set_check_new(&c, source), 0);
        for (; *paths; paths++)
                add(c, source, *paths);
        assert_int_equal(set_check_finish(c, add_reason, &h), 0);
        set_check_free(c);
        return h;
}
#define CHECK(...) check(SOURCE_NEURON_PROFILE, (const char *const[]){ __VA_ARGS__, NULL })

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
        assert_string_equal(h.text[0], "ntff '12_*.ntff' has no neff_12.neff beside it");
}

static void a_neff_in_another_directory_is_not_beside_it(void **state) {
        Reasons h = CHECK("a/12_instid_0_vnc_0.ntff", "b/12_instid_0_vnc_0.ntff", "b/neff_12.neff");
        assert_int_equal(h.n, 1);
        assert_string_equal(h.text[0], "ntff 'a/12_*.ntff' has no neff_12.neff beside it");
}

static void the_order_of_members_does_not_matter(void **state) {
        assert_int_equal(CHECK("neff_12.neff", "12_instid_0_vnc_0.ntff").n, 0);
        assert_int_equal(CHECK("12_instid_0_vnc_0.ntff", "neff_12.neff").n, 0);
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

static void other_sources_have_no_sets(void **state) {
        static const char *const paths[] = { "12_instid_0_vnc_0.ntff", "ntrace.pb", NULL };
        assert_int_equal(check(SOURCE_DIRECTORY, paths).n, 0);
        assert_int_equal(check(SOURCE_NEURON_CORE_DUMP, paths).n, 0);
}

static void after_twenty_reasons_there_is_a_count(void **state) {
        SetCheck *c = NULL;
        Reasons h = { .n = 0 };
        assert_int_equal(set_check_new(&c, SOURCE_NEURON_PROFILE), 0);
        for (int i = 0; i < 1000; i++) { /* enough for the tables to grow */
                char path[64];
                (void)snprintf(path, sizeof path, "d%d/%d_instid_0_vnc_0.ntff", i % 10, i);
                add(c, SOURCE_NEURON_PROFILE, path);
        }
        for (int i = 25; i < 1000; i++) {
                char path[64];
                (void)snprintf(path, sizeof path, "d%d/neff_%d.neff", i % 10, i);
                add(c, SOURCE_NEURON_PROFILE, path);
        }
        assert_int_equal(set_check_finish(c, add_reason, &h), 0);
        set_check_free(c);
        assert_int_equal(h.n, 21);
        assert_string_equal(h.text[0], "ntff 'd0/0_*.ntff' has no neff_0.neff beside it");
        assert_string_equal(h.text[20], "and 5 more");
}

static void beyond_a_million_numbers_memory_stays_and_nothing_false_is_reported(void **state) {
        SetCheck *c = NULL;
        Reasons h = { .n = 0 };
        assert_int_equal(set_check_new(&c, SOURCE_NEURON_PROFILE), 0);
        DumpName name = { .kind = MEMBER_NTFF, .has_neff_number = true };
        for (uint64_t i = 0; i < 1000010; i++) {
                name.neff_number = i;
                assert_int_equal(set_check_add(c, "x.ntff", &name, 1), 0);
        }
        assert_int_equal(set_check_finish(c, add_reason, &h), 0);
        set_check_free(c);
        assert_int_equal(h.n, 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(model_mode_with_each_neff_beside_its_ntff_lacks_nothing),
                cmocka_unit_test(an_ntff_without_its_neff_is_reported_once_a_number),
                cmocka_unit_test(a_neff_in_another_directory_is_not_beside_it),
                cmocka_unit_test(the_order_of_members_does_not_matter),
                cmocka_unit_test(session_mode_needs_no_pairs),
                cmocka_unit_test(a_neff_of_session_mode_does_not_serve_a_model_mode_ntff),
                cmocka_unit_test(a_capture_without_a_neff_is_nothing_to_report),
                cmocka_unit_test(a_system_profile_names_which_files_it_lacks),
                cmocka_unit_test(a_directory_name_from_outside_is_escaped),
                cmocka_unit_test(other_sources_have_no_sets),
                cmocka_unit_test(after_twenty_reasons_there_is_a_count),
                cmocka_unit_test(
                        beyond_a_million_numbers_memory_stays_and_nothing_false_is_reported),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
