/* The row of a new bundle. See new_bundle.c. */
#pragma once

#include "agent/intake/source.h"

/** Records a bundle and starts to probe it, if it may be worked on.
 * @param base  NULL with ORIGIN_FOUND; the bundle that this is the next supplement of */
void new_bundle_start(IntakeSource *s, const ScanUnit *u, Origin origin, BundleRecord *base);
/** Only records it. @param base  as above @return NULL: later, or never; logged */
Bundle *new_bundle_record(IntakeSource *s, const ScanUnit *u, Origin origin, BundleRecord *base);
/** @return 0 and the id of a supplement; -EOVERFLOW */
int new_bundle_supplement_id(char ret[BUNDLE_ID_SIZE], const BundleRecord *base, unsigned number);
/** @return 0, -ENOMEM */
int new_bundle_fill_deliveries(const IntakeSource *s, BundleRecord *rec);
/** Starts a transaction: bundles that are recorded until new_bundle_commit() are probed after it.
 * @return 0, -errno */
int new_bundle_begin(IntakeSource *s);
/** Commits it. Where that fails, a later scan finds the units again. @return 0, -errno */
int new_bundle_commit(IntakeSource *s);

/** That bundles cannot be recorded is logged once while scan after scan fails. */
void new_bundle_on_walk_end(IntakeSource *s);
void new_bundle_on_scan_end(IntakeSource *s);
/** n units could not be recorded; a later scan tries again. @param error  -errno */
void new_bundle_report_postponed(IntakeSource *s, int error, size_t n);
