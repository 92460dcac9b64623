/* Mounts for one test, in a mount namespace that ends with the test program. Only root may: a test
 * that gets `false` skips. */
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* @return whether mounts made from now on are ours alone */
static inline bool mounts_allowed(void) {
        static int known = -1;
        if (known < 0)
                known = geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
                        mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) == 0;
        return known == 1;
}

/* A program that is run with its output thrown away. @return its pid */
static inline pid_t spawn_quietly(char *const *argv) {
        pid_t pid = fork();
        if (pid != 0)
                return pid;
        int null_fd = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < 3; fd++)
                (void)dup2(null_fd, fd);
        (void)execvp(argv[0], argv);
        _exit(127);
}

typedef struct FaultFs {
        char mount[PATH_MAX + 16], real[PATH_MAX + 16];
        pid_t pid;
} FaultFs;

/* Compiles tests/harness/faultfs.c (libfuse3 is wanted by tests alone, so configure does not ask
 * for it) unless that was done.
 * @param binary  where to; @return whether it can be had */
static inline bool faultfs_build(const char *binary) {
        const char *srcdir = getenv("srcdir");
        char command[2 * PATH_MAX + 512];

        if (access(binary, X_OK) == 0)
                return true;
        if (access("/dev/fuse", R_OK | W_OK) < 0)
                return false;
        (void)snprintf(command, sizeof command,
                       "pkg-config --exists fuse3 2>/dev/null && ${CC:-cc} -O1 -D_GNU_SOURCE "
                       "'%s/tests/harness/faultfs.c' "
                       "$(pkg-config --cflags --libs fuse3) -lpthread -o '%s' >/dev/null 2>&1",
                       srcdir ? srcdir : ".", binary);
        return system(command) == 0;
}

/* Waits for the mount table to change until `path` is on another device than its parent. */
static inline bool wait_until_mounted(const char *path, const char *parent) {
        struct stat a, b;
        int fd = open("/proc/self/mounts", O_RDONLY | O_CLOEXEC);
        struct pollfd p = { .fd = fd, .events = POLLPRI };
        bool mounted = false;

        for (unsigned tries = 0; fd >= 0 && tries < 100 && !mounted; tries++) {
                if (stat(path, &a) == 0 && stat(parent, &b) == 0 && a.st_dev != b.st_dev)
                        mounted = true;
                else
                        (void)poll(&p, 1, 100);
        }
        if (fd >= 0)
                (void)close(fd);
        return mounted;
}

/* Mounts `<directory>/mount` over `<directory>/real`. @return whether it could */
static inline bool faultfs_start(FaultFs *f, const char *directory) {
        char binary[PATH_MAX + 16], options[PATH_MAX + 128];
        char *argv[] = { binary, (char *)"-f", (char *)"-o", options, f->mount, NULL };

        *f = (FaultFs){ .pid = -1 };
        (void)snprintf(binary, sizeof binary, "%s/faultfs", directory);
        (void)snprintf(f->mount, sizeof f->mount, "%s/mount", directory);
        (void)snprintf(f->real, sizeof f->real, "%s/real", directory);
        (void)snprintf(options, sizeof options, "allow_other,modules=subdir,subdir=%s", f->real);
        if (!mounts_allowed() || !faultfs_build(binary) || mkdir(f->mount, 0755) < 0 ||
            mkdir(f->real, 0755) < 0)
                return false;
        f->pid = spawn_quietly(argv);
        return f->pid > 0 && wait_until_mounted(f->mount, directory);
}

/* One rule or `clear`, in force on return. @return whether it was understood */
static inline bool faultfs_rule(const FaultFs *f, const char *line) {
        char path[sizeof f->mount + 16];
        (void)snprintf(path, sizeof path, "%s/.faultfs", f->mount);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0)
                return false;
        bool done = write(fd, line, strlen(line)) == (ssize_t)strlen(line);
        (void)close(fd);
        return done;
}

static inline void faultfs_stop(FaultFs *f) {
        if (f->pid <= 0)
                return;
        (void)kill(f->pid, SIGCONT);
        (void)umount2(f->mount, MNT_DETACH);
        (void)kill(f->pid, SIGKILL);
        (void)waitpid(f->pid, NULL, 0);
        f->pid = -1;
}
