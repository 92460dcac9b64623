/* Links of bundles that have ended. See ended_links.c; intake.h has intake_recheck_links(). */
#pragma once

#include "agent/intake/source.h"

void ended_links_init(IntakeSource *s);
void ended_links_done(IntakeSource *s);

/** Removes the links of a bundle, in the thread of the source. Where that fails, the next start
 * does it: rather too many links than one too few. */
void ended_links_release(IntakeSource *s, const char *id);
/** What becomes of the links of a bundle that ends. */
void ended_links_on_final(IntakeSource *s, const Bundle *b);
/** @return whether the row is of this source, by name and place */
bool ended_links_are_of_source(const IntakeSource *s, const BundleRecord *rec);
