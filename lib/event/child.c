/* posix_spawn starts it, a pidfd tells when it has ended, two pipes carry what it writes. No
 * SIGCHLD: whatever the program does with that signal does not matter. Where pidfds are refused
 * (seccomp filters of old container engines, valgrind) waitid(2) is tried every few milliseconds.
 */
#include "lib/event/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "lib/base/digest.h"
#include "lib/base/spawn.h"
#include "lib/event/timer.h"

#ifndef P_PIDFD
#define P_PIDFD 3 /* Linux 5.4; glibc names it since 2.36 */
#endif

#define ERROR_LINE_MAX 256
#define ERROR_TEXT_MAX 511
#define DEATH_USEC (500 * USEC_PER_MSEC) /* from SIGKILL to the report that it is stuck */
#define READ_SIZE 4096
#define READS_MAX 64 /* in one go, so that a flood leaves the loop to others as well */
#define LAST_GOES 16 /* 4 MiB: more than a pipe holds */

#define ASK_USEC (10 * USEC_PER_MSEC) /* without a pidfd */

enum { READ_MORE, READ_EMPTY, READ_ENDED };

typedef enum ChildState {
        CHILD_RUNNING,
        CHILD_KILLED, /* its death is waited for */
        CHILD_REPORTED,
} ChildState;

struct Child {
        ChildState state;
        pid_t pid;  /* > 0 until it is reaped */
        int pid_fd; /* -1 = there is none */
        int out_fd, error_fd;
        sd_event_source *exit, *out, *errors, *timer, *start_failed;
        char *output; /* owned, NUL-terminated */
        size_t n_output, n_allocated, n_output_max;
        char error_text[ERROR_TEXT_MAX + 1], error_line[ERROR_LINE_MAX + 1];
        size_t n_error_text;
        int error;
        bool cuts_output, is_cut;
        bool is_orphan; /* freed but not reaped yet: it waits for that in the loop */
        int (*on_output)(const char *data, size_t n, void *userdata);
        void (*on_done)(const ChildResult *result, void *userdata);
        void *userdata;
};

/* ---- its end ---- */

static void stop_reading(Child *c) {
        c->out = sd_event_source_disable_unref(c->out);
        c->errors = sd_event_source_disable_unref(c->errors);
        if (c->out_fd >= 0)
                (void)close(TAKE_FD(c->out_fd));
        if (c->error_fd >= 0)
                (void)close(TAKE_FD(c->error_fd));
}

/* @param status  as waitpid gives it. The child may be gone when this returns. */
static void report(Child *c, int status, bool is_stuck) {
        (void)snprintf(c->error_line, sizeof c->error_line, "%.*s",
                       (int)strcspn(c->error_text, "\n"), c->error_text);
        ChildResult result = { .status = status,
                               .error = c->error,
                               .is_stuck = is_stuck,
                               .is_cut = c->is_cut,
                               .output = c->output ? c->output : "",
                               .output_bytes = c->n_output,
                               .error_text = c->error_text,
                               .error_line = c->error_line };

        if (c->state == CHILD_REPORTED)
                return;
        c->state = CHILD_REPORTED;
        c->timer = sd_event_source_disable_unref(c->timer);
        stop_reading(c);
        c->on_done(&result, c->userdata);
}

/* Only before it is reaped: afterwards the number may be somebody else's. */
static void kill_group(const Child *c) {
        /* The descriptor cannot mean another process; while it answers, the number cannot either.
         */
        if (c->pid > 0 &&
            (c->pid_fd < 0 || syscall(SYS_pidfd_send_signal, c->pid_fd, SIGKILL, NULL, 0) == 0))
                (void)kill(-c->pid, SIGKILL); /* fails when the rest of the group has gone */
}

static int wait_status(const siginfo_t *info) {
        return info->si_code == CLD_EXITED   ? W_EXITCODE(info->si_status, 0)
               : info->si_code == CLD_DUMPED ? info->si_status | WCOREFLAG
                                             : info->si_status;
}

/* @return true and *ret_status when it has ended; false: it still runs */
static bool reap(Child *c, int *ret_status) {
        siginfo_t info = { .si_pid = 0 };
        idtype_t by = c->pid_fd >= 0 ? (idtype_t)P_PIDFD : P_PID;
        id_t id = c->pid_fd >= 0 ? (id_t)c->pid_fd : (id_t)c->pid;

        if (waitid(by, id, &info, WEXITED | WNOHANG) < 0) {
                if (errno == EINTR)
                        return false;
                /* ECHILD: somebody else has reaped it, or SIGCHLD is ignored and the kernel has. */
                if (!c->error)
                        c->error = -errno;
        } else if (info.si_pid == 0)
                return false;
        *ret_status = wait_status(&info);
        if (c->exit)
                (void)sd_event_source_set_enabled(c->exit,
                                                  SD_EVENT_OFF); /* fails only in another process */
        c->pid = 0;
        return true;
}

/* Reported when it is dead, or stuck in the kernel. */
static void kill_child(Child *c, int error) {
        if (c->state != CHILD_RUNNING)
                return;
        c->state = CHILD_KILLED;
        c->error = error;
        kill_group(c);
        /* Fails only in another process than the one that made the loop. */
        (void)timer_rearm(c->timer, DEATH_USEC);
}

/* ---- what it writes ---- */

static int store_output(Child *c, const char *data, size_t n) {
        if (c->n_output + n >= c->n_allocated) {
                size_t n_allocated = MAX(2 * c->n_allocated, c->n_output + n + 1);
                char *output =
                        malloc(n_allocated); /* not realloc(): the old place would keep a copy */

                if (!output)
                        return -ENOMEM;
                if (c->output) {
                        memcpy(output, c->output, c->n_output);
                        digest_wipe(c->output, c->n_allocated); /* it may be credentials */
                        free(c->output);
                }
                c->output = output;
                c->n_allocated = n_allocated;
        }
        memcpy(c->output + c->n_output, data, n);
        c->output[c->n_output + n] = '\0';
        return 0;
}

/* @return 0, or why it is to be killed */
static int keep_output(Child *c, const char *data, size_t n) {
        size_t n_kept = MIN(n, c->n_output_max - c->n_output);
        if (c->state == CHILD_KILLED && c->error != -ETIMEDOUT)
                return 0; /* read only so that it can be seen to end */
        int r = n_kept == 0    ? 0
                : c->on_output ? c->on_output(data, n_kept, c->userdata)
                               : store_output(c, data, n_kept);
        if (r < 0)
                return r;
        c->n_output += n_kept;
        c->is_cut = c->is_cut || n_kept < n;
        return n_kept < n && !c->cuts_output ? -EFBIG : 0;
}

/* The rest is read only so that the child need not wait. */
static void keep_errors(Child *c, const char *data, size_t n) {
        for (size_t i = 0; i < n && c->n_error_text < ERROR_TEXT_MAX; i++)
                c->error_text[c->n_error_text++] = data[i] ? data[i] : '?';
}

/* @return READ_* or -errno to kill the child with */
static int read_some(Child *c, int fd) {
        for (unsigned i = 0; i < READS_MAX; i++) {
                char data[READ_SIZE];
                ssize_t n = read(fd, data, sizeof data);
                int r = 0;

                if (n == 0)
                        return READ_ENDED;
                if (n < 0)
                        return errno == EAGAIN ? READ_EMPTY : errno == EINTR ? READ_MORE : -errno;
                if (fd == c->error_fd)
                        keep_errors(c, data, (size_t)n);
                else
                        r = keep_output(c, data, (size_t)n);
                digest_wipe(data, (size_t)n); /* it may be a secret */
                if (r < 0)
                        return r;
        }
        return READ_MORE;
}

/* What is still in a pipe. Its end is not waited for: somebody whom the child has left behind may
 * hold it open. */
static int read_rest(Child *c, int fd) {
        int r = READ_MORE;

        for (unsigned i = 0; i < LAST_GOES && r == READ_MORE; i++)
                r = read_some(c, fd);
        return MIN(r, 0);
}

static int on_pipe(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Child *c = userdata;
        int r = read_some(c, fd);

        (void)revents;
        if (r == READ_ENDED)
                (void)sd_event_source_set_enabled(s,
                                                  SD_EVENT_OFF); /* fails only in another process */
        if (r < 0)
                kill_child(c, r);
        return 0;
}

/* @return whether it has ended */
static bool check_end(Child *c) {
        int status, r;

        if (!reap(c, &status))
                return false;
        if (c->is_orphan)
                (void)sd_event_source_set_floating(c->exit,
                                                   false); /* now only this dispatch holds it */
        if (c->state == CHILD_REPORTED)
                return true;
        r = read_rest(c, c->out_fd);
        if (r < 0 && !c->error)
                c->error = r;
        (void)read_rest(c, c->error_fd); /* only for people */
        report(c, status, false);
        return true;
}

static int on_pid_fd(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        (void)s, (void)fd, (void)revents;
        (void)check_end(userdata);
        return 0;
}

static int on_ask(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)usec;
        if (check_end(userdata))
                return 0;
        /* Fails only in another process than the one that made the loop. */
        (void)timer_rearm(s, ASK_USEC);
        return 0;
}

static int on_timeout(sd_event_source *s, uint64_t usec, void *userdata) {
        Child *c = userdata;
        (void)s, (void)usec;
        if (c->state == CHILD_KILLED)
                report(c, 0, true);
        else
                kill_child(c, -ETIMEDOUT);
        return 0;
}

static int on_start_failed(sd_event_source *s, void *userdata) {
        (void)s;
        report(userdata, 0, false);
        return 0;
}

/* ---- gone ---- */

static void destroy(void *userdata) {
        Child *c = userdata;

        if (c->pid_fd >= 0)
                (void)close(c->pid_fd);
        if (c->output)
                digest_wipe(c->output, c->n_allocated);
        free(c->output);
        free(c);
}

Child *child_free(Child *c) {
        int status;

        if (!c)
                return NULL;
        c->state = CHILD_REPORTED;
        c->timer = sd_event_source_disable_unref(c->timer);
        c->start_failed = sd_event_source_disable_unref(c->start_failed);
        stop_reading(c);
        if (c->pid > 0 && !reap(c, &status)) {
                kill_group(c);
                /* Death takes a moment, longer for one that hangs in the kernel. The loop waits for
                 * it, and frees it then, or when the loop goes. */
                c->is_orphan = true;
                (void)sd_event_source_set_destroy_callback(c->exit, destroy);
                (void)sd_event_source_set_floating(c->exit, true);
                sd_event_source_unref(c->exit);
                return NULL;
        }
        sd_event_source_disable_unref(c->exit);
        destroy(c);
        return NULL;
}

/* ---- its beginning ---- */

/* Above the numbers that the child has, so that no dup2 there meets one that is still to be used.
 */
static int make_pipe(int *ret_read_fd, int *ret_write_fd) {
        _cleanup_close_ int read_fd = -1, write_fd = -1;
        int fds[2];

        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        read_fd = fcntl(fds[0], F_DUPFD_CLOEXEC, SPAWN_FDS_MAX);
        write_fd = fcntl(fds[1], F_DUPFD_CLOEXEC, SPAWN_FDS_MAX);
        (void)close(fds[0]);
        (void)close(fds[1]);
        if (read_fd < 0 || write_fd < 0)
                return -EMFILE;
        if (fcntl(read_fd, F_SETFL, O_NONBLOCK) < 0)
                return -errno;
        *ret_read_fd = TAKE_FD(read_fd);
        *ret_write_fd = TAKE_FD(write_fd);
        return 0;
}

static int duplicate(int fd) {
        return fd == 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, SPAWN_FDS_MAX);
}

/* @return 0 and *ret, or what kept it from starting */
static int spawn(pid_t *ret, const ChildOptions *options, int out_fd, int error_fd) {
        _cleanup_close_ int input_fd = duplicate(options->input_fd),
                            third_fd = duplicate(options->third_fd);
        if ((options->input_fd > 0 && input_fd < 0) || (options->third_fd > 0 && third_fd < 0))
                return -EAGAIN;
        return spawn_program(
                ret, &(SpawnOptions){
                             .program = options->program ? options->program : options->argv[0],
                             .argv = options->argv,
                             .environment = options->environment ? options->environment : environ,
                             .fds = { input_fd, out_fd, options->merges_errors ? out_fd : error_fd,
                                      third_fd },
                             .n_fds = options->third_fd > 0 ? 4 : 3,
                             .keeps_signals = options->keeps_signals,
                             .keeps_capabilities = options->keeps_capabilities });
}

static int add_sources(Child *c, sd_event *event, uint64_t timeout_usec) {
        int r = c->pid_fd >= 0 ? sd_event_add_io(event, &c->exit, c->pid_fd, EPOLLIN, on_pid_fd, c)
                               : sd_event_add_time_relative(event, &c->exit, CLOCK_MONOTONIC,
                                                            ASK_USEC, USEC_PER_MSEC, on_ask, c);

        if (r >= 0)
                r = sd_event_add_io(event, &c->out, c->out_fd, EPOLLIN, on_pipe, c);
        if (r >= 0)
                r = sd_event_add_io(event, &c->errors, c->error_fd, EPOLLIN, on_pipe, c);
        if (r >= 0)
                r = sd_event_add_time_relative(event, &c->timer, CLOCK_MONOTONIC,
                                               timeout_usec == USEC_INFINITY ? DEATH_USEC
                                                                             : timeout_usec,
                                               USEC_PER_MSEC, on_timeout, c);
        if (r >= 0 && timeout_usec == USEC_INFINITY)
                r = sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;
        /* For debugging only. */
        (void)sd_event_source_set_description(c->exit, "child");
        (void)sd_event_source_set_description(c->timer, "child-timer");
        return 0;
}

static int start(Child *c, sd_event *event, const ChildOptions *options) {
        _cleanup_close_ int out_fd = -1, error_fd = -1;
        int r = make_pipe(&c->out_fd, &out_fd);

        if (r == 0)
                r = make_pipe(&c->error_fd, &error_fd);
        if (r < 0)
                return r == -ENOMEM ? r : -EAGAIN; /* descriptors are a matter of the moment */
        r = spawn(&c->pid, options, out_fd, error_fd);
        if (r == -ENOMEM || r == -EAGAIN)
                return r;
        if (r < 0) { /* the program's fault: reported like its other errors */
                c->pid = 0;
                c->error = r;
                return sd_event_add_defer(event, &c->start_failed, on_start_failed, c);
        }
        c->pid_fd = (int)syscall(SYS_pidfd_open, c->pid, 0); /* glibc wraps it since 2.36 only */
        r = add_sources(c, event, options->timeout_usec);
        if (r < 0) { /* not in the loop: there is nobody to wait for it later */
                (void)kill(-c->pid, SIGKILL);
                (void)waitpid(c->pid, NULL, 0);
                c->pid = 0;
        }
        return r;
}

int child_new(Child **ret, sd_event *event, const ChildOptions *options) {
        _cleanup_(child_freep) Child *c = NULL;

        if (!options->argv || !options->argv[0] || !options->argv[0][0] ||
            options->timeout_usec == 0 || !options->on_done)
                return -EINVAL;
        c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        *c = (Child){ .pid_fd = -1,
                      .out_fd = -1,
                      .error_fd = -1,
                      .n_output_max = options->output_max_bytes,
                      .cuts_output = options->cuts_output,
                      .on_output = options->on_output,
                      .on_done = options->on_done,
                      .userdata = options->userdata };
        int r = start(c, event, options);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}
