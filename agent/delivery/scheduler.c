/* Who goes when: a destination's next bundle, what has to come before it, and when a large one makes room. */
#include "agent/delivery/scheduler.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/random.h>

#include "agent/delivery/destination.h"
#include "agent/store/ledger.h"
#include "config/forms.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/bundle/writer.h"
#include "lib/event/timer.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "uploaders/backoff.h"
#include "uploaders/uploader.h"

/* A volume gets a second worker where a destination's share of limits.memory is this many times what that one needs. */
#define SECOND_WORKER_SHARE 3

static DeliveryRecord *pipeline_delivery(const Bundle *b, const char *destination) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (strcmp(b->rec.deliveries[i].destination, destination) == 0)
                        return &b->rec.deliveries[i];
        return NULL;
}

size_t pipeline_tries_index(const Bundle *b, const DeliveryRecord *delivery) {
        return MIN((size_t)(delivery - b->rec.deliveries), (size_t)BUNDLE_TRIES_MAX - 1);
}

static BundleTries *pipeline_tries(Bundle *b, const DeliveryRecord *delivery) {
        return &b->tries[pipeline_tries_index(b, delivery)];
}

Destination *pipeline_find_destination(const Pipeline *p, const char *name) {
        for (size_t i = 0; i < p->n_destinations; i++)
                if (strcmp(p->destinations[i].config->name, name) == 0)
                        return &p->destinations[i];
        return NULL;
}

bool pipeline_has_given_up(const Pipeline *p, const DeliveryRecord *delivery) {
        return delivery->state != DELIVERY_DONE &&
               delivery->attempts >= p->config->retry.quarantine_after;
}

static bool pipeline_has_given_up_all(const Pipeline *p, const Bundle *b) {
        bool any = false;
        for (size_t i = 0; i < b->rec.n_deliveries; i++) {
                if (b->rec.deliveries[i].state == DELIVERY_DONE)
                        continue;
                if (!pipeline_has_given_up(p, &b->rec.deliveries[i]))
                        return false;
                any = true;
        }
        return any;
}

/* ---- what a delivery needs ---- */

uint64_t pipeline_memory_share(const Pipeline *p) {
        return (p->config->limits.memory_bytes - p->memory_reserved) /
               MAX(p->n_destinations, (size_t)1);
}

/* One delivery that cannot do with less may take what limits.memory_max allows. */
static uint64_t memory_limit(const Pipeline *p, uint64_t wanted_bytes) {
        return wanted_bytes > p->config->limits.memory_bytes ? p->config->limits.memory_max_bytes
                                                             : p->config->limits.memory_bytes;
}

static bool pipeline_has_memory(const Pipeline *p, uint64_t bytes) {
        return p->memory_used + bytes <= memory_limit(p, bytes);
}

int pipeline_reserve(ShipJob *s, uint64_t bytes, uint64_t *ret_limit) {
        Pipeline *p = ((Destination *)s->owner)->pipeline;
        uint64_t others = p->memory_used - s->memory_bytes;
        *ret_limit = memory_limit(p, bytes);
        if (bytes > *ret_limit)
                return -EOVERFLOW;
        if (others + bytes > *ret_limit) {
                p->waits_for_memory = s->owner;
                return -EAGAIN;
        }
        p->waits_for_memory = NULL;
        p->memory_used = others + bytes;
        s->memory_bytes = bytes;
        return 0;
}

static void pipeline_kick_in(Destination *d, uint64_t usec);
static void pipeline_destination_kick(Destination *d);
static char *pipeline_directory(const Destination *d, const Bundle *b);
static void pipeline_settle_order(Pipeline *p, Bundle *b);
static void pipeline_take_along(Pipeline *p, const Bundle *b, ShipJob *s);
static void pipeline_destination_is_well(Destination *d);
static uint64_t backoff(const Pipeline *p, unsigned n);
static void pipeline_destination_is_ill(Destination *d, int outcome, const char *error);
static void pipeline_leave_shipping(Pipeline *p, Bundle *b, BundleState to, const char *reason);
static void pipeline_take_answer(Destination *d, Bundle *b, ShipJob *s);

void pipeline_probed(Destination *d, int outcome, const char *error) {
        d->probing = false;
        if (outcome == 0) {
                d->proven = true;
                if (!d->ship_failed)
                        pipeline_destination_is_well(d);
        } else
                pipeline_destination_is_ill(d, outcome,
                                            error ? error : strerror(outcome < 0 ? -outcome : EIO));
        pipeline_kick(d->pipeline); /* its second one, too */
}

void pipeline_tidied(Destination *d) {
        d->tidying = false;
        pipeline_kick_in(d, 0); /* it may be telling us from inside of what it would free */
}

static void pipeline_shipped(ShipJob *s) {
        Destination *d = s->owner;
        Pipeline *p = d->pipeline;
        Bundle *b = d->bundle;
        d->running = NULL;
        d->bundle = NULL;
        d->is_winding_down = false;
        p->memory_used -= s->memory_bytes;
        (void)store_begin(
                p->context.store); /* figures, no evidence: a failure only makes them low */
        (void)store_counter_add(p->context.store, "bytes_read", atomic_load(&s->read_bytes));
        (void)store_counter_add(p->context.store, "bytes_sent", atomic_load(&s->sent_bytes));
        (void)store_commit(p->context.store);
        pipeline_take_answer(d->head, b, s);
        d->type->ship_free(s);
        pipeline_kick(p);
}

/* ---- starting ---- */

static void mark_shipping(const Destination *d, Bundle *b, DeliveryRecord *delivery,
                          const char *directory) {
        BundleTable *bundles = d->pipeline->context.bundles;
        _cleanup_free_ char *name = bundle_object_name(b->rec.id);
        free(delivery->object);
        delivery->object = name ? d->type->where(d, directory, name) : NULL;
        (void)bundle_set_delivery_state(b, delivery,
                                        DELIVERY_SHIPPING); /* a refused move is logged there */
        b->n_running++;
        if (b->rec.state == BUNDLE_READY) /* as above */
                (void)bundle_set_state(bundles, b, BUNDLE_SHIPPING, NULL);
        else
                bundle_save(bundles, b);
}

static int begin(Destination *d, Bundle *b, ShipJob *s) {
        Pipeline *p = d->pipeline;
        d->running = s;
        d->bundle = b;
        p->memory_used += s->memory_bytes;
        int r = d->type->ship_begin(d, s);
        if (r >= 0)
                return r;
        (void)ship_endf(s, SHIP_RESOURCES, "cannot start a thread: %s", strerror(-r));
        d->head->not_before_usec = pipeline_boot_usec(p) + USEC_PER_SEC;
        d->running = NULL;
        d->bundle = NULL;
        p->memory_used -= s->memory_bytes;
        pipeline_take_answer(d->head, b, s);
        d->type->ship_free(s);
        return r;
}

static int pipeline_start(Destination *d, Bundle *b) {
        Pipeline *p = d->pipeline;
        DeliveryRecord *delivery = pipeline_delivery(b, d->config->name);
        pipeline_settle_order(p, b);
        _cleanup_free_ char *directory = pipeline_directory(d, b);
        if (!directory)
                return -ENOMEM;
        ShipOrder order = { .bundle = b,
                            .terms = p->context.source_terms(b),
                            .clock = p->context.clock,
                            .directory = directory,
                            .instance_id = p->context.instance_id,
                            .hostname = p->context.hostname,
                            .labels = p->config->node.labels.items,
                            .compressors = p->compressors,
                            .limits = p->limits,
                            .level = (int)p->config->limits.compression_level,
                            .memory_bytes = d->type->memory(d) };
        ShipJob *s;
        int r = d->type->ship_new(d, &order, &s);
        if (r < 0)
                return r;
        pipeline_take_along(p, b, s);
        mark_shipping(d, b, delivery, directory);
        s->owner = d;
        s->on_done = pipeline_shipped;
        s->begun_usec = pipeline_boot_usec(p);
        return begin(d, b, s);
}

static void forget_failures(Pipeline *p, Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                b->rec.deliveries[i].attempts = 0;
        memset(b->tries, 0, sizeof b->tries);
        b->rec.attempts = 0;
        bundle_save(p->context.bundles, b);
}

void pipeline_retry_now(Pipeline *p, Bundle *b) {
        for (size_t i = 0; i < p->n_all; i++) {
                p->destinations[i].not_before_usec = 0;
                p->destinations[i].jitter_until_usec = 0;
        }
        LIST_FOREACH (l, bundle_table_all(p->context.bundles)) {
                Bundle *other = CONTAINER_OF(l, Bundle, link);
                for (size_t i = 0; (!b || b == other) && i < other->rec.n_deliveries; i++)
                        other->rec.deliveries[i].next_try_usec = 0;
        }
        if (b)
                forget_failures(p, b);
        pipeline_kick(p);
}

bool pipeline_abort(Pipeline *p, Bundle *b) {
        bool any = false;
        for (size_t i = 0; i < p->n_all; i++)
                if (p->destinations[i].bundle == b) {
                        p->destinations[i].type->ship_abort(p->destinations[i].running);
                        any = true;
                }
        return any;
}

/* ---- life ---- */

static unsigned count_compressors(const Config *config) {
        if (config->limits.compression_threads > 0)
                return (unsigned)config->limits.compression_threads;
        cpu_set_t set;
        int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
        return MAX((unsigned)n / 4, 1U);
}

/* A key's template is a path's without its first slash. */
static int make_template(Destination *d) {
        _cleanup_free_ char *path = NULL;
        char bad;
        if (d->config->type == CONFIG_VOLUME)
                return path_template_new(&d->template, d->config->path, FORM_DESTINATION_VARIABLES,
                                         &bad);
        if (asprintf(&path, "/%s", d->config->prefix) < 0) {
                path = NULL;
                return -ENOMEM;
        }
        return path_template_new(&d->template, path, FORM_DESTINATION_VARIABLES, &bad);
}

static int destination_init(Destination *d, Destination *head, const ConfigDestination *config) {
        *d = (Destination){ .pipeline = head->pipeline,
                            .head = head,
                            .config = config,
                            .type = config->type == CONFIG_S3 ? &destination_s3_type
                                                              : &destination_volume_type,
                            .state = DESTINATION_OK };
        int r = make_template(d);
        return r < 0 ? r : d->type->open(d);
}

/* A volume's second worker costs memory, so there has to be some. */
static int add_second_ones(Pipeline *p) {
        const Config *config = p->config;
        uint64_t bytes = bundle_writer_memory_min((int)config->limits.compression_level);
        int r = 0;
        if (pipeline_memory_share(p) < SECOND_WORKER_SHARE * bytes)
                return 0;
        for (size_t i = 0; r >= 0 && i < p->n_destinations; i++) {
                Destination *head = &p->destinations[i];
                if (head->type->can_interrupt)
                        continue;
                p->memory_reserved += bytes;
                r = destination_init(&p->destinations[p->n_all++], head, head->config);
        }
        return r;
}

int pipeline_new(Pipeline **ret, const PipelineContext *context, const Config *config) {
        Pipeline *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        *p = (Pipeline){ .context = *context,
                         .config = config,
                         .in_a_hurry = context->in_a_hurry,
                         .n_compressors = count_compressors(config) };
        int r = limits_new(&p->limits, context->clock, config);
        if (r >= 0)
                atomic_store(&p->limits->in_a_hurry, p->in_a_hurry);
        p->destinations = calloc(2 * config->n_destinations + 1, sizeof *p->destinations);
        if (r >= 0)
                r = p->destinations ? worker_pool_new(&p->compressors, NULL, "nc-zstd",
                                                      p->n_compressors, WORKER_IDLE)
                                    : -ENOMEM;
        for (size_t i = 0; r >= 0 && i < config->n_destinations; i++) {
                Destination *d = &p->destinations[i];
                p->n_destinations = p->n_all = i + 1;
                d->pipeline = p;
                r = destination_init(d, d, &config->destinations[i]);
        }
        if (r >= 0)
                r = add_second_ones(p);
        if (r < 0) {
                pipeline_free(p);
                return r;
        }
        *ret = p;
        return 0;
}

/* @return whether it came back in time */
static bool wait_for_worker(const Destination *d, uint64_t until_usec) {
        Clock *clock = d->pipeline->context.clock;
        while (d->type->is_busy(d) && clock->boottime_usec(clock) < until_usec)
                (void)usleep(5 * USEC_PER_MSEC); /* the loop is over: nothing else is to be done */
        return !d->type->is_busy(d);
}

/* @return whether it hangs: then what its worker uses stays */
static bool destination_done(Destination *d, uint64_t until_usec) {
        bool hung = false;
        if (d->target) {
                hung = !wait_for_worker(d, until_usec);
                d->type->stop(d, hung);
        }
        if (d->bundle) {
                d->bundle->n_running--;
                (void)bundle_set_delivery_state(
                        d->bundle, pipeline_delivery(d->bundle, d->config->name), DELIVERY_PENDING);
                pipeline_leave_shipping(d->pipeline, d->bundle, BUNDLE_READY, d->type->cut_text);
        }
        if (hung)
                log_warning(0,
                            "destination %s: did not stop within 5 s, leaving its worker behind; "
                            "what it was shipping starts over",
                            d->config->name);
        else if (d->target) {
                d->type->ship_free(d->running);
                d->type->close(d);
        }
        sd_event_source_disable_unref(d->timer);
        path_template_free(d->template);
        free(d->last_error);
        return hung;
}

Pipeline *pipeline_free(Pipeline *p) {
        if (!p)
                return NULL;
        p->stopping = true;
        for (size_t i = 0; i < p->n_all; i++)
                if (p->destinations[i].running)
                        atomic_store(&p->destinations[i].running->abort, true);
        uint64_t until =
                p->stop_usec > 0 ? p->stop_usec : pipeline_boot_usec(p) + PIPELINE_STOP_USEC;
        bool hung = false;
        for (size_t i = 0; i < p->n_all; i++)
                hung |= destination_done(&p->destinations[i], until);
        if (!hung) /* a hung worker may still come to compress */
                worker_pool_free(p->compressors);
        limits_unref(p->limits);
        free(p->destinations);
        free(p);
        return NULL;
}

void pipeline_forget(Pipeline *p, const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++) {
                int r = store_ledger_abandon(p->context.store, b->rec.id,
                                             b->rec.deliveries[i].destination);
                if (r < 0)
                        log_dump(b->rec.id, LOG_WARNING, r,
                                 "cannot write down that its upload is to be aborted");
        }
}

void pipeline_rebind(Pipeline *p, const Config *config) {
        p->config = config;
        for (size_t i = 0; i < p->n_destinations; i++)
                p->destinations[i].config = &config->destinations[i];
        for (size_t i = p->n_destinations; i < p->n_all; i++)
                p->destinations[i].config = p->destinations[i].head->config;
}

/* A large bundle gets on for so long before a small one goes in between, and for ten times as long as it takes to begin again. */
#define LARGE_TURN_USEC (10 * USEC_PER_SEC)
#define LARGE_TURN_SETUPS 10

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source;
        (void)usec;
        pipeline_destination_kick(userdata);
        return 0;
}

static void pipeline_kick_in(Destination *d, uint64_t usec) {
        int r = timer_arm(&d->timer, &(TimerOrder){ .event = d->pipeline->context.event,
                                                    .usec = usec,
                                                    .handler = on_timer,
                                                    .userdata = d });
        if (r < 0)
                log_error(r, "destination %s: cannot arm a timer", d->config->name);
}

/* Given up here while others have yet to try. One that is given up everywhere and READY nevertheless (quarantine_after was lowered) is
 * tried once more: the failure puts it into quarantine. */
static bool is_to_be_left(const Pipeline *p, const Bundle *b, const DeliveryRecord *delivery) {
        return pipeline_has_given_up(p, delivery) &&
               (b->n_running > 0 || !pipeline_has_given_up_all(p, b));
}

static bool is_small(const Bundle *b) {
        return turns_is_small(b->rec.n_files, b->rec.bytes);
}

/* @return the delivery when it waits for nothing but its turn, or for time to pass (*ret_wait_usec); else NULL */
static const DeliveryRecord *waiting_delivery(const Destination *d, const Bundle *b,
                                              uint64_t now_usec, uint64_t *ret_wait_usec) {
        if ((b->rec.state != BUNDLE_READY && b->rec.state != BUNDLE_SHIPPING) || !b->source ||
            b->cancel || b->has_wish)
                return NULL;
        const DeliveryRecord *delivery = pipeline_delivery(b, d->config->name);
        if (!delivery || delivery->state != DELIVERY_PENDING ||
            is_to_be_left(d->pipeline, b, delivery))
                return NULL;
        /* A clock that was set back must not make a bundle wait for longer than the longest backoff. */
        uint64_t wait = delivery->next_try_usec > now_usec ? delivery->next_try_usec - now_usec : 0;
        *ret_wait_usec = MIN(wait, d->pipeline->config->retry.maximum_usec);
        return delivery;
}

/* @return the oldest of a queue that may go now and is small, or is not; NULL: there is none
 * @param wait_usec  lowered to when the next one may, of those that were looked at */
static Bundle *first_of(const Destination *d, const BundleQueue *q, bool small,
                        uint64_t *wait_usec) {
        uint64_t now = pipeline_realtime_usec(d->pipeline), wait;
        LIST_FOREACH (l, &q->bundles) {
                Bundle *b = CONTAINER_OF(l, Bundle, queue_link);
                if (is_small(b) != small || !waiting_delivery(d, b, now, &wait))
                        continue;
                if (wait == 0)
                        return b;
                *wait_usec = MIN(*wait_usec, wait);
        }
        return NULL;
}

static Bundle *pick_among(const Destination *d, bool small, uint64_t *wait_usec) {
        const Turns *t = &d->head->turns;
        size_t n;
        BundleQueue *const *queues = bundle_table_queues(d->pipeline->context.bundles, &n);
        Bundle *best = NULL;
        uint64_t best_served = 0;
        for (size_t i = 0; i < n; i++) {
                Bundle *b = first_of(d, queues[i], small, wait_usec);
                uint64_t served = b ? turns_served_at(t, queues[i]) : 0;
                if (b && (!best || served < best_served ||
                          (served == best_served &&
                           b->rec.first_seen_usec < best->rec.first_seen_usec))) {
                        best = b;
                        best_served = served;
                }
        }
        return best;
}

/* @return whose turn it is; NULL: nobody may go now, and *ret_wait_usec tells when the next one may */
static Bundle *pick(const Destination *d, uint64_t *ret_wait_usec) {
        bool small_first = turns_is_small_ones(&d->head->turns);
        *ret_wait_usec = USEC_INFINITY;
        Bundle *b = d != d->head ? pick_among(d, true, ret_wait_usec)
                                 : pick_among(d, small_first, ret_wait_usec);
        return b || d != d->head ? b : pick_among(d, !small_first, ret_wait_usec);
}

/* Asks what is at work to make room when it has had its time and a small one waits. */
static void make_room(Destination *d) {
        const ShipJob *s = d->running;
        uint64_t now = pipeline_boot_usec(d->pipeline), wait = USEC_INFINITY;
        if (!d->type->can_interrupt || d->is_winding_down || is_small(d->bundle))
                return;
        if (!pick_among(d, true, &wait)) {
                if (wait != USEC_INFINITY) /* one that failed before may go again then */
                        pipeline_kick_in(d, wait);
                return;
        }
        uint64_t turn = MAX(LARGE_TURN_USEC, LARGE_TURN_SETUPS * s->setup_usec);
        uint64_t until = s->begun_usec + turn;
        if (s->setup_usec == 0 || now < until) {
                pipeline_kick_in(d, now < until ? until - now : USEC_PER_SEC);
                return;
        }
        log_dump(d->bundle->rec.id, LOG_DEBUG, 0, "%s: makes room for smaller ones",
                 d->config->name);
        d->is_winding_down = true;
        d->type->ship_wind_down(d->running);
}

/* The first of several that were waited for at the same moment on many nodes. @return whether it is put off */
static bool put_off_for_others(Destination *d) {
        Pipeline *p = d->pipeline;
        uint64_t now = pipeline_boot_usec(p);
        if (!d->type->is_shared || p->in_a_hurry)
                return false;
        if (!d->has_waited) {
                d->has_waited = true;
                d->jitter_until_usec =
                        now + pipeline_random() % MAX(p->config->retry.initial_usec, UINT64_C(1));
        }
        if (now >= d->jitter_until_usec)
                return false;
        pipeline_kick_in(d, d->jitter_until_usec - now);
        return true;
}

static void start_probe(Destination *d) {
        d->probe_begun_usec = pipeline_boot_usec(d->pipeline);
        d->probing = d->type->probe(d) == 0;
        if (!d->probing)
                pipeline_kick_in(d, USEC_PER_SEC);
}

/* What comes before a delivery. @param ret_tidy_wait_usec  when there may be something to tidy up again
 * @return whether one may begin now; else what was begun, or a timer, kicks */
static bool is_prepared(Destination *d, uint64_t *ret_tidy_wait_usec) {
        const Destination *head = d->head;
        uint64_t now = pipeline_boot_usec(d->pipeline), tidy_usec = USEC_INFINITY;
        *ret_tidy_wait_usec = USEC_INFINITY;
        if (d != head) /* the head kicks it */
                return head->proven && !head->probing && now >= head->not_before_usec;
        if (d->probing || d->tidying)
                return false;
        if (now < d->not_before_usec) {
                pipeline_kick_in(d, d->not_before_usec - now);
                return false;
        }
        if (!d->proven) {
                if (!put_off_for_others(d))
                        start_probe(d);
                return false;
        }
        d->tidying = d->type->tidy(d, &tidy_usec);
        if (d->tidying)
                return false;
        if (tidy_usec != USEC_INFINITY) { /* whatever comes first arms the timer anew */
                *ret_tidy_wait_usec = tidy_usec > now ? tidy_usec - now : 0;
                pipeline_kick_in(d, *ret_tidy_wait_usec);
        }
        return true;
}

static void rest(Destination *d, uint64_t wait_usec, uint64_t tidy_wait_usec) {
        Pipeline *p = d->pipeline;
        if (p->waits_for_memory == d && wait_usec > USEC_PER_SEC) /* nobody waits for it now */
                p->waits_for_memory = NULL;
        if (wait_usec != USEC_INFINITY) {
                pipeline_kick_in(d, MIN(wait_usec, tidy_wait_usec));
                return;
        }
        d->has_waited = false;
        if (d == d->head &&
            d->ship_failed) /* nobody waits for it any more, and it can be written */
                pipeline_destination_is_well(d);
}

static void pipeline_destination_kick(Destination *d) {
        Pipeline *p = d->pipeline;
        uint64_t wait, tidy_wait;
        if (p->stopping)
                return;
        if (d->running) {
                make_room(d);
                return;
        }
        if (!is_prepared(d, &tidy_wait)) {
                if (p->waits_for_memory == d)
                        p->waits_for_memory = NULL;
                return;
        }
        if (p->waits_for_memory && p->waits_for_memory != d)
                return; /* kicked when it has got on */
        if (!pipeline_has_memory(p, d->type->memory(d)))
                return; /* whoever comes back kicks */
        if (p->in_a_hurry)
                d->head->turns.n_small_in_row = 0; /* small ones first, as long as there are any */
        Bundle *b = pick(d, &wait);
        if (!b) {
                rest(d, wait, tidy_wait);
                return;
        }
        if (put_off_for_others(d))
                return;
        turns_took(&d->head->turns, bundle_table_queue_of(p->context.bundles, b), is_small(b));
        int r = pipeline_start(d, b);
        if (r < 0) {
                log_dump(b->rec.id, LOG_ERR, r, "cannot start to ship it, trying again");
                pipeline_kick_in(d, USEC_PER_SEC);
        } else
                make_room(d); /* when a small one may be waiting for its time */
}

void pipeline_kick(Pipeline *p) {
        for (size_t i = 0; i < p->n_all; i++)
                pipeline_destination_kick(&p->destinations[i]);
}

/* A node that goes is not the job's any more: then deliveries get what a normal process gets. --once is in a hurry beside a job. */
static void set_priority(Pipeline *p, WorkerPriority priority) {
        worker_pool_set_priority(p->compressors, priority);
        for (size_t i = 0; i < p->n_all; i++)
                worker_pool_set_priority(p->destinations[i].type->worker(&p->destinations[i]),
                                         priority);
}

void pipeline_set_hurry(Pipeline *p, bool in_a_hurry) {
        p->in_a_hurry = in_a_hurry;
        atomic_store(&p->limits->in_a_hurry, in_a_hurry);
        set_priority(p, in_a_hurry ? WORKER_NORMAL : WORKER_IDLE);
        pipeline_kick(p);
}

void pipeline_wind_down(Pipeline *p) {
        p->stopping = true;
        set_priority(p, WORKER_NORMAL);
        p->stop_usec = pipeline_boot_usec(p) + PIPELINE_STOP_USEC;
        for (size_t i = 0; i < p->n_all; i++) {
                Destination *d = &p->destinations[i];
                if (d->running && !d->is_winding_down) {
                        d->is_winding_down = true;
                        d->type->ship_wind_down(d->running);
                }
        }
}

void pipeline_go_on(Pipeline *p) {
        p->stopping = false;
        p->stop_usec = 0;
        set_priority(p, p->in_a_hurry && !p->context.in_a_hurry ? WORKER_NORMAL : WORKER_IDLE);
        pipeline_kick(p);
}

bool pipeline_is_still(const Pipeline *p) {
        for (size_t i = 0; i < p->n_all; i++)
                if (p->destinations[i].running)
                        return false;
        return true;
}

bool turns_is_small(uint64_t n_files, uint64_t bytes) {
        return n_files <= TURNS_SMALL_FILES && bytes <= TURNS_SMALL_BYTES;
}

bool turns_is_small_ones(const Turns *t) {
        return t->n_small_in_row < TURNS_SMALL_IN_ROW;
}

uint64_t turns_served_at(const Turns *t, const void *source) {
        for (size_t i = 0; i < t->n_served; i++)
                if (t->served[i].source == source)
                        return t->served[i].turn;
        return 0;
}

void turns_took(Turns *t, const void *source, bool is_small) {
        size_t i = 0;
        t->n_small_in_row = is_small ? t->n_small_in_row + 1 : 0;
        while (i < t->n_served && t->served[i].source != source)
                i++;
        i = MIN(i, (size_t)TURNS_SOURCES_MAX - 1);
        t->n_served = MAX(t->n_served, i + 1);
        t->served[i].source = source;
        t->served[i].turn = ++t->n;
}

/* What a delivery takes along beside the members of the source, and where it goes. Settled before the first delivery of a bundle begins and the same
 * for all that follow, after a crash too: an object that was begun with one plan under one name must never meet another. */

static char *directory_of_template(const Destination *d, const Bundle *b) {
        const PipelineContext *c = &d->pipeline->context;
        _cleanup_free_ char *path =
                bundle_directory(d->template,
                                 &(BundleOrigin){ .kind = b->rec.kind,
                                                  .source = b->rec.source,
                                                  .instance_id = c->instance_id,
                                                  .hostname = c->hostname },
                                 &(BundlePlace){ .date_time = b->rec.date_time,
                                                 .cluster_id = b->rec.cluster_id,
                                                 .oldest_mtime_usec = b->rec.oldest_mtime_usec,
                                                 .uid = b->rec.uid });
        if (!path)
                return NULL;
        const char *below = path + strlen(d->type->root(d));
        while (*below == '/')
                below++;
        return strdup(below);
}

static char *pipeline_directory(const Destination *d, const Bundle *b) {
        char *directory = NULL;
        if (b->rec.s3_prefix && d->config->type == CONFIG_S3 &&
            bundle_directory_of_prefix(b->rec.s3_prefix, d->config->bucket,
                                       d->pipeline->context.instance_id, &directory) < 0)
                return NULL;
        return directory ? directory : directory_of_template(d, b);
}

static void pipeline_settle_order(Pipeline *p, Bundle *b) {
        const Attachments *a = p->context.attachments;
        const BundleRecord *rec = &b->rec;
        int fd = bundle_has_begun(b) ? attachments_given(a, rec->source, rec->path, rec->id)
                                     : attachments_give(a, rec->source, rec->path, rec->id);
        if (fd >= 0)
                (void)close(fd); /* a directory; each delivery opens its own */
        else if (fd != -ENOENT)
                log_dump(b->rec.id, LOG_WARNING, fd,
                         "cannot add what was collected for it; that follows in a supplement");
}

static void pipeline_take_along(Pipeline *p, const Bundle *b, ShipJob *s) {
        if (b->rec.supplement_of[0])
                (void)store_get_earlier_prints(p->context.store, &b->rec, &s->shipped,
                                               &s->n_shipped); /* none: all is new */
        int fd = attachments_given(p->context.attachments, b->rec.source, b->rec.path, b->rec.id);
        if (fd >= 0)
                s->attached_fd = fd;
        int r = ship_notes_read(&s->notes, p->context.store, b);
        if (r < 0)
                log_dump(b->rec.id, LOG_WARNING, r,
                         "cannot read what the hook told of it; the manifest goes without");
}

/* What an answer of a worker means: for the destination, for the delivery, for the bundle. */

/* A destination that can be written, as its probe says after each of so many failures in a row of one bundle, is not what fails. */
#define AWAY_MAX 3
/* What somebody has to mend is tried as slowly from the first as what has failed so often already. */
#define SLOW_HEAD_START 3
/* So often it is looked whether memory, threads or the state directory have room again. */
#define SHORTAGE_USEC (30 * USEC_PER_SEC)

uint64_t pipeline_random(void) {
        uint64_t r = 0;
        (void)!getrandom(&r, sizeof r, 0); /* 0 only means no jitter */
        return r;
}

static void set_error(char **to, const char *text) {
        free(*to);
        *to = text ? strdup(text) : NULL;
}

const char *pipeline_destination_state_name(DestinationState s) {
        static const char *const names[N_DESTINATION_STATES] = {
                [DESTINATION_OK] = "ok",
                [DESTINATION_PAUSED] = "paused",
                [DESTINATION_FAILING] = "failing",
        };
        return names[s];
}

/* Every state may follow every other: what was tried last tells. */
static void set_state(Destination *d, DestinationState to) {
        if (d->state != to)
                log_debug("destination %s: %s", d->config->name,
                          pipeline_destination_state_name(to));
        d->state = to;
}

static void pipeline_destination_is_well(Destination *d) {
        if (d->n_failures > 0)
                log_notice("destination %s: works again", d->config->name);
        set_state(d, DESTINATION_OK);
        d->n_failures = 0;
        d->not_before_usec = 0;
        d->ship_failed = false;
        set_error(&d->last_error, NULL);
}

static uint64_t backoff(const Pipeline *p, unsigned n) {
        return backoff_next_usec(n, p->config->retry.initial_usec, p->config->retry.maximum_usec,
                                 pipeline_random());
}

static void pipeline_destination_is_ill(Destination *d, int outcome, const char *error) {
        bool waits_for_people = outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_DENIED;
        d->n_failures++;
        uint64_t wait =
                backoff(d->pipeline, d->n_failures + (waits_for_people ? SLOW_HEAD_START : 0));
        d->not_before_usec = pipeline_boot_usec(d->pipeline) + wait;
        set_state(d, waits_for_people ? DESTINATION_PAUSED : DESTINATION_FAILING);
        d->proven = false;
        char text[64];
        if (!d->last_error || !error ||
            strcmp(d->last_error, error) != 0) /* said once, not with every try */
                log_warning(0, "destination %s: %s; nothing is lost, trying again in %s",
                            d->config->name, error ? error : "failed",
                            clock_format_span(text, wait));
        set_error(&d->last_error, error);
        d->pipeline->n_retries[PIPELINE_RETRY_DESTINATION]++;
}

static const char *last_error_of_given_up(const Pipeline *p, const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (pipeline_has_given_up(p, &b->rec.deliveries[i]))
                        return b->rec.deliveries[i].last_error;
        return NULL;
}

/* Back from SHIPPING when its last worker came back. What one of them asked for meanwhile is not lost: no other delivery begins until
 * it is done. */
static void pipeline_leave_shipping(Pipeline *p, Bundle *b, BundleState to, const char *reason) {
        if (to == BUNDLE_SETTLING || to == BUNDLE_VANISHED) {
                if (!b->has_wish || to == BUNDLE_VANISHED) {
                        b->wish = to;
                        set_error(&b->rec.reason, reason);
                }
                b->has_wish = true;
        }
        if (b->n_running > 0) {
                bundle_save(p->context.bundles, b);
                return;
        }
        if (b->cancel)
                to = BUNDLE_CANCELLED, reason = "cancelled by the operator";
        else if (b->has_wish)
                to = b->wish, reason = b->rec.reason;
        else if (to == BUNDLE_READY && !p->stopping && pipeline_has_given_up_all(p, b))
                to = BUNDLE_QUARANTINED, reason = last_error_of_given_up(p, b);
        b->has_wish = false;
        if (to == BUNDLE_SETTLING && b->source)
                p->context.on_changed(b, reason);
        else /* without its source nobody would look at it again: it waits as READY */
                (void)bundle_set_state(p->context.bundles, b,
                                       to == BUNDLE_SETTLING ? BUNDLE_READY : to,
                                       reason); /* a refused move is logged there */
}

static bool all_delivered(const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        return false;
        return true;
}

static bool is_delivered_elsewhere(const Bundle *b, const DeliveryRecord *but) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (&b->rec.deliveries[i] != but && b->rec.deliveries[i].state == DELIVERY_DONE)
                        return true;
        return false;
}

/* What intake sees of the unit: attachments are none of it. */
static uint64_t sum_of_source(const ShipJob *s) {
        uint64_t sum = 0;
        for (size_t i = 0; i < s->n_prints; i++)
                if (!member_fingerprints_have(s->attached_prints, s->n_attached_prints,
                                              s->prints[i]))
                        sum += s->prints[i];
        return sum;
}

/* Keeps of `a` what is in `b` too; both are sorted. @return how many */
static size_t intersect(uint64_t *a, size_t n_a, const uint64_t *b, size_t n_b) {
        size_t n = 0;
        for (size_t i = 0, k = 0; i < n_a; i++) {
                while (k < n_b && b[k] < a[i])
                        k++;
                if (k < n_b && b[k] == a[i])
                        a[n++] = a[i];
        }
        return n;
}

/* Shipped is what every destination so far has: the source may have changed between two of them. What one of them lacks then follows
 * as a supplement, since the unit's digest is no longer the bundle's. */
static int note_prints(Pipeline *p, Bundle *b, const DeliveryRecord *delivery, ShipJob *s) {
        if (is_delivered_elsewhere(b, delivery)) {
                _cleanup_free_ uint64_t *before = NULL;
                size_t n_before = 0, n = s->n_prints;
                int r = store_get_prints(p->context.store, b->rec.id, &before, &n_before);
                if (r < 0)
                        n_before = 0; /* rather shipped twice than never */
                s->n_prints = intersect(s->prints, n, before, n_before);
                s->digest = sum_of_source(s);
                if (s->n_prints < n || n_before > s->n_prints)
                        b->dirty = true; /* to be looked at as soon as it is through */
        }
        b->dirty = b->dirty || s->has_more;
        b->rec.digest = s->digest;
        return store_put_prints(p->context.store, b->rec.id, s->prints, s->n_prints);
}

static unsigned attempts_of(const Bundle *b) {
        unsigned n = 0;
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        n += b->rec.deliveries[i].attempts;
        return n;
}

static const char *proof_text(Proof proof) {
        return proof == PROOF_READBACK ? "read back and proven"
               : proof == PROOF_HEAD   ? "proven by HEAD"
                                       : "proven by the store's answer (HEAD is not permitted)";
}

static void take_delivered(Destination *d, Bundle *b, DeliveryRecord *delivery, ShipJob *s) {
        Pipeline *p = d->pipeline;
        (void)bundle_set_delivery_state(b, delivery,
                                        DELIVERY_DONE); /* a refused move is logged there */
        delivery->proof = s->proof;
        delivery->bytes = s->object_bytes;
        delivery->done_usec = pipeline_realtime_usec(p);
        delivery->next_try_usec = 0;
        set_error(&delivery->last_error, NULL);
        b->rec.complete = s->complete;
        set_error(&b->rec.incomplete, s->incomplete);
        b->rec.attempts = attempts_of(b);
        *pipeline_tries(b, delivery) = (BundleTries){ 0 };
        _cleanup_free_ char *counter = NULL;
        if (asprintf(&counter, "bytes_delivered:%s", d->config->name) >= 0)
                (void)store_counter_add(p->context.store, counter,
                                        s->object_bytes); /* a figure, no evidence */
        if (note_prints(p, b, delivery, s) < 0)
                log_dump(b->rec.id, LOG_WARNING, 0,
                         "cannot note which members were shipped; a later scan may ship them again "
                         "as a supplement");
        pipeline_destination_is_well(d);
        d->last_success_usec = pipeline_realtime_usec(p);
        char text[PARSE_FORMAT_SIZE];
        log_dump(b->rec.id, LOG_NOTICE, 0, "delivered to %s: '%s', %s, %s%s", d->config->name,
                 delivery->object ? delivery->object : "?",
                 parse_format_human(text, s->object_bytes), proof_text(s->proof),
                 s->complete ? "" : ", labelled incomplete");
        /* The manifest is there: whatever happens now, it says so. Before the bundle may be gone. */
        d->type->delivered(d, b->rec.id);
        if (all_delivered(b) && b->n_running == 0) {
                p->context.on_delivered(b, p->context.userdata);
                pipeline_leave_shipping(p, b, BUNDLE_DELIVERED, NULL);
                return;
        }
        bundle_save(p->context.bundles, b);
        pipeline_leave_shipping(p, b, BUNDLE_READY, "waits for its other destinations");
}

/* So that nothing is tried again at once, whatever becomes of the bundle. @return the wait */
static uint64_t put_off(const Pipeline *p, DeliveryRecord *delivery, uint64_t wait_usec) {
        delivery->next_try_usec = pipeline_realtime_usec(p) + wait_usec;
        return wait_usec;
}

static void take_failure(Destination *d, Bundle *b, DeliveryRecord *delivery, const ShipJob *s) {
        Pipeline *p = d->pipeline;
        const char *error = s->error ? s->error : "failed";
        delivery->attempts++;
        b->rec.attempts = attempts_of(b);
        pipeline_tries(b, delivery)->failed = true;
        set_error(&delivery->last_error, error);
        uint64_t wait = put_off(p, delivery, backoff(p, delivery->attempts));
        char text[64];
        if (pipeline_has_given_up(p, delivery))
                log_dump(b->rec.id, LOG_ERR, 0,
                         "%s: given up after %u failures: %s; mend it, then `neuron-collect retry "
                         "%s`",
                         d->config->name, delivery->attempts, error, b->rec.id);
        else {
                p->n_retries[PIPELINE_RETRY_BUNDLE]++;
                log_dump(b->rec.id, LOG_WARNING, 0, "%s: %s; trying again in %s", d->config->name,
                         error, clock_format_span(text, wait));
        }
        pipeline_leave_shipping(p, b, BUNDLE_READY, error);
}

/* The destination is at fault, unless it proves to be well each time and only this bundle keeps failing: then something of the
 * bundle's own is in the way there, and the others must not wait for it. */
static void take_destination_failure(Destination *d, Bundle *b, DeliveryRecord *delivery,
                                     const ShipJob *s) {
        Pipeline *p = d->pipeline;
        BundleTries *tries = pipeline_tries(b, delivery);
        bool waits = s->upload_outcome == UPLOAD_E_FULL || s->upload_outcome == UPLOAD_E_DENIED;
        if (!waits && tries->n_away >= AWAY_MAX) {
                d->proven = d->ship_failed = false; /* the probe alone says how it is */
                take_failure(d, b, delivery, s);
                return;
        }
        d->ship_failed = true;
        pipeline_destination_is_ill(d, s->upload_outcome, s->error);
        if (s->upload_outcome == UPLOAD_E_FULL) /* a smaller one may fit meanwhile */
                b->full_at_bytes = MAX(b->full_at_bytes, atomic_load(&s->sent_bytes));
        else if (!waits)
                tries->n_away++;
        /* others go first */
        put_off(p, delivery, 2 * (d->not_before_usec - pipeline_boot_usec(p)));
        set_error(&delivery->last_error, s->error);
        pipeline_leave_shipping(p, b, BUNDLE_READY, s->error);
}

/* Neither the bundle's nor the destination's fault: it waits, however long it takes. */
static void take_shortage(Destination *d, Bundle *b, DeliveryRecord *delivery, const ShipJob *s) {
        Pipeline *p = d->pipeline;
        const char *error = s->error ? s->error : "out of memory or threads";
        bool is_known = delivery->last_error && strcmp(delivery->last_error, error) == 0;
        uint64_t wait = p->waits_for_memory == d
                                ? USEC_PER_SEC
                                : MIN(p->config->retry.maximum_usec, SHORTAGE_USEC);
        char text[64];
        p->n_retries[PIPELINE_RETRY_BUNDLE]++;
        (void)put_off(p, delivery, wait);
        log_dump(b->rec.id, is_known ? LOG_DEBUG : LOG_WARNING, 0,
                 "%s: %s; nothing is lost, trying again in %s", d->config->name, error,
                 clock_format_span(text, wait));
        set_error(&delivery->last_error, error);
        pipeline_leave_shipping(p, b, BUNDLE_READY, error);
}

static void pipeline_take_answer(Destination *d, Bundle *b, ShipJob *s) {
        Pipeline *p = d->pipeline;
        DeliveryRecord *delivery = pipeline_delivery(b, d->config->name);
        b->n_running--;
        if (s->result != SHIP_DELIVERED)
                (void)bundle_set_delivery_state(b, delivery, DELIVERY_PENDING); /* as above */
        switch (s->result) {
        case SHIP_DELIVERED:
                take_delivered(d, b, delivery, s);
                break;
        case SHIP_CHANGED:
                p->n_retries[PIPELINE_RETRY_CHANGED]++;
                put_off(p, delivery, backoff(p, 1));
                log_dump(b->rec.id, LOG_NOTICE, 0, "%s; waiting for it to settle",
                         s->error ? s->error : "it changed");
                pipeline_leave_shipping(p, b, BUNDLE_SETTLING, s->error);
                break;
        case SHIP_VANISHED:
                put_off(p, delivery, backoff(p, 1));
                log_dump(b->rec.id, LOG_WARNING, 0, "%s",
                         s->error ? s->error : "nothing is left of it");
                pipeline_leave_shipping(p, b, BUNDLE_VANISHED, s->error);
                break;
        case SHIP_ABORTED:
                pipeline_leave_shipping(p, b, BUNDLE_READY, d->type->cut_text);
                break;
        case SHIP_DESTINATION:
                take_destination_failure(d, b, delivery, s);
                break;
        case SHIP_RESOURCES:
                take_shortage(d, b, delivery, s);
                break;
        case SHIP_FAILED:
                take_failure(d, b, delivery, s);
                break;
        }
}
