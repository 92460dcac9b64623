/* The walk. What it must never do (neuron-interfaces 4.2, 4.4): write to a file, since any write clears a counter or resets the device; open `reset`;
 * leave the tree by a symlink; wait for one sick file before the healthy ones are read. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/neuron/neuron_sysfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"

enum {
        LINE_FULL_BYTES =
                16
                << 10, /* a record is closed here; one value more still fits SYSFS_LINE_BYTES_MAX */
        REDACT_BYTES_MIN = 16, /* what is shorter, or a number, is no secret */
};

typedef struct Walk {
        const SysfsWalk *of;
        StrBuf path;              /* of the directory being read, below the device */
        StrBuf line, errors, cut; /* of its record */
        size_t n_bytes, bytes_max;
        uint32_t n_entries, files_max;
        char *deferred[SYSFS_DEFERRED_MAX];
        size_t n_deferred;
        bool is_over;
} Walk;

static void note_cut(Walk *w, const char *why) {
        if (w->of->progress->cut[0] == '\0')
                (void)snprintf(w->of->progress->cut, sizeof w->of->progress->cut, "%s", why);
}

static void stop(Walk *w, const char *why) {
        note_cut(w, why);
        w->is_over = true;
}

int sysfs_read(int dir_fd, const char *name, SysfsValue *ret) {
        _cleanup_close_ int fd = -1;
        struct stat st;
        ssize_t n;

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

static bool is_plain(const char *data, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (data[i] < '0' || data[i] > '9')
                        return false;
        return true;
}

void sysfs_add_value(StrBuf *b, const char *key, const char *data, size_t n) {
        if (n < REDACT_BYTES_MIN || is_plain(data, n))
                json_out_text(b, key, data, n);
        else
                redact_member(b, key, data, n);
}

/* ---- records ---- */

static void begin_line(Walk *w) {
        if (w->line.n > 0)
                return;
        json_out_object(&w->line, NULL);
        json_out_string(&w->line, "device", w->of->device);
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

static int end_line(Walk *w) {
        int r;

        if (w->line.n == 0)
                return strbuf_error(&w->line);
        json_out_end_object(&w->line);
        add_part(w, "errors", &w->errors, "}");
        add_part(w, "cut", &w->cut, "]");
        json_out_end_object(&w->line);
        strbuf_add(&w->line, "\n");
        r = strbuf_error(&w->line);
        if (r < 0)
                return r;
        if (w->n_bytes + w->line.n > w->bytes_max) {
                stop(w, "the device's share of snapshot.probe_bytes is used up");
        } else {
                w->n_bytes += w->line.n;
                r = w->of->on_line(w->line.text, w->line.n, w->of->userdata);
        }
        strbuf_clear(&w->line);
        return MIN(r, 0);
}

static void add_error(Walk *w, const char *name, int error) {
        char text[128];

        w->of->progress->n_errors++;
        (void)snprintf(text, sizeof text, "%s: %s",
                       strerrorname_np(error) ? strerrorname_np(error) : "error",
                       strerrordesc_np(error) ? strerrordesc_np(error) : "unknown");
        if (w->errors.n == 0)
                json_out_object(&w->errors, NULL);
        json_out_string(&w->errors, name, text);
}

/* ---- files ---- */

static bool take_file(Walk *w) {
        if (w->of->progress->n_files >= w->files_max)
                stop(w, "more than 4000 files below the device, of which 512 are kept for its "
                        "hardware's");
        else if (atomic_fetch_add(w->of->n_files_all, 1) >= SYSFS_FILES_MAX)
                stop(w, "more than 20000 files below all devices together");
        else
                w->of->progress->n_files++;
        return !w->is_over;
}

/* @param path  of the file, below the device @param at_fd, name  how to open it */
static int read_file(Walk *w, int at_fd, const char *name, const char *path) {
        SysfsProgress *progress = w->of->progress;
        const char *leaf = path_name(path);
        SysfsValue value; /* a page: not cleared for each of thousands of files */
        int r;

        if (!take_file(w))
                return 0;
        (void)snprintf(progress->reading, sizeof progress->reading, "%s", path);
        value.is_cut = false;
        r = sysfs_read(at_fd, name, &value);
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
                note_cut(w, "more than 512 files of the device ask its hardware");
                return 0;
        }
        w->deferred[w->n_deferred] = strdup(path);
        return w->deferred[w->n_deferred] ? (void)w->n_deferred++, 0 : -ENOMEM;
}

static int visit_file(Walk *w, int dir_fd, const char *name) {
        char path[SYSFS_PATH_MAX];
        struct stat st;
        int n;

        if (strcmp(name, "reset") == 0)
                return 0;
        /* Before it is opened: FIFOs and nodes are left alone, and so are triggers, which nobody may read (root may). */
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
            (st.st_mode & 0444) == 0)
                return 0;
        n = snprintf(path, sizeof path, "%s%s%s", w->path.n ? w->path.text : "",
                     w->path.n ? "/" : "", name);
        if (n < 0 || (size_t)n >= sizeof path) {
                note_cut(w, "a path has more than 511 bytes");
                return 0;
        }
        return sysfs_may_hang(path) ? defer(w, path) : read_file(w, dir_fd, name, path);
}

/* ---- directories ---- */

static unsigned char type_of(int dir_fd, const struct dirent *entry) {
        struct stat st;

        if (entry->d_type != DT_UNKNOWN)
                return entry->d_type;
        if (fstatat(dir_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return DT_UNKNOWN;
        return (unsigned char)IFTODT(st.st_mode);
}

/* @return the next entry of this type, NULL at the end or when enough was looked at */
static const struct dirent *next_entry(Walk *w, DIR *dir, unsigned char type) {
        const struct dirent *entry;

        while (!w->is_over && (entry = readdir(dir))) {
                if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                        continue;
                if (++w->n_entries > 3 * SYSFS_DEVICE_ENTRIES_MAX) /* each is seen three times */
                        stop(w, "more than 16000 names below the device");
                else if (type_of(dirfd(dir), entry) == type)
                        return entry;
        }
        return NULL;
}

static int walk_dir(Walk *w, int dir_fd, unsigned depth);

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
        if (w->of->depth_max == 0)
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

int sysfs_walk(const SysfsWalk *walk, int dir_fd) {
        /* Some room is kept for what comes last: it is what matters most. */
        Walk w = { .of = walk,
                   .bytes_max = walk->bytes_max - walk->bytes_max / 4,
                   .files_max = SYSFS_DEVICE_FILES_MAX - SYSFS_DEFERRED_MAX };
        int r = walk_dir(&w, dir_fd, 0);

        w.bytes_max = walk->bytes_max;
        w.files_max = SYSFS_DEVICE_FILES_MAX;
        w.is_over = false;
        if (r >= 0)
                r = read_deferred(&w, dir_fd);
        for (size_t i = 0; i < w.n_deferred; i++)
                free(w.deferred[i]);
        strbuf_done(&w.path);
        strbuf_done(&w.line);
        strbuf_done(&w.errors);
        strbuf_done(&w.cut);
        return r;
}
