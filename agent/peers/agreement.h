/* Which failure each claim of this node belongs to and what that failure is called: when the
 * arbiter is asked, what is created there, when this node's record and incident.json are written,
 * what is sent to peers. A pure state machine: it is given events and the time, and returns
 * actions. All times are microseconds of this node's boot clock. */
#pragma once

#include "agent/peers/claim.h"
#include "agent/peers/message.h"

#define AGREEMENT_KEYS_MAX 256
#define AGREEMENT_FAILURES_MAX 256
#define AGREEMENT_KEEP_USEC (INT64_C(7) * 24 * 3600 * 1000000)
#define AGREEMENT_NEVER INT64_MAX
/* A process that started later than this after a failure was opened is not part of it. */
#define AGREEMENT_START_SLACK_USEC 2000000

typedef struct Agreement Agreement;

typedef enum Role {
        ROLE_NONE,   /* no bus for this key */
        ROLE_LEAF,   /* connected to the centre */
        ROLE_CENTRE, /* the root of the job runs here */
} Role;

typedef struct AgreementOptions {
        const char *instance_id; /* borrowed */
        int64_t settle_usec, window_usec;
        uint64_t seed; /* of the jitter */
} AgreementOptions;

int agreement_new(Agreement **ret, const AgreementOptions *options);
Agreement *agreement_free(Agreement *a);
void agreement_set_times(Agreement *a, int64_t settle_usec, int64_t window_usec);
/** What can decide about a key: whether it has an arbiter (which may be unreachable; one that turns
 * out to be unable is none from then on, until this is called with false and with true again), and
 * this node's part on the bus. Both may change at any time. */
int agreement_set_arbiter(Agreement *a, const char *key, bool has_arbiter);
int agreement_set_role(Agreement *a, const char *key, Role role);
/** Settling ends at once, and records are written at once (drain, --once). */
void agreement_hurry(Agreement *a, bool on);
/** Nothing of this node is in it any more; an action of it that is underway has no end. */
void agreement_forget(Agreement *a, const char *key);

/** A claim of this node, new or with a higher revision.
 * @param is_local  the job is on this node alone: it waits for nobody, and the first claim names
 * the failure at once
 * @return 0; -ENOSPC: bounded; -ENOMEM */
int agreement_claim(Agreement *a, const char *key, const Claim *c, bool is_local, int64_t now);

/** A bundle of this node, of the failure of this number, has ended: the node's record is written
 * again, since it says where its bundles are. */
void agreement_on_bundle(Agreement *a, const char *key, uint32_t n, int64_t now);

/** A decision that is stored with a claim of this node: known again after a restart. */
int agreement_restore(Agreement *a, const Decision *d, const Claim *c, int64_t now);

/** @param process  identity of a claim of this node
 * @return the decision that it belongs to, borrowed until the next call; NULL: none yet */
const Decision *agreement_find(const Agreement *a, const char *key, const Claim *process);
/** @return whether somebody can still decide it: the arbiter, or the bus */
bool agreement_is_pending(const Agreement *a, const char *key, const Claim *process);

/** @return whether a request to the arbiter about this key is under way, or follows at once from
 * the last reply */
bool agreement_is_asking(const Agreement *a, const char *key, int64_t now);
/** @return whether a record of this node is to be written, at an arbiter that has not failed */
bool agreement_is_recording(const Agreement *a);

/** A verified message of a peer. @return 0, -ENOSPC, -ENOMEM */
int agreement_hear(Agreement *a, const Message *m, int64_t now);

typedef enum ActionKind {
        ACTION_NONE,
        ACTION_LIST,    /* `.incidents/<key>/`: all names below it */
        ACTION_READ,    /* `<n>.json` */
        ACTION_CREATE,  /* `<n>.json` with `decision`, only if it is not there */
        ACTION_RECORD,  /* write this node's record of n: its agreement_claims() */
        ACTION_PUBLISH, /* list and fold the records of n, write incident.json */
        ACTION_SEND,    /* `message` */
        N_ACTION_KINDS,
} ActionKind;

typedef struct Action {
        ActionKind kind;
        char key[CLAIM_KEY_SIZE];
        uint32_t n;
        Decision decision;      /* CREATE; of RECORD and PUBLISH the failure's */
        bool unless_listed;     /* PUBLISH only if incident.json lacks this node's record */
        const Message *message; /* SEND; borrowed until the next call */
} Action;

/** @return the next action that is due, if any: of the store one at a time for each key; its end
 * is reported by agreement_on_done(). Call it until it returns ACTION_NONE. */
ActionKind agreement_next_action(Agreement *a, int64_t now, Action *ret);
/** @return when to ask again; AGREEMENT_NEVER */
int64_t agreement_next_time(const Agreement *a);

typedef enum StoreOutcome {
        STORE_OUTCOME_OK,
        STORE_OUTCOME_EXISTS,      /* CREATE: somebody else was first */
        STORE_OUTCOME_NOT_FOUND,   /* READ */
        STORE_OUTCOME_UNREACHABLE, /* it may have been executed */
        STORE_OUTCOME_UNABLE,      /* forbidden, no conditional writes: it is no arbiter */
} StoreOutcome;

typedef struct ListedFailure { /* of a listing of `.incidents/<key>/` */
        uint32_t n;
        bool has_decision;   /* `<n>.json` is there */
        int64_t opened_usec; /* of `<n>.json`, when it is there */
        int64_t newest_usec; /* the newest time in the names of its records; INT64_MIN: no record */
} ListedFailure;

typedef struct StoreResult { /* times: this node's boot clock */
        StoreOutcome outcome;
        const ListedFailure *listed; /* LIST: by n, ascending */
        size_t n_listed;
        const Decision *decision; /* READ, of OK: with opened_usec */
        int64_t opened_usec;      /* CREATE, of OK: when it was created */
} StoreResult;
/** An action of the store has ended. */
void agreement_on_done(Agreement *a, const char *key, ActionKind kind, uint32_t n,
                       const StoreResult *r, int64_t now);

/** @return the claims of a failure, of all nodes, borrowed until the next call that changes
 * something; NULL: there is no such failure */
const ClaimSet *agreement_claims(const Agreement *a, const char *key, uint32_t n);

typedef struct AgreementFailure { /* borrowed until the next call that changes something */
        const Decision *decision;
        const ClaimSet *claims; /* of all nodes, as heard on the bus too */
} AgreementFailure;
/** @return whether there is an i-th failure, and *ret: for status */
bool agreement_failure(const Agreement *a, size_t i, AgreementFailure *ret);

/** The cluster id of a failure whose ranks have none: 16 hex digits of SHA-256 over `<key>/<n>`.
 * Exported for the tests. */
void decision_derive_cluster_id(const char *key, uint32_t n, char ret[CLUSTER_ID_SIZE]);
