/* A child says its result before it exits: closing what it has inherited may hang in the exit, and
 * nobody has to wait for that. */
#include "hook/child_timeout.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

#define KILL_AFTER_USEC (10 * USEC_PER_MSEC) /* where SIGALRM does not get through */

/* ---- in a child ---- */

static _Noreturn void run_child(int fd, pid_t parent, int (*run)(void *userdata), void *userdata) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
                _exit(ESRCH);
        int result = run(userdata);
        _exit(write(fd, &result, sizeof result) < 0 ? errno : 0);
}

/* @return its pid, 0: there is none */
static pid_t start_child(int *ret_fd, int (*run)(void *userdata), void *userdata) {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) < 0)
                return 0;
        pid_t parent = getpid(), pid = fork();
        if (pid == 0)
                run_child(fds[1], parent, run, userdata);
        (void)close(fds[1]); /* the child's: its end is the pipe's */
        if (pid > 0)
                *ret_fd = fds[0];
        else
                (void)close(fds[0]); /* nobody writes to it */
        return MAX(pid, 0);
}

void child_timeout_start(TimedChild *b, int (*run)(void *userdata), void *userdata) {
        *b = TIMED_CHILD_NONE;
        b->pid = start_child(&b->fd, run, userdata);
        if (b->pid == 0) {
                b->deferred = run;
                b->userdata = userdata;
        }
}

static uint64_t remaining_msec(uint64_t until_usec) {
        uint64_t now = clock_boottime_usec();
        return now < until_usec ? (until_usec - now) / USEC_PER_MSEC + 1 : 0;
}

/* @return whether the child has said something, or is gone */
static bool wait_for_result(int fd, uint64_t until_usec) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        for (;;) {
                uint64_t left = remaining_msec(until_usec);
                int n = poll(&p, 1, (int)MIN(left, (uint64_t)INT32_MAX));
                if (n > 0)
                        return true;
                if ((n == 0 && left == 0) || (n < 0 && errno != EINTR))
                        return false;
        }
}

static int read_result(const TimedChild *b, uint64_t until_usec) {
        int result = -ETIMEDOUT;
        if (wait_for_result(b->fd, until_usec)) {
                if (read(b->fd, &result, sizeof result) == sizeof result)
                        return result;
                result = -EPIPE;
        }
        (void)kill(b->pid, SIGKILL); /* not reaped: the number is still its own */
        return result;
}

/* ---- here ---- */

static void on_alarm(int number) {
        (void)number;
        _exit(0); /* as in any case */
}

/* @return whether there is such a timer */
static bool send_at(timer_t *ret, int number, uint64_t usec) {
        struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = number };
        struct itimerspec at = { .it_value = { .tv_sec = (time_t)(usec / USEC_PER_SEC),
                                               .tv_nsec = (long)(usec % USEC_PER_SEC) * 1000 } };
        return timer_create(CLOCK_BOOTTIME, &event, ret) == 0 &&
               timer_settime(*ret, TIMER_ABSTIME, &at, NULL) == 0;
}

/* A call that waits for a server that is gone takes SIGKILL at best. */
static int run_deferred(const TimedChild *b, uint64_t until_usec) {
        timer_t alarm, end;
        int r = -EAGAIN; /* without a timer, nothing that may hang */
        (void)signal(SIGALRM, on_alarm);
        if (!send_at(&alarm, SIGALRM, until_usec))
                return r;
        if (send_at(&end, SIGKILL, until_usec + KILL_AFTER_USEC)) {
                r = b->deferred(b->userdata);
                (void)timer_delete(end); /* cannot fail: it is there */
        }
        (void)timer_delete(alarm); /* as above */
        return r;
}

int child_timeout_wait(TimedChild *b, uint64_t until_usec) {
        if (b->deferred) {
                b->result = run_deferred(b, until_usec);
                b->deferred = NULL;
        }
        if (b->pid == 0)
                return b->result;
        b->result = read_result(b, until_usec);
        (void)waitpid(b->pid, NULL, WNOHANG); /* one that is still closing is left behind */
        (void)close(b->fd);                   /* read only */
        b->pid = 0;
        b->fd = -1;
        return b->result;
}
