/* Who belongs together: notes, lines of the kernel log and questions become incidents, by the rules of incident_rules.h. */
#include "agent/incidents/incidents.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "agent/incidents/incidents_private.h"
#include "agent/store/notes_store.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

#define GATHER_USEC (50 * USEC_PER_MSEC) /* hooks of one failure come at once: one order for all */
#define FOUND_USEC (2 * USEC_PER_SEC)    /* the source has seen by then what was moved outside */

/* ---- one ---- */

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

void incident_texts_done(IncidentTexts *texts) {
        for (size_t k = 0; k < texts->n; k++)
                free(texts->items[k]);
        free(texts->items);
}

Incident *incident_free(Incident *x) {
        if (!x)
                return NULL;
        if (x->owner->young == x)
                x->owner->young = NULL;
        list_remove(&x->link);
        x->owner->n_incidents--;
        probe_free(x->probe);
        incident_attach_done(x);
        if (x->writing && sd_event_source_get_enabled(x->writing, NULL) > 0)
                incident_write(x); /* the agent ends */
        sd_event_source_disable_unref(x->writing);
        sd_event_source_disable_unref(x->timer);
        incident_forget_exits(x);
        for (size_t k = 0; k < x->n_processes; k++)
                free(x->processes[k]);
        free(x->processes);
        incident_units_done(x);
        incident_texts_done(&x->notes);
        for (size_t k = 0; k < x->n_log_files; k++)
                free(x->log_files[k].path);
        free(x->log_files);
        incident_texts_done(&x->events);
        incident_texts_done(&x->jobs);
        cleanup_closep(&x->dir_fd);
        cleanup_closep(&x->public_fd);
        free(x->directory);
        free(x->trigger);
        free(x->document);
        free(x->written);
        free(x);
        return NULL;
}

static bool has_text(const IncidentTexts *texts, const char *text) {
        for (size_t k = 0; k < texts->n; k++)
                if (strcmp(texts->items[k], text) == 0)
                        return true;
        return false;
}

int incident_add_text(IncidentTexts *texts, size_t max, const char *text) {
        if (has_text(texts, text) || texts->n >= max)
                return 1;
        char **more = reallocarray(texts->items, texts->n + 1, sizeof *more);
        if (!more)
                return -ENOMEM;
        texts->items = more;
        more[texts->n] = strdup(text);
        if (!more[texts->n])
                return -ENOMEM;
        texts->n++;
        return 0;
}

static bool is_same(const IncidentProcess *a, const IncidentProcess *b) {
        if (a->pid > 0 && b->pid > 0)
                return a->pid == b->pid && a->start_ticks == b->start_ticks;
        return a->question.hook_pid == b->question.hook_pid &&
               a->question.inner_pid == b->question.inner_pid;
}

int incident_add_process(Incident *x, const IncidentProcess *p) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (is_same(x->processes[k], p))
                        return 1;
        if (x->n_processes >= COLLECT_PROCESSES_MAX)
                return 1;
        IncidentProcess **more = realloc(x->processes, (x->n_processes + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        x->processes = more;
        more[x->n_processes] = malloc(sizeof **more);
        if (!more[x->n_processes])
                return -ENOMEM;
        *more[x->n_processes] = *p;
        more[x->n_processes++]->pid_fd = -1;
        return 0;
}

/* ---- which one ---- */

static void drop(Incidents *i, const char *trigger, const char *why) {
        i->n_dropped++;
        log_warning(0, "no snapshot is taken for %s: %s", trigger, why);
}

/* The clock may have gone back, and several begin within a second: a name that is taken is somebody else's evidence. */
static Incident *make_one(Incidents *i, const char *trigger, int *ret_r) {
        Clock *clock = i->context.clock;
        char stamp[CLOCK_ISO_SIZE], name[INCIDENT_NAME_SIZE];
        *ret_r = -EEXIST;
        for (unsigned tries = 0; *ret_r == -EEXIST && tries < 4 * INCIDENT_DIRECTORIES_MAX;
             tries++) {
                (void)snprintf(name, sizeof name, "%s-%u",
                               clock_format_compact(stamp, clock->realtime_usec(clock), 'T'),
                               ++i->last_number);
                Incident *x = incident_new(i, name);
                *ret_r = -ENOMEM;
                if (!x)
                        return NULL;
                x->begun_usec = clock->realtime_usec(clock);
                x->begun_boot_usec = clock->boottime_usec(clock);
                x->trigger = strdup(trigger);
                *ret_r = x->trigger ? incident_make_directory(x) : -ENOMEM;
                if (*ret_r == 0)
                        return x;
                incident_remove(x);
        }
        return NULL;
}

static Incident *begin(Incidents *i, IncidentCause cause, const char *trigger,
                       const char **ret_why) {
        Clock *clock = i->context.clock;
        *ret_why = "there is no room for one more: what was collected before is not delivered yet";
        if (!incidents_make_room(i))
                return NULL;
        *ret_why = "its directory could not be made";
        int r = 0;
        Incident *x = make_one(i, trigger, &r);
        if (x) {
                x->cause = cause;
                incident_changed(x); /* it was asked for, or will have more to say */
                r = incident_start(x, cause == INCIDENT_ASKED ? 0 : GATHER_USEC);
        }
        if (r < 0) {
                log_error(r, "cannot begin a snapshot in '%s'", i->snapshots);
                if (x)
                        incident_remove(x);
                return NULL;
        }
        i->young = x;
        i->n_taken++;
        incident_rules_begun(&i->rules, cause, clock->boottime_usec(clock));
        log_notice("incident %s: %s; taking a snapshot", x->name, trigger);
        return x;
}

static bool is_taking(const Incident *x) {
        return x && (x->state == INCIDENT_GATHERING || x->state == INCIDENT_TAKING);
}

Incident *incidents_take_up(Incidents *i, IncidentCause cause, const char *trigger,
                            const char **ret_why) {
        Clock *clock = i->context.clock;
        IncidentVerdict v =
                incident_judge(&i->rules, cause, is_taking(i->young), clock->boottime_usec(clock));
        if (v == INCIDENT_JOIN && i->young) {
                i->n_joined++;
                incident_changed(i->young);
                return i->young;
        }
        *ret_why = incident_verdict_why(v);
        Incident *x = *ret_why ? NULL : begin(i, cause, trigger, ret_why);
        if (!x)
                drop(i, trigger, *ret_why);
        return x;
}

/* ---- notes ---- */

static bool is_same_log(const CollectLogFile *a, const CollectLogFile *b) {
        return a->uid == b->uid && a->pid == b->pid && a->start_ticks == b->start_ticks &&
               a->hook_pid == b->hook_pid && a->inner_pid == b->inner_pid &&
               strcmp(a->path, b->path) == 0;
}

/* @return 0, 1: it was there already, or there are too many; -ENOMEM */
static int add_log(Incident *x, const CollectLogFile *f) {
        for (size_t k = 0; k < x->n_log_files; k++)
                if (is_same_log(&x->log_files[k], f))
                        return 1;
        if (x->n_log_files >= COLLECT_FILES_MAX)
                return 1;
        CollectLogFile *more = realloc(x->log_files, (x->n_log_files + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        x->log_files = more;
        more[x->n_log_files] = *f;
        more[x->n_log_files].path = strdup(f->path);
        if (!more[x->n_log_files].path)
                return -ENOMEM;
        x->n_log_files++;
        return 0;
}

/* The runtime's log, where it is a file. Colons separate nothing here: the value is one place. @see reference, 1.2 */
static void add_log_file(Incident *x, const NoteView *v, const IncidentProcess *p) {
        const HookNote *n = v->note;
        const char *path =
                n->environment ? environment_get(n->environment, "NEURON_RT_LOG_LOCATION") : NULL;
        if (path && strncasecmp(path, "file:", 5) == 0)
                path += 5;
        if (!path || path[0] != '/')
                return;
        CollectLogFile f = { .path = (char *)path, /* copied */
                             .uid = v->uid,
                             .pid = p->pid,
                             .start_ticks = p->start_ticks };
        if (p->pid == 0 && p->question.hook_pid > 0) {
                f.hook_pid = p->question.hook_pid;
                f.inner_pid = p->question.inner_pid;
        }
        (void)add_log(x, &f); /* one log less */
}

void incident_add_job(Incident *x, pid_t pid, uint64_t start_ticks) {
        StoredJob job = { 0 };
        if (pid > 0 && store_job_find(x->owner->context.store, pid, start_ticks, &job) == 0)
                (void)incident_add_text(&x->jobs, COLLECT_PROCESSES_MAX,
                                        job.document); /* it names a rank; no more than that */
        stored_job_done(&job);
}

static int parse_pid(const char *s) {
        uint64_t v = 0;
        for (; s && *s >= '0' && *s <= '9' && v < 1 << 22; s++)
                v = 10 * v + (uint64_t)(*s - '0');
        return s && !*s && v < 1 << 22 ? (int)v : 0;
}

/* @return as it is known by now; pid 0 and no question: nobody can tell */
static IncidentProcess process_of(const NoteView *v) {
        IncidentProcess p = { .pid = MAX(v->pid, 0), .start_ticks = v->start_ticks };
        int inner = p.pid > 0 ? 0 : parse_pid(v->note->pid);
        (void)snprintf(p.note, sizeof p.note, "%s", v->note->id);
        (void)snprintf(p.container, sizeof p.container, "%s", v->container ? v->container : "");
        if (v->hook_pid > 0 && inner > 0)
                p.question = (ProbeQuestion){ .hook_pid = v->hook_pid,
                                              .inner_pid = inner,
                                              .ns_inode = v->note->pid_namespace };
        return p;
}

void incidents_on_note(Incidents *i, const NoteView *v) {
        const IncidentsContext *c = &i->context;
        const char *why = "snapshots are off";
        char trigger[160];
        (void)snprintf(trigger, sizeof trigger, "a note of the hook (%s) of uid %u", v->note->id,
                       (unsigned)v->uid);
        IncidentCause cause = v->source && v->unit_path ? INCIDENT_NOTE : INCIDENT_STRANGER;
        Incident *x =
                i->config->snapshot.enabled ? incidents_take_up(i, cause, trigger, &why) : NULL;
        if (!x) {
                c->on_public(v->note->id, -1, why, c->userdata);
                return;
        }
        if (v->may_come)
                incident_await_unit(x);
        IncidentProcess p = process_of(v);
        add_log_file(x, v, &p);
        incident_add_job(x, p.pid, p.start_ticks);
        bool is_new_unit =
                v->source && v->unit_path &&
                incident_add_unit(x, &(IncidentUnit){ .source = (char *)v->source, /* copied */
                                                      .path = (char *)v->unit_path,
                                                      .uid = v->uid }) == 0;
        int r = incident_add_text(&x->notes, INCIDENT_NOTES_MAX, v->note->id);
        if (r != 0)
                c->on_public(v->note->id, -1, "too many notes came at once", c->userdata);
        if ((p.pid > 0 || p.question.hook_pid > 0) && incident_add_process(x, &p) < 0)
                log_warning(-ENOMEM, "incident %s: a process is left out of it", x->name);
        if (is_new_unit) {
                c->on_pending(v->source, v->unit_path, true, c->userdata);
                if (x->has_snapshot)
                        incident_attach_all(x);
        }
        incident_on_joined(x);
}

/* ---- asked ---- */

int incidents_ask(Incidents *i, char ret_name[INCIDENT_NAME_SIZE], const char **ret_why) {
        if (!i->config->snapshot.enabled)
                return -EPERM;
        if (is_taking(i->young))
                return -EBUSY;
        const Incident *x = incidents_take_up(i, INCIDENT_ASKED, "an operator's question", ret_why);
        if (!x)
                return -EAGAIN;
        memcpy(ret_name, x->name, INCIDENT_NAME_SIZE);
        return 0;
}

bool incidents_get(const Incidents *i, const char *name, IncidentView *ret) {
        LIST_FOREACH (l, &i->incidents) {
                const Incident *x = CONTAINER_OF(l, Incident, link);
                if (strcmp(x->name, name) != 0)
                        continue;
                *ret = (IncidentView){ .name = x->name,
                                       .done = x->state >= INCIDENT_WAITING,
                                       .directory = x->directory };
                return true;
        }
        return false;
}

void incidents_figures(const Incidents *i, IncidentsFigures *ret) {
        *ret = (IncidentsFigures){ .n_taken = i->n_taken,
                                   .n_joined = i->n_joined,
                                   .n_dropped = i->n_dropped,
                                   .n_kept = i->n_incidents };
}

/* With a dump there is no more to wait for once it rests; without, it is still to be shipped. */
static bool is_underway(const Incident *x, uint64_t now_usec) {
        switch (x->state) {
        case INCIDENT_GATHERING:
        case INCIDENT_TAKING:
        case INCIDENT_WAITING:
        case INCIDENT_LOOKING:
                return true;
        case INCIDENT_RESTING:
                return x->attaching.job || (x->n_units == 0 && x->cause != INCIDENT_ASKED);
        case INCIDENT_ENDED:
                return x->attaching.job || (x->is_outside && x->ended_boot_usec > 0 &&
                                            now_usec - x->ended_boot_usec < FOUND_USEC);
        case N_INCIDENT_STATES:
                break;
        }
        return false;
}

size_t incidents_n_underway(const Incidents *i) {
        uint64_t now = i->context.clock->boottime_usec(i->context.clock);
        size_t n = 0;
        LIST_FOREACH (l, &i->incidents)
                n += is_underway(CONTAINER_OF(l, Incident, link), now);
        return n;
}

void incidents_on_delivered(Incidents *i, const char *unit_path) {
        LIST_FOREACH_SAFE (l, &i->incidents) {
                Incident *x = CONTAINER_OF(l, Incident, link);
                if (x->is_outside && strcmp(x->directory, unit_path) == 0)
                        incident_remove(x);
        }
}

/* ---- life ---- */

static char *socket_beside(const char *api_socket) {
        _cleanup_free_ char *parent = path_parent(api_socket);
        return parent ? path_join(parent, "probe.sock") : NULL;
}

int incidents_new(Incidents **ret, const IncidentsContext *context, const Config *config) {
        Incidents *i = calloc(1, sizeof *i);
        if (!i)
                return -ENOMEM;
        *i = (Incidents){ .context = *context, .config = config };
        list_init(&i->incidents);
        i->snapshots = path_join(config->state_directory, "snapshots");
        i->outbox = path_join(config->state_directory, "incidents");
        i->socket = socket_beside(config->api.socket);
        int r = i->snapshots && i->outbox && i->socket ? 0 : -ENOMEM;
        if (r == 0)
                r = fs_mkdir_p(i->snapshots, 0700);
        if (r == 0)
                r = fs_mkdir_p(i->outbox, 0700);
        if (r == 0)
                r = incidents_sweep(i);
        if (r < 0) {
                incidents_free(i);
                return r;
        }
        incidents_watch(i);
        *ret = i;
        return 0;
}

Incidents *incidents_free(Incidents *i) {
        if (!i)
                return NULL;
        incidents_watch_done(i);
        LIST_FOREACH_SAFE (l, &i->incidents)
                incident_free(CONTAINER_OF(l, Incident, link));
        sd_event_source_disable_unref(i->sweep_timer);
        free(i->snapshots);
        free(i->outbox);
        free(i->socket);
        free(i);
        return NULL;
}

void incidents_rebind(Incidents *i, const Config *config) {
        i->config = config;
        incidents_watch_done(i); /* with the roots and limits of the new one */
        incidents_watch(i);
        LIST_FOREACH (l, &i->incidents) { /* sources may have been made anew */
                const Incident *x = CONTAINER_OF(l, Incident, link);
                if (x->state < INCIDENT_RESTING || x->attaching.job)
                        incident_tell_pending(x, true);
        }
}

/* ---- a unit that was found later ---- */

void incidents_add_unit_of_note(Incidents *i, const IncidentUnitOfNote *u) {
        const IncidentsContext *c = &i->context;
        LIST_FOREACH (l, &i->incidents) {
                Incident *x = CONTAINER_OF(l, Incident, link);
                if (x->is_outside ||
                    !has_text(&x->notes, u->note)) /* outside: it is shipped for itself */
                        continue;
                if (incident_add_unit(x, &(IncidentUnit){ .source = (char *)u->source, /* copied */
                                                          .path = (char *)u->unit_path,
                                                          .uid = u->uid,
                                                          .is_taken = true }) != 0)
                        continue;
                bool is_through = x->state >= INCIDENT_RESTING;
                c->on_pending(u->source, u->unit_path, true, c->userdata);
                if (is_through)
                        incident_write(x); /* is attached as it is now */
                else
                        incident_changed(x);
                if (is_through || x->has_snapshot)
                        incident_attach_all(x); /* then, when it is through, nothing is pending */
        }
}
