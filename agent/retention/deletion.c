/* Deletes what pins hold. The tree is hostile and the jobs continue meanwhile, so between any check
 * of a name and its deletion another file may get the name: it is therefore moved into our own
 * directory, and what came is classified there, where no user can reach it.
 *
 * One file at a time is moved, to `.taken-<bundle-id>`. After a crash the pins say which member the
 * file in there is; one that is no member had come in between, and is moved back under a name that
 * says so. A member's pin is removed after its name, so that what is still to be done is what is
 * still pinned. Directories of pins mirror the source's: a directory is removed when it has no
 * pins. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

#include "agent/retention/pins_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/scan.h"
#include "lib/neuron/tree.h"

#define KEPT_SUFFIX ".kept-by-neuron-collectd"
#define KEPT_TRIES 100

typedef struct Deleter {
        Pins *pins;
        const PinsOrder *order;
        PinsTally *tally;
        bool found;            /* some place has pins of the bundle */
        int fixed_fd, unit_fd; /* -1: gone. unit_fd of a file: its directory */
        int instance_fd, bundle_fd;
        char slot[NAME_MAX + 1];
} Deleter;

/* One directory of pins, and what it mirrors. */
typedef struct Level {
        int pins_fd, source_fd; /* source_fd -1: gone */
        const char *path;       /* in the bundle; "" at the top */
        bool keeps_pins;        /* pins stay in it or below */
        bool is_unshipped;      /* one of them, until it is rechecked */
} Level;

typedef enum MemberState { MEMBER_DELETABLE, MEMBER_CHANGED, MEMBER_OPEN } MemberState;

/* Nothing is there, or a symlink or something else where a directory of ours was: what lies behind
 * it is not ours. */
static bool is_gone(int r) {
        return r == -ENOENT || r == -ENOTDIR || r == -ELOOP;
}

static bool is_shipped(const PinsOrder *o, const char *path, const struct stat *st) {
        return member_fingerprints_have(o->prints, o->n_prints, member_fingerprint(path, st));
}

/* Whether the last link to it may be removed. */
static bool is_known(const Deleter *d, const char *path, int fd) {
        const PinsOrder *o = d->order;
        struct stat st;
        if (o->any_content || o->discards_unshipped)
                return true;
        return fstat(fd, &st) == 0 &&
               (is_shipped(o, path, &st) ||
                member_fingerprints_have(o->known, o->n_known, member_fingerprint(path, &st)));
}

/* @return MemberState, or -errno. Where there are no leases only the fingerprint tells, as it does
 * when a bundle settles. */
static int classify(const Deleter *d, const char *path, int fd) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!d->order->any_content && !is_shipped(d->order, path, &st))
                return MEMBER_CHANGED;
        int r = fs_has_no_writer(fd);
        return r < 0 ? r : r == FS_E_WRITER ? MEMBER_OPEN : MEMBER_DELETABLE;
}

/* ---- the slot ---- */

/* Where the file system knows no RENAME_NOREPLACE (NFS) a link does the same, for files. */
static int move_without_replacing(const Deleter *d, int dir_fd, const char *name) {
        if (renameat2(d->instance_fd, d->slot, dir_fd, name, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno != EINVAL)
                return -errno;
        if (linkat(d->instance_fd, d->slot, dir_fd, name, 0) < 0)
                return -errno;
        return unlinkat(d->instance_fd, d->slot, 0) < 0 ? -errno : 0;
}

static void record_kept(Deleter *d, int dir_fd, const char *name) {
        char link[sizeof "/proc/self/fd/" + 11], directory[PATH_MAX];
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", dir_fd);
        ssize_t n = readlink(link, directory, sizeof directory - 1);
        directory[MAX(n, (ssize_t)0)] = '\0';
        free(d->tally->kept);
        d->tally->kept = path_join(directory, name); /* NULL: only a message is lost */
}

/* Its name is used again, or its directory is gone: a name nearby, but never one that exists. */
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
                        if (r == 0) {
                                record_kept(d, places[i], other);
                                return 0;
                        }
                        if (r != -EEXIST)
                                break;
                }
        return r;
}

static int put_back(Deleter *d, int dir_fd, const char *name) {
        int r = dir_fd < 0 ? -ENOENT : move_without_replacing(d, dir_fd, name);
        return r == -EEXIST || r == -ENOENT ? keep_aside(d, dir_fd, name) : r;
}

static void count_deleted(Deleter *d, const struct stat *st) {
        d->tally->n_deleted++;
        d->tally->deleted_bytes += (uint64_t)st->st_size;
}

/* ---- one member ---- */

/* What came may be another file than was checked: it is classified again. @param fd  the pinned
 * file. @return MemberState, -errno */
static int delete_name(Deleter *d, const Level *l, const char *path, int fd) {
        struct stat st, pinned;
        const char *name = path_name(path);

        int r = renameat2(l->source_fd, name, d->instance_fd, d->slot, RENAME_NOREPLACE);
        if (r < 0 && errno == EINVAL) /* unknown to NFS; the slot is empty */
                r = renameat(l->source_fd, name, d->instance_fd, d->slot);
        if (r < 0)
                return errno == ENOENT ? MEMBER_DELETABLE : -errno;
        if (fstatat(d->instance_fd, d->slot, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            fstat(fd, &pinned) < 0)
                return -errno;
        r = pins_is_inode(&st, &pinned) ? classify(d, path, fd) : MEMBER_CHANGED;
        if (r == MEMBER_DELETABLE) {
                if (unlinkat(d->instance_fd, d->slot, 0) < 0)
                        return -errno;
                count_deleted(d, &pinned);
                return MEMBER_DELETABLE;
        }
        int back = put_back(d, l->source_fd, name);
        return back < 0 ? back : r;
}

/* @return whether the member's name at the source is the pinned inode; -errno */
static int has_name(const Level *l, const char *name, const struct stat *pinned) {
        struct stat there;
        if (l->source_fd < 0)
                return false;
        if (fstatat(l->source_fd, name, &there, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? false : -errno;
        return pins_is_inode(pinned, &there);
}

static int delete_member(Deleter *d, Level *l, const char *path) {
        const char *name = path_name(path);
        struct stat st;

        _cleanup_close_ int fd = fs_open_regular(l->pins_fd, name, &st);
        if (fd == -ENOENT)
                return 0;
        if (fd < 0)
                return fd;
        int r = MEMBER_DELETABLE, named = has_name(l, name, &st);
        if (named < 0)
                return named;
        if (named && !d->order->only_links) {
                r = classify(d, path, fd);
                if (r == MEMBER_DELETABLE)
                        r = delete_name(d, l, path, fd);
        }
        if (r < 0)
                return r;
        if (r == MEMBER_OPEN) {
                d->tally->n_open++;
                l->keeps_pins = true;
                return 0;
        }
        if ((!named || r == MEMBER_CHANGED) && !is_known(d, path, fd)) {
                d->tally->n_unshipped++;
                l->keeps_pins = l->is_unshipped = true;
                return 0;
        }
        d->tally->n_gone += !named;
        d->tally->n_changed += r == MEMBER_CHANGED;
        return unlinkat(l->pins_fd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

/* ---- directories ---- */

static int delete_below(Deleter *d, Level *l);

/* With anything in it, mounted on it, or something else in its place, it stays. */
static int remove_if_empty(int dir_fd, const char *name) {
        if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0 || errno == ENOTEMPTY || errno == EEXIST ||
            errno == EBUSY || is_gone(-errno))
                return 0;
        return -errno;
}

static int delete_directory(Deleter *d, Level *l, const char *path) {
        const char *name = path_name(path);
        _cleanup_close_ int pins_fd =
                openat(l->pins_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (pins_fd < 0)
                return -errno;
        int opened = l->source_fd < 0 ? -ENOENT
                                      : fs_open_beneath(l->source_fd, name, O_RDONLY | O_DIRECTORY);
        if (opened < 0 && !is_gone(opened))
                return opened;
        _cleanup_close_ int source_fd = MAX(opened, -1);
        Level below = { pins_fd, source_fd, path, false, false };
        int r = delete_below(d, &below);
        l->is_unshipped = l->is_unshipped || below.is_unshipped;
        l->keeps_pins = l->keeps_pins || below.keeps_pins || r < 0;
        if (r < 0 || below.keeps_pins)
                return r;
        r = l->source_fd < 0 || d->order->only_links ? 0 : remove_if_empty(l->source_fd, name);
        l->keeps_pins = l->keeps_pins || r < 0;
        if (r < 0)
                return r;
        return unlinkat(l->pins_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

/* Continues after a failure, and returns the first one. */
static int delete_below(Deleter *d, Level *l) {
        _cleanup_closedir_ DIR *dir = NULL;
        TreeList list = { 0 };
        int first = tree_open(l->pins_fd, "", &dir);
        if (first == 0)
                first = tree_list_read(&list, dir);
        for (size_t i = 0; i < list.n; i++) {
                const char *name = tree_list_name(&list, i);
                _cleanup_free_ char *path = l->path[0] ? path_join(l->path, name) : strdup(name);
                int r = !path                              ? -ENOMEM
                        : list.entries[i].type == TREE_DIR ? delete_directory(d, l, path)
                                                           : delete_member(d, l, path);
                if (r < 0) {
                        l->keeps_pins = true;
                        first = first < 0 ? first : r;
                }
        }
        tree_list_done(&list);
        return first;
}

/* ---- after a crash ---- */

static int put_back_at(Deleter *d, const char *path) {
        _cleanup_free_ char *parent = path_parent(path);
        bool is_deep = strchr(path, '/') != NULL;
        if (is_deep && !parent)
                return -ENOMEM;
        _cleanup_close_ int dir_fd =
                d->unit_fd < 0 || !is_deep
                        ? -1
                        : fs_open_beneath(d->unit_fd, parent, O_RDONLY | O_DIRECTORY);
        return put_back(d, is_deep ? MAX(dir_fd, -1) : d->unit_fd, path_name(path));
}

/* What an earlier run had moved when it was cut: it is moved back, and handled like all others. */
static int restore_taken(Deleter *d) {
        struct stat st;
        if (fstatat(d->instance_fd, d->slot, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : -errno;
        _cleanup_free_ char *path = d->bundle_fd < 0 ? NULL : pins_find_inode(d->bundle_fd, &st);
        if (!path)
                return keep_aside(d, d->unit_fd, d->order->bundle_id);
        return put_back_at(d, path);
}

/* ---- the whole bundle ---- */

/* Of what is missing, or has a symlink or something else in its place, nothing is ours. */
static int open_source(Deleter *d) {
        const PinsOrder *o = d->order;
        _cleanup_free_ char *parent = o->is_file ? path_parent(o->relative) : NULL;
        const char *directory = !o->is_file ? o->relative : strchr(o->relative, '/') ? parent : "";
        if (!directory)
                return -ENOMEM;
        int fd = scan_open_fixed(d->pins->directories[PLACE_INSIDE]);
        if (fd < 0)
                return is_gone(fd) ? 0 : fd;
        d->fixed_fd = fd;
        fd = directory[0] ? fs_open_beneath(d->fixed_fd, directory, O_RDONLY | O_DIRECTORY)
                          : fcntl(d->fixed_fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0 && !directory[0])
                return -errno;
        if (fd < 0)
                return is_gone(fd) ? 0 : fd;
        d->unit_fd = fd;
        return 0;
}

static bool is_unit_there(const Deleter *d) {
        struct stat st;
        const char *name = path_name(d->order->relative);
        return d->unit_fd >= 0 &&
               (!d->order->is_file || fstatat(d->unit_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0);
}

static int remove_unit(const Deleter *d) {
        const PinsOrder *o = d->order;
        if (o->is_file || o->leaves_directory || !o->relative[0] || d->unit_fd < 0)
                return 0;
        _cleanup_free_ char *parent = path_parent(o->relative);
        bool is_deep = strchr(o->relative, '/') != NULL;
        if (is_deep && !parent)
                return -ENOMEM;
        if (!is_deep)
                return remove_if_empty(d->fixed_fd, o->relative);
        _cleanup_close_ int fd = fs_open_beneath(d->fixed_fd, parent, O_RDONLY | O_DIRECTORY);
        if (fd < 0)
                return is_gone(fd) ? 0 : fd;
        return remove_if_empty(fd, path_name(o->relative));
}

static int at_place(Deleter *d, Place place) {
        _cleanup_close_ int instance_fd = pins_open_instance(d->pins, place, false, NULL);
        if (instance_fd < 0)
                return pins_is_not_ours(instance_fd) ? 0 : instance_fd;
        _cleanup_close_ int bundle_fd =
                pins_open_own_dir(instance_fd, d->order->bundle_id, false, NULL);
        if (bundle_fd < 0 && !pins_is_not_ours(bundle_fd))
                return bundle_fd;
        /* A call that hung may resume with what is in the slot. Where directories cannot be locked
         * this is not excluded. */
        if (bundle_fd >= 0 && flock(bundle_fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
                return -EBUSY;
        d->instance_fd = instance_fd;
        d->bundle_fd = bundle_fd;
        d->found = d->found || bundle_fd >= 0;
        int r = restore_taken(d);
        if (r < 0 || bundle_fd < 0)
                return r;
        Level top = { bundle_fd, d->unit_fd, "", false, false };
        r = delete_below(d, &top);
        return r < 0 ? r : top.is_unshipped ? PINS_E_UNSHIPPED : top.keeps_pins ? PINS_E_OPEN : 0;
}

/* One fsync writes the journal up to here. */
static int make_durable(const Pins *p) {
        for (Place place = 0; place < N_PLACES; place++) {
                _cleanup_close_ int fd = pins_open_instance(p, place, false, NULL);
                int r = fd < 0 ? 0 : fs_sync_dir(fd);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* What is missing may be deleted, or not mounted. Where the device number says nothing (another
 * boot may number it otherwise) our own directory beside the source does: it outlives the pins. */
static bool is_file_system_there(const Deleter *d) {
        const dev_t expected = (dev_t)d->order->unit_dev;
        struct stat fixed = { 0 }, st;
        bool has_fixed = d->fixed_fd >= 0 && fstat(d->fixed_fd, &fixed) == 0;
        if (has_fixed && expected != 0 && fixed.st_dev == expected)
                return true;
        for (Place place = 0; place < N_PLACES; place++) {
                _cleanup_close_ int fd = pins_open_instance(d->pins, place, false, NULL);
                if (fd < 0 || fstat(fd, &st) < 0)
                        continue;
                if (expected != 0 ? st.st_dev == expected : !has_fixed || st.st_dev == fixed.st_dev)
                        return true;
        }
        return false;
}

static int work(Deleter *d) {
        int worst = 0;
        for (Place place = 0; place < N_PLACES; place++) {
                int r = at_place(d, place);
                worst = worst < 0 || (worst > 0 && r >= 0) ? worst : r;
        }
        if (worst != 0)
                return worst;
        if (!d->found)
                return is_unit_there(d) ? -ENOENT : is_file_system_there(d) ? 0 : PINS_E_AWAY;
        int r = !d->order->only_links ? remove_unit(d) : 0;
        if (r < 0)
                return r;
        r = pins_release(d->pins, d->order->bundle_id);
        return r < 0 ? r : make_durable(d->pins);
}

int pins_delete(Pins *p, const PinsOrder *order, PinsTally *ret) {
        Deleter d = { .pins = p,
                      .order = order,
                      .tally = ret,
                      .fixed_fd = -1,
                      .unit_fd = -1,
                      .instance_fd = -1,
                      .bundle_fd = -1 };
        if (!pins_is_plain_name(order->bundle_id) || order->bundle_id[0] == '.' ||
            (size_t)snprintf(d.slot, sizeof d.slot, PINS_TAKEN_PREFIX "%s", order->bundle_id) >=
                    sizeof d.slot)
                return -EINVAL;
        int r = open_source(&d);
        if (r >= 0)
                r = work(&d);
        cleanup_closep(&d.unit_fd);
        cleanup_closep(&d.fixed_fd);
        return r == -ENOENT && order->only_links ? 0 : r;
}
