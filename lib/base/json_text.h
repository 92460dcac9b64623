/* Writes a JSON value as text, complete or not at all. When the memory for a key is refused, the
 * json_dumps() of jansson 2.14 continues and returns invalid JSON; this one returns NULL. */
#pragma once

#include <jansson.h>

/** As json_dumps(). @param flags  JSON_COMPACT … @return the caller's; NULL for lack of memory */
char *json_text(const json_t *v, size_t flags);
