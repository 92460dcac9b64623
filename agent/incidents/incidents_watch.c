/* What is heard all the time: lines of the kernel log, of which some begin an incident, and who holds a device, for the day when it is a zombie. */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "agent/incidents/incidents_private.h"
#include "agent/store/notes_store.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

#define JOBS_INTERVAL_USEC (30 * USEC_PER_SEC)
#define AGAIN_USEC (30 * USEC_PER_SEC) /* when the supervisor has ended, which it should not */
#define TRIGGER_MAX 300

static void on_hw_error(Incidents *i, const json_t *record, const char *text) {
        const char *why = NULL, *line = json_string_value(json_object_get(record, "text"));
        char trigger[TRIGGER_MAX];
        (void)snprintf(trigger, sizeof trigger, "the kernel log: %s", line ? line : "");
        Incident *x = incidents_take_up(i, INCIDENT_KERNEL, trigger, &why);
        if (!x)
                return;
        (void)incident_add_text(&x->events, INCIDENT_EVENTS_MAX,
                                text); /* the snapshot has the kernel log, too */
}

static void on_kmsg(Incidents *i, const char *text) {
        json_t *record = json_loads(text, 0, NULL);
        const char *about = json_string_value(json_object_get(record, "about"));
        if (about && strcmp(about, "hw_error") == 0)
                on_hw_error(i, record, text);
        json_decref(record);
}

/* A process that is just ending has no environment any more, and a row that is as it was keeps the time at which it became so: dumps that were
 * written since then are its own. */
static bool is_worth_storing(Incidents *i, const json_t *record, const StoredJob *job) {
        StoredJob known = { 0 };
        if (store_job_find(i->context.store, job->pid, job->start_ticks, &known) != 0)
                return true;
        bool is_same = strcmp(known.document, job->document) == 0;
        stored_job_done(&known);
        return !is_same && json_is_object(json_object_get(record, "job"));
}

static void store_job(Incidents *i, const char *text) {
        json_t *record = json_loads(text, 0, NULL);
        StoredJob job = {
                .pid = (pid_t)json_integer_value(json_object_get(record, "pid")),
                .start_ticks = (uint64_t)json_integer_value(json_object_get(record, "start_ticks")),
                .uid = (uid_t)json_integer_value(json_object_get(record, "uid")),
                .seen_usec = i->context.clock->realtime_usec(i->context.clock),
                .document = (char *)text,
        };
        if (job.pid > 0 && is_worth_storing(i, record, &job))
                (void)store_job_put(i->context.store, &job); /* all are told again in 10 minutes */
        json_decref(record);
}

/* One transaction for all that came at once: a commit waits for the disk. What is lost is told again in 10 minutes. */
static void store_seen(Incidents *i) {
        int r = i->n_seen > 0 ? store_begin(i->context.store) : -ENODATA;
        for (size_t k = 0; k < i->n_seen; k++) {
                if (r == 0)
                        store_job(i, i->seen[k]);
                free(i->seen[k]);
        }
        i->n_seen = 0;
        if (r == 0)
                r = store_commit(i->context.store);
        if (r < 0 && r != -ENODATA)
                log_debug("cannot store who holds devices: %s", strerror(-r));
}

static int on_seen(sd_event_source *s, void *userdata) {
        (void)s;
        store_seen(userdata);
        return 0;
}

/* Behind all that has come by now. */
static void on_jobs(Incidents *i, const char *text) {
        if (i->n_seen == INCIDENTS_SEEN_MAX)
                store_seen(i);
        i->seen[i->n_seen] = strdup(text);
        i->n_seen += i->seen[i->n_seen] != NULL;
        int r = 0;
        if (!i->seen_step) {
                r = sd_event_add_defer(i->context.event, &i->seen_step, on_seen, i);
                if (r >= 0)
                        r = sd_event_source_set_priority(i->seen_step, SD_EVENT_PRIORITY_IDLE);
        }
        if (r < 0 || sd_event_source_set_enabled(i->seen_step, SD_EVENT_ONESHOT) < 0)
                store_seen(i);
}

static void on_message(const char *text, void *userdata) {
        if (strncmp(text, "kmsg ", 5) == 0)
                on_kmsg(userdata, text + 5);
        else if (strncmp(text, "jobs ", 5) == 0)
                on_jobs(userdata, text + 5);
        else if (strncmp(text, "trouble ", 8) == 0)
                log_warning(0, "the kernel log is not followed: %s; trying again every 30 s",
                            text + 8);
}

static int on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s;
        (void)usec;
        incidents_watch(userdata);
        return 0;
}

static void try_again(Incidents *i) {
        int r = timer_arm(&i->watch_timer, &(TimerOrder){ .event = i->context.event,
                                                          .usec = AGAIN_USEC,
                                                          .handler = on_again,
                                                          .userdata = i });
        if (r < 0)
                log_error(r, "neither the kernel log nor who holds a device is followed any more");
}

static void on_end(int result, const char *why, void *userdata) {
        Incidents *i = userdata;
        log_warning(0,
                    "neither the kernel log nor who holds a device is followed (%s); trying again "
                    "in 30 s",
                    result < 0 ? why : "their supervisor has ended");
        i->watch = probe_free(i->watch);
        try_again(i);
}

void incidents_watch(Incidents *i) {
        const Config *c = i->config;
        if (!c->snapshot.enabled || i->watch)
                return;
        ProbeOrder o = { .mode = PROBE_WATCH,
                         .interval_usec = JOBS_INTERVAL_USEC,
                         .collect = { .sysfs_root = c->snapshot.sysfs_root,
                                      .device_directory = c->snapshot.device_directory,
                                      .proc_root = c->snapshot.proc_root,
                                      .environment = c->snapshot.environment.items,
                                      .timeout_usec = c->snapshot.probe_timeout_usec,
                                      .max_bytes = c->snapshot.probe_bytes } };
        int r = probe_new(&i->watch, i->context.event,
                          &(ProbeRequest){ .order = &o,
                                           .socket = i->socket,
                                           .dir_fd = -1,
                                           .timeout_usec = USEC_INFINITY,
                                           .on_message = on_message,
                                           .on_end = on_end,
                                           .userdata = i });
        if (r < 0) {
                log_warning(r, "the kernel log cannot be followed; trying again in 30 s");
                try_again(i);
        }
}

void incidents_watch_done(Incidents *i) {
        i->watch = probe_free(i->watch);
        i->watch_timer = sd_event_source_disable_unref(i->watch_timer);
        i->seen_step = sd_event_source_disable_unref(i->seen_step);
        store_seen(i);
}
