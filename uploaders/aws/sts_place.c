/* Where STS is. Pure. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "uploaders/aws/sts.h"
#include "uploaders/s3/s3_endpoint.h"

/* The regions whose requests went to sts.amazonaws.com before STS had regional hosts; later ones never did. */
static const char *const legacy_regions[] = {
        "ap-northeast-1", "ap-south-1",   "ap-southeast-1", "ap-southeast-2",
        "aws-global",     "ca-central-1", "eu-central-1",   "eu-north-1",
        "eu-west-1",      "eu-west-2",    "eu-west-3",      "sa-east-1",
        "us-east-1",      "us-east-2",    "us-west-1",      "us-west-2",
};

static bool is_legacy_region(const char *region) {
        for (size_t i = 0; i < ELEMENTSOF(legacy_regions); i++)
                if (strcmp(region, legacy_regions[i]) == 0)
                        return true;
        return false;
}

static int split_endpoint(const char *endpoint, StsPlace *p) {
        size_t n_scheme = strncasecmp(endpoint, "http://", 7) == 0    ? 4
                          : strncasecmp(endpoint, "https://", 8) == 0 ? 5
                                                                      : 0;
        if (n_scheme == 0 || strpbrk(endpoint, " \t\r\n@?#\\"))
                return -EINVAL;
        const char *host = endpoint + n_scheme + 3;
        size_t n_host = strcspn(host, "/");
        if (n_host == 0)
                return -EINVAL;
        const char *path = host + n_host;
        size_t n_path = strlen(path);

        p->scheme = strdup(n_scheme == 5 ? "https" : "http");
        p->host = strndup(host, n_host);
        if (asprintf(&p->path, "%s%s", path, n_path > 0 && path[n_path - 1] == '/' ? "" : "/") < 0)
                p->path = NULL;
        return 0;
}

int sts_place_make(StsPlace *ret, const StsPlaceOptions *options) {
        bool has_endpoint = options->endpoint && *options->endpoint;
        const char *region = options->region && *options->region ? options->region : "us-east-1";
        bool is_global = !has_endpoint && options->is_legacy && !options->dualstack &&
                         !options->fips && is_legacy_region(region);
        StsPlace p = { .region = strdup(is_global ? "us-east-1" : region) };
        int r = 0;

        if (has_endpoint)
                r = split_endpoint(options->endpoint, &p);
        else if (region[strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-")])
                r = -EINVAL; /* it becomes a part of the host's name */
        else {
                p.scheme = strdup("https");
                p.host = is_global ? strdup("sts.amazonaws.com")
                                   : aws_service_host("sts", region, options->dualstack,
                                                      options->fips);
                p.path = strdup("/");
        }
        if (r == 0 && (!p.scheme || !p.host || !p.path || !p.region))
                r = -ENOMEM;
        if (r < 0)
                sts_place_done(&p);
        else
                *ret = p;
        return r;
}

void sts_place_done(StsPlace *p) {
        free(p->scheme);
        free(p->host);
        free(p->path);
        free(p->region);
        *p = (StsPlace){ 0 };
}
