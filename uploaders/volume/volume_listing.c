/* Reads and lists the small objects of a volume. Only files of agents are read; those of other
 * users are marked in a listing, and neither their number nor their names can make it fail. A
 * listing also removes the temporary files that a crash of this node has left. Writing is left to
 * volume_object.c. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "uploaders/volume/volume.h"
#include "uploaders/volume/volume_error.h"
#include "uploaders/volume/volume_private.h"

#define READ_BYTES (256 * KIB)
#define FOREIGN_FILES_MAX 1000 /* files of other users that are listed */

/* ── reading ── */

int volume_read(Volume *v, const char *relative,
                int (*on_piece)(const void *data, size_t n, void *userdata), void *userdata) {
        _cleanup_close_ int root_fd = -1, fd = -1;
        int r = volume_open_for_reading(v, &root_fd);
        if (r < 0)
                return r;
        fd = fs_open_regular(root_fd, relative, NULL);
        if (fd < 0)
                return fd;
        _cleanup_free_ char *data = malloc(READ_BYTES);
        ssize_t n = data ? 1 : -1;
        for (bool is_first = true; n > 0; is_first = false) {
                do
                        n = read(fd, data, READ_BYTES);
                while (n < 0 && errno == EINTR);
                r = n > 0 || (n == 0 && is_first) ? on_piece(data, (size_t)n, userdata) : 0;
                if (r < 0)
                        return r;
        }
        return !data ? -ENOMEM : n < 0 ? -errno : 0;
}

static int classify_reading(int r, const char *path, char **ret_error) {
        if (r == -ENOENT || r == -ENOMEM)
                return r;
        if (r != -EBADF && r != -ELOOP && r != -ENOTDIR)
                return volume_error_classify_small(-r, "read", path, ret_error);
        volume_error_set(ret_error, "'%s' is not a regular file: remove it", path);
        return UPLOAD_E_REFUSED;
}

int volume_object_read(Volume *v, const char *relative, size_t max_bytes, VolumeContent *ret,
                       char **ret_error) {
        _cleanup_close_ int root_fd = -1, fd = -1;
        struct stat st;
        *ret_error = NULL;
        _cleanup_free_ char *path = path_join(volume_root(v), relative);
        int r = path ? volume_open_for_reading(v, &root_fd) : -ENOMEM;
        if (r == 0)
                r = fd = fs_open_regular(root_fd, relative, &st);
        if (r >= 0 && !volume_is_trusted(v, root_fd, st.st_uid)) {
                volume_error_set(
                        ret_error,
                        "'%s' belongs to uid %u, which is not an agent's user, so it is ignored; "
                        "remove it, or add that user to agreement.trusted_uids",
                        path, (unsigned)st.st_uid);
                return UPLOAD_E_REFUSED;
        }
        if (r >= 0 && (uint64_t)st.st_size > max_bytes) {
                volume_error_set(ret_error, "'%s' is larger than the %zu bytes that it may have",
                                 path, max_bytes);
                return UPLOAD_E_REFUSED;
        }
        if (r >= 0)
                r = fs_read_head(fd, max_bytes, &ret->data, &ret->n);
        if (r < 0)
                return path ? classify_reading(r, path, ret_error) : r;
        ret->modified_usec = volume_mtime_usec(&st);
        return 0;
}

/* ── listing ── */

typedef struct Walk {
        Volume *v;
        int root_fd;
        const VolumeListing *listing;
        char *temporary_suffix;   /* of this node's temporary files of small objects; NULL: none */
        size_t n_seen, n_foreign; /* entries of agents; of other users */
} Walk;

static int walk(Walk *w, DIR *dir, const char *relative, unsigned depth);

static int walk_directory(Walk *w, DIR *above, const char *name, const char *relative,
                          unsigned depth) {
        _cleanup_closedir_ DIR *dir = NULL;
        int r = depth < FS_DEPTH_MAX ? fs_opendir_at(dirfd(above), name, &dir) : -ENAMETOOLONG;
        if (r == -ENOENT || r == -ENOTDIR || r == -EACCES)
                return 0;
        return r < 0 ? r : walk(w, dir, relative, depth);
}

/* Removes a temporary file of a crash. It is not in use: small objects are written by the thread
 * that lists them. */
static void remove_stale_temporary(const Walk *w, int dir_fd, const char *name) {
        struct stat st;
        if (w->temporary_suffix && path_has_suffix(name, w->temporary_suffix) &&
            fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
            st.st_uid == volume_own_uid(w->v, w->root_fd))
                (void)unlinkat(dir_fd, name, 0); /* the next listing tries again */
}

static int walk_entry(Walk *w, DIR *dir, const char *name, const char *above, unsigned depth) {
        struct stat st;
        if (name[0] == '.') {
                remove_stale_temporary(w, dirfd(dir), name);
                return 0;
        }
        if (fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : -errno;
        bool counts = volume_is_trusted(w->v, w->root_fd, st.st_uid);
        if (!S_ISREG(st.st_mode) && (!S_ISDIR(st.st_mode) || !counts))
                return 0;
        if (counts && ++w->n_seen > w->listing->n_max)
                return -E2BIG;
        if (!counts && ++w->n_foreign > FOREIGN_FILES_MAX)
                return 0;
        _cleanup_free_ char *relative = path_join(above, name);
        if (!relative)
                return -ENOMEM;
        if (S_ISDIR(st.st_mode))
                return walk_directory(w, dir, name, relative, depth + 1);
        const VolumeFile file = { .relative = relative,
                                  .bytes = (uint64_t)st.st_size,
                                  .modified_usec = volume_mtime_usec(&st),
                                  .is_trusted = counts };
        return w->listing->on_file(&file, w->listing->userdata);
}

static int walk(Walk *w, DIR *dir, const char *relative, unsigned depth) {
        for (;;) {
                errno = 0;
                const struct dirent *entry = readdir(dir);
                if (!entry)
                        return -errno;
                int r = walk_entry(w, dir, entry->d_name, relative, depth);
                if (r < 0)
                        return r;
        }
}

/* @param must_be_readable  whether a directory that may not be read is an error
 * @return 0, also when the directory does not exist; -errno; what on_file returned */
static int walk_from(Walk *w, const char *directory, bool must_be_readable) {
        _cleanup_closedir_ DIR *dir = NULL;
        int r = fs_opendir_fd(fs_open_beneath(w->root_fd, directory, O_RDONLY | O_DIRECTORY), &dir);
        if (r == -ENOENT || (!must_be_readable && (r == -ENOTDIR || r == -EACCES || r == -ELOOP)))
                return 0;
        return r < 0 ? r : walk(w, dir, directory, 0);
}

/* Lists the directories `<first component>.<writer>` of nodes that the first component refused. */
static int walk_beside(Walk *w, const char *directory) {
        size_t n = strcspn(directory, "/");
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *entry;
        int r = fs_opendir_at(w->root_fd, ".", &dir);
        while (r == 0 && (errno = 0, entry = readdir(dir))) {
                struct stat st;
                if (strncmp(entry->d_name, directory, n) != 0 || entry->d_name[n] != '.' ||
                    fstatat(w->root_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
                    !S_ISDIR(st.st_mode) || !volume_is_trusted(w->v, w->root_fd, st.st_uid))
                        continue;
                if (++w->n_seen > w->listing->n_max)
                        return -E2BIG;
                _cleanup_free_ char *beside = strbuf_format("%s%s", entry->d_name, directory + n);
                r = beside ? walk_from(w, beside, false) : -ENOMEM;
        }
        return r;
}

int volume_object_list(Volume *v, const VolumeListing *listing, char **ret_error) {
        _cleanup_close_ int root_fd = -1;
        *ret_error = NULL;
        _cleanup_free_ char *path = path_join(volume_root(v), listing->directory),
                            *temporary_suffix =
                                    volume_writer(v) ? strbuf_format(".%s" VOLUME_TEMPORARY_SUFFIX,
                                                                     volume_writer(v))
                                                     : NULL;
        int r = path && (temporary_suffix || !volume_writer(v))
                        ? volume_open_for_reading(v, &root_fd)
                        : -ENOMEM;
        if (r == 0) {
                Walk w = { .v = v,
                           .root_fd = root_fd,
                           .listing = listing,
                           .temporary_suffix = temporary_suffix };
                bool has_beside = listing->directory[0] == '.';
                r = walk_from(&w, listing->directory, !has_beside);
                if (r == 0 && has_beside)
                        r = walk_beside(&w, listing->directory);
        }
        if (r == -E2BIG || r == -ENAMETOOLONG) {
                volume_error_set(ret_error,
                                 "'%s' has more entries, or deeper ones, than can be listed: check "
                                 "which program creates them",
                                 path);
                return UPLOAD_E_REFUSED;
        }
        return r == -ENOENT    ? 0
               : r < 0 && path ? volume_error_classify_small(-r, "list", path, ret_error)
                               : r;
}
