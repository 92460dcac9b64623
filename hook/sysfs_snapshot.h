/* The part of a snapshot that needs no agent and no rights: sysfs. */
#pragma once

#include <stdint.h>

#include "lib/base/strbuf.h"

/** Walks the devices' sysfs in a child and makes a document of it (schema
 * neuron-collectd/snapshot/1, docs/SNAPSHOT.md). What was read before time was over counts. @param
 * until_usec  CLOCK_BOOTTIME
 * @return 0; -ENODEV: no Neuron device is here; -errno */
int sysfs_snapshot_collect(const char *sysfs_root, uint64_t until_usec, StrBuf *ret);
