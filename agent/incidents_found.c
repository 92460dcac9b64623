/* What an earlier agent has left of incidents: read from their directories, and gone on with. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/incidents_private.h"
#include "collectors/supervise.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

#define INCIDENT_FILE_MAX (4 * MIB)

char *incident_unescaped(const json_t *v, const char *key) {
        const char *s = json_string_value(json_object_get(v, key));
        char *ret = NULL;
        return s && path_unescape(s, &ret) == 0 ? ret : NULL;
}

/* @param is_json  of objects, which are kept as text */
static void read_texts(const json_t *v, char ***list, size_t *n, size_t max) {
        const json_t *item;
        size_t k;
        json_array_foreach(v, k, item) {
                _cleanup_free_ char *text = NULL;
                if (json_is_string(item))
                        text = strdup(json_string_value(item));
                else
                        text = json_dumps(item, JSON_COMPACT);
                if (text)
                        (void)incident_add_text(list, n, max, text); /* then it is one less */
        }
}

/* A process of an earlier boot is gone, and its number may be another's. */
static void read_lists(Incident *x, const json_t *v) {
        char boot[INCIDENT_BOOT_ID_SIZE];
        const char *its_boot = json_string_value(json_object_get(v, "boot"));
        const json_t *item;
        size_t k;
        x->n_left_out = (unsigned)json_integer_value(json_object_get(v, "units_left_out"));
        read_texts(json_object_get(v, "notes"), &x->notes, &x->n_notes, INCIDENT_NOTES_MAX);
        x->n_told = x->n_notes; /* whoever asked is gone */
        read_texts(json_object_get(v, "kernel_log"), &x->events, &x->n_events, INCIDENT_EVENTS_MAX);
        read_texts(json_object_get(v, "jobs"), &x->jobs, &x->n_jobs, COLLECT_PROCESSES_MAX);
        if (!its_boot || strcmp(its_boot, incident_boot_id(boot)) != 0)
                return;
        json_array_foreach(json_object_get(v, "processes"), k, item) {
                json_int_t pid = json_integer_value(json_object_get(item, "pid"));
                IncidentProcess p = { .pid_fd = -1, .is_taken = true };
                if (pid <= 0 || pid > INT_MAX)
                        continue;
                p.pid = (pid_t)pid;
                p.start_ticks = (uint64_t)json_integer_value(json_object_get(item, "start_ticks"));
                const char *container = json_string_value(json_object_get(item, "container"));
                (void)pids_container_of(container ? container : "", p.container); /* else "" */
                (void)incident_add_process(x, &p); /* then it is one less */
        }
}

/* @return whether it had come to its end */
static bool read_incident(Incident *x) {
        _cleanup_free_ char *text = NULL;
        size_t n, k;
        json_t *unit, *v = fs_read_file(x->dir_fd, SNAPSHOT_INCIDENT_FILE, INCIDENT_FILE_MAX, &text,
                                        &n) == 0
                                   ? json_loadb(text, n, 0, NULL)
                                   : NULL;
        x->trigger = incident_unescaped(v, "trigger");
        x->cause = json_is_true(json_object_get(v, "asked")) ? INCIDENT_ASKED : INCIDENT_KERNEL;
        json_int_t begun = json_integer_value(json_object_get(v, "begin_usec"));
        if (begun > 0)
                x->begun_usec = (uint64_t)begun;
        json_array_foreach(json_object_get(v, "units"), k, unit) {
                _cleanup_free_ char *source = incident_unescaped(unit, "source"),
                                    *path = incident_unescaped(unit, "path");
                IncidentUnit u = { .source = source,
                                   .path = path,
                                   .added_usec = x->begun_usec,
                                   .uid = (uid_t)json_integer_value(json_object_get(unit, "uid")) };
                if (source && path)
                        (void)incident_add_unit(x, &u); /* then it is one unit less */
        }
        read_lists(x, v);
        bool is_over = json_is_true(json_object_get(v, "over"));
        json_decref(v);
        incident_read_attached(x);
        x->written =
                TAKE_PTR(text); /* it is not written, and attached, anew where it says the same */
        return is_over;
}

/* The agent ended between the proof and the removal; or a sweep without incidents delivered it. */
static bool was_let_go(const Incidents *i, const char *path) {
        BundleRecord b = { 0 };
        bool was = store_find_unit(i->context.store, INCIDENTS_SOURCE, path, &b) == 0 &&
                   bundle_state_is_over(b.state);
        bundle_record_done(&b);
        return was;
}

static void note_number(Incidents *i, const char *name) {
        const char *dash = strrchr(name, '-');
        unsigned long n = dash ? strtoul(dash + 1, NULL, 10) : 0;
        if (n < UINT_MAX / 2)
                i->last_number = MAX(i->last_number, (unsigned)n);
}

static int find(Incidents *i, const char *parent, const char *name) {
        Incident *x = incident_new(i, name);
        if (!x)
                return -ENOMEM;
        x->directory = path_join(parent, name);
        x->is_made = true; /* by an earlier agent */
        note_number(i, name);
        x->begun_usec = i->context.clock->realtime_usec(i->context.clock);
        x->begun_boot_usec = i->context.clock->boottime_usec(i->context.clock);
        if (!x->directory)
                return -ENOMEM;
        if (incident_open_directory(x) < 0) { /* none of ours */
                x->is_made = false;
                incident_free(x);
                return 0;
        }
        bool is_over = read_incident(x);
        x->bytes = incident_measure(x);
        x->is_outside = parent == i->outbox;
        if (x->is_outside && was_let_go(i, x->directory)) {
                incident_remove(x);
                return 0;
        }
        x->has_snapshot = faccessat(x->dir_fd, SNAPSHOT_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
        if (is_over || x->is_outside)
                incident_set_state(x, INCIDENT_ENDED);
        else if (x->has_snapshot && incident_look_again(x))
                log_notice("incident %s: its second look is still to come", x->name);
        else if (x->has_snapshot)
                incident_rest_again(x);
        else {
                log_notice("incident %s: its snapshot was interrupted; what is there of it is "
                           "gathered",
                           x->name);
                incident_salvage(x);
        }
        return 0;
}

static int by_name(const void *a, const void *b) {
        return strcmp(*(char *const *)a, *(char *const *)b);
}

static int sweep(Incidents *i, const char *parent) {
        _cleanup_closedir_ DIR *d = opendir(parent);
        char **names = NULL;
        size_t n = 0;
        int r = 0;
        if (!d)
                return -errno;
        const struct dirent *e;
        while ((e = readdir(d)))
                if (e->d_name[0] != '.' && strlen(e->d_name) < INCIDENT_NAME_SIZE)
                        (void)incident_add_text(&names, &n, 4 * INCIDENT_DIRECTORIES_MAX,
                                                e->d_name); /* found at the next start */
        if (n > 0)
                qsort(names, n, sizeof *names, by_name); /* by time, that is */
        for (size_t k = 0; k < n; k++) {
                r = r < 0 ? r : find(i, parent, names[k]);
                free(names[k]);
        }
        free(names);
        return r;
}

int incidents_sweep(Incidents *i) {
        int r = sweep(i, i->outbox);
        return r < 0 ? r : sweep(i, i->snapshots);
}
