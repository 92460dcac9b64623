/* From an answer to a verdict and a sentence. What a code means is in s3_answer_rules.c; here is what depends on more than the code. */
#include "uploaders/s3/s3_answer.h"

#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/http/http.h"
#include "uploaders/s3/s3_answer_rules.h"
#include "uploaders/s3/s3_endpoint.h"
#include "uploaders/s3/s3_partition.h"
#include "uploaders/s3/s3_time.h"

#define RETRY_AFTER_MAX_USEC (5 * USEC_PER_MINUTE)
/* S3 allows 15 minutes, but Date tells whole seconds, and the answer took its time: 403 of a HEAD is blamed on the clock somewhat before, for
 * at the worst it costs one more request. */
#define SKEW_SUSPECT_USEC (14 * USEC_PER_MINUTE)

const char *s3_operation_name(S3Operation o) {
        return s3_rule_of_operation(o)->name;
}

const char *s3_operation_permission(S3Operation o) {
        return s3_rule_of_operation(o)->permission;
}

/* ── the verdict ── */

/* What judging found out, for the sentence. */
typedef struct Judgement {
        const S3AnswerInput *in;
        const S3OperationRule *operation;
        S3Answer *answer;
        const S3Rule *rule;
        bool has_document; /* the body was an <Error> */
} Judgement;

/* The region that the answer tells, if it is another than ours. */
static void learn_region(Judgement *j) {
        S3Answer *a = j->answer;
        char of_host[AWS_REGION_SIZE] = "";
        const char *told[] = { j->in->bucket_region, a->error.region, of_host };

        (void)aws_region_of_host(a->error.endpoint, of_host); /* stays empty when it tells none */
        for (size_t i = 0; i < ELEMENTSOF(told); i++) {
                if (!told[i] || !aws_region_is_sane(told[i]))
                        continue;
                if (!j->in->region || strcmp(told[i], j->in->region) != 0)
                        (void)snprintf(a->region, sizeof a->region, "%s", told[i]);
                return;
        }
}

/* The 404 of a proxy that has lost its store, or of a load balancer: nothing is missing but the store. */
static bool is_strange_404(const Judgement *j) {
        if (j->in->status != 404)
                return false;
        return j->operation->is_head ? j->in->is_foreign : !j->has_document;
}

/* A 404 says that something is missing; what it is depends on what was asked. */
static void judge_missing(Judgement *j) {
        if (is_strange_404(j)) {
                j->answer->verdict = S3_RETRY;
                return;
        }
        if (j->operation->has_upload) /* Ceph says NoSuchKey of an upload that has ended */
                j->rule = s3_rule_of_code("NoSuchUpload");
        else if (j->operation->is_bucket || j->operation->is_write)
                j->rule = s3_rule_of_code("NoSuchBucket");
        j->answer->verdict = j->rule->verdict;
}

static void judge_redirect(Judgement *j) {
        learn_region(j);
        /* A region that is ours already was not the fault. */
        if (j->answer->region[0] == '\0' &&
            strcmp(j->answer->error.code, "AuthorizationHeaderMalformed") == 0)
                j->answer->verdict = S3_DENIED;
}

static bool is_skewed(const S3AnswerInput *in) {
        uint64_t theirs;

        if (in->now_usec == 0 || !in->date || s3_time_parse_http(in->date, &theirs) < 0)
                return false;
        return MAX(theirs, in->now_usec) - MIN(theirs, in->now_usec) > SKEW_SUSPECT_USEC;
}

/* A HEAD has no body that tells the reason. AWS says 400 of an expired token and of a wrong region, 403 of a wrong clock. */
static void judge_head(Judgement *j) {
        if (j->in->status == 403 && is_skewed(j->in)) {
                j->rule = s3_rule_of_code("RequestTimeTooSkewed");
                j->answer->verdict = j->rule->verdict;
        }
        if (j->in->status != 400)
                return;
        learn_region(j);
        j->answer->verdict = j->answer->region[0] ? S3_REDIRECT : S3_EXPIRED;
}

static void judge_by_rule(Judgement *j) {
        const S3AnswerInput *in = j->in;
        S3Answer *a = j->answer;

        a->verdict = j->rule->verdict;
        if (a->verdict == S3_NOT_FOUND)
                judge_missing(j);
        else if (a->verdict == S3_REDIRECT)
                judge_redirect(j);
        else if (j->operation->is_head && !j->has_document)
                judge_head(j);
        else if (in->is_conditional && in->status == 501)
                a->verdict = S3_UNCONDITIONAL;
        else if (a->verdict == S3_BAD_PART && in->operation != S3_COMPLETE_UPLOAD)
                a->verdict = S3_REFUSED;
}

/* Reads the <Error>, if the body is one. */
static int read_document(Judgement *j) {
        int r = s3_xml_error(j->in->body, j->in->body_bytes, &j->answer->error);

        if (r == -ENOMEM)
                return r;
        j->has_document = r == 0;
        return 0;
}

/* A 200 may still be a failure: S3 begins its answer to Complete before it knows. @return whether all is well, -ENOMEM */
static int judge_success(Judgement *j) {
        const S3AnswerInput *in = j->in;
        char etag[S3_ETAG_SIZE];
        int r;

        if (in->operation == S3_GET_OBJECT || j->operation->is_head)
                return 1; /* the body is the object's */
        if (in->operation == S3_COMPLETE_UPLOAD) {
                r = s3_xml_complete_etag(in->body, in->body_bytes, etag);
                if (r == 0 || r == -ENOMEM)
                        return r == 0 ? 1 : r;
        }
        r = read_document(j);
        if (r < 0)
                return r;
        if (!j->has_document && in->operation != S3_COMPLETE_UPLOAD)
                return 1;
        j->rule = s3_rule_of_code(j->answer->error.code);
        if (!j->rule)
                j->rule = s3_rule_of_status(500);
        judge_by_rule(j);
        return 0;
}

/* Whether an answer that broke off said enough: a store (or a proxy) that refuses a request need not wait for its body. */
static bool was_told(const Judgement *j) {
        unsigned status = j->in->status;

        switch (j->in->http_error) {
        case 0:
                return true;
        case HTTP_E_CUT:
        case HTTP_E_STALLED:
        case HTTP_E_TIMEOUT:
                return (status >= 300 && j->has_document) ||
                       (status > 400 && status < 500 && status != 408);
        default:
                return false;
        }
}

/* @return whether all is well, -ENOMEM */
static int judge(Judgement *j) {
        const S3AnswerInput *in = j->in;
        int r;

        if (in->http_error == 0 && in->status >= 200 && in->status < 300)
                return judge_success(j);
        r = read_document(j);
        if (r < 0)
                return r;
        if (!was_told(j)) {
                j->rule = s3_rule_of_http_error(in->http_error);
                j->answer->verdict = j->rule->verdict;
                return 0;
        }
        j->rule = s3_rule_of_code(j->answer->error.code);
        if (!j->rule)
                j->rule = s3_rule_of_status(in->status);
        judge_by_rule(j);
        return 0;
}

/* ── the sentence ── */

static void add_spelled(StrBuf *b, const char *text) {
        for (size_t left = strlen(text), used; left > 0; left -= used, text += used) {
                char spelling[UTF8_SPELL_SIZE];

                used = utf8_spell(text, left, spelling);
                strbuf_add(b, spelling);
        }
}

static const char *or_nothing(const char *text) {
        return text ? text : "";
}

static void add_keys(StrBuf *b, const S3AnswerInput *in) {
        strbuf_add(b, "the keys");
        if (in->credentials_origin && in->credentials_origin[0]) {
                strbuf_add(b, " from ");
                add_spelled(b, in->credentials_origin);
        }
}

static void add_bucket_arn(StrBuf *b, const S3AnswerInput *in) {
        strbuf_addf(b, "arn:%s:s3:::", aws_partition_name(in->region));
        add_spelled(b, or_nothing(in->bucket));
}

static void add_resource(StrBuf *b, const Judgement *j) {
        add_bucket_arn(b, j->in);
        strbuf_add(b, j->operation->is_bucket ? "" : "/*");
}

static void add_time(StrBuf *b, const Judgement *j) {
        const char *time = j->answer->error.server_time;

        if (!time[0])
                time = or_nothing(j->in->date);
        if (!time[0])
                return;
        strbuf_add(b, " (");
        add_spelled(b, time);
        strbuf_add(b, ")");
}

/* Fills in one `{name}`. @param name  what stands between the braces, and on */
static void add_filling(StrBuf *b, const Judgement *j, const char *name) {
        const S3AnswerInput *in = j->in;
        const struct {
                const char *name, *text;
        } fillings[] = {
                { "bucket}", or_nothing(in->bucket) },
                { "host}", or_nothing(in->host) },
                { "operation}", j->operation->name },
                { "permission}", j->operation->permission },
                { "region}", or_nothing(in->region) },
                { "told}", j->answer->region },
                { "endpoint}", j->answer->error.endpoint },
                { "owner}", or_nothing(in->expected_owner) },
        };

        if (strncmp(name, "keys}", 5) == 0)
                add_keys(b, in);
        else if (strncmp(name, "resource}", 9) == 0)
                add_resource(b, j);
        else if (strncmp(name, "arn}", 4) == 0)
                add_bucket_arn(b, in);
        else if (strncmp(name, "time}", 5) == 0)
                add_time(b, j);
        for (size_t i = 0; i < ELEMENTSOF(fillings); i++)
                if (strncmp(name, fillings[i].name, strlen(fillings[i].name)) == 0)
                        add_spelled(b, fillings[i].text);
}

static void add_filled(StrBuf *b, const Judgement *j, const char *pattern) {
        while (*pattern) {
                size_t n = strcspn(pattern, "{");

                strbuf_add_n(b, pattern, n);
                pattern += n;
                if (*pattern == '\0')
                        return;
                add_filling(b, j, pattern + 1);
                pattern += strcspn(pattern, "}") + 1;
        }
}

/* AWS often says which action is missing (`… is not authorized to perform: kms:Decrypt on resource: …`).
 * @return the action's size; 0 when it does not */
static size_t action_told(const char *message, const char **ret) {
        static const char before[] = "not authorized to perform: ";
        const char *at = strstr(message, before);

        if (!at)
                return 0;
        *ret = at + strlen(before);
        return strspn(*ret, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-*");
}

static void add_access_hints(StrBuf *b, const Judgement *j) {
        switch (j->in->operation) {
        case S3_HEAD_OBJECT:
        case S3_GET_OBJECT:
                add_filled(b, j,
                           ", and s3:ListBucket on {arn}, without which a missing object looks "
                           "the same");
                break;
        case S3_PUT_OBJECT:
        case S3_CREATE_UPLOAD:
                strbuf_add(b, " (with tags also s3:PutObjectTagging, with a KMS key also "
                              "kms:GenerateDataKey and kms:Decrypt)");
                break;
        case S3_UPLOAD_PART:
        case S3_COMPLETE_UPLOAD:
                strbuf_add(b, " (with a KMS key also kms:GenerateDataKey and kms:Decrypt)");
                break;
        case S3_DELETE_OBJECT:
                strbuf_add(b, ", unless the object is locked");
                break;
        default:
                break;
        }
        if (j->operation->is_head)
                strbuf_add(b, "; a wrong access key or secret looks the same, too");
        else if (!s3_host_is_aws(or_nothing(j->in->host))) /* Ceph with STS */
                strbuf_add(b, "; some stores say the same of a wrong access key or secret");
}

static void add_access_remedy(StrBuf *b, const Judgement *j) {
        const char *message = j->answer->error.message, *action = j->operation->permission;
        size_t n = action_told(message, &action);

        if (strstr(message, "explicit deny")) {
                strbuf_add(b, "a policy denies ");
                strbuf_add_n(b, action, n > 0 ? n : strlen(action));
                add_filled(b, j, " explicitly; take {keys} out of its reach");
                return;
        }
        strbuf_add(b, "allow ");
        strbuf_add_n(b, action, n > 0 ? n : strlen(action));
        if (n == 0)
                add_filled(b, j, " on {resource}");
        add_filled(b, j, " to {keys}");
        if (n == 0)
                add_access_hints(b, j);
        if (j->in->expected_owner && j->in->expected_owner[0])
                add_filled(b, j, "; or expected_bucket_owner '{owner}' does not own the bucket");
}

static const char *redirect_remedy(const Judgement *j) {
        if (j->answer->region[0])
                return "the bucket is in region '{told}', not in '{region}'; set region to "
                       "'{told}'";
        if (j->answer->error.endpoint[0])
                return "the store sends us to '{endpoint}'; set region, or endpoint, to fit";
        return "the bucket is not in region '{region}' at '{host}'; set region to the one it is "
               "in, and endpoint to fit";
}

static const char *refused_remedy(const Judgement *j) {
        bool is_missing =
                strstr(or_nothing(j->rule->code), "NotImplemented") || j->in->status == 501;

        if (is_missing)
                return j->operation->is_write
                               ? "the store lacks something that is asked for; see sse, "
                                 "kms_key_id, storage_class and tags"
                               : "the store has no {operation}; choose another";
        /* Ceph says InvalidArgument of a session token that it does not know. */
        return j->operation->is_write
                       ? "the store refuses a setting; see storage_class, sse, kms_key_id and "
                         "tags, or renew {keys} if they have a session token"
                       : "the store refuses the request as it is; renew {keys} if they have a "
                         "session token";
}

/* What depends on more than the code. NULL = see the rule */
static const char *special_remedy(const Judgement *j) {
        const S3AnswerInput *in = j->in;
        const S3Answer *a = j->answer;
        bool is_strange = !j->has_document && !j->operation->is_head;

        if (a->verdict == S3_UNCONDITIONAL)
                return "the store has no conditional writes; give each agent its own "
                       "node.instance_id, then they are not needed";
        if (a->verdict == S3_EXPIRED && !j->has_document)
                return "to a HEAD the store says no more: renew {keys} if they have a session "
                       "token, and see whether region '{region}' is right";
        if (a->verdict == S3_REDIRECT)
                return redirect_remedy(j);
        if (strcmp(a->error.code, "AuthorizationHeaderMalformed") == 0)
                return "correct region ('{region}') or {keys}";
        if (is_strange_404(j) ||
            (is_strange && (in->status == 200 || (in->status == 403 && in->body_bytes > 0))))
                return "'{host}' does not answer like an S3 store; correct endpoint, or see what "
                       "stands between";
        if (a->verdict == S3_REFUSED && a->error.code[0] && !s3_rule_of_code(a->error.code))
                return "see the store's words, and the destination's settings";
        return NULL;
}

static void add_remedy(StrBuf *b, const Judgement *j) {
        const char *special = was_told(j) ? special_remedy(j) : NULL;

        if (special || j->rule->remedy)
                add_filled(b, j, special ? special : j->rule->remedy);
        else if (j->answer->verdict == S3_DENIED)
                add_access_remedy(b, j);
        else
                add_filled(b, j, refused_remedy(j));
}

/* What the store said: `403 AccessDenied (Access Denied)`. */
static void add_words(StrBuf *b, const Judgement *j) {
        const S3Error *e = &j->answer->error;
        size_t n = strlen(e->message);

        strbuf_addf(b, "%u", j->in->status);
        if (e->code[0]) {
                strbuf_addf(b, " %s", e->code);
                while (n > 0 && strchr(" .", e->message[n - 1]))
                        n--;
                if (n > 0)
                        strbuf_addf(b, " (%.*s)", (int)n, e->message);
        } else
                strbuf_add(b, j->in->body_bytes > 0 ? " with a body that is not S3's"
                                                    : " without an error code");
}

static char *make_sentence(const Judgement *j) {
        const S3AnswerInput *in = j->in;
        StrBuf b = STRBUF_INIT;

        strbuf_addf(&b, "%s of 's3://", j->operation->name);
        add_spelled(&b, or_nothing(in->bucket));
        if (in->key && in->key[0]) {
                strbuf_add(&b, "/");
                add_spelled(&b, in->key);
        }
        strbuf_add(&b, "' at '");
        add_spelled(&b, or_nothing(in->host));
        strbuf_add(&b, "' failed: ");
        if (was_told(j))
                add_words(&b, j);
        else
                add_spelled(&b, in->http_text && in->http_text[0] ? in->http_text : "no answer");
        strbuf_add(&b, "; ");
        add_remedy(&b, j);
        return strbuf_take(&b);
}

/* ── both ── */

/* @see RFC 9110, 10.2.3: seconds, or a date, which is one of the server's clock */
static uint64_t read_retry_after(const S3AnswerInput *in) {
        uint64_t n, now_usec;
        int r;

        if (!in->retry_after)
                return 0;
        r = parse_u64(in->retry_after, &n);
        if (r == -ERANGE || (r == 0 && n > RETRY_AFTER_MAX_USEC / USEC_PER_SEC))
                return RETRY_AFTER_MAX_USEC;
        if (r == 0)
                return n * USEC_PER_SEC;
        if (!in->date || s3_time_parse_http(in->date, &now_usec) < 0)
                now_usec = in->now_usec;
        if (now_usec == 0 || s3_time_parse_http(in->retry_after, &n) < 0 || n <= now_usec)
                return 0;
        return MIN(n - now_usec, RETRY_AFTER_MAX_USEC);
}

int s3_answer_judge(const S3AnswerInput *in, S3Answer *ret) {
        S3Answer a = { .verdict = S3_OK };
        Judgement j = { .in = in, .operation = s3_rule_of_operation(in->operation), .answer = &a };
        int r = judge(&j);

        if (r < 0)
                return r;
        if (r == 0) {
                a.retry_after_usec = read_retry_after(in);
                a.is_for_all = s3_rule_is_for_all(j.rule);
                a.sentence = make_sentence(&j);
        }
        *ret = a;
        return 0;
}

void s3_answer_done(S3Answer *a) {
        free(a->sentence);
        *a = (S3Answer){ 0 };
}
