/* Inside this folder: origins and values for config/check.c, config/generate.c and the tests; the
 * rest of config/read.c is in config.h. */
#pragma once

#include "config/config.h"
#include "config/faults.h"
#include "config/keys.h"
#include "lib/base/strbuf.h"

/** Checks what concerns more than one key, and completes values that depend on others. @return 0 or
 * -ENOMEM; faults are added */
int config_check(Config *c, Faults *faults);

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
        size_t n;
} ConfigOrigins;

/** @param what  key, index and item count. @return the origin, or NULL when it is a default */
Origin *origins_find(const ConfigOrigins *o, const Origin *what);

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

/** Sets the field to its default; a key without one is left alone. */
int value_set_default(const ConfigKey *key, void *base);

/** Writes the value as YAML on one line. */
void value_add_yaml(const ConfigKey *key, const void *base, StrBuf *b);

/** Frees what the field owns and zeroes it. */
void value_clear(const ConfigKey *key, void *base);

/** A quantity as the key's type writes it, e.g. `8MiB`. @param buf  at least VALUE_QUANTITY_SIZE */
#define VALUE_QUANTITY_SIZE 48
const char *value_format_quantity(const ConfigKey *key, uint64_t v,
                                  char buf[static VALUE_QUANTITY_SIZE]);

void value_fault_done(ValueFault *f);

/** @return the row whose name is nearest to an unknown one, siblings first; NULL when none is near
 */
const ConfigKey *key_suggest(const char *prefix, const char *leaf);
