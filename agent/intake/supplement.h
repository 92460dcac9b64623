/* Supplements. See supplement.c. */
#pragma once

#include "agent/intake/source.h"

/** @return 0 and the id of the next supplement of the bundle's unit; -ENOENT, -EOVERFLOW: there is
 * none */
int supplement_next_id(const IntakeSource *s, const Bundle *b, char ret[BUNDLE_ID_SIZE]);
/** @return 0 and the record of the bundle that `id` is a supplement of; STORE_E_NOT_FOUND; -errno
 */
int supplement_base(const IntakeSource *s, const char *id, BundleRecord *ret);

/** Probes a unit for files that were not shipped, and starts a supplement with them. */
void supplement_probe(IntakeSource *s, const ScanUnit *u, const char *base_id);
/** Starts a supplement with the members that a probe has counted.
 * @param u  its `relative` and `st` are set here
 * @param origin  ORIGIN_SUPPLEMENT, or ORIGIN_LINKS: the members are in links of the supplement
 * alone
 * @return false: the operator has refused the same one before */
bool supplement_start(IntakeSource *s, ScanUnit *u, Origin origin, BundleRecord *base);
