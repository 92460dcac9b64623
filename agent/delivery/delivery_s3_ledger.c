#include "agent/delivery/delivery_s3.h"

#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"

static void *copy_of(const void *data, size_t n) {
        void *copy = malloc(MAX(n, (size_t)1));
        if (copy && n > 0)
                memcpy(copy, data, n);
        return copy;
}

/* Everything but numbers is allocated anew. */
static int row_copy(PackedRow *to, const PackedRow *from) {
        *to = *from;
        to->frame_bytes = copy_of(from->frame_bytes, from->n_frames * sizeof *from->frame_bytes);
        to->state = copy_of(from->state, from->state_bytes);
        if (to->frame_bytes && to->state)
                return 0;
        packed_row_done(to);
        return -ENOMEM;
}

static LedgerPart ledger_part(unsigned number, const PackedRow *row) {
        LedgerPart p = { .number = number,
                         .first_frame = row->first_frame,
                         .n_frames = row->n_frames,
                         .frame_bytes = row->frame_bytes,
                         .bytes = row->bytes,
                         .is_last = row->is_last,
                         .state = row->state,
                         .state_bytes = row->state_bytes };
        memcpy(p.sha256, row->sha256, SHA256_SIZE);
        return p;
}

static int take_part(const LedgerPart *p, void *userdata) {
        ShipS3Rows *rows = userdata;
        if (p->number != rows->n + 1)
                return -EBADMSG; /* a gap: nothing behind it can be gone on with */
        PackedRow *items = realloc(rows->items, (rows->n + 1) * sizeof *items);
        if (items)
                rows->items = items;
        S3KnownPart *known = items ? realloc(rows->known, (rows->n + 1) * sizeof *known) : NULL;
        if (!known)
                return -ENOMEM;
        rows->known = known;
        PackedRow from = { .first_frame = p->first_frame,
                           .n_frames = p->n_frames,
                           .frame_bytes = (uint32_t *)p->frame_bytes, /* only copied */
                           .bytes = p->bytes,
                           .is_last = p->is_last,
                           .state = (uint8_t *)p->state,
                           .state_bytes = p->state_bytes };
        memcpy(from.sha256, p->sha256, SHA256_SIZE);
        int r = row_copy(&items[rows->n], &from);
        if (r < 0)
                return r;
        S3KnownPart *k = &known[rows->n++];
        *k = (S3KnownPart){ .number = p->number, .bytes = p->bytes, .is_last = p->is_last };
        memcpy(k->sha256, p->sha256, SHA256_SIZE);
        if (p->etag && strlen(p->etag) < sizeof k->etag)
                memcpy(k->etag, p->etag, strlen(p->etag));
        return 0;
}

static void drop_rows(ShipS3Rows *rows) {
        for (size_t i = 0; i < rows->n; i++)
                packed_row_done(&rows->items[i]);
        free(rows->items);
        free(rows->known);
        free(rows->upload_id);
        rows->items = NULL;
        rows->known = NULL;
        rows->upload_id = NULL;
        rows->n = 0;
}

static bool fits(const LedgerUpload *u, const ShipS3Wanted *wanted) {
        return u->upload_id && strcmp(u->key, wanted->key) == 0 &&
               strcmp(u->packer, wanted->signature) == 0 &&
               memcmp(u->plan, wanted->plan, SHA256_SIZE) == 0;
}

int ship_s3_rows_load(ShipS3Rows *rows, Store *store, const ShipS3Wanted *wanted) {
        _cleanup_(ledger_upload_done) LedgerUpload upload = { 0 };
        ship_s3_rows_done(rows);
        rows->bundle = strdup(wanted->bundle);
        rows->destination = strdup(wanted->destination);
        if (!rows->bundle || !rows->destination)
                return -ENOMEM;
        int r = store_ledger_get(store, wanted->bundle, wanted->destination, &upload);
        if (r == STORE_E_NOT_FOUND || store_is_trouble(r))
                return 0; /* what cannot be read is not gone on with */
        if (r < 0)
                return r;
        if (fits(&upload, wanted)) {
                r = store_ledger_parts(store, wanted->bundle, wanted->destination,
                                       &(LedgerReader){ take_part, rows });
                rows->upload_id = TAKE_PTR(upload.upload_id);
                if (r == 0 && rows->n > 0) {
                        rows->has_intent = true;
                        return 0;
                }
                if (r < 0 && r != -EBADMSG && r != -EUCLEAN) /* rows that do not add up */
                        return r;
                drop_rows(rows);
        }
        return store_ledger_abandon(store, wanted->bundle, wanted->destination);
}

static int keep_early(ShipS3Rows *rows, const PackedRow *row) {
        PackedRow *early = realloc(rows->early, (rows->n_early + 1) * sizeof *early);
        if (!early)
                return -ENOMEM;
        rows->early = early;
        int r = row_copy(&early[rows->n_early], row);
        rows->n_early += r == 0;
        return r;
}

int ship_s3_rows_add(ShipS3Rows *rows, Store *store, unsigned number, const PackedRow *row) {
        if (number <= rows->n)
                return 0;
        if (!rows->has_intent)
                return keep_early(rows, row);
        LedgerPart p = ledger_part(number, row);
        int r = store_ledger_put_part(store, rows->bundle, rows->destination, &p);
        return r > 0 ? -ENOENT : r;
}

static int put_early(const ShipS3Rows *rows, Store *store) {
        int r = 0;
        for (size_t i = 0; r == 0 && i < rows->n_early; i++) {
                LedgerPart p = ledger_part((unsigned)i + 1, &rows->early[i]);
                r = store_ledger_put_part(store, rows->bundle, rows->destination, &p);
        }
        return r;
}

/* @return 0, STORE_E_NOT_FOUND (the bundle has no row), -errno */
static int begin_durably(const ShipS3Rows *rows, Store *store, const LedgerUpload *upload) {
        int r = store_begin(store);
        if (r < 0)
                return r;
        r = store_ledger_begin(store, rows->bundle, rows->destination, upload);
        if (r == 0)
                r = put_early(rows, store);
        if (r == 0)
                return store_commit(store);
        store_rollback(store);
        return r;
}

int ship_s3_rows_begin(ShipS3Rows *rows, Store *store, const LedgerUpload *upload) {
        int r = begin_durably(rows, store, upload);
        /* A crash leaves an upload on the server that nobody knows, which the next start sweeps away. */
        if (store_is_trouble(r) || (r > 0 && store_trouble(store) < 0)) {
                r = store_ledger_begin_in_memory(store, rows->bundle, rows->destination, upload);
                if (r == 0)
                        r = put_early(rows, store);
        }
        rows->has_intent = r == 0;
        return r > 0 ? -ENOENT : r;
}

uint64_t ship_s3_rows_bytes(const ShipS3Rows *rows) {
        uint64_t n = 0;
        for (size_t i = 0; i < rows->n; i++)
                n += rows->items[i].bytes;
        return n;
}

void ship_s3_rows_done(ShipS3Rows *rows) {
        drop_rows(rows);
        for (size_t i = 0; i < rows->n_early; i++)
                packed_row_done(&rows->early[i]);
        free(rows->early);
        free(rows->bundle);
        free(rows->destination);
        *rows = (ShipS3Rows){ 0 };
}
