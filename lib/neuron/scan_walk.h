/* The walk over one unit's members, from descriptors that are open already. Private to the scan. */
#pragma once

#include <dirent.h>
#include <stdbool.h>

#include "lib/neuron/scan.h"

/** As scan_members().
 * @param dir  the unit's directory, not yet read from; for a file unit the directory it lies in.
 * Borrowed */
int scan_walk_members(const ScanWalk *w, bool on_network, DIR *dir);

/** Opens the unit's directory, for a file unit the one it lies in. */
int scan_open_unit(const ScanWalk *w, int fixed_fd, DIR **ret);

/** Opens where the scan starts: the fixed part or what stands for it. */
int scan_open_start(const ScanSource *s);
