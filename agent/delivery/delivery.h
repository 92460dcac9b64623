/* One delivery: one bundle to one destination. What both kinds of destination share: the request,
 * copied so that the loop may change its own meanwhile, the figures that the loop reads while it
 * runs, and the result. How it is done: delivery_volume.c, delivery_s3.c; what a result means:
 * scheduler_results.c. Private to this folder. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/delivery/delivery_memory.h"
#include "agent/delivery/delivery_notes.h"
#include "agent/delivery/rate_limits.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "agent/store/store.h"
#include "lib/event/worker_pool.h"

typedef enum DeliveryResult {
        RESULT_DELIVERED,
        RESULT_CHANGED,  /* a member changed while it was read: it has to settle */
        RESULT_VANISHED, /* nothing of it is left */
        RESULT_ABORTED,  /* on request */
        /* Full, away or denied: not the bundle's fault. Refused (UPLOAD_E_REFUSED): its fault only
         * if the destination accepts other bundles. */
        RESULT_DESTINATION_FAILED,
        RESULT_NO_RESOURCES, /* lack of memory, threads or state: neither the bundle's nor the
                                destination's fault */
        RESULT_FAILED,       /* the bundle's own failure, counts towards quarantine */
        /* So does this one; but reading the source failed by an error that may end by itself, as
         * when its file server is away. */
        RESULT_SOURCE_FAILED,
} DeliveryResult;

typedef enum DeliveryObject { /* the bundle's, at the destination */
                              DELIVERY_OBJECT_UNSENT,
                              DELIVERY_OBJECT_SENT,    /* it may exist; without its manifest, unless
                                                          RESULT_DELIVERED */
                              DELIVERY_OBJECT_EARLIER, /* an earlier run has delivered it; this one
                                                          wrote nothing */
} DeliveryObject;

typedef struct DeliveryRun { /* read by the loop while the worker runs */
        atomic_uint_fast64_t sent_bytes, done_bytes, total_bytes, read_bytes;
        atomic_uint_fast64_t n_reads; /* of members, started: a sign of life */
        atomic_bool abort;            /* set by the loop */
        uint64_t start_usec;          /* CLOCK_BOOTTIME */
        uint64_t setup_usec;          /* until data could be sent; 0 = not yet */
        bool has_advanced; /* something arrived that the next attempt need not send again */
        bool is_multipart; /* it was sent in parts, by requests that a small object does not need */
} DeliveryRun;

typedef struct Delivery {
        WorkJob work;                        /* the whole delivery (volume), or one step (S3) */
        void (*on_done)(struct Delivery *d); /* once, on the loop; may free it */
        void *owner;                         /* the loop's side */

        /* The request, owned. */
        BundleRecord rec; /* a copy */
        SourceSpec *spec; /* a reference; NULL: not configured any more, links only */
        HeldFiles held;   /* duplicates of the descriptors */
        /* Fingerprints of the members that the base and earlier supplements have delivered: these
         * are left out. Of a redelivery: of those that the bundle itself has delivered, and only
         * these are taken. */
        uint64_t *shipped;
        size_t n_shipped;
        /* Sorted fingerprints of the members that another destination has under the same id; NULL:
         * none has it yet. Only these are taken: what has changed since follows in a supplement, so
         * that one id is nowhere two contents. */
        uint64_t *frozen;
        size_t n_frozen;
        DeliveryNotes notes;
        FileOwners owners; /* of its members, when it settled */
        NamedPids pids; /* in the names of the planned members; at the end of the delivered ones */
        /* `<expanded prefix>/<instance-id>`, below the destination's root. While the worker runs it
         * owns this, and may replace it by a directory beside it. */
        char *directory;
        char *instance_id, *hostname;
        char **labels;
        Clock *clock;            /* borrowed */
        WorkerPool *compressors; /* borrowed */
        RateLimits *limits;      /* a reference */
        int level;
        MemoryCharge memory; /* charged while it runs */
        bool tolerant;

        DeliveryRun run;

        /* The result. */
        DeliveryResult result;
        DeliveryObject object;
        bool is_beside;     /* `directory` lies beside the bundle's own */
        char *refusal;      /* is_beside: why, a sentence; NULL: the bundle lay there already */
        int upload_outcome; /* UPLOAD_E_*, of RESULT_DESTINATION_FAILED; 0 */
        char *error;        /* a sentence; for all but RESULT_DELIVERED */
        Proof proof;
        uint64_t object_bytes;
        char *incomplete;       /* JSON array, final */
        size_t n_notes_ignored; /* notes by users who own none of the files; final */
        bool complete;
        uint64_t *prints; /* of the members in the bundle, sorted */
        size_t n_prints;
        bool has_more;   /* a member of the source was left out that can follow in a supplement */
        uint64_t digest; /* their sum: what intake sees of the unit */
} Delivery;

/* What a delivery copies of bundle, source and configuration. */
typedef struct DeliveryOptions { /* borrowed */
        const Bundle *bundle;
        SourceSpec *spec;      /* a reference is taken; NULL: not configured any more */
        const char *directory; /* below the destination's root */
        const char *instance_id, *hostname;
        char *const *labels;
        Clock *clock; /* must outlive the delivery, as the next one */
        WorkerPool *compressors;
        RateLimits *limits; /* a reference is taken */
        int level;
        uint64_t memory_bytes;
} DeliveryOptions;

/** Copies what a delivery needs, so that the loop may change its own meanwhile.
 * @return 0; -ENOMEM, with nothing left to free */
int delivery_init(Delivery *d, const DeliveryOptions *o);
void delivery_done(Delivery *d);
/** Reads the notes of the unit, and sets the bundle's `failure` as delivery_notes_record_failure().
 */
void delivery_read_notes(Delivery *d, Store *store, Bundle *b);
/** Copies the pids in the delivered members' names to the bundle, and sets its `failure` again. The
 * caller writes the row. */
void delivery_report_pids(Delivery *d, Bundle *b);

/** Records how it ended. @param error  a sentence, owned from now on; NULL @return false */
bool delivery_end(Delivery *d, DeliveryResult result, char *error);

bool delivery_endf(Delivery *d, DeliveryResult result, const char *fmt, ...) _printf_(3, 4);
/** @param r  -errno of this process  @return RESULT_NO_RESOURCES for a lack of memory or
 * descriptors, which is not the bundle's fault; else RESULT_FAILED */
DeliveryResult delivery_result_of(int r);
/** The same for reading a source: RESULT_SOURCE_FAILED, too. */
DeliveryResult delivery_result_of_source(int r);
/** Ends a delivery by an uploader's outcome, and so decides whether the destination or the bundle
 * is at fault. @param outcome  UPLOAD_E_*, -errno @param error  owned from now on; NULL */
bool delivery_end_by_outcome(Delivery *d, int outcome, char *error);
/** To be called before each step that others can see: a worker that hung and was abandoned may wake
 * while another one ships the same bundle. @return false: it is to stop, and has ended */
bool delivery_may_continue(Delivery *d);
