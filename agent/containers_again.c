/* What lies there and its source: told again what is missing from it, when the source was made anew; and said, where there is none any more. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/containers_private.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

/* ---- what is missing ---- */

static bool is_there(int unit_fd, const char *path) {
        struct stat st;
        return unit_fd >= 0 && fstatat(unit_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int promise_unit(const ContainersContext *context, const char *root, const TreeUnit *t) {
        _cleanup_free_ char *path = tree_unit_path(root, t);
        bool is_any = false;
        if (!path)
                return -ENOMEM;
        if (t->is_whole)
                return 0;
        _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        for (size_t i = 0; i < t->n_missing; i++)
                if (!is_there(fd, t->missing[i])) {
                        context->on_missing(t->source, path, t->missing[i], context->userdata);
                        is_any = true;
                }
        if (!is_any)
                context->on_missing(t->source, path, "", context->userdata);
        return 0;
}

int containers_promise_again(const ContainersContext *context, const char *root) {
        _cleanup_free_ char *path = path_join(root, CONTAINER_UNITS_DIRECTORY);
        _cleanup_closedir_ DIR *d = path ? opendir(path) : NULL;
        const struct dirent *e;
        int r = 0;
        if (!d)
                return !path ? -ENOMEM : errno == ENOENT ? 0 : -errno;
        while ((e = readdir(d))) {
                TreeUnit t;
                if (e->d_name[0] == '.' || tree_unit_read(&t, dirfd(d), e->d_name) < 0)
                        continue; /* said when they are looked through */
                int failed = promise_unit(context, root, &t);
                r = r < 0 ? r : failed;
                tree_unit_done(&t);
        }
        return r;
}

void containers_attach_again(Containers *c) {
        const ContainersContext *context = &c->context;
        LIST_FOREACH (l, &c->units) {
                ContainerUnit *u = CONTAINER_OF(l, ContainerUnit, link);
                _cleanup_free_ char *name =
                        u->is_unattached ? tree_unit_file(u->source, u->unit) : NULL;
                if (!name)
                        continue;
                _cleanup_close_ int dir_fd =
                        openat(c->root_fd, CONTAINER_UNITS_DIRECTORY,
                               O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                _cleanup_close_ int fd = dir_fd < 0 ? -1 : fs_open_regular(dir_fd, name, NULL);
                if (fd >= 0 && context->attach(u->source, u->path, CONTAINER_COPY_FILE, fd,
                                               context->userdata) == 0)
                        u->is_unattached = false;
        }
}

/* ---- without a source ---- */

static bool is_stranded(const Containers *c, const ContainerUnit *u) {
        return u->is_there && !u->is_over &&
               c->context.is_stranded(u->source, u->path, c->context.userdata);
}

size_t containers_n_stranded(const Containers *c) {
        size_t n = 0;
        LIST_FOREACH (l, (ListLink *)&c->units)
                n += is_stranded(c, CONTAINER_OF(l, ContainerUnit, link));
        return n;
}

/* @return how many of this source have not been told of; they have been, then */
static size_t take_untold(Containers *c, const char *source) {
        size_t n = 0;
        LIST_FOREACH (l, &c->units) {
                ContainerUnit *u = CONTAINER_OF(l, ContainerUnit, link);
                if (!u->is_told_stranded && strcmp(u->source, source) == 0 && is_stranded(c, u)) {
                        u->is_told_stranded = true;
                        n++;
                }
        }
        return n;
}

void containers_tell_stranded(Containers *c) {
        LIST_FOREACH (l, &c->units) {
                ContainerUnit *u = CONTAINER_OF(l, ContainerUnit, link);
                if (!is_stranded(c, u)) {
                        u->is_told_stranded = false;
                        continue;
                }
                size_t n = take_untold(c, u->source);
                if (n > 0)
                        log_warning(
                                0,
                                "no source '%s' of kind neuron-core-dump is configured any "
                                "more: dumps that were copied out of containers for it (%zu) lie "
                                "in '%s/%s', and are not shipped; name the source again, or "
                                "take them out by hand and remove that directory",
                                u->source, n, c->root, u->source);
        }
}
