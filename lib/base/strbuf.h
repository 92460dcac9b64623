/* A growing string. An allocation failure is remembered and returned once, by strbuf_detach() or
 * strbuf_error(). */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "lib/base/cleanup.h"

typedef struct StrBuf {
        char *text; /* always NUL-terminated when not NULL */
        size_t n, n_allocated;
        bool failed;
} StrBuf;

#define STRBUF_INIT ((StrBuf){ 0 })

void strbuf_add(StrBuf *b, const char *s);
void strbuf_add_n(StrBuf *b, const void *data, size_t n);
void strbuf_addf(StrBuf *b, const char *fmt, ...) _printf_(2, 3);
/** As utf8_escape() spells it (lib/base/parse.h): one line that leaves a terminal alone. */
void strbuf_add_escaped(StrBuf *b, const char *s);
/** As strbuf_add_escaped(), as a code span of Markdown, in tables too: nothing in it is markup.
 * Adds nothing for "". */
void strbuf_add_code(StrBuf *b, const char *s);
void strbuf_clear(StrBuf *b);      /* keeps the memory */
int strbuf_error(const StrBuf *b); /* 0 or -ENOMEM */
char *strbuf_detach(StrBuf *b); /* the caller's; NULL after a failure; "" when nothing was added */
void strbuf_done(StrBuf *b);

/** A text of its own, without a buffer. @return the caller's; NULL for lack of memory */
char *strbuf_format(const char *fmt, ...) _printf_(1, 2);
char *strbuf_vformat(const char *fmt, va_list ap) _printf_(1, 0);
