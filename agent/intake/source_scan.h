/* The scans of a source. See source_scan.c; intake.h has intake_source_flush() and _hold(). */
#pragma once

#include "agent/intake/source.h"

/** Scans now, or when the scan that runs is over. */
void source_scan_start(IntakeSource *s);
/** Has the next scan start in scan_interval; within a minute if new units wait for that. */
void source_scan_arm(IntakeSource *s);
