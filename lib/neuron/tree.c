/* Reads one directory of a hostile tree at a time, entry by entry or as a sorted list of bounded
 * size, and resolves a path below another root by reading its symlinks itself. Walking a tree, and
 * what its entries mean, is left to the scan and the collectors. */
#include "lib/neuron/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

int tree_open(int parent_fd, const char *path, DIR **ret) {
        if (path[0] == '\0')
                return fs_opendir_at(parent_fd, ".", ret);
        return fs_opendir_fd(fs_open_beneath(parent_fd, path, O_RDONLY | O_DIRECTORY), ret);
}

int tree_open_parent(int dir_fd, const char *path, const char **ret_name) {
        const char *slash = strrchr(path, '/');
        _cleanup_free_ char *parent = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
        *ret_name = slash ? slash + 1 : path;
        return parent ? fs_open_beneath(dir_fd, parent, O_RDONLY | O_DIRECTORY) : -ENOMEM;
}

static TreeType type_of(mode_t mode) {
        if (S_ISREG(mode))
                return TREE_FILE;
        if (S_ISDIR(mode))
                return TREE_DIR;
        return S_ISLNK(mode) ? TREE_SYMLINK : TREE_SPECIAL;
}

static bool is_ignored(const char *name) {
        return name[0] == '.' && (name[1] == '\0' || strcmp(name, "..") == 0);
}

static TreeType entry_type(DIR *dir, const struct dirent *e) {
        struct stat st;

        if (strcmp(e->d_name, ".neuron-collectd") == 0)
                return TREE_RESERVED;
        switch (e->d_type) {
        case DT_REG:
                return TREE_FILE;
        case DT_DIR:
                return TREE_DIR;
        case DT_LNK:
                return TREE_SYMLINK;
        case DT_UNKNOWN: /* some file systems have no d_type */
                if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        return TREE_FILE; /* opening it meets the same error */
                return type_of(st.st_mode);
        default:
                return TREE_SPECIAL;
        }
}

int tree_next(DIR *dir, const char **ret_name, TreeType *ret_type) {
        for (;;) {
                const struct dirent *e;

                errno = 0;
                e = readdir(dir);
                if (!e)
                        return -errno;
                if (is_ignored(e->d_name))
                        continue;
                *ret_type = entry_type(dir, e);
                *ret_name = e->d_name;
                return 1;
        }
}

#define GROWTH_MAX (1024 * 1024)

/* @return the array, with space for `need` items; NULL for lack of memory */
static void *reserve_items(void *items, size_t *max, size_t need, size_t item_bytes) {
        size_t n = *max > 0 ? *max : 1024 / item_bytes;
        void *grown;

        if (need <= *max)
                return items;
        while (n < need)
                n += n * item_bytes < GROWTH_MAX ? n : GROWTH_MAX / item_bytes;
        grown = reallocarray(items, n, item_bytes);
        if (grown)
                *max = n;
        return grown;
}

static int add_entry(TreeList *list, const char *name, TreeType type) {
        size_t n = strlen(name) + 1;
        TreeEntry *entries;
        char *names;

        if (list->n_bytes > UINT32_MAX - n)
                return -EOVERFLOW;
        names = reserve_items(list->names, &list->max_bytes, list->n_bytes + n, 1);
        if (!names)
                return -ENOMEM;
        list->names = names;
        entries = reserve_items(list->entries, &list->max, list->n + 1, sizeof *entries);
        if (!entries)
                return -ENOMEM;
        list->entries = entries;
        memcpy(names + list->n_bytes, name, n);
        entries[list->n++] = (TreeEntry){ (uint32_t)list->n_bytes, type };
        list->n_bytes += n;
        return 0;
}

static unsigned char byte_at(const char *name, size_t i, TreeType type) {
        return name[i] == '\0' && type == TREE_DIR ? '/' : (unsigned char)name[i];
}

static int compare_entries(const void *pa, const void *pb, void *names) {
        const TreeEntry *a = pa, *b = pb;
        const char *x = (const char *)names + a->name, *y = (const char *)names + b->name;
        size_t i = 0;

        while (x[i] != '\0' && x[i] == y[i])
                i++;
        return (int)byte_at(x, i, a->type) - (int)byte_at(y, i, b->type);
}

static void sort_entries(TreeList *list) {
        if (list->n > 1)
                qsort_r(list->entries, list->n, sizeof *list->entries, compare_entries,
                        list->names);
}

static int compare_offsets(const void *pa, const void *pb) {
        const TreeEntry *a = pa, *b = pb;
        return (a->name > b->name) - (a->name < b->name);
}

/* Drops the entries that sort last, and closes the gaps between the names of the others. */
static void drop_last(TreeList *list, size_t max_names, size_t max_bytes) {
        size_t n = 0, n_bytes = 0;

        sort_entries(list);
        while (n < MIN(list->n, max_names)) {
                n_bytes += strlen(tree_list_name(list, n)) + 1;
                if (n_bytes > max_bytes)
                        break;
                n++;
        }
        list->n_dropped += list->n - n;
        list->n = n;
        if (n > 1)
                qsort(list->entries, n, sizeof *list->entries, compare_offsets);
        list->n_bytes = 0;
        for (size_t i = 0; i < n; i++) {
                const char *name = tree_list_name(list, i);
                size_t bytes = strlen(name) + 1;
                memmove(list->names + list->n_bytes, name, bytes);
                list->entries[i].name = (uint32_t)list->n_bytes;
                list->n_bytes += bytes;
        }
}

static bool is_beyond(const TreeList *list, size_t max_names, size_t max_bytes) {
        return list->n > max_names || list->n_bytes > max_bytes;
}

static size_t with_slack(size_t max) {
        return max > SIZE_MAX / 2 ? max : max + max / 8;
}

int tree_list_read(TreeList *list, DIR *dir, const TreeBounds *bounds) {
        const char *name;
        TreeType type;
        int r;

        *list = (TreeList){ .n = 0 };
        while ((r = tree_next(dir, &name, &type)) > 0) {
                list->n_bytes_read += strlen(name) + 1;
                if (list->n_bytes_read > bounds->n_bytes_read) {
                        list->n_dropped++; /* stands for all entries that were not read */
                        r = 0;
                        break;
                }
                r = add_entry(list, name, type);
                if (r < 0)
                        return r;
                if (is_beyond(list, with_slack(bounds->n_names), with_slack(bounds->n_bytes)))
                        drop_last(list, bounds->n_names, bounds->n_bytes);
        }
        if (is_beyond(list, bounds->n_names, bounds->n_bytes))
                drop_last(list, bounds->n_names, bounds->n_bytes);
        sort_entries(list);
        return r;
}

void tree_list_done(TreeList *list) {
        free(list->names);
        free(list->entries);
        *list = (TreeList){ .n = 0 };
}

bool tree_error_is_resource(int error) {
        return error == -ENOMEM || error == -EMFILE || error == -ENFILE || error == -EOVERFLOW;
}

/* ---- resolving a path below another root ---- */

#define LINKS_MAX 40 /* the kernel's limit, path_resolution(7) */

typedef struct Resolver {
        int fds[FS_DEPTH_MAX]; /* owned, except the first, which is the root */
        size_t n;
        char path[PATH_MAX]; /* the components that are not resolved yet */
        unsigned n_links;
        bool (*may_follow)(const struct stat *link); /* NULL: any */
} Resolver;

enum { WALK_E_END = 1, WALK_E_LINK };

static void walk_back(Resolver *w, size_t to) {
        while (w->n > to)
                (void)close(w->fds[--w->n]); /* paths only */
}

static int walk_link(Resolver *w, int link_fd, const char *rest) {
        char target[PATH_MAX], joined[PATH_MAX];
        ssize_t n = readlinkat(link_fd, "", target, sizeof target - 1);

        if (n < 0)
                return -errno;
        target[n] = '\0';
        if (++w->n_links > LINKS_MAX)
                return -ELOOP;
        if (snprintf(joined, sizeof joined, "%s/%s", target, rest) >= (int)sizeof joined)
                return -ENAMETOOLONG;
        if (target[0] == '/')
                walk_back(w, 1);
        memcpy(w->path, joined, strlen(joined) + 1);
        return WALK_E_LINK;
}

/* Resolves one component. @return 0: a directory, or `.` and `..`; WALK_E_LINK: a symlink, whose
 * target has replaced it in w->path; WALK_E_END and *ret_fd: the path ends here in something else
 */
static int walk_step(Resolver *w, char *name, const char *rest, int *ret_fd) {
        _cleanup_close_ int fd = -1;
        struct stat st;

        if (strcmp(name, ".") == 0)
                return 0;
        if (strcmp(name, "..") == 0) {
                if (w->n > 1)
                        walk_back(w, w->n - 1);
                return 0;
        }
        fd = openat(w->fds[w->n - 1], name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (S_ISLNK(st.st_mode))
                return w->may_follow && !w->may_follow(&st) ? -ELOOP : walk_link(w, fd, rest);
        if (S_ISDIR(st.st_mode)) {
                if (w->n == FS_DEPTH_MAX)
                        return -ENAMETOOLONG;
                w->fds[w->n++] = TAKE_FD(fd);
                return 0;
        }
        if (*rest != '\0')
                return -ENOTDIR;
        *ret_fd = TAKE_FD(fd);
        return WALK_E_END;
}

static int walk_all(Resolver *w) {
        char rest[PATH_MAX];
        int fd = -1;

        for (;;) {
                char *name = w->path + strspn(w->path, "/");
                size_t n = strcspn(name, "/");

                if (n == 0)
                        break;
                (void)snprintf(rest, sizeof rest, "%s", name + n + strspn(name + n, "/"));
                name[n] = '\0';
                int r = walk_step(w, name, rest, &fd);
                if (r < 0 || r == WALK_E_END)
                        return r < 0 ? r : fd;
                if (r == 0)
                        memcpy(w->path, rest, strlen(rest) + 1);
        }
        fd = fcntl(w->fds[w->n - 1], F_DUPFD_CLOEXEC, 0);
        return fd < 0 ? -errno : fd;
}

int tree_resolve(int root_fd, const char *path, bool (*may_follow)(const struct stat *link)) {
        Resolver w = { .fds = { root_fd }, .n = 1, .may_follow = may_follow };
        int r;

        if (snprintf(w.path, sizeof w.path, "%s", path) >= (int)sizeof w.path)
                return -ENAMETOOLONG;
        r = walk_all(&w);
        walk_back(&w, 1);
        return r;
}
