/* A directory as a store of objects: keys are paths as the operator spelled them. What lies below
 * may have been made by anybody who can write to the volume: symlinks are not followed, and nothing
 * but regular files counts. */
#include "cli/archive/object_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/common/cli.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/bundle/manifest.h"
#include "lib/neuron/names.h"
#include "uploaders/s3/s3_endpoint.h"

/* ---- where ---- */

static bool begins(const char *text, const char *with) {
        return strncasecmp(text, with, strlen(with)) == 0;
}

/* @return what should have been written instead of something that is nearly a URL; NULL */
static const char *remedy_for(const char *text) {
        if (begins(text, "s3:") || begins(text, "s3//"))
                return "write s3://bucket/key, all in lower case and with two slashes";
        if (begins(text, "arn:"))
                return "write s3://bucket/key instead of the ARN";
        if (begins(text, "file:"))
                return "write the path alone";
        if (begins(text, "http:") || begins(text, "https:"))
                return "write s3://bucket/key, and the server as --endpoint-url";
        return strstr(text, "://") ? "only s3://bucket/key and paths are known here" : NULL;
}

static int parse_path(const char *text, ObjectUrl *u) {
        size_t n = strlen(text);
        while (n > 1 && text[n - 1] == '/')
                n--;
        u->ends_in_slash = text[n] == '/' || strcmp(text, "/") == 0;
        u->key = strndup(text, n);
        return u->key ? 0 : -ENOMEM;
}

int object_url_parse(const char *command, const char *text, ObjectUrl *ret) {
        ObjectUrl u = { 0 };
        int r;
        if (strncmp(text, "s3://", strlen("s3://")) == 0) {
                r = s3_url_parse(text, &u.bucket, &u.key);
                if (r == 0)
                        u.ends_in_slash = !*u.key || u.key[strlen(u.key) - 1] == '/';
                if (r == -EINVAL)
                        return cli_usage(command, "'%s' names no bucket; write s3://bucket/key",
                                         text);
        } else {
                const char *remedy = remedy_for(text);
                if (remedy)
                        return cli_usage(command, "invalid URL '%s'; %s", text, remedy);
                r = parse_path(text, &u);
        }
        if (r < 0) {
                cli_error("%s", strerror(-r));
                return CLI_NO;
        }
        *ret = u;
        return CLI_YES;
}

void object_url_done(ObjectUrl *u) {
        free(u->bucket);
        free(u->key);
        *u = (ObjectUrl){ 0 };
}

static bool is_directory(const ObjectUrl *url) {
        struct stat st;
        if (url->ends_in_slash)
                return true;
        /* what has our suffix is meant as a file, and reading tells when it is none */
        return !url->bucket && bundle_file_kind(url->key, NULL) == BUNDLE_NEITHER &&
               stat(url->key, &st) == 0 && S_ISDIR(st.st_mode);
}

void bundle_names_done(BundleNames *n) {
        free(n->stem);
        free(n->object);
        free(n->manifest);
        *n = (BundleNames){ 0 };
}

/* @return 0; -EINVAL: it names no file (empty, or ends in a slash); -ENOMEM */
static int bundle_names_init(const char *given, BundleNames *ret) {
        size_t n;
        (void)bundle_file_kind(given, &n); /* any of the three will do */
        if (n == 0 || given[n - 1] == '/')
                return -EINVAL;
        BundleNames names = { .stem = strndup(given, n) };
        if (names.stem) {
                names.object = bundle_object_name(names.stem);
                names.manifest = bundle_manifest_name(names.stem);
        }
        if (!names.stem || !names.object || !names.manifest) {
                bundle_names_done(&names);
                return -ENOMEM;
        }
        *ret = names;
        return 0;
}

bool s3_options_set(S3Options *o, int option, const char *value) {
        switch (option) {
        case S3_OPTION_ENDPOINT:
                o->endpoint_url = value;
                return true;
        case S3_OPTION_REGION:
                o->region = value;
                return true;
        case S3_OPTION_PROFILE:
                o->profile = value;
                return true;
        case S3_OPTION_CA:
                o->ca_bundle = value;
                return true;
        default:
                return false;
        }
}

int s3_options_parse(int argc, char **argv, const char *what, S3Options *ret) {
        static const struct option options[] = { S3_OPTION_ROWS, { 0 } };
        int o;
        while ((o = cli_option(&(CliOptions){ argv[0], ":", options }, argc, argv)) >= 0)
                if (!s3_options_set(ret, o, optarg))
                        return CLI_USAGE;
        return argc - optind == 1 && *argv[optind] ? CLI_YES
                                                   : cli_usage(argv[0], "requires %s", what);
}

/* ---- the store ---- */

static int object_store_dir_new(ObjectStore **ret);

int object_store_open(ObjectStore **ret, const Cli *cli, const ObjectUrl *url,
                      const S3Options *options) {
        if (url->bucket)
                return object_store_s3_new(ret, cli, url, options);
        if (object_store_dir_new(ret) == 0)
                return CLI_YES;
        cli_error("%s", strerror(ENOMEM));
        return CLI_NO;
}

int object_store_open_bundle(ObjectStore **ret, const Cli *cli, char **argv,
                             const S3Options *options, BundleNames *ret_names) {
        const char *given = argv[optind];
        _cleanup_(object_url_done) ObjectUrl url = { 0 };
        int code = object_url_parse(argv[0], given, &url);
        if (code != CLI_YES)
                return code;
        int r = is_directory(&url) ? -EINVAL : bundle_names_init(url.key, ret_names);
        if (r == -EINVAL)
                return cli_usage(argv[0],
                                 "'%s' is not a bundle; `neuron-collect ls '%s'` lists the bundles",
                                 given, given);
        if (r < 0) {
                cli_error("%s", strerror(-r));
                return CLI_NO;
        }
        cli_catch_signals();
        return object_store_open(ret, cli, &url, options);
}

ObjectStore *object_store_free(ObjectStore *s) {
        if (!s)
                return NULL;
        free(s->url_prefix);
        free(s->error);
        return s->kind->free(s);
}

int object_store_fail(ObjectStore *s, int outcome, const char *fmt, ...) {
        va_list ap;
        char *text;
        va_start(ap, fmt);
        int n = vasprintf(&text, fmt, ap);
        va_end(ap);
        free(s->error);
        s->error = n < 0 ? NULL : text;
        return outcome;
}

const char *object_store_error(const ObjectStore *s) {
        return s->error ? s->error : "";
}

int object_store_report(const ObjectStore *s, int r) {
        if (r == -EINTR)
                cli_error("interrupted");
        else if ((r > 0 || r == -EIO || r == -ENODATA) && *object_store_error(s))
                cli_error("%s", object_store_error(s));
        else
                cli_error("%s", strerror(r < 0 ? -r : EIO));
        return CLI_NO;
}

char *object_store_url(const ObjectStore *s, const char *key) {
        char *url;
        return asprintf(&url, "%s%s", s->url_prefix, key) < 0 ? NULL : url;
}

int object_store_list(ObjectStore *s, const ObjectListing *order) {
        return s->kind->list(s, order);
}

int object_store_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes) {
        return s->kind->stat(s, key, ret_bytes);
}

int object_store_read_manifest(ObjectStore *s, const char *key, ObjectText *ret_text, json_t **ret,
                               bool *ret_is_missing) {
        _cleanup_free_ char *fault = NULL, *url = object_store_url(s, key);
        int r = s->kind->read(s, key, MANIFEST_MAX_BYTES, ret_text);
        *ret_is_missing = r == OBJECT_E_NOT_FOUND;
        if (*ret_is_missing)
                return CLI_NO;
        if (r != 0)
                return object_store_report(s, r);
        r = manifest_read(ret_text->text, ret_text->n, ret, &fault);
        if (r == 0)
                return CLI_YES;
        cli_error("'%s' is not a manifest: %s", url ? url : key, fault ? fault : strerror(-r));
        return CLI_NO;
}

int object_store_read_heads(ObjectStore *s, ObjectHead *heads, size_t n) {
        return s->kind->read_heads(s, heads, n);
}

void object_head_done(ObjectHead *h) {
        free(h->text);
        free(h->error);
        *h = (ObjectHead){ 0 };
}

int object_store_reader(ObjectStore *s, const ObjectRange *range, ObjectReader **ret) {
        return s->kind->reader(s, range, ret);
}

ObjectReader *object_reader_free(ObjectReader *r) {
        return r ? r->free(r) : NULL;
}

/* ---- one object ---- */

static int message_print(ObjectStore *s, const char *doing, const char *key, int error) {
        if (error == ENOMEM || error == EINTR)
                return -error;
        if (error == ENOENT || error == ENOTDIR)
                return object_store_fail(s, OBJECT_E_NOT_FOUND, "'%s' is not there", key);
        if (error == EFBIG)
                return object_store_fail(s, OBJECT_E_FAILED, "'%s' is too large", key);
        if (error == EBADF || error == EISDIR || error == ELOOP)
                return object_store_fail(s, OBJECT_E_FAILED, "'%s' is not a regular file", key);
        return object_store_fail(s, OBJECT_E_FAILED, "cannot %s '%s': %s%s", doing, key,
                                 strerror(error),
                                 error == EACCES ? "; run it as a user who may, such as root" : "");
}

/* @return fd of a regular file; -errno, -EBADF for anything else. O_NONBLOCK: a FIFO is an error,
 * not a long wait */
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
                return message_print(s, "open", key, -fd);
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
                return message_print(s, "read", key, -r);
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
                        (void)message_print(s, "read", h->key,
                                            -r); /* the sentence is what counts */
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
                return message_print(s, "open", range->key, -fd);
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
        const ObjectListing *order;
        const char *begin; /* of the names in the first directory */
        size_t depth;
        char *failure; /* the first directory below that cannot be listed: told after all others
                          were */
} Listing;

static int list_directory(Listing *l, int at_fd, const char *name, const char *path);

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

/* @param path  of the directory, as it is to be shown; "" = the current one */
static int list_name(Listing *l, int dir_fd, const char *path, char *name) {
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
                            .modified_usec = (uint64_t)MAX(st.st_mtim.tv_sec, 0) * USEC_PER_SEC };
        return l->order->on_item(&item, l->order->userdata);
}

/* @param error  positive errno @return what list_directory() returns */
static int list_failed(Listing *l, const char *path, int error) {
        bool is_below = l->depth > 0;
        if (is_below && (error == ENOENT || error == ENOTDIR || error == ELOOP))
                return 0; /* gone meanwhile */
        int r = message_print(l->store, "list", *path ? path : ".", error);
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

static int dir_list(ObjectStore *s, const ObjectListing *order) {
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

static int object_store_dir_new(ObjectStore **ret) {
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
