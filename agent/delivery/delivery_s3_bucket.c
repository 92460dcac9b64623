/* A bucket as a destination: its client and credentials, the probe that shows whether it can be
 * written, and the clean-up before the next delivery starts, so that no upload to be aborted is
 * mistaken for one underway. A clean-up is one of three sweeps over the unfinished uploads:
 *   OURS     once after the start, those of this node that the ledger does not know
 *   ABORTS   those of a key that was queued in the store, one row after the other
 *   ORPHANS  those of any node that nobody has resumed for `retry.orphan_age`
 * A delivery to it is delivery_s3.c. Everything here is on the loop. */
#include "agent/delivery/delivery_s3_bucket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/delivery/delivery_memory.h"
#include "agent/delivery/delivery_s3.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/names.h"
#include "uploaders/s3/s3_bucket.h"
#include "uploaders/s3/s3_endpoint.h"
#include "uploaders/uploader.h"

/* A store may execute a CreateMultipartUpload long after its client gave up: the uploads of a key
 * are listed again for so long. */
#define CREATE_LATE_MAX_USEC (15 * USEC_PER_MINUTE)
#define REAP_MAX_USEC (6 * USEC_PER_HOUR)
#define REAP_MIN_USEC USEC_PER_SEC

typedef enum CleanupKind { CLEANUP_OURS, CLEANUP_ABORTS, CLEANUP_ORPHANS } CleanupKind;

typedef struct BucketTarget {
        Credentials *credentials;
        S3Client *client; /* NULL: config_error is the reason */
        char *config_error;
        S3Probe *probe;
        sd_event_source *config_error_source;
        S3Sweep *sweep;
        char *sweep_error; /* of the last one; NULL = it went well */
        CleanupKind cleanup;
        uint64_t ours_usec; /* CLOCK_BOOTTIME: not before */
        bool swept_ours;    /* once after the start */
        int64_t abort_id;   /* being tried, or the last one that stays: the later ones come first */
        uint64_t abort_late_usec; /* CLOCK_REALTIME: until then a Create may be late; 0: none */
        bool aborts_remain;       /* after this round */
        unsigned n_abort_rounds, n_ours_failed; /* in a row, after which some remain */
        uint64_t aborts_usec;                   /* CLOCK_BOOTTIME: not before */
        uint64_t reap_usec;
        char *fixed; /* all our keys begin with it: `neuron/`, or "" */
} BucketTarget;

static BucketTarget *target(const Destination *d) {
        return d->target;
}

S3Client *delivery_s3_bucket_client(const Destination *d, const char **ret_error) {
        const BucketTarget *t = target(d);
        *ret_error = t->client         ? NULL
                     : t->config_error ? t->config_error
                                       : "its endpoint cannot be used";
        return t->client;
}

static int create_client(Destination *d, BucketTarget *t) {
        const DestinationShared *c = d->shared;
        const ConfigDestination *config = d->config;
        S3Environment environment = s3_environment_read(c->environment),
                      place = s3_environment_resolve(&environment, config->endpoint,
                                                     config->ca_file);
        int r = credentials_new(&t->credentials,
                                &(CredentialsOptions){ .event = c->event,
                                                       .clock = c->clock,
                                                       .environment = c->environment,
                                                       .profile = config->profile,
                                                       .region = config->region,
                                                       .ca_file = place.ca_bundle,
                                                       .proxy = config->proxy });
        if (r < 0)
                return r;
        _cleanup_free_ char *region = config->region[0] ? NULL : credentials_region(t->credentials);
        r = s3_client_new(
                &t->client,
                &(S3ClientOptions){ .event = c->event,
                                    .clock = c->clock,
                                    .credentials = t->credentials,
                                    .bucket = config->bucket,
                                    .region = region ? region : config->region,
                                    .endpoint = place.endpoint,
                                    .addressing = config->addressing,
                                    .dualstack = place.dualstack,
                                    .fips = place.fips,
                                    .ca_file = place.ca_bundle,
                                    .omits_checksums = place.omits_checksums,
                                    .proxy = config->proxy,
                                    .connections = (unsigned)config->connections,
                                    .request_timeout_usec = config->request_timeout_usec,
                                    .expected_bucket_owner = config->expected_bucket_owner,
                                    .sse = config->sse,
                                    .kms_key_id = config->kms_key_id,
                                    .storage_class = config->storage_class,
                                    .tags = config->tags.items,
                                    .retry_initial_usec = d->shared->config->retry.initial_usec,
                                    .retry_maximum_usec = d->shared->config->retry.maximum_usec,
                                    .seed = destination_random(),
                                    .upload = d->shared->limits->upload,
                                    .requests = d->shared->limits->requests },
                &t->config_error);
        return r == -EINVAL ? 0 : r; /* the probe reports it */
}

static int s3_open(Destination *d) {
        BucketTarget *t = d->target = calloc(1, sizeof *t);
        if (!t)
                return -ENOMEM;
        t->fixed = s3_key_prefix(path_template_fixed(d->template));
        return !t->fixed ? -ENOMEM : create_client(d, t);
}

static void s3_stop(Destination *d, bool hung) {
        BucketTarget *t = target(d);
        if (hung)
                delivery_s3_stop(d->running);
        t->probe = s3_probe_free(t->probe);
        t->sweep = s3_sweep_free(t->sweep);
        t->config_error_source = sd_event_source_disable_unref(t->config_error_source);
}

static void s3_close(Destination *d) {
        BucketTarget *t = target(d);
        s3_client_free(t->client);
        credentials_free(t->credentials);
        free(t->config_error);
        free(t->sweep_error);
        free(t->fixed);
        free(t);
        d->target = NULL;
}

/* ---- can it be written? ---- */

static void on_probed(int outcome, const char *error, void *userdata) {
        destination_probe_done(userdata, outcome, error);
}

static int on_config_error(sd_event_source *source, void *userdata) {
        (void)source;
        Destination *d = userdata;
        const char *error;
        (void)delivery_s3_bucket_client(d, &error);
        destination_probe_done(d, UPLOAD_E_DENIED, error);
        return 0;
}

static int s3_start_probe(Destination *d) {
        BucketTarget *t = target(d);
        if (!t->client) {
                t->config_error_source = sd_event_source_disable_unref(t->config_error_source);
                return sd_event_add_defer(d->shared->event, &t->config_error_source,
                                          on_config_error, d);
        }
        _cleanup_free_ char *key = s3_probe_key(t->fixed, d->shared->instance_id);
        if (!key)
                return -ENOMEM;
        t->probe = s3_probe_free(t->probe); /* the one before, which has ended */
        return s3_probe_new(
                &t->probe, t->client,
                &(S3ProbeOptions){
                        .key = key, .list_prefix = t->fixed, .on_done = on_probed, .userdata = d });
}

/* ---- aborting unfinished uploads ---- */

static bool is_kept(const char *key, const char *upload_id, void *userdata) {
        Destination *d = userdata;
        BucketTarget *t = target(d);
        Store *store = d->shared->store;
        if (store_ledger_knows(store, key, upload_id))
                return true;
        /* what is to be aborted is aborted by its own destination */
        return t->cleanup != CLEANUP_ABORTS &&
               (store_abort_knows(store, key, upload_id) ||
                !bundle_key_belongs_to(key,
                                       t->cleanup == CLEANUP_OURS ? d->shared->instance_id : NULL));
}

static void on_aborted(const char *key, const char *upload_id, uint64_t age_usec, void *userdata) {
        Destination *d = userdata;
        char age[64];
        (void)upload_id;
        d->shared->n_aborted++;
        log_notice("destination %s: aborted an unfinished upload of 's3://%s/%s', %s old, that "
                   "nobody resumes",
                   d->config->name, d->config->bucket, key, clock_format_duration(age, age_usec));
}

/* Logs a failure once, not with every try. @param error  NULL = it went well */
static void log_failed_sweep(Destination *d, const char *error) {
        BucketTarget *t = target(d);
        if (error && (!t->sweep_error || strcmp(t->sweep_error, error) != 0))
                log_warning(0,
                            "destination %s: cannot abort unfinished uploads: %s; trying again "
                            "as `retry` says",
                            d->config->name, error);
        free(t->sweep_error);
        t->sweep_error = error ? strdup(error) : NULL;
}

static uint64_t next_cleanup_usec(const Destination *d, unsigned n_rounds) {
        const DestinationShared *s = d->shared;
        return destination_boottime_usec(d) +
               backoff_next_usec(n_rounds, s->config->retry.initial_usec,
                                 s->config->retry.maximum_usec, destination_random());
}

static void on_swept(int outcome, const char *error, unsigned n_aborted, void *userdata) {
        Destination *d = userdata;
        BucketTarget *t = target(d);
        (void)n_aborted;
        log_failed_sweep(d, outcome != 0 ? error ? error : "failed" : NULL);
        if (t->cleanup == CLEANUP_ABORTS &&
            (outcome != 0 || destination_realtime_usec(d) < t->abort_late_usec ||
             store_abort_done(d->shared->store, t->abort_id) < 0))
                t->aborts_remain = true;
        if (t->cleanup == CLEANUP_OURS && outcome != 0) {
                t->swept_ours = false;
                t->ours_usec = next_cleanup_usec(d, ++t->n_ours_failed);
        }
        destination_cleanup_done(d, outcome);
}

static bool start_sweep(Destination *d, CleanupKind what, const S3SweepOptions *options) {
        BucketTarget *t = target(d);
        S3SweepOptions own = *options;
        own.is_known = is_kept;
        own.on_abort = on_aborted;
        own.on_done = on_swept;
        own.userdata = d;
        t->cleanup = what;
        t->sweep = s3_sweep_free(t->sweep); /* the one before, which has ended */
        return s3_sweep_new(&t->sweep, t->client, &own) == 0;
}

/* @return until when a Create of this key may still be executed, CLOCK_REALTIME; 0: the row has an
 * upload id, or the clock was set back
 */
static uint64_t late_create_usec(const Destination *d, const LedgerAbort *a) {
        uint64_t now = destination_realtime_usec(d);
        return a->upload_id || a->since_usec > now ? 0 : a->since_usec + CREATE_LATE_MAX_USEC;
}

/* Starts the next row; rows that remain are tried again when all have been tried. */
static bool start_next_abort(Destination *d) {
        BucketTarget *t = target(d);
        _cleanup_(ledger_abort_done) LedgerAbort next = { 0 };
        bool is_started = store_abort_next(d->shared->store, d->config->name, t->abort_id, &next) ==
                                  0 && /* an error: again later */
                          start_sweep(d, CLEANUP_ABORTS,
                                      &(S3SweepOptions){ .prefix = next.key,
                                                         .exact_key = true,
                                                         .upload_id = next.upload_id });
        t->abort_id = is_started ? next.id : 0;
        t->abort_late_usec = is_started ? late_create_usec(d, &next) : 0;
        if (is_started)
                return true;
        t->n_abort_rounds = t->aborts_remain ? t->n_abort_rounds + 1 : 0;
        if (t->aborts_remain)
                t->aborts_usec = next_cleanup_usec(d, t->n_abort_rounds);
        t->aborts_remain = false;
        return false;
}

static bool s3_clean_up(Destination *d, uint64_t *ret_next_usec) {
        BucketTarget *t = target(d);
        const Config *config = d->shared->config;
        uint64_t now = destination_boottime_usec(d);
        if (!t->swept_ours && now >= t->ours_usec) {
                /* uploads of ours that the ledger does not know: of a database that was lost, or of
                 * a Create whose answer was lost */
                t->swept_ours = true;
                if (start_sweep(d, CLEANUP_OURS, &(S3SweepOptions){ .prefix = t->fixed }))
                        return true;
        }
        if (now >= t->aborts_usec && start_next_abort(d))
                return true;
        if (config->retry.orphan_age_usec > 0 && now >= t->reap_usec) {
                t->reap_usec = now + MAX(MIN(config->retry.orphan_age_usec / 4, REAP_MAX_USEC),
                                         REAP_MIN_USEC);
                if (start_sweep(d, CLEANUP_ORPHANS,
                                &(S3SweepOptions){ .prefix = t->fixed,
                                                   .min_age_usec = config->retry.orphan_age_usec }))
                        return true;
        }
        *ret_next_usec = config->retry.orphan_age_usec > 0 ? t->reap_usec : USEC_INFINITY;
        if (now < t->aborts_usec)
                *ret_next_usec = MIN(*ret_next_usec, t->aborts_usec);
        if (!t->swept_ours)
                *ret_next_usec = MIN(*ret_next_usec, MAX(t->ours_usec, now + USEC_PER_SEC));
        return false;
}

/* ---- the operations of the bucket ---- */

static int s3_delivery_new(Destination *d, const Bundle *b, const char *directory, Delivery **ret) {
        return delivery_s3_new(ret, &(DeliveryS3Options){ .at = d,
                                                          .client = target(d)->client,
                                                          .bundle = b,
                                                          .directory = directory });
}

static char *s3_format_location(const Destination *d, const char *directory, const char *name) {
        return strbuf_format("s3://%s/%s/%s", d->config->bucket, directory, name);
}

static void s3_on_delivered(Destination *d, const char *bundle) {
        int r = store_ledger_end(d->shared->store, bundle, d->config->name);
        if (r < 0)
                log_dump(bundle, LOG_WARNING, r,
                         "%s: cannot clear its upload's ledger; an upload that is complete is "
                         "aborted later, without effect",
                         d->config->name);
}

static bool s3_stats(const Destination *d, S3Stats *ret) {
        if (target(d)->client)
                s3_client_stats(target(d)->client, ret);
        return target(d)->client;
}

static uint64_t bucket_memory_bytes(const Destination *d) {
        return delivery_memory_of_bucket(&d->shared->memory, d->config);
}

const DestinationType destination_s3_type = {
        .name = "s3",
        .is_shared = true,
        .can_interrupt = true,
        .stall_text = "the store does not answer",
        .cut_text = "interrupted, will be resumed",
        .worker_name = "nc-pack",
        .open = s3_open,
        .stop = s3_stop,
        .close = s3_close,
        .probe = s3_start_probe,
        .clean_up = s3_clean_up,
        .memory_bytes = bucket_memory_bytes,
        .format_location = s3_format_location,
        .delivery_new = s3_delivery_new,
        .delivery_start = delivery_s3_start,
        .delivery_abort = delivery_s3_abort,
        .delivery_wind_down = delivery_s3_wind_down,
        .delivery_free = delivery_s3_free,
        .refresh = delivery_s3_refresh,
        .awaits_destination = delivery_s3_awaits_store,
        .on_delivered = s3_on_delivered,
        .stats = s3_stats,
};
