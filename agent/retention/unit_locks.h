/* Decides by lock files which node collects a unit of a source that nodes share, and takes over the
 * units of a node that no longer renews its locks (docs/DESIGN.md, "Sources that nodes share").
 * Locks exist only on network file systems. All paths are relative to the fixed part, all times are
 * the server's. Every function blocks: call it from a worker. Finding the units is left to
 * lib/neuron/scan.h, their links to agent/retention/links.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/retention/link_dirs.h"
#include "lib/base/cleanup.h"
#include "lib/neuron/record.h"
#include "lib/neuron/scan.h"

/* An agent renews its mark at this interval … */
#define UNIT_LOCKS_RENEW_USEC (60 * USEC_PER_SEC)
/* … and other agents take over what it holds when it has not renewed it for this long. */
#define UNIT_LOCKS_EXPIRE_USEC (10 * USEC_PER_MINUTE)

/* The locks of one source. Several threads may use it; a UnitLocksScan belongs to one thread. */
typedef struct UnitLocks UnitLocks;

/** @param link_dirs, fixed  borrowed for the object's life
 * @param source  the source's name: nodes whose sources have the same one share the locks
 * @return 0, -ENOMEM */
int unit_locks_new(UnitLocks **ret, LinkDirs *link_dirs, const char *fixed, SourceKind kind,
                   const char *source, const char *instance_id);
UnitLocks *unit_locks_free(UnitLocks *l);

/** Sets the callbacks of a scan by which it accepts other nodes' parts: only those that this agent
 * has taken over. The scan runs in the calling thread.
 * @param l  borrowed until the scan has ended */
void unit_locks_apply(UnitLocks *l, ScanSource *scan);

/* ---- a scan, or the probe of a path ---- */

typedef struct UnitLocksScan UnitLocksScan;

/** Renews this agent's mark, and opens the locks for one scan.
 * @param l  borrowed for the life of the scan
 * @param ret_note  a sentence, the caller's: why locks cannot be created or are not valid, and the
 * remedy; NULL: no fault
 * @return 0, also where no lock can be created: all units are this agent's then; -ENOMEM */
int unit_locks_scan_new(UnitLocksScan **ret, UnitLocks *l, char **ret_note);
UnitLocksScan *unit_locks_scan_free(UnitLocksScan *s);
DEFINE_CLEANUP(UnitLocksScan, unit_locks_scan_free);

/** As unit_locks_apply(), but the scan also sees the parts of nodes that no longer renew their
 * mark.
 * @param s  borrowed until the scan has ended */
void unit_locks_scan_apply(UnitLocksScan *s, ScanSource *scan);

typedef struct UnitPart {
        const char *relative;    /* the unit */
        const char *instance_id; /* in the names of these members; "": none */
        uint64_t digest;         /* of these members */
        uint64_t newest_usec;    /* their newest mtime or ctime */
} UnitPart;

/** Acquires the lock of a unit, or of another node's part of it.
 * @return 0: this agent has the lock, or none can be created; UNIT_LOCKS_E_OTHERS: a node that
 * renews its mark has it, or the server does not answer for now; UNIT_LOCKS_E_DONE: a node has
 * delivered these members; -ENOMEM */
enum { UNIT_LOCKS_E_OTHERS = 1, UNIT_LOCKS_E_DONE = 2 };
int unit_locks_request(UnitLocksScan *s, const UnitPart *part);

/* ---- without a scan ---- */

/** Marks as delivered what this agent has locked of a unit, so that no node takes it over. Without
 * the mark, another node may deliver the unit a second time once this one is dead.
 * @param digest  of all members that were delivered
 * @return 0; -errno: call it again later */
int unit_locks_mark_delivered(UnitLocks *l, const char *relative, uint64_t digest);

typedef struct UnitLocksHeld {
        uint64_t n_units;     /* not delivered yet */
        uint64_t oldest_usec; /* duration since the oldest of them was first seen */
        size_t n_nodes;       /* that hold a unit; set only in ret_others */
        /* Bundles that are held by links of nodes which no longer renew their mark; set only in
         * ret_others. */
        size_t n_dead_links;
} UnitLocksHeld;

/** Renews this agent's mark, publishes in it what this agent holds, and counts what other nodes
 * hold.
 * @param own  n_units and oldest_usec of this agent
 * @return 0; -ENOENT: no network file system; -errno */
int unit_locks_renew(UnitLocks *l, const UnitLocksHeld *own, UnitLocksHeld *ret_others);

/** Renews this agent's mark, a request that an NFS client does not answer from its cache.
 * @return whether the share is away for now: the mark was renewed before by this process, and
 * cannot be opened or renewed any more. A share that is only full or read-only is not away */
bool unit_locks_is_away(UnitLocks *l);
