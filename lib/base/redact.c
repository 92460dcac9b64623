/* One pass over the text. What is looked at ahead is either taken out, and then passed over, or bounded: linear, whatever comes. */
#include "lib/base/redact.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "lib/base/json_out.h"
#include "lib/base/redact_private.h"

#define REDACTED "[redacted]"

enum {
        NAME_BYTES_MAX = 256,
        BLANKS_MAX = 8,       /* around a separator */
        COUNT_DIGITS_MAX = 9, /* max_tokens=4096 is no secret */
        BEARER_BYTES_MIN = 8,
        STRING_PREFIX_MAX = 2, /* b'…', rb'…', $'…' */
};

/* Headers whose whole line is the secret. */
static const char *const header_names[] = { "authorization", "proxy-authorization", "cookie",
                                            "set-cookie" };
static const char *const plain_values[] = { "true", "false", "null", "none",     "yes",
                                            "no",   "on",    "off",  "undefined" };

static bool is_blank(char c) {
        return c == ' ' || c == '\t';
}

/* ---- a name and its value ---- */

typedef struct Value {
        size_t from, to; /* to is where to go on: behind a closing quote it is not */
} Value;

/* Passes over a quote, which in a log line may be `\"`. @return the quote, or 0 */
static char skip_quote(const Scan *t, size_t *i) {
        size_t k = *i;
        while (k < t->n && t->s[k] == '\\' && k - *i < 4)
                k++;
        if (k >= t->n || !redact_is_one_of(t->s[k], "\"'`"))
                return 0;
        *i = k + 1;
        return t->s[k];
}

/* The same with what some languages have before it: `b'…'`, `u'…'`, `$'…'`. */
static char skip_opening_quote(const Scan *t, size_t *i) {
        size_t k = *i;
        while (k < t->n && k - *i < STRING_PREFIX_MAX && redact_is_one_of(t->s[k], "bBuUrRfF$"))
                k++;
        char quote = skip_quote(t, &k);
        if (quote)
                *i = k;
        return quote;
}

static size_t skip_blanks(const Scan *t, size_t i) {
        for (size_t k = 0; k < BLANKS_MAX && i < t->n && is_blank(t->s[i]); k++)
                i++;
        return i;
}

/* @return whether one is there, and *i behind it */
static bool skip_separator(const Scan *t, size_t *i) {
        size_t k = *i;
        (void)skip_quote(t, &k); /* of the name: may be missing */
        k = skip_blanks(t, k);
        if (k >= t->n)
                return false;
        if (redact_begins(t, k, "::"))
                return false; /* C++ */
        if (redact_begins(t, k, ":=") || redact_begins(t, k, "=>"))
                k += 2;
        else if (redact_begins(t, k, "%3D") || redact_begins(t, k, "%3d"))
                k += 3;
        else if (t->s[k] == '=' || t->s[k] == ':')
                k++;
        else
                return false;
        *i = skip_blanks(t, k);
        return true;
}

typedef struct ValueForm {
        char quote; /* that ends it; 0 = none */
        bool is_line, is_query;
} ValueForm;

static size_t end_of_value(const Scan *t, size_t i, ValueForm form) {
        size_t from = i;
        for (; i < t->n; i++) {
                char c = t->s[i];
                if (c == '\n' || c == '\r' || c == '\0')
                        break;
                if (form.quote ? c == form.quote && (i == from || t->s[i - 1] != '\\' ||
                                                     t->s[from - 2] == '\\')
                               : redact_is_one_of(c, "\"'`"))
                        break;
                if (!form.quote && !form.is_line && (is_blank(c) || (form.is_query && c == '&')))
                        break;
        }
        return i;
}

/* A block of PEM that begins in the value ends it: it has blanks and lines. */
static void pass_pem_block(const Scan *t, Value *v) {
        const char *begin =
                memmem(t->s + v->from, MIN(t->n, v->to + 1) - v->from, "-----BEGIN ", 11);
        if (begin)
                v->to = MAX(v->to, (size_t)(begin - t->s) + redact_pem(t, (size_t)(begin - t->s)));
}

static bool is_word(const Scan *t, Value v, const char *word) {
        return v.to - v.from == strlen(word) &&
               strncasecmp(t->s + v.from, word, v.to - v.from) == 0;
}

/* Values that say nothing, whatever their name. */
static bool is_plain(const Scan *t, Value v, bool is_token) {
        size_t n = v.to - v.from;
        for (size_t i = 0; i < ELEMENTSOF(plain_values); i++)
                if (is_word(t, v, plain_values[i]))
                        return true;
        if (is_word(t, v, REDACTED))
                return true;
        size_t n_digits = redact_span(t, v.from, "0123456789");
        bool is_count =
                n_digits > 0 && n_digits <= COUNT_DIGITS_MAX &&
                (n_digits == n || (n_digits + 1 == n && redact_is_one_of(t->s[v.to - 1], ",;)]}")));
        return n == 0 || (is_token && is_count);
}

static bool is_header(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(header_names); i++)
                if (strcasecmp(name, header_names[i]) == 0)
                        return true;
        return false;
}

static bool is_user_option(const char *name) {
        return strcmp(name, "-u") == 0 || strcmp(name, "--user") == 0 ||
               strcmp(name, "--proxy-user") == 0;
}

/* `user:password`, not `1000:1000` */
static bool is_user_and_password(const Scan *t, Value v) {
        const char *colon = memchr(t->s + v.from, ':', v.to - v.from);
        return colon && !redact_is_port(t, (size_t)(colon - t->s) + 1, v.to);
}

static bool has_token(const char *name) {
        return strcasestr(name, "token") != NULL;
}

/* The value that follows a name. @param at  the name's place @return whether there is one to take out */
static bool find_value(const Scan *whole, const char *name, Value at, Value *ret) {
        size_t i = at.to;
        bool is_option = name[0] == '-', is_user = is_user_option(name);
        bool is_bearer = strcasecmp(name, "bearer") == 0;
        Scan bounded = *whole, *t = &bounded;
        if (is_user) /* its value may stay, and then is looked at again */
                bounded.n = MIN(whole->n, i + REDACT_URL_BYTES_MAX);
        if (!is_user && !is_bearer && !redact_name_is_secret(name + strspn(name, "-")))
                return false;
        if (!skip_separator(t, &i)) {
                size_t k = skip_blanks(t, i);
                if (k == i || !(is_option || is_bearer) || k >= t->n || redact_begins(t, k, "--"))
                        return false;
                i = k;
        }
        char quote = skip_opening_quote(t, &i);
        bool is_query = at.from > 0 && redact_is_one_of(t->s[at.from - 1], "?&");
        *ret = (Value){ .from = i,
                        .to = end_of_value(t, i, (ValueForm){ quote, is_header(name), is_query }) };
        while (quote && ret->to > ret->from && t->s[ret->to - 1] == '\\')
                ret->to--; /* of the closing `\"` */
        pass_pem_block(t, ret);
        if (is_user)
                return is_user_and_password(t, *ret);
        if (is_bearer && !is_option && ret->to - ret->from < BEARER_BYTES_MIN)
                return false;
        return !is_plain(t, *ret, has_token(name));
}

/* Looks at the name that begins at i. @return whether its value is to be taken out; *ret_name_end in any case */
static bool named_value(const Scan *t, size_t i, size_t *ret_name_end, Value *ret) {
        char name[NAME_BYTES_MAX + 1];
        size_t end = i;
        while (end < t->n && redact_is_name_char(t->s[end]))
                end++;
        *ret_name_end = end;
        size_t n = MIN(end - i, (size_t)NAME_BYTES_MAX);
        memcpy(name, t->s + end - n, n);
        name[n] = '\0';
        return find_value(t, name, (Value){ .from = i, .to = end }, ret);
}

/* ---- the pass ---- */

static void redact(StrBuf *b, Scan *t) {
        size_t copied = 0, name_end = 0;
        for (size_t i = 0; i < t->n;) {
                Value v = { .from = i };
                v.to = i + redact_known_form(t, i);
                if (v.to == i)
                        v.to += redact_pem_end(t, copied, i, &v.from);
                if (v.to == i)
                        v.to += redact_user(t, i);
                if (v.to == i && i >= name_end && redact_is_name_char(t->s[i]) &&
                    !named_value(t, i, &name_end, &v))
                        v.to = i;
                if (v.to == i) {
                        i++;
                        continue;
                }
                strbuf_add_n(b, t->s + copied, v.from - copied);
                strbuf_add(b, REDACTED);
                copied = i = v.to;
                name_end = MAX(name_end, i);
        }
        strbuf_add_n(b, t->s + copied, t->n - copied);
}

void redact_text(StrBuf *b, const char *text, size_t n) {
        Scan t = redact_scan(text, n);
        redact(b, &t);
}

void redact_member(StrBuf *b, const char *key, const char *text, size_t n) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;
        redact_text(&clean, text, n);
        if (strbuf_error(&clean) < 0)
                b->failed = true;
        else
                json_out_text(b, key, clean.text ? clean.text : "", clean.n);
}

/* ---- command lines ---- */

/* What an argument says of secrets: its own value after `=`, or that the next argument is one. */
typedef enum { ARG_PLAIN, ARG_HAS_SECRET, ARG_NEXT_IS_SECRET, ARG_NEXT_IS_USER } ArgKind;

static ArgKind arg_kind(const char *arg, size_t n, size_t *ret_value) {
        char name[NAME_BYTES_MAX + 1];
        size_t k = 0;
        while (k < n && redact_is_name_char(arg[k]))
                k++;
        if (k == 0 || k > NAME_BYTES_MAX || (k < n && arg[k] != '='))
                return ARG_PLAIN;
        memcpy(name, arg, k);
        name[k] = '\0';
        if (k == n && is_user_option(name))
                return ARG_NEXT_IS_USER;
        if (!redact_name_is_secret(name + strspn(name, "-")))
                return ARG_PLAIN;
        *ret_value = k + 1;
        if (k < n) {
                Scan t = { .s = arg, .n = n };
                Value v = { .from = k + 1, .to = n };
                return is_plain(&t, v, has_token(name)) ? ARG_PLAIN : ARG_HAS_SECRET;
        }
        return arg[0] == '-' ? ARG_NEXT_IS_SECRET : ARG_PLAIN;
}

static bool is_secret_after(ArgKind before, const char *arg, size_t n, const char *option) {
        Scan t = { .s = arg, .n = n };
        Value v = { .to = n };
        if (before == ARG_NEXT_IS_USER)
                return is_user_and_password(&t, v);
        return before == ARG_NEXT_IS_SECRET && !redact_begins(&t, 0, "--") &&
               !is_plain(&t, v, has_token(option));
}

void redact_cmdline(StrBuf *b, const char *data, size_t n) {
        _cleanup_(strbuf_done) StrBuf out = STRBUF_INIT;
        Scan all = redact_scan(data, n);
        ArgKind before = ARG_PLAIN;
        const char *option = "";
        char option_copy[NAME_BYTES_MAX + 1];
        for (size_t i = 0; i < n;) {
                const char *arg = data + i;
                size_t n_arg = strnlen(arg, n - i), value = 0;
                ArgKind kind = arg_kind(arg, n_arg, &value);
                strbuf_clear(&out);
                if (is_secret_after(before, arg, n_arg, option)) {
                        strbuf_add(&out, REDACTED);
                        kind = ARG_PLAIN;
                } else if (kind == ARG_HAS_SECRET) { /* to its end, blanks or not */
                        strbuf_add_n(&out, arg, value);
                        strbuf_add(&out, REDACTED);
                } else {
                        Scan t = { .s = arg, .n = n_arg, .has_key_id = all.has_key_id };
                        redact(&out, &t);
                }
                json_out_text(b, NULL, out.text ? out.text : "", out.n);
                b->failed = b->failed || out.failed;
                if (kind == ARG_NEXT_IS_SECRET) {
                        memcpy(option_copy, arg, n_arg);
                        option_copy[n_arg] = '\0';
                        option = option_copy;
                }
                before = kind;
                i += n_arg + 1;
        }
}
