/* One walk over a source, in a thread. See scan_job.c. */
#pragma once

#include "agent/intake/history.h"
#include "agent/intake/unit_table.h"
#include "agent/retention/source_spec.h"
#include "lib/base/bound.h"
#include "lib/neuron/scan.h"

typedef struct IntakeSource IntakeSource;

/** One walk over a source: what is new or has changed; and what is gone. */
typedef struct ScanJob {
        SourceTask task;
        IntakeSource *source; /* for done() */
        SourceSpec *spec;
        UnitTable known; /* a copy of the table, and units that hooks have named */
        UnitTable seen;  /* what is there; what is new or has changed with another digest */
        EndedUnits ended;
        ScanUnit *found;
        size_t n_found, n_handled;
        Bound bound;           /* of what was found, by owner; in the thread */
        uint64_t n_unreadable; /* directories that could not be read */
        char *unreadable;      /* one of them, escaped; owned */
        ScanUnit left_out;     /* what no bundle can name: skipped, skipped_example */
        bool has_more;         /* there was more than the bound allows: of bound.last_refused */
        int result;            /* 0; -ENOENT: the fixed part is not there */
        bool on_network;
        const char *fs_name; /* static; when on_network */
        char *lock_note;     /* unit_locks_scan_new(); owned */
        ScanSource scan;     /* while it runs */
        UnitLocksScan *locks;
        char *moved_aside; /* what another user had where our links belong; owned, NULL: nothing */
        char *root_note;   /* scan_check_root() */
        uint64_t duration_usec;
} ScanJob;

/** @param max, max_each  units to be found, of all owners and of one; others are left to a later
 * scan */
int scan_job_new(ScanJob **ret, SourceSpec *spec, const UnitTable *known, uint64_t max,
                 uint64_t max_each);
ScanJob *scan_job_free(ScanJob *s);
DEFINE_CLEANUP(ScanJob, scan_job_free);

/** Requests the lock of a unit on a file system that nodes share. @return as unit_locks_request()
 */
int scan_job_request_lock(UnitLocksScan *locks, const SourceSpec *spec, const ScanUnit *u);
