/* What is in a dump's directory, looked through again and again while its hook lives: each regular file of the user's is opened when it is first seen, so
 * that its content outlives the container. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "collectors/container_dumps_private.h"
#include "collectors/runner/places.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

enum { ENTRIES_MAX = 4 * DUMP_FILES_MAX }; /* read of a directory in one look */

DumpStamp dumps_stamp(const struct stat *st) {
        return (DumpStamp){ .n_bytes = (uint64_t)MAX(st->st_size, 0),
                            .mtime_nsec = (int64_t)((uint64_t)st->st_mtim.tv_sec * NSEC_PER_SEC +
                                                    (uint64_t)st->st_mtim.tv_nsec) };
}

bool dumps_stamp_is(const DumpStamp *a, const DumpStamp *b) {
        return a->n_bytes == b->n_bytes && a->mtime_nsec == b->mtime_nsec;
}

DumpUnit *dumps_unit_free(DumpUnit *u) {
        if (!u)
                return NULL;
        for (size_t i = 0; i < u->n_directories; i++) {
                if (u->directories[i].fd >= 0)
                        (void)close(u->directories[i].fd); /* read only, as all here */
                free(u->directories[i].path);
        }
        for (size_t i = 0; i < u->n_files; i++) {
                if (u->files[i].fd >= 0)
                        (void)close(u->files[i].fd);
                free(u->files[i].name);
        }
        free(u->directories);
        free(u->files);
        free(u);
        return NULL;
}

char *dumps_path(const DumpUnit *u, const DumpFile *f) {
        char *path = NULL;
        return asprintf(&path, "%s%s", u->directories[f->directory].path, f->name) < 0 ? NULL
                                                                                       : path;
}

/* ---- records ---- */

static void begin(StrBuf *b, const char *type, const DumpUnit *u, const char *path) {
        json_out_object(b, NULL);
        json_out_string(b, "type", type);
        json_out_string(b, "unit", u->id);
        json_out_path(b, "path", path);
}

void dumps_leave_out(Dumps *d, DumpUnit *u, const char *path, const char *detail) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        begin(&b, "left_out", u, path);
        json_out_string(&b, "detail", detail);
        json_out_end_object(&b);
        (void)collect_emit(d->out, &b); /* what does not fit is remembered there */
        u->is_incomplete = true;
}

void dumps_tell_seen(Dumps *d, const DumpUnit *u, DumpFile *f) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_free_ char *path = f->is_told ? NULL : dumps_path(u, f);
        if (!path)
                return;
        f->is_told = true;
        begin(&b, "seen", u, path);
        json_out_u64(&b, "bytes", f->stamp.n_bytes);
        json_out_end_object(&b);
        (void)collect_emit(d->out, &b); /* as above */
}

/* Under this name there is nothing any more that could be missed. */
static void tell_renamed(Dumps *d, const DumpUnit *u, const DumpFile *f) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_free_ char *path = f->is_told ? dumps_path(u, f) : NULL;
        if (!path)
                return;
        begin(&b, "renamed", u, path);
        json_out_end_object(&b);
        (void)collect_emit(d->out, &b); /* as above */
}

/* ---- files ---- */

/* Opened without an effect: what it is has been asked before. @return fd, -errno and a reason */
static int open_file(const Dumps *d, int dir_fd, const char *name, const char **ret_why) {
        char link[sizeof "/proc/self/fd/" + 10];
        struct stat st;
        _cleanup_close_ int path_fd = openat(dir_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        *ret_why = "it cannot be opened";
        if (path_fd < 0 || fstat(path_fd, &st) < 0)
                return -errno;
        *ret_why = S_ISLNK(st.st_mode)    ? "a symlink: none is followed"
                   : S_ISFIFO(st.st_mode) ? "a pipe, not a file"
                   : S_ISSOCK(st.st_mode) ? "a socket, not a file"
                                          : "a device, not a file";
        if (!S_ISREG(st.st_mode))
                return -EBADF;
        *ret_why = "it belongs to another user than the hook";
        if (st.st_uid != d->uid)
                return -EPERM;
        *ret_why = "a file of the kernel's";
        if (places_is_of_the_kernel(path_fd))
                return -EPERM;
        *ret_why = "it cannot be opened";
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", path_fd);
        int fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd >= d->max_fds) { /* the copying needs some, too */
                (void)close(fd);
                return -EMFILE;
        }
        return fd < 0 ? -errno : fd;
}

static void leave_out_file(Dumps *d, DumpUnit *u, DumpFile *f, const char *detail) {
        _cleanup_free_ char *path = dumps_path(u, f);
        f->state = DUMP_FILE_LEFT_OUT;
        if (path)
                dumps_leave_out(d, u, path, detail);
}

/* It is told of when it is held, so that what was told of outlives the container. Where no more can be held open, it is opened when its turn comes. */
static void hold_file(Dumps *d, DumpUnit *u, DumpFile *f) {
        char detail[128];
        const char *why;
        int fd = open_file(d, u->directories[f->directory].fd, f->name, &why);
        if (fd == -ENOENT) { /* just gone, or renamed: then it is found again */
                f->state = DUMP_FILE_LEFT_OUT;
                f->ino = 0;
                return;
        }
        if (fd != -EBADF && f->name[0] != '.')
                dumps_tell_seen(d, u, f);
        if (fd >= 0 || fd == -EMFILE || fd == -ENFILE) {
                f->fd = MAX(fd, -1);
                return;
        }
        if (fd == -EBADF || fd == -EPERM)
                (void)snprintf(detail, sizeof detail, "%s", why);
        else
                (void)snprintf(detail, sizeof detail, "%s: %s", why, strerror(-fd));
        leave_out_file(d, u, f, detail);
}

/* A new name, or another file under a known one. */
static void take_file(Dumps *d, DumpUnit *u, DumpFile *f, const struct stat *st) {
        if (f->fd >= 0)
                (void)close(TAKE_FD(f->fd));
        f->dev = st->st_dev;
        f->ino = st->st_ino;
        f->stamp = dumps_stamp(st);
        f->changed_usec = dumps_now();
        f->state = DUMP_FILE_WAITING;
        f->n_copies = 0;
        hold_file(d, u, f);
}

/* Directories are read in the same order each time: what was found last tells where to go on. */
static DumpFile *find_by_name(DumpUnit *u, size_t directory, const char *name) {
        for (size_t i = 0; i < u->n_files; i++) {
                size_t k = (u->hint + i) % u->n_files;
                DumpFile *f = &u->files[k];
                if (f->directory == directory && strcmp(f->name, name) == 0) {
                        u->hint = k + 1;
                        return f;
                }
        }
        return NULL;
}

static DumpFile *find_renamed(DumpUnit *u, const struct stat *st) {
        struct stat now;
        for (size_t i = 0; S_ISREG(st->st_mode) && i < u->n_files; i++) {
                DumpFile *f = &u->files[i];
                if (f->ino == st->st_ino && f->dev == st->st_dev && f->state < DUMP_FILE_LEFT_OUT &&
                    (fstatat(u->directories[f->directory].fd, f->name, &now, AT_SYMLINK_NOFOLLOW) <
                             0 ||
                     now.st_ino != st->st_ino))
                        return f;
        }
        return NULL;
}

static void rename_file(Dumps *d, DumpUnit *u, DumpFile *f, size_t directory, const char *name) {
        char *copy = strdup(name);
        if (!copy)
                return; /* then it keeps its old name */
        tell_renamed(d, u, f);
        free(f->name);
        f->name = copy;
        f->directory = directory;
        f->state = DUMP_FILE_WAITING; /* a copy under the old name is none under this one */
        f->is_told = false;
        if (name[0] != '.')
                dumps_tell_seen(d, u, f);
}

static DumpFile *add_file(Dumps *d, DumpUnit *u, size_t directory, const char *name) {
        if (u->n_files == DUMP_FILES_MAX + 1)
                return NULL;
        if (u->n_files % 64 == 0) {
                DumpFile *more = reallocarray(u->files, u->n_files + 64, sizeof *more);
                if (!more)
                        return NULL;
                u->files = more;
        }
        DumpFile *f = &u->files[u->n_files];
        *f = (DumpFile){ .fd = -1, .directory = directory, .name = strdup(name) };
        if (!f->name)
                return NULL;
        if (u->n_files++ < DUMP_FILES_MAX)
                return f;
        leave_out_file(d, u, f, "there are too many: this one, and any other beyond 4096");
        return NULL;
}

static bool look_at_file(Dumps *d, DumpUnit *u, size_t directory, const char *name,
                         const struct stat *st) {
        DumpFile *f = find_by_name(u, directory, name);
        if (!f) {
                f = find_renamed(u, st);
                if (f) {
                        rename_file(d, u, f, directory, name);
                        return true;
                }
                f = add_file(d, u, directory, name);
                if (f)
                        take_file(d, u, f, st);
                return f != NULL;
        }
        DumpStamp stamp = dumps_stamp(st);
        if (f->ino != st->st_ino || f->dev != st->st_dev) {
                if (f == &u->files[DUMP_FILES_MAX])
                        return false;
                take_file(d, u, f, st);
                return true;
        }
        if (f->state == DUMP_FILE_LEFT_OUT || dumps_stamp_is(&f->stamp, &stamp))
                return false;
        f->stamp = stamp;
        f->changed_usec = dumps_now();
        f->state = DUMP_FILE_WAITING;
        if (f->fd < 0)
                hold_file(d, u, f);
        return true;
}

/* ---- directories ---- */

/* @return a reason against it; NULL and *ret_fd */
static const char *open_directory(const Dumps *d, const DumpDirectory *parent, const char *name,
                                  int *ret_fd) {
        char link[sizeof "/proc/self/fd/" + 10];
        struct stat st;
        _cleanup_close_ int fd =
                openat(parent->fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (parent->depth + 1 > DUMP_DEPTH_MAX)
                return "it is too deep: more than 8 directories";
        if (fd < 0 || fstat(fd, &st) < 0)
                return strerror(errno);
        if (st.st_uid != d->uid)
                return "it belongs to another user than the hook";
        if (places_is_of_the_kernel(fd))
                return "a directory of the kernel's";
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        *ret_fd = open(link, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
        return *ret_fd < 0 ? strerror(errno) : NULL;
}

static bool is_known(const DumpUnit *u, const struct stat *st) {
        for (size_t i = 0; i < u->n_directories; i++)
                if (u->directories[i].ino == st->st_ino && u->directories[i].dev == st->st_dev)
                        return true;
        return false;
}

/* One that is left out has its place among the directories, too, so that it is said once. */
static bool look_at_directory(Dumps *d, DumpUnit *u, size_t parent, const char *name,
                              const struct stat *st) {
        _cleanup_(strbuf_done) StrBuf path = STRBUF_INIT;
        if (is_known(u, st) || u->n_directories == DUMP_DIRECTORIES_MAX)
                return false;
        DumpDirectory *more = reallocarray(u->directories, u->n_directories + 1, sizeof *more);
        if (!more)
                return false;
        u->directories = more;
        const DumpDirectory *p = &u->directories[parent];
        DumpDirectory new = {
                .fd = -1, .depth = p->depth + 1, .dev = st->st_dev, .ino = st->st_ino
        };
        strbuf_addf(&path, "%s%s", p->path, name);
        if (strbuf_error(&path) < 0 || asprintf(&new.path, "%s/", path.text) < 0)
                return false;
        const char *why = u->n_directories == DUMP_DIRECTORIES_MAX - 1
                                  ? "there are too many: this one, and any other beyond 1024"
                                  : open_directory(d, p, name, &new.fd);
        if (why)
                dumps_leave_out(d, u, path.text, why);
        u->directories[u->n_directories++] = new;
        return true;
}

/* ---- a look ---- */

static bool look_at_entry(Dumps *d, DumpUnit *u, size_t directory, const char *name) {
        struct stat st;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
            strcmp(name, ".neuron-collectd") == 0 ||
            fstatat(u->directories[directory].fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return false;
        return S_ISDIR(st.st_mode) ? look_at_directory(d, u, directory, name, &st)
                                   : look_at_file(d, u, directory, name, &st);
}

bool dumps_look(Dumps *d, DumpUnit *u) {
        bool any = false;
        for (size_t i = 0; i < u->n_directories; i++) { /* it grows meanwhile */
                if (u->directories[i].fd < 0)
                        continue;
                int fd = openat(u->directories[i].fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                _cleanup_closedir_ DIR *dir = fd < 0 ? NULL : fdopendir(fd);
                const struct dirent *e;
                if (fd >= 0 && !dir)
                        (void)close(fd); /* read only */
                for (size_t n = 0; dir && n < ENTRIES_MAX && (e = readdir(dir)); n++)
                        any = look_at_entry(d, u, i, e->d_name) || any;
        }
        return any;
}
