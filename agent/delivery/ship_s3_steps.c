/* What the worker of a delivery to S3 does: all that reads, packs and hashes. Between two steps the loop may touch everything. */
#include <errno.h>
#include <string.h>

#include "agent/delivery/ship_s3_private.h"
#include "lib/base/path.h"

static void buffer_release(S3Part *part) {
        ShipS3Buffer *b = CONTAINER_OF(part, ShipS3Buffer, part);
        packed_part_done(&b->packed);
        free(b->window);
        free(b);
}

void ship_s3_drop_made(ShipS3 *x) {
        if (x->made)
                buffer_release(&TAKE_PTR(x->made)->part);
}

bool ship_s3_plan(ShipS3 *x) {
        x->has_attempt = true;
        if (!ship_attempt_begin(&x->attempt, &x->ship))
                return false;
        digest_hex(x->attempt.plan_sha256, SHA256_SIZE, x->plan_hex);
        free(x->key);
        free(x->manifest_key);
        x->key = path_join(x->ship.directory, x->attempt.object_name);
        x->manifest_key = path_join(x->ship.directory, x->attempt.manifest_name);
        return (x->key && x->manifest_key) ||
               ship_endf(&x->ship, SHIP_FAILED, "%s", strerror(ENOMEM));
}

bool ship_s3_open_packer(ShipS3 *x) {
        PackerOptions options = { .writer = ship_attempt_writer(&x->attempt, x->writer_bytes),
                                  .part_size = x->order.part_size,
                                  .rows = x->rows.items,
                                  .n_rows = x->rows.n };
        int r = packer_new(&x->packer, x->attempt.plan, &options);
        if (r == PACKER_E_ROWS) {
                x->begin_anew = true;
                return ship_endf(&x->ship, SHIP_CHANGED,
                                 "what was written down of its upload does not fit it");
        }
        return r == 0 || ship_attempt_end_writer(&x->attempt, r, SIZE_MAX);
}

bool ship_s3_pack(ShipS3 *x) {
        ShipS3Buffer *b = calloc(1, sizeof *b);
        if (!b)
                return ship_endf(&x->ship, SHIP_FAILED, "%s", strerror(ENOMEM));
        bool again = x->number <= x->rows.n;
        int r = again ? packer_remake(x->packer, x->number - 1, &b->packed)
                      : packer_next(x->packer, &b->packed);
        if (r == PACKER_PART) {
                b->part = (S3Part){ .number = x->number,
                                    .data = b->packed.data,
                                    .bytes = b->packed.row.bytes,
                                    .is_last = b->packed.row.is_last,
                                    .release = buffer_release };
                memcpy(b->part.sha256, b->packed.row.sha256, SHA256_SIZE);
                x->made = b;
                return true;
        }
        free(b);
        if (r == PACKER_E_DIFFERS) {
                x->begin_anew = true;
                return ship_endf(&x->ship, SHIP_CHANGED,
                                 "part %u comes out otherwise than before the interruption",
                                 x->number);
        }
        if (r == 0)
                return ship_endf(&x->ship, SHIP_FAILED, "there is no part %u of it", x->number);
        return ship_attempt_end_writer(&x->attempt, r, packer_failed_member(x->packer));
}

static int count_bytes(const void *data, size_t n, void *userdata) {
        (void)data;
        *(uint64_t *)userdata += n;
        return 0;
}

/* After a crash between the object and its manifest nothing may be left to pack but the results. */
bool ship_s3_close(ShipS3 *x) {
        PackedPart part;
        int r;
        while ((r = packer_next(x->packer, &part)) == PACKER_PART)
                packed_part_done(&part);
        if (r != 0)
                return ship_attempt_end_writer(&x->attempt, r, packer_failed_member(x->packer));
        ship_attempt_judge(&x->attempt, packer_writer(x->packer));
        x->manifest_bytes = 0;
        r = ship_attempt_manifest(&x->attempt, packer_writer(x->packer), packer_parts(x->packer),
                                  count_bytes, &x->manifest_bytes);
        return r == 0 ||
               ship_endf(&x->ship, SHIP_FAILED, "cannot write the manifest: %s", strerror(-r));
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
        size_t take = MIN(n - (size_t)skipped, w->max - w->n);
        memcpy(w->data + w->n, (const uint8_t *)data + skipped, take);
        w->n += take;
        return 0;
}

/* However many members there are, a window of the manifest is in memory at a time: it is written anew for each. */
bool ship_s3_make_window(ShipS3 *x) {
        uint64_t offset = (x->number - 1) * SHIP_S3_WINDOW_BYTES;
        ShipS3Buffer *b = calloc(1, sizeof *b);
        Window w = { .skip = offset,
                     .max = (size_t)MIN(SHIP_S3_WINDOW_BYTES, x->manifest_bytes - offset) };
        w.data = b ? malloc(w.max) : NULL;
        if (!w.data) {
                free(b);
                return ship_endf(&x->ship, SHIP_FAILED, "%s", strerror(ENOMEM));
        }
        b->window = w.data;
        int r = ship_attempt_manifest(&x->attempt, packer_writer(x->packer),
                                      packer_parts(x->packer), fill_window, &w);
        if (r < 0 || w.n != w.max) {
                buffer_release(&b->part);
                return ship_endf(&x->ship, SHIP_FAILED, "cannot write the manifest: %s",
                                 strerror(r < 0 ? -r : EIO));
        }
        b->part = (S3Part){ .number = x->number,
                            .data = w.data,
                            .bytes = w.n,
                            .is_last = offset + w.n == x->manifest_bytes,
                            .release = buffer_release };
        sha256_of(w.data, w.n, b->part.sha256);
        x->made = b;
        return true;
}
