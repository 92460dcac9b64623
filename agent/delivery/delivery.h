/* One delivery: one bundle to one destination. What both kinds of destination share: the order, copied so that the loop may change its
 * mind meanwhile, the figures that the loop reads while it runs, and the answer. How it is done is ship_volume.c's and ship_s3.c's
 * business; what becomes of the answer is pipeline_answer.c's. */
#pragma once

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/delivery/rate_limits.h"
#include "agent/hooknotes/attachments.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "agent/store/store.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/plan.h"
#include "lib/bundle/writer.h"
#include "lib/event/worker_pool.h"
#include "lib/neuron/note.h"

/* What hooks told of a unit, for the manifests of its bundles: read on the loop when a delivery begins, and from then on the delivery job's. */
typedef struct DeliveryNotes {
        HookNote *notes; /* owned; what the others point into */
        ManifestFailure *failures;
        char **containers; /* owned; of each note, NULL = not known */
        uid_t *uids;       /* who told each note */
        size_t n;          /* of them all, at most MANIFEST_FAILURES_MAX */
        ManifestJob job;
        bool has_job;
        struct StoredJob *
                seen; /* without a note: the processes of the unit's owner that were seen at devices, the last seen first; owned */
        size_t n_seen;
} DeliveryNotes;

/** Reads the first notes of a bundle's unit, of users who may speak about it (owners.h, as far as its owners are known); a note that cannot be read is left out.
 * Where the unit's own user has told nothing, also reads which of his processes were seen at devices (see below). @return 0; -errno: then there are none */
int delivery_notes_read(DeliveryNotes *ret, Store *store, const Bundle *b);
void delivery_notes_done(DeliveryNotes *n);

/** Which job a unit without a note is from: that of the last seen process whose pid the name of a file of the same owner has, and which was seen before
 * the unit's last change. A hint: whoever wrote the files chose their names, but his own processes alone can be named by them.
 * @return what *ret points into, for json_decref(); NULL: there is none */
json_t *delivery_notes_find_job(const DeliveryNotes *n, const Plan *plan, SourceKind kind,
                                ManifestJob *ret);

/** Leaves out the notes of users who may not speak about these owners' files (owners.h). @return how many were left out */
size_t delivery_notes_filter(DeliveryNotes *n, const Owners *owners);

typedef enum DeliveryResult {
        RESULT_DELIVERED,
        RESULT_CHANGED,  /* a member changes under us: let it settle */
        RESULT_VANISHED, /* nothing of it is left */
        RESULT_ABORTED,  /* asked to */
        RESULT_DESTINATION_FAILED, /* the destination has a problem (full, away, denied): not the bundle's fault */
        RESULT_NO_RESOURCES, /* memory, threads or room for our state are short: neither the bundle's nor the destination's fault */
        RESULT_FAILED,       /* the bundle's own failure, counts towards quarantine */
} DeliveryResult;

typedef struct Delivery {
        WorkJob work; /* a worker's turn: all of it (volume), or a step (S3) */
        void (*on_done)(struct Delivery *d); /* once, on the loop; may free it */
        void *owner;                         /* the loop's side */
        /* The order, owned. */
        BundleRecord rec; /* a copy */
        SourceTerms *
                terms; /* a reference; NULL: the source is not configured any more, only links can be shipped */
        HeldFiles held;    /* duplicates of the descriptors */
        uint64_t *shipped; /* fingerprints that the base and earlier supplements have brought */
        size_t n_shipped;
        int attached_fd;     /* a directory, see attachments.h; -1 = nothing is attached */
        DeliveryNotes notes; /* what the hook told of the unit */
        Owners owners;       /* of its members, when it was judged where it may go */
        char *directory;     /* `<expanded prefix>/<instance-id>`, below the destination's root */
        char *instance_id, *hostname;
        char **labels;
        Clock *clock;            /* borrowed */
        WorkerPool *compressors; /* borrowed */
        RateLimits *limits;      /* a reference */
        int level;
        uint64_t memory_bytes; /* reserved for it */
        bool tolerant;
        /* Read by the loop while it runs. */
        atomic_uint_fast64_t sent_bytes, done_bytes, total_bytes, read_bytes;
        atomic_uint_fast64_t n_reads; /* of members, begun: a sign of life */
        atomic_bool abort;            /* set by the loop */
        uint64_t start_usec;          /* CLOCK_BOOTTIME */
        uint64_t
                setup_usec; /* what it took until something could be sent: spent again when it is interrupted; 0 = not yet */
        /* The answer. */
        DeliveryResult result;
        int upload_outcome; /* UPLOAD_E_*, of RESULT_DESTINATION_FAILED; 0 */
        char *error;        /* a sentence; for all but RESULT_DELIVERED */
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
} Delivery;

typedef struct DeliveryRequest { /* borrowed; copied by delivery_init */
        const Bundle *bundle;
        SourceTerms *terms; /* of its source; NULL when that is not configured any more */
        Clock *clock;       /* outlives the job */
        const char *directory, *instance_id, *hostname;
        char **labels; /* key, value, …, NULL */
        WorkerPool *compressors;
        RateLimits *limits;
        int level;
        uint64_t memory_bytes;
} DeliveryRequest;

/** @return 0; -ENOMEM, with nothing left to free */
int delivery_init(Delivery *d, const DeliveryRequest *order);
void delivery_done(Delivery *d);

/** Writes down how it ended. @param error  a sentence, taken over; NULL. @return false: there is nothing to go on with */
bool delivery_end(Delivery *d, DeliveryResult result, char *error);
bool delivery_endf(Delivery *d, DeliveryResult result, const char *fmt, ...) _printf_(3, 4);
/** The same for what an uploader answered. @param error  taken over; NULL */
bool delivery_end_upload(Delivery *d, int outcome, char *error);
/** Asked before each step that shows: a worker that hung and was given up may wake while another one ships the same bundle.
 * @return whether it may go on; false: it was asked to stop, and has ended */
bool delivery_may_continue(Delivery *d);

/* Where a delivery reads its members from: our hard links, the descriptors that were kept, or the source itself. And what is attached to the
 * bundle, in either case. */
#define ATTACHED_PREFIX ATTACHMENTS_DIRECTORY "/"

typedef struct DeliveryMembers DeliveryMembers;

typedef struct
        IncompleteReasons { /* why the bundle is not complete: told one by one, as sentences that are borrowed for the call */
        void (*add)(const char *reason, void *userdata);
        void *userdata;
} IncompleteReasons;

/** Finds the members and adds each to the plan (not yet frozen). What cannot be opened is left out, with a reason. A member of the source that
 * has the name of an attachment is left out too, with a reason, and follows in a supplement, where it stands alone under this name.
 * @return 0, -ENOENT when nothing is left, -errno */
int delivery_members_new(DeliveryMembers **ret, const Delivery *d, Plan *plan,
                         const IncompleteReasons *reasons);
DeliveryMembers *delivery_members_free(DeliveryMembers *m);

/** Opens the plan's member i for reading. @return an fd of the caller's, -errno */
int delivery_members_open(const DeliveryMembers *m, size_t i);

/** Gives the job the members' fingerprints, those of the attachments among them, and the sum of the others. Nothing for NULL. */
int delivery_members_export_prints(DeliveryMembers *m, Delivery *d);

/* One attempt at a delivery with one plan: what a bundle for a volume and one for S3 have in common, from the members to the text of the
 * manifest. Blocking: belongs to the worker that runs the delivery. */
/* A member that changes while it is read means a new plan; so often, then the bundle goes back to settling. */
#define DELIVERY_PLANS_MAX 3

typedef struct DeliveryAttempt {
        Delivery *delivery; /* borrowed */
        DeliveryMembers *members;
        Plan *plan;
        ReaderLimits turn; /* of the worker that reads */
        json_t *reasons;   /* why it is not complete */
        uint8_t plan_sha256[SHA256_SIZE];
        char *object_name, *manifest_name; /* `<bundle-id>.tar.zst`, `….manifest.json` */
        uint64_t
                created_usec; /* CLOCK_REALTIME; the manifest's, the same however often it is made */
} DeliveryAttempt;

/** Finds the members and freezes the plan. @return whether there is anything to ship; false: s has ended */
bool delivery_attempt_start(DeliveryAttempt *a, Delivery *d);
void delivery_attempt_done(DeliveryAttempt *a);

/** What the writer is told. */
BundleWriterOptions delivery_attempt_writer_options(DeliveryAttempt *a, uint64_t memory_bytes);

/** Says how the writer failed. @param r  what it returned, not 0  @param member  that failed, plan_n_members() for none. @return false */
bool delivery_attempt_end_writer(DeliveryAttempt *a, int r, size_t member);

/** Counts the verdicts among the reasons. To be called once, when all members were read. */
void delivery_attempt_add_verdicts(DeliveryAttempt *a, const BundleWriter *writer);

/** Is the manifest under this name an earlier run's of this plan?
 * @param where  it is, for messages
 * @return whether it is, and *head; false: it is something else, s has ended */
bool delivery_attempt_owns_manifest(DeliveryAttempt *a, const char *text, size_t n,
                                    const char *where, ManifestHead *head);
/** An earlier run got through: s has ended, delivered. Takes what head owns. @return false */
bool delivery_attempt_delivered_before(DeliveryAttempt *a, ManifestHead *head);

/** Writes the manifest through put. @param parts  of the object. @return as manifest_write() */
int delivery_attempt_write_manifest(DeliveryAttempt *a, const BundleWriter *writer,
                                    const Parts *parts,
                                    int (*put)(const void *data, size_t n, void *userdata),
                                    void *userdata);

/** The bundle is delivered: s gets the fingerprints of its members. @return false: there is nothing to go on with */
bool delivery_attempt_delivered(DeliveryAttempt *a);
