/* Opening and judging files of trees that others write; durable writes. */
#include "lib/base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/openat2.h>
#include <mntent.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include "lib/base/cleanup.h"
#include "lib/base/path.h"

/* openat2 gives up with EAGAIN when a rename anywhere raced with it; openat2(2) says: try again. */
enum { OPEN_TRIES_MAX = 16 };

/* Judges the text of a path before the kernel sees it, so that both ways of opening agree. */
static int path_check(const char *path) {
        size_t depth = 0;

        if (path[0] == '\0')
                return -ENOENT;
        if (path[0] == '/')
                return -EXDEV;
        for (const char *at = path; *at != '\0'; depth++) {
                at += strcspn(at, "/");
                at += strspn(at, "/");
        }
        return path_has_parent(path) ? -EXDEV : depth > FS_DEPTH_MAX ? -ENAMETOOLONG : 0;
}

/* Opens one component; a symlink is ELOOP unless the caller asks for the link itself. */
static int open_component(int dir_fd, const char *name, int flags) {
        bool link_itself = flags & O_PATH && flags & O_NOFOLLOW && !(flags & O_DIRECTORY);
        _cleanup_close_ int fd = openat(dir_fd, name, flags | O_NOFOLLOW);
        struct stat st;
        int r = fd < 0 ? -errno : 0;

        if (r < 0 && r != -ENOTDIR)
                return r;
        /* With O_PATH the kernel opens the link, with O_DIRECTORY it calls it ENOTDIR. */
        if (!link_itself && (r < 0 || flags & O_PATH)) {
                if ((r < 0 ? fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) : fstat(fd, &st)) < 0)
                        return -errno;
                if (S_ISLNK(st.st_mode))
                        return -ELOOP;
        }
        return r < 0 ? r : TAKE_FD(fd);
}

/* What openat2 does for us, made of openat(2): no component may be a symlink, none is `..`. */
static int open_by_components(int dir_fd, const char *path, int flags) {
        _cleanup_close_ int at_fd = -1;
        char name[NAME_MAX + 1];

        for (;;) {
                size_t size = strcspn(path, "/");
                const char *rest = path + size + strspn(path + size, "/");
                bool last = *rest == '\0';
                int fd;

                if (size > NAME_MAX)
                        return -ENAMETOOLONG;
                memcpy(name, path, size);
                name[size] = '\0';
                if (last && path[size] == '/')
                        flags |= O_DIRECTORY; /* a slash at the end asks for a directory */
                fd = open_component(at_fd >= 0 ? at_fd : dir_fd, name,
                                    last ? flags : O_PATH | O_DIRECTORY | O_CLOEXEC);
                if (last || fd < 0)
                        return fd;
                (void)close(at_fd); /* a path only; -1 the first time */
                at_fd = fd;
                path = rest;
        }
}

int fs_open_beneath(int dir_fd, const char *path, int flags) {
        struct open_how how = {
                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
        };

        if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE)
                return -EINVAL;
        int r = path_check(path);
        if (r < 0)
                return r;
        flags |= O_CLOEXEC;
        if (!(flags & O_PATH)) { /* openat2 refuses O_PATH together with what it ignores */
                flags |= O_NONBLOCK | O_NOCTTY;
                flags &= ~O_NOFOLLOW; /* only blurs the ELOOP of RESOLVE_NO_SYMLINKS into ENOTDIR */
        }
        how.flags = (uint64_t)flags;
        for (unsigned i = 0; i < OPEN_TRIES_MAX; i++) {
                long fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof how);

                if (fd >= 0)
                        return (int)fd;
                if (errno != EAGAIN && errno != EINTR)
                        break;
        }
        /* EPERM: container run-times whose seccomp profile does not know openat2 answer so. */
        if (errno == ENOSYS || errno == EPERM)
                return open_by_components(dir_fd, path, flags);
        return -errno;
}

/* Opens for reading what fd, an O_PATH descriptor, stands for. */
static int reopen_for_reading(int fd) {
        char link[sizeof "/proc/self/fd/" + 10];

        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        return fd < 0 ? -errno : fd;
}

int fs_open_regular(int dir_fd, const char *path, struct stat *ret_st) {
        _cleanup_close_ int path_fd = -1, fd = -1;
        struct stat st;

        /* Looked at before it is opened: to open a device node is to use the device (a watchdog
         * starts to count), and who owns a container with CAP_MKNOD may put one into a shared
         * directory. */
        path_fd = fs_open_beneath(dir_fd, path, O_PATH);
        if (path_fd < 0)
                return path_fd;
        if (fstat(path_fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADF;
        fd = reopen_for_reading(path_fd);
        if (fd == -ENOENT) /* no /proc here, or not there any more: open it by name */
                fd = fs_open_beneath(dir_fd, path, O_RDONLY);
        if (fd < 0)
                return fd;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADF;
        if (ret_st)
                *ret_st = st;
        return TAKE_FD(fd);
}

int fs_opendir_fd(int fd, DIR **ret) {
        _cleanup_close_ int owned = fd;
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);

        if (!dir)
                return fd < 0 ? fd : -errno;
        (void)TAKE_FD(owned);
        *ret = dir;
        return 0;
}

int fs_opendir_at(int dir_fd, const char *name, DIR **ret) {
        int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

        return fs_opendir_fd(fd < 0 ? -errno : fd, ret);
}

/* Whether a FUSE file system lies on a block device of this node (fuseblk). */
static bool fuse_is_local(int fd) {
        struct stat st;
        return fstat(fd, &st) == 0 && major(st.st_dev) != 0;
}

#define FS_MAGIC_FUSE 0x65735546

/* A program (FUSE) that is not known may keep all on this node. */
static bool is_network_type(const char *type) {
        static const char types[] = ",nfs,nfs4,lustre,cifs,smb3,ceph,gpfs,afs,beegfs,9p,wekafs,"
                                    "fuse.ceph-fuse,fuse.glusterfs,fuse.juicefs,fuse.mfs,"
                                    "fuse.rclone,fuse.s3fs,fuse.sshfs,";
        char word[64];
        int n = snprintf(word, sizeof word, ",%s,", type);
        return n > 0 && (size_t)n < sizeof word && strstr(types, word);
}

bool fs_is_same_mount(int fd, const char *directory) {
        struct statx a, b;
        unsigned mask = STATX_TYPE | STATX_MNT_ID;

        if (statx(fd, "", AT_EMPTY_PATH, mask, &a) < 0 ||
            statx(AT_FDCWD, directory, 0, mask, &b) < 0)
                return true; /* unknown: linkat decides */
        if (a.stx_mask & b.stx_mask & STATX_MNT_ID)
                return a.stx_mnt_id == b.stx_mnt_id;
        return a.stx_dev_major == b.stx_dev_major && a.stx_dev_minor == b.stx_dev_minor;
}

bool fs_path_is_network(const char *path) {
        size_t longest = 0;
        bool is_network = false;
        FILE *f = setmntent("/proc/self/mounts", "re");
        if (!f)
                return false;
        char buf[2 * PATH_MAX];
        struct mntent m;
        while (getmntent_r(f, &m, buf, sizeof buf)) {
                size_t n = strlen(m.mnt_dir);
                while (n > 0 && m.mnt_dir[n - 1] == '/') /* of the root: "" */
                        n--;
                /* A later mount covers an earlier one at the same place. */
                if (n >= longest && strncmp(path, m.mnt_dir, n) == 0 &&
                    (path[n] == '/' || path[n] == '\0')) {
                        longest = n;
                        is_network = is_network_type(m.mnt_type);
                }
        }
        (void)endmntent(f); /* always 1 */
        return is_network;
}

char *fs_absolute_path(const char *path) {
        char here[PATH_MAX];
        if (path[0] == '/')
                return strdup(path);
        return getcwd(here, sizeof here) ? path_join(here, path) : NULL;
}

uint64_t fs_birth_usec(int fd) {
        struct statx st;
        if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &st) < 0 || !(st.stx_mask & STATX_BTIME) ||
            st.stx_btime.tv_sec <= 0)
                return 0;
        return (uint64_t)st.stx_btime.tv_sec * USEC_PER_SEC + st.stx_btime.tv_nsec / 1000;
}

bool fs_is_network(int fd, const char **ret_name) {
        /* From linux/magic.h and, for those outside the kernel, coreutils' stat(1). */
        static const struct {
                uint32_t magic;
                const char *name;
        } networked[] = {
                { 0x00006969, "nfs" },    { 0x0BD00BD0, "lustre" },  { 0x0000517B, "smb" },
                { 0xFF534D42, "cifs" },   { 0xFE534D42, "smb2" },    { 0x00C36400, "ceph" },
                { 0x47504653, "gpfs" },   { 0x5346414F, "afs" },     { 0x6B414653, "kafs" },
                { 0x01021997, "9p" },     { 0x19830326, "beegfs" },  { 0x7461636F, "ocfs2" },
                { 0x01161970, "gfs2" },   { 0x73757245, "coda" },    { 0x0000564C, "ncp" },
                { 0x20030528, "pvfs2" },  { 0xAAD7AAEA, "panfs" },   { 0x61636673, "acfs" },
                { 0x013111A8, "ibrix" },  { 0xBEEFDEAD, "snfs" },    { 0xBACBACBC, "vmhgfs" },
                { 0x786F4256, "vboxsf" }, { FS_MAGIC_FUSE, "fuse" },
        };
        const char *name = NULL;
        struct statfs sfs = { 0 };

        if (fstatfs(fd, &sfs) < 0)
                name = "unknown"; /* ESTALE, EIO: what local file systems do not answer */
        for (size_t i = 0; !name && i < ELEMENTSOF(networked); i++)
                if ((uint32_t)sfs.f_type ==
                    networked[i].magic) /* signed and wider on some machines */
                        name = networked[i].name;
        if (name && (uint32_t)sfs.f_type == FS_MAGIC_FUSE && fuse_is_local(fd))
                name = NULL;
        if (ret_name)
                *ret_name = name ? name : "local";
        return name != NULL;
}

int fs_check_writer(int fd) {
        if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0) {
                switch (errno) {
                case EAGAIN: /* a writer; or NFSv4 and SMB: no delegation, no oplock */
                        return fs_is_network(fd, NULL) ? FS_E_UNKNOWN : FS_E_WRITER;
                case EACCES:     /* neither the owner's nor with CAP_LEASE */
                case EPERM:      /* a seccomp filter or a security module */
                case EINVAL:     /* NFS, Lustre: no leases */
                case ENOLCK:     /* Lustre, other kernels' NFS */
                case EOPNOTSUPP: /* FUSE */
                        return FS_E_UNKNOWN;
                default:
                        return -errno;
                }
        }
        return fcntl(fd, F_SETLEASE, F_UNLCK) < 0 ? -errno : 0;
}

/* ---- writing, reading and removing in trees of our own ---- */

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

ssize_t fs_pread(int fd, void *data, size_t n, uint64_t offset) {
        size_t done = 0;
        n = offset > INT64_MAX ? 0 : MIN(n, INT64_MAX - offset); /* pread(2) refuses more */
        while (done < n) {
                ssize_t k = pread(fd, (char *)data + done, n - done, (off_t)(offset + done));
                if (k < 0 && errno == EINTR)
                        continue;
                if (k < 0)
                        return -errno;
                if (k == 0)
                        break;
                done += (size_t)k;
        }
        return (ssize_t)done;
}

int fs_pread_all(int fd, void *data, size_t n, uint64_t offset) {
        if (offset > INT64_MAX || n > INT64_MAX - offset)
                return -EOVERFLOW;
        ssize_t got = fs_pread(fd, data, n, offset);
        if (got < 0)
                return (int)got;
        return (size_t)got < n ? -ENODATA : 0;
}

int fs_sync_dir(int dir_fd) {
        /* EINVAL: CIFS and some of FUSE have no fsync for a directory and order it themselves. */
        return fsync(dir_fd) < 0 && errno != EINVAL ? -errno : 0;
}

/* Makes one directory; fine when it is there, whatever mkdir answered to that (EACCES, EROFS). */
static int ensure_dir(const char *path, mode_t mode) {
        struct stat st;

        if (mkdir(path, mode) == 0)
                return 0;
        int r = -errno;
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
                r = ensure_dir(copy, mode);
                *slash = '/';
                if (r < 0)
                        return r;
        }
        r = ensure_dir(copy, mode);
        if (r < 0)
                return r;
        if (lstat(copy, &st) < 0)
                return -errno;
        return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

static int remove_entry(int dir_fd, const char *name, unsigned depth);

/* Empties the directory; continues after a failure and returns the first one. */
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

        fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0)
                return -errno;
        /* The mode asked for, whatever the umask; mounts without modes (CIFS, FUSE) refuse. */
        if (fchmod(fd, mode) < 0 && errno != EPERM && errno != EOPNOTSUPP)
                return -errno;
        int r = fs_write_all(fd, data, n);
        if (r < 0)
                return r;
        if (fsync(fd) < 0)
                return -errno;
        return close(TAKE_FD(fd)) < 0 ? -errno : 0; /* NFS reports a full disk here */
}

int fs_write_file(int dir_fd, const char *name, const void *data, size_t n, mode_t mode) {
        char temporary[NAME_MAX + 1];
        uint64_t random;

        if (name[0] == '\0' || strchr(name, '/'))
                return -EINVAL;
        /* Random: two nodes that write the same name on a shared volume must not meet in it. */
        if (getrandom(&random, sizeof random, 0) != sizeof random)
                return -EIO;
        int r = snprintf(temporary, sizeof temporary, ".%s.tmp-%016" PRIx64, name, random);
        if (r < 0 || (size_t)r >= sizeof temporary)
                return -ENAMETOOLONG;
        r = write_new_file(dir_fd, temporary, data, n, mode);
        if (r >= 0 && renameat(dir_fd, temporary, dir_fd, name) < 0)
                r = -errno;
        if (r < 0) {
                (void)unlinkat(dir_fd, temporary, 0); /* the first failure counts */
                return r;
        }
        return fs_sync_dir(dir_fd);
}

int fs_read_all(int fd, size_t max_bytes, char **ret, size_t *ret_n) {
        _cleanup_free_ char *text = NULL;
        size_t n = 0, n_allocated = 0;

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
                if (k < 0 && errno != EINTR)
                        return -errno;
                if (k == 0)
                        break;
                n += (size_t)MAX(k, 0);
                if (n > max_bytes)
                        return -EFBIG;
        }
        text[n] = '\0';
        *ret = TAKE_PTR(text);
        if (ret_n)
                *ret_n = n;
        return 0;
}

int fs_read_file(int dir_fd, const char *name, size_t max_bytes, char **ret, size_t *ret_n) {
        _cleanup_close_ int fd = -1;
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
            st.st_size != sysconf(_SC_PAGESIZE)) /* sysfs reports one page for every file */
                return -EFBIG;
        return fs_read_all(fd, max_bytes, ret, ret_n);
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

int fs_connect_socket(const char *path, int type) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        size_t n = strlen(path);

        if (n == 0 || n >= sizeof address.sun_path)
                return -ENAMETOOLONG;
        memcpy(address.sun_path, path, n);
        _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
                return -errno;
        return TAKE_FD(fd);
}

int fs_remove_stale_socket(const char *path, int type) {
        struct stat st;

        if (lstat(path, &st) < 0)
                return errno == ENOENT ? 0 : -errno;
        if (!S_ISSOCK(st.st_mode))
                return -EEXIST; /* not ours to remove */
        _cleanup_close_ int fd = fs_connect_socket(path, type);
        /* EAGAIN: a server with a full backlog; EPROTOTYPE: one of another type */
        if (fd >= 0 || fd == -EAGAIN || fd == -EPROTOTYPE)
                return -EADDRINUSE;
        if (fd != -ECONNREFUSED)
                return fd == -ENOENT ? 0 : fd;
        return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}
