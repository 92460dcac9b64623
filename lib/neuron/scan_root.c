/* Opens the fixed part of a source, and checks whether users can keep out or remove each other's
 * dumps there. The operator has written the path, but any user may have created what lies on it: a
 * symlink is followed only when it belongs to root or to this user. */
#include "lib/neuron/scan_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/neuron/tree.h"

/* In a world-writable directory any user can create a symlink. */
static bool is_trusted_link(const struct stat *link) {
        return link->st_uid == 0 || link->st_uid == geteuid();
}

int scan_open_fixed(const char *fixed) {
        _cleanup_close_ int root_fd =
                open(fixed[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
        _cleanup_close_ int path_fd =
                root_fd < 0 ? -errno : tree_resolve(root_fd, fixed, is_trusted_link);
        if (path_fd < 0)
                return path_fd;
        int fd = openat(path_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

char *scan_check_root(const char *fixed) {
        _cleanup_free_ char *parent = path_parent(fixed);
        _cleanup_close_ int fd = scan_open_fixed(fixed);
        struct stat st, above;
        char *text = NULL;
        if (fd < 0 || fstat(fd, &st) < 0 || !parent || stat(parent, &above) < 0)
                return NULL;
        bool is_anybodys = (above.st_mode & S_IWOTH) && st.st_uid != 0,
             is_not_sticky = (st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX);
        if ((!is_anybodys && !is_not_sticky) ||
            asprintf(&text,
                     "'%s' is not root's and sticky (it has uid %u and mode %04o): users can keep "
                     "out or remove each other's dumps; remove it and run `systemd-tmpfiles "
                     "--create`, or chown it to root and chmod it to 1777",
                     fixed, (unsigned)st.st_uid, (unsigned)st.st_mode & 07777) < 0)
                return NULL;
        return text;
}

int scan_open_start(const ScanSource *s) {
        int fd;

        if (!s->root_override)
                return scan_open_fixed(path_template_fixed(s->template));
        fd = open(s->root_override, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}
