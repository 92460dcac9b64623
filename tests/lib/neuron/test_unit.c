/* The rules: which unit a path belongs to, and whose a name is. */
#include "lib/neuron/unit.h"

#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

#define US "i-0123456789abcdef0"
#define OTHER "i-0fedcba9876543210"

typedef enum Want { NONE, DIR_UNIT, LOOSE, FILE_UNIT } Want;

typedef struct Case {
        SourceKind kind;
        size_t template_depth;
        const char *relative;
        bool is_dir;
        int ntff_depth;
        Want want;
        const char *unit; /* its path */
} Case;

static void check(const Case *c) {
        const UnitQuery q = {
                .kind = c->kind,
                .template_depth = c->template_depth,
                .relative = c->relative,
                .is_dir = c->is_dir,
                .ntff_depth = c->ntff_depth,
        };
        UnitMatch a = { .depth = 99 };
        size_t n;

        if (!unit_match(&q, &a)) {
                if (c->want != NONE)
                        fail_msg("'%s' belongs to no unit", c->relative);
                return;
        }
        if (c->want == NONE)
                fail_msg("'%s' belongs to a unit", c->relative);
        assert_int_equal(a.loose, c->want == LOOSE);
        assert_int_equal(a.is_file, c->want == FILE_UNIT);
        n = unit_path_prefix(c->relative, a.depth);
        if (n != strlen(c->unit) || memcmp(c->relative, c->unit, n) != 0)
                fail_msg("'%s' belongs to '%.*s'", c->relative, (int)n, c->relative);
}

static void dumps_and_directories_are_cut_at_the_template_s_depth(void **state) {
        static const Case cases[] = {
                /* No variables: the fixed part is the one unit. */
                { 0, 0, "", true, -1, DIR_UNIT, "" },
                { 0, 0, "a", true, -1, DIR_UNIT, "" },
                { 0, 0, "a", false, -1, DIR_UNIT, "" },
                { 0, 0, "a/b/c", false, -1, DIR_UNIT, "" },
                /* One component that varies. */
                { 0, 1, "", true, -1, NONE, NULL },
                { 0, 1, "dt-1", true, -1, DIR_UNIT, "dt-1" },
                { 0, 1, "any name\n\xff", true, -1, DIR_UNIT, "any name\n\xff" },
                { 0, 1, "dt-1/x", true, -1, DIR_UNIT, "dt-1" },
                { 0, 1, "dt-1/x", false, -1, DIR_UNIT, "dt-1" },
                { 0, 1, "dt-1/x/y/z", false, -1, DIR_UNIT, "dt-1" },
                { 0, 1, "stray", false, -1, LOOSE, "" },
                /* Three of them. */
                { 0, 3, "", true, -1, NONE, NULL },
                { 0, 3, "a", true, -1, NONE, NULL },
                { 0, 3, "a/b", true, -1, NONE, NULL },
                { 0, 3, "a/b/c", true, -1, DIR_UNIT, "a/b/c" },
                { 0, 3, "a/b/c/d/e", false, -1, DIR_UNIT, "a/b/c" },
                { 0, 3, "x", false, -1, LOOSE, "" },
                { 0, 3, "a/x", false, -1, LOOSE, "a" },
                { 0, 3, "a/b/x", false, -1, LOOSE, "a/b" },
                { 0, 3, "a/b/c/x", false, -1, DIR_UNIT, "a/b/c" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Case c = cases[i];

                c.kind = SOURCE_NEURON_CORE_DUMP;
                check(&c);
                c.kind = SOURCE_DIRECTORY;
                check(&c);
        }
}

static void each_file_of_a_process_core_source_is_a_unit(void **state) {
        static const Case cases[] = {
                { SOURCE_PROCESS_CORE, 0, "core.1", false, -1, FILE_UNIT, "core.1" },
                { SOURCE_PROCESS_CORE, 0, "a/b/core.1", false, -1, FILE_UNIT, "a/b/core.1" },
                { SOURCE_PROCESS_CORE, 2, "core.1", false, -1, FILE_UNIT, "core.1" },
                { SOURCE_PROCESS_CORE, 0, "", true, -1, NONE, NULL },
                { SOURCE_PROCESS_CORE, 1, "a", true, -1, NONE, NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                check(&cases[i]);
}

static void profiles_go_by_pid_directory_then_by_ntff(void **state) {
        static const Case cases[] = {
                { SOURCE_NEURON_PROFILE, 0, "", true, -1, NONE, NULL },
                { SOURCE_NEURON_PROFILE, 0, "readme", false, -1, NONE, NULL },
                { SOURCE_NEURON_PROFILE, 0, "a/b", true, -1, NONE, NULL },
                { SOURCE_NEURON_PROFILE, 0, "", true, 0, DIR_UNIT, "" },
                { SOURCE_NEURON_PROFILE, 0, "profile.ntff", false, 0, DIR_UNIT, "" },
                { SOURCE_NEURON_PROFILE, 0, "a/profile.ntff", false, 1, DIR_UNIT, "a" },
                { SOURCE_NEURON_PROFILE, 0, "a/sub/x", false, 1, DIR_UNIT, "a" },
                { SOURCE_NEURON_PROFILE, 0, "a/sub/deep", true, 1, DIR_UNIT,
                  "a" }, /* an ntff further down counts no more */
                { SOURCE_NEURON_PROFILE, 0, US "_pid_3", true, -1, DIR_UNIT, US "_pid_3" },
                { SOURCE_NEURON_PROFILE, 0, US "_pid_3", true, 1, DIR_UNIT, US "_pid_3" },
                { SOURCE_NEURON_PROFILE, 0, "out/" US "_pid_3/20260527/x.ntff", false, 3, DIR_UNIT,
                  "out/" US "_pid_3" },
                { SOURCE_NEURON_PROFILE, 0, US "_pid_3/" US "_pid_4/x", false, -1, DIR_UNIT,
                  US "_pid_3" },
                { SOURCE_NEURON_PROFILE, 0, "a/" US "_pid_3/x", false, 1, DIR_UNIT,
                  "a/" US "_pid_3" }, /* out of the unit a */
                { SOURCE_NEURON_PROFILE, 0, US "_pid_3", false, -1, NONE,
                  NULL }, /* a file of that name is no directory */
                { SOURCE_NEURON_PROFILE, 0, US "_pid_3", false, 0, DIR_UNIT, "" },
                { SOURCE_NEURON_PROFILE, 0, "a/" US "_pid_3", false, -1, NONE, NULL },
                { SOURCE_NEURON_PROFILE, 2, "a/b/c/" US "_pid_3/x", false, -1, DIR_UNIT,
                  "a/b/c/" US "_pid_3" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                check(&cases[i]);
}

static void a_profile_found_by_ntff_ends_at_pid_directories(void **state) {
        assert_true(unit_ends_at(SOURCE_NEURON_PROFILE, "", US "_pid_3"));
        assert_true(unit_ends_at(SOURCE_NEURON_PROFILE, "a/b", US "_pid_3"));
        assert_false(unit_ends_at(SOURCE_NEURON_PROFILE, "a/b", "neffs"));
        assert_false(unit_ends_at(SOURCE_NEURON_PROFILE, US "_pid_3", US "_pid_4"));
        assert_false(unit_ends_at(SOURCE_NEURON_PROFILE, US "_pid_3/x", US "_pid_4"));
        assert_false(unit_ends_at(SOURCE_NEURON_CORE_DUMP, "a", US "_pid_3"));
        assert_false(unit_ends_at(SOURCE_DIRECTORY, "", US "_pid_3"));
}

static void paths_are_counted_and_cut_by_components(void **state) {
        assert_int_equal(unit_path_depth(""), 0);
        assert_int_equal(unit_path_depth("a"), 1);
        assert_int_equal(unit_path_depth("a/b/c"), 3);
        assert_int_equal(unit_path_prefix("", 0), 0);
        assert_int_equal(unit_path_prefix("", 2), 0);
        assert_int_equal(unit_path_prefix("ab/cd/e", 0), 0);
        assert_int_equal(unit_path_prefix("ab/cd/e", 1), 2);
        assert_int_equal(unit_path_prefix("ab/cd/e", 2), 5);
        assert_int_equal(unit_path_prefix("ab/cd/e", 3), 7);
        assert_int_equal(unit_path_prefix("ab/cd/e", 4), 7);
}

static void paths_that_lead_elsewhere_are_not_clean(void **state) {
        static const char *const good[] = { "", "a", "a/b", "...", "a/..b", ".a", "a/b..", "..\n" };
        static const char *const bad[] = { "/",   "/a",   "a/",  "a//b", ".",      "..",
                                           "a/.", "a/..", "./a", "../a", "a/../b", "a/./b" };

        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                assert_true(unit_path_is_clean(good[i]));
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (unit_path_is_clean(bad[i]))
                        fail_msg("'%s' is taken", bad[i]);
}

static void the_owner_is_who_the_table_states(void **state) {
        static const struct {
                const char *ours, *found;
                UnitOwner local, network;
        } cases[] = {
                { US, US, UNIT_OWNER_US, UNIT_OWNER_US },
                { US, "", UNIT_OWNER_UNNAMED, UNIT_OWNER_UNNAMED },
                { US, OTHER, UNIT_OWNER_FOREIGN, UNIT_OWNER_FOREIGN },
                { US, "i-0abc1234", UNIT_OWNER_FOREIGN, UNIT_OWNER_FOREIGN },
                { US, "trace", UNIT_OWNER_UNNAMED, UNIT_OWNER_UNNAMED },
                { US, "i-xyz", UNIT_OWNER_UNNAMED, UNIT_OWNER_UNNAMED },
                { "node-1", "node-1", UNIT_OWNER_US, UNIT_OWNER_US },
                { "node-1", "", UNIT_OWNER_UNNAMED, UNIT_OWNER_UNNAMED },
                { "node-1", "node-2", UNIT_OWNER_UNNAMED, UNIT_OWNER_FOREIGN },
                { "node-1", "node-11", UNIT_OWNER_UNNAMED, UNIT_OWNER_FOREIGN },
                { "node-1", OTHER, UNIT_OWNER_UNNAMED, UNIT_OWNER_FOREIGN },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                assert_int_equal(unit_owner(cases[i].ours, cases[i].found, false), cases[i].local);
                assert_int_equal(unit_owner(cases[i].ours, cases[i].found, true), cases[i].network);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(dumps_and_directories_are_cut_at_the_template_s_depth),
                cmocka_unit_test(each_file_of_a_process_core_source_is_a_unit),
                cmocka_unit_test(profiles_go_by_pid_directory_then_by_ntff),
                cmocka_unit_test(a_profile_found_by_ntff_ends_at_pid_directories),
                cmocka_unit_test(paths_are_counted_and_cut_by_components),
                cmocka_unit_test(paths_that_lead_elsewhere_are_not_clean),
                cmocka_unit_test(the_owner_is_who_the_table_states),
        };

        return cmocka_run_group_tests_name("unit", tests, NULL, NULL);
}
