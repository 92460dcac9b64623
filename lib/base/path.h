/* Paths as text: joining, and the spelling of member paths that are not UTF-8. Touches no file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** Joins with exactly one slash; an empty part is left out. @return the caller's, NULL for lack of
 * memory */
char *path_join(const char *a, const char *b);

/** @return the part after the last slash (borrowed), the whole when there is none */
const char *path_name(const char *path);

/** @return whether text ends with suffix and has something before it */
bool path_has_suffix(const char *text, const char *suffix);

/** @return the parent as a new string ("/" for "/x", "." for "x"), NULL for lack of memory */
char *path_parent(const char *path);

/** @return whether a component of the path is `..` */
bool path_has_parent(const char *path);

/** @return whether path equals dir or lies below it, component-wise; both absolute or both
 * relative. False when a `..` follows: the text does not show where that leads. */
bool path_is_below(const char *path, const char *dir);

/** Makes a path of absolute text: no `//`, no `/./`, no trailing slash. `..` is kept: it is refused
 * by config. Of nothing it makes ".". @return the caller's */
char *path_simplify(const char *path);

/** Spells a raw path as the manifest does: UTF-8 kept; each invalid byte, each backslash and each
 * control character below 0x20 or 0x7f as `\xNN`. @return the caller's */
char *path_escape(const char *raw);

/** The inverse of path_escape. @return 0 and *ret (the caller's); -EINVAL for a malformed escape or
 * an embedded \x00 */
int path_unescape(const char *escaped, char **ret);
