/* No stderr may make a job wait: a full pipe that all ranks share, a file on a server that is gone.
 * Asking what stderr is (fstat) could hang, too. */
#include "hook/message.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "hook/child_timeout.h"
#include "lib/base/clock.h"

#define PREFIX "neuron-dump: "
#define STDERR_TIMEOUT_USEC (100 * USEC_PER_MSEC)

enum { LINE_BYTES = 512 }; /* below PIPE_BUF: a pipe takes it complete or not at all */

typedef struct Line {
        char text[LINE_BYTES];
        size_t n;
} Line;

static int write_line(void *userdata) {
        Line *line = userdata;

        return write(STDERR_FILENO, line->text, line->n) < 0 ? -errno : 0;
}

/* Kernels before 6.4 do not know a single write to a pipe that does not wait: an open file of our
 * own does not. @return whether it is a pipe */
static bool print_to_pipe(const Line *line) {
        int fd;

        if (fcntl(STDERR_FILENO, F_GETPIPE_SZ) < 0)
                return false;
        fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return errno == ENXIO; /* nobody reads it; without /proc it is left to the child */
        if (write(fd, line->text, line->n) < 0)
                errno = 0; /* full: there is nobody else to tell */
        (void)close(fd);   /* as above */
        return true;
}

static void print_line(Line *line) {
        static bool is_hung;
        struct iovec v = { .iov_base = line->text, .iov_len = line->n };
        TimedChild child;

        if (is_hung)
                return;
        if (send(STDERR_FILENO, line->text, line->n, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
            errno != ENOTSOCK || pwritev2(STDERR_FILENO, &v, 1, -1, RWF_NOWAIT) >= 0 ||
            errno == EBADF || print_to_pipe(line))
                return;
        child_timeout_start(&child, write_line, line);
        is_hung = child.deferred != NULL || /* there can be no child, and here it might hang */
                  child_timeout_wait(&child, clock_boottime_usec() + STDERR_TIMEOUT_USEC) ==
                          -ETIMEDOUT;
}

void message_print(const char *fmt, ...) {
        Line line = { .text = PREFIX };
        size_t n = strlen(PREFIX);
        va_list ap;

        va_start(ap, fmt);
        (void)vsnprintf(line.text + n, sizeof line.text - n - 1, fmt,
                        ap); /* a cut line is a line */
        va_end(ap);
        for (; line.text[n]; n++)
                if ((unsigned char)line.text[n] < ' ' || line.text[n] == 0x7f)
                        line.text[n] = '?';
        line.text[n++] = '\n';
        line.n = n;
        print_line(&line);
}
