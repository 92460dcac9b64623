/* What the notes in the store decide about a unit. See unit_notes.c. */
#pragma once

#include "agent/store/bundle.h"
#include "agent/store/store.h"

/** @return who sent a note */
Owner unit_notes_sender(const StoredNote *stored);
/** @param by, uid  of a hook, and of a directory. @return whether the hook may name it a unit */
bool unit_notes_may_name(uid_t by, uid_t uid);
/** @return whether a note of somebody who may do so has named this directory a unit
 * @param uid  of the directory */
bool unit_notes_name_unit(Store *store, const StoredUnit *unit, uid_t uid);
/** @return whether there is a note about a unit, whoever sent it */
bool unit_notes_have_unit(Store *store, const StoredUnit *unit);

/** Sets the S3 prefix of a bundle. One that it has stays only if a note of its unit that counts was
 * granted it; one that has none, and was never begun, gets that of the first that was granted any.
 * A supplement goes where its base went, or, where that cannot be known any more, to the
 * destination's own. */
void unit_notes_set_s3_prefix(Store *store, Bundle *b);
