/* The parts of `agreement` among themselves. Each uses only those below it:
 *
 *     agreement.c               what is due, claims of this node, construction
 *     agreement_arbiter.c       results of the arbiter          agreement_bus.c   messages
 *     agreement_deciding.c      a failure gets its name and number
 *     agreement_placing.c       which failure a claim belongs to
 *     agreement_keys.c          keys, failures and claims, bounded
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/peers/agreement.h"

#define AGREEMENT_MSEC INT64_C(1000)
#define AGREEMENT_SEC INT64_C(1000000)
/* Times of peers and stores beyond this are not true; sums of a few below it do not overflow. */
#define AGREEMENT_TIME_MAX (INT64_MAX / 8)
/* A larger number is nonsense. */
#define AGREEMENT_NUMBER_MAX (UINT32_C(1) << 30)
#define AGREEMENT_CANDIDATES_MAX 3
/* From a change to its record, at most, if the last record is old enough. */
#define AGREEMENT_RECORD_WAIT AGREEMENT_SEC
/* From one record to the next, at least; it doubles each time. */
#define AGREEMENT_RECORD_GAP_MIN (2 * AGREEMENT_SEC)
/* By then the creator of a decision has published it, unless it is dead; then others do. */
#define AGREEMENT_PUBLISH_STAND_IN (75 * AGREEMENT_SEC)
#define AGREEMENT_RESEND_USEC (300 * AGREEMENT_MSEC) /* a leaf sends its claims again, at first */

/* A failure that this node knows, and its claims. */
typedef struct AgreedFailure {
        Decision d;
        ClaimSet claims;
        int64_t newest_usec; /* of its failed claims and of its records; INT64_MIN: none is known */
        int64_t changed_usec;
        uint64_t changes, n_recorded; /* of this node's record; how many of them are written */
        int64_t record_usec, record_gap_usec; /* the next record is not before; the gap after it */
        int64_t publish_usec;                 /* AGREEMENT_NEVER: nothing to publish */
        bool has_news; /* at the centre: its leaves have not heard of it, or have sent again */
} AgreedFailure;

/* A job, or a cluster id, by which failures are numbered. */
typedef struct AgreementKey {
        char key[CLAIM_KEY_SIZE];
        Role role;
        bool has_arbiter, is_unable; /* is_unable: the arbiter has answered that it cannot decide */
        ClaimSet claims;             /* of this node; at the centre of all nodes */
        AgreedFailure **failures;    /* by n; those without a number come last */
        size_t n_failures;
        unsigned n_named;   /* failures that this node has named alone */
        uint32_t n_decided; /* the highest number that the bus gave; it stays when that failure is
                               removed, since a number has one name */

        /* The claims that need a decision, by agreement_refresh(). */
        int64_t first_usec;      /* since when there are any; AGREEMENT_NEVER */
        int64_t cluster_id_usec; /* since when there is one with a cluster id, which does not settle
                                  */
        int64_t leaf_wait_usec;
        int64_t ended_usec; /* the last rank that ended and belongs to no failure; INT64_MIN */
        int64_t search_usec, search_gap_usec;

        /* The arbiter: one action at a time. */
        ActionKind in_flight;
        uint32_t in_flight_n;
        uint64_t in_flight_changes;
        ActionKind question; /* the next one: LIST when it is time; READ, CREATE at once */
        bool is_listed;      /* during a call: every failure that claims could be in is known */
        int64_t retry_usec;
        ListedFailure candidates[AGREEMENT_CANDIDATES_MAX];
        size_t n_candidates;
        Decision proposal;
        uint32_t highest;
        unsigned n_exists, n_errors;

        /* The bus. */
        int64_t send_usec, sent_usec;  /* when a leaf sends its claims next; when it did */
        size_t send_step, send_at;     /* send_at: how many own claims were sent in this step */
        uint64_t heard_revisions;      /* what the centre has of this node */
        Heard acks[MESSAGE_HEARD_MAX]; /* the centre's acknowledgements for its next news */
        size_t n_acks;
        int64_t news_usec; /* the centre sends news not before */
} AgreementKey;

struct Agreement {
        char instance_id[INSTANCE_ID_SIZE];
        uint64_t node;
        int64_t settle_usec, window_usec;
        uint64_t random;
        bool hurry;
        AgreementKey *keys[AGREEMENT_KEYS_MAX];
        size_t n_keys, n_failures;
        int64_t now_usec; /* when the last event came */
        Message message;
};

/* ---- agreement_keys.c: keys, failures and claims; bounds ---- */

/** @return a random duration from `from` to `to` */
int64_t agreement_jitter(Agreement *a, int64_t from, int64_t to);
/** @param n_errors  in a row, this one included  @return how long to wait before the next try */
int64_t agreement_backoff(Agreement *a, unsigned n_errors);
/** @return whether sums of a few such times do not overflow */
bool agreement_time_is_sane(int64_t t);
/** @return whether a claim is of this node */
bool agreement_is_own_claim(const Agreement *a, const Claim *c);
/** Bounds the times and ranks of a claim. @return false: it can neither be placed nor named */
bool agreement_normalize_claim(Claim *c, int64_t now);
/** @return whether a decision that was read or heard is one of this key, with sane values */
bool agreement_decision_is_usable(const Decision *d, const char *key);
/** @return whether the arbiter has a decision */
bool agreement_is_in_store(const Decision *d);
/** @return whether the key has an arbiter that has not turned out to be unable */
bool agreement_can_query(const AgreementKey *k);
/** @return whether this node created a decision */
bool agreement_is_own_decision(const Agreement *a, const Decision *d);
/** @return when the creator of a decision publishes it next, not before `from`; AGREEMENT_NEVER */
int64_t agreement_publishing_time(const Agreement *a, const Decision *d, int64_t from);
/** @return the number that stands for a node in messages (Heard) */
uint64_t agreement_node_of(const char *instance_id);
/** @return NULL: it is not known */
AgreementKey *agreement_find_key(const Agreement *a, const char *key);
/** @param n  0: the first failure that has no number yet */
AgreedFailure *agreement_find_failure(const AgreementKey *k, uint32_t n);
/** @return the failure that a process failed or ended in */
AgreedFailure *agreement_find_placed(const AgreementKey *k, const Claim *process);
/** @param i  its index */
void agreement_remove_key(Agreement *a, size_t i);
/** @return whether a process ended so long ago that it can belong to no failure to come */
bool agreement_ended_long_ago(const Agreement *a, const Claim *c);
/** Removes the failures that have not changed for AGREEMENT_KEEP_USEC. Keys stay until
 * agreement_forget(). */
void agreement_expire(Agreement *a, int64_t now);
/** Finds or adds it. @return 0, -EINVAL, -ENOSPC, -ENOMEM */
int agreement_add_key(Agreement *a, const char *key, AgreementKey **ret);
/** Moves the failure at i to its place: by number, and those without a number (0) last. */
void agreement_sort_failure(AgreementKey *k, size_t i);
/** Adds a failure. At a limit the oldest failure of this key is removed, or of the key that has
 * most.
 * @return 0, -ENOMEM */
int agreement_add_failure(Agreement *a, AgreementKey *k, const Decision *d, int64_t now,
                          AgreedFailure **ret);
/** Adds or replaces a claim. At the limit, claims that ended long ago without a failure are
 * removed, or else the oldest failure with its claims.
 * @return as claim_set_add() */
int agreement_add_claim(Agreement *a, AgreementKey *k, const Claim *c);

/* ---- agreement_placing.c: which failure a claim belongs to ---- */

/** @param newest_usec  of the failure; INT64_MIN: not known
 * @return whether a claim belongs to a failure: by its cluster id, or by its times */
bool agreement_claim_belongs(const Agreement *a, const Decision *d, int64_t newest_usec,
                             const Claim *c);
/** As agreement_claim_belongs(), but not if the claim may belong to an earlier failure that is not
 * known; only a listing tells then. */
bool agreement_claim_may_join(const Agreement *a, const AgreementKey *k, const Decision *d,
                              int64_t newest_usec, const Claim *c);
/** @return whether this node decides about a claim: about its own; at the centre about all */
bool agreement_counts_claim(const Agreement *a, const AgreementKey *k, const Claim *c);
/** @return the sum of the revisions of a node's claims, by which a leaf and the centre see whether
 * they have the same ones */
uint64_t agreement_sum_revisions(const AgreementKey *k, const char *instance_id);
/** @return whether the centre has all claims of this node */
bool agreement_is_heard(const Agreement *a, const AgreementKey *k);
/** Lets a leaf send its claims, from the beginning. */
void agreement_send_soon(AgreementKey *k, int64_t now);
/** What this node records of a failure has changed. */
void agreement_record_soon(Agreement *a, AgreedFailure *f, int64_t now);
/** @return whether the window of the failure has moved, so that other claims may belong to it now
 */
bool agreement_add_to_failure(Agreement *a, AgreementKey *k, AgreedFailure *f, const Claim *c,
                              int64_t now);
/** Places the claims that belong to known failures, and notes since when others need a decision. */
void agreement_refresh(Agreement *a, AgreementKey *k, int64_t now);
/** @return when the claims that need a decision may get one; AGREEMENT_NEVER */
int64_t agreement_open_time(const Agreement *a, const AgreementKey *k);

/* ---- agreement_deciding.c: naming and numbering failures ---- */

/** @return whether a claim of a failure needs a decision from this node */
bool agreement_is_open_claim(const Agreement *a, const AgreementKey *k, const Claim *c);
/** Names a failure after the claims that are open: the earliest one that has a name, unless that is
 * not within the window of the earliest one of all.
 * @param n_derived  what a derived cluster id is made of
 * @return the earliest one; NULL: no claim is open */
const Claim *agreement_name_failure(const Agreement *a, const AgreementKey *k, uint32_t n_derived,
                                    int64_t now, Decision *ret);
/** @return the highest number that is known for the key */
uint32_t agreement_highest_number(const AgreementKey *k);
/** Adds a failure that this node has decided, and its first claim, whatever the clocks say: without
 * a failure it would need another decision. @return 0, -ENOMEM */
int agreement_keep_failure(Agreement *a, AgreementKey *k, const Decision *d, const Claim *first,
                           int64_t now);
/** Decides without asking: alone, or as the centre of the bus. */
void agreement_decide(Agreement *a, AgreementKey *k, Agreed agreed, int64_t now);
/** Gives a failure that this node named alone the number of a decision. */
void agreement_number_failure(Agreement *a, AgreementKey *k, AgreedFailure *f, const Decision *d,
                              int64_t now);
/** @return the failure without a number that has the name of a decision of this node; NULL */
AgreedFailure *agreement_find_same_name(const Agreement *a, const AgreementKey *k,
                                        const Decision *d);
/** Keeps a decision that was read, created or heard if claims belong to it.
 * @param newest_usec  of its records; INT64_MIN: not known
 * @return 0, -ENOMEM */
int agreement_adopt(Agreement *a, AgreementKey *k, const Decision *d, int64_t newest_usec,
                    int64_t now);

/* ---- agreement_arbiter.c: the arbiter ---- */

/** @return when the arbiter is asked next; AGREEMENT_NEVER */
int64_t agreement_query_time(const Agreement *a, const AgreementKey *k);

/* ---- agreement_bus.c: the bus ---- */

/** @return a failure of which leaves have not heard; NULL */
AgreedFailure *agreement_find_news(const AgreementKey *k);
/** @return the message that is due: a leaf's claims, the centre's news; borrowed until the next
 * call */
const Message *agreement_write_message(Agreement *a, AgreementKey *k, int64_t now);
