/* Releases the files of ended bundles by the operator's policy, and evicts undelivered bundles
 * where that allows it: measures and deletes in the threads of the sources, decides by policy.h
 * on the loop. Nothing is armed while nothing may have to go.
 *
 * Files are deleted only on the strength of a row that is durable: of a delivered bundle, or of
 * one that is evicted with its links still marked as held. So a crash before the row changes
 * nothing, and a crash after it leaves a row with what is still to be done at the next start.
 * The links go with the files, member by member, and the mark is taken off the row last. A
 * bundle that is evicted because the user has deleted its files has none to delete: its row is
 * written without the mark, and intake removes the links, or the next start does. */
#include "agent/retention/retention_runner.h"

#include <errno.h>
#include <string.h>

#include "agent/retention/deletion.h"
#include "agent/retention/eviction.h"
#include "agent/retention/held_bundles.h"
#include "agent/retention/measurement.h"
#include "agent/retention/policy.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"

#define ROUND_USEC (10 * USEC_PER_SEC)
#define KICK_USEC (300 * USEC_PER_MSEC)
/* With more bundles than this a kick starts no earlier round. */
#define KICK_BUNDLES_MAX 1000

#define RECHECK_USEC (2 * USEC_PER_SEC)
#define RETRY_OPEN_USEC (60 * USEC_PER_SEC)
#define RETRY_FAILED_USEC (5 * USEC_PER_MINUTE)

/* No more deletions of a source are started in a round; the rest follows when these are done. */
#define DELETIONS_MAX 64

typedef struct RunnerSource {
        RetentionRunner *runner;
        IntakeSource *source; /* borrowed */
        SourceSpec *spec;     /* its own; borrowed */
        HeldBundles held;
        unsigned round; /* in which the measurement that runs was started */
        bool is_measuring, has_device;
        bool has_more;         /* deletions were left for the next round */
        Measurement *measured; /* waits for the others of its file system; owned */
        size_t n_deletions;    /* that run */
        dev_t device;          /* of the last measurement */
        RetentionReport report;
        char *trouble; /* of the last deletion that failed; owned */
        char *note;    /* owned */
} RunnerSource;

struct RetentionRunner {
        RetentionRunnerContext context;
        RetentionPolicy policy;
        RunnerSource *sources;
        size_t n_sources;
        sd_event_source *timer;
        unsigned round;
        bool is_armed;
        uint64_t due_boot_usec; /* of the timer */
};

static void schedule_round(RetentionRunner *r, uint64_t usec);
static void plan_round(RetentionRunner *r);

static uint64_t boot_usec(const RetentionRunner *r) {
        return r->context.clock->boottime_usec(r->context.clock);
}

static uint64_t realtime_usec(const RetentionRunner *r) {
        return r->context.clock->realtime_usec(r->context.clock);
}

/* ---- held bundles ---- */

/* @return whether no deletion of it may start now */
static bool held_is_busy(const RunnerSource *s, const HeldBundle *h) {
        const RetentionRunnerContext *c = &s->runner->context;
        return h->state == HELD_DELETING || h->not_before_boot_usec > boot_usec(s->runner) ||
               bundle_table_find(c->bundles, h->id) || /* a redelivery */
               (c->is_read && c->is_read(h->id, c->userdata)) ||
               (!h->is_evicted && c->is_rechecking_links(s->source, h->id));
}

static char *unheld_counter(const RunnerSource *s) {
        return strbuf_format("sources_unheld:%s", s->spec->name);
}

/* Counts a delivered bundle whose files are never deleted, since no link of ours holds them. */
static void count_unheld(const RunnerSource *s) {
        _cleanup_free_ char *name = unheld_counter(s);
        if (name)
                (void)store_counter_add(s->runner->context.store, name, 1); /* a figure */
}

static uint64_t n_unheld(const RunnerSource *s) {
        _cleanup_free_ char *name = unheld_counter(s);
        return name ? store_counter(s->runner->context.store, name) : 0;
}

/* ---- deletions ---- */

static void set_trouble(RunnerSource *s, const char *text) {
        free(s->trouble);
        s->trouble = text ? strdup(text) : NULL; /* NULL: then only the log has it */
}

/* Takes the mark off the row that links are held. */
static int clear_links_held(const RunnerSource *s, const char *id, bool was_unheld) {
        Store *store = s->runner->context.store;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_get(store, id, &rec);
        if (r != 0)
                return MIN(r, 0); /* no row, no mark */
        rec.links_held = false;
        r = store_begin(store);
        if (r < 0)
                return r;
        if (was_unheld)
                count_unheld(s);
        (void)store_update(store, &rec); /* the commit reports a failure */
        return store_commit(store);
}

static void count_deleted(const RunnerSource *s, const Deletion *d) {
        Store *store = s->runner->context.store;
        if (d->tally.n_deleted == 0 || d->request.any_content) /* an eviction is a discard */
                return;
        (void)store_counter_add(store, "sources_deleted", d->tally.n_deleted); /* figures */
        (void)store_counter_add(store, "sources_deleted_bytes", d->tally.deleted_bytes);
}

/* Logs a failure once, and not again for each bundle. */
static void note_trouble(RunnerSource *s, const Deletion *d) {
        _cleanup_free_ char *text = deletion_explain_failure(d);
        bool is_known = s->trouble && text && strcmp(s->trouble, text) == 0;
        log_dump(d->id, is_known ? LOG_DEBUG : LOG_WARNING, 0, "%s", text ? text : "out of memory");
        set_trouble(s, text);
}

static void postpone(RunnerSource *s, HeldBundle *h, uint64_t usec) {
        h->is_measured = false;
        h->not_before_boot_usec = boot_usec(s->runner) + usec;
        schedule_round(s->runner, usec);
}

static void conclude(RunnerSource *s, HeldBundle *h, const Deletion *d) {
        bool is_done = d->result == 0 || d->result == -ENOENT;
        if (is_done)
                set_trouble(s, NULL);
        else if (d->result < 0 || d->result == LINK_DELETION_E_AWAY)
                note_trouble(s, d);
        if (is_done && clear_links_held(s, d->id, d->result == -ENOENT) >= 0) {
                held_bundles_remove(&s->held, h);
                return;
        }
        held_bundles_set_state(h, d->result == LINK_DELETION_E_UNSHIPPED ? HELD_UNSHIPPED
                                                                         : HELD_WAITING);
        postpone(s, h, d->result < 0 && !is_done ? RETRY_FAILED_USEC : RETRY_OPEN_USEC);
        if (h->state == HELD_UNSHIPPED)
                s->runner->context.recheck_links(s->source, d->id);
}

static void on_deletion_done(SourceTask *t) {
        _cleanup_(deletion_freep) Deletion *d = CONTAINER_OF(t, Deletion, task);
        RunnerSource *s = d->owner;
        HeldBundle *h = held_bundles_find(&s->held, d->id);
        s->n_deletions--;
        deletion_log(d);
        count_deleted(s, d);
        if (h)
                conclude(s, h, d);
        if (s->n_deletions == 0 && s->has_more) /* else when it is time: what is free may lag */
                schedule_round(s->runner, 0);
        plan_round(s->runner);
}

/* Reads the row again, since the bundle may have been pinned meanwhile, or be gone.
 * @return 0 and a deletion; 1: nothing is to be deleted; -errno */
static int prepare_deletion(RunnerSource *s, HeldBundle *h, Deletion **ret) {
        RetentionRunner *r = s->runner;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int error = store_get(r->context.store, h->id, &rec);
        if (error < 0)
                return error;
        if (error > 0 || !rec.links_held) {
                held_bundles_remove(&s->held, h);
                return 1;
        }
        error = store_unit_is_pinned(r->context.store, &rec);
        if (error < 0)
                return error;
        h->is_pinned = error > 0;
        if (h->is_pinned && r->policy.may_delete && !h->is_evicted)
                return 1;
        _cleanup_(deletion_freep) Deletion *d = deletion_new(s->spec, &rec);
        if (!d)
                return -ENOMEM;
        d->request.only_links = !r->policy.may_delete;
        d->request.discards_unshipped = h->state == HELD_RECHECKED;
        uint64_t now = realtime_usec(r), up = boot_usec(r);
        if (rec.changed_usec <
            now - MIN(now, up)) /* another boot may number the device otherwise */
                d->request.unit_dev = 0;
        error = h->is_evicted ? 0 : deletion_read_prints(d, r->context.store, &rec);
        if (error < 0)
                return error;
        *ret = TAKE_PTR(d);
        return 0;
}

static void start_deletion(RunnerSource *s, HeldBundle *h, RetentionWhy why) {
        _cleanup_(deletion_freep) Deletion *d = NULL;
        int r = prepare_deletion(s, h, &d);
        if (r > 0)
                return;
        if (r == 0) {
                d->owner = s;
                d->why = why;
                d->task.done = on_deletion_done;
                r = s->runner->context.submit(s->source, &d->task);
        }
        if (r < 0) {
                log_dump(h->id, LOG_WARNING, r, "cannot start to release its files, trying again");
                postpone(s, h, RETRY_OPEN_USEC);
                return;
        }
        (void)TAKE_PTR(d); /* the source has it */
        held_bundles_set_state(h, HELD_DELETING);
        s->n_deletions++;
}

/* Starts the deletions that need no measurement: of the files of evicted bundles, and with
 * `after_delivery: keep` of all links. */
static void start_owed_deletions(RunnerSource *s) {
        uint64_t now = boot_usec(s->runner);
        LIST_FOREACH_ITEM_SAFE (HeldBundle, h, link, &s->held.list) {
                if (!h->is_evicted && s->runner->policy.may_delete)
                        continue;
                if (held_is_busy(s, h)) {
                        if (h->state != HELD_DELETING) /* no measurement shows when it is due */
                                schedule_round(s->runner, h->not_before_boot_usec > now
                                                                  ? h->not_before_boot_usec - now
                                                                  : RECHECK_USEC);
                        continue;
                }
                if (s->n_deletions >= DELETIONS_MAX) {
                        s->has_more = true;
                        return;
                }
                start_deletion(s, h, RETENTION_NO_REASON);
        }
}

/* ---- what is measured ---- */

static int add_held(Measurement *m, const RunnerSource *s) {
        LIST_FOREACH_ITEM (HeldBundle, h, link, &s->held.list) {
                if (h->is_evicted)
                        continue;
                if (h->is_pinned) { /* an operator may have unpinned it */
                        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                        h->is_pinned = store_get(s->runner->context.store, h->id, &rec) != 0 ||
                                       store_unit_is_pinned(s->runner->context.store, &rec) != 0;
                }
                MeasuredBundle *x = measurement_add(m, h->id);
                if (!x)
                        return -ENOMEM;
                x->is_known = h->is_measured;
                x->use = h->use;
                x->item = (RetentionItem){ .uid = h->uid,
                                           .first_seen_usec = h->first_seen_usec,
                                           .delivered_usec = MAX(h->ended_usec, UINT64_C(1)),
                                           .is_pinned = h->is_pinned,
                                           .is_busy = held_is_busy(s, h) };
        }
        return 0;
}

static int add_undelivered(Measurement *m, const RunnerSource *s) {
        LIST_FOREACH_ITEM (const Bundle, b, link, bundle_table_all(s->runner->context.bundles)) {
                if (b->source != s->source || bundle_state_is_inactive(b->rec.state) ||
                    held_bundles_find(&s->held, b->rec.id))
                        continue;
                MeasuredBundle *x = measurement_add(m, b->rec.id);
                if (!x)
                        return -ENOMEM;
                x->digest = b->rec.digest;
                x->is_known = b->use.inodes > 0 && b->use.digest == b->rec.digest;
                x->use.used_bytes = b->use.bytes;
                x->item = (RetentionItem){ .uid = b->rec.uid,
                                           .first_seen_usec = b->rec.first_seen_usec,
                                           .is_pinned = b->rec.pinned,
                                           .is_busy = eviction_is_busy(b) };
        }
        return 0;
}

/* Quarantined bundles are not in the table, but they wait for the operator, and use space. */
static int add_quarantined(BundleRecord *rec, void *userdata) {
        MeasuredBundle *x = measurement_add(userdata, rec->id);
        if (!x)
                return -ENOMEM;
        x->item =
                (RetentionItem){ .uid = rec->uid,
                                 .first_seen_usec = rec->first_seen_usec,
                                 .is_pinned = rec->pinned,
                                 .is_busy = !rec->links_held || bundle_record_is_redelivery(rec) };
        return 0;
}

static int collect(Measurement *m, const RunnerSource *s) {
        Store *store = s->runner->context.store;
        StoreCounts counts;
        int r = add_held(m, s);
        if (r >= 0)
                r = add_undelivered(m, s);
        store_counts(store, &counts);
        if (r >= 0 && counts.bundles[BUNDLE_QUARANTINED] > 0)
                r = store_list(
                        store,
                        &(StoreFilter){ .state = BUNDLE_QUARANTINED, .source = m->spec->name },
                        add_quarantined, m);
        return r;
}

/* ---- what is reported ---- */

static void report(RunnerSource *s, const RetentionReport *now) {
        const RetentionReport was = s->report;
        bool was_bad = was.stays_short || was.stays_above_max_use;
        bool is_bad = now->stays_short || now->stays_above_max_use;
        s->report = *now;
        free(s->note);
        s->note = retention_report_explain(now, &s->runner->policy);
        if (is_bad && (!was_bad || was.stays_short != now->stays_short))
                log_warning(0, "source %s: %s", s->spec->name,
                            s->note ? s->note : "short of free space");
        else if (!is_bad && was_bad)
                log_notice("source %s: has enough free space again", s->spec->name);
}

/* ---- decisions: for the sources of one file system together, or each would free space for the
 * same shortage ---- */

/* Keeps what was measured, so that the next round need not measure it again. */
static void remember(const RunnerSource *s, const MeasuredBundle *x) {
        if (!x->use.is_there)
                return;
        HeldBundle *h = x->item.delivered_usec > 0 ? held_bundles_find(&s->held, x->id) : NULL;
        Bundle *b = h ? NULL : bundle_table_find(s->runner->context.bundles, x->id);
        if (h) {
                h->use = x->use;
                h->use.has_writer = false;
                h->is_measured = true;
        } else if (b && b->rec.digest == x->digest) {
                b->use.bytes = x->use.used_bytes;
                b->use.inodes = x->use.used_inodes;
                b->use.digest = x->digest;
        }
}

static void apply_measurement(const RunnerSource *s) {
        const Measurement *m = s->measured;
        for (size_t i = 0; i < m->n; i++) {
                MeasuredBundle *x = &m->bundles[i];
                if (!x->is_known || m->is_short)
                        remember(s, x);
                x->item.bytes = x->use.free_bytes;
                x->item.n_inodes = x->use.free_inodes;
                x->item.used_bytes = x->use.used_bytes;
                x->item.is_only_ours = x->use.is_there && x->use.is_only_ours;
                x->item.is_busy = x->item.is_busy || x->use.has_writer;
        }
}

static bool is_measured_on(const RunnerSource *s, dev_t device) {
        return s->measured && s->device == device;
}

static void evict(const RunnerSource *s, const MeasuredBundle *x, RetentionAct act) {
        const RetentionRunnerContext *c = &s->runner->context;
        const char *reason = act == RETENTION_RELEASE ? "deleted_by_user" : "keep_free";
        if (eviction_run(&(Eviction){ .store = c->store,
                                      .bundles = c->bundles,
                                      .source = s->source,
                                      .id = x->id,
                                      .act = act,
                                      .report = &s->report }))
                c->on_discard(reason, 1, c->userdata);
}

/* @param verdicts  of the source's own bundles */
static void apply_verdicts(RunnerSource *s, const RetentionVerdict *verdicts) {
        size_t n_started = 0;
        for (size_t i = 0; i < s->measured->n; i++) {
                const MeasuredBundle *x = &s->measured->bundles[i];
                HeldBundle *h;
                if (verdicts[i].act == RETENTION_KEEP)
                        continue;
                if (n_started++ >= DELETIONS_MAX)
                        s->has_more = true;
                else if (verdicts[i].act != RETENTION_DELETE)
                        evict(s, x, verdicts[i].act);
                else if ((h = held_bundles_find(&s->held, x->id)) && !held_is_busy(s, h))
                        start_deletion(s, h, verdicts[i].why);
        }
}

/* @param state  items is set here */
static int decide_items(RetentionRunner *r, RetentionState *state, dev_t device) {
        _cleanup_free_ RetentionItem *items = calloc(MAX(state->n, (size_t)1), sizeof *items);
        _cleanup_free_ RetentionVerdict *verdicts =
                calloc(MAX(state->n, (size_t)1), sizeof *verdicts);
        RetentionReport now;
        size_t n = 0;
        if (!items || !verdicts)
                return -ENOMEM;
        for (size_t k = 0; k < r->n_sources; k++)
                for (size_t i = 0;
                     is_measured_on(&r->sources[k], device) && i < r->sources[k].measured->n; i++)
                        items[n++] = r->sources[k].measured->bundles[i].item;
        state->items = items;
        int error = retention_decide(&r->policy, state, verdicts, &now);
        n = 0;
        for (size_t k = 0; error >= 0 && k < r->n_sources; k++) {
                RunnerSource *s = &r->sources[k];
                if (!is_measured_on(s, device))
                        continue;
                report(s, &now);
                apply_verdicts(s, verdicts + n);
                n += s->measured->n;
        }
        return error;
}

static void decide(RetentionRunner *r, dev_t device) {
        RetentionState state = { .now_usec = realtime_usec(r) };
        for (size_t k = 0; k < r->n_sources; k++) {
                RunnerSource *s = &r->sources[k];
                if (!is_measured_on(s, device))
                        continue;
                apply_measurement(s);
                state.n += s->measured->n;
                state.space = s->measured->space;
        }
        int error = decide_items(r, &state, device);
        if (error < 0)
                log_warning(error, "cannot decide which source files are released, trying again");
        for (size_t k = 0; k < r->n_sources; k++)
                if (is_measured_on(&r->sources[k], device))
                        r->sources[k].measured = measurement_free(r->sources[k].measured);
}

/* @return whether a measurement or deletion that still runs may be of this file system. A
 * measurement of an earlier round hangs: it is not waited for. */
static bool is_awaited(const RetentionRunner *r, dev_t device) {
        for (size_t k = 0; k < r->n_sources; k++) {
                const RunnerSource *s = &r->sources[k];
                if (s->is_measuring && s->round == r->round &&
                    (!s->has_device || s->device == device))
                        return true;
                if (s->n_deletions > 0 && s->has_device && s->device == device)
                        return true; /* they free space; the next round measures how much */
        }
        return false;
}

static void on_measured(SourceTask *t) {
        Measurement *m = CONTAINER_OF(t, Measurement, task);
        RunnerSource *s = m->owner;
        RetentionRunner *r = s->runner;
        s->is_measuring = false;
        measurement_free(s->measured);
        s->measured = NULL;
        s->has_device = m->result >= 0;
        if (m->result < 0) {
                if (m->result != -ENOENT)
                        log_warning(m->result, "source %s: cannot measure '%s', trying again",
                                    m->spec->name, m->spec->fixed);
                measurement_free(m);
        } else {
                s->device = m->device;
                s->measured = m;
        }
        for (size_t k = 0; k < r->n_sources; k++)
                if (r->sources[k].measured && !is_awaited(r, r->sources[k].device))
                        decide(r, r->sources[k].device);
        plan_round(r);
}

static void start_measurement(RunnerSource *s) {
        int r = -ENOMEM;
        if (s->is_measuring || s->n_deletions > 0)
                return;
        Measurement *m = measurement_new(s->spec, &s->runner->policy);
        if (m) {
                m->owner = s;
                m->task.done = on_measured;
                r = collect(m, s);
        }
        if (r >= 0 && m->n > 0) {
                r = s->runner->context.submit(s->source, &m->task);
                s->is_measuring = r >= 0;
                s->round = s->runner->round;
        }
        if (!s->is_measuring)
                measurement_free(m);
        if (r < 0)
                log_warning(r, "source %s: cannot measure what it uses, trying again",
                            s->spec->name);
}

/* ---- rounds ---- */

static uint64_t n_undelivered(const RetentionRunner *r) {
        StoreCounts counts;
        store_counts(r->context.store, &counts);
        return bundle_table_n(r->context.bundles) + counts.bundles[BUNDLE_QUARANTINED];
}

static uint64_t n_held(const RetentionRunner *r) {
        uint64_t n = 0;
        for (size_t i = 0; i < r->n_sources; i++)
                n += r->sources[i].held.n;
        return n;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        RetentionRunner *r = userdata;
        (void)source, (void)usec;
        r->is_armed = false;
        r->round++;
        for (size_t i = 0; i < r->n_sources; i++) {
                RunnerSource *s = &r->sources[i];
                if (s->n_deletions > 0)
                        continue;
                s->has_more = false;
                start_owed_deletions(s);
                start_measurement(s);
        }
        plan_round(r);
        return 0;
}

/* Starts a round after so long, or earlier when an earlier one is planned already. */
static void schedule_round(RetentionRunner *r, uint64_t usec) {
        uint64_t due = boot_usec(r) + usec;
        if (r->is_armed && r->due_boot_usec <= due)
                return;
        int error = timer_arm(&r->timer, &(TimerOptions){ .event = r->context.event,
                                                          .usec = usec,
                                                          .slack_usec = usec / 20,
                                                          .handler = on_timer,
                                                          .userdata = r });
        r->is_armed = error >= 0;
        r->due_boot_usec = due;
        if (error < 0)
                log_error(error, "cannot arm the timer of retention; the next bundle tries again");
}

/* Space may run out at any time, unless no bound is set. */
static uint64_t wait_usec(const RetentionRunner *r) {
        uint64_t now = realtime_usec(r), wait = USEC_INFINITY;
        bool is_bound = r->policy.keep_free.is_on || r->policy.max_use.is_on ||
                        r->policy.keep_free_undelivered.is_on;
        for (size_t i = 0; i < r->n_sources; i++) {
                const RunnerSource *s = &r->sources[i];
                uint64_t due = s->report.next_usec;
                if (s->held.n == 0)
                        continue;
                if (is_bound || !s->has_device || due <= now)
                        return MIN(ROUND_USEC, due > now ? due - now : ROUND_USEC);
                wait = MIN(wait, due - now);
        }
        return n_undelivered(r) > 0 ? MIN(wait, ROUND_USEC) : wait;
}

static void disarm(RetentionRunner *r) {
        if (r->timer)
                (void)sd_event_source_set_enabled(r->timer, SD_EVENT_OFF); /* cannot fail */
        r->is_armed = false;
        for (size_t i = 0; i < r->n_sources; i++) {
                RunnerSource *s = &r->sources[i];
                s->report = (RetentionReport){ .next_usec = UINT64_MAX };
                free(s->note);
                s->note = NULL;
        }
}

static void plan_round(RetentionRunner *r) {
        if (n_undelivered(r) == 0 && n_held(r) == 0) {
                disarm(r);
                return;
        }
        uint64_t wait = wait_usec(r);
        if (wait != USEC_INFINITY)
                schedule_round(r, wait);
}

void retention_runner_kick(RetentionRunner *r) {
        if (!r || r->n_sources == 0)
                return;
        bool is_much = bundle_table_n(r->context.bundles) + n_held(r) > KICK_BUNDLES_MAX;
        schedule_round(r, is_much ? ROUND_USEC : KICK_USEC);
}

/* ---- sources ---- */

static RunnerSource *find_source(const RetentionRunner *r, const IntakeSource *source) {
        for (size_t i = 0; r && source && i < r->n_sources; i++)
                if (r->sources[i].source == source)
                        return &r->sources[i];
        return NULL;
}

void retention_runner_on_final(RetentionRunner *r, const Bundle *b) {
        RunnerSource *s = find_source(r, b->source);
        if (s && bundle_state_is_terminal(b->rec.state) && b->rec.links_held)
                held_bundles_add(&s->held, &b->rec);
        else if (s && b->rec.state == BUNDLE_DELIVERED && r->policy.may_delete)
                count_unheld(s);
        retention_runner_kick(r);
}

void retention_runner_on_links_rechecked(RetentionRunner *r, const IntakeSource *source,
                                         const char *id) {
        RunnerSource *s = find_source(r, source);
        HeldBundle *h = s ? held_bundles_find(&s->held, id) : NULL;
        if (!h || h->state != HELD_UNSHIPPED)
                return;
        held_bundles_set_state(h, HELD_RECHECKED);
        h->not_before_boot_usec = 0;
        retention_runner_kick(r);
}

static void forget_sources(RetentionRunner *r) {
        for (size_t i = 0; i < r->n_sources; i++) {
                RunnerSource *s = &r->sources[i];
                held_bundles_done(&s->held);
                measurement_free(s->measured);
                free(s->trouble);
                free(s->note);
        }
        free(r->sources);
        r->sources = NULL;
        r->n_sources = 0;
}

void retention_runner_set_sources(RetentionRunner *r, const RetentionRunnerSource *sources,
                                  size_t n) {
        if (!r)
                return;
        forget_sources(r);
        if (n == 0) {
                plan_round(r);
                return;
        }
        r->sources = calloc(n, sizeof *r->sources);
        if (!r->sources) {
                log_error(-ENOMEM, "no source files are released until the next reload");
                return;
        }
        for (size_t i = 0; i < n; i++) {
                RunnerSource *s = &r->sources[r->n_sources++];
                *s = (RunnerSource){ .runner = r,
                                     .source = sources[i].source,
                                     .spec = sources[i].spec,
                                     .report.next_usec = UINT64_MAX };
                held_bundles_init(&s->held);
                int error = held_bundles_load(&s->held, r->context.store, s->spec);
                if (error < 0)
                        log_error(error,
                                  "source %s: cannot read which delivered files are held; they "
                                  "stay until the next start",
                                  s->spec->name);
        }
        retention_runner_kick(r);
}

/* ---- life ---- */

static RetentionBound bound_of(const ConfigSize *size) {
        return (RetentionBound){ .bytes = size->bytes,
                                 .permille = size->permille,
                                 .is_permille = size->is_permille,
                                 .is_on =
                                         size->is_permille ? size->permille > 0 : size->bytes > 0 };
}

static void apply_config(RetentionRunner *r, const Config *config) {
        r->policy = (RetentionPolicy){ .may_delete = config->retention.delete_after_delivery,
                                       .may_evict = config->retention.evict_oldest,
                                       .keep_for_usec = config->retention.keep_for_usec,
                                       .max_use = bound_of(&config->retention.max_use),
                                       .keep_free = bound_of(&config->retention.keep_free),
                                       .keep_free_undelivered =
                                               bound_of(&config->retention.keep_free_undelivered) };
        bundle_table_keep_links(r->context.bundles, r->policy.may_delete);
}

int retention_runner_new(RetentionRunner **ret, const RetentionRunnerContext *context,
                         const Config *config) {
        RetentionRunner *r = calloc(1, sizeof *r);
        if (!r)
                return -ENOMEM;
        r->context = *context;
        apply_config(r, config);
        *ret = r;
        return 0;
}

RetentionRunner *retention_runner_free(RetentionRunner *r) {
        if (!r)
                return NULL;
        forget_sources(r);
        sd_event_source_disable_unref(r->timer);
        free(r);
        return NULL;
}

void retention_runner_rebind(RetentionRunner *r, const Config *config) {
        if (!r)
                return;
        apply_config(r, config);
        retention_runner_kick(r);
}

bool retention_runner_is_deleting(const RetentionRunner *r, const char *id) {
        for (size_t i = 0; r && i < r->n_sources; i++) {
                const HeldBundle *h = held_bundles_find(&r->sources[i].held, id);
                if (h && h->state == HELD_DELETING)
                        return true;
        }
        return false;
}

void retention_runner_view(const RetentionRunner *r, const IntakeSource *source, SourceView *ret) {
        const RunnerSource *s = find_source(r, source);
        if (!s)
                return;
        ret->used_bytes = s->report.used_bytes;
        ret->max_use_bytes = s->report.max_use_bytes;
        ret->free_bytes = s->report.free_bytes;
        ret->keep_free_bytes = s->report.keep_free_bytes;
        ret->n_held = s->held.n;
        ret->n_unheld = n_unheld(s);
        ret->retention_note = s->trouble ? s->trouble : s->note;
}
