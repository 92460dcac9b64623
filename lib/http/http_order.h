/* An order's parts, looked at before libcurl sees them. Private to http.c; plain text, knows no library. */
#pragma once

#include <stdbool.h>

#include "lib/http/http.h"

/** @return whether the method is known, the body fits it, and the URL is spelled so that it can be sent as it is: printable ASCII without blanks and
 * `#`, no longer than 32 KiB. What the URL means is not looked at. */
bool http_order_is_sound(const HttpOrder *o);

/** Spells a `Name: value` line as libcurl wants it: an empty value, which would mean to it that the header is not sent, by a semicolon.
 * @return 0 and *ret (the caller's), -EINVAL no such line, -ENOMEM */
int http_order_header(const char *line, char **ret);

/** @param name  as it is spelled in the code, without the colon. @return whether one of the lines is this header */
bool http_order_has_header(const HttpOrder *o, const char *name);
