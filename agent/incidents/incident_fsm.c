/* The states of an incident: requests to the supervisor, and what follows from its answers. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/incidents/incidents_private.h"
#include "agent/store/notes_store.h"
#include "collectors/host/procfs.h"
#include "collectors/supervisor.h"
#include "lib/base/log.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"

static bool incident_all_are_gone(const Incident *x);
static void incident_watch_exits(Incident *x);

static void end(Incident *x);
static void step(Incident *x);

#define EXIT_USEC USEC_PER_MINUTE /* how long the second snapshot waits for processes to end */
/* A hook is waited for a second longer than its deadline, and then its directory is searched. */
#define AWAITED_MORE_USEC (3 * USEC_PER_SEC)
void incident_set_state(Incident *x, IncidentState to) {
        static const char *const names[N_INCIDENT_STATES] = {
                [INCIDENT_GATHERING] = "gathering", [INCIDENT_SNAPSHOT] = "snapshot",
                [INCIDENT_WAITING] = "waiting",     [INCIDENT_RECHECKING] = "rechecking",
                [INCIDENT_RESTING] = "resting",     [INCIDENT_ENDED] = "ended",
        };
#define TO(state) (1U << (state))
        static const unsigned moves[N_INCIDENT_STATES] = {
                /* one that an earlier agent left begins where that one was */
                [INCIDENT_GATHERING] = TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_WAITING) |
                                       TO(INCIDENT_RESTING) | TO(INCIDENT_ENDED),
                [INCIDENT_SNAPSHOT] =
                        TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_WAITING) | TO(INCIDENT_RESTING),
                [INCIDENT_WAITING] = TO(INCIDENT_RECHECKING) | TO(INCIDENT_SNAPSHOT),
                [INCIDENT_RECHECKING] = TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_RESTING),
                [INCIDENT_RESTING] = TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_ENDED),
        };
#undef TO
        static const StateTable table = { "incident", names, moves, N_INCIDENT_STATES };
        if (transition_check(&table, x->state, to, NULL) < 0)
                return;
        log_debug("incident %s: %s", x->name, names[to]);
        x->state = to;
}

/* ---- reports ---- */

static void incident_report_public(Incident *x) {
        const IncidentsContext *c = &x->owner->context;
        if (x->public_fd < 0 && !x->is_public_reported)
                return;
        while (x->n_notes_reported < x->notes.n)
                c->on_public(x->notes.items[x->n_notes_reported++], x->public_fd,
                             x->public_fd >= 0 ? NULL : "it failed", c->userdata);
}

/* ---- the supervisor ---- */

/* Where the row cannot be written, incident.json has it. */
static void handle_answer(const Incident *x, IncidentProcess *p, const IncidentProcess *answer) {
        p->pid = answer->pid;
        p->start_ticks = answer->start_ticks;
        memcpy(p->container, answer->container, sizeof p->container);
        (void)store_note_set_process(
                x->owner->context.store,
                &(StoredNote){ .id = p->note,
                               .pid = p->pid,
                               .start_ticks = p->start_ticks,
                               .container = p->container[0] ? p->container : NULL });
        if (p->pid == 0)
                log_notice("incident %s: the process %d that note %s is about could not be found "
                           "(it has ended, or is not its hook's user's): no process data",
                           x->name, (int)p->question.inner_pid, p->note);
}

static void on_process(Incident *x, const char *text) {
        int hook, inner, pid;
        unsigned long long ticks;
        char container[PIDS_CONTAINER_SIZE];
        IncidentProcess answer = { 0 };
        if (sscanf(text, "process %d %d %d %llu %64s", &hook, &inner, &pid, &ticks, container) != 5)
                return;
        answer.pid = MAX(pid, 0);
        answer.start_ticks = ticks;
        (void)pids_container_of(container, answer.container); /* else "" */
        for (size_t k = 0; k < x->n_processes; k++) {
                IncidentProcess *p = x->processes[k];
                if (p->pid == 0 && p->question.hook_pid == hook && p->question.inner_pid == inner)
                        handle_answer(x, p, &answer);
        }
        if (answer.pid == 0)
                return;
        incident_changed(x);
        for (size_t k = 0; k < x->n_log_files; k++) {
                CollectLogFile *f = &x->log_files[k];
                if (f->pid == 0 && f->hook_pid == hook && f->inner_pid == inner) {
                        f->pid = pid;
                        f->start_ticks = ticks;
                }
        }
        incident_add_job(x, pid, ticks);
}

static void on_message(const char *text, void *userdata) {
        Incident *x = userdata;
        if (strncmp(text, "process ", 8) == 0)
                on_process(x, text);
        else if (strcmp(text, "public") == 0 && x->public_fd < 0) {
                int r = incident_read_public(x);
                if (r < 0)
                        log_warning(r, "incident %s: its public part cannot be read", x->name);
                incident_report_public(x);
        }
}

static void on_end(int result, const char *why, void *userdata) {
        Incident *x = userdata;
        if (result < 0)
                log_warning(0, "incident %s: %s", x->name, why);
        if (result < 0 && !x->is_salvage && !x->has_snapshot) {
                x->probe = probe_free(x->probe);
                incident_salvage(x);
                return;
        }
        x->has_snapshot = x->has_snapshot || result == 0;
        x->is_public_reported = true;
        incident_report_public(x);
        x->probe = probe_free(x->probe);
        step(x);
}

/* Twice over all collectors, four at a time, and then some; the commands have times of their own,
 * and another supervisor may hold the directory. */
static uint64_t time_for_all(const Config *c) {
        uint64_t usec = 4 * c->snapshot.probe_timeout_usec + 40 * USEC_PER_SEC;
        for (size_t k = 0; k < c->snapshot.n_commands; k++)
                usec += c->snapshot.commands[k].timeout_usec;
        return usec;
}

/* What the order has of the incident is borrowed: only the lists are made here. */
typedef struct Lists {
        CollectProcess *processes;
        ProbePidQuery *questions;
        CollectCommand *commands;
        CollectDump *dumps;
} Lists;

static void lists_done(Lists *l) {
        free(l->processes);
        free(l->questions);
        free(l->commands);
        free(l->dumps);
}

static void fill_processes(Incident *x, ProbeRequest *o, Lists *l, bool only_new) {
        for (size_t k = 0; k < x->n_processes; k++) {
                IncidentProcess *p = x->processes[k];
                if (only_new && p->is_requested)
                        continue;
                p->is_requested = true;
                if (p->pid > 0)
                        l->processes[o->collect.n_processes++] =
                                (CollectProcess){ p->pid, p->start_ticks };
                else
                        l->questions[o->n_questions++] = p->question;
        }
        o->collect.processes = l->processes;
        o->questions = l->questions;
}

static void fill_commands(const Config *c, ProbeRequest *o, Lists *l) {
        for (size_t k = 0; k < c->snapshot.n_commands; k++)
                l->commands[k] = (CollectCommand){ c->snapshot.commands[k].name,
                                                   c->snapshot.commands[k].run.items,
                                                   c->snapshot.commands[k].timeout_usec };
        o->collect.commands = l->commands;
        o->collect.n_commands = c->snapshot.n_commands;
}

/* The runtime may write a dump's log while the hook runs, and after it: the second snapshot reads
 * all of them once more. */
static void fill_dumps(Incident *x, ProbeRequest *o, Lists *l, bool only_new) {
        for (size_t k = 0; k < x->n_units; k++) {
                IncidentUnit *u = &x->units[k];
                if (u->is_gone || (only_new && u->is_requested))
                        continue;
                u->is_requested = true;
                l->dumps[o->collect.n_dumps++] = (CollectDump){ u->path, u->uid };
        }
        o->collect.dumps = l->dumps;
}

/* A second snapshot does not read those outside of dumps. */
static void fill_log_files(Incident *x, ProbeRequest *o, bool only_new) {
        if (o->mode != PROBE_SNAPSHOT || x->n_log_files == 0)
                return;
        size_t first = only_new ? x->n_log_files_requested : 0;
        o->collect.log_files = x->log_files + first;
        o->collect.n_log_files = x->n_log_files - first;
        x->n_log_files_requested = x->n_log_files;
}

static int order(Incident *x, ProbeMode mode, const char *const *only) {
        const Config *c = x->owner->config;
        _cleanup_(lists_done) Lists l = {
                .processes = calloc(x->n_processes + 1, sizeof *l.processes),
                .questions = calloc(x->n_processes + 1, sizeof *l.questions),
                .commands = calloc(c->snapshot.n_commands + 1, sizeof *l.commands),
                .dumps = calloc(x->n_units + 1, sizeof *l.dumps),
        };
        if (!l.processes || !l.questions || !l.commands || !l.dumps)
                return -ENOMEM;
        ProbeRequest o = { .mode = mode,
                           .collectors = (char **)only,
                           .document = only ? x->document : NULL,
                           .name = x->name,
                           .trigger = x->trigger,
                           .instance_id = (char *)x->owner->context.instance_id,
                           .collect = { .sysfs_root = c->snapshot.sysfs_root,
                                        .device_directory = c->snapshot.device_directory,
                                        .proc_root = c->snapshot.proc_root,
                                        .environment = c->snapshot.environment.items,
                                        .timeout_usec = c->snapshot.probe_timeout_usec,
                                        .max_bytes = c->snapshot.probe_bytes } };
        fill_processes(x, &o, &l, only != NULL);
        fill_dumps(x, &o, &l, only != NULL);
        fill_log_files(x, &o, only != NULL);
        fill_commands(c, &o, &l);
        return probe_new(&x->probe, x->owner->context.event,
                         &(ProbeOptions){ .order = &o,
                                          .socket = x->owner->socket,
                                          .dir_fd = x->dir_fd,
                                          .timeout_usec = time_for_all(c),
                                          .on_message = on_message,
                                          .on_end = on_end,
                                          .userdata = x });
}

/* ---- steps ---- */

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        step(userdata);
        return 0;
}

static int arm(Incident *x, uint64_t usec) {
        return timer_arm(&x->timer, &(TimerOptions){ .event = x->owner->context.event,
                                                     .usec = usec,
                                                     .slack_usec = USEC_PER_MSEC,
                                                     .handler = on_timer,
                                                     .userdata = x });
}

static void disarm(Incident *x) {
        if (x->timer)
                (void)sd_event_source_set_enabled(x->timer, SD_EVENT_OFF); /* as above */
}

static bool has_new_processes(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (!x->processes[k]->is_requested)
                        return true;
        return false;
}

static bool has_new_units(const Incident *x) {
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_requested && !x->units[k].is_gone)
                        return true;
        return false;
}

/* Its threads may log to files of their own. */
static bool has_news(const Incident *x) {
        return has_new_processes(x) || has_new_units(x) ||
               x->n_log_files_requested < x->n_log_files;
}

static int request_more(Incident *x) {
        static const char *const all[] = { "process", "process_packages", "runtime_log", NULL };
        const char *const *only = has_new_processes(x) ? all : all + 2; /* the logs */
        free(x->document);
        if (asprintf(&x->document, "snapshot-more-%u.json", ++x->n_more) < 0) {
                x->document = NULL;
                return -ENOMEM;
        }
        return order(x, PROBE_SNAPSHOT, only);
}

static uint64_t age(const Incident *x) {
        return incidents_boot_usec(x->owner) - x->begun_boot_usec;
}

/* @return how long others may join, or its unit be named; 0 = no longer */
static uint64_t rest_usec(const Incident *x) {
        uint64_t now = incidents_boot_usec(x->owner), old = age(x), young = 0, awaited = 0;
        if (x->owner->is_hurried || x->cause == INCIDENT_REQUESTED)
                return 0;
        if (old < INCIDENT_YOUNG_USEC)
                young = INCIDENT_YOUNG_USEC - old;
        if (x->n_units == 0 && now < x->awaited_boot_usec)
                awaited = x->awaited_boot_usec - now;
        return MAX(young, awaited);
}

void incident_await_unit(Incident *x) {
        x->awaited_boot_usec = incidents_boot_usec(x->owner) +
                               x->owner->config->hook.deadline_usec + AWAITED_MORE_USEC;
}

static void end(Incident *x) {
        incident_set_state(x, INCIDENT_ENDED);
        x->ended_boot_usec = incidents_boot_usec(x->owner);
        disarm(x);
        if (x->owner->young == x)
                x->owner->young = NULL;
        x->bytes = incident_measure(x);
        if (x->is_found && x->n_units > 0)
                incident_attach_all(x); /* what has come since it rests */
        incident_write(x);
        if (x->n_units == 0 && x->cause != INCIDENT_REQUESTED && x->has_snapshot)
                incident_make_own_bundle(x);
        incident_close_descriptors(x);
}

static void rest_on(Incident *x) {
        uint64_t usec = rest_usec(x);
        if (usec == 0 || arm(x, usec) < 0)
                end(x);
}

/* All snapshots are there: units need not wait any more. While it is young others may
 * join. */
static void rest(Incident *x) {
        incident_set_state(x, INCIDENT_RESTING);
        incident_unwatch_exits(x);
        incident_write(x);
        incident_attach_all(x); /* units are notified when it has finished */
        rest_on(x);
}

static void wait_for_exits(Incident *x) {
        incident_set_state(x, INCIDENT_WAITING);
        incident_write(x);
        incident_attach_all(x);
        incident_watch_exits(x);
        if (x->owner->is_hurried || incident_all_are_gone(x) || arm(x, EXIT_USEC) < 0)
                step(x);
}

static bool has_known_process(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid > 0)
                        return true;
        return false;
}

/* What the second one is compared with: one that was interrupted may not have come to it. */
static bool has_first_snapshot(const Incident *x) {
        return !x->is_salvage ||
               faccessat(x->dir_fd, SNAPSHOT_BEFORE_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void after_snapshot(Incident *x) {
        if (x->has_snapshot && has_news(x)) {
                if (request_more(x) == 0)
                        return;
                log_warning(0, "incident %s: processes and logs that came later are left out",
                            x->name);
        }
        if (x->has_snapshot && has_known_process(x) && has_first_snapshot(x))
                wait_for_exits(x);
        else
                rest(x);
}

static void incident_on_exit(Incident *x) {
        if (x->state == INCIDENT_WAITING && incident_all_are_gone(x))
                step(x);
}

static void step(Incident *x) {
        int r = 0;
        switch (x->state) {
        case INCIDENT_GATHERING:
                incident_set_state(x, INCIDENT_SNAPSHOT);
                incident_write(x);
                r = order(x, PROBE_SNAPSHOT, NULL);
                break;
        case INCIDENT_SNAPSHOT:
                after_snapshot(x);
                break;
        case INCIDENT_WAITING:
                disarm(x);
                incident_set_state(x, INCIDENT_RECHECKING);
                r = order(x, PROBE_AFTER, NULL);
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
        case N_INCIDENT_STATES:
                break;
        }
        if (r < 0) {
                log_warning(r, "incident %s: the collectors cannot be started", x->name);
                x->is_public_reported = true;
                incident_report_public(x);
                rest(x);
        }
}

void incidents_hurry(Incidents *i, bool on) {
        i->is_hurried = on;
        LIST_FOREACH_SAFE (l, &i->incidents) {
                Incident *x = CONTAINER_OF(l, Incident, link);
                if (on && (x->state == INCIDENT_WAITING || x->state == INCIDENT_RESTING))
                        step(x);
        }
}

int incident_start(Incident *x, uint64_t wait_usec) {
        return arm(x, wait_usec);
}

void incident_on_joined(Incident *x) {
        incident_report_public(x);
        if (x->state != INCIDENT_WAITING && x->state != INCIDENT_RESTING)
                return; /* it is seen to when what is underway has ended */
        if (x->has_snapshot && has_news(x)) {
                disarm(x);
                incident_set_state(x, INCIDENT_SNAPSHOT);
                after_snapshot(x);
        } else if (x->state == INCIDENT_RESTING)
                incident_attach_all(x); /* and then units need not wait */
}

bool incident_start_recheck(Incident *x) {
        if (!has_known_process(x) ||
            faccessat(x->dir_fd, SNAPSHOT_AFTER_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                return false;
        incident_report_pending(x, true);
        wait_for_exits(x);
        return true;
}

void incident_resume_resting(Incident *x) {
        x->is_public_reported = true;
        if (x->n_units > 0)
                log_notice("incident %s: what is not attached to its dumps yet is attached now",
                           x->name);
        incident_report_pending(x, true);
        rest(x);
}

void incident_salvage(Incident *x) {
        incident_report_pending(x, true);
        x->is_salvage = true;
        incident_set_state(x, INCIDENT_SNAPSHOT);
        int r = order(x, PROBE_SALVAGE, NULL);
        if (r == 0)
                return;
        log_warning(r, "incident %s: what was left of its snapshot cannot be gathered", x->name);
        x->is_public_reported = true;
        incident_report_public(x);
        rest(x);
}

/* The second snapshot waits for the ends of processes: a pidfd for each of an incident's processes,
 * for as long as it waits. */

static bool incident_all_are_gone(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid > 0 && !x->processes[k]->is_gone)
                        return false;
        return true;
}

static void forget(IncidentProcess *p) {
        p->exit = sd_event_source_disable_unref(p->exit);
        cleanup_closep(&p->pid_fd);
        p->pid_fd = -1;
}

static int on_exit_seen(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Incident *x = userdata;
        (void)s, (void)revents;
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid_fd == fd) {
                        x->processes[k]->is_gone = true;
                        forget(x->processes[k]);
                        break;
                }
        incident_on_exit(x);
        return 0;
}

/* Its number was given to another one meanwhile. */
static bool is_another(const Incident *x, const IncidentProcess *p) {
        Proc proc = { .dir_fd = -1 };
        if (p->start_ticks == 0)
                return false;
        int r = procfs_open(&proc, x->owner->config->snapshot.proc_root, p->pid, p->start_ticks);
        procfs_close(&proc);
        return r == PROCFS_E_GONE || r == PROCFS_E_REPLACED;
}

/* None of it needs permission to inspect the process. Where the kernel has no pidfds, time decides.
 */
static void watch_exit(Incident *x, IncidentProcess *p) {
        if (p->pid <= 0 || p->pid_fd >= 0 || p->is_gone)
                return;
        p->pid_fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
        if (p->pid_fd < 0) {
                p->is_gone = errno == ESRCH;
                return;
        }
        p->is_gone = is_another(x, p);
        if (p->is_gone || sd_event_add_io(x->owner->context.event, &p->exit, p->pid_fd, EPOLLIN,
                                          on_exit_seen, x) < 0)
                forget(p); /* where that fails time decides, too */
}

static void incident_watch_exits(Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                watch_exit(x, x->processes[k]);
}

void incident_unwatch_exits(Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                forget(x->processes[k]);
}

/* The dumps that an incident is about: how many, whose, and until when a path means the same one.
 */

IncidentUnit *incident_find_unit(Incident *x, const char *source, const char *path) {
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_gone && strcmp(x->units[k].source, source) == 0 &&
                    strcmp(x->units[k].path, path) == 0)
                        return &x->units[k];
        return NULL;
}

/* One user cannot have the same files written any number of times, nor take all places. */
static int check_space(Incident *x, const IncidentUnit *u) {
        size_t n = 0;
        for (size_t k = 0; k < x->n_units; k++)
                n += x->units[k].uid == u->uid;
        if (x->n_units < INCIDENT_UNITS_MAX && (u->uid == 0 || n < INCIDENT_UNITS_MAX_OF_UID))
                return 0;
        if (x->n_left_out++ == 0)
                log_warning(0,
                            "incident %s: '%s' of uid %u and further ones get no snapshot: %u "
                            "dumps an incident and %u a user are the limit",
                            x->name, u->path, (unsigned)u->uid, (unsigned)INCIDENT_UNITS_MAX,
                            (unsigned)INCIDENT_UNITS_MAX_OF_UID);
        return -EDQUOT;
}

int incident_add_unit(Incident *x, const IncidentUnit *u) {
        if (incident_find_unit(x, u->source, u->path))
                return 1;
        int r = check_space(x, u);
        if (r < 0)
                return r;
        IncidentUnit *more = realloc(x->units, (x->n_units + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        x->units = more;
        IncidentUnit own = { .source = strdup(u->source),
                             .path = strdup(u->path),
                             .uid = u->uid,
                             .is_requested = u->is_requested,
                             .added_usec = u->added_usec ? u->added_usec
                                                         : incidents_realtime_usec(x->owner) };
        if (!own.source || !own.path) {
                free(own.source);
                free(own.path);
                return -ENOMEM;
        }
        more[x->n_units++] = own;
        return 0;
}

void incident_units_done(Incident *x) {
        for (size_t k = 0; k < x->n_units; k++) {
                free(x->units[k].source);
                free(x->units[k].path);
                free(x->units[k].attached);
        }
        free(x->units);
}

void incident_report_pending(const Incident *x, bool pending) {
        const IncidentsContext *c = &x->owner->context;
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_gone)
                        c->on_pending(x->units[k].source, x->units[k].path, pending, c->userdata);
}

void incidents_unit_renewed(Incidents *i, const char *source, const char *unit_path,
                            uint64_t before_usec) {
        LIST_FOREACH (l, &i->incidents) {
                Incident *x = CONTAINER_OF(l, Incident, link);
                IncidentUnit *u = incident_find_unit(x, source, unit_path);
                if (!u || u->added_usec >= before_usec)
                        continue;
                u->is_gone = true;
                if (x->state != INCIDENT_ENDED)
                        incident_changed(x);
                log_debug("incident %s: '%s' is another dump by now", x->name, unit_path);
        }
}
