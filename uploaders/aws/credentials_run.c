/* How each base of a plan is asked. */
#include "uploaders/aws/credentials_run.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "lib/event/child.h"
#include "lib/http/http.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/aws_parse.h"
#include "uploaders/aws/credentials_plan.h"
#include "uploaders/aws/credentials_secret.h"
#include "uploaders/aws/imds.h"
#include "uploaders/aws/sts.h"

struct CredentialsRun {
        CredentialsRunOptions options;
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

/* What a service on this very node hands out though our clock calls it expired is used for so long: more likely the clock is wrong, or
 * the service has its own trouble, and S3 is the judge. SDKs do so for IMDS. */
#define STALE_LIFE_USEC (10 * USEC_PER_MINUTE)
int credentials_run_new(CredentialsRun **ret, const CredentialsRunOptions *options) {
        CredentialsRun *run = calloc(1, sizeof *run);
        if (!run)
                return -ENOMEM;
        run->options = *options;
        *ret = run;
        return 0;
}

CredentialsRun *credentials_run_free(CredentialsRun *run) {
        if (!run)
                return NULL;
        imds_free(run->imds);
        sts_free(run->sts);
        http_pool_free(run->pool);
        child_free(run->child);
        credentials_set_done(&run->set);
        free(run->imds_path);
        free(run->origin);
        free(run->error);
        free(run);
        return NULL;
}

static void finish(CredentialsRun *run, char *error /* taken */) {
        run->error = error;
        run->is_over = true;
        run->options.on_done(run->options.userdata);
}

static void credentials_run_fail(CredentialsRun *run, char *error) {
        if (!error)
                error = strdup("out of memory while looking for AWS credentials");
        credentials_set_done(&run->set);
        finish(run, error);
}

static bool credentials_run_ensure_sts(CredentialsRun *run) {
        if (run->sts)
                return true;
        int r = sts_new(&run->sts, &(StsOptions){ .event = run->options.event,
                                                  .clock = run->options.clock,
                                                  .place = &run->options.plan->sts,
                                                  .ca_file = run->options.ca_file,
                                                  .proxy = run->options.proxy });
        if (r < 0)
                credentials_run_fail(run, format_sentence("cannot ask STS: %s", strerror(-r)));
        return r == 0;
}

static void credentials_run_succeed(CredentialsRun *run, CredentialsSet *set, char *origin);
static void credentials_from_imds(CredentialsRun *run);
static void credentials_from_container(CredentialsRun *run);
static void credentials_from_process(CredentialsRun *run);
static void credentials_from_web_identity(CredentialsRun *run);

static void credentials_run_report(CredentialsRun *run, const CredentialsSet *set, char *origin,
                                   const char *error) {
        CredentialsSet copy = { 0 };

        if (set) {
                const AwsKeys keys = credentials_set_keys(set);
                if (credentials_set_init(&copy, &keys, set->expires_usec) == 0)
                        return credentials_run_succeed(run, &copy, origin);
        }
        free(origin);
        credentials_run_fail(run, set ? NULL : format_sentence("%s", error));
}

static void on_role(const CredentialsSet *set, const char *error, void *userdata) {
        CredentialsRun *run = userdata;
        const CredentialsPlan *plan = run->options.plan;
        char *origin = plan->base == CREDENTIALS_BASE_WEB_IDENTITY
                               ? strdup(plan->origin)
                               : format_sentence("role %s by %s", plan->role.role_arn, run->origin);

        run->has_assumed = true;
        credentials_run_report(run, set, origin, error);
}

/* By keys, or by the token of a web identity. */
static void assume_role(CredentialsRun *run, const AwsKeys *keys, const char *token,
                        const char *origin) {
        const CredentialsRole *role = &run->options.plan->role;

        if (!credentials_run_ensure_sts(run))
                return;
        int r = sts_assume_role(run->sts, &(StsRequest){ .role_arn = role->role_arn,
                                                         .session_name = role->session_name,
                                                         .external_id = role->external_id,
                                                         .duration_seconds = role->duration_seconds,
                                                         .keys = keys,
                                                         .token = token,
                                                         .keys_origin = origin,
                                                         .on_done = on_role,
                                                         .userdata = run });
        if (r < 0)
                credentials_run_fail(run, format_sentence("cannot ask STS for the role %s: %s",
                                                          role->role_arn, strerror(-r)));
}

/* @return false when the keys are of no use any more */
static bool check_expiry(CredentialsRun *run, CredentialsSet *set) {
        CredentialsBase base = run->options.plan->base;
        uint64_t now_usec = run->options.clock->realtime_usec(run->options.clock);

        if (set->expires_usec == 0 || set->expires_usec > now_usec)
                return true;
        if (run->has_assumed ||
            (base != CREDENTIALS_BASE_IMDS && base != CREDENTIALS_BASE_CONTAINER))
                return false;
        set->expires_usec = now_usec + STALE_LIFE_USEC;
        return true;
}

static void credentials_run_succeed(CredentialsRun *run, CredentialsSet *set, char *origin) {
        char at[CLOCK_ISO_SIZE];

        credentials_set_done(&run->set);
        run->set = *set;
        *set = (CredentialsSet){ 0 };
        free(run->origin);
        run->origin = origin;
        if (!origin)
                return credentials_run_fail(run, NULL);
        if (!check_expiry(run, &run->set))
                return credentials_run_fail(
                        run,
                        format_sentence("the credentials of %s expired at %s: renew them there, or "
                                        "set this machine's clock right",
                                        origin, clock_format_iso(at, run->set.expires_usec)));
        if (run->options.plan->role.role_arn && !run->has_assumed) {
                const AwsKeys keys = credentials_set_keys(&run->set);
                return assume_role(run, &keys, NULL, run->origin);
        }
        finish(run, NULL);
}

void credentials_run_start(CredentialsRun *run) {
        switch (run->options.plan->base) {
        case CREDENTIALS_BASE_KEYS:
                return credentials_run_report(run, &run->options.plan->keys,
                                              strdup(run->options.plan->origin), NULL);
        case CREDENTIALS_BASE_WEB_IDENTITY:
                return credentials_from_web_identity(run);
        case CREDENTIALS_BASE_PROCESS:
                return credentials_from_process(run);
        case CREDENTIALS_BASE_CONTAINER:
                return credentials_from_container(run);
        case CREDENTIALS_BASE_IMDS:
                return credentials_from_imds(run);
        }
}

int credentials_run_result(CredentialsRun *run, CredentialsSet *ret, char **ret_origin) {
        if (!run->is_over || run->error || !run->set.access_key)
                return -ENODATA;
        *ret = run->set;
        run->set = (CredentialsSet){ 0 };
        *ret_origin = TAKE_PTR(run->origin);
        return 0;
}

const char *credentials_run_error(const CredentialsRun *run) {
        return run->error ? run->error : "out of memory while looking for AWS credentials";
}

#define TOKEN_FILE_MAX_BYTES ((size_t)(64 * KIB))
#define REPLY_MAX_BYTES ((size_t)(64 * KIB))
#define CONTAINER_CONNECT_USEC (2 * USEC_PER_SEC)
#define CONTAINER_TOTAL_USEC (10 * USEC_PER_SEC)
#define PROCESS_USEC (60 * USEC_PER_SEC)
#define ROLES_PATH "meta-data/iam/security-credentials/"
/* Keys in JSON, or why not. @param origin  taken */
static void finish_with_json(CredentialsRun *run, CredentialsJsonKind kind, const char *text,
                             char *origin) {
        CredentialsSet set = { 0 };
        _cleanup_free_ char *fault = NULL;

        int r = origin ? credentials_json_read(&set, kind, text, &fault) : -ENOMEM;
        if (r == 0)
                return credentials_run_succeed(run, &set, origin);
        credentials_run_fail(run,
                             r == -EINVAL && fault
                                     ? format_sentence("%s gives no credentials: %s", origin, fault)
                                     : NULL);
        free(origin);
}

/* The instance's role */

static void report_imds_error(CredentialsRun *run, const char *error) {
        const char *searched = run->options.plan->searched;

        if (!searched)
                return credentials_run_fail(run, format_sentence("no credentials of the instance: "
                                                                 "%s",
                                                                 error));
        credentials_run_fail(run, format_sentence("no AWS credentials: looked at %s, and %s; give "
                                                  "the node a role that may write to the bucket, "
                                                  "or set one of these",
                                                  searched, error));
}

static void on_imds_keys(const char *text, const char *error, void *userdata) {
        CredentialsRun *run = userdata;
        const char *role = run->imds_path + strlen(ROLES_PATH);

        if (!text)
                return report_imds_error(run, error);
        finish_with_json(run, CREDENTIALS_JSON_SERVICE, text,
                         format_sentence("instance role '%s' (IMDSv2)", role));
}

static void on_imds_roles(const char *text, const char *error, void *userdata) {
        CredentialsRun *run = userdata;
        size_t n = text ? strcspn(text, "\r\n") : 0;

        if (!text && imds_status(run->imds) != 404)
                return report_imds_error(run, error);
        /* A role's name has letters, digits and `+=,.@-_`. */
        if (n == 0 || strcspn(text, " /?#%\\") < n)
                return report_imds_error(run,
                                         "the instance has no role (attach an instance profile)");
        if (asprintf(&run->imds_path, ROLES_PATH "%.*s", (int)n, text) < 0) {
                run->imds_path = NULL;
                return credentials_run_fail(run, NULL);
        }
        int r = imds_get(run->imds, run->imds_path, on_imds_keys, run);
        if (r < 0)
                report_imds_error(run, strerror(-r));
}

static void credentials_from_imds(CredentialsRun *run) {
        int r = imds_new(&run->imds, run->options.event, run->options.environment);

        if (r == -ENOTSUP)
                return report_imds_error(run, "the instance metadata service is switched off by "
                                              "AWS_EC2_METADATA_DISABLED");
        if (r == -EINVAL)
                return report_imds_error(run, "AWS_EC2_METADATA_SERVICE_ENDPOINT is not a URL, or "
                                              "…_ENDPOINT_MODE neither IPv4 nor IPv6");
        if (r == 0)
                r = imds_get(run->imds, ROLES_PATH, on_imds_roles, run);
        if (r < 0)
                report_imds_error(run, strerror(-r));
}

/* The container's endpoint */

static void on_container(const HttpReply *reply, void *userdata) {
        CredentialsRun *run = userdata;
        const char *origin = run->options.plan->origin;

        if (reply->error)
                return credentials_run_fail(
                        run, format_sentence("the %s does not answer (%s)", origin, reply->text));
        if (reply->status != 200)
                return credentials_run_fail(
                        run, format_sentence("the %s answers %u%s", origin, reply->status,
                                             reply->status == 401 || reply->status == 403
                                                     ? ": is the authorization token its own, "
                                                       "and of this container?"
                                                     : ""));
        finish_with_json(run, CREDENTIALS_JSON_SERVICE, reply->body, strdup(origin));
        credentials_secret_wipe_borrowed(reply->body, reply->body_bytes);
}

static int request_container(CredentialsRun *run, const char *url, const char *token_line) {
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

static void credentials_from_container(CredentialsRun *run) {
        _cleanup_(credentials_secret_freep) char *token_line = NULL;
        _cleanup_free_ char *url = NULL;
        char *fault = NULL;

        int r = credentials_container_url(run->options.environment, &url, &fault);
        if (r == 0)
                r = credentials_container_token(run->options.environment, &token_line, &fault);
        if (r == 0)
                r = request_container(run, url, token_line);
        if (r < 0)
                credentials_run_fail(run, fault ? fault
                                                : format_sentence("cannot ask the %s: %s",
                                                                  run->options.plan->origin,
                                                                  strerror(-r)));
}

/* A program */

static char *explain_child(const char *origin, const ChildResult *result) {
        const char *line = result->error_line, *colon = *line ? ": " : "";

        if (result->error == -ENOENT)
                return format_sentence("%s: there is no such program", origin);
        if (result->error == -ETIMEDOUT)
                return format_sentence("%s did not end within %d s%s%s", origin,
                                       (int)(PROCESS_USEC / USEC_PER_SEC), colon, line);
        if (result->error == -EFBIG)
                return format_sentence("%s said more than credentials can be", origin);
        if (result->error < 0)
                return format_sentence("%s: cannot run it: %s", origin, strerror(-result->error));
        if (WIFSIGNALED(result->status))
                return format_sentence("%s was killed by signal %d%s%s", origin,
                                       WTERMSIG(result->status), colon, line);
        return format_sentence("%s exited with status %d%s%s", origin, WEXITSTATUS(result->status),
                               colon, line);
}

static void on_process(const ChildResult *result, void *userdata) {
        CredentialsRun *run = userdata;
        const char *origin = run->options.plan->origin;

        if (result->error == 0 && WIFEXITED(result->status) && WEXITSTATUS(result->status) == 0)
                finish_with_json(run, CREDENTIALS_JSON_PROCESS, result->output, strdup(origin));
        else
                credentials_run_fail(run, explain_child(origin, result));
        credentials_secret_wipe_borrowed(result->output, result->output_bytes);
}

static void credentials_from_process(CredentialsRun *run) {
        const char *origin = run->options.plan->origin, *fault = NULL;
        char **words = NULL;
        _cleanup_free_ char **environment = credentials_env_without_keys(run->options.environment);

        int r = environment ? credentials_words_split(run->options.plan->command, &words, &fault)
                            : -ENOMEM;
        if (r == -EINVAL)
                return credentials_run_fail(run,
                                            format_sentence("%s cannot be run: %s", origin, fault));
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
                credentials_run_fail(
                        run, format_sentence("%s: cannot run it: %s", origin, strerror(-r)));
}

/* A token of Kubernetes */

/* The token is renewed in its file all the time, so it is read for each question. */
static void credentials_from_web_identity(CredentialsRun *run) {
        const char *path = run->options.plan->token_file;
        _cleanup_(credentials_secret_freep) char *token = NULL;
        size_t n;

        int r = credentials_secret_read(path, TOKEN_FILE_MAX_BYTES, &token, &n);
        if (r < 0)
                return credentials_run_fail(run, format_sentence("cannot read the web identity's "
                                                                 "token from %s: %s",
                                                                 path, strerror(-r)));
        while (n > 0 && strchr(" \t\r\n", token[n - 1]))
                token[--n] = '\0';
        if (n == 0)
                return credentials_run_fail(run, format_sentence("the web identity's token file "
                                                                 "%s is empty",
                                                                 path));
        _cleanup_free_ char *origin = format_sentence("the token in %s", path);
        if (!origin)
                return credentials_run_fail(run, NULL);
        assume_role(run, NULL, token, origin);
}
