/* What this node has of failures: the keys that failures are numbered by, the processes that failed
 * or may fail, and the units that their dumps are in. Bounded for all and for each user, so that no
 * user can fill it with notes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/delivery/objects.h"
#include "agent/failures/arbiter.h"
#include "agent/failures/rank_watch.h"
#include "agent/peers/agreement.h"
#include "agent/peers/claim.h"
#include "agent/store/bundle.h"
#include "lib/base/list.h"
#include "lib/neuron/job.h"

#define FAILURE_PROCESSES_MAX 8192
#define FAILURE_PROCESSES_OF_OWNER_MAX 2048
#define FAILURE_KEYS_OF_OWNER_MAX 32 /* all: AGREEMENT_KEYS_MAX */

struct Failures;

/** An entry that counts for a user. */
typedef struct OwnedEntry {
        ListLink link; /* oldest first */
        uid_t uid;     /* whose it counts as */
} OwnedEntry;

/** The job, or the cluster id, that failures are numbered by. */
typedef struct FailureKey {
        OwnedEntry entry;
        char key[CLAIM_KEY_SIZE];
        JobIdentity job;  /* of one of its ranks; its key is "": by cluster id, or not known yet */
        char *source;     /* the first one that named it; NULL: none yet */
        Arbiter *arbiter; /* NULL: none can decide */
        size_t n_processes;
        uint32_t n_reported; /* the last failure for which a snapshot was requested */
} FailureKey;

/** A dump, found or only named by a hook. It exists while it has a bundle or a process. */
typedef struct FailureUnit {
        ListLink link;
        char *source, *path;
        char bundle[BUNDLE_ID_SIZE];  /* "" = not found yet */
        struct FailureProcess *first; /* whose failure names it; NULL: none yet */
        int64_t due_usec;             /* it is claimed without a note then; 0 = claimed */
        int64_t ready_usec;           /* since when its bundle waits for its name; 0 = not yet */
        /* The search for a pointer to what was delivered before the state database was lost. */
        ObjectCall *search;
        bool is_searched;
        FailureName found;
        struct Failures *failures;
} FailureUnit;

/** A process of this node, and so a claim. */
typedef struct FailureProcess {
        OwnedEntry entry;
        FailureKey *key;
        Claim claim;
        FailureUnit *unit; /* NULL: none */
        RankWatch *watch;  /* NULL: not seen alive, or it has ended */
        uid_t note_uid;    /* whose hook reported it; 0: none, the agent itself */
        int64_t file_pid;  /* the pid in its files' names, of its own namespace; 0: claim.pid */
        uint32_t n;        /* of its failure; 0 = not known */
        bool is_placed;    /* the agreement knows its failure */
        int64_t changed_usec;
        struct Failures *failures;
} FailureProcess;

/** Only failure_table.c adds and frees entries. Others set the fields that an entry's comment does
 * not explain as the table's. */
typedef struct FailureTable {
        ListLink keys, processes, units;
        uint64_t n_dropped;        /* refused beyond a bound */
        Agreement *agreement;      /* forgets a key that is freed; borrowed */
        BundleTable *bundles;      /* borrowed */
        struct Failures *failures; /* for the entries; borrowed */
} FailureTable;

#define FAILURE_TABLE_FOREACH_KEY(k, t) LIST_FOREACH_ITEM (FailureKey, k, entry.link, &(t)->keys)
#define FAILURE_TABLE_FOREACH_PROCESS(p, t)                                                        \
        LIST_FOREACH_ITEM (FailureProcess, p, entry.link, &(t)->processes)
#define FAILURE_TABLE_FOREACH_UNIT(u, t) LIST_FOREACH_ITEM (FailureUnit, u, link, &(t)->units)

void failure_table_init(FailureTable *t);
void failure_table_done(FailureTable *t);

FailureKey *failure_table_find_key(const FailureTable *t, const char *key);
/** Finds or adds it. @param uid  whose it becomes, unless that is known; 0: not known
 * @return NULL: beyond a bound, or no memory */
FailureKey *failure_table_get_key(FailureTable *t, const char *key, uid_t uid);
/** @return the only key of a job of which this user had a rank here since then; NULL: there is
 * none, or more than one */
FailureKey *failure_table_find_job(const FailureTable *t, uid_t uid, int64_t since_usec);
/** @return how many ranks of the last launch of a job are or were here */
size_t failure_table_count_ranks(const FailureTable *t, const FailureKey *k);
/** @param uid  whose; NULL: anybody's  @return whether live ranks of a key are here */
bool failure_table_has_live_rank(const FailureTable *t, const FailureKey *k, const uid_t *uid);
/** Frees the keys that have no process. */
void failure_table_free_empty_keys(FailureTable *t);

/** @param c  only its process counts */
FailureProcess *failure_table_find_process(const FailureTable *t, const Claim *c);
/** Finds or adds it. @return NULL: it is of another key, beyond a bound, or no memory */
FailureProcess *failure_table_get_process(FailureTable *t, FailureKey *k, const Claim *c,
                                          uid_t uid);
/** @return the last process here that had a rank and did not fail, for a note that does not name
 * its process; NULL: none */
const FailureProcess *failure_table_find_rank(const FailureTable *t, const FailureKey *k,
                                              int64_t rank);
void failure_table_free_process(FailureTable *t, FailureProcess *p);

FailureUnit *failure_table_find_unit(const FailureTable *t, const char *source, const char *path);
/** Finds or adds it. The caller gives a new one a process or a bundle. @return NULL: no memory */
FailureUnit *failure_table_get_unit(FailureTable *t, const char *source, const char *path);
void failure_table_free_unit(FailureTable *t, FailureUnit *u);
/** Separates a unit from its bundle, so that it may get another one. */
void failure_table_end_bundle(FailureTable *t, FailureUnit *u);
/** Puts a process into a unit. It leaves the one it was in, which ends without process and bundle.
 */
void failure_table_join_unit(FailureTable *t, FailureUnit *u, FailureProcess *p);
/** Takes out of a unit the processes that were reported by the hook of a user who may not annotate
 * its files. */
void failure_table_remove_strangers(FailureTable *t, FailureUnit *u, const FileOwners *owners);
