/* The root of a watched tree: whether what is at its path is still the directory that is watched. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/event/dirwatch_private.h"

void dirwatch_root_close(DirWatch *d) {
        if (d->root_fd >= 0)
                (void)close(d->root_fd); /* read only */
        d->root_fd = -1;
}

void dirwatch_root_gone(DirWatch *d, const char *why) {
        if (!d->tree.root)
                return;
        dirwatch_root_close(d);
        dirwatch_detach(d, d->tree.root);
        d->callbacks.on_rescan(why, d->callbacks.userdata);
}

void dirwatch_root_settle(DirWatch *d) {
        _cleanup_close_ int fd = -1;
        WatchNode *root;
        struct stat st;
        int r;

        r = dirwatch_chain_settle(&d->chain, d->fd, &fd);
        if (r != DIRWATCH_CHAIN_THERE) {
                dirwatch_root_gone(d, "the directory went away");
                if (r == -ENOSPC)
                        dirwatch_tell_limit(d);
                else if (r < 0)
                        dirwatch_tell_root(d, r);
                return;
        }
        if (fstat(fd, &st) < 0) {
                dirwatch_tell_root(d, -errno);
                return;
        }
        if (d->tree.root && d->root_dev == st.st_dev && d->root_ino == st.st_ino)
                return;
        dirwatch_root_gone(d, "another directory took its place");
        r = watch_tree_add(&d->tree, NULL, "", &root);
        if (r < 0) {
                dirwatch_tell_unwatched(d, "", r);
                return;
        }
        d->root_dev = st.st_dev;
        d->root_ino = st.st_ino;
        d->walk_why = "the directory is watched now";
        dirwatch_enqueue(d, root, false, true);
}

int dirwatch_root_open(DirWatch *d) {
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
