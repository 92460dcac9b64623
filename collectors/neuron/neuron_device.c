/* The collector neuron_device: what the driver answers about each device.
 *
 * It runs three rounds of parts, each part in a process of its own, because sysfs, procfs and the
 * driver may all hang. The first examines the surroundings: the driver's version, and whether a
 * device may be opened (device_access.c). The second opens and queries each device
 * (device_queries.c), the third queries the first device that has answered for what concerns the
 * whole node. A part notes in shared memory what it waits for; when it is killed, the record of its
 * device says so. This process never opens a device. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "collectors/neuron/device_access.h"
#include "collectors/neuron/device_queries.h"
#include "collectors/neuron/neuron_ioctl.h"
#include "collectors/neuron/neuron_names.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

enum { WHY_SIZE = 240, SHARE_BYTES_MIN = 32 << 10, VERSION_BYTES_MAX = 64 };

/* Memory that the parts write to. */
typedef struct DeviceShared {
        bool is_known;              /* the surroundings were examined */
        bool needs_holder;          /* an UltraServer: device_access.c */
        char skip_reason[WHY_SIZE]; /* why no device is opened; "": they are */
        char version[VERSION_BYTES_MAX];
        DeviceProgress progress[NEURON_DEVICES_MAX];
} DeviceShared;

typedef struct DeviceCollection {
        const CollectRequest *request;
        CollectOut *out;
        DeviceShared *shared;
        NeuronNames names;
        PoolTask tasks[NEURON_DEVICES_MAX]; /* one for each name */
        size_t share_bytes;
        NeuronVersion driver;
        uint64_t end_usec;
} DeviceCollection;

/* ---- the surroundings ---- */

static int check_surroundings(const PoolTask *task, int fd, void *userdata) {
        const DeviceCollection *c = userdata;
        DeviceShared *shared = c->shared;
        _cleanup_free_ char *path = path_join(c->request->sysfs_root, "module/neuron/version"),
                            *text = NULL;
        const char *why;

        (void)task, (void)fd;
        if (!path)
                return -ENOMEM;
        if (fs_read_file(AT_FDCWD, path, VERSION_BYTES_MAX - 1, &text, NULL) == 0)
                (void)snprintf(shared->version, sizeof shared->version, "%s", text);
        if (device_access_is_ultraserver(c->request->sysfs_root, &why)) {
                DeviceHeld held = device_access_find_holder(c->request);
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
        const DeviceCollection *c = userdata;

        (void)task;
        if (result < 0 || !c->shared->is_known)
                (void)snprintf(c->shared->skip_reason, sizeof c->shared->skip_reason,
                               "sysfs and procfs did not answer, so that whether a device may be "
                               "opened is unknown");
        return 0;
}

/* ---- one device ---- */

static int open_device(const DeviceCollection *c, DeviceQuery *a) {
        static const char query[] = "open";
        int r;

        (void)snprintf(a->progress->pending_query, sizeof a->progress->pending_query, "%s", query);
        if (c->shared->needs_holder && device_access_find_holder(c->request) != DEVICE_HELD)
                r = -ECANCELED; /* the last user has gone since the surroundings were examined */
        else
                r = neuron_ioctl_open(&a->device, c->request->device_directory, a->name);
        a->progress->pending_query[0] = '\0';
        if (r < 0)
                device_queries_error(a, query, r);
        return r;
}

static int run_queries(const DeviceCollection *c, const PoolTask *task, int fd,
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
        neuron_ioctl_close(&a.device);
        return a.error;
}

static int run_device(const PoolTask *task, int fd, void *userdata) {
        return run_queries(userdata, task, fd, device_queries_device);
}

static int run_node(const PoolTask *task, int fd, void *userdata) {
        return run_queries(userdata, task, fd, device_queries_node);
}

/* ---- in the collector ---- */

static int emit(CollectOut *out, StrBuf *b) {
        int r = collect_emit_fitting(out, b);

        strbuf_done(b);
        return r;
}

/* The capabilities of the collector host only let it read, and O_WRONLY needs the permission to
 * write. @param text  the remedy is appended to it */
static void add_remedy(const DeviceCollection *c, const char *name, char *text, size_t size) {
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

static void add_detail(const DeviceCollection *c, const PoolTask *task, StrBuf *b, int result) {
        const DeviceProgress *p = &c->shared->progress[task - c->tasks];
        char pending_query[DEVICE_QUERY_SIZE] = { 0 }, text[sizeof c->out->why];

        memcpy(pending_query, p->pending_query,
               sizeof pending_query - 1); /* NUL-terminated, whatever the part has written */
        if (result == 0)
                return;
        if (result == -ETIMEDOUT && pending_query[0])
                (void)snprintf(text, sizeof text, "no answer to '%s'", pending_query);
        else if (result == -ETIMEDOUT)
                (void)snprintf(text, sizeof text, "it did not end in time");
        else if (result == -EPIPE)
                (void)snprintf(text, sizeof text, "the process that requested it crashed at '%s'",
                               pending_query);
        else
                neuron_ioctl_error(text, sizeof text, result);
        if (result == -EACCES) {
                add_remedy(c, task->name, text, sizeof text);
                (void)snprintf(c->out->why, sizeof c->out->why, "%s",
                               text); /* for the section, too */
        }
        json_out_string(b, "detail", text);
}

static int emit_end(const DeviceCollection *c, const PoolTask *task, int result, bool is_node) {
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

static int emit_text(const DeviceCollection *c, const char *key, const char *text) {
        StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, key, text);
        json_out_end_object(&b);
        return emit(c->out, &b);
}

static int emit_skipped(const DeviceCollection *c) {
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

static ChildPool pool_of(DeviceCollection *c, uint64_t timeout_usec) {
        uint64_t now = clock_boottime_usec(),
                 remaining_usec = c->end_usec > now ? c->end_usec - now : 0;

        return (ChildPool){
                .out = c->out,
                .userdata = c,
                .max_at_once = NEURON_DEVICES_MAX, /* a device that hangs delays no other */
                .timeout_usec = MIN(timeout_usec, remaining_usec),
                .max_line_bytes = DEVICE_LINE_BYTES_MAX,
                .max_bytes_each = c->share_bytes,
        };
}

static int query_devices(DeviceCollection *c) {
        uint64_t timeout_usec = c->request->timeout_usec;
        ChildPool pool = pool_of(c, timeout_usec - timeout_usec / 4);
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
        pool = pool_of(c, timeout_usec);
        pool.run = run_node;
        pool.on_end = on_node_end;
        return child_pool_run(&pool, first, 1);
}

static int collect_devices(DeviceCollection *c) {
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
        (void)neuron_version_parse(c->shared->version, &c->driver); /* unknown: zero */
        return query_devices(c);
}

int collect_neuron_device(const CollectRequest *request, CollectOut *out) {
        _cleanup_free_ DeviceCollection *c = calloc(1, sizeof *c);

        if (!c)
                return -ENOMEM;
        /* The parts are killed before the supervisor kills this process, so that the record of each
         * device that hangs says so. */
        *c = (DeviceCollection){ .request = request,
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
