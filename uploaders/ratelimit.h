/* A rate limit that the loop and the workers share, on the real clock, with the rate of the time
 * of day.
 * Each caller books behind the bookings before it, so that all are served in the order in which
 * they book, and none has to book twice. Unused time is saved up to a bound: in any second at most
 * the rate is sent, plus what may be saved up or the largest booking, whichever is more. The whole
 * state is one number, the end of the last booking; the caller supplies the time. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

/* ── pure ── */

/* How much a limit on bytes saves up: a fortieth of a second, so that the rate is reached although
 * timers are a little late, and no second has more than 102.5 %. */
#define RATE_SAVING_USEC 25000

typedef struct RateRule {
        uint64_t rate;        /* a second; 0 = no limit */
        uint64_t saving_usec; /* unused time that can be saved up */
} RateRule;

/* Below, booked_nsec is the end of the last booking, on the clock of now_usec, which is monotonic.
 * A new line begins with 0. */

/** Books n, which may be more than what can be saved up. @return the new end; without a limit the
 * old one */
uint64_t rate_book(const RateRule *rule, uint64_t booked_nsec, uint64_t n, uint64_t now_usec);
/** @return how long the last booking waits; 0: not at all */
uint64_t rate_wait_usec(uint64_t booked_nsec, uint64_t now_usec);
/** @return by how many nanoseconds a booking of n moves the end; without a limit 0 */
uint64_t rate_span_nsec(const RateRule *rule, uint64_t n);
/** Cancels a booking. @param span_nsec  by the rule it was booked by
 * @return the new end */
uint64_t rate_refund(uint64_t booked_nsec, uint64_t span_nsec);
/** Discards the saved time. @return the new end */
uint64_t rate_discard_savings(uint64_t booked_nsec, uint64_t now_usec);

typedef struct RateWindow {
        unsigned from_minute,
                to_minute; /* of the local day; from > to: over midnight; equal: all day */
        uint64_t rate;     /* 0 = no limit */
} RateWindow;

typedef struct RateSchedule {
        uint64_t rate;             /* outside all windows; 0 = no limit */
        const RateWindow *windows; /* borrowed; the first that holds the minute counts */
        size_t n_windows;
} RateSchedule;

/** @param minute  of the local day, 0 to 1439 */
uint64_t rate_at(const RateSchedule *s, unsigned minute);

/* ── shared; without a lock, since a worker at idle priority that holds one could keep the loop
 * waiting for as long as a job takes the CPUs; with counted references, since a worker that hangs
 * may outlive the agent's scheduler ── */

typedef struct RateLimit RateLimit;

/** @param clock     borrowed; must outlive the throttle
 * @param schedule  copied
 * @param saving_usec  how long can be saved up, see RateRule
 * @return 0, -ENOMEM */
int ratelimit_new(RateLimit **ret, Clock *clock, const RateSchedule *schedule,
                  uint64_t saving_usec);
RateLimit *ratelimit_ref(RateLimit *t);   /* takes NULL */
RateLimit *ratelimit_unref(RateLimit *t); /* takes NULL, returns NULL */
DEFINE_CLEANUP(RateLimit, ratelimit_unref);

/* Any thread. All take NULL: no limit. */
/** Books n; also what has gone already and was not known before. Never blocks.
 * @param ret_nsec NULL, or gets the time that this takes in the line, at the rate of this moment:
 *   what can be given back of it
 * @return after how many microseconds they may go, 0 = now */
uint64_t ratelimit_book(RateLimit *t, uint64_t n, uint64_t *ret_nsec);
/** Gives back what was booked and will not go. @param nsec  of the booking, or a share of it */
void ratelimit_refund(RateLimit *t, uint64_t nsec);
/** Gives up what was saved up: what should have gone is stuck behind us, and will come on top. */
void ratelimit_discard_savings(RateLimit *t);
/** The rate at this moment, 0 = no limit. The local time is read once a second, when a second
 * of it begins. */
uint64_t ratelimit_rate(RateLimit *t);
/** How much one party should book at a time, so that what was booked and is late does not add up:
 * half of what can be saved up, 1 KiB at least. Without a limit SIZE_MAX. */
size_t ratelimit_piece(RateLimit *t);

/* For workers only. */
/** Sleeps until some of `wanted` may go: a piece (ratelimit_piece) at most. @param abort NULL, or
 * ends it @return how much; 0: *abort was set, nothing is booked */
size_t ratelimit_wait(RateLimit *t, size_t wanted, const atomic_bool *abort);
/** Sleeps, and checks *abort (NULL: never) every 20 ms. @return whether it has slept to the
 * end */
bool ratelimit_sleep(uint64_t usec, const atomic_bool *abort);
