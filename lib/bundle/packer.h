/* Builds the bundle's bytes from a frozen plan, each source byte read once. The writer makes zstd
 * frames: compressed in order, in parallel on a worker pool, page cache released. The packer cuts
 * them into parts that lie in memory one at a time, and continues where an earlier run stopped;
 * between parts the caller stores the rows. Neither writes anywhere. Blocking: runs in a worker's
 * thread (not one of the compression pool's), from one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/bundle/member_digest.h"
#include "lib/bundle/plan.h"
#include "lib/bundle/validate.h"
#include "lib/event/worker_pool.h"

/* ---- the writer ---- */

typedef struct BundleWriter BundleWriter;

typedef struct MemberResult {
        uint8_t sha256[SHA256_SIZE];
        bool is_sparse_digest;
        Verdict verdict;
        char *detail; /* owned by the writer; may be NULL */
} MemberResult;

/* What a later run must know of the member whose data continues behind the end of a frame, beside
 * the plan. */
typedef struct WriterMark {
        MemberDigest digest;
        bool is_lost;       /* nothing more is read from it: zeros (tolerant) */
        Verdict fault;      /* with fault_detail */
        char *fault_detail; /* owned; NULL: none so far */
} WriterMark;

typedef struct BundleWriterOptions {
        WorkerPool *compressors; /* borrowed: must outlive the writer */

        /* 0 = store (zstd's fastest, which passes nearly all through as raw blocks), 1..19 */
        int level;

        /* Bound for buffers and compression contexts of this writer. */
        uint64_t memory_bytes;

        /* What cannot be read, or is not there any more, is zeros, and the member is marked;
         * instead of WRITER_E_CHANGED and errors of reading. */
        bool tolerant;

        SourceKind source; /* for the validator */

        /* 0, or where to resume; and 0, or where to stop: the frame that is not made any more. */
        uint64_t first_frame, end_frame;

        /* Where a member's data continues at first_frame (writer_mark_is_needed()): how it stood
         * there; borrowed while bundle_writer_new() runs. */
        const WriterMark *mark;

        /* Only frames are wanted, no digests and verdicts. A mark is not needed then; of one that
         * is there, is_lost counts. */
        bool without_results;

        /* Compressed sizes of the frames before first_frame, for the seek table; borrowed while
         * bundle_writer_new() runs. NULL: then there is no seek table when first_frame is above 0.
         */
        const uint32_t *earlier_frames;

        /* Opens member i for reading; called in order. The fd becomes the writer's. -errno: the
         * member is unreadable. */
        int (*open_member)(size_t i, const PlanMember *m, void *userdata);

        /* Called before at most n bytes of a member are read; may sleep. NULL. */
        void (*before_read)(size_t n, void *userdata);
        void *userdata;
} BundleWriterOptions;

/** @param plan  frozen; borrowed, must outlive the writer
 * @return 0; -ENOMEM; -EOVERFLOW when memory_bytes cannot hold two frames in flight (see
 * bundle_writer_memory_min()); -EINVAL for a level or a frame that does not exist, or a mark that
 * is missing */
int bundle_writer_new(BundleWriter **ret, const Plan *plan, const BundleWriterOptions *options);

/** Waits for the jobs it still has in the pool. */
BundleWriter *bundle_writer_free(BundleWriter *w);
DEFINE_CLEANUP(BundleWriter, bundle_writer_free);

/** Least and best memory for a level and n compressors. The open member's header and the table of
 * frames (4 bytes each) come on top, and 48 bytes a member for the results. */
uint64_t bundle_writer_memory_min(int level);
uint64_t bundle_writer_memory_best(int level, unsigned n_compressors);

typedef struct BundleFrame {
        uint64_t number;
        const void *data; /* valid until the next call */
        size_t bytes;
        uint64_t stream_offset, stream_bytes; /* what of the tar stream it holds */
} BundleFrame;

/** Makes the next frame. An error stays: every later call gives it again.
 * @return WRITER_FRAME and *ret; 0 when all frames up to end_frame are made; WRITER_E_CHANGED: a
 * member is not what the plan says (size, mtime, device or inode, checked before and after
 * reading), restart with a new plan; -errno from opening or reading a member
 * (bundle_writer_failed_member() names it); -ENOMEM */
enum { WRITER_FRAME = 1, WRITER_E_CHANGED = 2 };
int bundle_writer_next(BundleWriter *w, BundleFrame *ret);

/** The seek table: a skippable frame that goes after the last frame. Borrowed from the writer.
 * @return 0, -ENOMEM, -ENODATA while frames are missing or when the sizes of earlier frames were
 * not given */
int bundle_writer_seek_table(BundleWriter *w, const void **ret, size_t *ret_bytes);
uint64_t bundle_writer_seek_table_bytes(uint64_t n_frames);

/** @return whether data of a member lies on both sides of the beginning of this frame */
bool writer_mark_is_needed(const Plan *plan, uint64_t first_frame);

/** @return what is known of a member; complete once all frames are made. An all-zero sha256:
 * nothing */
const MemberResult *bundle_writer_member(const BundleWriter *w, size_t i);

/** @return the member that ended the bundle; plan_n_members() when it was no member's fault */
size_t bundle_writer_failed_member(const BundleWriter *w);

/** @return bytes read from members so far, those of an open member that its validator had to see
 * again among them */
uint64_t bundle_writer_bytes_read(const BundleWriter *w);

/* ---- parts: runs of whole frames, as S3 uploads them and as a volume's stripes. Pure ---- */

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

/* ---- the packer ---- */

typedef struct Packer Packer;

/* What is written down of a part, and enough to continue behind it. */
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
