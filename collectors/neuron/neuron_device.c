/* The collector neuron_device: which devices there are, whether they may be opened, and each in a part of its own, which alone has it open and never forks.
 * Three rounds of parts: the surroundings (sysfs may hang too), the devices, and what is asked once a node, of the first device that answered. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "collectors/neuron/neuron_device.h"
#include "collectors/neuron/neuron_names.h"
#include "collectors/runner/collector.h"
#include "collectors/runner/crew.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

enum { WHY_SIZE = 240, SHARE_BYTES_MIN = 32 << 10, VERSION_BYTES_MAX = 64 };

/* Shared with the parts. */
typedef struct Shared {
        bool is_known;             /* the surroundings were found out */
        bool needs_holder;         /* an UltraServer: opened only while somebody uses a device */
        char left_alone[WHY_SIZE]; /* why no device is to be opened; "" when they may */
        char version[VERSION_BYTES_MAX];
        DeviceProgress progress[NEURON_DEVICES_MAX];
} Shared;

typedef struct Collection {
        const CollectOrder *order;
        CollectOut *out;
        Shared *shared;
        NeuronNames names;
        CrewTask tasks[NEURON_DEVICES_MAX]; /* one for each name */
        size_t share_bytes;
        NeuronVersion driver;
        uint64_t end_usec;
} Collection;

/* ---- the surroundings ---- */

static int look_around(const CrewTask *task, int fd, void *userdata) {
        const Collection *c = userdata;
        Shared *shared = c->shared;
        _cleanup_free_ char *path = path_join(c->order->sysfs_root, "module/neuron/version"),
                            *text = NULL;
        const char *why;

        (void)task;
        (void)fd;
        if (!path)
                return -ENOMEM;
        if (fs_read_file(AT_FDCWD, path, VERSION_BYTES_MAX - 1, &text, NULL) == 0)
                (void)snprintf(shared->version, sizeof shared->version, "%s", text);
        if (device_is_ultraserver(c->order->sysfs_root, &why)) {
                DeviceHeld held = device_is_held(c->order->proc_root, c->order->device_directory);
                shared->needs_holder = true;
                if (held != DEVICE_HELD)
                        (void)snprintf(
                                shared->left_alone, sizeof shared->left_alone,
                                "%s, and %s: opening a device could reset the server's election",
                                why,
                                held == DEVICE_NOT_HELD ? "no process uses a device"
                                                        : "whether a process uses one is unknown");
        }
        shared->is_known = true;
        return 0;
}

static int ignore_line(const CrewTask *task, char *line, size_t n, void *userdata) {
        (void)task;
        (void)line;
        (void)n;
        (void)userdata;
        return 0;
}

static int end_looking(const CrewTask *task, int result, void *userdata) {
        const Collection *c = userdata;

        (void)task;
        if (result < 0 || !c->shared->is_known)
                (void)snprintf(c->shared->left_alone, sizeof c->shared->left_alone,
                               "sysfs and procfs did not answer, so that whether a device may be "
                               "opened is unknown");
        return 0;
}

/* ---- one device ---- */

static int open_device(const Collection *c, DeviceAsk *a) {
        static const char query[] = "open";
        int r;

        (void)snprintf(a->progress->asking, sizeof a->progress->asking, "%s", query);
        if (c->shared->needs_holder &&
            device_is_held(c->order->proc_root, c->order->device_directory) != DEVICE_HELD)
                r = -ECANCELED; /* who used one has gone since the surroundings were looked at */
        else
                r = neuron_open(&a->device, c->order->device_directory, a->name);
        a->progress->asking[0] = '\0';
        if (r < 0)
                device_say_error(a, query, r);
        return r;
}

static DeviceAsk ask_of(const Collection *c, const CrewTask *task, int fd) {
        return (DeviceAsk){
                .name = task->name,
                .number = (unsigned)neuron_number(task->name),
                .device = { .fd = -1, .driver = c->driver },
                .progress = &c->shared->progress[task - c->tasks],
                .out_fd = fd,
        };
}

static int run_device(const CrewTask *task, int fd, void *userdata) {
        const Collection *c = userdata;
        DeviceAsk a = ask_of(c, task, fd);
        int r = open_device(c, &a);

        if (r < 0)
                return r;
        device_ask_free(&a);
        neuron_close(&a.device);
        return a.error;
}

static int run_node(const CrewTask *task, int fd, void *userdata) {
        const Collection *c = userdata;
        DeviceAsk a = ask_of(c, task, fd);
        int r = open_device(c, &a);

        if (r < 0)
                return r;
        device_ask_node(&a);
        neuron_close(&a.device);
        return a.error;
}

/* ---- in the collector ---- */

static int emit(CollectOut *out, StrBuf *b) {
        int r = collect_emit(out, b);

        strbuf_done(b);
        return r == -EFBIG ? 0 : r; /* out says that it is cut; a shorter record may fit yet */
}

static int on_line(const CrewTask *task, char *line, size_t n, void *userdata) {
        const Collection *c = userdata;
        StrBuf b = STRBUF_INIT;

        (void)task;
        strbuf_add_n(&b, line, n);
        return emit(c->out, &b);
}

/* The probe's capabilities are for reading, and O_WRONLY takes leave to write. @param text  is appended to */
static void add_remedy(const Collection *c, const char *name, char *text, size_t size) {
        _cleanup_free_ char *path = path_join(c->order->device_directory, name);
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

static void add_detail(const Collection *c, const CrewTask *task, StrBuf *b, int result) {
        const DeviceProgress *p = &c->shared->progress[task - c->tasks];
        char asking[DEVICE_ASKING_SIZE] = { 0 }, text[sizeof c->out->why];

        memcpy(asking, p->asking, sizeof asking - 1); /* ended, whatever the part did to it */
        if (result == 0)
                return;
        if (result == -ETIMEDOUT && asking[0])
                (void)snprintf(text, sizeof text, "no answer to '%s'", asking);
        else if (result == -ETIMEDOUT)
                (void)snprintf(text, sizeof text, "time was over");
        else if (result == -EPIPE)
                (void)snprintf(text, sizeof text, "the process that asked crashed at '%s'", asking);
        else
                device_error_text(text, sizeof text, result);
        if (result == -EACCES) {
                add_remedy(c, task->name, text, sizeof text);
                (void)snprintf(c->out->why, sizeof c->out->why, "%s",
                               text); /* the section says it, too */
        }
        json_out_string(b, "detail", text);
}

static int say_end(const Collection *c, const CrewTask *task, int result, bool is_node) {
        StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, is_node ? "node_asked_of" : "device", task->name);
        json_out_string(&b, "state",
                        result == 0            ? "complete"
                        : result == -ETIMEDOUT ? "timeout"
                        : result == -EFBIG     ? "cut"
                        : result == -ECANCELED ? "skipped"
                                               : "failed");
        add_detail(c, task, &b, result);
        json_out_end_object(&b);
        return emit(c->out, &b);
}

static int on_device_end(const CrewTask *task, int result, void *userdata) {
        return say_end(userdata, task, result, false);
}

static int on_node_end(const CrewTask *task, int result, void *userdata) {
        return say_end(userdata, task, result, true);
}

/* ---- all of it ---- */

static int say(const Collection *c, const char *key, const char *text) {
        StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, key, text);
        json_out_end_object(&b);
        return emit(c->out, &b);
}

static int say_left_alone(const Collection *c) {
        for (size_t i = 0; i < c->names.n; i++) {
                StrBuf b = STRBUF_INIT;
                int r;

                json_out_object(&b, NULL);
                json_out_string(&b, "device", c->tasks[i].name);
                json_out_string(&b, "state", "skipped");
                json_out_string(&b, "detail", c->shared->left_alone);
                json_out_end_object(&b);
                r = emit(c->out, &b);
                if (r < 0)
                        return r;
        }
        return 0;
}

static Crew crew_of(Collection *c, uint64_t timeout_usec) {
        uint64_t now = clock_boottime_usec(), left_usec = c->end_usec > now ? c->end_usec - now : 0;

        return (Crew){
                .on_line = on_line,
                .userdata = c,
                .max_at_once = NEURON_DEVICES_MAX, /* one that hangs keeps nobody's place */
                .timeout_usec = MIN(timeout_usec, left_usec),
                .max_line_bytes = DEVICE_LINE_BYTES_MAX,
                .max_bytes_each = c->share_bytes,
        };
}

static int ask_devices(Collection *c) {
        uint64_t patience_usec = c->order->timeout_usec;
        Crew crew = crew_of(c, patience_usec - patience_usec / 4);
        const CrewTask *first = NULL;
        int r;

        crew.run = run_device;
        crew.on_end = on_device_end;
        r = crew_run(&crew, c->tasks, c->names.n);
        if (r < 0)
                return r;
        for (size_t i = 0; i < c->names.n && !first; i++)
                if (c->shared->progress[i].is_done)
                        first = &c->tasks[i];
        if (!first)
                return 0;
        crew = crew_of(c, patience_usec);
        crew.run = run_node;
        crew.on_end = on_node_end;
        return crew_run(&crew, first, 1);
}

static int look_and_ask(Collection *c) {
        static const CrewTask look = { .name = "surroundings" };
        Crew crew;
        int r = neuron_list(c->order->device_directory, false, &c->names);

        if (r < 0 || c->names.n == 0)
                return say(c, "error",
                           r < 0 ? "the device directory cannot be listed"
                                 : "there is no device neuron0 … neuron63 in the device directory");
        for (size_t i = 0; i < c->names.n; i++)
                c->tasks[i].name = c->names.items[i];
        c->share_bytes = MAX(c->order->max_bytes / c->names.n, (uint64_t)SHARE_BYTES_MIN);
        crew = crew_of(c, c->order->timeout_usec / 4);
        crew.run = look_around;
        crew.on_line = ignore_line;
        crew.on_end = end_looking;
        r = crew_run(&crew, &look, 1);
        if (r < 0)
                return r;
        if (c->shared->left_alone[0])
                return say_left_alone(c);
        (void)neuron_version_parse(c->shared->version, &c->driver); /* not known: zero */
        return ask_devices(c);
}

int collect_neuron_device(const CollectOrder *order, CollectOut *out) {
        _cleanup_free_ Collection *c = calloc(1, sizeof *c);
        int r;

        if (!c)
                return -ENOMEM;
        /* Done before the supervisor's patience ends, so that what hung is labelled device by device. */
        *c = (Collection){ .order = order,
                           .out = out,
                           .end_usec = clock_boottime_usec() + order->timeout_usec -
                                       order->timeout_usec / 10 };
        c->shared = mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (c->shared == MAP_FAILED)
                return -errno;
        r = look_and_ask(c);
        (void)munmap(c->shared, sizeof *c->shared); /* cannot fail for a mapping of ours */
        return r;
}
