/* AWS Security Token Service: keys for a role, by other keys (AssumeRole) or by a token of
 * Kubernetes (AssumeRoleWithWebIdentity).
 * @see AWS STS API Reference; AWS SDKs and Tools Reference Guide, "AWS STS Regional endpoints" */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "uploaders/aws/aws_sign.h"
#include "uploaders/aws/credentials_secret.h"

typedef struct StsEndpoint { /* owned */
        char *scheme;        /* http | https */
        char *host;          /* as in the Host: header */
        char *path;          /* "/" or the endpoint's base path with a slash at its end */
        char *region;        /* to sign with */
} StsEndpoint;

typedef struct Sts Sts;

Sts *sts_free(Sts *s); /* not from inside on_done */
DEFINE_CLEANUP(Sts, sts_free);

typedef struct StsRequest { /* copied, but for event, clock and place, which are borrowed */
        sd_event *event;
        Clock *clock;
        const StsEndpoint *place;
        const char *ca_file, *proxy; /* as in HttpPoolOptions */
        const char *role_arn, *session_name;
        const char *external_id;   /* NULL = none */
        unsigned duration_seconds; /* 0 = the service's default, an hour */
        const AwsKeys *keys;       /* AssumeRole, signed by these, or … */
        const char *token;         /* … AssumeRoleWithWebIdentity */
        const char *keys_origin;   /* where keys or token are from, for the sentence */
        void (*on_done)(const CredentialsSet *set, const char *error, void *userdata);
        void *userdata;
} StsRequest;

/** A clock that is wrong is noticed by the answer's Date, and the request made once
 * more; `expires_usec` is by our clock.
 * @param on_done once, never from inside; set NULL: error is a sentence
 * @return 0 and *ret, -ENOMEM, -EINVAL, -EOPNOTSUPP as of http_pool_new() */
int sts_assume_role(Sts **ret, const StsRequest *request);

typedef struct StsCredentials { /* of AssumeRole… ; owned; wiped by done */
        char *access_key, *secret_key, *token;
        uint64_t expires_usec;
} StsCredentials;
/** Reads the answer. Exported for the tests.
 * @return 0 and *ret, -EINVAL when it is something else or no XML, -ENOMEM */
int sts_xml_credentials(const char *text, size_t n, StsCredentials *ret);
void sts_credentials_done(StsCredentials *c);
