/* Sets, writes, compares and frees values of the table's types. Private to config/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "config/keys.h"
#include "lib/base/strbuf.h"

typedef struct ValueFault {
        StrBuf fault, remedy;
} ValueFault;

enum { VALUE_E_FAULTY = 1 };

/** Sets the field of `key` in the struct at `base` from the text of a scalar.
 * @return 0; VALUE_E_FAULTY: *f says why, the field is as before; -ENOMEM */
int value_set(const ConfigKey *key, void *base, const char *text, ValueFault *f);

/** Sets the field to its default. A key that must be given has none: its field does not change. */
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

/** Writes what a value of this key must be: its words, or the form of its type. */
void value_add_remedy(const ConfigKey *key, StrBuf *b);

enum { VALUE_SUGGEST_MAX = 32 }; /* for longer names no other one is suggested */
/** @param n  length of what was written
 * @return the least parse_distance() that is too far for "did you mean" */
unsigned value_distance_limit(size_t n);

/* ---- lists and mappings, entry by entry ---- */

/** Adds an entry to a list of strings. @return as value_set() */
int value_append(const ConfigKey *key, void *base, const char *text, ValueFault *f);

typedef struct ValuePair {
        const char *name, *text; /* borrowed */
} ValuePair;

/** Adds an entry to a mapping. @return as value_set() */
int value_append_pair(const ConfigKey *key, void *base, const ValuePair *pair, ValueFault *f);

/** Adds a string and the NULL at the end. @param text  owned from here on; NULL = no memory
 * @return 0, -ENOMEM */
int value_append_string(char ***items, size_t n_used, char *text);

size_t value_n_elements(const ConfigKey *key, const void *base);
/** @return the element's struct, NULL when there are none */
void *value_element(const ConfigKey *key, const void *base, size_t i);
/** Adds an element with all its defaults. @return 0 and *ret, -ENOMEM */
int value_add_element(const ConfigKey *key, void *base, void **ret);

/* ---- all keys of a struct ---- */

/** @return the next key with a field in the struct of a list's elements; without a list, in
 *   Config; NULL */
const ConfigKey *value_next_field(const ConfigKey *after, const ConfigKey *list);
int value_set_all_defaults(const ConfigKey *list, void *base);
void value_clear_all(const ConfigKey *list, void *base);

/** @return whether both are written the same in YAML; false also for lack of memory */
bool value_is_equal(const ConfigKey *key, const void *a, const void *b);
