/* A probe of a unit whose bundle is known. See unit_probe.c. */
#pragma once

#include "agent/intake/probe.h"
#include "agent/intake/unit_walk.h"

enum { UNIT_PROBE_E_AWAY = 1 };

typedef struct UnitProbe {
        /* result: 0; UNIT_PROBE_E_AWAY: with waits_for_share, members cannot be read, nor can this
         * agent's mark be renewed; -ENOENT: the unit is gone, and no link holds a member of it;
         * -errno */
        IntakeProbe probe;
        UnitWalk walk; /* with `hold`, members are held for the bundle; else they are compared
                          with its links only */
        char bundle_id[BUNDLE_ID_SIZE];
        uid_t uid;            /* of the unit, as its links remember it */
        bool links_only;      /* whatever is at the unit's place now is ignored */
        bool waits_for_share; /* members that cannot be read while it is away are not left out */
        uint64_t seen_digest; /* not read here: of the unit, when its change was found */

        bool lives_on;   /* with links_only: each of the links' files has another name, too */
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
