/* One delivery: one bundle to one destination. Holds what both kinds of destination share: the
 * request, which is a copy so that the loop may change its own bundle meanwhile, the figures that
 * the loop reads while a worker runs, and how it ended.
 *
 * How a bundle is shipped: delivery_volume.c, delivery_s3.c. What a result means for the bundle:
 * scheduler_results.c. */
#include "agent/delivery/delivery.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/tree.h"
#include "uploaders/uploader.h"

bool delivery_end(Delivery *d, DeliveryResult result, char *error) {
        d->result = result;
        free(d->error);
        d->error = error;
        return false;
}

bool delivery_endf(Delivery *d, DeliveryResult result, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        char *text = strbuf_vformat(fmt, ap);
        va_end(ap);
        return delivery_end(d, result, text);
}

/* @return whether reading a source failed by an error that ends when its file server is back */
static bool is_transient(int r) {
        return r == -EIO || r == -ESTALE || r == -ETIMEDOUT || r == -ENOTCONN || r == -EHOSTDOWN ||
               r == -EHOSTUNREACH || r == -EREMOTEIO;
}

/* @return whether an error is only possible when a file server is away: it is not the bundle's
 * fault. A disk never returns these. */
static bool is_server_away(int r) {
        return r == -ETIMEDOUT || r == -ENOTCONN || r == -EHOSTDOWN || r == -EHOSTUNREACH;
}

DeliveryResult delivery_result_of(int r) {
        return tree_error_is_resource(r) || is_server_away(r) ? RESULT_NO_RESOURCES : RESULT_FAILED;
}

DeliveryResult delivery_result_of_source(int r) {
        DeliveryResult result = delivery_result_of(r);
        return result == RESULT_FAILED && is_transient(r) ? RESULT_SOURCE_FAILED : result;
}

bool delivery_end_by_outcome(Delivery *d, int outcome, char *error) {
        d->upload_outcome = MAX(outcome, 0);
        /* A destination that gives back other bytes than it was given is no place for evidence,
         * whatever the bundle. */
        if (outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_UNREACHABLE ||
            outcome == UPLOAD_E_NETWORK || outcome == UPLOAD_E_DENIED ||
            outcome == UPLOAD_E_REFUSED || outcome == UPLOAD_E_MISMATCH)
                return delivery_end(d, RESULT_DESTINATION_FAILED, error);
        if (outcome >= 0)
                return delivery_end(d, RESULT_FAILED, error);
        /* the name is too long or invalid at this destination; other bundles' may be as well */
        d->upload_outcome = UPLOAD_E_REFUSED;
        return delivery_end(
                d,
                tree_error_is_resource(outcome) ? RESULT_NO_RESOURCES : RESULT_DESTINATION_FAILED,
                error ? error
                      : strbuf_format("cannot write below '%s': %s; shorten or correct the "
                                      "destination's path",
                                      d->directory, strerror(-outcome)));
}

bool delivery_may_continue(Delivery *d) {
        return !atomic_load(&d->run.abort) || delivery_endf(d, RESULT_ABORTED, "stopped");
}

static void copy_held(HeldFiles *to, const HeldFiles *from) {
        to->items = from->n ? calloc(from->n, sizeof *to->items) : NULL;
        for (size_t i = 0; to->items && i < from->n; i++) {
                HeldFile h = { .path = strdup(from->items[i].path),
                               .fd = fcntl(from->items[i].fd, F_DUPFD_CLOEXEC, 0) };
                if (h.path && h.fd >= 0)
                        to->items[to->n++] = h;
                else
                        free(h.path);
        }
        to->all = from->all && to->n == from->n;
}

int delivery_init(Delivery *d, const DeliveryOptions *o) {
        int r = bundle_record_copy(&d->rec, &o->bundle->rec);
        d->spec = o->spec ? source_spec_ref(o->spec) : NULL;
        d->clock = o->clock;
        copy_held(&d->held, &o->bundle->unit.held);
        d->owners = o->bundle->facts.owners;
        d->directory = strdup(o->directory);
        d->instance_id = strdup(o->instance_id);
        d->hostname = strdup(o->hostname);
        d->labels = strings_copy(o->labels);
        d->compressors = o->compressors;
        d->limits = rate_limits_ref(o->limits);
        d->level = o->level;
        d->memory.bytes = o->memory_bytes;
        d->tolerant = o->bundle->facts.tolerant;
        if (r >= 0 && d->directory && d->instance_id && d->hostname && d->labels)
                return 0;
        delivery_done(d);
        return -ENOMEM;
}

void delivery_done(Delivery *d) {
        bundle_record_done(&d->rec);
        source_spec_unref(d->spec);
        delivery_memory_release(&d->memory);
        held_files_done(&d->held);
        rate_limits_unref(d->limits);
        free(d->shipped);
        free(d->frozen);
        delivery_notes_done(&d->notes);
        free(d->directory);
        free(d->refusal);
        free(d->instance_id);
        free(d->hostname);
        strings_free(d->labels);
        free(d->error);
        free(d->incomplete);
        free(d->prints);
        named_pids_done(&d->pids);
}

void delivery_read_notes(Delivery *d, Store *store, Bundle *b) {
        int r = delivery_notes_read(&d->notes, store, b);
        if (r < 0)
                log_dump(
                        b->rec.id, LOG_WARNING, r,
                        "cannot read the notes of hooks about it; the manifest is written without");
        (void)delivery_notes_set_failure(
                b, &d->notes); /* the row is written when the delivery starts */
}

void delivery_report_pids(Delivery *d, Bundle *b) {
        bundle_set_pids(b, &d->pids);
        (void)delivery_notes_set_failure(b, &d->notes);
}
