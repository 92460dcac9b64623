/* Decides what an answer of S3 means: a verdict, by tables of operations, error codes and statuses,
 * and a sentence for people with the remedy. Whether and when to try again is left to s3_client.c.
 * @see Amazon S3 API Reference, "Error responses"; Ceph's rgw_common.cc and Swift's
 *   s3api/s3response.py for theirs */
#include "uploaders/s3/s3_response.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/http/http.h"
#include "uploaders/aws/aws_parse.h"
#include "uploaders/aws/aws_region.h"
#include "uploaders/s3/s3_endpoint.h"
#include "uploaders/uploader.h"

typedef struct S3Rule {
        const char *code; /* a `*` stands for any text */
        S3Verdict verdict;
        /* What a person can do; its `{name}`s. NULL = made there */
        const char *remedy;
} S3Rule;

typedef struct S3OperationRule {
        const char *name, *method, *permission;
        bool is_bucket;  /* asks for the bucket, not for a key */
        bool is_head;    /* the answer has no body */
        bool is_write;   /* carries the destination's settings: sse, storage_class, tags */
        bool has_upload; /* names an upload */
} S3OperationRule;

/* clang-format off */
static const S3OperationRule operations[N_S3_OPERATIONS] = {
        [S3_HEAD_BUCKET]     = { .name = "HeadBucket", .method = "HEAD", .permission = "s3:ListBucket", .is_bucket = true, .is_head = true },
        [S3_HEAD_OBJECT]     = { .name = "HeadObject", .method = "HEAD", .permission = "s3:GetObject", .is_head = true },
        [S3_GET_OBJECT]      = { .name = "GetObject", .method = "GET", .permission = "s3:GetObject" },
        [S3_PUT_OBJECT]      = { .name = "PutObject", .method = "PUT", .permission = "s3:PutObject", .is_write = true },
        [S3_DELETE_OBJECT]   = { .name = "DeleteObject", .method = "DELETE", .permission = "s3:DeleteObject" },
        [S3_CREATE_UPLOAD]   = { .name = "CreateMultipartUpload", .method = "POST", .permission = "s3:PutObject", .is_write = true },
        [S3_UPLOAD_PART]     = { .name = "UploadPart", .method = "PUT", .permission = "s3:PutObject", .has_upload = true },
        [S3_COMPLETE_UPLOAD] = { .name = "CompleteMultipartUpload", .method = "POST", .permission = "s3:PutObject", .has_upload = true },
        [S3_ABORT_UPLOAD]    = { .name = "AbortMultipartUpload", .method = "DELETE", .permission = "s3:AbortMultipartUpload", .has_upload = true },
        [S3_LIST_PARTS]      = { .name = "ListParts", .method = "GET", .permission = "s3:ListMultipartUploadParts", .has_upload = true },
        [S3_LIST_UPLOADS]    = { .name = "ListMultipartUploads", .method = "GET", .permission = "s3:ListBucketMultipartUploads", .is_bucket = true },
        [S3_LIST_OBJECTS]    = { .name = "ListObjectsV2", .method = "GET", .permission = "s3:ListBucket", .is_bucket = true },
};

#define KEYS_REMEDY "correct {keys}"
#define TOKEN_REMEDY "renew {keys}"
#define BUSY "nothing to do: it is retried more slowly; if it persists, lower the destination's connections"
#define STORE_ERROR "if it persists, check the store's log or status page"
#define NO_ROOM "the store is full; add space, or delete what is not needed any more"
#define OTHERS_WRITE "somebody else writes or deletes the same object; give each agent its own node.instance_id"
#define CHANGED "the bytes were changed in transit; if it persists, test this machine's memory and the network"
#define TOO_SHORT "it is shorter than requested"
#define NO_S3 "'{host}' does not answer like an S3 store; correct endpoint, or check the proxy or load balancer in between"
/* It is about who asks, or when: any other request gets the same answer. */
static const S3Rule codes_for_all[] = {
        { "AllAccessDisabled",              S3_DENIED, "the bucket or its account is closed; ask AWS Support" },
        { "AccountProblem",                 S3_DENIED, "something is wrong with the account; ask AWS Support" },
        { "NotSignedUp",                    S3_DENIED, "the account has no S3 yet; sign up for it" },
        { "InvalidAccessKeyId",             S3_DENIED, "the store does not know the access key; " KEYS_REMEDY ", or the endpoint if they belong to another store" },
        { "InvalidSecurity",                S3_DENIED, KEYS_REMEDY },
        { "SignatureDoesNotMatch",          S3_DENIED, "the secret is not the one of this access key; " KEYS_REMEDY " (a proxy that changes requests looks the same)" },
        { "UserSuspended",                  S3_DENIED, "the user of {keys} is suspended; enable it again, or use other keys" },
        { "ExpiredToken*",                  S3_EXPIRED, "the session token has expired; " TOKEN_REMEDY },
        { "TokenRefreshRequired",           S3_EXPIRED, "the session token has to be renewed; " TOKEN_REMEDY },
        { "InvalidToken",                   S3_EXPIRED, "the session token is not one for these keys or this store; " TOKEN_REMEDY },
        { "RequestTimeTooSkewed",           S3_SKEWED, "this machine's clock and the store's{time} are too far apart; set the clock, and keep it right with chrony or systemd-timesyncd" },
};

/* The first that fits counts. */
static const S3Rule codes[] = {
        /* who asks */
        { "AccessDenied",                   S3_DENIED, NULL },

        /* where it is */
        { "PermanentRedirect",              S3_REDIRECT, NULL },
        { "TemporaryRedirect",              S3_REDIRECT, NULL },
        { "Redirect",                       S3_REDIRECT, NULL },
        { "AuthorizationHeaderMalformed",   S3_REDIRECT, NULL },
        { "IllegalLocationConstraint*",     S3_REDIRECT, NULL },
        { "NoSuchBucket",                   S3_NO_BUCKET, "create bucket '{bucket}' at '{host}', or correct bucket or endpoint" },
        { "InvalidBucketName",              S3_NO_BUCKET, "the store accepts no bucket of this name; correct bucket" },
        { "NoSuchKey",                      S3_NOT_FOUND, "no such object" },
        { "NoSuchVersion",                  S3_NOT_FOUND, "no such object" },
        { "NoSuchUpload",                   S3_NO_UPLOAD, "somebody, or a lifecycle rule, has ended the upload; it starts over" },
        { "MethodNotAllowed",               S3_REFUSED, "'{host}' knows no {operation}; correct endpoint or addressing" },

        /* who else writes */
        { "PreconditionFailed",             S3_EXISTS, "an object of this name is there already" },
        { "ConditionalRequestConflict",     S3_CONFLICT, OTHERS_WRITE },
        { "ConcurrentModification",         S3_CONFLICT, OTHERS_WRITE }, /* Ceph */
        { "OperationAborted",               S3_CONFLICT, "another operation on bucket '{bucket}' is underway; wait for its end" },

        /* not now */
        { "SlowDown*",                      S3_RETRY, "the store requires fewer requests; " BUSY },
        { "Throttling*",                    S3_RETRY, "the store requires fewer requests; " BUSY },
        { "TooManyRequests*",               S3_RETRY, "the store requires fewer requests; " BUSY },
        { "RequestLimitExceeded",           S3_RETRY, "the store requires fewer requests; " BUSY },
        { "BandwidthLimitExceeded",         S3_RETRY, "the store requires fewer bytes; " BUSY },
        { "InternalError",                  S3_RETRY, "the store failed; " STORE_ERROR },
        { "ServiceUnavailable",             S3_RETRY, "the store is busy or under repair; " STORE_ERROR },
        { "RequestTimeout*",                S3_RETRY, "the store waited too long for our bytes; if it persists, check what slows the network, or lower the destination's connections" },
        { "IncompleteBody",                 S3_RETRY, "not all of our bytes arrived; if it persists, check what cuts connections in between" },

        /* no room */
        { "QuotaExceeded*",                 S3_FULL, "the quota of the user or the bucket is used up; raise it, or delete what is not needed any more" },
        { "XMinioAdminBucketQuotaExceeded", S3_FULL, "the quota of the bucket is used up; raise it, or delete what is not needed any more" },
        { "XMinioStorageFull",              S3_FULL, NO_ROOM },
        { "InsufficientStorage*",           S3_FULL, NO_ROOM },

        /* bytes that differ */
        { "InvalidPart",                    S3_BAD_PART, "the store has other parts than were sent; the upload starts over" },
        { "InvalidPartOrder",               S3_BAD_PART, "the store has other parts than were sent; the upload starts over" },
        { "EntityTooSmall",                 S3_BAD_PART, "a part is smaller than this store allows; raise part_size" },
        { "XAmzContentSHA256Mismatch",      S3_CORRUPTED, CHANGED },
        { "XAmzContentChecksumMismatch",    S3_CORRUPTED, CHANGED },
        { "BadDigest",                      S3_CORRUPTED, CHANGED },

        /* encryption */
        { "KMS.Throttling*",                S3_RETRY, "AWS KMS requires fewer requests; " BUSY ", or use a bucket key" },
        { "KMS.*Internal*",                 S3_RETRY, "AWS KMS failed; if it persists, check its status page" },
        { "KMS.DependencyTimeout*",         S3_RETRY, "AWS KMS failed; if it persists, check its status page" },
        { "KMS.NotFound*",                  S3_DENIED, "no such KMS key in the bucket's region; correct kms_key_id" },
        { "KMS.*",                          S3_DENIED, "the KMS key is disabled, about to be deleted or not for this use; enable it, or correct kms_key_id" },
        { "InvalidEncryptionAlgorithm*",    S3_REFUSED, "correct sse: none, AES256 or aws:kms" },

        /* never as it is */
        { "NotImplemented",                 S3_REFUSED, NULL },
        { "XNotImplemented",                S3_REFUSED, NULL },
        { "InvalidStorageClass",            S3_REFUSED, "the store has no such storage_class; correct it, or delete the line" },
        { "InvalidTag",                     S3_REFUSED, "correct tags: at most 10, names of 1 to 128 characters, values of at most 256" },
        { "InvalidArgument",                S3_REFUSED, NULL },
        { "InvalidRequest",                 S3_REFUSED, NULL },
        { "InvalidBucketState",             S3_REFUSED, NULL },
        { "EntityTooLarge",                 S3_REFUSED, "the store refuses this size (or, with Swift, its quota is used up); lower part_size, or raise the store's limit" },
        { "KeyTooLong*",                    S3_REFUSED, "shorten prefix: a key has at most 1,024 bytes" },
        { "InvalidObjectName",              S3_REFUSED, "the store refuses this key; see prefix" },
        { "InvalidURI",                     S3_REFUSED, "the store refuses this key; see prefix" },
        { "MetadataTooLarge",               S3_REFUSED, "shorten tags" },
        { "MissingContentLength",           S3_REFUSED, "a proxy removes Content-Length; bypass it, see proxy" },
        { "InvalidObjectState",             S3_REFUSED, "the object lies in an archive; restore it first" },
        { "InvalidRange",                   S3_REFUSED, TOO_SHORT },
};

static const S3Rule statuses[] = {
        [0]  = { "301", S3_REDIRECT, NULL },
        { "307", S3_REDIRECT, NULL },
        { "308", S3_REDIRECT, NULL },
        { "3*",  S3_REFUSED, NO_S3 },
        { "400", S3_REFUSED, NO_S3 },
        { "401", S3_DENIED, KEYS_REMEDY },
        { "403", S3_DENIED, NULL },
        { "404", S3_NOT_FOUND, "no such object" },
        { "405", S3_REFUSED, "'{host}' knows no {operation}; correct endpoint or addressing" },
        { "407", S3_UNREACHABLE, "the proxy requires authentication; leave proxy empty and put http://name:password@host:port into HTTPS_PROXY of the service's environment file" },
        { "408", S3_RETRY, "the store waited too long for our bytes; if it persists, check what slows the network" },
        { "409", S3_CONFLICT, OTHERS_WRITE },
        { "411", S3_REFUSED, "a proxy removes Content-Length; bypass it, see proxy" },
        { "412", S3_EXISTS, "an object of this name is there already" },
        { "413", S3_REFUSED, "the store, or a proxy before it, refuses this size; lower part_size, or raise that limit" },
        { "416", S3_REFUSED, TOO_SHORT },
        { "425", S3_RETRY, STORE_ERROR },
        { "429", S3_RETRY, "the store requires fewer requests; " BUSY },
        { "4*",  S3_REFUSED, NO_S3 },
        { "501", S3_REFUSED, NULL },
        { "503", S3_RETRY, "the store is busy or under repair; " BUSY },
        { "505", S3_REFUSED, NO_S3 },
        { "507", S3_FULL, NO_ROOM },
        { "5*",  S3_RETRY, "the store, or a proxy before it, failed; " STORE_ERROR },
        { "*",   S3_RETRY, NO_S3 },
};

static const S3Rule http_errors[] = {
        [0]                = { NULL, S3_RETRY, "if it persists, check the network and the store" },
        [HTTP_E_RESOLVE]   = { NULL, S3_UNREACHABLE, "correct endpoint or region, or see whether name look-ups work (DNS)" },
        [HTTP_E_CONNECT]   = { NULL, S3_UNREACHABLE, "see whether the store runs, and whether routes and firewalls let us through" },
        [HTTP_E_TLS]       = { NULL, S3_UNREACHABLE, "name the store's authority in ca_file, or fix its certificate (name, dates); see this machine's clock, too" },
        [HTTP_E_STALLED]   = { NULL, S3_UNREACHABLE, "if it persists, check the network and the store, or raise request_timeout" },
        [HTTP_E_TIMEOUT]   = { NULL, S3_UNREACHABLE, "if it persists, check the network and the store" },
        [HTTP_E_CUT]       = { NULL, S3_UNREACHABLE, "if it persists, check what cuts connections in between" },
        [HTTP_E_TOO_LARGE] = { NULL, S3_REFUSED, NO_S3 },
        [HTTP_E_STOPPED]   = { NULL, S3_REFUSED, "we ended it ourselves" },
        [HTTP_E_PROXY]     = { NULL, S3_UNREACHABLE, "correct proxy, or http_proxy, https_proxy and no_proxy in the environment" },
        [HTTP_E_MEMORY]    = { NULL, S3_RETRY, "give this machine, or this service, more memory" },
};

/* clang-format on */

/* A `*` stands for any text, also for none. */
static bool fits(const char *pattern, const char *text) {
        for (; *pattern != '*'; pattern++, text++) {
                if (*pattern != *text)
                        return false;
                if (*pattern == '\0')
                        return true;
        }
        for (;; text++) {
                if (fits(pattern + 1, text))
                        return true;
                if (*text == '\0')
                        return false;
        }
}

static const S3Rule *find(const S3Rule *rules, size_t n, const char *code) {
        for (size_t i = 0; i < n; i++)
                if (fits(rules[i].code, code))
                        return &rules[i];
        return NULL;
}

static const S3Rule *s3_rule_of_code(const char *code) {
        const S3Rule *rule = find(codes_for_all, ELEMENTSOF(codes_for_all), code);

        return rule ? rule : find(codes, ELEMENTSOF(codes), code);
}

static bool s3_rule_is_for_all(const S3Rule *rule) {
        for (size_t i = 0; i < ELEMENTSOF(codes_for_all); i++)
                if (rule == &codes_for_all[i])
                        return true;
        return false;
}

static const S3Rule *s3_rule_of_status(unsigned status) {
        char text[16];
        const S3Rule *rule = statuses;

        (void)snprintf(text, sizeof text, "%u", status);
        while (!fits(rule->code, text))
                rule++; /* ends at the last one, which fits all */
        return rule;
}

static const S3Rule *s3_rule_of_http_error(int error) {
        return &http_errors[error > 0 && (size_t)error < ELEMENTSOF(http_errors) ? error : 0];
}

/* From an answer to a verdict and a sentence: what depends on more than the code. */

#define RETRY_AFTER_MAX_USEC (5 * USEC_PER_MINUTE)
#define REQUEST_ID_MAX 128
#define TITLE_MAX 80
/* S3 allows 15 minutes, but Date has whole seconds, and the answer took its time: 403 of a HEAD
 * is blamed on the clock somewhat before, for at the worst it costs one more request. */
#define SKEW_SUSPECT_USEC (14 * USEC_PER_MINUTE)
const char *s3_operation_name(S3Operation o) {
        return operations[o].name;
}

const char *s3_operation_method(S3Operation o) {
        return operations[o].method;
}

const char *s3_operation_permission(S3Operation o) {
        return operations[o].permission;
}

/* ── the verdict ── */

/* What judging found out, for the sentence. */
typedef struct Judgement {
        const S3ResponseInput *in;
        const S3OperationRule *operation;
        S3Response *answer;
        const S3Rule *rule;
        bool has_document; /* the body was an <Error> */
} Judgement;

static const char *or_nothing(const char *text) {
        return text ? text : "";
}

/* The region that the answer names, if it is another than ours. */
static void learn_region(Judgement *j) {
        S3Response *a = j->answer;
        const char *known[] = { j->in->bucket_region, a->error.region };

        for (size_t i = 0; i < ELEMENTSOF(known); i++) {
                if (!known[i] || !aws_region_is_sane(known[i]))
                        continue;
                if (!j->in->region || strcmp(known[i], j->in->region) != 0)
                        (void)snprintf(a->region, sizeof a->region, "%s", known[i]);
                return;
        }
}

/* @return whether an answer is not the store's: it has no error document, or, to HEAD, no request
 * id */
static bool is_strange(const Judgement *j) {
        return j->operation->is_head ? j->in->is_foreign : !j->has_document;
}

/* The 404 of a proxy that has lost its store, or of a load balancer: nothing is missing but the
 * store. */
static bool is_strange_404(const Judgement *j) {
        return j->in->status == 404 && is_strange(j);
}

/* @return whether a redirect is a login page's of a portal or proxy: S3 names the bucket's region,
 * or sends an error document */
static bool is_strange_redirect(const Judgement *j) {
        return j->in->status >= 300 && j->in->status < 400 && !j->has_document &&
               !j->in->bucket_region && (!j->operation->is_head || j->in->location);
}

/* S3 sends an ETag in each answer with or about an object. */
static bool is_strange_object(const Judgement *j) {
        S3Operation o = j->in->operation;

        return (o == S3_HEAD_OBJECT || o == S3_GET_OBJECT) &&
               (!j->in->has_etag || j->in->is_foreign);
}

/* A 404 says that something is missing; what it is depends on what was asked. */
static void classify_missing(Judgement *j) {
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

static void classify_redirect(Judgement *j) {
        if (is_strange_redirect(j)) {
                j->answer->verdict = S3_RETRY;
                return;
        }
        learn_region(j);
        /* A region that is ours already was not the fault. */
        if (j->answer->region[0] == '\0' &&
            strcmp(j->answer->error.code, "AuthorizationHeaderMalformed") == 0)
                j->answer->verdict = S3_DENIED;
}

static bool is_skewed(const S3ResponseInput *in) {
        uint64_t theirs;

        if (in->now_usec == 0 || !in->date || http_date_parse(in->date, &theirs) < 0)
                return false;
        return MAX(theirs, in->now_usec) - MIN(theirs, in->now_usec) > SKEW_SUSPECT_USEC;
}

/* A HEAD has no body that gives the reason. AWS says 400 of an expired token and of a wrong
 * region, 403 of a wrong clock. */
static void classify_head(Judgement *j) {
        if (j->in->status == 403 && is_skewed(j->in)) {
                j->rule = s3_rule_of_code("RequestTimeTooSkewed");
                j->answer->verdict = j->rule->verdict;
        }
        if (j->in->status != 400)
                return;
        learn_region(j);
        j->answer->verdict = j->answer->region[0] ? S3_REDIRECT : S3_EXPIRED;
}

static void classify_by_rule(Judgement *j) {
        const S3ResponseInput *in = j->in;
        S3Response *a = j->answer;

        a->verdict = j->rule->verdict;
        if (a->verdict == S3_NOT_FOUND)
                classify_missing(j);
        else if (a->verdict == S3_REDIRECT)
                classify_redirect(j);
        else if (j->operation->is_head && !j->has_document)
                classify_head(j);
        else if (in->is_conditional && in->status == 501 && j->has_document)
                a->verdict = S3_UNCONDITIONAL;
        else if (a->verdict == S3_BAD_PART && in->operation != S3_COMPLETE_UPLOAD)
                a->verdict = S3_REFUSED;
}

/* Reads the <Error>, if the body is one. */
static int read_document(Judgement *j) {
        int r = aws_xml_error(j->in->body, j->in->body_bytes, &j->answer->error);

        if (r == -ENOMEM)
                return r;
        j->has_document = r == 0;
        return 0;
}

/* @return whether a portal or proxy has answered: S3's answers to PUT have no body */
static bool is_page(const Judgement *j) {
        static const char *const beginnings[] = { "<!doctype html", "<html" };
        const char *body = or_nothing(j->in->body);
        size_t n = j->in->body_bytes;

        if (n == 0 || j->has_document || j->in->operation == S3_GET_OBJECT)
                return false;
        if (j->in->operation == S3_PUT_OBJECT || j->in->operation == S3_UPLOAD_PART)
                return true;
        for (; n > 0 && strchr(" \t\r\n", *body); n--)
                body++;
        for (size_t i = 0; i < ELEMENTSOF(beginnings); i++)
                if (n > strlen(beginnings[i]) &&
                    strncasecmp(body, beginnings[i], strlen(beginnings[i])) == 0)
                        return true;
        return false;
}

/* A 200 may still be a failure: S3 begins its answer to Complete before it knows. @return whether
 * all is well, -ENOMEM */
static int classify_success(Judgement *j) {
        const S3ResponseInput *in = j->in;
        char etag[S3_ETAG_SIZE];
        int r;

        if (is_strange_object(j)) {
                j->rule = s3_rule_of_status(0);
                j->answer->verdict = j->rule->verdict;
                return 0;
        }
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
        if (is_page(j)) {
                j->rule = s3_rule_of_status(0);
                j->answer->verdict = j->rule->verdict;
                return 0;
        }
        if (!j->has_document && in->operation != S3_COMPLETE_UPLOAD)
                return 1;
        j->rule = s3_rule_of_code(j->answer->error.code);
        if (!j->rule)
                j->rule = s3_rule_of_status(500);
        classify_by_rule(j);
        return 0;
}

/* Whether an incomplete answer is enough: a store (or a proxy) that refuses a request need
 * not wait for its body. */
static bool is_known_text(const Judgement *j) {
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
static int classify(Judgement *j) {
        const S3ResponseInput *in = j->in;

        if (in->http_error == 0 && in->status >= 200 && in->status < 300)
                return classify_success(j);
        int r = read_document(j);
        if (r < 0)
                return r;
        if (!is_known_text(j)) {
                j->rule = s3_rule_of_http_error(in->http_error);
                j->answer->verdict = j->rule->verdict;
                return 0;
        }
        j->rule = s3_rule_of_code(j->answer->error.code);
        if (!j->rule)
                j->rule = s3_rule_of_status(in->status);
        classify_by_rule(j);
        return 0;
}

/* ── the sentence ── */

static void add_keys(StrBuf *b, const S3ResponseInput *in) {
        strbuf_add(b, "the keys");
        if (in->credentials_origin && in->credentials_origin[0]) {
                strbuf_add(b, " from ");
                strbuf_add_escaped(b, in->credentials_origin);
        }
}

static void add_bucket_arn(StrBuf *b, const S3ResponseInput *in) {
        strbuf_addf(b, "arn:%s:s3:::", aws_partition_name(in->region));
        strbuf_add_escaped(b, or_nothing(in->bucket));
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
        strbuf_add_escaped(b, time);
        strbuf_add(b, ")");
}

/* Fills in one `{name}`. @param name  what stands between the braces, and on */
static void add_filling(StrBuf *b, const Judgement *j, const char *name) {
        const S3ResponseInput *in = j->in;
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
                { "location}", or_nothing(in->location) },
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
                        strbuf_add_escaped(b, fillings[i].text);
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

/* AWS often says which action is missing (`… is not authorized to perform: kms:Decrypt on
 * resource: …`).
 * @return the action's size; 0 when it does not */
static size_t action_denied(const char *message, const char **ret) {
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
                           ", and s3:ListBucket on {arn}, without which a missing object looks the "
                           "same");
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
                strbuf_add(b, "; some stores answer the same to a wrong access key or secret");
}

static void add_access_remedy(StrBuf *b, const Judgement *j) {
        const char *message = j->answer->error.message, *action = j->operation->permission;
        size_t n = action_denied(message, &action);

        if (strstr(message, "explicit deny")) {
                strbuf_add(b, "a policy denies ");
                strbuf_add_n(b, action, n > 0 ? n : strlen(action));
                add_filled(b, j, " explicitly; exempt {keys} from it");
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
        return j->in->bucket_region || j->answer->error.region[0]
                       ? "the bucket is in region '{region}', as configured, and '{host}' sends us "
                         "elsewhere: correct endpoint, or wait some minutes if the bucket is new"
                       : "'{host}' sends us elsewhere and does not say where; correct region "
                         "('{region}') or endpoint, or wait some minutes if the bucket is new";
}

static const char *refused_remedy(const Judgement *j) {
        bool is_missing =
                strstr(or_nothing(j->rule->code), "NotImplemented") || j->in->status == 501;

        if (is_missing)
                return j->operation->is_write ? "the store lacks something that is requested; see "
                                                "sse, kms_key_id, storage_class and tags"
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
        const S3ResponseInput *in = j->in;
        const S3Response *a = j->answer;

        if (a->verdict == S3_UNCONDITIONAL)
                return "the store has no conditional writes; give each agent its own "
                       "node.instance_id, then they are not needed";
        if (a->verdict == S3_EXPIRED && !j->has_document)
                return "the store gives no reason in a response to HEAD: renew {keys} if they have "
                       "a session "
                       "token, and see whether region '{region}' is right";
        if (a->verdict == S3_REDIRECT)
                return redirect_remedy(j);
        if (strcmp(a->error.code, "AuthorizationHeaderMalformed") == 0)
                return "correct region ('{region}') or {keys}";
        if (is_strange_redirect(j) && in->location)
                return "'{host}' does not answer like an S3 store: it sends us to '{location}'; "
                       "correct endpoint, or check the proxy or load balancer in between";
        if (is_strange_404(j) || (in->status >= 200 && in->status < 300 && !j->has_document) ||
            (!j->operation->is_head && is_strange(j) && in->status == 403 && in->body_bytes > 0))
                return NO_S3;
        if (a->verdict == S3_REFUSED && a->error.code[0] && !s3_rule_of_code(a->error.code))
                return "see the store's words, and the destination's settings";
        return NULL;
}

static void add_remedy(StrBuf *b, const Judgement *j) {
        const char *special = is_known_text(j) ? special_remedy(j) : NULL;

        if (special || j->rule->remedy)
                add_filled(b, j, special ? special : j->rule->remedy);
        else if (j->answer->verdict == S3_DENIED)
                add_access_remedy(b, j);
        else
                add_filled(b, j, refused_remedy(j));
}

/* Adds the title of a page, which a person will recognise. @return whether it has one */
static bool add_title(StrBuf *b, const S3ResponseInput *in) {
        static const char before[] = "<title>";
        const char *body = or_nothing(in->body);
        const char *title = memmem(body, in->body_bytes, before, sizeof before - 1);
        char text[TITLE_MAX + 1] = "";

        if (!title)
                return false;
        title += sizeof before - 1;
        size_t n = MIN((size_t)(body + in->body_bytes - title), (size_t)TITLE_MAX);
        const char *end = memchr(title, '<', n);
        memcpy(text, title, end ? (size_t)(end - title) : n);
        strbuf_add(b, " with the page '");
        strbuf_add_escaped(b, text);
        strbuf_add(b, "'");
        return true;
}

/* What the store said: `403 AccessDenied (Access Denied)`. */
static void add_words(StrBuf *b, const Judgement *j) {
        const AwsError *e = &j->answer->error;
        size_t n = strlen(e->message);

        strbuf_addf(b, "%u", j->in->status);
        if (e->code[0]) {
                strbuf_addf(b, " %s", e->code);
                while (n > 0 && strchr(" .", e->message[n - 1]))
                        n--;
                if (n > 0)
                        strbuf_addf(b, " (%.*s)", (int)n, e->message);
        } else if (!add_title(b, j->in))
                strbuf_add(b, j->in->body_bytes > 0 ? " with a body that is not S3's"
                                                    : " without an error code");
}

static void add_id(StrBuf *b, const char *value) {
        for (size_t i = 0; i < REQUEST_ID_MAX && value[i]; i++)
                if (value[i] > ' ' && value[i] <= '~' && !strchr("[]\"'\\", value[i]))
                        strbuf_add_n(b, &value[i], 1);
}

static void add_request_ids(StrBuf *b, const S3ResponseInput *in) {
        const struct {
                const char *name, *value;
        } ids[] = { { "request-id", in->request_id }, { "id-2", in->request_id_2 } };
        const char *separator = UPLOAD_REQUEST_ID_TEXT;

        for (size_t i = 0; i < ELEMENTSOF(ids); i++) {
                if (!ids[i].value || !ids[i].value[0])
                        continue;
                strbuf_addf(b, "%s%s ", separator, ids[i].name);
                add_id(b, ids[i].value);
                separator = ", x-amz-";
        }
        strbuf_add(b, separator[0] == ',' ? "]" : "");
}

static char *build_sentence(const Judgement *j) {
        const S3ResponseInput *in = j->in;
        StrBuf b = STRBUF_INIT;

        strbuf_addf(&b, "%s of 's3://", j->operation->name);
        strbuf_add_escaped(&b, or_nothing(in->bucket));
        if (in->key && in->key[0]) {
                strbuf_add(&b, "/");
                strbuf_add_escaped(&b, in->key);
        }
        strbuf_add(&b, "' at '");
        strbuf_add_escaped(&b, or_nothing(in->host));
        strbuf_add(&b, "' failed: ");
        if (is_known_text(j))
                add_words(&b, j);
        else
                strbuf_add_escaped(&b,
                                   in->http_text && in->http_text[0] ? in->http_text : "no answer");
        strbuf_add(&b, "; ");
        add_remedy(&b, j);
        add_request_ids(&b, in);
        return strbuf_detach(&b);
}

/* ── both ── */

/* @see RFC 9110, 10.2.3: seconds, or a date, which is one of the server's clock */
static uint64_t read_retry_after(const S3ResponseInput *in) {
        uint64_t n, now_usec;

        if (!in->retry_after)
                return 0;
        int r = parse_u64(in->retry_after, &n);
        if (r == -ERANGE || (r == 0 && n > RETRY_AFTER_MAX_USEC / USEC_PER_SEC))
                return RETRY_AFTER_MAX_USEC;
        if (r == 0)
                return n * USEC_PER_SEC;
        if (!in->date || http_date_parse(in->date, &now_usec) < 0)
                now_usec = in->now_usec;
        if (now_usec == 0 || http_date_parse(in->retry_after, &n) < 0 || n <= now_usec)
                return 0;
        return MIN(n - now_usec, RETRY_AFTER_MAX_USEC);
}

int s3_response_classify(const S3ResponseInput *in, S3Response *ret) {
        S3Response a = { .verdict = S3_OK };
        Judgement j = { .in = in, .operation = &operations[in->operation], .answer = &a };
        int r = classify(&j);

        if (r < 0)
                return r;
        if (r == 0) {
                a.retry_after_usec = read_retry_after(in);
                a.is_for_all = s3_rule_is_for_all(j.rule);
                a.sentence = build_sentence(&j);
        }
        *ret = a;
        return 0;
}

void s3_response_done(S3Response *a) {
        free(a->sentence);
        *a = (S3Response){ 0 };
}
