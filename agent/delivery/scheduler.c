/* See scheduler.h. Everything here is on the loop. */
#include "agent/delivery/scheduler.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "agent/delivery/delivery_s3.h"
#include "agent/delivery/destination.h"
#include "agent/store/store.h"
#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/bundle/packer.h"
#include "lib/event/timer.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "uploaders/uploader.h"

/* How long a stop waits for workers; one that hangs in the kernel is then abandoned. */
#define STOP_TIMEOUT_USEC (5 * USEC_PER_SEC)

static void kick_destination(Destination *d);

/* ---- which is next ---- */

bool rotation_is_small(uint64_t n_files, uint64_t bytes) {
        return n_files <= SMALL_FILES_MAX && bytes <= SMALL_BYTES_MAX;
}

bool rotation_prefers_small(const Rotation *r) {
        return r->n_small_in_row < SMALL_IN_ROW_MAX;
}

static size_t find_served(const RotationServed *served, size_t n, const void *source, uid_t uid) {
        size_t i = 0;
        while (i < n && (served[i].source != source || served[i].uid != uid))
                i++;
        return i;
}

uint64_t rotation_served_at(const Rotation *r, const void *source) {
        size_t i = find_served(r->sources, r->n_sources, source, 0);
        return i < r->n_sources ? r->sources[i].turn : 0;
}

uint64_t rotation_owner_served_at(const Rotation *r, const void *source, uid_t uid) {
        size_t i = find_served(r->owners, r->n_owners, source, uid);
        return i < r->n_owners ? r->owners[i].turn : 0;
}

static void record_served(RotationServed *served, size_t *n, size_t max, RotationServed now) {
        size_t at = find_served(served, *n, now.source, now.uid);
        if (at == *n && *n < max)
                (*n)++;
        else if (at == *n) {
                at = 0;
                for (size_t i = 1; i < max; i++)
                        at = served[i].turn < served[at].turn ? i : at;
        }
        served[at] = now;
}

void rotation_record(Rotation *r, const void *source, uid_t uid, bool is_small) {
        r->n_small_in_row = is_small ? r->n_small_in_row + 1 : 0;
        r->n++;
        record_served(r->sources, &r->n_sources, ROTATION_SOURCES_MAX,
                      (RotationServed){ source, 0, r->n });
        record_served(r->owners, &r->n_owners, ROTATION_OWNERS_MAX,
                      (RotationServed){ source, uid, r->n });
}

/* ---- deliveries of a bundle ---- */

static DeliveryRecord *find_delivery(const Bundle *b, const char *destination) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (strcmp(b->rec.deliveries[i].destination, destination) == 0)
                        return &b->rec.deliveries[i];
        return NULL;
}

static size_t tries_index(const Bundle *b, const DeliveryRecord *delivery) {
        return MIN((size_t)(delivery - b->rec.deliveries), (size_t)BUNDLE_TRIES_MAX - 1);
}

static BundleTries *delivery_tries(Bundle *b, const DeliveryRecord *delivery) {
        return &b->tries[tries_index(b, delivery)];
}

Destination *scheduler_find_destination(const Scheduler *s, const char *name) {
        for (size_t i = 0; i < s->n_destinations; i++)
                if (strcmp(s->destinations[i].config->name, name) == 0)
                        return &s->destinations[i];
        return NULL;
}

static bool has_given_up(const Scheduler *s, const DeliveryRecord *delivery) {
        return delivery->state != DELIVERY_DONE &&
               delivery->attempts >= s->config->retry.quarantine_after;
}

static bool has_given_up_all(const Scheduler *s, const Bundle *b) {
        bool any = false;
        for (size_t i = 0; i < b->rec.n_deliveries; i++) {
                if (b->rec.deliveries[i].state == DELIVERY_DONE)
                        continue;
                if (!has_given_up(s, &b->rec.deliveries[i]))
                        return false;
                any = true;
        }
        return any;
}

/* ---- memory ---- */

uint64_t scheduler_memory_share(const Scheduler *s) {
        return (s->config->limits.memory_bytes - s->memory_reserved) /
               MAX(s->n_destinations, (size_t)1);
}

/* One delivery that cannot do with less may use what limits.memory_max allows. */
static uint64_t memory_limit(const Scheduler *s, uint64_t wanted_bytes) {
        return wanted_bytes > s->config->limits.memory_bytes ? s->config->limits.memory_max_bytes
                                                             : s->config->limits.memory_bytes;
}

static bool has_memory(const Scheduler *s, uint64_t bytes) {
        return s->memory_used + bytes <= memory_limit(s, bytes);
}

int scheduler_reserve_memory(Delivery *job, uint64_t bytes, uint64_t *ret_limit) {
        Scheduler *s = ((Destination *)job->owner)->scheduler;
        uint64_t others = s->memory_used - job->memory_bytes;
        *ret_limit = memory_limit(s, bytes);
        if (bytes > *ret_limit)
                return -EOVERFLOW;
        if (others + bytes > *ret_limit) {
                s->waits_for_memory = job->owner;
                return -EAGAIN;
        }
        s->waits_for_memory = NULL;
        s->memory_used = others + bytes;
        job->memory_bytes = bytes;
        return 0;
}

/* ---- the state of a destination ---- */

uint64_t scheduler_random(void) {
        uint64_t r = 0;
        (void)!getrandom(&r, sizeof r, 0); /* 0 only means no jitter */
        return r;
}

static void set_error(char **to, const char *text) {
        free(*to);
        *to = text ? strdup(text) : NULL;
}

static const char *destination_state_name(DestinationState s) {
        static const char *const names[N_DESTINATION_STATES] = {
                [DESTINATION_OK] = "ok",
                [DESTINATION_PAUSED] = "paused",
                [DESTINATION_FAILING] = "failing",
        };
        return names[s];
}

/* Every state may follow every other: the last try decides. */
static void set_destination_state(Destination *d, DestinationState to) {
        if (d->state != to)
                log_debug("destination %s: %s", d->config->name, destination_state_name(to));
        d->state = to;
}

#define TO(activity) (1U << ACTIVITY_##activity)

static void set_activity(Destination *d, DestinationActivity to) {
        static const char *const names[N_ACTIVITIES] = { "idle", "probing", "cleaning up",
                                                         "delivering", "winding down" };
        static const unsigned moves[N_ACTIVITIES] = {
                [ACTIVITY_IDLE] = TO(PROBING) | TO(CLEANING_UP) | TO(DELIVERING),
                [ACTIVITY_PROBING] = TO(IDLE),
                [ACTIVITY_CLEANING_UP] = TO(IDLE),
                [ACTIVITY_DELIVERING] = TO(WINDING_DOWN) | TO(IDLE),
                [ACTIVITY_WINDING_DOWN] = TO(IDLE),
        };
        static const StateTable table = { "destination", names, moves, N_ACTIVITIES };
        if (transition_check(&table, d->activity, to, NULL) == 0)
                d->activity = to;
}

#define BYTES_COUNTER_SIZE 128
static char *bytes_counter(const Destination *d, char ret[BYTES_COUNTER_SIZE]) {
        snprintf(ret, BYTES_COUNTER_SIZE, "bytes_delivered:%s", d->config->name);
        return ret;
}

uint64_t scheduler_bytes_delivered(const Destination *d) {
        char name[BYTES_COUNTER_SIZE];
        return store_counter(d->scheduler->context.store, bytes_counter(d, name));
}

static void mark_ok(Destination *d) {
        if (d->n_failures > 0)
                log_notice("destination %s: works again", d->config->name);
        set_destination_state(d, DESTINATION_OK);
        d->n_failures = 0;
        d->not_before_usec = 0;
        d->delivery_failed = d->objects_failed = false;
        set_error(&d->last_error, NULL);
}

/* With --once the node may be terminated at the end of --timeout. */
#define ONCE_BACKOFF_MAX_USEC (10 * USEC_PER_SEC)
/* A destination that works again receives everything within two minutes. */
#define DESTINATION_BACKOFF_MAX_USEC USEC_PER_MINUTE

static uint64_t bounded_backoff(const Scheduler *s, unsigned n, uint64_t maximum_usec) {
        uint64_t max = MIN(maximum_usec, s->config->retry.maximum_usec);
        if (s->context.is_urgent)
                max = MIN(max, ONCE_BACKOFF_MAX_USEC);
        return backoff_next_usec(n, MIN(s->config->retry.initial_usec, max), max,
                                 scheduler_random());
}

static uint64_t backoff(const Scheduler *s, unsigned n) {
        return bounded_backoff(s, n, USEC_INFINITY);
}

static uint64_t destination_backoff(const Scheduler *s, unsigned n) {
        return bounded_backoff(s, n, DESTINATION_BACKOFF_MAX_USEC);
}

/* What people have to fix is retried as slowly from the start as what has failed so often. */
#define BACKOFF_HEAD_START 3

static void mark_failed(Destination *d, int outcome, const char *error) {
        bool waits_for_people = outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_DENIED;
        d->n_failures++;
        uint64_t wait = destination_backoff(
                d->scheduler, d->n_failures + (waits_for_people ? BACKOFF_HEAD_START : 0));
        d->not_before_usec = scheduler_boottime_usec(d->scheduler) + wait;
        set_destination_state(d, waits_for_people ? DESTINATION_PAUSED : DESTINATION_FAILING);
        d->is_proven = d->objects_failed = false;
        char text[64];
        if (!error ||
            !upload_error_is_same(d->last_error, error)) /* once, not with every attempt */
                log_warning(0, "destination %s: %s; nothing is lost, trying again in %s",
                            d->config->name, error ? error : "failed",
                            clock_format_duration(text, wait));
        set_error(&d->last_error, error);
        d->scheduler->n_retries[SCHEDULER_RETRY_DESTINATION]++;
}

static void end_shipping(Scheduler *s, Bundle *b, BundleState to, const char *reason);

/* Ends cancelled bundles that wait for an attempt to complete their object at this destination. */
static void end_cancelled(Scheduler *s) {
        LIST_FOREACH_SAFE (l, bundle_table_all(s->context.bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->cancel && b->n_running == 0 && b->rec.state == BUNDLE_READY)
                        end_shipping(s, b, BUNDLE_READY, NULL);
        }
}

void scheduler_probe_done(Destination *d, int outcome, const char *error) {
        set_activity(d, ACTIVITY_IDLE);
        if (outcome == 0) {
                d->is_proven = true;
                if (!d->delivery_failed && !d->objects_failed)
                        mark_ok(d);
        } else {
                mark_failed(d, outcome, error ? error : strerror(outcome < 0 ? -outcome : EIO));
                end_cancelled(d->scheduler);
        }
        scheduler_kick(d->scheduler); /* the second one, too */
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        kick_destination(userdata);
        return 0;
}

static void kick_destination_in(Destination *d, uint64_t usec) {
        int r = timer_arm(&d->timer, &(TimerOptions){ .event = d->scheduler->context.event,
                                                      .usec = usec,
                                                      .handler = on_timer,
                                                      .userdata = d });
        if (r < 0)
                log_error(r, "destination %s: cannot arm a timer", d->config->name);
}

/* Deliveries have no backoff by it: whether they can continue the probe says, at once. And where it
 * has failed, it need not wait to see that the destination is back. */
void scheduler_object_done(Destination *d, const char *error) {
        if (error) {
                if (!d->is_proven) /* the probe speaks for it */
                        return;
                d->is_proven = false;
                d->objects_failed = true;
                if (d->state == DESTINATION_OK) { /* who has asked logs it */
                        set_destination_state(d, DESTINATION_FAILING);
                        set_error(&d->last_error, error);
                }
        } else {
                d->objects_failed = false;
                if (d->state != DESTINATION_FAILING || d->delivery_failed)
                        return;
                d->not_before_usec = 0;
                if (d->is_proven)
                        mark_ok(d);
        }
        kick_destination_in(d, 0);
}

void scheduler_cleanup_done(Destination *d, int outcome) {
        d->is_cleaned_up = outcome == 0;
        set_activity(d, ACTIVITY_IDLE);
        kick_destination_in(d, 0); /* the caller may be what it would free */
}

/* ---- what a result means: for the destination, the delivery and the bundle ---- */

static const char *last_error_of_given_up(const Scheduler *s, const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (has_given_up(s, &b->rec.deliveries[i]))
                        return b->rec.deliveries[i].last_error;
        return NULL;
}

static const char *cancel_reason(const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->tries[tries_index(b, &b->rec.deliveries[i])].has_object)
                        return "cancelled by the operator; an object without a manifest may be "
                               "left "
                               "at its destination, which is no bundle: remove it";
        return "cancelled by the operator";
}

/* Moves a bundle on from SHIPPING, or remembers the move until its last worker is back: no other
 * delivery starts before. The bundle may be gone afterwards. @param reason  copied; may be NULL */
static void end_shipping(Scheduler *s, Bundle *b, BundleState to, const char *reason) {
        if (to == BUNDLE_SETTLING || to == BUNDLE_VANISHED) {
                if (!b->has_target_state || to == BUNDLE_VANISHED) {
                        b->wanted_state = to;
                        set_error(&b->rec.reason, reason);
                }
                b->has_target_state = true;
        }
        if (b->n_running > 0) {
                bundle_save(s->context.bundles, b);
                return;
        }
        if (b->cancel && to != BUNDLE_DELIVERED)
                to = BUNDLE_CANCELLED, reason = cancel_reason(b);
        else if (b->has_target_state)
                to = b->wanted_state, reason = b->rec.reason;
        else if (to == BUNDLE_READY && !s->is_stopping && has_given_up_all(s, b))
                to = BUNDLE_QUARANTINED, reason = last_error_of_given_up(s, b);
        b->has_target_state = false;
        if (to == BUNDLE_SETTLING && b->source && !b->rec.is_redelivery)
                s->context.on_changed(b, reason);
        else /* without its source nothing would probe it again: it waits as READY */
                (void)bundle_set_state(s->context.bundles, b,
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

/* What intake sees of the unit, which is without attachments. */
static uint64_t sum_of_source(const Delivery *job) {
        uint64_t sum = 0;
        for (size_t i = 0; i < job->n_prints; i++)
                if (!member_fingerprints_contain(job->attached_prints, job->n_attached_prints,
                                                 job->prints[i]))
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

/* Shipped is what every destination so far has: the source may have changed between two of them.
 * What one of them lacks follows as a supplement, since the unit's digest is no longer the
 * bundle's. */
static int store_prints(Scheduler *s, Bundle *b, const DeliveryRecord *delivery, Delivery *job) {
        if (is_delivered_elsewhere(b, delivery)) {
                _cleanup_free_ uint64_t *before = NULL;
                size_t n_before = 0, n = job->n_prints;
                int r = store_get_prints(s->context.store, b->rec.id, &before, &n_before);
                if (r < 0)
                        n_before = 0; /* rather shipped twice than never */
                job->n_prints = intersect(job->prints, n, before, n_before);
                job->digest = sum_of_source(job);
                if (job->n_prints < n || n_before > job->n_prints)
                        b->dirty = true; /* to be probed as soon as it has ended */
        }
        b->dirty = b->dirty || job->has_more;
        b->rec.digest = job->digest;
        return store_set_prints(s->context.store, b->rec.id, job->prints, job->n_prints);
}

static unsigned attempts_of(const Bundle *b) {
        unsigned n = 0;
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        n += b->rec.deliveries[i].attempts;
        return n;
}

static const char *proof_text(const Delivery *job) {
        if (job->proof == PROOF_RESPONSE)
                return job->was_there ? "recognised by its manifest (HEAD is not permitted)"
                                      : "proven by the store's answer (HEAD is not permitted)";
        return job->proof == PROOF_READBACK ? "read back and proven" : "proven by HEAD";
}

/* @return `waits for NAME, NAME`, the caller's; NULL for lack of memory */
static char *list_lacking(const Bundle *b) {
        StrBuf text = STRBUF_INIT;
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE)
                        strbuf_addf(&text, "%s%s", text.n ? ", " : "waits for ",
                                    b->rec.deliveries[i].destination);
        return strbuf_detach(&text);
}

static void handle_delivered(Destination *d, Bundle *b, DeliveryRecord *delivery, Delivery *job) {
        Scheduler *s = d->scheduler;
        (void)bundle_set_delivery_state(b, delivery,
                                        DELIVERY_DONE); /* a refused move is logged there */
        delivery->proof = job->proof;
        delivery->bytes = job->object_bytes;
        delivery->done_usec = scheduler_realtime_usec(s);
        delivery->next_try_usec = 0;
        set_error(&delivery->last_error, NULL);
        if (!b->rec.is_redelivery) { /* else the row says what the first copies lack */
                b->rec.complete = job->complete;
                set_error(&b->rec.incomplete, job->incomplete);
        }
        delivery_report_pids(job, b);
        b->rec.attempts = attempts_of(b);
        *delivery_tries(b, delivery) = (BundleTries){ 0 };
        d->n_accepted[job->is_multipart] += !job->was_there;
        char counter[BYTES_COUNTER_SIZE], text[PARSE_FORMAT_SIZE];
        (void)store_counter_add(s->context.store, bytes_counter(d, counter),
                                job->object_bytes); /* a figure, no evidence */
        mark_ok(d);
        d->last_success_usec = scheduler_realtime_usec(s);
        log_dump(b->rec.id, LOG_NOTICE, 0, "%s %s: '%s', %s, %s%s",
                 job->was_there ? "was delivered before, by an earlier run, to" : "delivered to",
                 d->config->name, delivery->object ? delivery->object : "?",
                 parse_format_human(text, job->object_bytes), proof_text(job),
                 job->complete ? "" : ", labelled incomplete");
        /* The manifest is there: the bundle is delivered whatever happens now. Before the bundle
         * may be gone.
         */
        if (d->type->on_delivered)
                d->type->on_delivered(d, b->rec.id);
        if (all_delivered(b) && b->n_running == 0) {
                s->context.on_delivered(b, s->context.userdata);
                end_shipping(s, b, BUNDLE_DELIVERED, NULL);
                return;
        }
        bundle_save(s->context.bundles, b);
        _cleanup_free_ char *others = list_lacking(b);
        end_shipping(s, b, BUNDLE_READY, others ? others : "waits for its other destinations");
}

/* So that nothing is tried again at once, whatever becomes of the bundle. @return the wait */
static uint64_t postpone(const Scheduler *s, DeliveryRecord *delivery, uint64_t wait_usec) {
        delivery->next_try_usec = scheduler_realtime_usec(s) + wait_usec;
        return wait_usec;
}

static void handle_bundle_failure(Destination *d, Bundle *b, DeliveryRecord *delivery,
                                  const Delivery *job) {
        Scheduler *s = d->scheduler;
        const char *error = job->error ? job->error : "failed";
        delivery->attempts++;
        b->rec.attempts = attempts_of(b);
        delivery_tries(b, delivery)->failed = !job->is_transient;
        set_error(&delivery->last_error, error);
        uint64_t wait = postpone(s, delivery, backoff(s, delivery->attempts));
        char text[64];
        if (has_given_up(s, delivery))
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
        end_shipping(s, b, BUNDLE_READY, error);
}

/* This one waits, not by its own fault; the others do not. */
static void postpone_bundle(Destination *d, Bundle *b, DeliveryRecord *delivery,
                            const Delivery *job, uint64_t wait_usec) {
        Scheduler *s = d->scheduler;
        const char *error = job->error ? job->error : "out of memory or threads";
        bool is_known = upload_error_is_same(delivery->last_error, error);
        char text[64];
        s->n_retries[SCHEDULER_RETRY_BUNDLE]++;
        (void)postpone(s, delivery, wait_usec);
        log_dump(b->rec.id, is_known ? LOG_DEBUG : LOG_WARNING, 0,
                 "%s: %s; nothing is lost, trying again in %s", d->config->name, error,
                 clock_format_duration(text, wait_usec));
        set_error(&delivery->last_error, error);
        end_shipping(s, b, BUNDLE_READY, error);
}

/* Where one bundle alone fails so often in a row, and the probe succeeds each time, others must not
 * wait for it. */
#define DESTINATION_FAILURES_MAX 3

/* @return whether a refusal counts against the bundle: the destination refused it before, and has
 * since accepted another bundle by requests of the same kind */
static bool is_refused_alone(const Destination *d, BundleTries *tries, const Delivery *job) {
        uint32_t before = tries->refused_at;
        tries->refused_at = d->n_accepted[job->is_multipart] + 1;
        return before > 0 && tries->refused_at != before;
}

/* The destination is at fault, which is shown until the bundle gets through, and never a reason to
 * give it up. Broken connections are the network's fault, however many there are. */
static void handle_destination_failure(Destination *d, Bundle *b, DeliveryRecord *delivery,
                                       const Delivery *job) {
        Scheduler *s = d->scheduler;
        BundleTries *tries = delivery_tries(b, delivery);
        bool is_full = job->upload_outcome == UPLOAD_E_FULL;
        bool may_be_alone = !is_full && job->upload_outcome != UPLOAD_E_NETWORK;
        if (job->upload_outcome == UPLOAD_E_REFUSED && is_refused_alone(d, tries, job)) {
                handle_bundle_failure(d, b, delivery, job);
                return;
        }
        tries->by_destination = true;
        if (job->has_advanced)
                d->n_failures = tries->n_away = 0;
        if (is_full) /* a smaller one may fit meanwhile */
                b->full_at_bytes = MAX(b->full_at_bytes, atomic_load(&job->sent_bytes));
        if (may_be_alone && tries->n_away < UINT8_MAX)
                tries->n_away++;
        if (may_be_alone && tries->n_away > DESTINATION_FAILURES_MAX) {
                d->is_proven = d->delivery_failed = false; /* the probe alone decides */
                postpone_bundle(d, b, delivery, job, destination_backoff(s, tries->n_away));
                return;
        }
        d->delivery_failed = true;
        mark_failed(d, job->upload_outcome, job->error);
        /* others go first */
        postpone(s, delivery, 2 * (d->not_before_usec - scheduler_boottime_usec(s)));
        set_error(&delivery->last_error, job->error);
        end_shipping(s, b, BUNDLE_READY, job->error);
}

/* How often memory, threads and the state directory are tried again. */
#define SHORTAGE_USEC (30 * USEC_PER_SEC)

/* Neither the bundle's nor the destination's fault: it waits, however long it takes. */
static void handle_shortage(Destination *d, Bundle *b, DeliveryRecord *delivery,
                            const Delivery *job) {
        const Scheduler *s = d->scheduler;
        postpone_bundle(d, b, delivery, job,
                        s->waits_for_memory == d
                                ? USEC_PER_SEC
                                : MIN(s->config->retry.maximum_usec, SHORTAGE_USEC));
}

/* Logs ignored notes once a bundle: each attempt finds the same ones. */
static void log_ignored_notes(Bundle *b, const Delivery *job) {
        size_t n = job->n_notes_ignored;
        if (n > 0 && !b->has_logged_notes)
                log_dump(b->rec.id, LOG_NOTICE, 0,
                         "%zu %s ignored: it has files of other users than the note's", n,
                         n == 1 ? "hook note is" : "hook notes are");
        b->has_logged_notes = b->has_logged_notes || n > 0;
}

/* Records how a delivery ended. The bundle may be gone afterwards. */
static void handle_result(Destination *d, Bundle *b, Delivery *job) {
        log_ignored_notes(b, job);
        Scheduler *s = d->scheduler;
        DeliveryRecord *delivery = find_delivery(b, d->config->name);
        b->n_running--;
        /* Without these rows a scan after a crash would ship its members again, as a supplement.
         * The next attempt finds the copy at the destination. */
        if (job->result == RESULT_DELIVERED && !b->rec.is_redelivery &&
            store_prints(s, b, delivery, job) < 0)
                (void)delivery_endf(job, RESULT_NO_RESOURCES,
                                    "delivered, but the state database cannot be written");
        if (job->result != RESULT_DELIVERED)
                (void)bundle_set_delivery_state(b, delivery, DELIVERY_PENDING); /* as above */
        if (job->result != RESULT_ABORTED)
                delivery_tries(b, delivery)->by_destination = false;
        delivery_tries(b, delivery)->has_object |= job->has_object;
        switch (job->result) {
        case RESULT_DELIVERED:
                handle_delivered(d, b, delivery, job);
                break;
        case RESULT_CHANGED:
                s->n_retries[SCHEDULER_RETRY_CHANGED]++;
                postpone(s, delivery, backoff(s, 1));
                log_dump(b->rec.id, LOG_NOTICE, 0, "%s; waiting for it to settle",
                         job->error ? job->error : "it changed");
                end_shipping(s, b, BUNDLE_SETTLING, job->error);
                break;
        case RESULT_VANISHED:
                postpone(s, delivery, backoff(s, 1));
                log_dump(b->rec.id, LOG_WARNING, 0, "%s",
                         job->error ? job->error : "nothing is left of it");
                end_shipping(s, b, BUNDLE_VANISHED, job->error);
                break;
        case RESULT_ABORTED:
                end_shipping(s, b, BUNDLE_READY, d->type->cut_text);
                break;
        case RESULT_DESTINATION_FAILED:
                handle_destination_failure(d, b, delivery, job);
                break;
        case RESULT_NO_RESOURCES:
                handle_shortage(d, b, delivery, job);
                break;
        case RESULT_FAILED:
                handle_bundle_failure(d, b, delivery, job);
                break;
        }
}

static Bundle *end_running(Destination *d) {
        Bundle *b = d->bundle;
        d->scheduler->memory_used -= d->running->memory_bytes;
        d->running = NULL;
        d->bundle = NULL;
        set_activity(d, ACTIVITY_IDLE);
        return b;
}

/* Records where the bundle is, or where a temporary file of it may be. */
static void record_place(const Destination *d, Bundle *b, const Delivery *job) {
        DeliveryRecord *delivery = find_delivery(b, d->config->name);
        _cleanup_free_ char *name = bundle_object_name(b->rec.id);
        char *object = name && delivery ? d->type->format_location(d, job->directory, name) : NULL;
        if (!object)
                return;
        if (job->refusal)
                log_dump(b->rec.id, LOG_WARNING, 0,
                         "destination %s: delivering to '%s', as the incident's directory cannot "
                         "be used: %s",
                         d->config->name, object, job->refusal);
        free(delivery->object);
        delivery->object = object; /* the row is written with the result */
}

static void on_delivery_done(Delivery *job) {
        Destination *d = job->owner;
        Scheduler *s = d->scheduler;
        Bundle *b = end_running(d);
        (void)store_begin(s->context.store); /* figures: a failure only makes them low */
        (void)store_counter_add(s->context.store, "bytes_read", atomic_load(&job->read_bytes));
        (void)store_counter_add(s->context.store, "bytes_sent", atomic_load(&job->sent_bytes));
        (void)store_commit(s->context.store);
        if (job->is_beside)
                record_place(d, b, job);
        handle_result(d->head, b, job);
        d->type->delivery_free(job);
        scheduler_kick(s);
}

/* ---- starting a delivery ---- */

static char *expand_template(const Destination *d, const BundleRecord *rec) {
        const SchedulerContext *c = &d->scheduler->context;
        _cleanup_free_ char *path =
                bundle_directory(d->template,
                                 &(BundleOrigin){ .kind = rec->kind,
                                                  .source = rec->source,
                                                  .instance_id = c->instance_id,
                                                  .hostname = c->hostname },
                                 &(BundleLocation){ .date_time = bundle_record_date_time(rec),
                                                    .cluster_id = bundle_record_cluster_id(rec),
                                                    .oldest_mtime_usec = rec->oldest_mtime_usec,
                                                    .uid = rec->uid });
        if (!path)
                return NULL;
        const char *below =
                path +
                (d->config->type == CONFIG_VOLUME ? strlen(path_template_fixed(d->template)) : 0);
        while (*below == '/')
                below++;
        return strdup(below);
}

char *scheduler_bundle_directory(const Destination *d, const BundleRecord *rec) {
        char *directory = NULL;
        if (rec->s3_prefix && d->config->type == CONFIG_S3 &&
            bundle_directory_from_prefix(rec->s3_prefix, d->config->bucket,
                                         d->scheduler->context.instance_id, &directory) < 0)
                return NULL;
        return directory ? directory : expand_template(d, rec);
}

/* Before the first delivery of a bundle, and the same for all that follow, after a crash too: an
 * object that was started with one plan must never meet another. The row is written by the caller.
 */
static void attach_collected_files(Scheduler *s, Bundle *b) {
        const Attachments *a = s->context.attachments;
        const BundleRecord *rec = &b->rec;
        int fd = bundle_has_begun(b) ? attachments_open_assigned(a, rec->source, rec->path, rec->id)
                                     : attachments_assign(a, rec->source, rec->path, rec->id);
        if (fd >= 0)
                (void)close(fd); /* a directory; each delivery opens its own */
        else if (fd != -ENOENT)
                log_dump(b->rec.id, LOG_WARNING, fd,
                         "cannot add what was collected for it; that follows in a supplement");
}

void scheduler_record_failure(Scheduler *s, Bundle *b) {
        if (delivery_record_failure(s->context.store, b))
                bundle_save(s->context.bundles, b);
}

/* What was shipped before, what is attached, and the notes of hooks. */
static void load_delivery_inputs(Scheduler *s, Bundle *b, Delivery *job) {
        if (b->rec.is_redelivery)
                (void)store_get_own_prints(s->context.store, b->rec.id, &job->shipped,
                                           &job->n_shipped); /* none: there is nothing to ship */
        else if (b->rec.supplement_of[0])
                (void)store_get_earlier_prints(s->context.store, &b->rec, &job->shipped,
                                               &job->n_shipped); /* none: all is new */
        int fd = attachments_open_assigned(s->context.attachments, b->rec.source, b->rec.path,
                                           b->rec.id);
        if (fd >= 0)
                job->attached_fd = fd;
        delivery_read_notes(job, s->context.store, b);
}

static void mark_shipping(const Destination *d, Bundle *b, DeliveryRecord *delivery,
                          const char *directory) {
        BundleTable *bundles = d->scheduler->context.bundles;
        _cleanup_free_ char *name = bundle_object_name(b->rec.id);
        free(delivery->object);
        delivery->object = name ? d->type->format_location(d, directory, name) : NULL;
        (void)bundle_set_delivery_state(b, delivery,
                                        DELIVERY_SHIPPING); /* a refused move is logged there */
        b->n_running++;
        if (b->rec.state == BUNDLE_READY) /* as above */
                (void)bundle_set_state(bundles, b, BUNDLE_SHIPPING, NULL);
        else
                bundle_save(bundles, b);
}

static int start_job(Destination *d, Bundle *b, Delivery *job) {
        d->running = job;
        d->bundle = b;
        d->scheduler->memory_used += job->memory_bytes;
        set_activity(d, ACTIVITY_DELIVERING);
        int r = d->type->delivery_start(d, job);
        if (r >= 0)
                return r;
        (void)delivery_endf(job, RESULT_NO_RESOURCES, "cannot start a thread: %s", strerror(-r));
        d->head->not_before_usec = scheduler_boottime_usec(d->scheduler) + USEC_PER_SEC;
        handle_result(d->head, end_running(d), job);
        d->type->delivery_free(job);
        return r;
}

static int start_delivery(Destination *d, Bundle *b) {
        Scheduler *s = d->scheduler;
        DeliveryRecord *delivery = find_delivery(b, d->config->name);
        attach_collected_files(s, b);
        _cleanup_free_ char *directory = scheduler_bundle_directory(d, &b->rec);
        if (!directory)
                return -ENOMEM;
        Delivery *job;
        int r = d->type->delivery_new(d, b, directory, &job);
        if (r < 0)
                return r;
        load_delivery_inputs(s, b, job);
        mark_shipping(d, b, delivery, directory);
        job->owner = d;
        job->on_done = on_delivery_done;
        job->start_usec = scheduler_boottime_usec(s);
        return start_job(d, b, job);
}

/* ---- who goes when ---- */

/* Given up here while other destinations have yet to try. One that is given up everywhere and READY
 * nevertheless (quarantine_after was lowered) is tried once more: the failure puts it into
 * quarantine. */
static bool is_given_up_here(const Scheduler *s, const Bundle *b, const DeliveryRecord *delivery) {
        return has_given_up(s, delivery) && (b->n_running > 0 || !has_given_up_all(s, b));
}

static bool is_small(const Bundle *b) {
        return rotation_is_small(b->rec.n_files, b->rec.bytes);
}

/* @return the delivery when it waits for nothing but its turn, or for time to pass
 * (*ret_wait_usec); else NULL */
static const DeliveryRecord *waiting_delivery(const Destination *d, Bundle *b, uint64_t now_usec,
                                              uint64_t *ret_wait_usec) {
        if ((b->rec.state != BUNDLE_READY && b->rec.state != BUNDLE_SHIPPING) || !b->source ||
            b->has_target_state)
                return NULL;
        const DeliveryRecord *delivery = find_delivery(b, d->config->name);
        if (!delivery || delivery->state != DELIVERY_PENDING ||
            is_given_up_here(d->scheduler, b, delivery) ||
            (b->cancel && !delivery_tries(b, delivery)->has_object))
                return NULL;
        /* A clock that was set back must not make a bundle wait for longer than the longest
         * backoff. */
        uint64_t wait = delivery->next_try_usec > now_usec ? delivery->next_try_usec - now_usec : 0;
        *ret_wait_usec = MIN(wait, d->scheduler->config->retry.maximum_usec);
        const SchedulerContext *c = &d->scheduler->context;
        if (wait == 0 && !b->rec.name.agreed[0] && c->is_named &&
            !c->is_named(b, &wait, c->userdata))
                *ret_wait_usec = MAX(wait, UINT64_C(1));
        return delivery;
}

/* @param wait_usec  lowered to when the next one of this queue may go  @return of those of this
 * size that may go now, the oldest of the owner who was served the longest ago; NULL */
static Bundle *first_of(const Destination *d, const BundleQueue *q, bool small,
                        uint64_t *wait_usec) {
        uint64_t now = scheduler_realtime_usec(d->scheduler), wait, served = 0, least = UINT64_MAX;
        Bundle *best = NULL;
        const Bundle *last = NULL; /* many of one owner come in a row */
        LIST_FOREACH (l, &q->bundles) {
                Bundle *b = CONTAINER_OF(l, Bundle, queue_link);
                if (is_small(b) != small || !waiting_delivery(d, b, now, &wait))
                        continue;
                if (wait > 0) {
                        *wait_usec = MIN(*wait_usec, wait);
                        continue;
                }
                if (!last || last->rec.uid != b->rec.uid)
                        served = rotation_owner_served_at(&d->head->rotation, q, b->rec.uid);
                last = b;
                if (served >= least)
                        continue;
                best = b;
                least = served;
                if (least == 0)
                        break;
        }
        return best;
}

static Bundle *pick_by_size(const Destination *d, bool small, uint64_t *wait_usec) {
        const Rotation *t = &d->head->rotation;
        size_t n;
        BundleQueue *const *queues = bundle_table_queues(d->scheduler->context.bundles, &n);
        Bundle *best = NULL;
        uint64_t best_served = 0;
        for (size_t i = 0; i < n; i++) {
                Bundle *b = first_of(d, queues[i], small, wait_usec);
                uint64_t served = b ? rotation_served_at(t, queues[i]) : 0;
                if (b && (!best || served < best_served ||
                          (served == best_served &&
                           b->rec.first_seen_usec < best->rec.first_seen_usec))) {
                        best = b;
                        best_served = served;
                }
        }
        return best;
}

/* @return the next bundle; NULL: none may go now, and *ret_wait_usec is when the next one may */
static Bundle *pick_bundle(const Destination *d, uint64_t *ret_wait_usec) {
        bool small_first = rotation_prefers_small(&d->head->rotation);
        *ret_wait_usec = USEC_INFINITY;
        Bundle *b = d != d->head ? pick_by_size(d, true, ret_wait_usec)
                                 : pick_by_size(d, small_first, ret_wait_usec);
        return b || d != d->head ? b : pick_by_size(d, !small_first, ret_wait_usec);
}

static void wind_down(Destination *d) {
        if (d->activity != ACTIVITY_DELIVERING)
                return;
        set_activity(d, ACTIVITY_WINDING_DOWN);
        d->type->delivery_wind_down(d->running);
}

/* A large bundle continues for so long, and for ten times as long as it takes to start again. */
#define LARGE_TURN_USEC (10 * USEC_PER_SEC)
#define LARGE_TURN_SETUPS 10

/* A large bundle that has had its time gives way when a small one waits. */
static void interrupt_for_small(Destination *d) {
        const Delivery *job = d->running;
        uint64_t now = scheduler_boottime_usec(d->scheduler), wait = USEC_INFINITY;
        if (!d->type->can_interrupt || d->activity != ACTIVITY_DELIVERING || is_small(d->bundle))
                return;
        if (!pick_by_size(d, true, &wait)) {
                if (wait != USEC_INFINITY) /* one that failed before may go again then */
                        kick_destination_in(d, wait);
                return;
        }
        uint64_t turn = MAX(LARGE_TURN_USEC, LARGE_TURN_SETUPS * job->setup_usec);
        uint64_t until = job->start_usec + turn;
        if (job->setup_usec == 0 || now < until) {
                kick_destination_in(d, now < until ? until - now : USEC_PER_SEC);
                return;
        }
        log_dump(d->bundle->rec.id, LOG_DEBUG, 0, "%s: paused for smaller bundles",
                 d->config->name);
        wind_down(d);
}

/* So few are no burst, even if they wait at many nodes. */
#define LONE_PENDING_MAX 4

static bool has_many_pending(const Destination *d) {
        uint64_t now = scheduler_realtime_usec(d->scheduler), wait;
        unsigned n_pending = 0;
        size_t n;
        BundleQueue *const *queues = bundle_table_queues(d->scheduler->context.bundles, &n);
        for (size_t i = 0; i < n; i++)
                LIST_FOREACH (l, &queues[i]->bundles) {
                        Bundle *b = CONTAINER_OF(l, Bundle, queue_link);
                        if (waiting_delivery(d, b, now, &wait) && ++n_pending > LONE_PENDING_MAX)
                                return true;
                }
        return false;
}

/* The first of several that many nodes may have waited for. @param is_burst  whether it may be one
 * @return whether it is postponed */
static bool postpone_for_jitter(Destination *d, bool is_burst) {
        Scheduler *s = d->scheduler;
        uint64_t now = scheduler_boottime_usec(s);
        if (!d->type->is_shared || s->is_urgent)
                return false;
        if (d->jitter_until_usec == 0) {
                d->jitter_until_usec = now;
                if (is_burst)
                        d->jitter_until_usec += scheduler_random() %
                                                MAX(s->config->retry.initial_usec, UINT64_C(1));
        }
        if (now >= d->jitter_until_usec)
                return false;
        kick_destination_in(d, d->jitter_until_usec - now);
        return true;
}

static void start_probe(Destination *d) {
        d->probe_start_usec = scheduler_boottime_usec(d->scheduler);
        if (d->type->probe(d) == 0)
                set_activity(d, ACTIVITY_PROBING);
        else
                kick_destination_in(d, USEC_PER_SEC);
}

/* @param ret_cleanup_wait_usec  until more is to be cleaned up  @return whether a delivery may
 * start now; else what was started, or a timer, kicks */
static bool is_prepared(Destination *d, uint64_t *ret_cleanup_wait_usec) {
        const Destination *head = d->head;
        uint64_t now = scheduler_boottime_usec(d->scheduler), cleanup_usec = USEC_INFINITY;
        *ret_cleanup_wait_usec = USEC_INFINITY;
        if (d != head) /* the head kicks it */
                return head->is_proven && head->activity != ACTIVITY_PROBING &&
                       now >= head->not_before_usec;
        if (d->activity != ACTIVITY_IDLE)
                return false;
        if (now < d->not_before_usec) {
                kick_destination_in(d, d->not_before_usec - now);
                return false;
        }
        if (!d->is_proven) {
                if (!postpone_for_jitter(d, true)) /* a start of all nodes, or an outage */
                        start_probe(d);
                return false;
        }
        if (d->type->clean_up && d->type->clean_up(d, &cleanup_usec)) {
                d->probe_start_usec = now;
                set_activity(d, ACTIVITY_CLEANING_UP);
                return false;
        }
        if (cleanup_usec != USEC_INFINITY) { /* whatever comes first rearms the timer */
                *ret_cleanup_wait_usec = cleanup_usec > now ? cleanup_usec - now : 0;
                kick_destination_in(d, *ret_cleanup_wait_usec);
        }
        return true;
}

static void wait_for_next(Destination *d, uint64_t wait_usec, uint64_t cleanup_wait_usec) {
        Scheduler *s = d->scheduler;
        if (s->waits_for_memory == d && wait_usec > USEC_PER_SEC) /* nobody waits for it now */
                s->waits_for_memory = NULL;
        if (wait_usec != USEC_INFINITY) {
                kick_destination_in(d, MIN(wait_usec, cleanup_wait_usec));
                return;
        }
        d->jitter_until_usec = 0;
        if (d == d->head && (d->delivery_failed || d->objects_failed))
                mark_ok(d); /* nobody waits for it any more, and it can be written */
}

static void kick_destination(Destination *d) {
        Scheduler *s = d->scheduler;
        uint64_t wait, cleanup_wait;
        if (s->is_stopping)
                return;
        if (d->running) {
                interrupt_for_small(d);
                return;
        }
        if (!is_prepared(d, &cleanup_wait)) {
                if (s->waits_for_memory == d)
                        s->waits_for_memory = NULL;
                return;
        }
        if (s->waits_for_memory && s->waits_for_memory != d)
                return; /* kicked when it has started */
        if (!has_memory(s, d->type->memory_bytes(d)))
                return; /* whoever comes back kicks */
        if (s->is_urgent)
                d->head->rotation.n_small_in_row =
                        0; /* small ones first, as long as there are any */
        Bundle *b = pick_bundle(d, &wait);
        if (!b) {
                wait_for_next(d, wait, cleanup_wait);
                return;
        }
        if (postpone_for_jitter(d, d->jitter_until_usec == 0 && has_many_pending(d)))
                return;
        rotation_record(&d->head->rotation, bundle_table_queue_of(s->context.bundles, b),
                        b->rec.uid, is_small(b));
        int r = start_delivery(d, b);
        if (r < 0) {
                log_dump(b->rec.id, LOG_ERR, r, "cannot start to ship it, trying again");
                kick_destination_in(d, USEC_PER_SEC);
        } else
                interrupt_for_small(d); /* when a small one may be waiting for its time */
}

void scheduler_kick(Scheduler *s) {
        for (size_t i = 0; i < s->n_all; i++)
                kick_destination(&s->destinations[i]);
}

static void reset_failures(Scheduler *s, Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                b->rec.deliveries[i].attempts = 0;
        memset(b->tries, 0, sizeof b->tries);
        b->rec.attempts = 0;
        bundle_save(s->context.bundles, b);
}

void scheduler_retry_now(Scheduler *s, Bundle *b) {
        for (size_t i = 0; i < s->n_all; i++) {
                s->destinations[i].not_before_usec = 0;
                s->destinations[i].jitter_until_usec =
                        MIN(s->destinations[i].jitter_until_usec, UINT64_C(1));
        }
        LIST_FOREACH (l, bundle_table_all(s->context.bundles)) {
                Bundle *other = CONTAINER_OF(l, Bundle, link);
                for (size_t i = 0; (!b || b == other) && i < other->rec.n_deliveries; i++)
                        other->rec.deliveries[i].next_try_usec = 0;
        }
        if (b)
                reset_failures(s, b);
        scheduler_kick(s);
}

/* Starts an attempt for each object that has no manifest yet. @return whether there is any */
static bool complete_objects(const Scheduler *s, Bundle *b) {
        bool any = false;
        for (size_t i = 0; i < b->rec.n_deliveries; i++) {
                DeliveryRecord *delivery = &b->rec.deliveries[i];
                Destination *d = scheduler_find_destination(s, delivery->destination);
                if (!d || !delivery_tries(b, delivery)->has_object ||
                    delivery->state != DELIVERY_PENDING || has_given_up(s, delivery))
                        continue;
                delivery->next_try_usec = 0;
                d->not_before_usec = 0;
                kick_destination_in(d, 0); /* runs after the caller has set `cancel` */
                any = true;
        }
        return any;
}

bool scheduler_abort(Scheduler *s, Bundle *b) {
        bool any = false;
        for (size_t i = 0; i < s->n_all; i++)
                if (s->destinations[i].bundle == b) {
                        s->destinations[i].type->delivery_abort(s->destinations[i].running);
                        any = true;
                }
        return complete_objects(s, b) || any;
}

/* No job runs on a node that is drained: then deliveries have normal priority. */
static void set_priority(Scheduler *s, WorkerPriority priority) {
        worker_pool_set_priority(s->compressors, priority);
        for (size_t i = 0; i < s->n_all; i++)
                worker_pool_set_priority(s->destinations[i].worker, priority);
}

void scheduler_set_urgent(Scheduler *s, bool is_urgent) {
        s->is_urgent = is_urgent;
        atomic_store(&s->limits->is_urgent, is_urgent);
        set_priority(s, is_urgent ? WORKER_NORMAL : WORKER_IDLE);
        scheduler_kick(s);
}

void scheduler_wind_down(Scheduler *s) {
        s->is_stopping = true;
        set_priority(s, WORKER_NORMAL);
        s->stop_usec = scheduler_boottime_usec(s) + STOP_TIMEOUT_USEC;
        for (size_t i = 0; i < s->n_all; i++)
                wind_down(&s->destinations[i]);
}

void scheduler_resume(Scheduler *s) {
        s->is_stopping = false;
        s->stop_usec = 0;
        set_priority(s, s->is_urgent && !s->context.is_urgent ? WORKER_NORMAL : WORKER_IDLE);
        scheduler_kick(s);
}

bool scheduler_is_idle(const Scheduler *s) {
        for (size_t i = 0; i < s->n_all; i++)
                if (s->destinations[i].running)
                        return false;
        return true;
}

bool scheduler_has_cleaned_up(const Scheduler *s, const char *destination) {
        const Destination *d = scheduler_find_destination(s, destination);
        return d && d->is_cleaned_up;
}

/* ---- what is shown: states, figures, sentences ---- */

uint64_t stall_check(StallCheck *s, uint64_t start_usec, uint64_t progress, uint64_t now_usec) {
        if (s->start_usec != start_usec) /* no progress at all counts from the beginning */
                *s = (StallCheck){ .start_usec = start_usec, .since_usec = start_usec };
        if (s->progress != progress) {
                s->progress = progress;
                s->since_usec = now_usec;
        }
        uint64_t still = now_usec > s->since_usec ? now_usec - s->since_usec : 0;
        return still > STALL_TIMEOUT_USEC ? still : 0;
}

size_t scheduler_n_destinations(const Scheduler *s) {
        return s->n_destinations;
}

/* What it means when our own side provides nothing. */
#define NO_CPU                                                                                     \
        "the threads that read and pack get no CPU, other work on the node uses all of them: "     \
        "leave it one, or raise CPUWeight= of the agent's unit"

#define NO_DATA "reading the source is too slow: its file system hangs, or is very slow"

static bool lacks_cpu(const Destination *d) {
        return worker_pool_wants_cpu(d->worker) || worker_pool_wants_cpu(d->scheduler->compressors);
}

/* @param ret_is_ours  whether the work waits for us, not for the destination
 * @return for how long it has made no progress; 0 = it does, or there is none. While the plan is
 * made nothing is requested of the destination. */
static uint64_t destination_stall(Destination *d, bool *ret_is_ours) {
        uint64_t now = scheduler_boottime_usec(d->scheduler);
        *ret_is_ours = false;
        if (d->activity == ACTIVITY_PROBING ||
            (d->activity == ACTIVITY_CLEANING_UP && d->type->job)) /* requests have time limits */
                return stall_check(&d->stall, d->probe_start_usec, 0, now);
        uint64_t since = d->running ? d->running->start_usec : objects_waiting_since_usec(d);
        if (!d->running)
                return since == 0 ? 0 : stall_check(&d->stall, since, 0, now);
        if (atomic_load(&d->running->total_bytes) == 0)
                return 0;
        uint64_t progress = d->type->refresh(d);
        if (d->type->awaits_destination && !d->type->awaits_destination(d, &since)) {
                *ret_is_ours = true;
                progress = atomic_load(&d->running->n_reads);
        }
        return since == 0 ? 0 : stall_check(&d->stall, since, progress, now);
}

/* A mount that hangs never answers, so no event changes the state: it is checked when it is shown.
 * What our own side causes is reported, and does not change the destination's state. */
static void view_stall(Destination *d, SchedulerDestinationView *ret) {
        bool is_ours;
        uint64_t still = destination_stall(d, &is_ours);
        if (still == 0) {
                d->stall_error[0] = '\0';
                return;
        }
        bool is_logged = d->stall_error[0] != '\0', no_cpu = lacks_cpu(d);
        is_ours = is_ours || (no_cpu && !d->type->awaits_destination);
        snprintf(d->stall_error, sizeof d->stall_error, "%s for %llu s: %s",
                 is_ours ? "nothing to send" : "no answer",
                 (unsigned long long)(still / USEC_PER_SEC),
                 !is_ours ? d->type->stall_text
                 : no_cpu ? NO_CPU
                          : NO_DATA);
        if (!is_logged)
                log_warning(0, "destination %s: %s", d->config->name, d->stall_error);
        if (!is_ours)
                ret->state = destination_state_name(DESTINATION_FAILING);
        ret->last_error = d->stall_error;
}

/* It takes other bundles, or could; one that it did not take keeps it from being called well. */
static void view_failed_delivery(const Destination *d, SchedulerDestinationView *ret) {
        LIST_FOREACH (l, bundle_table_all(d->scheduler->context.bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                const DeliveryRecord *delivery = find_delivery(b, d->config->name);
                if (!delivery || !delivery_tries(b, delivery)->by_destination)
                        continue;
                ret->state = destination_state_name(DESTINATION_FAILING);
                ret->last_error = delivery->last_error;
                return;
        }
}

void scheduler_destination_view(const Scheduler *s, size_t i, SchedulerDestinationView *ret) {
        Destination *d = &s->destinations[i];
        *ret = (SchedulerDestinationView){ .name = d->config->name,
                                           .type = d->type->name,
                                           .state = destination_state_name(d->state),
                                           .last_error = d->last_error,
                                           .last_success_usec = d->last_success_usec,
                                           .bytes_delivered = scheduler_bytes_delivered(d) };
        if (d->state == DESTINATION_OK)
                view_failed_delivery(d, ret);
        view_stall(d, ret);
        for (size_t k = s->n_destinations; k < s->n_all; k++)
                if (s->destinations[k].head == d)
                        view_stall(&s->destinations[k], ret);
}

size_t scheduler_deliveries_view(const Scheduler *s, SchedulerDeliveryView *ret) {
        size_t n = 0;
        for (size_t i = 0; i < s->n_all; i++) {
                Destination *d = &s->destinations[i];
                if (!d->running)
                        continue;
                (void)d->type->refresh(d);
                ret[n++] = (SchedulerDeliveryView){
                        .id = d->bundle->rec.id,
                        .destination = d->config->name,
                        .sent_bytes = atomic_load(&d->running->sent_bytes),
                        .done_bytes = atomic_load(&d->running->done_bytes),
                        .total_bytes = atomic_load(&d->running->total_bytes),
                        .start_usec = d->running->start_usec,
                };
        }
        return n;
}

/* READY for a destination that is not configured. */
static bool is_orphaned(const Scheduler *s, const Bundle *b) {
        for (size_t i = 0; b->rec.state == BUNDLE_READY && i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state != DELIVERY_DONE &&
                    !scheduler_find_destination(s, b->rec.deliveries[i].destination))
                        return true;
        return false;
}

void scheduler_figures(const Scheduler *s, SchedulerFigures *ret) {
        *ret = (SchedulerFigures){ .limits = s->limits,
                                   .buffer_bytes = s->memory_used,
                                   .n_aborted_uploads = s->n_aborted };
        memcpy(ret->n_retries, s->n_retries, sizeof ret->n_retries);
        LIST_FOREACH (l, bundle_table_all(s->context.bundles))
                ret->n_orphaned += is_orphaned(s, CONTAINER_OF(l, Bundle, link));
        for (size_t i = 0; i < s->n_all; i++) {
                const Delivery *job = s->destinations[i].running;
                ret->bytes_read += job ? atomic_load(&job->read_bytes) : 0;
                ret->bytes_sent += job ? atomic_load(&job->sent_bytes) : 0;
        }
}

bool scheduler_can_continue(const Scheduler *s, const Bundle *b) {
        for (size_t i = 0; b->source && i < b->rec.n_deliveries; i++) {
                const DeliveryRecord *delivery = &b->rec.deliveries[i];
                if (delivery->state != DELIVERY_DONE && !has_given_up(s, delivery) &&
                    !b->tries[tries_index(b, delivery)].failed &&
                    scheduler_find_destination(s, delivery->destination))
                        return true;
        }
        return false;
}

bool scheduler_requests(const Scheduler *s, size_t i, S3Stats *ret) {
        const Destination *d = &s->destinations[i];
        return d->type->stats && d->type->stats(d, ret);
}

/* @return where this bundle is being shipped to d, NULL when it is not */
static const Destination *delivery_at(const Scheduler *s, const Destination *d, const Bundle *b) {
        for (size_t i = 0; i < s->n_all; i++)
                if (s->destinations[i].head == d && s->destinations[i].bundle == b)
                        return &s->destinations[i];
        return NULL;
}

char *scheduler_explain(const Scheduler *s, const Bundle *b, const DeliveryRecord *delivery) {
        StrBuf text = STRBUF_INIT;
        const Destination *d = scheduler_find_destination(s, delivery->destination);
        const Destination *at = d ? delivery_at(s, d, b) : NULL;
        char span[64];
        uint64_t now = scheduler_realtime_usec(s), boot = scheduler_boottime_usec(s);
        strbuf_addf(&text, "To %s: ", delivery->destination);
        if (delivery->state == DELIVERY_DONE)
                strbuf_add(&text, "delivered and proven.");
        else if (!d)
                strbuf_add(&text, "this destination is no longer configured; add it again, run "
                                  "`neuron-collect redeliver` to ship it to those that its source "
                                  "has now, or cancel the bundle.");
        else if (at)
                strbuf_addf(&text, "being shipped now, %llu %% done.",
                            100ULL * atomic_load(&at->running->done_bytes) /
                                    MAX(atomic_load(&at->running->total_bytes), UINT64_C(1)));
        else if (has_given_up(s, delivery))
                strbuf_addf(&text,
                            "given up after %u %s, last: %s; fix it, then `neuron-collect "
                            "retry %s`.",
                            delivery->attempts, delivery->attempts == 1 ? "failure" : "failures",
                            delivery->last_error ? delivery->last_error : "?", b->rec.id);
        else if (boot < d->not_before_usec)
                strbuf_addf(&text, "the destination is %s (%s); the next try is in %s.",
                            destination_state_name(d->state), d->last_error ? d->last_error : "?",
                            clock_format_duration(span, d->not_before_usec - boot));
        else if (delivery->next_try_usec > now) {
                if (delivery->attempts > 0) /* 0: the destination failed, not the bundle */
                        strbuf_addf(&text, "failed %u %s, last: ", delivery->attempts,
                                    delivery->attempts == 1 ? "time" : "times");
                strbuf_addf(&text, "%s; the next try is in %s.",
                            delivery->last_error ? delivery->last_error : "it waits",
                            clock_format_duration(span, delivery->next_try_usec - now));
        } else if (d->running)
                strbuf_addf(&text, "waits for its turn, '%s' is being shipped.", d->bundle->rec.id);
        else if (boot < d->jitter_until_usec)
                strbuf_addf(&text,
                            "will be shipped in %s, so that not all nodes start at the "
                            "same moment.",
                            clock_format_duration(span, d->jitter_until_usec - boot));
        else
                strbuf_add(&text, "will be shipped as soon as it is ready.");
        return strbuf_detach(&text);
}

/* ---- life ---- */

/* Of a part that is sent while another one is, and of one that is packed. */
#define AUTO_BUFFERS_MIN 3U

/* All CPUs allowed, unless their memory would leave a bucket without parallel parts: idle priority
 * and the resting under pressure keep them out of the job's way. */
unsigned scheduler_auto_compressors(const Config *config, unsigned n_cpus) {
        unsigned n = MAX(n_cpus, 1U);
        for (size_t i = 0; i < config->n_destinations; i++) {
                const ConfigDestination *d = &config->destinations[i];
                DeliveryS3Memory m = { .bytes =
                                               config->limits.memory_bytes / config->n_destinations,
                                       .part_bytes =
                                               packer_part_bytes_max(d->part_size_bytes, 0, 0),
                                       .connections = (unsigned)d->connections,
                                       .level = (int)config->limits.compression_level,
                                       .n_compressors = 1 };
                uint64_t writer;
                if (d->type != CONFIG_S3)
                        continue;
                unsigned wanted = MIN(delivery_s3_buffers(&m, &writer), AUTO_BUFFERS_MIN);
                for (m.n_compressors = n; n > 1 && delivery_s3_buffers(&m, &writer) < wanted;)
                        m.n_compressors = --n;
        }
        return n;
}

static unsigned count_compressors(const Config *config) {
        if (config->limits.compression_threads > 0)
                return (unsigned)config->limits.compression_threads;
        cpu_set_t set;
        return scheduler_auto_compressors(config, sched_getaffinity(0, sizeof set, &set) == 0
                                                          ? (unsigned)CPU_COUNT(&set)
                                                          : 1);
}

/* A key's template is a path's without its first slash. */
static int create_template(Destination *d) {
        char bad;
        _cleanup_free_ char *path = d->config->type == CONFIG_VOLUME
                                            ? strdup(d->config->path)
                                            : strbuf_format("/%s", d->config->prefix);
        return path ? path_template_new(&d->template, path, FORM_DESTINATION_VARIABLES, &bad)
                    : -ENOMEM;
}

static int destination_init(Destination *d, Destination *head, const ConfigDestination *config) {
        *d = (Destination){ .scheduler = head->scheduler,
                            .head = head,
                            .config = config,
                            .type = config->type == CONFIG_S3 ? &destination_s3_type
                                                              : &destination_volume_type,
                            .state = DESTINATION_OK };
        int r = create_template(d);
        if (r >= 0)
                r = worker_pool_new(&d->worker, head->scheduler->context.event,
                                    d->type->worker_name, 1, WORKER_IDLE);
        return r < 0 ? r : d->type->open(d);
}

/* A volume gets a second worker where a destination's share of memory is so many times its needs.
 */
#define SECOND_WORKER_SHARE 3

/* A volume's second worker costs memory, so there has to be enough. */
static int add_second_workers(Scheduler *s) {
        const Config *config = s->config;
        uint64_t bytes = bundle_writer_memory_min((int)config->limits.compression_level);
        int r = 0;
        if (scheduler_memory_share(s) < SECOND_WORKER_SHARE * bytes)
                return 0;
        for (size_t i = 0; r >= 0 && i < s->n_destinations; i++) {
                Destination *head = &s->destinations[i];
                if (head->type->can_interrupt)
                        continue;
                s->memory_reserved += bytes;
                r = destination_init(&s->destinations[s->n_all++], head, head->config);
        }
        return r;
}

/* A destination that was removed may be configured again; then its unfinished uploads and temporary
 * files are removed after all. */
#define FORMER_USEC (7 * USEC_PER_DAY)

static void forget_former_destinations(const Scheduler *s) {
        _cleanup_(strbuf_done) StrBuf names = STRBUF_INIT;
        strbuf_add(&names, "\n");
        for (size_t i = 0; i < s->n_destinations; i++) {
                strbuf_add(&names, s->destinations[i].config->name);
                strbuf_add(&names, "\n");
        }
        int r = strbuf_error(&names);
        if (r == 0)
                r = store_abort_drop_former(s->context.store, names.text,
                                            s->started_usec - MIN(s->started_usec, FORMER_USEC));
        if (r < 0)
                log_warning(r, "what is to be aborted at destinations that are not configured any "
                               "more stays until the next start");
}

int scheduler_new(Scheduler **ret, const SchedulerContext *context, const Config *config) {
        Scheduler *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (Scheduler){ .context = *context,
                          .config = config,
                          .started_usec = context->clock->realtime_usec(context->clock),
                          .is_urgent = context->is_urgent,
                          .n_compressors = count_compressors(config) };
        int r = rate_limits_new(&s->limits, context->clock, config);
        if (r >= 0)
                atomic_store(&s->limits->is_urgent, s->is_urgent);
        s->destinations = calloc(2 * config->n_destinations + 1, sizeof *s->destinations);
        if (r >= 0)
                r = s->destinations ? worker_pool_new(&s->compressors, NULL, "nc-zstd",
                                                      s->n_compressors, WORKER_IDLE)
                                    : -ENOMEM;
        for (size_t i = 0; r >= 0 && i < config->n_destinations; i++) {
                Destination *d = &s->destinations[i];
                s->n_destinations = s->n_all = i + 1;
                d->scheduler = s;
                r = destination_init(d, d, &config->destinations[i]);
        }
        if (r >= 0)
                r = add_second_workers(s);
        if (r < 0) {
                scheduler_free(s);
                return r;
        }
        forget_former_destinations(s);
        *ret = s;
        return 0;
}

static bool is_busy(const Destination *d) {
        const WorkJob *job = d->running ? &d->running->work : d->type->job ? d->type->job(d) : NULL;
        return job && worker_pool_is_running(job);
}

/* @return whether it came back in time */
static bool wait_for_worker(const Destination *d, uint64_t until_usec) {
        Clock *clock = d->scheduler->context.clock;
        while (is_busy(d) && clock->boottime_usec(clock) < until_usec)
                (void)usleep(5 * USEC_PER_MSEC); /* the loop is over: there is nothing else to do */
        return !is_busy(d);
}

/* @return whether it hangs: then what its worker uses stays */
static bool destination_done(Destination *d, uint64_t until_usec) {
        bool hung = d->worker && !wait_for_worker(d, until_usec);
        objects_done(d, until_usec);
        if (hung)
                worker_pool_abandon(d->worker);
        else
                worker_pool_free(d->worker);
        if (d->target && d->type->stop)
                d->type->stop(d, hung);
        if (d->bundle) {
                d->bundle->n_running--;
                (void)bundle_set_delivery_state(
                        d->bundle, find_delivery(d->bundle, d->config->name), DELIVERY_PENDING);
                end_shipping(d->scheduler, d->bundle, BUNDLE_READY, d->type->cut_text);
        }
        if (hung)
                log_warning(0,
                            "destination %s: did not stop within 5 s, leaving its worker behind; "
                            "what it was shipping starts over",
                            d->config->name);
        else if (d->target) {
                d->type->delivery_free(d->running);
                d->type->close(d);
        }
        sd_event_source_disable_unref(d->timer);
        path_template_free(d->template);
        free(d->last_error);
        return hung;
}

Scheduler *scheduler_free(Scheduler *s) {
        if (!s)
                return NULL;
        s->is_stopping = true;
        for (size_t i = 0; i < s->n_all; i++)
                if (s->destinations[i].running)
                        atomic_store(&s->destinations[i].running->abort, true);
        uint64_t until =
                s->stop_usec > 0 ? s->stop_usec : scheduler_boottime_usec(s) + STOP_TIMEOUT_USEC;
        bool hung = false;
        for (size_t i = 0; i < s->n_all; i++)
                hung |= destination_done(&s->destinations[i], until);
        if (!hung) /* a hung worker may still come to compress */
                worker_pool_free(s->compressors);
        rate_limits_unref(s->limits);
        free(s->destinations);
        free(s);
        return NULL;
}

void scheduler_abandon_uploads(Scheduler *s, const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++) {
                int r = store_ledger_abandon(s->context.store, b->rec.id,
                                             b->rec.deliveries[i].destination);
                if (r < 0)
                        log_dump(b->rec.id, LOG_WARNING, r,
                                 "cannot record that its upload must be aborted");
                Destination *d = scheduler_find_destination(s, b->rec.deliveries[i].destination);
                if (d && d->type->abandon && b->rec.deliveries[i].object &&
                    b->rec.deliveries[i].state != DELIVERY_DONE)
                        d->type->abandon(d, b, &b->rec.deliveries[i]);
        }
}

void scheduler_set_config(Scheduler *s, const Config *config) {
        s->config = config;
        for (size_t i = 0; i < s->n_destinations; i++)
                s->destinations[i].config = &config->destinations[i];
        for (size_t i = s->n_destinations; i < s->n_all; i++)
                s->destinations[i].config = s->destinations[i].head->config;
}
