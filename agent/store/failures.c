/* Rows of this node's claims, with what was decided about each. agent/failures writes and reads
 * them as documents; this file bounds their number. */
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

int store_failure_list(Store *s, int (*on_failure)(const StoredFailure *f, void *userdata),
                       void *userdata) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_FAILURE_LIST] };
        int r;
        while ((r = next_row(s, &b)) == 0) {
                ColumnReader row = { .statement = b.statement };
                _cleanup_free_ char *name = read_string(&row, false),
                                    *key = read_string(&row, false);
                StoredFailure f = { .name = name, .key = key };
                f.n = (uint32_t)read_number(&row);
                f.time_usec = read_number(&row);
                _cleanup_free_ char *document = read_string(&row, false);
                f.document = document;
                r = row.error < 0 ? row.error : on_failure(&f, userdata);
                if (r < 0)
                        break;
        }
        return MIN(r, 0);
}

int store_failure_drop(Store *s, uint64_t before_usec) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_FAILURE_DROP] };
        bind_number(&b, before_usec);
        bind_number(&b, STORE_FAILURES_MAX);
        int r = store_change(s, &b);
        return r == STORE_E_NOT_FOUND ? 0 : r;
}
