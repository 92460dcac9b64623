/* One fetch of credentials: asks the source that the plan (credentials_plan.c) names, which is the
 * instance's role, the endpoint of the container, a program or STS, and then STS for the role to be
 * assumed, where there is one. Every way ends in fetch_succeed() or fetch_fail(). A failure is one
 * sentence that names the source and the remedy.
 * When a fetch starts, and what happens to its keys, is decided by credentials.c. Keys are always
 * in memory of credentials_secret.c. */
#include "uploaders/aws/credentials_fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/event/child.h"
#include "lib/http/http.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials_parse.h"
#include "uploaders/aws/imds.h"
#include "uploaders/aws/sts.h"

struct CredentialsFetch {
        CredentialsFetchOptions options;
        CredentialsPlan plan;
        Imds *imds;
        char *imds_path; /* of the role */
        HttpPool *pool;  /* of the container endpoint */
        Child *child;
        Sts *sts;
        CredentialsSet set; /* got so far */
        char *origin;       /* of it */
        bool has_assumed;   /* the role */
        bool is_over;
        char *error; /* NULL when it is over and there are keys */
};

/* Keys that a service on this node hands out although our clock calls them expired are used for so
 * long: more likely the clock is wrong or the service has trouble of its own, and S3 decides. SDKs
 * do so for IMDS. */
#define STALE_LIFE_USEC (10 * USEC_PER_MINUTE)

CredentialsFetch *credentials_fetch_free(CredentialsFetch *fetch) {
        if (!fetch)
                return NULL;
        imds_free(fetch->imds);
        sts_free(fetch->sts);
        http_pool_free(fetch->pool);
        child_free(fetch->child);
        credentials_set_done(&fetch->set);
        free(fetch->imds_path);
        free(fetch->origin);
        free(fetch->error);
        credentials_plan_done(&fetch->plan);
        free(fetch);
        return NULL;
}

static void finish(CredentialsFetch *fetch, char *error /* taken */) {
        fetch->error = error;
        fetch->is_over = true;
        fetch->options.on_over(fetch->options.userdata);
}

static void fetch_fail(CredentialsFetch *fetch, char *error) {
        if (!error)
                error = strdup(CREDENTIALS_NO_MEMORY);
        credentials_set_done(&fetch->set);
        finish(fetch, error);
}
#define fetch_failf(fetch, ...) fetch_fail(fetch, format_sentence(__VA_ARGS__))

static void fetch_succeed(CredentialsFetch *fetch, CredentialsSet *set, char *origin);

static void fetch_report(CredentialsFetch *fetch, const CredentialsSet *set, char *origin,
                         const char *error) {
        CredentialsSet copy = { 0 };

        if (set) {
                const AwsKeys keys = credentials_set_keys(set);
                if (credentials_set_init(&copy, &keys, set->expires_usec) == 0)
                        return fetch_succeed(fetch, &copy, origin);
        }
        free(origin);
        fetch_fail(fetch, set ? NULL : format_sentence("%s", error));
}

static void on_role(const CredentialsSet *set, const char *error, void *userdata) {
        CredentialsFetch *fetch = userdata;
        const CredentialsPlan *plan = &fetch->plan;
        char *origin =
                plan->base == CREDENTIALS_BASE_WEB_IDENTITY
                        ? strdup(plan->origin)
                        : format_sentence("role %s by %s", plan->role.role_arn, fetch->origin);

        fetch->has_assumed = true;
        fetch_report(fetch, set, origin, error);
}

/* Asks STS for the role, with keys or with the token of a web identity. */
static void assume_role(CredentialsFetch *fetch, const AwsKeys *keys, const char *token,
                        const char *origin) {
        const CredentialsRole *role = &fetch->plan.role;
        int r = sts_assume_role(&fetch->sts,
                                &(StsRequest){ .event = fetch->options.event,
                                               .clock = fetch->options.clock,
                                               .place = &fetch->plan.sts,
                                               .ca_file = fetch->options.ca_file,
                                               .proxy = fetch->options.proxy,
                                               .role_arn = role->role_arn,
                                               .session_name = role->session_name,
                                               .external_id = role->external_id,
                                               .duration_seconds = role->duration_seconds,
                                               .keys = keys,
                                               .token = token,
                                               .keys_origin = origin,
                                               .on_done = on_role,
                                               .userdata = fetch });
        if (r < 0)
                fetch_failf(fetch, "cannot reach STS for the role %s: %s", role->role_arn,
                            strerror(-r));
}

/* @return false: the keys have expired */
static bool check_expiry(CredentialsFetch *fetch, CredentialsSet *set) {
        CredentialsBase base = fetch->plan.base;
        uint64_t now_usec = fetch->options.clock->realtime_usec(fetch->options.clock);

        if (set->expires_usec == 0 || set->expires_usec > now_usec)
                return true;
        if (fetch->has_assumed ||
            (base != CREDENTIALS_BASE_IMDS && base != CREDENTIALS_BASE_CONTAINER))
                return false;
        set->expires_usec = now_usec + STALE_LIFE_USEC;
        return true;
}

static void fetch_succeed(CredentialsFetch *fetch, CredentialsSet *set, char *origin) {
        char at[CLOCK_ISO_SIZE];

        credentials_set_done(&fetch->set);
        fetch->set = *set;
        *set = (CredentialsSet){ 0 };
        free(fetch->origin);
        fetch->origin = origin;
        if (!origin)
                return fetch_fail(fetch, NULL);
        if (!check_expiry(fetch, &fetch->set))
                return fetch_failf(fetch,
                                   "the credentials of %s expired at %s: renew them "
                                   "there, or set this machine's clock right",
                                   origin, clock_format_iso(at, fetch->set.expires_usec));
        if (fetch->plan.role.role_arn && !fetch->has_assumed) {
                const AwsKeys keys = credentials_set_keys(&fetch->set);
                return assume_role(fetch, &keys, NULL, fetch->origin);
        }
        finish(fetch, NULL);
}

#define TOKEN_FILE_MAX_BYTES ((size_t)(64 * KIB))
#define REPLY_MAX_BYTES ((size_t)(64 * KIB))
#define CONTAINER_CONNECT_USEC (2 * USEC_PER_SEC)
#define CONTAINER_TOTAL_USEC (10 * USEC_PER_SEC)
#define PROCESS_USEC (60 * USEC_PER_SEC)
#define ROLES_PATH "meta-data/iam/security-credentials/"

/* Ends with the keys in JSON, or with the reason why there are none. @param origin  taken */
static void finish_with_json(CredentialsFetch *fetch, CredentialsJsonKind kind, const char *text,
                             char *origin) {
        CredentialsSet set = { 0 };
        _cleanup_free_ char *fault = NULL;

        int r = origin ? credentials_parse_json(&set, kind, text, &fault) : -ENOMEM;
        if (r == 0)
                return fetch_succeed(fetch, &set, origin);
        fetch_fail(fetch, r == -EINVAL && fault
                                  ? format_sentence("%s gives no credentials: %s", origin, fault)
                                  : NULL);
        free(origin);
}

/* ---- the instance's role ---- */

static void report_imds_error(CredentialsFetch *fetch, const char *error) {
        const char *searched = fetch->plan.searched;

        if (!searched)
                return fetch_failf(fetch, "no credentials of the instance: %s", error);
        fetch_failf(fetch,
                    "no AWS credentials: checked %s, and %s; give the node a role that "
                    "may write to the bucket, or set one of these",
                    searched, error);
}

static void on_imds_keys(const char *text, const char *error, void *userdata) {
        CredentialsFetch *fetch = userdata;
        const char *role = fetch->imds_path + strlen(ROLES_PATH);

        if (!text)
                return report_imds_error(fetch, error);
        finish_with_json(fetch, CREDENTIALS_JSON_SERVICE, text,
                         format_sentence("instance role '%s' (IMDSv2)", role));
}

static void on_imds_roles(const char *text, const char *error, void *userdata) {
        CredentialsFetch *fetch = userdata;
        size_t n = text ? strcspn(text, "\r\n") : 0;

        if (!text && imds_status(fetch->imds) != 404)
                return report_imds_error(fetch, error);
        /* A role's name has letters, digits and `+=,.@-_`. */
        if (n == 0 || strcspn(text, " /?#%\\") < n)
                return report_imds_error(fetch,
                                         "the instance has no role (attach an instance profile)");
        fetch->imds_path = strbuf_format(ROLES_PATH "%.*s", (int)n, text);
        if (!fetch->imds_path)
                return fetch_fail(fetch, NULL);
        int r = imds_get(fetch->imds, fetch->imds_path, on_imds_keys, fetch);
        if (r < 0)
                report_imds_error(fetch, strerror(-r));
}

static void fetch_from_imds(CredentialsFetch *fetch) {
        int r = imds_new(&fetch->imds, fetch->options.event, fetch->options.environment);

        if (r == -ENOTSUP)
                return report_imds_error(fetch, "the instance metadata service is switched off by "
                                                "AWS_EC2_METADATA_DISABLED");
        if (r == -EINVAL)
                return report_imds_error(fetch,
                                         "AWS_EC2_METADATA_SERVICE_ENDPOINT is not a URL, or "
                                         "…_ENDPOINT_MODE neither IPv4 nor IPv6");
        if (r == 0)
                r = imds_get(fetch->imds, ROLES_PATH, on_imds_roles, fetch);
        if (r < 0)
                report_imds_error(fetch, strerror(-r));
}

/* ---- the container's endpoint ---- */

static void on_container(const HttpReply *reply, void *userdata) {
        CredentialsFetch *fetch = userdata;
        const char *origin = fetch->plan.origin;

        if (reply->error)
                return fetch_failf(fetch, "the %s does not answer (%s)", origin, reply->text);
        if (reply->status != 200)
                return fetch_failf(
                        fetch, "the %s answers %u%s", origin, reply->status,
                        reply->status == 401 || reply->status == 403
                                ? ": is the authorization token its own, and of this container?"
                                : "");
        finish_with_json(fetch, CREDENTIALS_JSON_SERVICE, reply->body, strdup(origin));
        credentials_secret_wipe_borrowed(reply->body, reply->body_bytes);
}

static int request_container(CredentialsFetch *fetch, const char *url, const char *token_line) {
        const char *const headers[] = { "Accept: application/json", token_line, NULL };

        int r = http_pool_new(&fetch->pool, fetch->options.event,
                              &(HttpPoolOptions){ .max_connections = 1,
                                                  .proxy = "-",
                                                  .connect_timeout_usec = CONTAINER_CONNECT_USEC });
        if (r < 0)
                return r;
        return http_call_new(NULL, fetch->pool,
                             &(HttpRequestOptions){ .method = "GET",
                                                    .url = url,
                                                    .headers = headers,
                                                    .reply_max_bytes = REPLY_MAX_BYTES,
                                                    .timeout_usec = CONTAINER_TOTAL_USEC,
                                                    .on_done = on_container,
                                                    .userdata = fetch });
}

/* Reads AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, again at each call, or
 * AWS_CONTAINER_AUTHORIZATION_TOKEN.
 * @return 0 and *ret, an `Authorization: …` line (secret memory; NULL when neither is set);
 *   -EINVAL and *ret_error; -ENOMEM */
static int read_container_token(char *const *environment, char **ret, char **ret_error) {
        const char *path =
                aws_environment_get(environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        const char *token = aws_environment_get(environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN");
        _cleanup_(credentials_secret_freep) char *text = NULL;
        size_t n;

        *ret_error = NULL;
        if (path) {
                int r = credentials_secret_read(path, TOKEN_FILE_MAX_BYTES, &text, &n);
                if (r == -ENOMEM)
                        return r;
                if (r < 0) {
                        *ret_error = format_sentence("cannot read the container's token from %s "
                                                     "(AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE): %s",
                                                     path, strerror(-r));
                        return -EINVAL;
                }
                if (n == 0 || strlen(text) != n) {
                        *ret_error =
                                format_sentence("the container's token file %s "
                                                "(AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE) is %s",
                                                path, n == 0 ? "empty" : "not text");
                        return -EINVAL;
                }
                token = text;
        }
        if (!token) {
                *ret = NULL;
                return 0;
        }
        if (strpbrk(token, "\r\n")) {
                *ret_error = format_sentence("the container's token (%s%s) has a line break in it, "
                                             "which no header can have",
                                             path ? "in " : "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                                             path ? path : "");
                return -EINVAL;
        }
        *ret = credentials_secret_join("Authorization: ", token);
        return *ret ? 0 : -ENOMEM;
}

static void fetch_from_container(CredentialsFetch *fetch) {
        _cleanup_(credentials_secret_freep) char *token_line = NULL;
        char *fault = NULL;

        int r = read_container_token(fetch->options.environment, &token_line, &fault);
        if (r == 0)
                r = request_container(fetch, fetch->plan.container_url, token_line);
        if (r < 0)
                fetch_fail(fetch, fault ? fault
                                        : format_sentence("cannot query the %s: %s",
                                                          fetch->plan.origin, strerror(-r)));
}

/* ---- a program ---- */

static char *explain_child(const char *origin, const ChildResult *result) {
        const char *line = result->error_line, *colon = *line ? ": " : "";

        if (result->error == -ENOENT)
                return format_sentence("%s: program not found", origin);
        if (result->error == -ETIMEDOUT)
                return format_sentence("%s did not end within %d s%s%s", origin,
                                       (int)(PROCESS_USEC / USEC_PER_SEC), colon, line);
        if (result->error == -EFBIG)
                return format_sentence("%s: its output is too long for credentials", origin);
        if (result->error < 0)
                return format_sentence("%s: cannot run it: %s", origin, strerror(-result->error));
        if (WIFSIGNALED(result->status))
                return format_sentence("%s was killed by signal %d%s%s", origin,
                                       WTERMSIG(result->status), colon, line);
        return format_sentence("%s exited with status %d%s%s", origin, WEXITSTATUS(result->status),
                               colon, line);
}

static void on_process(const ChildResult *result, void *userdata) {
        CredentialsFetch *fetch = userdata;
        const char *origin = fetch->plan.origin;

        if (result->error == 0 && WIFEXITED(result->status) && WEXITSTATUS(result->status) == 0)
                finish_with_json(fetch, CREDENTIALS_JSON_PROCESS, result->output, strdup(origin));
        else
                fetch_fail(fetch, explain_child(origin, result));
        credentials_secret_wipe_borrowed(result->output, result->output_bytes);
}

static void fetch_from_process(CredentialsFetch *fetch) {
        const char *origin = fetch->plan.origin, *fault = NULL;
        char **words = NULL;
        _cleanup_free_ char **environment =
                aws_environment_without_keys(fetch->options.environment);

        int r = environment ? credentials_parse_command(fetch->plan.command, &words, &fault)
                            : -ENOMEM;
        if (r == -EINVAL)
                return fetch_failf(fetch, "%s cannot be run: %s", origin, fault);
        if (r == 0)
                r = child_new(&fetch->child, fetch->options.event,
                              &(ChildOptions){ .argv = words,
                                               .environment = environment,
                                               .timeout_usec = PROCESS_USEC,
                                               .output_max_bytes = REPLY_MAX_BYTES,
                                               .on_done = on_process,
                                               .userdata = fetch });
        free(words);
        if (r < 0)
                fetch_failf(fetch, "%s: cannot run it: %s", origin, strerror(-r));
}

/* ---- a token of Kubernetes ---- */

/* Kubernetes renews the token in its file, so it is read for each request. */
static void fetch_from_web_identity(CredentialsFetch *fetch) {
        const char *path = fetch->plan.token_file;
        _cleanup_(credentials_secret_freep) char *token = NULL;
        size_t n;

        int r = credentials_secret_read(path, TOKEN_FILE_MAX_BYTES, &token, &n);
        if (r < 0)
                return fetch_failf(fetch, "cannot read the web identity's token from %s: %s", path,
                                   strerror(-r));
        while (n > 0 && strchr(" \t\r\n", token[n - 1]))
                token[--n] = '\0';
        if (n == 0)
                return fetch_failf(fetch, "the web identity's token file %s is empty", path);
        _cleanup_free_ char *origin = format_sentence("the token in %s", path);
        if (!origin)
                return fetch_fail(fetch, NULL);
        assume_role(fetch, NULL, token, origin);
}

void credentials_fetch_start(CredentialsFetch *fetch) {
        switch (fetch->plan.base) {
        case CREDENTIALS_BASE_KEYS:
                return fetch_report(fetch, &fetch->plan.keys, strdup(fetch->plan.origin), NULL);
        case CREDENTIALS_BASE_WEB_IDENTITY:
                return fetch_from_web_identity(fetch);
        case CREDENTIALS_BASE_PROCESS:
                return fetch_from_process(fetch);
        case CREDENTIALS_BASE_CONTAINER:
                return fetch_from_container(fetch);
        case CREDENTIALS_BASE_IMDS:
                return fetch_from_imds(fetch);
        }
}

bool credentials_fetch_is_over(const CredentialsFetch *fetch) {
        return fetch->is_over;
}

const char *credentials_fetch_take(CredentialsFetch *fetch, CredentialsSet *ret,
                                   char **ret_origin) {
        if (fetch->error || !fetch->set.access_key)
                return fetch->error ? fetch->error : CREDENTIALS_NO_MEMORY;
        *ret = fetch->set;
        *ret_origin = TAKE_PTR(fetch->origin);
        fetch->set = (CredentialsSet){ 0 };
        return NULL;
}

int credentials_fetch_new(CredentialsFetch **ret, const CredentialsFetchOptions *options,
                          char **ret_error) {
        CredentialsFetch *fetch = calloc(1, sizeof *fetch);
        if (!fetch)
                return -ENOMEM;
        fetch->options = *options;
        int r = credentials_plan_new(&fetch->plan, options->plan, ret_error);
        if (r < 0) {
                free(fetch);
                return r;
        }
        *ret = fetch;
        return 0;
}
