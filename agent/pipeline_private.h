/* What the files of the pipeline share. Nobody else includes this. */
#pragma once

#include "agent/pipeline.h"
#include "agent/ship.h"
#include "agent/stall.h"
#include "lib/base/path.h"
#include "lib/loop/worker_pool.h"
#include "uploaders/volume.h"

/* Can the volume be written? Asked at the start and after each failure, before a bundle is packed for it. */
typedef struct VolumeProbe {
        WorkJob job;
        struct Destination *owner;
        Volume *volume;      /* borrowed */
        uint64_t begun_usec; /* CLOCK_BOOTTIME */
        int outcome;
        char *error;
} VolumeProbe;

typedef struct Destination {
        Pipeline *pipeline;
        const ConfigDestination *config; /* borrowed */
        PathTemplate *template;
        Volume *volume;
        WorkerPool *worker; /* one thread: a hung mount hangs only this */
        ShipJob *running;
        Bundle *bundle;     /* being shipped */
        VolumeProbe *probe; /* running */
        bool proven;        /* the last thing tried there worked */
        bool ship_failed; /* a delivery failed by its fault: only a delivery shows that it is mended */
        const char *state;
        char *last_error;
        unsigned n_failures;      /* of the destination, in a row */
        uint64_t not_before_usec; /* CLOCK_BOOTTIME */
        uint64_t last_success_usec;
        sd_event_source *timer;
        Stall stall; /* of what is at work */
        char stall_error[96];
} Destination;

struct Pipeline {
        PipelineContext context;
        const Config *config;
        WorkerPool *compressors;
        unsigned n_compressors;
        Destination *destinations;
        size_t n_destinations;
        uint64_t memory_used;
        uint64_t n_retries[N_PIPELINE_RETRIES];
        bool stopping;
};

static inline uint64_t pipeline_boot_usec(const Pipeline *p) {
        return p->context.clock->boottime_usec(p->context.clock);
}

static inline uint64_t pipeline_realtime_usec(const Pipeline *p) {
        return p->context.clock->realtime_usec(p->context.clock);
}

/** @return the bundle's delivery to a destination, NULL when it has none */
DeliveryRecord *pipeline_delivery(const Bundle *b, const char *destination);
size_t pipeline_tries_index(const Bundle *b, const DeliveryRecord *delivery); /* in b->tries */
/** @return what happened to this delivery of b since the start */
BundleTries *pipeline_tries(Bundle *b, const DeliveryRecord *delivery);
Destination *pipeline_find_destination(const Pipeline *p, const char *name);
/** @return whether it failed so often by the bundle's own fault that it is not tried any more */
bool pipeline_has_given_up(const Pipeline *p, const DeliveryRecord *delivery);
/** @return whether there is no delivery left to try, but some that were given up */
bool pipeline_has_given_up_all(const Pipeline *p, const Bundle *b);

/* pipeline_answer.c: what an answer means. */
void pipeline_destination_is_well(Destination *d);
/** @param full  there is no room; else it is away
 * @param error  a sentence, copied; may be NULL */
void pipeline_destination_is_ill(Destination *d, bool full, const char *error);
/** Writes down how a delivery ended. The bundle may be gone afterwards. */
void pipeline_take_answer(Destination *d, Bundle *b, ShipJob *s);
/** Moves a bundle on from SHIPPING, or remembers the move until its last worker is back. It may be gone afterwards.
 * @param to  READY, or any state that may follow SHIPPING
 * @param reason  a sentence, copied; may be NULL */
void pipeline_leave_shipping(Pipeline *p, Bundle *b, BundleState to, const char *reason);
