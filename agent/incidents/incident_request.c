/* What a supervisor of the collectors is asked to do for an incident, and what it answers of its
 * processes.
 *
 * A request names the processes (or, for a process that only a hook could name, the question which
 * one it is), the dumps whose logs are read, the logs outside of dumps, and the operator's
 * commands. A request for what came later names only what no request before it named. The
 * supervisor answers with the processes that it found, and with `public` when the part of the
 * snapshot that notes may see is complete. How the request ended is the caller's
 * (incident_machine.c). */
#include "agent/incidents/incident_request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/incidents/incident_directory.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

/* ---- answers ---- */

/* If the row cannot be written, only snapshot-context.json has the answer. */
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
        if (p->pid == 0 && !p->is_unknown)
                log_notice("incident %s: the process %d that note %s is about could not be found "
                           "(it has ended, or is not its hook's user's): no process data",
                           x->name, (int)p->question.inner_pid, p->note);
        p->is_unknown = p->pid == 0;
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
        incident_directory_write_soon(x);
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
                int r = incident_directory_read_public(x);
                if (r < 0)
                        log_warning(r, "incident %s: its public part cannot be read", x->name);
                incident_report_public(x);
        }
}

/* ---- the request ---- */

/* The supervisor runs four collectors at a time, so that all take twice the time of one; it may
 * wait as long again for another supervisor that works in the same directory. Each command has a
 * time of its own. */
static uint64_t time_for_all(const Config *c) {
        uint64_t usec = 4 * c->snapshot.probe_timeout_usec + 40 * USEC_PER_SEC;
        for (size_t k = 0; k < c->snapshot.n_commands; k++)
                usec += c->snapshot.commands[k].timeout_usec;
        return usec;
}

/* The arrays of a request; their items are borrowed from the incident. */
typedef struct Lists {
        CollectProcess processes[COLLECT_PROCESSES_MAX];
        ProbePidQuery questions[COLLECT_PROCESSES_MAX];
        CollectDump dumps[INCIDENT_UNITS_MAX];
} Lists;

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

static void fill_commands(const Config *c, ProbeRequest *o, CollectCommand *commands) {
        for (size_t k = 0; k < c->snapshot.n_commands; k++)
                commands[k] = (CollectCommand){ c->snapshot.commands[k].name,
                                                c->snapshot.commands[k].run.items,
                                                c->snapshot.commands[k].timeout_usec };
        o->collect.commands = commands;
        o->collect.n_commands = c->snapshot.n_commands;
}

/* The second snapshot reads the logs of all dumps once more, because the runtime writes to them
 * while the hook runs, and later. */
static void fill_dumps(Incident *x, ProbeRequest *o, Lists *l, bool only_new) {
        for (size_t k = 0; k < x->n_units; k++) {
                IncidentUnit *u = &x->units[k];
                if (only_new && u->is_requested)
                        continue;
                u->is_requested = true;
                l->dumps[o->collect.n_dumps++] = (CollectDump){ u->path, u->owner.uid };
        }
        o->collect.dumps = l->dumps;
}

/* The second snapshot does not read logs outside of dumps. */
static void fill_log_files(Incident *x, ProbeRequest *o, bool only_new) {
        if (o->mode != PROBE_SNAPSHOT || x->n_log_files == 0)
                return;
        size_t first = only_new ? x->n_log_files_requested : 0;
        o->collect.log_files = x->log_files + first;
        o->collect.n_log_files = x->n_log_files - first;
        x->n_log_files_requested = x->n_log_files;
}

int incident_request_start(Incident *x, ProbeMode mode, const char *const *only,
                           IncidentOnEnd on_end) {
        const Config *c = x->owner->config;
        Lists l;
        _cleanup_free_ CollectCommand *commands =
                calloc(c->snapshot.n_commands + 1, sizeof *commands);
        if (!commands)
                return -ENOMEM;
        ProbeRequest o = { .mode = mode,
                           .collectors = (char **)only,
                           .document = only ? x->document : NULL,
                           .name = x->name,
                           .trigger = x->trigger,
                           .instance_id = (char *)x->owner->context.instance_id,
                           .collect = supervisor_client_collect_request(c) };
        fill_processes(x, &o, &l, only != NULL);
        fill_dumps(x, &o, &l, only != NULL);
        fill_log_files(x, &o, only != NULL);
        fill_commands(c, &o, commands);
        return supervisor_client_new(&x->supervisor,
                                     &(SupervisorClientOptions){ .event = x->owner->context.event,
                                                                 .request = &o,
                                                                 .socket = x->owner->socket,
                                                                 .dir_fd = x->dir_fd,
                                                                 .timeout_usec = time_for_all(c),
                                                                 .on_message = on_message,
                                                                 .on_end = on_end,
                                                                 .userdata = x });
}
