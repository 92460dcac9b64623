/* One bucket, and single requests to it: credentials, signature, clock offset, region, and trying
 * again where that is the answer. What an object or a bundle is, is not known here. Used by the
 * agent's loop and, on a loop of its own, by the command line. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "uploaders/aws/aws_sign.h"
#include "uploaders/aws/credentials.h"
#include "uploaders/ratelimit.h"
#include "uploaders/s3/s3_endpoint.h"
#include "uploaders/s3/s3_response.h"

typedef struct S3Client S3Client;
typedef struct S3Call S3Call;

typedef struct S3ClientOptions { /* copied, but for event, clock, credentials */
        sd_event *event;
        Clock *clock;
        Credentials *credentials; /* borrowed: outlives the client */
        const char *bucket, *region, *endpoint, *addressing;
        bool dualstack, fips;
        const char *ca_file, *proxy;       /* "" = defaults */
        unsigned connections;              /* at once; one more is kept for small requests */
        uint64_t request_timeout_usec;     /* no progress for so long = try again */
        const char *expected_bucket_owner; /* "" = not sent */
        /* headers of what is written: */
        const char *sse, *kms_key_id, *storage_class; /* sse "none" or "" = not sent */
        char *const *tags;                            /* key, value, …, NULL; NULL */
        /* x-amz-checksum-… is sent only to a store that demands it, instead of to all but those
         * that refuse it: AWS_REQUEST_CHECKSUM_CALCULATION=when_required */
        bool omits_checksums;
        /* between tries */
        uint64_t retry_initial_usec, retry_maximum_usec;
        uint64_t seed;                /* of the jitter */
        RateLimit *upload, *requests; /* references are taken; NULL = no limit */
} S3ClientOptions;

/** @param ret_error  a sentence with -EINVAL (endpoint, region …), the caller's
 * @return 0, -EINVAL, -ENOMEM, -EOPNOTSUPP */
int s3_client_new(S3Client **ret, const S3ClientOptions *options, char **ret_error);
/** Cancels what is underway; no callback any more. */
S3Client *s3_client_free(S3Client *c);
DEFINE_CLEANUP(S3Client, s3_client_free);

typedef struct S3Result { /* borrowed while on_done runs */
        const S3Response *answer;
        unsigned status;  /* 0 = no answer */
        unsigned n_tries; /* that were sent, also those that clock, region or keys cost */
        const char *body;
        size_t body_bytes;
        uint64_t duration_usec; /* of the last try, without the time in the queue */
        /* Name in lower case; NULL = not there. */
        const char *(*header)(const struct S3Result *r, const char *name);
        const void *reply; /* private */
} S3Result;

/* Strings and queries are copied; body is borrowed until on_done or cancel. */
typedef struct S3RequestOptions {
        S3Operation operation; /* gives the method */
        const char *key;       /* raw; NULL or "" = the bucket itself */
        const AwsNameValue *queries;
        size_t n_queries;

        /* On top of what the client sends (host, date, checksums, owner); all are signed. Without
         * a value: not sent. */
        const AwsNameValue *headers;
        size_t n_headers;

        const void *body;
        size_t body_bytes;
        const uint8_t *body_sha256; /* 32 bytes; NULL: computed here, so only for small bodies */
        bool is_conditional;        /* adds `If-None-Match: *`; see s3_client_has_conditions */
        bool with_object_headers;   /* adds sse, storage class, tags (PUT and Create) */
        size_t reply_max_bytes;     /* 0 = 1 MiB (16 MiB for lists) */

        /* Gets the body of a 2xx piece by piece; then it is tried again only when nothing was
         * handed out yet. Negative stops it. */
        int (*on_data)(const void *data, size_t n, void *userdata);

        /* For S3_RETRY, S3_CORRUPTED and S3_UNREACHABLE; 0 = 1. Learning clock or region, and keys
         * that came after the ones used were refused (once a call), do not count. */
        unsigned max_tries;

        /* Once, never from inside s3_call_new(); the call is gone afterwards. Neither the client
         * nor its credentials may be freed from inside. */
        void (*on_done)(const S3Result *result, void *userdata);
        void *userdata;

        /* What is sent of bodies, all tries, is added to it when each ends; what is under way
         * s3_client_sending_bytes() tells. Borrowed for the call's life; NULL. */
        uint64_t *sent_bytes;
} S3RequestOptions;

/** @return 0, -ENOMEM. @param ret may be NULL */
int s3_call_new(S3Call **ret, S3Client *c, const S3RequestOptions *options);
/** No on_done. Takes NULL, returns NULL. Not from inside the call's own callbacks. */
S3Call *s3_call_cancel(S3Call *call);
uint64_t s3_call_sent_bytes(const S3Call *call); /* of the body, in this try */
/** What calls that add to this counter have sent in the tries that are under way. */
uint64_t s3_client_sending_bytes(const S3Client *c, const uint64_t *counter);

/** Since when it is the store's move: when it last answered, or was asked while nothing else was.
 * Between requests it is the user's, who has no data yet, and the store is not to blame for the
 * time that goes by.
 * @return CLOCK_BOOTTIME; 0: no request is running */
uint64_t s3_client_waiting_since_usec(const S3Client *c);

/** What was learned: false after a 501 to a conditional write (Swift). From then on a conditional
 * order is not sent but ends with S3_UNCONDITIONAL, so that its caller checks before it writes. */
bool s3_client_has_conditions(const S3Client *c);
/** @return whether requests have x-amz-checksum-… headers. When a store refuses a request, the
 * client repeats it once without the headers (Backblaze B2, Cloudflare R2), or with them if it had
 * none. It then keeps the form that the store accepts. */
bool s3_client_has_checksums(const S3Client *c);
/** @return whether any answer had x-amz-request-id or x-amz-id-2. Answers of AWS and of most stores
 * have them, pages of a proxy or portal in front of a store do not. */
bool s3_client_has_request_ids(const S3Client *c);
/** How far the server's clock is ahead of ours, by the last answer (in whole seconds); 0
 * before. */
int64_t s3_client_clock_offset_usec(const S3Client *c);
const S3Location *s3_client_location(const S3Client *c);
const char *s3_client_bucket(const S3Client *c);
sd_event *s3_client_event(const S3Client *c);          /* borrowed */
Credentials *s3_client_credentials(const S3Client *c); /* borrowed */
/** CLOCK_REALTIME by the server's clock, as far as learned. */
uint64_t s3_client_now_usec(const S3Client *c);

/** What a verdict that ends a call means for an upload: 0 or UPLOAD_E_*. */
int s3_verdict_outcome(S3Verdict verdict);

typedef struct S3Stat {
        S3Operation operation;
        unsigned status; /* 0 = no answer */
        uint64_t n;
} S3Stat;
#define S3_LATENCY_BUCKETS 12
typedef struct S3Stats { /* since the client was made; borrowed until the next turn */
        S3Stat *items;
        size_t n;
        uint64_t n_retries;
        uint64_t sent_bytes;           /* request bodies, retries and what is under way included */
        double le[S3_LATENCY_BUCKETS]; /* seconds, upper bounds */
        /* Of answers, those above le[i - 1] and within le[i]: not cumulative. */
        uint64_t count[S3_LATENCY_BUCKETS];
        uint64_t total; /* those above the last bound, too */
        double sum;     /* seconds, of all */
} S3Stats;
void s3_client_stats(const S3Client *c, S3Stats *ret);
