/* A bucket as a store of objects; for object_store.c and object_reader.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/archive/object.h"
#include "config/config.h"
#include "uploaders/s3/s3_bucket.h"
#include "uploaders/s3/s3_client.h"

typedef struct ObjectBucket ObjectBucket;

/* Where a bucket is, from the options, the configured destination, and the environment. */
typedef struct BucketOptions { /* borrowed */
        const char *bucket;
        const S3Options *given;
        const ConfigDestination *configured; /* without one, every string in it is NULL */
} BucketOptions;

/** @param ret_fault  a sentence with -EINVAL and -EOPNOTSUPP, the caller's */
int object_bucket_open(ObjectBucket **ret, const BucketOptions *options, char **ret_fault);
ObjectBucket *object_bucket_free(ObjectBucket *s);
DEFINE_CLEANUP(ObjectBucket, object_bucket_free);

/** Runs the loop once. @return 0, -EINTR when cli_is_interrupted(), -errno */
int object_bucket_run_once(ObjectBucket *s, uint64_t usec);
/** Runs it until *done. @return as above */
int object_bucket_run_until(ObjectBucket *s, const bool *done);

/* As the functions of object_store.h. @param error  the sentence of OBJECT_E_* replaces this one */

int object_bucket_stat(ObjectBucket *s, const char *key, uint64_t *ret_bytes, char **error);
int object_bucket_read_heads(ObjectBucket *s, ObjectHead *heads, size_t n);
int object_bucket_list(ObjectBucket *s, const ObjectListing *listing, char **error);

/** Probes a configured destination until *done. @param ret_fault  a sentence, or NULL; the caller's
 * @return 0, -EINTR when cli_is_interrupted(), -errno */
int object_bucket_probe(const ConfigDestination *destination, const S3ProbeOptions *options,
                        const bool *done, char **ret_fault);

/* ---- a part of an object, in memory ---- */

typedef struct BucketGet {
        /* set before bucket_get_start() and left alone */
        ObjectHead head;       /* what is filled in: text, n, outcome, error */
        uint64_t offset;       /* in the object: head.max_bytes from here on */
        bool may_be_short;     /* the object may end before */
        uint64_t object_bytes; /* how large the object must be; 0 = whatever it is */

        bool done;

        /* private */
        S3Client *client;
        S3Call *call;
        size_t n_allocated, n_before; /* n_before: when this try began */
        int stopped;                  /* why on_data() ended it: -errno */
} BucketGet;

/** Starts the request, whose end is g->done. @return 0, -ENOMEM, -errno */
int bucket_get_start(BucketGet *g, ObjectBucket *bucket);
/** Cancels it when it is on its way, frees what came, and zeroes it. */
void bucket_get_done(BucketGet *g);
