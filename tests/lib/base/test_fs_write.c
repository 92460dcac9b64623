/* Writing into our own trees, reading whole, removing. */
#include "lib/base/fs.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "tests/lib/base/scratch.h"

/* The failures that a real disk gives and a test cannot provoke. */
int __real_fsync(int fd);
int __wrap_fsync(int fd);
ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n);

static unsigned n_fsyncs;
static int fsync_error, write_error;
static size_t write_at_most = SIZE_MAX;

int __wrap_fsync(int fd) {
        n_fsyncs++;
        if (fsync_error != 0) {
                errno = fsync_error;
                return -1;
        }
        return __real_fsync(fd);
}

ssize_t __wrap_write(int fd, const void *data, size_t n) {
        if (write_error != 0) {
                errno = write_error;
                write_error =
                        write_error == EINTR ? 0 : write_error; /* an interruption comes once */
                return -1;
        }
        return __real_write(fd, data, MIN(n, write_at_most));
}

static int disk_setup(void **state) {
        fsync_error = write_error = 0;
        write_at_most = SIZE_MAX;
        n_fsyncs = 0;
        return scratch_setup(state);
}

static unsigned n_entries(const Scratch *s, const char *name) {
        _cleanup_closedir_ DIR *d = fdopendir(openat(s->fd, name, O_RDONLY | O_DIRECTORY));
        struct dirent *entry;
        unsigned n = 0;

        assert_non_null(d);
        while ((entry = readdir(d)))
                n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
        return n;
}

static void check_text(const Scratch *s, const char *name, const char *expected) {
        char text[256] = { 0 };
        _cleanup_close_ int fd = openat(s->fd, name, O_RDONLY | O_CLOEXEC);

        assert_true(fd >= 0);
        assert_int_equal(read(fd, text, sizeof text - 1), strlen(expected));
        assert_string_equal(text, expected);
}

static void a_written_file_is_complete_and_has_its_mode(void **state) {
        const Scratch *s = *state;
        mode_t umask_before = umask(0077);
        struct stat st;

        assert_int_equal(fs_write_file(s->fd, "f", "hello", 5, 0644), 0);
        (void)umask(umask_before);
        check_text(s, "f", "hello");
        assert_int_equal(fstatat(s->fd, "f", &st, 0), 0);
        assert_int_equal(st.st_mode & 07777, 0644);
        assert_int_equal(n_entries(s, "."), 1);
        assert_int_equal(n_fsyncs, 2); /* of the file and of the directory */
}

static void writing_replaces_what_was_there(void **state) {
        const Scratch *s = *state;

        assert_int_equal(scratch_write(s, "target", "precious"), 0);
        assert_int_equal(symlinkat("target", s->fd, "f"), 0);
        assert_int_equal(fs_write_file(s->fd, "f", "new", 3, 0600), 0);
        check_text(s, "f", "new");
        check_text(s, "target", "precious"); /* not written through the symlink */
        assert_int_equal(fs_write_file(s->fd, "f", "", 0, 0600), 0);
        check_text(s, "f", "");
}

static void a_failed_write_leaves_the_old_file_and_no_rubbish(void **state) {
        const Scratch *s = *state;

        assert_int_equal(scratch_write(s, "f", "old"), 0);
        write_error = ENOSPC;
        assert_int_equal(fs_write_file(s->fd, "f", "new", 3, 0600), -ENOSPC);
        write_error = 0;
        fsync_error = EIO;
        assert_int_equal(fs_write_file(s->fd, "f", "new", 3, 0600), -EIO);
        fsync_error = 0;
        check_text(s, "f", "old");
        assert_int_equal(n_entries(s, "."), 1);
        assert_int_equal(mkdirat(s->fd, "d", 0755), 0);
        assert_int_equal(fs_write_file(s->fd, "d", "new", 3, 0600), -EISDIR);
        assert_int_equal(n_entries(s, "."), 2);
}

static void only_a_plain_name_is_written(void **state) {
        const Scratch *s = *state;
        char name[NAME_MAX + 1];

        assert_int_equal(fs_write_file(s->fd, "", "x", 1, 0600), -EINVAL);
        assert_int_equal(fs_write_file(s->fd, "a/b", "x", 1, 0600), -EINVAL);
        memset(name, 'n', NAME_MAX);
        name[NAME_MAX] = '\0';
        assert_int_equal(fs_write_file(s->fd, name, "x", 1, 0600), -ENAMETOOLONG);
        assert_int_equal(n_entries(s, "."), 0);
}

static void short_and_interrupted_writes_continue(void **state) {
        const Scratch *s = *state;
        _cleanup_close_ int fd = openat(s->fd, "f", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

        write_at_most = 3;
        write_error = EINTR;
        assert_int_equal(fs_write_all(fd, "0123456789", 10), 0);
        check_text(s, "f", "0123456789");
        write_error = EIO;
        assert_int_equal(fs_write_all(fd, "x", 1), -EIO);
        write_error = 0;
}

static void reading_at_an_offset_is_all_or_nothing(void **state) {
        const Scratch *s = *state;
        _cleanup_close_ int fd = -1;
        char text[8] = { 0 };

        assert_int_equal(scratch_write(s, "f", "0123456789"), 0);
        fd = openat(s->fd, "f", O_RDONLY | O_CLOEXEC);
        assert_int_equal(fs_pread_all(fd, text, 4, 6), 0);
        assert_string_equal(text, "6789");
        assert_int_equal(fs_pread_all(fd, text, 5, 6), -ENODATA);
        assert_int_equal(fs_pread_all(fd, text, 1, 10), -ENODATA);
        assert_int_equal(fs_pread_all(fd, text, 0, 10), 0);
        assert_int_equal(fs_pread_all(fd, text, 1, UINT64_MAX), -EOVERFLOW);
        assert_int_equal(fs_pread_all(-1, text, 1, 0), -EBADF);
}

static void a_small_file_is_read_completely(void **state) {
        const Scratch *s = *state;
        _cleanup_free_ char *text = NULL, *empty = NULL, *absolute = NULL;
        char path[PATH_MAX + 8];
        size_t n = 99;

        assert_int_equal(scratch_write(s, "f", "0123456789"), 0);
        assert_int_equal(scratch_write(s, "e", ""), 0);
        assert_int_equal(fs_read_file(s->fd, "f", 10, &text, &n), 0);
        assert_int_equal(n, 10);
        assert_string_equal(text, "0123456789");
        assert_int_equal(fs_read_file(s->fd, "e", 0, &empty, NULL), 0);
        assert_string_equal(empty, "");
        assert_int_equal(symlinkat("f", s->fd, "l"), 0);
        (void)snprintf(path, sizeof path, "%s/l", s->path);
        assert_int_equal(fs_read_file(-1, path, 100, &absolute, NULL), 0);
        assert_string_equal(absolute, "0123456789");
}

static void what_is_too_large_or_no_file_is_not_read(void **state) {
        const Scratch *s = *state;
        char *text = NULL;

        assert_int_equal(scratch_write(s, "f", "0123456789"), 0);
        assert_int_equal(symlinkat("f", s->fd, "l"), 0);
        assert_int_equal(mkdirat(s->fd, "d", 0755), 0);
        assert_int_equal(mkfifoat(s->fd, "p", 0600), 0);
        assert_int_equal(fs_read_file(s->fd, "f", 9, &text, NULL), -EFBIG);
        assert_int_equal(fs_read_file(s->fd, "l", 100, &text, NULL), -ELOOP);
        assert_int_equal(fs_read_file(s->fd, "d", 100, &text, NULL), -EBADF);
        assert_int_equal(fs_read_file(s->fd, "p", 100, &text, NULL), -EBADF);
        assert_int_equal(fs_read_file(s->fd, "absent", 100, &text, NULL), -ENOENT);
        assert_int_equal(fs_read_file(-1, s->path, 100, &text, NULL), -EISDIR);
        assert_int_equal(fs_read_file(-1, "/dev/zero", 100, &text, NULL), -EBADF);
        assert_null(text);
}

static void a_file_without_a_size_is_bounded_all_the_same(void **state) {
        _cleanup_free_ char *text = NULL;
        size_t n = 0;

        /* /proc says 0 bytes of everything. */
        assert_int_equal(fs_read_file(-1, "/proc/self/status", 1 << 20, &text, &n), 0);
        assert_true(n > 100);
        assert_int_equal(text[n], '\0');
        assert_non_null(strstr(text, "\nPid:"));
        assert_int_equal(fs_read_file(-1, "/proc/self/status", 100, &text, &n), -EFBIG);
}

static void a_big_file_is_read_in_steps(void **state) {
        const Scratch *s = *state;
        _cleanup_free_ char *text = NULL;
        static char big[100001];
        size_t n;

        for (size_t i = 0; i < sizeof big - 1; i++)
                big[i] = (char)('a' + i % 26);
        assert_int_equal(scratch_write(s, "f", big), 0);
        assert_int_equal(fs_read_file(s->fd, "f", sizeof big - 1, &text, &n), 0);
        assert_int_equal(n, sizeof big - 1);
        assert_string_equal(text, big);
}

static void the_beginning_of_a_file_is_read_or_all_it_has(void **state) {
        const Scratch *s = *state;
        _cleanup_free_ char *some = NULL, *all = NULL, *more = NULL, *nothing = NULL;
        _cleanup_close_ int fd = -1;
        char *untouched = NULL;
        size_t n = 99;

        assert_int_equal(scratch_write(s, "f", "0123456789"), 0);
        fd = openat(s->fd, "f", O_RDONLY | O_CLOEXEC);
        assert_int_equal(lseek(fd, 3, SEEK_SET), 3); /* where it stands is nobody's concern */
        assert_int_equal(fs_read_head(fd, 4, &some, &n), 0);
        assert_int_equal(n, 4);
        assert_string_equal(some, "0123");
        assert_int_equal(fs_read_head(fd, 10, &all, &n), 0);
        assert_int_equal(n, 10);
        assert_string_equal(all, "0123456789");
        assert_int_equal(fs_read_head(fd, SIZE_MAX, &more, &n), 0);
        assert_int_equal(n, 10);
        assert_string_equal(more, "0123456789");
        assert_int_equal(fs_read_head(fd, 0, &nothing, &n), 0);
        assert_int_equal(n, 0);
        assert_string_equal(nothing, "");
        assert_int_equal(fs_read_head(-1, 4, &untouched, &n), -EBADF);
        assert_null(untouched);
}

static void directories_are_made_all_the_way(void **state) {
        const Scratch *s = *state;
        char path[PATH_MAX + 32];
        struct stat st;

        (void)snprintf(path, sizeof path, "%s/a//b/./c/", s->path);
        assert_int_equal(fs_mkdir_p(path, 0750), 0);
        assert_int_equal(fs_mkdir_p(path, 0750), 0);
        assert_int_equal(fstatat(s->fd, "a/b/c", &st, AT_SYMLINK_NOFOLLOW), 0);
        assert_int_equal(st.st_mode, S_IFDIR | 0750);
        assert_int_equal(fs_mkdir_p("/", 0755), 0);
        assert_int_equal(fs_mkdir_p("relative/path", 0755), -EINVAL);
}

static void what_is_no_directory_stands_in_the_way(void **state) {
        const Scratch *s = *state;
        char path[PATH_MAX + 32];

        assert_int_equal(scratch_write(s, "f", "x"), 0);
        assert_int_equal(mkdirat(s->fd, "d", 0755), 0);
        assert_int_equal(symlinkat("d", s->fd, "l"), 0);
        assert_int_equal(symlinkat("nowhere", s->fd, "x"), 0);
        (void)snprintf(path, sizeof path, "%s/f", s->path);
        assert_int_equal(fs_mkdir_p(path, 0755), -ENOTDIR);
        (void)snprintf(path, sizeof path, "%s/f/below", s->path);
        assert_int_equal(fs_mkdir_p(path, 0755), -ENOTDIR);
        (void)snprintf(path, sizeof path, "%s/l", s->path);
        assert_int_equal(fs_mkdir_p(path, 0755), -ENOTDIR);
        (void)snprintf(path, sizeof path, "%s/x", s->path);
        assert_true(fs_mkdir_p(path, 0755) < 0);
        (void)snprintf(path, sizeof path, "%s/l/below", s->path); /* one in the middle is fine */
        assert_int_equal(fs_mkdir_p(path, 0755), 0);
        assert_int_equal(n_entries(s, "d"), 1);
}

static void a_tree_is_removed_and_nothing_behind_its_symlinks(void **state) {
        const Scratch *s = *state;

        assert_int_equal(mkdirat(s->fd, "keep", 0755), 0);
        assert_int_equal(scratch_write(s, "keep/f", "x"), 0);
        assert_int_equal(mkdirat(s->fd, "t", 0755), 0);
        assert_int_equal(mkdirat(s->fd, "t/sub", 0755), 0);
        assert_int_equal(scratch_write(s, "t/sub/f", "x"), 0);
        assert_int_equal(symlinkat("../keep", s->fd, "t/link"), 0);
        assert_int_equal(linkat(s->fd, "keep/f", s->fd, "t/hard", 0), 0);
        assert_int_equal(mkfifoat(s->fd, "t/fifo", 0600), 0);
        assert_int_equal(fs_remove_tree(s->fd, "t"), 0);
        assert_int_equal(faccessat(s->fd, "t", F_OK, AT_SYMLINK_NOFOLLOW), -1);
        check_text(s, "keep/f", "x");
        assert_int_equal(fs_remove_tree(s->fd, "t"), 0); /* missing is fine */
        assert_int_equal(fs_remove_tree(s->fd, "no/such"), 0);
}

static void a_single_file_and_a_deeper_name_are_removed_too(void **state) {
        const Scratch *s = *state;

        assert_int_equal(scratch_write(s, "f", "x"), 0);
        assert_int_equal(mkdirat(s->fd, "d", 0755), 0);
        assert_int_equal(mkdirat(s->fd, "d/t", 0755), 0);
        assert_int_equal(scratch_write(s, "d/t/f", "x"), 0);
        assert_int_equal(symlinkat("d", s->fd, "l"), 0);
        assert_int_equal(fs_remove_tree(s->fd, "f"), 0);
        assert_int_equal(fs_remove_tree(s->fd, "l/t"), -ELOOP);
        check_text(s, "d/t/f", "x");
        assert_int_equal(fs_remove_tree(s->fd, "d/t"), 0);
        assert_int_equal(n_entries(s, "d"), 0);
        assert_int_equal(fs_remove_tree(s->fd, "l"), 0); /* the link, not what it names */
        assert_int_equal(n_entries(s, "."), 1);
}

static void dots_are_not_removed(void **state) {
        const Scratch *s = *state;

        assert_int_equal(scratch_write(s, "f", "x"), 0);
        assert_int_equal(fs_remove_tree(s->fd, "."), -EINVAL);
        assert_int_equal(fs_remove_tree(s->fd, ".."), -EINVAL);
        assert_int_equal(fs_remove_tree(s->fd, "f/.."), -EINVAL);
        assert_int_equal(fs_remove_tree(s->fd, ""), -EINVAL);
        assert_int_equal(fs_remove_tree(s->fd, "../x"), -EXDEV);
        check_text(s, "f", "x");
}

static void a_tree_that_is_too_deep_is_skipped(void **state) {
        const Scratch *s = *state;
        char path[3 * FS_DEPTH_MAX] = "d";

        for (unsigned i = 0; i < FS_DEPTH_MAX + 5; i++, strcat(path, "/d"))
                assert_int_equal(mkdirat(s->fd, path, 0755), 0);
        assert_int_equal(fs_remove_tree(s->fd, "d"), -ELOOP);
        assert_int_equal(n_entries(s, "d"), 1);
}

static void a_directory_without_fsync_is_no_failure(void **state) {
        const Scratch *s = *state;

        assert_int_equal(fs_sync_dir(s->fd), 0);
        fsync_error = EINVAL;
        assert_int_equal(fs_sync_dir(s->fd), 0);
        fsync_error = EIO;
        assert_int_equal(fs_sync_dir(s->fd), -EIO);
        fsync_error = 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, disk_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_written_file_is_complete_and_has_its_mode),
                TEST(writing_replaces_what_was_there),
                TEST(a_failed_write_leaves_the_old_file_and_no_rubbish),
                TEST(only_a_plain_name_is_written),
                TEST(short_and_interrupted_writes_continue),
                TEST(reading_at_an_offset_is_all_or_nothing),
                TEST(a_small_file_is_read_completely),
                TEST(what_is_too_large_or_no_file_is_not_read),
                TEST(a_file_without_a_size_is_bounded_all_the_same),
                TEST(a_big_file_is_read_in_steps),
                TEST(the_beginning_of_a_file_is_read_or_all_it_has),
                TEST(directories_are_made_all_the_way),
                TEST(what_is_no_directory_stands_in_the_way),
                TEST(a_tree_is_removed_and_nothing_behind_its_symlinks),
                TEST(a_single_file_and_a_deeper_name_are_removed_too),
                TEST(dots_are_not_removed),
                TEST(a_tree_that_is_too_deep_is_skipped),
                TEST(a_directory_without_fsync_is_no_failure),
        };

        return cmocka_run_group_tests_name("base/fs_write", tests, NULL, NULL);
}
