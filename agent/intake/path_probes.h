/* Probes of paths that events and hooks have named. See path_probes.c. */
#pragma once

#include "agent/intake/source.h"

/** @return 0, -errno */
int path_probes_init(IntakeSource *s);
void path_probes_done(IntakeSource *s);

/** @param relative  a path below the fixed part: of a unit, or of something in it */
void path_probes_add(IntakeSource *s, const char *relative);
