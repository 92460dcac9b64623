/* From READY to DELIVERED: which bundle goes to which destination when, and what an answer means. The workers ship (ship.h);
 * this decides. Destinations are independent: each has a worker, a queue position and a backoff of its own. */
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
        bool is_urgent; /* a sweep: nothing is put off so that many nodes do not begin at once */
        void (*on_delivered)(
                const Bundle *b,
                void *userdata); /* right before the state changes: for the histogram */
        SourceTerms *(*source_terms)(const Bundle *b); /* of b->source; borrowed */
        /* A member changed while it was read: the bundle goes back to SETTLING, at its source. */
        void (*on_changed)(Bundle *b, const char *why);
        void *userdata;
} SchedulerContext;

/** @param config  borrowed for the pipeline's life */
int scheduler_new(Scheduler **ret, const SchedulerContext *context, const Config *config);

/** Asks what is at work to stop, waits for it a few seconds, abandons what hangs. What was cut is READY again. */
Scheduler *scheduler_free(Scheduler *s);

/** Goes on with a configuration that says the same about destinations, limits and retries. */
void scheduler_set_config(Scheduler *s, const Config *config);

/** Starts whatever may start now. Cheap; to be called whenever something became ready. */
void scheduler_kick(Scheduler *s);

/** Forgets all backoff of one bundle, or of everything (b == NULL), and kicks. Of one bundle also its failures, so that what was given
 * up is tried again; its row is written. */
void scheduler_retry_now(Scheduler *s, Bundle *b);

/** Nothing waits for the sake of other nodes any more (drain), or does again; kicks. */
void scheduler_set_urgent(Scheduler *s, bool is_urgent);

/** Stops in good order: nothing new begins, and what is under way ends as soon as little has to be sent again. */
void scheduler_wind_down(Scheduler *s);
/** After all it goes on. */
void scheduler_resume(Scheduler *s);
/** @return whether nothing is at work */
bool scheduler_is_idle(const Scheduler *s);

/** Ends the work on a bundle that is being shipped; `cancel` is carried out when its workers are back.
 * @return whether there is anything to wait for */
bool scheduler_abort(Scheduler *s, Bundle *b);

typedef struct SchedulerDestinationView {
        const char *name, *type;
        const char *state;      /* ok | paused | failing (also when what is at work there hangs) */
        const char *last_error; /* borrowed until the next view; NULL */
        uint64_t last_success_usec, bytes_delivered;
        uint64_t next_try_usec; /* CLOCK_BOOTTIME; 0 = now */
} SchedulerDestinationView;

typedef struct SchedulerDeliveryView {
        const char *id, *destination; /* borrowed until the next view */
        uint64_t sent_bytes, done_bytes, total_bytes, begun_usec;
} SchedulerDeliveryView;
#define SCHEDULER_DELIVERIES_MAX(n_destinations) (2 * (n_destinations))
/** @param ret  room for SCHEDULER_DELIVERIES_MAX()  @return how many deliveries are under way */
size_t scheduler_deliveries_view(const Scheduler *s, SchedulerDeliveryView *ret);

/* What requests to a destination were made since it was configured; borrowed until the next turn. */
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

/** A bundle reached a final state: what was kept to go on with its uploads is to be cleared away. */
void scheduler_abandon_uploads(Scheduler *s, const Bundle *b);

/** @return how many bundles are READY with a delivery to a destination that is not configured: nothing will ever serve it. O(n) */
size_t scheduler_n_orphaned(const Scheduler *s);

/** @return whether b may still get on by itself: a delivery is open that a configured destination will try, which is not given up
 * and has not failed by the bundle's own fault since the start (or since it was retried) */
bool scheduler_can_continue(const Scheduler *s, const Bundle *b);

size_t scheduler_n_destinations(const Scheduler *s);
void scheduler_destination_view(const Scheduler *s, size_t i, SchedulerDestinationView *ret);
const RateLimits *scheduler_rate_limits(const Scheduler *s); /* borrowed */
uint64_t scheduler_buffer_bytes(const Scheduler *s);
uint64_t scheduler_bytes_read(
        const Scheduler *s); /* of what is at work, on top of the store's counter */
uint64_t scheduler_bytes_sent(const Scheduler *s);
typedef enum SchedulerRetry {
        SCHEDULER_RETRY_DESTINATION,
        SCHEDULER_RETRY_BUNDLE,
        SCHEDULER_RETRY_CHANGED,
        N_SCHEDULER_RETRIES
} SchedulerRetry;
uint64_t scheduler_n_retries(const Scheduler *s, SchedulerRetry why);
uint64_t scheduler_n_aborted_uploads(
        const Scheduler *s); /* that nobody went on with, since the pipeline was made */

/** Says in sentences what this delivery waits for. @return the caller's, NULL for lack of memory */
char *scheduler_explain(const Scheduler *s, const Bundle *b, const DeliveryRecord *d);
