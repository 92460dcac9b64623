/* Makes zstd frames of a frozen plan, each source byte read once: compressed in order, in parallel
 * on a worker pool, page cache released. Writes nowhere. Blocking: runs in a worker's thread (not
 * one of the compression pool's), from one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/bundle/plan.h"
#include "lib/bundle/tar_stream.h"
#include "lib/event/worker_pool.h"

typedef struct BundleWriter BundleWriter;

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
enum { WRITER_FRAME = 1, WRITER_E_CHANGED = TAR_STREAM_E_CHANGED };
int bundle_writer_next(BundleWriter *w, BundleFrame *ret);

/** The seek table: a skippable frame that goes after the last frame. Borrowed from the writer.
 * @return 0, -ENOMEM, -ENODATA while frames are missing or when the sizes of earlier frames were
 * not given */
int bundle_writer_seek_table(BundleWriter *w, const void **ret, size_t *ret_bytes);
uint64_t bundle_writer_seek_table_bytes(uint64_t n_frames);

/** @return what is known of a member; complete once all frames are made. An all-zero sha256:
 * nothing */
const MemberResult *bundle_writer_member(const BundleWriter *w, size_t i);

/** @return the member that ended the bundle; plan_n_members() when it was no member's fault */
size_t bundle_writer_failed_member(const BundleWriter *w);

/** @return bytes read from members so far, those of an open member that its validator had to see
 * again among them */
uint64_t bundle_writer_bytes_read(const BundleWriter *w);

/* For the packer. */

/** @return how the member stood that was open at the end of the frame that came last */
const WriterMark *bundle_writer_last_mark(const BundleWriter *w);
/** @return the compressed size of each frame that was made, or given as an earlier one */
const uint32_t *bundle_writer_frame_sizes(const BundleWriter *w);
/** Replaces what is known of the members by the results of an earlier run. @param results  taken */
void bundle_writer_restore_results(BundleWriter *w, MemberResult *results);
