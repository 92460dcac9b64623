/* Finds the units of a source below its fixed part, and the unit that one path belongs to. Which
 * paths make a unit is decided by the rules of unit.c; for core dumps and profiles also by the
 * names in a directory, which are read here. */
#include "lib/neuron/scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/neuron/scan_private.h"
#include "lib/neuron/tree.h"

/* @param relative  borrowed */
static UnitQuery query_of(const ScanSource *s, const char *relative, bool is_dir, int ntff_depth) {
        return (UnitQuery){ .kind = s->kind,
                            .template_depth = path_template_depth(s->template),
                            .relative = relative,
                            .is_dir = is_dir,
                            .ntff_depth = ntff_depth };
}

typedef struct UnitFinder {
        const ScanSource *source;
        int (*on_unit)(ScanUnit *u, void *userdata);
        void *userdata;
        bool on_network;
        ScanPath path; /* below the fixed part */
} UnitFinder;

static void report_unreadable(const UnitFinder *f) {
        if (f->source->on_unreadable)
                f->source->on_unreadable(f->path.text, f->userdata);
}

static void report_left_out(const UnitFinder *f, ScanSkip skip) {
        if (f->source->on_left_out)
                f->source->on_left_out(&(ScanMember){ .path = f->path.text, .skip = skip },
                                       f->userdata);
}

/* @param is_evidence  as in ScanUnit */
static int report_unit(UnitFinder *f, DIR *dir, const UnitMatch *a, bool is_evidence) {
        const ScanLocation location = {
                .source = f->source,
                .on_network = f->on_network,
                .relative = f->path.text,
                .is_file = a->is_file,
                .loose = a->loose,
                .is_evidence = is_evidence,
        };
        _cleanup_(scan_unit_done) ScanUnit u = { .n_files = 0 };
        int r = scan_unit_fill(&location, dir, &u);

        if (r == SCAN_E_FOREIGN || r == -ENOENT)
                return 0;
        if (r < 0)
                return r;
        if (u.n_files > 0 || u.n_foreign > 0)
                return f->on_unit(&u, f->userdata);
        if (u.skipped[SCAN_SKIP_UNREADABLE] > 0)
                report_unreadable(f);
        for (int i = 0; i < N_SCAN_SKIPS; i++)
                if (i != SCAN_SKIP_UNREADABLE && u.skipped[i] > 0 && scan_skip_is_loss((ScanSkip)i))
                        report_left_out(f, (ScanSkip)i);
        return 0;
}

/* @return whether a file belongs to a profile: also a framework trace, which lies beside the
 * `_pid_` directories */
static bool is_profile_file(const char *name) {
        DumpName parsed;
        dump_name_parse(SOURCE_NEURON_PROFILE, name, &parsed);
        return parsed.kind == MEMBER_NTFF || parsed.kind == MEMBER_SYSTEM_TRACE;
}

/* @return whether a directory makes the one that it lies in an output directory: it is the
 * runtime's of a process, with an EC2 id before `_pid_`, or that of a framework's profiler */
static bool is_profile_dir(DIR *dir, const char *name) {
        char instance_id[INSTANCE_ID_SIZE];
        struct stat st;

        return (profile_unit_name_parse(name, instance_id, NULL) &&
                instance_id_is_ec2(instance_id)) ||
               (strcmp(name, "plugins") == 0 &&
                fstatat(dirfd(dir), "plugins/profile", &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                S_ISDIR(st.st_mode));
}

/* @return 1 or 0; negative only for lack of memory or descriptors. Other errors are found when the
 * directory is walked. */
static int has_ntff(DIR *dir) {
        const char *name;
        TreeType type;
        int r;

        while ((r = tree_next(dir, &name, &type)) > 0)
                if (type == TREE_FILE ? is_profile_file(name)
                                      : type == TREE_DIR && is_profile_dir(dir, name))
                        break;
        rewinddir(dir);
        return r < 0 && !tree_error_is_resource(r) ? 0 : r;
}

/* A directory that is being scanned. */
typedef struct Level {
        DIR *dir;
        size_t depth;
        int ntff_depth; /* of the outermost directory with ntff files on the way here; -1: none */
        bool in_unit;   /* of a dump: an entry that is no unit belongs to the unit above */
} Level;

static int find_at(UnitFinder *f, const Level *at);

static int find_dir(UnitFinder *f, const Level *above, const char *name) {
        _cleanup_closedir_ DIR *dir = NULL;
        const size_t depth = above->depth + 1;
        int r;

        if (scan_component_owner(f->source, f->on_network, NULL, above->depth, name).owner ==
            UNIT_OWNER_FOREIGN)
                return 0;
        if (depth >= FS_DEPTH_MAX) {
                report_left_out(f, SCAN_SKIP_TOO_DEEP);
                return 0;
        }
        r = tree_open(dirfd(above->dir), name, &dir);
        if (r == 0)
                return find_at(f, &(Level){ dir, depth, above->ntff_depth, above->in_unit });
        if (tree_error_is_resource(r))
                return r;
        if (r != -ENOENT && r != -ENOTDIR && r != -ELOOP)
                report_unreadable(f);
        return 0;
}

/* @param ret_loose  set when the file belongs to the loose unit of its directory */
static int find_file(UnitFinder *f, const Level *at, bool *ret_loose) {
        const UnitQuery q = query_of(f->source, f->path.text, false, at->ntff_depth);
        UnitMatch a;

        if (at->in_unit)
                return 0;
        if (q.kind == SOURCE_NEURON_CORE_DUMP && !dump_name_is_of_dump(path_name(f->path.text))) {
                report_left_out(f, SCAN_SKIP_NO_DUMP);
                return 0;
        }
        if (!unit_match(&q, &a)) {
                report_left_out(f, SCAN_SKIP_NO_PROFILE);
                return 0;
        }
        if (a.is_file)
                return report_unit(f, at->dir, &a, true);
        *ret_loose = *ret_loose || a.loose;
        return 0;
}

/* Reports a symlink whose name is that of evidence: symlinks are not followed. */
static void find_symlink(const UnitFinder *f, const Level *at) {
        const ScanSource *s = f->source;
        const char *name = path_name(f->path.text);
        bool is_evidence = unit_is_evidence_by_name(s->kind, s->template, f->path.text) ||
                           (s->kind == SOURCE_NEURON_CORE_DUMP && dump_name_is_of_dump(name)) ||
                           (s->kind == SOURCE_NEURON_PROFILE && is_profile_file(name));

        if (is_evidence && !at->in_unit)
                report_left_out(f, SCAN_SKIP_SYMLINK);
}

/* Continues below a directory that is not a unit as a whole. The entries are not sorted, because a
 * source may have any number of them. */
static int find_below(UnitFinder *f, const Level *at) {
        size_t n_path = f->path.n;
        const char *name;
        bool loose = false;
        TreeType type;
        int r, n;

        while ((n = tree_next(at->dir, &name, &type)) > 0) {
                if ((type != TREE_DIR && type != TREE_FILE && type != TREE_SYMLINK) ||
                    !scan_path_enter(&f->path, 0, name))
                        continue;
                r = 0;
                if (type == TREE_SYMLINK)
                        find_symlink(f, at);
                else
                        r = type == TREE_DIR ? find_dir(f, at, name) : find_file(f, at, &loose);
                scan_path_leave(&f->path, n_path);
                if (r < 0)
                        return r;
        }
        if (n < 0 && tree_error_is_resource(n))
                return n;
        if (n < 0 && n != -ENOENT)
                report_unreadable(f);
        if (!loose)
                return 0;
        rewinddir(at->dir);
        return report_unit(f, at->dir, &(UnitMatch){ .depth = at->depth, .loose = true }, true);
}

/* Reports the unit that a directory of a source of dumps is, at the template's depth or below, and
 * continues below it. */
static int find_dump(UnitFinder *f, const Level *at) {
        const ScanSource *s = f->source;
        const UnitMatch a = { .depth = at->depth };
        Level below = *at;
        int r;

        if (path_template_match(s->template, f->path.text, NULL))
                return report_unit(f, at->dir, &a, true);
        int named = scan_holds_dump_name(at->dir);
        if (named < 0)
                return named;
        if (named > 0 ||
            (!at->in_unit && s->is_unit && s->is_unit(f->path.text, s->is_unit_userdata))) {
                r = report_unit(f, at->dir, &a, named > 0);
                if (r < 0)
                        return r;
                rewinddir(at->dir);
                below.in_unit = true;
        }
        return find_below(f, &below);
}

static int find_at(UnitFinder *f, const Level *at) {
        UnitQuery q = query_of(f->source, f->path.text, true, at->ntff_depth);
        bool by_ntff = false;
        UnitMatch a;
        int r;

        if (q.kind == SOURCE_NEURON_CORE_DUMP && at->depth >= q.template_depth)
                return find_dump(f, at);
        if (q.kind == SOURCE_NEURON_PROFILE && !unit_match(&q, &a)) {
                r = has_ntff(at->dir);
                if (r < 0)
                        return r;
                by_ntff = r > 0;
                if (by_ntff)
                        q.ntff_depth = (int)at->depth;
        }
        if (unit_match(&q, &a) && a.depth == at->depth) {
                r = report_unit(f, at->dir, &a, true);
                if (r < 0 || !by_ntff)
                        return r;
                rewinddir(at->dir); /* for its `_pid_` directories, which are units, too */
        }
        return find_below(f, &(Level){ at->dir, at->depth, q.ntff_depth, false });
}

int scan_source(const ScanSource *s, int (*on_unit)(ScanUnit *u, void *userdata), void *userdata) {
        UnitFinder f = { .source = s, .on_unit = on_unit, .userdata = userdata };
        _cleanup_closedir_ DIR *dir = NULL;
        int r = fs_opendir_fd(scan_open_start(s), &dir);

        if (r < 0)
                return r;
        f.on_network = fs_is_network(dirfd(dir), NULL);
        return find_at(&f, &(Level){ dir, 0, -1, false });
}

/* @return 0 and whether it is a directory; -ENOENT, -ENOTDIR: nothing is there; -errno */
static int stat_path(int fixed_fd, const char *relative, bool *ret_is_dir) {
        const char *name;
        struct stat st;

        *ret_is_dir = true;
        if (relative[0] == '\0')
                return 0;
        _cleanup_close_ int fd = tree_open_parent(fixed_fd, relative, &name);
        if (fd < 0)
                return fd;
        if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        *ret_is_dir = S_ISDIR(st.st_mode);
        return 0;
}

/* Finds the outermost directory on the way to a path that holds ntff files. */
static int find_ntff_depth(int fixed_fd, UnitQuery *q) {
        size_t n_dirs = unit_path_depth(q->relative) - (q->relative[0] != '\0' && !q->is_dir);

        for (size_t i = 0; i <= n_dirs; i++) {
                _cleanup_closedir_ DIR *dir = NULL;
                _cleanup_free_ char *prefix =
                        strndup(q->relative, unit_path_prefix(q->relative, i));
                int r;

                if (!prefix)
                        return -ENOMEM;
                r = tree_open(fixed_fd, prefix, &dir);
                if (r == 0)
                        r = has_ntff(dir);
                if (r < 0)
                        return tree_error_is_resource(r) ? r
                                                         : 0; /* nor can what lies below be read */
                if (r > 0) {
                        q->ntff_depth = (int)i;
                        return 0;
                }
        }
        return 0;
}

/* Finds the dump that a path lies in, as find_dump() does: what matches the template, else the
 * innermost directory that holds such a name, else the outermost of is_unit.
 * @return 1 there is one, 0 none, -ENOMEM … */
static int find_dump_above(const ScanSource *s, int fixed_fd, const UnitQuery *q, UnitMatch *ret,
                           bool *ret_is_evidence) {
        size_t depth = unit_path_depth(q->relative) - (q->relative[0] != '\0' && !q->is_dir);
        int found = 0;

        for (size_t i = depth + 1; i-- > q->template_depth;) {
                _cleanup_closedir_ DIR *dir = NULL;
                _cleanup_free_ char *unit = strndup(q->relative, unit_path_prefix(q->relative, i));
                int r = unit ? tree_open(fixed_fd, unit, &dir) : -ENOMEM;

                if (r == 0 && (found == 0 || !*ret_is_evidence))
                        r = scan_holds_dump_name(dir);
                if (r < 0 && tree_error_is_resource(r))
                        return r;
                bool matches = path_template_match(s->template, unit, NULL);
                bool is_unit = s->is_unit && s->is_unit(unit, s->is_unit_userdata);
                if (!matches && ((found > 0 && *ret_is_evidence) || (r <= 0 && !is_unit)))
                        continue;
                *ret = (UnitMatch){ .depth = i };
                *ret_is_evidence = matches || r > 0;
                found = 1;
        }
        return found;
}

static bool is_ignored(const char *relative) {
        const size_t n = strlen(".neuron-collectd");

        for (const char *p = relative; (p = strstr(p, ".neuron-collectd")); p += n)
                if ((p == relative || p[-1] == '/') && (p[n] == '\0' || p[n] == '/'))
                        return true;
        return false;
}

/* @return whether a path that was removed lay inside a unit, which then is checked. The path is
 * taken for a directory; one that was a unit itself, or lay above units, leads to none. */
static bool may_lie_in_unit(const UnitQuery *q) {
        return q->kind == SOURCE_NEURON_PROFILE ||
               (q->kind != SOURCE_PROCESS_CORE && unit_path_depth(q->relative) > q->template_depth);
}

static int scan_one_unit(const ScanLocation *location, int fixed_fd, ScanUnit *ret) {
        const ScanWalk where = { .source = location->source, .relative = location->relative };
        _cleanup_(scan_unit_done) ScanUnit u = { .n_files = 0 };
        _cleanup_closedir_ DIR *dir = NULL;
        int r = scan_open_unit(&where, fixed_fd, &dir);

        if (r == -ENOTDIR)
                return -ENOENT; /* something else stands in its place */
        if (r == -ELOOP)
                return SCAN_E_NO_UNIT;
        if (r < 0)
                return r;
        r = scan_unit_fill(location, dir, &u);
        if (r < 0)
                return r;
        if (r == SCAN_E_FOREIGN || u.n_files == 0)
                return SCAN_E_NO_UNIT;
        *ret = u;
        u = (ScanUnit){ 0 };
        return 0;
}

int scan_unit_at(const ScanSource *s, const char *relative, ScanUnit *ret) {
        UnitQuery q = query_of(s, relative, true, -1);
        UnitMatch a;

        if (!unit_path_is_clean(relative))
                return -EINVAL;
        if (is_ignored(relative))
                return SCAN_E_NO_UNIT;
        _cleanup_close_ int fixed_fd = scan_open_start(s);
        if (fixed_fd < 0)
                return fixed_fd;
        int r = stat_path(fixed_fd, relative, &q.is_dir);
        bool is_gone = r == -ENOENT || r == -ENOTDIR;
        if (is_gone)
                r = 0;
        if (r == 0 && s->kind == SOURCE_NEURON_PROFILE)
                r = find_ntff_depth(fixed_fd, &q);
        if (r < 0)
                return r == -ELOOP ? SCAN_E_NO_UNIT : r;
        if (is_gone && !may_lie_in_unit(&q))
                return -ENOENT;
        if (!unit_match(&q, &a))
                return SCAN_E_NO_UNIT;
        bool is_evidence = true;
        if (s->kind == SOURCE_NEURON_CORE_DUMP && !a.loose) {
                r = find_dump_above(s, fixed_fd, &q, &a, &is_evidence);
                if (r <= 0)
                        return r < 0 ? r : SCAN_E_NO_UNIT;
        }
        _cleanup_free_ char *unit = strndup(relative, unit_path_prefix(relative, a.depth));
        if (!unit)
                return -ENOMEM;
        const ScanLocation location = { .source = s,
                                        .on_network = fs_is_network(fixed_fd, NULL),
                                        .relative = unit,
                                        .is_file = a.is_file,
                                        .loose = a.loose,
                                        .is_evidence = is_evidence };
        return scan_one_unit(&location, fixed_fd, ret);
}
