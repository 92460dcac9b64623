/* The collector neuron_sysfs: driver, machine and class attributes, and a walk of each device in a part of its own. What a part has found stands in
 * memory shared with it, so that the record that closes a device says what is known of it, and which file it hung on. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "collectors/neuron/neuron_names.h"
#include "collectors/neuron/neuron_sysfs.h"
#include "collectors/runner/collector.h"
#include "collectors/runner/crew.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

enum {
        PARAMETERS_MAX = 64,
        PARTS_MAX = NEURON_DEVICES_MAX +
                    1, /* the first is no device: driver, machine, class attributes */
        SHARE_BYTES_MIN = 32 << 10,
};

static const char devices_path[] = "devices/virtual/neuron_device";

/* Shared with the parts. */
typedef struct Shared {
        _Atomic uint32_t n_files_all;
        SysfsProgress progress[PARTS_MAX];
} Shared;

typedef struct Collection {
        const CollectOrder *order;
        CollectOut *out;
        Shared *shared;
        NeuronNames names;
        CrewTask tasks[PARTS_MAX];
        size_t n_tasks, share_bytes;
} Collection;

static int write_line(const char *line, size_t n, void *userdata) {
        return fs_write_all(*(const int *)userdata, line, n);
}

/* ---- in a part ---- */

static int open_below(const Collection *c, const char *name) {
        _cleanup_free_ char *path = path_join(c->order->sysfs_root, name);
        int fd;

        if (!path)
                return -ENOMEM;
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

typedef struct Attributes {
        int dir_fd;
        SysfsProgress *progress;
} Attributes;

/* Adds the content of a file, or null when there is none to be read. */
static void add_file(StrBuf *b, const Attributes *from, const char *name, const char *key) {
        SysfsProgress *progress = from->progress;
        SysfsValue value;
        int r;

        (void)snprintf(progress->reading, sizeof progress->reading, "%s", name);
        r = sysfs_read(from->dir_fd, name, &value);
        progress->reading[0] = '\0';
        if (r < 0)
                json_out_null(b, key);
        else
                sysfs_add_value(b, key, value.data, value.n);
}

static void add_parameters(StrBuf *b, SysfsProgress *progress, int module_fd) {
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *entry;

        (void)fs_opendir_at(module_fd, "parameters", &dir); /* then there are none */
        json_out_object(b, "parameters");
        for (size_t n = 0; dir && n < PARAMETERS_MAX && (entry = readdir(dir)); n++)
                if (entry->d_type == DT_REG)
                        add_file(b, &(Attributes){ dirfd(dir), progress }, entry->d_name,
                                 entry->d_name);
        json_out_end_object(b);
}

static int end_record(StrBuf *b, int fd) {
        json_out_end_object(b);
        json_out_end_object(b);
        strbuf_add(b, "\n");
        int r = strbuf_error(b);
        if (r >= 0)
                r = fs_write_all(fd, b->text, b->n);
        strbuf_done(b);
        return r;
}

static int write_driver(const Collection *c, int fd, SysfsProgress *progress) {
        _cleanup_close_ int module_fd = open_below(c, "module/neuron");
        StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        if (module_fd < 0) {
                json_out_object(&b, "driver");
                json_out_string(&b, "error", "no module 'neuron' is loaded");
                return end_record(&b, fd);
        }
        json_out_object(&b, "driver");
        add_file(&b, &(Attributes){ module_fd, progress }, "version", "version");
        add_parameters(&b, progress, module_fd);
        return end_record(&b, fd);
}

/* As the driver itself knows the instance (neuron-interfaces 3.1). */
static int write_machine(const Collection *c, int fd, SysfsProgress *progress) {
        _cleanup_close_ int dmi_fd = open_below(c, "devices/virtual/dmi/id");
        const Attributes dmi = { dmi_fd, progress };
        StrBuf b = STRBUF_INIT;

        if (dmi_fd < 0)
                return 0;
        json_out_object(&b, NULL);
        json_out_object(&b, "machine");
        add_file(&b, &dmi, "board_asset_tag", "instance_id");
        add_file(&b, &dmi, "product_name", "instance_type");
        return end_record(&b, fd);
}

static int walk(const Collection *c, const char *path, const SysfsWalk *order) {
        _cleanup_close_ int dir_fd = open_below(c, path);

        return dir_fd < 0 ? dir_fd : sysfs_walk(order, dir_fd);
}

static int run_part(const CrewTask *task, int fd, void *userdata) {
        const Collection *c = userdata;
        size_t i = (size_t)(task - c->tasks);
        SysfsProgress *progress = &c->shared->progress[i];
        char path[sizeof devices_path + sizeof "/neuron63"];
        SysfsWalk order = { .device = task->name,
                            .progress = progress,
                            .n_files_all = &c->shared->n_files_all,
                            .depth_max = SYSFS_DEPTH_MAX,
                            .bytes_max = c->share_bytes,
                            .on_line = write_line,
                            .userdata = &fd };
        int r;

        if (i > 0) {
                (void)snprintf(path, sizeof path, "%s/%s", devices_path, task->name);
                return walk(c, path, &order);
        }
        order.device = "class";
        order.depth_max = 0; /* its attributes alone */
        r = write_driver(c, fd, progress);
        if (r >= 0)
                r = write_machine(c, fd, progress);
        if (r >= 0)
                r = walk(c, "class/neuron_device", &order);
        return r == -ENOENT ? 0 : r;
}

/* ---- in the collector ---- */

static int emit(CollectOut *out, StrBuf *b) {
        int r = collect_emit(out, b);

        return r == -EFBIG ? 0 : r; /* out says that it is cut; a shorter record may fit yet */
}

static int on_line(const CrewTask *task, char *line, size_t n, void *userdata) {
        const Collection *c = userdata;
        StrBuf b = STRBUF_INIT;
        int r;

        (void)task;
        strbuf_add_n(&b, line, n);
        r = emit(c->out, &b);
        strbuf_done(&b);
        return r;
}

static void add_result(StrBuf *b, const SysfsProgress *p, int result) {
        char reading[SYSFS_PATH_MAX] = { 0 }, cut[SYSFS_TEXT_MAX] = { 0 };
        const char *name = strerrorname_np(-result), *text = strerrordesc_np(-result);
        StrBuf detail = STRBUF_INIT;

        memcpy(reading, p->reading, sizeof reading - 1); /* ended, whatever the part did to it */
        memcpy(cut, p->cut, sizeof cut - 1);
        if (result == -ETIMEDOUT && reading[0])
                strbuf_addf(&detail, "no answer when '%s' was read", reading);
        else if (result == -ETIMEDOUT)
                strbuf_add(&detail, "time was over");
        else if (result == -EPIPE)
                strbuf_add(&detail, "the process that read it crashed");
        else if (result == -EFBIG)
                strbuf_add(&detail, "it has more than its share of snapshot.probe_bytes");
        else if (result < 0)
                strbuf_addf(&detail, "%s: %s", name ? name : "error", text ? text : "unknown");
        else
                strbuf_add(&detail, cut);
        json_out_string(b, "state",
                        result == -ETIMEDOUT ? "timeout"
                        : result == -EFBIG   ? "cut"
                        : result < 0         ? "failed"
                        : cut[0]             ? "cut"
                                             : "complete");
        if (detail.n > 0)
                json_out_text(b, "detail", detail.text, detail.n);
        strbuf_done(&detail);
}

/* Closes a device, or, when all was well with it, says nothing of the part that is none. */
static int on_end(const CrewTask *task, int result, void *userdata) {
        const Collection *c = userdata;
        size_t i = (size_t)(task - c->tasks);
        const SysfsProgress *p = &c->shared->progress[i];
        StrBuf b = STRBUF_INIT;
        int r;

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
        r = emit(c->out, &b);
        strbuf_done(&b);
        return r;
}

/* @return 0 or -errno of listing them; a tree without any is none */
static int add_tasks(Collection *c) {
        _cleanup_free_ char *path = path_join(c->order->sysfs_root, devices_path);
        int r = path ? neuron_list(path, true, &c->names) : -ENOMEM;

        c->tasks[c->n_tasks++].name = "node";
        for (size_t i = 0; i < c->names.n; i++)
                c->tasks[c->n_tasks++].name = c->names.items[i];
        return r;
}

static int say_no_devices(const Collection *c, int error) {
        StrBuf b = STRBUF_INIT, text = STRBUF_INIT;
        int r;

        strbuf_addf(&text, "no device in '%s/%s'%s%s", c->order->sysfs_root, devices_path,
                    error ? ": " : "", error ? strerrordesc_np(error) : "");
        json_out_object(&b, NULL);
        json_out_string(&b, "error", text.text);
        json_out_end_object(&b);
        r = emit(c->out, &b);
        strbuf_done(&b);
        strbuf_done(&text);
        return r;
}

static int run_all(Collection *c) {
        const CollectOrder *order = c->order;
        /* Done before the supervisor's patience ends, so that what hung is labelled device by device. */
        uint64_t margin_usec = MAX(order->timeout_usec / 10, 20 * USEC_PER_MSEC);
        Crew crew = {
                .run = run_part,
                .on_line = on_line,
                .on_end = on_end,
                .userdata = c,
                .max_at_once = PARTS_MAX, /* one that hangs keeps nobody's place */
                .timeout_usec = order->timeout_usec - MIN(margin_usec, order->timeout_usec / 2),
                .max_line_bytes = SYSFS_LINE_BYTES_MAX,
        };
        int r, error = -add_tasks(c);

        if (error == ENOMEM)
                return -ENOMEM;
        c->share_bytes = MAX(order->max_bytes / c->n_tasks, (uint64_t)SHARE_BYTES_MIN);
        crew.max_bytes_each = c->share_bytes + SYSFS_LINE_BYTES_MAX;
        r = c->n_tasks > 1 ? 0 : say_no_devices(c, error);
        return r < 0 ? r : crew_run(&crew, c->tasks, c->n_tasks);
}

int collect_neuron_sysfs(const CollectOrder *order, CollectOut *out) {
        _cleanup_free_ Collection *c = calloc(1, sizeof *c);
        int r;

        if (!c)
                return -ENOMEM;
        *c = (Collection){ .order = order, .out = out };
        c->shared = mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (c->shared == MAP_FAILED)
                return -errno;
        r = run_all(c);
        (void)munmap(c->shared, sizeof *c->shared); /* cannot fail for a mapping of ours */
        return r;
}
