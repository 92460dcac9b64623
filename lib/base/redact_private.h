/* What the pass over a text and the forms that it knows share. Private to redact*.c. */
#pragma once

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { REDACT_URL_BYTES_MAX = 512 }; /* of user and password */

typedef struct Scan {
        const char *s;
        size_t n;
        bool has_key_id;   /* an AKIA or ASIA id is somewhere: 40 bytes may be what belongs to it */
        size_t jwt_beyond; /* no JWT begins before here */
} Scan;

static inline bool redact_is_one_of(char c, const char *chars) {
        return c != '\0' && strchr(chars, c);
}

static inline bool redact_is_name_char(char c) {
        return isalnum((unsigned char)c) || redact_is_one_of(c, "_-.");
}

static inline bool redact_begins(const Scan *t, size_t i, const char *what) {
        size_t n = strlen(what);
        return n <= t->n - i && memcmp(t->s + i, what, n) == 0;
}

static inline size_t redact_span(const Scan *t, size_t i, const char *chars) {
        size_t from = i;
        while (i < t->n && redact_is_one_of(t->s[i], chars))
                i++;
        return i - from;
}

static inline bool redact_is_port(const Scan *t, size_t from, size_t to) {
        return redact_span(t, from, "0123456789") == to - from;
}

/* Whether a word may begin here: also after `%3D` and after an escape such as `\n` in a log line. */
static inline bool redact_begins_word(const Scan *t, size_t i) {
        if (i == 0 || !(isalnum((unsigned char)t->s[i - 1]) || t->s[i - 1] == '_'))
                return true;
        return (i >= 2 && t->s[i - 2] == '\\') ||
               (i >= 3 && t->s[i - 3] == '%' && isxdigit((unsigned char)t->s[i - 2]));
}

/** @return the text as it is scanned, from its beginning; borrowed */
Scan redact_scan(const char *text, size_t n);

/** What is a secret by its form alone. @return how many bytes from i on are to be taken out, 0 for none */
size_t redact_known_form(Scan *t, size_t i);

/** The block that begins at i, or what is there of it. @return as redact_known_form() */
size_t redact_pem(const Scan *t, size_t i);

/** A PEM block whose beginning the text does not have ends at i. @param least  its body does not begin before that
 * @param ret_from  where its body begins @return as redact_known_form() */
size_t redact_pem_end(const Scan *t, size_t least, size_t i, size_t *ret_from);

/** User and password before a host, at i. @return as redact_known_form() */
size_t redact_user(const Scan *t, size_t i);
