/* Where a bucket is: host names, partitions, path or virtual-host style, and the URL of a key. Pure. */
#pragma once

#include <stdbool.h>

#include "lib/base/cleanup.h"

typedef struct S3PlaceOptions { /* borrowed */
        const char *bucket, *region;

        /* NULL or "" = AWS; else http(s)://host[:port][/base], IPv6 in brackets */
        const char *endpoint;

        /* auto | path | virtual. NULL or "" = auto: AWS virtual, unless the bucket's name has a dot (TLS) or cannot be a host's; others
         * path */
        const char *addressing;

        bool dualstack, fips; /* AWS only */
} S3PlaceOptions;

typedef struct S3Place { /* owned */
        char *scheme;    /* http | https */
        char *host;      /* as in the Host: header, with the port unless it is the scheme's own */
        char *base_path; /* raw; "" or `/bucket` or `/base/bucket`, goes before `/key` */
        char *region;    /* to sign with */
        bool is_aws;
} S3Place;

/** AWS hosts: s3.<region>.amazonaws.com (aws, aws-us-gov), .amazonaws.com.cn (aws-cn), s3.dualstack., s3-fips., s3-fips.dualstack.
 * Iso partitions too. @param ret_fault  a sentence, the caller's (may be NULL itself)
 * @return 0, -ENOMEM, -EINVAL (no bucket, endpoint no URL; dualstack or fips with an endpoint of one's own; …) */
int s3_place_make(S3Place *ret, const S3PlaceOptions *options, char **ret_fault);
void s3_place_done(S3Place *p);

/** The host of another AWS service in a region's partition: `sts.eu-west-1.amazonaws.com`. @return the caller's, NULL for lack of memory */
char *aws_service_host(const char *service, const char *region, bool dualstack, bool fips);

/** `aws`, `aws-cn`, `aws-us-gov` …: what the ARNs of a region begin with after `arn:`. @return static */
const char *aws_partition_name(const char *region);

/** The region in a host name of S3 (`b.s3.eu-west-1.amazonaws.com`, `s3-us-west-2.amazonaws.com`, `s3.amazonaws.com`), as redirects
 * tell it. @return whether it is one; *ret is at most 63 characters */
#define AWS_REGION_SIZE 64
bool aws_region_of_host(const char *host, char ret[static AWS_REGION_SIZE]);

/** Whether it can be one: 1 to 63 of `A-Za-z0-9-_` (stores of one's own have such as `RegionOne`). */
bool aws_region_is_sane(const char *region);

/** Splits `s3://bucket[/key]`. @return 0 and both (the caller's, key "" when there is none), -EINVAL, -ENOMEM */
int s3_url_split(const char *url, char **ret_bucket, char **ret_key);
