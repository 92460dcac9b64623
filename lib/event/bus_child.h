/* The process that runs nanomsg, `neuron-collectd --child=bus`: it may abort, spin and run out of
 * descriptors without harm to its parent. It verifies nothing: what comes in goes to its parent, no
 * faster than so many messages a second; strangers wait in their sockets meanwhile. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BUS_CHILD_FD 3 /* SOCK_SEQPACKET, to its parent */
#define BUS_ADDRESS_SIZE 128
#define BUS_ENDPOINTS_MAX 16
#define BUS_BYTES_MAX (16 * 1024) /* of a message of the bus */
#define BUS_PACKET_MAX (1 + BUS_BYTES_MAX)

typedef struct BusAddress {
        char text[BUS_ADDRESS_SIZE]; /* `tcp://LITERAL:PORT` (IPv6 in brackets), `ipc://PATH` */
        bool listens;                /* else it is dialled */
} BusAddress;

/* The first byte of a packet. */
enum {
        /* To the child. An endpoint that fails, breaks or is silent for 90 s is made again, until
         * it is not among those that are to be open. */
        BUS_OPEN = 'O', /* up to BUS_ENDPOINTS_MAX of BusAddress: all others are closed */
        BUS_SEND = 'S', /* to all that are connected */
        /* To its parent. */
        BUS_RECEIVED = 'R',
        BUS_STATE = 'T', /* a BusChildState: after a change, and every 5 s */
};

#define BUS_STATE_USEC (UINT64_C(5) * 1000000)
#define BUS_ERROR_SIZE (BUS_ADDRESS_SIZE + 64)

typedef struct BusChildState {
        uint32_t n_bound, n_dialled, n_connected; /* dialled: endpoints, whether connected or not */
        uint64_t n_sent_bytes;                    /* handed to connections */
        uint64_t n_dropped;         /* came in, and the parent had not read those before */
        char error[BUS_ERROR_SIZE]; /* the last one of an endpoint that is not open; "" */
} BusChildState;

/** Runs until its parent closes the socket. @return an exit code */
int bus_child_main(void);
