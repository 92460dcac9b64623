/* One connection of a supervisor: takes the order, finds out which processes are meant, and has it carried out. */
#include "collectors/runner/supervise.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectors/host/pids.h"
#include "collectors/runner/supervise_private.h"
#include "lib/base/cleanup.h"

#define ORDER_WAIT_MSEC 10000
#define ORDER_FDS 2

int supervise_say(int fd, const char *fmt, ...) {
        char text[PROBE_PACKET_MAX];
        va_list args;
        va_start(args, fmt);
        int n = vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        if (n < 0)
                return -EINVAL;
        size_t size = MIN((size_t)n, sizeof text - 1);
        return send(fd, text, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

int supervise_order_fd(const ProbeOrder *order) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = probe_order_compose(order, &b);
        return r < 0 ? r : order_memfd(b.text, b.n);
}

/* ---- the order ---- */

static void take_descriptors(struct msghdr *m, int fds[ORDER_FDS]) {
        size_t n = 0;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t n_here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < n_here; i++) {
                        int fd;
                        memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
                        if (n < ORDER_FDS)
                                fds[n++] = fd;
                        else
                                (void)close(fd);
                }
        }
}

/* @return 0 and *ret_order_fd, *ret_dir_fd (-1 = none), -errno */
static int receive(int fd, int *ret_order_fd, int *ret_dir_fd) {
        char text[16] = "";
        union {
                char data[CMSG_SPACE(ORDER_FDS * sizeof(int))];
                struct cmsghdr align;
        } control;
        struct iovec io = { .iov_base = text, .iov_len = sizeof text - 1 };
        struct msghdr m = { .msg_iov = &io,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof control };
        int fds[ORDER_FDS] = { -1, -1 };
        struct pollfd p = { .fd = fd, .events = POLLIN };
        int r = poll(&p, 1, ORDER_WAIT_MSEC);
        if (r <= 0)
                return r < 0 ? -errno : -ETIMEDOUT;
        ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n < 0)
                return -errno;
        take_descriptors(&m, fds);
        *ret_order_fd = fds[0];
        *ret_dir_fd = fds[1];
        return n == 0 ? -ECONNRESET : strcmp(text, "order") == 0 && fds[0] >= 0 ? 0 : -EPROTO;
}

/* The socket's mode lets in nobody else; this is for a socket that was given another one. */
static int check_peer(int fd) {
        struct ucred peer;
        socklen_t n = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
                return -errno;
        return peer.uid == 0 || peer.uid == geteuid() ? 0 : -EPERM;
}

/* ---- which processes are meant ---- */

static int add_process(CollectOrder *c, pid_t pid, uint64_t start_ticks) {
        for (size_t i = 0; i < c->n_processes; i++)
                if (c->processes[i].pid == pid)
                        return 0;
        if (c->n_processes >= COLLECT_PROCESSES_MAX)
                return 0; /* the document says how many there are */
        CollectProcess *more = realloc(c->processes, (c->n_processes + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        c->processes = more;
        more[c->n_processes++] = (CollectProcess){ pid, start_ticks };
        return 0;
}

/* The logs that this process writes are looked for where it is. */
static void complete_log_files(CollectOrder *c, const ProbeQuestion *q, const PidsAnswer *answer) {
        for (size_t i = 0; i < c->n_log_files; i++) {
                CollectLogFile *f = &c->log_files[i];
                if (f->pid == 0 && f->hook_pid == q->hook_pid && f->inner_pid == q->inner_pid) {
                        f->pid = answer->pid;
                        f->start_ticks = answer->start_ticks;
                }
        }
}

/* Of a process that was not found, or has ended by now, the container is its hook's. */
static void say_answer(int fd, const char *proc_root, const ProbeQuestion *q,
                       const PidsAnswer *answer) {
        char container[PIDS_CONTAINER_SIZE];
        if ((answer->pid <= 0 || !pids_container(proc_root, answer->pid, container)) &&
            !pids_container(proc_root, q->hook_pid, container))
                (void)snprintf(container, sizeof container, "-");
        (void)supervise_say(fd, "process %d %d %d %llu %s", (int)q->hook_pid, (int)q->inner_pid,
                            (int)answer->pid, (unsigned long long)answer->start_ticks, container);
}

static int answer_questions(int fd, ProbeOrder *order) {
        for (size_t i = 0; i < order->n_questions; i++) {
                const ProbeQuestion *q = &order->questions[i];
                PidsAnswer answer = { 0 };
                /* Hidden, or it died while it was looked at: that one alone is unknown. */
                if (pids_resolve(&(PidsQuestion){ order->collect.proc_root, q->hook_pid,
                                                  q->ns_inode, q->inner_pid },
                                 &answer) != 0)
                        answer = (PidsAnswer){ 0 };
                say_answer(fd, order->collect.proc_root, q, &answer);
                if (answer.pid <= 0)
                        continue;
                complete_log_files(&order->collect, q, &answer);
                int r = add_process(&order->collect, answer.pid, answer.start_ticks);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- carrying it out ---- */

static int carry_out(int fd, ProbeOrder *order, int dir_fd) {
        struct stat st;
        if (order->mode == PROBE_WATCH)
                return supervise_watch(fd, order);
        if (dir_fd < 0 || fstat(dir_fd, &st) < 0 || !S_ISDIR(st.st_mode))
                return -ENOTDIR;
        int r = answer_questions(fd, order);
        return r < 0 ? r : supervise_look(fd, order, dir_fd);
}

static int serve(int fd, const char **ret_why) {
        _cleanup_(probe_order_done) ProbeOrder order = { 0 };
        _cleanup_close_ int order_fd = -1, dir_fd = -1;
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = check_peer(fd);
        if (r == 0)
                r = receive(fd, &order_fd, &dir_fd);
        if (r == 0)
                r = order_read_fd(order_fd, ORDER_MAX_BYTES, &text, &n);
        if (r == 0)
                r = probe_order_parse(text, n, &order, ret_why);
        if (r == 0)
                r = carry_out(fd, &order, dir_fd);
        return r;
}

/* Programs that outlived the collector which started them are ours by now: see PR_SET_CHILD_SUBREAPER. */
static void end_descendants(void) {
        char path[64];
        int pid;
        (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        while (f && fscanf(f, "%d", &pid) == 1)
                if (pid > 1)
                        (void)kill(pid, SIGKILL); /* what has just ended by itself is fine */
        while (waitpid(-1, NULL, WNOHANG) > 0)
                ;
}

int supervise_main(int fd) {
        struct stat st;
        const char *why = "";
        if (fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode))
                return -ENOTSOCK;
        (void)signal(SIGPIPE, SIG_IGN);
        (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* without it they are init's */
        int r = serve(fd, &why);
        end_descendants();
        if (r < 0)
                (void)supervise_say(fd, "failed %s%s%s", why, *why ? ": " : "", strerror(-r));
        else
                (void)supervise_say(fd, "done"); /* nobody may be there any more */
        return r;
}
