/* incident.json of a failure: its roster as a document. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/peers/roster.h"

/** incident.json (`neuron-collectd/incident/1`).
 * @param job_key  "" = null  @return the caller's, NULL: no memory */
char *incident_format(const Roster *r, const char *job_key, size_t *ret_n);
/** @return whether incident.json in `text` has this node's record with at least this revision */
bool incident_has_record(const char *text, size_t n_text, const char *instance_id,
                         uint64_t revision);
