/* What is attached to units of a source. See attached.c; intake.h has intake_source_on_attached().
 */
#pragma once

#include "agent/intake/source.h"

void attached_init(IntakeSource *s);
void attached_done(IntakeSource *s);

/** A bundle has ended: removes what it was given, and starts a supplement with what still waits. */
void attached_on_final(IntakeSource *s, const Bundle *b);
/** Handles what a crash left, and what belongs to nothing. */
void attached_sweep(IntakeSource *s);
