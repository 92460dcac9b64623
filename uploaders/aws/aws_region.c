/* The partitions of AWS by region, and the host names and ARN prefixes that follow from them. Which
 * region counts is decided by the callers. Pure. */
#include "uploaders/aws/aws_region.h"

#include <ctype.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"

typedef struct Partition {
        const char *name, *region_prefix;
        const char *suffix;     /* of host names */
        const char *dual_stack; /* of services with IPv6; S3 has a label for that instead */
} Partition;

/* @see botocore, data/partitions.json; the last one has all other regions */
/* clang-format off */
static const Partition partitions[] = {
        { "aws-cn",     "cn-",      "amazonaws.com.cn",   "api.amazonwebservices.com.cn" },
        { "aws-us-gov", "us-gov-",  "amazonaws.com",      "api.aws" },
        { "aws-iso",    "us-iso-",  "c2s.ic.gov",         "api.aws.ic.gov" },
        { "aws-iso-b",  "us-isob-", "sc2s.sgov.gov",      "api.aws.scloud" },
        { "aws-iso-e",  "eu-isoe-", "cloud.adc-e.uk",     "api.cloud-aws.adc-e.uk" },
        { "aws-iso-f",  "us-isof-", "csp.hci.ic.gov",     "api.aws.hci.ic.gov" },
        { "aws-eusc",   "eusc-",    "amazonaws.eu",       "api.amazonwebservices.eu" },
        { "aws",        "",         "amazonaws.com",      "api.aws" },
};
/* clang-format on */

static const Partition *partition_of(const char *region) {
        const Partition *p = partitions;

        while (strncmp(region, p->region_prefix, strlen(p->region_prefix)) != 0)
                p++; /* ends at the last one, whose prefix is empty */
        return p;
}

const char *aws_partition_name(const char *region) {
        return partition_of(region ? region : "")->name;
}

static bool is_lower_or_digit(char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

bool aws_region_is_sane(const char *region) {
        size_t n = strlen(region);

        for (size_t i = 0; i < n; i++)
                if (!isalnum((unsigned char)region[i]) && region[i] != '-' && region[i] != '_')
                        return false;
        return n > 0 && n < AWS_REGION_SIZE;
}

bool aws_region_is_of_aws(const char *region) {
        for (const char *p = region; *p; p++)
                if (!is_lower_or_digit(*p) && *p != '-')
                        return false;
        return region[0] != '-' && aws_region_is_sane(region);
}

char *s3_aws_host(const char *region, bool dualstack, bool fips) {
        return strbuf_format("s3%s%s.%s.%s", fips ? "-fips" : "", dualstack ? ".dualstack" : "",
                             region, partition_of(region)->suffix);
}

char *aws_service_host(const char *service, const char *region, bool dualstack, bool fips) {
        region = aws_region_or_default(region);
        const Partition *p = partition_of(region);
        if (strcmp(p->name, "aws-us-gov") == 0 && !dualstack)
                /* sts.us-gov-west-1.amazonaws.com is the validated one, and has no other name */
                fips = false;
        return strbuf_format("%s%s.%s.%s", service, fips ? "-fips" : "", region,
                             dualstack ? p->dual_stack : p->suffix);
}

bool s3_host_is_aws(const char *host) {
        size_t n = strlen(host);

        for (size_t i = 0; i < ELEMENTSOF(partitions); i++) {
                size_t n_suffix = strlen(partitions[i].suffix);

                if (n > n_suffix + 1 && host[n - n_suffix - 1] == '.' &&
                    strcmp(host + n - n_suffix, partitions[i].suffix) == 0)
                        return true;
        }
        return false;
}
