/* The states of an incident, and what leads from one to the next.
 *
 *   GATHERING   events that belong together arrive within a moment: one request for all
 *       │ 50 ms
 *   SNAPSHOT    the supervisor collects; what joins meanwhile is requested afterwards, as "more"
 *       │ nothing new                              ▲ something joined
 *   WAITING     for the incident's processes to end, a minute at most
 *       │ all have ended, or time is over
 *   RECHECKING  the supervisor collects once more what has changed since
 *       │
 *   RESTING     all is there; others may join for 30 s after the start (and then SNAPSHOT follows)
 *       │ time is over
 *   ENDED       the files become a bundle, and the incident is removed (where the disk refuses
 *               that it is tried again each minute); or an operator has requested them, and they
 *               are kept
 *
 * A snapshot of no known process goes from SNAPSHOT to RESTING. A snapshot that fails is salvaged:
 * another supervisor makes a document of what the first one left. incident_machine_step() is called
 * when a request has ended, a timer has expired, or the last process has ended; each state knows
 * what that means. No dump waits for any of this. */
#include "agent/incidents/incident_machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/incidents/incident_directory.h"
#include "agent/incidents/incident_request.h"
#include "collectors/snapshot.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"

#define PUBLISH_RETRY_USEC USEC_PER_MINUTE
#define EXIT_USEC USEC_PER_MINUTE /* the second snapshot waits so long for processes to end */
/* Beyond the deadline of hooks: agent/hooknotes waits a second longer for the hook, and then
 * searches its directory. */
#define AWAITED_MORE_USEC (3 * USEC_PER_SEC)

static void on_end(int result, const char *why, void *userdata);

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        incident_machine_step(userdata);
        return 0;
}

int incident_machine_arm(Incident *x, uint64_t usec) {
        return timer_arm(&x->timer, &(TimerOptions){ .event = x->owner->context.event,
                                                     .usec = usec,
                                                     .slack_usec = USEC_PER_MSEC,
                                                     .handler = on_timer,
                                                     .userdata = x });
}

/* ---- what joined since the last request ---- */

static bool has_new_processes(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (!x->processes[k]->is_requested)
                        return true;
        return false;
}

static bool has_new_units(const Incident *x) {
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_requested)
                        return true;
        return false;
}

static bool has_news(const Incident *x) {
        return has_new_processes(x) || has_new_units(x) ||
               x->n_log_files_requested < x->n_log_files;
}

static int request_more(Incident *x) {
        static const char *const all[] = { "process", "process_packages", "runtime_log", NULL };
        const char *const *only = has_new_processes(x) ? all : all + 2; /* logs only */
        free(x->document);
        x->document = strbuf_format("snapshot-more-%u.json", ++x->n_more);
        return x->document ? incident_request_start(x, PROBE_SNAPSHOT, only, on_end) : -ENOMEM;
}

/* ---- resting, and the end ---- */

static uint64_t age_usec(const Incident *x) {
        return incident_boot_usec(x->owner) - x->begun_boot_usec;
}

/* @return how long events may still join it, or a hook may create its unit; 0 = no longer */
static uint64_t rest_usec(const Incident *x) {
        uint64_t now = incident_boot_usec(x->owner), old = age_usec(x), young = 0, awaited = 0;
        if (x->owner->hurry != INCIDENT_HURRY_NONE || x->cause == INCIDENT_REQUESTED)
                return 0;
        if (old < INCIDENT_YOUNG_USEC)
                young = INCIDENT_YOUNG_USEC - old;
        if (x->n_units == 0 && now < x->awaited_boot_usec)
                awaited = x->awaited_boot_usec - now;
        return MAX(young, awaited);
}

void incident_machine_await_unit(Incident *x) {
        x->awaited_boot_usec = incident_boot_usec(x->owner) + x->owner->config->hook.deadline_usec +
                               AWAITED_MORE_USEC;
}

/* Once it is published nobody needs it any more. It is removed in the next turn of the loop, since
 * whoever has made the step still uses it. */
static void publish(Incident *x) {
        if (!incident_is_evidence(x))
                return;
        incident_directory_publish(x);
        (void)incident_machine_arm(
                x, x->place == INCIDENT_PUBLISHED ? 0 : PUBLISH_RETRY_USEC); /* else it stays in
                                                                 the list */
}

static void end(Incident *x) {
        incident_set_state(x, INCIDENT_ENDED);
        timer_disarm(x->timer);
        if (x->owner->young == x)
                x->owner->young = NULL;
        x->bytes = incident_directory_measure(x);
        incident_directory_write(x);
        publish(x);
        incident_directory_close(x);
}

static void rest_on(Incident *x) {
        uint64_t usec = rest_usec(x);
        if (usec == 0 || incident_machine_arm(x, usec) < 0)
                end(x);
}

static void rest(Incident *x) {
        incident_set_state(x, INCIDENT_RESTING);
        incident_unwatch_exits(x);
        incident_directory_write(x);
        rest_on(x);
}

/* ---- waiting for processes ---- */

static bool all_are_gone(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid > 0 && !x->processes[k]->is_gone)
                        return false;
        return true;
}

static void on_exit_seen(void *userdata) {
        IncidentProcess *p = userdata;
        Incident *x = p->incident;
        p->watch = rank_watch_free(p->watch);
        p->is_gone = true;
        if (x->state == INCIDENT_WAITING && all_are_gone(x))
                incident_machine_step(x);
}

/* A process whose end cannot be seen counts as running until EXIT_USEC is over. */
static void watch_exits(Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++) {
                IncidentProcess *p = x->processes[k];
                if (p->pid > 0 && !p->watch && !p->is_gone)
                        p->is_gone =
                                rank_watch_new(
                                        &p->watch,
                                        &(RankWatchOptions){
                                                .event = x->owner->context.event,
                                                .proc_root = x->owner->config->snapshot.proc_root,
                                                .pid = p->pid,
                                                .start_ticks = p->start_ticks,
                                                .on_end = on_exit_seen,
                                                .userdata = p }) == -ESRCH;
        }
}

static void wait_for_exits(Incident *x) {
        incident_set_state(x, INCIDENT_WAITING);
        incident_directory_write(x);
        watch_exits(x);
        if (x->owner->hurry == INCIDENT_HURRY_FLUSH || all_are_gone(x) ||
            incident_machine_arm(x, EXIT_USEC) < 0)
                incident_machine_step(x);
}

static bool has_known_process(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid > 0)
                        return true;
        return false;
}

/* @return whether the second snapshot has something to compare with: an interrupted first one may
 * have written nothing */
static bool has_first_snapshot(const Incident *x) {
        return x->content == INCIDENT_WHOLE ||
               faccessat(x->dir_fd, SNAPSHOT_BEFORE_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* ---- steps ---- */

static void after_snapshot(Incident *x) {
        if (incident_has_snapshot(x) && has_news(x)) {
                if (request_more(x) == 0)
                        return;
                log_warning(0, "incident %s: processes and logs that came later are left out",
                            x->name);
        }
        if (incident_has_snapshot(x) && has_known_process(x) && has_first_snapshot(x))
                wait_for_exits(x);
        else
                rest(x);
}

/* Continues with the files that exist. */
static void give_up(Incident *x, int error, const char *why) {
        log_warning(error, "incident %s: %s", x->name, why);
        x->is_public_reported = true;
        incident_report_public(x);
        rest(x);
}

void incident_machine_step(Incident *x) {
        int r = 0;
        switch (x->state) {
        case INCIDENT_GATHERING:
                incident_set_state(x, INCIDENT_SNAPSHOT);
                incident_directory_write(x);
                r = incident_request_start(x, PROBE_SNAPSHOT, NULL, on_end);
                break;
        case INCIDENT_SNAPSHOT:
                after_snapshot(x);
                break;
        case INCIDENT_WAITING:
                timer_disarm(x->timer);
                incident_set_state(x, INCIDENT_RECHECKING);
                r = incident_request_start(x, PROBE_AFTER, NULL, on_end);
                break;
        case INCIDENT_RECHECKING:
                if (has_news(x)) {
                        incident_set_state(x, INCIDENT_SNAPSHOT);
                        after_snapshot(x);
                } else
                        rest(x);
                break;
        case INCIDENT_RESTING:
                rest_on(x);
                break;
        case INCIDENT_ENDED:
                if (x->place == INCIDENT_PUBLISHED)
                        x->owner->remove(x);
                else
                        publish(x);
                return;
        case N_INCIDENT_STATES:
                break;
        }
        if (r < 0)
                give_up(x, r, "the collectors cannot be started");
}

void incident_machine_salvage(Incident *x) {
        incident_set_content(x, INCIDENT_SALVAGING);
        incident_set_state(x, INCIDENT_SNAPSHOT);
        int r = incident_request_start(x, PROBE_SALVAGE, NULL, on_end);
        if (r < 0)
                give_up(x, r, "what was left of its snapshot cannot be gathered");
}

static void on_end(int result, const char *why, void *userdata) {
        Incident *x = userdata;
        if (result < 0)
                log_warning(0, "incident %s: %s", x->name, why);
        if (result < 0 && x->content == INCIDENT_NOTHING) {
                x->supervisor = supervisor_client_free(x->supervisor);
                incident_machine_salvage(x);
                return;
        }
        if (result == 0 && !incident_has_snapshot(x))
                incident_set_content(x, x->content == INCIDENT_NOTHING ? INCIDENT_WHOLE
                                                                       : INCIDENT_SALVAGED);
        x->is_public_reported = true;
        incident_report_public(x);
        x->supervisor = supervisor_client_free(x->supervisor);
        incident_machine_step(x);
}

void incident_machine_on_joined(Incident *x) {
        incident_report_public(x);
        if (x->state != INCIDENT_WAITING && x->state != INCIDENT_RESTING)
                return; /* the end of the running request handles it */
        if (incident_has_snapshot(x) && has_news(x)) {
                timer_disarm(x->timer);
                incident_set_state(x, INCIDENT_SNAPSHOT);
                after_snapshot(x);
        }
}

/* ---- incidents of an earlier agent ---- */

bool incident_machine_start_recheck(Incident *x) {
        if (!has_known_process(x) ||
            faccessat(x->dir_fd, SNAPSHOT_AFTER_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                return false;
        wait_for_exits(x);
        return true;
}

void incident_machine_resume_resting(Incident *x) {
        x->is_public_reported = true;
        rest(x);
}

void incident_machine_resume_end(Incident *x) {
        incident_set_state(x, INCIDENT_ENDED);
        publish(x);
}
