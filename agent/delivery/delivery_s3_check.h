/* Is the bundle in the bucket already? Asks the store for the manifest, and where that is complete,
 * for its object. On the loop; private to this folder. */
#pragma once

#include "agent/delivery/delivery_attempt.h"
#include "uploaders/s3/s3_client.h"
#include "uploaders/s3/s3_endpoint.h"

typedef struct DeliveryS3Check {
        S3Client *client; /* borrowed, as the next ones */
        DeliveryAttempt *attempt;
        const char *key, *manifest_key;
        /** The answer is there. @param continues  false: the delivery has ended */
        void (*on_done)(bool continues, void *userdata);
        void *userdata;

        EarlierCopy earlier; /* what was found */
        /* private */
        S3Call *call;
        bool (*on_answer)(struct DeliveryS3Check *c, const S3Result *result);
        uint64_t manifest_size, manifest_read;
        char manifest_etag[S3_ETAG_SIZE]; /* "" = not usable */
} DeliveryS3Check;

/** Starts to check whether a manifest is there, and reads it: HEAD, whose 404 has no body to wait
 * for, then GET. `earlier` is at most EARLIER_OTHER_PLAN then. @return false: the delivery has
 * ended, and on_done is not called */
bool delivery_s3_check_manifest(DeliveryS3Check *c);
/** The same for the object of that manifest: when it is complete, `earlier` is EARLIER_COMPLETE. */
bool delivery_s3_check_object(DeliveryS3Check *c);
/** The object is not what the manifest of another plan says. @return false: the delivery has ended
 */
bool delivery_s3_check_end_damaged(DeliveryS3Check *c);
/** No on_done any more; what was found is forgotten. */
void delivery_s3_check_cancel(DeliveryS3Check *c);

/** Charges a failure of the bundle to the destination, unless the store's answers have S3's request
 * ids: a portal may answer every request with a page of its own. @return false */
bool delivery_s3_check_charge_failure(Delivery *job, const S3Client *client);
