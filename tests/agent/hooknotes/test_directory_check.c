/* agent/hooknotes/directory_check.c: which unit the directory of a note is, and whose. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "agent/hooknotes/directory_check.h"
#include "tests/agent/hooknotes/note_config.h"
#include "tests/lib/base/scratch.h"

#define UNIT "dt-20260527-051233-cid-d99e36ea74c263ca"

static void expect_place(const char *directory, const char *source, const char *relative) {
        NoteLocation p;
        const char *why;
        assert_int_equal(note_location_find(&config, directory, &p, &why), 0);
        assert_string_equal(p.source, source);
        assert_string_equal(p.relative, relative);
        assert_false(p.by_name);
        note_location_done(&p);
}

static void expect_no_place(const char *directory, const char *about) {
        NoteLocation p;
        const char *why;
        assert_int_equal(note_location_find(&config, directory, &p, &why), NOTE_E_NO_UNIT);
        assert_non_null(strstr(why, about));
}

static void a_directory_is_a_unit_of_the_source_that_it_lies_in(void **state) {
        expect_place("/tmp/neuron-core-dump/" UNIT, "dumps", UNIT);
        expect_place("/tmp//neuron-core-dump/./" UNIT "/", "dumps", UNIT);
        expect_place("/tmp/neuron-core-dump/" UNIT "/below/it", "dumps", UNIT);
        expect_place("/tmp/neuron-core-dump/another-name", "dumps", "another-name");
        expect_place("/srv/plain", "plain", "");
        expect_place("/srv/plain/x", "plain", "");
}

static void a_directory_elsewhere_is_none_whatever_its_form(void **state) {
        expect_no_place("/root", "no configured source");
        expect_no_place("/tmp/neuron-core-dump-evil/" UNIT, "no configured source");
        expect_no_place("/tmp/neuron-core-dump", "no configured source"); /* many units' parent */
        expect_no_place("/tmp/neuron-core-dump/x/../../../root", "'..'");
        expect_no_place("/tmp/neuron-core-dump/" UNIT "/..", "'..'");
        expect_no_place("tmp/neuron-core-dump/" UNIT, "absolute");
        expect_no_place("", "names no directory");
        expect_no_place(NULL, "names no directory");
        expect_no_place("/var/cores/x", "no configured source"); /* its units are files */
        char *path = malloc(PATH_MAX + 10);
        assert_non_null(path);
        memset(path, 'a', PATH_MAX + 9);
        path[0] = '/';
        path[PATH_MAX + 9] = '\0';
        expect_no_place(path, "too long");
        free(path);
}

static void a_container_s_path_is_known_by_the_unit_s_name(void **state) {
        NoteLocation p;
        assert_int_equal(note_location_find_by_name(&config, 1, "/dumps/" UNIT, &p), 0);
        assert_true(p.by_name);
        assert_string_equal(p.relative, UNIT);
        assert_string_equal(p.fixed, "/tmp/neuron-core-dump");
        note_location_done(&p);
        /* A name that anything may have proves nothing, nor does a source without names. */
        assert_int_equal(note_location_find_by_name(&config, 1, "/dumps/other", &p),
                         NOTE_E_NO_UNIT);
        assert_int_equal(note_location_find_by_name(&config, 2, "/dumps/" UNIT, &p),
                         NOTE_E_NO_UNIT);
        assert_int_equal(note_location_find_by_name(&config, 1, "/", &p), NOTE_E_NO_UNIT);
        assert_int_equal(note_location_find_by_name(&config, 1, "/a/../" UNIT, &p), NOTE_E_NO_UNIT);
}

static void run_check(DirectoryCheck *l, const Scratch *s, const char *relative, uid_t uid,
                      bool by_name) {
        *l = (DirectoryCheck){ .uid = uid, .n_locations = 1 };
        l->locations[0] = (NoteLocation){ .source = strdup("dumps"),
                                          .fixed = strdup(s->path),
                                          .relative = strdup(relative),
                                          .by_name = by_name };
        directory_check_run(l);
}

static void expect_directory(const Scratch *s, const char *relative, uid_t uid, const char *about) {
        DirectoryCheck l;
        run_check(&l, s, relative, uid, false);
        if (about) {
                assert_null(l.found);
                assert_non_null(strstr(l.why, about));
        } else
                assert_ptr_equal(l.found, &l.locations[0]);
        directory_check_done(&l);
}

static void a_directory_counts_when_it_is_the_sender_s_own(void **state) {
        const Scratch *s = *state;
        assert_int_equal(mkdirat(s->fd, "mine", 0755), 0);
        expect_directory(s, "mine", geteuid(), NULL);
        expect_directory(s, "", geteuid(), NULL);
        expect_directory(s, "mine", geteuid() + 1, "belongs to another user");
}

static void roots_directory_counts_where_everybody_is_to_write(void **state) {
        const Scratch *s = *state;
        if (geteuid() != 0)
                skip();
        assert_int_equal(mkdirat(s->fd, "shared", 0755), 0);
        expect_directory(s, "shared", ME, "belongs to another user");
        assert_int_equal(fchmodat(s->fd, "shared", 01777, 0), 0);
        expect_directory(s, "shared", ME, NULL);
        DirectoryCheck l; /* but not by its name alone */
        run_check(&l, s, "shared", ME, true);
        assert_null(l.found);
        directory_check_done(&l);
}

static void links_files_and_nothing_are_no_directories(void **state) {
        const Scratch *s = *state;
        assert_int_equal(mkdirat(s->fd, "real", 0755), 0);
        assert_int_equal(mkdirat(s->fd, "real/below", 0755), 0);
        assert_int_equal(symlinkat("real", s->fd, "link"), 0);
        assert_int_equal(scratch_write(s, "file", "x"), 0);
        expect_directory(s, "link", geteuid(), "symbolic link");
        expect_directory(s, "link/below", geteuid(), "symbolic link");
        expect_directory(s, "file", geteuid(), "not a directory");
        expect_directory(s, "missing", geteuid(), "not there");
        DirectoryCheck l;
        run_check(&l, s, "missing", geteuid(), false);
        assert_true(l.is_absent);
        directory_check_done(&l);
        run_check(&l, s, "missing", geteuid(), true);
        assert_false(l.is_absent); /* found by name it would be anybody's */
        directory_check_done(&l);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_directory_is_a_unit_of_the_source_that_it_lies_in),
                cmocka_unit_test(a_directory_elsewhere_is_none_whatever_its_form),
                cmocka_unit_test(a_container_s_path_is_known_by_the_unit_s_name),
                TEST(a_directory_counts_when_it_is_the_sender_s_own),
                TEST(roots_directory_counts_where_everybody_is_to_write),
                TEST(links_files_and_nothing_are_no_directories),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
