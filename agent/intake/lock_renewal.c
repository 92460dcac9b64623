/* The unit locks of a source that nodes share: every UNIT_LOCKS_RENEW_USEC this node renews its
 * locks and publishes how much it holds, and it marks a unit as delivered, so that no other node
 * takes the unit over. It has a thread of its own, since a hung mount must not hold anything else
 * up. Which units to lock is decided by the scan (scan_job.c); the files are
 * agent/retention/unit_locks.c's. */
#include "agent/intake/lock_renewal.h"

#include <stdlib.h>
#include <string.h>

#include "agent/intake/source.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

#define UNMARKED_MAX 1024 /* deliveries whose mark is written again at the next renewal */

typedef struct UnitLockJob {
        SourceTask task;
        IntakeSource *source; /* for done(); NULL: nobody waits for it */
        SourceSpec *spec;     /* a reference */
        char *delivered;      /* the unit to mark as delivered; owned; NULL: renew */
        uint64_t digest;      /* of delivered */
        UnitLocksHeld own, others;
        int result;
} UnitLockJob;

static UnitLockJob *lock_job_free(UnitLockJob *b) {
        if (!b)
                return NULL;
        source_spec_unref(b->spec);
        free(b->delivered);
        free(b);
        return NULL;
}

static void lock_job_run(WorkJob *job) {
        UnitLockJob *b = CONTAINER_OF(job, UnitLockJob, task.job);
        if (b->delivered)
                b->result = unit_locks_mark_delivered(b->spec->locks, b->delivered, b->digest);
        else
                b->result = unit_locks_renew(b->spec->locks, &b->own, &b->others);
}

static void lock_job_drop(SourceTask *t) {
        lock_job_free(CONTAINER_OF(t, UnitLockJob, task));
}

/* The row says that it is delivered: only the mark for other nodes is missing. */
static void keep_unmarked(IntakeSource *s, UnitLockJob *b) {
        LockRenewal *l = &s->renewal;
        bool is_kept = l->n_unmarked < UNMARKED_MAX &&
                       array_grow(&l->unmarked, l->n_unmarked, sizeof *l->unmarked) == 0;
        if (!l->has_logged_unmarked)
                log_warning(b->result,
                            "source %s: cannot mark '%s' for other nodes as delivered, so that one "
                            "may deliver it again if this node dies; %s",
                            s->config->name, b->delivered,
                            is_kept ? "trying again every minute" : "too many are tried again");
        l->has_logged_unmarked = true;
        if (is_kept)
                l->unmarked[l->n_unmarked++] =
                        (UnmarkedDelivery){ .relative = TAKE_PTR(b->delivered),
                                            .digest = b->digest };
}

static void on_lock_job_done(SourceTask *t) {
        UnitLockJob *b = CONTAINER_OF(t, UnitLockJob, task);
        IntakeSource *s = b->source;
        if (b->delivered) {
                s->renewal.n_marks--;
                if (b->result < 0)
                        keep_unmarked(s, b);
                else
                        s->renewal.has_logged_unmarked = false;
        } else {
                s->renewal.is_running = false;
                s->renewal.others = b->result == 0 ? b->others : (UnitLocksHeld){ 0 };
        }
        lock_job_free(b);
}

/* @param delivered  the unit to mark as delivered; NULL: renew @return whether the job was started
 */
static bool lock_job_start(IntakeSource *s, const char *delivered, uint64_t digest,
                           const UnitLocksHeld *own) {
        UnitLockJob *b = calloc(1, sizeof *b);
        if (!b)
                return false;
        *b = (UnitLockJob){ .source = s, .spec = source_spec_ref(s->spec), .digest = digest };
        b->task = (SourceTask){ .job.run = lock_job_run,
                                .done = on_lock_job_done,
                                .drop = lock_job_drop };
        b->delivered = delivered ? strdup(delivered) : NULL;
        if (own)
                b->own = *own;
        if ((!delivered || b->delivered) && source_submit(s, s->renewal.pool, &b->task) >= 0)
                return true;
        lock_job_free(b);
        return false;
}

void lock_renewal_mark_delivered(IntakeSource *s, const char *relative, uint64_t digest) {
        if (s->renewal.pool && lock_job_start(s, relative, digest, NULL))
                s->renewal.n_marks++;
}

static void mark_again(IntakeSource *s) {
        LockRenewal *l = &s->renewal;
        size_t n = l->n_marks > 0 ? 0 : l->n_unmarked;
        for (size_t i = 0; i < n; i++) {
                lock_renewal_mark_delivered(s, l->unmarked[i].relative, l->unmarked[i].digest);
                free(l->unmarked[i].relative);
        }
        l->n_unmarked -= n;
}

static void renew_locks(IntakeSource *s) {
        UnitLocksHeld own = { 0 };
        uint64_t now = source_realtime_usec(s);
        if (s->renewal.is_running) /* the last renewal hangs */
                return;
        mark_again(s);
        LIST_FOREACH_ITEM (const Bundle, b, link, bundle_table_all(s->context->bundles)) {
                if (b->source != s || bundle_record_is_redelivery(&b->rec))
                        continue;
                own.n_units++;
                own.oldest_usec = MAX(own.oldest_usec, now - MIN(now, b->rec.first_seen_usec));
        }
        s->renewal.is_running = lock_job_start(s, NULL, 0, &own);
}

static int on_renew_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)usec;
        renew_locks(userdata);
        return timer_rearm(source, UNIT_LOCKS_RENEW_USEC);
}

void lock_renewal_start(IntakeSource *s) {
        int r = s->renewal.pool ? 0
                                : worker_pool_new(&s->renewal.pool, s->context->event, "nc-share",
                                                  1, WORKER_NORMAL);
        if (r >= 0 && !s->renewal.timer)
                r = timer_arm(&s->renewal.timer, &(TimerOptions){ .event = s->context->event,
                                                                  .usec = UNIT_LOCKS_RENEW_USEC,
                                                                  .slack_usec = USEC_PER_SEC,
                                                                  .handler = on_renew_timer,
                                                                  .userdata = s });
        if (r < 0)
                log_error(r,
                          "source %s: cannot renew this node's locks; other nodes may deliver its "
                          "units, too",
                          s->config->name);
        else
                renew_locks(s);
}

bool lock_renewal_is_renewal(const SourceTask *t) {
        return t->done == on_lock_job_done && !CONTAINER_OF(t, UnitLockJob, task)->delivered;
}

bool lock_renewal_has_marks(const IntakeSource *s) {
        LIST_FOREACH_ITEM (SourceTask, t, mine, (ListLink *)&s->tasks)
                if (t->done == on_lock_job_done && CONTAINER_OF(t, UnitLockJob, task)->delivered &&
                    !worker_pool_poll(&t->job))
                        return true;
        return false;
}

void lock_renewal_done(IntakeSource *s) {
        LockRenewal *l = &s->renewal;
        sd_event_source_disable_unref(l->timer);
        free(l->note);
        for (size_t i = 0; i < l->n_unmarked; i++)
                free(l->unmarked[i].relative);
        free(l->unmarked);
}
