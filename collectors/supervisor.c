/* One connection of the agent to a supervisor.
 *
 * A supervisor is a process of its own with one thread. It receives one request, checks who sends
 * it, finds out which processes the request means, and carries it out: a snapshot (snapshot.c), a
 * watch (watch.c), or the roots of a container (crash/origin/roots.c). It survives its children,
 * and completes a document when the agent does not survive it.
 *
 * The caller is not trusted beyond what it may ask for: the commands come from the configuration
 * file, never from the request, and only the process that holds the lock of the agent's state
 * directory is served. How a collector runs is decided in collector_process.c and
 * collector_child.c; the agent's end of the connection is supervisor_client.c. */
#include "collectors/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectors/collector_child.h"
#include "collectors/crash/crash.h"
#include "collectors/crash/origin/roots.h"
#include "collectors/host/pids.h"
#include "collectors/runner/packet.h"
#include "collectors/runner/probe_request.h"
#include "collectors/snapshot.h"
#include "collectors/watch.h"
#include "config/config.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"

#define REQUEST_WAIT_MSEC 10000
#define REQUEST_FDS 2

/* ---- the request ---- */

/* @param ret_fds  the request, and the directory or -1 @return 0, -errno */
static int receive(int fd, int ret_fds[static REQUEST_FDS]) {
        char text[16] = "";
        struct pollfd p = { .fd = fd, .events = POLLIN };
        int r = poll(&p, 1, REQUEST_WAIT_MSEC);
        if (r <= 0)
                return r < 0 ? -errno : -ETIMEDOUT;
        ssize_t n = packet_receive(fd, text, sizeof text - 1, ret_fds, REQUEST_FDS);
        if (n <= 0)
                return n < 0 ? (int)n : -ECONNRESET;
        return strcmp(text, "order") == 0 && ret_fds[0] >= 0 ? 0 : -EPROTO;
}

/* ---- the process that sends a request ---- */

/* F_GETLK names the process that has the lock, by its number in our pid namespace. */
static int check_holder(const char *state_directory, pid_t pid, const char **ret_why) {
        struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
        _cleanup_free_ char *path = path_join(state_directory, "lock");
        if (!path)
                return -ENOMEM;
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 || fcntl(fd, F_GETLK, &whole) < 0) {
                int r = -errno;
                *ret_why = "the lock file of the agent's state directory cannot be examined";
                return r;
        }
        if (whole.l_type != F_UNLCK && pid > 0 && whole.l_pid == pid)
                return 0;
        *ret_why = "the caller is not the process that holds the lock of the state directory";
        return -EPERM;
}

/* The agent's children run as its user and can connect, too. Only the process that holds the lock
 * of the state directory is served. */
static int check_peer(int fd, const char *state_directory, const char **ret_why) {
        struct ucred peer;
        socklen_t n = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
                return -errno;
        return peer.uid == 0 || peer.uid == geteuid()
                       ? check_holder(state_directory, peer.pid, ret_why)
                       : -EPERM;
}

/* Replaces the commands of the request by those of the configuration. */
static int use_commands(const Config *config, ProbeRequest *request) {
        size_t n = config->snapshot.n_commands;
        CollectCommand *commands = calloc(n + 1, sizeof *commands);
        int r = commands ? 0 : -ENOMEM;
        probe_request_clear_commands(request);
        request->collect.commands = commands;
        for (size_t i = 0; i < n && r == 0; i++) {
                const ConfigCommand *from = &config->snapshot.commands[i];
                CollectCommand *to = &commands[i];
                *to = (CollectCommand){ strdup(from->name), strings_copy(from->run.items),
                                        from->timeout_usec };
                request->collect.n_commands = i + 1;
                r = to->name && to->run ? 0 : -ENOMEM;
        }
        return r;
}

/* ---- which processes are meant ---- */

static int add_process(CollectRequest *c, pid_t pid, uint64_t start_ticks) {
        for (size_t i = 0; i < c->n_processes; i++)
                if (c->processes[i].pid == pid)
                        return 0;
        if (c->n_processes >= COLLECT_PROCESSES_MAX)
                return 0; /* the document shows that there are COLLECT_PROCESSES_MAX */
        CollectProcess *more = realloc(c->processes, (c->n_processes + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        c->processes = more;
        more[c->n_processes++] = (CollectProcess){ pid, start_ticks };
        return 0;
}

/* A log file that a hook named by this process is opened as this process sees it. */
static void complete_log_files(CollectRequest *c, const ProbePidQuery *q, const PidsMatch *answer) {
        for (size_t i = 0; i < c->n_log_files; i++) {
                CollectLogFile *f = &c->log_files[i];
                if (f->pid == 0 && f->hook_pid == q->hook_pid && f->inner_pid == q->inner_pid) {
                        f->pid = answer->pid;
                        f->start_ticks = answer->start_ticks;
                }
        }
}

/* Where the process was not found or has ended, its container is taken from its hook. */
static void send_answer(int fd, const char *proc_root, const ProbePidQuery *q,
                        const PidsMatch *answer) {
        char container[PIDS_CONTAINER_SIZE];
        if (answer->pid <= 0 || !pids_container(proc_root, answer->pid, container) || !container[0])
                (void)pids_container(proc_root, q->hook_pid, container); /* else "" */
        if (!container[0])
                (void)snprintf(container, sizeof container, "-");
        (void)packet_printf(fd, "process %d %d %d %llu %s", (int)q->hook_pid, (int)q->inner_pid,
                            (int)answer->pid, (unsigned long long)answer->start_ticks, container);
}

/* Finds the processes that hooks have named, and tells the agent their numbers. */
static int resolve_questions(int fd, ProbeRequest *request) {
        for (size_t i = 0; i < request->n_questions; i++) {
                const ProbePidQuery *q = &request->questions[i];
                PidsMatch answer = { 0 };
                /* On error (it is hidden, or has ended) only this process is unknown. */
                if (pids_resolve(&(PidsQuery){ request->collect.proc_root, q->hook_pid, q->ns_inode,
                                               q->inner_pid },
                                 &answer) != 0)
                        answer = (PidsMatch){ 0 };
                send_answer(fd, request->collect.proc_root, q, &answer);
                if (answer.pid <= 0)
                        continue;
                complete_log_files(&request->collect, q, &answer);
                int r = add_process(&request->collect, answer.pid, answer.start_ticks);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- carrying it out ---- */

static int run_request(const CollectorTable *table, ProbeRequest *request, int fd, int dir_fd) {
        struct stat st;
        if (request->mode == PROBE_WATCH)
                return watch_run(request, fd);
        if (request->mode == PROBE_ROOTS)
                return roots_send_container(fd, request->collect.proc_root,
                                            request->cgroup ? request->cgroup : "");
        if (dir_fd < 0 || fstat(dir_fd, &st) < 0 || !S_ISDIR(st.st_mode))
                return -ENOTDIR;
        int r = resolve_questions(fd, request);
        return r < 0 ? r : snapshot_run(table, request, fd, dir_fd);
}

static int check_collectors(const CollectorTable *table, const ProbeRequest *request,
                            const char **ret_why) {
        for (char **c = request->collectors; c && *c; c++)
                if (!collector_table_find(table, *c)) {
                        *ret_why = "the request names a collector that does not exist";
                        return -EINVAL;
                }
        return 0;
}

/* @param config_file  NULL: the agent has started this process, with its own rights */
static int serve(const CollectorTable *table, int fd, const char *config_file,
                 const char **ret_why) {
        _cleanup_(probe_request_done) ProbeRequest request = { 0 };
        _cleanup_(config_freep) Config *config = NULL;
        int fds[REQUEST_FDS] = { -1, -1 }; /* closed when the process ends */
        int r = receive(fd, fds);          /* first, so that a refused caller can read the reason */
        if (r < 0)
                return r;
        r = config_file ? config_load_for_supervisor(&config, config_file, environ) : 0;
        if (r != 0) {
                *ret_why =
                        "the collector host cannot read the agent's configuration, which names the "
                        "state directory and the commands";
                return r < 0 ? r : -EINVAL;
        }
        if (config)
                r = check_peer(fd, config->state_directory, ret_why);
        if (r == 0)
                r = probe_request_read(fds[0], &request, ret_why);
        if (r == 0 && config)
                r = use_commands(config, &request);
        if (r == 0)
                r = check_collectors(table, &request, ret_why);
        if (r == 0)
                r = run_request(table, &request, fd, fds[1]);
        return r;
}

/* Programs that have outlived the collector which started them are children of this process, which
 * is a subreaper. */
static void kill_descendants(void) {
        char path[64];
        int pid;
        (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        while (f && fscanf(f, "%d", &pid) == 1)
                if (pid > 1)
                        (void)kill(pid, SIGKILL); /* on error it has just ended */
        while (waitpid(-1, NULL, WNOHANG) > 0)
                ;
}

/* Serves one connection to its end. @return 0, -ENOTSOCK when fd is no socket, -errno */
static int supervise(const CollectorTable *table, int fd, const char *config_file) {
        struct stat st;
        const char *why = "";
        if (fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode))
                return -ENOTSOCK;
        (void)signal(SIGPIPE, SIG_IGN);
        (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* else init would get them */
        int r = serve(table, fd, config_file, &why);
        kill_descendants();
        if (r < 0)
                (void)packet_printf(fd, "failed %s%s%s", why, *why ? ": " : "", strerror(-r));
        else
                (void)packet_printf(fd, "done"); /* the agent may be gone */
        return r;
}
int child_main(const CollectorTable *table, const char *name, const char *config_file) {
        if (strcmp(name, "probe") == 0) {
                int r = supervise(table, STDIN_FILENO, config_file);
                return r == -ENOTSOCK ? collector_child_usage() : r < 0 ? CHILD_FAILED : CHILD_DONE;
        }
        if (strncmp(name, "collect:", 8) == 0)
                return collector_child_main(table, name + 8, false);
        if (strncmp(name, "follow:", 7) == 0)
                return collector_child_main(table, name + 7, true);
        if (strcmp(name, "crash") == 0)
                return crash_child_main();
        return collector_child_usage();
}
