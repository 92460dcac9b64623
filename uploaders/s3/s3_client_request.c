/* What a call says on the wire: URL, headers, signature. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/strbuf.h"
#include "uploaders/s3/s3_client_private.h"

#define HEADERS_MAX 32

typedef struct HeaderSet { /* borrowed, but for `tagging` */
        SignPair items[HEADERS_MAX];
        size_t n;
        char *tagging;
        bool overflow;
} HeaderSet;

static void add(HeaderSet *h, const char *name, const char *value) {
        if (!value || !value[0])
                return;
        if (h->n < HEADERS_MAX)
                h->items[h->n++] = (SignPair){ name, value };
        else
                h->overflow = true;
}

static const char *method_of(S3Operation operation) {
        switch (operation) {
        case S3_HEAD_BUCKET:
        case S3_HEAD_OBJECT:
                return "HEAD";
        case S3_PUT_OBJECT:
        case S3_UPLOAD_PART:
                return "PUT";
        case S3_DELETE_OBJECT:
        case S3_ABORT_UPLOAD:
                return "DELETE";
        case S3_CREATE_UPLOAD:
        case S3_COMPLETE_UPLOAD:
                return "POST";
        default:
                return "GET";
        }
}

/* `a=b&c=d`, escaped as a query is. */
static char *tagging_of(char *const *tags) {
        StrBuf b = STRBUF_INIT;

        for (size_t i = 0; tags && tags[i] && tags[i + 1]; i += 2) {
                strbuf_add(&b, i > 0 ? "&" : "");
                sign_escape(&b, tags[i], false);
                strbuf_add(&b, "=");
                sign_escape(&b, tags[i + 1], false);
        }
        return strbuf_take(&b);
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

static int collect(HeaderSet *h, const S3Call *call) {
        const S3ClientOptions *o = &call->client->options;
        const S3Order *order = &call->order;
        int r = 0;

        add(h, "host", call->client->place.host);
        add(h, "x-amz-expected-bucket-owner", o->expected_bucket_owner);
        /* The object's own checksum, kept by AWS; a bucket with object lock wants one of these headers. */
        if (order->operation == S3_PUT_OBJECT || order->operation == S3_UPLOAD_PART)
                add(h, "x-amz-checksum-sha256", call->checksum);
        if (order->is_conditional)
                add(h, "if-none-match", "*");
        if (order->with_object_headers)
                r = add_object_headers(h, o);
        for (size_t i = 0; i < order->n_headers; i++)
                add(h, order->headers[i].name, order->headers[i].value);
        return r < 0 ? r : h->overflow ? -EINVAL : 0;
}

static char *path_of(const S3Call *call) {
        const char *base = call->client->place.base_path, *key = call->order.key;
        char *path;

        if (key[0] == '\0')
                return strdup(base[0] ? base : "/");
        return asprintf(&path, "%s/%s", base, key) < 0 ? NULL : path;
}

static char *header_line(const char *name, const char *value) {
        char *line;

        return asprintf(&line, "%s: %s", name, value) < 0 ? NULL : line;
}

/* @return 0, -ENOMEM */
static int write_lines(S3Request *r, const HeaderSet *h, const SignPair *more, size_t n_more) {
        size_t n = 0;

        r->headers = calloc(h->n + n_more + 1, sizeof *r->headers);
        if (!r->headers)
                return -ENOMEM;
        for (size_t i = 0; i < h->n + n_more; i++) {
                const SignPair *p = i < h->n ? &h->items[i] : &more[i - h->n];

                if (!p->value)
                        continue;
                r->headers[n] = header_line(p->name, p->value);
                if (!r->headers[n++])
                        return -ENOMEM;
        }
        return 0;
}

static char *url_of(const S3Place *place, const Signed *signature) {
        char *url;

        return asprintf(&url, "%s://%s%s%s%s", place->scheme, place->host, signature->path,
                        signature->query[0] ? "?" : "", signature->query) < 0
                       ? NULL
                       : url;
}

int s3_request_make(S3Request *ret, const S3Call *call, const AwsKeys *keys) {
        const S3Client *c = call->client;
        _cleanup_free_ char *path = path_of(call);
        HeaderSet headers = { .n = 0 };
        S3Request request = { 0 };
        Signed signature = { 0 };
        int r = path ? collect(&headers, call) : -ENOMEM;

        if (r == 0) {
                const SignOrder order = {
                        .method = method_of(call->order.operation),
                        .path = path,
                        .queries = call->order.queries,
                        .n_queries = call->order.n_queries,
                        .headers = headers.items,
                        .n_headers = headers.n,
                        .payload = call->payload_hex,
                        .sign_payload_header = true,
                        .region = c->place.region,
                        .service = "s3",
                        .time_usec = call->signed_usec,
                };
                r = sign_v4(&order, keys, &signature);
        }
        if (r == 0) {
                const SignPair more[] = {
                        { "x-amz-date", signature.amz_date },
                        { "x-amz-content-sha256", call->payload_hex },
                        { "x-amz-security-token", keys->token },
                        { "authorization", signature.authorization },
                };

                request.method = method_of(call->order.operation);
                request.url = url_of(&c->place, &signature);
                r = request.url ? write_lines(&request, &headers, more, ELEMENTSOF(more)) : -ENOMEM;
                signed_done(&signature);
        }
        free(headers.tagging);
        if (r < 0)
                s3_request_done(&request);
        else
                *ret = request;
        return r;
}

void s3_request_done(S3Request *r) {
        for (char **line = r->headers; line && *line; line++) {
                digest_wipe(*line, strlen(*line)); /* the session token is one of them */
                free(*line);
        }
        free(r->headers);
        free(r->url);
        *r = (S3Request){ 0 };
}
