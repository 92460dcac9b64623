/* Parses endpoints, bucket names and regions, and decides where a bucket is: host, path or
 * virtual-host style, and the URL of a key. What cannot be used is refused with a sentence. The
 * host names of AWS are in uploaders/aws/aws_region.c. */
#include "uploaders/s3/s3_endpoint.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/base/strbuf.h"
#include "lib/http/url.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/aws_region.h"
#include "uploaders/aws/credentials.h"

enum {
        BUCKET_MIN = 3, /* on AWS */
        BUCKET_DNS_MAX = 63,
        BUCKET_MAX = 255, /* before 2018 in us-east-1, and in other stores */
};

static bool is_lower_or_digit(char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* ── faults ── */

static int __attribute__((format(printf, 2, 3))) refuse(char **ret_error, const char *fmt, ...) {
        va_list args;

        if (!ret_error)
                return -EINVAL;
        va_start(args, fmt);
        *ret_error = strbuf_vformat(fmt, args);
        va_end(args);
        return *ret_error ? -EINVAL : -ENOMEM;
}

/* ── the endpoint ── */

typedef struct Endpoint { /* owned */
        Url url;
        bool is_aws;
} Endpoint;

static void endpoint_done(Endpoint *e) {
        url_done(&e->url);
}

static int parse_endpoint(Endpoint *e, const char *text, char **ret_error) {
        int r = url_parse(&e->url, text);
        if (r == -EINVAL && strchr(text, '@')) /* not repeated: it may hold a password */
                return refuse(ret_error, "the endpoint has a user name before '@'; keys belong "
                                         "into the credentials, not into the URL");
        if (strncasecmp(text, "https://", 8) != 0 && strncasecmp(text, "http://", 7) != 0)
                return refuse(ret_error,
                              "endpoint '%s' does not begin with http:// or https://; write it "
                              "like https://s3.example.com:9000",
                              text);
        if (r == -EINVAL)
                return refuse(ret_error,
                              "endpoint '%s' has no valid host and port; write it like "
                              "https://s3.example.com:9000 or http://[fd00::1]:9000",
                              text);
        if (r < 0)
                return r;
        if (e->url.has_query)
                return refuse(ret_error,
                              "endpoint '%s' has a query or a fragment; end it before '?' or '#'",
                              text);
        if (!e->url.path)
                return refuse(ret_error, "endpoint '%s' has a malformed %%XX in its path", text);
        for (size_t n = strlen(e->url.path); n > 0 && e->url.path[n - 1] == '/';)
                e->url.path[--n] = '\0';
        return 0;
}

/* ── the bucket ── */

/* Can be a label, or labels, of a host name. @see Amazon S3 User Guide, "General purpose bucket
 * naming rules" */
static bool is_dns_bucket(const char *bucket) {
        size_t n = strlen(bucket);
        struct in_addr address;

        if (n < BUCKET_MIN || n > BUCKET_DNS_MAX || inet_pton(AF_INET, bucket, &address) == 1)
                return false;
        for (size_t i = 0; i < n; i++) {
                char next = i + 1 < n ? bucket[i + 1] : '.', last = i > 0 ? bucket[i - 1] : '.';

                if (is_lower_or_digit(bucket[i]))
                        continue;
                if (bucket[i] == '.' && i > 0 && i + 1 < n && next != '.' && last != '.')
                        continue;
                if (bucket[i] != '-' || next == '.' || last == '.')
                        return false;
        }
        return true;
}

static int check_bucket(const char *bucket, bool is_aws, char **ret_error) {
        size_t n = bucket ? strlen(bucket) : 0;

        if (n == 0)
                return refuse(ret_error, "no bucket is named; set bucket");
        if (strncmp(bucket, "arn:", 4) == 0)
                return refuse(ret_error,
                              "bucket '%s' is an ARN; use the bucket's name, or the alias of the "
                              "access point (it ends in -s3alias)",
                              bucket);
        if (is_aws && n > 6 && strcmp(bucket + n - 6, "--x-s3") == 0)
                return refuse(ret_error,
                              "bucket '%s' is a directory bucket (S3 Express), which requires its "
                              "own sessions; use a general purpose bucket",
                              bucket);
        for (const char *p = bucket; *p; p++)
                if (!isalnum((unsigned char)*p) && !strchr("-._", *p))
                        return refuse(ret_error,
                                      "bucket '%s' has characters that no bucket has; a name has "
                                      "letters, digits, '-', '.' and '_'",
                                      bucket);
        if (n > BUCKET_MAX || (is_aws && n < BUCKET_MIN) || strcmp(bucket, ".") == 0 ||
            strcmp(bucket, "..") == 0)
                return refuse(ret_error, "invalid bucket name '%s'; it has 3 to 63 characters",
                              bucket);
        return 0;
}

static int choose_addressing(const S3LocationOptions *o, const Endpoint *e, bool *ret_virtual,
                             char **ret_error) {
        const char *a = o->addressing && o->addressing[0] ? o->addressing : "auto";
        bool is_tls = strcmp(e->url.scheme, "https") == 0, has_dot = strchr(o->bucket, '.') != NULL;

        if (strcmp(a, "path") == 0 || strcmp(a, "auto") == 0) {
                /* A certificate's * stands for one label, so a bucket with a dot has no valid name
                 * over TLS. */
                *ret_virtual = strcmp(a, "auto") == 0 && e->is_aws && !e->url.is_address &&
                               is_dns_bucket(o->bucket) && !(is_tls && has_dot);
                return 0;
        }
        if (strcmp(a, "virtual") != 0)
                return refuse(ret_error, "addressing '%s' is unknown; use auto, path or virtual",
                              a);
        if (e->url.is_address)
                return refuse(ret_error,
                              "addressing is virtual, but '%s' is an address and has no "
                              "subdomains; set addressing to path, or name the host",
                              e->url.host);
        if (!is_dns_bucket(o->bucket))
                return refuse(ret_error,
                              "addressing is virtual, but bucket '%s' cannot be part of a host "
                              "name; set addressing to path",
                              o->bucket);
        *ret_virtual = true;
        return 0;
}

/* ── the place ── */

static int aws_endpoint(Endpoint *e, const S3LocationOptions *o, const char *region,
                        char **ret_error) {
        if (!aws_region_is_of_aws(region))
                return refuse(ret_error,
                              "region '%s' is none of AWS; write it like eu-west-1, or set "
                              "endpoint for another store",
                              region);
        if (o->fips && strcmp(aws_partition_name(region), "aws-cn") == 0)
                return refuse(ret_error,
                              "there are no FIPS endpoints in China ('%s'); switch FIPS off",
                              region);
        e->url.scheme = strdup("https");
        e->url.path = strdup("");
        e->url.authority = s3_aws_host(region, o->dualstack, o->fips);
        return e->url.scheme && e->url.path && e->url.authority ? 0 : -ENOMEM;
}

static int custom_endpoint(Endpoint *e, const S3LocationOptions *o, const char *region,
                           char **ret_error) {
        if (o->dualstack || o->fips)
                return refuse(ret_error,
                              "%s is for the host names of AWS, but endpoint is '%s'; delete one "
                              "of the two",
                              o->fips ? "FIPS" : "dual-stack", o->endpoint);
        if (!aws_region_is_sane(region))
                return refuse(ret_error,
                              "region '%s' has characters that no region has; most stores accept "
                              "us-east-1",
                              region);
        return parse_endpoint(e, o->endpoint, ret_error);
}

static int fill_location(S3Location *place, const S3LocationOptions *o, const Endpoint *e,
                         bool is_virtual) {
        const char *bucket = o->bucket, *none = "";

        place->host = strbuf_format("%s%s%s", is_virtual ? bucket : none, is_virtual ? "." : none,
                                    e->url.authority);
        place->base_path = strbuf_format("%s%s%s", e->url.path, is_virtual ? none : "/",
                                         is_virtual ? none : bucket);
        return place->host && place->base_path ? 0 : -ENOMEM;
}

int s3_location_init(S3Location *ret, const S3LocationOptions *options, char **ret_error) {
        _cleanup_(endpoint_done) Endpoint e = { 0 };
        _cleanup_(s3_location_done) S3Location place = { 0 };
        bool has_own = options->endpoint && options->endpoint[0], is_virtual = false;
        const char *region = aws_region_or_default(options->region);

        if (ret_error)
                *ret_error = NULL;
        int r = has_own ? custom_endpoint(&e, options, region, ret_error)
                        : aws_endpoint(&e, options, region, ret_error);
        if (r < 0)
                return r;
        place.is_aws = e.is_aws = !has_own || s3_host_is_aws(e.url.host);
        r = check_bucket(options->bucket, place.is_aws, ret_error);
        if (r == 0)
                r = choose_addressing(options, &e, &is_virtual, ret_error);
        if (r == 0)
                r = fill_location(&place, options, &e, is_virtual);
        if (r < 0)
                return r;
        place.region = strdup(region);
        if (!place.region)
                return -ENOMEM;
        place.scheme = TAKE_PTR(e.url.scheme);
        *ret = place;
        place = (S3Location){ 0 };
        return 0;
}

void s3_location_done(S3Location *p) {
        free(p->scheme);
        free(p->host);
        free(p->base_path);
        free(p->region);
        *p = (S3Location){ 0 };
}

int s3_url_parse(const char *url, char **ret_bucket, char **ret_key) {
        const char *rest = url + 5, *slash;
        char *bucket, *key;

        if (strncmp(url, "s3://", 5) != 0)
                return -EINVAL;
        slash = rest + strcspn(rest, "/");
        if (slash == rest)
                return -EINVAL;
        bucket = strndup(rest, (size_t)(slash - rest));
        key = strdup(*slash ? slash + 1 : "");
        if (!bucket || !key) {
                free(bucket);
                free(key);
                return -ENOMEM;
        }
        *ret_bucket = bucket;
        *ret_key = key;
        return 0;
}

static const char *value_of(char *const *environment, const char *name) {
        const char *value = aws_environment_get(environment, name);
        return value ? value : "";
}

S3Environment s3_environment_read(char *const *environment) {
        S3Environment e = {
                .endpoint = "",
                .ca_bundle = value_of(environment, "AWS_CA_BUNDLE"),
                .dualstack = aws_environment_is_true(environment, "AWS_USE_DUALSTACK_ENDPOINT"),
                .fips = aws_environment_is_true(environment, "AWS_USE_FIPS_ENDPOINT"),
                .omits_checksums =
                        strcasecmp(value_of(environment, "AWS_REQUEST_CHECKSUM_CALCULATION"),
                                   "when_required") == 0
        };
        bool ignored = aws_environment_is_true(environment, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
        if (!ignored)
                e.endpoint = value_of(environment, "AWS_ENDPOINT_URL_S3");
        if (!ignored && !e.endpoint[0])
                e.endpoint = value_of(environment, "AWS_ENDPOINT_URL");
        return s3_environment_resolve(&e, NULL, NULL);
}

S3Environment s3_environment_resolve(const S3Environment *environment, const char *endpoint,
                                     const char *ca_file) {
        S3Environment e = *environment;
        if (endpoint && *endpoint)
                e.endpoint = endpoint;
        if (ca_file && *ca_file)
                e.ca_bundle = ca_file;
        if (e.endpoint[0])
                e.dualstack = e.fips = false;
        return e;
}
