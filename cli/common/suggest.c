#include "cli/common/suggest.h"

#include <limits.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define FAR UINT_MAX

Suggestions suggest_init(const char *wanted) {
        return (Suggestions){ .wanted = wanted };
}

void suggest_done(Suggestions *n) {
        for (size_t i = 0; i < n->n; i++)
                free(n->names[i]);
        n->n = 0;
}

/* @return how far the name is from what was wanted, FAR = too far to be meant */
static unsigned rate_name(const char *wanted, const char *name) {
        const char *a = path_name(wanted), *b = path_name(name);
        if (strcasecmp(a, b) == 0)
                return 0; /* in another directory, or other case */
        size_t n = strlen(wanted);
        if ((*a && strcasestr(b, a)) || (strncmp(name, wanted, n) == 0 && name[n] == '/'))
                return 1; /* a part of it, or its directory */
        unsigned d = parse_distance(a, b), tolerated = 1 + (unsigned)strlen(a) / 4;
        return d <= tolerated ? d + 1 : FAR;
}

static void insert(Suggestions *n, size_t at, const char *name, unsigned d) {
        char *copy = strdup(name);
        if (!copy)
                return; /* one suggestion less */
        if (n->n == SUGGESTIONS_MAX)
                free(n->names[--n->n]);
        memmove(&n->names[at + 1], &n->names[at], (n->n - at) * sizeof n->names[0]);
        memmove(&n->distances[at + 1], &n->distances[at], (n->n - at) * sizeof n->distances[0]);
        n->names[at] = copy;
        n->distances[at] = d;
        n->n++;
}

void suggest_add(Suggestions *n, const char *name) {
        unsigned d = rate_name(n->wanted, name);
        if (d != FAR && !n->is_guess) {
                suggest_done(n); /* the first ones were there for lack of better */
                n->is_guess = true;
        }
        if (d == FAR && n->is_guess)
                return;
        size_t at = 0;
        while (at < n->n && n->distances[at] <= d)
                at++;
        if (at < SUGGESTIONS_MAX)
                insert(n, at, name, d);
}

char *suggest_text(const Suggestions *n) {
        StrBuf text = STRBUF_INIT;
        for (size_t i = 0; i < n->n; i++)
                strbuf_addf(&text, "%s'%s'",
                            i > 0         ? ", "
                            : n->is_guess ? "did you mean "
                                          : "such as ",
                            n->names[i]);
        if (n->n > 0 && n->is_guess)
                strbuf_add(&text, "?");
        return strbuf_detach(&text);
}
