/* What an earlier agent has left of incidents: read from their directories, and resumed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/incidents/incidents_private.h"
#include "collectors/supervisor.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

#define INCIDENT_FILE_MAX (4 * MIB)    /* directory.c writes no more */
#define AGAIN_USEC (30 * USEC_PER_SEC) /* what cannot be read now is read again */

char *incident_unescaped(const json_t *v, const char *key) {
        const char *s = json_string_value(json_object_get(v, key));
        char *ret = NULL;
        return s && path_unescape(s, &ret) == 0 ? ret : NULL;
}

static uint64_t number_of(const json_t *v, const char *key) {
        json_int_t n = json_integer_value(json_object_get(v, key));
        return (uint64_t)MAX(n, (json_int_t)0);
}

static void read_texts(const json_t *v, IncidentTexts *texts, size_t max) {
        const json_t *item;
        size_t k;
        json_array_foreach(v, k, item) {
                _cleanup_free_ char *text = NULL;
                if (json_is_string(item))
                        text = strdup(json_string_value(item));
                else
                        text = json_dumps(item, JSON_COMPACT);
                if (text)
                        (void)incident_text_add(texts, max, text); /* then it is one less */
        }
}

/* A process of an earlier boot is gone, and its number may be another's. */
static void read_lists(Incident *x, const json_t *v) {
        char boot[INCIDENT_BOOT_ID_SIZE];
        const char *its_boot = json_string_value(json_object_get(v, "boot"));
        const json_t *item;
        size_t k;
        x->n_left_out = (unsigned)json_integer_value(json_object_get(v, "units_left_out"));
        read_texts(json_object_get(v, "notes"), &x->notes, INCIDENT_NOTES_MAX);
        x->n_notes_reported = x->notes.n; /* the senders are gone */
        read_texts(json_object_get(v, "kernel_log"), &x->events, INCIDENT_EVENTS_MAX);
        read_texts(json_object_get(v, "jobs"), &x->jobs, COLLECT_PROCESSES_MAX);
        x->events.n_lost = number_of(v, "kernel_log_left_out");
        x->jobs.n_lost = number_of(v, "jobs_left_out");
        if (!its_boot || strcmp(its_boot, incident_boot_id(boot)) != 0)
                return;
        json_array_foreach(json_object_get(v, "processes"), k, item) {
                json_int_t pid = json_integer_value(json_object_get(item, "pid"));
                IncidentProcess p = { .pid_fd = -1, .is_requested = true };
                if (pid <= 0 || pid > INT_MAX)
                        continue;
                p.pid = (pid_t)pid;
                p.start_ticks = (uint64_t)json_integer_value(json_object_get(item, "start_ticks"));
                const char *container = json_string_value(json_object_get(item, "container"));
                (void)pids_container_of(container ? container : "", p.container); /* else "" */
                (void)incident_add_process(x, &p); /* then it is one less */
        }
}

static void read_units(Incident *x, const json_t *v) {
        const json_t *unit;
        size_t k;
        json_array_foreach(json_object_get(v, "units"), k, unit) {
                _cleanup_free_ char *source = incident_unescaped(unit, "source"),
                                    *path = incident_unescaped(unit, "path");
                IncidentUnit u = { .source = source,
                                   .path = path,
                                   .added_usec = x->begun_usec,
                                   .is_requested = true,
                                   .uid = (uid_t)json_integer_value(json_object_get(unit, "uid")) };
                if (source && path)
                        (void)incident_add_unit(x, &u); /* then it is one unit less */
        }
}

/* One without a valid document is shipped as a bundle of its own in the end. One that cannot be
 * read now may be about dumps, and is left as it is. @return 0, -errno: it cannot be read now */
static int read_incident(Incident *x, bool *ret_over) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = fs_read_file(x->dir_fd, SNAPSHOT_INCIDENT_FILE, INCIDENT_FILE_MAX, &text, &n);
        if (r < 0 && r != -ENOENT)
                return r;
        json_t *v = r == 0 ? json_loadb(text, n, 0, NULL) : NULL;
        x->trigger = incident_unescaped(v, "trigger");
        x->cause = json_is_true(json_object_get(v, "asked")) ? INCIDENT_REQUESTED : INCIDENT_KERNEL;
        uint64_t begun = number_of(v, "begin_usec");
        if (begun > 0)
                x->begun_usec = begun;
        read_units(x, v);
        read_lists(x, v);
        *ret_over = json_is_true(json_object_get(v, "over"));
        json_decref(v);
        x->written =
                TAKE_PTR(text); /* an unchanged document is neither written nor attached again */
        return incident_read_attached(x);
}

/* The agent ended between the proof and the removal; or a sweep without incidents delivered it. */
static bool was_let_go(const Incidents *i, const char *path) {
        _cleanup_(bundle_record_done) BundleRecord b = { 0 };
        return store_find_unit(i->context.store, INCIDENTS_SOURCE, path, &b) == 0 &&
               bundle_state_is_terminal(b.state);
}

static void note_number(Incidents *i, const char *name) {
        const char *dash = strrchr(name, '-');
        unsigned long n = dash ? strtoul(dash + 1, NULL, 10) : 0;
        if (n < UINT_MAX / 2)
                i->last_number = MAX(i->last_number, (unsigned)n);
}

static bool is_none_of_ours(int error) {
        return error == -ENOENT || error == -ENOTDIR || error == -ELOOP;
}

/* @return 0, -errno: it cannot be read now, or is none of ours */
static int read_directory(Incident *x, const char *parent, bool *ret_over) {
        Incidents *i = x->owner;
        x->directory = path_join(parent, x->name);
        x->begun_usec = incidents_realtime_usec(i);
        x->begun_boot_usec = incidents_boot_usec(i);
        int r = x->directory ? incident_open_directory(x) : -ENOMEM;
        return r < 0 ? r : read_incident(x, ret_over);
}

static void resume_incident(Incident *x, bool is_over) {
        x->has_snapshot = faccessat(x->dir_fd, SNAPSHOT_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
        if (is_over || x->is_own_bundle)
                incident_set_state(x, INCIDENT_ENDED);
        else if (x->has_snapshot && incident_start_recheck(x))
                log_notice("incident %s: its second snapshot is still to come", x->name);
        else if (x->has_snapshot)
                incident_resume_resting(x);
        else {
                log_notice("incident %s: its snapshot was interrupted; what is there of it is "
                           "gathered",
                           x->name);
                incident_salvage(x);
        }
        incident_close_descriptors(x);
}

static bool is_known(const Incidents *i, const char *name) {
        IncidentView v;
        return incidents_get(i, name, &v);
}

/* @return 0, -errno: it cannot be read now */
static int find(Incidents *i, const char *parent, const char *name) {
        if (is_known(i, name))
                return 0;
        bool is_over = false;
        note_number(i, name);
        Incident *x = incident_new(i, name);
        int r = x ? read_directory(x, parent, &is_over) : -ENOMEM;
        if (r < 0) {
                if (!is_none_of_ours(r) && !i->sweep_timer) /* logged once */
                        log_warning(r,
                                    "what an earlier agent has left in '%s/%s' cannot be read; it "
                                    "stays as it is, and is read again every 30 s",
                                    parent, name);
                incident_free(x); /* not the directory */
                return is_none_of_ours(r) ? 0 : r;
        }
        x->has_directory = x->is_found = true; /* by an earlier agent */
        x->bytes = incident_measure(x);
        x->is_own_bundle = parent == i->outbox;
        if (x->is_own_bundle && was_let_go(i, x->directory))
                incident_remove(x);
        else
                resume_incident(x, is_over);
        return 0;
}

static int by_name(const void *a, const void *b) {
        return strcmp(*(char *const *)a, *(char *const *)b);
}

static int sweep(Incidents *i, const char *parent, bool *ret_again) {
        _cleanup_closedir_ DIR *d = opendir(parent);
        _cleanup_(incident_texts_done) IncidentTexts names = { 0 };
        if (!d)
                return -errno;
        const struct dirent *e;
        while ((e = readdir(d)))
                if (e->d_name[0] != '.' && strlen(e->d_name) < INCIDENT_NAME_SIZE)
                        (void)incident_text_add(&names, 4 * INCIDENT_DIRECTORIES_MAX,
                                                e->d_name); /* found at the next start */
        if (names.n > 0)
                qsort(names.items, names.n, sizeof *names.items, by_name); /* by time, that is */
        for (size_t k = 0; k < names.n; k++)
                *ret_again |= find(i, parent, names.items[k]) < 0;
        return 0;
}

static int on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        int r = incidents_sweep(userdata);
        if (r < 0)
                log_warning(r, "what an earlier agent has left is read after the next start");
        return 0;
}

int incidents_sweep(Incidents *i) {
        bool again = false;
        int r = sweep(i, i->outbox, &again);
        if (r == 0)
                r = sweep(i, i->snapshots, &again);
        if (r < 0 || !again)
                return r;
        return timer_arm(&i->sweep_timer, &(TimerOptions){ .event = i->context.event,
                                                           .usec = AGAIN_USEC,
                                                           .handler = on_again,
                                                           .userdata = i });
}
