/* The scans of a source, on the loop: when one starts, and what is done with what it found.
 *
 *     waiting ──timer, event, flush──► walking: scan_job.c in a thread
 *        ▲                                │ on_scanned: faults are reported, the watch starts
 *        └── end_scan ◄── slices ◄── handling: a transaction for each slice of units
 *
 * Rows are written in transactions of FOUND_SLICE_USEC, so that the loop is not held up; bundles
 * are probed when their rows are durable. A source that is held (a drain) ends with a scan that
 * has read everything. */
#include "agent/intake/source_scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/admission.h"
#include "agent/intake/attached.h"
#include "agent/intake/history.h"
#include "agent/intake/hook_hints.h"
#include "agent/intake/link_sweep.h"
#include "agent/intake/lock_renewal.h"
#include "agent/intake/losses.h"
#include "agent/intake/new_bundle.h"
#include "agent/intake/scan_job.h"
#include "agent/intake/source_watch.h"
#include "agent/intake/units.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"

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

static int on_scan_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source, (void)usec;
        if (s->watch.dirwatch)
                dirwatch_check(s->watch.dirwatch);
        source_scan_start(s);
        return 0;
}

/* Bundles are probed once their rows are durable; where the commit failed a later scan finds them
 * again. @return 0, -errno of the commit */
static int end_transaction(IntakeSource *s) {
        int r = store_commit(s->context->store);
        size_t n_postponed = 0;
        s->scan.in_transaction = false;
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, bundle_table_all(s->context->bundles)) {
                if (!b->uncommitted)
                        continue;
                b->uncommitted = false;
                if (r >= 0) {
                        source_probe_bundle(b);
                        continue;
                }
                n_postponed++;
                source_remember(s, source_spec_relative(s->spec, b->rec.path),
                                ~b->rec.digest); /* so that the next scan reports it */
                admission_release(s, b);
                bundle_table_forget(s->context->bundles, b);
        }
        new_bundle_report_postponed(s, r, n_postponed);
        return r;
}

/* ---- a scan's end, and what it found ---- */

/* Rows of what was found are written, and those of what is gone are dropped, in slices of the loop,
 * each one transaction. */
#define FOUND_SLICE_USEC (20 * USEC_PER_MSEC)

static void end_scan(IntakeSource *s) {
        s->scan.has_logged_postponed = s->scan.is_postponing;
        s->scan.has_completed = true;
        s->scan.is_running = s->scan.flush = false;
        s->scan.is_wanted = s->scan.is_wanted || s->scan.found->has_more;
        attached_sweep(s);
        link_sweep_repeat(s);
        history_report(s, &s->scan.found->ended);
        s->scan.found = scan_job_free(s->scan.found);
        hook_hints_forget_old(s);
        admission_resume_parked(s);
        if (s->scan.is_wanted && admission_has_space(s)) {
                source_scan_start(s);
                return;
        }
        /* Scans again until all can be read: before that a drain is not safe. */
        if (s->hold == INTAKE_HOLDING && !s->scan.is_wanted && !s->admission.has_parked &&
            !s->scan.has_failed)
                set_hold(s, INTAKE_HELD);
        if (s->hold != INTAKE_HELD)
                source_scan_arm(s);
}

static int on_found(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        ScanJob *j = s->scan.found;
        (void)source, (void)usec;
        uint64_t until = source_boot_usec(s) + FOUND_SLICE_USEC;
        int r = store_begin(s->context->store);
        if (r < 0) { /* each row would wait for the database's lock by itself */
                new_bundle_report_postponed(s, r, j->n_found - j->n_handled);
                end_scan(s);
                return 0;
        }
        s->scan.in_transaction = true;
        for (; j->n_handled < j->n_found && source_boot_usec(s) < until; j->n_handled++) {
                ScanUnit *u = &j->found[j->n_handled];
                units_handle(s, u);
        }
        const size_t n_deleted = history_delete(s, &j->ended, until);
        if (end_transaction(s) >= 0)
                j->ended.n_deleted += n_deleted;
        if ((j->n_handled == j->n_found && j->ended.n_handled == j->ended.n) ||
            timer_arm(&s->scan.found_timer, &(TimerOptions){ .event = s->context->event,
                                                             .slack_usec = USEC_PER_MSEC,
                                                             .handler = on_found,
                                                             .userdata = s }) < 0)
                end_scan(s); /* the next scan finds the rest */
        return 0;
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

/* Logs why the scan did not read all: when the reason changes, not after every scan. */
static void report_unseen(IntakeSource *s, const ScanJob *j) {
        _cleanup_free_ char *why = describe_unseen(j);
        if (j->result == -ENOENT && !s->scan.was_missing)
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
        s->scan.has_failed = j->n_unreadable > 0 || (j->result < 0 && j->result != -ENOENT);
        s->scan.was_missing = j->result == -ENOENT;
}

static void on_scanned(SourceTask *t) {
        _cleanup_(scan_job_freep) ScanJob *j = CONTAINER_OF(t, ScanJob, task);
        IntakeSource *s = j->source;
        s->scan.took_usec = j->duration_usec;
        report_unseen(s, j);
        report_root(s, j);
        report_locks(s, j);
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++) {
                if (s->scan.n_left_out[skip] < j->left_out.skipped[skip])
                        losses_report_skip(s, NULL, &j->left_out, (ScanSkip)skip,
                                           s->scan.n_left_out[skip]);
                s->scan.n_left_out[skip] = j->left_out.skipped[skip];
        }
        source_watch_start(s, j->on_network ? j->fs_name : NULL); /* calls on_rescan when everything
                              is watched: what came in between is not lost */
        if (j->result == 0) {
                unit_table_done(&s->table);
                s->table = j->seen;
                j->seen = (UnitTable){ 0 };
        }
        s->scan.is_postponing = s->admission.has_late = false;
        s->scan.found = TAKE_PTR(j);
        (void)on_found(NULL, 0, s);
}

/* ---- a scan's start ---- */

void source_scan_arm(IntakeSource *s) {
        uint64_t usec = MIN(s->config->scan_interval_usec,
                            s->admission.has_late ? USEC_PER_MINUTE : UINT64_MAX);
        int r = timer_arm(&s->scan.timer, &(TimerOptions){ .event = s->context->event,
                                                           .usec = usec,
                                                           .slack_usec = usec / 20,
                                                           .handler = on_scan_timer,
                                                           .userdata = s });
        if (r < 0)
                log_error(r, "source %s: cannot arm the scan timer; only events find what is new",
                          s->config->name);
}

static int add_known(const char *path, void *userdata) {
        ScanJob *j = userdata;
        if (!path_is_below(path, j->spec->fixed))
                return 0;
        const char *relative = source_spec_relative(j->spec, path);
        return unit_table_has_path(&j->known, relative) ? 0
                                                        : unit_table_put(&j->known, relative, 0);
}

/* Adds the units of dumps that a scan does not recognise by their names. */
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

void source_scan_start(IntakeSource *s) {
        if (s->hold == INTAKE_HELD)
                return;
        if (s->scan.is_running || s->load_timer) {
                s->scan.is_wanted = true;
                return;
        }
        ScanJob *j = NULL;
        int r = scan_job_new(&j, s->spec, &s->table, s->context->active.max);
        if (r >= 0)
                r = add_nameless(s, j);
        if (r >= 0) {
                history_load(s, &j->ended);
                j->source = s;
                j->task.done = on_scanned;
                r = source_submit(s, s->scan.pool, &j->task);
        }
        if (r < 0) {
                scan_job_free(j);
                log_error(r, "source %s: cannot start a scan, trying again in scan_interval",
                          s->config->name);
                source_scan_arm(s);
                return;
        }
        s->scan.is_running = true;
        s->scan.start_usec = s->context->clock->boottime_usec(s->context->clock);
        s->scan.is_wanted = false;
        s->scan.flush = s->scan.flush_next;
        s->scan.flush_next = false;
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
