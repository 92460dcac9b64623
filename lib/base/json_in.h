/* Reads members of a JSON object that was parsed by jansson: the counterpart of json_out.h. What is
 * missing or of another type reads as nothing. */
#pragma once

#include <jansson.h>
#include <stdint.h>

/** @param v  NULL: has no members @return borrowed from v; NULL: no string */
const char *json_in_string(const json_t *v, const char *key);
/** @return 0 also for what is no integer, or negative */
uint64_t json_in_u64(const json_t *v, const char *key);
/** Reads what json_out_path() has written. @return the caller's; NULL: no such string, or no memory
 */
char *json_in_path(const json_t *v, const char *key);
