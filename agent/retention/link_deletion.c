/* Deletes a bundle's files at the source, and its links.
 *
 * The source is hostile and jobs are still writing to it, so another file may get a name between
 * any check of it and its deletion. A file is therefore moved into this node's own directory, where
 * no user can reach it, and is classified there:
 *
 *     src/unit/a --rename--> .taken-<bundle-id>
 *                                 | is the linked inode, with the content that was shipped
 *                                 +-----> it is unlinked
 *                                 | is another file, was changed, or is open for writing
 *                                 +-----> it is moved back to src/unit/a
 *                                 | ... and that name is in use again
 *                                 +-----> src/unit/a.kept-by-neuron-collectd
 *
 * One file at a time is in `.taken-`. A member's link is removed after its name, so that what is
 * still to do is what still has a link. After a crash the links therefore show which member the
 * file in `.taken-` is: it is moved back, and handled again. One that is no member is moved back
 * too.
 *
 * The directories of links mirror those of the source: a directory is removed at the source when
 * all links in it are gone and it is empty. Which bundle's files are deleted, and when, is decided
 * elsewhere (policy.c, retention_runner.c); of each file classify() decides here. */
#include "agent/retention/link_deletion.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/retention/link_inodes.h"
#include "agent/retention/links.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/scan.h"
#include "lib/neuron/tree.h"

#define KEPT_SUFFIX ".kept-by-neuron-collectd"
#define KEPT_TRIES 100

/* One call. */
typedef struct Deleter {
        LinkDirs *dirs;
        const LinkDeletion *request;
        LinkDeletionTally *tally;
        bool found;                 /* some place has links of the bundle */
        int fixed_fd, unit_fd;      /* -1: it does not exist. Of a file, unit_fd is its directory */
        int instance_fd, bundle_fd; /* in the place that is worked on; borrowed */
        char slot[NAME_MAX + 1];    /* `.taken-<bundle-id>` */
} Deleter;

/* One directory of links, and the directory of the source that it mirrors. */
typedef struct DeleterLevel {
        int links_fd, source_fd; /* source_fd -1: it does not exist */
        const char *path;        /* in the bundle; "" at the top */
        bool keeps_links;        /* links stay in it or below */
        bool is_unshipped;       /* one of those holds what was not shipped */
} DeleterLevel;

static int delete_below(Deleter *d, DeleterLevel *l);

typedef enum MemberState { MEMBER_DELETABLE, MEMBER_CHANGED, MEMBER_OPEN } MemberState;

/* @return whether nothing of the unit is there: no entry, or a symlink or a file in place of one of
 * its directories */
static bool is_gone(int r) {
        return r == -ENOENT || r == -ENOTDIR || r == -ELOOP;
}

static bool is_shipped(const LinkDeletion *o, const char *path, const struct stat *st) {
        return member_fingerprints_contain(o->prints, o->n_prints, member_fingerprint(path, st));
}

/* @return whether the last link to a member may be removed */
static bool is_known(const Deleter *d, const char *path, int fd) {
        const LinkDeletion *o = d->request;
        struct stat st;
        if (o->any_content || o->discards_unshipped)
                return true;
        return fstat(fd, &st) == 0 &&
               (is_shipped(o, path, &st) ||
                member_fingerprints_contain(o->known, o->n_known, member_fingerprint(path, &st)));
}

/* On a file system without leases only the fingerprint decides, as when a bundle settles.
 * @return MemberState, -errno */
static int classify(const Deleter *d, const char *path, int fd) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!d->request->any_content && !is_shipped(d->request, path, &st))
                return MEMBER_CHANGED;
        int r = fs_check_writer(fd);
        return r < 0 ? r : r == FS_E_WRITER ? MEMBER_OPEN : MEMBER_DELETABLE;
}

/* ---- the slot ---- */

/* On a file system without RENAME_NOREPLACE (NFS) link(2) does the same, for files. */
static int move_without_replacing(const Deleter *d, int dir_fd, const char *name) {
        if (renameat2(d->instance_fd, d->slot, dir_fd, name, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno != EINVAL)
                return -errno;
        if (linkat(d->instance_fd, d->slot, dir_fd, name, 0) < 0)
                return -errno;
        return unlinkat(d->instance_fd, d->slot, 0) < 0 ? -errno : 0;
}

/* Moves the file in the slot to a free name beside its own name, which is in use, or in a directory
 * above, when its directory is gone. */
static int keep_aside(Deleter *d, int dir_fd, const char *name) {
        const int places[] = { dir_fd, d->unit_fd, d->fixed_fd };
        int r = -ENOENT;
        for (size_t i = 0; i < ELEMENTSOF(places); i++)
                for (unsigned k = 1; places[i] >= 0 && k <= KEPT_TRIES; k++) {
                        char other[NAME_MAX + 1], number[16] = "";
                        if (k > 1)
                                (void)snprintf(number, sizeof number, ".%u", k);
                        (void)snprintf(other, sizeof other, "%.200s" KEPT_SUFFIX "%s", name,
                                       number);
                        r = move_without_replacing(d, places[i], other);
                        d->tally->n_kept += r == 0;
                        if (r == 0)
                                return 0;
                        if (r != -EEXIST)
                                break;
                }
        return r;
}

static int put_back(Deleter *d, int dir_fd, const char *name) {
        int r = dir_fd < 0 ? -ENOENT : move_without_replacing(d, dir_fd, name);
        return r == -EEXIST || r == -ENOENT ? keep_aside(d, dir_fd, name) : r;
}

/* ---- one member ---- */

/* Moves a name to the slot and deletes what is there, or moves it back.
 * @param fd  the linked file. @return MemberState, -errno */
static int delete_name(Deleter *d, const DeleterLevel *l, const char *path, int fd) {
        struct stat st, linked;
        const char *name = path_name(path);

        int r = renameat2(l->source_fd, name, d->instance_fd, d->slot, RENAME_NOREPLACE);
        if (r < 0 && errno == EINVAL) /* NFS; the slot is empty */
                r = renameat(l->source_fd, name, d->instance_fd, d->slot);
        if (r < 0)
                return errno == ENOENT ? MEMBER_DELETABLE : -errno;
        if (fstatat(d->instance_fd, d->slot, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            fstat(fd, &linked) < 0)
                return -errno;
        r = link_inodes_is_same(&st, &linked) ? classify(d, path, fd) : MEMBER_CHANGED;
        if (r == MEMBER_DELETABLE) {
                if (unlinkat(d->instance_fd, d->slot, 0) < 0)
                        return -errno;
                d->tally->n_deleted++;
                d->tally->deleted_bytes += (uint64_t)linked.st_size;
                return MEMBER_DELETABLE;
        }
        int back = put_back(d, l->source_fd, name);
        return back < 0 ? back : r;
}

/* @return whether the member's name at the source is the linked inode; -errno */
static int has_name(const DeleterLevel *l, const char *name, const struct stat *linked) {
        struct stat there;
        if (l->source_fd < 0)
                return false;
        if (fstatat(l->source_fd, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? false : -errno;
        return link_inodes_is_same(linked, &there);
}

static int delete_member(Deleter *d, DeleterLevel *l, const char *path) {
        const char *name = path_name(path);
        struct stat st;

        _cleanup_close_ int fd = fs_open_regular(l->links_fd, name, &st);
        if (fd == -ENOENT)
                return 0;
        if (fd < 0)
                return fd;
        int r = MEMBER_DELETABLE, named = has_name(l, name, &st);
        if (named < 0)
                return named;
        bool stays = d->request->only_links ||
                     (d->request->only_named && !member_is_evidence_by_name(name));
        if (named && !d->request->only_links)
                d->tally->n_unnamed += stays;
        if (named && !stays) {
                r = classify(d, path, fd);
                if (r == MEMBER_DELETABLE)
                        r = delete_name(d, l, path, fd);
        }
        if (r < 0)
                return r;
        if (r == MEMBER_OPEN) {
                d->tally->n_open++;
                l->keeps_links = true;
                return 0;
        }
        if ((!named || r == MEMBER_CHANGED) && !is_known(d, path, fd)) {
                d->tally->n_unshipped++;
                l->keeps_links = l->is_unshipped = true;
                return 0;
        }
        d->tally->n_gone += !named;
        d->tally->n_changed += r == MEMBER_CHANGED;
        return unlinkat(l->links_fd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

/* ---- directories ---- */

/* @return 0, also when it is not empty, is a mount point, or is no directory; -errno */
static int remove_if_empty(int dir_fd, const char *name) {
        if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0 || errno == ENOTEMPTY || errno == EEXIST ||
            errno == EBUSY || is_gone(-errno))
                return 0;
        return -errno;
}

static int delete_directory(Deleter *d, DeleterLevel *l, const char *path) {
        const char *name = path_name(path);
        _cleanup_close_ int links_fd =
                openat(l->links_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (links_fd < 0)
                return -errno;
        int opened = l->source_fd < 0 ? -ENOENT
                                      : fs_open_beneath(l->source_fd, name, O_RDONLY | O_DIRECTORY);
        if (opened < 0 && !is_gone(opened))
                return opened;
        _cleanup_close_ int source_fd = MAX(opened, -1);
        DeleterLevel below = { links_fd, source_fd, path, false, false };
        int r = delete_below(d, &below);
        l->is_unshipped = l->is_unshipped || below.is_unshipped;
        l->keeps_links = l->keeps_links || below.keeps_links || r < 0;
        if (r < 0 || below.keeps_links)
                return r;
        bool stays = d->request->only_links || d->request->only_named;
        r = l->source_fd < 0 || stays ? 0 : remove_if_empty(l->source_fd, name);
        l->keeps_links = l->keeps_links || r < 0;
        if (r < 0)
                return r;
        return unlinkat(l->links_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

/* Handles all entries of a directory of links. @return 0; the first error */
static int delete_below(Deleter *d, DeleterLevel *l) {
        _cleanup_closedir_ DIR *dir = NULL;
        TreeList list = { 0 };
        int first = tree_open(l->links_fd, "", &dir);
        if (first == 0)
                first = tree_list_read(&list, dir, &TREE_UNBOUNDED);
        for (size_t i = 0; i < list.n; i++) {
                const char *name = tree_list_name(&list, i);
                _cleanup_free_ char *path = l->path[0] ? path_join(l->path, name) : strdup(name);
                int r = !path                              ? -ENOMEM
                        : list.entries[i].type == TREE_DIR ? delete_directory(d, l, path)
                                                           : delete_member(d, l, path);
                if (r < 0) {
                        l->keeps_links = true;
                        first = first < 0 ? first : r;
                }
        }
        tree_list_done(&list);
        return first;
}

/* ---- what a call that was interrupted has left ---- */

static int put_back_at(Deleter *d, const char *path) {
        const char *name = path_name(path);
        _cleanup_close_ int fd = d->unit_fd < 0 ? -1 : tree_open_parent(d->unit_fd, path, &name);
        return fd == -ENOMEM ? fd : put_back(d, MAX(fd, -1), name);
}

/* Moves back what is in the slot. If it is a member, this call handles it like the others. */
static int restore_moved(Deleter *d) {
        struct stat st;
        if (fstatat(d->instance_fd, d->slot, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : -errno;
        _cleanup_free_ char *path =
                d->bundle_fd < 0 ? NULL : link_inodes_find_path(d->bundle_fd, &st);
        if (!path)
                return keep_aside(d, d->unit_fd, d->request->bundle_id);
        return put_back_at(d, path);
}

/* ---- a unit ---- */

/* Opens the fixed part and the unit. @return 0, also when is_gone(); -errno */
static int open_source(Deleter *d) {
        const LinkDeletion *o = d->request;
        const char *name;
        int fd = scan_open_fixed(link_dirs_path(d->dirs, LINK_INSIDE));
        if (fd < 0)
                return is_gone(fd) ? 0 : fd;
        d->fixed_fd = fd;
        fd = o->is_file ? tree_open_parent(d->fixed_fd, o->relative, &name)
                        : fs_open_beneath(d->fixed_fd, o->relative[0] ? o->relative : ".",
                                          O_RDONLY | O_DIRECTORY);
        if (fd < 0)
                return is_gone(fd) ? 0 : fd;
        d->unit_fd = fd;
        return 0;
}

static bool is_unit_there(const Deleter *d) {
        struct stat st;
        const char *name = path_name(d->request->relative);
        return d->unit_fd >= 0 &&
               (!d->request->is_file || fstatat(d->unit_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0);
}

static int remove_unit(const Deleter *d) {
        const LinkDeletion *o = d->request;
        if (o->is_file || o->leaves_directory || !o->relative[0] || d->unit_fd < 0)
                return 0;
        const char *name;
        _cleanup_close_ int fd = tree_open_parent(d->fixed_fd, o->relative, &name);
        if (fd < 0)
                return is_gone(fd) ? 0 : fd;
        return remove_if_empty(fd, name);
}

static int delete_in_place(Deleter *d, LinkPlace place) {
        _cleanup_close_ int instance_fd = link_dirs_open_instance(d->dirs, place, false, NULL);
        if (instance_fd < 0)
                return own_dir_is_absent(instance_fd) ? 0 : instance_fd;
        _cleanup_close_ int bundle_fd =
                own_dir_open_below(instance_fd, d->request->bundle_id, false, NULL);
        if (bundle_fd < 0 && !own_dir_is_absent(bundle_fd))
                return bundle_fd;
        /* A call that hung may resume, and would take what is in the slot for its own. On a file
         * system that cannot lock directories nothing excludes this. */
        if (bundle_fd >= 0 && flock(bundle_fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
                return -EBUSY;
        d->instance_fd = instance_fd;
        d->bundle_fd = bundle_fd;
        d->found = d->found || bundle_fd >= 0;
        int r = restore_moved(d);
        if (r < 0 || bundle_fd < 0)
                return r;
        DeleterLevel top = { bundle_fd, d->unit_fd, "", false, false };
        r = delete_below(d, &top);
        return r < 0              ? r
               : top.is_unshipped ? LINK_DELETION_E_UNSHIPPED
               : top.keeps_links  ? LINK_DELETION_E_OPEN
                                  : 0;
}

/* Decides whether what does not exist was deleted, or is not mounted. It was deleted when the fixed
 * part has the unit's device number. That number may differ after a boot; then this node's own
 * directory, which outlives the links, is the proof. */
static bool is_file_system_there(const Deleter *d) {
        const dev_t expected = (dev_t)d->request->unit_dev;
        struct stat fixed = { 0 }, st;
        bool has_fixed = d->fixed_fd >= 0 && fstat(d->fixed_fd, &fixed) == 0;
        if (has_fixed && expected != 0 && fixed.st_dev == expected)
                return true;
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                _cleanup_close_ int fd = link_dirs_open_instance(d->dirs, place, false, NULL);
                if (fd < 0 || fstat(fd, &st) < 0)
                        continue;
                if (expected != 0 ? st.st_dev == expected : !has_fixed || st.st_dev == fixed.st_dev)
                        return true;
        }
        return false;
}

static int delete_bundle(Deleter *d) {
        int worst = 0;
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                int r = delete_in_place(d, place);
                worst = worst < 0 || (worst > 0 && r >= 0) ? worst : r;
        }
        if (worst != 0)
                return worst;
        if (!d->found)
                return is_unit_there(d)          ? -ENOENT
                       : is_file_system_there(d) ? 0
                                                 : LINK_DELETION_E_AWAY;
        int r = !d->request->only_links ? remove_unit(d) : 0;
        if (r < 0)
                return r;
        r = links_release(d->dirs, d->request->bundle_id);
        return r < 0 ? r : link_dirs_sync(d->dirs);
}

int link_deletion_run(LinkDirs *dirs, const LinkDeletion *request, LinkDeletionTally *ret) {
        Deleter d = { .dirs = dirs,
                      .request = request,
                      .tally = ret,
                      .fixed_fd = -1,
                      .unit_fd = -1,
                      .instance_fd = -1,
                      .bundle_fd = -1 };
        if (!own_dir_is_plain_name(request->bundle_id) || request->bundle_id[0] == '.' ||
            (size_t)snprintf(d.slot, sizeof d.slot, LINK_TAKEN_PREFIX "%s", request->bundle_id) >=
                    sizeof d.slot)
                return -EINVAL;
        int r = open_source(&d);
        if (r >= 0)
                r = delete_bundle(&d);
        cleanup_closep(&d.unit_fd);
        cleanup_closep(&d.fixed_fd);
        return r == -ENOENT && request->only_links ? 0 : r;
}
