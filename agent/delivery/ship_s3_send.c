/* The upload of the object and that of the manifest: what uploaders/s3/s3.c asks for and is given, what it says into the ledger, and how
 * it ends. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/delivery/ship_s3_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

static int on_turn(sd_event_source *source, void *userdata) {
        (void)source;
        ship_s3_next(userdata);
        return 0;
}

static void turn(ShipS3 *x) {
        int r = x->turn ? sd_event_source_set_enabled(x->turn, SD_EVENT_ONESHOT)
                        : sd_event_add_defer(x->order.event, &x->turn, on_turn, x);
        if (r < 0)
                log_dump(x->ship.rec.id, LOG_ERR, r,
                         "cannot go on with its delivery; restart the agent");
}

static void on_want(S3Upload *u, unsigned number, void *userdata) {
        (void)u;
        ShipS3 *x = userdata;
        x->wanted = number;
        turn(x);
}

static bool make_wanted(ShipS3 *x) {
        if (x->wanted == 0)
                return true;
        x->number = x->wanted;
        x->wanted = 0;
        return ship_s3_begin_step(x,
                                  x->state == SHIP_S3_SENDING ? ship_s3_pack : ship_s3_make_window);
}

/* The row first, then the part goes. */
static bool give_made(ShipS3 *x) {
        if (x->state == SHIP_S3_SENDING) {
                const PackedPart *packed = &x->made->packed;
                int r = ship_s3_rows_add(&x->rows, x->order.store, x->number, &packed->row);
                if (r < 0)
                        return ship_s3_end_store(x, r);
                x->packed_bytes += x->number > x->rows.n ? packed->row.bytes : 0;
                x->packed_stream_bytes = packer_done_bytes(x->packer);
                atomic_store(&x->ship.read_bytes, packer_bytes_read(x->packer));
        }
        s3_upload_give(x->upload, &TAKE_PTR(x->made)->part);
        return true;
}

/* A row that is not there any more cannot be written to: the bundle was cancelled. */
static int durable(int r) {
        return r > 0 ? -ENOENT : r;
}

static int on_begin(S3Upload *u, void *userdata) {
        (void)u;
        ShipS3 *x = userdata;
        LedgerUpload upload = { .key = x->key,
                                .packer = x->signature,
                                .created_usec = x->order.clock->realtime_usec(x->order.clock) };
        memcpy(upload.plan, x->attempt.plan_sha256, SHA256_SIZE);
        return ship_s3_rows_begin(&x->rows, x->order.store, &upload);
}

static int on_upload_id(S3Upload *u, const char *upload_id, void *userdata) {
        (void)u;
        ShipS3 *x = userdata;
        return durable(store_ledger_set_upload_id(x->order.store, x->ship.rec.id, x->destination,
                                                  upload_id));
}

static int on_etag(S3Upload *u, unsigned number, const char *etag, void *userdata) {
        (void)u;
        ShipS3 *x = userdata;
        return durable(store_ledger_set_etag(x->order.store, x->ship.rec.id, x->destination,
                                             &(LedgerPart){ .number = number, .etag = etag }));
}

/* Of all uploads of that key. */
static int add_abort(ShipS3 *x, const char *key, int64_t *ret_id) {
        return store_abort_add(
                x->order.store,
                &(LedgerAbort){ .destination = x->destination,
                                .key = key,
                                .since_usec = x->order.clock->realtime_usec(x->order.clock) },
                ret_id);
}

/* A manifest's upload is never gone on with: should it need parts and be cut, it is to be aborted. */
static int on_manifest_begin(S3Upload *u, void *userdata) {
        (void)u;
        ShipS3 *x = userdata;
        return add_abort(x, x->manifest_key, &x->abort_id);
}

static int on_manifest_upload_id(S3Upload *u, const char *upload_id, void *userdata) {
        (void)u, (void)upload_id, (void)userdata;
        return 0; /* all uploads of that key are aborted, whatever their ids */
}

static int on_manifest_etag(S3Upload *u, unsigned number, const char *etag, void *userdata) {
        (void)u, (void)number, (void)etag, (void)userdata;
        return 0;
}

static void on_upload_done(const S3UploadResult *result, void *userdata) {
        ShipS3 *x = userdata;
        x->told = *result;
        x->told.error = result->error ? strdup(result->error) : NULL;
        x->told.etag = NULL;
        x->upload_done = true;
        turn(x);
}

/* Uploads of the object's key that nobody goes on with may be left: found and aborted before the next delivery. */
static void note_left_uploads(ShipS3 *x) {
        int r = add_abort(x, x->key, NULL);
        if (r < 0)
                log_dump(x->ship.rec.id, LOG_WARNING, r,
                         "%s: cannot write down that its upload is to be aborted", x->destination);
}

/* @return whether the object or the manifest is there */
static bool take_upload_result(ShipS3 *x) {
        _cleanup_free_ char *error = (char *)TAKE_PTR(x->told.error);
        int outcome = x->told.outcome;
        x->upload_done = false;
        x->upload = s3_upload_free(x->upload);
        x->wanted = 0;
        ship_s3_drop_made(x); /* for an upload that has ended */
        if (x->told.is_upload_left && x->state == SHIP_S3_SENDING)
                note_left_uploads(x);
        if (outcome == 0 || outcome == UPLOAD_E_SAME)
                return true;
        if (outcome == UPLOAD_E_PAUSED)
                return ship_endf(&x->ship, SHIP_ABORTED, "paused");
        x->begin_anew = outcome == UPLOAD_E_STALE;
        if (x->begin_anew)
                return ship_endf(&x->ship, SHIP_FAILED, "%s",
                                 error ? error : "its upload cannot be gone on with");
        return outcome < 0 ? ship_s3_end_store(x, outcome)
                           : ship_end_upload(&x->ship, outcome, TAKE_PTR(error));
}

bool ship_s3_take_object(ShipS3 *x) {
        if (!take_upload_result(x))
                return false;
        x->ship.object_bytes = x->told.bytes;
        x->ship.proof = x->told.proof == S3_PROOF_HEAD ? PROOF_HEAD : PROOF_RESPONSE;
        ship_s3_set_state(x, SHIP_S3_CLOSING);
        return ship_s3_begin_step(x, ship_s3_close);
}

bool ship_s3_take_manifest(ShipS3 *x) {
        if (!take_upload_result(x))
                return false;
        if (x->abort_id != 0 && !x->told.is_upload_left)
                (void)store_abort_done(
                        x->order.store,
                        x->abort_id); /* else an upload that is gone is looked for once more */
        return ship_attempt_delivered(&x->attempt);
}

/* A part is there: its row first, then it goes. Or one is wanted. */
bool ship_s3_feed_upload(ShipS3 *x) {
        if (x->made && !give_made(x))
                return false;
        return x->working || x->upload_done || make_wanted(x);
}

static bool begin_upload(ShipS3 *x, const S3UploadOrder *order) {
        S3UploadOrder own = *order;
        own.sent_bytes = &x->sent_bytes;
        own.userdata = x;
        int r = s3_upload_new(&x->upload, x->order.client, &own);
        return r == 0 ||
               ship_endf(&x->ship, SHIP_RESOURCES, "cannot begin its upload: %s", strerror(-r));
}

bool ship_s3_send_object(ShipS3 *x) {
        ship_s3_set_state(x, SHIP_S3_SENDING);
        x->ship.setup_usec = x->order.clock->boottime_usec(x->order.clock) - x->ship.begun_usec;
        x->packed_bytes = ship_s3_rows_bytes(&x->rows);
        return begin_upload(
                x, &(S3UploadOrder){ .key = x->key,
                                     .content_type = "application/zstd",
                                     .plan_hex = x->plan_hex,
                                     .max_parts_in_flight = x->n_buffers,
                                     /* without a manifest it is no bundle, and the name is ours */
                                     .may_replace = x->is_looked_at,
                                     .guard_key = x->manifest_key,
                                     .upload_id = x->rows.upload_id,
                                     .parts = x->rows.known,
                                     .n_parts = x->rows.n,
                                     .on_want = on_want,
                                     .on_begin = on_begin,
                                     .on_upload_id = on_upload_id,
                                     .on_etag = on_etag,
                                     .on_done = on_upload_done });
}

bool ship_s3_publish(ShipS3 *x) {
        ship_s3_set_state(x, SHIP_S3_PUBLISHING);
        x->abort_id = 0;
        return begin_upload(
                x,
                &(S3UploadOrder){ .key = x->manifest_key,
                                  .content_type = "application/json",
                                  .plan_hex = x->plan_hex,
                                  .max_parts_in_flight = 2,
                                  .write_over = x->is_found, /* ours, of an object that is gone */
                                  .on_want = on_want,
                                  .on_begin = on_manifest_begin,
                                  .on_upload_id = on_manifest_upload_id,
                                  .on_etag = on_manifest_etag,
                                  .on_done = on_upload_done });
}
