/* How a failure gets its name and number: named after the earliest claim with a name, decided
 * alone, by the centre of the bus, or adopted from the arbiter or a peer. A decision never changes;
 * a failure that this node named alone may get a number later. */
#include "agent/peers/agreement_private.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"

bool agreement_is_open_claim(const Agreement *a, const AgreementKey *k, const Claim *c) {
        return claim_is_failure(c) && agreement_counts_claim(a, k, c) &&
               !agreement_find_placed(k, c);
}

/* @return the earlier one of two; either may be NULL */
static const Claim *earlier_claim(const Claim *a, const Claim *b) {
        return !a || (b && b->event_usec < a->event_usec) ? b : a;
}

/* @return whether the runtime's names of a claim can be a failure's, and them */
static bool set_name(Decision *d, const Claim *c) {
        memcpy(d->cluster_id, c->cluster_id, sizeof d->cluster_id);
        memcpy(d->date_time, c->date_time, sizeof d->date_time);
        return decision_name_is_valid(d);
}

void decision_derive_cluster_id(const char *key, uint32_t n, char ret[CLUSTER_ID_SIZE]) {
        char text[CLAIM_KEY_SIZE + 16];
        uint8_t digest[SHA256_SIZE];

        snprintf(text, sizeof text, "%s/%u", key, n);
        sha256_of(text, strlen(text), digest);
        digest_hex(digest, 8, ret);
}

/* An elastic job starts again with another number of ranks.
 * @param first  the failure's first claim
 * @return the number of ranks of the last launch before the failure; -1: not known */
static int64_t launch_world_size(const AgreementKey *k, const Claim *first) {
        int64_t size = -1, started_usec = INT64_MIN;
        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (c->world_size <= 0 || c->started_usec < started_usec ||
                    c->started_usec > first->event_usec + AGREEMENT_START_SLACK_USEC)
                        continue;
                size = c->started_usec > started_usec ? c->world_size : MAX(size, c->world_size);
                started_usec = c->started_usec;
        }
        return size;
}

const Claim *agreement_name_failure(const Agreement *a, const AgreementKey *k, uint32_t n_derived,
                                    int64_t now, Decision *ret) {
        const Claim *first = NULL, *named = NULL;
        Decision d = { .settle_usec = a->settle_usec, .opened_usec = now };

        memcpy(d.key, k->key, sizeof d.key);
        memcpy(d.created_by, a->instance_id, sizeof d.created_by);
        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (!agreement_is_open_claim(a, k, c))
                        continue;
                first = earlier_claim(first, c);
                if (set_name(&d, c))
                        named = earlier_claim(named, c);
        }
        if (!first)
                return NULL;
        d.world_size = launch_world_size(k, first);
        d.derived = !named || named->event_usec > first->event_usec + a->window_usec;
        (void)set_name(&d, d.derived ? first : named);
        if (d.derived)
                decision_derive_cluster_id(k->key, n_derived, d.cluster_id);
        *ret = d;
        return first;
}

uint32_t agreement_highest_number(const AgreementKey *k) {
        uint32_t n = k->n_decided;
        for (size_t i = 0; i < k->n_failures; i++)
                n = MAX(n, k->failures[i]->d.n);
        return n;
}

int agreement_keep_failure(Agreement *a, AgreementKey *k, const Decision *d, const Claim *first,
                           int64_t now) {
        const Claim copy = *first; /* add_failure may move claims */
        AgreedFailure *f;
        const int r = agreement_add_failure(a, k, d, now, &f);
        if (r < 0) {
                k->retry_usec = now + agreement_backoff(a, ++k->n_errors);
                return r;
        }
        (void)agreement_add_to_failure(a, k, f, &copy, now);
        agreement_refresh(a, k, now);
        return 0;
}

void agreement_decide(Agreement *a, AgreementKey *k, Agreed agreed, int64_t now) {
        const uint32_t n = agreed == AGREED_BUS ? agreement_highest_number(k) + 1 : 0;
        Decision d;

        const Claim *first = agreement_name_failure(a, k, n > 0 ? n : k->n_named + 1, now, &d);
        if (!first) {
                k->first_usec = AGREEMENT_NEVER;
                return;
        }
        d.agreed = agreed;
        d.n = n;
        if (n == 0) /* nobody was waited for, so what started afterwards is another launch */
                d.opened_usec = first->event_usec;
        int r = agreement_keep_failure(a, k, &d, first, now);
        k->n_named += r == 0 && n == 0;
        k->n_decided = r == 0 ? MAX(k->n_decided, n) : k->n_decided;
}

void agreement_number_failure(Agreement *a, AgreementKey *k, AgreedFailure *f, const Decision *d,
                              int64_t now) {
        size_t i = 0;

        while (k->failures[i] != f)
                i++;
        f->d.n = d->n;
        f->changed_usec = now;
        f->publish_usec = agreement_publishing_time(a, &f->d, now);
        agreement_sort_failure(k, i);
}

static bool has_same_name(const Decision *a, const Decision *b) {
        return strcmp(a->cluster_id, b->cluster_id) == 0 && strcmp(a->date_time, b->date_time) == 0;
}

AgreedFailure *agreement_find_same_name(const Agreement *a, const AgreementKey *k,
                                        const Decision *d) {
        for (size_t i = 0; i < k->n_failures; i++) {
                AgreedFailure *f = k->failures[i];
                if (f->d.n == 0 && agreement_is_own_decision(a, d) && has_same_name(&f->d, d))
                        return f;
        }
        return NULL;
}

int agreement_adopt(Agreement *a, AgreementKey *k, const Decision *d, int64_t newest_usec,
                    int64_t now) {
        AgreedFailure *f = agreement_find_failure(k, d->n);

        if (f) { /* a decision never changes, whatever others say */
                if (has_same_name(&f->d, d) && newest_usec > f->newest_usec) {
                        f->newest_usec = newest_usec;
                        agreement_refresh(a, k, now);
                }
                return 0;
        }
        if ((f = agreement_find_same_name(a, k, d))) {
                agreement_number_failure(a, k, f, d, now);
                return 0;
        }
        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (!agreement_counts_claim(a, k, c) || agreement_find_placed(k, c) ||
                    !agreement_claim_may_join(a, k, d, newest_usec, c))
                        continue;
                const int r = agreement_add_failure(a, k, d, now, &f);
                if (r < 0)
                        return r;
                f->newest_usec = newest_usec;
                agreement_refresh(a, k, now);
                return 0;
        }
        return 0;
}
