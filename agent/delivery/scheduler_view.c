/* What the scheduler shows: states of destinations, running deliveries, figures, and in sentences
 * what a delivery waits for. It changes nothing but what it remembers of stalls: a mount that hangs
 * raises no event, so a stall is only found when somebody looks. */
#include <stdio.h>
#include <string.h>

#include "agent/delivery/deliveries.h"
#include "agent/delivery/scheduler_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"

size_t scheduler_n_destinations(const Scheduler *s) {
        return s->shared.n_destinations;
}

/* Why nothing is sent, when the destination waits for us. */
#define NO_CPU                                                                                     \
        "the threads that read and pack get no CPU, other work on the node uses all of them: "     \
        "leave it one, or raise CPUWeight= of the agent's unit"

#define NO_DATA "reading the source is too slow: its file system hangs, or is very slow"

static bool lacks_cpu(const Destination *d) {
        return worker_pool_wants_cpu(d->worker) || worker_pool_wants_cpu(d->shared->compressors);
}

/* A mount that hangs never answers, so no event changes the state: it is checked when it is shown.
 * What our own side causes is reported, and does not change the destination's state. */
static void view_stall(Destination *d, SchedulerDestinationView *ret) {
        bool is_ours;
        uint64_t still = destination_stall(d, &is_ours);
        if (still == 0) {
                d->stall_error[0] = '\0';
                return;
        }
        bool is_logged = d->stall_error[0] != '\0', no_cpu = lacks_cpu(d);
        is_ours = is_ours || (no_cpu && !d->type->awaits_destination);
        snprintf(d->stall_error, sizeof d->stall_error, "%s for %llu s: %s",
                 is_ours ? "nothing to send" : "no answer",
                 (unsigned long long)(still / USEC_PER_SEC),
                 !is_ours ? d->type->stall_text
                 : no_cpu ? NO_CPU
                          : NO_DATA);
        if (!is_logged)
                log_warning(0, "destination %s: %s", d->config->name, d->stall_error);
        if (!is_ours)
                ret->state = destination_state_name(DESTINATION_FAILING);
        ret->last_error = d->stall_error;
}

/* A destination that accepts other bundles, and has failed one by its own fault, is shown as
 * failing until that bundle gets through. */
static void view_failed_delivery(const Destination *d, SchedulerDestinationView *ret) {
        LIST_FOREACH (l, bundle_table_all(scheduler_of(d)->context.bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                const DeliveryRecord *delivery = deliveries_find(b, d->config->name);
                if (!delivery || !deliveries_tries(b, delivery)->by_destination)
                        continue;
                ret->state = destination_state_name(DESTINATION_FAILING);
                ret->last_error = delivery->last_error;
                return;
        }
}

void scheduler_destination_view(const Scheduler *s, size_t i, SchedulerDestinationView *ret) {
        Destination *d = &s->destinations[i];
        *ret = (SchedulerDestinationView){ .name = d->config->name,
                                           .type = d->type->name,
                                           .state = destination_state_name(d->state),
                                           .last_error = d->last_error,
                                           .last_success_usec = d->last_success_usec,
                                           .bytes_delivered = destination_bytes_delivered(d) };
        if (d->state == DESTINATION_OK)
                view_failed_delivery(d, ret);
        view_stall(d, ret);
        for (size_t k = s->shared.n_destinations; k < s->n_all; k++)
                if (s->destinations[k].head == d)
                        view_stall(&s->destinations[k], ret);
}

size_t scheduler_deliveries_view(const Scheduler *s, SchedulerDeliveryView *ret) {
        size_t n = 0;
        for (size_t i = 0; i < s->n_all; i++) {
                Destination *d = &s->destinations[i];
                if (!d->running)
                        continue;
                (void)d->type->refresh(d);
                ret[n++] = (SchedulerDeliveryView){
                        .id = d->bundle->rec.id,
                        .destination = d->config->name,
                        .sent_bytes = atomic_load(&d->running->run.sent_bytes),
                        .done_bytes = atomic_load(&d->running->run.done_bytes),
                        .total_bytes = atomic_load(&d->running->run.total_bytes),
                        .start_usec = d->running->run.start_usec,
                };
        }
        return n;
}

/* READY for a destination that is not configured. */
static bool is_orphaned(const Scheduler *s, const Bundle *b) {
        for (size_t i = 0; b->rec.state == BUNDLE_READY && i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE &&
                    !scheduler_find_destination(s, b->rec.deliveries[i].destination))
                        return true;
        return false;
}

void scheduler_figures(const Scheduler *s, SchedulerFigures *ret) {
        *ret = (SchedulerFigures){ .limits = s->shared.limits,
                                   .buffer_bytes = s->shared.memory.used_bytes,
                                   .n_aborted_uploads = s->shared.n_aborted };
        memcpy(ret->n_retries, s->n_retries, sizeof ret->n_retries);
        ret->n_retries[SCHEDULER_RETRY_DESTINATION] = s->shared.n_failures;
        LIST_FOREACH (l, bundle_table_all(s->context.bundles))
                ret->n_orphaned += is_orphaned(s, CONTAINER_OF(l, Bundle, link));
        for (size_t i = 0; i < s->n_all; i++) {
                const Delivery *job = s->destinations[i].running;
                ret->bytes_read += job ? atomic_load(&job->run.read_bytes) : 0;
                ret->bytes_sent += job ? atomic_load(&job->run.sent_bytes) : 0;
        }
}

bool scheduler_requests(const Scheduler *s, size_t i, S3Stats *ret) {
        const Destination *d = &s->destinations[i];
        return d->type->stats && d->type->stats(d, ret);
}

/* @return where this bundle is being shipped to d, NULL when it is not */
static const Destination *delivery_at(const Scheduler *s, const Destination *d, const Bundle *b) {
        for (size_t i = 0; i < s->n_all; i++)
                if (s->destinations[i].head == d && s->destinations[i].bundle == b)
                        return &s->destinations[i];
        return NULL;
}

char *scheduler_explain(const Scheduler *s, const Bundle *b, const DeliveryRecord *delivery) {
        StrBuf text = STRBUF_INIT;
        const Destination *d = scheduler_find_destination(s, delivery->destination);
        const Destination *at = d ? delivery_at(s, d, b) : NULL;
        char span[64];
        uint64_t now = scheduler_realtime_usec(s), boot = scheduler_boottime_usec(s);
        strbuf_addf(&text, "To %s: ", delivery->destination);
        if (delivery->state == DELIVERY_DONE)
                strbuf_add(&text, "delivered and proven.");
        else if (!d)
                strbuf_add(&text, "this destination is no longer configured; add it again, run "
                                  "`neuron-collect redeliver` to ship it to those that its source "
                                  "has now, or cancel the bundle.");
        else if (at)
                strbuf_addf(&text, "being shipped now, %llu %% done.",
                            100ULL * atomic_load(&at->running->run.done_bytes) /
                                    MAX(atomic_load(&at->running->run.total_bytes), UINT64_C(1)));
        else if (deliveries_is_given_up(s->shared.config, delivery))
                strbuf_addf(&text,
                            "given up after %u %s, last: %s; fix it, then `neuron-collect "
                            "retry %s`.",
                            delivery->attempts, delivery->attempts == 1 ? "failure" : "failures",
                            delivery->last_error ? delivery->last_error : "?", b->rec.id);
        else if (boot < d->not_before_usec)
                strbuf_addf(&text, "the destination is %s (%s); the next try is in %s.",
                            destination_state_name(d->state), d->last_error ? d->last_error : "?",
                            clock_format_duration(span, d->not_before_usec - boot));
        else if (delivery->next_try_usec > now) {
                if (delivery->attempts > 0) /* 0: the destination failed, not the bundle */
                        strbuf_addf(&text, "failed %u %s, last: ", delivery->attempts,
                                    delivery->attempts == 1 ? "time" : "times");
                strbuf_addf(&text, "%s; the next try is in %s.",
                            delivery->last_error ? delivery->last_error : "it waits",
                            clock_format_duration(span, delivery->next_try_usec - now));
        } else if (d->running)
                strbuf_addf(&text, "waits for its turn, '%s' is being shipped.", d->bundle->rec.id);
        else if (boot < d->jitter_until_usec)
                strbuf_addf(&text,
                            "will be shipped in %s, so that not all nodes start at the "
                            "same moment.",
                            clock_format_duration(span, d->jitter_until_usec - boot));
        else
                strbuf_add(&text, "will be shipped as soon as it is ready.");
        return strbuf_detach(&text);
}
