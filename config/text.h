/* How text is shown to people in messages, and how it is written as YAML. Pure text. */
#pragma once

#include <stdbool.h>

#include "lib/base/strbuf.h"

/** @return whether all of it is well-formed UTF-8 */
bool text_is_utf8(const char *s);

/** Adds text, control characters as `\xNN`, cut after max bytes. What stands before an `@` may be a password: `…` instead, but
 * for an absolute path. */
void text_add_spelled(StrBuf *b, const char *s, size_t max);

/** The same in single quotes, cut after 80 bytes. */
void text_add_shown(StrBuf *b, const char *s);

/** Adds well-formed UTF-8 as one YAML scalar on one line: plain where that is safe in block and flow context and cannot be
 * taken for a number, boolean or null, else in double quotes. `${` is written `$${`, which the loader reads as `${`. */
void text_add_yaml(StrBuf *b, const char *s);

/** The same for a mapping's name, in which the loader expands nothing: `${` stays. */
void text_add_yaml_name(StrBuf *b, const char *s);

/** Adds text to a YAML comment: what could end the line or is no character becomes `?`. */
void text_add_comment(StrBuf *b, const char *s);
