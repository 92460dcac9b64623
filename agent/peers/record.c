#include "agent/peers/record.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/job.h"
#include "lib/neuron/nrt_status.h"

#define DECISION_SCHEMA "neuron-collectd/decision/1"
#define RECORD_SCHEMA "neuron-collectd/claims/1"
#define SUFFIX ".json"

enum {
        DEPTH_MAX = 4,
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

/* @param format  of strptime(3), whose result is verified by being formatted again */
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
        const char *at = s + strcspn(s, ".");
        if (*at++ != '.' || !parse_seconds(s, "%Y-%m-%dT%H:%M:%S", ret) ||
            !parse_u64_prefix(&at, s + strlen(s), &fraction) || fraction >= USEC_PER_SEC)
                return false;
        *ret += (int64_t)fraction;
        return strcmp(clock_format_iso(again, bounded_time(*ret)), s) == 0;
}

static void format_name_time(int64_t usec, char ret[NAME_TIME_SIZE]) {
        char seconds[CLOCK_ISO_SIZE];
        uint64_t time = bounded_time(usec);
        snprintf(ret, NAME_TIME_SIZE, "%.15s%03u", clock_format_compact(seconds, time, 'T'),
                 (unsigned)(time % USEC_PER_SEC / USEC_PER_MSEC));
}

/* ---- writing ---- */

/* ISO 8601 with microseconds; null for INT64_MIN. */
static void out_time(StrBuf *b, const char *key, int64_t usec) {
        char text[CLOCK_ISO_SIZE];
        json_out_string(b, key,
                        usec == INT64_MIN ? NULL : clock_format_iso(text, bounded_time(usec)));
}

/* null for "". */
static void out_text(StrBuf *b, const char *key, const char *text) {
        json_out_string(b, key, *text ? text : NULL);
}

/* null for -1. */
static void out_number(StrBuf *b, const char *key, int64_t number) {
        if (number < 0)
                json_out_null(b, key);
        else
                json_out_i64(b, key, number);
}

/* `error_code`; null when there is none, or no claim. */
static void out_error(StrBuf *b, const Claim *c) {
        if (c && c->has_error)
                json_out_i64(b, "error_code", c->error_code);
        else
                json_out_null(b, "error_code");
}

/* Rounded up. */
static uint64_t usec_to_msec(int64_t usec) {
        return usec <= 0 ? 0 : ((uint64_t)usec + USEC_PER_MSEC - 1) / USEC_PER_MSEC;
}

/* Ends the object that is the document. @return the caller's; NULL: no memory */
static char *detach(StrBuf *b, size_t *ret_n) {
        json_out_end_object(b);
        strbuf_add(b, "\n");
        *ret_n = b->n;
        return strbuf_detach(b);
}

/* ---- members: the same functions write and read them ---- */

typedef struct Codec {
        StrBuf *b;            /* of one that writes, and changes no value; NULL: it reads */
        const json_t *object; /* all members are required, and what is not known is null */
        bool is_invalid;
} Codec;

static void expect(Codec *c, bool is_valid) {
        c->is_invalid = c->is_invalid || !is_valid;
}

static const json_t *member(const Codec *c, const char *name) {
        return json_object_get(c->object, name);
}

static bool is_printable(const char *s) {
        for (; *s; s++)
                if (*s < ' ' || *s > '~')
                        return false;
        return true;
}

static bool instance_id_is_valid(const char *s) {
        return *s && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 &&
               strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
                       strlen(s);
}

static void code_fixed(Codec *c, const char *name, const char *text) {
        if (c->b) {
                json_out_string(c->b, name, text);
                return;
        }
        const char *s = json_string_value(member(c, name));
        expect(c, s && strcmp(s, text) == 0);
}

static void code_text_or_null(Codec *c, const char *name, char *text, size_t size) {
        if (c->b) {
                out_text(c->b, name, text);
                return;
        }
        const char *s = json_string_value(member(c, name));
        size_t n = s ? strlen(s) : 0;
        if (n > 0 && n < size && is_printable(s))
                memcpy(text, s, n + 1);
        else
                expect(c, json_is_null(member(c, name)));
}

static void code_text(Codec *c, const char *name, char *text, size_t size) {
        code_text_or_null(c, name, text, size);
        expect(c, *text);
}

static void code_instance_id(Codec *c, const char *name, char id[INSTANCE_ID_SIZE]) {
        code_text(c, name, id, INSTANCE_ID_SIZE);
        expect(c, instance_id_is_valid(id));
}

/* @return the number, which is one from min to max when it was read */
static int64_t code_number(Codec *c, const char *name, int64_t v, int64_t min, int64_t max) {
        if (c->b) {
                json_out_i64(c->b, name, v);
                return v;
        }
        v = json_integer_value(member(c, name));
        expect(c, json_is_integer(member(c, name)) && v >= min && v <= max);
        return c->is_invalid ? min : v;
}

/* null for -1. */
static int64_t code_number_or_null(Codec *c, const char *name, int64_t v, int64_t min,
                                   int64_t max) {
        if (c->b)
                out_number(c->b, name, v);
        else
                v = json_is_null(member(c, name)) ? -1 : code_number(c, name, v, min, max);
        return v;
}

static int64_t code_span(Codec *c, const char *name, int64_t usec) {
        return code_number(c, name, (int64_t)usec_to_msec(usec), 0, SPAN_MSEC_MAX) *
               (int64_t)USEC_PER_MSEC;
}

static bool code_bool(Codec *c, const char *name, bool v) {
        if (c->b)
                json_out_bool(c->b, name, v);
        else
                expect(c, json_is_boolean(member(c, name)));
        return c->b ? v : json_is_true(member(c, name));
}

/* @return what was written or read; NULL: it is no word */
static const char *code_word(Codec *c, const char *name, const char *word) {
        if (!c->b)
                return json_string_value(member(c, name));
        json_out_string(c->b, name, word);
        return word;
}

/* null for INT64_MIN. */
static int64_t code_time(Codec *c, const char *name, int64_t usec) {
        if (c->b) {
                out_time(c->b, name, usec);
                return usec;
        }
        const char *s = json_string_value(member(c, name));
        usec = INT64_MIN;
        expect(c, s ? parse_time(s, &usec) : json_is_null(member(c, name)));
        return usec;
}

/* ---- documents ---- */

static void code_head(Codec *c, const char *schema, const char *key, uint32_t n) {
        code_fixed(c, "schema", schema);
        code_fixed(c, "key", key);
        (void)code_number(c, "n", n, n, n); /* it is this one, or invalid */
}

static void code_decision(Codec *c, Decision *d, char job[JOB_KEY_SIZE]) {
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

static void code_claim(Codec *c, Claim *x) {
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
                out_error(c->b, x);
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

/* Without its claims. */
static void code_record(Codec *c, Record *r) {
        code_head(c, RECORD_SCHEMA, r->key, r->n);
        code_instance_id(c, "instance_id", r->instance_id);
        r->revision = (uint64_t)code_number(c, "revision", (int64_t)r->revision, 0, INT64_MAX);
        r->uncertainty_usec = code_span(c, "uncertainty_ms", r->uncertainty_usec);
}

char *decision_format(const Decision *d, const char *job_key, size_t *ret_n) {
        StrBuf b = STRBUF_INIT;
        Codec c = { .b = &b };
        Decision copy = *d;
        char job[JOB_KEY_SIZE];
        (void)snprintf(job, sizeof job, "%s", job_key);
        json_out_object(&b, NULL);
        code_decision(&c, &copy, job);
        return detach(&b, ret_n);
}

char *record_format(const Record *r, size_t *ret_n) {
        StrBuf b = STRBUF_INIT;
        Codec c = { .b = &b };
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
        return detach(&b, ret_n);
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
        Codec c = { .object = root };
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
                Codec codec = { .object = json_array_get(list, i) };
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

int record_parse(const char *text, size_t n_text, const char *key, uint32_t n, Record *ret) {
        _cleanup_(record_done) Record record = { .n = n };
        json_auto_t *root = NULL;
        int r = load_document(text, n_text, RECORD_BYTES_MAX, key, &root);
        if (r < 0)
                return r;
        Codec c = { .object = root };
        memcpy(record.key, key, sizeof record.key);
        code_record(&c, &record);
        r = c.is_invalid ? -EINVAL : read_claims(member(&c, "claims"), &record);
        if (r < 0)
                return r;
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

char *incidents_name_format(const IncidentsName *name) {
        char text[RECORD_NAME_SIZE];
        if (name->is_decision)
                decision_object_name(name->key, name->n, text);
        else
                record_object_name(name->key, name->n, name->newest_usec, name->instance_id, text);
        return strbuf_format(INCIDENTS_DIRECTORY "%s%s%s", name->is_beside ? "." : "",
                             name->is_beside ? name->instance_id : "",
                             text + strlen(INCIDENTS_DIRECTORY));
}

/* What was read is verified by being formatted again. */
static bool parse_name(const char *name, IncidentsName *ret) {
        char number[11], time[16], msec_text[4], id[INSTANCE_ID_SIZE + sizeof SUFFIX];
        char again[RECORD_NAME_SIZE] = "";
        IncidentsName parsed = { 0 };
        uint64_t n, msec;
        const int n_parts = sscanf(name,
                                   INCIDENTS_DIRECTORY "/%16[0-9a-f]/%10[0-9]"
                                                       "/%15[0-9T]%3[0-9]-%70[A-Za-z0-9._-]",
                                   parsed.key, number, time, msec_text, id);
        if (n_parts < 2 || !claim_key_is_valid(parsed.key) ||
            parse_u64_range(number, 1, UINT32_MAX, &n) < 0)
                return false;
        parsed.n = (uint32_t)n;
        parsed.is_decision = n_parts == 2;
        if (parsed.is_decision)
                decision_object_name(parsed.key, parsed.n, again);
        else if (n_parts == 5 && strlen(id) > strlen(SUFFIX) &&
                 strlen(id) < INSTANCE_ID_SIZE + strlen(SUFFIX) &&
                 parse_seconds(time, "%Y%m%dT%H%M%S", &parsed.newest_usec) &&
                 parse_u64(msec_text, &msec) == 0) {
                memcpy(parsed.instance_id, id, strlen(id) - strlen(SUFFIX));
                parsed.newest_usec += (int64_t)(msec * USEC_PER_MSEC);
                if (instance_id_is_valid(parsed.instance_id))
                        record_object_name(parsed.key, parsed.n, parsed.newest_usec,
                                           parsed.instance_id, again);
        }
        if (strcmp(again, name) != 0)
                return false;
        *ret = parsed;
        return true;
}

bool incidents_name_parse(const char *name, IncidentsName *ret) {
        char text[RECORD_NAME_SIZE];
        const size_t n = strlen(INCIDENTS_DIRECTORY);
        const char *slash = strchr(name, '/');
        IncidentsName parsed;
        if (strncmp(name, INCIDENTS_DIRECTORY ".", n + 1) != 0)
                return parse_name(name, ret);
        if (!slash ||
            (size_t)snprintf(text, sizeof text, INCIDENTS_DIRECTORY "%s", slash) >= sizeof text ||
            !parse_name(text, &parsed) || parsed.is_decision ||
            strlen(parsed.instance_id) != (size_t)(slash - name) - n - 1 ||
            strncmp(parsed.instance_id, name + n + 1, strlen(parsed.instance_id)) != 0)
                return false;
        *ret = parsed;
        ret->is_beside = true;
        return true;
}

#define INCIDENT_SCHEMA "neuron-collectd/incident/1"
#define LATE_SLACK_USEC ((int64_t)USEC_PER_SEC)
#define EARLIER_SLACK_USEC (2 * (int64_t)USEC_PER_SEC) /* an end is seen later than it happens */

static const char *const state_words[N_RANK_STATES] = {
        [RANK_PRESENT] = "present",
        [RANK_LATE] = "late",
        [RANK_MISSING] = "missing",
};

static const char *const reason_words[N_MISSING_REASONS] = {
        [MISSING_UNREACHABLE] = "unreachable",
        [MISSING_NO_DUMP] = "no_dump",
        [MISSING_EMPTY] = "empty",
        [MISSING_UNDELIVERED] = "undelivered",
};

void roster_done(Roster *r) {
        claim_set_done(&r->claims);
        free(r->ranks);
        free(r->nodes);
        *r = (Roster){ 0 };
}

/* ---- the roster's nodes ---- */

/* A node begins with its instance id. */
static int compare_nodes(const void *a, const void *b) {
        return strcmp(a, b);
}

static int fold_nodes(Roster *r, const Record *records, size_t n) {
        size_t kept = 0;
        r->nodes = calloc(n + 1, sizeof *r->nodes);
        if (!r->nodes)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                r->nodes[i].revision = records[i].revision;
                r->nodes[i].uncertainty_usec = records[i].uncertainty_usec;
                memcpy(r->nodes[i].instance_id, records[i].instance_id, INSTANCE_ID_SIZE);
        }
        qsort(r->nodes, n, sizeof *r->nodes, compare_nodes);
        for (size_t i = 0; i < n; i++) {
                RosterNode *node = &r->nodes[i], *last = kept > 0 ? &r->nodes[kept - 1] : NULL;
                if (!last || compare_nodes(last, node) != 0) {
                        r->nodes[kept++] = *node;
                        continue;
                }
                last->revision = MAX(last->revision, node->revision);
                last->uncertainty_usec = MAX(last->uncertainty_usec, node->uncertainty_usec);
        }
        r->n_nodes = kept;
        return 0;
}

/* @return how far the times of a claim may be wrong */
static int64_t claim_uncertainty(const Roster *r, const Claim *c) {
        const RosterNode *node =
                bsearch(c->instance_id, r->nodes, r->n_nodes, sizeof *node, compare_nodes);
        return node ? node->uncertainty_usec : 0;
}

/* ---- the roster's ranks ---- */

/* @return when the first rank of the launch that failed was started; INT64_MIN: not known */
static int64_t find_launch(const Roster *r) {
        int64_t launch_usec = INT64_MAX;
        for (size_t i = 0; i < r->claims.n; i++) {
                const Claim *c = &r->claims.items[i];
                if (claim_is_failure(c) && c->started_usec != INT64_MIN)
                        launch_usec = MIN(launch_usec, c->started_usec);
        }
        return launch_usec == INT64_MAX ? INT64_MIN : launch_usec;
}

/* @return whether it ended before this launch began, in a job with another number of ranks */
static bool is_of_earlier_launch(const Roster *r, const Claim *c, int64_t launch_usec) {
        return c->state == CLAIM_ENDED && launch_usec != INT64_MIN &&
               c->event_usec < launch_usec + EARLIER_SLACK_USEC && c->world_size > 0 &&
               r->decision.world_size > 0 && c->world_size != r->decision.world_size;
}

static void drop_earlier_launches(Roster *r) {
        int64_t launch_usec = find_launch(r);
        size_t n = 0;
        for (size_t i = 0; i < r->claims.n; i++)
                if (!is_of_earlier_launch(r, &r->claims.items[i], launch_usec))
                        r->claims.items[n++] = r->claims.items[i];
        r->claims.n = n;
}

static int64_t find_world_size(const Roster *r) {
        int64_t size = r->decision.world_size;
        for (size_t i = 0; r->decision.world_size <= 0 && i < r->claims.n; i++)
                size = MAX(size, r->claims.items[i].world_size);
        return size > 0 && size <= ROSTER_RANKS_MAX ? size : -1;
}

/* By rank, those without one last; of one rank the claim that counts comes first. */
static int compare_claims(const void *a, const void *b) {
        const Claim *x = *(const Claim *const *)a, *y = *(const Claim *const *)b;
        uint64_t rank_x = (uint64_t)x->rank, rank_y = (uint64_t)y->rank; /* -1 is the largest */
        if (rank_x != rank_y)
                return rank_x < rank_y ? -1 : 1;
        if (x->state != y->state)
                return (int)y->state - (int)x->state;
        if (x->event_usec != y->event_usec)
                return x->event_usec > y->event_usec ? -1 : 1;
        return claim_compare_process(x, y);
}

static const MissingReason reasons[N_CLAIM_BUNDLES] = {
        [CLAIM_BUNDLE_NONE] = MISSING_NO_DUMP,
        [CLAIM_BUNDLE_EMPTY] = MISSING_EMPTY,
        [CLAIM_BUNDLE_PENDING] = MISSING_UNDELIVERED,
        [CLAIM_BUNDLE_DELIVERED] = MISSING_NONE,
};

static void add_rank(Roster *r, int64_t rank, const Claim *c) {
        const Decision *d = &r->decision;
        RosterRank *row = &r->ranks[r->n_ranks++];
        *row = (RosterRank){ .rank = rank, .claim = c };
        row->reason = c ? reasons[c->bundle_state] : MISSING_UNREACHABLE;
        if (row->reason == MISSING_NONE) {
                int64_t slack = MAX(claim_uncertainty(r, c), LATE_SLACK_USEC);
                bool is_late = c->event_usec - d->opened_usec > d->settle_usec + slack;
                row->state = is_late ? RANK_LATE : RANK_PRESENT;
        } else
                row->state = rank >= 0 && rank < r->world_size ? RANK_MISSING : RANK_UNDELIVERED;
}

/* The dump was found before its hook spoke of it. @param n  of those that come before c */
static bool has_better(const Claim *const *sorted, size_t n, const Claim *c) {
        for (size_t i = 0; c->rank < 0 && *c->bundle && i < n && sorted[i]->rank >= 0; i++)
                if (strcmp(sorted[i]->bundle, c->bundle) == 0)
                        return true;
        return false;
}

/* Selects a rank's claim: where its process ended and that of the next launch lives, the latter.
 * @param n  claims of one rank, the selected one first */
static const Claim *newest_launch(const Claim *const *sorted, size_t n) {
        const Claim *c = sorted[0];
        for (size_t i = 1; c->state == CLAIM_ENDED && i < n && sorted[i]->rank == c->rank; i++)
                if (c->rank >= 0 && sorted[i]->state == CLAIM_ALIVE &&
                    sorted[i]->started_usec > c->event_usec)
                        return sorted[i];
        return c;
}

static int fold_ranks(Roster *r) {
        int64_t next = 0; /* the rank after the last one */
        _cleanup_free_ const Claim **sorted = calloc(r->claims.n + 1, sizeof *sorted);
        r->ranks = calloc((size_t)MAX(r->world_size, 0) + r->claims.n + 1, sizeof *r->ranks);
        if (!sorted || !r->ranks)
                return -ENOMEM;
        for (size_t i = 0; i < r->claims.n; i++)
                sorted[i] = &r->claims.items[i];
        qsort(sorted, r->claims.n, sizeof *sorted, compare_claims);
        for (size_t i = 0; i < r->claims.n; i++) {
                const Claim *c = sorted[i];
                if (c->rank >= 0 && i > 0 && sorted[i - 1]->rank == c->rank)
                        continue; /* another process of the same rank counts */
                if (has_better(sorted, i, c))
                        continue;
                while (next < r->world_size && (c->rank < 0 || next < c->rank))
                        add_rank(r, next++, NULL);
                add_rank(r, c->rank, newest_launch(&sorted[i], r->claims.n - i));
                next = MAX(next, c->rank + 1);
        }
        while (next < r->world_size)
                add_rank(r, next++, NULL);
        return 0;
}

/* ---- the first failure ---- */

/* What a failure of one rank tells of its cause: an error of the hardware is one, and who waited
 * for others in vain is its victim. */
static int cause_order(const Claim *c) {
        enum { CAUSE, UNKNOWN, VICTIM };
        if (!c->has_error)
                return UNKNOWN;
        switch (c->error_code) {
        case 6:    /* NRT_HW_ERROR */
        case 101:  /* NRT_EXEC_UNIT_UNRECOVERABLE */
        case 1201: /* NRT_EXEC_HW_ERR_HBM_UE */
        case 1202: /* NRT_EXEC_HW_ERR_NC_UE */
        case 1203: /* NRT_EXEC_HW_ERR_DMA_ABORT */
        case 1205: /* NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE */
                return CAUSE;
        case 5:    /* NRT_TIMEOUT */
        case 1100: /* NRT_COLL_PENDING */
        case 1200: /* NRT_EXEC_HW_ERR_COLLECTIVES: stuck in a collective operation */
                return VICTIM;
        default:
                return UNKNOWN;
        }
}

/* @return how far the difference of two claims' times may be wrong */
static int64_t pair_uncertainty(const Roster *r, const Claim *a, const Claim *b) {
        return claim_uncertainty(r, a) + claim_uncertainty(r, b);
}

static bool has_failed(const RosterRank *row) {
        return row->claim && row->claim->state == CLAIM_FAILED;
}

/* @return the earliest failure but for `other`; of those at the same time the lowest rank's; NULL
 */
static const RosterRank *find_earliest(const Roster *r, const RosterRank *other) {
        const RosterRank *earliest = NULL;
        for (const RosterRank *row = r->ranks; row < r->ranks + r->n_ranks; row++)
                if (row != other && has_failed(row) &&
                    (!earliest || row->claim->event_usec < earliest->claim->event_usec))
                        earliest = row;
        return earliest;
}

static void find_first_failure(Roster *r) {
        const RosterRank *earliest = find_earliest(r, NULL), *first = NULL;
        if (!earliest)
                return;
        for (const RosterRank *row = r->ranks; row < r->ranks + r->n_ranks; row++) {
                if (!has_failed(row) ||
                    (row != earliest && row->claim->event_usec - earliest->claim->event_usec >
                                                pair_uncertainty(r, row->claim, earliest->claim)))
                        continue;
                if (!first || cause_order(row->claim) < cause_order(first->claim))
                        first = row; /* rows come by rank: the lowest stays */
        }
        const RosterRank *next = find_earliest(r, first);
        r->first_failure = first;
        r->uncertainty_usec = next ? pair_uncertainty(r, first->claim, next->claim)
                                   : claim_uncertainty(r, first->claim);
}

static void find_suspects(Roster *r) {
        const Claim *first = r->first_failure ? r->first_failure->claim : NULL;
        for (RosterRank *row = r->ranks; first && row < r->ranks + r->n_ranks; row++)
                row->is_suspect = row->claim && row->claim->state == CLAIM_ENDED &&
                                  row->claim->event_usec - first->event_usec <
                                          pair_uncertainty(r, row->claim, first);
}

/* ---- the roster ---- */

int roster_fold(const Decision *d, const Record *records, size_t n_records, Roster *ret) {
        _cleanup_(roster_done) Roster r = { .decision = *d, .is_cut = ret->is_cut };
        int e = fold_nodes(&r, records, n_records);
        for (size_t i = 0; e == 0 && i < n_records; i++) {
                int merged = claim_set_merge(&r.claims, &records[i].claims);
                r.is_cut = r.is_cut || merged == -ENOSPC;
                e = merged == -ENOMEM ? merged : 0;
        }
        drop_earlier_launches(&r);
        r.world_size = r.is_cut ? -1 : find_world_size(&r);
        if (e == 0)
                e = fold_ranks(&r);
        if (e < 0)
                return e;
        find_first_failure(&r);
        find_suspects(&r);
        *ret = r;
        r = (Roster){ 0 };
        return 0;
}

/* ---- incident.json ---- */

static void add_process(StrBuf *b, const RosterRank *row) {
        out_number(b, "rank", row->rank);
        json_out_string(b, "instance_id", row->claim ? row->claim->instance_id : NULL);
        out_number(b, "pid",
                   row->claim && row->claim->pid < CLAIM_PID_UNKNOWN ? (int64_t)row->claim->pid
                                                                     : -1);
}

static void add_row(StrBuf *b, const RosterRank *row) {
        const Claim *c = row->claim;
        json_out_object(b, NULL);
        add_process(b, row);
        json_out_string(b, "state", state_words[row->state]);
        json_out_string(b, "reason", reason_words[row->reason]);
        out_error(b, c);
        out_text(b, "error_location", c ? c->error_location : "");
        out_time(b, "first_seen", c ? c->event_usec : INT64_MIN);
        out_text(b, "bundle", c ? c->bundle : "");
        json_out_end_object(b);
}

static void add_first_failure(StrBuf *b, const Roster *r) {
        const Claim *c = r->first_failure ? r->first_failure->claim : NULL;
        if (!c) {
                json_out_null(b, "first_failure");
                return;
        }
        json_out_object(b, "first_failure");
        add_process(b, r->first_failure);
        out_error(b, c);
        json_out_string(b, "error_name", c->has_error ? nrt_status_name(c->error_code) : NULL);
        out_text(b, "error_location", c->error_location);
        out_time(b, "time", c->event_usec);
        json_out_u64(b, "uncertainty_ms", usec_to_msec(r->uncertainty_usec));
        json_out_end_object(b);
}

static void add_decision(StrBuf *b, const Decision *d, const char *job_key) {
        json_out_string(b, "schema", INCIDENT_SCHEMA);
        json_out_string(b, "cluster_id", d->cluster_id);
        json_out_string(b, "date_time", d->date_time);
        json_out_bool(b, "derived", d->derived);
        out_text(b, "job", job_key);
        json_out_string(b, "key", d->key);
        json_out_u64(b, "n", d->n);
        json_out_string(b, "decided_by", d->created_by);
        out_time(b, "decided_at", d->opened_usec);
        json_out_string(b, "agreed", agreed_name(d->agreed));
}

static void add_nodes(StrBuf *b, const Roster *r) {
        json_out_array(b, "nodes");
        for (size_t i = 0; i < r->n_nodes; i++) {
                json_out_object(b, NULL); /* incident_has_record() relies on these bytes */
                json_out_string(b, "instance_id", r->nodes[i].instance_id);
                json_out_u64(b, "revision", r->nodes[i].revision);
                json_out_end_object(b);
        }
        json_out_end_array(b);
}

char *roster_format(const Roster *r, const char *job_key, size_t *ret_n) {
        StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        add_decision(&b, &r->decision, job_key);
        out_number(&b, "world_size", r->world_size);
        if (r->is_cut)
                json_out_bool(&b, "cut", true);
        json_out_array(&b, "ranks");
        for (size_t i = 0; i < r->n_ranks; i++)
                add_row(&b, &r->ranks[i]);
        json_out_end_array(&b);
        add_first_failure(&b, r);
        json_out_array(&b, "suspects");
        for (const RosterRank *row = r->ranks; row < r->ranks + r->n_ranks; row++)
                if (row->is_suspect) {
                        json_out_object(&b, NULL);
                        add_process(&b, row);
                        out_time(&b, "ended", row->claim->event_usec);
                        json_out_end_object(&b);
                }
        json_out_end_array(&b);
        add_nodes(&b, r);
        return detach(&b, ret_n);
}

/* Looks for the bytes of add_nodes(), which cannot stand inside a string: a document of 16,384
 * ranks need not become a tree for it. */
bool incident_has_record(const char *text, size_t n_text, const char *instance_id,
                         uint64_t revision) {
        _cleanup_free_ char *wanted =
                strbuf_format("{\"instance_id\":\"%s\",\"revision\":", instance_id);
        const char *found = wanted ? memmem(text, n_text, wanted, strlen(wanted)) : NULL;
        if (!found)
                return false;
        const char *number = found + strlen(wanted);
        uint64_t listed;
        return parse_u64_prefix(&number, text + n_text, &listed) && listed >= revision;
}
