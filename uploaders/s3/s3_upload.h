/* Uploads one object to S3, in parts that the caller makes: a single PUT when it ends within the
 * first part, else Create → parts in parallel → HEAD → Complete. The write that makes the object
 * visible has the condition that the key is free, unless is_overwrite is set; a store without
 * conditional writes is asked by HEAD first. After it, HEAD proves the object, unless
 * trusts_response is set.
 *
 * An upload that was interrupted is resumed from the caller's ledger. The machine stores nothing:
 * it calls back with what must become durable, and continues when it is. */
#pragma once

#include "lib/base/digest.h"
#include "uploaders/s3/s3_client.h"
#include "uploaders/uploader.h"

#define S3_PARTS_MAX 10000
/* SHA-256 of the frozen plan, hex (manifests too: of their bundle's) */
#define S3_PLAN_HEADER "x-amz-meta-neuron-collectd-plan"
/* SHA-256 of the body, hex, of what came in a single PUT: one plan may be packed into other bytes
 * of the same number */
#define S3_SHA256_HEADER "x-amz-meta-neuron-collectd-sha256"

typedef struct S3Upload S3Upload;

/* Handed over by s3_upload_add_part(); release() is called when it is not needed any more. */
typedef struct S3Part {
        unsigned number; /* from 1, in order */
        const void *data;
        size_t bytes;
        uint8_t sha256[SHA256_SIZE];
        bool is_last;
        void (*release)(struct S3Part *part); /* frees data and part */
} S3Part;

typedef struct S3KnownPart { /* from the ledger */
        unsigned number;
        uint64_t bytes;
        char etag[S3_ETAG_SIZE];     /* "" = not known to have arrived */
        uint8_t sha256[SHA256_SIZE]; /* for Complete; all zero = not known, which AWS refuses there
                                      */
        bool is_last;
} S3KnownPart;

typedef enum S3Proof { S3_PROOF_NONE, S3_PROOF_HEAD, S3_PROOF_RESPONSE } S3Proof;

typedef struct S3UploadResult { /* borrowed while on_done runs */
        /* 0 or UPLOAD_E_*; UPLOAD_E_SAME: an object of this plan and size (and of a single PUT's
         * bytes) is there. -errno of a callback as it came */
        int outcome;
        const char *error; /* a sentence for all but 0 and UPLOAD_E_SAME */
        S3Proof proof;     /* HEAD forbidden: the answer of PUT or Complete is the proof */
        uint64_t bytes;
        const char *etag;
        /* Uploads of this key that nobody continues may be on the server, whatever the outcome:
         * an abort failed, or Create took more than one try, and one before the last may have been
         * carried out. s3_sweep finds them; the caller's own one may be among those that are
         * there. */
        bool may_have_orphans;
        bool may_be_visible; /* whatever the outcome: an answer to PUT or Complete was lost */
} S3UploadResult;

typedef struct S3UploadOptions { /* strings and parts are copied */
        const char *key;
        const char *content_type;
        const char *plan_hex;
        unsigned max_parts_in_flight; /* at least 1 */
        /* an object of another plan under this key is none of a bundle (no manifest): put ours in
         * its place */
        bool may_replace;

        /* NULL = none. Before what is there is replaced by may_replace, this key (the bundle's
         * manifest) is asked for by HEAD. Not there, or there with this plan: ours is put in its
         * place. There with anything else, or not readable: UPLOAD_E_EXISTS. No answer:
         * UPLOAD_E_UNREACHABLE. */
        const char *guard_key;
        /* What has the key is known to be ours to replace: written without a condition from the
         * start, and never UPLOAD_E_SAME. */
        bool is_overwrite;
        /* The answer to a single PUT, with the ETag of what was signed by its SHA-256 and S3's
         * request id, is the proof: no HEAD. */
        bool trusts_response;

        /* To continue an upload: its id and all parts that the ledger knows, in order from 1. A
         * part without an ETag is sent again, whatever ListParts says of it, for nobody knows what
         * arrived. A part with an ETag that ListParts does not have any more, or with another ETag
         * or size → UPLOAD_E_STALE. Where listing is forbidden the ledger is believed, and
         * Complete tells. */
        const char *upload_id;
        const S3KnownPart *parts;
        size_t n_parts;

        /* All on the loop, none from inside s3_upload_new(). */
        /* The part with this number is wanted: give it by s3_upload_add_part() now or later. In
         * order; after a resume first those without an ETag, then the next ones. Not called before
         * the one asked for has been given, nor while max_parts_in_flight of them are on their way,
         * nor after the last one. */
        void (*on_part_needed)(S3Upload *u, unsigned number, void *userdata);
        /* Must be durable when it returns 0. -errno ends the upload with it (nothing is
         * aborted). The two that follow may be NULL. */
        int (*on_begin)(S3Upload *u, void *userdata); /* before CreateMultipartUpload */
        int (*on_upload_id)(S3Upload *u, const char *upload_id, void *userdata);
        int (*on_etag)(S3Upload *u, unsigned number, const char *etag, void *userdata);
        /* Once; the parent frees it afterwards, one loop turn later at the earliest. */
        void (*on_done)(const S3UploadResult *result, void *userdata);
        void *userdata;

        uint64_t *sent_bytes; /* as in S3RequestOptions, of all its requests; NULL */
} S3UploadOptions;

/** @param client borrowed: outlives it
 * @return 0 and *ret, -ENOMEM, -EINVAL when `parts` are not numbered 1, 2 … or are too many,
 *   -errno of the loop's source */
int s3_upload_new(S3Upload **ret, S3Client *client, const S3UploadOptions *options);
/** A wanted part. The upload owns it from here on, also when it fails. */
void s3_upload_add_part(S3Upload *u, S3Part *part);
/** Asks for no further part; when those that were asked for have arrived it ends with
 * UPLOAD_E_PAUSED, and can be resumed. When none is missing any more it ends as ever. Not
 * from inside a callback. */
void s3_upload_pause(S3Upload *u);
/** Stops: requests are cancelled, parts released, nothing is aborted on the server; no callback
 * any more. Takes NULL, returns NULL. */
S3Upload *s3_upload_free(S3Upload *u);
DEFINE_CLEANUP(S3Upload, s3_upload_free);
/** @return whether the object may be visible already: the request that makes it visible was sent,
 * or the guard key is being checked */
bool s3_upload_may_be_visible(const S3Upload *u);
/** Of the object, on the server or on the way there (for progress). */
uint64_t s3_upload_sent_bytes(const S3Upload *u);
