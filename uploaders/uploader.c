#include "uploaders/uploader.h"

#include "lib/base/cleanup.h"

uint64_t backoff_next_usec(unsigned n_failures, uint64_t initial_usec, uint64_t maximum_usec,
                           uint64_t random) {
        uint64_t bound = MAX(initial_usec, UINT64_C(1));
        for (unsigned i = 1; i < n_failures && bound < maximum_usec; i++)
                bound = bound > UINT64_MAX / 2 ? UINT64_MAX : 2 * bound;
        bound = MIN(bound, MAX(maximum_usec, UINT64_C(1)));
        uint64_t least = MAX(bound / 10, UINT64_C(1));
        return least + random % (bound - least + 1);
}

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
