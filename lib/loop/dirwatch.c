/* Watches a directory tree. The nodes are dirwatch_tree.c's, the way to the root is dirwatch_chain.c's; here are the events, and
 * the slices in which new directories are watched, listed, and gone ones let go. */
#include "lib/loop/dirwatch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/loop/dirwatch_chain.h"
#include "lib/loop/dirwatch_tree.h"

/* Not IN_MODIFY: whoever waits for a file to be whole looks at sizes on a timer of his own. Not IN_DELETE: what is gone needs no
 * look. Symlinks are out already: watches are added to opened directories. */
#define TREE_MASK                                                                                  \
        (IN_CREATE | IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE_SELF | IN_ONLYDIR |  \
         IN_EXCL_UNLINK)
#define DEPTH_MAX FS_DEPTH_MAX
#define PATH_BYTES ((DEPTH_MAX + 2) * (NAME_MAX + 1))
#define EVENT_BYTES (64 * 1024)
/* Of EVENT_BYTES at a time: more than the default queue of 16,384 events, then others have their
 * turn. */
#define READS_MAX 32
#define DENTS_BYTES (32 * 1024)
#define ENTRIES_A_STEP 256
#define SLICE_USEC (2 * USEC_PER_MSEC)

typedef enum Fault { FAULT_LIMIT, FAULT_MEMORY, FAULT_DIRECTORY, FAULT_ROOT } Fault;

struct DirWatch {
        sd_event_source *io, *slice;
        int fd;
        DirWatchCallbacks callbacks;
        DirwatchChain chain;
        WatchTree tree;
        dev_t root_dev;
        ino_t root_ino;
        int root_fd; /* for the time of a slice; kept longer it would hold the file system against umount */
        bool must_settle;

        WatchNode *grave;
        WatchNode *queue_first, *queue_last;
        size_t n_queued;
        size_t n_walk;        /* directories of the current walk that are still to be looked at */
        const char *walk_why; /* what to tell when the walk is done; NULL = no walk */

        struct {
                WatchNode *node; /* NULL = none */
                int fd;
                bool is_loud, is_walk, is_first;
                ssize_t at, n;
        } listing;
        uint32_t stamp;

        size_t n_overflows;
        unsigned faults_told; /* bits by Fault */
        bool is_full, may_retry;
        char path[PATH_BYTES];
        _Alignas(struct inotify_event) char events[EVENT_BYTES];
        _Alignas(struct dirent64) char dents[DENTS_BYTES];
};

/* ── telling ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void tell_change(DirWatch *d, const WatchNode *node, const char *name, bool is_dir) {
        const char *path = watch_tree_path(node, name, d->path, sizeof d->path);

        if (path) /* always: depth and names are bounded */
                d->callbacks.on_change(path, is_dir, d->callbacks.userdata);
}

static void tell_fault(DirWatch *d, Fault fault, const char *why, const char *remedy) {
        if (d->faults_told & (1U << fault))
                return;
        d->faults_told |= 1U << fault;
        d->callbacks.on_degraded(why, remedy, d->callbacks.userdata);
}

static void tell_limit(DirWatch *d) {
        char why[PATH_MAX + 128], remedy[256], limit[32] = "unknown";
        _cleanup_fclose_ FILE *f = fopen("/proc/sys/fs/inotify/max_user_watches", "re");

        if (f && fgets(limit, sizeof limit, f))
                limit[strcspn(limit, "\n")] = '\0';
        (void)snprintf(why, sizeof why,
                       "the limit of inotify watches is reached: %zu directories of '%s' are "
                       "watched, the rest is only scanned",
                       d->tree.n_watched, d->chain.path);
        (void)snprintf(remedy, sizeof remedy,
                       "raise fs.inotify.max_user_watches (it is %s) by sysctl and in "
                       "/etc/sysctl.d, then restart the agent",
                       limit);
        tell_fault(d, FAULT_LIMIT, why, remedy);
}

/* A directory that is there but cannot be watched. */
static void tell_unwatched(DirWatch *d, const char *path, int error) {
        char why[2 * PATH_MAX + 128];

        if (error == -ENOSPC) {
                d->is_full = true;
                tell_limit(d);
                return;
        }
        (void)snprintf(why, sizeof why, "cannot watch '%.*s/%.*s': %s; it is only scanned",
                       PATH_MAX, d->chain.path, PATH_MAX, path, strerror(-error));
        tell_fault(d, error == -ENOMEM ? FAULT_MEMORY : FAULT_DIRECTORY, why,
                   error == -EACCES || error == -EPERM
                           ? "let the agent's user read it, or give the agent CAP_DAC_READ_SEARCH"
                           : "look at the directory and at the agent's limits, then restart the "
                             "agent");
}

static void tell_root(DirWatch *d, int error) {
        char why[PATH_MAX + 128];

        (void)snprintf(why, sizeof why, "cannot watch '%.*s': %s", PATH_MAX, d->chain.path,
                       error == -ELOOP ? "it is a symbolic link" : strerror(-error));
        tell_fault(d, FAULT_ROOT, why,
                   error == -ELOOP ? "configure the path it points to"
                   : error == -ENOTDIR
                           ? "configure a directory, or remove the file that stands in its place"
                           : "let the agent's user read it and the directories above it");
}

/* ── the queue ─────────────────────────────────────────────────────────────────────────────────────────────── */

static void wake(DirWatch *d) {
        (void)sd_event_source_set_enabled(
                d->slice, SD_EVENT_ON); /* fails only for a source of another process */
}

/* Loud: what is found in it is reported. Walk: all below it is looked at again, and on_rescan told at the end. */
static void enqueue(DirWatch *d, WatchNode *n, bool loud, bool walk) {
        n->is_loud |= loud;
        if (walk && !n->is_walk) {
                n->is_walk = true;
                d->n_walk++;
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
        wake(d);
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

static void walk_step_done(DirWatch *d) {
        const char *why = d->walk_why;

        if (--d->n_walk > 0 || !why)
                return;
        d->walk_why = NULL;
        d->callbacks.on_rescan(why, d->callbacks.userdata);
}

static void detach(DirWatch *d, WatchNode *n) {
        watch_tree_detach(&d->tree, n, &d->grave);
        wake(d);
}

static void bury(DirWatch *d) {
        int wd = d->grave->wd;
        WatchNode *n = watch_tree_bury(&d->tree, &d->grave);

        if (wd >= 0) {
                (void)inotify_rm_watch(d->fd,
                                       wd); /* EINVAL: the kernel dropped it with the directory */
                d->may_retry |= d->is_full;
                d->is_full = false;
        }
        if (!n->is_queued)
                free(n);
}

/* ── the root ──────────────────────────────────────────────────────────────────────────────────────────────── */

static void root_close(DirWatch *d) {
        if (d->root_fd >= 0)
                (void)close(d->root_fd); /* read only */
        d->root_fd = -1;
}

static void root_gone(DirWatch *d, const char *why) {
        if (!d->tree.root)
                return;
        root_close(d);
        detach(d, d->tree.root);
        d->callbacks.on_rescan(why, d->callbacks.userdata);
}

/* Brings tree.root in line with what is at the path now. */
static void root_settle(DirWatch *d) {
        _cleanup_close_ int fd = -1;
        WatchNode *root;
        struct stat st;
        int r;

        r = dirwatch_chain_settle(&d->chain, d->fd, &fd);
        if (r != DIRWATCH_CHAIN_THERE) {
                root_gone(d, "the directory went away");
                if (r == -ENOSPC)
                        tell_limit(d);
                else if (r < 0)
                        tell_root(d, r);
                return;
        }
        if (fstat(fd, &st) < 0) {
                tell_root(d, -errno);
                return;
        }
        if (d->tree.root && d->root_dev == st.st_dev && d->root_ino == st.st_ino)
                return;
        root_gone(d, "another directory took its place");
        r = watch_tree_add(&d->tree, NULL, "", &root);
        if (r < 0) {
                tell_unwatched(d, "", r);
                return;
        }
        d->root_dev = st.st_dev;
        d->root_ino = st.st_ino;
        d->walk_why = "the directory is watched now";
        enqueue(d, root, false, true);
}

/* @return 0 and d->root_fd is the watched root, or why it cannot be opened */
static int root_open(DirWatch *d) {
        _cleanup_close_ int fd = -1;
        struct stat st;

        if (d->root_fd >= 0)
                return 0;
        fd = open(d->chain.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (st.st_dev != d->root_dev || st.st_ino != d->root_ino)
                return -ESTALE;
        d->root_fd = TAKE_FD(fd);
        return 0;
}

/* ── slices: new directories are watched and listed ────────────────────────────────────────────────────────── */

static void listing_done(DirWatch *d) {
        bool is_walk = d->listing.is_walk;

        if (d->listing.fd >= 0)
                (void)close(d->listing.fd); /* read only */
        d->listing.node = NULL;
        d->listing.fd = -1;
        if (is_walk)
                walk_step_done(d);
}

/* Children that a later listing did not meet went away unseen. */
static void listing_sweep(DirWatch *d) {
        for (WatchNode *n = d->listing.node->first_child, *next; n; n = next) {
                next = n->next;
                if (n->seen != d->stamp)
                        detach(d, n);
        }
}

/* Takes note of a directory below a known one. @return its node, NULL when it is too deep or there is no memory */
static WatchNode *note_directory(DirWatch *d, WatchNode *parent, const char *name) {
        WatchNode *n = watch_tree_find(&d->tree, parent, name);
        int r;

        if (!n && parent->depth < DEPTH_MAX) {
                r = watch_tree_add(&d->tree, parent, name, &n);
                if (r < 0)
                        tell_unwatched(d, name, r);
        }
        if (n)
                n->seen = d->stamp;
        return n;
}

static bool is_left_out(const char *name, bool is_dir) {
        return is_dir && strcmp(name, ".neuron-collectd") == 0;
}

static void list_entry(DirWatch *d, const struct dirent64 *e) {
        bool is_dir = e->d_type == DT_DIR, is_new = false;
        WatchNode *n;
        struct stat st;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                return;
        if (e->d_type == DT_UNKNOWN) {
                if (fstatat(d->listing.fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        return; /* gone already */
                is_dir = S_ISDIR(st.st_mode);
        }
        if (is_left_out(e->d_name, is_dir))
                return;
        if (is_dir) {
                n = note_directory(d, d->listing.node, e->d_name);
                is_new = n && n->wd < 0 && !n->is_queued;
                if (n && (is_new || d->listing.is_walk))
                        enqueue(d, n, d->listing.is_loud, d->listing.is_walk);
        }
        if (d->listing.is_loud)
                tell_change(d, d->listing.node, e->d_name, is_dir);
}

/* @return whether there are more; else the listing is done */
static bool list_more(DirWatch *d) {
        d->listing.at = 0;
        d->listing.n = getdents64(d->listing.fd, d->dents, sizeof d->dents);
        if (d->listing.n > 0)
                return true;
        if (d->listing.n == 0 && !d->listing.is_first)
                listing_sweep(d);
        /* After an error, a directory removed meanwhile or a bad disk, the scan will tell. */
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

/* Adds the watch. @return 0 done, DIRWATCH_SAME: it had this watch before, or why it cannot be watched */
enum { DIRWATCH_SAME = 1 };
static int watch_directory(DirWatch *d, WatchNode *n, int fd) {
        WatchNode *other;
        int wd;

        wd = dirwatch_add_watch(d->fd, fd, n->parent ? TREE_MASK : TREE_MASK | IN_MOVE_SELF);
        if (wd < 0)
                return wd;
        if (wd == n->wd)
                return DIRWATCH_SAME;
        /* The name leads to another directory than before: what is known below it is of the old one. */
        while (n->first_child)
                detach(d, n->first_child);
        if (n->wd >= 0)
                (void)inotify_rm_watch(d->fd, n->wd);
        /* Watched under another name: moved (the event is still to come) or a bind mount. The newest name counts. */
        other = watch_tree_by_wd(&d->tree, wd);
        if (other)
                watch_tree_set_wd(&d->tree, other, -1);
        watch_tree_set_wd(&d->tree, n, wd);
        return 0;
}

static bool is_gone(int error) {
        return error == -ENOENT || error == -ENOTDIR || error == -ELOOP || error == -EXDEV ||
               error == -ESTALE;
}

/* Watches a directory and begins to list it. */
static void look_at(DirWatch *d, WatchNode *n) {
        _cleanup_close_ int fd = -1;
        bool is_loud = n->is_loud, is_walk = n->is_walk;
        const char *path;
        int r;

        n->is_loud = n->is_walk = false;
        d->listing.is_walk = is_walk;
        if (n->wd < 0 && d->is_full)
                return listing_done(d);
        r = root_open(d);
        if (is_gone(r)) {
                /* Not this directory's fault: it is looked at again, unless it goes away with the root. */
                enqueue(d, n, is_loud, is_walk);
                root_settle(d);
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
                tell_unwatched(d, path, r);
        if (r < 0 || (r == DIRWATCH_SAME && !is_walk))
                return listing_done(d); /* not watched, or watched and listed before */

        d->stamp++;
        d->listing.node = n;
        d->listing.fd = TAKE_FD(fd);
        d->listing.is_loud = is_loud;
        d->listing.is_first = !n->first_child;
        d->listing.at = d->listing.n = 0;
        list_some(d);
}

/* A directory that was queued and is not in the tree any more. */
static void drop_queued(DirWatch *d, WatchNode *n) {
        bool is_walk = n->is_walk;

        n->is_walk = n->is_loud = false;
        if (n->is_buried)
                free(n);
        if (is_walk)
                walk_step_done(d);
}

/* One small thing of what is to be done. @return whether something was */
static bool step(DirWatch *d) {
        WatchNode *n;

        if (d->must_settle) {
                d->must_settle = false;
                root_settle(d);
                return true;
        }
        if (d->listing.node && !watch_tree_is_alive(&d->tree, d->listing.node))
                listing_done(d);
        if (d->grave) { /* first: it gives watches back */
                bury(d);
                return true;
        }
        if (d->listing.node) {
                list_some(d);
                return true;
        }
        n = dequeue(d);
        if (!n)
                return false;
        if (n->is_buried || !watch_tree_is_alive(&d->tree, n))
                drop_queued(d, n);
        else
                look_at(d, n);
        return true;
}

static int on_slice(sd_event_source *s, void *userdata) {
        DirWatch *d = userdata;
        Clock *clock = clock_system();
        uint64_t end_usec = clock->boottime_usec(clock) + SLICE_USEC;

        (void)s;
        do {
                if (!step(d)) {
                        (void)sd_event_source_set_enabled(d->slice,
                                                          SD_EVENT_OFF); /* as in wake() */
                        break;
                }
        } while (clock->boottime_usec(clock) < end_usec);
        root_close(d);
        return 0;
}

/* ── events ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void on_overflow(DirWatch *d) {
        d->n_overflows++;
        d->callbacks.on_rescan("events were lost: the queue of inotify was full",
                               d->callbacks.userdata);
        root_settle(d);
        if (d->tree.root) {
                d->walk_why = "the directories were looked at again after events were lost";
                enqueue(d, d->tree.root, false, true);
        }
}

static void on_self_event(DirWatch *d, WatchNode *n, uint32_t mask) {
        if (mask & (IN_DELETE_SELF | IN_UNMOUNT | IN_IGNORED)) {
                watch_tree_set_wd(&d->tree, n, -1);
                d->may_retry |= d->is_full;
                d->is_full = false;
        }
        if (n != d->tree.root) {
                /* Perhaps there is already another directory of this name: look, and let it go when there is none. */
                enqueue(d, n, true, false);
                return;
        }
        root_gone(d, mask & IN_MOVE_SELF ? "the directory was moved away"
                                         : "the directory was removed");
        root_settle(d);
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
                if (dirwatch_chain_concerns(&d->chain, e))
                        root_settle(d);
                return;
        }
        if (!watch_tree_is_alive(&d->tree, n)) {
                if (e->mask &
                    IN_IGNORED) /* or the burial would remove a watch that is not its own any more */
                        watch_tree_set_wd(&d->tree, n, -1);
                return;
        }
        if (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)) {
                on_self_event(d, n, e->mask);
                return;
        }
        if (e->len == 0 || is_left_out(e->name, is_dir))
                return;
        if (is_dir && (e->mask & IN_MOVED_FROM)) {
                child = watch_tree_find(&d->tree, n, e->name);
                if (child)
                        detach(d, child);
        }
        if (is_dir && (e->mask & (IN_CREATE | IN_MOVED_TO))) {
                child = note_directory(d, n, e->name);
                if (child)
                        enqueue(d, child, true, false);
        }
        tell_change(d, n, e->name, is_dir);
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        DirWatch *d = userdata;

        (void)s;
        (void)revents;
        for (unsigned i = 0; i < READS_MAX; i++) {
                const struct inotify_event *e;
                ssize_t n = read(fd, d->events, sizeof d->events);

                if (n <= 0)
                        break; /* EAGAIN; EINTR comes again */
                for (char *p = d->events; p < d->events + n; p += sizeof *e + e->len) {
                        e = (const struct inotify_event *)(const void *)p;
                        on_event(d, e);
                }
        }
        return 0;
}

/* ── life ──────────────────────────────────────────────────────────────────────────────────────────────────── */

DEFINE_CLEANUP(DirWatch, dirwatch_free);

int dirwatch_new(DirWatch **ret, sd_event *event, const char *root,
                 const DirWatchCallbacks *callbacks) {
        _cleanup_(dirwatch_freep) DirWatch *d = calloc(1, sizeof *d);
        uint64_t key[2] = { 0 };
        int r;

        if (!d)
                return -ENOMEM;
        d->fd = d->listing.fd = d->root_fd = -1;
        d->callbacks = *callbacks;
        r = dirwatch_chain_init(&d->chain, root);
        if (r < 0)
                return r;
        if (getrandom(key, sizeof key, GRND_NONBLOCK) < 0)
                key[0] = (uintptr_t)d; /* early at boot; it only guards against slow look-ups */
        r = watch_tree_init(&d->tree, key[0], key[1]);
        if (r < 0)
                return r;
        d->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        if (d->fd < 0)
                return -errno;
        r = sd_event_add_io(event, &d->io, d->fd, EPOLLIN, on_io, d);
        if (r < 0)
                return r;
        r = sd_event_add_defer(event, &d->slice, on_slice, d);
        if (r < 0)
                return r;
        (void)sd_event_source_set_description(d->io, "dirwatch"); /* for debugging only */
        (void)sd_event_source_set_description(d->slice, "dirwatch-slice");
        d->must_settle = true; /* in the first slice: no callback before the caller has *ret */
        r = sd_event_source_set_enabled(d->slice, SD_EVENT_ON);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(d);
        return 0;
}

DirWatch *dirwatch_free(DirWatch *d) {
        if (!d)
                return NULL;
        sd_event_source_disable_unref(d->io);
        sd_event_source_disable_unref(d->slice);
        if (d->fd >= 0)
                (void)close(d->fd); /* takes all watches along */
        if (d->listing.fd >= 0)
                (void)close(d->listing.fd); /* read only */
        if (d->tree.root)
                watch_tree_detach(&d->tree, d->tree.root, &d->grave);
        while (d->grave) {
                WatchNode *n = watch_tree_bury(&d->tree, &d->grave);

                if (!n->is_queued)
                        free(n);
        }
        for (WatchNode *n = d->queue_first, *next; n; n = next) {
                next = n->queued;
                free(n);
        }
        watch_tree_done(&d->tree);
        dirwatch_chain_done(&d->chain);
        free(d);
        return NULL;
}

void dirwatch_check(DirWatch *d) {
        root_settle(d);
        if (!d->may_retry || !d->tree.root)
                return;
        d->may_retry = false;
        if (d->tree.n_watched < d->tree.n_nodes) {
                d->walk_why = "watches are to be had again";
                enqueue(d, d->tree.root, false, true);
        }
}

size_t dirwatch_n_watches(const DirWatch *d) {
        return d->tree.n_watched + dirwatch_chain_n_watches(&d->chain);
}

size_t dirwatch_n_overflows(const DirWatch *d) {
        return d->n_overflows;
}

bool dirwatch_is_complete(const DirWatch *d) {
        return !d->must_settle && d->n_queued == 0 && !d->listing.node && !d->grave &&
               d->tree.n_watched == d->tree.n_nodes;
}
