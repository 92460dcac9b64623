/* Wraps libyaml: turns YAML text into a tree with line numbers. config/read.c knows what the keys
 * mean. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "config/faults.h"

typedef enum LoadNodeType {
        LOAD_NULL,   /* no value, `~` or `null` */
        LOAD_SCALAR, /* text */
        LOAD_LIST,   /* n items */
        LOAD_MAP,    /* n items: names and values in turn; after a syntax error the last name may
                have no value */
        LOAD_FAULTY  /* takes the place of a value whose fault was reported */
} LoadNodeType;

typedef struct LoadNode {
        LoadNodeType type;
        unsigned line; /* 1-based */
        char *text;    /* owned, UTF-8; LOAD_SCALAR and LOAD_NULL */
        struct LoadNode **items;
        size_t n;
} LoadNode;

enum {
        LOAD_FILE_MAX = 1024 * 1024,
        LOAD_DEPTH_MAX = 16,
        LOAD_NODES_MAX = 100000,
        LOAD_LIST_MAX = 1000
};

/** Reads one document. After a syntax error *ret is the tree of what comes before it.
 * @param ret  the caller's, load_free(); NULL when there is no document
 * @param ret_whole  false when reading stopped at a syntax error or a bound: a key that is missing
 *   may stand in the rest
 * @return 0 or -ENOMEM; faults are added to *faults */
int load_tree(LoadNode **ret, const char *data, size_t n, Faults *faults, bool *ret_whole);
LoadNode *load_free(LoadNode *node);
DEFINE_CLEANUP(LoadNode, load_free);

/** Reads a file of at most LOAD_FILE_MAX bytes. @return 0 and *ret (the caller's), -errno with a
 * fault added */
int load_file(const char *file, char **ret, size_t *ret_n, Faults *faults);
