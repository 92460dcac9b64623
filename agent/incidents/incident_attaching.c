/* Brings the files of an incident to its dumps.
 *
 * Each file of the incident's directory is attached to each of its units (agent/hooknotes'
 * attachments), file by file, in a worker. What was attached is remembered in `.attached.json`
 * beside the files, so that no supplement brings a file twice. It is not in `incident.json`, which
 * is attached itself and would change each time that it is. An error that passes, or that an
 * operator can fix, is tried again with a growing pause; the dumps do not wait for that, since what
 * comes later follows in a supplement. */
#include "agent/incidents/incident_attaching.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/incidents/incident_directory.h"
#include "collectors/snapshot.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_in.h"
#include "lib/base/json_out.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"

#define MEMORY_FILE ".attached.json"
#define MEMORY_MAX (16 * MIB)
#define RETRY_MIN_USEC USEC_PER_SEC
#define RETRY_MAX_USEC USEC_PER_MINUTE

/* ---- what a unit has ---- */

static IncidentFile file_of(const char *name, const struct stat *st) {
        IncidentFile f = { .bytes = (uint64_t)st->st_size,
                           .inode = (uint64_t)st->st_ino,
                           .mtime_nsec =
                                   (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec };
        (void)snprintf(f.name, sizeof f.name, "%s", name);
        return f;
}

/* The supervisor replaces files and never writes to one again. */
static bool is_same_file(const IncidentFile *a, const IncidentFile *b) {
        return strcmp(a->name, b->name) == 0 && a->bytes == b->bytes && a->inode == b->inode &&
               a->mtime_nsec == b->mtime_nsec;
}

static bool has_file(const IncidentUnit *u, const IncidentFile *f) {
        for (size_t k = 0; k < u->n_attached; k++)
                if (is_same_file(&u->attached[k], f))
                        return true;
        return false;
}

/* @return 0, -ENOMEM: the file is attached once more, which does no harm */
static int remember(IncidentUnit *u, const IncidentFile *f) {
        for (size_t k = 0; k < u->n_attached; k++)
                if (strcmp(u->attached[k].name, f->name) == 0) {
                        u->attached[k] = *f;
                        return 0;
                }
        if (u->n_attached >= INCIDENT_FILES_MAX)
                return -ENOMEM;
        if (array_grow(&u->attached, u->n_attached, sizeof *u->attached) < 0)
                return -ENOMEM;
        u->attached[u->n_attached++] = *f;
        return 0;
}

/* ---- .attached.json ---- */

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

static void write_attached(Incident *x) {
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
                r = incident_directory_open(x);
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
        _cleanup_free_ char *source = json_in_path(v, "source"), *path = json_in_path(v, "path");
        const json_t *item;
        size_t k;
        IncidentUnit *u = source && path ? incident_find_unit(x, source, path) : NULL;
        if (!u)
                return;
        json_array_foreach(json_object_get(v, "files"), k, item) {
                _cleanup_free_ char *name = json_in_path(item, "name");
                IncidentFile f = { .bytes = json_in_u64(item, "bytes"),
                                   .inode = json_in_u64(item, "inode"),
                                   .mtime_nsec = (int64_t)json_in_u64(item, "mtime_nsec") };
                if (!name || strlen(name) >= sizeof f.name)
                        continue;
                strcpy(f.name, name);
                (void)remember(u, &f); /* else the file is attached once more */
        }
}

int incident_attaching_read_memory(Incident *x) {
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

/* ---- file by file ---- */

static void attach_next(Incident *x);

static void finish(Incident *x) {
        IncidentAttaching *a = &x->attaching;
        if (a->is_stuck)
                log_notice("incident %s: what could not be attached to its dumps is attached now",
                           x->name);
        a->is_stuck = false;
        a->wait_usec = 0;
        timer_disarm(a->timer);
        write_attached(x);
        if (x->state == INCIDENT_ENDED)
                incident_directory_write(x); /* that it has ended */
        if (x->state >= INCIDENT_RESTING)
                incident_report_pending(x, false);
        incident_directory_close(x);
}

void incident_attaching_start(Incident *x) {
        if (!x->attaching.job) /* else on_done() attaches the next file */
                attach_next(x);
}

static int on_attach_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        incident_attaching_start(userdata);
        return 0;
}

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

/* Arms the next try. The dumps do not wait for it. */
static void get_stuck(Incident *x, int error) {
        IncidentAttaching *a = &x->attaching;
        if (!a->is_stuck)
                log_warning(error,
                            "incident %s: '%s' cannot be attached to its dumps; it stays in '%s' "
                            "and is tried again; %s",
                            x->name, a->file.name[0] ? a->file.name : "what there is", x->directory,
                            remedy_of(error));
        a->is_stuck = true;
        a->wait_usec = MAX(2 * a->wait_usec, RETRY_MIN_USEC);
        a->wait_usec = MIN(a->wait_usec, RETRY_MAX_USEC);
        write_attached(x);
        if (timer_arm(&a->timer, &(TimerOptions){ .event = x->owner->context.event,
                                                  .usec = a->wait_usec,
                                                  .handler = on_attach_retry,
                                                  .userdata = x }) < 0)
                log_warning(0, "incident %s: it is tried again after the next start", x->name);
        if (x->state >= INCIDENT_RESTING)
                incident_report_pending(x, false);
        incident_directory_close(x);
}

/* Errors that pass, or that an operator can fix. */
static bool is_passing(int error) {
        return error == -ENOSPC || error == -EDQUOT || error == -EIO || error == -EROFS ||
               error == -ENOMEM || error == -EMFILE || error == -ENFILE || error == -EAGAIN;
}

/* @return 0; -errno: this round ends with it */
static int handle_result(Incident *x, IncidentUnit *u, int result) {
        const IncidentsContext *c = &x->owner->context;
        if (is_passing(result))
                return result;
        int r = remember(u, &x->attaching.file); /* a file that is refused is not tried again */
        x->attaching.is_changed = true;
        if (result < 0)
                log_warning(result, "incident %s: '%s' cannot be attached to '%s'", x->name,
                            x->attaching.file.name, u->path);
        else if (!u->is_gone)
                c->on_attached(u->source, u->path, c->userdata);
        return r;
}

/* @param n  of results: one for each unit, or one for all units */
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

/* @return whether an earlier incident has attached files to the unit, whose names are taken then */
static bool has_earlier(const Incident *x, const IncidentUnit *u) {
        LIST_FOREACH_ITEM (Incident, other, link, &x->owner->incidents) {
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
                if (!x->units[k].is_gone && !has_file(&x->units[k], f))
                        units[n++] = k;
        return n;
}

/* @return an fd of the file, if a unit does not have it; -ENOENT: all units have it, or it was
 * removed, or it is no regular file; -errno */
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
                a->file = file_of(name, &st); /* as it is attached */
        return fd == -EBADF ? -ENOENT : fd;
}

/* @return an fd of the next file that a unit does not have; -ENOENT: there is none; -errno: the
 * directory cannot be read now */
static int open_next(Incident *x) {
        _cleanup_closedir_ DIR *d = NULL;
        int fd = -ENOENT, r = incident_directory_open(x);
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
                    strcmp(e->d_name, SNAPSHOT_PUBLIC_FILE) != 0) /* snapshot.json contains it */
                        fd = open_file(x, e->d_name);
        }
        return fd;
}

/* @return 0, -ENOENT: all units have all files; -errno */
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
        else if (r < 0 &&
                 (is_passing(r) || x->attaching.n_units == 0)) /* the directory could not be read */
                get_stuck(x, r);
        else if (r < 0)
                handle_results(x, &r, 1);
}

void incident_attaching_stop(Incident *x) {
        attachment_job_forget(x->attaching.job);
        x->attaching.job = NULL;
        x->attaching.timer = sd_event_source_disable_unref(x->attaching.timer);
        if (x->directory)
                write_attached(x); /* the results so far */
}
