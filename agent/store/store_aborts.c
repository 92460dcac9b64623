/* Uploads to be aborted: of those that nobody goes on with, and of those that may be left where something was begun. While the database
 * cannot be written they are kept in memory (store_memory.c). */
#include "agent/store/ledger.h"

#include "agent/store/store_columns.h"
#include "lib/base/cleanup.h"

/* Aborts that are only in memory have ids above this. */
#define IDS_IN_MEMORY (INT64_C(1) << 62)

static int write_abort(Store *s, const LedgerAbort *a, int64_t *ret_id) {
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
        *ret_id = sqlite3_last_insert_rowid(s->db);
        return store_savepoint_end(s, r);
}

int store_abort_add(Store *s, const LedgerAbort *a, int64_t *ret_id) {
        int64_t id = 0;
        int r = write_abort(s, a, &id);
        Store *m = store_is_trouble(r) ? store_memory(s) : NULL;
        if (m) {
                r = write_abort(m, a, &id);
                id += IDS_IN_MEMORY;
        }
        if (r == 0 && ret_id)
                *ret_id = id;
        return r;
}

int store_abort_done(Store *s, int64_t id) {
        if (id >= IDS_IN_MEMORY)
                return s->memory ? store_run_on_row(s->memory, STORE_ABORT_DROP, id - IDS_IN_MEMORY)
                                 : 0;
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

typedef struct AbortList {
        const char *destination;
        int64_t offset; /* of the ids */
        int (*on_abort)(const LedgerAbort *a, void *userdata);
        void *userdata;
} AbortList;

static int list_aborts(Store *s, const AbortList *list) {
        int64_t after = 0, newest;
        int r = 0;

        (void)count_aborts(s, &newest); /* what the callback adds again does not keep it going */
        while (r == 0) {
                _cleanup_(own_abort_done) OwnAbort a = { 0 };
                r = next_abort(s, list->destination, after, &a);
                if (r != 0 || a.abort.id > newest)
                        break;
                after = a.abort.id;
                a.abort.id += list->offset;
                r = list->on_abort(&a.abort, list->userdata);
        }
        return r;
}

int store_abort_list(Store *s, const char *destination,
                     int (*on_abort)(const LedgerAbort *a, void *userdata), void *userdata) {
        AbortList list = { .destination = destination, .on_abort = on_abort, .userdata = userdata };
        int r = list_aborts(s, &list);
        if (s->memory && (r == 0 || r == STORE_E_NOT_FOUND)) {
                list.offset = IDS_IN_MEMORY;
                r = list_aborts(s->memory, &list);
        }
        return r < 0 ? r : 0;
}

bool store_abort_knows(Store *s, const char *key, const char *upload_id) {
        return store_has_upload(s, STORE_ABORT_KNOWN, key, upload_id) ||
               (s->memory && store_has_upload(s->memory, STORE_ABORT_KNOWN, key, upload_id));
}

uint64_t store_abort_count(Store *s) {
        int64_t newest;
        return count_aborts(s, &newest) + (s->memory ? count_aborts(s->memory, &newest) : 0);
}
