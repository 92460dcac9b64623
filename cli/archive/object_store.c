/* A bucket or a directory as one store: decides which of them a URL means, and by which options and
 * which configured destination it is opened; finds a bundle in it and reads its manifest.
 * object_bucket.c and object_dir.c do the reading. */
#include "cli/archive/object_store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/archive/object_bucket.h"
#include "cli/archive/object_dir.h"
#include "cli/archive/object_reader.h"
#include "cli/common/cli.h"
#include "cli/common/guarded.h"
#include "config/config.h"
#include "config/keys.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"
#include "lib/neuron/bundle_name.h"

struct ObjectStore {
        char *url_prefix; /* `s3://bucket/`, "" */
        const Cli *cli;   /* borrowed */
        char *error;
        ObjectBucket *bucket; /* NULL = a directory */
        ObjectDir dir;
};

ObjectStore *object_store_free(ObjectStore *s) {
        if (!s)
                return NULL;
        object_bucket_free(s->bucket);
        object_dir_done(&s->dir);
        free(s->url_prefix);
        free(s->error);
        free(s);
        return NULL;
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
                r = object_error_set(&s->error, manifest->outcome, "%s",
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

/* ---- reading ---- */

int object_store_list(ObjectStore *s, const ObjectListing *listing) {
        return s->bucket ? object_bucket_list(s->bucket, listing, &s->error)
                         : object_dir_list(&s->dir, listing, &s->error);
}

int object_store_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes) {
        return s->bucket ? object_bucket_stat(s->bucket, key, ret_bytes, &s->error)
                         : object_dir_stat(&s->dir, key, ret_bytes, &s->error);
}

int object_store_read_heads(ObjectStore *s, ObjectHead *heads, size_t n) {
        for (size_t i = 0; i < n; i++)
                heads[i].owner = OWNER_UNKNOWN;
        return s->bucket ? object_bucket_read_heads(s->bucket, heads, n)
                         : object_dir_read_heads(&s->dir, heads, n);
}

int object_store_reader(ObjectStore *s, const ObjectRange *range, ByteSource **ret) {
        return object_reader_new(ret, s->bucket, &s->dir, range, &s->error);
}

int object_store_set_root(ObjectStore *s, const char *directory) {
        return object_dir_set_root(&s->dir, directory);
}

/* ---- opening ---- */

static const ConfigDestination not_configured;

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
        int r = object_bucket_open(
                &s->bucket, &(BucketOptions){ url->bucket, options, destination_of(config, url) },
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
                        object_url_is_directory(url) ? strdup(url->key) : path_parent(url->key);
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
        _cleanup_free_ char *before = strdup(s->dir.root);
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
        int r = object_url_is_directory(&url) ? -EINVAL : bundle_names_init(url.key, ret_names);
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
