/* A directory as a store of objects; for object_store.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cli/archive/object.h"

typedef struct ObjectDir {
        char *root; /* see object_store_set_root() */
} ObjectDir;

/** @return 0, -ENOMEM */
int object_dir_set_root(ObjectDir *s, const char *directory);
void object_dir_done(ObjectDir *s);

/* As the functions of object_store.h. @param error  the sentence of OBJECT_E_* replaces this one */

int object_dir_stat(const ObjectDir *s, const char *key, uint64_t *ret_bytes, char **error);
int object_dir_read_heads(const ObjectDir *s, ObjectHead *heads, size_t n);
int object_dir_list(const ObjectDir *s, const ObjectListing *listing, char **error);
/** Opens the file of an object, and makes sure that it is the one that is meant.
 * @return 0, the fd and the size of the file */
int object_dir_open(const ObjectDir *s, const ObjectRange *range, int *ret, uint64_t *ret_bytes,
                    char **error);
