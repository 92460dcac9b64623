/* What an agreement has: keys with the claims of their processes and the failures that those were
 * placed in, all bounded. A key stays until it is forgotten; a failure until it has not changed for
 * a week, or has to make room. When a failure is removed, the claims that ended in it are removed
 * too, else they would need another decision.
 *
 * Also here: what makes claims, decisions and times of others usable at all. */
#include "agent/peers/agreement_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/neuron/names.h"

#define BACKOFF_MIN AGREEMENT_SEC
#define BACKOFF_MAX (30 * AGREEMENT_SEC)
#define FAILURES_OF_KEY_MAX 32 /* placing a claim looks at each */

static const int64_t publish_steps[] = { 2 * AGREEMENT_SEC, 15 * AGREEMENT_SEC,
                                         60 * AGREEMENT_SEC };

/* splitmix64 */
static uint64_t next_random(Agreement *a) {
        uint64_t z = a->random += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

int64_t agreement_jitter(Agreement *a, int64_t from, int64_t to) {
        return from + (int64_t)(next_random(a) % (uint64_t)(to - from + 1));
}

int64_t agreement_backoff(Agreement *a, unsigned n_errors) {
        const int64_t delay = n_errors > 5 ? BACKOFF_MAX : BACKOFF_MIN << (n_errors - 1);
        return agreement_jitter(a, delay / 2, MIN(delay, BACKOFF_MAX));
}

bool agreement_time_is_sane(int64_t t) {
        return t > -AGREEMENT_TIME_MAX && t < AGREEMENT_TIME_MAX;
}

bool agreement_is_own_claim(const Agreement *a, const Claim *c) {
        return strcmp(c->instance_id, a->instance_id) == 0;
}

bool agreement_normalize_claim(Claim *c, int64_t now) {
        uint64_t usec;

        claim_bound_ranks(c);
        c->event_usec = MIN(c->event_usec, now);
        c->started_usec = MIN(c->started_usec, c->event_usec);
        return agreement_time_is_sane(c->event_usec) &&
               (c->started_usec == INT64_MIN || agreement_time_is_sane(c->started_usec)) &&
               (!claim_is_failure(c) || date_time_parse(c->date_time, &usec) == 0);
}

bool agreement_decision_is_usable(const Decision *d, const char *key) {
        return strcmp(d->key, key) == 0 && d->n <= AGREEMENT_NUMBER_MAX && d->agreed > AGREED_NOT &&
               d->agreed < N_AGREED && agreement_time_is_sane(d->opened_usec) &&
               d->settle_usec >= 0 && d->settle_usec < AGREEMENT_TIME_MAX &&
               decision_name_is_valid(d);
}

bool agreement_is_in_store(const Decision *d) {
        return d->n > 0 && d->agreed != AGREED_BUS;
}

bool agreement_can_query(const AgreementKey *k) {
        return k->has_arbiter && !k->is_unable;
}

bool agreement_is_own_decision(const Agreement *a, const Decision *d) {
        return strcmp(d->created_by, a->instance_id) == 0;
}

int64_t agreement_publishing_time(const Agreement *a, const Decision *d, int64_t from) {
        for (size_t i = 0; agreement_is_in_store(d) && agreement_is_own_decision(a, d) &&
                           i < ELEMENTSOF(publish_steps);
             i++)
                if (d->opened_usec + publish_steps[i] >= from)
                        return d->opened_usec + publish_steps[i];
        return AGREEMENT_NEVER;
}

uint64_t agreement_node_of(const char *instance_id) {
        uint8_t digest[SHA256_SIZE];
        uint64_t node = 0;

        sha256_of(instance_id, strlen(instance_id), digest);
        for (size_t i = 0; i < sizeof node; i++)
                node = node << 8 | digest[i];
        return node;
}

AgreementKey *agreement_find_key(const Agreement *a, const char *key) {
        for (size_t i = 0; i < a->n_keys; i++)
                if (strcmp(a->keys[i]->key, key) == 0)
                        return a->keys[i];
        return NULL;
}

AgreedFailure *agreement_find_failure(const AgreementKey *k, uint32_t n) {
        for (size_t i = 0; k && i < k->n_failures; i++)
                if (k->failures[i]->d.n == n)
                        return k->failures[i];
        return NULL;
}

AgreedFailure *agreement_find_placed(const AgreementKey *k, const Claim *process) {
        for (size_t i = 0; i < k->n_failures; i++) {
                const Claim *c = claim_set_find(&k->failures[i]->claims, process);
                if (c && c->state != CLAIM_ALIVE)
                        return k->failures[i];
        }
        return NULL;
}

static void failure_free(AgreedFailure *f) {
        claim_set_done(&f->claims);
        free(f);
}

void agreement_remove_key(Agreement *a, size_t i) {
        AgreementKey *k = a->keys[i];
        for (size_t j = 0; j < k->n_failures; j++)
                failure_free(k->failures[j]);
        a->n_failures -= k->n_failures;
        a->keys[i] = a->keys[--a->n_keys];
        claim_set_done(&k->claims);
        free(k->failures);
        free(k);
}

/* Removes a failure, and the claims that ended in it. */
static void remove_failure(Agreement *a, AgreementKey *k, size_t i) {
        AgreedFailure *f = k->failures[i];
        size_t n = 0;

        for (size_t j = 0; j < k->claims.n; j++)
                if (agreement_find_placed(k, &k->claims.items[j]) != f)
                        k->claims.items[n++] = k->claims.items[j];
        k->claims.n = n;
        memmove(&k->failures[i], &k->failures[i + 1],
                (--k->n_failures - i) * sizeof(AgreedFailure *));
        a->n_failures--;
        failure_free(f);
}

bool agreement_ended_long_ago(const Agreement *a, const Claim *c) {
        return c->state == CLAIM_ENDED && c->event_usec + a->window_usec < a->now_usec;
}

static void remove_oldest_failure(Agreement *a, AgreementKey *k) {
        size_t oldest = 0;
        for (size_t i = 1; i < k->n_failures; i++)
                if (k->failures[i]->changed_usec < k->failures[oldest]->changed_usec)
                        oldest = i;
        remove_failure(a, k, oldest);
}

/* Removes the oldest failure of this key, or of the key that has most. */
static void make_room_for_failure(Agreement *a, AgreementKey *key) {
        if (key->n_failures < FAILURES_OF_KEY_MAX) {
                if (a->n_failures < AGREEMENT_FAILURES_MAX)
                        return;
                for (size_t i = 0; i < a->n_keys; i++)
                        if (a->keys[i]->n_failures > key->n_failures)
                                key = a->keys[i];
        }
        remove_oldest_failure(a, key);
}

void agreement_expire(Agreement *a, int64_t now) {
        for (size_t i = 0; i < a->n_keys; i++)
                for (size_t j = a->keys[i]->n_failures; j-- > 0;)
                        if (a->keys[i]->failures[j]->changed_usec < now - AGREEMENT_KEEP_USEC)
                                remove_failure(a, a->keys[i], j);
}

int agreement_add_key(Agreement *a, const char *key, AgreementKey **ret) {
        AgreementKey *k = agreement_find_key(a, key);
        if (!claim_key_is_valid(key))
                return -EINVAL;
        if (!k) {
                if (a->n_keys == AGREEMENT_KEYS_MAX)
                        return -ENOSPC;
                if (!(k = calloc(1, sizeof *k)))
                        return -ENOMEM;
                memcpy(k->key, key, sizeof k->key);
                k->question = ACTION_LIST;
                k->first_usec = k->cluster_id_usec = AGREEMENT_NEVER;
                k->search_usec = k->send_usec = AGREEMENT_NEVER;
                k->retry_usec = k->sent_usec = k->news_usec = -AGREEMENT_TIME_MAX;
                k->ended_usec = INT64_MIN;
                a->keys[a->n_keys++] = k;
        }
        *ret = k;
        return 0;
}

void agreement_sort_failure(AgreementKey *k, size_t i) {
        AgreedFailure *f = k->failures[i];
        for (; i > 0 && k->failures[i - 1]->d.n - 1 > f->d.n - 1; i--)
                k->failures[i] = k->failures[i - 1];
        k->failures[i] = f;
}

int agreement_add_failure(Agreement *a, AgreementKey *k, const Decision *d, int64_t now,
                          AgreedFailure **ret) {
        make_room_for_failure(a, k);
        AgreedFailure *f = NULL;
        if (array_grow(&k->failures, k->n_failures, sizeof f) < 0 || !(f = calloc(1, sizeof *f)))
                return -ENOMEM;
        *f = (AgreedFailure){ .d = *d,
                              .newest_usec = INT64_MIN,
                              .changed_usec = now,
                              .record_usec = -AGREEMENT_TIME_MAX,
                              .record_gap_usec = AGREEMENT_RECORD_GAP_MIN,
                              .publish_usec = agreement_publishing_time(a, d, now),
                              .has_news = true };
        k->failures[k->n_failures++] = f;
        agreement_sort_failure(k, k->n_failures - 1);
        a->n_failures++;
        *ret = f;
        return 0;
}

int agreement_add_claim(Agreement *a, AgreementKey *k, const Claim *c) {
        size_t n = 0, n_before = k->claims.n;
        const int r = claim_set_add(&k->claims, c);
        if (r != -ENOSPC)
                return r;
        for (size_t i = 0; i < n_before; i++) {
                const Claim *old = &k->claims.items[i];
                if (!agreement_ended_long_ago(a, old) || agreement_find_placed(k, old))
                        k->claims.items[n++] = *old;
        }
        k->claims.n = n;
        if (n == n_before && k->n_failures > 0)
                remove_oldest_failure(a, k);
        return claim_set_add(&k->claims, c);
}
