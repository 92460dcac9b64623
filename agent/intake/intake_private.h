/* What the files of intake share: intake.c (events, scans, life), intake_discover.c (from a path to a bundle),
 * intake_settle.c (from a bundle to READY), intake_pins.c (links let go), intake_last.c (what they hold beyond what was shipped). */
#pragma once

#include "agent/intake/intake.h"
#include "agent/intake/intake_pending.h"
#include "agent/intake/unit_table.h"
#include "lib/event/dirwatch.h"

/* A unit that changes all the time is looked at no more often than this, and never for more than a fifth of the time. */
#define LOOK_AGAIN_USEC (100 * USEC_PER_MSEC)
#define LOOK_SHARE 4

struct IntakeSource {
        IntakeContext *context;     /* borrowed */
        const ConfigSource *config; /* borrowed */
        SourceTerms *terms;
        DirWatch *watch; /* NULL: scans only */
        WorkerPool *probes,
                *scans; /* apart, so that a long scan delays no look; one thread each, so that a hung mount takes no more */
        UnitTable table;
        UnitTable table_later; /* changes while a scan has the table */
        ScanJob *scan;         /* running */
        bool scan_wanted, has_scanned, was_missing;
        bool flush_wanted, flush_this_scan; /* what it finds is flushed */
        bool in_transaction;                /* rows are written but not yet durable */
        bool scan_failed;                   /* the last one could not see everything */
        bool puts_off, said_put_off;        /* bundles of this one cannot be noted */
        bool hold_wanted,
                is_held; /* nothing new is taken: after the scan that is running or queued; already */
        size_t n_active; /* bundles being worked on */
        sd_event_source *scan_timer, *look_timer;
        Pending pending; /* paths to be looked at for the first time */
        bool looking;
        Pending last_looks; /* ids of links that wait for a last look; at most one of these is out */
        bool is_looking_last;
        char looking_last_at[BUNDLE_ID_SIZE]; /* whose look is out */
        bool is_listing;                      /* what a crash left */
        bool sweep_wanted; /* a last look found something, and its unit is another bundle's for now */
        uint64_t look_not_before_usec;    /* CLOCK_BOOTTIME */
        ListLink jobs, pin_jobs, errands; /* that are out */
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
bool intake_probe_submit(IntakeSource *s, ProbeJob *p, void (*done)(WorkJob *job));

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
bool intake_wants_last_look(const IntakeSource *s, const BundleRecord *rec, const char *id);
/** @return whether it is a supplement that a last look has begun: whatever is at the unit's place, it is made of its links alone */
bool intake_is_of_links(const BundleRecord *rec);
/** A bundle ended: whoever stood in the way of a supplement may be gone. */
void intake_look_last_again(IntakeSource *s);
