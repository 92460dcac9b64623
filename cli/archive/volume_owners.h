/* Decides by its owner whether a reading command believes a file on a volume. A reader, which may
 * run on another machine, does not know the agents' user: it accepts the users who may be an
 * agent's, and reports files of others. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/common/cli.h"

#define OWNER_UNKNOWN                                                                              \
        ((int64_t)-1) /* of an object in a bucket, whose policy decides who may write */

typedef struct VolumeOwners {
        const Cli *cli;
        uid_t uids[2]; /* the owner of the volume's root, and neuron-collectd; root and the reader
                          are accepted without being listed */
        size_t n;
        int64_t further; /* set by volume_owners_add(); OWNER_UNKNOWN: none */
        char **trusted;  /* agreement.trusted_uids; NULL: the configuration cannot be read; owned */
        size_t n_refused;
} VolumeOwners;

/** Reads the configuration and the owner of the volume's root.
 * @param cli  borrowed
 * @param directory  the volume's root, or an incident's directory in it, which is recognised by its
 * name; NULL: the owner of the root is not used */
void volume_owners_init(VolumeOwners *o, const Cli *cli, const char *directory);
void volume_owners_done(VolumeOwners *o);

/** @return whether an owner may be an agent: OWNER_UNKNOWN, root, the reader, and each user in *o
 */
bool volume_owners_has(const VolumeOwners *o, int64_t owner);

/** As volume_owners_has(), and reports on stderr the first file that is ignored, with the reason.
 * @param path  as it is shown */
bool volume_owners_check(VolumeOwners *o, int64_t owner, const char *path);

/** Accepts the owner of the directory `.incidents`, and reports that user on stderr: without it no
 * record would be accepted. Where this machine knows the agents' user, as volume_owners_check(). */
void volume_owners_add(VolumeOwners *o, int64_t owner, const char *path);

/** Reports on stderr how many files were ignored after the first one. */
void volume_owners_report(const VolumeOwners *o);
