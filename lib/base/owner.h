/* Who something is charged to: a user, and the container of his process. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#define OWNER_CONTAINER_SIZE 65

typedef struct Owner {
        uid_t uid; /* of the process or of the file */
        /* The container of the process, from its cgroup; "" = on the host, or a file. Root in a
         * container is the root of that container, not of the host. */
        char container[OWNER_CONTAINER_SIZE];
} Owner;

/** Spells it for people: `uid 1000`, `uid 0 of container 0123456789ab`. @return buf */
#define OWNER_TEXT_SIZE 48
const char *owner_text(const Owner *o, char buf[static OWNER_TEXT_SIZE]);

/** Orders owners, as strcmp(3) does strings. */
int owner_compare(const Owner *a, const Owner *b);
bool owner_is_same(const Owner *a, const Owner *b);
