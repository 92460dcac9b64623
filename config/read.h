/* From the tree of config/load.c to a Config, by the table: types, limits, forms, unknown, missing
 * and doubled keys. What concerns more than one key is config/config.c's. */
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

/* ---- values of the table's types ---- */

typedef struct ValueFault {
        StrBuf fault, remedy;
} ValueFault;

enum { VALUE_E_FAULTY = 1 };

/** Sets the field of `key` in the struct at `base` from the text of a scalar.
 * @return 0; VALUE_E_FAULTY: *f says why, the field is as before; -ENOMEM */
int value_set(const ConfigKey *key, void *base, const char *text, ValueFault *f);

/** Appends one string to a KEY_STRINGS. @return as value_set */
int value_append(const ConfigKey *key, void *base, const char *text, ValueFault *f);

/** Sets the field to its default; a key without one is left alone. */
int value_set_default(const ConfigKey *key, void *base);

/** Sets every field right below `prefix` to its default, sections below it included. */
int value_set_all_defaults(const char *prefix, void *base);

/** Writes the value as YAML on one line. */
void value_add_yaml(const ConfigKey *key, const void *base, StrBuf *b);

/** @return whether both fields hold the same value; for lack of memory they differ */
bool value_is_equal(const ConfigKey *key, const void *a, const void *b);

/** Frees what the field owns and zeroes it. */
void value_clear(const ConfigKey *key, void *base);

/** As value_clear for every field below `prefix`. */
void value_clear_all(const char *prefix, void *base);

/** @return the element's struct, NULL when there are none; and the number of elements */
void *value_element(const ConfigKey *key, const void *base, size_t i);
size_t value_n_elements(const ConfigKey *key, const void *base);

/** A quantity as the key's type writes it, e.g. `8MiB`. @param buf  at least VALUE_QUANTITY_SIZE */
#define VALUE_QUANTITY_SIZE 48
const char *value_format_quantity(const ConfigKey *key, uint64_t v,
                                  char buf[static VALUE_QUANTITY_SIZE]);

void value_fault_done(ValueFault *f);

/** @return the row whose name is nearest to an unknown one, siblings first; NULL when none is near
 */
const ConfigKey *key_suggest(const char *prefix, const char *leaf);
