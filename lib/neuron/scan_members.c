/* Walks the members of one unit in order, and says of everything else why it is no member. The link
 * count, the instance id in the name and the source's limits decide; no file is opened. Adding up
 * the members is left to scan_unit.c, finding units to scan.c. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/neuron/scan_private.h"
#include "lib/neuron/tree.h"

UnitOwner scan_acting_owner(const ScanSource *s, const char *relative, const char *found,
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

bool scan_may_be_owned(const ScanSource *s, const char *found, bool on_network) {
        return on_network && s->may_own && s->may_own(found, s->owner_data);
}

int scan_holds_dump_name(DIR *dir) {
        const char *name;
        TreeType type;
        int r;

        while ((r = tree_next(dir, &name, &type)) > 0)
                if ((type == TREE_FILE || type == TREE_DIR) && dump_name_is_of_dump(name))
                        break;
        rewinddir(dir);
        return r < 0 && !tree_error_is_resource(r) ? 0 : r;
}

bool scan_path_enter(ScanPath *p, size_t n_prefix, const char *name) {
        const size_t slash = p->n > 0, n = strlen(name);

        if (n_prefix + p->n + slash + n + 1 >= sizeof p->text)
                return false;
        if (slash)
                p->text[p->n] = '/';
        memcpy(p->text + p->n + slash, name, n + 1);
        p->n += slash + n;
        return true;
}

void scan_path_leave(ScanPath *p, size_t n) {
        p->n = n;
        p->text[n] = '\0';
}

/* ---- the walk ---- */

/* Bytes of names that one walk keeps, of all directories from the unit to the current one. Each
 * directory may take half of what is left, which is enough for 100,000 names of 100 bytes. */
#define WALK_NAMES_BYTES ((size_t)20 * 1024 * 1024)
/* Bytes of names that one walk reads, kept or not: this bounds its time. */
#define WALK_READ_BYTES ((size_t)40 * 1024 * 1024)
/* Names beside max_files: of directories, and of files that are no members */
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
        const char *foreign; /* the instance that a directory's name gives all members to; NULL */
        char last_id[INSTANCE_ID_SIZE]; /* cache of the last id and its owner */
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

/* @return whether only the file's owner can have created this name: that user owns the directory
 * and the unit, and no other user may write to them. Then further links are other users', and must
 * not keep the file out of its owner's bundle. */
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
                        scan_acting_owner(w->source, w->walk->relative, instance_id, w->on_network);
                (void)snprintf(w->last_id, sizeof w->last_id, "%s", instance_id);
        }
        return w->last_owner;
}

/* Marks a member as another instance's. One that this agent may own also gets its status. */
static void mark_foreign(const Walker *w, int dir_fd, const char *name, ScanMember *m) {
        const char *instance_id = w->foreign ? w->foreign : m->name.instance_id;

        m->skip = SCAN_SKIP_FOREIGN;
        if (!scan_may_be_owned(w->source, instance_id, w->on_network))
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
               scan_acting_owner(w->source, w->walk->relative, ret, w->on_network) ==
                       UNIT_OWNER_FOREIGN;
}

static int walk_dir(Walker *w, DIR *dir, size_t depth);

static int visit_dir(Walker *w, int parent_fd, const char *name, size_t depth) {
        _cleanup_closedir_ DIR *dir = NULL;
        char instance_id[INSTANCE_ID_SIZE];
        int r;

        if (w->walk->loose || unit_ends_at(w->source->kind, w->walk->relative, name))
                return 0;
        bool is_foreign = !w->foreign && is_foreign_dir(w, name, instance_id);
        if (is_foreign && !scan_may_be_owned(w->source, instance_id, w->on_network))
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
        r = w->ends_at_dumps ? scan_holds_dump_name(dir) : 0;
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
                if (!scan_path_enter(&w->path, w->n_prefix, name)) {
                        r = skip_dir(w, name, SCAN_SKIP_TOO_DEEP);
                } else {
                        r = list.entries[i].type == TREE_DIR
                                    ? visit_dir(w, dirfd(dir), name, depth + 1)
                                    : visit_file(w, dirfd(dir), name, list.entries[i].type);
                        scan_path_leave(&w->path, n_path);
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
        /* The directory was read in part: the rest counts as unreadable. */
        if (error < 0 && error != -ENOENT)
                return skip_dir(w, path_name(w->path.text), SCAN_SKIP_UNREADABLE);
        return 0;
}

int scan_walk_members(const ScanWalk *walk, bool on_network, const char *foreign, DIR *dir) {
        Walker w = { .walk = walk,
                     .foreign = foreign,
                     .source = walk->source,
                     .unit_fd = dirfd(dir),
                     .on_network = on_network };
        int r;

        /* All files below a root_override belong to this unit: our links hold them for it. */
        w.ends_at_dumps = walk->source->kind == SOURCE_NEURON_CORE_DUMP &&
                          !walk->source->root_override &&
                          !path_template_match(walk->source->template, walk->relative, NULL);
        w.n_prefix = strlen(walk->relative);
        w.depth = unit_path_depth(walk->relative);
        if (walk->source->kind != SOURCE_PROCESS_CORE)
                return walk_dir(&w, dir, w.depth);
        w.n_prefix = 0;
        if (!scan_path_enter(&w.path, w.n_prefix, path_name(walk->relative)))
                return -ENAMETOOLONG;
        r = visit_file(&w, w.unit_fd, w.path.text, TREE_FILE);
        return r == 0 && !w.has_reported ? -ENOENT : r;
}

int scan_open_unit(const ScanWalk *w, int fixed_fd, DIR **ret) {
        const char *name;

        if (w->source->kind != SOURCE_PROCESS_CORE)
                return tree_open(fixed_fd, w->relative, ret);
        return fs_opendir_fd(tree_open_parent(fixed_fd, w->relative, &name), ret);
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
        return scan_walk_members(w, fs_is_network(fixed_fd, NULL), NULL, dir);
}
