/* When what is asked for may go, at a rate: a line in which everybody books behind what is booked already, so that all are served in the
 * order in which they ask, and nobody has to ask twice. Time in which nobody asks is saved up, to a bound: in any second at most the
 * rate goes, and what may be saved up or the largest booking, whichever is more. Pure: the line is a number, the end of what is booked;
 * the time comes in. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What a limit on bytes saves up: a fortieth, so that with timers a little late the rate is reached, and no second has more than 102.5 %. */
#define PACER_SAVING_USEC 25000

typedef struct PacerRule {
        uint64_t rate;        /* a second; 0 = no limit */
        uint64_t saving_usec; /* how long can be saved up */
} PacerRule;

/* Below, booked_nsec is the end of what is booked, on the clock that now_usec is of (one that does not go back, from 0 on); a line
 * begins with 0. */

/** Books n, which may be more than what can be saved up. @return the new end; without a limit the old one */
uint64_t pacer_book(const PacerRule *rule, uint64_t booked_nsec, uint64_t n, uint64_t now_usec);
/** @return how long who has just booked waits; 0: not at all */
uint64_t pacer_wait_usec(uint64_t booked_nsec, uint64_t now_usec);
/** @return by how many nanoseconds a booking of n moves the end; without a limit 0 */
uint64_t pacer_span_nsec(const PacerRule *rule, uint64_t n);
/** Gives back what was booked and will not go. @param span_nsec  of the rule it was booked by. @return the new end */
uint64_t pacer_return(uint64_t booked_nsec, uint64_t span_nsec);
/** Gives up what was saved up. @return the new end */
uint64_t pacer_waste(uint64_t booked_nsec, uint64_t now_usec);

typedef struct PacerWindow {
        unsigned from_minute,
                to_minute; /* of the local day; from > to: over midnight; equal: all day */
        uint64_t rate;     /* 0 = no limit */
} PacerWindow;

typedef struct PacerSchedule {
        uint64_t rate;              /* outside all windows; 0 = no limit */
        const PacerWindow *windows; /* borrowed; the first that holds the minute counts */
        size_t n_windows;
} PacerSchedule;

/** @param minute  of the local day, 0 to 1439 */
uint64_t pacer_rate_at(const PacerSchedule *s, unsigned minute);
