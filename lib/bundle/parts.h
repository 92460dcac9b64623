/* Parts: runs of whole frames, as S3 uploads them and as a volume's stripes. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/digest.h"

#define PARTS_MAX 9900

typedef struct Part {
        uint64_t bytes;
        uint8_t sha256[SHA256_SIZE];
        uint64_t first_frame, n_frames;
} Part;

typedef struct Parts {
        Part *items; /* owned */
        size_t n;
        uint64_t part_size;
        Sha256 open; /* over the part being built */
        uint64_t open_bytes, open_first_frame, n_open_frames, total_bytes;
} Parts;

/** size(k) = max(part_size, bytes not yet packed / (9,900 − k)), k parts closed so far; no limit
 * once there are 9,900: so there are never more than PARTS_MAX + 1. */
uint64_t parts_limit(uint64_t part_size, size_t k, uint64_t unpacked_bytes);

void parts_init(Parts *p, uint64_t part_size);

/** Adds a part that an earlier run closed. Only while no frame is open. @param part  copied @return
 * 0 or -ENOMEM */
int parts_restore(Parts *p, const Part *part);

/** Adds a compressed frame.
 * @param unpacked_bytes  uncompressed bytes of the stream that come after this frame
 * @param ret_closed  whether the part was closed by it (items[n-1])
 * @return 0 or -ENOMEM */
int parts_add_frame(Parts *p, const void *data, size_t n, uint64_t unpacked_bytes,
                    bool *ret_closed);

/** Adds trailing bytes that are no frame of the stream (the seek table) to the open part, or to one
 * of their own, and closes it.
 * @return 0 or -ENOMEM */
int parts_finish(Parts *p, const void *tail, size_t n);

void parts_done(Parts *p);
