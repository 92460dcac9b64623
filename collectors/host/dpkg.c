#include "collectors/host/dpkg.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "lib/base/cleanup.h"

enum { STATUS_BYTES_MAX = 64 << 20, CHUNK_BYTES = 64 << 10 };

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
        for (size_t end = strlen(to); end > 0 && strchr(" \t\r", to[end - 1]);)
                to[--end] = '\0';
}

static void parse_line(DpkgParser *p) {
        p->line[MIN(p->n_line, sizeof p->line - 1)] = '\0';
        if (p->line[strspn(p->line, " \t\r")] == '\0' && p->n_line < sizeof p->line)
                finish_package(p); /* an empty line parts two packages */
        else {
                copy_field(p->line, "Package", p->name, sizeof p->name);
                copy_field(p->line, "Version", p->version, sizeof p->version);
                copy_field(p->line, "Status", p->status, sizeof p->status);
        }
        p->n_line = 0;
}

void dpkg_supply_data(DpkgParser *p, const char *data, size_t n) {
        while (n > 0) {
                const char *newline = memchr(data, '\n', n);
                size_t size = newline ? (size_t)(newline - data) : n,
                       room = sizeof p->line - p->n_line;

                memcpy(p->line + p->n_line, data, MIN(size, room));
                p->n_line += MIN(size, room);
                if (newline) {
                        parse_line(p);
                        size++;
                }
                data += size;
                n -= size;
        }
}

void dpkg_end(DpkgParser *p) {
        if (p->n_line > 0)
                parse_line(p);
        finish_package(p);
}

int dpkg_read(DpkgParser *p, int fd) {
        _cleanup_free_ char *chunk = malloc(CHUNK_BYTES);

        if (!chunk)
                return -ENOMEM;
        for (size_t total = 0; total < STATUS_BYTES_MAX;) {
                ssize_t n = read(fd, chunk, CHUNK_BYTES);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (n == 0)
                        return 0;
                dpkg_supply_data(p, chunk, (size_t)n);
                total += (size_t)n;
        }
        return 1;
}
