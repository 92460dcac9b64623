#include "cli/archive/object_store.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/archive/bundle_name.h"
#include "cli/archive/object_store_private.h"
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
                r = s3_url_split(text, &u.bucket, &u.key);
                if (r == 0)
                        u.ends_in_slash = !*u.key || u.key[strlen(u.key) - 1] == '/';
                if (r == -EINVAL)
                        return cli_usage(command, "'%s' names no bucket; write s3://bucket/key",
                                         text);
        } else {
                const char *remedy = remedy_for(text);
                if (remedy)
                        return cli_usage(command, "'%s' is no URL; %s", text, remedy);
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
        return !url->bucket && bundle_file_of(url->key, NULL) == BUNDLE_NEITHER &&
               stat(url->key, &st) == 0 && S_ISDIR(st.st_mode);
}

int object_url_names(const char *command, const char *given, const ObjectUrl *url,
                     BundleNames *ret) {
        int r = is_directory(url) ? -EINVAL : bundle_names_make(url->key, ret);
        if (r == -EINVAL)
                return cli_usage(command,
                                 "'%s' names no bundle; `neuron-collect ls '%s'` tells which there "
                                 "are",
                                 given, given);
        if (r < 0) {
                cli_error("%s", strerror(-r));
                return CLI_NO;
        }
        return CLI_YES;
}

bool s3_options_take(S3Options *o, int option, const char *value) {
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

/* ---- the store ---- */

int object_store_open(ObjectStore **ret, const Cli *cli, const ObjectUrl *url,
                      const S3Options *options) {
        if (url->bucket)
                return object_store_s3_new(ret, cli, url, options);
        if (object_store_dir_new(ret) == 0)
                return CLI_YES;
        cli_error("%s", strerror(ENOMEM));
        return CLI_NO;
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

int object_store_say(const ObjectStore *s, int r) {
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

int object_store_list(ObjectStore *s, const ObjectListOrder *order) {
        return s->kind->list(s, order);
}

int object_store_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes) {
        return s->kind->stat(s, key, ret_bytes);
}

int object_store_read(ObjectStore *s, const char *key, size_t max_bytes, ObjectText *ret) {
        return s->kind->read(s, key, max_bytes, ret);
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
