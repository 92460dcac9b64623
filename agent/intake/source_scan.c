/* The scans of a source, on the loop: when one starts, and what is done with what it found.
 *
 *     idle ─────────────► walking  scan_job.c is in the thread; on_walked() reports what it could
 *      │ ▲  start_walk()   ▲  │    not read, and starts the watch
 *      │ │                 │  ▼
 *      │ └── end_scan() ───┼─ handling  units and rows, in slices of SLICE_USEC: each is one
 *      ▼                   │            transaction, after which the bundles are probed
 *     waiting ─────────────┘  the timer, an event, a flush
 *
 * A scan that is requested while one runs follows when that one is over. A source that is held (a
 * drain) is idle after the first scan that has read everything. */
#include "agent/intake/source_scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/admission.h"
#include "agent/intake/history.h"
#include "agent/intake/hook_hints.h"
#include "agent/intake/link_sweep.h"
#include "agent/intake/lock_renewal.h"
#include "agent/intake/losses.h"
#include "agent/intake/new_bundle.h"
#include "agent/intake/scan_job.h"
#include "agent/intake/source_watch.h"
#include "agent/intake/units.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"

/* What was found is handled in slices of the loop, each one transaction. */
#define SLICE_USEC (20 * USEC_PER_MSEC)

static void set_hold(IntakeSource *s, IntakeHold hold) {
        static const char *const names[] = { "open", "holding", "held" };
        static const unsigned moves[] = {
                [INTAKE_OPEN] = 1U << INTAKE_HOLDING,
                [INTAKE_HOLDING] = 1U << INTAKE_OPEN | 1U << INTAKE_HELD,
                [INTAKE_HELD] = 1U << INTAKE_OPEN,
        };
        static const StateTable table = { "source", names, moves, N_INTAKE_HOLDS };
        if (transition_check(&table, s->hold, hold, NULL) == 0)
                s->hold = hold;
}

static void step(IntakeSource *s);

static void set_state(IntakeSource *s, SourceScanState state) {
        static const char *const names[] = { "idle", "walking", "handling", "waiting" };
        static const unsigned moves[] = {
                [SOURCE_SCAN_IDLE] = 1U << SOURCE_SCAN_WALKING | 1U << SOURCE_SCAN_WAITING,
                [SOURCE_SCAN_WALKING] = 1U << SOURCE_SCAN_HANDLING,
                [SOURCE_SCAN_HANDLING] = 1U << SOURCE_SCAN_IDLE,
                [SOURCE_SCAN_WAITING] = 1U << SOURCE_SCAN_WALKING,
        };
        static const StateTable table = { "scan", names, moves, N_SOURCE_SCAN_STATES };
        if (transition_check(&table, s->scan.state, state, NULL) == 0)
                s->scan.state = state;
}

/* ---- what a scan could not read ---- */

static void report_locks(IntakeSource *s, const ScanJob *j) {
        if (j->lock_note && (!s->renewal.note || strcmp(s->renewal.note, j->lock_note) != 0))
                log_warning(0, "source %s: %s", s->config->name, j->lock_note);
        source_set_note(&s->renewal.note, j->lock_note);
        if (j->on_network)
                lock_renewal_start(s);
}

static void report_root(IntakeSource *s, const ScanJob *j) {
        if (j->moved_aside) {
                log_warning(0,
                            "source %s: another user had made the directory for the agent's links, "
                            "which is now '%s'; find out why, and remove it",
                            s->config->name, j->moved_aside);
                s->context->on_discard("squatter", 1, s->context->userdata);
        }
        if (j->root_note && !s->scan.root_note)
                log_warning(0, "source %s: %s", s->config->name, j->root_note);
        source_set_note(&s->scan.root_note, j->root_note);
}

#define READ_REMEDY "give the agent CAP_DAC_READ_SEARCH or read permission"

/* @return why the scan did not read all of the source, and the remedy; the caller's; NULL: it read
 * all, the source does not exist yet, or lack of memory */
static char *describe_unseen(const ScanJob *j) {
        _cleanup_free_ char *fixed = path_escape(j->spec->fixed);
        const char *path = fixed ? fixed : "?";
        if (j->result == -ELOOP)
                return strbuf_format("'%s' is, or lies behind, a symlink of another user, which is "
                                     "not followed; remove it, or write the path that it leads to",
                                     path);
        if (j->result == -ENOTDIR)
                return strbuf_format("'%s' is not a directory, or lies below a file; remove that "
                                     "file, or fix the source's path",
                                     path);
        if (j->result < 0 && j->result != -ENOENT)
                return strbuf_format("'%s' cannot be read: %s%s", path, strerror(-j->result),
                                     j->result == -EACCES || j->result == -EPERM ? "; " READ_REMEDY
                                                                                 : "");
        if (j->n_unreadable == 0)
                return NULL;
        return strbuf_format("%llu %s below '%s' cannot be read, such as '%s'; " READ_REMEDY,
                             (unsigned long long)j->n_unreadable,
                             j->n_unreadable == 1 ? "directory" : "directories", path,
                             j->unreadable ? j->unreadable : "?");
}

/* Logs why the scan did not read all when the reason changes, not after every scan. */
static void report_unseen(IntakeSource *s, const ScanJob *j) {
        _cleanup_free_ char *why = describe_unseen(j);
        if (j->result == -ENOENT && s->scan.result != SOURCE_SCAN_MISSING)
                log_info("source %s: '%s' does not exist yet, waiting for it", s->config->name,
                         s->spec->fixed);
        if (why && (!s->scan.unseen || strcmp(s->scan.unseen, why) != 0))
                log_warning(0, "source %s: %s; trying again in scan_interval", s->config->name,
                            why);
        if (j->n_unreadable != s->scan.n_unreadable && j->n_unreadable > 0)
                s->context->on_discard("unreadable-directory", j->n_unreadable,
                                       s->context->userdata);
        source_set_note(&s->scan.unseen, why);
        s->scan.n_unreadable = j->n_unreadable;
        const bool is_missing = j->result == -ENOENT;
        s->scan.result = j->n_unreadable > 0 || (j->result < 0 && !is_missing) ? SOURCE_SCAN_UNREAD
                         : is_missing                                          ? SOURCE_SCAN_MISSING
                                                                               : SOURCE_SCAN_READ;
}

static void report_left_out(IntakeSource *s, const ScanUnit *left_out) {
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++) {
                if (s->scan.n_left_out[skip] < left_out->skipped[skip])
                        losses_report_skip(s, NULL, left_out, (ScanSkip)skip,
                                           s->scan.n_left_out[skip]);
                s->scan.n_left_out[skip] = left_out->skipped[skip];
        }
}

static void on_walked(SourceTask *t) {
        _cleanup_(scan_job_freep) ScanJob *j = CONTAINER_OF(t, ScanJob, task);
        IntakeSource *s = j->source;
        s->scan.took_usec = j->duration_usec;
        report_unseen(s, j);
        report_root(s, j);
        report_locks(s, j);
        report_left_out(s, &j->left_out);
        /* When everything is watched, this has another scan start: what came in between is not
         * lost. */
        source_watch_start(s, j->on_network ? j->fs_name : NULL);
        if (j->result == 0) {
                unit_table_done(&s->table);
                s->table = j->seen;
                j->seen = (UnitTable){ 0 };
        }
        new_bundle_on_walk_end(s);
        s->scan.found = TAKE_PTR(j);
        set_state(s, SOURCE_SCAN_HANDLING);
        step(s);
}

/* ---- units that a scan does not recognise by their names ---- */

static int add_known(const char *path, void *userdata) {
        ScanJob *j = userdata;
        if (!path_is_below(path, j->spec->fixed))
                return 0;
        const char *relative = source_spec_relative(j->spec, path);
        return unit_table_has_path(&j->known, relative) ? 0
                                                        : unit_table_put(&j->known, relative, 0);
}

static int add_nameless(IntakeSource *s, ScanJob *j) {
        if (s->spec->scan.kind != SOURCE_NEURON_CORE_DUMP)
                return 0;
        int r = hook_hints_for_each_unit(s, add_known, j);
        LIST_FOREACH_ITEM (const Bundle, b, link, bundle_table_all(s->context->bundles))
                if (r >= 0 && b->source == s &&
                    !unit_is_evidence_by_name(SOURCE_NEURON_CORE_DUMP, s->spec->template,
                                              source_spec_relative(s->spec, b->rec.path)))
                        r = add_known(b->rec.path, j);
        return r;
}

/* ---- the steps ---- */

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source, (void)usec;
        if (s->watch.dirwatch)
                dirwatch_check(s->watch.dirwatch);
        source_scan_start(s);
        return 0;
}

void source_scan_arm(IntakeSource *s) {
        uint64_t usec = MIN(s->config->scan_interval_usec,
                            s->admission.has_late ? USEC_PER_MINUTE : UINT64_MAX);
        int r = timer_arm(&s->scan.timer, &(TimerOptions){ .event = s->context->event,
                                                           .usec = usec,
                                                           .slack_usec = usec / 20,
                                                           .handler = on_timer,
                                                           .userdata = s });
        if (r < 0)
                log_error(r, "source %s: cannot arm the scan timer; only events find what is new",
                          s->config->name);
        if (s->scan.state == SOURCE_SCAN_IDLE)
                set_state(s, SOURCE_SCAN_WAITING);
}

static void start_walk(IntakeSource *s) {
        ScanJob *j = NULL;
        int r = scan_job_new(&j, s->spec, &s->table, s->context->active.max,
                             s->context->active.max_each);
        if (r >= 0)
                r = add_nameless(s, j);
        if (r >= 0) {
                history_load(s, &j->ended);
                j->source = s;
                j->task.done = on_walked;
                r = source_submit(s, s->scan.pool, &j->task);
        }
        if (r < 0) {
                scan_job_free(j);
                log_error(r, "source %s: cannot start a scan, trying again in scan_interval",
                          s->config->name);
                source_scan_arm(s);
                return;
        }
        set_state(s, SOURCE_SCAN_WALKING);
        admission_on_scan(s);
        s->scan.start_usec = source_boot_usec(s);
        s->scan.is_wanted = false;
        s->scan.flush = s->scan.flush_next;
        s->scan.flush_next = false;
}

static void end_scan(IntakeSource *s) {
        new_bundle_on_scan_end(s);
        s->scan.has_completed = true;
        s->scan.flush = false;
        /* The next scan finds what this one has left out, at once if there is space. If units that
         * this one found were refused, that is a later scan. */
        if (s->scan.found->has_more && !s->admission.has_late) {
                admission_defer(s, BOUND_E_OWNER, &s->scan.found->bound.last_refused);
                s->scan.is_wanted = s->scan.is_wanted || admission_is_resumable(s);
        }
        set_state(s, SOURCE_SCAN_IDLE);
        link_sweep_repeat(s);
        history_report(s, &s->scan.found->ended);
        s->scan.found = scan_job_free(s->scan.found);
        hook_hints_forget_old(s);
        if (s->scan.is_wanted && admission_allows_scan(s)) {
                source_scan_start(s);
                return;
        }
        /* Scans again until all can be read: before that a drain is not safe. */
        if (s->hold == INTAKE_HOLDING && !s->scan.is_wanted && !s->admission.has_late &&
            !source_scan_has_failed(s))
                set_hold(s, INTAKE_HELD);
        if (s->hold != INTAKE_HELD)
                source_scan_arm(s);
}

static int on_slice_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        step(userdata);
        return 0;
}

/* Writes rows of what was found, and deletes those of what is gone, in one transaction.
 * @return whether another slice follows; if not, the next scan finds what is left */
static bool handle_slice(IntakeSource *s) {
        ScanJob *j = s->scan.found;
        uint64_t until = source_boot_usec(s) + SLICE_USEC;
        int r = new_bundle_begin(s);
        if (r < 0) { /* each row would wait for the database's lock by itself */
                new_bundle_report_postponed(s, r, j->n_found - j->n_handled);
                return false;
        }
        for (; j->n_handled < j->n_found && source_boot_usec(s) < until; j->n_handled++)
                units_handle(s, &j->found[j->n_handled]);
        const size_t n_deleted = history_delete(s, &j->ended, until);
        if (new_bundle_commit(s) >= 0)
                j->ended.n_deleted += n_deleted;
        bool is_all = j->n_handled == j->n_found && j->ended.n_handled == j->ended.n;
        return !is_all &&
               timer_arm(&s->scan.slice_timer, &(TimerOptions){ .event = s->context->event,
                                                                .slack_usec = USEC_PER_MSEC,
                                                                .handler = on_slice_timer,
                                                                .userdata = s }) >= 0;
}

static void step(IntakeSource *s) {
        switch (s->scan.state) {
        case SOURCE_SCAN_IDLE:
        case SOURCE_SCAN_WAITING:
                start_walk(s);
                break;
        case SOURCE_SCAN_HANDLING:
                if (!handle_slice(s))
                        end_scan(s);
                break;
        case SOURCE_SCAN_WALKING: /* on_walked() is called */
        case N_SOURCE_SCAN_STATES:
                break;
        }
}

void source_scan_start(IntakeSource *s) {
        if (s->hold == INTAKE_HELD)
                return;
        if (source_scan_is_running(s) || s->load_timer)
                s->scan.is_wanted = true;
        else
                step(s);
}

void intake_source_flush(IntakeSource *s, bool flush) {
        s->scan.flush_next = flush;
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, bundle_table_all(s->context->bundles))
                if (flush && b->source == s && b->rec.state == BUNDLE_SETTLING)
                        intake_flush_bundle(b);
        source_scan_start(s);
}

void intake_source_hold(IntakeSource *s, bool on) {
        if (on == (s->hold != INTAKE_OPEN))
                return;
        set_hold(s, on ? INTAKE_HOLDING : INTAKE_OPEN);
        source_scan_start(s); /* what is there now, or has come meanwhile */
}

int source_scan_init(IntakeSource *s) {
        return worker_pool_new(&s->scan.pool, s->context->event, "nc-scan", 1, WORKER_NORMAL);
}

void source_scan_done(IntakeSource *s) {
        sd_event_source_disable_unref(s->scan.timer);
        sd_event_source_disable_unref(s->scan.slice_timer);
        scan_job_free(s->scan.found);
        free(s->scan.root_note);
        free(s->scan.unseen);
}
