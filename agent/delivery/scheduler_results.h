/* What the result of a delivery means for the destination, the delivery and the bundle. Private to
 * this folder. */
#pragma once

#include "agent/delivery/scheduler_private.h"

/** Records how a delivery ended. The bundle may be gone afterwards.
 * @param d  a head: of a volume's second worker the first one */
void scheduler_results_handle(Destination *d, Bundle *b, Delivery *job);

/** Moves a bundle on from SHIPPING, or remembers the move until its last worker is back: no other
 * delivery starts before. The bundle may be gone afterwards.
 * @param reason  copied; may be NULL */
void scheduler_results_end_shipping(Scheduler *s, Bundle *b, BundleState to, const char *reason);

/** Ends cancelled bundles that wait for an attempt to complete their object. */
void scheduler_results_end_cancelled(Scheduler *s);
