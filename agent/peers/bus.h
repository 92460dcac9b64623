/* This node's end of the bus: the child that runs nanomsg (lib/event/bus_child.h) is started,
 * restarted, told where to listen and whom to dial; messages are signed, verified and bounded. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/peers/message.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

#define BUS_PEERS_MAX 8 /* dialled at a time */

typedef struct Bus Bus;

typedef struct BusOptions { /* borrowed */
        sd_event *event;
        Clock *clock;
        const char *instance_id;
        const char *listen;   /* tcp://host:port, ipc://path */
        char *const *peers;   /* further addresses, NULL-terminated; NULL: none */
        const char *key_file; /* "" = none: only loopback and ipc addresses are opened */
        /* A verified message of another agent; times are by this node's boot clock. */
        void (*on_message)(const Message *m, void *userdata);
        void *userdata;
} BusOptions;

/** Starts the child later, on the loop. @return 0, -ENOMEM, -errno */
int bus_new(Bus **ret, const BusOptions *options);
Bus *bus_free(Bus *b);
DEFINE_CLEANUP(Bus, bus_free);

/** Which hosts are dialled beside `peers`: those of the rendezvous of jobs that run here, on the
 * port of `listen`; loopback and this node's own addresses are not dialled.
 * @param hosts  IPv4 or IPv6 literals or names, NULL-terminated, the most important first */
void bus_set_rendezvous(Bus *b, char *const *hosts);
/** @return whether an address of this node, or loopback: the agent is its job's centre. May be
 * asked for names too, which are looked up by getaddrinfo(3) in a thread: until then false. */
bool bus_is_own_host(Bus *b, const char *host);

/** Signs and sends to all that are connected; may be lost. @return 0, -ENOTCONN, -ENOMEM */
int bus_send(Bus *b, const Message *m);

typedef struct BusView {
        const char *state;      /* off | starting | listening | failing */
        const char *last_error; /* borrowed; NULL */
        bool has_key;           /* else only loopback and ipc */
        size_t n_connected, n_dialled;
        uint64_t n_sent, n_received, n_rejected; /* rejected: not signed, too old, malformed … */
        uint64_t n_sent_bytes, n_restarts;       /* of the child */
} BusView;
void bus_view(const Bus *b, BusView *ret);
