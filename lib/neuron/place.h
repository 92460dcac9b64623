/* What a bundle is called and where it goes: INTERFACE.md §4, for the agent and for `estimate` alike. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "lib/neuron/record.h"
#include "lib/neuron/scan.h"
#include "lib/neuron/template.h"

typedef struct BundleOrigin { /* borrowed */
        SourceKind kind;
        const char *source; /* its name */
        const char *instance_id, *hostname;
} BundleOrigin;

/** The id of the bundle that a unit becomes. A core dump's directory with a date in its name is known by its path alone; all other names may
 * come back, so the first member counts too.
 * @param path  absolute path of the unit, raw */
void bundle_id_of_unit(const BundleOrigin *o, const ScanUnit *u, const char *path,
                       char ret[BUNDLE_ID_SIZE]);

typedef struct BundlePlace { /* borrowed */
        const char *date_time,
                *cluster_id; /* as spelled; "" = no incident: the oldest member's time, sixteen zeros */
        uint64_t oldest_mtime_usec;
        uid_t uid; /* owner of the unit, looked up only for %u */
} BundlePlace;

/** `<expanded prefix>/<instance-id>`, the directory of the object and its manifest. @return the caller's, NULL for lack of memory */
char *bundle_directory(const PathTemplate *prefix, const BundleOrigin *o, const BundlePlace *p);

/** The same for a dump whose hook was told a prefix of its own, taken as it is: it holds for the destinations of its bucket.
 * @param s3_prefix  `s3://bucket/prefix`
 * @param ret  `<prefix>/<instance-id>`, the caller's; NULL: it is none, another bucket's, or has a component that is empty, `.` or `..`
 * @return 0, -ENOMEM */
int bundle_directory_of_prefix(const char *s3_prefix, const char *bucket, const char *instance_id,
                               char **ret);
