/* Finds the units of a source. The rules are in unit.c, one unit is looked at by scan_unit.c. */
#include "lib/neuron/scan.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/neuron/scan_unit.h"
#include "lib/neuron/scan_walk.h"
#include "lib/neuron/tree.h"
#include "lib/neuron/unit.h"

typedef struct Finder {
        const ScanSource *source;
        int (*on_unit)(ScanUnit *u, void *userdata);
        void *userdata;
        bool on_network;
        char path[PATH_MAX]; /* of the entry looked at, below the fixed part */
        size_t n_path;
} Finder;

static bool enter_name(Finder *f, const char *name) {
        size_t slash = f->n_path > 0, n = strlen(name);

        if (f->n_path + slash + n + 1 > sizeof f->path)
                return false;
        if (slash)
                f->path[f->n_path] = '/';
        memcpy(f->path + f->n_path + slash, name, n + 1);
        f->n_path += slash + n;
        return true;
}

static void leave_name(Finder *f, size_t n_path) {
        f->n_path = n_path;
        f->path[n_path] = '\0';
}

static void tell_unreadable(const Finder *f) {
        if (f->source->on_unreadable)
                f->source->on_unreadable(f->path, f->userdata);
}

static int report(Finder *f, DIR *dir, const UnitAnswer *a) {
        const UnitPlace place = {
                .source = f->source,
                .on_network = f->on_network,
                .relative = f->path,
                .is_file = a->is_file,
                .loose = a->loose,
        };
        _cleanup_(scan_unit_done) ScanUnit u = { .n_files = 0 };
        int r = scan_unit_fill(&place, dir, &u);

        if (r == UNIT_E_FOREIGN || r == -ENOENT)
                return 0;
        if (r < 0)
                return r;
        if (u.n_files > 0)
                return f->on_unit(&u, f->userdata);
        if (u.skipped[SCAN_SKIP_UNREADABLE] > 0)
                tell_unreadable(f);
        return 0;
}

static bool is_ntff(const char *name) {
        size_t n = strlen(name);

        return n >= 5 && strcmp(name + n - 5, ".ntff") == 0;
}

/* @return 1 or 0; negative only for lack of memory or descriptors: what cannot be read is found out
 * by who walks it */
static int holds_ntff(DIR *dir) {
        const char *name;
        TreeType type;
        int r;

        while ((r = tree_next(dir, &name, &type)) > 0)
                if (type == TREE_FILE && is_ntff(name))
                        break;
        rewinddir(dir);
        return r < 0 && !tree_error_is_ours(r) ? 0 : r;
}

/* A directory that is being looked through. */
typedef struct Level {
        DIR *dir;
        size_t depth;
        int ntff_depth; /* of the outermost directory with ntff files on the way here; -1: none */
} Level;

static int find_at(Finder *f, const Level *at);

static int find_dir(Finder *f, const Level *above, const char *name) {
        _cleanup_closedir_ DIR *dir = NULL;
        const size_t depth = above->depth + 1;
        int r;

        if (depth >= FS_DEPTH_MAX || scan_component_owner(f->source, f->on_network, above->depth,
                                                          name) == UNIT_OWNER_FOREIGN)
                return 0;
        r = tree_open(dirfd(above->dir), name, &dir);
        if (r == 0)
                return find_at(f, &(Level){ dir, depth, above->ntff_depth });
        if (tree_error_is_ours(r))
                return r;
        if (r != -ENOENT && r != -ENOTDIR && r != -ELOOP)
                tell_unreadable(f);
        return 0;
}

/* @param ret_loose  set when the file belongs to the loose unit of its directory */
static int find_file(Finder *f, DIR *dir, bool *ret_loose) {
        const UnitQuestion q = {
                .kind = f->source->kind,
                .template_depth = path_template_depth(f->source->template),
                .relative = f->path,
                .ntff_depth = -1,
        };
        UnitAnswer a;

        if (!unit_rule(&q, &a))
                return 0;
        if (a.is_file)
                return report(f, dir, &a);
        *ret_loose = *ret_loose || a.loose;
        return 0;
}

/* Goes on below a directory that is no unit with all below it. The entries are taken as they come:
 * a source may have any number. */
static int find_below(Finder *f, const Level *at) {
        size_t n_path = f->n_path;
        const char *name;
        bool loose = false;
        TreeType type;
        int r, n;

        while ((n = tree_next(at->dir, &name, &type)) > 0) {
                if ((type != TREE_DIR && type != TREE_FILE) || !enter_name(f, name))
                        continue;
                r = type == TREE_DIR ? find_dir(f, at, name) : find_file(f, at->dir, &loose);
                leave_name(f, n_path);
                if (r < 0)
                        return r;
        }
        if (n < 0 && tree_error_is_ours(n))
                return n;
        if (n < 0 && n != -ENOENT)
                tell_unreadable(f);
        if (!loose)
                return 0;
        rewinddir(at->dir);
        return report(f, at->dir, &(UnitAnswer){ .depth = at->depth, .loose = true });
}

static int find_at(Finder *f, const Level *at) {
        UnitQuestion q = {
                .kind = f->source->kind,
                .template_depth = path_template_depth(f->source->template),
                .relative = f->path,
                .is_dir = true,
                .ntff_depth = at->ntff_depth,
        };
        bool by_ntff = false;
        UnitAnswer a;
        int r;

        if (q.kind == SOURCE_NEURON_PROFILE && !unit_rule(&q, &a)) {
                r = holds_ntff(at->dir);
                if (r < 0)
                        return r;
                by_ntff = r > 0;
                if (by_ntff)
                        q.ntff_depth = (int)at->depth;
        }
        if (unit_rule(&q, &a) && a.depth == at->depth) {
                r = report(f, at->dir, &a);
                if (r < 0 || !by_ntff)
                        return r;
                rewinddir(at->dir); /* `_pid_` directories in it are units of their own */
        }
        return find_below(f, &(Level){ at->dir, at->depth, q.ntff_depth });
}

int scan_source(const ScanSource *s, int (*on_unit)(ScanUnit *u, void *userdata), void *userdata) {
        Finder f = { .source = s, .on_unit = on_unit, .userdata = userdata };
        _cleanup_closedir_ DIR *dir = NULL;
        int r = fs_opendir_fd(scan_open_start(s), &dir);

        if (r < 0)
                return r;
        f.on_network = fs_is_network(dirfd(dir), NULL);
        return find_at(&f, &(Level){ dir, 0, -1 });
}

/* What is known of the path that scan_unit_of() is asked about. */
typedef struct Asked {
        bool is_there, is_dir;
        int ntff_depth;
} Asked;

static int look_at(int fixed_fd, const char *relative, Asked *ret) {
        _cleanup_closedir_ DIR *dir = NULL;
        _cleanup_free_ char *parent = NULL;
        const char *slash = strrchr(relative, '/');
        struct stat st;
        int r;

        *ret = (Asked){ .is_there = true, .is_dir = true, .ntff_depth = -1 };
        if (relative[0] == '\0')
                return 0;
        parent = strndup(relative, slash ? (size_t)(slash - relative) : 0);
        if (!parent)
                return -ENOMEM;
        r = tree_open(fixed_fd, parent, &dir);
        if (r == 0 &&
            fstatat(dirfd(dir), slash ? slash + 1 : relative, &st, AT_SYMLINK_NOFOLLOW) < 0)
                r = -errno;
        if (r == -ENOENT || r == -ENOTDIR)
                ret->is_there = false;
        else if (r < 0)
                return r;
        else
                ret->is_dir = S_ISDIR(st.st_mode);
        return 0;
}

/* Finds the outermost directory on the way to `relative` that holds ntff files. */
static int look_for_ntff(int fixed_fd, const char *relative, Asked *asked) {
        size_t n_dirs = unit_path_depth(relative) - (relative[0] != '\0' && !asked->is_dir);

        for (size_t i = 0; i <= n_dirs; i++) {
                _cleanup_closedir_ DIR *dir = NULL;
                _cleanup_free_ char *prefix = strndup(relative, unit_path_prefix(relative, i));
                int r;

                if (!prefix)
                        return -ENOMEM;
                r = tree_open(fixed_fd, prefix, &dir);
                if (r == 0)
                        r = holds_ntff(dir);
                if (r < 0)
                        return tree_error_is_ours(r)
                                       ? r
                                       : 0; /* nothing further down can be seen either */
                if (r > 0) {
                        asked->ntff_depth = (int)i;
                        return 0;
                }
        }
        return 0;
}

static bool is_left_out(const char *relative) {
        for (;;) {
                size_t n = strcspn(relative, "/");

                if (n == strlen(".neuron-collectd") && memcmp(relative, ".neuron-collectd", n) == 0)
                        return true;
                if (relative[n] == '\0')
                        return false;
                relative += n + 1;
        }
}

/* @return 0, SCAN_E_NO_UNIT, -ENOENT */
static int find_answer(const ScanSource *s, const char *relative, const Asked *asked,
                       UnitAnswer *ret) {
        UnitQuestion q = {
                .kind = s->kind,
                .template_depth = path_template_depth(s->template),
                .relative = relative,
                .is_dir = asked->is_dir,
                .ntff_depth = asked->ntff_depth,
        };

        /* What is gone was a directory for all we know: what lay in a unit still leads to the unit,
         * and what was one itself, or lay above, leads to nothing. */
        if (!asked->is_there &&
            (s->kind == SOURCE_PROCESS_CORE ||
             (s->kind != SOURCE_NEURON_PROFILE && unit_path_depth(relative) <= q.template_depth)))
                return -ENOENT;
        return unit_rule(&q, ret) ? 0 : SCAN_E_NO_UNIT;
}

static int look_at_unit(const UnitPlace *place, int fixed_fd, ScanUnit *ret) {
        const ScanWalk where = { .source = place->source, .relative = place->relative };
        _cleanup_(scan_unit_done) ScanUnit u = { .n_files = 0 };
        _cleanup_closedir_ DIR *dir = NULL;
        int r = scan_open_unit(&where, fixed_fd, &dir);

        if (r == -ENOTDIR)
                return -ENOENT; /* something else stands in its place */
        if (r == -ELOOP)
                return SCAN_E_NO_UNIT;
        if (r < 0)
                return r;
        r = scan_unit_fill(place, dir, &u);
        if (r < 0)
                return r;
        if (r == UNIT_E_FOREIGN || u.n_files == 0)
                return SCAN_E_NO_UNIT;
        *ret = u;
        u = (ScanUnit){ 0 };
        return 0;
}

int scan_unit_of(const ScanSource *s, const char *relative, ScanUnit *ret) {
        _cleanup_close_ int fixed_fd = -1;
        _cleanup_free_ char *unit = NULL;
        UnitAnswer a;
        Asked asked;
        int r;

        if (!unit_path_is_clean(relative))
                return -EINVAL;
        if (is_left_out(relative))
                return SCAN_E_NO_UNIT;
        fixed_fd = scan_open_start(s);
        if (fixed_fd < 0)
                return fixed_fd;
        r = look_at(fixed_fd, relative, &asked);
        if (r == 0 && s->kind == SOURCE_NEURON_PROFILE)
                r = look_for_ntff(fixed_fd, relative, &asked);
        if (r == -ELOOP)
                return SCAN_E_NO_UNIT;
        if (r < 0)
                return r;
        r = find_answer(s, relative, &asked, &a);
        if (r != 0)
                return r;
        unit = strndup(relative, unit_path_prefix(relative, a.depth));
        if (!unit)
                return -ENOMEM;
        const UnitPlace place = { .source = s,
                                  .on_network = fs_is_network(fixed_fd, NULL),
                                  .relative = unit,
                                  .is_file = a.is_file,
                                  .loose = a.loose };
        return look_at_unit(&place, fixed_fd, ret);
}
