/* From the tree of config/load.c to a Config, by the table: types, limits, forms, unknown, missing
 * and doubled keys. What concerns more than one key is config/check.c's. */
#pragma once

#include "config/config.h"
#include "config/faults.h"
#include "config/keys.h"
#include "config/load.h"
#include "lib/base/strbuf.h"

typedef struct ReadContext {
        Faults *faults;
        char *const *environment; /* NAME=VALUE, for ${NAME} */
        bool whole;               /* false: the tree is cut off, so missing keys are no fault */
} ReadContext;

/** Fills *c, whose defaults are set and whose origins are empty. @param root  may be NULL: an empty
 * file
 * @return 0 or -errno; faults are added */
int read_tree(Config *c, const LoadNode *root, const ReadContext *context);

/* ---- where each key was given; what is not in here is a default ---- */

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

/* ---- ${NAME} in string values ---- */

enum { EXPAND_E_FAULTY = 1, EXPAND_MAX = 64 * 1024 };

/** Replaces each `${NAME}`; `$${` becomes `${` (of several `$` before a `{` one is dropped); what
 * is put in is not looked at again. @param environment  NAME=VALUE, NULL-terminated; may be NULL
 * @return 0 and *ret (the caller's); EXPAND_E_FAULTY: *fault says why; -ENOMEM */
int expand(const char *text, char *const *environment, char **ret, StrBuf *fault);
