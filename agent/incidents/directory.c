/* Directories of incidents: `<state_directory>/snapshots/<name>` while they are taken and kept,
 * `<state_directory>/incidents/<name>` to be shipped. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/incidents/incidents_private.h"
#include "collectors/supervisor.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

#define WRITE_USEC (50 * USEC_PER_MSEC) /* what comes within it is written at once */
#define INCIDENT_SCHEMA "neuron-collectd/snapshot-incident/1"

/* ---- making ---- */

int incident_open_directory(Incident *x) {
        if (x->dir_fd < 0)
                x->dir_fd = open(x->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return x->dir_fd < 0 ? -errno : 0;
}

void incident_close_descriptors(Incident *x) {
        if (x->state != INCIDENT_ENDED)
                return;
        cleanup_closep(&x->dir_fd);
        cleanup_closep(&x->public_fd);
        x->dir_fd = x->public_fd = -1;
}

int incident_make_directory(Incident *x) {
        x->directory = path_join(x->owner->snapshots, x->name);
        if (!x->directory)
                return -ENOMEM;
        if (mkdir(x->directory, 0700) < 0)
                return -errno;
        x->has_directory = true;
        int r = incident_open_directory(x);
        if (r == 0)
                incident_write(x);
        return r;
}

/* Records may be 64 KiB each, and the file is to be read by the next agent: they are bounded, and
 * the number of those left out is recorded. */
static void add_records(StrBuf *b, const char *key, const char *key_left_out,
                        const IncidentTexts *records) {
        uint64_t bytes = 0, n_left_out = records->n_lost;
        json_out_array(b, key);
        for (size_t k = 0; k < records->n; k++) {
                size_t n = strlen(records->items[k]);
                if (bytes + n > INCIDENT_TEXTS_BYTES_MAX) {
                        n_left_out++;
                        continue;
                }
                bytes += n;
                json_out_raw(b, NULL, records->items[k]);
        }
        json_out_end_array(b);
        json_out_u64(b, key_left_out, n_left_out);
}

static void add_notes(StrBuf *b, const Incident *x) {
        json_out_array(b, "notes");
        for (size_t k = 0; k < x->notes.n; k++)
                json_out_string(b, NULL, x->notes.items[k]);
        json_out_end_array(b);
}

static void add_units(StrBuf *b, const Incident *x) {
        json_out_array(b, "units");
        for (size_t k = 0; k < x->n_units; k++) {
                if (x->units[k].is_gone)
                        continue;
                json_out_object(b, NULL);
                json_out_path(b, "source", x->units[k].source);
                json_out_path(b, "path", x->units[k].path);
                json_out_u64(b, "uid", x->units[k].uid);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        json_out_u64(b, "units_left_out", x->n_left_out);
}

const char *incident_boot_id(char buf[static INCIDENT_BOOT_ID_SIZE]) {
        _cleanup_close_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, buf, INCIDENT_BOOT_ID_SIZE - 1);
        buf[MAX(n, (ssize_t)0)] = '\0';
        return buf;
}

static void add_processes(StrBuf *b, const Incident *x) {
        json_out_array(b, "processes");
        for (size_t k = 0; k < x->n_processes; k++) {
                if (x->processes[k]->pid <= 0)
                        continue;
                json_out_object(b, NULL);
                json_out_u64(b, "pid", (uint64_t)x->processes[k]->pid);
                json_out_u64(b, "start_ticks", x->processes[k]->start_ticks);
                if (x->processes[k]->container[0])
                        json_out_string(b, "container", x->processes[k]->container);
                json_out_end_object(b);
        }
        json_out_end_array(b);
}

/* @return strbuf_error() */
static int compose(const Incident *x, StrBuf *ret) {
        StrBuf b = STRBUF_INIT;
        char begun[CLOCK_ISO_SIZE], boot[INCIDENT_BOOT_ID_SIZE];
        json_out_object(&b, NULL);
        json_out_string(&b, "schema", INCIDENT_SCHEMA);
        json_out_string(&b, "name", x->name);
        json_out_string(&b, "begin", clock_format_iso(begun, x->begun_usec));
        json_out_u64(&b, "begin_usec", x->begun_usec);
        json_out_string(&b, "boot", incident_boot_id(boot));
        json_out_string(&b, "trigger", x->trigger);
        json_out_bool(&b, "asked", x->cause == INCIDENT_REQUESTED);
        json_out_bool(&b, "over", x->state == INCIDENT_ENDED && !incident_is_attaching(x));
        add_notes(&b, x);
        add_units(&b, x);
        add_processes(&b, x);
        add_records(&b, "kernel_log", "kernel_log_left_out", &x->events);
        add_records(&b, "jobs", "jobs_left_out", &x->jobs);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        *ret = b;
        return strbuf_error(&b);
}

void incident_write(Incident *x) {
        if (x->writing)
                (void)sd_event_source_set_enabled(x->writing,
                                                  SD_EVENT_OFF); /* fails only in another process */
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = compose(x, &b);
        if (r == 0 && x->written && strcmp(x->written, b.text) == 0)
                return;
        if (r == 0)
                r = incident_open_directory(x);
        if (r == 0)
                r = fs_write_file(x->dir_fd, SNAPSHOT_INCIDENT_FILE, b.text, b.n, 0600);
        free(x->written);
        x->written = r == 0 ? strbuf_detach(&b) : NULL;
        if (r < 0)
                log_warning(r, "incident %s: '%s/%s' cannot be written", x->name, x->directory,
                            SNAPSHOT_INCIDENT_FILE);
}

static int on_write(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        Incident *x = userdata;
        incident_write(x);
        if (!incident_is_attaching(x))
                incident_close_descriptors(x);
        return 0;
}

void incident_changed(Incident *x) {
        if (x->writing && sd_event_source_get_enabled(x->writing, NULL) > 0)
                return; /* it is about to be */
        if (timer_arm(&x->writing, &(TimerOptions){ .event = x->owner->context.event,
                                                    .usec = WRITE_USEC,
                                                    .slack_usec = USEC_PER_MSEC,
                                                    .handler = on_write,
                                                    .userdata = x }) < 0)
                incident_write(x);
}

/* ---- its files ---- */

/* @param on_file  negative ends it */
static int each_file(const Incident *x,
                     int (*on_file)(const char *name, int fd, uint64_t bytes, void *userdata),
                     void *userdata) {
        _cleanup_closedir_ DIR *d = NULL;
        int r = fs_opendir_at(x->dir_fd, ".", &d);
        if (r < 0)
                return r;
        const struct dirent *e;
        for (unsigned n = 0; r >= 0 && n < INCIDENT_FILES_MAX && (e = readdir(d)); n++) {
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
        (void)name, (void)fd;
        *(uint64_t *)userdata += bytes;
        return 0;
}

uint64_t incident_measure(const Incident *x) {
        uint64_t bytes = 0;
        (void)each_file(x, add_bytes, &bytes); /* what cannot be seen does not count */
        return bytes;
}

int incident_read_public(Incident *x) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = fs_read_file(x->dir_fd, SNAPSHOT_PUBLIC_FILE,
                             4 * x->owner->config->snapshot.probe_bytes, &text, &n);
        if (r < 0)
                return r;
        r = probe_request_memfd(text, n);
        if (r < 0)
                return r;
        x->public_fd = r;
        return 0;
}

static void remove_hidden(const Incident *x) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *e;
        (void)fs_opendir_at(x->dir_fd, ".", &d); /* what is left is shipped, too */
        while (d && (e = readdir(d)))
                if (e->d_name[0] == '.' && strcmp(e->d_name, ".") != 0 &&
                    strcmp(e->d_name, "..") != 0)
                        (void)fs_remove_tree(x->dir_fd, e->d_name); /* is shipped otherwise */
        (void)unlinkat(x->dir_fd, SNAPSHOT_PUBLIC_FILE, 0);         /* the same */
}

void incident_make_own_bundle(Incident *x) {
        _cleanup_free_ char *to = path_join(x->owner->outbox, x->name);
        remove_hidden(x);
        if (to && rename(x->directory, to) == 0) {
                free(x->directory);
                x->directory = TAKE_PTR(to);
                x->is_own_bundle = true;
                log_info("incident %s: belongs to no dump, and is shipped for itself", x->name);
                return;
        }
        log_error(to ? -errno : -ENOMEM, "incident %s: it cannot be shipped; it stays in '%s'",
                  x->name, x->directory);
}

/* ---- space ---- */

void incident_remove(Incident *x) {
        x->writing = sd_event_source_disable_unref(x->writing);
        x->attaching.is_changed = false; /* nobody needs to know */
        if (!x->has_directory) {
                incident_free(x);
                return;
        }
        const char *parent = x->is_own_bundle ? x->owner->outbox : x->owner->snapshots;
        _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = fd < 0 ? -errno : fs_remove_tree(fd, x->name);
        if (r < 0)
                log_warning(r, "cannot remove '%s/%s'; remove it by hand", parent, x->name);
        incident_free(x);
}

/* What is to be shipped stays until it was, and so does what its dumps have not got yet: there is
 * no other copy. */
static bool may_go(const Incident *x) {
        return x->state == INCIDENT_ENDED && !x->is_own_bundle && !incident_is_attaching(x);
}

static bool has_space(const Incidents *i) {
        uint64_t bytes = 0;
        LIST_FOREACH (l, &i->incidents)
                bytes += CONTAINER_OF(l, Incident, link)->bytes;
        return i->n_incidents < INCIDENT_DIRECTORIES_MAX && bytes < INCIDENT_BYTES_MAX;
}

bool incidents_free_space(Incidents *i) {
        LIST_FOREACH_SAFE (l, &i->incidents) {
                if (has_space(i))
                        break;
                Incident *x = CONTAINER_OF(l, Incident, link);
                if (may_go(x))
                        incident_remove(x);
        }
        return has_space(i);
}
