/* Incidents: the watch of the kernel log and of device holders; attaching files to dumps; which
 * event belongs to which incident. */
#include "agent/incidents/incidents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "agent/incidents/incidents_private.h"
#include "agent/store/notes_store.h"
#include "collectors/supervisor.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

static Incident *incidents_start_or_join(Incidents *i, IncidentCause cause, const char *trigger,
                                         const char **ret_why);
static void incidents_watch(Incidents *i);

#define JOBS_INTERVAL_USEC (30 * USEC_PER_SEC)
static bool has(const IncidentUnit *u, const IncidentFile *f);
static void attach_next(Incident *x);
static bool is_same(const IncidentProcess *a, const IncidentProcess *b);

#define AGAIN_USEC (30 * USEC_PER_SEC) /* when the supervisor has ended, which it should not */
#define TRIGGER_MAX 300
static void on_hw_error(Incidents *i, const json_t *record, const char *text) {
        const char *why = NULL, *line = json_string_value(json_object_get(record, "text"));
        char trigger[TRIGGER_MAX];
        (void)snprintf(trigger, sizeof trigger, "the kernel log: %s", line ? line : "");
        Incident *x = incidents_start_or_join(i, INCIDENT_KERNEL, trigger, &why);
        if (!x)
                return;
        (void)incident_text_add(&x->events, INCIDENT_EVENTS_MAX,
                                text); /* the snapshot has the kernel log, too */
}

static void on_kmsg(Incidents *i, const char *text) {
        json_t *record = json_loads(text, 0, NULL);
        const char *about = json_string_value(json_object_get(record, "about"));
        if (about && strcmp(about, "hw_error") == 0)
                on_hw_error(i, record, text);
        json_decref(record);
}

/* A process that is just ending has no environment any more, and a row that is as it was keeps the
 * time at which it became so: dumps that were written since then are its own. */
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
                .seen_usec = incidents_realtime_usec(i),
                .document = (char *)text,
        };
        if (job.pid > 0 && is_worth_storing(i, record, &job))
                (void)store_job_put(i->context.store,
                                    &job); /* all are reported again in 10 minutes */
        json_decref(record);
}

/* One transaction for all that came at once: a commit waits for the disk. What is lost is reported
 * again in 10 minutes. */
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

static int on_watch_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        incidents_watch(userdata);
        return 0;
}

static void try_again(Incidents *i) {
        int r = timer_arm(&i->watch_timer, &(TimerOptions){ .event = i->context.event,
                                                            .usec = AGAIN_USEC,
                                                            .handler = on_watch_retry,
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

static void incidents_watch(Incidents *i) {
        const Config *c = i->config;
        if (!c->snapshot.enabled || i->watch)
                return;
        ProbeRequest o = { .mode = PROBE_WATCH,
                           .interval_usec = JOBS_INTERVAL_USEC,
                           .collect = { .sysfs_root = c->snapshot.sysfs_root,
                                        .device_directory = c->snapshot.device_directory,
                                        .proc_root = c->snapshot.proc_root,
                                        .environment = c->snapshot.environment.items,
                                        .timeout_usec = c->snapshot.probe_timeout_usec,
                                        .max_bytes = c->snapshot.probe_bytes } };
        int r = probe_new(&i->watch, i->context.event,
                          &(ProbeOptions){ .order = &o,
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

static void incidents_watch_done(Incidents *i) {
        i->watch = probe_free(i->watch);
        i->watch_timer = sd_event_source_disable_unref(i->watch_timer);
        i->seen_step = sd_event_source_disable_unref(i->seen_step);
        store_seen(i);
}

/* ---- attaching: the files of an incident's directory go to its dumps, one by one, off the loop.
 * What failed for a full disk is tried again; what was attached is remembered in the directory, so
 * that no supplement has it twice. ---- */

/* Not in incident.json, which is attached itself: it would change with each time that it is. */
#define MEMORY_FILE ".attached.json"
#define MEMORY_MAX (16 * MIB)
#define AGAIN_MIN_USEC USEC_PER_SEC
#define AGAIN_MAX_USEC USEC_PER_MINUTE
/* ---- what a unit has ---- */

static IncidentFile file_of(const char *name, const struct stat *st) {
        IncidentFile f = { .bytes = (uint64_t)st->st_size,
                           .inode = (uint64_t)st->st_ino,
                           .mtime_nsec =
                                   (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec };
        (void)snprintf(f.name, sizeof f.name, "%s", name);
        return f;
}

/* Files are replaced, not written to. */
static bool is_same_file(const IncidentFile *a, const IncidentFile *b) {
        return strcmp(a->name, b->name) == 0 && a->bytes == b->bytes && a->inode == b->inode &&
               a->mtime_nsec == b->mtime_nsec;
}

static bool has(const IncidentUnit *u, const IncidentFile *f) {
        for (size_t k = 0; k < u->n_attached; k++)
                if (is_same_file(&u->attached[k], f))
                        return true;
        return false;
}

/* @return 0, -ENOMEM: then it is attached again, which is as good */
static int remember(IncidentUnit *u, const IncidentFile *f) {
        for (size_t k = 0; k < u->n_attached; k++)
                if (strcmp(u->attached[k].name, f->name) == 0) {
                        u->attached[k] = *f;
                        return 0;
                }
        if (u->n_attached >= INCIDENT_FILES_MAX)
                return -ENOMEM;
        IncidentFile *more = reallocarray(u->attached, u->n_attached + 1, sizeof *more);
        if (!more)
                return -ENOMEM;
        u->attached = more;
        more[u->n_attached++] = *f;
        return 0;
}

/* ---- the memory ---- */

static void add_unit(StrBuf *b, const IncidentUnit *u) {
        json_out_object(b, NULL);
        json_out_path(b, "source", u->source);
        json_out_path(b, "path", u->path);
        json_out_array(b, "files");
        for (size_t k = 0; k < u->n_attached; k++) {
                json_out_object(b, NULL);
                json_out_path(b, "name", u->attached[k].name);
                json_out_u64(b, "bytes", u->attached[k].bytes);
                json_out_u64(b, "inode", u->attached[k].inode);
                json_out_i64(b, "mtime_nsec", u->attached[k].mtime_nsec);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        json_out_end_object(b);
}

static void save(Incident *x) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        if (!x->attaching.is_changed)
                return;
        json_out_object(&b, NULL);
        json_out_array(&b, "units");
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_gone)
                        add_unit(&b, &x->units[k]);
        json_out_end_array(&b);
        json_out_end_object(&b);
        int r = strbuf_error(&b);
        if (r == 0)
                r = incident_open_directory(x);
        if (r == 0)
                r = fs_write_file(x->dir_fd, MEMORY_FILE, b.text, b.n, 0600);
        x->attaching.is_changed = r < 0;
        if (r < 0)
                log_warning(r,
                            "incident %s: '%s/%s' cannot be written; after a restart a supplement "
                            "may bring again what is attached by now",
                            x->name, x->directory, MEMORY_FILE);
}

static void read_unit(Incident *x, const json_t *v) {
        _cleanup_free_ char *source = incident_unescaped(v, "source"),
                            *path = incident_unescaped(v, "path");
        const json_t *item;
        size_t k;
        IncidentUnit *u = source && path ? incident_find_unit(x, source, path) : NULL;
        if (!u)
                return;
        json_array_foreach(json_object_get(v, "files"), k, item) {
                _cleanup_free_ char *name = incident_unescaped(item, "name");
                IncidentFile f = {
                        .bytes = (uint64_t)json_integer_value(json_object_get(item, "bytes")),
                        .inode = (uint64_t)json_integer_value(json_object_get(item, "inode")),
                        .mtime_nsec = json_integer_value(json_object_get(item, "mtime_nsec"))
                };
                if (!name || strlen(name) >= sizeof f.name)
                        continue;
                strcpy(f.name, name);
                (void)remember(u, &f); /* then it is attached again */
        }
}

int incident_read_attached(Incident *x) {
        _cleanup_free_ char *text = NULL;
        size_t n, k;
        int r = fs_read_file(x->dir_fd, MEMORY_FILE, MEMORY_MAX, &text, &n);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        json_t *v = json_loadb(text, n, 0, NULL);
        const json_t *unit;
        json_array_foreach(json_object_get(v, "units"), k, unit) read_unit(x, unit);
        json_decref(v);
        return 0;
}

/* ---- attaching, file by file ---- */

bool incident_is_attaching(const Incident *x) {
        return x->attaching.job || x->attaching.is_stuck;
}

static void rest_timer(Incident *x) {
        if (x->attaching.timer)
                (void)sd_event_source_set_enabled(x->attaching.timer,
                                                  SD_EVENT_OFF); /* fails only in another process */
}

static void finish(Incident *x) {
        IncidentAttaching *a = &x->attaching;
        if (a->is_stuck)
                log_notice("incident %s: what could not be attached to its dumps is attached now",
                           x->name);
        a->is_stuck = false;
        a->wait_usec = 0;
        rest_timer(x);
        save(x);
        if (x->state == INCIDENT_ENDED)
                incident_write(x); /* that it is over */
        if (x->state >= INCIDENT_RESTING)
                incident_report_pending(x, false);
        incident_close_descriptors(x);
}

static int on_attach_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        incident_attach_all(userdata);
        return 0;
}

/* The remedy. */
static const char *remedy_of(int error) {
        return error == -EDQUOT
                       ? "what is attached to all dumps that wait has reached its bound (512 MiB): "
                         "deliver or cancel some; or the disk quota of the state directory is used "
                         "up: raise it"
               : error == -ENOSPC ? "free space on the state directory's disk"
               : error == -EIO || error == -EROFS
                       ? "see whether the state directory's disk is sound and may be written to"
                       : "the agent is short of memory or of open files";
}

/* The dumps do not wait for it: what is attached later follows in a supplement. */
static void get_stuck(Incident *x, int error) {
        IncidentAttaching *a = &x->attaching;
        if (!a->is_stuck)
                log_warning(error,
                            "incident %s: '%s' cannot be attached to its dumps; it stays in '%s' "
                            "and is tried again; %s",
                            x->name, a->file.name[0] ? a->file.name : "what there is", x->directory,
                            remedy_of(error));
        a->is_stuck = true;
        a->wait_usec = MAX(2 * a->wait_usec, AGAIN_MIN_USEC);
        a->wait_usec = MIN(a->wait_usec, AGAIN_MAX_USEC);
        save(x);
        if (timer_arm(&a->timer, &(TimerOptions){ .event = x->owner->context.event,
                                                  .usec = a->wait_usec,
                                                  .handler = on_attach_retry,
                                                  .userdata = x }) < 0)
                log_warning(0, "incident %s: it is tried again after the next start", x->name);
        if (x->state >= INCIDENT_RESTING)
                incident_report_pending(x, false);
        incident_close_descriptors(x);
}

/* Errors that pass, or that an operator can fix. */
static bool is_passing(int error) {
        return error == -ENOSPC || error == -EDQUOT || error == -EIO || error == -EROFS ||
               error == -ENOMEM || error == -EMFILE || error == -ENFILE || error == -EAGAIN;
}

/* @return 0, or what has the round end */
static int handle_result(Incident *x, IncidentUnit *u, int result) {
        const IncidentsContext *c = &x->owner->context;
        if (is_passing(result))
                return result;
        int r = remember(u, &x->attaching.file); /* what is refused is not tried again either */
        x->attaching.is_changed = true;
        if (result < 0)
                log_warning(result, "incident %s: '%s' cannot be attached to '%s'", x->name,
                            x->attaching.file.name, u->path);
        else if (!u->is_gone)
                c->on_attached(u->source, u->path, c->userdata);
        return r;
}

/* @param n  of the results: one a unit, or one for all */
static void handle_results(Incident *x, const int *results, size_t n) {
        IncidentAttaching *a = &x->attaching;
        int stuck = 0;
        for (size_t k = 0; k < a->n_units; k++) {
                int r = handle_result(x, &x->units[a->units[k]], results[MIN(k, n - 1)]);
                stuck = stuck ? stuck : r;
        }
        if (stuck)
                get_stuck(x, stuck);
        else
                attach_next(x);
}

static void on_done(const int *results, void *userdata) {
        Incident *x = userdata;
        x->attaching.job = NULL;
        handle_results(x, results, x->attaching.n_units);
}

/* A unit that an earlier incident was about has its files, and keeps them. */
static bool has_earlier(const Incident *x, const IncidentUnit *u) {
        LIST_FOREACH (l, &x->owner->incidents) {
                Incident *other = CONTAINER_OF(l, Incident, link);
                if (other == x)
                        return false;
                if (incident_find_unit(other, u->source, u->path))
                        return true;
        }
        return false;
}

typedef char OwnName[INCIDENT_NAME_SIZE + 256];

static int submit(Incident *x, int fd) {
        IncidentAttaching *a = &x->attaching;
        AttachmentPlace places[INCIDENT_UNITS_MAX];
        OwnName own;
        (void)snprintf(own, sizeof own, "%s-%s", x->name, a->file.name);
        for (size_t k = 0; k < a->n_units; k++) {
                const IncidentUnit *u = &x->units[a->units[k]];
                places[k] = (AttachmentPlace){ u->source, u->path,
                                               has_earlier(x, u) ? own : a->file.name };
        }
        return attachments_submit(x->owner->context.attachments,
                                  &(AttachmentRequest){ .fd = fd,
                                                        .places = places,
                                                        .n_places = a->n_units,
                                                        .on_done = on_done,
                                                        .userdata = x },
                                  &a->job);
}

static size_t units_without(const Incident *x, const IncidentFile *f,
                            size_t units[static INCIDENT_UNITS_MAX]) {
        size_t n = 0;
        for (size_t k = 0; k < x->n_units && n < INCIDENT_UNITS_MAX; k++)
                if (!x->units[k].is_gone && !has(&x->units[k], f))
                        units[n++] = k;
        return n;
}

/* @return fd of that file, if some unit does not have it; -ENOENT: all do, or it has gone, or is
 * none of ours; -errno */
static int open_file(Incident *x, const char *name) {
        IncidentAttaching *a = &x->attaching;
        struct stat st;
        if (fstatat(x->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -ENOENT;
        a->file = file_of(name, &st);
        a->n_units = units_without(x, &a->file, a->units);
        int fd = a->n_units > 0 ? fs_open_regular(x->dir_fd, name, &st) : -ENOENT;
        if (fd >= 0)
                a->file = file_of(name, &st); /* as it is taken */
        return fd == -EBADF ? -ENOENT : fd;
}

/* @return fd of the next file that some unit does not have; -ENOENT: there is none; -errno: that
 * cannot be decided now */
static int open_next(Incident *x) {
        _cleanup_closedir_ DIR *d = NULL;
        int fd = -ENOENT, r = incident_open_directory(x);
        if (r == 0)
                r = fs_opendir_at(x->dir_fd, ".", &d);
        if (r < 0)
                return r;
        for (unsigned n = 0; n < INCIDENT_FILES_MAX && fd == -ENOENT; n++) {
                errno = 0;
                const struct dirent *e = readdir(d);
                if (!e)
                        return errno > 0 ? -errno : -ENOENT;
                if (e->d_name[0] != '.' &&
                    strcmp(e->d_name, SNAPSHOT_PUBLIC_FILE) != 0) /* is part of snapshot.json */
                        fd = open_file(x, e->d_name);
        }
        return fd;
}

/* @return 0, -ENOENT: all have all; -errno */
static int attach_one(Incident *x) {
        x->attaching.file.name[0] = '\0';
        x->attaching.n_units = 0;
        _cleanup_close_ int fd = open_next(x);
        return fd < 0 ? fd : submit(x, fd);
}

static void attach_next(Incident *x) {
        int r = attach_one(x);
        if (r == -ENOENT)
                finish(x);
        else if (r < 0 && (is_passing(r) ||
                           x->attaching.n_units == 0)) /* it, or a file in it, could not be read */
                get_stuck(x, r);
        else if (r < 0)
                handle_results(x, &r, 1);
}

void incident_attach_all(Incident *x) {
        if (!x->attaching.job) /* else the next file follows when that has ended */
                attach_next(x);
}

static void incident_attach_done(Incident *x) {
        attachment_job_forget(x->attaching.job);
        x->attaching.job = NULL;
        x->attaching.timer = sd_event_source_disable_unref(x->attaching.timer);
        if (x->directory)
                save(x); /* what came back, though the round is not over */
}

/* ---- notes, lines of the kernel log and requests become incidents ---- */

#define GATHER_USEC                                                                                \
        (50 * USEC_PER_MSEC)          /* hooks of one failure come at once: one request for all */
#define FOUND_USEC (2 * USEC_PER_SEC) /* the source has seen by then what was moved outside */
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
        incident_unwatch_exits(x);
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

int incident_text_add(IncidentTexts *texts, size_t max, const char *text) {
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
        log_warning(0, "no snapshot of %s: %s", trigger, why);
}

/* The clock may have gone back, and several begin within a second: a name that exists is other
 * evidence. */
static Incident *make_one(Incidents *i, const char *trigger, int *ret_r) {
        char stamp[CLOCK_ISO_SIZE], name[INCIDENT_NAME_SIZE];
        *ret_r = -EEXIST;
        for (unsigned tries = 0; *ret_r == -EEXIST && tries < 4 * INCIDENT_DIRECTORIES_MAX;
             tries++) {
                (void)snprintf(name, sizeof name, "%s-%u",
                               clock_format_compact(stamp, incidents_realtime_usec(i), 'T'),
                               ++i->last_number);
                Incident *x = incident_new(i, name);
                *ret_r = -ENOMEM;
                if (!x)
                        return NULL;
                x->begun_usec = incidents_realtime_usec(i);
                x->begun_boot_usec = incidents_boot_usec(i);
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
        *ret_why = "no space for one more: what was collected before is not delivered yet";
        if (!incidents_free_space(i))
                return NULL;
        *ret_why = "its directory could not be made";
        int r = 0;
        Incident *x = make_one(i, trigger, &r);
        if (x) {
                x->cause = cause;
                incident_changed(x); /* it is written soon */
                r = incident_start(x, cause == INCIDENT_REQUESTED ? 0 : GATHER_USEC);
        }
        if (r < 0) {
                log_error(r, "cannot begin a snapshot in '%s'", i->snapshots);
                if (x)
                        incident_remove(x);
                return NULL;
        }
        i->young = x;
        i->n_started++;
        incident_rules_begun(&i->rules, cause, incidents_boot_usec(i));
        log_notice("incident %s: %s; taking a snapshot", x->name, trigger);
        return x;
}

static bool has_snapshot_underway(const Incident *x) {
        return x && (x->state == INCIDENT_GATHERING || x->state == INCIDENT_SNAPSHOT);
}

static Incident *incidents_start_or_join(Incidents *i, IncidentCause cause, const char *trigger,
                                         const char **ret_why) {
        IncidentVerdict v = incident_decide(&i->rules, cause, has_snapshot_underway(i->young),
                                            incidents_boot_usec(i));
        if (v == INCIDENT_JOIN && i->young) {
                i->n_joined++;
                incident_changed(i->young);
                return i->young;
        }
        *ret_why = incident_verdict_text(v);
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

/* The runtime's log, where it is a file. Colons separate nothing here: the value is one place. @see
 * reference, 1.2 */
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
                (void)incident_text_add(&x->jobs, COLLECT_PROCESSES_MAX,
                                        job.document); /* it names a rank; no more than that */
        stored_job_done(&job);
}

static int parse_pid(const char *s) {
        uint64_t v = 0;
        for (; s && *s >= '0' && *s <= '9' && v < 1 << 22; s++)
                v = 10 * v + (uint64_t)(*s - '0');
        return s && !*s && v < 1 << 22 ? (int)v : 0;
}

/* @return as it is known by now; pid 0 and no question: not known */
static IncidentProcess process_of(const NoteView *v) {
        IncidentProcess p = { .pid = MAX(v->pid, 0), .start_ticks = v->start_ticks };
        int inner = p.pid > 0 ? 0 : parse_pid(v->note->pid);
        (void)snprintf(p.note, sizeof p.note, "%s", v->note->id);
        (void)snprintf(p.container, sizeof p.container, "%s", v->container ? v->container : "");
        if (v->hook_pid > 0 && inner > 0)
                p.question = (ProbePidQuery){ .hook_pid = v->hook_pid,
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
        Incident *x = i->config->snapshot.enabled ? incidents_start_or_join(i, cause, trigger, &why)
                                                  : NULL;
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
        int r = incident_text_add(&x->notes, INCIDENT_NOTES_MAX, v->note->id);
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

/* ---- requests ---- */

int incidents_request(Incidents *i, char ret_name[INCIDENT_NAME_SIZE], const char **ret_why) {
        if (!i->config->snapshot.enabled)
                return -EPERM;
        if (has_snapshot_underway(i->young))
                return -EBUSY;
        const Incident *x =
                incidents_start_or_join(i, INCIDENT_REQUESTED, "an operator's question", ret_why);
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

void incidents_stats(const Incidents *i, IncidentsStats *ret) {
        *ret = (IncidentsStats){ .n_started = i->n_started,
                                 .n_joined = i->n_joined,
                                 .n_dropped = i->n_dropped,
                                 .n_kept = i->n_incidents };
}

/* With a dump there is no more to wait for once it rests; without, it is still to be shipped. */
static bool is_underway(const Incident *x, uint64_t now_usec) {
        switch (x->state) {
        case INCIDENT_GATHERING:
        case INCIDENT_SNAPSHOT:
        case INCIDENT_WAITING:
        case INCIDENT_RECHECKING:
                return true;
        case INCIDENT_RESTING:
                return x->attaching.job || (x->n_units == 0 && x->cause != INCIDENT_REQUESTED);
        case INCIDENT_ENDED:
                return x->attaching.job || (x->is_own_bundle && x->ended_boot_usec > 0 &&
                                            now_usec - x->ended_boot_usec < FOUND_USEC);
        case N_INCIDENT_STATES:
                break;
        }
        return false;
}

size_t incidents_n_underway(const Incidents *i) {
        uint64_t now = incidents_boot_usec(i);
        size_t n = 0;
        LIST_FOREACH (l, &i->incidents)
                n += is_underway(CONTAINER_OF(l, Incident, link), now);
        return n;
}

void incidents_on_delivered(Incidents *i, const char *unit_path) {
        LIST_FOREACH_SAFE (l, &i->incidents) {
                Incident *x = CONTAINER_OF(l, Incident, link);
                if (x->is_own_bundle && strcmp(x->directory, unit_path) == 0)
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
                        incident_report_pending(x, true);
        }
}

/* ---- a unit that was found later ---- */

void incidents_add_unit_of_note(Incidents *i, const IncidentUnitOfNote *u) {
        const IncidentsContext *c = &i->context;
        LIST_FOREACH (l, &i->incidents) {
                Incident *x = CONTAINER_OF(l, Incident, link);
                if (x->is_own_bundle ||
                    !has_text(&x->notes, u->note)) /* outside: it is shipped for itself */
                        continue;
                if (incident_add_unit(x, &(IncidentUnit){ .source = (char *)u->source, /* copied */
                                                          .path = (char *)u->unit_path,
                                                          .uid = u->uid,
                                                          .is_requested = true }) != 0)
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

/* ---- the rules: which events begin an incident, join one, or are refused ---- */

static uint64_t last_begun(const IncidentRules *r) {
        return r->begun_usec[(r->next + INCIDENT_HOURLY_MAX - 1) % INCIDENT_HOURLY_MAX];
}

IncidentVerdict incident_decide(const IncidentRules *r, IncidentCause cause,
                                bool has_snapshot_underway, uint64_t now_usec) {
        uint64_t age = r->n ? now_usec - last_begun(r) : USEC_INFINITY;
        /* What a stranger began must not keep a failure from a snapshot of its own. */
        uint64_t young = cause == INCIDENT_NOTE && r->last_cause == INCIDENT_STRANGER
                                 ? INCIDENT_APART_USEC
                                 : INCIDENT_YOUNG_USEC;
        if (age < young && (cause != INCIDENT_REQUESTED || has_snapshot_underway))
                return INCIDENT_JOIN;
        if (age < INCIDENT_APART_USEC)
                return INCIDENT_TOO_SOON;
        /* The ring is full, and its oldest is the one that would be written over. */
        if (r->n == INCIDENT_HOURLY_MAX && now_usec - r->begun_usec[r->next] < USEC_PER_HOUR)
                return INCIDENT_TOO_MANY;
        if (cause == INCIDENT_STRANGER && r->n_strangers == INCIDENT_STRANGERS_HOURLY_MAX &&
            now_usec - r->strangers_usec[r->next_stranger] < USEC_PER_HOUR)
                return INCIDENT_TOO_MANY_STRANGERS;
        return INCIDENT_BEGIN;
}

void incident_rules_begun(IncidentRules *r, IncidentCause cause, uint64_t now_usec) {
        r->last_cause = cause;
        r->begun_usec[r->next] = now_usec;
        r->next = (r->next + 1) % INCIDENT_HOURLY_MAX;
        r->n = MIN(r->n + 1, (unsigned)INCIDENT_HOURLY_MAX);
        if (cause != INCIDENT_STRANGER)
                return;
        r->strangers_usec[r->next_stranger] = now_usec;
        r->next_stranger = (r->next_stranger + 1) % INCIDENT_STRANGERS_HOURLY_MAX;
        r->n_strangers = MIN(r->n_strangers + 1, (unsigned)INCIDENT_STRANGERS_HOURLY_MAX);
}

const char *incident_verdict_text(IncidentVerdict v) {
        return v == INCIDENT_TOO_SOON ? "the last snapshot was less than 10 seconds ago"
               : v == INCIDENT_TOO_MANY
                       ? "there were 60 snapshots within an hour, which is the limit"
               : v == INCIDENT_TOO_MANY_STRANGERS ? "there were 6 snapshots within an hour for "
                                                    "notes that name no dump of a source, "
                                                    "which is the limit"
                                                  : NULL;
}
