/* What runs in the threads of a source: a unit is walked and held, a source is scanned. It decides
 * nothing. */
#pragma once

#include "agent/intake/intake.h"
#include "agent/intake/rules.h"
#include "agent/store/bundle.h"
#include "lib/neuron/owners.h"

/* What was last seen at each unit's path, 16 bytes a unit: so that a scan reports only what is new
 * or has changed. A complete scan leaves in it only what is there. */
typedef struct UnitTable {
        uint64_t *keys, *digests; /* open addressing; key 0 = free slot */
        size_t n, n_slots;        /* n_slots is 0 or a power of two */
} UnitTable;

/** @param relative  a path below the fixed part. @return 0, -ENOMEM */
int unit_table_put(UnitTable *t, const char *relative, uint64_t digest);
bool unit_table_has(const UnitTable *t, const char *relative, uint64_t digest);
/** What the probe saw there. */
bool unit_table_has_path(const UnitTable *t, const char *relative);
void unit_table_done(UnitTable *t);

#define PROBE_HELD_FILES_MAX 64

typedef struct Promise {
        char *name;   /* of a file anywhere in the unit; owned. "": of a copy that was cut short */
        bool is_seen; /* by the probe */
} Promise;

/* A job is of one of four kinds. Without bundle_id and `shipped` it probes a path. With is_late it
 * links the files that came late into a unit. With supplement_id alone it rechecks the links of a
 * bundle. Otherwise it probes a unit and holds its members for bundle_id. */
typedef struct ProbeJob {
        SourceTask task;
        IntakeSource *source;                              /* for done() */
        void (*done)(IntakeSource *s, struct ProbeJob *p); /* on the loop; it is freed afterwards */
        SourceSpec *spec;                                  /* a reference */
        char *relative;   /* the unit, below the fixed part; owned */
        Owner owner;      /* of a path, for done(); of a bundle's unit */
        char *known_unit; /* the path, or a directory above it, that is a unit whatever its name;
                             owned; NULL */
        char bundle_id[BUNDLE_ID_SIZE];
        uint64_t *shipped; /* sorted fingerprints of what was shipped of this unit; owned */
        size_t n_shipped;
        uint64_t seen_digest; /* the owner's: of the unit, when it was found */
        bool check_writers;   /* leases and headers too */
        bool hold;            /* by links, or else by descriptors */
        bool waits_for_share; /* members that cannot be read while it is away are not left out */
        /* A directory with another inode or another birth in the unit's place is another unit; 0:
         * not compared. */
        uint64_t unit_ino, unit_born_usec;
        bool met_another;
        Promise *promised; /* files that are to come; owned */
        size_t n_promised;
        bool links_only; /* whatever is at the unit's place now is ignored */
        /* Of `base_id`: what the links of bundle_id hold and was not shipped is linked for it as
         * well. */
        char supplement_id[BUNDLE_ID_SIZE];
        char base_id[BUNDLE_ID_SIZE];
        bool releases_links; /* those of bundle_id, after a recheck */
        /* bundle_id is READY or SHIPPING: members of its unit that it neither ships nor holds are
         * linked for supplement_id. */
        bool is_late;
        bool base_is_held;   /* by links; else all but base_files files count as unheld */
        uint64_t base_files; /* in: of bundle_id */
        uint64_t n_was_unheld,
                n_unheld;          /* before, and now: members that this agent does not hold */
        PinsSession *base_session; /* while the job runs: links of bundle_id */

        /* 0; SCAN_E_NO_UNIT; PROBE_E_FOREIGN: another node has locked it, or delivered it;
         * PROBE_E_NOT_HELD: after a recheck, hold_error has the reason; PROBE_E_AWAY: with
         * waits_for_share, members cannot be read, nor can this agent's mark be renewed; -ENOENT;
         * -errno */
        int result;
        /* Of a path as scan_unit_at() returns it, else only the fields that are counted over
         * members. */
        ScanUnit unit;
        FileOwners owners;        /* of the members that are counted */
        NamedPids pids;           /* in the members' names */
        uint64_t n_shipped_there; /* members that have been shipped before */
        IntakeWriters writers;
        bool contradicted;
        PinsSession *session; /* while it runs */
        bool has_link;        /* the current member has a link of ours already */
        bool base_has_link;   /* is_late: of bundle_id */
        uint64_t n_linked;    /* members that have a link of ours */
        bool links_held;
        bool lives_on;   /* with links_only: each of the links' files has another name, too */
        bool from_links; /* the unit is gone from its place: the facts are those of our links */
        bool moved; /* with -ENOENT: all its pinned files are in other units of this source now */
        char *hold_error; /* why links could not be made, and the remedy */
        HeldFiles held;
        bool process_seen;
        uint64_t process_start;
        uint64_t duration_usec;
} ProbeJob;

enum { PROBE_E_FOREIGN = 2, PROBE_E_NOT_HELD = 3, PROBE_E_AWAY = 4 };

/** @param relative  copied */
int probe_job_new(ProbeJob **ret, SourceSpec *spec, const char *relative);
ProbeJob *probe_job_free(ProbeJob *p);
DEFINE_CLEANUP(ProbeJob, probe_job_free);

/* One of any source that ended long ago; its row goes when its unit is gone. */
typedef struct EndedUnit {
        BundleRecord rec;
        bool is_gone, is_held; /* by links of ours, whatever the row says */
} EndedUnit;

/** One walk over a source: what is new or has changed; and what is gone. */
typedef struct ScanJob {
        SourceTask task;
        IntakeSource *source; /* for done() */
        SourceSpec *spec;
        UnitTable known; /* a copy of the table, and units that hooks have named */
        UnitTable seen;  /* what is there; what is new or has changed with another digest */
        EndedUnit *ended;
        size_t n_ended, n_ended_handled, n_dropped;
        ScanUnit *found;
        size_t n_found, n_handled;
        Owners owners;         /* of what was found: where it is full, who has most gives way */
        uint64_t n_unreadable; /* directories that could not be read */
        char *unreadable;      /* one of them, escaped; owned */
        ScanUnit left_out;     /* what no bundle can name: skipped, skipped_example */
        bool has_more;         /* there was more than owners.max */
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

int scan_job_new(ScanJob **ret, SourceSpec *spec, const UnitTable *known, uint64_t max_found);
ScanJob *scan_job_free(ScanJob *s);
DEFINE_CLEANUP(ScanJob, scan_job_free);
