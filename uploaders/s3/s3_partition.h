/* What s3_endpoint.c asks of s3_partition.c, beyond what s3_endpoint.h offers to all. Pure. */
#pragma once

#include <stdbool.h>

/** @return region, or us-east-1 for NULL and "", as AWS' own clients */
const char *aws_region_or_default(const char *region);

/** Lower case letters, digits and dashes: can be a label of a host. */
bool aws_region_is_of_aws(const char *region);

/** `s3.dualstack.eu-west-1.amazonaws.com` and the like. @return the caller's, NULL for lack of memory */
char *s3_aws_host(const char *region, bool dualstack, bool fips);

/** Whether it ends like a partition's hosts. */
bool s3_host_is_aws(const char *host);
