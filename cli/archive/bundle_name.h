/* What the key of a bundle's object or manifest tells by itself. Pure. */
#pragma once

#include <stdbool.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/neuron/names.h"

#define MANIFEST_MAX_BYTES (256 * MIB) /* as manifest_read() has it */

typedef struct BundleNames { /* owned */
        char *stem, *object, *manifest;
} BundleNames;

/** @param given  the object, its manifest, or what they have in common
 * @return 0; -EINVAL: it names no file (empty, or ends in a slash); -ENOMEM */
int bundle_names_init(const char *given, BundleNames *ret);
void bundle_names_done(BundleNames *n);

typedef struct BundleInfo { /* "" where the key does not tell; pieces of the key are borrowed */
        const char *name;   /* the stem's last component */
        const char *node;
        size_t n_node;
        size_t n_incident; /* the first so many bytes of the key are the incident's directory; 0 =
                              none */
        char kind[24];
        char time[CLOCK_ISO_SIZE]; /* ISO 8601, UTC */
        char date_time[DATE_TIME_SIZE],
                cluster_id[CLUSTER_ID_SIZE]; /* when the incident's directory is `<date>-<cluster
                                                id>` */
} BundleInfo;
/** @param stem  `<prefix>/<instance-id>/<bundle-id>`, or anything else, of which only the directory
 * is reported; outlives *ret */
void bundle_info_parse(const char *stem, BundleInfo *ret);
