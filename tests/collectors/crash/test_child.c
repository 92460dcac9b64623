/* The child that makes a report: what it can reach, what it is handed, and what its end costs. This
 * program is executed anew as the child, with a report_write() that misbehaves. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "tests/harness/unit.h"

#include "collectors/crash/crash.h"
#include "collectors/crash/report.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"

static void tried(StrBuf *b, const char *what, long result) {
        json_out_i64(b, what, result < 0 ? errno : 0);
}

static void try_to_reach_others(StrBuf *b) {
        struct open_how how = { .flags = O_RDONLY };
        char *none[] = { NULL };
        tried(b, "open", open("/usr/bin/env", O_RDONLY | O_CLOEXEC));
        tried(b, "openat2", syscall(SYS_openat2, AT_FDCWD, "/usr/bin/env", &how, sizeof how));
        tried(b, "create", open("/tmp/crash-child", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        tried(b, "socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        tried(b, "exec", execve("/bin/true", none, none));
        tried(b, "ptrace", ptrace(PTRACE_ATTACH, getppid(), NULL, NULL));
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
        try_to_reach_others(json);
        json_out_array(json, "asked");
        ask(json, in, "/usr/bin/env", 0);
        ask(json, in, "/etc/passwd", 0);
        ask(json, in, "/usr/bin/env", 1);
        json_out_end_array(json);
        json_out_end_object(json);
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
                void *p = malloc(UINT64_C(3) * GIB);
                return p ? 0 : -ENOMEM;
        }
        try_all(in, json);
        strbuf_add(text, "text\n");
        return 0;
}

static int make(const char *name, uint64_t timeout_usec, CrashReport *ret) {
        _cleanup_close_ int core = memfd_create("core", MFD_CLOEXEC),
                            host = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(core >= 0 && host >= 0);
        const FileRoot root = { .fd = host, .kind = FILE_ROOT_HOST, .name = "host" };
        return crash_report(&(CrashRequest){ .program = "/proc/self/exe",
                                             .core_name = name,
                                             .core_fd = core,
                                             .roots = &root,
                                             .n_roots = 1,
                                             .timeout_usec = timeout_usec },
                            ret);
}

static void it_reaches_nothing_and_is_handed_programs_only(void **state) {
        CrashReport r;
        assert_int_equal(make("try", 10 * USEC_PER_SEC, &r), 0);
        assert_string_equal(r.text, "text\n");
        assert_string_equal(
                r.json,
                "{\"open\":1,\"openat2\":1,\"create\":1,\"socket\":1,\"exec\":1,\"ptrace\":1,"
                "\"asked\":["
                "{\"path\":\"/usr/bin/env\",\"result\":0,\"place\":\"host\",\"is_writable\":false},"
                "{\"path\":\"/etc/passwd\",\"result\":-61,\"place\":\"\",\"is_writable\":false},"
                "{\"path\":\"/usr/bin/"
                "env\",\"result\":-61,\"place\":\"\",\"is_writable\":false}]}");
        crash_report_done(&r);
}

static void one_that_dies_is_an_outcome(void **state) {
        CrashReport r;
        assert_int_equal(make("die", 10 * USEC_PER_SEC, &r), CRASH_E_FAILED);
        assert_string_equal(r.fault, "its reader died by SIGKILL");
        crash_report_done(&r);
}

static void one_that_hangs_is_ended_in_time(void **state) {
        static const char *const names[] = { "hang", "spin" };
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                CrashReport r;
                uint64_t begun = clock_boottime_usec();
                assert_int_equal(make(names[i], USEC_PER_SEC, &r), CRASH_E_FAILED);
                assert_string_equal(r.fault, "reading it took longer than 1 s");
                assert_in_range(clock_boottime_usec() - begun, USEC_PER_SEC, 5 * USEC_PER_SEC);
                crash_report_done(&r);
        }
}

#ifndef __SANITIZE_ADDRESS__ /* whose shadow is terabytes of address space */
static void memory_is_limited(void **state) {
        CrashReport r;
        assert_int_equal(make("eat", 10 * USEC_PER_SEC, &r), CRASH_E_FAILED);
        assert_string_equal(r.fault, "Cannot allocate memory");
        crash_report_done(&r);
}
#endif

int main(int argc, char **argv) {
        if (argc == 2 && strcmp(argv[1], CRASH_CHILD) == 0)
                _exit(crash_child_main());
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(it_reaches_nothing_and_is_handed_programs_only),
                cmocka_unit_test(one_that_dies_is_an_outcome),
                cmocka_unit_test(one_that_hangs_is_ended_in_time),
#ifndef __SANITIZE_ADDRESS__
                cmocka_unit_test(memory_is_limited),
#endif
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
