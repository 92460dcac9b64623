/* Memory functions for libraries that a secret passes through: what is given back is overwritten first. */
#pragma once

#include <stddef.h>

/** As free(3) and realloc(3), for memory of malloc(3). */
void wipe_free(void *p);
void *wipe_realloc(void *p, size_t n);
