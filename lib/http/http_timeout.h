/* The time limits of one request; private to lib/http. */
#pragma once

#include <stdint.h>

typedef enum HttpPhase {
        HTTP_PHASE_WAITING,    /* for its turn: only the limit on the total runs */
        HTTP_PHASE_RESOLVING,  /* a name may be looked up */
        HTTP_PHASE_CONNECTING, /* the name is known */
        HTTP_PHASE_TRANSFER,   /* the request is on its way, or its reply */
} HttpPhase;

typedef struct HttpTimeout { /* CLOCK_MONOTONIC in microseconds */
        uint64_t connect_timeout_usec, stall_usec, timeout_usec; /* timeout 0 = none */
        HttpPhase phase;
        uint64_t created_usec;
        /* of the last attempt: a second one when a kept connection was dead */
        uint64_t connect_start_usec;
        uint64_t progress_usec; /* when a byte was last seen to move */
        /* bytes in the kernel's send buffer when last checked, -1 = not since a byte moved */
        int n_unsent;
} HttpTimeout;

void http_timeout_enter_phase(HttpTimeout *p, HttpPhase phase, uint64_t now_usec);
/** A byte has moved. */
void http_timeout_on_progress(HttpTimeout *p, uint64_t now_usec);
/** A slow line empties the kernel's send buffer, several MiB, long after the last byte was handed
 * over: that is progress too.
 * @param n_unsent bytes that the peer has not confirmed, by ioctl(SIOCOUTQ), see tcp(7) */
void http_timeout_on_unsent(HttpTimeout *p, int n_unsent, uint64_t now_usec);

/** @return when to check again; USEC_INFINITY = never */
uint64_t http_timeout_next_usec(const HttpTimeout *p, uint64_t now_usec);
/** @return 0, or the HTTP_E_* of the limit that is reached */
int http_timeout_check(const HttpTimeout *p, uint64_t now_usec);
