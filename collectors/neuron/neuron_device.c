/* The collector neuron_device: which devices there are, whether they may be opened, and what each
 * is queried for, each in a part of its own, which alone has it open and never forks. Three rounds
 * of parts: the surroundings (sysfs may hang, too), the devices, and what is queried once a node,
 * of the first device that answered. This is the only file that opens Neuron devices or sends them
 * commands: what stands in its table, each only to drivers that have it, and to devices that are
 * open O_WRONLY only. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/host/jobs.h"
#include "collectors/host/procfs.h"
#include "collectors/neuron/neuron_abi.h"
#include "collectors/neuron/neuron_names.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

/* ---- opening devices and sending commands ---- */

typedef struct NeuronVersion {
        unsigned part[3]; /* 2.30.2.0 is 2, 30, 2; all 0 = not known */
} NeuronVersion;

typedef struct NeuronDevice {
        int fd;
        NeuronVersion driver;
} NeuronDevice;

typedef struct Command {
        uint32_t number;
        NeuronVersion since; /* 0 = of old */
} Command;

/* Only commands that change nothing and need no attach: classes F and R only. */
/* clang-format off */
static const Command commands[] = {
        { NEURON_COMPATIBLE_VERSION,        { { 0, 0, 0 } } },
        { NEURON_DEVICE_BASIC_INFO,         { { 2, 1, 5 } } },
        { NEURON_DEVICE_BDF_EXT,            { { 2, 9, 4 } } },
        { NEURON_DRIVER_INFO_GET,           { { 2, 12, 11 } } },
        { NEURON_HOST_DEVICE_ID_TO_RID_MAP, { { 2, 16, 7 } } },
        { NEURON_LOGICAL_TO_PHYSICAL,       { { 2, 19, 64 } } },
        { NEURON_POD_INFO,                  { { 2, 19, 64 } } },
        { NEURON_POD_STATUS,                { { 2, 19, 64 } } },
        { NEURON_POD_STATUS_V2,             { { 2, 23, 9 } } },
};
/* clang-format on */

/* @return whether text begins with N.N.N; then *ret */
static bool neuron_version_parse(const char *text, NeuronVersion *ret) {
        NeuronVersion v;

        if (sscanf(text, "%4u.%4u.%4u", &v.part[0], &v.part[1], &v.part[2]) != 3)
                return false;
        *ret = v;
        return true;
}

static int neuron_version_compare(const NeuronVersion *a, const NeuronVersion *b) {
        for (size_t i = 0; i < ELEMENTSOF(a->part); i++)
                if (a->part[i] != b->part[i])
                        return a->part[i] < b->part[i] ? -1 : 1;
        return 0;
}

static bool version_is_known(const NeuronVersion *v) {
        return neuron_version_compare(v, &(NeuronVersion){ { 0, 0, 0 } }) != 0;
}

/* Opens a device O_WRONLY, which takes none of its process slots. A regular file stands in for one
 * in tests. */
static int neuron_open(NeuronDevice *d, const char *directory, const char *name) {
        _cleanup_close_ int dir_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct stat st;

        if (dir_fd < 0)
                return -errno;
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (S_ISLNK(st.st_mode))
                return -ELOOP;
        if (!S_ISCHR(st.st_mode) && !S_ISREG(st.st_mode))
                return -EINVAL;
        int fd = openat(dir_fd, name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return -errno;
        d->fd = fd;
        return 0;
}

static void neuron_close(NeuronDevice *d) {
        if (d->fd >= 0)
                (void)close(d->fd); /* nothing was written through it */
        d->fd = -1;
}

static const Command *command_find(uint32_t number) {
        for (size_t i = 0; i < ELEMENTSOF(commands); i++)
                if (commands[i].number == number)
                        return &commands[i];
        return NULL;
}

/* @param argument  its structure of neuron_abi.h
 * @return 0; -EPERM not in the table; -EOPNOTSUPP not in this driver yet: neither was sent; -errno;
 * a positive number that the driver returned, which is a failure too: before 2.29 it says how much
 * could not be copied */
static int neuron_ioctl(NeuronDevice *d, uint32_t command, void *argument) {
        const Command *c = command_find(command);

        if (!c)
                return -EPERM;
        if (version_is_known(&d->driver) && neuron_version_compare(&d->driver, &c->since) < 0)
                return -EOPNOTSUPP;
        int r = ioctl(d->fd, (unsigned long)command, argument);
        return r < 0 ? -errno : r;
}

static void neuron_ioctl_error(char *text, size_t size, int r) {
        const char *name = strerrorname_np(-r), *description = strerrordesc_np(-r);

        if (r > 0)
                (void)snprintf(text, size, "the driver returned %d, an unexpected value", r);
        else if (r == -EOPNOTSUPP)
                (void)snprintf(text, size, "not requested: this driver does not have it");
        else if (r == -ECANCELED)
                (void)snprintf(text, size,
                               "not opened: no process uses a device any more, and "
                               "opening one could reset the server's election");
        else
                (void)snprintf(text, size, "%s: %s", name ? name : "error",
                               description ? description : "unknown");
}

/* ---- what a device is queried for ---- */

enum {
        DEVICE_QUERY_SIZE = 64,
        DEVICE_LINE_BYTES_MAX = 64 << 10,
};

/** Shared with the collector, so that it can report what a part hung on. */
typedef struct DeviceProgress {
        char pending_query[DEVICE_QUERY_SIZE]; /* "" when no answer is waited for */
        bool is_done;
} DeviceProgress;

/** One device in its part. */
typedef struct DeviceQuery {
        const char *name; /* neuron3 */
        unsigned number;
        NeuronDevice device;
        DeviceProgress *progress;
        int out_fd;
        int error; /* the first failure of writing a record: nothing more is queried then */
} DeviceQuery;

typedef enum DeviceHeld { DEVICE_NOT_HELD, DEVICE_HELD, DEVICE_HELD_UNKNOWN } DeviceHeld;

enum { SMALL_FILE_MAX = 4096 };

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

static bool device_is_ultraserver(const char *sysfs_root, const char **ret_why) {
        /* Types of instances that the driver has as parts of larger servers: the driver's sources
         */
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

/* Cores are marked by the runtime: who holds a device without it, as a monitor does, does not keep
 * the server's election. */
static DeviceHeld device_is_held(const CollectRequest *request) {
        _cleanup_(jobs_scan_done) JobsScan scan = { 0 };
        if (jobs_scan(request, JOBS_BY_DEVICES, &scan) < 0)
                return DEVICE_HELD_UNKNOWN;
        bool is_incomplete = scan.is_cut || scan.n_hidden > 0;
        for (size_t i = 0; i < scan.n_holders; i++) {
                const JobsHolder *h = &scan.holders[i];
                bool is_hidden = false, has_runtime = false;
                _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
                if (h->is_write_only)
                        continue;
                int r = procfs_open(&p, request->proc_root, h->stat.pid, h->stat.start_ticks);
                if (r == 0)
                        has_runtime = jobs_maps_runtime(&p, &is_hidden);
                if (has_runtime && !h->is_by_name)
                        return DEVICE_HELD;
                is_incomplete |= has_runtime || is_hidden || r < 0 || r == PROCFS_E_HIDDEN;
        }
        return is_incomplete ? DEVICE_HELD_UNKNOWN : DEVICE_NOT_HELD;
}

static int send_query(DeviceQuery *a, const char *query, uint32_t command, void *argument) {
        if (a->error < 0)
                return -ECANCELED;
        (void)snprintf(a->progress->pending_query, sizeof a->progress->pending_query, "%s", query);
        int r = neuron_ioctl(&a->device, command, argument);
        a->progress->pending_query[0] = '\0';
        return r;
}

static void write_record(DeviceQuery *a, StrBuf *b) {
        int r = collect_write_line(a->out_fd, b);

        if (r < 0 && a->error == 0)
                a->error = r;
        strbuf_done(b);
}

static void device_end(DeviceQuery *a, StrBuf *b) {
        json_out_end_object(b);
        json_out_end_object(b);
        write_record(a, b);
}

static void write_error(DeviceQuery *a, const char *query, int r) {
        StrBuf b = STRBUF_INIT;
        char text[128];

        if (a->error < 0)
                return;
        neuron_ioctl_error(text, sizeof text, r);
        json_out_object(&b, NULL);
        json_out_string(&b, "device", a->name);
        json_out_string(&b, "query", query);
        json_out_string(&b, "error", text);
        json_out_end_object(&b);
        write_record(a, &b);
}

/* @return whether it was answered: then the record waits for values and device_end() */
static bool device_begin(DeviceQuery *a, StrBuf *b, const char *query, int result) {
        if (result != 0) {
                write_error(a, query, result);
                return false;
        }
        json_out_object(b, NULL);
        json_out_string(b, "device", a->name);
        json_out_string(b, "query", query);
        json_out_object(b, "values");
        return true;
}

static bool query_begin(DeviceQuery *a, StrBuf *b, const char *query, uint32_t command,
                        void *argument) {
        return device_begin(a, b, query, send_query(a, query, command, argument));
}

static void query_basic_info(DeviceQuery *a) {
        NeuronBasicInfo info = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!query_begin(a, &b, "device_basic_info", NEURON_DEVICE_BASIC_INFO, &info))
                return;
        json_out_u64(&b, "architecture", info.architecture);
        json_out_u64(&b, "revision", info.revision);
        device_end(a, &b);
}

static void query_bdf(DeviceQuery *a) {
        NeuronBdfExt bdf = { .nd_index = a->number };
        StrBuf b = STRBUF_INIT;
        char text[32];

        if (!query_begin(a, &b, "device_bdf_ext", NEURON_DEVICE_BDF_EXT, &bdf))
                return;
        (void)snprintf(text, sizeof text, "%04x:%02x:%02x.%x", bdf.domain, bdf.bus, bdf.slot,
                       bdf.function);
        json_out_string(&b, "pci_address", text);
        device_end(a, &b);
}

static void query_device(DeviceQuery *a) {
        query_basic_info(a);
        query_bdf(a);
}

/* ---- once a node ---- */

static void query_compatible_version(DeviceQuery *a) {
        NeuronCompatibleVersion version = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!query_begin(a, &b, "compatible_version", NEURON_COMPATIBLE_VERSION, &version))
                return;
        json_out_u64(&b, "min", version.min);
        json_out_u64(&b, "max", version.max);
        device_end(a, &b);
}

static void query_driver_info(DeviceQuery *a) {
        static const char *const features[] = {
                "DMABUF",         "ASYNC_DMA", "BATCH_DMAQ_INIT", "BIG_CORE_MAPS",
                "MEM_ALLOC_TYPE", "HBM_SCRUB", "MEM_ALLOC64",     "CONTIGUOUS_SCRATCHPAD",
                "ZEROCOPY",
        };
        /* Which version to request is not documented; the first one is the guess that an old and a
         * new driver both know. */
        NeuronDriverInfo info = { .version = 0, .size = sizeof info };
        StrBuf b = STRBUF_INIT;

        if (!query_begin(a, &b, "driver_info", NEURON_DRIVER_INFO_GET, &info))
                return;
        json_out_u64(&b, "architecture", info.architecture);
        json_out_u64(&b, "revision", info.revision);
        json_out_u64(&b, "version", info.version);
        json_out_u64(&b, "feature_flags", info.feature_flags);
        json_out_array(&b, "features");
        for (size_t i = 0; i < ELEMENTSOF(features); i++)
                if (info.feature_flags >> i & 1)
                        json_out_string(&b, NULL, features[i]);
        json_out_end_array(&b);
        device_end(a, &b);
}

static void query_rid_map(DeviceQuery *a) {
        NeuronRidMap map = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!query_begin(a, &b, "host_device_id_to_rid_map", NEURON_HOST_DEVICE_ID_TO_RID_MAP,
                         &map))
                return;
        json_out_u64(&b, "count", map.count);
        json_out_array(&b, "rids");
        for (uint32_t i = 0; i < MIN(map.count, (uint32_t)NEURON_RIDS_MAX); i++)
                json_out_u64(&b, NULL, map.rid[i]);
        json_out_end_array(&b);
        device_end(a, &b);
}

static void query_core_map(DeviceQuery *a) {
        NeuronCoreMap map = { 0 };
        NeuronCoreMapRequest request = { .map = &map, .max_entries = NEURON_CORE_MAP_MAX };
        StrBuf b = STRBUF_INIT;

        if (!query_begin(a, &b, "logical_to_physical_nc_map", NEURON_LOGICAL_TO_PHYSICAL, &request))
                return;
        json_out_u64(&b, "count", map.n_entries);
        json_out_array(&b, "device_and_core");
        for (uint32_t i = 0; i < MIN(map.n_entries, (uint32_t)NEURON_CORE_MAP_MAX); i++) {
                json_out_array(&b, NULL);
                json_out_u64(&b, NULL, map.entries[i].device_id);
                json_out_u64(&b, NULL, map.entries[i].core);
                json_out_end_array(&b);
        }
        json_out_end_array(&b);
        device_end(a, &b);
}

/* Whether it is text is not documented; hex is right for both. */
static void add_pod_id(StrBuf *b, const uint8_t id[static 256]) {
        char hex[2 * 256 + 1];
        size_t n = 256;

        while (n > 0 && id[n - 1] == 0)
                n--;
        json_out_string(b, "pod_id_hex", digest_hex(id, n, hex));
}

static void query_pod_info(DeviceQuery *a) {
        NeuronPodInfo info = { .size = sizeof info };
        StrBuf b = STRBUF_INIT;

        if (!query_begin(a, &b, "pod_info", NEURON_POD_INFO, &info))
                return;
        json_out_u64(&b, "pod_type", info.type);
        json_out_u64(&b, "pod_size", info.n_nodes);
        add_pod_id(&b, info.id);
        device_end(a, &b);
}

static void query_pod_status(DeviceQuery *a) {
        NeuronPodStatus status = { .size = sizeof status };
        int r = send_query(a, "pod_status_v2", NEURON_POD_STATUS_V2, &status);
        bool has_mode = r == 0;
        StrBuf b = STRBUF_INIT;

        if (!has_mode) {
                status = (NeuronPodStatus){ .size = NEURON_POD_STATUS_V1_SIZE };
                r = send_query(a, "pod_status", NEURON_POD_STATUS, &status);
        }
        if (!device_begin(a, &b, "pod_status", r))
                return;
        json_out_u64(&b, "state", status.state);
        json_out_u64(&b, "pod_type", status.type);
        json_out_u64(&b, "pod_size", status.n_nodes);
        json_out_i64(&b, "node_id", status.node_id);
        add_pod_id(&b, status.id);
        if (has_mode) {
                json_out_u64(&b, "mode", status.mode);
                json_out_u64(&b, "modes_supported", status.modes_supported);
        }
        device_end(a, &b);
}

static void query_node(DeviceQuery *a) {
        query_compatible_version(a);
        query_driver_info(a);
        query_rid_map(a);
        query_core_map(a);
        query_pod_info(a);
        query_pod_status(a);
}

enum { WHY_SIZE = 240, SHARE_BYTES_MIN = 32 << 10, VERSION_BYTES_MAX = 64 };

/* Shared with the parts. */
typedef struct Shared {
        bool is_known;              /* the surroundings were found out */
        bool needs_holder;          /* an UltraServer: opened only while somebody uses a device */
        char skip_reason[WHY_SIZE]; /* why no device is to be opened; "" when they may */
        char version[VERSION_BYTES_MAX];
        DeviceProgress progress[NEURON_DEVICES_MAX];
} Shared;

typedef struct Collection {
        const CollectRequest *request;
        CollectOut *out;
        Shared *shared;
        NeuronNames names;
        PoolTask tasks[NEURON_DEVICES_MAX]; /* one for each name */
        size_t share_bytes;
        NeuronVersion driver;
        uint64_t end_usec;
} Collection;

/* ---- the surroundings ---- */

static int check_surroundings(const PoolTask *task, int fd, void *userdata) {
        const Collection *c = userdata;
        Shared *shared = c->shared;
        _cleanup_free_ char *path = path_join(c->request->sysfs_root, "module/neuron/version"),
                            *text = NULL;
        const char *why;

        (void)task, (void)fd;
        if (!path)
                return -ENOMEM;
        if (fs_read_file(AT_FDCWD, path, VERSION_BYTES_MAX - 1, &text, NULL) == 0)
                (void)snprintf(shared->version, sizeof shared->version, "%s", text);
        if (device_is_ultraserver(c->request->sysfs_root, &why)) {
                DeviceHeld held = device_is_held(c->request);
                shared->needs_holder = true;
                if (held != DEVICE_HELD)
                        (void)snprintf(
                                shared->skip_reason, sizeof shared->skip_reason,
                                "%s, and %s: opening a device could reset the server's election",
                                why,
                                held == DEVICE_NOT_HELD ? "no process uses a device"
                                                        : "whether a process uses one is unknown");
        }
        shared->is_known = true;
        return 0;
}

static int ignore_line(const PoolTask *task, char *line, size_t n, void *userdata) {
        (void)task, (void)line, (void)n, (void)userdata;
        return 0;
}

static int on_surroundings_end(const PoolTask *task, int result, void *userdata) {
        const Collection *c = userdata;

        (void)task;
        if (result < 0 || !c->shared->is_known)
                (void)snprintf(c->shared->skip_reason, sizeof c->shared->skip_reason,
                               "sysfs and procfs did not answer, so that whether a device may be "
                               "opened is unknown");
        return 0;
}

/* ---- one device ---- */

static int open_device(const Collection *c, DeviceQuery *a) {
        static const char query[] = "open";
        int r;

        (void)snprintf(a->progress->pending_query, sizeof a->progress->pending_query, "%s", query);
        if (c->shared->needs_holder && device_is_held(c->request) != DEVICE_HELD)
                r = -ECANCELED; /* who used one has gone since the surroundings were examined */
        else
                r = neuron_open(&a->device, c->request->device_directory, a->name);
        a->progress->pending_query[0] = '\0';
        if (r < 0)
                write_error(a, query, r);
        return r;
}

static int run_queries(const Collection *c, const PoolTask *task, int fd,
                       void (*query)(DeviceQuery *a)) {
        DeviceQuery a = {
                .name = task->name,
                .number = (unsigned)neuron_names_number(task->name),
                .device = { .fd = -1, .driver = c->driver },
                .progress = &c->shared->progress[task - c->tasks],
                .out_fd = fd,
        };
        int r = open_device(c, &a);

        if (r < 0)
                return r;
        query(&a);
        a.progress->is_done = true;
        neuron_close(&a.device);
        return a.error;
}

static int run_device(const PoolTask *task, int fd, void *userdata) {
        return run_queries(userdata, task, fd, query_device);
}

static int run_node(const PoolTask *task, int fd, void *userdata) {
        return run_queries(userdata, task, fd, query_node);
}

/* ---- in the collector ---- */

static int emit(CollectOut *out, StrBuf *b) {
        int r = collect_emit_fitting(out, b);

        strbuf_done(b);
        return r;
}

/* The probe's capabilities are for reading, and O_WRONLY needs permission to write. @param text  is
 * appended to */
static void add_remedy(const Collection *c, const char *name, char *text, size_t size) {
        _cleanup_free_ char *path = path_join(c->request->device_directory, name);
        struct stat st;
        size_t n = strlen(text);

        if (!path || lstat(path, &st) < 0)
                return;
        if (st.st_mode & S_IWGRP)
                (void)snprintf(text + n, size - n,
                               ": '%s' is for its group; put 'SupplementaryGroups=%u' into a "
                               "drop-in of neuron-collectd-probe@.service",
                               path, (unsigned)st.st_gid);
        else
                (void)snprintf(text + n, size - n, ": only its owner, uid %u, may write to '%s'",
                               (unsigned)st.st_uid, path);
}

static void add_detail(const Collection *c, const PoolTask *task, StrBuf *b, int result) {
        const DeviceProgress *p = &c->shared->progress[task - c->tasks];
        char pending_query[DEVICE_QUERY_SIZE] = { 0 }, text[sizeof c->out->why];

        memcpy(pending_query, p->pending_query,
               sizeof pending_query - 1); /* ended, whatever the part did to it */
        if (result == 0)
                return;
        if (result == -ETIMEDOUT && pending_query[0])
                (void)snprintf(text, sizeof text, "no answer to '%s'", pending_query);
        else if (result == -ETIMEDOUT)
                (void)snprintf(text, sizeof text, "time was over");
        else if (result == -EPIPE)
                (void)snprintf(text, sizeof text, "the process that requested it crashed at '%s'",
                               pending_query);
        else
                neuron_ioctl_error(text, sizeof text, result);
        if (result == -EACCES) {
                add_remedy(c, task->name, text, sizeof text);
                (void)snprintf(c->out->why, sizeof c->out->why, "%s",
                               text); /* the section has it, too */
        }
        json_out_string(b, "detail", text);
}

static int emit_end(const Collection *c, const PoolTask *task, int result, bool is_node) {
        StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, is_node ? "node_asked_of" : "device", task->name);
        json_out_string(&b, "state", child_pool_state_name(result));
        add_detail(c, task, &b, result);
        json_out_end_object(&b);
        return emit(c->out, &b);
}

static int on_device_end(const PoolTask *task, int result, void *userdata) {
        return emit_end(userdata, task, result, false);
}

static int on_node_end(const PoolTask *task, int result, void *userdata) {
        return emit_end(userdata, task, result, true);
}

/* ---- all of it ---- */

static int emit_text(const Collection *c, const char *key, const char *text) {
        StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, key, text);
        json_out_end_object(&b);
        return emit(c->out, &b);
}

static int emit_skipped(const Collection *c) {
        for (size_t i = 0; i < c->names.n; i++) {
                StrBuf b = STRBUF_INIT;
                int r;

                json_out_object(&b, NULL);
                json_out_string(&b, "device", c->tasks[i].name);
                json_out_string(&b, "state", "skipped");
                json_out_string(&b, "detail", c->shared->skip_reason);
                json_out_end_object(&b);
                r = emit(c->out, &b);
                if (r < 0)
                        return r;
        }
        return 0;
}

static ChildPool pool_of(Collection *c, uint64_t timeout_usec) {
        uint64_t now = clock_boottime_usec(),
                 remaining_usec = c->end_usec > now ? c->end_usec - now : 0;

        return (ChildPool){
                .out = c->out,
                .userdata = c,
                .max_at_once = NEURON_DEVICES_MAX, /* one that hangs keeps nobody's place */
                .timeout_usec = MIN(timeout_usec, remaining_usec),
                .max_line_bytes = DEVICE_LINE_BYTES_MAX,
                .max_bytes_each = c->share_bytes,
        };
}

static int query_devices(Collection *c) {
        uint64_t patience_usec = c->request->timeout_usec;
        ChildPool pool = pool_of(c, patience_usec - patience_usec / 4);
        const PoolTask *first = NULL;

        pool.run = run_device;
        pool.on_end = on_device_end;
        int r = child_pool_run(&pool, c->tasks, c->names.n);
        if (r < 0)
                return r;
        for (size_t i = 0; i < c->names.n && !first; i++)
                if (c->shared->progress[i].is_done)
                        first = &c->tasks[i];
        if (!first)
                return 0;
        pool = pool_of(c, patience_usec);
        pool.run = run_node;
        pool.on_end = on_node_end;
        return child_pool_run(&pool, first, 1);
}

static int collect_devices(Collection *c) {
        static const PoolTask surroundings = { .name = "surroundings" };
        int r = neuron_names_list(c->request->device_directory, false, &c->names);

        if (r < 0 || c->names.n == 0)
                return emit_text(
                        c, "error",
                        r < 0 ? "the device directory cannot be listed"
                              : "there is no device neuron0 … neuron63 in the device directory");
        for (size_t i = 0; i < c->names.n; i++)
                c->tasks[i].name = c->names.items[i];
        c->share_bytes = MAX(c->request->max_bytes / c->names.n, (uint64_t)SHARE_BYTES_MIN);
        ChildPool pool = pool_of(c, c->request->timeout_usec / 4);
        pool.run = check_surroundings;
        pool.on_line = ignore_line;
        pool.on_end = on_surroundings_end;
        r = child_pool_run(&pool, &surroundings, 1);
        if (r < 0)
                return r;
        if (c->shared->skip_reason[0])
                return emit_skipped(c);
        (void)neuron_version_parse(c->shared->version, &c->driver); /* not known: zero */
        return query_devices(c);
}

int collect_neuron_device(const CollectRequest *request, CollectOut *out) {
        _cleanup_free_ Collection *c = calloc(1, sizeof *c);

        if (!c)
                return -ENOMEM;
        /* Done before the supervisor's patience ends, so that what hung is labelled device by
         * device. */
        *c = (Collection){ .request = request,
                           .out = out,
                           .end_usec = clock_boottime_usec() + request->timeout_usec -
                                       request->timeout_usec / 10 };
        c->shared = mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (c->shared == MAP_FAILED)
                return -errno;
        int r = collect_devices(c);
        (void)munmap(c->shared, sizeof *c->shared); /* cannot fail for a mapping of ours */
        return r;
}
