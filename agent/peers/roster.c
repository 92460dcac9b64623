/* Folds the records of all nodes to a roster: for each rank its state, and if it is missing why;
 * which process failed first, and which ended before that without a dump.
 *
 * A node knows its own processes only, a process may be named in several records of its node, and a
 * rank by several processes when the job was launched more than once; so claims are first reduced
 * to one for each process, then those of earlier launches are removed, then one is chosen for each
 * rank. */
#include "agent/peers/roster.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/neuron/nrt_status.h"

#define LATE_SLACK_USEC ((int64_t)USEC_PER_SEC)
#define EARLIER_SLACK_USEC (2 * (int64_t)USEC_PER_SEC) /* an end is seen later than it happens */

void roster_done(Roster *r) {
        claim_set_done(&r->claims);
        free(r->ranks);
        free(r->nodes);
        *r = (Roster){ 0 };
}

/* ---- the roster's nodes ---- */

/* RosterNode begins with the instance id, a string. */
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
                r->nodes[i].bundles = records[i].bundles;
                memcpy(r->nodes[i].instance_id, records[i].instance_id, INSTANCE_ID_SIZE);
        }
        qsort(r->nodes, n, sizeof *r->nodes, compare_nodes);
        for (size_t i = 0; i < n; i++) {
                RosterNode *node = &r->nodes[i], *last = kept > 0 ? &r->nodes[kept - 1] : NULL;
                if (!last || compare_nodes(last, node) != 0) {
                        r->nodes[kept++] = *node;
                        continue;
                }
                if (node->revision > last->revision)
                        last->bundles = node->bundles;
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
