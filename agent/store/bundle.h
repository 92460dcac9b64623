/* The table of the bundles that are not final, in memory; each has a row in the store. Only this
 * module changes the state of a bundle: it checks the move, writes the row, logs and counts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/store/store.h"
#include "lib/base/bound.h"
#include "lib/base/clock.h"
#include "lib/base/list.h"
#include "lib/neuron/file_owners.h"
#include "lib/neuron/record.h"

typedef struct IntakeSource IntakeSource;

/** A member kept by its open descriptor, where links are refused. */
typedef struct HeldFile {
        char *path; /* relative to the unit, raw */
        int fd;
} HeldFile;

typedef struct HeldFiles {
        HeldFile *items;
        size_t n;
        Charge charge; /* of the owner of a bundle's files; zero for others than BundleUnit.held */
        bool all;      /* every member is in `items`: the bundle can be shipped from these alone */
} HeldFiles;

void held_files_done(HeldFiles *h);

/* The pids in the names of a bundle's files (`-pid-N-`), of the processes' own namespace. */
#define NAMED_PIDS_MAX 4096
typedef struct NamedPids { /* all zero = none */
        uint32_t *items;   /* ascending, each once */
        size_t n;
        bool is_cut; /* the bundle has more pids: a missing one may belong to it as well */
} NamedPids;

/** Adds a pid; sets is_cut for lack of memory, or beyond NAMED_PIDS_MAX. @param pid  -1: none */
void named_pids_add(NamedPids *p, int64_t pid);
bool named_pids_contain(const NamedPids *p, int64_t pid);
void named_pids_done(NamedPids *p);

/* What happened to one delivery since the start. */
#define BUNDLE_TRIES_MAX 8
typedef struct BundleTries {
        uint8_t n_away;      /* tries in a row that failed by the destination's fault */
        bool by_destination; /* the last one failed by the destination's fault */
        bool failed;         /* a try failed by the bundle's own fault */
        bool has_object;     /* the destination may have its object, without a manifest */
        /* One more than the bundles that the destination had accepted when it last refused this
         * one; 0: it never did */
        uint32_t refused_at;
} BundleTries;

/* What happens to the unit of a bundle: nothing is done before its row is durable; then it is
 * probed again and again, by the bundle's state (rec.state): SETTLING, until it is complete; READY
 * and SHIPPING, for late files. */
typedef enum UnitState {
        UNIT_WAITING,       /* for its timer, an event or a scan */
        UNIT_UNCOMMITTED,   /* the row stands in a transaction: nothing may act on it yet */
        UNIT_PROBING,       /* a probe is queued, or runs */
        UNIT_PROBING_AGAIN, /* so too, and another one follows it, for late files */
        N_UNIT_STATES
} UnitState;

/* Written by agent/intake: the unit, and what keeps its files. */
typedef struct BundleUnit {
        UnitState state;        /* source_set_unit_state() */
        sd_event_source *timer; /* the next probe */
        bool flush;             /* it is accepted as if `settle` were over */
        bool dirty;             /* it changed since the last probe started */
        bool is_replaced; /* another unit has its path, and is probed when this bundle has ended */
        HeldFiles held;
        Charge charge; /* for a place among those that are worked on (admission.c) */
        /* Late files (late_files.c): files that came while the bundle is READY or SHIPPING. Links
         * of the next supplement hold them (has_late: perhaps there are some, as there may be when
         * the bundle is of an earlier run, or was final), or they are not held. */
        bool has_late;
        uint64_t n_unheld;
        uint64_t seen_digest; /* when it was last seen (units.c) */
} BundleUnit;

/* A process that a unit's names tell; pid 0: none, or it was never seen alive. */
typedef struct UnitProcess {
        pid_t pid;
        uid_t uid;
        uint64_t start_ticks;
} UnitProcess;

/* Written by agent/intake, too: what the probes of the unit have found. */
typedef struct BundleFacts {
        FileOwners owners;          /* of its members; before the first probe: none */
        uint64_t quiet_usec;        /* how long its unit has not changed … */
        uint64_t checked_boot_usec; /* … until then */
        uint64_t seen_boot_usec;    /* when it was found */
        uint64_t check_took_usec;
        UnitProcess process;
        bool tolerant; /* it changed too often, or for longer than max_wait: it is shipped as it is
                        */
        bool has_logged_notes; /* that hints of hooks about it are ignored */
} BundleFacts;

/* Written by agent/retention: on disk, when the digest was this one; nothing measured yet: inodes
 * 0. */
typedef struct BundleUse {
        uint64_t bytes, inodes, digest;
} BundleUse;

/* Written by agent/delivery. */
typedef struct BundleShipping {
        uint64_t full_at_bytes;              /* its size when it did not fit on a destination */
        unsigned n_running;                  /* deliveries at work */
        BundleTries tries[BUNDLE_TRIES_MAX]; /* by the delivery's index; all beyond share the last
                                                one */
        bool has_target_state; /* a delivery has decided its state while others run: it is set when
                                  they have ended */
        BundleState wanted_state; /* its reason is rec.reason */
        bool cancel; /* requested while it is shipped: carried out when its workers have ended */
        bool has_logged_notes; /* that notes of hooks about it are ignored */
} BundleShipping;

/* A part of it is written by one module; others read it. `rec` is the row: each writes its own
 * fields of it, but the state, which bundle_set_state() moves. */
typedef struct Bundle {
        BundleRecord rec;
        ListLink link;        /* BundleTable.all, oldest first */
        ListLink queue_link;  /* of its source's queue, oldest first */
        ListLink write_link;  /* linked while its row could not be written */
        IntakeSource *source; /* NULL: the source is no longer configured */
        NamedPids pids;       /* bundle_set_pids() */
        BundleUnit unit;
        BundleFacts facts;
        BundleUse use;
        BundleShipping shipping;
        struct FailureUnit *failure_unit; /* of agent/failures; NULL: none yet */
} Bundle;

/* @return whether its members are not those of whatever is at the unit's place: that is not read */
static inline bool bundle_is_from_links(const BundleRecord *rec) {
        return rec->origin == ORIGIN_LINKS;
}

/* For modules other than intake's: its unit has more than what is delivered of it, and is probed
 * when the bundle has ended. */
static inline void bundle_mark_changed(Bundle *b) {
        b->unit.dirty = true;
}

/** Sets the pids in the names of its members: those of the last probe, then those that were
 * delivered. @param pids  taken over, and left empty */
void bundle_set_pids(Bundle *b, NamedPids *pids);

static inline bool bundle_is_underway(const Bundle *b) {
        return b->rec.state == BUNDLE_READY || b->rec.state == BUNDLE_SHIPPING;
}

typedef struct BundleTable BundleTable;

typedef struct BundleTableCallbacks {
        /* A bundle has reached a final state and its row says so; right before it is dropped from
         * memory and freed. */
        void (*on_final)(Bundle *b, void *userdata);
        /* A row could not be written: call bundle_table_retry() after a while. */
        void (*on_store_error)(void *userdata);
        /* @return whether the files of a delivered bundle are still read: it has links_held then,
         * as with bundle_table_keep_links(). NULL: they never are */
        bool (*is_read)(const char *id, void *userdata);
        void *userdata;
} BundleTableCallbacks;

/** Reads all active bundles from the store. */
int bundle_table_new(BundleTable **ret, Store *store, Clock *clock,
                     const BundleTableCallbacks *callbacks);
BundleTable *bundle_table_free(BundleTable *t);

/** Adds a new bundle: its row is durable when this returns, unless it stands in a transaction of
 * the store. The table takes over what rec owns.
 * @return 0, -EEXIST, -errno of the store */
int bundle_table_add(BundleTable *t, BundleRecord *rec, IntakeSource *source, Bundle **ret);

/** Takes a quarantined or delivered bundle back into memory, in its state. @return 0, -ENOENT,
 * -EEXIST (its unit is being worked on, or it is here) */
int bundle_table_revive(BundleTable *t, const char *id, IntakeSource *source, Bundle **ret);

/** Sets what a row says of the links of a bundle that is delivered: with `keep` it still has
 * links_held, and retention releases them later; else it does not. */
void bundle_table_keep_links(BundleTable *t, bool keep);

/** Ships a delivered bundle to further destinations, which are added to its row: it is READY, and
 * does not delay its unit's next bundle. If it ends before they have it (cancelled, vanished,
 * evicted, changed so that nothing is left), they are removed from the row and it is DELIVERED as
 * before.
 * @param destinations  that it lacks; ends in NULL
 * @return 0, -ENOENT, -EEXIST (it is here), … */
int bundle_table_redeliver(BundleTable *t, const char *id, IntakeSource *source,
                           char *const *destinations);
/** Changes where a bundle goes that is not delivered everywhere yet: adds deliveries to targets
 * that it has none to, and removes those that are not done and whose destination is not configured
 * any more. If nothing is left to do, the bundle is DELIVERED and leaves the table.
 * @param targets, known  end in NULL
 * @return 1: it has changed; 0; -errno */
int bundle_redirect(BundleTable *t, Bundle *b, char *const *targets, char *const *known);

/** Removes a bundle whose row was never committed, as if it had not been seen. */
void bundle_table_forget(BundleTable *t, Bundle *b);

Bundle *bundle_table_find(const BundleTable *t, const char *id);
Bundle *bundle_table_find_unit(const BundleTable *t, const char *source, const char *path);
ListLink *bundle_table_all(BundleTable *t);
size_t bundle_table_n(const BundleTable *t);

/* The bundles of one source, by its name, which need not be configured. The queue stays when it is
 * empty. */
typedef struct BundleQueue {
        char *source;
        ListLink bundles; /* Bundle.queue_link, oldest first */
} BundleQueue;
/** @return the queues, *ret_n of them; borrowed until a bundle is added */
const BundleQueue *bundle_table_queue_of(const BundleTable *t, const Bundle *b);
BundleQueue *const *bundle_table_queues(const BundleTable *t, size_t *ret_n);

/** Moves a bundle to a state, for a reason (a sentence, copied; may be NULL). A move that the state
 * table forbids is a defect: it is logged and refused with -EPERM. After a move to a final state
 * the bundle is gone: do not touch it. When the row cannot be written the move still happens in
 * memory; a final one is finished (on_final, freed) only once bundle_table_retry() has written it,
 * so that nothing is released that a crash would make undelivered again. */
int bundle_set_state(BundleTable *t, Bundle *b, BundleState to, const char *reason);
/**
 * @return whether a delivery was ever started: the row then has its object's name */
bool bundle_has_begun(const Bundle *b);

/** Moves one of its deliveries to a state; the row is the caller's to write. A move that the state
 * table forbids is a defect: it is logged and refused with -EPERM. */
int bundle_set_delivery_state(const Bundle *b, DeliveryRecord *delivery, DeliveryState to);

/** Writes the row after a change of other fields, not of one in a final state. A failure is logged
 * and remembered, see bundle_table_store_error(). */
void bundle_save(BundleTable *t, Bundle *b);

/** Writes what could not be written, and finishes the moves that waited for it. @return whether
 * nothing is left to write */
bool bundle_table_retry(BundleTable *t);

/** @return 0, or the negative errno that the store failed with, until everything is written again
 */
int bundle_table_store_error(const BundleTable *t);
/** @return a sentence on that, static; NULL = all is well */
const char *bundle_table_note(const BundleTable *t);

/** @return whether its row says what is known here; else bundle_table_retry() writes it */
bool bundle_is_written(const Bundle *b);

/** As store_counts(). Logs once when the sums differ. */
void bundle_table_counts(BundleTable *t, StoreCounts *ret);
/** As store_list(). The record stays the store's. */
int bundle_table_list(BundleTable *t, const StoreFilter *f,
                      int (*on_bundle)(const BundleRecord *b, void *userdata), void *userdata);
/** @return how many are here that are not in a final state (those are only waiting for their row)
 */
size_t bundle_table_n_open(const BundleTable *t);
