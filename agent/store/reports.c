/* Rows of crash reports: the bundles whose report is still to be made, and the signatures of the
 * reports that were made, with how often each was seen. */
#include <errno.h>

#include "agent/store/store_private.h"

int store_report_add(Store *s, const char *bundle_id) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_REPORT_ADD] };
        bind_text(&b, bundle_id);
        return store_change(s, &b);
}

int store_report_list_pending(Store *s, int (*on_report)(const char *bundle_id, void *userdata),
                              void *userdata) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_REPORT_LIST] };
        int r;
        while ((r = next_row(s, &b)) == 0) {
                ColumnReader row = { .statement = b.statement };
                _cleanup_free_ char *id = read_string(&row, false);
                r = row.error < 0 ? row.error : on_report(id, userdata);
                if (r < 0)
                        break;
        }
        return MIN(r, 0);
}

static int drop_pending(Store *s, const char *bundle_id) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_REPORT_DROP] };
        bind_text(&b, bundle_id);
        return run_change(s, &b);
}

static int count_signature(Store *s, const char *id, uint64_t now_usec) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_SIGNATURE_ADD] };
        bind_text(&b, id);
        bind_number(&b, now_usec);
        int r = run_change(s, &b);
        return r < 0 ? r : run_with_number(s, STORE_SIGNATURE_CUT, STORE_SIGNATURES_MAX);
}

int store_report_end(Store *s, const char *bundle_id, const char *signature, uint64_t now_usec) {
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = drop_pending(s, bundle_id);
        if (r == 0 && signature)
                r = count_signature(s, signature, now_usec);
        return store_savepoint_end(s, r);
}

static int read_signature(sqlite3_stmt *st, StoredSignature *ret) {
        ColumnReader row = { .statement = st };
        _cleanup_free_ char *id = read_string(&row, false);
        ret->n = read_number(&row);
        ret->since_usec = read_number(&row);
        if (row.error == 0 && strlen(id) >= sizeof ret->id)
                return -EUCLEAN; /* no agent wrote it */
        if (row.error == 0)
                strcpy(ret->id, id);
        return row.error;
}

int store_signature_list(Store *s, StoredSignature *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_SIGNATURE_LIST] };
        int n = 0, r = 0;
        bind_number(&b, STORE_SIGNATURES_MAX);
        while (n < STORE_SIGNATURES_MAX && (r = next_row(s, &b)) == 0)
                n += read_signature(b.statement, &ret[n]) == 0;
        return r < 0 ? r : n;
}
