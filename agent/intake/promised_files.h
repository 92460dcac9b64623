/* Files that hooks have promised: they will be in a unit, somewhere below its directory. A unit
 * waits for them (hook_hints.c), and the walk over its members looks for them (unit_walk.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct PromisedFile {
        char *name;   /* without its path; owned */
        bool is_seen; /* by the walk */
} PromisedFile;

typedef struct PromisedFiles { /* zero = none */
        PromisedFile *items;
        size_t n;
} PromisedFiles;

/** Adds a file, unless it is there. @return 0, -ENOMEM */
int promised_files_add(PromisedFiles *p, const char *name);
/** Marks a file as seen, if it was promised. */
void promised_files_mark(PromisedFiles *p, const char *name);
void promised_files_remove(PromisedFiles *p, const char *name);
void promised_files_done(PromisedFiles *p);
