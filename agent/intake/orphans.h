/* What is attached to units of a source that is not configured any more: nobody scans it, so nobody else lets go of that. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/hooknotes/attachments.h"
#include "agent/store/store.h"

/* What waits for a bundle of such a source stays so long: the source may come back with the next configuration. */
#define ORPHANS_WAIT_USEC USEC_PER_DAY

typedef struct OrphansContext { /* borrowed for the call */
        Attachments *attachments;
        Store *store;
        uint64_t now_usec;    /* CLOCK_REALTIME */
        uint64_t steady_usec; /* clock_steady_usec(): nothing waits for longer */
        bool (*is_configured)(const char *source, void *userdata);
        void *userdata;
} OrphansContext;

/** Removes what was attached to bundles that are over, and what has waited for a bundle for ORPHANS_WAIT_USEC while none was underway. What was attached
 * to a bundle that is underway or quarantined stays. */
void orphans_sweep(const OrphansContext *c);
