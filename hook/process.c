/* Who closes a descriptor waits for its driver or server, in an exit too, and no signal helps. A table of descriptors that two processes share
 * (CLONE_FILES) can be cleared by either, and is closed by the one that goes last: another one, for which nobody waits. */
#include "hook/process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
        CLOSE_TRIES = 3, /* each gets rid of one that hangs, and of all before it */
        CLOSE_NSEC = 10 * 1000 * 1000,
};

#define FIRST_FD (STDERR_FILENO + 1U)

/* A child with our descriptors, the very ones; it dies with us. @return as fork(2) */
static pid_t fork_sharing_fds(void) {
        pid_t parent = getpid(),
              pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
        if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
                _exit(ESRCH);
        return pid;
}

/* SIGCHLD has to be blocked. */
static bool ends_soon(pid_t pid) {
        static const struct timespec patience = { .tv_nsec = CLOSE_NSEC };
        sigset_t child;
        (void)sigemptyset(&child);
        (void)sigaddset(&child, SIGCHLD);
        while (sigtimedwait(&child, NULL, &patience) < 0 && errno == EINTR)
                continue;
        return waitpid(pid, NULL, WNOHANG) == pid;
}

/* Linux 5.9; before that they stay. */
static bool close_inherited(void) {
        pid_t pid = fork_sharing_fds();
        if (pid == 0)
                _exit((int)syscall(SYS_close_range, FIRST_FD, ~0U, 0U));
        if (pid < 0)
                return false;
        if (ends_soon(pid))
                return true;
        (void)kill(pid, SIGKILL);   /* not reaped: the number is still its own */
        (void)unshare(CLONE_FILES); /* what it closes from now on is not ours */
        return false;
}

static void put_signals_right(void) {
        sigset_t all;
        (void)sigfillset(&all);
        (void)signal(SIGCHLD, SIG_DFL); /* ignored: our children could not be waited for */
        (void)signal(SIGALRM, SIG_DFL);
        (void)signal(SIGPIPE, SIG_IGN);
        (void)signal(SIGXFSZ, SIG_IGN); /* beyond RLIMIT_FSIZE: EFBIG, which is said */
        (void)sigprocmask(SIG_UNBLOCK, &all, NULL);
}

static void leave_inherited_fds(void) {
        sigset_t child;
        (void)sigemptyset(&child);
        (void)sigaddset(&child, SIGCHLD);
        (void)sigprocmask(SIG_BLOCK, &child, NULL);
        bool is_done = false;
        for (int i = 0; i < CLOSE_TRIES && !is_done; i++)
                is_done = close_inherited();
        (void)sigprocmask(SIG_UNBLOCK, &child, NULL);
        if (!is_done) /* Linux 5.11 */
                (void)syscall(SYS_close_range, FIRST_FD, ~0U, CLOSE_RANGE_CLOEXEC);
}

/* 0, 1 and 2 must not become somebody else's. */
static void have_standard_fds(void) {
        for (int fd; (fd = open("/dev/null", O_RDWR)) >= 0;)
                if (fd > STDERR_FILENO) {
                        (void)close(fd); /* one too many: all three are there */
                        return;
                }
}

void hook_process_start(void) {
        put_signals_right();
        (void)umask(umask(0) & (S_IRWXG | S_IRWXO)); /* what we make we can write to */
        leave_inherited_fds();
        have_standard_fds();
}

void hook_process_exit(void) {
        if (fork_sharing_fds() != 0)
                return; /* without one our exit closes them */
        for (;;)
                (void)pause();
}
