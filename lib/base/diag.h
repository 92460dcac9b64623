/* A list of faults found in a file that a person wrote: every one in one run. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "lib/base/cleanup.h"

typedef struct DiagLocation {
        const char *file; /* borrowed */
        unsigned line;    /* 1-based; 0 = the whole file */
        const char *key;  /* dotted path, e.g. `destinations[0].part_size`; NULL = none */
} DiagLocation;

typedef struct Diag {
        char *file, *key, *fault, *remedy; /* owned; key and remedy may be NULL */
        unsigned line;
} Diag;

typedef struct Diags {
        Diag *items; /* in order of line, faults of one line as found */
        size_t n;
} Diags;

/** Adds one fault. `fault` is a printf format; remedy (may be NULL) is copied as it is. Running out
 * of memory loses a text or an entry: whether a file is faulty its reader counts. */
void diag_add(Diags *d, DiagLocation where, const char *remedy, const char *fault, ...)
        _printf_(4, 5);

/** Writes `FILE:LINE: key.path: fault; remedy` a line each. Control characters in values are
 * spelled `\xNN`. */
void diag_print(const Diags *d, FILE *f);

/** Formats one as diag_print does. @return a string of the caller's, or NULL for lack of memory */
char *diag_format(const Diag *d);

void diag_done(Diags *d);
