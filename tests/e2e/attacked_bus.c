/* The daemon, but what connects to its bus has taken over the process of the bus: upon the message
 * `attack API_SOCKET PROBE_SOCKET STATE_DIRECTORY` that process tries to get at its parent and at
 * others, from its own confinement, and answers on the bus with a line for each way: its name, and
 * 0 or the errno of the refusal. tests/e2e/test_bus.py. */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <nanomsg/nn.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_SIZE = 4096 };

typedef struct Report {
        char text[TEXT_SIZE];
        size_t n;
} Report;

/* @param result  below 0: refused, with errno */
static void tried(Report *r, const char *way, long result) {
        int error = result < 0 ? errno : 0;
        int n = snprintf(r->text + r->n, TEXT_SIZE - r->n, "%s=%d\n", way, error);
        r->n += n > 0 && (size_t)n < TEXT_SIZE - r->n ? (size_t)n : 0;
}

static int connect_to(const char *path, int type) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
        int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
        return fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof a) == 0 ? fd : -1;
}

static int drain(const char *path) {
        static const char request[] = "POST /v1/drain HTTP/1.1\r\nHost: a\r\nContent-Type: "
                                      "application/json\r\nContent-Length: 2\r\n\r\n{}";
        int fd = connect_to(path, SOCK_STREAM);
        return fd < 0 ? -1 : (int)send(fd, request, sizeof request - 1, MSG_NOSIGNAL);
}

static void try_signals(Report *r, pid_t parent) {
        int fds[2] = { -1, -1 };
        tried(r, "kill", kill(parent, SIGCONT));
        tried(r, "tgkill", syscall(SYS_tgkill, parent, parent, SIGCONT));
        tried(r, "tkill", syscall(SYS_tkill, parent, SIGCONT));
        siginfo_t info = { .si_code = SI_QUEUE, .si_signo = SIGCONT };
        tried(r, "rt_sigqueueinfo", syscall(SYS_rt_sigqueueinfo, parent, SIGCONT, &info));
        tried(r, "pidfd_open", syscall(SYS_pidfd_open, parent, 0));
        tried(r, "F_SETOWN", fcntl(3, F_SETOWN, parent));
        tried(r, "prlimit", prlimit(parent, RLIMIT_NOFILE, &(struct rlimit){ 9, 9 }, NULL));
        tried(r, "setpriority", setpriority(PRIO_PROCESS, (id_t)parent, 19));
        tried(r, "sched_setaffinity",
              sched_setaffinity(parent, sizeof(cpu_set_t), &(cpu_set_t){ { 1 } }));
        tried(r, "socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
        tried(r, "netlink", socket(AF_NETLINK, SOCK_RAW, 0));
}

static void try_memory(Report *r, pid_t parent) {
        char path[64], byte;
        struct iovec own = { &byte, 1 }, other = { (void *)&byte, 1 };
        tried(r, "ptrace", ptrace(PTRACE_SEIZE, parent, NULL, NULL));
        tried(r, "process_vm_readv", process_vm_readv(parent, &own, 1, &other, 1, 0));
        (void)snprintf(path, sizeof path, "/proc/%d/mem", (int)parent);
        tried(r, "mem", open(path, O_RDONLY));
        (void)snprintf(path, sizeof path, "/proc/%d/environ", (int)parent);
        tried(r, "environ", open(path, O_RDONLY));
}

static void try_files(Report *r, const char *state) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/state.db", state);
        tried(r, "state.db", open(path, O_RDWR));
        (void)snprintf(path, sizeof path, "%s/planted", state);
        tried(r, "create", open(path, O_WRONLY | O_CREAT, 0600));
        tried(r, "mkdir", mkdir(path, 0700));
        tried(r, "chmod", chmod(state, 0777));
        tried(r, "stat", access(state, F_OK));
}

static void try_processes(Report *r) {
        char *argv[] = { (char *)"true", NULL };
        struct io_uring_params ring = { 0 };
        pid_t pid = fork();
        if (pid == 0)
                _exit(0);
        tried(r, "fork", pid);
        tried(r, "clone3", syscall(SYS_clone3, NULL, (size_t)0) < 0 && errno != EINVAL ? -1 : 0);
        tried(r, "io_uring", syscall(SYS_io_uring_setup, 1, &ring));
        tried(r, "execve", execve("/bin/true", argv, NULL)); /* the last one */
}

static void attack(int s, char *message) {
        Report r = { .n = 0 };
        char *rest = NULL;
        (void)strtok_r(message, " ", &rest);
        const char *api = strtok_r(NULL, " ", &rest), *probe = strtok_r(NULL, " ", &rest),
                   *state = strtok_r(NULL, " ", &rest);
        pid_t parent = getppid();
        parent = parent > 1 ? parent : 1;
        tried(&r, "api", drain(api ? api : ""));
        tried(&r, "probe", connect_to(probe ? probe : "", SOCK_SEQPACKET));
        try_signals(&r, parent);
        try_memory(&r, parent);
        try_files(&r, state ? state : "");
        try_processes(&r);
        (void)nn_send(s, r.text, r.n, NN_DONTWAIT);
}

int __real_nn_recv(int s, void *buf, size_t len, int flags);
int __wrap_nn_recv(int s, void *buf, size_t len, int flags);
int __wrap_nn_recv(int s, void *buf, size_t len, int flags) {
        int n = __real_nn_recv(s, buf, len, flags);
        char message[1024] = "";
        if (n < 7 || (size_t)n >= sizeof message || memcmp(buf, "attack ", 7) != 0)
                return n;
        memcpy(message, buf, (size_t)n);
        attack(s, message);
        return n;
}
