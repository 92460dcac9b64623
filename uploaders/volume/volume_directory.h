/* The directories of an object below a volume's root; private to uploaders/volume. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "uploaders/volume/volume.h"

#define VOLUME_OWN_MODE 0755 /* of a directory that one node alone writes to */

/* The result of opening the directories of an object, up to the component that failed. A component
 * is given by the offset of its end in the requested path. */
typedef struct VolumeDirectory {
        int dir_fd;       /* the object's directory; the caller's */
        const char *name; /* the object's name, in the requested path */
        const char *step; /* the last action, for a sentence; NULL: set the group */
        size_t end;       /* the last component that was opened or failed */
        size_t refused;   /* the component that refuses this node; 0: none, or the root */
        bool is_missing;  /* the last component could not be created */
        bool is_foreign;  /* the last component's owner is no agent: */
        uid_t owner;
} VolumeDirectory;

/** Opens the directory of an object and creates missing directories. Every parent is fsynced, also
 * where nothing was missing: another node that created the directory may have crashed before its
 * fsync.
 * @param own_mode  mode of that directory, those above have the volume's; 0: create nothing
 * @return 0; -errno, without dir_fd and name */
int volume_directory_open(Volume *v, int root_fd, const char *relative, mode_t own_mode,
                          VolumeDirectory *ret);
/** @param error  positive errno of volume_directory_open() for `relative`
 * @return UPLOAD_E_*; -EINVAL, -ENAMETOOLONG: the name, not the volume; -errno of this process */
int volume_directory_classify(const Volume *v, const VolumeDirectory *opened, int error,
                              const char *relative, char **ret_error);
/** @return the path of an object beside the component that refuses this node, the caller's; NULL
 *   for lack of memory */
char *volume_directory_beside(const Volume *v, const char *relative, size_t refused);
