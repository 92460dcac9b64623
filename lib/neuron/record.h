/* A bundle and its deliveries as plain data: their fields, states, and the legal moves. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/transition.h"

#define BUNDLE_ID_SIZE 80   /* `<kind>-<yyyymmddTHHMMSS>-<12 hex>[-sN]` and NUL */
#define INSTANCE_ID_SIZE 65 /* `i-` + 17 hex, or a host name */
#define INSTANCE_ID_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
#define DATE_TIME_SIZE 32 /* as the runtime spelled it */
#define CLUSTER_ID_SIZE 33

typedef enum SourceKind {
        SOURCE_NEURON_CORE_DUMP,
        SOURCE_NEURON_PROFILE,
        SOURCE_PROCESS_CORE,
        SOURCE_DIRECTORY,
        /* What the agent itself has made: no source of the configuration has these kinds. */
        SOURCE_SNAPSHOT,
        SOURCE_CRASH_REPORT,
        SOURCE_OOM,
        N_SOURCE_KINDS,
} SourceKind;

const char *source_kind_name(SourceKind k);            /* `neuron-core-dump` … static */
int source_kind_parse(const char *s, SourceKind *ret); /* -EINVAL */
/** @return whether bundles of this kind belong to an incident (cluster id, date-time) */
bool source_kind_has_incident(SourceKind k);
/** @return whether the agent itself makes what is in bundles of this kind */
bool source_kind_is_own(SourceKind k);

typedef enum BundleState {
        BUNDLE_SETTLING,    /* seen, not known to be complete yet */
        BUNDLE_READY,       /* complete (or labelled incomplete), waits for the scheduler */
        BUNDLE_SHIPPING,    /* at least one destination is being served */
        BUNDLE_DELIVERED,   /* every destination has proof */
        BUNDLE_QUARANTINED, /* gave up after too many failures of its own; `retry` brings it back */
        BUNDLE_EVICTED,     /* released undelivered, by the operator's policy */
        BUNDLE_CANCELLED,   /* by the operator */
        BUNDLE_VANISHED,    /* its source was removed before a link could hold it */
        N_BUNDLE_STATES,
} BundleState;

const char *bundle_state_name(BundleState s);
int bundle_state_parse(const char *s, BundleState *ret);
extern const StateTable bundle_state_table; /* the legal moves */
/** @return whether the agent does nothing more with it by itself */
bool bundle_state_is_inactive(BundleState s);
/** @return whether it is final: inactive, and no operator can retry it as a quarantined bundle */
bool bundle_state_is_terminal(BundleState s);

/* Why a bundle exists. What it holds is its kind. */
typedef enum Origin {
        ORIGIN_FOUND,      /* its unit was found */
        ORIGIN_SUPPLEMENT, /* what came into the unit of a bundle after that had been planned */
        ORIGIN_LINKS,      /* the same, but only links of ours hold it: the unit is not read */
        ORIGIN_REDELIVERY, /* it was delivered, and goes to destinations that it did not have */
        N_ORIGINS,
} Origin;

const char *origin_name(Origin o); /* `found` `supplement` … static */
int origin_parse(const char *s, Origin *ret);

typedef enum DeliveryState {
        DELIVERY_PENDING,
        DELIVERY_SHIPPING,
        DELIVERY_DONE,
        N_DELIVERY_STATES
} DeliveryState;
extern const StateTable delivery_state_table;     /* the legal moves: what is done stays done */
const char *delivery_state_name(DeliveryState s); /* `pending` `shipping` `delivered` */
int delivery_state_parse(const char *s, DeliveryState *ret);

typedef enum Proof { PROOF_NONE, PROOF_HEAD, PROOF_RESPONSE, PROOF_READBACK, N_PROOFS } Proof;
const char *proof_name(Proof p);            /* NULL for PROOF_NONE */
int proof_parse(const char *s, Proof *ret); /* NULL or "" = PROOF_NONE */

typedef struct DeliveryRecord {
        char *destination;
        DeliveryState state;
        Proof proof;
        char *object;           /* full path or URL of the object once known; may be NULL */
        uint64_t bytes;         /* of the object, once done */
        unsigned attempts;      /* failures so far */
        char *last_error;       /* may be NULL */
        uint64_t next_try_usec; /* CLOCK_REALTIME; 0 = now */
        uint64_t done_usec;
} DeliveryRecord;

/* The name of a bundle's failure. It is set, and frozen, when the scheduler first asks for it. */
#define FAILURE_KEY_SIZE 17
typedef struct FailureName {
        char agreed[8]; /* `store`, `bus`, `alone`; "" = not set */
        char cluster_id[CLUSTER_ID_SIZE], date_time[DATE_TIME_SIZE]; /* "" = the bundle's own */
        bool derived;               /* the cluster id is ours, since the runtime gave none */
        char key[FAILURE_KEY_SIZE]; /* at the arbiter; "" = none */
        uint32_t n;
} FailureName;

typedef struct BundleRecord {
        char id[BUNDLE_ID_SIZE];
        char *source; /* the source's name in the configuration */
        SourceKind kind;
        char *path; /* absolute path of the unit: a directory or a file, raw bytes */
        BundleState state;
        char *reason;     /* why it is in this state, a sentence for people; may be NULL */
        bool complete;    /* known to be complete; false: `incomplete` says why */
        char *incomplete; /* JSON array of short reason strings; may be NULL = [] */
        char date_time[DATE_TIME_SIZE];   /* as spelled by the runtime; "" = none */
        char cluster_id[CLUSTER_ID_SIZE]; /* "" = none */
        Origin origin;
        char supplement_of[BUNDLE_ID_SIZE]; /* "" = not a supplement */
        unsigned n_supplements;             /* of a base bundle */
        uid_t uid;                          /* owner of the unit */
        uint64_t unit_dev, unit_ino;        /* of the directory or file; 0 = it is not read */
        uint64_t unit_born_usec;            /* of a directory, as in ScanUnit; 0 = not known */
        uint64_t n_files, bytes;
        uint64_t oldest_mtime_usec; /* of the members, at first sight */
        uint64_t digest; /* order-free digest of the members' fingerprints at the last scan */
        uint64_t first_seen_usec, changed_usec; /* CLOCK_REALTIME; changed = entered this state */
        unsigned attempts; /* failures of the bundle itself, for quarantine_after */
        bool pinned;       /* by the operator */
        bool links_held;   /* hard links of ours hold the sources */
        char *failure;     /* JSON object: what hooks reported, see delivery_notes.h; NULL */
        /* Of what the agent itself has made: its document (agent/evidence/about.h), and the bundle
         * whose name, place and destinations it has; NULL, "" = none. */
        char *about;
        char subject[BUNDLE_ID_SIZE];
        FailureName name;
        char *s3_prefix;            /* a note's, in place of the s3 destinations'; NULL = theirs */
        DeliveryRecord *deliveries; /* one a destination */
        size_t n_deliveries;
} BundleRecord;

/** @return the name that it is delivered under: its failure's, else its own; "" = none */
static inline const char *bundle_record_cluster_id(const BundleRecord *b) {
        return b->name.cluster_id[0] ? b->name.cluster_id : b->cluster_id;
}
static inline const char *bundle_record_date_time(const BundleRecord *b) {
        return b->name.cluster_id[0] ? b->name.date_time : b->date_time;
}

static inline bool bundle_record_is_redelivery(const BundleRecord *b) {
        return b->origin == ORIGIN_REDELIVERY;
}
/** @return the origin that it has after a redelivery. Of a supplement that is in links no unit is
 * read. */
static inline Origin bundle_record_first_origin(const BundleRecord *b) {
        if (!b->supplement_of[0])
                return ORIGIN_FOUND;
        return b->unit_ino == 0 ? ORIGIN_LINKS : ORIGIN_SUPPLEMENT;
}

/** @return whether it is delivered under the name of a failure: so is every core dump, and what the
 * agent itself has made if a failure is known */
bool bundle_record_has_failure(const BundleRecord *b);
/** @return whether it has a delivery to this destination */
bool bundle_record_has_destination(const BundleRecord *b, const char *name);
/** Both free what the record owns, and zero it. */
void delivery_record_done(DeliveryRecord *d);
void bundle_record_done(BundleRecord *b);
int bundle_record_copy(BundleRecord *to, const BundleRecord *from); /* -ENOMEM */
