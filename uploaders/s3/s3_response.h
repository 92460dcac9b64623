/* What an answer of S3 means and what a person should do about it. Pure: status, headers, error
 * document in; verdict and sentence out. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "uploaders/s3/s3_xml.h"

typedef enum S3Operation {
        S3_HEAD_BUCKET,
        S3_HEAD_OBJECT,
        S3_GET_OBJECT,
        S3_PUT_OBJECT,
        S3_DELETE_OBJECT,
        S3_CREATE_UPLOAD,
        S3_UPLOAD_PART,
        S3_COMPLETE_UPLOAD,
        S3_ABORT_UPLOAD,
        S3_LIST_PARTS,
        S3_LIST_UPLOADS,
        S3_LIST_OBJECTS,
        N_S3_OPERATIONS
} S3Operation;
/** As AWS calls it, for metrics and messages: `UploadPart`. */
const char *s3_operation_name(S3Operation o);
/** The IAM action that it needs: `s3:PutObject` … */
const char *s3_operation_method(S3Operation o); /* of HTTP */
const char *s3_operation_permission(S3Operation o);

typedef enum S3Verdict {
        S3_OK,
        S3_NOT_FOUND, /* no such key (404, NoSuchKey) */

        /* NoSuchUpload; for operations on an upload any 404 of the store's but NoSuchBucket
         * (radosgw: NoSuchKey) */
        S3_NO_UPLOAD,

        S3_EXISTS,   /* 412: the condition does not hold */
        S3_CONFLICT, /* 409 ConditionalRequestConflict, OperationAborted … : start over */

        /* 5xx, 429, SlowDown, RequestTimeout, a dropped, cut or stalled connection, a 200 with
         * <Error> InternalError, a 200 to Complete that is neither result nor error; and what is
         * not S3's: a 404 or a redirect without <Error> to anything but HEAD, or foreign to HEAD, a
         * 2xx to HEAD or GET of an object without an ETag */
        S3_RETRY,

        S3_SKEWED, /* RequestTimeTooSkewed: learn the offset and continue */

        /* Another region or endpoint: PermanentRedirect, TemporaryRedirect,
         * AuthorizationHeaderMalformed with a region, IllegalLocationConstraintException,
         * 301/307/400 with x-amz-bucket-region. */
        S3_REDIRECT,

        /* ExpiredToken, TokenRefreshRequired, InvalidToken, and a bare 400 to a HEAD: fetch new
         * credentials once, then S3_DENIED */
        S3_EXPIRED,

        /* wrong key, wrong secret, no permission, KMS key refused, account or user suspended,
         * expected owner differs */
        S3_DENIED,

        S3_NO_BUCKET, /* NoSuchBucket, InvalidBucketName; a bare 404 to HeadBucket */
        S3_FULL,      /* QuotaExceeded, InsufficientStorage … */

        /* InvalidPart, InvalidPartOrder, EntityTooSmall on Complete: the ledger and the store
         * differ: start again */
        S3_BAD_PART,

        S3_CORRUPTED,   /* XAmzContentSHA256Mismatch, BadDigest: broken on the way: send again */
        S3_UNREACHABLE, /* name, connection (also one that ended or stalled), TLS, proxy */
        /* any other error, also NotImplemented: the store refuses this request. Whether it accepts
         * others is unknown: see UPLOAD_E_REFUSED */
        S3_REFUSED,

        /* 501 to a request with If-None-Match: the store has no conditional writes: continue
         * without */
        S3_UNCONDITIONAL,
} S3Verdict;

typedef struct S3ResponseInput { /* borrowed; "sentence": only for it, may be NULL */
        S3Operation operation;
        bool is_conditional; /* it had If-None-Match */

        /* Without x-amz-request-id and x-amz-id-2, of which this store's other answers have one:
         * something that stands before the store speaks. (AWS, Ceph 16.2 and Swift 2.30 give an id
         * with each answer, also with 404 to a HEAD.) */
        bool is_foreign;

        int http_error;        /* HTTP_E_*, 0 */
        const char *http_text; /* its sentence */
        unsigned status;       /* 0 = none was received */
        const char *body;      /* also of a 200: Complete may carry an <Error> */
        size_t body_bytes;
        const char *retry_after;   /* header; NULL */
        const char *bucket_region; /* header x-amz-bucket-region; NULL */
        bool has_etag;             /* header */
        const char *location;      /* header; sentence; NULL */
        /* Headers x-amz-request-id and x-amz-id-2, which AWS Support needs; sentence; NULL. */
        const char *request_id, *request_id_2;

        /* Header; NULL. Together with the time that was signed with it tells a skewed clock where
         * a HEAD cannot. A Retry-After that is a date is counted from the first of the two that is
         * told. */
        const char *date;
        uint64_t now_usec; /* CLOCK_REALTIME as signed with; 0 = unknown */

        const char *region;             /* as signed with */
        const char *bucket, *key;       /* sentence; key NULL or "" = the bucket itself */
        const char *host;               /* sentence */
        const char *credentials_origin; /* sentence: `profile 'x' of /root/.aws/credentials` */
        const char *expected_owner;     /* sentence: x-amz-expected-bucket-owner; "" = not sent */
} S3ResponseInput;

typedef struct S3Response {
        S3Verdict verdict;
        AwsError error;            /* as received; code "" when the answer had none (HEAD) */
        uint64_t retry_after_usec; /* 0 = unknown; capped at 5 min */
        char region[64];           /* of S3_REDIRECT: another one than ours; "" = unknown */
        /* it is about who asks (keys, account, clock): any other request gets the same answer */
        bool is_for_all;

        /* For all but S3_OK: what failed on what, the server's code and words, the remedy, and last
         * the ids of the request (see upload_error_is_same()). The caller's; NULL for lack of
         * memory. One line, no full stop, no secret. */
        char *sentence;
} S3Response;

/** Judges. Redirects of HEAD have no body: the header names the region. 403 of a HEAD is S3_DENIED
 * (also what AWS answers for a missing key without s3:ListBucket: the sentence says so), unless
 * the clocks differ. @return 0, -ENOMEM */
int s3_response_classify(const S3ResponseInput *in, S3Response *ret);
void s3_response_done(S3Response *a);
