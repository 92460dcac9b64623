/* The agent's state, and draining: no new units are accepted, and what is known is shipped, because
 * this node is about to terminate.
 *
 *   RUNNING ──request──► DRAINING ──a minute before the deadline──► FLUSHING
 *      ▲                    │                                           │
 *      └──all withdrawn─────┴───────────────────────────────────────────┘
 *   any of them ──agent_stop()──► STOPPING, which is final
 *
 * A drain is requested by the operator, or by EC2's notices of a spot interruption and of scheduled
 * maintenance. Each requester withdraws its own request only, and the drain ends with the last one.
 * The last minute, units that still settle are shipped as they are. When it is safe to terminate is
 * decided in termination.c.
 *
 * Winding down is another thing: before a stop, and before a reload that creates the scheduler
 * again, running deliveries have four seconds to end in a state from which they can be resumed. */
#include "agent/agent_private.h"

#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "agent/delivery/scheduler.h"
#include "agent/intake/intake.h"
#include "lib/base/log.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"

#define DRAIN_CHECK_USEC (5 * USEC_PER_SEC)
/* A drain starts this long before maintenance. */
#define DRAIN_AHEAD_USEC (15 * USEC_PER_MINUTE)
/* Units that still settle are shipped as they are this long before the deadline. */
#define FLUSH_AHEAD_USEC USEC_PER_MINUTE
/* Running deliveries have this long to end at a stop or a reload. */
#define WIND_DOWN_USEC (4 * USEC_PER_SEC)
#define WIND_DOWN_CHECK_USEC (20 * USEC_PER_MSEC)

static void on_notice(const Notice *n, void *userdata);

void agent_drain_set_state(Drain *d, AgentState state) {
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

/* ---- draining ---- */

/* A snapshot or a report that is being made still becomes a unit. */
static void hold_sources(Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (strcmp(intake_source_config(a->sources[i])->name, AGENT_SOURCE) != 0)
                        intake_source_hold(a->sources[i], true);
}

static int on_drain_check(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        Drain *d = &a->drain;
        uint64_t now = a->clock->realtime_usec(a->clock);
        (void)usec;
        agent_notify_status(a);
        if (agent_is_safe(a)) /* a snapshot, or a record of where bundles are, may still come */
                return timer_rearm(source, DRAIN_CHECK_USEC);
        (void)sd_notifyf(false, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)AGENT_EXTEND_USEC);
        uint64_t deadline = agent_deadline_usec(d);
        if (d->state == AGENT_DRAINING && deadline > 0 && now + FLUSH_AHEAD_USEC >= deadline) {
                agent_drain_set_state(d, AGENT_FLUSHING);
                log_notice("this node terminates in less than a minute: units that still settle "
                           "are shipped as they are");
                agent_flush(a, true);
                if (a->incidents)
                        incidents_hurry(a->incidents, INCIDENT_HURRY_FLUSH);
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

void agent_drain_apply(Agent *a) {
        if (!agent_is_draining(a))
                return;
        hold_sources(a);
        if (a->incidents)
                incidents_hurry(a->incidents, a->drain.state == AGENT_FLUSHING
                                                      ? INCIDENT_HURRY_FLUSH
                                                      : INCIDENT_HURRY_DRAIN);
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
                agent_drain_set_state(d, AGENT_DRAINING);
        }
        log_notice("draining: %s; new bundles are not accepted, known ones are shipped", d->reason);
        agent_drain_apply(a);
        scheduler_retry_now(a->scheduler, NULL);
        start_drain_check(a);
}

static void resume_intake(Agent *a) {
        Drain *d = &a->drain;
        if (!agent_is_draining(a))
                return;
        agent_drain_set_state(d, AGENT_RUNNING);
        d->timer = sd_event_source_disable_unref(d->timer);
        log_notice("drain cancelled");
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_hold(a->sources[i], false);
        if (a->incidents)
                incidents_hurry(a->incidents, INCIDENT_HURRY_NONE);
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
        on_withdrawn(n->kind, a); /* an earlier notice may have been due already */
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

int agent_start_notices(Agent *a) {
        return ec2_notices_new(&a->notices,
                               &(Ec2NoticesOptions){ .event = a->event,
                                                     .clock = a->clock,
                                                     .environment = a->environment,
                                                     .sysfs_root = a->config->snapshot.sysfs_root,
                                                     .on_notice = on_notice,
                                                     .on_withdrawn = on_withdrawn,
                                                     .userdata = a });
}

/* ---- winding down ---- */

static int on_wind_down_check(sd_event_source *source, uint64_t usec, void *userdata) {
        WindDown *w = userdata;
        Agent *a = w->agent;
        (void)usec;
        if (!scheduler_is_idle(a->scheduler) && a->clock->boottime_usec(a->clock) < w->until_usec)
                return timer_rearm(source, WIND_DOWN_CHECK_USEC);
        w->on_done(a);
        return 0;
}

void agent_wind_down(Agent *a, WindDown *w, void (*on_done)(Agent *a)) {
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
