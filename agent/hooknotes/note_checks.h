/* The directories that notes name are checked, one after another. Private to agent/hooknotes. */
#pragma once

#include "agent/hooknotes/note.h"

int note_checks_start(HookNotes *n); /* @return 0, -errno */
/** A check that hangs is left to its worker. */
void note_checks_stop(HookNotes *n);
/** Checks the directory of the next note that is UNCHECKED, unless a check is running. */
void note_checks_run(HookNotes *n);
/** The time of the running check is over: its note continues without it. */
void note_checks_on_timeout(HookNotes *n);
