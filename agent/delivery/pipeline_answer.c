/* What an answer of a worker means: for the destination, for the delivery, for the bundle. */
#include <string.h>
#include <sys/random.h>

#include "agent/delivery/pipeline_private.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/neuron/ids.h"
#include "uploaders/backoff.h"
#include "uploaders/uploader.h"

/* A destination that can be written, as its probe says after each of so many failures in a row of one bundle, is not what fails. */
#define AWAY_MAX 3
/* What somebody has to mend is tried as slowly from the first as what has failed so often already. */
#define SLOW_HEAD_START 3
/* So often it is looked whether memory, threads or the state directory have room again. */
#define SHORTAGE_USEC (30 * USEC_PER_SEC)

uint64_t pipeline_random(void) {
        uint64_t r = 0;
        (void)!getrandom(&r, sizeof r, 0); /* 0 only means no jitter */
        return r;
}

static void set_error(char **to, const char *text) {
        free(*to);
        *to = text ? strdup(text) : NULL;
}

const char *pipeline_destination_state_name(DestinationState s) {
        static const char *const names[N_DESTINATION_STATES] = {
                [DESTINATION_OK] = "ok",
                [DESTINATION_PAUSED] = "paused",
                [DESTINATION_FAILING] = "failing",
        };
        return names[s];
}

/* Every state may follow every other: what was tried last tells. */
static void set_state(Destination *d, DestinationState to) {
        if (d->state != to)
                log_debug("destination %s: %s", d->config->name,
                          pipeline_destination_state_name(to));
        d->state = to;
}

void pipeline_destination_is_well(Destination *d) {
        if (d->n_failures > 0)
                log_notice("destination %s: works again", d->config->name);
        set_state(d, DESTINATION_OK);
        d->n_failures = 0;
        d->not_before_usec = 0;
        d->ship_failed = false;
        set_error(&d->last_error, NULL);
}

static uint64_t backoff(const Pipeline *p, unsigned n) {
        return backoff_next_usec(n, p->config->retry.initial_usec, p->config->retry.maximum_usec,
                                 pipeline_random());
}

void pipeline_destination_is_ill(Destination *d, int outcome, const char *error) {
        bool waits_for_people = outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_DENIED;
        d->n_failures++;
        uint64_t wait =
                backoff(d->pipeline, d->n_failures + (waits_for_people ? SLOW_HEAD_START : 0));
        d->not_before_usec = pipeline_boot_usec(d->pipeline) + wait;
        set_state(d, waits_for_people ? DESTINATION_PAUSED : DESTINATION_FAILING);
        d->proven = false;
        char text[64];
        if (!d->last_error || !error ||
            strcmp(d->last_error, error) != 0) /* said once, not with every try */
                log_warning(0, "destination %s: %s; nothing is lost, trying again in %s",
                            d->config->name, error ? error : "failed",
                            clock_format_span(text, wait));
        set_error(&d->last_error, error);
        d->pipeline->n_retries[PIPELINE_RETRY_DESTINATION]++;
}

static const char *last_error_of_given_up(const Pipeline *p, const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (pipeline_has_given_up(p, &b->rec.deliveries[i]))
                        return b->rec.deliveries[i].last_error;
        return NULL;
}

/* Back from SHIPPING when its last worker came back. What one of them asked for meanwhile is not lost: no other delivery begins until
 * it is done. */
void pipeline_leave_shipping(Pipeline *p, Bundle *b, BundleState to, const char *reason) {
        if (to == BUNDLE_SETTLING || to == BUNDLE_VANISHED) {
                if (!b->has_wish || to == BUNDLE_VANISHED) {
                        b->wish = to;
                        set_error(&b->rec.reason, reason);
                }
                b->has_wish = true;
        }
        if (b->n_running > 0) {
                bundle_save(p->context.bundles, b);
                return;
        }
        if (b->cancel)
                to = BUNDLE_CANCELLED, reason = "cancelled by the operator";
        else if (b->has_wish)
                to = b->wish, reason = b->rec.reason;
        else if (to == BUNDLE_READY && !p->stopping && pipeline_has_given_up_all(p, b))
                to = BUNDLE_QUARANTINED, reason = last_error_of_given_up(p, b);
        b->has_wish = false;
        if (to == BUNDLE_SETTLING && b->source)
                p->context.on_changed(b, reason);
        else /* without its source nobody would look at it again: it waits as READY */
                (void)bundle_set_state(p->context.bundles, b,
                                       to == BUNDLE_SETTLING ? BUNDLE_READY : to,
                                       reason); /* a refused move is logged there */
}

static bool all_delivered(const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        return false;
        return true;
}

static bool is_delivered_elsewhere(const Bundle *b, const DeliveryRecord *but) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (&b->rec.deliveries[i] != but && b->rec.deliveries[i].state == DELIVERY_DONE)
                        return true;
        return false;
}

/* What intake sees of the unit: attachments are none of it. */
static uint64_t sum_of_source(const ShipJob *s) {
        uint64_t sum = 0;
        for (size_t i = 0; i < s->n_prints; i++)
                if (!member_fingerprints_have(s->attached_prints, s->n_attached_prints,
                                              s->prints[i]))
                        sum += s->prints[i];
        return sum;
}

/* Keeps of `a` what is in `b` too; both are sorted. @return how many */
static size_t intersect(uint64_t *a, size_t n_a, const uint64_t *b, size_t n_b) {
        size_t n = 0;
        for (size_t i = 0, k = 0; i < n_a; i++) {
                while (k < n_b && b[k] < a[i])
                        k++;
                if (k < n_b && b[k] == a[i])
                        a[n++] = a[i];
        }
        return n;
}

/* Shipped is what every destination so far has: the source may have changed between two of them. What one of them lacks then follows
 * as a supplement, since the unit's digest is no longer the bundle's. */
static int note_prints(Pipeline *p, Bundle *b, const DeliveryRecord *delivery, ShipJob *s) {
        if (is_delivered_elsewhere(b, delivery)) {
                _cleanup_free_ uint64_t *before = NULL;
                size_t n_before = 0, n = s->n_prints;
                int r = store_get_prints(p->context.store, b->rec.id, &before, &n_before);
                if (r < 0)
                        n_before = 0; /* rather shipped twice than never */
                s->n_prints = intersect(s->prints, n, before, n_before);
                s->digest = sum_of_source(s);
                if (s->n_prints < n || n_before > s->n_prints)
                        b->dirty = true; /* to be looked at as soon as it is through */
        }
        b->dirty = b->dirty || s->has_more;
        b->rec.digest = s->digest;
        return store_put_prints(p->context.store, b->rec.id, s->prints, s->n_prints);
}

static unsigned attempts_of(const Bundle *b) {
        unsigned n = 0;
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        n += b->rec.deliveries[i].attempts;
        return n;
}

static const char *proof_text(Proof proof) {
        return proof == PROOF_READBACK ? "read back and proven"
               : proof == PROOF_HEAD   ? "proven by HEAD"
                                       : "proven by the store's answer (HEAD is not permitted)";
}

static void take_delivered(Destination *d, Bundle *b, DeliveryRecord *delivery, ShipJob *s) {
        Pipeline *p = d->pipeline;
        (void)bundle_set_delivery_state(b, delivery,
                                        DELIVERY_DONE); /* a refused move is logged there */
        delivery->proof = s->proof;
        delivery->bytes = s->object_bytes;
        delivery->done_usec = pipeline_realtime_usec(p);
        delivery->next_try_usec = 0;
        set_error(&delivery->last_error, NULL);
        b->rec.complete = s->complete;
        set_error(&b->rec.incomplete, s->incomplete);
        b->rec.attempts = attempts_of(b);
        *pipeline_tries(b, delivery) = (BundleTries){ 0 };
        _cleanup_free_ char *counter = NULL;
        if (asprintf(&counter, "bytes_delivered:%s", d->config->name) >= 0)
                (void)store_counter_add(p->context.store, counter,
                                        s->object_bytes); /* a figure, no evidence */
        if (note_prints(p, b, delivery, s) < 0)
                log_dump(b->rec.id, LOG_WARNING, 0,
                         "cannot note which members were shipped; a later scan may ship them again "
                         "as a supplement");
        pipeline_destination_is_well(d);
        d->last_success_usec = pipeline_realtime_usec(p);
        char text[PARSE_FORMAT_SIZE];
        log_dump(b->rec.id, LOG_NOTICE, 0, "delivered to %s: '%s', %s, %s%s", d->config->name,
                 delivery->object ? delivery->object : "?",
                 parse_format_human(text, s->object_bytes), proof_text(s->proof),
                 s->complete ? "" : ", labelled incomplete");
        /* The manifest is there: whatever happens now, it says so. Before the bundle may be gone. */
        d->type->delivered(d, b->rec.id);
        if (all_delivered(b) && b->n_running == 0) {
                p->context.on_delivered(b, p->context.userdata);
                pipeline_leave_shipping(p, b, BUNDLE_DELIVERED, NULL);
                return;
        }
        bundle_save(p->context.bundles, b);
        pipeline_leave_shipping(p, b, BUNDLE_READY, "waits for its other destinations");
}

/* So that nothing is tried again at once, whatever becomes of the bundle. @return the wait */
static uint64_t put_off(const Pipeline *p, DeliveryRecord *delivery, uint64_t wait_usec) {
        delivery->next_try_usec = pipeline_realtime_usec(p) + wait_usec;
        return wait_usec;
}

static void take_failure(Destination *d, Bundle *b, DeliveryRecord *delivery, const ShipJob *s) {
        Pipeline *p = d->pipeline;
        const char *error = s->error ? s->error : "failed";
        delivery->attempts++;
        b->rec.attempts = attempts_of(b);
        pipeline_tries(b, delivery)->failed = true;
        set_error(&delivery->last_error, error);
        uint64_t wait = put_off(p, delivery, backoff(p, delivery->attempts));
        char text[64];
        if (pipeline_has_given_up(p, delivery))
                log_dump(b->rec.id, LOG_ERR, 0,
                         "%s: given up after %u failures: %s; mend it, then `neuron-collect retry "
                         "%s`",
                         d->config->name, delivery->attempts, error, b->rec.id);
        else {
                p->n_retries[PIPELINE_RETRY_BUNDLE]++;
                log_dump(b->rec.id, LOG_WARNING, 0, "%s: %s; trying again in %s", d->config->name,
                         error, clock_format_span(text, wait));
        }
        pipeline_leave_shipping(p, b, BUNDLE_READY, error);
}

/* The destination is at fault, unless it proves to be well each time and only this bundle keeps failing: then something of the
 * bundle's own is in the way there, and the others must not wait for it. */
static void take_destination_failure(Destination *d, Bundle *b, DeliveryRecord *delivery,
                                     const ShipJob *s) {
        Pipeline *p = d->pipeline;
        BundleTries *tries = pipeline_tries(b, delivery);
        bool waits = s->upload_outcome == UPLOAD_E_FULL || s->upload_outcome == UPLOAD_E_DENIED;
        if (!waits && tries->n_away >= AWAY_MAX) {
                d->proven = d->ship_failed = false; /* the probe alone says how it is */
                take_failure(d, b, delivery, s);
                return;
        }
        d->ship_failed = true;
        pipeline_destination_is_ill(d, s->upload_outcome, s->error);
        if (s->upload_outcome == UPLOAD_E_FULL) /* a smaller one may fit meanwhile */
                b->full_at_bytes = MAX(b->full_at_bytes, atomic_load(&s->sent_bytes));
        else if (!waits)
                tries->n_away++;
        /* others go first */
        put_off(p, delivery, 2 * (d->not_before_usec - pipeline_boot_usec(p)));
        set_error(&delivery->last_error, s->error);
        pipeline_leave_shipping(p, b, BUNDLE_READY, s->error);
}

/* Neither the bundle's nor the destination's fault: it waits, however long it takes. */
static void take_shortage(Destination *d, Bundle *b, DeliveryRecord *delivery, const ShipJob *s) {
        Pipeline *p = d->pipeline;
        const char *error = s->error ? s->error : "out of memory or threads";
        bool is_known = delivery->last_error && strcmp(delivery->last_error, error) == 0;
        uint64_t wait = p->waits_for_memory == d
                                ? USEC_PER_SEC
                                : MIN(p->config->retry.maximum_usec, SHORTAGE_USEC);
        char text[64];
        p->n_retries[PIPELINE_RETRY_BUNDLE]++;
        (void)put_off(p, delivery, wait);
        log_dump(b->rec.id, is_known ? LOG_DEBUG : LOG_WARNING, 0,
                 "%s: %s; nothing is lost, trying again in %s", d->config->name, error,
                 clock_format_span(text, wait));
        set_error(&delivery->last_error, error);
        pipeline_leave_shipping(p, b, BUNDLE_READY, error);
}

void pipeline_take_answer(Destination *d, Bundle *b, ShipJob *s) {
        Pipeline *p = d->pipeline;
        DeliveryRecord *delivery = pipeline_delivery(b, d->config->name);
        b->n_running--;
        if (s->result != SHIP_DELIVERED)
                (void)bundle_set_delivery_state(b, delivery, DELIVERY_PENDING); /* as above */
        switch (s->result) {
        case SHIP_DELIVERED:
                take_delivered(d, b, delivery, s);
                break;
        case SHIP_CHANGED:
                p->n_retries[PIPELINE_RETRY_CHANGED]++;
                put_off(p, delivery, backoff(p, 1));
                log_dump(b->rec.id, LOG_NOTICE, 0, "%s; waiting for it to settle",
                         s->error ? s->error : "it changed");
                pipeline_leave_shipping(p, b, BUNDLE_SETTLING, s->error);
                break;
        case SHIP_VANISHED:
                put_off(p, delivery, backoff(p, 1));
                log_dump(b->rec.id, LOG_WARNING, 0, "%s",
                         s->error ? s->error : "nothing is left of it");
                pipeline_leave_shipping(p, b, BUNDLE_VANISHED, s->error);
                break;
        case SHIP_ABORTED:
                pipeline_leave_shipping(p, b, BUNDLE_READY, d->type->cut_text);
                break;
        case SHIP_DESTINATION:
                take_destination_failure(d, b, delivery, s);
                break;
        case SHIP_RESOURCES:
                take_shortage(d, b, delivery, s);
                break;
        case SHIP_FAILED:
                take_failure(d, b, delivery, s);
                break;
        }
}
