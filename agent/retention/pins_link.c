/* Makes the hard links that hold a bundle's sources. A user's `rm -rf` then takes the name, not the evidence. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/retention/pins_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

/* A member on its way to being pinned. */
typedef struct Linking {
        PinsSession *session;
        const PinsMember *member;
        int fd; /* the member, opened O_PATH and found to be the inode member->st; borrowed */
} Linking;

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
static int replace_link(const Linking *l, const SessionPlace *at, const char *name) {
        char temporary[NAME_MAX + 1];
        struct stat there;

        if (fstatat(at->dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (pins_is_inode(&there, l->member->st))
                return 0;
        if (S_ISDIR(there.st_mode)) { /* of older members below a directory of this name */
                int r = fs_remove_tree(at->dir_fd, name);
                return r < 0 ? r : link_fd(l->fd, at->dir_fd, name);
        }
        if ((size_t)snprintf(temporary, sizeof temporary, PINS_NEW_PREFIX "%s",
                             l->session->bundle_id) >= sizeof temporary)
                return -ENAMETOOLONG;
        if (unlinkat(at->instance_fd, temporary, 0) < 0 && errno != ENOENT)
                return -errno;
        int r = link_fd(l->fd, at->instance_fd, temporary);
        if (r < 0)
                return r;
        if (renameat(at->instance_fd, temporary, at->dir_fd, name) < 0) {
                r = -errno;
                (void)unlinkat(at->instance_fd, temporary, 0); /* pins_release finds it otherwise */
                return r;
        }
        return 0;
}

static int add_at(const Linking *l, Place place) {
        SessionPlace *at = &l->session->places[place];
        const char *name = NULL;
        struct stat linked;

        int r = pins_session_open(l->session, place, true);
        if (r >= 0)
                r = pins_session_enter(at, l->member->path, true, &name);
        if (r < 0)
                return r;

        r = link_fd(l->fd, at->dir_fd, name);
        if (r == -EEXIST)
                r = replace_link(l, at, name);
        if (r < 0)
                return r;
        if (fstatat(at->dir_fd, name, &linked, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        /* No file system we know of does that; but a wrong pin would be shipped. */
        if (!pins_is_inode(&linked, l->member->st)) {
                (void)unlinkat(at->dir_fd, name, 0);
                return -ENOENT;
        }
        return 0;
}

/* The member was renamed: its pins under other names would be shipped as a second file. */
static void drop_old_names(PinsSession *s, const char *member_path, const struct stat *st) {
        size_t first, n = pin_inodes_count(&s->own, st->st_dev, st->st_ino, &first);
        for (size_t i = first; i < first + n; i++) {
                const PinInode *old = &s->own.items[i];
                SessionPlace *at = &s->places[old->place];
                const char *name = NULL;
                struct stat there;
                if (strcmp(old->path, member_path) == 0 || at->bundle_fd < 0)
                        continue;
                _cleanup_close_ int dir_fd =
                        pins_open_member_dir(at->bundle_fd, old->path, false, &name);
                if (dir_fd >= 0 && fstatat(dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                    pins_is_inode(&there, st))
                        (void)unlinkat(dir_fd, name, 0); /* it stays: shipped twice, never lost */
        }
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

static int add_to(const Linking *l, StrBuf *reasons) {
        int r = -ENOENT;
        for (Place place = 0; place < N_PLACES; place++) {
                const SessionPlace *at = &l->session->places[place];
                const char *directory = l->session->pins->directories[place];
                if (!directory)
                        continue;
                /* Where the bundle's directory is there linkat tells as well. */
                r = at->bundle_fd >= 0 || is_same_mount(l->fd, directory) ? add_at(l, place)
                                                                          : -EXDEV;
                if (!is_refusal(r))
                        return r;
                if (reasons->n > 0)
                        strbuf_add(reasons, "; and ");
                add_reason(reasons, directory, r, &at->squatter);
        }
        return r;
}

int pins_session_add(PinsSession *s, const PinsMember *m, char **ret_error) {
        _cleanup_(strbuf_done) StrBuf reasons = STRBUF_INIT;
        struct stat now;

        _cleanup_close_ int fd = fs_open_beneath(m->unit_fd, m->path_below_unit, O_PATH);
        if (fd < 0) /* a symlink that took its place is not the member either */
                return fd == -ELOOP || fd == -ENOTDIR ? -ENOENT : fd;
        if (fstat(fd, &now) < 0)
                return -errno;
        if (!S_ISREG(now.st_mode) || !pins_is_inode(&now, m->st) || now.st_nlink == 0)
                return -ENOENT;
        int r = add_to(&(Linking){ s, m, fd }, &reasons);
        if (r == 0)
                drop_old_names(s, m->path, m->st);
        if (!is_refusal(r))
                return r;

        _cleanup_free_ char *member = path_escape(m->path);
        _cleanup_free_ char *text = strbuf_take(&reasons);
        if (!member || !text ||
            asprintf(ret_error, "cannot hold '%s' by a hard link: %s", member, text) < 0) {
                *ret_error = NULL;
                return -ENOMEM;
        }
        return PINS_E_REFUSED;
}

int pins_add(Pins *p, const char *bundle_id, const PinsMember *m, char **ret_error) {
        PinsSession s;
        if (!pins_is_plain_name(bundle_id) || bundle_id[0] == '.')
                return -EINVAL;
        pins_session_init(&s, p, bundle_id, 0);
        int r = pins_session_add(&s, m, ret_error);
        pins_session_done(&s);
        return r;
}
