/* Messages made of chance, with every field within its bounds. */
#pragma once

#include <string.h>

#include "agent/peers/message.h"

typedef struct Random {
        uint64_t state;
} Random;

static inline uint64_t random_next(Random *r) { /* splitmix64 */
        uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        return z ^ z >> 31;
}

static inline uint64_t random_below(Random *r, uint64_t n) {
        return random_next(r) % n;
}

static inline void random_text(Random *r, char *s, size_t n_min, size_t size) {
        static const char letters[] = "0123456789abcdefABCXYZ-_.";
        size_t n = n_min + random_below(r, size - n_min);
        for (size_t i = 0; i < n; i++)
                s[i] = letters[random_below(r, sizeof letters - 1)];
        s[n] = '\0';
}

static inline void random_key(Random *r, char key[CLAIM_KEY_SIZE]) {
        for (size_t i = 0; i < CLAIM_KEY_SIZE - 1; i++)
                key[i] = "0123456789abcdef"[random_below(r, 16)];
        key[CLAIM_KEY_SIZE - 1] = '\0';
}

/* Whole milliseconds before now, which is what a message can say. */
static inline int64_t random_time(Random *r, int64_t now_usec) {
        return now_usec - (int64_t)random_below(r, 1u << 30) * 1000;
}

static inline void random_claim(Random *r, Claim *c, int64_t now_usec) {
        random_text(r, c->boot_id, 0, sizeof c->boot_id);
        c->pid = (uint32_t)random_next(r);
        c->start_ticks = random_next(r);
        c->revision = (uint32_t)random_next(r);
        random_text(r, c->instance_id, 1, sizeof c->instance_id);
        c->rank = (int64_t)random_below(r, 65537) - 1;
        c->world_size = (int64_t)random_below(r, 65537) - 1;
        random_text(r, c->cluster_id, 0, sizeof c->cluster_id);
        random_text(r, c->date_time, 0, sizeof c->date_time);
        c->state = (ClaimState)random_below(r, N_CLAIM_STATES);
        c->bundle_state = (ClaimBundle)random_below(r, N_CLAIM_BUNDLES);
        random_text(r, c->bundle, 0, sizeof c->bundle);
        c->has_error = random_below(r, 2);
        c->error_code = c->has_error ? (int64_t)random_next(r) : 0;
        random_text(r, c->error_location, 0, sizeof c->error_location);
        c->started_usec = random_below(r, 4) ? random_time(r, now_usec) : INT64_MIN;
        c->event_usec = random_time(r, now_usec);
}

static inline void random_decision(Random *r, Decision *d, int64_t now_usec) {
        d->agreed = (Agreed)(1 + random_below(r, N_AGREED - 1));
        d->n = (uint32_t)random_next(r);
        random_text(r, d->cluster_id, 1, sizeof d->cluster_id);
        random_text(r, d->date_time, 1, sizeof d->date_time);
        d->derived = random_below(r, 2);
        random_text(r, d->created_by, 1, sizeof d->created_by);
        d->world_size = (int64_t)random_below(r, 1000) - 1;
        d->settle_usec = (int64_t)random_below(r, 1u << 30);
        d->opened_usec = random_time(r, now_usec);
}

static inline void random_message(Random *r, Message *m, int64_t now_usec) {
        memset(m, 0, sizeof *m);
        m->kind = (MessageKind)random_below(r, MESSAGE_HEARTBEAT);
        random_text(r, m->sender, 1, sizeof m->sender);
        m->sequence = random_next(r);
        random_key(r, m->key);
        m->n_claims = random_below(r, MESSAGE_CLAIMS_MAX + 1);
        for (size_t i = 0; i < m->n_claims; i++)
                random_claim(r, &m->claims[i], now_usec);
        m->has_decision = random_below(r, 2);
        if (m->has_decision) {
                random_decision(r, &m->decision, now_usec);
                memcpy(m->decision.key, m->key, sizeof m->key);
        }
        m->n_heard = random_below(r, MESSAGE_HEARD_MAX + 1);
        for (size_t i = 0; i < m->n_heard; i++)
                m->heard[i] = (Heard){ random_next(r), random_next(r) };
}
