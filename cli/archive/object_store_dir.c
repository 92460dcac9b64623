/* A directory as a store of objects: keys are paths as the operator spelled them. What lies below may have been made by anybody who can
 * write to the volume: symlinks are not followed, and nothing but regular files counts. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/archive/object_store_private.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

/* ---- one object ---- */

static int say(ObjectStore *s, const char *doing, const char *key, int error) {
        if (error == ENOMEM || error == EINTR)
                return -error;
        if (error == ENOENT || error == ENOTDIR)
                return object_store_fail(s, OBJECT_E_NOT_FOUND, "'%s' is not there", key);
        if (error == EFBIG)
                return object_store_fail(s, OBJECT_E_TOO_LARGE, "'%s' is too large", key);
        if (error == EBADF || error == EISDIR || error == ELOOP)
                return object_store_fail(s, OBJECT_E_FAILED, "'%s' is not a regular file", key);
        return object_store_fail(s, OBJECT_E_FAILED, "cannot %s '%s': %s%s", doing, key,
                                 strerror(error),
                                 error == EACCES ? "; run it as a user who may, such as root" : "");
}

/* @return fd of a regular file; -errno, -EBADF for anything else. O_NONBLOCK: a FIFO is an error, not a long wait */
static int open_file(const char *path, struct stat *ret) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return -errno;
        if (fstat(fd, ret) < 0)
                return -errno;
        return S_ISREG(ret->st_mode) ? TAKE_FD(fd) : -EBADF;
}

static int dir_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes) {
        struct stat st;
        _cleanup_close_ int fd = open_file(key, &st);
        if (fd < 0)
                return say(s, "open", key, -fd);
        *ret_bytes = (uint64_t)st.st_size;
        return 0;
}

static int read_head(const char *key, size_t max_bytes, char **ret, size_t *ret_n) {
        struct stat st;
        _cleanup_close_ int fd = open_file(key, &st);
        return fd < 0 ? fd : fs_read_head(fd, max_bytes, ret, ret_n);
}

static int dir_read(ObjectStore *s, const char *key, size_t max_bytes, ObjectText *ret) {
        size_t n;
        _cleanup_free_ char *text = NULL;
        int r = read_head(key, max_bytes + 1, &text, &n);
        if (r == 0 && n > max_bytes)
                r = -EFBIG;
        if (r < 0)
                return say(s, "read", key, -r);
        *ret = (ObjectText){ .text = TAKE_PTR(text), .n = n };
        return 0;
}

static int dir_read_heads(ObjectStore *s, ObjectHead *heads, size_t n) {
        for (size_t i = 0; i < n; i++) {
                ObjectHead *h = &heads[i];
                if (cli_is_interrupted())
                        return -EINTR;
                int r = read_head(h->key, h->max_bytes, &h->text, &h->n);
                if (r == -ENOMEM)
                        return r;
                if (r < 0) {
                        (void)say(s, "read", h->key, -r); /* the sentence is what counts */
                        h->error = TAKE_PTR(s->error);
                }
        }
        return 0;
}

typedef struct DirReader {
        ObjectReader reader;
        ObjectStore *store; /* borrowed */
        char *key;
        int fd;
        uint64_t offset, end;
} DirReader;

static int dir_read_at(ByteSource *source, void *data, size_t n, uint64_t offset) {
        DirReader *d = (DirReader *)source;
        if (cli_is_interrupted())
                return -EINTR;
        if (offset < d->offset || offset > d->end || n > d->end - offset)
                return -EINVAL;
        int r = fs_pread_all(d->fd, data, n, offset);
        if (r == -ENODATA)
                (void)object_store_fail(d->store, 0, "'%s' became shorter while it was read",
                                        d->key);
        else if (r < 0)
                (void)object_store_fail(d->store, 0, "cannot read '%s': %s", d->key, strerror(-r));
        return r;
}

static ObjectReader *dir_reader_free(ObjectReader *r) {
        DirReader *d = (DirReader *)r;
        (void)close(d->fd); /* it was only read */
        free(d->key);
        free(d);
        return NULL;
}

static int dir_reader(ObjectStore *s, const ObjectRange *range, ObjectReader **ret) {
        struct stat st;
        _cleanup_close_ int fd = open_file(range->key, &st);
        if (fd < 0)
                return say(s, "open", range->key, -fd);
        uint64_t bytes = (uint64_t)st.st_size;
        if (range->object_bytes && bytes != range->object_bytes)
                return object_store_fail(s, OBJECT_E_FAILED,
                                         "'%s' has %llu bytes, its manifest says %llu", range->key,
                                         (unsigned long long)bytes,
                                         (unsigned long long)range->object_bytes);
        (void)posix_fadvise(fd, (off_t)range->offset, (off_t)range->bytes,
                            POSIX_FADV_SEQUENTIAL); /* a hint */
        DirReader *d = calloc(1, sizeof *d);
        char *key = strdup(range->key);
        if (!d || !key) {
                free(d);
                free(key);
                return -ENOMEM;
        }
        *d = (DirReader){ .reader = { .source = { .bytes = bytes, .read_at = dir_read_at },
                                      .free = dir_reader_free },
                          .store = s,
                          .key = key,
                          .fd = TAKE_FD(fd),
                          .offset = range->offset,
                          .end = range->offset + range->bytes };
        *ret = &d->reader;
        return 0;
}

/* ---- listing ---- */

typedef struct Listing {
        ObjectStore *store;
        const ObjectListOrder *order;
        const char *begin; /* of the names in the first directory */
        size_t n, depth;
        char *failure; /* the first directory below that cannot be listed: told after all others were */
} Listing;

/* Order of keys: a directory counts with its slash. */
static int compare_names(const void *a, const void *b) {
        return strcmp(*(char *const *)a, *(char *const *)b);
}

typedef struct Names {
        char **items; /* a directory's ends in a slash */
        size_t n, n_allocated;
} Names;

static void names_done(Names *names) {
        for (size_t i = 0; i < names->n; i++)
                free(names->items[i]);
        free(names->items);
        *names = (Names){ 0 };
}

static int names_add(Names *names, const char *name, bool is_directory) {
        if (names->n == names->n_allocated) {
                size_t n = names->n_allocated ? 2 * names->n_allocated : 64;
                char **items = reallocarray(names->items, n, sizeof *items);
                if (!items)
                        return -ENOMEM;
                names->items = items;
                names->n_allocated = n;
        }
        if (asprintf(&names->items[names->n], "%s%s", name, is_directory ? "/" : "") < 0)
                return -ENOMEM;
        names->n++;
        return 0;
}

static bool is_directory_at(int dir_fd, const struct dirent *e) {
        struct stat st;
        if (e->d_type != DT_UNKNOWN)
                return e->d_type == DT_DIR;
        return fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* Dot-names are what an agent is writing just now, its incidents' records, and other people's. */
static int read_names(DIR *dir, const char *begin, Names *names) {
        const struct dirent *e;
        int r = 0;
        while (r == 0 && (errno = 0, e = readdir(dir)))
                if (e->d_name[0] != '.' && strncmp(e->d_name, begin, strlen(begin)) == 0)
                        r = names_add(names, e->d_name, is_directory_at(dirfd(dir), e));
        if (r == 0 && errno != 0)
                r = -errno;
        if (r == 0 && names->n > 0)
                qsort(names->items, names->n, sizeof *names->items, compare_names);
        return r;
}

static int list_item(Listing *l, const ObjectItem *item) {
        if (l->order->max_items && l->n >= l->order->max_items)
                return 0;
        l->n++;
        return l->order->on_item(item, l->order->userdata);
}

static int list_directory(Listing *l, int at_fd, const char *name, const char *path);

/* @param path  of the directory, as it is to be shown; "" = the current one */
static int list_name(Listing *l, int dir_fd, const char *path, char *name) {
        struct stat st;
        size_t n = strlen(name);
        if (cli_is_interrupted())
                return -EINTR;
        _cleanup_free_ char *key = *path ? path_join(path, name) : strdup(name);
        if (!key)
                return -ENOMEM;
        if (name[n - 1] == '/' && l->order->shallow)
                return list_item(l, &(ObjectItem){ .key = key, .is_prefix = true });
        if (name[n - 1] == '/') {
                name[n - 1] = '\0';
                key[strlen(key) - 1] = '\0';
                return l->depth >= FS_DEPTH_MAX ? 0 : list_directory(l, dir_fd, name, key);
        }
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                return 0; /* gone meanwhile, or no object */
        return list_item(l, &(ObjectItem){ .key = key,
                                           .bytes = (uint64_t)st.st_size,
                                           .modified_usec = (uint64_t)MAX(st.st_mtim.tv_sec, 0) *
                                                            USEC_PER_SEC });
}

/* @param error  positive errno @return what list_directory() returns */
static int list_failed(Listing *l, const char *path, int error) {
        bool is_below = l->depth > 0;
        if (is_below && (error == ENOENT || error == ENOTDIR || error == ELOOP))
                return 0; /* gone meanwhile */
        int r = say(l->store, "list", *path ? path : ".", error);
        if (!is_below || r < 0)
                return r;
        if (!l->failure)
                l->failure = TAKE_PTR(l->store->error);
        return 0;
}

static int list_directory(Listing *l, int at_fd, const char *name, const char *path) {
        /* the first one was spelled by the operator, who may mean a symlink */
        int fd = openat(at_fd, name,
                        O_RDONLY | O_DIRECTORY | O_CLOEXEC | (l->depth > 0 ? O_NOFOLLOW : 0));
        _cleanup_closedir_ DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        if (!dir) {
                int error = errno;
                if (fd >= 0)
                        (void)close(fd);
                return list_failed(l, path, error);
        }
        Names names = { 0 };
        int r = read_names(dir, l->depth > 0 ? "" : l->begin, &names);
        if (r < 0)
                r = list_failed(l, path, -r);
        l->depth++;
        for (size_t i = 0; r == 0 && i < names.n; i++)
                r = list_name(l, dirfd(dir), path, names.items[i]);
        l->depth--;
        names_done(&names);
        return r;
}

static int dir_list(ObjectStore *s, const ObjectListOrder *order) {
        const char *slash = strrchr(order->prefix, '/');
        Listing l = { .store = s, .order = order, .begin = slash ? slash + 1 : order->prefix };
        size_t n = slash ? (size_t)(slash - order->prefix) : 0;
        _cleanup_free_ char *path = slash && n == 0 ? strdup("/") : strndup(order->prefix, n);
        if (!path)
                return -ENOMEM;
        int r = list_directory(&l, AT_FDCWD, *path ? path : ".", path);
        _cleanup_free_ char *failure = l.failure;
        return r == 0 && failure ? object_store_fail(s, OBJECT_E_FAILED, "%s", failure) : r;
}

/* ---- the store ---- */

static ObjectStore *dir_free(ObjectStore *s) {
        free(s);
        return NULL;
}

int object_store_dir_new(ObjectStore **ret) {
        static const ObjectStoreKind kind = { .list = dir_list,
                                              .stat = dir_stat,
                                              .read = dir_read,
                                              .read_heads = dir_read_heads,
                                              .reader = dir_reader,
                                              .free = dir_free };
        _cleanup_free_ ObjectStore *s = calloc(1, sizeof *s);
        char *prefix = strdup("");
        if (!s || !prefix) {
                free(prefix);
                return -ENOMEM;
        }
        *s = (ObjectStore){ .kind = &kind, .url_prefix = prefix };
        *ret = TAKE_PTR(s);
        return 0;
}
