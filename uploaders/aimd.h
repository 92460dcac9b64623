/* How many requests may be under way at once: one more after each round of successes, half after a store has asked for less (additive
 * increase, multiplicative decrease), one cut a round. And until when nothing begins, when it has told that. Pure. */
#pragma once

#include <stdint.h>

typedef struct Aimd {
        unsigned limit, max;  /* 1 … max */
        unsigned n_successes; /* since the last change */
        uint64_t
                cut_usec; /* the last cut; answers to requests that began before do not cut again */
        uint64_t not_before_usec; /* nothing begins before; 0 = nobody asked for that */
} Aimd;

/* Times are CLOCK_BOOTTIME. */
/** @param max  > 0 */
void aimd_init(Aimd *a, unsigned max);
void aimd_succeeded(Aimd *a);
/** The store asked for less. @param begun_usec  when the request began that was answered */
void aimd_slowed_down(Aimd *a, uint64_t begun_usec, uint64_t now_usec);
/** The store has told when to come again (Retry-After). @param wait_usec  capped by the caller */
void aimd_hold(Aimd *a, uint64_t now_usec, uint64_t wait_usec);
