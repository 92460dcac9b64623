/* What one incident consists of: its notes, units (dumps), processes, logs and records, each list
 * with its bounds, and its state. An owner gets a part of each list only, so that one user's notes
 * do not keep another's process or dump out of a snapshot.
 *
 * This file knows neither files nor supervisors. incident_directory.c writes an incident down and
 * makes a bundle of it, incident_request.c has it collected, and incident_machine.c decides what
 * happens when. */
#include "agent/incidents/incident.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/store.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/transition.h"

#define TO(state) (1U << (state))

void incident_set_state(Incident *x, IncidentState to) {
        static const char *const names[N_INCIDENT_STATES] = {
                [INCIDENT_GATHERING] = "gathering", [INCIDENT_SNAPSHOT] = "snapshot",
                [INCIDENT_WAITING] = "waiting",     [INCIDENT_RECHECKING] = "rechecking",
                [INCIDENT_RESTING] = "resting",     [INCIDENT_ENDED] = "ended",
        };
        static const unsigned moves[N_INCIDENT_STATES] = {
                /* an incident of an earlier agent goes to the state that its directory shows */
                [INCIDENT_GATHERING] = TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_WAITING) |
                                       TO(INCIDENT_RESTING) | TO(INCIDENT_ENDED),
                [INCIDENT_SNAPSHOT] =
                        TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_WAITING) | TO(INCIDENT_RESTING),
                [INCIDENT_WAITING] = TO(INCIDENT_RECHECKING) | TO(INCIDENT_SNAPSHOT),
                [INCIDENT_RECHECKING] = TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_RESTING),
                [INCIDENT_RESTING] = TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_ENDED),
        };
        static const StateTable table = { "incident", names, moves, N_INCIDENT_STATES };
        if (transition_check(&table, x->state, to, NULL) < 0)
                return;
        log_debug("incident %s: %s", x->name, names[to]);
        x->state = to;
}

void incident_set_content(Incident *x, IncidentContent to) {
        static const char *const names[N_INCIDENT_CONTENTS] = { "nothing", "salvaging", "whole",
                                                                "salvaged" };
        static const unsigned moves[N_INCIDENT_CONTENTS] = {
                [INCIDENT_NOTHING] = TO(INCIDENT_SALVAGING) | TO(INCIDENT_WHOLE),
                [INCIDENT_SALVAGING] = TO(INCIDENT_SALVAGED),
        };
        static const StateTable table = { "content of an incident", names, moves,
                                          N_INCIDENT_CONTENTS };
        if (transition_check(&table, x->content, to, NULL) == 0)
                x->content = to;
}

void incident_set_place(Incident *x, IncidentPlace to) {
        static const char *const names[N_INCIDENT_PLACES] = { "nowhere", "in snapshots", "stuck",
                                                              "published" };
        static const unsigned moves[N_INCIDENT_PLACES] = {
                [INCIDENT_NOWHERE] = TO(INCIDENT_IN_SNAPSHOTS),
                [INCIDENT_IN_SNAPSHOTS] = TO(INCIDENT_STUCK) | TO(INCIDENT_PUBLISHED),
                [INCIDENT_STUCK] = TO(INCIDENT_STUCK) | TO(INCIDENT_PUBLISHED),
        };
        static const StateTable table = { "place of an incident", names, moves, N_INCIDENT_PLACES };
        if (transition_check(&table, x->place, to, NULL) == 0)
                x->place = to;
}

#undef TO

/* ---- texts ---- */

void incident_texts_done(IncidentTexts *texts) {
        for (size_t k = 0; k < texts->n; k++)
                free(texts->items[k]);
        free(texts->items);
}

bool incident_texts_have(const IncidentTexts *texts, const char *text) {
        for (size_t k = 0; k < texts->n; k++)
                if (strcmp(texts->items[k], text) == 0)
                        return true;
        return false;
}

int incident_texts_add(IncidentTexts *texts, size_t max, const char *text) {
        size_t n = strlen(text);
        if (incident_texts_have(texts, text) || texts->n >= max)
                return 1;
        if (texts->bytes + n > INCIDENT_TEXTS_BYTES_MAX) {
                texts->n_left_out++;
                return 1;
        }
        if (array_grow(&texts->items, texts->n, sizeof *texts->items) < 0 ||
            !(texts->items[texts->n] = strdup(text)))
                return -ENOMEM;
        texts->n++;
        texts->bytes += n;
        return 0;
}

/* ---- processes, their jobs and logs ---- */

static bool is_same(const IncidentProcess *a, const IncidentProcess *b) {
        if (a->pid > 0 && b->pid > 0)
                return a->pid == b->pid && a->start_ticks == b->start_ticks;
        return a->question.hook_pid == b->question.hook_pid &&
               a->question.inner_pid == b->question.inner_pid;
}

int incident_add_process(Incident *x, const IncidentProcess *p) {
        size_t n = 0;
        for (size_t k = 0; k < x->n_processes; k++) {
                if (is_same(x->processes[k], p))
                        return 1;
                n += owner_is_same(&x->processes[k]->owner, &p->owner);
        }
        if (x->n_processes >= COLLECT_PROCESSES_MAX || n >= COLLECT_PROCESSES_MAX / 2)
                return 1;
        IncidentProcess *own = malloc(sizeof *own);
        if (!own || array_grow(&x->processes, x->n_processes, sizeof *x->processes) < 0) {
                free(own);
                return -ENOMEM;
        }
        *own = *p;
        own->incident = x;
        x->processes[x->n_processes++] = own;
        return 0;
}

void incident_unwatch_exits(Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                x->processes[k]->watch = rank_watch_free(x->processes[k]->watch);
}

static void processes_done(Incident *x) {
        incident_unwatch_exits(x);
        for (size_t k = 0; k < x->n_processes; k++)
                free(x->processes[k]);
        free(x->processes);
}

static bool is_same_log(const CollectLogFile *a, const CollectLogFile *b) {
        return owner_is_same(&a->owner, &b->owner) && a->pid == b->pid &&
               a->start_ticks == b->start_ticks && a->hook_pid == b->hook_pid &&
               a->inner_pid == b->inner_pid && strcmp(a->path, b->path) == 0;
}

int incident_add_log_file(Incident *x, const CollectLogFile *f) {
        size_t n = 0;
        for (size_t k = 0; k < x->n_log_files; k++) {
                if (is_same_log(&x->log_files[k], f))
                        return 1;
                n += owner_is_same(&x->log_files[k].owner, &f->owner);
        }
        if (x->n_log_files >= COLLECT_FILES_MAX || n >= COLLECT_FILES_MAX / 2)
                return 1;
        char *path = strdup(f->path);
        if (!path || array_grow(&x->log_files, x->n_log_files, sizeof *x->log_files) < 0) {
                free(path);
                return -ENOMEM;
        }
        x->log_files[x->n_log_files] = *f;
        x->log_files[x->n_log_files++].path = path;
        return 0;
}

static void log_files_done(Incident *x) {
        for (size_t k = 0; k < x->n_log_files; k++)
                free(x->log_files[k].path);
        free(x->log_files);
}

void incident_add_job(Incident *x, pid_t pid, uint64_t start_ticks) {
        StoredJob job = { 0 };
        if (pid > 0 && store_job_find(x->owner->context.store, pid, start_ticks, &job) == 0)
                (void)incident_texts_add(&x->jobs, COLLECT_PROCESSES_MAX,
                                         job.document); /* without it, the rank is not named */
        stored_job_done(&job);
}

/* ---- units ---- */

IncidentUnit *incident_find_unit(Incident *x, const char *source, const char *path) {
        for (size_t k = 0; k < x->n_units; k++)
                if (strcmp(x->units[k].source, source) == 0 && strcmp(x->units[k].path, path) == 0)
                        return &x->units[k];
        return NULL;
}

/* An owner can neither have the same files written any number of times nor take all places. */
static int check_space(Incident *x, const IncidentUnit *u) {
        char text[OWNER_TEXT_SIZE];
        size_t n = 0;
        for (size_t k = 0; k < x->n_units; k++)
                n += owner_is_same(&x->units[k].owner, &u->owner);
        if (x->n_units < INCIDENT_UNITS_MAX &&
            (owner_is_same(&u->owner, &incident_host) || n < INCIDENT_UNITS_MAX_OF_OWNER))
                return 0;
        if (x->n_left_out++ == 0)
                log_warning(0,
                            "incident %s: '%s' of %s and further ones get no snapshot: %u "
                            "dumps an incident and %u an owner are the limit",
                            x->name, u->path, owner_text(&u->owner, text),
                            (unsigned)INCIDENT_UNITS_MAX, (unsigned)INCIDENT_UNITS_MAX_OF_OWNER);
        return -EDQUOT;
}

int incident_add_unit(Incident *x, const IncidentUnit *u) {
        if (incident_find_unit(x, u->source, u->path))
                return 1;
        int r = check_space(x, u);
        if (r < 0)
                return r;
        IncidentUnit own = { .source = strdup(u->source),
                             .path = strdup(u->path),
                             .owner = u->owner,
                             .is_requested = u->is_requested };
        memcpy(own.bundle, u->bundle, sizeof own.bundle);
        if (!own.source || !own.path || array_grow(&x->units, x->n_units, sizeof *x->units) < 0) {
                free(own.source);
                free(own.path);
                return -ENOMEM;
        }
        x->units[x->n_units++] = own;
        return 0;
}

static void units_done(Incident *x) {
        for (size_t k = 0; k < x->n_units; k++) {
                free(x->units[k].source);
                free(x->units[k].path);
        }
        free(x->units);
}

/* ---- notes ---- */

void incident_report_public(Incident *x) {
        const IncidentsContext *c = &x->owner->context;
        if (x->public_fd < 0 && !x->is_public_reported)
                return;
        while (x->n_notes_reported < x->notes.n)
                c->on_public(x->notes.items[x->n_notes_reported++], x->public_fd,
                             x->public_fd >= 0 ? NULL : "it failed", c->userdata);
}

/* ---- life ---- */

Incident *incident_new(Incidents *i, const char *name) {
        Incident *x = calloc(1, sizeof *x);
        if (!x)
                return NULL;
        x->owner = i;
        x->dir_fd = x->public_fd = -1;
        (void)snprintf(x->name, sizeof x->name, "%s", name);
        list_append(&i->incidents, &x->link);
        i->n_incidents++;
        return x;
}

Incident *incident_free(Incident *x) {
        if (!x)
                return NULL;
        if (x->owner->young == x)
                x->owner->young = NULL;
        list_remove(&x->link);
        x->owner->n_incidents--;
        supervisor_client_free(x->supervisor);
        sd_event_source_disable_unref(x->writing);
        sd_event_source_disable_unref(x->timer);
        processes_done(x);
        units_done(x);
        log_files_done(x);
        incident_texts_done(&x->notes);
        incident_texts_done(&x->events);
        incident_texts_done(&x->jobs);
        incident_texts_done(&x->related);
        cleanup_closep(&x->dir_fd);
        cleanup_closep(&x->public_fd);
        free(x->directory);
        free(x->trigger);
        free(x->document);
        free(x->written);
        free(x);
        return NULL;
}
