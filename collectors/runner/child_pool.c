/* A part's process is over when its pipe has ended and it has been reaped: a driver may still hang
 * in the close() that an exit does. Nothing here waits for one that does not die. */
#include "collectors/runner/child_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/strbuf.h"

enum {
        PART_FD = CHILD_POOL_KEPT_FD + 1, /* of a part, after /dev/null in 0, 1 and 2 */
        CHUNK_BYTES = 16 << 10, /* read at once: one that writes much does not hold up the others */
        EXIT_TICK_MSEC = 1,     /* between checks of a part that has closed its pipe */
};

typedef struct PoolPart {
        const PoolTask *task; /* NULL: the seat is free */
        pid_t pid;
        int fd; /* its pipe, -1 when it has ended */
        StrBuf line;
        size_t n_bytes;
        int stop; /* negative: what on_line() returned */
} PoolPart;

typedef struct PoolRun {
        const ChildPool *pool;
        PoolPart *parts;
        struct pollfd *polls;
        size_t n_seats, n_running;
        uint64_t end_usec;
} PoolRun;

/* ---- in the part ---- */

static void close_all_but(int fd, int kept_fd) {
        int high = fcntl(fd, F_DUPFD, PART_FD + 1); /* out of the way of what follows */
        if (high < 0)
                _exit(errno);
        if (kept_fd > 0 && dup2(kept_fd, CHILD_POOL_KEPT_FD) < 0)
                _exit(errno);
        if (kept_fd <= 0)
                (void)close(CHILD_POOL_KEPT_FD); /* it may not be open */
        int null_fd = open("/dev/null", O_RDWR);
        for (int i = 0; i < CHILD_POOL_KEPT_FD; i++)
                if (null_fd < 0)
                        (void)close(i); /* no /dev/null in this root: then none */
                else if (dup2(null_fd, i) < 0)
                        _exit(errno);
        if (null_fd == CHILD_POOL_KEPT_FD)
                (void)close(null_fd); /* it has got the free number */
        if (dup2(high, PART_FD) < 0)
                _exit(errno);
        closefrom(PART_FD + 1);
}

static _Noreturn void run_part(const ChildPool *pool, const PoolTask *task, int fd, pid_t parent) {
        /* Whoever kills the caller must not leave parts behind; it may have died before this line.
         */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
                _exit(ESRCH);
        close_all_but(fd, pool->kept_fd);
        int r = pool->run(task, PART_FD, pool->userdata);
        _exit(r < 0 ? MIN(-r, 255) : 0);
}

/* ---- in the caller ---- */

static void release_part(PoolPart *p) {
        if (p->fd >= 0)
                (void)close(p->fd); /* read only */
        strbuf_done(&p->line);
        *p = (PoolPart){ .fd = -1 };
}

static int finish_part(PoolRun *run, PoolPart *p, int result) {
        const PoolTask *task = p->task;
        release_part(p);
        run->n_running--;
        return run->pool->on_end(task, result, run->pool->userdata);
}

static int kill_part(PoolRun *run, PoolPart *p, int result) {
        (void)kill(p->pid, SIGKILL); /* ours: not reaped yet, so the number is still its own */
        (void)waitpid(p->pid, NULL, WNOHANG);
        return finish_part(run, p, result);
}

static int start_part(PoolRun *run, PoolPart *p, const PoolTask *task) {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) < 0)
                return run->pool->on_end(task, -errno, run->pool->userdata);
        pid_t parent = getpid(), pid = fork();
        int error = errno;
        if (pid == 0)
                run_part(run->pool, task, fds[1], parent);
        (void)close(fds[1]); /* the part's */
        if (pid < 0) {
                (void)close(fds[0]); /* nobody writes to it */
                return run->pool->on_end(task, -error, run->pool->userdata);
        }
        (void)fcntl(fds[0], F_SETFL, O_NONBLOCK); /* cannot fail for a pipe of ours */
        *p = (PoolPart){ .task = task, .pid = pid, .fd = fds[0] };
        run->n_running++;
        return 0;
}

/* Sets p->stop. @return 0, -EFBIG, -ENOMEM */
static int split_lines(PoolRun *run, PoolPart *p, const char *data, size_t n) {
        const ChildPool *pool = run->pool;
        while (n > 0) {
                const char *newline = memchr(data, '\n', n);
                size_t k = newline ? (size_t)(newline - data) : n;
                if (p->line.n + k > pool->max_line_bytes)
                        return -EFBIG;
                strbuf_add_n(&p->line, data, k);
                if (strbuf_error(&p->line) < 0)
                        return -ENOMEM;
                if (!newline)
                        return 0;
                p->stop = pool->on_line
                                  ? pool->on_line(p->task, p->line.text, p->line.n, pool->userdata)
                                  : collect_emit_line(pool->out, p->line.text, p->line.n);
                if (p->stop < 0)
                        return 0;
                strbuf_clear(&p->line);
                data += k + 1;
                n -= k + 1;
        }
        return 0;
}

/* Reads once. @return bytes read; 0: the pipe has ended; -EAGAIN; -EFBIG, -ENOMEM; sets p->stop */
static ssize_t read_part(PoolRun *run, PoolPart *p) {
        char data[CHUNK_BYTES];
        ssize_t n;
        do
                n = read(p->fd, data, sizeof data);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
                return n < 0 ? -errno : 0;
        p->n_bytes += (size_t)n;
        if (p->n_bytes > run->pool->max_bytes_each)
                return -EFBIG;
        int r = split_lines(run, p, data, (size_t)n);
        return r < 0 ? r : n;
}

static int read_ready(PoolRun *run, PoolPart *p) {
        ssize_t n = read_part(run, p);
        if (p->stop < 0)
                return p->stop;
        if (n > 0 || n == -EAGAIN)
                return 0;
        if (n < 0)
                return kill_part(run, p, (int)n);
        (void)close(TAKE_FD(p->fd));
        return 0;
}

/* Checks whether a part that has closed its pipe is gone. */
static int reap_part(PoolRun *run, PoolPart *p) {
        int status;
        pid_t pid = waitpid(p->pid, &status, WNOHANG);
        if (pid == 0 || (pid < 0 && errno == EINTR))
                return 0;
        return finish_part(run, p,
                           pid < 0             ? -errno
                           : WIFEXITED(status) ? -WEXITSTATUS(status)
                                               : -EPIPE);
}

/* Time is over: what it has written counts, as far as it is whole lines. */
static int time_out_part(PoolRun *run, PoolPart *p) {
        ssize_t n = 1;
        (void)kill(p->pid, SIGKILL);
        while (p->fd >= 0 && n > 0 && p->stop >= 0)
                n = read_part(run, p); /* ends: max_bytes_each */
        return p->stop < 0 ? p->stop : kill_part(run, p, -ETIMEDOUT);
}

static int start_some(PoolRun *run, const PoolTask *tasks, size_t n, size_t *next) {
        for (size_t i = 0; i < run->n_seats && *next < n; i++) {
                int r = run->parts[i].task ? 0 : start_part(run, &run->parts[i], &tasks[(*next)++]);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Waits until a part writes something, a silent one may have ended, or time is over. */
static int wait_parts(PoolRun *run, uint64_t now) {
        int timeout_msec = (int)MIN((run->end_usec - now) / USEC_PER_MSEC + 1, (uint64_t)INT32_MAX);
        for (size_t i = 0; i < run->n_seats; i++) {
                run->polls[i] = (struct pollfd){ .fd = run->parts[i].fd, .events = POLLIN };
                if (run->parts[i].task && run->parts[i].fd < 0)
                        timeout_msec = EXIT_TICK_MSEC;
        }
        if (poll(run->polls, run->n_seats, timeout_msec) < 0)
                return errno == EINTR ? 0 : -errno;
        for (size_t i = 0; i < run->n_seats; i++) {
                PoolPart *p = &run->parts[i];
                int r = 0;
                if (p->fd >= 0 && run->polls[i].revents != 0)
                        r = read_ready(run, p);
                if (r >= 0 && p->task && p->fd < 0)
                        r = reap_part(run, p);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int run_all(PoolRun *run, const PoolTask *tasks, size_t n) {
        size_t next = 0;
        for (;;) {
                uint64_t now = clock_boottime_usec();
                int r = 0;
                if (now >= run->end_usec) {
                        for (size_t i = 0; r >= 0 && i < run->n_seats; i++)
                                r = run->parts[i].task ? time_out_part(run, &run->parts[i]) : 0;
                        for (; r >= 0 && next < n; next++)
                                r = run->pool->on_end(&tasks[next], -ETIMEDOUT,
                                                      run->pool->userdata);
                        return MIN(r, 0);
                }
                r = start_some(run, tasks, n, &next);
                if (r < 0)
                        return r;
                if (run->n_running == 0 && next == n)
                        return 0;
                if (run->n_running > 0)
                        r = wait_parts(run, now);
                if (r < 0)
                        return r;
        }
}

/* After a callback that ended it all: no more callbacks. */
static void kill_parts(PoolRun *run) {
        for (size_t i = 0; i < run->n_seats; i++) {
                PoolPart *p = &run->parts[i];
                if (!p->task)
                        continue;
                (void)kill(p->pid, SIGKILL);
                (void)waitpid(p->pid, NULL, WNOHANG);
                release_part(p);
        }
}

int child_pool_run(const ChildPool *pool, const PoolTask *tasks, size_t n) {
        if (pool->max_at_once == 0 || pool->max_at_once > CHILD_POOL_AT_ONCE_MAX)
                return -EINVAL;
        if (n == 0)
                return 0;
        size_t n_seats = MIN(pool->max_at_once, n);
        _cleanup_free_ PoolPart *parts = calloc(n_seats, sizeof *parts);
        _cleanup_free_ struct pollfd *polls = calloc(n_seats, sizeof *polls);
        if (!parts || !polls)
                return -ENOMEM;
        for (size_t i = 0; i < n_seats; i++)
                parts[i].fd = -1;
        PoolRun run = { .pool = pool, .parts = parts, .polls = polls, .n_seats = n_seats };
        if (__builtin_add_overflow(clock_boottime_usec(), pool->timeout_usec, &run.end_usec))
                run.end_usec = USEC_INFINITY;
        int r = run_all(&run, tasks, n);
        kill_parts(&run);
        return r;
}

const char *child_pool_state_name(int result) {
        return result == 0            ? "complete"
               : result == -ETIMEDOUT ? "timeout"
               : result == -EFBIG     ? "cut"
               : result == -ECANCELED ? "skipped"
                                      : "failed";
}
