/* The collector neuron_sysfs: what the driver shows of itself, of the machine and of each device.
 *
 * Each device is walked (sysfs_walk.c) by a part, a process of its own, because a file of a sick
 * device may hang; another part reads the attributes of driver, machine and class. Parts write
 * records, and note their progress and a summary in shared memory. When a part has ended or was
 * killed, the collector writes the last record of its device from that memory: the state, the file
 * that it hung on, and the summary. No library: the hook runs this collector itself. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collectors/neuron/neuron_names.h"
#include "collectors/neuron/sysfs_value.h"
#include "collectors/neuron/sysfs_walk.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

enum {
        PARAMETERS_MAX = 64,
        PARTS_MAX = NEURON_DEVICES_MAX + 1, /* the first: driver, machine, class attributes */
        SHARE_BYTES_MIN = 32 << 10,
};

static const char devices_path[] = "devices/virtual/neuron_device";

/* Memory that the parts write to. */
typedef struct SysfsShared {
        _Atomic uint32_t n_files_all;
        SysfsProgress progress[PARTS_MAX];
} SysfsShared;

typedef struct SysfsCollection {
        const CollectRequest *request;
        CollectOut *out;
        SysfsShared *shared;
        NeuronNames names;
        PoolTask tasks[PARTS_MAX];
        size_t n_tasks, share_bytes;
} SysfsCollection;

/* ---- in a part ---- */

static int open_below(const SysfsCollection *c, const char *name) {
        _cleanup_free_ char *path = path_join(c->request->sysfs_root, name);

        if (!path)
                return -ENOMEM;
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* A directory whose files are read one by one. */
typedef struct SysfsAttributes {
        int dir_fd;
        SysfsProgress *progress;
} SysfsAttributes;

/* Adds the content of a file; null: it cannot be read. */
static void add_file(StrBuf *b, const SysfsAttributes *from, const char *name, const char *key) {
        SysfsProgress *progress = from->progress;
        SysfsValue value;

        (void)snprintf(progress->reading, sizeof progress->reading, "%s", name);
        int r = sysfs_value_read(from->dir_fd, name, &value);
        progress->reading[0] = '\0';
        if (r < 0)
                json_out_null(b, key);
        else
                sysfs_value_add(b, key, value.data, value.n);
}

static void add_parameters(StrBuf *b, SysfsProgress *progress, int module_fd) {
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *entry;

        (void)fs_opendir_at(module_fd, "parameters", &dir); /* absent: the object stays empty */
        json_out_object(b, "parameters");
        for (size_t n = 0; dir && n < PARAMETERS_MAX && (entry = readdir(dir)); n++)
                if (entry->d_type == DT_REG)
                        add_file(b, &(SysfsAttributes){ dirfd(dir), progress }, entry->d_name,
                                 entry->d_name);
        json_out_end_object(b);
}

static int end_record(StrBuf *b, int fd) {
        json_out_end_object(b);
        json_out_end_object(b);
        int r = collect_write_line(fd, b);
        strbuf_done(b);
        return r;
}

static int write_driver(const SysfsCollection *c, int fd, SysfsProgress *progress) {
        _cleanup_close_ int module_fd = open_below(c, "module/neuron");
        StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        if (module_fd < 0) {
                json_out_object(&b, "driver");
                json_out_string(&b, "error", "no module 'neuron' is loaded");
                return end_record(&b, fd);
        }
        json_out_object(&b, "driver");
        add_file(&b, &(SysfsAttributes){ module_fd, progress }, "version", "version");
        add_parameters(&b, progress, module_fd);
        return end_record(&b, fd);
}

/* The driver learns the type of the instance from the same files. */
static int write_machine(const SysfsCollection *c, int fd, SysfsProgress *progress) {
        _cleanup_close_ int dmi_fd = open_below(c, "devices/virtual/dmi/id");
        const SysfsAttributes dmi = { dmi_fd, progress };
        StrBuf b = STRBUF_INIT;

        if (dmi_fd < 0)
                return 0;
        json_out_object(&b, NULL);
        json_out_object(&b, "machine");
        add_file(&b, &dmi, "board_asset_tag", "instance_id");
        add_file(&b, &dmi, "product_name", "instance_type");
        return end_record(&b, fd);
}

static int walk_below(const SysfsCollection *c, const char *path, const SysfsWalk *walk) {
        _cleanup_close_ int dir_fd = open_below(c, path);

        return dir_fd < 0 ? dir_fd : sysfs_walk(walk, dir_fd, c->share_bytes);
}

static int run_part(const PoolTask *task, int fd, void *userdata) {
        const SysfsCollection *c = userdata;
        size_t i = (size_t)(task - c->tasks);
        SysfsProgress *progress = &c->shared->progress[i];
        char path[sizeof devices_path + sizeof "/neuron63"];
        SysfsWalk walk = { .device = i > 0 ? task->name : "class",
                           .progress = progress,
                           .n_files_all = &c->shared->n_files_all,
                           .is_flat = i == 0, /* only the attributes of the class */
                           .out_fd = fd };

        if (i > 0) {
                (void)snprintf(path, sizeof path, "%s/%s", devices_path, task->name);
                return walk_below(c, path, &walk);
        }
        int r = write_driver(c, fd, progress);
        if (r >= 0)
                r = write_machine(c, fd, progress);
        if (r >= 0)
                r = walk_below(c, "class/neuron_device", &walk);
        return r == -ENOENT ? 0 : r;
}

/* ---- in the collector ---- */

static void add_result(StrBuf *b, const SysfsProgress *p, int result) {
        char reading[SYSFS_PATH_MAX] = { 0 }, cut[SYSFS_TEXT_MAX] = { 0 };
        const char *name = strerrorname_np(-result), *text = strerrordesc_np(-result);
        StrBuf detail = STRBUF_INIT;

        memcpy(reading, p->reading,
               sizeof reading - 1); /* NUL-terminated, whatever the part has written */
        memcpy(cut, p->cut, sizeof cut - 1);
        if (result == -ETIMEDOUT && reading[0])
                strbuf_addf(&detail, "reading '%s' did not return", reading);
        else if (result == -ETIMEDOUT)
                strbuf_add(&detail, "it did not end in time");
        else if (result == -EPIPE)
                strbuf_add(&detail, "the process that read it crashed");
        else if (result == -EFBIG)
                strbuf_add(&detail, "it has more than its share of snapshot.probe_bytes");
        else if (result < 0)
                strbuf_addf(&detail, "%s: %s", name ? name : "error", text ? text : "unknown");
        else
                strbuf_add(&detail, cut);
        json_out_string(b, "state", result == 0 && cut[0] ? "cut" : child_pool_state_name(result));
        if (detail.n > 0)
                json_out_text(b, "detail", detail.text, detail.n);
        strbuf_done(&detail);
}

/* Writes the last record of a device. The first part has one only when it failed. */
static int on_end(const PoolTask *task, int result, void *userdata) {
        const SysfsCollection *c = userdata;
        size_t i = (size_t)(task - c->tasks);
        const SysfsProgress *p = &c->shared->progress[i];
        StrBuf b = STRBUF_INIT;

        if (i == 0 && result == 0)
                return 0;
        json_out_object(&b, NULL);
        json_out_string(&b, i == 0 ? "part" : "device", task->name);
        add_result(&b, p, result);
        if (i > 0) {
                json_out_u64(&b, "files", p->n_files);
                json_out_u64(&b, "unreadable", p->n_errors);
                sysfs_summary_add(&b, &p->summary);
        }
        json_out_end_object(&b);
        int r = collect_emit_fitting(c->out, &b);
        strbuf_done(&b);
        return r;
}

/* @return 0, also without any device; -errno: they could not be listed */
static int add_tasks(SysfsCollection *c) {
        _cleanup_free_ char *path = path_join(c->request->sysfs_root, devices_path);
        int r = path ? neuron_names_list(path, true, &c->names) : -ENOMEM;

        c->tasks[c->n_tasks++].name = "node";
        for (size_t i = 0; i < c->names.n; i++)
                c->tasks[c->n_tasks++].name = c->names.items[i];
        return r;
}

static int emit_no_devices(const SysfsCollection *c, int error) {
        StrBuf b = STRBUF_INIT, text = STRBUF_INIT;

        strbuf_addf(&text, "no device in '%s/%s'%s%s", c->request->sysfs_root, devices_path,
                    error ? ": " : "", error ? strerrordesc_np(error) : "");
        json_out_object(&b, NULL);
        json_out_string(&b, "error", text.text);
        json_out_end_object(&b);
        int r = collect_emit_fitting(c->out, &b);
        strbuf_done(&b);
        strbuf_done(&text);
        return r;
}

static int run_all(SysfsCollection *c) {
        const CollectRequest *request = c->request;
        /* The parts are killed before the supervisor kills this process, so that the record of each
         * device that hangs says so. */
        uint64_t margin_usec = MAX(request->timeout_usec / 10, 20 * USEC_PER_MSEC);
        ChildPool pool = {
                .run = run_part,
                .out = c->out,
                .on_end = on_end,
                .userdata = c,
                .max_at_once = PARTS_MAX, /* a device that hangs delays no other */
                .timeout_usec = request->timeout_usec - MIN(margin_usec, request->timeout_usec / 2),
                .max_line_bytes = SYSFS_LINE_BYTES_MAX,
        };
        int r, error = -add_tasks(c);

        if (error == ENOMEM)
                return -ENOMEM;
        c->share_bytes = MAX(request->max_bytes / c->n_tasks, (uint64_t)SHARE_BYTES_MIN);
        pool.max_bytes_each = c->share_bytes + SYSFS_LINE_BYTES_MAX;
        r = c->n_tasks > 1 ? 0 : emit_no_devices(c, error);
        return r < 0 ? r : child_pool_run(&pool, c->tasks, c->n_tasks);
}

int collect_neuron_sysfs(const CollectRequest *request, CollectOut *out) {
        _cleanup_free_ SysfsCollection *c = calloc(1, sizeof *c);

        if (!c)
                return -ENOMEM;
        *c = (SysfsCollection){ .request = request, .out = out };
        c->shared = mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (c->shared == MAP_FAILED)
                return -errno;
        int r = run_all(c);
        (void)munmap(c->shared, sizeof *c->shared); /* cannot fail for a mapping of ours */
        return r;
}
