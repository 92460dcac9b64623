/* A bucket as it is known so far: where, what time it is there, whether it has conditional writes. How a call goes its way is in
 * s3_client_call.c. */
#include "uploaders/s3/s3_client.h"

#include <errno.h>
#include <string.h>

#include "uploaders/s3/s3_client_private.h"
#include "uploaders/s3/s3_time.h"
#include "uploaders/uploader.h"

static int copy_string(const char **to, const char *from) {
        *to = strdup(from ? from : "");
        return *to ? 0 : -ENOMEM;
}

static int copy_list(char *const **to, char *const *from) {
        size_t n = 0;

        while (from && from[n])
                n++;
        char **list = calloc(n + 1, sizeof *list);
        if (!list)
                return -ENOMEM;
        *to = list;
        for (size_t i = 0; i < n; i++) {
                list[i] = strdup(from[i]);
                if (!list[i])
                        return -ENOMEM;
        }
        return 0;
}

/* The strings of the options, all of them, so that copying and freeing cannot forget one. */
#define N_STRINGS 10
static void option_strings(S3ClientOptions *o, const char **ret[static N_STRINGS]) {
        const char **all[N_STRINGS] = {
                &o->bucket,     &o->region,        &o->endpoint, &o->addressing,
                &o->proxy,      &o->ca_file,       &o->sse,      &o->expected_bucket_owner,
                &o->kms_key_id, &o->storage_class,
        };

        memcpy(ret, all, sizeof all);
}

static int copy_options(S3ClientOptions *to, const S3ClientOptions *from) {
        S3ClientOptions source = *from;
        const char **theirs[N_STRINGS], **ours[N_STRINGS];
        int r = 0;

        *to = *from;
        option_strings(&source, theirs);
        option_strings(to, ours);
        for (size_t i = 0; i < N_STRINGS; i++)
                *ours[i] = NULL;
        to->tags = NULL;
        to->upload = throttle_ref(from->upload);
        to->requests = throttle_ref(from->requests);
        for (size_t i = 0; i < N_STRINGS && r == 0; i++)
                r = copy_string(ours[i], *theirs[i]);
        return r < 0 ? r : copy_list(&to->tags, from->tags);
}

static void free_options(S3ClientOptions *o) {
        const char **ours[N_STRINGS];

        option_strings(o, ours);
        for (size_t i = 0; i < N_STRINGS; i++)
                free((char *)*ours[i]);
        for (char *const *tag = o->tags; tag && *tag; tag++)
                free(*tag);
        free((char **)o->tags);
        throttle_unref(o->upload);
        throttle_unref(o->requests);
}

static int find_place(const S3Client *c, const char *region, S3Place *ret, char **ret_fault) {
        const S3PlaceOptions options = {
                .bucket = c->options.bucket,
                .region = region,
                .endpoint = c->options.endpoint,
                .addressing = c->options.addressing[0] ? c->options.addressing : NULL,
                .dualstack = c->options.dualstack,
                .fips = c->options.fips,
        };

        return s3_place_make(ret, &options, ret_fault);
}

int s3_client_new(S3Client **ret, const S3ClientOptions *options, char **ret_fault) {
        _cleanup_(s3_client_freep) S3Client *c = calloc(1, sizeof *c);
        int r;

        *ret_fault = NULL;
        if (!c)
                return -ENOMEM;
        list_init(&c->calls);
        s3_counts_init(&c->counts);
        c->random = options->seed;
        c->clock = options->clock;
        c->credentials = options->credentials;
        c->event = sd_event_ref(options->event);
        r = copy_options(&c->options, options);
        if (r < 0)
                return r;
        c->options.connections = MAX(options->connections, 1U);
        aimd_init(&c->aimd, c->options.connections);
        r = find_place(c, c->options.region, &c->place, ret_fault);
        if (r < 0)
                return r;
        /* One more than large bodies may have: a HEAD or an abort never waits behind parts. */
        const HttpThrottle throttle = s3_client_throttle(c);
        const HttpPoolOptions pool = {
                .max_connections = c->options.connections + 1,
                .ca_file = c->options.ca_file,
                .proxy = c->options.proxy,
                .stall_usec = options->request_timeout_usec,
                .throttle = c->options.upload ? &throttle : NULL,
        };
        r = http_pool_new(&c->pool, c->event, &pool);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}

S3Client *s3_client_free(S3Client *c) {
        if (!c)
                return NULL;
        LIST_FOREACH_SAFE (link, &c->calls)
                s3_call_free(CONTAINER_OF(link, S3Call, link));
        http_pool_free(c->pool);
        s3_place_done(&c->place);
        free_options(&c->options);
        s3_counts_done(&c->counts);
        sd_event_unref(c->event);
        free(c);
        return NULL;
}

bool s3_client_has_conditions(const S3Client *c) {
        return !c->has_no_conditions;
}

int64_t s3_client_clock_offset_usec(const S3Client *c) {
        return c->clock_ahead_usec;
}

uint64_t s3_client_now_usec(const S3Client *c) {
        return c->clock->realtime_usec(c->clock) + (uint64_t)c->clock_ahead_usec;
}

const S3Place *s3_client_place(const S3Client *c) {
        return &c->place;
}

const char *s3_client_bucket(const S3Client *c) {
        return c->options.bucket;
}

sd_event *s3_client_event(const S3Client *c) {
        return c->event;
}

Credentials *s3_client_credentials(const S3Client *c) {
        return c->credentials;
}

int s3_client_move(S3Client *c, const char *region) {
        S3Place place;
        int r = find_place(c, region, &place, NULL);

        if (r < 0)
                return r;
        s3_place_done(&c->place);
        c->place = place;
        return 0;
}

/* splitmix64: any seed will do, and tests give their own. */
uint64_t s3_client_random(S3Client *c) {
        uint64_t z = c->random += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

void s3_client_heard_date(S3Client *c, const char *http_date) {
        uint64_t theirs;

        if (http_date && s3_time_parse_http(http_date, &theirs) == 0)
                c->clock_ahead_usec = (int64_t)(theirs - c->clock->realtime_usec(c->clock));
}

int s3_verdict_outcome(S3Verdict verdict) {
        switch (verdict) {
        case S3_OK:
                return 0;
        case S3_EXISTS:
                return UPLOAD_E_EXISTS;
        case S3_FULL:
                return UPLOAD_E_FULL;
        case S3_NO_UPLOAD:
        case S3_BAD_PART:
                return UPLOAD_E_STALE;
        case S3_NOT_FOUND:
        case S3_CONFLICT:
        case S3_RETRY:
        case S3_CORRUPTED:
        case S3_UNREACHABLE:
                return UPLOAD_E_AWAY;
        case S3_SKEWED:
        case S3_REDIRECT:
        case S3_EXPIRED:
        case S3_DENIED:
        case S3_NO_BUCKET:
                return UPLOAD_E_DENIED;
        case S3_REFUSED:
        case S3_UNCONDITIONAL:
                return UPLOAD_E_REFUSED;
        }
        return UPLOAD_E_REFUSED;
}
