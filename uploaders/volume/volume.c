/* A destination that is a directory: where it is, whether there is room, whether it is still the one it was. What happens to one
 * object is volume_object.c's. */
#include "uploaders/volume/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "uploaders/volume/volume_private.h"
#include "uploaders/volume/volume_readback.h"

#define MAX_MOUNT_DEPTH 256
#define PROBE_BYTES 4096

DEFINE_CLEANUP(Volume, volume_free);

int volume_new(Volume **ret, const VolumeOptions *options) {
        if (options->root[0] != '/')
                return -EINVAL;
        _cleanup_(volume_freep) Volume *v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;
        *v = (Volume){
                .root = path_simplify(options->root),
                .min_free_bytes = options->min_free_bytes,
                .min_free_permille = options->min_free_permille,
                .must_exist = options->must_exist,
                .mount_depth = -1,
        };
        if (!v->root)
                return -ENOMEM;
        *ret = TAKE_PTR(v);
        return 0;
}

Volume *volume_free(Volume *v) {
        if (!v)
                return NULL;
        free(v->root);
        free(v);
        return NULL;
}

uint64_t volume_n_read_back(const Volume *v) {
        return atomic_load(&v->n_read_back);
}

/* Where it is */

/* Numbers the mount that fd is on. The device does for kernels before 5.8, which tell no mount. */
static int mount_id(int fd, uint64_t *ret) {
        struct statx stx;

        if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MNT_ID, &stx) < 0)
                return -errno;
        *ret = stx.stx_mask & STATX_MNT_ID ? stx.stx_mnt_id
                                           : (uint64_t)stx.stx_dev_major << 32 | stx.stx_dev_minor;
        return 0;
}

/* Counts the steps from the root up to its mount point: 0 when it is one. An unmounted volume's mount point belongs to the file
 * system above, so the count grows; mounted again, even as another device (NFS), the count is what it was.
 * @return -1 unknown */
static int find_mount_depth(int root_fd) {
        uint64_t id, parent_id;
        struct stat st, parent_st;
        _cleanup_close_ int at_fd = openat(root_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (at_fd < 0 || mount_id(at_fd, &id) < 0)
                return -1;

        for (int depth = 0; depth < MAX_MOUNT_DEPTH; depth++) {
                int parent_fd = openat(at_fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
                if (parent_fd < 0)
                        return -1;
                (void)close(at_fd); /* a path only */
                at_fd = parent_fd;
                if (mount_id(at_fd, &parent_id) < 0 || fstat(at_fd, &parent_st) < 0)
                        return -1;
                if (parent_id != id)
                        return depth;
                if (depth > 0 && parent_st.st_ino == st.st_ino && parent_st.st_dev == st.st_dev)
                        return depth; /* `..` of the topmost directory is itself */
                st = parent_st;
        }
        return -1;
}

/* Whether a root that is missing may be made: nothing says that it was there before, or the directory above it still is as far below
 * its mount point as it was, so the volume is there and only the directory is gone. */
static bool may_make_root(const Volume *v) {
        if (v->mount_depth < 0)
                return !v->must_exist;
        _cleanup_free_ char *parent = path_parent(v->root);
        _cleanup_close_ int fd = parent ? open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
        int depth = fd >= 0 ? find_mount_depth(fd) : -1;
        return depth >= 0 && depth < v->mount_depth;
}

/* Makes the root, durably. Its parent must be there: we do not build where a volume should be. */
static int make_root(const Volume *v, char **ret_error) {
        _cleanup_free_ char *parent = path_parent(v->root);
        if (!parent)
                return -ENOMEM;
        if (mkdir(v->root, 0750) < 0 && errno != EEXIST) {
                if (errno != ENOENT)
                        return volume_fault(errno, "make the volume root", v->root, ret_error);
                volume_say(ret_error, "volume root '%s' is not there, nor is '%s': is it mounted?",
                           v->root, parent);
                return UPLOAD_E_AWAY;
        }
        _cleanup_close_ int parent_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r = parent_fd < 0 ? -errno : fs_sync_dir(parent_fd);
        return r < 0 ? volume_fault(-r, "make the volume root in", parent, ret_error) : 0;
}

int volume_open_root(Volume *v, bool create, int *ret_fd, char **ret_error) {
        _cleanup_close_ int fd = open(v->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT && create && may_make_root(v)) {
                int r = make_root(v, ret_error);
                if (r != 0)
                        return r;
                fd = open(v->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        }
        if (fd < 0) {
                if (errno != ENOENT)
                        return volume_fault(errno, "open the volume root", v->root, ret_error);
                volume_say(ret_error, "volume root '%s' is not there: is it mounted?", v->root);
                return UPLOAD_E_AWAY;
        }
        int depth = find_mount_depth(fd);
        if (v->mount_depth >= 0 && depth > v->mount_depth) {
                volume_say(ret_error,
                           "volume root '%s' is no longer on the mount it was on: mount it again "
                           "(if it was moved on "
                           "purpose, restart the agent)",
                           v->root);
                return UPLOAD_E_AWAY;
        }
        if (depth >= 0)
                v->mount_depth = depth;
        *ret_fd = TAKE_FD(fd);
        return 0;
}

/* Whether there is room */

int volume_check_room(const Volume *v, int fd, uint64_t more_bytes, char **ret_error) {
        char have[PARSE_FORMAT_SIZE], keep[PARSE_FORMAT_SIZE], more[PARSE_FORMAT_SIZE];
        struct statvfs fs;
        uint64_t free_bytes, total_bytes, floor_bytes;

        if (fstatvfs(fd, &fs) < 0)
                return volume_fault(errno, "ask for the free space of", v->root, ret_error);
        if (fs.f_files > 0 && fs.f_favail == 0) {
                volume_say(ret_error, "volume '%s' has no inode left: remove some files there",
                           v->root);
                return UPLOAD_E_FULL;
        }
        if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &free_bytes))
                free_bytes = UINT64_MAX;
        if (__builtin_mul_overflow((uint64_t)fs.f_blocks, (uint64_t)fs.f_frsize, &total_bytes))
                total_bytes = UINT64_MAX;
        floor_bytes = MAX(v->min_free_bytes, total_bytes / 1000 * v->min_free_permille);
        if (free_bytes >= more_bytes && free_bytes - more_bytes >= floor_bytes)
                return 0;
        volume_say(ret_error,
                   "volume '%s' has %s free; %s of it are to stay free and %s are to be written: "
                   "free some space, or lower min_free",
                   v->root, parse_format_human(have, free_bytes),
                   parse_format_human(keep, floor_bytes), parse_format_human(more, more_bytes));
        return UPLOAD_E_FULL;
}

/* Objects by name */

static bool is_plain_name(const char *s, size_t n) {
        return n > 0 && n <= NAME_MAX && !(n == 1 && s[0] == '.') &&
               !(n == 2 && s[0] == '.' && s[1] == '.');
}

/* The way to an object, as far as it was gone. */
typedef struct Way {
        int dir_fd;       /* the directory it lives in; the caller's */
        const char *name; /* its own, in what was asked for */
        const char *step; /* what was tried last */
} Way;

/* Opens the directory an object lives in, making what is missing. Every parent is fsynced, also where nothing was missing: who made
 * the directory may have crashed before its fsync. @return 0 or -errno, when only ret->step is set */
static int open_directories(int root_fd, const char *relative, bool create, Way *ret) {
        char name[NAME_MAX + 1];
        _cleanup_close_ int at_fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 3);
        ret->step = "open";
        if (at_fd < 0)
                return -errno;

        for (unsigned depth = 0; depth < FS_DEPTH_MAX; depth++) {
                size_t n = strcspn(relative, "/");
                if (!is_plain_name(relative, n))
                        return -EINVAL;
                if (relative[n] == '\0') {
                        ret->name = relative;
                        ret->dir_fd = TAKE_FD(at_fd);
                        return 0;
                }
                memcpy(name, relative, n);
                name[n] = '\0';
                ret->step = "make the directory of";
                if (create && mkdirat(at_fd, name, 0750) < 0 && errno != EEXIST)
                        return -errno;
                ret->step = "open the directory of";
                int fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (fd < 0)
                        return -errno;
                int r = create ? fs_sync_dir(at_fd) : 0;
                (void)close(at_fd); /* was only read */
                at_fd = fd;
                if (r < 0)
                        return r;
                relative += n + 1;
        }
        return -ENAMETOOLONG;
}

/* A crash leaves a file of this name; the next attempt at the same object, or volume_sweep, removes it. One name an object is enough:
 * an object's name holds the instance id, and one instance has one agent (the lock in its state directory). */
static char *temporary_name(const char *name) {
        char *text = NULL;
        return asprintf(&text, ".%s.neuron-collectd-tmp", name) < 0 ? NULL : text;
}

static int make_temporary(VolumeObject *o, char **ret_error) {
        if (unlinkat(o->dir_fd, o->temporary, 0) < 0 && errno != ENOENT)
                return volume_fault(errno, "remove the old temporary file of", o->path, ret_error);
        o->fd = openat(o->dir_fd, o->temporary,
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
        if (o->fd < 0 || fstat(o->fd, &o->st) < 0)
                return volume_fault(errno, "make a temporary file for", o->path, ret_error);
        return 0;
}

int volume_begin(Volume *v, const char *relative, uint64_t size_hint_bytes, VolumeObject **ret,
                 char **ret_error) {
        _cleanup_close_ int root_fd = -1;
        Way way;
        int r;

        *ret_error = NULL;
        _cleanup_(volume_object_freep) VolumeObject *o = calloc(1, sizeof *o);
        if (!o)
                return -ENOMEM;
        *o = (VolumeObject){
                .volume = v, .dir_fd = -1, .fd = -1, .path = path_join(v->root, relative)
        };
        if (!o->path)
                return -ENOMEM;
        r = volume_open_root(v, true, &root_fd, ret_error);
        if (r != 0)
                return r;
        r = volume_check_room(v, root_fd, size_hint_bytes, ret_error);
        if (r != 0)
                return r;
        r = open_directories(root_fd, relative, true, &way);
        if (r == -EINVAL || r == -ENAMETOOLONG)
                return r; /* the name, not the volume */
        if (r < 0)
                return volume_fault(-r, way.step, o->path, ret_error);
        o->dir_fd = way.dir_fd;
        o->name = strdup(way.name);
        o->temporary = temporary_name(way.name);
        if (!o->name || !o->temporary)
                return -ENOMEM;
        if (strlen(o->temporary) > NAME_MAX)
                return -ENAMETOOLONG;
        r = make_temporary(o, ret_error);
        if (r != 0)
                return r;
        *ret = TAKE_PTR(o);
        return 0;
}

/* For what only looks: a volume that is away shows as ESTALE, one that was never there as ENOENT. */
static int open_to_look(Volume *v, int *ret_fd) {
        _cleanup_free_ char *unused = NULL;
        int r = volume_open_root(v, false, ret_fd, &unused);
        if (r <= 0)
                return r;
        return access(v->root, F_OK) < 0 && errno == ENOENT && may_make_root(v) ? -ENOENT : -ESTALE;
}

int volume_read_head(Volume *v, const char *relative, size_t max_bytes, char **ret, size_t *ret_n) {
        _cleanup_close_ int root_fd = -1, fd = -1;
        int r = open_to_look(v, &root_fd);
        if (r < 0)
                return r;
        fd = fs_open_regular(root_fd, relative, NULL);
        return fd < 0 ? fd : fs_read_head(fd, max_bytes, ret, ret_n);
}

int volume_verify(Volume *v, const char *relative, const VolumeStripe *stripes, size_t n_stripes) {
        _cleanup_close_ int root_fd = -1;
        uint64_t bad_offset;
        Way way;
        int r = open_to_look(v, &root_fd);
        if (r == 0)
                r = open_directories(root_fd, relative, false, &way);
        if (r < 0)
                return r;
        r = volume_readback(&(ReadbackFile){ way.dir_fd, way.name, &v->n_read_back }, stripes,
                            n_stripes, &bad_offset);
        (void)close(way.dir_fd); /* was only read */
        return r == READBACK_E_DIFFERENT ? UPLOAD_E_EXISTS : r;
}

int volume_sweep(Volume *v, const char *relative) {
        _cleanup_close_ int root_fd = -1;
        Way way;
        int r = open_to_look(v, &root_fd);

        if (r == 0)
                r = open_directories(root_fd, relative, false, &way);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        _cleanup_close_ int dir_fd = way.dir_fd;
        _cleanup_free_ char *temporary = temporary_name(way.name);
        if (!temporary)
                return -ENOMEM;
        return unlinkat(dir_fd, temporary, 0) < 0 && errno != ENOENT ? -errno : 0;
}

/* Without a name where the file system can do that, so that a crash leaves nothing; else under one that is the same for all nodes, so that
 * whoever comes next removes what a crash left. Two that meet there harm nothing: each writes to what it opened. */
static int open_probe_file(int root_fd, char name[static NAME_MAX + 1]) {
        int fd = openat(root_fd, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
        name[0] = '\0';
        if (fd >= 0)
                return fd;
        (void)snprintf(name, NAME_MAX + 1, ".neuron-collectd-probe-%u", (unsigned)geteuid());
        return openat(root_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
}

int volume_probe(Volume *v, char **ret_error) {
        static const char zeros[PROBE_BYTES];
        char name[NAME_MAX + 1];
        _cleanup_close_ int root_fd = -1;
        int r;

        *ret_error = NULL;
        r = volume_open_root(v, true, &root_fd, ret_error);
        if (r == 0)
                r = volume_check_room(v, root_fd, 0, ret_error);
        if (r != 0)
                return r;
        _cleanup_close_ int fd = open_probe_file(root_fd, name);
        if (fd < 0)
                return volume_fault(errno, "make a file in the volume root", v->root, ret_error);
        r = fs_write_all(fd, zeros, sizeof zeros);
        if (r == 0 && fsync(fd) < 0)
                r = -errno;
        if (name[0] != '\0')
                (void)unlinkat(root_fd, name, 0); /* a failure is told by the next delivery */
        return r < 0 ? volume_fault(-r, "write in the volume root", v->root, ret_error) : 0;
}
