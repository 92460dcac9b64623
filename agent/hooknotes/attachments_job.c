/* Attaching off the loop. A worker writes one copy, and links it to its places; the loop goes on giving and letting go meanwhile. What keeps the two apart:
 * the worker makes nothing but whole files under their names, and while a job is out the loop removes no directory that it is to put one into. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/hooknotes/attachments_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"

#define COMING                                                                                     \
        ".coming" /* in the directory of all attachments: the copy, of the one job that runs */
#define LINKING ".linking" /* in a unit's: it gets its name at once */

typedef struct Place {
        char *source, *unit_path, *name;
        bool is_unwanted; /* what it brings is let go of */
        ino_t inode;      /* of what it has brought; 0 = nothing */
} Place;

struct AttachmentJob {
        WorkJob job;
        ListLink link;
        Attachments *owner; /* the loop's */
        void (*on_done)(const int *results, void *userdata);
        void *userdata;
        int fd; /* owned */
        char *path;
        Place *places;
        int *results;
        size_t n_places;
        uint64_t submitted_usec; /* CLOCK_REALTIME, as the times of files */
        uint64_t bytes;          /* of the file */
        uint64_t max_bytes_all, more_bytes;
        bool is_to_count, has_counted;
        uint64_t counted_bytes; /* of all, where it was asked and could be done */
};

static AttachmentJob *job_free(AttachmentJob *j) {
        if (!j)
                return NULL;
        if (j->fd >= 0)
                (void)close(j->fd); /* only read from */
        for (size_t k = 0; j->places && k < j->n_places; k++) {
                free(j->places[k].source);
                free(j->places[k].unit_path);
                free(j->places[k].name);
        }
        free(j->places);
        free(j->results);
        free(j->path);
        free(j);
        return NULL;
}

DEFINE_CLEANUP(AttachmentJob, job_free);

/* ---- the worker ---- */

/* Where links cannot be made there is a copy a unit. */
static int link_or_copy(AttachmentJob *j, int root, int unit) {
        if (unlinkat(unit, LINKING, 0) < 0 && errno != ENOENT) /* what a crash left */
                return -errno;
        if (linkat(root, COMING, unit, LINKING, 0) == 0)
                return 0;
        return errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == ENOENT
                       ? -errno
                       : attachments_write_copy(unit, LINKING, j->fd, j->bytes);
}

static int put_at(AttachmentJob *j, Place *p, int root) {
        struct stat st;
        _cleanup_close_ int unit = attachments_make_unit(j->path, p->source, p->unit_path);
        if (unit < 0)
                return unit;
        int r = attachments_check_unit(unit, p->name, j->bytes);
        if (r == 0)
                r = link_or_copy(j, root, unit);
        if (r == 0 && (fstatat(unit, LINKING, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
                       renameat(unit, LINKING, unit, p->name) < 0))
                r = -errno;
        else if (r == 0)
                p->inode = st.st_ino;
        if (r == 0)
                r = fs_sync_dir(unit);
        if (r < 0)
                (void)unlinkat(unit, LINKING, 0); /* else the next one does */
        return r;
}

static int count_all(AttachmentJob *j) {
        if (!j->is_to_count)
                return 0;
        int r = attachments_count_all(j->path, &j->counted_bytes);
        j->has_counted = r == 0;
        return r;
}

static bool has_room(const AttachmentJob *j, size_t n_places) {
        return !j->has_counted || j->counted_bytes + n_places * j->bytes <= j->max_bytes_all;
}

static void run(WorkJob *job) {
        AttachmentJob *j = CONTAINER_OF(job, AttachmentJob, job);
        _cleanup_close_ int root = attachments_make_root(j->path);
        int r = root < 0 ? root : count_all(j);
        if (r == 0)
                r = has_room(j, 1) ? attachments_write_copy(root, COMING, j->fd, j->bytes)
                                   : -EDQUOT;
        size_t n_put = 0;
        for (size_t k = 0; k < j->n_places; k++) {
                j->results[k] = r < 0                     ? r
                                : !has_room(j, n_put + 1) ? -EDQUOT
                                                          : put_at(j, &j->places[k], root);
                n_put += j->results[k] == 0;
        }
        if (root >= 0)
                (void)unlinkat(root, COMING, 0); /* else the next one does */
}

/* ---- the loop ---- */

static bool is_of(const Place *p, const char *source, const char *unit_path) {
        return strcmp(p->source, source) == 0 && strcmp(p->unit_path, unit_path) == 0;
}

bool attachments_is_busy(const Attachments *a, const char *source, const char *unit_path) {
        LIST_FOREACH (l, (ListLink *)&a->jobs) {
                const AttachmentJob *j = CONTAINER_OF(l, AttachmentJob, link);
                for (size_t k = 0; k < j->n_places; k++)
                        if (is_of(&j->places[k], source, unit_path))
                                return true;
        }
        return false;
}

void attachments_unwant(Attachments *a, const char *source, const char *unit_path,
                        uint64_t before_usec) {
        LIST_FOREACH (l, &a->jobs) {
                AttachmentJob *j = CONTAINER_OF(l, AttachmentJob, link);
                for (size_t k = 0; j->submitted_usec < before_usec && k < j->n_places; k++)
                        if (is_of(&j->places[k], source, unit_path))
                                j->places[k].is_unwanted = true;
        }
}

/* Unless a job after it has put another one under the name, for the unit that is there now. */
static void let_go(Attachments *a, const Place *p) {
        struct stat st;
        _cleanup_close_ int unit = attachments_open_unit(a, p->source, p->unit_path);
        if (unit >= 0 && fstatat(unit, p->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            st.st_ino == p->inode)
                (void)unlinkat(unit, p->name, 0); /* else a sweep finds it */
}

static void done(WorkJob *job) {
        _cleanup_(job_freep) AttachmentJob *j = CONTAINER_OF(job, AttachmentJob, job);
        Attachments *a = j->owner;
        list_remove(&j->link);
        if (j->has_counted) {
                a->bytes = j->counted_bytes + (a->more_bytes - j->more_bytes);
                a->is_counted = true;
        }
        for (size_t k = 0; k < j->n_places; k++) {
                const Place *p = &j->places[k];
                if (p->is_unwanted) {
                        let_go(a, p);
                        j->results[k] = 0;
                }
                (void)attachments_tidy(a, p->source, p->unit_path); /* else a sweep does */
        }
        if (j->on_done)
                j->on_done(j->results, j->userdata);
}

static int copy_places(AttachmentJob *j, const AttachmentOrder *o) {
        j->places = calloc(o->n_places, sizeof *j->places);
        j->results = calloc(o->n_places, sizeof *j->results);
        if (!j->places || !j->results)
                return -ENOMEM;
        j->n_places = o->n_places;
        for (size_t k = 0; k < o->n_places; k++) {
                Place *to = &j->places[k];
                *to = (Place){ .source = strdup(o->places[k].source),
                               .unit_path = strdup(o->places[k].unit_path),
                               .name = strdup(o->places[k].name) };
                if (!to->source || !to->unit_path || !to->name)
                        return -ENOMEM;
        }
        return 0;
}

static int check_order(const Attachments *a, const AttachmentOrder *o, struct stat *st) {
        if (!a->pool || o->n_places == 0 || o->n_places > ATTACHMENT_PLACES_MAX)
                return -EINVAL;
        for (size_t k = 0; k < o->n_places; k++)
                if (!attachment_name_is_valid(o->places[k].name))
                        return -EINVAL;
        if (fstat(o->fd, st) < 0)
                return -errno;
        return S_ISREG(st->st_mode) ? 0 : -EINVAL;
}

int attachments_submit(Attachments *a, const AttachmentOrder *o, AttachmentJob **ret) {
        struct stat st;
        int r = check_order(a, o, &st);
        if (r < 0)
                return r;
        _cleanup_(job_freep) AttachmentJob *j = calloc(1, sizeof *j);
        if (!j)
                return -ENOMEM;
        j->job = (WorkJob){ .run = run, .done = done };
        j->owner = a;
        j->on_done = o->on_done;
        j->userdata = o->userdata;
        j->fd = fcntl(o->fd, F_DUPFD_CLOEXEC, 3);
        if (j->fd < 0)
                return -errno;
        j->submitted_usec = clock_realtime_usec();
        j->path = strdup(a->path);
        j->bytes = (uint64_t)st.st_size;
        j->max_bytes_all = a->max_bytes_all;
        r = j->path ? copy_places(j, o) : -ENOMEM;
        if (r < 0)
                return r;
        uint64_t all = j->n_places *
                       j->bytes; /* a name that is replaced counts twice until it is counted anew */
        j->is_to_count = !a->is_counted || a->bytes + all > a->max_bytes_all;
        j->more_bytes = a->more_bytes;
        r = worker_pool_submit(a->pool, &j->job);
        if (r < 0)
                return r;
        attachments_add_bytes(a, all);
        list_append(&a->jobs, &j->link);
        *ret = TAKE_PTR(j);
        return 0;
}

void attachment_job_forget(AttachmentJob *j) {
        if (j)
                j->on_done = NULL;
}

int attachments_start(Attachments *a, sd_event *event) {
        return worker_pool_new(&a->pool, event, "attach", 1, WORKER_NORMAL);
}

void attachments_drop_jobs(Attachments *a) {
        a->pool = worker_pool_free(a->pool); /* waits for the one that runs */
        LIST_FOREACH_SAFE (l, &a->jobs) {
                AttachmentJob *j = CONTAINER_OF(l, AttachmentJob, link);
                list_remove(&j->link);
                (void)job_free(j);
        }
}
