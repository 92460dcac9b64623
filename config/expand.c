#include "config/expand.h"

#include <errno.h>
#include <string.h>

#include "config/text.h"

static const char name_start[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
static const char name_more[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

static const char *find_variable(char *const *environment, const char *name, size_t n) {
        for (char *const *e = environment; e && *e; e++)
                if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
                        return *e + n + 1;
        return NULL;
}

/* @param name  what comes after `${`  @return bytes up to and with the `}`, 0 after a fault */
static size_t add_variable(StrBuf *out, const char *name, char *const *environment, StrBuf *fault) {
        size_t n = strspn(name, name_more);
        const char *value;

        if (n == 0 || !strchr(name_start, name[0]) || name[n] != '}') {
                strbuf_add(fault, "'${' is not followed by a variable's name and '}'");
                return 0;
        }
        value = find_variable(environment, name, n);
        if (!value) {
                strbuf_addf(fault, "the environment variable '%.*s' is not defined",
                            (int)MIN(n, (size_t)80), name);
                return 0;
        }
        if (!text_is_utf8(value)) {
                strbuf_addf(fault, "the environment variable '%.*s' is not UTF-8",
                            (int)MIN(n, (size_t)80), name);
                return 0;
        }
        strbuf_add(out, value);
        return n + 1;
}

int expand(const char *text, char *const *environment, char **ret, StrBuf *fault) {
        _cleanup_(strbuf_done) StrBuf out = STRBUF_INIT;
        char *done;

        while (*text) {
                size_t n = strcspn(text, "$");
                size_t n_dollars = strspn(text + n, "$");
                strbuf_add_n(&out, text, n);
                text += n + n_dollars;
                if (n_dollars > 0 && *text == '{') {
                        for (size_t i = 1; i < n_dollars; i++)
                                strbuf_add(&out, "$");
                        if (n_dollars == 1) {
                                n = add_variable(&out, text + 1, environment, fault);
                                if (n == 0)
                                        return EXPAND_E_FAULTY;
                                text += n + 1;
                        }
                } else {
                        for (size_t i = 0; i < n_dollars; i++)
                                strbuf_add(&out, "$");
                }
                if (out.n > EXPAND_MAX) {
                        strbuf_addf(fault, "the value is longer than %d bytes", EXPAND_MAX);
                        return EXPAND_E_FAULTY;
                }
        }
        done = strbuf_take(&out);
        if (!done)
                return -ENOMEM;
        *ret = done;
        return 0;
}
