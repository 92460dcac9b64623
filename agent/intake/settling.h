/* A bundle until it is READY. See settling.c. */
#pragma once

#include "agent/intake/source.h"

void settling_init(IntakeContext *c);

/** Probes the unit of a SETTLING bundle now, or when the probe that runs has ended. */
void settling_probe(Bundle *b);
