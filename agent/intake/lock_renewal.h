/* Unit locks of a source that nodes share. See lock_renewal.c. */
#pragma once

#include "agent/intake/source.h"

/** Frees what it has, but not the pool. */
void lock_renewal_done(IntakeSource *s);
/** Renews now, and from time to time from now on. */
void lock_renewal_start(IntakeSource *s);
/** Marks a unit as delivered: other nodes do not take it over. Without the mark they may deliver it
 * again. Does nothing on a source that is not shared. */
void lock_renewal_mark_delivered(IntakeSource *s, const char *relative, uint64_t digest);
/** @return whether a task only renews locks: no evidence depends on it, so that nothing waits for
 * it
 */
bool lock_renewal_is_renewal(const SourceTask *t);
/** @return whether marks of deliveries are still to be written */
bool lock_renewal_has_marks(const IntakeSource *s);
