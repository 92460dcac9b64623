/* Finds the users that write to a volume, and advises what to set when agents of several users
 * share it, or when any user may write to it. Reporting is left to doctor_destinations.c. */
#pragma once

#include <stddef.h>

#include "cli/hook/hook_check.h"
#include "config/config.h"
#include "uploaders/volume/volume.h"

typedef struct VolumeAdvice {
        Finding finding;
        char *detail, *remedy; /* each the caller's; NULL for lack of memory */
} VolumeAdvice;

#define VOLUME_ADVICE_MAX 2

/** Reads the owners of up to 2,000 directories of a volume; blocks.
 * @param root  the volume's root, absolute
 * @param v     the volume, by which agents' users are known
 * @param ret   filled from the first; `detail` and `remedy` are the caller's
 * @return the number of advices; 0: no fault, or the root does not exist */
size_t volume_users_check(const Config *config, const ConfigDestination *destination,
                          const char *root, Volume *v, VolumeAdvice ret[static VOLUME_ADVICE_MAX]);
