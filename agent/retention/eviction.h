/* The eviction of a bundle that is not delivered yet, so that the job has free space. */
#pragma once

#include <stdbool.h>

#include "agent/retention/policy.h"
#include "agent/store/bundle.h"
#include "agent/store/store.h"

typedef struct Eviction { /* borrowed */
        Store *store;
        BundleTable *bundles;
        IntakeSource *source; /* the bundle's */
        const char *id;
        RetentionAct
                act; /* RETENTION_EVICT, or RETENTION_RELEASE: the user has deleted its files */
        const RetentionReport *report; /* what was violated, for the reason */
} Eviction;

/** @return whether this undelivered bundle must not be evicted now: a delivery runs, its row is not
 * written, it is a redelivery, or no link of ours holds its files */
bool eviction_is_busy(const Bundle *b);

/** Evicts the bundle, unless it is busy, pinned or has ended meanwhile.
 * @return whether it was evicted; a failure is logged */
bool eviction_run(const Eviction *e);
