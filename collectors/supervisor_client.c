/* The agent's end of a supervisor.
 *
 * A supervisor runs the collectors for one request. Two programs can start it: the collector host
 * (systemd by neuron-collectd-probe.socket, or collectors/probe_listener.c in a container), which
 * has capabilities and devices that the agent does not have, and, where nobody listens on the
 * socket of the collector host, the agent itself, with its own rights. A client is one connection
 * to one supervisor: it sends the request, passes on what the supervisor reports
 * (collectors/supervisor.h has the messages), and reports once how the request ended: done, failed,
 * killed, or timed out. on_end frees the client, so that no function here touches it afterwards.
 *
 * What the request asks for and what its answers mean is the caller's. */
#include "collectors/supervisor_client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectors/runner/packet.h"
#include "lib/base/clock.h"
#include "lib/base/path.h"
#include "lib/base/spawn.h"
#include "lib/event/timer.h"

#define MESSAGES_MAX 256 /* at once; then the loop serves others, however much a watch reports */
#define REAP_USEC (200 * USEC_PER_MSEC)

struct SupervisorClient {
        SupervisorClientOptions options;
        int fd;
        pid_t pid; /* of a supervisor that the agent started; 0 */
        sd_event_source *io, *timer;
        char packet[PACKET_TEXT_MAX + 1];
};

/* A supervisor that no client waits for any more. The loop reaps it. */
static int on_reap(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)usec;
        if (waitpid((pid_t)(intptr_t)userdata, NULL, WNOHANG) != 0 || timer_rearm(s, REAP_USEC) < 0)
                (void)sd_event_source_set_floating(s, false); /* only this dispatch holds it now */
        return 0;
}

SupervisorClient *supervisor_client_free(SupervisorClient *c) {
        if (!c)
                return NULL;
        sd_event_source_disable_unref(c->io);
        sd_event_source_disable_unref(c->timer);
        cleanup_closep(&c->fd);
        if (c->pid > 0 && waitpid(c->pid, NULL, WNOHANG) == 0)
                (void)sd_event_add_time_relative(
                        c->options.event, NULL, CLOCK_MONOTONIC, REAP_USEC, 0, on_reap,
                        (void *)(intptr_t)c->pid); /* else init reaps it when the agent ends */
        free(c);
        return NULL;
}

/* ---- messages ---- */

/* The client no longer exists when this returns. */
static void report_end(SupervisorClient *c, int result, const char *why) {
        c->options.on_end(result, why, c->options.userdata);
}

static int on_timeout(sd_event_source *s, uint64_t usec, void *userdata) {
        SupervisorClient *c = userdata;
        (void)s, (void)usec;
        if (c->pid > 0)
                (void)kill(c->pid, SIGKILL); /* its children end with it */
        report_end(c, -ETIMEDOUT, "the supervisor of the collectors timed out");
        return 0;
}

/* @return whether another message may have arrived; if not, the client may be freed */
static bool handle_message(SupervisorClient *c) {
        ssize_t n = recv(c->fd, c->packet, sizeof c->packet - 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return false;
        if (n <= 0) {
                report_end(c, n < 0 ? -errno : -ECONNRESET,
                           "the supervisor of the collectors was killed");
                return false;
        }
        c->packet[n] = '\0';
        if (strcmp(c->packet, "done") == 0)
                report_end(c, 0, "");
        else if (strncmp(c->packet, "failed ", 7) == 0)
                report_end(c, -EIO, c->packet + 7);
        else {
                c->options.on_message(c->packet, c->options.userdata);
                return true;
        }
        return false;
}

static int on_readable(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        (void)s, (void)fd, (void)revents;
        for (unsigned i = 0; i < MESSAGES_MAX && handle_message(userdata); i++)
                ;
        return 0;
}

/* ---- a supervisor of the agent's own ---- */

static int spawn(pid_t *ret, int fd) {
        char *argv[] = { (char *)"neuron-collectd", (char *)"--child=probe", (char *)"--own",
                         NULL };
        /* Not the agent's environment, which may name what a supervisor must not have. */
        char *environment[] = { (char *)"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
                                        "/sbin:/bin",
                                (char *)"LANG=C.UTF-8", NULL };
        return spawn_program(ret, &(SpawnOptions){ .program = "/proc/self/exe",
                                                   .argv = argv,
                                                   .environment = environment,
                                                   .fds = { fd, -1, STDERR_FILENO },
                                                   .n_fds = 3,
                                                   .keeps_capabilities = true });
}

static int start_own(SupervisorClient *c) {
        int fds[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
                return -errno;
        c->fd = fds[0];
        int r = spawn(&c->pid, fds[1]);
        (void)close(fds[1]);
        if (r == 0 && fcntl(c->fd, F_SETFL, O_NONBLOCK) < 0)
                r = -errno;
        return r;
}

bool supervisor_client_is_own(const SupervisorClient *c) {
        return c->pid > 0;
}

/* ---- life ---- */

char *supervisor_client_socket(const char *api_socket) {
        _cleanup_free_ char *parent = path_parent(api_socket);
        return parent ? path_join(parent, "probe.sock") : NULL;
}

CollectRequest supervisor_client_collect_request(const Config *config) {
        return (CollectRequest){ .sysfs_root = config->snapshot.sysfs_root,
                                 .device_directory = config->snapshot.device_directory,
                                 .proc_root = config->snapshot.proc_root,
                                 .environment = config->snapshot.environment.items,
                                 .timeout_usec = config->snapshot.probe_timeout_usec,
                                 .max_bytes = config->snapshot.probe_bytes };
}

int supervisor_client_new(SupervisorClient **ret, const SupervisorClientOptions *options) {
        const SupervisorClientOptions *o = options;
        _cleanup_(supervisor_client_freep) SupervisorClient *c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        c->options = *o;
        c->options.request = NULL;
        c->options.socket = NULL;
        c->fd = probe_request_connect(o->socket);
        int r = c->fd == -ENOENT && !o->only_listening ? start_own(c) : c->fd;
        if (r >= 0)
                r = probe_request_send(o->request, c->fd, o->dir_fd);
        if (r >= 0)
                r = sd_event_add_io(o->event, &c->io, c->fd, EPOLLIN, on_readable, c);
        if (r >= 0 && o->timeout_usec != USEC_INFINITY)
                r = sd_event_add_time_relative(o->event, &c->timer, CLOCK_MONOTONIC,
                                               o->timeout_usec, USEC_PER_MSEC, on_timeout, c);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}
