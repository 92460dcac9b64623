/* What runs in the threads of a source: a unit is walked and held, a source is scanned. It decides
 * nothing. */
#pragma once

#include "agent/intake/intake.h"
#include "agent/intake/rules.h"
#include "agent/retention/link_session.h"
#include "agent/store/bundle.h"
#include "lib/neuron/owners.h"

#define PROBE_HELD_FILES_MAX 64

typedef struct Promise {
        char *name;   /* of a file anywhere in the unit; owned */
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
        LinkSession *base_session; /* while the job runs: links of bundle_id */

        /* 0; SCAN_E_NO_UNIT; PROBE_E_FOREIGN: another node has locked it, or delivered it;
         * PROBE_E_NOT_HELD: after a recheck, hold_error has the reason; -ENOENT; -errno */
        int result;
        /* Of a path as scan_unit_at() returns it, else only the fields that are counted over
         * members. */
        ScanUnit unit;
        FileOwners owners;        /* of the members that are counted */
        NamedPids pids;           /* in the members' names */
        uint64_t n_shipped_there; /* members that have been shipped before */
        IntakeWriters writers;
        bool contradicted;
        LinkSession *session; /* while it runs */
        bool has_link;        /* the current member has a link of ours already */
        bool base_has_link;   /* is_late: of bundle_id */
        uint64_t n_linked;    /* members that have a link of ours */
        bool links_held;
        bool from_links; /* the unit is gone from its place: the facts are those of our links */
        bool moved; /* with -ENOENT: all its pinned files are in other units of this source now */
        char *hold_error; /* why links could not be made, and the remedy */
        HeldFiles held;
        bool process_seen;
        uint64_t process_start;
        uint64_t duration_usec;
} ProbeJob;

enum { PROBE_E_FOREIGN = 2, PROBE_E_NOT_HELD = 3 };

/** @param relative  copied */
int probe_job_new(ProbeJob **ret, SourceSpec *spec, const char *relative);
ProbeJob *probe_job_free(ProbeJob *p);
DEFINE_CLEANUP(ProbeJob, probe_job_free);
