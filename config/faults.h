/* Where faults of one file are gathered: with the key's place spelled out, and bounded in number. */
#pragma once

#include <stddef.h>

#include "lib/base/diag.h"

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
        const char *sub;  /* a name below it; may be NULL */
} Spot;

/** Adds `FILE:LINE: spot: fault; remedy`. Never fails: a fault that cannot be stored is still counted. */
void faults_add(Faults *f, const Spot *spot, const char *remedy, const char *fault, ...)
        _printf_(4, 5);
