/* The scans of a source. See source_scan.c; intake.h has intake_source_flush() and _hold(). */
#pragma once

#include "agent/intake/source.h"

/** @return whether one runs, or what it found is being handled */
static inline bool source_scan_is_running(const IntakeSource *s) {
        return s->scan.state == SOURCE_SCAN_WALKING || s->scan.state == SOURCE_SCAN_HANDLING;
}

/** @return whether the last one did not read all, or could not record what it found */
static inline bool source_scan_has_failed(const IntakeSource *s) {
        return s->scan.result == SOURCE_SCAN_UNREAD || s->rows.is_postponing;
}

int source_scan_init(IntakeSource *s);
/** Frees what it has, but not the pool. */
void source_scan_done(IntakeSource *s);

/** Scans now, or when the scan that runs is over. */
void source_scan_start(IntakeSource *s);
/** Has the next scan start in scan_interval; within a minute if new units wait for that. */
void source_scan_arm(IntakeSource *s);
