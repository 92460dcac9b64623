/* Decides which bundle goes to which destination and when. Each destination has a worker, a place
 * in the queue and a backoff of its own; whenever something may have changed it is kicked, and
 * starts the first of these that is due: a probe (after the start and after a failure), a clean-up,
 * the next bundle. A large bundle gives way to small ones where what was sent counts later; a
 * volume, where it does not, has a second worker for small bundles alone.
 *
 * Whose turn it is remembers rotation.c; how a destination fares, destination.c; what a result
 * means, scheduler_results.c; what is shown of it, scheduler_view.c. A delivery itself runs
 * elsewhere (delivery_volume.c, delivery_s3.c) and comes back through on_delivery_done().
 * Everything here is on the loop. */
#include "agent/delivery/scheduler.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "agent/delivery/deliveries.h"
#include "agent/delivery/delivery_memory.h"
#include "agent/delivery/delivery_s3_bucket.h"
#include "agent/delivery/delivery_volume.h"
#include "agent/delivery/scheduler_private.h"
#include "agent/delivery/scheduler_results.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/packer.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/names.h"

/* How long a stop waits for workers; one that hangs in the kernel is then abandoned. */
#define STOP_TIMEOUT_USEC (5 * USEC_PER_SEC)

static void kick_destination(Destination *d);

Destination *scheduler_find_destination(const Scheduler *s, const char *name) {
        for (size_t i = 0; i < s->shared.n_destinations; i++)
                if (strcmp(s->destinations[i].config->name, name) == 0)
                        return &s->destinations[i];
        return NULL;
}

/* ---- the end of a delivery ---- */

static Bundle *end_running(Destination *d) {
        Bundle *b = d->bundle;
        delivery_memory_release(&d->running->memory);
        d->running = NULL;
        d->bundle = NULL;
        destination_set_activity(d, ACTIVITY_IDLE);
        return b;
}

/* Records where the bundle is, or where a temporary file of it may be. */
static void record_place(const Destination *d, Bundle *b, const Delivery *job) {
        DeliveryRecord *delivery = deliveries_find(b, d->config->name);
        _cleanup_free_ char *name = bundle_object_name(b->rec.id);
        char *object = name && delivery ? d->type->format_location(d, job->directory, name) : NULL;
        if (!object)
                return;
        if (job->refusal)
                log_dump(b->rec.id, LOG_WARNING, 0,
                         "destination %s: delivering to '%s', as the incident's directory cannot "
                         "be used: %s",
                         d->config->name, object, job->refusal);
        free(delivery->object);
        delivery->object = object; /* the row is written with the result */
}

static void on_delivery_done(Delivery *job) {
        Destination *d = job->owner;
        Scheduler *s = scheduler_of(d);
        Bundle *b = end_running(d);
        (void)store_begin(s->context.store); /* figures: a failure only makes them low */
        (void)store_counter_add(s->context.store, "bytes_read", atomic_load(&job->run.read_bytes));
        (void)store_counter_add(s->context.store, "bytes_sent", atomic_load(&job->run.sent_bytes));
        (void)store_commit(s->context.store);
        if (job->is_beside)
                record_place(d, b, job);
        scheduler_results_handle(d->head, b, job);
        d->type->delivery_free(job);
        scheduler_kick(s);
}

/* ---- starting a delivery ---- */

void scheduler_record_failure(Scheduler *s, Bundle *b) {
        if (delivery_notes_record_failure(s->context.store, b))
                bundle_save(s->context.bundles, b);
}

/* Gives the delivery the members that the other destinations have. Where these cannot be read it
 * takes what is there: rather two contents than none. */
static void freeze_members(Scheduler *s, const Bundle *b, Delivery *job) {
        if (store_get_own_prints(s->context.store, b->rec.id, &job->frozen, &job->n_frozen) == 0 &&
            !job->frozen) /* they have none of them any more */
                job->frozen = calloc(1, sizeof *job->frozen);
}

/* Reads what was shipped before, and the notes of hooks. */
static void load_delivery_inputs(Scheduler *s, Bundle *b, const DeliveryRecord *delivery,
                                 Delivery *job) {
        if (bundle_record_is_redelivery(&b->rec))
                (void)store_get_own_prints(s->context.store, b->rec.id, &job->shipped,
                                           &job->n_shipped); /* none: there is nothing to ship */
        else if (b->rec.supplement_of[0])
                (void)store_get_earlier_prints(s->context.store, &b->rec, &job->shipped,
                                               &job->n_shipped); /* none: all is new */
        if (!bundle_record_is_redelivery(&b->rec) && deliveries_are_done_elsewhere(b, delivery))
                freeze_members(s, b, job);
        delivery_read_notes(job, s->context.store, b);
}

static void mark_shipping(const Destination *d, Bundle *b, DeliveryRecord *delivery,
                          const char *directory) {
        BundleTable *bundles = scheduler_of(d)->context.bundles;
        _cleanup_free_ char *name = bundle_object_name(b->rec.id);
        free(delivery->object);
        delivery->object = name ? d->type->format_location(d, directory, name) : NULL;
        (void)bundle_set_delivery_state(b, delivery,
                                        DELIVERY_SHIPPING); /* a refused move is logged there */
        b->shipping.n_running++;
        if (b->rec.state == BUNDLE_READY) /* as above */
                (void)bundle_set_state(bundles, b, BUNDLE_SHIPPING, NULL);
        else
                bundle_save(bundles, b);
}

static int start_job(Destination *d, Bundle *b, Delivery *job) {
        d->running = job;
        d->bundle = b;
        delivery_memory_charge(&d->shared->memory, &job->memory);
        destination_set_activity(d, ACTIVITY_DELIVERING);
        int r = d->type->delivery_start(d, job);
        if (r >= 0)
                return r;
        (void)delivery_endf(job, RESULT_NO_RESOURCES, "cannot start a thread: %s", strerror(-r));
        d->head->not_before_usec = destination_boottime_usec(d) + USEC_PER_SEC;
        scheduler_results_handle(d->head, end_running(d), job);
        d->type->delivery_free(job);
        return r;
}

static int start_delivery(Destination *d, Bundle *b) {
        Scheduler *s = scheduler_of(d);
        DeliveryRecord *delivery = deliveries_find(b, d->config->name);
        _cleanup_free_ char *directory = destination_bundle_directory(d, &b->rec);
        if (!directory)
                return -ENOMEM;
        Delivery *job;
        int r = d->type->delivery_new(d, b, directory, &job);
        if (r < 0)
                return r;
        load_delivery_inputs(s, b, delivery, job);
        mark_shipping(d, b, delivery, directory);
        job->owner = d;
        job->on_done = on_delivery_done;
        job->run.start_usec = scheduler_boottime_usec(s);
        return start_job(d, b, job);
}

/* ---- who goes when ---- */

/* The delivery was given up here, and other destinations have yet to try. A bundle that all have
 * given up and that is READY nevertheless (quarantine_after was lowered) is tried once more: the
 * failure puts it into quarantine. */
static bool is_given_up_here(const Scheduler *s, const Bundle *b, const DeliveryRecord *delivery) {
        return deliveries_is_given_up(s->shared.config, delivery) &&
               (b->shipping.n_running > 0 || !deliveries_are_given_up(s->shared.config, b));
}

static bool is_small(const Bundle *b) {
        return rotation_is_small(b->rec.n_files, b->rec.bytes);
}

/* @return the delivery when it waits for nothing but its turn, or for time to pass
 * (*ret_wait_usec); else NULL */
static const DeliveryRecord *waiting_delivery(const Destination *d, Bundle *b, uint64_t now_usec,
                                              uint64_t *ret_wait_usec) {
        if ((b->rec.state != BUNDLE_READY && b->rec.state != BUNDLE_SHIPPING) || !b->source ||
            b->shipping.has_target_state)
                return NULL;
        const DeliveryRecord *delivery = deliveries_find(b, d->config->name);
        if (!delivery || delivery->state != DELIVERY_PENDING ||
            is_given_up_here(scheduler_of(d), b, delivery) ||
            (b->shipping.cancel && !deliveries_tries(b, delivery)->has_object))
                return NULL;
        /* A clock that was set back must not make a bundle wait for longer than the longest
         * backoff. */
        uint64_t wait = delivery->next_try_usec > now_usec ? delivery->next_try_usec - now_usec : 0;
        *ret_wait_usec = MIN(wait, d->shared->config->retry.maximum_usec);
        const SchedulerContext *c = &scheduler_of(d)->context;
        if (wait == 0 && !b->rec.name.agreed[0] && c->is_named &&
            !c->is_named(b, &wait, c->userdata))
                *ret_wait_usec = MAX(wait, UINT64_C(1));
        return delivery;
}

/* @param wait_usec  lowered to when the next one of this queue may go  @return of those of this
 * size that may go now, the oldest of the owner who was served the longest ago; NULL */
static Bundle *first_of(const Destination *d, const BundleQueue *q, bool small,
                        uint64_t *wait_usec) {
        uint64_t now = destination_realtime_usec(d), wait, served = 0, least = UINT64_MAX;
        Bundle *best = NULL;
        const Bundle *last = NULL; /* many of one owner come in a row */
        LIST_FOREACH (l, &q->bundles) {
                Bundle *b = CONTAINER_OF(l, Bundle, queue_link);
                if (is_small(b) != small || !waiting_delivery(d, b, now, &wait))
                        continue;
                if (wait > 0) {
                        *wait_usec = MIN(*wait_usec, wait);
                        continue;
                }
                if (!last || last->rec.uid != b->rec.uid)
                        served = rotation_owner_served_at(&d->head->rotation, q, b->rec.uid);
                last = b;
                if (served >= least)
                        continue;
                best = b;
                least = served;
                if (least == 0)
                        break;
        }
        return best;
}

static Bundle *pick_by_size(const Destination *d, bool small, uint64_t *wait_usec) {
        const Rotation *t = &d->head->rotation;
        size_t n;
        BundleQueue *const *queues = bundle_table_queues(scheduler_of(d)->context.bundles, &n);
        Bundle *best = NULL;
        uint64_t best_served = 0;
        for (size_t i = 0; i < n; i++) {
                Bundle *b = first_of(d, queues[i], small, wait_usec);
                uint64_t served = b ? rotation_served_at(t, queues[i]) : 0;
                if (b && (!best || served < best_served ||
                          (served == best_served &&
                           b->rec.first_seen_usec < best->rec.first_seen_usec))) {
                        best = b;
                        best_served = served;
                }
        }
        return best;
}

/* @return the next bundle; NULL: none may go now, and *ret_wait_usec is when the next one may */
static Bundle *pick_bundle(const Destination *d, uint64_t *ret_wait_usec) {
        bool small_first = rotation_prefers_small(&d->head->rotation);
        *ret_wait_usec = USEC_INFINITY;
        Bundle *b = d != d->head ? pick_by_size(d, true, ret_wait_usec)
                                 : pick_by_size(d, small_first, ret_wait_usec);
        return b || d != d->head ? b : pick_by_size(d, !small_first, ret_wait_usec);
}

static void wind_down(Destination *d) {
        if (d->activity != ACTIVITY_DELIVERING)
                return;
        destination_set_activity(d, ACTIVITY_WINDING_DOWN);
        d->type->delivery_wind_down(d->running);
}

/* A large bundle continues for so long, and for ten times as long as it takes to start again. */
#define LARGE_TURN_USEC (10 * USEC_PER_SEC)
#define LARGE_TURN_SETUPS 10

/* A large bundle that has had its time gives way when a small one waits. */
static void interrupt_for_small(Destination *d) {
        const Delivery *job = d->running;
        uint64_t now = destination_boottime_usec(d), wait = USEC_INFINITY;
        if (!d->type->can_interrupt || d->activity != ACTIVITY_DELIVERING || is_small(d->bundle))
                return;
        if (!pick_by_size(d, true, &wait)) {
                if (wait != USEC_INFINITY) /* one that failed before may go again then */
                        destination_kick_in(d, wait);
                return;
        }
        uint64_t turn = MAX(LARGE_TURN_USEC, LARGE_TURN_SETUPS * job->run.setup_usec);
        uint64_t until = job->run.start_usec + turn;
        if (job->run.setup_usec == 0 || now < until) {
                destination_kick_in(d, now < until ? until - now : USEC_PER_SEC);
                return;
        }
        log_dump(d->bundle->rec.id, LOG_DEBUG, 0, "%s: paused for smaller bundles",
                 d->config->name);
        wind_down(d);
}

/* So few are no burst, even if they wait at many nodes. */
#define LONE_PENDING_MAX 4

static bool has_many_pending(const Destination *d) {
        uint64_t now = destination_realtime_usec(d), wait;
        unsigned n_pending = 0;
        size_t n;
        BundleQueue *const *queues = bundle_table_queues(scheduler_of(d)->context.bundles, &n);
        for (size_t i = 0; i < n; i++)
                LIST_FOREACH (l, &queues[i]->bundles) {
                        Bundle *b = CONTAINER_OF(l, Bundle, queue_link);
                        if (waiting_delivery(d, b, now, &wait) && ++n_pending > LONE_PENDING_MAX)
                                return true;
                }
        return false;
}

/* Postpones the first delivery of a burst by a random time, since many nodes may have waited for
 * the same. @param is_burst  whether there may be one
 * @return whether it is postponed */
static bool postpone_for_jitter(Destination *d, bool is_burst) {
        Scheduler *s = scheduler_of(d);
        uint64_t now = scheduler_boottime_usec(s);
        if (!d->type->is_shared || s->is_urgent)
                return false;
        if (d->jitter_until_usec == 0) {
                d->jitter_until_usec = now;
                if (is_burst)
                        d->jitter_until_usec +=
                                destination_random() %
                                MAX(s->shared.config->retry.initial_usec, UINT64_C(1));
        }
        if (now >= d->jitter_until_usec)
                return false;
        destination_kick_in(d, d->jitter_until_usec - now);
        return true;
}

static void start_probe(Destination *d) {
        d->probe_start_usec = destination_boottime_usec(d);
        if (d->type->probe(d) == 0)
                destination_set_activity(d, ACTIVITY_PROBING);
        else
                destination_kick_in(d, USEC_PER_SEC);
}

/* @param ret_cleanup_wait_usec  until more is to be cleaned up  @return whether a delivery may
 * start now; else what was started, or a timer, kicks */
static bool is_prepared(Destination *d, uint64_t *ret_cleanup_wait_usec) {
        const Destination *head = d->head;
        uint64_t now = destination_boottime_usec(d), cleanup_usec = USEC_INFINITY;
        *ret_cleanup_wait_usec = USEC_INFINITY;
        if (d != head) /* the head kicks it */
                return head->is_proven && head->activity != ACTIVITY_PROBING &&
                       now >= head->not_before_usec;
        if (d->activity != ACTIVITY_IDLE)
                return false;
        if (now < d->not_before_usec) {
                destination_kick_in(d, d->not_before_usec - now);
                return false;
        }
        if (!d->is_proven) {
                if (!postpone_for_jitter(d, true)) /* a start of all nodes, or an outage */
                        start_probe(d);
                return false;
        }
        if (d->type->clean_up && d->type->clean_up(d, &cleanup_usec)) {
                d->probe_start_usec = now;
                destination_set_activity(d, ACTIVITY_CLEANING_UP);
                return false;
        }
        if (cleanup_usec != USEC_INFINITY) { /* whatever comes first rearms the timer */
                *ret_cleanup_wait_usec = cleanup_usec > now ? cleanup_usec - now : 0;
                destination_kick_in(d, *ret_cleanup_wait_usec);
        }
        return true;
}

static void wait_for_next(Destination *d, uint64_t wait_usec, uint64_t cleanup_wait_usec) {
        Scheduler *s = scheduler_of(d);
        if (wait_usec > USEC_PER_SEC) /* the others need not wait for it */
                delivery_memory_stop_waiting(&s->shared.memory, d);
        if (wait_usec != USEC_INFINITY) {
                destination_kick_in(d, MIN(wait_usec, cleanup_wait_usec));
                return;
        }
        d->jitter_until_usec = 0;
        if (d == d->head && (d->delivery_failed || d->objects_failed))
                destination_mark_ok(d); /* no bundle waits for it any more, and it can be written */
}

static void kick_destination(Destination *d) {
        Scheduler *s = scheduler_of(d);
        uint64_t wait, cleanup_wait;
        if (s->is_stopping)
                return;
        if (d->running) {
                interrupt_for_small(d);
                return;
        }
        if (!is_prepared(d, &cleanup_wait)) {
                delivery_memory_stop_waiting(&s->shared.memory, d);
                return;
        }
        if (!delivery_memory_may_start(&s->shared.memory, d, d->type->memory_bytes(d)))
                return; /* the delivery that ends next kicks, or the one that waits for memory */
        if (s->is_urgent)
                d->head->rotation.n_small_in_row =
                        0; /* small ones first, as long as there are any */
        Bundle *b = pick_bundle(d, &wait);
        if (!b) {
                wait_for_next(d, wait, cleanup_wait);
                return;
        }
        if (postpone_for_jitter(d, d->jitter_until_usec == 0 && has_many_pending(d)))
                return;
        rotation_record(&d->head->rotation, bundle_table_queue_of(s->context.bundles, b),
                        b->rec.uid, is_small(b));
        int r = start_delivery(d, b);
        if (r < 0) {
                log_dump(b->rec.id, LOG_ERR, r, "cannot start to ship it, trying again");
                destination_kick_in(d, USEC_PER_SEC);
        } else
                interrupt_for_small(d); /* when a small one may be waiting for its time */
}

void scheduler_kick(Scheduler *s) {
        for (size_t i = 0; i < s->n_all; i++)
                kick_destination(&s->destinations[i]);
}

static void reset_failures(Scheduler *s, Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                b->rec.deliveries[i].attempts = 0;
        memset(b->shipping.tries, 0, sizeof b->shipping.tries);
        b->rec.attempts = 0;
        bundle_save(s->context.bundles, b);
}

void scheduler_retry_now(Scheduler *s, Bundle *b) {
        for (size_t i = 0; i < s->n_all; i++) {
                s->destinations[i].not_before_usec = 0;
                s->destinations[i].jitter_until_usec =
                        MIN(s->destinations[i].jitter_until_usec, UINT64_C(1));
        }
        LIST_FOREACH (l, bundle_table_all(s->context.bundles)) {
                Bundle *other = CONTAINER_OF(l, Bundle, link);
                for (size_t i = 0; (!b || b == other) && i < other->rec.n_deliveries; i++)
                        other->rec.deliveries[i].next_try_usec = 0;
        }
        if (b)
                reset_failures(s, b);
        scheduler_kick(s);
}

/* Starts an attempt for each object that has no manifest yet. @return whether there is any */
static bool complete_objects(const Scheduler *s, Bundle *b) {
        bool any = false;
        for (size_t i = 0; i < b->rec.n_deliveries; i++) {
                DeliveryRecord *delivery = &b->rec.deliveries[i];
                Destination *d = scheduler_find_destination(s, delivery->destination);
                if (!d || !deliveries_tries(b, delivery)->has_object ||
                    delivery->state != DELIVERY_PENDING ||
                    deliveries_is_given_up(s->shared.config, delivery))
                        continue;
                delivery->next_try_usec = 0;
                d->not_before_usec = 0;
                destination_kick_in(d, 0); /* runs after `cancel` is set */
                any = true;
        }
        return any;
}

bool scheduler_cancel(Scheduler *s, Bundle *b) {
        bool any = false;
        for (size_t i = 0; i < s->n_all; i++)
                if (s->destinations[i].bundle == b) {
                        s->destinations[i].type->delivery_abort(s->destinations[i].running);
                        any = true;
                }
        b->shipping.cancel = complete_objects(s, b) || any;
        return b->shipping.cancel;
}

/* No job runs on a node that is drained: then deliveries have normal priority. */
static void set_priority(Scheduler *s, WorkerPriority priority) {
        worker_pool_set_priority(s->shared.compressors, priority);
        for (size_t i = 0; i < s->n_all; i++)
                worker_pool_set_priority(s->destinations[i].worker, priority);
}

void scheduler_set_urgent(Scheduler *s, bool is_urgent) {
        s->is_urgent = is_urgent;
        atomic_store(&s->shared.limits->is_urgent, is_urgent);
        set_priority(s, is_urgent ? WORKER_NORMAL : WORKER_IDLE);
        scheduler_kick(s);
}

void scheduler_wind_down(Scheduler *s) {
        s->is_stopping = true;
        set_priority(s, WORKER_NORMAL);
        s->stop_usec = scheduler_boottime_usec(s) + STOP_TIMEOUT_USEC;
        for (size_t i = 0; i < s->n_all; i++)
                wind_down(&s->destinations[i]);
}

void scheduler_resume(Scheduler *s) {
        s->is_stopping = false;
        s->stop_usec = 0;
        set_priority(s, s->is_urgent && !s->context.is_urgent ? WORKER_NORMAL : WORKER_IDLE);
        scheduler_kick(s);
}

bool scheduler_is_idle(const Scheduler *s) {
        for (size_t i = 0; i < s->n_all; i++)
                if (s->destinations[i].running)
                        return false;
        return true;
}

bool scheduler_has_cleaned_up(const Scheduler *s, const char *destination) {
        const Destination *d = scheduler_find_destination(s, destination);
        return d && d->is_cleaned_up;
}

bool scheduler_can_continue(const Scheduler *s, const Bundle *b) {
        for (size_t i = 0; b->source && i < b->rec.n_deliveries; i++) {
                const DeliveryRecord *delivery = &b->rec.deliveries[i];
                if (delivery->state != DELIVERY_DONE &&
                    !deliveries_is_given_up(s->shared.config, delivery) &&
                    !deliveries_has_failed(b, delivery) &&
                    scheduler_find_destination(s, delivery->destination))
                        return true;
        }
        return false;
}

/* ---- life ---- */

static unsigned count_compressors(const Config *config) {
        if (config->limits.compression_threads > 0)
                return (unsigned)config->limits.compression_threads;
        cpu_set_t set;
        bool is_known = sched_getaffinity(0, sizeof set, &set) == 0;
        return delivery_memory_auto_compressors(config, is_known ? (unsigned)CPU_COUNT(&set) : 1);
}

/* A volume's second worker costs memory, so there has to be enough. */
static int add_second_workers(Scheduler *s) {
        int r = 0;
        if (!delivery_memory_allows_second_workers(&s->shared.memory))
                return 0;
        for (size_t i = 0; r >= 0 && i < s->shared.n_destinations; i++) {
                Destination *head = &s->destinations[i];
                if (head->type->can_interrupt)
                        continue;
                delivery_memory_reserve_second_worker(&s->shared.memory);
                r = destination_init(&s->destinations[s->n_all++], &s->shared, head, head->config,
                                     head->type);
        }
        return r;
}

/* A destination that was removed may be configured again; then its unfinished uploads and temporary
 * files are removed after all. */
#define FORMER_USEC (7 * USEC_PER_DAY)

static void forget_former_destinations(const Scheduler *s) {
        _cleanup_(strbuf_done) StrBuf names = STRBUF_INIT;
        strbuf_add(&names, "\n");
        for (size_t i = 0; i < s->shared.n_destinations; i++) {
                strbuf_add(&names, s->destinations[i].config->name);
                strbuf_add(&names, "\n");
        }
        int r = strbuf_error(&names);
        if (r == 0)
                r = store_abort_drop_former(s->context.store, names.text,
                                            s->shared.started_usec -
                                                    MIN(s->shared.started_usec, FORMER_USEC));
        if (r < 0)
                log_warning(r, "what is to be aborted at destinations that are not configured any "
                               "more stays until the next start");
}

static void on_due(Destination *d) {
        kick_destination(d);
}

static void on_probed(Destination *d, bool is_ok) {
        if (!is_ok)
                scheduler_results_end_cancelled(scheduler_of(d));
        scheduler_kick(scheduler_of(d)); /* a second worker, too */
}

static DestinationShared build_shared(const SchedulerContext *c, const Config *config) {
        const unsigned n_compressors = count_compressors(config);
        return (DestinationShared){
                .event = c->event,
                .clock = c->clock,
                .store = c->store,
                .instance_id = c->instance_id,
                .hostname = c->hostname,
                .environment = c->environment,
                .get_source_spec = c->get_source_spec,
                .is_once = c->is_urgent,
                .config = config,
                .started_usec = c->clock->realtime_usec(c->clock),
                .n_compressors = n_compressors,
                .memory = { .config = config, .n_compressors = n_compressors },
                .object_timeout_usec =
                        c->object_timeout_usec > 0 ? c->object_timeout_usec : STALL_TIMEOUT_USEC,
                .on_due = on_due,
                .on_probed = on_probed,
        };
}

int scheduler_new(Scheduler **ret, const SchedulerContext *context, const Config *config) {
        Scheduler *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (Scheduler){ .context = *context,
                          .shared = build_shared(context, config),
                          .is_urgent = context->is_urgent };
        int r = rate_limits_new(&s->shared.limits, context->clock, config);
        if (r >= 0)
                atomic_store(&s->shared.limits->is_urgent, s->is_urgent);
        s->destinations = calloc(2 * config->n_destinations + 1, sizeof *s->destinations);
        if (r >= 0)
                r = s->destinations ? worker_pool_new(&s->shared.compressors, NULL, "nc-zstd",
                                                      s->shared.n_compressors, WORKER_IDLE)
                                    : -ENOMEM;
        for (size_t i = 0; r >= 0 && i < config->n_destinations; i++) {
                const ConfigDestination *c = &config->destinations[i];
                Destination *d = &s->destinations[i];
                s->shared.n_destinations = s->n_all = i + 1;
                r = destination_init(d, &s->shared, d, c,
                                     c->type == CONFIG_S3 ? &destination_s3_type
                                                          : &destination_volume_type);
        }
        if (r >= 0)
                r = add_second_workers(s);
        if (r < 0) {
                scheduler_free(s);
                return r;
        }
        forget_former_destinations(s);
        *ret = s;
        return 0;
}

/* @return whether its worker hangs: then what it uses stays */
static bool end_destination(Destination *d, uint64_t until_usec) {
        bool hung = destination_stop(d, until_usec);
        if (d->bundle) {
                d->bundle->shipping.n_running--;
                (void)bundle_set_delivery_state(
                        d->bundle, deliveries_find(d->bundle, d->config->name), DELIVERY_PENDING);
                scheduler_results_end_shipping(scheduler_of(d), d->bundle, BUNDLE_READY,
                                               d->type->cut_text);
        }
        if (hung)
                log_warning(0,
                            "destination %s: did not stop within 5 s, leaving its worker behind; "
                            "what it was shipping starts over",
                            d->config->name);
        destination_close(d, hung);
        return hung;
}

Scheduler *scheduler_free(Scheduler *s) {
        if (!s)
                return NULL;
        s->is_stopping = true;
        for (size_t i = 0; i < s->n_all; i++)
                if (s->destinations[i].running)
                        atomic_store(&s->destinations[i].running->run.abort, true);
        uint64_t until =
                s->stop_usec > 0 ? s->stop_usec : scheduler_boottime_usec(s) + STOP_TIMEOUT_USEC;
        bool hung = false;
        for (size_t i = 0; i < s->n_all; i++)
                hung |= end_destination(&s->destinations[i], until);
        if (!hung) /* a hung worker may still come to compress */
                worker_pool_free(s->shared.compressors);
        rate_limits_unref(s->shared.limits);
        free(s->destinations);
        free(s);
        return NULL;
}

void scheduler_abandon_uploads(Scheduler *s, const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++) {
                int r = store_ledger_abandon(s->context.store, b->rec.id,
                                             b->rec.deliveries[i].destination);
                if (r < 0)
                        log_dump(b->rec.id, LOG_WARNING, r,
                                 "cannot record that its upload must be aborted");
                Destination *d = scheduler_find_destination(s, b->rec.deliveries[i].destination);
                if (d && d->type->abandon && b->rec.deliveries[i].object &&
                    b->rec.deliveries[i].state != DELIVERY_DONE)
                        d->type->abandon(d, b, &b->rec.deliveries[i]);
        }
}

void scheduler_set_config(Scheduler *s, const Config *config) {
        s->shared.config = s->shared.memory.config = config;
        for (size_t i = 0; i < s->shared.n_destinations; i++)
                s->destinations[i].config = &config->destinations[i];
        for (size_t i = s->shared.n_destinations; i < s->n_all; i++)
                s->destinations[i].config = s->destinations[i].head->config;
}
