/* Two machines on one bucket, each with one request at a time.
 *
 * The probe either asks whether the bucket is there and accepts us, or makes each request that the
 * agent ever makes, one after the other by the table `steps`, and deletes what it made. A step that
 * fails and has a text `without` is optional. The sweep lists unfinished multipart uploads, and
 * aborts those that are old enough and that is_known() does not claim. When to probe or sweep, and
 * what follows, is left to agent/delivery and `doctor`. */
#include "uploaders/s3/s3_bucket.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "uploaders/uploader.h"

#define PROBE_TRIES 2
/* Date has whole seconds, and answers take time. */
#define CLOCK_AGREES_USEC (3 * (int64_t)USEC_PER_SEC)

static const char probe_body[] = "neuron-collectd checks whether it may write here\n";

typedef enum ProbeNeed {
        NEEDS_NOTHING,
        NEEDS_OBJECT,
        NEEDS_UPLOAD
} ProbeNeed; /* made by the probe before */

typedef struct ProbeOptions {
        S3Operation operation;
        const char *what; /* NULL = the operation's name */
        ProbeNeed needs;
        const char *without; /* what is worse when it is not permitted; NULL = nothing works */
} ProbeOptions;

enum { STEP_HEAD_BUCKET, STEP_GET_KEY, STEP_PUT, STEP_PUT_CONDITIONAL, STEP_OTHERS };

/* clang-format off */
static const ProbeOptions steps[] = {
        [STEP_HEAD_BUCKET]    = { S3_HEAD_BUCKET, "bucket", NEEDS_NOTHING,
                            "a bucket that is missing is noticed only when something is written" },
        /* after a HEAD that was denied, whose answer does not name what was denied */
        [STEP_GET_KEY]       = { S3_GET_OBJECT, "bucket", NEEDS_NOTHING, NULL },
        [STEP_PUT]       = { S3_PUT_OBJECT, NULL, NEEDS_NOTHING, NULL },
        [STEP_PUT_CONDITIONAL] = { S3_PUT_OBJECT, "conditional writes", NEEDS_OBJECT,
                            "a name is checked before it is written, which two writers at the same moment can defeat" },
        [STEP_OTHERS]    = { S3_HEAD_OBJECT, NULL, NEEDS_OBJECT,
                            "the answer to the write is the only proof of delivery" },
        { S3_GET_OBJECT, NULL, NEEDS_OBJECT, "`neuron-collect get` and `verify` cannot read what was delivered" },
        { S3_CREATE_UPLOAD, NULL, NEEDS_NOTHING, NULL },
        { S3_UPLOAD_PART, NULL, NEEDS_UPLOAD, NULL },
        { S3_LIST_PARTS, NULL, NEEDS_UPLOAD,
          "interrupted uploads resume by the local ledger only, and orphans are not aborted" },
        { S3_LIST_UPLOADS, NULL, NEEDS_NOTHING,
          "uploads abandoned by a crash are not found: have a lifecycle rule abort them" },
        { S3_ABORT_UPLOAD, NULL, NEEDS_UPLOAD,
          "abandoned uploads remain and cost money: have a lifecycle rule abort them" },
        { S3_LIST_OBJECTS, NULL, NEEDS_NOTHING, "`neuron-collect ls` cannot list the bucket" },
        { S3_DELETE_OBJECT, NULL, NEEDS_OBJECT, "the object that the probe has written remains" },
};

/* clang-format on */

typedef enum ProbeObject { /* under the probe's key */
                           PROBE_OBJECT_NONE,
                           PROBE_OBJECT_WRITTEN, /* or perhaps: a write has not been answered */
                           PROBE_OBJECT_EARLIER, /* left by a probe that was cut, perhaps with
                                                    another content */
} ProbeObject;

struct S3Probe {
        S3Client *client;
        S3ProbeOptions options; /* strings are ours */
        CredentialsWaiter *waiter;
        S3Call *call;

        size_t at; /* in steps[] */
        ProbeObject object;
        /* the store is away, there is no bucket, or we are refused altogether */
        bool is_cleaning_up;
        bool has_clock_sentence;
        bool bucket_was_denied;
        char *bucket_denial;               /* the sentence */
        char upload_id[S3_UPLOAD_ID_SIZE]; /* "" = there is none */

        int outcome;
        char *error;
};

/* Telling */

/* @param error  NULL = there was no memory for it */
static const char *explain(int outcome, const char *error) {
        if (outcome == 0 || error)
                return outcome == 0 ? NULL : error;
        return strerror(outcome < 0 ? -outcome : ENOMEM);
}

static void finish_probe(S3Probe *p) {
        p->options.on_done(p->outcome, explain(p->outcome, p->error), p->options.userdata);
}

static bool is_optional(const S3Probe *p, const S3Response *answer);
static void start_next_request(S3Probe *p);

static void report_step(S3Probe *p, const S3ProbeStep *step) {
        if (step->outcome != 0 && !step->is_optional && p->outcome == 0) {
                p->outcome = step->outcome;
                p->error = strdup(step->detail);
        }
        if (p->options.on_step)
                p->options.on_step(step, p->options.userdata);
}

static void report_clock(S3Probe *p) {
        int64_t ahead = s3_client_clock_offset_usec(p->client);
        uint64_t by = (uint64_t)(ahead < 0 ? -ahead : ahead);
        char detail[160], span[CLOCK_ISO_SIZE];

        p->has_clock_sentence = true;
        if (by <= (uint64_t)CLOCK_AGREES_USEC)
                (void)snprintf(detail, sizeof detail, "agrees with the server's");
        else
                (void)snprintf(detail, sizeof detail,
                               "the server's is %s %s, which is allowed for in signatures; set "
                               "this machine's clock",
                               clock_format_duration(span, by / USEC_PER_SEC * USEC_PER_SEC),
                               ahead < 0 ? "behind" : "ahead");
        report_step(p, &(S3ProbeStep){ .what = "clock", .detail = detail });
}

static void report_credentials(S3Probe *p, const char *error) {
        Credentials *c = s3_client_credentials(p->client);
        uint64_t expire = credentials_expire_usec(c);
        char detail[512], iso[CLOCK_ISO_SIZE];

        if (error)
                (void)snprintf(detail, sizeof detail, "%s", error);
        else if (expire)
                (void)snprintf(detail, sizeof detail, "%s, until %s", credentials_origin(c),
                               clock_format_iso(iso, expire));
        else
                (void)snprintf(detail, sizeof detail, "%s", credentials_origin(c));
        report_step(p, &(S3ProbeStep){ .what = "credentials",
                                       .outcome = error ? UPLOAD_E_DENIED : 0,
                                       .detail = detail });
}

/* What an answer means here */

static int outcome_of(const S3Probe *p, const S3Response *answer) {
        S3Verdict v = answer->verdict;

        switch (p->at) {
        /* only our own existence is asked for: whoever may write only gets AccessDenied */
        case STEP_GET_KEY:
                if (v == S3_NOT_FOUND || strcmp(answer->error.code, "AccessDenied") == 0)
                        return 0;
                break;
        case STEP_PUT:
                if (v == S3_EXISTS) /* left by a probe that was cut */
                        return 0;
                break;
        case STEP_PUT_CONDITIONAL:
                if (v == S3_EXISTS)
                        return 0;
                if (v == S3_OK || v == S3_UNCONDITIONAL)
                        return UPLOAD_E_REFUSED;
                break;
        default:
                if (v == S3_NOT_FOUND)
                        return steps[p->at].operation == S3_DELETE_OBJECT ? 0 : UPLOAD_E_MISMATCH;
                break;
        }
        return s3_verdict_outcome(v);
}

static bool is_optional(const S3Probe *p, const S3Response *answer) {
        S3Verdict v = answer->verdict;

        if (!steps[p->at].without)
                return false;
        if (answer->is_for_all)
                return false;
        return v == S3_DENIED || v == S3_REFUSED ||
               (p->at == STEP_PUT_CONDITIONAL && v != S3_NO_BUCKET);
}

static void report_request(S3Probe *p, const S3Response *answer) {
        const ProbeOptions *ask = &steps[p->at];
        int outcome = outcome_of(p, answer);
        bool is_away = outcome == UPLOAD_E_UNREACHABLE || outcome == UPLOAD_E_NETWORK;
        bool optional = outcome != 0 && !is_away && is_optional(p, answer);
        StrBuf detail = STRBUF_INIT;

        if (outcome != 0 && p->at == STEP_PUT_CONDITIONAL && optional)
                strbuf_add(&detail, s3_client_has_conditions(p->client)
                                            ? "`If-None-Match: *` is ignored"
                                            : "the store has none");
        else if (outcome != 0)
                strbuf_add(&detail, answer->sentence ? answer->sentence : "it failed");
        if (optional)
                strbuf_addf(&detail, "; without it %s", ask->without);
        _cleanup_free_ char *text = strbuf_detach(&detail);
        report_step(p, &(S3ProbeStep){
                               .what = ask->what ? ask->what : s3_operation_name(ask->operation),
                               .permission = p->at == STEP_PUT_CONDITIONAL || answer->is_for_all
                                                     ? NULL
                                                     : s3_operation_permission(ask->operation),
                               .outcome = outcome,
                               .is_optional = optional,
                               .detail = text ? text : "",
                       });
        if (is_away || answer->verdict == S3_NO_BUCKET || (outcome != 0 && answer->is_for_all))
                p->is_cleaning_up = true;
}

/* After this no other answer of the server is used. */
static void report_contradiction(S3Probe *p, const char *sentence) {
        const ProbeOptions *ask = &steps[p->at];

        report_step(p, &(S3ProbeStep){ .what = ask->what ? ask->what
                                                         : s3_operation_name(ask->operation),
                                       .outcome = UPLOAD_E_MISMATCH,
                                       .detail = sentence });
        p->is_cleaning_up = true;
}

/* It was the permission that HEAD lacks, and nothing that concerns all. */
static void report_bucket_denial(S3Probe *p) {
        p->at = STEP_HEAD_BUCKET;
        report_request(p, &(S3Response){ .verdict = S3_DENIED, .sentence = p->bucket_denial });
        p->at = STEP_GET_KEY;
}

static void record_created(S3Probe *p, const S3Result *result) {
        S3Verdict v = result->answer->verdict;

        switch (steps[p->at].operation) {
        case S3_PUT_OBJECT:
                if (p->object != PROBE_OBJECT_NONE)
                        break; /* the conditional write, which finds what the first one wrote */
                if (v == S3_EXISTS)
                        p->object = PROBE_OBJECT_EARLIER;
                else if (v == S3_OK || v == S3_RETRY || v == S3_UNREACHABLE)
                        p->object = PROBE_OBJECT_WRITTEN;
                break;
        case S3_CREATE_UPLOAD:
                if (v == S3_OK)
                        (void)s3_xml_upload_id(result->body, result->body_bytes,
                                               p->upload_id); /* stays "" when it has none */
                break;
        case S3_ABORT_UPLOAD:
                p->upload_id[0] = '\0';
                break;
        default:
                break;
        }
}

/* Compares what is read with what was written: a proxy or a web server may answer every request
 * with 200 and a page of its own. */

static bool is_probe_body(const S3Result *result) {
        return result->body_bytes == strlen(probe_body) &&
               memcmp(result->body, probe_body, strlen(probe_body)) == 0;
}

static bool is_probe_length(const S3Result *result) {
        uint64_t bytes;
        const char *length = result->header(result, "content-length");

        return !length || (parse_u64(length, &bytes) >= 0 && bytes == strlen(probe_body));
}

/* @return 0, -EINVAL, -ENOMEM */
static int check_list(S3Operation operation, const S3Result *result) {
        S3ObjectList objects = { 0 };
        S3UploadList uploads = { 0 };
        S3PartList parts = { 0 };
        int r = operation == S3_LIST_OBJECTS
                        ? s3_xml_object_list(result->body, result->body_bytes, &objects)
                : operation == S3_LIST_UPLOADS
                        ? s3_xml_upload_list(result->body, result->body_bytes, &uploads)
                        : s3_xml_part_list(result->body, result->body_bytes, &parts);

        s3_object_list_done(&objects);
        s3_upload_list_done(&uploads);
        s3_part_list_done(&parts);
        return r;
}

/* @return what shows that a 200 was not true, a sentence; NULL: nothing does */
static const char *find_contradiction(const S3Probe *p, const S3Result *result) {
        if (result->answer->verdict != S3_OK || !p->options.thorough)
                return NULL;
        switch (steps[p->at].operation) {
        case S3_GET_OBJECT:
                if (p->at != STEP_GET_KEY && p->object != PROBE_OBJECT_EARLIER &&
                    !is_probe_body(result))
                        return "the server answers 200, but what is read is not what was written; "
                               "is `endpoint` that of an S3 server?";
                break;
        case S3_HEAD_OBJECT:
                if (p->object != PROBE_OBJECT_EARLIER && !is_probe_length(result))
                        return "the server answers 200, but its object has another size than what "
                               "was written; is `endpoint` that of an S3 server?";
                break;
        case S3_CREATE_UPLOAD:
                if (!p->upload_id[0])
                        return "the server answers 200 without an upload id; is `endpoint` that "
                               "of an S3 server?";
                break;
        case S3_LIST_PARTS:
        case S3_LIST_UPLOADS:
        case S3_LIST_OBJECTS:
                if (check_list(steps[p->at].operation, result) == -EINVAL)
                        return "the server answers 200, but not with a list of S3; is `endpoint` "
                               "that of an S3 server?";
                break;
        default:
                break;
        }
        return NULL;
}

/* Asking */

static void on_probe_response(const S3Result *result, void *userdata) {
        S3Probe *p = userdata;
        S3Verdict v = result->answer->verdict;

        p->call = NULL;
        record_created(p, result);
        if (result->status != 0 && !p->has_clock_sentence)
                report_clock(p);
        if (p->at == STEP_PUT && v == S3_UNCONDITIONAL)
                return start_next_request(p); /* known now: the same again, without condition */
        if (p->at == STEP_HEAD_BUCKET && v == S3_DENIED) {
                p->bucket_was_denied = true;
                p->bucket_denial =
                        result->answer->sentence ? strdup(result->answer->sentence) : NULL;
                p->at = STEP_GET_KEY;
                return start_next_request(p);
        }
        const char *contradiction = find_contradiction(p, result);
        if (contradiction)
                report_contradiction(p, contradiction);
        else if (p->options.thorough && p->at == STEP_GET_KEY && outcome_of(p, result->answer) == 0)
                report_bucket_denial(p);
        else
                report_request(p, result->answer);
        p->at++;
        if (p->options.thorough)
                start_next_request(p);
        else
                finish_probe(p);
}

static int start_request(S3Probe *p, const ProbeOptions *ask) {
        static const AwsNameValue create_query = { "uploads", "" };
        const AwsNameValue part_queries[] = { { "uploadId", p->upload_id }, { "partNumber", "1" } };
        const AwsNameValue list_queries[] = {
                ask->operation == S3_LIST_UPLOADS ? create_query
                                                  : (AwsNameValue){ "list-type", "2" },
                { "prefix", p->options.list_prefix },
                { ask->operation == S3_LIST_UPLOADS ? "max-uploads" : "max-keys", "1" },
        };
        bool has_body = ask->operation == S3_PUT_OBJECT || ask->operation == S3_UPLOAD_PART;
        bool concerns_bucket = ask->operation == S3_HEAD_BUCKET ||
                               ask->operation == S3_LIST_UPLOADS ||
                               ask->operation == S3_LIST_OBJECTS;
        S3RequestOptions options = {
                .operation = ask->operation,
                .key = concerns_bucket ? NULL : p->options.key,
                .body = has_body ? probe_body : NULL,
                .body_bytes = has_body ? strlen(probe_body) : 0,
                .is_conditional =
                        ask->operation == S3_PUT_OBJECT && s3_client_has_conditions(p->client),
                .with_object_headers =
                        ask->operation == S3_PUT_OBJECT || ask->operation == S3_CREATE_UPLOAD,
                .max_tries = p->is_cleaning_up ? 1 : PROBE_TRIES,
                .on_done = on_probe_response,
                .userdata = p,
        };

        if (ask->operation == S3_CREATE_UPLOAD) {
                options.queries = &create_query;
                options.n_queries = 1;
        } else if (ask->needs == NEEDS_UPLOAD) {
                options.queries = part_queries;
                options.n_queries = ask->operation == S3_UPLOAD_PART ? 2 : 1;
        } else if (concerns_bucket && ask->operation != S3_HEAD_BUCKET) {
                options.queries = list_queries;
                options.n_queries = ELEMENTSOF(list_queries);
        }
        return s3_call_new(&p->call, p->client, &options);
}

static bool is_needed(const S3Probe *p) {
        const ProbeOptions *ask = &steps[p->at];
        bool cleans_up = ask->operation == S3_ABORT_UPLOAD || ask->operation == S3_DELETE_OBJECT;

        if (p->at == STEP_GET_KEY)
                return p->bucket_was_denied;
        if (!p->options.thorough)
                return true; /* only the first two are reached */
        if (p->is_cleaning_up && !cleans_up)
                return false;
        return ask->needs == NEEDS_NOTHING ||
               (ask->needs == NEEDS_OBJECT && p->object != PROBE_OBJECT_NONE) ||
               (ask->needs == NEEDS_UPLOAD && p->upload_id[0]);
}

static void start_next_request(S3Probe *p) {
        while (p->at < ELEMENTSOF(steps) && !is_needed(p))
                p->at++;
        if (p->at == ELEMENTSOF(steps))
                return finish_probe(p);
        int r = start_request(p, &steps[p->at]);
        if (r < 0) {
                p->outcome = r;
                finish_probe(p);
        }
}

static void on_credentials(const char *error, void *userdata) {
        S3Probe *p = userdata;

        p->waiter = NULL;
        report_credentials(p, error);
        if (error)
                return finish_probe(p);
        start_next_request(p);
}

int s3_probe_new(S3Probe **ret, S3Client *client, const S3ProbeOptions *options) {
        _cleanup_(s3_probe_freep) S3Probe *p = calloc(1, sizeof *p);

        if (!p)
                return -ENOMEM;
        p->client = client;
        p->options = *options;
        p->options.key = strdup(options->key);
        p->options.list_prefix = strdup(options->list_prefix ? options->list_prefix : "");
        if (!p->options.key || !p->options.list_prefix)
                return -ENOMEM;
        int r = credentials_fetch(s3_client_credentials(client), &p->waiter, on_credentials, p);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(p);
        return 0;
}

S3Probe *s3_probe_free(S3Probe *p) {
        if (!p)
                return NULL;
        s3_call_cancel(p->call);
        credentials_waiter_cancel(p->waiter);
        free((char *)p->options.key);
        free((char *)p->options.list_prefix);
        free(p->error);
        free(p->bucket_denial);
        free(p);
        return NULL;
}

/* Aborts the uploads that nobody continues: one page of ListMultipartUploads after the other,
 * and of each page one upload after the other: is it ours and unknown (the caller's say), old
 * enough (ListParts), then abort. */

#define SWEEP_TRIES 3
#define SWEEP_PAGES_MAX 1000 /* a million uploads: a longer list repeats itself */
typedef enum SweepState {
        SWEEP_NEW,
        SWEEP_LIST,  /* ListMultipartUploads */
        SWEEP_PAGE,  /* chooses the next upload of the page */
        SWEEP_AGE,   /* ListParts: when did its newest part come? */
        SWEEP_ABORT, /* AbortMultipartUpload */
        SWEEP_ENDED,
        N_SWEEP_STATES
} SweepState;

struct S3Sweep {
        S3Client *client;
        S3SweepOptions options; /* strings are ours */
        SweepState state;
        sd_event_source *start;
        S3Call *call;

        S3UploadList page; /* as listed, or the one upload of the order */
        size_t at;         /* in the page */
        unsigned n_pages;
        char *key_marker, *id_marker;

        /* of the upload that is checked */
        unsigned part_marker;
        uint64_t newest_usec; /* part, or the upload's beginning */
        uint64_t age_usec;

        /* of the last answer */
        S3Verdict verdict;
        char *sentence;

        unsigned n_aborted;
        int outcome; /* the first failure's */
        char *error;
};

static void sweep_step(S3Sweep *s);

#define TO(state) (1U << (state))
static const unsigned moves[N_SWEEP_STATES] = {
        [SWEEP_NEW] = TO(SWEEP_LIST) | TO(SWEEP_ABORT) | TO(SWEEP_ENDED),
        [SWEEP_LIST] = TO(SWEEP_PAGE) | TO(SWEEP_ENDED),
        [SWEEP_PAGE] = TO(SWEEP_LIST) | TO(SWEEP_AGE) | TO(SWEEP_ABORT) | TO(SWEEP_ENDED),
        [SWEEP_AGE] = TO(SWEEP_PAGE) | TO(SWEEP_AGE) | TO(SWEEP_ABORT) | TO(SWEEP_ENDED),
        [SWEEP_ABORT] = TO(SWEEP_PAGE) | TO(SWEEP_ENDED),
};

static const StateTable sweep_table = {
        .machine = "sweep",
        .names = (const char *const[]){ "new", "list", "page", "age", "abort", "ended" },
        .moves = moves,
        .n_states = N_SWEEP_STATES,
};

/* @return false: illegal, nothing has changed */
static bool set_state(S3Sweep *s, SweepState state) {
        if (transition_check(&sweep_table, s->state, state, NULL) < 0)
                return false;
        log_debug("sweep of '%s': %s", s->options.prefix, sweep_table.names[state]);
        s->state = state;
        return true;
}

/* The one way out. */
static void finish_sweep(S3Sweep *s) {
        if (s->state != SWEEP_ENDED && set_state(s, SWEEP_ENDED))
                s->options.on_done(s->outcome, explain(s->outcome, s->error), s->n_aborted,
                                   s->options.userdata);
}

static void record_failure(S3Sweep *s, int outcome, const char *sentence) {
        if (s->outcome != 0)
                return;
        s->outcome = outcome;
        s->error = sentence ? strdup(sentence) : NULL;
}

/* One upload that cannot be checked or aborted does not keep the others; a store that is away or
 * closed to us does. */
static void after_failure(S3Sweep *s) {
        int outcome = s3_verdict_outcome(s->verdict);

        record_failure(s, outcome, s->sentence);
        if (s->state == SWEEP_LIST || outcome == UPLOAD_E_UNREACHABLE ||
            outcome == UPLOAD_E_NETWORK || outcome == UPLOAD_E_DENIED)
                return finish_sweep(s);
        s->at++;
        (void)set_state(s, SWEEP_PAGE); /* from AGE or ABORT: there is a way */
        sweep_step(s);
}

/* Asking */

static const S3ListedUpload *current(const S3Sweep *s) {
        return &s->page.items[s->at];
}

static void record_malformed(S3Sweep *s, const char *what) {
        s->verdict = S3_RETRY;
        free(s->sentence);
        s->sentence = strdup(what);
}

static void accept_page(S3Sweep *s, const S3Result *result) {
        S3UploadList page;
        int r = s3_xml_upload_list(result->body, result->body_bytes, &page);

        if (r < 0) {
                return record_malformed(s, "the list of multipart uploads cannot be read");
        }
        s3_upload_list_done(&s->page);
        s->page = page;
        s->at = 0;
}

static void count_parts(S3Sweep *s, const S3Result *result) {
        S3PartList page;
        unsigned before = s->part_marker;
        int r = s3_xml_part_list(result->body, result->body_bytes, &page);

        s->part_marker = 0;
        if (r < 0) {
                return record_malformed(s, "the list of an upload's parts cannot be read");
        }
        for (size_t i = 0; i < page.n; i++) {
                uint64_t usec = page.items[i].last_modified_usec;

                /* unknown: it may be new */
                s->newest_usec = MAX(s->newest_usec, usec ? usec : s3_client_now_usec(s->client));
        }
        if (page.is_truncated && page.next_marker > before)
                s->part_marker = page.next_marker;
        s3_part_list_done(&page);
}

static void on_sweep_response(const S3Result *result, void *userdata) {
        S3Sweep *s = userdata;

        s->call = NULL;
        s->verdict = result->answer->verdict;
        free(s->sentence);
        s->sentence = result->answer->sentence ? strdup(result->answer->sentence) : NULL;
        if (s->verdict == S3_OK && s->state == SWEEP_LIST)
                accept_page(s, result);
        else if (s->verdict == S3_OK && s->state == SWEEP_AGE)
                count_parts(s, result);
        sweep_step(s);
}

static void send_request(S3Sweep *s, SweepState state, S3RequestOptions *options) {
        options->max_tries = SWEEP_TRIES;
        options->on_done = on_sweep_response;
        options->userdata = s;
        int r = set_state(s, state) ? s3_call_new(&s->call, s->client, options) : -EPROTO;
        if (r < 0) {
                record_failure(s, r, NULL);
                finish_sweep(s);
        }
}

static void request_uploads(S3Sweep *s) {
        const AwsNameValue queries[] = {
                { "uploads", "" },
                { "prefix", s->options.prefix },
                { "key-marker", s->key_marker },
                { "upload-id-marker", s->id_marker },
        };
        size_t n = !s->key_marker ? 2 : !s->id_marker ? 3 : 4;

        send_request(s, SWEEP_LIST,
                     &(S3RequestOptions){
                             .operation = S3_LIST_UPLOADS, .queries = queries, .n_queries = n });
}

static void request_age(S3Sweep *s) {
        char marker[16];
        const AwsNameValue queries[] = {
                { "uploadId", current(s)->upload_id },
                { "part-number-marker", marker },
        };

        (void)snprintf(marker, sizeof marker, "%u", s->part_marker);
        send_request(s, SWEEP_AGE,
                     &(S3RequestOptions){ .operation = S3_LIST_PARTS,
                                          .key = current(s)->key,
                                          .queries = queries,
                                          .n_queries = s->part_marker ? 2 : 1 });
}

static void request_upload_abort(S3Sweep *s) {
        const AwsNameValue query = { "uploadId", current(s)->upload_id };

        send_request(s, SWEEP_ABORT,
                     &(S3RequestOptions){ .operation = S3_ABORT_UPLOAD,
                                          .key = current(s)->key,
                                          .queries = &query,
                                          .n_queries = 1 });
}

/* Deciding */

/* Of an unknown time (0): none. Somebody may be at it. */
static uint64_t age_of(const S3Sweep *s, uint64_t usec) {
        uint64_t now = s3_client_now_usec(s->client);

        return usec > 0 && now > usec ? now - usec : 0;
}

/* Control characters came out as this: it is not the key to ask for. */
static bool is_garbled(const char *key) {
        return strstr(key, "\xef\xbf\xbd") != NULL;
}

/* Whether an upload may be one to abort, as far as the list shows. */
static bool is_step_needed(const S3Sweep *s, const S3ListedUpload *upload) {
        const S3SweepOptions *o = &s->options;

        if (o->exact_key ? strcmp(upload->key, o->prefix) != 0
                         : strncmp(upload->key, o->prefix, strlen(o->prefix)) != 0)
                /* a store that takes `prefix` for a hint must not cost somebody his upload */
                return false;
        if (is_garbled(upload->key + strlen(o->prefix)))
                return false;
        if (o->is_known && o->is_known(upload->key, upload->upload_id, o->userdata))
                return false;
        return age_of(s, upload->initiated_usec) >= o->min_age_usec;
}

static bool next_page(S3Sweep *s) {
        S3UploadList *page = &s->page;

        if (!page->is_truncated)
                return false;
        if (!page->next_key_marker || ++s->n_pages >= SWEEP_PAGES_MAX ||
            (s->key_marker && strcmp(s->key_marker, page->next_key_marker) == 0 &&
             strcmp(s->id_marker ? s->id_marker : "",
                    page->next_upload_id_marker ? page->next_upload_id_marker : "") == 0)) {
                record_failure(s, UPLOAD_E_UNREACHABLE,
                               "the list of multipart uploads does not continue");
                return false;
        }
        free(s->key_marker);
        free(s->id_marker);
        s->key_marker = TAKE_PTR(page->next_key_marker);
        s->id_marker = TAKE_PTR(page->next_upload_id_marker);
        return true;
}

static void step_page(S3Sweep *s) {
        while (s->at < s->page.n && !is_step_needed(s, current(s)))
                s->at++;
        if (s->at < s->page.n) {
                s->part_marker = 0;
                s->newest_usec = current(s)->initiated_usec;
                s->age_usec = age_of(s, s->newest_usec);
                if (s->options.min_age_usec > 0)
                        request_age(s);
                else
                        request_upload_abort(s);
        } else if (next_page(s)) {
                request_uploads(s);
        } else {
                finish_sweep(s);
        }
}

static void continue_request(S3Sweep *s) {
        s->at++;
        (void)set_state(s, SWEEP_PAGE); /* from AGE or ABORT: there is a way */
        step_page(s);
}

static void after_age(S3Sweep *s) {
        if (s->verdict == S3_NO_UPLOAD)
                return continue_request(s);
        if (s->verdict != S3_OK)
                return after_failure(s);
        s->age_usec = age_of(s, s->newest_usec);
        if (s->age_usec < s->options.min_age_usec)
                continue_request(s); /* a young part: somebody is at it */
        else if (s->part_marker)
                request_age(s);
        else
                request_upload_abort(s);
}

static void after_abort(S3Sweep *s) {
        if (s->verdict != S3_OK && s->verdict != S3_NO_UPLOAD)
                return after_failure(s);
        if (s->verdict == S3_OK) {
                s->n_aborted++;
                if (s->options.on_abort)
                        s->options.on_abort(current(s)->key, current(s)->upload_id, s->age_usec,
                                            s->options.userdata);
        }
        continue_request(s);
}

static void sweep_step(S3Sweep *s) {
        switch (s->state) {
        case SWEEP_NEW:
                if (s->page.n > 0)
                        request_upload_abort(s); /* the one upload that was named */
                else
                        request_uploads(s);
                break;
        case SWEEP_LIST:
                if (s->verdict == S3_OK) {
                        (void)set_state(s, SWEEP_PAGE); /* from LIST: there is a way */
                        step_page(s);
                } else {
                        after_failure(s);
                }
                break;
        case SWEEP_PAGE:
                step_page(s);
                break;
        case SWEEP_AGE:
                after_age(s);
                break;
        case SWEEP_ABORT:
                after_abort(s);
                break;
        case SWEEP_ENDED:
        case N_SWEEP_STATES:
                break;
        }
}

static int on_sweep_start(sd_event_source *source, void *userdata) {
        (void)source;
        sweep_step(userdata);
        return 0;
}

/* The order's one upload, as if it had been listed. */
static int name_upload(S3Sweep *s, const char *upload_id) {
        s->page.items = calloc(1, sizeof *s->page.items);
        if (!s->page.items)
                return -ENOMEM;
        s->page.n = 1;
        s->page.items[0].key = strdup(s->options.prefix);
        s->page.items[0].upload_id = strdup(upload_id);
        s->page.items[0].initiated_usec = s3_client_now_usec(s->client); /* not known: age 0 */
        return s->page.items[0].key && s->page.items[0].upload_id ? 0 : -ENOMEM;
}

int s3_sweep_new(S3Sweep **ret, S3Client *client, const S3SweepOptions *options) {
        _cleanup_(s3_sweep_freep) S3Sweep *s = calloc(1, sizeof *s);
        int r = 0;

        if (!s)
                return -ENOMEM;
        s->client = client;
        s->options = *options;
        s->options.upload_id = NULL;
        s->options.prefix = strdup(options->prefix ? options->prefix : "");
        if (!s->options.prefix)
                return -ENOMEM;
        if (options->exact_key && options->upload_id)
                r = name_upload(s, options->upload_id);
        if (r == 0)
                r = sd_event_add_defer(s3_client_event(client), &s->start, on_sweep_start, s);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

S3Sweep *s3_sweep_free(S3Sweep *s) {
        if (!s)
                return NULL;
        s3_call_cancel(s->call);
        sd_event_source_disable_unref(s->start);
        s3_upload_list_done(&s->page);
        free((char *)s->options.prefix);
        free(s->key_marker);
        free(s->id_marker);
        free(s->sentence);
        free(s->error);
        free(s);
        return NULL;
}
