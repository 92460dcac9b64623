/* Small objects on a volume that nodes share: created only once whoever tries, replaced, read,
 * listed. Blocking, as volume.h. */
#pragma once

#include "lib/base/clock.h"
#include "uploaders/volume/volume.h"

/* Outcomes, beside 0 and -ENOENT: UPLOAD_E_EXISTS; UPLOAD_E_DENIED: not permitted, or the file
 * system cannot create a name only once; UPLOAD_E_REFUSED: no regular file, or larger than it may
 * be; UPLOAD_E_FULL, UPLOAD_E_UNREACHABLE: a write may have been executed. Other negative errnos
 * are this process's own. *ret_error is always written: a sentence (the caller's) with an outcome
 * other than UPLOAD_E_EXISTS, else NULL. */

typedef struct VolumeWrite { /* borrowed */
        const char *relative;
        const char *writer; /* this node: of the temporary name, and of the directory of its own */
        const void *data;
        size_t n;
        bool replaces;
        Clock *clock;
} VolumeWrite;

typedef struct VolumeWritten { /* microseconds */
        int64_t modified_usec; /* by the volume's clock */
        /* that clock less CLOCK_BOOTTIME, and how far that may be wrong */
        int64_t clock_offset_usec, uncertainty_usec;
} VolumeWritten;

/** Writes an object durably: a temporary file, fsync, link (or RENAME_NOREPLACE) or, when it
 * replaces, rename, fsync of the directory. */
int volume_object_write(Volume *v, const VolumeWrite *w, VolumeWritten *ret, char **ret_error);

/** The volume's clock alone, by a file that is made and removed. @return 0; the error of a write */
int volume_object_clock(Volume *v, Clock *clock, VolumeWritten *ret, char **ret_error);

typedef struct VolumeContent {
        char *data; /* NUL-terminated, the caller's */
        size_t n;
        int64_t modified_usec;
} VolumeContent;
int volume_object_read(Volume *v, const char *relative, size_t max_bytes, VolumeContent *ret,
                       char **ret_error);

typedef struct VolumeListing {
        const char *directory; /* below the root, may end in a slash; missing: an empty listing */
        size_t n_max;          /* entries that are looked at */
        /* Of a regular file. Negative stops the listing, which returns it. */
        int (*on_file)(const char *relative, uint64_t bytes, int64_t modified_usec, void *userdata);
        void *userdata;
} VolumeListing;
/** Lists a tree in no order; follows no symlink. What begins with a dot is left out, and a
 * directory below that may not be read. */
int volume_object_list(Volume *v, const VolumeListing *listing, char **ret_error);
