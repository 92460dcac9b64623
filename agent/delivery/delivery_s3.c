/* A delivery to a bucket: a state machine on the loop, where what reads and packs runs in the
 * destination's worker.
 *
 *   PLANNING           the worker finds the members and freezes the plan
 *   CHECKING_MANIFEST  is a manifest there already?
 *   CHECKING_OBJECT    one is, of this plan or of another one: is its object complete?
 *   OPENING            the worker restores the packer from the ledger, or starts with no part
 *   SENDING            uploaders/s3 requests parts, the worker builds them
 *   CLOSING            the worker collects the verdicts and measures the manifest
 *   PUBLISHING         the manifest is uploaded like the object, last: it is the commit
 *   ENDED              `base` has the result
 *
 * The states follow each other in this order. A small bundle that cannot have been tried goes from
 * PLANNING to OPENING; where the manifest is not there, CHECKING_OBJECT is left out; a bundle that
 * was delivered before ends while it is checked. From each state the delivery may end, or start
 * again with PLANNING: a member has changed, or the upload in the ledger cannot be resumed.
 *
 * Whatever stops it in between, a crash too, leaves a ledger (delivery_s3_ledger.c) from which the
 * next delivery continues. What the worker builds is delivery_s3_parts.c, what is asked of the
 * store before, delivery_s3_check.c; the bucket itself is delivery_s3_bucket.c. */
#include "agent/delivery/delivery_s3.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/delivery/delivery_attempt.h"
#include "agent/delivery/delivery_memory.h"
#include "agent/delivery/delivery_s3_check.h"
#include "agent/delivery/delivery_s3_ledger.h"
#include "agent/delivery/delivery_s3_parts.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/transition.h"
#include "uploaders/s3/s3_upload.h"

typedef enum DeliveryS3State {
        DELIVERY_S3_PLANNING,
        DELIVERY_S3_CHECKING_MANIFEST,
        DELIVERY_S3_CHECKING_OBJECT,
        DELIVERY_S3_OPENING,
        DELIVERY_S3_SENDING,
        DELIVERY_S3_CLOSING,
        DELIVERY_S3_PUBLISHING,
        DELIVERY_S3_ENDED,
        N_DELIVERY_S3_STATES
} DeliveryS3State;

typedef enum Ending {
        ENDING_NONE,
        ENDING_RESULT,  /* `base` has the result */
        ENDING_RESTART, /* the same, but the upload that was to be resumed is the cause: start
                           without it */
} Ending;

typedef struct DeliveryS3 {
        Delivery base;
        Destination *at; /* borrowed */
        S3Client *client;
        Store *store;
        uint64_t part_size;
        char *signature;
        DeliveryS3State state;
        Ending ending;
        bool is_fresh; /* cannot have been tried: a small one is sent without checking for a copy
                          first */
        bool is_cancelled; /* to be aborted as soon as no object is without its manifest */
        unsigned n_plans, n_restarts;
        uint64_t sent_bytes; /* of bodies, in tries that have ended */
        sd_event_source *end_source;

        /* one attempt */
        DeliveryAttempt attempt;
        char *key, *manifest_key;
        char plan_hex[SHA256_HEX_SIZE];
        DeliveryS3Check check; /* of what is there */

        /* the object */
        DeliveryS3Ledger ledger;
        DeliveryS3Parts parts;
        uint64_t packed_bytes;        /* so far: of the object */
        uint64_t packed_stream_bytes; /* of the tar stream that is in them */
        unsigned n_buffers;
        uint64_t writer_bytes;

        /* the upload of the object or of the manifest */
        S3Upload *upload;
        sd_event_source *step_source; /* an upload must not be freed inside its callbacks */
        unsigned requested_part;      /* 0: none */
        bool is_upload_done;          /* upload_result is set; its error is owned */
        S3UploadResult upload_result;
        int64_t abort_id; /* of the manifest's upload */

        /* the worker: while it runs the loop only records facts */
        bool is_working;
        uint64_t work_start_usec;           /* CLOCK_BOOTTIME */
        bool (*work)(struct DeliveryS3 *x); /* false: `base` has its result */
} DeliveryS3;

/* Functions that return bool: false means that the attempt is over and `base` has its result. */

#define TO(state) (1U << DELIVERY_S3_##state)
#define TO_END (TO(PLANNING) | TO(ENDED)) /* PLANNING: once more, with a new plan */

static void set_state(DeliveryS3 *x, DeliveryS3State to) {
        static const char *const names[N_DELIVERY_S3_STATES] = {
                [DELIVERY_S3_PLANNING] = "planning",
                [DELIVERY_S3_CHECKING_MANIFEST] = "checking the manifest",
                [DELIVERY_S3_CHECKING_OBJECT] = "checking the object",
                [DELIVERY_S3_OPENING] = "opening",
                [DELIVERY_S3_SENDING] = "sending",
                [DELIVERY_S3_CLOSING] = "closing",
                [DELIVERY_S3_PUBLISHING] = "publishing",
                [DELIVERY_S3_ENDED] = "ended",
        };
        static const unsigned moves[N_DELIVERY_S3_STATES] = {
                [DELIVERY_S3_PLANNING] = TO(CHECKING_MANIFEST) | TO(OPENING) | TO_END,
                [DELIVERY_S3_CHECKING_MANIFEST] = TO(CHECKING_OBJECT) | TO(OPENING) | TO_END,
                [DELIVERY_S3_CHECKING_OBJECT] = TO(OPENING) | TO_END,
                [DELIVERY_S3_OPENING] = TO(SENDING) | TO_END,
                [DELIVERY_S3_SENDING] = TO(CLOSING) | TO_END,
                [DELIVERY_S3_CLOSING] = TO(PUBLISHING) | TO_END,
                [DELIVERY_S3_PUBLISHING] = TO_END,
        };
        static const StateTable table = { "delivery to S3", names, moves, N_DELIVERY_S3_STATES };
        if (transition_check(&table, x->state, to, x->base.rec.id) < 0)
                return;
        log_dump(x->base.rec.id, LOG_DEBUG, 0, "%s: %s", x->at->config->name, names[to]);
        x->state = to;
}

static bool end_no_memory(DeliveryS3 *x) {
        return delivery_endf(&x->base, RESULT_NO_RESOURCES, "%s", strerror(ENOMEM));
}

static bool end_state_error(DeliveryS3 *x, int r) {
        return delivery_endf(&x->base, RESULT_NO_RESOURCES,
                             "cannot write the progress of the upload to the state directory: %s",
                             strerror(-r));
}

/* The upload that the ledger knows cannot be resumed. @param result  if it is not restarted */
static bool end_for_restart(DeliveryS3 *x, DeliveryResult result, const char *error) {
        x->ending = ENDING_RESTART;
        return delivery_endf(&x->base, result, "%s", error);
}

/* @param continues  what a function of this file returned */
static void record_ending(DeliveryS3 *x, bool continues) {
        if (!continues && x->ending == ENDING_NONE)
                x->ending = x->parts.must_restart ? ENDING_RESTART : ENDING_RESULT;
}

/* ---- what the worker does ---- */

static void run_work(WorkJob *work) {
        DeliveryS3 *x = CONTAINER_OF(work, DeliveryS3, base.work);
        record_ending(x, x->work(x));
}

static bool restart(DeliveryS3 *x);
static void step(DeliveryS3 *x);

static void on_work_done(WorkJob *work) {
        DeliveryS3 *x = CONTAINER_OF(work, DeliveryS3, base.work);
        x->is_working = false;
        step(x);
}

static bool start_work(DeliveryS3 *x, bool (*work)(DeliveryS3 *x)) {
        x->work = work;
        x->work_start_usec = x->base.clock->boottime_usec(x->base.clock);
        int r = worker_pool_submit(x->at->worker, &x->base.work);
        x->is_working = r == 0;
        return r == 0 || delivery_endf(&x->base, RESULT_NO_RESOURCES,
                                       "cannot start a thread to pack it: %s", strerror(-r));
}

static bool work_plan(DeliveryS3 *x) {
        if (!delivery_attempt_start(&x->attempt, &x->base))
                return false;
        digest_hex(x->attempt.plan_sha256, SHA256_SIZE, x->plan_hex);
        free(x->key);
        free(x->manifest_key);
        x->key = path_join(x->base.directory, x->attempt.object_name);
        x->manifest_key = path_join(x->base.directory, x->attempt.manifest_name);
        return (x->key && x->manifest_key) || end_no_memory(x);
}

static bool work_open_packer(DeliveryS3 *x) {
        return delivery_s3_parts_open(&x->parts, &x->attempt, &x->ledger, x->part_size,
                                      x->writer_bytes);
}

static bool work_build_part(DeliveryS3 *x) {
        return delivery_s3_parts_build(&x->parts);
}

static bool work_close(DeliveryS3 *x) {
        return delivery_s3_parts_close(&x->parts);
}

static bool work_build_manifest(DeliveryS3 *x) {
        return delivery_s3_parts_build_manifest(&x->parts);
}

static bool work_delivered_before(DeliveryS3 *x) {
        return delivery_attempt_delivered_before(&x->attempt);
}

/* ---- the uploads ---- */

static int on_step(sd_event_source *source, void *userdata) {
        (void)source;
        step(userdata);
        return 0;
}

static void schedule_step(DeliveryS3 *x) {
        int r = x->step_source
                        ? sd_event_source_set_enabled(x->step_source, SD_EVENT_ONESHOT)
                        : sd_event_add_defer(x->at->shared->event, &x->step_source, on_step, x);
        if (r < 0)
                log_dump(x->base.rec.id, LOG_ERR, r,
                         "cannot continue its delivery; restart the agent");
}

static void on_part_requested(S3Upload *u, unsigned number, void *userdata) {
        (void)u;
        DeliveryS3 *x = userdata;
        x->requested_part = number;
        schedule_step(x);
}

/* The row is written before the part is sent. */
static bool supply_built(DeliveryS3 *x) {
        if (x->state == DELIVERY_S3_SENDING) {
                const PackedRow *row = delivery_s3_parts_row(&x->parts);
                unsigned number = x->parts.number;
                int r = delivery_s3_ledger_add_part(&x->ledger, x->store, number, row);
                if (r < 0)
                        return end_state_error(x, r);
                PackerStatus status = packer_status(x->parts.packer);
                x->packed_bytes += number > x->ledger.n ? row->bytes : 0;
                x->packed_stream_bytes = status.done_bytes;
                atomic_store(&x->base.run.read_bytes, status.bytes_read);
        }
        s3_upload_add_part(x->upload, delivery_s3_parts_take(&x->parts));
        return true;
}

/* Supplies the part that was built, or has the requested one built. */
static bool supply_upload(DeliveryS3 *x) {
        if (delivery_s3_parts_has_built(&x->parts) && !supply_built(x))
                return false;
        if (x->is_upload_done || x->requested_part == 0)
                return true;
        bool is_object = x->state == DELIVERY_S3_SENDING;
        unsigned number = x->requested_part;
        x->requested_part = 0;
        return delivery_s3_parts_request(&x->parts, number, !is_object) &&
               start_work(x, is_object ? work_build_part : work_build_manifest);
}

static int on_upload_start(S3Upload *u, void *userdata) {
        (void)u;
        DeliveryS3 *x = userdata;
        x->base.run.is_multipart = true;
        LedgerUpload upload = { .key = x->key,
                                .packer = x->signature,
                                .created_usec = x->base.clock->realtime_usec(x->base.clock) };
        memcpy(upload.plan, x->attempt.plan_sha256, SHA256_SIZE);
        return delivery_s3_ledger_start(&x->ledger, x->store, &upload);
}

static int on_upload_id(S3Upload *u, const char *upload_id, void *userdata) {
        (void)u;
        DeliveryS3 *x = userdata;
        return delivery_s3_ledger_set_upload_id(&x->ledger, x->store, upload_id);
}

static int on_etag(S3Upload *u, unsigned number, const char *etag, void *userdata) {
        (void)u;
        DeliveryS3 *x = userdata;
        x->base.run.has_advanced = true;
        return delivery_s3_ledger_set_etag(&x->ledger, x->store, number, etag);
}

/* Queues all uploads of a key to be aborted. */
static int queue_abort(DeliveryS3 *x, const char *key, int64_t *ret_id) {
        return store_abort_add(
                x->store,
                &(LedgerAbort){ .destination = x->at->config->name,
                                .key = key,
                                .since_usec = x->base.clock->realtime_usec(x->base.clock) },
                ret_id);
}

/* A manifest's upload is never resumed: one that needs parts and is interrupted is aborted, with
 * all uploads of that key, whatever their ids. */
static int on_manifest_upload_start(S3Upload *u, void *userdata) {
        (void)u;
        DeliveryS3 *x = userdata;
        return queue_abort(x, x->manifest_key, &x->abort_id);
}

static void on_upload_done(const S3UploadResult *result, void *userdata) {
        DeliveryS3 *x = userdata;
        x->upload_result = *result;
        x->upload_result.error = result->error ? strdup(result->error) : NULL;
        x->upload_result.etag = NULL;
        x->is_upload_done = true;
        schedule_step(x);
}

static void log_abort_not_queued(const DeliveryS3 *x, int r) {
        if (r < 0)
                log_dump(x->base.rec.id, LOG_WARNING, r,
                         "%s: cannot queue its upload to be aborted", x->at->config->name);
}

/* @return whether the object or the manifest is there */
static bool handle_upload_result(DeliveryS3 *x) {
        _cleanup_free_ char *error = (char *)TAKE_PTR(x->upload_result.error);
        int outcome = x->upload_result.outcome;
        x->is_upload_done = false;
        bool may_exist = x->state == DELIVERY_S3_PUBLISHING ||
                         (x->upload_result.may_be_visible && outcome != UPLOAD_E_REFUSED &&
                          outcome != UPLOAD_E_DENIED && outcome != UPLOAD_E_FULL);
        x->base.object = may_exist ? DELIVERY_OBJECT_SENT : DELIVERY_OBJECT_UNSENT;
        x->upload = s3_upload_free(x->upload);
        x->requested_part = 0;
        delivery_s3_parts_release(&x->parts);
        if (x->upload_result.may_have_orphans && x->state == DELIVERY_S3_SENDING)
                log_abort_not_queued(x, queue_abort(x, x->key, NULL));
        if (outcome == 0 || outcome == UPLOAD_E_SAME)
                return true;
        if (outcome == UPLOAD_E_PAUSED)
                return delivery_endf(&x->base, RESULT_ABORTED, "paused");
        if (outcome == UPLOAD_E_EXISTS && x->is_fresh) {
                x->is_fresh = false;
                return end_for_restart(x, RESULT_FAILED, "its name is in use: checking by whom");
        }
        if (outcome == UPLOAD_E_STALE) { /* the destination's fault, when it happens each time */
                x->base.upload_outcome = UPLOAD_E_REFUSED;
                return end_for_restart(x, RESULT_DESTINATION_FAILED,
                                       error ? error : "its upload cannot be resumed");
        }
        if (outcome < 0)
                return end_state_error(x, outcome);
        return delivery_end_by_outcome(&x->base, outcome, TAKE_PTR(error)) ||
               delivery_s3_check_charge_failure(&x->base, x->client);
}

static bool handle_object_uploaded(DeliveryS3 *x) {
        if (!handle_upload_result(x))
                return false;
        x->base.object_bytes = x->upload_result.bytes;
        x->base.proof = x->upload_result.proof == S3_PROOF_HEAD ? PROOF_HEAD : PROOF_RESPONSE;
        set_state(x, DELIVERY_S3_CLOSING);
        return start_work(x, work_close);
}

static bool handle_manifest_uploaded(DeliveryS3 *x) {
        if (!handle_upload_result(x))
                return false;
        if (x->abort_id != 0 && !x->upload_result.may_have_orphans)
                (void)store_abort_done(x->store, x->abort_id); /* else one more sweep */
        return delivery_attempt_delivered(&x->attempt);
}

static bool create_upload(DeliveryS3 *x, const S3UploadOptions *options) {
        S3UploadOptions own = *options;
        own.plan_hex = x->plan_hex;
        own.sent_bytes = &x->sent_bytes;
        own.on_part_needed = on_part_requested;
        own.on_done = on_upload_done;
        own.userdata = x;
        int r = s3_upload_new(&x->upload, x->client, &own);
        return r == 0 || delivery_endf(&x->base, RESULT_NO_RESOURCES, "cannot start its upload: %s",
                                       strerror(-r));
}

static bool start_object_upload(DeliveryS3 *x) {
        set_state(x, DELIVERY_S3_SENDING);
        x->base.run.setup_usec =
                x->base.clock->boottime_usec(x->base.clock) - x->base.run.start_usec;
        x->packed_bytes = delivery_s3_ledger_bytes(&x->ledger);
        x->base.run.is_multipart = x->ledger.upload_id;
        return create_upload(
                x,
                &(S3UploadOptions){
                        .key = x->key,
                        .content_type = "application/zstd",
                        .max_parts_in_flight = x->n_buffers,
                        /* without a manifest it is no bundle, and the name is ours */
                        .may_replace = x->check.earlier != EARLIER_UNKNOWN,
                        .guard_key = x->check.earlier == EARLIER_TRUNCATED ? NULL : x->manifest_key,
                        .upload_id = x->ledger.upload_id,
                        .parts = x->ledger.known,
                        .n_parts = x->ledger.n,
                        .on_begin = on_upload_start,
                        .on_upload_id = on_upload_id,
                        .on_etag = on_etag });
}

static bool start_manifest_upload(DeliveryS3 *x) {
        set_state(x, DELIVERY_S3_PUBLISHING);
        x->abort_id = 0;
        return create_upload(
                x, &(S3UploadOptions){ .key = x->manifest_key,
                                       .content_type = "application/json",
                                       .max_parts_in_flight = 2,
                                       .trusts_response = true,
                                       /* it is ours, and its object is gone */
                                       .is_overwrite = x->check.earlier == EARLIER_OF_PLAN ||
                                                       x->check.earlier == EARLIER_TRUNCATED,
                                       .on_begin = on_manifest_upload_start });
}

/* ---- the machine ---- */

static void on_checked(bool continues, void *userdata) {
        DeliveryS3 *x = userdata;
        record_ending(x, continues);
        step(x);
}

static bool check_manifest(DeliveryS3 *x) {
        set_state(x, DELIVERY_S3_CHECKING_MANIFEST);
        x->check = (DeliveryS3Check){ .client = x->client,
                                      .attempt = &x->attempt,
                                      .key = x->key,
                                      .manifest_key = x->manifest_key,
                                      .on_done = on_checked,
                                      .userdata = x };
        return delivery_s3_check_manifest(&x->check);
}

static bool check_object(DeliveryS3 *x) {
        set_state(x, DELIVERY_S3_CHECKING_OBJECT);
        return delivery_s3_check_object(&x->check);
}

/* Has the delivery charged more where the parts of the bundle need it, and splits what it has.
 * @return false: there is too little, and the delivery has ended */
static bool reserve_memory(DeliveryS3 *x) {
        Delivery *job = &x->base;
        const uint64_t part_bytes =
                packer_part_bytes_max(x->part_size, 0, plan_stream_bytes(x->attempt.plan));
        const uint64_t least = delivery_memory_bucket_min(part_bytes, job->level);
        char need[PARSE_FORMAT_SIZE], have[PARSE_FORMAT_SIZE];
        uint64_t limit = 0;
        int r = job->memory.bytes < least ? delivery_memory_grow(&job->memory, x->at, least, &limit)
                                          : 0;
        parse_format_human(need, least);
        parse_format_human(have, limit);
        if (r == -EAGAIN)
                return delivery_endf(job, RESULT_NO_RESOURCES,
                                     "its parts need %s of memory, which others have now", need);
        if (r < 0)
                return delivery_endf(job, RESULT_NO_RESOURCES,
                                     "its parts need %s of memory and limits.memory_max allows %s; "
                                     "set limits.memory_max to at least %llu",
                                     need, have, (unsigned long long)least);
        x->n_buffers = delivery_memory_split(
                &(BucketMemory){ .bytes = job->memory.bytes,
                                 .part_bytes = part_bytes,
                                 .connections = (unsigned)x->at->config->connections,
                                 .level = job->level,
                                 .n_compressors = x->at->shared->n_compressors },
                &x->writer_bytes);
        return true;
}

/* Reads the ledger; an upload that cannot be resumed is queued to be aborted. */
static bool open_ledger(DeliveryS3 *x) {
        DeliveryS3Expected expected = { .bundle = x->base.rec.id,
                                        .destination = x->at->config->name,
                                        .key = x->key,
                                        .plan = x->attempt.plan_sha256,
                                        .signature = x->signature };
        set_state(x, DELIVERY_S3_OPENING);
        int r = delivery_s3_ledger_load(&x->ledger, x->store, &expected);
        if (r < 0)
                return end_state_error(x, r);
        if (x->ledger.n > 0)
                log_dump(x->base.rec.id, LOG_INFO, 0, "%s: resuming its upload behind part %zu",
                         x->at->config->name, x->ledger.n);
        return start_work(x, work_open_packer);
}

/* A conditional PUT finds out for itself whether the name is taken; only what needs many parts is
 * worth a request before. */
static bool may_skip_check(const DeliveryS3 *x) {
        return x->is_fresh && atomic_load(&x->base.run.total_bytes) <= x->part_size;
}

/* Does what the state and the recorded facts call for. */
static bool run_state(DeliveryS3 *x) {
        switch (x->state) {
        case DELIVERY_S3_PLANNING:
                return reserve_memory(x) &&
                       (may_skip_check(x) ? open_ledger(x) : check_manifest(x));
        case DELIVERY_S3_CHECKING_MANIFEST:
                if (x->check.call)
                        return true;
                return x->check.earlier >= EARLIER_OF_PLAN ? check_object(x) : open_ledger(x);
        case DELIVERY_S3_CHECKING_OBJECT:
                if (x->check.call)
                        return true;
                if (x->check.earlier == EARLIER_COMPLETE) {
                        /* another run may have delivered it: then our own unfinished upload does no
                         * harm, but is paid for */
                        log_abort_not_queued(x, store_ledger_abandon(x->store, x->base.rec.id,
                                                                     x->at->config->name));
                        return start_work(x, work_delivered_before);
                }
                return x->check.earlier == EARLIER_OTHER_PLAN
                               ? delivery_s3_check_end_damaged(&x->check)
                               : open_ledger(x);
        case DELIVERY_S3_OPENING:
                return start_object_upload(x);
        case DELIVERY_S3_SENDING:
                return x->is_upload_done ? handle_object_uploaded(x) : supply_upload(x);
        case DELIVERY_S3_CLOSING:
                return start_manifest_upload(x);
        case DELIVERY_S3_PUBLISHING:
                return x->is_upload_done ? handle_manifest_uploaded(x) : supply_upload(x);
        case DELIVERY_S3_ENDED:
        case N_DELIVERY_S3_STATES:
                break;
        }
        return true;
}

static void discard_attempt(DeliveryS3 *x) {
        delivery_s3_check_cancel(&x->check);
        x->upload = s3_upload_free(x->upload);
        delivery_s3_parts_done(&x->parts);
        delivery_s3_ledger_done(&x->ledger);
        delivery_attempt_done(&x->attempt);
        free((char *)x->upload_result.error);
        x->upload_result = (S3UploadResult){ 0 };
        x->is_upload_done = false;
        x->requested_part = 0;
        x->packed_bytes = x->packed_stream_bytes = 0;
}

/* Starts the attempt again, a few times, when a member has changed or the upload cannot be resumed.
 * @return whether it has restarted */
static bool restart(DeliveryS3 *x) {
        Delivery *d = &x->base;
        bool is_restart = x->ending == ENDING_RESTART;
        if (!is_restart && d->result != RESULT_CHANGED)
                return false;
        log_abort_not_queued(x, store_ledger_abandon(x->store, d->rec.id, x->at->config->name));
        if ((is_restart ? ++x->n_restarts : ++x->n_plans) >= DELIVERY_PLANS_MAX)
                return false;
        log_dump(d->rec.id, LOG_INFO, 0, "%s: %s; restarting its upload", x->at->config->name,
                 d->error ? d->error : "it changed");
        discard_attempt(x);
        set_state(x, DELIVERY_S3_PLANNING);
        x->ending = ENDING_NONE;
        return start_work(x, work_plan);
}

static int on_end(sd_event_source *source, void *userdata) {
        (void)source;
        DeliveryS3 *x = userdata;
        x->base.on_done(&x->base); /* x is gone */
        return 0;
}

/* on_done is called in the next turn of the loop, since an upload or a call may be calling us. */
static void finish(DeliveryS3 *x) {
        set_state(x, DELIVERY_S3_ENDED);
        discard_attempt(x);
        atomic_store(&x->base.run.sent_bytes, x->sent_bytes);
        int r = sd_event_add_defer(x->at->shared->event, &x->end_source, on_end, x);
        if (r < 0)
                log_dump(x->base.rec.id, LOG_ERR, r, "cannot end its delivery; restart the agent");
}

/* An object that may be visible gets its manifest before its delivery is aborted: alone it is no
 * bundle, and the agent deletes none. */
static bool may_be_visible(const DeliveryS3 *x) {
        if (x->state == DELIVERY_S3_CLOSING || x->state == DELIVERY_S3_PUBLISHING)
                return true;
        if (x->state != DELIVERY_S3_SENDING || !x->upload)
                return false;
        return x->is_upload_done
                       ? x->upload_result.outcome == 0 || x->upload_result.outcome == UPLOAD_E_SAME
                       : s3_upload_may_be_visible(x->upload);
}

/* After a fact was recorded, never inside a callback of an upload. x may be gone a turn later. */
static void step(DeliveryS3 *x) {
        if (x->is_working || x->state == DELIVERY_S3_ENDED)
                return;
        if (x->is_cancelled && !may_be_visible(x))
                atomic_store(&x->base.run.abort, true);
        if (x->ending == ENDING_NONE)
                record_ending(x, delivery_may_continue(&x->base) && run_state(x));
        if (x->is_working) /* the worker may have set the ending, but its job has not returned */
                return;
        if (x->ending != ENDING_NONE && !restart(x))
                finish(x);
}

/* ---- the operations of a delivery ---- */

int delivery_s3_start(Destination *d, Delivery *job) {
        (void)d;
        return start_work(CONTAINER_OF(job, DeliveryS3, base), work_plan) ? 0 : -EAGAIN;
}

void delivery_s3_abort(Delivery *d) {
        DeliveryS3 *x = CONTAINER_OF(d, DeliveryS3, base);
        x->is_cancelled = true;
        if (!may_be_visible(x)) /* at once: the worker reads it */
                atomic_store(&d->run.abort, true);
        step(x);
}

/* It may be delivered when little is missing. */
void delivery_s3_wind_down(Delivery *d) {
        DeliveryS3 *x = CONTAINER_OF(d, DeliveryS3, base);
        if (x->state < DELIVERY_S3_SENDING)
                delivery_s3_abort(d);
        else if (x->state == DELIVERY_S3_SENDING && x->upload)
                s3_upload_pause(x->upload);
}

/* Of the tar stream, the share of the packed bytes that was sent; never all before it is proven. */
static uint64_t done_bytes(const DeliveryS3 *x) {
        uint64_t total = atomic_load(&x->base.run.total_bytes);
        if (x->state > DELIVERY_S3_SENDING)
                return total;
        if (!x->upload || x->packed_bytes == 0)
                return 0;
        uint64_t sent = MIN(s3_upload_sent_bytes(x->upload), x->packed_bytes);
        double share = (double)sent / (double)x->packed_bytes;
        return MIN((uint64_t)(share * (double)x->packed_stream_bytes), total - total / 100);
}

uint64_t delivery_s3_refresh(Destination *d) {
        DeliveryS3 *x = CONTAINER_OF(d->running, DeliveryS3, base);
        if (x->state != DELIVERY_S3_ENDED)
                atomic_store(&x->base.run.sent_bytes,
                             x->sent_bytes + s3_client_sending_bytes(x->client, &x->sent_bytes));
        if (x->state != DELIVERY_S3_ENDED && x->state >= DELIVERY_S3_SENDING)
                atomic_store(&x->base.run.done_bytes, done_bytes(x));
        return atomic_load(&x->base.run.sent_bytes);
}

bool delivery_s3_awaits_store(const Destination *d, uint64_t *ret_since_usec) {
        const DeliveryS3 *x = CONTAINER_OF(d->running, DeliveryS3, base);
        uint64_t asked = s3_client_waiting_since_usec(x->client);
        *ret_since_usec = asked > 0 ? asked : x->is_working ? x->work_start_usec : 0;
        return asked > 0;
}

/* What is on the server stays: the ledger knows it. */
Delivery *delivery_s3_free(Delivery *d) {
        if (!d)
                return NULL;
        DeliveryS3 *x = CONTAINER_OF(d, DeliveryS3, base);
        discard_attempt(x);
        sd_event_source_disable_unref(x->step_source);
        sd_event_source_disable_unref(x->end_source);
        delivery_done(d);
        free(x->signature);
        free(x->key);
        free(x->manifest_key);
        free(x);
        return NULL;
}

void delivery_s3_stop(Delivery *d) {
        DeliveryS3 *x = CONTAINER_OF(d, DeliveryS3, base);
        delivery_s3_check_cancel(&x->check);
        x->upload = s3_upload_free(x->upload);
        x->step_source = sd_event_source_disable_unref(x->step_source);
}

int delivery_s3_new(Delivery **ret, const DeliveryS3Options *o) {
        const DestinationShared *s = o->at->shared;
        DeliveryS3 *x = calloc(1, sizeof *x);
        if (!x)
                return -ENOMEM;
        x->at = o->at;
        x->client = o->client;
        x->store = s->store;
        x->part_size = o->at->config->part_size_bytes;
        /* What is older than this run may have been delivered by one whose state is lost. */
        x->is_fresh =
                !bundle_has_begun(o->bundle) && o->bundle->rec.oldest_mtime_usec >= s->started_usec;
        x->base.work = (WorkJob){ .run = run_work, .done = on_work_done };
        x->signature = packer_signature((int)s->config->limits.compression_level, x->part_size);
        int r = x->signature ? destination_init_delivery(o->at, &x->base, o->bundle, o->directory)
                             : -ENOMEM;
        if (r < 0) {
                free(x->signature);
                free(x);
                return r;
        }
        *ret = &x->base;
        return 0;
}
