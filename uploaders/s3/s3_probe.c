/* Asks the store for each thing that the agent ever does, one after the other, by the table below, and takes away what it made. */
#include "uploaders/s3/s3_probe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/strbuf.h"
#include "uploaders/uploader.h"

#define TRIES 2
#define CLOCK_AGREES_USEC                                                                          \
        (3 * (int64_t)USEC_PER_SEC) /* Date tells whole seconds, and answers take time */

static const char probe_body[] = "neuron-collectd asks whether it may write here\n";

typedef enum ProbeNeed {
        NEEDS_NOTHING,
        NEEDS_OBJECT,
        NEEDS_UPLOAD
} ProbeNeed; /* made by the probe before */

typedef struct ProbeAsk {
        S3Operation operation;
        const char *what; /* NULL = the operation's name */
        bool in_thorough;
        ProbeNeed needs;
        const char *without; /* what is worse when it is not permitted; NULL = nothing works */
} ProbeAsk;

enum { ASK_BUCKET, ASK_KEY, ASK_PUT, ASK_PUT_AGAIN, ASK_OTHERS };

/* clang-format off */
static const ProbeAsk asks[] = {
        [ASK_BUCKET]    = { S3_HEAD_BUCKET, "bucket", true, NEEDS_NOTHING,
                            "a bucket that is missing is noticed only when something is written" },
        /* after a HEAD that was denied, whose answer does not say what was denied */
        [ASK_KEY]       = { S3_GET_OBJECT, "bucket", true, NEEDS_NOTHING, NULL },
        [ASK_PUT]       = { S3_PUT_OBJECT, NULL, true, NEEDS_NOTHING, NULL },
        [ASK_PUT_AGAIN] = { S3_PUT_OBJECT, "conditional writes", true, NEEDS_OBJECT,
                            "a name is looked at before it is written, which two writers at the same moment can defeat" },
        [ASK_OTHERS]    = { S3_HEAD_OBJECT, NULL, true, NEEDS_OBJECT,
                            "the answer to the write is the only proof of delivery" },
        { S3_GET_OBJECT, NULL, true, NEEDS_OBJECT, "`neuron-collect get` and `verify` cannot read what was delivered" },
        { S3_CREATE_UPLOAD, NULL, true, NEEDS_NOTHING, NULL },
        { S3_UPLOAD_PART, NULL, true, NEEDS_UPLOAD, NULL },
        { S3_LIST_PARTS, NULL, true, NEEDS_UPLOAD,
          "an upload that was cut goes on by what is written down here, and orphans are not aborted" },
        { S3_LIST_UPLOADS, NULL, true, NEEDS_NOTHING,
          "uploads that a crash left behind are not found: have a lifecycle rule abort them" },
        { S3_ABORT_UPLOAD, NULL, true, NEEDS_UPLOAD,
          "uploads that are given up stay and are paid for: have a lifecycle rule abort them" },
        { S3_LIST_OBJECTS, NULL, true, NEEDS_NOTHING, "`neuron-collect ls` cannot list the bucket" },
        { S3_DELETE_OBJECT, NULL, true, NEEDS_OBJECT, "the object that the probe has written stays" },
};
/* clang-format on */

struct S3Probe {
        S3Client *client;
        S3ProbeOrder order; /* strings are ours */
        sd_event_source *start;
        CredentialsWaiter *waiter;
        S3Call *call;

        size_t at; /* in asks[] */
        bool has_object, has_upload;
        bool only_clean_up; /* the store is away, there is no bucket, or we are refused altogether */
        bool clock_was_told;
        bool bucket_was_denied;
        char *bucket_denial; /* the sentence */
        char upload_id[S3_UPLOAD_ID_SIZE];

        int outcome;
        char *error;
};

/* Telling */

static const char *error_of(const S3Probe *p) {
        if (p->outcome == 0)
                return NULL;
        if (p->error)
                return p->error;
        return strerror(p->outcome < 0 ? -p->outcome : ENOMEM); /* for the sentence, then */
}

static void finish(S3Probe *p) {
        p->order.on_done(p->outcome, error_of(p), p->order.userdata);
}

static void tell(S3Probe *p, const S3ProbeStep *step) {
        if (step->outcome != 0 && !step->is_optional && p->outcome == 0) {
                p->outcome = step->outcome;
                p->error = strdup(step->detail);
        }
        if (p->order.on_step)
                p->order.on_step(step, p->order.userdata);
}

static void tell_clock(S3Probe *p) {
        int64_t ahead = s3_client_clock_offset_usec(p->client);
        uint64_t by = (uint64_t)(ahead < 0 ? -ahead : ahead);
        char detail[160], span[CLOCK_ISO_SIZE];

        p->clock_was_told = true;
        if (by <= (uint64_t)CLOCK_AGREES_USEC)
                (void)snprintf(detail, sizeof detail, "agrees with the server's");
        else
                (void)snprintf(
                        detail, sizeof detail,
                        "the server's is %s %s, which is allowed for in signatures; set this "
                        "machine's clock",
                        clock_format_span(span, by / USEC_PER_SEC * USEC_PER_SEC),
                        ahead < 0 ? "behind" : "ahead");
        tell(p, &(S3ProbeStep){ .what = "clock", .detail = detail });
}

static void tell_credentials(S3Probe *p, const char *error) {
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
        tell(p, &(S3ProbeStep){ .what = "credentials",
                                .outcome = error ? UPLOAD_E_DENIED : 0,
                                .detail = detail });
}

/* What an answer means here */

static int outcome_of(const S3Probe *p, const S3Answer *answer) {
        S3Verdict v = answer->verdict;

        switch (p->at) {
        case ASK_KEY: /* only our own existence is asked for: whoever may write only gets AccessDenied */
                if (v == S3_NOT_FOUND || strcmp(answer->error.code, "AccessDenied") == 0)
                        return 0;
                break;
        case ASK_PUT:
                if (v == S3_EXISTS) /* left by a probe that was cut */
                        return 0;
                break;
        case ASK_PUT_AGAIN:
                if (v == S3_EXISTS)
                        return 0;
                if (v == S3_OK || v == S3_UNCONDITIONAL)
                        return UPLOAD_E_REFUSED;
                break;
        default:
                if (v == S3_NOT_FOUND)
                        return asks[p->at].operation == S3_DELETE_OBJECT ? 0 : UPLOAD_E_MISMATCH;
                break;
        }
        return s3_verdict_outcome(v);
}

static bool is_optional(const S3Probe *p, const S3Answer *answer) {
        S3Verdict v = answer->verdict;

        if (!asks[p->at].without)
                return false;
        if (answer->is_for_all)
                return false;
        return v == S3_DENIED || v == S3_REFUSED || (p->at == ASK_PUT_AGAIN && v != S3_NO_BUCKET);
}

static void tell_ask(S3Probe *p, const S3Answer *answer) {
        const ProbeAsk *ask = &asks[p->at];
        int outcome = outcome_of(p, answer);
        bool optional = outcome != 0 && outcome != UPLOAD_E_AWAY && is_optional(p, answer);
        StrBuf detail = STRBUF_INIT;

        if (outcome != 0 && p->at == ASK_PUT_AGAIN && optional)
                strbuf_add(&detail, s3_client_has_conditions(p->client)
                                            ? "`If-None-Match: *` is ignored"
                                            : "the store has none");
        else if (outcome != 0)
                strbuf_add(&detail, answer->sentence ? answer->sentence : "it failed");
        if (optional)
                strbuf_addf(&detail, "; without it %s", ask->without);
        _cleanup_free_ char *text = strbuf_take(&detail);
        tell(p, &(S3ProbeStep){
                        .what = ask->what ? ask->what : s3_operation_name(ask->operation),
                        .permission = p->at == ASK_PUT_AGAIN || answer->is_for_all
                                              ? NULL
                                              : s3_operation_permission(ask->operation),
                        .outcome = outcome,
                        .is_optional = optional,
                        .detail = text ? text : "",
                });
        if (outcome == UPLOAD_E_AWAY || answer->verdict == S3_NO_BUCKET ||
            (outcome != 0 && answer->is_for_all))
                p->only_clean_up = true;
}

/* It was the permission that HEAD lacks, and nothing that concerns all. */
static void tell_bucket_denial(S3Probe *p) {
        p->at = ASK_BUCKET;
        tell_ask(p, &(S3Answer){ .verdict = S3_DENIED, .sentence = p->bucket_denial });
        p->at = ASK_KEY;
}

static void note_made(S3Probe *p, const S3Result *result) {
        S3Verdict v = result->answer->verdict;

        switch (asks[p->at].operation) {
        case S3_PUT_OBJECT: /* without an answer it may be there */
                if (v == S3_OK || v == S3_EXISTS || v == S3_RETRY)
                        p->has_object = true;
                break;
        case S3_CREATE_UPLOAD:
                if (v == S3_OK &&
                    s3_xml_upload_id(result->body, result->body_bytes, p->upload_id) == 0)
                        p->has_upload = true;
                break;
        case S3_ABORT_UPLOAD:
                p->has_upload = false;
                break;
        default:
                break;
        }
}

/* Asking */

static void next(S3Probe *p);

static void on_answer(const S3Result *result, void *userdata) {
        S3Probe *p = userdata;
        S3Verdict v = result->answer->verdict;

        p->call = NULL;
        note_made(p, result);
        if (result->status != 0 && !p->clock_was_told)
                tell_clock(p);
        if (p->at == ASK_PUT && v == S3_UNCONDITIONAL) {
                next(p); /* known now: the same again, without condition */
                return;
        }
        if (p->at == ASK_BUCKET && v == S3_DENIED) {
                p->bucket_was_denied = true;
                p->bucket_denial =
                        result->answer->sentence ? strdup(result->answer->sentence) : NULL;
                p->at = ASK_KEY;
                next(p);
                return;
        }
        if (p->order.thorough && p->at == ASK_KEY && outcome_of(p, result->answer) == 0)
                tell_bucket_denial(p);
        else
                tell_ask(p, result->answer);
        p->at++;
        if (p->order.thorough)
                next(p);
        else
                finish(p);
}

static int ask_now(S3Probe *p, const ProbeAsk *ask) {
        static const SignPair create_headers[] = {
                { "x-amz-checksum-algorithm", "SHA256" },
        };
        static const SignPair create_query = { "uploads", "" };
        const SignPair part_queries[] = { { "uploadId", p->upload_id }, { "partNumber", "1" } };
        const SignPair list_queries[] = {
                ask->operation == S3_LIST_UPLOADS ? create_query : (SignPair){ "list-type", "2" },
                { "prefix", p->order.list_prefix },
                { ask->operation == S3_LIST_UPLOADS ? "max-uploads" : "max-keys", "1" },
        };
        bool has_body = ask->operation == S3_PUT_OBJECT || ask->operation == S3_UPLOAD_PART;
        bool is_about_bucket = ask->operation == S3_HEAD_BUCKET ||
                               ask->operation == S3_LIST_UPLOADS ||
                               ask->operation == S3_LIST_OBJECTS;
        S3Order order = {
                .operation = ask->operation,
                .key = is_about_bucket ? NULL : p->order.key,
                .body = has_body ? probe_body : NULL,
                .body_bytes = has_body ? strlen(probe_body) : 0,
                .is_conditional =
                        ask->operation == S3_PUT_OBJECT && s3_client_has_conditions(p->client),
                .with_object_headers =
                        ask->operation == S3_PUT_OBJECT || ask->operation == S3_CREATE_UPLOAD,
                .max_tries = p->only_clean_up ? 1 : TRIES,
                .on_done = on_answer,
                .userdata = p,
        };

        if (ask->operation == S3_CREATE_UPLOAD) {
                order.queries = &create_query;
                order.n_queries = 1;
                order.headers = create_headers;
                order.n_headers = ELEMENTSOF(create_headers);
        } else if (ask->needs == NEEDS_UPLOAD) {
                order.queries = part_queries;
                order.n_queries = ask->operation == S3_UPLOAD_PART ? 2 : 1;
        } else if (is_about_bucket && ask->operation != S3_HEAD_BUCKET) {
                order.queries = list_queries;
                order.n_queries = ELEMENTSOF(list_queries);
        }
        return s3_call_new(&p->call, p->client, &order);
}

static bool is_to_be_asked(const S3Probe *p) {
        const ProbeAsk *ask = &asks[p->at];
        bool cleans_up = ask->operation == S3_ABORT_UPLOAD || ask->operation == S3_DELETE_OBJECT;

        if (p->at == ASK_KEY)
                return p->bucket_was_denied;
        if (!p->order.thorough)
                return true; /* only the first two are reached */
        if (!ask->in_thorough)
                return false;
        if (p->only_clean_up && !cleans_up)
                return false;
        return ask->needs == NEEDS_NOTHING || (ask->needs == NEEDS_OBJECT && p->has_object) ||
               (ask->needs == NEEDS_UPLOAD && p->has_upload);
}

static void next(S3Probe *p) {
        while (p->at < ELEMENTSOF(asks) && !is_to_be_asked(p))
                p->at++;
        if (p->at == ELEMENTSOF(asks)) {
                finish(p);
                return;
        }
        int r = ask_now(p, &asks[p->at]);
        if (r < 0) {
                p->outcome = r;
                finish(p);
        }
}

static void after_credentials(S3Probe *p, const char *error) {
        tell_credentials(p, error);
        if (error) {
                finish(p);
                return;
        }
        next(p);
}

static void on_credentials(const char *error, void *userdata) {
        S3Probe *p = userdata;

        p->waiter = NULL;
        after_credentials(p, error);
}

static int on_start(sd_event_source *source, void *userdata) {
        S3Probe *p = userdata;
        Credentials *credentials = s3_client_credentials(p->client);
        AwsKeys keys;
        int r;

        (void)source;
        if (credentials_peek(credentials, &keys)) {
                after_credentials(p, NULL);
                return 0;
        }
        r = credentials_fetch(credentials, &p->waiter, on_credentials, p);
        if (r < 0) {
                p->outcome = r;
                finish(p);
        }
        return 0;
}

int s3_probe_new(S3Probe **ret, S3Client *client, const S3ProbeOrder *order) {
        _cleanup_(s3_probe_freep) S3Probe *p = calloc(1, sizeof *p);
        int r;

        if (!p)
                return -ENOMEM;
        p->client = client;
        p->order = *order;
        p->order.key = strdup(order->key);
        p->order.list_prefix = strdup(order->list_prefix ? order->list_prefix : "");
        if (!p->order.key || !p->order.list_prefix)
                return -ENOMEM;
        r = sd_event_add_defer(s3_client_event(client), &p->start, on_start, p);
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
        sd_event_source_disable_unref(p->start);
        free((char *)p->order.key);
        free((char *)p->order.list_prefix);
        free(p->error);
        free(p->bucket_denial);
        free(p);
        return NULL;
}
