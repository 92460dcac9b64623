/* A line (pacer.h) that the loop and the workers share, on the real clock, with the rate of the time of day. Without a lock: a worker at
 * idle priority that holds one could keep the loop waiting for as long as a job takes the CPUs. Counted references, since a worker
 * that hangs may outlive the pipeline. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "uploaders/pacer.h"

typedef struct Throttle Throttle;

/** @param clock     borrowed; must outlive the throttle
 * @param schedule  copied
 * @param saving_usec  how long can be saved up, see PacerRule
 * @return 0, -ENOMEM */
int throttle_new(Throttle **ret, Clock *clock, const PacerSchedule *schedule, uint64_t saving_usec);
Throttle *throttle_ref(Throttle *t);   /* takes NULL */
Throttle *throttle_unref(Throttle *t); /* takes NULL, returns NULL */
DEFINE_CLEANUP(Throttle, throttle_unref);

/* Any thread. All take NULL: no limit. */
/** Books n; also what has gone already and was not known before. Never blocks.
 * @param ret_nsec  NULL, or gets the time that this takes in the line, at the rate of this moment: what can be given back of it
 * @return after how many microseconds they may go, 0 = now */
uint64_t throttle_book(Throttle *t, uint64_t n, uint64_t *ret_nsec);
/** Gives back what was booked and will not go. @param nsec  of the booking, or a share of it */
void throttle_return(Throttle *t, uint64_t nsec);
/** Gives up what was saved up: what should have gone is stuck behind us, and will come on top. */
void throttle_waste(Throttle *t);
/** The rate at this moment, 0 = no limit. The local time is looked at once a second, when a second of it begins. */
uint64_t throttle_rate(Throttle *t);
/** How much one party should book at a time, so that what was booked and is late does not add up: half of what can be saved up, 1 KiB at
 * least. Without a limit SIZE_MAX. */
size_t throttle_piece(Throttle *t);

/* For workers only. */
/** Sleeps until some of `wanted` may go: a piece (throttle_piece) at most. @param abort  NULL, or ends it @return how much; 0: *abort was set, nothing is booked */
size_t throttle_wait(Throttle *t, size_t wanted, const atomic_bool *abort);
/** Sleeps, and looks at *abort (NULL: never) every 20 ms. @return whether it has slept to the end */
bool throttle_sleep(uint64_t usec, const atomic_bool *abort);
