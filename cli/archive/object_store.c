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
#include "cli/common/guarded.h"
#include "config/config.h"
#include "config/keys.h"
#include "lib/base/array.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"
#include "lib/http/http.h"
#include "lib/neuron/bundle_name.h"
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
        if (r < 0)
                return cli_error("%s", strerror(-r));
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

int s3_options_parse(int argc, char **argv, const char *what, S3Options *ret) {
        const CliOption options[] = { S3_OPTION_ROWS(ret), { 0 } };
        int code = cli_options(argv[0], argc, argv, options);
        return code == CLI_YES && (argc - optind != 1 || !*argv[optind])
                       ? cli_usage(argv[0], "requires %s", what)
                       : code;
}

/* ---- the store ---- */

struct ObjectStore {
        char *url_prefix; /* `s3://bucket/`, "" */
        char *root;       /* of a directory; see object_store_set_root() */
        const Cli *cli;   /* borrowed */
        char *error;
        S3Client *client; /* NULL = a directory */
        sd_event *event;
        Credentials *credentials;
};

ObjectStore *object_store_free(ObjectStore *s) {
        if (!s)
                return NULL;
        s3_client_free(s->client);
        credentials_free(s->credentials);
        sd_event_unref(s->event);
        free(s->url_prefix);
        free(s->root);
        free(s->error);
        free(s);
        return NULL;
}

/* Keeps the sentence. @return `outcome` */
static _printf_(3, 4) int set_error(char **error, int outcome, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        free(*error);
        *error = strbuf_vformat(fmt, ap);
        va_end(ap);
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

/* Reports the owner of a bundle if that user is not known as an agent's. */
static void report_owner(const ObjectStore *s, const ObjectHead *manifest) {
        VolumeOwners owners;
        _cleanup_free_ char *node = path_parent(manifest->key),
                            *incident = node ? path_parent(node) : NULL;
        volume_owners_init(&owners, s->cli, incident);
        if (!volume_owners_has(&owners, manifest->owner))
                cli_error(
                        "'%s' belongs to uid %lld, which is not known as an agent's: any user who "
                        "may write there can have made this bundle",
                        manifest->key, (long long)manifest->owner);
        volume_owners_done(&owners);
}

int object_store_read_manifest(ObjectStore *s, ObjectHead *manifest, json_t **ret,
                               bool *ret_is_missing) {
        _cleanup_free_ char *fault = NULL, *url = object_store_url(s, manifest->key);
        manifest->max_bytes = MANIFEST_MAX_BYTES + 1;
        int r = object_store_read_heads(s, manifest, 1);
        if (r == 0 && manifest->outcome != 0)
                r = set_error(&s->error, manifest->outcome, "%s",
                              manifest->error ? manifest->error : strerror(ENOMEM));
        *ret_is_missing = r == OBJECT_E_NOT_FOUND;
        if (*ret_is_missing)
                return CLI_NO;
        if (r != 0)
                return object_store_report(s, r);
        r = manifest->n > MANIFEST_MAX_BYTES
                    ? -EFBIG
                    : manifest_read(manifest->text, manifest->n, ret, &fault);
        if (r == 0 && manifest->owner != OWNER_UNKNOWN)
                report_owner(s, manifest);
        if (r == 0)
                return CLI_YES;
        return cli_error("'%s' is not a manifest: %s", url ? url : manifest->key,
                         fault ? fault : strerror(-r));
}

void object_head_done(ObjectHead *h) {
        free(h->text);
        free(h->error);
        *h = (ObjectHead){ 0 };
}

/* ---- a directory: one object ---- */

/* @return -errno of this process's own, else OBJECT_E_* and the sentence */
static int explain_file_error(char **sentence, const char *doing, const char *key, int error) {
        if (error == ENOMEM || error == EINTR)
                return -error;
        if (error == ENOENT || error == ENOTDIR)
                return set_error(sentence, OBJECT_E_NOT_FOUND, "'%s' is not there", key);
        if (error == EBADF || error == EISDIR)
                return set_error(sentence, OBJECT_E_FAILED, "'%s' is not a regular file", key);
        if (error == ELOOP || error == EXDEV)
                return set_error(sentence, OBJECT_E_FAILED,
                                 "'%s' is a symlink, or lies behind one, which is not followed",
                                 key);
        return set_error(sentence, OBJECT_E_FAILED, "cannot %s '%s': %s%s", doing, key,
                         strerror(error),
                         error == EACCES ? "; run it as a user who may, such as root" : "");
}

int object_store_set_root(ObjectStore *s, const char *directory) {
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

/* @return what a path has below the root; "" = nothing; NULL: it is elsewhere */
static const char *find_below_root(const ObjectStore *s, const char *path) {
        size_t n = strlen(s->root);
        if (strcmp(s->root, ".") == 0 && path[0] != '/' && strncmp(path, "./", 2) != 0)
                return strcmp(path, ".") == 0 ? "" : path;
        if (strncmp(path, s->root, n) != 0 || (path[n] && path[n] != '/' && s->root[n - 1] != '/'))
                return NULL;
        return path + n + strspn(path + n, "/");
}

/* @return fd, O_PATH; -errno */
static int open_store_root(const ObjectStore *s) {
        int fd = open(s->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* @return fd of a regular file; -errno, -EBADF for anything else */
static int open_file(const ObjectStore *s, const char *path, struct stat *ret) {
        const char *below = find_below_root(s, path);
        _cleanup_close_ int root_fd = below ? open_store_root(s) : -EXDEV;
        return root_fd < 0 ? root_fd : fs_open_regular(root_fd, below, ret);
}

static int dir_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes) {
        struct stat st;
        _cleanup_close_ int fd = open_file(s, key, &st);
        if (fd < 0)
                return explain_file_error(&s->error, "open", key, -fd);
        *ret_bytes = (uint64_t)st.st_size;
        return 0;
}

static int dir_read_heads(const ObjectStore *s, ObjectHead *heads, size_t n) {
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

/* ---- a directory: listing ---- */

typedef struct ListingWalk {
        ObjectStore *store;
        const ObjectListing *listing;
        const char *begin; /* of the names in the first directory */
        size_t depth;
        char *failure; /* the first directory below that cannot be listed: told after all others
                          were */
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

/* Dot-names are what an agent is writing just now, its incidents' records, and other people's. */
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
        int r = explain_file_error(&l->store->error, "list", *path ? path : ".", error);
        if (!is_below || r < 0)
                return r;
        if (!l->failure)
                l->failure = TAKE_PTR(l->store->error);
        return 0;
}

/* The root was spelled by the operator, who may mean a symlink. */
static int open_first(const ObjectStore *s, const char *path) {
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

static int dir_list(ObjectStore *s, const ObjectListing *listing) {
        const char *slash = strrchr(listing->prefix, '/');
        ListingWalk l = { .store = s,
                          .listing = listing,
                          .begin = slash ? slash + 1 : listing->prefix };
        size_t n = slash ? (size_t)(slash - listing->prefix) : 0;
        _cleanup_free_ char *path = slash && n == 0 ? strdup("/") : strndup(listing->prefix, n);
        if (!path)
                return -ENOMEM;
        int r = list_directory(&l, -1, *path ? path : ".", path);
        _cleanup_free_ char *failure = l.failure;
        return r == 0 && failure ? set_error(&s->error, OBJECT_E_FAILED, "%s", failure) : r;
}

/* ---- a bucket ---- */

typedef struct S3Get {
        /* set before s3_get_start() and left alone */
        ObjectHead head;       /* what is filled in: text, n, outcome, error */
        uint64_t offset;       /* in the object: head.max_bytes from here on */
        bool may_be_short;     /* the object may end before */
        uint64_t object_bytes; /* how large the object must be; 0 = whatever it is */

        bool done;

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

/* Where a bucket is, from the options, the configured destination, and the environment. */
typedef struct BucketOptions { /* borrowed */
        const char *bucket;
        const S3Options *given;
        const ConfigDestination *configured; /* where there is none, every string in it is NULL */
} BucketOptions;

static const ConfigDestination not_configured;

/* ---- a bucket: who says what ---- */

static const char *set_or_null(const char *text) {
        return text && *text ? text : NULL;
}

static const char *first_set(const char *a, const char *b) {
        return set_or_null(a) ? a : set_or_null(b);
}

/* An option comes before what is configured, and that before the environment; a configured
 * destination without an endpoint is AWS or what the environment says, as the agent has it. */
static S3Environment resolve_environment(const BucketOptions *l) {
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

static const char *text_or(const char *text, const char *fallback) {
        return text ? text : fallback;
}

/* @param ret_fault  a sentence with -EINVAL and -EOPNOTSUPP, the caller's */
static int connect_to(ObjectStore *s, const BucketOptions *l, char **ret_fault) {
        const ConfigDestination *d = l->configured;
        Clock *clock = clock_system();
        int r = http_global_init();
        if (r == 0)
                r = sd_event_new(&s->event);
        if (r < 0)
                return r;
        S3Environment e = resolve_environment(l);
        CredentialsOptions keys = { .event = s->event,
                                    .clock = clock,
                                    .environment = environ,
                                    .profile = first_set(l->given->profile, d->profile),
                                    .region = first_set(l->given->region, d->region),
                                    .ca_file = e.ca_bundle,
                                    .proxy = d->proxy };
        r = credentials_new(&s->credentials, &keys);
        if (r < 0)
                return r;
        _cleanup_free_ char *region = credentials_region(s->credentials);
        S3ClientOptions options = {
                .event = s->event,
                .clock = clock,
                .credentials = s->credentials,
                .bucket = l->bucket,
                .region = text_or(first_set(keys.region, region), FALLBACK_REGION),
                .endpoint = e.endpoint,
                .addressing = text_or(set_or_null(d->addressing), "auto"),
                .dualstack = e.dualstack,
                .fips = e.fips,
                .ca_file = e.ca_bundle,
                .omits_checksums = e.omits_checksums,
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

/* Runs the loop once. @return 0, -EINTR when cli_is_interrupted(), -errno */
static int run_once(ObjectStore *s, uint64_t usec) {
        if (cli_is_interrupted())
                return -EINTR;
        int r = sd_event_run(s->event, usec);
        return r < 0 ? r : 0;
}

static int run_until(ObjectStore *s, const bool *done) {
        int r = 0;
        while (r == 0 && !*done)
                r = run_once(s, TURN_USEC);
        return r;
}

int object_store_s3_probe(const ConfigDestination *destination, const S3ProbeOptions *options,
                          const bool *done, char **ret_fault) {
        static const S3Options none;
        ObjectStore *s = calloc(1, sizeof *s);
        S3Probe *probe = NULL;
        int r = s ? connect_to(s, &(BucketOptions){ destination->bucket, &none, destination },
                               ret_fault)
                  : -ENOMEM;
        if (r == 0)
                r = s3_probe_new(&probe, s->client, options);
        if (r == 0)
                r = run_until(s, done);
        s3_probe_free(probe);
        object_store_free(s);
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

#define MAX_TRIES 4
#define GROW_BYTES OBJECT_PIECE_BYTES
enum { GET_CONTINUES = 100 }; /* beside OBJECT_E_* */

/* @return OBJECT_E_*, and the server's own words */
static int explain_answer(char **sentence, const S3Response *answer) {
        return set_error(sentence,
                         answer->verdict == S3_NOT_FOUND ? OBJECT_E_NOT_FOUND : OBJECT_E_FAILED,
                         "%s", answer->sentence ? answer->sentence : "the request failed");
}

/* ---- a bucket: what comes ---- */

static int on_data(const void *data, size_t n, void *userdata) {
        S3Get *g = userdata;
        ObjectHead *h = &g->head;
        if (n > h->max_bytes - h->n)
                return g->stopped = -EFBIG;
        if (n >= g->n_allocated - h->n) { /* one more for the NUL */
                size_t more = MIN(h->max_bytes + 1, MAX(2 * g->n_allocated, h->n + n + 1));
                char *grown = realloc(h->text, more);
                if (!grown)
                        return g->stopped = -ENOMEM;
                h->text = grown;
                g->n_allocated = more;
        }
        memcpy(h->text + h->n, data, n);
        h->n += n;
        h->text[h->n] = '\0';
        return 0;
}

#define CONTENT_RANGE_MAX 70 /* three numbers of 64 bits and what is between them */

typedef struct ContentRange {
        uint64_t first, last, total;
} ContentRange;

/* `bytes 0-99/1234` */
static bool parse_content_range(const char *text, ContentRange *ret) {
        static const char unit[] = "bytes ";
        if (!text || strlen(text) > CONTENT_RANGE_MAX || strncmp(text, unit, strlen(unit)) != 0)
                return false;
        const char *at = text + strlen(unit), *end = text + strlen(text);
        return parse_u64_prefix(&at, end, &ret->first) && *at++ == '-' &&
               parse_u64_prefix(&at, end, &ret->last) && *at++ == '/' &&
               parse_u64_prefix(&at, end, &ret->total) && at == end && ret->first <= ret->last &&
               ret->last < ret->total;
}

/* What came is where it was to begin, ends within what was requested, and is as long as the server
 * says. It may be less: a server need not give all of a range at once. */
static bool is_expected(const S3Get *g, const ContentRange *range) {
        return range->first == g->offset + g->n_before &&
               range->last - range->first < g->head.max_bytes - g->n_before &&
               range->last - range->first + 1 == g->head.n - g->n_before;
}

static _printf_(2, 3) int fail(S3Get *g, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *what = strbuf_vformat(fmt, ap);
        va_end(ap);
        return set_error(&g->head.error, OBJECT_E_FAILED, "'s3://%s/%s' %s",
                         s3_client_bucket(g->client), g->head.key, what ? what : "");
}

/* The answer is there, and fine as far as HTTP goes. @return 0, OBJECT_E_FAILED, GET_CONTINUES: the
 * object continues behind what has come */
static int check_range(S3Get *g, const S3Result *result) {
        ObjectHead *h = &g->head;
        ContentRange range;
        uint64_t total = h->n;
        const char *text = result->header(result, "content-range");
        if (result->status == 200 && g->offset + g->n_before > 0) {
                h->n = g->n_before;
                return fail(g, "was sent whole instead of a part: the server ignores ranges");
        }
        if (result->status == 206) {
                if (!parse_content_range(text, &range) || !is_expected(g, &range)) {
                        h->n = g->n_before;
                        return fail(g, "was sent in another range (%s) than requested",
                                    text ? text : "the server does not say which");
                }
                total = range.total;
        }
        if (g->object_bytes && total != g->object_bytes)
                return fail(g, "has %" PRIu64 " bytes, its manifest has %" PRIu64, total,
                            g->object_bytes);
        if (h->n < h->max_bytes && g->offset + h->n < total)
                return GET_CONTINUES;
        return h->n == h->max_bytes || g->may_be_short
                       ? 0
                       : fail(g, "ends after %" PRIu64 " bytes", g->offset + h->n);
}

static bool is_resumable(S3Verdict verdict) {
        return verdict == S3_RETRY || verdict == S3_UNREACHABLE || verdict == S3_CORRUPTED;
}

/* @return 0, OBJECT_E_*, -errno; GET_CONTINUES */
static int check_answer(S3Get *g, const S3Result *result) {
        const S3Response *answer = result->answer;
        bool can_continue = is_resumable(answer->verdict);
        if (g->stopped == -EFBIG)
                return fail(g, "was sent with more than the requested range");
        if (g->stopped < 0)
                return g->stopped;
        if (answer->verdict == S3_OK) {
                int r = check_range(g, result);
                if (r != GET_CONTINUES)
                        return r;
                can_continue = true;
        } else if (g->head.n == g->head.max_bytes) /* cut behind the last byte that was wanted */
                return 0;
        return can_continue && g->head.n > g->n_before ? GET_CONTINUES
                                                       : explain_answer(&g->head.error, answer);
}

static int send_get(S3Get *g);

static void on_get_done(const S3Result *result, void *userdata) {
        S3Get *g = userdata;
        g->call = NULL;
        int r = check_answer(g, result);
        if (r == GET_CONTINUES)
                r = send_get(g);
        g->head.outcome = r;
        g->done = r != 0 || !g->call;
}

/* ---- a bucket: requests ---- */

static int send_get(S3Get *g) {
        char range[64];
        AwsNameValue header = { "range", range };
        snprintf(range, sizeof range, "bytes=%" PRIu64 "-%" PRIu64, g->offset + g->head.n,
                 g->offset + g->head.max_bytes - 1);
        g->n_before = g->head.n;
        return s3_call_new(&g->call, g->client,
                           &(S3RequestOptions){ .operation = S3_GET_OBJECT,
                                                .key = g->head.key,
                                                .headers = &header,
                                                .n_headers = 1,
                                                .on_data = on_data,
                                                .max_tries = MAX_TRIES,
                                                .on_done = on_get_done,
                                                .userdata = g });
}

static int s3_get_start(S3Get *g, S3Client *client) {
        g->client = client;
        g->n_allocated = MIN(g->head.max_bytes, (size_t)GROW_BYTES) + 1;
        g->head.text = malloc(g->n_allocated);
        if (!g->head.text)
                return -ENOMEM;
        g->head.text[0] = '\0';
        return send_get(g);
}

static void s3_get_done(S3Get *g) {
        s3_call_cancel(g->call);
        object_head_done(&g->head);
        *g = (S3Get){ 0 };
}

#define HEADS_AT_ONCE 16

static int heads_run(ObjectStore *s, ObjectHead *heads, S3Get *gets, size_t n) {
        int r = 0;
        for (size_t i = 0, begun = 0; r == 0 && i < n; i++) {
                for (; r == 0 && begun < n && begun < i + HEADS_AT_ONCE; begun++) {
                        gets[begun] = (S3Get){ .head = heads[begun], .may_be_short = true };
                        r = s3_get_start(&gets[begun], s->client);
                }
                if (r == 0)
                        r = run_until(s, &gets[i].done);
                if (r == 0)
                        r = MIN(gets[i].head.outcome, 0);
                if (r < 0)
                        break;
                heads[i] = gets[i].head;
                gets[i].head = (ObjectHead){ 0 };
                if (heads[i].outcome != 0) {
                        free(heads[i].text);
                        heads[i].text = NULL;
                }
        }
        for (size_t k = 0; k < n; k++)
                s3_get_done(&gets[k]);
        return r;
}

static int s3_read_heads(ObjectStore *s, ObjectHead *heads, size_t n) {
        _cleanup_free_ S3Get *gets = calloc(MAX(n, (size_t)1), sizeof *gets);
        return gets ? heads_run(s, heads, gets, n) : -ENOMEM;
}

typedef struct Ask { /* one request without a large answer */
        ObjectStore *store;
        bool done;
        int outcome;
        uint64_t bytes;     /* of HEAD */
        S3ObjectList *list; /* of a page; NULL = HEAD */
} Ask;

static int handle_page(Ask *ask, const S3Result *result) {
        int r = s3_xml_object_list(result->body, result->body_bytes, ask->list);
        return r == -EINVAL ? set_error(&ask->store->error, OBJECT_E_FAILED,
                                        "the answer of '%s' to ListObjectsV2 is not S3's XML; is "
                                        "that an S3 server?",
                                        s3_client_location(ask->store->client)->host)
                            : r;
}

static int handle_head(Ask *ask, const S3Result *result) {
        const char *text = result->header(result, "content-length");
        return text && parse_u64(text, &ask->bytes) >= 0
                       ? 0
                       : set_error(&ask->store->error, OBJECT_E_FAILED,
                                   "the server does not report its size");
}

static void on_answer(const S3Result *result, void *userdata) {
        Ask *ask = userdata;
        ask->done = true;
        ask->outcome = result->answer->verdict != S3_OK
                               ? explain_answer(&ask->store->error, result->answer)
                       : ask->list ? handle_page(ask, result)
                                   : handle_head(ask, result);
}

static int request_and_wait(Ask *ask, S3RequestOptions *options) {
        S3Call *call;
        options->max_tries = MAX_TRIES;
        options->on_done = on_answer;
        options->userdata = ask;
        int r = s3_call_new(&call, ask->store->client, options);
        if (r == 0)
                r = run_until(ask->store, &ask->done);
        if (r < 0 && !ask->done)
                s3_call_cancel(call);
        return r < 0 ? r : ask->outcome;
}

static int s3_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes) {
        Ask ask = { .store = s };
        int r = request_and_wait(&ask,
                                 &(S3RequestOptions){ .operation = S3_HEAD_OBJECT, .key = key });
        if (r == 0)
                *ret_bytes = ask.bytes;
        return r;
}

#define PAGE_KEYS "1000" /* as many as S3 gives out at once */

/* @param token  of the page before; NULL */
static int request_page(ObjectStore *s, const ObjectListing *listing, const char *token,
                        S3ObjectList *ret) {
        const AwsNameValue queries[] = { { "list-type", "2" },
                                         { "max-keys", PAGE_KEYS },
                                         { "encoding-type", "url" },
                                         { "prefix", listing->prefix },
                                         { "continuation-token", token } };
        Ask ask = { .store = s, .list = ret };
        return request_and_wait(&ask,
                                &(S3RequestOptions){ .operation = S3_LIST_OBJECTS,
                                                     .queries = queries,
                                                     .n_queries = ELEMENTSOF(queries) - !token });
}

/* Keys come in order (S3 API: ListObjectsV2), so pages without a greater key are a list that
 * repeats itself; a few may be empty. */
#define IDLE_PAGES_MAX 100
#define KEYS_MAX 10000000U /* ten thousand requests */

typedef struct ListProgress {
        char *greatest_key;
        unsigned n_idle_pages;
        uint64_t n_keys;
} ListProgress;

/* @return 0, OBJECT_E_FAILED: this list does not end; -ENOMEM */
static int check_progress(ObjectStore *s, const S3ObjectList *page, ListProgress *p) {
        const char *greatest = p->greatest_key;
        for (size_t i = 0; i < page->n; i++)
                if (!greatest || strcmp(page->items[i].key, greatest) > 0)
                        greatest = page->items[i].key;
        p->n_keys += page->n;
        p->n_idle_pages = greatest == p->greatest_key ? p->n_idle_pages + 1 : 0;
        if (p->n_idle_pages >= IDLE_PAGES_MAX)
                return set_error(&s->error, OBJECT_E_FAILED,
                                 "the list of '%s' does not end: %u pages without a new key; is "
                                 "that an S3 server?",
                                 s3_client_location(s->client)->host, p->n_idle_pages);
        if (p->n_keys >= KEYS_MAX)
                return set_error(&s->error, OBJECT_E_FAILED,
                                 "there are more than %u objects; give a longer prefix", KEYS_MAX);
        if (greatest == p->greatest_key)
                return 0;
        char *copy = strdup(greatest);
        if (!copy)
                return -ENOMEM;
        free(p->greatest_key);
        p->greatest_key = copy;
        return 0;
}

static int list_pages(ObjectStore *s, const ObjectListing *listing, ListProgress *progress) {
        _cleanup_free_ char *token = NULL;
        bool goes_on = true;
        while (goes_on) {
                S3ObjectList page = { 0 };
                int r = request_page(s, listing, token, &page);
                for (size_t i = 0; r == 0 && i < page.n; i++)
                        r = listing->on_item(
                                &(ObjectItem){ .owner = OWNER_UNKNOWN,
                                               .key = page.items[i].key,
                                               .bytes = page.items[i].bytes,
                                               .modified_usec = page.items[i].last_modified_usec },
                                listing->userdata);
                goes_on = r == 0 && page.is_truncated;
                if (goes_on && (!page.next_token || (token && strcmp(token, page.next_token) == 0)))
                        r = set_error(
                                &s->error, OBJECT_E_FAILED,
                                "the server's list is truncated and has no continuation token");
                else if (goes_on)
                        r = check_progress(s, &page, progress);
                free(token);
                token = TAKE_PTR(page.next_token);
                s3_object_list_done(&page);
                if (r != 0)
                        return r;
        }
        return 0;
}

static int s3_list(ObjectStore *s, const ObjectListing *listing) {
        ListProgress progress = { 0 };
        int r = list_pages(s, listing, &progress);
        free(progress.greatest_key);
        return r;
}

/* ---- reading a range ---- */

#define N_SLOTS (OBJECT_PIECES_AT_ONCE + 2) /* a piece is always in the same slot */

typedef struct ObjectReader {
        ByteSource source;
        ObjectStore *store; /* borrowed */
        ObjectRange range;
        char *key;
        int fd;              /* of a directory's; -1 */
        S3Get gets[N_SLOTS]; /* without a client: none */
} ObjectReader;

/* @return 0 and the piece that is there or on its way */
static int start_piece(ObjectReader *r, uint64_t piece, S3Get **ret) {
        S3Get *g = &r->gets[piece % N_SLOTS];
        uint64_t at = piece * OBJECT_PIECE_BYTES;
        *ret = g;
        if (g->client && g->offset == r->range.offset + at)
                return 0;
        s3_get_done(g);
        *g = (S3Get){ .head = { .key = r->key,
                                .max_bytes = (size_t)MIN(OBJECT_PIECE_BYTES, r->range.bytes - at) },
                      .offset = r->range.offset + at,
                      .object_bytes = r->range.object_bytes };
        int e = s3_get_start(g, r->store->client);
        if (e < 0)
                s3_get_done(g);
        return e;
}

/* @return 0 and the piece's bytes, borrowed until the next call; -errno */
static int load(ObjectReader *r, uint64_t piece, const ObjectHead **ret) {
        S3Get *g, *ahead;
        uint64_t n = (r->range.bytes + OBJECT_PIECE_BYTES - 1) / OBJECT_PIECE_BYTES;
        int e = start_piece(r, piece, &g);
        for (uint64_t i = 1; e == 0 && i < OBJECT_PIECES_AT_ONCE && piece + i < n; i++)
                e = start_piece(r, piece + i, &ahead);
        if (e == 0 && !g->done)
                e = run_until(r->store, &g->done);
        else if (e == 0)
                e = run_once(r->store, 0); /* the others continue meanwhile */
        if (e < 0)
                return e;
        *ret = &g->head;
        return g->head.outcome > 0
                       ? set_error(&r->store->error, -EIO, "%s", g->head.error ? g->head.error : "")
                       : g->head.outcome;
}

static int s3_read_at(ObjectReader *r, char *to, size_t n, uint64_t at) {
        while (n > 0) {
                const ObjectHead *piece;
                int e = load(r, at / OBJECT_PIECE_BYTES, &piece);
                if (e < 0)
                        return e;
                size_t skip = (size_t)(at % OBJECT_PIECE_BYTES), now = MIN(n, piece->n - skip);
                memcpy(to, piece->text + skip, now);
                to += now;
                at += now;
                n -= now;
        }
        return 0;
}

static int dir_read_at(ObjectReader *r, void *data, size_t n, uint64_t offset) {
        if (cli_is_interrupted())
                return -EINTR;
        int e = fs_pread_all(r->fd, data, n, offset);
        return e == -ENODATA ? set_error(&r->store->error, e,
                                         "'%s' became shorter while it was read", r->key)
               : e < 0       ? set_error(&r->store->error, e, "cannot read '%s': %s", r->key,
                                         strerror(-e))
                             : 0;
}

static int read_at(ByteSource *source, void *data, size_t n, uint64_t offset) {
        ObjectReader *r = (ObjectReader *)source;
        if (offset < r->range.offset || offset - r->range.offset > r->range.bytes ||
            n > r->range.bytes - (offset - r->range.offset))
                return -EINVAL;
        return r->fd >= 0 ? dir_read_at(r, data, n, offset)
                          : s3_read_at(r, data, n, offset - r->range.offset);
}

ByteSource *object_reader_free(ByteSource *source) {
        ObjectReader *r = (ObjectReader *)source;
        if (!r)
                return NULL;
        for (size_t i = 0; i < N_SLOTS; i++)
                s3_get_done(&r->gets[i]);
        cleanup_closep(&r->fd);
        free(r->key);
        free(r);
        return NULL;
}

/* Opens the file of a directory's object, and makes sure that it is the one that is meant. */
static int dir_open(ObjectStore *s, const ObjectRange *range, int *ret, uint64_t *ret_bytes) {
        struct stat st;
        _cleanup_close_ int fd = open_file(s, range->key, &st);
        if (fd < 0)
                return explain_file_error(&s->error, "open", range->key, -fd);
        *ret_bytes = (uint64_t)st.st_size;
        if (range->object_bytes && *ret_bytes != range->object_bytes)
                return set_error(&s->error, OBJECT_E_FAILED,
                                 "'%s' has %" PRIu64 " bytes, its manifest has %" PRIu64,
                                 range->key, *ret_bytes, range->object_bytes);
        (void)posix_fadvise(fd, (off_t)range->offset, (off_t)range->bytes,
                            POSIX_FADV_SEQUENTIAL); /* a hint */
        *ret = TAKE_FD(fd);
        return 0;
}

int object_store_reader(ObjectStore *s, const ObjectRange *range, ByteSource **ret) {
        _cleanup_close_ int fd = -1;
        uint64_t bytes = range->object_bytes ? range->object_bytes : range->offset + range->bytes;
        int e = s->client ? 0 : dir_open(s, range, &fd, &bytes);
        if (e != 0)
                return e;
        ObjectReader *r = calloc(1, sizeof *r);
        char *key = strdup(range->key);
        if (!r || !key) {
                free(r);
                free(key);
                return -ENOMEM;
        }
        *r = (ObjectReader){ .source = { .bytes = bytes, .read_at = read_at },
                             .store = s,
                             .range = *range,
                             .key = key,
                             .fd = TAKE_FD(fd) };
        *ret = &r->source;
        return 0;
}

/* ---- either ---- */

int object_store_list(ObjectStore *s, const ObjectListing *listing) {
        return s->client ? s3_list(s, listing) : dir_list(s, listing);
}

int object_store_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes) {
        return s->client ? s3_stat(s, key, ret_bytes) : dir_stat(s, key, ret_bytes);
}

int object_store_read_heads(ObjectStore *s, ObjectHead *heads, size_t n) {
        for (size_t i = 0; i < n; i++)
                heads[i].owner = OWNER_UNKNOWN;
        return s->client ? s3_read_heads(s, heads, n) : dir_read_heads(s, heads, n);
}

/* The options come first, then the configured destination with that bucket, then the environment.
 * Nobody needs a configuration for a bucket: a default file that is missing, faulty or not readable
 * is ignored, which is reported unless the options say it all. */
static int open_bucket(ObjectStore *s, const Cli *cli, const ObjectUrl *url,
                       const S3Options *options) {
        _cleanup_free_ char *fault = NULL;
        _cleanup_(config_freep) Config *config = NULL;
        int code = load_config(cli, options, &config);
        if (code != CLI_YES)
                return code;
        int r = connect_to(s, &(BucketOptions){ url->bucket, options, destination_of(config, url) },
                           &fault);
        if (r == 0)
                return CLI_YES;
        cli_error("cannot request 's3://%s': %s", url->bucket, fault ? fault : strerror(-r));
        return r == -EINVAL ? CLI_USAGE : CLI_NO;
}

/* A mount whose server is away would hold this process where no signal reaches it. */
static int check_answers(const ObjectUrl *url) {
        int r = url->bucket ? 0 : guarded_check_path(url->key);
        if (r == -ETIMEDOUT)
                return cli_error("'%s' did not answer within 10 s; check its mount: the server may "
                                 "be away",
                                 url->key);
        if (r == -EINTR)
                return cli_error("interrupted");
        return r < 0 ? cli_error("cannot check '%s': %s", url->key, strerror(-r)) : CLI_YES;
}

int object_store_open(ObjectStore **ret, const Cli *cli, const ObjectUrl *url,
                      const S3Options *options) {
        int code = check_answers(url);
        if (code != CLI_YES)
                return code;
        _cleanup_(object_store_freep) ObjectStore *s = calloc(1, sizeof *s);
        if (s)
                s->cli = cli;
        if (s)
                s->url_prefix = url->bucket ? strbuf_format("s3://%s/", url->bucket) : strdup("");
        if (!s || !s->url_prefix)
                return cli_error("%s", strerror(ENOMEM));
        code = url->bucket ? open_bucket(s, cli, url, options) : CLI_YES;
        if (!url->bucket) {
                _cleanup_free_ char *root =
                        is_directory(url) ? strdup(url->key) : path_parent(url->key);
                if (!root || object_store_set_root(s, root) < 0)
                        return cli_error("%s", strerror(ENOMEM));
        }
        if (code == CLI_YES)
                *ret = TAKE_PTR(s);
        return code;
}

/* A bundle that its incident's directory has refused lies beside that, in
 * `<incident>.<instance-id>/<instance-id>/`. @return 0, also when it is not there either; -ENOMEM
 */
static int find_beside(ObjectStore *s, BundleNames *names) {
        _cleanup_free_ char *node = path_parent(names->stem),
                            *incident = node ? path_parent(node) : NULL,
                            *root = incident ? path_parent(incident) : NULL;
        uint64_t bytes;
        if (!root)
                return -ENOMEM;
        if (object_store_stat(s, names->manifest, &bytes) == 0 ||
            object_store_stat(s, names->object, &bytes) == 0)
                return 0;
        _cleanup_free_ char *stem = strbuf_format("%s.%s/%s/%s", incident, path_name(node),
                                                  path_name(node), path_name(names->stem));
        _cleanup_(bundle_names_done) BundleNames beside = { 0 };
        _cleanup_free_ char *before = strdup(s->root);
        int r = stem && before ? bundle_names_init(stem, &beside) : -ENOMEM;
        if (r == 0)
                r = object_store_set_root(s, root);
        if (r == 0 && object_store_stat(s, beside.manifest, &bytes) == 0) {
                bundle_names_done(names);
                *names = beside;
                beside = (BundleNames){ 0 };
                return 0;
        }
        return r < 0 ? r : object_store_set_root(s, before);
}

int object_store_open_bundle(ObjectStore **ret, const Cli *cli, char **argv,
                             const S3Options *options, BundleNames *ret_names) {
        const char *given = argv[optind];
        _cleanup_(object_url_done) ObjectUrl url = { 0 };
        int code = object_url_parse(argv[0], given, &url);
        if (code != CLI_YES)
                return code;
        code = check_answers(&url); /* before stat(2) */
        if (code != CLI_YES)
                return code;
        int r = is_directory(&url) ? -EINVAL : bundle_names_init(url.key, ret_names);
        if (r == -EINVAL)
                return cli_usage(argv[0],
                                 "'%s' is not a bundle; `neuron-collect ls '%s'` lists the bundles",
                                 given, given);
        if (r < 0)
                return cli_error("%s", strerror(-r));
        cli_catch_signals();
        code = object_store_open(ret, cli, &url, options);
        if (code == CLI_YES && !url.bucket && find_beside(*ret, ret_names) < 0)
                return cli_error("%s", strerror(ENOMEM));
        return code;
}
