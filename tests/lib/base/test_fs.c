/* Opening in hostile trees, by openat2 and by the walk that stands in for it; leases; file systems.
 */
#include "lib/base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "tests/harness/skip.h"
#include "tests/lib/base/scratch.h"

int __real_fstatfs(int fd, struct statfs *ret);
int __wrap_fstatfs(int fd, struct statfs *ret);

/* No other file systems can be mounted here: while a test has asked for it, the kernel says what
 * the test wants. */
static bool fake_fstatfs;

int __wrap_fstatfs(int fd, struct statfs *ret) {
        int r = __real_fstatfs(fd, ret);

        if (fake_fstatfs)
                ret->f_type = (__typeof__(ret->f_type))mock_type(uint32_t);
        return r;
}

static unsigned n_open_fds(void) {
        _cleanup_closedir_ DIR *d = opendir("/proc/self/fd");
        unsigned n = 0;

        assert_non_null(d);
        while (readdir(d))
                n++;
        return n;
}

/* What every way of opening must answer about the same tree. Returns the number of the first check
 * that fails, since it also runs in a child, where cmocka's asserts cannot report. */
static int judge_opening(int dir_fd) {
        static const struct {
                const char *path;
                int flags, r;
        } cases[] = {
                { "file", O_RDONLY, 0 },
                { "dir/inner", O_RDONLY, 0 },
                { "./dir//inner", O_RDONLY, 0 },
                { "dir", O_RDONLY | O_DIRECTORY, 0 },
                { "dir/", O_RDONLY, 0 },
                { ".", O_RDONLY | O_DIRECTORY, 0 },
                { "", O_RDONLY, -ENOENT },
                { "absent", O_RDONLY, -ENOENT },
                { "dir/absent", O_RDONLY, -ENOENT },
                { "file/below", O_RDONLY, -ENOTDIR },
                { "file/", O_RDONLY, -ENOTDIR },
                { "file", O_RDONLY | O_DIRECTORY, -ENOTDIR },
                { "/etc/passwd", O_RDONLY, -EXDEV },
                { "..", O_RDONLY, -EXDEV },
                { "../x", O_RDONLY, -EXDEV },
                { "dir/../../x", O_RDONLY, -EXDEV },
                { "dir/../file", O_RDONLY, -EXDEV },
                { "dir/..", O_RDONLY, -EXDEV },
                { "link-to-file", O_RDONLY, -ELOOP },
                { "link-to-dir", O_RDONLY | O_DIRECTORY, -ELOOP },
                { "link-to-dir/inner", O_RDONLY, -ELOOP },
                { "link-to-root/etc/passwd", O_RDONLY, -ELOOP },
                { "dir/link-up/file", O_RDONLY, -ELOOP },
                { "dangling", O_RDONLY, -ELOOP },
                { "file", O_RDONLY | O_CREAT, -EINVAL },
                { "dir", O_RDWR | O_TMPFILE, -EINVAL },
                { "dir", O_PATH, 0 },
                { "link-to-file", O_PATH, -ELOOP },
                { "link-to-file", O_PATH | O_NOFOLLOW, 0 },
                { "link-to-file", O_RDONLY | O_NOFOLLOW, -ELOOP },
                { "link-to-dir", O_RDONLY | O_NOFOLLOW | O_DIRECTORY, -ELOOP },
                { "link-to-dir/inner", O_PATH | O_NOFOLLOW, -ELOOP },
                { "fifo", O_RDONLY, 0 }, /* and at once, with nobody at its other end */
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_close_ int fd = fs_open_beneath(dir_fd, cases[i].path, cases[i].flags);

                if (cases[i].r < 0 ? fd != cases[i].r : fd < 0)
                        return (int)i + 1;
                if (fd >= 0 && !(fcntl(fd, F_GETFD) & FD_CLOEXEC))
                        return (int)i + 101;
        }
        return 0;
}

static int opening_setup(void **state) {
        Scratch *s;
        int r = scratch_setup(state);

        if (r < 0)
                return r;
        s = *state;
        return scratch_write(s, "file", "text") || mkdirat(s->fd, "dir", 0755) ||
               scratch_write(s, "dir/inner", "inner") || symlinkat("file", s->fd, "link-to-file") ||
               symlinkat("dir", s->fd, "link-to-dir") || symlinkat("/", s->fd, "link-to-root") ||
               symlinkat("..", s->fd, "dir/link-up") || symlinkat("nowhere", s->fd, "dangling") ||
               mkfifoat(s->fd, "fifo", 0644);
}

static void nothing_outside_of_the_tree_is_opened(void **state) {
        const Scratch *s = *state;
        unsigned before = n_open_fds();

        assert_int_equal(judge_opening(s->fd), 0);
        assert_int_equal(n_open_fds(), before);
}

#if defined __x86_64__
#define AUDIT_ARCH_HERE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define AUDIT_ARCH_HERE AUDIT_ARCH_AARCH64
#endif

/* From now on this process's openat2 answers `error`. */
static int forbid_openat2(unsigned error) {
#ifdef AUDIT_ARCH_HERE
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_HERE, 0, 3),
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { .len = ELEMENTSOF(filter), .filter = filter };

        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -errno;
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -errno : 0;
#else
        (void)error;
        return -ENOSYS;
#endif
}

enum { CHILD_CANNOT_FILTER = 250, CHILD_LEAKED = 251, CHILD_NOT_FILTERED = 252 };

/* Judges the same tree in a child that has no openat2. @return the child's answer */
static int judge_without_openat2(int dir_fd, unsigned error) {
        int status;
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
                struct open_how how = { .flags = O_PATH };
                unsigned before;
                int r;

                if (syscall(SYS_openat2, dir_fd, "file", &how, sizeof how) < 0 && errno == ENOSYS)
                        _exit(CHILD_CANNOT_FILTER); /* valgrind, or an old kernel: no other way */
                if (forbid_openat2(error) < 0)
                        _exit(CHILD_CANNOT_FILTER);
                if (syscall(SYS_openat2, dir_fd, "file", &how, sizeof how) >= 0 ||
                    errno != (int)error)
                        _exit(CHILD_NOT_FILTERED);
                before = n_open_fds();
                r = judge_opening(dir_fd);
                if (r == 0 && n_open_fds() != before)
                        r = CHILD_LEAKED;
                _exit(r);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static void the_walk_without_openat2_answers_the_same(void **state) {
        static const unsigned errors[] = { ENOSYS, EPERM };
        const Scratch *s = *state;

        for (size_t i = 0; i < ELEMENTSOF(errors); i++) {
                int r = judge_without_openat2(s->fd, errors[i]);

                if (r == CHILD_CANNOT_FILTER)
                        SKIP_BECAUSE("no seccomp filter, or no openat2 to hide");
                assert_int_equal(r, 0);
        }
}

static void what_was_opened_is_what_was_named(void **state) {
        const Scratch *s = *state;
        _cleanup_close_ int fd = fs_open_beneath(s->fd, "dir/inner", O_RDONLY);
        char text[16] = { 0 };

        assert_true(fd >= 0);
        assert_int_equal(read(fd, text, sizeof text), 5);
        assert_string_equal(text, "inner");
}

static void a_path_may_be_64_components_deep_and_no_more(void **state) {
        const Scratch *s = *state;
        char path[2 * FS_DEPTH_MAX + 8] = "d";
        int fd;

        assert_int_equal(mkdirat(s->fd, path, 0755), 0);
        for (unsigned i = 1; i < FS_DEPTH_MAX; i++) {
                strcat(path, "/d");
                assert_int_equal(mkdirat(s->fd, path, 0755), 0);
        }
        fd = fs_open_beneath(s->fd, path, O_RDONLY | O_DIRECTORY);
        assert_true(fd >= 0);
        assert_int_equal(close(fd), 0);
        strcat(path, "/d");
        assert_int_equal(mkdirat(s->fd, path, 0755), 0);
        assert_int_equal(fs_open_beneath(s->fd, path, O_RDONLY | O_DIRECTORY), -ENAMETOOLONG);
}

static void only_regular_files_are_regular(void **state) {
        const Scratch *s = *state;
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_close_ int fd = -1, sock = -1;
        struct stat st;
        unsigned before;

        fd = fs_open_regular(s->fd, "dir/inner", &st);
        assert_true(fd >= 0);
        assert_int_equal(st.st_size, 5);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);

        sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        (void)snprintf(address.sun_path, sizeof address.sun_path, "%.80s/socket", s->path);
        assert_int_equal(bind(sock, (struct sockaddr *)&address, sizeof address), 0);
        before = n_open_fds();
        assert_int_equal(fs_open_regular(s->fd, "fifo", NULL), -EBADF);
        assert_int_equal(fs_open_regular(s->fd, "socket", NULL), -EBADF);
        assert_int_equal(fs_open_regular(s->fd, "dir", NULL), -EBADF);
        assert_int_equal(fs_open_regular(s->fd, "link-to-file", NULL), -ELOOP);
        assert_int_equal(fs_open_regular(s->fd, "absent", NULL), -ENOENT);
        assert_int_equal(n_open_fds(), before);
}

static void a_device_node_is_refused_without_opening_it(void **state) {
        const Scratch *s = *state;
        _cleanup_close_ int there = -1;

        /* No driver has this number: to open it would say ENXIO. */
        if (mknodat(s->fd, "device", S_IFCHR | 0600, makedev(4000, 7)) < 0)
                SKIP_BECAUSE("no right to make a device node");
        there = openat(s->fd, "device", O_RDONLY | O_CLOEXEC);
        assert_true(there < 0 && (errno == ENXIO || errno == EACCES));
        assert_int_equal(fs_open_regular(s->fd, "device", NULL), -EBADF);
}

static void a_writer_is_seen_and_its_absence_too(void **state) {
        const Scratch *s = *state;
        _cleanup_close_ int fd = fs_open_regular(s->fd, "file", NULL);
        _cleanup_close_ int writer = -1;
        int r;

        assert_true(fd >= 0);
        r = fs_check_writer(fd);
        if (r == FS_E_UNKNOWN)
                SKIP_BECAUSE("no leases in the temporary directory");
        assert_int_equal(r, 0);
        assert_int_equal(fcntl(fd, F_GETLEASE), F_UNLCK); /* given back */
        writer = openat(s->fd, "file", O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        assert_true(writer >= 0);
        assert_int_equal(fs_check_writer(fd), FS_E_WRITER);
        assert_int_equal(close(TAKE_FD(writer)), 0);
        assert_int_equal(fs_check_writer(fd), 0);
}

static void a_writer_in_another_process_is_seen(void **state) {
        const Scratch *s = *state;
        _cleanup_close_ int fd = fs_open_regular(s->fd, "file", NULL);
        int ready[2], quit[2], status, r;
        char byte;
        pid_t pid;

        assert_true(fd >= 0);
        assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
        assert_int_equal(pipe2(quit, O_CLOEXEC), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                int writer = openat(s->fd, "file", O_RDWR | O_CLOEXEC);

                (void)close(quit[1]);
                if (writer < 0 || write(ready[1], "x", 1) != 1)
                        _exit(1);
                _exit(read(quit[0], &byte, 1) == 0 ? 0 : 2);
        }
        assert_int_equal(close(ready[1]), 0);
        assert_int_equal(close(quit[0]), 0);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        r = fs_check_writer(fd);
        assert_int_equal(close(quit[1]), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_int_equal(close(ready[0]), 0);
        if (r == FS_E_UNKNOWN)
                SKIP_BECAUSE("no leases in the temporary directory");
        assert_int_equal(r, FS_E_WRITER);
        assert_int_equal(fs_check_writer(fd), 0);
}

static void where_there_are_no_leases_the_answer_is_unknown(void **state) {
        const Scratch *s = *state;

        /* A directory answers as any file does on NFS or Lustre: EINVAL. */
        assert_int_equal(fcntl(s->fd, F_SETLEASE, F_RDLCK), -1);
        assert_int_equal(errno, EINVAL);
        assert_int_equal(fs_check_writer(s->fd), FS_E_UNKNOWN);
        assert_int_equal(fs_check_writer(-1), -EBADF);
}

static void without_the_right_to_a_lease_the_answer_is_unknown(void **state) {
        const Scratch *s = *state;
        int status;
        pid_t pid;

        if (geteuid() != 0)
                SKIP_BECAUSE("needs root to become somebody else");
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                int fd = fs_open_regular(s->fd, "file", NULL);

                if (fd < 0 || setuid(65534) < 0)
                        _exit(1);
                _exit(fs_check_writer(fd) == FS_E_UNKNOWN ? 0 : 2);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
}

static void a_local_file_system_is_not_a_network(void **state) {
        _cleanup_close_ int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        const char *name = NULL;

        assert_true(fd >= 0);
        assert_false(fs_is_network(fd, &name));
        assert_string_equal(name, "local");
        assert_false(fs_is_network(fd, NULL));
}

static void what_cannot_be_queried_counts_as_a_network(void **state) {
        const char *name = NULL;

        assert_true(fs_is_network(-1, &name));
        assert_string_equal(name, "unknown");
}

static void file_system_numbers_are_the_kernels(void **state) {
        static const struct {
                uint32_t magic;
                const char *name; /* NULL = local */
        } cases[] = {
                { 0x6969, "nfs" },        { 0x517B, "smb" },        { 0xFF534D42, "cifs" },
                { 0xFE534D42, "smb2" },   { 0x0BD00BD0, "lustre" }, { 0x00C36400, "ceph" },
                { 0x47504653, "gpfs" },   { 0x5346414F, "afs" },    { 0x01021997, "9p" },
                { 0x19830326, "beegfs" }, { 0x7461636F, "ocfs2" },  { 0x01161970, "gfs2" },
                { 0x65735546, "fuse" },   { 0x0000EF53, NULL },     { 0x58465342, NULL },
                { 0x01021994, NULL },     { 0x794C7630, NULL },     { 0x9123683E, NULL },
        };
        _cleanup_close_ int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        assert_true(fd >= 0);
        fake_fstatfs = true;
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                const char *name = NULL;

                will_return(__wrap_fstatfs, cases[i].magic);
                assert_int_equal(fs_is_network(fd, &name), cases[i].name != NULL);
                assert_string_equal(name, cases[i].name ? cases[i].name : "local");
        }
        fake_fstatfs = false;
}

static unsigned n_entries(DIR *d) {
        unsigned n = 0;

        while (readdir(d))
                n++;
        return n;
}

static void a_directory_is_listed_completely_each_time_it_is_opened_and_nothing_else_is(
        void **state) {
        const Scratch *s = *state;

        assert_int_equal(scratch_write(s, "file", "x"), 0);
        assert_int_equal(mkdirat(s->fd, "dir", 0755), 0);
        assert_int_equal(symlinkat("dir", s->fd, "link"), 0);
        for (int i = 0; i < 2; i++) {
                _cleanup_closedir_ DIR *d = NULL;
                _cleanup_closedir_ DIR *below = NULL;

                assert_int_equal(fs_opendir_at(s->fd, ".", &d), 0);
                assert_int_equal(n_entries(d), 5);
                assert_int_equal(fs_opendir_fd(fs_open_beneath(s->fd, "dir", O_RDONLY), &below), 0);
                assert_int_equal(n_entries(below), 2);
        }

        const unsigned n_open = n_open_fds();
        DIR *d = NULL;
        assert_int_equal(fs_opendir_at(s->fd, "file", &d), -ENOTDIR);
        assert_int_equal(fs_opendir_at(s->fd, "link", &d), -ENOTDIR);
        assert_int_equal(fs_opendir_at(s->fd, "none", &d), -ENOENT);
        assert_int_equal(fs_opendir_fd(-EXDEV, &d), -EXDEV);
        assert_int_equal(fs_opendir_fd(openat(s->fd, "file", O_RDONLY | O_CLOEXEC), &d), -ENOTDIR);
        assert_null(d);
        assert_int_equal(n_open_fds(), n_open);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(nothing_outside_of_the_tree_is_opened,
                                                opening_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(the_walk_without_openat2_answers_the_same,
                                                opening_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(what_was_opened_is_what_was_named, opening_setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(a_path_may_be_64_components_deep_and_no_more,
                                                scratch_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(
                        a_directory_is_listed_completely_each_time_it_is_opened_and_nothing_else_is,
                        scratch_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(only_regular_files_are_regular, opening_setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(a_device_node_is_refused_without_opening_it,
                                                scratch_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(a_writer_is_seen_and_its_absence_too, opening_setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(a_writer_in_another_process_is_seen, opening_setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(where_there_are_no_leases_the_answer_is_unknown,
                                                scratch_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(without_the_right_to_a_lease_the_answer_is_unknown,
                                                opening_setup, scratch_teardown),
                cmocka_unit_test(a_local_file_system_is_not_a_network),
                cmocka_unit_test(what_cannot_be_queried_counts_as_a_network),
                cmocka_unit_test(file_system_numbers_are_the_kernels),
        };

        return cmocka_run_group_tests_name("base/fs", tests, NULL, NULL);
}
