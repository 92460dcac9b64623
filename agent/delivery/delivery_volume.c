/* A volume as a destination: its deliveries and its probe block, so they run in a worker of its own. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/delivery/destination.h"
#include "lib/base/path.h"
#include "lib/bundle/writer.h"
#include "uploaders/volume/volume.h"

typedef struct ShipVolumeOrder {  /* borrowed */
        Volume *volume;           /* must outlive the job */
        const char *root;         /* of the volume, for messages; copied */
        uint64_t size_hint_bytes; /* so much at least must fit, 0 = unknown */
} ShipVolumeOrder;

#define STRIPE_BYTES (8 * MIB)

typedef struct ShipVolume {
        ShipJob ship;
        Volume *volume; /* borrowed */
        char *root;
        uint64_t size_hint_bytes;
} ShipVolume;

typedef struct VolumeAttempt {
        ShipAttempt base;
        ShipVolume *v;
        BundleWriter *writer;
        VolumeObject *object, *manifest;
        Parts parts;
        Sha256 manifest_sha;
        uint64_t manifest_bytes;
        char *path, *manifest_path; /* below the volume's root */
        bool replace_manifest; /* there is one of this plan, but its object is not what it says */
} VolumeAttempt;

static void attempt_done(VolumeAttempt *a) {
        volume_object_free(a->manifest);
        volume_object_free(a->object);
        bundle_writer_free(a->writer);
        parts_done(&a->parts);
        free(a->path);
        free(a->manifest_path);
        ship_attempt_done(&a->base);
}

/* What the volume needs to know of the parts. @return the caller's, NULL for lack of memory */
static VolumeStripe *stripes_of(const Part *parts, size_t n) {
        VolumeStripe *stripes = calloc(MAX(n, (size_t)1), sizeof *stripes);
        for (size_t i = 0; stripes && i < n; i++) {
                stripes[i].bytes = parts[i].bytes;
                memcpy(stripes[i].sha256, parts[i].sha256, SHA256_SIZE);
        }
        return stripes;
}

static bool object_is_whole(const VolumeAttempt *a, const ManifestHead *head) {
        _cleanup_free_ VolumeStripe *stripes = stripes_of(head->parts, head->n_parts);
        return stripes && volume_verify(a->v->volume, a->path, stripes, head->n_parts) == 0;
}

/* The manifest is written last, so one that names this very plan means that an earlier run got through and died before it could
 * write that down. Its object is read back all the same: somebody may have removed it since. */
static bool look_for_manifest(VolumeAttempt *a) {
        _cleanup_free_ char *text = NULL, *where = NULL;
        _cleanup_(manifest_head_done) ManifestHead head = { 0 };
        size_t n = 0;
        if (asprintf(&where, "%s/%s", a->v->root, a->manifest_path) < 0)
                where = NULL;
        int r = volume_read_head(a->v->volume, a->manifest_path, MANIFEST_HEAD_MAX_BYTES, &text,
                                 &n);
        if (r == -ENOENT || r == -ENOTDIR ||
            r == -ELOOP) /* what is in the way is told when the object is begun */
                return true;
        if (r < 0) { /* what cannot be seen might be a bundle */
                char *error = NULL;
                if (asprintf(&error, "cannot look whether '%s' is there already: %s",
                             where ? where : a->manifest_path, strerror(-r)) < 0)
                        error = NULL;
                return ship_end_upload(a->base.s, UPLOAD_E_AWAY, error);
        }
        if (!ship_attempt_is_ours(&a->base, text, n, where ? where : a->manifest_path, &head))
                return false;
        a->replace_manifest = !object_is_whole(a, &head);
        return a->replace_manifest ? ship_may_go_on(a->base.s)
                                   : ship_attempt_was_delivered(&a->base, &head);
}

static bool begin_object(VolumeAttempt *a) {
        char *error = NULL;
        int r = volume_begin(a->v->volume, a->path, a->v->size_hint_bytes, &a->object, &error);
        return r == 0 || ship_end_upload(a->base.s, r, error);
}

static void done(WorkJob *job);

/* Writes piece by piece, as limits.upload_rate lets it. @return whether all of it is written; false: a->base.s has ended */
static bool put_bytes(VolumeAttempt *a, VolumeObject *object, const void *data, size_t n) {
        ShipJob *s = a->base.s;
        Throttle *upload = s->limits ? s->limits->upload : NULL;
        char *error = NULL;
        for (size_t done = 0, piece; done < n; done += piece) {
                piece = throttle_wait(upload, n - done, &s->abort);
                if (piece == 0)
                        return ship_may_go_on(s); /* it may not: *abort is set */
                int r = volume_write(object, (const uint8_t *)data + done, piece, &error);
                if (r != 0)
                        return ship_end_upload(s, r, error);
                atomic_fetch_add(&s->sent_bytes, piece);
        }
        return true;
}

static bool put_frame(VolumeAttempt *a, const BundleFrame *frame) {
        ShipJob *s = a->base.s;
        bool closed;
        uint64_t done = frame->stream_offset + frame->stream_bytes;
        if (!put_bytes(a, a->object, frame->data, frame->bytes))
                return false;
        int r = parts_add_frame(&a->parts, frame->data, frame->bytes,
                                plan_stream_bytes(a->base.plan) - done, &closed);
        if (r < 0)
                return ship_endf(s, SHIP_FAILED, "%s", strerror(-r));
        atomic_store(&s->done_bytes, done);
        atomic_store(&s->read_bytes, bundle_writer_bytes_read(a->writer));
        return ship_may_go_on(s);
}

static bool put_frames(VolumeAttempt *a) {
        BundleWriterOptions options = ship_attempt_writer(&a->base, a->base.s->memory_bytes);
        int r = bundle_writer_new(&a->writer, a->base.plan, &options);
        if (r < 0)
                return ship_attempt_end_writer(&a->base, r, SIZE_MAX);
        BundleFrame frame;
        while ((r = bundle_writer_next(a->writer, &frame)) == WRITER_FRAME)
                if (!put_frame(a, &frame))
                        return false;
        return r == 0 ||
               ship_attempt_end_writer(&a->base, r, bundle_writer_failed_member(a->writer));
}

static bool put_seek_table(VolumeAttempt *a) {
        ShipJob *s = a->base.s;
        const void *table;
        size_t n;
        int r = bundle_writer_seek_table(a->writer, &table, &n);
        if (r >= 0)
                r = parts_finish(&a->parts, table, n);
        if (r < 0)
                return ship_endf(s, SHIP_FAILED, "cannot make the seek table: %s", strerror(-r));
        return put_bytes(a, a->object, table, n) && ship_may_go_on(s);
}

typedef struct Commit {
        VolumeObject *object;
        const VolumeStripe *stripes;
        size_t n;
        bool replace; /* what has the name may go */
} Commit;

static bool commit(const VolumeAttempt *a, const Commit *c) {
        ShipJob *s = a->base.s;
        char *error = NULL;
        int r = volume_commit(c->object, c->stripes, c->n, &error);
        if (r == UPLOAD_E_EXISTS && c->replace) {
                free(error);
                error = NULL;
                if (!ship_may_go_on(s))
                        return false;
                r = volume_replace(c->object, c->stripes, c->n, &error);
        }
        if (r != 0 && r != UPLOAD_E_SAME)
                return ship_end_upload(s, r, error);
        free(error);
        return true;
}

static bool finish_object(VolumeAttempt *a) {
        ShipJob *s = a->base.s;
        if (!put_seek_table(a))
                return false;
        _cleanup_free_ VolumeStripe *stripes = stripes_of(a->parts.items, a->parts.n);
        if (!stripes)
                return ship_endf(s, SHIP_FAILED, "%s", strerror(ENOMEM));
        s->object_bytes = a->parts.total_bytes;
        /* Without a manifest what has the name is no bundle: what a crash left of an earlier plan. The name is ours, so it may go. */
        return commit(a, &(Commit){ a->object, stripes, a->parts.n, true });
}

typedef struct ManifestPut {
        VolumeAttempt *a;
        bool has_ended;
} ManifestPut;

static int put_manifest_piece(const void *data, size_t n, void *userdata) {
        ManifestPut *put = userdata;
        sha256_update(&put->a->manifest_sha, data, n);
        put->a->manifest_bytes += n;
        put->has_ended = !put_bytes(put->a, put->a->manifest, data, n);
        return put->has_ended ? -EIO : 0;
}

static bool put_manifest(VolumeAttempt *a) {
        ShipJob *s = a->base.s;
        ManifestPut put = { .a = a };
        char *error = NULL;
        ship_attempt_judge(&a->base, a->writer);
        int r = volume_begin(a->v->volume, a->manifest_path, 0, &a->manifest, &error);
        if (r != 0)
                return ship_end_upload(s, r, error);
        sha256_init(&a->manifest_sha);
        r = ship_attempt_manifest(&a->base, a->writer, &a->parts, put_manifest_piece, &put);
        if (put.has_ended)
                return false;
        if (r < 0)
                return ship_endf(s, SHIP_FAILED, "cannot write the manifest: %s", strerror(-r));
        VolumeStripe whole = { .bytes = a->manifest_bytes };
        sha256_final(&a->manifest_sha, whole.sha256);
        return ship_may_go_on(s) &&
               commit(a, &(Commit){ a->manifest, &whole, 1, a->replace_manifest });
}

static void sweep(VolumeAttempt *a) {
        /* Temporary names that a crash left, even one between link and unlink; what cannot be removed, begin tells. */
        (void)volume_sweep(a->v->volume, a->path);
        (void)volume_sweep(a->v->volume, a->manifest_path);
}

static bool attempt_run(VolumeAttempt *a) {
        if (!ship_attempt_begin(&a->base, &a->v->ship))
                return false;
        a->path = path_join(a->v->ship.directory, a->base.object_name);
        a->manifest_path = path_join(a->v->ship.directory, a->base.manifest_name);
        if (!a->path || !a->manifest_path)
                return ship_endf(a->base.s, SHIP_FAILED, "%s", strerror(ENOMEM));
        sweep(a);
        return look_for_manifest(a) && ship_may_go_on(a->base.s) && begin_object(a) &&
               put_frames(a) && finish_object(a) && ship_may_go_on(a->base.s) && put_manifest(a) &&
               ship_attempt_delivered(&a->base);
}

static void run(WorkJob *job) {
        ShipVolume *v = CONTAINER_OF(job, ShipVolume, ship.job);
        v->ship.proof = PROOF_READBACK;
        for (int i = 0; i < SHIP_PLANS_MAX; i++) {
                VolumeAttempt a = { .v = v };
                parts_init(&a.parts, STRIPE_BYTES);
                (void)attempt_run(&a); /* v->ship has the answer */
                attempt_done(&a);
                if (v->ship.result != SHIP_CHANGED)
                        return;
        }
}

static void done(WorkJob *job) {
        ShipJob *s = CONTAINER_OF(job, ShipJob, job);
        s->on_done(s);
}

static int ship_volume_new(ShipJob **ret, const ShipOrder *order, const ShipVolumeOrder *volume) {
        ShipVolume *v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;
        v->ship.job = (WorkJob){ .run = run, .done = done };
        v->volume = volume->volume;
        v->size_hint_bytes = volume->size_hint_bytes;
        v->root = strdup(volume->root);
        int r = v->root ? ship_job_init(&v->ship, order) : -ENOMEM;
        if (r < 0) {
                free(v->root);
                free(v);
                return r;
        }
        *ret = &v->ship;
        return 0;
}

static ShipJob *ship_volume_free(ShipJob *s) {
        if (!s)
                return NULL;
        ShipVolume *v = CONTAINER_OF(s, ShipVolume, ship);
        ship_job_done(s);
        free(v->root);
        free(v);
        return NULL;
}

/* So much may still be copied when the agent is to stop. */
#define WIND_DOWN_BYTES (8 * MIB)

typedef struct VolumeTarget {
        Volume *volume;
        WorkerPool *worker; /* one thread: a hung mount hangs only this */
        /* Can the volume be written? Asked at the start and after each failure, before a bundle is packed for it. */
        struct VolumeProbe *probe; /* running */
} VolumeTarget;

typedef struct VolumeProbe {
        WorkJob job;
        Destination *owner;
        Volume *volume; /* borrowed */
        int outcome;
        char *error;
} VolumeProbe;

static VolumeTarget *target(const Destination *d) {
        return d->target;
}

static int volume_open(Destination *d) {
        const ConfigDestination *config = d->config;
        VolumeTarget *t = d->target = calloc(1, sizeof *t);
        if (!t)
                return -ENOMEM;
        char counter[128];
        snprintf(counter, sizeof counter, "bytes_delivered:%s", config->name);
        int r = volume_new(
                &t->volume,
                &(VolumeOptions){
                        .root = path_template_fixed(d->template),
                        .min_free_bytes = config->min_free.is_permille ? 0 : config->min_free.bytes,
                        .min_free_permille =
                                config->min_free.is_permille ? config->min_free.permille : 0,
                        /* a root that was there and is not any more is not mounted */
                        .must_exist = store_counter(d->pipeline->context.store, counter) > 0 });
        return r < 0 ? r
                     : worker_pool_new(&t->worker, d->pipeline->context.event, "nc-ship", 1,
                                       WORKER_IDLE);
}

static WorkerPool *volume_worker(const Destination *d) {
        return target(d)->worker;
}

static bool volume_is_busy(const Destination *d) {
        const VolumeTarget *t = target(d);
        const WorkJob *job = d->running ? &d->running->job : t->probe ? &t->probe->job : NULL;
        return job && worker_pool_is_running(job);
}

static void volume_stop(Destination *d, bool hung) {
        VolumeTarget *t = target(d);
        if (hung)
                worker_pool_abandon(t->worker);
        else
                t->worker = worker_pool_free(t->worker);
}

static VolumeProbe *volume_probe_free(VolumeProbe *v) {
        if (v) {
                free(v->error);
                free(v);
        }
        return NULL;
}

static void volume_close(Destination *d) {
        VolumeTarget *t = target(d);
        volume_probe_free(t->probe);
        volume_free(t->volume);
        free(t);
        d->target = NULL;
}

static void run_probe(WorkJob *job) {
        VolumeProbe *v = CONTAINER_OF(job, VolumeProbe, job);
        v->outcome = volume_probe(v->volume, &v->error);
}

static void on_probed(WorkJob *job) {
        VolumeProbe *v = CONTAINER_OF(job, VolumeProbe, job);
        target(v->owner)->probe = NULL;
        pipeline_probed(v->owner, v->outcome, v->error);
        volume_probe_free(v);
}

static int volume_begin_probe(Destination *d) {
        VolumeTarget *t = target(d);
        VolumeProbe *v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;
        *v = (VolumeProbe){ .job = { .run = run_probe, .done = on_probed },
                            .owner = d,
                            .volume = t->volume };
        int r = worker_pool_submit(t->worker, &v->job);
        if (r < 0)
                volume_probe_free(v);
        else
                t->probe = v;
        return r;
}

static bool volume_tidy(Destination *d, uint64_t *ret_next_usec) {
        (void)d;
        *ret_next_usec = USEC_INFINITY;
        return false;
}

/* What a writer may use: all of it together stays below limits.memory, shared fairly among the destinations. */
static uint64_t volume_memory(const Destination *d) {
        const Pipeline *p = d->pipeline;
        int level = (int)p->config->limits.compression_level;
        if (d != d->head)
                return bundle_writer_memory_min(level);
        return MAX(
                MIN(bundle_writer_memory_best(level, p->n_compressors), pipeline_memory_share(p)),
                bundle_writer_memory_min(level));
}

static const char *volume_root(const Destination *d) {
        return path_template_fixed(d->template);
}

static char *volume_where(const Destination *d, const char *directory, const char *name) {
        char *path = NULL;
        return asprintf(&path, "%s/%s/%s", volume_root(d), directory, name) < 0 ? NULL : path;
}

static int volume_ship_new(Destination *d, const ShipOrder *order, ShipJob **ret) {
        ShipVolumeOrder volume = { .volume = target(d)->volume,
                                   .root = volume_root(d),
                                   .size_hint_bytes = order->bundle->full_at_bytes };
        return ship_volume_new(ret, order, &volume);
}

static int volume_ship_begin(Destination *d, ShipJob *s) {
        return worker_pool_submit(target(d)->worker, &s->job);
}

static void volume_ship_abort(ShipJob *s) {
        atomic_store(&s->abort, true);
}

/* A copy that is cut starts over: it may end by itself where little is missing. */
static void volume_ship_wind_down(ShipJob *s) {
        uint64_t total = atomic_load(&s->total_bytes), done = atomic_load(&s->done_bytes);
        if (total == 0 || total - MIN(done, total) > WIND_DOWN_BYTES)
                atomic_store(&s->abort, true);
}

static uint64_t volume_refresh(Destination *d) {
        return atomic_load(&d->running->sent_bytes) + atomic_load(&d->running->done_bytes) +
               volume_n_read_back(target(d)->volume);
}

static void volume_delivered(Destination *d, const char *bundle) {
        (void)d, (void)bundle; /* nothing is kept: a copy that was cut starts over */
}

const DestinationType destination_volume_type = {
        .name = "volume",
        .stall_text = "the mount hangs, or is very slow",
        .cut_text = "stopped in the middle, starts over",
        .open = volume_open,
        .is_busy = volume_is_busy,
        .stop = volume_stop,
        .close = volume_close,
        .probe = volume_begin_probe,
        .tidy = volume_tidy,
        .memory = volume_memory,
        .where = volume_where,
        .root = volume_root,
        .ship_new = volume_ship_new,
        .ship_begin = volume_ship_begin,
        .ship_abort = volume_ship_abort,
        .worker = volume_worker,
        .ship_wind_down = volume_ship_wind_down,
        .ship_free = ship_volume_free,
        .refresh = volume_refresh,
        .delivered = volume_delivered,
};
