/* Files that appear whole: with O_TMPFILE, and on file systems that know neither that nor a rename
 * that replaces nothing. */
#include "hook/hook.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "tests/lib/base/scratch.h"

/* What a file system lacks. */
static bool has_no_tmpfile, has_no_noreplace;

int __real_openat(int dir_fd, const char *path, int flags, mode_t mode);
int __wrap_openat(int dir_fd, const char *path, int flags, mode_t mode);
int __wrap_openat(int dir_fd, const char *path, int flags, mode_t mode) {
        if (has_no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
                errno = EOPNOTSUPP;
                return -1;
        }
        return __real_openat(dir_fd, path, flags, mode);
}

int __real_renameat2(int old_fd, const char *old_path, int new_fd, const char *new_path,
                     unsigned flags);
int __wrap_renameat2(int old_fd, const char *old_path, int new_fd, const char *new_path,
                     unsigned flags);
int __wrap_renameat2(int old_fd, const char *old_path, int new_fd, const char *new_path,
                     unsigned flags) {
        if (has_no_noreplace) {
                errno = EINVAL;
                return -1;
        }
        return __real_renameat2(old_fd, old_path, new_fd, new_path, flags);
}

static int setup(void **state) {
        has_no_tmpfile = has_no_noreplace = false;
        return scratch_setup(state);
}

static unsigned count_entries(const Scratch *s) {
        _cleanup_closedir_ DIR *d = opendir(s->path);
        unsigned n = 0;
        assert_non_null(d);
        while (readdir(d))
                n++;
        return n - 2;
}

static void assert_puts(const Scratch *s, const char *name) {
        _cleanup_free_ char *text = NULL;
        unsigned n_before = count_entries(s);
        struct stat st;
        (void)umask(0027);
        assert_int_equal(write_file(s->fd, name, 0666, "first", 5), 0);
        (void)umask(0022);
        assert_int_equal(write_file(s->fd, name, 0666, "second", 6), -EEXIST);
        assert_int_equal(fs_read_file(s->fd, name, 100, &text, NULL), 0);
        assert_string_equal(text, "first");
        assert_int_equal(fstatat(s->fd, name, &st, 0), 0);
        assert_int_equal(st.st_mode & 0777, 0640);
        assert_int_equal(st.st_nlink, 1);
        assert_int_equal(count_entries(s), n_before + 1);
}

static void a_file_appears_with_the_umask_and_replaces_nothing(void **state) {
        assert_puts(*state, "a");
        has_no_tmpfile = true;
        assert_puts(*state, "b");
        has_no_noreplace = true;
        assert_puts(*state, "c");
}

static void a_symlink_in_its_place_is_not_followed(void **state) {
        Scratch *s = *state;
        assert_int_equal(symlinkat("elsewhere", s->fd, "a"), 0);
        for (int i = 0; i < 2; i++, has_no_tmpfile = true)
                assert_int_equal(write_file(s->fd, "a", 0600, "x", 1), -EEXIST);
        assert_int_equal(faccessat(s->fd, "elsewhere", F_OK, 0), -1);
        assert_int_equal(count_entries(s), 1);
}

static void directories_are_made_with_the_umask(void **state) {
        Scratch *s = *state;
        char path[PATH_MAX + 20];
        struct stat st;
        (void)snprintf(path, sizeof path, "%s/x/y//z", s->path);
        (void)umask(0077);
        _cleanup_close_ int fd = write_file_open_directory(path);
        (void)umask(0022);
        assert_true(fd >= 0);
        assert_int_equal(fstatat(s->fd, "x/y", &st, 0), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        assert_int_equal(write_file(fd, "a", 0600, "x", 1), 0);
        assert_int_equal(faccessat(s->fd, "x/y/z/a", F_OK, 0), 0);
        _cleanup_close_ int again = write_file_open_directory(path);
        assert_true(again >= 0);
        (void)snprintf(path, sizeof path, "%s/x/y/z/a/b", s->path);
        assert_int_equal(write_file_open_directory(path), -ENOTDIR);
        assert_int_equal(write_file_open_directory("/proc/none/of/these"), -ENOENT);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(a_file_appears_with_the_umask_and_replaces_nothing,
                                                setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(a_symlink_in_its_place_is_not_followed, setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(directories_are_made_with_the_umask, setup,
                                                scratch_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
