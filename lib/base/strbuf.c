/* A growing string that remembers having failed, so that callers check once. */
#include "lib/base/strbuf.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/parse.h"

enum { STRBUF_FIRST_SIZE = 64 };

/* Reserves n more bytes and the NUL. */
static bool strbuf_reserve(StrBuf *b, size_t n) {
        size_t need, size;
        char *text;

        if (b->failed)
                return false;
        if (__builtin_add_overflow(b->n, n, &need) || __builtin_add_overflow(need, 1, &need))
                goto failed;
        if (need <= b->n_allocated)
                return true;
        size = MAX(b->n_allocated, (size_t)STRBUF_FIRST_SIZE);
        while (size < need)
                if (__builtin_mul_overflow(size, 2, &size))
                        size = need;
        text = realloc(b->text, size);
        if (!text)
                goto failed;
        b->text = text;
        b->n_allocated = size;
        return true;

failed:
        b->failed = true;
        return false;
}

void strbuf_add_n(StrBuf *b, const void *data, size_t n) {
        if (!strbuf_reserve(b, n))
                return;
        if (n > 0)
                memcpy(b->text + b->n, data, n);
        b->n += n;
        b->text[b->n] = '\0';
}

void strbuf_add(StrBuf *b, const char *s) {
        strbuf_add_n(b, s, strlen(s));
}

void strbuf_addf(StrBuf *b, const char *fmt, ...) {
        va_list ap;

        va_start(ap, fmt);
        int n = vsnprintf(NULL, 0, fmt, ap);
        va_end(ap);
        if (n < 0) {
                b->failed = true;
                return;
        }
        if (!strbuf_reserve(b, (size_t)n))
                return;
        va_start(ap, fmt);
        (void)vsnprintf(b->text + b->n, (size_t)n + 1, fmt, ap); /* as long as it was a line ago */
        va_end(ap);
        b->n += (size_t)n;
}

void strbuf_add_escaped(StrBuf *b, const char *s) {
        for (size_t n = strlen(s), at = 0; at < n;) {
                char spelled[UTF8_ESCAPE_SIZE];
                at += utf8_escape(s + at, n - at, spelled);
                strbuf_add(b, spelled);
        }
}

void strbuf_add_code(StrBuf *b, const char *s) {
        if (*s == '\0')
                return;
        strbuf_add(b, "`");
        for (size_t n = strlen(s), at = 0; at < n;) {
                char spelled[UTF8_ESCAPE_SIZE];
                at += utf8_escape(s + at, n - at, spelled);
                strbuf_add(b, *spelled == '`' ? "\\x60" : *spelled == '|' ? "\\x7c" : spelled);
        }
        strbuf_add(b, "`");
}

void strbuf_clear(StrBuf *b) {
        b->n = 0;
        b->failed = false;
        if (b->text)
                b->text[0] = '\0';
}

int strbuf_error(const StrBuf *b) {
        return b->failed ? -ENOMEM : 0;
}

char *strbuf_detach(StrBuf *b) {
        strbuf_add_n(b, NULL, 0); /* an empty one becomes "" */
        if (b->failed) {
                strbuf_done(b);
                return NULL;
        }
        char *text = TAKE_PTR(b->text);
        *b = STRBUF_INIT;
        return text;
}

void strbuf_done(StrBuf *b) {
        free(b->text);
        *b = STRBUF_INIT;
}

char *strbuf_vformat(const char *fmt, va_list ap) {
        char *text;
        return vasprintf(&text, fmt, ap) < 0 ? NULL : text; /* glibc leaves it undefined */
}

char *strbuf_format(const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        char *text = strbuf_vformat(fmt, ap);
        va_end(ap);
        return text;
}
