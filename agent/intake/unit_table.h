/* What was last seen at each unit's path, 16 bytes a unit: so that a scan tells only what is new or has changed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct UnitTable {
        uint64_t *keys, *digests; /* open addressing; key 0 = free slot */
        size_t n, n_slots;        /* n_slots is 0 or a power of two */
} UnitTable;

/** @return a key for a path below the fixed part, never 0 */
uint64_t unit_table_key(const char *relative);
int unit_table_put(UnitTable *t, uint64_t key, uint64_t digest); /* -ENOMEM */
bool unit_table_get(const UnitTable *t, uint64_t key, uint64_t *ret_digest);
void unit_table_done(UnitTable *t);
