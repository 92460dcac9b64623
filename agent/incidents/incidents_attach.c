/* What lies in an incident's directory goes to the dumps that it is about, file by file, off the loop. What a full disk did not let through is tried again; what
 * was attached is remembered beside it, so that no supplement brings it twice. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/incidents/incidents_private.h"
#include "collectors/runner/supervise.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

/* Not in incident.json, which is attached itself: it would change with each time that it is. */
#define MEMORY_FILE ".attached.json"
#define MEMORY_MAX (16 * MIB)

#define AGAIN_MIN_USEC USEC_PER_SEC
#define AGAIN_MAX_USEC USEC_PER_MINUTE

static void attach_next(Incident *x);

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

static void put_unit(StrBuf *b, const IncidentUnit *u) {
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
                        put_unit(&b, &x->units[k]);
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
                (void)remember(u, &f); /* as said there */
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

/* ---- a round ---- */

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
                incident_tell_pending(x, false);
        incident_close_descriptors(x);
}

static int on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s;
        (void)usec;
        incident_attach_all(userdata);
        return 0;
}

/* What somebody can do about it. */
static const char *remedy_of(int error) {
        return error == -EDQUOT
                       ? "what is attached to all dumps that wait has reached its bound (512 MiB): "
                         "deliver or cancel some; or the disk quota of the state directory is used "
                         "up: raise it"
               : error == -ENOSPC ? "make room on the state directory's disk"
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
        if (timer_arm(&a->timer, &(TimerOrder){ .event = x->owner->context.event,
                                                .usec = a->wait_usec,
                                                .handler = on_again,
                                                .userdata = x }) < 0)
                log_warning(0, "incident %s: it is tried again after the next start", x->name);
        if (x->state >= INCIDENT_RESTING)
                incident_tell_pending(x, false);
        incident_close_descriptors(x);
}

/* What comes right by itself, or by somebody who makes room. */
static bool is_passing(int error) {
        return error == -ENOSPC || error == -EDQUOT || error == -EIO || error == -EROFS ||
               error == -ENOMEM || error == -EMFILE || error == -ENFILE || error == -EAGAIN;
}

/* @return 0, or what has the round end */
static int take_result(Incident *x, IncidentUnit *u, int result) {
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
static void take_results(Incident *x, const int *results, size_t n) {
        IncidentAttaching *a = &x->attaching;
        int stuck = 0;
        for (size_t k = 0; k < a->n_units; k++) {
                int r = take_result(x, &x->units[a->units[k]], results[MIN(k, n - 1)]);
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
        take_results(x, results, x->attaching.n_units);
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
                                  &(AttachmentOrder){ .fd = fd,
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

/* @return fd of that file, if some unit does not have it; -ENOENT: all do, or it has gone, or is none of ours; -errno */
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

/* @return fd of the next file that some unit does not have; -ENOENT: there is none; -errno: nobody can tell now */
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
                take_results(x, &r, 1);
}

void incident_attach_all(Incident *x) {
        if (!x->attaching.job) /* else it looks again when that has come back */
                attach_next(x);
}

void incident_attach_done(Incident *x) {
        attachment_job_forget(x->attaching.job);
        x->attaching.job = NULL;
        x->attaching.timer = sd_event_source_disable_unref(x->attaching.timer);
        if (x->directory)
                save(x); /* what came back, though the round is not over */
}
