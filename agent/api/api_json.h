/* The JSON of docs/API.md. Private to agent/api. All return a new reference, NULL without memory.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "agent/api/view.h"

/** A number above 2^63 - 1 is shown as that. */
json_t *api_json_number(uint64_t n);
/** null for NULL; escaped where it is not UTF-8. */
json_t *api_json_text(const char *s);
json_t *api_json_status(const AgentView *v);
/** @param v        has the progress of a delivery that is underway
 *  @param explain  NULL: without it */
json_t *api_json_bundle(const BundleRecord *b, const AgentView *v, const char *explain);
