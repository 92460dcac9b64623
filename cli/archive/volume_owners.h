/* Whose files on a volume a reader believes. The agents' user is not known to whoever reads, on
 * another machine perhaps, so what cannot be an agent's is told from what may be. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/common/cli.h"

#define OWNER_UNKNOWN ((int64_t)-1) /* of an object in a bucket: its policy says who may write */

typedef struct VolumeOwners {
        const Cli *cli;
        uid_t uids[2]; /* the owner of the volume's root, neuron-collectd; beside root and the
                          reader */
        size_t n;
        int64_t further; /* volume_owners_add(); OWNER_UNKNOWN: none */
        char **trusted;  /* agreement.trusted_uids of the configuration, if it can be read */
        size_t n_refused;
} VolumeOwners;

/** @param directory  the volume's root, or an incident's directory in it, by its name; NULL: that
 * owner is not known */
void volume_owners_init(VolumeOwners *o, const Cli *cli, const char *directory);
void volume_owners_done(VolumeOwners *o);

/** @return whether an owner may be an agent: OWNER_UNKNOWN, and every user that this header names
 */
bool volume_owners_has(const VolumeOwners *o, int64_t owner);

/** As volume_owners_has(); says on stderr which file does not count, and why, of several the first
 * one. @param path  as it is shown */
bool volume_owners_check(VolumeOwners *o, int64_t owner, const char *path);

/** Of the directory `.incidents`: what its owner has made counts, as nobody else's would be left,
 * and who that is is said, unless this machine knows the agents' user. */
void volume_owners_add(VolumeOwners *o, int64_t owner, const char *path);

/** Says how many were left out beside the first one. */
void volume_owners_report(const VolumeOwners *o);
