/* Who goes when: a destination's next bundle, what has to come before it, and when a large one makes room. */
#include <string.h>

#include "agent/delivery/pipeline_private.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

/* A large bundle gets on for so long before a small one goes in between, and for ten times as long as it takes to begin again. */
#define LARGE_TURN_USEC (10 * USEC_PER_SEC)
#define LARGE_TURN_SETUPS 10

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source;
        (void)usec;
        pipeline_destination_kick(userdata);
        return 0;
}

void pipeline_kick_in(Destination *d, uint64_t usec) {
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

void pipeline_destination_kick(Destination *d) {
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
