#include "lib/neuron/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

int tree_open(int parent_fd, const char *path, DIR **ret) {
        if (path[0] == '\0')
                return fs_opendir_at(parent_fd, ".", ret);
        return fs_opendir_fd(fs_open_beneath(parent_fd, path, O_RDONLY | O_DIRECTORY), ret);
}

static TreeType type_of(mode_t mode) {
        if (S_ISREG(mode))
                return TREE_FILE;
        if (S_ISDIR(mode))
                return TREE_DIR;
        return S_ISLNK(mode) ? TREE_SYMLINK : TREE_SPECIAL;
}

static bool is_ignored(const char *name) {
        return name[0] == '.' && (name[1] == '\0' || strcmp(name, "..") == 0 ||
                                  strcmp(name, ".neuron-collectd") == 0);
}

static TreeType entry_type(DIR *dir, const struct dirent *e) {
        struct stat st;

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

/* @return the array, with space for `need` items; NULL for lack of memory */
static void *reserve_items(void *items, size_t *max, size_t need, size_t item_bytes) {
        size_t n = *max > 0 ? *max : 1024 / item_bytes;
        void *grown;

        if (need <= *max)
                return items;
        while (n < need)
                n *= 2;
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

int tree_list_read(TreeList *list, DIR *dir) {
        const char *name;
        TreeType type;
        int r;

        *list = (TreeList){ .n = 0 };
        while ((r = tree_next(dir, &name, &type)) > 0) {
                r = add_entry(list, name, type);
                if (r < 0)
                        return r;
        }
        if (list->n > 1)
                qsort_r(list->entries, list->n, sizeof *list->entries, compare_entries,
                        list->names);
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
