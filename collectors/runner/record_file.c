/* A file of records in the directory of a snapshot. A collector's child may have been killed while
 * it wrote, so that the last line may be incomplete. What is in a line is checked in document.c and
 * differences.c. */
#include "collectors/runner/record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

/* @param fd  closed with *ret, or on error */
static int open_stream(FILE **ret, int fd, const char *mode) {
        *ret = fdopen(fd, mode);
        if (*ret)
                return 0;
        (void)close(fd); /* nothing was written */
        return -ENOMEM;
}

int record_file_create(FILE **ret, int dir_fd, const char *name) {
        if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
                return -errno;
        int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        return fd < 0 ? -errno : open_stream(ret, fd, "w");
}

int record_file_lines(int dir_fd, const char *name,
                      int (*on_line)(const char *line, size_t n, void *userdata), void *userdata) {
        int fd = fs_open_regular(dir_fd, name, NULL);
        if (fd < 0)
                return fd == -ENOENT ? 0 : fd;
        _cleanup_fclose_ FILE *f = NULL;
        int r = open_stream(&f, fd, "r");
        if (r < 0)
                return r;
        _cleanup_free_ char *line = NULL;
        size_t n_allocated = 0;
        for (;;) {
                errno = 0;
                ssize_t n = getline(&line, &n_allocated, f); /* the file itself is bounded */
                if (n < 0)
                        return ferror(f) ? -EIO : errno == ENOMEM ? -ENOMEM : 0;
                bool is_whole = line[n - 1] == '\n' && n <= RECORD_LINE_MAX;
                if (line[n - 1] == '\n')
                        line[--n] = '\0';
                r = on_line(is_whole ? line : NULL, (size_t)n, userdata);
                if (r < 0)
                        return r;
        }
}
