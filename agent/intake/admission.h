/* Which bundles are worked on. See admission.c; intake.h has intake_source_resume_bundle(). */
#pragma once

#include "agent/intake/source.h"

void admission_init(IntakeContext *c);

/** @param uid  of the unit @param ret  zero; charged when the bundle may be worked on
 * @return whether it may; else a later scan finds the unit again */
bool admission_request(IntakeSource *s, const char *path, uid_t uid, Charge *ret);
/** The bundle is not worked on any more. */
void admission_release(Bundle *b);

/** A unit waits for a later scan, within a minute. @param why  for lack of space; BOUND_OK: it
 * came too soon */
void admission_defer(IntakeSource *s, BoundAnswer why, const Owner *owner);
/** A scan starts: it finds again what was refused before. What is refused from now on may be where
 * it has been already, and waits for the next one. */
void admission_on_scan(IntakeSource *s);
/** @return whether a scan that is wanted starts at once: half of the bound is free, or a drain or
 * --once waits for it. Else it is a periodic one. */
bool admission_allows_scan(const IntakeSource *s);
/** @return whether half of what was short when a unit was refused is free again: the source should
 * be scanned now. It is so once for all that wait: the next call returns false until the scan
 * has refused one again. */
bool admission_is_resumable(IntakeSource *s);
