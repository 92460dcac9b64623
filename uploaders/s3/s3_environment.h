/* What the AWS SDKs' environment variables say about where S3 is. Pure. */
#pragma once

#include <stdbool.h>

typedef struct S3Environment { /* borrowed from the environment */
        const char *
                endpoint; /* AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; "" when there is none or AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true */
        const char *ca_bundle; /* AWS_CA_BUNDLE; "" = none */
        bool dualstack,
                fips; /* AWS_USE_DUALSTACK_ENDPOINT, AWS_USE_FIPS_ENDPOINT; false where there is an endpoint */
} S3Environment;

/** @param environment  NAME=VALUE list, NULL-terminated
 * @see AWS SDKs and Tools Reference Guide, "Service-specific endpoints", "Dual-stack and FIPS endpoints" */
S3Environment s3_environment_read(char *const *environment);

/** What counts beside what was configured or given as an option, which come first. An endpoint of one's own has no dual-stack and
 * FIPS names, whoever named it.
 * @param endpoint, ca_file  NULL and "" = not configured; borrowed by the answer, as *environment is */
S3Environment s3_environment_resolve(const S3Environment *environment, const char *endpoint,
                                     const char *ca_file);
