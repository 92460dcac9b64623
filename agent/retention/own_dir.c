/* The agent's own directories. Their parents are directories of users who run jobs, so any name in
 * them may be taken before the agent comes, by a file, a symlink or a directory of another user,
 * and may be exchanged at any time. Each directory is therefore opened without following a symlink,
 * and its owner is checked on the descriptor; whoever calls works below the descriptor only.
 *
 * There are two kinds. A private directory (0700) belongs to one agent. A shared one (1777) is
 * created on a network file system by the first agent that comes, for the agents of all nodes,
 * which may run as different users, or be mapped to different users by the server. To learn as whom
 * it is mapped, an agent creates a file there.
 *
 * Where such directories are put is decided in link_dirs.c. */
#include "agent/retention/own_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/neuron/agent_uid.h"

bool own_dir_is_plain_name(const char *name) {
        size_t n = strlen(name);
        return n > 0 && n <= NAME_MAX && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
               !strchr(name, '/');
}

static void note_squatter(Squatter *ret, const struct stat *st) {
        if (!ret)
                return;
        ret->is_directory = S_ISDIR(st->st_mode);
        ret->uid = st->st_uid;
}

int own_dir_open(uid_t uid, int at_fd, const char *name, bool create, Squatter *ret_squatter) {
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

int own_dir_open_below(int at_fd, const char *name, bool create, Squatter *ret_squatter) {
        struct stat st;
        return fstat(at_fd, &st) < 0 ? -errno
                                     : own_dir_open(st.st_uid, at_fd, name, create, ret_squatter);
}

/* Creates a file and removes it, to learn to which user the server maps this process. */
static int query_network_uid(OwnDirUser *user, int dir_fd, uid_t *ret) {
        static atomic_uint n_tries;
        char name[64];
        struct stat st;
        const unsigned known = atomic_load(&user->network_uid);
        if (known != UINT_MAX) {
                *ret = known;
                return 0;
        }
        (void)snprintf(name, sizeof name, OWN_DIR_NEW_PREFIX "%.20s-%u-%u", user->instance_id,
                       (unsigned)getpid(), atomic_fetch_add(&n_tries, 1));
        _cleanup_close_ int fd =
                openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return -errno;
        int r = fstat(fd, &st) < 0 ? -errno : 0;
        (void)unlinkat(dir_fd, name, 0); /* on error an empty file stays */
        if (r == 0) {
                atomic_store(&user->network_uid, st.st_uid);
                *ret = st.st_uid;
        }
        return r;
}

bool own_dir_is_agents(const OwnDirUser *user, const struct stat *st, uid_t own_uid) {
        return agent_uid_is_trusted(st->st_uid, own_uid, user->trusted);
}

/* Creates the directory under a temporary name and renames it when it has its mode, since agents of
 * other users use it as soon as it has its name. */
static int make_shared_dir(const OwnDirUser *user, int at_fd, const char *name) {
        char temporary[NAME_MAX + 1];
        struct stat st;
        (void)snprintf(temporary, sizeof temporary, "%.64s-%.64s-%u", name, user->instance_id,
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
                (void)unlinkat(at_fd, temporary, AT_REMOVEDIR); /* it may not exist */
        return r == -EEXIST || r == -ENOTEMPTY ? 0 : r;
}

int own_dir_open_shared(OwnDirUser *user, int at_fd, const char *name, bool create, uid_t *ret_uid,
                        Squatter *ret_squatter) {
        const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
        struct stat st;

        _cleanup_close_ int fd = openat(at_fd, name, flags);
        if (fd < 0 && errno == ENOENT && create) {
                int r = make_shared_dir(user, at_fd, name);
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
        int r = query_network_uid(user, fd, ret_uid);
        if (!own_dir_is_agents(user, &st, *ret_uid)) {
                note_squatter(ret_squatter, &st);
                return -EUCLEAN;
        }
        if ((st.st_mode & 07777) != 01777 && st.st_uid == *ret_uid && fchmod(fd, 01777) == 0)
                r = 0; /* it had another mode, perhaps one that kept us from creating the file */
        return r < 0 && create ? r : TAKE_FD(fd);
}

bool own_dir_is_absent(int error) {
        return error == -ENOENT || error == -EUCLEAN || error == -ENOTDIR || error == -ELOOP ||
               error == -EACCES;
}
