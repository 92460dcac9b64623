/* Requests to the metadata service of an EC2 instance, by IMDSv2: gets a session token, uses it for
 * as long as it is accepted, and sends the request. One request at a time, without retries. What is
 * requested, and what the answers mean, is left to the callers. */
#include "uploaders/aws/imds.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/http/http.h"
#include "lib/http/url.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials_secret.h"

#define CONNECT_USEC (1 * USEC_PER_SEC)
#define TOTAL_USEC (5 * USEC_PER_SEC)
#define REPLY_MAX_BYTES ((size_t)(64 * KIB))
#define TOKEN_TTL "21600" /* seconds: the most there is; a token costs a round trip */
#define TOKEN_HEADER "X-aws-ec2-metadata-token: "

struct Imds {
        sd_event *event; /* borrowed */
        HttpPool *pool;
        HttpCall *call; /* underway */
        char *endpoint;
        char *token_line; /* the header line; secret memory; NULL: request a token first */
        char *path;       /* of the request; NULL = idle */
        uint64_t deadline_usec;
        bool is_second_token; /* the token was refused, and this request got a new one */
        unsigned status;
        void (*on_done)(const char *text, const char *error, void *userdata);
        void *userdata;
};

static int choose_endpoint(char *const *environment, char **ret) {
        const char *endpoint =
                aws_environment_get(environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
        const char *mode =
                aws_environment_get(environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");

        if (!endpoint && mode && strcasecmp(mode, "IPv4") != 0 && strcasecmp(mode, "IPv6") != 0)
                return -EINVAL;
        if (!endpoint)
                endpoint = mode && strcasecmp(mode, "IPv6") == 0 ? "http://[fd00:ec2::254]"
                                                                 : "http://169.254.169.254";
        _cleanup_(url_done) Url url = { 0 };
        int r = url_parse(&url, endpoint);
        if (r < 0)
                return r;
        if (!url_is_http(&url) || url.has_query || !url.path ||
            strspn(url.path, "/") != strlen(url.path))
                return -EINVAL;
        return asprintf(ret, "%s://%s", url.scheme, url.authority) < 0 ? -ENOMEM : 0;
}

int imds_new(Imds **ret, sd_event *event, char *const *environment) {
        if (aws_environment_is_true(environment, "AWS_EC2_METADATA_DISABLED"))
                return -ENOTSUP;
        _cleanup_(imds_freep) Imds *i = calloc(1, sizeof *i);
        if (!i)
                return -ENOMEM;
        i->event = event;
        int r = choose_endpoint(environment, &i->endpoint);
        if (r < 0)
                return r;
        /* No proxy: the address is link-local, so a proxy would reach its own service. */
        r = http_pool_new(&i->pool, event,
                          &(HttpPoolOptions){ .max_connections = 1,
                                              .proxy = "-",
                                              .connect_timeout_usec = CONNECT_USEC,
                                              .stall_usec = TOTAL_USEC });
        if (r < 0)
                return r;
        *ret = TAKE_PTR(i);
        return 0;
}

Imds *imds_free(Imds *i) {
        if (!i)
                return NULL;
        http_call_cancel(i->call);
        http_pool_free(i->pool);
        credentials_secret_free(i->token_line);
        free(i->endpoint);
        free(i->path);
        free(i);
        return NULL;
}

unsigned imds_status(const Imds *i) {
        return i->status;
}

/* Becomes idle before the callback, which may make the next request. */
static void finish(Imds *i, const char *text, const char *error) {
        free(i->path);
        i->path = NULL;
        i->on_done(text, error, i->userdata);
}

static void fail(Imds *i, char *error /* ours */) {
        finish(i, NULL, error ? error : "out of memory");
        free(error);
}
#define failf(i, ...) fail(i, format_sentence(__VA_ARGS__))

static int request_token(Imds *i);
static int request_path(Imds *i);

static void continue_request(Imds *i, int (*request)(Imds *i)) {
        int r = request(i);
        if (r < 0)
                failf(i, "cannot query the metadata service: %s", strerror(-r));
}

static char *explain_no_response(const Imds *i, const HttpReply *reply) {
        bool was_silent = reply->error == HTTP_E_STALLED || reply->error == HTTP_E_TIMEOUT;

        /* With a hop limit of 1 the answer is dropped on its way into a container: the only sign of
         * that is silence. */
        return format_sentence(
                "the metadata service at %s does not answer (%s)%s", i->endpoint, reply->text,
                was_silent && !i->token_line
                        ? "; in a container, raise the instance's metadata hop limit to 2"
                        : "");
}

static void on_token(const HttpReply *reply, void *userdata) {
        Imds *i = userdata;

        i->call = NULL;
        if (reply->error)
                return fail(i, explain_no_response(i, reply));
        if (reply->status == 403)
                return failf(i,
                             "the metadata service at %s is switched off for this instance (403)",
                             i->endpoint);
        size_t n = strcspn(reply->body, "\r\n");
        if (reply->status != 200 || n == 0 || n != reply->body_bytes)
                return failf(i, "%s gives no IMDSv2 session token (status %u)", i->endpoint,
                             reply->status);
        i->token_line = credentials_secret_join(TOKEN_HEADER, reply->body);
        credentials_secret_wipe_borrowed(reply->body, reply->body_bytes);
        if (!i->token_line)
                return fail(i, NULL);
        continue_request(i, request_path);
}

static void on_answer(const HttpReply *reply, void *userdata) {
        Imds *i = userdata;

        i->call = NULL;
        i->status = reply->status;
        if (reply->error)
                return fail(i, explain_no_response(i, reply));
        if (reply->status == 401 && !i->is_second_token) { /* it has run out */
                i->token_line = credentials_secret_free(i->token_line);
                i->is_second_token = true;
                return continue_request(i, request_token);
        }
        if (reply->status != 200)
                return failf(i, "the metadata service at %s answers %u to /latest/%s", i->endpoint,
                             reply->status, i->path);
        finish(i, reply->body, NULL);
        credentials_secret_wipe_borrowed(reply->body, reply->body_bytes);
}

static int send_request(Imds *i, HttpRequestOptions *options, const char *path) {
        char *url = NULL;
        uint64_t now_usec;

        int r = sd_event_now(i->event, CLOCK_BOOTTIME, &now_usec);
        if (r < 0)
                return r;
        options->timeout_usec = i->deadline_usec > now_usec ? i->deadline_usec - now_usec : 1;
        options->reply_max_bytes = REPLY_MAX_BYTES;
        options->userdata = i;
        if (asprintf(&url, "%s/latest/%s", i->endpoint, path) < 0)
                return -ENOMEM;
        options->url = url;
        r = http_call_new(&i->call, i->pool, options);
        free(url);
        return r;
}

static int request_token(Imds *i) {
        const char *const headers[] = { "X-aws-ec2-metadata-token-ttl-seconds: " TOKEN_TTL, NULL };

        return send_request(
                i,
                &(HttpRequestOptions){ .method = "PUT", .headers = headers, .on_done = on_token },
                "api/token");
}

static int request_path(Imds *i) {
        const char *const headers[] = { i->token_line, NULL };

        return send_request(
                i,
                &(HttpRequestOptions){ .method = "GET", .headers = headers, .on_done = on_answer },
                i->path);
}

int imds_get(Imds *i, const char *path,
             void (*on_done)(const char *text, const char *error, void *userdata), void *userdata) {
        uint64_t now_usec;

        if (i->path)
                return -EBUSY;
        int r = sd_event_now(i->event, CLOCK_BOOTTIME, &now_usec);
        if (r < 0)
                return r;
        i->path = strdup(path);
        if (!i->path)
                return -ENOMEM;
        i->status = 0;
        i->deadline_usec = now_usec + TOTAL_USEC;
        i->is_second_token = !i->token_line;
        i->on_done = on_done;
        i->userdata = userdata;
        r = i->token_line ? request_path(i) : request_token(i);
        if (r < 0) {
                free(i->path);
                i->path = NULL;
        }
        return r;
}
