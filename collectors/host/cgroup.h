/* What the path of a cgroup tells about the processes in it. Pure. No library: the hook uses it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** "" = the path does not tell. */
typedef struct CgroupContainer {
        char container_id[65]; /* 64 hexadecimal digits */
        char runtime[24];      /* cri-containerd, docker, crio, libpod … as the path spells it */
        char pod_uid[40];      /* of Kubernetes, with `-`; 32 hexadecimal digits for a static pod */
        char slurm_job[24], slurm_step[24];
} CgroupContainer;

/** Parses /proc/PID/cgroup (v1 and v2). @return whether anything was found
 * @see the cgroup names of kubelet's cgroupfs and systemd drivers, containerd, docker, CRI-O,
 * podman, slurmd */
bool cgroup_parse(const char *text, size_t n, CgroupContainer *ret);
