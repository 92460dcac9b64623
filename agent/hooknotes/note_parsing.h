/* Notes are parsed, one after another. Private to agent/hooknotes. */
#pragma once

#include "agent/hooknotes/note.h"

int note_parsing_start(HookNotes *n); /* @return 0, -errno */
void note_parsing_stop(HookNotes *n);

/** Charges an owner for a note that is not parsed yet. At the limit, the owner with the most
 * unparsed bytes loses its newest note. @return whether there is space for this one */
bool note_parsing_request_space(HookNotes *n, const Owner *o, uint64_t bytes);
/** Releases what was charged for a note that is not parsed after all. */
void note_parsing_release_space(HookNotes *n, const Owner *o, uint64_t bytes);
/** Parses the next note, unless one is being parsed. */
void note_parsing_run(HookNotes *n);
