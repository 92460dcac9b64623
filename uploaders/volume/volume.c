#include "uploaders/volume/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/agent_uid.h"

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

struct VolumeObject {
        Volume *volume;           /* borrowed */
        const VolumeWrite *small; /* borrowed; NULL: a bundle's object */
        char *path;               /* of the object, for people */
        char *name, *temporary;   /* in dir_fd */
        int dir_fd, fd;
        struct stat st;     /* of the temporary file when it was new: its identity */
        uint64_t made_usec; /* of a small one, CLOCK_BOOTTIME: not before */
        uint64_t offset;    /* bytes written so far */
        uint64_t window;    /* where the window begins that is not yet on its way to the storage */
        uint64_t next_room_check;
        int error; /* errno of what made it useless, returned by every later call; 0 */
        /* committed, found to be there, or given up: there is no temporary file of ours any more */
        bool finished;
};

/* ---- what an errno means: wait for room, wait for the volume, or a failure of this process; and
 * what a person can do ---- */

typedef struct Meaning {
        int error, outcome;
        const char *remedy;
} Meaning;

/* clang-format off */
static const Meaning meanings[] = {
        { ENOSPC,       UPLOAD_E_FULL, "free some space or inodes there" },
        { EDQUOT,       UPLOAD_E_FULL, "free some space there, or raise the quota" },
        { EROFS,        UPLOAD_E_UNREACHABLE, "mount it read-write" },
        { ENOENT,       UPLOAD_E_UNREACHABLE, "is the volume mounted?" },
        { ENOTCONN,     UPLOAD_E_UNREACHABLE, "its file system process has ended: mount it again" },
        { ESTALE,       UPLOAD_E_UNREACHABLE, "the server has forgotten it: mount it again" },
        { ELOOP,        UPLOAD_E_UNREACHABLE, "a symlink is in the way: remove it, or name its target in the configuration" },
        { ENOTDIR,      UPLOAD_E_UNREACHABLE, "something that is not a directory is in the way: remove it" },
        { EISDIR,       UPLOAD_E_UNREACHABLE, "a directory is in the way: remove it" },
        { EEXIST,       UPLOAD_E_UNREACHABLE, "another agent is writing the same object: give each its own node.instance_id" },
        { EFBIG,        UPLOAD_E_UNREACHABLE, "the file system or a limit (ulimit -f) allows no file of this size" },
        { ETIMEDOUT,    UPLOAD_E_UNREACHABLE, "the server does not answer: see whether it runs" },
        { EIO,          UPLOAD_E_UNREACHABLE, "the storage failed: see the kernel log" },
};

/* clang-format on */

_printf_(2, 3) static void set_error(char **ret_error, const char *fmt, ...) {
        va_list args;

        va_start(args, fmt);
        char *text = strbuf_vformat(fmt, args);
        va_end(args);
        free(*ret_error);
        *ret_error = text;
}

/* @param doing  `cannot <doing> '<path>'`  @return UPLOAD_E_FULL, UPLOAD_E_UNREACHABLE, or -errno
 * of a failure of this process */
static int classify_errno(int error, const char *doing, const char *path, char **ret_error) {
        switch (error) {
        case ENOMEM: /* ours, not the volume's */
        case EMFILE:
        case ENFILE:
                return -error;
        case EACCES:
        case EPERM:
                set_error(ret_error, "cannot %s '%s': %s; let uid %u write there", doing, path,
                          strerror(error), (unsigned)geteuid());
                return UPLOAD_E_UNREACHABLE;
        }
        for (size_t i = 0; i < ELEMENTSOF(meanings); i++)
                if (meanings[i].error == error) {
                        set_error(ret_error, "cannot %s '%s': %s; %s", doing, path, strerror(error),
                                  meanings[i].remedy);
                        return meanings[i].outcome;
                }
        set_error(ret_error, "cannot %s '%s': %s; check the volume and the kernel log", doing, path,
                  strerror(error));
        return UPLOAD_E_UNREACHABLE;
}

static int classify_small(int error, const char *doing, const char *path, char **ret_error) {
        int r = classify_errno(error, doing, path, ret_error);
        return error == EACCES || error == EPERM || error == EROFS ? UPLOAD_E_DENIED : r;
}

static int classify(const VolumeObject *o, int error, const char *doing, char **ret_error) {
        return (o->small ? classify_small : classify_errno)(error, doing, o->path, ret_error);
}

/* A destination that is a directory: where it is, whether there is room, whether it is still the
 * one it was. */

#define MAX_MOUNT_DEPTH 256
#define PROBE_BYTES 4096
#define GROUP_BYTES (64 * KIB) /* of the members' names in the database of groups */
#define READ_BYTES (256 * KIB)
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

uint64_t volume_n_read_back(const Volume *v) {
        return atomic_load(&v->n_read_back);
}

/* Where it is */

/* Numbers the mount that fd is on. The device does for kernels before 5.8, which report no
 * mount. */
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

/* Whether a root that is missing may be made: nothing says that it was there before, or the
 * directory above it still is as far below its mount point as it was, so the volume is there and
 * only the directory is gone. */
static bool may_create_root(const Volume *v) {
        if (v->mount_depth < 0)
                return !v->must_exist;
        _cleanup_free_ char *parent = path_parent(v->root);
        _cleanup_close_ int fd = parent ? open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
        int depth = fd >= 0 ? find_mount_depth(fd) : -1;
        return depth >= 0 && depth < v->mount_depth;
}

/* Who may use what */

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

/* Creates a file, and records its owner as own_uid. */
static int open_probe_file(Volume *v, int root_fd, char name[static NAME_MAX + 1]) {
        struct stat st;
        int fd = create_probe_file(v, root_fd, name);
        if (fd < 0 || fstat(fd, &st) < 0)
                return fd;
        v->own_uid = st.st_uid;
        v->has_own_uid = true;
        return fd;
}

/* @return the uid that the file system gives to files of this user: not geteuid(2) where the server
 * maps users (root_squash) */
static uid_t own_uid(Volume *v, int root_fd) {
        char name[NAME_MAX + 1];
        if (v->has_own_uid)
                return v->own_uid;
        _cleanup_close_ int fd = open_probe_file(v, root_fd, name);
        if (fd >= 0 && name[0] != '\0')
                (void)unlinkat(root_fd, name, 0); /* on error: the next probe removes it */
        return v->has_own_uid ? v->own_uid : geteuid();
}

static bool is_trusted(Volume *v, int root_fd, uid_t uid) {
        return agent_uid_is_trusted(uid, own_uid(v, root_fd), v->trusted_uids);
}

/* Gives something to the group. One that was there before stays as it is where that is refused.
 * @return 0, -ENXIO, -errno: classify_group() */
static int set_group(const Volume *v, int fd, const struct stat *st, bool is_new) {
        gid_t gid;
        int r = find_group(v, &gid);
        if (r < 0)
                return r;
        if (gid == (gid_t)-1 || st->st_gid == gid || fchown(fd, (uid_t)-1, gid) == 0 || !is_new)
                return 0;
        return -errno;
}

/* Gives a directory its group and mode, whatever the umask: one that was made, or that an earlier
 * life of ours has made otherwise. Mounts without modes (CIFS, FUSE) refuse, or do nothing. */
static int set_directory(const Volume *v, int fd, const struct stat *st, mode_t mode, bool is_new) {
        if (!is_new && st->st_uid != (v->has_own_uid ? v->own_uid : geteuid()))
                return 0;
        int r = set_group(v, fd, st, is_new);
        if (r == 0 && (st->st_mode & 07777) != mode)
                (void)fchmod(fd, mode); /* whoever cannot write there reports it */
        return r;
}

static int classify_group(const Volume *v, int error, const char *path, char **ret_error) {
        if (error == ENXIO)
                set_error(ret_error,
                          "no group '%s' is known on this node: create it, or give its number "
                          "as the destination's group",
                          v->group);
        else
                set_error(ret_error,
                          "cannot give '%s' to group '%s': %s; make uid %u a member of it", path,
                          v->group, strerror(error), (unsigned)geteuid());
        return UPLOAD_E_UNREACHABLE;
}

/* Makes the root, durably. Its parent must be there: we do not build where a volume should be. */
static int create_root(const Volume *v, char **ret_error) {
        _cleanup_free_ char *parent = path_parent(v->root);
        if (!parent)
                return -ENOMEM;
        if (mkdir(v->root, v->mode) < 0 && errno != EEXIST) {
                if (errno != ENOENT)
                        return classify_errno(errno, "make the volume root", v->root, ret_error);
                set_error(ret_error, "volume root '%s' is not there, nor is '%s': is it mounted?",
                          v->root, parent);
                return UPLOAD_E_UNREACHABLE;
        }
        _cleanup_close_ int parent_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r = parent_fd < 0 ? -errno : fs_sync_dir(parent_fd);
        return r < 0 ? classify_errno(-r, "make the volume root in", parent, ret_error) : 0;
}

/* @return 0 and the root, the caller's; UPLOAD_E_UNREACHABLE */
static int open_root(Volume *v, bool create, int *ret_fd, char **ret_error) {
        _cleanup_close_ int fd = open(v->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT && create && may_create_root(v)) {
                int r = create_root(v, ret_error);
                if (r != 0)
                        return r;
                struct stat st;
                fd = open(v->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                r = fd < 0 || fstat(fd, &st) < 0 ? 0 : set_directory(v, fd, &st, v->mode, true);
                if (r < 0)
                        return classify_group(v, -r, v->root, ret_error);
        }
        if (fd < 0) {
                if (errno != ENOENT)
                        return classify_errno(errno, "open the volume root", v->root, ret_error);
                set_error(ret_error, "volume root '%s' is not there: is it mounted?", v->root);
                return UPLOAD_E_UNREACHABLE;
        }
        int depth = find_mount_depth(fd);
        if (v->mount_depth >= 0 && depth > v->mount_depth) {
                set_error(ret_error,
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

/* Whether there is room */

static int check_room(const Volume *v, int fd, uint64_t more_bytes, char **ret_error) {
        char have[PARSE_FORMAT_SIZE], keep[PARSE_FORMAT_SIZE], more[PARSE_FORMAT_SIZE];
        struct statvfs fs;
        uint64_t free_bytes, total_bytes, floor_bytes;

        if (fstatvfs(fd, &fs) < 0)
                return classify_errno(errno, "get the free space of", v->root, ret_error);
        if (fs.f_files > 0 && fs.f_favail == 0) {
                set_error(ret_error, "volume '%s' has no inode left: remove some files there",
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
        set_error(ret_error,
                  "volume '%s' has %s free; %s of it must stay free and %s will be written: free "
                  "some space, or lower min_free",
                  v->root, parse_format_human(have, free_bytes),
                  parse_format_human(keep, floor_bytes), parse_format_human(more, more_bytes));
        return UPLOAD_E_FULL;
}

/* Objects by name */

static bool is_plain_name(const char *s, size_t n) {
        return n > 0 && n <= NAME_MAX && !(n == 1 && s[0] == '.') &&
               !(n == 2 && s[0] == '.' && s[1] == '.');
}

#define OWN_MODE 0755 /* of a directory that one node alone writes to */

/* The result of opening the directories of an object, up to the component that failed. A component
 * is given by the offset of its end in the requested path. */
typedef struct VolumeWay {
        int dir_fd;       /* the object's directory; the caller's */
        const char *name; /* the object's name, in the requested path */
        const char *step; /* the last action, for a sentence; NULL: set the group */
        size_t end;       /* the last component that was opened or failed */
        size_t refused;   /* the component that refuses this node; 0: none, or the root */
        bool is_missing;  /* the last component could not be created */
        bool is_foreign;  /* the last component's owner is no agent: */
        uid_t owner;
} VolumeWay;

/* A component to open. */
typedef struct VolumeStep {
        int root_fd, at_fd; /* at_fd: its parent directory */
        char name[NAME_MAX + 1];
        mode_t mode; /* to create it with; 0: do not create it */
} VolumeStep;

/* @return fd; -errno */
static int open_component(Volume *v, const VolumeStep *s, VolumeWay *way) {
        struct stat st;
        way->step = "make the directory of";
        bool is_new = s->mode != 0 && mkdirat(s->at_fd, s->name, s->mode) == 0;
        way->is_missing = s->mode != 0 && !is_new && errno != EEXIST;
        if (way->is_missing)
                return -errno;
        way->step = "open the directory of";
        _cleanup_close_ int fd =
                openat(s->at_fd, s->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (s->mode == 0)
                return TAKE_FD(fd);
        way->is_foreign = !is_trusted(v, s->root_fd, st.st_uid);
        way->owner = st.st_uid;
        if (way->is_foreign)
                return -EPERM;
        int r = fs_sync_dir(s->at_fd);
        if (r < 0)
                return r;
        r = set_directory(v, fd, &st, s->mode, is_new);
        if (r < 0)
                way->step = NULL;
        return r < 0 ? r : TAKE_FD(fd);
}

static bool is_refusal_of_directory(int error) {
        return error == EACCES || error == EPERM || error == ENOTDIR || error == ELOOP;
}

/* @return the component to replace by one beside it: `end`, but its parent when `end` is the node's
 * own directory */
static size_t find_refusing(const Volume *v, const char *relative, size_t end, size_t above) {
        const char *name = relative + above + (above > 0);
        size_t n = end - (size_t)(name - relative);
        bool is_own = v->writer && strlen(v->writer) == n && memcmp(name, v->writer, n) == 0;
        return is_own && above > 0 ? above : end;
}

/* Opens the directory of an object and creates missing directories. Every parent is fsynced, also
 * where nothing was missing: another node that created the directory may have crashed before its
 * fsync.
 * @param own_mode  mode of that directory, those above have the volume's; 0: create nothing
 * @return 0; -errno, without dir_fd and name */
static int open_directories(Volume *v, int root_fd, const char *relative, mode_t own_mode,
                            VolumeWay *ret) {
        VolumeStep s = { .root_fd = root_fd };
        size_t end = 0, above = 0; /* the ends of this component, and of the one above it */
        _cleanup_close_ int at_fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 3);
        *ret = (VolumeWay){ .dir_fd = -1, .step = "open" };
        if (at_fd < 0)
                return -errno;

        for (unsigned depth = 0; depth < FS_DEPTH_MAX; depth++) {
                const char *name = relative + end + (depth > 0);
                size_t n = strcspn(name, "/");
                if (!is_plain_name(name, n))
                        return -EINVAL;
                if (name[n] == '\0') {
                        ret->step = "write in the directory of";
                        if (own_mode != 0 && depth > 0 && faccessat(at_fd, ".", W_OK, 0) < 0 &&
                            errno == EACCES) {
                                ret->refused = find_refusing(v, relative, end, above);
                                return -EACCES;
                        }
                        ret->name = name;
                        ret->dir_fd = TAKE_FD(at_fd);
                        return 0;
                }
                memcpy(s.name, name, n);
                s.name[n] = '\0';
                s.at_fd = at_fd;
                s.mode = own_mode == 0 ? 0 : strchr(name + n + 1, '/') ? v->mode : own_mode;
                above = end;
                ret->end = end = (size_t)(name - relative) + n;
                int fd = open_component(v, &s, ret);
                if (fd < 0 && ret->step && is_refusal_of_directory(-fd))
                        ret->refused =
                                ret->is_missing ? above : find_refusing(v, relative, end, above);
                if (fd < 0)
                        return fd;
                (void)close(at_fd); /* was only read */
                at_fd = fd;
        }
        return -ENAMETOOLONG;
}

/* @return the path of an object beside the component that refuses this node, the caller's; NULL for
 * lack of memory */
static char *path_beside(const Volume *v, const char *relative, size_t refused) {
        size_t n = relative[0] == '.' ? strcspn(relative, "/") : refused;
        return strbuf_format("%.*s.%s%s", (int)n, relative, v->writer, relative + n);
}

/* @param error  positive errno of open_directories() for `relative`
 * @return UPLOAD_E_*; -EINVAL, -ENAMETOOLONG: the name, not the volume; -errno of this process */
static int classify_way(const Volume *v, const VolumeWay *way, int error, const char *relative,
                        char **ret_error) {
        _cleanup_free_ char *path = path_join(v->root, relative);
        if (!path || error == EINVAL || error == ENAMETOOLONG)
                return path ? -error : -ENOMEM;
        if (!way->step)
                return classify_group(v, error, path, ret_error);
        if (!way->is_foreign)
                return classify_errno(error, way->step, path, ret_error);
        set_error(ret_error,
                  "'%s/%.*s' belongs to uid %u, which is not an agent's user; remove it, or add "
                  "that user to "
                  "agreement.trusted_uids",
                  v->root, (int)way->end, relative, (unsigned)way->owner);
        return UPLOAD_E_UNREACHABLE;
}

/* A crash leaves a file of this name; the next attempt at the same object, or volume_sweep,
 * removes it. One name an object is enough: an object's name holds the instance id, and one
 * instance has one agent (the lock in its state directory). That of a small one holds the writer's,
 * so that nodes which create the same object do not meet there. */
#define TEMPORARY_SUFFIX ".neuron-collectd-tmp"

static char *temporary_name(const Volume *v, const char *name, bool is_small) {
        bool has_writer = is_small && v->writer;
        return strbuf_format(".%s%s%s" TEMPORARY_SUFFIX, name, has_writer ? "." : "",
                             has_writer ? v->writer : "");
}

/* Whoever is let into the directory may read a small one. */
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
        int r = set_group(v, o->fd, &o->st, true);
        if (r < 0)
                return classify_group(v, -r, o->path, ret_error);
        if (o->small)
                (void)fchmod(o->fd, 0640 | (v->mode & 0004)); /* mounts without modes refuse */
        return 0;
}

/* That of a bundle is this node's alone, and so is one that is named after the node. */
static mode_t directory_mode(const VolumeObject *o, const char *relative) {
        const char *writer = o->volume->writer;
        if (!o->small)
                return OWN_MODE;
        _cleanup_free_ char *parent = path_parent(relative);
        return parent && writer && strcmp(path_name(parent), writer) == 0 ? OWN_MODE
                                                                          : o->volume->mode;
}

/* @param ret_refused  with an outcome: the component that another one may take the place of; 0
 * @return 0; UPLOAD_E_*, -ENOMEM, -EINVAL, -ENAMETOOLONG */
static int object_open_at(VolumeObject *o, int root_fd, const char *relative, size_t *ret_refused,
                          char **ret_error) {
        VolumeWay way;
        Volume *v = o->volume;
        free(o->path);
        o->path = path_join(v->root, relative);
        if (!o->path)
                return -ENOMEM;
        int r = open_directories(v, root_fd, relative, directory_mode(o, relative), &way);
        *ret_refused = r < 0 ? way.refused : 0;
        if (r < 0) {
                int outcome = classify_way(v, &way, -r, relative, ret_error);
                bool is_denial =
                        way.step && (way.refused > 0 || r == -EACCES || r == -EPERM || r == -EROFS);
                return o->small && is_denial && outcome > 0 ? UPLOAD_E_DENIED : outcome;
        }
        o->dir_fd = way.dir_fd;
        o->name = strdup(way.name);
        o->temporary = temporary_name(v, way.name, o->small);
        if (!o->name || !o->temporary)
                return -ENOMEM;
        return strlen(o->temporary) > NAME_MAX ? -ENAMETOOLONG : create_temporary(o, ret_error);
}

/* @return as object_open_at() */
static int object_open(VolumeObject *o, const char *relative, uint64_t bytes, char **ret_error) {
        _cleanup_close_ int root_fd = -1;
        Volume *v = o->volume;
        size_t refused = 0;
        int r = open_root(v, true, &root_fd, ret_error);
        if (o->small && r == UPLOAD_E_UNREACHABLE && access(v->root, R_OK) < 0 && errno == EACCES)
                return UPLOAD_E_DENIED;
        if (r == 0)
                r = check_room(v, root_fd, bytes, ret_error);
        if (r == 0)
                r = object_open_at(o, root_fd, relative, &refused, ret_error);
        if (r <= 0 || refused == 0 || !o->small || !o->small->replaces || !v->writer)
                return r;
        free(TAKE_PTR(*ret_error));
        _cleanup_free_ char *beside = path_beside(v, relative, refused);
        return beside ? object_open_at(o, root_fd, beside, &refused, ret_error) : -ENOMEM;
}

/* @return whether a regular file of an agent exists */
static bool has_file(Volume *v, int root_fd, const char *relative) {
        struct stat st;
        VolumeWay way;
        if (open_directories(v, root_fd, relative, 0, &way) < 0)
                return false;
        bool has = fstatat(way.dir_fd, way.name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                   S_ISREG(st.st_mode) && is_trusted(v, root_fd, st.st_uid);
        (void)close(way.dir_fd); /* was only read */
        return has;
}

/* @return 0; -errno, and *way says why */
static int make_directory(Volume *v, int root_fd, const char *relative, VolumeWay *way) {
        int r = open_directories(v, root_fd, relative, OWN_MODE, way);
        if (r == 0)
                (void)close(way->dir_fd); /* nothing was written yet */
        return r;
}

int volume_find_directory(Volume *v, const char *directory, const char *name, char **ret,
                          char **ret_error) {
        _cleanup_close_ int root_fd = -1;
        VolumeWay way;
        *ret_error = NULL;
        _cleanup_free_ char *agreed = path_join(directory, name);
        int r = agreed ? open_root(v, true, &root_fd, ret_error) : -ENOMEM;
        if (r != 0)
                return r;
        r = make_directory(v, root_fd, agreed, &way);
        bool is_refused = r < 0 && way.refused > 0;
        if (r < 0) {
                r = classify_way(v, &way, -r, agreed, ret_error);
                if (r < 0 || !is_refused || !v->writer)
                        return r;
        }
        const char *slash = strrchr(directory, '/');
        size_t n = is_refused ? way.refused
                   : slash    ? (size_t)(slash - directory)
                              : strlen(directory);
        _cleanup_free_ char *beside = v->writer ? path_beside(v, agreed, n) : strdup(agreed);
        if (!beside)
                return -ENOMEM;
        bool is_beside = is_refused || (!has_file(v, root_fd, agreed) && v->writer &&
                                        has_file(v, root_fd, beside));
        if (is_refused && (r = make_directory(v, root_fd, beside, &way)) < 0) {
                free(TAKE_PTR(*ret_error));
                return classify_way(v, &way, -r, beside, ret_error);
        }
        *ret = is_beside ? path_parent(beside) : strdup(directory);
        return *ret ? 0 : -ENOMEM;
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

/* For what only reads: a volume that is away shows as -ESTALE, one that was never there as
 * -ENOENT. */
static int open_for_reading(Volume *v, int *ret_fd) {
        _cleanup_free_ char *unused = NULL;
        int r = open_root(v, false, ret_fd, &unused);
        if (r <= 0)
                return r;
        return access(v->root, F_OK) < 0 && errno == ENOENT && may_create_root(v) ? -ENOENT
                                                                                  : -ESTALE;
}

int volume_read(Volume *v, const char *relative,
                int (*on_piece)(const void *data, size_t n, void *userdata), void *userdata) {
        _cleanup_close_ int root_fd = -1, fd = -1;
        int r = open_for_reading(v, &root_fd);
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

int volume_verify(Volume *v, const char *relative, const VolumeStripe *stripes, size_t n_stripes) {
        _cleanup_close_ int root_fd = -1;
        uint64_t bad_offset;
        VolumeWay way;
        int r = open_for_reading(v, &root_fd);
        if (r == 0)
                r = open_directories(v, root_fd, relative, 0, &way);
        if (r < 0)
                return r;
        r = volume_readback(&(ReadbackFile){ way.dir_fd, way.name, &v->n_read_back }, stripes,
                            n_stripes, &bad_offset);
        (void)close(way.dir_fd); /* was only read */
        return r == READBACK_E_DIFFERENT ? UPLOAD_E_EXISTS : r;
}

int volume_sweep(Volume *v, const char *relative) {
        _cleanup_close_ int root_fd = -1;
        VolumeWay way;
        int r = open_for_reading(v, &root_fd);

        if (r == 0)
                r = open_directories(v, root_fd, relative, 0, &way);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        _cleanup_close_ int dir_fd = way.dir_fd;
        _cleanup_free_ char *temporary = temporary_name(v, way.name, false);
        if (!temporary)
                return -ENOMEM;
        return unlinkat(dir_fd, temporary, 0) < 0 && errno != ENOENT ? -errno : 0;
}

int volume_probe(Volume *v, char **ret_error) {
        static const char zeros[PROBE_BYTES];
        char name[NAME_MAX + 1];
        _cleanup_close_ int root_fd = -1;

        *ret_error = NULL;
        int r = open_root(v, true, &root_fd, ret_error);
        if (r == 0)
                r = check_room(v, root_fd, 0, ret_error);
        if (r != 0)
                return r;
        _cleanup_close_ int fd = open_probe_file(v, root_fd, name);
        if (fd < 0)
                return classify_errno(errno, "make a file in the volume root", v->root, ret_error);
        r = fs_write_all(fd, zeros, sizeof zeros);
        if (r == 0 && fsync(fd) < 0)
                r = -errno;
        if (name[0] != '\0')
                (void)unlinkat(root_fd, name, 0); /* the next delivery reports a failure */
        return r < 0 ? classify_errno(-r, "write in the volume root", v->root, ret_error) : 0;
}

bool volume_trusts(Volume *v, uid_t uid) {
        _cleanup_close_ int root_fd = -1;
        _cleanup_free_ char *unused = NULL;
        return open_root(v, false, &root_fd, &unused) == 0 && is_trusted(v, root_fd, uid);
}

/* Proof by reading: uncached, hashing one piece while the kernel fetches the next. */

#define PIECE ((size_t)MIB)
/* io_destroy waits for an RCU grace period, some 30 ms: longer than reading less than this
 * takes. */
#define AIO_MIN (16 * PIECE)

#define ALIGN 4096 /* enough for every logical block size in use */
/* Linux's own asynchronous reads (io_submit), which truly are so with O_DIRECT; where a sandbox or
 * a limit (fs.aio-max-nr) forbids them, or the file is small, a piece is read when its turn
 * comes. */
typedef struct Readback {
        int direct_fd, plain_fd; /* direct_fd -1: refused */
        aio_context_t aio;
        bool has_aio;
        uint8_t *pieces[2];
        struct iocb request; /* the kernel copies it, but names it by its address in the answer */
        bool pending;        /* the read that `request` asks for is on its way */
        uint64_t total;
} Readback;

static void readback_done(Readback *r) {
        if (r->has_aio)
                (void)syscall(SYS_io_destroy,
                              r->aio); /* waits for what is on its way into our buffers */
        free(r->pieces[0]);
        free(r->pieces[1]);
        if (r->direct_fd >= 0)
                (void)close(r->direct_fd); /* was only read */
        if (r->plain_fd >= 0)
                (void)close(r->plain_fd);
}

static size_t piece_bytes(const Readback *r, uint64_t piece) {
        return (size_t)MIN(r->total - piece * PIECE, (uint64_t)PIECE);
}

static void piece_start(Readback *r, uint64_t piece) {
        struct iocb *list = &r->request;

        if (!r->has_aio || r->direct_fd < 0 || piece * PIECE >= r->total)
                return;
        r->request = (struct iocb){
                .aio_lio_opcode = IOCB_CMD_PREAD,
                .aio_fildes = (uint32_t)r->direct_fd,
                .aio_buf = (uint64_t)(uintptr_t)r->pieces[piece & 1],
                .aio_nbytes = PIECE, /* past the end as well: the length must be aligned */
                .aio_offset = (int64_t)(piece * PIECE),
        };
        r->pending = syscall(SYS_io_submit, r->aio, 1L, &list) ==
                     1; /* else it is read when its turn comes */
}

/* @return bytes, -errno */
static ssize_t piece_collect(Readback *r, uint64_t piece) {
        struct io_event event;
        long n;

        if (r->pending) {
                do
                        n = syscall(SYS_io_getevents, r->aio, 1L, 1L, &event, NULL);
                while (n < 0 && errno == EINTR);
                if (n != 1)
                        return n < 0 ? -errno : -EIO;
                r->pending = false;
                return (ssize_t)event.res;
        }
        ssize_t got = pread(r->direct_fd, r->pieces[piece & 1], PIECE, (off_t)(piece * PIECE));
        return got < 0 ? -errno : got;
}

/* Makes pieces[piece & 1] hold the piece. */
static int piece_fetch(Readback *r, uint64_t piece) {
        size_t want = piece_bytes(r, piece);

        if (r->direct_fd >= 0) {
                ssize_t got = piece_collect(r, piece);
                if (got >= 0 && (size_t)got >= want)
                        return 0;
                if (got < 0 && got != -EINVAL && got != -EINTR && got != -EAGAIN)
                        return (int)got;
                /* Refused after all, or cut short at a place where O_DIRECT cannot continue. */
        }
        int error = fs_pread_all(r->plain_fd, r->pieces[piece & 1], want, piece * PIECE);
        (void)posix_fadvise(r->plain_fd, (off_t)(piece * PIECE), (off_t)want,
                            POSIX_FADV_DONTNEED); /* a hint */
        return error;
}

static int readback_open(Readback *r, const ReadbackFile *file) {
        int dir_fd = file->dir_fd;
        const char *name = file->name;
        struct stat st;

        r->plain_fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (r->plain_fd < 0)
                return errno == ELOOP ? READBACK_E_DIFFERENT : -errno;
        if (fstat(r->plain_fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != r->total)
                return READBACK_E_DIFFERENT;
        (void)posix_fadvise(r->plain_fd, 0, 0,
                            POSIX_FADV_DONTNEED); /* a hint: O_DIRECT does not need it */
        r->direct_fd =
                openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_DIRECT);
        if (r->direct_fd >= 0) {
                struct stat again; /* the name was looked up twice */
                if (fstat(r->direct_fd, &again) < 0)
                        return -errno;
                if (again.st_dev != st.st_dev || again.st_ino != st.st_ino)
                        return READBACK_E_DIFFERENT;
                r->has_aio = r->total >= AIO_MIN && syscall(SYS_io_setup, 2L, &r->aio) == 0;
        }
        for (size_t i = 0; i < 2; i++) {
                r->pieces[i] = aligned_alloc(ALIGN, PIECE);
                if (!r->pieces[i])
                        return -ENOMEM;
        }
        return 0;
}

int volume_readback(const ReadbackFile *file, const VolumeStripe *stripes, size_t n_stripes,
                    uint64_t *ret_bad_offset) {
        _cleanup_(readback_done) Readback r = { .direct_fd = -1, .plain_fd = -1 };
        uint64_t at = 0; /* bytes hashed so far */

        for (size_t i = 0; i < n_stripes; i++)
                if (__builtin_add_overflow(r.total, stripes[i].bytes, &r.total) ||
                    r.total > INT64_MAX)
                        return -EOVERFLOW;
        *ret_bad_offset = r.total;
        int error = readback_open(&r, file);
        if (error != 0)
                return error;

        piece_start(&r, 0);
        for (size_t i = 0; i < n_stripes; i++) {
                uint64_t start = at, end = at + stripes[i].bytes;
                uint8_t digest[SHA256_SIZE];
                Sha256 sha;

                sha256_init(&sha);
                while (at < end) {
                        uint64_t piece = at / PIECE;
                        size_t skip = (size_t)(at % PIECE);
                        size_t n = (size_t)MIN(end - at, (uint64_t)PIECE - skip);

                        if (skip ==
                            0) { /* a piece is begun: fetched once, however many stripes share it */
                                error = piece_fetch(&r, piece);
                                if (error < 0)
                                        return error == -ENODATA ? READBACK_E_DIFFERENT : error;
                                piece_start(&r, piece + 1);
                        }
                        sha256_update(&sha, r.pieces[piece & 1] + skip, n);
                        at += n;
                        if (file->n_read)
                                atomic_fetch_add(file->n_read, n);
                }
                sha256_final(&sha, digest);
                if (memcmp(digest, stripes[i].sha256, sizeof digest) != 0) {
                        *ret_bad_offset = start;
                        return READBACK_E_DIFFERENT;
                }
        }
        return 0;
}

/* One object on its way to a volume. A crash at any moment leaves either nothing visible or the
 * whole object: temporary file → fdatasync → read back → link under its name → unlink the
 * temporary name → fsync of the directory. */

/* At most two of them are dirty: an agent must not fill a Lustre client with dirty pages. */
#define WINDOW (4 * MIB)

#define ROOM_CHECK_BYTES (64 * MIB) /* min_free is checked this often */
/* Writing */

static int object_fail(VolumeObject *o, int error, const char *doing, char **ret_error) {
        o->error = error;
        return classify(o, error, doing, ret_error);
}

/* Sets the window before the last one in motion, and lets go of the one before that once it has
 * arrived.
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
                                /* those four: not to be had here, and fdatasync reports it */
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
        return check_room(o->volume, o->fd, 0, ret_error);
}

/* Ending */

static bool is_ours(const VolumeObject *o, const struct stat *st) {
        return st->st_dev == o->st.st_dev && st->st_ino == o->st.st_ino;
}

/* Removes the temporary file if it is still the one we made. It is closed first: of an open file
 * NFS keeps a name of its own, and another node's sweep cannot remove that. */
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
        return (ReadbackFile){ o->dir_fd, name, &o->volume->n_read_back };
}

/* The name is taken. The same bytes, proven and made durable: UPLOAD_E_SAME. */
static int classify_existing(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                             char **ret_error) {
        const ReadbackFile file = file_of(o, o->name);
        uint64_t bad_offset;
        int r = volume_readback(&file, stripes, n_stripes, &bad_offset);

        if (r < 0)
                return classify_errno(-r, "read what is there as", o->path, ret_error);
        if (r == READBACK_E_DIFFERENT) {
                set_error(ret_error,
                          "'%s' exists already and differs: it is not overwritten; move it away",
                          o->path);
                return UPLOAD_E_EXISTS;
        }
        _cleanup_close_ int fd =
                openat(o->dir_fd, o->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        r = fd < 0 || fsync(fd) < 0 ? -errno : fs_sync_dir(o->dir_fd);
        if (r < 0)
                return classify_errno(-r, "sync what is there as", o->path, ret_error);
        r = remove_temporary(o);
        return r < 0 ? object_fail(o, -r, "remove the temporary file of", ret_error)
                     : UPLOAD_E_SAME;
}

/* Whether a link is not to be had in this way, so that another way may do: no links here, no
 * /proc, or a policy against it. */
static bool is_refusal(int error) {
        static const int refusals[] = { EPERM,  EOPNOTSUPP, ENOSYS,  EMLINK, EINVAL,
                                        EACCES, ENOENT,     ENOTDIR, ELOOP,  EXDEV };

        for (size_t i = 0; i < ELEMENTSOF(refusals); i++)
                if (error == refusals[i])
                        return true;
        return false;
}

/* Whether the temporary name still is this object's file: another worker on the same object (this
 * one having been given up as hung) may have made it again. */
static bool has_temporary(const VolumeObject *o) {
        struct stat ours, named;

        return fstat(o->fd, &ours) == 0 &&
               fstatat(o->dir_fd, o->temporary, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
               ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

/* Names the very file that was written, whatever has the temporary name by now: one that nobody
 * names any more cannot be linked.
 * @return false and errno: refused (no /proc, no links here), or EEXIST */
static bool link_by_descriptor(const VolumeObject *o) {
        char self[64];

        (void)snprintf(self, sizeof self, "/proc/self/fd/%d", o->fd);
        return linkat(AT_FDCWD, self, o->dir_fd, o->name, AT_SYMLINK_FOLLOW) == 0;
}

/* The error of a worker whose file another one has taken from it: EEXIST's sentence, which names
 * the remedy. */
static int lost_temporary(VolumeObject *o, char **ret_error) {
        return object_fail(o, EEXIST, "name", ret_error);
}

/* Gives the temporary file its name without replacing anything. Where there are neither hard links
 * nor RENAME_NOREPLACE (some FUSE), a bundle's name is checked and then taken: not atomic, but
 * nobody else writes names with our instance id in them.
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
        set_error(ret_error,
                  "'%s' reads back differently than it was written, from byte %" PRIu64
                  " on: the copy was removed; check the volume if it happens again",
                  o->path, bad_offset);
        (void)remove_temporary(o); /* as above */
        return UPLOAD_E_MISMATCH;
}

/* The object has its name: gives up the temporary one, if it has that still, and makes both
 * durable in one step. A file system that loses the first of two changes to one directory and
 * keeps the second is none of those that a loss of power leaves whole; and a sync that came before
 * the second would let a loss of power bring the temporary name back, when nobody looks for it any
 * more. */
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

/* Whether the call makes sense and the object is fit for it. */
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
            0) /* an earlier life got this far */
                return classify_existing(o, stripes, n_stripes, ret_error);
        if (errno != ENOENT)
                return object_fail(o, errno, "look for", ret_error);
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

/* The kernel takes the time of a file from a clock that moves with the timer (CONFIG_HZ=100). */
#define MTIME_LAG_USEC ((int64_t)(10 * USEC_PER_MSEC))

/* @return 0: not what a file system's clock says */
static int64_t usec_of(const struct timespec *t) {
        int64_t usec;
        return __builtin_mul_overflow((int64_t)t->tv_sec, (int64_t)USEC_PER_SEC, &usec) ||
                               __builtin_add_overflow(usec, (int64_t)t->tv_nsec / 1000, &usec)
                       ? 0
                       : usec;
}

/* ---- writing a small object ---- */

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
        int r = open_root(v, true, &root_fd, ret_error);
        if (r != 0)
                return r;
        uint64_t begin = clock->boottime_usec(clock);
        _cleanup_close_ int fd = open_probe_file(v, root_fd, name);
        uint64_t end = clock->boottime_usec(clock);
        if (fd < 0 || fstat(fd, &st) < 0)
                r = classify_small(errno, "make a file in the volume root", v->root, ret_error);
        else
                *ret = clock_of(&st, begin, end);
        if (fd >= 0 && name[0] != '\0')
                (void)unlinkat(root_fd, name, 0); /* on error: the next probe removes it */
        return r;
}

/* The storage's server sets the time of the file when it gets the bytes: after it was made, before
 * fsync returns. */
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
                set_error(ret_error,
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

/* ---- reading and listing them ---- */

static int classify_reading(int r, const char *path, char **ret_error) {
        if (r == -ENOENT || r == -ENOMEM)
                return r;
        if (r != -EBADF && r != -ELOOP && r != -ENOTDIR)
                return classify_small(-r, "read", path, ret_error);
        set_error(ret_error, "'%s' is not a regular file: remove it", path);
        return UPLOAD_E_REFUSED;
}

int volume_object_read(Volume *v, const char *relative, size_t max_bytes, VolumeContent *ret,
                       char **ret_error) {
        _cleanup_close_ int root_fd = -1, fd = -1;
        struct stat st;
        *ret_error = NULL;
        _cleanup_free_ char *path = path_join(v->root, relative);
        int r = path ? open_for_reading(v, &root_fd) : -ENOMEM;
        if (r == 0)
                r = fd = fs_open_regular(root_fd, relative, &st);
        if (r >= 0 && !is_trusted(v, root_fd, st.st_uid)) {
                set_error(ret_error,
                          "'%s' belongs to uid %u, which is not an agent's user, so it is ignored; "
                          "remove it, or add that user to agreement.trusted_uids",
                          path, (unsigned)st.st_uid);
                return UPLOAD_E_REFUSED;
        }
        if (r >= 0 && (uint64_t)st.st_size > max_bytes) {
                set_error(ret_error, "'%s' is larger than the %zu bytes that it may have", path,
                          max_bytes);
                return UPLOAD_E_REFUSED;
        }
        if (r >= 0)
                r = fs_read_head(fd, max_bytes, &ret->data, &ret->n);
        if (r < 0)
                return path ? classify_reading(r, path, ret_error) : r;
        ret->modified_usec = usec_of(&st.st_mtim);
        return 0;
}

#define FOREIGN_FILES_MAX 1000 /* files of other users that are listed */

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
            st.st_uid == own_uid(w->v, w->root_fd))
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
        bool counts = is_trusted(w->v, w->root_fd, st.st_uid);
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
                                  .modified_usec = usec_of(&st.st_mtim),
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
                    !S_ISDIR(st.st_mode) || !is_trusted(w->v, w->root_fd, st.st_uid))
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
        _cleanup_free_ char *path = path_join(v->root, listing->directory),
                            *temporary_suffix =
                                    v->writer ? strbuf_format(".%s" TEMPORARY_SUFFIX, v->writer)
                                              : NULL;
        int r = path && (temporary_suffix || !v->writer) ? open_for_reading(v, &root_fd) : -ENOMEM;
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
                set_error(ret_error,
                          "'%s' has more entries, or deeper ones, than may be listed: see "
                          "who makes them",
                          path);
                return UPLOAD_E_REFUSED;
        }
        return r == -ENOENT ? 0 : r < 0 && path ? classify_small(-r, "list", path, ret_error) : r;
}
