/* Finds multipart uploads that nobody goes on with, and aborts them. One at a time; the parent frees it one loop turn after on_done. */
#pragma once

#include "uploaders/s3/s3_client.h"

typedef struct S3Sweep S3Sweep;

typedef struct S3SweepOrder { /* strings are copied */
        const char *prefix; /* uploads whose key begins with it; with `exact_key` whose key it is */
        bool exact_key;
        /* With exact_key: only this one, whatever its age (nothing is listed). NULL = all but those that is_known. */
        const char *upload_id;

        /* Of the newest part (ListParts), or of the upload when it has none; what does not tell its time counts as new. 0 = any age. */
        uint64_t min_age_usec;

        /* Somebody goes on with it: let be. NULL = none is. */
        bool (*is_known)(const char *key, const char *upload_id, void *userdata);

        /* Was aborted. Its age is that of the upload itself when nothing was asked about parts. May be NULL. */
        void (*on_abort)(const char *key, const char *upload_id, uint64_t age_usec, void *userdata);

        /* outcome 0: all that were found are gone (a NoSuchUpload is gone too), error is NULL; UPLOAD_E_*, or -errno of a fault on our
         * side (memory): not all are, error is a sentence that says why */
        void (*on_done)(int outcome, const char *error, unsigned n_aborted, void *userdata);
        void *userdata;
} S3SweepOrder;
/** @param client  borrowed: outlives it
 * @return 0 and *ret, -ENOMEM, -errno of the loop's source */
int s3_sweep_new(S3Sweep **ret, S3Client *client, const S3SweepOrder *order);
/** Cancels; no callback any more. Takes NULL, returns NULL. */
S3Sweep *s3_sweep_free(S3Sweep *s);
DEFINE_CLEANUP(S3Sweep, s3_sweep_free);
