/* Writes and reads the documents of a failure: a decision, and one node's record: its claims and
 * its bundles. The same functions write and read each member, so a document that is read has
 * exactly the members that would be written. Anyone may write to a shared volume, so sizes, depths
 * and numbers are bounded, and a document that is not of the expected key and number is refused. */
#include "agent/peers/record.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "agent/peers/document.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/job.h"

#define DECISION_SCHEMA "neuron-collectd/decision/1"
#define RECORD_SCHEMA "neuron-collectd/claims/1"

enum {
        DEPTH_MAX = 4,
        SPAN_MSEC_MAX = 24 * 3600 * 1000, /* of settle and uncertainty */
        COMMAS_MAX = 32 * CLAIMS_MAX,     /* 16 members a claim: bounds what a tree of it takes */
};

void record_done(Record *r) {
        claim_set_done(&r->claims);
        node_bundles_done(&r->bundles);
        *r = (Record){ 0 };
}

/* ---- members: the same functions write and read them ---- */

typedef struct RecordCodec {
        StrBuf *b; /* written to, and no value changes; NULL: it reads */
        const json_t
                *object; /* read from; all members are required, and what is not known is null */
        bool is_invalid;
} RecordCodec;

static void expect(RecordCodec *c, bool is_valid) {
        c->is_invalid = c->is_invalid || !is_valid;
}

static const json_t *member(const RecordCodec *c, const char *name) {
        return json_object_get(c->object, name);
}

static bool is_printable(const char *s) {
        for (; *s; s++)
                if (*s < ' ' || *s > '~')
                        return false;
        return true;
}

static void code_fixed(RecordCodec *c, const char *name, const char *text) {
        if (c->b) {
                json_out_string(c->b, name, text);
                return;
        }
        const char *s = json_string_value(member(c, name));
        expect(c, s && strcmp(s, text) == 0);
}

static void code_text_or_null(RecordCodec *c, const char *name, char *text, size_t size) {
        if (c->b) {
                document_add_text(c->b, name, text);
                return;
        }
        const char *s = json_string_value(member(c, name));
        size_t n = s ? strlen(s) : 0;
        if (n > 0 && n < size && is_printable(s))
                memcpy(text, s, n + 1);
        else
                expect(c, json_is_null(member(c, name)));
}

static void code_text(RecordCodec *c, const char *name, char *text, size_t size) {
        code_text_or_null(c, name, text, size);
        expect(c, *text);
}

static void code_instance_id(RecordCodec *c, const char *name, char id[INSTANCE_ID_SIZE]) {
        code_text(c, name, id, INSTANCE_ID_SIZE);
        expect(c, document_instance_id_is_valid(id));
}

/* @return the number, which is one from min to max when it was read */
static int64_t code_number(RecordCodec *c, const char *name, int64_t v, int64_t min, int64_t max) {
        if (c->b) {
                json_out_i64(c->b, name, v);
                return v;
        }
        v = json_integer_value(member(c, name));
        expect(c, json_is_integer(member(c, name)) && v >= min && v <= max);
        return c->is_invalid ? min : v;
}

/* null for -1. */
static int64_t code_number_or_null(RecordCodec *c, const char *name, int64_t v, int64_t min,
                                   int64_t max) {
        if (c->b)
                document_add_number(c->b, name, v);
        else
                v = json_is_null(member(c, name)) ? -1 : code_number(c, name, v, min, max);
        return v;
}

static int64_t code_span(RecordCodec *c, const char *name, int64_t usec) {
        return code_number(c, name, (int64_t)document_usec_to_msec(usec), 0, SPAN_MSEC_MAX) *
               (int64_t)USEC_PER_MSEC;
}

static bool code_bool(RecordCodec *c, const char *name, bool v) {
        if (c->b)
                json_out_bool(c->b, name, v);
        else
                expect(c, json_is_boolean(member(c, name)));
        return c->b ? v : json_is_true(member(c, name));
}

/* @return the word that was written or read; NULL: it is no string */
static const char *code_word(RecordCodec *c, const char *name, const char *word) {
        if (!c->b)
                return json_string_value(member(c, name));
        json_out_string(c->b, name, word);
        return word;
}

/* null for INT64_MIN. */
static int64_t code_time(RecordCodec *c, const char *name, int64_t usec) {
        if (c->b) {
                document_add_time(c->b, name, usec);
                return usec;
        }
        const char *s = json_string_value(member(c, name));
        usec = INT64_MIN;
        expect(c, s ? document_parse_time(s, &usec) : json_is_null(member(c, name)));
        return usec;
}

/* ---- documents ---- */

static void code_head(RecordCodec *c, const char *schema, const char *key, uint32_t n) {
        code_fixed(c, "schema", schema);
        code_fixed(c, "key", key);
        (void)code_number(c, "n", n, n, n); /* any other number is invalid */
}

static void code_decision(RecordCodec *c, Decision *d, char job[JOB_KEY_SIZE]) {
        code_head(c, DECISION_SCHEMA, d->key, d->n);
        code_text(c, "cluster_id", d->cluster_id, sizeof d->cluster_id);
        code_text(c, "date_time", d->date_time, sizeof d->date_time);
        d->derived = code_bool(c, "derived", d->derived);
        code_text_or_null(c, "job", job, JOB_KEY_SIZE);
        d->world_size = code_number_or_null(c, "world_size", d->world_size, 1, CLAIM_RANKS_MAX);
        d->settle_usec = code_span(c, "settle_ms", d->settle_usec);
        expect(c, agreed_parse(code_word(c, "agreed", agreed_name(d->agreed)), &d->agreed) == 0);
        code_instance_id(c, "created_by", d->created_by);
        expect(c, decision_name_is_valid(d));
}

static void code_claim(RecordCodec *c, Claim *x) {
        x->rank = code_number_or_null(c, "rank", x->rank, 0, CLAIM_RANKS_MAX - 1);
        x->world_size = code_number_or_null(c, "world_size", x->world_size, 1, CLAIM_RANKS_MAX);
        code_text(c, "boot_id", x->boot_id, sizeof x->boot_id);
        x->pid = (uint32_t)code_number(c, "pid", x->pid, 0, UINT32_MAX);
        x->start_ticks =
                (uint64_t)code_number(c, "start_ticks", (int64_t)x->start_ticks, 0, INT64_MAX);
        code_text_or_null(c, "cluster_id", x->cluster_id, sizeof x->cluster_id);
        code_text_or_null(c, "date_time", x->date_time, sizeof x->date_time);
        const char *state = code_word(c, "state", claim_state_name(x->state));
        code_text_or_null(c, "bundle", x->bundle, sizeof x->bundle);
        const char *bundle = code_word(c, "bundle_state", claim_bundle_name(x->bundle_state));
        if (c->b)
                document_add_error(c->b, x);
        else if ((x->has_error = !json_is_null(member(c, "error_code"))))
                x->error_code = code_number(c, "error_code", 0, INT64_MIN, INT64_MAX);
        code_text_or_null(c, "error_location", x->error_location, sizeof x->error_location);
        x->started_usec = code_time(c, "started", x->started_usec);
        x->event_usec = code_time(c, "seen", x->event_usec);
        x->revision = (uint32_t)code_number(c, "revision", x->revision, 0, UINT32_MAX);
        expect(c, claim_state_parse(state, &x->state) == 0 &&
                          claim_bundle_parse(bundle, &x->bundle_state) == 0);
        expect(c, x->event_usec != INT64_MIN && (!*x->bundle || bundle_id_is_valid(x->bundle)));
}

/* @return the object, borrowed; NULL: none */
static const char *code_object(RecordCodec *c, const char *object) {
        if (c->b) {
                json_out_string(c->b, "object", object);
                return object;
        }
        const char *s = json_string_value(member(c, "object"));
        size_t n = s ? strlen(s) : 0;
        bool is_valid = n > 0 && n <= NODE_BUNDLE_OBJECT_MAX;
        for (size_t i = 0; i < n; i++)
                is_valid = is_valid && (unsigned char)s[i] >= ' ' && s[i] != '\x7f';
        expect(c, is_valid || json_is_null(member(c, "object")));
        return s;
}

/* @return its object, borrowed: what is read is not put into `x` */
static const char *code_bundle(RecordCodec *c, NodeBundle *x) {
        code_text(c, "id", x->id, sizeof x->id);
        const char *kind = bundle_id_kind_name(x->id);
        expect(c, kind);
        code_fixed(c, "kind", kind ? kind : "");
        expect(c, bundle_state_parse(code_word(c, "state", bundle_state_name(x->state)),
                                     &x->state) == 0);
        return code_object(c, x->object);
}

/* Writes or reads a record, but not its claims and bundles. */
static void code_record(RecordCodec *c, Record *r) {
        code_head(c, RECORD_SCHEMA, r->key, r->n);
        code_instance_id(c, "instance_id", r->instance_id);
        r->revision = (uint64_t)code_number(c, "revision", (int64_t)r->revision, 0, INT64_MAX);
        r->uncertainty_usec = code_span(c, "uncertainty_ms", r->uncertainty_usec);
        r->bundles.n_left_out = (uint64_t)code_number(c, "bundles_left_out",
                                                      (int64_t)r->bundles.n_left_out, 0, INT64_MAX);
}

char *decision_format(const Decision *d, const char *job_key, size_t *ret_n) {
        StrBuf b = STRBUF_INIT;
        RecordCodec c = { .b = &b };
        Decision copy = *d;
        char job[JOB_KEY_SIZE];
        (void)snprintf(job, sizeof job, "%s", job_key);
        json_out_object(&b, NULL);
        code_decision(&c, &copy, job);
        return document_detach(&b, ret_n);
}

char *record_format(const Record *r, size_t *ret_n) {
        StrBuf b = STRBUF_INIT;
        RecordCodec c = { .b = &b };
        Record copy = *r;
        json_out_object(&b, NULL);
        code_record(&c, &copy);
        json_out_array(&b, "claims");
        for (size_t i = 0; i < r->claims.n; i++) {
                Claim claim = r->claims.items[i];
                json_out_object(&b, NULL);
                code_claim(&c, &claim);
                json_out_end_object(&b);
        }
        json_out_end_array(&b);
        json_out_array(&b, "bundles");
        for (size_t i = 0; i < r->bundles.n; i++) {
                NodeBundle bundle = r->bundles.items[i]; /* borrowed */
                json_out_object(&b, NULL);
                (void)code_bundle(&c, &bundle);
                json_out_end_object(&b);
        }
        json_out_end_array(&b);
        return document_detach(&b, ret_n);
}

/* @return 0 and the object, the caller's; -EINVAL; -ENOMEM */
static int load_document(const char *text, size_t n, size_t max_bytes, const char *key,
                         json_t **ret) {
        size_t n_commas = 0;
        json_error_t error;
        if (n > max_bytes || parse_json_exceeds_depth(text, n, DEPTH_MAX) ||
            !claim_key_is_valid(key))
                return -EINVAL;
        for (size_t i = 0; i < n; i++)
                n_commas += text[i] == ',';
        if (n_commas > COMMAS_MAX)
                return -EINVAL;
        *ret = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
        if (!*ret)
                return json_error_code(&error) == json_error_out_of_memory ? -ENOMEM : -EINVAL;
        return 0;
}

int decision_parse(const char *text, size_t n_text, const char *key, uint32_t n, Decision *ret) {
        Decision d = { .n = n };
        char job[JOB_KEY_SIZE];
        json_auto_t *root = NULL;
        int r = load_document(text, n_text, DECISION_BYTES_MAX, key, &root);
        if (r < 0)
                return r;
        RecordCodec c = { .object = root };
        memcpy(d.key, key, sizeof d.key);
        code_decision(&c, &d, job);
        if (c.is_invalid)
                return -EINVAL;
        *ret = d;
        return 0;
}

/* @return 0, -EINVAL, -ENOMEM */
static int read_claims(const json_t *list, Record *ret) {
        if (!json_is_array(list) || json_array_size(list) > CLAIMS_MAX)
                return -EINVAL;
        for (size_t i = 0; i < json_array_size(list); i++) {
                RecordCodec codec = { .object = json_array_get(list, i) };
                Claim c;
                memset(&c, 0, sizeof c); /* sets compare claims byte for byte */
                memcpy(c.instance_id, ret->instance_id, sizeof c.instance_id);
                code_claim(&codec, &c);
                int r = codec.is_invalid ? -EINVAL : claim_set_add(&ret->claims, &c);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* @return 0, -EINVAL, -ENOMEM */
static int read_bundles(const json_t *list, Record *ret) {
        if (!json_is_array(list) || json_array_size(list) > NODE_BUNDLES_MAX)
                return -EINVAL;
        for (size_t i = 0; i < json_array_size(list); i++) {
                RecordCodec codec = { .object = json_array_get(list, i) };
                NodeBundle x = { 0 };
                const char *object = code_bundle(&codec, &x);
                int r = codec.is_invalid ? -EINVAL
                                         : node_bundles_add(&ret->bundles, x.id, x.state, object);
                if (r < 0)
                        return r;
        }
        return 0;
}

int record_parse(const char *text, size_t n_text, const char *key, uint32_t n, Record *ret) {
        _cleanup_(record_done) Record record = { .n = n };
        json_auto_t *root = NULL;
        int r = load_document(text, n_text, RECORD_BYTES_MAX, key, &root);
        if (r < 0)
                return r;
        RecordCodec c = { .object = root };
        memcpy(record.key, key, sizeof record.key);
        code_record(&c, &record);
        r = c.is_invalid ? -EINVAL : read_claims(member(&c, "claims"), &record);
        if (r == 0)
                r = read_bundles(member(&c, "bundles"), &record);
        if (r < 0)
                return r;
        *ret = record;
        record = (Record){ 0 };
        return 0;
}
