/* Runs a function in a child that may hang in the kernel, and reads its output with a limit on idle
 * time, as guarded.h says. The child's last byte proves that the function returned. The parent does
 * not wait for the child's exit status, since closing a file can hang as well. */
#include "cli/common/guarded.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/common/cli.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"

#define TURN_MSEC 200
#define OUTPUT_MAX_BYTES (16 * MIB)
#define SCHEDSTAT_BYTES 128
#define END_BYTE '\n'
enum { OUTPUT_FD = 3 };

/* ---- the child ---- */

/* The child may outlive this process, so it closes all files but one: a program that reads our
 * output waits until every copy of it is closed. */
static void keep_one_file(int fd) {
        if (fd != OUTPUT_FD && dup2(fd, OUTPUT_FD) < 0)
                _exit(EXIT_FAILURE);
        int null_fd = open("/dev/null", O_RDWR);
        for (int i = STDIN_FILENO; i <= STDERR_FILENO && null_fd >= 0; i++)
                (void)dup2(null_fd, i);
        (void)close_range(OUTPUT_FD + 1, ~0U, 0);
}

static _Noreturn void run_child(int fd, void (*fn)(FILE *out, void *userdata), void *userdata) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        keep_one_file(fd);
        FILE *out = fdopen(OUTPUT_FD, "w");
        if (!out)
                _exit(EXIT_FAILURE);
        fn(out, userdata);
        _exit(fputc(END_BYTE, out) != EOF && fflush(out) == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* ---- the parent ---- */

typedef struct IdleWatch {
        pid_t pid;
        char before[SCHEDSTAT_BYTES]; /* /proc/PID/schedstat, see proc(5): time on a CPU and in its
                                         queue */
        uint64_t idle_since_usec;
} IdleWatch;

static bool is_idle_too_long(IdleWatch *w) {
        Clock *clock = clock_system();
        uint64_t now = clock->boottime_usec(clock);
        char path[64];
        _cleanup_free_ char *text = NULL;
        snprintf(path, sizeof path, "/proc/%d/schedstat", (int)w->pid);
        (void)fs_read_file(AT_FDCWD, path, SCHEDSTAT_BYTES - 1, &text,
                           NULL); /* unreadable: counts as idle */
        if (w->idle_since_usec == 0 || (text && strcmp(text, w->before) != 0)) {
                snprintf(w->before, sizeof w->before, "%s", text ? text : "");
                w->idle_since_usec = now;
        }
        return now - w->idle_since_usec >= GUARDED_IDLE_USEC;
}

/* @return 1: more may follow; 0: end of the output; -EFBIG; -errno */
static int read_piece(int fd, StrBuf *b) {
        char data[4096];
        ssize_t n = read(fd, data, sizeof data);
        if (n < 0)
                return errno == EINTR ? 1 : -errno;
        strbuf_add_n(b, data, (size_t)n);
        return n == 0 ? 0 : b->n > OUTPUT_MAX_BYTES ? -EFBIG : 1;
}

static int read_output(int fd, pid_t pid, StrBuf *b) {
        IdleWatch watch = { .pid = pid };
        for (int r = 1; r != 0;) {
                struct pollfd p = { .fd = fd, .events = POLLIN };
                if (cli_is_interrupted())
                        return -EINTR;
                int n = poll(&p, 1, TURN_MSEC);
                if (n > 0)
                        r = read_piece(fd, b);
                else if (is_idle_too_long(&watch))
                        return -ETIMEDOUT;
                if (r < 0)
                        return r;
        }
        return 0;
}

/* @return 0 and the output without its last byte */
static int detach_output(StrBuf *b, char **ret) {
        _cleanup_free_ char *text = strbuf_detach(b);
        size_t n = text ? strlen(text) : 0;
        if (!text)
                return -ENOMEM;
        if (n == 0 || text[n - 1] != END_BYTE)
                return -EPROTO;
        text[n - 1] = '\0';
        *ret = TAKE_PTR(text);
        return 0;
}

int guarded_run(void (*fn)(FILE *out, void *userdata), void *userdata, char **ret) {
        int ends[2];
        StrBuf b = STRBUF_INIT;
        (void)fflush(NULL); /* otherwise the child would write the buffers, too */
        if (pipe2(ends, O_CLOEXEC) < 0)
                return -errno;
        _cleanup_close_ int read_end = ends[0], write_end = ends[1];
        pid_t pid = fork();
        if (pid < 0)
                return -errno;
        if (pid == 0)
                run_child(write_end, fn, userdata);
        (void)close(TAKE_FD(write_end)); /* the child has the only write end now */
        int r = read_output(read_end, pid, &b);
        if (r < 0)
                (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, WNOHANG); /* still running: init reaps it after this process */
        if (r == 0)
                return detach_output(&b, ret);
        strbuf_done(&b);
        return r;
}

/* ---- a path ---- */

static void access_path(FILE *out, void *userdata) {
        const char *path = userdata;
        struct statfs fs;
        (void)out;
        if (statfs(path, &fs) < 0) /* an error is an answer, too */
                return;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        _cleanup_closedir_ DIR *dir = NULL;
        if (fs_opendir_fd(fd < 0 ? -errno : fd, &dir) == 0)
                (void)readdir(dir);
}

int guarded_check_path(const char *path) {
        _cleanup_free_ char *nothing = NULL, *copy = strdup(path);
        return copy ? guarded_run(access_path, copy, &nothing) : -ENOMEM;
}
