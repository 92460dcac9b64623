/* The agent: which node it is, its life, the callbacks between its folders, drain, stop and reload.
 */
#include "agent/agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "agent/api/api.h"
#include "agent/intake/intake.h"
#include "agent/retention/link_list.h"
#include "agent/store/store.h"
#include "collectors/supervisor_client.h"
#include "config/keys.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "lib/neuron/record.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials.h"
#include "uploaders/aws/credentials_secret.h"

#define SETTLE_USEC (1 * USEC_PER_SEC) /* a directory appears there complete, by rename */
/* ---- the source that nobody configures: incidents that belong to no dump. Its directory lies
 * below the state directory. ---- */

static ConfigSource *free_config_source(ConfigSource *c) {
        if (!c)
                return NULL;
        strings_free(c->destinations.items);
        strings_free(c->exclude.items);
        free(c->name);
        free(c->path);
        free(c);
        return NULL;
}

DEFINE_CLEANUP(ConfigSource, free_config_source);

/* A percent sign of the state directory's path is doubled in a template. */
static void add_state_directory(StrBuf *b, const Agent *a) {
        for (const char *s = a->config->state_directory; *s; s++)
                strbuf_add_n(b, *s == '%' ? "%%" : s, *s == '%' ? 2 : 1);
}

static ConfigSource *incidents_config(const Agent *a) {
        const Config *c = a->config;
        if (!c->snapshot.enabled)
                return NULL;
        _cleanup_(free_config_sourcep) ConfigSource *s = calloc(1, sizeof *s);
        if (!s)
                return NULL;
        StrBuf path = STRBUF_INIT;
        add_state_directory(&path, a);
        strbuf_add(&path, "/" INCIDENTS_SOURCE "/%l"); /* %l matches any name */
        *s = (ConfigSource){ .name = strdup(INCIDENTS_SOURCE),
                             .path = strbuf_detach(&path),
                             .kind = CONFIG_DIRECTORY,
                             .settle_usec = SETTLE_USEC,
                             .max_wait_usec = 30 * USEC_PER_MINUTE,
                             .scan_interval_usec = USEC_PER_MINUTE,
                             .watch = CONFIG_WATCH_AUTO,
                             .max_files = 100000 };
        char **names = s->destinations.items = calloc(c->n_destinations + 1, sizeof *names);
        for (size_t i = 0; names && i < c->n_destinations; i++)
                if ((names[i] = strdup(c->destinations[i].name)))
                        s->destinations.n++;
        return s->name && s->path && names && s->destinations.n == c->n_destinations ? TAKE_PTR(s)
                                                                                     : NULL;
}

static void on_notice(const Notice *n, void *userdata);
static void agent_adopt_bundles(Agent *a, IntakeSource *s);

static void start_incidents_source(Agent *a) {
        const char *state = a->config->state_directory;
        if (!a->config->snapshot.enabled)
                return;
        _cleanup_free_ char *directory = path_join(state, INCIDENTS_SOURCE);
        int r = directory ? fs_mkdir_p(directory, 0700) : -ENOMEM;
        if (r < 0)
                log_warning(r, "cannot create '%s/" INCIDENTS_SOURCE "'", state);
        ConfigSource *c = incidents_config(a);
        r = c ? intake_source_new(&a->sources[a->n_sources], &a->intake_context, c) : -ENOMEM;
        if (r < 0) {
                log_error(r, "source " INCIDENTS_SOURCE ": cannot start it; a reload tries again");
                free_config_source(c);
                return;
        }
        a->incidents_config = c;
        agent_adopt_bundles(a, a->sources[a->n_sources++]);
}

static void rebind_incidents_source(Agent *a) {
        ConfigSource *old = a->incidents_config;
        ConfigSource *c = old ? incidents_config(a) : NULL;
        if (!c)
                return;
        intake_source_rebind(agent_source_by_name(a, INCIDENTS_SOURCE), c);
        a->incidents_config = c;
        free_config_source(old);
}

/* Requested from systemd at each check, as long as bundles are undelivered. */
#define EXTEND_USEC (30 * USEC_PER_SEC)
#define DRAIN_CHECK_USEC (5 * USEC_PER_SEC)
#define DRAIN_REPORTS_USEC (30 * USEC_PER_SEC)
/* A drain starts this long before maintenance. */
#define DRAIN_AHEAD_USEC (15 * USEC_PER_MINUTE)
/* Units that still settle are shipped as they are this long before the deadline. */
#define FLUSH_AHEAD_USEC USEC_PER_MINUTE
/* Running deliveries have this long to end at a stop or a reload. */
#define WIND_DOWN_USEC (4 * USEC_PER_SEC)
#define WIND_DOWN_CHECK_USEC (20 * USEC_PER_MSEC)
/* ---- state ---- */

static void set_state(Drain *d, AgentState state) {
        static const char *const names[N_AGENT_STATES] = { "running", "draining", "flushing",
                                                           "stopping" };
        static const unsigned moves[N_AGENT_STATES] = {
                [AGENT_RUNNING] = 1U << AGENT_DRAINING | 1U << AGENT_STOPPING,
                [AGENT_DRAINING] =
                        1U << AGENT_RUNNING | 1U << AGENT_FLUSHING | 1U << AGENT_STOPPING,
                [AGENT_FLUSHING] = 1U << AGENT_RUNNING | 1U << AGENT_STOPPING,
        };
        static const StateTable table = { "agent", names, moves, N_AGENT_STATES };
        if (transition_check(&table, d->state, state, NULL) == 0)
                d->state = state;
}

/* ---- safe to terminate ---- */

static void add_count(StrBuf *text, uint64_t n, const char *one, const char *many) {
        if (n > 0)
                strbuf_addf(text, "%s%llu %s", text->n ? ", " : "", (unsigned long long)n,
                            n == 1 ? one : many);
}

static const IntakeSource *find_unfinished_source(const Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (!intake_source_is_idle(a->sources[i]) || intake_source_unseen(a->sources[i]))
                        return a->sources[i];
        return NULL;
}

/* A snapshot that is underway still becomes a unit. */
static void hold_sources(Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (strcmp(intake_source_config(a->sources[i])->name, INCIDENTS_SOURCE) != 0)
                        intake_source_hold(a->sources[i], true);
}

/* Whether a copy there outlives this node, as one in a bucket does. */
static bool is_durable_volume(const ConfigDestination *d) {
        if (d->type == CONFIG_S3 || d->durable != CONFIG_DURABLE_AUTO)
                return d->type != CONFIG_S3 && d->durable == CONFIG_DURABLE_YES;
        _cleanup_free_ char *fixed = form_fixed_part(d->path);
        return fixed && fs_path_is_network(fixed);
}

/* @return 1: its copies are on this node's own disk only */
static int on_bundle_at_risk(const BundleRecord *rec, void *userdata) {
        for (size_t i = 0; i < rec->n_deliveries; i++) {
                const DeliveryRecord *d = &rec->deliveries[i];
                /* The mount table first: what is asked for must not hang. */
                if (!d->object || fs_path_is_network(d->object) || access(d->object, F_OK) < 0)
                        continue;
                strbuf_addf(userdata,
                            "copies of source %s are on this node's own disk only, such as '%s' "
                            "(destination %s; set its `durable: true` if the disk outlives the "
                            "node, `neuron-collect redeliver` to one that does, or move them)",
                            rec->source, rec->id, d->destination);
                return 1;
        }
        return 0; /* somebody has taken them away */
}

/* Where a bundle went is what counts, not where its source goes now. */
static void add_bundle_at_risk(const Agent *a, StrBuf *text) {
        StrBuf durable = STRBUF_INIT;
        strbuf_add(&durable, "/");
        for (size_t i = 0; i < a->config->n_destinations; i++)
                if (is_durable_volume(&a->config->destinations[i]))
                        strbuf_addf(&durable, "%s/", a->config->destinations[i].name);
        int r = strbuf_error(&durable);
        if (r == 0)
                r = bundle_table_list(
                        a->bundles,
                        &(StoreFilter){ .state = BUNDLE_DELIVERED, .no_copy_at = durable.text },
                        on_bundle_at_risk, text);
        strbuf_done(&durable);
        if (r < 0)
                strbuf_add(text, "the state database cannot be read");
}

/* Cores are delivered without: a drain waits for reports for half a minute, if it has one. */
static bool waits_for_reports(const Agent *a) {
        return a->drain.state == AGENT_DRAINING &&
               a->clock->realtime_usec(a->clock) - a->drain.since_usec < DRAIN_REPORTS_USEC;
}

/* Writes a->drain.missing. @return whether nothing is missing */
static bool is_safe(Agent *a) {
        StrBuf text = STRBUF_INIT;
        StoreCounts c;
        bundle_table_counts(a->bundles, &c);
        add_count(&text, c.bundles[BUNDLE_SHIPPING], "bundle is being shipped",
                  "bundles are being shipped");
        add_count(&text, c.bundles[BUNDLE_READY], "bundle waits to be shipped",
                  "bundles wait to be shipped");
        add_count(&text, c.bundles[BUNDLE_SETTLING], "bundle is not known to be complete yet",
                  "bundles are not known to be complete yet");
        add_count(&text, c.bundles[BUNDLE_QUARANTINED], "bundle is quarantined",
                  "bundles are quarantined");
        add_count(&text, a->incidents ? incidents_n_underway(a->incidents) : 0,
                  "snapshot is being taken", "snapshots are being taken");
        if (waits_for_reports(a))
                add_count(&text, crash_reports_n(a->crash_reports), "crash report is being made",
                          "crash reports are being made");
        const IntakeSource *s = find_unfinished_source(a);
        if (s) {
                bool is_known = intake_source_is_idle(s) || intake_source_is_stalled(s);
                const char *unseen = is_known ? intake_source_unseen(s) : NULL;
                strbuf_addf(&text, "%ssource %s has not been scanned completely%s%s",
                            text.n ? ", " : "", intake_source_config(s)->name, unseen ? ": " : "",
                            unseen ? unseen : "");
        }
        if (text.n == 0)
                add_bundle_at_risk(a, &text);
        (void)snprintf(a->drain.missing, sizeof a->drain.missing, "%s", text.n ? text.text : "");
        bool safe = text.n == 0;
        strbuf_done(&text);
        return safe;
}

/* @return when this node terminates, CLOCK_REALTIME; 0 = not known */
static uint64_t first_deadline_usec(const Drain *d) {
        uint64_t first = 0;
        for (size_t i = 0; i < N_DRAIN_REQUESTERS; i++) {
                uint64_t at = d->requests[i].is_active ? d->requests[i].deadline_usec : 0;
                if (at > 0 && (first == 0 || at < first))
                        first = at;
        }
        return first;
}

void agent_fill_drain_view(Agent *a, DrainView *ret) {
        Drain *d = &a->drain;
        *ret = (DrainView){ .is_draining = d->reason[0] };
        if (!ret->is_draining)
                return;
        ret->reason = d->reason;
        ret->since_usec = d->since_usec;
        ret->deadline_usec = first_deadline_usec(d);
        ret->is_safe = is_safe(a);
        ret->missing = ret->is_safe ? NULL : d->missing;
}

/* ---- draining ---- */

static int on_drain_check(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        Drain *d = &a->drain;
        uint64_t now = a->clock->realtime_usec(a->clock);
        (void)usec;
        agent_notify_status(a);
        if (is_safe(a))
                return 0; /* the end of a bundle updates the status */
        (void)sd_notifyf(false, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)EXTEND_USEC);
        uint64_t deadline = first_deadline_usec(d);
        if (d->state == AGENT_DRAINING && deadline > 0 && now + FLUSH_AHEAD_USEC >= deadline) {
                set_state(d, AGENT_FLUSHING);
                log_notice("this node terminates in less than a minute: units that still settle "
                           "are shipped as they are");
                agent_flush(a, true);
                if (a->incidents)
                        incidents_hurry(a->incidents, true);
        }
        return timer_rearm(source, DRAIN_CHECK_USEC);
}

static void start_drain_check(Agent *a) {
        int r = timer_arm(
                &a->drain.timer,
                &(TimerOptions){ .event = a->event, .handler = on_drain_check, .userdata = a });
        if (r < 0)
                log_error(r, "cannot arm the timer of the drain");
}

static void apply_drain(Agent *a) {
        if (!agent_is_draining(a))
                return;
        hold_sources(a);
        if (a->failures)
                failures_hurry(a->failures, true);
        scheduler_set_urgent(a->scheduler, true);
}

static void join_reasons(Drain *d) {
        size_t n = 0;
        d->reason[0] = '\0';
        for (size_t i = 0; i < N_DRAIN_REQUESTERS; i++)
                if (d->requests[i].is_active && n < sizeof d->reason)
                        n += (size_t)snprintf(d->reason + n, sizeof d->reason - n, "%s%s",
                                              n > 0 ? "; " : "", d->requests[i].reason);
}

void agent_drain(Agent *a, DrainRequester requester, const char *reason, uint64_t deadline_usec) {
        Drain *d = &a->drain;
        DrainRequest *request = &d->requests[requester];
        request->is_active = true;
        request->deadline_usec = deadline_usec;
        (void)snprintf(request->reason, sizeof request->reason, "%s", reason);
        join_reasons(d);
        if (d->state == AGENT_STOPPING)
                return;
        if (d->state == AGENT_RUNNING) {
                d->since_usec = a->clock->realtime_usec(a->clock);
                set_state(d, AGENT_DRAINING);
        }
        log_notice("draining: %s; new bundles are not accepted, known ones are shipped", d->reason);
        apply_drain(a);
        scheduler_retry_now(a->scheduler, NULL);
        start_drain_check(a);
}

static void resume_intake(Agent *a) {
        Drain *d = &a->drain;
        if (!agent_is_draining(a))
                return;
        set_state(d, AGENT_RUNNING);
        d->timer = sd_event_source_disable_unref(d->timer);
        log_notice("drain cancelled");
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_hold(a->sources[i], false);
        if (a->incidents)
                incidents_hurry(a->incidents, false);
        if (a->failures)
                failures_hurry(a->failures, a->once);
        scheduler_set_urgent(a->scheduler, a->once);
        agent_notify_status(a);
}

void agent_resume(Agent *a) {
        for (size_t i = 0; i < N_DRAIN_REQUESTERS; i++)
                a->drain.requests[i].is_active = false;
        join_reasons(&a->drain);
        resume_intake(a);
}

/* ---- what EC2 announces ---- */

static DrainRequester requester_of(NoticeKind kind) {
        return kind == NOTICE_SPOT ? DRAIN_SPOT : DRAIN_MAINTENANCE;
}

static void on_withdrawn(NoticeKind kind, void *userdata) {
        Agent *a = userdata;
        Drain *d = &a->drain;
        DrainRequest *request = &d->requests[requester_of(kind)];
        if (kind == NOTICE_REBALANCE)
                return;
        if (d->announced_timer && d->announced.kind == kind)
                d->announced_timer = sd_event_source_disable_unref(d->announced_timer);
        if (!request->is_active)
                return;
        request->is_active = false;
        log_notice("withdrawn: %s", request->reason);
        join_reasons(d);
        if (!d->reason[0])
                resume_intake(a);
}

static void drain_for(Agent *a, const Notice *n) {
        char reason[96];
        (void)snprintf(reason, sizeof reason, "EC2: %s (%s)",
                       n->kind == NOTICE_SPOT ? "spot interruption" : "scheduled maintenance",
                       n->action);
        agent_drain(a, requester_of(n->kind), reason, n->when_usec);
}

static int on_drain_due(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        (void)source, (void)usec;
        Notice announced = a->drain.announced;
        on_notice(&announced, a);
        return 0;
}

static void on_notice(const Notice *n, void *userdata) {
        Agent *a = userdata;
        Drain *d = &a->drain;
        char when[CLOCK_ISO_SIZE];
        uint64_t now = a->clock->realtime_usec(a->clock);
        if (n->kind == NOTICE_REBALANCE) {
                log_notice("EC2 recommends to rebalance: this spot instance is at a higher risk of "
                           "interruption; drain it at a convenient time");
                return;
        }
        if (d->announced.kind == n->kind) /* its date may have changed */
                d->announced_timer = sd_event_source_disable_unref(d->announced_timer);
        if (n->when_usec <= now + DRAIN_AHEAD_USEC) {
                drain_for(a, n);
                return;
        }
        on_withdrawn(n->kind, a); /* it may have been due earlier */
        clock_format_iso(when, n->when_usec);
        log_notice("EC2 announces %s for %s; the drain starts 15 min before", n->action, when);
        d->announced = *n;
        int r = timer_arm(
                &d->announced_timer,
                &(TimerOptions){ .event = a->event,
                                 .usec = n->when_usec - now - DRAIN_AHEAD_USEC,
                                 .slack_usec = (n->when_usec - now - DRAIN_AHEAD_USEC) / 20,
                                 .handler = on_drain_due,
                                 .userdata = a });
        if (r < 0)
                log_error(r, "cannot arm the timer for the maintenance");
}

/* ---- stopping ---- */

static int on_wind_down_check(sd_event_source *source, uint64_t usec, void *userdata) {
        WindDown *w = userdata;
        Agent *a = w->agent;
        (void)usec;
        if (!scheduler_is_idle(a->scheduler) && a->clock->boottime_usec(a->clock) < w->until_usec)
                return timer_rearm(source, WIND_DOWN_CHECK_USEC);
        w->on_done(a);
        return 0;
}

/* Has running deliveries end in a state from which they can be resumed.
 * @param w        borrowed until on_done, or until its timer is freed
 * @param on_done  called once, when no delivery runs any more or after four seconds; before this
 * function returns only if no timer can be armed */
static void wind_down(Agent *a, WindDown *w, void (*on_done)(Agent *a)) {
        w->agent = a;
        w->until_usec = a->clock->boottime_usec(a->clock) + WIND_DOWN_USEC;
        w->on_done = on_done;
        scheduler_wind_down(a->scheduler);
        int r = timer_arm(&w->timer, &(TimerOptions){ .event = a->event,
                                                      .slack_usec = USEC_PER_MSEC,
                                                      .handler = on_wind_down_check,
                                                      .userdata = w });
        if (r < 0) {
                log_error(r, "cannot wait for running deliveries; interrupting them");
                on_done(a);
        }
}

static void forget_changes(ReloadChanges *c) {
        strbuf_done(&c->applied);
        strbuf_done(&c->restart);
        *c = (ReloadChanges){ 0 };
}

/* Discards the reload that is underway. */
static void cancel_reload(Agent *a) {
        Reload *x = &a->reload;
        x->wind_down.timer = sd_event_source_disable_unref(x->wind_down.timer);
        x->loaded = config_free(x->loaded);
        forget_changes(&x->changes);
        x->is_requested_again = false;
}

static void on_wound_down(Agent *a) {
        a->drain.on_stopped(a->drain.userdata);
}

void agent_stop(Agent *a, void (*on_stopped)(void *userdata), void *userdata) {
        Drain *d = &a->drain;
        if (d->state == AGENT_STOPPING)
                return;
        set_state(d, AGENT_STOPPING);
        cancel_reload(a);
        d->on_stopped = on_stopped;
        d->userdata = userdata;
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_hold(a->sources[i], true);
        (void)sd_notifyf(false, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)EXTEND_USEC);
        wind_down(a, &d->stop, on_wound_down);
}

#define STORE_RETRY_USEC (5 * USEC_PER_SEC)
IntakeSource *agent_source_by_name(const Agent *a, const char *name) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (strcmp(intake_source_config(a->sources[i])->name, name) == 0)
                        return a->sources[i];
        return NULL;
}

/* ---- events of the folders ---- */

static bool is_named(Bundle *b, uint64_t *ret_wait_usec, void *userdata) {
        const Agent *a = userdata;
        if (a->notes &&
            (a->once ? !hooknotes_is_idle(a->notes) : hooknotes_has_unread_mail(a->notes))) {
                *ret_wait_usec = 100 * USEC_PER_MSEC; /* a note may name its job, or its failure */
                return false;
        }
        return !a->failures || failures_is_named(a->failures, b, ret_wait_usec);
}

static void on_ready(Bundle *b, void *userdata) {
        Agent *a = userdata;
        uint64_t wait;
        (void)is_named(b, &wait, a); /* its wait begins now, whatever its destinations do */
        scheduler_kick(a->scheduler);
        if (b->rec.state == BUNDLE_READY) /* it waits */
                scheduler_record_failure(a->scheduler, b);
        retention_runner_kick(a->retention_runner);
        agent_notify_status(a);
}

static void on_found(Bundle *b, void *userdata) {
        Agent *a = userdata;
        if (a->failures)
                failures_on_found(a->failures, b);
        retention_runner_kick(a->retention_runner);
}

static void on_links_rechecked(IntakeSource *s, const char *id, void *userdata) {
        Agent *a = userdata;
        retention_runner_on_links_rechecked(a->retention_runner, s, id);
}

static SourceSpec *get_source_spec(const Bundle *b) {
        return intake_source_spec(b->source);
}

#define DISCARD_COUNTER "discard:"
static void add_discard(const char *name, uint64_t n, void *userdata) {
        Agent *a = userdata;
        const char *reason = name + strlen(DISCARD_COUNTER);
        for (size_t i = 0; i < a->n_discards; i++)
                if (strcmp(a->discards[i].label, reason) == 0) {
                        a->discards[i].count += n;
                        return;
                }
        char *copy = strdup(reason);
        if (copy && array_grow(&a->discards, a->n_discards, sizeof *a->discards) == 0)
                a->discards[a->n_discards++] = (LabelledCount){ copy, n };
        else
                free(copy);
}

/* Persisted, so that the figures survive a restart. */
static void on_discard(const char *reason, uint64_t n, void *userdata) {
        Agent *a = userdata;
        char name[128];
        (void)snprintf(name, sizeof name, DISCARD_COUNTER "%s", reason);
        (void)store_counter_add(a->store, name, n); /* on failure the count in memory remains */
        add_discard(name, n, a);
}

/* ---- crash reports ---- */

/* @param held  NULL: it is pending in the store */
static bool request_report(Agent *a, const BundleRecord *rec, IntakeSource *s,
                           const HeldFiles *held) {
        return crash_reports_request(
                a->crash_reports,
                &(CrashReportsCore){ .bundle = rec,
                                     .spec = intake_source_spec(s),
                                     .environment = a->config->snapshot.environment.items,
                                     .held_fd = held && held->n == 1 ? held->items[0].fd : -1,
                                     .is_pending = !held });
}

static bool on_whole(Bundle *b, void *userdata) {
        Agent *a = userdata;
        if (b->rec.kind != SOURCE_PROCESS_CORE || b->rec.supplement_of[0] || b->is_reported ||
            !intake_source_config(b->source)->crash_reports)
                return false;
        b->is_reported = !request_report(a, &b->rec, b->source, &b->held);
        return !b->is_reported;
}

static void on_attached(const char *source, const char *unit_path, void *userdata) {
        IntakeSource *s = agent_source_by_name(userdata, source);
        if (s)
                intake_source_on_attached(s, unit_path);
}

static void on_report_end(const char *bundle_id, void *userdata) {
        const Agent *a = userdata;
        Bundle *b = bundle_table_find(a->bundles, bundle_id);
        if (!b)
                return;
        b->is_reported = true;
        intake_on_report_end(b);
}

/* A bundle that settles asks for its own when it is complete. */
static int on_report_pending(const char *bundle_id, void *userdata) {
        Agent *a = userdata;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (store_get(a->store, bundle_id, &rec) != 0 || rec.state == BUNDLE_SETTLING)
                return 0;
        IntakeSource *s = agent_source_by_name(a, rec.source);
        if ((bundle_state_is_terminal(rec.state) && rec.state != BUNDLE_DELIVERED) || !s ||
            !intake_source_config(s)->crash_reports)
                (void)store_report_end(a->store, bundle_id, NULL, 0); /* at the next start */
        else
                (void)request_report(a, &rec, s, NULL); /* it is made, or was */
        return 0;
}

static int start_crash_reports(Agent *a) {
        a->probe_socket = supervisor_client_socket(a->config->api.socket);
        if (!a->probe_socket)
                return -ENOMEM;
        const CrashReportsContext context = { .event = a->event,
                                              .clock = a->clock,
                                              .store = a->store,
                                              .attachments = a->attachments,
                                              .probe_socket = a->probe_socket,
                                              .on_attached = on_attached,
                                              .on_end = on_report_end,
                                              .userdata = a };
        return crash_reports_new(&a->crash_reports, &context);
}

/* Releases the source files, except where the operator can retry the bundle. */
static void on_final(Bundle *b, void *userdata) {
        Agent *a = userdata;
        if (a->scheduler)
                scheduler_abandon_uploads(a->scheduler, b);
        if (b->source)
                intake_source_on_final(b->source, b);
        if (b->rec.state == BUNDLE_VANISHED || b->rec.state == BUNDLE_CANCELLED)
                on_discard(bundle_state_name(b->rec.state), 1, a);
        if (a->incidents && bundle_state_is_terminal(b->rec.state) &&
            strcmp(b->rec.source, INCIDENTS_SOURCE) == 0)
                incidents_on_delivered(a->incidents, b->rec.path);
        if (b->rec.kind == SOURCE_PROCESS_CORE && bundle_state_is_terminal(b->rec.state) &&
            b->rec.state != BUNDLE_DELIVERED && a->crash_reports)
                crash_reports_cancel(a->crash_reports, b->rec.id);
        if (a->failures)
                failures_on_final(a->failures, b);
        retention_runner_on_final(a->retention_runner, b);
        if (b->rec.state == BUNDLE_DELIVERED && b->rec.reason) /* a redelivery that failed */
                agent_recount_lacking(a);
        agent_notify_status(a);
}

static void on_delivered(const Bundle *b, void *userdata) {
        Agent *a = userdata;
        uint64_t now = a->clock->realtime_usec(a->clock);
        if (b->rec.is_redelivery)
                return;
        double seconds =
                now > b->rec.first_seen_usec ? (double)(now - b->rec.first_seen_usec) / 1e6 : 0;
        histogram_add(&a->delivery_seconds, seconds);
}

static int on_store_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        (void)usec;
        if (!bundle_table_retry(a->bundles))
                return timer_rearm(source, STORE_RETRY_USEC);
        for (size_t i = 0; i < a->n_sources; i++) /* what was refused meanwhile is found now */
                intake_source_flush(a->sources[i], false);
        return 0;
}

/* Ends the agent: no later start finds what it would write now, so bundles that it accepts would be
 * lost. */
static void stop_without_state(Agent *a) {
        if (a->is_stateless)
                return;
        a->is_stateless = true;
        log_error(
                0,
                "the state directory '%s' was removed or replaced while the agent ran: nothing is "
                "accepted any more, and the agent ends; start it again, it then finds what is at "
                "the sources",
                a->config->state_directory);
        (void)sd_event_exit(a->event, EXIT_FAILURE); /* fails only in a loop that ends */
}

static int on_state_directory(sd_event_source *source, const struct inotify_event *event,
                              void *userdata) {
        Agent *a = userdata;
        (void)source, (void)event;
        if (!store_is_in_place(a->store))
                stop_without_state(a);
        return 0;
}

/* Without it, or where another node removes it, the next change notices. */
static void watch_state_directory(Agent *a) {
        int r = sd_event_add_inotify(a->event, &a->state_watch, a->config->state_directory,
                                     IN_DELETE_SELF | IN_MOVE_SELF | IN_DELETE | IN_MOVED_FROM |
                                             IN_ONLYDIR,
                                     on_state_directory, a);
        if (r < 0)
                log_debug("cannot watch the state directory: %s", strerror(-r));
}

static void on_store_error(void *userdata) {
        Agent *a = userdata;
        if (bundle_table_store_error(a->bundles) == -ESTALE) {
                stop_without_state(a);
                return;
        }
        if (a->store_timer && sd_event_source_get_enabled(a->store_timer, NULL) > 0)
                return; /* a further error does not postpone it */
        int r = timer_arm(&a->store_timer, &(TimerOptions){ .event = a->event,
                                                            .usec = STORE_RETRY_USEC,
                                                            .handler = on_store_timer,
                                                            .userdata = a });
        if (r < 0)
                log_error(r, "cannot arm the timer that writes the state database again");
}

/* ---- notes ---- */

static Owner sender_of(const NoteView *v) {
        return note_sender(&v->owner, v->container, v->by_mailbox);
}

static void on_note(const NoteView *v, void *userdata) {
        Agent *a = userdata;
        IntakeSource *s = v->source ? agent_source_by_name(a, v->source) : NULL;
        const Owner sender = sender_of(v);
        if (s)
                intake_source_on_hook_started(s, v->unit_path, &sender);
        if (a->failures)
                failures_on_note(a->failures, v);
        if (a->incidents)
                incidents_on_note(a->incidents, v);
        else
                hooknotes_report_snapshot(a->notes, v->note->id, -1, "snapshots cannot be taken");
}

static void on_note_finished(const NoteView *v, void *userdata) {
        Agent *a = userdata;
        IntakeSource *s = v->source ? agent_source_by_name(a, v->source) : NULL;
        const Owner sender = sender_of(v);
        if (!s)
                return;
        for (size_t i = 0; i < NOTE_FILES_MAX && v->promised[i]; i++)
                intake_source_expect_file(s, v->unit_path, &sender, v->promised[i]);
        if (a->failures && v->may_come) /* which unit it is about is known only now */
                failures_on_note(a->failures, v);
        if (a->incidents && v->may_come)
                incidents_add_unit_of_note(a->incidents, v);
        intake_source_on_hook_finished(s, v->unit_path, &sender);
}

/* ---- incidents ---- */

static void on_public(const char *note_id, int fd, const char *reason, void *userdata) {
        const Agent *a = userdata;
        if (a->notes)
                hooknotes_report_snapshot(a->notes, note_id, fd, reason);
}

static void on_pending(const char *source, const char *unit_path, bool pending, void *userdata) {
        IntakeSource *s = agent_source_by_name(userdata, source);
        if (s)
                intake_source_set_pending(s, unit_path, pending);
}

static void on_notes_refused(uint64_t n, void *userdata) {
        const Agent *a = userdata;
        if (a->notes)
                hooknotes_count_refused(a->notes, n);
}

static void on_unit_renewed(const char *source, const char *unit_path, uint64_t before_usec,
                            void *userdata) {
        const Agent *a = userdata;
        if (a->incidents)
                incidents_unit_renewed(a->incidents, source, unit_path, before_usec);
}

static void on_job(const char *record, void *userdata) {
        const Agent *a = userdata;
        if (a->failures)
                failures_on_job(a->failures, record);
}

static void on_hw_error(const char *line, const char *record, void *userdata) {
        const Agent *a = userdata;
        incidents_on_hw_error(a->incidents, line, record);
}

/* A process that the OOM killer has killed leaves no core: its report is an incident's. */
static void on_crash_line(const KernelLine *line, bool is_past, void *userdata) {
        const Agent *a = userdata;
        _cleanup_(strbuf_done) StrBuf json = STRBUF_INIT, text = STRBUF_INIT;
        char name[32];
        OomKill kill;
        crash_reports_on_kernel_line(a->crash_reports, line);
        if (is_past || !oom_kill_parse(line->text, &kill))
                return;
        crash_reports_make_of_oom_kill(a->crash_reports, line, &kill, &json, &text);
        if (strbuf_error(&json) < 0 || strbuf_error(&text) < 0) {
                log_warning(-ENOMEM, "no crash report of pid %d", (int)kill.pid);
                return;
        }
        (void)snprintf(name, sizeof name, "crash-pid-%d", (int)kill.pid);
        (void)incidents_add_report(a->incidents,
                                   &(IncidentReport){ .owner = { .uid = kill.uid },
                                                      .what = line->text,
                                                      .name = name,
                                                      .json = &json,
                                                      .text = &text }); /* it logs why not */
}

/* ---- failures ---- */

static void on_named(void *userdata) {
        const Agent *a = userdata;
        if (a->scheduler)
                scheduler_kick(a->scheduler);
}

static void on_peer_failure(const char *what, void *userdata) {
        const Agent *a = userdata;
        if (a->incidents)
                (void)incidents_on_peer_failure(a->incidents, what); /* it logs why not */
}

/* Without it each node names its failures alone. */
static void start_failures(Agent *a) {
        const FailuresContext context = { .event = a->event,
                                          .clock = a->clock,
                                          .store = a->store,
                                          .bundles = a->bundles,
                                          .instance_id = a->instance_id,
                                          .has_bus = !a->once,
                                          .on_named = on_named,
                                          .on_peer_failure = on_peer_failure,
                                          .userdata = a };
        if (!a->config->agreement.enabled)
                return;
        int r = failures_new(&a->failures, &context, a->config);
        if (r < 0) {
                log_warning(r, "cannot agree with other nodes on the names of failures");
                return;
        }
        failures_set_scheduler(a->failures, a->scheduler);
        if (a->once)
                failures_hurry(a->failures, true);
}

static bool is_configured(const char *source, void *userdata) {
        return agent_source_by_name(userdata, source) != NULL;
}

/* ---- hooks ---- */

/* @return an fd that systemd has passed for this path and type; -1 */
static int find_passed_socket(const char *path, int type) {
        int n = sd_listen_fds(0);
        for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + n; fd++)
                if (sd_is_socket_unix(fd, type, 1, path, 0) > 0)
                        return fd;
        return -1;
}

static int open_socket(Agent *a) {
        const char *path = a->config->hook.socket;
        int fd = find_passed_socket(path, SOCK_SEQPACKET);
        if (fd >= 0 || a->once) /* with --once the daemon may be about to start */
                return fd;
        int r = api_listen_seqpacket(path, &fd);
        if (r == 0)
                return fd;
        log_warning(r, "cannot listen for hooks on '%s'%s; notes arrive by the mailbox only", path,
                    r == -EADDRINUSE ? ": another process answers there; stop it, or set another "
                                       "hook.socket"
                                     : "; check that its directory can be written, or set another "
                                       "hook.socket");
        return -1;
}

static void start_incidents(Agent *a) {
        const IncidentsContext context = { .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .instance_id = a->instance_id,
                                           .on_public = on_public,
                                           .attachments = a->attachments,
                                           .on_attached = on_attached,
                                           .on_pending = on_pending,
                                           .userdata = a };
        const NodeWatchContext watch_context = { .event = a->event,
                                                 .clock = a->clock,
                                                 .store = a->store,
                                                 .on_hw_error = on_hw_error,
                                                 .on_crash_line = on_crash_line,
                                                 .on_job = on_job,
                                                 .userdata = a };
        if (a->once)
                return;
        int r = incidents_new(&a->incidents, &context, a->config);
        if (r < 0) {
                log_warning(r, "cannot create snapshots of the hardware");
                return;
        }
        r = node_watch_new(&a->node_watch, &watch_context, a->config);
        if (r < 0)
                log_warning(r, "cannot follow the kernel log and who holds a device");
}

static void start_hook(Agent *a) {
        const HookNotesContext context = { .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .on_note = on_note,
                                           .on_finished = on_note_finished,
                                           .userdata = a };
        start_incidents(a);
        int fd = open_socket(a);
        int r = hooknotes_new(&a->notes, &context, a->config, fd);
        if (r < 0) {
                if (fd >= 0)
                        (void)close(fd); /* nobody has connected yet */
                log_warning(r, "cannot receive hook notes; dumps are found without them");
        }
}

/* ---- creation ---- */

/* A process that was killed while a mount does not answer stays until that does: its first thread
 * is a zombie, or waits in the kernel (proc(5)). */
static bool is_hung(pid_t pid) {
        char path[32];
        _cleanup_free_ char *text = NULL;
        uint64_t pending = 0;
        (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
        if (pid <= 0 || fs_read_file(AT_FDCWD, path, 4096, &text, NULL) < 0)
                return false;
        const char *state = strstr(text, "\nState:\t"), *signals = strstr(text, "\nSigPnd:");
        if (!state || !strchr("ZDX", state[strlen("\nState:\t")]))
                return false;
        if (state[strlen("\nState:\t")] != 'D')
                return true;
        /* one that runs waits for its disk now and then */
        return signals && sscanf(signals, "\nSigPnd: %" SCNx64, &pending) == 1 &&
               (pending >> (SIGKILL - 1) & 1);
}

static void log_locked(const Agent *a, pid_t holder) {
        const Config *c = a->config;
        if (!is_hung(holder)) {
                log_error(0,
                          "state directory '%s' is in use by the agent with pid %d; stop that one, "
                          "or set another state_directory",
                          c->state_directory, (int)holder);
                return;
        }
        StrBuf volumes = STRBUF_INIT;
        for (size_t i = 0; i < c->n_destinations; i++)
                if (c->destinations[i].type == CONFIG_VOLUME)
                        strbuf_addf(&volumes, "%s'%s'", volumes.n ? ", " : "",
                                    c->destinations[i].path);
        log_error(0,
                  "state directory '%s' is in use by the agent with pid %d, which has ended but "
                  "waits for a mount that does not answer; repair or unmount (umount -f) that of "
                  "%s, or restart the node",
                  c->state_directory, (int)holder,
                  volumes.n ? volumes.text : "the sources and destinations");
        strbuf_done(&volumes);
}

static void log_put_aside(const char *name) {
        if (store_is_of_other_build(name))
                log_warning(0,
                            "the state database was written by another build of neuron-collectd, "
                            "whose tables differ; it was put aside as '%s' and a new one is built "
                            "from what is on disk and at the destinations; counters, pins, "
                            "cancellations and the history of deleted sources start anew",
                            name);
        else
                log_warning(0,
                            "the state database could not be read; it was put aside as '%s' and a "
                            "new one is built from what is on disk",
                            name);
}

static int open_store(Agent *a) {
        _cleanup_free_ char *put_aside = NULL;
        const char *dir = a->config->state_directory;
        pid_t holder = 0;
        int r = store_open(&a->store, dir, &put_aside, &holder);
        if (r == STORE_E_LOCKED) {
                if (!a->once)
                        log_locked(a, holder);
                return AGENT_E_LOCKED;
        }
        if (r == -EBUSY) {
                log_error(0, "another program has '%s/state.db' open; close it", dir);
                return r;
        }
        if (r < 0) {
                log_error(r,
                          "cannot open the state in '%s'; check that the directory exists, is "
                          "writable by this user and has free space",
                          dir);
                return r;
        }
        if (put_aside)
                log_put_aside(put_aside);
        return 0;
}

static int create_scheduler(Agent *a) {
        SchedulerContext context = { .event = a->event,
                                     .clock = a->clock,
                                     .store = a->store,
                                     .bundles = a->bundles,
                                     .attachments = a->attachments,
                                     .instance_id = a->instance_id,
                                     .hostname = a->hostname,
                                     .environment = a->environment,
                                     .is_urgent = a->once || agent_is_draining(a),
                                     .on_delivered = on_delivered,
                                     .get_source_spec = get_source_spec,
                                     .is_named = is_named,
                                     .on_changed = intake_resettle,
                                     .userdata = a };
        return scheduler_new(&a->scheduler, &context, a->config);
}

/* A source of the same name whose path has changed does not find the bundle's files. */
static void agent_adopt_bundles(Agent *a, IntakeSource *s) {
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, bundle_table_all(a->bundles))
                if (!b->source && strcmp(b->rec.source, intake_source_config(s)->name) == 0 &&
                    path_is_below(b->rec.path, intake_source_spec(s)->fixed))
                        intake_source_resume_bundle(s, b);
}

static int start_sources(Agent *a) {
        a->intake_context = (IntakeContext){
                .event = a->event,
                .clock = a->clock,
                .store = a->store,
                .bundles = a->bundles,
                .instance_id = a->instance_id,
                .proc_root = a->config->snapshot.proc_root,
                .trusted_uids = (const char *const *)a->config->agreement.trusted_uids.items,
                .link_list = a->link_list,
                .attachments = a->attachments,
                .hook_deadline_usec = a->config->hook.deadline_usec,
                .on_ready = on_ready,
                .on_renewed = on_unit_renewed,
                .on_discard = on_discard,
                .on_unheard = on_notes_refused,
                .is_configured = a->once ? NULL : is_configured,
                .on_found = on_found,
                .on_links_rechecked = on_links_rechecked,
                .on_whole = on_whole,
                .takes_all = a->once,
                .history_usec = a->config->retention.history_usec,
                .userdata = a
        };
        a->sources = calloc(a->config->n_sources + 1, sizeof *a->sources);
        if (!a->sources)
                return -ENOMEM;
        int failed = 0;
        for (size_t i = 0; i < a->config->n_sources; i++) {
                int r = intake_source_new(&a->sources[a->n_sources], &a->intake_context,
                                          &a->config->sources[i]);
                if (r < 0) {
                        log_error(r, "source %s: cannot start it; a reload tries again",
                                  a->config->sources[i].name);
                        failed = failed < 0 ? failed : r;
                        continue;
                }
                agent_adopt_bundles(a, a->sources[a->n_sources++]);
        }
        start_incidents_source(a);
        return failed;
}

static void set_retention_sources(Agent *a) {
        _cleanup_free_ RetentionRunnerSource *sources =
                calloc(MAX(a->n_sources, 1U), sizeof *sources);
        for (size_t i = 0; sources && i < a->n_sources; i++)
                sources[i] =
                        (RetentionRunnerSource){ a->sources[i], intake_source_spec(a->sources[i]) };
        if (sources)
                retention_runner_set_sources(a->retention_runner, sources, a->n_sources);
        else
                log_error(-ENOMEM, "no source files are deleted until the next reload");
}

static int create_retention_runner(Agent *a) {
        RetentionRunnerContext context = { .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .bundles = a->bundles,
                                           .on_discard = on_discard,
                                           .submit = intake_source_submit,
                                           .recheck_links = intake_recheck_links,
                                           .is_rechecking_links = intake_is_rechecking_links,
                                           .userdata = a };
        int r = retention_runner_new(&a->retention_runner, &context, a->config);
        if (r >= 0)
                set_retention_sources(a);
        return r;
}

static int start_notices(Agent *a) {
        return ec2_notices_new(&a->notices,
                               &(Ec2NoticesOptions){ .event = a->event,
                                                     .clock = a->clock,
                                                     .environment = a->environment,
                                                     .sysfs_root = a->config->snapshot.sysfs_root,
                                                     .on_notice = on_notice,
                                                     .on_withdrawn = on_withdrawn,
                                                     .userdata = a });
}

static int start_api(Agent *a) {
        int fd = find_passed_socket(a->config->api.socket, SOCK_STREAM), r = 0;
        if (fd < 0)
                r = api_listen_unix(a->config->api.socket, &fd);
        if (r < 0) {
                if (a->once) /* a sweep needs no API */
                        return 0;
                log_error(r, "cannot listen on '%s'%s", a->config->api.socket,
                          r == -EADDRINUSE ? ": another agent answers there; stop it, or set "
                                             "another api.socket"
                                           : "; check that its directory can be written, or set "
                                             "another api.socket");
                return r;
        }
        r = api_new(&a->api, a->event, &(ApiListener){ .fd = fd, .backend = &a->backend });
        if (r < 0) {
                log_error(r, "cannot serve the API on '%s'", a->config->api.socket);
                return r;
        }
        if (!a->config->api.listen[0])
                return 0;
        r = api_listen_tcp(a->config->api.listen, &fd);
        if (r >= 0)
                r = api_new(&a->api_tcp, a->event,
                            &(ApiListener){ .fd = fd,
                                            .read_only = true,
                                            .hostname = a->hostname,
                                            .backend = &a->backend });
        if (r < 0)
                log_error(r, "cannot listen on '%s' (api.listen)%s", a->config->api.listen,
                          r == -EADDRNOTAVAIL ? "; set it to an address of this node" : "");
        return r == -EADDRNOTAVAIL ? AGENT_E_CONFIG : r;
}

static int agent_start(Agent *a) {
        const char *origin = "";
        int r = ec2_find_instance_id(a->config, a->environment, a->instance_id, &origin);
        if (r < 0) {
                log_error(r, "cannot find an instance id; set node.instance_id");
                return r;
        }
        if (gethostname(a->hostname, sizeof a->hostname - 1) < 0)
                strcpy(a->hostname, "unknown");
        log_info("this node is '%s' (from %s)", a->instance_id, origin);
        r = open_store(a);
        if (r != 0)
                return r;
        r = attachments_new(&a->attachments, a->event, a->config->state_directory);
        if (r < 0)
                return r;
        r = bundle_table_new(&a->bundles, a->store, a->clock,
                             &(BundleTableCallbacks){ on_final, on_store_error, a });
        if (r < 0) {
                log_error(r, "cannot read the state database");
                return r;
        }
        watch_state_directory(a);
        (void)store_counter_list(a->store, DISCARD_COUNTER, add_discard,
                                 a); /* if unreadable, counting starts here */
        r = store_ledger_abandon_idle(a->store);
        if (r < 0)
                log_warning(r, "cannot queue abandoned uploads for abort");
        r = create_scheduler(a);
        if (r < 0) {
                log_error(r, "cannot set up the destinations");
                return r;
        }
        start_failures(a);
        r = start_crash_reports(a);
        if (r < 0)
                return r;
        a->link_list = path_join(a->config->state_directory, LINK_LIST_NAME);
        r = a->link_list ? start_sources(a) : -ENOMEM;
        if (r < 0)
                return r;
        r = store_report_list_pending(a->store, on_report_pending, a);
        if (r < 0)
                log_warning(r, "pending crash reports cannot be listed; they are made after the "
                               "next start");
        r = create_retention_runner(a);
        if (r < 0) {
                log_error(r, "cannot set up retention");
                return r;
        }
        start_hook(a);
        r = start_api(a);
        if (r != 0)
                return r;
        if (!a->once && start_notices(a) < 0)
                log_warning(0, "cannot request EC2's notices of interruption and maintenance");
        if (a->once) /* regardless of failures of an earlier run */
                LIST_FOREACH (l, bundle_table_all(a->bundles))
                        scheduler_retry_now(a->scheduler, CONTAINER_OF(l, Bundle, link));
        scheduler_retry_now(a->scheduler, NULL);
        return 0;
}

int agent_new(Agent **ret, sd_event *event, Config *config, bool once) {
        Agent *a = calloc(1, sizeof *a);
        if (!a) {
                config_free(config);
                return -ENOMEM;
        }
        *a = (Agent){ .event = sd_event_ref(event),
                      .clock = clock_system(),
                      .config = config,
                      .once = once };
        a->started_usec = a->loaded_usec = a->clock->realtime_usec(a->clock);
        a->delivery_seconds =
                (Histogram){ .le = { 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400 } };
        agent_view_init(a);
        a->environment = aws_environment_own(environ);
        int r = a->environment ? agent_start(a) : -ENOMEM;
        if (r != 0) {
                agent_free(a);
                return r;
        }
        *ret = a;
        return 0;
}

static void free_sources(Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_free(a->sources[i]);
        owners_done(&a->intake_context.active);
        owners_done(&a->intake_context.held);
        owners_done(&a->intake_context.new_units);
        owners_done(&a->intake_context.watched);
        owners_done(&a->intake_context.hints);
        free(a->sources);
        a->sources = NULL;
        a->n_sources = 0;
        a->incidents_config = free_config_source(a->incidents_config);
}

Agent *agent_free(Agent *a) {
        if (!a)
                return NULL;
        api_free(a->api);
        api_free(a->api_tcp);
        ec2_notices_free(a->notices);
        sd_event_source_disable_unref(a->drain.timer);
        sd_event_source_disable_unref(a->drain.announced_timer);
        sd_event_source_disable_unref(a->drain.stop.timer);
        cancel_reload(a);
        a->notes = hooknotes_free(a->notes);
        a->node_watch = node_watch_free(a->node_watch);
        a->incidents = incidents_free(a->incidents);
        a->crash_reports = crash_reports_free(a->crash_reports);
        a->retention_runner = retention_runner_free(a->retention_runner);
        if (a->failures)
                failures_set_scheduler(a->failures, NULL);
        a->scheduler = scheduler_free(a->scheduler);
        a->failures = failures_free(a->failures);
        free_sources(a);
        sd_event_source_disable_unref(a->store_timer);
        sd_event_source_disable_unref(a->state_watch);
        bundle_table_free(a->bundles);
        attachments_free(a->attachments);
        store_close(a->store);
        for (size_t i = 0; i < a->n_discards; i++)
                free((char *)a->discards[i].label);
        free(a->discards);
        free(a->config_error);
        free(a->pending_restart);
        free(a->link_list);
        free(a->probe_socket);
        agent_view_done(a);
        config_free(a->config);
        sd_event_unref(a->event);
        credentials_secret_free(a->environment);
        free(a);
        return NULL;
}

/* ---- operating ---- */

void agent_flush(Agent *a, bool flush) {
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_flush(a->sources[i], flush);
        scheduler_retry_now(a->scheduler, NULL);
}

bool agent_is_idle(Agent *a) {
        if (a->notes && !hooknotes_is_idle(a->notes))
                return false;
        for (size_t i = 0; i < a->n_sources; i++)
                if (!intake_source_is_idle(a->sources[i]))
                        return false;
        if (crash_reports_n(a->crash_reports) > 0)
                return false;
        if (a->failures && !failures_is_idle(a->failures))
                return false;
        LIST_FOREACH_ITEM (const Bundle, b, link, bundle_table_all(a->bundles))
                if (b->source && !bundle_state_is_inactive(b->rec.state) &&
                    (b->rec.state != BUNDLE_READY || scheduler_can_continue(a->scheduler, b)))
                        return false;
        return true;
}

typedef struct RefusedPrinter {
        FILE *file;
        size_t n;
} RefusedPrinter;

/* Of which nothing may be collected: reported while it is there. */
static int print_refused(const BundleRecord *rec, void *userdata) {
        RefusedPrinter *p = userdata;
        struct stat st;
        if (!rec->reason ||
            strncmp(rec->reason, INTAKE_NOTHING_TAKEN, strlen(INTAKE_NOTHING_TAKEN)) != 0 ||
            lstat(rec->path, &st) < 0)
                return 0;
        fprintf(p->file, "%s '%s': %s\n", rec->id, rec->path, rec->reason);
        p->n++;
        return 0;
}

typedef struct DiscardedPrinter {
        FILE *file;
        uint64_t since_usec;
        size_t n;
} DiscardedPrinter;

static int print_discarded(const BundleRecord *rec, void *userdata) {
        DiscardedPrinter *p = userdata;
        if (rec->changed_usec < p->since_usec)
                return 0;
        fprintf(p->file, "%s discarded undelivered: %s\n", rec->id,
                rec->reason ? rec->reason : "no reason given");
        p->n++;
        return 0;
}

static int print_undelivered(const BundleRecord *rec, void *userdata) {
        fprintf(userdata, "%s %s: %s\n", rec->id, bundle_state_name(rec->state),
                rec->reason ? rec->reason : "not delivered yet");
        return 0;
}

/* Prints what destinations wait for, once and not for each bundle. */
static void print_failing_destinations(const Agent *a, FILE *f) {
        for (size_t i = 0; i < scheduler_n_destinations(a->scheduler); i++) {
                SchedulerDestinationView d;
                scheduler_destination_view(a->scheduler, i, &d);
                if (strcmp(d.state, "ok") != 0)
                        fprintf(f, "destination %s is %s: %s\n", d.name, d.state,
                                d.last_error ? d.last_error : "see the log");
        }
}

/* Nobody can remove what was left at a destination that is not configured any more.
 * @param f  NULL: nothing is printed */
static size_t print_abandoned(const Agent *a, FILE *f) {
        size_t n_all = 0;
        for (size_t i = 0; i < a->config->n_destinations; i++) {
                const ConfigDestination *d = &a->config->destinations[i];
                bool is_id_known =
                        d->type == CONFIG_S3 && scheduler_has_cleaned_up(a->scheduler, d->name);
                uint64_t n = store_abort_count(a->store, d->name, is_id_known);
                n_all += n;
                if (n > 0 && f)
                        fprintf(f, "destination %s: %llu %s yet; see the log%s\n", d->name,
                                (unsigned long long)n,
                                d->type == CONFIG_S3 ? "abandoned uploads are not aborted"
                                                     : "abandoned temporary files are not removed",
                                d->type == CONFIG_S3
                                        ? ", and allow s3:ListBucketMultipartUploads and "
                                          "s3:AbortMultipartUpload"
                                        : "");
        }
        return n_all;
}

/* Prints the sources that were not read completely: they may hold units that no scan has found. */
static size_t print_unfinished_sources(const Agent *a, FILE *f) {
        size_t n = 0;
        for (size_t i = 0; i < a->n_sources; i++) {
                const IntakeSource *s = a->sources[i];
                const char *why = intake_source_unseen(s);
                if (intake_source_is_busy(s))
                        why = "files are still being checked, or hard links removed; the next "
                              "start continues";
                else if (!why && !intake_source_is_idle(s))
                        why = "it has not been scanned completely; the next start continues";
                if (!why)
                        continue;
                fprintf(f, "source %s: %s\n", intake_source_config(s)->name, why);
                n++;
        }
        return n;
}

size_t agent_print_undelivered(Agent *a, FILE *f) {
        static const BundleState states[] = { BUNDLE_SETTLING, BUNDLE_READY, BUNDLE_SHIPPING,
                                              BUNDLE_QUARANTINED };
        StoreCounts counts;
        bundle_table_counts(a->bundles, &counts);
        size_t n = 0;
        for (size_t i = 0; i < ELEMENTSOF(states); i++) {
                n += counts.bundles[states[i]];
                /* the count is right even if the list cannot be read */
                (void)bundle_table_list(a->bundles, &(StoreFilter){ .state = (int)states[i] },
                                        print_undelivered, f);
        }
        if (n > 0)
                print_failing_destinations(a, f);
        RefusedPrinter refused = { .file = f };
        (void)bundle_table_list(a->bundles, &(StoreFilter){ .state = BUNDLE_VANISHED },
                                print_refused, &refused); /* as above */
        DiscardedPrinter discarded = { .file = f, .since_usec = a->started_usec };
        (void)bundle_table_list(a->bundles, &(StoreFilter){ .state = BUNDLE_EVICTED },
                                print_discarded, &discarded); /* as above */
        size_t n_aborts = print_abandoned(a, f);
        return n + refused.n + discarded.n + n_aborts + print_unfinished_sources(a, f);
}

bool agent_has_uploads_to_abort(const Agent *a) {
        return print_abandoned(a, NULL) > 0;
}

void agent_notify_status(Agent *a) {
        StoreCounts c;
        DrainView drain;
        bundle_table_counts(a->bundles, &c);
        agent_fill_drain_view(a, &drain);
        const char *drained = !drain.is_draining ? ""
                              : drain.is_safe    ? "drained, safe to terminate; "
                                                 : "draining; ";
        (void)sd_notifyf(
                false,
                "STATUS=%s%s%llu delivered, %llu settling, %llu ready, %llu shipping, %llu "
                "quarantined",
                drained, a->config_error ? "configuration: see the log; " : "",
                (unsigned long long)c.bundles[BUNDLE_DELIVERED],
                (unsigned long long)c.bundles[BUNDLE_SETTLING],
                (unsigned long long)c.bundles[BUNDLE_READY],
                (unsigned long long)c.bundles[BUNDLE_SHIPPING],
                (unsigned long long)
                        c.bundles[BUNDLE_QUARANTINED]); /* without systemd it does nothing */
}

/* Reload: reads the configuration, compares it with the running one, and applies what changed. */

static void on_changed_key(const char *key, bool needs_restart, void *userdata) {
        ReloadChanges *c = userdata;
        StrBuf *list = needs_restart ? &c->restart : &c->applied;
        strbuf_addf(list, "%s%s", list->n ? ", " : "", key);
        if (needs_restart)
                return;
        bool is_trust = strcmp(key, "agreement.trusted_uids") == 0;
        c->scheduler = c->scheduler || is_trust || strncmp(key, "destinations", 12) == 0 ||
                       strncmp(key, "limits", 6) == 0 || strncmp(key, "node", 4) == 0;
        c->sources = c->sources || is_trust || strncmp(key, "sources", 7) == 0 ||
                     strncmp(key, "snapshot", 8) == 0;
}

static void report_config_error(Agent *a, const Diags *diags) {
        StrBuf text = STRBUF_INIT;
        for (size_t i = 0; i < diags->n; i++) {
                _cleanup_free_ char *line = diag_format(&diags->items[i]);
                if (!line)
                        continue;
                log_error(0, "%s", line);
                strbuf_addf(&text, "%s%s", text.n ? "\n" : "", line);
        }
        free(a->config_error);
        a->config_error = strbuf_detach(&text);
        log_error(0, "%zu %s in the configuration; keeping the running one", diags->n,
                  diags->n == 1 ? "error" : "errors");
}

/* Swaps the values that need a restart, so that status shows what runs. */
static void keep_until_restart(Config *running, Config *loaded) {
#define KEEP(field)                                                                                \
        do {                                                                                       \
                __typeof__(running->field) keep = running->field;                                  \
                running->field = loaded->field;                                                    \
                loaded->field = keep;                                                              \
        } while (0)
        KEEP(state_directory);
        KEEP(node.instance_id);
        KEEP(agreement.enabled);
        KEEP(api.socket);
        KEEP(api.listen);
        KEEP(hook.socket);
        KEEP(hook.mailbox);
#undef KEEP
}

static void rebind_sources(Agent *a, const Config *loaded) {
        for (size_t i = 0; i < a->n_sources; i++) {
                const ConfigSource *was = intake_source_config(a->sources[i]);
                const ConfigSource *is = config_find_source(loaded, was->name);
                if (is)
                        intake_source_rebind(a->sources[i], is);
        }
        rebind_incidents_source(a);
}

/* All that can fail comes before anything is released. A source that cannot be started is logged
 * and omitted. */
static int apply(Agent *a, Config *loaded, const ReloadChanges *c) {
        Config *old = a->config;
        Scheduler *before = a->scheduler;
        a->config = loaded;
        if (c->scheduler) {
                int r = create_scheduler(a);
                if (r < 0) {
                        a->config = old;
                        a->scheduler = before;
                        return r;
                }
                if (a->failures)
                        failures_set_scheduler(a->failures, NULL);
                scheduler_free(before); /* wound down: uploads resume, copies restart */
        } else
                scheduler_set_config(a->scheduler, loaded);
        if (c->sources) {
                retention_runner_set_sources(a->retention_runner, NULL, 0);
                free_sources(a);
                (void)start_sources(a); /* it logs each failure */
                set_retention_sources(a);
        } else {
                a->intake_context.proc_root = loaded->snapshot.proc_root;
                a->intake_context.trusted_uids =
                        (const char *const *)loaded->agreement.trusted_uids.items;
                a->intake_context.hook_deadline_usec = loaded->hook.deadline_usec;
                rebind_sources(a, loaded);
        }
        a->intake_context.history_usec = loaded->retention.history_usec;
        retention_runner_rebind(a->retention_runner, loaded);
        if (a->notes)
                hooknotes_rebind(a->notes, a->config);
        if (a->node_watch)
                node_watch_rebind(a->node_watch, a->config);
        if (a->incidents)
                incidents_rebind(a->incidents, a->config);
        if (a->failures) {
                failures_rebind(a->failures, a->config);
                failures_set_scheduler(a->failures, a->scheduler);
        }
        apply_drain(a);
        config_free(old);
        return 0;
}

static void set_config_error(Agent *a, const char *text) {
        free(a->config_error);
        a->config_error = text ? strdup(text) : NULL;
}

static void report_applied(Agent *a, const ReloadChanges *c) {
        set_config_error(a, NULL);
        agent_recount_lacking(a);
        free(a->pending_restart);
        a->pending_restart = NULL;
        a->loaded_usec = a->clock->realtime_usec(a->clock);
        log_notice("configuration reloaded; changed: %s",
                   c->applied.n ? c->applied.text : "nothing");
        if (c->restart.n == 0)
                return;
        log_warning(0, "these take effect only after a restart: %s", c->restart.text);
        a->pending_restart = strdup(c->restart.text); /* without memory only the log has it */
}

static void finish_reload(Agent *a) {
        Reload *x = &a->reload;
        Config *loaded = TAKE_PTR(x->loaded);
        log_setup((LogFormat)loaded->log.format, loaded->log.level);
        keep_until_restart(a->config, loaded);
        int r = apply(a, loaded, &x->changes);
        if (r < 0) {
                keep_until_restart(a->config, loaded); /* swaps them back */
                config_free(loaded);
                log_error(r, "cannot set up the new destinations; keeping the configuration that "
                             "is running");
                set_config_error(a, "the new destinations could not be set up; the configuration "
                                    "before it is still in force");
                scheduler_resume(a->scheduler);
        } else
                report_applied(a, &x->changes);
        scheduler_kick(a->scheduler);
        forget_changes(&x->changes);
        x->on_done(x->userdata);
        if (x->is_requested_again) {
                x->is_requested_again = false;
                agent_reload(a, x->on_done, x->userdata);
        }
}

void agent_reload(Agent *a, void (*on_done)(void *userdata), void *userdata) {
        Reload *x = &a->reload;
        Diags diags = { 0 };
        if (a->drain.state == AGENT_STOPPING) {
                on_done(userdata);
                return;
        }
        if (x->loaded) { /* the file may have changed since it was read */
                x->is_requested_again = true;
                return;
        }
        x->on_done = on_done;
        x->userdata = userdata;
        int r = config_load(&x->loaded, a->config->file, environ, &diags);
        if (r != 0)
                report_config_error(a, &diags);
        diag_done(&diags);
        if (r != 0) {
                on_done(userdata);
                return;
        }
        config_compare(a->config, x->loaded, on_changed_key, &x->changes);
        if (x->changes.scheduler) /* its deliveries end first */
                wind_down(a, &x->wind_down, finish_reload);
        else
                finish_reload(a);
}
