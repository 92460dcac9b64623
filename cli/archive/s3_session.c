#include "cli/archive/s3_session.h"

#include <errno.h>
#include <string.h>

#include "config/config.h"
#include "config/forms.h"
#include "lib/http/http.h"
#include "lib/neuron/template.h"
#include "uploaders/s3/s3_environment.h"

#define CONNECTIONS 8
#define TURN_USEC (200 * USEC_PER_MSEC) /* a signal between two looks is seen after this long */
#define REQUEST_TIMEOUT_USEC (60 * USEC_PER_SEC)
#define RETRY_INITIAL_USEC (200 * USEC_PER_MSEC)
#define RETRY_MAXIMUM_USEC (5 * USEC_PER_SEC)
#define FALLBACK_REGION                                                                            \
        "us-east-1" /* as the AWS command line does: the answer tells the bucket's own */

struct S3Session {
        sd_event *event;
        Credentials *credentials;
        S3Client *client;
};

/* ---- who says what ---- */

static const char *set_or_null(const char *text) {
        return text && *text ? text : NULL;
}

static const char *first_set(const char *a, const char *b) {
        return set_or_null(a) ? a : set_or_null(b);
}

/* What the configured destination says; where there is none, every string is NULL. */
static const ConfigDestination *settings_of(const S3SessionOrder *o) {
        static const ConfigDestination none;
        return o->destination ? o->destination : &none;
}

/* An option comes before what is configured, and that before the environment; a configured destination without an endpoint is AWS or
 * what the environment says, as the agent has it. */
static S3Environment place_of(const S3SessionOrder *o, const S3Options *given) {
        const ConfigDestination *d = settings_of(o);
        S3Environment environment = s3_environment_read(environ);
        return s3_environment_resolve(&environment, first_set(given->endpoint_url, d->endpoint),
                                      first_set(given->ca_bundle, d->ca_file));
}

int s3_session_load_config(const Cli *cli, const S3Options *options, Config **ret) {
        *ret = NULL;
        if (!cli->config_given && access(cli->config_file, F_OK) < 0)
                return CLI_YES;
        if (cli_load_config(cli, !cli->config_given, ret) == CLI_YES)
                return CLI_YES;
        if (cli->config_given)
                return CLI_USAGE;
        if (!options->endpoint_url)
                cli_error("'%s' cannot be used, so what it says of destinations does not count; "
                          "`neuron-collect config check` says what is wrong with it",
                          cli->config_file);
        return CLI_YES;
}

/* ---- setting up ---- */

static int make_credentials(S3Session *s, const S3SessionOrder *o, const S3Options *given) {
        const ConfigDestination *d = settings_of(o);
        S3Environment place = place_of(o, given);
        return credentials_new(
                &s->credentials,
                &(CredentialsOptions){ .event = s->event,
                                       .clock = clock_system(),
                                       .environment = environ,
                                       .profile = first_set(given->profile, d->profile),
                                       .region = first_set(given->region, d->region),
                                       .ca_file = place.ca_bundle,
                                       .proxy = d->proxy });
}

static int make_client(S3Session *s, const S3SessionOrder *o, const S3Options *given,
                       char **ret_fault) {
        const ConfigDestination *d = settings_of(o);
        Clock *clock = clock_system();
        _cleanup_free_ char *told = credentials_region(s->credentials);
        S3Environment place = place_of(o, given);
        const char *configured = first_set(given->region, d->region),
                   *region = first_set(configured, told), *addressing = set_or_null(d->addressing);
        S3ClientOptions options = {
                .event = s->event,
                .clock = clock,
                .credentials = s->credentials,
                .bucket = o->bucket,
                .region = region ? region : FALLBACK_REGION,
                .endpoint = place.endpoint,
                .addressing = addressing ? addressing : "auto",
                .dualstack = place.dualstack,
                .fips = place.fips,
                .ca_file = place.ca_bundle,
                .proxy = d->proxy ? d->proxy : "",
                .connections = CONNECTIONS,
                .request_timeout_usec =
                        d->request_timeout_usec ? d->request_timeout_usec : REQUEST_TIMEOUT_USEC,
                .expected_bucket_owner = d->expected_bucket_owner ? d->expected_bucket_owner : "",
                .sse = d->sse ? d->sse : "",
                .kms_key_id = d->kms_key_id ? d->kms_key_id : "",
                .storage_class = d->storage_class ? d->storage_class : "",
                .tags = d->tags.items,
                .retry_initial_usec = RETRY_INITIAL_USEC,
                .retry_maximum_usec = RETRY_MAXIMUM_USEC,
                .seed = clock->realtime_usec(clock) ^ (uint64_t)getpid(),
        };
        return s3_client_new(&s->client, &options, ret_fault);
}

int s3_session_new(S3Session **ret, const S3SessionOrder *order, char **ret_fault) {
        static const S3Options none;
        const S3Options *given = order->options ? order->options : &none;
        *ret_fault = NULL;
        int r = http_global_init();
        if (r < 0)
                return r;
        _cleanup_(s3_session_freep) S3Session *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        r = sd_event_new(&s->event);
        if (r == 0)
                r = make_credentials(s, order, given);
        if (r == 0)
                r = make_client(s, order, given, ret_fault);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

S3Session *s3_session_free(S3Session *s) {
        if (!s)
                return NULL;
        s3_client_free(s->client);
        credentials_free(s->credentials);
        sd_event_unref(s->event);
        free(s);
        return NULL;
}

S3Client *s3_session_client(const S3Session *s) {
        return s->client;
}

/* ---- turning ---- */

static int turn(S3Session *s, uint64_t usec) {
        if (cli_is_interrupted())
                return -EINTR;
        int r = sd_event_run(s->event, usec);
        return r < 0 ? r : 0;
}

int s3_session_run(S3Session *s, const bool *done) {
        int r = 0;
        while (r == 0 && !*done)
                r = turn(s, TURN_USEC);
        return r;
}

int s3_session_turn(S3Session *s) {
        return turn(s, 0);
}

/* ---- which destination ---- */

/* @return how much of the key the destination's fixed prefix is; 0 also when it is another */
static size_t match(const ConfigDestination *d, const char *key) {
        PathTemplate *t;
        char bad;
        if (path_template_new(&t, d->prefix ? d->prefix : "", FORM_DESTINATION_VARIABLES, &bad) < 0)
                return 0;
        const char *fixed = path_template_fixed(t);
        size_t n = strlen(fixed);
        bool fits = strncmp(key, fixed, n) == 0;
        path_template_free(t);
        return fits ? n : 0;
}

const ConfigDestination *s3_session_destination(const Config *c, const char *bucket,
                                                const char *key) {
        const ConfigDestination *best = NULL;
        size_t best_n = 0;
        for (size_t i = 0; i < c->n_destinations; i++) {
                const ConfigDestination *d = &c->destinations[i];
                if (d->type != CONFIG_S3 || strcmp(d->bucket, bucket) != 0)
                        continue;
                size_t n = match(d, key);
                if (best && n <= best_n)
                        continue;
                best = d;
                best_n = n;
        }
        return best;
}
