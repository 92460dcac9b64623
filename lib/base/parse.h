/* Numbers and words from outside, measured before they are used. All reject leading and trailing
 * blanks, signs where the type has none, and overflow. They return 0, -EINVAL for what is not of
 * this form, -ERANGE for what is too large (or outside of the range asked for); *ret is written
 * only on success. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Decimal digits only. */
int parse_u64(const char *s, uint64_t *ret);
int parse_u64_range(const char *s, uint64_t min, uint64_t max, uint64_t *ret);

/** Decimal digits from *at on, before end; *at is behind them then, also when they are too large.
 * @return whether there were any, and they fit */
bool parse_u64_prefix(const char **at, const char *end, uint64_t *ret);

/** @return whether brackets outside of strings are nested deeper than max: what a JSON parser would
 * have to keep on its stack */
bool parse_json_exceeds_depth(const char *s, size_t n, unsigned max);

/** Exactly 2n lower or upper case hex digits. */
int parse_hex_bytes(const char *s, void *buf, size_t n);

/** true/false, yes/no, on/off (YAML 1.1), any case of these. */
int parse_bool(const char *s, bool *ret);

/** @return the index of s among n words, some of which may be NULL; -EINVAL, also for s NULL */
int parse_word(const char *s, const char *const *words, size_t n);

/** @return how many letters are to be added, dropped, changed or swapped with a neighbour to make b
 * of a; UINT_MAX when one is longer than 128 bytes */
unsigned parse_distance(const char *a, const char *b);

/* Defines NAME_name(), the word of an enum's value (NULL for none), and NAME_parse(), 0 or -EINVAL.
 */
#define DEFINE_WORDS(name, Type, words)                                                            \
        const char *name##_name(Type value) {                                                      \
                return (size_t)value < ELEMENTSOF(words) ? (words)[value] : NULL;                  \
        }                                                                                          \
        int name##_parse(const char *s, Type *ret) {                                               \
                const int i = parse_word(s, words, ELEMENTSOF(words));                             \
                if (i < 0)                                                                         \
                        return i;                                                                  \
                *ret = (Type)i;                                                                    \
                return 0;                                                                          \
        }                                                                                          \
        struct words_need_a_semicolon

/** `64KiB 8MiB 1GiB 2TiB`, `64K 8M 1G 2T` (binary too), a plain number. */
int parse_bytes(const char *s, uint64_t *ret);

/** SIZE/s; `0` and `off` are 0. */
int parse_rate(const char *s, uint64_t *ret);

/** `250ms 5s 10m 2h 7d`, and `us`; a unit is needed unless it is 0. */
int parse_duration_usec(const char *s, uint64_t *ret);

/** `5%` is 50, `0.5%` is 5; at most 100%. */
int parse_permille(const char *s, unsigned *ret);

/** The three format into a buffer of PARSE_FORMAT_SIZE and return it. */
#define PARSE_FORMAT_SIZE 32

/** As parse_bytes reads them, exactly: by the largest unit that divides it (`8MiB`, `1000`). */
const char *parse_format_bytes(char *buf, uint64_t bytes);

/** As parse_duration_usec reads them, exactly: `90s`, `250ms`, `2h`. */
const char *parse_format_duration(char *buf, uint64_t usec);

/** For people: `1.5 GiB`, `512 B`. */
const char *parse_format_human(char *buf, uint64_t bytes);

/* ---- bytes that claim to be UTF-8 ---- */

/** Measures the well-formed character at s. @param n  bytes that may be read, ≥ 1
 * @return 1…4, or 0 when there is none (overlong, surrogate, above U+10FFFF, cut short)
 * @see The Unicode Standard, table 3-7 */
size_t utf8_char_size(const char *s, size_t n);

/** Spells the next character so that it can neither end a line nor move a terminal's cursor:
 * control characters (C0, DEL, C1), what ends a line or turns the direction of writing around
 * (U+2028–202E, U+2066–2069), and bytes that are not UTF-8 become `\xNN`, all else stays. Not
 * reversible: a backslash stays too.
 * @param n  bytes that may be read, ≥ 1  @param buf  gets the spelling, NUL-terminated
 * @return how many bytes of s were used, ≥ 1 */
#define UTF8_ESCAPE_SIZE 13
size_t utf8_escape(const char *s, size_t n, char buf[static UTF8_ESCAPE_SIZE]);
