/* What the path of a cgroup tells: the container, the pod of Kubernetes, and the job of Slurm.
 *
 * Each component of the path is compared with the names that container runtimes, kubelet and slurmd
 * give to cgroups. A user can make cgroups in a subtree that is delegated to him, so that a name is
 * a hint. procfs.c reads the file. */
#include "collectors/host/cgroup.h"

#include <ctype.h>
#include <string.h>

#include "lib/base/cleanup.h"

static bool is_hex(const char *s, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (!isxdigit((unsigned char)s[i]))
                        return false;
        return true;
}

static bool starts_with(const char *s, size_t n, const char *prefix) {
        return n >= strlen(prefix) && memcmp(s, prefix, strlen(prefix)) == 0;
}

static void copy_text(char *to, size_t size, const char *s, size_t n) {
        n = MIN(n, size - 1);
        memcpy(to, s, n);
        to[n] = '\0';
}

static bool is_name(const char *s, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (!isalnum((unsigned char)s[i]) && s[i] != '-' && s[i] != '_')
                        return false;
        return n > 0;
}

/* A component of a path. */
typedef struct CgroupComponent {
        const char *s;
        size_t n;
} CgroupComponent;

/* Names are `<64 hex>`, `docker-<64 hex>.scope`, `crio-conmon-<64 hex>` … If runc is given a path
 * for systemd's driver but does not use that driver, it makes one directory of the whole path:
 * `kubepods-pod<uid>.slice:cri-containerd:<64 hex>` */
static void detect_container(CgroupContainer *c, CgroupComponent self, CgroupComponent parent) {
        const char *s = self.s;
        size_t n = self.n;

        if (n > 6 && memcmp(s + n - 6, ".scope", 6) == 0)
                n -= 6;
        if (n < 64 || !is_hex(s + n - 64, 64))
                return;
        if (n > 64 && (s[n - 65] != '-' || !is_name(s, n - 65)))
                return;
        copy_text(c->container_id, sizeof c->container_id, s + n - 64, 64);
        if (n > 65)
                copy_text(c->runtime, sizeof c->runtime, s, n - 65);
        else if ((parent.n == 6 && memcmp(parent.s, "docker", 6) == 0) ||
                 (is_name(parent.s, parent.n) && parent.s[parent.n] == ':'))
                copy_text(c->runtime, sizeof c->runtime, parent.s, parent.n);
}

/* Names are `pod<uid>` (cgroupfs) and `kubepods-burstable-pod<uid with _>.slice` (systemd). */
static void detect_pod(CgroupContainer *c, const char *s, size_t n) {
        const char *at = NULL;

        if (n > 6 && memcmp(s + n - 6, ".slice", 6) == 0)
                n -= 6;
        if (starts_with(s, n, "pod"))
                at = s + 3;
        else if (starts_with(s, n, "kubepods"))
                for (size_t i = 0; i + 4 < n; i++)
                        if (memcmp(s + i, "-pod", 4) == 0)
                                at = s + i + 4;
        if (!at)
                return;
        n -= (size_t)(at - s);
        if (n != 36 && !(n == 32 && is_hex(at, n)))
                return;
        for (size_t i = 0; i < n; i++)
                if (!isxdigit((unsigned char)at[i]) && at[i] != '-' && at[i] != '_')
                        return;
        copy_text(c->pod_uid, sizeof c->pod_uid, at, n);
        for (char *p = c->pod_uid; *p != '\0'; p++)
                if (*p == '_')
                        *p = '-';
}

static void parse_component(CgroupContainer *c, CgroupComponent self, CgroupComponent parent) {
        const char *s = self.s;
        size_t n = self.n;

        detect_pod(c, s, n);
        detect_container(c, self, parent);
        if (starts_with(s, n, "job_") && is_name(s + 4, n - 4))
                copy_text(c->slurm_job, sizeof c->slurm_job, s + 4, n - 4);
        else if (starts_with(s, n, "step_") && c->slurm_job[0] != '\0' && is_name(s + 5, n - 5))
                copy_text(c->slurm_step, sizeof c->slurm_step, s + 5, n - 5);
}

bool cgroup_parse(const char *text, size_t n, CgroupContainer *ret) {
        CgroupComponent parent = { .s = text }, self = { .s = text };

        *ret = (CgroupContainer){ 0 };
        for (size_t i = 0; i <= n; i++) {
                if (i < n && text[i] != '/' && text[i] != ':' && text[i] != '\n')
                        continue;
                self.n = (size_t)(text + i - self.s);
                parse_component(ret, self, parent);
                parent = (CgroupComponent){ self.s, i < n && text[i] != '\n' ? self.n : 0 };
                self.s = text + i + 1;
        }
        return ret->container_id[0] != '\0' || ret->pod_uid[0] != '\0' || ret->slurm_job[0] != '\0';
}
