/* UTF-8 by the table of the Unicode Standard, whatever the locale. */
#include "lib/base/utf8.h"

#include <stdio.h>
#include <string.h>

size_t utf8_char_size(const char *s, size_t n) {
        const unsigned char *p = (const unsigned char *)s;
        /* Only the second byte has a range that depends on the first: it excludes overlong forms,
         * surrogates and what is above U+10FFFF. */
        unsigned char low = 0x80, high = 0xbf;
        size_t size;

        if (p[0] < 0x80)
                return 1;
        if (p[0] >= 0xc2 && p[0] <= 0xdf)
                size = 2;
        else if (p[0] >= 0xe0 && p[0] <= 0xef)
                size = 3;
        else if (p[0] >= 0xf0 && p[0] <= 0xf4)
                size = 4;
        else
                return 0;
        if (n < size)
                return 0;
        if (p[0] == 0xe0)
                low = 0xa0;
        else if (p[0] == 0xed)
                high = 0x9f;
        else if (p[0] == 0xf0)
                low = 0x90;
        else if (p[0] == 0xf4)
                high = 0x8f;
        if (p[1] < low || p[1] > high)
                return 0;
        for (size_t i = 2; i < size; i++)
                if (p[i] < 0x80 || p[i] > 0xbf)
                        return 0;
        return size;
}

size_t utf8_spell(const char *s, size_t n, char buf[static UTF8_SPELL_SIZE]) {
        const unsigned char *p = (const unsigned char *)s;
        size_t size = utf8_char_size(s, n);

        if (size == 0 || (size == 1 && (p[0] < 0x20 || p[0] == 0x7f))) {
                (void)snprintf(buf, UTF8_SPELL_SIZE, "\\x%02x", p[0]);
                return 1;
        }
        if (size == 2 && p[0] == 0xc2 && p[1] < 0xa0) { /* C1: ESC [ in one character */
                (void)snprintf(buf, UTF8_SPELL_SIZE, "\\x%02x\\x%02x", p[0], p[1]);
                return 2;
        }
        memcpy(buf, s, size);
        buf[size] = '\0';
        return size;
}
