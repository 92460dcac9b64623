/* Which process of this machine a pid means that was reported from inside a pid namespace.
 *
 * A hook runs in the pid namespace of its container and reports the failing process by its number
 * there. The agent knows the hook itself by SO_PEERCRED. The failing process is usually an ancestor
 * of the hook, and otherwise another process of the same user in the same namespace. Everything
 * that the hook reports is hostile: it can name no process of another user. */
#include "collectors/host/pids.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "collectors/host/cgroup.h"
#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/parse.h"

#define STATUS_BYTES_MAX 4096 /* the lines that are read are in the first kilobyte */
#define NAMESPACES_MAX 32     /* the kernel's MAX_PID_NS_LEVEL @see pid_namespaces(7) */

typedef struct ProcessStatus {
        pid_t parent;
        uint64_t uid, start_ticks; /* uid: real */
        size_t n_levels;           /* of pid namespaces, ours among them */
        int64_t inner_pid;         /* in the innermost */
} ProcessStatus;

/* @see proc_pid_status(5): `NSpid:\t4711\t12\t1`, from the outermost that the reader sees to the
 * innermost */
static bool parse_nspid(const char *text, ProcessStatus *ret) {
        size_t n;
        const char *at = procfs_field(text, "NSpid", &n), *end = at + (at ? n : 0);
        uint64_t pid;
        for (ret->n_levels = 0; at && at < end; at += strspn(at, "\t ")) {
                if (!parse_u64_prefix(&at, end, &pid) || pid == 0 || pid > INT32_MAX ||
                    ++ret->n_levels > NAMESPACES_MAX)
                        return false;
                ret->inner_pid = (int64_t)pid;
        }
        return ret->n_levels > 0;
}

/* @return 0, an outcome of procfs.h, -EBADMSG: no such lines (a kernel before 4.1), -errno */
static int read_status(const char *proc_root, pid_t pid, ProcessStatus *ret) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        size_t n;
        int r = procfs_open(&p, proc_root, pid, 0);
        if (r == 0)
                r = procfs_read(&p, (ProcFile){ "status", STATUS_BYTES_MAX }, &text, NULL);
        if (r != 0)
                return r;
        const char *uid = text.text ? procfs_field(text.text, "Uid", &n) : NULL;
        if (!uid || !parse_u64_prefix(&uid, uid + n, &ret->uid) || !parse_nspid(text.text, ret))
                return -EBADMSG;
        ret->parent = p.stat.ppid;
        ret->start_ticks = p.stat.start_ticks;
        return 0;
}

/* @return the inode of its pid namespace; 0: it is hidden */
static uint64_t namespace_of(const char *proc_root, pid_t pid) {
        char path[4200], link[64];
        uint64_t inode;
        if (snprintf(path, sizeof path, "%s/%d/ns/pid", proc_root, (int)pid) >= (int)sizeof path)
                return 0;
        ssize_t n = readlink(path, link, sizeof link - 1);
        if (n < 6 || memcmp(link, "pid:[", 5) != 0 || link[n - 1] != ']')
                return 0;
        link[n - 1] = '\0';
        return parse_u64(link + 5, &inode) == 0 ? inode : 0;
}

/* The namespace of an ancestor is the process's own or an outer one. It is the process's own if
 * both have the same number of levels. */
int pids_resolve_ancestor(const PidsQuery *q, PidsMatch *ret) {
        ProcessStatus hook, s;
        int r = read_status(q->proc_root, q->hook_pid, &hook);
        if (r != 0)
                return r < 0 ? r : PIDS_E_HIDDEN;
        if (hook.inner_pid == q->inner_pid) { /* a person has called the hook */
                *ret = (PidsMatch){ q->hook_pid, hook.start_ticks };
                return 0;
        }
        pid_t pid = hook.parent;
        for (unsigned i = 0; i < PIDS_ANCESTORS_MAX && pid > 0; i++, pid = s.parent) {
                if (read_status(q->proc_root, pid, &s) != 0 || s.n_levels != hook.n_levels)
                        return PIDS_E_NOT_FOUND;
                if (s.inner_pid != q->inner_pid)
                        continue;
                if (s.uid != hook.uid)
                        return PIDS_E_NOT_FOUND; /* such as init, the ancestor of every process */
                *ret = (PidsMatch){ pid, s.start_ticks };
                return 0;
        }
        return PIDS_E_NOT_FOUND;
}

/* @param q  ns_inode is the one that the kernel reports for the hook */
static int resolve_among_all(const PidsQuery *q, const ProcessStatus *hook, PidsMatch *ret) {
        _cleanup_closedir_ DIR *dir = opendir(q->proc_root);
        if (!dir)
                return -errno;
        const struct dirent *e;
        for (size_t n = 0; n < PIDS_PROCESSES_MAX && (e = readdir(dir));) {
                ProcessStatus s;
                uint64_t pid;
                if (parse_u64_range(e->d_name, 1, INT32_MAX, &pid) < 0)
                        continue;
                n++;
                if (read_status(q->proc_root, (pid_t)pid, &s) == 0 && s.inner_pid == q->inner_pid &&
                    s.uid == hook->uid && s.n_levels == hook->n_levels &&
                    namespace_of(q->proc_root, (pid_t)pid) == q->ns_inode) {
                        *ret = (PidsMatch){ (pid_t)pid, s.start_ticks };
                        return 0;
                }
        }
        return PIDS_E_NOT_FOUND;
}

int pids_resolve(const PidsQuery *q, PidsMatch *ret) {
        int r = pids_resolve_ancestor(q, ret);
        if (r != PIDS_E_NOT_FOUND)
                return r;
        ProcessStatus hook;
        PidsQuery real = *q;
        real.ns_inode = namespace_of(q->proc_root, q->hook_pid);
        if (real.ns_inode == 0 || (q->ns_inode != 0 && q->ns_inode != real.ns_inode) ||
            read_status(q->proc_root, q->hook_pid, &hook) != 0)
                return PIDS_E_NOT_FOUND;
        return resolve_among_all(&real, &hook, ret);
}

bool pids_container_of(const char *cgroup, char ret[PIDS_CONTAINER_SIZE]) {
        CgroupContainer c;
        (void)cgroup_parse(cgroup, strlen(cgroup), &c); /* false also where only a pod is known */
        static_assert(sizeof c.container_id == PIDS_CONTAINER_SIZE, "ids have the same size");
        if (c.container_id[0] != '\0')
                memcpy(ret, c.container_id, PIDS_CONTAINER_SIZE);
        return c.container_id[0] != '\0';
}

bool pids_container(const char *proc_root, pid_t pid, char ret[PIDS_CONTAINER_SIZE]) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        ret[0] = '\0';
        if (procfs_open(&p, proc_root, pid, 0) != 0 ||
            procfs_read(&p, (ProcFile){ "cgroup", STATUS_BYTES_MAX }, &text, NULL) != 0)
                return false;
        if (text.text)
                (void)pids_container_of(text.text, ret); /* else "" */
        return true;
}
