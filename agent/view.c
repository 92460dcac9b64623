/* Fills the view that the API shows as status and metrics. What it points into belongs to the agent
 * until the next one is filled. */
#include "agent/agent_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/delivery/scheduler.h"
#include "agent/intake/intake.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"
#include "uploaders/s3/s3_client.h"

#define REQUESTS_MAX 64 /* kinds of requests of a destination that are shown */

typedef struct AgentViewSpace {
        DestinationView *destinations;
        ShippingView *shipping;
        SourceView *sources;
        RequestView *requests;
        LabelledCount retries[N_SCHEDULER_RETRIES + 1];
        char note[512];
        char *agreement;
} AgentViewSpace;

static const char *const retry_names[N_SCHEDULER_RETRIES] = {
        [SCHEDULER_RETRY_DESTINATION] = "destination",
        [SCHEDULER_RETRY_BUNDLE] = "bundle",
        [SCHEDULER_RETRY_CHANGED] = "source_changed",
};

static void free_space(AgentViewSpace *s) {
        free(s->destinations);
        free(s->shipping);
        free(s->requests);
        free(s->sources);
        free(s->agreement);
        *s = (AgentViewSpace){ 0 };
}

static bool allocate_space(const Agent *a) {
        AgentViewSpace *s = a->space;
        size_t n = scheduler_n_destinations(a->scheduler);
        free_space(s);
        s->destinations = calloc(n + 1, sizeof *s->destinations);
        s->shipping = calloc(SCHEDULER_DELIVERIES_MAX(n) + 1, sizeof *s->shipping);
        s->requests = calloc(n * REQUESTS_MAX + 1, sizeof *s->requests);
        s->sources = calloc(a->n_sources + 1, sizeof *s->sources);
        return s->destinations && s->shipping && s->requests && s->sources;
}

static void view_one_shipping(const Agent *a, const SchedulerDeliveryView *d, ShippingView *ret) {
        uint64_t elapsed = a->clock->boottime_usec(a->clock) - d->start_usec;
        uint64_t rate = elapsed > 0 ? (uint64_t)((double)d->done_bytes * 1e6 / (double)elapsed) : 0;
        uint64_t remaining = d->total_bytes > d->done_bytes ? d->total_bytes - d->done_bytes : 0;
        *ret = (ShippingView){ .id = d->id,
                               .destination = d->destination,
                               .sent_bytes = d->sent_bytes,
                               .done_bytes = d->done_bytes,
                               .total_bytes = d->total_bytes,
                               .rate = rate,
                               .eta_seconds =
                                       rate > 0 ? (remaining + rate - 1) / rate : UINT64_MAX };
}

static void view_shipping(Agent *a, AgentView *v) {
        AgentViewSpace *s = a->space;
        size_t n = SCHEDULER_DELIVERIES_MAX(scheduler_n_destinations(a->scheduler));
        _cleanup_free_ SchedulerDeliveryView *views = calloc(n + 1, sizeof *views);
        n = views ? scheduler_deliveries_view(a->scheduler, views) : 0;
        for (size_t i = 0; i < n; i++)
                view_one_shipping(a, &views[i], &s->shipping[v->n_shipping++]);
        v->shipping = s->shipping;
}

/* ---- how many delivered bundles lack a destination ----
 *
 * Counting reads all delivered rows, so it is done some thousand rows at a time, and again only
 * when the number may have changed. */

/* Rows that are read at a time, so that the loop is not held up. */
#define LACKING_ROWS 4096
#define LACKING_USEC (50 * USEC_PER_MSEC)

/* @return whether there are more */
static bool count_lacking_rows(Agent *a) {
        const Config *c = a->config;
        StoreRows rows = { a->lacking_row, a->lacking_row + LACKING_ROWS };
        for (size_t i = 0; i < c->n_destinations; i++)
                for (size_t k = 0; k < c->n_sources; k++)
                        if (string_list_has(&c->sources[k].destinations, c->destinations[i].name))
                                a->n_lacking[i] +=
                                        store_count_lacking(a->store, c->sources[k].name,
                                                            c->destinations[i].name, rows);
        a->lacking_row = rows.to;
        return rows.to < store_last_row(a->store);
}

static int on_lacking_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        (void)usec;
        return a->n_lacking && count_lacking_rows(a) ? timer_rearm(source, LACKING_USEC) : 0;
}

static void count_lacking(Agent *a) {
        a->n_lacking = calloc(a->config->n_destinations + 1, sizeof *a->n_lacking);
        a->lacking_row = 0;
        if (a->n_lacking && count_lacking_rows(a))
                (void)timer_arm(&a->lacking_timer, /* without the timer the number is too low */
                                &(TimerOptions){ .event = a->event,
                                                 .usec = LACKING_USEC,
                                                 .handler = on_lacking_timer,
                                                 .userdata = a });
}

void agent_recount_lacking(Agent *a) {
        free(a->n_lacking);
        a->n_lacking = NULL;
}

/* ---- the sections of the view ---- */

static void view_destinations(Agent *a, AgentView *v) {
        AgentViewSpace *s = a->space;
        if (!a->n_lacking)
                count_lacking(a);
        for (size_t i = 0; i < scheduler_n_destinations(a->scheduler); i++) {
                SchedulerDestinationView d;
                scheduler_destination_view(a->scheduler, i, &d);
                s->destinations[v->n_destinations++] =
                        (DestinationView){ .name = d.name,
                                           .type = d.type,
                                           .state = d.state,
                                           .last_error = d.last_error,
                                           .last_success_usec = d.last_success_usec,
                                           .bytes_delivered = d.bytes_delivered,
                                           .n_lacking = a->n_lacking ? a->n_lacking[i] : 0 };
                if (strcmp(d.state, "ok") != 0 && !v->ready_note)
                        v->ready_note =
                                d.last_error ? d.last_error : "a destination cannot be written";
        }
        v->destinations = s->destinations;
}

static void add_latencies(Histogram *h, const S3Stats *r) {
        static_assert(sizeof h->le == sizeof r->le && sizeof h->count == sizeof r->count,
                      "both have the same buckets");
        memcpy(h->le, r->le, sizeof h->le);
        for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
                h->count[i] += r->count[i];
        h->total += r->total;
        h->sum += r->sum;
}

static void view_requests(Agent *a, AgentView *v) {
        AgentViewSpace *s = a->space;
        LabelledCount *retries = &s->retries[N_SCHEDULER_RETRIES];
        *retries = (LabelledCount){ "request", 0 };
        for (size_t i = 0; i < v->n_destinations; i++) {
                S3Stats r;
                if (!scheduler_requests(a->scheduler, i, &r))
                        continue;
                for (size_t k = 0; k < MIN(r.n, (size_t)REQUESTS_MAX); k++)
                        s->requests[v->n_requests++] =
                                (RequestView){ .destination = v->destinations[i].name,
                                               .operation = s3_operation_name(r.items[k].operation),
                                               .code = r.items[k].status,
                                               .n = r.items[k].n };
                add_latencies(&v->request_seconds, &r);
                retries->count += r.n_retries;
        }
        v->requests = s->requests;
        v->n_uploads_to_abort = store_abort_count(a->store, NULL, false);
}

static void view_sources(Agent *a, AgentView *v) {
        AgentViewSpace *s = a->space;
        v->idle = true;
        for (size_t i = 0; i < a->n_sources; i++) {
                const char *degraded = intake_source_view(a->sources[i], &s->sources[i]);
                v->idle = v->idle && intake_source_is_idle(a->sources[i]);
                if (!degraded || v->ready_note)
                        continue;
                (void)snprintf(s->note, sizeof s->note, "source %s: %s", s->sources[i].name,
                               degraded);
                v->ready_note = s->note;
        }
        v->sources = s->sources;
        v->n_sources = a->n_sources;
}

/* A unit that is refused is tried again within a minute. So long after the last refusal none waits
 * any more. */
#define REFUSED_USEC (5 * USEC_PER_MINUTE)

/* Each source has a bound of its own: `max` and what is counted are of all of them. */
static void view_bounded_paths(const Agent *a, AgentView *v) {
        Bound sum = { 0 };
        for (size_t i = 0; i < a->n_sources; i++) {
                const Bound *b = intake_source_paths(a->sources[i]);
                sum.what = b->what;
                sum.max += b->max;
                sum.max_each = b->max_each;
                sum.total += b->total;
                sum.n_refused += b->n_refused;
                if (b->n_refused == 0 || b->last_refused_usec < sum.last_refused_usec)
                        continue;
                sum.last_refused = b->last_refused;
                sum.last_refused_usec = b->last_refused_usec;
        }
        if (a->n_sources > 0)
                agent_view_add_bound(v, &sum);
}

static void view_bounded_units(const Agent *a, AgentView *v) {
        const IntakeContext *c = &a->intake_context;
        const Bound *const units[] = { &c->active, &c->hook_units, &c->new_units };
        uint64_t now = a->clock->boottime_usec(a->clock);
        for (size_t i = 0; i < ELEMENTSOF(units); i++) {
                agent_view_add_bound(v, units[i]);
                if (units[i]->n_refused > 0 && now - units[i]->last_refused_usec < REFUSED_USEC)
                        v->busy_note = "there are more units than are worked on at a time, and "
                                       "some wait for their turn; see `bounded` in the status";
        }
        agent_view_add_bound(v, &c->held);
        agent_view_add_bound(v, &c->watched);
        agent_view_add_bound(v, &c->hints);
        agent_view_add_bound(v, &c->root_hints);
        agent_view_add_bound(v, crash_reports_bound(a->crash_reports));
        agent_view_add_bound(v, evidence_bound(a->evidence));
}

static void view_retention(Agent *a, AgentView *v) {
        for (size_t i = 0; i < a->n_sources; i++)
                retention_runner_view(a->retention_runner, a->sources[i], &a->space->sources[i]);
        v->n_sources_deleted = store_counter(a->store, "sources_deleted");
        v->sources_deleted_bytes = store_counter(a->store, "sources_deleted_bytes");
}

static void view_limits(const RateLimits *l, LimitsView *ret) {
        *ret = (LimitsView){ .upload_rate = ratelimit_rate(l->upload),
                             .work_share = pressure_share_now(l->pressure),
                             .note = l->note };
}

static void view_counts(Agent *a, const SchedulerFigures *f, AgentView *v) {
        AgentViewSpace *s = a->space;
        StoreCounts counts;
        bundle_table_counts(a->bundles, &counts);
        v->unaccounted = store_counts_difference(&counts);
        memcpy(v->bundles, counts.bundles, sizeof v->bundles);
        memcpy(v->bytes_by_state, counts.bytes, sizeof v->bytes_by_state);
        for (size_t i = 0; i < v->n_destinations; i++)
                v->bytes_delivered += v->destinations[i].bytes_delivered;
        v->bytes_sent = store_counter(a->store, "bytes_sent") + f->bytes_sent;
        v->bytes_read = store_counter(a->store, "bytes_read") + f->bytes_read;
        v->buffer_bytes = f->buffer_bytes;
        v->n_aborted_uploads = f->n_aborted_uploads;
        v->discards = a->discards;
        v->n_discards = a->n_discards;
        for (int i = 0; i < N_SCHEDULER_RETRIES; i++)
                s->retries[i] = (LabelledCount){ retry_names[i], f->n_retries[i] };
        v->retries = s->retries;
        v->n_retries = ELEMENTSOF(s->retries);
}

static void view_hook(const Agent *a, AgentView *ret) {
        ret->hook = (HookView){ .socket = a->config->hook.socket,
                                .mailbox = a->config->hook.mailbox,
                                .trouble = "hook notes cannot be received" };
        if (a->incidents)
                incidents_fill_view(a->incidents, &ret->hook);
        if (a->notes)
                hooknotes_fill_view(a->notes, ret);
}

static void view_agreement(Agent *a, AgentView *v) {
        static const Agreed order[] = { AGREED_STORE, AGREED_BUS, AGREED_ALONE };
        StrBuf b = STRBUF_INIT;
        for (size_t i = 0; i < ELEMENTSOF(order); i++)
                v->named[i] = (LabelledCount){ agreed_name(order[i]),
                                               a->failures ? failures_n_named(a->failures, order[i])
                                                           : 0 };
        if (!a->failures)
                return;
        failures_add_status(a->failures, &b);
        v->agreement = a->space->agreement = strbuf_detach(&b);
}

void agent_view_fill(AgentView *ret, void *userdata) {
        Agent *a = userdata;
        *ret = (AgentView){ .version = PACKAGE_VERSION,
                            .instance_id = a->instance_id,
                            .state = a->drain.state == AGENT_STOPPING ? "stopping"
                                     : agent_is_draining(a)           ? "draining"
                                                                      : "running",
                            .pid = getpid(),
                            .started_usec = a->started_usec,
                            .config_file = a->config->file,
                            .config_loaded_usec = a->loaded_usec,
                            .config_last_error = a->config_error,
                            .config_pending_restart = a->pending_restart,
                            .delivery_seconds = a->delivery_seconds };
        if (!allocate_space(a)) {
                ret->ready_note = "out of memory";
                return;
        }
        SchedulerFigures figures;
        scheduler_figures(a->scheduler, &figures);
        view_destinations(a, ret);
        view_shipping(a, ret);
        agent_fill_drain_view(a, &ret->drain);
        view_requests(a, ret);
        view_sources(a, ret);
        view_bounded_units(a, ret);
        view_bounded_paths(a, ret);
        view_retention(a, ret);
        view_limits(figures.limits, &ret->limits);
        view_hook(a, ret);
        view_agreement(a, ret);
        view_counts(a, &figures, ret);
        ret->idle = ret->idle && bundle_table_n_open(a->bundles) == 0;
        if (figures.n_orphaned > 0 && !ret->ready_note) {
                snprintf(a->space->note, sizeof a->space->note,
                         "%zu %s for a destination that is no longer configured; add it again, or "
                         "run `neuron-collect redeliver`",
                         figures.n_orphaned,
                         figures.n_orphaned == 1 ? "bundle waits" : "bundles wait");
                ret->ready_note = a->space->note;
        }
        if (bundle_table_note(a->bundles))
                ret->ready_note = bundle_table_note(a->bundles);
        ret->ready = !ret->ready_note;
        if (ret->ready)
                ret->ready_note = ret->busy_note;
}

void agent_view_init(Agent *a) {
        a->space = calloc(1, sizeof *a->space);
}

void agent_view_done(Agent *a) {
        agent_recount_lacking(a);
        sd_event_source_disable_unref(a->lacking_timer);
        if (a->space)
                free_space(a->space);
        free(a->space);
}
