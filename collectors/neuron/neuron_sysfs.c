/* The collector neuron_sysfs: driver, machine and class attributes, and a walk of each device in a
 * part of its own. What a part has found is in memory shared with it, so that the record that
 * closes a device has what is known of it, and which file it hung on. The values of interest are
 * found by the names of their files alone, since driver 2.31 moved them (docs/BUNDLE.md). */
#include "collectors/neuron/neuron_sysfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"

enum {
        SYSFS_FILE_BYTES_MAX = 4096, /* sysfs never gives more than a page */
        SYSFS_DEPTH_MAX = 8,         /* directories between the device and a file */
        SYSFS_FILES_MAX =
                20000, /* of all devices together; 16 devices of 8 cores have about 15,000 */
        SYSFS_DEVICE_FILES_MAX = 4000,    /* of one */
        SYSFS_DEVICE_ENTRIES_MAX = 16000, /* names examined, of whatever type */
        SYSFS_DEFERRED_MAX = 512,         /* files of a device that are read last */
        SYSFS_LINE_BYTES_MAX = 64 << 10,  /* longest record of a walk */
        SYSFS_PATH_MAX = 512,
        SYSFS_TEXT_MAX = 160,
        SYSFS_MEASURES_MAX = 96,
};

typedef struct SysfsMeasure {
        char path[SYSFS_TEXT_MAX], text[SYSFS_TEXT_MAX];
} SysfsMeasure;

typedef struct SysfsFact {
        char text[SYSFS_TEXT_MAX];
        unsigned depth; /* of two with one name the one nearer to the device counts */
        bool is_known;
} SysfsFact;

/** Values of one device, by the names of their files. All text is ended by NUL and cut to fit. */
typedef struct SysfsSummary {
        SysfsFact facts[7]; /* in the order of sysfs_fact_names */
        uint32_t n_measures;
        bool is_cut;                               /* there were more measures */
        SysfsMeasure measures[SYSFS_MEASURES_MAX]; /* of error correction and health */
} SysfsSummary;

/** How far a walk has come, in memory that the part shares with its caller: what was known, and
 * what was being read, outlives a part that hung. */
typedef struct SysfsProgress {
        char reading[SYSFS_PATH_MAX]; /* below the device; "" when nothing is being read */
        char cut[SYSFS_TEXT_MAX];     /* why something was left out; "" when nothing was */
        uint32_t n_files, n_errors;
        SysfsSummary summary;
} SysfsProgress;

typedef struct SysfsValue {
        char data[SYSFS_FILE_BYTES_MAX +
                  1]; /* without a newline at the end, and not ended by NUL */
        size_t n;     /* at most SYSFS_FILE_BYTES_MAX */
        bool is_cut;  /* the file had more */
} SysfsValue;

int neuron_number(const char *name) {
        uint64_t n;
        bool is_written_so = strncmp(name, "neuron", 6) == 0 && strlen(name) < sizeof "neuron63" &&
                             (name[6] != '0' || name[7] == '\0');
        return is_written_so && parse_u64_range(name + 6, 0, NEURON_DEVICES_MAX - 1, &n) == 0
                       ? (int)n
                       : -1;
}

int neuron_list(const char *directory, bool of_directories, NeuronNames *ret) {
        bool is_there[NEURON_DEVICES_MAX] = { 0 };
        _cleanup_closedir_ DIR *dir = opendir(directory);
        const struct dirent *entry;
        if (!dir)
                return -errno;
        while ((entry = readdir(dir))) {
                int number = neuron_number(entry->d_name);
                bool may_be_one =
                        entry->d_type == DT_UNKNOWN || (entry->d_type == DT_DIR) == of_directories;
                if (number >= 0 && may_be_one)
                        is_there[number] = true;
        }
        *ret = (NeuronNames){ 0 };
        for (unsigned i = 0; i < NEURON_DEVICES_MAX; i++)
                if (is_there[i])
                        (void)snprintf(ret->items[ret->n++], sizeof ret->items[0], "neuron%u", i);
        return 0;
}

/* Names of drivers up to 2.30.2: the driver's sources */
static const char *const sysfs_fact_names[7] = {
        "serial_number", "core_count", "connected_devices",    "instance_type",
        "device_name",   "arch_type",  "unhealthy_components",
};

/* Cuts at the end of a character, so that what is shown is text as long as what came was. */
static void copy_text(char to[static SYSFS_TEXT_MAX], const char *data, size_t n) {
        n = MIN(n, (size_t)SYSFS_TEXT_MAX - 1);
        memcpy(to, data, n);
        to[n] = '\0';
}

static unsigned depth_of(const char *path) {
        unsigned depth = 0;

        for (; *path; path++)
                depth += *path == '/';
        return depth;
}

/* Reading it may query the hardware. @param path  below the device */
static bool sysfs_may_hang(const char *path) {
        return strstr(path, "ecc") || strstr(path, "health") || strstr(path, "hardware") ||
               strncmp(path_name(path), "utilization", strlen("utilization")) == 0;
}

static void note_fact(SysfsFact *fact, unsigned depth, const char *data, size_t n) {
        if (fact->is_known && fact->depth <= depth)
                return;
        copy_text(fact->text, data, n);
        fact->depth = depth;
        fact->is_known = true;
}

/* Takes a value into the summary when its name is one of interest. */
static void sysfs_summary_note(SysfsSummary *s, const char *path, const char *data, size_t n) {
        int fact = parse_word(path_name(path), sysfs_fact_names, ELEMENTSOF(sysfs_fact_names));

        if (fact >= 0) {
                note_fact(&s->facts[fact], depth_of(path), data, n);
                return;
        }
        if (!strstr(path, "ecc") && !strstr(path, "health"))
                return;
        if (s->n_measures >= SYSFS_MEASURES_MAX) {
                s->is_cut = true;
                return;
        }
        copy_text(s->measures[s->n_measures].path, path, strlen(path));
        copy_text(s->measures[s->n_measures].text, data, n);
        s->n_measures++; /* last: whoever shares this memory sees whole ones */
}

enum { REDACT_BYTES_MIN = 16 }; /* what is shorter, or a number, is no secret */

static bool is_plain(const char *data, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (data[i] < '0' || data[i] > '9')
                        return false;
        return true;
}

static void sysfs_add_value(StrBuf *b, const char *key, const char *data, size_t n) {
        if (n < REDACT_BYTES_MIN || is_plain(data, n))
                json_out_text(b, key, data, n);
        else
                redact_member(b, key, data, n);
}

/* Adds the summary as the member `summary` of the object that is open. */
static void sysfs_summary_add(StrBuf *b, const SysfsSummary *s) {
        /* The part that filled it may have been killed in the middle, or have gone wild. */
        uint32_t n = MIN(s->n_measures, (uint32_t)SYSFS_MEASURES_MAX);

        json_out_object(b, "summary");
        for (size_t i = 0; i < ELEMENTSOF(sysfs_fact_names); i++)
                if (s->facts[i].is_known)
                        sysfs_add_value(b, sysfs_fact_names[i], s->facts[i].text,
                                        strnlen(s->facts[i].text, SYSFS_TEXT_MAX - 1));
        json_out_object(b, "measures");
        for (uint32_t i = 0; i < n; i++) {
                const SysfsMeasure *m = &s->measures[i];
                char path[SYSFS_TEXT_MAX] = { 0 };

                memcpy(path, m->path, sizeof path - 1);
                sysfs_add_value(b, path, m->text, strnlen(m->text, SYSFS_TEXT_MAX - 1));
        }
        json_out_end_object(b);
        if (s->is_cut)
                json_out_bool(b, "measures_cut", true);
        json_out_end_object(b);
}

/* The walk. What it must never do: write to a file, since any write clears a counter or resets the
 * device; open `reset`; leave the tree by a symlink; wait for one sick file before the healthy ones
 * are read. */

enum {
        LINE_FULL_BYTES =
                16
                << 10, /* a record is closed here; one value more still fits SYSFS_LINE_BYTES_MAX */
};

typedef struct Walk {
        const char *device; /* as records name it */
        SysfsProgress *progress;
        _Atomic uint32_t *n_files_all; /* of all walks together */
        bool is_flat;                  /* only the files of the directory itself */
        int out_fd;                    /* gets the records */
        StrBuf path;                   /* of the directory being read, below the device */
        StrBuf line, errors, cut;      /* of its record */
        size_t n_bytes, bytes_max;
        uint32_t n_entries, files_max;
        char *deferred[SYSFS_DEFERRED_MAX];
        size_t n_deferred;
        bool is_over;
} Walk;

static void note_cut(Walk *w, const char *why) {
        if (w->progress->cut[0] == '\0')
                (void)snprintf(w->progress->cut, sizeof w->progress->cut, "%s", why);
}

static void stop(Walk *w, const char *why) {
        note_cut(w, why);
        w->is_over = true;
}

/* Reads one file. @param name  relative to dir_fd, no symlinks @return 0; -errno; -EBADF when it
 * is no regular file */
static int sysfs_read(int dir_fd, const char *name, SysfsValue *ret) {
        _cleanup_close_ int fd = -1;
        struct stat st;
        ssize_t n;

        /* Without fs_open_regular()'s second open: there are thousands, and sysfs has no devices.
         */
        fd = strchr(name, '/') ? fs_open_beneath(dir_fd, name, O_RDONLY)
                               : openat(dir_fd, name,
                                        O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return strchr(name, '/') ? fd : -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADF;
        /* One call: a file of sysfs is made whole by the first read, and has at most a page. */
        do
                n = read(fd, ret->data, sizeof ret->data);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        ret->is_cut = n > SYSFS_FILE_BYTES_MAX;
        n = MIN(n, (ssize_t)SYSFS_FILE_BYTES_MAX);
        if (n > 0 && !ret->is_cut && ret->data[n - 1] == '\n')
                n--;
        ret->n = (size_t)n;
        return 0;
}

/* ---- records ---- */

static void begin_line(Walk *w) {
        if (w->line.n > 0)
                return;
        json_out_object(&w->line, NULL);
        json_out_string(&w->line, "device", w->device);
        json_out_path(&w->line, "directory", w->path.text ? w->path.text : "");
        json_out_object(&w->line, "values");
}

static void add_part(Walk *w, const char *key, StrBuf *part, const char *end) {
        if (part->n > 0) {
                strbuf_add(part, end);
                if (strbuf_error(part) < 0)
                        w->line.failed = true;
                else
                        json_out_raw(&w->line, key, part->text);
        }
        strbuf_clear(part);
}

static int walk_dir(Walk *w, int dir_fd, unsigned depth);

static int end_line(Walk *w) {
        if (w->line.n == 0)
                return strbuf_error(&w->line);
        json_out_end_object(&w->line);
        add_part(w, "errors", &w->errors, "}");
        add_part(w, "cut", &w->cut, "]");
        json_out_end_object(&w->line);
        strbuf_add(&w->line, "\n");
        int r = strbuf_error(&w->line);
        if (r < 0)
                return r;
        if (w->n_bytes + w->line.n > w->bytes_max) {
                stop(w, "the device's share of snapshot.probe_bytes is used up");
        } else {
                w->n_bytes += w->line.n;
                r = fs_write_all(w->out_fd, w->line.text, w->line.n);
        }
        strbuf_clear(&w->line);
        return MIN(r, 0);
}

static void add_error(Walk *w, const char *name, int error) {
        char text[128];

        w->progress->n_errors++;
        (void)snprintf(text, sizeof text, "%s: %s",
                       strerrorname_np(error) ? strerrorname_np(error) : "error",
                       strerrordesc_np(error) ? strerrordesc_np(error) : "unknown");
        if (w->errors.n == 0)
                json_out_object(&w->errors, NULL);
        json_out_string(&w->errors, name, text);
}

/* ---- files ---- */

static bool count_file(Walk *w) {
        if (w->progress->n_files >= w->files_max)
                stop(w, "more than 4000 files below the device, of which 512 are kept for its "
                        "hardware's");
        else if (atomic_fetch_add(w->n_files_all, 1) >= SYSFS_FILES_MAX)
                stop(w, "more than 20000 files below all devices together");
        else
                w->progress->n_files++;
        return !w->is_over;
}

/* @param path  of the file, below the device @param at_fd, name  how to open it */
static int read_file(Walk *w, int at_fd, const char *name, const char *path) {
        SysfsProgress *progress = w->progress;
        const char *leaf = path_name(path);
        SysfsValue value; /* a page: not cleared for each of thousands of files */

        if (!count_file(w))
                return 0;
        (void)snprintf(progress->reading, sizeof progress->reading, "%s", path);
        value.is_cut = false;
        int r = sysfs_read(at_fd, name, &value);
        progress->reading[0] = '\0';
        if (r == -ENOENT) /* the runtime has removed it meanwhile */
                return 0;
        begin_line(w);
        if (r < 0) {
                add_error(w, leaf, -r);
        } else {
                sysfs_add_value(&w->line, leaf, value.data, value.n);
                sysfs_summary_note(&progress->summary, path, value.data, value.n);
        }
        if (value.is_cut) {
                if (w->cut.n == 0)
                        json_out_array(&w->cut, NULL);
                json_out_string(&w->cut, NULL, leaf);
                note_cut(w, "a file has more than 4096 bytes");
        }
        return w->line.n + w->errors.n + w->cut.n > LINE_FULL_BYTES ? end_line(w)
                                                                    : strbuf_error(&w->line);
}

static int defer(Walk *w, const char *path) {
        if (w->n_deferred >= SYSFS_DEFERRED_MAX) {
                note_cut(w, "more than 512 files of the device access its hardware");
                return 0;
        }
        w->deferred[w->n_deferred] = strdup(path);
        return w->deferred[w->n_deferred] ? (void)w->n_deferred++, 0 : -ENOMEM;
}

static int visit_file(Walk *w, int dir_fd, const char *name) {
        char path[SYSFS_PATH_MAX];
        struct stat st;

        if (strcmp(name, "reset") == 0)
                return 0;
        /* Before it is opened: FIFOs and nodes are left alone, and so are triggers, which nobody
         * may read (root may). */
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
            (st.st_mode & 0444) == 0)
                return 0;
        int n = snprintf(path, sizeof path, "%s%s%s", w->path.n ? w->path.text : "",
                         w->path.n ? "/" : "", name);
        if (n < 0 || (size_t)n >= sizeof path) {
                note_cut(w, "a path has more than 511 bytes");
                return 0;
        }
        return sysfs_may_hang(path) ? defer(w, path) : read_file(w, dir_fd, name, path);
}

/* ---- directories ---- */

/* @return the next entry of this type, NULL at the end or when enough was examined */
static const struct dirent *next_entry(Walk *w, DIR *dir, unsigned char type) {
        const struct dirent *entry;

        while (!w->is_over && (entry = readdir(dir))) {
                if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                        continue;
                if (++w->n_entries > 3 * SYSFS_DEVICE_ENTRIES_MAX) /* each is seen three times */
                        stop(w, "more than 16000 names below the device");
                else if (entry->d_type == type)
                        return entry;
        }
        return NULL;
}

static int enter(Walk *w, int dir_fd, const char *name, unsigned depth) {
        _cleanup_close_ int fd =
                openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        size_t n = w->path.n;
        int r;

        if (fd < 0) {
                if (errno == ENOENT) /* the runtime has removed it meanwhile */
                        return 0;
                r = -errno;
                begin_line(w);
                add_error(w, name, -r);
                return end_line(w);
        }
        if (depth >= SYSFS_DEPTH_MAX) {
                note_cut(w, "directories deeper than 8");
                return 0;
        }
        strbuf_addf(&w->path, "%s%s", n > 0 ? "/" : "", name);
        r = strbuf_error(&w->path);
        if (r < 0)
                return r;
        r = walk_dir(w, fd, depth + 1);
        w->path.n = n;
        w->path.text[n] = '\0';
        return r;
}

/* A process may make as many of these as it likes: they come after what the driver has. */
static bool is_added_by_runtime(const char *name) {
        return strncmp(name, "new_metric_", strlen("new_metric_")) == 0;
}

static int walk_dir(Walk *w, int dir_fd, unsigned depth) {
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *entry;
        int r = fs_opendir_at(dir_fd, ".", &dir);

        while (r >= 0 && (entry = next_entry(w, dir, DT_REG)))
                r = visit_file(w, dir_fd, entry->d_name);
        if (r >= 0)
                r = end_line(w);
        if (w->is_flat)
                return r;
        rewinddir(dir);
        while (r >= 0 && (entry = next_entry(w, dir, DT_DIR)))
                if (!is_added_by_runtime(entry->d_name))
                        r = enter(w, dir_fd, entry->d_name, depth);
        rewinddir(dir);
        while (r >= 0 && (entry = next_entry(w, dir, DT_DIR)))
                if (is_added_by_runtime(entry->d_name))
                        r = enter(w, dir_fd, entry->d_name, depth);
        return r;
}

/* One record each: what hangs takes nothing with it. */
static int read_deferred(Walk *w, int dir_fd) {
        int r = 0;

        for (size_t i = 0; i < w->n_deferred && !w->is_over && r >= 0; i++) {
                char *path = w->deferred[i], *slash = strrchr(path, '/');

                strbuf_clear(&w->path);
                strbuf_add_n(&w->path, path, slash ? (size_t)(slash - path) : 0);
                r = strbuf_error(&w->path);
                if (r >= 0)
                        r = read_file(w, dir_fd, path, path);
                if (r >= 0)
                        r = end_line(w);
        }
        return r;
}

/* Reads all regular files below dir_fd, and writes one record a directory. Never opens for
 * writing, never what is called `reset`, never what nobody may read, no symlink. Files whose
 * reading asks the device's hardware or firmware come last, each with a record of its own, since
 * they may hang.
 * @param dir_fd  borrowed  @return 0 also when something was left out (progress->cut); -errno */
static int sysfs_walk(Walk *w, int dir_fd, size_t max_bytes) {
        /* Some of the limit is kept for what comes last: it is what matters most. */
        w->bytes_max = max_bytes - max_bytes / 4;
        w->files_max = SYSFS_DEVICE_FILES_MAX - SYSFS_DEFERRED_MAX;
        int r = walk_dir(w, dir_fd, 0);

        w->bytes_max = max_bytes;
        w->files_max = SYSFS_DEVICE_FILES_MAX;
        w->is_over = false;
        if (r >= 0)
                r = read_deferred(w, dir_fd);
        for (size_t i = 0; i < w->n_deferred; i++)
                free(w->deferred[i]);
        strbuf_done(&w->path);
        strbuf_done(&w->line);
        strbuf_done(&w->errors);
        strbuf_done(&w->cut);
        return r;
}

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
        const CollectRequest *request;
        CollectOut *out;
        Shared *shared;
        NeuronNames names;
        PoolTask tasks[PARTS_MAX];
        size_t n_tasks, share_bytes;
} Collection;

/* ---- in a part ---- */

static int open_below(const Collection *c, const char *name) {
        _cleanup_free_ char *path = path_join(c->request->sysfs_root, name);

        if (!path)
                return -ENOMEM;
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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

        (void)snprintf(progress->reading, sizeof progress->reading, "%s", name);
        int r = sysfs_read(from->dir_fd, name, &value);
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
        int r = collect_write_line(fd, b);
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

/* As the driver itself knows the instance. */
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

static int walk_below(const Collection *c, const char *path, Walk *walk) {
        _cleanup_close_ int dir_fd = open_below(c, path);

        return dir_fd < 0 ? dir_fd : sysfs_walk(walk, dir_fd, c->share_bytes);
}

static int run_part(const PoolTask *task, int fd, void *userdata) {
        const Collection *c = userdata;
        size_t i = (size_t)(task - c->tasks);
        SysfsProgress *progress = &c->shared->progress[i];
        char path[sizeof devices_path + sizeof "/neuron63"];
        Walk walk = { .device = i > 0 ? task->name : "class",
                      .progress = progress,
                      .n_files_all = &c->shared->n_files_all,
                      .is_flat = i == 0, /* its attributes alone */
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
        json_out_string(b, "state", result == 0 && cut[0] ? "cut" : child_pool_state_name(result));
        if (detail.n > 0)
                json_out_text(b, "detail", detail.text, detail.n);
        strbuf_done(&detail);
}

/* Closes a device, or, when all was well with it, writes nothing about the part that is none. */
static int on_end(const PoolTask *task, int result, void *userdata) {
        const Collection *c = userdata;
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

/* @return 0 or -errno of listing them; a tree without any is none */
static int add_tasks(Collection *c) {
        _cleanup_free_ char *path = path_join(c->request->sysfs_root, devices_path);
        int r = path ? neuron_list(path, true, &c->names) : -ENOMEM;

        c->tasks[c->n_tasks++].name = "node";
        for (size_t i = 0; i < c->names.n; i++)
                c->tasks[c->n_tasks++].name = c->names.items[i];
        return r;
}

static int emit_no_devices(const Collection *c, int error) {
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

static int run_all(Collection *c) {
        const CollectRequest *request = c->request;
        /* Done before the supervisor's patience ends, so that what hung is labelled device by
         * device. */
        uint64_t margin_usec = MAX(request->timeout_usec / 10, 20 * USEC_PER_MSEC);
        ChildPool pool = {
                .run = run_part,
                .out = c->out,
                .on_end = on_end,
                .userdata = c,
                .max_at_once = PARTS_MAX, /* one that hangs keeps nobody's place */
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
        _cleanup_free_ Collection *c = calloc(1, sizeof *c);

        if (!c)
                return -ENOMEM;
        *c = (Collection){ .request = request, .out = out };
        c->shared = mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (c->shared == MAP_FAILED)
                return -errno;
        int r = run_all(c);
        (void)munmap(c->shared, sizeof *c->shared); /* cannot fail for a mapping of ours */
        return r;
}
