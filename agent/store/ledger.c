/* The ledger: uploads underway with their parts. Rows are handed out one by one as copies, so that
 * the callbacks may use the store as they like. */
#include "agent/store/ledger.h"

#include <endian.h>

#include "agent/store/store_private.h"
#include "lib/base/cleanup.h"

void ledger_upload_done(LedgerUpload *u) {
        free(u->key);
        free(u->upload_id);
        free(u->packer);
        *u = (LedgerUpload){ 0 };
}

/* 0 and the number of the row, STORE_E_NOT_FOUND, -errno */
static int find_upload(Store *s, const char *bundle, const char *destination, int64_t *ret) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_UPLOAD_FIND];
        Binder b = { .statement = st };
        int r;

        bind_text(&b, bundle);
        bind_text(&b, destination);
        r = b.result == SQLITE_OK ? sqlite3_step(st) : b.result;
        if (r == SQLITE_DONE)
                return STORE_E_NOT_FOUND;
        if (r != SQLITE_ROW)
                return store_errno(s, r);
        *ret = sqlite3_column_int64(st, 0);
        return 0;
}

int store_run_on_row(Store *s, StoreStatement which, int64_t row) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[which];
        Binder b = { .statement = st };

        bind_number(&b, (uint64_t)row);
        return bind_and_run(s, &b);
}

/* Uploads */

bool store_has_upload(Store *s, StoreStatement which, const char *key, const char *upload_id) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[which];
        Binder b = { .statement = st };

        bind_bytes(&b, key);
        bind_bytes(&b, upload_id);
        return b.result != SQLITE_OK || sqlite3_step(st) != SQLITE_DONE;
}

static int add_upload(Store *s, int64_t bundle_row, const char *destination,
                      const LedgerUpload *u) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_UPLOAD_ADD];
        Binder b = { .statement = st };

        bind_number(&b, (uint64_t)bundle_row);
        bind_text(&b, destination);
        bind_bytes(&b, u->key);
        bind_bytes(&b, u->upload_id);
        bind_blob(&b, u->plan, sizeof u->plan);
        bind_text(&b, u->packer);
        bind_number(&b, u->created_usec);
        return bind_and_run(s, &b);
}

/* Its parts go with it. */
static int drop_upload(Store *s, int64_t row, bool to_be_aborted) {
        int r = to_be_aborted ? store_run_on_row(s, STORE_UPLOAD_TO_ABORTS, row) : 0;
        return r == 0 ? store_run_on_row(s, STORE_UPLOAD_DROP, row) : r;
}

static int leave_upload(Store *s, const char *bundle, const char *destination, bool to_be_aborted) {
        int64_t row;
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = find_upload(s, bundle, destination, &row);
        r = r == 0 ? drop_upload(s, row, to_be_aborted) : r == STORE_E_NOT_FOUND ? 0 : r;
        return store_savepoint_end(s, r);
}

int store_ledger_end(Store *s, const char *bundle, const char *destination) {
        return leave_upload(s, bundle, destination, false);
}

int store_ledger_abandon(Store *s, const char *bundle, const char *destination) {
        return leave_upload(s, bundle, destination, true);
}

static int find_idle(Store *s, int64_t *ret_row) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_UPLOAD_IDLE];
        int r = sqlite3_step(st);
        if (r == SQLITE_DONE)
                return STORE_E_NOT_FOUND;
        if (r != SQLITE_ROW)
                return store_errno(s, r);
        *ret_row = sqlite3_column_int64(st, 0);
        return 0;
}

int store_ledger_abandon_idle(Store *s) {
        int64_t row = 0;
        int r;
        while ((r = find_idle(s, &row)) == 0) {
                r = store_savepoint(s);
                if (r == 0)
                        r = store_savepoint_end(s, drop_upload(s, row, true));
                if (r < 0)
                        return r;
        }
        return r == STORE_E_NOT_FOUND ? 0 : r;
}

int store_ledger_begin(Store *s, const char *bundle, const char *destination,
                       const LedgerUpload *u) {
        int64_t bundle_row, row;
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = store_find_row(s, bundle, &bundle_row, NULL);
        if (r == 0) {
                r = find_upload(s, bundle, destination, &row);
                r = r == 0 ? drop_upload(s, row, true) : r == STORE_E_NOT_FOUND ? 0 : r;
                if (r == 0)
                        r = add_upload(s, bundle_row, destination, u);
        }
        return store_savepoint_end(s, r);
}

static int set_upload_id(Store *s, int64_t row, const char *upload_id) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_UPLOAD_SET_ID];
        Binder b = { .statement = st };

        bind_number(&b, (uint64_t)row);
        bind_bytes(&b, upload_id);
        return bind_and_run(s, &b);
}

int store_ledger_set_upload_id(Store *s, const char *bundle, const char *destination,
                               const char *upload_id) {
        int64_t row;
        if (upload_id[0] == '\0')
                return -EINVAL;
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = find_upload(s, bundle, destination, &row);
        if (r == 0)
                r = set_upload_id(s, row, upload_id);
        return store_savepoint_end(s, r);
}

int store_ledger_get(Store *s, const char *bundle, const char *destination, LedgerUpload *ret) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_UPLOAD_GET];
        _cleanup_(ledger_upload_done) LedgerUpload u = { 0 };
        Reader reader = { .statement = st };
        int64_t row;
        int r = find_upload(s, bundle, destination, &row);
        if (r != 0)
                return r;
        r = sqlite3_bind_int64(st, 1, row);
        if (r == SQLITE_OK)
                r = sqlite3_step(st);
        if (r != SQLITE_ROW)
                return r == SQLITE_DONE ? STORE_E_NOT_FOUND : store_errno(s, r);
        u.key = read_string(&reader, false);
        u.upload_id = read_string(&reader, true);
        read_fixed(&reader, u.plan, sizeof u.plan);
        u.packer = read_string(&reader, false);
        u.created_usec = read_number(&reader);
        if (reader.error < 0)
                return reader.error;
        *ret = u;
        u = (LedgerUpload){ 0 }; /* it is theirs now */
        return 0;
}

bool store_ledger_knows(Store *s, const char *key, const char *upload_id) {
        return store_has_upload(s, STORE_UPLOAD_KNOWN, key, upload_id);
}

/* Parts */

/* @param frame_bytes  little-endian */
static int put_part(Store *s, int64_t row, const LedgerPart *p, const uint32_t *frame_bytes) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_PART_PUT];
        Binder b = { .statement = st };

        bind_number(&b, (uint64_t)row);
        bind_number(&b, p->number);
        bind_number(&b, p->first_frame);
        bind_number(&b, p->n_frames);
        bind_number(&b, p->bytes);
        bind_number(&b, p->is_last);
        bind_blob(&b, p->sha256, sizeof p->sha256);
        bind_bytes(&b, p->etag);
        bind_blob(&b, frame_bytes, p->n_frames * sizeof *frame_bytes);
        bind_blob(&b, p->state, p->state_bytes);
        return bind_and_run(s, &b);
}

int store_ledger_put_part(Store *s, const char *bundle, const char *destination,
                          const LedgerPart *p) {
        _cleanup_free_ uint32_t *frame_bytes =
                reallocarray(NULL, p->n_frames > 0 ? p->n_frames : 1, sizeof *frame_bytes);
        int64_t row;

        if (p->number == 0)
                return -EINVAL;
        if (!frame_bytes)
                return -ENOMEM;
        for (uint64_t i = 0; i < p->n_frames; i++)
                frame_bytes[i] = htole32(p->frame_bytes[i]);
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = find_upload(s, bundle, destination, &row);
        if (r == 0)
                r = put_part(s, row, p, frame_bytes);
        return store_savepoint_end(s, r);
}

static int set_etag(Store *s, int64_t row, unsigned number, const char *etag) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_PART_SET_ETAG];
        Binder b = { .statement = st };
        int r;

        bind_number(&b, (uint64_t)row);
        bind_number(&b, number);
        bind_bytes(&b, etag);
        r = bind_and_run(s, &b);
        return r == 0 && sqlite3_changes(s->db) == 0 ? STORE_E_NOT_FOUND : r;
}

int store_ledger_set_etag(Store *s, const char *bundle, const char *destination,
                          const LedgerPart *p) {
        int64_t row;
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = find_upload(s, bundle, destination, &row);
        if (r == 0)
                r = set_etag(s, row, p->number, p->etag);
        return store_savepoint_end(s, r);
}

typedef struct OwnPart {
        LedgerPart part;
        uint32_t *frame_bytes;
        void *state;
        char *etag;
} OwnPart;

static void own_part_done(OwnPart *p) {
        free(p->frame_bytes);
        free(p->state);
        free(p->etag);
}

/* What was read stays in it when it fails. */
static int read_part(sqlite3_stmt *st, OwnPart *p) {
        Reader r = { .statement = st };
        LedgerPart *part = &p->part;
        uint64_t number = read_number(&r);
        size_t size = 0;

        part->number = (unsigned)number;
        part->first_frame = read_number(&r);
        part->n_frames = read_number(&r);
        part->bytes = read_number(&r);
        part->is_last = read_number(&r) != 0;
        read_fixed(&r, part->sha256, sizeof part->sha256);
        part->etag = p->etag = read_string(&r, true);
        part->frame_bytes = p->frame_bytes = read_blob(&r, &size);
        part->state = p->state = read_blob(&r, &part->state_bytes);
        if (r.error < 0)
                return r.error;
        if (number == 0 || number > UINT32_MAX || size % sizeof *p->frame_bytes != 0 ||
            part->n_frames != size / sizeof *p->frame_bytes)
                return -EUCLEAN;
        for (uint64_t i = 0; i < part->n_frames; i++)
                p->frame_bytes[i] = le32toh(p->frame_bytes[i]);
        return 0;
}

/* 0 and *ret, STORE_E_NOT_FOUND when there is none after this number, -errno */
static int next_part(Store *s, int64_t row, unsigned after, OwnPart *ret) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_PART_NEXT];
        Binder b = { .statement = st };
        int r;

        bind_number(&b, (uint64_t)row);
        bind_number(&b, after);
        r = b.result == SQLITE_OK ? sqlite3_step(st) : b.result;
        if (r == SQLITE_DONE)
                return STORE_E_NOT_FOUND;
        return r == SQLITE_ROW ? read_part(st, ret) : store_errno(s, r);
}

int store_ledger_parts(Store *s, const char *bundle, const char *destination,
                       const LedgerReader *reader) {
        unsigned after = 0;
        int64_t row;
        int r = find_upload(s, bundle, destination, &row);

        while (r == 0) {
                _cleanup_(own_part_done) OwnPart p = { 0 };
                r = next_part(s, row, after, &p);
                if (r != 0)
                        break;
                after = p.part.number;
                r = reader->on_part(&p.part, reader->userdata);
        }
        return r < 0 ? r : 0;
}

/* Uploads to be aborted: of those that nobody goes on with, and of those that may be left where
 * something was begun. */

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
