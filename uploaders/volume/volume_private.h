/* What the files of this folder share: a volume's root and whether it is still the one that it was,
 * the directories below it, and what an errno means. Private to this folder. */
#pragma once

#include <limits.h>
#include <sys/stat.h>

#include "uploaders/volume/volume.h"

struct Volume {
        char *root;
        uint64_t min_free_bytes;
        unsigned min_free_permille;
        bool must_exist;
        mode_t mode; /* of directories that nodes share */
        char *group; /* NULL = none */
        /* of the root below its mount point when it was last opened; -1 = never yet */
        int mount_depth;
        atomic_uint_fast64_t n_read_back; /* bytes; read by other threads */
};

_printf_(2, 3) void volume_set_error(char **ret_error, const char *fmt, ...);
/** @param doing  `cannot <doing> '<path>'`  @return UPLOAD_E_FULL, UPLOAD_E_UNREACHABLE, or -errno
 * of a failure of this process */
int volume_classify_errno(int error, const char *doing, const char *path, char **ret_error);

/** @return 0 and the root, the caller's; UPLOAD_E_UNREACHABLE */
int volume_open_root(Volume *v, bool create, int *ret_fd, char **ret_error);
/** For what only reads: a volume that is away shows as -ESTALE, one that was never there as
 * -ENOENT. */
int volume_open_for_reading(Volume *v, int *ret_fd);
int volume_check_room(const Volume *v, int fd, uint64_t more_bytes, char **ret_error);

/** Gives something to the group. One that was there before stays as it is where that is refused.
 * @return 0, -ENXIO, -errno: volume_classify_group() */
int volume_set_group(const Volume *v, int fd, const struct stat *st, bool is_new);
int volume_classify_group(const Volume *v, int error, const char *path, char **ret_error);

/** Makes a file in the root that is not to stay, where the file system can do that one without a
 * name. @param name  gets its name, which is to be unlinked; "" = it has none  @return an fd, -1
 * with errno */
int volume_open_probe_file(int root_fd, char name[static NAME_MAX + 1]);

#define VOLUME_OWN_MODE 0755 /* of a directory that one node alone writes to */

/* The way to an object, as far as it was gone. */
typedef struct VolumeWay {
        int dir_fd;       /* the directory it lives in; the caller's */
        const char *name; /* its own, in what was asked for */
        const char *step; /* what was tried last; NULL: to give it its group */
} VolumeWay;
/** Opens the directory an object lives in, making what is missing. Every parent is fsynced, also
 * where nothing was missing: who made the directory may have crashed before its fsync.
 * @param own_mode  of that directory, those above have the volume's; 0: nothing is made
 * @return 0 or -errno, when only ret->step is set */
int volume_open_directories(const Volume *v, int root_fd, const char *relative, mode_t own_mode,
                            VolumeWay *ret);
