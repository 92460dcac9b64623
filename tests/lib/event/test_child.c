/* Children: what they say, how they end, and that none is left. */
#include "lib/event/child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/harness/unit.h"

typedef struct Outcome {
        bool is_done, frees_it;
        unsigned n_done;
        int status, error;
        char output[4096], error_line[512];
        size_t output_bytes;
        Child *child;
} Outcome;

/* Kernels and filters that know no pidfd. */
static bool has_pid_fds = true;
long __real_syscall(long number, long a, long b, long c, long d);
long __wrap_syscall(long number, long a, long b, long c, long d);
long __wrap_syscall(long number, long a, long b, long c, long d) {
        if (number != SYS_pidfd_open || has_pid_fds)
                return __real_syscall(number, a, b, c, d);
        errno = ENOSYS;
        return -1;
}

static int setup(void **state) {
        sd_event *event = NULL;

        assert_int_equal(sd_event_new(&event), 0);
        *state = event;
        return 0;
}

static int setup_without(void **state) {
        has_pid_fds = false;
        return setup(state);
}

static int teardown(void **state) {
        has_pid_fds = true;
        assert_null(sd_event_unref(*state));
        return 0;
}

static uint64_t now_usec(void) {
        struct timespec now;

        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * USEC_PER_SEC + (uint64_t)now.tv_nsec / 1000;
}

#define UNTIL(event, condition)                                                                    \
        do {                                                                                       \
                uint64_t _end = now_usec() + 60 * USEC_PER_SEC;                                    \
                while (!(condition)) {                                                             \
                        if (now_usec() > _end)                                                     \
                                fail_msg("waited in vain: %s", #condition);                        \
                        assert_true(sd_event_run(event, 100 * USEC_PER_MSEC) >= 0);                \
                }                                                                                  \
        } while (0)

static void on_done(const ChildResult *r, void *userdata) {
        Outcome *t = userdata;

        t->is_done = true;
        t->n_done++;
        t->status = r->status;
        t->error = r->error;
        t->output_bytes = r->output_bytes;
        assert_int_equal(r->output[r->output_bytes], '\0');
        memcpy(t->output, r->output, MIN(r->output_bytes + 1, sizeof t->output - 1));
        (void)snprintf(t->error_line, sizeof t->error_line, "%s", r->error_line);
        if (t->frees_it)
                t->child = child_free(t->child);
}

static void begin_order(sd_event *event, ChildOptions options, Outcome *t) {
        bool frees_it = t->frees_it;

        *t = (Outcome){ .frees_it = frees_it };
        options.on_done = on_done;
        options.userdata = t;
        if (options.timeout_usec == 0)
                options.timeout_usec = 60 * USEC_PER_SEC;
        if (options.output_max_bytes == 0)
                options.output_max_bytes = 1000000;
        assert_int_equal(child_new(&t->child, event, &options), 0);
        assert_false(t->is_done); /* never from inside */
}

static void begin(sd_event *event, const char *script, Outcome *t) {
        char *argv[] = { "sh", "-c", (char *)script, NULL };

        begin_order(event, (ChildOptions){ .argv = argv }, t);
}

static void run(sd_event *event, const char *script, Outcome *t) {
        begin(event, script, t);
        UNTIL(event, t->is_done);
        t->child = child_free(t->child);
        assert_int_equal(t->n_done, 1);
}

/* None of ours, neither running nor dead. */
static bool has_children(void) {
        return waitid(P_ALL, 0, &(siginfo_t){ .si_pid = 0 }, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static void its_output_and_status_are_reported(void **state) {
        Outcome t = { .is_done = false };

        run(*state, "echo hello; printf 'first line\\nsecond\\n' >&2; exit 3", &t);
        assert_int_equal(t.error, 0);
        assert_true(WIFEXITED(t.status));
        assert_int_equal(WEXITSTATUS(t.status), 3);
        assert_string_equal(t.output, "hello\n");
        assert_int_equal(t.output_bytes, 6);
        assert_string_equal(t.error_line, "first line");
        run(*state, "kill -TERM $$", &t);
        assert_true(WIFSIGNALED(t.status));
        assert_int_equal(WTERMSIG(t.status), SIGTERM);
        assert_string_equal(t.output, "");
        assert_string_equal(t.error_line, "");
        assert_false(has_children());
}

static void output_of_any_size_up_to_the_bound_is_reported(void **state) {
        char script[128];
        Outcome t = { .is_done = false };

        for (size_t n = 0; n <= 1000000; n = n * 9 + 1) {
                (void)snprintf(script, sizeof script, "head -c %zu /dev/zero | tr '\\0' x", n);
                run(*state, script, &t);
                assert_int_equal(t.error, 0);
                assert_int_equal(t.output_bytes, n);
        }
        run(*state, "head -c 1000000 /dev/zero", &t);
        assert_int_equal(t.error, 0);
        assert_int_equal(t.output_bytes, 1000000);
        run(*state, "head -c 1000001 /dev/zero", &t);
        assert_int_equal(t.error, -EFBIG);
        run(*state, "cat /dev/zero", &t); /* would never end */
        assert_int_equal(t.error, -EFBIG);
        UNTIL(*state, !has_children());
}

static void a_long_line_of_errors_is_cut_and_does_not_block(void **state) {
        Outcome t = { .is_done = false };

        run(*state, "head -c 300000 /dev/zero | tr '\\0' e >&2; echo done", &t);
        assert_int_equal(t.error, 0);
        assert_string_equal(t.output, "done\n");
        assert_int_equal(strlen(t.error_line), 256);
        assert_int_equal(strspn(t.error_line, "e"), 256);
}

static void who_runs_too_long_is_killed_with_all_it_has_started(void **state) {
        char *argv[] = { "sh", "-c", "sleep 1000 & sleep 1000 & echo $$; wait", NULL };
        uint64_t begun = now_usec();
        pid_t group;
        Outcome t = { .is_done = false };

        begin_order(*state, (ChildOptions){ .argv = argv, .timeout_usec = 2 * USEC_PER_SEC }, &t);
        UNTIL(*state, t.is_done);
        assert_int_equal(t.error, -ETIMEDOUT);
        assert_in_range(now_usec() - begun, 2 * USEC_PER_SEC, 30 * USEC_PER_SEC);
        group = (pid_t)strtol(t.output, NULL, 10); /* what it had written is kept */
        assert_true(group > 1);
        t.child = child_free(t.child);
        UNTIL(*state, !has_children());
        UNTIL(*state, kill(-group, 0) < 0 && errno == ESRCH);
}

static void a_program_that_is_missing_or_none_is_reported(void **state) {
        char *missing[] = { "no-such-program-here", NULL }, *path[] = { "/no/such/program", NULL };
        char *directory[] = { "/tmp", NULL };
        Outcome t = { .frees_it = true };

        begin_order(*state, (ChildOptions){ .argv = missing }, &t);
        UNTIL(*state, t.is_done);
        assert_int_equal(t.error, -ENOENT);
        begin_order(*state, (ChildOptions){ .argv = path }, &t);
        UNTIL(*state, t.is_done);
        assert_int_equal(t.error, -ENOENT);
        begin_order(*state, (ChildOptions){ .argv = directory }, &t);
        UNTIL(*state, t.is_done);
        assert_int_equal(t.error, -EACCES);
        t.frees_it = false;
        begin_order(*state, (ChildOptions){ .argv = missing }, &t);
        t.child = child_free(t.child); /* before it was told */
        while (sd_event_run(*state, 0) > 0)
                ;
        assert_false(t.is_done);
        assert_false(has_children());
}

static void a_wrong_order_is_refused(void **state) {
        char *argv[] = { "true", NULL }, *none[] = { NULL }, *empty[] = { "", NULL };
        ChildOptions options = { .argv = argv, .timeout_usec = 1, .on_done = on_done };
        Child *c = NULL;

        options.timeout_usec = 0;
        assert_int_equal(child_new(&c, *state, &options), -EINVAL);
        options.timeout_usec = 1;
        options.argv = none;
        assert_int_equal(child_new(&c, *state, &options), -EINVAL);
        options.argv = empty;
        assert_int_equal(child_new(&c, *state, &options), -EINVAL);
        options.argv = argv;
        options.on_done = NULL;
        assert_int_equal(child_new(&c, *state, &options), -EINVAL);
        assert_null(c);
}

static void it_gets_the_environment_it_is_given_or_ours(void **state) {
        char *argv[] = { "/bin/sh", "-c", "echo $NC_TEST-$NC_OTHER", NULL };
        char *environment[] = { "NC_TEST=given", NULL };
        Outcome t = { .frees_it = true };

        assert_int_equal(setenv("NC_OTHER", "ours", 1), 0);
        begin_order(*state, (ChildOptions){ .argv = argv, .environment = environment }, &t);
        UNTIL(*state, t.is_done);
        assert_string_equal(t.output, "given-\n");
        begin_order(*state, (ChildOptions){ .argv = argv }, &t);
        UNTIL(*state, t.is_done);
        assert_string_equal(t.output, "-ours\n");
}

static void it_inherits_no_descriptor_no_signals_and_no_group(void **state) {
        int fd = open("/dev/null", O_RDONLY); /* not closed by exec */
        unsigned long long blocked, ignored;
        sigset_t all, before;
        int group, pid;
        Outcome t = { .is_done = false };

        assert_true(fd > 2);
        (void)sigfillset(&all);
        assert_int_equal(pthread_sigmask(SIG_SETMASK, &all, &before), 0);
        assert_true(signal(SIGUSR1, SIG_IGN) != SIG_ERR);
        run(*state,
            "grep -E 'Sig(Blk|Ign)' /proc/self/status | sed 's/.*\t/0x/'; cut -d' ' -f 5 "
            "/proc/$$/stat; echo $$;"
            "for f in /proc/$$/fd/*; do [ -e \"$f\" ] && echo \"${f##*/}\"; done",
            &t);
        assert_true(signal(SIGUSR1, SIG_DFL) != SIG_ERR);
        assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
        (void)close(fd);
        assert_int_equal(t.error, 0);
        assert_int_equal(sscanf(t.output, "%llx %llx %d %d", &blocked, &ignored, &group, &pid), 4);
        assert_int_equal(blocked, 0);
        assert_int_equal(ignored & 0x7fffffff,
                         0); /* glibc keeps two real-time signals for itself */
        assert_int_equal(group, pid);
        assert_non_null(strstr(t.output, "\n0\n1\n2\n"));
        assert_string_equal(strstr(t.output, "\n2\n"), "\n2\n");
}

static void it_is_seen_to_end_whatever_becomes_of_sigchld(void **state) {
        sigset_t chld, before;
        Outcome t = { .is_done = false };

        (void)sigemptyset(&chld);
        (void)sigaddset(&chld, SIGCHLD);
        assert_int_equal(pthread_sigmask(SIG_BLOCK, &chld, &before), 0);
        run(*state, "exit 4", &t);
        assert_int_equal(WEXITSTATUS(t.status), 4);
        assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &chld, NULL), 0);
        run(*state, "exit 5", &t);
        assert_int_equal(WEXITSTATUS(t.status), 5);
        assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
        assert_true(signal(SIGCHLD, SIG_IGN) != SIG_ERR); /* the kernel keeps no status then */
        run(*state, "exit 6", &t);
        assert_true(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
        assert_int_equal(t.error, -ECHILD);
}

static void who_is_left_behind_is_not_waited_for(void **state) {
        uint64_t begun = now_usec();
        Outcome t = { .is_done = false };

        run(*state, "sleep 1000 & echo $!", &t);
        assert_int_equal(t.error, 0);
        assert_true(now_usec() - begun < 100 * USEC_PER_SEC);
        assert_int_equal(kill((pid_t)strtol(t.output, NULL, 10), SIGKILL), 0); /* it lives */
}

static void who_closes_its_output_may_continue(void **state) {
        Outcome t = { .is_done = false };

        run(*state,
            "echo said; exec >&- 2>&-; i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; exit 7",
            &t);
        assert_int_equal(WEXITSTATUS(t.status), 7);
        assert_string_equal(t.output, "said\n");
}

static void it_can_be_freed_at_any_time_and_nothing_is_left(void **state) {
        Outcome t = { .is_done = false };

        for (unsigned turns = 0; turns < 5; turns++) {
                begin(*state, "echo begun; sleep 1000", &t);
                for (unsigned i = 0; i < turns; i++)
                        assert_true(sd_event_run(*state, 10 * USEC_PER_MSEC) >= 0);
                t.child = child_free(t.child);
                UNTIL(*state, !has_children());
                assert_false(t.is_done);
        }
        t.frees_it = true;
        begin(*state, "true", &t);
        UNTIL(*state, t.is_done); /* freed in its own callback */
        assert_null(child_free(NULL));
        assert_false(has_children());
}

static void a_loop_may_go_before_its_child_is_reaped(void **state) {
        sd_event *event = NULL;
        Outcome t = { .is_done = false };

        assert_int_equal(sd_event_new(&event), 0);
        begin(event, "sleep 1000", &t);
        t.child = child_free(t.child);
        assert_null(sd_event_unref(event));
        assert_int_equal(waitid(P_ALL, 0, &(siginfo_t){ .si_pid = 0 }, WEXITED), 0);
        assert_false(has_children());
}

static void many_run_at_once(void **state) {
        enum { N = 30 };
        static Outcome t[N];
        char script[32];

        for (int i = 0; i < N; i++) {
                (void)snprintf(script, sizeof script, "echo %d; exit %d", i, i);
                begin(*state, script, &t[i]);
        }
        for (int i = 0; i < N; i++) {
                UNTIL(*state, t[i].is_done);
                assert_int_equal(WEXITSTATUS(t[i].status), i);
                assert_int_equal(strtol(t[i].output, NULL, 10), i);
                t[i].child = child_free(t[i].child);
        }
        assert_false(has_children());
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#define TEST_WITHOUT(name)                                                                         \
        { #name " (without pidfds)", name, setup_without, teardown, NULL }

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(its_output_and_status_are_reported),
                TEST(output_of_any_size_up_to_the_bound_is_reported),
                TEST(a_long_line_of_errors_is_cut_and_does_not_block),
                TEST(who_runs_too_long_is_killed_with_all_it_has_started),
                TEST(a_program_that_is_missing_or_none_is_reported),
                TEST(a_wrong_order_is_refused),
                TEST(it_gets_the_environment_it_is_given_or_ours),
                TEST(it_inherits_no_descriptor_no_signals_and_no_group),
                TEST(it_is_seen_to_end_whatever_becomes_of_sigchld),
                TEST(who_is_left_behind_is_not_waited_for),
                TEST(who_closes_its_output_may_continue),
                TEST(it_can_be_freed_at_any_time_and_nothing_is_left),
                TEST(a_loop_may_go_before_its_child_is_reaped),
                TEST(many_run_at_once),
                TEST_WITHOUT(its_output_and_status_are_reported),
                TEST_WITHOUT(output_of_any_size_up_to_the_bound_is_reported),
                TEST_WITHOUT(who_runs_too_long_is_killed_with_all_it_has_started),
                TEST_WITHOUT(it_can_be_freed_at_any_time_and_nothing_is_left),
                TEST_WITHOUT(a_loop_may_go_before_its_child_is_reaped),
                TEST_WITHOUT(many_run_at_once),
        };

        return cmocka_run_group_tests_name("loop/child", tests, NULL, NULL);
}
