/* What is written down of a part, so that a later run continues behind it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/digest.h"
#include "lib/bundle/plan.h"
#include "lib/bundle/writer.h"

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

/* For the packer. */

/** Sets the state of a row whose frames are set and came last.
 * @param ret_lost  whether a member is open at its end of which nothing more can be read
 * @return 0, -ENOMEM */
int packed_row_save_state(PackedRow *row, const Plan *plan, const BundleWriter *w, bool *ret_lost);

/** @param results  of all members; those that ended in this row are set
 * @param mark  how the member stands that is open at its end; else unchanged
 * @param ret_lost  as above
 * @return 0; PACKED_ROW_E_INVALID: it does not fit the plan, or this version; -ENOMEM */
enum { PACKED_ROW_E_INVALID = 1 };
int packed_row_load_state(const PackedRow *row, const Plan *plan, MemberResult *results,
                          WriterMark *mark, bool *ret_lost);
