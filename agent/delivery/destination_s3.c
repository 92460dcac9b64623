/* A bucket as a destination. Beside deliveries and the probe it tidies up: uploads of ours that
 * nobody goes on with are aborted, before the next delivery begins, so that none is taken for one
 * underway. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "agent/delivery/delivery_s3.h"
#include "agent/delivery/destination.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/bundle/packer.h"
#include "lib/neuron/names.h"
#include "uploaders/s3/s3_bucket.h"
#include "uploaders/s3/s3_endpoint.h"

/* Aborts that failed are tried again after this, and orphans are searched at least so often. */
#define ABORT_AGAIN_USEC (5 * USEC_PER_MINUTE)
#define REAP_MAX_USEC (6 * USEC_PER_HOUR)
#define REAP_MIN_USEC USEC_PER_SEC

typedef enum CleanupKind { CLEANUP_OURS, CLEANUP_ABORTS, CLEANUP_ORPHANS } CleanupKind;

typedef struct S3Target {
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
        int64_t abort_id; /* being tried, or the last one that failed: those behind it come first */
        bool abort_failed;    /* one of them, in this round */
        uint64_t aborts_usec; /* CLOCK_BOOTTIME: not before */
        uint64_t reap_usec;
        char *fixed; /* all our keys begin with it: `neuron/`, or "" */
} S3Target;

static S3Target *target(const Destination *d) {
        return d->target;
}

static int create_client(Destination *d, S3Target *t) {
        const SchedulerContext *c = &d->scheduler->context;
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
        r = s3_client_new(
                &t->client,
                &(S3ClientOptions){ .event = c->event,
                                    .clock = c->clock,
                                    .credentials = t->credentials,
                                    .bucket = config->bucket,
                                    .region = config->region,
                                    .endpoint = place.endpoint,
                                    .addressing = config->addressing,
                                    .dualstack = place.dualstack,
                                    .fips = place.fips,
                                    .ca_file = place.ca_bundle,
                                    .proxy = config->proxy,
                                    .connections = (unsigned)config->connections,
                                    .request_timeout_usec = config->request_timeout_usec,
                                    .expected_bucket_owner = config->expected_bucket_owner,
                                    .sse = config->sse,
                                    .kms_key_id = config->kms_key_id,
                                    .storage_class = config->storage_class,
                                    .tags = config->tags.items,
                                    .retry_initial_usec = d->scheduler->config->retry.initial_usec,
                                    .retry_maximum_usec = d->scheduler->config->retry.maximum_usec,
                                    .seed = scheduler_random(),
                                    .upload = d->scheduler->limits->upload,
                                    .requests = d->scheduler->limits->requests },
                &t->config_error);
        return r == -EINVAL ? 0 : r; /* the probe reports it */
}

static int s3_open(Destination *d) {
        S3Target *t = d->target = calloc(1, sizeof *t);
        if (!t)
                return -ENOMEM;
        t->fixed = s3_key_prefix(path_template_fixed(d->template));
        return !t->fixed ? -ENOMEM : create_client(d, t);
}

static void s3_stop(Destination *d, bool hung) {
        S3Target *t = target(d);
        if (hung)
                delivery_s3_abandon(d->running);
        t->probe = s3_probe_free(t->probe);
        t->sweep = s3_sweep_free(t->sweep);
        t->config_error_source = sd_event_source_disable_unref(t->config_error_source);
}

static void s3_close(Destination *d) {
        S3Target *t = target(d);
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
        scheduler_probe_done(userdata, outcome, error);
}

static int on_config_error(sd_event_source *source, void *userdata) {
        (void)source;
        Destination *d = userdata;
        scheduler_probe_done(d, UPLOAD_E_DENIED,
                             target(d)->config_error ? target(d)->config_error
                                                     : "its endpoint cannot be used");
        return 0;
}

static int s3_start_probe(Destination *d) {
        S3Target *t = target(d);
        if (!t->client) {
                t->config_error_source = sd_event_source_disable_unref(t->config_error_source);
                return sd_event_add_defer(d->scheduler->context.event, &t->config_error_source,
                                          on_config_error, d);
        }
        _cleanup_free_ char *key = s3_probe_key(t->fixed, d->scheduler->context.instance_id);
        if (!key)
                return -ENOMEM;
        t->probe = s3_probe_free(t->probe); /* the one before, which has ended */
        return s3_probe_new(
                &t->probe, t->client,
                &(S3ProbeOptions){
                        .key = key, .list_prefix = t->fixed, .on_done = on_probed, .userdata = d });
}

/* ---- tidying up ---- */

static bool is_kept(const char *key, const char *upload_id, void *userdata) {
        Destination *d = userdata;
        S3Target *t = target(d);
        Store *store = d->scheduler->context.store;
        if (store_ledger_knows(store, key, upload_id))
                return true;
        /* what is to be aborted is its own destination's business */
        return t->cleanup != CLEANUP_ABORTS &&
               (store_abort_knows(store, key, upload_id) ||
                !bundle_key_belongs_to(key, t->cleanup == CLEANUP_OURS
                                                    ? d->scheduler->context.instance_id
                                                    : NULL));
}

static void on_aborted(const char *key, const char *upload_id, uint64_t age_usec, void *userdata) {
        Destination *d = userdata;
        char age[64];
        (void)upload_id;
        d->scheduler->n_aborted++;
        log_notice("destination %s: aborted an unfinished upload of 's3://%s/%s', %s old, that "
                   "nobody goes on with",
                   d->config->name, d->config->bucket, key, clock_format_duration(age, age_usec));
}

/* Said once, not with every try. @param error  NULL = it went well */
static void log_failed_sweep(Destination *d, const char *error) {
        S3Target *t = target(d);
        if (error && (!t->sweep_error || strcmp(t->sweep_error, error) != 0))
                log_warning(0,
                            "destination %s: cannot abort unfinished uploads: %s; trying again "
                            "every %d min",
                            d->config->name, error, (int)(ABORT_AGAIN_USEC / USEC_PER_MINUTE));
        free(t->sweep_error);
        t->sweep_error = error ? strdup(error) : NULL;
}

static void on_swept(int outcome, const char *error, unsigned n_aborted, void *userdata) {
        Destination *d = userdata;
        S3Target *t = target(d);
        (void)n_aborted;
        log_failed_sweep(d, outcome != 0 ? error ? error : "failed" : NULL);
        if (t->cleanup == CLEANUP_ABORTS)
                t->abort_failed = outcome != 0 ||
                                  store_abort_done(d->scheduler->context.store, t->abort_id) < 0 ||
                                  t->abort_failed;
        if (t->cleanup == CLEANUP_OURS && outcome != 0) {
                t->swept_ours = false;
                t->ours_usec = scheduler_boottime_usec(d->scheduler) + ABORT_AGAIN_USEC;
        }
        scheduler_cleanup_done(d);
}

static bool start_sweep(Destination *d, CleanupKind what, const S3SweepOptions *order) {
        S3Target *t = target(d);
        S3SweepOptions own = *order;
        own.is_known = is_kept;
        own.on_abort = on_aborted;
        own.on_done = on_swept;
        own.userdata = d;
        t->cleanup = what;
        t->sweep = s3_sweep_free(t->sweep); /* the one before, which has ended */
        return s3_sweep_new(&t->sweep, t->client, &own) == 0;
}

/* One after the other; what fails is tried again when all have been tried. */
static bool start_next_abort(Destination *d) {
        S3Target *t = target(d);
        _cleanup_(ledger_abort_done) LedgerAbort next = { 0 };
        bool is_started = store_abort_next(d->scheduler->context.store, d->config->name,
                                           t->abort_id, &next) == 0 && /* an error: again later */
                          start_sweep(d, CLEANUP_ABORTS,
                                      &(S3SweepOptions){ .prefix = next.key,
                                                         .exact_key = true,
                                                         .upload_id = next.upload_id });
        t->abort_id = is_started ? next.id : 0;
        if (!is_started && t->abort_failed)
                t->aborts_usec = scheduler_boottime_usec(d->scheduler) + ABORT_AGAIN_USEC;
        t->abort_failed = t->abort_failed && is_started;
        return is_started;
}

static bool s3_clean_up(Destination *d, uint64_t *ret_next_usec) {
        S3Target *t = target(d);
        const Config *config = d->scheduler->config;
        uint64_t now = scheduler_boottime_usec(d->scheduler);
        if (!t->swept_ours && now >= t->ours_usec) {
                /* whatever of ours the ledger does not know: of a database that was lost, of a
                 * Create whose answer was */
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

/* ---- deliveries ---- */

static uint64_t first_part_bytes(const Destination *d) {
        return packer_part_bytes_max(d->config->part_size_bytes, 0, 0);
}

static uint64_t s3_memory_bytes(const Destination *d) {
        const Scheduler *s = d->scheduler;
        DeliveryS3Memory m = { .part_bytes = first_part_bytes(d),
                               .connections = (unsigned)d->config->connections,
                               .level = (int)s->config->limits.compression_level,
                               .n_compressors = s->n_compressors };
        uint64_t wanted = (m.connections + 1) * m.part_bytes +
                          bundle_writer_memory_best(m.level, m.n_compressors),
                 writer;
        m.bytes = MIN(wanted, scheduler_memory_share(s));
        unsigned n = delivery_s3_buffers(&m, &writer);
        return n > 0 ? n * m.part_bytes + writer : delivery_s3_memory_min(m.part_bytes, m.level);
}

static char *s3_format_location(const Destination *d, const char *directory, const char *name) {
        char *url = NULL;
        return asprintf(&url, "s3://%s/%s/%s", d->config->bucket, directory, name) < 0 ? NULL : url;
}

static int s3_delivery_new(Destination *d, const DeliveryRequest *order, Delivery **ret) {
        const SchedulerContext *c = &d->scheduler->context;
        DeliveryS3Options s3 = { .event = c->event,
                                 .client = target(d)->client,
                                 .store = c->store,
                                 .clock = c->clock,
                                 .worker = d->worker,
                                 .destination = d->config->name,
                                 .part_size = d->config->part_size_bytes,
                                 .connections = (unsigned)d->config->connections,
                                 .n_compressors = d->scheduler->n_compressors,
                                 .reserve = scheduler_reserve_memory };
        return delivery_s3_new(ret, order, &s3);
}

static int s3_delivery_start(Destination *d, Delivery *job) {
        (void)d;
        return delivery_s3_start(job);
}

static uint64_t s3_refresh(Destination *d) {
        delivery_s3_refresh(d->running);
        return atomic_load(&d->running->sent_bytes);
}

static bool s3_awaits_store(const Destination *d, uint64_t *ret_since_usec) {
        return delivery_s3_awaits_store(d->running, ret_since_usec);
}

static void s3_on_delivered(Destination *d, const char *bundle) {
        int r = store_ledger_end(d->scheduler->context.store, bundle, d->config->name);
        if (r < 0)
                log_dump(bundle, LOG_WARNING, r,
                         "%s: cannot clear its upload's ledger; an upload that is complete is "
                         "aborted later, in vain",
                         d->config->name);
}

static void s3_stats(const Destination *d, SchedulerRequests *ret) {
        S3Stats stats;
        *ret = (SchedulerRequests){ 0 };
        if (!target(d)->client)
                return;
        s3_client_stats(target(d)->client, &stats);
        ret->n_retries = stats.n_retries;
        ret->total = stats.total;
        ret->sum = stats.sum;
        static_assert(sizeof ret->le == sizeof stats.le, "buckets");
        memcpy(ret->le, stats.le, sizeof ret->le);
        memcpy(ret->count, stats.count, sizeof ret->count);
        for (size_t i = 0; i < MIN(stats.n, (size_t)SCHEDULER_REQUESTS_MAX); i++)
                ret->items[ret->n++] = (SchedulerRequestCount){ .operation = s3_operation_name(
                                                                        stats.items[i].operation),
                                                                .code = stats.items[i].status,
                                                                .n = stats.items[i].n };
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
        .memory_bytes = s3_memory_bytes,
        .format_location = s3_format_location,
        .delivery_new = s3_delivery_new,
        .delivery_start = s3_delivery_start,
        .delivery_abort = delivery_s3_abort,
        .delivery_wind_down = delivery_s3_wind_down,
        .delivery_free = delivery_s3_free,
        .refresh = s3_refresh,
        .awaits_destination = s3_awaits_store,
        .on_delivered = s3_on_delivered,
        .stats = s3_stats,
};
