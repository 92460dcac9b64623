/* What is said of a watched tree: changes by their paths, and each fault once, with its remedy. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/event/dirwatch_private.h"

typedef enum Fault { FAULT_LIMIT, FAULT_MEMORY, FAULT_DIRECTORY, FAULT_ROOT } Fault;

void dirwatch_tell_change(DirWatch *d, const WatchNode *node, const char *name, bool is_dir) {
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

void dirwatch_tell_limit(DirWatch *d) {
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

void dirwatch_tell_unwatched(DirWatch *d, const char *path, int error) {
        char why[2 * PATH_MAX + 128];

        if (error == -ENOSPC) {
                d->is_full = true;
                dirwatch_tell_limit(d);
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

void dirwatch_tell_root(DirWatch *d, int error) {
        char why[PATH_MAX + 128];

        (void)snprintf(why, sizeof why, "cannot watch '%.*s': %s", PATH_MAX, d->chain.path,
                       error == -ELOOP ? "it is a symbolic link" : strerror(-error));
        tell_fault(d, FAULT_ROOT, why,
                   error == -ELOOP ? "configure the path it points to"
                   : error == -ENOTDIR
                           ? "configure a directory, or remove the file that stands in its place"
                           : "let the agent's user read it and the directories above it");
}
