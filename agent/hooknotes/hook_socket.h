/* The socket that hooks connect to: packets in and out (SOCK_SEQPACKET), who is behind a
 * connection, how many there may be and for how long. The content of packets is parsed by
 * hooknotes.c. Anybody may connect (mode 0666), so only what the kernel reports of the peer is
 * trusted. Never blocks; costs nothing while nobody is connected. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

/* A node has at most 128 cores, and each has a thread that may run the hook; all of a job's threads
 * have one uid, and two such jobs may fail together. Root's hooks (containers mostly) go by the
 * same bound as everybody's, but have places left where all others have used up theirs. */
#define HOOK_OPEN_MAX 512
#define HOOK_OPEN_MAX_OF_UID 256
#define HOOK_OPEN_FOR_ROOT 64         /* of HOOK_OPEN_MAX */
#define HOOK_NOTE_WITHIN_USEC 1000000 /* from connecting to the note */

typedef struct HookSocket HookSocket;
typedef struct HookPeer HookPeer;

typedef struct HookSocketOptions {
        size_t max_packet; /* bytes; what is longer is answered by `refused …` and closed */
        /* A packet came. It may close the peer. @param data  borrowed, NUL-terminated behind n */
        void (*on_packet)(HookPeer *p, const char *data, size_t n, void *userdata);
        /* It has gone, or had its time; its handle is void after the call. Not called for peers
         * that hook_peer_close() closes. */
        void (*on_gone)(HookPeer *p, void *userdata);
        /* A peer was refused. @param why  static, a sentence */
        void (*on_refused)(uid_t uid, const char *why, void *userdata);
        void *userdata;
} HookSocketOptions;

/** @param fd  listening SOCK_SEQPACKET, taken over on success */
int hook_socket_new(HookSocket **ret, sd_event *event, int fd, const HookSocketOptions *options);
HookSocket *hook_socket_free(HookSocket *s); /* closes all, without on_gone */

pid_t hook_peer_pid(
        const HookPeer *p); /* as this process counts; 0 = in a pid namespace that we cannot see */
uid_t hook_peer_uid(const HookPeer *p);
uint64_t hook_peer_since_usec(const HookPeer *p); /* CLOCK_BOOTTIME when it connected */
bool hook_peer_has_hung_up(const HookPeer *p);    /* what it sent before may be still to be read */
void hook_peer_set_userdata(HookPeer *p, void *userdata);
void *hook_peer_userdata(const HookPeer *p);

/** Sends a packet. @param fd  goes with it by SCM_RIGHTS, borrowed; -1 = none
 * @return 0, or -errno (-EAGAIN: it does not read): then it is as good as gone */
int hook_peer_send(HookPeer *p, const char *text, int fd);
/** Counts it as gone (on_gone) after this time, from now. */
int hook_peer_wait(HookPeer *p, uint64_t usec);
/** Closes it now. It may be called from inside of on_packet. */
void hook_peer_close(HookPeer *p);

size_t hook_socket_n_open(const HookSocket *s);
