/* The walk over pins and the sorted table it fills. */
#include "agent/retention/pin_inodes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

void pin_inodes_done(PinInodes *s) {
        for (size_t i = 0; i < s->n; i++)
                free(s->items[i].path);
        free(s->items);
        *s = (PinInodes){ 0 };
}

static int add_inode(PinInodes *s, const char *path, const struct stat *st) {
        if (s->n >= s->max) {
                s->is_whole = false;
                return 0;
        }
        if (s->n == s->n_allocated) {
                size_t n = s->n_allocated ? 2 * s->n_allocated : 64;
                PinInode *bigger = realloc(s->items, n * sizeof *bigger);
                if (!bigger)
                        return -ENOMEM;
                s->items = bigger;
                s->n_allocated = n;
        }
        char *copy = strdup(path);
        if (!copy)
                return -ENOMEM;
        s->items[s->n++] = (PinInode){ .dev = st->st_dev,
                                       .ino = st->st_ino,
                                       .n_links = st->st_nlink,
                                       .bytes = (uint64_t)st->st_blocks * 512,
                                       .place = s->place,
                                       .path = copy };
        return 0;
}

/* A directory of the walk. */
typedef struct Level {
        int fd;
        const char *prefix; /* of its entries' paths; for the top: NULL */
        unsigned depth;
        const char *except; /* a name that is left out; NULL = none */
} Level;

static int add_entries(PinInodes *s, const Level *at);

static int add_entry(PinInodes *s, const Level *at, const char *name, const char *path) {
        struct stat st;
        if (fstatat(at->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return 0; /* let go meanwhile: no name any more */
        if (S_ISREG(st.st_mode))
                return add_inode(s, path, &st);
        if (!S_ISDIR(st.st_mode))
                return 0;
        _cleanup_close_ int fd =
                openat(at->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || at->depth >= FS_DEPTH_MAX + 1) {
                s->is_whole = s->is_whole && fd < 0 && errno == ENOENT;
                return 0;
        }
        return add_entries(s, &(Level){ .fd = fd, .prefix = path, .depth = at->depth + 1 });
}

static int add_entries(PinInodes *s, const Level *at) {
        _cleanup_closedir_ DIR *dir = NULL;
        if (fs_opendir_at(at->fd, ".", &dir) < 0) {
                s->is_whole = false;
                return 0;
        }
        while (s->n < s->max || s->is_whole) {
                struct dirent *entry = readdir(dir);
                if (!entry)
                        break;
                const char *name = entry->d_name;
                if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
                    (at->except && strcmp(name, at->except) == 0))
                        continue;
                _cleanup_free_ char *path = at->prefix ? path_join(at->prefix, name) : strdup(name);
                int r = path ? add_entry(s, at, name, path) : -ENOMEM;
                if (r < 0)
                        return r;
        }
        return 0;
}

int pin_inodes_add_tree(PinInodes *s, int dir_fd, const char *except) {
        return add_entries(s, &(Level){ .fd = dir_fd, .depth = 0, .except = except });
}

static int compare(const void *a, const void *b) {
        const PinInode *x = a, *y = b;
        if (x->dev != y->dev)
                return x->dev < y->dev ? -1 : 1;
        return (x->ino > y->ino) - (x->ino < y->ino);
}

void pin_inodes_sort(PinInodes *s) {
        if (s->n > 0) /* qsort(3) wants no NULL */
                qsort(s->items, s->n, sizeof *s->items, compare);
}

size_t pin_inodes_count(const PinInodes *s, dev_t dev, ino_t ino, size_t *ret_first) {
        PinInode key = { .dev = dev, .ino = ino };
        size_t low = 0, high = s->n;
        while (low < high) {
                size_t mid = low + (high - low) / 2;
                if (compare(&s->items[mid], &key) < 0)
                        low = mid + 1;
                else
                        high = mid;
        }
        if (ret_first)
                *ret_first = low;
        size_t n = 0;
        while (low + n < s->n && compare(&s->items[low + n], &key) == 0)
                n++;
        return n;
}
