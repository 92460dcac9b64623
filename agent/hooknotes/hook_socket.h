/* The socket that hooks connect to: packets in and out (SOCK_SEQPACKET), who is behind a
 * connection, how many there may be and for how long. hooknotes.c parses the packets. Anybody may
 * connect (mode 0666), so only what the kernel reports of the peer is trusted. Never blocks. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "lib/base/list.h"

/* A node has at most 128 cores, each with a thread that may run the hook; all threads of a job have
 * one uid, and two such jobs may fail together. For root's hooks (containers mostly) 64 connections
 * are reserved. */
#define HOOK_OPEN_MAX 512
#define HOOK_OPEN_MAX_OF_UID 256
#define HOOK_OPEN_FOR_ROOT 64         /* of HOOK_OPEN_MAX */
#define HOOK_NOTE_WITHIN_USEC 1000000 /* from connecting to the note */

typedef struct HookSocket HookSocket;

typedef struct HookPeer { /* read only, but userdata */
        ListLink link;    /* HookSocket.open */
        HookSocket *socket;
        int fd;
        sd_event_source *io, *timer;
        pid_t pid; /* as this process counts; 0 = in a pid namespace that we cannot see */
        uid_t uid;
        uint64_t since_usec; /* CLOCK_BOOTTIME when it connected */
        bool is_closed;      /* unlinked, freed when its own callback has returned */
        void *userdata;      /* of the owner; NULL: it sent no note yet */
} HookPeer;

typedef struct HookSocketOptions {
        size_t max_packet; /* bytes; a longer one is refused and its peer closed */
        /* A packet came. It may close the peer. @param data  borrowed, NUL-terminated behind n */
        void (*on_packet)(HookPeer *p, const char *data, size_t n, void *userdata);
        /* It disconnected or timed out, and is freed after the call. Not called for peers that
         * hook_peer_close() closes. */
        void (*on_gone)(HookPeer *p, void *userdata);
        /* A peer was refused. @param why  static, a sentence */
        void (*on_refused)(uid_t uid, const char *why, void *userdata);
        void *userdata;
} HookSocketOptions;

/** @param fd  listening SOCK_SEQPACKET, taken over on success */
int hook_socket_new(HookSocket **ret, sd_event *event, int fd, const HookSocketOptions *options);
HookSocket *hook_socket_free(HookSocket *s); /* closes all, without on_gone */

/** @return whether it has disconnected; what it sent before may have to be read still */
bool hook_peer_has_hung_up(const HookPeer *p);

/** Sends a packet. @param fd  goes with it by SCM_RIGHTS, borrowed; -1 = none
 * @return 0, or -errno (-EAGAIN: it does not read): then it counts as disconnected */
int hook_peer_send(HookPeer *p, const char *text, int fd);
/** Calls on_gone after this time, from now. */
int hook_peer_wait(HookPeer *p, uint64_t usec);
/** Closes it now, also from inside of on_packet. */
void hook_peer_close(HookPeer *p);

size_t hook_socket_n_open(const HookSocket *s);
