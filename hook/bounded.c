#include "hook/bounded.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

enum { EXIT_TICK_MSEC = 1 }; /* between looks at a child whose pipe has ended */

void bounded_start(Bounded *b, int (*run)(void *userdata), void *userdata) {
        int fds[2];
        *b = BOUNDED_NONE;
        if (pipe2(fds, O_CLOEXEC) < 0) {
                b->result = -errno;
                return;
        }
        pid_t parent = getpid(), pid = fork();
        int error = errno;
        if (pid == 0) {
                if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
                        _exit(ESRCH);
                int r = run(userdata);
                _exit(r < 0 ? MIN(-r, 255) : 0);
        }
        (void)close(fds[1]); /* the child's: its end is the pipe's */
        if (pid < 0) {
                (void)close(fds[0]); /* nobody writes to it */
                b->result = -error;
                return;
        }
        b->pid = pid;
        b->fd = fds[0];
}

static uint64_t left_msec(uint64_t until_usec) {
        uint64_t now = clock_system()->boottime_usec(clock_system());
        return now < until_usec ? (until_usec - now) / USEC_PER_MSEC + 1 : 0;
}

/* @return whether the pipe has ended, so that the child is about to be gone */
static bool wait_for_end(int fd, uint64_t until_usec) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        for (;;) {
                uint64_t left = left_msec(until_usec);
                int n = poll(&p, 1, (int)MIN(left, (uint64_t)INT32_MAX));
                if (n > 0)
                        return true;
                if ((n == 0 && left == 0) || (n < 0 && errno != EINTR))
                        return false;
        }
}

/* The last of its files may be one whose closing hangs. @return whether it is gone */
static bool reap(Bounded *b, uint64_t until_usec) {
        int status;
        for (;;) {
                pid_t pid = waitpid(b->pid, &status, WNOHANG);
                if (pid < 0 && errno != EINTR)
                        b->result = -errno;
                else if (pid > 0)
                        b->result = WIFEXITED(status) ? -WEXITSTATUS(status) : -EPIPE;
                if (pid > 0 || (pid < 0 && errno != EINTR))
                        return true;
                if (left_msec(until_usec) == 0)
                        return false;
                (void)poll(NULL, 0, EXIT_TICK_MSEC);
        }
}

int bounded_wait(Bounded *b, uint64_t until_usec) {
        if (b->pid == 0)
                return b->result;
        if (!wait_for_end(b->fd, until_usec) || !reap(b, until_usec)) {
                (void)kill(b->pid, SIGKILL); /* not reaped: the number is still its own */
                (void)waitpid(b->pid, NULL, WNOHANG);
                b->result = -ETIMEDOUT;
        }
        (void)close(b->fd); /* read only */
        b->pid = 0;
        b->fd = -1;
        return b->result;
}
