/* The looking part of intake, in a worker's thread: one unit is walked, its members are held, and facts come back.
 * Decides nothing (intake_rules.h does). */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/intake/intake_rules.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "agent/store/owners.h"
#include "config/config.h"
#include "lib/event/worker_pool.h"
#include "lib/neuron/scan.h"

#define PROBE_HELD_FILES_MAX 64

typedef enum PromiseKind {
        PROMISE_NAME,   /* a hook's: a file of this name, wherever in the unit it is */
        PROMISE_PATH,   /* seen in a container: at this path in the unit */
        PROMISE_UNNAMED /* the same, of which no name is known */
} PromiseKind;

typedef struct Promise {
        PromiseKind kind;
        char *name; /* owned; "" where none is known */
} Promise;

typedef struct ProbePromise {
        Promise promise;
        bool is_seen;
} ProbePromise;

typedef struct ProbeJob {
        WorkJob job;
        void *owner;             /* the loop's side, for done() */
        ListLink mine;           /* the owner's list of jobs that are out */
        uint64_t submitted_usec; /* CLOCK_BOOTTIME */
        SourceTerms *terms;      /* a reference */
        char *relative;          /* what to look at, below the fixed part; owned */
        char bundle_id
                [BUNDLE_ID_SIZE]; /* "" = a first look: nothing is held, links are not judged */
        uint64_t *shipped; /* sorted fingerprints of what has been shipped of this unit; owned */
        size_t n_shipped;
        uint64_t seen_digest; /* the owner's: of the unit, when it was found */
        bool check_writers;   /* leases and headers too */
        bool hold;            /* links, or else descriptors */
        /* A directory with another inode in the unit's place, or one that was made at another time, is another unit; 0: it is not asked. */
        uint64_t unit_ino, unit_born_usec;
        bool met_another;
        ProbePromise *promised; /* files that are to come; owned */
        size_t n_promised;
        bool links_only; /* whatever is at the unit's place now is not looked at */
        char heir
                [BUNDLE_ID_SIZE]; /* "" = no last look. Else a supplement to be, of `base_id`: what the links of bundle_id hold and was
                                      not shipped is linked for it as well */
        char base_id[BUNDLE_ID_SIZE];
        bool lets_go; /* after a last look: of the links of bundle_id */

        int result; /* 0; SCAN_E_NO_UNIT; PROBE_E_FOREIGN: another node has claimed it; PROBE_E_NOT_HELD: after a last look, hold_error says
                       why; -ENOENT; -errno */
        ScanUnit
                unit; /* first look: as scan_unit_of() gives it. Else only the fields that are counted over members */
        Owners owners;            /* of the members that are counted */
        uint64_t n_shipped_there; /* members that have been shipped before */
        IntakeWriters writers;
        bool contradicted;
        PinsSession *session; /* while it runs */
        bool has_link;        /* of the member at hand: ours is there already */
        uint64_t n_linked;    /* members that have a link of ours */
        bool links_held;
        bool from_links; /* the unit is gone from its place: the facts are those of our links */
        bool moved; /* with -ENOENT: all that is pinned of it is now in other units of this source */
        char *hold_error; /* why links could not be made, and the remedy */
        HeldFiles held;
        bool process_seen;
        uint64_t process_start;
        uint64_t took_usec;
} ProbeJob;

enum { PROBE_E_FOREIGN = 2, PROBE_E_NOT_HELD = 3 };

/** @param relative  copied */
int probe_job_new(ProbeJob **ret, SourceTerms *terms, const char *relative);
ProbeJob *probe_job_free(ProbeJob *p);
DEFINE_CLEANUP(ProbeJob, probe_job_free);

/** WorkJob.run of a ProbeJob. */
void probe_run(WorkJob *job);

/** One walk over a whole source: what is new or has changed. */
typedef struct ScanJob {
        WorkJob job;
        void *owner;
        uint64_t submitted_usec; /* CLOCK_BOOTTIME */
        SourceTerms *terms;
        const struct UnitTable
                *known; /* borrowed; the loop does not change it while the job runs */
        size_t max_found;
        ScanUnit *found;
        size_t n_found, n_allocated;
        uint64_t n_unreadable; /* directories that could not be read */
        char *unreadable;      /* one of them, escaped; owned */
        bool more;             /* there was more than max_found */
        int result;            /* 0; -ENOENT: the fixed part is not there */
        bool on_network;
        const char *fs_name; /* static; when on_network */
        uint64_t took_usec;
} ScanJob;

int scan_job_new(ScanJob **ret, SourceTerms *terms, const struct UnitTable *known,
                 size_t max_found);
ScanJob *scan_job_free(ScanJob *s);
void scan_run(WorkJob *job);

typedef struct PinsFound {
        char *id;   /* what the directory is called: not necessarily a bundle's id */
        char *path; /* absolute */
} PinsFound;

/** What is to be done with pins that are there already. */
typedef enum PinsTask {
        PINS_RELEASE, /* lets go of bundle_id's */
        PINS_LIST, /* finds out whose there are: every source with this parent has its in one place */
        PINS_SWEEP, /* lets go of those in `found`, which the loop has cut down to what nobody needs */
} PinsTask;

typedef struct PinsJob {
        WorkJob job;
        void *owner; /* the loop's side, for done() */
        ListLink mine;
        SourceTerms *terms;
        PinsTask task;
        char bundle_id[BUNDLE_ID_SIZE];
        PinsFound *found; /* owned; by id, each id once */
        size_t n_found, n_allocated;
        int result;
} PinsJob;

/** @param bundle_id  for PINS_RELEASE, else "" */
int pins_job_new(PinsJob **ret, SourceTerms *terms, PinsTask task, const char *bundle_id);
PinsJob *pins_job_free(PinsJob *p);
/** Frees what an entry owns. */
void pins_found_done(PinsFound *f);
