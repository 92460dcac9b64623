#include "agent/hooknotes/hook_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/base/cleanup.h"
#include "lib/base/list.h"
#include "lib/event/timer.h"

#define ACCEPT_AT_ONCE 64       /* then the other sources of the loop */
#define RETRY_USEC USEC_PER_SEC /* when there are no descriptors */

struct HookSocket {
        sd_event *event;
        int fd;
        sd_event_source *io, *timer; /* timer: listens again after descriptors ran out */
        HookSocketOptions options;
        ListLink open;
        size_t n_open;
        HookPeer *in_callback;
        char *packet; /* of max_packet + 1 bytes, and room for NUL */
};

/* ---- a peer ---- */

bool hook_peer_has_hung_up(const HookPeer *p) {
        struct pollfd fd = { .fd = p->fd, .events = POLLRDHUP };
        return poll(&fd, 1, 0) > 0;
}

static void peer_free(HookPeer *p) {
        sd_event_source_disable_unref(p->io);
        sd_event_source_disable_unref(p->timer);
        if (p->fd >= 0)
                (void)close(p->fd); /* nothing more is sent to it */
        free(p);
}

static void peer_unlink(HookPeer *p) {
        if (p->is_closed)
                return;
        p->is_closed = true;
        list_remove(&p->link);
        p->socket->n_open--;
}

void hook_peer_close(HookPeer *p) {
        bool was_closed = p->is_closed;
        peer_unlink(p);
        if (!was_closed && p->socket->in_callback != p)
                peer_free(p);
}

static void peer_gone(HookPeer *p) {
        HookSocket *s = p->socket;
        s->in_callback = p;
        s->options.on_gone(p, s->options.userdata);
        s->in_callback = NULL;
        peer_unlink(p);
        peer_free(p);
}

int hook_peer_send(HookPeer *p, const char *text, int fd) {
        union {
                char buf[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control = { 0 };
        struct iovec iov = { (char *)text, strlen(text) };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

        if (fd >= 0) {
                m.msg_control = control.buf;
                m.msg_controllen = sizeof control.buf;
                struct cmsghdr *c = CMSG_FIRSTHDR(&m);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(c), &fd, sizeof fd);
        }
        return sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

static int on_peer_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        HookPeer *p = userdata;
        if (!p->userdata) /* no packet ever came */
                p->socket->options.on_refused(p->uid, "it sent no note within a second",
                                              p->socket->options.userdata);
        peer_gone(p);
        return 0;
}

int hook_peer_wait(HookPeer *p, uint64_t usec) {
        return timer_arm(&p->timer, &(TimerOptions){ .event = p->socket->event,
                                                     .usec = usec,
                                                     .slack_usec = 50 * USEC_PER_MSEC,
                                                     .handler = on_peer_timer,
                                                     .userdata = p });
}

static void refuse(HookPeer *p, const char *answer, const char *why) {
        HookSocket *s = p->socket;
        (void)hook_peer_send(p, answer, -1); /* it may have ended */
        s->options.on_refused(p->uid, why, s->options.userdata);
        peer_gone(p);
}

/* The kernel discards descriptors that come with a packet, since there is no buffer for them:
 * closing one here might wait for its file system. @return a packet's bytes; 0 = it has
 * disconnected, or sent nothing yet */
static ssize_t receive(HookPeer *p, bool *ret_gone) {
        ssize_t n = recv(p->fd, p->socket->packet, p->socket->options.max_packet + 1,
                         MSG_DONTWAIT | MSG_TRUNC);
        /* It closed without reading all of ours: reported once, before its own last packet. */
        if (n < 0 && errno == ECONNRESET)
                n = recv(p->fd, p->socket->packet, p->socket->options.max_packet + 1,
                         MSG_DONTWAIT | MSG_TRUNC);
        *ret_gone = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
        return n > 0 ? n : 0;
}

static int on_peer(sd_event_source *source, int fd, uint32_t events, void *userdata) {
        (void)source, (void)fd, (void)events;
        HookPeer *p = userdata;
        HookSocket *s = p->socket;
        bool is_gone;
        ssize_t n = receive(p, &is_gone);

        if (is_gone)
                peer_gone(p);
        else if ((size_t)n > s->options.max_packet)
                refuse(p, "refused the note is too long", "the note was too long");
        else if (n > 0) {
                s->packet[n] = '\0';
                s->in_callback = p;
                s->options.on_packet(p, s->packet, (size_t)n, s->options.userdata);
                s->in_callback = NULL;
                if (p->is_closed)
                        peer_free(p);
        }
        return 0;
}

/* ---- the listener ---- */

static size_t n_open_of(const HookSocket *s, uid_t uid) {
        size_t n = 0;
        LIST_FOREACH (l, (ListLink *)&s->open)
                n += CONTAINER_OF(l, HookPeer, link)->uid == uid;
        return n;
}

static bool has_space(const HookSocket *s, uid_t uid) {
        size_t max = uid == 0 ? HOOK_OPEN_MAX : HOOK_OPEN_MAX - HOOK_OPEN_FOR_ROOT;
        return s->n_open < max && n_open_of(s, uid) < HOOK_OPEN_MAX_OF_UID;
}

/* @param fd  taken over */
static int add_peer(HookSocket *s, int fd) {
        struct ucred who;
        socklen_t size = sizeof who;

        HookPeer *p = calloc(1, sizeof *p);
        if (!p) {
                (void)close(fd); /* it sees a closed connection */
                return -ENOMEM;
        }
        *p = (HookPeer){ .socket = s, .fd = fd };
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0) {
                int r = -errno;
                peer_free(p);
                return r;
        }
        p->pid = who.pid;
        p->uid = who.uid;
        if (!has_space(s, p->uid)) {
                char nothing; /* unread data would be reported as ECONNRESET before our answer, see
                                 unix(7) */
                (void)recv(fd, &nothing, sizeof nothing, MSG_DONTWAIT | MSG_TRUNC);
                (void)hook_peer_send(p, "refused too many hooks are connected", -1);
                s->options.on_refused(p->uid, "too many hooks are connected", s->options.userdata);
                peer_free(p);
                return 0;
        }
        int r = sd_event_now(s->event, CLOCK_BOOTTIME, &p->since_usec);
        if (r >= 0)
                r = sd_event_add_io(s->event, &p->io, fd, EPOLLIN, on_peer, p);
        if (r >= 0)
                r = hook_peer_wait(p, HOOK_NOTE_WITHIN_USEC);
        if (r < 0) {
                peer_free(p);
                return r;
        }
        list_append(&s->open, &p->link);
        s->n_open++;
        return 0;
}

static int on_retry(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        HookSocket *s = userdata;
        return sd_event_source_set_enabled(s->io, SD_EVENT_ON);
}

/* While there are no descriptors, the listener would be ready all the time. */
static void pause_listening(HookSocket *s) {
        if (timer_rearm(s->timer, RETRY_USEC) == 0)
                (void)sd_event_source_set_enabled(s->io, SD_EVENT_OFF); /* cannot fail for ours */
}

static int on_listener(sd_event_source *source, int fd, uint32_t events, void *userdata) {
        (void)source, (void)events;
        HookSocket *s = userdata;
        for (unsigned i = 0; i < ACCEPT_AT_ONCE; i++) {
                int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (peer < 0) {
                        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
                            errno == ENOMEM)
                                pause_listening(s);
                        if (errno == ECONNABORTED || errno == EINTR)
                                continue;
                        return 0;
                }
                if (add_peer(s, peer) < 0) { /* no memory for it: its note goes to the mailbox */
                        s->options.on_refused((uid_t)-1, "out of memory", s->options.userdata);
                        return 0;
                }
        }
        return 0;
}

int hook_socket_new(HookSocket **ret, sd_event *event, int fd, const HookSocketOptions *options) {
        HookSocket *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (HookSocket){ .event = sd_event_ref(event),
                           .fd = -1,
                           .options = *options,
                           .packet = malloc(options->max_packet + 2) };
        list_init(&s->open);
        int flags = fcntl(fd, F_GETFL);
        int r = !s->packet ? -ENOMEM : 0;
        if (r == 0 && (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0))
                r = -errno; /* systemd hands over a blocking one */
        if (r == 0)
                r = sd_event_add_io(event, &s->io, fd, EPOLLIN, on_listener, s);
        if (r >= 0) /* created now, since it needs a descriptor */
                r = sd_event_add_time_relative(event, &s->timer, CLOCK_BOOTTIME, RETRY_USEC, 0,
                                               on_retry, s);
        if (r >= 0)
                r = sd_event_source_set_enabled(s->timer, SD_EVENT_OFF);
        if (r < 0) {
                hook_socket_free(s);
                return r;
        }
        s->fd = fd;
        *ret = s;
        return 0;
}

HookSocket *hook_socket_free(HookSocket *s) {
        if (!s)
                return NULL;
        LIST_FOREACH_SAFE (l, &s->open)
                hook_peer_close(CONTAINER_OF(l, HookPeer, link));
        sd_event_source_disable_unref(s->io);
        sd_event_source_disable_unref(s->timer);
        if (s->fd >= 0)
                (void)close(s->fd); /* systemd's stays open there */
        free(s->packet);
        sd_event_unref(s->event);
        free(s);
        return NULL;
}

size_t hook_socket_n_open(const HookSocket *s) {
        return s->n_open;
}
