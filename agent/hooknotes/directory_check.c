/* Which unit the directory of a note is, and whether the note may be about it.
 *
 * A note names a directory as its hook sees it. directory_check_prepare() finds, from text alone,
 * the places where it may lie: in the first source that has the path, or, because a container sees
 * another path, the unit of that name in each source. directory_check_run() opens these places and
 * takes the first one that exists and belongs to the hook's user; a directory of root that others
 * may write to counts as well, unless it was found by its name alone. A hook in a container may
 * only name what is mounted there. A link on the way is refused.
 *
 * directory_check_run() blocks, since a mount may hang; note_checks.c runs it in a worker. */
#include "agent/hooknotes/directory_check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/neuron/names.h"
#include "lib/neuron/scan.h"

DEFINE_CLEANUP(PathTemplate, path_template_free);

/* ---- which unit a directory is ---- */

void note_location_done(NoteLocation *p) {
        free(p->source);
        free(p->fixed);
        free(p->relative);
        *p = (NoteLocation){ 0 };
}

/* @param relative  below the fixed part, clean @return 0, NOTE_E_NO_UNIT, -ENOMEM */
static int unit_below(const ConfigSource *s, const PathTemplate *t, const char *relative,
                      NoteLocation *ret) {
        const UnitQuery q = { .kind = (SourceKind)s->kind,
                              .template_depth = path_template_depth(t),
                              .relative = relative,
                              .is_dir = true,
                              .ntff_depth = -1 };
        UnitMatch a;
        if (!unit_match(&q, &a) || a.is_file || a.loose)
                return NOTE_E_NO_UNIT;
        _cleanup_free_ char *unit = strndup(relative, unit_path_prefix(relative, a.depth));
        if (!unit)
                return -ENOMEM;
        /* In a directory whose name the template does not have, the dump is just what the note
         * names. */
        if (s->kind == CONFIG_NEURON_CORE_DUMP && !path_template_match(t, unit, NULL))
                a.depth = unit_path_depth(relative);
        NoteLocation p = { .source = strdup(s->name),
                           .fixed = strdup(path_template_fixed(t)),
                           .relative = strndup(relative, unit_path_prefix(relative, a.depth)) };
        if (!p.source || !p.fixed || !p.relative) {
                note_location_done(&p);
                return -ENOMEM;
        }
        *ret = p;
        return 0;
}

static int template_of(const ConfigSource *s, PathTemplate **ret) {
        char bad;
        return path_template_new(ret, s->path, FORM_SOURCE_VARIABLES, &bad);
}

/* @return why it cannot be the path of a directory; NULL */
static const char *path_error(const char *directory) {
        if (!directory || directory[0] == '\0')
                return "it names no directory";
        if (directory[0] != '/')
                return "the directory is not an absolute path";
        if (strlen(directory) >= PATH_MAX)
                return "the directory's path is too long";
        for (const char *p = directory; *p; p++) /* `/..` and `/../`, but not `/a..b` */
                if (p[0] == '/' && p[1] == '.' && p[2] == '.' && (p[3] == '/' || p[3] == '\0'))
                        return "the directory's path has a '..'";
        return NULL;
}

int note_location_find(const Config *c, const char *directory, NoteLocation *ret,
                       const char **ret_why) {
        *ret_why = path_error(directory);
        if (*ret_why)
                return NOTE_E_NO_UNIT;
        _cleanup_free_ char *path = path_simplify(directory);
        if (!path)
                return -ENOMEM;
        for (size_t i = 0; i < c->n_sources; i++) {
                _cleanup_(path_template_freep) PathTemplate *t = NULL;
                int r = template_of(&c->sources[i], &t);
                if (r == -ENOMEM)
                        return r;
                if (r < 0 || !path_is_below(path, path_template_fixed(t)))
                        continue; /* an unusable template is reported when the configuration is read
                                   */
                const char *relative = path + strlen(path_template_fixed(t));
                relative += *relative == '/';
                r = unit_below(&c->sources[i], t, relative, ret);
                if (r <= 0)
                        return r;
        }
        *ret_why = "the directory is in no configured source";
        return NOTE_E_NO_UNIT;
}

/* @return the last n components of a simplified path; NULL: it has fewer */
static const char *last_components(const char *path, size_t n) {
        const char *p = path + strlen(path);
        for (; n > 0; n--) {
                while (p > path && p[-1] != '/')
                        p--;
                if (p == path)
                        return NULL;
                p--; /* the slash */
        }
        return p[1] == '\0' ? NULL : p + 1;
}

int note_location_find_by_name(const Config *c, size_t i, const char *directory,
                               NoteLocation *ret) {
        _cleanup_(path_template_freep) PathTemplate *t = NULL;
        if (path_error(directory))
                return NOTE_E_NO_UNIT;
        _cleanup_free_ char *path = path_simplify(directory);
        if (!path)
                return -ENOMEM;
        int r = template_of(&c->sources[i], &t);
        if (r < 0)
                return r == -ENOMEM ? r : NOTE_E_NO_UNIT;
        size_t depth = path_template_depth(t);
        const char *relative = depth > 0 ? last_components(path, depth) : NULL;
        if (!relative || !path_template_match(t, relative, NULL))
                return NOTE_E_NO_UNIT; /* a name that any directory may have identifies nothing */
        r = unit_below(&c->sources[i], t, relative, ret);
        if (r == 0)
                ret->by_name = true;
        return r;
}

void directory_check_done(DirectoryCheck *l) {
        for (size_t i = 0; i < l->n_locations; i++)
                note_location_done(&l->locations[i]);
        free(l->mounts);
        *l = (DirectoryCheck){ 0 };
}

int directory_check_prepare(DirectoryCheck *l, const Config *c, const char *directory, uid_t uid) {
        *l = (DirectoryCheck){ .uid = uid };
        int r = note_location_find(c, directory, &l->locations[0], &l->why);
        if (r == 0)
                l->n_locations = 1;
        if (r != NOTE_E_NO_UNIT)
                return r;
        for (size_t i = 0; i < c->n_sources && l->n_locations < NOTE_LOCATIONS_MAX; i++) {
                r = note_location_find_by_name(c, i, directory, &l->locations[l->n_locations]);
                if (r < 0)
                        return r;
                l->n_locations += r == 0;
        }
        return l->n_locations > 0 ? 0 : NOTE_E_NO_UNIT;
}

/* ---- what a container has mounted ---- */

typedef struct Mount {
        int id;
        char *device, *root, *point; /* `8:1`; what of its file system is at which path */
} Mount;

static void mount_done(Mount *m) {
        free(m->device);
        free(m->root);
        free(m->point);
}

/* `\040` and the like, in place. */
static void decode_octal(char *s) {
        char *to = s;
        for (; *s; s++, to++) {
                bool is_code = s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' &&
                               s[2] <= '7' && s[3] >= '0' && s[3] <= '7';
                *to = is_code ? (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0')) : *s;
                s += is_code ? 3 : 0;
        }
        *to = '\0';
}

/* @return whether a line of a mountinfo file matches @see proc_pid_mountinfo(5) */
static bool any_mount(const char *file, bool (*match)(const Mount *m, void *userdata),
                      void *userdata) {
        _cleanup_free_ char *line = NULL;
        size_t size = 0;
        bool is_found = false;
        FILE *f = fopen(file, "re");
        while (f && !is_found && getline(&line, &size, f) > 0) {
                Mount m = { 0 };
                if (sscanf(line, "%d %*d %ms %ms %ms", &m.id, &m.device, &m.root, &m.point) == 4) {
                        decode_octal(m.root);
                        decode_octal(m.point);
                        is_found = match(&m, userdata);
                }
                mount_done(&m);
        }
        if (f)
                (void)fclose(f); /* only read from */
        return is_found;
}

/* A directory as a device and a path below its root, which do not depend on mounts. */
typedef struct FsLocation {
        int mount_id;
        const char *path; /* as the agent sees it */
        char *device, *below_root;
} FsLocation;

static bool is_its_mount(const Mount *m, void *userdata) {
        FsLocation *d = userdata;
        if (m->id != d->mount_id || !path_is_below(d->path, m->point))
                return false;
        const char *rest = d->path + (strcmp(m->point, "/") == 0 ? 0 : strlen(m->point));
        d->device = strdup(m->device);
        d->below_root = path_join(m->root, rest + (*rest == '/'));
        return true;
}

static bool has_it_mounted(const Mount *m, void *userdata) {
        const FsLocation *d = userdata;
        return strcmp(m->device, d->device) == 0 && path_is_below(d->below_root, m->root);
}

/* @param fd  of a directory @return whether a mount of the table `mounts` contains it */
static bool is_mounted(const char *mounts, int fd) {
        char link[64], path[PATH_MAX];
        struct statx sx;
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        if (n < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &sx) < 0 ||
            !(sx.stx_mask & STATX_MNT_ID))
                return false;
        path[n] = '\0';
        FsLocation d = { .mount_id = (int)sx.stx_mnt_id, .path = path };
        bool is_found = any_mount("/proc/self/mountinfo", is_its_mount, &d) && d.device &&
                        d.below_root && any_mount(mounts, has_it_mounted, &d);
        free(d.device);
        free(d.below_root);
        return is_found;
}

/* ---- whose it is ---- */

static const char *open_error_text(int error) {
        switch (error) {
        case -ENOENT:
                return "the directory is not there";
        case -ELOOP:
                return "a symbolic link is on the way to the directory";
        case -ENOTDIR:
                return "it is not a directory";
        case -EACCES:
        case -EPERM:
                return "permission denied on the directory";
        default:
                return "the directory cannot be opened";
        }
}

/* A note may be about a directory of the hook's user, or of root if others may write to it.
 * @return why not; NULL */
static const char *check_owner(const DirectoryCheck *l, const NoteLocation *p,
                               const struct stat *st) {
        if (st->st_uid == l->uid)
                return NULL;
        if (st->st_uid == 0 && (st->st_mode & 0022) && !p->by_name)
                return NULL;
        return "the directory belongs to another user";
}

/* @return why not; NULL */
static const char *check_location(DirectoryCheck *l, const NoteLocation *p, bool *ret_absent) {
        struct stat st;
        *ret_absent = false;
        _cleanup_close_ int fixed = open(p->fixed, O_PATH | O_DIRECTORY | O_CLOEXEC);
        int r = fixed < 0 ? -errno : 0;
        _cleanup_close_ int fd = -1;
        if (r == 0 && p->relative[0]) {
                fd = fs_open_beneath(fixed, p->relative, O_PATH | O_DIRECTORY);
                r = fd < 0 ? fd : 0;
        }
        if (r == 0 && fstat(fd >= 0 ? fd : fixed, &st) < 0)
                r = -errno;
        l->n_absent += r == -ENOENT;
        *ret_absent = r == -ENOENT && !p->by_name;
        const char *why = r < 0 ? open_error_text(r) : check_owner(l, p, &st);
        return !why && l->mounts && !is_mounted(l->mounts, fd >= 0 ? fd : fixed)
                       ? "the directory is not mounted in the hook's container"
                       : why;
}

void directory_check_run(DirectoryCheck *l) {
        for (size_t i = 0; i < l->n_locations && !l->found; i++) {
                const NoteLocation *p = &l->locations[i];
                bool is_absent = true;
                __atomic_store_n(&l->current, i, __ATOMIC_RELEASE);
                const char *why = p->is_skipped ? "the file system of the sources does not answer"
                                                : check_location(l, p, &is_absent);
                if (why && p->by_name && !p->is_skipped)
                        continue;
                l->found = why ? NULL : p;
                l->why = why;
                l->is_absent = why && is_absent;
                l->is_late = p->is_skipped;
        }
}
