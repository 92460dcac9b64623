/* The number of requests to one store that may be under way at once. Times are CLOCK_BOOTTIME. */
#pragma once

#include <stdint.h>

typedef struct Aimd {
        unsigned limit, max;  /* 1 … max */
        unsigned n_successes; /* since the last change */
        /* the last cut; answers to requests that began before do not cut again */
        uint64_t cut_usec;
        uint64_t not_before_usec; /* nothing begins before; 0 = the store has not asked for it */
} Aimd;

/** @param max  > 0; it starts with all of them */
void aimd_init(Aimd *a, unsigned max);
void aimd_succeeded(Aimd *a);
/** The store asked for less. @param started_usec  when the request began that was answered */
void aimd_slowed_down(Aimd *a, uint64_t started_usec, uint64_t now_usec);
/** The store has said when to retry (Retry-After). @param wait_usec  capped by the caller */
void aimd_hold(Aimd *a, uint64_t now_usec, uint64_t wait_usec);
