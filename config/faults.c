/* Collects the faults of one file, each with the place of its key spelled out, and at most
 * FAULTS_MAX of them. Also writes foreign text for messages (control characters escaped, passwords
 * left out, cut) and as YAML scalars.
 *
 * The quoting is our own: libyaml's emitter is not used outside of config/load.c, and `${` needs an
 * escape that YAML does not have. What is wrong with a key is left to the callers. */
#include "config/faults.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

enum { TEXT_SHOWN_MAX = 80 };

bool text_is_utf8(const char *s) {
        size_t n = strlen(s);

        while (n > 0) {
                size_t size = utf8_char_size(s, n);
                if (size == 0)
                        return false;
                s += size;
                n -= size;
        }
        return true;
}

/* Bytes of `scheme://`; 0 = there is none. */
static size_t scheme_bytes(const char *s) {
        size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
        return n > 0 && strncmp(s + n, "://", 3) == 0 ? n + 3 : 0;
}

void text_add_spelled(StrBuf *b, const char *s, size_t max) {
        const char *at = s[0] == '/' ? NULL : strrchr(s, '@');
        size_t used = 0;

        if (at) {
                strbuf_add_n(b, s, MIN(scheme_bytes(s), max));
                strbuf_add(b, "…");
                s = at;
        }
        for (size_t n = strlen(s); used < n;) {
                char buf[UTF8_ESCAPE_SIZE];
                if (used >= max) {
                        strbuf_add(b, "…");
                        return;
                }
                used += utf8_escape(s + used, n - used, buf);
                strbuf_add(b, buf);
        }
}

void text_add_shown(StrBuf *b, const char *s) {
        strbuf_add(b, "'");
        text_add_spelled(b, s, TEXT_SHOWN_MAX);
        strbuf_add(b, "'");
}

/* The code point at s, which begins a well-formed character of `size` bytes. */
static uint32_t code_point(const char *s, size_t size) {
        static const unsigned char first_bits[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
        uint32_t c = (unsigned char)s[0] & first_bits[size];

        for (size_t i = 1; i < size; i++)
                c = c << 6 | ((unsigned char)s[i] & 0x3f);
        return c;
}

/* @return whether the character may stand unescaped in a quoted scalar on one line */
static bool is_printable(uint32_t c) {
        if (c < 0x20 || (c >= 0x7f && c <= 0xa0)) /* C0, DEL, C1 with NEL, no-break space */
                return false;
        return c != 0x2028 && c != 0x2029 && c != 0xfeff && c != 0xfffe && c != 0xffff;
}

static bool is_plain(const char *s) {
        static const char *const special[] = { "true", "false", "yes", "no",  "on",
                                               "off",  "y",     "n",   "null" };
        static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

        if (s[0] == '\0' || !(strchr(letters, s[0]) || s[0] == '/' || s[0] == '_'))
                return false;
        for (const char *p = s; *p; p++)
                if (!strchr(letters, *p) && !strchr("0123456789/_.%+=@~^*-", *p))
                        return false;
        for (size_t i = 0; i < ELEMENTSOF(special); i++)
                if (strcasecmp(s, special[i]) == 0)
                        return false;
        return true;
}

static void add_escaped(StrBuf *b, uint32_t c) {
        if (c == '"' || c == '\\')
                strbuf_addf(b, "\\%c", (char)c);
        else if (c == '\n' || c == '\t')
                strbuf_add(b, c == '\n' ? "\\n" : "\\t");
        else
                strbuf_addf(b, c <= 0xff ? "\\x%02X" : "\\u%04X", c);
}

void text_add_yaml(StrBuf *b, const char *s, bool is_value) {
        size_t n = strlen(s);

        if (is_plain(s)) {
                strbuf_add(b, s);
                return;
        }
        strbuf_add(b, "\"");
        while (n > 0) {
                size_t size = MAX(utf8_char_size(s, n), (size_t)1);
                uint32_t c = code_point(s, size);
                if (c == '"' || c == '\\' || !is_printable(c)) {
                        add_escaped(b, c);
                } else {
                        if (is_value && c == '$' && s[1] == '{')
                                strbuf_add(b, "$");
                        strbuf_add_n(b, s, size);
                }
                s += size;
                n -= size;
        }
        strbuf_add(b, "\"");
}

enum { SUB_SHOWN_MAX = 64 };

static void add_place(StrBuf *b, const Spot *spot) {
        const char *brackets = spot->name ? strstr(spot->name, "[]") : NULL;

        if (!spot->name)
                return;
        if (brackets) {
                strbuf_add_n(b, spot->name, (size_t)(brackets - spot->name));
                strbuf_addf(b, "[%zu]%s", spot->index, brackets + 2);
        } else {
                strbuf_add(b, spot->name);
        }
        if (spot->item != FAULTS_NO_ITEM)
                strbuf_addf(b, "[%zu]", spot->item - 1);
        if (!spot->sub) {
                if (b->n > 0 && b->text[b->n - 1] == '.') /* a prefix alone: the mapping itself */
                        b->text[--b->n] = '\0';
                return;
        }
        if (b->n > 0 && b->text[b->n - 1] != '.')
                strbuf_add(b, ".");
        text_add_spelled(b, spot->sub, SUB_SHOWN_MAX);
}

void faults_add(Faults *f, const Spot *spot, const char *remedy, const char *fault, ...) {
        _cleanup_(strbuf_done) StrBuf place = STRBUF_INIT;
        DiagLocation where = { .file = f->file, .line = spot->line };
        va_list ap;

        f->n++;
        if (f->n > FAULTS_MAX) {
                if (f->n == FAULTS_MAX + 1)
                        diag_add(f->diags, (DiagLocation){ .file = f->file },
                                 "fix these, then check again", "there are further faults");
                return;
        }
        va_start(ap, fault);
        _cleanup_free_ char *text = strbuf_vformat(fault, ap);
        va_end(ap);
        add_place(&place, spot);
        where.key = place.n > 0 ? place.text : NULL;
        diag_add(f->diags, where, remedy, "%s", text ? text : "is at fault (out of memory)");
}
