/* A probe of a unit whose bundle is known. See unit_probe.c. */
#pragma once

#include "agent/intake/probe.h"
#include "agent/intake/unit_walk.h"

typedef struct UnitProbe {
        IntakeProbe probe; /* result: 0; -ENOENT: the unit is gone, and no link holds a member of
                              it; -errno */
        UnitWalk walk;     /* with `hold`, members are held for the bundle; else they are compared
                              with its links only */
        char bundle_id[BUNDLE_ID_SIZE];
        uid_t uid;            /* of the unit, as its links remember it */
        bool links_only;      /* whatever is at the unit's place now is ignored */
        uint64_t seen_digest; /* not read here: of the unit, when its change was found */

        bool from_links; /* the unit is gone from its place: the facts are those of our links */
        bool moved; /* with -ENOENT: all its linked files are in other units of this source now */
        bool process_seen;
        uint64_t process_start;
} UnitProbe;

/** @return 0, -ENOMEM */
int unit_probe_new(UnitProbe **ret, SourceSpec *spec, const char *relative, const char *bundle_id);
UnitProbe *unit_probe_free(UnitProbe *p);
DEFINE_CLEANUP(UnitProbe, unit_probe_free);

static inline UnitProbe *unit_probe_of(IntakeProbe *p) {
        return CONTAINER_OF(p, UnitProbe, probe);
}
