/* Who took part in a failure: the records of its nodes, folded. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/peers/claim.h"
#include "agent/peers/record.h"

#define ROSTER_RANKS_MAX 16384 /* incident.json may have 4 MiB */

typedef enum RankState {
        RANK_PRESENT,
        RANK_LATE,
        RANK_MISSING,
        RANK_UNDELIVERED, /* not delivered, and not known to be one of the job: it is not missed */
        N_RANK_STATES,
} RankState;

typedef enum MissingReason {
        MISSING_NONE,
        MISSING_UNREACHABLE, /* no node has named this rank */
        MISSING_NO_DUMP,     /* alive, or ended without one */
        MISSING_EMPTY,
        MISSING_UNDELIVERED,
        N_MISSING_REASONS,
} MissingReason;

typedef struct RosterRank {
        int64_t rank; /* -1 = not known */
        RankState state;
        MissingReason reason;
        const Claim *claim; /* the roster's; NULL: nobody named it */
        bool is_suspect;    /* it ended before the first failure, without a dump */
} RosterRank;

typedef struct RosterNode { /* whose record is in it */
        char instance_id[INSTANCE_ID_SIZE];
        uint64_t revision;
        int64_t uncertainty_usec; /* of its times, against the store's clock */
        NodeBundles bundles;      /* of its newest record, borrowed from that */
} RosterNode;

typedef struct Roster {
        Decision decision;
        ClaimSet claims;
        int64_t world_size; /* the decision's, else the largest of the claims; -1: not known, more
                               than ROSTER_RANKS_MAX, or not all are folded; nobody is missing */
        bool is_cut;        /* there are more than CLAIMS_MAX processes: not all are in it */
        RosterRank *ranks;  /* by rank; those without a rank come last */
        size_t n_ranks;
        RosterNode *nodes; /* by instance id */
        size_t n_nodes;
        const RosterRank *first_failure; /* NULL: none */
        int64_t uncertainty_usec;        /* of its time against the others' */
} Roster;

/** Folds the records, up to CLAIMS_MAX claims. Of a process the claim with the higher revision
 * counts, of a rank that was named by several processes the failed one, then the one that ended,
 * then the newest.
 * @param records  in any order; of a node that has several all count; borrowed
 * @param ret  all zero, or with is_cut when there are more records than these
 * @return 0 and *ret (roster_done); -ENOMEM */
int roster_fold(const Decision *d, const Record *records, size_t n_records, Roster *ret);
void roster_done(Roster *r);
