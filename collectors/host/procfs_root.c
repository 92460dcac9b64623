/* Files below a process's root directory: in its mount namespace, under its user's control. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

enum { LINKS_MAX = 40, PATH_BYTES_MAX = 4096, TRIES_MAX = 16 };

int procfs_root(const Proc *p) {
        int fd = openat(p->dir_fd, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* The walk where openat2 is not to be had (a unit with RestrictSUIDSGID=, old kernels): links are read and resolved here, `..` goes
 * back along the directories that were come by, never above the root. */
typedef struct RootWalk {
        int fds[FS_DEPTH_MAX]; /* ours, but for the first, which is the root */
        size_t n;
        char path[PATH_BYTES_MAX]; /* what is left to go */
        unsigned n_links;
} RootWalk;

enum { WALK_E_END = 1, WALK_E_LINK };

static void walk_back(RootWalk *w, size_t to) {
        while (w->n > to)
                (void)close(w->fds[--w->n]); /* paths only */
}

static int walk_link(RootWalk *w, int link_fd, const char *rest) {
        char target[PATH_BYTES_MAX], joined[PATH_BYTES_MAX];
        ssize_t n = readlinkat(link_fd, "", target, sizeof target - 1);

        if (n < 0)
                return -errno;
        target[n] = '\0';
        if (++w->n_links > LINKS_MAX)
                return -ELOOP;
        if (snprintf(joined, sizeof joined, "%s/%s", target, rest) >= (int)sizeof joined)
                return -ENAMETOOLONG;
        if (target[0] == '/')
                walk_back(w, 1);
        memcpy(w->path, joined, strlen(joined) + 1);
        return WALK_E_LINK;
}

/* One component. @return 0 a step down or back; WALK_E_LINK: a link's target has taken its place in what is left; WALK_E_END and *ret_fd: it is no
 * directory, and the path ends here */
static int walk_step(RootWalk *w, char *name, const char *rest, int *ret_fd) {
        _cleanup_close_ int fd = -1;
        struct stat st;

        if (strcmp(name, ".") == 0)
                return 0;
        if (strcmp(name, "..") == 0) {
                if (w->n > 1)
                        walk_back(w, w->n - 1);
                return 0;
        }
        fd = openat(w->fds[w->n - 1], name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (S_ISLNK(st.st_mode))
                return walk_link(w, fd, rest);
        if (S_ISDIR(st.st_mode)) {
                if (w->n == FS_DEPTH_MAX)
                        return -ENAMETOOLONG;
                w->fds[w->n++] = TAKE_FD(fd);
                return 0;
        }
        if (*rest != '\0')
                return -ENOTDIR;
        *ret_fd = TAKE_FD(fd);
        return WALK_E_END;
}

static int walk_all(RootWalk *w) {
        char rest[PATH_BYTES_MAX];
        int fd = -1;

        for (;;) {
                char *name = w->path + strspn(w->path, "/");
                size_t n = strcspn(name, "/");

                if (n == 0)
                        break;
                (void)snprintf(rest, sizeof rest, "%s", name + n + strspn(name + n, "/"));
                name[n] = '\0';
                int r = walk_step(w, name, rest, &fd);
                if (r < 0 || r == WALK_E_END)
                        return r < 0 ? r : fd;
                if (r == 0)
                        memcpy(w->path, rest, strlen(rest) + 1);
        }
        fd = fcntl(w->fds[w->n - 1], F_DUPFD_CLOEXEC, 0);
        return fd < 0 ? -errno : fd;
}

static int open_by_walking(int root_fd, const char *path) {
        RootWalk w = { .fds = { root_fd }, .n = 1 };
        int r;

        if (snprintf(w.path, sizeof w.path, "%s", path) >= (int)sizeof w.path)
                return -ENAMETOOLONG;
        r = walk_all(&w);
        walk_back(&w, 1);
        return r;
}

static int open_path(int root_fd, const char *path) {
        struct open_how how = { .flags = O_PATH | O_CLOEXEC,
                                .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };

        for (unsigned i = 0; i < TRIES_MAX;
             i++) { /* EAGAIN: a rename raced with it, see openat2(2) */
                long fd = syscall(SYS_openat2, root_fd, path, &how, sizeof how);
                if (fd >= 0)
                        return (int)fd;
                if (errno != EAGAIN && errno != EINTR)
                        break;
        }
        return errno == ENOSYS || errno == EPERM ? open_by_walking(root_fd, path) : -errno;
}

int procfs_root_open(int root_fd, const char *path, int flags, struct stat *ret_st) {
        _cleanup_close_ int path_fd = open_path(root_fd, path);
        char link[sizeof "/proc/self/fd/" + 10];
        struct stat st;
        int fd;

        if (path_fd < 0)
                return path_fd;
        if (fstat(path_fd, &st) < 0)
                return -errno;
        if (flags & O_DIRECTORY ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode))
                return -EBADF;
        if (ret_st)
                *ret_st = st;
        if (flags & O_PATH)
                return TAKE_FD(path_fd);
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", path_fd);
        fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        return fd < 0 ? -errno : fd;
}
