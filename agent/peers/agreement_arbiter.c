/* The arbiter of a key: what is asked, and what follows from each result.
 *
 *     LIST ----> a failure that claims may belong to ----> READ ----> adopted, or the next one
 *       |                                                              |
 *       +----> none of them, and the key has settled ----> CREATE <----+
 *                                                            | exists: READ that one
 *                                                            ` done: the failure is kept
 *
 * One question follows at once from the other; a new one begins with a listing. In between this
 * node records its claims of each failure, and its creator publishes incident.json. When the
 * creator does not, the others do. */
#include "agent/peers/agreement_private.h"

#include <string.h>

#include "lib/base/cleanup.h"

#define HOUR (3600 * AGREEMENT_SEC)
#define EXISTS_MAX 5
#define RECORD_GAP_MAX (30 * AGREEMENT_SEC)
#define PUBLISH_SPREAD (60 * AGREEMENT_SEC)
#define NOT_LISTED INT64_MIN /* opened_usec of a candidate that could not be created */

/* The outcome, beside OK, with which an action ends and is not tried again. */
static const StoreOutcome final_outcomes[N_ACTION_KINDS] = {
        [ACTION_LIST] = STORE_OUTCOME_NOT_FOUND, [ACTION_READ] = STORE_OUTCOME_NOT_FOUND,
        [ACTION_CREATE] = STORE_OUTCOME_EXISTS,  [ACTION_RECORD] = STORE_OUTCOME_UNABLE,
        [ACTION_PUBLISH] = STORE_OUTCOME_UNABLE,
};

/* Ends an action. After an error the key lists again, after a delay that grows.
 * @return whether the outcome has to be handled */
static bool end_action(Agreement *a, AgreementKey *k, StoreOutcome outcome, int64_t now) {
        const StoreOutcome final = final_outcomes[k->in_flight];

        k->in_flight = ACTION_NONE;
        if (outcome == STORE_OUTCOME_OK || outcome == final) {
                k->n_errors = 0;
                return true;
        }
        if (outcome == STORE_OUTCOME_UNABLE)
                k->is_unable = true;
        else
                k->retry_usec = now + agreement_backoff(a, ++k->n_errors);
        k->question = ACTION_LIST;
        return false;
}

/* After a listing: continues with what has to be read, then with what has to be created. */
static void advance(Agreement *a, AgreementKey *k, int64_t now) {
        const AgreedFailure *unnumbered = agreement_find_failure(k, 0);
        const uint32_t highest = MAX(k->highest, agreement_highest_number(k)), n = highest + 1;

        k->question = ACTION_LIST;
        if (!unnumbered && k->first_usec == AGREEMENT_NEVER && k->search_usec == AGREEMENT_NEVER)
                return;
        if (k->n_candidates > 0) {
                k->question = ACTION_READ;
                return;
        }
        k->is_listed = k->highest == highest; /* else the listing lacks what the bus has decided */
        agreement_refresh(a, k, now);
        k->is_listed = false;
        if (k->search_usec <= now) {
                k->search_usec = now + k->search_gap_usec;
                k->search_gap_usec = MIN(2 * k->search_gap_usec, HOUR);
        }
        if (highest > AGREEMENT_NUMBER_MAX) { /* somebody has written nonsense */
                k->is_unable = true;
                return;
        }
        if (unnumbered)
                k->proposal = unnumbered->d;
        else if (agreement_open_time(a, k) <= now &&
                 agreement_name_failure(a, k, n, now, &k->proposal))
                k->proposal.agreed = AGREED_STORE;
        else
                return;
        k->proposal.n = n;
        k->question = ACTION_CREATE;
}

/* @return whether a claim that has no number yet may belong to what the listing shows */
static bool is_candidate(const Agreement *a, const AgreementKey *k, const ListedFailure *l) {
        const Decision d = { .opened_usec = l->opened_usec };

        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (c->state == CLAIM_ALIVE || !agreement_counts_claim(a, k, c))
                        continue;
                const AgreedFailure *f = agreement_find_placed(k, c);
                if ((!f || f->d.n == 0) && agreement_claim_belongs(a, &d, l->newest_usec, c))
                        return true;
        }
        return false;
}

static void handle_listed(Agreement *a, AgreementKey *k, uint32_t n, const StoreResult *r,
                          int64_t now) {
        (void)n;
        k->highest = 0;
        k->n_candidates = 0;
        for (size_t i = 0; i < r->n_listed; i++) {
                AgreedFailure *f = agreement_find_failure(k, r->listed[i].n);
                k->highest = MAX(k->highest, r->listed[i].n);
                if (f)
                        f->newest_usec = MAX(f->newest_usec, MIN(r->listed[i].newest_usec, now));
        }
        agreement_refresh(a, k, now);
        for (size_t i = 0; i < r->n_listed; i++) {
                ListedFailure l = r->listed[i];
                l.newest_usec = MIN(l.newest_usec, now);
                if (!l.has_decision || !agreement_time_is_sane(l.opened_usec) ||
                    agreement_find_failure(k, l.n) ||
                    (l.n != k->highest && !is_candidate(a, k, &l)))
                        continue;
                /* The first ones are read, and the highest. */
                k->n_candidates = MIN(k->n_candidates + 1, (size_t)AGREEMENT_CANDIDATES_MAX);
                k->candidates[k->n_candidates - 1] = l;
        }
        advance(a, k, now);
}

static void handle_read(Agreement *a, AgreementKey *k, uint32_t n, const StoreResult *r,
                        int64_t now) {
        const bool is_ok = r->outcome == STORE_OUTCOME_OK;

        if (k->question != ACTION_READ)
                return;
        const int64_t newest_usec = k->candidates[0].newest_usec;
        if (!is_ok && k->candidates[0].opened_usec == NOT_LISTED) {
                k->question = ACTION_LIST; /* it is being written, or is invalid */
                k->retry_usec = now + agreement_jitter(a, 100 * AGREEMENT_MSEC, AGREEMENT_SEC);
                return;
        }
        memmove(k->candidates, k->candidates + 1, --k->n_candidates * sizeof *k->candidates);
        if (is_ok && r->decision->n == n && agreement_decision_is_usable(r->decision, k->key)) {
                k->is_listed = true; /* those before it were read */
                const int error = agreement_adopt(a, k, r->decision, newest_usec, now);
                k->is_listed = false;
                if (error < 0) {
                        k->retry_usec = now + agreement_backoff(a, ++k->n_errors);
                        k->question = ACTION_LIST;
                        return;
                }
        }
        advance(a, k, now);
}

static void handle_created(Agreement *a, AgreementKey *k, uint32_t n, const StoreResult *r,
                           int64_t now) {
        AgreedFailure *f;
        Decision d;

        k->question = ACTION_LIST;
        if (r->outcome ==
            STORE_OUTCOME_EXISTS) { /* without another listing: this is what it shows */
                if (++k->n_exists > EXISTS_MAX) {
                        k->retry_usec = now + agreement_backoff(a, k->n_exists - EXISTS_MAX);
                        return;
                }
                k->highest = n;
                k->candidates[0] = (ListedFailure){ n, true, NOT_LISTED, INT64_MIN };
                k->n_candidates = 1;
                k->question = ACTION_READ;
                return;
        }
        k->n_exists = 0;
        k->proposal.opened_usec = agreement_time_is_sane(r->opened_usec) ? r->opened_usec : now;
        if ((f = agreement_find_same_name(a, k, &k->proposal))) {
                agreement_number_failure(a, k, f, &k->proposal, now);
                return;
        }
        /* What is open has hardly changed since; were it all placed by a peer's news, the number
         * stays for those that are to come. Without memory a listing shows it again. */
        const Claim *first = agreement_name_failure(a, k, n, now, &d);
        if (first && !agreement_find_failure(k, n))
                (void)agreement_keep_failure(a, k, &k->proposal, first, now);
}

static void handle_recorded(Agreement *a, AgreementKey *k, uint32_t n, const StoreResult *r,
                            int64_t now) {
        AgreedFailure *f = agreement_find_failure(k, n);

        (void)r;
        if (!f)
                return;
        f->n_recorded = k->in_flight_changes;
        f->record_usec = now + f->record_gap_usec;
        f->record_gap_usec = MIN(2 * f->record_gap_usec, RECORD_GAP_MAX);
        if (f->publish_usec != AGREEMENT_NEVER)
                return; /* it will have this record */
        f->publish_usec = MAX(now, f->d.opened_usec + AGREEMENT_PUBLISH_STAND_IN) +
                          agreement_jitter(a, 0, PUBLISH_SPREAD);
}

static void handle_published(Agreement *a, AgreementKey *k, uint32_t n, const StoreResult *r,
                             int64_t now) {
        AgreedFailure *f = agreement_find_failure(k, n);

        (void)r;
        if (f)
                f->publish_usec = agreement_publishing_time(a, &f->d, now + 1);
}

void agreement_on_done(Agreement *a, const char *key, ActionKind kind, uint32_t n,
                       const StoreResult *r, int64_t now) {
        static void (*const handlers[N_ACTION_KINDS])(Agreement * a, AgreementKey * k, uint32_t n,
                                                      const StoreResult *r, int64_t now) = {
                [ACTION_LIST] = handle_listed,       [ACTION_READ] = handle_read,
                [ACTION_CREATE] = handle_created,    [ACTION_RECORD] = handle_recorded,
                [ACTION_PUBLISH] = handle_published,
        };
        AgreementKey *k = agreement_find_key(a, key);

        a->now_usec = now;
        /* A key may have been forgotten meanwhile. */
        if (k && k->in_flight == kind && k->in_flight_n == n && handlers[kind] &&
            end_action(a, k, r->outcome, now))
                handlers[kind](a, k, n, r, now);
}

int64_t agreement_query_time(const Agreement *a, const AgreementKey *k) {
        if (k->question != ACTION_LIST)
                return -AGREEMENT_TIME_MAX; /* at once, before records */
        int64_t t = MIN(agreement_open_time(a, k), k->search_usec);
        const AgreedFailure *f = agreement_find_failure(k, 0);
        if (f)
                t = MIN(t, f->d.opened_usec);
        return t == AGREEMENT_NEVER ? t : MAX(t, k->retry_usec);
}
