/* The bundles of one source that have ended while links of ours hold their files. On the loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/retention/link_usage.h"
#include "agent/retention/source_spec.h"
#include "agent/store/store.h"
#include "lib/base/list.h"
#include "lib/neuron/ids.h"

typedef enum HeldState {
        HELD_WAITING,
        HELD_DELETING,  /* a deletion runs */
        HELD_UNSHIPPED, /* a deletion found content that was not shipped: its links are rechecked */
        HELD_RECHECKED, /* that content is not needed: the next deletion discards it */
        N_HELD_STATES
} HeldState;

/* A copy of the row of a bundle that has ended while links of ours hold its files. */
typedef struct HeldBundle {
        ListLink link;
        char id[BUNDLE_ID_SIZE];
        HeldState state;
        bool is_evicted, is_pinned, is_measured;
        uid_t uid;
        uint64_t first_seen_usec, ended_usec;
        uint64_t not_before_boot_usec; /* after a failure */
        LinkUsage use;
} HeldBundle;

typedef struct HeldBundles {
        ListLink list; /* of HeldBundle; oldest first, about */
        void *by_id;   /* tsearch(3) */
        size_t n;
} HeldBundles;

void held_bundles_init(HeldBundles *b);
void held_bundles_done(HeldBundles *b);

/** Reads those of the source from the store. @return 0, -errno of the store */
int held_bundles_load(HeldBundles *b, Store *store, const SourceSpec *spec);
/** Copies what is needed of a row, unless it is there. Without memory that is logged, and the files
 * stay until the next start. */
void held_bundles_add(HeldBundles *b, const BundleRecord *rec);
HeldBundle *held_bundles_find(const HeldBundles *b, const char *id);
void held_bundles_remove(HeldBundles *b, HeldBundle *h);

void held_bundles_set_state(HeldBundle *h, HeldState state);
