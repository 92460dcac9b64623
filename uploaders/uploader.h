/* What all uploaders share: their outcomes, the wait before the next try, and how many requests at
 * once. Pure. */
#pragma once

#include <stdint.h>

enum {
        UPLOAD_E_EXISTS = 1, /* something different is there already: never overwritten */
        UPLOAD_E_SAME = 2,   /* the same is there already, proven */
        UPLOAD_E_FULL = 3,   /* no room (ENOSPC, EDQUOT, below min_free, a quota): wait for room */
        /* the destination cannot be reached or written (read-only, not mounted, stale, EIO; no
         * answer, 5xx): wait for it */
        UPLOAD_E_UNREACHABLE = 4,
        /* what is there is not what was written: the copy was removed or is none yet, try again */
        UPLOAD_E_MISMATCH = 5,
        /* no credentials, or they are refused, or not permitted: wait until somebody repairs it */
        UPLOAD_E_DENIED = 6,
        UPLOAD_E_REFUSED = 7, /* this object is refused for what it is: no waiting helps */
        UPLOAD_E_STALE = 8,   /* what was to be resumed cannot be: begin anew */
        UPLOAD_E_PAUSED = 9,  /* asked to stop; what arrived is known, to go on with it later */
};

/** The wait before the next try: exponential with full jitter.
 * @param n_failures in a row, at least 1
 * @param initial_usec bound of the first wait, doubled with each failure up to maximum_usec
 * @param random any number from a good source
 * @return a wait between a tenth of the bound and the bound: never nothing, so that a destination
 *   that fails at once is not hammered
 * @see AWS Architecture Blog, "Exponential Backoff And Jitter" */
uint64_t backoff_next_usec(unsigned n_failures, uint64_t initial_usec, uint64_t maximum_usec,
                           uint64_t random);

/* How many requests may be under way at once: one more after each round of successes, half after a
 * store has asked for less (additive increase, multiplicative decrease), one cut a round. And
 * until when nothing begins, when it has said so. Pure. */
typedef struct Aimd {
        unsigned limit, max;  /* 1 … max */
        unsigned n_successes; /* since the last change */
        /* the last cut; answers to requests that began before do not cut again */
        uint64_t cut_usec;
        uint64_t not_before_usec; /* nothing begins before; 0 = nobody asked for that */
} Aimd;

/* Times are CLOCK_BOOTTIME. */
/** @param max  > 0 */
void aimd_init(Aimd *a, unsigned max);
void aimd_succeeded(Aimd *a);
/** The store asked for less. @param begun_usec  when the request began that was answered */
void aimd_slowed_down(Aimd *a, uint64_t started_usec, uint64_t now_usec);
/** The store has said when to retry (Retry-After). @param wait_usec  capped by the caller */
void aimd_hold(Aimd *a, uint64_t now_usec, uint64_t wait_usec);
