/* What is done to a bucket besides uploading: can it be written (one question for delivery,
 * every permission by name for `doctor`), and which unfinished multipart uploads does nobody
 * continue. One at a time; the parent frees it one loop turn after on_done. */
#pragma once

#include "uploaders/s3/s3_client.h"

typedef struct S3Probe S3Probe;

typedef struct S3ProbeStep {
        const char *what;       /* `credentials`, `clock`, `bucket`, `PutObject` … static */
        const char *permission; /* `s3:PutObject`; NULL */
        int outcome;            /* 0, UPLOAD_E_* */
        bool is_optional;       /* works without it, worse: detail says how */
        /* What was found (origin of the credentials, offset of the clock) or the sentence of the
         * failure; borrowed. */
        const char *detail;
} S3ProbeStep;

typedef struct S3ProbeOptions { /* strings are copied */
        /* Of the probe object, e.g. `<fixed prefix>/.neuron-collectd-probe-<instance>`: written,
         * looked at, deleted. */
        const char *key;
        const char *list_prefix;
        /* false: HEAD of the bucket or, where that is forbidden, GET of the key (whose answer says
         * what was refused, as HEAD's does not): is anybody there who accepts our credentials?
         * Nothing is written; AccessDenied is a yes, for whoever may only write gets it as well.
         * true: the same, and then everything the agent ever does: PUT, conditional PUT, HEAD, GET,
         * multipart Create, UploadPart, ListParts, ListMultipartUploads, Abort, ListObjects,
         * DELETE. */
        bool thorough;
        void (*on_step)(const S3ProbeStep *step, void *userdata); /* may be NULL */
        /* Once. The first failure that is not optional: UPLOAD_E_*, or -errno of a fault on our
         * side (memory); error is a sentence. 0: none, error is NULL. */
        void (*on_done)(int outcome, const char *error, void *userdata);
        void *userdata;
} S3ProbeOptions;
/** Where the store refuses the keys, the account or the clock, the rest is not asked: the answers
 * would be the same.
 * @param client borrowed: outlives it
 * @return 0 and *ret, -ENOMEM, -errno of the loop's source */
int s3_probe_new(S3Probe **ret, S3Client *client, const S3ProbeOptions *options);
/** Cancels; no callback any more, and what was made stays. Takes NULL, returns NULL. */
S3Probe *s3_probe_free(S3Probe *p);
DEFINE_CLEANUP(S3Probe, s3_probe_free);

typedef struct S3Sweep S3Sweep;

typedef struct S3SweepOptions { /* strings are copied */
        const char *prefix; /* uploads whose key begins with it; with `exact_key` whose key it is */
        bool exact_key;
        /* With exact_key: only this one, whatever its age (nothing is listed). NULL = all but
         * those that is_known. */
        const char *upload_id;

        /* Of the newest part (ListParts), or of the upload when it has none; what has none
         * its time counts as new. 0 = any age. */
        uint64_t min_age_usec;

        /* Somebody continues it: let be. NULL = none is. */
        bool (*is_known)(const char *key, const char *upload_id, void *userdata);

        /* Was aborted. Its age is that of the upload itself when nothing was asked about parts.
         * May be NULL. */
        void (*on_abort)(const char *key, const char *upload_id, uint64_t age_usec, void *userdata);

        /* outcome 0: all that were found are gone (a NoSuchUpload is gone too), error is NULL;
         * UPLOAD_E_*, or -errno of a fault on our side (memory): not all are, error is a sentence
         * that says why */
        void (*on_done)(int outcome, const char *error, unsigned n_aborted, void *userdata);
        void *userdata;
} S3SweepOptions;
/** @param client  borrowed: outlives it
 * @return 0 and *ret, -ENOMEM, -errno of the loop's source */
int s3_sweep_new(S3Sweep **ret, S3Client *client, const S3SweepOptions *options);
/** Cancels; no callback any more. Takes NULL, returns NULL. */
S3Sweep *s3_sweep_free(S3Sweep *s);
DEFINE_CLEANUP(S3Sweep, s3_sweep_free);
