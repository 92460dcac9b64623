/* Notes are parsed, one after another. Private to agent/hooknotes. */
#pragma once

#include "agent/hooknotes/note.h"

int note_parsing_start(HookNotes *n); /* @return 0, -errno */
void note_parsing_stop(HookNotes *n);

/** Parses the next note, unless one is being parsed. */
void note_parsing_run(HookNotes *n);
