/* Which of the chain's sources is used, and how: a base that gives keys, and perhaps a role that
 * is assumed with them. Decided from environment and files alone, without any request. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "uploaders/aws/credentials_files.h"
#include "uploaders/aws/credentials_secret.h"
#include "uploaders/aws/sts.h"

typedef enum CredentialsBase {
        CREDENTIALS_BASE_KEYS, /* they are known */
        CREDENTIALS_BASE_WEB_IDENTITY,
        CREDENTIALS_BASE_PROCESS,
        CREDENTIALS_BASE_CONTAINER,
        CREDENTIALS_BASE_IMDS,
} CredentialsBase;

typedef struct CredentialsRole { /* borrowed from environment and files */
        const char *role_arn, *session_name;
        const char *external_id;   /* NULL = none */
        unsigned duration_seconds; /* 0 = the service's default */
} CredentialsRole;

typedef struct CredentialsPlan {
        CredentialsFiles *files; /* owned; what is borrowed below lies in them or the environment */
        CredentialsBase base;
        char *origin; /* of the base, for people; IMDS: NULL, the role's name is not known yet */
        CredentialsSet keys;    /* KEYS */
        const char *token_file; /* WEB_IDENTITY: borrowed */
        char *container_url;    /* CONTAINER */
        const char *command;    /* PROCESS: borrowed; not for people, who knows what is in it */
        /* WEB_IDENTITY: by the token; else by the keys of the base; no role_arn = none */
        CredentialsRole role;
        StsEndpoint sts; /* when there is a role or a web identity */
        /* IMDS because nothing else was found: what was read before, for people; else NULL */
        char *searched;
} CredentialsPlan;

typedef struct CredentialsPlanOptions { /* borrowed until credentials_plan_done() */
        char *const *environment;
        const char
                *home; /* for ~/.aws; NULL or "" = HOME, or the user database's where it is unset */
        /* NULL or "" = AWS_PROFILE, `default`; else keys and web identity of the environment are
         * ignored */
        const char *profile;
        const char *region; /* for STS when nothing else names one */
} CredentialsPlanOptions;

/** @return 0 and *ret; -EINVAL and *ret_error, a sentence (the caller's); -ENOMEM */
int credentials_plan_new(CredentialsPlan *ret, const CredentialsPlanOptions *options,
                         char **ret_error);
void credentials_plan_done(CredentialsPlan *p);

/** Reads AWS_REGION, AWS_DEFAULT_REGION or the profile's region. @return 0 and *ret (the caller's,
 *   NULL = none is set); -ENOMEM */
int credentials_plan_region(const CredentialsPlanOptions *options, char **ret);

/* Where STS is. Exported for the tests. */

typedef struct StsEndpointOptions { /* borrowed; NULL or "" = unknown */
        const char *endpoint;       /* http(s)://host[:port][/base]: taken as it is */
        const char *region;         /* NULL = us-east-1 */
        bool dualstack, fips;
} StsEndpointOptions;

/** @return 0, -ENOMEM, -EINVAL when the endpoint is no URL or the region no name of one */
int sts_endpoint_init(StsEndpoint *ret, const StsEndpointOptions *options);
void sts_endpoint_done(StsEndpoint *p);

/* The container endpoint of ECS and of EKS Pod Identity. Exported for the tests.
 * @see AWS SDKs and Tools Reference Guide, "Container credential provider" */

/** Reads AWS_CONTAINER_CREDENTIALS_RELATIVE_URI (on 169.254.170.2) or
 * AWS_CONTAINER_CREDENTIALS_FULL_URI: https anywhere; http only to this machine (127.0.0.0/8, ::1,
 * localhost) or the addresses of ECS and EKS (169.254.170.2, 169.254.170.23, fd00:ec2::23): the
 * token and the keys would be for everybody to read.
 * @return 0 and *ret (the caller's); -ENOENT neither is set; -EINVAL and *ret_error, a sentence
 *   (the caller's); -ENOMEM */
int credentials_container_url(char *const *environment, char **ret, char **ret_error);
