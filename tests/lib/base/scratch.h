/* A temporary directory for one test, removed by other means than the code under test. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Scratch {
        char path[PATH_MAX];
        int fd;
} Scratch;

static inline int scratch_setup(void **state) {
        const char *parent = getenv("TMPDIR");
        Scratch *s = calloc(1, sizeof *s);

        if (!s)
                return -1;
        (void)snprintf(s->path, sizeof s->path, "%s/nc-base-XXXXXX", parent ? parent : "/tmp");
        if (!mkdtemp(s->path))
                return -1;
        s->fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *state = s;
        return s->fd < 0 ? -1 : 0;
}

static inline int scratch_remove_one(const char *path, const struct stat *st, int type,
                                     struct FTW *ftw) {
        (void)st;
        (void)type;
        (void)ftw;
        return remove(path);
}

static inline int scratch_teardown(void **state) {
        Scratch *s = *state;
        int r = nftw(s->path, scratch_remove_one, 32, FTW_DEPTH | FTW_PHYS);

        (void)close(s->fd);
        free(s);
        return r;
}

/** With those above it. @return 0, -errno */
static inline int scratch_make_dirs(const Scratch *s, const char *path) {
        char part[PATH_MAX];
        for (size_t n = 1; n <= strlen(path); n++) {
                (void)snprintf(part, sizeof part, "%.*s", (int)n, path);
                if ((path[n] == '/' || path[n] == '\0') && mkdirat(s->fd, part, 0755) < 0 &&
                    errno != EEXIST)
                        return -errno;
        }
        return 0;
}

/* Writes a file, making a new one. @return 0 or -1, for assert_int_equal */
static inline int scratch_write(const Scratch *s, const char *name, const char *text) {
        int fd = openat(s->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        size_t n = strlen(text);

        if (fd < 0)
                return -1;
        if (write(fd, text, n) != (ssize_t)n) {
                (void)close(fd);
                return -1;
        }
        return close(fd);
}
