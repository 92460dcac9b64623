/* The way of a bundle to S3:
 *   PLANNING   the worker finds the members and freezes the plan
 *   LOOKING    is a manifest there already? (HEAD, whose 404 has no body to wait for; then GET)
 *   COMPARING  there is one of this plan: is its object whole? (HEAD)
 *   OPENING    the worker restores the packer from the ledger, or begins anew
 *   SENDING    uploaders/s3.c asks for parts, the worker packs them
 *   CLOSING    the worker judges the members and measures the manifest
 *   PUBLISHING the manifest goes the way of the object, last: it is the commit
 * Whatever stops it in between leaves a ledger that the next run goes on from. What the worker does is in ship_s3_steps.c. */
#include "agent/ship_s3.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/ship_s3_private.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define TRIES 4

/* ---- the state ---- */

static const char *state_name(ShipS3State state) {
        static const char *const names[N_SHIP_S3_STATES] = {
                [SHIP_S3_PLANNING] = "planning",     [SHIP_S3_LOOKING] = "looking",
                [SHIP_S3_COMPARING] = "comparing",   [SHIP_S3_OPENING] = "opening",
                [SHIP_S3_SENDING] = "sending",       [SHIP_S3_CLOSING] = "closing",
                [SHIP_S3_PUBLISHING] = "publishing", [SHIP_S3_ENDED] = "ended",
        };
        return names[state];
}

#define TO(state) (1U << (state))
#define TO_END (TO(SHIP_S3_PLANNING) | TO(SHIP_S3_ENDED)) /* PLANNING: once more, with a new plan */
static const unsigned moves[N_SHIP_S3_STATES] = {
        [SHIP_S3_PLANNING] = TO(SHIP_S3_LOOKING) | TO_END,
        [SHIP_S3_LOOKING] = TO(SHIP_S3_COMPARING) | TO(SHIP_S3_OPENING) | TO_END,
        [SHIP_S3_COMPARING] = TO(SHIP_S3_OPENING) | TO_END,
        [SHIP_S3_OPENING] = TO(SHIP_S3_SENDING) | TO_END,
        [SHIP_S3_SENDING] = TO(SHIP_S3_CLOSING) | TO_END,
        [SHIP_S3_CLOSING] = TO(SHIP_S3_PUBLISHING) | TO_END,
        [SHIP_S3_PUBLISHING] = TO_END,
};

static void set_state(ShipS3 *x, ShipS3State to) {
        bool allowed = moves[x->state] & TO(to);
        log_dump(x->ship.rec.id, allowed ? LOG_DEBUG : LOG_ERR, 0, "%s: %s → %s%s", x->destination,
                 state_name(x->state), state_name(to), allowed ? "" : ": no such move");
        x->state = to;
}

static void next(ShipS3 *x);

/* ---- ends ---- */

static void drop_attempt(ShipS3 *x) {
        x->call = s3_call_cancel(x->call);
        x->upload = s3_upload_free(x->upload);
        x->packer = packer_free(x->packer);
        manifest_head_done(&x->found);
        ship_s3_rows_done(&x->rows);
        if (x->has_attempt)
                ship_attempt_done(&x->attempt);
        ship_s3_drop_made(x);
        free((char *)x->told.error);
        x->told = (S3UploadResult){ 0 };
        x->has_attempt = x->is_found = x->is_whole = x->is_looked_at = x->upload_done = false;
        x->wanted = 0;
        x->packed_bytes = x->packed_stream_bytes = x->manifest_bytes = 0;
}

static int on_end(sd_event_source *source, void *userdata) {
        (void)source;
        ShipS3 *x = userdata;
        x->ship.on_done(&x->ship); /* x is gone */
        return 0;
}

/* The one way out: told a turn later, since an upload or a call may be in the middle of telling us. */
static void end(ShipS3 *x) {
        set_state(x, SHIP_S3_ENDED);
        drop_attempt(x);
        atomic_store(&x->ship.sent_bytes, x->sent_bytes);
        int r = sd_event_add_defer(x->order.event, &x->end_source, on_end, x);
        if (r < 0)
                log_dump(x->ship.rec.id, LOG_ERR, r, "cannot end its delivery; restart the agent");
}

/* The upload that the ledger knows will not be gone on with. */
static void abandon(ShipS3 *x) {
        int r = store_ledger_abandon(x->order.store, x->ship.rec.id, x->destination);
        if (r < 0)
                log_dump(x->ship.rec.id, LOG_WARNING, r,
                         "%s: cannot write down that its upload is to be aborted", x->destination);
}

static bool end_store(ShipS3 *x, int r) {
        return ship_endf(&x->ship, SHIP_RESOURCES,
                         "cannot write down the progress of the upload in the state directory: %s",
                         strerror(-r));
}

/* ---- the worker's turn ---- */

static void run_step(WorkJob *job) {
        ShipS3 *x = CONTAINER_OF(job, ShipS3, ship.job);
        x->work_ended = !x->work(x);
}

static void on_step_done(WorkJob *job) {
        ShipS3 *x = CONTAINER_OF(job, ShipS3, ship.job);
        x->working = false;
        x->has_ended = x->has_ended || x->work_ended;
        next(x);
}

static bool begin_step(ShipS3 *x, bool (*work)(ShipS3 *x)) {
        x->work = work;
        int r = worker_pool_submit(x->order.worker, &x->ship.job);
        x->working = r == 0;
        return r == 0 || ship_endf(&x->ship, SHIP_RESOURCES, "cannot start a thread to pack it: %s",
                                   strerror(-r));
}

/* ---- what the upload asks for ---- */

static int on_turn(sd_event_source *source, void *userdata) {
        (void)source;
        next(userdata);
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
        return begin_step(x, x->state == SHIP_S3_SENDING ? ship_s3_pack : ship_s3_make_window);
}

/* The row first, then the part goes. */
static bool give_made(ShipS3 *x) {
        if (x->state == SHIP_S3_SENDING) {
                const PackedPart *packed = &x->made->packed;
                int r = ship_s3_rows_add(&x->rows, x->order.store, x->number, &packed->row);
                if (r < 0)
                        return end_store(x, r);
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
        return durable(store_ledger_set_etag(x->order.store, x->ship.rec.id, x->destination, number,
                                             etag));
}

/* A manifest's upload is never gone on with: should it need parts and be cut, it is to be aborted. */
static int on_manifest_begin(S3Upload *u, void *userdata) {
        (void)u;
        ShipS3 *x = userdata;
        return store_abort_add(x->order.store, x->destination, x->manifest_key, NULL,
                               x->order.clock->realtime_usec(x->order.clock), &x->abort_id);
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
        int r = store_abort_add(x->order.store, x->destination, x->key, NULL,
                                x->order.clock->realtime_usec(x->order.clock), NULL);
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
        return outcome < 0 ? end_store(x, outcome)
                           : ship_end_upload(&x->ship, outcome, TAKE_PTR(error));
}

static bool take_object(ShipS3 *x) {
        if (!take_upload_result(x))
                return false;
        x->ship.object_bytes = x->told.bytes;
        x->ship.proof = x->told.proof == S3_PROOF_HEAD ? PROOF_HEAD : PROOF_RESPONSE;
        set_state(x, SHIP_S3_CLOSING);
        return begin_step(x, ship_s3_close);
}

static bool take_manifest(ShipS3 *x) {
        if (!take_upload_result(x))
                return false;
        if (x->abort_id != 0 && !x->told.is_upload_left)
                (void)store_abort_done(
                        x->order.store,
                        x->abort_id); /* else an upload that is gone is looked for once more */
        return ship_attempt_delivered(&x->attempt);
}

/* A part is there: its row first, then it goes. Or one is wanted. */
static bool feed_upload(ShipS3 *x) {
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

static bool send_object(ShipS3 *x) {
        set_state(x, SHIP_S3_SENDING);
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

static bool publish(ShipS3 *x) {
        set_state(x, SHIP_S3_PUBLISHING);
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

/* ---- looking ---- */

static bool end_answer(ShipS3 *x, const S3Answer *answer) {
        return ship_end_upload(&x->ship, s3_verdict_outcome(answer->verdict),
                               answer->sentence ? strdup(answer->sentence) : NULL);
}

static bool note_manifest(ShipS3 *x, const S3Result *result) {
        /* DENIED is also what AWS says of a missing key to those who may not list the bucket */
        x->is_looked_at = result->answer->verdict != S3_DENIED;
        if (!x->is_looked_at || result->answer->verdict == S3_NOT_FOUND)
                return true;
        if (result->answer->verdict != S3_OK)
                return end_answer(x, result->answer);
        _cleanup_free_ char *where = NULL;
        if (asprintf(&where, "s3://%s/%s", s3_client_bucket(x->order.client), x->manifest_key) < 0)
                where = NULL;
        x->is_found = ship_attempt_is_ours(&x->attempt, result->body, result->body_bytes,
                                           where ? where : x->manifest_key, &x->found);
        return x->is_found;
}

static void on_manifest_read(const S3Result *result, void *userdata) {
        ShipS3 *x = userdata;
        x->call = NULL;
        x->has_ended = !note_manifest(x, result);
        next(x);
}

static bool note_object(ShipS3 *x, const S3Result *result) {
        const char *length = result->header(result, "content-length"),
                   *its_plan = result->header(result, S3_PLAN_HEADER);
        uint64_t bytes = 0;
        switch (result->answer->verdict) {
        case S3_OK:
                x->ship.proof = PROOF_HEAD;
                x->is_whole = length && parse_u64(length, &bytes) == 0 && bytes == x->found.bytes &&
                              its_plan && strcmp(its_plan, x->plan_hex) == 0;
                return true;
        case S3_DENIED: /* the manifest is the commit */
                x->ship.proof = PROOF_RESPONSE;
                x->is_whole = true;
                return true;
        case S3_NOT_FOUND:
                return true;
        default:
                return end_answer(x, result->answer);
        }
}

static void on_object_compared(const S3Result *result, void *userdata) {
        ShipS3 *x = userdata;
        x->call = NULL;
        x->has_ended = !note_object(x, result);
        next(x);
}

static bool ask(ShipS3 *x, const S3Order *order) {
        int r = s3_call_new(&x->call, x->order.client, order);
        return r == 0 ||
               ship_endf(&x->ship, SHIP_RESOURCES, "cannot ask the store: %s", strerror(-r));
}

/* There is something: what does it say? */
static bool read_manifest(ShipS3 *x) {
        char range[64];
        (void)snprintf(range, sizeof range, "bytes=0-%u", MANIFEST_HEAD_MAX_BYTES - 1);
        return ask(x, &(S3Order){ .operation = S3_GET_OBJECT,
                                  .key = x->manifest_key,
                                  .headers = &(SignPair){ "Range", range },
                                  .n_headers = 1,
                                  .reply_max_bytes = MANIFEST_HEAD_MAX_BYTES + 1,
                                  .max_tries = TRIES,
                                  .on_done = on_manifest_read,
                                  .userdata = x });
}

static void on_manifest_looked(const S3Result *result, void *userdata) {
        ShipS3 *x = userdata;
        x->call = NULL;
        if (result->answer->verdict == S3_OK)
                x->has_ended = !read_manifest(x);
        else
                x->has_ended = !note_manifest(x, result);
        next(x);
}

static bool look(ShipS3 *x) {
        set_state(x, SHIP_S3_LOOKING);
        return ask(x, &(S3Order){ .operation = S3_HEAD_OBJECT,
                                  .key = x->manifest_key,
                                  .max_tries = TRIES,
                                  .on_done = on_manifest_looked,
                                  .userdata = x });
}

static bool compare(ShipS3 *x) {
        set_state(x, SHIP_S3_COMPARING);
        return ask(x, &(S3Order){ .operation = S3_HEAD_OBJECT,
                                  .key = x->key,
                                  .max_tries = TRIES,
                                  .on_done = on_object_compared,
                                  .userdata = x });
}

/* Reads what the ledger knows; what cannot be gone on with is to be aborted. */
static bool open_object(ShipS3 *x) {
        ShipS3Wanted wanted = { .bundle = x->ship.rec.id,
                                .destination = x->destination,
                                .key = x->key,
                                .plan = x->attempt.plan_sha256,
                                .signature = x->signature };
        set_state(x, SHIP_S3_OPENING);
        int r = ship_s3_rows_load(&x->rows, x->order.store, &wanted);
        if (r < 0)
                return end_store(x, r);
        if (x->rows.n > 0)
                log_dump(x->ship.rec.id, LOG_INFO, 0,
                         "%s: going on with its upload behind part %zu", x->destination, x->rows.n);
        return begin_step(x, ship_s3_open_packer);
}

/* ---- the machine ---- */

/* What the state calls for, after a fact was recorded. @return false: ship has ended */
static bool advance(ShipS3 *x) {
        switch (x->state) {
        case SHIP_S3_PLANNING:
                return ship_s3_find_memory(x) && look(x);
        case SHIP_S3_LOOKING:
                return x->call || (x->is_found ? compare(x) : open_object(x));
        case SHIP_S3_COMPARING:
                if (x->call)
                        return true;
                return x->is_whole ? ship_attempt_was_delivered(&x->attempt, &x->found)
                                   : open_object(x);
        case SHIP_S3_OPENING:
                return send_object(x);
        case SHIP_S3_SENDING:
                return x->upload_done ? take_object(x) : feed_upload(x);
        case SHIP_S3_CLOSING:
                return publish(x);
        case SHIP_S3_PUBLISHING:
                return x->upload_done ? take_manifest(x) : feed_upload(x);
        case SHIP_S3_ENDED:
        case N_SHIP_S3_STATES:
                break;
        }
        return true;
}

/* A plan that does not hold, or an upload that cannot be gone on with: once more from the beginning, a few times.
 * @return whether it is */
static bool try_anew(ShipS3 *x) {
        ShipJob *s = &x->ship;
        bool changed = !x->begin_anew && s->result == SHIP_CHANGED;
        if (!x->begin_anew && !changed)
                return false;
        abandon(x);
        if ((changed ? ++x->n_plans : ++x->n_anew) >= SHIP_PLANS_MAX)
                return false;
        log_dump(s->rec.id, LOG_INFO, 0, "%s: %s; beginning its upload anew", x->destination,
                 s->error ? s->error : "it changed");
        drop_attempt(x);
        set_state(x, SHIP_S3_PLANNING);
        x->begin_anew = false;
        return begin_step(x, ship_s3_plan);
}

static void next(ShipS3 *x) {
        if (x->working || x->state == SHIP_S3_ENDED)
                return;
        if (!x->has_ended)
                x->has_ended = !ship_may_go_on(&x->ship) || !advance(x);
        if (!x->has_ended)
                return;
        x->has_ended = !try_anew(x);
        if (x->has_ended)
                end(x);
}

/* ---- life ---- */

int ship_s3_new(ShipJob **ret, const ShipOrder *order, const ShipS3Order *s3) {
        ShipS3 *x = calloc(1, sizeof *x);
        if (!x)
                return -ENOMEM;
        x->order = *s3;
        x->ship.job = (WorkJob){ .run = run_step, .done = on_step_done };
        x->destination = strdup(s3->destination);
        x->signature = packer_signature(order->level, s3->part_size);
        int r = x->destination && x->signature ? ship_job_init(&x->ship, order) : -ENOMEM;
        if (r < 0) {
                free(x->destination);
                free(x->signature);
                free(x);
                return r;
        }
        *ret = &x->ship;
        return 0;
}

int ship_s3_begin(ShipJob *s) {
        ShipS3 *x = CONTAINER_OF(s, ShipS3, ship);
        return begin_step(x, ship_s3_plan) ? 0 : -EAGAIN;
}

void ship_s3_abort(ShipJob *s) {
        ShipS3 *x = CONTAINER_OF(s, ShipS3, ship);
        atomic_store(&s->abort, true);
        next(x);
}

void ship_s3_wind_down(ShipJob *s) {
        ShipS3 *x = CONTAINER_OF(s, ShipS3, ship);
        if (x->state < SHIP_S3_SENDING)
                ship_s3_abort(s);
        else if (x->state == SHIP_S3_SENDING && x->upload)
                s3_upload_pause(x->upload);
}

void ship_s3_leave(ShipJob *s) {
        ShipS3 *x = CONTAINER_OF(s, ShipS3, ship);
        x->call = s3_call_cancel(x->call);
        x->upload = s3_upload_free(x->upload);
        x->turn = sd_event_source_disable_unref(x->turn);
}

/* Of the stream, as much as is there of what was packed; never all of it before the store has said so. */
static uint64_t done_bytes(const ShipS3 *x) {
        uint64_t total = atomic_load(&x->ship.total_bytes);
        if (x->state > SHIP_S3_SENDING)
                return total;
        if (!x->upload || x->packed_bytes == 0)
                return 0;
        uint64_t sent = MIN(s3_upload_sent_bytes(x->upload), x->packed_bytes);
        double share = (double)sent / (double)x->packed_bytes;
        return MIN((uint64_t)(share * (double)x->packed_stream_bytes), total - total / 100);
}

void ship_s3_refresh(ShipJob *s) {
        ShipS3 *x = CONTAINER_OF(s, ShipS3, ship);
        if (x->state == SHIP_S3_ENDED)
                return;
        atomic_store(&s->sent_bytes,
                     x->sent_bytes + s3_client_sending_bytes(x->order.client, &x->sent_bytes));
        if (x->state >= SHIP_S3_SENDING)
                atomic_store(&s->done_bytes, done_bytes(x));
}

ShipJob *ship_s3_free(ShipJob *s) {
        if (!s)
                return NULL;
        ShipS3 *x = CONTAINER_OF(s, ShipS3, ship);
        drop_attempt(x);
        sd_event_source_disable_unref(x->turn);
        sd_event_source_disable_unref(x->end_source);
        ship_job_done(s);
        free(x->destination);
        free(x->signature);
        free(x->key);
        free(x->manifest_key);
        free(x);
        return NULL;
}
