/* Scans a source: opens its fixed part, whose text is the operator's though what lies on the way
 * may be anybody's; finds the units below it, and walks the members of each. Which paths make a
 * unit is decided by the rules of unit.c; for core dumps also by the names in a directory, which is
 * read here. */
#include "lib/neuron/scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "lib/neuron/record.h"
#include "lib/neuron/tree.h"

/* @param relative  borrowed */
static UnitQuery query_of(const ScanSource *s, const char *relative, bool is_dir, int ntff_depth) {
        return (UnitQuery){ .kind = s->kind,
                            .template_depth = path_template_depth(s->template),
                            .relative = relative,
                            .is_dir = is_dir,
                            .ntff_depth = ntff_depth };
}

/* @param relative  the unit; NULL: not known yet
 * @return the owner, where this instance may act for others */
static UnitOwner acting_owner(const ScanSource *s, const char *relative, const char *found,
                              bool on_network) {
        UnitOwner owner = unit_owner(s->instance_id, found, on_network);
        if (owner != UNIT_OWNER_FOREIGN)
                return owner;
        if (s->any_owner)
                return UNIT_OWNER_US;
        if (!on_network || !s->may_own || !s->may_own(found, s->owner_data))
                return UNIT_OWNER_FOREIGN;
        return !relative || s->owns(relative, found, s->owner_data) ? UNIT_OWNER_US
                                                                    : UNIT_OWNER_FOREIGN;
}

static bool may_be_owned(const ScanSource *s, const char *found, bool on_network) {
        return on_network && s->may_own && s->may_own(found, s->owner_data);
}

typedef struct UnitLocation {
        const ScanSource *source;
        bool on_network;
        const char *relative; /* the unit's path */
        bool is_file, loose;
        bool is_evidence; /* as in ScanUnit */
} UnitLocation;

static bool matches_template(const PathTemplate *t, const char *relative) {
        return path_template_match(t, relative, NULL);
}

/* @return whether the directory directly holds a file, or a directory, that is called as the
 * runtime calls what is in a core dump: 1 or 0; negative as for has_ntff() */
static int holds_dump_name(DIR *dir) {
        const char *name;
        TreeType type;
        int r;

        while ((r = tree_next(dir, &name, &type)) > 0)
                if ((type == TREE_FILE || type == TREE_DIR) && dump_name_is_of_dump(name))
                        break;
        rewinddir(dir);
        return r < 0 && !tree_error_is_resource(r) ? 0 : r;
}

/** Walks the unit and fills *ret, which is scan_unit_done() by the caller, also after a failure.
 * @param dir  as for walk_members()
 * @return 0, also with no members; UNIT_E_FOREIGN: its path names another instance, nothing was
 * walked; -ENOENT: the file is gone */
enum { UNIT_E_FOREIGN = 1 };

/* The path of the current entry, and how to go one component down and up again. */
typedef struct ScanPath {
        char text[PATH_MAX];
        size_t n;
} ScanPath;

/* @param n_prefix  bytes of what will stand before it  @return false when the path is too long for
 * a system call */
static bool path_enter(ScanPath *p, size_t n_prefix, const char *name) {
        const size_t slash = p->n > 0, n = strlen(name);

        if (n_prefix + p->n + slash + n + 1 >= sizeof p->text)
                return false;
        if (slash)
                p->text[p->n] = '/';
        memcpy(p->text + p->n + slash, name, n + 1);
        p->n += slash + n;
        return true;
}

static void path_leave(ScanPath *p, size_t n) {
        p->n = n;
        p->text[n] = '\0';
}

/* In a world-writable directory anybody could put one. */
static bool is_trusted_link(const struct stat *link) {
        return link->st_uid == 0 || link->st_uid == geteuid();
}

int scan_open_fixed(const char *fixed) {
        _cleanup_close_ int root_fd =
                open(fixed[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
        _cleanup_close_ int path_fd =
                root_fd < 0 ? -errno : tree_resolve(root_fd, fixed, is_trusted_link);
        if (path_fd < 0)
                return path_fd;
        int fd = openat(path_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

char *scan_check_root(const char *fixed) {
        _cleanup_free_ char *parent = path_parent(fixed);
        _cleanup_close_ int fd = scan_open_fixed(fixed);
        struct stat st, above;
        char *text = NULL;
        if (fd < 0 || fstat(fd, &st) < 0 || !parent || stat(parent, &above) < 0)
                return NULL;
        bool is_anybodys = (above.st_mode & S_IWOTH) && st.st_uid != 0,
             is_not_sticky = (st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX);
        if ((!is_anybodys && !is_not_sticky) ||
            asprintf(&text,
                     "'%s' is not root's and sticky (it has uid %u and mode %04o): users can keep "
                     "out or remove each other's dumps; remove it and run `systemd-tmpfiles "
                     "--create`, or chown it to root and chmod it to 1777",
                     fixed, (unsigned)st.st_uid, (unsigned)st.st_mode & 07777) < 0)
                return NULL;
        return text;
}

/* ---- the members of one unit, in order, and why everything else is none ---- */

/* Names of one walk, of all directories on the way to where it is: so many bytes, and in each
 * directory half of what is not taken. That is enough for 100,000 names of 100 bytes in one. */
#define WALK_NAMES_BYTES ((size_t)20 * 1024 * 1024)
/* Names that one walk reads at all, kept or not: what bounds its time. */
#define WALK_READ_BYTES ((size_t)40 * 1024 * 1024)
/* Beside max_files: directories, and files that are no members. */
#define WALK_OTHER_NAMES 4096

typedef struct Walker {
        const ScanWalk *walk;
        const ScanSource *source;
        int unit_fd;
        bool on_network;
        size_t n_prefix, depth; /* length and components of the unit's own path */
        uint64_t n_files, bytes;
        size_t names_bytes;  /* names of the directories from the unit down to here */
        size_t read_bytes;   /* of all names so far */
        ScanPath path;       /* below the unit */
        bool has_reported;   /* a member or a skipped entry */
        const char *foreign; /* all here are this instance's, by a directory's name; NULL */
        char last_id[INSTANCE_ID_SIZE]; /* in the last name, and whose that is: it may be expensive
                                         */
        UnitOwner last_owner;
        bool ends_at_dumps; /* directories in it that hold names of dumps are other units */
} Walker;

static int report_member(Walker *w, const ScanMember *m) {
        w->has_reported = true;
        return w->walk->on_member(m, w->unit_fd, w->walk->userdata);
}

/* @return 1 excluded, 0 not, -ENOMEM */
static int is_excluded(const Walker *w) {
        _cleanup_free_ char *escaped = NULL;

        if (!w->source->exclude || !w->source->exclude[0])
                return 0;
        escaped = path_escape(w->path.text);
        if (!escaped)
                return -ENOMEM;
        for (const char *const *p = w->source->exclude; *p; p++)
                /* The escaped spelling of a slash is a slash, so the last component can be cut from
                 * it. */
                if (fnmatch(*p, escaped, 0) == 0 || fnmatch(*p, path_name(escaped), 0) == 0)
                        return 1;
        return 0;
}

/* Whether only the file's owner can have put this name here: he owns the directory, which nobody
 * else may write, and the unit. Then other names are strangers' links, which must not take a file
 * out of his bundle. */
static bool is_owners_name(const Walker *w, int dir_fd, const struct stat *st) {
        struct stat dir, unit;

        return fstat(dir_fd, &dir) == 0 && fstat(w->unit_fd, &unit) == 0 &&
               dir.st_uid == st->st_uid && unit.st_uid == st->st_uid &&
               !((dir.st_mode | unit.st_mode) & (S_IWOTH | (st->st_uid == 0 ? S_IWGRP : 0)));
}

static bool is_foreign_link(const Walker *w, int dir_fd, const struct stat *st) {
        unsigned ours = 0;

        if (st->st_nlink <= 1 || w->source->any_links)
                return false;
        if (w->walk->own_links)
                ours = w->walk->own_links(w->path.text, st, w->walk->userdata);
        return st->st_nlink > UINT64_C(1) + ours && !is_owners_name(w, dir_fd, st);
}

/* Classifies a file whose name is accepted. @return 0 and the result in *m; -ENOENT it was removed
 */
static int classify_file(Walker *w, int dir_fd, const char *name, ScanMember *m) {
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
                return -ENOENT; /* removed; the directory in its place is for the next scan */
        else if (!S_ISREG(m->st.st_mode))
                m->skip = SCAN_SKIP_SPECIAL;
        else if (is_foreign_link(w, dir_fd, &m->st))
                m->skip = SCAN_SKIP_HARDLINK;
        else if (w->source->max_bytes > 0 &&
                 (uint64_t)m->st.st_size > w->source->max_bytes - w->bytes)
                m->skip = SCAN_SKIP_TOO_BIG;
        return 0;
}

static UnitOwner named_owner(Walker *w, const char *instance_id) {
        if (instance_id[0] == '\0')
                return UNIT_OWNER_UNNAMED;
        if (strcmp(w->last_id, instance_id) != 0) {
                w->last_owner =
                        acting_owner(w->source, w->walk->relative, instance_id, w->on_network);
                (void)snprintf(w->last_id, sizeof w->last_id, "%s", instance_id);
        }
        return w->last_owner;
}

/* A member that may be owned needs its status, too. */
static void mark_foreign(const Walker *w, int dir_fd, const char *name, ScanMember *m) {
        const char *instance_id = w->foreign ? w->foreign : m->name.instance_id;

        m->skip = SCAN_SKIP_FOREIGN;
        if (!may_be_owned(w->source, instance_id, w->on_network))
                return;
        if (fstatat(dir_fd, name, &m->st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(m->st.st_mode))
                m->foreign = instance_id;
        else
                m->st = (struct stat){ 0 };
}

static int visit_file(Walker *w, int dir_fd, const char *name, TreeType type) {
        ScanMember m = { .path = w->path.text };
        UnitOwner owner;
        int r;

        if (w->walk->loose && w->source->kind == SOURCE_NEURON_CORE_DUMP &&
            !dump_name_is_of_dump(name))
                return 0; /* of no unit */
        dump_name_parse(w->source->kind, name, &m.name);
        owner = w->foreign ? UNIT_OWNER_FOREIGN : named_owner(w, m.name.instance_id);
        m.is_named = owner == UNIT_OWNER_US;
        r = is_excluded(w);
        if (r < 0)
                return r;
        if (r > 0)
                m.skip = SCAN_SKIP_EXCLUDED;
        else if (owner == UNIT_OWNER_FOREIGN)
                mark_foreign(w, dir_fd, name, &m);
        else if (type == TREE_SYMLINK)
                m.skip = SCAN_SKIP_SYMLINK;
        else if (type == TREE_SPECIAL)
                m.skip = SCAN_SKIP_SPECIAL;
        else if (type == TREE_RESERVED)
                m.skip = SCAN_SKIP_RESERVED;
        else {
                r = classify_file(w, dir_fd, name, &m);
                if (r == -ENOENT)
                        return 0;
                if (r < 0)
                        return r;
        }
        if (m.skip == SCAN_SKIP_NONE) {
                w->n_files++;
                w->bytes += (uint64_t)m.st.st_size;
        }
        return report_member(w, &m);
}

static int skip_dir(Walker *w, const char *name, ScanSkip skip) {
        ScanMember m = { .path = w->path.text, .skip = skip };

        dump_name_parse(w->source->kind, name, &m.name);
        return report_member(w, &m);
}

static bool is_foreign_dir(const Walker *w, const char *name, char ret[static INSTANCE_ID_SIZE]) {
        return profile_unit_name_parse(name, ret, NULL) &&
               acting_owner(w->source, w->walk->relative, ret, w->on_network) == UNIT_OWNER_FOREIGN;
}

static int walk_dir(Walker *w, DIR *dir, size_t depth);

static int visit_dir(Walker *w, int parent_fd, const char *name, size_t depth) {
        _cleanup_closedir_ DIR *dir = NULL;
        char instance_id[INSTANCE_ID_SIZE];
        int r;

        if (w->walk->loose || unit_ends_at(w->source->kind, w->walk->relative, name))
                return 0;
        bool is_foreign = !w->foreign && is_foreign_dir(w, name, instance_id);
        if (is_foreign && !may_be_owned(w->source, instance_id, w->on_network))
                return skip_dir(w, name, SCAN_SKIP_FOREIGN);
        if (depth >= FS_DEPTH_MAX)
                return skip_dir(w, name, SCAN_SKIP_TOO_DEEP);
        r = tree_open(parent_fd, name, &dir);
        if (r == -ENOENT || r == -ENOTDIR)
                return 0;
        if (r == -ELOOP)
                return skip_dir(w, name, SCAN_SKIP_SYMLINK);
        if (r < 0)
                return tree_error_is_resource(r) ? r : skip_dir(w, name, SCAN_SKIP_UNREADABLE);
        r = w->ends_at_dumps ? holds_dump_name(dir) : 0;
        if (r != 0)
                return MIN(r, 0);
        if (is_foreign)
                w->foreign = instance_id;
        r = walk_dir(w, dir, depth);
        if (is_foreign)
                w->foreign = NULL;
        return r;
}

static size_t max_names(const Walker *w) {
        uint64_t max_files = w->source->max_files;
        return max_files > 0 ? (size_t)MIN(max_files, (uint64_t)SIZE_MAX / 4) * 2 + WALK_OTHER_NAMES
                             : SIZE_MAX;
}

/* @param depth  components below the fixed part of what `dir` is */
static int walk_dir(Walker *w, DIR *dir, size_t depth) {
        _cleanup_(tree_list_done) TreeList list = { .n = 0 };
        const size_t n_path = w->path.n, names_bytes = w->names_bytes;
        const TreeBounds bounds = { .n_names = max_names(w),
                                    .n_bytes = (WALK_NAMES_BYTES - names_bytes) / 2,
                                    .n_bytes_read =
                                            WALK_READ_BYTES - MIN(w->read_bytes, WALK_READ_BYTES) };
        int r, error = tree_list_read(&list, dir, &bounds);

        if (error < 0 && tree_error_is_resource(error))
                return error;
        w->read_bytes += list.n_bytes_read;
        w->names_bytes += list.n_bytes;
        for (size_t i = 0; i < list.n; i++) {
                const char *name = tree_list_name(&list, i);

                if (list.entries[i].type == TREE_RESERVED && depth == 0)
                        continue; /* the agent's own */
                if (!path_enter(&w->path, w->n_prefix, name)) {
                        r = skip_dir(w, name, SCAN_SKIP_TOO_DEEP);
                } else {
                        r = list.entries[i].type == TREE_DIR
                                    ? visit_dir(w, dirfd(dir), name, depth + 1)
                                    : visit_file(w, dirfd(dir), name, list.entries[i].type);
                        path_leave(&w->path, n_path);
                }
                if (r < 0)
                        return r;
        }
        w->names_bytes = names_bytes;
        for (uint64_t i = 0; i < list.n_dropped; i++) {
                r = skip_dir(w, path_name(w->path.text), SCAN_SKIP_TOO_MANY);
                if (r < 0)
                        return r;
        }
        /* Read in part: the rest is reported as unreadable. */
        if (error < 0 && error != -ENOENT)
                return skip_dir(w, path_name(w->path.text), SCAN_SKIP_UNREADABLE);
        return 0;
}

/* @param foreign  the instance whose all members are, by the unit's path; NULL */
static int walk_members(const ScanWalk *walk, bool on_network, const char *foreign, DIR *dir) {
        Walker w = { .walk = walk,
                     .foreign = foreign,
                     .source = walk->source,
                     .unit_fd = dirfd(dir),
                     .on_network = on_network };
        int r;

        /* Files that this agent's links hold belong to this unit. */
        w.ends_at_dumps = walk->source->kind == SOURCE_NEURON_CORE_DUMP &&
                          !walk->source->root_override &&
                          !matches_template(walk->source->template, walk->relative);
        w.n_prefix = strlen(walk->relative);
        w.depth = unit_path_depth(walk->relative);
        if (walk->source->kind != SOURCE_PROCESS_CORE)
                return walk_dir(&w, dir, w.depth);
        w.n_prefix = 0;
        if (!path_enter(&w.path, w.n_prefix, path_name(walk->relative)))
                return -ENAMETOOLONG;
        r = visit_file(&w, w.unit_fd, w.path.text, TREE_FILE);
        return r == 0 && !w.has_reported ? -ENOENT : r;
}

static int open_unit(const ScanWalk *w, int fixed_fd, DIR **ret) {
        const char *name;

        if (w->source->kind != SOURCE_PROCESS_CORE)
                return tree_open(fixed_fd, w->relative, ret);
        return fs_opendir_fd(tree_open_parent(fixed_fd, w->relative, &name), ret);
}

static int open_start(const ScanSource *s) {
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
        fixed_fd = open_start(w->source);
        if (fixed_fd < 0)
                return fixed_fd;
        r = open_unit(w, fixed_fd, &dir);
        if (r == -ENOTDIR || r == -ELOOP)
                return -ENOENT; /* something else stands in the unit's place */
        if (r < 0)
                return r;
        return walk_members(w, fs_is_network(fixed_fd, NULL), NULL, dir);
}

static const struct SkipRow {
        const char *name;
        bool is_loss;
        const char *remedy;
} skips[N_SCAN_SKIPS] = {
        /* clang-format off */
        [SCAN_SKIP_NONE]       = { "none",           false, NULL },
        [SCAN_SKIP_SYMLINK]    = { "symlink",        true,
                                   "copy the file itself into the dump if it belongs there" },
        [SCAN_SKIP_SPECIAL]    = { "special-file",   false, /* holds no bytes to collect */
                                   "only regular files are collected" },
        [SCAN_SKIP_HARDLINK]   = { "hard-link",      true,
                                   "copy the file itself into the dump if it belongs there" },
        [SCAN_SKIP_UNREADABLE] = { "unreadable",     true,
                                   "give the agent CAP_DAC_READ_SEARCH or read permission" },
        [SCAN_SKIP_FOREIGN]    = { "foreign",        false, NULL }, /* its own instance collects it */
        [SCAN_SKIP_EXCLUDED]   = { "excluded",       false, NULL }, /* by configuration */
        [SCAN_SKIP_TOO_DEEP]   = { "too-deep",       true, "make the tree flatter" },
        [SCAN_SKIP_TOO_MANY]   = { "too-many-files", true, "raise the source's max_files" },
        [SCAN_SKIP_TOO_BIG]    = { "too-big",        true, "raise the source's max_bytes" },
        [SCAN_SKIP_RESERVED]   = { "reserved-name",  true,
                                   "rename it: the agent keeps its links under that name" },
        [SCAN_SKIP_NO_PROFILE] = { "no-profile",     false,
                                   "there is no profile in its directory; to collect it, add a "
                                   "source of kind directory" },
        [SCAN_SKIP_NO_DUMP]    = { "no-dump",        false,
                                   "its directory does not match the source's path, and holds no "
                                   "file that is named like one of the runtime's; to collect it, "
                                   "add a source of kind directory" },
        /* clang-format on */
};

const char *scan_skip_name(ScanSkip s) {
        return (unsigned)s < N_SCAN_SKIPS ? skips[s].name : NULL;
}

bool scan_skip_is_loss(ScanSkip s) {
        return (unsigned)s < N_SCAN_SKIPS && skips[s].is_loss;
}

const char *scan_skip_remedy(ScanSkip s) {
        return skips[s].remedy;
}

char *scan_skip_reason(ScanSkip s, uint64_t n, const char *example) {
        char *text;

        if (n == 0 || s == SCAN_SKIP_FOREIGN || s == SCAN_SKIP_EXCLUDED ||
            asprintf(&text, "%s: %llu left out, such as '%s'", scan_skip_name(s),
                     (unsigned long long)n, example ? example : "?") < 0)
                return NULL;
        return text;
}

void scan_unit_done(ScanUnit *u) {
        free(u->relative);
        for (size_t i = 0; i < N_SCAN_SKIPS; i++)
                free(u->skipped_example[i]);
        free(u->foreign);
        *u = (ScanUnit){ 0 };
}

static int64_t nsec_of(const struct timespec *t) {
        int64_t v;

        /* A file may claim any time; past what 64 bits hold it is the end of time. */
        if (__builtin_mul_overflow(t->tv_sec, (int64_t)NSEC_PER_SEC, &v) ||
            __builtin_add_overflow(v, t->tv_nsec, &v))
                return t->tv_sec < 0 ? INT64_MIN : INT64_MAX;
        return v;
}

static uint64_t usec_of(const struct timespec *t) {
        int64_t nsec = nsec_of(t);

        return nsec < 0 ? 0 : (uint64_t)nsec / 1000;
}

int scan_unit_add_skip(ScanUnit *u, const ScanMember *m) {
        u->skipped[m->skip]++;
        if (u->skipped_example[m->skip])
                return 0;
        u->skipped_example[m->skip] = path_escape(m->path[0] != '\0' ? m->path : ".");
        return u->skipped_example[m->skip] ? 0 : -ENOMEM;
}

void scan_unit_add_member(ScanUnit *u, const ScanMember *m, uint64_t fingerprint) {
        uint64_t mtime_usec = usec_of(&m->st.st_mtim);

        if (u->n_files++ == 0) {
                u->first = m->st;
                u->oldest_mtime_usec = mtime_usec;
                u->newest_change_nsec = INT64_MIN;
        }
        u->bytes += (uint64_t)m->st.st_size;
        u->newest_change_nsec = MAX(u->newest_change_nsec, nsec_of(&m->st.st_mtim));
        u->oldest_mtime_usec = MIN(u->oldest_mtime_usec, mtime_usec);
        u->digest += fingerprint;
        if (u->pid < 0)
                u->pid = m->name.pid;
}

static int add_foreign(ScanUnit *u, const ScanMember *m) {
        ScanForeign *f = NULL;

        for (size_t i = 0; i < u->n_foreign && !f; i++)
                if (strcmp(u->foreign[i].instance_id, m->foreign) == 0)
                        f = &u->foreign[i];
        if (!f) {
                if (u->n_foreign >= SCAN_FOREIGN_MAX)
                        return 0;
                if (array_grow(&u->foreign, u->n_foreign, sizeof *u->foreign) < 0)
                        return -ENOMEM;
                f = &u->foreign[u->n_foreign++];
                *f = (ScanForeign){ .newest_change_nsec = INT64_MIN };
                (void)snprintf(f->instance_id, sizeof f->instance_id, "%s", m->foreign);
        }
        f->n_files++;
        f->digest += member_fingerprint(m->path, &m->st);
        f->newest_change_nsec = MAX(f->newest_change_nsec, nsec_of(&m->st.st_mtim));
        f->newest_change_nsec = MAX(f->newest_change_nsec, nsec_of(&m->st.st_ctim));
        return 0;
}

static int add_member(const ScanMember *m, int unit_fd, void *userdata) {
        ScanUnit *u = userdata;

        (void)unit_fd; /* a scan opens no member */
        if (m->foreign)
                return add_foreign(u, m);
        if (m->skip != SCAN_SKIP_NONE)
                return scan_unit_add_skip(u, m);
        scan_unit_add_member(u, m, member_fingerprint(m->path, &m->st));
        u->newest_change_nsec = MAX(u->newest_change_nsec, nsec_of(&m->st.st_ctim));
        u->has_own_name = u->has_own_name || m->is_named;
        return 0;
}

/* Finds the owner of the units below a component, and the instance that it names, or "". */
typedef struct NamedOwner {
        UnitOwner owner;
        char instance_id[INSTANCE_ID_SIZE];
} NamedOwner;

/* @param relative  the unit; NULL: not known yet */
static NamedOwner component_owner(const ScanSource *s, bool on_network, const char *relative,
                                  size_t i, const char *component) {
        NamedOwner n = { .owner = UNIT_OWNER_UNNAMED };
        TemplateValues v;

        if (profile_unit_name_parse(component, n.instance_id, NULL)) {
                n.owner = acting_owner(s, relative, n.instance_id, on_network);
                return n;
        }
        /* One matching component is weaker evidence than a matching path: `logs` would do for a %i.
         * So only what cannot be anything but an instance id counts. */
        if (path_template_match_component(s->template, i, component, &v) &&
            (instance_id_is_ec2(v.instance_id) || strcmp(v.instance_id, s->instance_id) == 0)) {
                (void)snprintf(n.instance_id, sizeof n.instance_id, "%s", v.instance_id);
                n.owner = acting_owner(s, relative, n.instance_id, on_network);
        }
        return n;
}

static void combine_owners(NamedOwner *a, const NamedOwner *b) {
        if (a->owner != UNIT_OWNER_FOREIGN &&
            (b->owner == UNIT_OWNER_FOREIGN || a->owner == UNIT_OWNER_UNNAMED))
                *a = *b;
}

/* The owner by the unit's path, and the template's values in it. */
static int classify_path(const UnitLocation *p, ScanUnit *u, NamedOwner *ret) {
        _cleanup_free_ char *path = strdup(p->relative);
        size_t depth = path_template_depth(p->source->template), i = 0;
        NamedOwner owner = { .owner = UNIT_OWNER_UNNAMED };
        char *rest = path;

        if (!path)
                return -ENOMEM;
        /* Only as many components as the template has; below them a unit of another kind may lie
         * deeper. */
        path[unit_path_prefix(path, depth)] = '\0';
        if (!p->loose && depth > 0 && path_template_match(p->source->template, path, &u->values)) {
                (void)snprintf(owner.instance_id, sizeof owner.instance_id, "%s",
                               u->values.instance_id);
                owner.owner =
                        acting_owner(p->source, p->relative, owner.instance_id, p->on_network);
        }
        (void)strcpy(path, p->relative); /* as long as it was */
        for (char *name; (name = strsep(&rest, "/")); i++) {
                if (name[0] == '\0' || (p->is_file && !rest))
                        break; /* a file's own name is checked as a member's */
                const NamedOwner named =
                        component_owner(p->source, p->on_network, p->relative, i, name);
                combine_owners(&owner, &named);
        }
        *ret = owner;
        return 0;
}

static void parse_unit_name(const UnitLocation *p, ScanUnit *u) {
        const char *name = path_name(p->relative);
        uint64_t pid;

        dump_name_parse(p->source->kind, name, &u->name);
        if (p->source->kind == SOURCE_NEURON_PROFILE) /* else they are as dump_name_parse() says */
                (void)profile_unit_name_parse(name, u->name.instance_id, &u->name.pid);
        u->pid = u->name.pid;
        if (parse_u64_range(u->values.pid, 0, INT64_MAX, &pid) == 0)
                u->pid = (int64_t)pid;
}

static int fill_unit(const UnitLocation *p, DIR *dir, ScanUnit *ret) {
        const ScanWalk walk = {
                .source = p->source,
                .relative = p->relative,
                .loose = p->loose,
                .on_member = add_member,
                .userdata = ret,
        };
        NamedOwner owner;
        int r;

        *ret = (ScanUnit){ .is_file = p->is_file,
                           .loose = p->loose,
                           .is_evidence = p->is_evidence,
                           .on_network = p->on_network };
        r = classify_path(p, ret, &owner);
        if (r < 0)
                return r;
        bool is_foreign = owner.owner == UNIT_OWNER_FOREIGN;
        if (is_foreign && !may_be_owned(p->source, owner.instance_id, p->on_network))
                return UNIT_E_FOREIGN;
        ret->has_own_name = owner.owner == UNIT_OWNER_US;
        parse_unit_name(p, ret);
        if (!p->is_file && fstat(dirfd(dir), &ret->st) < 0)
                return -errno;
        if (!p->is_file && !p->on_network)
                ret->born_usec = fs_birth_usec(dirfd(dir));
        r = walk_members(&walk, p->on_network, is_foreign ? owner.instance_id : NULL, dir);
        if (r < 0)
                return r;
        if (p->is_file)
                ret->st = ret->first;
        ret->relative = strdup(p->relative);
        return ret->relative ? 0 : -ENOMEM;
}

/* ---- finding the units of a source; by the rules above ---- */

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
        const UnitLocation location = {
                .source = f->source,
                .on_network = f->on_network,
                .relative = f->path.text,
                .is_file = a->is_file,
                .loose = a->loose,
                .is_evidence = is_evidence,
        };
        _cleanup_(scan_unit_done) ScanUnit u = { .n_files = 0 };
        int r = fill_unit(&location, dir, &u);

        if (r == UNIT_E_FOREIGN || r == -ENOENT)
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

/* Also a framework trace: it lies beside the `_pid_` directories. */
static bool is_profile_file(const char *name) {
        DumpName parsed;
        dump_name_parse(SOURCE_NEURON_PROFILE, name, &parsed);
        return parsed.kind == MEMBER_NTFF || parsed.kind == MEMBER_SYSTEM_TRACE;
}

/* The runtime's directory of a process, or that of a framework's profiler. Any word may stand
 * before `_pid_`, but what lies beside is collected only where the runtime itself has written. */
static bool is_profile_dir(DIR *dir, const char *name) {
        char instance_id[INSTANCE_ID_SIZE];
        struct stat st;

        return (profile_unit_name_parse(name, instance_id, NULL) &&
                instance_id_is_ec2(instance_id)) ||
               (strcmp(name, "plugins") == 0 &&
                fstatat(dirfd(dir), "plugins/profile", &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                S_ISDIR(st.st_mode));
}

/* @return 1 or 0; negative only for lack of memory or descriptors: what cannot be read is found out
 * by who walks it */
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
        bool in_unit;   /* of a dump: what is no unit of its own belongs to one above */
} Level;

static int find_at(UnitFinder *f, const Level *at);

static int find_dir(UnitFinder *f, const Level *above, const char *name) {
        _cleanup_closedir_ DIR *dir = NULL;
        const size_t depth = above->depth + 1;
        int r;

        if (component_owner(f->source, f->on_network, NULL, above->depth, name).owner ==
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

/* Continues below a directory that is no unit with all below it. The entries are read in any order:
 * a source may have any number. */
static int find_below(UnitFinder *f, const Level *at) {
        size_t n_path = f->path.n;
        const char *name;
        bool loose = false;
        TreeType type;
        int r, n;

        while ((n = tree_next(at->dir, &name, &type)) > 0) {
                if ((type != TREE_DIR && type != TREE_FILE && type != TREE_SYMLINK) ||
                    !path_enter(&f->path, 0, name))
                        continue;
                r = 0;
                if (type == TREE_SYMLINK)
                        find_symlink(f, at);
                else
                        r = type == TREE_DIR ? find_dir(f, at, name) : find_file(f, at, &loose);
                path_leave(&f->path, n_path);
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

        if (matches_template(s->template, f->path.text))
                return report_unit(f, at->dir, &a, true);
        int named = holds_dump_name(at->dir);
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
                rewinddir(at->dir); /* `_pid_` directories in it are units of their own */
        }
        return find_below(f, &(Level){ at->dir, at->depth, q.ntff_depth, false });
}

int scan_source(const ScanSource *s, int (*on_unit)(ScanUnit *u, void *userdata), void *userdata) {
        UnitFinder f = { .source = s, .on_unit = on_unit, .userdata = userdata };
        _cleanup_closedir_ DIR *dir = NULL;
        int r = fs_opendir_fd(open_start(s), &dir);

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
                        return tree_error_is_resource(r)
                                       ? r
                                       : 0; /* nothing further down can be seen either */
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
                        r = holds_dump_name(dir);
                if (r < 0 && tree_error_is_resource(r))
                        return r;
                bool matches = matches_template(s->template, unit);
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

/* What was removed is assumed to have been a directory: what lay in a unit still leads to the unit,
 * and what was one itself, or lay above, leads to nothing. */
static bool may_lie_in_unit(const UnitQuery *q) {
        return q->kind == SOURCE_NEURON_PROFILE ||
               (q->kind != SOURCE_PROCESS_CORE && unit_path_depth(q->relative) > q->template_depth);
}

static int scan_one_unit(const UnitLocation *location, int fixed_fd, ScanUnit *ret) {
        const ScanWalk where = { .source = location->source, .relative = location->relative };
        _cleanup_(scan_unit_done) ScanUnit u = { .n_files = 0 };
        _cleanup_closedir_ DIR *dir = NULL;
        int r = open_unit(&where, fixed_fd, &dir);

        if (r == -ENOTDIR)
                return -ENOENT; /* something else stands in its place */
        if (r == -ELOOP)
                return SCAN_E_NO_UNIT;
        if (r < 0)
                return r;
        r = fill_unit(location, dir, &u);
        if (r < 0)
                return r;
        if (r == UNIT_E_FOREIGN || u.n_files == 0)
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
        _cleanup_close_ int fixed_fd = open_start(s);
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
        const UnitLocation location = { .source = s,
                                        .on_network = fs_is_network(fixed_fd, NULL),
                                        .relative = unit,
                                        .is_file = a.is_file,
                                        .loose = a.loose,
                                        .is_evidence = is_evidence };
        return scan_one_unit(&location, fixed_fd, ret);
}
