/* The socket that hooks connect to: packets of untrusted peers, whom the kernel identifies. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "lib/base/bound.h"
#include "lib/base/list.h"

/* A node has at most 128 cores, each with a thread that may run the hook. All threads of a job have
 * one owner, and hooks of the job's last start may still be connected when it fails again. Two
 * owners who have all that they may leave enough for the job of a third one. */
#define HOOK_OPEN_MAX 512
#define HOOK_OPEN_MAX_OF_OWNER 192

typedef struct HookSocket HookSocket;

typedef struct HookPeer { /* to be read only, but for userdata */
        ListLink link;
        HookSocket *socket;
        int fd;
        sd_event_source *io, *timer;
        pid_t pid; /* as this process counts; 0 = in a pid namespace that the agent cannot see */
        Owner owner;
        Charge charge;
        bool is_owner_known; /* its cgroup could be read */
        uint64_t since_usec; /* CLOCK_BOOTTIME when it connected */
        bool is_late;        /* its time is over: on_gone is about to be called */
        bool is_closed;      /* it is freed when its own callback has returned */
        void *userdata;      /* of whoever uses the socket; NULL: the peer has sent no note yet */
} HookPeer;

typedef struct HookSocketOptions {
        /* A packet of at most NOTE_MAX_BYTES arrived. It may close the peer. @param data  borrowed,
         * NUL-terminated behind n */
        void (*on_packet)(HookPeer *p, const char *data, size_t n, void *userdata);
        /* It disconnected or its time is over; it is freed after the call. Not called for a peer
         * that hook_peer_close() closes. */
        void (*on_gone)(HookPeer *p, void *userdata);
        /* A peer was refused. @param why  static, a sentence; NULL: there are too many, which is
         * logged already */
        void (*on_refused)(const Owner *o, const char *why, void *userdata);
        /* Sets pid, owner and is_owner_known of a peer. NULL: SO_PEERCRED and the cgroup of its
         * process. @return 0, -errno */
        int (*identify)(HookPeer *p, void *userdata);
        void *userdata;
        const char *proc_root;     /* where the containers of peers are found; NULL: nowhere */
        uint64_t note_within_usec; /* for the first packet; 0 = a second */
} HookSocketOptions;

/** @param fd  listening SOCK_SEQPACKET, taken over on success @return 0, -ENOMEM, -errno */
int hook_socket_new(HookSocket **ret, sd_event *event, int fd, const HookSocketOptions *options);
/** Closes all connections, without on_gone. Takes NULL, returns NULL. */
HookSocket *hook_socket_free(HookSocket *s);
void hook_socket_set_proc_root(HookSocket *s, const char *proc_root);
size_t hook_socket_n_open(const HookSocket *s);
/** Whose the connections are, for the view. */
const Bound *hook_socket_bound(const HookSocket *s);

/** Sends a packet. @param fd  is passed with it by SCM_RIGHTS, borrowed; -1 = none
 * @return 0, or -errno (-EAGAIN: the hook does not read): then it counts as disconnected */
int hook_peer_send(HookPeer *p, const char *text, int fd);
/** Calls on_gone after this time, from now. @return 0, -errno */
int hook_peer_wait(HookPeer *p, uint64_t usec);
/** Closes it now, also from inside of on_packet. */
void hook_peer_close(HookPeer *p);
