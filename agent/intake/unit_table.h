/* What was last seen at each unit's path. See unit_table.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct UnitTable {        /* zero = empty */
        uint64_t *keys, *digests; /* open addressing; key 0 = free slot */
        size_t n, n_slots;        /* n_slots is 0 or a power of two */
} UnitTable;

/** @param relative  a path below the fixed part. @return 0, -ENOMEM */
int unit_table_put(UnitTable *t, const char *relative, uint64_t digest);
bool unit_table_has(const UnitTable *t, const char *relative, uint64_t digest);
/** @return whether anything was seen at the path, whatever its digest */
bool unit_table_has_path(const UnitTable *t, const char *relative);
/** @return 0, -ENOMEM */
int unit_table_copy(UnitTable *ret, const UnitTable *from);
void unit_table_done(UnitTable *t);
