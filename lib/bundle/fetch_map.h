/* The last bytes of a member's tar header: whether its data is dense, and if not where it belongs. Private to fetch. */
#pragma once

#include <stdint.h>

#include "lib/bundle/plan.h"

/* Of header and sparse map together: ours have at most 65,536 extents, 2.5 MiB of text. */
#define FETCH_HEADER_MAX (4 * MIB)

typedef struct FetchMap {
        PlanExtent *extents; /* owned; in order, all within the content; some may be empty */
        size_t n_extents;
        uint64_t stored_bytes; /* of all extents */
} FetchMap;

/** Finds the member's ustar header in what lies before its data, and reads the GNU 1.0 map behind it, if there is one.
 * @param data  the n bytes of the tar stream before the data; hostile
 * @param bytes  of the content
 * @return 0, -EBADMSG: none or nonsense, -ENOMEM */
int fetch_map_read(FetchMap *ret, const uint8_t *data, size_t n, uint64_t bytes);
/** One extent that is all of the content. @return 0 or -ENOMEM */
int fetch_map_dense(FetchMap *ret, uint64_t bytes);
void fetch_map_done(FetchMap *m);
