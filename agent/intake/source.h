/* A source, as the modules of this folder see it. Private: other folders include intake.h.
 *
 * Each part of the struct is written by the one module that its comment names; others read it. */
#pragma once

#include "agent/intake/intake.h"
#include "agent/intake/path_queue.h"
#include "agent/intake/unit_table.h"
#include "agent/retention/unit_locks.h"
#include "lib/base/clock.h"
#include "lib/event/dirwatch.h"

/* A unit that changes all the time is probed no more often than this, and units of one owner never
 * for more than a fifth of the time. */
#define REPROBE_USEC (100 * USEC_PER_MSEC)
#define REPROBE_SHARE 4

/* Paths that are probed at a time, of one owner one: nobody waits for what another has put there.
 */
#define PATH_THREADS 2

typedef struct ScanJob ScanJob;

/* New bundles: accepted, until the scan that is running or queued is over, or not at all. */
typedef enum IntakeHold { INTAKE_OPEN, INTAKE_HOLDING, INTAKE_HELD, N_INTAKE_HOLDS } IntakeHold;

/* IDLE: what is known of the units is being read, or the source is held. WALKING: a job is in the
 * thread. HANDLING: what it found is handled, in slices. WAITING: for the timer. */
typedef enum SourceScanState {
        SOURCE_SCAN_IDLE,
        SOURCE_SCAN_WALKING,
        SOURCE_SCAN_HANDLING,
        SOURCE_SCAN_WAITING,
        N_SOURCE_SCAN_STATES,
} SourceScanState;

typedef enum SourceScanResult {
        SOURCE_SCAN_READ,    /* all, or there was none yet */
        SOURCE_SCAN_MISSING, /* the fixed part is not there */
        SOURCE_SCAN_UNREAD,  /* something, or all, could not be read */
} SourceScanResult;

/* source_scan.c's. */
typedef struct SourceScan {
        SourceScanState state; /* by set_state() alone */
        WorkerPool *pool;      /* one thread: a hung mount holds up nothing else */
        sd_event_source *timer;
        ScanJob *found; /* HANDLING: what was found */
        sd_event_source *slice_timer;
        bool is_wanted;                    /* another scan, when this one is over */
        bool has_completed;                /* the first one is over */
        bool flush_next, flush;            /* what the next one finds, and this one, is flushed */
        SourceScanResult result;           /* of the last one */
        uint64_t start_usec;               /* of the one that runs, CLOCK_BOOTTIME */
        uint64_t took_usec, n_unreadable;  /* of the last one */
        uint64_t n_left_out[N_SCAN_SKIPS]; /* of the last one, in no bundle */
        char *root_note;                   /* scan_check_root(); owned */
        char *unseen; /* why the last one could not read all of it; owned; NULL: it did */
} SourceScan;

/* new_bundle.c's */
typedef struct NewBundles {
        bool in_transaction; /* rows are written but not yet durable */
        bool is_postponing;  /* since the last walk, bundles could not be recorded */
        bool has_logged_postponed;
} NewBundles;

/* source_watch.c's */
typedef struct SourceWatch {
        DirWatch *dirwatch; /* NULL: scans only */
        char *note;         /* why there is none, or it is not complete; owned */
} SourceWatch;

/* path_probes.c's */
typedef struct PathProbes {
        WorkerPool *pool; /* PATH_THREADS: neither a long scan nor a probe of many files delays
                             the discovery of others */
        PathQueue queue;  /* paths that wait */
        Bound probing;    /* whose paths are being probed */
        Bound rests;      /* microseconds from now in which no path of an owner is probed */
        sd_event_source *timer;
} PathProbes;

/* admission.c's: what was refused since the last scan began. */
typedef struct SourceAdmission {
        bool has_late;       /* units wait for a later scan */
        BoundAnswer refused; /* why, if it was for lack of space … */
        Owner owner;         /* … and whose */
} SourceAdmission;

/* ended_links.c's */
typedef struct EndedLinks {
        PathQueue rechecks;              /* ids whose links wait for a recheck */
        char rechecking[BUNDLE_ID_SIZE]; /* whose recheck is out; "" */
        size_t n_releases;               /* of links, that are out */
} EndedLinks;

/* link_sweep.c's; ended_links.c sets is_wanted: a recheck found something, and its unit is another
 * bundle's for now. */
typedef struct LinkSweep {
        bool is_running, is_wanted;
        char *unlisted; /* a note of links without a row; owned; NULL: none */
} LinkSweep;

/* lock_renewal.c's: of a source that nodes share. */
typedef struct UnmarkedDelivery {
        char *relative; /* of the unit; owned */
        uint64_t digest;
} UnmarkedDelivery;

typedef struct LockRenewal {
        WorkerPool *pool; /* NULL until a scan has found that nodes share it */
        sd_event_source *timer;
        bool is_running;
        size_t n_marks;             /* of deliveries, that the pool is writing */
        UnmarkedDelivery *unmarked; /* marks that could not be written: the next renewal tries them
                                       again */
        size_t n_unmarked;
        bool has_logged_unmarked; /* since a mark was last written */
        UnitLocksHeld others;     /* what other nodes held at the last renewal */
        char *note;               /* unit_locks_scan_new(), set by source_scan.c; owned */
} LockRenewal;

struct IntakeSource {
        /* intake.c's */
        IntakeContext *context;     /* borrowed */
        const ConfigSource *config; /* borrowed */
        SourceSpec *spec;
        sd_event_source *load_timer; /* NULL: all that is known is in the table */
        char *loaded_path;           /* that was last; owned */
        struct {                     /* what lower modules request of higher ones */
                void (*probe_bundle)(Bundle *b);
                void (*start_scan)(IntakeSource *s);
                void (*arm_scan)(IntakeSource *s);
        } calls;

        /* source.c's */
        ListLink tasks; /* that are out */
        size_t n_probes;
        WorkerPool *probes; /* one thread: of units, and of links */
        char *hold_note;    /* why files are not held by links; owned */
        UnitTable table;    /* what was last seen at each unit's path; a scan replaces it */

        IntakeHold hold; /* source_scan.c's */
        SourceScan scan;
        NewBundles rows;
        SourceWatch watch;
        PathProbes paths;
        SourceAdmission admission;
        EndedLinks links;
        LinkSweep sweep;
        LockRenewal renewal;
        char history_id[BUNDLE_ID_SIZE]; /* history.c's: the next scan checks the rows after it;
                                            "" = from the oldest on */
};

uint64_t source_boot_usec(const IntakeSource *s);
uint64_t source_realtime_usec(const IntakeSource *s);
/** @param note  owned; freed and replaced by a copy @param text  NULL: none */
void source_set_note(char **note, const char *text);
/** @return absolute, the caller's; NULL without memory */
char *source_unit_path(const IntakeSource *s, const char *relative);
/** Remembers what was seen at a unit's path. */
void source_remember(IntakeSource *s, const char *relative, uint64_t digest);
/** Reports why files cannot be held by links, when that changes. @param error  NULL: they can */
void source_report_hold_error(IntakeSource *s, const char *error);

/** Runs a task in a thread of the pool. @return 0, or -errno: it stays the caller's */
int source_submit(IntakeSource *s, WorkerPool *pool, SourceTask *t);

/** Moves the unit of a bundle to a state. */
void source_set_unit_state(Bundle *b, UnitState to);

static inline bool source_is_probing(const Bundle *b) {
        return b->unit.state == UNIT_PROBING || b->unit.state == UNIT_PROBING_AGAIN;
}

/** Probes the unit of a bundle now, or when the probe that runs has ended; as its state requires.
 */
void source_probe_bundle(Bundle *b);
void source_probe_bundle_in(Bundle *b, uint64_t usec);

static inline Owner owner_of_uid(uint64_t uid) {
        return (Owner){ .uid = (uid_t)uid };
}
