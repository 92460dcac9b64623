/* Units of a source: which there are, whose they are, what is known of each. */
#include "lib/neuron/scan.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>

#include "lib/base/cleanup.h"
#include "lib/neuron/ids.h"
#include "tests/harness/skip.h"
#include "tests/lib/neuron/scan_fixture.h"

#define DT "dt-20260527-051233-cid-d99e36ea74c263ca"

static void note_left_out(const ScanMember *m, void *userdata) {
        Fixture *f = userdata;

        strbuf_addf(&f->lines, "%s '%s'\n", scan_skip_name(m->skip), m->path);
}

static void a_directory_of_that_name_or_with_a_file_of_the_runtime_is_a_dump(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "dt-%d-cid-%c");
        fixture_files(f, DT "/" US "-nd0-nc4-pid-7-tid-8-lid-9", DT "/" US "-nrt-pid-7.log",
                      DT "/sub/deep/unknown", "any other name/x",
                      "any other name/" US "-nrt-pid-8.log", "strange/x", "strange/deep/dump/y",
                      "strange/deep/dump/" US "-nd0-nc4-pid-9-tid-8-lid-9/z", "empty/",
                      "empty2/sub/");
        check_scan(f, "'any other name' files=2 own pid=8\n"
                      "'" DT "' files=3 own pid=7\n"
                      "'strange/deep/dump' files=2\n");
        f->source.on_left_out = note_left_out;
        (void)fixture_scan(f);
        assert_non_null(strstr(f->lines.text, "no-dump 'strange/x'\n"));
        assert_null(strstr(f->lines.text, "any other name/x"));
}

static bool is_strange(const char *relative, void *userdata) {
        (void)userdata;
        return strcmp(relative, "strange") == 0;
}

static void a_dump_ends_where_another_one_begins(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%d");
        fixture_files(f, "strange/x", "strange/y/z", "strange/inner/" US "-nrt-pid-8.log",
                      "strange/inner/x", "20260527-051233/inner/" US "-nrt-pid-8.log");
        f->source.is_unit = is_strange;
        check_scan(f, "'20260527-051233' files=1 own pid=8\n"
                      "'strange' files=2\n"
                      "'strange/inner' files=2 own pid=8\n");
        fixture_files(f, "strange/" US "-nrt-pid-9.log");
        f->source.is_unit = NULL;
        check_scan(f, "'20260527-051233' files=1 own pid=8\n"
                      "'strange' files=3 own pid=9\n"
                      "'strange/inner' files=2 own pid=8\n");
}

static void a_loose_file_is_a_dump_by_its_name_alone(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%d/%p");
        fixture_files(f, "x", US "-nrt-pid-8.log", "20260527-051233/" US "-nrt-pid-9.log",
                      "20260527-051233/y", "any/z");
        check_scan(f, "'' files=1 loose own pid=8\n"
                      "'20260527-051233' files=1 loose own pid=9\n");
}

static void a_name_says_whether_a_unit_is_evidence(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%d-%c");
        const PathTemplate *t = f->source.template;
        assert_true(unit_is_evidence_by_name(SOURCE_NEURON_CORE_DUMP, t, "20260527-051233-00aa"));
        assert_false(unit_is_evidence_by_name(SOURCE_NEURON_CORE_DUMP, t, "20260527-051233"));
        assert_false(unit_is_evidence_by_name(SOURCE_DIRECTORY, t, "mine"));
        assert_false(unit_is_evidence_by_name(SOURCE_DIRECTORY, t, ""));
        assert_true(unit_is_evidence_by_name(SOURCE_PROCESS_CORE, t, "a/20260527-051233-00aa"));
        assert_false(unit_is_evidence_by_name(SOURCE_PROCESS_CORE, t, "a/core"));
        assert_true(unit_is_evidence_by_name(SOURCE_NEURON_PROFILE, t, "a/" US "_pid_7"));
        assert_false(unit_is_evidence_by_name(SOURCE_NEURON_PROFILE, t, "a"));
        fixture_source(f, SOURCE_PROCESS_CORE, "");
        t = f->source.template;
        assert_true(unit_is_evidence_by_name(SOURCE_PROCESS_CORE, t, "a/core"));
        assert_true(unit_is_evidence_by_name(SOURCE_NEURON_CORE_DUMP, t, ""));
        assert_true(member_is_evidence_by_name(US "-nrt-pid-8.log"));
        assert_true(member_is_evidence_by_name("x.ntff"));
        assert_false(member_is_evidence_by_name("krb5cc_1000"));
}

static int keep_unit(ScanUnit *u, void *userdata) {
        *(ScanUnit *)userdata = *u;
        *u = (ScanUnit){ 0 };
        return 0;
}

static void a_name_that_matches_gives_values_and_another_gives_none(void **state) {
        Fixture *f = *state;
        ScanUnit u;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "dt-%d-cid-%c");
        fixture_files(f, DT "/x", DT "/" US "-nrt-pid-7.log");
        assert_int_equal(scan_source(&f->source, keep_unit, &u), 0);
        assert_string_equal(u.values.date_time, "20260527-051233");
        assert_string_equal(u.values.cluster_id, "d99e36ea74c263ca");
        scan_unit_done(&u);

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%d-%c");
        assert_int_equal(scan_source(&f->source, keep_unit, &u), 0);
        assert_string_equal(u.relative, DT);
        assert_string_equal(u.values.date_time, "");
        assert_string_equal(u.values.cluster_id, "");
        scan_unit_done(&u);
}

/* The kernel stamps with the coarse clock, which is behind, or since 6.13 with the fine one
 * (multigrain timestamps). */
static uint64_t now_usec(clockid_t clock) {
        struct timespec t;
        assert_int_equal(clock_gettime(clock, &t), 0);
        return (uint64_t)t.tv_sec * USEC_PER_SEC + (uint64_t)t.tv_nsec / 1000;
}

static void a_directory_knows_when_it_was_made(void **state) {
        Fixture *f = *state;
        ScanUnit u;

        fixture_source(f, SOURCE_DIRECTORY, "%p");
        uint64_t before = now_usec(CLOCK_REALTIME_COARSE);
        fixture_files(f, "7/x");
        uint64_t after = now_usec(CLOCK_REALTIME);
        assert_int_equal(scan_source(&f->source, keep_unit, &u), 0);
        uint64_t born = u.born_usec;
        scan_unit_done(&u);
        if (born == 0)
                SKIP_BECAUSE("this file system does not say when a directory was made");
        assert_in_range(born, before, after);
}

static void files_above_that_depth_are_loose_units_of_their_directories(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_DIRECTORY, "%p/%t");
        fixture_files(f, "a", "b", "1/c", "1/2/d", "1/2/3/e", "2/f");
        check_scan(f, "'' files=2 loose\n"
                      "'1' files=1 loose\n"
                      "'1/2' files=2 pid=1\n"
                      "'2' files=1 loose\n");
}

static void without_variables_the_fixed_part_is_the_one_unit(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_DIRECTORY, "");
        fixture_files(f, "a", "b/c", "b/d/e");
        check_scan(f, "'' files=3\n");
}

static void each_process_core_is_a_unit(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_PROCESS_CORE, "");
        fixture_files(f, "core.1", "sub/core.2", "sub/sub/core.3");
        check_scan(f, "'core.1' files=1 file\n"
                      "'sub/core.2' files=1 file\n"
                      "'sub/sub/core.3' files=1 file\n");
        fixture_source(f, SOURCE_PROCESS_CORE, "core.%p");
        check_scan(f, "'core.1' files=1 file pid=1\n"
                      "'sub/core.2' files=1 file\n"
                      "'sub/sub/core.3' files=1 file\n");
}

static void profiles_are_found_at_any_depth(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_PROFILE, "");
        fixture_files(f, "readme", "run1/notes", "run1/profile.ntff", "run1/sub/graph.neff",
                      "run1/sub/more/x.ntff", "run1/" US "_pid_5/1_instid_0_vnc_0.ntff",
                      "out/" US "_pid_6/20260527/profile_nc_0_session_0.ntff",
                      "out/" US "_pid_6/ntrace.pb", "out/" US "_pid_6/" US "_pid_7/x",
                      "out/neffs/graph_1.neff");
        check_scan(f, "'out' files=1\n"
                      "'out/" US "_pid_6' files=3 own pid=6\n"
                      "'run1' files=4\n"
                      "'run1/" US "_pid_5' files=1 own pid=5\n");
}

static void the_fixed_part_itself_may_hold_the_profile(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_PROFILE, "");
        fixture_files(f, "profile.ntff", "a.neff", "sub/b.neff", US "_pid_5/ntrace.pb");
        check_scan(f, "'' files=3\n"
                      "'" US "_pid_5' files=1 own pid=5\n");
        /* Neither a directory nor a symlink of that name is one; and case counts. */
        fixture_files(f, "x/dir.ntff/file", "y/PROFILE.NTFF");
        assert_int_equal(unlinkat(f->scratch->fd, "src/profile.ntff", 0), 0);
        assert_int_equal(symlinkat("a.neff", f->scratch->fd, "src/link.ntff"), 0);
        check_scan(f, "'' files=4 symlink=1(link.ntff)\n"
                      "'" US "_pid_5' files=1 own pid=5\n");
        assert_int_equal(unlinkat(f->scratch->fd, "src/" US "_pid_5/ntrace.pb", 0), 0);
        assert_int_equal(unlinkat(f->scratch->fd, "src/" US "_pid_5", AT_REMOVEDIR), 0);
        check_scan(f, "");
}

static void what_is_in_no_unit_is_reported(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_PROFILE, "");
        fixture_files(f, "run/x.ntff", "run/y", "run/sub/z", "plugins/profile/1/x.pb", "a/notes");
        assert_int_equal(unlinkat(f->scratch->fd, "src/a/notes", 0), 0);
        f->source.on_left_out = note_left_out;
        (void)fixture_scan(f);
        assert_string_equal(f->lines.text, "'' files=4\n");
        fixture_files(f, "a/notes");
        assert_int_equal(unlinkat(f->scratch->fd, "src/plugins/profile/1/x.pb", 0), 0);
        assert_int_equal(unlinkat(f->scratch->fd, "src/plugins/profile/1", AT_REMOVEDIR), 0);
        assert_int_equal(unlinkat(f->scratch->fd, "src/plugins/profile", AT_REMOVEDIR), 0);
        (void)fixture_scan(f);
        assert_string_equal(f->lines.text, "'run' files=3\nno-profile 'a/notes'\n");
        fixture_source(f, SOURCE_PROCESS_CORE, "");
        f->source.max_bytes = 1;
        f->source.on_left_out = note_left_out;
        (void)fixture_scan(f);
        assert_non_null(strstr(f->lines.text, "too-big 'a/notes'\n"));
}

static void our_own_directory_is_never_entered(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "dt-%d-cid-%c");
        fixture_files(f, ".neuron-collectd/" US "/id/x", DT "/.neuron-collectd/y",
                      DT "/a/.neuron-collectd/z", DT "/a/b", DT "/.neuron-collectd2",
                      DT "/.hidden");
        check_scan(f, "'" DT "' files=3 reserved-name=2(.neuron-collectd)\n");
        fixture_source(f, SOURCE_PROCESS_CORE, "");
        check_scan(f, "'" DT "/.hidden' files=1 file\n"
                      "'" DT "/.neuron-collectd2' files=1 file\n"
                      "'" DT "/a/b' files=1 file\n");
}

static void symlinks_are_never_followed(void **state) {
        Fixture *f = *state;

        fixture_files(f, "real/x", "real/" US "-nrt-pid-7.log");
        assert_int_equal(symlinkat("/etc", f->scratch->fd, "src/unit"), 0);
        assert_int_equal(symlinkat("/etc/passwd", f->scratch->fd, "src/file"), 0);
        assert_int_equal(symlinkat("/etc", f->scratch->fd, "src/real/dir"), 0);
        assert_int_equal(symlinkat("..", f->scratch->fd, "src/real/loop"), 0);
        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "dt-%d-cid-%c");
        check_scan(f, "'real' files=2 own pid=7 symlink=2(dir)\n");
        fixture_source(f, SOURCE_PROCESS_CORE, "");
        f->source.exclude = (const char *const[]){ "*.log", NULL };
        check_scan(f, "'real/x' files=1 file\n");
        fixture_source(f, SOURCE_NEURON_PROFILE, "");
        check_scan(f, "");
}

/* Files of ours, of another instance, of a host name, and of nobody. */
static void make_mixed_dump(Fixture *f) {
        fixture_files(f, DT "/" US "-nrt-pid-1.log", DT "/" OTHER "-nrt-pid-2.log",
                      DT "/node-7-nrt-pid-3.log", DT "/unnamed", DT "/" OTHER "_pid_4/x",
                      DT "/" OTHER "_pid_4/y");
}

static void another_instance_s_files_are_ignored(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "dt-%d-cid-%c");
        make_mixed_dump(f);
        check_scan(f, "'" DT "' files=3 own pid=1 foreign=2(" OTHER "-nrt-pid-2.log)\n");
        fake_network = true;
        check_scan(f, "'" DT "' files=3 own network pid=1 foreign=2(" OTHER "-nrt-pid-2.log)\n");
}

static void a_node_known_by_its_host_name_collects_all_that_is_local(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "dt-%d-cid-%c");
        make_mixed_dump(f);
        f->source.instance_id = "node-7";
        check_scan(f, "'" DT "' files=6 own pid=1\n");
        fake_network = true;
        check_scan(f, "'" DT "' files=2 own network pid=3 foreign=3(" US "-nrt-pid-1.log)\n");
        f->source.instance_id = "node-8";
        check_scan(f, "'" DT "' files=1 network foreign=4(" US "-nrt-pid-1.log)\n");
}

static void a_path_that_names_another_instance_is_ignored(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_DIRECTORY, "%i/%d");
        fixture_files(f, US "/20260527-051233/a", OTHER "/20260527-051233/b", OTHER "/odd/c",
                      US "/odd/d", "node-7/20260527-051233/e", "node-7/odd/f", OTHER "/loose",
                      US "/loose", "logs/odd/g", "logs/20260527-051233/h");
        check_scan(f, "'" US "' files=1 loose own\n"
                      "'" US "/20260527-051233' files=1 own\n"
                      "'" US "/odd' files=1 own\n"
                      "'logs/20260527-051233' files=1\n"
                      "'logs/odd' files=1\n"
                      "'node-7/20260527-051233' files=1\n"
                      "'node-7/odd' files=1\n");
        fake_network = true;
        f->source.instance_id = "node-7";
        /* `logs` could be a host's name only where the rest of the template fits as well. */
        check_scan(f, "'logs/odd' files=1 network\n"
                      "'node-7/20260527-051233' files=1 own network\n"
                      "'node-7/odd' files=1 own network\n");
}

static void another_instance_s_profiles_are_ignored(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_PROFILE, "");
        fixture_files(f, "o/" US "_pid_1/x.ntff", "o/" OTHER "_pid_2/x.ntff",
                      "o/trace_pid_3/x.ntff");
        check_scan(f, "'o/" US "_pid_1' files=1 own pid=1\n"
                      "'o/trace_pid_3' files=1 pid=3\n");
}

static void what_a_unit_is_known_by_is_added_up_right(void **state) {
        Fixture *f = *state;
        static const char *const names[] = { "b", "a.b",
                                             "a/x" }; /* first: a.b, which is before a/ */
        static const int64_t sec[] = { 1779858753, 1758138283, 1779858700 };
        struct stat st[3];
        uint64_t digest = 0;
        ScanUnit u;

        fixture_source(f, SOURCE_DIRECTORY, "");
        for (size_t i = 0; i < 3; i++) {
                struct timespec t[2] = { { 1, 2 }, { sec[i], 123456789 } };
                char path[FIXTURE_PATH_SIZE];

                fixture_make(f, names[i], 100 * (i + 1));
                (void)fixture_path(f, names[i], path);
                assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
                assert_int_equal(stat(path, &st[i]), 0);
                digest += member_fingerprint(names[i], &st[i]);
        }
        assert_int_equal(scan_source(&f->source, keep_unit, &u), 0);
        assert_int_equal(u.n_files, 3);
        assert_int_equal(u.bytes, 600);
        assert_int_equal(u.first.st_ino, st[1].st_ino);
        assert_int_equal(u.oldest_mtime_usec, UINT64_C(1758138283123456));
        assert_true(u.digest == digest);
        assert_true(u.pid == -1);
        /* All three were made just now: ctime tells, whatever mtime claims. */
        for (size_t i = 0; i < 3; i++)
                assert_true(u.newest_change_nsec >=
                            st[i].st_ctim.tv_sec * (int64_t)NSEC_PER_SEC + st[i].st_ctim.tv_nsec);
        scan_unit_done(&u);
}

static void times_before_1970_and_after_all_are_bounded(void **state) {
        Fixture *f = *state;
        struct timespec t[2] = { { 0, 0 }, { -100, 5 } };
        char path[FIXTURE_PATH_SIZE];
        ScanUnit u;

        fixture_source(f, SOURCE_DIRECTORY, "");
        fixture_files(f, "x");
        (void)fixture_path(f, "x", path);
        assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
        assert_int_equal(scan_source(&f->source, keep_unit, &u), 0);
        assert_int_equal(u.oldest_mtime_usec, 0);
        scan_unit_done(&u);
        t[1].tv_sec = INT64_MAX; /* the file system takes what it can hold, tmpfs all of it */
        assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
        assert_int_equal(scan_source(&f->source, keep_unit, &u), 0);
        assert_true(u.newest_change_nsec > 0);
        scan_unit_done(&u);
}

static void a_missing_fixed_part_is_reported(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_DIRECTORY, "");
        assert_int_equal(rmdir(f->root), 0);
        assert_int_equal(scan_source(&f->source, fixture_on_unit, f), -ENOENT);
        assert_int_equal(scratch_write(f->scratch, "src", "a file"), 0);
        assert_int_equal(scan_source(&f->source, fixture_on_unit, f), -ENOTDIR);
        assert_int_equal(f->n_units, 0);
}

static void a_link_of_ours_or_root_s_on_the_way_is_followed(void **state) {
        Fixture *f = *state;
        char text[FIXTURE_PATH_SIZE];

        fixture_files(f, "a/x");
        assert_int_equal(symlinkat("src/../src", f->scratch->fd, "link"), 0);
        assert_int_equal(symlinkat(f->scratch->path, f->scratch->fd, "up"), 0);
        (void)snprintf(f->root, sizeof f->root, "%s/up/link", f->scratch->path);
        fixture_source(f, SOURCE_DIRECTORY, "");
        check_scan(f, "'' files=1\n");
        assert_int_equal(symlinkat("loop", f->scratch->fd, "loop"), 0);
        (void)snprintf(text, sizeof text, "%s/loop", f->scratch->path);
        assert_int_equal(scan_open_fixed(text), -ELOOP);
}

static void a_foreign_link_on_the_way_is_refused(void **state) {
        Fixture *f = *state;
        char text[FIXTURE_PATH_SIZE];

        if (geteuid() != 0)
                SKIP_BECAUSE("not possible on this machine or as this user");
        assert_int_equal(symlinkat("/etc", f->scratch->fd, "link"), 0);
        assert_int_equal(fchownat(f->scratch->fd, "link", 65534, 65534, AT_SYMLINK_NOFOLLOW), 0);
        (void)snprintf(text, sizeof text, "%s/link", f->scratch->path);
        assert_int_equal(scan_open_fixed(text), -ELOOP);
        (void)snprintf(text, sizeof text, "%s/link/ssl", f->scratch->path);
        assert_int_equal(scan_open_fixed(text), -ELOOP);
}

static void the_callback_can_end_the_scan(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_DIRECTORY, "%p");
        fixture_files(f, "1/a", "2/a", "3/a");
        f->unit_error = -ECANCELED;
        assert_int_equal(scan_source(&f->source, fixture_on_unit, f), -ECANCELED);
        assert_int_equal(f->n_units, 1);
}

static void a_file_s_own_name_is_no_directory_of_another(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_PROCESS_CORE, "");
        fixture_files(f, "job_pid_3", "node-8_pid_3/core.1", "node-7_pid_3/core.1");
        fake_network = true;
        f->source.instance_id = "node-7";
        check_scan(f, "'job_pid_3' files=1 file network pid=3\n"
                      "'node-7_pid_3/core.1' files=1 file own network\n");
}

static void note_unreadable(const char *relative, void *userdata) {
        Fixture *f = userdata;

        strbuf_addf(&f->lines, "unreadable '%s'\n", relative);
}

static void what_cannot_be_read_is_reported(void **state) {
        Fixture *f = *state;

        if (geteuid() != 0)
                SKIP_BECAUSE(
                        "not possible on this machine or as this user"); /* nothing of ours would be
                                                                            closed to us: the owner
                                                                            is we */
        fixture_source(f, SOURCE_DIRECTORY, "%p");
        fixture_files(f, "1/closed/a", "1/open", "2/a", "3/closed/a", "4/a", OTHER "_pid_1/a");
        /* Another instance's is no loss of ours. */
        assert_int_equal(fchmodat(f->scratch->fd, "src/" OTHER "_pid_1", 0700, 0), 0);
        assert_int_equal(fchmodat(f->scratch->fd, "src/1/closed", 0700, 0), 0);
        assert_int_equal(fchmodat(f->scratch->fd, "src/2", 0700, 0), 0);
        assert_int_equal(fchmodat(f->scratch->fd, "src/3/closed", 0700, 0), 0);
        assert_int_equal(fchmodat(f->scratch->fd, "src/4", 0744, 0),
                         0); /* names, but nothing more */
        f->source.on_unreadable = note_unreadable;
        assert_int_equal(seteuid(65534), 0);
        (void)fixture_scan(f);
        assert_int_equal(seteuid(0), 0);
        assert_string_equal(f->lines.text, "'1' files=1 pid=1 unreadable=1(closed)\n"
                                           "unreadable '2'\n"
                                           "unreadable '3'\n"
                                           "unreadable '4'\n");
}

static void one_descriptor_a_level_is_enough(void **state) {
        Fixture *f = *state;
        struct rlimit old, low;
        char path[512] = "";
        int fd = dup(0);

        fixture_source(f, SOURCE_DIRECTORY, "");
        for (size_t i = 0; i < 60; i++) {
                char side[600];

                (void)sprintf(path + strlen(path), "d/");
                for (size_t k = 0; k < 4; k++) {
                        (void)sprintf(side, "%se%zu/x", path, k);
                        fixture_make(f, side, 1);
                }
        }
        assert_true(fd >= 0);
        assert_int_equal(close(fd), 0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
        low = old;
        low.rlim_cur = (rlim_t)fd + 60 + 4; /* sixty levels, the one beside, the root */
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        (void)fixture_scan(f);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        assert_string_equal(f->lines.text, "'' files=240\n");
        /* And when there are not enough, that is no property of the tree. */
        low.rlim_cur = (rlim_t)fd + 20;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        assert_int_equal(scan_source(&f->source, fixture_on_unit, f), -EMFILE);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                in_fixture(a_directory_of_that_name_or_with_a_file_of_the_runtime_is_a_dump),
                in_fixture(a_dump_ends_where_another_one_begins),
                in_fixture(a_loose_file_is_a_dump_by_its_name_alone),
                in_fixture(a_name_says_whether_a_unit_is_evidence),
                in_fixture(a_name_that_matches_gives_values_and_another_gives_none),
                in_fixture(a_directory_knows_when_it_was_made),
                in_fixture(files_above_that_depth_are_loose_units_of_their_directories),
                in_fixture(without_variables_the_fixed_part_is_the_one_unit),
                in_fixture(each_process_core_is_a_unit),
                in_fixture(profiles_are_found_at_any_depth),
                in_fixture(the_fixed_part_itself_may_hold_the_profile),
                in_fixture(our_own_directory_is_never_entered),
                in_fixture(symlinks_are_never_followed),
                in_fixture(another_instance_s_files_are_ignored),
                in_fixture(a_node_known_by_its_host_name_collects_all_that_is_local),
                in_fixture(a_path_that_names_another_instance_is_ignored),
                in_fixture(another_instance_s_profiles_are_ignored),
                in_fixture(what_a_unit_is_known_by_is_added_up_right),
                in_fixture(times_before_1970_and_after_all_are_bounded),
                in_fixture(a_missing_fixed_part_is_reported),
                in_fixture(a_link_of_ours_or_root_s_on_the_way_is_followed),
                in_fixture(a_foreign_link_on_the_way_is_refused),
                in_fixture(the_callback_can_end_the_scan),
                in_fixture(a_file_s_own_name_is_no_directory_of_another),
                in_fixture(what_cannot_be_read_is_reported),
                in_fixture(what_is_in_no_unit_is_reported),
                in_fixture(one_descriptor_a_level_is_enough),
        };

        return cmocka_run_group_tests_name("scan", tests, NULL, NULL);
}
