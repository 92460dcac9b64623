/* Children for what may hang: heard when they end, left behind when they do not. */
#include "hook/bounded.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

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
        if (strcmp(what, "closes and hangs") ==
            0) /* as in an exit that closes a file of a dead server */
                for (int fd = 3; fd < 256; fd++)
                        (void)close(fd);
        if (strstr(what, "hangs"))
                for (;;)
                        (void)pause();
        return 0;
}

static int run(const char *what, uint64_t usec) {
        Bounded b;
        bounded_start(&b, act, (char *)what);
        assert_true(b.pid > 0);
        int r = bounded_wait(&b, now_usec() + usec);
        assert_int_equal(b.pid, 0);
        assert_int_equal(bounded_wait(&b, 0), r); /* asked again, it says the same */
        return r;
}

static void what_it_returned_is_told(void **state) {
        (void)state;
        assert_int_equal(run("nothing", USEC_PER_MINUTE), 0);
        assert_int_equal(run("fails", USEC_PER_MINUTE), -EROFS);
        assert_int_equal(run("crashes", USEC_PER_MINUTE), -EPIPE);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* all were reaped */
}

static void one_that_hangs_is_killed_in_time(void **state) {
        (void)state;
        static const char *const ways[] = { "hangs", "closes and hangs" };
        for (size_t i = 0; i < ELEMENTSOF(ways); i++) {
                uint64_t begun = now_usec();
                assert_int_equal(run(ways[i], 50 * USEC_PER_MSEC), -ETIMEDOUT);
                assert_in_range(now_usec() - begun, 50 * USEC_PER_MSEC, USEC_PER_MINUTE);
                while (waitpid(-1, NULL, 0) > 0) /* ends only because it was killed */
                        continue;
        }
}

static void time_that_is_over_is_no_reason_to_wait(void **state) {
        (void)state;
        assert_int_equal(run("hangs", 0), -ETIMEDOUT);
        while (waitpid(-1, NULL, 0) > 0)
                continue;
        assert_int_equal(bounded_wait(&BOUNDED_NONE, 0), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_it_returned_is_told),
                cmocka_unit_test(one_that_hangs_is_killed_in_time),
                cmocka_unit_test(time_that_is_over_is_no_reason_to_wait),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
