/* Configurations of the sources that nobody configures (config/own_sources.h): the agent makes them, of paths below its state directory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_private.h"

ConfigSource *agent_own_source_free(ConfigSource *c) {
        if (!c)
                return NULL;
        StringList *const lists[] = { &c->destinations, &c->exclude };
        for (size_t i = 0; i < ELEMENTSOF(lists); i++) {
                for (size_t k = 0; k < lists[i]->n; k++)
                        free(lists[i]->items[k]);
                free(lists[i]->items);
        }
        free(c->name);
        free(c->path);
        free(c);
        return NULL;
}

int agent_own_source_add(StringList *list, const char *text) {
        char **more = reallocarray(list->items, list->n + 2, sizeof *more);
        if (!more)
                return -ENOMEM;
        list->items = more;
        more[list->n] = strdup(text);
        if (!more[list->n])
                return -ENOMEM;
        more[++list->n] = NULL;
        return 0;
}

void agent_own_source_path(StrBuf *b, const char *path) {
        for (const char *s = path; *s; s++)
                strbuf_add_n(b, *s == '%' ? "%%" : s, *s == '%' ? 2 : 1);
}
