#include "config/origins.h"

#include <errno.h>
#include <stdlib.h>

int origins_add(ConfigOrigins *o, const Origin *origin) {
        if (o->n == o->n_allocated) {
                size_t n_allocated = MAX(2 * o->n_allocated, (size_t)32);
                Origin *items = reallocarray(o->items, n_allocated, sizeof *items);
                if (!items)
                        return -ENOMEM;
                o->items = items;
                o->n_allocated = n_allocated;
        }
        o->items[o->n++] = *origin;
        return 0;
}

static int compare(const void *left, const void *right) {
        const Origin *a = left, *b = right;

        if (a->key != b->key)
                return a->key < b->key ? -1 : 1; /* rows of one table */
        if (a->index != b->index)
                return a->index < b->index ? -1 : 1;
        return (a->item > b->item) - (a->item < b->item);
}

void origins_sort(ConfigOrigins *o) {
        if (o->n > 0)
                qsort(o->items, o->n, sizeof *o->items, compare);
}

Origin *origins_find(const ConfigOrigins *o, const Origin *what) {
        return o->n > 0 ? bsearch(what, o->items, o->n, sizeof *o->items, compare) : NULL;
}

ConfigOrigins *origins_free(ConfigOrigins *o) {
        if (o)
                free(o->items);
        free(o);
        return NULL;
}
