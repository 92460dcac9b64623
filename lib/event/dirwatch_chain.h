/* The way to a watched root: its ancestors' watches, so that a root that is not there yet, or goes away, is noticed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/inotify.h>

typedef struct DirwatchChain {
        char *path;   /* of the root, simplified; owned */
        size_t *ends; /* length of each proper ancestor's path: ends[0] is "/"; owned */
        int *wds;     /* watch of each, -1 = none; owned */
        size_t n;
        size_t n_present; /* ancestors that exist; while the root is awaited the last of them is told of new names */
        bool is_waiting;
} DirwatchChain;

/** @param root  absolute. @return 0, -EINVAL not absolute or "/", -ENOMEM */
int dirwatch_chain_init(DirwatchChain *c, const char *root);
void dirwatch_chain_done(DirwatchChain *c);

/** Watches the ancestors and opens the root. Ancestors that appear while this runs are met by a further round, so nothing is
 * missed however quickly they come.
 * @param ret_fd  the root, O_RDONLY directory, the caller's; only on DIRWATCH_CHAIN_THERE
 * @return DIRWATCH_CHAIN_THERE; DIRWATCH_CHAIN_WAITING: told by an event when to call again; -ELOOP the root is a symbolic link,
 * -ENOTDIR it or an ancestor is no directory (both: waiting as well); -ENOSPC, -EACCES … when it cannot be waited for */
enum { DIRWATCH_CHAIN_THERE = 1, DIRWATCH_CHAIN_WAITING = 2 };
int dirwatch_chain_settle(DirwatchChain *c, int inotify_fd, int *ret_fd);

/** @return whether the event calls for dirwatch_chain_settle() */
bool dirwatch_chain_concerns(const DirwatchChain *c, const struct inotify_event *e);
size_t dirwatch_chain_n_watches(const DirwatchChain *c);

/** Adds a watch on what fd is, whatever its name is by now. @return wd or -errno */
int dirwatch_add_watch(int inotify_fd, int fd, uint32_t mask);
