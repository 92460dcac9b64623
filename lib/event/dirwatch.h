/* Watches a directory tree with inotify. Events are hints: the caller scans as well, and is
 * notified when a scan is needed. */
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
        /* Directories cannot be watched: for the watch limit (ENOSPC), lack of memory, an error of
         * a directory, or of the root. From now on only scans see what is not watched. Called once
         * for each of these four causes, not for each directory. */
        void (*on_degraded)(const char *why, const char *remedy, void *userdata);
        /* Charges the watched directories, except the root, to their users: a tree may have any
         * number. Borrowed; NULL: all may be watched */
        Bound *bound;
        void *userdata;
} DirWatchCallbacks;

/** Starts watching `root` (absolute; need not exist: then its nearest existing ancestor is watched
 * until it does) and everything below, new directories included, without a race between mkdir and
 * the watch: what is found in a new directory after its watch was added is reported by on_change.
 * Directories named `.neuron-collectd` are left out. Adding watches to a large tree is done in
 * slices of the loop (at most a few ms each). Symlinks among the ancestors of the root are
 * followed; the root itself, and what is below it, must not be symlinks. No callback comes before
 * this has returned. Directories deeper than FS_DEPTH_MAX below root are reported, but not watched.
 * @return 0, -EMFILE when no inotify instance can be had, -EINVAL root is not absolute or "/",
 * -ENOMEM */
int dirwatch_new(DirWatch **ret, sd_event *event, const char *root,
                 const DirWatchCallbacks *callbacks);
DirWatch *dirwatch_free(DirWatch *d);

/** Checks that the path still leads to the watched directory, since a mount over the root or an
 * ancestor raises no event, and tries again what the watch limit or the bound has left out.
 * Cheap: call it with every periodic scan. */
void dirwatch_check(DirWatch *d);

size_t dirwatch_n_watches(const DirWatch *d);
size_t dirwatch_n_overflows(const DirWatch *d);
/** @return how many directories the bound has left out */
size_t dirwatch_n_left_out(const DirWatch *d);
/** @return whether every directory found so far is watched */
bool dirwatch_is_complete(const DirWatch *d);
