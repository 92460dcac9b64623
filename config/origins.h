/* On which line each key was given; what is not in here is a default. */
#pragma once

#include "config/config.h"
#include "config/keys.h"

typedef struct Origin {
        const ConfigKey *key;
        size_t index;  /* of the element, 0 outside of lists */
        size_t item;   /* of a list of strings, from 1; 0 = the key itself */
        unsigned line; /* 0 = built in */
        bool faulty;   /* what was given is not what the field holds */
        bool appended; /* `/%d-%c` was appended to the value */
} Origin;

typedef struct ConfigOrigins {
        Origin *items;
        size_t n, n_allocated;
} ConfigOrigins;

/** @return 0 or -ENOMEM */
int origins_add(ConfigOrigins *o, const Origin *origin);

/** To be called once, before the first look-up. */
void origins_sort(ConfigOrigins *o);

/** @param what  key, index and item count. @return the origin, or NULL when it is a default */
Origin *origins_find(const ConfigOrigins *o, const Origin *what);

ConfigOrigins *origins_free(ConfigOrigins *o);
