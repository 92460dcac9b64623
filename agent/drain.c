/* Drain and stop: ships what is known before this node terminates. ec2_notices.c reports what EC2
 * announces; this file decides what follows. */
#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "agent/agent_private.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"

/* Requested from systemd at each check, as long as bundles are undelivered. */
#define EXTEND_USEC (30 * USEC_PER_SEC)
#define DRAIN_CHECK_USEC (5 * USEC_PER_SEC)
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

bool agent_is_draining(const Agent *a) {
        return a->drain.state == AGENT_DRAINING || a->drain.state == AGENT_FLUSHING;
}

/* ---- safe to terminate ---- */

static void add_count(StrBuf *text, uint64_t n, const char *one, const char *many) {
        if (n > 0)
                strbuf_addf(text, "%s%llu %s", text->n ? ", " : "", (unsigned long long)n,
                            n == 1 ? one : many);
}

static const IntakeSource *find_unfinished_source(const Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (!intake_source_is_idle(a->sources[i]) ||
                    !intake_source_has_seen_all(a->sources[i]))
                        return a->sources[i];
        return NULL;
}

/* A snapshot that is underway still becomes a unit. */
static void hold_sources(Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (strcmp(intake_source_config(a->sources[i])->name, INCIDENTS_SOURCE) != 0)
                        intake_source_hold(a->sources[i], true);
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
        const IntakeSource *s = find_unfinished_source(a);
        if (s)
                strbuf_addf(&text, "%ssource %s has not been scanned completely",
                            text.n ? ", " : "", intake_source_config(s)->name);
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

static void arm_drain_check(Agent *a, uint64_t usec);

static int on_drain_check(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        Drain *d = &a->drain;
        uint64_t now = a->clock->realtime_usec(a->clock);
        (void)source, (void)usec;
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
        arm_drain_check(a, DRAIN_CHECK_USEC);
        return 0;
}

static void arm_drain_check(Agent *a, uint64_t usec) {
        int r = timer_arm(&a->drain.timer, &(TimerOptions){ .event = a->event,
                                                            .usec = usec,
                                                            .slack_usec = usec / 20,
                                                            .handler = on_drain_check,
                                                            .userdata = a });
        if (r < 0)
                log_error(r, "cannot arm the timer of the drain");
}

void agent_apply_drain(Agent *a) {
        if (!agent_is_draining(a))
                return;
        hold_sources(a);
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
        agent_apply_drain(a);
        scheduler_retry_now(a->scheduler, NULL);
        arm_drain_check(a, 0);
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
        agent_on_notice(&announced, a);
        return 0;
}

void agent_on_notice(const Notice *n, void *userdata) {
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
        agent_on_withdrawn(n->kind, a); /* it may have been due earlier */
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

void agent_on_withdrawn(NoticeKind kind, void *userdata) {
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

/* ---- stopping ---- */

static void arm_wind_down_check(WindDown *w, uint64_t usec);

static int on_wind_down_check(sd_event_source *source, uint64_t usec, void *userdata) {
        WindDown *w = userdata;
        Agent *a = w->agent;
        (void)source, (void)usec;
        if (scheduler_is_idle(a->scheduler) || a->clock->boottime_usec(a->clock) >= w->until_usec)
                w->on_done(a);
        else
                arm_wind_down_check(w, WIND_DOWN_CHECK_USEC);
        return 0;
}

static void arm_wind_down_check(WindDown *w, uint64_t usec) {
        int r = timer_arm(&w->timer, &(TimerOptions){ .event = w->agent->event,
                                                      .usec = usec,
                                                      .slack_usec = usec / 20,
                                                      .handler = on_wind_down_check,
                                                      .userdata = w });
        if (r >= 0)
                return;
        log_error(r, "cannot wait for running deliveries; interrupting them");
        w->on_done(w->agent);
}

void agent_wind_down(Agent *a, WindDown *w, void (*on_done)(Agent *a)) {
        w->agent = a;
        w->until_usec = a->clock->boottime_usec(a->clock) + WIND_DOWN_USEC;
        w->on_done = on_done;
        scheduler_wind_down(a->scheduler);
        arm_wind_down_check(w, 0);
}

void wind_down_done(WindDown *w) {
        w->timer = sd_event_source_disable_unref(w->timer);
}

static void on_wound_down(Agent *a) {
        a->drain.on_stopped(a->drain.userdata);
}

void agent_stop(Agent *a, void (*on_stopped)(void *userdata), void *userdata) {
        Drain *d = &a->drain;
        if (d->state == AGENT_STOPPING)
                return;
        set_state(d, AGENT_STOPPING);
        agent_cancel_reload(a);
        d->on_stopped = on_stopped;
        d->userdata = userdata;
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_hold(a->sources[i], true);
        (void)sd_notifyf(false, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)EXTEND_USEC);
        agent_wind_down(a, &d->stop, on_wound_down);
}

void agent_drain_done(Agent *a) {
        sd_event_source_disable_unref(a->drain.timer);
        sd_event_source_disable_unref(a->drain.announced_timer);
        wind_down_done(&a->drain.stop);
}
