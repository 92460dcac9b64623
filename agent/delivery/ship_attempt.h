/* One attempt at a delivery with one plan: what a bundle for a volume and one for S3 have in common, from the members to the text of the
 * manifest. Blocking: belongs to the worker that runs the delivery. */
#pragma once

#include <jansson.h>

#include "agent/delivery/ship.h"
#include "agent/delivery/ship_members.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/plan.h"
#include "lib/bundle/writer.h"

/* A member that changes while it is read means a new plan; so often, then the bundle goes back to settling. */
#define SHIP_PLANS_MAX 3

typedef struct ShipAttempt {
        ShipJob *s; /* borrowed */
        ShipMembers *members;
        Plan *plan;
        LimitsTurn turn; /* of the worker that reads */
        json_t *reasons; /* why it is not complete */
        uint8_t plan_sha256[SHA256_SIZE];
        char *object_name, *manifest_name; /* `<bundle-id>.tar.zst`, `….manifest.json` */
        uint64_t
                created_usec; /* CLOCK_REALTIME; the manifest's, the same however often it is made */
} ShipAttempt;

/** Finds the members and freezes the plan. @return whether there is anything to ship; false: s has ended */
bool ship_attempt_begin(ShipAttempt *a, ShipJob *s);
void ship_attempt_done(ShipAttempt *a);

/** What the writer is told. */
BundleWriterOptions ship_attempt_writer(ShipAttempt *a, uint64_t memory_bytes);

/** Says how the writer failed. @param r  what it returned, not 0  @param member  that failed, plan_n_members() for none. @return false */
bool ship_attempt_end_writer(ShipAttempt *a, int r, size_t member);

/** Counts the verdicts among the reasons. To be called once, when all members were read. */
void ship_attempt_judge(ShipAttempt *a, const BundleWriter *writer);

/** Is the manifest under this name an earlier run's of this plan?
 * @param where  it is, for messages
 * @return whether it is, and *head; false: it is something else, s has ended */
bool ship_attempt_is_ours(ShipAttempt *a, const char *text, size_t n, const char *where,
                          ManifestHead *head);
/** An earlier run got through: s has ended, delivered. Takes what head owns. @return false */
bool ship_attempt_was_delivered(ShipAttempt *a, ManifestHead *head);

/** Writes the manifest through put. @param parts  of the object. @return as manifest_write() */
int ship_attempt_manifest(ShipAttempt *a, const BundleWriter *writer, const Parts *parts,
                          int (*put)(const void *data, size_t n, void *userdata), void *userdata);

/** The bundle is delivered: s gets the fingerprints of its members. @return false: there is nothing to go on with */
bool ship_attempt_delivered(ShipAttempt *a);
