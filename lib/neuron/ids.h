/* Identities: the instance id of a node, and the fingerprint of a member. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "lib/base/digest.h"
#include "lib/neuron/record.h"

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

/** The fingerprint by which a member is known to be unchanged: the first 8 bytes (little-endian) of
 * the SHA-256 over the path (u64 length and bytes), size, mtime seconds, mtime nanoseconds and
 * inode (u64 each, all little-endian). Without the device, whose number can change at a reboot. */
uint64_t member_fingerprint(const char *path, const struct stat *st);
/** @param sorted  fingerprints of n members, ascending  @return whether this one is among them */
bool member_fingerprints_contain(const uint64_t *sorted, size_t n, uint64_t fingerprint);

/* Parts of an identity's digest: a number as 8 bytes, little-endian; a text as its length and its
 * bytes. */
void id_digest_add_u64(Sha256 *s, uint64_t v);
void id_digest_add_text(Sha256 *s, const char *text);
