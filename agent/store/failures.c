/* Rows of failures that several nodes agree on. */
#include <errno.h>
#include <stdlib.h>

#include "agent/store/store_private.h"

int store_failure_put(Store *s, const StoredFailure *f) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_FAILURE_PUT] };
        bind_text(&b, f->name);
        bind_text(&b, f->key);
        bind_number(&b, f->n);
        bind_number(&b, f->time_usec);
        bind_bytes(&b, f->document);
        return store_change(s, &b);
}

/* @param name  the one before, or ""; the next one then, the caller's */
static int read_next(Store *s, char **name,
                     int (*on_failure)(const StoredFailure *f, void *userdata), void *userdata) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_FAILURE_LIST] };
        bind_text(&b, *name);
        int r = next_row(s, &b);
        if (r != 0)
                return r;
        Reader row = { .statement = b.statement };
        _cleanup_free_ char *next = read_string(&row, false), *key = read_string(&row, false);
        StoredFailure f = { .n = (uint32_t)read_number(&row), .time_usec = read_number(&row) };
        _cleanup_free_ char *document = read_string(&row, false);
        if (row.error < 0)
                return row.error;
        f.name = next;
        f.key = key;
        f.document = document;
        r = on_failure(&f, userdata);
        free(*name);
        *name = TAKE_PTR(next);
        return MIN(r, 0);
}

int store_failure_list(Store *s, int (*on_failure)(const StoredFailure *f, void *userdata),
                       void *userdata) {
        _cleanup_free_ char *name = strdup("");
        int r = name ? 0 : -ENOMEM;
        while (r == 0)
                r = read_next(s, &name, on_failure, userdata);
        return MIN(r, 0);
}

int store_failure_drop(Store *s, uint64_t before_usec) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_FAILURE_DROP] };
        bind_number(&b, before_usec);
        bind_number(&b, STORE_FAILURES_MAX);
        int r = store_change(s, &b);
        return r == STORE_E_NOT_FOUND ? 0 : r;
}
