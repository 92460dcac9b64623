/* Values of the table's types: read from text into a struct's field, written back as YAML, freed.
 */
#pragma once

#include "config/keys.h"
#include "lib/base/strbuf.h"

typedef struct ValueFault {
        StrBuf fault, remedy;
} ValueFault;

enum { VALUE_E_FAULTY = 1 };

/** @return where the field lies in the struct at `base`; const is cast away here, for readers and
 * writers alike */
static inline void *value_field(const ConfigKey *key, const void *base) {
        return (char *)base + key->offset;
}

/** Parses a quantity, its words and `off` included; the limits are not checked. @return 0, -EINVAL
 * or -ERANGE */
int value_parse_quantity(const ConfigKey *key, const char *text, uint64_t *ret);

/** Sets the field of `key` in the struct at `base` from the text of a scalar.
 * @return 0; VALUE_E_FAULTY: *f says why, the field is as before; -ENOMEM */
int value_set(const ConfigKey *key, void *base, const char *text, ValueFault *f);

/** Appends one string to a KEY_STRINGS. @return as value_set */
int value_append(const ConfigKey *key, void *base, const char *text, ValueFault *f);

typedef struct ValuePair {
        const char *name, *text; /* borrowed */
} ValuePair;

/** Appends one pair to a KEY_MAP, whose names the caller keeps unique. @return as value_set */
int value_append_pair(const ConfigKey *key, void *base, const ValuePair *pair, ValueFault *f);

/** Adds how a value of this key is written, as a remedy: its words, or what the type takes. */
void value_add_remedy(const ConfigKey *key, StrBuf *b);

/** Sets the field to its default; a key without one is left alone. */
int value_set_default(const ConfigKey *key, void *base);

/** Sets every field right below `prefix` to its default, sections below it included. */
int value_set_all_defaults(const char *prefix, void *base);

/** Writes the value as YAML on one line. */
void value_add_yaml(const ConfigKey *key, const void *base, StrBuf *b);

/** @return whether both fields hold the same value; for lack of memory they differ */
bool value_is_equal(const ConfigKey *key, const void *a, const void *b);

/** @return whether the field holds its default */
bool value_is_default(const ConfigKey *key, const void *base);

/** Frees what the field owns and zeroes it. */
void value_clear(const ConfigKey *key, void *base);

/** As value_clear for every field below `prefix`. */
void value_clear_all(const char *prefix, void *base);

/** Appends a zeroed element to a KEY_ELEMENTS. @return 0 and *ret (it moves with the next call),
 * -ENOMEM */
int value_add_element(const ConfigKey *key, void *base, void **ret);

/** @return the element's struct, NULL when there are none; and the number of elements */
void *value_element(const ConfigKey *key, const void *base, size_t i);
size_t value_n_elements(const ConfigKey *key, const void *base);

/** A quantity as the key's type writes it, e.g. `8MiB`. @param buf  at least VALUE_QUANTITY_SIZE */
#define VALUE_QUANTITY_SIZE 48
const char *value_format_quantity(const ConfigKey *key, uint64_t v,
                                  char buf[static VALUE_QUANTITY_SIZE]);

void value_fault_done(ValueFault *f);
