/* Decides by its owner whether a reading command believes a file on a volume. The command may run
 * on another machine and does not know the agents' users, so it accepts each user who may be one of
 * them. It leaves out files of other users, and reports them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/common/cli.h"

#define OWNER_UNKNOWN                                                                              \
        ((int64_t)-1) /* of an object in a bucket, whose policy decides who may write */

#define REFUSED_USERS_MAX 4 /* users who are named */

typedef struct VolumeOwners {
        const Cli *cli;
        uid_t uids[3]; /* the owner of the volume's root, the user neuron-collectd, and the owner of
                          the running agent's socket; root and the reader are accepted without
                          being listed */
        size_t n;
        char **trusted; /* agreement.trusted_uids; NULL: no configuration could be read; owned */
        char **given;   /* by volume_owners_add(); NULL: none; owned */
        struct {
                int64_t uid;
                size_t n_files;
                char *example; /* a path; owned; NULL: no memory */
        } refused[REFUSED_USERS_MAX];
        size_t n_refused, n_more; /* n_more: files of further users */
} VolumeOwners;

/** Reads the configuration and the owner of the volume's root.
 * @param cli  borrowed
 * @param directory  the volume's root, or an incident's directory anywhere below it, which is
 *   recognised by its name; NULL: the owner of the root is not used */
void volume_owners_init(VolumeOwners *o, const Cli *cli, const char *directory);
void volume_owners_done(VolumeOwners *o);

/** @return whether an owner may be an agent: OWNER_UNKNOWN, root, the reader, and each user in *o
 */
bool volume_owners_has(const VolumeOwners *o, int64_t owner);

/** Accepts further users. @param users  names or numbers, separated by commas @return 0, -ENOMEM */
int volume_owners_add(VolumeOwners *o, const char *users);

/** As volume_owners_has(), and counts a file that is left out for volume_owners_report().
 * @param path  as it is shown */
bool volume_owners_check(VolumeOwners *o, int64_t owner, const char *path);

/** Reports on stderr how many files were left out, of which users, and what to do if such a user is
 * an agent's. Call it after the answer, so that it is the last that is read. */
void volume_owners_report(const VolumeOwners *o);
