/* Sums that are known without counting: by state, kept by triggers, and by name, kept by the caller. */
#include <errno.h>
#include <string.h>

#include "agent/store/store_private.h"
#include "lib/base/cleanup.h"

void store_counts(Store *s, StoreCounts *ret) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_COUNTS_LIST];

        *ret = (StoreCounts){ 0 };
        while (sqlite3_step(st) == SQLITE_ROW) {
                const char *name = (const char *)sqlite3_column_text(st, 0);
                BundleState state;
                if (!name || bundle_state_parse(name, &state) < 0)
                        continue; /* of a state that only another version knows: cannot be shown */
                ret->bundles[state] = (uint64_t)sqlite3_column_int64(st, 1);
                ret->bytes[state] = (uint64_t)sqlite3_column_int64(st, 2);
        }
}

int store_counter_add(Store *s, const char *name, uint64_t n) {
        int r;

        if (n > INT64_MAX)
                return -ERANGE;
        r = store_savepoint(s);
        if (r < 0)
                return r;
        {
                _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_COUNTER_ADD];
                r = sqlite3_bind_text(st, 1, name, -1, SQLITE_STATIC);
                if (r == SQLITE_OK)
                        r = sqlite3_bind_int64(st, 2, (int64_t)n);
                if (r == SQLITE_OK)
                        r = sqlite3_step(st);
                r = store_errno(s, r);
        }
        return store_savepoint_end(s, r);
}

uint64_t store_counter(Store *s, const char *name) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_COUNTER_GET];

        if (sqlite3_bind_text(st, 1, name, -1, SQLITE_STATIC) != SQLITE_OK ||
            sqlite3_step(st) != SQLITE_ROW)
                return 0;
        return (uint64_t)sqlite3_column_int64(st, 0);
}
