/* Makes the links of one bundle, and tells of an inode which of its names are links of ours.
 *
 * The tree is hostile. A member is opened by its path without following symlinks, the descriptor is
 * compared with the inode that intake has classified, and the link is made from the descriptor; so
 * whatever happens to the name meanwhile, nothing else is linked. All directories above the link
 * are opened by own_dir.c, which refuses those of other users.
 *
 * The links of a bundle are in one place (link_dirs.h), since a delivery opens one place only: the
 * first that accepts a link is used from then on. When both refuse, the sentence that is returned
 * names both reasons.
 *
 * Which links there are already is read when an inode has more names than are explained so far:
 * first those of the bundle, then those of all other bundles and nodes (link_inodes.c). */
#include "agent/retention/link_session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/retention/link_inodes.h"
#include "agent/retention/links.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

/* What a session has open of a place, or why it has not. */
typedef struct SessionPlace {
        int instance_fd, bundle_fd; /* -1: not open */
        bool is_missing;            /* the bundle's directory does not exist */
        int refused;                /* why it could not be created: -errno; 0 */
        Squatter squatter;          /* with -EUCLEAN */
        int dir_fd;                 /* the directory of the last member's link; -1 */
        char *prefix; /* of the paths of members in it, with the slash; "" at the top */
} SessionPlace;

struct LinkSession {
        LinkDirs *dirs;        /* borrowed */
        const char *bundle_id; /* borrowed */
        size_t max_inodes;
        const char *unit_path; /* borrowed; NULL: not to be recorded */
        uid_t unit_uid;
        LinkPlace used; /* the place of the bundle's links; N_LINK_PLACES: not known yet */
        SessionPlace places[N_LINK_PLACES];
        LinkInodes own, others;   /* links of this bundle; all other links of ours */
        bool has_own, has_others; /* they were read */
};

void link_session_set_unit(LinkSession *s, const char *path, uid_t uid) {
        s->unit_path = path;
        s->unit_uid = uid;
}

static void forget_directory(SessionPlace *at) {
        if (at->dir_fd >= 0)
                (void)close(at->dir_fd); /* was only read */
        at->dir_fd = -1;
        free(at->prefix);
        at->prefix = NULL;
}

int link_session_new(LinkSession **ret, LinkDirs *dirs, const char *bundle_id, size_t max_inodes) {
        if (bundle_id[0] == '.' || strchr(bundle_id, '/'))
                return -EINVAL;
        LinkSession *s = malloc(sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (LinkSession){ .dirs = dirs,
                            .bundle_id = bundle_id,
                            .max_inodes = max_inodes,
                            .used = N_LINK_PLACES };
        for (size_t i = 0; i < N_LINK_PLACES; i++)
                s->places[i] = (SessionPlace){ .instance_fd = -1, .bundle_fd = -1, .dir_fd = -1 };
        *ret = s;
        return 0;
}

LinkSession *link_session_free(LinkSession *s) {
        if (!s)
                return NULL;
        for (size_t i = 0; i < N_LINK_PLACES; i++) {
                forget_directory(&s->places[i]);
                cleanup_closep(&s->places[i].bundle_fd);
                cleanup_closep(&s->places[i].instance_fd);
        }
        link_inodes_done(&s->own);
        link_inodes_done(&s->others);
        free(s);
        return NULL;
}

/* ---- directories ---- */

/* Opens the directory of the bundle in a place, once. @return 0; else as own_dir_open_below() */
static int session_open(LinkSession *s, LinkPlace place, bool create) {
        SessionPlace *at = &s->places[place];
        if (at->bundle_fd >= 0)
                return 0;
        if (at->refused < 0)
                return at->refused;
        if (at->is_missing && !create)
                return -ENOENT;
        if (at->instance_fd < 0)
                at->instance_fd = link_dirs_open_instance(s->dirs, place, create, &at->squatter);
        int fd = at->instance_fd < 0
                         ? at->instance_fd
                         : own_dir_open_below(at->instance_fd, s->bundle_id, create, &at->squatter);
        if (fd < 0) {
                at->is_missing = own_dir_is_absent(fd);
                at->refused = create ? fd : 0;
                return fd;
        }
        at->bundle_fd = fd;
        if (create && s->unit_path)
                links_record_unit(at->instance_fd, s->bundle_id, s->unit_path, s->unit_uid);
        return 0;
}

/* Opens the directory that holds a member's link. A file that is in the way of a directory is
 * removed with `create`: below the bundle's directory it can only be a link of an older member.
 * @param ret_name  set to the link's name, in member_path
 * @return fd; -ENOENT; -EINVAL for `..` and the like; -ENAMETOOLONG beyond FS_DEPTH_MAX */
static int open_member_dir(int bundle_fd, const char *member_path, bool create,
                           const char **ret_name) {
        char name[NAME_MAX + 1];
        _cleanup_close_ int at_fd = fcntl(bundle_fd, F_DUPFD_CLOEXEC, 3);
        if (at_fd < 0)
                return -errno;

        for (unsigned depth = 1;; depth++) {
                size_t n = strcspn(member_path, "/");
                if (depth > FS_DEPTH_MAX || n > NAME_MAX)
                        return -ENAMETOOLONG;
                memcpy(name, member_path, n);
                name[n] = '\0';
                if (!own_dir_is_plain_name(name))
                        return -EINVAL;
                if (member_path[n] == '\0') {
                        *ret_name = member_path;
                        return TAKE_FD(at_fd);
                }
                int fd = own_dir_open_below(at_fd, name, create, NULL);
                if (fd == -EUCLEAN && create && unlinkat(at_fd, name, 0) == 0)
                        fd = own_dir_open_below(at_fd, name, create, NULL);
                if (fd < 0)
                        return fd == -EUCLEAN ? -ENOENT : fd;
                (void)close(at_fd); /* was only read */
                at_fd = fd;
                member_path += n + 1;
        }
}

/* Opens the directory of a member's link as at->dir_fd, unless it is that of the last member, as it
 * is most often. The place is open. @return 0; else as open_member_dir() */
static int session_enter(SessionPlace *at, const char *member_path, bool create,
                         const char **ret_name) {
        const char *slash = strrchr(member_path, '/');
        size_t n = slash ? (size_t)(slash - member_path) + 1 : 0;
        if (at->dir_fd >= 0 && strncmp(at->prefix, member_path, n) == 0 && at->prefix[n] == '\0' &&
            own_dir_is_plain_name(member_path + n)) {
                *ret_name = member_path + n;
                return 0;
        }
        _cleanup_close_ int fd = open_member_dir(at->bundle_fd, member_path, create, ret_name);
        if (fd < 0)
                return fd;
        char *prefix = strndup(member_path, n);
        if (!prefix)
                return -ENOMEM;
        forget_directory(at);
        at->prefix = prefix;
        at->dir_fd = TAKE_FD(fd);
        return 0;
}

static bool session_has(LinkSession *s, const char *member_path, const struct stat *st) {
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                SessionPlace *at = &s->places[place];
                const char *name = NULL;
                struct stat there;
                if (session_open(s, place, false) >= 0 &&
                    session_enter(at, member_path, false, &name) >= 0 &&
                    fstatat(at->dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                    link_inodes_is_same(&there, st))
                        return true;
        }
        return false;
}

/* ---- whose links an inode has ---- */

static int read_own(LinkSession *s) {
        if (s->has_own)
                return 0;
        s->has_own = true;
        link_inodes_init(&s->own, s->max_inodes);
        return link_inodes_add_bundle(&s->own, s->dirs, s->bundle_id);
}

static int read_others(LinkSession *s) {
        if (s->has_others)
                return 0;
        s->has_others = true;
        link_inodes_init(&s->others, s->max_inodes);
        s->others.has_no_paths = true;
        int r = link_inodes_add_instance(&s->others, s->dirs, s->bundle_id);
        return r < 0 ? r : link_inodes_add_other_nodes(&s->others, s->dirs);
}

unsigned link_session_own_links(LinkSession *s, const char *member_path, const struct stat *st,
                                bool *ret_has) {
        bool has = session_has(s, member_path, st);
        size_t n = has;
        *ret_has = has;
        if (st->st_nlink <= 1 + n)
                return (unsigned)n;
        (void)read_own(s); /* out of memory: fewer links are counted */
        n = MAX(n, link_inodes_count(&s->own, st->st_dev, st->st_ino, NULL));
        if (st->st_nlink <= 1 + n)
                return (unsigned)n;
        (void)read_others(s); /* as above */
        return (unsigned)(n + link_inodes_count(&s->others, st->st_dev, st->st_ino, NULL));
}

bool link_session_lives_on(LinkSession *s) {
        if (read_own(s) < 0 || !s->own.is_complete || s->own.n == 0)
                return false;
        for (size_t i = 0; i < s->own.n; i++)
                if (s->own.items[i].n_links < 2)
                        return false;
        if (read_others(s) < 0 || !s->others.is_complete)
                return false;
        for (size_t i = 0; i < s->own.n; i++) {
                const LinkInode *x = &s->own.items[i];
                if (x->n_links <= link_inodes_count(&s->own, x->dev, x->ino, NULL) +
                                          link_inodes_count(&s->others, x->dev, x->ino, NULL))
                        return false;
        }
        return true;
}

bool link_session_see(LinkSession *s, const struct stat *st) {
        size_t first, n = link_inodes_count(&s->own, st->st_dev, st->st_ino, &first);
        for (size_t i = first; i < first + n; i++)
                s->own.items[i].seen = true;
        return n > 0;
}

bool link_session_all_seen(const LinkSession *s) {
        for (size_t i = 0; i < s->own.n; i++)
                if (!s->own.items[i].seen)
                        return false;
        return s->own.n > 0;
}

/* ---- making a link ---- */

/* A member that is being linked. */
typedef struct Linking {
        LinkSession *session;
        const LinkMember *member;
        int fd; /* the member, opened O_PATH and found to be the inode member->st; borrowed */
} Linking;

/* Links the file that a descriptor has open. With AT_EMPTY_PATH the kernel requires
 * CAP_DAC_READ_SEARCH (since Linux 6.10 also accepts the opener's credentials), and fails with
 * ENOENT otherwise. The path in /proc requires no capability. */
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
                return -ENOSYS; /* /proc is missing, not the file */
        return r;
}

/* Replaces what has the link's name already, unless it is the same inode. At any moment the old
 * inode or the new one has a link. */
static int replace_link(const Linking *l, const SessionPlace *at, const char *name) {
        char temporary[NAME_MAX + 1];
        struct stat there;

        if (fstatat(at->dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (link_inodes_is_same(&there, l->member->st))
                return 0;
        if (S_ISDIR(there.st_mode)) { /* older members were below a directory of this name */
                int r = fs_remove_tree(at->dir_fd, name);
                return r < 0 ? r : link_fd(l->fd, at->dir_fd, name);
        }
        if ((size_t)snprintf(temporary, sizeof temporary, LINK_NEW_PREFIX "%s",
                             l->session->bundle_id) >= sizeof temporary)
                return -ENAMETOOLONG;
        if (unlinkat(at->instance_fd, temporary, 0) < 0 && errno != ENOENT)
                return -errno;
        int r = link_fd(l->fd, at->instance_fd, temporary);
        if (r < 0)
                return r;
        if (renameat(at->instance_fd, temporary, at->dir_fd, name) < 0) {
                r = -errno;
                (void)unlinkat(at->instance_fd, temporary, 0); /* else links_release() removes it */
                return r;
        }
        return 0;
}

static int add_at(const Linking *l, LinkPlace place) {
        SessionPlace *at = &l->session->places[place];
        const char *name = NULL;
        struct stat linked;

        int r = session_open(l->session, place, true);
        if (r >= 0)
                r = session_enter(at, l->member->path, true, &name);
        if (r < 0)
                return r;

        r = link_fd(l->fd, at->dir_fd, name);
        if (r == -EEXIST)
                r = replace_link(l, at, name);
        if (r < 0)
                return r;
        if (fstatat(at->dir_fd, name, &linked, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        /* No known file system links another file; but what is linked is shipped. */
        if (!link_inodes_is_same(&linked, l->member->st)) {
                (void)unlinkat(at->dir_fd, name, 0);
                return -ENOENT;
        }
        return 0;
}

/* Removes the bundle's links of an inode under other paths. The member was renamed, and would be
 * shipped a second time. */
static void remove_old_names(LinkSession *s, const char *member_path, const struct stat *st) {
        size_t first, n = link_inodes_count(&s->own, st->st_dev, st->st_ino, &first);
        for (size_t i = first; i < first + n; i++) {
                const LinkInode *old = &s->own.items[i];
                SessionPlace *at = &s->places[old->place];
                const char *name = NULL;
                struct stat there;
                if (strcmp(old->path, member_path) == 0 || at->bundle_fd < 0)
                        continue;
                _cleanup_close_ int dir_fd =
                        open_member_dir(at->bundle_fd, old->path, false, &name);
                if (dir_fd >= 0 && fstatat(dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                    link_inodes_is_same(&there, st))
                        (void)unlinkat(dir_fd, name, 0); /* else it is shipped twice */
        }
}

/* @return the place that has links of the bundle; N_LINK_PLACES: neither has */
static LinkPlace find_used_place(LinkSession *s) {
        for (LinkPlace place = 0; s->used == N_LINK_PLACES && place < N_LINK_PLACES; place++)
                if (session_open(s, place, false) >= 0 &&
                    !link_dirs_is_empty(s->places[place].bundle_fd))
                        s->used = place;
        return s->used;
}

/* Removes the empty directories that were created for a link that was then refused. A delivery
 * would take them for the bundle's place. */
static void remove_empty_place(LinkSession *s, SessionPlace *at) {
        if (at->instance_fd < 0)
                return;
        for (char *end; at->bundle_fd >= 0 && at->prefix && (end = strrchr(at->prefix, '/'));) {
                *end = '\0';
                if (unlinkat(at->bundle_fd, at->prefix, AT_REMOVEDIR) < 0)
                        break;
        }
        forget_directory(at);
        if (unlinkat(at->instance_fd, s->bundle_id, AT_REMOVEDIR) < 0 || at->bundle_fd < 0)
                return;
        (void)close(at->bundle_fd); /* was only read */
        at->bundle_fd = -1;
}

static int add_to(const Linking *l, StrBuf *reasons) {
        LinkSession *s = l->session;
        int r = -ENOENT;
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                SessionPlace *at = &s->places[place];
                const char *directory = link_dirs_path(s->dirs, place);
                if (!directory || (find_used_place(s) != N_LINK_PLACES && place != s->used))
                        continue;
                /* Where the bundle's directory exists, linkat(2) decides whether it is one mount.
                 */
                r = at->bundle_fd >= 0 || fs_is_same_mount(l->fd, directory) ? add_at(l, place)
                                                                             : -EXDEV;
                if (r == 0)
                        s->used = place;
                if (!link_dirs_is_refusal(r))
                        return r;
                if (s->used == N_LINK_PLACES)
                        remove_empty_place(s, at);
                if (reasons->n > 0)
                        strbuf_add(reasons, "; and ");
                link_dirs_add_reason(reasons, directory, r, &at->squatter);
        }
        return r;
}

int link_session_add(LinkSession *s, const LinkMember *m, char **ret_error) {
        _cleanup_(strbuf_done) StrBuf reasons = STRBUF_INIT;
        struct stat now;

        _cleanup_close_ int fd = fs_open_beneath(m->unit_fd, m->path_below_unit, O_PATH);
        if (fd < 0) /* a symlink, or a file above it, has replaced the member */
                return fd == -ELOOP || fd == -ENOTDIR ? -ENOENT : fd;
        if (fstat(fd, &now) < 0)
                return -errno;
        if (!S_ISREG(now.st_mode) || !link_inodes_is_same(&now, m->st) || now.st_nlink == 0)
                return -ENOENT;
        int r = add_to(&(Linking){ s, m, fd }, &reasons);
        if (r == 0)
                remove_old_names(s, m->path, m->st);
        if (!link_dirs_is_refusal(r))
                return r;

        _cleanup_free_ char *member = path_escape(m->path);
        _cleanup_free_ char *text = strbuf_detach(&reasons);
        *ret_error = member && text
                             ? strbuf_format("cannot hold '%s' by a hard link: %s", member, text)
                             : NULL;
        return *ret_error ? LINK_SESSION_E_REFUSED : -ENOMEM;
}
