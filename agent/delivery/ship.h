/* One delivery: one bundle to one destination. What both kinds of destination share: the order, copied so that the loop may change its
 * mind meanwhile, the figures that the loop reads while it runs, and the answer. How it is done is ship_volume.c's and ship_s3.c's
 * business; what becomes of the answer is pipeline_answer.c's. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/delivery/limits.h"
#include "agent/delivery/ship_notes.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "lib/event/worker_pool.h"

typedef enum ShipResult {
        SHIP_DELIVERED,
        SHIP_CHANGED,  /* a member changes under us: let it settle */
        SHIP_VANISHED, /* nothing of it is left */
        SHIP_ABORTED,  /* asked to */
        SHIP_DESTINATION, /* the destination has a problem (full, away, denied): not the bundle's fault */
        SHIP_RESOURCES, /* memory, threads or room for our state are short: neither the bundle's nor the destination's fault */
        SHIP_FAILED,    /* the bundle's own failure, counts towards quarantine */
} ShipResult;

typedef struct ShipJob {
        WorkJob job; /* a worker's turn: all of it (volume), or a step (S3) */
        void (*on_done)(struct ShipJob *s); /* once, on the loop; may free it */
        void *owner;                        /* the loop's side */
        /* The order, owned. */
        BundleRecord rec; /* a copy */
        SourceTerms *
                terms; /* a reference; NULL: the source is not configured any more, only links can be shipped */
        HeldFiles held;    /* duplicates of the descriptors */
        uint64_t *shipped; /* fingerprints that the base and earlier supplements have brought */
        size_t n_shipped;
        int attached_fd; /* a directory, see attachments.h; -1 = nothing is attached */
        ShipNotes notes; /* what the hook told of the unit */
        Owners owners;   /* of its members, when it was judged where it may go */
        char *directory; /* `<expanded prefix>/<instance-id>`, below the destination's root */
        char *instance_id, *hostname;
        char **labels;
        Clock *clock;            /* borrowed */
        WorkerPool *compressors; /* borrowed */
        Limits *limits;          /* a reference */
        int level;
        uint64_t memory_bytes; /* reserved for it */
        bool tolerant;
        /* Read by the loop while it runs. */
        atomic_uint_fast64_t sent_bytes, done_bytes, total_bytes, read_bytes;
        atomic_uint_fast64_t n_reads; /* of members, begun: a sign of life */
        atomic_bool abort;            /* set by the loop */
        uint64_t begun_usec;          /* CLOCK_BOOTTIME */
        uint64_t
                setup_usec; /* what it took until something could be sent: spent again when it is interrupted; 0 = not yet */
        /* The answer. */
        ShipResult result;
        int upload_outcome; /* UPLOAD_E_*, of SHIP_DESTINATION; 0 */
        char *error;        /* a sentence; for all but SHIP_DELIVERED */
        Proof proof;
        uint64_t object_bytes;
        char *incomplete; /* JSON array, final */
        bool complete;
        uint64_t *prints; /* of the members in the bundle, sorted */
        size_t n_prints;
        uint64_t *attached_prints; /* those of them that are attachments, sorted */
        size_t n_attached_prints;
        bool has_more;   /* a member of the source was left out that can follow in a supplement */
        uint64_t digest; /* the sum of the others: what intake sees of the unit */
} ShipJob;

typedef struct ShipOrder { /* borrowed; copied by ship_job_init */
        const Bundle *bundle;
        SourceTerms *terms; /* of its source; NULL when that is not configured any more */
        Clock *clock;       /* outlives the job */
        const char *directory, *instance_id, *hostname;
        char **labels; /* key, value, …, NULL */
        WorkerPool *compressors;
        Limits *limits;
        int level;
        uint64_t memory_bytes;
} ShipOrder;

/** @return 0; -ENOMEM, with nothing left to free */
int ship_job_init(ShipJob *s, const ShipOrder *order);
void ship_job_done(ShipJob *s);

/** Writes down how it ended. @param error  a sentence, taken over; NULL. @return false: there is nothing to go on with */
bool ship_end(ShipJob *s, ShipResult result, char *error);
bool ship_endf(ShipJob *s, ShipResult result, const char *fmt, ...) _printf_(3, 4);
/** The same for what an uploader answered. @param error  taken over; NULL */
bool ship_end_upload(ShipJob *s, int outcome, char *error);
/** Asked before each step that shows: a worker that hung and was given up may wake while another one ships the same bundle.
 * @return whether it may go on; false: it was asked to stop, and has ended */
bool ship_may_go_on(ShipJob *s);
