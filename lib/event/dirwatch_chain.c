/* The way to a watched root. Ancestors are only told of their own move or removal, which costs nothing while others work in them;
 * the last one that exists is also told of new names, but only while the root is missing. */
#include "lib/event/dirwatch_chain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/path.h"

#define SELF_MASK (IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR)
#define AWAIT_MASK (SELF_MASK | IN_CREATE | IN_MOVED_TO | IN_EXCL_UNLINK)
#define ROUNDS_MAX                                                                                 \
        1000 /* somebody who makes and removes an ancestor as fast as we look must not hold the loop */

int dirwatch_chain_init(DirwatchChain *c, const char *root) {
        _cleanup_free_ char *path = NULL;
        _cleanup_free_ size_t *ends = NULL;
        _cleanup_free_ int *wds = NULL;
        size_t n = 0;

        if (root[0] != '/')
                return -EINVAL;
        path = path_simplify(root);
        if (!path)
                return -ENOMEM;
        if (path[1] == '\0')
                return -EINVAL; /* everything is no source */
        for (const char *p = path; *p; p++)
                n += *p == '/';
        ends = calloc(n, sizeof *ends);
        wds = calloc(n, sizeof *wds);
        if (!ends || !wds)
                return -ENOMEM;
        n = 0;
        for (const char *p = path; *p; p++)
                if (*p == '/') {
                        ends[n] = MAX((size_t)(p - path), (size_t)1);
                        wds[n++] = -1;
                }
        *c = (DirwatchChain){
                .path = TAKE_PTR(path), .ends = TAKE_PTR(ends), .wds = TAKE_PTR(wds), .n = n
        };
        return 0;
}

void dirwatch_chain_done(DirwatchChain *c) {
        free(c->path);
        free(c->ends);
        free(c->wds);
        *c = (DirwatchChain){ 0 };
}

int dirwatch_add_watch(int inotify_fd, int fd, uint32_t mask) {
        char name[32];
        int wd;

        /* By the descriptor's link in /proc: a path could lead elsewhere by now. IN_DONT_FOLLOW would watch that link itself. */
        (void)snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        wd = inotify_add_watch(inotify_fd, name, mask);
        return wd < 0 ? -errno : wd;
}

/* Opens ancestor i, or the root itself for i == n. Symlinks among the ancestors are the administrator's choice, the root is none. */
static int open_step(DirwatchChain *c, size_t i, int flags) {
        struct stat st;
        char saved;
        int fd;

        if (i == c->n)
                flags |= O_NOFOLLOW;
        saved = i < c->n ? c->path[c->ends[i]] : '\0';
        if (i < c->n)
                c->path[c->ends[i]] = '\0';
        fd = open(c->path, flags | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                fd = -errno;
        if (fd == -ENOTDIR && i == c->n && lstat(c->path, &st) == 0 && S_ISLNK(st.st_mode))
                fd = -ELOOP; /* with O_DIRECTORY the kernel calls a symlink ENOTDIR, and the remedy is another */
        if (i < c->n)
                c->path[c->ends[i]] = saved;
        return fd;
}

static void replace_watch(DirwatchChain *c, int inotify_fd, size_t i, int wd) {
        if (c->wds[i] >= 0 && c->wds[i] != wd)
                (void)inotify_rm_watch(
                        inotify_fd,
                        c->wds[i]); /* gone with its directory, or else not ours any more */
        c->wds[i] = wd;
}

/* Watches ancestor i. @return 0, or why it is not there or, where it matters, not watched */
static int watch_step(DirwatchChain *c, int inotify_fd, size_t i, uint32_t mask) {
        _cleanup_close_ int fd = open_step(c, i, O_PATH);
        int wd;

        if (fd < 0) {
                replace_watch(c, inotify_fd, i, -1);
                return fd;
        }
        wd = dirwatch_add_watch(inotify_fd, fd, mask);
        replace_watch(c, inotify_fd, i, wd < 0 ? -1 : wd);
        return wd < 0 && mask == AWAIT_MASK ? wd : 0; /* only the one that we wait on is needed */
}

int dirwatch_chain_settle(DirwatchChain *c, int inotify_fd, int *ret_fd) {
        for (unsigned round = 0; round < ROUNDS_MAX; round++) {
                size_t present = 0;
                int fd, r, next;

                while (present < c->n && watch_step(c, inotify_fd, present, SELF_MASK) == 0)
                        present++;
                for (size_t i = present; i < c->n; i++)
                        replace_watch(c, inotify_fd, i, -1);
                c->n_present = present;
                c->is_waiting = false;

                fd = open_step(c, c->n, O_RDONLY);
                if (fd >= 0) {
                        *ret_fd = fd;
                        return DIRWATCH_CHAIN_THERE;
                }
                if (present == 0)
                        return fd;
                c->is_waiting = true;
                r = watch_step(c, inotify_fd, present - 1, AWAIT_MASK);
                if (r == -ENOENT || r == -ENOTDIR)
                        continue;
                if (r < 0)
                        return r;
                /* What appeared before this watch was in place raised no event. */
                next = open_step(c, present, present == c->n ? O_RDONLY : O_PATH);
                if (next < 0)
                        return fd == -ENOENT ? DIRWATCH_CHAIN_WAITING : fd;
                (void)close(next);
        }
        return DIRWATCH_CHAIN_WAITING;
}

bool dirwatch_chain_concerns(const DirwatchChain *c, const struct inotify_event *e) {
        for (size_t i = 0; i < c->n; i++) {
                const char *name;
                size_t bytes;

                if (c->wds[i] != e->wd)
                        continue;
                if (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT))
                        return true;
                if (!c->is_waiting || i + 1 != c->n_present || e->len == 0)
                        return false;
                name = c->path + c->ends[i] + (i > 0);
                bytes = strcspn(name, "/");
                return strlen(e->name) == bytes && memcmp(name, e->name, bytes) == 0;
        }
        return false;
}

size_t dirwatch_chain_n_watches(const DirwatchChain *c) {
        size_t n = 0;

        for (size_t i = 0; i < c->n; i++)
                n += c->wds[i] >= 0;
        return n;
}
