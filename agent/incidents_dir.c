/* Where incidents lie: `<state_directory>/snapshots/<name>` while they are taken and kept, `<state_directory>/incidents/<name>` to be shipped. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/incidents_private.h"
#include "collectors/supervise.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

#define INCIDENT_SCHEMA "neuron-collectd/snapshot-incident/1"
#define INCIDENT_FILE_MAX (4 * MIB)
#define FILES_MAX 1024
#define BOOT_ID_SIZE 37

/* ---- making ---- */

static int open_directory(Incident *x) {
        x->dir_fd = open(x->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return x->dir_fd < 0 ? -errno : 0;
}

int incident_make_directory(Incident *x) {
        x->directory = path_join(x->owner->snapshots, x->name);
        if (!x->directory)
                return -ENOMEM;
        if (mkdir(x->directory, 0700) < 0)
                return -errno;
        x->is_made = true;
        int r = open_directory(x);
        if (r == 0)
                incident_write(x);
        return r;
}

static void put_texts(StrBuf *b, const char *key, char *const *list, size_t n, bool is_json) {
        json_out_array(b, key);
        for (size_t k = 0; k < n; k++)
                if (is_json)
                        json_out_raw(b, NULL, list[k]);
                else
                        json_out_string(b, NULL, list[k]);
        json_out_end_array(b);
}

/* @return of the running kernel; "" where it cannot be read */
static const char *boot_id(char buf[static BOOT_ID_SIZE]) {
        _cleanup_close_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, buf, BOOT_ID_SIZE - 1);
        buf[MAX(n, (ssize_t)0)] = '\0';
        return buf;
}

static void put_processes(StrBuf *b, const Incident *x) {
        json_out_array(b, "processes");
        for (size_t k = 0; k < x->n_processes; k++) {
                if (x->processes[k]->pid <= 0)
                        continue;
                json_out_object(b, NULL);
                json_out_u64(b, "pid", (uint64_t)x->processes[k]->pid);
                json_out_u64(b, "start_ticks", x->processes[k]->start_ticks);
                json_out_end_object(b);
        }
        json_out_end_array(b);
}

void incident_write(Incident *x) {
        if (x->writing)
                (void)sd_event_source_set_enabled(x->writing,
                                                  SD_EVENT_OFF); /* fails only in another process */
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        char begun[CLOCK_ISO_SIZE], boot[BOOT_ID_SIZE];
        json_out_object(&b, NULL);
        json_out_string(&b, "schema", INCIDENT_SCHEMA);
        json_out_string(&b, "name", x->name);
        json_out_string(&b, "begin", clock_format_iso(begun, x->begun_usec));
        json_out_u64(&b, "begin_usec", x->begun_usec);
        json_out_string(&b, "boot", boot_id(boot));
        json_out_string(&b, "trigger", x->trigger);
        json_out_bool(&b, "asked", x->cause == INCIDENT_ASKED);
        json_out_bool(&b, "over", x->state == INCIDENT_ENDED);
        put_texts(&b, "notes", x->notes, x->n_notes, false);
        json_out_array(&b, "units");
        for (size_t k = 0; k < x->n_units; k++) {
                json_out_object(&b, NULL);
                json_out_path(&b, "source", x->units[k].source);
                json_out_path(&b, "path", x->units[k].path);
                json_out_u64(&b, "uid", x->units[k].uid);
                json_out_end_object(&b);
        }
        json_out_end_array(&b);
        json_out_u64(&b, "units_left_out", x->n_left_out);
        put_processes(&b, x);
        put_texts(&b, "kernel_log", x->events, x->n_events, true);
        put_texts(&b, "jobs", x->jobs, x->n_jobs, true);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        int r = strbuf_error(&b);
        if (r == 0 && x->written && strcmp(x->written, b.text) == 0)
                return;
        if (r == 0)
                r = fs_write_file(x->dir_fd, SNAPSHOT_INCIDENT_FILE, b.text, b.n, 0600);
        free(x->written);
        x->written = r == 0 ? strbuf_take(&b) : NULL;
        if (r < 0)
                log_warning(r, "incident %s: '%s/%s' cannot be written", x->name, x->directory,
                            SNAPSHOT_INCIDENT_FILE);
}

static int on_write(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s;
        (void)usec;
        incident_write(userdata);
        return 0;
}

void incident_changed(Incident *x) {
        if (x->writing && sd_event_source_get_enabled(x->writing, NULL) > 0)
                return; /* it is about to be */
        int r = x->writing ? sd_event_source_set_time_relative(x->writing, INCIDENT_WRITE_USEC)
                           : sd_event_add_time_relative(x->owner->context.event, &x->writing,
                                                        CLOCK_MONOTONIC, INCIDENT_WRITE_USEC,
                                                        USEC_PER_MSEC, on_write, x);
        if (r >= 0)
                r = sd_event_source_set_enabled(x->writing, SD_EVENT_ONESHOT);
        if (r < 0)
                incident_write(x);
}

/* ---- its files ---- */

/* @param on_file  negative ends it */
static int each_file(const Incident *x,
                     int (*on_file)(const char *name, int fd, uint64_t bytes, void *userdata),
                     void *userdata) {
        int copy = openat(x->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
        _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
        if (!d) {
                r = -errno;
                if (copy >= 0)
                        (void)close(copy);
                return r;
        }
        const struct dirent *e;
        for (unsigned n = 0; r >= 0 && n < FILES_MAX && (e = readdir(d)); n++) {
                struct stat st;
                if (e->d_name[0] == '.')
                        continue;
                _cleanup_close_ int fd = fs_open_regular(x->dir_fd, e->d_name, &st);
                if (fd >= 0)
                        r = on_file(e->d_name, fd, (uint64_t)st.st_size, userdata);
        }
        return r;
}

static int add_bytes(const char *name, int fd, uint64_t bytes, void *userdata) {
        (void)name;
        (void)fd;
        *(uint64_t *)userdata += bytes;
        return 0;
}

uint64_t incident_measure(const Incident *x) {
        uint64_t bytes = 0;
        (void)each_file(x, add_bytes, &bytes); /* what cannot be seen does not count */
        return bytes;
}

typedef struct Attaching {
        const Incident *incident;
        IncidentUnit *unit;
        bool is_second;
} Attaching;

/* A unit that an earlier incident was about has its files, and keeps them. */
static bool has_earlier(const Incident *x, const IncidentUnit *u) {
        LIST_FOREACH (l, &x->owner->incidents) {
                const Incident *other = CONTAINER_OF(l, Incident, link);
                if (other == x)
                        return false;
                for (size_t k = 0; k < other->n_units; k++)
                        if (strcmp(other->units[k].source, u->source) == 0 &&
                            strcmp(other->units[k].path, u->path) == 0)
                                return true;
        }
        return false;
}

/* A bundle that has gone out has it, and a supplement should not bring it again. Files are replaced, not written to.
 * @return where it is remembered; NULL: it is not yet */
static IncidentAttached *find_attached(const IncidentUnit *u, const char *name) {
        for (size_t k = 0; k < u->n_attached; k++)
                if (strcmp(u->attached[k].name, name) == 0)
                        return &u->attached[k];
        return NULL;
}

static bool is_unchanged(const IncidentAttached *was, const struct stat *st) {
        return was && was->st.st_ino == st->st_ino && was->st.st_size == st->st_size &&
               was->st.st_mtim.tv_sec == st->st_mtim.tv_sec &&
               was->st.st_mtim.tv_nsec == st->st_mtim.tv_nsec;
}

/* Without memory it is attached again, which is as good. */
static void remember(IncidentUnit *u, const char *name, const struct stat *st) {
        IncidentAttached *was = find_attached(u, name);
        if (!was) {
                IncidentAttached *more = reallocarray(u->attached, u->n_attached + 1, sizeof *more);
                if (!more)
                        return;
                u->attached = more;
                was = &more[u->n_attached++];
                (void)snprintf(was->name, sizeof was->name, "%s", name);
        }
        was->st = *st;
}

static int attach_file(const char *name, int fd, uint64_t bytes, void *userdata) {
        const Attaching *a = userdata;
        const IncidentsContext *c = &a->incident->owner->context;
        (void)bytes;
        if (strcmp(name, SNAPSHOT_PUBLIC_FILE) == 0) /* is part of snapshot.json */
                return 0;
        struct stat st;
        if (fstat(fd, &st) < 0 || is_unchanged(find_attached(a->unit, name), &st))
                return 0;
        const char *file = name;
        char own_name[INCIDENT_NAME_SIZE + 256];
        if (a->is_second) {
                (void)snprintf(own_name, sizeof own_name, "%s-%s", a->incident->name, name);
                name = own_name;
        }
        int r = c->attach(a->unit->source, a->unit->path, name, fd, c->userdata);
        if (r < 0)
                log_warning(r, "incident %s: '%s' cannot be attached to '%s'", a->incident->name,
                            name, a->unit->path);
        else
                remember(a->unit, file, &st);
        return 0; /* the others are as good */
}

void incident_attach(Incident *x, IncidentUnit *u) {
        int r = each_file(x, attach_file, &(Attaching){ x, u, has_earlier(x, u) });
        if (r < 0)
                log_warning(r, "incident %s: '%s' cannot be read", x->name, x->directory);
}

void incident_attach_all(Incident *x) {
        for (size_t k = 0; k < x->n_units; k++)
                incident_attach(x, &x->units[k]);
}

int incident_read_public(Incident *x) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = fs_read_file(x->dir_fd, SNAPSHOT_PUBLIC_FILE,
                             4 * x->owner->config->snapshot.probe_bytes, &text, &n);
        if (r < 0)
                return r;
        r = order_memfd(text, n);
        if (r < 0)
                return r;
        x->public_fd = r;
        return 0;
}

static void remove_hidden(const Incident *x) {
        int copy = openat(x->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
        const struct dirent *e;
        while (d && (e = readdir(d)))
                if (e->d_name[0] == '.' && strcmp(e->d_name, ".") != 0 &&
                    strcmp(e->d_name, "..") != 0)
                        (void)fs_remove_tree(x->dir_fd, e->d_name); /* is shipped otherwise */
        (void)unlinkat(x->dir_fd, SNAPSHOT_PUBLIC_FILE, 0);         /* the same */
}

void incident_move_outside(Incident *x) {
        _cleanup_free_ char *to = path_join(x->owner->outbox, x->name);
        remove_hidden(x);
        if (to && rename(x->directory, to) == 0) {
                free(x->directory);
                x->directory = TAKE_PTR(to);
                x->is_outside = true;
                log_info("incident %s: belongs to no dump, and is shipped for itself", x->name);
                return;
        }
        log_error(to ? -errno : -ENOMEM, "incident %s: it cannot be shipped; it stays in '%s'",
                  x->name, x->directory);
}

/* ---- room ---- */

void incident_remove(Incident *x) {
        x->writing = sd_event_source_disable_unref(x->writing);
        if (!x->is_made) {
                incident_free(x);
                return;
        }
        const char *parent = x->is_outside ? x->owner->outbox : x->owner->snapshots;
        _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = fd < 0 ? -errno : fs_remove_tree(fd, x->name);
        if (r < 0)
                log_warning(r, "cannot remove '%s/%s'; remove it by hand", parent, x->name);
        incident_free(x);
}

/* What is to be shipped stays until it was. */
static bool may_go(const Incident *x) {
        return x->state == INCIDENT_ENDED && !x->is_outside;
}

static bool has_room(const Incidents *i) {
        uint64_t bytes = 0;
        LIST_FOREACH (l, &i->incidents)
                bytes += CONTAINER_OF(l, Incident, link)->bytes;
        return i->n_incidents < INCIDENT_DIRECTORIES_MAX && bytes < INCIDENT_BYTES_MAX;
}

bool incidents_make_room(Incidents *i) {
        LIST_FOREACH_SAFE (l, &i->incidents) {
                if (has_room(i))
                        break;
                Incident *x = CONTAINER_OF(l, Incident, link);
                if (may_go(x))
                        incident_remove(x);
        }
        return has_room(i);
}

/* ---- what an earlier agent has left ---- */

static char *unescaped(const json_t *v, const char *key) {
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
        char boot[BOOT_ID_SIZE];
        const char *its_boot = json_string_value(json_object_get(v, "boot"));
        const json_t *item;
        size_t k;
        json_int_t begun = json_integer_value(json_object_get(v, "begin_usec"));
        if (begun > 0)
                x->begun_usec = (uint64_t)begun;
        x->n_left_out = (unsigned)json_integer_value(json_object_get(v, "units_left_out"));
        read_texts(json_object_get(v, "notes"), &x->notes, &x->n_notes, INCIDENT_NOTES_MAX);
        x->n_told = x->n_notes; /* whoever asked is gone */
        read_texts(json_object_get(v, "kernel_log"), &x->events, &x->n_events, INCIDENT_EVENTS_MAX);
        read_texts(json_object_get(v, "jobs"), &x->jobs, &x->n_jobs, COLLECT_PROCESSES_MAX);
        if (!its_boot || strcmp(its_boot, boot_id(boot)) != 0)
                return;
        json_array_foreach(json_object_get(v, "processes"), k, item) {
                json_int_t pid = json_integer_value(json_object_get(item, "pid"));
                IncidentProcess p = { .pid_fd = -1, .is_taken = true };
                if (pid <= 0 || pid > INT_MAX)
                        continue;
                p.pid = (pid_t)pid;
                p.start_ticks = (uint64_t)json_integer_value(json_object_get(item, "start_ticks"));
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
        x->trigger = unescaped(v, "trigger");
        x->cause = json_is_true(json_object_get(v, "asked")) ? INCIDENT_ASKED : INCIDENT_KERNEL;
        json_array_foreach(json_object_get(v, "units"), k, unit) {
                _cleanup_free_ char *source = unescaped(unit, "source"),
                                    *path = unescaped(unit, "path");
                IncidentUnit u = { .source = source,
                                   .path = path,
                                   .uid = (uid_t)json_integer_value(json_object_get(unit, "uid")) };
                if (source && path)
                        (void)incident_add_unit(x, &u); /* then it is one unit less */
        }
        read_lists(x, v);
        bool is_over = json_is_true(json_object_get(v, "over"));
        json_decref(v);
        return is_over;
}

/* The agent ended between the proof and the removal; or a sweep without incidents delivered it. */
static bool was_let_go(const Incidents *i, const char *path) {
        BundleRecord b = { 0 };
        bool was = store_find_unit(i->context.store, INCIDENTS_SOURCE, path, &b) == 0 &&
                   bundle_state_is_final(b.state) && b.state != BUNDLE_QUARANTINED;
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
        if (open_directory(x) < 0) { /* none of ours */
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
                x->state = INCIDENT_ENDED;
        else if (x->has_snapshot && incident_look_again(x))
                log_notice("incident %s: its second look is still to come", x->name);
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
