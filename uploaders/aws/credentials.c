/* The credentials that are held, when they are asked for again, and one fetch: it carries a plan
 * out. */
#include "uploaders/aws/credentials.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/event/child.h"
#include "lib/event/timer.h"
#include "lib/http/http.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials_parse.h"
#include "uploaders/aws/credentials_plan.h"
#include "uploaders/aws/credentials_secret.h"
#include "uploaders/aws/imds.h"
#include "uploaders/aws/sts.h"

#define NO_MEMORY "out of memory while looking for AWS credentials"

/* One fetch and what it works from. */
typedef struct Fetch {
        Credentials *owner;
        CredentialsPlan plan;
        Imds *imds;
        char *imds_path; /* of the role */
        HttpPool *pool;  /* of the container endpoint */
        Child *child;
        Sts *sts;
        CredentialsSet set; /* got so far */
        char *origin;       /* of it */
        bool has_assumed;   /* the role */
        /* to be taken down by the next turn: nothing is freed inside its own callback */
        bool is_over;
        char *error; /* NULL when it is over and there are keys */
} Fetch;

struct CredentialsWaiter {
        ListLink link;
        void (*on_done)(const char *error, void *userdata);
        void *userdata;
};

struct Credentials {
        sd_event *event; /* referenced */
        Clock *clock;    /* borrowed */
        char **environment;
        char *profile, *region, *ca_file, *proxy, *home;
        CredentialsPlanOptions plan; /* of these */
        sd_event_source *defer, *timer;

        CredentialsSet set; /* held */
        char *origin;       /* of it; NULL = nothing was found yet */
        uint64_t serial;    /* of it; 0 = nothing was found yet */
        uint64_t fetched_usec, refresh_usec;
        bool is_refused; /* the source is to be asked before it is used again */

        Fetch *fetch; /* underway */
        ListLink waiters;
        char *error;            /* of the last fetch; NULL = it succeeded, or there was none */
        unsigned n_failures;    /* of fetches, in a row */
        uint64_t files_version; /* before the last fetch */
        unsigned n_refusals;    /* after which the source was asked, each soon after */
        uint64_t next_try_usec; /* after a failure; CLOCK_BOOTTIME */
        uint64_t next_refused_fetch_usec; /* after a refusal; CLOCK_BOOTTIME */
};

/* ── one fetch ── */

/* What a service on this very node hands out though our clock calls it expired is used for so
 * long: more likely the clock is wrong, or the service has its own trouble, and S3 is the judge.
 * SDKs do so for IMDS. */
#define STALE_LIFE_USEC (10 * USEC_PER_MINUTE)
static Fetch *fetch_free(Fetch *fetch) {
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

/* What is to happen next is decided by the loop, never inside a call of ours. */
static void schedule_check(Credentials *c) {
        (void)sd_event_source_set_enabled(c->defer, SD_EVENT_ONESHOT); /* valid source and state */
}

static void finish(Fetch *fetch, char *error /* taken */) {
        fetch->error = error;
        fetch->is_over = true;
        schedule_check(fetch->owner);
}

static void fetch_fail(Fetch *fetch, char *error) {
        if (!error)
                error = strdup(NO_MEMORY);
        credentials_set_done(&fetch->set);
        finish(fetch, error);
}
#define fetch_failf(fetch, ...) fetch_fail(fetch, format_sentence(__VA_ARGS__))

static void fetch_succeed(Fetch *fetch, CredentialsSet *set, char *origin);

static void fetch_report(Fetch *fetch, const CredentialsSet *set, char *origin, const char *error) {
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
        Fetch *fetch = userdata;
        const CredentialsPlan *plan = &fetch->plan;
        char *origin =
                plan->base == CREDENTIALS_BASE_WEB_IDENTITY
                        ? strdup(plan->origin)
                        : format_sentence("role %s by %s", plan->role.role_arn, fetch->origin);

        fetch->has_assumed = true;
        fetch_report(fetch, set, origin, error);
}

/* By keys, or by the token of a web identity. */
static void assume_role(Fetch *fetch, const AwsKeys *keys, const char *token, const char *origin) {
        const CredentialsRole *role = &fetch->plan.role;
        int r = sts_assume_role(&fetch->sts,
                                &(StsRequest){ .event = fetch->owner->event,
                                               .clock = fetch->owner->clock,
                                               .place = &fetch->plan.sts,
                                               .ca_file = fetch->owner->ca_file,
                                               .proxy = fetch->owner->proxy,
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

/* @return false when the keys are of no use any more */
static bool check_expiry(Fetch *fetch, CredentialsSet *set) {
        CredentialsBase base = fetch->plan.base;
        uint64_t now_usec = fetch->owner->clock->realtime_usec(fetch->owner->clock);

        if (set->expires_usec == 0 || set->expires_usec > now_usec)
                return true;
        if (fetch->has_assumed ||
            (base != CREDENTIALS_BASE_IMDS && base != CREDENTIALS_BASE_CONTAINER))
                return false;
        set->expires_usec = now_usec + STALE_LIFE_USEC;
        return true;
}

static void fetch_succeed(Fetch *fetch, CredentialsSet *set, char *origin) {
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
/* Keys in JSON, or why not. @param origin  taken */
static void finish_with_json(Fetch *fetch, CredentialsJsonKind kind, const char *text,
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

/* The instance's role */

static void report_imds_error(Fetch *fetch, const char *error) {
        const char *searched = fetch->plan.searched;

        if (!searched)
                return fetch_failf(fetch, "no credentials of the instance: %s", error);
        fetch_failf(fetch,
                    "no AWS credentials: checked %s, and %s; give the node a role that "
                    "may write to the bucket, or set one of these",
                    searched, error);
}

static void on_imds_keys(const char *text, const char *error, void *userdata) {
        Fetch *fetch = userdata;
        const char *role = fetch->imds_path + strlen(ROLES_PATH);

        if (!text)
                return report_imds_error(fetch, error);
        finish_with_json(fetch, CREDENTIALS_JSON_SERVICE, text,
                         format_sentence("instance role '%s' (IMDSv2)", role));
}

static void on_imds_roles(const char *text, const char *error, void *userdata) {
        Fetch *fetch = userdata;
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

static void fetch_from_imds(Fetch *fetch) {
        int r = imds_new(&fetch->imds, fetch->owner->event, fetch->owner->environment);

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

/* The container's endpoint */

static void on_container(const HttpReply *reply, void *userdata) {
        Fetch *fetch = userdata;
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

static int request_container(Fetch *fetch, const char *url, const char *token_line) {
        const char *const headers[] = { "Accept: application/json", token_line, NULL };

        int r = http_pool_new(&fetch->pool, fetch->owner->event,
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

static void fetch_from_container(Fetch *fetch) {
        _cleanup_(credentials_secret_freep) char *token_line = NULL;
        char *fault = NULL;

        int r = read_container_token(fetch->owner->environment, &token_line, &fault);
        if (r == 0)
                r = request_container(fetch, fetch->plan.container_url, token_line);
        if (r < 0)
                fetch_fail(fetch, fault ? fault
                                        : format_sentence("cannot query the %s: %s",
                                                          fetch->plan.origin, strerror(-r)));
}

/* A program */

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
        Fetch *fetch = userdata;
        const char *origin = fetch->plan.origin;

        if (result->error == 0 && WIFEXITED(result->status) && WEXITSTATUS(result->status) == 0)
                finish_with_json(fetch, CREDENTIALS_JSON_PROCESS, result->output, strdup(origin));
        else
                fetch_fail(fetch, explain_child(origin, result));
        credentials_secret_wipe_borrowed(result->output, result->output_bytes);
}

static void fetch_from_process(Fetch *fetch) {
        const char *origin = fetch->plan.origin, *fault = NULL;
        char **words = NULL;
        _cleanup_free_ char **environment = aws_environment_without_keys(fetch->owner->environment);

        int r = environment ? credentials_parse_command(fetch->plan.command, &words, &fault)
                            : -ENOMEM;
        if (r == -EINVAL)
                return fetch_failf(fetch, "%s cannot be run: %s", origin, fault);
        if (r == 0)
                r = child_new(&fetch->child, fetch->owner->event,
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

/* A token of Kubernetes */

/* The token is renewed in its file all the time, so it is read for each question. */
static void fetch_from_web_identity(Fetch *fetch) {
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

static void fetch_start(Fetch *fetch) {
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

#define EARLY_USEC (5 * USEC_PER_MINUTE)
#define MAX_BACKOFF_USEC USEC_PER_MINUTE
bool credentials_schedule_is_good(uint64_t fetched_usec, uint64_t expires_usec, uint64_t now_usec) {
        if (expires_usec == 0)
                return true;
        if (expires_usec <= now_usec || expires_usec <= fetched_usec)
                return false;
        return expires_usec - now_usec > MIN(USEC_PER_MINUTE, (expires_usec - fetched_usec) / 10);
}

uint64_t credentials_schedule_refresh_usec(uint64_t fetched_usec, uint64_t expires_usec,
                                           uint64_t random) {
        if (expires_usec == 0)
                return USEC_INFINITY;
        uint64_t life = expires_usec > fetched_usec ? expires_usec - fetched_usec : 0;

        if (life <= EARLY_USEC + USEC_PER_MINUTE)
                return fetched_usec + MAX(MIN(life / 2, USEC_PER_MINUTE), USEC_PER_SEC);
        uint64_t jitter = random % (life / 10);
        return MIN(fetched_usec + life / 10 * 8 - jitter, expires_usec - EARLY_USEC);
}

uint64_t credentials_schedule_backoff_usec(unsigned n_failures) {
        if (n_failures == 0)
                return 0;
        return n_failures > 6 ? MAX_BACKOFF_USEC
                              : MIN(USEC_PER_SEC << (n_failures - 1), MAX_BACKOFF_USEC);
}

/* The timer runs on a clock that does not follow the wall's: so it checks that one now and
 * then. */
#define TIMER_MAX_USEC (10 * USEC_PER_MINUTE)
/* Credentials that served so long were good: a refusal after that is no failure of the source. */
#define SERVED_USEC (5 * USEC_PER_MINUTE)
static uint64_t now_real(const Credentials *c) {
        return c->clock->realtime_usec(c->clock);
}

static bool is_usable(const Credentials *c) {
        return c->set.access_key && !c->is_refused &&
               credentials_schedule_is_good(c->fetched_usec, c->set.expires_usec, now_real(c));
}

/* The timer */

static void set_timer(Credentials *c) {
        uint64_t now_usec = now_real(c), wait_usec = TIMER_MAX_USEC;

        if (c->set.expires_usec == 0 || c->is_refused) {
                (void)sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
                return;
        }
        if (c->refresh_usec < now_usec + TIMER_MAX_USEC)
                wait_usec = c->refresh_usec > now_usec ? c->refresh_usec - now_usec : 0;
        if (c->n_failures > 0)
                wait_usec = MAX(wait_usec, credentials_schedule_backoff_usec(c->n_failures));
        int r = timer_rearm(c->timer, MAX(wait_usec, USEC_PER_SEC));
        if (r < 0) /* then they are fetched when they are asked for and no good any more */
                log_write(LOG_DEBUG, r, NULL, "no timer to refresh the credentials by");
}

/* The end of a fetch */

static bool is_same_text(const char *a, const char *b) {
        return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_same_set(const CredentialsSet *a, const CredentialsSet *b) {
        return is_same_text(a->access_key, b->access_key) &&
               is_same_text(a->secret_key, b->secret_key) && is_same_text(a->token, b->token);
}

static void accept_keys(Credentials *c, CredentialsSet *set, char *origin) {
        uint8_t sha256[SHA256_SIZE];
        uint64_t random;

        c->serial += !is_same_set(&c->set, set);
        credentials_set_done(&c->set);
        free(c->origin);
        c->set = *set;
        c->origin = origin;
        c->fetched_usec = now_real(c);
        c->is_refused = false;
        /* Each node has keys of its own: their digest spreads a fleet as well as chance does. */
        sha256_of(c->set.access_key, strlen(c->set.access_key), sha256);
        memcpy(&random, sha256, sizeof random);
        c->refresh_usec =
                credentials_schedule_refresh_usec(c->fetched_usec, c->set.expires_usec, random);
        free(c->error);
        c->error = NULL;
        c->n_failures = 0;
        c->next_try_usec = 0;
        log_debug("credentials from %s", c->origin);
}

/* @param error  taken; NULL = out of memory */
static void record_failure(Credentials *c, char *error) {
        free(c->error);
        c->error = error;
        c->is_refused = false; /* better than nothing */
        c->n_failures++;
        c->next_try_usec = c->clock->boottime_usec(c->clock) +
                           credentials_schedule_backoff_usec(c->n_failures);
        log_debug("%s", error ? error : NO_MEMORY);
}

static void end_fetch(Credentials *c) {
        Fetch *fetch = c->fetch;

        if (!fetch->error && fetch->set.access_key) {
                accept_keys(c, &fetch->set, TAKE_PTR(fetch->origin));
                fetch->set = (CredentialsSet){ 0 };
        } else
                record_failure(c, format_sentence("%s", fetch->error ? fetch->error : NO_MEMORY));
        c->fetch = fetch_free(fetch);
        set_timer(c);
}

/* Its beginning */

static void start_fetch(Credentials *c) {
        Fetch *fetch = calloc(1, sizeof *fetch);
        char *fault = NULL;

        c->files_version = credentials_files_version(&c->plan);
        if (!fetch || credentials_plan_new(&fetch->plan, &c->plan, &fault) < 0) {
                free(fetch);
                record_failure(c, fault);
                return set_timer(c);
        }
        fetch->owner = c;
        c->fetch = fetch;
        fetch_start(fetch);
}

static bool may_try(const Credentials *c) {
        return c->clock->boottime_usec(c->clock) >= c->next_try_usec;
}

/* A changed file is read at once, however many fetches have failed. */
static bool have_files_changed(const Credentials *c) {
        return credentials_files_version(&c->plan) != c->files_version;
}

void credentials_tick(Credentials *c) {
        if (!c->fetch && c->set.access_key && !c->is_refused && may_try(c) &&
            now_real(c) >= c->refresh_usec)
                start_fetch(c);
        set_timer(c);
}

bool credentials_is_fetching(const Credentials *c) {
        return c->fetch != NULL;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        credentials_tick(userdata);
        return 0;
}

/* Who waits */

/* Takes them all off first: a callback may begin to wait again, or have another one
 * cancelled. */
static void notify_waiters(Credentials *c, const char *error) {
        ListLink ready;

        list_init(&ready);
        while (!list_is_empty(&c->waiters)) {
                ListLink *link = c->waiters.next;
                list_remove(link);
                list_append(&ready, link);
        }
        while (!list_is_empty(&ready)) {
                CredentialsWaiter *w = CONTAINER_OF(ready.next, CredentialsWaiter, link);
                list_remove(&w->link);
                w->on_done(error, w->userdata);
                free(w);
        }
}

static int on_check(sd_event_source *source, void *userdata) {
        Credentials *c = userdata;

        (void)source;
        if (c->fetch && c->fetch->is_over)
                end_fetch(c);
        if (list_is_empty(&c->waiters) || (c->fetch && !is_usable(c)))
                return 0;
        if (is_usable(c)) {
                notify_waiters(c, NULL);
                return 0;
        }
        /* A copy: a callback may cause the next failure. */
        _cleanup_free_ char *error = c->error ? strdup(c->error) : NULL;
        notify_waiters(c, error ? error : NO_MEMORY);
        return 0;
}

int credentials_fetch(Credentials *c, CredentialsWaiter **ret,
                      void (*on_done)(const char *error, void *userdata), void *userdata) {
        CredentialsWaiter *w = calloc(1, sizeof *w);
        if (!w)
                return -ENOMEM;
        w->on_done = on_done;
        w->userdata = userdata;
        list_append(&c->waiters, &w->link);
        if (!c->fetch && !is_usable(c) && (may_try(c) || have_files_changed(c)))
                start_fetch(c);
        if (!c->fetch || is_usable(c))
                schedule_check(c);
        if (ret)
                *ret = w;
        return 0;
}

CredentialsWaiter *credentials_waiter_cancel(CredentialsWaiter *w) {
        if (!w)
                return NULL;
        list_remove(&w->link);
        free(w);
        return NULL;
}

/* What is held */

bool credentials_peek(const Credentials *c, AwsKeys *ret) {
        if (!is_usable(c))
                return false;
        *ret = credentials_set_keys(&c->set);
        return true;
}

uint64_t credentials_serial(const Credentials *c) {
        return c->serial;
}

bool credentials_report_refused(Credentials *c, uint64_t serial) {
        uint64_t now_usec = now_real(c), boottime_usec = c->clock->boottime_usec(c->clock);

        if (serial != c->serial || c->is_refused)
                return true;
        if (!have_files_changed(c) && (boottime_usec < c->next_refused_fetch_usec || !may_try(c)))
                return false;
        if (now_usec >= c->fetched_usec && now_usec - c->fetched_usec >= SERVED_USEC)
                c->n_refusals = 0;
        c->next_refused_fetch_usec =
                boottime_usec + credentials_schedule_backoff_usec(++c->n_refusals);
        c->is_refused = true;
        set_timer(c);
        return true;
}

const char *credentials_error(const Credentials *c) {
        return c->error;
}

const char *credentials_origin(const Credentials *c) {
        return c->origin ? c->origin : "not found yet";
}

uint64_t credentials_expire_usec(const Credentials *c) {
        return c->set.expires_usec;
}

char *credentials_region(const Credentials *c) {
        char *region = NULL;

        (void)credentials_plan_region(&c->plan, &region); /* without memory there is none */
        return region;
}

/* Life */

/* Copies a string that may be NULL. @return whether there was memory */
static bool copy_text(char **to, const char *from) {
        *to = from && *from ? strdup(from) : NULL;
        return *to || !from || !*from;
}

int credentials_new(Credentials **ret, const CredentialsOptions *options) {
        _cleanup_(credentials_freep) Credentials *c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        c->event = sd_event_ref(options->event);
        c->clock = options->clock;
        list_init(&c->waiters);
        c->environment = aws_environment_copy(options->environment);
        if (!c->environment || !copy_text(&c->profile, options->profile) ||
            !copy_text(&c->region, options->region) || !copy_text(&c->ca_file, options->ca_file) ||
            !copy_text(&c->proxy, options->proxy) || !copy_text(&c->home, options->home))
                return -ENOMEM;
        c->plan = (CredentialsPlanOptions){ .environment = c->environment,
                                            .home = c->home,
                                            .profile = c->profile,
                                            .region = c->region };
        int r = sd_event_add_defer(c->event, &c->defer, on_check, c);
        if (r >= 0)
                r = sd_event_source_set_enabled(c->defer, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_add_time_relative(c->event, &c->timer, CLOCK_BOOTTIME, 0, USEC_PER_SEC,
                                               on_timer, c);
        if (r >= 0)
                r = sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}

Credentials *credentials_free(Credentials *c) {
        if (!c)
                return NULL;
        fetch_free(c->fetch);
        LIST_FOREACH_SAFE (link, &c->waiters)
                free(CONTAINER_OF(link, CredentialsWaiter, link));
        sd_event_source_disable_unref(c->defer);
        sd_event_source_disable_unref(c->timer);
        sd_event_unref(c->event);
        credentials_set_done(&c->set);
        credentials_secret_free(c->environment);
        free(c->profile);
        free(c->region);
        free(c->ca_file);
        free(c->proxy);
        free(c->home);
        free(c->origin);
        free(c->error);
        free(c);
        return NULL;
}
