/* Which node this is: the configuration, DMI, the instance metadata service, the host name; in this
 * order. */
#pragma once

#include "lib/neuron/record.h"

typedef struct InstanceOptions { /* borrowed */
        const char *fixed;       /* node.instance_id; NULL, "" or "auto" = find it */
        const char *sysfs_root;
        char *const *environment; /* for the metadata service's endpoint */
} InstanceOptions;

/** Queries the metadata service only where DMI has no instance id (containers without /sys/devices,
 * some virtual machines): a second at most outside of EC2. Runs before anything else, on an event
 * loop of its own.
 * @param ret_origin  static: "configuration", "dmi", "imds", "hostname"
 * @return as instance_id_find() */
int instance_find(const InstanceOptions *options, char ret[INSTANCE_ID_SIZE],
                  const char **ret_origin);
