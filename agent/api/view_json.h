/* What the API shows, as JSON. */
#pragma once

#include <jansson.h>

#include "agent/api/view.h"

/** @return text as a JSON string, spelled by path_escape() where it is not UTF-8; null for NULL;
 * NULL for lack of memory */
json_t *view_text_json(const char *s);

/** @return `GET /v1/status`, NULL for lack of memory */
json_t *view_status_json(const AgentView *v);

/** @param v  tells how far a delivery under way has come  @param explain  NULL = without it
 * @return one bundle, NULL for lack of memory */
json_t *view_bundle_json(const BundleRecord *b, const AgentView *v, const char *explain);
