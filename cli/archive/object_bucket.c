/* A bucket as a store: requests that block, on an event loop of their own. Objects are read in
 * ranges, several at once, and resumed where an answer broke off. A list is read page by page, and
 * given up when it does not end. Requests, retries and credentials are left to uploaders/s3 and
 * uploaders/aws. */
#include "cli/archive/object_bucket.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/http/http.h"
#include "uploaders/s3/s3_endpoint.h"
#include "uploaders/s3/s3_xml.h"

struct ObjectBucket {
        S3Client *client;
        sd_event *event;
        Credentials *credentials;
};

#define CONNECTIONS 8
#define TURN_USEC (200 * USEC_PER_MSEC) /* a signal is noticed after this long */
#define REQUEST_TIMEOUT_USEC (60 * USEC_PER_SEC)
#define RETRY_INITIAL_USEC (200 * USEC_PER_MSEC)
#define RETRY_MAXIMUM_USEC (5 * USEC_PER_SEC)
#define FALLBACK_REGION                                                                            \
        "us-east-1" /* as in the AWS command line; the answer names the bucket's region */

/* ---- options, configuration, environment ---- */

static const char *set_or_null(const char *text) {
        return text && *text ? text : NULL;
}

static const char *first_set(const char *a, const char *b) {
        return set_or_null(a) ? a : set_or_null(b);
}

/* An option counts before the configuration, and the configuration before the environment. A
 * destination without an endpoint is AWS or that of the environment, as for the agent. */
static S3Environment resolve_environment(const BucketOptions *l) {
        S3Environment environment = s3_environment_read(environ);
        return s3_environment_resolve(&environment,
                                      first_set(l->given->endpoint_url, l->configured->endpoint),
                                      first_set(l->given->ca_bundle, l->configured->ca_file));
}

/* ---- setting up ---- */

static const char *text_or(const char *text, const char *fallback) {
        return text ? text : fallback;
}

/* @param ret_fault  a sentence with -EINVAL and -EOPNOTSUPP, the caller's */
static int bucket_connect(ObjectBucket *s, const BucketOptions *l, char **ret_fault) {
        const ConfigDestination *d = l->configured;
        Clock *clock = clock_system();
        int r = http_global_init();
        if (r == 0)
                r = sd_event_new(&s->event);
        if (r < 0)
                return r;
        S3Environment e = resolve_environment(l);
        CredentialsOptions keys = { .event = s->event,
                                    .clock = clock,
                                    .environment = environ,
                                    .profile = first_set(l->given->profile, d->profile),
                                    .region = first_set(l->given->region, d->region),
                                    .ca_file = e.ca_bundle,
                                    .proxy = d->proxy };
        r = credentials_new(&s->credentials, &keys);
        if (r < 0)
                return r;
        _cleanup_free_ char *region = credentials_region(s->credentials);
        S3ClientOptions options = {
                .event = s->event,
                .clock = clock,
                .credentials = s->credentials,
                .bucket = l->bucket,
                .region = text_or(first_set(keys.region, region), FALLBACK_REGION),
                .endpoint = e.endpoint,
                .addressing = text_or(set_or_null(d->addressing), "auto"),
                .dualstack = e.dualstack,
                .fips = e.fips,
                .ca_file = e.ca_bundle,
                .omits_checksums = e.omits_checksums,
                .proxy = text_or(d->proxy, ""),
                .connections = CONNECTIONS,
                .request_timeout_usec =
                        d->request_timeout_usec ? d->request_timeout_usec : REQUEST_TIMEOUT_USEC,
                .expected_bucket_owner = text_or(d->expected_bucket_owner, ""),
                .sse = text_or(d->sse, ""),
                .kms_key_id = text_or(d->kms_key_id, ""),
                .storage_class = text_or(d->storage_class, ""),
                .tags = d->tags.items,
                .retry_initial_usec = RETRY_INITIAL_USEC,
                .retry_maximum_usec = RETRY_MAXIMUM_USEC,
                .seed = clock->realtime_usec(clock) ^ (uint64_t)getpid(),
        };
        return s3_client_new(&s->client, &options, ret_fault);
}

int object_bucket_open(ObjectBucket **ret, const BucketOptions *options, char **ret_fault) {
        _cleanup_(object_bucket_freep) ObjectBucket *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        int r = bucket_connect(s, options, ret_fault);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

ObjectBucket *object_bucket_free(ObjectBucket *s) {
        if (!s)
                return NULL;
        s3_client_free(s->client);
        credentials_free(s->credentials);
        sd_event_unref(s->event);
        free(s);
        return NULL;
}

int object_bucket_run_once(ObjectBucket *s, uint64_t usec) {
        if (cli_is_interrupted())
                return -EINTR;
        int r = sd_event_run(s->event, usec);
        return r < 0 ? r : 0;
}

int object_bucket_run_until(ObjectBucket *s, const bool *done) {
        int r = 0;
        while (r == 0 && !*done)
                r = object_bucket_run_once(s, TURN_USEC);
        return r;
}

int object_bucket_probe(const ConfigDestination *destination, const S3ProbeOptions *options,
                        const bool *done, char **ret_fault) {
        static const S3Options none;
        _cleanup_(object_bucket_freep) ObjectBucket *s = NULL;
        S3Probe *probe = NULL;
        int r = object_bucket_open(&s, &(BucketOptions){ destination->bucket, &none, destination },
                                   ret_fault);
        if (r == 0)
                r = s3_probe_new(&probe, s->client, options);
        if (r == 0)
                r = object_bucket_run_until(s, done);
        s3_probe_free(probe);
        return r;
}

#define MAX_TRIES 4
#define GROW_BYTES OBJECT_PIECE_BYTES
enum { GET_CONTINUES = 100 }; /* beside OBJECT_E_* */

/* @return OBJECT_E_*, and the server's message */
static int explain_answer(char **sentence, const S3Response *answer) {
        return object_error_set(
                sentence, answer->verdict == S3_NOT_FOUND ? OBJECT_E_NOT_FOUND : OBJECT_E_FAILED,
                "%s", answer->sentence ? answer->sentence : "the request failed");
}

/* ---- answers ---- */

static int on_data(const void *data, size_t n, void *userdata) {
        BucketGet *g = userdata;
        ObjectHead *h = &g->head;
        if (n > h->max_bytes - h->n)
                return g->stopped = -EFBIG;
        if (n >= g->n_allocated - h->n) { /* one more for the NUL */
                size_t more = MIN(h->max_bytes + 1, MAX(2 * g->n_allocated, h->n + n + 1));
                char *grown = realloc(h->text, more);
                if (!grown)
                        return g->stopped = -ENOMEM;
                h->text = grown;
                g->n_allocated = more;
        }
        memcpy(h->text + h->n, data, n);
        h->n += n;
        h->text[h->n] = '\0';
        return 0;
}

#define CONTENT_RANGE_MAX 70 /* three numbers of 64 bits and what is between them */

typedef struct ContentRange {
        uint64_t first, last, total;
} ContentRange;

/* `bytes 0-99/1234` */
static bool parse_content_range(const char *text, ContentRange *ret) {
        static const char unit[] = "bytes ";
        if (!text || strlen(text) > CONTENT_RANGE_MAX || strncmp(text, unit, strlen(unit)) != 0)
                return false;
        const char *at = text + strlen(unit), *end = text + strlen(text);
        return parse_u64_prefix(&at, end, &ret->first) && *at++ == '-' &&
               parse_u64_prefix(&at, end, &ret->last) && *at++ == '/' &&
               parse_u64_prefix(&at, end, &ret->total) && at == end && ret->first <= ret->last &&
               ret->last < ret->total;
}

/* @return whether the answer begins where it was requested, ends within the requested range, and is
 * as long as the server says. It may be shorter: a server need not send all of a range at once. */
static bool is_expected(const BucketGet *g, const ContentRange *range) {
        return range->first == g->offset + g->n_before &&
               range->last - range->first < g->head.max_bytes - g->n_before &&
               range->last - range->first + 1 == g->head.n - g->n_before;
}

static _printf_(2, 3) int fail(BucketGet *g, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *what = strbuf_vformat(fmt, ap);
        va_end(ap);
        return object_error_set(&g->head.error, OBJECT_E_FAILED, "'s3://%s/%s' %s",
                                s3_client_bucket(g->client), g->head.key, what ? what : "");
}

/* Checks the range of a successful answer. @return 0; OBJECT_E_FAILED; GET_CONTINUES: request the
 * rest */
static int check_range(BucketGet *g, const S3Result *result) {
        ObjectHead *h = &g->head;
        ContentRange range;
        uint64_t total = h->n;
        const char *text = result->header(result, "content-range");
        if (result->status == 200 && g->offset + g->n_before > 0) {
                h->n = g->n_before;
                return fail(g, "was sent whole instead of a part: the server ignores ranges");
        }
        if (result->status == 206) {
                if (!parse_content_range(text, &range) || !is_expected(g, &range)) {
                        h->n = g->n_before;
                        return fail(g, "was sent in another range (%s) than requested",
                                    text ? text : "the server does not say which");
                }
                total = range.total;
        }
        if (g->object_bytes && total != g->object_bytes)
                return fail(g, "has %" PRIu64 " bytes, its manifest has %" PRIu64, total,
                            g->object_bytes);
        if (h->n < h->max_bytes && g->offset + h->n < total)
                return GET_CONTINUES;
        return h->n == h->max_bytes || g->may_be_short
                       ? 0
                       : fail(g, "ends after %" PRIu64 " bytes", g->offset + h->n);
}

static bool is_resumable(S3Verdict verdict) {
        return verdict == S3_RETRY || verdict == S3_UNREACHABLE || verdict == S3_CORRUPTED;
}

/* @return 0, OBJECT_E_*, -errno; GET_CONTINUES */
static int check_answer(BucketGet *g, const S3Result *result) {
        const S3Response *answer = result->answer;
        bool can_continue = is_resumable(answer->verdict);
        if (g->stopped == -EFBIG)
                return fail(g, "was sent with more than the requested range");
        if (g->stopped < 0)
                return g->stopped;
        if (answer->verdict == S3_OK) {
                int r = check_range(g, result);
                if (r != GET_CONTINUES)
                        return r;
                can_continue = true;
        } else if (g->head.n == g->head.max_bytes) /* it broke off behind the last byte needed */
                return 0;
        return can_continue && g->head.n > g->n_before ? GET_CONTINUES
                                                       : explain_answer(&g->head.error, answer);
}

static int send_get(BucketGet *g);

static void on_get_done(const S3Result *result, void *userdata) {
        BucketGet *g = userdata;
        g->call = NULL;
        int r = check_answer(g, result);
        if (r == GET_CONTINUES)
                r = send_get(g);
        g->head.outcome = r;
        g->done = r != 0 || !g->call;
}

/* ---- requests ---- */

static int send_get(BucketGet *g) {
        char range[64];
        AwsNameValue header = { "range", range };
        snprintf(range, sizeof range, "bytes=%" PRIu64 "-%" PRIu64, g->offset + g->head.n,
                 g->offset + g->head.max_bytes - 1);
        g->n_before = g->head.n;
        return s3_call_new(&g->call, g->client,
                           &(S3RequestOptions){ .operation = S3_GET_OBJECT,
                                                .key = g->head.key,
                                                .headers = &header,
                                                .n_headers = 1,
                                                .on_data = on_data,
                                                .max_tries = MAX_TRIES,
                                                .on_done = on_get_done,
                                                .userdata = g });
}

int bucket_get_start(BucketGet *g, ObjectBucket *bucket) {
        g->client = bucket->client;
        g->n_allocated = MIN(g->head.max_bytes, (size_t)GROW_BYTES) + 1;
        g->head.text = malloc(g->n_allocated);
        if (!g->head.text)
                return -ENOMEM;
        g->head.text[0] = '\0';
        return send_get(g);
}

void bucket_get_done(BucketGet *g) {
        s3_call_cancel(g->call);
        object_head_done(&g->head);
        *g = (BucketGet){ 0 };
}

#define HEADS_AT_ONCE 16

static int heads_run(ObjectBucket *s, ObjectHead *heads, BucketGet *gets, size_t n) {
        int r = 0;
        for (size_t i = 0, begun = 0; r == 0 && i < n; i++) {
                for (; r == 0 && begun < n && begun < i + HEADS_AT_ONCE; begun++) {
                        gets[begun] = (BucketGet){ .head = heads[begun], .may_be_short = true };
                        r = bucket_get_start(&gets[begun], s);
                }
                if (r == 0)
                        r = object_bucket_run_until(s, &gets[i].done);
                if (r == 0)
                        r = MIN(gets[i].head.outcome, 0);
                if (r < 0)
                        break;
                heads[i] = gets[i].head;
                gets[i].head = (ObjectHead){ 0 };
                if (heads[i].outcome != 0) {
                        free(heads[i].text);
                        heads[i].text = NULL;
                }
        }
        for (size_t k = 0; k < n; k++)
                bucket_get_done(&gets[k]);
        return r;
}

int object_bucket_read_heads(ObjectBucket *s, ObjectHead *heads, size_t n) {
        _cleanup_free_ BucketGet *gets = calloc(MAX(n, (size_t)1), sizeof *gets);
        return gets ? heads_run(s, heads, gets, n) : -ENOMEM;
}

typedef struct BucketRequest { /* one request without a large answer */
        ObjectBucket *store;
        char **error;
        bool done;
        int outcome;
        uint64_t bytes;     /* of HEAD */
        S3ObjectList *list; /* of a page; NULL = HEAD */
} BucketRequest;

static int handle_page(BucketRequest *ask, const S3Result *result) {
        int r = s3_xml_object_list(result->body, result->body_bytes, ask->list);
        return r == -EINVAL
                       ? object_error_set(ask->error, OBJECT_E_FAILED,
                                          "the answer of '%s' to ListObjectsV2 is not S3's XML; is "
                                          "that an S3 server?",
                                          s3_client_location(ask->store->client)->host)
                       : r;
}

static int handle_head(BucketRequest *ask, const S3Result *result) {
        const char *text = result->header(result, "content-length");
        return text && parse_u64(text, &ask->bytes) >= 0
                       ? 0
                       : object_error_set(ask->error, OBJECT_E_FAILED,
                                          "the server does not report its size");
}

static void on_answer(const S3Result *result, void *userdata) {
        BucketRequest *ask = userdata;
        ask->done = true;
        ask->outcome = result->answer->verdict != S3_OK ? explain_answer(ask->error, result->answer)
                       : ask->list                      ? handle_page(ask, result)
                                                        : handle_head(ask, result);
}

static int request_and_wait(BucketRequest *ask, S3RequestOptions *options) {
        S3Call *call;
        options->max_tries = MAX_TRIES;
        options->on_done = on_answer;
        options->userdata = ask;
        int r = s3_call_new(&call, ask->store->client, options);
        if (r == 0)
                r = object_bucket_run_until(ask->store, &ask->done);
        if (r < 0 && !ask->done)
                s3_call_cancel(call);
        return r < 0 ? r : ask->outcome;
}

int object_bucket_stat(ObjectBucket *s, const char *key, uint64_t *ret_bytes, char **error) {
        BucketRequest ask = { .store = s, .error = error };
        int r = request_and_wait(&ask,
                                 &(S3RequestOptions){ .operation = S3_HEAD_OBJECT, .key = key });
        if (r == 0)
                *ret_bytes = ask.bytes;
        return r;
}

#define PAGE_KEYS "1000" /* as many as S3 gives out at once */

/* @param token  of the page before; NULL */
static int request_page(ObjectBucket *s, const ObjectListing *listing, const char *token,
                        S3ObjectList *ret, char **error) {
        const AwsNameValue queries[] = { { "list-type", "2" },
                                         { "max-keys", PAGE_KEYS },
                                         { "encoding-type", "url" },
                                         { "prefix", listing->prefix },
                                         { "continuation-token", token } };
        BucketRequest ask = { .store = s, .error = error, .list = ret };
        return request_and_wait(&ask,
                                &(S3RequestOptions){ .operation = S3_LIST_OBJECTS,
                                                     .queries = queries,
                                                     .n_queries = ELEMENTSOF(queries) - !token });
}

/* Keys come in order (S3 API: ListObjectsV2), so pages without a greater key are a list that
 * repeats itself; a few may be empty. */
#define IDLE_PAGES_MAX 100
#define KEYS_MAX 10000000U /* ten thousand requests */

typedef struct ListProgress {
        char *greatest_key;
        unsigned n_idle_pages;
        uint64_t n_keys;
} ListProgress;

/* @return 0, OBJECT_E_FAILED: this list does not end; -ENOMEM */
static int check_progress(ObjectBucket *s, const S3ObjectList *page, ListProgress *p,
                          char **error) {
        const char *greatest = p->greatest_key;
        for (size_t i = 0; i < page->n; i++)
                if (!greatest || strcmp(page->items[i].key, greatest) > 0)
                        greatest = page->items[i].key;
        p->n_keys += page->n;
        p->n_idle_pages = greatest == p->greatest_key ? p->n_idle_pages + 1 : 0;
        if (p->n_idle_pages >= IDLE_PAGES_MAX)
                return object_error_set(
                        error, OBJECT_E_FAILED,
                        "the list of '%s' does not end: %u pages without a new key; is "
                        "that an S3 server?",
                        s3_client_location(s->client)->host, p->n_idle_pages);
        if (p->n_keys >= KEYS_MAX)
                return object_error_set(error, OBJECT_E_FAILED,
                                        "there are more than %u objects; give a longer prefix",
                                        KEYS_MAX);
        if (greatest == p->greatest_key)
                return 0;
        char *copy = strdup(greatest);
        if (!copy)
                return -ENOMEM;
        free(p->greatest_key);
        p->greatest_key = copy;
        return 0;
}

static int list_pages(ObjectBucket *s, const ObjectListing *listing, ListProgress *progress,
                      char **error) {
        _cleanup_free_ char *token = NULL;
        bool goes_on = true;
        while (goes_on) {
                S3ObjectList page = { 0 };
                int r = request_page(s, listing, token, &page, error);
                for (size_t i = 0; r == 0 && i < page.n; i++)
                        r = listing->on_item(
                                &(ObjectItem){ .owner = OWNER_UNKNOWN,
                                               .key = page.items[i].key,
                                               .bytes = page.items[i].bytes,
                                               .modified_usec = page.items[i].last_modified_usec },
                                listing->userdata);
                goes_on = r == 0 && page.is_truncated;
                if (goes_on && (!page.next_token || (token && strcmp(token, page.next_token) == 0)))
                        r = object_error_set(
                                error, OBJECT_E_FAILED,
                                "the server's list is truncated and has no continuation token");
                else if (goes_on)
                        r = check_progress(s, &page, progress, error);
                free(token);
                token = TAKE_PTR(page.next_token);
                s3_object_list_done(&page);
                if (r != 0)
                        return r;
        }
        return 0;
}

int object_bucket_list(ObjectBucket *s, const ObjectListing *listing, char **error) {
        ListProgress progress = { 0 };
        int r = list_pages(s, listing, &progress, error);
        free(progress.greatest_key);
        return r;
}
