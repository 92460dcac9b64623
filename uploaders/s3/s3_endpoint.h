/* Where a bucket is: host names, partitions, path or virtual-host style, and the URL of a key.
 * Pure. */
#pragma once

#include <stdbool.h>

#include "lib/base/cleanup.h"
#include "uploaders/aws/aws_region.h"

typedef struct S3LocationOptions { /* borrowed */
        const char *bucket, *region;

        /* NULL or "" = AWS; else http(s)://host[:port][/base], IPv6 in brackets */
        const char *endpoint;

        /* auto | path | virtual. NULL or "" = auto: AWS virtual, unless the bucket's name has a
         * dot (TLS) or cannot be a host's; others path */
        const char *addressing;

        bool dualstack, fips; /* AWS only */
} S3LocationOptions;

typedef struct S3Location { /* owned */
        char *scheme;       /* http | https */
        char *host;      /* as in the Host: header, with the port unless it is the scheme's own */
        char *base_path; /* raw; "" or `/bucket` or `/base/bucket`, goes before `/key` */
        char *region;    /* to sign with */
        bool is_aws;
} S3Location;

/** AWS hosts: s3.<region>.amazonaws.com (aws, aws-us-gov), .amazonaws.com.cn (aws-cn),
 * s3.dualstack., s3-fips., s3-fips.dualstack. Iso partitions too. @param ret_error a sentence, the
 * caller's (may be NULL itself)
 * @return 0, -ENOMEM, -EINVAL (no bucket, endpoint no URL; dualstack or fips with an endpoint of
 *   one's own; …) */
int s3_location_init(S3Location *ret, const S3LocationOptions *options, char **ret_error);
void s3_location_done(S3Location *p);

/** Splits `s3://bucket[/key]`. @return 0 and both (the caller's, key "" when there is none),
 * -EINVAL, -ENOMEM */
int s3_url_parse(const char *url, char **ret_bucket, char **ret_key);

/* What the environment variables of the AWS SDKs say about where S3 is. */

typedef struct S3Environment { /* borrowed from the environment */
        /* AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; "" when there is none or
         * AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true */
        const char *endpoint;
        const char *ca_bundle; /* AWS_CA_BUNDLE; "" = none */
        bool omits_checksums;  /* AWS_REQUEST_CHECKSUM_CALCULATION is when_required */
        bool dualstack,
                /* AWS_USE_DUALSTACK_ENDPOINT, AWS_USE_FIPS_ENDPOINT; false where there is an
                 * endpoint */
                fips;
} S3Environment;

/** @param environment NAME=VALUE list, NULL-terminated
 * @see AWS SDKs and Tools Reference Guide, "Service-specific endpoints", "Dual-stack and FIPS
 *   endpoints" */
S3Environment s3_environment_read(char *const *environment);

/** What counts beside what was configured or given as an option, which come first. An endpoint of
 * one's own has no dual-stack and FIPS names, whoever named it.
 * @param endpoint, ca_file NULL and "" = not configured; borrowed by the answer, as *environment
 *   is */
S3Environment s3_environment_resolve(const S3Environment *environment, const char *endpoint,
                                     const char *ca_file);
