/* From READY to DELIVERED: which bundle goes to which destination and when, and what a result
 * means. Deliveries run in workers and on the loop (delivery.h); this decides. Each destination has
 * a worker, a place in the queue and a backoff of its own. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/delivery/rate_limits.h"
#include "agent/hooknotes/attachments.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "config/config.h"

typedef struct Scheduler Scheduler;

typedef struct SchedulerContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        const Attachments *attachments; /* NULL: nothing is ever attached */
        const char *instance_id, *hostname;
        char *const *environment; /* NAME=VALUE list, for credentials and endpoints of S3 */
        bool is_urgent;           /* --once: no start is delayed for the sake of other nodes */
        void (*on_delivered)(const Bundle *b, void *userdata); /* before the state changes */
        SourceSpec *(*get_source_spec)(const Bundle *b);       /* of b->source; borrowed */
        /* A member changed while it was read: the bundle goes back to SETTLING, at its source. */
        void (*on_changed)(Bundle *b, const char *why);
        void *userdata;
} SchedulerContext;

/** @param config  borrowed for the scheduler's life */
int scheduler_new(Scheduler **ret, const SchedulerContext *context, const Config *config);

/** Stops what runs, waits a few seconds for it and abandons what hangs; bundles are READY again. */
Scheduler *scheduler_free(Scheduler *s);

/** Sets a configuration that is the same in destinations, limits and retries. */
void scheduler_set_config(Scheduler *s, const Config *config);

/** Starts what may start now. Cheap; to be called whenever something became ready. */
void scheduler_kick(Scheduler *s);

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

/** Ends the deliveries of a bundle; its `cancel` is carried out when their workers are back.
 * @return whether there is anything to wait for */
bool scheduler_abort(Scheduler *s, Bundle *b);

typedef struct SchedulerDestinationView {
        const char *name, *type;
        const char *state;      /* ok | paused | failing (also when a delivery there hangs) */
        const char *last_error; /* borrowed until the next view; NULL */
        uint64_t last_success_usec, bytes_delivered;
        uint64_t next_try_usec; /* CLOCK_BOOTTIME; 0 = now */
} SchedulerDestinationView;

typedef struct SchedulerDeliveryView {
        const char *id, *destination; /* borrowed until the next view */
        uint64_t sent_bytes, done_bytes, total_bytes, start_usec;
} SchedulerDeliveryView;
#define SCHEDULER_DELIVERIES_MAX(n_destinations) (2 * (n_destinations))
/** @param ret  has space for SCHEDULER_DELIVERIES_MAX()  @return how many deliveries run */
size_t scheduler_deliveries_view(const Scheduler *s, SchedulerDeliveryView *ret);

/* The requests that were made to a destination since it was configured. */
typedef struct SchedulerRequestCount {
        const char *operation; /* static */
        unsigned code;         /* HTTP status, 0 = no answer */
        uint64_t n;
} SchedulerRequestCount;
#define SCHEDULER_REQUESTS_MAX 64
typedef struct SchedulerRequests {
        SchedulerRequestCount items[SCHEDULER_REQUESTS_MAX];
        size_t n;
        uint64_t n_retries;
        double le[12]; /* seconds */
        uint64_t count[12], total;
        double sum;
} SchedulerRequests;
/** @return whether it makes requests, and *ret */
bool scheduler_requests(const Scheduler *s, size_t i, SchedulerRequests *ret);

/** A bundle reached a final state: uploads of it that could be resumed are queued to be aborted. */
void scheduler_abandon_uploads(Scheduler *s, const Bundle *b);

/** @return how many bundles are READY for a destination that is not configured. O(n) */
size_t scheduler_n_orphaned(const Scheduler *s);

/** @return whether a configured destination will still try b, which has not failed by its own fault
 * since the start (or since it was retried) */
bool scheduler_can_continue(const Scheduler *s, const Bundle *b);

size_t scheduler_n_destinations(const Scheduler *s);
void scheduler_destination_view(const Scheduler *s, size_t i, SchedulerDestinationView *ret);
const RateLimits *scheduler_rate_limits(const Scheduler *s); /* borrowed */
uint64_t scheduler_buffer_bytes(const Scheduler *s);
/* Of running deliveries, in addition to the store's counters. */
uint64_t scheduler_bytes_read(const Scheduler *s);
uint64_t scheduler_bytes_sent(const Scheduler *s);
typedef enum SchedulerRetry {
        SCHEDULER_RETRY_DESTINATION,
        SCHEDULER_RETRY_BUNDLE,
        SCHEDULER_RETRY_CHANGED,
        N_SCHEDULER_RETRIES
} SchedulerRetry;
uint64_t scheduler_n_retries(const Scheduler *s, SchedulerRetry why);
/** @return how many uploads that nobody resumes were aborted since the start */
uint64_t scheduler_n_aborted_uploads(const Scheduler *s);

/** Explains in sentences what this delivery waits for. @return the caller's, NULL for lack of
 * memory */
char *scheduler_explain(const Scheduler *s, const Bundle *b, const DeliveryRecord *d);
