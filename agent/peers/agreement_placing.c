/* Which failure a claim belongs to. A failure takes the claims that have its cluster id, and those
 * whose event is within the window after its newest one, of processes that started before it was
 * opened. A claim that was placed can make the window longer, so placing is repeated until no claim
 * is placed any more. A live process belongs to each failure that it lives through.
 *
 * The claim of a failed process that belongs to no failure opens the next one of its key: after
 * the settling time it gets a decision. */
#include "agent/peers/agreement_private.h"

#include <string.h>

#include "lib/base/cleanup.h"

/* A claim may be so much older than the opening of a failure and the settling before it. */
#define OLDER_SLACK (5 * AGREEMENT_SEC)
/* A leaf asks the arbiter so long after the centre, at least, and up to three times as long. */
#define LEAF_WAIT AGREEMENT_SEC
/* The first listing after a rank has ended that is in no failure; the gaps after it double. */
#define SEARCH_FIRST (10 * AGREEMENT_SEC)

bool agreement_claim_belongs(const Agreement *a, const Decision *d, int64_t newest_usec,
                             const Claim *c) {
        if (cluster_id_is_set(c->cluster_id) && strcmp(c->cluster_id, d->cluster_id) == 0)
                return true;
        if (c->started_usec > d->opened_usec + AGREEMENT_START_SLACK_USEC)
                return false;
        if (newest_usec == INT64_MIN)
                newest_usec = d->opened_usec;
        return c->state == CLAIM_ALIVE || c->event_usec <= newest_usec + a->window_usec;
}

bool agreement_claim_may_join(const Agreement *a, const AgreementKey *k, const Decision *d,
                              int64_t newest_usec, const Claim *c) {
        return agreement_claim_belongs(a, d, newest_usec, c) &&
               (d->n <= 1 || k->is_listed || c->state == CLAIM_ALIVE ||
                agreement_find_failure(k, d->n - 1) || strcmp(c->cluster_id, d->cluster_id) == 0 ||
                c->event_usec >= d->opened_usec - d->settle_usec - OLDER_SLACK);
}

bool agreement_counts_claim(const Agreement *a, const AgreementKey *k, const Claim *c) {
        return k->role == ROLE_CENTRE || agreement_is_own_claim(a, c);
}

uint64_t agreement_sum_revisions(const AgreementKey *k, const char *instance_id) {
        uint64_t sum = 0;
        for (size_t i = 0; i < k->claims.n; i++)
                if (strcmp(k->claims.items[i].instance_id, instance_id) == 0)
                        sum += k->claims.items[i].revision;
        return sum;
}

bool agreement_is_heard(const Agreement *a, const AgreementKey *k) {
        return k->heard_revisions >= agreement_sum_revisions(k, a->instance_id);
}

void agreement_send_soon(AgreementKey *k, int64_t now) {
        if (k->role != ROLE_LEAF)
                return;
        k->send_step = k->send_at = 0;
        k->send_usec = MAX(now, k->sent_usec + AGREEMENT_RESEND_USEC);
}

void agreement_record_soon(Agreement *a, AgreedFailure *f, int64_t now) {
        if (f->changes++ == f->n_recorded)
                f->record_usec =
                        MAX(f->record_usec, now + agreement_jitter(a, 0, AGREEMENT_RECORD_WAIT));
}

bool agreement_add_to_failure(Agreement *a, AgreementKey *k, AgreedFailure *f, const Claim *c,
                              int64_t now) {
        if (claim_set_add(&f->claims, c) <= 0)
                return false; /* unchanged; or out of memory, then the next change tries again */
        f->changed_usec = now;
        if (agreement_is_own_claim(a, c)) {
                agreement_record_soon(a, f, now);
                if (k->role == ROLE_LEAF && !agreement_is_heard(a, k))
                        agreement_send_soon(k, now);
        }
        if (!claim_is_failure(c) || c->event_usec <= f->newest_usec)
                return false;
        f->newest_usec = c->event_usec;
        return true;
}

static bool place_claim(Agreement *a, AgreementKey *k, const Claim *c, int64_t now) {
        AgreedFailure *f = agreement_find_placed(k, c);

        for (size_t i = 0; !f && i < k->n_failures; i++) {
                AgreedFailure *candidate = k->failures[i];
                if (!agreement_claim_may_join(a, k, &candidate->d, candidate->newest_usec, c))
                        continue;
                if (c->state == CLAIM_ALIVE) /* it is in each failure that it lives through */
                        (void)agreement_add_to_failure(a, k, candidate, c, now);
                else
                        f = candidate;
        }
        return f && agreement_add_to_failure(a, k, f, c, now);
}

static void schedule_search(AgreementKey *k, int64_t ended_usec, int64_t now) {
        if (ended_usec == INT64_MIN)
                k->search_usec = AGREEMENT_NEVER;
        else if (ended_usec > k->ended_usec) {
                k->search_usec = MAX(now, ended_usec + SEARCH_FIRST);
                k->search_gap_usec = SEARCH_FIRST;
        }
        k->ended_usec = ended_usec;
}

void agreement_refresh(Agreement *a, AgreementKey *k, int64_t now) {
        int64_t ended_usec = INT64_MIN;
        bool moved, is_open = false, has_cluster_id = false;

        do {
                moved = false;
                for (size_t i = 0; i < k->claims.n; i++)
                        moved |= place_claim(a, k, &k->claims.items[i], now);
        } while (moved);
        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (c->state == CLAIM_ALIVE || !agreement_counts_claim(a, k, c) ||
                    agreement_find_placed(k, c))
                        continue;
                if (claim_is_failure(c)) {
                        is_open = true;
                        has_cluster_id |= cluster_id_is_set(c->cluster_id);
                } else if (agreement_is_own_claim(a, c) && !agreement_ended_long_ago(a, c))
                        ended_usec = MAX(ended_usec, c->event_usec);
        }
        schedule_search(k, ended_usec, now);
        k->cluster_id_usec = has_cluster_id ? MIN(k->cluster_id_usec, now) : AGREEMENT_NEVER;
        if (is_open && k->first_usec == AGREEMENT_NEVER) {
                k->first_usec = now;
                k->leaf_wait_usec = agreement_jitter(a, LEAF_WAIT, 3 * LEAF_WAIT);
                k->n_exists = 0;
        } else if (!is_open)
                k->first_usec = AGREEMENT_NEVER;
}

int64_t agreement_open_time(const Agreement *a, const AgreementKey *k) {
        if (k->first_usec == AGREEMENT_NEVER || a->hurry)
                return k->first_usec;
        return MIN(k->first_usec + a->settle_usec, k->cluster_id_usec) +
               (k->role == ROLE_LEAF ? k->leaf_wait_usec : 0);
}
