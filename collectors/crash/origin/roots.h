/* The roots where the files of one report are searched, the likeliest first: that is the order in
 * which they are added. */
#pragma once

#include "collectors/crash/origin/files.h"

typedef struct Roots {
        FileRoot items[FILES_ROOTS_MAX];
        size_t n;
} Roots;

/** @param fd  the roots' from here on; < 0: nothing is added */
void roots_add(Roots *r, int fd, FileRootKind kind, const char *name);

/** Adds what a process that still runs in a container has as its root, `/proc/PID/root`, which the
 * kernel shows to whom may trace it. Where processes of that cgroup have several roots, each counts
 * only by build ids; one that is the host's is not added.
 * @param proc_root  where procfs is  @param cgroup  of the process that crashed: a path, or the
 * text of its /proc/PID/cgroup */
void roots_add_container(Roots *r, const char *proc_root, const char *cgroup, int host_fd);

/** The same by a probe, which may see the roots of all processes (docs/ARCHITECTURE.md); nothing is
 * added where none answers. @param socket  where probes listen */
void roots_request_container(Roots *r, const char *socket, const char *proc_root,
                             const char *cgroup);

/** The probe's end: sends what roots_add_container() finds. @return 0, -errno */
int roots_send_container(int socket_fd, const char *proc_root, const char *cgroup);

/** Adds the layers of images that containerd and Podman have on a node, the newest first, as many
 * as there is room for. */
void roots_add_layers(Roots *r, int host_fd);

void roots_done(Roots *r);
