/* Who something is charged to: a user, and the container of his process. What owners may have is
 * bound.c's. */
#include "lib/base/owner.h"

#include <stdio.h>
#include <string.h>

#define CONTAINER_SHOWN 12 /* characters: as container tools show an id */

const char *owner_text(const Owner *o, char buf[static OWNER_TEXT_SIZE]) {
        (void)snprintf(buf, OWNER_TEXT_SIZE, "uid %u%s%.*s", (unsigned)o->uid,
                       o->container[0] ? " of container " : "", CONTAINER_SHOWN, o->container);
        return buf;
}

int owner_compare(const Owner *a, const Owner *b) {
        return a->uid != b->uid ? (a->uid > b->uid) - (a->uid < b->uid)
                                : strcmp(a->container, b->container);
}

bool owner_is_same(const Owner *a, const Owner *b) {
        return owner_compare(a, b) == 0;
}
