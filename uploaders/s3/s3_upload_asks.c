/* The requests of an upload, and what their answers say. What is to be done about it is s3.c's business. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/parse.h"
#include "uploaders/s3/s3_upload_private.h"

#define TRIES 4

void s3_upload_heard_done(UploadHeard *h) {
        free(h->sentence);
        *h = (UploadHeard){ .there = THERE_UNKNOWN };
}

/* What was heard */

static void note_answer(UploadHeard *h, const S3Answer *answer) {
        s3_upload_heard_done(h);
        h->verdict = answer->verdict;
        h->sentence = answer->sentence ? strdup(answer->sentence) : NULL;
        h->is_malformed = strcmp(answer->error.code, "MalformedXML") == 0;
}

/* @return false: there is none, or none that is fit to be given back */
static bool note_etag(char etag[static S3_ETAG_SIZE], const S3Result *result) {
        const char *value = result->header(result, "etag");

        if (value && s3_etag_unquote(etag, value) == 0)
                return true;
        etag[0] = '\0';
        return false;
}

static bool has_header(const S3Result *result, const char *name, const char *expected) {
        const char *value = result->header(result, name);

        return value && strcmp(value, expected) == 0;
}

/* Of several parts the bytes are not known as a whole; they begin with what an earlier run has sent. */
static bool has_our_bytes(const S3Upload *u, const S3Result *result) {
        char hex[SHA256_HEX_SIZE];

        if (u->upload_id)
                return true;
        return has_header(result, S3_SHA256_HEADER,
                          digest_hex(u->parts.items[0].sha256, SHA256_SIZE, hex));
}

static UploadThere what_is_there(S3Upload *u, const S3Result *result) {
        UploadHeard *h = &u->heard;

        if (h->verdict == S3_NOT_FOUND)
                return THERE_NOTHING;
        if (h->verdict == S3_DENIED)
                return THERE_FORBIDDEN;
        if (h->verdict != S3_OK)
                return THERE_UNKNOWN;
        if (u->state == UPLOAD_GUARD)
                return has_header(result, S3_PLAN_HEADER, u->order.plan_hex) ? THERE_OURS
                                                                             : THERE_OTHER;
        const char *length = result->header(result, "content-length");
        (void)note_etag(h->there_etag, result);
        if (!length || parse_u64(length, &h->there_bytes) < 0)
                h->there_bytes = UINT64_MAX; /* equal to nothing */
        return has_header(result, S3_PLAN_HEADER, u->order.plan_hex) &&
                               h->there_bytes == upload_parts_bytes(&u->parts) &&
                               has_our_bytes(u, result)
                       ? THERE_OURS
                       : THERE_OTHER;
}

static void note_upload_id(S3Upload *u, const S3Result *result) {
        char id[S3_UPLOAD_ID_SIZE];

        if (u->heard.verdict == S3_OK &&
            s3_xml_upload_id(result->body, result->body_bytes, id) == 0)
                u->upload_id = strdup(id);
        u->has_strays = result->n_tries > 1 || (u->heard.verdict == S3_OK && !u->upload_id);
}

/* The answer came, and is of no use. */
static void note_nonsense(UploadHeard *h, const char *what) {
        h->verdict = S3_RETRY;
        free(h->sentence);
        h->sentence = strdup(what);
}

/* A page of ListParts: compared at once, for a list may be long. */
static void note_page(S3Upload *u, const S3Result *result) {
        unsigned before = u->list_marker;
        S3PartList page;

        u->list_marker = 0;
        if (u->heard.verdict != S3_OK)
                return;
        if (s3_xml_part_list(result->body, result->body_bytes, &page) < 0) {
                note_nonsense(&u->heard, "the answer to ListParts is no list of parts");
                return;
        }
        if (upload_parts_compare(&u->parts, &page) == UPLOAD_E_STALE)
                u->heard.verdict = S3_BAD_PART;
        else if (page.is_truncated && page.next_marker <= before)
                note_nonsense(&u->heard, "the list of parts does not go on");
        else if (page.is_truncated)
                u->list_marker = page.next_marker;
        s3_part_list_done(&page);
}

static void on_answer(const S3Result *result, void *userdata) {
        S3Upload *u = userdata;

        u->call = NULL;
        note_answer(&u->heard, result->answer);
        switch (u->state) {
        case UPLOAD_PUT:
                (void)note_etag(u->heard.etag, result);
                break;
        case UPLOAD_CREATE:
                note_upload_id(u, result);
                break;
        case UPLOAD_LIST:
                note_page(u, result);
                break;
        case UPLOAD_COMPLETE:
                if (s3_xml_complete_etag(result->body, result->body_bytes, u->heard.etag) < 0)
                        u->heard.etag[0] = '\0';
                break;
        case UPLOAD_LOOK:
        case UPLOAD_JUDGE:
        case UPLOAD_GUARD:
        case UPLOAD_TRACE:
        case UPLOAD_PROVE:
                u->heard.there = what_is_there(u, result);
                break;
        default:
                break;
        }
        s3_upload_step(u);
}

/* What is asked */

static int ask_for(S3Upload *u, const char *key, S3Order *order) {
        order->key = key;
        order->max_tries = TRIES;
        order->on_done = on_answer;
        order->userdata = u;
        order->sent_bytes = u->order.sent_bytes;
        return s3_call_new(&u->call, u->client, order);
}

static int ask(S3Upload *u, S3Order *order) {
        return ask_for(u, u->order.key, order);
}

int s3_upload_ask_put(S3Upload *u, bool is_conditional) {
        const UploadJob *job = CONTAINER_OF(u->parts.jobs.next, UploadJob, link);
        char hex[SHA256_HEX_SIZE];
        const SignPair headers[] = {
                { "content-type", u->order.content_type },
                { S3_PLAN_HEADER, u->order.plan_hex },
                { S3_SHA256_HEADER, digest_hex(job->part->sha256, SHA256_SIZE, hex) },
        };

        return ask(u, &(S3Order){ .operation = S3_PUT_OBJECT,
                                  .headers = headers,
                                  .n_headers = ELEMENTSOF(headers),
                                  .body = job->part->data,
                                  .body_bytes = job->part->bytes,
                                  .body_sha256 = job->part->sha256,
                                  .is_conditional = is_conditional,
                                  .with_object_headers = true });
}

/* No x-amz-checksum-type: of SHA256 there are composite checksums only, AWS takes them for meant, and stores of before 2025 do not know the
 * header. @see Amazon S3 User Guide, "Checking object integrity": types by algorithm */
int s3_upload_ask_create(S3Upload *u) {
        static const SignPair query = { "uploads", "" };
        const SignPair headers[] = {
                { "content-type", u->order.content_type },
                { "x-amz-checksum-algorithm", "SHA256" },
                { S3_PLAN_HEADER, u->order.plan_hex },
        };

        return ask(u, &(S3Order){ .operation = S3_CREATE_UPLOAD,
                                  .queries = &query,
                                  .n_queries = 1,
                                  .headers = headers,
                                  .n_headers = ELEMENTSOF(headers),
                                  .with_object_headers = true });
}

int s3_upload_ask_list(S3Upload *u) {
        char marker[16];
        const SignPair queries[] = {
                { "uploadId", u->upload_id },
                { "part-number-marker", marker },
        };

        (void)snprintf(marker, sizeof marker, "%u", u->list_marker);
        return ask(u, &(S3Order){ .operation = S3_LIST_PARTS,
                                  .queries = queries,
                                  .n_queries = u->list_marker ? 2 : 1 });
}

int s3_upload_ask_head(S3Upload *u) {
        return ask(u, &(S3Order){ .operation = S3_HEAD_OBJECT });
}

int s3_upload_ask_guard(S3Upload *u) {
        return ask_for(u, u->order.guard_key, &(S3Order){ .operation = S3_HEAD_OBJECT });
}

int s3_upload_ask_complete(S3Upload *u, bool is_conditional) {
        const SignPair query = { "uploadId", u->upload_id };
        const SignPair header = { "content-type", "application/xml" };

        free(u->body);
        u->body = upload_parts_complete_body(&u->parts, !u->omits_checksums);
        if (!u->body)
                return -ENOMEM;
        return ask(u, &(S3Order){ .operation = S3_COMPLETE_UPLOAD,
                                  .queries = &query,
                                  .n_queries = 1,
                                  .headers = &header,
                                  .n_headers = 1,
                                  .body = u->body,
                                  .body_bytes = strlen(u->body),
                                  .is_conditional = is_conditional });
}

int s3_upload_ask_abort(S3Upload *u) {
        const SignPair query = { "uploadId", u->upload_id };

        return ask(u,
                   &(S3Order){ .operation = S3_ABORT_UPLOAD, .queries = &query, .n_queries = 1 });
}

/* Parts */

static void note_failed_part(S3Upload *u, const S3Answer *answer) {
        UploadHeard *h = &u->heard;

        if (u->part_failed)
                return; /* the first one tells */
        u->part_failed = true;
        note_answer(h, answer);
        if (h->verdict == S3_OK) /* what cannot be told to Complete has not arrived */
                note_nonsense(h, "the answer to UploadPart has no ETag");
}

static void note_part(UploadJob *job, const S3Result *result) {
        S3Upload *u = job->upload;
        unsigned number = job->part->number;
        char etag[S3_ETAG_SIZE];

        if (result->answer->verdict != S3_OK || !note_etag(etag, result)) {
                note_failed_part(u, result->answer);
                return;
        }
        int r = upload_parts_arrived(&u->parts, job, etag);
        if (r == 0)
                r = u->order.on_etag(u, number, etag, u->order.userdata);
        if (r < 0)
                u->failure = r;
}

static void on_part_answer(const S3Result *result, void *userdata) {
        UploadJob *job = userdata;
        S3Upload *u = job->upload;

        job->call = NULL;
        note_part(job, result);
        s3_upload_step(u);
}

int s3_upload_ask_part(UploadJob *job) {
        const S3Upload *u = job->upload;
        char number[16];
        const SignPair queries[] = {
                { "partNumber", number },
                { "uploadId", u->upload_id },
        };
        const S3Order order = {
                .operation = S3_UPLOAD_PART,
                .key = u->order.key,
                .queries = queries,
                .n_queries = ELEMENTSOF(queries),
                .body = job->part->data,
                .body_bytes = job->part->bytes,
                .body_sha256 = job->part->sha256,
                .max_tries = TRIES,
                .on_done = on_part_answer,
                .userdata = job,
                .sent_bytes = job->upload->order.sent_bytes,
        };

        (void)snprintf(number, sizeof number, "%u", job->part->number);
        return s3_call_new(&job->call, u->client, &order);
}
