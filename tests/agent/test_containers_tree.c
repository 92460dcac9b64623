#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/containers_tree.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "tests/lib/base/scratch.h"

#define MTIME 1779859295123456789
#define SOURCE "core-dumps"
#define RELATIVE "dt-1-cid-2"

typedef struct Place {
        Scratch *scratch;
        int root_fd, batch_fd;
        CopyEntry entries[8];
        char whole[1][COPY_UNIT_SIZE];
        CopyDocument document;
        TreeUnit unit;
} Place;

static char *below(const Place *p, const char *name) {
        return path_join(p->scratch->path, name);
}

static int open_directory(const Place *p, const char *name) {
        _cleanup_free_ char *path = below(p, name);
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(fd >= 0);
        return fd;
}

static void make_directory(const Place *p, const char *name) {
        _cleanup_free_ char *path = below(p, name);
        assert_int_equal(fs_mkdir_p(path, 0700), 0);
}

static void raw(const Place *p, const char *name, const char *text) {
        assert_int_equal(fs_write_file(p->batch_fd, name, text, strlen(text), 0640), 0);
}

/* @param file  raw file; "" = none has it */
static void entry(Place *p, const char *path, const char *file, uint64_t bytes) {
        CopyEntry *e = &p->entries[p->document.n_entries++];
        *e = (CopyEntry){ .unit = "77", .path = (char *)path, .bytes = bytes, .mtime_nsec = MTIME };
        (void)snprintf(e->file, sizeof e->file, "%s", file);
}

/* The next copy of the same directory. */
static void begin(Place *p) {
        tree_unit_done(&p->unit);
        p->document = (CopyDocument){ .entries = p->entries, .whole = p->whole, .n_whole = 1 };
        p->unit = (TreeUnit){ .about_fd = -1, .uid = 1000, .unit = "77" };
        p->unit.source = strdup(SOURCE);
        p->unit.relative = strdup(RELATIVE);
        p->unit.path = strdup("/tmp/" RELATIVE);
        p->unit.final = below(p, "containers/" SOURCE "/77/" RELATIVE);
        p->unit.notes = calloc(1, sizeof *p->unit.notes);
        p->unit.notes[p->unit.n_notes++] = strdup("note-1");
}

static int setup(void **state) {
        Place *p = calloc(1, sizeof *p);
        void *scratch = NULL;
        assert_int_equal(scratch_setup(&scratch), 0);
        p->scratch = scratch;
        make_directory(p, "containers/.coming/1");
        p->root_fd = open_directory(p, "containers");
        p->batch_fd = open_directory(p, "containers/.coming/1");
        strcpy(p->whole[0], "77");
        p->unit.about_fd = -1;
        begin(p);
        *state = p;
        return 0;
}

static int teardown(void **state) {
        Place *p = *state;
        tree_unit_done(&p->unit);
        close(p->root_fd);
        close(p->batch_fd);
        void *scratch = p->scratch;
        free(p);
        return scratch_teardown(&scratch);
}

static int build(Place *p) {
        return tree_build(&p->unit, p->root_fd, p->batch_fd, &p->document);
}

static bool is_there(const Place *p, const char *name, const char *text) {
        _cleanup_free_ char *path = below(p, "containers/" SOURCE "/77/" RELATIVE), *found = NULL;
        _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd >= 0 && fs_read_file(fd, name, MIB, &found, NULL) == 0 &&
               strcmp(found, text) == 0;
}

static void raw_files_come_to_where_the_container_had_them(void **state) {
        Place *p = *state;
        raw(p, "f000001", "one");
        raw(p, "f000002", "two!");
        entry(p, "a", "f000001", 3);
        entry(p, "d/e/b", "f000002", 4);
        assert_int_equal(build(p), 0);
        assert_true(is_there(p, "a", "one"));
        assert_true(is_there(p, "d/e/b", "two!"));
        assert_true(p->unit.is_whole);
        assert_int_equal(p->unit.n_missing, 0);
        _cleanup_free_ char *path = below(p, "containers/" SOURCE "/77/" RELATIVE "/a");
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec, MTIME);
        assert_int_equal(st.st_mode & 07777, 0600);
}

static void what_is_told_of_a_copy_can_be_read_again(void **state) {
        Place *p = *state;
        TreeUnit read;
        raw(p, "f000001", "one");
        entry(p, "a", "f000001", 3);
        assert_int_equal(build(p), 0);
        _cleanup_close_ int fd = open_directory(p, "containers/" CONTAINER_UNITS_DIRECTORY);
        assert_int_equal(tree_unit_read(&read, fd, SOURCE ".77.json"), 0);
        assert_string_equal(read.source, SOURCE);
        assert_string_equal(read.relative, RELATIVE);
        assert_int_equal(read.uid, 1000);
        tree_unit_done(&read);
        static const char bad[] = "{\"source\":\"a\",\"unit\":\"7\",\"uid\":1,\"relative\":\"..\"}";
        assert_int_equal(fs_write_file(fd, "bad.json", bad, sizeof bad - 1, 0600), 0);
        assert_int_not_equal(tree_unit_read(&read, fd, "bad.json"), 0);
        char text[4096] = "";
        assert_int_equal(tree_unit_read(&read, fd, SOURCE ".77.json"), 0);
        assert_true(read.is_whole);
        assert_int_equal(read.n_missing, 0);
        tree_unit_done(&read);
        assert_true(pread(p->unit.about_fd, text, sizeof text - 1, 0) > 0);
        assert_non_null(strstr(text, "\"notes\":[\"note-1\"]"));
}

static void what_was_seen_and_is_not_whole_is_missing_by_its_path(void **state) {
        Place *p = *state;
        raw(p, "f000001", "one");
        raw(p, "f000002", "sh"); /* the record says more */
        entry(p, "a", "f000001", 3);
        entry(p, "d/big", "", 1000);
        entry(p, "d/cut", "f000002", 5);
        entry(p, "d/gone", "f000003", 5);
        assert_int_equal(build(p), 0);
        assert_false(p->unit.is_whole);
        assert_int_equal(p->unit.n_missing, 3);
        assert_string_equal(p->unit.missing[0], "d/big");
        assert_string_equal(p->unit.missing[1], "d/cut");
        assert_string_equal(p->unit.missing[2], "d/gone");
        assert_true(is_there(p, "a", "one"));
}

static void what_is_missing_can_be_read_again(void **state) {
        Place *p = *state;
        TreeUnit read;
        raw(p, "f000001", "one");
        entry(p, "a", "f000001", 3);
        entry(p, "d/big\n", "", 1000);
        assert_int_equal(build(p), 0);
        _cleanup_close_ int fd = open_directory(p, "containers/" CONTAINER_UNITS_DIRECTORY);
        assert_int_equal(tree_unit_read(&read, fd, SOURCE ".77.json"), 0);
        assert_false(read.is_whole);
        assert_int_equal(read.n_missing, 1);
        assert_string_equal(read.missing[0], "d/big\n");
        tree_unit_done(&read);
}

static void what_adds_nothing_says_so(void **state) {
        Place *p = *state;
        raw(p, "f000001", "one");
        entry(p, "a", "f000001", 3);
        assert_int_equal(build(p), 0);
        assert_int_equal(p->unit.n_added, 1);
        begin(p);
        raw(p, "f000001", "one");
        entry(p, "a", "f000001", 3);
        assert_int_equal(build(p), 0);
        assert_int_equal(p->unit.n_added, 0);
        begin(p);
        raw(p, "f000002", "two");
        entry(p, "b", "f000002", 3);
        assert_int_equal(build(p), 0);
        assert_int_equal(p->unit.n_added, 1);
}

static void a_dump_of_which_nothing_could_be_had_tells_of_itself(void **state) {
        Place *p = *state;
        entry(p, "big", "", 1000);
        assert_int_equal(build(p), 0);
        _cleanup_free_ char *path =
                below(p, "containers/" SOURCE "/77/" RELATIVE "/" CONTAINER_COPY_FILE);
        assert_int_equal(access(path, F_OK), 0);
        assert_int_equal(p->unit.n_missing, 1);
}

static void begun_again_at_any_point_it_comes_to_the_same(void **state) {
        Place *p = *state;
        raw(p, "f000001", "one");
        entry(p, "d/a", "f000001", 3);
        make_directory(p, "containers/.coming/1/.tree-77/d");
        assert_int_equal(renameat(p->batch_fd, "f000001", p->batch_fd, ".tree-77/d/a"), 0);
        assert_int_equal(build(p), 0); /* killed when the file was in the tree */
        assert_true(p->unit.is_whole && is_there(p, "d/a", "one"));
        begin(p);
        entry(p, "d/a", "f000001", 3);
        assert_int_equal(build(p), 0); /* … when the tree was in its place */
        assert_true(p->unit.is_whole && is_there(p, "d/a", "one"));
}

static void a_second_copy_adds_what_is_new_and_what_has_changed(void **state) {
        Place *p = *state;
        struct stat before, after;
        raw(p, "f000001", "one");
        raw(p, "f000002", "two");
        entry(p, "same", "f000001", 3);
        entry(p, "grown", "f000002", 3);
        assert_int_equal(build(p), 0);
        _cleanup_free_ char *same = below(p, "containers/" SOURCE "/77/" RELATIVE "/same");
        assert_int_equal(stat(same, &before), 0);
        begin(p);
        raw(p, "f000001", "one");
        raw(p, "f000002", "two and more");
        raw(p, "f000003", "new");
        entry(p, "same", "f000001", 3);
        entry(p, "grown", "f000002", 12);
        entry(p, "d/new", "f000003", 3);
        assert_int_equal(build(p), 0);
        assert_true(is_there(p, "grown", "two and more") && is_there(p, "d/new", "new"));
        assert_int_equal(stat(same, &after), 0);
        assert_int_equal(before.st_ino, after.st_ino); /* who ships it is not disturbed */
        assert_true(p->unit.is_whole);
}

static void links_and_shared_files_are_not_taken_for_raw_ones(void **state) {
        Place *p = *state;
        raw(p, "real", "one");
        assert_int_equal(symlinkat("real", p->batch_fd, "f000001"), 0);
        assert_int_equal(linkat(p->batch_fd, "real", p->batch_fd, "f000002", 0), 0);
        entry(p, "a", "f000001", 3);
        entry(p, "b", "f000002", 3);
        assert_int_equal(build(p), 0);
        assert_int_equal(p->unit.n_missing, 2);
}

static void a_path_that_is_a_file_and_a_directory_costs_one_file(void **state) {
        Place *p = *state;
        raw(p, "f000001", "one");
        raw(p, "f000002", "two");
        entry(p, "a", "f000001", 3);
        entry(p, "a/b", "f000002", 3);
        assert_int_equal(build(p), 0);
        assert_true(is_there(p, "a", "one"));
        assert_int_equal(p->unit.n_missing, 1);
        assert_string_equal(p->unit.missing[0], "a/b");
}

static void files_of_other_units_stay_where_they_are(void **state) {
        Place *p = *state;
        raw(p, "f000001", "one");
        entry(p, "a", "f000001", 3);
        strcpy(p->entries[0].unit, "78");
        assert_int_equal(build(p), 0);
        assert_false(is_there(p, "a", "one"));
        assert_int_equal(faccessat(p->batch_fd, "f000001", F_OK, 0), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
                TEST(raw_files_come_to_where_the_container_had_them),
                TEST(what_is_told_of_a_copy_can_be_read_again),
                TEST(what_was_seen_and_is_not_whole_is_missing_by_its_path),
                TEST(what_is_missing_can_be_read_again),
                TEST(what_adds_nothing_says_so),
                TEST(a_dump_of_which_nothing_could_be_had_tells_of_itself),
                TEST(begun_again_at_any_point_it_comes_to_the_same),
                TEST(a_second_copy_adds_what_is_new_and_what_has_changed),
                TEST(links_and_shared_files_are_not_taken_for_raw_ones),
                TEST(a_path_that_is_a_file_and_a_directory_costs_one_file),
                TEST(files_of_other_units_stay_where_they_are),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
