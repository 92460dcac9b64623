/* From the tree of config/load.c to a Config, by the table: types, limits, forms, unknown, missing and doubled keys. What
 * concerns more than one key is config/check.c's. */
#pragma once

#include "config/config.h"
#include "config/faults.h"
#include "config/load.h"

typedef struct ReadContext {
        Faults *faults;
        char *const *environment; /* NAME=VALUE, for ${NAME} */
        bool whole;               /* false: the tree is cut off, so missing keys are no fault */
} ReadContext;

/** Fills *c, whose defaults are set and whose origins are empty. @param root  may be NULL: an empty file
 * @return 0 or -errno; faults are added */
int read_tree(Config *c, const LoadNode *root, const ReadContext *context);
