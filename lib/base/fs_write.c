/* Writing, reading whole and removing in trees of our own. */
#include "lib/base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/base/cleanup.h"
#include "lib/base/path.h"

int fs_write_all(int fd, const void *data, size_t n) {
        const char *p = data;

        while (n > 0) {
                ssize_t k = write(fd, p, n);

                if (k < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                p += k;
                n -= (size_t)k;
        }
        return 0;
}

int fs_pread_all(int fd, void *data, size_t n, uint64_t offset) {
        char *p = data;

        if (offset > INT64_MAX || n > INT64_MAX - offset)
                return -EOVERFLOW;
        while (n > 0) {
                ssize_t k = pread(fd, p, n, (off_t)offset);

                if (k < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (k == 0)
                        return -ENODATA;
                p += k;
                offset += (uint64_t)k;
                n -= (size_t)k;
        }
        return 0;
}

int fs_sync_dir(int dir_fd) {
        /* EINVAL: CIFS and some of FUSE have no fsync for a directory and order it themselves. */
        return fsync(dir_fd) < 0 && errno != EINVAL ? -errno : 0;
}

/* Makes one directory; fine when it is there, whatever mkdir answered to that (EACCES, EROFS). */
static int make_dir(const char *path, mode_t mode) {
        struct stat st;
        int r;

        if (mkdir(path, mode) == 0)
                return 0;
        r = -errno;
        if (stat(path, &st) == 0)
                return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
        return r;
}

int fs_mkdir_p(const char *path, mode_t mode) {
        _cleanup_free_ char *copy = NULL;
        struct stat st;
        int r;

        if (path[0] != '/')
                return -EINVAL;
        copy = path_simplify(path);
        if (!copy)
                return -ENOMEM;
        for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
                *slash = '\0';
                r = make_dir(copy, mode);
                *slash = '/';
                if (r < 0)
                        return r;
        }
        r = make_dir(copy, mode);
        if (r < 0)
                return r;
        if (lstat(copy, &st) < 0)
                return -errno;
        return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

static int remove_entry(int dir_fd, const char *name, unsigned depth);

/* Empties the directory; goes on after a failure and returns the first one. */
static int remove_entries(int dir_fd, unsigned depth) {
        _cleanup_closedir_ DIR *dir = NULL;
        int first = fs_opendir_fd(dir_fd, &dir);

        if (first < 0)
                return first;
        for (;;) {
                struct dirent *entry;
                int r;

                errno = 0;
                entry = readdir(dir);
                if (!entry)
                        return first < 0 ? first : -errno;
                if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                        continue;
                r = remove_entry(dirfd(dir), entry->d_name, depth);
                if (r < 0 && first == 0)
                        first = r;
        }
}

static int remove_entry(int dir_fd, const char *name, unsigned depth) {
        int fd, r;

        if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
                return 0;
        if (errno != EISDIR && errno != EPERM) /* POSIX says EPERM, Linux EISDIR, for a directory */
                return -errno;
        if (depth == 0)
                return -ELOOP;
        fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOENT ? 0 : errno == ENOTDIR ? -EPERM : -errno;
        r = remove_entries(fd, depth - 1);
        if (unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
                return r < 0 ? r : -errno;
        return r;
}

int fs_remove_tree(int dir_fd, const char *name) {
        _cleanup_free_ char *parent = NULL;
        _cleanup_close_ int parent_fd = -1;
        const char *leaf = path_name(name);

        if (leaf[0] == '\0' || strcmp(leaf, ".") == 0 || strcmp(leaf, "..") == 0)
                return -EINVAL;
        if (leaf == name)
                return remove_entry(dir_fd, name, FS_DEPTH_MAX);
        parent = path_parent(name);
        if (!parent)
                return -ENOMEM;
        parent_fd = fs_open_beneath(dir_fd, parent, O_RDONLY | O_DIRECTORY);
        if (parent_fd < 0)
                return parent_fd == -ENOENT ? 0 : parent_fd;
        return remove_entry(parent_fd, leaf, FS_DEPTH_MAX);
}

/* Writes data into a new file of this name and makes it durable. */
static int write_new_file(int dir_fd, const char *name, const void *data, size_t n, mode_t mode) {
        _cleanup_close_ int fd = -1;
        int r;

        fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0)
                return -errno;
        /* The mode asked for, whatever the umask; mounts without modes (CIFS, FUSE) refuse. */
        if (fchmod(fd, mode) < 0 && errno != EPERM && errno != EOPNOTSUPP)
                return -errno;
        r = fs_write_all(fd, data, n);
        if (r < 0)
                return r;
        if (fsync(fd) < 0)
                return -errno;
        return close(TAKE_FD(fd)) < 0 ? -errno : 0; /* NFS tells of a full disk here */
}

int fs_write_file(int dir_fd, const char *name, const void *data, size_t n, mode_t mode) {
        char temporary[NAME_MAX + 1];
        uint64_t random;
        int r;

        if (name[0] == '\0' || strchr(name, '/'))
                return -EINVAL;
        /* Random: two nodes that write the same name on a shared volume must not meet in it. */
        if (getrandom(&random, sizeof random, 0) != sizeof random)
                return -EIO;
        r = snprintf(temporary, sizeof temporary, ".%s.tmp-%016" PRIx64, name, random);
        if (r < 0 || (size_t)r >= sizeof temporary)
                return -ENAMETOOLONG;
        r = write_new_file(dir_fd, temporary, data, n, mode);
        if (r >= 0 && renameat(dir_fd, temporary, dir_fd, name) < 0)
                r = -errno;
        if (r < 0) {
                (void)unlinkat(dir_fd, temporary, 0); /* the first failure is the one to tell */
                return r;
        }
        return fs_sync_dir(dir_fd);
}

int fs_read_file(int dir_fd, const char *name, size_t max_bytes, char **ret, size_t *ret_n) {
        _cleanup_close_ int fd = -1;
        _cleanup_free_ char *text = NULL;
        size_t n = 0, n_allocated = 0;
        struct stat st = { 0 };

        if (name[0] == '/') {
                fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
                if (fd < 0 || fstat(fd, &st) < 0)
                        return -errno;
                if (!S_ISREG(st.st_mode))
                        return S_ISDIR(st.st_mode) ? -EISDIR : -EBADF;
        } else {
                fd = fs_open_regular(dir_fd, name, &st);
                if (fd < 0)
                        return fd;
        }
        if (st.st_size > 0 && (uint64_t)st.st_size > max_bytes &&
            st.st_size != sysconf(_SC_PAGESIZE)) /* sysfs says a page of whatever is in it */
                return -EFBIG;
        for (;;) {
                ssize_t k;

                if (n == n_allocated) {
                        size_t size = n_allocated == 0 ? MIN(max_bytes, (size_t)4096) + 1
                                                       : MIN(2 * n_allocated, max_bytes + 1);
                        char *grown = realloc(text, size + 1);

                        if (!grown)
                                return -ENOMEM;
                        text = grown;
                        n_allocated = size;
                }
                k = read(fd, text + n, n_allocated - n);
                if (k < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (k == 0)
                        break;
                n += (size_t)k;
                if (n > max_bytes)
                        return -EFBIG;
        }
        text[n] = '\0';
        *ret = TAKE_PTR(text);
        if (ret_n)
                *ret_n = n;
        return 0;
}

int fs_read_head(int fd, size_t max_bytes, char **ret, size_t *ret_n) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        size_t n = (size_t)MIN((uint64_t)st.st_size, (uint64_t)max_bytes);
        _cleanup_free_ char *text = malloc(n + 1);
        if (!text)
                return -ENOMEM;
        int r = fs_pread_all(fd, text, n, 0);
        if (r < 0)
                return r;
        text[n] = '\0';
        *ret = TAKE_PTR(text);
        *ret_n = n;
        return 0;
}

int fs_remove_stale_socket(const char *path, int type) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        struct stat st;

        if (strlen(path) >= sizeof address.sun_path)
                return -ENAMETOOLONG;
        memcpy(address.sun_path, path, strlen(path));
        if (lstat(path, &st) < 0)
                return errno == ENOENT ? 0 : -errno;
        if (!S_ISSOCK(st.st_mode))
                return -EEXIST; /* somebody's file: not ours to remove */
        _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        /* EAGAIN: somebody is there and has no time; EPROTOTYPE: one of another kind */
        if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 ||
            errno == EAGAIN || errno == EPROTOTYPE)
                return -EADDRINUSE;
        if (errno == ENOENT)
                return 0;
        if (errno != ECONNREFUSED)
                return -errno;
        return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}
