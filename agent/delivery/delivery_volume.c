/* A volume as a destination, and a delivery to it. All that touches the volume may block, so it
 * runs in the worker of the destination: a delivery from the plan to the manifest, the probe, and
 * the removal of temporary files that an abandoned delivery may have left, for which there are rows
 * in the store. A delivery that is cut starts over; the object is read back before its manifest is
 * written, which is the commit. The file operations are uploaders/volume's. */
#include "agent/delivery/delivery_volume.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/delivery/delivery_attempt.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/packer.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/tree.h"
#include "uploaders/volume/volume.h"

#define STRIPE_BYTES (8 * MIB)

typedef struct DeliveryVolume {
        Delivery base;
        Volume *volume; /* borrowed */
        char *root;
        uint64_t size_hint_bytes;
        bool has_leftovers; /* delivered, and temporary files could not be removed */
} DeliveryVolume;

typedef struct VolumeAttempt {
        DeliveryAttempt base;
        DeliveryVolume *v;
        BundleWriter *writer;
        VolumeObject *object, *manifest;
        Parts parts;
        Sha256 manifest_sha;
        uint64_t manifest_bytes;
        char *path, *manifest_path; /* below the volume's root */
        /* one is there, but it is truncated, or of this plan and its object differs from it */
        bool replace_manifest;
} VolumeAttempt;

/* @return whether no temporary file is there that this attempt or a crash may have left */
static bool sweep(const VolumeAttempt *a) {
        return volume_sweep(a->v->volume, a->path) == 0 &&
               volume_sweep(a->v->volume, a->manifest_path) == 0;
}

static void attempt_done(VolumeAttempt *a) {
        volume_object_free(a->manifest);
        volume_object_free(a->object);
        if (a->v->base.result == RESULT_DELIVERED && a->path && a->manifest_path)
                a->v->has_leftovers = !sweep(a); /* no further attempt removes them */
        bundle_writer_free(a->writer);
        parts_done(&a->parts);
        free(a->path);
        free(a->manifest_path);
        delivery_attempt_done(&a->base);
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

/* @return as volume_verify() */
static int verify_object(const VolumeAttempt *a) {
        const ManifestHead *head = &a->base.earlier;
        _cleanup_free_ VolumeStripe *stripes = stripes_of(head->parts, head->n_parts);
        return stripes ? volume_verify(a->v->volume, a->path, stripes, head->n_parts) : -ENOMEM;
}

static int read_manifest_piece(const void *data, size_t n, void *userdata) {
        VolumeAttempt *a = userdata;
        return delivery_attempt_read_manifest(&a->base, data, n) ? 0 : -ECANCELED;
}

/* The manifest is written last, so a complete one means that an earlier run got through. Its object
 * is read back all the same: somebody may have removed it since. */
static bool check_manifest(VolumeAttempt *a) {
        _cleanup_free_ char *where = path_join(a->v->root, a->manifest_path);
        EarlierCopy earlier;
        if (!where)
                return delivery_endf(a->base.delivery, RESULT_NO_RESOURCES, "%s", strerror(ENOMEM));
        int r = volume_read(a->v->volume, a->manifest_path, read_manifest_piece, a);
        if (r == -ECANCELED)
                return false;
        if (r == -ENOENT || r == -ENOTDIR ||
            r == -ELOOP) /* create_object() reports what is in the way */
                return true;
        if (r < 0) /* what cannot be seen might be a bundle */
                return delivery_end_by_outcome(
                        a->base.delivery, UPLOAD_E_UNREACHABLE,
                        strbuf_format("cannot check whether '%s' is there already: %s", where,
                                      strerror(-r)));
        if (!delivery_attempt_end_manifest(&a->base, where, &earlier))
                return false;
        r = earlier == EARLIER_TRUNCATED ? -ENOENT : verify_object(a);
        if (r == 0)
                return delivery_attempt_delivered_before(&a->base);
        if (tree_error_is_resource(r)) /* no answer */
                return delivery_endf(a->base.delivery, RESULT_NO_RESOURCES,
                                     "cannot read back '%s': %s", a->path, strerror(-r));
        a->replace_manifest = true;
        return earlier == EARLIER_OTHER_PLAN ? delivery_attempt_end_damaged(&a->base, where)
                                             : delivery_may_continue(a->base.delivery);
}

/* Finds the bundle's directory, or one beside it when its own refuses this node. */
static bool find_directory(VolumeAttempt *a) {
        Delivery *d = a->base.delivery;
        char *directory, *error = NULL;
        int r = volume_find_directory(a->v->volume, d->directory, a->base.manifest_name, &directory,
                                      &error);
        if (r != 0)
                return delivery_end_by_outcome(d, r, error);
        if (strcmp(directory, d->directory) != 0) {
                free(d->refusal);
                d->refusal = TAKE_PTR(error);
                d->is_beside = true;
        }
        free(error);
        free(d->directory);
        d->directory = directory;
        a->path = path_join(d->directory, a->base.object_name);
        a->manifest_path = path_join(d->directory, a->base.manifest_name);
        return (a->path && a->manifest_path) ||
               delivery_endf(d, RESULT_NO_RESOURCES, "%s", strerror(ENOMEM));
}

static bool create_object(VolumeAttempt *a) {
        char *error = NULL;
        int r = volume_object_start(a->v->volume, a->path, a->v->size_hint_bytes, &a->object,
                                    &error);
        return r == 0 || delivery_end_by_outcome(a->base.delivery, r, error);
}

/* Writes piece by piece, as limits.upload_rate lets it. @return whether all of it is written;
 * false: a->base.delivery has ended */
static bool write_bytes(VolumeAttempt *a, VolumeObject *object, const void *data, size_t n) {
        Delivery *d = a->base.delivery;
        RateLimit *upload = d->limits ? d->limits->upload : NULL;
        char *error = NULL;
        for (size_t done = 0, piece; done < n; done += piece) {
                piece = ratelimit_wait(upload, n - done, &d->run.abort);
                if (piece == 0)
                        return delivery_may_continue(d); /* it may not: *abort is set */
                int r = volume_write(object, (const uint8_t *)data + done, piece, &error);
                if (r != 0)
                        return delivery_end_by_outcome(d, r, error);
                atomic_fetch_add(&d->run.sent_bytes, piece);
        }
        return true;
}

static bool write_frame(VolumeAttempt *a, const BundleFrame *frame) {
        Delivery *d = a->base.delivery;
        bool closed;
        uint64_t done = frame->stream_offset + frame->stream_bytes;
        if (!write_bytes(a, a->object, frame->data, frame->bytes))
                return false;
        int r = parts_add_frame(&a->parts, frame->data, frame->bytes,
                                plan_stream_bytes(a->base.plan) - done, &closed);
        if (r < 0)
                return delivery_endf(d, delivery_result_of(r), "%s", strerror(-r));
        atomic_store(&d->run.done_bytes, done);
        atomic_store(&d->run.read_bytes, bundle_writer_bytes_read(a->writer));
        return delivery_may_continue(d);
}

static bool write_frames(VolumeAttempt *a) {
        BundleWriterOptions options =
                delivery_attempt_writer_options(&a->base, a->base.delivery->memory.bytes);
        int r = bundle_writer_new(&a->writer, a->base.plan, &options);
        if (r < 0)
                return delivery_attempt_end_writer(&a->base, r, SIZE_MAX);
        BundleFrame frame;
        while ((r = bundle_writer_next(a->writer, &frame)) == WRITER_FRAME)
                if (!write_frame(a, &frame))
                        return false;
        return r == 0 ||
               delivery_attempt_end_writer(&a->base, r, bundle_writer_failed_member(a->writer));
}

static bool write_seek_table(VolumeAttempt *a) {
        Delivery *d = a->base.delivery;
        const void *table;
        size_t n;
        int r = bundle_writer_seek_table(a->writer, &table, &n);
        if (r >= 0)
                r = parts_finish(&a->parts, table, n);
        if (r < 0)
                return delivery_endf(d, delivery_result_of(r), "cannot make the seek table: %s",
                                     strerror(-r));
        return write_bytes(a, a->object, table, n) && delivery_may_continue(d);
}

typedef struct Commit {
        VolumeObject *object;
        const VolumeStripe *stripes;
        size_t n;
        bool replace; /* what has the name may be replaced */
} Commit;

static bool commit(const VolumeAttempt *a, const Commit *c) {
        Delivery *d = a->base.delivery;
        char *error = NULL;
        int r = volume_commit(c->object, c->stripes, c->n, &error);
        if (r == UPLOAD_E_EXISTS && c->replace) {
                free(error);
                error = NULL;
                if (!delivery_may_continue(d))
                        return false;
                r = volume_replace(c->object, c->stripes, c->n, &error);
        }
        if (r != 0 && r != UPLOAD_E_SAME)
                return delivery_end_by_outcome(d, r, error);
        free(error);
        return true;
}

static bool finish_object(VolumeAttempt *a) {
        Delivery *d = a->base.delivery;
        if (!write_seek_table(a))
                return false;
        _cleanup_free_ VolumeStripe *stripes = stripes_of(a->parts.items, a->parts.n);
        if (!stripes)
                return delivery_endf(d, RESULT_NO_RESOURCES, "%s", strerror(ENOMEM));
        d->object_bytes = a->parts.total_bytes;
        /* Without a manifest what has the name is no bundle but what a crash left of an earlier
         * plan. The name is ours, so it may be replaced. */
        return commit(a, &(Commit){ a->object, stripes, a->parts.n, true });
}

typedef struct ManifestPut {
        VolumeAttempt *a;
        bool has_ended;
} ManifestPut;

static int write_manifest_piece(const void *data, size_t n, void *userdata) {
        ManifestPut *put = userdata;
        sha256_update(&put->a->manifest_sha, data, n);
        put->a->manifest_bytes += n;
        put->has_ended = !write_bytes(put->a, put->a->manifest, data, n);
        return put->has_ended ? -EIO : 0;
}

static bool write_manifest(VolumeAttempt *a) {
        Delivery *d = a->base.delivery;
        ManifestPut put = { .a = a };
        char *error = NULL;
        delivery_attempt_add_verdicts(&a->base, a->writer);
        int r = volume_object_start(a->v->volume, a->manifest_path, 0, &a->manifest, &error);
        if (r != 0)
                return delivery_end_by_outcome(d, r, error);
        sha256_init(&a->manifest_sha);
        r = delivery_attempt_write_manifest(&a->base, a->writer, &a->parts, write_manifest_piece,
                                            &put);
        if (put.has_ended)
                return false;
        if (r < 0)
                return delivery_endf(d, delivery_result_of(r), "cannot write the manifest: %s",
                                     strerror(-r));
        VolumeStripe whole = { .bytes = a->manifest_bytes };
        sha256_final(&a->manifest_sha, whole.sha256);
        return delivery_may_continue(d) &&
               commit(a, &(Commit){ a->manifest, &whole, 1, a->replace_manifest });
}

static bool run_attempt(VolumeAttempt *a) {
        if (!delivery_attempt_start(&a->base, &a->v->base))
                return false;
        if (!find_directory(a))
                return false;
        /* Temporary names that a crash left, even one between link and unlink; what cannot be
         * removed is reported when the object is created. */
        (void)sweep(a);
        if (!check_manifest(a) || !delivery_may_continue(a->base.delivery) || !create_object(a) ||
            !write_frames(a) || !finish_object(a))
                return false;
        a->base.delivery->object = DELIVERY_OBJECT_SENT;
        return delivery_may_continue(a->base.delivery) && write_manifest(a) &&
               delivery_attempt_delivered(&a->base);
}

static void run_attempts(WorkJob *work) {
        DeliveryVolume *v = CONTAINER_OF(work, DeliveryVolume, base.work);
        v->base.proof = PROOF_READBACK;
        for (int i = 0; i < DELIVERY_PLANS_MAX; i++) {
                VolumeAttempt a = { .v = v };
                parts_init(&a.parts, STRIPE_BYTES);
                (void)run_attempt(&a); /* v->base has the result */
                attempt_done(&a);
                if (v->base.result != RESULT_CHANGED)
                        return;
        }
}

static void on_worker_done(WorkJob *work);

static Delivery *delivery_volume_free(Delivery *d) {
        if (!d)
                return NULL;
        DeliveryVolume *v = CONTAINER_OF(d, DeliveryVolume, base);
        delivery_done(d);
        free(v->root);
        free(v);
        return NULL;
}

/* So much may still be copied when the agent is to stop. */
#define WIND_DOWN_BYTES (8 * MIB)

typedef struct VolumeTarget {
        Destination *destination; /* borrowed */
        Volume *volume;
        /* Can the volume be written? At the start and after each failure, before a bundle is packed
         * for it. The worker's while it runs. */
        WorkJob probe;
        int probe_outcome;
        char *probe_error;
        /* The removal of a temporary file that an abandoned delivery may have left, by a row of the
         * store. */
        WorkJob sweep;
        char *sweep_path;
        int64_t sweep_id;
        int sweep_result;
        uint64_t sweep_usec; /* CLOCK_BOOTTIME: not before */
} VolumeTarget;

static VolumeTarget *target(const Destination *d) {
        return d->target;
}

static void run_probe(WorkJob *work) {
        VolumeTarget *t = CONTAINER_OF(work, VolumeTarget, probe);
        t->probe_outcome = volume_probe(t->volume, &t->probe_error);
}

static void on_probed(WorkJob *work) {
        VolumeTarget *t = CONTAINER_OF(work, VolumeTarget, probe);
        _cleanup_free_ char *error = TAKE_PTR(t->probe_error);
        destination_probe_done(t->destination, t->probe_outcome, error);
}

static void run_sweep(WorkJob *work) {
        VolumeTarget *t = CONTAINER_OF(work, VolumeTarget, sweep);
        t->sweep_result = volume_sweep(t->volume, t->sweep_path);
}

static void on_swept(WorkJob *work) {
        VolumeTarget *t = CONTAINER_OF(work, VolumeTarget, sweep);
        Destination *d = t->destination;
        DestinationShared *s = d->shared;
        int r = t->sweep_result;
        if (r == 0)
                r = store_abort_done(s->store, t->sweep_id);
        if (r < 0) {
                t->sweep_usec = destination_boottime_usec(d) + s->config->retry.maximum_usec;
                log_warning(
                        r, "destination %s: cannot remove the temporary file of '%s'; trying again",
                        d->config->name, t->sweep_path);
        }
        destination_cleanup_done(d, t->sweep_result);
}

/* Removes one after the other; one that cannot be removed does not keep the others. */
static bool volume_clean_up(Destination *d, uint64_t *ret_next_usec) {
        VolumeTarget *t = target(d);
        Store *store = d->shared->store;
        _cleanup_(ledger_abort_done) LedgerAbort next = { 0 };
        if (destination_boottime_usec(d) < t->sweep_usec) {
                *ret_next_usec = t->sweep_usec;
                return false;
        }
        int r = store_abort_next(store, d->config->name, t->sweep_id, &next);
        if (r == STORE_E_NOT_FOUND && t->sweep_id > 0)
                r = store_abort_next(store, d->config->name, 0, &next);
        if (r != 0)
                return false;
        free(t->sweep_path);
        t->sweep_path = strdup(next.key);
        t->sweep_id = next.id;
        return t->sweep_path && worker_pool_submit(d->worker, &t->sweep) == 0;
}

/* @param name  owned from now on; NULL for lack of memory */
static void record_temporary(const Destination *d, const char *bundle, const char *directory,
                             char *name) {
        _cleanup_free_ char *path = name ? path_join(directory, name) : NULL;
        const DestinationShared *s = d->shared;
        const LedgerAbort row = { .destination = d->config->name,
                                  .key = path,
                                  .since_usec = destination_realtime_usec(d) };
        int r = path ? store_abort_add(s->store, &row, NULL) : -ENOMEM;
        free(name);
        if (r < 0)
                log_dump(bundle, LOG_WARNING, r,
                         "%s: cannot record that its temporary file must be removed",
                         d->config->name);
}

static void record_temporaries(const Destination *d, const char *bundle, const char *directory) {
        record_temporary(d, bundle, directory, bundle_object_name(bundle));
        record_temporary(d, bundle, directory, bundle_manifest_name(bundle));
}

static void on_worker_done(WorkJob *work) {
        Delivery *d = CONTAINER_OF(work, Delivery, work);
        if (CONTAINER_OF(d, DeliveryVolume, base)->has_leftovers)
                record_temporaries(d->owner, d->rec.id, d->directory);
        d->on_done(d);
}

/* A crash or a volume in trouble may have left temporary files, and no other attempt removes them.
 */
static void volume_abandon(Destination *d, const Bundle *b, const DeliveryRecord *delivery) {
        const char *root = path_template_fixed(d->template);
        _cleanup_free_ char *directory = path_parent(delivery->object);
        if (!directory || strncmp(directory, root, strlen(root)) != 0)
                return; /* it was configured elsewhere */
        const char *below = directory + strlen(root);
        while (*below == '/')
                below++;
        record_temporaries(d, b->rec.id, below);
}

int delivery_volume_open(const Destination *d, Volume **ret) {
        const ConfigDestination *config = d->config;
        return volume_new(
                ret,
                &(VolumeOptions){
                        .root = path_template_fixed(d->template),
                        .min_free_bytes = config->min_free.is_permille ? 0 : config->min_free.bytes,
                        .min_free_permille =
                                config->min_free.is_permille ? config->min_free.permille : 0,
                        .mode = config->mode,
                        .group = config->group,
                        .writer = d->shared->instance_id,
                        .trusted_uids = d->shared->config->agreement.trusted_uids.items,
                        /* a root that was there and is not any more is not mounted */
                        .must_exist = destination_bytes_delivered(d) > 0 });
}

static int volume_open(Destination *d) {
        VolumeTarget *t = d->target = calloc(1, sizeof *t);
        if (!t)
                return -ENOMEM;
        *t = (VolumeTarget){ .destination = d,
                             .probe = { .run = run_probe, .done = on_probed },
                             .sweep = { .run = run_sweep, .done = on_swept } };
        return delivery_volume_open(d, &t->volume);
}

static const WorkJob *volume_job(const Destination *d) {
        if (!d->target)
                return NULL;
        return d->activity == ACTIVITY_CLEANING_UP ? &target(d)->sweep : &target(d)->probe;
}

static void volume_close(Destination *d) {
        VolumeTarget *t = target(d);
        volume_free(t->volume);
        free(t->probe_error);
        free(t->sweep_path);
        free(t);
        d->target = NULL;
}

static int volume_start_probe(Destination *d) {
        return worker_pool_submit(d->worker, &target(d)->probe);
}

static uint64_t volume_memory_bytes(const Destination *d) {
        return delivery_memory_of_volume(&d->shared->memory, d != d->head);
}

static char *volume_format_location(const Destination *d, const char *directory, const char *name) {
        return strbuf_format("%s/%s/%s", path_template_fixed(d->template), directory, name);
}

static int volume_delivery_new(Destination *d, const Bundle *b, const char *directory,
                               Delivery **ret) {
        DeliveryVolume *v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;
        v->base.work = (WorkJob){ .run = run_attempts, .done = on_worker_done };
        v->volume = target(d)->volume;
        v->size_hint_bytes = b->shipping.full_at_bytes;
        v->root = strdup(path_template_fixed(d->template));
        int r = v->root ? destination_init_delivery(d, &v->base, b, directory) : -ENOMEM;
        if (r < 0) {
                free(v->root);
                free(v);
                return r;
        }
        *ret = &v->base;
        return 0;
}

static int volume_delivery_start(Destination *d, Delivery *job) {
        return worker_pool_submit(d->worker, &job->work);
}

static void volume_delivery_abort(Delivery *d) {
        atomic_store(&d->run.abort, true);
}

/* A copy that is cut starts over, so it may end by itself where little is missing. */
static void volume_delivery_wind_down(Delivery *d) {
        uint64_t total = atomic_load(&d->run.total_bytes), done = atomic_load(&d->run.done_bytes);
        if (total == 0 || total - MIN(done, total) > WIND_DOWN_BYTES)
                atomic_store(&d->run.abort, true);
}

static uint64_t volume_refresh(Destination *d) {
        return atomic_load(&d->running->run.sent_bytes) + atomic_load(&d->running->run.done_bytes) +
               volume_n_read_back(target(d)->volume);
}

const DestinationType destination_volume_type = {
        .name = "volume",
        .stall_text = "the mount hangs, or is very slow",
        .cut_text = "interrupted, starts over",
        .worker_name = "nc-ship",
        .open = volume_open,
        .job = volume_job,
        .close = volume_close,
        .probe = volume_start_probe,
        .memory_bytes = volume_memory_bytes,
        .format_location = volume_format_location,
        .delivery_new = volume_delivery_new,
        .delivery_start = volume_delivery_start,
        .delivery_abort = volume_delivery_abort,
        .delivery_wind_down = volume_delivery_wind_down,
        .delivery_free = delivery_volume_free,
        .refresh = volume_refresh,
        .clean_up = volume_clean_up,
        .abandon = volume_abandon,
};
