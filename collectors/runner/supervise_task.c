/* One child of the supervisor, from its start to its end. What hangs in the kernel is left behind. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectors/runner/child.h"
#include "collectors/runner/supervise_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/spawn.h"

#define READ_SIZE (64 * 1024)
#define READS_MAX 64 /* in one step: a child that floods leaves the others their turn */
#define DEATH_USEC (500 * USEC_PER_MSEC)

/* The children get nothing of the agent's environment: it may hold credentials. */
static char *const environment[] = {
        (char *)"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
                "/sbin:/bin",
        (char *)"LANG=C.UTF-8", (char *)"HOME=/", NULL
};

/* ---- start ---- */

/* Above 3, so that no dup2 in the child meets an end of it that is still to be used. */
static int make_pipe(int *ret_read, int *ret_write) {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        *ret_read = fcntl(fds[0], F_DUPFD_CLOEXEC, 10);
        *ret_write = fcntl(fds[1], F_DUPFD_CLOEXEC, 10);
        (void)close(fds[0]);
        (void)close(fds[1]);
        if (*ret_read >= 0 && *ret_write >= 0 && fcntl(*ret_read, F_SETFL, O_NONBLOCK) == 0)
                return 0;
        return -EMFILE;
}

static int spawn(Task *t, const int fds[4]) {
        char option[96];
        char *argv[] = { (char *)"neuron-collectd", option, NULL };
        (void)snprintf(option, sizeof option, "--child=%s", t->child_name);
        SpawnOrder o = { .program = "/proc/self/exe",
                         .argv = argv,
                         .environment = environment,
                         .n_fds = fds[CHILD_DIR_FD] >= 0 ? 4 : 3 };
        memcpy(o.fds, fds, sizeof o.fds);
        return spawn_program(&t->pid, &o);
}

void task_give_up(Task *t, SectionState state, const char *fmt, ...) {
        va_list args;
        t->has_started = t->has_ended = true;
        t->state = state;
        va_start(args, fmt);
        (void)vsnprintf(t->why, sizeof t->why, fmt, args);
        va_end(args);
}

int task_start(Task *t, int order_fd, int dir_fd) {
        _cleanup_close_ int out = -1, why = -1, order = fcntl(order_fd, F_DUPFD_CLOEXEC, 10),
                            dir = dir_fd < 0 ? -1 : fcntl(dir_fd, F_DUPFD_CLOEXEC, 10);
        t->has_started = true;
        t->out_fd = t->why_fd = t->pid_fd = -1;
        t->begun_usec = clock_realtime_usec();
        t->started_usec = t->ended_usec = clock_boottime_usec();
        int r = order < 0 || (dir_fd >= 0 && dir < 0) ? -EMFILE : make_pipe(&t->out_fd, &out);
        if (r == 0)
                r = make_pipe(&t->why_fd, &why);
        if (r == 0)
                r = spawn(t, (const int[4]){ order, out, why, dir });
        if (r < 0) {
                task_give_up(t, SECTION_FAILED, "no process could be started for it: %s",
                             strerror(-r));
                return r;
        }
        t->pid_fd = (int)syscall(SYS_pidfd_open, t->pid, 0); /* -1: then it is asked for */
        return 0;
}

/* ---- what it says ---- */

static int keep_why(Task *t, const char *data, size_t n) {
        for (size_t i = 0; i < n && t->n_why + 1 < sizeof t->why; i++) {
                unsigned char c = (unsigned char)data[i];
                if (c == '\n' && t->n_why == 0)
                        continue;
                t->why[t->n_why++] = c == '\n' ? ' ' : c < 0x20 || c >= 0x7f ? '?' : (char)c;
        }
        t->why[t->n_why] = '\0';
        return 0;
}

/* @return whether there may be more in it */
static bool read_once(Task *t, int *fd) {
        char data[READ_SIZE];
        if (*fd < 0)
                return false;
        ssize_t n = read(*fd, data, sizeof data);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return false;
        if (n <= 0) {
                (void)close(TAKE_FD(*fd));
                return false;
        }
        if (fd == &t->why_fd)
                return keep_why(t, data, (size_t)n) == 0;
        if (t->killed_usec && t->state == SECTION_CUT)
                return true; /* read away */
        size_t room = (size_t)MIN((uint64_t)n, t->max_bytes - t->n_bytes);
        t->n_bytes += room;
        int r = t->on_output(t, data, room);
        if (r < 0)
                task_kill(t, SECTION_CUT, "what it wrote could not be kept");
        else if (room < (size_t)n)
                task_kill(t, SECTION_CUT, "it wrote more than snapshot.probe_bytes");
        return true;
}

static void read_all(Task *t) {
        for (unsigned i = 0; i < READS_MAX && read_once(t, &t->out_fd); i++)
                ;
        for (unsigned i = 0; i < READS_MAX && read_once(t, &t->why_fd); i++)
                ;
}

/* ---- its end ---- */

void task_kill(Task *t, SectionState state, const char *why) {
        if (t->pid <= 0 || t->killed_usec)
                return;
        (void)kill(-t->pid, SIGKILL); /* not reaped yet: the number is still its own */
        (void)kill(t->pid, SIGKILL);
        t->killed_usec = clock_boottime_usec();
        t->state = state;
        (void)snprintf(t->why, sizeof t->why, "%s", why);
        t->n_why = strlen(t->why);
}

static void finish(Task *t) {
        t->has_ended = true;
        while (t->n_why > 0 && t->why[t->n_why - 1] == ' ')
                t->why[--t->n_why] = '\0';
        t->ended_usec = clock_boottime_usec();
        t->pid = 0;
        int *const fds[] = { &t->pid_fd, &t->out_fd, &t->why_fd };
        for (size_t i = 0; i < ELEMENTSOF(fds); i++)
                if (*fds[i] >= 0)
                        (void)close(TAKE_FD(*fds[i]));
}

static void judge(Task *t, int status) {
        if (t->killed_usec) /* its state is known */
                return;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        t->state = code == CHILD_DONE      ? SECTION_COMPLETE
                   : code == CHILD_CUT     ? SECTION_CUT
                   : code == CHILD_SKIPPED ? SECTION_SKIPPED
                                           : SECTION_FAILED;
        if (code == CHILD_CUT && !*t->why)
                (void)snprintf(t->why, sizeof t->why,
                               "there was more than snapshot.probe_bytes allow");
        if (code < 0) { /* a sanitizer or the C library may have said more */
                size_t n = strlen(t->why);
                (void)snprintf(t->why + n, sizeof t->why - n, "%sit was ended by signal %d (%s)",
                               n ? "; " : "", WTERMSIG(status), strsignal(WTERMSIG(status)));
        } else if (t->state == SECTION_FAILED && !*t->why)
                (void)snprintf(t->why, sizeof t->why, "it ended with exit code %d", code);
}

void task_step(Task *t, uint64_t now_usec) {
        int status;
        if (!t->has_started || t->has_ended)
                return;
        read_all(t);
        pid_t r = waitpid(t->pid, &status, WNOHANG);
        if (r == t->pid || (r < 0 && errno == ECHILD)) {
                read_all(t);
                /* Whom it has left behind shares its group; the number is not given out again while one is in it. */
                (void)kill(-t->pid, SIGKILL);
                judge(t, r == t->pid ? status : 0);
                finish(t);
        } else if (t->killed_usec && now_usec >= t->killed_usec + DEATH_USEC) {
                size_t n = strlen(t->why);
                (void)snprintf(t->why + n, sizeof t->why - n,
                               "; it hangs in the kernel, cannot be killed and was left behind");
                finish(t);
        } else if (!t->killed_usec && t->timeout_usec != USEC_INFINITY &&
                   now_usec >= t->started_usec + t->timeout_usec)
                task_kill(t, SECTION_TIMEOUT, "it was killed when its time was over");
}

uint64_t task_deadline(const Task *t) {
        if (!t->has_started || t->has_ended)
                return USEC_INFINITY;
        if (t->pid_fd < 0)
                return clock_boottime_usec() + 10 * USEC_PER_MSEC;
        if (t->killed_usec)
                return t->killed_usec + DEATH_USEC;
        return t->timeout_usec == USEC_INFINITY ? USEC_INFINITY : t->started_usec + t->timeout_usec;
}

size_t task_poll(const Task *t, struct pollfd *fds) {
        const int all[TASK_FDS] = { t->pid_fd, t->out_fd, t->why_fd };
        size_t n = 0;
        for (size_t i = 0; i < TASK_FDS && t->has_started && !t->has_ended; i++)
                if (all[i] >= 0)
                        fds[n++] = (struct pollfd){ .fd = all[i], .events = POLLIN };
        return n;
}
