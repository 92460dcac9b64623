#include "cli/common/suggest.h"

#include <limits.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define FAR UINT_MAX

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

void suggest_add(Suggestion *s, const char *name) {
        unsigned d = rate_name(s->wanted, name);
        char *copy = d == FAR || (s->name && d >= s->distance) ? NULL : strdup(name);
        if (!copy)
                return;
        suggest_done(s);
        s->name = copy;
        s->distance = d;
}

void suggest_done(Suggestion *s) {
        free(s->name);
        s->name = NULL;
}
