/* Watches a directory tree with inotify. Events are hints: whoever uses it scans as well, and is
 * notified when to. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "lib/base/bound.h"

typedef struct DirWatch DirWatch;

typedef struct DirWatchCallbacks {
        /* Something was created, moved, or closed after writing at `relative` (below root, raw; ""
         * = root itself): check it. */
        void (*on_change)(const char *relative, bool is_dir, void *userdata);
        /* Events were lost (IN_Q_OVERFLOW), or the root appeared, vanished or came back: scan
         * everything. Also once when all that was there at the start, or after lost events, is
         * watched: those files are not reported one by one. */
        void (*on_rescan)(const char *why, void *userdata);
        /* The watch limit is reached (ENOSPC) or watching is not possible: from now on only scans
         * see what is not watched. */
        void (*on_degraded)(const char *why, const char *remedy, void *userdata);
        /* The directories that are watched are charged to their users, but for the root: a tree may
         * have any number. Borrowed; NULL: all may be watched */
        Bound *bound;
        void *userdata;
} DirWatchCallbacks;

/** Starts watching `root` (absolute; need not exist: then its nearest existing ancestor is watched
 * until it does) and everything below, new directories included, without a race between mkdir and
 * the watch: what is found in a new directory after its watch was added is reported by on_change.
 * Directories named `.neuron-collectd` are left out. Adding watches to a large tree is done in
 * slices of the loop (at most a few ms each), and never follows symlinks.
 * No callback comes before this has returned. Directories deeper than FS_DEPTH_MAX below root are
 * reported, but not watched.
 * @return 0, -EMFILE when no inotify instance can be had, -EINVAL root is not absolute or "/",
 * -ENOMEM */
int dirwatch_new(DirWatch **ret, sd_event *event, const char *root,
                 const DirWatchCallbacks *callbacks);
DirWatch *dirwatch_free(DirWatch *d);

/** Makes sure that the path still leads to the directory that is watched, and tries again what the
 * watch limit or the bound left out: a mount over the root or an ancestor raises no event. Cheap;
 * to be called with every periodic scan. */
void dirwatch_check(DirWatch *d);

size_t dirwatch_n_watches(const DirWatch *d);
size_t dirwatch_n_overflows(const DirWatch *d);
/** @return how many directories the bound has left out */
size_t dirwatch_n_left_out(const DirWatch *d);
/** @return whether every directory found so far is watched */
bool dirwatch_is_complete(const DirWatch *d);
