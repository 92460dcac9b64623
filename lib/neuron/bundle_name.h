/* The names of a bundle: its id, its directory at a destination, its files. For the agent, for
 * `estimate`, and for the commands that read destinations. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/neuron/names.h"
#include "lib/neuron/record.h"
#include "lib/neuron/scan.h"

/* ---- its id ---- */

typedef struct BundleIdInput {
        SourceKind kind;
        const char *instance_id, *source, *path;
        const char *date_time;      /* as spelled, or "" */
        uint64_t oldest_mtime_usec; /* used when date_time is no date */
        bool unique_name;           /* the path alone identifies it: no inode in the hash */
        uint64_t first_dev, first_ino;
        int64_t first_mtime_nsec; /* of the first member */
} BundleIdInput;

/** `<kind>-<yyyymmddTHHMMSS>-<12 hex>`. Time: date_time when it is a date, else oldest_mtime_usec.
 * Hex: the first 12 digits of the SHA-256 over instance_id, source and path, each as its length in
 * bytes (u64, little-endian) and its bytes; unless unique_name, then also first_dev, first_ino and
 * first_mtime_nsec, each u64 little-endian. */
void bundle_id_build(const BundleIdInput *in, char ret[BUNDLE_ID_SIZE]);
/** @return whether s has the form of a bundle id. Checks ids that arrive over the API. */
bool bundle_id_is_valid(const char *s);

/** @return the name of the kind that a valid id begins with, static; NULL: it is not valid */
const char *bundle_id_kind_name(const char *id);

typedef struct BundleOrigin { /* borrowed */
        SourceKind kind;
        const char *source; /* its name */
        const char *instance_id, *hostname;
} BundleOrigin;

/** Builds the id of the bundle that a unit becomes. The path alone identifies a core dump whose
 * directory has a date in its name, and what the agent itself has made. Any other path may be used
 * again by a later unit, so its id also depends on the first member.
 * @param path  absolute path of the unit, raw */
void bundle_id_from_unit(const BundleOrigin *o, const ScanUnit *u, const char *path,
                         char ret[BUNDLE_ID_SIZE]);

/* ---- its directory ---- */

typedef struct BundleLocation {             /* borrowed */
        const char *date_time, *cluster_id; /* as spelled; "" = no incident: the oldest member's
                                               time, sixteen zeros */
        uint64_t oldest_mtime_usec;
        uid_t uid; /* owner of the unit, resolved only for %u */
} BundleLocation;

/** `<expanded prefix>/<instance-id>`, the directory of the object and its manifest. @return the
 * caller's, NULL for lack of memory */
char *bundle_directory(const PathTemplate *prefix, const BundleOrigin *o, const BundleLocation *p);

/** The same for a dump whose hook was given a prefix of its own: it is used unchanged for the
 * destinations of its bucket.
 * @param s3_prefix  `s3://bucket/prefix`
 * @param ret  `<prefix>/<instance-id>`, the caller's; NULL: it is none, another bucket's, or has a
 * component that is empty, `.` or `..`
 * @return 0, -ENOMEM */
int bundle_directory_from_prefix(const char *s3_prefix, const char *bucket, const char *instance_id,
                                 char **ret);

/* ---- its files, and the keys of a destination ---- */

#define BUNDLE_SUFFIX ".tar.zst"
#define MANIFEST_SUFFIX ".manifest.json"

/** @param stem  a bundle's id, or a path that ends in one
 * @return the stem and the suffix, the caller's; NULL for lack of memory */
char *bundle_object_name(const char *stem);
char *bundle_manifest_name(const char *stem);

typedef enum BundleFile { BUNDLE_NEITHER, BUNDLE_OBJECT, BUNDLE_MANIFEST } BundleFile;
/** Classifies a key, path or name by its suffix alone.
 * @param ret_stem  length of the key without its suffix; may be NULL
 * @return BUNDLE_NEITHER also when nothing comes before the suffix */
BundleFile bundle_file_kind(const char *key, size_t *ret_stem);

/** Checks strictly, including the bundle id, so that with any prefix no foreign key matches.
 * @param instance_id  NULL: of any instance
 * @return whether a key is a bundle's object or manifest: `[…/]<instance-id>/<bundle-id><suffix>`
 */
bool bundle_key_belongs_to(const char *key, const char *instance_id);

/** The beginning of all keys of a destination.
 * @param fixed  path_template_fixed() of its prefix, with or without a slash before it
 * @return `neuron/`, or "" when nothing is fixed; the caller's; NULL for lack of memory */
char *s3_key_prefix(const char *fixed);
/** The key of the object that an instance writes and deletes to check whether a bucket can be
 * written.
 * @param key_prefix  of s3_key_prefix()  @return the caller's, NULL for lack of memory */
char *s3_probe_key(const char *key_prefix, const char *instance_id);
