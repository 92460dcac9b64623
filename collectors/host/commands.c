/* The programs that an operator has configured (snapshot.commands): one after the other, no shell, each with a time of its own. What each prints becomes a
 * raw file, with secrets taken out. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"
#include "lib/base/spawn.h"

#define READ_SIZE (64 * 1024)
#define FILE_NAME_SIZE 128
#define OUTPUT_MAX (16 * MIB)
#define POLL_MSEC 50

typedef struct Run {
        pid_t pid;
        int fd; /* what it prints */
        StrBuf text;
        uint64_t max_bytes;
        bool is_cut, is_timeout, has_ended;
        int status;
        uint64_t begun_usec, took_usec;
} Run;

/* That a file that becomes too large is an error of write(2) holds for it as well: see sandbox.c. */
static int spawn(const CollectCommand *c, int out_fd, pid_t *ret) {
        return spawn_program(ret, &(SpawnOrder){ .program = c->run[0],
                                                 .argv = c->run,
                                                 .environment = environ,
                                                 .fds = { -1, out_fd, out_fd },
                                                 .n_fds = 3,
                                                 .keeps_signals = true });
}

/* @return whether the pipe may still say something */
static bool read_some(Run *x) {
        char data[READ_SIZE];
        ssize_t n = read(x->fd, data, sizeof data);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR;
        size_t room = (size_t)MIN((uint64_t)n, x->max_bytes - x->text.n);
        strbuf_add_n(&x->text, data, room);
        x->is_cut = x->is_cut || room < (size_t)n;
        return n > 0;
}

static void wait_for_end(Run *x, uint64_t timeout_usec) {
        bool is_open = true;
        while (!x->has_ended) {
                struct pollfd p = { .fd = is_open ? x->fd : -1, .events = POLLIN };
                if (poll(&p, 1, POLL_MSEC) > 0)
                        is_open = read_some(x);
                x->has_ended = waitpid(x->pid, &x->status, WNOHANG) == x->pid;
                if (x->has_ended || clock_boottime_usec() - x->begun_usec < timeout_usec)
                        continue;
                x->is_timeout = true;
                break;
        }
        if (!x->has_ended)
                (void)kill(-x->pid,
                           SIGKILL); /* the whole group; left to the supervisor if it hangs */
        for (unsigned i = 0; !x->has_ended && i < 10; i++) {
                (void)poll(NULL, 0, POLL_MSEC);
                x->has_ended = waitpid(x->pid, &x->status, WNOHANG) == x->pid;
        }
        for (unsigned i = 0; is_open && i < 64; i++) { /* what is still in the pipe */
                struct pollfd p = { .fd = x->fd, .events = POLLIN };
                if (poll(&p, 1, 0) <= 0 || !read_some(x))
                        break;
        }
        x->took_usec = clock_boottime_usec() - x->begun_usec;
}

/* @param ret_name  of the file @return 0, -EFBIG: it did not fit, -errno */
static int write_output(CollectOut *out, const CollectCommand *c, const Run *x,
                        char ret_name[static FILE_NAME_SIZE]) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;
        (void)snprintf(ret_name, FILE_NAME_SIZE, "command-%s.txt", c->name);
        redact_text(&clean, x->text.text ? x->text.text : "", x->text.n);
        int r = strbuf_error(&clean);
        if (r < 0)
                return r;
        _cleanup_close_ int fd = collect_raw_file(out, ret_name);
        return fd < 0 ? fd : collect_write(out, fd, clean.text ? clean.text : "", clean.n);
}

static int tell(CollectOut *out, const CollectCommand *c, Run *x, int error) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT, cmdline = STRBUF_INIT;
        char name[FILE_NAME_SIZE] = "";
        int r = error < 0 || out->dir_fd < 0 ? 0 : write_output(out, c, x, name);
        for (char **a = c->run; *a; a++)
                strbuf_add_n(&cmdline, *a, strlen(*a) + 1);
        json_out_object(&b, NULL);
        json_out_string(&b, "command", c->name);
        json_out_array(&b, "run");
        redact_cmdline(&b, cmdline.text ? cmdline.text : "", cmdline.n);
        json_out_end_array(&b);
        if (error < 0) {
                json_out_string(&b, "error", strerror(-error));
        } else {
                json_out_u64(&b, "duration_ms", x->took_usec / USEC_PER_MSEC);
                json_out_bool(&b, "timed_out", x->is_timeout);
                if (x->has_ended && WIFEXITED(x->status))
                        json_out_i64(&b, "exit_status", WEXITSTATUS(x->status));
                else if (x->has_ended && WIFSIGNALED(x->status))
                        json_out_i64(&b, "signal", WTERMSIG(x->status));
                json_out_string(&b, "file", r == 0 && *name ? name : NULL);
                json_out_u64(&b, "bytes", x->text.n);
                json_out_bool(&b, "cut", x->is_cut || r == -EFBIG);
                if (r < 0 && r != -EFBIG)
                        json_out_string(&b, "error", strerror(-r));
        }
        json_out_end_object(&b);
        return collect_emit(out, &b);
}

static int run_one(const CollectCommand *c, CollectOut *out) {
        _cleanup_close_ int read_fd = -1, write_fd = -1;
        Run x = { .begun_usec = clock_boottime_usec(),
                  .max_bytes = MIN(out->max_bytes, OUTPUT_MAX) };
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        x.fd = read_fd = fds[0];
        write_fd = fds[1];
        int r = fcntl(read_fd, F_SETFL, O_NONBLOCK) < 0 ? -errno : spawn(c, write_fd, &x.pid);
        (void)close(TAKE_FD(write_fd));
        if (r == 0)
                wait_for_end(&x, c->timeout_usec);
        r = tell(out, c, &x, r);
        strbuf_done(&x.text);
        return r;
}

int collect_commands(const CollectOrder *order, CollectOut *out) {
        for (size_t i = 0; i < order->n_commands; i++) {
                int r = run_one(&order->commands[i], out);
                if (r < 0)
                        return r;
        }
        return 0;
}
