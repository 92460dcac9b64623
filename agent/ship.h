/* One delivery: one bundle to one volume, in that volume's own worker. Plan, bundle, proof, manifest; blocking from end to end.
 * What becomes of the answer is pipeline.c's business. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/bundle.h"
#include "agent/intake_probe.h"
#include "lib/bundle/parts.h"
#include "lib/loop/worker_pool.h"
#include "uploaders/volume.h"

typedef enum ShipResult {
        SHIP_DELIVERED,
        SHIP_CHANGED,     /* a member changes under us: let it settle */
        SHIP_VANISHED,    /* nothing of it is left */
        SHIP_ABORTED,     /* asked to */
        SHIP_DESTINATION, /* the destination has a problem (full, away): not the bundle's fault */
        SHIP_FAILED,      /* the bundle's own failure, counts towards quarantine */
} ShipResult;

typedef struct ShipJob {
        WorkJob job;
        void *owner; /* the loop's side */
        /* The order; all owned, so that the loop may change its mind meanwhile. */
        BundleRecord rec; /* a copy */
        SourceTerms *
                terms; /* a reference; NULL: the source is not configured any more, only links can be shipped */
        HeldFiles held;    /* duplicates of the descriptors */
        uint64_t *shipped; /* fingerprints that the base and earlier supplements have brought */
        size_t n_shipped;
        Volume *volume;  /* borrowed: lives as long as its pool */
        char *directory; /* `<expanded prefix>/<instance-id>`, below the volume's root */
        char *root, *instance_id, *hostname;
        char **labels;
        WorkerPool *compressors;
        int level;
        uint64_t memory_bytes, size_hint_bytes;
        bool tolerant;
        /* Read by the loop while it runs. */
        atomic_uint_fast64_t sent_bytes, done_bytes, total_bytes, read_bytes;
        atomic_bool abort;   /* set by the loop */
        uint64_t begun_usec; /* CLOCK_BOOTTIME */
        /* The answer. */
        ShipResult result;
        char *error; /* a sentence; for all but SHIP_DELIVERED */
        bool destination_full;
        uint64_t object_bytes;
        char *incomplete; /* JSON array, final */
        bool complete;
        uint64_t *prints; /* of the members in the bundle, sorted */
        size_t n_prints;
        uint64_t digest; /* their sum */
} ShipJob;

typedef struct ShipOrder { /* borrowed; copied by ship_job_new */
        Volume *volume;    /* must outlive the job */
        const char *root;  /* of the volume, for messages */
        const char *directory, *instance_id, *hostname;
        char **labels; /* key, value, …, NULL */
        WorkerPool *compressors;
        int level;
        uint64_t memory_bytes;
        uint64_t size_hint_bytes; /* so much at least must fit, 0 = unknown */
} ShipOrder;

/** @param terms  of its source, NULL when that is not configured any more */
int ship_job_new(ShipJob **ret, const Bundle *b, SourceTerms *terms, const ShipOrder *order);
ShipJob *ship_job_free(ShipJob *s);
void ship_run(WorkJob *job);
