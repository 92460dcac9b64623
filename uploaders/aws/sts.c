/* Requests the keys of one role from STS: signs the request or sends a web identity's token,
 * repeats it once by the server's clock, and turns the answer into keys or a sentence. Which role,
 * and by which keys, is decided by credentials_plan.c. */
#include "uploaders/aws/sts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/digest.h"
#include "lib/base/strbuf.h"
#include "lib/http/http.h"
#include "uploaders/aws/aws_parse.h"
#include "uploaders/aws/aws_xml.h"
#include "uploaders/aws/credentials_secret.h"

#define API_VERSION "2011-06-15"
#define FORM_TYPE "application/x-www-form-urlencoded; charset=utf-8"
#define TOTAL_USEC (60 * USEC_PER_SEC)
#define REPLY_MAX_BYTES ((size_t)(64 * KIB))
/* A smaller difference is the time that a reply takes; no signature fails because of it. */
#define MIN_SKEW_USEC ((int64_t)(60 * USEC_PER_SEC))

static int sign(const Sts *s, Signature *ret);
static int start_call(Sts *s);

struct Sts {
        Clock *clock;             /* borrowed */
        const StsEndpoint *place; /* borrowed */
        HttpPool *pool;
        HttpCall *call;            /* underway */
        int64_t offset_usec;       /* how far the server's clock is ahead of ours */
        bool is_retried_for_clock; /* this request was made again by the server's clock */
        char *body;                /* on the heap, wiped: a web identity's token is in it */
        size_t body_bytes, n_allocated;
        bool is_signed;
        CredentialsSet keys;     /* to sign with */
        char *role_arn, *origin; /* for the sentence */
        void (*on_done)(const CredentialsSet *set, const char *error, void *userdata);
        void *userdata;
};

Sts *sts_free(Sts *s) {
        if (!s)
                return NULL;
        http_call_cancel(s->call);
        http_pool_free(s->pool);
        if (s->body)
                digest_wipe(s->body, s->n_allocated);
        free(s->body);
        credentials_set_done(&s->keys);
        free(s->role_arn);
        free(s->origin);
        free(s);
        return NULL;
}

/* The answer */

static void fail(Sts *s, char *error /* ours */) {
        s->on_done(NULL, error ? error : "out of memory", s->userdata);
        free(error);
}
#define failf(s, ...) fail(s, format_sentence(__VA_ARGS__))

/* @return whether the server's clock differs from what the request was signed by */
static bool update_clock_offset(Sts *s, const HttpReply *reply) {
        const char *date = http_reply_header(reply, "date");
        uint64_t there_usec;

        if (!date || http_date_parse(date, &there_usec) < 0)
                return false;
        int64_t offset_usec = (int64_t)(there_usec - s->clock->realtime_usec(s->clock));
        if (llabs(offset_usec) < MIN_SKEW_USEC)
                offset_usec = 0;
        bool differs = llabs(offset_usec - s->offset_usec) >= MIN_SKEW_USEC;
        if (differs)
                s->offset_usec = offset_usec;
        return differs;
}

typedef struct Remedy {
        const char *code, *text;
} Remedy;

/* clang-format off */
static const Remedy remedies[] = {
        { "AccessDenied", "let the role's trust policy name this identity, and allow sts:AssumeRole to it" },
        { "ExpiredToken", "renew the keys that request the role" },
        { "ExpiredTokenException", "token expired: is its file still being renewed?" },
        { "IDPCommunicationError", "STS cannot reach the OIDC provider: it is tried again" },
        { "InvalidClientTokenId", "these keys are not known there: renew them" },
        { "InvalidIdentityToken", "let the account have an IAM OIDC provider for the cluster, and the token be meant for sts.amazonaws.com" },
        { "RegionDisabledException", "activate STS in this region for the account, or set AWS_REGION to another" },
        { "SignatureDoesNotMatch", "the secret key does not belong to the access key, or is damaged" },
        { "ValidationError", "check role_arn, role_session_name and duration_seconds" },
};

/* clang-format on */

static const char *find_remedy(const char *code) {
        for (size_t i = 0; i < ELEMENTSOF(remedies); i++)
                if (strcmp(remedies[i].code, code) == 0)
                        return remedies[i].text;
        return NULL;
}

static char *explain_refusal(const Sts *s, const HttpReply *reply) {
        AwsError e = { 0 };

        if (aws_xml_error(reply->body, reply->body_bytes, &e) < 0 || !e.code[0])
                return format_sentence(
                        "STS at %s answers %u to a request for the role %s by %s; is "
                        "it an STS endpoint?",
                        s->place->host, reply->status, s->role_arn, s->origin);
        const char *remedy = find_remedy(e.code);
        /* Of a signature that does not match the message may spell out what was signed, the
         * session token included. */
        bool shows_message = e.message[0] && strncmp(e.code, "Signature", strlen("Signature")) != 0;
        return format_sentence("STS at %s refuses the role %s to %s: %s%s%s%s%s", s->place->host,
                               s->role_arn, s->origin, e.code, shows_message ? ": " : "",
                               shows_message ? e.message : "", remedy ? "; " : "",
                               remedy ? remedy : "");
}

static int sts_leaf(void *document, const char *path, const char *text) {
        StsCredentials *c = document;
        const char *name = strstr(path, "Result/Credentials/"); /* AssumeRoleResult, … */

        if (!name)
                return 0;
        name += strlen("Result/Credentials/");
        if (strcmp(name, "AccessKeyId") == 0)
                return xml_put_text(&c->access_key, text);
        if (strcmp(name, "SecretAccessKey") == 0)
                return xml_put_text(&c->secret_key, text);
        if (strcmp(name, "SessionToken") == 0)
                return xml_put_text(&c->token, text);
        if (strcmp(name, "Expiration") == 0)
                return xml_put_time(&c->expires_usec, text);
        return 0;
}

int sts_xml_credentials(const char *text, size_t n, StsCredentials *ret) {
        StsCredentials c = { 0 };
        int r = xml_walk(text, n, &(XmlReader){ .on_leaf = sts_leaf, .document = &c });

        if (r == 0 && !(c.access_key && c.access_key[0] && c.secret_key && c.secret_key[0] &&
                        c.token && c.token[0] && c.expires_usec > 0))
                r = -EINVAL;
        if (r < 0)
                sts_credentials_done(&c);
        else
                *ret = c;
        return r;
}

void sts_credentials_done(StsCredentials *c) {
        digest_wipe_free(c->access_key);
        digest_wipe_free(c->secret_key);
        digest_wipe_free(c->token);
        *c = (StsCredentials){ 0 };
}

/* Expirations are times of the server's clock and are compared with ours. */
static int parse_response(Sts *s, const HttpReply *reply, CredentialsSet *ret) {
        StsCredentials got;

        int r = sts_xml_credentials(reply->body, reply->body_bytes, &got);
        if (r < 0)
                return r;
        uint64_t expires_usec = got.expires_usec;
        if (expires_usec > 0 &&
            __builtin_sub_overflow((int64_t)expires_usec, s->offset_usec, (int64_t *)&expires_usec))
                expires_usec = got.expires_usec;
        r = credentials_set_init(ret,
                                 &(AwsKeys){ .access_key = got.access_key,
                                             .secret_key = got.secret_key,
                                             .token = got.token },
                                 expires_usec);
        sts_credentials_done(&got);
        return r;
}

static void on_reply(const HttpReply *reply, void *userdata) {
        Sts *s = userdata;
        CredentialsSet set = { 0 };

        s->call = NULL;
        if (reply->error)
                return failf(s, "STS does not answer (%s)", reply->text);
        bool was_skewed = update_clock_offset(s, reply);
        if (reply->status != 200) {
                if (was_skewed && s->is_signed && !s->is_retried_for_clock) {
                        s->is_retried_for_clock = true;
                        int r = start_call(s);
                        if (r < 0)
                                failf(s, "cannot reach STS: %s", strerror(-r));
                        return;
                }
                return fail(s, explain_refusal(s, reply));
        }
        int r = parse_response(s, reply, &set);
        credentials_secret_wipe_borrowed(reply->body, reply->body_bytes);
        if (r == -ENOMEM)
                return fail(s, NULL);
        if (r < 0)
                return failf(
                        s,
                        "the answer of STS at %s has no credentials in it; is it an STS endpoint?",
                        s->place->host);
        s->on_done(&set, NULL, s->userdata);
        credentials_set_done(&set);
}

/* The question */

static void add_field(StrBuf *b, const char *name, const char *value) {
        if (!value)
                return;
        strbuf_addf(b, "&%s=", name);
        aws_escape(b, value, false);
}

static int build_body(Sts *s, const StsRequest *o) {
        size_t n_values = strlen(o->role_arn) + strlen(o->session_name) +
                          (o->external_id ? strlen(o->external_id) : 0) +
                          (o->token ? strlen(o->token) : 0);
        char duration[16];

        /* As large as it may get, so that it never moves and leaves a copy of the token behind. */
        StrBuf b = { .n_allocated = 3 * n_values + 512 };
        b.text = malloc(b.n_allocated);
        if (!b.text)
                return -ENOMEM;
        strbuf_addf(&b, "Action=%s&Version=" API_VERSION,
                    o->token ? "AssumeRoleWithWebIdentity" : "AssumeRole");
        add_field(&b, "RoleArn", o->role_arn);
        add_field(&b, "RoleSessionName", o->session_name);
        add_field(&b, "ExternalId", o->external_id);
        if (o->duration_seconds > 0) {
                (void)snprintf(duration, sizeof duration, "%u", o->duration_seconds);
                add_field(&b, "DurationSeconds", duration);
        }
        add_field(&b, "WebIdentityToken", o->token);
        if (strbuf_error(&b)) {
                digest_wipe(b.text, b.n_allocated);
                strbuf_done(&b);
                return -ENOMEM;
        }
        s->body = b.text;
        s->body_bytes = b.n;
        s->n_allocated = b.n_allocated;
        return 0;
}

static int sign(const Sts *s, Signature *ret) {
        uint8_t sha256[SHA256_SIZE];
        char payload[SHA256_HEX_SIZE];
        const AwsNameValue headers[] = { { "host", s->place->host },
                                         { "content-type", FORM_TYPE } };
        const AwsKeys keys = credentials_set_keys(&s->keys);

        sha256_of(s->body, s->body_bytes, sha256);
        digest_hex(sha256, sizeof sha256, payload);
        return sign_v4(&(SignRequest){ .method = "POST",
                                       .path = s->place->path,
                                       .headers = headers,
                                       .n_headers = ELEMENTSOF(headers),
                                       .payload = payload,
                                       .region = s->place->region,
                                       .service = "sts",
                                       .time_usec = s->clock->realtime_usec(s->clock) +
                                                    (uint64_t)s->offset_usec,
                                       .normalize_path = true },
                       &keys, ret);
}

static int start_http_call(Sts *s, const char *const *headers) {
        char *url = NULL;

        if (asprintf(&url, "%s://%s%s", s->place->scheme, s->place->host, s->place->path) < 0)
                return -ENOMEM;
        int r = http_call_new(&s->call, s->pool,
                              &(HttpRequestOptions){ .method = "POST",
                                                     .url = url,
                                                     .headers = headers,
                                                     .body = s->body,
                                                     .body_bytes = s->body_bytes,
                                                     .reply_max_bytes = REPLY_MAX_BYTES,
                                                     .timeout_usec = TOTAL_USEC,
                                                     .on_done = on_reply,
                                                     .userdata = s });
        free(url);
        return r;
}

static int start_call(Sts *s) {
        char *host = NULL, *authorization = NULL, *date = NULL, *token = NULL;
        Signature created = { 0 };
        int r = 0;

        if (s->is_signed)
                r = sign(s, &created);
        if (r < 0)
                return r;
        host = format_sentence("Host: %s", s->place->host);
        if (s->is_signed) {
                authorization = format_sentence("Authorization: %s", created.authorization);
                date = format_sentence("X-Amz-Date: %s", created.amz_date);
        }
        if (s->keys.token)
                token = credentials_secret_join("X-Amz-Security-Token: ", s->keys.token);
        bool has_all =
                host && (!s->is_signed || (authorization && date)) && (!s->keys.token || token);
        const char *const headers[] = { host,          "Content-Type: " FORM_TYPE,
                                        authorization, date,
                                        token,         NULL };
        r = has_all ? start_http_call(s, headers) : -ENOMEM;
        credentials_secret_free(token);
        free(host);
        free(authorization);
        free(date);
        if (s->is_signed)
                signature_done(&created);
        return r;
}

int sts_assume_role(Sts **ret, const StsRequest *request) {
        _cleanup_(sts_freep) Sts *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (Sts){ .clock = request->clock,
                    .place = request->place,
                    .is_signed = request->keys != NULL,
                    .role_arn = strdup(request->role_arn),
                    .origin = strdup(request->keys_origin),
                    .on_done = request->on_done,
                    .userdata = request->userdata };
        int r = s->role_arn && s->origin ? build_body(s, request) : -ENOMEM;
        if (r == 0 && request->keys)
                r = credentials_set_init(&s->keys, request->keys, 0);
        if (r == 0)
                r = http_pool_new(&s->pool, request->event,
                                  &(HttpPoolOptions){ .max_connections = 1,
                                                      .ca_file = request->ca_file,
                                                      .proxy = request->proxy });
        if (r == 0)
                r = start_call(s);
        if (r == 0)
                *ret = TAKE_PTR(s);
        return r;
}
