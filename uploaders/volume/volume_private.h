/* What the files of the volume share. Nobody else includes this. */
#pragma once

#include <stdatomic.h>
#include <sys/stat.h>

#include "uploaders/volume/volume.h"

struct Volume {
        char *root;
        uint64_t min_free_bytes;
        unsigned min_free_permille;
        bool must_exist;
        int mount_depth; /* of the root below its mount point when it was last opened; -1 = never yet */
        atomic_uint_fast64_t n_read_back; /* bytes; read by other threads */
};

struct VolumeObject {
        Volume *volume;         /* borrowed */
        char *path;             /* of the object, for people */
        char *name, *temporary; /* in dir_fd */
        int dir_fd, fd;
        struct stat st;  /* of the temporary file when it was new: its identity */
        uint64_t offset; /* bytes written so far */
        uint64_t window; /* where the window begins that is not yet on its way to the storage */
        uint64_t next_room_check;
        int error; /* errno of what made it useless, told again by every later call; 0 */
        bool finished; /* committed, found to be there, or given up: there is no temporary file of ours any more */
};

/* volume.c: opens the root, checked to be where it was. 0, UPLOAD_E_*, -errno */
int volume_open_root(Volume *v, bool create, int *ret_fd, char **ret_error);
int volume_check_room(const Volume *v, int fd, uint64_t more_bytes, char **ret_error);

/* volume_fault.c: what an errno means for a delivery, as an outcome and a sentence. @param error  positive errno
 * @param doing  "write", "make the directory" … @return UPLOAD_E_FULL, UPLOAD_E_AWAY, or -errno for what is not the volume's fault */
int volume_fault(int error, const char *doing, const char *path, char **ret_error);
/* Sets *ret_error, NULL for lack of memory: the outcome counts, not its sentence. */
void volume_say(char **ret_error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
