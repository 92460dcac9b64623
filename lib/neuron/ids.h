/* Identities: the node's, the bundle's, the member's fingerprint. */
#pragma once

#include <stdint.h>
#include <sys/stat.h>

#include "lib/neuron/names.h"
#include "lib/neuron/record.h"
#include "lib/neuron/scan.h"

/** Reads what the firmware has under a name. @return a line, the caller's; NULL */
char *dmi_read(const char *sysfs_root, const char *name);

/** Finds the node's id: the fixed string if set (not NULL, "" or "auto"); DMI `board_asset_tag`
 * below sysfs_root when it is an EC2 id; else the host name made safe.
 * @param ret_origin  static: "configuration", "dmi", "hostname"
 * @return 0; -EINVAL or -ENAMETOOLONG: the fixed string is not 1 to 64 of `A-Za-z0-9._-`, or is `.`
 * or `..` */
int instance_id_find(const char *fixed, const char *sysfs_root, char ret[INSTANCE_ID_SIZE],
                     const char **ret_origin);

/** Makes a host name safe for paths and keys: what is not `A-Za-z0-9._-` becomes `-`, nothing at
 * all "unknown-host". */
void instance_id_from_host(const char *host, char ret[INSTANCE_ID_SIZE]);

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
/** @return whether s is spelled like a bundle id: what arrives over the API is checked by this */
bool bundle_id_is_valid(const char *s);

/** A member as it was when it was shipped: the first 8 bytes (little-endian) of the SHA-256 over
 * the path (u64 length and bytes), size, mtime seconds, mtime nanoseconds and inode (u64 each, all
 * little-endian). Not the device: its number may be another after a reboot. */
uint64_t member_fingerprint(const char *path, const struct stat *st);
/** @param sorted  fingerprints of n members, ascending  @return whether this one is among them */
bool member_fingerprints_contain(const uint64_t *sorted, size_t n, uint64_t fingerprint);

/* ---- where a bundle goes: for the agent and for `estimate` ---- */

typedef struct BundleOrigin { /* borrowed */
        SourceKind kind;
        const char *source; /* its name */
        const char *instance_id, *hostname;
} BundleOrigin;

/** The id of the bundle that a unit becomes. A core dump's directory with a date in its name is
 * known by its path alone; all other names may come back, so the first member counts too.
 * @param path  absolute path of the unit, raw */
void bundle_id_from_unit(const BundleOrigin *o, const ScanUnit *u, const char *path,
                         char ret[BUNDLE_ID_SIZE]);

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
