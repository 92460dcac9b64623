/* The tar header of one member, made by libarchive. The one file of the writer that includes its header. */
#pragma once

#include "lib/bundle/plan.h"

/** Makes all that stands before a member's data: pax records, ustar header, and for a sparse member the GNU 1.0 map.
 * The same member gives the same bytes each time, in any locale.
 * @param ret  the caller's
 * @return 0, -ENOMEM, -EIO when libarchive refuses */
int writer_tar_header(const PlanMember *m, void **ret, size_t *ret_bytes);
