/* A probe of a unit whose bundle is known. See unit_probe.c. */
#pragma once

#include "agent/intake/probe.h"
#include "agent/intake/unit_walk.h"

enum { UNIT_PROBE_E_AWAY = 1 };

typedef enum UnitPlace {
        UNIT_AT_ITS_PLACE,           /* with -ENOENT: it is gone, and was not to be held */
        UNIT_IN_LINKS,               /* gone from its place: the facts are those of our links */
        UNIT_IN_LINKS_AND_ELSEWHERE, /* with links_only: and each of their files has another name */
        UNIT_RENAMED, /* with -ENOENT: all its linked files are in other units of this source */
} UnitPlace;

typedef struct UnitProbe {
        /* result: 0; UNIT_PROBE_E_AWAY: with waits_for_share, members cannot be read, nor can this
         * agent's mark be renewed; -ENOENT: the unit is gone, and no link holds a member of it;
         * -errno */
        IntakeProbe probe;
        UnitWalk walk; /* UNIT_WALK_COUNTS: members are only compared with the bundle's links */
        char bundle_id[BUNDLE_ID_SIZE];
        uid_t uid;            /* of the unit, as its links remember it */
        bool links_only;      /* whatever is at the unit's place now is ignored */
        bool waits_for_share; /* members that cannot be read while it is away are not left out */
        uint64_t seen_digest; /* not read here: of the unit, when its change was found */
        uint64_t begun_boot_usec; /* not read here: when the probe was made */

        UnitPlace place;     /* where it was found */
        UnitProcess process; /* in: that an earlier probe has seen alive; out: or this one */
        bool process_gone;   /* it is not any more, and was not before the walk began: then writers
                                are checked */
} UnitProbe;

/** @return 0, -ENOMEM */
int unit_probe_new(UnitProbe **ret, SourceSpec *spec, const char *relative, const char *bundle_id);
UnitProbe *unit_probe_free(UnitProbe *p);
DEFINE_CLEANUP(UnitProbe, unit_probe_free);

static inline UnitProbe *unit_probe_of(IntakeProbe *p) {
        return CONTAINER_OF(p, UnitProbe, probe);
}
