/* Whether a device may be opened at all. On a node of an UltraServer any close while no core is marked can reset the election of the server, O_WRONLY or
 * not (neuron-interfaces 3.2): there, devices are left alone unless somebody uses them. What cannot be found out counts as a reason to leave them alone. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/host/jobs.h"
#include "collectors/host/procfs.h"
#include "collectors/neuron/neuron_device.h"
#include "collectors/neuron/neuron_names.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

enum {
        FDS_MAX = 1 << 20,
        PROC_PATH_SIZE = sizeof "4294967295/fdinfo/4294967295",
        SMALL_FILE_MAX = 4096
};

/* @return the small file's text, the caller's; NULL with *ret_error */
static char *read_below(const char *root, const char *name, int *ret_error) {
        _cleanup_free_ char *path = path_join(root, name);
        char *text = NULL;

        *ret_error = path ? fs_read_file(AT_FDCWD, path, SMALL_FILE_MAX, &text, NULL) : -ENOMEM;
        return text;
}

/* `1` is a server of one node. */
static bool mode_has_servers(const char *mode) {
        for (const char *p = mode; *p; p++)
                if (!strchr("01, \n", *p))
                        return true;
        return strstr(mode, "10") || strstr(mode, "11");
}

bool device_is_ultraserver(const char *sysfs_root, const char **ret_why) {
        /* Types of instances that the driver has as parts of larger servers: neuron-interfaces 3.8. */
        static const char *const types[] = { "trn2u", "trn2eu", "trn2es", "trn3s", "trn3pd98" };
        _cleanup_free_ char *mode = NULL, *type = NULL;
        int r;

        mode = read_below(sysfs_root, "class/neuron_device/ultraserver_mode", &r);
        if (mode ? mode_has_servers(mode) : r != -ENOENT) {
                *ret_why = "ultraserver_mode says that the node can be part of an UltraServer";
                return true;
        }
        type = read_below(sysfs_root, "devices/virtual/dmi/id/product_name", &r);
        for (size_t i = 0; type && i < ELEMENTSOF(types); i++)
                if (strncmp(type, types[i], strlen(types[i])) == 0) {
                        *ret_why = "the instance type is one of an UltraServer";
                        return true;
                }
        return false;
}

static int stat_device(const char *device_directory, int number, struct stat *ret) {
        char path[PATH_MAX];

        if (snprintf(path, sizeof path, "%s/neuron%d", device_directory, number) >=
            (int)sizeof path)
                return -ENAMETOOLONG;
        return stat(path, ret) < 0 ? -errno : 0;
}

int device_number_of(const char *device_directory, int dir_fd, const char *link, int number) {
        struct stat theirs, ours;
        bool has_any = false;

        if (fstatat(dir_fd, link, &theirs, 0) < 0)
                return -errno;
        if (!S_ISCHR(theirs.st_mode))
                return stat_device(device_directory, number, &ours) == 0 &&
                                       ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino
                               ? number
                               : -ENODEV;
        for (int i = -1; i < NEURON_DEVICES_MAX; i++) { /* that of its name first */
                int at = i < 0 ? number : i;
                if (stat_device(device_directory, at, &ours) < 0 || !S_ISCHR(ours.st_mode))
                        continue;
                if (ours.st_rdev == theirs.st_rdev)
                        return at;
                has_any = true;
        }
        return has_any ? -ENODEV : -ENXIO;
}

/* A holder that opened it O_WRONLY marks no core. @return true also when it cannot be told */
static bool is_attached(int proc_fd, const char *pid, const char *fd) {
        char path[PROC_PATH_SIZE];
        char text[SMALL_FILE_MAX];
        _cleanup_close_ int info_fd = -1;
        const char *flags;
        unsigned value = 0;
        ssize_t n;

        (void)snprintf(path, sizeof path, "%.10s/fdinfo/%.10s", pid, fd);
        info_fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        n = info_fd < 0 ? -1 : read(info_fd, text, sizeof text - 1);
        if (n < 0)
                return true;
        text[n] = '\0';
        flags = strstr(text, "flags:");
        if (!flags || sscanf(flags, "flags: %o", &value) != 1)
                return true;
        return (value & O_ACCMODE) != O_WRONLY;
}

typedef struct Search {
        const char *device_directory;
        unsigned n_fds;
        bool is_incomplete; /* a process may not be looked into: CAP_SYS_PTRACE is missing */
} Search;

static bool holds_device(int proc_fd, const char *pid, Search *search) {
        char path[PROC_PATH_SIZE], target[256];
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *entry;
        int fd;

        (void)snprintf(path, sizeof path, "%.10s/fd", pid);
        fd = openat(proc_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                search->is_incomplete |= errno == EACCES || errno == EPERM;
        if (fs_opendir_fd(fd, &dir) < 0)
                return false;
        while (++search->n_fds < FDS_MAX && (entry = readdir(dir))) {
                ssize_t n = readlinkat(fd, entry->d_name, target, sizeof target - 1);
                if (n <= 0) {
                        search->is_incomplete |= n < 0 && (errno == EACCES || errno == EPERM);
                        continue;
                }
                target[n] = '\0';
                int number = neuron_number(path_name(target));
                int r = number < 0 ? -ENODEV
                                   : device_number_of(search->device_directory, fd, entry->d_name,
                                                      number);
                if (r >= 0 && is_attached(proc_fd, pid, entry->d_name))
                        return true;
                search->is_incomplete |= r < 0 && r != -ENODEV && r != -ENOENT; /* closed by now */
        }
        return false;
}

/* Cores are marked by the runtime (neuron-interfaces 3.2): who holds a device without it, as a monitor does, does not keep the server's election. Nor do the
 * parts of a collector, which have one parent, and of which one may have a device attached. */
static bool uses_cores(const char *proc_root, uint64_t pid, Search *search) {
        Proc p = { .dir_fd = -1 };
        bool is_hidden = false, has_runtime = false;
        int r = procfs_open(&p, proc_root, (pid_t)pid, 0);

        if (r == 0 && p.stat.ppid != getppid())
                has_runtime = jobs_maps_runtime(&p, &is_hidden);
        search->is_incomplete |= is_hidden || r < 0 || r == PROCFS_E_HIDDEN;
        procfs_close(&p);
        return has_runtime;
}

DeviceHeld device_is_held(const char *proc_root, const char *device_directory) {
        _cleanup_closedir_ DIR *dir = opendir(proc_root);
        const struct dirent *entry;
        Search search = { .device_directory = device_directory };

        if (!dir)
                return DEVICE_HELD_UNKNOWN;
        while ((entry = readdir(dir))) {
                uint64_t pid;
                if (parse_u64(entry->d_name, &pid) < 0 || pid == (uint64_t)getpid())
                        continue;
                if (holds_device(dirfd(dir), entry->d_name, &search) &&
                    uses_cores(proc_root, pid, &search))
                        return DEVICE_HELD;
        }
        return search.n_fds >= FDS_MAX || search.is_incomplete ? DEVICE_HELD_UNKNOWN
                                                               : DEVICE_NOT_HELD;
}
