/* As which users agents write to a volume, who else may, and what to set so that all agents share
 * its directories. */
#pragma once

#include <stddef.h>

#include "cli/hook/hook_check.h"
#include "config/config.h"
#include "uploaders/volume/volume.h"

typedef struct VolumeAdvice {
        Finding finding;
        char *detail, *remedy; /* the caller's; NULL for lack of memory */
} VolumeAdvice;

#define VOLUME_ADVICE_MAX 2

/** Reads the owners of some of the directories on a volume; blocks.
 * @param root    there  @param v  of it
 * @return how many; 0: one user writes there, and nobody else may */
size_t volume_users_check(const Config *config, const ConfigDestination *destination,
                          const char *root, Volume *v, VolumeAdvice ret[static VOLUME_ADVICE_MAX]);
