/* @see Amazon S3 API Reference, "Error responses"; Ceph's rgw_common.cc and Swift's s3api/s3response.py for theirs */
#include "uploaders/s3/s3_answer_rules.h"

#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/http/http.h"

/* clang-format off */
static const S3OperationRule operations[N_S3_OPERATIONS] = {
        [S3_HEAD_BUCKET]     = { .name = "HeadBucket", .permission = "s3:ListBucket", .is_bucket = true, .is_head = true },
        [S3_HEAD_OBJECT]     = { .name = "HeadObject", .permission = "s3:GetObject", .is_head = true },
        [S3_GET_OBJECT]      = { .name = "GetObject", .permission = "s3:GetObject" },
        [S3_PUT_OBJECT]      = { .name = "PutObject", .permission = "s3:PutObject", .is_write = true },
        [S3_DELETE_OBJECT]   = { .name = "DeleteObject", .permission = "s3:DeleteObject" },
        [S3_CREATE_UPLOAD]   = { .name = "CreateMultipartUpload", .permission = "s3:PutObject", .is_write = true },
        [S3_UPLOAD_PART]     = { .name = "UploadPart", .permission = "s3:PutObject", .has_upload = true },
        [S3_COMPLETE_UPLOAD] = { .name = "CompleteMultipartUpload", .permission = "s3:PutObject", .has_upload = true },
        [S3_ABORT_UPLOAD]    = { .name = "AbortMultipartUpload", .permission = "s3:AbortMultipartUpload", .has_upload = true },
        [S3_LIST_PARTS]      = { .name = "ListParts", .permission = "s3:ListMultipartUploadParts", .has_upload = true },
        [S3_LIST_UPLOADS]    = { .name = "ListMultipartUploads", .permission = "s3:ListBucketMultipartUploads", .is_bucket = true },
        [S3_LIST_OBJECTS]    = { .name = "ListObjectsV2", .permission = "s3:ListBucket", .is_bucket = true },
};

#define KEYS_REMEDY "correct {keys}"
#define TOKEN_REMEDY "renew {keys}"
#define BUSY "nothing to do: it is tried again, more slowly; if it goes on, lower the destination's connections"
#define STORE_FAULT "if it goes on, look at the store's log or status page"
#define NO_ROOM "the store has no room left; give it some, or delete what is not needed any more"
#define OTHERS_WRITE "somebody else writes or deletes the same object; give each agent its own node.instance_id"
#define CHANGED "the bytes were changed on the way; if it goes on, test this machine's memory and the network"
#define TOO_SHORT "it is shorter than asked for"
#define NO_S3 "'{host}' does not answer like an S3 store; correct endpoint, or see what stands between"

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
        { "InvalidBucketName",              S3_NO_BUCKET, "the store takes no bucket of this name; correct bucket" },
        { "NoSuchKey",                      S3_NOT_FOUND, "there is no such object" },
        { "NoSuchVersion",                  S3_NOT_FOUND, "there is no such object" },
        { "NoSuchUpload",                   S3_NO_UPLOAD, "somebody, or a lifecycle rule, has ended the upload; it has to begin anew" },
        { "MethodNotAllowed",               S3_REFUSED, "'{host}' knows no {operation}; correct endpoint or addressing" },

        /* who else writes */
        { "PreconditionFailed",             S3_EXISTS, "an object of this name is there already" },
        { "ConditionalRequestConflict",     S3_CONFLICT, OTHERS_WRITE },
        { "ConcurrentModification",         S3_CONFLICT, OTHERS_WRITE }, /* Ceph */
        { "OperationAborted",               S3_CONFLICT, "another operation on bucket '{bucket}' is underway; wait for its end" },

        /* not now */
        { "SlowDown*",                      S3_RETRY, "the store wants fewer requests; " BUSY },
        { "Throttling*",                    S3_RETRY, "the store wants fewer requests; " BUSY },
        { "TooManyRequests*",               S3_RETRY, "the store wants fewer requests; " BUSY },
        { "RequestLimitExceeded",           S3_RETRY, "the store wants fewer requests; " BUSY },
        { "BandwidthLimitExceeded",         S3_RETRY, "the store wants fewer bytes; " BUSY },
        { "InternalError",                  S3_RETRY, "the store failed; " STORE_FAULT },
        { "ServiceUnavailable",             S3_RETRY, "the store is busy or under repair; " STORE_FAULT },
        { "RequestTimeout*",                S3_RETRY, "the store waited too long for our bytes; if it goes on, see what slows the network, or lower the destination's connections" },
        { "IncompleteBody",                 S3_RETRY, "not all of our bytes arrived; if it goes on, see what cuts connections on the way" },

        /* no room */
        { "QuotaExceeded*",                 S3_FULL, "the quota of the user or the bucket is used up; raise it, or delete what is not needed any more" },
        { "XMinioAdminBucketQuotaExceeded", S3_FULL, "the quota of the bucket is used up; raise it, or delete what is not needed any more" },
        { "XMinioStorageFull",              S3_FULL, NO_ROOM },
        { "InsufficientStorage*",           S3_FULL, NO_ROOM },

        /* bytes that differ */
        { "InvalidPart",                    S3_BAD_PART, "the store has other parts than were sent; the upload has to begin anew" },
        { "InvalidPartOrder",               S3_BAD_PART, "the store has other parts than were sent; the upload has to begin anew" },
        { "EntityTooSmall",                 S3_BAD_PART, "a part is smaller than this store allows; raise part_size" },
        { "XAmzContentSHA256Mismatch",      S3_CORRUPTED, CHANGED },
        { "XAmzContentChecksumMismatch",    S3_CORRUPTED, CHANGED },
        { "BadDigest",                      S3_CORRUPTED, CHANGED },

        /* encryption */
        { "KMS.Throttling*",                S3_RETRY, "AWS KMS wants fewer requests; " BUSY ", or use a bucket key" },
        { "KMS.*Internal*",                 S3_RETRY, "AWS KMS failed; if it goes on, look at its status page" },
        { "KMS.DependencyTimeout*",         S3_RETRY, "AWS KMS failed; if it goes on, look at its status page" },
        { "KMS.NotFound*",                  S3_DENIED, "there is no such KMS key in the bucket's region; correct kms_key_id" },
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
        { "EntityTooLarge",                 S3_REFUSED, "the store takes nothing of this size (or, with Swift, its quota is used up); lower part_size, or raise the store's limit" },
        { "KeyTooLong*",                    S3_REFUSED, "shorten prefix: a key has at most 1,024 bytes" },
        { "InvalidObjectName",              S3_REFUSED, "the store takes no key like this; see prefix" },
        { "InvalidURI",                     S3_REFUSED, "the store takes no key like this; see prefix" },
        { "MetadataTooLarge",               S3_REFUSED, "shorten tags" },
        { "MissingContentLength",           S3_REFUSED, "something on the way takes Content-Length away; go round it, see proxy" },
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
        { "404", S3_NOT_FOUND, "there is no such object" },
        { "405", S3_REFUSED, "'{host}' knows no {operation}; correct endpoint or addressing" },
        { "407", S3_UNREACHABLE, "the proxy wants to know who asks; leave proxy empty and put http://name:password@host:port into HTTPS_PROXY of the service's environment file" },
        { "408", S3_RETRY, "the store waited too long for our bytes; if it goes on, see what slows the network" },
        { "409", S3_CONFLICT, OTHERS_WRITE },
        { "411", S3_REFUSED, "something on the way takes Content-Length away; go round it, see proxy" },
        { "412", S3_EXISTS, "an object of this name is there already" },
        { "413", S3_REFUSED, "the store, or a proxy before it, takes nothing of this size; lower part_size, or raise that limit" },
        { "416", S3_REFUSED, TOO_SHORT },
        { "425", S3_RETRY, STORE_FAULT },
        { "429", S3_RETRY, "the store wants fewer requests; " BUSY },
        { "4*",  S3_REFUSED, NO_S3 },
        { "501", S3_REFUSED, NULL },
        { "503", S3_RETRY, "the store is busy or under repair; " BUSY },
        { "505", S3_REFUSED, NO_S3 },
        { "507", S3_FULL, NO_ROOM },
        { "5*",  S3_RETRY, "the store, or a proxy before it, failed; " STORE_FAULT },
        { "*",   S3_RETRY, NO_S3 },
};

static const S3Rule http_errors[] = {
        [0]                = { NULL, S3_RETRY, "if it goes on, see whether the network and the store are well" },
        [HTTP_E_RESOLVE]   = { NULL, S3_UNREACHABLE, "correct endpoint or region, or see whether name look-ups work (DNS)" },
        [HTTP_E_CONNECT]   = { NULL, S3_UNREACHABLE, "see whether the store runs, and whether routes and firewalls let us through" },
        [HTTP_E_TLS]       = { NULL, S3_UNREACHABLE, "name the store's authority in ca_file, or mend its certificate (name, dates); see this machine's clock, too" },
        [HTTP_E_STALLED]   = { NULL, S3_RETRY, "if it goes on, see whether the network and the store are well, or raise request_timeout" },
        [HTTP_E_TIMEOUT]   = { NULL, S3_RETRY, "if it goes on, see whether the network and the store are well" },
        [HTTP_E_CUT]       = { NULL, S3_RETRY, "if it goes on, see what cuts connections on the way" },
        [HTTP_E_TOO_LARGE] = { NULL, S3_REFUSED, NO_S3 },
        [HTTP_E_STOPPED]   = { NULL, S3_REFUSED, "we ended it ourselves" },
        [HTTP_E_PROXY]     = { NULL, S3_UNREACHABLE, "correct proxy, or http_proxy, https_proxy and no_proxy in the environment" },
        [HTTP_E_MEMORY]    = { NULL, S3_RETRY, "give this machine, or this service, more memory" },
};
/* clang-format on */

const S3OperationRule *s3_rule_of_operation(S3Operation o) {
        return &operations[o];
}

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

const S3Rule *s3_rule_of_code(const char *code) {
        const S3Rule *rule = find(codes_for_all, ELEMENTSOF(codes_for_all), code);

        return rule ? rule : find(codes, ELEMENTSOF(codes), code);
}

bool s3_rule_is_for_all(const S3Rule *rule) {
        for (size_t i = 0; i < ELEMENTSOF(codes_for_all); i++)
                if (rule == &codes_for_all[i])
                        return true;
        return false;
}

const S3Rule *s3_rule_of_status(unsigned status) {
        char text[16];
        const S3Rule *rule = statuses;

        (void)snprintf(text, sizeof text, "%u", status);
        while (!fits(rule->code, text))
                rule++; /* ends at the last one, which fits all */
        return rule;
}

const S3Rule *s3_rule_of_http_error(int error) {
        return &http_errors[error > 0 && (size_t)error < ELEMENTSOF(http_errors) ? error : 0];
}
