/* The socket that hooks connect to: packets in and out (SOCK_SEQPACKET), who is behind a
 * connection, how many there may be, and for how long.
 *
 * Any user may connect (mode 0666), so that only what the kernel reports of a peer is trusted. A
 * peer has a second for its first packet; afterwards its user, hooknotes.c, says how long it may
 * stay. A packet that is too long ends a connection. A connection beyond the limits is refused: its
 * hook leaves the note in the mailbox. Nothing here blocks, and nothing knows what a packet says,
 * apart from the answers to peers that are refused. */
#include "agent/hooknotes/hook_socket.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collectors/host/pids.h"
#include "collectors/runner/packet.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/event/listener.h"
#include "lib/event/timer.h"
#include "lib/neuron/note.h"

#define NOTE_WITHIN_USEC USEC_PER_SEC /* from connecting to the first packet */
#define TOO_MANY "too many hooks are connected"

struct HookSocket {
        sd_event *event;
        Listener *listener;
        HookSocketOptions options;
        ListLink open;
        Bound bound; /* of `open`, by owner */
        HookPeer *in_callback;
        char packet[NOTE_MAX_BYTES + 2];
};

/* ---- a peer ---- */

static void peer_free(HookPeer *p) {
        sd_event_source_disable_unref(p->io);
        sd_event_source_disable_unref(p->timer);
        if (p->fd >= 0)
                (void)close(p->fd); /* nothing more is sent to it */
        bound_release(&p->charge);
        free(p);
}

static void peer_unlink(HookPeer *p) {
        if (p->is_closed)
                return;
        p->is_closed = true;
        list_remove(&p->link);
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
        return packet_send(p->fd, text, strlen(text), &fd, fd >= 0);
}

static int on_peer(sd_event_source *source, int fd, uint32_t events, void *userdata);

static int wait_for_note(HookPeer *p) {
        uint64_t usec = p->socket->options.note_within_usec;
        return hook_peer_wait(p, usec ? usec : NOTE_WITHIN_USEC);
}

static int on_peer_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        HookPeer *p = userdata;
        struct pollfd fd = { .fd = p->fd, .events = POLLIN };
        if (!p->userdata && poll(&fd, 1, 0) > 0 && wait_for_note(p) >= 0)
                return on_peer(NULL, p->fd, EPOLLIN, p); /* the agent is late, not the hook */
        if (!p->userdata)                                /* it sent no packet */
                p->socket->options.on_refused(&p->owner, "it sent no note within a second",
                                              p->socket->options.userdata);
        p->is_late = true;
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

static void refuse_packet(HookPeer *p, const char *answer, const char *why) {
        HookSocket *s = p->socket;
        (void)hook_peer_send(p, answer, -1); /* it may have ended */
        s->options.on_refused(&p->owner, why, s->options.userdata);
        peer_gone(p);
}

/* There is no buffer for descriptors that come with a packet, so that the kernel discards them:
 * closing one here might wait for its file system. @return the bytes of a packet; 0 = the peer has
 * disconnected, or sent nothing yet */
static ssize_t receive(HookPeer *p, bool *ret_gone) {
        ssize_t n = recv(p->fd, p->socket->packet, NOTE_MAX_BYTES + 1, MSG_DONTWAIT | MSG_TRUNC);
        /* It closed without reading all that was sent: reported once, before its own last packet.
         */
        if (n < 0 && errno == ECONNRESET)
                n = recv(p->fd, p->socket->packet, NOTE_MAX_BYTES + 1, MSG_DONTWAIT | MSG_TRUNC);
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
        else if (n > NOTE_MAX_BYTES)
                refuse_packet(p, "refused the note is too long", "the note was too long");
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

/* Sets the pid, and the owner by SO_PEERCRED and the cgroup of the process. */
static int identify_peer(HookPeer *p) {
        struct ucred who;
        socklen_t size = sizeof who;
        if (getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0)
                return -errno;
        p->pid = who.pid;
        p->owner.uid = who.uid;
        p->is_owner_known =
                p->pid > 0 && p->socket->options.proc_root &&
                pids_container(p->socket->options.proc_root, p->pid, p->owner.container);
        return 0;
}

/* @param fd  taken over */
static int add_peer(HookSocket *s, int fd) {
        HookPeer *p = calloc(1, sizeof *p);
        if (!p) {
                (void)close(fd); /* it sees a closed connection */
                return -ENOMEM;
        }
        *p = (HookPeer){ .socket = s, .fd = fd };
        int r = s->options.identify ? s->options.identify(p, s->options.userdata)
                                    : identify_peer(p);
        if (r >= 0 && bound_charge(&s->bound, &p->charge, &p->owner, 1) != BOUND_OK) {
                char nothing; /* if it stays unread, the hook gets ECONNRESET and not the answer:
                                 unix(7) */
                (void)recv(fd, &nothing, sizeof nothing, MSG_DONTWAIT | MSG_TRUNC);
                (void)hook_peer_send(p, "refused " TOO_MANY, -1);
                s->options.on_refused(&p->owner, NULL, s->options.userdata);
                r = 1;
        }
        if (r != 0) {
                peer_free(p);
                return MIN(r, 0);
        }
        r = sd_event_now(s->event, CLOCK_BOOTTIME, &p->since_usec);
        if (r >= 0)
                r = sd_event_add_io(s->event, &p->io, fd, EPOLLIN, on_peer, p);
        if (r >= 0)
                r = wait_for_note(p);
        if (r < 0) {
                peer_free(p);
                return r;
        }
        list_append(&s->open, &p->link);
        return on_peer(NULL, fd, EPOLLIN, p); /* hooks send their note at once */
}

static void on_connection(int fd, void *userdata) {
        HookSocket *s = userdata;
        if (add_peer(s, fd) < 0) /* the hook leaves its note in the mailbox */
                s->options.on_refused(&(Owner){ .uid = (uid_t)-1 }, "out of memory",
                                      s->options.userdata);
}

HookSocket *hook_socket_free(HookSocket *s) {
        if (!s)
                return NULL;
        LIST_FOREACH_SAFE (l, &s->open)
                hook_peer_close(CONTAINER_OF(l, HookPeer, link));
        listener_free(s->listener);
        bound_done(&s->bound);
        sd_event_unref(s->event);
        free(s);
        return NULL;
}

int hook_socket_new(HookSocket **ret, sd_event *event, int fd, const HookSocketOptions *options) {
        HookSocket *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        s->event = sd_event_ref(event);
        s->options = *options;
        s->bound = (Bound){ .what = "connections of hooks",
                            .max = HOOK_OPEN_MAX,
                            .max_each = HOOK_OPEN_MAX_OF_OWNER,
                            .clock = clock_system() };
        list_init(&s->open);
        int r = listener_new(&s->listener, event, fd, on_connection, s);
        if (r < 0) {
                hook_socket_free(s);
                return r;
        }
        *ret = s;
        return 0;
}

size_t hook_socket_n_open(const HookSocket *s) {
        return s->bound.total;
}

void hook_socket_set_proc_root(HookSocket *s, const char *proc_root) {
        s->options.proc_root = proc_root;
}

const Bound *hook_socket_bound(const HookSocket *s) {
        return &s->bound;
}
