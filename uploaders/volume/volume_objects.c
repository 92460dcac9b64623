#include "uploaders/volume/volume_objects.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "uploaders/volume/volume_private.h"

/* The kernel takes the time of a file from a clock that moves with the timer (CONFIG_HZ=100). */
#define MTIME_LAG_USEC ((int64_t)(10 * USEC_PER_MSEC))

static int classify(int error, const char *doing, const char *path, char **ret_error) {
        int r = volume_classify_errno(error, doing, path, ret_error);
        return error == EACCES || error == EPERM || error == EROFS ? UPLOAD_E_DENIED : r;
}

/* @return 0: not what a file system's clock says */
static int64_t usec_of(const struct timespec *t) {
        int64_t usec;
        return __builtin_mul_overflow((int64_t)t->tv_sec, (int64_t)USEC_PER_SEC, &usec) ||
                               __builtin_add_overflow(usec, (int64_t)t->tv_nsec / 1000, &usec)
                       ? 0
                       : usec;
}

/* ---- writing ---- */

typedef struct NewFile {
        char *path;      /* of the object, for people */
        char *temporary; /* in way.dir_fd; NULL: there is none */
        VolumeWay way;
        int fd;
        uint64_t made_usec; /* CLOCK_BOOTTIME: not before */
} NewFile;

/* Of an open file NFS keeps a name of its own, so it is closed first. */
static void discard_temporary(NewFile *f) {
        if (f->fd >= 0)
                (void)close(TAKE_FD(f->fd)); /* fsync has reported any error */
        if (f->temporary)
                (void)unlinkat(f->way.dir_fd, f->temporary, 0); /* the next write removes it */
        free(TAKE_PTR(f->temporary));
}

static void new_file_done(NewFile *f) {
        discard_temporary(f);
        if (f->way.dir_fd >= 0)
                (void)close(f->way.dir_fd);
        free(f->path);
}

/* A directory that is named after this node is its own alone. */
static mode_t directory_mode(const Volume *v, const VolumeWrite *w) {
        _cleanup_free_ char *parent = path_parent(w->relative);
        return parent && strcmp(path_name(parent), w->writer) == 0 ? VOLUME_OWN_MODE : v->mode;
}

static int open_directory(Volume *v, const VolumeWrite *w, NewFile *f, char **ret_error) {
        _cleanup_close_ int root_fd = -1;
        int r = volume_open_root(v, true, &root_fd, ret_error);
        if (r == UPLOAD_E_UNREACHABLE && access(v->root, R_OK) < 0 && errno == EACCES)
                return UPLOAD_E_DENIED;
        if (r == 0)
                r = volume_check_room(v, root_fd, w->n, ret_error);
        if (r != 0)
                return r;
        r = volume_open_directories(v, root_fd, w->relative, directory_mode(v, w), &f->way);
        if (r < 0 && !f->way.step)
                return volume_classify_group(v, -r, f->path, ret_error);
        if (r == -EINVAL || r == -ENAMETOOLONG)
                return r; /* the name, not the volume */
        return r < 0 ? classify(-r, f->way.step, f->path, ret_error) : 0;
}

/* Its name holds the writer's, so that nodes which create the same object do not meet there; what a
 * crash has left under it is removed. Whoever is let into the directory may read it. */
static int create_temporary(const Volume *v, const VolumeWrite *w, NewFile *f, char **ret_error) {
        struct stat st;
        f->temporary = strbuf_format(".%s.%s.neuron-collectd-tmp", f->way.name, w->writer);
        if (!f->temporary)
                return -ENOMEM;
        if (unlinkat(f->way.dir_fd, f->temporary, 0) < 0 && errno != ENOENT)
                return classify(errno, "remove the old temporary file of", f->path, ret_error);
        f->made_usec = w->clock->boottime_usec(w->clock);
        f->fd = openat(f->way.dir_fd, f->temporary,
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
        if (f->fd < 0 || fstat(f->fd, &st) < 0)
                return classify(errno, "make a temporary file for", f->path, ret_error);
        int r = volume_set_group(v, f->fd, &st, true);
        if (r < 0)
                return volume_classify_group(v, -r, f->path, ret_error);
        (void)fchmod(f->fd, 0640 | (v->mode & 0004)); /* mounts without modes refuse */
        return 0;
}

/* A file that was made between two moments. A time in whole seconds is on average half a second
 * more. */
static VolumeWritten clock_of(const struct stat *st, uint64_t begin_usec, uint64_t end_usec) {
        int64_t half = (int64_t)(end_usec - begin_usec) / 2,
                rest = st->st_mtim.tv_nsec == 0 ? (int64_t)USEC_PER_SEC / 2 : 0;
        VolumeWritten w = { .modified_usec = usec_of(&st->st_mtim),
                            .uncertainty_usec = half + rest + MTIME_LAG_USEC };
        w.clock_offset_usec = w.modified_usec + rest - ((int64_t)begin_usec + half);
        return w;
}

int volume_object_clock(Volume *v, Clock *clock, VolumeWritten *ret, char **ret_error) {
        char name[NAME_MAX + 1];
        struct stat st;
        _cleanup_close_ int root_fd = -1;
        *ret_error = NULL;
        int r = volume_open_root(v, true, &root_fd, ret_error);
        if (r != 0)
                return r;
        uint64_t begin = clock->boottime_usec(clock);
        _cleanup_close_ int fd = volume_open_probe_file(root_fd, name);
        uint64_t end = clock->boottime_usec(clock);
        if (fd < 0 || fstat(fd, &st) < 0)
                r = classify(errno, "make a file in the volume root", v->root, ret_error);
        else
                *ret = clock_of(&st, begin, end);
        if (fd >= 0 && name[0] != '\0')
                (void)unlinkat(root_fd, name, 0); /* the next probe does it otherwise */
        return r;
}

/* The storage's server sets the time of the file when it gets the bytes: after it was made, before
 * fsync returns. */
static int fill(const VolumeWrite *w, NewFile *f, VolumeWritten *ret, char **ret_error) {
        struct stat st;
        int r = fs_write_all(f->fd, w->data, w->n);
        if (r == 0 && fsync(f->fd) < 0)
                r = -errno;
        uint64_t end = w->clock->boottime_usec(w->clock);
        if (r == 0 && fstat(f->fd, &st) < 0)
                r = -errno;
        if (r < 0)
                return classify(-r, "write", f->path, ret_error);
        *ret = clock_of(&st, f->made_usec, end);
        return 0;
}

/* Whether what has the name is our file: NFS executes a link whose answer is lost, and then says
 * EEXIST to the repeated one. */
static bool is_linked(const NewFile *f) {
        struct stat ours, named;
        return fstat(f->fd, &ours) == 0 &&
               (ours.st_nlink > 1 ||
                (fstatat(f->way.dir_fd, f->way.name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                 named.st_dev == ours.st_dev && named.st_ino == ours.st_ino));
}

static int name_once(NewFile *f, char **ret_error) {
        int dir_fd = f->way.dir_fd;
        if (linkat(dir_fd, f->temporary, dir_fd, f->way.name, 0) == 0)
                return 0;
        if (errno == EEXIST)
                return is_linked(f) ? 0 : UPLOAD_E_EXISTS;
        if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK)
                return classify(errno, "name", f->path, ret_error);
        if (renameat2(dir_fd, f->temporary, dir_fd, f->way.name, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno == EEXIST)
                return UPLOAD_E_EXISTS;
        if (errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS)
                return classify(errno, "name", f->path, ret_error);
        volume_set_error(ret_error,
                         "the file system of '%s' has neither hard links nor RENAME_NOREPLACE, so "
                         "two nodes could create the same file there; use another one",
                         f->path);
        return UPLOAD_E_DENIED;
}

static int name_anew(NewFile *f, char **ret_error) {
        return renameat(f->way.dir_fd, f->temporary, f->way.dir_fd, f->way.name) < 0
                       ? classify(errno, "replace", f->path, ret_error)
                       : 0;
}

int volume_object_write(Volume *v, const VolumeWrite *w, VolumeWritten *ret, char **ret_error) {
        _cleanup_(new_file_done) NewFile f = { .fd = -1, .way.dir_fd = -1 };
        *ret_error = NULL;
        f.path = path_join(v->root, w->relative);
        int r = f.path ? open_directory(v, w, &f, ret_error) : -ENOMEM;
        if (r == 0)
                r = create_temporary(v, w, &f, ret_error);
        if (r == 0)
                r = fill(w, &f, ret, ret_error);
        if (r == 0)
                r = w->replaces ? name_anew(&f, ret_error) : name_once(&f, ret_error);
        if (r != 0)
                return r;
        discard_temporary(&f); /* before the sync, which makes both durable */
        r = fs_sync_dir(f.way.dir_fd);
        return r < 0 ? classify(-r, "sync the directory of", f.path, ret_error) : 0;
}

/* ---- reading ---- */

static int classify_reading(int r, const char *path, char **ret_error) {
        if (r == -ENOENT || r == -ENOMEM)
                return r;
        if (r != -EBADF && r != -ELOOP && r != -ENOTDIR)
                return classify(-r, "read", path, ret_error);
        volume_set_error(ret_error, "'%s' is no regular file: remove it", path);
        return UPLOAD_E_REFUSED;
}

int volume_object_read(Volume *v, const char *relative, size_t max_bytes, VolumeContent *ret,
                       char **ret_error) {
        _cleanup_close_ int root_fd = -1, fd = -1;
        struct stat st;
        *ret_error = NULL;
        _cleanup_free_ char *path = path_join(v->root, relative);
        int r = path ? volume_open_for_reading(v, &root_fd) : -ENOMEM;
        if (r == 0)
                r = fd = fs_open_regular(root_fd, relative, &st);
        if (r >= 0 && (uint64_t)st.st_size > max_bytes) {
                volume_set_error(ret_error, "'%s' is larger than the %zu bytes that it may have",
                                 path, max_bytes);
                return UPLOAD_E_REFUSED;
        }
        if (r >= 0)
                r = fs_read_head(fd, max_bytes, &ret->data, &ret->n);
        if (r < 0)
                return path ? classify_reading(r, path, ret_error) : r;
        ret->modified_usec = usec_of(&st.st_mtim);
        return 0;
}

typedef struct Walk {
        const VolumeListing *listing;
        size_t n_seen;
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

static int walk_entry(Walk *w, DIR *dir, const char *name, const char *above, unsigned depth) {
        struct stat st;
        if (name[0] == '.')
                return 0;
        if (++w->n_seen > w->listing->n_max)
                return -E2BIG;
        if (fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : -errno;
        if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
                return 0;
        _cleanup_free_ char *relative = path_join(above, name);
        if (!relative)
                return -ENOMEM;
        return S_ISDIR(st.st_mode)
                       ? walk_directory(w, dir, name, relative, depth + 1)
                       : w->listing->on_file(relative, (uint64_t)st.st_size, usec_of(&st.st_mtim),
                                             w->listing->userdata);
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

int volume_object_list(Volume *v, const VolumeListing *listing, char **ret_error) {
        _cleanup_close_ int root_fd = -1;
        _cleanup_closedir_ DIR *dir = NULL;
        *ret_error = NULL;
        _cleanup_free_ char *path = path_join(v->root, listing->directory);
        int r = path ? volume_open_for_reading(v, &root_fd) : -ENOMEM;
        if (r == 0)
                r = fs_opendir_fd(
                        fs_open_beneath(root_fd, listing->directory, O_RDONLY | O_DIRECTORY), &dir);
        if (r == 0)
                r = walk(&(Walk){ .listing = listing }, dir, listing->directory, 0);
        if (r == -E2BIG || r == -ENAMETOOLONG) {
                volume_set_error(ret_error,
                                 "'%s' has more entries, or deeper ones, than may be listed: see "
                                 "who makes them",
                                 path);
                return UPLOAD_E_REFUSED;
        }
        return r == -ENOENT ? 0 : r < 0 && path ? classify(-r, "list", path, ret_error) : r;
}
