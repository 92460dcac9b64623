/* From the first look to the last: orders of the supervisor, and what follows from its answers. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/incidents_private.h"
#include "agent/store/notes_store.h"
#include "collectors/procfs.h"
#include "collectors/supervise.h"
#include "lib/base/log.h"

static void step(Incident *x);

/* ---- telling ---- */

void incident_tell_public(Incident *x) {
        const IncidentsContext *c = &x->owner->context;
        if (x->public_fd < 0 && !x->is_public_over)
                return;
        while (x->n_told < x->n_notes)
                c->on_public(x->notes[x->n_told++], x->public_fd,
                             x->public_fd >= 0 ? NULL : "it could not be taken", c->userdata);
}

static void tell_pending(const Incident *x, bool pending) {
        const IncidentsContext *c = &x->owner->context;
        for (size_t k = 0; k < x->n_units; k++)
                c->on_pending(x->units[k].source, x->units[k].path, pending, c->userdata);
}

/* ---- the supervisor ---- */

static void on_process(Incident *x, const char *text) {
        int hook, inner, pid;
        unsigned long long ticks;
        if (sscanf(text, "process %d %d %d %llu", &hook, &inner, &pid, &ticks) != 4 || pid <= 0)
                return;
        for (size_t k = 0; k < x->n_processes; k++) {
                IncidentProcess *p = x->processes[k];
                if (p->pid == 0 && p->question.hook_pid == hook && p->question.inner_pid == inner) {
                        p->pid = pid;
                        p->start_ticks = ticks;
                        (void)store_note_set_process(x->owner->context.store, p->note, pid, ticks,
                                                     NULL); /* the snapshot has it all the same */
                }
        }
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
                incident_tell_public(x);
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
        x->is_public_over = true;
        incident_tell_public(x);
        x->probe = probe_free(x->probe);
        step(x);
}

/* Twice over all collectors, four at a time, and then some; the commands have times of their own, and another supervisor may hold the directory. */
static uint64_t time_for_all(const Config *c) {
        uint64_t usec = 4 * c->snapshot.probe_timeout_usec + 40 * USEC_PER_SEC;
        for (size_t k = 0; k < c->snapshot.n_commands; k++)
                usec += c->snapshot.commands[k].timeout_usec;
        return usec;
}

/* What the order has of the incident is borrowed: only the lists are made here. */
typedef struct Lists {
        CollectProcess *processes;
        ProbeQuestion *questions;
        CollectCommand *commands;
} Lists;

static void lists_done(Lists *l) {
        free(l->processes);
        free(l->questions);
        free(l->commands);
}

static void fill_processes(Incident *x, ProbeOrder *o, Lists *l, bool only_new) {
        for (size_t k = 0; k < x->n_processes; k++) {
                IncidentProcess *p = x->processes[k];
                if (only_new && p->is_taken)
                        continue;
                p->is_taken = true;
                if (p->pid > 0)
                        l->processes[o->collect.n_processes++] =
                                (CollectProcess){ p->pid, p->start_ticks };
                else
                        l->questions[o->n_questions++] = p->question;
        }
        o->collect.processes = l->processes;
        o->questions = l->questions;
}

static void fill_commands(const Config *c, ProbeOrder *o, Lists *l) {
        for (size_t k = 0; k < c->snapshot.n_commands; k++)
                l->commands[k] = (CollectCommand){ c->snapshot.commands[k].name,
                                                   c->snapshot.commands[k].run.items,
                                                   c->snapshot.commands[k].timeout_usec };
        o->collect.commands = l->commands;
        o->collect.n_commands = c->snapshot.n_commands;
}

static int order(Incident *x, ProbeMode mode, const char *const *only) {
        const Config *c = x->owner->config;
        _cleanup_(lists_done) Lists l = {
                .processes = calloc(x->n_processes + 1, sizeof *l.processes),
                .questions = calloc(x->n_processes + 1, sizeof *l.questions),
                .commands = calloc(c->snapshot.n_commands + 1, sizeof *l.commands),
        };
        if (!l.processes || !l.questions || !l.commands)
                return -ENOMEM;
        ProbeOrder o = { .mode = mode,
                         .collectors = (char **)only,
                         .document = only ? x->document : NULL,
                         .name = x->name,
                         .trigger = x->trigger,
                         .instance_id = (char *)x->owner->context.instance_id,
                         .collect = { .sysfs_root = c->snapshot.sysfs_root,
                                      .device_directory = c->snapshot.device_directory,
                                      .proc_root = c->snapshot.proc_root,
                                      .attached_ioctls = c->snapshot.attached_ioctls,
                                      .environment = c->snapshot.environment.items,
                                      .timeout_usec = c->snapshot.probe_timeout_usec,
                                      .max_bytes = c->snapshot.probe_bytes,
                                      .log_files = x->log_files,
                                      .n_log_files = x->n_log_files } };
        fill_processes(x, &o, &l, only != NULL);
        fill_commands(c, &o, &l);
        return probe_new(&x->probe, x->owner->context.event,
                         &(ProbeRequest){ .order = &o,
                                          .socket = x->owner->socket,
                                          .dir_fd = x->dir_fd,
                                          .timeout_usec = time_for_all(c),
                                          .on_message = on_message,
                                          .on_end = on_end,
                                          .userdata = x });
}

/* ---- processes that end ---- */

static bool all_are_gone(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid > 0 && !x->processes[k]->is_gone)
                        return false;
        return true;
}

static int on_exit_seen(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Incident *x = userdata;
        (void)revents;
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid_fd == fd)
                        x->processes[k]->is_gone = true;
        (void)sd_event_source_set_enabled(s, SD_EVENT_OFF); /* fails only in another process */
        if (x->state == INCIDENT_WAITING && all_are_gone(x))
                step(x);
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

/* Nothing of it needs leave to look at the process. Where the kernel has no pidfds, time decides. */
static void watch_exit(Incident *x, IncidentProcess *p) {
        if (p->pid <= 0 || p->pid_fd >= 0 || p->is_gone)
                return;
        p->pid_fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
        if (p->pid_fd < 0)
                p->is_gone = errno == ESRCH;
        else if (is_another(x, p))
                p->is_gone = true;
        else if (sd_event_add_io(x->owner->context.event, &p->exit, p->pid_fd, EPOLLIN,
                                 on_exit_seen, x) < 0)
                p->is_gone = false; /* time decides here, too */
}

/* ---- steps ---- */

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s;
        (void)usec;
        step(userdata);
        return 0;
}

static int arm(Incident *x, uint64_t usec) {
        if (!x->timer)
                return sd_event_add_time_relative(x->owner->context.event, &x->timer,
                                                  CLOCK_MONOTONIC, usec, USEC_PER_MSEC, on_timer,
                                                  x);
        int r = sd_event_source_set_time_relative(x->timer, usec);
        return r < 0 ? r : sd_event_source_set_enabled(x->timer, SD_EVENT_ONESHOT);
}

static void disarm(Incident *x) {
        if (x->timer)
                (void)sd_event_source_set_enabled(x->timer, SD_EVENT_OFF); /* as above */
}

static bool has_new_processes(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (!x->processes[k]->is_taken)
                        return true;
        return false;
}

static int take_more(Incident *x) {
        static const char *const only[] = { "process", "process_packages", "runtime_log", NULL };
        free(x->document);
        if (asprintf(&x->document, "snapshot-more-%u.json", ++x->n_more) < 0) {
                x->document = NULL;
                return -ENOMEM;
        }
        return order(x, PROBE_SNAPSHOT, only);
}

static uint64_t age(const Incident *x) {
        Clock *clock = x->owner->context.clock;
        return clock->boottime_usec(clock) - x->begun_boot_usec;
}

static void end(Incident *x) {
        Clock *clock = x->owner->context.clock;
        x->state = INCIDENT_ENDED;
        x->ended_boot_usec = clock->boottime_usec(clock);
        disarm(x);
        if (x->owner->young == x)
                x->owner->young = NULL;
        x->bytes = incident_measure(x);
        incident_write(x);
        if (x->n_units == 0 && x->cause != INCIDENT_ASKED && x->has_snapshot)
                incident_move_outside(x);
}

/* All that is to be looked at has been: units need not wait any more. While it is young others may join. */
static void rest(Incident *x) {
        x->state = INCIDENT_RESTING;
        incident_write(x);
        incident_attach_all(x);
        tell_pending(x, false);
        uint64_t old = age(x);
        if (x->owner->is_hurried || old >= INCIDENT_YOUNG_USEC || x->cause == INCIDENT_ASKED ||
            arm(x, INCIDENT_YOUNG_USEC - old) < 0)
                end(x);
}

static void wait_for_exits(Incident *x) {
        x->state = INCIDENT_WAITING;
        incident_write(x);
        incident_attach_all(x);
        for (size_t k = 0; k < x->n_processes; k++)
                watch_exit(x, x->processes[k]);
        if (x->owner->is_hurried || all_are_gone(x) || arm(x, INCIDENT_EXIT_USEC) < 0)
                step(x);
}

static bool knows_a_process(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid > 0)
                        return true;
        return false;
}

static void after_taking(Incident *x) {
        if (x->has_snapshot && has_new_processes(x)) {
                if (take_more(x) == 0)
                        return;
                log_warning(0, "incident %s: processes that came later are not looked at", x->name);
        }
        if (x->has_snapshot && knows_a_process(x) && !x->is_salvage)
                wait_for_exits(x);
        else
                rest(x);
}

static void step(Incident *x) {
        int r = 0;
        switch (x->state) {
        case INCIDENT_GATHERING:
                x->state = INCIDENT_TAKING;
                incident_write(x);
                r = order(x, PROBE_SNAPSHOT, NULL);
                break;
        case INCIDENT_TAKING:
                after_taking(x);
                break;
        case INCIDENT_WAITING:
                disarm(x);
                x->state = INCIDENT_LOOKING;
                r = order(x, PROBE_AFTER, NULL);
                break;
        case INCIDENT_LOOKING:
                if (has_new_processes(x)) {
                        x->state = INCIDENT_TAKING;
                        after_taking(x);
                } else
                        rest(x);
                break;
        case INCIDENT_RESTING:
                end(x);
                break;
        case INCIDENT_ENDED:
                break;
        }
        if (r < 0) {
                log_warning(r, "incident %s: the collectors cannot be started", x->name);
                x->is_public_over = true;
                incident_tell_public(x);
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
        x->state = INCIDENT_GATHERING;
        return arm(x, wait_usec);
}

void incident_on_joined(Incident *x) {
        incident_tell_public(x);
        if (x->state != INCIDENT_WAITING && x->state != INCIDENT_RESTING)
                return; /* it is seen to when what is underway has ended */
        if (x->has_snapshot && has_new_processes(x)) {
                disarm(x);
                x->state = INCIDENT_TAKING;
                after_taking(x);
        } else if (x->state == INCIDENT_RESTING)
                tell_pending(x, false);
}

bool incident_look_again(Incident *x) {
        if (!knows_a_process(x) ||
            faccessat(x->dir_fd, SNAPSHOT_AFTER_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                return false;
        tell_pending(x, true);
        wait_for_exits(x);
        return true;
}

void incident_salvage(Incident *x) {
        tell_pending(x, true);
        x->is_salvage = true;
        x->state = INCIDENT_TAKING;
        int r = order(x, PROBE_SALVAGE, NULL);
        if (r == 0)
                return;
        log_warning(r, "incident %s: what was left of its snapshot cannot be gathered", x->name);
        x->is_public_over = true;
        incident_tell_public(x);
        rest(x);
}
