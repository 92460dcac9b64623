/* The walk through a device's directory in sysfs.
 *
 * The walk never opens a file for writing, because any write clears a counter or resets the device;
 * it never opens a file that is called `reset` or that nobody may read, and it follows no symlink.
 * It goes through the files of a directory first, then through its directories. Files whose reading
 * queries the device's hardware or firmware may hang; their paths are kept, and they are read last,
 * when all healthy files are recorded. Numbers of files, names, bytes and levels are bounded.
 *
 * A process of its own walks each device and may be killed at any time: how far it has come is in
 * SysfsProgress. Who runs and kills it is decided in neuron_sysfs.c. */
#include "collectors/neuron/sysfs_walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/neuron/sysfs_value.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

enum {
        DEPTH_MAX = 8,     /* directories between the device and a file */
        FILES_MAX = 20000, /* of all devices; 16 devices of 8 cores have about 15,000 */
        DEVICE_FILES_MAX = 4000,
        DEVICE_ENTRIES_MAX = 16000, /* names examined, of any type */
        DEFERRED_MAX = 512,         /* files of a device that are read last */
        LINE_FULL_BYTES = 16 << 10, /* a record is closed here; another value fits into
                                       SYSFS_LINE_BYTES_MAX */
};

/* A walk under way. */
typedef struct Walking {
        const SysfsWalk *walk;
        SysfsProgress *progress;
        StrBuf path;              /* of the directory that is read, below the device */
        StrBuf line, errors, cut; /* of its record */
        size_t n_bytes, bytes_max;
        uint32_t n_entries, files_max;
        char *deferred[DEFERRED_MAX]; /* paths */
        size_t n_deferred;
        bool is_over; /* a limit was reached: nothing more is read */
} Walking;

static void note_cut(Walking *w, const char *why) {
        if (w->progress->cut[0] == '\0')
                (void)snprintf(w->progress->cut, sizeof w->progress->cut, "%s", why);
}

static void stop(Walking *w, const char *why) {
        note_cut(w, why);
        w->is_over = true;
}

/* ---- records ---- */

static void begin_line(Walking *w) {
        if (w->line.n > 0)
                return;
        json_out_object(&w->line, NULL);
        json_out_string(&w->line, "device", w->walk->device);
        json_out_path(&w->line, "directory", w->path.text ? w->path.text : "");
        json_out_object(&w->line, "values");
}

static void add_part(Walking *w, const char *key, StrBuf *part, const char *end) {
        if (part->n > 0) {
                strbuf_add(part, end);
                if (strbuf_error(part) < 0)
                        w->line.failed = true;
                else
                        json_out_raw(&w->line, key, part->text);
        }
        strbuf_clear(part);
}

static int end_line(Walking *w) {
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
                r = fs_write_all(w->walk->out_fd, w->line.text, w->line.n);
        }
        strbuf_clear(&w->line);
        return MIN(r, 0);
}

static void add_error(Walking *w, const char *name, int error) {
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

/* @return whether reading a file may query the device's hardware or firmware */
static bool may_hang(const char *path) {
        return strstr(path, "ecc") || strstr(path, "health") || strstr(path, "hardware") ||
               strncmp(path_name(path), "utilization", strlen("utilization")) == 0;
}

static bool count_file(Walking *w) {
        if (w->progress->n_files >= w->files_max)
                stop(w, "more than 4000 files below the device, of which 512 are kept for its "
                        "hardware's");
        else if (atomic_fetch_add(w->walk->n_files_all, 1) >= FILES_MAX)
                stop(w, "more than 20000 files below all devices together");
        else
                w->progress->n_files++;
        return !w->is_over;
}

/* @param path  of the file, below the device @param at_fd, name  how to open it */
static int read_file(Walking *w, int at_fd, const char *name, const char *path) {
        SysfsProgress *progress = w->progress;
        const char *leaf = path_name(path);
        SysfsValue value; /* a page: not cleared for each of thousands of files */

        if (!count_file(w))
                return 0;
        (void)snprintf(progress->reading, sizeof progress->reading, "%s", path);
        value.is_cut = false;
        int r = sysfs_value_read(at_fd, name, &value);
        progress->reading[0] = '\0';
        if (r == -ENOENT) /* the runtime has removed it since */
                return 0;
        begin_line(w);
        if (r < 0) {
                add_error(w, leaf, -r);
        } else {
                sysfs_value_add(&w->line, leaf, value.data, value.n);
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

static int defer(Walking *w, const char *path) {
        if (w->n_deferred >= DEFERRED_MAX) {
                note_cut(w, "more than 512 files of the device access its hardware");
                return 0;
        }
        w->deferred[w->n_deferred] = strdup(path);
        return w->deferred[w->n_deferred] ? (void)w->n_deferred++, 0 : -ENOMEM;
}

static int visit_file(Walking *w, int dir_fd, const char *name) {
        char path[SYSFS_PATH_MAX];
        struct stat st;

        if (strcmp(name, "reset") == 0)
                return 0;
        /* Checked before it is opened, because opening a FIFO or a node has effects. A file that
         * nobody may read is a trigger, which root could read all the same. */
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
            (st.st_mode & 0444) == 0)
                return 0;
        int n = snprintf(path, sizeof path, "%s%s%s", w->path.n ? w->path.text : "",
                         w->path.n ? "/" : "", name);
        if (n < 0 || (size_t)n >= sizeof path) {
                note_cut(w, "a path has more than 511 bytes");
                return 0;
        }
        return may_hang(path) ? defer(w, path) : read_file(w, dir_fd, name, path);
}

/* ---- directories ---- */

/* @return the next entry of this type; NULL: the end, or too many entries */
static const struct dirent *next_entry(Walking *w, DIR *dir, unsigned char type) {
        const struct dirent *entry;

        while (!w->is_over && (entry = readdir(dir))) {
                if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                        continue;
                if (++w->n_entries > 3 * DEVICE_ENTRIES_MAX) /* each is seen in three passes */
                        stop(w, "more than 16000 names below the device");
                else if (entry->d_type == type)
                        return entry;
        }
        return NULL;
}

static int walk_dir(Walking *w, int dir_fd, unsigned depth);

static int enter(Walking *w, int dir_fd, const char *name, unsigned depth) {
        _cleanup_close_ int fd =
                openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        size_t n = w->path.n;
        int r;

        if (fd < 0) {
                if (errno == ENOENT) /* the runtime has removed it since */
                        return 0;
                r = -errno;
                begin_line(w);
                add_error(w, name, -r);
                return end_line(w);
        }
        if (depth >= DEPTH_MAX) {
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

/* A process may make any number of these, so they come after the directories of the driver. */
static bool is_added_by_runtime(const char *name) {
        return strncmp(name, "new_metric_", strlen("new_metric_")) == 0;
}

static int walk_dir(Walking *w, int dir_fd, unsigned depth) {
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *entry;
        int r = fs_opendir_at(dir_fd, ".", &dir);

        while (r >= 0 && (entry = next_entry(w, dir, DT_REG)))
                r = visit_file(w, dir_fd, entry->d_name);
        if (r >= 0)
                r = end_line(w);
        if (w->walk->is_flat)
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

/* Each file has a record of its own, so that a file that hangs loses no other file's value. */
static int read_deferred(Walking *w, int dir_fd) {
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

int sysfs_walk(const SysfsWalk *walk, int dir_fd, size_t max_bytes) {
        Walking walking = { .walk = walk, .progress = walk->progress }, *w = &walking;
        /* A share of both limits is kept for the deferred files, which matter most. */
        w->bytes_max = max_bytes - max_bytes / 4;
        w->files_max = DEVICE_FILES_MAX - DEFERRED_MAX;
        int r = walk_dir(w, dir_fd, 0);

        w->bytes_max = max_bytes;
        w->files_max = DEVICE_FILES_MAX;
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
