/* A bucket as a destination: its client, its probe, the abort of unfinished uploads before the next
 * delivery starts, so that none of them is mistaken for one underway; and a delivery to it, a state
 * machine on the loop, where what reads and packs runs in the destination's worker:
 *   PLANNING           the worker finds the members and freezes the plan
 *   CHECKING_MANIFEST  is a manifest there already? (HEAD, whose 404 has no body to wait for; then
 *                      GET)
 *   CHECKING_OBJECT    there is one of this plan: is its object complete? (HEAD)
 *   OPENING            the worker restores the packer from the ledger, or starts with no part
 *   SENDING            uploaders/s3 requests parts, the worker packs them
 *   CLOSING            the worker collects the verdicts and measures the manifest
 *   PUBLISHING         the manifest is uploaded like the object, last: it is the commit
 * Whatever stops it in between, a crash too, leaves a ledger from which the next delivery
 * continues. */
#include "agent/delivery/delivery_s3.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/delivery/delivery_attempt.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/neuron/names.h"
#include "uploaders/s3/s3_bucket.h"
#include "uploaders/s3/s3_endpoint.h"
#include "uploaders/s3/s3_upload.h"

/* The manifest is uploaded in parts of this size, and one at a time is built in memory. */
#define MANIFEST_WINDOW_BYTES (8 * MIB)
#define CHECK_TRIES_MAX 4

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
        ENDING_RESTART, /* so it has, but the upload to be resumed is to blame: start without it */
} Ending;

/* A part of the object, or a window of the manifest. Mapped, since fresh pages cost more than the
 * bytes that go into them: those of parts are used again. */
typedef struct PartBuffer {
        S3Part part;
        PackedPart packed; /* data: of n_mapped bytes */
        size_t n_mapped;
        struct PartBuffer **spares; /* where it goes when it is released */
        struct PartBuffer *next;    /* of the spares */
} PartBuffer;

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
        bool is_cancelled; /* to be aborted as soon as its object is not without its manifest */
        unsigned n_plans, n_restarts;
        uint64_t sent_bytes; /* of bodies, in tries that have ended */
        sd_event_source *end_source;

        /* one attempt */
        DeliveryAttempt attempt;
        char *key, *manifest_key;
        char plan_hex[SHA256_HEX_SIZE];
        S3Call *call;
        bool (*on_answer)(struct DeliveryS3 *x, const S3Result *result); /* of the call */
        EarlierCopy earlier;
        uint64_t manifest_size, manifest_read; /* of the earlier one */
        char manifest_etag[S3_ETAG_SIZE];      /* "" = not usable */

        /* the object */
        DeliveryS3Ledger ledger;
        Packer *packer;
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
        uint64_t manifest_bytes;
        int64_t abort_id; /* of the manifest's upload */

        /* the worker: while it runs the loop only records facts */
        bool is_working;
        uint64_t work_start_usec;           /* CLOCK_BOOTTIME */
        bool (*work)(struct DeliveryS3 *x); /* false: `base` has its result */
        unsigned number;                    /* of the part to be built */
        PartBuffer *built;                  /* what it fills; owned */
        PartBuffer *spares;                 /* of one size; owned */
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

static void end_unless(DeliveryS3 *x, bool continues) {
        if (!continues && x->ending == ENDING_NONE)
                x->ending = ENDING_RESULT;
}

/* ---- the ledger ---- */

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

/* ---- memory ---- */

unsigned delivery_s3_buffers(const DeliveryS3Memory *m, uint64_t *ret_writer_bytes) {
        uint64_t least = bundle_writer_memory_min(m->level),
                 best = bundle_writer_memory_best(m->level, m->n_compressors);
        /* a context and a slot for each further thread: bundle_writer_memory_best(n) is n contexts
         * and 2n + 2 slots */
        uint64_t slot = (bundle_writer_memory_best(m->level, 1) - least) / 2;
        uint64_t lean = least + (m->n_compressors - 1) * (least - slot);
        for (unsigned n = m->connections + 1; n >= 2; n--) {
                uint64_t parts = n * m->part_bytes, writer = n > 2 ? lean : least;
                if (parts + writer > m->bytes)
                        continue;
                *ret_writer_bytes = MIN(best, m->bytes - parts);
                return n;
        }
        return 0;
}

uint64_t delivery_s3_memory_min(uint64_t part_bytes, int level) {
        return 2 * part_bytes + bundle_writer_memory_min(level);
}

static bool reserve_memory(DeliveryS3 *x) {
        Delivery *d = &x->base;
        uint64_t limit = 0;
        char need[PARSE_FORMAT_SIZE], have[PARSE_FORMAT_SIZE];
        DeliveryS3Memory m = { .bytes = d->memory_bytes,
                               .part_bytes = packer_part_bytes_max(
                                       x->part_size, 0, plan_stream_bytes(x->attempt.plan)),
                               .connections = (unsigned)x->at->config->connections,
                               .level = d->level,
                               .n_compressors = x->at->shared->n_compressors };
        uint64_t least = delivery_s3_memory_min(m.part_bytes, d->level);
        int r = m.bytes < least ? destination_reserve_memory(d, least, &limit) : 0;
        parse_format_human(need, least);
        parse_format_human(have, limit);
        if (r == -EAGAIN)
                return delivery_endf(d, RESULT_NO_RESOURCES,
                                     "its parts need %s of memory, which others have now", need);
        if (r < 0)
                return delivery_endf(d, RESULT_NO_RESOURCES,
                                     "its parts need %s of memory and limits.memory_max allows %s; "
                                     "set limits.memory_max to at least %llu",
                                     need, have, (unsigned long long)least);
        m.bytes = d->memory_bytes;
        x->n_buffers = delivery_s3_buffers(&m, &x->writer_bytes);
        return true;
}

/* ---- what the worker does ---- */

static void run_work(WorkJob *work) {
        DeliveryS3 *x = CONTAINER_OF(work, DeliveryS3, base.work);
        end_unless(x, x->work(x));
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

static void part_buffer_release(S3Part *part) {
        PartBuffer *b = CONTAINER_OF(part, PartBuffer, part);
        packed_row_done(&b->packed.row);
        b->next = *b->spares;
        *b->spares = b;
}

static void free_built(DeliveryS3 *x) {
        if (x->built)
                part_buffer_release(&TAKE_PTR(x->built)->part);
}

static void free_spares(DeliveryS3 *x) {
        while (x->spares) {
                PartBuffer *b = x->spares;
                x->spares = b->next;
                (void)munmap(b->packed.data, b->n_mapped); /* whole mapping */
                free(b);
        }
}

/* @return whether x->built has so much memory, which is the same for all parts of an upload */
static bool acquire_buffer(DeliveryS3 *x, size_t n) {
        PartBuffer *b = x->spares;
        if (b) {
                x->spares = b->next;
                x->built = b;
                return true;
        }
        b = calloc(1, sizeof *b);
        void *data = b ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                       : MAP_FAILED;
        if (data == MAP_FAILED) {
                free(b);
                return end_no_memory(x);
        }
        (void)madvise(data, n,
                      MADV_DONTDUMP); /* evidence does not belong into our own core files */
        *b = (PartBuffer){ .packed.data = data, .n_mapped = n, .spares = &x->spares };
        x->built = b;
        return true;
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
        PackerOptions options = { .writer = delivery_attempt_writer_options(&x->attempt,
                                                                            x->writer_bytes),
                                  .part_size = x->part_size,
                                  .rows = x->ledger.items,
                                  .n_rows = x->ledger.n };
        int r = packer_new(&x->packer, x->attempt.plan, &options);
        if (r == PACKER_E_ROWS)
                return end_for_restart(x, RESULT_CHANGED,
                                       "the ledger of its upload does not match");
        return r == 0 || delivery_attempt_end_writer(&x->attempt, r, SIZE_MAX);
}

static bool work_pack_part(DeliveryS3 *x) {
        PartBuffer *b = x->built;
        int r = x->number <= x->ledger.n ? packer_rebuild(x->packer, x->number - 1, &b->packed)
                                         : packer_next(x->packer, &b->packed);
        if (r == PACKER_PART) {
                b->part = (S3Part){ .number = x->number,
                                    .data = b->packed.data,
                                    .bytes = b->packed.row.bytes,
                                    .is_last = b->packed.row.is_last,
                                    .release = part_buffer_release };
                memcpy(b->part.sha256, b->packed.row.sha256, SHA256_SIZE);
                return true;
        }
        if (r == PACKER_E_DIFFERS)
                return end_for_restart(x, RESULT_CHANGED,
                                       "a part differs from the one before the interruption");
        if (r == 0)
                return delivery_endf(&x->base, RESULT_FAILED, "there is no part %u of it",
                                     x->number);
        return delivery_attempt_end_writer(&x->attempt, r, packer_status(x->packer).failed_member);
}

static bool write_manifest(DeliveryS3 *x, int (*put)(const void *data, size_t n, void *userdata),
                           void *userdata) {
        int r = delivery_attempt_write_manifest(&x->attempt, packer_status(x->packer).writer,
                                                packer_status(x->packer).parts, put, userdata);
        return r == 0 || delivery_endf(&x->base, delivery_result_of(r),
                                       "cannot write the manifest: %s", strerror(-r));
}

static int count_bytes(const void *data, size_t n, void *userdata) {
        (void)data;
        *(uint64_t *)userdata += n;
        return 0;
}

static bool work_close(DeliveryS3 *x) {
        delivery_attempt_add_verdicts(&x->attempt, packer_status(x->packer).writer);
        x->manifest_bytes = 0;
        return write_manifest(x, count_bytes, &x->manifest_bytes);
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
static bool work_build_manifest_window(DeliveryS3 *x) {
        uint64_t offset = (x->number - 1) * MANIFEST_WINDOW_BYTES;
        PartBuffer *b = x->built;
        Window w = { .data = b->packed.data,
                     .skip = offset,
                     .max = (size_t)MIN(MANIFEST_WINDOW_BYTES, x->manifest_bytes - offset) };
        if (!write_manifest(x, fill_window, &w))
                return false;
        if (w.n != w.max)
                return delivery_endf(&x->base, RESULT_FAILED, "the size of the manifest changed");
        b->part = (S3Part){ .number = x->number,
                            .data = w.data,
                            .bytes = w.n,
                            .is_last = offset + w.n == x->manifest_bytes,
                            .release = part_buffer_release };
        sha256_of(w.data, w.n, b->part.sha256);
        return true;
}

static bool work_delivered_before(DeliveryS3 *x) {
        return delivery_attempt_delivered_before(&x->attempt);
}

/* ---- is it there already? ---- */

static void on_answer(const S3Result *result, void *userdata) {
        DeliveryS3 *x = userdata;
        x->call = NULL;
        end_unless(x, x->on_answer(x, result));
        step(x);
}

static bool request(DeliveryS3 *x, bool (*handle)(DeliveryS3 *x, const S3Result *result),
                    const S3RequestOptions *options) {
        S3RequestOptions own = *options;
        own.max_tries = CHECK_TRIES_MAX;
        own.on_done = on_answer;
        own.userdata = x;
        x->on_answer = handle;
        int r = s3_call_new(&x->call, x->client, &own);
        return r == 0 || delivery_endf(&x->base, RESULT_NO_RESOURCES, "cannot ask the store: %s",
                                       strerror(-r));
}

static bool end_answer(DeliveryS3 *x, const S3Response *answer) {
        return delivery_end_upload(&x->base, s3_verdict_outcome(answer->verdict),
                                   answer->sentence ? strdup(answer->sentence) : NULL);
}

/* @return the caller's; NULL for lack of memory */
static char *manifest_url(const DeliveryS3 *x) {
        return strbuf_format("s3://%s/%s", s3_client_bucket(x->client), x->manifest_key);
}

static bool read_manifest(DeliveryS3 *x);

/* In pieces that are parsed on the loop within milliseconds. */
#define MANIFEST_PIECE_BYTES MIB

/* A manifest that was replaced between two reads cannot be used: its pieces do not fit together. */
static bool is_same_manifest(const DeliveryS3 *x, const S3Result *result) {
        const char *value = result->header(result, "etag");
        char etag[S3_ETAG_SIZE];

        return !x->manifest_etag[0] || !value || s3_etag_unquote(etag, value) < 0 ||
               strcmp(etag, x->manifest_etag) == 0;
}

static bool handle_manifest_piece(DeliveryS3 *x, const S3Result *result) {
        if (result->status == 416 && x->manifest_size == UINT64_MAX) { /* read to its end */
                x->manifest_size = x->manifest_read;
                return read_manifest(x);
        }
        if (result->answer->verdict != S3_OK)
                return end_answer(x, result->answer);
        if (!is_same_manifest(x, result))
                return delivery_end_upload(
                        &x->base, UPLOAD_E_UNREACHABLE,
                        strbuf_format("'%s' changed while it was read", x->manifest_key));
        if (!delivery_attempt_read_manifest(&x->attempt, result->body, result->body_bytes))
                return false;
        x->manifest_read += result->body_bytes;
        /* it is shorter now, or its size was unknown */
        if (result->body_bytes == 0 ||
            (x->manifest_size == UINT64_MAX && result->body_bytes < MANIFEST_PIECE_BYTES))
                x->manifest_size = x->manifest_read;
        return read_manifest(x);
}

/* Charges a failure to the destination and not to the bundle, unless the store's answers have S3's
 * request ids: a portal may answer every request with a page of its own. @return false */
static bool blame_store_unless_known(DeliveryS3 *x) {
        if (x->base.result == RESULT_FAILED && !s3_client_has_request_ids(x->client))
                (void)delivery_end_upload(&x->base, UPLOAD_E_REFUSED, TAKE_PTR(x->base.error));
        return false;
}

static bool end_manifest(DeliveryS3 *x) {
        _cleanup_free_ char *url = manifest_url(x);
        /* also for an empty one, of which no piece has come */
        return delivery_attempt_read_manifest(&x->attempt, "", 0) &&
               (delivery_attempt_end_manifest(&x->attempt, url ? url : x->manifest_key,
                                              &x->earlier) ||
                blame_store_unless_known(x));
}

static bool read_manifest(DeliveryS3 *x) {
        char range[64];
        uint64_t left = x->manifest_size - x->manifest_read, n = MIN(left, MANIFEST_PIECE_BYTES);
        if (left == 0)
                return end_manifest(x);
        (void)snprintf(range, sizeof range, "bytes=%llu-%llu", (unsigned long long)x->manifest_read,
                       (unsigned long long)(x->manifest_read + n - 1));
        return request(x, handle_manifest_piece,
                       &(S3RequestOptions){ .operation = S3_GET_OBJECT,
                                            .key = x->manifest_key,
                                            .headers = &(AwsNameValue){ "Range", range },
                                            .n_headers = 1,
                                            .reply_max_bytes = (size_t)n + 1 });
}

static bool handle_manifest_head(DeliveryS3 *x, const S3Result *result) {
        const char *length = result->header(result, "content-length");
        S3Verdict verdict = result->answer->verdict;
        if (verdict == S3_DENIED) /* also AWS's answer to a missing key where LIST is forbidden */
                return true;
        if (verdict == S3_NOT_FOUND) {
                x->earlier = EARLIER_NONE;
                return true;
        }
        if (verdict != S3_OK)
                return end_answer(x, result->answer);
        if (!length || parse_u64(length, &x->manifest_size) < 0)
                x->manifest_size = UINT64_MAX; /* unknown, as some proxies remove Content-Length:
                                                  read to the end */
        x->manifest_read = 0;
        const char *etag = result->header(result, "etag");
        if (!etag || s3_etag_unquote(x->manifest_etag, etag) < 0)
                x->manifest_etag[0] = '\0';
        return read_manifest(x);
}

static bool check_manifest(DeliveryS3 *x) {
        set_state(x, DELIVERY_S3_CHECKING_MANIFEST);
        return request(x, handle_manifest_head,
                       &(S3RequestOptions){ .operation = S3_HEAD_OBJECT, .key = x->manifest_key });
}

static bool handle_object(DeliveryS3 *x, const S3Result *result) {
        const char *length = result->header(result, "content-length"),
                   *its_plan = result->header(result, S3_PLAN_HEADER);
        const ManifestHead *head = &x->attempt.earlier;
        char plan_hex[SHA256_HEX_SIZE];
        uint64_t bytes = 0;
        switch (result->answer->verdict) {
        case S3_OK:
                x->base.proof = PROOF_HEAD;
                digest_hex(head->plan, SHA256_SIZE, plan_hex);
                if ((!length || (parse_u64(length, &bytes) == 0 && bytes == head->bytes)) &&
                    its_plan && strcmp(its_plan, plan_hex) == 0)
                        x->earlier = EARLIER_COMPLETE;
                return true;
        case S3_DENIED: /* the manifest is the commit */
                x->base.proof = PROOF_RESPONSE;
                x->earlier = EARLIER_COMPLETE;
                return true;
        case S3_NOT_FOUND:
                return true;
        default:
                return end_answer(x, result->answer);
        }
}

static bool end_damaged(DeliveryS3 *x) {
        _cleanup_free_ char *url = manifest_url(x);
        return delivery_attempt_end_damaged(&x->attempt, url ? url : x->manifest_key);
}

static bool check_object(DeliveryS3 *x) {
        set_state(x, DELIVERY_S3_CHECKING_OBJECT);
        return request(x, handle_object,
                       &(S3RequestOptions){ .operation = S3_HEAD_OBJECT, .key = x->key });
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
                const PackedPart *packed = &x->built->packed;
                int r = delivery_s3_ledger_add_part(&x->ledger, x->store, x->number, &packed->row);
                if (r < 0)
                        return end_state_error(x, r);
                x->packed_bytes += x->number > x->ledger.n ? packed->row.bytes : 0;
                x->packed_stream_bytes = packer_status(x->packer).done_bytes;
                atomic_store(&x->base.read_bytes, packer_status(x->packer).bytes_read);
        }
        s3_upload_add_part(x->upload, &TAKE_PTR(x->built)->part);
        return true;
}

/* Supplies the part that was built, or has the requested one built. */
static bool supply_upload(DeliveryS3 *x) {
        if (x->built && !supply_built(x))
                return false;
        if (x->is_upload_done || x->requested_part == 0)
                return true;
        bool is_object = x->state == DELIVERY_S3_SENDING;
        x->number = x->requested_part;
        x->requested_part = 0;
        return acquire_buffer(x, is_object ? packer_buffer_bytes(x->packer)
                                           : MIN(MANIFEST_WINDOW_BYTES, x->manifest_bytes)) &&
               start_work(x, is_object ? work_pack_part : work_build_manifest_window);
}

static int on_upload_start(S3Upload *u, void *userdata) {
        (void)u;
        DeliveryS3 *x = userdata;
        x->base.is_multipart = true;
        LedgerUpload upload = { .key = x->key,
                                .packer = x->signature,
                                .created_usec = x->base.clock->realtime_usec(x->base.clock) };
        memcpy(upload.plan, x->attempt.plan_sha256, SHA256_SIZE);
        return delivery_s3_ledger_start(&x->ledger, x->store, &upload);
}

static int on_upload_id(S3Upload *u, const char *upload_id, void *userdata) {
        (void)u;
        DeliveryS3 *x = userdata;
        return row_result(store_ledger_set_upload_id(x->store, x->base.rec.id, x->at->config->name,
                                                     upload_id));
}

static int on_etag(S3Upload *u, unsigned number, const char *etag, void *userdata) {
        (void)u;
        DeliveryS3 *x = userdata;
        x->base.has_advanced = true;
        return row_result(store_ledger_set_etag(x->store, x->base.rec.id, x->at->config->name,
                                                &(LedgerPart){ .number = number, .etag = etag }));
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
        x->base.has_object = x->state == DELIVERY_S3_PUBLISHING ||
                             (x->upload_result.may_be_visible && outcome != UPLOAD_E_REFUSED &&
                              outcome != UPLOAD_E_DENIED && outcome != UPLOAD_E_FULL);
        x->upload = s3_upload_free(x->upload);
        x->requested_part = 0;
        free_built(x); /* for an upload that has ended */
        free_spares(x);
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
        return delivery_end_upload(&x->base, outcome, TAKE_PTR(error)) ||
               blame_store_unless_known(x);
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
        x->base.setup_usec = x->base.clock->boottime_usec(x->base.clock) - x->base.start_usec;
        x->packed_bytes = delivery_s3_ledger_bytes(&x->ledger);
        x->base.is_multipart = x->ledger.upload_id;
        return create_upload(
                x, &(S3UploadOptions){
                           .key = x->key,
                           .content_type = "application/zstd",
                           .max_parts_in_flight = x->n_buffers,
                           /* without a manifest it is no bundle, and the name is ours */
                           .may_replace = x->earlier != EARLIER_UNKNOWN,
                           .guard_key = x->earlier == EARLIER_TRUNCATED ? NULL : x->manifest_key,
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
        return create_upload(x, &(S3UploadOptions){ .key = x->manifest_key,
                                                    .content_type = "application/json",
                                                    .max_parts_in_flight = 2,
                                                    .trusts_response = true,
                                                    /* ours, of an object that is gone */
                                                    .is_overwrite = x->earlier == EARLIER_OF_PLAN ||
                                                                    x->earlier == EARLIER_TRUNCATED,
                                                    .on_begin = on_manifest_upload_start });
}

/* ---- the machine ---- */

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
        return x->is_fresh && atomic_load(&x->base.total_bytes) <= x->part_size;
}

/* Does what the state and the facts call for. */
static bool run_state(DeliveryS3 *x) {
        switch (x->state) {
        case DELIVERY_S3_PLANNING:
                return reserve_memory(x) &&
                       (may_skip_check(x) ? open_ledger(x) : check_manifest(x));
        case DELIVERY_S3_CHECKING_MANIFEST:
                if (x->call)
                        return true;
                return x->earlier >= EARLIER_OF_PLAN ? check_object(x) : open_ledger(x);
        case DELIVERY_S3_CHECKING_OBJECT:
                if (x->call)
                        return true;
                if (x->earlier == EARLIER_COMPLETE) {
                        /* by another, perhaps: then our own upload is in nobody's way, but is paid
                         * for */
                        log_abort_not_queued(x, store_ledger_abandon(x->store, x->base.rec.id,
                                                                     x->at->config->name));
                        return start_work(x, work_delivered_before);
                }
                return x->earlier == EARLIER_OTHER_PLAN ? end_damaged(x) : open_ledger(x);
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
        x->call = s3_call_cancel(x->call);
        x->upload = s3_upload_free(x->upload);
        x->packer = packer_free(x->packer);
        delivery_s3_ledger_done(&x->ledger);
        delivery_attempt_done(&x->attempt);
        free_built(x);
        free_spares(x);
        free((char *)x->upload_result.error);
        x->upload_result = (S3UploadResult){ 0 };
        x->is_upload_done = false;
        x->earlier = EARLIER_UNKNOWN;
        x->requested_part = 0;
        x->packed_bytes = x->packed_stream_bytes = x->manifest_bytes = 0;
}

/* After a plan that did not hold, or an upload that cannot be resumed: from the start, a few times.
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
        atomic_store(&x->base.sent_bytes, x->sent_bytes);
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
                atomic_store(&x->base.abort, true);
        if (x->ending == ENDING_NONE)
                end_unless(x, delivery_may_continue(&x->base) && run_state(x));
        if (x->is_working) /* it may have set the ending, but its job has not returned */
                return;
        if (x->ending != ENDING_NONE && !restart(x))
                finish(x);
}

/* ---- the operations of a delivery ---- */

static int s3_delivery_start(Destination *d, Delivery *job) {
        (void)d;
        return start_work(CONTAINER_OF(job, DeliveryS3, base), work_plan) ? 0 : -EAGAIN;
}

static void s3_delivery_abort(Delivery *d) {
        DeliveryS3 *x = CONTAINER_OF(d, DeliveryS3, base);
        x->is_cancelled = true;
        if (!may_be_visible(x)) /* now: the worker reads it */
                atomic_store(&d->abort, true);
        step(x);
}

/* It may be delivered when little is missing. */
static void s3_delivery_wind_down(Delivery *d) {
        DeliveryS3 *x = CONTAINER_OF(d, DeliveryS3, base);
        if (x->state < DELIVERY_S3_SENDING)
                s3_delivery_abort(d);
        else if (x->state == DELIVERY_S3_SENDING && x->upload)
                s3_upload_pause(x->upload);
}

/* Of the tar stream, the share of the packed bytes that was sent; never all before it is proven. */
static uint64_t done_bytes(const DeliveryS3 *x) {
        uint64_t total = atomic_load(&x->base.total_bytes);
        if (x->state > DELIVERY_S3_SENDING)
                return total;
        if (!x->upload || x->packed_bytes == 0)
                return 0;
        uint64_t sent = MIN(s3_upload_sent_bytes(x->upload), x->packed_bytes);
        double share = (double)sent / (double)x->packed_bytes;
        return MIN((uint64_t)(share * (double)x->packed_stream_bytes), total - total / 100);
}

static uint64_t s3_refresh(Destination *d) {
        DeliveryS3 *x = CONTAINER_OF(d->running, DeliveryS3, base);
        if (x->state != DELIVERY_S3_ENDED)
                atomic_store(&x->base.sent_bytes,
                             x->sent_bytes + s3_client_sending_bytes(x->client, &x->sent_bytes));
        if (x->state != DELIVERY_S3_ENDED && x->state >= DELIVERY_S3_SENDING)
                atomic_store(&x->base.done_bytes, done_bytes(x));
        return atomic_load(&x->base.sent_bytes);
}

static bool s3_awaits_store(const Destination *d, uint64_t *ret_since_usec) {
        const DeliveryS3 *x = CONTAINER_OF(d->running, DeliveryS3, base);
        uint64_t asked = s3_client_waiting_since_usec(x->client);
        *ret_since_usec = asked > 0 ? asked : x->is_working ? x->work_start_usec : 0;
        return asked > 0;
}

/* What is on the server stays: the ledger knows it. */
static Delivery *s3_delivery_free(Delivery *d) {
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

/* ---- the bucket ---- */

/* A store may execute a CreateMultipartUpload long after its client gave up: the uploads of a key
 * are listed again for so long. */
#define CREATE_LATE_MAX_USEC (15 * USEC_PER_MINUTE)
#define REAP_MAX_USEC (6 * USEC_PER_HOUR)
#define REAP_MIN_USEC USEC_PER_SEC

typedef enum CleanupKind { CLEANUP_OURS, CLEANUP_ABORTS, CLEANUP_ORPHANS } CleanupKind;

typedef struct S3Target {
        Credentials *credentials;
        S3Client *client; /* NULL: config_error is the reason */
        char *config_error;
        S3Probe *probe;
        sd_event_source *config_error_source;
        S3Sweep *sweep;
        char *sweep_error; /* of the last one; NULL = it went well */
        CleanupKind cleanup;
        uint64_t ours_usec; /* CLOCK_BOOTTIME: not before */
        bool swept_ours;    /* once after the start */
        int64_t abort_id;   /* being tried, or the last one that stays: the later ones come first */
        uint64_t abort_late_usec; /* CLOCK_REALTIME: until then a Create may be late; 0: none */
        bool aborts_remain;       /* after this round */
        unsigned n_abort_rounds, n_ours_failed; /* in a row, after which some remain */
        uint64_t aborts_usec;                   /* CLOCK_BOOTTIME: not before */
        uint64_t reap_usec;
        char *fixed; /* all our keys begin with it: `neuron/`, or "" */
} S3Target;

static S3Target *target(const Destination *d) {
        return d->target;
}

S3Client *delivery_s3_client(const Destination *d, const char **ret_error) {
        const S3Target *t = target(d);
        *ret_error = t->client         ? NULL
                     : t->config_error ? t->config_error
                                       : "its endpoint cannot be used";
        return t->client;
}

static int create_client(Destination *d, S3Target *t) {
        const DestinationShared *c = d->shared;
        const ConfigDestination *config = d->config;
        S3Environment environment = s3_environment_read(c->environment),
                      place = s3_environment_resolve(&environment, config->endpoint,
                                                     config->ca_file);
        int r = credentials_new(&t->credentials,
                                &(CredentialsOptions){ .event = c->event,
                                                       .clock = c->clock,
                                                       .environment = c->environment,
                                                       .profile = config->profile,
                                                       .region = config->region,
                                                       .ca_file = place.ca_bundle,
                                                       .proxy = config->proxy });
        if (r < 0)
                return r;
        _cleanup_free_ char *region = config->region[0] ? NULL : credentials_region(t->credentials);
        r = s3_client_new(
                &t->client,
                &(S3ClientOptions){ .event = c->event,
                                    .clock = c->clock,
                                    .credentials = t->credentials,
                                    .bucket = config->bucket,
                                    .region = region ? region : config->region,
                                    .endpoint = place.endpoint,
                                    .addressing = config->addressing,
                                    .dualstack = place.dualstack,
                                    .fips = place.fips,
                                    .ca_file = place.ca_bundle,
                                    .omits_checksums = place.omits_checksums,
                                    .proxy = config->proxy,
                                    .connections = (unsigned)config->connections,
                                    .request_timeout_usec = config->request_timeout_usec,
                                    .expected_bucket_owner = config->expected_bucket_owner,
                                    .sse = config->sse,
                                    .kms_key_id = config->kms_key_id,
                                    .storage_class = config->storage_class,
                                    .tags = config->tags.items,
                                    .retry_initial_usec = d->shared->config->retry.initial_usec,
                                    .retry_maximum_usec = d->shared->config->retry.maximum_usec,
                                    .seed = destination_random(),
                                    .upload = d->shared->limits->upload,
                                    .requests = d->shared->limits->requests },
                &t->config_error);
        return r == -EINVAL ? 0 : r; /* the probe reports it */
}

static int s3_open(Destination *d) {
        S3Target *t = d->target = calloc(1, sizeof *t);
        if (!t)
                return -ENOMEM;
        t->fixed = s3_key_prefix(path_template_fixed(d->template));
        return !t->fixed ? -ENOMEM : create_client(d, t);
}

static void s3_stop(Destination *d, bool hung) {
        S3Target *t = target(d);
        if (hung) { /* the worker keeps the rest */
                DeliveryS3 *x = CONTAINER_OF(d->running, DeliveryS3, base);
                x->call = s3_call_cancel(x->call);
                x->upload = s3_upload_free(x->upload);
                x->step_source = sd_event_source_disable_unref(x->step_source);
        }
        t->probe = s3_probe_free(t->probe);
        t->sweep = s3_sweep_free(t->sweep);
        t->config_error_source = sd_event_source_disable_unref(t->config_error_source);
}

static void s3_close(Destination *d) {
        S3Target *t = target(d);
        s3_client_free(t->client);
        credentials_free(t->credentials);
        free(t->config_error);
        free(t->sweep_error);
        free(t->fixed);
        free(t);
        d->target = NULL;
}

/* ---- can it be written? ---- */

static void on_probed(int outcome, const char *error, void *userdata) {
        destination_probe_done(userdata, outcome, error);
}

static int on_config_error(sd_event_source *source, void *userdata) {
        (void)source;
        Destination *d = userdata;
        const char *error;
        (void)delivery_s3_client(d, &error);
        destination_probe_done(d, UPLOAD_E_DENIED, error);
        return 0;
}

static int s3_start_probe(Destination *d) {
        S3Target *t = target(d);
        if (!t->client) {
                t->config_error_source = sd_event_source_disable_unref(t->config_error_source);
                return sd_event_add_defer(d->shared->event, &t->config_error_source,
                                          on_config_error, d);
        }
        _cleanup_free_ char *key = s3_probe_key(t->fixed, d->shared->instance_id);
        if (!key)
                return -ENOMEM;
        t->probe = s3_probe_free(t->probe); /* the one before, which has ended */
        return s3_probe_new(
                &t->probe, t->client,
                &(S3ProbeOptions){
                        .key = key, .list_prefix = t->fixed, .on_done = on_probed, .userdata = d });
}

/* ---- aborting unfinished uploads ---- */

static bool is_kept(const char *key, const char *upload_id, void *userdata) {
        Destination *d = userdata;
        S3Target *t = target(d);
        Store *store = d->shared->store;
        if (store_ledger_knows(store, key, upload_id))
                return true;
        /* what is to be aborted is aborted by its own destination */
        return t->cleanup != CLEANUP_ABORTS &&
               (store_abort_knows(store, key, upload_id) ||
                !bundle_key_belongs_to(key,
                                       t->cleanup == CLEANUP_OURS ? d->shared->instance_id : NULL));
}

static void on_aborted(const char *key, const char *upload_id, uint64_t age_usec, void *userdata) {
        Destination *d = userdata;
        char age[64];
        (void)upload_id;
        d->shared->n_aborted++;
        log_notice("destination %s: aborted an unfinished upload of 's3://%s/%s', %s old, that "
                   "nobody resumes",
                   d->config->name, d->config->bucket, key, clock_format_duration(age, age_usec));
}

/* Logged once, not with every try. @param error  NULL = it went well */
static void log_failed_sweep(Destination *d, const char *error) {
        S3Target *t = target(d);
        if (error && (!t->sweep_error || strcmp(t->sweep_error, error) != 0))
                log_warning(0,
                            "destination %s: cannot abort unfinished uploads: %s; trying again "
                            "as `retry` says",
                            d->config->name, error);
        free(t->sweep_error);
        t->sweep_error = error ? strdup(error) : NULL;
}

static uint64_t next_cleanup_usec(const Destination *d, unsigned n_rounds) {
        const DestinationShared *s = d->shared;
        return destination_boottime_usec(d) +
               backoff_next_usec(n_rounds, s->config->retry.initial_usec,
                                 s->config->retry.maximum_usec, destination_random());
}

static void on_swept(int outcome, const char *error, unsigned n_aborted, void *userdata) {
        Destination *d = userdata;
        S3Target *t = target(d);
        (void)n_aborted;
        log_failed_sweep(d, outcome != 0 ? error ? error : "failed" : NULL);
        if (t->cleanup == CLEANUP_ABORTS &&
            (outcome != 0 || destination_realtime_usec(d) < t->abort_late_usec ||
             store_abort_done(d->shared->store, t->abort_id) < 0))
                t->aborts_remain = true;
        if (t->cleanup == CLEANUP_OURS && outcome != 0) {
                t->swept_ours = false;
                t->ours_usec = next_cleanup_usec(d, ++t->n_ours_failed);
        }
        destination_cleanup_done(d, outcome);
}

static bool start_sweep(Destination *d, CleanupKind what, const S3SweepOptions *options) {
        S3Target *t = target(d);
        S3SweepOptions own = *options;
        own.is_known = is_kept;
        own.on_abort = on_aborted;
        own.on_done = on_swept;
        own.userdata = d;
        t->cleanup = what;
        t->sweep = s3_sweep_free(t->sweep); /* the one before, which has ended */
        return s3_sweep_new(&t->sweep, t->client, &own) == 0;
}

/* Of a row of a key alone. @return CLOCK_REALTIME; 0: a clock that was set back is not waited for
 */
static uint64_t late_create_usec(const Destination *d, const LedgerAbort *a) {
        uint64_t now = destination_realtime_usec(d);
        return a->upload_id || a->since_usec > now ? 0 : a->since_usec + CREATE_LATE_MAX_USEC;
}

/* One after the other; what remains is tried again when all have been tried. */
static bool start_next_abort(Destination *d) {
        S3Target *t = target(d);
        _cleanup_(ledger_abort_done) LedgerAbort next = { 0 };
        bool is_started = store_abort_next(d->shared->store, d->config->name, t->abort_id, &next) ==
                                  0 && /* an error: again later */
                          start_sweep(d, CLEANUP_ABORTS,
                                      &(S3SweepOptions){ .prefix = next.key,
                                                         .exact_key = true,
                                                         .upload_id = next.upload_id });
        t->abort_id = is_started ? next.id : 0;
        t->abort_late_usec = is_started ? late_create_usec(d, &next) : 0;
        if (is_started)
                return true;
        t->n_abort_rounds = t->aborts_remain ? t->n_abort_rounds + 1 : 0;
        if (t->aborts_remain)
                t->aborts_usec = next_cleanup_usec(d, t->n_abort_rounds);
        t->aborts_remain = false;
        return false;
}

static bool s3_clean_up(Destination *d, uint64_t *ret_next_usec) {
        S3Target *t = target(d);
        const Config *config = d->shared->config;
        uint64_t now = destination_boottime_usec(d);
        if (!t->swept_ours && now >= t->ours_usec) {
                /* uploads of ours that the ledger does not know: of a database that was lost, or of
                 * a Create whose answer was lost */
                t->swept_ours = true;
                if (start_sweep(d, CLEANUP_OURS, &(S3SweepOptions){ .prefix = t->fixed }))
                        return true;
        }
        if (now >= t->aborts_usec && start_next_abort(d))
                return true;
        if (config->retry.orphan_age_usec > 0 && now >= t->reap_usec) {
                t->reap_usec = now + MAX(MIN(config->retry.orphan_age_usec / 4, REAP_MAX_USEC),
                                         REAP_MIN_USEC);
                if (start_sweep(d, CLEANUP_ORPHANS,
                                &(S3SweepOptions){ .prefix = t->fixed,
                                                   .min_age_usec = config->retry.orphan_age_usec }))
                        return true;
        }
        *ret_next_usec = config->retry.orphan_age_usec > 0 ? t->reap_usec : USEC_INFINITY;
        if (now < t->aborts_usec)
                *ret_next_usec = MIN(*ret_next_usec, t->aborts_usec);
        if (!t->swept_ours)
                *ret_next_usec = MIN(*ret_next_usec, MAX(t->ours_usec, now + USEC_PER_SEC));
        return false;
}

/* ---- the operations of the bucket ---- */

static uint64_t s3_memory_bytes(const Destination *d) {
        const DestinationShared *s = d->shared;
        DeliveryS3Memory m = { .part_bytes =
                                       packer_part_bytes_max(d->config->part_size_bytes, 0, 0),
                               .connections = (unsigned)d->config->connections,
                               .level = (int)s->config->limits.compression_level,
                               .n_compressors = s->n_compressors };
        uint64_t wanted = (m.connections + 1) * m.part_bytes +
                          bundle_writer_memory_best(m.level, m.n_compressors),
                 writer;
        m.bytes = MIN(wanted, destination_memory_share(s));
        unsigned n = delivery_s3_buffers(&m, &writer);
        return n > 0 ? n * m.part_bytes + writer : delivery_s3_memory_min(m.part_bytes, m.level);
}

static char *s3_format_location(const Destination *d, const char *directory, const char *name) {
        return strbuf_format("s3://%s/%s/%s", d->config->bucket, directory, name);
}

static int s3_delivery_new(Destination *d, const Bundle *b, const char *directory, Delivery **ret) {
        DeliveryS3 *x = calloc(1, sizeof *x);
        if (!x)
                return -ENOMEM;
        x->at = d;
        x->client = target(d)->client;
        x->store = d->shared->store;
        x->part_size = d->config->part_size_bytes;
        /* What is older than this run may have been delivered by one whose state is lost. */
        x->is_fresh = !bundle_has_begun(b) && b->rec.oldest_mtime_usec >= d->shared->started_usec;
        x->base.work = (WorkJob){ .run = run_work, .done = on_work_done };
        x->signature =
                packer_signature((int)d->shared->config->limits.compression_level, x->part_size);
        int r = x->signature ? destination_init_delivery(d, &x->base, b, directory) : -ENOMEM;
        if (r < 0) {
                free(x->signature);
                free(x);
                return r;
        }
        *ret = &x->base;
        return 0;
}

static void s3_on_delivered(Destination *d, const char *bundle) {
        int r = store_ledger_end(d->shared->store, bundle, d->config->name);
        if (r < 0)
                log_dump(bundle, LOG_WARNING, r,
                         "%s: cannot clear its upload's ledger; an upload that is complete is "
                         "aborted later, without effect",
                         d->config->name);
}

static bool s3_stats(const Destination *d, S3Stats *ret) {
        if (target(d)->client)
                s3_client_stats(target(d)->client, ret);
        return target(d)->client;
}

const DestinationType destination_s3_type = {
        .name = "s3",
        .is_shared = true,
        .can_interrupt = true,
        .stall_text = "the store does not answer",
        .cut_text = "interrupted, will be resumed",
        .worker_name = "nc-pack",
        .open = s3_open,
        .stop = s3_stop,
        .close = s3_close,
        .probe = s3_start_probe,
        .clean_up = s3_clean_up,
        .memory_bytes = s3_memory_bytes,
        .format_location = s3_format_location,
        .delivery_new = s3_delivery_new,
        .delivery_start = s3_delivery_start,
        .delivery_abort = s3_delivery_abort,
        .delivery_wind_down = s3_delivery_wind_down,
        .delivery_free = s3_delivery_free,
        .refresh = s3_refresh,
        .awaits_destination = s3_awaits_store,
        .on_delivered = s3_on_delivered,
        .stats = s3_stats,
};
