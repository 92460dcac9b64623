/* Partitions and regions of AWS, and the host names that follow from them. Pure. */
#pragma once

#include <stdbool.h>

/** @return region, or us-east-1 for NULL and "", as AWS' own clients */
static inline const char *aws_region_or_default(const char *region) {
        return region && region[0] ? region : "us-east-1";
}

/** Lower case letters, digits and dashes: can be a label of a host. */
bool aws_region_is_of_aws(const char *region);

/** `s3.dualstack.eu-west-1.amazonaws.com` and the like. @return the caller's, NULL for lack of
 * memory */
char *s3_aws_host(const char *region, bool dualstack, bool fips);

/** Whether it ends like a partition's hosts. */
bool s3_host_is_aws(const char *host);

/** The host of another AWS service in a region's partition: `sts.eu-west-1.amazonaws.com`. @return
 * the caller's, NULL for lack of memory */
char *aws_service_host(const char *service, const char *region, bool dualstack, bool fips);

/** `aws`, `aws-cn`, `aws-us-gov` …: what the ARNs of a region begin with after `arn:`. @return
 * static */
const char *aws_partition_name(const char *region);

#define AWS_REGION_SIZE 64

/** Whether it can be one: 1 to 63 of `A-Za-z0-9-_` (stores of one's own have such as
 * `RegionOne`). */
bool aws_region_is_sane(const char *region);
