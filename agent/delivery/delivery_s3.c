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
#include "agent/delivery/delivery_s3.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/bundle/packer.h"

typedef enum ShipS3State {
        SHIP_S3_PLANNING,
        SHIP_S3_LOOKING,
        SHIP_S3_COMPARING,
        SHIP_S3_OPENING,
        SHIP_S3_SENDING,
        SHIP_S3_CLOSING,
        SHIP_S3_PUBLISHING,
        SHIP_S3_ENDED,
        N_SHIP_S3_STATES
} ShipS3State;

/* A part on its way, or a window of the manifest. */
typedef struct ShipS3Buffer {
        S3Part part;
        PackedPart packed;
        uint8_t *window; /* owned */
} ShipS3Buffer;

/* A manifest goes in parts of this size; a window of it is made at a time. */
#define SHIP_S3_WINDOW_BYTES (8 * MIB)

typedef struct ShipS3 {
        ShipJob ship;
        ShipS3Order order;
        char *destination;
        ShipS3State state;
        bool has_ended;  /* ship has its end, or begin_anew is set */
        bool begin_anew; /* not the bundle's fault: what was to be gone on with cannot be */
        unsigned n_plans, n_anew;
        uint64_t sent_bytes; /* of bodies, in tries that have ended */
        sd_event_source *end_source;

        /* one attempt */
        ShipAttempt attempt;
        bool has_attempt;
        char *key, *manifest_key, *signature;
        char plan_hex[SHA256_HEX_SIZE];

        /* looking */
        S3Call *call;
        ManifestHead found;
        bool is_found, is_whole; /* a manifest of this plan; and its object */
        bool is_looked_at;       /* it is known that there is no manifest of another plan */

        /* the object */
        ShipS3Rows rows; /* of the ledger */
        Packer *packer;
        uint64_t packed_bytes,
                packed_stream_bytes; /* so far: of the object, and what of the tar stream that is */
        unsigned n_buffers;
        uint64_t writer_bytes;

        /* the upload, of the object or of the manifest */
        S3Upload *upload;
        sd_event_source *
                turn; /* the machine goes on when the upload has told us, never from inside its callbacks */
        unsigned wanted; /* number of the part it waits for, 0 = none */
        bool upload_done;
        S3UploadResult told; /* its end; error is owned */
        uint64_t manifest_bytes;
        int64_t abort_id; /* of the manifest's upload */

        /* the worker's turn: until it is over the loop only records facts */
        bool working;
        uint64_t work_begun_usec;       /* CLOCK_BOOTTIME */
        bool (*work)(struct ShipS3 *x); /* false: ship has ended */
        bool work_ended;
        unsigned number;    /* of the part to be made */
        ShipS3Buffer *made; /* owned */
} ShipS3;

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

static void ship_s3_set_state(ShipS3 *x, ShipS3State to) {
        bool allowed = moves[x->state] & TO(to);
        log_dump(x->ship.rec.id, allowed ? LOG_DEBUG : LOG_ERR, 0, "%s: %s → %s%s", x->destination,
                 state_name(x->state), state_name(to), allowed ? "" : ": no such move");
        x->state = to;
}

/* ---- ends ---- */

static void ship_s3_next(ShipS3 *x);
static bool ship_s3_find_memory(ShipS3 *x);
static bool ship_s3_look(ShipS3 *x);
static bool ship_s3_compare(ShipS3 *x);
static void ship_s3_drop_made(ShipS3 *x);
static bool ship_s3_plan(ShipS3 *x);
static bool ship_s3_open_packer(ShipS3 *x);
static void turn(ShipS3 *x);
static bool ship_s3_take_object(ShipS3 *x);
static bool ship_s3_take_manifest(ShipS3 *x);
static bool ship_s3_feed_upload(ShipS3 *x);
static bool ship_s3_send_object(ShipS3 *x);
static bool ship_s3_publish(ShipS3 *x);

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

static bool ship_s3_end_store(ShipS3 *x, int r) {
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

static bool ship_s3_begin_step(ShipS3 *x, bool (*work)(ShipS3 *x)) {
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

static void ship_s3_next(ShipS3 *x) {
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

/* How many parts of a bundle may be in memory at once. */

unsigned ship_s3_buffers(const ShipS3Memory *m, uint64_t *ret_writer_bytes) {
        uint64_t least = bundle_writer_memory_min(m->level),
                 best = bundle_writer_memory_best(m->level, m->n_compressors);
        /* a context and a slot for each further thread: bundle_writer_memory_best(n) is n contexts and 2n + 2 slots */
        uint64_t slot = (bundle_writer_memory_best(m->level, 1) - least) / 2;
        uint64_t lean = least + (m->n_compressors - 1) * (least - slot);
        for (unsigned n = m->connections + 1; n >= 2; n--) {
                uint64_t parts = n * m->part_bytes, wanted = n > 2 ? lean : least;
                if (parts + wanted > m->bytes)
                        continue;
                *ret_writer_bytes = MIN(best, m->bytes - parts);
                return n;
        }
        return 0;
}

uint64_t ship_s3_memory_min(uint64_t part_bytes, int level) {
        return 2 * part_bytes + bundle_writer_memory_min(level);
}

static bool ship_s3_find_memory(ShipS3 *x) {
        ShipJob *s = &x->ship;
        uint64_t limit = 0;
        char need[PARSE_FORMAT_SIZE], have[PARSE_FORMAT_SIZE];
        ShipS3Memory m = { .bytes = s->memory_bytes,
                           .part_bytes = packer_part_bytes_max(x->order.part_size, 0,
                                                               plan_stream_bytes(x->attempt.plan)),
                           .connections = x->order.connections,
                           .level = s->level,
                           .n_compressors = x->order.n_compressors };
        uint64_t least = ship_s3_memory_min(m.part_bytes, s->level);
        int r = m.bytes < least ? x->order.reserve(s, least, &limit) : 0;
        parse_format_human(need, least);
        parse_format_human(have, limit);
        if (r == -EAGAIN)
                return ship_endf(s, SHIP_RESOURCES,
                                 "its parts need %s of memory, which others have now", need);
        if (r < 0)
                return ship_endf(s, SHIP_RESOURCES,
                                 "its parts need %s of memory and limits.memory_max allows %s; set "
                                 "limits.memory_max to at least %llu",
                                 need, have, (unsigned long long)least);
        m.bytes = s->memory_bytes;
        x->n_buffers = ship_s3_buffers(&m, &x->writer_bytes);
        return true;
}

/* Whether the bundle is at its destination already: is there a manifest of this plan, and is its object whole? */

#define TRIES 4

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
        ship_s3_next(x);
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
        ship_s3_next(x);
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
        ship_s3_next(x);
}

static bool ship_s3_look(ShipS3 *x) {
        ship_s3_set_state(x, SHIP_S3_LOOKING);
        return ask(x, &(S3Order){ .operation = S3_HEAD_OBJECT,
                                  .key = x->manifest_key,
                                  .max_tries = TRIES,
                                  .on_done = on_manifest_looked,
                                  .userdata = x });
}

static bool ship_s3_compare(ShipS3 *x) {
        ship_s3_set_state(x, SHIP_S3_COMPARING);
        return ask(x, &(S3Order){ .operation = S3_HEAD_OBJECT,
                                  .key = x->key,
                                  .max_tries = TRIES,
                                  .on_done = on_object_compared,
                                  .userdata = x });
}

/* What the worker of a delivery to S3 does: all that reads, packs and hashes. Between two steps the loop may touch everything. */

static void buffer_release(S3Part *part) {
        ShipS3Buffer *b = CONTAINER_OF(part, ShipS3Buffer, part);
        packed_part_done(&b->packed);
        free(b->window);
        free(b);
}

static void ship_s3_drop_made(ShipS3 *x) {
        if (x->made)
                buffer_release(&TAKE_PTR(x->made)->part);
}

static bool ship_s3_plan(ShipS3 *x) {
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

static bool ship_s3_open_packer(ShipS3 *x) {
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

static bool ship_s3_pack(ShipS3 *x) {
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
static bool ship_s3_close(ShipS3 *x) {
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
static bool ship_s3_make_window(ShipS3 *x) {
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

/* The upload of the object and that of the manifest: what uploaders/s3/s3.c asks for and is given, what it says into the ledger, and how
 * it ends. */

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

static bool ship_s3_take_object(ShipS3 *x) {
        if (!take_upload_result(x))
                return false;
        x->ship.object_bytes = x->told.bytes;
        x->ship.proof = x->told.proof == S3_PROOF_HEAD ? PROOF_HEAD : PROOF_RESPONSE;
        ship_s3_set_state(x, SHIP_S3_CLOSING);
        return ship_s3_begin_step(x, ship_s3_close);
}

static bool ship_s3_take_manifest(ShipS3 *x) {
        if (!take_upload_result(x))
                return false;
        if (x->abort_id != 0 && !x->told.is_upload_left)
                (void)store_abort_done(
                        x->order.store,
                        x->abort_id); /* else an upload that is gone is looked for once more */
        return ship_attempt_delivered(&x->attempt);
}

/* A part is there: its row first, then it goes. Or one is wanted. */
static bool ship_s3_feed_upload(ShipS3 *x) {
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

static bool ship_s3_send_object(ShipS3 *x) {
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

static bool ship_s3_publish(ShipS3 *x) {
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
