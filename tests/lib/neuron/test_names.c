/* File names of the runtime, the profiler and the hook. */
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/names.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

#define IID "i-0123456789abcdef0"

static void add(char **text, const char *what, int64_t number) {
        if (number >= 0)
                *text += sprintf(*text, " %s=%" PRId64, what, number);
}

/* Spells what was read, and leaves out what was not there. */
static void spell(const DumpName *n, char *text) {
        text += sprintf(text, "%s", member_kind_name(n->kind));
        if (n->instance_id[0] != '\0')
                text += sprintf(text, " id=%s", n->instance_id);
        add(&text, "nd", n->device);
        add(&text, "core", n->core);
        add(&text, "pid", n->pid);
        add(&text, "tid", n->tid);
        add(&text, "lid", n->lid);
        if (n->has_neff_number)
                (void)sprintf(text, " neff=%" PRIu64, n->neff_number);
}

static void check(const char *name, const char *expected) {
        char text[512];
        DumpName got;

        memset(&got, 0x55, sizeof got);
        dump_name_parse(SOURCE_NEURON_CORE_DUMP, name, &got);
        spell(&got, text);
        if (strcmp(text, expected) != 0)
                fail_msg("'%s' is read as '%s', not as '%s'", name, text, expected);
}

static void the_four_patterns_of_a_dump_are_read(void **state) {
        check(IID "-nd0-nc4-pid-39738-tid-39861-lid-1",
              "nc-state id=" IID " nd=0 core=4 pid=39738 tid=39861 lid=1");
        check(IID "-nd15-cc-core-2-pid-7-tid-8-lid-9",
              "cc-core-state id=" IID " nd=15 core=2 pid=7 tid=8 lid=9");
        check(IID "-nrt-pid-39738.log", "nrt-log id=" IID " pid=39738");
        check("nrt-" IID "-pid-39738.log", "nrt-log id=" IID " pid=39738");
        check("i-0abc1234-nd0-nc0-pid-1-tid-1-lid-1", /* the short ids of old instances */
              "nc-state id=i-0abc1234 nd=0 core=0 pid=1 tid=1 lid=1");
}

static void a_host_name_may_stand_for_the_instance(void **state) {
        check("compute1-dy-training-0-1-nd0-nc4-pid-5-tid-6-lid-7",
              "nc-state id=compute1-dy-training-0-1 nd=0 core=4 pid=5 tid=6 lid=7");
        check("ip-10-0-0-1.ec2.internal-nrt-pid-5.log",
              "nrt-log id=ip-10-0-0-1.ec2.internal pid=5");
        check("node-nd1-nd0-nc4-pid-5-tid-6-lid-7", /* the id ends as late as it must */
              "nc-state id=node-nd1 nd=0 core=4 pid=5 tid=6 lid=7");
}

static void the_hook_s_files_are_known(void **state) {
        check(IID "-neuron-dump-pid-5-tid-6-lid-7.json",
              "hook-record id=" IID " pid=5 tid=6 lid=7");
        check(IID "-neuron-dump-pid-5-tid-6-lid-7-snapshot.json",
              "snapshot id=" IID " pid=5 tid=6 lid=7");
}

static void profiles_are_known_and_numbered_in_model_mode(void **state) {
        check("8712349871234_instid_0_vnc_3.ntff", "ntff neff=8712349871234");
        check("neff_8712349871234.neff", "neff neff=8712349871234");
        check("18446744073709551615_instid_0_vnc_3.ntff", "ntff neff=18446744073709551615");
        check("18446744073709551616_instid_0_vnc_3.ntff", "ntff");
        check("profile_nc_3_session_0.ntff", "ntff"); /* session mode: no pairs */
        check("neff_8712349871234_vnc_3.neff", "neff");
        check("profile.ntff", "ntff");
        check("profile_rank_0.ntff", "ntff");
        check("profile_exec_2.ntff", "ntff");
        check("graph_1234.neff", "neff");
        check("file.neff", "neff");
}

static void system_traces_are_known_by_name(void **state) {
        static const char *const names[] = {
                "ntrace.pb",
                "trace_info.pb",
                "cpu_util.pb",
                "host_mem.pb",
                "trace.json",
                "system_profile.json",
                "system_profile.pftrace",
                "device_profile_model_3.pftrace",
                "neuron_framework_trace_rank_12.json",
        };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                check(names[i], "system-trace");
}

static void a_name_that_is_nearly_one_is_another(void **state) {
        static const char *const names[] = {
                "",
                ".",
                "..",
                "%",
                "%i-nrt-pid-%p.log",
                ".neff",
                ".ntff",
                "x.NTFF",
                "x.ntff.tmp",
                "Ntrace.pb",
                "ntrace.pb~",
                "trace.jsonl",
                "other.pb",
                "neuron_framework_trace_rank_.json",
                "-nrt-pid-.log",
                "core.1234",
                "\n",
                "\xff\xfe",
        };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                check(names[i], "other");
}

static void an_unknown_name_gives_the_ids_that_are_in_it(void **state) {
        check(IID "-nd0-nc4-pid-39738-tid-39861-lid-1.tmp", /* nc-state, but for its end */
              "other id=" IID " pid=39738 tid=39861 lid=1");
        check("new-thing-" IID "-pid-7.bin", "other id=" IID " pid=7");
        check("x_pid_7_tid_8", "other pid=7 tid=8");
        check("i-0abc1234", "other id=i-0abc1234");
        check("nrt-pid-12.log", "other pid=12");
        check("rapid-7", "other");
        check("pid-7x", "other");
        check("pid-", "other");
        check("multi-0abc1234", "other"); /* `i` ends a word */
        check("i-0abc12345", "other");    /* neither 8 digits nor 17 */
        check("i-0abc1234z", "other");
        check("i-0ABC1234", "other");
        check("pid-99999999999999999999-x", "other"); /* beyond 64 bits */
        check("pid-9223372036854775808", "other");
        check("pid-9223372036854775807", "other pid=9223372036854775807");
}

static void a_number_beyond_any_pid_makes_it_none_of_the_runtime_s_names(void **state) {
        check("host-nd0-nc4-pid-9223372036854775808-tid-1-lid-1", "other tid=1 lid=1");
        check("host-nd99999999999999999999-nc4-pid-1-tid-1-lid-1", "other pid=1 tid=1 lid=1");
}

static void the_longest_name_is_read(void **state) {
        char name[NAME_MAX + 1];
        DumpName got;

        memset(name, 'a', NAME_MAX);
        name[NAME_MAX] = '\0';
        check(name, "other");
        memcpy(name + NAME_MAX - strlen("-nrt-pid-5.log"), "-nrt-pid-5.log",
               strlen("-nrt-pid-5.log"));
        dump_name_parse(SOURCE_DIRECTORY, name, &got); /* 241 bytes are no instance id */
        assert_int_equal(got.kind, MEMBER_OTHER);
        assert_int_equal(got.pid, 5);
        assert_string_equal(got.instance_id, "");
}

static void every_file_of_a_process_core_source_is_a_core(void **state) {
        static const char *const names[] = { "core.1234", "core", IID "-nrt-pid-5.log", "x.neff",
                                             "" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                DumpName got;

                dump_name_parse(SOURCE_PROCESS_CORE, names[i], &got);
                assert_int_equal(got.kind, MEMBER_ELF_CORE);
        }
}

static void profile_directories_carry_instance_and_pid(void **state) {
        static const char *const bad[] = { "",          "_pid_5",     "x_pid_",
                                           "x_pid_5 ",  "x_pid_5_",   "x-pid-5",
                                           "x y_pid_5", "x_pid_5x",   "x_pid_9223372036854775808",
                                           "x_PID_5",   "x\xff_pid_5" };
        char id[INSTANCE_ID_SIZE];
        int64_t pid = -1;

        assert_true(profile_unit_name_parse(IID "_pid_39738", id, &pid));
        assert_string_equal(id, IID);
        assert_int_equal(pid, 39738);
        assert_true(profile_unit_name_parse("node_pid_1_pid_2", id, &pid));
        assert_string_equal(id, "node_pid_1");
        assert_int_equal(pid, 2);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (profile_unit_name_parse(bad[i], id, &pid))
                        fail_msg("'%s' is taken", bad[i]);
}

static void all_files_of_what_the_agent_makes_have_its_kind(void **state) {
        static const char *const names[] = { "crash.json", "snapshot.json", "ntrace.pb", "a.neff",
                                             IID "-nd0-nc0-pid-1-tid-2-lid-3" };
        DumpName got;

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                dump_name_parse(SOURCE_SNAPSHOT, names[i], &got);
                assert_int_equal(got.kind, MEMBER_SNAPSHOT);
                dump_name_parse(SOURCE_CRASH_REPORT, names[i], &got);
                assert_int_equal(got.kind, MEMBER_CRASH_REPORT);
                dump_name_parse(SOURCE_OOM, names[i], &got);
                assert_int_equal(got.kind, MEMBER_CRASH_REPORT);
        }
}

static void only_the_form_of_ec2_is_an_ec2_id(void **state) {
        static const char *const good[] = { "i-0abc1234", "i-0123456789abcdef0", "i-012345678" };
        static const char *const bad[] = { "",
                                           "i-",
                                           "i-0abc123",
                                           "i-0abc123g",
                                           "i-0ABC1234",
                                           "I-0abc1234",
                                           "i0abc1234",
                                           "i-0abc1234 ",
                                           " i-0abc1234",
                                           "mi-0abc1234",
                                           "i-0123456789abcdef01" };

        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                assert_true(instance_id_is_ec2(good[i]));
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (instance_id_is_ec2(bad[i]))
                        fail_msg("'%s' is taken", bad[i]);
}

/* The words are a contract with readers of manifests: docs/API.md. */
static void the_kinds_are_written_as_in_the_manifest(void **state) {
        static const char *const words[] = { "nc-state",    "cc-core-state", "nrt-log",  "neff",
                                             "ntff",        "system-trace",  "elf-core", "snapshot",
                                             "hook-record", "crash-report",  "other" };
        MemberKind k = MEMBER_NEFF;

        assert_int_equal(ELEMENTSOF(words), N_MEMBER_KINDS);
        for (size_t i = 0; i < ELEMENTSOF(words); i++) {
                assert_string_equal(member_kind_name((MemberKind)i), words[i]);
                assert_int_equal(member_kind_parse(words[i], &k), 0);
                assert_int_equal(k, i);
        }
        assert_int_equal(member_kind_parse("Other", &k), -EINVAL);
        assert_int_equal(member_kind_parse(NULL, &k), -EINVAL);
        assert_null(member_kind_name(N_MEMBER_KINDS));
}

static void a_bundle_s_files_are_its_id_and_a_suffix(void **state) {
        _cleanup_free_ char *object = bundle_object_name(
                                    "a/i-1/directory-20260527T052100-0000000000a1"),
                            *manifest = bundle_manifest_name("x");

        assert_string_equal(object, "a/i-1/directory-20260527T052100-0000000000a1.tar.zst");
        assert_string_equal(manifest, "x.manifest.json");
}

static void a_key_names_which_of_the_two_files_it_is(void **state) {
        static const struct {
                const char *key;
                BundleFile file;
                size_t n_stem;
        } cases[] = {
                { "a/b.tar.zst", BUNDLE_OBJECT, 3 },
                { "b.tar.zst", BUNDLE_OBJECT, 1 },
                { "a/b.manifest.json", BUNDLE_MANIFEST, 3 },
                { "b.tar.zst.manifest.json", BUNDLE_MANIFEST, 9 },
                { ".tar.zst", BUNDLE_NEITHER, 8 },
                { "a/.tar.zst", BUNDLE_NEITHER, 10 },
                { "a/.manifest.json", BUNDLE_NEITHER, 16 },
                { "a/b.TAR.ZST", BUNDLE_NEITHER, 11 },
                { "a/b.tar.zst/", BUNDLE_NEITHER, 12 },
                { "a/b.tar.zst.1", BUNDLE_NEITHER, 13 },
                { "a/btar.zst", BUNDLE_NEITHER, 10 },
                { "", BUNDLE_NEITHER, 0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                size_t n = 99;
                BundleFile file = bundle_file_kind(cases[i].key, &n);

                if (file != cases[i].file || n != cases[i].n_stem)
                        fail_msg("'%s': %d, %zu", cases[i].key, (int)file, n);
                assert_int_equal(bundle_file_kind(cases[i].key, NULL), cases[i].file);
        }
}

static void only_a_bundle_s_key_below_the_instance_is_the_instance_s(void **state) {
#define ID "directory-20260527T051233-0123456789ab"
        static const char *const own[] = { "neuron/x/" IID "/" ID ".tar.zst",
                                           "neuron/" IID "/" ID ".manifest.json",
                                           IID "/" ID ".tar.zst", "/" IID "/" ID ".tar.zst" };
        static const char *const others[] = { "neuron/" ID ".tar.zst",
                                              "neuron/x-" IID "/" ID ".tar.zst",
                                              "neuron/" IID "0/" ID ".tar.zst",
                                              "neuron/" IID "/sub/" ID ".tar.zst",
                                              "0123/" ID ".tar.zst",
                                              "/" ID ".tar.zst" };
        static const char *const neither[] = {
                "backups/postgres.tar.zst", "neuron/" IID "/b.tar.zst",
                "neuron/" IID "/b",         "neuron/" IID "/.tar.zst",
                "neuron/" IID ".tar.zst/",  IID,
                "" ID ".tar.zst",           ""
        };

        for (size_t i = 0; i < ELEMENTSOF(own); i++)
                if (!bundle_key_belongs_to(own[i], IID) || !bundle_key_belongs_to(own[i], NULL))
                        fail_msg("'%s' is not taken", own[i]);
        for (size_t i = 0; i < ELEMENTSOF(others); i++)
                if (bundle_key_belongs_to(others[i], IID) ||
                    !bundle_key_belongs_to(others[i], NULL))
                        fail_msg("'%s' is taken, or nobody's", others[i]);
        for (size_t i = 0; i < ELEMENTSOF(neither); i++)
                if (bundle_key_belongs_to(neither[i], IID) ||
                    bundle_key_belongs_to(neither[i], NULL))
                        fail_msg("'%s' is taken", neither[i]);
}

static void the_probe_lies_below_what_all_keys_begin_with(void **state) {
        static const char *const cases[][2] = {
                { "neuron", "neuron/" }, { "/neuron/a", "neuron/a/" }, { "", "" }, { "/", "" }
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *prefix = s3_key_prefix(cases[i][0]);
                assert_string_equal(prefix, cases[i][1]);
        }
        _cleanup_free_ char *key = s3_probe_key("neuron/", IID), *bare = s3_probe_key("", "node");
        assert_string_equal(key, "neuron/.neuron-collectd-probe-" IID);
        assert_string_equal(bare, ".neuron-collectd-probe-node");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_four_patterns_of_a_dump_are_read),
                cmocka_unit_test(a_host_name_may_stand_for_the_instance),
                cmocka_unit_test(the_hook_s_files_are_known),
                cmocka_unit_test(profiles_are_known_and_numbered_in_model_mode),
                cmocka_unit_test(system_traces_are_known_by_name),
                cmocka_unit_test(a_name_that_is_nearly_one_is_another),
                cmocka_unit_test(an_unknown_name_gives_the_ids_that_are_in_it),
                cmocka_unit_test(a_number_beyond_any_pid_makes_it_none_of_the_runtime_s_names),
                cmocka_unit_test(the_longest_name_is_read),
                cmocka_unit_test(every_file_of_a_process_core_source_is_a_core),
                cmocka_unit_test(profile_directories_carry_instance_and_pid),
                cmocka_unit_test(all_files_of_what_the_agent_makes_have_its_kind),
                cmocka_unit_test(only_the_form_of_ec2_is_an_ec2_id),
                cmocka_unit_test(the_kinds_are_written_as_in_the_manifest),
                cmocka_unit_test(a_bundle_s_files_are_its_id_and_a_suffix),
                cmocka_unit_test(a_key_names_which_of_the_two_files_it_is),
                cmocka_unit_test(only_a_bundle_s_key_below_the_instance_is_the_instance_s),
                cmocka_unit_test(the_probe_lies_below_what_all_keys_begin_with),
        };

        return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
