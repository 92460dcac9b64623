/* What becomes of a unit that was seen. See units.c. */
#pragma once

#include "agent/intake/source.h"

/** A unit was seen. If its content is not what was last known of its path, this starts what has to
 * be done. */
void units_handle(IntakeSource *s, ScanUnit *u);
