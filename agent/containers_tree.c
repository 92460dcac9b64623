#include "agent/containers_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/containers_about.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

#define TREE_FORMAT ".tree-%s"
#define TREE_NAME_SIZE (COPY_UNIT_SIZE + 8)

void tree_unit_done(TreeUnit *u) {
        for (size_t i = 0; i < u->n_notes; i++)
                free(u->notes[i]);
        for (size_t i = 0; i < u->n_missing; i++)
                free(u->missing[i]);
        free(u->notes);
        free(u->missing);
        free(u->source);
        free(u->relative);
        free(u->final);
        free(u->path);
        if (u->about_fd >= 0)
                (void)close(u->about_fd);
        *u = (TreeUnit){ .about_fd = -1 };
}

/* ---- walking what is ours ---- */

typedef struct Walk {
        bool sync;
        uint64_t bytes;
        size_t n_files;
        int result; /* the first failure */
} Walk;

static void walk(Walk *w, int dir_fd, unsigned depth) {
        int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_closedir_ DIR *d = copy < 0 ? NULL : fdopendir(copy);
        const struct dirent *e;
        struct stat st;
        if (!d && copy >= 0)
                (void)close(copy);
        while (d && (e = readdir(d))) {
                if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                    fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        continue;
                w->bytes += (uint64_t)st.st_blocks * 512;
                w->n_files += S_ISREG(st.st_mode);
                if (!S_ISDIR(st.st_mode) || depth >= FS_DEPTH_MAX)
                        continue;
                _cleanup_close_ int fd =
                        openat(dir_fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (fd >= 0)
                        walk(w, fd, depth + 1);
        }
        if (w->sync && w->result == 0)
                w->result = fs_sync_dir(dir_fd);
}

uint64_t tree_measure(int dir_fd) {
        Walk w = { 0 };
        walk(&w, dir_fd, 0);
        return w.bytes;
}

/* ---- files into their places ---- */

/* Makes the directories above a path. */
static int make_parents(int dir_fd, const char *path) {
        char part[PATH_MAX];
        for (const char *s = strchr(path, '/'); s; s = strchr(s + 1, '/')) {
                size_t n = (size_t)(s - path);
                if (n >= sizeof part)
                        return -ENAMETOOLONG;
                memcpy(part, path, n);
                part[n] = '\0';
                if (mkdirat(dir_fd, part, 0700) < 0 && errno != EEXIST)
                        return -errno;
        }
        return 0;
}

/* @return whether there is such a file of this size. @param dir_fd  -1: there is no such directory */
static bool has(int dir_fd, const char *path, uint64_t bytes, struct stat *ret) {
        return dir_fd >= 0 && fstatat(dir_fd, path, ret, AT_SYMLINK_NOFOLLOW) == 0 &&
               S_ISREG(ret->st_mode) && (uint64_t)ret->st_size == bytes;
}

static struct timespec time_of(int64_t nsec) {
        int64_t rest = nsec % (int64_t)NSEC_PER_SEC;
        if (rest < 0)
                rest += (int64_t)NSEC_PER_SEC;
        return (struct timespec){ .tv_sec = (nsec - rest) / (int64_t)NSEC_PER_SEC,
                                  .tv_nsec = rest };
}

/* @return 0, 1: there is no such raw file, or it is not what the record says; -errno */
static int place_file(int batch_fd, int tree_fd, const CopyEntry *e) {
        struct stat st;
        _cleanup_close_ int fd = fs_open_regular(batch_fd, e->file, &st);
        if (fd < 0 || st.st_nlink != 1 || (uint64_t)st.st_size != e->bytes)
                return 1;
        const struct timespec times[] = { time_of(e->mtime_nsec), time_of(e->mtime_nsec) };
        if (fchmod(fd, 0600) < 0 || futimens(fd, times) < 0 || fsync(fd) < 0)
                return -errno;
        int r = make_parents(tree_fd, e->path);
        if (r == 0 && renameat(batch_fd, e->file, tree_fd, e->path) < 0)
                r = -errno;
        /* A path that is a file's and a directory's: the container changed it meanwhile. */
        return r == -ENOTDIR || r == -EISDIR || r == -ENOTEMPTY || r == -EEXIST ? 1 : r;
}

/* ---- one unit ---- */

typedef struct Build {
        TreeUnit *unit;
        const CopyDocument *document;
        int root_fd, batch_fd, tree_fd, final_fd;
        char tree_name[TREE_NAME_SIZE];
        size_t n_files;
} Build;

static bool is_of(const Build *b, const CopyEntry *e) {
        return strcmp(e->unit, b->unit->unit) == 0;
}

int tree_unit_add_missing(TreeUnit *u, const char *path) {
        char **more = reallocarray(u->missing, u->n_missing + 1, sizeof *more);
        if (!more)
                return -ENOMEM;
        u->missing = more;
        more[u->n_missing] = strdup(path);
        return more[u->n_missing] ? (int)(u->n_missing++, 0) : -ENOMEM;
}

static int place_files(Build *b) {
        struct stat st;
        b->unit->is_whole = copy_document_is_whole(b->document, b->unit->unit);
        for (size_t i = 0; i < b->document->n_entries; i++) {
                const CopyEntry *e = &b->document->entries[i];
                if (!is_of(b, e))
                        continue;
                int r = e->file[0] ? place_file(b->batch_fd, b->tree_fd, e) : 1;
                if (r < 0)
                        return r;
                bool is_there = has(b->tree_fd, e->path, e->bytes, &st) ||
                                has(b->final_fd, e->path, e->bytes, &st);
                b->n_files += is_there;
                b->unit->is_whole = b->unit->is_whole && is_there && !e->detail;
                r = is_there ? 0 : tree_unit_add_missing(b->unit, e->path);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int write_about(const Build *b) {
        TreeUnit *u = b->unit;
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_free_ char *name = tree_unit_file(u->source, u->unit);
        if (mkdirat(b->root_fd, CONTAINER_UNITS_DIRECTORY, 0700) < 0 && errno != EEXIST)
                return -errno;
        _cleanup_close_ int dir_fd = openat(b->root_fd, CONTAINER_UNITS_DIRECTORY,
                                            O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir_fd < 0)
                return -errno;
        about_compose(u, b->document, b->n_files, &text);
        int r = name ? strbuf_error(&text) : -ENOMEM;
        if (r == 0)
                r = fs_write_file(dir_fd, name, text.text, text.n, 0600);
        /* A dump of which nothing could be had is one that somebody is told of all the same. */
        if (r == 0 && b->n_files == 0)
                r = fs_write_file(b->tree_fd, CONTAINER_COPY_FILE, text.text, text.n, 0600);
        if (r == 0) {
                u->about_fd = fs_open_regular(dir_fd, name, NULL);
                r = MIN(u->about_fd, 0);
        }
        return r;
}

static int sync_tree(int fd) {
        Walk w = { .sync = true };
        walk(&w, fd, 0);
        return w.result;
}

static bool is_same_moment(const struct stat *a, const struct stat *b) {
        return a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* What an earlier copy of the same directory has brought stays as it is, where it is the same. */
static int merge_file(const Build *b, const char *path) {
        const int tree_fd = b->tree_fd, final_fd = b->final_fd;
        struct stat st, there;
        if (fstatat(tree_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
        if (has(final_fd, path, (uint64_t)st.st_size, &there) && is_same_moment(&st, &there))
                return 0;
        int r = make_parents(final_fd, path);
        if (r == 0 && renameat(tree_fd, path, final_fd, path) < 0)
                r = -errno;
        b->unit->n_added += r == 0;
        return r == -ENOTDIR || r == -EISDIR || r == -ENOTEMPTY || r == -EEXIST ? 0 : r;
}

static int merge(Build *b) {
        int r = b->n_files == 0 ? merge_file(b, CONTAINER_COPY_FILE) : 0;
        for (size_t i = 0; i < b->document->n_entries && r == 0; i++)
                if (is_of(b, &b->document->entries[i]))
                        r = merge_file(b, b->document->entries[i].path);
        return r == 0 ? sync_tree(b->final_fd) : r;
}

static int open_final(const TreeUnit *u) {
        return open(u->final, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Whole, where nothing is there yet. */
static int move_to_final(Build *b) {
        _cleanup_free_ char *parent = path_parent(b->unit->final);
        int r = parent ? fs_mkdir_p(parent, 0700) : -ENOMEM;
        if (r < 0)
                return r;
        if (b->final_fd < 0 && renameat(b->batch_fd, b->tree_name, AT_FDCWD, b->unit->final) < 0)
                return -errno;
        if (b->final_fd >= 0)
                r = merge(b);
        else {
                b->final_fd = open_final(b->unit);
                b->unit->n_added = MAX(b->n_files, (size_t)1); /* what tells of it, at least */
        }
        if (r < 0 || b->final_fd < 0)
                return r < 0 ? r : -errno;
        b->unit->disk_bytes = tree_measure(b->final_fd);
        _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fs_sync_dir(fd);
}

static int build(Build *b) {
        (void)snprintf(b->tree_name, sizeof b->tree_name, TREE_FORMAT, b->unit->unit);
        if (mkdirat(b->batch_fd, b->tree_name, 0700) < 0 && errno != EEXIST)
                return -errno;
        b->tree_fd =
                openat(b->batch_fd, b->tree_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (b->tree_fd < 0)
                return -errno;
        b->final_fd = open_final(b->unit);
        if (b->final_fd < 0 && errno != ENOENT)
                return -errno;
        int r = place_files(b);
        if (r == 0)
                r = write_about(b);
        if (r == 0)
                r = sync_tree(b->tree_fd);
        return r == 0 ? move_to_final(b) : r;
}

int tree_build(TreeUnit *u, int root_fd, int batch_fd, const CopyDocument *d) {
        Build b = { .unit = u,
                    .document = d,
                    .root_fd = root_fd,
                    .batch_fd = batch_fd,
                    .tree_fd = -1,
                    .final_fd = -1 };
        u->about_fd = -1;
        u->result = build(&b);
        if (b.tree_fd >= 0)
                (void)close(b.tree_fd);
        if (b.final_fd >= 0)
                (void)close(b.final_fd);
        return u->result;
}
