/* Files that come into a unit while its bundle is READY or SHIPPING. See late_files.c. */
#pragma once

#include "agent/intake/source.h"

/** Starts a probe of the bundle's unit that links the files which came late. */
void late_files_hold(Bundle *b);
/** The bundle has ended: what came late is shipped or released. */
void late_files_on_final(IntakeSource *s, Bundle *b);
