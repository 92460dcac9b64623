/* Accepts the connections of a listening socket in the loop. When the process has no descriptor
 * left, the socket would stay readable, so accepting pauses for a moment. What a connection is for
 * is left to on_connection. */
#include "lib/event/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/event/timer.h"

#define ACCEPT_AT_ONCE 64 /* then the other sources of the loop */

struct Listener {
        int fd;
        sd_event_source *io, *pause;
        bool is_held, is_paused;
        void (*on_connection)(int fd, void *userdata);
        void *userdata;
};

static void update(Listener *l) {
        (void)sd_event_source_set_enabled(l->io,
                                          l->is_held || l->is_paused ? SD_EVENT_OFF : SD_EVENT_ON);
}

static int on_pause_end(sd_event_source *s, uint64_t usec, void *userdata) {
        Listener *l = userdata;
        (void)s, (void)usec;
        l->is_paused = false;
        update(l);
        return 0;
}

void listener_hold(Listener *l, bool is_held) {
        l->is_held = is_held;
        update(l);
}

static int on_readable(sd_event_source *s, int fd, uint32_t events, void *userdata) {
        Listener *l = userdata;
        (void)s, (void)events;
        for (unsigned i = 0; i < ACCEPT_AT_ONCE && !l->is_held; i++) {
                int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (peer >= 0) {
                        l->on_connection(peer, l->userdata);
                        continue;
                }
                if (listener_must_pause(errno) &&
                    timer_rearm(l->pause, LISTENER_PAUSE_SEC * USEC_PER_SEC) == 0)
                        l->is_paused = true;
                update(l);
                break;
        }
        return 0;
}

int listener_new(Listener **ret, sd_event *event, int fd,
                 void (*on_connection)(int fd, void *userdata), void *userdata) {
        _cleanup_(listener_freep) Listener *l = calloc(1, sizeof *l);
        if (!l)
                return -ENOMEM;
        *l = (Listener){ .fd = -1, .on_connection = on_connection, .userdata = userdata };
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return -errno; /* systemd hands over a blocking one */
        int r = sd_event_add_io(event, &l->io, fd, EPOLLIN, on_readable, l);
        if (r >= 0) /* made now, since it needs a descriptor */
                r = sd_event_add_time_relative(event, &l->pause, CLOCK_BOOTTIME, 0, 0, on_pause_end,
                                               l);
        if (r >= 0)
                r = sd_event_source_set_enabled(l->pause, SD_EVENT_OFF);
        if (r < 0)
                return r;
        l->fd = fd;
        *ret = TAKE_PTR(l);
        return 0;
}

Listener *listener_free(Listener *l) {
        if (!l)
                return NULL;
        sd_event_source_disable_unref(l->io);
        sd_event_source_disable_unref(l->pause);
        if (l->fd >= 0)
                (void)close(l->fd); /* systemd's stays open there */
        free(l);
        return NULL;
}
