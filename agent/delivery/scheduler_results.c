/* What the result of a delivery means: for the destination, for this delivery of the bundle, and
 * for the bundle.
 *
 *   delivered           the delivery is DONE; when all are, so is the bundle
 *   changed, vanished   the bundle goes back to SETTLING, or is VANISHED
 *   aborted             the bundle is READY again
 *   destination failed  the destination has a backoff, and the probe decides. A bundle that alone
 *                       fails there several times waits alone; one that alone is refused has failed
 *   no resources        the bundle waits; neither it nor the destination is at fault
 *   failed              counts towards quarantine, which the bundle reaches when all destinations
 *                       have given it up
 *
 * While other deliveries of the bundle run, its new state is only remembered; the last one that
 * ends sets it. The scheduler decides when the next attempt starts; before when it must not start
 * is recorded here. */
#include "agent/delivery/scheduler_results.h"

#include <string.h>

#include "agent/delivery/deliveries.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/neuron/ids.h"
#include "uploaders/uploader.h"

static const char *cancel_reason(Bundle *b) {
        return deliveries_have_object(b)
                       ? "cancelled by the operator; an object without a manifest may be left at "
                         "its destination, which is no bundle: remove it"
                       : "cancelled by the operator";
}

void scheduler_results_end_shipping(Scheduler *s, Bundle *b, BundleState to, const char *reason) {
        if (to == BUNDLE_SETTLING || to == BUNDLE_VANISHED) {
                if (!b->shipping.has_target_state || to == BUNDLE_VANISHED) {
                        b->shipping.wanted_state = to;
                        destination_set_text(&b->rec.reason, reason);
                }
                b->shipping.has_target_state = true;
        }
        if (b->shipping.n_running > 0) {
                bundle_save(s->context.bundles, b);
                return;
        }
        if (b->shipping.cancel && to != BUNDLE_DELIVERED)
                to = BUNDLE_CANCELLED, reason = cancel_reason(b);
        else if (b->shipping.has_target_state)
                to = b->shipping.wanted_state, reason = b->rec.reason;
        else if (to == BUNDLE_READY && !s->is_stopping &&
                 deliveries_are_given_up(s->shared.config, b))
                to = BUNDLE_QUARANTINED, reason = deliveries_given_up_error(s->shared.config, b);
        b->shipping.has_target_state = false;
        if (to == BUNDLE_SETTLING && b->source && !bundle_record_is_redelivery(&b->rec))
                s->context.on_changed(b, reason);
        else /* without its source nothing would probe it again: it waits as READY */
                (void)bundle_set_state(s->context.bundles, b,
                                       to == BUNDLE_SETTLING ? BUNDLE_READY : to,
                                       reason); /* a refused move is logged there */
}

void scheduler_results_end_cancelled(Scheduler *s) {
        LIST_FOREACH_SAFE (l, bundle_table_all(s->context.bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->shipping.cancel && b->shipping.n_running == 0 &&
                    b->rec.state == BUNDLE_READY)
                        scheduler_results_end_shipping(s, b, BUNDLE_READY, NULL);
        }
}

/* @return the digest of the unit as intake computes it */
static uint64_t sum_of_prints(const Delivery *job) {
        uint64_t sum = 0;
        for (size_t i = 0; i < job->n_prints; i++)
                sum += job->prints[i];
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

/* Records the members that every destination so far has: the source may have changed between two
 * deliveries. A member that one destination lacks follows in a supplement, since the unit's digest
 * is no longer the bundle's. */
static int store_prints(Scheduler *s, Bundle *b, const DeliveryRecord *delivery, Delivery *job) {
        if (deliveries_are_done_elsewhere(b, delivery)) {
                _cleanup_free_ uint64_t *before = NULL;
                size_t n_before = 0, n = job->n_prints;
                int r = store_get_prints(s->context.store, b->rec.id, &before, &n_before);
                if (r < 0)
                        n_before = 0; /* rather shipped twice than never */
                job->n_prints = intersect(job->prints, n, before, n_before);
                job->digest = sum_of_prints(job);
                if (job->n_prints < n || n_before > job->n_prints)
                        bundle_mark_changed(b);
        }
        if (job->has_more)
                bundle_mark_changed(b);
        b->rec.digest = job->digest;
        return store_set_prints(s->context.store, b->rec.id, job->prints, job->n_prints);
}

static const char *proof_text(const Delivery *job) {
        if (job->proof == PROOF_RESPONSE)
                return job->object == DELIVERY_OBJECT_EARLIER
                               ? "recognised by its manifest (HEAD is not permitted)"
                               : "proven by the store's answer (HEAD is not permitted)";
        return job->proof == PROOF_READBACK ? "read back and proven" : "proven by HEAD";
}

static void handle_delivered(Destination *d, Bundle *b, DeliveryRecord *delivery, Delivery *job) {
        Scheduler *s = scheduler_of(d);
        bool was_there = job->object == DELIVERY_OBJECT_EARLIER;
        (void)bundle_set_delivery_state(b, delivery,
                                        DELIVERY_DONE); /* a refused move is logged there */
        delivery->proof = job->proof;
        delivery->bytes = job->object_bytes;
        delivery->done_usec = scheduler_realtime_usec(s);
        delivery->next_try_usec = 0;
        destination_set_text(&delivery->last_error, NULL);
        if (!bundle_record_is_redelivery(
                    &b->rec)) { /* else the row says what the first copies lack */
                b->rec.complete = job->complete;
                destination_set_text(&b->rec.incomplete, job->incomplete);
        }
        delivery_report_pids(job, b);
        b->rec.attempts = deliveries_n_attempts(b);
        *deliveries_tries(b, delivery) = (BundleTries){ 0 };
        d->n_accepted[job->run.is_multipart] += !was_there;
        char text[PARSE_FORMAT_SIZE];
        destination_count_bytes(d, job->object_bytes);
        destination_mark_ok(d);
        d->last_success_usec = scheduler_realtime_usec(s);
        log_dump(b->rec.id, LOG_NOTICE, 0, "%s %s: '%s', %s, %s%s",
                 was_there ? "was delivered before, by an earlier run, to" : "delivered to",
                 d->config->name, delivery->object ? delivery->object : "?",
                 parse_format_human(text, job->object_bytes), proof_text(job),
                 job->complete ? "" : ", labelled incomplete");
        /* The manifest is there, so the bundle is delivered whatever happens now. This is done
         * before the bundle ends, since it may be gone then.
         */
        if (d->type->on_delivered)
                d->type->on_delivered(d, b->rec.id);
        if (deliveries_are_done(b) && b->shipping.n_running == 0) {
                s->context.on_delivered(b, s->context.userdata);
                scheduler_results_end_shipping(s, b, BUNDLE_DELIVERED, NULL);
                return;
        }
        bundle_save(s->context.bundles, b);
        _cleanup_free_ char *others = deliveries_list_pending(b);
        scheduler_results_end_shipping(s, b, BUNDLE_READY,
                                       others ? others : "waits for its other destinations");
}

/* Delays the next attempt, whatever becomes of the bundle. @return the wait */
static uint64_t postpone(const Scheduler *s, DeliveryRecord *delivery, uint64_t wait_usec) {
        delivery->next_try_usec = scheduler_realtime_usec(s) + wait_usec;
        return wait_usec;
}

static void handle_bundle_failure(Destination *d, Bundle *b, DeliveryRecord *delivery,
                                  const Delivery *job) {
        Scheduler *s = scheduler_of(d);
        const char *error = job->error ? job->error : "failed";
        delivery->attempts++;
        b->rec.attempts = deliveries_n_attempts(b);
        deliveries_tries(b, delivery)->failed = job->result != RESULT_SOURCE_FAILED;
        destination_set_text(&delivery->last_error, error);
        uint64_t wait =
                postpone(s, delivery,
                         destination_backoff_usec(&s->shared, delivery->attempts, USEC_INFINITY));
        char text[64];
        if (deliveries_is_given_up(s->shared.config, delivery))
                log_dump(b->rec.id, LOG_ERR, 0,
                         "%s: given up after %u %s: %s; fix it, then `neuron-collect retry "
                         "%s`",
                         d->config->name, delivery->attempts,
                         delivery->attempts == 1 ? "failure" : "failures", error, b->rec.id);
        else {
                s->n_retries[SCHEDULER_RETRY_BUNDLE]++;
                log_dump(b->rec.id, LOG_WARNING, 0, "%s: %s; trying again in %s", d->config->name,
                         error, clock_format_duration(text, wait));
        }
        scheduler_results_end_shipping(s, b, BUNDLE_READY, error);
}

/* Delays this bundle alone: the failure is not its own, and other bundles are delivered meanwhile.
 */
static void postpone_bundle(Destination *d, Bundle *b, DeliveryRecord *delivery,
                            const Delivery *job, uint64_t wait_usec) {
        Scheduler *s = scheduler_of(d);
        const char *error = job->error ? job->error : "out of memory or threads";
        bool is_known = upload_error_is_same(delivery->last_error, error);
        char text[64];
        s->n_retries[SCHEDULER_RETRY_BUNDLE]++;
        (void)postpone(s, delivery, wait_usec);
        log_dump(b->rec.id, is_known ? LOG_DEBUG : LOG_WARNING, 0,
                 "%s: %s; nothing is lost, trying again in %s", d->config->name, error,
                 clock_format_duration(text, wait_usec));
        destination_set_text(&delivery->last_error, error);
        scheduler_results_end_shipping(s, b, BUNDLE_READY, error);
}

/* Where one bundle alone fails so often in a row, and the probe succeeds each time, others must not
 * wait for it. */
#define DESTINATION_FAILURES_MAX 3

/* @return whether a refusal counts against the bundle: the destination refused it before, and has
 * since accepted another bundle by requests of the same kind */
static bool is_refused_alone(const Destination *d, BundleTries *tries, const Delivery *job) {
        uint32_t before = tries->refused_at;
        tries->refused_at = d->n_accepted[job->run.is_multipart] + 1;
        return before > 0 && tries->refused_at != before;
}

/* The destination is at fault, which is shown until the bundle gets through, and never a reason to
 * give it up. Broken connections are the network's fault, however many there are. */
static void handle_destination_failure(Destination *d, Bundle *b, DeliveryRecord *delivery,
                                       const Delivery *job) {
        Scheduler *s = scheduler_of(d);
        BundleTries *tries = deliveries_tries(b, delivery);
        bool is_full = job->upload_outcome == UPLOAD_E_FULL;
        bool may_be_alone = !is_full && job->upload_outcome != UPLOAD_E_NETWORK;
        if (job->upload_outcome == UPLOAD_E_REFUSED && is_refused_alone(d, tries, job)) {
                handle_bundle_failure(d, b, delivery, job);
                return;
        }
        tries->by_destination = true;
        if (job->run.has_advanced)
                d->n_failures = tries->n_away = 0;
        if (is_full) /* a smaller one may fit meanwhile */
                b->shipping.full_at_bytes =
                        MAX(b->shipping.full_at_bytes, atomic_load(&job->run.sent_bytes));
        if (may_be_alone && tries->n_away < UINT8_MAX)
                tries->n_away++;
        if (may_be_alone && tries->n_away > DESTINATION_FAILURES_MAX) {
                d->is_proven = d->delivery_failed = false; /* the probe alone decides */
                postpone_bundle(d, b, delivery, job,
                                destination_backoff_usec(&s->shared, tries->n_away,
                                                         DESTINATION_BACKOFF_MAX_USEC));
                return;
        }
        d->delivery_failed = true;
        destination_mark_failed(d, job->upload_outcome, job->error);
        /* others go first */
        postpone(s, delivery, 2 * (d->not_before_usec - scheduler_boottime_usec(s)));
        destination_set_text(&delivery->last_error, job->error);
        scheduler_results_end_shipping(s, b, BUNDLE_READY, job->error);
}

/* How often memory, threads and the state directory are tried again. */
#define SHORTAGE_USEC (30 * USEC_PER_SEC)

/* A lack of resources is neither the bundle's nor the destination's fault: the bundle waits until
 * it ends. */
static void handle_shortage(Destination *d, Bundle *b, DeliveryRecord *delivery,
                            const Delivery *job) {
        const Scheduler *s = scheduler_of(d);
        postpone_bundle(d, b, delivery, job,
                        delivery_memory_is_next(&s->shared.memory, d)
                                ? USEC_PER_SEC
                                : MIN(s->shared.config->retry.maximum_usec, SHORTAGE_USEC));
}

/* Logs ignored notes once a bundle: each attempt finds the same ones. */
static void log_ignored_notes(Bundle *b, const Delivery *job) {
        size_t n = job->n_notes_ignored;
        if (n > 0 && !b->shipping.has_logged_notes && !b->facts.has_logged_notes)
                log_dump(b->rec.id, LOG_NOTICE, 0,
                         "%zu %s ignored: it has files of other users than the note's", n,
                         n == 1 ? "hook note is" : "hook notes are");
        b->shipping.has_logged_notes = b->shipping.has_logged_notes || n > 0;
}

void scheduler_results_handle(Destination *d, Bundle *b, Delivery *job) {
        log_ignored_notes(b, job);
        Scheduler *s = scheduler_of(d);
        DeliveryRecord *delivery = deliveries_find(b, d->config->name);
        b->shipping.n_running--;
        /* Without these rows a scan after a crash would ship its members again, as a supplement.
         * The next attempt finds the copy at the destination. */
        if (job->result == RESULT_DELIVERED && !bundle_record_is_redelivery(&b->rec) &&
            store_prints(s, b, delivery, job) < 0)
                (void)delivery_endf(job, RESULT_NO_RESOURCES,
                                    "delivered, but the state database cannot be written");
        if (job->result != RESULT_DELIVERED)
                (void)bundle_set_delivery_state(b, delivery, DELIVERY_PENDING); /* as above */
        if (job->result != RESULT_ABORTED)
                deliveries_tries(b, delivery)->by_destination = false;
        deliveries_tries(b, delivery)->has_object |= job->object == DELIVERY_OBJECT_SENT;
        switch (job->result) {
        case RESULT_DELIVERED:
                handle_delivered(d, b, delivery, job);
                break;
        case RESULT_CHANGED:
                s->n_retries[SCHEDULER_RETRY_CHANGED]++;
                postpone(s, delivery, destination_backoff_usec(&s->shared, 1, USEC_INFINITY));
                log_dump(b->rec.id, LOG_NOTICE, 0, "%s; waiting for it to settle",
                         job->error ? job->error : "it changed");
                scheduler_results_end_shipping(s, b, BUNDLE_SETTLING, job->error);
                break;
        case RESULT_VANISHED:
                postpone(s, delivery, destination_backoff_usec(&s->shared, 1, USEC_INFINITY));
                log_dump(b->rec.id, LOG_WARNING, 0, "%s",
                         job->error ? job->error : "nothing is left of it");
                scheduler_results_end_shipping(s, b, BUNDLE_VANISHED, job->error);
                break;
        case RESULT_ABORTED:
                scheduler_results_end_shipping(s, b, BUNDLE_READY, d->type->cut_text);
                break;
        case RESULT_DESTINATION_FAILED:
                handle_destination_failure(d, b, delivery, job);
                break;
        case RESULT_NO_RESOURCES:
                handle_shortage(d, b, delivery, job);
                break;
        case RESULT_FAILED:
        case RESULT_SOURCE_FAILED:
                handle_bundle_failure(d, b, delivery, job);
                break;
        }
}
