/* The ledger: the uploads that are underway with their parts, and the uploads that are to be
 * aborted (the rows of uploads, upload_parts and aborts). Callbacks get copies of rows, one at a
 * time, so that they may use the store. When an upload is started, resumed or aborted is decided in
 * agent/delivery. */

#include <endian.h>

#include "agent/store/store_private.h"
#include "lib/base/cleanup.h"

void ledger_upload_done(LedgerUpload *u) {
        free(u->key);
        free(u->upload_id);
        free(u->packer);
        *u = (LedgerUpload){ 0 };
}

/* Starts a statement whose first parameters are those of THE_UPLOAD (statements.c). */
static Binder bind_upload(Store *s, StoreStatement which, const char *bundle,
                          const char *destination) {
        Binder b = { .statement = s->statements[which] };
        bind_text(&b, bundle);
        bind_text(&b, destination);
        return b;
}

/* @return whether there is a row with this key and upload id; true as well on an error */
static bool has_upload(Store *s, StoreStatement which, const char *key, const char *upload_id) {
        _cleanup_binder_ Binder b = { .statement = s->statements[which] };
        bind_bytes(&b, key);
        bind_bytes(&b, upload_id);
        return next_row(s, &b) != STORE_E_NOT_FOUND;
}

/* ---- uploads ---- */

static int run_on_upload(Store *s, StoreStatement which, const char *bundle,
                         const char *destination) {
        _cleanup_binder_ Binder b = bind_upload(s, which, bundle, destination);
        return run_change(s, &b);
}

/* Its parts go with it. */
static int end_upload(Store *s, const char *bundle, const char *destination, bool to_be_aborted) {
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        if (to_be_aborted)
                r = run_on_upload(s, STORE_UPLOAD_TO_ABORTS, bundle, destination);
        if (r == 0)
                r = run_on_upload(s, STORE_UPLOAD_DROP, bundle, destination);
        return store_savepoint_end(s, r);
}

int store_ledger_end(Store *s, const char *bundle, const char *destination) {
        return end_upload(s, bundle, destination, false);
}

int store_ledger_abandon(Store *s, const char *bundle, const char *destination) {
        return end_upload(s, bundle, destination, true);
}

/* Checks first: AUTOINCREMENT writes a table's last number even when nothing is inserted, and a
 * start on a full disk avoids each write that it can. */
static int has_idle(Store *s) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_IDLE_EXISTS] };
        int r = next_row(s, &b);
        return r == 0 ? sqlite3_column_int(b.statement, 0) : r;
}

int store_ledger_abandon_idle(Store *s) {
        int r = has_idle(s);
        if (r <= 0)
                return r;
        r = store_savepoint(s);
        if (r < 0)
                return r;
        _cleanup_binder_ Binder abort = { .statement = s->statements[STORE_IDLE_TO_ABORTS] };
        _cleanup_binder_ Binder drop = { .statement = s->statements[STORE_IDLE_DROP] };
        r = run_change(s, &abort);
        return store_savepoint_end(s, r == 0 ? run_change(s, &drop) : r);
}

int store_ledger_begin(Store *s, const char *bundle, const char *destination,
                       const LedgerUpload *u) {
        _cleanup_binder_ Binder b = bind_upload(s, STORE_UPLOAD_ADD, bundle, destination);
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        bind_bytes(&b, u->key);
        bind_bytes(&b, u->upload_id);
        bind_blob(&b, u->plan, sizeof u->plan);
        bind_text(&b, u->packer);
        bind_number(&b, u->created_usec);
        r = store_ledger_abandon(s, bundle, destination);
        if (r == 0)
                r = store_change(s, &b);
        return store_savepoint_end(s, r);
}

int store_ledger_set_upload_id(Store *s, const char *bundle, const char *destination,
                               const char *upload_id) {
        _cleanup_binder_ Binder b = bind_upload(s, STORE_UPLOAD_SET_ID, bundle, destination);
        bind_bytes(&b, upload_id);
        return upload_id[0] == '\0' ? -EINVAL : store_change(s, &b);
}

int store_ledger_get(Store *s, const char *bundle, const char *destination, LedgerUpload *ret) {
        _cleanup_binder_ Binder b = bind_upload(s, STORE_UPLOAD_GET, bundle, destination);
        _cleanup_(ledger_upload_done) LedgerUpload u = { 0 };
        ColumnReader reader = { .statement = b.statement };
        int r = next_row(s, &b);
        if (r != 0)
                return r;
        u.key = read_string(&reader, false);
        u.upload_id = read_string(&reader, true);
        read_fixed(&reader, u.plan, sizeof u.plan);
        u.packer = read_string(&reader, false);
        u.created_usec = read_number(&reader);
        if (reader.error < 0)
                return reader.error;
        *ret = u;
        u = (LedgerUpload){ 0 }; /* the caller's now */
        return 0;
}

bool store_ledger_knows(Store *s, const char *key, const char *upload_id) {
        return has_upload(s, STORE_UPLOAD_KNOWN, key, upload_id);
}

/* ---- parts ---- */

int store_ledger_put_part(Store *s, const char *bundle, const char *destination,
                          const LedgerPart *p) {
        _cleanup_free_ uint32_t *frame_bytes = /* little-endian */
                reallocarray(NULL, p->n_frames > 0 ? p->n_frames : 1, sizeof *frame_bytes);
        _cleanup_binder_ Binder b = bind_upload(s, STORE_PART_PUT, bundle, destination);

        if (p->number == 0)
                return -EINVAL;
        if (!frame_bytes)
                return -ENOMEM;
        for (uint64_t i = 0; i < p->n_frames; i++)
                frame_bytes[i] = htole32(p->frame_bytes[i]);
        bind_number(&b, p->number);
        bind_number(&b, p->first_frame);
        bind_number(&b, p->n_frames);
        bind_number(&b, p->bytes);
        bind_number(&b, p->is_last);
        bind_blob(&b, p->sha256, sizeof p->sha256);
        bind_bytes(&b, p->etag);
        bind_blob(&b, frame_bytes, p->n_frames * sizeof *frame_bytes);
        bind_blob(&b, p->state, p->state_bytes);
        return store_change(s, &b);
}

int store_ledger_set_etag(Store *s, const char *bundle, const char *destination,
                          const LedgerPart *p) {
        _cleanup_binder_ Binder b = bind_upload(s, STORE_PART_SET_ETAG, bundle, destination);
        bind_number(&b, p->number);
        bind_bytes(&b, p->etag);
        return store_change(s, &b);
}

/* Of a part that was read. */
static void part_done(LedgerPart *p) {
        free((void *)p->frame_bytes);
        free((void *)p->state);
        free((char *)p->etag);
}

/* What was read stays in it when it fails. */
static int read_part(sqlite3_stmt *st, LedgerPart *part) {
        ColumnReader r = { .statement = st };
        uint64_t number = read_number(&r);
        uint32_t *frame_bytes;
        size_t size = 0;

        part->number = (unsigned)number;
        part->first_frame = read_number(&r);
        part->n_frames = read_number(&r);
        part->bytes = read_number(&r);
        part->is_last = read_number(&r) != 0;
        read_fixed(&r, part->sha256, sizeof part->sha256);
        part->etag = read_string(&r, true);
        part->frame_bytes = frame_bytes = read_blob(&r, &size);
        part->state = read_blob(&r, &part->state_bytes);
        if (r.error < 0)
                return r.error;
        if (number == 0 || number > UINT32_MAX || size % sizeof *frame_bytes != 0 ||
            part->n_frames != size / sizeof *frame_bytes)
                return -EUCLEAN;
        for (uint64_t i = 0; i < part->n_frames; i++)
                frame_bytes[i] = le32toh(frame_bytes[i]);
        return 0;
}

int store_ledger_parts(Store *s, const char *bundle, const char *destination,
                       const LedgerReader *reader) {
        unsigned after = 0;
        int r = 0;

        while (r == 0) {
                _cleanup_(part_done) LedgerPart p = { 0 };
                Binder b = bind_upload(s, STORE_PART_NEXT, bundle, destination);
                bind_number(&b, after);
                r = next_row(s, &b);
                if (r == 0)
                        r = read_part(b.statement, &p);
                binder_done(&b); /* the callback may use the store */
                after = p.number;
                if (r == 0)
                        r = reader->on_part(&p, reader->userdata);
        }
        return r < 0 ? r : 0;
}

/* ---- uploads to be aborted: those that nobody resumes, and those that may exist where something
 * was begun ---- */

int store_abort_add(Store *s, const LedgerAbort *a, int64_t *ret_id) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_ABORT_ADD] };
        bind_text(&b, a->destination);
        bind_bytes(&b, a->key);
        bind_bytes(&b, a->upload_id);
        bind_number(&b, a->since_usec);
        int r = store_change(s, &b);
        if (r == 0 && ret_id)
                *ret_id = sqlite3_last_insert_rowid(s->db);
        return r;
}

int store_abort_done(Store *s, int64_t id) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_ABORT_DROP] };
        bind_number(&b, (uint64_t)id);
        int r = store_change(s, &b);
        return r == STORE_E_NOT_FOUND ? 0 : r;
}

int store_abort_next(Store *s, const char *destination, int64_t after, LedgerAbort *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_ABORT_NEXT] };
        ColumnReader reader = { .statement = b.statement };
        bind_text(&b, destination);
        bind_number(&b, (uint64_t)after);
        int r = next_row(s, &b);
        if (r != 0)
                return r;
        ret->id = (int64_t)read_number(&reader);
        ret->destination = destination;
        ret->key = read_string(&reader, false);
        ret->upload_id = read_string(&reader, true);
        ret->since_usec = read_number(&reader);
        return reader.error;
}

int store_abort_drop_former(Store *s, const char *destinations, uint64_t before_usec) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_ABORT_DROP_FORMER] };
        bind_text(&b, destinations);
        bind_number(&b, before_usec);
        int r = store_change(s, &b);
        return r == STORE_E_NOT_FOUND ? 0 : r;
}

void ledger_abort_done(LedgerAbort *a) {
        free((char *)a->key);
        free((char *)a->upload_id);
        *a = (LedgerAbort){ 0 };
}

bool store_abort_knows(Store *s, const char *key, const char *upload_id) {
        return has_upload(s, STORE_ABORT_KNOWN, key, upload_id);
}

uint64_t store_abort_count(Store *s, const char *destination, bool is_id_known) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_ABORT_COUNT] };
        bind_text(&b, destination);
        return next_row(s, &b) == 0 ? (uint64_t)sqlite3_column_int64(b.statement, is_id_known) : 0;
}
