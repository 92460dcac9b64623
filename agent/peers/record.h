/* The documents of a failure at the arbiter, docs/BUNDLE.md: the decision, one node's claims, and
 * incident.json, which is made of all nodes' claims. What is read there is hostile. Pure; times are
 * the store's (microseconds since 1970). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "agent/peers/claim.h"

#define RECORD_BYTES_MAX ((size_t)4 << 20)
#define DECISION_BYTES_MAX ((size_t)16 << 10)
#define INCIDENTS_DIRECTORY ".incidents"

typedef struct Record { /* one node's claims of a failure */
        char key[CLAIM_KEY_SIZE];
        uint32_t n;
        char instance_id[INSTANCE_ID_SIZE];
        uint64_t revision;        /* the sum of the claims' revisions, and one for each rewrite */
        int64_t uncertainty_usec; /* of its times, against the store's clock */
        ClaimSet claims;
} Record;
void record_done(Record *r);

/** What the times of a claim become when the clocks differ by so much. */
void claim_shift(Claim *c, int64_t offset_usec);

/** @param job_key  for people; may be ""  @return the document, the caller's; NULL: no memory */
char *decision_format(const Decision *d, const char *job_key, size_t *ret_n);
/** Reads an untrusted one; opened_usec is left 0.
 * @return 0; -EINVAL: it is no decision of this key and number; -ENOMEM */
int decision_parse(const char *text, size_t n_text, const char *key, uint32_t n, Decision *ret);

char *record_format(const Record *r, size_t *ret_n);
/** @return 0 and *ret (record_done); -EINVAL, -ENOMEM */
int record_parse(const char *text, size_t n_text, const char *key, uint32_t n, Record *ret);

/* Names, below the fixed part of a destination. */
#define RECORD_NAME_SIZE 192
/** `.incidents/<key>/` */
void incidents_prefix(const char *key, char ret[RECORD_NAME_SIZE]);
/** `.incidents/<key>/<n>.json` */
void decision_object_name(const char *key, uint32_t n, char ret[RECORD_NAME_SIZE]);
/** `.incidents/<key>/<n>/<yyyymmddTHHMMSSmmm>-<instance-id>.json` @see incidents_name_format() */
void record_object_name(const char *key, uint32_t n, int64_t newest_usec, const char *instance_id,
                        char ret[RECORD_NAME_SIZE]);

typedef struct IncidentsName {
        char key[CLAIM_KEY_SIZE];
        uint32_t n;
        bool is_decision;    /* else a record: */
        int64_t newest_usec; /* in milliseconds */
        char instance_id[INSTANCE_ID_SIZE];
        bool is_beside; /* a record in `.incidents.<instance-id>/` */
} IncidentsName;
/** Reads a name that begins with `.incidents/`, or with `.incidents.<instance-id>/` and is that
 * node's record, which `.incidents` has refused. @return whether it is one of these */
bool incidents_name_parse(const char *name, IncidentsName *ret);
/** The name again. @return the caller's; NULL for lack of memory */
char *incidents_name_format(const IncidentsName *name);

/* ---- who took part in a failure: the records of its nodes, folded ---- */

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

/** incident.json (`neuron-collectd/incident/1`).
 * @param job_key  "" = null  @return the caller's, NULL: no memory */
char *roster_format(const Roster *r, const char *job_key, size_t *ret_n);
/** @return whether incident.json in `text` has this node's record with at least this revision */
bool incident_has_record(const char *text, size_t n_text, const char *instance_id,
                         uint64_t revision);
