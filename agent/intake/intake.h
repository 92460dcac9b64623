/* From a source's tree to bundles that are ready: events and scans say where to look, probes look, intake_rules.h decides. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/hooknotes/attachments.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "config/config.h"

/* No more bundles of one source than this are worked on at a time; the rest is taken when these are through. */
#define INTAKE_ACTIVE_MAX 20000

typedef struct IntakeContext { /* borrowed by the sources */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        const char *instance_id, *proc_root;
        Attachments *attachments; /* NULL: nothing is ever attached */
        uint64_t
                hook_deadline_usec; /* hook.deadline: so long a hook may be at work, and a second more */
        void (*on_ready)(Bundle *b, void *userdata); /* it is whole, or labelled: ship it */
        /* What is at that path is another unit than the one of an earlier bundle. @param before_usec  CLOCK_REALTIME: what was said of the path until
         * then was said of the earlier one. NULL: nobody is told */
        void (*on_renewed)(const char *source, const char *unit_path, uint64_t before_usec,
                           void *userdata);
        void (*on_discard)(const char *reason, uint64_t n,
                           void *userdata); /* members left out, for the metric */
        /* n notes of one user were not heard about a unit, which has others' files. NULL: nobody is told */
        void (*on_unheard)(uint64_t n, void *userdata);
        /* A bundle was found: its row is there, though perhaps not yet durable. NULL: nobody is told */
        void (*on_found)(const Bundle *b, void *userdata);
        /* Nothing that the links of this bundle hold is needed any more. NULL: nobody is told */
        void (*on_links_rechecked)(IntakeSource *s, const char *id, void *userdata);
        void *userdata;
} IntakeContext;

typedef struct IntakeSourceView {
        bool is_watched, has_scanned;
        const char *note; /* borrowed; NULL */
        size_t n_watches, n_overflows;
        uint64_t scan_usec;
} IntakeSourceView;

/** Starts watching and scanning. @param config  borrowed for the source's life */
int intake_source_new(IntakeSource **ret, IntakeContext *context, const ConfigSource *config);

/** Goes on with a configuration that says the same about this source. */
void intake_source_rebind(IntakeSource *s, const ConfigSource *config);

/** Stops it. Bundles that belong to it lose their source (b->source = NULL). */
IntakeSource *intake_source_free(IntakeSource *s);

/** Takes over a bundle of this source that is already known (after a start or a reload), and goes on with it. */
void intake_source_adopt(IntakeSource *s, Bundle *b);

/** Scans now. @param flush  takes what settles, and what the scan finds, as if `settle` were over */
void intake_source_flush(IntakeSource *s, bool flush);
/** Stops taking new bundles: scans once more, and takes what is there; what is known goes on. Or takes new ones again. */
void intake_source_hold(IntakeSource *s, bool on);
/** Takes one settling bundle as if `settle` were over. */
void intake_flush_bundle(Bundle *b);

/** A bundle of this source came to an end: its pins go, and what came later is looked for. */
void intake_source_on_final(IntakeSource *s, Bundle *b);

/** Goes back to settling: it changed while it was being read. */
void intake_settle_again(Bundle *b, const char *why);

/** @return 0, or -errno: it stays the caller's */
int intake_source_submit(IntakeSource *s, SourceTask *e);

/** A delivered bundle's links may hold what not every destination has: looks, begins a supplement with that, and lets go of the others,
 * unless the row says that they are kept. Where it cannot be done the links stay, and the next start looks.
 * @param id  of a delivered bundle; or of a supplement that has no row: what was begun here and cut */
void intake_look_last(IntakeSource *s, const char *id);
/** @return whether such a look is still to come or underway for this bundle, or a start does not yet know for which ones it is. Until then
 * no link of it may go. */
bool intake_is_to_look_last(const IntakeSource *s, const char *id);
#define INTAKE_PROMISED_MAX 512 /* files, of one unit */

/* What the hook says of a unit of this source. Hints: they make intake look at once, wait for files that are announced, and take a shorter
 * quiet for an answer. What they say of a unit that is not there yet is remembered for some minutes.
 * @param unit_path  absolute, at or below the source's fixed part; others are let be
 * @param uid        of the hook: while the unit has a file of another user than that one and root, nothing of it counts (agent/store/owners.h) */
/** A hook is at work: the unit is looked for and looked at now, and not called whole before the hook is through, or its time is. */
void intake_source_note(IntakeSource *s, const char *unit_path, uid_t uid);
/** A hook is through: all files that it was to write are there, or never will be. */
void intake_source_note_finished(IntakeSource *s, const char *unit_path, uid_t uid);
/** One that is through had promised a file of this name, wherever in the unit it is, and has not said that there is none. Where it is not seen the unit
 * waits for the whole of `settle`, and then goes out labelled. Said before ..._finished(); at most INTAKE_PROMISED_MAX of a unit are remembered. */
void intake_source_promised(IntakeSource *s, const char *unit_path, uid_t uid, const char *name);
/** The same of a file that the agent has seen in the unit's container, and has not copied whole. @param path  in the unit; NULL: nobody can name it */
void intake_source_missing(IntakeSource *s, const char *unit_path, const char *path);
/** Something is still to be attached to the unit: when it is whole otherwise, that is waited for, for `settle`. Or nothing is any more. */
void intake_source_pending(IntakeSource *s, const char *unit_path, bool pending);
/** Something was attached to the unit. If its bundle is through, a supplement begins; else the bundle takes it, or the supplement after it. */
void intake_source_attached(IntakeSource *s, const char *unit_path);

const ConfigSource *intake_source_config(const IntakeSource *s);
SourceTerms *intake_source_terms(const IntakeSource *s); /* borrowed */
void intake_source_view(const IntakeSource *s, IntakeSourceView *ret);
/** @return whether the last scan saw the whole source and could note what it found */
bool intake_source_has_seen_all(const IntakeSource *s);
/** @return whether the first scan is over and nothing waits to be looked at: what --once asks */
bool intake_source_is_idle(const IntakeSource *s);

/* ---- what is attached to units of sources that are not configured any more: nobody scans them ---- */

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
