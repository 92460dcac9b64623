/* How many requests may be under way at once: additive increase, multiplicative decrease. One more
 * after each round of successes, half after a store has asked for less, one cut a round. Pure: the
 * caller counts the requests and knows the time. */
#include "uploaders/s3/aimd.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

void aimd_init(Aimd *a, unsigned max) {
        *a = (Aimd){ .limit = max, .max = max };
}

void aimd_succeeded(Aimd *a) {
        if (a->limit >= a->max || ++a->n_successes < a->limit)
                return;
        a->limit++;
        a->n_successes = 0;
}

void aimd_slowed_down(Aimd *a, uint64_t started_usec, uint64_t now_usec) {
        a->n_successes = 0;
        if (started_usec < a->cut_usec)
                return;
        a->limit = MAX(a->limit / 2, 1U);
        a->cut_usec = now_usec;
}

void aimd_hold(Aimd *a, uint64_t now_usec, uint64_t wait_usec) {
        uint64_t until =
                wait_usec > USEC_INFINITY - now_usec ? USEC_INFINITY : now_usec + wait_usec;

        a->not_before_usec = MAX(a->not_before_usec, until);
}
