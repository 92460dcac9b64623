/* The directory of an incident: `snapshots/NAME` below the state directory while the incident is
 * underway, and while it is kept for an operator. When the incident has ended it is moved to
 * agent/evidence, and is a bundle of its own.
 *
 * The supervisor of the collectors writes the snapshots into it. This file writes
 * `snapshot-context.json`, from which the next agent resumes the incident, and reads it again.
 * Changes that follow each other closely are one write. */
#include "agent/incidents/incident_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/evidence/evidence.h"
#include "agent/store/store.h"
#include "collectors/runner/probe_request.h"
#include "collectors/snapshot.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_in.h"
#include "lib/base/json_out.h"
#include "lib/base/json_text.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"

#define WRITE_USEC (50 * USEC_PER_MSEC) /* changes within this time are one write */
#define SCHEMA "neuron-collectd/snapshot-context/1"
#define FILE_BYTES_MAX (4 * MIB) /* incident_directory_write() writes no more */
#define BOOT_ID_SIZE 37
/* A dump that was found so long before its note came is another one. */
#define BUNDLE_AGE_USEC (10 * USEC_PER_MINUTE)

/* ---- descriptors ---- */

int incident_directory_open(Incident *x) {
        if (x->dir_fd < 0)
                x->dir_fd = open(x->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return x->dir_fd < 0 ? -errno : 0;
}

void incident_directory_close(Incident *x) {
        if (x->state != INCIDENT_ENDED)
                return;
        cleanup_closep(&x->dir_fd);
        cleanup_closep(&x->public_fd);
        x->dir_fd = x->public_fd = -1;
}

/* ---- writing snapshot-context.json ---- */

static void add_records(StrBuf *b, const char *key, const char *key_left_out,
                        const IncidentTexts *records) {
        json_out_array(b, key);
        for (size_t k = 0; k < records->n; k++)
                json_out_raw(b, NULL, records->items[k]);
        json_out_end_array(b);
        json_out_u64(b, key_left_out, records->n_left_out);
}

static void add_ids(StrBuf *b, const char *key, const IncidentTexts *ids) {
        json_out_array(b, key);
        for (size_t k = 0; k < ids->n; k++)
                json_out_string(b, NULL, ids->items[k]);
        json_out_end_array(b);
}

static void add_owner(StrBuf *b, const Owner *o) {
        json_out_u64(b, "uid", o->uid);
        if (o->container[0])
                json_out_string(b, "container", o->container);
}

static void add_units(StrBuf *b, const Incident *x) {
        json_out_array(b, "units");
        for (size_t k = 0; k < x->n_units; k++) {
                json_out_object(b, NULL);
                json_out_path(b, "source", x->units[k].source);
                json_out_path(b, "path", x->units[k].path);
                if (x->units[k].bundle[0])
                        json_out_string(b, "bundle", x->units[k].bundle);
                add_owner(b, &x->units[k].owner);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        json_out_u64(b, "units_left_out", x->n_left_out);
}

static const char *read_boot_id(char buf[static BOOT_ID_SIZE]) {
        _cleanup_close_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, buf, BOOT_ID_SIZE - 1);
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
        char begun[CLOCK_ISO_SIZE], boot[BOOT_ID_SIZE];
        json_out_object(&b, NULL);
        json_out_string(&b, "schema", SCHEMA);
        json_out_string(&b, "name", x->name);
        json_out_string(&b, "begin", clock_format_iso(begun, x->begun_usec));
        json_out_u64(&b, "begin_usec", x->begun_usec);
        json_out_string(&b, "boot", read_boot_id(boot));
        json_out_string(&b, "trigger", x->trigger);
        add_owner(&b, &x->by);
        json_out_bool(&b, "asked", x->cause == INCIDENT_REQUESTED);
        json_out_bool(&b, "over", x->state == INCIDENT_ENDED);
        add_ids(&b, "notes", &x->notes);
        add_ids(&b, "related", &x->related);
        add_units(&b, x);
        add_processes(&b, x);
        add_records(&b, "kernel_log", "kernel_log_left_out", &x->events);
        add_records(&b, "jobs", "jobs_left_out", &x->jobs);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        *ret = b;
        return strbuf_error(&b);
}

void incident_directory_write(Incident *x) {
        timer_disarm(x->writing);
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = compose(x, &b);
        if (r == 0 && x->written && strcmp(x->written, b.text) == 0)
                return;
        if (r == 0)
                r = incident_directory_open(x);
        if (r == 0)
                r = fs_write_file(x->dir_fd, SNAPSHOT_CONTEXT_FILE, b.text, b.n, 0600);
        free(x->written);
        x->written = r == 0 ? strbuf_detach(&b) : NULL;
        if (r < 0)
                log_warning(r, "incident %s: '%s/%s' cannot be written", x->name, x->directory,
                            SNAPSHOT_CONTEXT_FILE);
}

static int on_write(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        Incident *x = userdata;
        incident_directory_write(x);
        incident_directory_close(x);
        return 0;
}

void incident_directory_write_soon(Incident *x) {
        if (x->writing && sd_event_source_get_enabled(x->writing, NULL) > 0)
                return;
        if (timer_arm(&x->writing, &(TimerOptions){ .event = x->owner->context.event,
                                                    .usec = WRITE_USEC,
                                                    .slack_usec = USEC_PER_MSEC,
                                                    .handler = on_write,
                                                    .userdata = x }) < 0)
                incident_directory_write(x);
}

/* ---- reading snapshot-context.json ---- */

static Owner owner_of(const json_t *v) {
        Owner o = { .uid = (uid_t)json_in_u64(v, "uid") };
        const char *container = json_in_string(v, "container");
        (void)snprintf(o.container, sizeof o.container, "%s", container ? container : "");
        return o;
}

static void read_texts(const json_t *v, IncidentTexts *texts, size_t max) {
        const json_t *item;
        size_t k;
        json_array_foreach(v, k, item) {
                _cleanup_free_ char *text = NULL;
                if (json_is_string(item))
                        text = strdup(json_string_value(item));
                else
                        text = json_text(item, JSON_COMPACT);
                if (text)
                        (void)incident_texts_add(texts, max, text); /* else it is left out */
        }
}

/* A process of an earlier boot has ended, and another one may have its number. */
static void read_lists(Incident *x, const json_t *v) {
        char boot[BOOT_ID_SIZE];
        const char *its_boot = json_in_string(v, "boot");
        const json_t *item;
        size_t k;
        x->n_left_out = (unsigned)json_in_u64(v, "units_left_out");
        read_texts(json_object_get(v, "notes"), &x->notes, INCIDENT_NOTES_MAX);
        read_texts(json_object_get(v, "related"), &x->related, INCIDENT_RELATED_MAX);
        x->n_notes_reported = x->notes.n; /* their hooks lost their connection */
        read_texts(json_object_get(v, "kernel_log"), &x->events, INCIDENT_EVENTS_MAX);
        read_texts(json_object_get(v, "jobs"), &x->jobs, COLLECT_PROCESSES_MAX);
        x->events.n_left_out += json_in_u64(v, "kernel_log_left_out");
        x->jobs.n_left_out += json_in_u64(v, "jobs_left_out");
        if (!its_boot || strcmp(its_boot, read_boot_id(boot)) != 0)
                return;
        json_array_foreach(json_object_get(v, "processes"), k, item) {
                uint64_t pid = json_in_u64(item, "pid");
                IncidentProcess p = { .is_requested = true };
                if (pid == 0 || pid > INT_MAX)
                        continue;
                p.pid = (pid_t)pid;
                p.start_ticks = json_in_u64(item, "start_ticks");
                const char *container = json_in_string(item, "container");
                (void)pids_container_of(container ? container : "", p.container); /* else "" */
                (void)incident_add_process(x, &p); /* else it is left out */
        }
}

static void read_units(Incident *x, const json_t *v) {
        const json_t *unit;
        size_t k;
        json_array_foreach(json_object_get(v, "units"), k, unit) {
                _cleanup_free_ char *source = json_in_path(unit, "source"),
                                    *path = json_in_path(unit, "path");
                IncidentUnit u = { .source = source,
                                   .path = path,
                                   .is_requested = true,
                                   .owner = owner_of(unit) };
                const char *bundle = json_in_string(unit, "bundle");
                (void)snprintf(u.bundle, sizeof u.bundle, "%s", bundle ? bundle : "");
                if (source && path)
                        (void)incident_add_unit(x, &u); /* else it is left out */
        }
}

int incident_directory_read(Incident *x, bool *ret_over) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = fs_read_file(x->dir_fd, SNAPSHOT_CONTEXT_FILE, FILE_BYTES_MAX, &text, &n);
        if (r < 0 && r != -ENOENT)
                return r;
        json_t *v = r == 0 ? json_loadb(text, n, 0, NULL) : NULL;
        x->trigger = json_in_path(v, "trigger");
        x->cause = json_is_true(json_object_get(v, "asked")) ? INCIDENT_REQUESTED : INCIDENT_KERNEL;
        x->by = owner_of(v);
        uint64_t begun = json_in_u64(v, "begin_usec");
        if (begun > 0)
                x->begun_usec = begun;
        read_units(x, v);
        read_lists(x, v);
        *ret_over = json_is_true(json_object_get(v, "over"));
        json_decref(v);
        x->written = TAKE_PTR(text); /* while it does not change, it is not written */
        return 0;
}

/* ---- the directory ---- */

int incident_directory_create(Incident *x) {
        x->directory = path_join(x->owner->snapshots, x->name);
        if (!x->directory)
                return -ENOMEM;
        if (mkdir(x->directory, 0700) < 0)
                return -errno;
        incident_set_place(x, INCIDENT_IN_SNAPSHOTS);
        int r = incident_directory_open(x);
        if (r == 0)
                incident_directory_write(x);
        return r;
}

uint64_t incident_directory_measure(const Incident *x) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *e;
        struct stat st;
        uint64_t bytes = 0;
        (void)fs_opendir_at(x->dir_fd, ".", &d); /* what cannot be read does not count */
        for (unsigned n = 0; d && n < INCIDENT_FILES_MAX && (e = readdir(d)); n++)
                if (e->d_name[0] != '.' &&
                    fstatat(x->dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISREG(st.st_mode))
                        bytes += (uint64_t)st.st_size;
        return bytes;
}

int incident_directory_read_public(Incident *x) {
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

/* ---- its bundle ---- */

/* The newest bundle of a path may be that of an earlier dump. */
static void find_bundle(const Incident *x, IncidentUnit *u) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (!u->bundle[0] &&
            store_find_unit(x->owner->context.store, u->source, u->path, &rec) == 0 &&
            rec.first_seen_usec + BUNDLE_AGE_USEC >= x->begun_usec)
                memcpy(u->bundle, rec.id, sizeof u->bundle);
}

static int add_bundles(const Incident *x, bool of_others, About *ret) {
        int r = 0;
        for (size_t k = 0; r >= 0 && k < x->n_units; k++) {
                if ((x->units[k].owner.uid != x->by.uid) != of_others)
                        continue;
                find_bundle(x, &x->units[k]);
                r = about_add_related(ret, x->units[k].bundle);
        }
        return r;
}

/* The failure of a process names the snapshot if no bundle does. What the kernel's log or another
 * node reports concerns the processes of all users; what an operator has requested or a hook has
 * noted, those of the same user only: others have merely joined. */
static int add_naming_processes(const Incident *x, About *ret) {
        const bool is_of_node = x->cause == INCIDENT_KERNEL || x->cause == INCIDENT_PEER;
        const bool is_of_all = is_of_node && owner_is_same(&x->by, &incident_host);
        int r = 0;
        for (size_t k = 0; r >= 0 && k < x->n_processes; k++) {
                const IncidentProcess *p = x->processes[k];
                if (is_of_all || p->owner.uid == x->by.uid)
                        r = about_add_process(ret, p->pid, p->start_ticks);
        }
        return MIN(r, 0);
}

/* The first bundle places the snapshot: it is never a dump of another user than the one who caused
 * it, whose note may only have joined. */
static int describe(const Incident *x, About *ret) {
        *ret = (About){ .owner = x->by };
        int r = add_bundles(x, false, ret);
        for (size_t k = 0; r >= 0 && k < x->related.n; k++)
                r = about_add_related(ret, x->related.items[k]);
        if (r >= 0 && ret->n_related > 0)
                r = add_bundles(x, true, ret);
        return r < 0 ? r : add_naming_processes(x, ret);
}

const char *incident_directory_evidence_name(const char *name, char ret[static EVIDENCE_NAME_MAX]) {
        (void)snprintf(ret, EVIDENCE_NAME_MAX, "%s-%s", source_kind_name(SOURCE_SNAPSHOT), name);
        return ret;
}

void incident_directory_publish(Incident *x) {
        _cleanup_(about_done) About about = { 0 };
        char name[EVIDENCE_NAME_MAX];
        int r = describe(x, &about);
        if (x->dir_fd >= 0)
                (void)unlinkat(x->dir_fd, SNAPSHOT_PUBLIC_FILE, 0); /* snapshot.json contains it */
        if (r == 0)
                r = evidence_adopt(x->owner->context.evidence, x->directory,
                                   incident_directory_evidence_name(x->name, name), &about);
        if (r < 0) {
                log_write(x->place == INCIDENT_STUCK ? LOG_DEBUG : LOG_ERR, r, NULL,
                          "incident %s: it cannot be shipped; it stays in '%s' and is tried again; "
                          "see whether the state directory has space and can be written",
                          x->name, x->directory);
                incident_set_place(x, INCIDENT_STUCK);
                return;
        }
        incident_set_place(x, INCIDENT_PUBLISHED);
        log_info("incident %s: is shipped", x->name);
}
