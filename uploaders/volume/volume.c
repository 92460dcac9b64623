/* A volume: finds and creates its root, detects that it is not mounted, checks its free space, and
 * knows which users' files count there.
 *
 * A volume that is not mounted must not be taken for an empty one. So the root is created only
 * where it was not seen before, and the volume remembers how many directories its root was below
 * its mount point: when that number grows, the volume is away. Objects are left to volume_object.c,
 * directories below the root to volume_directory.c, reading and listing to volume_listing.c. */
#include "uploaders/volume/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/neuron/agent_uid.h"
#include "uploaders/volume/volume_error.h"
#include "uploaders/volume/volume_private.h"

struct Volume {
        char *root;
        uint64_t min_free_bytes;
        unsigned min_free_permille;
        bool must_exist;
        mode_t mode;  /* of directories that nodes share */
        char *group;  /* NULL = none */
        char *writer; /* NULL = none */
        char **trusted_uids;
        uid_t own_uid; /* the owner of the last file that this user created there */
        bool has_own_uid;
        /* of the root below its mount point when it was last opened; -1 = never yet */
        int mount_depth;
        atomic_uint_fast64_t n_read_back; /* bytes; read by other threads */
};

#define MAX_MOUNT_DEPTH 256
#define PROBE_BYTES 4096
#define GROUP_BYTES (64 * KIB) /* of the members' names in the database of groups */

DEFINE_CLEANUP(Volume, volume_free);

/* @return 0 and a copy, which ends in NULL; -ENOMEM */
static int copy_users(char *const *users, char ***ret) {
        size_t n = 0;
        while (users && users[n])
                n++;
        *ret = calloc(n + 1, sizeof **ret);
        if (!*ret)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++)
                if (!((*ret)[i] = strdup(users[i])))
                        return -ENOMEM;
        return 0;
}

int volume_new(Volume **ret, const VolumeOptions *options) {
        char *end = NULL;
        unsigned long mode = strtoul(options->mode ? options->mode : "0755", &end, 8);
        if (options->root[0] != '/' || *end != '\0' || mode > 07777)
                return -EINVAL;
        _cleanup_(volume_freep) Volume *v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;
        *v = (Volume){
                .root = path_simplify(options->root),
                .min_free_bytes = options->min_free_bytes,
                .min_free_permille = options->min_free_permille,
                .must_exist = options->must_exist,
                .mode = (mode_t)mode,
                .mount_depth = -1,
        };
        if (!v->root)
                return -ENOMEM;
        if (options->group && options->group[0] && !(v->group = strdup(options->group)))
                return -ENOMEM;
        if (options->writer && !(v->writer = strdup(options->writer)))
                return -ENOMEM;
        int r = copy_users(options->trusted_uids, &v->trusted_uids);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(v);
        return 0;
}

Volume *volume_free(Volume *v) {
        if (!v)
                return NULL;
        for (char **user = v->trusted_uids; user && *user; user++)
                free(*user);
        free(v->trusted_uids);
        free(v->writer);
        free(v->group);
        free(v->root);
        free(v);
        return NULL;
}

const char *volume_root(const Volume *v) {
        return v->root;
}

const char *volume_writer(const Volume *v) {
        return v->writer;
}

mode_t volume_mode(const Volume *v) {
        return v->mode;
}

atomic_uint_fast64_t *volume_read_back_counter(Volume *v) {
        return &v->n_read_back;
}

uint64_t volume_n_read_back(const Volume *v) {
        return atomic_load(&v->n_read_back);
}

/* ── its mount ── */

/* Gets a number for the mount of fd: before Linux 5.8, which has no mount ids, that of the device.
 */
static int mount_id(int fd, uint64_t *ret) {
        struct statx stx;

        if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MNT_ID, &stx) < 0)
                return -errno;
        *ret = stx.stx_mask & STATX_MNT_ID ? stx.stx_mnt_id
                                           : (uint64_t)stx.stx_dev_major << 32 | stx.stx_dev_minor;
        return 0;
}

/* Counts the steps from the root up to its mount point: 0 when it is one. An unmounted volume's
 * mount point belongs to the file system above, so the count grows; mounted again, even as another
 * device (NFS), the count is what it was.
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

/* @return whether a missing root may be created: it was not seen before, or the directory above it
 * is as far below its mount point as it was, so the volume is mounted and only the directory is
 * gone */
static bool may_create_root(const Volume *v) {
        if (v->mount_depth < 0)
                return !v->must_exist;
        _cleanup_free_ char *parent = path_parent(v->root);
        _cleanup_close_ int fd = parent ? open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
        int depth = fd >= 0 ? find_mount_depth(fd) : -1;
        return depth >= 0 && depth < v->mount_depth;
}

/* ── users, groups and modes ── */

/* @return 0 and *ret, (gid_t)-1 = none; -ENXIO: there is no such group; -errno */
static int find_group(const Volume *v, gid_t *ret) {
        struct group group, *found = NULL;
        uint64_t number;

        *ret = (gid_t)-1;
        if (!v->group)
                return 0;
        if (parse_u64_range(v->group, 0, UINT32_MAX - 1, &number) == 0) {
                *ret = (gid_t)number;
                return 0;
        }
        _cleanup_free_ char *space = malloc(GROUP_BYTES);
        int r = space ? getgrnam_r(v->group, &group, space, GROUP_BYTES, &found) : ENOMEM;
        if (!found)
                return r == ENOMEM ? -ENOMEM : -ENXIO;
        *ret = group.gr_gid;
        return 0;
}

/* Creates a file without a name where the file system can do that, so that a crash leaves nothing.
 * Otherwise it has this node's fixed name, so that the node's next probe removes what a crash left.
 * Where another user's file has that name and cannot be removed, the name is random. */
static int create_probe_file(const Volume *v, int root_fd, char name[static NAME_MAX + 1]) {
        const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
        uint64_t random;
        int fd = openat(root_fd, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
        name[0] = '\0';
        if (fd >= 0)
                return fd;
        (void)snprintf(name, NAME_MAX + 1, ".neuron-collectd-probe-%s",
                       v->writer ? v->writer : "doctor");
        (void)unlinkat(root_fd, name, 0); /* on error: openat(2) fails with EEXIST */
        fd = openat(root_fd, name, flags, 0600);
        if (fd >= 0 || errno != EEXIST ||
            getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
                return fd;
        (void)snprintf(name, NAME_MAX + 1, ".neuron-collectd-probe-%016" PRIx64, random);
        return openat(root_fd, name, flags, 0600);
}

int volume_open_probe_file(Volume *v, int root_fd, char name[static NAME_MAX + 1]) {
        struct stat st;
        int fd = create_probe_file(v, root_fd, name);
        if (fd < 0 || fstat(fd, &st) < 0)
                return fd;
        v->own_uid = st.st_uid;
        v->has_own_uid = true;
        return fd;
}

uid_t volume_own_uid(Volume *v, int root_fd) {
        char name[NAME_MAX + 1];
        if (v->has_own_uid)
                return v->own_uid;
        _cleanup_close_ int fd = volume_open_probe_file(v, root_fd, name);
        if (fd >= 0 && name[0] != '\0')
                (void)unlinkat(root_fd, name, 0); /* on error: the next probe removes it */
        return v->has_own_uid ? v->own_uid : geteuid();
}

bool volume_is_trusted(Volume *v, int root_fd, uid_t uid) {
        return agent_uid_is_trusted(uid, volume_own_uid(v, root_fd), v->trusted_uids);
}

int volume_set_group(const Volume *v, int fd, const struct stat *st, bool is_new) {
        gid_t gid;
        int r = find_group(v, &gid);
        if (r < 0)
                return r;
        if (gid == (gid_t)-1 || st->st_gid == gid || fchown(fd, (uid_t)-1, gid) == 0 || !is_new)
                return 0;
        return -errno;
}

int volume_set_directory_mode(const Volume *v, int fd, const struct stat *st, mode_t mode,
                              bool is_new) {
        if (!is_new && st->st_uid != (v->has_own_uid ? v->own_uid : geteuid()))
                return 0;
        int r = volume_set_group(v, fd, st, is_new);
        if (r == 0 && (st->st_mode & 07777) != mode)
                (void)fchmod(fd,
                             mode); /* on error the next write may be refused, which is reported */
        return r;
}

int volume_classify_group(const Volume *v, int error, const char *path, char **ret_error) {
        if (error == ENXIO)
                volume_error_set(
                        ret_error,
                        "unknown group '%s' on this node: create it, or write its number as the "
                        "destination's group",
                        v->group);
        else
                volume_error_set(ret_error,
                                 "cannot give '%s' to group '%s': %s; make uid %u a member of it",
                                 path, v->group, strerror(error), (unsigned)geteuid());
        return UPLOAD_E_UNREACHABLE;
}

/* ── its root ── */

/* Creates the root, durably, in a parent that exists: a path to a volume is not created. */
static int create_root(const Volume *v, char **ret_error) {
        _cleanup_free_ char *parent = path_parent(v->root);
        if (!parent)
                return -ENOMEM;
        if (mkdir(v->root, v->mode) < 0 && errno != EEXIST) {
                if (errno != ENOENT)
                        return volume_error_classify(errno, "make the volume root", v->root,
                                                     ret_error);
                volume_error_set(ret_error,
                                 "volume root '%s' is not there, nor is '%s': is it mounted?",
                                 v->root, parent);
                return UPLOAD_E_UNREACHABLE;
        }
        _cleanup_close_ int parent_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r = parent_fd < 0 ? -errno : fs_sync_dir(parent_fd);
        return r < 0 ? volume_error_classify(-r, "make the volume root in", parent, ret_error) : 0;
}

int volume_open_root(Volume *v, bool create, int *ret_fd, char **ret_error) {
        _cleanup_close_ int fd = open(v->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT && create && may_create_root(v)) {
                int r = create_root(v, ret_error);
                if (r != 0)
                        return r;
                struct stat st;
                fd = open(v->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                r = fd < 0 || fstat(fd, &st) < 0
                            ? 0
                            : volume_set_directory_mode(v, fd, &st, v->mode, true);
                if (r < 0)
                        return volume_classify_group(v, -r, v->root, ret_error);
        }
        if (fd < 0) {
                if (errno != ENOENT)
                        return volume_error_classify(errno, "open the volume root", v->root,
                                                     ret_error);
                volume_error_set(ret_error, "volume root '%s' is not there: is it mounted?",
                                 v->root);
                return UPLOAD_E_UNREACHABLE;
        }
        int depth = find_mount_depth(fd);
        if (v->mount_depth >= 0 && depth > v->mount_depth) {
                volume_error_set(ret_error,
                                 "volume root '%s' is no longer on the mount it was on: mount it "
                                 "again (if it was moved on purpose, restart the agent)",
                                 v->root);
                return UPLOAD_E_UNREACHABLE;
        }
        if (depth >= 0)
                v->mount_depth = depth;
        *ret_fd = TAKE_FD(fd);
        return 0;
}

int volume_open_for_reading(Volume *v, int *ret_fd) {
        _cleanup_free_ char *unused = NULL;
        int r = volume_open_root(v, false, ret_fd, &unused);
        if (r <= 0)
                return r;
        return access(v->root, F_OK) < 0 && errno == ENOENT && may_create_root(v) ? -ENOENT
                                                                                  : -ESTALE;
}

/* ── space, and a test of writing ── */

int volume_check_space(const Volume *v, int fd, uint64_t more_bytes, char **ret_error) {
        char have[PARSE_FORMAT_SIZE], keep[PARSE_FORMAT_SIZE], more[PARSE_FORMAT_SIZE];
        struct statvfs fs;
        uint64_t free_bytes, total_bytes, floor_bytes;

        if (fstatvfs(fd, &fs) < 0)
                return volume_error_classify(errno, "get the free space of", v->root, ret_error);
        if (fs.f_files > 0 && fs.f_favail == 0) {
                volume_error_set(ret_error,
                                 "volume '%s' has no inode left: remove some files there", v->root);
                return UPLOAD_E_FULL;
        }
        if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &free_bytes))
                free_bytes = UINT64_MAX;
        if (__builtin_mul_overflow((uint64_t)fs.f_blocks, (uint64_t)fs.f_frsize, &total_bytes))
                total_bytes = UINT64_MAX;
        floor_bytes = MAX(v->min_free_bytes, total_bytes / 1000 * v->min_free_permille);
        if (free_bytes >= more_bytes && free_bytes - more_bytes >= floor_bytes)
                return 0;
        volume_error_set(
                ret_error,
                "volume '%s' has %s free; %s of it must stay free and %s will be written: free "
                "some space, or lower min_free",
                v->root, parse_format_human(have, free_bytes),
                parse_format_human(keep, floor_bytes), parse_format_human(more, more_bytes));
        return UPLOAD_E_FULL;
}

int volume_probe(Volume *v, char **ret_error) {
        static const char zeros[PROBE_BYTES];
        char name[NAME_MAX + 1];
        _cleanup_close_ int root_fd = -1;

        *ret_error = NULL;
        int r = volume_open_root(v, true, &root_fd, ret_error);
        if (r == 0)
                r = volume_check_space(v, root_fd, 0, ret_error);
        if (r != 0)
                return r;
        _cleanup_close_ int fd = volume_open_probe_file(v, root_fd, name);
        if (fd < 0)
                return volume_error_classify(errno, "make a file in the volume root", v->root,
                                             ret_error);
        r = fs_write_all(fd, zeros, sizeof zeros);
        if (r == 0 && fsync(fd) < 0)
                r = -errno;
        if (name[0] != '\0')
                (void)unlinkat(root_fd, name, 0); /* the next delivery reports a failure */
        return r < 0 ? volume_error_classify(-r, "write in the volume root", v->root, ret_error)
                     : 0;
}

bool volume_trusts(Volume *v, uid_t uid) {
        _cleanup_close_ int root_fd = -1;
        _cleanup_free_ char *unused = NULL;
        return volume_open_root(v, false, &root_fd, &unused) == 0 &&
               volume_is_trusted(v, root_fd, uid);
}

int64_t volume_mtime_usec(const struct stat *st) {
        const struct timespec *t = &st->st_mtim;
        int64_t usec;
        return __builtin_mul_overflow((int64_t)t->tv_sec, (int64_t)USEC_PER_SEC, &usec) ||
                               __builtin_add_overflow(usec, (int64_t)t->tv_nsec / 1000, &usec)
                       ? 0
                       : usec;
}
