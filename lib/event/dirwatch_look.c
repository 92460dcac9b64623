/* The directories that are to be looked at, and the slices in which they are watched and listed, and gone ones let go. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/event/dirwatch_private.h"

/* Not IN_MODIFY: whoever waits for a file to be whole looks at sizes on a timer of his own. Not IN_DELETE: what is gone needs no
 * look. Symlinks are out already: watches are added to opened directories. */
#define TREE_MASK                                                                                  \
        (IN_CREATE | IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE_SELF | IN_ONLYDIR |  \
         IN_EXCL_UNLINK)
#define ENTRIES_A_STEP 256
#define SLICE_USEC (2 * USEC_PER_MSEC)

/* ── the queue ─────────────────────────────────────────────────────────────────────────────────────────────── */

static void wake(DirWatch *d) {
        (void)sd_event_source_set_enabled(
                d->slice, SD_EVENT_ON); /* fails only for a source of another process */
}

void dirwatch_enqueue(DirWatch *d, WatchNode *n, bool loud, bool walk) {
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

void dirwatch_detach(DirWatch *d, WatchNode *n) {
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
                        dirwatch_detach(d, n);
        }
}

WatchNode *dirwatch_note_directory(DirWatch *d, WatchNode *parent, const char *name) {
        WatchNode *n = watch_tree_find(&d->tree, parent, name);
        int r;

        if (!n && parent->depth < DIRWATCH_DEPTH_MAX) {
                r = watch_tree_add(&d->tree, parent, name, &n);
                if (r < 0)
                        dirwatch_tell_unwatched(d, name, r);
        }
        if (n)
                n->seen = d->stamp;
        return n;
}

bool dirwatch_is_left_out(const char *name, bool is_dir) {
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
        if (dirwatch_is_left_out(e->d_name, is_dir))
                return;
        if (is_dir) {
                n = dirwatch_note_directory(d, d->listing.node, e->d_name);
                is_new = n && n->wd < 0 && !n->is_queued;
                if (n && (is_new || d->listing.is_walk))
                        dirwatch_enqueue(d, n, d->listing.is_loud, d->listing.is_walk);
        }
        if (d->listing.is_loud)
                dirwatch_tell_change(d, d->listing.node, e->d_name, is_dir);
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
                dirwatch_detach(d, n->first_child);
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
        r = dirwatch_root_open(d);
        if (is_gone(r)) {
                /* Not this directory's fault: it is looked at again, unless it goes away with the root. */
                dirwatch_enqueue(d, n, is_loud, is_walk);
                dirwatch_root_settle(d);
                return listing_done(d);
        }
        path = watch_tree_path(n, NULL, d->path, sizeof d->path);
        fd = r < 0 ? r
                   : fs_open_beneath(d->root_fd, n->parent ? path : ".", O_RDONLY | O_DIRECTORY);
        if (is_gone(fd) && n->parent) {
                dirwatch_detach(d, n);
                return listing_done(d);
        }
        r = fd < 0 ? fd : watch_directory(d, n, fd);
        if (r < 0)
                dirwatch_tell_unwatched(d, path, r);
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
                dirwatch_root_settle(d);
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

int dirwatch_on_slice(sd_event_source *s, void *userdata) {
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
        dirwatch_root_close(d);
        return 0;
}
