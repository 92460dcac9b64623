/* The origins of a Config, and the rows of the table as they apply to an element. Private to
 * config/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"
#include "config/keys.h"

/* ---- where each key was given; what is not in here is a default ---- */

typedef struct ConfigOrigin {
        const ConfigKey *key;
        size_t index;  /* of the element, 0 outside of lists */
        size_t item;   /* of a list of strings, from 1; 0 = the key itself */
        unsigned line; /* 0 = built in */
        bool faulty;   /* the value in the file is faulty; the field does not hold it */
        bool appended; /* `/%d-%c` was appended to the value */
} ConfigOrigin;

typedef struct ConfigOrigins {
        ConfigOrigin *items;
        size_t n;
} ConfigOrigins;

/** @param what  key, index and item count. @return the origin, or NULL when it is a default */
ConfigOrigin *origins_find(const ConfigOrigins *o, const ConfigOrigin *what);
void origins_sort(ConfigOrigins *o);

/* ---- the table's rows, as they apply to an element ---- */

/** Makes a Config with all keys at their defaults, without sources and destinations.
 * @return 0, -ENOMEM */
int config_new_default(Config **ret);

/** @return whether a row of destinations[] applies to an element of this type */
bool config_key_applies(const ConfigKey *key, ConfigDestinationType type);
/** @return the key that names the elements of a list; NULL when they have no names of their own */
const ConfigKey *config_identity_key(const ConfigKey *list);
const char *config_name_of(const ConfigKey *identity, const void *element);
