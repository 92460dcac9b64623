/* From READY to DELIVERED: which bundle goes to which destination and when, and what a result
 * means. Deliveries run in workers and on the loop (delivery.h); this decides. Each destination has
 * a worker, a place in the queue and a backoff of its own. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/delivery/rate_limits.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "config/config.h"

typedef struct Scheduler Scheduler;
typedef struct S3Stats S3Stats;

typedef struct SchedulerContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        const char *instance_id, *hostname;
        char *const *environment; /* NAME=VALUE list, for credentials and endpoints of S3 */
        bool is_urgent;           /* --once: no start is delayed for the sake of other nodes */
        void (*on_delivered)(const Bundle *b, void *userdata); /* before the state changes */
        SourceSpec *(*get_source_spec)(const Bundle *b);       /* of b->source; borrowed */
        /* Whether its failure has a name, or it may go without. NULL: all may go.
         * @param ret_wait_usec  when not: ask again after so long, at the latest */
        bool (*is_named)(Bundle *b, uint64_t *ret_wait_usec, void *userdata);
        /* A member changed while it was read: the bundle goes back to SETTLING, at its source. */
        void (*on_changed)(Bundle *b, const char *why);
        void *userdata;
        /* After which a small object of a volume counts as hung. 0: a minute. */
        uint64_t object_timeout_usec;
} SchedulerContext;

/** @param config  borrowed for the scheduler's life */
int scheduler_new(Scheduler **ret, const SchedulerContext *context, const Config *config);

/** Stops what runs, waits a few seconds for it and abandons what hangs; bundles are READY again. */
Scheduler *scheduler_free(Scheduler *s);

/** Sets a configuration that is the same in destinations, limits and retries. */
void scheduler_set_config(Scheduler *s, const Config *config);

/** Starts what may start now. Cheap; to be called whenever something became ready. */
void scheduler_kick(Scheduler *s);

/** Writes into the row of a bundle that waits what hooks have reported about it. */
void scheduler_record_failure(Scheduler *s, Bundle *b);

/** Resets the backoff of one bundle, or of all (b == NULL), and kicks. Of one bundle also the
 * failures, so that what was given up is tried again; its row is written. */
void scheduler_retry_now(Scheduler *s, Bundle *b);

/** Whether starts are no longer delayed for the sake of other nodes (drain); kicks. */
void scheduler_set_urgent(Scheduler *s, bool is_urgent);

/** Starts nothing new; what runs ends as soon as little has to be sent again. */
void scheduler_wind_down(Scheduler *s);
void scheduler_resume(Scheduler *s);
/** @return whether no delivery runs */
bool scheduler_is_idle(const Scheduler *s);
/** @return whether the last listing or removal of abandoned uploads or files there succeeded */
bool scheduler_has_cleaned_up(const Scheduler *s, const char *destination);

/** Ends the deliveries of a bundle. Where an attempt has left an object without its manifest, one
 * more attempt is made first. @return whether there are any: the bundle is CANCELLED when their
 * workers have returned; else the caller moves it */
bool scheduler_cancel(Scheduler *s, Bundle *b);

/** A bundle reached a final state: uploads of it that could be resumed are queued to be aborted. */
void scheduler_abandon_uploads(Scheduler *s, const Bundle *b);

/** @return whether a configured destination will still try b, which has not failed by its own fault
 * since the start (or since it was retried) */
bool scheduler_can_continue(const Scheduler *s, const Bundle *b);

/* ---- what is shown: scheduler_view.c ---- */

typedef struct SchedulerDestinationView {
        const char *name, *type;
        const char *state;      /* ok | paused | failing (also when a delivery there hangs) */
        const char *last_error; /* borrowed until the next view; NULL */
        uint64_t last_success_usec, bytes_delivered;
} SchedulerDestinationView;

typedef struct SchedulerDeliveryView {
        const char *id, *destination; /* borrowed until the next view */
        uint64_t sent_bytes, done_bytes, total_bytes, start_usec;
} SchedulerDeliveryView;
#define SCHEDULER_DELIVERIES_MAX(n_destinations) (2 * (n_destinations))
/** @param ret  has space for SCHEDULER_DELIVERIES_MAX()  @return how many deliveries run */
size_t scheduler_deliveries_view(const Scheduler *s, SchedulerDeliveryView *ret);

/** @return whether requests were made there, and *ret (uploaders/s3/s3_client.h) */
bool scheduler_requests(const Scheduler *s, size_t i, S3Stats *ret);

size_t scheduler_n_destinations(const Scheduler *s);
void scheduler_destination_view(const Scheduler *s, size_t i, SchedulerDestinationView *ret);

typedef enum SchedulerRetry {
        SCHEDULER_RETRY_DESTINATION,
        SCHEDULER_RETRY_BUNDLE,
        SCHEDULER_RETRY_CHANGED,
        N_SCHEDULER_RETRIES
} SchedulerRetry;

typedef struct SchedulerFigures {
        const RateLimits *limits; /* borrowed */
        size_t n_orphaned;        /* bundles READY for a destination that is not configured */
        uint64_t buffer_bytes;    /* memory reserved by running deliveries */
        uint64_t bytes_read, bytes_sent; /* by them, in addition to the store's counters */
        uint64_t n_aborted_uploads;      /* unfinished ones, since the start */
        uint64_t n_retries[N_SCHEDULER_RETRIES];
} SchedulerFigures;
void scheduler_figures(const Scheduler *s, SchedulerFigures *ret); /* O(bundles) */

/** Explains in sentences what this delivery waits for. @return the caller's, NULL for lack of
 * memory */
char *scheduler_explain(const Scheduler *s, const Bundle *b, const DeliveryRecord *d);
