/* Sums that are known without counting: by state, kept by triggers, and by name, kept by the caller. */
#include <errno.h>
#include <string.h>

#include "agent/store/store_private.h"
#include "lib/base/cleanup.h"

/* @param ret  0 when there is none, or it cannot be read  @return 0 or -errno */
static int read_counter(Store *s, const char *name, uint64_t *ret) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_COUNTER_GET];
        int r = sqlite3_bind_text(st, 1, name, -1, SQLITE_STATIC);

        if (r == SQLITE_OK)
                r = sqlite3_step(st);
        *ret = r == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(st, 0) : 0;
        return store_errno(s, r);
}

void store_counts(Store *s, StoreCounts *ret) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_COUNTS_LIST];

        int r;
        *ret = (StoreCounts){ 0 };
        while ((r = sqlite3_step(st)) == SQLITE_ROW) {
                const char *name = (const char *)sqlite3_column_text(st, 0);
                BundleState state;
                if (!name || bundle_state_parse(name, &state) < 0)
                        continue; /* of a state that only another version knows: cannot be shown */
                ret->bundles[state] = (uint64_t)sqlite3_column_int64(st, 1);
                ret->bytes[state] = (uint64_t)sqlite3_column_int64(st, 2);
        }
        if (r == SQLITE_DONE && read_counter(s, "discovered", &ret->discovered) == 0)
                s->last_counts = *ret;
        else /* a disk that cannot be read: nothing of it has become less */
                *ret = s->last_counts;
}

int64_t store_counts_difference(const StoreCounts *c) {
        uint64_t sum = 0;

        for (BundleState state = 0; state < N_BUNDLE_STATES; state++)
                sum += c->bundles[state];
        return (int64_t)(c->discovered - sum);
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
        uint64_t n;
        (void)read_counter(s, name, &n); /* what cannot be read counts for nothing */
        return n;
}

int store_counter_list(Store *s, const char *prefix,
                       void (*on_counter)(const char *name, uint64_t value, void *userdata),
                       void *userdata) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_COUNTER_LIST];
        int r = sqlite3_bind_text(st, 1, prefix, -1, SQLITE_STATIC);

        while (r == SQLITE_OK || r == SQLITE_ROW) {
                r = sqlite3_step(st);
                const char *name =
                        r == SQLITE_ROW ? (const char *)sqlite3_column_text(st, 0) : NULL;
                if (name)
                        on_counter(name, (uint64_t)sqlite3_column_int64(st, 1), userdata);
        }
        return store_errno(s, r);
}
