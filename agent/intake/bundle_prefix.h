/* Where in a bucket a bundle goes: what its notes were granted in place of the destination's own prefix. On the loop. */
#pragma once

#include "agent/store/bundle.h"
#include "agent/store/store.h"

/** Sets rec.s3_prefix of a bundle that gets ready, by the notes of its unit that are heard: one that it has stays only if one of them was granted it, and
 * one that has none, and was never begun, gets that of the first that was granted any. A supplement goes where its base went, or, where that cannot be
 * told any more, to the destination's own. */
void bundle_prefix_settle(Store *store, Bundle *b);
