#include "agent/peers/record.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/job.h"

#define DECISION_SCHEMA "neuron-collectd/decision/1"
#define RECORD_SCHEMA "neuron-collectd/claims/1"
#define SUFFIX ".json"

enum {
        DEPTH_MAX = 4,
        RANKS_MAX = 1000000,
        SPAN_MSEC_MAX = 24 * 3600 * 1000, /* of settle and uncertainty */
        COMMAS_MAX = 32 * CLAIMS_MAX,     /* 16 members a claim: bounds what a tree of it takes */
        NAME_TIME_SIZE = 19,              /* `yyyymmddTHHMMSSmmm` and NUL */
};
#define TIME_MAX_USEC INT64_C(253402300799999999) /* the end of the year 9999 */

void record_done(Record *r) {
        claim_set_done(&r->claims);
        *r = (Record){ 0 };
}

void claim_shift(Claim *c, int64_t offset_usec) {
        int64_t *const times[] = { &c->started_usec, &c->event_usec };
        for (size_t i = 0; i < ELEMENTSOF(times); i++)
                if (*times[i] != INT64_MIN &&
                    __builtin_add_overflow(*times[i], offset_usec, times[i]))
                        *times[i] = offset_usec > 0 ? INT64_MAX : INT64_MIN + 1;
}

/* ---- times ---- */

/* What a document can hold: years 1970 to 9999. */
static uint64_t bounded_time(int64_t usec) {
        return (uint64_t)MIN(MAX(usec, 0), TIME_MAX_USEC);
}

/* Reads by strptime() what is then verified by being formatted again. */
static bool parse_seconds(const char *s, const char *format, int64_t *ret_usec) {
        struct tm tm = { 0 };
        if (!strptime(s, format, &tm))
                return false;
        *ret_usec = (int64_t)timegm(&tm) * (int64_t)USEC_PER_SEC;
        return true;
}

static bool parse_time(const char *s, int64_t *ret) {
        char again[CLOCK_ISO_SIZE];
        uint64_t fraction;
        const char *dot = strchr(s, '.'), *at = dot ? dot + 1 : NULL;
        int64_t usec;
        if (!dot || !parse_seconds(s, "%Y-%m-%dT%H:%M:%S", &usec) ||
            !parse_u64_prefix(&at, s + strlen(s), &fraction) || fraction >= USEC_PER_SEC)
                return false;
        usec += (int64_t)fraction;
        if (strcmp(clock_format_iso(again, bounded_time(usec)), s) != 0)
                return false;
        *ret = usec;
        return true;
}

static void format_name_time(int64_t usec, char ret[NAME_TIME_SIZE]) {
        char seconds[CLOCK_ISO_SIZE];
        uint64_t time = bounded_time(usec);
        snprintf(ret, NAME_TIME_SIZE, "%.15s%03u", clock_format_compact(seconds, time, 'T'),
                 (unsigned)(time % USEC_PER_SEC / USEC_PER_MSEC));
}

/* ---- writing ---- */

void record_out_time(StrBuf *b, const char *key, int64_t usec) {
        char text[CLOCK_ISO_SIZE];
        json_out_string(b, key,
                        usec == INT64_MIN ? NULL : clock_format_iso(text, bounded_time(usec)));
}

void record_out_text(StrBuf *b, const char *key, const char *text) {
        json_out_string(b, key, *text ? text : NULL);
}

void record_out_number(StrBuf *b, const char *key, int64_t number) {
        if (number < 0)
                json_out_null(b, key);
        else
                json_out_i64(b, key, number);
}

uint64_t record_usec_to_msec(int64_t usec) {
        return usec <= 0 ? 0 : ((uint64_t)usec + USEC_PER_MSEC - 1) / USEC_PER_MSEC;
}

char *record_detach(StrBuf *b, size_t *ret_n) {
        json_out_end_object(b);
        strbuf_add(b, "\n");
        *ret_n = b->n;
        return strbuf_detach(b);
}

char *decision_format(const Decision *d, const char *job_key, size_t *ret_n) {
        StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "schema", DECISION_SCHEMA);
        json_out_string(&b, "key", d->key);
        json_out_u64(&b, "n", d->n);
        json_out_string(&b, "cluster_id", d->cluster_id);
        json_out_string(&b, "date_time", d->date_time);
        json_out_bool(&b, "derived", d->derived);
        record_out_text(&b, "job", job_key);
        record_out_number(&b, "world_size", d->world_size);
        json_out_u64(&b, "settle_ms", record_usec_to_msec(d->settle_usec));
        json_out_string(&b, "agreed", agreed_name(d->agreed));
        json_out_string(&b, "created_by", d->created_by);
        return record_detach(&b, ret_n);
}

static void add_claim(StrBuf *b, const Claim *c) {
        json_out_object(b, NULL);
        record_out_number(b, "rank", c->rank);
        record_out_number(b, "world_size", c->world_size);
        json_out_string(b, "boot_id", c->boot_id);
        json_out_u64(b, "pid", c->pid);
        json_out_u64(b, "start_ticks", c->start_ticks);
        record_out_text(b, "cluster_id", c->cluster_id);
        record_out_text(b, "date_time", c->date_time);
        json_out_string(b, "state", claim_state_name(c->state));
        record_out_text(b, "bundle", c->bundle);
        json_out_string(b, "bundle_state", claim_bundle_name(c->bundle_state));
        if (c->has_error)
                json_out_i64(b, "error_code", c->error_code);
        else
                json_out_null(b, "error_code");
        record_out_text(b, "error_location", c->error_location);
        record_out_time(b, "started", c->started_usec);
        record_out_time(b, "seen", c->event_usec);
        json_out_u64(b, "revision", c->revision);
        json_out_end_object(b);
}

char *record_format(const Record *r, size_t *ret_n) {
        StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "schema", RECORD_SCHEMA);
        json_out_string(&b, "key", r->key);
        json_out_u64(&b, "n", r->n);
        json_out_string(&b, "instance_id", r->instance_id);
        json_out_u64(&b, "revision", r->revision);
        json_out_u64(&b, "uncertainty_ms", record_usec_to_msec(r->uncertainty_usec));
        json_out_array(&b, "claims");
        for (size_t i = 0; i < r->claims.n; i++)
                add_claim(&b, &r->claims.items[i]);
        json_out_end_array(&b);
        return record_detach(&b, ret_n);
}

/* ---- reading: members are required, and what is not known is null ---- */

typedef struct Reader {
        const json_t *object;
        bool is_invalid;
} Reader;

static bool is_printable(const char *s) {
        for (; *s; s++)
                if (*s < ' ' || *s > '~')
                        return false;
        return true;
}

static bool instance_id_is_valid(const char *s) {
        size_t n = strlen(s);
        return n > 0 && n < INSTANCE_ID_SIZE && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 &&
               strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

/* @return the string of a member, "" when it is anything else; NULL is null */
static const char *read_string(Reader *r, const char *name) {
        const json_t *v = json_object_get(r->object, name);
        if (json_is_null(v))
                return NULL;
        const char *s = json_string_value(v);
        r->is_invalid = r->is_invalid || !s;
        return s ? s : "";
}

static void read_text_or_null(Reader *r, const char *name, char *buf, size_t size) {
        const char *s = read_string(r, name);
        if (!s)
                return;
        size_t n = strlen(s);
        if (n == 0 || n >= size || !is_printable(s))
                r->is_invalid = true;
        else
                memcpy(buf, s, n + 1);
}

static void read_text(Reader *r, const char *name, char *buf, size_t size) {
        read_text_or_null(r, name, buf, size);
        r->is_invalid = r->is_invalid || !*buf;
}

static void read_instance_id(Reader *r, const char *name, char ret[INSTANCE_ID_SIZE]) {
        read_text(r, name, ret, INSTANCE_ID_SIZE);
        r->is_invalid = r->is_invalid || !instance_id_is_valid(ret);
}

static int64_t read_number(Reader *r, const char *name, int64_t min, int64_t max) {
        const json_t *v = json_object_get(r->object, name);
        int64_t number = json_integer_value(v);
        if (json_is_integer(v) && number >= min && number <= max)
                return number;
        r->is_invalid = true;
        return min;
}

/* @return -1 for null */
static int64_t read_number_or_null(Reader *r, const char *name, int64_t min, int64_t max) {
        return json_is_null(json_object_get(r->object, name)) ? -1 : read_number(r, name, min, max);
}

/* @return INT64_MIN for null */
static int64_t read_time(Reader *r, const char *name) {
        const char *s = read_string(r, name);
        int64_t usec = INT64_MIN;
        if (s && !parse_time(s, &usec))
                r->is_invalid = true;
        return usec;
}

static int read_word(Reader *r, const char *name, const char *const *words, size_t n) {
        int i = parse_word(read_string(r, name), words, n);
        r->is_invalid = r->is_invalid || i < 0;
        return MAX(i, 0);
}

/* @return 0 and the object, the caller's; -EINVAL; -ENOMEM */
static int load_document(const char *text, size_t n, size_t max_bytes, json_t **ret) {
        size_t n_commas = 0;
        json_error_t error;
        if (n > max_bytes || parse_json_exceeds_depth(text, n, DEPTH_MAX))
                return -EINVAL;
        for (size_t i = 0; i < n; i++)
                n_commas += text[i] == ',';
        if (n_commas > COMMAS_MAX)
                return -EINVAL;
        json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
        if (!root)
                return json_error_code(&error) == json_error_out_of_memory ? -ENOMEM : -EINVAL;
        *ret = root;
        return 0;
}

static void read_head(Reader *r, const char *schema, const char *key, uint32_t n) {
        const char *s = read_string(r, "schema"), *k = read_string(r, "key");
        r->is_invalid = r->is_invalid || !s || strcmp(s, schema) != 0 || !k || strcmp(k, key) != 0;
        (void)read_number(r, "n", n, n); /* it is this one, or invalid */
}

static void read_decision(Reader *r, Decision *d) {
        const char *words[N_AGREED];
        char job[JOB_KEY_SIZE] = "";
        const json_t *derived = json_object_get(r->object, "derived");
        for (Agreed a = 0; a < N_AGREED; a++)
                words[a] = agreed_name(a);
        read_text(r, "cluster_id", d->cluster_id, sizeof d->cluster_id);
        read_text(r, "date_time", d->date_time, sizeof d->date_time);
        d->derived = json_is_true(derived);
        r->is_invalid = r->is_invalid || !json_is_boolean(derived);
        read_text_or_null(r, "job", job, sizeof job);
        d->world_size = read_number_or_null(r, "world_size", 1, RANKS_MAX);
        d->settle_usec = read_number(r, "settle_ms", 0, SPAN_MSEC_MAX) * (int64_t)USEC_PER_MSEC;
        d->agreed = (Agreed)read_word(r, "agreed", words, N_AGREED);
        read_instance_id(r, "created_by", d->created_by);
        r->is_invalid = r->is_invalid || !decision_name_is_valid(d);
}

int decision_parse(const char *text, size_t n_text, const char *key, uint32_t n, Decision *ret) {
        Decision d = { .n = n };
        json_t *root = NULL;
        int r = load_document(text, n_text, DECISION_BYTES_MAX, &root);
        if (r < 0)
                return r;
        Reader reader = { .object = root, .is_invalid = !claim_key_is_valid(key) };
        read_head(&reader, DECISION_SCHEMA, key, n);
        if (!reader.is_invalid) {
                memcpy(d.key, key, sizeof d.key);
                read_decision(&reader, &d);
        }
        json_decref(root);
        if (reader.is_invalid)
                return -EINVAL;
        *ret = d;
        return 0;
}

static void read_claim(Reader *r, Claim *c) {
        const char *states[N_CLAIM_STATES], *bundles[N_CLAIM_BUNDLES];
        for (ClaimState s = 0; s < N_CLAIM_STATES; s++)
                states[s] = claim_state_name(s);
        for (ClaimBundle b = 0; b < N_CLAIM_BUNDLES; b++)
                bundles[b] = claim_bundle_name(b);
        c->rank = read_number_or_null(r, "rank", 0, RANKS_MAX - 1);
        c->world_size = read_number_or_null(r, "world_size", 1, RANKS_MAX);
        read_text(r, "boot_id", c->boot_id, sizeof c->boot_id);
        c->pid = (uint32_t)read_number(r, "pid", 0, UINT32_MAX);
        c->start_ticks = (uint64_t)read_number(r, "start_ticks", 0, INT64_MAX);
        read_text_or_null(r, "cluster_id", c->cluster_id, sizeof c->cluster_id);
        read_text_or_null(r, "date_time", c->date_time, sizeof c->date_time);
        c->state = (ClaimState)read_word(r, "state", states, N_CLAIM_STATES);
        read_text_or_null(r, "bundle", c->bundle, sizeof c->bundle);
        c->bundle_state = (ClaimBundle)read_word(r, "bundle_state", bundles, N_CLAIM_BUNDLES);
        c->has_error = !json_is_null(json_object_get(r->object, "error_code"));
        if (c->has_error)
                c->error_code = read_number(r, "error_code", INT64_MIN, INT64_MAX);
        read_text_or_null(r, "error_location", c->error_location, sizeof c->error_location);
        c->started_usec = read_time(r, "started");
        c->event_usec = read_time(r, "seen");
        c->revision = (uint32_t)read_number(r, "revision", 0, UINT32_MAX);
        r->is_invalid = r->is_invalid || c->event_usec == INT64_MIN ||
                        (c->bundle[0] && !bundle_id_is_valid(c->bundle));
}

/* @return 0, -EINVAL, -ENOMEM */
static int read_claims(const json_t *list, Record *ret) {
        if (!json_is_array(list) || json_array_size(list) > CLAIMS_MAX)
                return -EINVAL;
        for (size_t i = 0; i < json_array_size(list); i++) {
                Reader reader = { .object = json_array_get(list, i) };
                Claim c;
                memset(&c, 0, sizeof c); /* sets compare claims byte for byte */
                memcpy(c.instance_id, ret->instance_id, sizeof c.instance_id);
                read_claim(&reader, &c);
                int r = reader.is_invalid ? -EINVAL : claim_set_add(&ret->claims, &c);
                if (r < 0)
                        return r;
        }
        return 0;
}

int record_parse(const char *text, size_t n_text, const char *key, uint32_t n, Record *ret) {
        _cleanup_(record_done) Record record = { .n = n };
        json_t *root = NULL;
        int r = load_document(text, n_text, RECORD_BYTES_MAX, &root);
        if (r < 0)
                return r;
        Reader reader = { .object = root, .is_invalid = !claim_key_is_valid(key) };
        read_head(&reader, RECORD_SCHEMA, key, n);
        read_instance_id(&reader, "instance_id", record.instance_id);
        record.revision = (uint64_t)read_number(&reader, "revision", 0, INT64_MAX);
        record.uncertainty_usec =
                read_number(&reader, "uncertainty_ms", 0, SPAN_MSEC_MAX) * (int64_t)USEC_PER_MSEC;
        r = reader.is_invalid ? -EINVAL : read_claims(json_object_get(root, "claims"), &record);
        json_decref(root);
        if (r < 0)
                return r;
        memcpy(record.key, key, sizeof record.key);
        *ret = record;
        record = (Record){ 0 };
        return 0;
}

/* ---- names ---- */

void incidents_prefix(const char *key, char ret[RECORD_NAME_SIZE]) {
        snprintf(ret, RECORD_NAME_SIZE, INCIDENTS_DIRECTORY "/%s/", key);
}

void decision_object_name(const char *key, uint32_t n, char ret[RECORD_NAME_SIZE]) {
        snprintf(ret, RECORD_NAME_SIZE, INCIDENTS_DIRECTORY "/%s/%" PRIu32 SUFFIX, key, n);
}

void record_object_name(const char *key, uint32_t n, int64_t newest_usec, const char *instance_id,
                        char ret[RECORD_NAME_SIZE]) {
        char time[NAME_TIME_SIZE];
        format_name_time(newest_usec, time);
        snprintf(ret, RECORD_NAME_SIZE, INCIDENTS_DIRECTORY "/%s/%" PRIu32 "/%s-%s" SUFFIX, key, n,
                 time, instance_id);
}

/* `<yyyymmddTHHMMSSmmm>-<instance-id>.json` */
static bool parse_record_name(const char *s, IncidentsName *ret) {
        char time[NAME_TIME_SIZE];
        uint64_t msec;
        size_t n = strlen(s), n_time = NAME_TIME_SIZE - 1, n_id = n - n_time - 1 - strlen(SUFFIX);
        if (n <= n_time + 1 + strlen(SUFFIX) || n_id >= INSTANCE_ID_SIZE)
                return false;
        snprintf(time, sizeof time, "%.18s", s);
        memcpy(ret->instance_id, s + n_time + 1, n_id);
        ret->instance_id[n_id] = '\0';
        if (parse_u64(time + 15, &msec) < 0 || !instance_id_is_valid(ret->instance_id))
                return false;
        time[15] = '\0';
        if (!parse_seconds(time, "%Y%m%dT%H%M%S", &ret->newest_usec))
                return false;
        ret->newest_usec += (int64_t)(msec * USEC_PER_MSEC);
        return true;
}

/* What was read is verified by being formatted again. */
bool incidents_name_parse(const char *name, IncidentsName *ret) {
        static const char prefix[] = INCIDENTS_DIRECTORY "/";
        char again[RECORD_NAME_SIZE];
        IncidentsName parsed = { 0 };
        uint64_t n;
        if (strncmp(name, prefix, strlen(prefix)) != 0 ||
            strlen(name) <= strlen(prefix) + CLAIM_KEY_SIZE)
                return false;
        const char *at = name + strlen(prefix) + CLAIM_KEY_SIZE;
        memcpy(parsed.key, name + strlen(prefix), CLAIM_KEY_SIZE - 1);
        if (!claim_key_is_valid(parsed.key) || !parse_u64_prefix(&at, at + strlen(at), &n) ||
            n < 1 || n > UINT32_MAX)
                return false;
        parsed.n = (uint32_t)n;
        parsed.is_decision = *at != '/';
        if (parsed.is_decision)
                decision_object_name(parsed.key, parsed.n, again);
        else if (parse_record_name(at + 1, &parsed))
                record_object_name(parsed.key, parsed.n, parsed.newest_usec, parsed.instance_id,
                                   again);
        else
                return false;
        if (strcmp(again, name) != 0)
                return false;
        *ret = parsed;
        return true;
}
