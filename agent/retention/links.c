/* Hard links that hold the members of bundles: where they are, how one is made, whose an inode's
 * links are, what they use on disk, how they and what they hold are deleted. A user's `rm -rf`
 * then removes the name, not the evidence.
 *
 * Nothing here is fsynced: after a power cut either our link is there or the source's own name
 * still is, since both are in one journal. */
#include "agent/retention/links.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent/retention/link_list.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/agent_uid.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/scan.h"
#include "lib/neuron/tree.h"

#define LINKS_TAKEN_PREFIX ".taken-" /* a file that is being deleted, until it is classified */
/* Where links may live: beside the fixed part first, inside it where that cannot be. Both are
 * checked whenever pins are searched: another mount or permission may have decided earlier. */
typedef enum Place { PLACE_BESIDE, PLACE_INSIDE, N_PLACES } Place;

struct LinkDirs {
        char *directories[N_PLACES]; /* [PLACE_BESIDE] NULL: the fixed part is the root directory */
        char *instance_id;
        char *list;     /* the file that lists directories with links; NULL: none */
        char **trusted; /* for agent_uid_is_trusted(); NULL: none */
        atomic_bool is_listed[N_PLACES], has_logged_list;
        atomic_uint network_uid; /* owner of files that this process creates on the network;
                                    UINT_MAX: unknown */
};

/* What is in the way of a directory of ours. */
typedef struct Squatter {
        bool is_directory, is_shared; /* is_shared: agents of several users may write to it */
        uid_t uid;
} Squatter;

static inline bool link_is_inode(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

#define LINK_DIRS_NAME ".neuron-collectd"
#define LINKS_NEW_PREFIX                                                                           \
        ".new-" /* a link on its way into its place; no bundle id begins with a dot */

/* A symlink to `UID:PATH` that records of which unit the pins of a bundle are. */
#define LINKS_UNIT_PREFIX ".unit-"

typedef struct LinkInode {
        dev_t dev;
        ino_t ino;
        nlink_t n_links; /* all names it has, ours and others' */
        uint64_t bytes;  /* on disk */
        unsigned place;  /* the caller's */
        bool seen;       /* the caller's */
        char *path;      /* below the directory that was added; owned; NULL: not wanted */
} LinkInode;

/** All zeros is an empty set. */
typedef struct LinkInodes {
        LinkInode *items;        /* by device and inode, once sorted */
        size_t n, max;           /* beyond max nothing is added, and is_whole becomes false */
        unsigned place;          /* of what is added next */
        bool is_built, is_whole; /* is_whole: nothing was left out */
        bool has_no_paths;       /* nobody needs them: a third of the memory */
} LinkInodes;

/* What a session has open of a place, and why not. */
typedef struct SessionPlace {
        int instance_fd, bundle_fd; /* -1: not open */
        bool is_missing;            /* it does not exist; only a new pin creates it */
        int refused;                /* why it could not be created: -errno, 0 */
        Squatter squatter;          /* for -EUCLEAN */
        int dir_fd;                 /* where the last member's pin is, -1 */
        char *prefix;               /* of its members' paths, with the slash; "" at the top */
} SessionPlace;

struct LinkSession {
        LinkDirs *link_dirs;   /* borrowed */
        const char *bundle_id; /* borrowed */
        size_t max_inodes;
        const char *unit_path; /* borrowed; NULL: not to be recorded */
        uid_t unit_uid;
        Place used; /* the place of all links of the bundle; N_PLACES: unknown */
        SessionPlace places[N_PLACES];
        LinkInodes own, others; /* of this bundle; of all else in the instance's directories */
};

static void link_inodes_done(LinkInodes *s) {
        for (size_t i = 0; i < s->n; i++)
                free(s->items[i].path);
        free(s->items);
        *s = (LinkInodes){ 0 };
}

static int add_inode(LinkInodes *s, const char *path, const struct stat *st) {
        if (s->n >= s->max) {
                s->is_whole = false;
                return 0;
        }
        if (array_grow(&s->items, s->n, sizeof *s->items) < 0)
                return -ENOMEM;
        char *copy = s->has_no_paths ? NULL : strdup(path);
        if (!copy && !s->has_no_paths)
                return -ENOMEM;
        s->items[s->n++] = (LinkInode){ .dev = st->st_dev,
                                        .ino = st->st_ino,
                                        .n_links = st->st_nlink,
                                        .bytes = (uint64_t)st->st_blocks * 512,
                                        .place = s->place,
                                        .path = copy };
        return 0;
}

/* A directory of the walk. */
typedef struct Level {
        int fd;
        const char *prefix; /* of its entries' paths; for the top: NULL */
        unsigned depth;
        const char *except; /* a name that is left out; NULL = none */
} Level;

static int add_entries(LinkInodes *s, const Level *at);

static int add_entry(LinkInodes *s, const Level *at, const char *name, const char *path) {
        struct stat st;
        if (fstatat(at->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return 0; /* released meanwhile */
        if (S_ISREG(st.st_mode))
                return add_inode(s, path, &st);
        if (!S_ISDIR(st.st_mode))
                return 0;
        _cleanup_close_ int fd =
                openat(at->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || at->depth >= FS_DEPTH_MAX + 1) {
                s->is_whole = s->is_whole && fd < 0 && errno == ENOENT;
                return 0;
        }
        return add_entries(s, &(Level){ .fd = fd, .prefix = path, .depth = at->depth + 1 });
}

static int add_entries(LinkInodes *s, const Level *at) {
        _cleanup_closedir_ DIR *dir = NULL;
        if (fs_opendir_at(at->fd, ".", &dir) < 0) {
                s->is_whole = false;
                return 0;
        }
        while (s->n < s->max || s->is_whole) {
                struct dirent *entry = readdir(dir);
                if (!entry)
                        break;
                const char *name = entry->d_name;
                if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
                    (at->except && strcmp(name, at->except) == 0))
                        continue;
                _cleanup_free_ char *path = at->prefix ? path_join(at->prefix, name) : strdup(name);
                int r = path ? add_entry(s, at, name, path) : -ENOMEM;
                if (r < 0)
                        return r;
        }
        return 0;
}

static int link_inodes_add_tree(LinkInodes *s, int dir_fd, const char *except) {
        return add_entries(s, &(Level){ .fd = dir_fd, .depth = 0, .except = except });
}

static int compare(const void *a, const void *b) {
        const LinkInode *x = a, *y = b;
        if (x->dev != y->dev)
                return x->dev < y->dev ? -1 : 1;
        return (x->ino > y->ino) - (x->ino < y->ino);
}

static void link_inodes_sort(LinkInodes *s) {
        if (s->n > 0) /* qsort(3) must not get NULL */
                qsort(s->items, s->n, sizeof *s->items, compare);
}

static size_t link_inodes_count(const LinkInodes *s, dev_t dev, ino_t ino, size_t *ret_first) {
        LinkInode key = { .dev = dev, .ino = ino };
        size_t low = 0, high = s->n;
        while (low < high) {
                size_t mid = low + (high - low) / 2;
                if (compare(&s->items[mid], &key) < 0)
                        low = mid + 1;
                else
                        high = mid;
        }
        if (ret_first)
                *ret_first = low;
        size_t n = 0;
        while (low + n < s->n && compare(&s->items[low + n], &key) == 0)
                n++;
        return n;
}

static char *find_inode_path(int dir_fd, const struct stat *st) {
        LinkInodes all = { .max = SIZE_MAX, .is_whole = true };
        size_t first;
        char *path = NULL;
        (void)link_inodes_add_tree(&all, dir_fd, NULL); /* for want of memory: not found */
        link_inodes_sort(&all);
        if (link_inodes_count(&all, st->st_dev, st->st_ino, &first) > 0)
                path = TAKE_PTR(all.items[first].path);
        link_inodes_done(&all);
        return path;
}

DEFINE_CLEANUP(LinkDirs, link_dirs_free);

static bool is_plain_name(const char *s) {
        size_t n = strlen(s);
        return n > 0 && n <= NAME_MAX && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 &&
               !strchr(s, '/');
}

int link_dirs_new(LinkDirs **ret, const char *fixed, const char *instance_id) {
        _cleanup_(link_dirs_freep) LinkDirs *p = NULL;
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
        atomic_init(&p->network_uid, UINT_MAX);
        *ret = TAKE_PTR(p);
        return 0;
}

LinkDirs *link_dirs_free(LinkDirs *p) {
        if (!p)
                return NULL;
        for (size_t i = 0; i < N_PLACES; i++)
                free(p->directories[i]);
        free(p->instance_id);
        free(p->list);
        strings_free(p->trusted);
        free(p);
        return NULL;
}

/* ---- directories of ours ---- */

static void note_squatter(Squatter *ret, const struct stat *st) {
        if (!ret)
                return;
        ret->is_directory = S_ISDIR(st->st_mode);
        ret->uid = st->st_uid;
}

/* @param uid  the owner it must have: on a network file system files of this process may belong to
 * another user */
static int open_dir_of(uid_t uid, int at_fd, const char *name, bool create,
                       Squatter *ret_squatter) {
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
                if (S_ISDIR(st.st_mode) && st.st_uid == uid)
                        return r;
                note_squatter(ret_squatter, &st);
                return -EUCLEAN;
        }
        if (fstat(fd, &st) < 0)
                return -errno;
        if (st.st_uid != uid) {
                note_squatter(ret_squatter, &st);
                return -EUCLEAN;
        }
        if ((st.st_mode & 0777) != 0700 && fchmod(fd, 0700) < 0)
                return -errno;
        return TAKE_FD(fd);
}

/* Opens a directory below one that the agent owns. */
static int open_own_dir(int at_fd, const char *name, bool create, Squatter *ret_squatter) {
        struct stat st;
        return fstat(at_fd, &st) < 0 ? -errno
                                     : open_dir_of(st.st_uid, at_fd, name, create, ret_squatter);
}

/* ---- directories that agents of all users share, on network file systems ---- */

/* Creates a file to learn its owner: the server may map this process to another user. */
static int query_network_uid(LinkDirs *p, int dir_fd, uid_t *ret) {
        static atomic_uint n_tries;
        char name[64];
        struct stat st;
        if (atomic_load(&p->network_uid) != UINT_MAX) {
                *ret = atomic_load(&p->network_uid);
                return 0;
        }
        (void)snprintf(name, sizeof name, LINKS_NEW_PREFIX "%.20s-%u-%u", p->instance_id,
                       (unsigned)getpid(), atomic_fetch_add(&n_tries, 1));
        _cleanup_close_ int fd =
                openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return -errno;
        int r = fstat(fd, &st) < 0 ? -errno : 0;
        (void)unlinkat(dir_fd, name, 0); /* on error: an empty file stays */
        if (r == 0) {
                atomic_store(&p->network_uid, st.st_uid);
                *ret = st.st_uid;
        }
        return r;
}

bool link_dirs_is_agents(const LinkDirs *p, const struct stat *st, uid_t own_uid) {
        return agent_uid_is_trusted(st->st_uid, own_uid, p->trusted);
}

/* Creates it with its mode under a temporary name: agents of other users may use it at once. */
static int make_shared_dir(const LinkDirs *p, int at_fd, const char *name) {
        char temporary[NAME_MAX + 1];
        struct stat st;
        (void)snprintf(temporary, sizeof temporary, "%.64s-%.64s-%u", name, p->instance_id,
                       (unsigned)getpid());
        if (mkdirat(at_fd, temporary, 0700) < 0 && errno != EEXIST)
                return -errno;
        _cleanup_close_ int fd =
                openat(at_fd, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = fd < 0 || fchmod(fd, 01777) < 0 ? -errno : 0;
        /* rename(2) replaces an empty directory, and NFS has no RENAME_NOREPLACE. */
        if (r == 0 && fstatat(at_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                r = -EEXIST;
        if (r == 0 && renameat(at_fd, temporary, at_fd, name) < 0)
                r = -errno;
        if (r < 0)
                (void)unlinkat(at_fd, temporary, AT_REMOVEDIR); /* it may not be there */
        return r == -EEXIST || r == -ENOTEMPTY ? 0 : r;
}

/* Opens a directory in which every agent may create names, and none may remove those of others. A
 * directory of a user who is no agent, or that cannot be written, is refused.
 * @param ret_uid  owner of files that this process creates in it */
static int open_shared_dir(LinkDirs *p, int at_fd, const char *name, bool create, uid_t *ret_uid,
                           Squatter *ret_squatter) {
        const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
        struct stat st;

        _cleanup_close_ int fd = openat(at_fd, name, flags);
        if (fd < 0 && errno == ENOENT && create) {
                int r = make_shared_dir(p, at_fd, name);
                if (r < 0)
                        return r;
                fd = openat(at_fd, name, flags);
        }
        if (fd < 0) {
                int r = -errno;
                if (fstatat(at_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
                    (S_ISDIR(st.st_mode) && r != -ELOOP && r != -ENOTDIR))
                        return r;
                note_squatter(ret_squatter, &st);
                return -EUCLEAN;
        }
        if (fstat(fd, &st) < 0)
                return -errno;
        if (ret_squatter)
                ret_squatter->is_shared = true;
        *ret_uid = geteuid();
        int r = query_network_uid(p, fd, ret_uid);
        if (!link_dirs_is_agents(p, &st, *ret_uid)) {
                note_squatter(ret_squatter, &st);
                return -EUCLEAN;
        }
        if ((st.st_mode & 07777) != 01777 && st.st_uid == *ret_uid && fchmod(fd, 01777) == 0)
                r = 0; /* of an earlier version */
        return r < 0 && create ? r : TAKE_FD(fd);
}

static int open_base(LinkDirs *p, Place place) {
        if (!p->directories[place])
                return -ENOENT;
        /* The parent is the operator's path; the fixed part itself may be created by any user who
         * runs jobs. */
        int flags = O_PATH | O_DIRECTORY | O_CLOEXEC | (place == PLACE_INSIDE ? O_NOFOLLOW : 0);
        int fd = open(p->directories[place], flags);
        return fd < 0 ? -errno : fd;
}

/* @param ret_uid  owner of files that this process creates there */
static int open_root(LinkDirs *p, Place place, bool create, uid_t *ret_uid,
                     Squatter *ret_squatter) {
        _cleanup_close_ int base_fd = open_base(p, place);
        *ret_uid = geteuid();
        if (base_fd < 0)
                return base_fd;
        return fs_is_network(base_fd, NULL)
                       ? open_shared_dir(p, base_fd, LINK_DIRS_NAME, create, ret_uid, ret_squatter)
                       : open_dir_of(*ret_uid, base_fd, LINK_DIRS_NAME, create, ret_squatter);
}

/* The kernel's path, in which no symlink is left: a symlink put there later shows as a difference.
 * @return 0, -errno; -EINVAL: a user's, with more than one line */
static int find_path(int fd, char ret[static PATH_MAX + 1]) {
        char link[sizeof "/proc/self/fd/" + 3 * sizeof fd];
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, ret, PATH_MAX + 1);
        if (n < 0 || n > PATH_MAX)
                return n < 0 ? -errno : -ENAMETOOLONG;
        ret[n] = '\0';
        return strchr(ret, '\n') ? -EINVAL : 0;
}

/* Where it fails, the next one who opens it tries again. */
static void write_down(LinkDirs *p, Place place, int fd) {
        char path[PATH_MAX + 1] = "";
        if (!p->list || atomic_load(&p->is_listed[place]))
                return;
        int r = find_path(fd, path);
        if (r == 0)
                r = link_list_add(p->list, path);
        if (r == 0)
                atomic_store(&p->is_listed[place], true);
        else if (!atomic_exchange(&p->has_logged_list, true))
                log_warning(r,
                            "cannot add '%s' to '%s', from which a removal of the package knows "
                            "where hard links are; it is tried again with each bundle",
                            path, p->list);
}

static int open_instance(LinkDirs *p, Place place, bool create, Squatter *ret_squatter) {
        uid_t uid;
        _cleanup_close_ int root_fd = open_root(p, place, create, &uid, ret_squatter);
        int fd = root_fd < 0 ? root_fd
                             : open_dir_of(uid, root_fd, p->instance_id, create, ret_squatter);
        if (fd >= 0)
                write_down(p, place, fd);
        else if (fd == -EUCLEAN) /* the server may map this process to another user now */
                atomic_store(&p->network_uid, UINT_MAX);
        return fd;
}

int link_dirs_set_trusted(LinkDirs *p, const char *const *users) {
        strings_free(p->trusted);
        p->trusted = strings_copy((char *const *)users);
        return p->trusted ? 0 : -ENOMEM;
}

int link_dirs_set_list(LinkDirs *p, const char *file) {
        p->list = strdup(file);
        return p->list ? 0 : -ENOMEM;
}

void link_dirs_find(LinkDirs *p, void (*on_place)(const char *path, int error, void *userdata),
                    void *userdata) {
        for (Place place = 0; place < N_PLACES; place++) {
                char path[PATH_MAX + 1];
                _cleanup_close_ int fd = open_instance(p, place, false, NULL);
                int r = fd < 0 ? fd : find_path(fd, path);
                if (r == -ENOENT || r == -ENOTDIR || r == -ELOOP || r == -EUCLEAN)
                        continue; /* nothing, or nothing of ours */
                if (r < 0)
                        (void)snprintf(path, sizeof path, "%s/" LINK_DIRS_NAME "/%s",
                                       p->directories[place], p->instance_id);
                on_place(path, r, userdata);
        }
}

int link_dirs_check(const char *path) {
        char real[PATH_MAX + 1];
        struct stat st;
        _cleanup_close_ int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOTDIR || errno == ELOOP ? -EUCLEAN : -errno;
        int r = fstat(fd, &st) < 0 ? -errno : find_path(fd, real);
        if (r < 0)
                return r;
        /* On a network file system the server may have given it to another user. */
        bool is_ours = st.st_uid == geteuid() || fs_is_network(fd, NULL);
        return strcmp(real, path) == 0 && is_ours ? 0 : -EUCLEAN;
}

/* @param bundle_id  NULL: all of the instance's */
static int open_existing(LinkDirs *p, Place place, const char *bundle_id) {
        _cleanup_close_ int fd = open_instance(p, place, false, NULL);
        return fd < 0 || !bundle_id ? TAKE_FD(fd) : open_own_dir(fd, bundle_id, false, NULL);
}

/* Opens the directory that holds a member's pin and finds the pin's own name in `member_path`.
 * Below the bundle's directory all is ours alone; a pin that is in the way of a directory is one of
 * an older member and goes.
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
                if (!is_plain_name(name))
                        return -EINVAL;
                if (member_path[n] == '\0') {
                        *ret_name = member_path;
                        return TAKE_FD(at_fd);
                }
                int fd = open_own_dir(at_fd, name, create, NULL);
                if (fd == -EUCLEAN && create && unlinkat(at_fd, name, 0) == 0)
                        fd = open_own_dir(at_fd, name, create, NULL);
                if (fd < 0)
                        return fd == -EUCLEAN ? -ENOENT : fd;
                (void)close(at_fd); /* was only read */
                at_fd = fd;
                member_path += n + 1;
        }
}

static bool is_not_ours(int r) {
        return r == -ENOENT || r == -EUCLEAN || r == -ENOTDIR || r == -ELOOP || r == -EACCES;
}

int links_open(LinkDirs *p, const char *bundle_id) {
        int r = -ENOENT;
        if (!is_plain_name(bundle_id))
                return -EINVAL;
        for (Place place = 0; place < N_PLACES; place++) {
                int fd = open_existing(p, place, bundle_id);
                if (fd >= 0)
                        return fd;
                if (r == -ENOENT && !is_not_ours(fd))
                        r = fd;
        }
        return r;
}

static void add_reason(StrBuf *b, const char *directory, int r, const Squatter *squatter);

/* Inside the fixed part first: it is the same place for all nodes, wherever they mount it. */
static int open_shared_root(LinkDirs *p, uid_t *ret_uid, char **ret_error) {
        static const Place order[] = { PLACE_INSIDE, PLACE_BESIDE };
        _cleanup_close_ int fixed_fd = open_base(p, PLACE_INSIDE);
        _cleanup_(strbuf_done) StrBuf reasons = STRBUF_INIT;
        int r = fixed_fd;
        if (fixed_fd < 0 || !fs_is_network(fixed_fd, NULL))
                return fixed_fd < 0 ? fixed_fd : -ENOENT;
        /* An existing place is preferred to one that has to be created. */
        for (size_t i = 0; i < 2 * ELEMENTSOF(order); i++) {
                const Place place = order[i % ELEMENTSOF(order)];
                const char *directory = p->directories[place];
                const bool create = i >= ELEMENTSOF(order);
                Squatter squatter = { 0 };
                if (!directory || (place == PLACE_BESIDE && !fs_is_same_mount(fixed_fd, directory)))
                        continue;
                r = open_root(p, place, create, ret_uid, &squatter);
                if (r >= 0)
                        return r;
                if (!create)
                        continue;
                if (reasons.n > 0)
                        strbuf_add(&reasons, "; and ");
                add_reason(&reasons, directory, r, &squatter);
        }
        if (ret_error && !*ret_error)
                *ret_error = strbuf_detach(&reasons); /* NULL for lack of memory */
        return r;
}

size_t links_count_of_node(LinkDirs *p, const char *instance_id) {
        size_t n = 0;
        for (Place place = 0; place < N_PLACES; place++) {
                _cleanup_closedir_ DIR *dir = NULL;
                uid_t uid;
                _cleanup_close_ int root_fd = open_root(p, place, false, &uid, NULL);
                if (root_fd < 0 || fs_opendir_at(root_fd, instance_id, &dir) < 0)
                        continue;
                for (struct dirent *e; (e = readdir(dir));)
                        n += e->d_name[0] != '.';
        }
        return n;
}

int link_dirs_open_shared(LinkDirs *p, const char *name, uid_t *ret_uid, char **ret_error) {
        _cleanup_close_ int root_fd = open_shared_root(p, ret_uid, ret_error);
        return root_fd < 0 ? root_fd : open_shared_dir(p, root_fd, name, true, ret_uid, NULL);
}

/* ---- the record of the unit that pins belong to ---- */

static bool unit_record_name(char ret[static NAME_MAX + 1], const char *bundle_id) {
        return (size_t)snprintf(ret, NAME_MAX + 1, LINKS_UNIT_PREFIX "%s", bundle_id) <= NAME_MAX;
}

/* Errors are ignored: the pins hold the files without it, but a lost row could not be restored. */
static void record_unit(const LinkSession *s, int instance_fd) {
        char name[NAME_MAX + 1];
        _cleanup_free_ char *text =
                s->unit_path ? strbuf_format("%u:%s", s->unit_uid, s->unit_path) : NULL;
        if (text && unit_record_name(name, s->bundle_id))
                (void)symlinkat(text, instance_fd, name);
}

void link_session_set_unit(LinkSession *s, const char *path, uid_t uid) {
        s->unit_path = path;
        s->unit_uid = uid;
}

int links_read_unit(LinkDirs *p, const char *bundle_id, char **ret_path, uid_t *ret_uid) {
        char name[NAME_MAX + 1], text[PATH_MAX];
        uint64_t uid;
        for (Place place = 0; place < N_PLACES && unit_record_name(name, bundle_id); place++) {
                _cleanup_close_ int fd = open_existing(p, place, NULL);
                ssize_t n = fd < 0 ? -1 : readlinkat(fd, name, text, sizeof text - 1);
                if (n <= 0)
                        continue;
                text[n] = '\0';
                char *path = strchr(text, ':');
                if (!path || path[1] != '/')
                        return -EINVAL;
                *path++ = '\0';
                if (parse_u64_range(text, 0, UINT32_MAX, &uid) < 0)
                        return -EINVAL;
                *ret_uid = (uid_t)uid;
                *ret_path = strdup(path);
                return *ret_path ? 0 : -ENOMEM;
        }
        return -ENOENT;
}

/* Removes what a crash left of released pins. */
static void sweep_unit_record(int instance_fd, const char *name) {
        struct stat st;
        if (fstatat(instance_fd, name + strlen(LINKS_UNIT_PREFIX), &st, AT_SYMLINK_NOFOLLOW) < 0 &&
            errno == ENOENT)
                (void)unlinkat(instance_fd, name, 0); /* else the next sweep */
}

static int release_in(int instance_fd, const char *bundle_id) {
        char temporary[NAME_MAX + 1];
        int r = fs_remove_tree(instance_fd, bundle_id);
        if (r >= 0 && unit_record_name(temporary, bundle_id))
                (void)unlinkat(instance_fd, temporary, 0); /* else the next sweep */
        if ((size_t)snprintf(temporary, sizeof temporary, LINKS_NEW_PREFIX "%s", bundle_id) <
                    sizeof temporary &&
            unlinkat(instance_fd, temporary, 0) < 0 && errno != ENOENT && r >= 0)
                r = -errno;
        return r;
}

int links_release(LinkDirs *p, const char *bundle_id) {
        int first = 0;

        if (!is_plain_name(bundle_id))
                return -EINVAL;
        for (Place place = 0; place < N_PLACES; place++) {
                _cleanup_close_ int instance_fd = open_existing(p, place, NULL);
                int r = instance_fd < 0 ? instance_fd : release_in(instance_fd, bundle_id);
                if (r < 0 && !is_not_ours(r) && first == 0)
                        first = r;
        }
        return first;
}

typedef struct Listing {
        LinkDirs *link_dirs;
        Place place;
        int (*on_links)(const char *bundle_id, const char *path, void *userdata);
        void *userdata;
} Listing;

static int list_place(const Listing *l, int instance_fd) {
        _cleanup_closedir_ DIR *dir = NULL;
        int r = fs_opendir_at(instance_fd, ".", &dir);
        if (r < 0)
                return r;
        for (;;) {
                errno = 0;
                struct dirent *entry = readdir(dir);
                if (!entry)
                        return -errno;
                const char *id = entry->d_name;
                if (strcmp(id, ".") == 0 || strcmp(id, "..") == 0)
                        continue;
                if (strncmp(id, LINKS_UNIT_PREFIX, strlen(LINKS_UNIT_PREFIX)) == 0) {
                        sweep_unit_record(instance_fd, id);
                        continue;
                }
                if (strncmp(id, LINKS_NEW_PREFIX, strlen(LINKS_NEW_PREFIX)) == 0)
                        id += strlen(LINKS_NEW_PREFIX);
                else if (strncmp(id, LINKS_TAKEN_PREFIX, strlen(LINKS_TAKEN_PREFIX)) == 0)
                        id += strlen(LINKS_TAKEN_PREFIX);
                _cleanup_free_ char *path = strbuf_format("%s/" LINK_DIRS_NAME "/%s/%s",
                                                          l->link_dirs->directories[l->place],
                                                          l->link_dirs->instance_id, entry->d_name);
                r = path ? l->on_links(id, path, l->userdata) : -ENOMEM;
                if (r < 0)
                        return r;
        }
}

int links_list(LinkDirs *p,
               int (*on_links)(const char *bundle_id, const char *path, void *userdata),
               void *userdata) {
        for (Place place = 0; place < N_PLACES; place++) {
                Listing l = { p, place, on_links, userdata };
                _cleanup_close_ int instance_fd = open_existing(p, place, NULL);
                int r = instance_fd < 0 ? instance_fd : list_place(&l, instance_fd);
                if (r < 0 && !is_not_ours(r))
                        return r;
        }
        return 0;
}

/* ---- sessions: a walk over a bundle's pins ---- */

static void forget_directory(SessionPlace *at) {
        if (at->dir_fd >= 0)
                (void)close(at->dir_fd); /* was only read */
        at->dir_fd = -1;
        free(at->prefix);
        at->prefix = NULL;
}

int link_session_new(LinkSession **ret, LinkDirs *p, const char *bundle_id, size_t max_inodes) {
        if (bundle_id[0] == '.' || strchr(bundle_id, '/'))
                return -EINVAL;
        LinkSession *s = malloc(sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (LinkSession){
                .link_dirs = p, .bundle_id = bundle_id, .max_inodes = max_inodes, .used = N_PLACES
        };
        for (size_t i = 0; i < N_PLACES; i++)
                s->places[i] = (SessionPlace){ .instance_fd = -1, .bundle_fd = -1, .dir_fd = -1 };
        *ret = s;
        return 0;
}

LinkSession *link_session_free(LinkSession *s) {
        if (!s)
                return NULL;
        for (size_t i = 0; i < N_PLACES; i++) {
                forget_directory(&s->places[i]);
                cleanup_closep(&s->places[i].bundle_fd);
                cleanup_closep(&s->places[i].instance_fd);
        }
        link_inodes_done(&s->own);
        link_inodes_done(&s->others);
        free(s);
        return NULL;
}

/* Opens the directory of the bundle in a place, once. 0; results as open_own_dir */
static int session_open(LinkSession *s, Place place, bool create) {
        SessionPlace *at = &s->places[place];
        if (at->bundle_fd >= 0)
                return 0;
        if (at->refused < 0)
                return at->refused;
        if (at->is_missing && !create)
                return -ENOENT;
        if (at->instance_fd < 0)
                at->instance_fd = open_instance(s->link_dirs, place, create, &at->squatter);
        int fd = at->instance_fd < 0
                         ? at->instance_fd
                         : open_own_dir(at->instance_fd, s->bundle_id, create, &at->squatter);
        if (fd < 0) {
                at->is_missing = is_not_ours(fd);
                at->refused = create ? fd : 0;
                return fd;
        }
        at->bundle_fd = fd;
        if (create)
                record_unit(s, at->instance_fd);
        return 0;
}

/* Opens the directory of a member's pin: mostly it is that of the last member. The place is open.
 * @return 0, at->dir_fd is it; as open_member_dir */
static int session_enter(SessionPlace *at, const char *member_path, bool create,
                         const char **ret_name) {
        const char *slash = strrchr(member_path, '/');
        size_t n = slash ? (size_t)(slash - member_path) + 1 : 0;
        if (at->dir_fd >= 0 && strncmp(at->prefix, member_path, n) == 0 && at->prefix[n] == '\0' &&
            is_plain_name(member_path + n)) {
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
        for (Place place = 0; place < N_PLACES; place++) {
                SessionPlace *at = &s->places[place];
                const char *name = NULL;
                struct stat there;
                if (session_open(s, place, false) >= 0 &&
                    session_enter(at, member_path, false, &name) >= 0 &&
                    fstatat(at->dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                    link_is_inode(&there, st))
                        return true;
        }
        return false;
}

/* ---- whose links ---- */

/* @param bundle_id  NULL: all of the instance's, but for `except`. 0 or -ENOMEM */
static int collect(LinkDirs *p, const char *bundle_id, const char *except, LinkInodes *ret) {
        int r = 0;
        for (Place place = 0; r >= 0 && place < N_PLACES; place++) {
                _cleanup_close_ int fd = open_existing(p, place, bundle_id);
                ret->place = place;
                if (fd >= 0)
                        r = link_inodes_add_tree(ret, fd, except);
        }
        link_inodes_sort(ret);
        return r;
}

/* Counts links of another node's agent, as far as they can be read: those of a dead node stay. */
static int collect_of_others(LinkDirs *p, Place place, LinkInodes *ret) {
        _cleanup_closedir_ DIR *dir = NULL;
        uid_t uid;
        int root_fd = open_root(p, place, false, &uid, NULL);
        if (root_fd >= 0 && !fs_is_network(root_fd, NULL)) {
                (void)close(root_fd); /* was not read */
                return 0;
        }
        int r = fs_opendir_fd(root_fd, &dir) < 0 ? 1 : 0;
        for (struct dirent *e; r == 0 && (e = readdir(dir));) {
                struct stat st;
                if (e->d_name[0] == '.' || e->d_name[0] == '@' ||
                    strcmp(e->d_name, p->instance_id) == 0)
                        continue;
                _cleanup_close_ int fd = openat(dirfd(dir), e->d_name,
                                                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (fd >= 0 && fstat(fd, &st) == 0 && link_dirs_is_agents(p, &st, uid))
                        r = link_inodes_add_tree(ret, fd, NULL);
        }
        return MIN(r, 0);
}

static int build_own(LinkSession *s) {
        if (s->own.is_built)
                return 0;
        s->own = (LinkInodes){ .max = s->max_inodes, .is_built = true, .is_whole = true };
        return collect(s->link_dirs, s->bundle_id, NULL, &s->own);
}

/* A unit that was renamed is another bundle, and its members are pinned for the old one; sources
 * may overlap. */
static int build_others(LinkSession *s) {
        if (s->others.is_built)
                return 0;
        s->others = (LinkInodes){
                .max = s->max_inodes, .is_built = true, .is_whole = true, .has_no_paths = true
        };
        int r = collect(s->link_dirs, NULL, s->bundle_id, &s->others);
        for (Place place = 0; r >= 0 && place < N_PLACES; place++)
                r = collect_of_others(s->link_dirs, place, &s->others);
        link_inodes_sort(&s->others);
        return r;
}

unsigned link_session_own_links(LinkSession *s, const char *member_path, const struct stat *st,
                                bool *ret_has) {
        bool has = session_has(s, member_path, st);
        size_t n = has;
        *ret_has = has;
        if (st->st_nlink <= 1 + n)
                return (unsigned)n;
        (void)build_own(s); /* for want of memory: what is known */
        n = MAX(n, link_inodes_count(&s->own, st->st_dev, st->st_ino, NULL));
        if (st->st_nlink <= 1 + n)
                return (unsigned)n;
        (void)build_others(s); /* as above */
        return (unsigned)(n + link_inodes_count(&s->others, st->st_dev, st->st_ino, NULL));
}

bool link_session_lives_on(LinkSession *s) {
        if (build_own(s) < 0 || !s->own.is_whole || s->own.n == 0)
                return false;
        for (size_t i = 0; i < s->own.n; i++)
                if (s->own.items[i].n_links < 2)
                        return false;
        if (build_others(s) < 0 || !s->others.is_whole)
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

/* ---- links ---- */

/* A member that is being pinned. */
typedef struct Linking {
        LinkSession *session;
        const LinkMember *member;
        int fd; /* the member, opened O_PATH and found to be the inode member->st; borrowed */
} Linking;

/* Links what the descriptor stands for, whatever happens to its name meanwhile. By the descriptor
 * itself the kernel requires CAP_DAC_READ_SEARCH (or, since Linux 6.10, the opener's credentials)
 * and else fails with ENOENT; /proc needs nothing. */
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

/* The name exists already: it is the same inode, or is replaced without a moment in which neither
 * is pinned. */
static int replace_link(const Linking *l, const SessionPlace *at, const char *name) {
        char temporary[NAME_MAX + 1];
        struct stat there;

        if (fstatat(at->dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (link_is_inode(&there, l->member->st))
                return 0;
        if (S_ISDIR(there.st_mode)) { /* of older members below a directory of this name */
                int r = fs_remove_tree(at->dir_fd, name);
                return r < 0 ? r : link_fd(l->fd, at->dir_fd, name);
        }
        if ((size_t)snprintf(temporary, sizeof temporary, LINKS_NEW_PREFIX "%s",
                             l->session->bundle_id) >= sizeof temporary)
                return -ENAMETOOLONG;
        if (unlinkat(at->instance_fd, temporary, 0) < 0 && errno != ENOENT)
                return -errno;
        int r = link_fd(l->fd, at->instance_fd, temporary);
        if (r < 0)
                return r;
        if (renameat(at->instance_fd, temporary, at->dir_fd, name) < 0) {
                r = -errno;
                (void)unlinkat(at->instance_fd, temporary, 0); /* else links_release does */
                return r;
        }
        return 0;
}

static int add_at(const Linking *l, Place place) {
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
        /* No known file system does that; but a wrong pin would be shipped. */
        if (!link_is_inode(&linked, l->member->st)) {
                (void)unlinkat(at->dir_fd, name, 0);
                return -ENOENT;
        }
        return 0;
}

/* The member was renamed: its pins under other names would be shipped as a second file. */
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
                    link_is_inode(&there, st))
                        (void)unlinkat(dir_fd, name, 0); /* else it is shipped twice, never lost */
        }
}

/* ---- who was first ---- */

/* Every user may create names in it, and none may remove others'. Elsewhere the directory's owner
 * decides; on a network file system it may be the agent of another node that was first. */
static bool is_open_to_all(int fd) {
        struct stat st;
        return fstat(fd, &st) == 0 && (st.st_mode & S_ISVTX) && (st.st_mode & S_IWOTH) &&
               !fs_is_network(fd, NULL);
}

/* In one step, so that nobody is first once more. Root's stays. @return 0, -errno */
static int move_aside(const char *directory, int base_fd, char **ret_moved) {
        static atomic_flag is_moving = ATOMIC_FLAG_INIT; /* for another source, in its thread */
        char name[64];
        struct stat st;
        int r = 0;
        (void)snprintf(name, sizeof name, LINK_DIRS_NAME "-%" PRIu64, clock_boottime_usec());
        if (atomic_flag_test_and_set(&is_moving))
                return -EBUSY;
        if (fstatat(base_fd, LINK_DIRS_NAME, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            mkdirat(base_fd, name, 0700) < 0)
                r = -errno;
        else if (st.st_uid == 0 || st.st_uid == geteuid())
                r = -EEXIST;
        else if (renameat2(base_fd, name, base_fd, LINK_DIRS_NAME, RENAME_EXCHANGE) < 0)
                r = -errno;
        if (r < 0)
                (void)unlinkat(base_fd, name, AT_REMOVEDIR); /* it may not be there */
        atomic_flag_clear(&is_moving);
        if (r == 0)
                *ret_moved = path_join(directory, name);
        return r;
}

/* @return whether links go beside the fixed part, in which another user could create the directory
 * first */
static bool is_beside_usable(LinkDirs *p, int base_fd) {
        if (base_fd >= 0 && fs_is_network(base_fd, NULL)) /* no user's by chance */
                return true;
        _cleanup_close_ int fixed_fd = open_base(p, PLACE_INSIDE);
        if (base_fd < 0 ||
            (fixed_fd >= 0 && !fs_is_same_mount(fixed_fd, p->directories[PLACE_BESIDE])))
                return false;
        _cleanup_close_ int fd = open_dir_of(geteuid(), base_fd, LINK_DIRS_NAME, false, NULL);
        return fd >= 0 || is_open_to_all(base_fd) ||
               (fd == -ENOENT && faccessat(base_fd, ".", W_OK | X_OK, AT_EACCESS) == 0);
}

int link_dirs_secure(LinkDirs *p, char **ret_moved) {
        _cleanup_close_ int beside_fd = open_base(p, PLACE_BESIDE);
        Place place = is_beside_usable(p, beside_fd) ? PLACE_BESIDE : PLACE_INSIDE;
        _cleanup_close_ int base_fd = open_base(p, place);
        if (base_fd < 0 || !is_open_to_all(base_fd))
                return 0;
        _cleanup_close_ int fd = open_dir_of(geteuid(), base_fd, LINK_DIRS_NAME, true, NULL);
        return fd == -EUCLEAN ? move_aside(p->directories[place], base_fd, ret_moved) : MIN(fd, 0);
}

/* ---- refusals ---- */

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
                            "'%s/" LINK_DIRS_NAME
                            "' is %s of uid %u, not a directory of the agent (uid %u): remove it%s",
                            directory, squatter->is_directory ? "a directory" : "a file or symlink",
                            (unsigned)squatter->uid, (unsigned)geteuid(),
                            squatter->is_shared && squatter->is_directory
                                    ? ", or add that uid to agreement.trusted_uids if another "
                                      "node's agent has it"
                                    : "");
                break;
        case -EXDEV:
                strbuf_addf(b, "'%s' is another mount: give the source a path on one mount",
                            directory);
                break;
        case -EPERM:
                strbuf_addf(b,
                            "'%s' accepts no link to this file (%s): give the agent CAP_FOWNER, or "
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
                strbuf_addf(b, "'%s' has no free space (%s): free some space or inodes", directory,
                            strerror(-r));
                break;
        default:
                strbuf_addf(b, "'%s' does not accept hard links (%s): use another file system",
                            directory, strerror(-r));
        }
}

static bool is_empty(int dir_fd) {
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *e;
        if (fs_opendir_at(dir_fd, ".", &dir) < 0)
                return false;
        while ((e = readdir(dir)))
                if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
                        return false;
        return true;
}

/* A delivery opens one place only, so the links of a bundle are never in two. */
static Place find_used_place(LinkSession *s) {
        for (Place place = 0; s->used == N_PLACES && place < N_PLACES; place++)
                if (session_open(s, place, false) >= 0 && !is_empty(s->places[place].bundle_fd))
                        s->used = place;
        return s->used;
}

/* Removes the empty directories that were created for a link which was then refused: they would be
 * taken for the bundle's place. */
static void remove_empty_place(LinkSession *s, SessionPlace *at) {
        if (at->bundle_fd < 0)
                return;
        for (char *end; at->prefix && (end = strrchr(at->prefix, '/'));) {
                *end = '\0';
                if (unlinkat(at->bundle_fd, at->prefix, AT_REMOVEDIR) < 0)
                        break;
        }
        forget_directory(at);
        if (unlinkat(at->instance_fd, s->bundle_id, AT_REMOVEDIR) < 0)
                return;
        (void)close(at->bundle_fd); /* was only read */
        at->bundle_fd = -1;
}

static int add_to(const Linking *l, StrBuf *reasons) {
        LinkSession *s = l->session;
        int r = -ENOENT;
        for (Place place = 0; place < N_PLACES; place++) {
                SessionPlace *at = &s->places[place];
                const char *directory = s->link_dirs->directories[place];
                if (!directory || (find_used_place(s) != N_PLACES && place != s->used))
                        continue;
                /* Where the bundle's directory exists linkat decides. */
                r = at->bundle_fd >= 0 || fs_is_same_mount(l->fd, directory) ? add_at(l, place)
                                                                             : -EXDEV;
                if (r == 0)
                        s->used = place;
                if (!is_refusal(r))
                        return r;
                if (s->used == N_PLACES)
                        remove_empty_place(s, at);
                if (reasons->n > 0)
                        strbuf_add(reasons, "; and ");
                add_reason(reasons, directory, r, &at->squatter);
        }
        return r;
}

int link_session_add(LinkSession *s, const LinkMember *m, char **ret_error) {
        _cleanup_(strbuf_done) StrBuf reasons = STRBUF_INIT;
        struct stat now;

        _cleanup_close_ int fd = fs_open_beneath(m->unit_fd, m->path_below_unit, O_PATH);
        if (fd < 0) /* a symlink in its place is not the member either */
                return fd == -ELOOP || fd == -ENOTDIR ? -ENOENT : fd;
        if (fstat(fd, &now) < 0)
                return -errno;
        if (!S_ISREG(now.st_mode) || !link_is_inode(&now, m->st) || now.st_nlink == 0)
                return -ENOENT;
        int r = add_to(&(Linking){ s, m, fd }, &reasons);
        if (r == 0)
                remove_old_names(s, m->path, m->st);
        if (!is_refusal(r))
                return r;

        _cleanup_free_ char *member = path_escape(m->path);
        _cleanup_free_ char *text = strbuf_detach(&reasons);
        *ret_error = member && text
                             ? strbuf_format("cannot hold '%s' by a hard link: %s", member, text)
                             : NULL;
        return *ret_error ? LINK_SESSION_E_REFUSED : -ENOMEM;
}

/* ---- what pins use on disk, and whether anything else still has a name ---- */

int link_usage_query_space(LinkDirs *p, RetentionSpace *ret, dev_t *ret_device) {
        struct statvfs vfs;
        struct stat st;

        int r = scan_open_fixed(p->directories[PLACE_INSIDE]);
        if (r < 0 && p->directories[PLACE_BESIDE]) {
                r = open(p->directories[PLACE_BESIDE], O_PATH | O_DIRECTORY | O_CLOEXEC);
                r = r < 0 ? -errno : r;
        }
        if (r < 0)
                return r;
        _cleanup_close_ int fd = r;
        if (fstatvfs(fd, &vfs) < 0 || fstat(fd, &st) < 0)
                return -errno;
        *ret_device = st.st_dev;
        *ret = (RetentionSpace){ .total_bytes = (uint64_t)vfs.f_blocks * vfs.f_frsize,
                                 .free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize,
                                 .total_inodes = vfs.f_files,
                                 .free_inodes = vfs.f_files > 0 ? vfs.f_favail : 0 };
        return 0;
}

/* Where there are no leases this is unknown, as when a bundle settles. */
static bool has_writer(LinkDirs *p, const char *bundle_id, const LinkInodes *own) {
        _cleanup_close_ int dir_fd = links_open(p, bundle_id);
        for (size_t i = 0; dir_fd >= 0 && i < own->n; i++) {
                _cleanup_close_ int fd = fs_open_regular(dir_fd, own->items[i].path, NULL);
                int r = fd < 0 ? fd : fs_check_writer(fd);
                if (r != 0 && r != -ENOENT && r != FS_E_UNKNOWN)
                        return true;
        }
        return false;
}

static void add_up(LinkUsage *use, const LinkInodes *own, const LinkInodes *all) {
        use->is_there = own->n > 0;
        use->is_only_ours = own->n > 0 && own->is_whole;
        for (size_t i = 0, n; i < own->n; i += n) {
                const LinkInode *x = &own->items[i];
                n = link_inodes_count(own, x->dev, x->ino, NULL);
                size_t ours = all ? MAX(n, link_inodes_count(all, x->dev, x->ino, NULL)) : n;
                use->used_bytes += x->bytes;
                use->used_inodes++;
                if (x->n_links <= n + 1) { /* only the source's own name remains */
                        use->free_bytes += x->bytes;
                        use->free_inodes++;
                }
                use->is_only_ours = use->is_only_ours && x->n_links <= ours;
        }
}

int link_usage_measure(LinkDirs *p, const LinkMeasure *m) {
        LinkInodes all = { .max = m->max_inodes, .is_whole = true };
        int r = m->explain_links ? collect(p, NULL, NULL, &all) : 0;
        for (size_t i = 0; r >= 0 && i < m->n; i++) {
                LinkInodes own = { .max = m->max_inodes, .is_whole = true };
                r = collect(p, m->uses[i].bundle_id, NULL, &own);
                if (r >= 0)
                        add_up(&m->uses[i], &own, m->explain_links ? &all : NULL);
                m->uses[i].has_writer = m->ask_writers && has_writer(p, m->uses[i].bundle_id, &own);
                link_inodes_done(&own);
        }
        link_inodes_done(&all);
        return r;
}

/* ---- deletion ---- */

/* The tree is hostile and jobs are still writing, so another file may get a name between any
 * check and its deletion: the file is therefore moved into our own directory first, and
 * classified there, where no user can reach it.
 *
 * One file at a time is moved, to `.taken-<bundle-id>`. After a crash the pins show which member
 * the file in there is; one that is no member had come in between, and is moved back under a
 * name with `.kept-by-neuron-collectd`. A member's pin is removed after its name, so that what
 * is still to be done is what is still pinned. Directories of pins mirror the source's: a
 * directory is removed when it has no pins. */

#define KEPT_SUFFIX ".kept-by-neuron-collectd"
#define KEPT_TRIES 100
typedef struct Deleter {
        LinkDirs *link_dirs;
        const LinkDeletion *request;
        LinkDeletionTally *tally;
        bool found;            /* some place has pins of the bundle */
        int fixed_fd, unit_fd; /* -1: gone. unit_fd of a file: its directory */
        int instance_fd, bundle_fd;
        char slot[NAME_MAX + 1];
} Deleter;

/* One directory of pins, and what it mirrors. */
typedef struct DeleterLevel {
        int links_fd, source_fd; /* source_fd -1: gone */
        const char *path;        /* in the bundle; "" at the top */
        bool keeps_links;        /* pins stay in it or below */
        bool is_unshipped;       /* one of them, until it is rechecked */
} DeleterLevel;

static int delete_below(Deleter *d, DeleterLevel *l);

typedef enum MemberState { MEMBER_DELETABLE, MEMBER_CHANGED, MEMBER_OPEN } MemberState;

/* Nothing is there, or a symlink or something else where a directory of ours was: what lies behind
 * it is not ours. */
static bool is_gone(int r) {
        return r == -ENOENT || r == -ENOTDIR || r == -ELOOP;
}

static bool is_shipped(const LinkDeletion *o, const char *path, const struct stat *st) {
        return member_fingerprints_contain(o->prints, o->n_prints, member_fingerprint(path, st));
}

/* Whether the last link to it may be removed. */
static bool is_known(const Deleter *d, const char *path, int fd) {
        const LinkDeletion *o = d->request;
        struct stat st;
        if (o->any_content || o->discards_unshipped)
                return true;
        return fstat(fd, &st) == 0 &&
               (is_shipped(o, path, &st) ||
                member_fingerprints_contain(o->known, o->n_known, member_fingerprint(path, &st)));
}

/* @return MemberState, or -errno. Where there are no leases only the fingerprint decides, as it
 * does when a bundle settles. */
static int classify(const Deleter *d, const char *path, int fd) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!d->request->any_content && !is_shipped(d->request, path, &st))
                return MEMBER_CHANGED;
        int r = fs_check_writer(fd);
        return r < 0 ? r : r == FS_E_WRITER ? MEMBER_OPEN : MEMBER_DELETABLE;
}

/* ---- the slot ---- */

/* Where the file system knows no RENAME_NOREPLACE (NFS) a link does the same, for files. */
static int move_without_replacing(const Deleter *d, int dir_fd, const char *name) {
        if (renameat2(d->instance_fd, d->slot, dir_fd, name, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno != EINVAL)
                return -errno;
        if (linkat(d->instance_fd, d->slot, dir_fd, name, 0) < 0)
                return -errno;
        return unlinkat(d->instance_fd, d->slot, 0) < 0 ? -errno : 0;
}

/* Its name is used again, or its directory is gone: a name nearby, but never one that exists. */
static int keep_aside(Deleter *d, int dir_fd, const char *name) {
        const int places[] = { dir_fd, d->unit_fd, d->fixed_fd };
        int r = -ENOENT;
        for (size_t i = 0; i < ELEMENTSOF(places); i++)
                for (unsigned k = 1; places[i] >= 0 && k <= KEPT_TRIES; k++) {
                        char other[NAME_MAX + 1], number[16] = "";
                        if (k > 1)
                                (void)snprintf(number, sizeof number, ".%u", k);
                        (void)snprintf(other, sizeof other, "%.200s" KEPT_SUFFIX "%s", name,
                                       number);
                        r = move_without_replacing(d, places[i], other);
                        d->tally->n_kept += r == 0;
                        if (r == 0)
                                return 0;
                        if (r != -EEXIST)
                                break;
                }
        return r;
}

static int put_back(Deleter *d, int dir_fd, const char *name) {
        int r = dir_fd < 0 ? -ENOENT : move_without_replacing(d, dir_fd, name);
        return r == -EEXIST || r == -ENOENT ? keep_aside(d, dir_fd, name) : r;
}

/* ---- one member ---- */

/* What came may be another file than was checked: it is classified again. @param fd  the pinned
 * file. @return MemberState, -errno */
static int delete_name(Deleter *d, const DeleterLevel *l, const char *path, int fd) {
        struct stat st, pinned;
        const char *name = path_name(path);

        int r = renameat2(l->source_fd, name, d->instance_fd, d->slot, RENAME_NOREPLACE);
        if (r < 0 && errno == EINVAL) /* unknown to NFS; the slot is empty */
                r = renameat(l->source_fd, name, d->instance_fd, d->slot);
        if (r < 0)
                return errno == ENOENT ? MEMBER_DELETABLE : -errno;
        if (fstatat(d->instance_fd, d->slot, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            fstat(fd, &pinned) < 0)
                return -errno;
        r = link_is_inode(&st, &pinned) ? classify(d, path, fd) : MEMBER_CHANGED;
        if (r == MEMBER_DELETABLE) {
                if (unlinkat(d->instance_fd, d->slot, 0) < 0)
                        return -errno;
                d->tally->n_deleted++;
                d->tally->deleted_bytes += (uint64_t)pinned.st_size;
                return MEMBER_DELETABLE;
        }
        int back = put_back(d, l->source_fd, name);
        return back < 0 ? back : r;
}

/* @return whether the member's name at the source is the pinned inode; -errno */
static int has_name(const DeleterLevel *l, const char *name, const struct stat *pinned) {
        struct stat there;
        if (l->source_fd < 0)
                return false;
        if (fstatat(l->source_fd, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? false : -errno;
        return link_is_inode(pinned, &there);
}

static int delete_member(Deleter *d, DeleterLevel *l, const char *path) {
        const char *name = path_name(path);
        struct stat st;

        _cleanup_close_ int fd = fs_open_regular(l->links_fd, name, &st);
        if (fd == -ENOENT)
                return 0;
        if (fd < 0)
                return fd;
        int r = MEMBER_DELETABLE, named = has_name(l, name, &st);
        if (named < 0)
                return named;
        bool stays = d->request->only_links ||
                     (d->request->only_named && !member_is_evidence_by_name(name));
        if (named && !d->request->only_links)
                d->tally->n_unnamed += stays;
        if (named && !stays) {
                r = classify(d, path, fd);
                if (r == MEMBER_DELETABLE)
                        r = delete_name(d, l, path, fd);
        }
        if (r < 0)
                return r;
        if (r == MEMBER_OPEN) {
                d->tally->n_open++;
                l->keeps_links = true;
                return 0;
        }
        if ((!named || r == MEMBER_CHANGED) && !is_known(d, path, fd)) {
                d->tally->n_unshipped++;
                l->keeps_links = l->is_unshipped = true;
                return 0;
        }
        d->tally->n_gone += !named;
        d->tally->n_changed += r == MEMBER_CHANGED;
        return unlinkat(l->links_fd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

/* ---- directories ---- */

/* With anything in it, mounted on it, or something else in its place, it stays. */
static int remove_if_empty(int dir_fd, const char *name) {
        if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0 || errno == ENOTEMPTY || errno == EEXIST ||
            errno == EBUSY || is_gone(-errno))
                return 0;
        return -errno;
}

static int delete_directory(Deleter *d, DeleterLevel *l, const char *path) {
        const char *name = path_name(path);
        _cleanup_close_ int links_fd =
                openat(l->links_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (links_fd < 0)
                return -errno;
        int opened = l->source_fd < 0 ? -ENOENT
                                      : fs_open_beneath(l->source_fd, name, O_RDONLY | O_DIRECTORY);
        if (opened < 0 && !is_gone(opened))
                return opened;
        _cleanup_close_ int source_fd = MAX(opened, -1);
        DeleterLevel below = { links_fd, source_fd, path, false, false };
        int r = delete_below(d, &below);
        l->is_unshipped = l->is_unshipped || below.is_unshipped;
        l->keeps_links = l->keeps_links || below.keeps_links || r < 0;
        if (r < 0 || below.keeps_links)
                return r;
        bool stays = d->request->only_links || d->request->only_named;
        r = l->source_fd < 0 || stays ? 0 : remove_if_empty(l->source_fd, name);
        l->keeps_links = l->keeps_links || r < 0;
        if (r < 0)
                return r;
        return unlinkat(l->links_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

/* Continues after a failure, and returns the first one. */
static int delete_below(Deleter *d, DeleterLevel *l) {
        _cleanup_closedir_ DIR *dir = NULL;
        TreeList list = { 0 };
        int first = tree_open(l->links_fd, "", &dir);
        if (first == 0)
                first = tree_list_read(&list, dir, &TREE_UNBOUNDED);
        for (size_t i = 0; i < list.n; i++) {
                const char *name = tree_list_name(&list, i);
                _cleanup_free_ char *path = l->path[0] ? path_join(l->path, name) : strdup(name);
                int r = !path                              ? -ENOMEM
                        : list.entries[i].type == TREE_DIR ? delete_directory(d, l, path)
                                                           : delete_member(d, l, path);
                if (r < 0) {
                        l->keeps_links = true;
                        first = first < 0 ? first : r;
                }
        }
        tree_list_done(&list);
        return first;
}

/* ---- after a crash ---- */

static int put_back_at(Deleter *d, const char *path) {
        const char *name = path_name(path);
        _cleanup_close_ int fd = d->unit_fd < 0 ? -1 : tree_open_parent(d->unit_fd, path, &name);
        return fd == -ENOMEM ? fd : put_back(d, MAX(fd, -1), name);
}

/* What an earlier run had moved when it was cut: it is moved back, and handled like all others. */
static int restore_moved(Deleter *d) {
        struct stat st;
        if (fstatat(d->instance_fd, d->slot, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : -errno;
        _cleanup_free_ char *path = d->bundle_fd < 0 ? NULL : find_inode_path(d->bundle_fd, &st);
        if (!path)
                return keep_aside(d, d->unit_fd, d->request->bundle_id);
        return put_back_at(d, path);
}

/* ---- a bundle ---- */

/* Of what is missing, or has a symlink or something else in its place, nothing is ours. */
static int open_source(Deleter *d) {
        const LinkDeletion *o = d->request;
        const char *name;
        int fd = scan_open_fixed(d->link_dirs->directories[PLACE_INSIDE]);
        if (fd < 0)
                return is_gone(fd) ? 0 : fd;
        d->fixed_fd = fd;
        fd = o->is_file ? tree_open_parent(d->fixed_fd, o->relative, &name)
                        : fs_open_beneath(d->fixed_fd, o->relative[0] ? o->relative : ".",
                                          O_RDONLY | O_DIRECTORY);
        if (fd < 0)
                return is_gone(fd) ? 0 : fd;
        d->unit_fd = fd;
        return 0;
}

static bool is_unit_there(const Deleter *d) {
        struct stat st;
        const char *name = path_name(d->request->relative);
        return d->unit_fd >= 0 &&
               (!d->request->is_file || fstatat(d->unit_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0);
}

static int remove_unit(const Deleter *d) {
        const LinkDeletion *o = d->request;
        if (o->is_file || o->leaves_directory || !o->relative[0] || d->unit_fd < 0)
                return 0;
        const char *name;
        _cleanup_close_ int fd = tree_open_parent(d->fixed_fd, o->relative, &name);
        if (fd < 0)
                return is_gone(fd) ? 0 : fd;
        return remove_if_empty(fd, name);
}

static int at_place(Deleter *d, Place place) {
        _cleanup_close_ int instance_fd = open_instance(d->link_dirs, place, false, NULL);
        if (instance_fd < 0)
                return is_not_ours(instance_fd) ? 0 : instance_fd;
        _cleanup_close_ int bundle_fd =
                open_own_dir(instance_fd, d->request->bundle_id, false, NULL);
        if (bundle_fd < 0 && !is_not_ours(bundle_fd))
                return bundle_fd;
        /* A call that hung may resume with what is in the slot. Where directories cannot be locked
         * this is not excluded. */
        if (bundle_fd >= 0 && flock(bundle_fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
                return -EBUSY;
        d->instance_fd = instance_fd;
        d->bundle_fd = bundle_fd;
        d->found = d->found || bundle_fd >= 0;
        int r = restore_moved(d);
        if (r < 0 || bundle_fd < 0)
                return r;
        DeleterLevel top = { bundle_fd, d->unit_fd, "", false, false };
        r = delete_below(d, &top);
        return r < 0              ? r
               : top.is_unshipped ? LINK_DELETION_E_UNSHIPPED
               : top.keeps_links  ? LINK_DELETION_E_OPEN
                                  : 0;
}

/* One fsync writes the journal up to here. */
static int make_durable(LinkDirs *p) {
        for (Place place = 0; place < N_PLACES; place++) {
                _cleanup_close_ int fd = open_instance(p, place, false, NULL);
                int r = fd < 0 ? 0 : fs_sync_dir(fd);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* What is missing may be deleted, or not mounted. Where the device number is no proof (another
 * boot may number it otherwise) our own directory beside the source does: it outlives the pins. */
static bool is_file_system_there(const Deleter *d) {
        const dev_t expected = (dev_t)d->request->unit_dev;
        struct stat fixed = { 0 }, st;
        bool has_fixed = d->fixed_fd >= 0 && fstat(d->fixed_fd, &fixed) == 0;
        if (has_fixed && expected != 0 && fixed.st_dev == expected)
                return true;
        for (Place place = 0; place < N_PLACES; place++) {
                _cleanup_close_ int fd = open_instance(d->link_dirs, place, false, NULL);
                if (fd < 0 || fstat(fd, &st) < 0)
                        continue;
                if (expected != 0 ? st.st_dev == expected : !has_fixed || st.st_dev == fixed.st_dev)
                        return true;
        }
        return false;
}

static int work(Deleter *d) {
        int worst = 0;
        for (Place place = 0; place < N_PLACES; place++) {
                int r = at_place(d, place);
                worst = worst < 0 || (worst > 0 && r >= 0) ? worst : r;
        }
        if (worst != 0)
                return worst;
        if (!d->found)
                return is_unit_there(d)          ? -ENOENT
                       : is_file_system_there(d) ? 0
                                                 : LINK_DELETION_E_AWAY;
        int r = !d->request->only_links ? remove_unit(d) : 0;
        if (r < 0)
                return r;
        r = links_release(d->link_dirs, d->request->bundle_id);
        return r < 0 ? r : make_durable(d->link_dirs);
}

int link_deletion_run(LinkDirs *p, const LinkDeletion *request, LinkDeletionTally *ret) {
        Deleter d = { .link_dirs = p,
                      .request = request,
                      .tally = ret,
                      .fixed_fd = -1,
                      .unit_fd = -1,
                      .instance_fd = -1,
                      .bundle_fd = -1 };
        if (!is_plain_name(request->bundle_id) || request->bundle_id[0] == '.' ||
            (size_t)snprintf(d.slot, sizeof d.slot, LINKS_TAKEN_PREFIX "%s", request->bundle_id) >=
                    sizeof d.slot)
                return -EINVAL;
        int r = open_source(&d);
        if (r >= 0)
                r = work(&d);
        cleanup_closep(&d.unit_fd);
        cleanup_closep(&d.fixed_fd);
        return r == -ENOENT && request->only_links ? 0 : r;
}
