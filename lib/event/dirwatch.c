/* Watches a directory tree by inotify, in four parts: the tree of known directories; the way to the
 * root, whose nearest existing ancestor is watched until it exists; the queue of directories to
 * examine, which are watched and then listed in slices of the loop; and the events. A directory is
 * listed after its watch was added, so nothing that was created in between is missed.
 *
 * What a change means is left to the caller, who scans as well: events are hints. */
#include "lib/event/dirwatch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <search.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

typedef struct WatchNode {
        struct WatchNode *parent, *first_child, *next,
                *prev;            /* next, prev: siblings; next alone: the list of the detached */
        struct WatchNode *queued; /* next in the queue of directories to scan */
        int wd;                   /* -1 = not watched */
        uid_t uid;                /* of its directory when it was added; not of the root */
        uint32_t seen;            /* stamp of the listing that met it last */
        uint8_t depth;            /* root = 0 */
        bool is_queued : 1, reports_entries : 1, is_rescan : 1, is_detached : 1;
        char name[]; /* "" for the root */
} WatchNode;

/* The search trees are those of tsearch(3): balanced, so names that a user chooses cannot slow them
 * down. */
typedef struct WatchTree {
        WatchNode *root;
        void *by_wd, *by_name; /* of the watched ones; of all, by parent and name */
        size_t n_nodes, n_watched;
} WatchTree;

static int compare_wds(const void *a, const void *b) {
        const WatchNode *x = a, *y = b;
        return (x->wd > y->wd) - (x->wd < y->wd);
}

static int compare_names(const void *a, const void *b) {
        const WatchNode *x = a, *y = b;
        if (x->parent != y->parent)
                return (uintptr_t)x->parent < (uintptr_t)y->parent ? -1 : 1;
        return strcmp(x->name, y->name);
}

static WatchNode *find_node(const WatchNode *key, void *const *tree, __compar_fn_t compare) {
        WatchNode *const *found = tfind(key, tree, compare);
        return found ? *found : NULL;
}

static int watch_tree_add(WatchTree *t, WatchNode *parent, const char *name, WatchNode **ret) {
        size_t n = strlen(name) + 1;
        /* the name begins in what would be padding: there may be a million of these */
        WatchNode *node = malloc(MAX(offsetof(WatchNode, name) + n, sizeof *node));

        if (!node)
                return -ENOMEM;
        *node = (WatchNode){ .parent = parent, .wd = -1, .depth = parent ? parent->depth + 1 : 0 };
        memcpy(node->name, name, n);
        if (!tsearch(node, &t->by_name, compare_names)) {
                free(node);
                return -ENOMEM;
        }
        if (parent) {
                node->next = parent->first_child;
                if (node->next)
                        node->next->prev = node;
                parent->first_child = node;
        } else
                t->root = node;
        t->n_nodes++;
        *ret = node;
        return 0;
}

static WatchNode *watch_tree_find(const WatchTree *t, WatchNode *parent, const char *name) {
        union {
                WatchNode node;
                char bytes[sizeof(WatchNode) + NAME_MAX + 1];
        } key = { .node.parent = parent };
        size_t n = strlen(name);

        if (n > NAME_MAX)
                return NULL;
        memcpy(key.node.name, name, n + 1);
        return find_node(&key.node, &t->by_name, compare_names);
}

static WatchNode *watch_tree_by_wd(const WatchTree *t, int wd) {
        return find_node(&(WatchNode){ .wd = wd }, &t->by_wd, compare_wds);
}

static void watch_tree_clear_wd(WatchTree *t, WatchNode *n) {
        if (n->wd < 0)
                return;
        (void)tdelete(n, &t->by_wd, compare_wds); /* it is in there */
        n->wd = -1;
        t->n_watched--;
}

static int watch_tree_set_wd(WatchTree *t, WatchNode *n, int wd) {
        watch_tree_clear_wd(t, n);
        n->wd = wd;
        if (!tsearch(n, &t->by_wd, compare_wds)) {
                n->wd = -1;
                return -ENOMEM;
        }
        t->n_watched++;
        return 0;
}

static void watch_tree_detach(WatchTree *t, WatchNode *n, WatchNode **detached) {
        if (n->prev)
                n->prev->next = n->next;
        else if (n->parent)
                n->parent->first_child = n->next;
        else
                t->root = NULL;
        if (n->next)
                n->next->prev = n->prev;
        (void)tdelete(n, &t->by_name, compare_names); /* it is in there */
        n->parent = n->prev = NULL;
        n->next = *detached;
        *detached = n;
}

static bool watch_tree_contains(const WatchTree *t, const WatchNode *n) {
        while (n->parent)
                n = n->parent;
        return n == t->root;
}

static WatchNode *watch_tree_pop_detached(WatchTree *t, WatchNode **detached) {
        WatchNode *n = *detached;

        if (!n)
                return NULL;
        *detached = n->next;
        n->next = NULL;
        while (n->first_child)
                watch_tree_detach(t, n->first_child, detached);
        watch_tree_clear_wd(t, n);
        n->is_detached = true;
        t->n_nodes--;
        return n;
}

static const char *watch_tree_path(const WatchNode *n, const char *name, char *buf, size_t size) {
        size_t used = 1, bytes;
        const WatchNode *at = n;
        const char *part = name ? name : "";

        if (!name && n->parent) {
                part = n->name;
                at = n->parent;
        }
        /* Written from the end of the buffer towards its beginning, then moved to the front. */
        bytes = strlen(part);
        if (used + bytes > size)
                return NULL;
        buf[size - 1] = '\0';
        for (;;) {
                memcpy(buf + size - used - bytes, part, bytes);
                used += bytes;
                if (!at->parent)
                        break;
                part = at->name;
                bytes = strlen(part);
                if (used + 1 + bytes > size)
                        return NULL;
                buf[size - ++used] = '/';
                at = at->parent;
        }
        return memmove(buf, buf + size - used, used);
}

#define DIRWATCH_DEPTH_MAX FS_DEPTH_MAX
#define DIRWATCH_PATH_BYTES ((DIRWATCH_DEPTH_MAX + 2) * (NAME_MAX + 1))
#define DIRWATCH_EVENT_BYTES (4 * 1024) /* some hundred events */
#define DIRWATCH_DENTS_BYTES (32 * 1024)

typedef struct WatchListing { /* of the directory that is being listed */
        WatchNode *node;      /* NULL = none */
        int fd;
        bool reports_entries, is_rescan, is_first;
        ssize_t at, n;
} WatchListing;

struct DirWatch {
        sd_event_source *io, *slice;
        int fd;
        DirWatchCallbacks callbacks;
        char *root_path;    /* simplified; owned */
        int await_wd;       /* of the nearest ancestor while there is no root; -1 = none */
        size_t await_bytes; /* of root_path that are that ancestor's path */
        WatchTree tree;
        dev_t root_dev;
        ino_t root_ino;
        int root_fd; /* for the time of a slice; kept longer it would hold the file system against
                        umount */
        bool must_sync_root;

        WatchNode *detached;
        WatchNode *queue_first, *queue_last;
        size_t n_queued;
        size_t n_rescan;        /* directories of the current walk that are still to be examined */
        const char *rescan_why; /* what to report when the rescan is done; NULL = none */

        WatchListing listing;
        uint32_t stamp;

        size_t n_overflows, n_left_out; /* n_left_out: directories, by the bound */
        unsigned faults_reported;       /* bits by Fault */
        bool is_full, may_retry;
        char path[DIRWATCH_PATH_BYTES];
        _Alignas(struct inotify_event) char events[DIRWATCH_EVENT_BYTES];
        _Alignas(struct dirent64) char dents[DIRWATCH_DENTS_BYTES];
};

#define AWAIT_MASK                                                                                 \
        (IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_CREATE | IN_MOVED_TO | IN_EXCL_UNLINK)
#define ROUNDS_MAX                                                                                 \
        1000 /* a process that creates and removes an ancestor all the time must not hold the loop \
              */

static int add_watch(int inotify_fd, int fd, uint32_t mask) {
        char name[32];
        int wd;

        /* By the descriptor's link in /proc: a path could lead elsewhere by now. IN_DONT_FOLLOW
         * would watch that link itself. IN_MASK_ADD is for a directory that is watched already: to
         * replace a mask, Linux sets it to 0 first (inotify_update_existing_watch(), 6.18), and
         * what happens before it sets the new one raises no event. */
        (void)snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        wd = inotify_add_watch(inotify_fd, name, mask | IN_MASK_ADD);
        return wd < 0 ? -errno : wd;
}

/* Opens the root. Symlinks among the ancestors are the administrator's choice, the root is none. */
static int open_root_path(const DirWatch *d) {
        struct stat st;
        int fd = open(d->root_path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0)
                return fd;
        fd = -errno;
        if (fd == -ENOTDIR && lstat(d->root_path, &st) == 0 && S_ISLNK(st.st_mode))
                return -ELOOP; /* the kernel calls a symlink ENOTDIR, and the remedy is another */
        return fd;
}

/* @param ret_bytes  how much of the root's path is that of the ancestor */
static int open_nearest_ancestor(const DirWatch *d, size_t *ret_bytes) {
        _cleanup_free_ char *path = strdup(d->root_path);

        if (!path)
                return -ENOMEM;
        for (;;) {
                char *slash = strrchr(path, '/');
                slash[slash == path] = '\0'; /* the first one is a path of its own */
                int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
                if (fd >= 0 || slash == path) {
                        *ret_bytes = strlen(path);
                        return fd < 0 ? -errno : fd;
                }
        }
}

static void stop_awaiting(DirWatch *d) {
        if (d->await_wd >= 0)
                (void)inotify_rm_watch(d->fd, d->await_wd); /* EINVAL: went with its directory */
        d->await_wd = -1;
}

static int await_root(DirWatch *d) {
        _cleanup_close_ int fd = open_nearest_ancestor(d, &d->await_bytes);
        int wd = fd < 0 ? fd : add_watch(d->fd, fd, AWAIT_MASK);

        if (wd != d->await_wd)
                stop_awaiting(d);
        if (wd >= 0)
                d->await_wd = wd;
        return MIN(wd, 0);
}

/* Opens the root, or watches its nearest ancestor for it. What appeared before that watch was in
 * place raised no event, so it is checked until two rounds find the same.
 * @return the root; -ENOENT: an event shows when to try again; -ELOOP the root is a symbolic link,
 * -ENOTDIR it or an ancestor is no directory (both: awaited as well); -ENOSPC, -EACCES … when it
 * cannot be awaited */
static int open_or_await_root(DirWatch *d) {
        for (unsigned round = 0; round < ROUNDS_MAX; round++) {
                const int fd = open_root_path(d), before = d->await_wd;

                if (fd >= 0) {
                        stop_awaiting(d);
                        return fd;
                }
                int r = await_root(d);
                if (r < 0)
                        return r;
                if (d->await_wd == before)
                        return fd;
        }
        return -ENOENT;
}

/* @return whether the event of the awaited ancestor may be about the root */
static bool concerns_root(const DirWatch *d, const struct inotify_event *e) {
        const char *name = d->root_path + d->await_bytes + (d->await_bytes > 1);
        const size_t bytes = strcspn(name, "/");

        if (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT))
                return true;
        return e->len > 0 && strlen(e->name) == bytes && memcmp(name, e->name, bytes) == 0;
}

/* What is reported of a watched tree: changes by their paths, and each fault once, with its remedy.
 */

typedef enum WatchFault { FAULT_LIMIT, FAULT_MEMORY, FAULT_DIRECTORY, FAULT_ROOT } WatchFault;

static void report_change(DirWatch *d, const WatchNode *node, const char *name, bool is_dir) {
        const char *path = watch_tree_path(node, name, d->path, sizeof d->path);

        if (path) /* always: depth and names are bounded */
                d->callbacks.on_change(path, is_dir, d->callbacks.userdata);
}

static void report_fault(DirWatch *d, WatchFault fault, const char *why, const char *remedy) {
        if (d->faults_reported & (1U << fault))
                return;
        d->faults_reported |= 1U << fault;
        d->callbacks.on_degraded(why, remedy, d->callbacks.userdata);
}

static void report_limit(DirWatch *d) {
        char why[PATH_MAX + 128], remedy[256], limit[32] = "unknown";
        _cleanup_fclose_ FILE *f = fopen("/proc/sys/fs/inotify/max_user_watches", "re");

        if (f && fgets(limit, sizeof limit, f))
                limit[strcspn(limit, "\n")] = '\0';
        (void)snprintf(why, sizeof why,
                       "the limit of inotify watches is reached: %zu directories of '%s' are "
                       "watched, the rest is only scanned",
                       d->tree.n_watched, d->root_path);
        (void)snprintf(remedy, sizeof remedy,
                       "raise fs.inotify.max_user_watches (it is %s) by sysctl and in "
                       "/etc/sysctl.d, then restart the agent",
                       limit);
        report_fault(d, FAULT_LIMIT, why, remedy);
}

static void report_unwatched(DirWatch *d, const char *path, int error) {
        char why[2 * PATH_MAX + 128];

        if (error == -ENOSPC) {
                d->is_full = true;
                report_limit(d);
                return;
        }
        (void)snprintf(why, sizeof why, "cannot watch '%.*s/%.*s': %s; it is only scanned",
                       PATH_MAX, d->root_path, PATH_MAX, path, strerror(-error));
        report_fault(d, error == -ENOMEM ? FAULT_MEMORY : FAULT_DIRECTORY, why,
                     error == -EACCES || error == -EPERM
                             ? "let the agent's user read it, or give the agent CAP_DAC_READ_SEARCH"
                             : "check the directory and the agent's limits, then restart the "
                               "agent");
}

static void report_root(DirWatch *d, int error) {
        char why[PATH_MAX + 128];

        (void)snprintf(why, sizeof why, "cannot watch '%.*s': %s", PATH_MAX, d->root_path,
                       error == -ELOOP ? "it is a symbolic link" : strerror(-error));
        report_fault(d, FAULT_ROOT, why,
                     error == -ELOOP ? "configure the path it points to"
                     : error == -ENOTDIR
                             ? "configure a directory, or remove the file that stands in its place"
                             : "let the agent's user read it and the directories above it");
}

/* The root of a watched tree: whether what is at its path is still the directory that is watched.
 */

static void close_root(DirWatch *d) {
        if (d->root_fd >= 0)
                (void)close(d->root_fd); /* read only */
        d->root_fd = -1;
}

static void enqueue(DirWatch *d, WatchNode *n, bool reports, bool rescan);
static void detach(DirWatch *d, WatchNode *n);

static void drop_root(DirWatch *d, const char *why) {
        if (!d->tree.root)
                return;
        close_root(d);
        detach(d, d->tree.root);
        d->callbacks.on_rescan(why, d->callbacks.userdata);
}

static void sync_root(DirWatch *d) {
        _cleanup_close_ int fd = -1;
        WatchNode *root;
        struct stat st;
        int r;

        fd = open_or_await_root(d);
        if (fd < 0) {
                drop_root(d, "the directory was removed");
                if (fd == -ENOSPC)
                        report_limit(d);
                else if (fd != -ENOENT)
                        report_root(d, fd);
                return;
        }
        if (fstat(fd, &st) < 0) {
                report_root(d, -errno);
                return;
        }
        if (d->tree.root && d->root_dev == st.st_dev && d->root_ino == st.st_ino)
                return;
        drop_root(d, "another directory replaced it");
        r = watch_tree_add(&d->tree, NULL, "", &root);
        if (r < 0) {
                report_unwatched(d, "", r);
                return;
        }
        d->root_dev = st.st_dev;
        d->root_ino = st.st_ino;
        d->rescan_why = "the directory is watched now";
        enqueue(d, root, false, true);
}

static int open_root(DirWatch *d) {
        _cleanup_close_ int fd = -1;
        struct stat st;

        if (d->root_fd >= 0)
                return 0;
        fd = open_root_path(d);
        if (fd < 0)
                return fd;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (st.st_dev != d->root_dev || st.st_ino != d->root_ino)
                return -ESTALE;
        d->root_fd = TAKE_FD(fd);
        return 0;
}

/* The directories that are to be examined, and the slices in which they are watched and listed, and
 * gone ones released. */

/* Not IN_MODIFY: whether a file is complete is decided by its size, on a timer. Not
 * IN_DELETE: what is gone needs no scan. Symlinks are out already: watches are added to opened
 * directories. */
#define TREE_MASK                                                                                  \
        (IN_CREATE | IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE_SELF | IN_ONLYDIR |  \
         IN_EXCL_UNLINK)

#define ENTRIES_A_STEP 256
#define SLICE_USEC (2 * USEC_PER_MSEC)
/* ---- the queue ---- */

/* A timer, since sd-event serves a source of `defer` that is always enabled before all others. */
static void schedule_slice(DirWatch *d) {
        (void)timer_rearm(d->slice, 0); /* fails only for a source of another process */
}

static void enqueue(DirWatch *d, WatchNode *n, bool reports, bool rescan) {
        n->reports_entries |= reports;
        if (rescan && !n->is_rescan) {
                n->is_rescan = true;
                d->n_rescan++;
        }
        if (!n->is_queued) {
                n->is_queued = true;
                n->queued = NULL;
                if (d->queue_last)
                        d->queue_last->queued = n;
                else
                        d->queue_first = n;
                d->queue_last = n;
                d->n_queued++;
        }
        schedule_slice(d);
}

static WatchNode *dequeue(DirWatch *d) {
        WatchNode *n = d->queue_first;

        if (!n)
                return NULL;
        d->queue_first = n->queued;
        if (!d->queue_first)
                d->queue_last = NULL;
        d->n_queued--;
        n->is_queued = false;
        return n;
}

static void rescan_step_done(DirWatch *d) {
        const char *why = d->rescan_why;

        if (--d->n_rescan > 0 || !why)
                return;
        d->rescan_why = NULL;
        d->callbacks.on_rescan(why, d->callbacks.userdata);
}

static void detach(DirWatch *d, WatchNode *n) {
        watch_tree_detach(&d->tree, n, &d->detached);
        schedule_slice(d);
}

static void give_back(DirWatch *d, uid_t uid) {
        if (d->callbacks.bound)
                bound_give_back(d->callbacks.bound, &(Owner){ .uid = uid }, 1);
}

static WatchNode *pop_detached(DirWatch *d) {
        WatchNode *n = watch_tree_pop_detached(&d->tree, &d->detached);
        if (n->name[0]) /* the root was not charged */
                give_back(d, n->uid);
        d->may_retry |= d->n_left_out > 0;
        return n;
}

static void free_detached(DirWatch *d) {
        int wd = d->detached->wd;
        WatchNode *n = pop_detached(d);

        if (wd >= 0) {
                (void)inotify_rm_watch(d->fd,
                                       wd); /* EINVAL: the kernel dropped it with the directory */
                d->may_retry |= d->is_full;
                d->is_full = false;
        }
        if (!n->is_queued)
                free(n);
}

/* ---- slices: new directories are watched and listed ---- */

static void listing_done(DirWatch *d) {
        bool is_rescan = d->listing.is_rescan;

        if (d->listing.fd >= 0)
                (void)close(d->listing.fd); /* read only */
        d->listing.node = NULL;
        d->listing.fd = -1;
        if (is_rescan)
                rescan_step_done(d);
}

/* Children that a later listing did not meet went away unseen. */
static void listing_sweep(DirWatch *d) {
        for (WatchNode *n = d->listing.node->first_child, *next; n; n = next) {
                next = n->next;
                if (n->seen != d->stamp)
                        detach(d, n);
        }
}

/* @return whether it may be watched: its user is charged */
static bool admit(DirWatch *d, const WatchNode *parent, const char *name, uid_t *ret_uid) {
        struct stat st;
        const char *path = watch_tree_path(parent, name, d->path, sizeof d->path);
        if (!d->callbacks.bound)
                return true;
        _cleanup_close_ int fd =
                !path || open_root(d) < 0 ? -1 : fs_open_beneath(d->root_fd, path, O_PATH);
        const bool is_there = fd >= 0 && fstat(fd, &st) == 0; /* else it is gone already */
        *ret_uid = is_there ? st.st_uid : (uid_t)-1;
        if (bound_spend(d->callbacks.bound, &(Owner){ .uid = *ret_uid }, 1) == BOUND_OK)
                return true;
        d->n_left_out++;
        return false;
}

static WatchNode *add_directory(DirWatch *d, WatchNode *parent, const char *name) {
        WatchNode *n = watch_tree_find(&d->tree, parent, name);
        uid_t uid = 0;
        int r;

        if (!n && parent->depth < DIRWATCH_DEPTH_MAX && admit(d, parent, name, &uid)) {
                r = watch_tree_add(&d->tree, parent, name, &n);
                if (r < 0) {
                        report_unwatched(d, name, r);
                        give_back(d, uid);
                } else
                        n->uid = uid;
        }
        if (n)
                n->seen = d->stamp;
        return n;
}

static bool is_excluded(const char *name, bool is_dir) {
        return is_dir && strcmp(name, ".neuron-collectd") == 0;
}

static void list_entry(DirWatch *d, const struct dirent64 *e) {
        bool is_dir = e->d_type == DT_DIR, is_new = false;
        WatchNode *n;
        struct stat st;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            strlen(e->d_name) > NAME_MAX) /* FUSE has such */
                return;
        if (e->d_type == DT_UNKNOWN) {
                if (fstatat(d->listing.fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        return; /* gone already */
                is_dir = S_ISDIR(st.st_mode);
        }
        if (is_excluded(e->d_name, is_dir))
                return;
        if (is_dir) {
                n = add_directory(d, d->listing.node, e->d_name);
                is_new = n && n->wd < 0 && !n->is_queued;
                if (n && (is_new || d->listing.is_rescan))
                        enqueue(d, n, d->listing.reports_entries, d->listing.is_rescan);
        }
        if (d->listing.reports_entries)
                report_change(d, d->listing.node, e->d_name, is_dir);
}

/* @return whether there are more; else the listing is done */
static bool list_more(DirWatch *d) {
        d->listing.at = 0;
        d->listing.n = getdents64(d->listing.fd, d->dents, sizeof d->dents);
        if (d->listing.n > 0)
                return true;
        if (d->listing.n == 0 && !d->listing.is_first)
                listing_sweep(d);
        /* After an error, a directory removed meanwhile or a bad disk, the scan shows it. */
        listing_done(d);
        return false;
}

static void list_some(DirWatch *d) {
        for (unsigned i = 0; i < ENTRIES_A_STEP; i++) {
                const struct dirent64 *e;

                if (d->listing.at >= d->listing.n && !list_more(d))
                        return;
                e = (const struct dirent64 *)(const void *)(d->dents + d->listing.at);
                d->listing.at += e->d_reclen;
                list_entry(d, e);
        }
}

/* Adds the watch. @return 0 done, DIRWATCH_SAME: it had this watch before, or why it cannot be
 * watched */
enum { DIRWATCH_SAME = 1 };

static int watch_directory(DirWatch *d, WatchNode *n, int fd) {
        WatchNode *other;
        int wd;

        wd = add_watch(d->fd, fd, n->parent ? TREE_MASK : TREE_MASK | IN_MOVE_SELF);
        if (wd < 0)
                return wd;
        if (wd == n->wd)
                return DIRWATCH_SAME;
        /* The name leads to another directory than before: what is known below it is of the old
         * one. */
        while (n->first_child)
                detach(d, n->first_child);
        if (n->wd >= 0)
                (void)inotify_rm_watch(d->fd, n->wd);
        /* Watched under another name: moved (the event is still to come) or a bind mount. The
         * newest name counts. */
        other = watch_tree_by_wd(&d->tree, wd);
        if (other)
                watch_tree_clear_wd(&d->tree, other);
        int r = watch_tree_set_wd(&d->tree, n, wd);
        if (r < 0)
                (void)inotify_rm_watch(d->fd, wd); /* was added a moment ago */
        return r;
}

static bool is_gone(int error) {
        return error == -ENOENT || error == -ENOTDIR || error == -ELOOP || error == -EXDEV ||
               error == -ESTALE;
}

/* Watches a directory and begins to list it. */
static void watch_and_list(DirWatch *d, WatchNode *n) {
        _cleanup_close_ int fd = -1;
        bool reports_entries = n->reports_entries, is_rescan = n->is_rescan;
        const char *path;
        int r;

        n->reports_entries = n->is_rescan = false;
        d->listing.is_rescan = is_rescan;
        if (n->wd < 0 && d->is_full)
                return listing_done(d);
        r = open_root(d);
        if (is_gone(r)) {
                /* Not this directory's fault: it is examined again, unless it goes away with the
                 * root. */
                enqueue(d, n, reports_entries, is_rescan);
                sync_root(d);
                return listing_done(d);
        }
        path = watch_tree_path(n, NULL, d->path, sizeof d->path);
        fd = r < 0 ? r
                   : fs_open_beneath(d->root_fd, n->parent ? path : ".", O_RDONLY | O_DIRECTORY);
        if (is_gone(fd) && n->parent) {
                detach(d, n);
                return listing_done(d);
        }
        r = fd < 0 ? fd : watch_directory(d, n, fd);
        if (r < 0)
                report_unwatched(d, path, r);
        if (r < 0 || (r == DIRWATCH_SAME && !is_rescan))
                return listing_done(d); /* not watched, or watched and listed before */

        d->stamp++;
        d->listing.node = n;
        d->listing.fd = TAKE_FD(fd);
        d->listing.reports_entries = reports_entries;
        d->listing.is_first = !n->first_child;
        d->listing.at = d->listing.n = 0;
        list_some(d);
}

/* A directory that was queued and is not in the tree any more. */
static void drop_queued(DirWatch *d, WatchNode *n) {
        bool is_rescan = n->is_rescan;

        n->is_rescan = n->reports_entries = false;
        if (n->is_detached)
                free(n);
        if (is_rescan)
                rescan_step_done(d);
}

/* One small thing of what is to be done. @return whether something was */
static bool step(DirWatch *d) {
        WatchNode *n;

        if (d->must_sync_root) {
                d->must_sync_root = false;
                sync_root(d);
                return true;
        }
        if (d->listing.node && !watch_tree_contains(&d->tree, d->listing.node))
                listing_done(d);
        if (d->detached) { /* first: it gives watches back */
                free_detached(d);
                return true;
        }
        if (d->listing.node) {
                list_some(d);
                return true;
        }
        n = dequeue(d);
        if (!n)
                return false;
        if (n->is_detached || !watch_tree_contains(&d->tree, n))
                drop_queued(d, n);
        else
                watch_and_list(d, n);
        return true;
}

static int on_slice(sd_event_source *source, uint64_t usec, void *userdata) {
        DirWatch *d = userdata;
        Clock *clock = clock_system();
        const uint64_t end_usec = clock->boottime_usec(clock) + SLICE_USEC;
        bool has_more;
        (void)source, (void)usec;
        do
                has_more = step(d);
        while (has_more && clock->boottime_usec(clock) < end_usec);
        close_root(d);
        if (has_more)
                schedule_slice(d);
        return 0;
}

/* Of DIRWATCH_EVENT_BYTES at a time, for so long; then others have their turn. */
#define EVENTS_USEC (10 * USEC_PER_MSEC)

/* ---- events ---- */

static void on_overflow(DirWatch *d) {
        d->n_overflows++;
        d->callbacks.on_rescan("events were lost: the queue of inotify was full",
                               d->callbacks.userdata);
        sync_root(d);
        if (d->tree.root) {
                d->rescan_why = "the directories are scanned again after lost events";
                enqueue(d, d->tree.root, false, true);
        }
}

static void on_self_event(DirWatch *d, WatchNode *n, uint32_t mask) {
        if (mask & (IN_DELETE_SELF | IN_UNMOUNT | IN_IGNORED)) {
                watch_tree_clear_wd(&d->tree, n);
                d->may_retry |= d->is_full;
                d->is_full = false;
        }
        if (n != d->tree.root) {
                /* Perhaps there is already another directory of this name: scan it, and release it
                 * when there is none. */
                enqueue(d, n, true, false);
                return;
        }
        drop_root(d, mask & IN_MOVE_SELF ? "the directory was moved away"
                                         : "the directory was removed");
        sync_root(d);
}

static void on_event(DirWatch *d, const struct inotify_event *e) {
        bool is_dir = e->mask & IN_ISDIR;
        WatchNode *n, *child;

        if (e->mask & IN_Q_OVERFLOW) {
                on_overflow(d);
                return;
        }
        n = watch_tree_by_wd(&d->tree, e->wd);
        if (!n) {
                if (e->wd == d->await_wd && concerns_root(d, e)) {
                        if (e->mask & IN_IGNORED)
                                d->await_wd = -1;
                        sync_root(d);
                }
                return;
        }
        if (!watch_tree_contains(&d->tree, n)) {
                if (e->mask &
                    IN_IGNORED) /* its number may be another directory's by the time it is freed */
                        watch_tree_clear_wd(&d->tree, n);
                return;
        }
        if (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)) {
                on_self_event(d, n, e->mask);
                return;
        }
        if (e->len == 0 || is_excluded(e->name, is_dir))
                return;
        if (is_dir && (e->mask & IN_MOVED_FROM)) {
                child = watch_tree_find(&d->tree, n, e->name);
                if (child)
                        detach(d, child);
        }
        if (is_dir && (e->mask & (IN_CREATE | IN_MOVED_TO))) {
                child = add_directory(d, n, e->name);
                if (child)
                        enqueue(d, child, true, false);
        }
        report_change(d, n, e->name, is_dir);
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        DirWatch *d = userdata;
        Clock *clock = clock_system();
        const uint64_t end_usec = clock->boottime_usec(clock) + EVENTS_USEC;

        (void)s;
        (void)revents;
        do {
                const struct inotify_event *e;
                ssize_t n = read(fd, d->events, sizeof d->events);

                if (n <= 0)
                        break; /* EAGAIN; EINTR comes again */
                for (char *p = d->events; p < d->events + n; p += sizeof *e + e->len) {
                        e = (const struct inotify_event *)(const void *)p;
                        on_event(d, e);
                }
        } while (clock->boottime_usec(clock) < end_usec);
        close_root(d);
        return 0;
}

/* ---- life ---- */

DEFINE_CLEANUP(DirWatch, dirwatch_free);

int dirwatch_new(DirWatch **ret, sd_event *event, const char *root,
                 const DirWatchCallbacks *callbacks) {
        _cleanup_(dirwatch_freep) DirWatch *d = calloc(1, sizeof *d);
        int r;

        if (!d)
                return -ENOMEM;
        d->fd = d->listing.fd = d->root_fd = d->await_wd = -1;
        d->callbacks = *callbacks;
        if (root[0] != '/')
                return -EINVAL;
        d->root_path = path_simplify(root);
        if (!d->root_path)
                return -ENOMEM;
        if (d->root_path[1] == '\0')
                return -EINVAL; /* everything is no source */
        d->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        if (d->fd < 0)
                return -errno;
        r = sd_event_add_io(event, &d->io, d->fd, EPOLLIN, on_io, d);
        if (r < 0)
                return r;
        d->must_sync_root = true; /* in the first slice: no callback before the caller has *ret */
        r = timer_arm(&d->slice, &(TimerOptions){ .event = event,
                                                  .slack_usec = 1,
                                                  .handler = on_slice,
                                                  .userdata = d });
        if (r < 0)
                return r;
        (void)sd_event_source_set_description(d->io, "dirwatch"); /* for debugging only */
        (void)sd_event_source_set_description(d->slice, "dirwatch-slice");
        *ret = TAKE_PTR(d);
        return 0;
}

DirWatch *dirwatch_free(DirWatch *d) {
        if (!d)
                return NULL;
        sd_event_source_disable_unref(d->io);
        sd_event_source_disable_unref(d->slice);
        if (d->fd >= 0)
                (void)close(d->fd); /* removes all watches */
        if (d->listing.fd >= 0)
                (void)close(d->listing.fd); /* read only */
        if (d->tree.root)
                watch_tree_detach(&d->tree, d->tree.root, &d->detached);
        while (d->detached) {
                WatchNode *n = pop_detached(d);

                if (!n->is_queued)
                        free(n);
        }
        for (WatchNode *n = d->queue_first, *next; n; n = next) {
                next = n->queued;
                free(n);
        }
        free(d->root_path);
        free(d);
        return NULL;
}

void dirwatch_check(DirWatch *d) {
        sync_root(d);
        if (!d->may_retry || !d->tree.root)
                return;
        d->may_retry = false;
        if (d->tree.n_watched < d->tree.n_nodes || d->n_left_out > 0) {
                d->n_left_out = 0;
                d->rescan_why = "inotify watches are available again";
                enqueue(d, d->tree.root, false, true);
        }
}

size_t dirwatch_n_watches(const DirWatch *d) {
        return d->tree.n_watched + (d->await_wd >= 0);
}

size_t dirwatch_n_overflows(const DirWatch *d) {
        return d->n_overflows;
}

size_t dirwatch_n_left_out(const DirWatch *d) {
        return d->n_left_out;
}

bool dirwatch_is_complete(const DirWatch *d) {
        return !d->must_sync_root && d->n_queued == 0 && !d->listing.node && !d->detached &&
               d->tree.n_watched == d->tree.n_nodes && d->n_left_out == 0;
}
