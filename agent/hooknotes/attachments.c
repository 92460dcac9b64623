/* Attachments: quotas, copies, assignment to bundles, release. */
#include "agent/hooknotes/attachments.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/list.h"
#include "lib/base/path.h"
#include "lib/event/worker_pool.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

#define KEY_SIZE 17
#define GIVING ".giving"            /* is being assigned to a bundle: counts as waiting */
#define ATTACHMENTS_UNITS_MAX 65536 /* directories that are read */
struct Attachments {
        char *path;
        uint64_t max_bytes_all;
        WorkerPool *pool; /* one thread */
        ListLink jobs;    /* in the worker or waiting for it, oldest first */
};

#define GIVEN ".of-"        /* and the bundle's id: what is assigned to it */
#define WHOSE ".unit"       /* source, NUL, path */
#define WHOSE_MAX (8 * KIB) /* more than any name and path */
static bool is_valid_name(const char *name) {
        size_t n =
                strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
        return n > 0 && n <= ATTACHMENT_NAME_MAX && name[n] == '\0' && name[0] != '.';
}

/* ---- names in a directory ---- */

void attachment_names_done(AttachmentNames *names) {
        for (size_t i = 0; i < names->n; i++)
                free(names->items[i]);
        free(names->items);
        *names = (AttachmentNames){ 0 };
}

static int add_name(AttachmentNames *names, const char *name) {
        if (array_grow(&names->items, names->n, sizeof *names->items) < 0)
                return -ENOMEM;
        names->items[names->n] = strdup(name);
        return names->items[names->n++] ? 0 : -ENOMEM;
}

static int read_names(int dir_fd, bool (*wants)(int dir_fd, const char *name),
                      AttachmentNames *names) {
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *entry;
        int r = fs_opendir_at(dir_fd, ".", &dir);
        if (r < 0)
                return r;
        while (r == 0 && names->n < names->max && (errno = 0, entry = readdir(dir)))
                if (wants(dir_fd, entry->d_name))
                        r = add_name(names, entry->d_name);
        if (r == 0 && names->n < names->max && errno > 0)
                r = -errno;
        if (r == 0 && names->n > 0)
                qsort(names->items, names->n, sizeof *names->items, array_compare_strings);
        if (r < 0)
                attachment_names_done(names);
        return r;
}

static bool is_file(int dir_fd, const char *name) {
        struct stat st;
        return is_valid_name(name) && fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
               S_ISREG(st.st_mode);
}

static bool is_given(int dir_fd, const char *name) {
        (void)dir_fd; /* its name decides */
        return strncmp(name, GIVEN, strlen(GIVEN)) == 0 && bundle_id_is_valid(name + strlen(GIVEN));
}

static bool is_unit(int dir_fd, const char *name) {
        (void)dir_fd; /* its name decides */
        return strlen(name) == KEY_SIZE - 1 && strspn(name, "0123456789abcdef") == KEY_SIZE - 1;
}

int attachment_names(int dir_fd, AttachmentNames *ret) {
        *ret = (AttachmentNames){ .max = ATTACHMENTS_MAX };
        return read_names(dir_fd, is_file, ret);
}

/* ---- directories ---- */

static const char *unit_key(const char *source, const char *path, char buf[static KEY_SIZE]) {
        uint8_t digest[SHA256_SIZE];
        Sha256 s;
        sha256_init(&s);
        sha256_update(&s, source, strlen(source) + 1);
        sha256_update(&s, path, strlen(path));
        sha256_final(&s, digest);
        return digest_hex(digest, (KEY_SIZE - 1) / 2, buf);
}

static int open_dir(int dir_fd, const char *name) {
        int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* Creates it if it is missing, and makes its name durable. */
static int create_dir(int dir_fd, const char *name) {
        int fd = open_dir(dir_fd, name);
        if (fd != -ENOENT)
                return fd;
        if (mkdirat(dir_fd, name, 0700) < 0 && errno != EEXIST)
                return -errno;
        fd = open_dir(dir_fd, name);
        int r = fd < 0 ? fd : fs_sync_dir(dir_fd);
        if (r < 0 && fd >= 0)
                (void)close(fd); /* a directory */
        return r < 0 ? r : fd;
}

static int open_unit(const Attachments *a, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        _cleanup_close_ int root = a ? open_dir(AT_FDCWD, a->path) : -ENOENT;
        return root < 0 ? root : open_dir(root, unit_key(source, unit_path, key));
}

/* Records the unit before anything is in the directory, for the sweep. */
static int write_unit_file(int unit, const char *source, const char *unit_path) {
        struct stat st;
        if (fstatat(unit, WHOSE, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return 0;
        size_t n_source = strlen(source) + 1, n = n_source + strlen(unit_path);
        _cleanup_free_ char *text = malloc(n + 1);
        if (!text)
                return -ENOMEM;
        memcpy(text, source, n_source);
        strcpy(text + n_source, unit_path);
        return n > WHOSE_MAX ? -ENAMETOOLONG : fs_write_file(unit, WHOSE, text, n, 0600);
}

static int create_root(const char *path) {
        _cleanup_free_ char *parent = path_parent(path);
        _cleanup_close_ int state = parent ? open_dir(AT_FDCWD, parent) : -ENOMEM;
        return state < 0 ? state : create_dir(state, path_name(path));
}

static int create_unit(const char *path, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        _cleanup_close_ int root = create_root(path);
        if (root < 0)
                return root;
        _cleanup_close_ int unit = create_dir(root, unit_key(source, unit_path, key));
        if (unit < 0)
                return unit;
        int r = write_unit_file(unit, source, unit_path);
        return r < 0 ? r : TAKE_FD(unit);
}

/* ---- counting ---- */

static int count_waiting(int unit, const char *but, size_t *n, uint64_t *bytes) {
        _cleanup_(attachment_names_done) AttachmentNames names = { .max = ATTACHMENTS_MAX };
        int r = read_names(unit, is_file, &names);
        for (size_t i = 0; i < names.n; i++) {
                struct stat st;
                if ((but && strcmp(names.items[i], but) == 0) ||
                    fstatat(unit, names.items[i], &st, AT_SYMLINK_NOFOLLOW) < 0)
                        continue;
                (*n)++;
                *bytes += (uint64_t)st.st_size; /* ours: bounded when they were put there */
        }
        return r;
}

static int count_in(int unit, const char *name, size_t *n, uint64_t *bytes) {
        _cleanup_close_ int fd = open_dir(unit, name);
        if (fd < 0)
                return fd == -ENOENT ? 0 : fd;
        return count_waiting(fd, NULL, n, bytes);
}

/* ---- assignment to a bundle ---- */

size_t attachments_waiting(const Attachments *a, const char *source, const char *unit_path,
                           uint64_t *ret_bytes) {
        size_t n = 0;
        uint64_t bytes = 0;
        _cleanup_close_ int unit = open_unit(a, source, unit_path);
        if (unit >= 0) {
                (void)count_waiting(unit, NULL, &n, &bytes); /* 0 as in the header */
                (void)count_in(unit, GIVING, &n, &bytes);
        }
        if (ret_bytes)
                *ret_bytes = bytes;
        return n;
}

static bool has_in(int unit, const char *directory, const char *name) {
        _cleanup_close_ int fd = open_dir(unit, directory);
        return fd >= 0 && is_file(fd, name);
}

bool attachments_have(const Attachments *a, const char *source, const char *unit_path,
                      const char *name) {
        _cleanup_(attachment_names_done) AttachmentNames given = { .max = ATTACHMENTS_MAX };
        _cleanup_close_ int unit = open_unit(a, source, unit_path);
        if (unit < 0)
                return false;
        bool has = is_file(unit, name) || has_in(unit, GIVING, name);
        (void)read_names(unit, is_given, &given); /* none */
        for (size_t i = 0; !has && i < given.n; i++)
                has = has_in(unit, given.items[i], name);
        return has;
}

/* Moves what waits into one directory, and gives this its final name when all is in it: until then
 * nothing of it was shipped, and after a crash it may be another set. */
static int give(int unit, const char *given) {
        _cleanup_(attachment_names_done) AttachmentNames names = { .max = ATTACHMENTS_MAX };
        _cleanup_close_ int giving = create_dir(unit, GIVING);
        if (giving < 0)
                return giving;
        int r = read_names(unit, is_file, &names);
        for (size_t i = 0; r == 0 && i < names.n; i++)
                if (renameat(unit, names.items[i], giving, names.items[i]) < 0)
                        r = -errno;
        if (r == 0)
                r = fs_sync_dir(giving);
        if (r == 0 && renameat(unit, GIVING, unit, given) < 0)
                r = -errno;
        if (r == 0)
                r = fs_sync_dir(unit);
        return r < 0 ? r : TAKE_FD(giving);
}

typedef char GivenName[sizeof GIVEN + 256];

static int name_given(GivenName ret, const char *bundle_id) {
        if (!bundle_id_is_valid(bundle_id))
                return -EINVAL;
        (void)snprintf(ret, sizeof(GivenName), "%s%s", GIVEN, bundle_id);
        return 0;
}

int attachments_open_assigned(const Attachments *a, const char *source, const char *unit_path,
                              const char *bundle_id) {
        GivenName given;
        int r = name_given(given, bundle_id);
        if (r < 0)
                return r;
        _cleanup_close_ int unit = open_unit(a, source, unit_path);
        return unit < 0 ? unit : open_dir(unit, given);
}

int attachments_assign(const Attachments *a, const char *source, const char *unit_path,
                       const char *bundle_id) {
        GivenName given;
        int fd = attachments_open_assigned(a, source, unit_path, bundle_id);
        if (fd != -ENOENT || attachments_waiting(a, source, unit_path, NULL) == 0)
                return fd;
        _cleanup_close_ int unit = open_unit(a, source, unit_path);
        int r = unit < 0 ? unit : name_given(given, bundle_id);
        return r < 0 ? r : give(unit, given);
}

int attachments_return(int assigned_fd, const char *name) {
        _cleanup_close_ int unit = openat(assigned_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (unit < 0)
                return -errno;
        if (renameat2(assigned_fd, name, unit, name, RENAME_NOREPLACE) < 0 && errno != EEXIST)
                return -errno;
        int r = fs_sync_dir(unit);
        return r < 0 ? r : fs_sync_dir(assigned_fd);
}

/* ---- jobs ---- */

typedef struct Place {
        char *source, *unit_path, *name;
        bool is_unwanted; /* released meanwhile: what it attaches is removed */
        ino_t inode;      /* of what was attached; 0 = nothing */
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
        uint64_t max_bytes_all;
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

static bool is_of(const Place *p, const char *source, const char *unit_path) {
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

static void cancel_jobs(Attachments *a, const char *source, const char *unit_path,
                        uint64_t before_usec) {
        LIST_FOREACH_ITEM (AttachmentJob, j, link, &a->jobs) {
                for (size_t k = 0; j->submitted_usec < before_usec && k < j->n_places; k++)
                        if (is_of(&j->places[k], source, unit_path))
                                j->places[k].is_unwanted = true;
        }
}

/* ---- release ---- */

static uint64_t changed_usec(const struct stat *st) {
        return (uint64_t)MAX(st->st_mtim.tv_sec, (time_t)0) * USEC_PER_SEC +
               (uint64_t)st->st_mtim.tv_nsec / 1000;
}

int attachments_release(Attachments *a, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        cancel_jobs(a, source, unit_path, UINT64_MAX);
        _cleanup_close_ int root = open_dir(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        return fs_remove_tree(root, unit_key(source, unit_path, key));
}

static bool is_anything(int dir_fd, const char *name) {
        return is_file(dir_fd, name) || is_given(dir_fd, name) || strcmp(name, GIVING) == 0;
}

static int remove_empty(const Attachments *a, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        _cleanup_(attachment_names_done) AttachmentNames remaining = { .max = 1 };
        _cleanup_close_ int root = open_dir(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        _cleanup_close_ int unit = open_dir(root, unit_key(source, unit_path, key));
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        if (attachments_are_coming(a, source, unit_path))
                return 0; /* on_done tidies it */
        int r = read_names(unit, is_anything, &remaining);
        if (r == 0 && remaining.n == 0)
                r = fs_remove_tree(root, key);
        return r;
}

int attachments_remove(const Attachments *a, const char *source, const char *unit_path,
                       const char *name) {
        _cleanup_close_ int unit = open_unit(a, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        if (unlinkat(unit, name, 0) < 0 && errno != ENOENT)
                return -errno;
        return remove_empty(a, source, unit_path);
}

int attachments_release_bundle(const Attachments *a, const char *source, const char *unit_path,
                               const char *bundle_id) {
        GivenName given;
        int r = name_given(given, bundle_id);
        if (r < 0)
                return r;
        _cleanup_close_ int unit = open_unit(a, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        r = fs_remove_tree(unit, given);
        return r < 0 ? r : remove_empty(a, source, unit_path);
}

int attachments_release_before(Attachments *a, const char *source, const char *unit_path,
                               uint64_t usec) {
        _cleanup_(attachment_names_done) AttachmentNames names = { .max = ATTACHMENTS_MAX };
        int n_gone = 0;
        cancel_jobs(a, source, unit_path, usec);
        _cleanup_close_ int unit = open_unit(a, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        int r = read_names(unit, is_file, &names);
        for (size_t i = 0; i < names.n; i++) {
                struct stat st;
                if (fstatat(unit, names.items[i], &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    changed_usec(&st) < usec && unlinkat(unit, names.items[i], 0) == 0)
                        n_gone++;
        }
        if (r == 0 && n_gone > 0)
                r = fs_sync_dir(unit);
        if (r == 0)
                r = remove_empty(a, source, unit_path);
        return r < 0 ? r : n_gone;
}

/* ---- sweeping ---- */

int attachments_list_all(const Attachments *a, AttachmentsOnUnit on_unit, void *userdata) {
        _cleanup_(attachment_names_done) AttachmentNames units = { .max = ATTACHMENTS_UNITS_MAX };
        _cleanup_close_ int root = open_dir(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        int r = read_names(root, is_unit, &units);
        for (size_t i = 0; i < units.n; i++) {
                _cleanup_close_ int unit = open_dir(root, units.items[i]);
                _cleanup_free_ char *whose = NULL;
                struct stat st;
                size_t n;
                if (unit < 0 || fstat(unit, &st) < 0 ||
                    fs_read_file(unit, WHOSE, WHOSE_MAX, &whose, &n) < 0)
                        continue; /* belongs to no unit */
                size_t n_source = strlen(whose);
                if (n_source + 1 < n)
                        on_unit(&(AttachmentsUnit){ whose, whose + n_source + 1,
                                                    changed_usec(&st) },
                                userdata);
        }
        return r;
}

int attachments_bundles(const Attachments *a, const char *source, const char *unit_path,
                        AttachmentNames *ret) {
        *ret = (AttachmentNames){ .max = ATTACHMENTS_MAX };
        _cleanup_close_ int unit = open_unit(a, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        int r = read_names(unit, is_given, ret);
        for (size_t i = 0; i < ret->n; i++)
                memmove(ret->items[i], ret->items[i] + strlen(GIVEN),
                        strlen(ret->items[i] + strlen(GIVEN)) + 1);
        return r;
}

#define COPY_BYTES (64 * KIB)
/* ---- space ---- */

/* Counts what waits and what is assigned. @param but  a name that does not count; NULL */
static int count_all_of_unit(int unit, const char *but, size_t *n, uint64_t *bytes) {
        _cleanup_(attachment_names_done) AttachmentNames given = { .max = ATTACHMENTS_MAX };
        int r = count_waiting(unit, but, n, bytes);
        if (r == 0)
                r = count_in(unit, GIVING, n, bytes);
        if (r == 0)
                r = read_names(unit, is_given, &given);
        for (size_t i = 0; r == 0 && i < given.n; i++)
                r = count_in(unit, given.items[i], n, bytes);
        return r;
}

static int count_all(const char *path, uint64_t *ret_bytes) {
        _cleanup_(attachment_names_done) AttachmentNames units = { .max = ATTACHMENTS_UNITS_MAX };
        _cleanup_close_ int root = open_dir(AT_FDCWD, path);
        int r = root < 0 ? root : read_names(root, is_unit, &units);
        uint64_t bytes = 0;
        size_t n = 0;
        for (size_t i = 0; r == 0 && i < units.n; i++) {
                _cleanup_close_ int unit = open_dir(root, units.items[i]);
                if (unit >= 0)
                        r = count_all_of_unit(unit, NULL, &n, &bytes);
        }
        *ret_bytes = bytes;
        return r == -ENOENT ? 0 : r;
}

static int check_unit(int unit, const char *name, uint64_t more_bytes) {
        size_t n = 1;
        uint64_t bytes = more_bytes;
        int r = count_all_of_unit(unit, name, &n, &bytes);
        if (r < 0)
                return r;
        return n > ATTACHMENTS_MAX                                                   ? -E2BIG
               : more_bytes > ATTACHMENTS_MAX_BYTES || bytes > ATTACHMENTS_MAX_BYTES ? -EFBIG
                                                                                     : 0;
}

/* ---- adding ---- */

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

/* A worker writes one copy and links it to its places; the loop assigns and releases meanwhile.
 * The two do not conflict: the worker creates only complete files under their names, and while a
 * job is in the list the loop removes no directory that it writes to. */

#define COMING ".coming"   /* in the directory of all attachments: the copy of the job that runs */
#define LINKING ".linking" /* in a unit's: renamed at once */

static int link_copy(int root, int unit) {
        if (unlinkat(unit, LINKING, 0) < 0 && errno != ENOENT) /* left over from a crash */
                return -errno;
        return linkat(root, COMING, unit, LINKING, 0) < 0 ? -errno : 0;
}

static int attach_to(const AttachmentJob *j, Place *p, int root) {
        struct stat st;
        _cleanup_close_ int unit = create_unit(j->path, p->source, p->unit_path);
        if (unit < 0)
                return unit;
        int r = check_unit(unit, p->name, j->bytes);
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
        _cleanup_close_ int root = create_root(j->path);
        uint64_t used_bytes = 0;
        int r = root < 0 ? root : count_all(j->path, &used_bytes);
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
static void remove_unwanted(Attachments *a, const Place *p) {
        struct stat st;
        _cleanup_close_ int unit = open_unit(a, p->source, p->unit_path);
        if (unit >= 0 && fstatat(unit, p->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            st.st_ino == p->inode)
                (void)unlinkat(unit, p->name, 0); /* else a sweep finds it */
}

static void done(WorkJob *job) {
        _cleanup_(job_freep) AttachmentJob *j = CONTAINER_OF(job, AttachmentJob, job);
        Attachments *a = j->owner;
        list_remove(&j->link);
        for (size_t k = 0; k < j->n_places; k++) {
                const Place *p = &j->places[k];
                if (p->is_unwanted) {
                        remove_unwanted(a, p);
                        j->results[k] = 0;
                }
                (void)remove_empty(a, p->source, p->unit_path); /* else a sweep does */
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
                Place *to = &j->places[k];
                *to = (Place){ .source = strdup(o->places[k].source),
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
                if (!is_valid_name(o->places[k].name))
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

/* ---- life ---- */

int attachments_new(Attachments **ret, sd_event *event, const char *state_directory) {
        Attachments *a = calloc(1, sizeof *a);
        if (!a)
                return -ENOMEM;
        a->max_bytes_all = ATTACHMENTS_MAX_BYTES_ALL;
        list_init(&a->jobs);
        a->path = path_join(state_directory, "attachments");
        int r = a->path ? worker_pool_new(&a->pool, event, "attach", 1, WORKER_NORMAL) : -ENOMEM;
        if (r < 0) {
                attachments_free(a);
                return r;
        }
        *ret = a;
        return 0;
}

Attachments *attachments_free(Attachments *a) {
        if (!a)
                return NULL;
        a->pool = worker_pool_free(a->pool); /* waits for the one that runs */
        LIST_FOREACH_ITEM_SAFE (AttachmentJob, j, link, &a->jobs) {
                list_remove(&j->link);
                (void)job_free(j);
        }
        free(a->path);
        free(a);
        return NULL;
}

void attachments_limit(Attachments *a, uint64_t max_bytes_all) {
        a->max_bytes_all = max_bytes_all;
}
