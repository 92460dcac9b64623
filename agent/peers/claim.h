/* One process of a job, as its node knows it, and sets of such claims. Pure.
 * Times are microseconds of whatever clock the holder of the claim says: the boot clock of this
 * node in `agreement`, the store's in `record`. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/neuron/record.h"

#define CLAIM_KEY_SIZE 17 /* 16 hex digits and NUL */
#define CLAIM_BOOT_ID_SIZE 33
#define CLAIM_LOCATION_SIZE 64
#define CLAIMS_MAX 4096 /* of a failure */
#define CLAIM_RANKS_MAX 1000000

/* From here on a claim's pid is not a process's (pid_max is 2^22): the process is unknown, and the
 * number only distinguishes the claim from others. It is not shown. */
#define CLAIM_PID_UNKNOWN UINT32_C(0x80000000)

typedef enum ClaimState {
        CLAIM_ALIVE,  /* the process runs */
        CLAIM_ENDED,  /* it ended, and no dump of it was found */
        CLAIM_FAILED, /* a hook reported it, or a dump of it was found */
        N_CLAIM_STATES,
} ClaimState;
const char *claim_state_name(ClaimState s); /* `alive` `ended` `failed` */
int claim_state_parse(const char *s, ClaimState *ret);

typedef enum ClaimBundle {
        CLAIM_BUNDLE_NONE,
        CLAIM_BUNDLE_EMPTY, /* nothing of it may be collected */
        CLAIM_BUNDLE_PENDING,
        CLAIM_BUNDLE_DELIVERED,
        N_CLAIM_BUNDLES,
} ClaimBundle;
const char *claim_bundle_name(ClaimBundle b); /* `none` `empty` `pending` `delivered` */
int claim_bundle_parse(const char *s, ClaimBundle *ret);

typedef struct Claim {
        /* Which process: the key of a set. */
        char boot_id[CLAIM_BOOT_ID_SIZE];
        uint32_t pid;
        uint64_t start_ticks; /* since boot; 0 = not known */

        uint32_t revision; /* of what follows; its node counts */
        char instance_id[INSTANCE_ID_SIZE];
        int64_t rank, world_size;         /* -1 = not known */
        char cluster_id[CLUSTER_ID_SIZE]; /* the runtime's; "" = not known; may be all zeros */
        char date_time[DATE_TIME_SIZE];   /* as spelled; "" = not known */
        ClaimState state;
        ClaimBundle bundle_state;
        char bundle[BUNDLE_ID_SIZE];
        bool has_error;
        int64_t error_code;
        char error_location[CLAIM_LOCATION_SIZE]; /* printable ASCII */
        int64_t started_usec;                     /* the process; INT64_MIN = not known */
        int64_t event_usec;                       /* it failed, ended, or was first seen alive */
} Claim;

/** @return whether it names a failure: it failed. What is alive or ended only belongs to one. */
static inline bool claim_is_failure(const Claim *c) {
        return c->state == CLAIM_FAILED;
}

/** @return whether a cluster id is one: not empty, not all zeros */
static inline bool cluster_id_is_set(const char *id) {
        return id[strspn(id, "0")] != '\0';
}

/** The key of a failure: 16 hex digits of the SHA-256 over the job key, else over the cluster id.
 * @return false: neither is known */
bool claim_key_build(const char *job_key, const char *cluster_id, char ret[CLAIM_KEY_SIZE]);
bool claim_key_is_valid(const char *key);

/** A rank and a world size that cannot be become -1, else nobody could read their record. */
void claim_bound_ranks(Claim *c);

/** Orders by process: boot id, pid, start ticks. */
int claim_compare_process(const Claim *a, const Claim *b);

typedef struct ClaimSet { /* sorted by process, each once; all zero = empty */
        Claim *items;
        size_t n;
} ClaimSet;

void claim_set_done(ClaimSet *s);
Claim *claim_set_find(const ClaimSet *s, const Claim *process);
/** Adds it or replaces the one of the same process: the higher revision wins, of equal ones the
 * one that is greater byte for byte, so that merging is commutative, associative and idempotent.
 * @return 1: the set has changed; 0; -ENOMEM; -ENOSPC beyond CLAIMS_MAX */
int claim_set_add(ClaimSet *s, const Claim *c);
int claim_set_merge(ClaimSet *to, const ClaimSet *from);

/** Moves the times of a claim to another clock; what would overflow is bounded.
 * @param offset_usec  that clock less the one before */
void claim_shift(Claim *c, int64_t offset_usec);

/* ---- what a failure is called: a decision never changes ---- */

typedef enum Agreed {
        AGREED_NOT,
        AGREED_ALONE, /* by this node, of a job that is on no other node */
        AGREED_BUS,   /* by the centre of the bus, without a store that can decide */
        AGREED_STORE, /* it lies at the arbiter */
        N_AGREED,
} Agreed;
const char *agreed_name(Agreed a); /* `alone` `bus` `store`; NULL for AGREED_NOT */
int agreed_parse(const char *s, Agreed *ret);

typedef struct Decision {
        Agreed agreed;
        char key[CLAIM_KEY_SIZE];
        uint32_t n; /* from 1; 0: a decision of a job on one node that has no number yet */
        char cluster_id[CLUSTER_ID_SIZE]; /* 16 hex digits, never zeros */
        char date_time[DATE_TIME_SIZE];   /* `yyyymmdd-HHMMSS` or as the runtime spelled it */
        bool derived;                     /* the cluster id is ours, since the runtime gave none */
        char created_by[INSTANCE_ID_SIZE];
        int64_t world_size;  /* -1 = not known */
        int64_t settle_usec; /* of its creator: what is seen later than that is late */
        int64_t opened_usec; /* when it was created; clock as of its holder */
} Decision;

/** @return whether cluster id and date-time may enter a path: 1 to 32 of `[0-9A-Za-z_-]`, and the
 * date-time is one that the runtime writes (lib/neuron) */
bool decision_name_is_valid(const Decision *d);
