/* What a bundle lacks. See losses.c. */
#pragma once

#include "agent/intake/source.h"
#include "lib/neuron/scan.h"

/** @return whether files were left out that may be evidence */
bool losses_any(const ScanUnit *u);

/** Writes what a scan left out into the row of a bundle, in place of what stood there. */
void losses_label(Bundle *b, const ScanUnit *u);
/** Adds a reason to a row, which is not complete from now on. */
void losses_add_reason(BundleRecord *rec, const char *reason);

/** Logs and counts all that a scan left out of a bundle. */
void losses_report(IntakeSource *s, const Bundle *b, const ScanUnit *u);
/** Logs what a scan left out for one reason, and counts what is new.
 * @param id  the bundle that lacks it; NULL: it belongs to no bundle
 * @param n_counted  how many of them bundle_discards_total has already */
void losses_report_skip(IntakeSource *s, const char *id, const ScanUnit *u, ScanSkip skip,
                        uint64_t n_counted);
