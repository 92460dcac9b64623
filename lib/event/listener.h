/* A listening socket in the loop. When a connection cannot be accepted for lack of descriptors, the
 * socket stays readable; then accepting pauses for a moment instead of spinning. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"

#define LISTENER_PAUSE_SEC 1

/** @param error  errno of accept(2)  @return whether it may say the same again and again: EMFILE,
 * and what a security module refuses */
static inline bool listener_must_pause(int error) {
        return error != EAGAIN && error != EINTR && error != ECONNABORTED;
}

typedef struct Listener Listener;

/** @param fd  listening; made non-blocking, and taken over on success
 * @param on_connection  gets each connection (its own, non-blocking); must not free the listener
 * @return 0, -errno */
int listener_new(Listener **ret, sd_event *event, int fd,
                 void (*on_connection)(int fd, void *userdata), void *userdata);
Listener *listener_free(Listener *l);
DEFINE_CLEANUP(Listener, listener_free);

/** While it is held, connections wait to be accepted. */
void listener_hold(Listener *l, bool is_held);
