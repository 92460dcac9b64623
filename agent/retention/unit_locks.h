/* Which node collects a unit of a source that nodes share: locks beside the units, and how long a
 * node that does not renew them keeps them (docs/DESIGN.md, "Sources that nodes share"). Only on
 * network file systems; all paths are relative to the fixed part, all times are the server's.
 * Blocking: from a worker. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/retention/pins.h"
#include "lib/base/cleanup.h"
#include "lib/neuron/record.h"
#include "lib/neuron/scan.h"

/* An agent renews its mark so often … */
#define UNIT_LOCKS_BEAT_USEC (60 * USEC_PER_SEC)
/* … and what it holds is taken over when it has not done so for this long. */
#define UNIT_LOCKS_DEAD_USEC (10 * USEC_PER_MINUTE)

/* Of one source. But for functions of a UnitLocksScan, several threads may use it. */
typedef struct UnitLocks UnitLocks;

/** @param pins, fixed  borrowed for the object's life
 * @param source  the source's name: nodes whose sources have the same one share the locks
 * @return 0, -ENOMEM */
int unit_locks_new(UnitLocks **ret, Pins *pins, const char *fixed, SourceKind kind,
                   const char *source, const char *instance_id);
UnitLocks *unit_locks_free(UnitLocks *l);

/** Sets who may own the parts of other nodes in a scan of this thread: those that this agent has
 * taken over. */
void unit_locks_apply(UnitLocks *l, ScanSource *scan);

/* ---- a scan, or the probe of a path ---- */

typedef struct UnitLocksScan UnitLocksScan;

/** Renews this agent's mark.
 * @param ret_note  why locks cannot be made or do not count, and the remedy: a sentence of the
 * caller's; NULL: all is well
 * @return 0, also where no locks can be made: then all units are this agent's; -ENOMEM */
int unit_locks_scan_new(UnitLocksScan **ret, UnitLocks *l, char **ret_note);
UnitLocksScan *unit_locks_scan_free(UnitLocksScan *s);
DEFINE_CLEANUP(UnitLocksScan, unit_locks_scan_free);

/** As unit_locks_apply() for the thread of the scan, which also sees what dead nodes have left. */
void unit_locks_scan_apply(UnitLocksScan *s, ScanSource *scan);

typedef struct UnitPart {
        const char *relative;    /* the unit */
        const char *instance_id; /* that the names of these members carry; "": none */
        uint64_t digest;         /* of these members */
        uint64_t newest_usec;    /* their newest mtime or ctime */
} UnitPart;

/** Acquires the lock of a unit, or of another node's part of it.
 * @return 0: it is this agent's, or no lock can be made; UNIT_LOCKS_E_OTHERS: a node that works has
 * it; UNIT_LOCKS_E_DONE: it was delivered; -ENOMEM */
enum { UNIT_LOCKS_E_OTHERS = 1, UNIT_LOCKS_E_DONE = 2 };
int unit_locks_request(UnitLocksScan *s, const UnitPart *part);

/* ---- without a scan ---- */

/** Writes down that what this agent has locked of a unit is delivered, so that nobody takes it
 * over.
 * @param digest  of all members that were delivered. Best effort: where it fails, it may be
 * delivered twice */
void unit_locks_mark_delivered(UnitLocks *l, const char *relative, uint64_t digest);

typedef struct UnitLocksHeld {
        uint64_t n_units;     /* not delivered yet */
        uint64_t oldest_usec; /* how long the oldest has been known */
        size_t n_nodes;       /* that hold any; only of others */
        size_t n_dead_links; /* bundles of dead nodes that links of theirs still hold; as n_nodes */
} UnitLocksHeld;

/** Renews this agent's mark, tells others what it holds, and counts what they hold.
 * @param own  n_units, oldest_usec  @return 0, -errno */
int unit_locks_beat(UnitLocks *l, const UnitLocksHeld *own, UnitLocksHeld *ret_others);
