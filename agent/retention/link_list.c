/* The list of directories with links: a text file that only grows, so that a line is never lost.
 * Each line is written with a newline before it and one after it, since a crash may have cut the
 * last one. Readers ignore empty lines. */
#include "agent/retention/link_list.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"

#define LIST_BYTES_MAX MIB

typedef struct LinkListSearch {
        const char *directory;
        bool is_found;
} LinkListSearch;

static void on_line(const char *directory, void *userdata) {
        LinkListSearch *s = userdata;
        s->is_found = s->is_found || strcmp(directory, s->directory) == 0;
}

int link_list_read(const char *file, void (*on_directory)(const char *directory, void *userdata),
                   void *userdata) {
        _cleanup_free_ char *text = NULL;
        int r = fs_read_file(AT_FDCWD, file, LIST_BYTES_MAX, &text, NULL);
        char *rest = NULL;
        for (char *line = r == 0 ? strtok_r(text, "\n", &rest) : NULL; line;
             line = strtok_r(NULL, "\n", &rest))
                on_directory(line, userdata);
        return r;
}

/* Appends a line. What a full disk leaves of it is removed again, since the rest may be the name of
 * another directory. */
static int append(int fd, const char *line) {
        struct stat st;
        if (flock(fd, LOCK_EX) < 0 || fstat(fd, &st) < 0) /* another worker may be adding a line */
                return -errno;
        int r = fs_write_all(fd, line, strlen(line));
        if (r == 0 && fsync(fd) < 0)
                r = -errno;
        if (r < 0 && ftruncate(fd, st.st_size) < 0)
                r = -errno;
        return r;
}

int link_list_add(const char *file, const char *directory) {
        LinkListSearch s = { .directory = directory };
        int r = link_list_read(file, on_line, &s);
        if (s.is_found || (r < 0 && r != -ENOENT))
                return r;
        /* The line before may have been cut by a crash. */
        _cleanup_free_ char *line = strbuf_format("\n%s\n", directory);
        if (!line)
                return -ENOMEM;
        _cleanup_close_ int fd =
                open(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return -errno;
        return append(fd, line);
}
