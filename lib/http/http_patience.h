/* How long a request may take, and for what: decides from what it is told, touches no clock. Private to http.c. */
#pragma once

#include <stdint.h>

typedef enum HttpPhase {
        HTTP_PHASE_WAITING,    /* for its turn: only the limit on all of it runs */
        HTTP_PHASE_RESOLVING,  /* a name may be looked up */
        HTTP_PHASE_CONNECTING, /* the name is known */
        HTTP_PHASE_TALKING,    /* the request is on its way, or its answer */
} HttpPhase;

/* Times are CLOCK_MONOTONIC in microseconds. */
typedef struct HttpPatience {
        uint64_t connect_timeout_usec, stall_usec, timeout_usec; /* timeout 0 = none */
        HttpPhase phase;
        uint64_t ordered_usec; /* when the request was ordered */
        uint64_t
                connecting_usec; /* when it last set out to connect: a second time when a kept connection was dead */
        uint64_t moved_usec; /* when a byte was last seen moving */
        int n_unsent; /* bytes in the kernel's hands when it was last asked, -1 = not since a byte moved */
} HttpPatience;

void http_patience_enter(HttpPatience *p, HttpPhase phase, uint64_t now_usec);
void http_patience_moved(HttpPatience *p, uint64_t now_usec);
/** A slow line empties the kernel's send buffer, several MiB, long after the last byte was handed over: that is movement too.
 * @param n_unsent  bytes that the peer has not confirmed, by ioctl(SIOCOUTQ), see tcp(7) */
void http_patience_unsent(HttpPatience *p, int n_unsent, uint64_t now_usec);

/** @return when to ask again, UINT64_MAX = never: there is no limit */
uint64_t http_patience_next_usec(const HttpPatience *p, uint64_t now_usec);
/** @return 0, HTTP_E_TIMEOUT, HTTP_E_RESOLVE, HTTP_E_CONNECT, HTTP_E_STALLED */
int http_patience_verdict(const HttpPatience *p, uint64_t now_usec);
