/* Small objects in a bucket, by the client of the destination. A CREATE is a conditional PUT, whose
 * result is read back: a try whose answer was lost may have created the object, and a store may
 * have answered wrongly. Before the first CREATE this file writes one key twice by conditional
 * PUTs: a store that accepts the second ignores If-None-Match. Calls wait for that result.
 *
 * Everything is on the loop. What ends a call: object_call.c. */
#include "agent/delivery/objects_private.h"

#include <errno.h>
#include <string.h>

#include "agent/delivery/delivery_s3_bucket.h"
#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"
#include "uploaders/aws/aws_parse.h"
#include "uploaders/uploader.h"

#define TRIES_MAX 3
#define LIST_PAGES_MAX 1000
#define IGNORES_TEXT                                                                               \
        "the store accepts If-None-Match and ignores it, so two nodes could create the same "      \
        "object there; use a store with conditional writes"

/* ---- in a bucket: answers ---- */

S3Client *objects_s3_client(const Objects *o) {
        const char *unused;
        return delivery_s3_bucket_client(o->destination, &unused);
}

/* A refusal counts only when the store itself has answered 401 or 403. Credentials that cannot be
 * had at the moment, or that have expired, are trouble. */
static ObjectOutcome classify_answer(const S3Result *r, S3Operation operation) {
        switch (r->answer->verdict) {
        case S3_OK:
                return OBJECT_OK;
        case S3_NOT_FOUND:
                return operation == S3_GET_OBJECT ? OBJECT_NOT_FOUND : OBJECT_UNREACHABLE;
        case S3_EXISTS:
                return OBJECT_EXISTS;
        case S3_DENIED:
                return r->status == 403 || r->status == 401 ? OBJECT_UNABLE : OBJECT_UNREACHABLE;
        case S3_REFUSED: /* of a 200: a body that is larger than is kept */
                return operation == S3_GET_OBJECT && r->status == 200 ? OBJECT_INVALID
                                                                      : OBJECT_UNABLE;
        case S3_NO_BUCKET:
        case S3_UNCONDITIONAL:
                return OBJECT_UNABLE;
        default:
                return OBJECT_UNREACHABLE;
        }
}

/* @return 0: there is none */
static int64_t time_of(const S3Result *r, const char *header) {
        const char *text = r->header(r, header);
        uint64_t usec;
        return text && http_date_parse(text, &usec) == 0 ? (int64_t)usec : 0;
}

/* Date has whole seconds, and was taken at some moment between request and answer. */
static void learn_clock(ObjectCall *c, const S3Result *r) {
        const int64_t half_sec = USEC_PER_SEC / 2;
        int64_t date = time_of(r, "date"), half = (int64_t)r->duration_usec / 2,
                now = (int64_t)destination_boottime_usec(c->objects->destination);
        if (date == 0 || (c->result.has_clock && c->result.uncertainty_usec <= half_sec + half))
                return;
        c->result.has_clock = true;
        c->result.clock_offset_usec = date + half_sec - (now - half);
        c->result.uncertainty_usec = half_sec + half;
}

static ObjectOutcome accept_answer(ObjectCall *c, const S3Result *r, S3Operation operation) {
        c->s3 = NULL;
        learn_clock(c, r);
        return classify_answer(r, operation);
}

static void finish_answer(ObjectCall *c, ObjectOutcome outcome, const S3Result *r) {
        _cleanup_free_ char *text = NULL;
        if (outcome == OBJECT_INVALID)
                text = strbuf_format("'s3://%s/%s' is larger than the %zu bytes that it may have",
                                     s3_client_bucket(objects_s3_client(c->objects)), c->key,
                                     OBJECT_BYTES_MAX);
        object_call_finish(c, outcome, text ? text : r->answer->sentence);
}

/* @return 0; -errno of object_call_finish_later() */
static int send_request(ObjectCall *c, const S3RequestOptions *request) {
        S3RequestOptions own = *request;
        own.max_tries = TRIES_MAX;
        own.userdata = c;
        int r = s3_call_new(&c->s3, objects_s3_client(c->objects), &own);
        c->is_own_trouble = r < 0;
        return r < 0 ? object_call_finish_later(c, OBJECT_UNREACHABLE, strerror(-r)) : 0;
}

/* A callback cannot return an error, so the call ends. */
static void send_next(ObjectCall *c, int (*send)(ObjectCall *c)) {
        if (send(c) < 0)
                object_call_finish(c, OBJECT_UNREACHABLE, NULL);
}

/* ---- in a bucket: reading ---- */

static void on_got(const S3Result *r, void *userdata) {
        ObjectCall *c = userdata;
        ObjectOutcome outcome = accept_answer(c, r, S3_GET_OBJECT);
        if (outcome == OBJECT_OK) {
                c->result.data = r->body;
                c->result.n = r->body_bytes;
                c->result.modified_usec = time_of(r, "last-modified");
        }
        finish_answer(c, outcome, r);
}

/* Compares what has the name after a CREATE: it is our object, perhaps from a try whose answer was
 * lost, or another node's, whatever the store has answered. This also tells when it was created,
 * which the answer to PUT does not. */
static void on_compared(const S3Result *r, void *userdata) {
        ObjectCall *c = userdata;
        ObjectOutcome outcome = accept_answer(c, r, S3_GET_OBJECT);
        bool is_ours = outcome == OBJECT_OK && r->body_bytes == c->request.n &&
                       (c->request.n == 0 || memcmp(r->body, c->request.data, r->body_bytes) == 0);
        int64_t modified_usec = time_of(r, "last-modified");
        if (is_ours && modified_usec != 0)
                c->result.modified_usec = modified_usec;
        if (is_ours)
                object_call_finish(c, OBJECT_OK, NULL);
        else if (outcome == OBJECT_OK || outcome == OBJECT_INVALID)
                object_call_finish(c, OBJECT_EXISTS, NULL);
        else if (c->is_written) /* not permitted to read it */
                object_call_finish(c, OBJECT_OK, NULL);
        else if (outcome == OBJECT_NOT_FOUND) {
                c->is_own_trouble = true;
                object_call_finish(c, OBJECT_UNREACHABLE,
                                   "the object of that name has been removed");
        } else
                finish_answer(c, outcome, r);
}

static int send_get(ObjectCall *c) {
        bool compares = c->request.operation == OBJECT_CREATE;
        return send_request(c, &(S3RequestOptions){ .operation = S3_GET_OBJECT,
                                                    .key = c->key,
                                                    .reply_max_bytes = OBJECT_BYTES_MAX,
                                                    .on_done = compares ? on_compared : on_got });
}

static int add_page(ObjectCall *c, S3ObjectList *page) {
        size_t n_prefix = strlen(c->objects->prefix), n_key = strlen(c->key);
        for (size_t i = 0; i < page->n; i++) {
                const S3ListedObject *o = &page->items[i];
                if (strncmp(o->key, c->key, n_key) != 0 ||
                    !object_call_is_plain_name(o->key + n_key, false))
                        continue; /* none that we could have written */
                int r = object_entries_add(
                        &c->entries,
                        &(ObjectEntry){ .name = o->key + n_prefix,
                                        .bytes = o->bytes,
                                        .modified_usec = (int64_t)o->last_modified_usec,
                                        .is_trusted = true });
                if (r < 0)
                        return r;
        }
        free(c->token);
        c->token = page->is_truncated ? TAKE_PTR(page->next_token) : NULL;
        return page->is_truncated && !c->token              ? -EINVAL
               : c->token && ++c->n_pages >= LIST_PAGES_MAX ? -E2BIG
                                                            : 0;
}

static int send_list(ObjectCall *c);

static void on_page(const S3Result *r, void *userdata) {
        ObjectCall *c = userdata;
        S3ObjectList page = { 0 };
        ObjectOutcome outcome = accept_answer(c, r, S3_LIST_OBJECTS);
        if (outcome != OBJECT_OK) {
                finish_answer(c, outcome, r);
                return;
        }
        int error = s3_xml_object_list(r->body, r->body_bytes, &page);
        if (error == 0)
                error = add_page(c, &page);
        s3_object_list_done(&page);
        if (error == -E2BIG)
                object_call_finish(c, OBJECT_INVALID, "there are more names than may be listed");
        else if (error < 0)
                object_call_finish(
                        c, OBJECT_UNREACHABLE,
                        error == -ENOMEM ? NULL : "the answer to ListObjectsV2 is not S3's XML");
        else if (c->token)
                send_next(c, send_list);
        else
                object_call_finish_list(c);
}

static int send_list(ObjectCall *c) {
        const AwsNameValue queries[] = { { "list-type", "2" },
                                         { "encoding-type", "url" },
                                         { "prefix", c->key },
                                         { "continuation-token", c->token } };
        return send_request(c, &(S3RequestOptions){ .operation = S3_LIST_OBJECTS,
                                                    .queries = queries,
                                                    .n_queries = c->token ? 4 : 3,
                                                    .on_done = on_page });
}

/* ---- in a bucket: writing ---- */

static void on_put(const S3Result *r, void *userdata) {
        ObjectCall *c = userdata;
        ObjectOutcome outcome = accept_answer(c, r, S3_PUT_OBJECT);
        c->is_written = outcome == OBJECT_OK;
        c->result.modified_usec = c->is_written ? time_of(r, "date") : 0;
        if (c->request.operation == OBJECT_CREATE &&
            (c->is_written || (outcome == OBJECT_EXISTS && r->n_tries > 1)))
                send_next(c, send_get);
        else
                finish_answer(c, outcome, r);
}

static int send_put(ObjectCall *c) {
        const AwsNameValue type = { "content-type", "application/json" };
        return send_request(
                c, &(S3RequestOptions){ .operation = S3_PUT_OBJECT,
                                        .key = c->key,
                                        .headers = &type,
                                        .n_headers = 1,
                                        .body = c->request.data,
                                        .body_bytes = c->request.n,
                                        .is_conditional = c->request.operation == OBJECT_CREATE,
                                        .with_object_headers = true,
                                        .on_done = on_put });
}

/* ---- in a bucket: does the store heed If-None-Match? ---- */

static void finish_probe(Objects *o, ObjectOutcome outcome, const char *error) {
        bool found;
        do { /* on_done may cancel any other */
                found = false;
                LIST_FOREACH (link, &o->calls) {
                        ObjectCall *c = CONTAINER_OF(link, ObjectCall, link);
                        if (c->state != OBJECT_CALL_AWAITS_PROBE)
                                continue;
                        found = true;
                        object_call_set_state(c, OBJECT_CALL_ON_LOOP);
                        if (outcome == OBJECT_OK)
                                send_next(c, send_put);
                        else
                                object_call_finish(c, outcome, error);
                        break;
                }
        } while (found);
}

static int send_probe(Objects *o, S3Operation operation);

/* An object that an earlier run could not delete serves as the first PUT. */
static void on_probed(const S3Result *r, void *userdata) {
        Objects *o = userdata;
        ObjectOutcome outcome = classify_answer(r, S3_PUT_OBJECT);
        bool has_answered = outcome == OBJECT_OK || outcome == OBJECT_EXISTS;
        o->probe = NULL;
        if (o->conditions >= CONDITIONS_HEEDED)
                return; /* it was deleted, or stays where that is not permitted: one a node */
        if (!has_answered) {
                o->conditions = CONDITIONS_UNKNOWN;
                finish_probe(o, outcome, r->answer->sentence);
        } else if (o->conditions == CONDITIONS_FIRST_PROBE) {
                o->conditions = CONDITIONS_SECOND_PROBE;
                if (send_probe(o, S3_PUT_OBJECT) == 0)
                        return;
                o->conditions = CONDITIONS_UNKNOWN;
                finish_probe(o, OBJECT_UNREACHABLE, NULL);
        } else {
                bool is_heeded = outcome == OBJECT_EXISTS;
                o->conditions = is_heeded ? CONDITIONS_HEEDED : CONDITIONS_IGNORED;
                (void)send_probe(o, S3_DELETE_OBJECT);
                finish_probe(o, is_heeded ? OBJECT_OK : OBJECT_UNABLE, IGNORES_TEXT);
        }
}

static int send_probe(Objects *o, S3Operation operation) {
        static const char body[] = "Does this store heed If-None-Match?\n";
        bool is_put = operation == S3_PUT_OBJECT;
        return s3_call_new(&o->probe, objects_s3_client(o),
                           &(S3RequestOptions){ .operation = operation,
                                                .key = o->probe_key,
                                                .body = is_put ? body : NULL,
                                                .body_bytes = is_put ? sizeof body - 1 : 0,
                                                .is_conditional = is_put,
                                                .with_object_headers = is_put,
                                                .max_tries = TRIES_MAX,
                                                .on_done = on_probed,
                                                .userdata = o });
}

static int s3_create(ObjectCall *c) {
        Objects *o = c->objects;
        if (o->conditions == CONDITIONS_HEEDED)
                return send_put(c);
        if (o->conditions == CONDITIONS_IGNORED)
                return object_call_finish_later(c, OBJECT_UNABLE, IGNORES_TEXT);
        object_call_set_state(c, OBJECT_CALL_AWAITS_PROBE);
        if (o->conditions != CONDITIONS_UNKNOWN)
                return 0;
        int r = send_probe(o, S3_PUT_OBJECT);
        o->conditions = r == 0 ? CONDITIONS_FIRST_PROBE : CONDITIONS_UNKNOWN;
        return r;
}

int objects_s3_start(ObjectCall *c) {
        const char *error;
        if (!delivery_s3_bucket_client(c->objects->destination, &error))
                return object_call_finish_later(c, OBJECT_UNABLE, error);
        c->key = strbuf_format("%s%s", c->objects->prefix, c->request.name);
        if (!c->key)
                return -ENOMEM;
        switch (c->request.operation) {
        case OBJECT_LIST:
                return send_list(c);
        case OBJECT_GET:
                return send_get(c);
        case OBJECT_CREATE:
                return s3_create(c);
        case OBJECT_PUT:
                return send_put(c);
        default:
                return -EINVAL;
        }
}
