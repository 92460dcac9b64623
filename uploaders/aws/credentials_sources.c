/* How each base of a plan is asked. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "uploaders/aws/credentials_container.h"
#include "uploaders/aws/credentials_env.h"
#include "uploaders/aws/credentials_json.h"
#include "uploaders/aws/credentials_run_private.h"
#include "uploaders/aws/credentials_words.h"

#define TOKEN_FILE_MAX_BYTES ((size_t)(64 * KIB))
#define REPLY_MAX_BYTES ((size_t)(64 * KIB))
#define CONTAINER_CONNECT_USEC (2 * USEC_PER_SEC)
#define CONTAINER_TOTAL_USEC (10 * USEC_PER_SEC)
#define PROCESS_USEC (60 * USEC_PER_SEC)
#define ROLES_PATH "meta-data/iam/security-credentials/"

/* Keys in JSON, or why not. @param origin  taken */
static void take_json(CredentialsRun *run, CredentialsJsonKind kind, const char *text,
                      char *origin) {
        CredentialsSet set = { 0 };
        _cleanup_free_ char *fault = NULL;

        int r = origin ? credentials_json_read(&set, kind, text, &fault) : -ENOMEM;
        if (r == 0)
                return credentials_run_got(run, &set, origin);
        credentials_run_failed(
                run, r == -EINVAL && fault
                             ? credentials_say("%s gives no credentials: %s", origin, fault)
                             : NULL);
        free(origin);
}

/* The instance's role */

static void imds_failed(CredentialsRun *run, const char *error) {
        const char *looked_at = run->options.plan->looked_at;

        if (!looked_at)
                return credentials_run_failed(run,
                                              credentials_say("no credentials of the instance: "
                                                              "%s",
                                                              error));
        credentials_run_failed(run,
                               credentials_say("no AWS credentials: looked at %s, and %s; give "
                                               "the node a role that may write to the bucket, "
                                               "or set one of these",
                                               looked_at, error));
}

static void on_imds_keys(const char *text, const char *error, void *userdata) {
        CredentialsRun *run = userdata;
        const char *role = run->imds_path + strlen(ROLES_PATH);

        if (!text)
                return imds_failed(run, error);
        take_json(run, CREDENTIALS_JSON_SERVICE, text,
                  credentials_say("instance role '%s' (IMDSv2)", role));
}

static void on_imds_roles(const char *text, const char *error, void *userdata) {
        CredentialsRun *run = userdata;
        size_t n = text ? strcspn(text, "\r\n") : 0;

        if (!text && imds_status(run->imds) != 404)
                return imds_failed(run, error);
        /* A role's name has letters, digits and `+=,.@-_`. */
        if (n == 0 || strcspn(text, " /?#%\\") < n)
                return imds_failed(run, "the instance has no role (attach an instance profile)");
        if (asprintf(&run->imds_path, ROLES_PATH "%.*s", (int)n, text) < 0) {
                run->imds_path = NULL;
                return credentials_run_failed(run, NULL);
        }
        int r = imds_get(run->imds, run->imds_path, on_imds_keys, run);
        if (r < 0)
                imds_failed(run, strerror(-r));
}

void credentials_from_imds(CredentialsRun *run) {
        int r = imds_new(&run->imds, run->options.event, run->options.environment);

        if (r == -ENOTSUP)
                return imds_failed(run, "the instance metadata service is switched off by "
                                        "AWS_EC2_METADATA_DISABLED");
        if (r == -EINVAL)
                return imds_failed(run, "AWS_EC2_METADATA_SERVICE_ENDPOINT is no URL, or "
                                        "…_ENDPOINT_MODE neither IPv4 nor IPv6");
        if (r == 0)
                r = imds_get(run->imds, ROLES_PATH, on_imds_roles, run);
        if (r < 0)
                imds_failed(run, strerror(-r));
}

/* The container's endpoint */

static void on_container(const HttpReply *reply, void *userdata) {
        CredentialsRun *run = userdata;
        const char *origin = run->options.plan->origin;

        if (reply->error)
                return credentials_run_failed(
                        run, credentials_say("the %s does not answer (%s)", origin, reply->text));
        if (reply->status != 200)
                return credentials_run_failed(
                        run, credentials_say("the %s answers %u%s", origin, reply->status,
                                             reply->status == 401 || reply->status == 403
                                                     ? ": is the authorization token its own, "
                                                       "and of this container?"
                                                     : ""));
        take_json(run, CREDENTIALS_JSON_SERVICE, reply->body, strdup(origin));
        credentials_secret_wipe_foreign(reply->body, reply->body_bytes);
}

static int ask_container(CredentialsRun *run, const char *url, const char *token_line) {
        const char *const headers[] = { "Accept: application/json", token_line, NULL };

        int r = http_pool_new(&run->pool, run->options.event,
                              &(HttpPoolOptions){ .max_connections = 1,
                                                  .proxy = "-",
                                                  .connect_timeout_usec = CONTAINER_CONNECT_USEC });
        if (r < 0)
                return r;
        return http_call_new(NULL, run->pool,
                             &(HttpOrder){ .method = "GET",
                                           .url = url,
                                           .headers = headers,
                                           .reply_max_bytes = REPLY_MAX_BYTES,
                                           .timeout_usec = CONTAINER_TOTAL_USEC,
                                           .on_done = on_container,
                                           .userdata = run });
}

void credentials_from_container(CredentialsRun *run) {
        _cleanup_(credentials_secret_freep) char *token_line = NULL;
        _cleanup_free_ char *url = NULL;
        char *fault = NULL;

        int r = credentials_container_url(run->options.environment, &url, &fault);
        if (r == 0)
                r = credentials_container_token(run->options.environment, &token_line, &fault);
        if (r == 0)
                r = ask_container(run, url, token_line);
        if (r < 0)
                credentials_run_failed(run, fault ? fault
                                                  : credentials_say("cannot ask the %s: %s",
                                                                    run->options.plan->origin,
                                                                    strerror(-r)));
}

/* A program */

static char *explain_child(const char *origin, const ChildResult *result) {
        const char *line = result->error_line, *colon = *line ? ": " : "";

        if (result->error == -ENOENT)
                return credentials_say("%s: there is no such program", origin);
        if (result->error == -ETIMEDOUT)
                return credentials_say("%s did not end within %d s%s%s", origin,
                                       (int)(PROCESS_USEC / USEC_PER_SEC), colon, line);
        if (result->error == -EFBIG)
                return credentials_say("%s said more than credentials can be", origin);
        if (result->error < 0)
                return credentials_say("%s: cannot run it: %s", origin, strerror(-result->error));
        if (WIFSIGNALED(result->status))
                return credentials_say("%s was killed by signal %d%s%s", origin,
                                       WTERMSIG(result->status), colon, line);
        return credentials_say("%s exited with status %d%s%s", origin, WEXITSTATUS(result->status),
                               colon, line);
}

static void on_process(const ChildResult *result, void *userdata) {
        CredentialsRun *run = userdata;
        const char *origin = run->options.plan->origin;

        if (result->error == 0 && WIFEXITED(result->status) && WEXITSTATUS(result->status) == 0)
                take_json(run, CREDENTIALS_JSON_PROCESS, result->output, strdup(origin));
        else
                credentials_run_failed(run, explain_child(origin, result));
        credentials_secret_wipe_foreign(result->output, result->output_bytes);
}

void credentials_from_process(CredentialsRun *run) {
        const char *origin = run->options.plan->origin, *fault = NULL;
        char **words = NULL;
        _cleanup_free_ char **environment = credentials_env_without_keys(run->options.environment);

        int r = environment ? credentials_words_split(run->options.plan->command, &words, &fault)
                            : -ENOMEM;
        if (r == -EINVAL)
                return credentials_run_failed(
                        run, credentials_say("%s cannot be run: %s", origin, fault));
        if (r == 0)
                r = child_new(&run->child, run->options.event,
                              &(ChildOrder){ .argv = words,
                                             .environment = environment,
                                             .timeout_usec = PROCESS_USEC,
                                             .output_max_bytes = REPLY_MAX_BYTES,
                                             .on_done = on_process,
                                             .userdata = run });
        free(words);
        if (r < 0)
                credentials_run_failed(
                        run, credentials_say("%s: cannot run it: %s", origin, strerror(-r)));
}

/* A token of Kubernetes */

static void on_web_identity(const CredentialsSet *set, const char *error, void *userdata) {
        CredentialsRun *run = userdata;

        credentials_run_heard(run, set, strdup(run->options.plan->origin), error);
}

static int ask_web_identity(CredentialsRun *run, const char *token) {
        const CredentialsPlan *plan = run->options.plan;
        _cleanup_free_ char *origin = credentials_say("the token in %s", plan->token_file);

        if (!origin)
                return -ENOMEM;
        return sts_assume(run->sts, &(StsOrder){ .role_arn = plan->role.role_arn,
                                                 .session_name = plan->role.session_name,
                                                 .duration_seconds = plan->role.duration_seconds,
                                                 .token = token,
                                                 .keys_origin = origin,
                                                 .on_done = on_web_identity,
                                                 .userdata = run });
}

/* The token is renewed in its file all the time, so it is read for each question. */
void credentials_from_web_identity(CredentialsRun *run) {
        const char *path = run->options.plan->token_file;
        _cleanup_(credentials_secret_freep) char *token = NULL;
        size_t n;

        int r = credentials_secret_read(path, TOKEN_FILE_MAX_BYTES, &token, &n);
        if (r < 0)
                return credentials_run_failed(run, credentials_say("cannot read the web identity's "
                                                                   "token from %s: %s",
                                                                   path, strerror(-r)));
        while (n > 0 && strchr(" \t\r\n", token[n - 1]))
                token[--n] = '\0';
        if (n == 0)
                return credentials_run_failed(run, credentials_say("the web identity's token file "
                                                                   "%s is empty",
                                                                   path));
        if (!credentials_run_need_sts(run))
                return;
        r = ask_web_identity(run, token);
        if (r < 0)
                credentials_run_failed(run, credentials_say("cannot ask STS for the role %s: %s",
                                                            run->options.plan->role.role_arn,
                                                            strerror(-r)));
}
