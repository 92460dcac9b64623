/* Watches a directory tree: its events, its beginning and its end. The nodes are dirwatch_tree.c's, the way to the root is
 * dirwatch_chain.c's, the slices in which directories are watched and listed dirwatch_look.c's. */
#include "lib/event/dirwatch.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/random.h>

#include "lib/base/cleanup.h"
#include "lib/event/dirwatch_private.h"

/* Of DIRWATCH_EVENT_BYTES at a time: more than the default queue of 16,384 events, then others have their
 * turn. */
#define READS_MAX 32

/* ── events ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void on_overflow(DirWatch *d) {
        d->n_overflows++;
        d->callbacks.on_rescan("events were lost: the queue of inotify was full",
                               d->callbacks.userdata);
        dirwatch_root_settle(d);
        if (d->tree.root) {
                d->walk_why = "the directories were looked at again after events were lost";
                dirwatch_enqueue(d, d->tree.root, false, true);
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
                dirwatch_enqueue(d, n, true, false);
                return;
        }
        dirwatch_root_gone(d, mask & IN_MOVE_SELF ? "the directory was moved away"
                                                  : "the directory was removed");
        dirwatch_root_settle(d);
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
                        dirwatch_root_settle(d);
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
        if (e->len == 0 || dirwatch_is_left_out(e->name, is_dir))
                return;
        if (is_dir && (e->mask & IN_MOVED_FROM)) {
                child = watch_tree_find(&d->tree, n, e->name);
                if (child)
                        dirwatch_detach(d, child);
        }
        if (is_dir && (e->mask & (IN_CREATE | IN_MOVED_TO))) {
                child = dirwatch_note_directory(d, n, e->name);
                if (child)
                        dirwatch_enqueue(d, child, true, false);
        }
        dirwatch_tell_change(d, n, e->name, is_dir);
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
        r = sd_event_add_defer(event, &d->slice, dirwatch_on_slice, d);
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
        dirwatch_root_settle(d);
        if (!d->may_retry || !d->tree.root)
                return;
        d->may_retry = false;
        if (d->tree.n_watched < d->tree.n_nodes) {
                d->walk_why = "watches are to be had again";
                dirwatch_enqueue(d, d->tree.root, false, true);
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
