/* Which processes hold the machine's Neuron devices, found by reading links of /proc.
 *
 * A process holds a device when a descriptor of it leads to the device's node, or it is known by
 * its maps that it has the runtime loaded. The scan of descriptors never waits; the scan of maps
 * may (procfs.h). What becomes of a process between two looks is never an error: it is left out.
 *
 * jobs.c records the holders; neuron/device_access.c decides by them whether a device may be
 * opened. */
#include "collectors/host/device_holders.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

enum {
        FDINFO_BYTES_MAX = 4096,
        MAPS_BYTES_MAX = 8 << 20,
        STATM_BYTES_MAX = 256,
        /* A process with less address space does not have the runtime loaded, whose libnrt.so alone
         * is larger. */
        RUNTIME_BYTES_MIN = 32 << 20,
};

/* @return the number of the device that a link names; -1: none */
static int device_of_link(const CollectRequest *request, const char *target) {
        const char *name = path_name(target);
        size_t n_dir = (size_t)(name - target);
        uint64_t number;

        if (strncmp(name, "neuron", 6) != 0 || n_dir < 2 ||
            parse_u64_range(name + 6, 0, 65535, &number) < 0)
                return -1;
        n_dir--; /* the slash */
        if ((strlen(request->device_directory) == n_dir &&
             memcmp(target, request->device_directory, n_dir) == 0) ||
            (n_dir == 4 && memcmp(target, "/dev", 4) == 0))
                return (int)number;
        return -1;
}

static int stat_device(const char *device_directory, int number, struct stat *ret) {
        char path[PATH_MAX];

        if (snprintf(path, sizeof path, "%s/neuron%d", device_directory, number) >=
            (int)sizeof path)
                return -ENAMETOOLONG;
        return stat(path, ret) < 0 ? -errno : 0;
}

/* Compares device numbers (in tests: files), not names: any user can have a file that is called
 * neuron0, and in a container another device may be. Nothing is opened.
 * @return the number of the device; -ENODEV: it is none; -errno: it cannot be determined */
static int number_of_device(const char *device_directory, int dir_fd, const char *link,
                            int number) {
        struct stat theirs, ours;
        bool has_any = false;

        if (fstatat(dir_fd, link, &theirs, 0) < 0)
                return -errno;
        if (!S_ISCHR(theirs.st_mode))
                return stat_device(device_directory, number, &ours) == 0 &&
                                       ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino
                               ? number
                               : -ENODEV;
        for (int i = -1; i < DEVICE_HOLDER_DEVICES_MAX;
             i++) { /* the one that the name says first */
                int at = i < 0 ? number : i;
                if (stat_device(device_directory, at, &ours) < 0 || !S_ISCHR(ours.st_mode))
                        continue;
                if (ours.st_rdev == theirs.st_rdev)
                        return at;
                has_any = true;
        }
        return has_any ? -ENODEV : -ENXIO;
}

static bool is_write_only(const Proc *p, int fd) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        char name[32];
        unsigned flags;

        (void)snprintf(name, sizeof name, "fdinfo/%d", fd);
        if (procfs_read(p, (ProcFile){ name, FDINFO_BYTES_MAX }, &b, NULL) != 0 || !b.text)
                return false;
        const char *line = strstr(b.text, "flags:");
        return line && sscanf(line, "flags: %o", &flags) == 1 && (flags & O_ACCMODE) == O_WRONLY;
}

static void holder_add_device(DeviceHolder *h, int number) {
        size_t at = 0;

        while (at < h->n_devices && h->devices[at] < number)
                at++;
        if (h->n_devices == DEVICE_HOLDER_DEVICES_MAX ||
            (at < h->n_devices && h->devices[at] == number))
                return;
        memmove(h->devices + at + 1, h->devices + at, (h->n_devices - at) * sizeof h->devices[0]);
        h->devices[at] = number;
        h->n_devices++;
}

static int outcome_of_list(int r) {
        switch (r) {
        case -ESRCH:
        case -ENOENT:
                return PROCFS_E_GONE;
        case -EACCES:
        case -EPERM:
                return PROCFS_E_HIDDEN;
        default:
                return r;
        }
}

int device_holders_inspect(const CollectRequest *request, const Proc *p, DeviceHolder *h) {
        _cleanup_(procfs_numbers_done) ProcNumbers fds = { 0 };
        size_t n_hidden = 0;
        int r = procfs_list(p->dir_fd, "fd", DEVICE_HOLDER_FDS_MAX, &fds);

        if (r < 0)
                return outcome_of_list(r);
        for (size_t i = 0; i < fds.n; i++) {
                char name[32], target[PROCFS_LINK_SIZE];
                (void)snprintf(name, sizeof name, "fd/%d", fds.items[i]);
                ssize_t size = readlinkat(p->dir_fd, name, target, sizeof target - 1);
                if (size < 0) { /* it was closed since, or is hidden */
                        n_hidden += errno == EACCES || errno == EPERM;
                        continue;
                }
                target[size] = '\0';
                int number = device_of_link(request, target);
                if (number < 0)
                        continue;
                int found = number_of_device(request->device_directory, p->dir_fd, name, number);
                if (found == -ENODEV)
                        continue;
                h->is_write_only =
                        (h->n_devices == 0 || h->is_write_only) && is_write_only(p, fds.items[i]);
                h->is_by_name |= found < 0;
                holder_add_device(h, found >= 0 ? found : number);
        }
        return fds.n > 0 && n_hidden == fds.n ? PROCFS_E_HIDDEN : 0;
}

/* The first field of statm is the size in pages. When in doubt a process may hold it. */
static bool may_hold_runtime(const Proc *p) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        uint64_t pages, bytes;

        if (procfs_read(p, (ProcFile){ "statm", STATM_BYTES_MAX }, &b, NULL) != 0 || !b.text)
                return true;
        b.text[strcspn(b.text, " \n")] = '\0';
        if (parse_u64(b.text, &pages) < 0 ||
            __builtin_mul_overflow(pages, (uint64_t)sysconf(_SC_PAGESIZE), &bytes))
                return true;
        return bytes >= RUNTIME_BYTES_MIN;
}

bool device_holders_maps_runtime(const Proc *p, bool *ret_hidden) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = procfs_read(p, (ProcFile){ "maps", MAPS_BYTES_MAX }, &b, NULL);

        *ret_hidden = r < 0 || r == PROCFS_E_HIDDEN;
        if (r != 0 || !b.text)
                return false;
        for (const char *at = b.text;
             (at = memmem(at, b.n - (size_t)(at - b.text), "/libnrt.so", 10)); at++) {
                const char *start = memrchr(b.text, '\n', (size_t)(at - b.text));
                ProcMap m;
                start = start ? start + 1 : b.text;
                if (procfs_parse_map(start, strcspn(start, "\n"), &m) && m.n_path > 0 &&
                    memrchr(m.path, '/', m.n_path) == at)
                        return true;
        }
        return false;
}

/* A scan under way. */
typedef struct ScanRun {
        const CollectRequest *request;
        DeviceHoldersMode mode;
        DeviceHolders *found;
} ScanRun;

static bool inspect_process(const ScanRun *scan, const Proc *p, DeviceHolder *h) {
        if (p->stat.flags & PROCFS_FLAG_KTHREAD || procfs_is_zombie(p))
                return false;
        bool is_hidden; /* such a process counts as one that does not map it */
        if (scan->mode == DEVICE_HOLDERS_BY_MAPS)
                h->maps_runtime = may_hold_runtime(p) && device_holders_maps_runtime(p, &is_hidden);
        else if (device_holders_inspect(scan->request, p, h) == PROCFS_E_HIDDEN)
                scan->found->n_hidden++;
        return (h->n_devices > 0 || h->maps_runtime) && procfs_check(p) == 0;
}

static int scan_process(const ScanRun *scan, pid_t pid) {
        DeviceHolders *s = scan->found;
        DeviceHolder h = { 0 };
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        int r = procfs_open(&p, scan->request->proc_root, pid, 0);

        if (r != 0) {
                s->n_hidden += r == PROCFS_E_HIDDEN;
                return r == -ENOMEM ? r : 0; /* it has ended since */
        }
        s->n_processes++;
        h.stat = p.stat;
        h.uid = p.uid;
        if (inspect_process(scan, &p, &h)) {
                if (s->n_holders < DEVICE_HOLDERS_MAX)
                        s->holders[s->n_holders++] = h;
                else
                        s->is_cut = true;
        }
        return 0;
}

int device_holders_scan(const CollectRequest *request, DeviceHoldersMode mode, DeviceHolders *ret) {
        _cleanup_(device_holders_done) DeviceHolders s = { 0 };
        _cleanup_(procfs_numbers_done) ProcNumbers pids = { 0 };
        int r = procfs_list(AT_FDCWD, request->proc_root, PROCFS_PIDS_MAX, &pids);

        if (r < 0)
                return r;
        s.holders = calloc(DEVICE_HOLDERS_MAX, sizeof *s.holders);
        if (!s.holders)
                return -ENOMEM;
        for (size_t i = 0; i < pids.n; i++) {
                r = scan_process(&(ScanRun){ request, mode, &s }, pids.items[i]);
                if (r < 0)
                        return r;
        }
        *ret = s;
        s.holders = NULL;
        return 0;
}

void device_holders_done(DeviceHolders *s) {
        free(s->holders);
        *s = (DeviceHolders){ 0 };
}

void device_holders_add_devices(StrBuf *b, const DeviceHolder *h) {
        json_out_array(b, "devices");
        for (size_t i = 0; i < h->n_devices; i++)
                json_out_u64(b, NULL, (uint64_t)h->devices[i]);
        json_out_end_array(b);
}
