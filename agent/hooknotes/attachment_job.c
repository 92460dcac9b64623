/* Jobs that attach a file to units: a worker writes one copy and links it to its places, while the
 * loop assigns and releases. The two do not conflict: the worker creates only complete files under
 * their names, and while a job is in the list the loop removes no directory that it writes to. A
 * unit that is released meanwhile, or is another one now, does not get the file: the loop removes
 * it when the job has ended. */
#include "agent/hooknotes/attachment_job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/hooknotes/attachment_directory.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"

#define COPY_BYTES (64 * KIB)

#define COMING ".coming" /* in the directory of all attachments: the copy of the job that runs */

#define LINKING ".linking" /* in a unit's: renamed at once */

typedef struct JobPlace {
        char *source, *unit_path, *name;
        bool is_unwanted; /* released meanwhile: what it attaches is removed */
        ino_t inode;      /* of what was attached; 0 = nothing */
} JobPlace;

struct AttachmentJob {
        WorkJob job;
        ListLink link;
        Attachments *owner; /* the loop's */
        void (*on_done)(const int *results, void *userdata);
        void *userdata;
        int fd; /* owned */
        char *path;
        JobPlace *places;
        int *results;
        size_t n_places;
        uint64_t submitted_usec; /* CLOCK_REALTIME, as the times of files */
        uint64_t bytes;          /* of the file */
        uint64_t max_bytes_all;
};

static AttachmentJob *attachment_job_free(AttachmentJob *j) {
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

DEFINE_CLEANUP(AttachmentJob, attachment_job_free);

/* ---- units of jobs ---- */

static bool is_of(const JobPlace *p, const char *source, const char *unit_path) {
        return strcmp(p->source, source) == 0 && strcmp(p->unit_path, unit_path) == 0;
}

bool attachments_are_coming(const Attachments *a, const char *source, const char *unit_path) {
        if (!a)
                return false;
        LIST_FOREACH_ITEM (const AttachmentJob, j, link, &a->jobs) {
                for (size_t k = 0; k < j->n_places; k++)
                        if (is_of(&j->places[k], source, unit_path))
                                return true;
        }
        return false;
}

void attachment_job_cancel(Attachments *a, const char *source, const char *unit_path,
                           uint64_t before_usec) {
        LIST_FOREACH_ITEM (AttachmentJob, j, link, &a->jobs) {
                for (size_t k = 0; j->submitted_usec < before_usec && k < j->n_places; k++)
                        if (is_of(&j->places[k], source, unit_path))
                                j->places[k].is_unwanted = true;
        }
}

static bool is_anything(int dir_fd, const char *name) {
        return attachment_is_file(dir_fd, name) || attachment_is_given(dir_fd, name) ||
               strcmp(name, ATTACHMENT_GIVING) == 0;
}

int attachment_job_tidy(const Attachments *a, const char *source, const char *unit_path) {
        char key[ATTACHMENT_KEY_SIZE];
        _cleanup_(attachment_names_done) AttachmentNames remaining = { .max = 1 };
        _cleanup_close_ int root = attachment_open_directory(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        _cleanup_close_ int unit =
                attachment_open_directory(root, attachment_unit_key(source, unit_path, key));
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        if (attachments_are_coming(a, source, unit_path))
                return 0; /* on_done tidies it */
        int r = attachment_directory_read(unit, is_anything, &remaining);
        if (r == 0 && remaining.n == 0)
                r = fs_remove_tree(root, key);
        return r;
}

/* ---- the worker ---- */

/* No more than it had when it was measured. */
static int copy_content(int to, int from, uint64_t bytes) {
        _cleanup_free_ char *buffer = malloc(COPY_BYTES);
        if (!buffer)
                return -ENOMEM;
        for (uint64_t at = 0; at < bytes;) {
                size_t n = (size_t)MIN(bytes - at, (uint64_t)COPY_BYTES);
                int r = fs_pread_all(from, buffer, n, at);
                if (r >= 0)
                        r = fs_write_all(to, buffer, n);
                if (r < 0)
                        return r;
                at += n;
        }
        return 0;
}

static int write_copy(int dir_fd, const char *name, int from, uint64_t bytes) {
        if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT) /* left over from a crash */
                return -errno;
        _cleanup_close_ int to =
                openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (to < 0)
                return -errno;
        int r = copy_content(to, from, bytes);
        if (r == 0 && fsync(to) < 0)
                r = -errno;
        return r;
}

static int link_copy(int root, int unit) {
        if (unlinkat(unit, LINKING, 0) < 0 && errno != ENOENT) /* left over from a crash */
                return -errno;
        return linkat(root, COMING, unit, LINKING, 0) < 0 ? -errno : 0;
}

static int attach_to(const AttachmentJob *j, JobPlace *p, int root) {
        struct stat st;
        _cleanup_close_ int unit = attachment_create_unit(j->path, p->source, p->unit_path);
        if (unit < 0)
                return unit;
        int r = attachment_check_unit(unit, p->name, j->bytes);
        if (r == 0)
                r = link_copy(root, unit);
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

static void run(WorkJob *job) {
        AttachmentJob *j = CONTAINER_OF(job, AttachmentJob, job);
        _cleanup_close_ int root = attachment_create_root(j->path);
        uint64_t used_bytes = 0;
        int r = root < 0 ? root : attachment_count_all(j->path, &used_bytes);
        if (r == 0)
                r = used_bytes + j->bytes <= j->max_bytes_all
                            ? write_copy(root, COMING, j->fd, j->bytes)
                            : -EDQUOT;
        for (size_t k = 0; k < j->n_places; k++) {
                j->results[k] = r < 0 ? r
                                : used_bytes + j->bytes > j->max_bytes_all
                                        ? -EDQUOT
                                        : attach_to(j, &j->places[k], root);
                used_bytes += j->results[k] == 0 ? j->bytes : 0;
        }
        if (root >= 0)
                (void)unlinkat(root, COMING, 0); /* else the next one does */
}

/* ---- the loop ---- */

/* Unless a job after it has put another one under the name, for the unit that is there now. */
static void remove_unwanted(Attachments *a, const JobPlace *p) {
        struct stat st;
        _cleanup_close_ int unit = attachment_open_unit(a->path, p->source, p->unit_path);
        if (unit >= 0 && fstatat(unit, p->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            st.st_ino == p->inode)
                (void)unlinkat(unit, p->name, 0); /* else a sweep finds it */
}

static void done(WorkJob *job) {
        _cleanup_(attachment_job_freep) AttachmentJob *j = CONTAINER_OF(job, AttachmentJob, job);
        Attachments *a = j->owner;
        list_remove(&j->link);
        for (size_t k = 0; k < j->n_places; k++) {
                const JobPlace *p = &j->places[k];
                if (p->is_unwanted) {
                        remove_unwanted(a, p);
                        j->results[k] = 0;
                }
                (void)attachment_job_tidy(a, p->source, p->unit_path); /* else a sweep does */
        }
        if (j->on_done)
                j->on_done(j->results, j->userdata);
}

static int copy_places(AttachmentJob *j, const AttachmentRequest *o) {
        j->places = calloc(o->n_places, sizeof *j->places);
        j->results = calloc(o->n_places, sizeof *j->results);
        if (!j->places || !j->results)
                return -ENOMEM;
        j->n_places = o->n_places;
        for (size_t k = 0; k < o->n_places; k++) {
                JobPlace *to = &j->places[k];
                *to = (JobPlace){ .source = strdup(o->places[k].source),
                                  .unit_path = strdup(o->places[k].unit_path),
                                  .name = strdup(o->places[k].name) };
                if (!to->source || !to->unit_path || !to->name)
                        return -ENOMEM;
        }
        return 0;
}

static int check_request(const AttachmentRequest *o, struct stat *st) {
        if (o->n_places == 0 || o->n_places > ATTACHMENT_PLACES_MAX)
                return -EINVAL;
        for (size_t k = 0; k < o->n_places; k++)
                if (!attachment_name_is_valid(o->places[k].name))
                        return -EINVAL;
        if (fstat(o->fd, st) < 0)
                return -errno;
        return S_ISREG(st->st_mode) ? 0 : -EINVAL;
}

int attachments_submit(Attachments *a, const AttachmentRequest *o, AttachmentJob **ret) {
        struct stat st;
        int r = check_request(o, &st);
        if (r < 0)
                return r;
        _cleanup_(attachment_job_freep) AttachmentJob *j = calloc(1, sizeof *j);
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
        r = worker_pool_submit(a->pool, &j->job);
        if (r < 0)
                return r;
        list_append(&a->jobs, &j->link);
        *ret = TAKE_PTR(j);
        return 0;
}

void attachment_job_forget(AttachmentJob *j) {
        if (j)
                j->on_done = NULL;
}

void attachment_job_free_all(Attachments *a) {
        LIST_FOREACH_ITEM_SAFE (AttachmentJob, j, link, &a->jobs) {
                list_remove(&j->link);
                (void)attachment_job_free(j);
        }
}
