/* Writes JSON into a StrBuf, member by member, without a library. Commas follow from the text so
 * far. That objects and arrays are closed is left to the caller; reading JSON is left to jansson.
 */
#include "lib/base/json_out.h"

#include <inttypes.h>
#include <string.h>

#include "lib/base/parse.h"

static void add_char(StrBuf *b, const char *s, size_t n, bool spells_backslash) {
        unsigned char c = (unsigned char)*s;
        if (n > 1)
                strbuf_add_n(b, s, n);
        else if (n == 0 || (c == '\\' && spells_backslash))
                strbuf_addf(b, "\\\\x%02x", c);
        else if (c == '"' || c == '\\')
                strbuf_addf(b, "\\%c", c);
        else if (c < 0x20)
                strbuf_addf(b, "\\u%04x", c);
        else
                strbuf_add_n(b, s, 1);
}

static void add_quoted(StrBuf *b, const char *s, size_t n, bool spells_backslash) {
        strbuf_add(b, "\"");
        for (size_t i = 0, size; i<n; i += size> 0 ? size : 1) {
                size = utf8_char_size(s + i, n - i);
                add_char(b, s + i, size, spells_backslash);
        }
        strbuf_add(b, "\"");
}

/* A member follows a comma, unless it is the first of what is open, or stands at the top of a line.
 */
static void start_value(StrBuf *b, const char *key) {
        if (b->failed)
                return;
        if (b->n > 0 && !strchr("{[\n", b->text[b->n - 1]))
                strbuf_add(b, ",");
        if (!key)
                return;
        add_quoted(b, key, strlen(key), false);
        strbuf_add(b, ":");
}

void json_out_quoted(StrBuf *b, const char *s, size_t n) {
        add_quoted(b, s, n, false);
}

void json_out_object(StrBuf *b, const char *key) {
        start_value(b, key);
        strbuf_add(b, "{");
}

void json_out_array(StrBuf *b, const char *key) {
        start_value(b, key);
        strbuf_add(b, "[");
}

void json_out_end_object(StrBuf *b) {
        strbuf_add(b, "}");
}

void json_out_end_array(StrBuf *b) {
        strbuf_add(b, "]");
}

void json_out_null(StrBuf *b, const char *key) {
        json_out_raw(b, key, "null");
}

void json_out_text(StrBuf *b, const char *key, const char *s, size_t n) {
        if (!s) {
                json_out_null(b, key);
                return;
        }
        start_value(b, key);
        add_quoted(b, s, n, false);
}

void json_out_string(StrBuf *b, const char *key, const char *s) {
        json_out_text(b, key, s, s ? strlen(s) : 0);
}

void json_out_path(StrBuf *b, const char *key, const char *path) {
        if (!path) {
                json_out_null(b, key);
                return;
        }
        start_value(b, key);
        add_quoted(b, path, strlen(path), true);
}

void json_out_u64(StrBuf *b, const char *key, uint64_t v) {
        start_value(b, key);
        strbuf_addf(b, "%" PRIu64, v);
}

void json_out_i64(StrBuf *b, const char *key, int64_t v) {
        start_value(b, key);
        strbuf_addf(b, "%" PRId64, v);
}

void json_out_hex(StrBuf *b, const char *key, uint64_t v) {
        start_value(b, key);
        strbuf_addf(b, "\"0x%" PRIx64 "\"", v);
}

void json_out_bool(StrBuf *b, const char *key, bool v) {
        json_out_raw(b, key, v ? "true" : "false");
}

void json_out_raw(StrBuf *b, const char *key, const char *json) {
        start_value(b, key);
        strbuf_add(b, json);
}
