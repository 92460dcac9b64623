/* A volume as a destination: its deliveries and its probe block, so they run in a worker of its own. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/delivery/pipeline_private.h"
#include "agent/delivery/ship_volume.h"
#include "lib/bundle/writer.h"
#include "uploaders/volume/volume.h"

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
