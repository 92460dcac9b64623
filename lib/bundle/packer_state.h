/* What a row carries in its `state`: the results of the members that ended in the part, and how the member stands that is open at
 * its end. Private to the packer. */
#pragma once

#include "lib/bundle/packer.h"

/* What the plan alone says of a run of frames. */
typedef struct PackerSpan {
        size_t first_member, end_member; /* they end in it */
        bool is_open;                    /* a member's data goes on behind it … */
        uint64_t content;                /* … and so much of its content came before */
} PackerSpan;
PackerSpan packer_span(const Plan *plan, uint64_t first_frame, uint64_t n_frames);

/** @param w  which has just given out the last frame of the span
 * @param row  gets state and state_bytes
 * @return 0 or -ENOMEM */
int packer_state_save(const PackerSpan *span, const BundleWriter *w, PackedRow *row);

/** Takes the state for hostile.
 * @param w  gets the results; NULL: they are only looked at
 * @param ret  initialised; replaced when the span has an open member
 * @return 0, PACKER_E_ROWS, -ENOMEM */
int packer_state_load(const PackerSpan *span, const PackedRow *row, BundleWriter *w,
                      WriterMark *ret);
