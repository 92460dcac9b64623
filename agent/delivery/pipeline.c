#include "agent/delivery/pipeline.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "agent/delivery/pipeline_private.h"
#include "agent/store/ledger.h"
#include "config/forms.h"
#include "lib/base/log.h"
#include "lib/bundle/writer.h"
#include "lib/neuron/names.h"

/* A volume gets a second worker where a destination's share of limits.memory is this many times what that one needs. */
#define SECOND_WORKER_SHARE 3

DeliveryRecord *pipeline_delivery(const Bundle *b, const char *destination) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (strcmp(b->rec.deliveries[i].destination, destination) == 0)
                        return &b->rec.deliveries[i];
        return NULL;
}

size_t pipeline_tries_index(const Bundle *b, const DeliveryRecord *delivery) {
        return MIN((size_t)(delivery - b->rec.deliveries), (size_t)BUNDLE_TRIES_MAX - 1);
}

BundleTries *pipeline_tries(Bundle *b, const DeliveryRecord *delivery) {
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

bool pipeline_has_given_up_all(const Pipeline *p, const Bundle *b) {
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

bool pipeline_has_memory(const Pipeline *p, uint64_t bytes) {
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

void pipeline_shipped(ShipJob *s) {
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

int pipeline_start(Destination *d, Bundle *b) {
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
