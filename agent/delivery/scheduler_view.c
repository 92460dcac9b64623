/* What the pipeline shows: states, figures, sentences. */
#include <stdio.h>
#include <string.h>

#include "agent/delivery/destination.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"

size_t scheduler_n_destinations(const Scheduler *s) {
        return s->n_destinations;
}

/* What it means when our own side provides nothing. */
#define NO_CPU                                                                                     \
        "the threads that read and pack get no CPU, other work on the node uses all of them: "     \
        "leave it one, or raise CPUWeight= of the agent's unit"

#define NO_DATA "reading the source is too slow: its file system hangs, or is very slow"

static bool lacks_cpu(const Destination *d) {
        return worker_pool_wants_cpu(d->worker) || worker_pool_wants_cpu(d->scheduler->compressors);
}

/* For how long what is at work there has given no sign of life; 0 = it does, or nothing is. While
 * the plan is made the destination is not asked for anything. @param ret_is_ours  whether it waits
 * for us, not for the destination */
static uint64_t destination_stall(Destination *d, bool *ret_is_ours) {
        uint64_t now = scheduler_boottime_usec(d->scheduler);
        *ret_is_ours = false;
        if (d->activity == ACTIVITY_PROBING)
                return stall_check(&d->stall, d->probe_start_usec, 0, now);
        if (!d->running || atomic_load(&d->running->total_bytes) == 0)
                return 0;
        uint64_t progress = d->type->refresh(d), since = d->running->start_usec;
        if (d->type->awaits_destination && !d->type->awaits_destination(d, &since)) {
                *ret_is_ours = true;
                progress = atomic_load(&d->running->n_reads);
        }
        return since == 0 ? 0 : stall_check(&d->stall, since, progress, now);
}

/* A mount that hangs never answers, so no answer makes the state: it is found by looking. What is
 * our own fault is said, and makes no state of the destination's. */
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

void scheduler_destination_view(const Scheduler *s, size_t i, SchedulerDestinationView *ret) {
        Destination *d = &s->destinations[i];
        char counter[128];
        snprintf(counter, sizeof counter, "bytes_delivered:%s", d->config->name);
        *ret = (SchedulerDestinationView){ .name = d->config->name,
                                           .type = d->type->name,
                                           .state = destination_state_name(d->state),
                                           .last_error = d->last_error,
                                           .last_success_usec = d->last_success_usec,
                                           .bytes_delivered =
                                                   store_counter(s->context.store, counter),
                                           .next_try_usec = d->not_before_usec };
        view_stall(d, ret);
        for (size_t k = s->n_destinations; k < s->n_all; k++)
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
                        .sent_bytes = atomic_load(&d->running->sent_bytes),
                        .done_bytes = atomic_load(&d->running->done_bytes),
                        .total_bytes = atomic_load(&d->running->total_bytes),
                        .start_usec = d->running->start_usec,
                };
        }
        return n;
}

size_t scheduler_n_orphaned(const Scheduler *s) {
        size_t n = 0;
        LIST_FOREACH (l, bundle_table_all(s->context.bundles)) {
                const Bundle *b = CONTAINER_OF(l, Bundle, link);
                bool orphaned = false;
                for (size_t i = 0; b->rec.state == BUNDLE_READY && i < b->rec.n_deliveries; i++)
                        orphaned =
                                orphaned ||
                                (b->rec.deliveries[i].state != DELIVERY_DONE &&
                                 !scheduler_find_destination(s, b->rec.deliveries[i].destination));
                n += orphaned;
        }
        return n;
}

bool scheduler_can_continue(const Scheduler *s, const Bundle *b) {
        for (size_t i = 0; b->source && i < b->rec.n_deliveries; i++) {
                const DeliveryRecord *delivery = &b->rec.deliveries[i];
                if (delivery->state != DELIVERY_DONE && !scheduler_has_given_up(s, delivery) &&
                    !b->tries[scheduler_tries_index(b, delivery)].failed &&
                    scheduler_find_destination(s, delivery->destination))
                        return true;
        }
        return false;
}

const RateLimits *scheduler_rate_limits(const Scheduler *s) {
        return s->limits;
}

uint64_t scheduler_buffer_bytes(const Scheduler *s) {
        return s->memory_used;
}

uint64_t scheduler_bytes_read(const Scheduler *s) {
        uint64_t n = 0;
        for (size_t i = 0; i < s->n_all; i++)
                n += s->destinations[i].running
                             ? atomic_load(&s->destinations[i].running->read_bytes)
                             : 0;
        return n;
}

uint64_t scheduler_bytes_sent(const Scheduler *s) {
        uint64_t n = 0;
        for (size_t i = 0; i < s->n_all; i++)
                n += s->destinations[i].running
                             ? atomic_load(&s->destinations[i].running->sent_bytes)
                             : 0;
        return n;
}

bool scheduler_requests(const Scheduler *s, size_t i, SchedulerRequests *ret) {
        const Destination *d = &s->destinations[i];
        if (!d->type->stats)
                return false;
        d->type->stats(d, ret);
        return true;
}

uint64_t scheduler_n_retries(const Scheduler *s, SchedulerRetry why) {
        return s->n_retries[why];
}

uint64_t scheduler_n_aborted_uploads(const Scheduler *s) {
        return s->n_aborted;
}

/* @return where this bundle is being shipped to d, NULL when it is not */
static const Destination *delivery_at(const Scheduler *s, const Destination *d, const Bundle *b) {
        for (size_t i = 0; i < s->n_all; i++)
                if (s->destinations[i].head == d && s->destinations[i].bundle == b)
                        return &s->destinations[i];
        return NULL;
}

static unsigned percent_done(const Destination *at) {
        return (unsigned)(100 * atomic_load(&at->running->done_bytes) /
                          MAX(atomic_load(&at->running->total_bytes), UINT64_C(1)));
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
                strbuf_add(&text, "this destination is no longer configured; add it again, or "
                                  "cancel the bundle.");
        else if (at)
                strbuf_addf(&text, "being shipped now, %u %% done.", percent_done(at));
        else if (scheduler_has_given_up(s, delivery))
                strbuf_addf(&text,
                            "given up after %u failures, last: %s; fix it, then `neuron-collect "
                            "retry %s`.",
                            delivery->attempts, delivery->last_error ? delivery->last_error : "?",
                            b->rec.id);
        else if (boot < d->not_before_usec)
                strbuf_addf(&text, "the destination is %s (%s); the next try is in %s.",
                            destination_state_name(d->state), d->last_error ? d->last_error : "?",
                            clock_format_duration(span, d->not_before_usec - boot));
        else if (delivery->next_try_usec > now)
                strbuf_addf(&text, "failed %u times, last: %s; the next try is in %s.",
                            delivery->attempts, delivery->last_error ? delivery->last_error : "?",
                            clock_format_duration(span, delivery->next_try_usec - now));
        else if (d->running)
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

uint64_t stall_check(StallCheck *s, uint64_t start_usec, uint64_t progress, uint64_t now_usec) {
        if (s->start_usec != start_usec) /* no progress at all counts from the beginning */
                *s = (StallCheck){ .start_usec = start_usec, .since_usec = start_usec };
        if (s->progress != progress) {
                s->progress = progress;
                s->since_usec = now_usec;
        }
        uint64_t still = now_usec > s->since_usec ? now_usec - s->since_usec : 0;
        return still > STALL_TIMEOUT_USEC ? still : 0;
}
