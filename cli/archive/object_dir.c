/* A directory as a store: keys are paths as the operator wrote them. Any user who can write to the
 * volume may have created what lies below, so symlinks are not followed, and only regular files
 * count. Which of them to believe is left to volume_owners.c. */
#include "cli/archive/object_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

/* ---- one object ---- */

/* @return -errno of this process's own, else OBJECT_E_* and the sentence */
static int explain_file_error(char **sentence, const char *doing, const char *key, int error) {
        if (error == ENOMEM || error == EINTR)
                return -error;
        if (error == ENOENT || error == ENOTDIR)
                return object_error_set(sentence, OBJECT_E_NOT_FOUND, "'%s' does not exist", key);
        if (error == EBADF || error == EISDIR)
                return object_error_set(sentence, OBJECT_E_FAILED, "'%s' is not a regular file",
                                        key);
        if (error == ELOOP || error == EXDEV)
                return object_error_set(
                        sentence, OBJECT_E_FAILED,
                        "'%s' is a symlink, or lies behind one, which is not followed", key);
        return object_error_set(sentence, OBJECT_E_FAILED, "cannot %s '%s': %s%s", doing, key,
                                strerror(error),
                                error == EACCES ? "; run it as a user who may, such as root" : "");
}

int object_dir_set_root(ObjectDir *s, const char *directory) {
        size_t n = strlen(directory);
        while (n > 1 && directory[n - 1] == '/')
                n--;
        char *copy = n > 0 ? strndup(directory, n) : strdup(".");
        if (!copy)
                return -ENOMEM;
        free(s->root);
        s->root = copy;
        return 0;
}

/* @return the path relative to the root; "": the root; NULL: it is not below the root */
static const char *find_below_root(const ObjectDir *s, const char *path) {
        size_t n = strlen(s->root);
        if (strcmp(s->root, ".") == 0 && path[0] != '/' && strncmp(path, "./", 2) != 0)
                return strcmp(path, ".") == 0 ? "" : path;
        if (strncmp(path, s->root, n) != 0 || (path[n] && path[n] != '/' && s->root[n - 1] != '/'))
                return NULL;
        return path + n + strspn(path + n, "/");
}

/* @return fd, O_PATH; -errno */
static int open_store_root(const ObjectDir *s) {
        int fd = open(s->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* @return fd of a regular file; -errno, -EBADF for anything else */
static int open_file(const ObjectDir *s, const char *path, struct stat *ret) {
        const char *below = find_below_root(s, path);
        _cleanup_close_ int root_fd = below ? open_store_root(s) : -EXDEV;
        return root_fd < 0 ? root_fd : fs_open_regular(root_fd, below, ret);
}

int object_dir_stat(const ObjectDir *s, const char *key, uint64_t *ret_bytes, char **error) {
        struct stat st;
        _cleanup_close_ int fd = open_file(s, key, &st);
        if (fd < 0)
                return explain_file_error(error, "open", key, -fd);
        *ret_bytes = (uint64_t)st.st_size;
        return 0;
}

int object_dir_read_heads(const ObjectDir *s, ObjectHead *heads, size_t n) {
        for (size_t i = 0; i < n; i++) {
                ObjectHead *h = &heads[i];
                struct stat st;
                if (cli_is_interrupted())
                        return -EINTR;
                _cleanup_close_ int fd = open_file(s, h->key, &st);
                int r = fd < 0 ? fd : fs_read_head(fd, h->max_bytes, &h->text, &h->n);
                h->outcome = r < 0 ? explain_file_error(&h->error, "read", h->key, -r) : 0;
                h->owner = fd < 0 ? OWNER_UNKNOWN : (int64_t)st.st_uid;
                if (h->outcome < 0)
                        return h->outcome;
        }
        return 0;
}

/* ---- listing ---- */

typedef struct ListingWalk {
        const ObjectDir *store;
        char **error;
        const ObjectListing *listing;
        const char *begin; /* of the names in the first directory */
        size_t depth;
        char *failure; /* the first directory below that cannot be listed: reported at the end */
} ListingWalk;

static int list_directory(ListingWalk *l, int at_fd, const char *name, const char *path);

typedef struct Names {
        char **items; /* a directory's ends in a slash, with which it is sorted */
        size_t n;
} Names;

static void names_done(Names *names) {
        for (size_t i = 0; i < names->n; i++)
                free(names->items[i]);
        free(names->items);
}

static int names_add(Names *names, const char *name, bool is_directory) {
        if (array_grow(&names->items, names->n, sizeof *names->items) < 0)
                return -ENOMEM;
        names->items[names->n] = strbuf_format("%s%s", name, is_directory ? "/" : "");
        return names->items[names->n++] ? 0 : -ENOMEM;
}

static bool is_directory_at(int dir_fd, const struct dirent *e) {
        struct stat st;
        if (e->d_type != DT_UNKNOWN)
                return e->d_type == DT_DIR;
        return fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static bool is_dots(const char *name) {
        return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Names that begin with a dot are skipped unless `begin` asks for them: agents' temporary files,
 * the records of incidents, and other programs' files. */
static int read_names(DIR *dir, const char *begin, Names *names) {
        const struct dirent *e;
        int r = 0;
        while (r == 0 && (errno = 0, e = readdir(dir)))
                if ((e->d_name[0] != '.' || begin[0] == '.') && !is_dots(e->d_name) &&
                    strncmp(e->d_name, begin, strlen(begin)) == 0)
                        r = names_add(names, e->d_name, is_directory_at(dirfd(dir), e));
        if (r == 0 && errno != 0)
                r = -errno;
        if (r == 0 && names->n > 0)
                qsort(names->items, names->n, sizeof *names->items, array_compare_strings);
        return r;
}

/* @param path  of the directory, as it is to be shown; "" = the current one */
static int list_name(ListingWalk *l, int dir_fd, const char *path, char *name) {
        struct stat st;
        size_t n = strlen(name);
        if (cli_is_interrupted())
                return -EINTR;
        _cleanup_free_ char *key = *path ? path_join(path, name) : strdup(name);
        if (!key)
                return -ENOMEM;
        if (name[n - 1] == '/') {
                name[n - 1] = '\0';
                key[strlen(key) - 1] = '\0';
                return l->depth >= FS_DEPTH_MAX ? 0 : list_directory(l, dir_fd, name, key);
        }
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                return 0; /* gone meanwhile, or no object */
        ObjectItem item = { .key = key,
                            .bytes = (uint64_t)st.st_size,
                            .modified_usec = (uint64_t)MAX(st.st_mtim.tv_sec, 0) * USEC_PER_SEC,
                            .owner = (int64_t)st.st_uid };
        return l->listing->on_item(&item, l->listing->userdata);
}

/* @param error  positive errno @return what list_directory() returns */
static int list_failed(ListingWalk *l, const char *path, int error) {
        bool is_below = l->depth > 0;
        if (is_below && (error == ENOENT || error == ENOTDIR || error == ELOOP))
                return 0; /* gone meanwhile */
        int r = explain_file_error(l->error, "list", *path ? path : ".", error);
        if (!is_below || r < 0)
                return r;
        if (!l->failure)
                l->failure = TAKE_PTR(*l->error);
        return 0;
}

/* Opens the first directory. The operator has written the root, which may be a symlink. */
static int open_first(const ObjectDir *s, const char *path) {
        const char *below = find_below_root(s, path);
        _cleanup_close_ int root_fd = below ? open_store_root(s) : -EXDEV;
        if (root_fd < 0)
                return root_fd;
        if (*below)
                return fs_open_beneath(root_fd, below, O_RDONLY | O_DIRECTORY);
        int fd = openat(root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* @param at_fd  -1: it is the first one */
static int list_directory(ListingWalk *l, int at_fd, const char *name, const char *path) {
        int fd = at_fd < 0 ? open_first(l->store, name)
                           : openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        _cleanup_closedir_ DIR *dir = NULL;
        Names names = { 0 };
        int r = fs_opendir_fd(at_fd >= 0 && fd < 0 ? -errno : fd, &dir);
        if (r == 0)
                r = read_names(dir, l->depth > 0 ? "" : l->begin, &names);
        if (r < 0)
                r = list_failed(l, path, -r);
        l->depth++;
        for (size_t i = 0; r == 0 && i < names.n; i++)
                r = list_name(l, dirfd(dir), path, names.items[i]);
        l->depth--;
        names_done(&names);
        return r;
}

int object_dir_list(const ObjectDir *s, const ObjectListing *listing, char **error) {
        const char *slash = strrchr(listing->prefix, '/');
        ListingWalk l = { .store = s,
                          .error = error,
                          .listing = listing,
                          .begin = slash ? slash + 1 : listing->prefix };
        size_t n = slash ? (size_t)(slash - listing->prefix) : 0;
        _cleanup_free_ char *path = slash && n == 0 ? strdup("/") : strndup(listing->prefix, n);
        if (!path)
                return -ENOMEM;
        int r = list_directory(&l, -1, *path ? path : ".", path);
        _cleanup_free_ char *failure = l.failure;
        return r == 0 && failure ? object_error_set(error, OBJECT_E_FAILED, "%s", failure) : r;
}

/* ---- a range of one ---- */

/* Opens an object's file, and checks its size. */
int object_dir_open(const ObjectDir *s, const ObjectRange *range, int *ret, uint64_t *ret_bytes,
                    char **error) {
        struct stat st;
        _cleanup_close_ int fd = open_file(s, range->key, &st);
        if (fd < 0)
                return explain_file_error(error, "open", range->key, -fd);
        *ret_bytes = (uint64_t)st.st_size;
        if (range->object_bytes && *ret_bytes != range->object_bytes)
                return object_error_set(error, OBJECT_E_FAILED,
                                        "'%s' has %" PRIu64 " bytes, its manifest has %" PRIu64,
                                        range->key, *ret_bytes, range->object_bytes);
        (void)posix_fadvise(fd, (off_t)range->offset, (off_t)range->bytes,
                            POSIX_FADV_SEQUENTIAL); /* a hint */
        *ret = TAKE_FD(fd);
        return 0;
}

void object_dir_done(ObjectDir *s) {
        free(s->root);
        s->root = NULL;
}
