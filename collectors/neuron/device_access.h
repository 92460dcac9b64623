/* Whether a Neuron device may be opened. */
#pragma once

#include <stdbool.h>

#include "collectors/runner/collector.h"

/** @param ret_why  static: a sentence, where it is one
 * @return whether this node is, or may be, part of an UltraServer */
bool device_access_is_ultraserver(const char *sysfs_root, const char **ret_why);

typedef enum DeviceHeld {
        DEVICE_NOT_HELD,
        DEVICE_HELD,
        DEVICE_HELD_UNKNOWN, /* not every process could be inspected */
} DeviceHeld;

/** Searches for a process that uses a device through the runtime. May wait (procfs.h), so only in a
 * child. */
DeviceHeld device_access_find_holder(const CollectRequest *request);
