#include "collectors/runner/places.h"

#include <linux/magic.h>
#include <stdint.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"

bool places_is_here(const char *proc_root, const char *namespace) {
        char other[PROCFS_LINK_SIZE];
        Proc init = { .dir_fd = -1 };
        ssize_t n = readlink("/proc/self/ns/mnt", other, sizeof other - 1);
        other[MAX(n, 0)] = '\0';
        if (strcmp(namespace, other) == 0)
                return true;
        bool is_inits = procfs_open(&init, proc_root, 1, 0) == 0 &&
                        procfs_link(&init, "ns/mnt", other) == 0 && strcmp(namespace, other) == 0;
        procfs_close(&init);
        return is_inits;
}

bool places_is_of_the_kernel(int fd) {
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
