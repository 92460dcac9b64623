/* Reads one directory of a hostile tree at a time: opened without following symlinks, its entries
 * unsorted or as a sorted list; and resolves paths below another root. */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

typedef enum TreeType {
        TREE_FILE,
        TREE_DIR,
        TREE_SYMLINK,
        TREE_SPECIAL,
        TREE_RESERVED, /* `.neuron-collectd`, whatever it is */
} TreeType;

/** Opens a directory below another. @param path  "" = parent itself, by a descriptor of its own
 * @return 0, as fs_open_beneath() otherwise (-ELOOP symlink, -ENOTDIR, -ENOENT, -EACCES) */
int tree_open(int parent_fd, const char *path, DIR **ret);

/** Opens the directory that contains a path below another.
 * @param ret_name  the last component of the path; borrowed from it
 * @return a descriptor of the caller's; as fs_open_beneath() otherwise, -ENOMEM */
int tree_open_parent(int dir_fd, const char *path, const char **ret_name);

/** Reads the next entry; `.` and `..` are left out.
 * @param ret_name  borrowed until the next call
 * @return 1; 0 at the end; -errno when the directory cannot be read on (-ENOENT: it was removed) */
int tree_next(DIR *dir, const char **ret_name, TreeType *ret_type);

typedef struct TreeEntry {
        uint32_t name; /* offset into names */
        TreeType type;
} TreeEntry;

/** A directory's entries, in the order that makes a depth-first walk come out in strcmp order of
 * whole paths: a directory's name counts as if it ended in a slash, as its members' paths do. So
 * `a.b` comes before what is in `a/`, and `a0` after it. */
typedef struct TreeList {
        char *names;
        size_t n_bytes, max_bytes;
        TreeEntry *entries;
        size_t n, max;
        size_t n_bytes_read;
        uint64_t n_dropped; /* entries beyond the bounds; where reading was cut short, at least */
} TreeList;

typedef struct TreeBounds {      /* SIZE_MAX = none */
        size_t n_names, n_bytes; /* kept; > 0 */
        size_t n_bytes_read;     /* of names, kept or not */
} TreeBounds;
#define TREE_UNBOUNDED                                                                             \
        (TreeBounds) {                                                                             \
                SIZE_MAX, SIZE_MAX, SIZE_MAX                                                       \
        }

/** Reads a directory: all entries, or, when there are more than the bounds allow, the first ones in
 * that order of those that were read. While it reads, it takes an eighth more memory than that.
 * The list is to be tree_list_done(), also after a failure.
 * @return 0; -ENOMEM; -EOVERFLOW above 4 GiB of names; otherwise the errno of reading, with what
 * could be read */
int tree_list_read(TreeList *list, DIR *dir, const TreeBounds *bounds);
void tree_list_done(TreeList *list);
static inline const char *tree_list_name(const TreeList *list, size_t i) {
        return list->names + list->entries[i].name;
}

/** @return whether it is a lack of memory or descriptors, which ends a scan, not an error of
 * the tree */
bool tree_error_is_resource(int error);

/** Opens a path as a process with that root directory would: links, absolute and `..` too, stay
 * inside, and a magic link is only its text. `..` goes back along the directories that the path
 * came by.
 * @param may_follow  whether a link may be followed (else -ELOOP); NULL: any may
 * @return an O_PATH fd of the caller's; -ELOOP, -ENOENT, -ENOTDIR, -ENAMETOOLONG also for more than
 * FS_DEPTH_MAX components, … */
int tree_resolve(int root_fd, const char *path, bool (*may_follow)(const struct stat *link));
