/* From READY to DELIVERED: which bundle goes to which destination when, and what an answer means. The workers ship (ship.h);
 * this decides. Destinations are independent: each has a worker, a queue position and a backoff of its own. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/delivery/rate_limits.h"
#include "agent/hooknotes/attachments.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "config/config.h"

typedef struct Pipeline Pipeline;

typedef struct PipelineContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        const Attachments *attachments; /* NULL: nothing is ever attached */
        const char *instance_id, *hostname;
        char *const *environment; /* NAME=VALUE list, for credentials and endpoints of S3 */
        bool in_a_hurry; /* a sweep: nothing is put off so that many nodes do not begin at once */
        void (*on_delivered)(
                const Bundle *b,
                void *userdata); /* right before the state changes: for the histogram */
        SourceTerms *(*source_terms)(const Bundle *b); /* of b->source; borrowed */
        /* A member changed while it was read: the bundle goes back to SETTLING, at its source. */
        void (*on_changed)(Bundle *b, const char *why);
        void *userdata;
} PipelineContext;

/** @param config  borrowed for the pipeline's life */
int pipeline_new(Pipeline **ret, const PipelineContext *context, const Config *config);

/** Asks what is at work to stop, waits for it a few seconds, abandons what hangs. What was cut is READY again. */
Pipeline *pipeline_free(Pipeline *p);

/** Goes on with a configuration that says the same about destinations, limits and retries. */
void pipeline_rebind(Pipeline *p, const Config *config);

/** Starts whatever may start now. Cheap; to be called whenever something became ready. */
void pipeline_kick(Pipeline *p);

/** Forgets all backoff of one bundle, or of everything (b == NULL), and kicks. Of one bundle also its failures, so that what was given
 * up is tried again; its row is written. */
void pipeline_retry_now(Pipeline *p, Bundle *b);

/** Nothing waits for the sake of other nodes any more (drain), or does again; kicks. */
void pipeline_set_hurry(Pipeline *p, bool in_a_hurry);

/** Stops in good order: nothing new begins, and what is under way ends as soon as little has to be sent again. */
void pipeline_wind_down(Pipeline *p);
/** After all it goes on. */
void pipeline_go_on(Pipeline *p);
/** @return whether nothing is at work */
bool pipeline_is_still(const Pipeline *p);

/** Ends the work on a bundle that is being shipped; `cancel` is carried out when its workers are back.
 * @return whether there is anything to wait for */
bool pipeline_abort(Pipeline *p, Bundle *b);

typedef struct PipelineDestinationView {
        const char *name, *type;
        const char *state;      /* ok | paused | failing (also when what is at work there hangs) */
        const char *last_error; /* borrowed until the next view; NULL */
        uint64_t last_success_usec, bytes_delivered;
        uint64_t next_try_usec; /* CLOCK_BOOTTIME; 0 = now */
} PipelineDestinationView;

typedef struct PipelineShippingView {
        const char *id, *destination; /* borrowed until the next view */
        uint64_t sent_bytes, done_bytes, total_bytes, begun_usec;
} PipelineShippingView;
#define PIPELINE_SHIPPING_MAX(n_destinations) (2 * (n_destinations))
/** @param ret  room for PIPELINE_SHIPPING_MAX()  @return how many deliveries are under way */
size_t pipeline_shipping_view(const Pipeline *p, PipelineShippingView *ret);

/* What requests to a destination were made since it was configured; borrowed until the next turn. */
typedef struct PipelineRequest {
        const char *operation; /* static */
        unsigned code;         /* HTTP status, 0 = no answer */
        uint64_t n;
} PipelineRequest;
#define PIPELINE_REQUESTS_MAX 64
typedef struct PipelineRequests {
        PipelineRequest items[PIPELINE_REQUESTS_MAX];
        size_t n;
        uint64_t n_retries;
        double le[12]; /* seconds */
        uint64_t count[12], total;
        double sum;
} PipelineRequests;
/** @return whether it makes requests, and *ret */
bool pipeline_requests(const Pipeline *p, size_t i, PipelineRequests *ret);

/** A bundle reached a final state: what was kept to go on with its uploads is to be cleared away. */
void pipeline_forget(Pipeline *p, const Bundle *b);

/** @return how many bundles are READY with a delivery to a destination that is not configured: nothing will ever serve it. O(n) */
size_t pipeline_n_orphaned(const Pipeline *p);

/** @return whether b may still get on by itself: a delivery is open that a configured destination will try, which is not given up
 * and has not failed by the bundle's own fault since the start (or since it was retried) */
bool pipeline_can_go_on(const Pipeline *p, const Bundle *b);

size_t pipeline_n_destinations(const Pipeline *p);
void pipeline_destination_view(const Pipeline *p, size_t i, PipelineDestinationView *ret);
const Limits *pipeline_limits(const Pipeline *p); /* borrowed */
uint64_t pipeline_buffer_bytes(const Pipeline *p);
uint64_t pipeline_bytes_read(
        const Pipeline *p); /* of what is at work, on top of the store's counter */
uint64_t pipeline_bytes_sent(const Pipeline *p);
typedef enum PipelineRetry {
        PIPELINE_RETRY_DESTINATION,
        PIPELINE_RETRY_BUNDLE,
        PIPELINE_RETRY_CHANGED,
        N_PIPELINE_RETRIES
} PipelineRetry;
uint64_t pipeline_n_retries(const Pipeline *p, PipelineRetry why);
uint64_t pipeline_n_aborted_uploads(
        const Pipeline *p); /* that nobody went on with, since the pipeline was made */

/** Says in sentences what this delivery waits for. @return the caller's, NULL for lack of memory */
char *pipeline_explain(const Pipeline *p, const Bundle *b, const DeliveryRecord *d);
