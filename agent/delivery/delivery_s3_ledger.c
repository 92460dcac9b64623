/* The ledger of one upload to a bucket: rows of the store from which an upload that was cut is
 * resumed. The intent, which is the key, the plan and the packer's signature, is written before
 * CreateMultipartUpload, the row of each part before the part is sent, and the part's ETag when it
 * has arrived. Part 1 alone is built before the intent is written, since an object of one part
 * needs none; its row is kept in memory until then.
 *
 * An upload whose intent does not match the new attempt is queued to be aborted. The rows
 * themselves are agent/store's; what is done with them is the packer's and s3_upload's business. */
#include "agent/delivery/delivery_s3_ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"

static void *copy_bytes(const void *data, size_t n) {
        void *copy = malloc(MAX(n, (size_t)1));
        if (copy && n > 0)
                memcpy(copy, data, n);
        return copy;
}

/* Everything but numbers is a copy. */
static int copy_row(PackedRow *to, const PackedRow *from) {
        *to = *from;
        to->frame_bytes = copy_bytes(from->frame_bytes, from->n_frames * sizeof *from->frame_bytes);
        to->state = copy_bytes(from->state, from->state_bytes);
        if (to->frame_bytes && to->state)
                return 0;
        packed_row_done(to);
        return -ENOMEM;
}

static LedgerPart build_ledger_part(unsigned number, const PackedRow *row) {
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

static int load_part(const LedgerPart *p, void *userdata) {
        DeliveryS3Ledger *l = userdata;
        if (p->number != l->n + 1)
                return -EBADMSG; /* a gap: later parts cannot be resumed */
        if (array_grow(&l->items, l->n, sizeof *l->items) < 0 ||
            array_grow(&l->known, l->n, sizeof *l->known) < 0)
                return -ENOMEM;
        PackedRow from = { .first_frame = p->first_frame,
                           .n_frames = p->n_frames,
                           .frame_bytes = (uint32_t *)p->frame_bytes, /* only copied */
                           .bytes = p->bytes,
                           .is_last = p->is_last,
                           .state = (uint8_t *)p->state,
                           .state_bytes = p->state_bytes };
        memcpy(from.sha256, p->sha256, SHA256_SIZE);
        int r = copy_row(&l->items[l->n], &from);
        if (r < 0)
                return r;
        S3KnownPart *k = &l->known[l->n++];
        *k = (S3KnownPart){ .number = p->number, .bytes = p->bytes, .is_last = p->is_last };
        memcpy(k->sha256, p->sha256, SHA256_SIZE);
        if (p->etag && strlen(p->etag) < sizeof k->etag)
                memcpy(k->etag, p->etag, strlen(p->etag));
        return 0;
}

static void free_rows(DeliveryS3Ledger *l) {
        for (size_t i = 0; i < l->n; i++)
                packed_row_done(&l->items[i]);
        free(l->items);
        free(l->known);
        free(l->upload_id);
        l->items = NULL;
        l->known = NULL;
        l->upload_id = NULL;
        l->n = 0;
}

static bool matches(const LedgerUpload *u, const DeliveryS3Expected *expected) {
        return u->upload_id && strcmp(u->key, expected->key) == 0 &&
               strcmp(u->packer, expected->signature) == 0 &&
               memcmp(u->plan, expected->plan, SHA256_SIZE) == 0;
}

int delivery_s3_ledger_load(DeliveryS3Ledger *l, Store *store, const DeliveryS3Expected *expected) {
        _cleanup_(ledger_upload_done) LedgerUpload upload = { 0 };
        delivery_s3_ledger_done(l);
        l->bundle = expected->bundle;
        l->destination = strdup(expected->destination);
        if (!l->destination)
                return -ENOMEM;
        int r = store_ledger_get(store, expected->bundle, expected->destination, &upload);
        if (r == STORE_E_NOT_FOUND)
                return 0;
        if (r < 0)
                return r;
        if (matches(&upload, expected)) {
                r = store_ledger_parts(store, expected->bundle, expected->destination,
                                       &(LedgerReader){ load_part, l });
                l->upload_id = TAKE_PTR(upload.upload_id);
                if (r == 0 && l->n > 0) {
                        l->has_intent = true;
                        return 0;
                }
                if (r < 0 && r != -EBADMSG && r != -EUCLEAN) /* rows that do not add up */
                        return r;
                free_rows(l);
        }
        return store_ledger_abandon(store, expected->bundle, expected->destination);
}

/* A row that is gone cannot be updated: the bundle was cancelled. */
static int row_result(int r) {
        return r > 0 ? -ENOENT : r;
}

static int put_part(const DeliveryS3Ledger *l, Store *store, unsigned number,
                    const PackedRow *row) {
        LedgerPart p = build_ledger_part(number, row);
        return store_ledger_put_part(store, l->bundle, l->destination, &p);
}

int delivery_s3_ledger_add_part(DeliveryS3Ledger *l, Store *store, unsigned number,
                                const PackedRow *row) {
        if (number <= l->n)
                return 0;
        if (!l->has_intent) {
                packed_row_done(&l->first);
                return copy_row(&l->first, row);
        }
        return row_result(put_part(l, store, number, row));
}

int delivery_s3_ledger_start(DeliveryS3Ledger *l, Store *store, const LedgerUpload *upload) {
        int r = store_begin(store);
        if (r < 0)
                return r;
        r = store_ledger_begin(store, l->bundle, l->destination, upload);
        if (r == 0 && l->first.frame_bytes)
                r = put_part(l, store, 1, &l->first);
        if (r == 0)
                r = store_commit(store);
        else
                store_rollback(store);
        l->has_intent = r == 0;
        return row_result(r);
}

int delivery_s3_ledger_set_upload_id(const DeliveryS3Ledger *l, Store *store,
                                     const char *upload_id) {
        return row_result(store_ledger_set_upload_id(store, l->bundle, l->destination, upload_id));
}

int delivery_s3_ledger_set_etag(const DeliveryS3Ledger *l, Store *store, unsigned number,
                                const char *etag) {
        return row_result(store_ledger_set_etag(store, l->bundle, l->destination,
                                                &(LedgerPart){ .number = number, .etag = etag }));
}

uint64_t delivery_s3_ledger_bytes(const DeliveryS3Ledger *l) {
        uint64_t n = 0;
        for (size_t i = 0; i < l->n; i++)
                n += l->items[i].bytes;
        return n;
}

void delivery_s3_ledger_done(DeliveryS3Ledger *l) {
        free_rows(l);
        packed_row_done(&l->first);
        free(l->destination);
        *l = (DeliveryS3Ledger){ 0 };
}
