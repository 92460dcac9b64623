/* From the tree of a source to bundles that are READY. README.md draws how; other folders include
 * only this header. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/api/view.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "config/config.h"
#include "lib/base/bound.h"

/* At most so many bundles are worked on at a time, and of one owner half of them; other units have
 * no row and no links until a later scan finds them again. */
#define INTAKE_ACTIVE_MAX 20000
/* Beyond those, units that hooks have named. */
#define INTAKE_HOOK_UNITS_MAX 2000
#define INTAKE_HOOK_UNITS_MAX_OF_OWNER 500
/* So many new units of one owner are accepted at once, and then in a minute. */
#define INTAKE_NEW_MAX 1000
/* Rows of bundles that have ended are kept, up to so many, when their units are gone. */
#define INTAKE_HISTORY_MAX 100000
/* At most so many directories are watched; in the others the scan finds what is new. */
#define INTAKE_WATCHED_MAX 100000

typedef struct IntakeContext { /* borrowed by the sources */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        const char *instance_id, *proc_root;
        const char *const *trusted_uids; /* agreement.trusted_uids, NULL at the end; NULL: none */
        const char *link_list;           /* the file of retention/link_list.h; NULL: none */
        uint64_t hook_deadline_usec;     /* hook.deadline: the longest that a hook may run */
        /* A bundle is complete, or labelled: ship it. */
        void (*on_ready)(Bundle *b, void *userdata);
        /* n members were left out; for the metric. */
        void (*on_discard)(const char *reason, uint64_t n, void *userdata);
        /* n notes of one user about a unit are ignored, because it has files of other users. NULL:
         * not reported */
        void (*on_unheard)(uint64_t n, void *userdata);
        /* Sets what a new row says of a unit that the agent itself has made: its kind, owner and
         * what it is about, and its deliveries if they are not all destinations of the source.
         * NULL: there are no such units */
        void (*describe)(const IntakeSource *s, BundleRecord *rec, void *userdata);
        /* A bundle was found: its row is there, though perhaps not yet durable. NULL: not reported
         */
        void (*on_found)(Bundle *b, void *userdata);
        /* Nothing that the links of this bundle hold is needed any more. NULL: not reported */
        void (*on_links_rechecked)(IntakeSource *s, const char *id, void *userdata);
        void *userdata;
        /* Bundles that are worked on, of all sources, by the owner of their units, and beyond
         * those, bundles of units that hooks have named */
        Bound active;     /* .max = 0: INTAKE_ACTIVE_MAX */
        Bound hook_units; /* .max = 0: INTAKE_HOOK_UNITS_MAX */
        /* Where links are refused, files that are held by descriptors, by the owner of their unit;
         * .max = 0: a quarter of those that the process may have */
        Bound held;
        Bound new_units;       /* lately; .max = 0: INTAKE_NEW_MAX of each owner in a minute */
        bool takes_all;        /* new units never wait */
        uint64_t history_usec; /* retention.history; 0: no row is deleted */
        ListLink hook_hints;   /* of all sources, oldest first; initialised with `hints` */
        Bound hints;           /* by the owner of the hook; .max = 0: there are none yet */
        Bound root_hints;      /* of root outside of containers, and of the agent */
        Bound watched;         /* directories, by their owner; .max = 0: INTAKE_WATCHED_MAX */
} IntakeContext;

/** Starts watching and scanning. @param config  borrowed for the source's life */
int intake_source_new(IntakeSource **ret, IntakeContext *context, const ConfigSource *config);

/** Continues with a configuration in which this source is unchanged. */
void intake_source_rebind(IntakeSource *s, const ConfigSource *config);

/** Stops it. Bundles that belong to it lose their source (b->source = NULL). */
IntakeSource *intake_source_free(IntakeSource *s);

/** Continues with a bundle of this source that is already known, after a start or a reload. */
void intake_source_resume_bundle(IntakeSource *s, Bundle *b);

/** Scans now. @param flush  bundles that settle, and units that the scan finds, are accepted as if
 * `settle` were over */
void intake_source_flush(IntakeSource *s, bool flush);
/** @param on  accepts no new bundles after one more scan; known bundles continue. Else accepts new
 * ones again */
void intake_source_hold(IntakeSource *s, bool on);
/** Probes a path below the source now: something may be there. */
void intake_source_probe_path(IntakeSource *s, const char *path);
/** Accepts one settling bundle as if `settle` were over. */
void intake_flush_bundle(Bundle *b);

/** A bundle of this source has ended: its links are released or rechecked, and what came later is
 * probed. */
void intake_source_on_final(IntakeSource *s, Bundle *b);

/** Sets the bundle back to SETTLING: it changed while it was being read. */
void intake_resettle(Bundle *b, const char *why);

/** Runs a task in the thread of the source, in turn with its probes. @return 0, or -errno: it stays
 * the caller's */
int intake_source_submit(IntakeSource *s, SourceTask *t);

/** Rechecks the links of a delivered bundle, which may hold files that not every destination has:
 * starts a supplement with those, and releases the other links unless the row marks them as held.
 * When that fails, the links stay until the next start. @param id  of a delivered bundle; or of a
 * supplement without a row, because a crash came before it had one */
void intake_recheck_links(IntakeSource *s, const char *id);
/** @return whether a recheck of this bundle waits or runs, or the sweep of links that a crash left
 * is not over. Until then no link of the bundle may be removed. */
bool intake_is_rechecking_links(const IntakeSource *s, const char *id);

/* ---- hints of hooks about a unit of this source. They make intake probe at once, wait for
 * announced files, and accept a shorter quiet. Hints about a unit that is not there yet are
 * remembered for some minutes.
 * @param unit_path  absolute, at or below the fixed part of the source; others are ignored
 * @param o          of the hook, by note_sender(): its hints count only while all files of the unit
 * are of that user or root */

#define INTAKE_PROMISED_MAX 512 /* files, of one unit */

/** A hook is running: the unit is probed now, and is not complete before the hook has ended or its
 * deadline has passed. */
void intake_source_on_hook_started(IntakeSource *s, const char *unit_path, const Owner *o);
/** A hook has ended: all files that it was to write are there, or never will be. */
void intake_source_on_hook_finished(IntakeSource *s, const char *unit_path, const Owner *o);
/** A hook that is about to finish has promised a file of this name, anywhere in the unit. While it
 * is missing the unit waits for all of `settle`, and is then shipped labelled. At most
 * INTAKE_PROMISED_MAX of a unit are remembered. */
void intake_source_expect_file(IntakeSource *s, const char *unit_path, const Owner *o,
                               const char *name);

/* ---- facts about a source ---- */

const ConfigSource *intake_source_config(const IntakeSource *s);
SourceSpec *intake_source_spec(const IntakeSource *s); /* borrowed */
/** Fills all but what retention knows. @return why evidence may be missed; borrowed; NULL */
const char *intake_source_view(const IntakeSource *s, SourceView *ret);
/** Whose the paths are that wait to be probed, for the view. */
const Bound *intake_source_paths(const IntakeSource *s);
/** @return whether its scan runs for much longer than the last one took, at least a minute: its
 * mount probably hangs */
bool intake_source_is_stalled(const IntakeSource *s);
/** @return why the last scan did not read all of the source or could not record all that it found,
 * and the remedy: a sentence, borrowed until the next scan. NULL: no fault, or the path does not
 * exist yet */
const char *intake_source_unseen(const IntakeSource *s);
/** @return whether the first scan is over, nothing waits to be probed and no link is being removed;
 * for --once */
bool intake_source_is_idle(const IntakeSource *s);
/** @return whether a thread has work: files are checked, links or files removed */
bool intake_source_is_busy(const IntakeSource *s);

/* How the reason of a VANISHED bundle begins whose files are there. */
#define INTAKE_NOTHING_TAKEN "no file of it may be collected"
