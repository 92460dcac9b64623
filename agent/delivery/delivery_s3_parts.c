/* Builds what an upload sends: the parts of the object, which the packer makes or, where the ledger
 * has their rows, makes again; and the windows of the manifest. One part at a time is built, in a
 * buffer that was used before where there is one.
 *
 * When a part is sent, and what is written down of it, is delivery_s3.c's business. */
#include "agent/delivery/delivery_s3_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/base/cleanup.h"
#include "lib/bundle/packer.h"

/* The manifest is uploaded in parts of this size, and one at a time is built in memory. */
#define MANIFEST_WINDOW_BYTES (8 * MIB)

/* A part of the object, or a window of the manifest. Mapped, since fresh pages cost more than the
 * bytes that go into them: those of parts are used again. */
struct PartBuffer {
        S3Part part;
        PackedPart packed; /* data: of n_mapped bytes */
        size_t n_mapped;
        struct PartBuffer **spares; /* where it goes when it is released */
        struct PartBuffer *next;    /* of the spares */
};

static void part_buffer_release(S3Part *part) {
        PartBuffer *b = CONTAINER_OF(part, PartBuffer, part);
        packed_row_done(&b->packed.row);
        b->next = *b->spares;
        *b->spares = b;
}

bool delivery_s3_parts_request(DeliveryS3Parts *p, unsigned number, bool is_manifest) {
        PartBuffer *b = p->spares;
        p->number = number;
        if (b) {
                p->spares = b->next;
                p->built = b;
                return true;
        }
        size_t n = is_manifest ? MIN(MANIFEST_WINDOW_BYTES, p->manifest_bytes)
                               : packer_buffer_bytes(p->packer);
        b = calloc(1, sizeof *b);
        void *data = b ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                       : MAP_FAILED;
        if (data == MAP_FAILED) {
                free(b);
                return delivery_endf(p->attempt->delivery, RESULT_NO_RESOURCES, "%s",
                                     strerror(ENOMEM));
        }
        (void)madvise(data, n,
                      MADV_DONTDUMP); /* evidence does not belong into our own core files */
        *b = (PartBuffer){ .packed.data = data, .n_mapped = n, .spares = &p->spares };
        p->built = b;
        return true;
}

bool delivery_s3_parts_has_built(const DeliveryS3Parts *p) {
        return p->built;
}

const PackedRow *delivery_s3_parts_row(const DeliveryS3Parts *p) {
        return &p->built->packed.row;
}

S3Part *delivery_s3_parts_take(DeliveryS3Parts *p) {
        return &TAKE_PTR(p->built)->part;
}

void delivery_s3_parts_release(DeliveryS3Parts *p) {
        if (p->built)
                part_buffer_release(delivery_s3_parts_take(p));
        while (p->spares) {
                PartBuffer *b = p->spares;
                p->spares = b->next;
                (void)munmap(b->packed.data, b->n_mapped); /* whole mapping */
                free(b);
        }
}

void delivery_s3_parts_done(DeliveryS3Parts *p) {
        delivery_s3_parts_release(p);
        packer_free(p->packer);
        *p = (DeliveryS3Parts){ 0 };
}

static bool end_for_restart(DeliveryS3Parts *p, const char *error) {
        p->must_restart = true;
        return delivery_endf(p->attempt->delivery, RESULT_CHANGED, "%s", error);
}

bool delivery_s3_parts_open(DeliveryS3Parts *p, DeliveryAttempt *attempt,
                            const DeliveryS3Ledger *ledger, uint64_t part_size,
                            uint64_t writer_bytes) {
        p->attempt = attempt;
        p->ledger = ledger;
        PackerOptions options = { .writer = delivery_attempt_writer_options(attempt, writer_bytes),
                                  .part_size = part_size,
                                  .rows = ledger->items,
                                  .n_rows = ledger->n };
        int r = packer_new(&p->packer, attempt->plan, &options);
        if (r == PACKER_E_ROWS)
                return end_for_restart(p, "the ledger of its upload does not match");
        return r == 0 || delivery_attempt_end_writer(attempt, r, SIZE_MAX);
}

bool delivery_s3_parts_build(DeliveryS3Parts *p) {
        PartBuffer *b = p->built;
        int r = p->number <= p->ledger->n ? packer_rebuild(p->packer, p->number - 1, &b->packed)
                                          : packer_next(p->packer, &b->packed);
        if (r == PACKER_PART) {
                b->part = (S3Part){ .number = p->number,
                                    .data = b->packed.data,
                                    .bytes = b->packed.row.bytes,
                                    .is_last = b->packed.row.is_last,
                                    .release = part_buffer_release };
                memcpy(b->part.sha256, b->packed.row.sha256, SHA256_SIZE);
                return true;
        }
        if (r == PACKER_E_DIFFERS)
                return end_for_restart(p, "a part differs from the one before the interruption");
        if (r == 0)
                return delivery_endf(p->attempt->delivery, RESULT_FAILED,
                                     "there is no part %u of it", p->number);
        return delivery_attempt_end_writer(p->attempt, r, packer_status(p->packer).failed_member);
}

static bool write_manifest(DeliveryS3Parts *p,
                           int (*put)(const void *data, size_t n, void *userdata), void *userdata) {
        int r = delivery_attempt_write_manifest(p->attempt, packer_status(p->packer).writer,
                                                packer_status(p->packer).parts, put, userdata);
        return r == 0 || delivery_endf(p->attempt->delivery, delivery_result_of(r),
                                       "cannot write the manifest: %s", strerror(-r));
}

static int count_bytes(const void *data, size_t n, void *userdata) {
        (void)data;
        *(uint64_t *)userdata += n;
        return 0;
}

bool delivery_s3_parts_close(DeliveryS3Parts *p) {
        delivery_attempt_add_verdicts(p->attempt, packer_status(p->packer).writer);
        p->manifest_bytes = 0;
        return write_manifest(p, count_bytes, &p->manifest_bytes);
}

typedef struct Window {
        uint8_t *data;
        uint64_t skip;
        size_t n, max;
} Window;

static int fill_window(const void *data, size_t n, void *userdata) {
        Window *w = userdata;
        uint64_t skipped = MIN((uint64_t)n, w->skip);
        w->skip -= skipped;
        size_t n_copied = MIN(n - (size_t)skipped, w->max - w->n);
        memcpy(w->data + w->n, (const uint8_t *)data + skipped, n_copied);
        w->n += n_copied;
        return 0;
}

/* The whole manifest is written for each window, so that one window at a time is in memory. */
bool delivery_s3_parts_build_manifest(DeliveryS3Parts *p) {
        uint64_t offset = (p->number - 1) * MANIFEST_WINDOW_BYTES;
        PartBuffer *b = p->built;
        Window w = { .data = b->packed.data,
                     .skip = offset,
                     .max = (size_t)MIN(MANIFEST_WINDOW_BYTES, p->manifest_bytes - offset) };
        if (!write_manifest(p, fill_window, &w))
                return false;
        if (w.n != w.max)
                return delivery_endf(p->attempt->delivery, RESULT_FAILED,
                                     "the size of the manifest changed");
        b->part = (S3Part){ .number = p->number,
                            .data = w.data,
                            .bytes = w.n,
                            .is_last = offset + w.n == p->manifest_bytes,
                            .release = part_buffer_release };
        sha256_of(w.data, w.n, b->part.sha256);
        return true;
}
