/* Drives s3_client, s3, s3_sweep and s3_probe on a real loop, for test_s3_*.py: what happens is
 * printed, one event a line, fields separated by tabs. Credentials come from the environment.
 *
 *   s3_drive [options] upload KEY      s3_drive [options] call OPERATION [KEY]
 *   s3_drive [options] sweep PREFIX    s3_drive [options] probe KEY
 *
 * Byte i of part n is (31 n + 7 i + i / 256) mod 256. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/event/timer.h"
#include "lib/http/http.h"
#include "uploaders/s3/s3_bucket.h"
#include "uploaders/s3/s3_upload.h"

extern char **environ;

#define KNOWN_MAX 64

typedef struct Drive {
        sd_event *event;
        S3Client *client;
        S3Upload *upload;
        sd_event_source *later, *look;
        uint64_t silence_usec; /* the longest that was seen */
        unsigned later_number;
        unsigned n_etags, n_running;

        /* options */
        S3ClientOptions client_options;
        S3UploadOptions upload_order;
        S3SweepOptions sweep_order;
        S3RequestOptions options;
        S3KnownPart known[KNOWN_MAX];
        uint64_t counted; /* sent_bytes of calls and uploads */
        uint64_t upload_rate, request_rate;
        uint64_t n_parts, part_bytes, last_bytes, free_after, n_calls;
        uint64_t late_usec, look_usec;
        const char *fail_in, *known_id, *range;
        bool gives_later, is_thorough, streams;
} Drive;

static void print_line(const char *text) {
        (void)fputs(text, stdout);
}

/* Parts */

static void release_part(S3Part *part) {
        free((void *)part->data);
        free(part);
}

static S3Part *make_part(const Drive *d, unsigned number) {
        bool is_last = number == d->n_parts;
        size_t bytes = is_last ? d->last_bytes : d->part_bytes;
        uint8_t *data = malloc(bytes + 1);
        S3Part *part = calloc(1, sizeof *part);

        if (!data || !part)
                abort();
        for (size_t i = 0; i < bytes; i++)
                data[i] = (uint8_t)(31 * number + 7 * i + i / 256);
        *part = (S3Part){ .number = number,
                          .data = data,
                          .bytes = bytes,
                          .is_last = is_last,
                          .release = release_part };
        sha256_of(data, bytes, part->sha256);
        return part;
}

static int give_later(sd_event_source *source, uint64_t usec, void *userdata) {
        Drive *d = userdata;

        (void)source;
        (void)usec;
        s3_upload_add_part(d->upload, make_part(d, d->later_number));
        return 0;
}

static void on_part_needed(S3Upload *u, unsigned number, void *userdata) {
        Drive *d = userdata;

        printf("want\t%u\n", number);
        if (!d->gives_later) {
                s3_upload_add_part(u, make_part(d, number));
                return;
        }
        d->later_number = number;
        if (timer_arm(&d->later, &(TimerOptions){ .event = d->event,
                                                  .usec = d->late_usec,
                                                  .slack_usec = 1,
                                                  .handler = give_later,
                                                  .userdata = d }) < 0)
                abort();
}

/* For how long the store has not answered. */
static int on_checked(sd_event_source *source, uint64_t usec, void *userdata) {
        Drive *d = userdata;
        uint64_t asked = s3_client_waiting_since_usec(d->client);
        uint64_t now = clock_system()->boottime_usec(clock_system());

        (void)source;
        (void)usec;
        d->silence_usec = MAX(d->silence_usec, asked > 0 ? now - asked : 0);
        return timer_arm(&d->look, &(TimerOptions){ .event = d->event,
                                                    .usec = d->look_usec,
                                                    .slack_usec = 1,
                                                    .handler = on_checked,
                                                    .userdata = d });
}

static int verdict_of(const Drive *d, const char *callback) {
        return d->fail_in && strcmp(d->fail_in, callback) == 0 ? -EDQUOT : 0;
}

static int on_begin(S3Upload *u, void *userdata) {
        (void)u;
        print_line("begin\n");
        return verdict_of(userdata, "begin");
}

static int on_upload_id(S3Upload *u, const char *upload_id, void *userdata) {
        (void)u;
        printf("id\t%s\n", upload_id);
        return verdict_of(userdata, "id");
}

static int on_etag(S3Upload *u, unsigned number, const char *etag, void *userdata) {
        Drive *d = userdata;

        (void)u;
        printf("etag\t%u\t%s\n", number, etag);
        if (++d->n_etags == d->free_after && sd_event_exit(d->event, 0) < 0)
                abort();
        return verdict_of(d, "etag");
}

static void on_uploaded(const S3UploadResult *result, void *userdata) {
        static const char *const proofs[] = { "none", "head", "response" };
        Drive *d = userdata;

        printf("done\t%d\t%s\t%" PRIu64 "\t%s\t%d\t%" PRIu64 "\t%s\n", result->outcome,
               proofs[result->proof], result->bytes, result->etag, result->may_have_orphans,
               s3_upload_sent_bytes(d->upload), result->error ? result->error : "");
        (void)sd_event_exit(d->event, 0);
}

static int upload(Drive *d, const char *key) {
        S3UploadOptions *o = &d->upload_order;

        o->key = key;
        o->content_type = "application/zstd";
        o->parts = d->known;
        o->on_part_needed = on_part_needed;
        o->on_begin = on_begin;
        o->on_upload_id = on_upload_id;
        o->on_etag = on_etag;
        o->on_done = on_uploaded;
        o->userdata = d;
        return s3_upload_new(&d->upload, d->client, o);
}

/* Single calls */

static int on_data(const void *data, size_t n, void *userdata) {
        (void)data;
        (void)userdata;
        printf("data\t%zu\n", n);
        return 0;
}

static void on_called(const S3Result *result, void *userdata) {
        Drive *d = userdata;
        const S3Response *a = result->answer;
        const char *etag = result->header(result, "etag");

        printf("answer\t%d\t%u\t%s\t%zu\t%s\t%s\t%u\n", (int)a->verdict, result->status,
               a->error.code, result->body_bytes, etag ? etag : "", a->sentence ? a->sentence : "",
               result->n_tries);
        if (--d->n_running == 0)
                (void)sd_event_exit(d->event, 0);
}

static int call(Drive *d, const char *name, const char *key) {
        const AwsNameValue header = { "range", d->range };
        const AwsNameValue query = { "prefix", key ? key : "" };
        bool is_list;
        int r = 0, o = 0;

        while (o < N_S3_OPERATIONS && strcmp(s3_operation_name((S3Operation)o), name) != 0)
                o++;
        is_list = o == S3_LIST_OBJECTS || o == S3_LIST_UPLOADS;
        d->options.operation = (S3Operation)o;
        d->options.key = is_list ? "" : key;
        d->options.queries = &query;
        d->options.n_queries = is_list;
        d->options.headers = &header;
        d->options.n_headers = d->range ? 1 : 0;
        d->options.body = calloc(1, d->part_bytes + 1);
        d->options.body_bytes = o == S3_PUT_OBJECT ? d->part_bytes : 0;
        d->options.with_object_headers = o == S3_PUT_OBJECT;
        d->options.on_data = d->streams ? on_data : NULL;
        d->options.on_done = on_called;
        d->options.userdata = d;
        for (; d->n_running < d->n_calls && r == 0; d->n_running++)
                r = s3_call_new(NULL, d->client, &d->options);
        return r;
}

/* Sweep and probe */

static bool is_known(const char *key, const char *upload_id, void *userdata) {
        const Drive *d = userdata;

        (void)key;
        return d->known_id && strcmp(d->known_id, upload_id) == 0;
}

static void on_abort(const char *key, const char *upload_id, uint64_t age_usec, void *userdata) {
        (void)userdata;
        printf("abort\t%s\t%s\t%" PRIu64 "\n", key, upload_id, age_usec / USEC_PER_SEC);
}

static void on_swept(int outcome, const char *error, unsigned n_aborted, void *userdata) {
        Drive *d = userdata;

        printf("swept\t%d\t%u\t%s\n", outcome, n_aborted, error ? error : "");
        (void)sd_event_exit(d->event, 0);
}

static void on_step(const S3ProbeStep *step, void *userdata) {
        (void)userdata;
        printf("step\t%s\t%d\t%d\t%s\t%s\n", step->what, step->outcome, step->is_optional,
               step->permission ? step->permission : "", step->detail);
}

static void on_probed(int outcome, const char *error, void *userdata) {
        Drive *d = userdata;

        printf("probed\t%d\t%s\n", outcome, error ? error : "");
        (void)sd_event_exit(d->event, 0);
}

/* @return what is to be freed, by `ret_sweep` or `ret_probe`; < 0 on failure */
static int sweep(Drive *d, const char *prefix, S3Sweep **ret) {
        d->sweep_order.prefix = prefix;
        d->sweep_order.is_known = is_known;
        d->sweep_order.on_abort = on_abort;
        d->sweep_order.on_done = on_swept;
        d->sweep_order.userdata = d;
        return s3_sweep_new(ret, d->client, &d->sweep_order);
}

static int probe(Drive *d, const char *key, S3Probe **ret) {
        return s3_probe_new(ret, d->client,
                            &(S3ProbeOptions){ .key = key,
                                               .list_prefix = "",
                                               .thorough = d->is_thorough,
                                               .on_step = on_step,
                                               .on_done = on_probed,
                                               .userdata = d });
}

static void print_stats(const S3Client *c) {
        S3Stats stats;
        uint64_t n_in_time = 0;

        s3_client_stats(c, &stats);
        for (size_t i = 0; i < S3_LATENCY_BUCKETS; i++)
                n_in_time += stats.count[i];
        for (size_t i = 0; i < stats.n; i++)
                printf("stat\t%s\t%u\t%" PRIu64 "\n", s3_operation_name(stats.items[i].operation),
                       stats.items[i].status, stats.items[i].n);
        printf("stats\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%d\t%" PRId64 "\t%s\n",
               stats.n_retries, stats.sent_bytes, stats.total, n_in_time,
               s3_client_has_conditions(c), s3_client_clock_offset_usec(c) / (int64_t)USEC_PER_SEC,
               s3_client_location(c)->region);
}

/* Options */

static uint64_t number(const char *text) {
        uint64_t n;

        if (parse_u64(text, &n) < 0) {
                (void)fprintf(stderr, "'%s' is no number\n", text);
                exit(2);
        }
        return n;
}

/* NUMBER:BYTES:ETAG[:last], with the SHA-256 that make_part() would give it */
static void add_known(Drive *d, char *text) {
        S3KnownPart *k = &d->known[d->upload_order.n_parts++];
        char *save = NULL, *n = strtok_r(text, ":", &save), *bytes = strtok_r(NULL, ":", &save);
        const char *etag = strtok_r(NULL, ":", &save);

        if (d->upload_order.n_parts > KNOWN_MAX || !bytes || !etag)
                exit(2);
        k->number = (unsigned)number(n);
        k->bytes = number(bytes);
        (void)snprintf(k->etag, sizeof k->etag, "%s", strcmp(etag, "-") == 0 ? "" : etag);
        k->is_last = strtok_r(NULL, ":", &save) != NULL;
        S3Part *part = make_part(d, k->number);
        memcpy(k->sha256, part->sha256, sizeof k->sha256);
        release_part(part);
}

enum {
        OPT_ENDPOINT = 1,
        OPT_BUCKET,
        OPT_REGION,
        OPT_CONNECTIONS,
        OPT_TIMEOUT,
        OPT_OWNER,
        OPT_SSE,
        OPT_KMS,
        OPT_CLASS,
        OPT_TAG,
        OPT_PARTS,
        OPT_PART_BYTES,
        OPT_LAST_BYTES,
        OPT_IN_FLIGHT,
        OPT_PLAN,
        OPT_REPLACE,
        OPT_WRITE_OVER,
        OPT_GUARD,
        OPT_ID,
        OPT_KNOWN,
        OPT_LATER,
        OPT_LATE,
        OPT_LOOK,
        OPT_FAIL_IN,
        OPT_FREE_AFTER,
        OPT_TRIES,
        OPT_CONDITIONAL,
        OPT_STREAM,
        OPT_RANGE,
        OPT_CALLS,
        OPT_EXACT,
        OPT_MIN_AGE,
        OPT_KNOWN_ID,
        OPT_THOROUGH,
        OPT_DEBUG,
        OPT_UPLOAD_RATE,
        OPT_REQUEST_RATE,
        OPT_CA,
};

static const struct option long_options[] = {
        { "endpoint", required_argument, NULL, OPT_ENDPOINT },
        { "bucket", required_argument, NULL, OPT_BUCKET },
        { "region", required_argument, NULL, OPT_REGION },
        { "connections", required_argument, NULL, OPT_CONNECTIONS },
        { "timeout-msec", required_argument, NULL, OPT_TIMEOUT },
        { "owner", required_argument, NULL, OPT_OWNER },
        { "sse", required_argument, NULL, OPT_SSE },
        { "kms-key", required_argument, NULL, OPT_KMS },
        { "storage-class", required_argument, NULL, OPT_CLASS },
        { "tags", no_argument, NULL, OPT_TAG },
        { "parts", required_argument, NULL, OPT_PARTS },
        { "part-bytes", required_argument, NULL, OPT_PART_BYTES },
        { "last-bytes", required_argument, NULL, OPT_LAST_BYTES },
        { "in-flight", required_argument, NULL, OPT_IN_FLIGHT },
        { "plan", required_argument, NULL, OPT_PLAN },
        { "may-replace", no_argument, NULL, OPT_REPLACE },
        { "write-over", no_argument, NULL, OPT_WRITE_OVER },
        { "guard", required_argument, NULL, OPT_GUARD },
        { "id", required_argument, NULL, OPT_ID },
        { "known", required_argument, NULL, OPT_KNOWN },
        { "later", no_argument, NULL, OPT_LATER },
        { "late-msec", required_argument, NULL, OPT_LATE },
        { "look-msec", required_argument, NULL, OPT_LOOK },
        { "fail-in", required_argument, NULL, OPT_FAIL_IN },
        { "free-after", required_argument, NULL, OPT_FREE_AFTER },
        { "tries", required_argument, NULL, OPT_TRIES },
        { "conditional", no_argument, NULL, OPT_CONDITIONAL },
        { "stream", no_argument, NULL, OPT_STREAM },
        { "range", required_argument, NULL, OPT_RANGE },
        { "calls", required_argument, NULL, OPT_CALLS },
        { "exact", no_argument, NULL, OPT_EXACT },
        { "min-age", required_argument, NULL, OPT_MIN_AGE },
        { "known-id", required_argument, NULL, OPT_KNOWN_ID },
        { "thorough", no_argument, NULL, OPT_THOROUGH },
        { "debug", no_argument, NULL, OPT_DEBUG },
        { "upload-rate", required_argument, NULL, OPT_UPLOAD_RATE },
        { "request-rate", required_argument, NULL, OPT_REQUEST_RATE },
        { "ca", required_argument, NULL, OPT_CA },
        { NULL, 0, NULL, 0 },
};

/* @return whether it was one of the client's */
static bool parse_client_option(S3ClientOptions *o, int option, const char *arg) {
        static char *const tags[] = { (char *)"team", (char *)"a b", (char *)"x+y", (char *)"z=1",
                                      NULL };

        switch (option) {
        case OPT_ENDPOINT:
                o->endpoint = arg;
                return true;
        case OPT_BUCKET:
                o->bucket = arg;
                return true;
        case OPT_REGION:
                o->region = arg;
                return true;
        case OPT_CONNECTIONS:
                o->connections = (unsigned)number(arg);
                return true;
        case OPT_TIMEOUT:
                o->request_timeout_usec = number(arg) * USEC_PER_MSEC;
                return true;
        case OPT_OWNER:
                o->expected_bucket_owner = arg;
                return true;
        case OPT_SSE:
                o->sse = arg;
                return true;
        case OPT_KMS:
                o->kms_key_id = arg;
                return true;
        case OPT_CLASS:
                o->storage_class = arg;
                return true;
        case OPT_CA:
                o->ca_file = arg;
                return true;
        case OPT_TAG:
                o->tags = tags;
                return true;
        default:
                return false;
        }
}

static void parse_option(Drive *d, int option, char *arg) {
        switch (option) {
        case OPT_PARTS:
                d->n_parts = number(arg);
                break;
        case OPT_PART_BYTES:
                d->part_bytes = d->last_bytes = number(arg);
                break;
        case OPT_LAST_BYTES:
                d->last_bytes = number(arg);
                break;
        case OPT_IN_FLIGHT:
                d->upload_order.max_parts_in_flight = (unsigned)number(arg);
                break;
        case OPT_PLAN:
                d->upload_order.plan_hex = arg;
                break;
        case OPT_REPLACE:
                d->upload_order.may_replace = true;
                break;
        case OPT_WRITE_OVER:
                d->upload_order.is_overwrite = true;
                break;
        case OPT_GUARD:
                d->upload_order.guard_key = arg;
                break;
        case OPT_ID:
                d->upload_order.upload_id = d->sweep_order.upload_id = arg;
                break;
        case OPT_KNOWN:
                add_known(d, arg);
                break;
        case OPT_LATER:
                d->gives_later = true;
                break;
        case OPT_LATE:
                d->gives_later = true;
                d->late_usec = number(arg) * USEC_PER_MSEC;
                break;
        case OPT_LOOK:
                d->look_usec = number(arg) * USEC_PER_MSEC;
                break;
        case OPT_FAIL_IN:
                d->fail_in = arg;
                break;
        case OPT_FREE_AFTER:
                d->free_after = number(arg);
                break;
        case OPT_TRIES:
                d->options.max_tries = (unsigned)number(arg);
                break;
        case OPT_CONDITIONAL:
                d->options.is_conditional = true;
                break;
        case OPT_STREAM:
                d->streams = true;
                break;
        case OPT_RANGE:
                d->range = arg;
                break;
        case OPT_CALLS:
                d->n_calls = number(arg);
                break;
        case OPT_EXACT:
                d->sweep_order.exact_key = true;
                break;
        case OPT_MIN_AGE:
                d->sweep_order.min_age_usec = number(arg) * USEC_PER_SEC;
                break;
        case OPT_KNOWN_ID:
                d->known_id = arg;
                break;
        case OPT_THOROUGH:
                d->is_thorough = true;
                break;
        case OPT_UPLOAD_RATE:
                d->upload_rate = number(arg);
                break;
        case OPT_REQUEST_RATE:
                d->request_rate = number(arg);
                break;
        case OPT_DEBUG:
                log_setup(LOG_FORMAT_TEXT, LOG_DEBUG);
                break;
        default:
                exit(2);
        }
}

static int make_throttle(RateLimit **ret, uint64_t rate, uint64_t saving_usec) {
        return rate == 0 ? 0
                         : ratelimit_new(ret, clock_system(), &(RateSchedule){ .rate = rate },
                                         saving_usec);
}

static int make_throttles(Drive *d) {
        int r = make_throttle(&d->client_options.upload, d->upload_rate, RATE_SAVING_USEC);

        return r < 0 ? r
                     : make_throttle(&d->client_options.requests, d->request_rate, USEC_PER_SEC);
}

static int run(Drive *d, char **words) {
        S3Sweep *sweeping = NULL;
        S3Probe *probing = NULL;
        int r;

        if (strcmp(words[0], "upload") == 0)
                r = upload(d, words[1]);
        else if (strcmp(words[0], "call") == 0)
                r = call(d, words[1], words[2]);
        else if (strcmp(words[0], "sweep") == 0)
                r = sweep(d, words[1], &sweeping);
        else
                r = probe(d, words[1], &probing);
        if (r == 0 && d->look_usec > 0)
                r = on_checked(NULL, 0, d);
        if (r == 0)
                r = sd_event_loop(d->event);
        print_stats(d->client);
        printf("counted\t%" PRIu64 "\t%" PRIu64 "\n", d->counted,
               s3_client_sending_bytes(d->client, &d->counted));
        printf("silence\t%" PRIu64 "\n", d->silence_usec / USEC_PER_MSEC);
        sd_event_source_disable_unref(d->later);
        sd_event_source_disable_unref(d->look);
        s3_upload_free(d->upload);
        s3_sweep_free(sweeping);
        s3_probe_free(probing);
        s3_client_free(d->client); /* cancels the calls that use the body */
        free((void *)d->options.body);
        return r;
}

int main(int argc, char **argv) {
        Drive d = { .n_parts = 1, .part_bytes = 1000, .last_bytes = 1000, .n_calls = 1 };
        Credentials *credentials = NULL;
        char *fault = NULL;
        int option, r;

        d.client_options = (S3ClientOptions){
                .clock = clock_system(),
                .bucket = "bucket",
                .region = "us-east-1",
                .proxy = "-",
                .addressing = "path",
                .connections = 4,
                .request_timeout_usec = 2 * USEC_PER_SEC,
                .retry_initial_usec = 20 * USEC_PER_MSEC,
                .retry_maximum_usec = 50 * USEC_PER_MSEC,
                .seed = 7,
        };
        d.upload_order.max_parts_in_flight = 3;
        d.upload_order.plan_hex = "00aa";
        d.upload_order.sent_bytes = d.options.sent_bytes = &d.counted;
        while ((option = getopt_long(argc, argv, "", long_options, NULL)) >= 0)
                if (!parse_client_option(&d.client_options, option, optarg))
                        parse_option(&d, option, optarg);
        if (argc - optind < 2 || http_global_init() < 0 || sd_event_new(&d.event) < 0)
                return 2;
        d.client_options.event = d.event;
        r = credentials_new(&credentials, &(CredentialsOptions){ .event = d.event,
                                                                 .clock = clock_system(),
                                                                 .environment = environ,
                                                                 .region = d.client_options.region,
                                                                 .proxy = "-" });
        d.client_options.credentials = credentials;
        if (r == 0)
                r = make_throttles(&d);
        if (r == 0)
                r = s3_client_new(&d.client, &d.client_options, &fault);
        if (r == 0)
                r = run(&d, argv + optind);
        if (r < 0)
                (void)fprintf(stderr, "%s%s%s\n", strerror(-r), fault ? ": " : "",
                              fault ? fault : "");
        credentials_free(credentials);
        ratelimit_unref(d.client_options.upload); /* the client had references of its own */
        ratelimit_unref(d.client_options.requests);
        sd_event_unref(d.event);
        free(fault);
        return r < 0 ? 1 : 0;
}
