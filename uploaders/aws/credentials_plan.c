/* The chain: each link looks whether it is the one. */
#include "uploaders/aws/credentials_plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/http/url.h"
#include "uploaders/aws/credentials_container.h"
#include "uploaders/aws/credentials_env.h"
#include "uploaders/aws/credentials_plan_private.h"
#include "uploaders/s3/s3_time.h"

int planner_fault(Planner *p, char *text) {
        p->fault = text;
        return text ? -EINVAL : -ENOMEM;
}

int planner_unsupported(Planner *p, const char *profile, const char *key, const char *what) {
        const CredentialsFile *f = &p->files->credentials;
        unsigned line = aws_profile_line(&f->parsed, profile, key);

        if (line == 0) {
                f = &p->files->config;
                line = aws_profile_line(&f->parsed, profile, key);
        }
        return planner_fault(p, credentials_say("%s:%u: profile '%s', %s: %s", f->path, line,
                                                profile, key, what));
}

int planner_use(Planner *p, CredentialsBase base, char *origin) {
        p->plan->base = base;
        p->plan->origin = origin;
        return origin ? 0 : -ENOMEM;
}

int planner_use_keys(Planner *p, const AwsKeys *keys, uint64_t expires_usec, char *origin) {
        int r = planner_use(p, CREDENTIALS_BASE_KEYS, origin);

        if (r == 0)
                r = credentials_set_make(&p->plan->keys, keys, expires_usec);
        if (r == -EINVAL)
                return planner_fault(p, credentials_say("the keys of %s have characters that no "
                                                        "key has, such as blanks: copy them again",
                                                        origin));
        return r;
}

int plan_environment(Planner *p) {
        const char *expiration = credentials_env_get(p->environment, "AWS_CREDENTIAL_EXPIRATION");
        AwsKeys keys = {
                .access_key = credentials_env_get(p->environment, "AWS_ACCESS_KEY_ID"),
                .secret_key = credentials_env_get(p->environment, "AWS_SECRET_ACCESS_KEY"),
                .token = credentials_env_get(p->environment, "AWS_SESSION_TOKEN"),
        };
        uint64_t expires_usec = 0;

        if (!keys.access_key && !keys.secret_key)
                return PLAN_E_NOTHING;
        if (!keys.access_key)
                return planner_fault(p, credentials_say("the environment has AWS_SECRET_ACCESS_KEY "
                                                        "but no AWS_ACCESS_KEY_ID: set both or "
                                                        "neither"));
        if (!keys.secret_key)
                return planner_fault(p, credentials_say("the environment has AWS_ACCESS_KEY_ID but "
                                                        "no AWS_SECRET_ACCESS_KEY: set both or "
                                                        "neither"));
        if (expiration && s3_time_parse(expiration, &expires_usec) < 0)
                return planner_fault(p, credentials_say("AWS_CREDENTIAL_EXPIRATION: '%s' is no "
                                                        "time such as 2026-05-27T05:21:35Z",
                                                        expiration));
        return planner_use_keys(p, &keys, expires_usec,
                                credentials_say("environment (AWS_ACCESS_KEY_ID)"));
}

static int plan_web_identity(Planner *p) {
        const char *token_file = credentials_env_get(p->environment, "AWS_WEB_IDENTITY_TOKEN_FILE");
        const char *role_arn = credentials_env_get(p->environment, "AWS_ROLE_ARN");
        const char *name = credentials_env_get(p->environment, "AWS_ROLE_SESSION_NAME");

        if (!token_file)
                return PLAN_E_NOTHING;
        if (!role_arn)
                return planner_fault(p, credentials_say("the environment has "
                                                        "AWS_WEB_IDENTITY_TOKEN_FILE but no "
                                                        "AWS_ROLE_ARN: set both or neither (EKS "
                                                        "sets them for a service account with "
                                                        "an eks.amazonaws.com/role-arn)"));
        p->plan->role = (CredentialsRole){
                .role_arn = role_arn,
                .session_name = name ? name : CREDENTIALS_SESSION_NAME,
        };
        p->plan->token_file = token_file;
        return planner_use(p, CREDENTIALS_BASE_WEB_IDENTITY,
                           credentials_say("role %s by web identity", role_arn));
}

int plan_container(Planner *p) {
        char *url = NULL, *text = NULL;

        int r = credentials_container_url(p->environment, &url, &text);
        if (r == -ENOENT)
                return PLAN_E_NOTHING;
        if (r == -EINVAL)
                return planner_fault(p, text);
        if (r < 0)
                return r;
        /* Scheme and host only: on ECS the path is what tells one task's credentials from another's. */
        _cleanup_(url_done) Url u = { 0 };
        r = url_parse(&u, url);
        free(url);
        if (r < 0)
                return r;
        return planner_use(p, CREDENTIALS_BASE_CONTAINER,
                           credentials_say("container endpoint %s://%s", u.scheme, u.authority));
}

static const char *why_unread(int error) {
        switch (error) {
        case -ENOENT:
                return "no such file";
        case -EBADF: /* a directory, say */
                return "not a regular file";
        case -EFBIG:
                return "larger than 1 MiB";
        default:
                return strerror(-error);
        }
}

char *planner_tell_file(const CredentialsFile *f, const char *usual) {
        if (!f->path)
                return credentials_say("%s (there is no home directory)", usual);
        if (f->error < 0)
                return credentials_say("%s (%s)", f->path, why_unread(f->error));
        if (f->parsed.fault)
                return credentials_say("%s (line %u: %s)", f->path, f->parsed.fault_line,
                                       f->parsed.fault);
        return credentials_say("%s", f->path);
}

static int plan_imds(Planner *p, bool was_asked_for) {
        _cleanup_free_ char *credentials =
                planner_tell_file(&p->files->credentials, "~/.aws/credentials");
        _cleanup_free_ char *config = planner_tell_file(&p->files->config, "~/.aws/config");

        if (!credentials || !config)
                return -ENOMEM;
        p->plan->base = CREDENTIALS_BASE_IMDS;
        p->plan->looked_at = credentials_say("%sprofile '%s' in %s and %s, the container endpoint "
                                             "(AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, …_FULL_URI)",
                                             was_asked_for ? ""
                                                           : "the environment (AWS_ACCESS_KEY_ID, "
                                                             "AWS_WEB_IDENTITY_TOKEN_FILE), ",
                                             p->profile, credentials, config);
        return p->plan->looked_at ? 0 : -ENOMEM;
}

static int plan_sts(Planner *p, const char *fallback_region) {
        const char *endpoint = credentials_env_get(p->environment, "AWS_ENDPOINT_URL_STS");
        const char *region = credentials_files_region(p->files, p->environment, p->profile);

        if (!endpoint)
                endpoint = credentials_env_get(p->environment, "AWS_ENDPOINT_URL");
        if (!endpoint && credentials_files_get(p->files, p->profile, "services"))
                return planner_unsupported(p, p->profile, "services",
                                           "endpoints of a [services] section are not supported: "
                                           "set AWS_ENDPOINT_URL_STS, or endpoint_url in the "
                                           "profile");
        if (!endpoint)
                endpoint = credentials_files_get(p->files, p->profile, "endpoint_url");
        if (credentials_env_is_true(p->environment, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"))
                endpoint = NULL;
        if (!region)
                region = fallback_region;
        int r = sts_place_make(
                &p->plan->sts,
                &(StsPlaceOptions){
                        .endpoint = endpoint,
                        .region = region,
                        .dualstack = credentials_env_is_true(p->environment,
                                                             "AWS_USE_DUALSTACK_ENDPOINT"),
                        .fips = credentials_env_is_true(p->environment, "AWS_USE_FIPS_ENDPOINT"),
                });
        if (r != -EINVAL)
                return r;
        if (endpoint)
                return planner_fault(p, credentials_say("'%s' is no URL of STS: check "
                                                        "AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL "
                                                        "and the profile's endpoint_url",
                                                        endpoint));
        return planner_fault(
                p, credentials_say("'%s' is no name of a region: check AWS_REGION", region));
}

static int plan_chain(Planner *p, bool was_asked_for, const char *region) {
        int r = PLAN_E_NOTHING;

        if (!was_asked_for)
                r = plan_environment(p);
        if (r == PLAN_E_NOTHING && !was_asked_for)
                r = plan_web_identity(p);
        if (r == PLAN_E_NOTHING)
                r = plan_profile(p, was_asked_for);
        if (r == PLAN_E_NOTHING)
                r = plan_container(p);
        if (r == PLAN_E_NOTHING)
                r = plan_imds(p, was_asked_for);
        if (r == 0 && p->plan->role.role_arn)
                r = plan_sts(p, region);
        return r;
}

int credentials_plan_make(CredentialsPlan *ret, const CredentialsPlanOptions *options,
                          char **ret_fault) {
        CredentialsPlan plan = { 0 };
        Planner p = {
                .plan = &plan,
                .files = options->files,
                .environment = options->environment,
                .profile = credentials_files_profile(options->environment, options->profile),
        };

        int r = plan_chain(&p, options->profile && *options->profile, options->region);
        if (r < 0) {
                credentials_plan_done(&plan);
                if (r == -EINVAL)
                        *ret_fault = TAKE_PTR(p.fault);
                free(p.fault);
                return r;
        }
        *ret = plan;
        return 0;
}

void credentials_plan_done(CredentialsPlan *p) {
        credentials_set_done(&p->keys);
        sts_place_done(&p->sts);
        free(p->origin);
        free(p->looked_at);
        *p = (CredentialsPlan){ 0 };
}
