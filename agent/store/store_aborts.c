/* Uploads to be aborted: of those that nobody goes on with, and of those that may be left where something was begun. */
#include "agent/store/ledger.h"

#include "agent/store/store_columns.h"
#include "lib/base/cleanup.h"

int store_abort_add(Store *s, const LedgerAbort *a, int64_t *ret_id) {
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        {
                _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_ABORT_ADD];
                Binder b = { .statement = st };
                bind_text(&b, a->destination);
                bind_bytes(&b, a->key);
                bind_bytes(&b, a->upload_id);
                bind_number(&b, a->since_usec);
                r = bind_and_run(s, &b);
        }
        int64_t id = sqlite3_last_insert_rowid(s->db);
        r = store_savepoint_end(s, r);
        if (r == 0 && ret_id)
                *ret_id = id;
        return r;
}

int store_abort_done(Store *s, int64_t id) {
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        return store_savepoint_end(s, store_run_on_row(s, STORE_ABORT_DROP, id));
}

typedef struct OwnAbort {
        LedgerAbort abort;
        char *key, *upload_id;
} OwnAbort;

static void own_abort_done(OwnAbort *a) {
        free(a->key);
        free(a->upload_id);
}

static int next_abort(Store *s, const char *destination, int64_t after, OwnAbort *ret) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_ABORT_NEXT];
        Binder b = { .statement = st };
        Reader reader = { .statement = st };
        int r;

        bind_text(&b, destination);
        bind_number(&b, (uint64_t)after);
        r = b.result == SQLITE_OK ? sqlite3_step(st) : b.result;
        if (r == SQLITE_DONE)
                return STORE_E_NOT_FOUND;
        if (r != SQLITE_ROW)
                return store_errno(s, r);
        ret->abort.id = (int64_t)read_number(&reader);
        ret->abort.destination = destination;
        ret->abort.key = ret->key = read_string(&reader, false);
        ret->abort.upload_id = ret->upload_id = read_string(&reader, true);
        ret->abort.since_usec = read_number(&reader);
        return reader.error;
}

static uint64_t count_aborts(Store *s, int64_t *ret_newest) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_ABORT_COUNT];

        *ret_newest = INT64_MAX; /* where it cannot be asked, the list will say so */
        if (sqlite3_step(st) != SQLITE_ROW)
                return 0;
        *ret_newest = sqlite3_column_int64(st, 1);
        return (uint64_t)sqlite3_column_int64(st, 0);
}

int store_abort_list(Store *s, const char *destination,
                     int (*on_abort)(const LedgerAbort *a, void *userdata), void *userdata) {
        int64_t after = 0, newest;
        int r = 0;

        (void)count_aborts(s, &newest); /* what the callback adds is not listed */
        while (r == 0) {
                _cleanup_(own_abort_done) OwnAbort a = { 0 };
                r = next_abort(s, destination, after, &a);
                if (r != 0 || a.abort.id > newest)
                        break;
                after = a.abort.id;
                r = on_abort(&a.abort, userdata);
        }
        return r < 0 ? r : 0;
}

bool store_abort_knows(Store *s, const char *key, const char *upload_id) {
        return store_has_upload(s, STORE_ABORT_KNOWN, key, upload_id);
}

uint64_t store_abort_count(Store *s) {
        int64_t newest;
        return count_aborts(s, &newest);
}
