/* One attempt of a delivery with one plan, from the members to the text of the manifest. Blocking,
 * but for reading the manifest that is there: it belongs to the worker of the delivery. Private to
 * this folder. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/delivery/delivery.h"
#include "agent/delivery/delivery_members.h"
#include "agent/delivery/rate_limits.h"
#include "lib/base/digest.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/packer.h"
#include "lib/bundle/plan.h"

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
/** The manifest was read to its end. @param where  its path or URL, for messages @return as above;
 * *ret, and a->earlier unless it is truncated */
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
