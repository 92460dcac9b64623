/* Parses how objects are named on a command line: a URL of S3 or a path; a mistyped URL is refused
 * with the right form. Also makes the names of a bundle's two objects, and releases what is known
 * of an object. Reading is left to object_store.c. */
#include "cli/archive/object.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "uploaders/s3/s3_endpoint.h"

static bool begins(const char *text, const char *with) {
        return strncasecmp(text, with, strlen(with)) == 0;
}

/* @return the remedy for a mistyped URL; NULL: it is a path */
static const char *remedy_for(const char *text) {
        if (begins(text, "s3:") || begins(text, "s3//"))
                return "write s3://bucket/key, all in lower case and with two slashes";
        if (begins(text, "arn:"))
                return "write s3://bucket/key instead of the ARN";
        if (begins(text, "file:"))
                return "write the path alone";
        if (begins(text, "http:") || begins(text, "https:"))
                return "write s3://bucket/key, and the server as --endpoint-url";
        return strstr(text, "://") ? "write s3://bucket/key or a path" : NULL;
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

bool object_url_is_directory(const ObjectUrl *url) {
        struct stat st;
        if (url->ends_in_slash)
                return true;
        /* a name with a bundle's suffix is meant as a file; reading it reports a directory */
        return !url->bucket && bundle_file_kind(url->key, NULL) == BUNDLE_NEITHER &&
               stat(url->key, &st) == 0 && S_ISDIR(st.st_mode);
}

void bundle_names_done(BundleNames *n) {
        free(n->stem);
        free(n->object);
        free(n->manifest);
        *n = (BundleNames){ 0 };
}

int bundle_names_init(const char *given, BundleNames *ret) {
        size_t n;
        (void)bundle_file_kind(given, &n); /* object, manifest or stem: n is the stem's length */
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

/* ---- errors and heads ---- */

int object_error_set(char **error, int outcome, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        free(*error);
        *error = strbuf_vformat(fmt, ap);
        va_end(ap);
        return outcome;
}

void object_head_done(ObjectHead *h) {
        free(h->text);
        free(h->error);
        *h = (ObjectHead){ 0 };
}
