/* What the routes of the API share: a call, and how it is answered. Nobody outside agent/api includes this. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "agent/api/view.h"
#include "lib/base/cleanup.h"
#include "lib/http/mhd_loop.h"

typedef struct ApiCall { /* all borrowed */
        const AgentBackend *backend;
        const HttpRequest *request;
        HttpResponse *response;
        const char *id, *action; /* from the path, where the route has them */
} ApiCall;

/* Every call gets one answer: the last one given. */

/** @param text  taken over; NULL (no memory) becomes a 500 */
void api_answer_text(ApiCall *c, unsigned status, const char *content_type, char *text);
/** @param v  taken over; NULL (no memory) becomes a 500 */
void api_answer_json(ApiCall *c, unsigned status, json_t *v);
/** @param code  for programs; docs/API.md has them all */
void api_answer_error(ApiCall *c, unsigned status, const char *code, const char *fmt, ...)
        _printf_(4, 5);
/** The method is not one that the route has. `allow` (static) goes into the header. */
void api_refuse_method(ApiCall *c, const char *allow);
/** @param error  -errno of the backend */
void api_answer_failure(ApiCall *c, int error);

/** Answers what the backend did not do: -EPERM with 409 and `message` (NULL: not possible now), another -errno as api_answer_failure().
 * @return whether it was one of these; else there is no answer yet */
bool api_answer_fault(ApiCall *c, int r, const char *message);

/** Refuse with 400. @return false, for the caller to return */
bool api_refuse_query(ApiCall *c, const HttpQuery *q, const char *remedy);
/** @return whether the call has no query; else it is answered */
bool api_refuse_any_query(ApiCall *c);

bool api_is_get(const char *method); /* or HEAD */

/** Spells what a stranger sent so that it can be shown: bounded by size, no control characters, UTF-8. @return buf */
const char *api_quote(const char *s, char *buf, size_t size);

/* api_bundles.c */
#define API_BUNDLES_PATH "/v1/bundles"
void api_list_bundles(ApiCall *c);
void api_get_bundle(ApiCall *c);
void api_post_bundle(ApiCall *c); /* c->action */
void api_no_bundle(ApiCall *c);   /* 404 for c->id */

/* api_snapshots.c */
void api_post_snapshot(ApiCall *c);
/** Answers `/v1/snapshots/NAME` and `/v1/snapshots/NAME/FILE`. @return whether it was one */
bool api_route_snapshot(ApiCall *c);
