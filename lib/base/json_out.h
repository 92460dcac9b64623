/* Writes JSON into a StrBuf, member by member, with no library: for programs that have to be small
 * (the hook) and for records that are written one by one. Commas are set by what stands before.
 * Reading JSON is jansson's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/strbuf.h"

/** Opens an object or an array. @param key  NULL in an array and at the top */
void json_out_object(StrBuf *b, const char *key);
void json_out_array(StrBuf *b, const char *key);
void json_out_end_object(StrBuf *b);
void json_out_end_array(StrBuf *b);

/** A string of n bytes, or NULL as null. What is no UTF-8 becomes `\xNN` in the text (a backslash
 * that is there stays), control characters JSON's own escapes: whatever comes, the result is valid
 * JSON. */
void json_out_text(StrBuf *b, const char *key, const char *s, size_t n);
void json_out_string(StrBuf *b, const char *key, const char *s);
/** The quoted string alone, as json_out_text() spells it. */
void json_out_quoted(StrBuf *b, const char *s, size_t n);
/** As paths are spelled everywhere (docs/API.md): every invalid byte and every backslash as `\xNN`.
 */
void json_out_path(StrBuf *b, const char *key, const char *path);
void json_out_u64(StrBuf *b, const char *key, uint64_t v);
void json_out_i64(StrBuf *b, const char *key, int64_t v);
/** A string, `"0x1f"`: readers of JSON have 53 bits. */
void json_out_hex(StrBuf *b, const char *key, uint64_t v);
void json_out_bool(StrBuf *b, const char *key, bool v);
void json_out_null(StrBuf *b, const char *key);
/** JSON that was made before. */
void json_out_raw(StrBuf *b, const char *key, const char *json);
