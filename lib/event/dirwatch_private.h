/* What the files of a DirWatch share: dirwatch.c has its life and the events, dirwatch_look.c the queue and the slices in which directories are
 * watched, listed and let go, dirwatch_root.c its root, dirwatch_tell.c what is said of it. Nobody else includes this. */
#pragma once

#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <sys/inotify.h>
#include <sys/types.h>

#include "lib/base/fs.h"
#include "lib/event/dirwatch.h"
#include "lib/event/dirwatch_chain.h"
#include "lib/event/dirwatch_tree.h"

#define DIRWATCH_DEPTH_MAX FS_DEPTH_MAX
#define DIRWATCH_PATH_BYTES ((DIRWATCH_DEPTH_MAX + 2) * (NAME_MAX + 1))
#define DIRWATCH_EVENT_BYTES (64 * 1024)
#define DIRWATCH_DENTS_BYTES (32 * 1024)

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
        char path[DIRWATCH_PATH_BYTES];
        _Alignas(struct inotify_event) char events[DIRWATCH_EVENT_BYTES];
        _Alignas(struct dirent64) char dents[DIRWATCH_DENTS_BYTES];
};

/* dirwatch_look.c */
/** Loud: what is found in it is reported. Walk: all below it is looked at again, and on_rescan told at the end. */
void dirwatch_enqueue(DirWatch *d, WatchNode *n, bool loud, bool walk);
/** It is gone: its watches and nodes are let go in later slices. */
void dirwatch_detach(DirWatch *d, WatchNode *n);
/** Takes note of a directory below a known one. @return its node, NULL when it is too deep or there is no memory */
WatchNode *dirwatch_note_directory(DirWatch *d, WatchNode *parent, const char *name);
/** @return whether it is none of the watcher's business: our own directory */
bool dirwatch_is_left_out(const char *name, bool is_dir);
int dirwatch_on_slice(sd_event_source *s, void *userdata);

/* dirwatch_root.c */
/** Brings tree.root in line with what is at the path now. */
void dirwatch_root_settle(DirWatch *d);
void dirwatch_root_gone(DirWatch *d, const char *why);
/** @return 0 and d->root_fd is the watched root, or why it cannot be opened */
int dirwatch_root_open(DirWatch *d);
void dirwatch_root_close(DirWatch *d);

/* dirwatch_tell.c; faults are told once each */
void dirwatch_tell_change(DirWatch *d, const WatchNode *node, const char *name, bool is_dir);
void dirwatch_tell_limit(DirWatch *d);
/** A directory that is there but cannot be watched. @param error  -errno */
void dirwatch_tell_unwatched(DirWatch *d, const char *path, int error);
void dirwatch_tell_root(DirWatch *d, int error);
