/* A destination's state, and what is the same for volumes and buckets. Its state is the result of
 * the last try there; its activity is what runs there now:
 *
 *        IDLE ──► PROBING ──► IDLE          after the start and after each failure
 *        IDLE ──► CLEANING UP ──► IDLE      leftovers of earlier deliveries, when some are due
 *        IDLE ──► DELIVERING ──► IDLE
 *                 DELIVERING ──► WINDING DOWN ──► IDLE     it is to give way, or to stop
 *
 * After a failure nothing starts there before `not_before_usec`; then the probe tells whether it
 * works again. Which bundle goes there is decided by the scheduler, what a delivery's result means
 * for the bundle by scheduler_results.c, and how bytes get there by delivery_volume.c and
 * delivery_s3.c. Everything here is on the loop. */
#include "agent/delivery/destination.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "uploaders/uploader.h"

uint64_t destination_random(void) {
        uint64_t r = 0;
        (void)!getrandom(&r, sizeof r, 0); /* 0 only means no jitter */
        return r;
}

void destination_set_text(char **to, const char *text) {
        free(*to);
        *to = text ? strdup(text) : NULL;
}

/* ---- the state ---- */

const char *destination_state_name(DestinationState s) {
        static const char *const names[N_DESTINATION_STATES] = {
                [DESTINATION_OK] = "ok",
                [DESTINATION_PAUSED] = "paused",
                [DESTINATION_FAILING] = "failing",
        };
        return names[s];
}

/* Every state may follow every other: the last try decides. */
static void set_state(Destination *d, DestinationState to) {
        if (d->state != to)
                log_debug("destination %s: %s", d->config->name, destination_state_name(to));
        d->state = to;
}

#define TO(activity) (1U << ACTIVITY_##activity)

void destination_set_activity(Destination *d, DestinationActivity to) {
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

void destination_count_bytes(const Destination *d, uint64_t bytes) {
        char name[BYTES_COUNTER_SIZE];
        (void)store_counter_add(d->shared->store, bytes_counter(d, name),
                                bytes); /* a figure, no evidence */
}

uint64_t destination_bytes_delivered(const Destination *d) {
        char name[BYTES_COUNTER_SIZE];
        return store_counter(d->shared->store, bytes_counter(d, name));
}

void destination_mark_ok(Destination *d) {
        if (d->n_failures > 0)
                log_notice("destination %s: works again", d->config->name);
        set_state(d, DESTINATION_OK);
        d->n_failures = 0;
        d->not_before_usec = 0;
        d->delivery_failed = d->objects_failed = false;
        destination_set_text(&d->last_error, NULL);
}

/* With --once the node may be terminated at the end of --timeout. */
#define ONCE_BACKOFF_MAX_USEC (10 * USEC_PER_SEC)

uint64_t destination_backoff_usec(const DestinationShared *s, unsigned n, uint64_t maximum_usec) {
        uint64_t max = MIN(maximum_usec, s->config->retry.maximum_usec);
        if (s->is_once)
                max = MIN(max, ONCE_BACKOFF_MAX_USEC);
        return backoff_next_usec(n, MIN(s->config->retry.initial_usec, max), max,
                                 destination_random());
}

/* What people have to fix is retried as slowly from the start as what has failed so often. */
#define BACKOFF_HEAD_START 3

void destination_mark_failed(Destination *d, int outcome, const char *error) {
        bool waits_for_people = outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_DENIED;
        d->n_failures++;
        uint64_t wait = destination_backoff_usec(
                d->shared, d->n_failures + (waits_for_people ? BACKOFF_HEAD_START : 0),
                DESTINATION_BACKOFF_MAX_USEC);
        d->not_before_usec = destination_boottime_usec(d) + wait;
        set_state(d, waits_for_people ? DESTINATION_PAUSED : DESTINATION_FAILING);
        d->is_proven = d->objects_failed = false;
        char text[64];
        if (!error ||
            !upload_error_is_same(d->last_error, error)) /* once, not with every attempt */
                log_warning(0, "destination %s: %s; nothing is lost, trying again in %s",
                            d->config->name, error ? error : "failed",
                            clock_format_duration(text, wait));
        destination_set_text(&d->last_error, error);
        d->shared->n_failures++;
}

void destination_probe_done(Destination *d, int outcome, const char *error) {
        destination_set_activity(d, ACTIVITY_IDLE);
        if (outcome == 0) {
                d->is_proven = true;
                if (!d->delivery_failed && !d->objects_failed)
                        destination_mark_ok(d);
        } else
                destination_mark_failed(d, outcome,
                                        error ? error : strerror(outcome < 0 ? -outcome : EIO));
        d->shared->on_probed(d, outcome == 0);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Destination *d = userdata;
        (void)source, (void)usec;
        d->shared->on_due(d);
        return 0;
}

void destination_kick_in(Destination *d, uint64_t usec) {
        int r = timer_arm(&d->timer, &(TimerOptions){ .event = d->shared->event,
                                                      .usec = usec,
                                                      .handler = on_timer,
                                                      .userdata = d });
        if (r < 0)
                log_error(r, "destination %s: cannot arm a timer", d->config->name);
}

/* A small object that failed gives deliveries no backoff: the probe, which is due at once, tells
 * whether they can continue. One that succeeded after the probe has failed shows that the
 * destination is back, so the next probe need not wait for its time. */
void destination_object_done(Destination *d, const char *error) {
        if (error) {
                if (!d->is_proven) /* the probe has reported that already */
                        return;
                d->is_proven = false;
                d->objects_failed = true;
                if (d->state == DESTINATION_OK) { /* the caller logs it */
                        set_state(d, DESTINATION_FAILING);
                        destination_set_text(&d->last_error, error);
                }
        } else {
                d->objects_failed = false;
                if (d->state != DESTINATION_FAILING || d->delivery_failed)
                        return;
                d->not_before_usec = 0;
                if (d->is_proven)
                        destination_mark_ok(d);
        }
        destination_kick_in(d, 0);
}

void destination_cleanup_done(Destination *d, int outcome) {
        d->is_cleaned_up = outcome == 0;
        destination_set_activity(d, ACTIVITY_IDLE);
        destination_kick_in(d, 0); /* not now: it would free the clean-up, which is calling us */
}

/* ---- stalls ---- */

uint64_t destination_stall_check(StallCheck *s, uint64_t start_usec, uint64_t progress,
                                 uint64_t now_usec) {
        if (s->start_usec != start_usec) /* no progress at all counts from the beginning */
                *s = (StallCheck){ .start_usec = start_usec, .since_usec = start_usec };
        if (s->progress != progress) {
                s->progress = progress;
                s->since_usec = now_usec;
        }
        uint64_t still = now_usec > s->since_usec ? now_usec - s->since_usec : 0;
        return still > STALL_TIMEOUT_USEC ? still : 0;
}

static uint64_t objects_waiting_since_usec(const Destination *d) {
        return d->objects ? d->objects->waiting_since_usec(d) : 0;
}

/* While the plan is made nothing is requested of the destination. */
uint64_t destination_stall(Destination *d, bool *ret_is_ours) {
        uint64_t now = destination_boottime_usec(d);
        *ret_is_ours = false;
        if (d->activity == ACTIVITY_PROBING ||
            (d->activity == ACTIVITY_CLEANING_UP && d->type->job)) /* requests have time limits */
                return destination_stall_check(&d->stall, d->probe_start_usec, 0, now);
        uint64_t since = d->running ? d->running->run.start_usec : objects_waiting_since_usec(d);
        if (!d->running)
                return since == 0 ? 0 : destination_stall_check(&d->stall, since, 0, now);
        if (atomic_load(&d->running->run.total_bytes) == 0)
                return 0;
        uint64_t progress = d->type->refresh(d);
        if (d->type->awaits_destination && !d->type->awaits_destination(d, &since)) {
                *ret_is_ours = true;
                progress = atomic_load(&d->running->run.n_reads);
        }
        return since == 0 ? 0 : destination_stall_check(&d->stall, since, progress, now);
}

/* ---- deliveries ---- */

static char *expand_template(const Destination *d, const BundleRecord *rec) {
        const DestinationShared *c = d->shared;
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

char *destination_bundle_directory(const Destination *d, const BundleRecord *rec) {
        char *directory = NULL;
        if (rec->s3_prefix && d->config->type == CONFIG_S3 &&
            bundle_directory_from_prefix(rec->s3_prefix, d->config->bucket, d->shared->instance_id,
                                         &directory) < 0)
                return NULL;
        return directory ? directory : expand_template(d, rec);
}

int destination_init_delivery(const Destination *d, Delivery *job, const Bundle *b,
                              const char *directory) {
        const DestinationShared *s = d->shared;
        return delivery_init(job,
                             &(DeliveryOptions){ .bundle = b,
                                                 .spec = s->get_source_spec(b),
                                                 .directory = directory,
                                                 .instance_id = s->instance_id,
                                                 .hostname = s->hostname,
                                                 .labels = s->config->node.labels.items,
                                                 .clock = s->clock,
                                                 .compressors = s->compressors,
                                                 .limits = s->limits,
                                                 .level = (int)s->config->limits.compression_level,
                                                 .memory_bytes = d->type->memory_bytes(d) });
}

/* ---- life ---- */

/* A template is that of a path, so the prefix of a key gets a slash in front of it. */
static int create_template(Destination *d) {
        char bad;
        _cleanup_free_ char *path = d->config->type == CONFIG_VOLUME
                                            ? strdup(d->config->path)
                                            : strbuf_format("/%s", d->config->prefix);
        return path ? path_template_new(&d->template, path, FORM_DESTINATION_VARIABLES, &bad)
                    : -ENOMEM;
}

int destination_init(Destination *d, DestinationShared *shared, Destination *head,
                     const ConfigDestination *config, const DestinationType *type) {
        *d = (Destination){ .shared = shared,
                            .head = head,
                            .config = config,
                            .type = type,
                            .state = DESTINATION_OK };
        int r = create_template(d);
        if (r >= 0)
                r = worker_pool_new(&d->worker, shared->event, type->worker_name, 1, WORKER_IDLE);
        return r < 0 ? r : type->open(d);
}

static bool is_busy(const Destination *d) {
        const WorkJob *job = d->running ? &d->running->work : d->type->job ? d->type->job(d) : NULL;
        return job && worker_pool_is_running(job);
}

/* @return whether it came back in time */
static bool wait_for_worker(const Destination *d, uint64_t until_usec) {
        Clock *clock = d->shared->clock;
        while (is_busy(d) && clock->boottime_usec(clock) < until_usec)
                (void)usleep(5 * USEC_PER_MSEC); /* the loop is over: there is nothing else to do */
        return !is_busy(d);
}

bool destination_stop(Destination *d, uint64_t until_usec) {
        bool hung = d->worker && !wait_for_worker(d, until_usec);
        if (d->objects)
                d->objects->close(d, until_usec);
        if (hung)
                worker_pool_abandon(d->worker);
        else
                worker_pool_free(d->worker);
        if (d->target && d->type->stop)
                d->type->stop(d, hung);
        return hung;
}

void destination_close(Destination *d, bool hung) {
        if (!hung && d->target) {
                d->type->delivery_free(d->running);
                d->type->close(d);
        }
        sd_event_source_disable_unref(d->timer);
        path_template_free(d->template);
        free(d->last_error);
}
