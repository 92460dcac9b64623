/* The fingerprints of what was shipped: one blob a bundle, 64-bit little-endian numbers. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/store_private.h"
#include "lib/base/cleanup.h"

typedef struct PrintSet {
        uint64_t *prints;
        size_t n;
} PrintSet;

static int compare_prints(const void *a, const void *b) {
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return x < y ? -1 : x > y;
}

static size_t sort_unique(uint64_t *prints, size_t n) {
        size_t m = 0;

        if (n > 0)
                qsort(prints, n, sizeof *prints, compare_prints);
        for (size_t i = 0; i < n; i++)
                if (m == 0 || prints[m - 1] != prints[i])
                        prints[m++] = prints[i];
        return m;
}

static int put_blob(Store *s, int64_t row, const uint64_t *prints, size_t n) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_PRINTS_PUT];
        _cleanup_free_ uint64_t *copy = malloc(n > 0 ? n * sizeof *copy : 1);
        int r;

        if (!copy)
                return -ENOMEM;
        if (n > 0)
                memcpy(copy, prints, n * sizeof *copy);
        n = sort_unique(copy, n);
        for (size_t i = 0; i < n; i++)
                copy[i] = htole64(copy[i]);

        r = sqlite3_bind_int64(st, 1, row);
        if (r == SQLITE_OK)
                r = sqlite3_bind_blob64(st, 2, copy, n * sizeof *copy, SQLITE_STATIC);
        if (r == SQLITE_OK)
                r = sqlite3_step(st);
        store_reset(&st); /* lets go of `copy` */
        return store_errno(s, r);
}

int store_put_prints(Store *s, const char *id, const uint64_t *prints, size_t n) {
        int64_t row;
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = store_find_row(s, id, &row, NULL);
        if (r == 0)
                r = put_blob(s, row, prints, n);
        return store_savepoint_end(s, r);
}

typedef struct PrintQuery {
        StoreStatement statement; /* its one column is prints, NULL = none */
        const char *id, *but_for; /* NULL: the statement has no such parameter */
} PrintQuery;

static int bind_query(const PrintQuery *query, sqlite3_stmt *st) {
        int r = sqlite3_bind_text(st, 1, query->id, -1, SQLITE_STATIC);
        if (r == SQLITE_OK && query->but_for)
                r = sqlite3_bind_text(st, 2, query->but_for, -1, SQLITE_STATIC);
        return r;
}

static int add_row(PrintSet *set, sqlite3_stmt *st) {
        const void *blob = sqlite3_column_blob(st, 0); /* before _bytes, which then is the blob's */
        size_t more = (size_t)sqlite3_column_bytes(st, 0) / sizeof *set->prints;
        if (more == 0)
                return 0;
        uint64_t *bigger = blob ? reallocarray(set->prints, set->n + more, sizeof *bigger) : NULL;
        if (!bigger)
                return -ENOMEM;
        set->prints = bigger;
        memcpy(bigger + set->n, blob, more * sizeof *bigger);
        for (size_t i = set->n; i < set->n + more; i++)
                bigger[i] = le64toh(bigger[i]);
        set->n += more;
        return 0;
}

static int add_all(PrintSet *set, Store *s, const PrintQuery *query) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[query->statement];
        int r = bind_query(query, st);

        if (r != SQLITE_OK)
                return store_errno(s, r);
        while ((r = sqlite3_step(st)) == SQLITE_ROW) {
                int error = add_row(set, st);
                if (error < 0)
                        return error;
        }
        return r == SQLITE_DONE ? 0 : store_errno(s, r);
}

/* @param ret  not written on a failure */
static int get_prints(Store *s, const PrintQuery *query, uint64_t **ret, size_t *ret_n) {
        PrintSet set = { 0 };
        int r = add_all(&set, s, query);

        if (r < 0) {
                free(set.prints);
                return r;
        }
        *ret_n = sort_unique(set.prints, set.n);
        *ret = set.prints;
        return 0;
}

int store_get_prints(Store *s, const char *id, uint64_t **ret, size_t *ret_n) {
        return get_prints(s, &(PrintQuery){ STORE_PRINTS_LIST, id, NULL }, ret, ret_n);
}

int store_get_own_prints(Store *s, const char *id, uint64_t **ret, size_t *ret_n) {
        return get_prints(s, &(PrintQuery){ STORE_PRINTS_OWN, id, NULL }, ret, ret_n);
}

int store_get_earlier_prints(Store *s, const BundleRecord *b, uint64_t **ret, size_t *ret_n) {
        PrintQuery query = { STORE_PRINTS_OTHERS, b->supplement_of, b->id };
        return get_prints(s, &query, ret, ret_n);
}
