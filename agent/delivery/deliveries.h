/* The deliveries of one bundle, one for each of its destinations, as its row has them: which are
 * done and which were given up. Pure; private to this folder. */
#pragma once

#include "agent/store/bundle.h"
#include "config/config.h"

/** @return the one to this destination; NULL: there is none */
DeliveryRecord *deliveries_find(const Bundle *b, const char *destination);
/** @return what the agent remembers of its tries since the start */
BundleTries *deliveries_tries(Bundle *b, const DeliveryRecord *delivery);
/** @return whether it failed by its own fault since the start (or since it was retried) */
bool deliveries_has_failed(const Bundle *b, const DeliveryRecord *delivery);

/** @return whether it failed by its own fault as often as `retry.quarantine_after` allows */
bool deliveries_is_given_up(const Config *config, const DeliveryRecord *delivery);
/** @return whether all that are not done were given up, and there is one */
bool deliveries_are_given_up(const Config *config, const Bundle *b);
/** @return the last error of the first one that was given up, borrowed; NULL */
const char *deliveries_given_up_error(const Config *config, const Bundle *b);

bool deliveries_are_done(const Bundle *b);
/** @return whether another one than this is done */
bool deliveries_are_done_elsewhere(const Bundle *b, const DeliveryRecord *but);
/** @return the failures of those that are not done */
unsigned deliveries_n_attempts(const Bundle *b);
/** @return whether an object without a manifest may lie at one of the destinations */
bool deliveries_have_object(Bundle *b);
/** @return `waits for NAME, NAME`, the caller's; NULL for lack of memory */
char *deliveries_list_pending(const Bundle *b);
