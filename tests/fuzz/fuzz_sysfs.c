/* What a driver, or whoever has made a tree that looks like one, shows in sysfs: the input is cut
 * by NUL into pairs of a path and a content, from which a tree is made and walked. Beyond not
 * crashing: every record is JSON and within its bounds, nothing called `reset` is read, and the
 * summary is JSON too. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/neuron/sysfs_summary.h"
#include "collectors/neuron/sysfs_value.h"
#include "collectors/neuron/sysfs_walk.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { FILES_MAX = 64, PATH_BYTES_MAX = 200, ROOM = 64 << 10 };

static void check(bool claim) {
        if (!claim)
                abort();
}

/* @return whether there was room and the path leads below root_fd */
static bool put(int root_fd, char *path, const uint8_t *content, size_t n) {
        for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
                *slash = '\0';
                (void)mkdirat(root_fd, path, 0700); /* may be there */
                *slash = '/';
        }
        int fd = openat(root_fd, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return false;
        check(fs_write_all(fd, content, n) == 0);
        (void)close(fd);
        return true;
}

static void make_tree(int root_fd, const uint8_t *data, size_t n) {
        for (unsigned i = 0; i < FILES_MAX && n > 0; i++) {
                char path[PATH_BYTES_MAX + 1];
                size_t n_path = strnlen((const char *)data, n), n_content;
                const uint8_t *content = data + n_path + (n_path < n);
                size_t left = n - n_path - (n_path < n);

                n_content = left > 0 ? strnlen((const char *)content, left) : 0;
                if (n_path > 0 && n_path <= PATH_BYTES_MAX && data[0] != '/' &&
                    !memmem(data, n_path, "..", 2)) {
                        memcpy(path, data, n_path);
                        path[n_path] = '\0';
                        (void)put(root_fd, path, content, n_content);
                }
                data = content + n_content + (n_content < left);
                n = left - n_content - (n_content < left);
        }
}

static void check_record(const char *line, size_t n) {
        json_error_t error;

        check(n <= SYSFS_LINE_BYTES_MAX);
        json_t *record = json_loadb(line, n, JSON_ALLOW_NUL, &error);
        check(record != NULL);
        json_t *values = json_object_get(record, "values");
        check(json_is_object(values) && !json_object_get(values, "reset"));
        json_decref(record);
}

static void check_records(int fd) {
        char *text;
        size_t n;

        check(fs_read_head(fd, 2 * ROOM, &text, &n) == 0 && n <= ROOM);
        for (size_t at = 0; at < n;) {
                const char *end = memchr(text + at, '\n', n - at);
                check(end != NULL);
                check_record(text + at, (size_t)(end - text) - at + 1);
                at = (size_t)(end - text) + 1;
        }
        free(text);
}

static void check_summary(const SysfsSummary *s) {
        StrBuf b = STRBUF_INIT;
        json_error_t error;

        json_out_object(&b, NULL);
        sysfs_summary_add(&b, s);
        json_out_end_object(&b);
        check(strbuf_error(&b) == 0);
        json_t *summary = json_loadb(b.text, b.n, JSON_ALLOW_NUL, &error);
        check(summary != NULL);
        json_decref(summary);
        strbuf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        const char *parent = getenv("TMPDIR");
        char root[PATH_MAX];
        _Atomic uint32_t n_files_all = 0;

        (void)snprintf(root, sizeof root, "%s/nc-fuzz-sysfs-XXXXXX", parent ? parent : "/tmp");
        check(mkdtemp(root) != NULL);
        int root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        check(root_fd >= 0);
        make_tree(root_fd, data, n);
        SysfsProgress *progress = calloc(1, sizeof *progress);
        check(progress != NULL);
        int out_fd = memfd_create("records", MFD_CLOEXEC);
        SysfsWalk walk = { .device = "neuron0",
                           .progress = progress,
                           .n_files_all = &n_files_all,
                           .out_fd = out_fd };
        check(sysfs_walk(&walk, root_fd, ROOM) == 0);
        check_records(out_fd);
        (void)close(out_fd);
        check(progress->n_files == n_files_all && progress->n_files <= FILES_MAX);
        check_summary(&progress->summary);
        /* The same bytes in place of memory that a part has shared and spoilt. */
        memset(progress, 0, sizeof *progress);
        if (n > 0)
                memcpy(&progress->summary.measures, data,
                       MIN(n, sizeof progress->summary.measures));
        progress->summary.n_measures = n > 0 ? data[0] : 0;
        check_summary(&progress->summary);
        free(progress);
        (void)close(root_fd);
        char *name = strrchr(root, '/');
        *name = '\0';
        int parent_fd = open(root[0] ? root : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        check(parent_fd >= 0 && fs_remove_tree(parent_fd, name + 1) == 0);
        (void)close(parent_fd);
        return 0;
}
