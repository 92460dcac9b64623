/* Links that a crash left. See link_sweep.c. */
#pragma once

#include "agent/intake/source.h"

void link_sweep_start(IntakeSource *s);
void link_sweep_done(IntakeSource *s);
/** Starts another sweep if the last one could not decide about all links. */
void link_sweep_repeat(IntakeSource *s);
