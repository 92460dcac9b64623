/* A profile: keys, what makes some, or one role that is assumed with the keys of another profile. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/parse.h"
#include "uploaders/aws/credentials_plan_private.h"

#define MIN_DURATION_SECONDS 900
#define MAX_DURATION_SECONDS 43200

static const char *setting(const Planner *p, const char *profile, const char *key) {
        return credentials_files_get(p->files, profile, key);
}

/* Both keys from one file: never a key of the one with the secret or the token of the other. */
static int use_keys_of(Planner *p, const CredentialsFile *f, const char *profile) {
        AwsKeys keys = {
                .access_key = aws_profile_get(&f->parsed, profile, "aws_access_key_id"),
                .secret_key = aws_profile_get(&f->parsed, profile, "aws_secret_access_key"),
                .token = aws_profile_get(&f->parsed, profile, "aws_session_token"),
        };

        if (!keys.access_key && !keys.secret_key)
                return PLAN_E_NOTHING;
        if (!keys.access_key || !keys.secret_key)
                return planner_fault(p, credentials_say("profile '%s' in %s has %s but no %s: set "
                                                        "both or neither",
                                                        profile, f->path,
                                                        keys.access_key ? "aws_access_key_id"
                                                                        : "aws_secret_access_key",
                                                        keys.access_key ? "aws_secret_access_key"
                                                                        : "aws_access_key_id"));
        if (!keys.token) /* its name of old */
                keys.token = aws_profile_get(&f->parsed, profile, "aws_security_token");
        return planner_use_keys(p, &keys, 0,
                                credentials_say("profile '%s' in %s", profile, f->path));
}

static int use_process(Planner *p, const char *profile) {
        p->plan->command = setting(p, profile, "credential_process");
        if (!p->plan->command)
                return PLAN_E_NOTHING;
        return planner_use(p, CREDENTIALS_BASE_PROCESS,
                           credentials_say("credential_process of profile '%s'", profile));
}

/* Single sign-on needs a browser now and then. What other tools leave in the same profile (keys, credential_process) comes first. */
static int refuse_sso(Planner *p, const char *profile) {
        static const char *const keys[] = { "sso_session", "sso_start_url", "sso_account_id" };

        for (size_t i = 0; i < ELEMENTSOF(keys); i++)
                if (setting(p, profile, keys[i]))
                        return planner_unsupported(
                                p, profile, keys[i],
                                "single sign-on needs a browser: use a role of the node, or in "
                                "another profile 'credential_process = aws configure "
                                "export-credentials --format process --profile' with the name of "
                                "this one");
        return PLAN_E_NOTHING;
}

/* Keys, or what makes some, of this profile alone. The order is the AWS CLI's. */
static int use_own(Planner *p, const char *profile) {
        int r = use_keys_of(p, &p->files->credentials, profile);

        if (r == PLAN_E_NOTHING)
                r = use_process(p, profile);
        if (r == PLAN_E_NOTHING)
                r = use_keys_of(p, &p->files->config, profile);
        if (r == PLAN_E_NOTHING)
                r = refuse_sso(p, profile);
        return r;
}

static int read_role(Planner *p, const char *profile) {
        const char *duration = setting(p, profile, "duration_seconds");
        const char *name = setting(p, profile, "role_session_name");
        uint64_t seconds = 0;

        if (duration &&
            parse_u64_range(duration, MIN_DURATION_SECONDS, MAX_DURATION_SECONDS, &seconds) < 0)
                return planner_fault(p, credentials_say("profile '%s': duration_seconds '%s' is "
                                                        "not between %d and %d",
                                                        profile, duration, MIN_DURATION_SECONDS,
                                                        MAX_DURATION_SECONDS));
        p->plan->role = (CredentialsRole){
                .role_arn = setting(p, profile, "role_arn"),
                .session_name = name ? name : CREDENTIALS_SESSION_NAME,
                .external_id = setting(p, profile, "external_id"),
                .duration_seconds = (unsigned)seconds,
        };
        return 0;
}

static int use_web_identity(Planner *p, const char *profile) {
        p->plan->token_file = setting(p, profile, "web_identity_token_file");
        int r = read_role(p, profile);
        if (r < 0)
                return r;
        if (!p->plan->role.role_arn)
                return planner_fault(p, credentials_say("profile '%s' has web_identity_token_file "
                                                        "but no role_arn: set both",
                                                        profile));
        return planner_use(p, CREDENTIALS_BASE_WEB_IDENTITY,
                           credentials_say("role %s by web identity (profile '%s')",
                                           p->plan->role.role_arn, profile));
}

static int use_source(Planner *p, const char *profile, const char *source) {
        int r;

        if (strcmp(source, "Environment") == 0) {
                r = plan_environment(p);
                if (r == PLAN_E_NOTHING)
                        return planner_fault(p, credentials_say("profile '%s' wants the keys of "
                                                                "the environment "
                                                                "(credential_source), which has "
                                                                "no AWS_ACCESS_KEY_ID",
                                                                profile));
                return r;
        }
        if (strcmp(source, "EcsContainer") == 0) {
                r = plan_container(p);
                if (r == PLAN_E_NOTHING)
                        return planner_fault(
                                p, credentials_say("profile '%s' wants the keys of the container "
                                                   "(credential_source), but neither "
                                                   "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI nor "
                                                   "AWS_CONTAINER_CREDENTIALS_FULL_URI is set",
                                                   profile));
                return r;
        }
        if (strcmp(source, "Ec2InstanceMetadata") == 0) {
                p->plan->base = CREDENTIALS_BASE_IMDS;
                return 0;
        }
        return planner_unsupported(p, profile, "credential_source",
                                   "must be Environment, Ec2InstanceMetadata or EcsContainer");
}

static bool has_keys(const Planner *p, const char *profile) {
        return setting(p, profile, "aws_access_key_id") ||
               setting(p, profile, "aws_secret_access_key");
}

static bool exists(const Planner *p, const char *profile) {
        return aws_profile_has(&p->files->credentials.parsed, profile) ||
               aws_profile_has(&p->files->config.parsed, profile);
}

static int report_missing(Planner *p, const char *profile, const char *asked_by) {
        const char *of = asked_by ? ", the source_profile of '" : "",
                   *by = asked_by ? asked_by : "";
        const char *end = asked_by ? "'" : "";

        if (aws_profile_is_misspelt(&p->files->config.parsed, profile))
                return planner_fault(p, credentials_say("profile '%s'%s%s%s is written [%s] in %s, "
                                                        "where it must be [profile %s]",
                                                        profile, of, by, end, profile,
                                                        p->files->config.path, profile));
        _cleanup_free_ char *credentials =
                planner_tell_file(&p->files->credentials, "~/.aws/credentials");
        _cleanup_free_ char *config = planner_tell_file(&p->files->config, "~/.aws/config");
        if (!credentials || !config)
                return -ENOMEM;
        return planner_fault(
                p, credentials_say("there is no profile '%s'%s%s%s: looked for [%s] in "
                                   "%s and for [profile %s] in %s",
                                   profile, of, by, end, profile, credentials, profile, config));
}

/* The source of a role has keys or makes some; its own role, if it has one besides, is not assumed. */
static int use_source_profile(Planner *p, const char *profile, const char *source) {
        if (!exists(p, source))
                return report_missing(p, source, profile);
        if (!has_keys(p, source) &&
            (setting(p, source, "role_arn") || setting(p, source, "web_identity_token_file")))
                return planner_unsupported(p, profile, "source_profile",
                                           "the source assumes a role itself, and chains of roles "
                                           "are not supported: name a profile with keys or a "
                                           "credential_process");
        int r = use_own(p, source);
        if (r == PLAN_E_NOTHING)
                return planner_fault(p, credentials_say("profile '%s', the source_profile of '%s', "
                                                        "has neither keys nor a "
                                                        "credential_process",
                                                        source, profile));
        return r;
}

static int use_role(Planner *p, const char *profile) {
        const char *source_profile = setting(p, profile, "source_profile");
        const char *credential_source = setting(p, profile, "credential_source");

        if (setting(p, profile, "mfa_serial"))
                return planner_unsupported(p, profile, "mfa_serial",
                                           "nobody is here to type an MFA code: use a role "
                                           "without, or a credential_process");
        if (!source_profile == !credential_source)
                return planner_fault(p,
                                     credentials_say("profile '%s' has role_arn and %s: set one "
                                                     "of them, it tells whose keys ask for the "
                                                     "role",
                                                     profile,
                                                     source_profile ? "both source_profile and "
                                                                      "credential_source"
                                                                    : "neither source_profile nor "
                                                                      "credential_source"));
        int r = read_role(p, profile);
        if (r < 0)
                return r;
        return credential_source ? use_source(p, profile, credential_source)
                                 : use_source_profile(p, profile, source_profile);
}

int plan_profile(Planner *p, bool is_requested) {
        const char *profile = p->profile;

        if (!exists(p, profile)) {
                /* Nobody misses a `default` that nobody named. */
                bool is_optional = !is_requested && strcmp(profile, "default") == 0 &&
                                   !aws_profile_is_misspelt(&p->files->config.parsed, profile);
                return is_optional ? PLAN_E_NOTHING : report_missing(p, profile, NULL);
        }
        if (setting(p, profile, "web_identity_token_file"))
                return use_web_identity(p, profile);
        if (setting(p, profile, "role_arn"))
                return use_role(p, profile);
        return use_own(p, profile);
}
