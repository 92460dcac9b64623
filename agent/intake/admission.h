/* Which bundles are worked on. See admission.c; intake.h has intake_source_resume_bundle(). */
#pragma once

#include "agent/intake/source.h"

void admission_init(IntakeContext *c);

/** @param uid  of the unit. @return whether one more bundle of this owner may be worked on: it is
 * counted; else a later scan finds the unit again */
bool admission_request(IntakeSource *s, const char *path, uid_t uid);
/** The bundle is not worked on any more. */
void admission_release(IntakeSource *s, Bundle *b);
/** @return whether half of the bound is free */
bool admission_has_space(const IntakeSource *s);
/** @return whether a bundle that ends now makes half of the bound free, and bundles are parked. It
 * is so once for all that wait, not for each that ends. */
bool admission_is_resumable(const IntakeSource *s);
/** Resumes parked bundles if there is space. */
void admission_resume_parked(IntakeSource *s);
