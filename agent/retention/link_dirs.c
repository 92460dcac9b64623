/* The directories that hold this node's links. One is below each place, and both places have to be
 * searched:
 *
 *     <fixed part>/../.neuron-collectd/<instance-id>/    beside, the first choice
 *     <fixed part>/.neuron-collectd/<instance-id>/       inside: the parent is another mount, or
 *                                                        cannot be written
 *
 * On a local file system `.neuron-collectd` is private to the agent's user. On a network file
 * system it is shared (own_dir.h), and each agent's directory in it is private. The shared files of
 * unit_locks.c are inside the fixed part where that is possible, because that place is the same for
 * all nodes wherever they mount it.
 *
 * A user who creates `.neuron-collectd` first keeps the agent from making links; link_dirs_secure()
 * removes the opportunity where every user has it. What is in a bundle's directory is the business
 * of links.c and link_session.c. */
#include "agent/retention/link_dirs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/retention/link_list.h"
#include "lib/base/array.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

struct LinkDirs {
        char *directories[N_LINK_PLACES]; /* [LINK_BESIDE] NULL: the fixed part is the root */
        OwnDirUser user;
        char *list; /* the file that lists directories with links; NULL: none */
        atomic_bool is_listed[N_LINK_PLACES], has_logged_list;
};

DEFINE_CLEANUP(LinkDirs, link_dirs_free);

int link_dirs_new(LinkDirs **ret, const char *fixed, const char *instance_id) {
        _cleanup_(link_dirs_freep) LinkDirs *dirs = NULL;
        _cleanup_free_ char *simple = NULL;

        if (fixed[0] != '/' || !own_dir_is_plain_name(instance_id))
                return -EINVAL;
        dirs = calloc(1, sizeof *dirs);
        simple = path_simplify(fixed);
        if (!dirs || !simple)
                return -ENOMEM;
        dirs->user.instance_id = strdup(instance_id);
        if (!dirs->user.instance_id)
                return -ENOMEM;
        if (strcmp(simple, "/") != 0) {
                dirs->directories[LINK_BESIDE] = path_parent(simple);
                if (!dirs->directories[LINK_BESIDE])
                        return -ENOMEM;
        }
        dirs->directories[LINK_INSIDE] = TAKE_PTR(simple);
        atomic_init(&dirs->user.network_uid, UINT_MAX);
        *ret = TAKE_PTR(dirs);
        return 0;
}

LinkDirs *link_dirs_free(LinkDirs *dirs) {
        if (!dirs)
                return NULL;
        for (size_t i = 0; i < N_LINK_PLACES; i++)
                free(dirs->directories[i]);
        free(dirs->user.instance_id);
        free(dirs->list);
        strings_free(dirs->user.trusted);
        free(dirs);
        return NULL;
}

int link_dirs_set_trusted(LinkDirs *dirs, const char *const *users) {
        strings_free(dirs->user.trusted);
        dirs->user.trusted = strings_copy((char *const *)users);
        return dirs->user.trusted ? 0 : -ENOMEM;
}

int link_dirs_set_list(LinkDirs *dirs, const char *file) {
        dirs->list = strdup(file);
        return dirs->list ? 0 : -ENOMEM;
}

const char *link_dirs_instance_id(const LinkDirs *dirs) {
        return dirs->user.instance_id;
}

const char *link_dirs_path(const LinkDirs *dirs, LinkPlace place) {
        return dirs->directories[place];
}

bool link_dirs_is_agents(const LinkDirs *dirs, const struct stat *st, uid_t own_uid) {
        return own_dir_is_agents(&dirs->user, st, own_uid);
}

/* ---- opening ---- */

static int open_base(LinkDirs *dirs, LinkPlace place) {
        if (!dirs->directories[place])
                return -ENOENT;
        /* The operator chose the parent, which may be a symlink. Any user who runs jobs may have
         * created the fixed part. */
        int flags = O_PATH | O_DIRECTORY | O_CLOEXEC | (place == LINK_INSIDE ? O_NOFOLLOW : 0);
        int fd = open(dirs->directories[place], flags);
        return fd < 0 ? -errno : fd;
}

int link_dirs_open_root(LinkDirs *dirs, LinkPlace place, bool create, uid_t *ret_uid,
                        Squatter *ret_squatter) {
        _cleanup_close_ int base_fd = open_base(dirs, place);
        *ret_uid = geteuid();
        if (base_fd < 0)
                return base_fd;
        return fs_is_network(base_fd, NULL)
                       ? own_dir_open_shared(&dirs->user, base_fd, LINK_DIRS_NAME, create, ret_uid,
                                             ret_squatter)
                       : own_dir_open(*ret_uid, base_fd, LINK_DIRS_NAME, create, ret_squatter);
}

/* Reads the kernel's path of a descriptor. It has no symlink in it, so that link_dirs_check() sees
 * one that was put there later.
 * @return 0, -errno; -EINVAL: it has a newline, so it is a user's and cannot be a line of the list
 */
static int read_path(int fd, char ret[static PATH_MAX + 1]) {
        char link[sizeof "/proc/self/fd/" + 3 * sizeof fd];
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, ret, PATH_MAX + 1);
        if (n < 0 || n > PATH_MAX)
                return n < 0 ? -errno : -ENAMETOOLONG;
        ret[n] = '\0';
        return strchr(ret, '\n') ? -EINVAL : 0;
}

/* Adds the directory to the list. On failure the next call that opens the directory tries again. */
static void list_directory(LinkDirs *dirs, LinkPlace place, int fd) {
        char path[PATH_MAX + 1] = "";
        if (!dirs->list || atomic_load(&dirs->is_listed[place]))
                return;
        int r = read_path(fd, path);
        if (r == 0)
                r = link_list_add(dirs->list, path);
        if (r == 0)
                atomic_store(&dirs->is_listed[place], true);
        else if (!atomic_exchange(&dirs->has_logged_list, true))
                log_warning(r,
                            "cannot add '%s' to '%s', from which a removal of the package knows "
                            "where hard links are; it is tried again with each bundle",
                            path, dirs->list);
}

int link_dirs_open_instance(LinkDirs *dirs, LinkPlace place, bool create, Squatter *ret_squatter) {
        uid_t uid;
        _cleanup_close_ int root_fd = link_dirs_open_root(dirs, place, create, &uid, ret_squatter);
        int fd = root_fd < 0
                         ? root_fd
                         : own_dir_open(uid, root_fd, dirs->user.instance_id, create, ret_squatter);
        if (fd >= 0)
                list_directory(dirs, place, fd);
        else if (fd == -EUCLEAN) /* perhaps the server maps this process to another user now */
                atomic_store(&dirs->user.network_uid, UINT_MAX);
        return fd;
}

int link_dirs_open_bundle(LinkDirs *dirs, LinkPlace place, const char *bundle_id) {
        _cleanup_close_ int fd = link_dirs_open_instance(dirs, place, false, NULL);
        return fd < 0 || !bundle_id ? TAKE_FD(fd) : own_dir_open_below(fd, bundle_id, false, NULL);
}

bool link_dirs_is_empty(int dir_fd) {
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *e;
        if (fs_opendir_at(dir_fd, ".", &dir) < 0)
                return false;
        while ((e = readdir(dir)))
                if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
                        return false;
        return true;
}

void link_dirs_find(LinkDirs *dirs, void (*on_dir)(const char *path, int error, void *userdata),
                    void *userdata) {
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                char path[PATH_MAX + 1];
                _cleanup_close_ int fd = link_dirs_open_instance(dirs, place, false, NULL);
                int r = fd < 0 ? fd : read_path(fd, path);
                if (r == -ENOENT || r == -ENOTDIR || r == -ELOOP || r == -EUCLEAN)
                        continue; /* nothing of ours is there */
                if (r < 0)
                        (void)snprintf(path, sizeof path, "%s/" LINK_DIRS_NAME "/%s",
                                       dirs->directories[place], dirs->user.instance_id);
                on_dir(path, r, userdata);
        }
}

int link_dirs_check(const char *path) {
        char real[PATH_MAX + 1];
        struct stat st;
        _cleanup_close_ int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOTDIR || errno == ELOOP ? -EUCLEAN : -errno;
        int r = fstat(fd, &st) < 0 ? -errno : read_path(fd, real);
        if (r < 0)
                return r;
        /* On a network file system its owner depends on how the server maps this process. */
        bool is_ours = st.st_uid == geteuid() || fs_is_network(fd, NULL);
        return strcmp(real, path) == 0 && is_ours ? 0 : -EUCLEAN;
}

int link_dirs_sync(LinkDirs *dirs) {
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                _cleanup_close_ int fd = link_dirs_open_instance(dirs, place, false, NULL);
                /* fsync(2) of one directory writes the journal with all that was done before. */
                int r = fd < 0 ? 0 : fs_sync_dir(fd);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- refusals ---- */

bool link_dirs_is_refusal(int error) {
        switch (error) {
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

void link_dirs_add_reason(StrBuf *b, const char *directory, int error, const Squatter *squatter) {
        switch (error) {
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
                            "use a file system with hard links",
                            directory, strerror(-error));
                break;
        case -EACCES:
        case -EROFS:
                strbuf_addf(b, "'%s' cannot be written (%s): allow uid %u to write there",
                            directory, strerror(-error), (unsigned)geteuid());
                break;
        case -EMLINK:
                strbuf_addf(b, "the file has as many links as its file system allows: remove some");
                break;
        case -ENOSPC:
        case -EDQUOT:
                strbuf_addf(b, "'%s' has no free space (%s): free some space or inodes", directory,
                            strerror(-error));
                break;
        default:
                strbuf_addf(b, "'%s' does not accept hard links (%s): use another file system",
                            directory, strerror(-error));
        }
}

/* ---- the directory that agents of all nodes share ---- */

/* Opens the `.neuron-collectd` that nodes share: one that exists, else the first that can be
 * created. */
static int open_shared_root(LinkDirs *dirs, uid_t *ret_uid, char **ret_error) {
        static const LinkPlace order[] = { LINK_INSIDE, LINK_BESIDE };
        _cleanup_close_ int fixed_fd = open_base(dirs, LINK_INSIDE);
        _cleanup_(strbuf_done) StrBuf reasons = STRBUF_INIT;
        int r = fixed_fd;
        if (fixed_fd < 0 || !fs_is_network(fixed_fd, NULL))
                return fixed_fd < 0 ? fixed_fd : -ENOENT;
        for (size_t i = 0; i < 2 * ELEMENTSOF(order); i++) {
                const LinkPlace place = order[i % ELEMENTSOF(order)];
                const char *directory = dirs->directories[place];
                const bool create = i >= ELEMENTSOF(order);
                Squatter squatter = { 0 };
                if (!directory || (place == LINK_BESIDE && !fs_is_same_mount(fixed_fd, directory)))
                        continue;
                r = link_dirs_open_root(dirs, place, create, ret_uid, &squatter);
                if (r >= 0)
                        return r;
                if (!create)
                        continue;
                if (reasons.n > 0)
                        strbuf_add(&reasons, "; and ");
                link_dirs_add_reason(&reasons, directory, r, &squatter);
        }
        if (ret_error && !*ret_error)
                *ret_error = strbuf_detach(&reasons); /* NULL for lack of memory */
        return r;
}

int link_dirs_open_shared(LinkDirs *dirs, const char *name, uid_t *ret_uid, char **ret_error) {
        _cleanup_close_ int root_fd = open_shared_root(dirs, ret_uid, ret_error);
        return root_fd < 0 ? root_fd
                           : own_dir_open_shared(&dirs->user, root_fd, name, true, ret_uid, NULL);
}

/* ---- a directory that another user created first ---- */

/* @return whether every user can create names in a directory, and nobody can remove another's. In
 * other directories the owner decides who creates names; on a network file system what exists may
 * be the directory of another node's agent. */
static bool is_open_to_all(int fd) {
        struct stat st;
        return fstat(fd, &st) == 0 && (st.st_mode & S_ISVTX) && (st.st_mode & S_IWOTH) &&
               !fs_is_network(fd, NULL);
}

/* Exchanges what is there for an empty directory of ours in one step, so that no user can be first
 * again. @return 0; -EEXIST: it is root's or ours; -errno */
static int move_aside(const char *directory, int base_fd, char **ret_moved) {
        static atomic_flag is_moving = ATOMIC_FLAG_INIT; /* by another source's thread */
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
                (void)unlinkat(base_fd, name, AT_REMOVEDIR); /* it may not exist */
        atomic_flag_clear(&is_moving);
        if (r == 0)
                *ret_moved = path_join(directory, name);
        return r;
}

/* @return whether links are made beside the fixed part, so that this is the directory to secure */
static bool is_beside_usable(LinkDirs *dirs, int base_fd) {
        if (base_fd >= 0 && fs_is_network(base_fd, NULL)) /* then nothing has to be secured */
                return true;
        _cleanup_close_ int fixed_fd = open_base(dirs, LINK_INSIDE);
        if (base_fd < 0 ||
            (fixed_fd >= 0 && !fs_is_same_mount(fixed_fd, dirs->directories[LINK_BESIDE])))
                return false;
        _cleanup_close_ int fd = own_dir_open(geteuid(), base_fd, LINK_DIRS_NAME, false, NULL);
        return fd >= 0 || is_open_to_all(base_fd) ||
               (fd == -ENOENT && faccessat(base_fd, ".", W_OK | X_OK, AT_EACCESS) == 0);
}

int link_dirs_secure(LinkDirs *dirs, char **ret_moved) {
        _cleanup_close_ int beside_fd = open_base(dirs, LINK_BESIDE);
        LinkPlace place = is_beside_usable(dirs, beside_fd) ? LINK_BESIDE : LINK_INSIDE;
        _cleanup_close_ int base_fd = open_base(dirs, place);
        if (base_fd < 0 || !is_open_to_all(base_fd))
                return 0;
        _cleanup_close_ int fd = own_dir_open(geteuid(), base_fd, LINK_DIRS_NAME, true, NULL);
        return fd == -EUCLEAN ? move_aside(dirs->directories[place], base_fd, ret_moved)
                              : MIN(fd, 0);
}
