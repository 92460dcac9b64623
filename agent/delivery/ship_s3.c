/* The way of a bundle to S3:
 *   PLANNING   the worker finds the members and freezes the plan
 *   LOOKING    is a manifest there already? (HEAD, whose 404 has no body to wait for; then GET)
 *   COMPARING  there is one of this plan: is its object whole? (HEAD)
 *   OPENING    the worker restores the packer from the ledger, or begins anew
 *   SENDING    uploaders/s3/s3.c asks for parts, the worker packs them
 *   CLOSING    the worker judges the members and measures the manifest
 *   PUBLISHING the manifest goes the way of the object, last: it is the commit
 * Whatever stops it in between leaves a ledger that the next run goes on from. What the worker does is in ship_s3_steps.c, what is asked
 * of the store in ship_s3_look.c, and what the uploads say and are given in ship_s3_send.c. */
#include "agent/delivery/ship_s3.h"

#include <errno.h>
#include <string.h>

#include "agent/delivery/ship_s3_private.h"
#include "lib/base/log.h"

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

void ship_s3_set_state(ShipS3 *x, ShipS3State to) {
        bool allowed = moves[x->state] & TO(to);
        log_dump(x->ship.rec.id, allowed ? LOG_DEBUG : LOG_ERR, 0, "%s: %s → %s%s", x->destination,
                 state_name(x->state), state_name(to), allowed ? "" : ": no such move");
        x->state = to;
}

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
        ship_s3_set_state(x, SHIP_S3_ENDED);
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

bool ship_s3_end_store(ShipS3 *x, int r) {
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
        ship_s3_next(x);
}

bool ship_s3_begin_step(ShipS3 *x, bool (*work)(ShipS3 *x)) {
        x->work = work;
        x->work_begun_usec = x->order.clock->boottime_usec(x->order.clock);
        int r = worker_pool_submit(x->order.worker, &x->ship.job);
        x->working = r == 0;
        return r == 0 || ship_endf(&x->ship, SHIP_RESOURCES, "cannot start a thread to pack it: %s",
                                   strerror(-r));
}

/* Reads what the ledger knows; what cannot be gone on with is to be aborted. */
static bool open_object(ShipS3 *x) {
        ShipS3Wanted wanted = { .bundle = x->ship.rec.id,
                                .destination = x->destination,
                                .key = x->key,
                                .plan = x->attempt.plan_sha256,
                                .signature = x->signature };
        ship_s3_set_state(x, SHIP_S3_OPENING);
        int r = ship_s3_rows_load(&x->rows, x->order.store, &wanted);
        if (r < 0)
                return ship_s3_end_store(x, r);
        if (x->rows.n > 0)
                log_dump(x->ship.rec.id, LOG_INFO, 0,
                         "%s: going on with its upload behind part %zu", x->destination, x->rows.n);
        return ship_s3_begin_step(x, ship_s3_open_packer);
}

/* ---- the machine ---- */

/* What the state calls for, after a fact was recorded. @return false: ship has ended */
static bool advance(ShipS3 *x) {
        switch (x->state) {
        case SHIP_S3_PLANNING:
                return ship_s3_find_memory(x) && ship_s3_look(x);
        case SHIP_S3_LOOKING:
                return x->call || (x->is_found ? ship_s3_compare(x) : open_object(x));
        case SHIP_S3_COMPARING:
                if (x->call)
                        return true;
                return x->is_whole ? ship_attempt_was_delivered(&x->attempt, &x->found)
                                   : open_object(x);
        case SHIP_S3_OPENING:
                return ship_s3_send_object(x);
        case SHIP_S3_SENDING:
                return x->upload_done ? ship_s3_take_object(x) : ship_s3_feed_upload(x);
        case SHIP_S3_CLOSING:
                return ship_s3_publish(x);
        case SHIP_S3_PUBLISHING:
                return x->upload_done ? ship_s3_take_manifest(x) : ship_s3_feed_upload(x);
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
        ship_s3_set_state(x, SHIP_S3_PLANNING);
        x->begin_anew = false;
        return ship_s3_begin_step(x, ship_s3_plan);
}

void ship_s3_next(ShipS3 *x) {
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
        return ship_s3_begin_step(x, ship_s3_plan) ? 0 : -EAGAIN;
}

void ship_s3_abort(ShipJob *s) {
        ShipS3 *x = CONTAINER_OF(s, ShipS3, ship);
        atomic_store(&s->abort, true);
        ship_s3_next(x);
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

bool ship_s3_awaits_store(const ShipJob *s, uint64_t *ret_since_usec) {
        const ShipS3 *x = CONTAINER_OF(s, ShipS3, ship);
        uint64_t asked = s3_client_asked_usec(x->order.client);
        *ret_since_usec = asked > 0 ? asked : x->working ? x->work_begun_usec : 0;
        return asked > 0;
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
