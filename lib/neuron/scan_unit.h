/* One unit looked at: its members walked once and summed up. Private to the scan. */
#pragma once

#include <dirent.h>
#include <stdbool.h>

#include "lib/neuron/scan.h"
#include "lib/neuron/unit.h"

typedef struct UnitPlace {
        const ScanSource *source;
        bool on_network;
        const char *relative; /* the unit's path */
        bool is_file, loose;
} UnitPlace;

/** Judges the i-th component of a path below the fixed part, a directory's name, as far as it names
 * an instance. */
UnitOwner scan_component_owner(const ScanSource *s, bool on_network, size_t i,
                               const char *component);

/** Walks the unit and fills *ret, which is scan_unit_done() by the caller, also after a failure.
 * @param dir  as for scan_walk_members()
 * @return 0, also with no members; UNIT_E_FOREIGN: its path names another instance, nothing was
 * walked; -ENOENT: the file is gone */
enum { UNIT_E_FOREIGN = 1 };
int scan_unit_fill(const UnitPlace *place, DIR *dir, ScanUnit *ret);
