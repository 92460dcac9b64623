/* One name against a pattern with typed variables: what templates and the runtime's file names have
 * in common. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** Where a variable's value lies in the name; n = 0: the pattern has no such variable. */
typedef struct PatternSpan {
        const char *text; /* borrowed from the name */
        size_t n;
} PatternSpan;

typedef struct PatternMatch {
        PatternSpan of[26]; /* by letter: of['p' - 'a'] */
} PatternMatch;

/** Matches the whole of `name` against `pattern`. `%d` date-time in either spelling, `%c` 1 to 32
 * hex digits, `%i` an instance id (`i-<hex>` or 1 to 64 of `A-Za-z0-9._-`), any other lower-case
 * letter 1 to 20 decimal digits, `%%` a percent sign. A variable that stands twice must have the
 * same value twice. The work is bounded whatever pattern and name say; past the bound it is no
 * match.
 * @param ret  written only on a match
 * @return whether it matches */
bool pattern_match(const char *pattern, const char *name, PatternMatch *ret);

/** Copies a value into a buffer of the caller, NUL-terminated. A value that does not fit is left
 * out: "". */
void pattern_copy(const PatternMatch *m, char letter, char *buf, size_t size);
