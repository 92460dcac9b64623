/* Writes one object to a volume. A crash at any moment leaves either nothing visible or the
 * complete object:
 *
 *   write a temporary file ─► fdatasync ─► read it back ─► link it under its name
 *       ─► unlink the temporary name ─► fsync the directory
 *
 * A small object is not read back; writing it also measures the volume's clock. The directory is
 * found by volume_directory.c; the caller decides what to do when the name is taken. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "uploaders/volume/volume.h"
#include "uploaders/volume/volume_directory.h"
#include "uploaders/volume/volume_error.h"
#include "uploaders/volume/volume_private.h"
#include "uploaders/volume/volume_readback.h"

/* At most two windows are dirty, so that the agent does not fill a Lustre client with dirty pages.
 */
#define WINDOW (4 * MIB)
#define ROOM_CHECK_BYTES (64 * MIB) /* min_free is checked this often */
/* The kernel sets the time of a file by a clock that advances with the timer (CONFIG_HZ=100). */
#define MTIME_LAG_USEC ((int64_t)(10 * USEC_PER_MSEC))

struct VolumeObject {
        Volume *volume;           /* borrowed */
        const VolumeWrite *small; /* borrowed; NULL: a bundle's object */
        char *path;               /* of the object, for people */
        char *name, *temporary;   /* in dir_fd */
        int dir_fd, fd;
        struct stat st;     /* of the temporary file when it was new: its identity */
        uint64_t made_usec; /* a small one was not created before; CLOCK_BOOTTIME */
        uint64_t offset;    /* bytes written so far */
        uint64_t window;    /* start of the first window that is not being written back */
        uint64_t next_room_check;
        int error; /* errno of the failure, returned by every later call; 0 */
        /* committed, found to exist, or given up: our temporary file is gone */
        bool finished;
};

static int classify(const VolumeObject *o, int error, const char *doing, char **ret_error) {
        return (o->small ? volume_error_classify_small : volume_error_classify)(error, doing,
                                                                                o->path, ret_error);
}

/* ── a temporary file ── */

/* A crash leaves a file of this name; the next attempt at the same object, or volume_sweep,
 * removes it. One name an object is enough: an object's name holds the instance id, and one
 * instance has one agent (the lock in its state directory). That of a small one holds the writer's,
 * so that nodes which create the same object do not meet there. */
static char *temporary_name(const Volume *v, const char *name, bool is_small) {
        bool has_writer = is_small && volume_writer(v);
        return strbuf_format(".%s%s%s" VOLUME_TEMPORARY_SUFFIX, name, has_writer ? "." : "",
                             has_writer ? volume_writer(v) : "");
}

/* Creates the temporary file. A small object gets the read permission of the volume's mode for
 * others. */
static int create_temporary(VolumeObject *o, char **ret_error) {
        const Volume *v = o->volume;
        if (unlinkat(o->dir_fd, o->temporary, 0) < 0 && errno != ENOENT)
                return classify(o, errno, "remove the old temporary file of", ret_error);
        if (o->small)
                o->made_usec = o->small->clock->boottime_usec(o->small->clock);
        o->fd = openat(o->dir_fd, o->temporary,
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
        if (o->fd < 0 || fstat(o->fd, &o->st) < 0)
                return classify(o, errno, "make a temporary file for", ret_error);
        int r = volume_set_group(v, o->fd, &o->st, true);
        if (r < 0)
                return volume_classify_group(v, -r, o->path, ret_error);
        if (o->small)
                (void)fchmod(o->fd,
                             0640 | (volume_mode(v) & 0004)); /* mounts without modes refuse */
        return 0;
}

/* The directory of a bundle, and one that is named after the node, belongs to this node alone. */
static mode_t directory_mode(const VolumeObject *o, const char *relative) {
        const char *writer = volume_writer(o->volume);
        if (!o->small)
                return VOLUME_OWN_MODE;
        _cleanup_free_ char *parent = path_parent(relative);
        return parent && writer && strcmp(path_name(parent), writer) == 0 ? VOLUME_OWN_MODE
                                                                          : volume_mode(o->volume);
}

/* @param ret_refused  with an outcome: the component that another one may take the place of; 0
 * @return 0; UPLOAD_E_*, -ENOMEM, -EINVAL, -ENAMETOOLONG */
static int object_open_at(VolumeObject *o, int root_fd, const char *relative, size_t *ret_refused,
                          char **ret_error) {
        VolumeDirectory opened;
        Volume *v = o->volume;
        free(o->path);
        o->path = path_join(volume_root(v), relative);
        if (!o->path)
                return -ENOMEM;
        int r = volume_directory_open(v, root_fd, relative, directory_mode(o, relative), &opened);
        *ret_refused = r < 0 ? opened.refused : 0;
        if (r < 0) {
                int outcome = volume_directory_classify(v, &opened, -r, relative, ret_error);
                bool is_denial = opened.step &&
                                 (opened.refused > 0 || r == -EACCES || r == -EPERM || r == -EROFS);
                return o->small && is_denial && outcome > 0 ? UPLOAD_E_DENIED : outcome;
        }
        o->dir_fd = opened.dir_fd;
        o->name = strdup(opened.name);
        o->temporary = temporary_name(v, opened.name, o->small);
        if (!o->name || !o->temporary)
                return -ENOMEM;
        return strlen(o->temporary) > NAME_MAX ? -ENAMETOOLONG : create_temporary(o, ret_error);
}

/* @return as object_open_at() */
static int object_open(VolumeObject *o, const char *relative, uint64_t bytes, char **ret_error) {
        _cleanup_close_ int root_fd = -1;
        Volume *v = o->volume;
        size_t refused = 0;
        int r = volume_open_root(v, true, &root_fd, ret_error);
        if (o->small && r == UPLOAD_E_UNREACHABLE && access(volume_root(v), R_OK) < 0 &&
            errno == EACCES)
                return UPLOAD_E_DENIED;
        if (r == 0)
                r = volume_check_space(v, root_fd, bytes, ret_error);
        if (r == 0)
                r = object_open_at(o, root_fd, relative, &refused, ret_error);
        if (r <= 0 || refused == 0 || !o->small || !o->small->replaces || !volume_writer(v))
                return r;
        free(TAKE_PTR(*ret_error));
        _cleanup_free_ char *beside = volume_directory_beside(v, relative, refused);
        return beside ? object_open_at(o, root_fd, beside, &refused, ret_error) : -ENOMEM;
}

int volume_object_start(Volume *v, const char *relative, uint64_t size_hint_bytes,
                        VolumeObject **ret, char **ret_error) {
        *ret_error = NULL;
        _cleanup_(volume_object_freep) VolumeObject *o = calloc(1, sizeof *o);
        if (!o)
                return -ENOMEM;
        *o = (VolumeObject){ .volume = v, .dir_fd = -1, .fd = -1 };
        int r = object_open(o, relative, size_hint_bytes, ret_error);
        if (r == 0)
                *ret = TAKE_PTR(o);
        return r;
}

/* ── writing ── */

static int object_fail(VolumeObject *o, int error, const char *doing, char **ret_error) {
        o->error = error;
        return classify(o, error, doing, ret_error);
}

/* Starts writing the window before the last one to the storage, and drops the one before that from
 * the page cache once it is there.
 * @return 0, -errno of a write that failed in the background */
static int write_behind(VolumeObject *o) {
        while (o->offset - o->window >= WINDOW) {
                off_t at = (off_t)o->window, n = (off_t)WINDOW;
                (void)sync_file_range(
                        o->fd, at, n,
                        SYNC_FILE_RANGE_WRITE); /* its result is waited for one window later */
                if (o->window >= WINDOW) {
                        at -= n;
                        if (sync_file_range(o->fd, at, n,
                                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                                    SYNC_FILE_RANGE_WAIT_AFTER) < 0 &&
                            errno != EINVAL && errno != ENOSYS && errno != ESPIPE && errno != EPERM)
                                /* these four: not supported here, and fdatasync reports the error
                                 */
                                return -errno;
                        (void)posix_fadvise(o->fd, at, n, POSIX_FADV_DONTNEED); /* a hint */
                }
                o->window += WINDOW;
        }
        return 0;
}

int volume_write(VolumeObject *o, const void *data, size_t n, char **ret_error) {
        const char *p = data;

        *ret_error = NULL;
        if (o->error > 0)
                return object_fail(o, o->error, "write", ret_error);
        if (o->finished || n > INT64_MAX - o->offset)
                return -EINVAL;
        while (n > 0) {
                ssize_t written = pwrite(o->fd, p, n, (off_t)o->offset);
                if (written < 0 && errno == EINTR)
                        continue;
                if (written <= 0)
                        return object_fail(o, written < 0 ? errno : EIO, "write", ret_error);
                p += written;
                n -= (size_t)written;
                o->offset += (uint64_t)written;
        }
        int r = write_behind(o);
        if (r < 0)
                return object_fail(o, -r, "write", ret_error);
        if (o->offset < o->next_room_check)
                return 0;
        o->next_room_check = o->offset + ROOM_CHECK_BYTES;
        return volume_check_space(o->volume, o->fd, 0, ret_error);
}

/* ── ending ── */

static bool is_ours(const VolumeObject *o, const struct stat *st) {
        return st->st_dev == o->st.st_dev && st->st_ino == o->st.st_ino;
}

/* Removes the temporary file if it is still the one that this object created. It is closed first:
 * NFS renames an open file instead of removing it, and no sweep finds that name. */
static int remove_temporary(VolumeObject *o) {
        struct stat st;
        bool is_there = !o->finished && o->fd >= 0 &&
                        fstatat(o->dir_fd, o->temporary, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                        is_ours(o, &st);
        o->finished = true;
        if (o->fd >= 0)
                (void)close(TAKE_FD(o->fd)); /* fdatasync has reported any error */
        return is_there && unlinkat(o->dir_fd, o->temporary, 0) < 0 && errno != ENOENT ? -errno : 0;
}

static void object_done(VolumeObject *o) {
        (void)remove_temporary(o); /* volume_sweep, or the next write, removes it otherwise */
        if (o->dir_fd >= 0)
                (void)close(o->dir_fd);
        free(o->temporary);
        free(o->name);
        free(o->path);
}

VolumeObject *volume_object_free(VolumeObject *o) {
        if (o)
                object_done(o);
        free(o);
        return NULL;
}

static ReadbackFile file_of(const VolumeObject *o, const char *name) {
        return (ReadbackFile){ o->dir_fd, name, volume_read_back_counter(o->volume) };
}

/* The name is taken: reads that file. @return UPLOAD_E_SAME: the same bytes, which are then made
 * durable; UPLOAD_E_EXISTS; as the other functions */
static int classify_existing(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                             char **ret_error) {
        const ReadbackFile file = file_of(o, o->name);
        uint64_t bad_offset;
        int r = volume_readback(&file, stripes, n_stripes, &bad_offset);

        if (r < 0)
                return volume_error_classify(-r, "read what is there as", o->path, ret_error);
        if (r == READBACK_E_DIFFERENT) {
                volume_error_set(
                        ret_error,
                        "'%s' exists already and differs: it is not overwritten; move it away",
                        o->path);
                return UPLOAD_E_EXISTS;
        }
        _cleanup_close_ int fd =
                openat(o->dir_fd, o->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        r = fd < 0 || fsync(fd) < 0 ? -errno : fs_sync_dir(o->dir_fd);
        if (r < 0)
                return volume_error_classify(-r, "sync what is there as", o->path, ret_error);
        r = remove_temporary(o);
        return r < 0 ? object_fail(o, -r, "remove the temporary file of", ret_error)
                     : UPLOAD_E_SAME;
}

/* @return whether this way of linking is not available, so that another one is tried: no hard
 * links, no /proc, or a policy against it */
static bool is_refusal(int error) {
        static const int refusals[] = { EPERM,  EOPNOTSUPP, ENOSYS,  EMLINK, EINVAL,
                                        EACCES, ENOENT,     ENOTDIR, ELOOP,  EXDEV };

        for (size_t i = 0; i < ELEMENTSOF(refusals); i++)
                if (error == refusals[i])
                        return true;
        return false;
}

/* @return whether the temporary name still is this object's file: when this worker was given up as
 * hung, another worker on the same object may have created it again */
static bool has_temporary(const VolumeObject *o) {
        struct stat ours, named;

        return fstat(o->fd, &ours) == 0 &&
               fstatat(o->dir_fd, o->temporary, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
               ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

/* Links the file that was written, whichever file has the temporary name now. A file without any
 * name cannot be linked.
 * @return false and errno: refused (no /proc, no hard links), or EEXIST */
static bool link_by_descriptor(const VolumeObject *o) {
        char self[64];

        (void)snprintf(self, sizeof self, "/proc/self/fd/%d", o->fd);
        return linkat(AT_FDCWD, self, o->dir_fd, o->name, AT_SYMLINK_FOLLOW) == 0;
}

/* Fails because another writer has replaced the temporary file: by EEXIST, whose sentence names the
 * remedy. */
static int lost_temporary(VolumeObject *o, char **ret_error) {
        return object_fail(o, EEXIST, "name", ret_error);
}

/* Gives the temporary file its name without replacing anything. Where there are neither hard links
 * nor RENAME_NOREPLACE (some FUSE), a bundle's name is checked and then taken: not atomic, but no
 * other node writes names that contain our instance id.
 * @return 0, -EEXIST, -ESTALE (the temporary name is another file's), -ENOTSUP, -errno */
static int set_name(VolumeObject *o) {
        struct stat st;

        if (link_by_descriptor(o))
                return 0;
        if (is_refusal(errno)) {
                if (!has_temporary(o))
                        return -ESTALE;
                if (linkat(o->dir_fd, o->temporary, o->dir_fd, o->name, 0) == 0)
                        return 0;
        }
        if (errno == EEXIST) { /* on NFS also when the answer to our own link was lost */
                if (fstatat(o->dir_fd, o->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        return -errno;
                return is_ours(o, &st) ? 0 : -EEXIST;
        }
        if (!is_refusal(errno))
                return -errno;
        if (renameat2(o->dir_fd, o->temporary, o->dir_fd, o->name, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
                return -errno;
        if (o->small)
                return -ENOTSUP;
        if (fstatat(o->dir_fd, o->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return -EEXIST;
        if (errno != ENOENT)
                return -errno;
        return renameat(o->dir_fd, o->temporary, o->dir_fd, o->name) < 0 ? -errno : 0;
}

/* Makes the bytes durable and proves them, still under the temporary name. */
static int prove(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes, char **ret_error) {
        uint64_t bad_offset;

        if (fdatasync(o->fd) < 0)
                return object_fail(o, errno, "sync", ret_error);
        (void)posix_fadvise(o->fd, 0, 0, POSIX_FADV_DONTNEED); /* a hint */
        const ReadbackFile file = file_of(o, o->temporary);
        int r = volume_readback(&file, stripes, n_stripes, &bad_offset);
        if (r < 0)
                return object_fail(o, -r, "read back", ret_error);
        if (r == 0)
                return 0;
        volume_error_set(ret_error,
                         "'%s' reads back differently than it was written, from byte %" PRIu64
                         " on: the copy was removed; check the volume if it happens again",
                         o->path, bad_offset);
        (void)remove_temporary(o); /* as above */
        return UPLOAD_E_MISMATCH;
}

/* The object has its name: removes the temporary name, if there still is one, and makes both
 * changes durable by one sync. A sync before the second change would let a loss of power bring the
 * temporary name back when no sweep looks for it any more. A file system that keeps the second of
 * two changes to one directory and loses the first does not survive a loss of power anyway. */
static int finish(VolumeObject *o, char **ret_error) {
        int r = remove_temporary(o);
        if (r < 0)
                return object_fail(o, -r, "remove the temporary file of", ret_error);
        r = fs_sync_dir(o->dir_fd);
        if (r < 0) /* visible, perhaps not durable: the next attempt finds it and proves it */
                return object_fail(o, -r, "sync the directory of", ret_error);
        return 0;
}

static int publish(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                   char **ret_error) {
        int r = set_name(o);

        if (r == -EEXIST)
                return classify_existing(o, stripes, n_stripes, ret_error);
        if (r == -ESTALE && !has_temporary(o))
                return lost_temporary(o, ret_error);
        return r < 0 ? object_fail(o, -r, "name", ret_error) : finish(o, ret_error);
}

/* @return 0 when the stripes are those of what was written and the object has had no error */
static int check_ending(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                        char **ret_error) {
        uint64_t total = 0;

        *ret_error = NULL;
        for (size_t i = 0; i < n_stripes; i++)
                if (__builtin_add_overflow(total, stripes[i].bytes, &total))
                        return -EINVAL;
        if (o->error > 0)
                return object_fail(o, o->error, "write", ret_error);
        return o->finished || total != o->offset ? -EINVAL : 0;
}

int volume_commit(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                  char **ret_error) {
        struct stat st;
        int r = check_ending(o, stripes, n_stripes, ret_error);

        if (r != 0)
                return r;
        if (fstatat(o->dir_fd, o->name, &st, AT_SYMLINK_NOFOLLOW) ==
            0) /* an earlier attempt or another node has written it */
                return classify_existing(o, stripes, n_stripes, ret_error);
        if (errno != ENOENT)
                return object_fail(o, errno, "check for", ret_error);
        r = prove(o, stripes, n_stripes, ret_error);
        return r != 0 ? r : publish(o, stripes, n_stripes, ret_error);
}

int volume_replace(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                   char **ret_error) {
        int r = check_ending(o, stripes, n_stripes, ret_error);

        if (r == 0)
                r = prove(o, stripes, n_stripes, ret_error);
        if (r != 0)
                return r;
        if (!has_temporary(o))
                return lost_temporary(o, ret_error);
        if (renameat(o->dir_fd, o->temporary, o->dir_fd, o->name) < 0)
                return object_fail(o, errno, "replace", ret_error);
        return finish(o, ret_error);
}

/* ── a small object ── */

/* Computes the difference of the clocks from a file that was created between two moments. A file
 * system that stores whole seconds shows half a second too little on average. */
static VolumeWritten clock_of(const struct stat *st, uint64_t begin_usec, uint64_t end_usec) {
        int64_t half = (int64_t)(end_usec - begin_usec) / 2,
                rest = st->st_mtim.tv_nsec == 0 ? (int64_t)USEC_PER_SEC / 2 : 0;
        VolumeWritten w = { .modified_usec = volume_mtime_usec(st),
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
        _cleanup_close_ int fd = volume_open_probe_file(v, root_fd, name);
        uint64_t end = clock->boottime_usec(clock);
        if (fd < 0 || fstat(fd, &st) < 0)
                r = volume_error_classify_small(errno, "make a file in the volume root",
                                                volume_root(v), ret_error);
        else
                *ret = clock_of(&st, begin, end);
        if (fd >= 0 && name[0] != '\0')
                (void)unlinkat(root_fd, name, 0); /* on error: the next probe removes it */
        return r;
}

/* Writes the content, and measures the clock: the storage's server sets the file's time when it
 * gets the bytes, which is between the creation and the end of fsync. */
static int object_fill(VolumeObject *o, VolumeWritten *ret, char **ret_error) {
        const VolumeWrite *w = o->small;
        struct stat st;
        int r = fs_write_all(o->fd, w->data, w->n);
        if (r == 0 && fsync(o->fd) < 0)
                r = -errno;
        uint64_t end = w->clock->boottime_usec(w->clock);
        if (r == 0 && fstat(o->fd, &st) < 0)
                r = -errno;
        if (r < 0)
                return classify(o, -r, "write", ret_error);
        *ret = clock_of(&st, o->made_usec, end);
        return 0;
}

static int object_publish(VolumeObject *o, char **ret_error) {
        int r = !o->small->replaces                                         ? set_name(o)
                : renameat(o->dir_fd, o->temporary, o->dir_fd, o->name) < 0 ? -errno
                                                                            : 0;
        if (r == -EEXIST && !o->small->replaces)
                return UPLOAD_E_EXISTS;
        if (r == -ENOTSUP && !o->small->replaces) {
                volume_error_set(
                        ret_error,
                        "the file system of '%s' has neither hard links nor RENAME_NOREPLACE, so "
                        "two nodes could create the same file there; use another one",
                        o->path);
                return UPLOAD_E_DENIED;
        }
        if (r < 0)
                return classify(o, -r, o->small->replaces ? "replace" : "name", ret_error);
        return finish(o, ret_error);
}

int volume_object_write(Volume *v, const VolumeWrite *w, VolumeWritten *ret, char **ret_error) {
        _cleanup_(object_done) VolumeObject o = { .volume = v, .small = w, .dir_fd = -1, .fd = -1 };
        *ret_error = NULL;
        int r = object_open(&o, w->relative, w->n, ret_error);
        if (r == 0)
                r = object_fill(&o, ret, ret_error);
        return r == 0 ? object_publish(&o, ret_error) : r;
}

/* ── existing objects ── */

int volume_verify(Volume *v, const char *relative, const VolumeStripe *stripes, size_t n_stripes) {
        _cleanup_close_ int root_fd = -1;
        uint64_t bad_offset;
        VolumeDirectory opened;
        int r = volume_open_for_reading(v, &root_fd);
        if (r == 0)
                r = volume_directory_open(v, root_fd, relative, 0, &opened);
        if (r < 0)
                return r;
        r = volume_readback(
                &(ReadbackFile){ opened.dir_fd, opened.name, volume_read_back_counter(v) }, stripes,
                n_stripes, &bad_offset);
        (void)close(opened.dir_fd); /* was only read */
        return r == READBACK_E_DIFFERENT ? UPLOAD_E_EXISTS : r;
}

int volume_sweep(Volume *v, const char *relative) {
        _cleanup_close_ int root_fd = -1;
        VolumeDirectory opened;
        int r = volume_open_for_reading(v, &root_fd);

        if (r == 0)
                r = volume_directory_open(v, root_fd, relative, 0, &opened);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        _cleanup_close_ int dir_fd = opened.dir_fd;
        _cleanup_free_ char *temporary = temporary_name(v, opened.name, false);
        if (!temporary)
                return -ENOMEM;
        return unlinkat(dir_fd, temporary, 0) < 0 && errno != ENOENT ? -errno : 0;
}
