/* The chain of sources, in the order of AWS's SDKs: the environment, a web identity, the profile in
 * the shared files, the container's endpoint, the instance. Each link decides from the environment
 * and the shared files (credentials_files.c) whether it applies; the first one that does is the
 * plan, or a sentence says why it cannot be used. A profile may take its keys from another profile
 * or another link, and a role to be assumed with them.
 *
 * Nothing is asked over the network here: credentials_fetch.c carries the plan out. */
#include "uploaders/aws/credentials_plan.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/http/url.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/aws_parse.h"
#include "uploaders/aws/aws_profile.h"
#include "uploaders/aws/aws_region.h"
#include "uploaders/aws/credentials_secret.h"

#define CREDENTIALS_SESSION_NAME "neuron-collectd"
enum { PLAN_E_NOTHING = 1 }; /* this link of the chain does not apply */

typedef struct Planner {
        CredentialsPlan *plan;
        const CredentialsFiles *files;
        char *const *environment;
        const char *profile; /* the one that the chain reads */
        char *fault;         /* owned */
} Planner;

#define RELATIVE_HOST "http://169.254.170.2"
static const char *const trusted_hosts[] = { "localhost", "169.254.170.2", "169.254.170.23" };

/* @param u of http. Names other than localhost are not resolved: the answer could change before
 *   the request. */
static bool is_trusted_host(const Url *u) {
        char inner[INET6_ADDRSTRLEN];
        struct in6_addr v6, pod_identity;
        struct in_addr v4;
        size_t n = strlen(u->host);

        for (size_t i = 0; i < ELEMENTSOF(trusted_hosts); i++)
                if (strcmp(u->host, trusted_hosts[i]) == 0)
                        return true;
        if (inet_pton(AF_INET, u->host, &v4) == 1)
                return ntohl(v4.s_addr) >> 24 == 127;
        if (u->host[0] != '[' || n - 2 >= sizeof inner)
                return false;
        *(char *)mempcpy(inner, u->host + 1, n - 2) = '\0';
        if (inet_pton(AF_INET6, inner, &v6) != 1 ||
            inet_pton(AF_INET6, "fd00:ec2::23", &pod_identity) != 1)
                return false;
        return IN6_IS_ADDR_LOOPBACK(&v6) || memcmp(&v6, &pod_identity, sizeof v6) == 0;
}

static char *check_full(const char *text) {
        _cleanup_(url_done) Url u = { 0 };

        if (url_parse(&u, text) < 0 || !url_is_http(&u))
                return format_sentence(
                        "AWS_CONTAINER_CREDENTIALS_FULL_URI is not an http or https URL");
        if (strcmp(u.scheme, "https") == 0 || is_trusted_host(&u))
                return NULL;
        return format_sentence("AWS_CONTAINER_CREDENTIALS_FULL_URI names the host '%s' by http: "
                               "only this machine (127.0.0.1, [::1], localhost), 169.254.170.2, "
                               "169.254.170.23 and [fd00:ec2::23] are trusted with that; use https",
                               u.host);
}

int credentials_container_url(char *const *environment, char **ret, char **ret_error) {
        const char *relative =
                aws_environment_get(environment, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
        const char *full = aws_environment_get(environment, "AWS_CONTAINER_CREDENTIALS_FULL_URI");

        if (relative) {
                if (relative[0] != '/' || strpbrk(relative, " \t\r\n\\#")) {
                        *ret_error = format_sentence("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is "
                                                     "not a path: it must begin with '/'");
                        return *ret_error ? -EINVAL : -ENOMEM;
                }
                return asprintf(ret, RELATIVE_HOST "%s", relative) < 0 ? -ENOMEM : 0;
        }
        if (!full)
                return -ENOENT;
        *ret_error = check_full(full);
        if (*ret_error)
                return -EINVAL;
        *ret = strdup(full);
        return *ret ? 0 : -ENOMEM;
}

static const char *setting(const Planner *p, const char *profile, const char *key) {
        return credentials_files_get(p->files, profile, key);
}

static int planner_fail(Planner *p, char *text) {
        p->fault = text;
        return text ? -EINVAL : -ENOMEM;
}

#define planner_failf(p, ...) planner_fail(p, format_sentence(__VA_ARGS__))
static int planner_refuse(Planner *p, const char *profile, const char *key, const char *what) {
        const CredentialsFile *f = &p->files->credentials;
        unsigned line = aws_profile_line(&f->parsed, profile, key);

        if (line == 0) {
                f = &p->files->config;
                line = aws_profile_line(&f->parsed, profile, key);
        }
        return planner_failf(p, "%s:%u: profile '%s', %s: %s", f->path, line, profile, key, what);
}

static int planner_use(Planner *p, CredentialsBase base, char *origin) {
        p->plan->base = base;
        p->plan->origin = origin;
        return origin ? 0 : -ENOMEM;
}

static int planner_use_keys(Planner *p, const AwsKeys *keys, uint64_t expires_usec, char *origin) {
        int r = planner_use(p, CREDENTIALS_BASE_KEYS, origin);

        if (r == 0)
                r = credentials_set_init(&p->plan->keys, keys, expires_usec);
        if (r == -EINVAL)
                return planner_failf(p,
                                     "the keys of %s have characters that no key has, such as "
                                     "blanks: copy them again",
                                     origin);
        return r;
}

static int plan_environment(Planner *p) {
        const char *expiration = aws_environment_get(p->environment, "AWS_CREDENTIAL_EXPIRATION");
        AwsKeys keys = {
                .access_key = aws_environment_get(p->environment, "AWS_ACCESS_KEY_ID"),
                .secret_key = aws_environment_get(p->environment, "AWS_SECRET_ACCESS_KEY"),
                .token = aws_environment_get(p->environment, "AWS_SESSION_TOKEN"),
        };
        uint64_t expires_usec = 0;

        if (!keys.access_key && !keys.secret_key)
                return PLAN_E_NOTHING;
        if (!keys.access_key)
                return planner_failf(p, "the environment has AWS_SECRET_ACCESS_KEY but no "
                                        "AWS_ACCESS_KEY_ID: set both or neither");
        if (!keys.secret_key)
                return planner_failf(p, "the environment has AWS_ACCESS_KEY_ID but no "
                                        "AWS_SECRET_ACCESS_KEY: set both or neither");
        if (expiration && aws_time_parse(expiration, &expires_usec) < 0)
                return planner_failf(p,
                                     "AWS_CREDENTIAL_EXPIRATION: '%s' is not a time such as "
                                     "2026-05-27T05:21:35Z",
                                     expiration);
        return planner_use_keys(p, &keys, expires_usec,
                                format_sentence("environment (AWS_ACCESS_KEY_ID)"));
}

static int plan_web_identity(Planner *p) {
        const char *token_file = aws_environment_get(p->environment, "AWS_WEB_IDENTITY_TOKEN_FILE");
        const char *role_arn = aws_environment_get(p->environment, "AWS_ROLE_ARN");
        const char *name = aws_environment_get(p->environment, "AWS_ROLE_SESSION_NAME");

        if (!token_file)
                return PLAN_E_NOTHING;
        if (!role_arn)
                return planner_failf(p, "the environment has AWS_WEB_IDENTITY_TOKEN_FILE but no "
                                        "AWS_ROLE_ARN: set both or neither (EKS sets them for a "
                                        "service account with an eks.amazonaws.com/role-arn)");
        p->plan->role = (CredentialsRole){
                .role_arn = role_arn,
                .session_name = name ? name : CREDENTIALS_SESSION_NAME,
        };
        p->plan->token_file = token_file;
        return planner_use(p, CREDENTIALS_BASE_WEB_IDENTITY,
                           format_sentence("role %s by web identity", role_arn));
}

static int plan_container(Planner *p) {
        char *text = NULL;

        int r = credentials_container_url(p->environment, &p->plan->container_url, &text);
        if (r == -ENOENT)
                return PLAN_E_NOTHING;
        if (r == -EINVAL)
                return planner_fail(p, text);
        if (r < 0)
                return r;
        /* Scheme and host only: on ECS the path is what distinguishes one task's credentials from
         * another's. */
        _cleanup_(url_done) Url u = { 0 };
        r = url_parse(&u, p->plan->container_url);
        if (r < 0)
                return r;
        return planner_use(p, CREDENTIALS_BASE_CONTAINER,
                           format_sentence("container endpoint %s://%s", u.scheme, u.authority));
}

static const char *why_unread(int error) {
        switch (error) {
        case -ENOENT:
                return "no such file";
        case -EBADF: /* not a regular file */
                return "not a regular file";
        case -EFBIG:
                return "larger than 1 MiB";
        default:
                return strerror(-error);
        }
}

static char *planner_describe_file(const CredentialsFile *f, const char *usual) {
        if (!f->path)
                return format_sentence("%s (there is no home directory)", usual);
        if (f->error < 0)
                return format_sentence("%s (%s)", f->path, why_unread(f->error));
        if (f->parsed.fault)
                return format_sentence("%s (line %u: %s)", f->path, f->parsed.error_line,
                                       f->parsed.fault);
        return format_sentence("%s", f->path);
}

static int plan_imds(Planner *p, bool is_requested) {
        _cleanup_free_ char *credentials =
                planner_describe_file(&p->files->credentials, "~/.aws/credentials");
        _cleanup_free_ char *config = planner_describe_file(&p->files->config, "~/.aws/config");

        if (!credentials || !config)
                return -ENOMEM;
        p->plan->base = CREDENTIALS_BASE_IMDS;
        p->plan->searched = format_sentence(
                "%sprofile '%s' in %s and %s, the container endpoint "
                "(AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, …_FULL_URI)",
                is_requested ? ""
                             : "the environment (AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE), ",
                p->profile, credentials, config);
        return p->plan->searched ? 0 : -ENOMEM;
}

static int split_endpoint(const char *endpoint, StsEndpoint *p) {
        _cleanup_(url_done) Url u = { 0 };

        int r = url_parse(&u, endpoint);
        if (r < 0)
                return r;
        if (!url_is_http(&u) || u.has_query || !u.path)
                return -EINVAL;
        size_t n = strlen(u.path);
        p->path = strbuf_format("%s%s", u.path, u.path[n - 1] == '/' ? "" : "/");
        p->scheme = TAKE_PTR(u.scheme);
        p->host = TAKE_PTR(u.authority);
        return 0;
}

int sts_endpoint_init(StsEndpoint *ret, const StsEndpointOptions *options) {
        bool has_endpoint = options->endpoint && *options->endpoint;
        const char *region = options->region && *options->region ? options->region : "us-east-1";
        StsEndpoint p = { .region = strdup(region) };
        int r = 0;

        if (has_endpoint)
                r = split_endpoint(options->endpoint, &p);
        else if (region[strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-")])
                r = -EINVAL; /* it becomes a part of the host's name */
        else {
                p.scheme = strdup("https");
                p.host = aws_service_host("sts", region, options->dualstack, options->fips);
                p.path = strdup("/");
        }
        if (r == 0 && (!p.scheme || !p.host || !p.path || !p.region))
                r = -ENOMEM;
        if (r < 0)
                sts_endpoint_done(&p);
        else
                *ret = p;
        return r;
}

void sts_endpoint_done(StsEndpoint *p) {
        free(p->scheme);
        free(p->host);
        free(p->path);
        free(p->region);
        *p = (StsEndpoint){ 0 };
}

static int plan_sts(Planner *p, const char *fallback_region) {
        const char *endpoint = aws_environment_get(p->environment, "AWS_ENDPOINT_URL_STS");
        const char *region = credentials_files_region(p->files, p->environment, p->profile);

        if (!endpoint)
                endpoint = aws_environment_get(p->environment, "AWS_ENDPOINT_URL");
        if (!endpoint && credentials_files_get(p->files, p->profile, "services"))
                return planner_refuse(p, p->profile, "services",
                                      "endpoints of a [services] section are not supported: set "
                                      "AWS_ENDPOINT_URL_STS, or endpoint_url in the profile");
        if (!endpoint)
                endpoint = credentials_files_get(p->files, p->profile, "endpoint_url");
        if (aws_environment_is_true(p->environment, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"))
                endpoint = NULL;
        if (!region)
                region = fallback_region;
        int r = sts_endpoint_init(
                &p->plan->sts,
                &(StsEndpointOptions){
                        .endpoint = endpoint,
                        .region = region,
                        .dualstack = aws_environment_is_true(p->environment,
                                                             "AWS_USE_DUALSTACK_ENDPOINT"),
                        .fips = aws_environment_is_true(p->environment, "AWS_USE_FIPS_ENDPOINT"),
                });
        if (r != -EINVAL)
                return r;
        if (endpoint)
                return planner_failf(p,
                                     "invalid STS endpoint '%s': check AWS_ENDPOINT_URL_STS, "
                                     "AWS_ENDPOINT_URL and the profile's endpoint_url",
                                     endpoint);
        return planner_failf(p, "invalid region '%s': check AWS_REGION", region);
}

/* A profile: keys, what provides them, or one role that is assumed with the keys of another
 * profile. */

#define MIN_DURATION_SECONDS 900
#define MAX_DURATION_SECONDS 43200
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
                return planner_failf(
                        p, "profile '%s' in %s has %s but no %s: set both or neither", profile,
                        f->path, keys.access_key ? "aws_access_key_id" : "aws_secret_access_key",
                        keys.access_key ? "aws_secret_access_key" : "aws_access_key_id");
        if (!keys.token) /* an older name of the token */
                keys.token = aws_profile_get(&f->parsed, profile, "aws_security_token");
        return planner_use_keys(p, &keys, 0,
                                format_sentence("profile '%s' in %s", profile, f->path));
}

static int use_process(Planner *p, const char *profile) {
        p->plan->command = setting(p, profile, "credential_process");
        if (!p->plan->command)
                return PLAN_E_NOTHING;
        return planner_use(p, CREDENTIALS_BASE_PROCESS,
                           format_sentence("credential_process of profile '%s'", profile));
}

/* Single sign-on needs a browser now and then. What other tools leave in the same profile (keys,
 * credential_process) comes first. */
static int refuse_sso(Planner *p, const char *profile) {
        static const char *const keys[] = { "sso_session", "sso_start_url", "sso_account_id" };

        for (size_t i = 0; i < ELEMENTSOF(keys); i++)
                if (setting(p, profile, keys[i]))
                        return planner_refuse(p, profile, keys[i],
                                              "single sign-on needs a browser: use a role of the "
                                              "node, or in another profile 'credential_process = "
                                              "aws configure export-credentials --format process "
                                              "--profile' with the name of this one");
        return PLAN_E_NOTHING;
}

/* Keys, or what provides them, of this profile alone, in the AWS CLI's order. */
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
                return planner_failf(p,
                                     "profile '%s': duration_seconds '%s' is not between %d and %d",
                                     profile, duration, MIN_DURATION_SECONDS, MAX_DURATION_SECONDS);
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
                return planner_failf(
                        p, "profile '%s' has web_identity_token_file but no role_arn: set both",
                        profile);
        return planner_use(p, CREDENTIALS_BASE_WEB_IDENTITY,
                           format_sentence("role %s by web identity (profile '%s')",
                                           p->plan->role.role_arn, profile));
}

static int use_source(Planner *p, const char *profile, const char *source) {
        int r;

        if (strcmp(source, "Environment") == 0) {
                r = plan_environment(p);
                if (r == PLAN_E_NOTHING)
                        return planner_failf(p,
                                             "profile '%s' requires the keys of the environment "
                                             "(credential_source), which has no AWS_ACCESS_KEY_ID",
                                             profile);
                return r;
        }
        if (strcmp(source, "EcsContainer") == 0) {
                r = plan_container(p);
                if (r == PLAN_E_NOTHING)
                        return planner_failf(
                                p,
                                "profile '%s' requires the keys of the container "
                                "(credential_source), "
                                "but neither AWS_CONTAINER_CREDENTIALS_RELATIVE_URI nor "
                                "AWS_CONTAINER_CREDENTIALS_FULL_URI is set",
                                profile);
                return r;
        }
        if (strcmp(source, "Ec2InstanceMetadata") == 0) {
                p->plan->base = CREDENTIALS_BASE_IMDS;
                return 0;
        }
        return planner_refuse(p, profile, "credential_source",
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

static int report_missing(Planner *p, const char *profile, const char *referrer) {
        const char *of = referrer ? ", the source_profile of '" : "",
                   *by = referrer ? referrer : "";
        const char *end = referrer ? "'" : "";

        if (aws_profile_is_misspelt(&p->files->config.parsed, profile))
                return planner_failf(
                        p,
                        "profile '%s'%s%s%s is written [%s] in %s, where it must be [profile %s]",
                        profile, of, by, end, profile, p->files->config.path, profile);
        _cleanup_free_ char *credentials =
                planner_describe_file(&p->files->credentials, "~/.aws/credentials");
        _cleanup_free_ char *config = planner_describe_file(&p->files->config, "~/.aws/config");
        if (!credentials || !config)
                return -ENOMEM;
        return planner_failf(
                p, "no profile '%s'%s%s%s: searched for [%s] in %s and for [profile %s] in %s",
                profile, of, by, end, profile, credentials, profile, config);
}

/* The source of a role has keys or provides them; a role of its own is not assumed. */
static int use_source_profile(Planner *p, const char *profile, const char *source) {
        if (!exists(p, source))
                return report_missing(p, source, profile);
        if (!has_keys(p, source) &&
            (setting(p, source, "role_arn") || setting(p, source, "web_identity_token_file")))
                return planner_refuse(
                        p, profile, "source_profile",
                        "the source assumes a role itself, and chains of roles are not supported: "
                        "name a profile with keys or a credential_process");
        int r = use_own(p, source);
        if (r == PLAN_E_NOTHING)
                return planner_failf(p,
                                     "profile '%s', the source_profile of '%s', has neither keys "
                                     "nor a credential_process",
                                     source, profile);
        return r;
}

static int use_role(Planner *p, const char *profile) {
        const char *source_profile = setting(p, profile, "source_profile");
        const char *credential_source = setting(p, profile, "credential_source");

        if (setting(p, profile, "mfa_serial"))
                return planner_refuse(p, profile, "mfa_serial",
                                      "an MFA code cannot be entered here: use a role without, or "
                                      "a credential_process");
        if (!source_profile == !credential_source)
                return planner_failf(p,
                                     "profile '%s' has role_arn and %s: set one of them, it names "
                                     "whose keys assume the role",
                                     profile,
                                     source_profile
                                             ? "both source_profile and credential_source"
                                             : "neither source_profile nor credential_source");
        int r = read_role(p, profile);
        if (r < 0)
                return r;
        return credential_source ? use_source(p, profile, credential_source)
                                 : use_source_profile(p, profile, source_profile);
}

static int plan_profile(Planner *p, bool is_requested) {
        const char *profile = p->profile;

        if (!exists(p, profile)) {
                /* A `default` that was not named may be missing. */
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

static int plan_chain(Planner *p, bool is_requested, const char *region) {
        int r = PLAN_E_NOTHING;

        if (!is_requested)
                r = plan_environment(p);
        if (r == PLAN_E_NOTHING && !is_requested)
                r = plan_web_identity(p);
        if (r == PLAN_E_NOTHING)
                r = plan_profile(p, is_requested);
        if (r == PLAN_E_NOTHING)
                r = plan_container(p);
        if (r == PLAN_E_NOTHING)
                r = plan_imds(p, is_requested);
        if (r == 0 && p->plan->role.role_arn)
                r = plan_sts(p, region);
        return r;
}

int credentials_plan_new(CredentialsPlan *ret, const CredentialsPlanOptions *options,
                         char **ret_error) {
        CredentialsPlan plan = { 0 };
        int r = credentials_files_new(&plan.files, options->environment, options->home);
        if (r < 0)
                return r;
        Planner p = {
                .plan = &plan,
                .files = plan.files,
                .environment = options->environment,
                .profile = credentials_files_profile(options->environment, options->profile),
        };

        r = plan_chain(&p, options->profile && *options->profile, options->region);
        if (r < 0) {
                credentials_plan_done(&plan);
                if (r == -EINVAL)
                        *ret_error = TAKE_PTR(p.fault);
                free(p.fault);
                return r;
        }
        *ret = plan;
        return 0;
}

int credentials_plan_region(const CredentialsPlanOptions *options, char **ret) {
        _cleanup_(credentials_files_freep) CredentialsFiles *files = NULL;
        int r = credentials_files_new(&files, options->environment, options->home);
        if (r < 0)
                return r;
        const char *profile = credentials_files_profile(options->environment, options->profile);
        const char *region = credentials_files_region(files, options->environment, profile);
        *ret = region ? strdup(region) : NULL;
        return region && !*ret ? -ENOMEM : 0;
}

void credentials_plan_done(CredentialsPlan *p) {
        credentials_set_done(&p->keys);
        sts_endpoint_done(&p->sts);
        credentials_files_free(p->files);
        free(p->origin);
        free(p->container_url);
        free(p->searched);
        *p = (CredentialsPlan){ 0 };
}
