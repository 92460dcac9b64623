#include "agent/incidents/probe_client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "collectors/supervisor.h"
#include "lib/base/spawn.h"
#include "lib/event/timer.h"

#define MESSAGES_MAX 256 /* in one go: a watch that floods leaves the loop to others as well */
#define REAP_USEC (200 * USEC_PER_MSEC)

struct Probe {
        int fd;
        pid_t pid; /* of a supervisor that we started; 0 */
        sd_event *event;
        sd_event_source *io, *timer;
        void (*on_message)(const char *text, void *userdata);
        void (*on_end)(int result, const char *why, void *userdata);
        void *userdata;
        bool has_ended;
        char why[512];
        char packet[PROBE_PACKET_MAX + 1];
};

/* ---- its end ---- */

/* Those whose end is waited for in the loop, as nobody's. */
typedef struct Orphan {
        pid_t pid;
} Orphan;

static int on_reap(sd_event_source *s, uint64_t usec, void *userdata) {
        Orphan *o = userdata;
        (void)usec;
        if (waitpid(o->pid, NULL, WNOHANG) == 0 && timer_rearm(s, REAP_USEC) == 0)
                return 0;
        (void)sd_event_source_set_floating(s, false); /* now only this dispatch holds it */
        return 0;
}

/* It ends by itself soon, and is not killed: it may be finishing its document. */
static void close_connection(Probe *p) {
        sd_event_source *s = NULL;
        pid_t pid = p->pid;
        p->pid = 0;
        if (pid <= 0 || waitpid(pid, NULL, WNOHANG) != 0)
                return;
        Orphan *o = calloc(1, sizeof *o);
        if (!o)
                return; /* init reaps it when the agent ends */
        o->pid = pid;
        if (sd_event_add_time_relative(p->event, &s, CLOCK_MONOTONIC, REAP_USEC, 0, on_reap, o) <
            0) {
                free(o);
                return;
        }
        (void)sd_event_source_set_destroy_callback(s, free);
        (void)sd_event_source_set_floating(s, true);
        sd_event_source_unref(s);
}

Probe *probe_free(Probe *p) {
        if (!p)
                return NULL;
        sd_event_source_disable_unref(p->io);
        sd_event_source_disable_unref(p->timer);
        if (p->fd >= 0)
                (void)close(p->fd);
        close_connection(p);
        sd_event_unref(p->event);
        free(p);
        return NULL;
}

/* p may be gone when this returns. */
static void report_end(Probe *p, int result, const char *why) {
        if (p->has_ended)
                return;
        p->has_ended = true;
        (void)sd_event_source_set_enabled(p->io, SD_EVENT_OFF);    /* these fail only in */
        (void)sd_event_source_set_enabled(p->timer, SD_EVENT_OFF); /* another process */
        (void)snprintf(p->why, sizeof p->why, "%s", why);
        p->on_end(result, p->why, p->userdata);
}

static int on_timeout(sd_event_source *s, uint64_t usec, void *userdata) {
        Probe *p = userdata;
        (void)s, (void)usec;
        if (p->pid > 0)
                (void)kill(p->pid, SIGKILL); /* its children end with it */
        report_end(p, -ETIMEDOUT, "the supervisor of the collectors timed out");
        return 0;
}

/* @return whether there may be another one; p may be gone when not */
static bool handle_message(Probe *p) {
        ssize_t n = recv(p->fd, p->packet, sizeof p->packet - 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return false;
        if (n <= 0) {
                report_end(p, n < 0 ? -errno : -ECONNRESET,
                           "the supervisor of the collectors was killed");
                return false;
        }
        p->packet[n] = '\0';
        if (strcmp(p->packet, "done") == 0)
                report_end(p, 0, "");
        else if (strncmp(p->packet, "failed ", 7) == 0)
                report_end(p, -EIO, p->packet + 7);
        else {
                p->on_message(p->packet, p->userdata);
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

/* ---- its beginning ---- */

static int spawn(pid_t *ret, int fd) {
        char *argv[] = { (char *)"neuron-collectd", (char *)"--child=probe", NULL };
        /* Not the agent's environment, which may name what it is not to have. */
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

static int start_own(Probe *p) {
        int fds[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
                return -errno;
        p->fd = fds[0];
        int r = spawn(&p->pid, fds[1]);
        (void)close(fds[1]);
        if (r == 0 && fcntl(p->fd, F_SETFL, O_NONBLOCK) < 0)
                r = -errno;
        return r;
}

bool probe_is_own(const Probe *p) {
        return p->pid > 0;
}

int probe_new(Probe **ret, sd_event *event, const ProbeOptions *q) {
        _cleanup_(probe_freep) Probe *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        p->event = sd_event_ref(event);
        p->on_message = q->on_message;
        p->on_end = q->on_end;
        p->userdata = q->userdata;
        p->fd = probe_request_connect(q->socket);
        int r = p->fd == -ENOENT && !q->only_listening ? start_own(p) : p->fd;
        if (r >= 0)
                r = probe_request_send(q->request, p->fd, q->dir_fd);
        if (r >= 0)
                r = sd_event_add_io(event, &p->io, p->fd, EPOLLIN, on_readable, p);
        if (r >= 0 && q->timeout_usec != USEC_INFINITY)
                r = sd_event_add_time_relative(event, &p->timer, CLOCK_MONOTONIC, q->timeout_usec,
                                               USEC_PER_MSEC, on_timeout, p);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(p);
        return 0;
}
