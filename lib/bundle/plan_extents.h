/* Where a file has data and where holes, in the form that every reader of tar gets right. */
#pragma once

#include "lib/bundle/plan.h"

typedef struct PlanExtents {
        PlanExtent *items; /* the caller's; NULL when dense or all hole */
        uint32_t n;
        bool is_sparse;
} PlanExtents;

/** Maps a file by SEEK_DATA and SEEK_HOLE; a file system without them gives a dense file. Bounds are widened to multiples of
 * PLAN_EXTENT_ALIGN (GNU tar 1.34 extracts wrong bytes from unaligned ones, without an error); holes below PLAN_HOLE_MIN are data.
 * @param fd  borrowed; its offset is moved
 * @param max  at most so many extents; the last one then reaches to the end
 * @return 0 or -ENOMEM, and *ret is empty */
int plan_extents_map(int fd, uint64_t size_bytes, uint32_t max, PlanExtents *ret);
