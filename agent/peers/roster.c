#include "agent/peers/roster.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/neuron/nrt_status.h"

#define INCIDENT_SCHEMA "neuron-collectd/incident/1"
#define LATE_SLACK_USEC ((int64_t)USEC_PER_SEC)

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

/* ---- nodes ---- */

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

/* ---- ranks ---- */

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
                add_rank(r, c->rank, c);
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

/* ---- both ---- */

int roster_fold(const Decision *d, const Record *records, size_t n_records, Roster *ret) {
        _cleanup_(roster_done) Roster r = { .decision = *d };
        int e = fold_nodes(&r, records, n_records);
        bool is_full = false;
        for (size_t i = 0; e == 0 && i < n_records; i++) {
                int merged = claim_set_merge(&r.claims, &records[i].claims);
                is_full = is_full || merged == -ENOSPC;
                e = merged == -ENOMEM ? merged : 0;
        }
        r.world_size = is_full ? -1 : find_world_size(&r);
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
        record_out_number(b, "rank", row->rank);
        json_out_string(b, "instance_id", row->claim ? row->claim->instance_id : NULL);
        record_out_number(b, "pid", row->claim ? (int64_t)row->claim->pid : -1);
}

static void add_row(StrBuf *b, const RosterRank *row) {
        const Claim *c = row->claim;
        json_out_object(b, NULL);
        add_process(b, row);
        json_out_string(b, "state", state_words[row->state]);
        json_out_string(b, "reason", reason_words[row->reason]);
        record_out_error(b, c);
        record_out_text(b, "error_location", c ? c->error_location : "");
        record_out_time(b, "first_seen", c ? c->event_usec : INT64_MIN);
        record_out_text(b, "bundle", c ? c->bundle : "");
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
        record_out_error(b, c);
        json_out_string(b, "error_name", c->has_error ? nrt_status_name(c->error_code) : NULL);
        record_out_text(b, "error_location", c->error_location);
        record_out_time(b, "time", c->event_usec);
        json_out_u64(b, "uncertainty_ms", record_usec_to_msec(r->uncertainty_usec));
        json_out_end_object(b);
}

static void add_decision(StrBuf *b, const Decision *d, const char *job_key) {
        json_out_string(b, "schema", INCIDENT_SCHEMA);
        json_out_string(b, "cluster_id", d->cluster_id);
        json_out_string(b, "date_time", d->date_time);
        json_out_bool(b, "derived", d->derived);
        record_out_text(b, "job", job_key);
        json_out_string(b, "key", d->key);
        json_out_u64(b, "n", d->n);
        json_out_string(b, "decided_by", d->created_by);
        record_out_time(b, "decided_at", d->opened_usec);
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
        record_out_number(&b, "world_size", r->world_size);
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
                        record_out_time(&b, "ended", row->claim->event_usec);
                        json_out_end_object(&b);
                }
        json_out_end_array(&b);
        add_nodes(&b, r);
        return record_detach(&b, ret_n);
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
