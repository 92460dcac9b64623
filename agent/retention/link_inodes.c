/* Sets of inodes that our links hold. st_nlink of a source's file counts our links too; to know
 * whether a user still has a name for the file, or a stranger has linked it, one has to know which
 * of its names are links of ours: of the same bundle, of another one (a unit that was renamed is
 * another bundle, and sources may overlap) or, on a network file system, of another node.
 *
 * A set is filled by reading whole trees of links, which may be large, so every user of it gives a
 * limit. What cannot be read is left out, and the set says so. */
#include "agent/retention/link_inodes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

void link_inodes_init(LinkInodes *s, size_t max) {
        *s = (LinkInodes){ .max = max, .is_complete = true };
}

void link_inodes_done(LinkInodes *s) {
        for (size_t i = 0; i < s->n; i++)
                free(s->items[i].path);
        free(s->items);
        *s = (LinkInodes){ 0 };
}

/* A directory that is being read. */
typedef struct InodeLevel {
        int fd;
        LinkPlace place;
        const char *prefix; /* of its entries' paths; NULL at the top */
        unsigned depth;
        const char *except; /* an entry that is left out; NULL: none */
} InodeLevel;

static int add_inode(LinkInodes *s, const InodeLevel *at, const char *path, const struct stat *st) {
        if (s->n >= s->max) {
                s->is_complete = false;
                return 0;
        }
        if (array_grow(&s->items, s->n, sizeof *s->items) < 0)
                return -ENOMEM;
        char *copy = s->has_no_paths ? NULL : strdup(path);
        if (!copy && !s->has_no_paths)
                return -ENOMEM;
        s->items[s->n++] = (LinkInode){ .dev = st->st_dev,
                                        .ino = st->st_ino,
                                        .n_links = st->st_nlink,
                                        .bytes = (uint64_t)st->st_blocks * 512,
                                        .place = at->place,
                                        .path = copy };
        return 0;
}

static int add_entries(LinkInodes *s, const InodeLevel *at);

static int add_entry(LinkInodes *s, const InodeLevel *at, const char *name, const char *path) {
        struct stat st;
        if (fstatat(at->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return 0; /* released meanwhile */
        if (S_ISREG(st.st_mode))
                return add_inode(s, at, path, &st);
        if (!S_ISDIR(st.st_mode))
                return 0;
        _cleanup_close_ int fd =
                openat(at->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || at->depth >= FS_DEPTH_MAX + 1) {
                s->is_complete = s->is_complete && fd < 0 && errno == ENOENT;
                return 0;
        }
        return add_entries(
                s, &(InodeLevel){
                           .fd = fd, .place = at->place, .prefix = path, .depth = at->depth + 1 });
}

static int add_entries(LinkInodes *s, const InodeLevel *at) {
        _cleanup_closedir_ DIR *dir = NULL;
        if (fs_opendir_at(at->fd, ".", &dir) < 0) {
                s->is_complete = false;
                return 0;
        }
        while (s->n < s->max || s->is_complete) {
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

static int compare(const void *a, const void *b) {
        const LinkInode *x = a, *y = b;
        if (x->dev != y->dev)
                return x->dev < y->dev ? -1 : 1;
        return (x->ino > y->ino) - (x->ino < y->ino);
}

static void sort(LinkInodes *s) {
        if (s->n > 0) /* qsort(3) must not get NULL */
                qsort(s->items, s->n, sizeof *s->items, compare);
}

size_t link_inodes_count(const LinkInodes *s, dev_t dev, ino_t ino, size_t *ret_first) {
        LinkInode key = { .dev = dev, .ino = ino };
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

char *link_inodes_find_path(int dir_fd, const struct stat *st) {
        LinkInodes all;
        size_t first;
        char *path = NULL;
        link_inodes_init(&all, SIZE_MAX);
        (void)add_entries(&all, &(InodeLevel){ .fd = dir_fd }); /* out of memory: it is not found */
        sort(&all);
        if (link_inodes_count(&all, st->st_dev, st->st_ino, &first) > 0)
                path = TAKE_PTR(all.items[first].path);
        link_inodes_done(&all);
        return path;
}

/* @param bundle_id  NULL: all of this node, but `except` */
static int add_links(LinkInodes *s, LinkDirs *dirs, const char *bundle_id, const char *except) {
        int r = 0;
        for (LinkPlace place = 0; r >= 0 && place < N_LINK_PLACES; place++) {
                _cleanup_close_ int fd = link_dirs_open_bundle(dirs, place, bundle_id);
                if (fd >= 0)
                        r = add_entries(
                                s, &(InodeLevel){ .fd = fd, .place = place, .except = except });
        }
        sort(s);
        return r;
}

int link_inodes_add_bundle(LinkInodes *s, LinkDirs *dirs, const char *bundle_id) {
        return add_links(s, dirs, bundle_id, NULL);
}

int link_inodes_add_instance(LinkInodes *s, LinkDirs *dirs, const char *except) {
        return add_links(s, dirs, NULL, except);
}

/* The directory of a node that is gone for ever is read like any other. */
static int add_other_nodes(LinkInodes *s, LinkDirs *dirs, LinkPlace place) {
        _cleanup_closedir_ DIR *dir = NULL;
        uid_t uid;
        int r = 0, root_fd = link_dirs_open_root(dirs, place, false, &uid, NULL);
        if (root_fd >= 0 && !fs_is_network(root_fd, NULL)) {
                (void)close(root_fd); /* was not read */
                return 0;
        }
        if (fs_opendir_fd(root_fd, &dir) < 0)
                return 0;
        for (struct dirent *e; r == 0 && (e = readdir(dir));) {
                struct stat st;
                if (e->d_name[0] == '.' || e->d_name[0] == '@' ||
                    strcmp(e->d_name, link_dirs_instance_id(dirs)) == 0)
                        continue;
                _cleanup_close_ int fd = openat(dirfd(dir), e->d_name,
                                                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (fd >= 0 && fstat(fd, &st) == 0 && link_dirs_is_agents(dirs, &st, uid))
                        r = add_entries(s, &(InodeLevel){ .fd = fd, .place = place });
        }
        return r;
}

int link_inodes_add_other_nodes(LinkInodes *s, LinkDirs *dirs) {
        int r = 0;
        for (LinkPlace place = 0; r >= 0 && place < N_LINK_PLACES; place++)
                r = add_other_nodes(s, dirs, place);
        sort(s);
        return r;
}
