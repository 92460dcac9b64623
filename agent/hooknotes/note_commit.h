/* Notes and their ends go into the store, and hooks get their answers. Private to agent/hooknotes.
 */
#pragma once

#include "agent/hooknotes/note.h"

/** Stores the notes that are ADDING or ENDING, in one transaction, and continues with each. */
void note_commit(HookNotes *n);
