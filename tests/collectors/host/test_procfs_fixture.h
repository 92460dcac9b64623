/* A proc root made of files, and an order that points at it. What a collector says about it:
 * test_procfs_records.h. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "tests/lib/base/scratch.h"

enum { FAKE_PROCESSES_MAX = 8, FAKE_OUTPUT_MAX = 8 << 20 };

typedef struct Fake {
        Scratch *s;
        char proc_root[PATH_MAX], device_directory[PATH_MAX], sysfs_root[PATH_MAX];
        CollectProcess processes[FAKE_PROCESSES_MAX];
        CollectRequest request;
        CollectOut out;
        int raw_fd;
        json_t *records; /* of the last run: an array */
        char *text;      /* the same, and all raw files behind it */
} Fake;

static inline void fake_path(const Fake *f, char path[static PATH_MAX], const char *name) {
        assert_true(snprintf(path, PATH_MAX, "%s/%s", f->s->path, name) < PATH_MAX);
}

static inline void fake_mkdir(const Fake *f, const char *name) {
        char path[PATH_MAX];
        fake_path(f, path, name);
        for (char *slash = path + strlen(f->s->path) + 1; (slash = strchr(slash, '/')); slash++) {
                *slash = '\0';
                assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
                *slash = '/';
        }
        assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
}

static inline void fake_write(const Fake *f, const char *name, const void *data, size_t n) {
        char directory[PATH_MAX], path[PATH_MAX];
        assert_true(snprintf(directory, sizeof directory, "%s", name) < PATH_MAX);
        if (strrchr(directory, '/')) {
                *strrchr(directory, '/') = '\0';
                fake_mkdir(f, directory);
        }
        fake_path(f, path, name);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, data, n), (ssize_t)n);
        assert_int_equal(close(fd), 0);
}

static inline void fake_text(const Fake *f, const char *name, const char *text) {
        fake_write(f, name, text, strlen(text));
}

static inline void fake_link(const Fake *f, const char *name, const char *target) {
        char directory[PATH_MAX];
        assert_true(snprintf(directory, sizeof directory, "%s", name) < PATH_MAX);
        *strrchr(directory, '/') = '\0';
        fake_mkdir(f, directory);
        assert_int_equal(symlinkat(target, f->s->fd, name), 0);
}

static inline void fake_stat(const Fake *f, int pid, const char *comm, char state,
                             uint64_t start_ticks) {
        char name[64], text[512];
        (void)snprintf(name, sizeof name, "proc/%d/stat", pid);
        (void)snprintf(text, sizeof text,
                       "%d (%s) %c 1 %d %d 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 %lu 1000 200 "
                       "18446744073709551615\n",
                       pid, comm, state, pid, pid, (unsigned long)start_ticks);
        fake_text(f, name, text);
}

/* A process with the files that all have. */
static inline void fake_process(const Fake *f, int pid, const char *comm, uint64_t start_ticks) {
        char name[64];
        fake_stat(f, pid, comm, 'S', start_ticks);
        (void)snprintf(name, sizeof name, "proc/%d/fd", pid);
        fake_mkdir(f, name);
        (void)snprintf(name, sizeof name, "proc/%d/fd/0", pid);
        fake_link(f, name, "/dev/null");
        (void)snprintf(name, sizeof name, "proc/%d/statm", pid);
        fake_text(f, name, "100000 1 1 1 0 1 0\n");
}

static inline Fake *fake_new(void) {
        Fake *f = calloc(1, sizeof *f);
        void *state = NULL;
        assert_non_null(f);
        assert_int_equal(scratch_setup(&state), 0);
        f->s = state;
        fake_mkdir(f, "proc");
        fake_mkdir(f, "dev");
        fake_mkdir(f, "sys");
        fake_mkdir(f, "raw");
        fake_path(f, f->proc_root, "proc");
        fake_path(f, f->device_directory, "dev");
        fake_path(f, f->sysfs_root, "sys");
        f->raw_fd = openat(f->s->fd, "raw", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        f->request = (CollectRequest){ .proc_root = f->proc_root,
                                       .device_directory = f->device_directory,
                                       .sysfs_root = f->sysfs_root,
                                       .timeout_usec = 5 * USEC_PER_SEC,
                                       .max_bytes = 4 * MIB,
                                       .processes = f->processes };
        return f;
}

static inline void fake_order_process(Fake *f, pid_t pid, uint64_t start_ticks) {
        assert_true(f->request.n_processes < FAKE_PROCESSES_MAX);
        f->processes[f->request.n_processes++] =
                (CollectProcess){ .pid = pid, .start_ticks = start_ticks };
}

static inline void fake_forget(Fake *f) {
        if (f->records)
                json_decref(f->records);
        free(f->text);
        f->records = NULL;
        f->text = NULL;
}

static inline void fake_free(Fake *f) {
        void *state = f->s;
        fake_forget(f);
        (void)close(f->raw_fd);
        assert_int_equal(scratch_teardown(&state), 0);
        free(f);
}

/* For cmocka_unit_test_setup_teardown(). */
static inline int fake_setup(void **state) {
        *state = fake_new();
        return 0;
}

static inline int fake_teardown(void **state) {
        fake_free(*state);
        return 0;
}
