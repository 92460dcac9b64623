/* Attachments: what waits for a unit, what is assigned to a bundle, and what is released.
 * attachments.h describes the directories; attachment_job.c puts files into them. */
#include "agent/hooknotes/attachments.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/hooknotes/attachment_directory.h"
#include "agent/hooknotes/attachment_job.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/neuron/bundle_name.h"

/* ---- assignment to a bundle ---- */

size_t attachments_waiting(const Attachments *a, const char *source, const char *unit_path,
                           uint64_t *ret_bytes) {
        size_t n = 0;
        uint64_t bytes = 0;
        _cleanup_close_ int unit = attachment_open_unit(a ? a->path : NULL, source, unit_path);
        if (unit >= 0) {
                (void)attachment_count_waiting(unit, NULL, &n, &bytes); /* 0 as in the header */
                (void)attachment_count_in(unit, ATTACHMENT_GIVING, &n, &bytes);
        }
        if (ret_bytes)
                *ret_bytes = bytes;
        return n;
}

static bool has_in(int unit, const char *directory, const char *name) {
        _cleanup_close_ int fd = attachment_open_directory(unit, directory);
        return fd >= 0 && attachment_is_file(fd, name);
}

bool attachments_have(const Attachments *a, const char *source, const char *unit_path,
                      const char *name) {
        _cleanup_(attachment_names_done) AttachmentNames given = { .max = ATTACHMENTS_MAX };
        _cleanup_close_ int unit = attachment_open_unit(a ? a->path : NULL, source, unit_path);
        if (unit < 0)
                return false;
        bool has = attachment_is_file(unit, name) || has_in(unit, ATTACHMENT_GIVING, name);
        (void)attachment_directory_read(unit, attachment_is_given, &given); /* none */
        for (size_t i = 0; !has && i < given.n; i++)
                has = has_in(unit, given.items[i], name);
        return has;
}

/* Moves what waits into one directory, and gives this its final name when all is in it: until then
 * nothing of it was shipped, and after a crash it may be another set. */
static int give(int unit, const char *given) {
        _cleanup_(attachment_names_done) AttachmentNames names = { .max = ATTACHMENTS_MAX };
        _cleanup_close_ int giving = attachment_create_directory(unit, ATTACHMENT_GIVING);
        if (giving < 0)
                return giving;
        int r = attachment_directory_read(unit, attachment_is_file, &names);
        for (size_t i = 0; r == 0 && i < names.n; i++)
                if (renameat(unit, names.items[i], giving, names.items[i]) < 0)
                        r = -errno;
        if (r == 0)
                r = fs_sync_dir(giving);
        if (r == 0 && renameat(unit, ATTACHMENT_GIVING, unit, given) < 0)
                r = -errno;
        if (r == 0)
                r = fs_sync_dir(unit);
        return r < 0 ? r : TAKE_FD(giving);
}

typedef char GivenName[sizeof ATTACHMENT_GIVEN + 256];

static int name_given(GivenName ret, const char *bundle_id) {
        if (!bundle_id_is_valid(bundle_id))
                return -EINVAL;
        (void)snprintf(ret, sizeof(GivenName), "%s%s", ATTACHMENT_GIVEN, bundle_id);
        return 0;
}

int attachments_open_assigned(const Attachments *a, const char *source, const char *unit_path,
                              const char *bundle_id) {
        GivenName given;
        int r = name_given(given, bundle_id);
        if (r < 0)
                return r;
        _cleanup_close_ int unit = attachment_open_unit(a ? a->path : NULL, source, unit_path);
        return unit < 0 ? unit : attachment_open_directory(unit, given);
}

int attachments_assign(const Attachments *a, const char *source, const char *unit_path,
                       const char *bundle_id) {
        GivenName given;
        int fd = attachments_open_assigned(a, source, unit_path, bundle_id);
        if (fd != -ENOENT || attachments_waiting(a, source, unit_path, NULL) == 0)
                return fd;
        _cleanup_close_ int unit = attachment_open_unit(a ? a->path : NULL, source, unit_path);
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

/* ---- release ---- */

static uint64_t changed_usec(const struct stat *st) {
        return (uint64_t)MAX(st->st_mtim.tv_sec, (time_t)0) * USEC_PER_SEC +
               (uint64_t)st->st_mtim.tv_nsec / 1000;
}

int attachments_release(Attachments *a, const char *source, const char *unit_path) {
        char key[ATTACHMENT_KEY_SIZE];
        attachment_job_cancel(a, source, unit_path, UINT64_MAX);
        _cleanup_close_ int root = attachment_open_directory(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        return fs_remove_tree(root, attachment_unit_key(source, unit_path, key));
}

int attachments_remove(const Attachments *a, const char *source, const char *unit_path,
                       const char *name) {
        _cleanup_close_ int unit = attachment_open_unit(a ? a->path : NULL, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        if (unlinkat(unit, name, 0) < 0 && errno != ENOENT)
                return -errno;
        return attachment_job_tidy(a, source, unit_path);
}

int attachments_release_bundle(const Attachments *a, const char *source, const char *unit_path,
                               const char *bundle_id) {
        GivenName given;
        int r = name_given(given, bundle_id);
        if (r < 0)
                return r;
        _cleanup_close_ int unit = attachment_open_unit(a ? a->path : NULL, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        r = fs_remove_tree(unit, given);
        return r < 0 ? r : attachment_job_tidy(a, source, unit_path);
}

int attachments_release_before(Attachments *a, const char *source, const char *unit_path,
                               uint64_t usec) {
        _cleanup_(attachment_names_done) AttachmentNames names = { .max = ATTACHMENTS_MAX };
        int n_gone = 0;
        attachment_job_cancel(a, source, unit_path, usec);
        _cleanup_close_ int unit = attachment_open_unit(a->path, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        int r = attachment_directory_read(unit, attachment_is_file, &names);
        for (size_t i = 0; i < names.n; i++) {
                struct stat st;
                if (fstatat(unit, names.items[i], &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    changed_usec(&st) < usec && unlinkat(unit, names.items[i], 0) == 0)
                        n_gone++;
        }
        if (r == 0 && n_gone > 0)
                r = fs_sync_dir(unit);
        if (r == 0)
                r = attachment_job_tidy(a, source, unit_path);
        return r < 0 ? r : n_gone;
}

/* ---- sweeping ---- */

int attachments_list_all(const Attachments *a, AttachmentsOnUnit on_unit, void *userdata) {
        _cleanup_(attachment_names_done) AttachmentNames units = { .max = ATTACHMENTS_UNITS_MAX };
        _cleanup_close_ int root = attachment_open_directory(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        int r = attachment_directory_read(root, attachment_is_unit, &units);
        for (size_t i = 0; i < units.n; i++) {
                _cleanup_close_ int unit = attachment_open_directory(root, units.items[i]);
                _cleanup_free_ char *whose = NULL;
                struct stat st;
                size_t n;
                if (unit < 0 || fstat(unit, &st) < 0 ||
                    fs_read_file(unit, ATTACHMENT_UNIT_FILE, ATTACHMENT_UNIT_FILE_MAX, &whose, &n) <
                            0)
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
        _cleanup_close_ int unit = attachment_open_unit(a ? a->path : NULL, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        int r = attachment_directory_read(unit, attachment_is_given, ret);
        for (size_t i = 0; i < ret->n; i++)
                memmove(ret->items[i], ret->items[i] + strlen(ATTACHMENT_GIVEN),
                        strlen(ret->items[i] + strlen(ATTACHMENT_GIVEN)) + 1);
        return r;
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
        attachment_job_free_all(a);
        free(a->path);
        free(a);
        return NULL;
}

void attachments_limit(Attachments *a, uint64_t max_bytes_all) {
        a->max_bytes_all = max_bytes_all;
}
