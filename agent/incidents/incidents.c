/* Incidents: events come in here, and each starts an incident or joins the young one.
 *
 * An event is a note of a hook, an error of the hardware in the kernel log, a failure of a rank on
 * another node, a process that the OOM killer has killed, or an operator's request.
 * incident_rules.c decides what it becomes, incident_list.c finds space and a directory for a new
 * incident, and incident_machine.c runs it from there; this file adds to it what the event brings.
 * It also answers what others ask about incidents: the API, and whether the node may terminate. */
#include "agent/incidents/incidents.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "agent/incidents/incident.h"
#include "agent/incidents/incident_directory.h"
#include "agent/incidents/incident_list.h"
#include "agent/incidents/incident_machine.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define GATHER_USEC (50 * USEC_PER_MSEC) /* hooks of one failure run together */
#define TRIGGER_MAX 300
#define PID_MAX ((1 << 22) - 1) /* the kernel's PID_MAX_LIMIT, which is not reached */

/* ---- an event starts an incident, or joins it ---- */

static void drop(Incidents *i, const char *trigger, const char *why) {
        i->n_dropped++;
        log_warning(0, "no snapshot of %s: %s", trigger, why);
}

static Incident *start_incident(Incidents *i, const Owner *o, IncidentCause cause,
                                const char *trigger, const char **ret_why) {
        *ret_why = "no space for one more: what was collected before is not delivered yet";
        if (!incident_list_free_space(i))
                return NULL;
        *ret_why = "its directory could not be made";
        int r = 0;
        Incident *x = incident_list_add_new(i, trigger, &r);
        if (x) {
                x->cause = cause;
                x->by = *o;
                incident_directory_write_soon(x);
                r = incident_machine_arm(x, cause == INCIDENT_REQUESTED ? 0 : GATHER_USEC);
        }
        if (r < 0) {
                log_error(r, "cannot begin a snapshot in '%s'", i->snapshots);
                if (x)
                        incident_list_remove(x);
                return NULL;
        }
        i->young = x;
        i->n_started++;
        incident_rules_add_start(&i->rules, o, cause, incident_boot_usec(i));
        log_notice("incident %s: %s; taking a snapshot", x->name, trigger);
        return x;
}

static bool has_snapshot_underway(const Incident *x) {
        return x && (x->state == INCIDENT_GATHERING || x->state == INCIDENT_SNAPSHOT);
}

static Incident *incidents_start_or_join(Incidents *i, const Owner *o, IncidentCause cause,
                                         const char *trigger, const char **ret_why) {
        IncidentVerdict v = incident_rules_decide(
                &i->rules, o, cause, has_snapshot_underway(i->young), incident_boot_usec(i));
        if (v == INCIDENT_JOIN && i->young) {
                i->n_joined++;
                if (i->young->cause == INCIDENT_REQUESTED && cause != INCIDENT_REQUESTED)
                        i->young->cause = cause; /* now it is evidence, too */
                incident_directory_write_soon(i->young);
                return i->young;
        }
        *ret_why = incident_rules_verdict_text(v);
        Incident *x = *ret_why ? NULL : start_incident(i, o, cause, trigger, ret_why);
        if (!x)
                drop(i, trigger, *ret_why);
        return x;
}

/* ---- notes ---- */

/* Adds the log of the runtime, if it is a file. The value is one place, and a colon separates
 * nothing. @see reference, 1.2 */
static void add_log_file_of_note(Incident *x, const NoteView *v, const IncidentProcess *p) {
        const HookNote *n = v->note;
        const char *path =
                n->environment ? environment_get(n->environment, "NEURON_RT_LOG_LOCATION") : NULL;
        if (path && strncasecmp(path, "file:", 5) == 0)
                path += 5;
        if (!path || path[0] != '/')
                return;
        CollectLogFile f = { .path = (char *)path, /* copied */
                             .owner = v->owner,
                             .pid = p->pid,
                             .start_ticks = p->start_ticks };
        if (p->pid == 0 && p->question.hook_pid > 0) {
                f.hook_pid = p->question.hook_pid;
                f.inner_pid = p->question.inner_pid;
        }
        (void)incident_add_log_file(x, &f); /* else this log is left out */
}

/* @return the process that a note is about; pid 0 and no question: not known */
static IncidentProcess process_of(const NoteView *v) {
        IncidentProcess p = { .owner = v->owner,
                              .pid = MAX(v->pid, 0),
                              .start_ticks = v->start_ticks };
        uint64_t inner = 0;
        (void)snprintf(p.note, sizeof p.note, "%s", v->note->id);
        (void)snprintf(p.container, sizeof p.container, "%s", v->container ? v->container : "");
        if (v->hook_pid > 0 && p.pid <= 0 && v->note->pid &&
            parse_u64_range(v->note->pid, 1, PID_MAX, &inner) == 0)
                p.question = (ProbePidQuery){ .hook_pid = v->hook_pid,
                                              .inner_pid = (int)inner,
                                              .ns_inode = v->note->pid_namespace };
        return p;
}

/* @param is_requested  its logs need not be read */
static void add_unit(Incident *x, const NoteView *v, bool is_requested) {
        IncidentUnit u = { .source = (char *)v->source, /* copied */
                           .path = (char *)v->unit_path,
                           .owner = v->owner,
                           .is_requested = is_requested };
        const Bundle *b =
                bundle_table_find_unit(x->owner->context.bundles, v->source, v->unit_path);
        if (b)
                memcpy(u.bundle, b->rec.id, sizeof u.bundle);
        if (incident_add_unit(x, &u) == 0) /* else it is there, or left out */
                incident_directory_write_soon(x);
}

void incidents_on_note(Incidents *i, const NoteView *v) {
        const IncidentsContext *c = &i->context;
        const char *why = "snapshots are off";
        char trigger[160];
        (void)snprintf(trigger, sizeof trigger, "a note of the hook (%s) of uid %u", v->note->id,
                       (unsigned)v->owner.uid);
        IncidentCause cause = v->source && v->unit_path ? INCIDENT_NOTE : INCIDENT_STRANGER;
        Incident *x = i->config->snapshot.enabled
                              ? incidents_start_or_join(i, &v->owner, cause, trigger, &why)
                              : NULL;
        if (!x) {
                c->on_public(v->note->id, -1, why, c->userdata);
                return;
        }
        if (v->may_come)
                incident_machine_await_unit(x);
        IncidentProcess p = process_of(v);
        add_log_file_of_note(x, v, &p);
        incident_add_job(x, p.pid, p.start_ticks);
        if (v->source && v->unit_path)
                add_unit(x, v, false);
        int r = incident_texts_add(&x->notes, INCIDENT_NOTES_MAX, v->note->id);
        if (r != 0)
                c->on_public(v->note->id, -1, "too many notes came at once", c->userdata);
        if ((p.pid > 0 || p.question.hook_pid > 0) && incident_add_process(x, &p) < 0)
                log_warning(-ENOMEM, "incident %s: a process is left out of it", x->name);
        incident_machine_on_joined(x);
}

void incidents_add_unit_of_note(Incidents *i, const NoteView *v) {
        LIST_FOREACH_ITEM (Incident, x, link, &i->incidents)
                if (x->place != INCIDENT_PUBLISHED && incident_texts_have(&x->notes, v->note->id))
                        add_unit(x, v, true);
}

void incidents_on_found(Incidents *i, const BundleRecord *rec) {
        if (rec->kind == SOURCE_OOM && i->young && i->young->state != INCIDENT_ENDED) {
                (void)incident_texts_add(&i->young->related, INCIDENT_RELATED_MAX,
                                         rec->id); /* else it is not named */
                incident_directory_write_soon(i->young);
        }
        LIST_FOREACH_ITEM (Incident, x, link, &i->incidents) {
                IncidentUnit *u = incident_find_unit(x, rec->source, rec->path);
                if (!u || u->bundle[0] || x->state == INCIDENT_ENDED)
                        continue;
                memcpy(u->bundle, rec->id, sizeof u->bundle);
                incident_directory_write_soon(x);
        }
}

/* ---- other events ---- */

int incidents_request(Incidents *i, char ret_name[INCIDENT_NAME_SIZE], const char **ret_why) {
        if (!i->config->snapshot.enabled)
                return -EPERM;
        if (has_snapshot_underway(i->young))
                return -EBUSY;
        const Incident *x = incidents_start_or_join(i, &incident_host, INCIDENT_REQUESTED,
                                                    "an operator's question", ret_why);
        if (!x)
                return -EAGAIN;
        memcpy(ret_name, x->name, INCIDENT_NAME_SIZE);
        return 0;
}

int incidents_on_peer_failure(Incidents *i, const char *what) {
        const char *why = NULL;
        char trigger[TRIGGER_MAX];
        if (!i->config->snapshot.enabled)
                return -EPERM;
        (void)snprintf(trigger, sizeof trigger, "peer: %s", what);
        return incidents_start_or_join(i, &incident_host, INCIDENT_PEER, trigger, &why) ? 0
                                                                                        : -EAGAIN;
}

void incidents_on_oom_kill(Incidents *i, uid_t uid, const char *line) {
        const char *why = NULL;
        char trigger[TRIGGER_MAX];
        (void)snprintf(trigger, sizeof trigger, "the kernel log: %s", line);
        if (i->config->snapshot.enabled)
                (void)incidents_start_or_join(i, &(Owner){ .uid = uid }, INCIDENT_KERNEL, trigger,
                                              &why); /* it logs why not */
}

void incidents_on_hw_error(Incidents *i, const char *line, const char *record) {
        const char *why = NULL;
        char trigger[TRIGGER_MAX];
        (void)snprintf(trigger, sizeof trigger, "the kernel log: %s", line);
        Incident *x = incidents_start_or_join(i, &incident_host, INCIDENT_KERNEL, trigger, &why);
        if (x) /* else only the snapshot has the line */
                (void)incident_texts_add(&x->events, INCIDENT_EVENTS_MAX, record);
}

/* ---- what others ask ---- */

bool incidents_get(const Incidents *i, const char *name, IncidentView *ret) {
        LIST_FOREACH_ITEM (const Incident, x, link, &i->incidents) {
                if (strcmp(x->name, name) != 0 || x->place == INCIDENT_PUBLISHED)
                        continue;
                *ret = (IncidentView){ .name = x->name,
                                       .done = x->state >= INCIDENT_WAITING,
                                       .directory = x->directory };
                return true;
        }
        return false;
}

void incidents_fill_view(const Incidents *i, HookView *ret) {
        ret->n_snapshots = i->n_started;
        ret->n_snapshots_dropped = i->n_dropped;
        ret->n_snapshots_underway = incidents_n_underway(i);
}

/* What an operator has requested is not delivered. */
static bool is_underway(const Incident *x) {
        switch (x->state) {
        case INCIDENT_GATHERING:
        case INCIDENT_SNAPSHOT:
        case INCIDENT_WAITING:
        case INCIDENT_RECHECKING:
                return true;
        case INCIDENT_RESTING:
                return x->cause != INCIDENT_REQUESTED;
        case INCIDENT_ENDED:
                return incident_is_evidence(x) && x->place != INCIDENT_PUBLISHED;
        case N_INCIDENT_STATES:
                break;
        }
        return false;
}

size_t incidents_n_underway(const Incidents *i) {
        size_t n = 0;
        LIST_FOREACH (l, &i->incidents)
                n += is_underway(CONTAINER_OF(l, Incident, link));
        return n;
}

void incidents_hurry(Incidents *i, IncidentHurry hurry) {
        i->hurry = hurry;
        LIST_FOREACH_ITEM_SAFE (Incident, x, link, &i->incidents)
                if ((x->state == INCIDENT_RESTING && hurry != INCIDENT_HURRY_NONE) ||
                    (x->state == INCIDENT_WAITING && hurry == INCIDENT_HURRY_FLUSH))
                        incident_machine_step(x);
}

/* ---- life ---- */

int incidents_new(Incidents **ret, const IncidentsContext *context, const Config *config) {
        Incidents *i = calloc(1, sizeof *i);
        if (!i)
                return -ENOMEM;
        *i = (Incidents){ .context = *context, .config = config, .remove = incident_list_remove };
        list_init(&i->incidents);
        i->snapshots = path_join(config->state_directory, "snapshots");
        i->socket = supervisor_client_socket(config->api.socket);
        int r = i->snapshots && i->socket ? 0 : -ENOMEM;
        if (r == 0)
                r = fs_mkdir_p(i->snapshots, 0700);
        if (r == 0)
                r = incident_list_sweep(i);
        if (r < 0) {
                incidents_free(i);
                return r;
        }
        *ret = i;
        return 0;
}

Incidents *incidents_free(Incidents *i) {
        if (!i)
                return NULL;
        LIST_FOREACH_SAFE (l, &i->incidents)
                incident_list_release(CONTAINER_OF(l, Incident, link));
        free(i->snapshots);
        free(i->socket);
        free(i);
        return NULL;
}

void incidents_rebind(Incidents *i, const Config *config) {
        i->config = config;
}
