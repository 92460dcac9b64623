/* Hard links that hold a bundle's sources. A user's `rm -rf` then takes the name, not the evidence. Nothing here is fsynced: after
 * a power cut either our link is there or the source's own name still is, since both are in one journal. */
#include "agent/store/pins.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define PINS_NAME ".neuron-collectd"
#define NEW_PREFIX ".new-" /* a link on its way into its place; no bundle id begins with a dot */

/* Where links may live: beside the fixed part first, inside it where that cannot be. Both are looked at whenever pins are looked
 * for: which one it was may have been decided when a mount or a permission was another. */
typedef enum Place { PLACE_BESIDE, PLACE_INSIDE, N_PLACES } Place;

struct Pins {
        char *directories[N_PLACES]; /* [PLACE_BESIDE] NULL: the fixed part is the root directory */
        char *instance_id;
};

DEFINE_CLEANUP(Pins, pins_free);

/* One component that is a name and nothing else. */
static bool is_plain_name(const char *s) {
        size_t n = strlen(s);
        return n > 0 && n <= NAME_MAX && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 &&
               !strchr(s, '/');
}

int pins_new(Pins **ret, const char *fixed, const char *instance_id) {
        _cleanup_(pins_freep) Pins *p = NULL;
        _cleanup_free_ char *simple = NULL;

        if (fixed[0] != '/' || !is_plain_name(instance_id))
                return -EINVAL;
        p = calloc(1, sizeof *p);
        simple = path_simplify(fixed);
        if (!p || !simple)
                return -ENOMEM;
        p->instance_id = strdup(instance_id);
        if (!p->instance_id)
                return -ENOMEM;
        if (strcmp(simple, "/") != 0) {
                p->directories[PLACE_BESIDE] = path_parent(simple);
                if (!p->directories[PLACE_BESIDE])
                        return -ENOMEM;
        }
        p->directories[PLACE_INSIDE] = TAKE_PTR(simple);
        *ret = TAKE_PTR(p);
        return 0;
}

Pins *pins_free(Pins *p) {
        if (!p)
                return NULL;
        for (size_t i = 0; i < N_PLACES; i++)
                free(p->directories[i]);
        free(p->instance_id);
        free(p);
        return NULL;
}

/* Directories of ours */

/* What is in the way of a directory of ours. */
typedef struct Squatter {
        bool found, is_directory;
        uid_t uid;
} Squatter;

/* Opens a directory that must be ours: made by this user, no symlink, closed to all others.
 * @return fd; -ENOENT; -EUCLEAN with *ret_squatter: somebody else's thing bears the name; -errno */
static int open_own_dir(int at_fd, const char *name, bool create, Squatter *ret_squatter) {
        struct stat st;

        int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
        _cleanup_close_ int fd = openat(at_fd, name, flags);
        if (fd < 0 && errno == ENOENT && create) {
                if (mkdirat(at_fd, name, 0700) < 0 && errno != EEXIST)
                        return -errno;
                fd = openat(at_fd, name, flags);
        }
        if (fd < 0) {
                int r = -errno;
                if (fstatat(at_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        return r;
                if (S_ISDIR(st.st_mode) && st.st_uid == geteuid())
                        return r;
                *ret_squatter = (Squatter){ true, S_ISDIR(st.st_mode), st.st_uid };
                return -EUCLEAN;
        }
        if (fstat(fd, &st) < 0)
                return -errno;
        if (st.st_uid != geteuid()) {
                *ret_squatter = (Squatter){ true, true, st.st_uid };
                return -EUCLEAN;
        }
        if ((st.st_mode & 0777) != 0700 && fchmod(fd, 0700) < 0)
                return -errno;
        return TAKE_FD(fd);
}

/* Opens `<place>/.neuron-collectd/<instance-id>`. Results as open_own_dir. */
static int open_instance_dir(const Pins *p, Place place, bool create, Squatter *ret_squatter) {
        if (!p->directories[place])
                return -ENOENT;
        /* The parent is the operator's path; the fixed part itself may be made by whoever runs the jobs. */
        int flags = O_PATH | O_DIRECTORY | O_CLOEXEC | (place == PLACE_INSIDE ? O_NOFOLLOW : 0);
        _cleanup_close_ int base_fd = open(p->directories[place], flags);
        if (base_fd < 0)
                return -errno;
        _cleanup_close_ int pins_fd = open_own_dir(base_fd, PINS_NAME, create, ret_squatter);
        if (pins_fd < 0)
                return pins_fd;
        return open_own_dir(pins_fd, p->instance_id, create, ret_squatter);
}

/* Opens the directory that holds a member's pin and finds the pin's own name in `member_path`. Below the bundle's directory all is
 * ours alone; a pin that is in the way of a directory is one of an older member and goes.
 * @return fd; -ENOENT; -EINVAL for `..` and the like; -ENAMETOOLONG beyond FS_DEPTH_MAX */
static int open_member_dir(int bundle_fd, const char *member_path, bool create,
                           const char **ret_name) {
        char name[NAME_MAX + 1];
        Squatter squatter;
        _cleanup_close_ int at_fd = fcntl(bundle_fd, F_DUPFD_CLOEXEC, 3);
        if (at_fd < 0)
                return -errno;

        for (unsigned depth = 1;; depth++) {
                size_t n = strcspn(member_path, "/");
                if (depth > FS_DEPTH_MAX || n > NAME_MAX)
                        return -ENAMETOOLONG;
                memcpy(name, member_path, n);
                name[n] = '\0';
                if (!is_plain_name(name))
                        return -EINVAL;
                if (member_path[n] == '\0') {
                        *ret_name = member_path;
                        return TAKE_FD(at_fd);
                }
                int fd = open_own_dir(at_fd, name, create, &squatter);
                if (fd == -EUCLEAN && create && unlinkat(at_fd, name, 0) == 0)
                        fd = open_own_dir(at_fd, name, create, &squatter);
                if (fd < 0)
                        return fd == -EUCLEAN ? -ENOENT : fd;
                (void)close(at_fd); /* was only read */
                at_fd = fd;
                member_path += n + 1;
        }
}

/* Linking */

static bool is_inode(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Links what the descriptor stands for, whatever happens to its name meanwhile. By the descriptor itself the kernel wants
 * CAP_DAC_READ_SEARCH (or, since Linux 6.10, the opener's credentials) and else says ENOENT; /proc needs nothing. */
static int link_fd(int fd, int dir_fd, const char *name) {
        char path[sizeof "/proc/self/fd/" + 11];
        struct stat st;

        if (linkat(fd, "", dir_fd, name, AT_EMPTY_PATH) == 0)
                return 0;
        if (errno != ENOENT && errno != EPERM && errno != EACCES)
                return -errno;
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (linkat(AT_FDCWD, path, dir_fd, name, AT_SYMLINK_FOLLOW) == 0)
                return 0;
        int r = -errno;
        if (r == -ENOENT && fstat(fd, &st) == 0 && st.st_nlink > 0)
                return -ENOSYS; /* not the file is missing, but /proc */
        return r;
}

/* Something bears the name already: the same inode, or what is replaced without a moment in which neither is pinned. */
static int replace_link(int instance_fd, const char *bundle_id, int fd, int dir_fd,
                        const char *name, const struct stat *st) {
        char temporary[NAME_MAX + 1];
        struct stat there;

        if (fstatat(dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (is_inode(&there, st))
                return 0;
        if (S_ISDIR(there.st_mode)) { /* of older members below a directory of this name */
                int r = fs_remove_tree(dir_fd, name);
                return r < 0 ? r : link_fd(fd, dir_fd, name);
        }
        if ((size_t)snprintf(temporary, sizeof temporary, NEW_PREFIX "%s", bundle_id) >=
            sizeof temporary)
                return -ENAMETOOLONG;
        if (unlinkat(instance_fd, temporary, 0) < 0 && errno != ENOENT)
                return -errno;
        int r = link_fd(fd, instance_fd, temporary);
        if (r < 0)
                return r;
        if (renameat(instance_fd, temporary, dir_fd, name) < 0) {
                r = -errno;
                (void)unlinkat(instance_fd, temporary, 0); /* pins_sweep finds it otherwise */
                return r;
        }
        return 0;
}

/* @param fd  the member, opened O_PATH and found to be the inode `st` */
static int add_at(const Pins *p, Place place, const char *bundle_id, const char *member_path,
                  int fd, const struct stat *st, Squatter *ret_squatter) {
        const char *name = NULL;
        struct stat linked;
        int r;

        _cleanup_close_ int instance_fd = open_instance_dir(p, place, true, ret_squatter);
        if (instance_fd < 0)
                return instance_fd;
        _cleanup_close_ int bundle_fd = open_own_dir(instance_fd, bundle_id, true, ret_squatter);
        if (bundle_fd < 0)
                return bundle_fd;
        _cleanup_close_ int dir_fd = open_member_dir(bundle_fd, member_path, true, &name);
        if (dir_fd < 0)
                return dir_fd;

        r = link_fd(fd, dir_fd, name);
        if (r == -EEXIST)
                r = replace_link(instance_fd, bundle_id, fd, dir_fd, name, st);
        if (r < 0)
                return r;
        if (fstatat(dir_fd, name, &linked, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (!is_inode(
                    &linked,
                    st)) { /* no file system we know of does that; but a wrong pin would be shipped */
                (void)unlinkat(dir_fd, name, 0);
                return -ENOENT;
        }
        return 0;
}

/* Whether links between the two can be made at all, asked before directories are made in vain. Across bind mounts linkat says
 * EXDEV although the device is the same, so the mount is compared where the kernel tells it (Linux 5.8). */
static bool is_same_mount(int fd, const char *directory) {
        struct statx a, b;
        unsigned mask = STATX_TYPE | STATX_MNT_ID;

        if (statx(fd, "", AT_EMPTY_PATH, mask, &a) < 0 ||
            statx(AT_FDCWD, directory, 0, mask, &b) < 0)
                return true; /* unknown: linkat decides */
        if (a.stx_mask & b.stx_mask & STATX_MNT_ID)
                return a.stx_mnt_id == b.stx_mnt_id;
        return a.stx_dev_major == b.stx_dev_major && a.stx_dev_minor == b.stx_dev_minor;
}

/* Refusals */

static bool is_refusal(int r) {
        switch (r) {
        case -EXDEV:
        case -EPERM:
        case -EACCES:
        case -EMLINK:
        case -ENOSYS:
        case -EOPNOTSUPP:
        case -EROFS:
        case -ENOSPC:
        case -EDQUOT:
        case -ENAMETOOLONG:
        case -ELOOP:
        case -ENOTDIR:
        case -EUCLEAN: /* a squatter */
                return true;
        default:
                return false;
        }
}

static void add_reason(StrBuf *b, const char *directory, int r, const Squatter *squatter) {
        switch (r) {
        case -EUCLEAN:
                strbuf_addf(b,
                            "'%s/" PINS_NAME
                            "' is %s of uid %u, not a directory of ours (uid %u): remove it",
                            directory, squatter->is_directory ? "a directory" : "a file or symlink",
                            (unsigned)squatter->uid, (unsigned)geteuid());
                break;
        case -EXDEV:
                strbuf_addf(b, "'%s' is another mount: give the source a path on one mount",
                            directory);
                break;
        case -EPERM:
                strbuf_addf(b,
                            "'%s' takes no link to this file (%s): give the agent CAP_FOWNER, or "
                            "use a file system with "
                            "hard links",
                            directory, strerror(-r));
                break;
        case -EACCES:
        case -EROFS:
                strbuf_addf(b, "'%s' cannot be written (%s): allow uid %u to write there",
                            directory, strerror(-r), (unsigned)geteuid());
                break;
        case -EMLINK:
                strbuf_addf(b, "the file has as many links as its file system allows: remove some");
                break;
        case -ENOSPC:
        case -EDQUOT:
                strbuf_addf(b, "'%s' has no room (%s): free some space or inodes", directory,
                            strerror(-r));
                break;
        default:
                strbuf_addf(b, "'%s' does not take hard links (%s): use another file system",
                            directory, strerror(-r));
        }
}

int pins_add(Pins *p, const char *bundle_id, const char *member_path, int unit_fd,
             const char *path_below_unit, const struct stat *st, char **ret_error) {
        _cleanup_(strbuf_done) StrBuf reasons = STRBUF_INIT;
        struct stat now;
        int r = -ENOENT;

        if (!is_plain_name(bundle_id) || bundle_id[0] == '.')
                return -EINVAL;
        _cleanup_close_ int fd = fs_open_beneath(unit_fd, path_below_unit, O_PATH);
        if (fd < 0) /* a symlink that took its place is not the member either */
                return fd == -ELOOP || fd == -ENOTDIR ? -ENOENT : fd;
        if (fstat(fd, &now) < 0)
                return -errno;
        if (!S_ISREG(now.st_mode) || !is_inode(&now, st) || now.st_nlink == 0)
                return -ENOENT;

        for (Place place = 0; place < N_PLACES; place++) {
                Squatter squatter = { 0 };
                if (!p->directories[place])
                        continue;
                r = is_same_mount(fd, p->directories[place])
                            ? add_at(p, place, bundle_id, member_path, fd, st, &squatter)
                            : -EXDEV;
                if (!is_refusal(r))
                        return r;
                if (reasons.n > 0)
                        strbuf_add(&reasons, "; and ");
                add_reason(&reasons, p->directories[place], r, &squatter);
        }

        _cleanup_free_ char *member = path_escape(member_path);
        _cleanup_free_ char *text = strbuf_take(&reasons);
        if (!member || !text ||
            asprintf(ret_error, "cannot hold '%s' by a hard link: %s", member, text) < 0) {
                *ret_error = NULL;
                return -ENOMEM;
        }
        return PINS_E_REFUSED;
}

/* Nothing of ours can be in a place that is missing, somebody else's, or closed to us. */
static bool is_not_ours(int r) {
        return r == -ENOENT || r == -EUCLEAN || r == -ENOTDIR || r == -ELOOP || r == -EACCES;
}

/* Opens a bundle's directory in one place. -ENOENT also for a squatter's: none of ours is in there */
static int open_bundle_dir(const Pins *p, Place place, const char *bundle_id) {
        Squatter squatter;
        if (!is_plain_name(bundle_id))
                return -EINVAL;
        _cleanup_close_ int instance_fd = open_instance_dir(p, place, false, &squatter);
        int r = instance_fd < 0 ? instance_fd
                                : open_own_dir(instance_fd, bundle_id, false, &squatter);
        return r < 0 && is_not_ours(r) ? -ENOENT : r;
}

bool pins_has(Pins *p, const char *bundle_id, const char *member_path, const struct stat *st) {
        for (Place place = 0; place < N_PLACES; place++) {
                const char *name = NULL;
                struct stat there;
                _cleanup_close_ int bundle_fd = open_bundle_dir(p, place, bundle_id);
                if (bundle_fd < 0)
                        continue;
                _cleanup_close_ int dir_fd = open_member_dir(bundle_fd, member_path, false, &name);
                if (dir_fd >= 0 && fstatat(dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                    is_inode(&there, st))
                        return true;
        }
        return false;
}

int pins_open(Pins *p, const char *bundle_id) {
        int r = -ENOENT;
        for (Place place = 0; place < N_PLACES; place++) {
                int fd = open_bundle_dir(p, place, bundle_id);
                if (fd >= 0)
                        return fd;
                if (r == -ENOENT)
                        r = fd;
        }
        return r;
}

int pins_open_root(Pins *p) {
        int r = -ENOENT;
        for (Place place = 0; place < N_PLACES; place++) {
                Squatter squatter;
                if (!p->directories[place])
                        continue;
                int flags =
                        O_PATH | O_DIRECTORY | O_CLOEXEC | (place == PLACE_INSIDE ? O_NOFOLLOW : 0);
                _cleanup_close_ int base_fd = open(p->directories[place], flags);
                r = base_fd < 0 ? -errno : open_own_dir(base_fd, PINS_NAME, true, &squatter);
                if (r >= 0)
                        return r;
        }
        return r;
}

int pins_release(Pins *p, const char *bundle_id) {
        int first = 0;

        if (!is_plain_name(bundle_id))
                return -EINVAL;
        for (Place place = 0; place < N_PLACES; place++) {
                Squatter squatter;
                _cleanup_close_ int instance_fd = open_instance_dir(p, place, false, &squatter);
                int r = instance_fd < 0 ? instance_fd : fs_remove_tree(instance_fd, bundle_id);
                if (r < 0 && !is_not_ours(r) && first == 0)
                        first = r;
        }
        return first;
}

static int sweep_place(int instance_fd, bool (*keep)(const char *bundle_id, void *userdata),
                       void *userdata) {
        int first = 0;
        _cleanup_close_ int fd = openat(instance_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        _cleanup_closedir_ DIR *dir = fdopendir(fd);
        if (!dir)
                return -errno;
        (void)TAKE_FD(fd); /* the stream's now */

        for (;;) {
                errno = 0;
                struct dirent *entry = readdir(dir);
                if (!entry)
                        return first < 0 ? first : -errno;
                if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                        continue;
                if (entry->d_name[0] != '.' && keep(entry->d_name, userdata))
                        continue;
                int r = fs_remove_tree(instance_fd, entry->d_name);
                if (r < 0 && first == 0)
                        first = r;
        }
}

int pins_sweep(Pins *p, bool (*keep)(const char *bundle_id, void *userdata), void *userdata) {
        int first = 0;

        for (Place place = 0; place < N_PLACES; place++) {
                Squatter squatter;
                _cleanup_close_ int instance_fd = open_instance_dir(p, place, false, &squatter);
                int r = instance_fd < 0 ? instance_fd : sweep_place(instance_fd, keep, userdata);
                if (r < 0 && !is_not_ours(r) && first == 0)
                        first = r;
        }
        return first;
}
