/* Asks a bucket whether an earlier run has delivered the bundle. A manifest is the commit, so it is
 * looked for first; it is read in pieces, which delivery_attempt.c parses and compares with the
 * plan. Then the object is asked for, whose size and plan have to be those of the manifest. What is
 * forbidden to know counts as not known, but for the object of a complete manifest.
 *
 * What follows from the answer is decided in delivery_s3.c. */
#include "agent/delivery/delivery_s3_check.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "uploaders/s3/s3_upload.h"
#include "uploaders/uploader.h"

#define CHECK_TRIES_MAX 4

/* In the functions that return bool, false means that the delivery has ended. */

static void on_answer(const S3Result *result, void *userdata) {
        DeliveryS3Check *c = userdata;
        c->call = NULL;
        bool continues = c->on_answer(c, result);
        if (!c->call)
                c->on_done(continues, c->userdata);
}

static bool request(DeliveryS3Check *c, bool (*handle)(DeliveryS3Check *c, const S3Result *result),
                    const S3RequestOptions *options) {
        S3RequestOptions own = *options;
        own.max_tries = CHECK_TRIES_MAX;
        own.on_done = on_answer;
        own.userdata = c;
        c->on_answer = handle;
        int r = s3_call_new(&c->call, c->client, &own);
        return r == 0 || delivery_endf(c->attempt->delivery, RESULT_NO_RESOURCES,
                                       "cannot ask the store: %s", strerror(-r));
}

bool delivery_s3_check_charge_failure(Delivery *job, const S3Client *client) {
        if (job->result == RESULT_FAILED && !s3_client_has_request_ids(client))
                (void)delivery_end_by_outcome(job, UPLOAD_E_REFUSED, TAKE_PTR(job->error));
        return false;
}

static bool end_answer(DeliveryS3Check *c, const S3Response *answer) {
        return delivery_end_by_outcome(c->attempt->delivery, s3_verdict_outcome(answer->verdict),
                                       answer->sentence ? strdup(answer->sentence) : NULL);
}

/* @return the caller's; NULL for lack of memory */
static char *manifest_url(const DeliveryS3Check *c) {
        return strbuf_format("s3://%s/%s", s3_client_bucket(c->client), c->manifest_key);
}

static bool read_manifest(DeliveryS3Check *c);

/* In pieces that are parsed on the loop within milliseconds. */
#define MANIFEST_PIECE_BYTES MIB

/* A manifest that was replaced between two reads cannot be used: its pieces do not fit together. */
static bool is_same_manifest(const DeliveryS3Check *c, const S3Result *result) {
        const char *value = result->header(result, "etag");
        char etag[S3_ETAG_SIZE];

        return !c->manifest_etag[0] || !value || s3_etag_unquote(etag, value) < 0 ||
               strcmp(etag, c->manifest_etag) == 0;
}

static bool handle_manifest_piece(DeliveryS3Check *c, const S3Result *result) {
        if (result->status == 416 && c->manifest_size == UINT64_MAX) { /* read to its end */
                c->manifest_size = c->manifest_read;
                return read_manifest(c);
        }
        if (result->answer->verdict != S3_OK)
                return end_answer(c, result->answer);
        if (!is_same_manifest(c, result))
                return delivery_end_by_outcome(
                        c->attempt->delivery, UPLOAD_E_UNREACHABLE,
                        strbuf_format("'%s' changed while it was read", c->manifest_key));
        if (!delivery_attempt_read_manifest(c->attempt, result->body, result->body_bytes))
                return false;
        c->manifest_read += result->body_bytes;
        /* it is shorter now, or its size was unknown */
        if (result->body_bytes == 0 ||
            (c->manifest_size == UINT64_MAX && result->body_bytes < MANIFEST_PIECE_BYTES))
                c->manifest_size = c->manifest_read;
        return read_manifest(c);
}

static bool end_manifest(DeliveryS3Check *c) {
        _cleanup_free_ char *url = manifest_url(c);
        /* also for an empty one, of which no piece has come */
        return delivery_attempt_read_manifest(c->attempt, "", 0) &&
               (delivery_attempt_end_manifest(c->attempt, url ? url : c->manifest_key,
                                              &c->earlier) ||
                delivery_s3_check_charge_failure(c->attempt->delivery, c->client));
}

static bool read_manifest(DeliveryS3Check *c) {
        char range[64];
        uint64_t left = c->manifest_size - c->manifest_read, n = MIN(left, MANIFEST_PIECE_BYTES);
        if (left == 0)
                return end_manifest(c);
        (void)snprintf(range, sizeof range, "bytes=%llu-%llu", (unsigned long long)c->manifest_read,
                       (unsigned long long)(c->manifest_read + n - 1));
        return request(c, handle_manifest_piece,
                       &(S3RequestOptions){ .operation = S3_GET_OBJECT,
                                            .key = c->manifest_key,
                                            .headers = &(AwsNameValue){ "Range", range },
                                            .n_headers = 1,
                                            .reply_max_bytes = (size_t)n + 1 });
}

static bool handle_manifest_head(DeliveryS3Check *c, const S3Result *result) {
        const char *length = result->header(result, "content-length");
        S3Verdict verdict = result->answer->verdict;
        if (verdict == S3_DENIED) /* also AWS's answer to a missing key where LIST is forbidden */
                return true;
        if (verdict == S3_NOT_FOUND) {
                c->earlier = EARLIER_NONE;
                return true;
        }
        if (verdict != S3_OK)
                return end_answer(c, result->answer);
        if (!length || parse_u64(length, &c->manifest_size) < 0)
                c->manifest_size = UINT64_MAX; /* unknown, as some proxies remove Content-Length:
                                                  read to the end */
        c->manifest_read = 0;
        const char *etag = result->header(result, "etag");
        if (!etag || s3_etag_unquote(c->manifest_etag, etag) < 0)
                c->manifest_etag[0] = '\0';
        return read_manifest(c);
}

static bool handle_object(DeliveryS3Check *c, const S3Result *result) {
        const char *length = result->header(result, "content-length"),
                   *its_plan = result->header(result, S3_PLAN_HEADER);
        const ManifestHead *head = &c->attempt->earlier;
        char plan_hex[SHA256_HEX_SIZE];
        uint64_t bytes = 0;
        switch (result->answer->verdict) {
        case S3_OK:
                c->attempt->delivery->proof = PROOF_HEAD;
                digest_hex(head->plan, SHA256_SIZE, plan_hex);
                if ((!length || (parse_u64(length, &bytes) == 0 && bytes == head->bytes)) &&
                    its_plan && strcmp(its_plan, plan_hex) == 0)
                        c->earlier = EARLIER_COMPLETE;
                return true;
        case S3_DENIED: /* the manifest is the commit */
                c->attempt->delivery->proof = PROOF_RESPONSE;
                c->earlier = EARLIER_COMPLETE;
                return true;
        case S3_NOT_FOUND:
                return true;
        default:
                return end_answer(c, result->answer);
        }
}

bool delivery_s3_check_manifest(DeliveryS3Check *c) {
        return request(c, handle_manifest_head,
                       &(S3RequestOptions){ .operation = S3_HEAD_OBJECT, .key = c->manifest_key });
}

bool delivery_s3_check_object(DeliveryS3Check *c) {
        return request(c, handle_object,
                       &(S3RequestOptions){ .operation = S3_HEAD_OBJECT, .key = c->key });
}

bool delivery_s3_check_end_damaged(DeliveryS3Check *c) {
        _cleanup_free_ char *url = manifest_url(c);
        return delivery_attempt_end_damaged(c->attempt, url ? url : c->manifest_key);
}

void delivery_s3_check_cancel(DeliveryS3Check *c) {
        c->call = s3_call_cancel(c->call);
        c->earlier = EARLIER_UNKNOWN;
}
