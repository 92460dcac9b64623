/* The inodes that links of ours hold, in a sorted set that tells how many of an inode's names are
 * links of ours. Blocking: call it from a worker. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "agent/retention/link_dirs.h"

/** One link of ours. */
typedef struct LinkInode {
        dev_t dev;
        ino_t ino;
        nlink_t n_links; /* all names of the inode, ours and others' */
        uint64_t bytes;  /* on disk */
        LinkPlace place;
        bool seen;  /* the caller's */
        char *path; /* below the directory that was added, owned; NULL: has_no_paths */
} LinkInode;

/** All zeros is an empty set that takes no member. */
typedef struct LinkInodes {
        LinkInode *items;  /* sorted by device and inode */
        size_t n, max;     /* beyond max nothing is added */
        bool is_complete;  /* nothing was left out */
        bool has_no_paths; /* the caller needs none, which saves a third of the memory */
} LinkInodes;

/** @param max  more links are not added, and is_complete becomes false */
void link_inodes_init(LinkInodes *s, size_t max);
void link_inodes_done(LinkInodes *s);

/** Adds the links of one bundle, in both places. @return 0, -ENOMEM */
int link_inodes_add_bundle(LinkInodes *s, LinkDirs *dirs, const char *bundle_id);
/** Adds the links of all bundles of this node. @param except  a bundle; NULL: none
 * @return 0, -ENOMEM */
int link_inodes_add_instance(LinkInodes *s, LinkDirs *dirs, const char *except);
/** Adds the links of other nodes on a network file system, as far as this process may read them.
 * @return 0, -ENOMEM */
int link_inodes_add_other_nodes(LinkInodes *s, LinkDirs *dirs);

/** @param ret_first  the index of the first one; may be NULL
 * @return how many links of the set are of an inode */
size_t link_inodes_count(const LinkInodes *s, dev_t dev, ino_t ino, size_t *ret_first);

/** @return the path of an inode's link below a directory, which the caller frees; NULL: it has none
 * there, or there is no memory */
char *link_inodes_find_path(int dir_fd, const struct stat *st);

static inline bool link_inodes_is_same(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}
