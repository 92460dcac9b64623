/* Which log files of the runtime may be read, and how they are opened.
 *
 * The collector may read every file of the node, and any user of the node or of a container may
 * name one. A file is therefore opened only where its reading tells that user nothing new: it is a
 * regular file with one name on a real file system, reached without symlinks (in a container:
 * inside the container's root), and either belongs to the user who named it or belongs to root and
 * may be read by everybody. A file is opened O_PATH, checked, and only then opened for reading.
 *
 * Logs have two sources. A note of a hook names a file as its process sees it. A dump's directory
 * may contain logs, whose names tell which node has written them.
 *
 * What the logs contain is read in runtime_log.c. */
#include "collectors/neuron/runtime_log_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/names.h"
#include "lib/neuron/scan.h"

enum {
        PATH_BYTES_MAX = 4096,
        ENTRIES_MAX = 65536, /* of a dump's directory that are examined */
};

typedef enum MountNs { MOUNT_NS_UNKNOWN, MOUNT_NS_HOST, MOUNT_NS_OTHER } MountNs;

/* The check of one log that a note has named. */
typedef struct LogCheck {
        const CollectRequest *request;
        const CollectLogFile *f;
        MountNs mount_ns; /* of the process */
        int root_fd;      /* of the process; it sees more of the host than a unit of systemd does */
        bool is_public;   /* every user may search all directories of the path */
        const char *why;  /* the log is refused */
} LogCheck;

/* In init's mount namespace and in ours, paths mean what they mean to us. When in doubt, a
 * namespace counts as another one, in which less is read. @param namespace  the link `ns/mnt` of a
 * process */
static bool is_in_host_mount_ns(const char *proc_root, const char *namespace) {
        char other[PROCFS_LINK_SIZE];
        _cleanup_(procfs_close) Proc init = { .dir_fd = -1 };
        ssize_t n = readlink("/proc/self/ns/mnt", other, sizeof other - 1);
        other[MAX(n, 0)] = '\0';
        if (strcmp(namespace, other) == 0)
                return true;
        return procfs_open(&init, proc_root, 1, 0) == 0 &&
               procfs_link(&init, "ns/mnt", other) == 0 && strcmp(namespace, other) == 0;
}

/* @return whether a file lies in one of the kernel's own file systems (/proc, /sys, cgroups …),
 * where reading a regular file may have effects or block, or cannot be checked. @see statfs(2) */
static bool is_kernel_file(int fd) {
        static const uint32_t types[] = { PROC_SUPER_MAGIC,   SYSFS_MAGIC,         DEBUGFS_MAGIC,
                                          TRACEFS_MAGIC,      SECURITYFS_MAGIC,    BPF_FS_MAGIC,
                                          CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, EFIVARFS_MAGIC,
                                          PSTOREFS_MAGIC };
        struct statfs s;
        if (fstatfs(fd, &s) < 0)
                return true;
        for (size_t i = 0; i < ELEMENTSOF(types); i++)
                if ((uint32_t)s.f_type == types[i])
                        return true;
        return false;
}

static int refuse(LogCheck *d, int r, const char *why) {
        d->why = why;
        return r;
}

/* `.`, `..` and empty components would evade the comparison of paths as texts. */
static int check_path(LogCheck *d) {
        const char *path = d->f->path;
        if (path[0] != '/' || strlen(path) >= PATH_BYTES_MAX)
                return refuse(d, -EINVAL, "not an absolute path");
        if (path[1] == '\0' || !unit_path_is_clean(path + 1))
                return refuse(d, -EINVAL, "it is `/`, or a path with `.`, `..` or `//`");
        if (path_is_below(path, d->request->proc_root))
                return refuse(d, -EPERM, "files of /proc are not read as logs");
        return 0;
}

/* When in doubt, the namespace remains unknown, which allows least. */
static void find_mount_ns(LogCheck *d) {
        char namespace[PROCFS_LINK_SIZE];
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        if (d->f->pid > 0 &&
            procfs_open(&p, d->request->proc_root, d->f->pid, d->f->start_ticks) == 0 &&
            procfs_link(&p, "ns/mnt", namespace) == 0) {
                d->root_fd = procfs_root(&p);
                if (d->root_fd >= 0 && procfs_check(&p) == 0)
                        d->mount_ns = is_in_host_mount_ns(d->request->proc_root, namespace)
                                              ? MOUNT_NS_HOST
                                              : MOUNT_NS_OTHER;
        }
}

/* Follows no symlink. @return an O_PATH fd, -errno; sets is_public */
static int open_by_path(LogCheck *d) {
        char path[PATH_BYTES_MAX], *name = path + 1;
        int at_fd = d->mount_ns == MOUNT_NS_HOST ? fcntl(d->root_fd, F_DUPFD_CLOEXEC, 0)
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

static int check_owner(LogCheck *d, int fd, const struct stat *st) {
        bool belongs_to_sender = st->st_uid == d->f->owner.uid;
        bool everybody_may =
                d->is_public && st->st_mode & S_IROTH && (belongs_to_sender || st->st_uid == 0);
        if (!S_ISREG(st->st_mode))
                return refuse(d, -EBADF, "not a regular file");
        if (st->st_nlink != 1)
                return refuse(d, -EMLINK, "it has another name, or was removed");
        if (is_kernel_file(fd))
                return refuse(d, -EPERM, "files of the kernel are not read as logs");
        if (d->mount_ns == MOUNT_NS_UNKNOWN && !everybody_may)
                return refuse(
                        d, -EPERM,
                        "its process is not known or has ended, and not every user may read it");
        if (!belongs_to_sender && !everybody_may)
                return refuse(d, -EPERM,
                              "it belongs to another user than the one who named it, and is not a "
                              "file of root that every user may read");
        return 0;
}

static int open_checked(LogCheck *d, struct stat *ret_st) {
        char link[sizeof "/proc/self/fd/" + 10];
        int r = check_path(d);
        if (r < 0)
                return r;
        find_mount_ns(d);
        _cleanup_close_ int path_fd =
                d->mount_ns == MOUNT_NS_OTHER
                        ? procfs_root_open(d->root_fd, d->f->path, O_PATH, ret_st)
                        : open_by_path(d);
        if (path_fd == -ELOOP)
                return refuse(d, path_fd, "its path has a symlink, and symlinks are not followed");
        if (path_fd == -EBADF)
                return refuse(d, path_fd, "not a regular file");
        if (path_fd < 0)
                return refuse(d, path_fd, strerror(-path_fd));
        if (fstat(path_fd, ret_st) < 0)
                return refuse(d, -errno, strerror(errno));
        r = check_owner(d, path_fd, ret_st);
        if (r < 0)
                return r;
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", path_fd);
        int fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        return fd < 0 ? refuse(d, -errno, strerror(errno)) : fd;
}

int runtime_log_files_open_named(const CollectRequest *request, const CollectLogFile *f,
                                 struct stat *ret_st, const char **ret_why) {
        LogCheck d = { .request = request, .f = f, .root_fd = -1 };
        int fd = open_checked(&d, ret_st);
        if (d.root_fd >= 0)
                (void)close(d.root_fd);
        *ret_why = d.why;
        return fd;
}

/* ---- in dumps ---- */

void runtime_log_files_done(RuntimeLogFiles *logs) {
        for (size_t i = 0; i < logs->n; i++)
                free(logs->items[i].path);
        free(logs->items);
        *logs = (RuntimeLogFiles){ 0 };
}

/* On a shared file system the ranks of all nodes write into one directory. Each node reads its own
 * logs. @see the Neuron documentation */
static bool is_ours(const CollectRequest *request, const char *name) {
        DumpName n;
        dump_name_parse(SOURCE_NEURON_CORE_DUMP, name, &n);
        if (n.kind != MEMBER_NRT_LOG)
                return false;
        return !request->instance_id || !instance_id_is_ec2(request->instance_id) ||
               strcmp(n.instance_id, request->instance_id) == 0;
}

/* @param name  of the log; NULL: the dump cannot be examined, because of error */
static int add_log(RuntimeLogFiles *logs, const CollectDump *dump, const char *name, int error) {
        if (logs->n >= COLLECT_FILES_MAX) {
                logs->n_left_out++;
                return 0;
        }
        if (array_grow(&logs->items, logs->n, sizeof *logs->items) < 0)
                return -ENOMEM;
        char *path = strbuf_format("%s%s%s", dump->path, name ? "/" : "", name ? name : "");
        if (!path)
                return -ENOMEM;
        logs->items[logs->n++] =
                (RuntimeLogFile){ .path = path,
                                  .name = name ? path + strlen(dump->path) + 1 : NULL,
                                  .dump = dump,
                                  .error = error };
        return 0;
}

static int list_logs(const CollectRequest *request, const CollectDump *dump,
                     RuntimeLogFiles *logs) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *e;
        int r = fs_opendir_fd(scan_open_fixed(dump->path), &d);
        if (r == -ENOENT || r == -ENOTDIR) /* the hook has not made it yet; it is a single file */
                return 0;
        if (r < 0)
                return add_log(logs, dump, NULL, r);
        for (size_t i = 0; r == 0 && i < ENTRIES_MAX && (e = readdir(d)); i++)
                if (is_ours(request, e->d_name))
                        r = add_log(logs, dump, e->d_name, 0);
        return r;
}

int runtime_log_files_find(const CollectRequest *request, RuntimeLogFiles *ret) {
        int r = 0;
        for (size_t i = 0; r == 0 && i < MIN(request->n_dumps, (size_t)COLLECT_DUMPS_MAX); i++)
                r = list_logs(request, &request->dumps[i], ret);
        return r;
}

int runtime_log_files_open_in_dump(const RuntimeLogFile *log, struct stat *ret_st,
                                   const char **ret_why) {
        _cleanup_close_ int dir_fd = scan_open_fixed(log->dump->path);
        _cleanup_close_ int fd = dir_fd < 0 ? dir_fd : fs_open_regular(dir_fd, log->name, ret_st);
        struct stat dir;
        if (fd < 0)
                *ret_why = fd == -EBADF   ? "not a regular file"
                           : fd == -ELOOP ? "a symlink, and symlinks are not followed"
                                          : strerror(-fd);
        else if (ret_st->st_uid != log->dump->uid &&
                 (fstat(dir_fd, &dir) < 0 || ret_st->st_uid != dir.st_uid))
                *ret_why =
                        "it belongs neither to the user who named the dump nor to the owner of its "
                        "directory";
        else if (is_kernel_file(fd))
                *ret_why = "files of the kernel are not read as logs";
        else
                return TAKE_FD(fd);
        return fd < 0 ? fd : -EPERM;
}
