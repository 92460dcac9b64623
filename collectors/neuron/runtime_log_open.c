/* The door to the runtime's logs: see runtime_log.h. */
#include "collectors/neuron/runtime_log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "collectors/runner/places.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

enum { PATH_BYTES_MAX = 4096 };

typedef enum Place { PLACE_UNKNOWN, PLACE_HOST, PLACE_ELSEWHERE } Place;

typedef struct Door {
        const CollectOrder *order;
        const CollectLogFile *f;
        Place place;    /* of the process: its mount namespace */
        int root_fd;    /* of the process, which sees more of the host than a unit of systemd */
        bool is_public; /* others may search all directories on the way */
        const char *why;
} Door;

static int refuse(Door *d, int r, const char *why) {
        d->why = why;
        return r;
}

static bool is_below(const char *path, const char *root) {
        size_t n = strlen(root);
        while (n > 1 && root[n - 1] == '/')
                n--;
        return strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* Dots and empty components would get round a comparison of texts. */
static int check_path(Door *d) {
        const char *path = d->f->path;
        if (path[0] != '/' || strlen(path) >= PATH_BYTES_MAX)
                return refuse(d, -EINVAL, "not an absolute path");
        for (const char *s = path; (s = strchr(s, '/')); s++) {
                size_t n = strcspn(s + 1, "/");
                if (n == 0 || (n == 1 && s[1] == '.') || (n == 2 && s[1] == '.' && s[2] == '.'))
                        return refuse(d, -EINVAL, "not a path without `.`, `..` and `//`");
        }
        if (is_below(path, d->order->proc_root))
                return refuse(d, -EPERM, "files of /proc are no logs");
        return 0;
}

/* ---- where its process is ---- */

/* By what we can see of it; on any doubt it is not known, which allows least. */
static void find_place(Door *d) {
        char namespace[PROCFS_LINK_SIZE];
        Proc p = { .dir_fd = -1 };
        if (d->f->pid > 0 &&
            procfs_open(&p, d->order->proc_root, d->f->pid, d->f->start_ticks) == 0 &&
            procfs_link(&p, "ns/mnt", namespace) == 0) {
                d->root_fd = procfs_root(&p);
                if (d->root_fd >= 0 && procfs_check(&p) == 0)
                        d->place = places_is_here(d->order->proc_root, namespace) ? PLACE_HOST
                                                                                  : PLACE_ELSEWHERE;
        }
        procfs_close(&p);
}

/* ---- opening, without reading yet ---- */

static int open_by_path(Door *d) {
        char path[PATH_BYTES_MAX], *name = path + 1;
        int at_fd = d->place == PLACE_HOST ? fcntl(d->root_fd, F_DUPFD_CLOEXEC, 0)
                                           : open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        (void)snprintf(path, sizeof path, "%s", d->f->path);
        d->is_public = true;
        while (at_fd >= 0) {
                struct stat st;
                char *slash = strchr(name, '/');
                if (slash)
                        *slash = '\0';
                int fd = fs_open_beneath(at_fd, name, slash ? O_PATH | O_DIRECTORY : O_PATH);
                (void)close(at_fd);
                if (fd < 0 || !slash)
                        return fd;
                at_fd = fd;
                d->is_public = d->is_public && fstat(fd, &st) == 0 && st.st_mode & S_IXOTH;
                name = slash + 1;
        }
        return -errno;
}

static int judge(Door *d, int fd, const struct stat *st) {
        bool is_his = st->st_uid == d->f->uid;
        bool may_all = d->is_public && st->st_mode & S_IROTH && (is_his || st->st_uid == 0);
        if (!S_ISREG(st->st_mode))
                return refuse(d, -EBADF, "not a regular file");
        if (st->st_nlink != 1)
                return refuse(d, -EMLINK, "it has another name, too, or none any more");
        if (places_is_of_the_kernel(fd))
                return refuse(d, -EPERM, "files of the kernel are no logs");
        if (d->place == PLACE_UNKNOWN && !may_all)
                return refuse(d, -EPERM,
                              "its process is not known or has ended, and not everybody may read "
                              "this file");
        if (!is_his && !may_all)
                return refuse(d, -EPERM,
                              "it belongs to another user than who named it, and is not one of "
                              "root's that everybody may read");
        return 0;
}

static int open_judged(Door *d, struct stat *ret_st) {
        char link[sizeof "/proc/self/fd/" + 10];
        int r = check_path(d);
        if (r < 0)
                return r;
        find_place(d);
        _cleanup_close_ int path_fd =
                d->place == PLACE_ELSEWHERE
                        ? procfs_root_open(d->root_fd, d->f->path, O_PATH, ret_st)
                        : open_by_path(d);
        if (path_fd == -ELOOP)
                return refuse(d, path_fd, "a symlink is in the way, and none is followed");
        if (path_fd == -EBADF)
                return refuse(d, path_fd, "not a regular file");
        if (path_fd < 0)
                return refuse(d, path_fd, strerror(-path_fd));
        if (fstat(path_fd, ret_st) < 0)
                return refuse(d, -errno, strerror(errno));
        r = judge(d, path_fd, ret_st);
        if (r < 0)
                return r;
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", path_fd);
        int fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        return fd < 0 ? refuse(d, -errno, strerror(errno)) : fd;
}

int runtime_log_open(const CollectOrder *order, const CollectLogFile *f, struct stat *ret_st,
                     const char **ret_why) {
        Door d = { .order = order, .f = f, .root_fd = -1 };
        int fd = open_judged(&d, ret_st);
        if (d.root_fd >= 0)
                (void)close(d.root_fd);
        *ret_why = d.why;
        return fd;
}
