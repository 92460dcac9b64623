/* Builds the bundle's bytes from a frozen plan: cuts the frames of the writer into parts that lie
 * in memory one at a time, and continues where an earlier run stopped; between parts the caller
 * stores the rows. Writes nowhere. Blocking: runs in a worker's thread (not one of the compression
 * pool's), from one thread at a time. */
#pragma once

#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/bundle/packed_row.h"
#include "lib/bundle/parts.h"
#include "lib/bundle/plan.h"
#include "lib/bundle/writer.h"

typedef struct Packer Packer;

typedef struct PackedPart {
        PackedRow row;
        uint8_t *data; /* the caller's: packer_buffer_bytes() of memory, for row.bytes */
} PackedPart;

typedef struct PackerOptions {
        BundleWriterOptions
                writer; /* first_frame and earlier_frames are the packer's business: 0 and NULL
                         * here. writer.memory_bytes does not count the parts' buffers */
        uint64_t part_size;
        const PackedRow *rows; /* of an earlier run, in order from the first part; borrowed while
                                  packer_new() runs */
        size_t n_rows;
} PackerOptions;

/** Starts behind the last of the rows. With rows the open member's validator reads the file again
 * (not packed) unless it needs no more; that is done by the first packer_next(), nothing is opened
 * or read here.
 * @return 0; PACKER_E_ROWS: the rows do not fit this plan or this version (restart); -ENOMEM,
 * -EINVAL, -EOVERFLOW as bundle_writer_new() */
int packer_new(Packer **ret, const Plan *plan, const PackerOptions *options);
Packer *packer_free(Packer *p);
DEFINE_CLEANUP(Packer, packer_free);

/** @return bytes of memory that any of its parts fits into */
uint64_t packer_buffer_bytes(const Packer *p);

/** Makes the next part in part->data. An error stays. @return PACKER_PART and part->row (the
 * caller's); 0 when there are no more; else as bundle_writer_next() */
enum { PACKER_PART = 1, PACKER_E_ROWS = 3, PACKER_E_DIFFERS = 4 };
int packer_next(Packer *p, PackedPart *part);

/** Makes a part again in part->data, from its row (which may be one of the rows or of the parts
 * made here), for one that may not have arrived. Until the first packer_next() this stays within
 * writer.memory_bytes; later it needs that much once more while it runs.
 * @param index  from 0
 * @return PACKER_PART and part->row, which has neither frame_bytes nor state; PACKER_E_DIFFERS:
 * other bytes come out than the row says (another libzstd, a changed source); else as
 * bundle_writer_next() */
int packer_rebuild(Packer *p, size_t index, PackedPart *part);

/** Upper bound of a part's bytes: for limits.memory. For n_closed 0 and the whole stream it holds
 * for every part; for 0 bytes it is that of every stream short enough for part_size, the seek table
 * left aside.
 * @param unpacked_bytes  of the stream, not yet in a closed part */
uint64_t packer_part_bytes_max(uint64_t part_size, size_t n_closed, uint64_t unpacked_bytes);

typedef struct PackerStatus {
        const BundleWriter *writer; /* results for the manifest; borrowed, as parts are. Complete */
        const Parts *parts;         /* once packer_next() answered 0 */
        uint64_t done_bytes;        /* of the tar stream, up to the last part made */
        uint64_t bytes_read;
        size_t failed_member; /* as bundle_writer_failed_member() */
} PackerStatus;
PackerStatus packer_status(const Packer *p);

/** Names what the bytes of a frame depend on beside plan and data: `zstd 1.5.4, level 3, part
 * 8388608`. To be kept with the rows: rows of another signature cannot be continued. @return the
 * caller's, NULL for lack of memory */
char *packer_signature(int level, uint64_t part_size);
