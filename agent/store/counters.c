/* Sums that are known without counting rows: by state of the bundles, which triggers keep
 * (schema.c), and by name, which the caller keeps. Rows of bundles that were deleted still count:
 * their sums are counters named `former:STATE`. */
#include "agent/store/store_private.h"

#include "lib/base/cleanup.h"

/* @param ret  0 when there is none, or it cannot be read  @return 0 or -errno */
static int read_counter(Store *s, const char *name, uint64_t *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_COUNTER_GET] };
        bind_text(&b, name);
        int r = next_row(s, &b);
        *ret = r == 0 ? (uint64_t)sqlite3_column_int64(b.statement, 0) : 0;
        return MIN(r, 0);
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
                ret->bundles[state] += (uint64_t)sqlite3_column_int64(st, 1);
                ret->bytes[state] += (uint64_t)sqlite3_column_int64(st, 2);
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
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_COUNTER_ADD] };
        bind_text(&b, name);
        bind_number(&b, n);
        return n > INT64_MAX ? -ERANGE : store_change(s, &b);
}

uint64_t store_counter(Store *s, const char *name) {
        uint64_t n;
        (void)read_counter(s, name, &n); /* what cannot be read counts for nothing */
        return n;
}

int store_counter_list(Store *s, const char *prefix,
                       void (*on_counter)(const char *name, uint64_t value, void *userdata),
                       void *userdata) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_COUNTER_LIST] };
        int r;
        bind_text(&b, prefix);
        while ((r = next_row(s, &b)) == 0) {
                const char *name = (const char *)sqlite3_column_text(b.statement, 0);
                if (name)
                        on_counter(name, (uint64_t)sqlite3_column_int64(b.statement, 1), userdata);
        }
        return MIN(r, 0);
}
