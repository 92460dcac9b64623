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

/* Everything but numbers is a copy. */
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

static int load_part(const LedgerPart *p, void *userdata) {
        DeliveryS3Ledger *l = userdata;
        if (p->number != l->n + 1)
                return -EBADMSG; /* a gap: nothing behind it can be resumed */
        PackedRow *items = realloc(l->items, (l->n + 1) * sizeof *items);
        if (items)
                l->items = items;
        S3KnownPart *known = items ? realloc(l->known, (l->n + 1) * sizeof *known) : NULL;
        if (!known)
                return -ENOMEM;
        l->known = known;
        PackedRow from = { .first_frame = p->first_frame,
                           .n_frames = p->n_frames,
                           .frame_bytes = (uint32_t *)p->frame_bytes, /* only copied */
                           .bytes = p->bytes,
                           .is_last = p->is_last,
                           .state = (uint8_t *)p->state,
                           .state_bytes = p->state_bytes };
        memcpy(from.sha256, p->sha256, SHA256_SIZE);
        int r = row_copy(&items[l->n], &from);
        if (r < 0)
                return r;
        S3KnownPart *k = &known[l->n++];
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
        l->bundle = strdup(expected->bundle);
        l->destination = strdup(expected->destination);
        if (!l->bundle || !l->destination)
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

static int add_early(DeliveryS3Ledger *l, const PackedRow *row) {
        PackedRow *early = realloc(l->early, (l->n_early + 1) * sizeof *early);
        if (!early)
                return -ENOMEM;
        l->early = early;
        int r = row_copy(&early[l->n_early], row);
        l->n_early += r == 0;
        return r;
}

int delivery_s3_ledger_add_part(DeliveryS3Ledger *l, Store *store, unsigned number,
                                const PackedRow *row) {
        if (number <= l->n)
                return 0;
        if (!l->has_intent)
                return add_early(l, row);
        LedgerPart p = ledger_part(number, row);
        int r = store_ledger_put_part(store, l->bundle, l->destination, &p);
        return r > 0 ? -ENOENT : r;
}

static int store_early(const DeliveryS3Ledger *l, Store *store) {
        int r = 0;
        for (size_t i = 0; r == 0 && i < l->n_early; i++) {
                LedgerPart p = ledger_part((unsigned)i + 1, &l->early[i]);
                r = store_ledger_put_part(store, l->bundle, l->destination, &p);
        }
        return r;
}

int delivery_s3_ledger_start(DeliveryS3Ledger *l, Store *store, const LedgerUpload *upload) {
        int r = store_begin(store);
        if (r < 0)
                return r;
        r = store_ledger_begin(store, l->bundle, l->destination, upload);
        if (r == 0)
                r = store_early(l, store);
        if (r == 0)
                r = store_commit(store);
        else
                store_rollback(store);
        l->has_intent = r == 0;
        return r > 0 ? -ENOENT : r;
}

uint64_t delivery_s3_ledger_bytes(const DeliveryS3Ledger *l) {
        uint64_t n = 0;
        for (size_t i = 0; i < l->n; i++)
                n += l->items[i].bytes;
        return n;
}

void delivery_s3_ledger_done(DeliveryS3Ledger *l) {
        free_rows(l);
        for (size_t i = 0; i < l->n_early; i++)
                packed_row_done(&l->early[i]);
        free(l->early);
        free(l->bundle);
        free(l->destination);
        *l = (DeliveryS3Ledger){ 0 };
}
