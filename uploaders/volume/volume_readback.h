/* Compares a file, read from the storage and not from the page cache, with the digests of its
 * stripes; private to uploaders/volume. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "uploaders/volume/volume.h"

typedef struct ReadbackFile { /* borrowed */
        int dir_fd;
        const char *name;             /* in dir_fd; never followed when it is a symlink */
        atomic_uint_fast64_t *n_read; /* counts the bytes as they come, for whoever watches; NULL */
} ReadbackFile;

/** Compares the whole file with the stripes. Reads O_DIRECT, the next piece while one is hashed;
 * where O_DIRECT is refused (tmpfs, some FUSE) through the page cache, which is emptied of the
 * file before and while it is read.
 * @param ret_bad_offset READBACK_E_DIFFERENT: where the first stripe that differs begins, or the
 *   size when the size differs
 * @return 0 the same, READBACK_E_DIFFERENT (also when it is no regular file), -errno when it could
 *   not be read / */
enum { READBACK_E_DIFFERENT = 1 };
int volume_readback(const ReadbackFile *file, const VolumeStripe *stripes, size_t n_stripes,
                    uint64_t *ret_bad_offset);
