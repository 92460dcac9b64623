/* What the files of intake share. */
#pragma once

#include "agent/intake/intake.h"
#include "agent/intake/rules.h"
#include "agent/store/owners.h"
#include "lib/event/dirwatch.h"

/* A unit that changes all the time is probed no more often than this, and never for more than a
 * fifth of the time. */
#define REPROBE_USEC (100 * USEC_PER_MSEC)
#define REPROBE_SHARE 4

/* ---- source.c: what a source remembers ---- */

/* What was last seen at each unit's path, 16 bytes a unit: so that a scan reports only what is new
 * or has changed. */
typedef struct UnitTable {
        uint64_t *keys, *digests; /* open addressing; key 0 = free slot */
        size_t n, n_slots;        /* n_slots is 0 or a power of two */
} UnitTable;

/** @return a key for a path below the fixed part, never 0 */
uint64_t unit_table_key(const char *relative);
int unit_table_put(UnitTable *t, uint64_t key, uint64_t digest); /* -ENOMEM */
bool unit_table_get(const UnitTable *t, uint64_t key, uint64_t *ret_digest);
int unit_table_copy(UnitTable *ret, const UnitTable *from); /* -ENOMEM */
void unit_table_done(UnitTable *t);

/* Paths that wait to be probed: first in, first out, each once, and not more than PENDING_MAX. */
#define PENDING_MAX 10000

typedef struct Pending {
        ListLink all;
        void *by_path; /* tsearch(3) */
        size_t n;
} Pending;

void pending_init(Pending *p);
/** Adds a copy; nothing when it is there. @return 0, -ENOMEM, -E2BIG (everything was dropped: scan
 * instead) */
int pending_add(Pending *p, const char *path);
/** Removes the oldest. @return the caller's, never NULL when not empty */
char *pending_pop(Pending *p);
bool pending_has(const Pending *p, const char *path);
bool pending_is_empty(const Pending *p);
void pending_done(Pending *p);

/* ---- probe.c: what is done in the threads of a source. It decides nothing. ---- */

#define PROBE_HELD_FILES_MAX 64

typedef struct Promise {
        char *name;   /* of a file anywhere in the unit; owned. "": of a copy that was cut short */
        bool is_seen; /* by the probe */
} Promise;

/* Three kinds: without a bundle_id and `shipped` a path is probed; with a supplement_id the links
 * of a bundle are rechecked; else a unit is probed, and its members are held for bundle_id. */
typedef struct ProbeJob {
        SourceTask task;
        IntakeSource *source;                              /* for done() */
        void (*done)(IntakeSource *s, struct ProbeJob *p); /* on the loop; it is freed afterwards */
        SourceSpec *terms;                                 /* a reference */
        char *relative; /* the unit, below the fixed part; owned */
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

        /* 0; SCAN_E_NO_UNIT; PROBE_E_FOREIGN: another node has claimed it; PROBE_E_NOT_HELD: after
         * a recheck, hold_error has the reason; -ENOENT; -errno */
        int result;
        /* Of a path as scan_unit_at() returns it, else only the fields that are counted over
         * members. */
        ScanUnit unit;
        Owners owners;            /* of the members that are counted */
        uint64_t n_shipped_there; /* members that have been shipped before */
        IntakeWriters writers;
        bool contradicted;
        PinsSession *session; /* while it runs */
        bool has_link;        /* the current member has a link of ours already */
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
int probe_job_new(ProbeJob **ret, SourceSpec *terms, const char *relative);
ProbeJob *probe_job_free(ProbeJob *p);
DEFINE_CLEANUP(ProbeJob, probe_job_free);

/** One walk over a source: what is new or has changed. */
typedef struct ScanJob {
        SourceTask task;
        IntakeSource *source; /* for done() */
        SourceSpec *terms;
        UnitTable known; /* a copy */
        size_t max_found;
        ScanUnit *found;
        size_t n_found, n_allocated;
        uint64_t n_unreadable; /* directories that could not be read */
        char *unreadable;      /* one of them, escaped; owned */
        bool has_more;         /* there was more than max_found */
        int result;            /* 0; -ENOENT: the fixed part is not there */
        bool on_network;
        const char *fs_name; /* static; when on_network */
        uint64_t duration_usec;
} ScanJob;

int scan_job_new(ScanJob **ret, SourceSpec *terms, const UnitTable *known, size_t max_found);
ScanJob *scan_job_free(ScanJob *s);
DEFINE_CLEANUP(ScanJob, scan_job_free);

/* ---- the source ---- */

/* New bundles: accepted, until the scan that is running or queued is over, or not at all. */
typedef enum IntakeHold { INTAKE_OPEN, INTAKE_HOLDING, INTAKE_HELD, N_INTAKE_HOLDS } IntakeHold;

struct IntakeSource {
        IntakeContext *context;     /* borrowed */
        const ConfigSource *config; /* borrowed */
        SourceSpec *terms;
        DirWatch *watch; /* NULL: scans only */
        /* A pool each, so that a long scan delays no probe; one thread each, so that a hung mount
         * blocks no more. */
        WorkerPool *probes, *scans;
        ListLink tasks; /* that are out */
        size_t n_probes;
        char *note;      /* for status; owned */
        char *hold_note; /* why files are not held by links; owned */

        UnitTable table;
        size_t n_active; /* bundles being worked on */
        IntakeHold hold;
        sd_event_source *scan_timer;
        bool is_scanning, scan_wanted, has_scanned;
        bool was_missing, scan_failed;            /* the last one could not see everything */
        bool flush_wanted, flush_this_scan;       /* what it finds is flushed */
        bool in_transaction;                      /* rows are written but not yet durable */
        bool is_postponing, has_logged_postponed; /* bundles of this scan cannot be recorded */
        uint64_t scan_usec, n_unreadable;         /* of the last scan */

        Pending pending; /* paths to be probed */
        bool is_probing_path;
        uint64_t probe_not_before_usec; /* CLOCK_BOOTTIME */
        sd_event_source *probe_timer;

        Pending rechecks;                /* ids whose links wait for a recheck */
        char rechecking[BUNDLE_ID_SIZE]; /* whose recheck is out; "" */
        bool is_listing;                 /* links that a crash left */
        bool sweep_wanted; /* a recheck found something, and its unit is another bundle's for now */

        ListLink hook_hints;
        size_t n_hook_hints;
        sd_event_source *hints_timer;

        Pending attached; /* paths of units that may have attachments to be shipped */
        sd_event_source *attached_timer;
        ClockStep steady; /* checked by each sweep of attachments */
        uint64_t steady_usec;
};

/* ---- source.c ---- */

uint64_t intake_boot_usec(const IntakeSource *s);
uint64_t intake_realtime_usec(const IntakeSource *s);
/** @return a bundle's path below the fixed part, "" for the fixed part itself; borrowed */
const char *intake_relative(const IntakeSource *s, const char *path);
void intake_set_note(char **note, const char *text);

/** Queues a path to be probed. */
void intake_probe_path(IntakeSource *s, const char *relative);
/** Starts a probe, which is freed after done(). @return whether it was started (else it is freed)
 */
bool intake_probe_submit(IntakeSource *s, ProbeJob *p, void (*done)(IntakeSource *s, ProbeJob *p));
/** The id of a base's supplement. @return 0, -EOVERFLOW */
int intake_supplement_id(char ret[BUNDLE_ID_SIZE], const BundleRecord *base, unsigned number);
/** Starts the base's next supplement with what a probe has counted.
 * @return false: the operator has refused that very content */
bool intake_start_supplement(IntakeSource *s, ProbeJob *p, BundleRecord *base);

/* ---- settle.c ---- */

/** Probes a settling bundle now, or in so long. */
void intake_probe_bundle(Bundle *b);
void intake_probe_bundle_in(Bundle *b, uint64_t usec);
/** Sets rec.s3_prefix of a bundle that gets ready, by the notes of its unit that count: one that it
 * has stays only if one of them was granted it, and one that has none, and was never begun, gets
 * that of the first that was granted any. A supplement goes where its base went, or, where that
 * cannot be known any more, to the destination's own. */
void intake_set_s3_prefix(Store *store, Bundle *b);

/** A bundle of the unit has ended. */
void hook_hints_on_final(IntakeSource *s, const char *unit_path);
void hook_hints_done(IntakeSource *s);

/* ---- recheck_links.c ---- */

/** Releases the links that a crash left and nobody needs. Before any probe. */
void intake_sweep_pins(IntakeSource *s);
/** A bundle ended: what was in the way of a supplement may be gone. */
void intake_resweep_pins(IntakeSource *s);
/** Releases the links of a bundle. */
void intake_release_pins(IntakeSource *s, const char *id);
/** @return whether it is a supplement that a recheck has started: whatever is at the unit's place,
 * it is made of its links alone */
bool intake_is_from_links(const BundleRecord *rec);
