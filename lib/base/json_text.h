/* The text of a JSON value. jansson 2.14 goes on when the memory for a key is refused, and its
 * json_dumps() then returns what is no JSON. */
#pragma once

#include <jansson.h>

/** As json_dumps(). @return the caller's; NULL without memory */
char *json_text(const json_t *v, size_t flags);
