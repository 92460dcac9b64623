/* One object on its way to a volume. A crash at any moment leaves either nothing visible or the whole object:
 *   temporary file → fdatasync → read back → link under its name → unlink the temporary name → fsync of the directory. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "uploaders/volume/volume_private.h"
#include "uploaders/volume/volume_readback.h"

#define WINDOW                                                                                     \
        (4 *                                                                                       \
         MIB) /* at most two of them are dirty: an agent must not fill a Lustre client with dirty pages */
#define ROOM_CHECK_BYTES (64 * MIB) /* min_free is looked at this often */

/* Writing */

static int object_fault(VolumeObject *o, int error, const char *doing, char **ret_error) {
        o->error = error;
        return volume_fault(error, doing, o->path, ret_error);
}

/* Sets the window before the last one in motion, and lets go of the one before that once it has arrived.
 * @return 0, -errno of a write that failed behind our back */
static int write_behind(VolumeObject *o) {
        while (o->offset - o->window >= WINDOW) {
                off_t at = (off_t)o->window, n = (off_t)WINDOW;
                (void)sync_file_range(
                        o->fd, at, n,
                        SYNC_FILE_RANGE_WRITE); /* its result is asked for one window later */
                if (o->window >= WINDOW) {
                        at -= n;
                        if (sync_file_range(o->fd, at, n,
                                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                                    SYNC_FILE_RANGE_WAIT_AFTER) < 0 &&
                            errno != EINVAL && errno != ENOSYS && errno != ESPIPE && errno != EPERM)
                                return -errno; /* those four: not to be had here, and fdatasync tells */
                        (void)posix_fadvise(o->fd, at, n, POSIX_FADV_DONTNEED); /* a hint */
                }
                o->window += WINDOW;
        }
        return 0;
}

int volume_write(VolumeObject *o, const void *data, size_t n, char **ret_error) {
        const char *p = data;
        int r;

        *ret_error = NULL;
        if (o->error > 0)
                return object_fault(o, o->error, "write", ret_error);
        if (o->finished || n > INT64_MAX - o->offset)
                return -EINVAL;
        while (n > 0) {
                ssize_t written = pwrite(o->fd, p, n, (off_t)o->offset);
                if (written < 0 && errno == EINTR)
                        continue;
                if (written <= 0)
                        return object_fault(o, written < 0 ? errno : EIO, "write", ret_error);
                p += written;
                n -= (size_t)written;
                o->offset += (uint64_t)written;
        }
        r = write_behind(o);
        if (r < 0)
                return object_fault(o, -r, "write", ret_error);
        if (o->offset < o->next_room_check)
                return 0;
        o->next_room_check = o->offset + ROOM_CHECK_BYTES;
        return volume_check_room(o->volume, o->fd, 0, ret_error);
}

/* Ending */

static bool is_ours(const VolumeObject *o, const struct stat *st) {
        return st->st_dev == o->st.st_dev && st->st_ino == o->st.st_ino;
}

/* Removes the temporary file if it is still the one we made. */
static void drop_temporary(VolumeObject *o) {
        struct stat st;

        if (!o->finished && o->fd >= 0 &&
            fstatat(o->dir_fd, o->temporary, &st, AT_SYMLINK_NOFOLLOW) == 0 && is_ours(o, &st))
                (void)unlinkat(o->dir_fd, o->temporary,
                               0); /* volume_sweep or the next attempt removes it otherwise */
        o->finished = true;
}

VolumeObject *volume_object_free(VolumeObject *o) {
        if (!o)
                return NULL;
        drop_temporary(o);
        if (o->fd >= 0)
                (void)close(o->fd); /* fdatasync has told what there was to tell */
        if (o->dir_fd >= 0)
                (void)close(o->dir_fd);
        free(o->temporary);
        free(o->name);
        free(o->path);
        free(o);
        return NULL;
}

static ReadbackFile file_of(const VolumeObject *o, const char *name) {
        return (ReadbackFile){ o->dir_fd, name, &o->volume->n_read_back };
}

/* The name is taken. The same bytes, proven and made durable: UPLOAD_E_SAME. */
static int judge_existing(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                          char **ret_error) {
        const ReadbackFile file = file_of(o, o->name);
        uint64_t bad_offset;
        int r = volume_readback(&file, stripes, n_stripes, &bad_offset);

        if (r < 0)
                return volume_fault(-r, "read what is there as", o->path, ret_error);
        if (r == READBACK_E_DIFFERENT) {
                volume_say(ret_error,
                           "'%s' is there already and is something else: it is not overwritten; "
                           "move it away",
                           o->path);
                return UPLOAD_E_EXISTS;
        }
        _cleanup_close_ int fd =
                openat(o->dir_fd, o->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        r = fd < 0 || fsync(fd) < 0 ? -errno : fs_sync_dir(o->dir_fd);
        if (r < 0)
                return volume_fault(-r, "sync what is there as", o->path, ret_error);
        drop_temporary(o);
        return UPLOAD_E_SAME;
}

/* Whether a link is not to be had in this way, so that another way may do: no links here, no /proc, or a policy against it. */
static bool is_refusal(int error) {
        static const int refusals[] = { EPERM,  EOPNOTSUPP, ENOSYS,  EMLINK, EINVAL,
                                        EACCES, ENOENT,     ENOTDIR, ELOOP,  EXDEV };

        for (size_t i = 0; i < ELEMENTSOF(refusals); i++)
                if (error == refusals[i])
                        return true;
        return false;
}

/* Whether the temporary name still is this object's file: another worker on the same object (this one having been given up as hung)
 * may have made it anew. */
static bool has_temporary(const VolumeObject *o) {
        struct stat ours, named;

        return fstat(o->fd, &ours) == 0 &&
               fstatat(o->dir_fd, o->temporary, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
               ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

/* Names the very file that was written, whatever has the temporary name by now: one that nobody names any more cannot be linked.
 * @return false and errno: refused (no /proc, no links here), or EEXIST */
static bool link_by_descriptor(const VolumeObject *o) {
        char self[64];

        (void)snprintf(self, sizeof self, "/proc/self/fd/%d", o->fd);
        return linkat(AT_FDCWD, self, o->dir_fd, o->name, AT_SYMLINK_FOLLOW) == 0;
}

/* What a worker is told whose file another one has taken from it: EEXIST's sentence, which names the remedy. */
static int lost_temporary(VolumeObject *o, char **ret_error) {
        return object_fault(o, EEXIST, "name", ret_error);
}

/* Gives the temporary file its name without replacing anything. Where there are neither hard links nor RENAME_NOREPLACE (some FUSE), the
 * name is looked at and then taken: not atomic, but nobody else writes names with our instance id in them.
 * @return 0, -EEXIST, -ESTALE (the temporary name is another file's), -errno */
static int take_name(VolumeObject *o) {
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
        if (fstatat(o->dir_fd, o->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return -EEXIST;
        if (errno != ENOENT)
                return -errno;
        return renameat(o->dir_fd, o->temporary, o->dir_fd, o->name) < 0 ? -errno : 0;
}

/* Makes the bytes durable and proves them, still under the temporary name. */
static int prove(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes, char **ret_error) {
        uint64_t bad_offset;
        int r;

        if (fdatasync(o->fd) < 0)
                return object_fault(o, errno, "sync", ret_error);
        (void)posix_fadvise(o->fd, 0, 0, POSIX_FADV_DONTNEED); /* a hint */
        const ReadbackFile file = file_of(o, o->temporary);
        r = volume_readback(&file, stripes, n_stripes, &bad_offset);
        if (r < 0)
                return object_fault(o, -r, "read back", ret_error);
        if (r == 0)
                return 0;
        volume_say(ret_error,
                   "'%s' reads back differently than it was written, from byte %" PRIu64
                   " on: the copy was removed; check the volume if it happens again",
                   o->path, bad_offset);
        drop_temporary(o);
        return UPLOAD_E_MISMATCH;
}

/* The object has its name: gives up the temporary one, if it has that still, and makes both durable in one step. A file system that loses
 * the first of two changes to one directory and keeps the second is none of those that a loss of power leaves whole; and a sync
 * that came before the second would let a loss of power bring the temporary name back, when nobody looks for it any more. */
static int finish(VolumeObject *o, char **ret_error) {
        drop_temporary(o);
        int r = fs_sync_dir(o->dir_fd);
        if (r < 0) /* visible, perhaps not durable: the next attempt finds it and proves it */
                return object_fault(o, -r, "sync the directory of", ret_error);
        return 0;
}

static int publish(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                   char **ret_error) {
        int r = take_name(o);

        if (r == -EEXIST)
                return judge_existing(o, stripes, n_stripes, ret_error);
        if (r == -ESTALE && !has_temporary(o))
                return lost_temporary(o, ret_error);
        return r < 0 ? object_fault(o, -r, "name", ret_error) : finish(o, ret_error);
}

/* Whether the call makes sense and the object is fit for it. */
static int check_ending(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                        char **ret_error) {
        uint64_t total = 0;

        *ret_error = NULL;
        for (size_t i = 0; i < n_stripes; i++)
                if (__builtin_add_overflow(total, stripes[i].bytes, &total))
                        return -EINVAL;
        if (o->error > 0)
                return object_fault(o, o->error, "write", ret_error);
        return o->finished || total != o->offset ? -EINVAL : 0;
}

int volume_commit(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                  char **ret_error) {
        struct stat st;
        int r = check_ending(o, stripes, n_stripes, ret_error);

        if (r != 0)
                return r;
        if (fstatat(o->dir_fd, o->name, &st, AT_SYMLINK_NOFOLLOW) ==
            0) /* an earlier life got this far */
                return judge_existing(o, stripes, n_stripes, ret_error);
        if (errno != ENOENT)
                return object_fault(o, errno, "look for", ret_error);
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
                return object_fault(o, errno, "replace", ret_error);
        return finish(o, ret_error);
}
