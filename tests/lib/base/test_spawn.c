/* lib/base/spawn: what a started program has, judged by programs of the system. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/spawn.h"

static char *const environment[] = { (char *)"ONLY=this", (char *)"PATH=/usr/bin:/bin", NULL };

/* Runs a program with a pipe as its standard output. @return its output, in a static buffer */
static const char *output(char *const argv[], bool keeps_signals, bool keeps_capabilities) {
        static char text[512];
        int fds[2], status;
        pid_t pid = 0;
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        _cleanup_close_ int from = fds[0], to = fcntl(fds[1], F_DUPFD, 10); /* without O_CLOEXEC */
        (void)close(fds[1]);
        assert_int_equal(
                spawn_program(&pid, &(SpawnOptions){ .program = argv[0],
                                                     .argv = argv,
                                                     .environment = environment,
                                                     .fds = { -1, to, STDERR_FILENO },
                                                     .n_fds = 3,
                                                     .keeps_signals = keeps_signals,
                                                     .keeps_capabilities = keeps_capabilities }),
                0);
        (void)close(TAKE_FD(to));
        size_t n = 0;
        ssize_t r;
        while ((r = read(from, text + n, sizeof text - 1 - n)) > 0)
                n += (size_t)r;
        text[n] = '\0';
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        return text;
}

#define RUN(keeps, ...) output((char *const[]){ __VA_ARGS__, NULL }, keeps, false)

static void it_has_the_descriptors_of_its_order_and_no_others(void **state) {
        assert_string_equal(RUN(false, (char *)"readlink", (char *)"/proc/self/fd/0"),
                            "/dev/null\n");
        /* The fourth is that of the directory, which ls has open. */
        assert_string_equal(RUN(false, (char *)"ls", (char *)"/proc/self/fd"), "0\n1\n2\n3\n");
}

static void it_has_the_environment_of_its_order_and_a_group_of_its_own(void **state) {
        assert_string_equal(RUN(false, (char *)"env"), "ONLY=this\nPATH=/usr/bin:/bin\n");
        assert_string_equal(RUN(false, (char *)"sh", (char *)"-c",
                                (char *)"[ $(ps -o pgid= $$) = $$ ] && echo group"),
                            "group\n");
}

/* What grep has of a set of signals. @param name  SigBlk, SigIgn */
static uint64_t signals_of(const char *name, bool keeps_signals) {
        const char *text =
                RUN(keeps_signals, (char *)"grep", (char *)name, (char *)"/proc/self/status");
        assert_memory_equal(text, name, strlen(name));
        return strtoull(text + strlen(name) + 1, NULL, 16);
}

static void signals_are_at_their_defaults_unless_they_are_to_be_kept(void **state) {
        const uint64_t usr1 = UINT64_C(1) << (SIGUSR1 - 1), xfsz = UINT64_C(1) << (SIGXFSZ - 1);
        sigset_t one, before;
        (void)sigemptyset(&one);
        (void)sigaddset(&one, SIGUSR1);
        assert_int_equal(sigprocmask(SIG_BLOCK, &one, &before), 0);
        assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
        assert_int_equal(signals_of("SigBlk", true) & usr1, usr1);
        assert_int_equal(signals_of("SigIgn", true) & xfsz, xfsz);
        assert_int_equal(signals_of("SigBlk", false), 0);
        assert_int_equal(signals_of("SigIgn", false) & xfsz, 0);
        assert_true(signal(SIGXFSZ, SIG_DFL) != SIG_ERR);
        assert_int_equal(sigprocmask(SIG_SETMASK, &before, NULL), 0);
}

/* @param name  CapEff, CapPrm, CapInh, CapAmb */
static uint64_t capabilities_of(const char *name, bool keeps_capabilities) {
        const char *text = output(
                (char *const[]){ (char *)"grep", (char *)name, (char *)"/proc/self/status", NULL },
                false, keeps_capabilities);
        assert_memory_equal(text, name, strlen(name));
        return strtoull(text + strlen(name) + 1, NULL, 16);
}

/* As systemd's AmbientCapabilities= has it. @return what this process has, one of them ambient */
static uint64_t raise_ambient(void) {
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct data[2] = { { 0 } };
        assert_int_equal(syscall(SYS_capget, &head, data), 0);
        data[0].inheritable |= data[0].permitted & (UINT32_C(1) << CAP_DAC_READ_SEARCH);
        assert_int_equal(syscall(SYS_capset, &head, data), 0);
        (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0);
        return data[0].permitted | (uint64_t)data[1].permitted << 32;
}

static void a_program_has_no_capabilities_unless_they_are_to_be_kept(void **state) {
        static const char *const sets[] = { "CapEff", "CapPrm", "CapInh", "CapAmb" };
        uint64_t ours = raise_ambient();
        for (size_t i = 0; i < ELEMENTSOF(sets); i++)
                assert_int_equal(capabilities_of(sets[i], false), 0);
        if (ours >> CAP_DAC_READ_SEARCH & 1)
                assert_true(capabilities_of("CapEff", true) >> CAP_DAC_READ_SEARCH & 1);
        (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

static void what_cannot_be_started_is_reported_and_leaves_nothing(void **state) {
        char *argv[] = { (char *)"x", NULL };
        pid_t pid = 4711;
        assert_int_equal(spawn_program(&pid, &(SpawnOptions){ .program = "/no/such/program",
                                                              .argv = argv,
                                                              .environment = environment,
                                                              .fds = { -1, -1, STDERR_FILENO },
                                                              .n_fds = 3 }),
                         -ENOENT);
        assert_int_equal(pid, 4711);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        assert_int_equal(errno, ECHILD);
}

/* The program looks when it has read a line, which it is given when spawn_program() has returned.
 */
static void a_program_has_the_limit_of_descriptors_that_was_there_before_it_was_raised(
        void **state) {
        struct rlimit before, low, now;
        char text[32] = "", expected[32];
        int in[2], out[2], status;
        pid_t pid = 0;
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
        low = (struct rlimit){ .rlim_cur = before.rlim_max / 2, .rlim_max = before.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        assert_int_equal(spawn_raise_fd_limit(), 0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
        assert_true(now.rlim_cur == before.rlim_max && now.rlim_max == before.rlim_max);
        assert_int_equal(pipe2(in, O_CLOEXEC), 0);
        assert_int_equal(pipe2(out, O_CLOEXEC), 0);
        char *argv[] = { (char *)"sh", (char *)"-c", (char *)"read go; ulimit -Sn", NULL };
        assert_int_equal(
                spawn_program(&pid, &(SpawnOptions){ .program = "sh",
                                                     .argv = argv,
                                                     .environment = environment,
                                                     .fds = { in[0], out[1], STDERR_FILENO },
                                                     .n_fds = 3 }),
                0);
        assert_int_equal(write(in[1], "go\n", 3), 3);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_true(read(out[0], text, sizeof text - 1) > 0);
        (void)snprintf(expected, sizeof expected, "%llu\n", (unsigned long long)low.rlim_cur);
        assert_string_equal(text, expected);
        for (int i = 0; i < 2; i++)
                (void)close(in[i]), (void)close(out[i]);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(it_has_the_descriptors_of_its_order_and_no_others),
                cmocka_unit_test(it_has_the_environment_of_its_order_and_a_group_of_its_own),
                cmocka_unit_test(signals_are_at_their_defaults_unless_they_are_to_be_kept),
                cmocka_unit_test(a_program_has_no_capabilities_unless_they_are_to_be_kept),
                cmocka_unit_test(what_cannot_be_started_is_reported_and_leaves_nothing),
                /* The last one: it stays raised. */
                cmocka_unit_test(
                        a_program_has_the_limit_of_descriptors_that_was_there_before_it_was_raised),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
