/* Bytes that claim to be UTF-8: where a character ends, and how one is shown on a line for people.
 */
#pragma once

#include <stddef.h>

/** Measures the well-formed character at s. @param n  bytes that may be read, ≥ 1
 * @return 1…4, or 0 when there is none (overlong, surrogate, above U+10FFFF, cut short)
 * @see The Unicode Standard, table 3-7 */
size_t utf8_char_size(const char *s, size_t n);

/** Spells the next character so that it can neither end a line nor move a terminal's cursor:
 * control characters (C0, DEL, C1) and bytes that are not UTF-8 become `\xNN`, all else stays. Not
 * reversible: a backslash stays too.
 * @param n  bytes that may be read, ≥ 1  @param buf  gets the spelling, NUL-terminated
 * @return how many bytes of s were used, ≥ 1 */
#define UTF8_SPELL_SIZE 9
size_t utf8_spell(const char *s, size_t n, char buf[static UTF8_SPELL_SIZE]);
