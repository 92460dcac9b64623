/* The directories that a DirWatch knows: a tree, found by watch descriptor and by (parent, name). Plain data, touches no file.
 * A node costs about 100 bytes with its share of the two hash tables. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct WatchNode {
        struct WatchNode *parent, *first_child, *next,
                *prev; /* next, prev: siblings; next alone: the list of the buried */
        struct WatchNode *by_wd, *by_name; /* chains of the hash tables */
        struct WatchNode *queued;          /* next in the queue of directories to look at */
        int wd;                            /* -1 = not watched */
        uint32_t seen;                     /* stamp of the listing that met it last */
        uint8_t depth;                     /* root = 0 */
        bool is_queued : 1, is_loud : 1, is_walk : 1, is_buried : 1;
        char name[]; /* "" for the root */
} WatchNode;

typedef struct WatchTree {
        WatchNode *root;
        WatchNode **by_wd, **by_name; /* n_buckets each */
        size_t n_buckets, n_allocated;
        size_t n_round; /* power of two: buckets when the current round of splits began */
        size_t n_nodes, n_watched;
        uint64_t key
                [2]; /* names come from strangers: without a secret they could all be made to fall into one bucket */
} WatchTree;

int watch_tree_init(WatchTree *t, uint64_t key0, uint64_t key1);
/** Frees the tables; the nodes must be gone (watch_tree_bury). */
void watch_tree_done(WatchTree *t);

/** Adds a directory; parent NULL = the root. @return 0 and *ret (the tree's), -ENOMEM */
int watch_tree_add(WatchTree *t, WatchNode *parent, const char *name, WatchNode **ret);
WatchNode *watch_tree_find(const WatchTree *t, const WatchNode *parent, const char *name);

WatchNode *watch_tree_by_wd(const WatchTree *t, int wd);
/** Sets the watch descriptor, -1 = none. The descriptor must not belong to another node. */
void watch_tree_set_wd(WatchTree *t, WatchNode *n, int wd);

/** Takes a directory, with all below it, out of the tree and puts it before *grave; only the top is touched, so it is cheap. */
void watch_tree_detach(WatchTree *t, WatchNode *n, WatchNode **grave);
/** @return whether the node hangs on the root: false for all that is below a detached directory */
bool watch_tree_is_alive(const WatchTree *t, const WatchNode *n);
/** Takes the node *grave off it; its children are put there in its place, and it is found by nothing any more. Its watch
 * descriptor is forgotten: who wants to remove the watch looks at (*grave)->wd before.
 * @return the node, the caller's: to be freed, later if it is still queued; NULL when the grave is empty */
WatchNode *watch_tree_bury(WatchTree *t, WatchNode **grave);

/** Writes the path below the root, plus "/" and `name` when name is not NULL.
 * @return buf, or NULL when it does not fit into n bytes */
const char *watch_tree_path(const WatchNode *n, const char *name, char *buf, size_t size);
