/* What the files of s3_client share. */
#pragma once

#include "lib/base/list.h"
#include "lib/http/http.h"
#include "uploaders/aimd.h"
#include "uploaders/s3/s3_client.h"

#define S3_REGIONS_MAX 3 /* that one call is sent to: its own and two redirects */

typedef struct S3Counts {
        S3Stats stats; /* items point to `items` */
        S3Stat *items;
} S3Counts;

struct S3Client {
        sd_event *event;
        Clock *clock;
        Credentials *credentials;
        HttpPool *pool;
        S3ClientOptions options; /* strings are ours */
        S3Place place;
        ListLink calls;      /* S3Call.link, in order of arrival */
        uint64_t asked_usec; /* CLOCK_BOOTTIME: the first of them came, or the last answer */
        unsigned n_large;    /* of them, those that have one of `connections` */
        Aimd aimd;           /* of these */
        uint64_t random;

        /* learned */
        bool has_no_conditions;
        bool has_request_ids;     /* in its answers */
        int64_t clock_ahead_usec; /* the server's, by the last Date that was heard */
        int64_t sign_ahead_usec;  /* taken into account: only after a RequestTimeTooSkewed */

        S3Counts counts;
};

typedef enum CallState {
        CALL_NEW,
        CALL_QUEUED, /* for one of the connections that are for large bodies */
        CALL_ASKING, /* credentials */
        CALL_SENT,
        CALL_PAUSING, /* between tries, or for its turn in the line of requests */
        CALL_ENDED,
        N_CALL_STATES
} CallState;

struct S3Call {
        S3Client *client;
        ListLink link;
        CallState state;
        S3Order order; /* strings and pairs are ours */
        char payload_hex[SHA256_HEX_SIZE];
        char checksum[DIGEST_BASE64_SIZE(SHA256_SIZE)];
        bool is_large;

        sd_event_source *timer;
        CredentialsWaiter *waiter;
        HttpCall *http;

        /* of the try underway */
        uint64_t serial; /* of the keys */
        uint64_t signed_usec;
        int64_t signed_ahead_usec; /* what was taken into account of the server's clock */
        char region[64];
        bool has_token;      /* of the line of requests, for the next try … */
        uint64_t token_nsec; /* … and what it took in it */
        uint64_t begun_usec; /* CLOCK_BOOTTIME */

        /* of all tries */
        unsigned n_tries, n_failures;
        unsigned n_redirects;
        bool clock_was_learned, keys_were_renewed;
        bool was_handed_out; /* on_data got something */

        /* That denies, while the credentials' source is asked whether it has others by now. */
        S3Answer denial; /* verdict S3_OK = none */
        unsigned denial_status;
};

/* s3_client.c */
void s3_client_heard_date(S3Client *c, const char *http_date);
/** @return 0, -EINVAL, -ENOMEM: the place stays what it was */
int s3_client_move(S3Client *c, const char *region);
uint64_t s3_client_random(S3Client *c);

/* s3_client_call.c */
/** Begins calls that wait for a connection while there is one. */
void s3_client_admit(S3Client *c);
S3Call *s3_call_free(S3Call *call);

/* s3_client_order.c */
/** Copies but for the body, of which the digest is kept. @return 0, -ENOMEM: what was copied is freed with the call */
int s3_call_copy_order(S3Call *call, const S3Order *order);
void s3_call_free_order(S3Call *call);
size_t s3_call_reply_max_bytes(const S3Call *call);

/* s3_client_next.c */
typedef enum CallNext {
        NEXT_END,
        NEXT_AGAIN,
        NEXT_PAUSE,
        NEXT_KEYS /* again if the credentials' source has others */
} CallNext;
/** @param ret  freed by s3_answer_done() */
void s3_call_judge(S3Call *call, const HttpReply *reply, S3Answer *ret);
/** Learns from the answer what holds for all calls: region, clock, conditions. @param answer  its verdict may be changed */
CallNext s3_call_decide(S3Call *call, S3Answer *answer);

/* s3_client_pace.c */
HttpThrottle s3_client_throttle(const S3Client *c);
/** How many calls with large bodies may have a connection now. */
unsigned s3_client_large_max(const S3Client *c);
/** @return how long the next try waits, for the line of requests, in which it has a place from now on, or for what the store asked of all; 0: it may go */
uint64_t s3_call_wait_usec(S3Call *call);
/** The try begins. */
void s3_call_use_token(S3Call *call);
/** There is no next try. */
void s3_call_return_token(S3Call *call);
/** How long its own next try waits at least: what the store asked for, capped at retry_maximum_usec, or at 10 s where that is less. */
uint64_t s3_call_retry_after_usec(const S3Call *call, const S3Answer *answer);
/** Learns from an answer how much the store can bear. */
void s3_call_heard(S3Call *call, const S3Answer *answer, unsigned status);

/* s3_client_request.c: what is sent, signed */
typedef struct S3Request {
        const char *method;
        char *url;
        char **headers; /* `Name: value`, NULL-terminated; the session token is among them */
} S3Request;
/** Signed with call->signed_usec. @return 0, -ENOMEM, -EINVAL */
int s3_request_make(S3Request *ret, const S3Call *call, const AwsKeys *keys);
void s3_request_done(S3Request *r);

/* s3_client_stats.c */
void s3_counts_init(S3Counts *c);
void s3_counts_done(S3Counts *c);
void s3_counts_add(S3Counts *c, S3Operation operation, const HttpReply *reply);
