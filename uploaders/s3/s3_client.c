/* One bucket, and the requests to it. A call waits for a connection if its body is large (64 KiB or
 * more, or streamed), for credentials and for the limit on requests; then it is signed and sent,
 * and its answer decides whether it is tried again (s3_response.c).
 *
 *   QUEUED ─► CREDENTIALS ─► SENT ─► ENDED: on_done
 *                 ▲            │
 *                 └─ DELAYED ◄─┘ between tries, or for its turn
 *
 * From answers the client learns the region, the clock's offset, whether the store has conditional
 * writes, wants checksum headers and sends request ids, and how many large requests it bears at
 * once (aimd.c). What an object or a bundle is, is not known here. */
#include "uploaders/s3/s3_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"
#include "lib/http/http.h"
#include "uploaders/aws/aws_parse.h"
#include "uploaders/s3/aimd.h"
#include "uploaders/uploader.h"

#define S3_REGIONS_MAX 3 /* that one call is sent to: its own and two redirects */

struct S3Client {
        sd_event *event;
        Clock *clock;
        Credentials *credentials;
        HttpPool *pool;
        S3ClientOptions options; /* strings are ours */
        S3Location place;
        ListLink calls;      /* S3Call.link, in order of arrival */
        uint64_t asked_usec; /* CLOCK_BOOTTIME: the first of them came, or the last answer */
        unsigned n_large;    /* of them, those that have one of `connections` */
        Aimd aimd;           /* of these */
        uint64_t random;

        /* learned */
        bool has_no_conditions;
        bool has_request_ids;     /* in its answers */
        bool has_checksums;       /* whether requests have x-amz-checksum-… */
        bool needs_connection;    /* for the next request: the last answer was a 5xx */
        int64_t clock_ahead_usec; /* the server's, by the last Date that was received */
        int64_t sign_ahead_usec;  /* taken into account: only after a RequestTimeTooSkewed */

        S3Stats stats;
};

typedef enum CallState {
        CALL_NEW,
        CALL_QUEUED, /* for one of the connections that are for large bodies */
        CALL_CREDENTIALS,
        CALL_SENT,
        CALL_DELAYED, /* between tries, or for its turn in the line of requests */
        CALL_ENDED,
        N_CALL_STATES
} CallState;

/* What may help a request that was refused. Each is tried once a call. */
typedef enum CallRemedy {
        REMEDY_CLOCK = 1U << 0,    /* to sign with the server's clock */
        REMEDY_KEYS = 1U << 1,     /* other credentials */
        REMEDY_CHECKSUM = 1U << 2, /* with x-amz-checksum-…, or without: other than the client */
} CallRemedy;

struct S3Call {
        S3Client *client;
        ListLink link;
        CallState state;
        S3RequestOptions options; /* strings and pairs are ours */
        char payload_hex[SHA256_HEX_SIZE];
        char checksum[DIGEST_BASE64_SIZE(SHA256_SIZE)];

        sd_event_source *timer;
        CredentialsWaiter *waiter;
        HttpCall *http;

        /* of the try underway */
        uint64_t serial; /* of the keys */
        uint64_t signed_usec;
        int64_t signed_ahead_usec; /* what was taken into account of the server's clock */
        char region[64];
        bool has_token;        /* of the line of requests, for the next try … */
        uint64_t token_nsec;   /* … and what it took in it */
        uint64_t started_usec; /* CLOCK_BOOTTIME */

        /* of all tries */
        unsigned n_tries, n_failures;
        unsigned n_redirects;
        unsigned remedies;       /* bits by CallRemedy, that were tried */
        bool has_checksum;       /* x-amz-checksum-…, as far as the operation may have it */
        bool has_delivered_data; /* on_data has received something */
        bool needs_connection;   /* open a new connection: the last one was dead, or answered with a
                                    5xx */

        /* That denies, while the credentials' source is asked whether it has others by now. */
        S3Response denied_answer; /* verdict S3_OK = none */
        unsigned denial_status;
};

typedef enum CallRetry {
        RETRY_NONE,
        RETRY_NOW,
        RETRY_LATER,
        RETRY_WITH_KEYS /* again if the credentials' source has others */
} CallRetry;

/* What is sent, signed. */
typedef struct S3Request {
        const char *method;
        char *url;
        char **headers; /* `Name: value`, NULL-terminated; the session token is among them */
} S3Request;

static int copy_string(const char **to, const char *from) {
        *to = strdup(from ? from : "");
        return *to ? 0 : -ENOMEM;
}

/* The strings of the options, all of them, so that copying and freeing cannot forget one. */
#define N_STRINGS 10
static void option_strings(S3ClientOptions *o, const char **ret[static N_STRINGS]) {
        const char **all[N_STRINGS] = {
                &o->bucket,     &o->region,        &o->endpoint, &o->addressing,
                &o->proxy,      &o->ca_file,       &o->sse,      &o->expected_bucket_owner,
                &o->kms_key_id, &o->storage_class,
        };

        memcpy(ret, all, sizeof all);
}

static int copy_options(S3ClientOptions *to, const S3ClientOptions *from) {
        S3ClientOptions source = *from;
        const char **theirs[N_STRINGS], **ours[N_STRINGS];
        int r = 0;

        *to = *from;
        option_strings(&source, theirs);
        option_strings(to, ours);
        for (size_t i = 0; i < N_STRINGS; i++)
                *ours[i] = NULL;
        to->tags = NULL;
        to->upload = ratelimit_ref(from->upload);
        to->requests = ratelimit_ref(from->requests);
        for (size_t i = 0; i < N_STRINGS && r == 0; i++)
                r = copy_string(ours[i], *theirs[i]);
        to->tags = strings_copy(from->tags);
        return r == 0 && !to->tags ? -ENOMEM : r;
}

static void free_options(S3ClientOptions *o) {
        const char **ours[N_STRINGS];

        option_strings(o, ours);
        for (size_t i = 0; i < N_STRINGS; i++)
                free((char *)*ours[i]);
        strings_free((char **)o->tags);
        ratelimit_unref(o->upload);
        ratelimit_unref(o->requests);
}

static int find_location(const S3Client *c, const char *region, S3Location *ret, char **ret_error) {
        const S3LocationOptions options = {
                .bucket = c->options.bucket,
                .region = region,
                .endpoint = c->options.endpoint,
                .addressing = c->options.addressing[0] ? c->options.addressing : NULL,
                .dualstack = c->options.dualstack,
                .fips = c->options.fips,
        };

        return s3_location_init(ret, &options, ret_error);
}

static int try_now(S3Call *call);
static void s3_client_start_queued(S3Client *c);

bool s3_client_has_conditions(const S3Client *c) {
        return !c->has_no_conditions;
}

bool s3_client_has_checksums(const S3Client *c) {
        return c->has_checksums;
}

bool s3_client_has_request_ids(const S3Client *c) {
        return c->has_request_ids;
}

int64_t s3_client_clock_offset_usec(const S3Client *c) {
        return c->clock_ahead_usec;
}

uint64_t s3_client_now_usec(const S3Client *c) {
        return c->clock->realtime_usec(c->clock) + (uint64_t)c->clock_ahead_usec;
}

const S3Location *s3_client_location(const S3Client *c) {
        return &c->place;
}

const char *s3_client_bucket(const S3Client *c) {
        return c->options.bucket;
}

sd_event *s3_client_event(const S3Client *c) {
        return c->event;
}

Credentials *s3_client_credentials(const S3Client *c) {
        return c->credentials;
}

static int s3_client_change_region(S3Client *c, const char *region) {
        S3Location place;
        int r = find_location(c, region, &place, NULL);

        if (r < 0)
                return r;
        s3_location_done(&c->place);
        c->place = place;
        return 0;
}

/* splitmix64: any seed will do, and tests give their own. */
static uint64_t s3_client_random(S3Client *c) {
        uint64_t z = c->random += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

static void s3_client_update_clock(S3Client *c, const char *http_date, const S3Response *answer) {
        uint64_t theirs;

        if ((http_date && http_date_parse(http_date, &theirs) == 0) ||
            (answer->verdict == S3_SKEWED &&
             aws_time_parse(answer->error.server_time, &theirs) == 0))
                c->clock_ahead_usec = (int64_t)(theirs - c->clock->realtime_usec(c->clock));
}

int s3_verdict_outcome(S3Verdict verdict) {
        switch (verdict) {
        case S3_OK:
                return 0;
        case S3_FULL:
                return UPLOAD_E_FULL;
        case S3_NO_UPLOAD:
        case S3_BAD_PART:
                return UPLOAD_E_STALE;
        case S3_NOT_FOUND:
        case S3_CONFLICT:
        case S3_RETRY:
        case S3_CORRUPTED:
                return UPLOAD_E_UNREACHABLE;
        case S3_UNREACHABLE:
                return UPLOAD_E_NETWORK;
        case S3_SKEWED:
        case S3_REDIRECT:
        case S3_EXPIRED:
        case S3_DENIED:
        case S3_NO_BUCKET:
                return UPLOAD_E_DENIED;
        case S3_EXISTS: /* the request had no condition, or nothing is known of the existing object
                           yet */
        case S3_REFUSED:
        case S3_UNCONDITIONAL:
                return UPLOAD_E_REFUSED;
        }
        return UPLOAD_E_REFUSED;
}

/* A body from here on needs one of the connections for large ones. */
#define LARGE_BYTES (64 * KIB)

static bool is_large(const S3Call *call) {
        return call->options.on_data || call->options.body_bytes >= LARGE_BYTES;
}

/* A store may ask for more time than retry.maximum is; at least so much is granted. */
#define RETRY_AFTER_MAX_USEC (10 * USEC_PER_SEC)
/* ── bytes: what lib/http/http asks ── */

static uint64_t book(uint64_t n, uint64_t *ret_nsec, void *userdata) {
        return ratelimit_book(userdata, n, ret_nsec);
}

static void refund(uint64_t nsec, void *userdata) {
        ratelimit_refund(userdata, nsec);
}

static void discard_savings(void *userdata) {
        ratelimit_discard_savings(userdata);
}

static size_t piece(void *userdata) {
        return ratelimit_piece(userdata);
}

/* ── requests ── */

static uint64_t now_usec(const S3Client *c) {
        return c->clock->boottime_usec(c->clock);
}

static uint64_t s3_call_wait_usec(S3Call *call) {
        S3Client *c = call->client;
        uint64_t now = now_usec(c);

        if (now < c->aimd.not_before_usec)
                return c->aimd.not_before_usec - now;
        if (call->has_token)
                return 0;
        call->has_token = true;
        return ratelimit_book(c->options.requests, 1, &call->token_nsec);
}

/* ── what the store says of it ── */

static bool is_throttling(const S3Response *answer, unsigned status) {
        static const char *const codes[] = { "SlowDown",
                                             "Throttling",
                                             "TooManyRequests",
                                             "RequestLimitExceeded",
                                             "BandwidthLimitExceeded",
                                             "KMS.Throttling" };

        if (answer->verdict != S3_RETRY)
                return false;
        for (size_t i = 0; i < ELEMENTSOF(codes); i++)
                if (strncmp(answer->error.code, codes[i], strlen(codes[i])) == 0)
                        return true;
        return status == 503 || status == 429;
}

static uint64_t s3_call_retry_after_usec(const S3Call *call, const S3Response *answer) {
        const S3ClientOptions *o = &call->client->options;

        return MIN(answer->retry_after_usec, MAX(o->retry_maximum_usec, RETRY_AFTER_MAX_USEC));
}

static void s3_call_adapt_rate(S3Call *call, const S3Response *answer, unsigned status) {
        S3Client *c = call->client;

        if (is_throttling(answer, status))
                aimd_slowed_down(&c->aimd, call->started_usec, now_usec(c));
        else if (answer->verdict == S3_OK && is_large(call))
                aimd_succeeded(&c->aimd);
        if (answer->verdict == S3_RETRY && answer->retry_after_usec > 0)
                aimd_hold(&c->aimd, now_usec(c), s3_call_retry_after_usec(call, answer));
}

/* What was asked how often, and how long it took. */

static S3Stat *find_stat(S3Stats *c, S3Operation operation, unsigned status) {
        for (size_t i = 0; i < c->n; i++)
                if (c->items[i].operation == operation && c->items[i].status == status)
                        return &c->items[i];
        if (array_grow(&c->items, c->n, sizeof *c->items) < 0)
                return NULL; /* a count is not worth a failure */
        c->items[c->n] = (S3Stat){ .operation = operation, .status = status };
        return &c->items[c->n++];
}

static void stats_add(S3Stats *c, S3Operation operation, const HttpReply *reply) {
        S3Stat *stat = find_stat(c, operation, reply->error ? 0 : reply->status);
        double sec = (double)reply->duration_usec / (double)USEC_PER_SEC;

        if (stat)
                stat->n++;
        c->total++;
        c->sum += sec;
        for (size_t i = 0; i < S3_LATENCY_BUCKETS; i++)
                if (sec <= c->le[i]) {
                        c->count[i]++;
                        break;
                }
}

void s3_client_stats(const S3Client *c, S3Stats *ret) {
        *ret = c->stats;
        LIST_FOREACH (link, &c->calls) {
                const S3Call *call = CONTAINER_OF(link, S3Call, link);
                ret->sent_bytes += s3_call_sent_bytes(call);
        }
}

/* What a call keeps of its order: copies, and the body's digest. */

#define LIST_MAX_BYTES (16 * MIB)
#define REPLY_MAX_BYTES (1 * MIB)
static AwsNameValue *copy_pairs(const AwsNameValue *from, size_t n) {
        AwsNameValue *to = calloc(n + 1, sizeof *to);

        for (size_t i = 0; to && i < n; i++) {
                to[i].name = strdup(from[i].name);
                to[i].value = strdup(from[i].value ? from[i].value : "");
        }
        return to;
}

static bool are_complete(const AwsNameValue *pairs, size_t n) {
        for (size_t i = 0; pairs && i < n; i++)
                if (!pairs[i].name || !pairs[i].value)
                        return false;
        return pairs != NULL;
}

static void free_pairs(const AwsNameValue *pairs, size_t n) {
        for (size_t i = 0; pairs && i < n; i++) {
                free((char *)pairs[i].name);
                free((char *)pairs[i].value);
        }
        free((AwsNameValue *)pairs);
}

static int s3_call_copy_request(S3Call *call, const S3RequestOptions *options) {
        S3RequestOptions *o = &call->options;
        uint8_t digest[SHA256_SIZE];

        *o = *options;
        o->key = strdup(options->key ? options->key : "");
        o->queries = copy_pairs(options->queries, options->n_queries);
        o->headers = copy_pairs(options->headers, options->n_headers);
        if (!o->key || !are_complete(o->queries, o->n_queries) ||
            !are_complete(o->headers, o->n_headers))
                return -ENOMEM;
        if (!options->body_sha256)
                sha256_of(options->body ? options->body : "", options->body_bytes, digest);
        else
                memcpy(digest, options->body_sha256, sizeof digest);
        o->body_sha256 = NULL; /* the caller's; its text is kept */
        (void)digest_hex(digest, sizeof digest, call->payload_hex);
        (void)digest_base64(digest, sizeof digest, call->checksum);
        return 0;
}

static size_t s3_call_reply_max_bytes(const S3Call *call) {
        const S3RequestOptions *o = &call->options;
        bool is_list = o->operation == S3_LIST_PARTS || o->operation == S3_LIST_UPLOADS ||
                       o->operation == S3_LIST_OBJECTS;

        return o->reply_max_bytes ? o->reply_max_bytes : is_list ? LIST_MAX_BYTES : REPLY_MAX_BYTES;
}

/* What a call says on the wire: URL, headers, signature. */

#define HEADERS_MAX 32
typedef struct HeaderSet { /* borrowed, but for `tagging` */
        AwsNameValue items[HEADERS_MAX];
        size_t n;
        char *tagging;
        bool overflow;
} HeaderSet;

static void add(HeaderSet *h, const char *name, const char *value) {
        if (!value || !value[0])
                return;
        if (h->n < HEADERS_MAX)
                h->items[h->n++] = (AwsNameValue){ name, value };
        else
                h->overflow = true;
}

/* `a=b&c=d`, escaped as a query is. */
static char *tagging_of(char *const *tags) {
        StrBuf b = STRBUF_INIT;

        for (size_t i = 0; tags && tags[i] && tags[i + 1]; i += 2) {
                strbuf_add(&b, i > 0 ? "&" : "");
                aws_escape(&b, tags[i], false);
                strbuf_add(&b, "=");
                aws_escape(&b, tags[i + 1], false);
        }
        return strbuf_detach(&b);
}

static int add_object_headers(HeaderSet *h, const S3ClientOptions *o) {
        if (strcmp(o->sse, "none") != 0)
                add(h, "x-amz-server-side-encryption", o->sse);
        add(h, "x-amz-server-side-encryption-aws-kms-key-id", o->kms_key_id);
        add(h, "x-amz-storage-class", o->storage_class);
        h->tagging = tagging_of(o->tags);
        if (!h->tagging)
                return -ENOMEM;
        add(h, "x-amz-tagging", h->tagging);
        return 0;
}

static bool may_have_checksum(const S3Call *call) {
        S3Operation o = call->options.operation;

        return o == S3_PUT_OBJECT || o == S3_UPLOAD_PART || o == S3_CREATE_UPLOAD;
}

static int collect_headers(HeaderSet *h, const S3Call *call) {
        const S3ClientOptions *o = &call->client->options;
        const S3RequestOptions *options = &call->options;
        int r = 0;

        add(h, "host", call->client->place.host);
        add(h, "x-amz-expected-bucket-owner", o->expected_bucket_owner);
        /* The object's own checksum, kept by AWS; a bucket with object lock wants one of these
         * headers. */
        if (call->has_checksum && options->operation != S3_CREATE_UPLOAD)
                add(h, "x-amz-checksum-sha256", call->checksum);
        /* No x-amz-checksum-type: of SHA256 there are composite checksums only, AWS takes them for
         * meant, and stores of before 2025 do not know the header. @see Amazon S3 User Guide,
         * "Checking object integrity": types by algorithm */
        if (call->has_checksum && options->operation == S3_CREATE_UPLOAD)
                add(h, "x-amz-checksum-algorithm", "SHA256");
        if (options->is_conditional)
                add(h, "if-none-match", "*");
        if (options->with_object_headers)
                r = add_object_headers(h, o);
        for (size_t i = 0; i < options->n_headers; i++)
                add(h, options->headers[i].name, options->headers[i].value);
        return r < 0 ? r : h->overflow ? -EINVAL : 0;
}

static char *path_of(const S3Call *call) {
        const char *base = call->client->place.base_path, *key = call->options.key;

        if (key[0] == '\0')
                return strdup(base[0] ? base : "/");
        return strbuf_format("%s/%s", base, key);
}

/* @return 0, -ENOMEM */
static int write_lines(S3Request *r, const HeaderSet *h, const AwsNameValue *more, size_t n_more) {
        size_t n = 0;

        r->headers = calloc(h->n + n_more + 1, sizeof *r->headers);
        if (!r->headers)
                return -ENOMEM;
        for (size_t i = 0; i < h->n + n_more; i++) {
                const AwsNameValue *p = i < h->n ? &h->items[i] : &more[i - h->n];

                if (!p->value)
                        continue;
                r->headers[n] = strbuf_format("%s: %s", p->name, p->value);
                if (!r->headers[n++])
                        return -ENOMEM;
        }
        return 0;
}

static void s3_request_done(S3Request *r) {
        for (char **line = r->headers; line && *line; line++) {
                digest_wipe(*line, strlen(*line)); /* the session token is one of them */
                free(*line);
        }
        free(r->headers);
        free(r->url);
        *r = (S3Request){ 0 };
}

static int s3_request_build(S3Request *ret, const S3Call *call, const AwsKeys *keys) {
        const S3Client *c = call->client;
        _cleanup_free_ char *path = path_of(call);
        HeaderSet headers = { .n = 0 };
        S3Request request = { 0 };
        Signature signature = { 0 };
        int r = path ? collect_headers(&headers, call) : -ENOMEM;

        if (r == 0) {
                const SignRequest sign = {
                        .method = s3_operation_method(call->options.operation),
                        .path = path,
                        .queries = call->options.queries,
                        .n_queries = call->options.n_queries,
                        .headers = headers.items,
                        .n_headers = headers.n,
                        .payload = call->payload_hex,
                        .sign_payload_header = true,
                        .region = c->place.region,
                        .service = "s3",
                        .time_usec = call->signed_usec,
                };
                r = sign_v4(&sign, keys, &signature);
        }
        if (r == 0) {
                const AwsNameValue more[] = {
                        { "x-amz-date", signature.amz_date },
                        { "x-amz-content-sha256", call->payload_hex },
                        { "x-amz-security-token", keys->token },
                        { "authorization", signature.authorization },
                };

                request.method = s3_operation_method(call->options.operation);
                request.url = strbuf_format("%s://%s%s%s%s", c->place.scheme, c->place.host,
                                            signature.path, signature.query[0] ? "?" : "",
                                            signature.query);
                r = request.url ? write_lines(&request, &headers, more, ELEMENTSOF(more)) : -ENOMEM;
                signature_done(&signature);
        }
        free(headers.tagging);
        if (r < 0)
                s3_request_done(&request);
        else
                *ret = request;
        return r;
}

/* What an answer means to a call, what the client learns from it, and what is to be done next. */

static void classify_response(S3Call *call, const HttpReply *reply, S3Response *ret) {
        S3Client *c = call->client;
        bool has_id = http_reply_header(reply, "x-amz-request-id") ||
                      http_reply_header(reply, "x-amz-id-2");

        c->has_request_ids |= has_id;
        const S3ResponseInput in = {
                .operation = call->options.operation,
                .is_conditional = call->options.is_conditional,
                .is_foreign = c->has_request_ids && !has_id,
                .http_error = reply->error,
                .http_text = reply->text,
                .status = reply->status,
                .body = reply->body ? reply->body : "",
                .body_bytes = reply->body ? reply->body_bytes : 0,
                .retry_after = http_reply_header(reply, "retry-after"),
                .date = http_reply_header(reply, "date"),
                .now_usec = call->signed_usec,
                .bucket_region = http_reply_header(reply, "x-amz-bucket-region"),
                .has_etag = http_reply_header(reply, "etag"),
                .location = http_reply_header(reply, "location"),
                .request_id = http_reply_header(reply, "x-amz-request-id"),
                .request_id_2 = http_reply_header(reply, "x-amz-id-2"),
                .bucket = c->options.bucket,
                .key = call->options.key,
                .region = call->region,
                .host = c->place.host,
                .credentials_origin = credentials_origin(c->credentials),
                .expected_owner = c->options.expected_bucket_owner,
        };

        if (s3_response_classify(&in, ret) < 0)
                *ret = (S3Response){ .verdict = S3_RETRY };
}

static CallRetry retry_after_failure(S3Call *call) {
        if (call->has_delivered_data || ++call->n_failures >= MAX(call->options.max_tries, 1U))
                return RETRY_NONE;
        return RETRY_LATER;
}

static CallRetry follow_redirect(S3Call *call, const S3Response *answer) {
        S3Client *c = call->client;

        if (strcmp(c->place.region, call->region) != 0)
                return RETRY_NOW; /* another call has learned it meanwhile */
        if (answer->region[0] == '\0')
                return retry_after_failure(
                        call); /* as S3 does for minutes after a bucket was made */
        if (strcmp(answer->region, call->region) == 0 || ++call->n_redirects >= S3_REGIONS_MAX ||
            s3_client_change_region(c, answer->region) < 0)
                return RETRY_NONE;
        log_debug("bucket '%s' is in region '%s', not in '%s'", c->options.bucket, answer->region,
                  call->region);
        return RETRY_NOW;
}

/* @return whether the remedy was not tried yet; from now on it was */
static bool use_remedy(S3Call *call, CallRemedy remedy) {
        bool is_new = !(call->remedies & remedy);

        call->remedies |= remedy;
        return is_new;
}

static CallRetry learn_clock(S3Call *call) {
        S3Client *c = call->client;

        if (call->signed_ahead_usec == c->clock_ahead_usec || !use_remedy(call, REMEDY_CLOCK))
                return RETRY_NONE; /* there was no Date, or it was corrected before */
        c->sign_ahead_usec = c->clock_ahead_usec;
        return RETRY_NOW;
}

/* Keys that are denied may have been replaced at their source, whatever the reason that is given:
 * a wrong secret, a role that lost its permission. How often that is checked is the source's
 * business. */
static CallRetry renew_keys(S3Call *call) {
        if (!use_remedy(call, REMEDY_KEYS))
                return RETRY_NONE;
        return credentials_report_refused(call->client->credentials, call->serial) ? RETRY_WITH_KEYS
                                                                                   : RETRY_NONE;
}

/* Stores that do not know x-amz-checksum-… use codes of their own (B2: InvalidArgument, R2:
 * NotImplemented), so that only another attempt shows whether the header was the reason. */
static CallRetry toggle_checksums(S3Call *call, const S3Response *answer) {
        if (!may_have_checksum(call) || !answer->error.code[0] ||
            !use_remedy(call, REMEDY_CHECKSUM))
                return RETRY_NONE;
        call->has_checksum = !call->has_checksum;
        return RETRY_NOW;
}

/* A request that is also refused without its condition was not refused because of it. */
static void forget_unconditional(const S3Call *call, const S3Response *answer) {
        S3Operation o = call->options.operation;

        if ((o == S3_PUT_OBJECT || o == S3_COMPLETE_UPLOAD) && !call->options.is_conditional &&
            strstr(answer->error.code, "NotImplemented"))
                call->client->has_no_conditions = false;
}

static void learn_from_success(const S3Call *call) {
        S3Client *c = call->client;

        if (!(call->remedies & REMEDY_CHECKSUM) || c->has_checksums == call->has_checksum)
                return;
        c->has_checksums = call->has_checksum;
        c->has_no_conditions = false; /* the 501 may have meant the checksum, not the condition */
        log_debug("bucket '%s': requests %s x-amz-checksum-… from now on", c->options.bucket,
                  c->has_checksums ? "have" : "are without");
}

static CallRetry decide_retry(S3Call *call, S3Response *answer) {
        switch (answer->verdict) {
        case S3_OK:
                learn_from_success(call);
                return RETRY_NONE;
        case S3_REFUSED:
                forget_unconditional(call, answer);
                return toggle_checksums(call, answer);
        case S3_RETRY:
        case S3_CORRUPTED:
        case S3_UNREACHABLE:
                return retry_after_failure(call);
        case S3_SKEWED:
                return learn_clock(call);
        case S3_REDIRECT:
                return follow_redirect(call, answer);
        case S3_EXPIRED:
                answer->verdict = S3_DENIED; /* unless others come */
                return renew_keys(call);
        case S3_DENIED:
                return renew_keys(call);
        case S3_UNCONDITIONAL:
                call->client->has_no_conditions = true;
                return RETRY_NONE;
        default:
                return RETRY_NONE;
        }
}

/* One request: a connection for large bodies, credentials, signature, answer, and again where the
 * answer calls for it.
 *
 *   NEW → (QUEUED → NEW →) (DELAYED →) (CREDENTIALS →) SENT → ENDED
 *          ↑                  │   ↑        ↑           │ │
 *          │                  │   │        └ denied ───┘ │  has the source other keys?
 *          └ slow down ───────┘   └──────────────────────┘ */

/* States */

static bool has_connection(const S3Call *call) {
        return is_large(call) && call->state != CALL_NEW && call->state != CALL_QUEUED &&
               call->state != CALL_ENDED;
}

#define TO(state) (1U << (state))
static const unsigned moves[N_CALL_STATES] = {
        [CALL_NEW] = TO(CALL_QUEUED) | TO(CALL_DELAYED) | TO(CALL_CREDENTIALS) | TO(CALL_SENT) |
                     TO(CALL_ENDED),
        [CALL_QUEUED] = TO(CALL_NEW) | TO(CALL_ENDED),
        [CALL_CREDENTIALS] = TO(CALL_DELAYED) | TO(CALL_SENT) | TO(CALL_ENDED),
        [CALL_SENT] = TO(CALL_SENT) | TO(CALL_CREDENTIALS) | TO(CALL_DELAYED) | TO(CALL_ENDED),
        [CALL_DELAYED] = TO(CALL_QUEUED) | TO(CALL_DELAYED) | TO(CALL_CREDENTIALS) | TO(CALL_SENT) |
                         TO(CALL_ENDED),
        [CALL_ENDED] = TO(CALL_ENDED), /* reported, then freed */
};

static const StateTable call_table = {
        .machine = "S3 call",
        .names =
                (const char *const[]){ "new", "queued", "credentials", "sent", "delayed", "ended" },
        .moves = moves,
        .n_states = N_CALL_STATES,
};

static void set_state(S3Call *call, CallState state) {
        bool had_connection = has_connection(call);

        if (transition_check(&call_table, call->state, state, NULL) < 0)
                return;
        call->state = state;
        call->client->n_large += has_connection(call) - had_connection;
}

static void count_sent(S3Call *call, uint64_t bytes) {
        call->client->stats.sent_bytes += bytes;
        if (call->options.sent_bytes)
                *call->options.sent_bytes += bytes;
}

static S3Call *s3_call_free(S3Call *call) {
        set_state(call, CALL_ENDED);
        list_remove(&call->link);
        sd_event_source_disable_unref(call->timer);
        credentials_waiter_cancel(call->waiter);
        if (call->http)
                count_sent(call, http_call_sent_bytes(call->http));
        if (call->has_token)
                ratelimit_refund(call->client->options.requests, call->token_nsec);
        http_call_cancel(call->http);
        free((char *)call->options.key);
        free_pairs(call->options.queries, call->options.n_queries);
        free_pairs(call->options.headers, call->options.n_headers);
        s3_response_done(&call->denied_answer);
        free(call);
        return NULL;
}

static const char *result_header(const S3Result *r, const char *name) {
        return r->reply ? http_reply_header(r->reply, name) : NULL;
}

/* The one way out: reports, then frees. */
static void finish(S3Call *call, const S3Response *answer, const HttpReply *reply) {
        S3Client *c = call->client;
        const S3Result result = {
                .answer = answer,
                .status = reply ? reply->status : call->denial_status,
                .n_tries = call->n_tries,
                .body = reply && reply->body ? reply->body : "",
                .body_bytes = reply && reply->body ? reply->body_bytes : 0,
                .duration_usec = reply ? reply->duration_usec : 0,
                .header = result_header,
                .reply = reply,
        };

        set_state(call, CALL_ENDED);
        call->options.on_done(&result, call->options.userdata);
        s3_call_free(call);
        s3_client_start_queued(c);
}

/* Ends without an answer of the server's. @param text  copied */
static void finish_unsent(S3Call *call, S3Verdict verdict, const char *text) {
        S3Response answer = { .verdict = verdict, .sentence = strdup(text) };

        finish(call, &answer, NULL);
        s3_response_done(&answer);
}

static void finish_failure(S3Call *call, int r) {
        char text[256];

        (void)snprintf(text, sizeof text, "%s cannot be requested: %s",
                       s3_operation_name(call->options.operation), strerror(-r));
        finish_unsent(call, r == -EINVAL ? S3_REFUSED : S3_RETRY, text);
}

/* Doing it */

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        return try_now(userdata);
}

static int arm(S3Call *call, uint64_t usec) {
        return timer_arm(&call->timer, &(TimerOptions){ .event = call->client->event,
                                                        .usec = usec,
                                                        .slack_usec = 1,
                                                        .handler = on_timer,
                                                        .userdata = call });
}

static void pause_call(S3Call *call, const S3Response *answer) {
        const S3ClientOptions *o = &call->client->options;
        uint64_t wait = backoff_next_usec(MAX(call->n_failures, 1U), o->retry_initial_usec,
                                          o->retry_maximum_usec, s3_client_random(call->client));

        set_state(call, CALL_DELAYED);
        int r = arm(call, MAX(wait, s3_call_retry_after_usec(call, answer)));
        if (r < 0)
                finish_failure(call, r);
}

/* The denial stands. @param error  why the source gave none; NULL = it has no others */
static void finish_denied(S3Call *call, const char *error) {
        const char *denial = call->denied_answer.sentence;
        char *sentence = error ? strbuf_format("%s; and there are no others: %s",
                                               denial ? denial : "the keys are denied", error)
                               : NULL;

        if (sentence) {
                free(call->denied_answer.sentence);
                call->denied_answer.sentence = sentence;
        }
        finish(call, &call->denied_answer, NULL);
}

/* What is held after the source was asked. */
static void on_others(const char *error, void *userdata) {
        S3Call *call = userdata;
        S3Client *c = call->client;

        call->waiter = NULL;
        if (error || credentials_serial(c->credentials) == call->serial)
                return finish_denied(call, error ? error : credentials_error(c->credentials));
        s3_response_done(&call->denied_answer);
        call->denial_status = 0;
        c->stats.n_retries++;
        (void)try_now(call); /* it has reported any error itself */
}

static void request_other_credentials(S3Call *call) {
        set_state(call, CALL_CREDENTIALS);
        if (credentials_fetch(call->client->credentials, &call->waiter, on_others, call) < 0)
                finish_denied(call, NULL);
}

static void on_reply(const HttpReply *reply, void *userdata) {
        S3Call *call = userdata;
        S3Client *c = call->client;
        S3Response answer = { .verdict = S3_RETRY };

        call->http = NULL;
        if (reply->was_kept_dead) {
                call->needs_connection = true;
                count_sent(call, reply->sent_bytes);
                c->stats.n_retries++;
                (void)try_now(call); /* it has reported any error itself */
                return;
        }
        if (reply->status > 0)
                c->asked_usec = c->clock->boottime_usec(c->clock);
        stats_add(&c->stats, call->options.operation, reply);
        count_sent(call, reply->sent_bytes);
        classify_response(call, reply, &answer);
        s3_client_update_clock(c, http_reply_header(reply, "date"), &answer);
        /* Another server behind the same name may work. */
        c->needs_connection = call->needs_connection = reply->status >= 500;
        s3_call_adapt_rate(call, &answer, reply->error ? 0 : reply->status);
        switch (decide_retry(call, &answer)) {
        case RETRY_NONE:
                finish(call, &answer, reply);
                break;
        case RETRY_WITH_KEYS:
                call->denial_status = reply->status;
                call->denied_answer = answer;
                answer = (S3Response){ .verdict = S3_OK };
                request_other_credentials(call);
                break;
        case RETRY_NOW:
                c->stats.n_retries++;
                (void)try_now(call); /* it has reported any error itself */
                break;
        case RETRY_LATER:
                c->stats.n_retries++;
                pause_call(call, &answer);
                break;
        }
        s3_response_done(&answer);
}

static int on_reply_data(HttpCall *http, const void *data, size_t n, void *userdata) {
        S3Call *call = userdata;

        (void)http;
        call->has_delivered_data = true;
        return call->options.on_data(data, n, call->options.userdata);
}

/* @return 0, -errno: not begun */
static int send_now(S3Call *call, const AwsKeys *keys) {
        S3Client *c = call->client;
        S3Request request;

        call->serial = credentials_serial(c->credentials);
        call->signed_ahead_usec = c->sign_ahead_usec;
        call->signed_usec = c->clock->realtime_usec(c->clock) + (uint64_t)c->sign_ahead_usec;
        int r = s3_request_build(&request, call, keys);
        if (r < 0)
                return r;
        (void)snprintf(call->region, sizeof call->region, "%s", c->place.region);
        const HttpRequestOptions http = {
                .method = request.method,
                .url = request.url,
                .headers = (const char *const *)request.headers,
                .body = call->options.body_bytes > 0 ? call->options.body : NULL,
                .body_bytes = call->options.body_bytes,
                .reply_max_bytes = s3_call_reply_max_bytes(call),
                .on_data = call->options.on_data ? on_reply_data : NULL,
                .never_repeat =
                        call->needs_connection || c->needs_connection ||
                        call->options.operation == S3_CREATE_UPLOAD, /* two are two uploads */
                .reports_kept_dead = true, /* a repeat has its turn in the line of requests, too */
                .on_done = on_reply,
                .userdata = call,
        };
        call->has_token = false;
        call->started_usec = now_usec(c);
        r = http_call_new(&call->http, c->pool, &http);
        call->n_tries += r == 0;
        c->needs_connection = c->needs_connection && r < 0;
        s3_request_done(&request);
        return r;
}

static void on_credentials(const char *error, void *userdata) {
        S3Call *call = userdata;

        call->waiter = NULL;
        if (error)
                finish_unsent(call, S3_DENIED, error);
        else
                (void)try_now(call); /* it has reported any error itself */
}

static int request_credentials(S3Call *call) {
        if (call->state == CALL_CREDENTIALS) { /* just fetched, and gone already */
                finish_unsent(call, S3_DENIED,
                              "the credentials expire as soon as they are fetched: check this "
                              "machine's clock and their source");
                return 0;
        }
        set_state(call, CALL_CREDENTIALS);
        return credentials_fetch(call->client->credentials, &call->waiter, on_credentials, call);
}

/* @return whether it waits until others have ended */
static bool lacks_connection(const S3Call *call) {
        unsigned n_large = call->client->n_large, max = call->client->aimd.limit;

        if (!is_large(call))
                return false;
        /* A store that has asked for less meanwhile: who pauses makes room first. */
        return has_connection(call) ? call->state == CALL_DELAYED && n_large > max : n_large >= max;
}

/* One try. The call may be gone when it returns. @return 0 always: nobody else can act on it */
static int try_now(S3Call *call) {
        S3Client *c = call->client;
        AwsKeys keys;
        int r;

        if (lacks_connection(call)) {
                set_state(call, CALL_QUEUED);
                return 0;
        }
        if (call->options.is_conditional && c->has_no_conditions) {
                finish_unsent(call, S3_UNCONDITIONAL, "this store has no conditional writes");
                return 0;
        }
        if (!(call->remedies & REMEDY_CHECKSUM))
                call->has_checksum = may_have_checksum(call) && c->has_checksums;
        uint64_t wait = s3_call_wait_usec(call);
        if (wait > 0) {
                set_state(call, CALL_DELAYED);
                r = arm(call, wait);
        } else if (credentials_peek(c->credentials, &keys)) {
                set_state(call, CALL_SENT);
                r = send_now(call, &keys);
        } else {
                r = request_credentials(call);
        }
        if (r < 0)
                finish_failure(call, r);
        return 0;
}

static void s3_client_start_queued(S3Client *c) {
        unsigned max = c->aimd.limit, n_free = max - MIN(c->n_large, max);

        LIST_FOREACH (link, &c->calls) {
                S3Call *call = CONTAINER_OF(link, S3Call, link);

                if (n_free == 0)
                        break;
                if (call->state != CALL_QUEUED)
                        continue;
                n_free--;
                set_state(call, CALL_NEW);
                if (arm(call, 0) < 0)
                        set_state(call, CALL_QUEUED); /* the next one that ends tries it again */
        }
}

int s3_client_new(S3Client **ret, const S3ClientOptions *options, char **ret_error) {
        _cleanup_(s3_client_freep) S3Client *c = calloc(1, sizeof *c);

        *ret_error = NULL;
        if (!c)
                return -ENOMEM;
        list_init(&c->calls);
        c->stats = (S3Stats){ .le = { 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60 } };
        c->random = options->seed;
        c->clock = options->clock;
        c->credentials = options->credentials;
        c->event = sd_event_ref(options->event);
        int r = copy_options(&c->options, options);
        if (r < 0)
                return r;
        c->has_checksums = !options->omits_checksums;
        c->options.connections = MAX(options->connections, 1U);
        aimd_init(&c->aimd, c->options.connections);
        r = find_location(c, c->options.region, &c->place, ret_error);
        if (r < 0)
                return r;
        /* One more than large bodies may have: a HEAD or an abort never waits behind parts. */
        const HttpRateLimitHooks throttle = { .book = book,
                                              .refund = refund,
                                              .discard_savings = discard_savings,
                                              .piece = piece,
                                              .userdata = c->options.upload };
        const HttpPoolOptions pool = {
                .max_connections = c->options.connections + 1,
                .ca_file = c->options.ca_file,
                .proxy = c->options.proxy,
                .stall_usec = options->request_timeout_usec,
                .throttle = c->options.upload ? &throttle : NULL,
        };
        r = http_pool_new(&c->pool, c->event, &pool);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}

S3Client *s3_client_free(S3Client *c) {
        if (!c)
                return NULL;
        LIST_FOREACH_SAFE (link, &c->calls)
                s3_call_free(CONTAINER_OF(link, S3Call, link));
        http_pool_free(c->pool);
        s3_location_done(&c->place);
        free_options(&c->options);
        free(c->stats.items);
        sd_event_unref(c->event);
        free(c);
        return NULL;
}

int s3_call_new(S3Call **ret, S3Client *c, const S3RequestOptions *options) {
        S3Call *call = calloc(1, sizeof *call);

        if (!call)
                return -ENOMEM;
        call->client = c;
        if (list_is_empty(&c->calls))
                c->asked_usec = c->clock->boottime_usec(c->clock);
        list_append(&c->calls, &call->link);
        int r = s3_call_copy_request(call, options);
        if (r == 0)
                r = arm(call, 0); /* no callback from inside */
        if (r < 0) {
                s3_call_free(call);
                return r;
        }
        if (ret)
                *ret = call;
        return 0;
}

S3Call *s3_call_cancel(S3Call *call) {
        if (!call)
                return NULL;
        S3Client *c = call->client;
        s3_call_free(call);
        s3_client_start_queued(c);
        return NULL;
}

uint64_t s3_call_sent_bytes(const S3Call *call) {
        return call->http ? http_call_sent_bytes(call->http) : 0;
}

uint64_t s3_client_waiting_since_usec(const S3Client *c) {
        return list_is_empty(&c->calls) ? 0 : c->asked_usec;
}

uint64_t s3_client_sending_bytes(const S3Client *c, const uint64_t *counter) {
        uint64_t sum = 0;

        LIST_FOREACH (link, &c->calls) {
                const S3Call *call = CONTAINER_OF(link, S3Call, link);
                sum += call->options.sent_bytes == counter ? s3_call_sent_bytes(call) : 0;
        }
        return sum;
}
