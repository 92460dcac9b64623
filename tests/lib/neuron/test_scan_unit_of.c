/* scan_unit_at(): from a path that an event named to its unit. It must say the same as a scan of
 * everything. */
#include <ftw.h>

#include "lib/base/cleanup.h"
#include "lib/neuron/scan.h"
#include "tests/lib/neuron/scan_fixture.h"

static void check(Fixture *f, const char *relative, const char *expected) {
        ScanUnit u;

        strbuf_clear(&f->lines);
        assert_int_equal(scan_unit_at(&f->source, relative, &u), 0);
        fixture_spell(&f->lines, &u);
        scan_unit_done(&u);
        assert_string_equal(f->lines.text, expected);
}

static void check_none(Fixture *f, const char *relative, int error) {
        ScanUnit u = { .n_files = 77 };
        int r = scan_unit_at(&f->source, relative, &u);

        if (r != error)
                fail_msg("'%s' gives %d", relative, r);
        assert_int_equal(u.n_files, 77);
}

static void a_path_leads_to_the_unit_it_lies_in(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p/%t");
        fixture_files(f, "1/2/a", "1/2/b/c", "1/loose", "1/" US "-nrt-pid-3.log", "3/4/");
        check(f, "1/2", "'1/2' files=2 pid=1\n");
        check(f, "1/2/a", "'1/2' files=2 pid=1\n");
        check(f, "1/2/b", "'1/2' files=2 pid=1\n");
        check(f, "1/2/b/c", "'1/2' files=2 pid=1\n");
        check(f, "1/loose", "'1' files=1 loose own pid=3\n");
        check_none(f, "", SCAN_E_NO_UNIT);
        check_none(f, "1", SCAN_E_NO_UNIT);
        check_none(f, "3/4", SCAN_E_NO_UNIT); /* nothing in it yet */
}

static void what_was_removed_leads_to_the_unit_it_lay_in(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/a");
        check(f, "1/gone", "'1' files=1 pid=1\n");
        check(f, "1/gone/too/x", "'1' files=1 pid=1\n");
        check(f, "1/a/not-below-a-file", "'1' files=1 pid=1\n");
        check_none(f, "2", -ENOENT);
        check_none(f, "2/x", -ENOENT);
        fixture_source(f, SOURCE_PROCESS_CORE, "");
        check(f, "1/a", "'1/a' files=1 file\n");
        check_none(f, "1/gone", -ENOENT);
        check_none(f, "gone/too", -ENOENT);
        fixture_source(f, SOURCE_NEURON_PROFILE, "");
        fixture_files(f, "p/x.ntff", "q/" US "_pid_5/y", "q/z");
        check(f, "p/gone", "'p' files=1\n");
        check(f, "q/gone", "'q' files=1\n");
        check(f, "q/" US "_pid_5/gone/x", "'q/" US "_pid_5' files=1 own pid=5\n");
        check_none(f, "q/" US "_pid_6", -ENOENT);
        check_none(f, US "_pid_6", -ENOENT);
        check_none(f, US "_pid_6/x", -ENOENT);
        check_none(f, "gone/x", SCAN_E_NO_UNIT);
}

static void profiles_are_found_from_any_of_their_files(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_PROFILE, "");
        fixture_files(f, "r/x.ntff", "r/sub/y.ntff", "r/" US "_pid_5/z", "other/file");
        check(f, "r", "'r' files=2\n");
        check(f, "r/sub", "'r' files=2\n");
        check(f, "r/sub/y.ntff", "'r' files=2\n");
        check(f, "r/" US "_pid_5", "'r/" US "_pid_5' files=1 own pid=5\n");
        check(f, "r/" US "_pid_5/z", "'r/" US "_pid_5' files=1 own pid=5\n");
        check_none(f, "other/file", SCAN_E_NO_UNIT);
        check_none(f, "other", SCAN_E_NO_UNIT);
        check_none(f, "", SCAN_E_NO_UNIT);
}

static void what_is_not_ours_is_no_unit(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%i");
        fixture_files(f, OTHER "/x", US "/x", ".neuron-collectd/" US "/id/x",
                      US "/.neuron-collectd/x");
        check_none(f, OTHER "/x", SCAN_E_NO_UNIT);
        check_none(f, OTHER, SCAN_E_NO_UNIT);
        check(f, US "/x", "'" US "' files=1 own reserved-name=1(.neuron-collectd)\n");
        check_none(f, ".neuron-collectd", SCAN_E_NO_UNIT);
        check_none(f, ".neuron-collectd/" US "/id/x", SCAN_E_NO_UNIT);
        check_none(f, US "/.neuron-collectd/x", SCAN_E_NO_UNIT);
        check_none(f, US "/.neuron-collectd", SCAN_E_NO_UNIT);
}

static void a_path_that_leads_out_is_refused(void **state) {
        static const char *const bad[] = { "..", "../x", "/etc", "1/../../x", ".", "1//a", "1/" };
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/a", "1/b/c");
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                check_none(f, bad[i], -EINVAL);
        assert_int_equal(symlinkat("/etc", f->scratch->fd, "src/2"), 0);
        assert_int_equal(symlinkat("/etc", f->scratch->fd, "src/1/link"), 0);
        check_none(f, "2", SCAN_E_NO_UNIT);
        check_none(f, "2/passwd", SCAN_E_NO_UNIT);
        check(f, "1/link", "'1' files=2 pid=1 symlink=1(link)\n");
        check(f, "1/b/c", "'1' files=2 pid=1 symlink=1(link)\n");
}

static void a_file_unit_that_is_no_file_is_none(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_PROCESS_CORE, "");
        fixture_files(f, "dir/core.1");
        assert_int_equal(symlinkat("/etc/passwd", f->scratch->fd, "src/link"), 0);
        assert_int_equal(mkfifoat(f->scratch->fd, "src/fifo", 0600), 0);
        check_none(f, "link", SCAN_E_NO_UNIT);
        check_none(f, "fifo", SCAN_E_NO_UNIT);
        check_none(f, "dir", SCAN_E_NO_UNIT);
}

static void a_missing_source_is_reported(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        assert_int_equal(rmdir(f->root), 0);
        check_none(f, "1/a", -ENOENT);
}

/* ---- the same answer as a scan, on random trees ---- */

static uint32_t next_random(uint32_t *seed) {
        *seed = *seed * 1664525u + 1013904223u;
        return *seed >> 8;
}

static void make_random_tree(const Fixture *f, uint32_t *seed) {
        static const char *const names[] = { "a",
                                             "b",
                                             "x.ntff",
                                             "1",
                                             US "_pid_5",
                                             "node_pid_7",
                                             OTHER "_pid_6",
                                             US "-nrt-pid-3.log",
                                             OTHER "-nrt-pid-3.log",
                                             "core.9" };

        for (size_t i = 0; i < 25; i++) {
                char path[512] = "";
                size_t depth = 1 + next_random(seed) % 4;

                for (size_t k = 0; k < depth; k++)
                        (void)sprintf(path + strlen(path), "%s%s", k > 0 ? "/" : "",
                                      names[next_random(seed) % ELEMENTSOF(names)]);
                /* A file may stand where a directory is wanted: then there is one file less. */
                char full[FIXTURE_PATH_SIZE];
                bool blocked = false;
                for (char *p = path; (p = strchr(p, '/')); p++) {
                        struct stat st;

                        *p = '\0';
                        blocked = blocked || (stat(fixture_path(f, path, full), &st) == 0 &&
                                              !S_ISDIR(st.st_mode));
                        *p = '/';
                }
                if (!blocked && access(fixture_path(f, path, full), F_OK) < 0)
                        fixture_make(f, path, i);
        }
}

typedef struct Walked {
        char paths[512][256];
        size_t n;
} Walked;

static Walked walked;
static size_t n_root; /* length of the root's path, for nftw(3), which has no userdata */

static int note_path(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        (void)st;
        (void)type;
        if (ftw->level > 0 && walked.n < ELEMENTSOF(walked.paths))
                (void)snprintf(walked.paths[walked.n++], sizeof walked.paths[0], "%s",
                               path + n_root + 1);
        return 0;
}

static void check_tree(Fixture *f) {
        StrBuf by_path = STRBUF_INIT;
        const char *by_scan = fixture_scan(f);
        size_t n_units = 0;

        walked.n = 0;
        n_root = strlen(f->root);
        assert_int_equal(nftw(f->root, note_path, 16, FTW_PHYS), 0);
        for (size_t i = 0; i < walked.n; i++) {
                StrBuf line = STRBUF_INIT;
                ScanUnit u;
                int r = scan_unit_at(&f->source, walked.paths[i], &u);

                if (r == SCAN_E_NO_UNIT)
                        continue;
                assert_int_equal(r, 0);
                fixture_spell(&line, &u);
                if (!strstr(by_scan, line.text))
                        fail_msg("'%s' leads to %sbut the scan says\n%s", walked.paths[i],
                                 line.text, by_scan);
                if (!by_path.text || !strstr(by_path.text, line.text)) {
                        strbuf_add(&by_path, line.text);
                        n_units++;
                }
                strbuf_done(&line);
                scan_unit_done(&u);
        }
        assert_int_equal(n_units, f->n_units); /* every unit is reached from one of its files */
        strbuf_done(&by_path);
}

static void it_agrees_with_a_scan_on_random_trees(void **state) {
        static const char *const templates[] = { "", "%p", "%i/%p" };
        Fixture *f = *state;

        for (uint32_t round = 0; round < 20; round++) {
                uint32_t seed = round;

                make_random_tree(f, &seed);
                for (SourceKind k = 0; k < N_SOURCE_KINDS; k++)
                        for (size_t t = 0; t < 3; t++) {
                                fixture_source(f, k, templates[t]);
                                fake_network = next_random(&seed) & 1;
                                f->source.instance_id = next_random(&seed) & 1 ? US : "node";
                                check_tree(f);
                        }
                assert_int_equal(nftw(f->root, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
                assert_int_equal(mkdir(f->root, 0755), 0);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                in_fixture(a_path_leads_to_the_unit_it_lies_in),
                in_fixture(what_was_removed_leads_to_the_unit_it_lay_in),
                in_fixture(profiles_are_found_from_any_of_their_files),
                in_fixture(what_is_not_ours_is_no_unit),
                in_fixture(a_path_that_leads_out_is_refused),
                in_fixture(a_file_unit_that_is_no_file_is_none),
                in_fixture(a_missing_source_is_reported),
                in_fixture(it_agrees_with_a_scan_on_random_trees),
        };

        return cmocka_run_group_tests_name("scan_unit_at", tests, NULL, NULL);
}
