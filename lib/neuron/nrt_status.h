/* NRT_STATUS, the runtime's error codes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/** @return `NRT_EXEC_HW_ERR_COLLECTIVES` …, static; NULL for a number that is not known: the list
 * grows, so the number itself is what counts
 * @see nrt_status.h of the Neuron SDK */
const char *nrt_status_name(int64_t code);

/** Reads a decimal number (kept whether known or not) or a symbolic name, whatever its case;
 * `NRT_OOB` too.
 * @return whether it is one of these */
bool nrt_status_parse(const char *s, int64_t *ret);
