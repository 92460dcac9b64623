/* What the hook adds to the flags; above all names that are safe and that lib/neuron/names.c knows
 * again. */
#include "hook/note.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/neuron/names.h"

#define ENV(...) ((char *const[]){ __VA_ARGS__, NULL })

static char *copy(const char *s) {
        char *c = strdup(s);
        assert_non_null(c);
        return c;
}

static void names_are_those_that_the_agent_knows(void **state) {
        _cleanup_(hook_note_done) HookNote n = { .local_output_dir = copy("/tmp/x"),
                                                 .instance_id = copy("i-0123456789abcdef0"),
                                                 .pid = copy("17"),
                                                 .tid = copy("18"),
                                                 .log_id = copy("2") };
        DumpName name;
        assert_int_equal(note_add_identity(&n, ENV("RANK=1")), 0);
        assert_string_equal(n.record_name,
                            "i-0123456789abcdef0-neuron-dump-pid-17-tid-18-lid-2.json");
        dump_name_parse(SOURCE_NEURON_CORE_DUMP, n.record_name, &name);
        assert_int_equal(name.kind, MEMBER_HOOK_RECORD);
        assert_int_equal(name.pid, 17);
        assert_int_equal(name.lid, 2);
        dump_name_parse(SOURCE_NEURON_CORE_DUMP, n.snapshot_name, &name);
        assert_int_equal(name.kind, MEMBER_SNAPSHOT);
        assert_string_equal(name.instance_id, "i-0123456789abcdef0");
}

static void flags_cannot_lead_a_name_elsewhere(void **state) {
        char longest[5000];
        memset(longest, '/', sizeof longest - 1);
        longest[sizeof longest - 1] = '\0';
        static const char *const bad[] = { "../../etc/passwd", ".hidden", "a b\n\x1b[2J", "\xff",
                                           "" };
        for (size_t i = 0; i <= ELEMENTSOF(bad); i++) {
                const char *s = i < ELEMENTSOF(bad) ? bad[i] : longest;
                _cleanup_(hook_note_done) HookNote n = { .local_output_dir = copy("/tmp/x"),
                                                         .instance_id = copy(s),
                                                         .pid = copy(s),
                                                         .tid = copy(s),
                                                         .log_id = copy(s) };
                assert_int_equal(note_add_identity(&n, ENV("A=b")), 0);
                assert_true(n.record_name[0] != '.' && n.record_name[0] != '\0');
                assert_true(strlen(n.snapshot_name) <= NAME_MAX);
                assert_int_equal(
                        strspn(n.snapshot_name,
                               "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"),
                        strlen(n.snapshot_name));
        }
}

static void without_ids_the_parent_gives_its_own(void **state) {
        char want[100];
        _cleanup_(hook_note_done) HookNote n = { .local_output_dir = copy("/tmp/x") };
        assert_int_equal(note_add_identity(&n, ENV("A=b")), 0);
        (void)snprintf(want, sizeof want, "unknown-neuron-dump-pid-%d-tid-%d-lid-0.json", getppid(),
                       getppid());
        assert_string_equal(n.record_name, want);
}

static void without_a_directory_no_file_is_promised(void **state) {
        _cleanup_(hook_note_done) HookNote n = { .local_output_dir = copy("") }, m = { 0 };
        assert_int_equal(note_add_identity(&n, ENV("A=b")), 0);
        assert_null(n.record_name);
        assert_null(n.local_output_dir);
        assert_int_equal(note_add_identity(&m, ENV("A=b")), 0);
        assert_null(m.snapshot_name);
}

static void a_relative_directory_becomes_absolute(void **state) {
        char cwd[PATH_MAX], want[PATH_MAX + 10];
        _cleanup_(hook_note_done) HookNote n = { .local_output_dir = copy("a/b") };
        assert_non_null(getcwd(cwd, sizeof cwd));
        (void)snprintf(want, sizeof want, "%s/a/b", cwd);
        assert_int_equal(note_add_identity(&n, ENV("A=b")), 0);
        assert_string_equal(n.local_output_dir, want);
}

static void it_reports_who_it_is(void **state) {
        _cleanup_(hook_note_done) HookNote n = { .error_code = copy("nrt_timeout") }, m = { 0 };
        assert_int_equal(note_add_identity(&n, ENV("RANK=3", "LOCAL_RANK=1", "HOME=/x",
                                                   "HF_TOKEN=s", "MASTER_ADDR=a")),
                         0);
        assert_int_equal(note_add_identity(&m, ENV("A=b")), 0);
        assert_int_equal(strlen(n.id), 32);
        assert_string_not_equal(n.id, m.id);
        assert_int_equal(n.hook_pid, getpid());
        assert_true(n.pid_namespace > 0 && n.mount_namespace > 0 && n.written_usec > 0);
        assert_int_equal(n.error_number, 5);
        assert_string_equal(n.job.source, "torchrun");
        assert_string_equal(n.environment[0], "RANK=3");
        assert_string_equal(n.environment[2], "MASTER_ADDR=a");
        assert_null(n.environment[3]);
}

static void dumps_are_off_only_when_both_are_set_and_empty(void **state) {
        assert_true(note_dumps_are_off(
                ENV("NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY=", "NEURON_RT_S3_CORE_DUMP_PREFIX=")));
        assert_false(note_dumps_are_off(ENV("NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY=")));
        assert_false(note_dumps_are_off(ENV("NEURON_RT_S3_CORE_DUMP_PREFIX=")));
        assert_false(note_dumps_are_off(
                ENV("NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY=/x", "NEURON_RT_S3_CORE_DUMP_PREFIX=")));
        assert_false(note_dumps_are_off(ENV("A=b")));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(names_are_those_that_the_agent_knows),
                cmocka_unit_test(flags_cannot_lead_a_name_elsewhere),
                cmocka_unit_test(without_ids_the_parent_gives_its_own),
                cmocka_unit_test(without_a_directory_no_file_is_promised),
                cmocka_unit_test(a_relative_directory_becomes_absolute),
                cmocka_unit_test(it_reports_who_it_is),
                cmocka_unit_test(dumps_are_off_only_when_both_are_set_and_empty),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
