/* Rows of bundles that ended long ago. See history.c. */
#pragma once

#include "agent/intake/intake.h"

/* One of any source; its row is deleted when its unit is gone. */
typedef struct EndedUnit {
        BundleRecord rec;
        bool is_gone, is_held; /* by links of ours, whatever the row says */
} EndedUnit;

typedef struct EndedUnits { /* zero = none */
        EndedUnit *items;
        size_t n, n_handled, n_deleted;
} EndedUnits;

/** Reads the oldest rows after those of the scan before. */
void history_load(IntakeSource *s, EndedUnits *e);
/** In the scan's thread: whether the units are gone. What is on a file system that is not mounted
 * is not gone. @param fixed_fd  of the source's fixed part; < 0: nothing is checked */
void history_check(EndedUnits *e, const SourceSpec *spec, int fixed_fd);
/** Deletes rows until it is late, in the transaction of its caller. After an error, which the store
 * reports, the rest is left for later scans. @return how many */
size_t history_delete(IntakeSource *s, EndedUnits *e, uint64_t until_usec);
void history_report(const IntakeSource *s, const EndedUnits *e);
void history_done(EndedUnits *e);
