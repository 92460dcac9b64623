/* Uploads one object: the machine of s3_upload.h, its parts, its requests, and what their answers
 * mean for it.
 *
 *   FIRST ─► PUT ─────────────────────────────────────────► HEAD_PROOF   it ends in the first part
 *     └────► CREATE ─► PARTS ─► HEAD_BEFORE ─► COMPLETE ──► HEAD_PROOF
 *   LIST ───────────────┘                                                an upload is resumed
 *
 * HEAD_CONFLICT and HEAD_GUARD come after a write that was refused because the key is taken, and
 * HEAD_LOST when the server no longer knows the upload; after four rounds of conflict the store
 * counts as unreachable. HEAD_BEFORE also comes before a PUT to a store without conditional writes.
 *
 * An upload that nobody will resume is aborted: after SAME, EXISTS, STALE and REFUSED. After any
 * other outcome it stays on the server, to be resumed from the caller's ledger. Signing, retries
 * and the classification of answers are left to s3_client.c and s3_response.c. */
#include "uploaders/s3/s3_upload.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"

typedef enum UploadState {
        UPLOAD_NEW,
        UPLOAD_FIRST,         /* waits for part 1, which shows whether there will be others */
        UPLOAD_PUT,           /* all of it in one request */
        UPLOAD_CREATE,        /* a multipart upload */
        UPLOAD_LIST,          /* which parts of an earlier run are there? */
        UPLOAD_PARTS,         /* on their way, in parallel */
        UPLOAD_PART_FAILED,   /* one was not accepted: the response says why */
        UPLOAD_HEAD_BEFORE,   /* HEAD before what makes the object visible */
        UPLOAD_COMPLETE,      /* a multipart upload */
        UPLOAD_HEAD_CONFLICT, /* HEAD after 412 or 409: who is in the way? */
        UPLOAD_HEAD_GUARD,    /* HEAD of the guard, before what is there is replaced */
        /* HEAD when the upload is gone, or Complete met a conflict: has it been completed? */
        UPLOAD_HEAD_LOST,
        UPLOAD_HEAD_PROOF, /* HEAD of what was written */
        UPLOAD_ABORT,      /* the outcome is known, the upload is in the way */
        UPLOAD_ENDED,
        N_UPLOAD_STATES
} UploadState;

typedef enum MultipartState {
        MULTIPART_NONE, /* no id yet; to the end when a single PUT does */
        MULTIPART_OPEN, /* upload_id is its id */
        MULTIPART_GONE, /* completed, aborted, or the server does not know it */
        N_MULTIPART_STATES
} MultipartState;

typedef enum ObjectState {                 /* under our key */
                           OBJECT_UNKNOWN, /* no answer that says it */
                           OBJECT_ABSENT,
                           /* same plan, same size, of a single PUT same bytes; guard: same plan */
                           OBJECT_OURS,
                           OBJECT_OTHER,
                           OBJECT_FORBIDDEN /* to read */
} ObjectState;

typedef struct UploadResponse { /* of the last answer; for a part: of the first that failed */
        S3Verdict verdict;
        unsigned status;
        char *sentence;
        bool is_malformed;       /* it takes our XML for none */
        char etag[S3_ETAG_SIZE]; /* of PUT and Complete; "" = unknown */
        ObjectState there;       /* of HEAD */
        char object_etag[S3_ETAG_SIZE];
        uint64_t object_bytes;
        bool has_bytes; /* HEAD had a Content-Length: some proxies remove it */
        bool has_id;    /* PUT's answer had x-amz-request-id, as S3's has */
} UploadResponse;

typedef struct UploadPart { /* by number */
        uint64_t bytes;
        char *etag; /* NULL = not known to be there */
        uint8_t sha256[SHA256_SIZE];
        bool was_listed;
} UploadPart;

typedef struct UploadJob { /* a part that was given and has not arrived */
        ListLink link;
        S3Upload *upload;
        S3Part *part;
        S3Call *call; /* NULL = not sent yet */
} UploadJob;

typedef struct UploadParts {
        UploadPart *items;
        unsigned n; /* numbers from 1 that were given or are in the ledger */
        size_t n_allocated;
        unsigned n_there;
        unsigned cursor; /* all below are there or were asked for in this run */
        unsigned wanted; /* asked for, not given yet; 0 */
        unsigned last;   /* number; 0 = not known */
        uint64_t object_bytes;
        ListLink jobs;
        unsigned n_jobs;
} UploadParts;

typedef struct ObjectWrite { /* the request that makes the object visible: PUT or Complete */
        bool was_sent;
        /* what is there was checked and is to be replaced: the write is without condition */
        bool is_overwriting;
        bool omits_checksums; /* in Complete: Swift takes a document with them for malformed */
        S3Verdict verdict;    /* of the last try that met a conflict */
        unsigned n_rounds;    /* of looking who is in the way */
} ObjectWrite;

struct S3Upload {
        S3Client *client;
        /* key, content_type, plan_hex are ours; parts and upload_id are not kept here */
        S3UploadOptions options;
        UploadState state;           /* set_state() */
        MultipartState multipart;    /* set_multipart() */
        sd_event_source *wake_event; /* one step in the next turn of the loop */
        char *upload_id;             /* NULL: MULTIPART_NONE */
        bool is_pausing;             /* no further part is asked for */
        bool may_have_strays;        /* Create was perhaps carried out more often than answered */
        ObjectWrite write;
        unsigned list_marker;
        int failure; /* -errno of a callback, of memory, or of a part that nobody asked for */

        S3Call *call; /* all but parts */
        char *body;   /* of Complete */
        UploadResponse response;
        UploadParts parts;

        int outcome; /* once decided */
        char *error;
        S3Proof proof;
        char etag[S3_ETAG_SIZE];
};

/* Makes room for a number. */
static int grow_parts(UploadParts *p, unsigned number) {
        if (number > p->n_allocated) {
                size_t n = MAX((size_t)number, 2 * p->n_allocated);
                UploadPart *items = reallocarray(p->items, n, sizeof *items);
                if (!items)
                        return -ENOMEM;
                p->items = items;
                p->n_allocated = n;
        }
        while (p->n < number)
                p->items[p->n++] = (UploadPart){ .etag = NULL };
        return 0;
}

static int set_arrived(UploadParts *p, UploadPart *item, const char *etag) {
        item->etag = strdup(etag);
        if (!item->etag)
                return -ENOMEM;
        p->n_there++;
        p->object_bytes += item->bytes;
        return 0;
}

static int upload_parts_init(UploadParts *p, const S3UploadOptions *options) {
        int r = 0;

        *p = (UploadParts){ .cursor = 1 };
        list_init(&p->jobs);
        if (!options->upload_id)
                return 0; /* rows of an upload that was never made mean nothing for this one */
        for (size_t i = 0; i < options->n_parts && r == 0; i++) {
                const S3KnownPart *known = &options->parts[i];

                if (known->number != i + 1 || i >= S3_PARTS_MAX)
                        return -EINVAL;
                r = grow_parts(p, known->number);
                if (r < 0)
                        return r;
                UploadPart *item = &p->items[i];
                item->bytes = known->bytes;
                memcpy(item->sha256, known->sha256, sizeof item->sha256);
                if (known->is_last)
                        p->last = known->number;
                if (known->etag[0])
                        r = set_arrived(p, item, known->etag);
        }
        return r;
}

static void cancel_job(UploadParts *p, UploadJob *job) {
        s3_call_cancel(job->call);
        list_remove(&job->link);
        p->n_jobs--;
        job->part->release(job->part);
        free(job);
}

static void upload_parts_cancel_jobs(UploadParts *p) {
        LIST_FOREACH_SAFE (link, &p->jobs)
                cancel_job(p, CONTAINER_OF(link, UploadJob, link));
}

static void upload_parts_done(UploadParts *p) {
        if (p->jobs.next)
                upload_parts_cancel_jobs(p);
        for (unsigned i = 0; i < p->n; i++)
                free(p->items[i].etag);
        free(p->items);
}

static unsigned upload_parts_next(const UploadParts *p, unsigned max_in_flight) {
        unsigned number = p->cursor;

        if (p->wanted || p->n_jobs >= max_in_flight)
                return 0;
        while (number <= p->n && p->items[number - 1].etag)
                number++;
        return p->last && number > p->last ? 0 : number;
}

static int accept_part(UploadParts *p, S3Upload *u, S3Part *part) {
        UploadJob *job;

        if (part->number != p->wanted)
                return -EINVAL;
        int r = grow_parts(p, part->number);
        if (r < 0)
                return r;
        job = calloc(1, sizeof *job);
        if (!job)
                return -ENOMEM;
        UploadPart *item = &p->items[part->number - 1];
        item->bytes = part->bytes;
        memcpy(item->sha256, part->sha256, sizeof item->sha256);
        if (part->is_last)
                p->last = part->number;
        p->cursor = part->number + 1;
        p->wanted = 0;
        job->upload = u;
        job->part = part;
        list_append(&p->jobs, &job->link);
        p->n_jobs++;
        return 0;
}

static int upload_parts_compare(UploadParts *p, const S3PartList *page) {
        for (size_t i = 0; i < page->n; i++) {
                const S3ListedPart *listed = &page->items[i];

                if (listed->number == 0 || listed->number > p->n)
                        /* begun after the last row that became durable: sent again under the same
                         * number */
                        continue;
                UploadPart *item = &p->items[listed->number - 1];
                if (!item->etag)
                        continue;
                if (item->bytes != listed->bytes || strcmp(item->etag, listed->etag) != 0)
                        return UPLOAD_E_STALE;
                item->was_listed = true;
        }
        return 0;
}

static unsigned upload_parts_unlisted(const UploadParts *p) {
        for (unsigned i = 0; i < p->n; i++)
                if (p->items[i].etag && !p->items[i].was_listed)
                        return i + 1;
        return 0;
}

static bool upload_parts_are_all_there(const UploadParts *p) {
        return p->last && p->n_there == p->last;
}

static uint64_t upload_parts_bytes(const UploadParts *p) {
        uint64_t bytes = 0;

        for (unsigned i = 0; i < p->n; i++)
                bytes += p->items[i].bytes;
        return bytes;
}

static bool is_known(const uint8_t sha256[static SHA256_SIZE]) {
        static const uint8_t none[SHA256_SIZE];

        return memcmp(sha256, none, sizeof none) != 0;
}

static char *upload_parts_complete_body(const UploadParts *p, bool with_checksums) {
        _cleanup_free_ S3CompletePart *parts = calloc(p->last, sizeof *parts);
        _cleanup_free_ char(*checksums)[DIGEST_BASE64_SIZE(SHA256_SIZE)] =
                calloc(p->last, sizeof *checksums);

        if (!parts || !checksums)
                return NULL;
        for (unsigned i = 0; i < p->last; i++) {
                const UploadPart *item = &p->items[i];

                parts[i].number = i + 1;
                parts[i].etag = item->etag;
                if (with_checksums && is_known(item->sha256))
                        parts[i].checksum_sha256 =
                                digest_base64(item->sha256, SHA256_SIZE, checksums[i]);
        }
        return s3_xml_complete_body(parts, p->last);
}

/* The states of an upload, the moves between them, and its end. */

static const char *const state_names[N_UPLOAD_STATES] = {
        [UPLOAD_NEW] = "new",
        [UPLOAD_FIRST] = "first",
        [UPLOAD_PUT] = "put",
        [UPLOAD_CREATE] = "create",
        [UPLOAD_LIST] = "list",
        [UPLOAD_PARTS] = "parts",
        [UPLOAD_PART_FAILED] = "part-failed",
        [UPLOAD_HEAD_BEFORE] = "head-before",
        [UPLOAD_COMPLETE] = "complete",
        [UPLOAD_HEAD_CONFLICT] = "head-conflict",
        [UPLOAD_HEAD_LOST] = "head-lost",
        [UPLOAD_HEAD_PROOF] = "head-proof",
        [UPLOAD_ABORT] = "abort",
        [UPLOAD_ENDED] = "ended",
        [UPLOAD_HEAD_GUARD] = "head-guard",
};

#define TO(state) (1U << (state))
#define TO_END (TO(UPLOAD_ABORT) | TO(UPLOAD_ENDED))
static const unsigned moves[N_UPLOAD_STATES] = {
        [UPLOAD_NEW] = TO(UPLOAD_FIRST) | TO(UPLOAD_LIST) | TO_END,
        [UPLOAD_FIRST] = TO(UPLOAD_PUT) | TO(UPLOAD_HEAD_BEFORE) | TO(UPLOAD_CREATE) | TO_END,
        [UPLOAD_PUT] =
                TO(UPLOAD_HEAD_BEFORE) | TO(UPLOAD_HEAD_CONFLICT) | TO(UPLOAD_HEAD_PROOF) | TO_END,
        [UPLOAD_CREATE] = TO(UPLOAD_PARTS) | TO_END,
        [UPLOAD_LIST] = TO(UPLOAD_LIST) | TO(UPLOAD_PARTS) | TO(UPLOAD_HEAD_LOST) | TO_END,
        [UPLOAD_PARTS] =
                TO(UPLOAD_PART_FAILED) | TO(UPLOAD_HEAD_BEFORE) | TO(UPLOAD_COMPLETE) | TO_END,
        [UPLOAD_PART_FAILED] = TO_END,
        [UPLOAD_HEAD_BEFORE] =
                TO(UPLOAD_PUT) | TO(UPLOAD_COMPLETE) | TO(UPLOAD_HEAD_GUARD) | TO_END,
        [UPLOAD_COMPLETE] = TO(UPLOAD_COMPLETE) | TO(UPLOAD_HEAD_BEFORE) |
                            TO(UPLOAD_HEAD_CONFLICT) | TO(UPLOAD_HEAD_LOST) |
                            TO(UPLOAD_HEAD_PROOF) | TO_END,
        [UPLOAD_HEAD_CONFLICT] =
                TO(UPLOAD_PUT) | TO(UPLOAD_COMPLETE) | TO(UPLOAD_HEAD_GUARD) | TO_END,
        [UPLOAD_HEAD_GUARD] = TO(UPLOAD_PUT) | TO(UPLOAD_COMPLETE) | TO_END,
        [UPLOAD_HEAD_LOST] = TO_END,
        [UPLOAD_HEAD_PROOF] = TO_END,
        [UPLOAD_ABORT] = TO(UPLOAD_ENDED),
};

static const StateTable upload_table = {
        .machine = "S3 upload",
        .names = state_names,
        .moves = moves,
        .n_states = N_UPLOAD_STATES,
};

static const StateTable multipart_table = {
        .machine = "multipart upload",
        .names = (const char *const[]){ "none", "open", "gone" },
        .moves =
                (const unsigned[N_MULTIPART_STATES]){
                        [MULTIPART_NONE] = TO(MULTIPART_OPEN),
                        [MULTIPART_OPEN] = TO(MULTIPART_GONE),
                },
        .n_states = N_MULTIPART_STATES,
};

static void set_multipart(S3Upload *u, MultipartState state) {
        if (transition_check(&multipart_table, u->multipart, state, NULL) == 0)
                u->multipart = state;
}

/* @return false: illegal, nothing has changed */
static bool set_state(S3Upload *u, UploadState state) {
        if (transition_check(&upload_table, u->state, state, NULL) < 0)
                return false;
        log_debug("upload of '%s': %s", u->options.key, state_names[state]);
        u->state = state;
        return true;
}

/* The end */

static const char *error_of(const S3Upload *u, int outcome) {
        if (outcome == 0 || outcome == UPLOAD_E_SAME || outcome == UPLOAD_E_PAUSED)
                return NULL;
        if (outcome < 0)
                return strerror(-outcome);
        return u->error ? u->error : "out of memory";
}

static void upload_finish(S3Upload *u, int outcome) {
        const S3UploadResult result = {
                .outcome = outcome,
                .error = error_of(u, outcome),
                .proof = u->proof,
                .bytes = upload_parts_bytes(&u->parts),
                .etag = u->etag,
                .may_have_orphans = u->may_have_strays ||
                                    (u->state == UPLOAD_ABORT && u->multipart == MULTIPART_OPEN),
                .may_be_visible = u->write.was_sent,
        };

        upload_parts_cancel_jobs(&u->parts);
        u->call = s3_call_cancel(u->call);
        if (u->state == UPLOAD_ENDED || !set_state(u, UPLOAD_ENDED))
                return;
        u->options.on_done(&result, u->options.userdata);
}

/* Whether nobody will continue the upload, so that it is not left to be paid for. */
static bool is_orphaned(const S3Upload *u, int outcome) {
        if (u->multipart != MULTIPART_OPEN)
                return false;
        return outcome == UPLOAD_E_SAME || outcome == UPLOAD_E_EXISTS ||
               outcome == UPLOAD_E_STALE || outcome == UPLOAD_E_REFUSED;
}

static void enter_state(S3Upload *u, UploadState state);
static int request_put(S3Upload *u, bool is_conditional);
static int request_create(S3Upload *u);
static int request_list(S3Upload *u);
static int request_head(S3Upload *u, const char *key);
static int request_complete(S3Upload *u, bool is_conditional);
static int request_abort(S3Upload *u);
static void upload_step(S3Upload *u);

static void upload_end(S3Upload *u, int outcome) {
        if (!is_orphaned(u, outcome))
                return upload_finish(u, outcome);
        upload_parts_cancel_jobs(&u->parts);
        u->outcome = outcome;
        enter_state(u, UPLOAD_ABORT);
}

__attribute__((format(printf, 3, 4))) static void upload_end_with_text(S3Upload *u, int outcome,
                                                                       const char *fmt, ...) {
        StrBuf text = STRBUF_INIT;
        char what[256];
        va_list args;

        va_start(args, fmt);
        (void)vsnprintf(what, sizeof what, fmt, args);
        va_end(args);
        strbuf_addf(&text, "'s3://%s/%s': %s", s3_client_bucket(u->client), u->options.key, what);
        free(u->error);
        u->error = strbuf_detach(&text);
        upload_end(u, outcome);
}

static void upload_end_with_response(S3Upload *u, int outcome) {
        free(u->error);
        u->error = TAKE_PTR(u->response.sentence);
        upload_end(u, outcome);
}

/* Beginning a request */

static bool is_conditional_write(const S3Upload *u) {
        return !u->write.is_overwriting && s3_client_has_conditions(u->client);
}

static void enter_state(S3Upload *u, UploadState state) {
        int r = 0;

        if (!set_state(u, state))
                return upload_finish(u, -EPROTO);
        switch (state) {
        case UPLOAD_PUT:
                u->write.was_sent = true;
                r = request_put(u, is_conditional_write(u));
                break;
        case UPLOAD_CREATE:
                r = request_create(u);
                break;
        case UPLOAD_LIST:
                r = request_list(u);
                break;
        case UPLOAD_HEAD_BEFORE:
        case UPLOAD_HEAD_CONFLICT:
        case UPLOAD_HEAD_LOST:
        case UPLOAD_HEAD_PROOF:
                r = request_head(u, u->options.key);
                break;
        case UPLOAD_HEAD_GUARD:
                r = request_head(u, u->options.guard_key);
                break;
        case UPLOAD_COMPLETE:
                u->write.was_sent = true;
                r = request_complete(u, is_conditional_write(u));
                break;
        case UPLOAD_ABORT:
                r = request_abort(u);
                break;
        default:
                return upload_step(u); /* nothing to wait for */
        }
        if (r < 0)
                upload_finish(u, r);
}

/* The requests of an upload, and what their answers say. */

#define TRIES 4
static void response_done(UploadResponse *h) {
        free(h->sentence);
        *h = (UploadResponse){ .there = OBJECT_UNKNOWN };
}

/* What was received */

static void record_answer(UploadResponse *h, const S3Response *answer, unsigned status) {
        response_done(h);
        h->verdict = answer->verdict;
        h->status = status;
        h->sentence = answer->sentence ? strdup(answer->sentence) : NULL;
        h->is_malformed = strcmp(answer->error.code, "MalformedXML") == 0;
}

/* @return false: there is none, or none that is fit to be given back */
static bool record_etag(char etag[static S3_ETAG_SIZE], const S3Result *result) {
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

/* Of several parts the bytes are not known as a whole; they begin with what an earlier run has
 * sent. */
static bool has_our_bytes(const S3Upload *u, const S3Result *result) {
        char hex[SHA256_HEX_SIZE];

        if (u->upload_id)
                return true;
        return has_header(result, S3_SHA256_HEADER,
                          digest_hex(u->parts.items[0].sha256, SHA256_SIZE, hex));
}

/* When HEAD has no size, the ETag in the answer to the write proves the content as well, and so
 * does the digest of a single PUT. */
static bool has_our_size(const S3Upload *u) {
        const UploadResponse *h = &u->response;

        if (h->has_bytes)
                return h->object_bytes == upload_parts_bytes(&u->parts);
        return !u->upload_id || (u->etag[0] && strcmp(h->object_etag, u->etag) == 0);
}

static ObjectState classify_object(S3Upload *u, const S3Result *result) {
        UploadResponse *h = &u->response;

        if (h->verdict == S3_NOT_FOUND)
                return OBJECT_ABSENT;
        if (h->verdict == S3_DENIED)
                return OBJECT_FORBIDDEN;
        if (h->verdict != S3_OK)
                return OBJECT_UNKNOWN;
        if (u->state == UPLOAD_HEAD_GUARD)
                return has_header(result, S3_PLAN_HEADER, u->options.plan_hex) ? OBJECT_OURS
                                                                               : OBJECT_OTHER;
        const char *length = result->header(result, "content-length");
        (void)record_etag(h->object_etag, result);
        h->has_bytes = length && parse_u64(length, &h->object_bytes) == 0;
        return has_header(result, S3_PLAN_HEADER, u->options.plan_hex) && has_our_size(u) &&
                               has_our_bytes(u, result)
                       ? OBJECT_OURS
                       : OBJECT_OTHER;
}

static void record_upload_id(S3Upload *u, const S3Result *result) {
        char id[S3_UPLOAD_ID_SIZE];

        if (u->response.verdict == S3_OK &&
            s3_xml_upload_id(result->body, result->body_bytes, id) == 0)
                u->upload_id = strdup(id);
        if (u->upload_id)
                set_multipart(u, MULTIPART_OPEN);
        u->may_have_strays = result->n_tries > 1 || (u->response.verdict == S3_OK && !u->upload_id);
}

/* The answer came, and is of no use. */
static void record_malformed(UploadResponse *h, const char *what) {
        h->verdict = S3_RETRY;
        free(h->sentence);
        h->sentence = strdup(what);
}

/* A page of ListParts: compared at once, for a list may be long. */
static void record_page(S3Upload *u, const S3Result *result) {
        unsigned before = u->list_marker;
        S3PartList page;

        u->list_marker = 0;
        if (u->response.verdict != S3_OK)
                return;
        if (s3_xml_part_list(result->body, result->body_bytes, &page) < 0)
                return record_malformed(&u->response,
                                        "the answer to ListParts is not a list of parts");
        if (upload_parts_compare(&u->parts, &page) == UPLOAD_E_STALE)
                u->response.verdict = S3_BAD_PART;
        else if (page.is_truncated && page.next_marker <= before)
                record_malformed(&u->response, "the list of parts does not continue");
        else if (page.is_truncated)
                u->list_marker = page.next_marker;
        s3_part_list_done(&page);
}

static void on_answer(const S3Result *result, void *userdata) {
        S3Upload *u = userdata;

        u->call = NULL;
        record_answer(&u->response, result->answer, result->status);
        switch (u->state) {
        case UPLOAD_PUT:
                (void)record_etag(u->response.etag, result);
                u->response.has_id = result->header(result, "x-amz-request-id");
                break;
        case UPLOAD_CREATE:
                record_upload_id(u, result);
                break;
        case UPLOAD_LIST:
                record_page(u, result);
                break;
        case UPLOAD_COMPLETE:
                if (s3_xml_complete_etag(result->body, result->body_bytes, u->response.etag) < 0)
                        u->response.etag[0] = '\0';
                break;
        case UPLOAD_HEAD_BEFORE:
        case UPLOAD_HEAD_CONFLICT:
        case UPLOAD_HEAD_GUARD:
        case UPLOAD_HEAD_LOST:
        case UPLOAD_HEAD_PROOF:
                u->response.there = classify_object(u, result);
                break;
        default:
                break;
        }
        upload_step(u);
}

/* What is asked */

static int request_key(S3Upload *u, const char *key, S3RequestOptions *options) {
        options->key = key;
        options->max_tries = TRIES;
        options->on_done = on_answer;
        options->userdata = u;
        options->sent_bytes = u->options.sent_bytes;
        return s3_call_new(&u->call, u->client, options);
}

static int request(S3Upload *u, S3RequestOptions *options) {
        return request_key(u, u->options.key, options);
}

static int request_put(S3Upload *u, bool is_conditional) {
        const UploadJob *job = CONTAINER_OF(u->parts.jobs.next, UploadJob, link);
        char hex[SHA256_HEX_SIZE];
        const AwsNameValue headers[] = {
                { "content-type", u->options.content_type },
                { S3_PLAN_HEADER, u->options.plan_hex },
                { S3_SHA256_HEADER, digest_hex(job->part->sha256, SHA256_SIZE, hex) },
        };

        return request(u, &(S3RequestOptions){ .operation = S3_PUT_OBJECT,
                                               .headers = headers,
                                               .n_headers = ELEMENTSOF(headers),
                                               .body = job->part->data,
                                               .body_bytes = job->part->bytes,
                                               .body_sha256 = job->part->sha256,
                                               .is_conditional = is_conditional,
                                               .with_object_headers = true });
}

static int request_create(S3Upload *u) {
        static const AwsNameValue query = { "uploads", "" };
        const AwsNameValue headers[] = {
                { "content-type", u->options.content_type },
                { S3_PLAN_HEADER, u->options.plan_hex },
        };

        return request(u, &(S3RequestOptions){ .operation = S3_CREATE_UPLOAD,
                                               .queries = &query,
                                               .n_queries = 1,
                                               .headers = headers,
                                               .n_headers = ELEMENTSOF(headers),
                                               .with_object_headers = true });
}

static int request_list(S3Upload *u) {
        char marker[16];
        const AwsNameValue queries[] = {
                { "uploadId", u->upload_id },
                { "part-number-marker", marker },
        };

        (void)snprintf(marker, sizeof marker, "%u", u->list_marker);
        return request(u, &(S3RequestOptions){ .operation = S3_LIST_PARTS,
                                               .queries = queries,
                                               .n_queries = u->list_marker ? 2 : 1 });
}

static int request_head(S3Upload *u, const char *key) {
        return request_key(u, key, &(S3RequestOptions){ .operation = S3_HEAD_OBJECT });
}

static int request_complete(S3Upload *u, bool is_conditional) {
        const AwsNameValue query = { "uploadId", u->upload_id };
        const AwsNameValue header = { "content-type", "application/xml" };

        free(u->body);
        u->body = upload_parts_complete_body(&u->parts, !u->write.omits_checksums &&
                                                                s3_client_has_checksums(u->client));
        if (!u->body)
                return -ENOMEM;
        return request(u, &(S3RequestOptions){ .operation = S3_COMPLETE_UPLOAD,
                                               .queries = &query,
                                               .n_queries = 1,
                                               .headers = &header,
                                               .n_headers = 1,
                                               .body = u->body,
                                               .body_bytes = strlen(u->body),
                                               .is_conditional = is_conditional });
}

static int request_abort(S3Upload *u) {
        const AwsNameValue query = { "uploadId", u->upload_id };

        return request(u, &(S3RequestOptions){ .operation = S3_ABORT_UPLOAD,
                                               .queries = &query,
                                               .n_queries = 1 });
}

/* Parts */

static void record_failed_part(S3Upload *u, const S3Result *result) {
        UploadResponse *h = &u->response;

        (void)set_state(u, UPLOAD_PART_FAILED); /* from PARTS: there is a way */
        record_answer(h, result->answer, result->status);
        if (h->verdict == S3_OK) /* without an ETag Complete cannot name it */
                record_malformed(h, "the answer to UploadPart has no ETag");
}

static void record_part(UploadJob *job, const S3Result *result) {
        S3Upload *u = job->upload;
        unsigned number = job->part->number;
        char etag[S3_ETAG_SIZE];

        if (result->answer->verdict != S3_OK || !record_etag(etag, result))
                return record_failed_part(u, result);
        int r = set_arrived(&u->parts, &u->parts.items[number - 1], etag);
        cancel_job(&u->parts, job);
        if (r == 0 && u->options.on_etag)
                r = u->options.on_etag(u, number, etag, u->options.userdata);
        if (r < 0)
                u->failure = r;
}

static void on_part_answer(const S3Result *result, void *userdata) {
        UploadJob *job = userdata;
        S3Upload *u = job->upload;

        job->call = NULL;
        record_part(job, result);
        upload_step(u);
}

static int request_part(UploadJob *job) {
        const S3Upload *u = job->upload;
        char number[16];
        const AwsNameValue queries[] = {
                { "partNumber", number },
                { "uploadId", u->upload_id },
        };
        const S3RequestOptions options = {
                .operation = S3_UPLOAD_PART,
                .key = u->options.key,
                .queries = queries,
                .n_queries = ELEMENTSOF(queries),
                .body = job->part->data,
                .body_bytes = job->part->bytes,
                .body_sha256 = job->part->sha256,
                .max_tries = TRIES,
                .on_done = on_part_answer,
                .userdata = job,
                .sent_bytes = job->upload->options.sent_bytes,
        };

        (void)snprintf(number, sizeof number, "%u", job->part->number);
        return s3_call_new(&job->call, u->client, &options);
}

/* What is under the key, as a HEAD shows it, and what follows for the upload: to write, to write
 * over, to leave it alone. */

#define CONFLICT_ROUNDS_MAX 4 /* of looking at who is in the way, and writing again */
/* Deciding by what is there */

typedef enum HeadDecision {
        HEAD_WRITE,
        HEAD_OVERWRITE,
        HEAD_SAME,
        HEAD_EXISTS,
        HEAD_HIDDEN,
        HEAD_DENIED,
        HEAD_STALE,
        HEAD_FAILED
} HeadDecision;

static bool may_replace(const S3Upload *u) {
        return u->options.may_replace || u->options.is_overwrite;
}

static HeadDecision decide_without_head(const S3Upload *u) {
        bool is_safe = is_conditional_write(u); /* the server itself checks */

        if (u->state == UPLOAD_HEAD_LOST)
                return HEAD_STALE;
        if (u->state == UPLOAD_HEAD_BEFORE && is_safe)
                return HEAD_WRITE;
        if (may_replace(u))
                return HEAD_OVERWRITE;
        if (u->state == UPLOAD_HEAD_CONFLICT && u->write.verdict == S3_EXISTS)
                return HEAD_HIDDEN;
        if (u->state == UPLOAD_HEAD_CONFLICT && u->write.verdict == S3_CONFLICT && is_safe)
                return HEAD_WRITE;
        return HEAD_DENIED;
}

static HeadDecision decide_by_head(const S3Upload *u) {
        bool is_traced = u->state == UPLOAD_HEAD_LOST;

        switch (u->response.there) {
        case OBJECT_OURS:
                /* What is to be written over may itself be of this plan and size. */
                if (!u->options.is_overwrite || !u->upload_id)
                        return HEAD_SAME;
                return is_traced ? HEAD_STALE : HEAD_OVERWRITE;
        case OBJECT_ABSENT:
                return is_traced ? HEAD_STALE : HEAD_WRITE;
        case OBJECT_OTHER:
                if (!may_replace(u))
                        return HEAD_EXISTS;
                return is_traced ? HEAD_STALE : HEAD_OVERWRITE;
        case OBJECT_FORBIDDEN:
                return decide_without_head(u);
        case OBJECT_UNKNOWN:
                break;
        }
        return HEAD_FAILED;
}

/* Makes the object visible, after all checks. */
static void write_object(S3Upload *u) {
        enter_state(u, u->upload_id ? UPLOAD_COMPLETE : UPLOAD_PUT);
}

static void overwrite_object(S3Upload *u) {
        u->write.is_overwriting = true;
        write_object(u);
}

static void after_head(S3Upload *u) {
        switch (decide_by_head(u)) {
        case HEAD_OVERWRITE:
                if (u->options.guard_key && !u->options.is_overwrite)
                        enter_state(u, UPLOAD_HEAD_GUARD);
                else
                        overwrite_object(u);
                break;
        case HEAD_WRITE:
                u->write.is_overwriting =
                        u->options.is_overwrite; /* what was there before is not any more */
                write_object(u);
                break;
        case HEAD_SAME:
                (void)snprintf(u->etag, sizeof u->etag, "%s", u->response.object_etag);
                u->proof = S3_PROOF_HEAD;
                upload_end(u, u->options.is_overwrite ? 0 : UPLOAD_E_SAME);
                break;
        case HEAD_EXISTS:
                upload_end_with_text(
                        u, UPLOAD_E_EXISTS,
                        "exists already and differs: it is not overwritten; move it away");
                break;
        case HEAD_HIDDEN:
                upload_end_with_text(u, UPLOAD_E_EXISTS,
                                     "an object exists already, and reading it is forbidden: "
                                     "permit s3:GetObject and s3:ListBucket, or move it away");
                break;
        case HEAD_DENIED:
                upload_end_with_text(
                        u, UPLOAD_E_DENIED,
                        "cannot be written safely: there may be an object already, and looking is "
                        "forbidden: permit s3:GetObject and s3:ListBucket");
                break;
        case HEAD_STALE:
                upload_end_with_text(
                        u, UPLOAD_E_STALE,
                        u->multipart == MULTIPART_GONE
                                ? "the upload is not on the server any more: starting over"
                                : "another writer was in the way of its end: starting over");
                break;
        case HEAD_FAILED:
                upload_end_with_response(u, s3_verdict_outcome(u->response.verdict));
                break;
        }
}

static void after_head_guard(S3Upload *u) {
        switch (u->response.there) {
        case OBJECT_ABSENT:
        case OBJECT_OURS:
                overwrite_object(u);
                break;
        case OBJECT_OTHER:
                upload_end_with_text(u, UPLOAD_E_EXISTS,
                                     "another bundle was delivered under this name: it is not "
                                     "overwritten; move it and its manifest away");
                break;
        case OBJECT_FORBIDDEN:
                upload_end_with_text(
                        u, UPLOAD_E_EXISTS,
                        "an object exists already, and checking for its manifest is forbidden: "
                        "permit s3:GetObject and s3:ListBucket, or move it away");
                break;
        case OBJECT_UNKNOWN:
                upload_end_with_response(u, s3_verdict_outcome(u->response.verdict));
                break;
        }
}

static void check_conflict(S3Upload *u) {
        u->write.verdict = u->response.verdict;
        if (++u->write.n_rounds > CONFLICT_ROUNDS_MAX)
                upload_end_with_response(u, UPLOAD_E_UNREACHABLE);
        else
                enter_state(u, UPLOAD_HEAD_CONFLICT);
}

static void upload_end_with_mismatch(S3Upload *u) {
        const UploadResponse *h = &u->response;
        char size[32] = "of unknown size";

        if (h->has_bytes)
                (void)snprintf(size, sizeof size, "%" PRIu64 " bytes", h->object_bytes);
        upload_end_with_text(u, UPLOAD_E_MISMATCH,
                             "is not what was sent: %s with ETag '%s', not %" PRIu64
                             " bytes with '%s', or of another plan or content",
                             size, h->object_etag, upload_parts_bytes(&u->parts), u->etag);
}

static void after_head_proof(S3Upload *u) {
        const UploadResponse *h = &u->response;

        if (h->there == OBJECT_UNKNOWN) {
                upload_end_with_response(u, s3_verdict_outcome(h->verdict));
        } else if (h->there == OBJECT_FORBIDDEN) {
                u->proof = S3_PROOF_RESPONSE;
                upload_end(u, 0);
        } else if (h->there == OBJECT_OURS && strcmp(h->object_etag, u->etag) == 0) {
                u->proof = S3_PROOF_HEAD;
                upload_end(u, 0);
        } else if (h->there == OBJECT_ABSENT) {
                upload_end_with_text(u, UPLOAD_E_MISMATCH,
                                     "it was accepted, and is not there: it is sent again");
        } else {
                upload_end_with_mismatch(u);
        }
}

/* One object on its way to S3: the machine, one step at a time.
 *
 *   FIRST ─ ends with part 1 ─────────────────────────────→ PUT ──────→ PROOF
 *     └───→ CREATE ───→ PARTS → BEFORE → COMPLETE ────────────────────→ PROOF
 *   resumed:  LIST ───────┘              │ 412 → CONFLICT → again, or the end
 *                                        └ gone, 409 → LOST → the end
 *
 * PROOF, BEFORE, CONFLICT and LOST are UPLOAD_HEAD_*; BEFORE and CONFLICT lead to GUARD before what
 * they found is replaced. A part that is not accepted leads from PARTS to PART_FAILED, and to the
 * end. Before the end is ABORT if the upload is open and nobody will continue it. */

/* The single PUT */

/* A proxy may have answered: HEAD decides. */
static void check_unproven_put(S3Upload *u) {
        char text[192];

        (void)snprintf(text, sizeof text,
                       "PutObject was answered with %u and no ETag, which S3's answer always has; "
                       "correct endpoint, or check the proxy or load balancer in between",
                       u->response.status);
        record_malformed(&u->response, text);
        check_conflict(u);
}

static void after_put(S3Upload *u) {
        switch (u->response.verdict) {
        case S3_OK:
                if (!u->response.etag[0])
                        return check_unproven_put(u);
                (void)snprintf(u->etag, sizeof u->etag, "%s", u->response.etag);
                if (!u->options.trusts_response || !u->response.has_id)
                        return enter_state(u, UPLOAD_HEAD_PROOF);
                u->proof = S3_PROOF_RESPONSE;
                return upload_end(u, 0);
        case S3_UNCONDITIONAL:
                return enter_state(
                        u, UPLOAD_HEAD_BEFORE); /* known from now on: without condition, then */
        case S3_EXISTS:
        case S3_CONFLICT:
                return check_conflict(u);
        default:
                break;
        }
        upload_end_with_response(u, s3_verdict_outcome(u->response.verdict));
}

/* Several parts */

static void after_create(S3Upload *u) {
        if (u->response.verdict != S3_OK)
                return upload_end_with_response(u, s3_verdict_outcome(u->response.verdict));
        if (!u->upload_id)
                return upload_end_with_text(u, UPLOAD_E_UNREACHABLE,
                                            "the answer to CreateMultipartUpload has no upload id");
        int r = u->options.on_upload_id
                        ? u->options.on_upload_id(u, u->upload_id, u->options.userdata)
                        : 0;
        if (r < 0)
                upload_finish(u, r);
        else
                enter_state(u, UPLOAD_PARTS);
}

static void resume_parts(S3Upload *u) {
        unsigned missing = upload_parts_unlisted(&u->parts);

        if (missing)
                upload_end_with_text(u, UPLOAD_E_STALE,
                                     "part %u is not on the server any more: starting over",
                                     missing);
        else
                enter_state(u, UPLOAD_PARTS);
}

static void after_list(S3Upload *u) {
        switch (u->response.verdict) {
        case S3_OK:
                if (u->list_marker)
                        enter_state(u, UPLOAD_LIST);
                else
                        resume_parts(u);
                return;
        case S3_BAD_PART:
                return upload_end_with_text(
                        u, UPLOAD_E_STALE,
                        "the parts on the server are not those that were sent: starting over");
        case S3_NO_UPLOAD:
                set_multipart(u, MULTIPART_GONE);
                if (upload_parts_are_all_there(&u->parts))
                        enter_state(
                                u,
                                UPLOAD_HEAD_LOST); /* the answer of Complete may have been lost */
                else
                        upload_end_with_response(u, UPLOAD_E_STALE);
                return;
        case S3_DENIED:
        /* the ledger alone will do: a part that is not there is found by Complete */
        case S3_REFUSED:
                return enter_state(u, UPLOAD_PARTS);
        default:
                upload_end_with_response(u, s3_verdict_outcome(u->response.verdict));
        }
}

static void request_next_part(S3Upload *u) {
        unsigned number = upload_parts_next(&u->parts, u->options.max_parts_in_flight);

        if (u->is_pausing && u->parts.n_jobs == 0 && u->parts.wanted == 0)
                return upload_finish(u, UPLOAD_E_PAUSED);
        if (number == 0 || u->is_pausing)
                return;
        if (number > S3_PARTS_MAX)
                return upload_end_with_text(u, UPLOAD_E_REFUSED, "needs more than %d parts",
                                            S3_PARTS_MAX);
        u->parts.wanted = number;
        u->options.on_part_needed(u, number, u->options.userdata);
}

/* Parts that were given and are not on their way yet. @return 0, -errno */
static int send_parts(S3Upload *u) {
        int r = 0;

        LIST_FOREACH (link, &u->parts.jobs) {
                UploadJob *job = CONTAINER_OF(link, UploadJob, link);

                if (r == 0 && !job->call)
                        r = request_part(job);
        }
        return r;
}

static void after_failed_part(S3Upload *u) {
        if (u->response.verdict == S3_NO_UPLOAD)
                set_multipart(u, MULTIPART_GONE);
        upload_end_with_response(u, s3_verdict_outcome(u->response.verdict));
}

static void step_parts(S3Upload *u) {
        if (upload_parts_are_all_there(&u->parts))
                return enter_state(u,
                                   u->write.is_overwriting ? UPLOAD_COMPLETE : UPLOAD_HEAD_BEFORE);
        int r = send_parts(u);
        if (r < 0)
                upload_finish(u, r);
        else
                request_next_part(u);
}

static void step_first(S3Upload *u) {
        if (u->parts.n_jobs == 0)
                return request_next_part(u);
        if (u->parts.last == 1)
                return enter_state(u, u->write.is_overwriting || s3_client_has_conditions(u->client)
                                              ? UPLOAD_PUT
                                              : UPLOAD_HEAD_BEFORE);
        int r = u->options.on_begin(u, u->options.userdata);
        if (r < 0)
                upload_finish(u, r);
        else
                enter_state(u, UPLOAD_CREATE);
}

static void after_complete(S3Upload *u) {
        switch (u->response.verdict) {
        case S3_OK:
                set_multipart(u, MULTIPART_GONE);
                (void)snprintf(u->etag, sizeof u->etag, "%s", u->response.etag);
                return enter_state(u, u->etag[0] ? UPLOAD_HEAD_PROOF : UPLOAD_HEAD_LOST);
        /* an earlier try was carried out, and its answer lost; or somebody aborted it */
        case S3_NO_UPLOAD:
                set_multipart(u, MULTIPART_GONE);
                return enter_state(u, UPLOAD_HEAD_LOST);
        case S3_UNCONDITIONAL:
                return enter_state(
                        u, UPLOAD_HEAD_BEFORE); /* known from now on: without condition, then */
        case S3_EXISTS:
                return check_conflict(u);
        case S3_REFUSED:
                if (!u->response.is_malformed || u->write.omits_checksums)
                        break;
                u->write.omits_checksums = true;
                return enter_state(u, UPLOAD_COMPLETE);
        /* S3 wants the upload to be begun again; unless it is ours: an earlier try whose answer was
         * lost */
        case S3_CONFLICT:
                return enter_state(u, UPLOAD_HEAD_LOST);
        default:
                break;
        }
        upload_end_with_response(u, s3_verdict_outcome(u->response.verdict));
}

static void after_abort(S3Upload *u) {
        if (u->response.verdict == S3_OK || u->response.verdict == S3_NO_UPLOAD)
                set_multipart(u, MULTIPART_GONE);
        upload_finish(u, u->outcome);
}

static void upload_step(S3Upload *u) {
        if (u->state == UPLOAD_ENDED || u->call)
                return; /* what is underway will call again */
        if (u->failure < 0)
                return upload_finish(u, u->failure);
        switch (u->state) {
        case UPLOAD_NEW:
                enter_state(u, u->upload_id ? UPLOAD_LIST : UPLOAD_FIRST);
                break;
        case UPLOAD_FIRST:
                step_first(u);
                break;
        case UPLOAD_PUT:
                after_put(u);
                break;
        case UPLOAD_CREATE:
                after_create(u);
                break;
        case UPLOAD_LIST:
                after_list(u);
                break;
        case UPLOAD_PARTS:
                step_parts(u);
                break;
        case UPLOAD_PART_FAILED:
                after_failed_part(u);
                break;
        case UPLOAD_HEAD_BEFORE:
        case UPLOAD_HEAD_CONFLICT:
        case UPLOAD_HEAD_LOST:
                after_head(u);
                break;
        case UPLOAD_HEAD_GUARD:
                after_head_guard(u);
                break;
        case UPLOAD_COMPLETE:
                after_complete(u);
                break;
        case UPLOAD_HEAD_PROOF:
                after_head_proof(u);
                break;
        case UPLOAD_ABORT:
                after_abort(u);
                break;
        case UPLOAD_ENDED:
        case N_UPLOAD_STATES:
                break;
        }
}

/* The parent's side */

static int on_kick(sd_event_source *source, void *userdata) {
        (void)source;
        upload_step(userdata);
        return 0;
}

static void wake_event(S3Upload *u) {
        (void)sd_event_source_set_enabled(u->wake_event,
                                          SD_EVENT_ONESHOT); /* fails for no valid source */
}

static int copy_request(S3Upload *u, const S3UploadOptions *options) {
        u->options = *options;
        u->options.max_parts_in_flight = MAX(options->max_parts_in_flight, 1U);
        u->options.parts = NULL;
        u->options.upload_id = NULL;
        u->options.key = strdup(options->key);
        u->options.content_type = strdup(options->content_type ? options->content_type : "");
        u->options.plan_hex = strdup(options->plan_hex);
        u->options.guard_key = options->guard_key ? strdup(options->guard_key) : NULL;
        u->write.is_overwriting = options->is_overwrite;
        u->upload_id = options->upload_id ? strdup(options->upload_id) : NULL;
        if (!u->options.key || !u->options.content_type || !u->options.plan_hex ||
            (options->guard_key && !u->options.guard_key) || (options->upload_id && !u->upload_id))
                return -ENOMEM;
        if (u->upload_id)
                set_multipart(u, MULTIPART_OPEN);
        return upload_parts_init(&u->parts, options);
}

int s3_upload_new(S3Upload **ret, S3Client *client, const S3UploadOptions *options) {
        _cleanup_(s3_upload_freep) S3Upload *u = calloc(1, sizeof *u);

        if (!u)
                return -ENOMEM;
        u->client = client;
        int r = copy_request(u, options);
        if (r < 0)
                return r;
        r = sd_event_add_defer(s3_client_event(client), &u->wake_event, on_kick, u);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(u);
        return 0;
}

void s3_upload_add_part(S3Upload *u, S3Part *part) {
        if (u->state == UPLOAD_ENDED || u->state == UPLOAD_ABORT) {
                part->release(part);
                return;
        }
        int r = accept_part(&u->parts, u, part);
        if (r < 0) {
                part->release(part);
                u->failure = r;
        }
        wake_event(u); /* not from inside: the caller may be in on_part_needed */
}

void s3_upload_pause(S3Upload *u) {
        u->is_pausing = true;
        wake_event(u);
}

S3Upload *s3_upload_free(S3Upload *u) {
        if (!u)
                return NULL;
        s3_call_cancel(u->call);
        upload_parts_done(&u->parts);
        sd_event_source_disable_unref(u->wake_event);
        response_done(&u->response);
        free((char *)u->options.key);
        free((char *)u->options.content_type);
        free((char *)u->options.plan_hex);
        free((char *)u->options.guard_key);
        free(u->upload_id);
        free(u->body);
        free(u->error);
        free(u);
        return NULL;
}

bool s3_upload_may_be_visible(const S3Upload *u) {
        return u->state == UPLOAD_PUT || (u->state > UPLOAD_HEAD_BEFORE && u->state < UPLOAD_ABORT);
}

uint64_t s3_upload_sent_bytes(const S3Upload *u) {
        uint64_t bytes = u->parts.object_bytes;

        if (u->etag[0])
                return upload_parts_bytes(&u->parts); /* it was accepted as a whole */
        if (u->call && u->state == UPLOAD_PUT)
                return s3_call_sent_bytes(u->call);
        LIST_FOREACH (link, &u->parts.jobs) {
                const UploadJob *job = CONTAINER_OF(link, UploadJob, link);

                if (job->call)
                        bytes += s3_call_sent_bytes(job->call);
        }
        return bytes;
}
