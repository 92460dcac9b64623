#include "uploaders/s3/s3_environment.h"

#include <stddef.h>

#include "uploaders/aws/credentials_env.h"

static const char *value_of(char *const *environment, const char *name) {
        const char *value = credentials_env_get(environment, name);
        return value ? value : "";
}

S3Environment s3_environment_read(char *const *environment) {
        S3Environment e = { .endpoint = "",
                            .ca_bundle = value_of(environment, "AWS_CA_BUNDLE"),
                            .dualstack = credentials_env_is_true(environment,
                                                                 "AWS_USE_DUALSTACK_ENDPOINT"),
                            .fips = credentials_env_is_true(environment, "AWS_USE_FIPS_ENDPOINT") };
        bool ignored = credentials_env_is_true(environment, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
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
