/* Files of hostile trees, and durable writes into our own. */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#define FS_DEPTH_MAX 64

/** Opens `path` below dir_fd without following any symlink: openat2 with
 * RESOLVE_BENEATH|NO_SYMLINKS| NO_MAGICLINKS; where it answers ENOSYS or EPERM (seccomp), component
 * by component with O_NOFOLLOW. O_CLOEXEC and (but for O_PATH) O_NONBLOCK and O_NOCTTY are added to
 * flags; nothing is created.
 * @return fd, or -errno: -ELOOP for a symlink in the way (O_PATH|O_NOFOLLOW opens a last one
 * itself), -EXDEV for an absolute path or any `..` (also one that would stay inside), -ENOENT for
 * "", -ENAMETOOLONG for more than FS_DEPTH_MAX components, -EINVAL for O_CREAT */
int fs_open_beneath(int dir_fd, const char *path, int flags);

/** As fs_open_beneath for a regular file O_RDONLY. Anything else is not even opened: to open a
 * device node is to use the device. @param ret_st  its fstat, may be NULL
 * @return fd, -EBADF when it is not a regular file, -ELOOP for a symlink */
int fs_open_regular(int dir_fd, const char *path, struct stat *ret_st);

/** Opens a directory to list it. Its position is its own: that of dir_fd, which may be shared,
 * stays where it is.
 * @param name  one component, or `.` for what dir_fd is
 * @param ret   for closedir(3)  @return 0, -ENOTDIR also for a symlink, -errno */
int fs_opendir_at(int dir_fd, const char *name, DIR **ret);

/** As fs_opendir_at() of what is open already.
 * @param fd  is *ret's from here on, and closed on failure; an -errno (of fs_open_beneath()) is
 * given back */
int fs_opendir_fd(int fd, DIR **ret);

/** mkdir -p of an absolute path, every new directory with `mode` (and the umask); the last
 * component may not be a symlink. @return 0 also when it is there; -ENOTDIR; -EINVAL for a relative
 * path */
int fs_mkdir_p(const char *path, mode_t mode);

/** Removes a tree below dir_fd that is our own (never follows symlinks). Missing is fine. Continues
 * after a failure and returns the first one; -ELOOP below FS_DEPTH_MAX levels, -EINVAL for "", `.`
 * and `..` */
int fs_remove_tree(int dir_fd, const char *name);

/** fsync of the directory itself. */
int fs_sync_dir(int dir_fd);

/** Writes a file durably: temporary dot-name (`.NAME.tmp-HEX`), fsync, rename, fsync of the
 * directory. @param name  one component  @param mode  of the file, whatever the umask */
int fs_write_file(int dir_fd, const char *name, const void *data, size_t n, mode_t mode);

/** Reads a small file. A relative name is opened by fs_open_regular (no symlinks); an absolute one,
 * which a person or we spelled, follows symlinks (Kubernetes mounts configuration by them).
 * @param ret    NUL-terminated, the caller's  @param ret_n  its length without the NUL, may be NULL
 * @return 0, -EFBIG above max_bytes, -EBADF or -EISDIR when it is not a regular file */
int fs_read_file(int dir_fd, const char *name, size_t max_bytes, char **ret, size_t *ret_n);

/** Connects to a Unix socket, without waiting. @param type  SOCK_STREAM, SOCK_SEQPACKET
 * @return fd; -EAGAIN: the server's queue is full; -ENAMETOOLONG also for ""; -errno of connect(2)
 */
int fs_connect_socket(const char *path, int type);

/** Connects to the socket at a path, and removes it when no process listens on it. @param type
 * SOCK_STREAM, SOCK_SEQPACKET
 * @return 0: nothing is there (any more); -EADDRINUSE: a process listens; -EEXIST: a file of
 * another kind, which stays; -ENAMETOOLONG; -errno */
int fs_remove_stale_socket(const char *path, int type);

/** Reads the beginning of a regular file: max_bytes of it, or all that it has.
 * @param ret  NUL-terminated, the caller's  @param ret_n  its length without the NUL
 * @return 0, -ENODATA when it becomes shorter meanwhile */
int fs_read_head(int fd, size_t max_bytes, char **ret, size_t *ret_n);

/** Reads to the end of what is open: a file, a pipe. @param ret  NUL-terminated, the caller's
 * @param ret_n  may be NULL  @return 0, -EFBIG: it has more than max_bytes, -errno */
int fs_read_all(int fd, size_t max_bytes, char **ret, size_t *ret_n);

int fs_write_all(int fd, const void *data, size_t n);
/** @return how many bytes there were, fewer than n only at the end of the file; -errno */
ssize_t fs_pread(int fd, void *data, size_t n, uint64_t offset);
int fs_pread_all(int fd, void *data, size_t n,
                 uint64_t offset); /* -ENODATA at an early end of file */

/** Tells whether the file system behind fd is one where other nodes
 * write without inotify noticing: NFS, Lustre, SMB, Ceph, GPFS, AFS, 9p, FUSE (but fuseblk), … by
 * statfs(2) f_type. One that cannot be queried counts as such.
 * @param ret_name  gets a static name ("nfs", "local", …), may be NULL */
bool fs_is_network(int fd, const char **ret_name);

/** Whether a path is on a network file system, by the type in the mount table: the file system,
 * which may hang, is not asked. Links in the path are not followed.
 * @return false also when it cannot be determined */
bool fs_path_is_network(const char *path);

/** Tells whether hard links between the two can be made at all: across bind mounts linkat fails
 * with EXDEV although the device is the same, so the mount is compared where the kernel reports it
 * (Linux 5.8). What is unknown counts as the same mount. */
bool fs_is_same_mount(int fd, const char *directory);

/** @return the path below the working directory, or itself when it is absolute; links and `..`
 * stay. The caller's; NULL for lack of memory or of a working directory (errno) */
char *fs_absolute_path(const char *path);

/** The file's birth time, by the clock of its creator (see fs_is_network()).
 * @return microseconds since 1970; 0 where the file system has none (statx(2), STATX_BTIME) */
uint64_t fs_birth_usec(int fd);

/** Acquires and releases a read lease to find whether a process has the file open for writing. On a
 * network file system a refusal says nothing: NFSv4 and SMB refuse whatever the server has not
 * delegated.
 * @param fd  open O_RDONLY; SIGIO must be blocked in all threads by the caller
 * @return 0 no writer, FS_E_WRITER, FS_E_UNKNOWN (no leases here, not permitted) */
enum { FS_E_WRITER = 1, FS_E_UNKNOWN = 2 };
int fs_check_writer(int fd);
