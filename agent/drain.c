/* The way out: draining before this node goes, and stopping in good order. What EC2 announces is heard by notices.c; what it means is
 * decided here. */
#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "agent/agent_private.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"

/* systemd is asked for so much more time, so often, as long as something is left to ship. */
#define EXTEND_USEC (30 * USEC_PER_SEC)
#define LOOK_USEC (5 * USEC_PER_SEC)
/* Maintenance is drained for when it is this near. */
#define NEAR_USEC (15 * USEC_PER_MINUTE)
/* With so little time left what still settles is taken as it is. */
#define FLUSH_BEFORE_USEC USEC_PER_MINUTE
/* What is under way at a stop or a reload has so long to end by itself. */
#define WIND_DOWN_USEC (4 * USEC_PER_SEC)
#define WIND_DOWN_LOOK_USEC (20 * USEC_PER_MSEC)

/* ---- is it safe? ---- */

static void add_count(StrBuf *text, uint64_t n, const char *one, const char *many) {
        if (n > 0)
                strbuf_addf(text, "%s%llu %s", text->n ? ", " : "", (unsigned long long)n,
                            n == 1 ? one : many);
}

static const IntakeSource *source_that_is_not_through(const Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (!intake_source_is_idle(a->sources[i]) ||
                    !intake_source_has_seen_all(a->sources[i]))
                        return a->sources[i];
        return NULL;
}

/* Nothing new is taken; but a snapshot that is underway becomes a unit meanwhile. */
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
        add_count(&text, c.bundles[BUNDLE_SETTLING], "bundle is not known to be whole yet",
                  "bundles are not known to be whole yet");
        add_count(&text, c.bundles[BUNDLE_QUARANTINED], "bundle is quarantined",
                  "bundles are quarantined");
        add_count(&text, a->incidents ? incidents_n_underway(a->incidents) : 0,
                  "snapshot is being taken", "snapshots are being taken");
        const IntakeSource *s = source_that_is_not_through(a);
        if (s)
                strbuf_addf(&text, "%ssource %s has not been seen whole", text.n ? ", " : "",
                            intake_source_config(s)->name);
        (void)snprintf(a->drain.missing, sizeof a->drain.missing, "%s", text.n ? text.text : "");
        bool safe = text.n == 0;
        strbuf_done(&text);
        return safe;
}

/* @return when this node goes, CLOCK_REALTIME; 0 = not known */
static uint64_t first_deadline_usec(const Drain *d) {
        uint64_t first = 0;
        for (size_t i = 0; i < N_DRAIN_ASKERS; i++) {
                uint64_t at = d->wishes[i].is_on ? d->wishes[i].deadline_usec : 0;
                if (at > 0 && (first == 0 || at < first))
                        first = at;
        }
        return first;
}

void agent_drain_view(Agent *a, DrainView *ret) {
        Drain *d = &a->drain;
        *ret = (DrainView){ .is_draining = d->is_on };
        if (!d->is_on)
                return;
        ret->reason = d->reason;
        ret->since_usec = d->since_usec;
        ret->deadline_usec = first_deadline_usec(d);
        ret->is_safe = is_safe(a);
        ret->missing = ret->is_safe ? NULL : d->missing;
}

/* ---- draining ---- */

static void look_in(Agent *a, uint64_t usec);

static int on_look(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        Drain *d = &a->drain;
        uint64_t now = a->clock->realtime_usec(a->clock);
        (void)source, (void)usec;
        agent_tell_status(a);
        if (is_safe(a))
                return 0; /* a bundle's end tells the rest */
        (void)sd_notifyf(false, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)EXTEND_USEC);
        uint64_t deadline = first_deadline_usec(d);
        if (!d->has_flushed && deadline > 0 && now + FLUSH_BEFORE_USEC >= deadline) {
                d->has_flushed = true;
                log_notice("this node goes in less than a minute: what still settles is shipped as "
                           "it is");
                agent_flush(a, true);
                if (a->incidents)
                        incidents_hurry(a->incidents, true);
        }
        look_in(a, LOOK_USEC);
        return 0;
}

static void look_in(Agent *a, uint64_t usec) {
        int r = timer_arm(&a->drain.timer, &(TimerOrder){ .event = a->event,
                                                          .usec = usec,
                                                          .slack_usec = usec / 20,
                                                          .handler = on_look,
                                                          .userdata = a });
        if (r < 0)
                log_error(r, "cannot arm the timer of the drain");
}

void agent_drain_again(Agent *a) {
        if (!a->drain.is_on)
                return;
        hold_sources(a);
        scheduler_set_urgent(a->scheduler, true);
}

/* All who ask, for people. */
static void join_reasons(Drain *d) {
        size_t n = 0;
        d->reason[0] = '\0';
        for (size_t i = 0; i < N_DRAIN_ASKERS; i++)
                if (d->wishes[i].is_on && n < sizeof d->reason)
                        n += (size_t)snprintf(d->reason + n, sizeof d->reason - n, "%s%s",
                                              n > 0 ? "; " : "", d->wishes[i].reason);
}

void agent_drain(Agent *a, DrainAsker asker, const char *reason, uint64_t deadline_usec) {
        Drain *d = &a->drain;
        DrainWish *wish = &d->wishes[asker];
        wish->is_on = true;
        wish->deadline_usec = deadline_usec;
        (void)snprintf(wish->reason, sizeof wish->reason, "%s", reason);
        join_reasons(d);
        if (!d->is_on) {
                d->since_usec = a->clock->realtime_usec(a->clock);
                d->has_flushed = false;
        }
        d->is_on = true;
        log_notice("draining: %s; nothing new is taken, what is here is shipped", d->reason);
        agent_drain_again(a);
        scheduler_retry_now(a->scheduler, NULL);
        look_in(a, 0);
}

static void take_new_again(Agent *a) {
        Drain *d = &a->drain;
        if (!d->is_on)
                return;
        d->is_on = false;
        d->timer = sd_event_source_disable_unref(d->timer);
        log_notice("resumed: new bundles are taken again");
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_hold(a->sources[i], false);
        if (a->incidents)
                incidents_hurry(a->incidents, false);
        scheduler_set_urgent(a->scheduler, a->once);
        agent_tell_status(a);
}

void agent_resume(Agent *a) {
        for (size_t i = 0; i < N_DRAIN_ASKERS; i++)
                a->drain.wishes[i].is_on = false;
        take_new_again(a);
}

/* ---- what EC2 announces ---- */

static DrainAsker asker_of(NoticeKind kind) {
        return kind == NOTICE_SPOT ? DRAIN_SPOT : DRAIN_MAINTENANCE;
}

static void drain_for(Agent *a, const Notice *n) {
        char reason[96];
        (void)snprintf(reason, sizeof reason, "EC2: %s (%s)",
                       n->kind == NOTICE_SPOT ? "spot interruption" : "scheduled maintenance",
                       n->action);
        agent_drain(a, asker_of(n->kind), reason, n->when_usec);
}

static int on_near(sd_event_source *source, uint64_t usec, void *userdata) {
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
                           "interruption; drain it when that suits");
                return;
        }
        if (d->announced.kind == n->kind) /* another date than before, perhaps */
                d->announced_timer = sd_event_source_disable_unref(d->announced_timer);
        if (n->when_usec <= now + NEAR_USEC) {
                drain_for(a, n);
                return;
        }
        agent_on_withdrawn(n->kind, a); /* it was near and is not any more */
        clock_format_iso(when, n->when_usec);
        log_notice("EC2 announces %s for %s; draining begins 15 min before", n->action, when);
        d->announced = *n;
        int r = timer_arm(&d->announced_timer,
                          &(TimerOrder){ .event = a->event,
                                         .usec = n->when_usec - now - NEAR_USEC,
                                         .slack_usec = (n->when_usec - now - NEAR_USEC) / 20,
                                         .handler = on_near,
                                         .userdata = a });
        if (r < 0)
                log_error(r, "cannot arm the timer of the maintenance");
}

void agent_on_withdrawn(NoticeKind kind, void *userdata) {
        Agent *a = userdata;
        Drain *d = &a->drain;
        DrainWish *wish = &d->wishes[asker_of(kind)];
        if (kind == NOTICE_REBALANCE)
                return;
        if (d->announced_timer && d->announced.kind == kind)
                d->announced_timer = sd_event_source_disable_unref(d->announced_timer);
        if (!wish->is_on)
                return;
        wish->is_on = false;
        log_notice("withdrawn: %s", wish->reason);
        join_reasons(d);
        if (!d->reason[0])
                take_new_again(a);
}

/* ---- stopping ---- */

static void look_whether_still(WindDown *w, uint64_t usec);

static int on_wind_down_look(sd_event_source *source, uint64_t usec, void *userdata) {
        WindDown *w = userdata;
        Agent *a = w->agent;
        (void)source, (void)usec;
        if (scheduler_is_idle(a->scheduler) || a->clock->boottime_usec(a->clock) >= w->until_usec)
                w->on_over(a);
        else
                look_whether_still(w, WIND_DOWN_LOOK_USEC);
        return 0;
}

static void look_whether_still(WindDown *w, uint64_t usec) {
        int r = timer_arm(&w->timer, &(TimerOrder){ .event = w->agent->event,
                                                    .usec = usec,
                                                    .slack_usec = usec / 20,
                                                    .handler = on_wind_down_look,
                                                    .userdata = w });
        if (r >= 0)
                return;
        log_error(r, "cannot wait for what is being shipped, so it is cut");
        w->on_over(w->agent);
}

void agent_wind_down(Agent *a, WindDown *w, void (*on_over)(Agent *a)) {
        w->agent = a;
        w->until_usec = a->clock->boottime_usec(a->clock) + WIND_DOWN_USEC;
        w->on_over = on_over;
        scheduler_wind_down(a->scheduler);
        look_whether_still(w, 0);
}

void wind_down_done(WindDown *w) {
        w->timer = sd_event_source_disable_unref(w->timer);
}

static void tell_stopped(Agent *a) {
        a->drain.on_stopped(a->drain.userdata);
}

void agent_stop(Agent *a, void (*on_stopped)(void *userdata), void *userdata) {
        Drain *d = &a->drain;
        if (d->is_stopping)
                return;
        d->is_stopping = true;
        agent_reload_drop(a);
        d->on_stopped = on_stopped;
        d->userdata = userdata;
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_hold(a->sources[i], true);
        (void)sd_notifyf(false, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)EXTEND_USEC);
        agent_wind_down(a, &d->stop, tell_stopped);
}

void agent_drain_done(Agent *a) {
        sd_event_source_disable_unref(a->drain.timer);
        sd_event_source_disable_unref(a->drain.announced_timer);
        wind_down_done(&a->drain.stop);
}
