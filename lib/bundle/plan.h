/* The frozen plan of a bundle: its members, and with them every offset of its tar stream and every
 * frame's bounds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/neuron/names.h"

#define PLAN_FRAME_BYTES (2 * MIB)
#define PLAN_EXTENT_ALIGN 4096
#define PLAN_HOLE_MIN (64 * KIB) /* a smaller hole is data */
#define PLAN_EXTENTS_MAX 65536   /* a member; the rest is data */

/* All members together, 8 MiB of them; what comes later is data. */
#define PLAN_EXTENTS_TOTAL_MAX (8 * PLAN_EXTENTS_MAX)

#define PLAN_TAR_BLOCK 512                /* headers and data are padded to it */
#define PLAN_TAR_END (2 * PLAN_TAR_BLOCK) /* zeros after the last member */
#define PLAN_FRAMES_MAX 0x8000000         /* what a zstd seek table can hold */

/* Multiples of PLAN_EXTENT_ALIGN, the last one cut at the file's end. */
typedef struct PlanExtent {
        uint64_t offset, bytes;
} PlanExtent;

typedef struct PlanMember {
        char *path; /* relative, raw; the plan's */
        uint64_t bytes, dev, ino;
        int64_t mtime_sec;
        uint32_t mtime_nsec;
        mode_t mode;
        uid_t uid;
        gid_t gid;
        MemberKind kind;
        PlanExtent *extents; /* NULL = dense; the plan's */
        uint32_t n_extents;  /* 0 with is_sparse = all hole */
        bool is_sparse;
        uint64_t stream_offset; /* of its header in the tar stream */
        uint32_t header_bytes;  /* headers and sparse map: the data begins after them */
} PlanMember;

typedef struct Plan Plan;

int plan_new(Plan **ret);
Plan *plan_free(Plan *p);
DEFINE_CLEANUP(Plan, plan_free);

/** Adds one member from an open descriptor (fstat, SEEK_DATA/SEEK_HOLE); members must come in
 * strcmp order of path.
 * @param fd  borrowed; its file offset is moved
 * @return 0, -ENOMEM, -EINVAL out of order, empty or absolute path, not a regular file, already
 * frozen; -EOVERFLOW when the sizes cannot be summed */
int plan_add(Plan *p, const char *path, MemberKind kind, int fd);

/** Freezes: lays out headers, stream offsets and frames. Nothing may be added afterwards.
 * @return 0, -ENOMEM, -EIO when libarchive refuses a header, -EOVERFLOW for more than
 * PLAN_FRAMES_MAX frames */
int plan_freeze(Plan *p);

size_t plan_n_members(const Plan *p);
const PlanMember *plan_member(const Plan *p, size_t i);
uint64_t plan_stream_bytes(const Plan *p); /* of the tar stream, end blocks included */
uint64_t plan_data_bytes(const Plan *p);   /* sum of the members' sizes, holes included */

/** @return bytes of the member's data in the tar stream: without its holes, without padding */
uint64_t plan_stored_bytes(const PlanMember *m);

/** @return the member whose header, data or padding is at stream_offset; plan_n_members() for the
 * end blocks and beyond */
size_t plan_member_at(const Plan *p, uint64_t stream_offset);

uint64_t plan_n_frames(const Plan *p);
/** Bounds of a frame in the tar stream. A frame is PLAN_FRAME_BYTES, and shorter only where one is
 * cut at a header: when the member does not fit in the rest of a frame that is at least half full.
 * So small members share a frame, and what comes before a large one is not read for it. A pure
 * function of the plan, found in O(log n). */
void plan_frame(const Plan *p, uint64_t frame, uint64_t *ret_offset, uint64_t *ret_bytes);
uint64_t plan_frame_at(const Plan *p, uint64_t stream_offset);

/** SHA-256 over all that is frozen: `bundle.plan` of the manifest. The device number is left out:
 * it may differ after a reboot. */
void plan_sha256(const Plan *p, uint8_t ret[static SHA256_SIZE]);

/** Builds the tar header (and sparse map) of a member by libarchive, pax format. *ret is the
 * caller's. Callable from any thread.
 * @return 0, -ENOMEM, -EIO */
int plan_member_header(const Plan *p, size_t i, void **ret, size_t *ret_bytes);
