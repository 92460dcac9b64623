/* What the files of intake share: intake.c (events, scans, life), intake_discover.c (from a path to a bundle),
 * intake_settle.c (from a bundle to READY), intake_pins.c (links let go), intake_last.c (what they hold beyond what was shipped). */
#pragma once

#include "agent/intake/intake.h"
#include "agent/intake/rules.h"
#include "agent/store/owners.h"
#include "lib/event/dirwatch.h"

/* A unit that changes all the time is looked at no more often than this, and never for more than a fifth of the time. */
#define LOOK_AGAIN_USEC (100 * USEC_PER_MSEC)
#define LOOK_SHARE 4

/* ---- tables.c ---- */

/* What was last seen at each unit's path, 16 bytes a unit: so that a scan reports only what is new or has changed. */
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
/** Adds a copy; nothing when it is there. @return 0, -ENOMEM, -E2BIG (everything was dropped: scan instead) */
int pending_add(Pending *p, const char *path);
/** Removes the oldest. @return the caller's, never NULL when not empty */
char *pending_pop(Pending *p);
bool pending_has(const Pending *p, const char *path);
bool pending_is_empty(const Pending *p);
void pending_done(Pending *p);

/* ---- probe.c: what is done in the threads of a source. It decides nothing. ---- */

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
        SourceTask task;
        IntakeSource *source;                              /* for done() */
        void (*done)(IntakeSource *s, struct ProbeJob *p); /* on the loop; it is freed afterwards */
        SourceTerms *terms;                                /* a reference */
        char *relative; /* what to look at, below the fixed part; owned */
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
        char supplement_id
                [BUNDLE_ID_SIZE]; /* "" = no last look. Else a supplement to be, of `base_id`: what the links of bundle_id hold and was
                                      not shipped is linked for it as well */
        char base_id[BUNDLE_ID_SIZE];
        bool releases_links; /* after a last look: of the links of bundle_id */

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

/** One walk over a whole source: what is new or has changed. */
typedef struct ScanJob {
        SourceTask task;
        IntakeSource *source; /* for done() */
        SourceTerms *terms;
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
        uint64_t took_usec;
} ScanJob;

int scan_job_new(ScanJob **ret, SourceTerms *terms, const UnitTable *known, size_t max_found);
ScanJob *scan_job_free(ScanJob *s);
DEFINE_CLEANUP(ScanJob, scan_job_free);

/* ---- the source ---- */

/* New bundles: accepted, until the scan that is running or queued is over, or not at all. */
typedef enum IntakeHold { INTAKE_OPEN, INTAKE_HOLDING, INTAKE_HELD, N_INTAKE_HOLDS } IntakeHold;

struct IntakeSource {
        IntakeContext *context;     /* borrowed */
        const ConfigSource *config; /* borrowed */
        SourceTerms *terms;
        DirWatch *watch; /* NULL: scans only */
        WorkerPool *probes,
                *scans; /* apart, so that a long scan delays no look; one thread each, so that a hung mount takes no more */
        UnitTable table;
        bool is_scanning, scan_wanted, has_scanned, was_missing;
        bool flush_wanted, flush_this_scan; /* what it finds is flushed */
        bool in_transaction;                /* rows are written but not yet durable */
        bool scan_failed;                   /* the last one could not see everything */
        bool puts_off, said_put_off;        /* bundles of this one cannot be noted */
        IntakeHold hold;
        size_t n_active; /* bundles being worked on */
        sd_event_source *scan_timer, *look_timer;
        Pending pending; /* paths to be looked at for the first time */
        bool looking;
        Pending rechecks;                /* ids whose links wait for a recheck */
        char rechecking[BUNDLE_ID_SIZE]; /* whose recheck is out; "" */
        bool is_listing;                 /* what a crash left */
        bool sweep_wanted; /* a last look found something, and its unit is another bundle's for now */
        uint64_t look_not_before_usec; /* CLOCK_BOOTTIME */
        ListLink tasks;                /* that are out */
        size_t n_probes;
        uint64_t scan_usec, n_unreadable; /* of the last scan */
        ListLink unit_notes;              /* what hooks say of units: intake_notes.c */
        size_t n_unit_notes;
        sd_event_source *notes_timer;
        Pending attached; /* paths of units that may have something to be shipped: intake_attached.c */
        sd_event_source *attached_timer;
        ClockSteady steady; /* looked at by each sweep */
        uint64_t steady_usec;
        char *note;      /* said in status; owned */
        char *hold_note; /* why sources are not held by links; owned */
};

uint64_t intake_boot_usec(const IntakeSource *s);
uint64_t intake_realtime_usec(const IntakeSource *s);
/** @return a bundle's path below the fixed part, "" for the fixed part itself; borrowed */
const char *intake_relative(const IntakeSource *s, const char *path);
/** Notes what was last seen at a path, so that a scan does not report it again. */
void intake_remember(IntakeSource *s, const char *relative, uint64_t digest);
void intake_set_note(char **note, const char *text);
/** Says that n bundles could not be noted for an error of the store, and are left to a later scan; 0 = none. */
void intake_tell_put_off(IntakeSource *s, int error, size_t n);
void intake_start_scan(IntakeSource *s);

/** A unit was seen whose content may not be what was last known of its path. */
void intake_on_unit(IntakeSource *s, ScanUnit *u);
/** Queues a path for a first look. */
void intake_look_at_path(IntakeSource *s, const char *relative);
/** Hands a probe to the worker; done() frees it. @return whether it was taken (else it is freed) */
bool intake_probe_submit(IntakeSource *s, ProbeJob *p, void (*done)(IntakeSource *s, ProbeJob *p));

/* intake_notes.c */
/** Adds to the facts what hooks say of a unit. */
void intake_note_facts(IntakeSource *s, const Bundle *b, IntakeFacts *facts);
/** Says, once, whose notes are not heard about a bundle that gets ready. */
void intake_notes_tell_unheard(IntakeSource *s, const Bundle *b);
/** Gives a probe what was promised and has not been seen. @return 0, -ENOMEM */
int intake_notes_ask(IntakeSource *s, const char *unit_path, ProbeJob *p);
/** Takes from a probe which of them it has seen. */
void intake_notes_take(IntakeSource *s, const char *unit_path, const ProbeJob *p);
/** Tells what has not been seen, one by one; borrowed for the call. */
void intake_notes_missing(IntakeSource *s, const Bundle *b,
                          void (*on_promise)(const Promise *p, void *userdata), void *userdata);
/** A bundle is taken over by a start: whether hooks have told of its unit the store knows. */
void intake_notes_of_start(IntakeSource *s, const Bundle *b);
/** A bundle of the unit has ended. */
void intake_notes_on_final(IntakeSource *s, const char *unit_path);
void intake_notes_done(IntakeSource *s);

/* intake_attached.c */
/** A bundle ended: what it was given is let go, where it is over; what came later begins a supplement. */
void intake_attached_on_final(IntakeSource *s, const Bundle *b);
/** What waits in the state directory, or was left there: after a start, and with each scan. */
void intake_attached_sweep(IntakeSource *s);
void intake_attached_done(IntakeSource *s);
/** Another unit is at the path of an earlier bundle: what waits was attached to the earlier one, and is let go. */
void intake_attached_renewed(IntakeSource *s, const char *path);
/** Begins a supplement of what is attached alone. */
void intake_begin_of_attachments(IntakeSource *s, BundleRecord *base, size_t n, uint64_t bytes);

/** Looks at a settling bundle now. */
void intake_look_at(Bundle *b);
void intake_look_again_in(Bundle *b, uint64_t usec);

/** Removes the links of bundles that nobody needs any more: what a crash left. Before any probe. */
void intake_sweep_pins(IntakeSource *s);
/** Lets go of a bundle's links. */
void intake_release_pins(IntakeSource *s, const char *id);

/** The id of a base's supplement. @return 0, -EOVERFLOW */
int intake_supplement_id(char ret[BUNDLE_ID_SIZE], const BundleRecord *base, unsigned number);
/** Begins the base's next supplement with what a probe has counted, unless the operator has said no to that very content.
 * @return whether he has not */
bool intake_begin_supplement(IntakeSource *s, ProbeJob *p, BundleRecord *base);

/** @param rec  NULL: no row is there  @return whether intake_look_last() is for these links, that nobody works on */
bool intake_must_recheck(const IntakeSource *s, const BundleRecord *rec, const char *id);
/** @return whether it is a supplement that a last look has begun: whatever is at the unit's place, it is made of its links alone */
bool intake_is_of_links(const BundleRecord *rec);
/** A bundle ended: whoever stood in the way of a supplement may be gone. */
void intake_sweep_pins_again(IntakeSource *s);

/* settle.c */
/** Sets rec.s3_prefix of a bundle that gets ready, by the notes of its unit that count: one that it has stays only if one of them was
 * granted it, and one that has none, and was never begun, gets that of the first that was granted any. A supplement goes where its base
 * went, or, where that cannot be known any more, to the destination's own. */
void intake_set_s3_prefix(Store *store, Bundle *b);
