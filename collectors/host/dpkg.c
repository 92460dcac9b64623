/* Reads dpkg's status file, line by line, with little memory. The file may be a container's and
 * hostile: lines that are too long are cut, and reading ends after 64 MiB. Which packages matter is
 * decided by the caller. */
#include "collectors/host/dpkg.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "lib/base/cleanup.h"

enum { STATUS_BYTES_MAX = 64 << 20 };

static void finish_package(DpkgParser *p) {
        if (p->name[0] != '\0')
                p->on_package(p, p->userdata);
        p->name[0] = p->version[0] = p->status[0] = '\0';
}

static void copy_field(const char *line, const char *name, char *to, size_t size) {
        size_t n = strlen(name);

        if (strncasecmp(line, name, n) != 0 || line[n] != ':')
                return;
        line += n + 1;
        line += strspn(line, " \t");
        (void)snprintf(to, size, "%s", line);
        for (size_t end = strlen(to); end > 0 && strchr(" \t\r\n", to[end - 1]);)
                to[--end] = '\0';
}

static void parse_line(DpkgParser *p) {
        if (p->line[strspn(p->line, " \t\r\n")] == '\0') {
                finish_package(p); /* an empty line separates packages */
                return;
        }
        copy_field(p->line, "Package", p->name, sizeof p->name);
        copy_field(p->line, "Version", p->version, sizeof p->version);
        copy_field(p->line, "Status", p->status, sizeof p->status);
}

int dpkg_read(DpkgParser *p, int fd) {
        _cleanup_close_ int own_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        _cleanup_fclose_ FILE *f = own_fd < 0 ? NULL : fdopen(own_fd, "r");
        bool is_rest = false; /* the buffer has the rest of a line that was cut */

        if (!f)
                return -errno;
        own_fd = -1; /* the stream's */
        /* The bound is on the position in the file, not on the sum of strlen(): a line may contain
         * NULs. ftello() is a system call, so it is called for every 1024th line only. */
        for (unsigned i = 0;
             (i % 1024 != 0 || ftello(f) < STATUS_BYTES_MAX) && fgets(p->line, sizeof p->line, f);
             i++) {
                size_t n = strlen(p->line);
                if (!is_rest)
                        parse_line(p);
                is_rest = n == 0 || p->line[n - 1] != '\n';
        }
        finish_package(p);
        return ferror(f) ? -EIO : ftello(f) >= STATUS_BYTES_MAX;
}
