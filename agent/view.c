/* The backend of agent/api: fills the views and performs the operator's requests. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "agent/store/store.h"
#include "lib/base/array.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"
#include "uploaders/s3/s3_client.h"

#define REQUESTS_MAX 64 /* kinds of requests of a destination that are shown */

#define SNAPSHOT_FILE_MAX_BYTES (256 * MIB) /* what the command line accepts in one reply */
#define SNAPSHOT_FILES_MAX 1024

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

/* So many rows are read at a time, so that nobody waits for it. */
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

/* Reads all delivered rows, so they are counted only when their number may have changed. */
static void count_lacking(Agent *a) {
        a->n_lacking = calloc(a->config->n_destinations + 1, sizeof *a->n_lacking);
        a->lacking_row = 0;
        if (a->n_lacking && count_lacking_rows(a))
                (void)timer_arm(&a->lacking_timer, /* else the number is too low */
                                &(TimerOptions){ .event = a->event,
                                                 .usec = LACKING_USEC,
                                                 .handler = on_lacking_timer,
                                                 .userdata = a });
}

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

/* What is refused is tried again at every scan: so long after the last one was logged it is over.
 */
#define REFUSED_USEC (5 * USEC_PER_MINUTE)

static void view_bounded_units(const Agent *a, AgentView *v) {
        const IntakeContext *c = &a->intake_context;
        const Owners *const units[] = { &c->active, &c->new_units };
        uint64_t now = a->clock->boottime_usec(a->clock);
        for (size_t i = 0; i < ELEMENTSOF(units); i++) {
                agent_view_add_bounded(v, units[i]);
                if (units[i]->logged_usec > 0 && now - units[i]->logged_usec < REFUSED_USEC)
                        v->busy_note = "there are more units than are worked on at a time, and "
                                       "some wait for their turn; see `bounded` in the status";
        }
        agent_view_add_bounded(v, &c->held);
        agent_view_add_bounded(v, &c->watched);
        agent_view_add_bounded(v, &c->hints);
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

static void on_view(AgentView *ret, void *userdata) {
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

/* ---- one bundle ---- */

static void explain_settling(const Bundle *b, StrBuf *text) {
        const ConfigSource *config = b->source ? intake_source_config(b->source) : NULL;
        if (!config) {
                strbuf_add(text,
                           "Its source is no longer configured, so the agent cannot check "
                           "whether it is complete; add the source again, or cancel the bundle.");
                return;
        }
        char settle[64], wait[64];
        clock_format_duration(settle, config->settle_usec);
        clock_format_duration(wait, config->max_wait_usec);
        strbuf_addf(text,
                    "It is shipped when it is complete: %s. It counts as complete when quiet for "
                    "%s (settle); after %s it is shipped labelled incomplete (max_wait).",
                    b->rec.reason ? b->rec.reason : "not checked yet", settle, wait);
}

/* What was delivered went to the destinations that its source had then. */
static void explain_delivered(const Agent *a, const BundleRecord *rec, StrBuf *text) {
        const IntakeSource *s = agent_source_by_name(a, rec->source);
        const StringList *now = s ? &intake_source_config(s)->destinations : NULL;
        strbuf_add(text, "Delivered, each copy with proof, to all destinations that it had: ");
        for (size_t i = 0; i < rec->n_deliveries; i++)
                strbuf_addf(text, "%s%s", i ? ", " : "", rec->deliveries[i].destination);
        strbuf_add(text, rec->links_held ? ". Its files are held until retention deletes them."
                                         : ". The source is no longer held.");
        for (size_t i = 0; now && i < now->n; i++)
                if (!bundle_record_has_destination(rec, now->items[i]))
                        strbuf_addf(text,
                                    " It was never sent to %s, which its source has now: "
                                    "`neuron-collect redeliver --destination %s` does that, if its "
                                    "files are still there.",
                                    now->items[i], now->items[i]);
}

static const char *final_sentence(const BundleRecord *rec) {
        switch (rec->state) {
        case BUNDLE_QUARANTINED:
                return rec->links_held ? "It failed too often and its source files are still held. "
                                         "Fix the cause, then retry it."
                                       : "It failed too often, and no links hold its source "
                                         "files. Fix the cause, then retry it while they are "
                                         "there.";
        case BUNDLE_CANCELLED:
                return "The operator cancelled it; its source files were not changed. It cannot be "
                       "undone, but a copy of them under another name in the source is delivered.";
        case BUNDLE_EVICTED:
                return "It was discarded undelivered, to free space for the job; only this row "
                       "remains.";
        default:
                return "";
        }
}

/* Its files were removed or renamed, or none of them may be collected, which the reason says. */
static void explain_vanished(const BundleRecord *rec, StrBuf *text) {
        size_t n = 0;
        for (size_t i = 0; i < rec->n_deliveries; i++)
                if (rec->deliveries[i].state == DELIVERY_DONE)
                        strbuf_addf(text, "%s%s", n++ ? ", " : "It was delivered to ",
                                    rec->deliveries[i].destination);
        strbuf_add(text, n ? ", but there was nothing more to ship to its other destinations."
                           : "There was nothing to ship.");
        strbuf_add(text, " It is collected if its files come back.");
}

static void explain_links(const Agent *a, StrBuf *text) {
        const ConfigSize *keep = &a->config->retention.keep_free_undelivered;
        char size[PARSE_FORMAT_SIZE];
        strbuf_add(text, " Hard links hold its files, also when they are removed at the source");
        if (keep->is_permille && keep->permille > 0)
                strbuf_addf(text,
                            ", while %g %% of that file system are free "
                            "(retention.keep_free_undelivered)",
                            keep->permille / 10.0);
        else if (!keep->is_permille && keep->bytes > 0)
                strbuf_addf(text,
                            ", while %s of that file system are free "
                            "(retention.keep_free_undelivered)",
                            parse_format_human(size, keep->bytes));
        strbuf_add(text, ".");
}

static char *explain(const Agent *a, const BundleRecord *rec, const Bundle *b) {
        StrBuf text = STRBUF_INIT;
        if (bundle_state_is_inactive(rec->state)) {
                if (rec->state == BUNDLE_DELIVERED)
                        explain_delivered(a, rec, &text);
                if (rec->state == BUNDLE_VANISHED)
                        explain_vanished(rec, &text);
                strbuf_add(&text, final_sentence(rec));
                if (rec->reason && rec->state != BUNDLE_CANCELLED)
                        strbuf_addf(&text, " Last: %s.", rec->reason);
        } else if (rec->state == BUNDLE_SETTLING && b)
                explain_settling(b, &text);
        else if (b) {
                if (!b->source)
                        strbuf_add(&text, "Its source is no longer configured; add it again to "
                                          "ship it, or cancel the bundle. ");
                for (size_t i = 0; i < rec->n_deliveries; i++) {
                        _cleanup_free_ char *one =
                                scheduler_explain(a->scheduler, b, &rec->deliveries[i]);
                        strbuf_addf(&text, "%s%s", i ? " " : "", one ? one : "");
                }
        }
        if (b && !bundle_is_written(b))
                strbuf_add(&text, " The state database cannot be written, so its source stays "
                                  "held; free space in the state directory, or fix its disk.");
        if (!rec->complete)
                strbuf_add(&text, " It is labelled incomplete.");
        if (rec->links_held && !bundle_state_is_terminal(rec->state))
                explain_links(a, &text);
        else if (b && b->held.n > 0)
                strbuf_add(&text,
                           " Links could not be created; open descriptors hold its files while "
                           "this agent runs.");
        if (rec->pinned)
                strbuf_add(&text, " Pinned by the operator.");
        _cleanup_free_ char *failure = a->failures ? failures_explain(a->failures, rec) : NULL;
        if (failure)
                strbuf_addf(&text, " %s", failure);
        return strbuf_detach(&text);
}

static int on_get(const char *id, BundleRecord *ret, char **ret_explain, void *userdata) {
        Agent *a = userdata;
        Bundle *b = bundle_table_find(a->bundles, id);
        int r = b ? bundle_record_copy(ret, &b->rec) : store_get(a->store, id, ret);
        if (r == STORE_E_NOT_FOUND)
                return -ENOENT;
        if (r < 0)
                return r;
        *ret_explain = explain(a, ret, b);
        return 0;
}

static int on_list(const ViewFilter *f, int (*on_bundle)(const BundleRecord *b, void *u), void *u,
                   void *userdata) {
        Agent *a = userdata;
        return bundle_table_list(a->bundles,
                                 &(StoreFilter){ .state = f->state,
                                                 .source = f->source,
                                                 .after = f->after,
                                                 .limit = f->limit },
                                 on_bundle, u);
}

/* ---- requests of the operator ---- */

static _printf_(2, 3) int refuse(char **ret_message, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        *ret_message = strbuf_vformat(fmt, ap);
        va_end(ap);
        return -EPERM;
}

/* A quarantined bundle is not in the table: inserts it again. */
static int revive(Agent *a, const BundleRecord *rec, const char *action, Bundle **ret,
                  char **ret_message) {
        int r = bundle_table_revive(a->bundles, rec->id, agent_source_by_name(a, rec->source), ret);
        return r == -EEXIST ? refuse(ret_message,
                                     "'%s' is part of another bundle that is not final; %s when "
                                     "that one is",
                                     rec->path, action)
                            : r;
}

static int act_retry(Agent *a, Bundle *b, const BundleRecord *rec, char **ret_message) {
        if (rec->state == BUNDLE_QUARANTINED) {
                int r = revive(a, rec, "retry", &b, ret_message);
                if (r < 0)
                        return r;
                b->rec.attempts = 0;
                r = bundle_set_state(a->bundles, b, BUNDLE_READY, "retried by the operator");
                if (r < 0)
                        return r;
        }
        if (!b)
                return refuse(
                        ret_message,
                        "it is %s; only a bundle that is waiting or quarantined can be retried",
                        bundle_state_name(rec->state));
        b->rec.attempts = 0;
        if (b->rec.state == BUNDLE_SETTLING)
                intake_flush_bundle(b);
        scheduler_retry_now(a->scheduler, b);
        return 0;
}

static int act_cancel(Agent *a, Bundle *b, const BundleRecord *rec, char **ret_message) {
        if (!b && rec->state == BUNDLE_QUARANTINED) {
                int r = revive(a, rec, "cancel", &b, ret_message);
                if (r < 0)
                        return r;
        }
        if (!b)
                return refuse(ret_message, "it is %s already", bundle_state_name(rec->state));
        if (scheduler_abort(a->scheduler, b)) {
                b->cancel = true; /* when its workers have ended */
                return 0;
        }
        return bundle_set_state(a->bundles, b, BUNDLE_CANCELLED, "cancelled by the operator");
}

static int act_pin(Agent *a, Bundle *b, BundleRecord *rec, bool pinned) {
        if (b && !bundle_state_is_inactive(b->rec.state)) {
                b->rec.pinned = pinned;
                bundle_save(a->bundles, b);
                retention_runner_kick(a->retention_runner);
                return bundle_table_store_error(a->bundles);
        }
        rec->pinned = pinned;
        int r = store_update(a->store, rec);
        retention_runner_kick(a->retention_runner);
        return r;
}

static int on_act(const char *id, const char *action, char **ret_message, void *userdata) {
        Agent *a = userdata;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        Bundle *b = bundle_table_find(a->bundles, id);
        int r = b ? bundle_record_copy(&rec, &b->rec) : store_get(a->store, id, &rec);
        if (r != 0)
                return r == STORE_E_NOT_FOUND ? -ENOENT : r;
        if (b && bundle_state_is_inactive(b->rec.state))
                return refuse(
                        ret_message,
                        "it is %s, and the state database cannot be written; free space in the "
                        "state directory first",
                        bundle_state_name(b->rec.state));
        if (!b && !bundle_state_is_inactive(rec.state)) { /* it has given way to others' */
                r = revive(a, &rec, action, &b, ret_message);
                if (r < 0)
                        return r;
                if (b->source)
                        intake_source_resume_bundle(b->source, b);
        }
        if (strcmp(action, "retry") == 0)
                return act_retry(a, b, &rec, ret_message);
        if (strcmp(action, "cancel") == 0)
                return act_cancel(a, b, &rec, ret_message);
        if (strcmp(action, "pin") == 0 && retention_runner_is_deleting(a->retention_runner, id))
                return refuse(ret_message, "%s: it is being deleted", id);
        if (strcmp(action, "pin") == 0 || strcmp(action, "unpin") == 0)
                return act_pin(a, b, &rec, action[0] == 'p');
        return -EINVAL;
}

static int on_flush(bool settle, char **ret_message, void *userdata) {
        *ret_message = NULL;
        log_info(settle ? "scan requested: all sources are scanned now"
                        : "flush requested: all sources are scanned and shipped now");
        agent_flush(userdata, !settle);
        return 0;
}

/* ---- redelivery ---- */

#define REDELIVER_MAX 1000 /* at a time: they are kept in memory until they are delivered */

typedef struct Redelivery {
        Agent *agent;
        IntakeSource *source;
        char *const *targets; /* end in NULL */
        char *const *known;   /* all destinations */
        uint64_t since_usec, n;
        bool has_more;
} Redelivery;

static int redeliver_delivered(const BundleRecord *rec, void *userdata) {
        Redelivery *x = userdata;
        Agent *a = x->agent;
        if (rec->first_seen_usec < x->since_usec ||
            !path_is_below(rec->path, intake_source_spec(x->source)->fixed) ||
            retention_runner_is_deleting(a->retention_runner, rec->id))
                return 0;
        if (x->n >= REDELIVER_MAX) {
                x->has_more = true;
                return 1;
        }
        int r = bundle_table_redeliver(a->bundles, rec->id, x->source, x->targets);
        x->n += r >= 0;
        return r == -EEXIST ? 0 : r;
}

/* Those that are underway and those that are delivered. */
static int redeliver_source(Redelivery *x) {
        Agent *a = x->agent;
        const char *name = intake_source_config(x->source)->name;
        int r = 0;
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, bundle_table_all(a->bundles)) {
                if (r < 0 || b->source != x->source || b->n_running > 0 ||
                    b->rec.first_seen_usec < x->since_usec ||
                    bundle_state_is_inactive(b->rec.state))
                        continue;
                r = bundle_redirect(a->bundles, b, x->targets, x->known);
                x->n += r > 0;
        }
        for (size_t i = 0; r >= 0 && x->targets[i]; i++)
                r = bundle_table_list(a->bundles,
                                      &(StoreFilter){ .state = BUNDLE_DELIVERED,
                                                      .source = name,
                                                      .lacks = x->targets[i] },
                                      redeliver_delivered, x);
        return r;
}

static int redeliver_all(Redelivery *x, const char *destination) {
        Agent *a = x->agent;
        const Config *c = a->config;
        int r = store_begin(a->store);
        for (size_t i = 0; r >= 0 && i < c->n_sources; i++) {
                char *one[] = { (char *)destination, NULL };
                x->source = agent_source_by_name(a, c->sources[i].name);
                x->targets = destination ? one : c->sources[i].destinations.items;
                if (x->source &&
                    (!destination || string_list_has(&c->sources[i].destinations, destination)))
                        r = redeliver_source(x);
        }
        int committed = store_commit(a->store);
        return r < 0 ? r : committed;
}

static int on_redeliver(const char *destination, uint64_t since_usec, uint64_t *ret_n,
                        bool *ret_more, char **ret_message, void *userdata) {
        Agent *a = userdata;
        const Config *c = a->config;
        Redelivery x = { .agent = a, .since_usec = since_usec };
        if (destination && !config_find_destination(c, destination))
                return refuse(ret_message, "there is no destination '%s'", destination);
        _cleanup_free_ char **known = calloc(c->n_destinations + 1, sizeof *known);
        if (!known)
                return -ENOMEM;
        for (size_t i = 0; i < c->n_destinations; i++)
                known[i] = c->destinations[i].name;
        x.known = known;
        int r = redeliver_all(&x, destination);
        agent_recount_lacking(a);
        scheduler_kick(a->scheduler);
        log_info("redelivery requested: %llu %s", (unsigned long long)x.n,
                 x.n == 1 ? "bundle" : "bundles");
        *ret_n = x.n;
        *ret_more = x.has_more;
        return r;
}

static int on_drain(bool on, char **ret_message, void *userdata) {
        *ret_message = NULL;
        if (on)
                agent_drain(userdata, DRAIN_OPERATOR, "requested by the operator", 0);
        else
                agent_resume(userdata);
        return 0;
}

/* ---- snapshots ---- */

static int on_snapshot(char ret_name[SNAPSHOT_NAME_SIZE], char **ret_message, void *userdata) {
        Agent *a = userdata;
        _Static_assert((int)SNAPSHOT_NAME_SIZE == (int)INCIDENT_NAME_SIZE, "one name");
        const char *why = NULL;
        int r = a->incidents ? incidents_request(a->incidents, ret_name, &why) : -ENODEV;
        if (r == 0)
                return 0;
        *ret_message = strdup(r == -EPERM   ? "snapshots are off; set snapshot.enabled to have them"
                              : r == -EBUSY ? "a snapshot is underway; try again when "
                                              "it has ended"
                              : r == -ENODEV ? "snapshots are not possible; see the log"
                              : why          ? why
                                             : "not possible now; see the log");
        return -EPERM;
}

static char **list_files(const char *directory) {
        char **files = calloc(SNAPSHOT_FILES_MAX + 1, sizeof *files);
        _cleanup_closedir_ DIR *d = opendir(directory);
        const struct dirent *e;
        size_t n = 0;
        while (files && d && n < SNAPSHOT_FILES_MAX && (e = readdir(d)))
                if (e->d_name[0] != '.' && (files[n] = strdup(e->d_name)))
                        n++;
        if (n > 0)
                qsort(files, n, sizeof *files, array_compare_strings);
        return files;
}

static int on_get_snapshot(const char *name, const char *file, SnapshotAnswer *ret,
                           void *userdata) {
        const Agent *a = userdata;
        IncidentView v;
        *ret = (SnapshotAnswer){ 0 };
        if (!a->incidents || !incidents_get(a->incidents, name, &v))
                return -ENOENT;
        if (file && (*file == '\0' || *file == '.' || strchr(file, '/')))
                return -ENOENT;
        ret->done = v.done;
        ret->directory = strdup(v.directory);
        ret->files = list_files(v.directory);
        if (!file && !v.done)
                return 0;
        _cleanup_close_ int fd = open(v.directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = fd < 0 ? -errno
                       : fs_read_file(fd, file ? file : "snapshot.json", SNAPSHOT_FILE_MAX_BYTES,
                                      &ret->data, &ret->n_data);
        return file ? r : 0; /* a snapshot that failed has no document */
}

/* ---- life ---- */

void agent_view_init(Agent *a) {
        a->space = calloc(1, sizeof *a->space);
        a->backend = (AgentBackend){ .view = on_view,
                                     .list = on_list,
                                     .get = on_get,
                                     .act = on_act,
                                     .flush = on_flush,
                                     .redeliver = on_redeliver,
                                     .drain = on_drain,
                                     .snapshot = on_snapshot,
                                     .get_snapshot = on_get_snapshot,
                                     .userdata = a };
}

void agent_recount_lacking(Agent *a) {
        free(a->n_lacking);
        a->n_lacking = NULL;
}

void agent_view_done(Agent *a) {
        agent_recount_lacking(a);
        sd_event_source_disable_unref(a->lacking_timer);
        if (a->space)
                free_space(a->space);
        free(a->space);
}
