/* Walks the members of one unit in order and says of everything else there why it is none. */
#include "lib/neuron/scan_walk.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/neuron/tree.h"
#include "lib/neuron/unit.h"

typedef struct Walker {
        const ScanWalk *walk;
        const ScanSource *source;
        int unit_fd;
        bool on_network;
        size_t n_prefix, depth; /* length and components of the unit's own path */
        uint64_t n_files, bytes;
        char path[PATH_MAX]; /* of the entry looked at, below the unit */
        size_t n_path;
        bool has_told; /* anything at all */
} Walker;

static int tell(Walker *w, const ScanMember *m) {
        w->has_told = true;
        return w->walk->on_member(m, w->unit_fd, w->walk->userdata);
}

/* Appends a component. @return false when the path would be longer than a system call takes */
static bool enter_name(Walker *w, const char *name) {
        size_t slash = w->n_path > 0, n = strlen(name);

        if (w->n_prefix + w->n_path + slash + n + 1 >= sizeof w->path)
                return false;
        if (slash)
                w->path[w->n_path] = '/';
        memcpy(w->path + w->n_path + slash, name, n + 1);
        w->n_path += slash + n;
        return true;
}

static void leave_name(Walker *w, size_t n_path) {
        w->n_path = n_path;
        w->path[n_path] = '\0';
}

/* @return 1 excluded, 0 not, -ENOMEM */
static int is_excluded(const Walker *w) {
        _cleanup_free_ char *escaped = NULL;

        if (!w->source->exclude || !w->source->exclude[0])
                return 0;
        escaped = path_escape(w->path);
        if (!escaped)
                return -ENOMEM;
        for (const char *const *p = w->source->exclude; *p; p++)
                /* The escaped spelling of a slash is a slash, so the last component can be cut from
                 * it. */
                if (fnmatch(*p, escaped, 0) == 0 || fnmatch(*p, path_name(escaped), 0) == 0)
                        return 1;
        return 0;
}

static bool is_strangers_link(const Walker *w, const struct stat *st) {
        unsigned ours = 0;

        if (st->st_nlink <= 1 || w->source->any_links)
                return false;
        if (w->walk->own_links)
                ours = w->walk->own_links(w->path, st, w->walk->userdata);
        return st->st_nlink > UINT64_C(1) + ours;
}

/* Looks at a file that no name speaks against. @return 0 and the verdict in *m; -ENOENT it is gone
 */
static int judge_file(Walker *w, int dir_fd, const char *name, ScanMember *m) {
        if (w->source->max_files > 0 && w->n_files >= w->source->max_files) {
                m->skip = SCAN_SKIP_TOO_MANY;
                return 0;
        }
        if (fstatat(dir_fd, name, &m->st, AT_SYMLINK_NOFOLLOW) < 0) {
                if (errno == ENOENT || errno == ENOMEM)
                        return -errno;
                m->st = (struct stat){ 0 };
                m->skip = SCAN_SKIP_UNREADABLE;
        } else if (S_ISLNK(m->st.st_mode))
                m->skip = SCAN_SKIP_SYMLINK;
        else if (S_ISDIR(m->st.st_mode))
                return -ENOENT; /* gone; the directory in its place is for the next scan */
        else if (!S_ISREG(m->st.st_mode))
                m->skip = SCAN_SKIP_SPECIAL;
        else if (is_strangers_link(w, &m->st))
                m->skip = SCAN_SKIP_HARDLINK;
        else if (w->source->max_bytes > 0 &&
                 (uint64_t)m->st.st_size > w->source->max_bytes - w->bytes)
                m->skip = SCAN_SKIP_TOO_BIG;
        return 0;
}

static int visit_file(Walker *w, int dir_fd, const char *name, TreeType type) {
        ScanMember m = { .path = w->path };
        int r;

        dump_name_parse(w->source->kind, name, &m.name);
        r = is_excluded(w);
        if (r < 0)
                return r;
        if (r > 0)
                m.skip = SCAN_SKIP_EXCLUDED;
        else if (unit_owner(w->source->instance_id, m.name.instance_id, w->on_network) ==
                 UNIT_OWNER_FOREIGN)
                m.skip = SCAN_SKIP_FOREIGN;
        else if (type == TREE_SYMLINK)
                m.skip = SCAN_SKIP_SYMLINK;
        else if (type == TREE_SPECIAL)
                m.skip = SCAN_SKIP_SPECIAL;
        else {
                r = judge_file(w, dir_fd, name, &m);
                if (r == -ENOENT)
                        return 0;
                if (r < 0)
                        return r;
        }
        if (m.skip == SCAN_SKIP_NONE) {
                w->n_files++;
                w->bytes += (uint64_t)m.st.st_size;
        }
        return tell(w, &m);
}

static int skip_dir(Walker *w, const char *name, ScanSkip skip) {
        ScanMember m = { .path = w->path, .skip = skip };

        dump_name_parse(w->source->kind, name, &m.name);
        return tell(w, &m);
}

static bool is_foreign_dir(const Walker *w, const char *name) {
        char instance_id[INSTANCE_ID_SIZE];
        int64_t pid;

        return profile_unit_name_parse(name, instance_id, &pid) &&
               unit_owner(w->source->instance_id, instance_id, w->on_network) == UNIT_OWNER_FOREIGN;
}

static int walk_dir(Walker *w, DIR *dir, size_t depth);

static int visit_dir(Walker *w, int parent_fd, const char *name, size_t depth) {
        _cleanup_closedir_ DIR *dir = NULL;
        int r;

        if (w->walk->loose || unit_ends_at(w->source->kind, w->walk->relative, name))
                return 0;
        if (is_foreign_dir(w, name))
                return skip_dir(w, name, SCAN_SKIP_FOREIGN);
        if (depth >= FS_DEPTH_MAX)
                return skip_dir(w, name, SCAN_SKIP_TOO_DEEP);
        r = tree_open(parent_fd, name, &dir);
        if (r == -ENOENT || r == -ENOTDIR)
                return 0;
        if (r == -ELOOP)
                return skip_dir(w, name, SCAN_SKIP_SYMLINK);
        if (r < 0)
                return tree_error_is_ours(r) ? r : skip_dir(w, name, SCAN_SKIP_UNREADABLE);
        return walk_dir(w, dir, depth);
}

/* @param depth  components below the fixed part of what `dir` is */
static int walk_dir(Walker *w, DIR *dir, size_t depth) {
        _cleanup_(tree_list_done) TreeList list = { .n = 0 };
        size_t n_path = w->n_path;
        int r, error = tree_list_read(&list, dir);

        if (error < 0 && tree_error_is_ours(error))
                return error;
        for (size_t i = 0; i < list.n; i++) {
                const char *name = tree_list_name(&list, i);

                if (!enter_name(w, name)) {
                        r = skip_dir(w, name, SCAN_SKIP_TOO_DEEP);
                } else {
                        r = list.entries[i].type == TREE_DIR
                                    ? visit_dir(w, dirfd(dir), name, depth + 1)
                                    : visit_file(w, dirfd(dir), name, list.entries[i].type);
                        leave_name(w, n_path);
                }
                if (r < 0)
                        return r;
        }
        /* Read in part: what came is taken, and that there was more is said. */
        if (error < 0 && error != -ENOENT)
                return skip_dir(w, path_name(w->path), SCAN_SKIP_UNREADABLE);
        return 0;
}

int scan_walk_members(const ScanWalk *walk, bool on_network, DIR *dir) {
        Walker w = { .walk = walk,
                     .source = walk->source,
                     .unit_fd = dirfd(dir),
                     .on_network = on_network };
        int r;

        w.n_prefix = strlen(walk->relative);
        w.depth = unit_path_depth(walk->relative);
        if (walk->source->kind != SOURCE_PROCESS_CORE)
                return walk_dir(&w, dir, w.depth);
        w.n_prefix = 0;
        if (!enter_name(&w, path_name(walk->relative)))
                return -ENAMETOOLONG;
        r = visit_file(&w, w.unit_fd, w.path, TREE_FILE);
        return r == 0 && !w.has_told ? -ENOENT : r;
}

int scan_open_unit(const ScanWalk *w, int fixed_fd, DIR **ret) {
        _cleanup_free_ char *parent = NULL;
        const char *slash = strrchr(w->relative, '/');

        if (w->source->kind != SOURCE_PROCESS_CORE)
                return tree_open(fixed_fd, w->relative, ret);
        if (!slash)
                return tree_open(fixed_fd, "", ret);
        parent = strndup(w->relative, (size_t)(slash - w->relative));
        return parent ? tree_open(fixed_fd, parent, ret) : -ENOMEM;
}

int scan_open_start(const ScanSource *s) {
        int fd;

        if (!s->root_override)
                return scan_open_fixed(path_template_fixed(s->template));
        fd = open(s->root_override, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

int scan_members(const ScanWalk *w) {
        _cleanup_closedir_ DIR *dir = NULL;
        _cleanup_close_ int fixed_fd = -1;
        int r;

        if (!unit_path_is_clean(w->relative))
                return -EINVAL;
        fixed_fd = scan_open_start(w->source);
        if (fixed_fd < 0)
                return fixed_fd;
        r = scan_open_unit(w, fixed_fd, &dir);
        if (r == -ENOTDIR || r == -ELOOP)
                return -ENOENT; /* something else stands in the unit's place */
        if (r < 0)
                return r;
        return scan_walk_members(w, fs_is_network(fixed_fd, NULL), dir);
}

static const struct SkipRow {
        const char *name;
        bool is_loss;
} skips[N_SCAN_SKIPS] = {
        /* clang-format off */
        [SCAN_SKIP_NONE]       = { "none",         false },
        [SCAN_SKIP_SYMLINK]    = { "symlink",      true },
        [SCAN_SKIP_SPECIAL]    = { "special-file", false }, /* holds no bytes to collect */
        [SCAN_SKIP_HARDLINK]   = { "hard-link",    true },
        [SCAN_SKIP_UNREADABLE] = { "unreadable",   true },
        [SCAN_SKIP_FOREIGN]    = { "foreign",      false }, /* its own instance takes it */
        [SCAN_SKIP_EXCLUDED]   = { "excluded",     false }, /* asked for */
        [SCAN_SKIP_TOO_DEEP]   = { "too-deep",     true },
        [SCAN_SKIP_TOO_MANY]   = { "too-many",     true },
        [SCAN_SKIP_TOO_BIG]    = { "too-big",      true },
        /* clang-format on */
};

const char *scan_skip_name(ScanSkip s) {
        return (unsigned)s < N_SCAN_SKIPS ? skips[s].name : NULL;
}

bool scan_skip_is_loss(ScanSkip s) {
        return (unsigned)s < N_SCAN_SKIPS && skips[s].is_loss;
}
