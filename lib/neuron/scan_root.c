/* Opens the fixed part of a source. Its text is the operator's, but what lies on the way may be
 * anybody's. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/neuron/scan.h"

#define LINKS_MAX 40 /* as the kernel has it */

typedef struct Resolver {
        int dir_fd;          /* where we are */
        char rest[PATH_MAX]; /* what is still to be walked */
        unsigned n_links;
} Resolver;

static int start_at(Resolver *r, bool root) {
        int fd = open(root ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0)
                return -errno;
        cleanup_closep(&r->dir_fd);
        r->dir_fd = fd;
        return 0;
}

/* Puts a link's text in front of what is still to be walked. The text is read from the very link
 * that was judged. */
static int follow(Resolver *r, int link_fd, const char *rest) {
        char target[PATH_MAX];
        size_t n_rest = strlen(rest);
        ssize_t n = readlinkat(link_fd, "", target, sizeof target);

        if (n < 0)
                return -errno;
        if ((size_t)n + 1 + n_rest + 1 > sizeof r->rest)
                return -ENAMETOOLONG;
        memmove(r->rest + n + 1, rest, n_rest + 1);
        memcpy(r->rest, target, (size_t)n);
        r->rest[n] = '/';
        return target[0] == '/' ? start_at(r, true) : 0;
}

static int step(Resolver *r, const char *name, const char *rest) {
        _cleanup_close_ int fd = openat(r->dir_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (S_ISLNK(st.st_mode)) {
                if (++r->n_links > LINKS_MAX || (st.st_uid != 0 && st.st_uid != geteuid()))
                        return -ELOOP;
                return follow(r, fd, rest);
        }
        cleanup_closep(&r->dir_fd);
        r->dir_fd = TAKE_FD(fd);
        memmove(r->rest, rest, strlen(rest) + 1);
        return 0;
}

static void resolver_done(Resolver *r) {
        cleanup_closep(&r->dir_fd);
}

int scan_open_fixed(const char *fixed) {
        _cleanup_(resolver_done) Resolver r = { .dir_fd = -1 };
        char name[NAME_MAX + 1];
        int fd, error;

        if (strlen(fixed) >= sizeof r.rest)
                return -ENAMETOOLONG;
        memcpy(r.rest, fixed, strlen(fixed) + 1);
        error = start_at(&r, fixed[0] == '/');
        while (error == 0) {
                const char *p = r.rest + strspn(r.rest, "/");
                size_t n = strcspn(p, "/");

                if (n == 0)
                        break;
                if (n >= sizeof name)
                        return -ENAMETOOLONG;
                memcpy(name, p, n);
                name[n] = '\0';
                error = step(&r, name, p + n);
        }
        if (error < 0)
                return error;
        fd = openat(r.dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}
