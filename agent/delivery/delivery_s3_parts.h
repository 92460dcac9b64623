/* Builds the parts of an object and the windows of its manifest for an upload, in memory that is
 * used again. What builds blocks and belongs to the worker of the delivery; while it runs, the loop
 * touches nothing of this. Private to this folder. */
#pragma once

#include "agent/delivery/delivery_attempt.h"
#include "agent/delivery/delivery_s3_ledger.h"

typedef struct PartBuffer PartBuffer;

typedef struct DeliveryS3Parts {        /* all zero: nothing was built */
        DeliveryAttempt *attempt;       /* borrowed */
        const DeliveryS3Ledger *ledger; /* borrowed */
        Packer *packer;
        uint64_t manifest_bytes;
        unsigned number;    /* of the part to be built */
        PartBuffer *built;  /* what is filled; owned */
        PartBuffer *spares; /* of one size; owned */
        bool must_restart;  /* a function has ended the delivery, since the upload that is to be
                               resumed does not match: it starts without it */
} DeliveryS3Parts;

/* Of the functions that return bool, false means that the delivery has ended. */

/* ---- in the worker ---- */

/** Restores the packer from the ledger, or starts with no part. Attempt and ledger are borrowed. */
bool delivery_s3_parts_open(DeliveryS3Parts *p, DeliveryAttempt *attempt,
                            const DeliveryS3Ledger *ledger, uint64_t part_size,
                            uint64_t writer_bytes);
/** Builds the requested part of the object. */
bool delivery_s3_parts_build(DeliveryS3Parts *p);
/** All members were read: collects the verdicts and measures the manifest. */
bool delivery_s3_parts_close(DeliveryS3Parts *p);
/** Builds the requested window of the manifest. */
bool delivery_s3_parts_build_manifest(DeliveryS3Parts *p);

/* ---- on the loop ---- */

/** Provides memory for a part that is to be built then. @param is_manifest  else of the object */
bool delivery_s3_parts_request(DeliveryS3Parts *p, unsigned number, bool is_manifest);
/** @return whether a part was built that was not taken */
bool delivery_s3_parts_has_built(const DeliveryS3Parts *p);
/** @return its row, borrowed; of a part of the object */
const PackedRow *delivery_s3_parts_row(const DeliveryS3Parts *p);
/** @return the part that was built; its release() gives the memory back, so it comes before
 * delivery_s3_parts_release() */
S3Part *delivery_s3_parts_take(DeliveryS3Parts *p);
/** Frees the memory of parts: the upload has ended. */
void delivery_s3_parts_release(DeliveryS3Parts *p);
void delivery_s3_parts_done(DeliveryS3Parts *p);
