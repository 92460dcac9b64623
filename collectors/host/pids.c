#include "collectors/host/pids.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/parse.h"

#define STATUS_BYTES_MAX 4096 /* of which the lines read here are in the first kilobyte */
#define NAMESPACES_MAX 32     /* the kernel's MAX_PID_NS_LEVEL @see pid_namespaces(7) */

/* @return an fd of a file of /proc, -errno */
static int open_file(const char *proc_root, pid_t pid, const char *name) {
        char path[4200];
        if (snprintf(path, sizeof path, "%s/%d/%s", proc_root, (int)pid, name) >= (int)sizeof path)
                return -ENAMETOOLONG;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        return fd < 0 ? -errno : fd;
}

/* Reads the beginning of a file. @param opened  of open_file(), taken over @return its bytes, -errno */
static ssize_t read_file(int opened, char *buf, size_t size) {
        _cleanup_close_ int fd = opened;
        if (fd < 0)
                return fd;
        size_t n = 0;
        while (n < size - 1) {
                ssize_t got = read(fd, buf + n, size - 1 - n);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0)
                        return -errno;
                if (got == 0)
                        break;
                n += (size_t)got;
        }
        buf[n] = '\0';
        return (ssize_t)n;
}

typedef struct ProcessStatus {
        pid_t parent;
        uint64_t uid;      /* real */
        size_t n_levels;   /* of pid namespaces, ours among them */
        int64_t inner_pid; /* in the innermost */
} ProcessStatus;

/* @return the number behind the key, or -1 */
static int64_t number_after(const char *text, const char *key) {
        const char *p = strstr(text, key);
        char *end;
        if (!p)
                return -1;
        errno = 0;
        long long n = strtoll(p + strlen(key), &end, 10);
        return errno == 0 && end > p + strlen(key) && n >= 0 ? n : -1;
}

/* @see proc_pid_status(5): `NSpid:\t4711\t12\t1`, from the outermost that the reader sees to the innermost */
static bool parse_nspid(const char *text, ProcessStatus *ret) {
        const char *p = strstr(text, "\nNSpid:");
        if (!p)
                return false;
        p += strlen("\nNSpid:");
        ret->n_levels = 0;
        while (*p == '\t' || *p == ' ') {
                char *end;
                long long n = strtoll(p, &end, 10);
                if (end == p || n <= 0 || ++ret->n_levels > NAMESPACES_MAX)
                        return false;
                ret->inner_pid = n;
                p = end;
        }
        return ret->n_levels > 0;
}

/* @return 0; -ENOENT hidden or gone; -EBADMSG: no such lines (a kernel before 4.1); -errno */
static int read_status(const char *proc_root, pid_t pid, ProcessStatus *ret) {
        char text[STATUS_BYTES_MAX];
        ssize_t n = read_file(open_file(proc_root, pid, "status"), text, sizeof text);
        if (n < 0)
                return n == -ESRCH ? -ENOENT : (int)n;
        int64_t parent = number_after(text, "\nPPid:\t"), uid = number_after(text, "\nUid:\t");
        if (parent < 0 || parent > INT32_MAX || uid < 0 || !parse_nspid(text, ret))
                return -EBADMSG;
        ret->parent = (pid_t)parent;
        ret->uid = (uint64_t)uid;
        return 0;
}

/* Field 22, behind the last parenthesis: a name may hold any. */
static uint64_t start_ticks_of(const char *proc_root, pid_t pid) {
        char text[1024];
        if (read_file(open_file(proc_root, pid, "stat"), text, sizeof text) <= 0)
                return 0;
        const char *p = strrchr(text, ')');
        for (unsigned field = 2; p && field < 22; field++) {
                p = strchr(p + 1, ' ');
        }
        return p ? strtoull(p + 1, NULL, 10) : 0;
}

/* @return the inode of its pid namespace, 0 = it is not ours to see */
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

static int found(const PidsQuestion *q, pid_t pid, PidsAnswer *ret) {
        *ret = (PidsAnswer){ .pid = pid, .start_ticks = start_ticks_of(q->proc_root, pid) };
        return 0;
}

/* An ancestor is in the same namespace when as many lie around it: those of a process's ancestors are its own or around that. */
int pids_resolve_ancestor(const PidsQuestion *q, PidsAnswer *ret) {
        ProcessStatus hook, s;
        int r = q->hook_pid > 0 ? read_status(q->proc_root, q->hook_pid, &hook) : -ENOENT;
        if (r == -ENOENT || r == -EACCES || r == -EPERM)
                return PIDS_E_HIDDEN;
        if (r < 0)
                return r;
        if (hook.inner_pid == q->inner_pid) /* called by itself: a person who tries it */
                return found(q, q->hook_pid, ret);
        pid_t pid = hook.parent;
        for (unsigned i = 0; i < PIDS_ANCESTORS_MAX && pid > 0; i++, pid = s.parent) {
                if (read_status(q->proc_root, pid, &s) < 0 || s.n_levels != hook.n_levels)
                        return PIDS_E_NOT_FOUND;
                if (s.inner_pid == q->inner_pid && s.uid != hook.uid)
                        return PIDS_E_NOT_FOUND; /* init is everybody's ancestor */
                if (s.inner_pid == q->inner_pid)
                        return found(q, pid, ret);
        }
        return PIDS_E_NOT_FOUND;
}

/* @param q  its ns_inode is what the kernel says */
static int resolve_among_all(const PidsQuestion *q, const ProcessStatus *hook, PidsAnswer *ret) {
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
                    namespace_of(q->proc_root, (pid_t)pid) == q->ns_inode)
                        return found(q, (pid_t)pid, ret);
        }
        return PIDS_E_NOT_FOUND;
}

int pids_resolve(const PidsQuestion *q, PidsAnswer *ret) {
        int r = pids_resolve_ancestor(q, ret);
        if (r != PIDS_E_NOT_FOUND)
                return r;
        ProcessStatus hook;
        PidsQuestion real = *q;
        real.ns_inode = namespace_of(q->proc_root, q->hook_pid);
        if (real.ns_inode == 0 || (q->ns_inode != 0 && q->ns_inode != real.ns_inode) ||
            read_status(q->proc_root, q->hook_pid, &hook) < 0)
                return PIDS_E_NOT_FOUND;
        return resolve_among_all(&real, &hook, ret);
}

bool pids_container_of(const char *cgroup, char ret[PIDS_CONTAINER_SIZE]) {
        ProcContainer c;
        (void)procfs_parse_cgroup(cgroup, strlen(cgroup), &c); /* what counts is the one name */
        static_assert(sizeof c.container_id == PIDS_CONTAINER_SIZE, "the same names");
        if (c.container_id[0] != '\0')
                memcpy(ret, c.container_id, PIDS_CONTAINER_SIZE);
        return c.container_id[0] != '\0';
}

bool pids_container(const char *proc_root, pid_t pid, char ret[PIDS_CONTAINER_SIZE]) {
        char text[STATUS_BYTES_MAX];
        return read_file(open_file(proc_root, pid, "cgroup"), text, sizeof text) > 0 &&
               pids_container_of(text, ret);
}
