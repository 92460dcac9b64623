/* Connects the folders: creates one object of each and gives it the callbacks by which it reports
 * to the others, since the folders do not include each other. A callback here passes an event on to
 * the modules that it concerns, in the order that matters; the folders decide what it means. * Not
 * here: the sources (sources.c, with the callbacks that agent_connect_intake() sets), crash reports
 * (core_reports.c), the drain (drain.c) and the API (backend.c). */
#include "agent/agent_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/delivery/scheduler.h"
#include "agent/evidence/evidence.h"
#include "agent/intake/intake.h"
#include "agent/store/store.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

/* ---- counts of what was discarded ---- */

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

void agent_load_discards(Agent *a) {
        (void)store_counter_list(a->store, DISCARD_COUNTER, add_discard,
                                 a); /* if unreadable, counting starts here */
}

/* ---- bundles ---- */

/* A bundle has reached a final state: each module that holds something for it releases it. */
static void on_final(Bundle *b, void *userdata) {
        Agent *a = userdata;
        if (a->scheduler)
                scheduler_abandon_uploads(a->scheduler, b);
        if (b->source)
                intake_source_on_final(b->source, b);
        if (b->rec.state == BUNDLE_VANISHED || b->rec.state == BUNDLE_CANCELLED)
                on_discard(bundle_state_name(b->rec.state), 1, a);
        if (bundle_state_is_terminal(b->rec.state) && strcmp(b->rec.source, AGENT_SOURCE) == 0) {
                evidence_on_final(a->evidence, b->rec.path);
                if (a->crash_reports)
                        crash_reports_retry(a->crash_reports);
        }
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

int agent_create_bundle_table(Agent *a) {
        return bundle_table_new(&a->bundles, a->store, a->clock,
                                &(BundleTableCallbacks){ on_final, agent_state_on_error,
                                                         agent_reports_are_reading, a });
}

/* ---- what the agent itself makes ---- */

static void on_published(const char *path, void *userdata) {
        IntakeSource *s = agent_source_by_name(userdata, AGENT_SOURCE);
        if (s) /* else it is found when the source starts */
                intake_source_probe_path(s, path);
}

int agent_create_evidence(Agent *a) {
        const EvidenceContext context = {
                .clock = a->clock, .store = a->store, .on_published = on_published, .userdata = a
        };
        return evidence_new(&a->evidence, &context, a->config->state_directory);
}

/* ---- deliveries ---- */

/* Nodes do not agree: what the agent itself has made has the place of its subject all the same. */
static void copy_place(const Agent *a, Bundle *b) {
        _cleanup_(bundle_record_done) BundleRecord stored = { 0 };
        const Bundle *open = bundle_table_find(a->bundles, b->rec.subject);
        if (!bundle_has_begun(b) && (open || store_get(a->store, b->rec.subject, &stored) == 0))
                (void)evidence_copy_place(&b->rec, open ? &open->rec : &stored); /* else its own */
}

static bool is_named(Bundle *b, uint64_t *ret_wait_usec, void *userdata) {
        const Agent *a = userdata;
        if (a->notes &&
            (a->once ? !hooknotes_is_idle(a->notes) : hooknotes_has_unread_mail(a->notes))) {
                *ret_wait_usec = 100 * USEC_PER_MSEC; /* a note may name its job, or its failure */
                return false;
        }
        if (a->failures)
                return failures_name_bundle(a->failures, b, ret_wait_usec);
        if (b->rec.subject[0])
                copy_place(a, b);
        return true;
}

static void on_delivered(const Bundle *b, void *userdata) {
        Agent *a = userdata;
        uint64_t now = a->clock->realtime_usec(a->clock);
        if (bundle_record_is_redelivery(&b->rec))
                return;
        double seconds =
                now > b->rec.first_seen_usec ? (double)(now - b->rec.first_seen_usec) / 1e6 : 0;
        histogram_add(&a->delivery_seconds, seconds);
}

static SourceSpec *get_source_spec(const Bundle *b) {
        return intake_source_spec(b->source);
}

int agent_create_scheduler(Agent *a) {
        SchedulerContext context = { .event = a->event,
                                     .clock = a->clock,
                                     .store = a->store,
                                     .bundles = a->bundles,
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

/* ---- sources ---- */

static void on_ready(Bundle *b, void *userdata) {
        Agent *a = userdata;
        uint64_t wait;
        agent_reports_on_ready(a, b);
        (void)is_named(b, &wait,
                       a); /* starts its wait for a name now, whatever its destinations do */
        scheduler_kick(a->scheduler);
        if (b->rec.state == BUNDLE_READY) /* it waits */
                scheduler_record_failure(a->scheduler, b);
        retention_runner_kick(a->retention_runner);
        agent_notify_status(a);
}

static void on_found(Bundle *b, void *userdata) {
        Agent *a = userdata;
        if (a->incidents && !b->rec.supplement_of[0])
                incidents_on_found(a->incidents, &b->rec);
        if (a->failures)
                failures_on_found(a->failures, b);
        retention_runner_kick(a->retention_runner);
}

static void on_links_rechecked(IntakeSource *s, const char *id, void *userdata) {
        Agent *a = userdata;
        retention_runner_on_links_rechecked(a->retention_runner, s, id);
}

static void on_notes_refused(uint64_t n, void *userdata) {
        const Agent *a = userdata;
        if (a->notes)
                hooknotes_count_refused(a->notes, n);
}

void agent_connect_intake(Agent *a) {
        a->intake_setup = (IntakeContext){ .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .bundles = a->bundles,
                                           .instance_id = a->instance_id,
                                           .link_list = a->link_list,
                                           .on_ready = on_ready,
                                           .on_discard = on_discard,
                                           .on_unheard = on_notes_refused,
                                           .describe = agent_describe,
                                           .on_found = on_found,
                                           .on_links_rechecked = on_links_rechecked,
                                           .takes_all = a->once,
                                           .userdata = a };
}

int agent_create_retention_runner(Agent *a) {
        RetentionRunnerContext context = { .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .bundles = a->bundles,
                                           .on_discard = on_discard,
                                           .submit = intake_source_submit,
                                           .recheck_links = intake_recheck_links,
                                           .is_rechecking_links = intake_is_rechecking_links,
                                           .is_read = agent_reports_are_reading,
                                           .userdata = a };
        int r = retention_runner_new(&a->retention_runner, &context, a->config);
        if (r >= 0)
                agent_sources_set_retention(a);
        return r;
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
        if (a->failures && v->may_come) /* only now its unit is known */
                failures_on_note(a->failures, v);
        if (a->incidents && v->may_come)
                incidents_add_unit_of_note(a->incidents, v);
        intake_source_on_hook_finished(s, v->unit_path, &sender);
}

/* ---- incidents, and what the node reports ---- */

static void on_public(const char *note_id, int fd, const char *reason, void *userdata) {
        const Agent *a = userdata;
        if (a->notes)
                hooknotes_report_snapshot(a->notes, note_id, fd, reason);
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

static void start_incidents(Agent *a) {
        const IncidentsContext context = { .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .instance_id = a->instance_id,
                                           .on_public = on_public,
                                           .bundles = a->bundles,
                                           .evidence = a->evidence,
                                           .userdata = a };
        const NodeWatchContext watch_context = { .event = a->event,
                                                 .clock = a->clock,
                                                 .store = a->store,
                                                 .on_hw_error = on_hw_error,
                                                 .on_crash_line = agent_reports_on_line,
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

void agent_start_hook(Agent *a, int fd) {
        const HookNotesContext context = { .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .on_note = on_note,
                                           .on_finished = on_note_finished,
                                           .userdata = a };
        start_incidents(a);
        int r = hooknotes_new(&a->notes, &context, a->config, fd);
        if (r < 0) {
                if (fd >= 0)
                        (void)close(fd); /* no hook has connected yet */
                log_warning(r, "cannot receive hook notes; dumps are found without them");
        }
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
void agent_start_failures(Agent *a) {
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
