#include "hook/chain.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

enum { TICK_MSEC = 2 }; /* between looks whether it has ended */

/* Our executable may be reached by a link from elsewhere: what counts is where its file lies. @return 0, -errno */
static int chain_path(char ret[PATH_MAX]) {
        struct stat ours, theirs;
        char own[PATH_MAX];
        ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
        if (n < 0)
                return -errno;
        own[n] = '\0';
        char *slash = strrchr(own, '/');
        if (!slash)
                return -ENOENT;
        if (stat("/proc/self/exe", &ours) < 0)
                return -errno;
        *slash = '\0';
        if ((size_t)snprintf(ret, PATH_MAX, "%s/%s", own, CHAIN_NAME) >= PATH_MAX)
                return -ENAMETOOLONG;
        if (stat(ret, &theirs) < 0)
                return -errno;
        return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino ? -ELOOP : 0;
}

static _Noreturn void be_chained(const char *path, char *const *argv, pid_t parent) {
        (void)setpgid(0, 0); /* cannot fail for a new child */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
                _exit(ESRCH);
        (void)signal(SIGPIPE, SIG_DFL);
        (void)signal(SIGXFSZ, SIG_DFL);
        if (setenv(CHAIN_VARIABLE, "1", 1) == 0)
                (void)execv(path, argv); /* returns only when it failed */
        _exit(127);
}

pid_t chain_start(char *const *argv) {
        char path[PATH_MAX];
        if (getenv(CHAIN_VARIABLE))
                return 0;
        int r = chain_path(path);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        pid_t parent = getpid(), pid = fork();
        if (pid == 0)
                be_chained(path, argv, parent);
        if (pid < 0)
                return -errno;
        (void)setpgid(pid, pid); /* in case we are first; EACCES after its exec is fine */
        return pid;
}

void chain_end(pid_t pid, uint64_t until_usec) {
        if (pid <= 0)
                return;
        while (clock_boottime_usec() < until_usec) {
                siginfo_t info = { 0 };
                /* Not reaped yet: the number of the group must stay its own until it was killed. */
                if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
                    info.si_pid == pid)
                        break;
                (void)poll(NULL, 0, TICK_MSEC);
        }
        (void)kill(-pid, SIGKILL); /* also what it has left behind in its group */
        (void)waitpid(pid, NULL, WNOHANG);
}
