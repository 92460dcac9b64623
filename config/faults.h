/* Collects the faults of one file, with the place of each key, bounded in number; writes foreign
 * text for messages and as YAML. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/diag.h"
#include "lib/base/strbuf.h"

typedef struct Faults {
        const char *file; /* borrowed */
        Diags *diags;     /* borrowed */
        size_t n; /* added by us; beyond FAULTS_MAX only one line says that there are more */
} Faults;

enum { FAULTS_MAX = 1000, FAULTS_NO_ITEM = 0 };

/* A place such as `sources[1].exclude[2]` or `node.labels.cluster`. */
typedef struct Spot {
        unsigned line;
        const char *name; /* a row's name; `[]` in it stands for the element */
        size_t index;     /* of the element */
        size_t item;      /* of a list of strings, counted from 1; FAULTS_NO_ITEM = none */
        const char *sub;  /* a name in the mapping; may be NULL */
} Spot;

/** Adds `FILE:LINE: spot: fault; remedy`. Never fails: a fault that cannot be stored is still
 * counted. */
void faults_add(Faults *f, const Spot *spot, const char *remedy, const char *fault, ...)
        _printf_(4, 5);

/* ---- text in messages and as YAML ---- */

/** @return whether all of it is well-formed UTF-8 */
bool text_is_utf8(const char *s);

/** Adds text, control characters as `\xNN`, cut after max bytes. Except in an absolute path, what
 * stands before an `@` may be a password: it is replaced by `…`. */
void text_add_spelled(StrBuf *b, const char *s, size_t max);

/** The same in single quotes, cut after 80 bytes. */
void text_add_shown(StrBuf *b, const char *s);

/** Adds well-formed UTF-8 as one YAML scalar on one line: plain where that is safe in block and
 * flow context and cannot be taken for a number, boolean or null, else in double quotes.
 * @param is_value  `${` is written `$${`, which the loader reads as `${`; in a mapping's name it
 * expands nothing, so `${` stays */
void text_add_yaml(StrBuf *b, const char *s, bool is_value);
