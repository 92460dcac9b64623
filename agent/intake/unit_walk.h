/* A walk over the members of a unit, or over our links to them. See unit_walk.c. */
#pragma once

#include "agent/intake/promised_files.h"
#include "agent/intake/rules.h"
#include "agent/retention/link_session.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "lib/neuron/scan.h"

#define UNIT_WALK_HELD_FILES_MAX 64

typedef enum UnitWalkHold {
        UNIT_WALK_COUNTS,      /* members are not held */
        UNIT_WALK_LINKS,       /* by links of ours; those that have one already are held */
        UNIT_WALK_DESCRIPTORS, /* a link was refused: by descriptors, the first few */
} UnitWalkHold;

typedef struct UnitWalk {
        /* ---- in ---- */
        const SourceSpec *spec; /* borrowed */
        const char *relative;   /* the unit, below the fixed part; borrowed */
        uint64_t *shipped;      /* sorted fingerprints of what was shipped of the unit: such members
                                   are only counted; owned */
        size_t n_shipped;
        PromisedFiles promised;
        LinkSession *session; /* of the bundle that members are linked for; borrowed */
        bool check_writers;   /* leases and headers too */
        UnitWalkHold hold;    /* COUNTS or LINKS; out: how they are held, each of them if LINKS */
        /* A directory with another inode or another birth in the unit's place is another unit; 0:
         * not compared. */
        uint64_t unit_ino, unit_born_usec;

        /* ---- out ---- */
        ScanUnit unit;            /* only the fields that are counted over members */
        FileOwners owners;        /* of the members that are counted */
        NamedPids pids;           /* in the members' names */
        uint64_t n_shipped_there; /* members that have been shipped before */
        uint64_t n_linked;        /* members that have a link of ours */
        HeldFiles held;           /* where links were refused */
        char *hold_error;         /* why links could not be made, and the remedy; owned */
        IntakeWriters writers;
        bool contradicted; /* a member's own header announces more than is there */
        bool met_another;  /* another unit is in the unit's place */

        bool has_link; /* while it runs: the current member has a link of ours */
} UnitWalk;

/** Walks the unit at its place. What an earlier walk has counted is forgotten.
 * @return 0; -ENOENT: the unit is gone, or another one is there; -errno */
int unit_walk_members(UnitWalk *w);
/** Walks our links of a bundle instead. @return 0; -ENOENT: there are none; -errno */
int unit_walk_links(UnitWalk *w, const char *bundle_id);
void unit_walk_done(UnitWalk *w);

/** @param unit_fd  of what is at the unit's place @param ino  0: not compared
 * @return whether it was removed and created again under its name: that one gets a bundle of its
 * own when this one has ended, and no file of it belongs to this one. It often gets the old one's
 * inode number, so that births are compared as well. */
bool unit_walk_is_another(int unit_fd, uint64_t ino, uint64_t born_usec);
