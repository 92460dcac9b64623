/* Where STS is. Pure. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/http/url.h"
#include "uploaders/aws/sts.h"
#include "uploaders/s3/s3_endpoint.h"

static int split_endpoint(const char *endpoint, StsPlace *p) {
        _cleanup_(url_done) Url u = { 0 };

        int r = url_parse(&u, endpoint);
        if (r < 0)
                return r;
        if (!url_is_http(&u) || u.has_query || !u.path)
                return -EINVAL;
        size_t n = strlen(u.path);
        if (asprintf(&p->path, "%s%s", u.path, u.path[n - 1] == '/' ? "" : "/") < 0)
                p->path = NULL;
        p->scheme = TAKE_PTR(u.scheme);
        p->host = TAKE_PTR(u.authority);
        return 0;
}

int sts_place_make(StsPlace *ret, const StsPlaceOptions *options) {
        bool has_endpoint = options->endpoint && *options->endpoint;
        const char *region = options->region && *options->region ? options->region : "us-east-1";
        StsPlace p = { .region = strdup(region) };
        int r = 0;

        if (has_endpoint)
                r = split_endpoint(options->endpoint, &p);
        else if (region[strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-")])
                r = -EINVAL; /* it becomes a part of the host's name */
        else {
                p.scheme = strdup("https");
                p.host = aws_service_host("sts", region, options->dualstack, options->fips);
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
