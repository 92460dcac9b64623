/* The fingerprints of what was shipped: one blob a bundle, 64-bit little-endian numbers. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/store_private.h"
#include "lib/base/cleanup.h"

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

int store_get_prints(Store *s, const char *id, uint64_t **ret, size_t *ret_n) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_PRINTS_LIST];
        _cleanup_free_ uint64_t *all = NULL;
        size_t n = 0;
        int r = sqlite3_bind_text(st, 1, id, -1, SQLITE_STATIC);

        if (r != SQLITE_OK)
                return store_errno(s, r);
        while ((r = sqlite3_step(st)) == SQLITE_ROW) {
                const void *blob =
                        sqlite3_column_blob(st, 0); /* before _bytes, which then is the blob's */
                size_t bytes = (size_t)sqlite3_column_bytes(st, 0), more = bytes / sizeof *all;
                if (more == 0)
                        continue;
                if (!blob)
                        return -ENOMEM;
                uint64_t *bigger = reallocarray(all, n + more, sizeof *all);
                if (!bigger)
                        return -ENOMEM;
                all = bigger;
                memcpy(all + n, blob, more * sizeof *all);
                for (size_t i = n; i < n + more; i++)
                        all[i] = le64toh(all[i]);
                n += more;
        }
        if (r != SQLITE_DONE)
                return store_errno(s, r);
        *ret_n = sort_unique(all, n);
        *ret = TAKE_PTR(all);
        return 0;
}
