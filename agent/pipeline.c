#include "agent/pipeline.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/random.h>

#include "agent/intake.h"
#include "agent/ship.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/writer.h"
#include "lib/dump/place.h"
#include "uploaders/backoff.h"
#include "uploaders/volume.h"

/* How long a stop waits for workers; one that hangs in the kernel is then left behind. */
#define STOP_USEC (5 * USEC_PER_SEC)
#define COMPRESSOR_NICE 10

/* Can the volume be written? Asked at the start and after each failure, before a bundle is packed for it. */
typedef struct VolumeProbe {
        WorkJob job;
        struct Destination *owner;
        Volume *volume; /* borrowed */
        int outcome;
        char *error;
} VolumeProbe;

typedef struct Destination {
        Pipeline *pipeline;
        const ConfigDestination *config; /* borrowed */
        PathTemplate *template;
        Volume *volume;
        WorkerPool *worker; /* one thread: a hung mount hangs only this */
        ShipJob *running;
        Bundle *bundle;     /* being shipped */
        VolumeProbe *probe; /* running */
        bool proven;        /* the last thing tried there worked */
        bool ship_failed; /* a delivery failed by its fault: only a delivery shows that it is mended */
        const char *state;
        char *last_error;
        unsigned n_failures;      /* of the destination, in a row */
        uint64_t not_before_usec; /* CLOCK_BOOTTIME */
        uint64_t last_success_usec;
        sd_event_source *timer;
} Destination;

struct Pipeline {
        PipelineContext context;
        const Config *config;
        WorkerPool *compressors;
        unsigned n_compressors;
        Destination *destinations;
        size_t n_destinations;
        uint64_t memory_used;
        uint64_t n_retries[N_PIPELINE_RETRIES];
        bool stopping;
};

static void destination_kick(Destination *d);

static uint64_t boot_usec(const Pipeline *p) {
        return p->context.clock->boottime_usec(p->context.clock);
}

static uint64_t realtime_usec(const Pipeline *p) {
        return p->context.clock->realtime_usec(p->context.clock);
}

static uint64_t random_u64(void) {
        uint64_t r = 0;
        (void)!getrandom(&r, sizeof r, 0); /* 0 only means no jitter */
        return r;
}

static DeliveryRecord *delivery_for(Bundle *b, const char *destination) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (strcmp(b->rec.deliveries[i].destination, destination) == 0)
                        return &b->rec.deliveries[i];
        return NULL;
}

/* ---- choosing ---- */

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source;
        (void)usec;
        destination_kick(userdata);
        return 0;
}

static void kick_in(Destination *d, uint64_t usec) {
        int r;
        if (!d->timer)
                r = sd_event_add_time_relative(d->pipeline->context.event, &d->timer,
                                               CLOCK_MONOTONIC, usec, 0, on_timer, d);
        else {
                r = sd_event_source_set_time_relative(d->timer, usec);
                if (r >= 0)
                        r = sd_event_source_set_enabled(d->timer, SD_EVENT_ONESHOT);
        }
        if (r < 0)
                log_error(r, "destination %s: cannot arm a timer", d->config->name);
}

/* The oldest bundle that may go now; *ret_wait_usec tells when the next one may, if none. */
static Bundle *pick(Destination *d, uint64_t *ret_wait_usec) {
        uint64_t now = realtime_usec(d->pipeline);
        *ret_wait_usec = USEC_INFINITY;
        LIST_FOREACH (l, bundle_table_all(d->pipeline->context.bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if ((b->rec.state != BUNDLE_READY && b->rec.state != BUNDLE_SHIPPING) ||
                    !b->source || b->cancel)
                        continue;
                const DeliveryRecord *delivery = delivery_for(b, d->config->name);
                if (!delivery || delivery->state != DELIVERY_PENDING)
                        continue;
                /* A clock that was set back must not make a bundle wait for longer than the longest backoff. */
                uint64_t wait = delivery->next_try_usec > now ? delivery->next_try_usec - now : 0;
                wait = MIN(wait, d->pipeline->config->retry.maximum_usec);
                if (wait == 0)
                        return b;
                *ret_wait_usec = MIN(*ret_wait_usec, wait);
        }
        return NULL;
}

/* Below the volume's root, which is the fixed part of the template. */
static char *expand_directory(const Destination *d, const Bundle *b) {
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
        const char *below = path + strlen(path_template_fixed(d->template));
        while (*below == '/')
                below++;
        return strdup(below);
}

/* What a writer may use: all of it together stays below limits.memory, shared fairly among the destinations. */
static uint64_t memory_for_one(const Pipeline *p) {
        int level = (int)p->config->limits.compression_level;
        uint64_t share = p->config->limits.memory_bytes / MAX(p->n_destinations, (size_t)1);
        uint64_t least = bundle_writer_memory_min(level);
        return MAX(MIN(bundle_writer_memory_best(level, p->n_compressors), share), least);
}

static uint64_t memory_limit(const Pipeline *p) {
        uint64_t least = bundle_writer_memory_min((int)p->config->limits.compression_level);
        return least > p->config->limits.memory_bytes ? p->config->limits.memory_max_bytes
                                                      : p->config->limits.memory_bytes;
}

/* ---- answers ---- */

static void set_error(char **to, const char *text) {
        free(*to);
        *to = text ? strdup(text) : NULL;
}

static void destination_is_well(Destination *d) {
        if (d->n_failures > 0)
                log_notice("destination %s: works again", d->config->name);
        d->state = "ok";
        d->n_failures = 0;
        d->not_before_usec = 0;
        d->ship_failed = false;
        set_error(&d->last_error, NULL);
}

static uint64_t backoff(const Pipeline *p, unsigned n) {
        return backoff_next_usec(n, p->config->retry.initial_usec, p->config->retry.maximum_usec,
                                 random_u64());
}

static void destination_is_ill(Destination *d, bool full, const char *error) {
        uint64_t wait = backoff(d->pipeline, ++d->n_failures);
        d->not_before_usec = boot_usec(d->pipeline) + wait;
        d->state = full ? "paused" : "failing";
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

static VolumeProbe *volume_probe_free(VolumeProbe *v) {
        if (v) {
                free(v->error);
                free(v);
        }
        return NULL;
}

static void run_probe(WorkJob *job) {
        VolumeProbe *v = CONTAINER_OF(job, VolumeProbe, job);
        v->outcome = volume_probe(v->volume, &v->error);
}

static void on_probed(WorkJob *job) {
        VolumeProbe *v = CONTAINER_OF(job, VolumeProbe, job);
        Destination *d = v->owner;
        d->probe = NULL;
        if (v->outcome == 0) {
                d->proven = true;
                if (!d->ship_failed)
                        destination_is_well(d);
        } else
                destination_is_ill(d, v->outcome == UPLOAD_E_FULL,
                                   v->error ? v->error
                                            : strerror(v->outcome < 0 ? -v->outcome : EIO));
        volume_probe_free(v);
        destination_kick(d);
}

static void start_probe(Destination *d) {
        VolumeProbe *v = calloc(1, sizeof *v);
        if (v) {
                *v = (VolumeProbe){ .job = { .run = run_probe, .done = on_probed },
                                    .owner = d,
                                    .volume = d->volume };
                if (worker_pool_submit(d->worker, &v->job) == 0) {
                        d->probe = v;
                        return;
                }
        }
        volume_probe_free(v);
        kick_in(d, USEC_PER_SEC);
}

/* Back from SHIPPING when its last worker came back. */
static void leave_shipping(Pipeline *p, Bundle *b, BundleState to, const char *reason) {
        if (b->n_running > 0)
                return;
        if (b->cancel)
                to = BUNDLE_CANCELLED, reason = "cancelled by the operator";
        if (to == BUNDLE_SETTLING)
                intake_settle_again(b, reason);
        else
                (void)bundle_set_state(p->context.bundles, b, to,
                                       reason); /* a refused move is logged there */
}

static bool all_delivered(const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        return false;
        return true;
}

static void take_delivered(Destination *d, Bundle *b, DeliveryRecord *delivery, ShipJob *s) {
        Pipeline *p = d->pipeline;
        delivery->state = DELIVERY_DONE;
        delivery->proof = PROOF_READBACK;
        delivery->bytes = s->object_bytes;
        delivery->done_usec = realtime_usec(p);
        delivery->next_try_usec = 0;
        set_error(&delivery->last_error, NULL);
        b->rec.complete = s->complete;
        set_error(&b->rec.incomplete, s->incomplete);
        b->rec.digest = s->digest;
        b->rec.attempts = 0;
        _cleanup_free_ char *counter = NULL;
        if (asprintf(&counter, "bytes_delivered:%s", d->config->name) >= 0)
                (void)store_counter_add(p->context.store, counter,
                                        s->object_bytes); /* a figure, no evidence */
        if (s->n_prints > 0 &&
            store_put_prints(p->context.store, b->rec.id, s->prints, s->n_prints) < 0)
                log_dump(b->rec.id, LOG_WARNING, 0,
                         "cannot note which members were shipped; a later scan may ship them again "
                         "as a supplement");
        destination_is_well(d);
        d->last_success_usec = realtime_usec(p);
        char text[PARSE_FORMAT_SIZE];
        log_dump(b->rec.id, LOG_NOTICE, 0, "delivered to %s: '%s', %s, read back and proven%s",
                 d->config->name, delivery->object ? delivery->object : "?",
                 parse_format_human(text, s->object_bytes),
                 s->complete ? "" : ", labelled incomplete");
        if (all_delivered(b) && b->n_running == 0) {
                p->context.on_delivered(b, p->context.userdata);
                leave_shipping(p, b, BUNDLE_DELIVERED, NULL);
                return;
        }
        bundle_save(p->context.bundles, b);
        leave_shipping(p, b, BUNDLE_READY, "waits for its other destinations");
}

static void take_failure(Destination *d, Bundle *b, DeliveryRecord *delivery, const ShipJob *s) {
        Pipeline *p = d->pipeline;
        delivery->attempts++;
        b->rec.attempts++;
        set_error(&delivery->last_error, s->error);
        if (b->rec.attempts >= p->config->retry.quarantine_after) {
                log_dump(b->rec.id, LOG_ERR, 0,
                         "given up after %u failures: %s; mend it, then `neuron-collect retry %s`",
                         b->rec.attempts, s->error ? s->error : "?", b->rec.id);
                leave_shipping(p, b, BUNDLE_QUARANTINED, s->error);
                return;
        }
        uint64_t wait = backoff(p, delivery->attempts);
        delivery->next_try_usec = realtime_usec(p) + wait;
        p->n_retries[PIPELINE_RETRY_BUNDLE]++;
        char text[64];
        log_dump(b->rec.id, LOG_WARNING, 0, "%s: %s; trying again in %s", d->config->name,
                 s->error ? s->error : "failed", clock_format_span(text, wait));
        leave_shipping(p, b, BUNDLE_READY, s->error);
}

static void take_answer(Destination *d, Bundle *b, ShipJob *s) {
        Pipeline *p = d->pipeline;
        DeliveryRecord *delivery = delivery_for(b, d->config->name);
        b->n_running--;
        delivery->state = DELIVERY_PENDING;
        switch (s->result) {
        case SHIP_DELIVERED:
                take_delivered(d, b, delivery, s);
                break;
        case SHIP_CHANGED:
                p->n_retries[PIPELINE_RETRY_CHANGED]++;
                log_dump(b->rec.id, LOG_NOTICE, 0, "%s; waiting for it to settle",
                         s->error ? s->error : "it changed");
                leave_shipping(p, b, BUNDLE_SETTLING, s->error);
                break;
        case SHIP_VANISHED:
                log_dump(b->rec.id, LOG_WARNING, 0, "%s",
                         s->error ? s->error : "nothing is left of it");
                leave_shipping(p, b, BUNDLE_VANISHED, s->error);
                break;
        case SHIP_ABORTED:
                leave_shipping(p, b, BUNDLE_READY, "stopped in the middle, starts over");
                break;
        case SHIP_DESTINATION:
                d->ship_failed = true;
                destination_is_ill(d, s->destination_full, s->error);
                if (s->destination_full) { /* a smaller one may fit meanwhile, so others go first */
                        b->full_at_bytes = MAX(b->full_at_bytes, atomic_load(&s->sent_bytes));
                        delivery->next_try_usec =
                                realtime_usec(p) + 2 * (d->not_before_usec - boot_usec(p));
                }
                set_error(&delivery->last_error, s->error);
                leave_shipping(p, b, BUNDLE_READY, s->error);
                break;
        case SHIP_FAILED:
                take_failure(d, b, delivery, s);
                break;
        }
}

static void on_shipped(WorkJob *job) {
        ShipJob *s = CONTAINER_OF(job, ShipJob, job);
        Destination *d = s->owner;
        Pipeline *p = d->pipeline;
        Bundle *b = d->bundle;
        d->running = NULL;
        d->bundle = NULL;
        p->memory_used -= s->memory_bytes;
        (void)store_begin(
                p->context.store); /* figures, no evidence: a failure only makes them low */
        (void)store_counter_add(p->context.store, "bytes_read", atomic_load(&s->read_bytes));
        (void)store_counter_add(p->context.store, "bytes_sent", atomic_load(&s->sent_bytes));
        (void)store_commit(p->context.store);
        take_answer(d, b, s);
        ship_job_free(s);
        pipeline_kick(p);
}

/* ---- starting ---- */

static int start(Destination *d, Bundle *b) {
        Pipeline *p = d->pipeline;
        DeliveryRecord *delivery = delivery_for(b, d->config->name);
        _cleanup_free_ char *directory = expand_directory(d, b);
        if (!directory)
                return -ENOMEM;
        ShipOrder order = { .volume = d->volume,
                            .root = path_template_fixed(d->template),
                            .directory = directory,
                            .instance_id = p->context.instance_id,
                            .hostname = p->context.hostname,
                            .labels = p->config->node.labels.items,
                            .compressors = p->compressors,
                            .level = (int)p->config->limits.compression_level,
                            .memory_bytes = memory_for_one(p),
                            .size_hint_bytes = b->full_at_bytes };
        ShipJob *s;
        int r = ship_job_new(&s, b, intake_source_terms(b->source), &order);
        if (r < 0)
                return r;
        if (b->rec.supplement_of[0])
                (void)store_get_prints(p->context.store, b->rec.supplement_of, &s->shipped,
                                       &s->n_shipped); /* none: all is new */
        set_error(&delivery->object, NULL);
        if (asprintf(&delivery->object, "%s/%s/%s.tar.zst", path_template_fixed(d->template),
                     directory, b->rec.id) < 0)
                delivery->object = NULL;
        delivery->state = DELIVERY_SHIPPING;
        b->n_running++;
        if (b->rec.state == BUNDLE_READY)
                (void)bundle_set_state(p->context.bundles, b, BUNDLE_SHIPPING,
                                       NULL); /* a refused move is logged there */
        else
                bundle_save(p->context.bundles, b);
        s->owner = d;
        s->job.done = on_shipped;
        s->begun_usec = boot_usec(p);
        d->running = s;
        d->bundle = b;
        p->memory_used += s->memory_bytes;
        r = worker_pool_submit(d->worker, &s->job);
        if (r < 0) {
                s->result = SHIP_ABORTED;
                d->not_before_usec = boot_usec(p) + USEC_PER_SEC;
                d->running = NULL;
                d->bundle = NULL;
                p->memory_used -= s->memory_bytes;
                take_answer(d, b, s);
                ship_job_free(s);
        }
        return r;
}

static void destination_kick(Destination *d) {
        Pipeline *p = d->pipeline;
        if (d->running || d->probe || p->stopping)
                return;
        uint64_t now = boot_usec(p), wait;
        if (now < d->not_before_usec) {
                kick_in(d, d->not_before_usec - now);
                return;
        }
        if (!d->proven) {
                start_probe(d);
                return;
        }
        if (p->memory_used + memory_for_one(p) > memory_limit(p))
                return; /* whoever comes back kicks */
        Bundle *b = pick(d, &wait);
        if (!b) {
                if (wait != USEC_INFINITY)
                        kick_in(d, wait);
                else if (d->ship_failed) /* nobody waits for it any more, and it can be written */
                        destination_is_well(d);
                return;
        }
        int r = start(d, b);
        if (r < 0) {
                log_dump(b->rec.id, LOG_ERR, r, "cannot start to ship it, trying again");
                kick_in(d, USEC_PER_SEC);
        }
}

void pipeline_kick(Pipeline *p) {
        for (size_t i = 0; i < p->n_destinations; i++)
                destination_kick(&p->destinations[i]);
}

void pipeline_retry_now(Pipeline *p, Bundle *b) {
        for (size_t i = 0; i < p->n_destinations; i++)
                p->destinations[i].not_before_usec = 0;
        LIST_FOREACH (l, bundle_table_all(p->context.bundles)) {
                Bundle *other = CONTAINER_OF(l, Bundle, link);
                for (size_t i = 0; (!b || b == other) && i < other->rec.n_deliveries; i++)
                        other->rec.deliveries[i].next_try_usec = 0;
        }
        pipeline_kick(p);
}

bool pipeline_abort(Pipeline *p, Bundle *b) {
        bool any = false;
        for (size_t i = 0; i < p->n_destinations; i++)
                if (p->destinations[i].bundle == b) {
                        atomic_store(&p->destinations[i].running->abort, true);
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

static int destination_init(Destination *d, Pipeline *p, const ConfigDestination *config) {
        *d = (Destination){ .pipeline = p, .config = config, .state = "ok" };
        char counter[128];
        snprintf(counter, sizeof counter, "bytes_delivered:%s", config->name);
        char bad;
        int r = path_template_new(&d->template, config->path, "dcptliknhu", &bad);
        if (r < 0)
                return r;
        r = volume_new(
                &d->volume,
                &(VolumeOptions){
                        .root = path_template_fixed(d->template),
                        .min_free_bytes = config->min_free.is_permille ? 0 : config->min_free.bytes,
                        .min_free_permille =
                                config->min_free.is_permille ? config->min_free.permille : 0,
                        /* a root that was there and is not any more is not mounted */
                        .must_exist = store_counter(p->context.store, counter) > 0 });
        if (r < 0)
                return r;
        return worker_pool_new(&d->worker, p->context.event, "nc-ship", 1, 0);
}

int pipeline_new(Pipeline **ret, const PipelineContext *context, const Config *config) {
        Pipeline *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        *p = (Pipeline){ .context = *context,
                         .config = config,
                         .n_compressors = count_compressors(config) };
        p->destinations = calloc(MAX(config->n_destinations, (size_t)1), sizeof *p->destinations);
        int r = p->destinations ? worker_pool_new(&p->compressors, NULL, "nc-zstd",
                                                  p->n_compressors, COMPRESSOR_NICE)
                                : -ENOMEM;
        for (size_t i = 0; r >= 0 && i < config->n_destinations; i++) {
                p->n_destinations = i + 1;
                r = destination_init(&p->destinations[i], p, &config->destinations[i]);
        }
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
        const WorkJob *job = d->running ? &d->running->job : d->probe ? &d->probe->job : NULL;
        while (job && worker_pool_is_running(job) && clock->boottime_usec(clock) < until_usec)
                (void)usleep(5 * USEC_PER_MSEC); /* the loop is over: nothing else is to be done */
        return !job || !worker_pool_is_running(job);
}

Pipeline *pipeline_free(Pipeline *p) {
        if (!p)
                return NULL;
        p->stopping = true;
        for (size_t i = 0; i < p->n_destinations; i++)
                if (p->destinations[i].running)
                        atomic_store(&p->destinations[i].running->abort, true);
        uint64_t until = boot_usec(p) + STOP_USEC;
        bool hung = false;
        for (size_t i = 0; i < p->n_destinations; i++) {
                Destination *d = &p->destinations[i];
                bool back = wait_for_worker(d, until);
                if (back)
                        worker_pool_free(d->worker);
                else
                        worker_pool_abandon(d->worker);
                if (d->bundle) {
                        d->bundle->n_running--;
                        delivery_for(d->bundle, d->config->name)->state = DELIVERY_PENDING;
                        leave_shipping(p, d->bundle, BUNDLE_READY,
                                       "stopped in the middle, starts over");
                }
                if (back) {
                        ship_job_free(d->running);
                        volume_probe_free(d->probe);
                        volume_free(d->volume);
                } else
                        log_warning(0,
                                    "destination %s: did not stop within 5 s, leaving its worker "
                                    "behind; what it was shipping starts over",
                                    d->config->name);
                hung = hung || !back;
                sd_event_source_disable_unref(d->timer);
                path_template_free(d->template);
                free(d->last_error);
        }
        if (!hung) /* a hung worker may still come to compress */
                worker_pool_free(p->compressors);
        free(p->destinations);
        free(p);
        return NULL;
}

void pipeline_rebind(Pipeline *p, const Config *config) {
        p->config = config;
        for (size_t i = 0; i < p->n_destinations; i++)
                p->destinations[i].config = &config->destinations[i];
}

/* ---- seeing ---- */

size_t pipeline_n_destinations(const Pipeline *p) {
        return p->n_destinations;
}

void pipeline_destination_view(const Pipeline *p, size_t i, PipelineDestinationView *ret) {
        const Destination *d = &p->destinations[i];
        char counter[128];
        snprintf(counter, sizeof counter, "bytes_delivered:%s", d->config->name);
        *ret = (PipelineDestinationView){ .name = d->config->name,
                                          .state = d->state,
                                          .last_error = d->last_error,
                                          .last_success_usec = d->last_success_usec,
                                          .bytes_delivered =
                                                  store_counter(p->context.store, counter),
                                          .next_try_usec = d->not_before_usec };
        if (d->running) {
                ret->shipping_id = d->bundle->rec.id;
                ret->sent_bytes = atomic_load(&d->running->sent_bytes);
                ret->done_bytes = atomic_load(&d->running->done_bytes);
                ret->total_bytes = atomic_load(&d->running->total_bytes);
                ret->begun_usec = d->running->begun_usec;
        }
}

uint64_t pipeline_buffer_bytes(const Pipeline *p) {
        return p->memory_used;
}

uint64_t pipeline_bytes_read(const Pipeline *p) {
        uint64_t n = 0;
        for (size_t i = 0; i < p->n_destinations; i++)
                n += p->destinations[i].running
                             ? atomic_load(&p->destinations[i].running->read_bytes)
                             : 0;
        return n;
}

uint64_t pipeline_bytes_sent(const Pipeline *p) {
        uint64_t n = 0;
        for (size_t i = 0; i < p->n_destinations; i++)
                n += p->destinations[i].running
                             ? atomic_load(&p->destinations[i].running->sent_bytes)
                             : 0;
        return n;
}

uint64_t pipeline_n_retries(const Pipeline *p, PipelineRetry why) {
        return p->n_retries[why];
}

char *pipeline_explain(const Pipeline *p, const Bundle *b, const DeliveryRecord *delivery) {
        StrBuf text = STRBUF_INIT;
        const Destination *d = NULL;
        for (size_t i = 0; i < p->n_destinations; i++)
                if (strcmp(p->destinations[i].config->name, delivery->destination) == 0)
                        d = &p->destinations[i];
        char span[64];
        uint64_t now = realtime_usec(p), boot = boot_usec(p);
        strbuf_addf(&text, "To %s: ", delivery->destination);
        if (delivery->state == DELIVERY_DONE)
                strbuf_add(&text, "delivered and proven.");
        else if (!d)
                strbuf_add(&text, "this destination is no longer configured; add it again, or "
                                  "cancel the bundle.");
        else if (d->bundle == b)
                strbuf_addf(&text, "being shipped now, %u %% done.",
                            (unsigned)(100 * atomic_load(&d->running->done_bytes) /
                                       MAX(atomic_load(&d->running->total_bytes), UINT64_C(1))));
        else if (boot < d->not_before_usec)
                strbuf_addf(&text, "the destination is %s (%s); the next try is in %s.", d->state,
                            d->last_error ? d->last_error : "?",
                            clock_format_span(span, d->not_before_usec - boot));
        else if (delivery->next_try_usec > now)
                strbuf_addf(&text, "failed %u times, last: %s; the next try is in %s.",
                            delivery->attempts, delivery->last_error ? delivery->last_error : "?",
                            clock_format_span(span, delivery->next_try_usec - now));
        else if (d->running)
                strbuf_addf(&text, "waits for its turn, '%s' is being shipped.", d->bundle->rec.id);
        else
                strbuf_add(&text, "will be shipped as soon as it is ready.");
        return strbuf_take(&text);
}
