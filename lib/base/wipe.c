#include "lib/base/wipe.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"

void wipe_free(void *p) {
        if (p)
                explicit_bzero(p, malloc_usable_size(p));
        free(p);
}

/* realloc(3) may move and leave the old bytes behind. */
void *wipe_realloc(void *p, size_t n) {
        void *bigger = malloc(MAX(n, (size_t)1));
        if (!bigger || !p)
                return bigger;
        size_t before = malloc_usable_size(p);
        memcpy(bigger, p, MIN(before, n));
        wipe_free(p);
        return bigger;
}
