/* Carries out what agreement decided at the destination that is the arbiter of a key: lists, reads
 * and creates decisions, writes this node's record, publishes incident.json. One task at a time for
 * each key. */
#pragma once

#include "agent/delivery/objects.h"
#include "agent/peers/agreement.h"
#include "agent/peers/node_bundles.h"

typedef struct Arbiter Arbiter;

typedef struct ArbiterOptions { /* borrowed; source and destination are copied */
        Clock *clock;
        Agreement *agreement; /* gets the results */
        const char *instance_id, *key;
        const char *job_key;       /* may become known later */
        const char *kind, *source; /* for the prefix of incident.json */
        const char *destination;
        /* Adds the bundles that this node has of a failure, for its record. NULL: it has none.
         * @return 0; -errno: the record is not written now */
        int (*add_bundles)(const Decision *failure, NodeBundles *ret, void *userdata);
        /* A task has ended; actions may be due. */
        void (*on_done)(Arbiter *a, void *userdata);
        void *userdata;
} ArbiterOptions;

int arbiter_new(Arbiter **ret, const ArbiterOptions *options);
Arbiter *arbiter_free(Arbiter *a);
DEFINE_CLEANUP(Arbiter, arbiter_free);

/** Starts a task; its result goes to the agreement. Without a scheduler (a reload) it ends at once
 * as unreachable. */
void arbiter_execute(Arbiter *a, Scheduler *scheduler, const Action *action);
/** Before the scheduler is freed: the task ends as unreachable. */
void arbiter_cancel(Arbiter *a);

typedef struct ArbiterState {
        char *destination;
        char *error;         /* the last one since a task succeeded; NULL: none */
        bool is_busy;        /* with a task */
        bool is_unreachable; /* the last task failed so */
        bool is_unable;      /* the store has no conditional writes, or forbids them */
} ArbiterState;
const ArbiterState *arbiter_state(const Arbiter *a);
