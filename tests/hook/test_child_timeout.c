/* Children for what may hang: heard when they end, left behind when they do not. */
#include "hook/hook.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

static uint64_t now_usec(void) {
        return clock_system()->boottime_usec(clock_system());
}

static int act(void *userdata) {
        const char *what = userdata;
        if (strcmp(what, "fails") == 0)
                return -EROFS;
        if (strcmp(what, "crashes") == 0)
                (void)raise(SIGKILL);
        if (strcmp(what, "hangs") == 0)
                for (;;)
                        (void)pause();
        return 0;
}

static int run(const char *what, uint64_t usec) {
        TimedChild b;
        child_timeout_start(&b, act, (char *)what);
        assert_true(b.pid > 0);
        int r = child_timeout_wait(&b, now_usec() + usec);
        assert_int_equal(b.pid, 0);
        assert_int_equal(child_timeout_wait(&b, 0), r); /* asked again, it says the same */
        return r;
}

static void reap_all(void) {
        while (waitpid(-1, NULL, 0) > 0) /* ends only because all have ended */
                continue;
}

static void what_it_returned_is_reported(void **state) {
        assert_int_equal(run("nothing", USEC_PER_MINUTE), 0);
        assert_int_equal(run("fails", USEC_PER_MINUTE), -EROFS);
        assert_int_equal(run("crashes", USEC_PER_MINUTE), -EPIPE);
        reap_all();
}

static void nobody_has_to_be_waited_for_to_know_it(void **state) {
        (void)signal(SIGCHLD, SIG_IGN);
        assert_int_equal(run("nothing", USEC_PER_MINUTE), 0);
        assert_int_equal(run("fails", USEC_PER_MINUTE), -EROFS);
        (void)signal(SIGCHLD, SIG_DFL);
        reap_all();
}

static void one_that_hangs_is_killed_in_time(void **state) {
        uint64_t begun = now_usec();
        assert_int_equal(run("hangs", 50 * USEC_PER_MSEC), -ETIMEDOUT);
        assert_in_range(now_usec() - begun, 50 * USEC_PER_MSEC, USEC_PER_MINUTE);
        reap_all();
}

static void where_there_can_be_no_child_nothing_is_done(void **state) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
                static const struct rlimit none = { 0 };
                TimedChild b;
                if (setrlimit(RLIMIT_NPROC, &none) < 0 || (getuid() == 0 && setuid(65534) < 0))
                        _exit(101);
                child_timeout_start(&b, act, (char *)"hangs");
                _exit(b.pid == 0 ? -child_timeout_wait(&b, now_usec()) : 102);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(WEXITSTATUS(status), EAGAIN);
}

static void time_that_is_over_is_no_reason_to_wait(void **state) {
        assert_int_equal(run("hangs", 0), -ETIMEDOUT);
        reap_all();
        assert_int_equal(child_timeout_wait(&TIMED_CHILD_NONE, 0), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_it_returned_is_reported),
                cmocka_unit_test(nobody_has_to_be_waited_for_to_know_it),
                cmocka_unit_test(one_that_hangs_is_killed_in_time),
                cmocka_unit_test(where_there_can_be_no_child_nothing_is_done),
                cmocka_unit_test(time_that_is_over_is_no_reason_to_wait),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
