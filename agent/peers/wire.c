/* Each structure is described once: the same functions write and read. */
#include "agent/peers/wire.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"

static const uint8_t magic[4] = { 'N', 'C', 'B', 1 }; /* the last byte is the version */

enum {
        KEY_ID_AT = sizeof magic,
        SEQUENCE_AT = KEY_ID_AT + WIRE_KEY_ID_SIZE - 1,
        TIME_AT = SEQUENCE_AT + 8,
        BODY_AT = TIME_AT + 8,
};

/* A text has a byte for its length instead of a NUL, and no number is longer than in its struct. */
static_assert(BODY_AT + 1 + sizeof(Message) + SHA256_SIZE <= WIRE_BYTES_MAX, "every message fits");

#define AGE_MAX_MSEC (INT64_C(10) * 366 * 24 * 3600 * 1000)
#define AGE_MIN_MSEC (-INT64_C(3600) * 1000) /* the store's clock is known only so well */
#define RANK_MAX INT32_MAX

static const char hex_digits[] = "0123456789abcdef";

typedef struct Codec {
        uint8_t *at;
        const uint8_t *end;
        int64_t now; /* CLOCK_BOOTTIME */
        bool reads;  /* else it writes, and changes no value */
        bool failed;
} Codec;

/* ---- values ---- */

static bool is_room(Codec *c, size_t n) {
        c->failed = c->failed || (size_t)(c->end - c->at) < n;
        return !c->failed;
}

static uint64_t code_bytes(Codec *c, uint64_t value, size_t n) {
        if (!is_room(c, n))
                return value;
        uint64_t read = 0;
        for (size_t i = 0; i < n; i++) {
                if (!c->reads)
                        c->at[i] = (uint8_t)(value >> 8 * (n - 1 - i));
                read = read << 8 | c->at[i];
        }
        c->at += n;
        return read;
}

static void code_u32(Codec *c, uint32_t *v) {
        *v = (uint32_t)code_bytes(c, *v, 4);
}

static void code_u64(Codec *c, uint64_t *v) {
        *v = code_bytes(c, *v, 8);
}

static void code_i64(Codec *c, int64_t *v, int64_t min, int64_t max) {
        *v = (int64_t)code_bytes(c, (uint64_t)*v, 8);
        c->failed = c->failed || *v < min || *v > max;
}

/* @return one of 0 … n - 1 */
static unsigned code_choice(Codec *c, unsigned v, unsigned n) {
        v = (unsigned)code_bytes(c, v, 1);
        c->failed = c->failed || v >= n;
        return c->failed ? 0 : v;
}

static void code_bool(Codec *c, bool *v) {
        *v = code_choice(c, *v, 2);
}

static void code_count(Codec *c, size_t *v, size_t max, size_t n_bytes) {
        *v = (size_t)code_bytes(c, *v, n_bytes);
        c->failed = c->failed || *v > max;
}

/* @param allowed  characters; NULL: printable ASCII */
static void code_text(Codec *c, char *text, size_t size, const char *allowed) {
        size_t n = c->reads ? 0 : strnlen(text, size);
        n = (size_t)code_bytes(c, n, 1);
        if (n >= size || !is_room(c, n)) {
                c->failed = true;
                return;
        }
        if (c->reads) {
                memset(text, 0, size);
                memcpy(text, c->at, n);
        } else
                memcpy(c->at, text, n);
        for (size_t i = 0; i < n; i++)
                if (c->at[i] < ' ' || c->at[i] > '~' || (allowed && !strchr(allowed, c->at[i])))
                        c->failed = true;
        c->at += n;
}

/* One that may not be empty. */
static void code_name(Codec *c, char *text, size_t size) {
        code_text(c, text, size, WIRE_NAME_LETTERS);
        c->failed = c->failed || !*text;
}

/* Times travel as ages, since clocks of nodes differ. INT64_MIN = not known. */
static void code_time(Codec *c, int64_t *t) {
        int64_t age = INT64_MIN;
        if (!c->reads && *t != INT64_MIN) {
                if (__builtin_sub_overflow(c->now, *t, &age))
                        age = *t < 0 ? INT64_MAX : INT64_MIN + 1;
                age = MAX(MIN(age / 1000, AGE_MAX_MSEC), AGE_MIN_MSEC);
        }
        age = (int64_t)code_bytes(c, (uint64_t)age, 8);
        if (age != INT64_MIN && (age < AGE_MIN_MSEC || age > AGE_MAX_MSEC))
                c->failed = true;
        if (c->reads && !c->failed)
                *t = age == INT64_MIN ? INT64_MIN : c->now - age * 1000;
}

/* ---- parts ---- */

static void code_claim(Codec *c, Claim *x) {
        code_text(c, x->boot_id, sizeof x->boot_id, WIRE_NAME_LETTERS);
        code_u32(c, &x->pid);
        code_u64(c, &x->start_ticks);
        code_u32(c, &x->revision);
        code_name(c, x->instance_id, sizeof x->instance_id);
        code_i64(c, &x->rank, -1, RANK_MAX);
        code_i64(c, &x->world_size, -1, RANK_MAX);
        code_text(c, x->cluster_id, sizeof x->cluster_id, NULL);
        code_text(c, x->date_time, sizeof x->date_time, NULL);
        x->state = (ClaimState)code_choice(c, x->state, N_CLAIM_STATES);
        x->bundle_state = (ClaimBundle)code_choice(c, x->bundle_state, N_CLAIM_BUNDLES);
        code_text(c, x->bundle, sizeof x->bundle, WIRE_NAME_LETTERS);
        code_bool(c, &x->has_error);
        if (x->has_error)
                code_i64(c, &x->error_code, INT64_MIN, INT64_MAX);
        code_text(c, x->error_location, sizeof x->error_location, NULL);
        code_time(c, &x->started_usec);
        code_time(c, &x->event_usec);
}

static void code_decision(Codec *c, Decision *d) {
        d->agreed = (Agreed)code_choice(c, d->agreed, N_AGREED);
        code_u32(c, &d->n);
        code_name(c, d->cluster_id, sizeof d->cluster_id);
        code_name(c, d->date_time, sizeof d->date_time);
        code_bool(c, &d->derived);
        code_name(c, d->created_by, sizeof d->created_by);
        code_i64(c, &d->world_size, -1, RANK_MAX);
        code_i64(c, &d->settle_usec, 0, INT64_C(24) * 3600 * 1000000);
        code_time(c, &d->opened_usec);
        c->failed = c->failed || d->agreed == AGREED_NOT || d->opened_usec == INT64_MIN;
}

static void code_body(Codec *c, Message *m) {
        m->kind = (MessageKind)code_choice(c, m->kind, N_MESSAGE_KINDS);
        if (c->failed || m->kind == MESSAGE_HEARTBEAT)
                return;
        code_text(c, m->key, sizeof m->key, hex_digits);
        c->failed = c->failed || strlen(m->key) != CLAIM_KEY_SIZE - 1;
        code_count(c, &m->n_claims, MESSAGE_CLAIMS_MAX, 1);
        for (size_t i = 0; i < m->n_claims && !c->failed; i++)
                code_claim(c, &m->claims[i]);
        code_bool(c, &m->has_decision);
        if (m->has_decision) {
                code_decision(c, &m->decision);
                if (c->reads)
                        memcpy(m->decision.key, m->key, sizeof m->key);
        }
        code_count(c, &m->n_heard, MESSAGE_HEARD_MAX, 2);
        for (size_t i = 0; i < m->n_heard && !c->failed; i++) {
                code_u64(c, &m->heard[i].node);
                code_u64(c, &m->heard[i].revisions);
        }
}

/* ---- messages ---- */

int wire_encode(const Message *m, const WireStamp *stamp, uint8_t ret[static WIRE_BYTES_MAX],
                size_t *ret_n) {
        Codec c = { .at = ret + SEQUENCE_AT,
                    .end = ret + WIRE_BYTES_MAX - SHA256_SIZE,
                    .now = stamp->boot_usec };
        memcpy(ret, magic, sizeof magic);
        memcpy(ret + KEY_ID_AT, stamp->key->id, WIRE_KEY_ID_SIZE - 1);
        (void)code_bytes(&c, stamp->sequence, 8);
        (void)code_bytes(&c, (uint64_t)stamp->real_usec, 8);
        code_name(&c, (char *)stamp->sender, INSTANCE_ID_SIZE); /* writes it, as the next */
        code_body(&c, (Message *)m);
        if (c.failed)
                return -EINVAL;
        size_t n = (size_t)(c.at - ret);
        hmac_sha256(stamp->key->secret, WIRE_SECRET_SIZE, ret, n, c.at);
        *ret_n = n + SHA256_SIZE;
        return 0;
}

static const WireKey *find_key(const uint8_t *data, const WireReader *reader) {
        for (size_t i = 0; i < reader->n_keys; i++)
                if (memcmp(reader->keys[i].id, data + KEY_ID_AT, WIRE_KEY_ID_SIZE - 1) == 0)
                        return &reader->keys[i];
        return NULL;
}

static WireVerdict verify(const uint8_t *data, size_t n, const WireReader *reader) {
        uint8_t expected[SHA256_SIZE];
        if (n < BODY_AT + SHA256_SIZE || n > WIRE_BYTES_MAX ||
            memcmp(data, magic, sizeof magic) != 0)
                return WIRE_FOREIGN;
        const WireKey *key = find_key(data, reader);
        if (!key)
                return WIRE_UNKNOWN_KEY;
        hmac_sha256(key->secret, WIRE_SECRET_SIZE, data, n - SHA256_SIZE, expected);
        return digest_is_equal(expected, data + n - SHA256_SIZE, SHA256_SIZE) ? WIRE_OK
                                                                              : WIRE_FORGED;
}

WireVerdict wire_decode(const uint8_t *data, size_t n, const WireReader *reader, Message *ret) {
        WireVerdict v = verify(data, n, reader);
        if (v != WIRE_OK)
                return v;
        Codec c = { .at = (uint8_t *)data + SEQUENCE_AT, /* is not changed: it reads */
                    .end = data + n - SHA256_SIZE,
                    .now = reader->boot_usec,
                    .reads = true };
        uint64_t sequence = code_bytes(&c, 0, 8);
        int64_t sent_usec = (int64_t)code_bytes(&c, 0, 8), late_usec;
        if (__builtin_sub_overflow(reader->real_usec, sent_usec, &late_usec) ||
            late_usec < -WIRE_CLOCK_USEC || late_usec > WIRE_CLOCK_USEC)
                return WIRE_STALE;
        memset(ret, 0, sizeof *ret);
        ret->sequence = sequence;
        code_name(&c, ret->sender, sizeof ret->sender);
        code_body(&c, ret);
        return c.failed || c.at != c.end ? WIRE_MALFORMED : WIRE_OK;
}
