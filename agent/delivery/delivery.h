/* One delivery: one bundle to one destination. What both kinds of destination share: the request,
 * copied so that the loop may change its own meanwhile, the figures that the loop reads while it
 * runs, and the result. How it is done: delivery_volume.c, delivery_s3.c; what a result means:
 * scheduler.c. Private to this folder. */
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
#include "lib/bundle/packer.h"
#include "lib/bundle/plan.h"
#include "lib/event/worker_pool.h"
#include "lib/neuron/note.h"

/* ---- what hooks reported about a unit, for the manifests of its bundles; read
 * on the loop when a delivery starts, and from then on the delivery's ---- */

typedef struct DeliveryNote {
        HookNote note;
        char *container; /* NULL = not known */
        uid_t uid;       /* its user */
        uint64_t received_usec;
} DeliveryNote;

typedef struct DeliveryNotes {
        DeliveryNote *items; /* owned */
        size_t n;            /* at most MANIFEST_FAILURES_MAX; in the order of arrival */
        /* Without a note: the owner's processes that were seen at devices, the last one first. */
        struct StoredJob *seen; /* owned */
        size_t n_seen;
} DeliveryNotes;

/** Reads the first notes of a bundle's unit, of users who may annotate it (bundle.h); one that
 * cannot be read is left out. Where the unit's own user has sent none, also reads which of the
 * user's processes were seen at devices. @return 0; -errno: then there are none */
int delivery_notes_read(DeliveryNotes *ret, Store *store, const Bundle *b);
void delivery_notes_done(DeliveryNotes *n);

/** Removes the notes of users who may not annotate these owners' files. @return how many */
size_t delivery_notes_filter(DeliveryNotes *n, const FileOwners *owners);

/** Sets a bundle's `failure` from the first note of a process that has files in it. Without such a
 * note the first note of all is used, but not for a supplement whose file names contain pids.
 * @return whether its row changes */
bool delivery_record_failure(Store *store, Bundle *b);

/* ---- the delivery ---- */

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
} DeliveryResult;

typedef struct Delivery {
        WorkJob work;                        /* the whole delivery (volume), or one step (S3) */
        void (*on_done)(struct Delivery *d); /* once, on the loop; may free it */
        void *owner;                         /* the loop's side */

        /* The request, owned. */
        BundleRecord rec; /* a copy */
        SourceSpec *spec; /* a reference; NULL: not configured any more, links only */
        HeldFiles held;   /* duplicates of the descriptors */
        /* Fingerprints that the base and earlier supplements have brought, which are left out; of a
         * redelivery those that the bundle itself has brought, and nothing else is taken. */
        uint64_t *shipped;
        size_t n_shipped;
        int attached_fd; /* a directory, see attachments.h; -1 = nothing is attached */
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
        uint64_t memory_bytes; /* reserved for it */
        bool tolerant;

        /* Read by the loop while it runs. */
        atomic_uint_fast64_t sent_bytes, done_bytes, total_bytes, read_bytes;
        atomic_uint_fast64_t n_reads; /* of members, started: a sign of life */
        atomic_bool abort;            /* set by the loop */
        uint64_t start_usec;          /* CLOCK_BOOTTIME */
        uint64_t setup_usec;          /* until data could be sent; 0 = not yet */
        bool has_advanced; /* something arrived that the next attempt need not send again */
        bool is_transient; /* RESULT_FAILED: the error may end by itself, as the source's file
                              server is away */
        bool was_there;    /* RESULT_DELIVERED: by an earlier run; this one wrote nothing */
        bool has_object;   /* not RESULT_DELIVERED: the object may exist, without its manifest */
        bool is_multipart; /* it was sent in parts, by requests that a small object does not need */

        /* The result. */
        DeliveryResult result;
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
        uint64_t *attached_prints; /* those of them that are attachments, sorted */
        size_t n_attached_prints;
        bool has_more;   /* a member of the source was left out that can follow in a supplement */
        uint64_t digest; /* the sum of the others: what intake sees of the unit */
} Delivery;

void delivery_done(Delivery *d);
/** Reads the notes of the unit, and sets the bundle's `failure` as delivery_record_failure(). */
void delivery_read_notes(Delivery *d, Store *store, Bundle *b);
/** Copies the pids in the delivered members' names to the bundle, and sets its `failure` again. The
 * caller writes the row. */
void delivery_report_pids(Delivery *d, Bundle *b);

/** Records how it ended. @return false */
bool delivery_endf(Delivery *d, DeliveryResult result, const char *fmt, ...) _printf_(3, 4);
/** @param r  -errno of this process  @return RESULT_NO_RESOURCES for a lack of memory or
 * descriptors, which is not the bundle's fault; else RESULT_FAILED */
DeliveryResult delivery_result_of(int r);
/** The same for an uploader's outcome. @param error  owned from now on; NULL */
bool delivery_end_upload(Delivery *d, int outcome, char *error);
/** To be called before each step that shows: a worker that hung and was abandoned may wake while
 * another one ships the same bundle. @return false: it is to stop, and has ended */
bool delivery_may_continue(Delivery *d);

/* ---- the members: read from the agent's hard links, from open descriptors or from the source;
 * and the attachments of the bundle ---- */

#define ATTACHED_PREFIX ATTACHMENTS_DIRECTORY "/"

typedef struct DeliveryMembers DeliveryMembers;

/** Finds the members and adds each to the plan (not yet frozen). What cannot be opened is left out,
 * with a reason; so is a member of the source that has the name of an attachment: it follows in a
 * supplement, where it is the only one of that name.
 * @param reasons  borrowed: gets why the bundle is not complete, a sentence each
 * @return 0, -ENOENT when nothing is left, -errno */
int delivery_members_new(DeliveryMembers **ret, const Delivery *d, Plan *plan, json_t *reasons);
DeliveryMembers *delivery_members_free(DeliveryMembers *m);

/** Opens the plan's member i for reading. @return an fd of the caller's, -errno */
int delivery_members_open(const DeliveryMembers *m, size_t i);

/** The destination has the member in this bundle or not; without a word it has. */
void delivery_members_leave_out(DeliveryMembers *m, size_t i);

/** Gives the delivery the members' fingerprints, those of the attachments among them, and the sum
 * of the others. Nothing for NULL. */
int delivery_members_export_prints(DeliveryMembers *m, Delivery *d);

/* ---- one attempt with one plan, from the members to the text of the manifest.
 * Blocking: belongs to the worker of the delivery ---- */

/* A member that changes while it is read needs a new plan; so often, then the bundle settles again.
 */
#define DELIVERY_PLANS_MAX 3

typedef struct DeliveryAttempt {
        Delivery *delivery; /* borrowed */
        DeliveryMembers *members;
        Plan *plan;
        ReaderLimits reader;
        json_t *reasons; /* why it is not complete */
        uint8_t plan_sha256[SHA256_SIZE];
        char *object_name, *manifest_name; /* `<bundle-id>.tar.zst`, `….manifest.json` */
        uint64_t created_usec;  /* CLOCK_REALTIME; the same however often the manifest is made */
        ManifestStream *stream; /* an earlier manifest, while it is read */
        ManifestHead earlier;
        struct EarlierMember *earlier_members; /* by the plan's index */
} DeliveryAttempt;

/** Finds the members and freezes the plan. @return false: there is nothing to ship, it has ended */
bool delivery_attempt_start(DeliveryAttempt *a, Delivery *d);
void delivery_attempt_done(DeliveryAttempt *a);

BundleWriterOptions delivery_attempt_writer_options(DeliveryAttempt *a, uint64_t memory_bytes);

/** Records how the writer failed. @param r  what it returned, not 0
 * @param member  that failed, plan_n_members() for none  @return false */
bool delivery_attempt_end_writer(DeliveryAttempt *a, int r, size_t member);

/** Adds the verdicts to the reasons. To be called once, when all members were read. */
void delivery_attempt_add_verdicts(DeliveryAttempt *a, const BundleWriter *writer);

/* What has the name of the manifest already. A manifest is proof only when it is complete, is this
 * bundle's and its object is what it says, which the caller checks by `earlier`. */
typedef enum EarlierCopy {
        EARLIER_UNKNOWN, /* not known, or not permitted to know */
        EARLIER_NONE,
        EARLIER_TRUNCATED,  /* its end is missing: no proof, to be replaced */
        EARLIER_OF_PLAN,    /* an earlier run got through */
        EARLIER_OTHER_PLAN, /* delivered by a run whose state is lost; the unit may have changed
                               since */
        EARLIER_COMPLETE,   /* one of these, and its object is what it says */
} EarlierCopy;

/** Reads it, in pieces as they come. @return whether to continue; false: the delivery has ended */
bool delivery_attempt_read_manifest(DeliveryAttempt *a, const void *data, size_t n);
/** It has been read. @param where  it is, for messages @return as above; *ret, and a->earlier
 * unless it is truncated */
bool delivery_attempt_end_manifest(DeliveryAttempt *a, const char *where, EarlierCopy *ret);
/** The object is not what the complete manifest of another plan says: neither may be replaced,
 * since only a person can tell which one is worth something. @return false */
bool delivery_attempt_end_damaged(DeliveryAttempt *a, const char *where);
/** An earlier run succeeded: ended, delivered. Of another plan's bundle the members are compared by
 * their bytes: what it does not have follows in a supplement. Blocking. @return false */
bool delivery_attempt_delivered_before(DeliveryAttempt *a);

/** Writes the manifest through put. @param parts  of the object  @return as manifest_write() */
int delivery_attempt_write_manifest(DeliveryAttempt *a, const BundleWriter *writer,
                                    const Parts *parts,
                                    int (*put)(const void *data, size_t n, void *userdata),
                                    void *userdata);

/** Ended, delivered: the delivery gets the fingerprints of its members. @return false */
bool delivery_attempt_delivered(DeliveryAttempt *a);
