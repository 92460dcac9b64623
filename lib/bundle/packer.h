/* Packs a plan into parts that lie in memory one at a time, and continues where an earlier run
 * stopped. Blocking: runs in a worker's thread, from one thread at a time. Between parts the caller
 * stores the rows. */
#pragma once

#include "lib/base/digest.h"
#include "lib/bundle/writer.h"

/* ---- parts: runs of whole frames, as S3 uploads them and as a volume's stripes. Pure ---- */

#define PARTS_MAX 9900

typedef struct Part {
        uint64_t bytes;
        uint8_t sha256[SHA256_SIZE];
        uint64_t first_frame, n_frames;
} Part;

typedef struct Parts {
        Part *items; /* owned */
        size_t n, n_allocated;
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

/* ---- the packer ---- */

typedef struct Packer Packer;
typedef struct PackerBuffers PackerBuffers;

/* What is written down of a part, and enough to go on behind it. */
typedef struct PackedRow {
        uint64_t first_frame, n_frames;
        uint32_t *frame_bytes; /* n_frames compressed sizes; owned */
        uint64_t bytes;
        uint8_t sha256[SHA256_SIZE];
        bool is_last; /* the seek table is in it */
        /* Opaque, versioned, byte order fixed: results of the members that ended in this part
         * (digest, verdict, detail), and the running digest of the one that is open at its end.
         * Owned. */
        uint8_t *state;
        size_t state_bytes;
} PackedRow;
void packed_row_done(PackedRow *r);

typedef struct PackedPart {
        PackedRow row;
        size_t index;  /* from 0 */
        uint8_t *data; /* owned: mapped */
        size_t mapped_bytes;
        PackerBuffers *buffers; /* where data goes back to */
} PackedPart;
/** Any thread, also after the packer. The memory is used again for the packer's next part, so there
 * is never more of it than the parts that existed at one time had; packer_free() releases it. */
void packed_part_done(PackedPart *p);

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

/** Makes the next part. An error stays. @return PACKER_PART and *ret (the caller's); 0 when there
 * are no more; else as bundle_writer_next() */
enum { PACKER_PART = 1, PACKER_E_ROWS = 3, PACKER_E_DIFFERS = 4 };
int packer_next(Packer *p, PackedPart *ret);

/** Makes a part again from its row (which may be one of the rows or of the parts made here), for
 * one that may not have arrived. Until the first packer_next() this stays within
 * writer.memory_bytes; later it needs that much once more while it runs.
 * @return PACKER_PART and *ret, whose row has neither frame_bytes nor state; PACKER_E_DIFFERS:
 * other bytes come out than the row says (another libzstd, a changed source); else as
 * bundle_writer_next() */
int packer_rebuild(Packer *p, size_t index, PackedPart *ret);

/** Upper bound of a part's bytes: for limits.memory. For n_closed 0 and the whole stream it holds
 * for every part; for 0 bytes it is that of every stream short enough for part_size, the seek table
 * left aside.
 * @param unpacked_bytes  of the stream, not yet in a closed part */
uint64_t packer_part_bytes_max(uint64_t part_size, size_t n_closed, uint64_t unpacked_bytes);

/** The results and parts for the manifest; complete once packer_next() answered 0. Borrowed. */
const BundleWriter *packer_writer(const Packer *p);
const Parts *packer_parts(const Packer *p);
uint64_t packer_done_bytes(const Packer *p); /* of the tar stream, up to the last part made */
uint64_t packer_bytes_read(const Packer *p);
size_t packer_failed_member(const Packer *p); /* as bundle_writer_failed_member() */

/** Names what the bytes of a frame depend on beside plan and data: `zstd 1.5.4, level 3, part
 * 8388608`. To be kept with the rows: rows of another signature cannot be continued. @return the
 * caller's, NULL for lack of memory */
char *packer_signature(int level, uint64_t part_size);
