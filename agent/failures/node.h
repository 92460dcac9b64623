/* What this node has of failures: processes that failed or may fail, the units that their dumps lie
 * in, and the keys that they belong to. Bounded, so that no user can fill it with notes. Private to
 * this folder. */
#pragma once

#include "agent/delivery/objects.h"
#include "agent/failures/arbiter.h"
#include "agent/failures/ranks.h"
#include "agent/peers/agreement.h"
#include "agent/store/bundle.h"
#include "lib/base/list.h"

#define PROCESSES_MAX 8192
#define PROCESSES_OF_OWNER_MAX 2048
#define KEYS_OF_OWNER_MAX 32

typedef struct Owned {
        ListLink link; /* oldest first */
        uid_t uid;     /* whose it counts as */
} Owned;

/* The job, or the cluster id, that failures are numbered by. */
typedef struct Key {
        Owned owned;
        char key[CLAIM_KEY_SIZE];
        JobIdentity job;  /* of one of its ranks; its key is "": by cluster id, or not known yet */
        char *source;     /* the first one that named it; NULL: none yet */
        Arbiter *arbiter; /* NULL: none can decide */
        size_t n_processes;
        uint32_t n_reported; /* failures whose snapshot was asked for */
} Key;

/* A dump, found or only named by a hook. There is one while it has a bundle or a process. */
typedef struct FailureUnit {
        ListLink link;
        char *source, *path;
        char bundle[BUNDLE_ID_SIZE]; /* "" = not found yet */
        struct Process *first;       /* whose failure names it; NULL: none yet */
        int64_t due_usec;            /* claimed without a note then; 0 = claimed */
        int64_t ready_usec;          /* asked for its name; 0 = not yet */
        /* For a pointer to what was delivered before the state database was lost. */
        ObjectCall *search;
        bool is_searched;
        FailureName found;
        struct Failures *failures;
} Unit;

/* A process of this node, and so a claim. */
typedef struct Process {
        Owned owned;
        Key *key;
        Claim claim;
        Unit *unit;       /* NULL: none */
        RankWatch *watch; /* NULL: not seen alive, or it has ended */
        uid_t note_uid;   /* whose hook reported it; 0: none, the agent itself */
        uint32_t n;       /* of its failure; 0 = not known */
        bool is_placed;
        int64_t changed_usec;
        struct Failures *failures;
} Process;

typedef struct Node {
        Agreement *agreement; /* borrowed, as the others; forgets the keys that go */
        BundleTable *bundles;
        struct Failures *failures;
        ListLink keys, processes, units;
        uint64_t n_dropped; /* beyond what is bounded */
} Node;

#define FOREACH_KEY(k, node) LIST_FOREACH_ITEM (Key, k, owned.link, &(node)->keys)
#define FOREACH_PROCESS(p, node) LIST_FOREACH_ITEM (Process, p, owned.link, &(node)->processes)
#define FOREACH_UNIT(u, node) LIST_FOREACH_ITEM (Unit, u, link, &(node)->units)

/** The agreement is set later, before there are keys. */
void node_init(Node *n, BundleTable *bundles, struct Failures *failures);
void node_done(Node *n);
/** Frees what nobody will miss. */
void node_prune(Node *n, int64_t now_usec);

Key *node_find_key(const Node *n, const char *key);
/** Finds or adds it. @param uid  whose it is, unless that is known @return NULL: bounded, no memory
 */
Key *node_get_key(Node *n, const char *key, uid_t uid);
/** Finds or adds it. @param c  only its process counts
 * @return NULL: it is of another key, bounded, no memory */
Process *node_get_process(Node *n, Key *k, const Claim *c, uid_t uid);
void node_free_process(Node *n, Process *p);

Unit *node_find_unit(const Node *n, const char *source, const char *path);
/** Finds or adds it: one that is new then gets a process or a bundle. @return NULL: no memory */
Unit *node_get_unit(Node *n, const char *source, const char *path);
void node_free_unit(Node *n, Unit *u);
/** A process lies in one unit: the last one that was named. */
void node_join_unit(Node *n, Unit *u, Process *p);
/** Another user's hook does not name these files: its process leaves the unit. */
void node_expel_strangers(Node *n, Unit *u, const FileOwners *owners);

/** @return how many ranks of the last launch of a job are or were here */
size_t node_count_ranks(const Node *n, const Key *k);
/** @return the key of the job whose ranks this user had here since then, if it is one */
Key *node_find_job_of_user(const Node *n, uid_t uid, int64_t since_usec);
/** @return the process of a note that does not name it: the last one here that had its rank */
const Process *node_find_rank(const Node *n, const Key *k, int64_t rank);
/** Live ranks of a key are here. @param uid  of whom; NULL: of anybody */
bool node_has_live_rank(const Node *n, const Key *k, const uid_t *uid);
