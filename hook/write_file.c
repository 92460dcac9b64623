#include "hook/write_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

enum { COPY_BYTES = 64 << 10 };

int write_file_open_directory(const char *path) {
        _cleanup_free_ char *copy = strdup(path);
        if (!copy)
                return -ENOMEM;
        for (char *slash = copy; slash; slash = strchr(slash + 1, '/')) {
                if (slash == copy)
                        continue;
                *slash = '\0';
                (void)mkdir(copy,
                            0777); /* what is there, or forbidden, is seen by the open below */
                *slash = '/';
        }
        int made = mkdir(copy, 0777) < 0 ? -errno : 0;
        int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
                return fd;
        return errno == ENOENT && made < 0 ? made : -errno;
}

static int copy_fd(int to, int from) {
        char data[COPY_BYTES];
        for (off_t done = 0;;) {
                ssize_t n = pread(from, data, sizeof data, done);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : 0;
                done += n;
                if (done > WRITE_FILE_FD_MAX)
                        return -EFBIG;
                int r = fs_write_all(to, data, (size_t)n);
                if (r < 0)
                        return r;
        }
}

static int fill(int fd, const FileContent *content) {
        return content->text ? fs_write_all(fd, content->text, content->n)
                             : copy_fd(fd, content->fd);
}

/* A file without a name, which gets one when it is complete. @return 0, -EOPNOTSUPP: try the other
 * way, -errno */
static int write_unnamed(int dir_fd, const char *name, mode_t mode, const FileContent *content) {
        char link_path[32];
        _cleanup_close_ int fd = openat(dir_fd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
        if (fd < 0) /* kernels and file systems that know no O_TMPFILE say so in many ways */
                return errno == EISDIR || errno == ENOENT || errno == EINVAL || errno == ENOSYS
                               ? -EOPNOTSUPP
                               : -errno;
        int r = fill(fd, content);
        if (r < 0)
                return r;
        (void)snprintf(link_path, sizeof link_path, "/proc/self/fd/%d", fd);
        if (linkat(AT_FDCWD, link_path, dir_fd, name, AT_SYMLINK_FOLLOW) == 0)
                return 0;
        return errno == EEXIST || errno == ENOSPC || errno == EDQUOT ? -errno : -EOPNOTSUPP;
}

/* Gives a complete file its name, replacing nothing. */
static int publish(int dir_fd, const char *temporary, const char *name) {
        if (renameat2(dir_fd, temporary, dir_fd, name, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno != EINVAL && errno != ENOSYS) /* NFS and others know no flags */
                return -errno;
        if (linkat(dir_fd, temporary, dir_fd, name, 0) < 0)
                return -errno;
        (void)unlinkat(dir_fd, temporary, 0); /* a dot-name too many, if anything */
        return 0;
}

static int write_renamed(int dir_fd, const char *name, mode_t mode, const FileContent *content) {
        char temporary[NAME_MAX + 1];
        uint64_t random;
        if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
                return -EIO;
        (void)snprintf(temporary, sizeof temporary, ".neuron-dump-%016" PRIx64 ".tmp", random);
        _cleanup_close_ int fd = openat(dir_fd, temporary,
                                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0)
                return -errno;
        int r = fill(fd, content);
        if (r == 0)
                r = publish(dir_fd, temporary, name);
        if (r < 0)
                (void)unlinkat(dir_fd, temporary, 0); /* the first failure is the one to tell */
        return r;
}

int write_file(int dir_fd, const char *name, mode_t mode, const FileContent *content) {
        int r = write_unnamed(dir_fd, name, mode, content);
        return r == -EOPNOTSUPP ? write_renamed(dir_fd, name, mode, content) : r;
}
