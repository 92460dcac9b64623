/* A directory or a bucket as a store of objects. In a directory keys are paths as the operator
 * spelled them. What lies below may have been made by anybody who can write to the volume: symlinks
 * are not followed, and nothing but regular files counts. */
#include "cli/archive/object_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <systemd/sd-event.h>

#include "cli/common/cli.h"
#include "config/config.h"
#include "config/keys.h"
#include "lib/base/array.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"
#include "lib/http/http.h"
#include "lib/neuron/names.h"
#include "uploaders/s3/s3_bucket.h"
#include "uploaders/s3/s3_client.h"
#include "uploaders/s3/s3_endpoint.h"
#include "uploaders/s3/s3_xml.h"

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

typedef struct ObjectStoreKind {
        int (*list)(ObjectStore *s, const ObjectListing *listing);
        int (*stat)(ObjectStore *s, const char *key, uint64_t *ret_bytes);
        int (*read)(ObjectStore *s, const char *key, size_t max_bytes, ObjectText *ret);
        int (*read_heads)(ObjectStore *s, ObjectHead *heads, size_t n);
        int (*reader)(ObjectStore *s, const ObjectRange *range, ObjectReader **ret);
        ObjectStore *(*free)(ObjectStore *s);
} ObjectStoreKind;

struct ObjectStore { /* the first member of both */
        const ObjectStoreKind *kind;
        char *url_prefix; /* `s3://bucket/`, "" */
        char *error;
};

ObjectStore *object_store_free(ObjectStore *s) {
        if (!s)
                return NULL;
        free(s->url_prefix);
        free(s->error);
        return s->kind->free(s);
}

/* Notes the sentence. @return `outcome` */
static _printf_(3, 4) int object_store_fail(ObjectStore *s, int outcome, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        char *text = strbuf_vformat(fmt, ap);
        va_end(ap);
        free(s->error);
        s->error = text;
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
        return strbuf_format("%s%s", s->url_prefix, key);
}

int object_store_list(ObjectStore *s, const ObjectListing *listing) {
        return s->kind->list(s, listing);
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

/* ---- a directory: one object ---- */

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
                                         "'%s' has %llu bytes, its manifest has %llu", range->key,
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

/* ---- a directory: listing ---- */

typedef struct Listing {
        ObjectStore *store;
        const ObjectListing *listing;
        const char *begin; /* of the names in the first directory */
        size_t depth;
        char *failure; /* the first directory below that cannot be listed: told after all others
                          were */
} Listing;

static int list_directory(Listing *l, int at_fd, const char *name, const char *path);

typedef struct Names {
        char **items; /* a directory's ends in a slash, with which it is sorted */
        size_t n;
} Names;

static void names_done(Names *names) {
        for (size_t i = 0; i < names->n; i++)
                free(names->items[i]);
        free(names->items);
        *names = (Names){ 0 };
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
                qsort(names->items, names->n, sizeof *names->items, array_compare_strings);
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
        return l->listing->on_item(&item, l->listing->userdata);
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

static int dir_list(ObjectStore *s, const ObjectListing *listing) {
        const char *slash = strrchr(listing->prefix, '/');
        Listing l = { .store = s,
                      .listing = listing,
                      .begin = slash ? slash + 1 : listing->prefix };
        size_t n = slash ? (size_t)(slash - listing->prefix) : 0;
        _cleanup_free_ char *path = slash && n == 0 ? strdup("/") : strndup(listing->prefix, n);
        if (!path)
                return -ENOMEM;
        int r = list_directory(&l, AT_FDCWD, *path ? path : ".", path);
        _cleanup_free_ char *failure = l.failure;
        return r == 0 && failure ? object_store_fail(s, OBJECT_E_FAILED, "%s", failure) : r;
}

/* ---- a directory: the store ---- */

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

/* ---- a bucket ---- */

typedef struct S3Get {
        /* set before s3_get_start() and left alone */
        const char *key;       /* borrowed */
        uint64_t offset;       /* in the object */
        size_t bytes;          /* so many */
        bool may_be_short;     /* the object may end before */
        bool is_whole;         /* no range: all of the object, which has `bytes` at most */
        uint64_t object_bytes; /* how large the object must be; 0 = whatever it is */

        /* filled in */
        char *data; /* owned; NUL-terminated */
        size_t n;
        bool done;
        int outcome; /* when done: 0, OBJECT_E_*, -errno */
        char *error; /* the sentence of a OBJECT_E_*; owned */

        /* private */
        S3Client *client;
        S3Call *call;
        size_t n_allocated, n_before; /* n_before: when this try began */
        int stopped;                  /* why on_data() ended it: -errno */
} S3Get;

#define CONNECTIONS 8
#define TURN_USEC (200 * USEC_PER_MSEC) /* a signal between two looks is seen after this long */
#define REQUEST_TIMEOUT_USEC (60 * USEC_PER_SEC)
#define RETRY_INITIAL_USEC (200 * USEC_PER_MSEC)
#define RETRY_MAXIMUM_USEC (5 * USEC_PER_SEC)
#define FALLBACK_REGION                                                                            \
        "us-east-1" /* as the AWS command line does: the answer tells the bucket's own */

typedef struct S3Store {
        ObjectStore store;
        sd_event *event;
        Credentials *credentials;
        S3Client *client;
} S3Store;

/* Where a bucket is, from the options, the configured destination, and the environment. */
typedef struct S3Target { /* borrowed */
        const char *bucket;
        const S3Options *given;
        const ConfigDestination *configured; /* where there is none, every string in it is NULL */
} S3Target;

static const ConfigDestination not_configured;

static S3Store *s3_store(ObjectStore *s) {
        return (S3Store *)s;
}

/* ---- a bucket: who says what ---- */

static const char *set_or_null(const char *text) {
        return text && *text ? text : NULL;
}

static const char *first_set(const char *a, const char *b) {
        return set_or_null(a) ? a : set_or_null(b);
}

/* An option comes before what is configured, and that before the environment; a configured
 * destination without an endpoint is AWS or what the environment says, as the agent has it. */
static S3Environment resolve_environment(const S3Target *l) {
        S3Environment environment = s3_environment_read(environ);
        return s3_environment_resolve(&environment,
                                      first_set(l->given->endpoint_url, l->configured->endpoint),
                                      first_set(l->given->ca_bundle, l->configured->ca_file));
}

static int load_config(const Cli *cli, const S3Options *options, Config **ret) {
        *ret = NULL;
        if (!cli->config_given && access(cli->config_file, F_OK) < 0)
                return CLI_YES;
        if (cli_load_config(cli, !cli->config_given, ret) == CLI_YES)
                return CLI_YES;
        if (cli->config_given)
                return CLI_USAGE;
        if (!options->endpoint_url)
                cli_error("cannot read '%s': ignoring its destinations; `neuron-collect config "
                          "check` reports its errors",
                          cli->config_file);
        return CLI_YES;
}

/* ---- a bucket: setting up ---- */

static int create_credentials(S3Store *s, const S3Target *l, const S3Environment *e) {
        const ConfigDestination *d = l->configured;
        return credentials_new(
                &s->credentials,
                &(CredentialsOptions){ .event = s->event,
                                       .clock = clock_system(),
                                       .environment = environ,
                                       .profile = first_set(l->given->profile, d->profile),
                                       .region = first_set(l->given->region, d->region),
                                       .ca_file = e->ca_bundle,
                                       .proxy = d->proxy });
}

static const char *text_or(const char *text, const char *fallback) {
        return text ? text : fallback;
}

static int create_client(S3Store *s, const S3Target *l, const S3Environment *e, char **ret_fault) {
        const ConfigDestination *d = l->configured;
        Clock *clock = clock_system();
        _cleanup_free_ char *region = credentials_region(s->credentials);
        S3ClientOptions options = {
                .event = s->event,
                .clock = clock,
                .credentials = s->credentials,
                .bucket = l->bucket,
                .region = text_or(first_set(first_set(l->given->region, d->region), region),
                                  FALLBACK_REGION),
                .endpoint = e->endpoint,
                .addressing = text_or(set_or_null(d->addressing), "auto"),
                .dualstack = e->dualstack,
                .fips = e->fips,
                .ca_file = e->ca_bundle,
                .proxy = text_or(d->proxy, ""),
                .connections = CONNECTIONS,
                .request_timeout_usec =
                        d->request_timeout_usec ? d->request_timeout_usec : REQUEST_TIMEOUT_USEC,
                .expected_bucket_owner = text_or(d->expected_bucket_owner, ""),
                .sse = text_or(d->sse, ""),
                .kms_key_id = text_or(d->kms_key_id, ""),
                .storage_class = text_or(d->storage_class, ""),
                .tags = d->tags.items,
                .retry_initial_usec = RETRY_INITIAL_USEC,
                .retry_maximum_usec = RETRY_MAXIMUM_USEC,
                .seed = clock->realtime_usec(clock) ^ (uint64_t)getpid(),
        };
        return s3_client_new(&s->client, &options, ret_fault);
}

/* @param ret_fault  a sentence with -EINVAL and -EOPNOTSUPP, the caller's */
static int connect_to(S3Store *s, const S3Target *l, char **ret_fault) {
        int r = http_global_init();
        if (r == 0)
                r = sd_event_new(&s->event);
        if (r < 0)
                return r;
        S3Environment e = resolve_environment(l);
        r = create_credentials(s, l, &e);
        return r == 0 ? create_client(s, l, &e, ret_fault) : r;
}

static void disconnect(S3Store *s) {
        s3_client_free(s->client);
        credentials_free(s->credentials);
        sd_event_unref(s->event);
}

/* Runs the loop once. @return 0, -EINTR when cli_is_interrupted(), -errno */
static int run_once(S3Store *s, uint64_t usec) {
        if (cli_is_interrupted())
                return -EINTR;
        int r = sd_event_run(s->event, usec);
        return r < 0 ? r : 0;
}

static int run_until(S3Store *s, const bool *done) {
        int r = 0;
        while (r == 0 && !*done)
                r = run_once(s, TURN_USEC);
        return r;
}

int object_store_s3_probe(const ConfigDestination *destination, const S3ProbeOptions *options,
                          const bool *done, char **ret_fault) {
        static const S3Options none;
        S3Store s = { 0 };
        S3Probe *probe = NULL;
        int r = connect_to(&s, &(S3Target){ destination->bucket, &none, destination }, ret_fault);
        if (r == 0)
                r = s3_probe_new(&probe, s.client, options);
        if (r == 0)
                r = run_until(&s, done);
        s3_probe_free(probe);
        disconnect(&s);
        return r;
}

/* ---- a bucket: which destination ---- */

/* @return how much of the key the destination's fixed prefix is; 0 also when it is another */
static size_t match(const ConfigDestination *d, const char *key) {
        _cleanup_free_ char *fixed = form_fixed_part(d->prefix ? d->prefix : "");
        size_t n = fixed ? strlen(fixed) : 0;
        return n > 0 && strncmp(key, fixed, n) == 0 ? n : 0;
}

/* @return the one whose fixed prefix is the longest that the key begins with, else the first */
static const ConfigDestination *destination_of(const Config *c, const ObjectUrl *url) {
        const ConfigDestination *best = NULL;
        size_t best_n = 0;
        for (size_t i = 0; c && i < c->n_destinations; i++) {
                const ConfigDestination *d = &c->destinations[i];
                if (d->type != CONFIG_S3 || strcmp(d->bucket, url->bucket) != 0)
                        continue;
                size_t n = match(d, url->key);
                if (best && n <= best_n)
                        continue;
                best = d;
                best_n = n;
        }
        return best ? best : &not_configured;
}

#define GET_TRIES 4
#define GROW_BYTES (64 * KIB)
static void finish(S3Get *g, int outcome) {
        g->outcome = outcome;
        g->done = true;
}

__attribute__((format(printf, 3, 4))) static void fail(S3Get *g, int outcome, const char *fmt,
                                                       ...) {
        va_list ap;
        va_start(ap, fmt);
        free(g->error);
        g->error = strbuf_vformat(fmt, ap);
        va_end(ap);
        finish(g, outcome);
}

/* ---- a bucket: what comes ---- */

static int on_data(const void *data, size_t n, void *userdata) {
        S3Get *g = userdata;
        if (n > g->bytes - g->n)
                return g->stopped = -EFBIG;
        if (n >= g->n_allocated - g->n) { /* one more for the NUL */
                size_t more = MIN(g->bytes + 1, MAX(2 * g->n_allocated, g->n + n + GROW_BYTES));
                char *grown = realloc(g->data, more);
                if (!grown)
                        return g->stopped = -ENOMEM;
                g->data = grown;
                g->n_allocated = more;
        }
        memcpy(g->data + g->n, data, n);
        g->n += n;
        g->data[g->n] = '\0';
        return 0;
}

typedef struct ContentRange {
        uint64_t first, last, total;
} ContentRange;

/* `bytes 0-99/1234`. @return 0, -EINVAL */
static int parse_content_range(const char *text, ContentRange *ret) {
        static const char unit[] = "bytes ";
        char copy[3 * 21]; /* three numbers of 64 bits and what is between them */
        ContentRange range;
        if (!text || strncmp(text, unit, strlen(unit)) != 0)
                return -EINVAL;
        text += strlen(unit);
        size_t n = strlen(text);
        if (n >= sizeof copy)
                return -EINVAL;
        memcpy(copy, text, n + 1);
        char *last = strchr(copy, '-'), *total = last ? strchr(last, '/') : NULL;
        if (!total)
                return -EINVAL;
        *last++ = *total++ = '\0';
        if (parse_u64(copy, &range.first) < 0 || parse_u64(last, &range.last) < 0 ||
            parse_u64(total, &range.total) < 0 || range.first > range.last ||
            range.last >= range.total)
                return -EINVAL;
        *ret = range;
        return 0;
}

/* What came is where it was to begin, ends within what was requested, and is as long as the server
 * says. It may be less: a server need not give all of a range at once. */
static bool is_expected(const S3Get *g, const ContentRange *range) {
        return range->first == g->offset + g->n_before &&
               range->last - range->first < g->bytes - g->n_before &&
               range->last - range->first + 1 == g->n - g->n_before;
}

/* The answer is there, and fine as far as HTTP goes. @return whether the object continues behind
 * what has come */
static bool check_range(S3Get *g, const S3Result *result) {
        ContentRange range;
        uint64_t total = g->n;
        const char *bucket = s3_client_bucket(g->client),
                   *text = result->header(result, "content-range");
        if (g->is_whole && g->n_before == 0)
                return false;
        if (result->status == 200 && g->offset + g->n_before > 0) {
                g->n = g->n_before;
                fail(g, OBJECT_E_FAILED,
                     "the server ignores ranges: it sent all of 's3://%s/%s' instead of a part",
                     bucket, g->key);
                return false;
        }
        if (result->status == 206) {
                if (parse_content_range(text, &range) < 0 || !is_expected(g, &range)) {
                        g->n = g->n_before;
                        fail(g, OBJECT_E_FAILED,
                             "the server sent another range of 's3://%s/%s' (%s)", bucket, g->key,
                             text ? text : "it does not say which");
                        return false;
                }
                total = range.total;
        }
        if (g->object_bytes && total != g->object_bytes) {
                fail(g, OBJECT_E_FAILED,
                     "'s3://%s/%s' has %" PRIu64 " bytes, its manifest has %" PRIu64, bucket,
                     g->key, total, g->object_bytes);
                return false;
        }
        return g->n < g->bytes && g->offset + g->n < total;
}

static bool is_resumable(S3Verdict verdict) {
        return verdict == S3_RETRY || verdict == S3_UNREACHABLE || verdict == S3_CORRUPTED;
}

/* on_data() has ended it. */
static void report_stopped(S3Get *g) {
        const char *bucket = s3_client_bucket(g->client);
        if (g->stopped != -EFBIG)
                finish(g, g->stopped);
        else if (g->is_whole)
                fail(g, OBJECT_E_FAILED, "'s3://%s/%s' has more than %zu bytes", bucket, g->key,
                     g->bytes);
        else
                fail(g, OBJECT_E_FAILED,
                     "the server sent more of 's3://%s/%s' than the requested range", bucket,
                     g->key);
}

static int send_get(S3Get *g);

static void on_done(const S3Result *result, void *userdata) {
        S3Get *g = userdata;
        g->call = NULL;
        const S3Response *answer = result->answer;
        bool goes_on = false;
        if (g->stopped < 0)
                report_stopped(g);
        else if (answer->verdict == S3_OK)
                goes_on = check_range(g, result);
        else if (g->n == g->bytes) /* cut behind the last byte that was wanted */
                finish(g, 0);
        else
                goes_on = g->n > g->n_before && is_resumable(answer->verdict);
        if (g->done)
                return;
        if (goes_on && g->n > g->n_before) {
                int r = send_get(g);
                if (r < 0)
                        finish(g, r);
        } else if (answer->verdict != S3_OK || goes_on)
                fail(g, answer->verdict == S3_NOT_FOUND ? OBJECT_E_NOT_FOUND : OBJECT_E_FAILED,
                     "%s", answer->sentence ? answer->sentence : "the request failed");
        else if (g->n < g->bytes && !g->may_be_short && !g->is_whole)
                fail(g, OBJECT_E_FAILED, "'s3://%s/%s' ends after %" PRIu64 " bytes",
                     s3_client_bucket(g->client), g->key, g->offset + g->n);
        else
                finish(g, 0);
}

/* ---- a bucket: requests ---- */

static int send_get(S3Get *g) {
        char range[64];
        uint64_t first = g->offset + g->n;
        AwsNameValue header = { "range", range };
        snprintf(range, sizeof range, "bytes=%" PRIu64 "-%" PRIu64, first,
                 g->offset + g->bytes - 1);
        g->n_before = g->n;
        return s3_call_new(&g->call, g->client,
                           &(S3RequestOptions){ .operation = S3_GET_OBJECT,
                                                .key = g->key,
                                                .headers = &header,
                                                .n_headers = g->is_whole && g->n == 0 ? 0 : 1,
                                                .on_data = on_data,
                                                .max_tries = GET_TRIES,
                                                .on_done = on_done,
                                                .userdata = g });
}

static int s3_get_start(S3Get *g, S3Client *client) {
        g->client = client;
        g->n_allocated = g->is_whole ? GROW_BYTES : g->bytes + 1;
        g->data = malloc(g->n_allocated);
        if (!g->data)
                return -ENOMEM;
        g->data[0] = '\0';
        return send_get(g);
}

static void s3_get_done(S3Get *g) {
        s3_call_cancel(g->call);
        free(g->data);
        free(g->error);
        *g = (S3Get){ 0 };
}

#define N_SLOTS (OBJECT_PIECES_AT_ONCE + 2) /* a piece is always in the same slot */

typedef struct Slot {
        uint64_t piece;
        S3Get get; /* without a client: none */
} Slot;

typedef struct S3Reader {
        ObjectReader reader;
        S3Store *store; /* borrowed */
        char *key;
        uint64_t offset, bytes, object_bytes; /* of the range */
        uint64_t next_piece;                  /* when it is read next, it is read in order */
        Slot slots[N_SLOTS];
} S3Reader;

static uint64_t n_pieces(const S3Reader *r) {
        return (r->bytes + OBJECT_PIECE_BYTES - 1) / OBJECT_PIECE_BYTES;
}

/* @return 0 and the slot of a piece that is there or on its way */
static int start_piece(S3Reader *r, uint64_t piece, Slot **ret) {
        Slot *s = &r->slots[piece % N_SLOTS];
        *ret = s;
        if (s->get.client && s->piece == piece)
                return 0;
        s3_get_done(&s->get);
        uint64_t at = piece * OBJECT_PIECE_BYTES;
        *s = (Slot){ .piece = piece,
                     .get = { .key = r->key,
                              .offset = r->offset + at,
                              .bytes = (size_t)MIN(OBJECT_PIECE_BYTES, r->bytes - at),
                              .object_bytes = r->object_bytes } };
        int e = s3_get_start(&s->get, r->store->client);
        if (e < 0)
                s3_get_done(&s->get);
        return e;
}

static int start_ahead(S3Reader *r, uint64_t piece) {
        int e = 0;
        Slot *ignored;
        for (uint64_t i = 1; e == 0 && i < OBJECT_PIECES_AT_ONCE && piece + i < n_pieces(r); i++)
                e = start_piece(r, piece + i, &ignored);
        return e;
}

/* @return 0 and the piece's bytes, borrowed until the next call; -errno */
static int load(S3Reader *r, uint64_t piece, const S3Get **ret) {
        Slot *s;
        bool in_order = piece == 0 || piece == r->next_piece || piece + 1 == r->next_piece;
        int e = start_piece(r, piece, &s);
        if (e == 0 && in_order)
                e = start_ahead(r, piece);
        if (e == 0 && !s->get.done)
                e = run_until(r->store, &s->get.done);
        else if (e == 0)
                e = run_once(r->store, 0); /* the others continue meanwhile */
        if (e < 0)
                return e;
        r->next_piece = piece + 1;
        if (s->get.outcome > 0) {
                (void)object_store_fail(&r->store->store, 0, "%s",
                                        s->get.error ? s->get.error : "");
                e = -EIO;
        } else
                e = s->get.outcome;
        *ret = &s->get;
        return e;
}

static int read_at(ByteSource *source, void *data, size_t n, uint64_t offset) {
        S3Reader *r = (S3Reader *)source;
        char *to = data;
        if (offset < r->offset || offset - r->offset > r->bytes ||
            n > r->bytes - (offset - r->offset))
                return -EINVAL;
        for (uint64_t at = offset - r->offset; n > 0;) {
                const S3Get *get;
                int e = load(r, at / OBJECT_PIECE_BYTES, &get);
                if (e < 0)
                        return e;
                size_t skip = (size_t)(at % OBJECT_PIECE_BYTES), now = MIN(n, get->n - skip);
                memcpy(to, get->data + skip, now);
                to += now;
                at += now;
                n -= now;
        }
        return 0;
}

static ObjectReader *reader_free(ObjectReader *reader) {
        S3Reader *r = (S3Reader *)reader;
        for (size_t i = 0; i < N_SLOTS; i++)
                s3_get_done(&r->slots[i].get);
        free(r->key);
        free(r);
        return NULL;
}

static int s3_reader(ObjectStore *store, const ObjectRange *range, ObjectReader **ret) {
        S3Reader *r = calloc(1, sizeof *r);
        char *key = strdup(range->key);
        if (!r || !key) {
                free(r);
                free(key);
                return -ENOMEM;
        }
        *r = (S3Reader){ .reader = { .source = { .bytes = range->object_bytes
                                                                  ? range->object_bytes
                                                                  : range->offset + range->bytes,
                                                 .read_at = read_at },
                                     .free = reader_free },
                         .store = s3_store(store),
                         .key = key,
                         .offset = range->offset,
                         .bytes = range->bytes,
                         .object_bytes = range->object_bytes };
        *ret = &r->reader;
        return 0;
}

#define PAGE_KEYS "1000" /* as many as S3 gives out at once */
#define MAX_TRIES 4
#define HEADS_AT_ONCE 16

/* ---- a bucket: one request ---- */

typedef struct Ask {
        S3Store *store;
        bool done;
        int outcome;
        void (*on_ok)(struct Ask *ask, const S3Result *result);
        uint64_t bytes;     /* of HEAD */
        S3ObjectList *list; /* of a page */
} Ask;

static void on_head_piece(const S3Result *result, void *userdata) {
        Ask *ask = userdata;
        const S3Response *answer = result->answer;
        ask->done = true;
        if (answer->verdict == S3_OK)
                ask->on_ok(ask, result);
        else
                ask->outcome = object_store_fail(
                        &ask->store->store,
                        answer->verdict == S3_NOT_FOUND ? OBJECT_E_NOT_FOUND : OBJECT_E_FAILED,
                        "%s", answer->sentence ? answer->sentence : "the request failed");
}

static int request_and_wait(Ask *ask, S3RequestOptions *options) {
        S3Call *call;
        options->max_tries = MAX_TRIES;
        options->on_done = on_head_piece;
        options->userdata = ask;
        int r = s3_call_new(&call, ask->store->client, options);
        if (r == 0)
                r = run_until(ask->store, &ask->done);
        if (r < 0 && !ask->done)
                s3_call_cancel(call);
        return r < 0 ? r : ask->outcome;
}

/* ---- a bucket: one object ---- */

static void on_stat(Ask *ask, const S3Result *result) {
        const char *text = result->header(result, "content-length");
        if (!text || parse_u64(text, &ask->bytes) < 0)
                ask->outcome = object_store_fail(&ask->store->store, OBJECT_E_FAILED,
                                                 "the server does not report its size");
}

static int s3_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes) {
        Ask ask = { .store = s3_store(s), .on_ok = on_stat };
        int r = request_and_wait(&ask,
                                 &(S3RequestOptions){ .operation = S3_HEAD_OBJECT, .key = key });
        if (r == 0)
                *ret_bytes = ask.bytes;
        return r;
}

static int s3_read(ObjectStore *s, const char *key, size_t max_bytes, ObjectText *ret) {
        S3Get get = { .key = key, .bytes = max_bytes, .is_whole = true };
        int r = s3_get_start(&get, s3_store(s)->client);
        if (r == 0)
                r = run_until(s3_store(s), &get.done);
        if (r == 0 && get.outcome > 0)
                r = object_store_fail(s, get.outcome, "%s", get.error ? get.error : "");
        else if (r == 0)
                r = get.outcome;
        if (r == 0)
                *ret = (ObjectText){ .text = TAKE_PTR(get.data), .n = get.n };
        s3_get_done(&get);
        return r;
}

static void set_head_result(ObjectHead *h, S3Get *g) {
        if (g->outcome == 0) {
                h->text = TAKE_PTR(g->data);
                h->n = g->n;
        } else
                h->error = g->error ? TAKE_PTR(g->error) : strdup(strerror(ENOMEM));
        s3_get_done(g);
}

static int heads_run(S3Store *s, ObjectHead *heads, S3Get *gets, size_t n) {
        int r = 0;
        size_t i = 0, begun = 0;
        while (r == 0 && i < n) {
                for (; r == 0 && begun < n && begun < i + HEADS_AT_ONCE; begun++) {
                        gets[begun] = (S3Get){ .key = heads[begun].key,
                                               .bytes = heads[begun].max_bytes,
                                               .may_be_short = true };
                        r = s3_get_start(&gets[begun], s->client);
                }
                if (r == 0)
                        r = run_until(s, &gets[i].done);
                if (r == 0)
                        r = gets[i].outcome < 0 ? gets[i].outcome : 0;
                if (r == 0)
                        set_head_result(&heads[i], &gets[i]);
                i++;
        }
        for (size_t k = 0; k < begun; k++)
                s3_get_done(&gets[k]);
        return r;
}

static int s3_read_heads(ObjectStore *s, ObjectHead *heads, size_t n) {
        if (n == 0)
                return 0;
        _cleanup_free_ S3Get *gets = calloc(n, sizeof *gets);
        return gets ? heads_run(s3_store(s), heads, gets, n) : -ENOMEM;
}

/* ---- a bucket: listing ---- */

static void on_page(Ask *ask, const S3Result *result) {
        int r = s3_xml_object_list(result->body, result->body_bytes, ask->list);
        if (r == -EINVAL)
                r = object_store_fail(&ask->store->store, OBJECT_E_FAILED,
                                      "the answer of '%s' to ListObjectsV2 is not S3's XML; is "
                                      "that an S3 server?",
                                      s3_client_location(ask->store->client)->host);
        ask->outcome = r;
}

/* @param token  of the page before; NULL */
static int request_page(S3Store *s, const ObjectListing *listing, const char *token,
                        S3ObjectList *ret) {
        AwsNameValue queries[5] = { { "list-type", "2" },
                                    { "max-keys", PAGE_KEYS },
                                    { "encoding-type", "url" },
                                    { "prefix", listing->prefix } };
        size_t n = 4;
        if (token)
                queries[n++] = (AwsNameValue){ "continuation-token", token };
        Ask ask = { .store = s, .on_ok = on_page, .list = ret };
        return request_and_wait(&ask, &(S3RequestOptions){ .operation = S3_LIST_OBJECTS,
                                                           .queries = queries,
                                                           .n_queries = n });
}

static int s3_list(ObjectStore *s, const ObjectListing *listing) {
        _cleanup_free_ char *token = NULL;
        bool goes_on = true;
        while (goes_on) {
                S3ObjectList page = { 0 };
                int r = request_page(s3_store(s), listing, token, &page);
                for (size_t i = 0; r == 0 && i < page.n; i++)
                        r = listing->on_item(
                                &(ObjectItem){ .key = page.items[i].key,
                                               .bytes = page.items[i].bytes,
                                               .modified_usec = page.items[i].last_modified_usec },
                                listing->userdata);
                goes_on = r == 0 && page.is_truncated;
                if (goes_on && (!page.next_token || (token && strcmp(token, page.next_token) == 0)))
                        r = object_store_fail(
                                s, OBJECT_E_FAILED,
                                "the server's list is truncated and has no continuation token");
                free(token);
                token = TAKE_PTR(page.next_token);
                s3_object_list_done(&page);
                if (r != 0)
                        return r;
        }
        return 0;
}

/* ---- a bucket: the store ---- */

static ObjectStore *s3_free(ObjectStore *s) {
        disconnect(s3_store(s));
        free(s);
        return NULL;
}

static const ObjectStoreKind s3_kind = { .list = s3_list,
                                         .stat = s3_stat,
                                         .read = s3_read,
                                         .read_heads = s3_read_heads,
                                         .reader = s3_reader,
                                         .free = s3_free };

/* As object_store_open(), of a bucket: the options come first, then the configured destination
 * with that bucket, then the environment. Nobody needs a configuration for a bucket: a default file
 * that is missing, faulty or not readable is ignored, which is reported unless the options say it
 * all. */
static int object_store_s3_new(ObjectStore **ret, const Cli *cli, const ObjectUrl *url,
                               const S3Options *options) {
        _cleanup_free_ char *fault = NULL;
        Config *config = NULL;
        int code = load_config(cli, options, &config);
        if (code != CLI_YES)
                return code;
        S3Store *s = calloc(1, sizeof *s);
        int r = s ? 0 : -ENOMEM;
        if (s) {
                s->store.kind = &s3_kind;
                s->store.url_prefix = strbuf_format("s3://%s/", url->bucket);
                r = s->store.url_prefix ? 0 : -ENOMEM;
        }
        if (r == 0)
                r = connect_to(s, &(S3Target){ url->bucket, options, destination_of(config, url) },
                               &fault);
        config_free(config);
        if (r == 0) {
                *ret = &s->store;
                return CLI_YES;
        }
        cli_error("cannot request 's3://%s': %s", url->bucket, fault ? fault : strerror(-r));
        object_store_free(s ? &s->store : NULL);
        return r == -EINVAL ? CLI_USAGE : CLI_NO;
}

/* ---- opening either ---- */

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
