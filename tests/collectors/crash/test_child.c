/* The child that makes a report: what it can reach, what it is handed, and what its end costs. This
 * program is executed again as the child, with a report_write() that misbehaves. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/harness/unit.h"

#include "collectors/crash/crash.h"
#include "collectors/crash/report.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"

enum { SOCKET_FD = 0, OOM_FD = 40, QUERY_BYTES = sizeof(FileQuery) };
/* A busy machine gives a child its turn late. */
#define PATIENT_USEC (2 * USEC_PER_MINUTE)

static void tried(StrBuf *b, const char *what, long result) {
        int error = result < 0 ? errno : 0;
        if (result == 0 && strcmp(what, "fork") == 0)
                _exit(0);
        json_out_i64(b, what, error);
}

static void try_files(StrBuf *b) {
        struct open_how how = { .flags = O_RDONLY };
        tried(b, "open", open("/usr/bin/env", O_RDONLY | O_CLOEXEC));
        tried(b, "openat2", syscall(SYS_openat2, AT_FDCWD, "/usr/bin/env", &how, sizeof how));
        tried(b, "create", open("/tmp/crash-child", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
#ifdef SYS_creat
        tried(b, "creat", syscall(SYS_creat, "/tmp/crash-child", 0600));
#else
        tried(b, "creat", openat(AT_FDCWD, "/tmp/crash-child", O_CREAT | O_WRONLY, 0600));
#endif
        tried(b, "unlink", unlink("/tmp/crash-child"));
        tried(b, "rename", rename("/tmp/crash-child", "/tmp/crash-other"));
        tried(b, "link", link("/tmp/crash-child", "/tmp/crash-other"));
        tried(b, "symlink", symlink("/tmp/crash-child", "/tmp/crash-other"));
        tried(b, "mkdir", mkdir("/tmp/crash-child", 0700));
        tried(b, "truncate", truncate("/tmp/crash-child", 0));
        tried(b, "chmod", chmod("/tmp/crash-child", 0700));
}

static void try_processes(StrBuf *b) {
        struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "/run/crash-child" };
        char *none[] = { NULL };
        tried(b, "socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        tried(b, "connect", connect(SOCKET_FD, (struct sockaddr *)&address, sizeof address));
        tried(b, "exec", execve("/bin/true", none, none));
        tried(b, "fork", fork());
        tried(b, "kill", kill(getppid(), 0));
        tried(b, "signal of a descriptor", fcntl(SOCKET_FD, F_SETOWN, getppid()));
        tried(b, "tgkill", syscall(SYS_tgkill, getppid(), getppid(), 0));
        tried(b, "limits of others", prlimit(getppid(), RLIMIT_CORE, NULL, &(struct rlimit){ 0 }));
        tried(b, "ptrace", ptrace(PTRACE_ATTACH, getppid(), NULL, NULL));
}

static void add_oom_score(StrBuf *b) {
        char text[16] = "";
        (void)read(OOM_FD, text, sizeof text - 1);
        text[strcspn(text, "\n")] = '\0';
        json_out_string(b, "oom_score_adj", text);
}

static void ask(StrBuf *b, const ReportInput *in, const char *path, unsigned place) {
        FileQuery q = { .is_program = true, .place = place };
        FileReply reply;
        const char *name = "";
        (void)snprintf(q.path, sizeof q.path, "%s", path);
        int fd = in->open(&q, &reply, &name, in->userdata);
        json_out_object(b, NULL);
        json_out_string(b, "path", path);
        json_out_i64(b, "result", MIN(fd, 0));
        json_out_string(b, "place", name);
        json_out_bool(b, "is_writable", fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY);
        json_out_end_object(b);
        if (fd >= 0)
                (void)close(fd);
}

static void try_all(const ReportInput *in, StrBuf *json) {
        json_out_object(json, NULL);
        try_files(json);
        try_processes(json);
        add_oom_score(json);
        json_out_array(json, "asked");
        ask(json, in, "/usr/bin/env", 0);
        ask(json, in, "/etc/passwd", 0);
        ask(json, in, "/usr/bin/env", 1);
        json_out_end_array(json);
        json_out_end_object(json);
}

/* As a child would that was taken over: it does not wait for the reply. */
static void send_query(size_t n, const int *fds, size_t n_fds) {
        static char query[QUERY_BYTES];
        struct iovec part = { query, n };
        union {
                char bytes[CMSG_SPACE(2 * sizeof(int))];
                struct cmsghdr align;
        } control = { { 0 } };
        struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };
        if (n_fds > 0) {
                m.msg_control = control.bytes;
                m.msg_controllen = CMSG_LEN(n_fds * sizeof *fds);
                *CMSG_FIRSTHDR(&m) = (struct cmsghdr){ m.msg_controllen, SOL_SOCKET, SCM_RIGHTS };
                memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), fds, n_fds * sizeof *fds);
        }
        (void)sendmsg(SOCKET_FD, &m, MSG_NOSIGNAL);
}

/* The name of the core says what it does. */
int __wrap_report_write(const ReportInput *in, StrBuf *json, StrBuf *text);
int __wrap_report_write(const ReportInput *in, StrBuf *json, StrBuf *text) {
        if (strcmp(in->core_name, "die") == 0)
                raise(SIGKILL);
        while (strcmp(in->core_name, "hang") == 0)
                pause();
        while (strcmp(in->core_name, "spin") == 0)
                ;
        if (strcmp(in->core_name, "eat") == 0) {
                void *p = malloc(UINT64_C(256) * MIB), *q = malloc(UINT64_C(384) * MIB);
                return !p ? -EFAULT : q ? 0 : -ENOMEM;
        }
        if (strcmp(in->core_name, "close and spin") == 0) {
                (void)close(SOCKET_FD);
                for (;;)
                        ;
        }
        while (strcmp(in->core_name, "ask without reading") == 0)
                send_query(QUERY_BYTES, NULL, 0);
        while (strcmp(in->core_name, "send nonsense") == 0)
                send_query(1, NULL, 0);
        if (strcmp(in->core_name, "pass descriptors") == 0) {
                static const int two[] = { 1, 2 };
                for (int i = 0; i < 20; i++)
                        send_query(QUERY_BYTES, two, 1 + i % 2);
        }
        while (strcmp(in->core_name, "ask") == 0)
                ask(json, in, "/etc/passwd", 0);
        try_all(in, json);
        strbuf_add(text, "text\n");
        if (strcmp(in->core_name, "fail late") == 0)
                return in->publish(json, text, in->userdata) < 0 ? -EIO : -ENOMEM;
        return 0;
}

static int make_of(int core_fd, const char *name, uint64_t timeout_usec, CrashReport *ret) {
        _cleanup_close_ int host = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(core_fd >= 0 && host >= 0);
        const FileRoot root = { .fd = host, .kind = FILE_ROOT_HOST, .name = "host" };
        return crash_report(&(CrashRequest){ .program = "/proc/self/exe",
                                             .core_name = name,
                                             .core_fd = core_fd,
                                             .roots = &root,
                                             .n_roots = 1,
                                             .timeout_usec = timeout_usec,
                                             .stream_timeout_usec = USEC_PER_SEC },
                            ret);
}

static int make(const char *name, uint64_t timeout_usec, CrashReport *ret) {
        _cleanup_close_ int core = memfd_create("core", MFD_CLOEXEC);
        return make_of(core, name, timeout_usec, ret);
}

static const char reached_nothing[] =
        "{\"open\":1,\"openat2\":1,\"create\":1,\"creat\":1,\"unlink\":1,\"rename\":1,"
        "\"link\":1,\"symlink\":1,\"mkdir\":1,\"truncate\":1,\"chmod\":1,"
        "\"socket\":1,\"connect\":1,\"exec\":1,\"fork\":1,\"kill\":1,"
        "\"signal of a descriptor\":1,\"tgkill\":1,\"limits of others\":1,"
        "\"ptrace\":1,\"oom_score_adj\":\"1000\","
        "\"asked\":["
        "{\"path\":\"/usr/bin/env\",\"result\":0,\"place\":\"host\",\"is_writable\":false},"
        "{\"path\":\"/etc/passwd\",\"result\":-61,\"place\":\"\",\"is_writable\":false},"
        "{\"path\":\"/usr/bin/"
        "env\",\"result\":-61,\"place\":\"\",\"is_writable\":false}]}";

static void it_reaches_nothing_and_is_handed_programs_only(void **state) {
        CrashReport r;
        assert_int_equal(make("try", PATIENT_USEC, &r), 0);
        assert_string_equal(r.text, "text\n");
        assert_string_equal(r.json, reached_nothing);
        crash_report_done(&r);
}

static void one_that_dies_is_an_outcome(void **state) {
        CrashReport r;
        assert_int_equal(make("die", PATIENT_USEC, &r), CRASH_E_FAILED);
        assert_string_equal(r.fault, "its reader died by SIGKILL");
        crash_report_done(&r);
}

static void one_that_fails_behind_its_report_has_made_one(void **state) {
        CrashReport r;
        assert_int_equal(make("fail late", PATIENT_USEC, &r), 0);
        assert_string_equal(r.text, "text\n");
        assert_string_equal(r.json, reached_nothing);
        assert_null(r.fault);
        crash_report_done(&r);
}

/* In a process of its own, which cannot get rid of the filter. */
static void it_reaches_nothing_where_the_kernel_has_no_landlock(void **state) {
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_landlock_create_ruleset, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { .len = ELEMENTSOF(filter), .filter = filter };
        int status;
        pid_t pid = fork();
        if (pid == 0) {
                CrashReport r;
                if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
                    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
                        _exit(2);
                int code = make("try", PATIENT_USEC, &r);
                _exit(code != 0 || strcmp(r.json, reached_nothing) != 0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
}

static size_t n_open_fds(void) {
        size_t n = 0;
        DIR *d = opendir("/proc/self/fd");
        assert_non_null(d);
        while (readdir(d))
                n++;
        (void)closedir(d);
        return n;
}

static void one_that_misbehaves_costs_its_report_and_nothing_else(void **state) {
        static const char *const names[] = { "ask without reading", "send nonsense" };
        size_t n_before = n_open_fds();
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                CrashReport r;
                assert_int_equal(make(names[i], PATIENT_USEC, &r), CRASH_E_FAILED);
                assert_string_equal(r.fault, "its reader misbehaved");
                crash_report_done(&r);
        }
        CrashReport r;
        (void)make("pass descriptors", PATIENT_USEC, &r);
        crash_report_done(&r);
        assert_int_equal(n_open_fds(), n_before);
}

static void one_that_hangs_is_ended_in_time(void **state) {
        static const char *const names[] = { "hang", "spin", "close and spin" };
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                CrashReport r;
                uint64_t begun = clock_boottime_usec();
                assert_int_equal(make(names[i], USEC_PER_SEC, &r), CRASH_E_FAILED);
                assert_string_equal(r.fault, "reading it took longer than 1 s");
                assert_in_range(clock_boottime_usec() - begun, USEC_PER_SEC, 30 * USEC_PER_SEC);
                crash_report_done(&r);
        }
}

static void a_silent_pipe_has_a_timeout(void **state) {
        CrashReport r;
        int ends[2];
        uint64_t begun = clock_boottime_usec();
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        assert_int_equal(make_of(ends[0], "try", USEC_PER_SEC, &r), CRASH_E_FAILED);
        assert_string_equal(r.fault, "reading it took longer than 2 s");
        assert_in_range(clock_boottime_usec() - begun, 2 * USEC_PER_SEC, 30 * USEC_PER_SEC);
        crash_report_done(&r);
        (void)close(ends[0]);
        (void)close(ends[1]);
}

/* A core, and zeros behind it until nobody reads them any more. */
static void write_without_end(int fd) {
        static char data[128 * 1024];
        const char *srcdir = getenv("srcdir");
        _cleanup_free_ char *path =
                strbuf_format("%s/tests/fuzz/corpus/core/whole", srcdir ? srcdir : ".");
        _cleanup_close_ int core = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = read(core, data, sizeof data);
        if (n <= 0)
                _exit(1);
        while (write(fd, data, (size_t)n) > 0) {
                memset(data, 0, sizeof data);
                n = sizeof data;
        }
        _exit(0);
}

static void a_core_without_end_has_a_report_of_what_came_in_time(void **state) {
        CrashReport r;
        int ends[2], status;
        uint64_t begun = clock_boottime_usec();
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) {
                (void)signal(SIGPIPE, SIG_IGN);
                (void)close(ends[0]);
                write_without_end(ends[1]);
        }
        (void)close(ends[1]);
        assert_int_equal(make_of(ends[0], "try", PATIENT_USEC, &r), 0);
        assert_string_equal(r.json, reached_nothing);
        assert_in_range(clock_boottime_usec() - begun, USEC_PER_SEC, 30 * USEC_PER_SEC);
        crash_report_done(&r);
        (void)close(ends[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
}

static void one_that_requests_without_end_is_ended(void **state) {
        CrashReport r;
        assert_int_equal(make("ask", PATIENT_USEC, &r), CRASH_E_FAILED);
        assert_string_equal(r.fault, "its reader misbehaved");
        crash_report_done(&r);
}

static void more_context_than_its_bound_is_left_out(void **state) {
        CrashReport r;
        static char context[CRASH_CONTEXT_BYTES_MAX + 2];
        memset(context, ' ', sizeof context - 1);
        _cleanup_close_ int core = memfd_create("core", MFD_CLOEXEC);
        assert_int_equal(crash_report(&(CrashRequest){ .program = "/proc/self/exe",
                                                       .core_name = "try",
                                                       .core_fd = core,
                                                       .context = context,
                                                       .timeout_usec = PATIENT_USEC },
                                      &r),
                         0);
        crash_report_done(&r);
}

#ifndef __SANITIZE_ADDRESS__ /* whose shadow is terabytes of address space */
static void memory_is_limited(void **state) {
        CrashReport r;
        assert_int_equal(make("eat", PATIENT_USEC, &r), CRASH_E_FAILED);
        assert_string_equal(r.fault, "Cannot allocate memory");
        crash_report_done(&r);
}
#endif

/* What it has open beside what it was given: how it stands with the kernel, to be read later. */
static int run_as_child(void) {
        _cleanup_close_ int fd = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
        if (dup2(fd, OOM_FD) < 0)
                return 1;
        _exit(crash_child_main());
}

int main(int argc, char **argv) {
        if (argc == 2 && strcmp(argv[1], CRASH_CHILD) == 0)
                return run_as_child();
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(it_reaches_nothing_and_is_handed_programs_only),
                cmocka_unit_test(it_reaches_nothing_where_the_kernel_has_no_landlock),
                cmocka_unit_test(more_context_than_its_bound_is_left_out),
                cmocka_unit_test(one_that_misbehaves_costs_its_report_and_nothing_else),
                cmocka_unit_test(one_that_dies_is_an_outcome),
                cmocka_unit_test(one_that_fails_behind_its_report_has_made_one),
                cmocka_unit_test(one_that_hangs_is_ended_in_time),
                cmocka_unit_test(a_silent_pipe_has_a_timeout),
                cmocka_unit_test(a_core_without_end_has_a_report_of_what_came_in_time),
                cmocka_unit_test(one_that_requests_without_end_is_ended),
#ifndef __SANITIZE_ADDRESS__
                cmocka_unit_test(memory_is_limited),
#endif
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
