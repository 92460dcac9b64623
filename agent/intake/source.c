/* A source: its events, its scans, its start and end. */
#include "agent/intake/intake.h"

#include <errno.h>
#include <string.h>

#include "agent/intake/intake_private.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"

/* How long a stop waits for workers that are busy. */
#define STOP_USEC (2 * USEC_PER_SEC)

uint64_t intake_boot_usec(const IntakeSource *s) {
        return s->context->clock->boottime_usec(s->context->clock);
}

uint64_t intake_realtime_usec(const IntakeSource *s) {
        return s->context->clock->realtime_usec(s->context->clock);
}

void intake_remember(IntakeSource *s, const char *relative, uint64_t digest) {
        /* Forgotten for want of memory: it is probed once more. */
        (void)unit_table_put(&s->table, unit_table_key(relative), digest);
}

void intake_set_note(char **note, const char *text) {
        if (*note && text && strcmp(*note, text) == 0)
                return;
        free(*note);
        *note = text ? strdup(text) : NULL;
}

/* "" for the fixed part itself, else what follows it and the slash. */
const char *intake_relative(const IntakeSource *s, const char *path) {
        size_t n = strlen(s->terms->fixed);
        const char *rest = path + (strncmp(path, s->terms->fixed, n) == 0 ? n : 0);
        while (*rest == '/')
                rest++;
        return rest;
}

void intake_source_on_final(IntakeSource *s, Bundle *b) {
        const char *relative = intake_relative(s, b->rec.path);
        s->n_active -= b->is_active; /* one that was restored from quarantine does not count */
        /* A quarantined one can be restored; of others the row says whether links are still needed.
         */
        intake_attached_on_final(s, b);
        hook_hints_on_final(s, b->rec.path);
        if (b->rec.state == BUNDLE_DELIVERED && b->dirty)
                intake_look_last(s, b->rec.id);
        else if (b->rec.state != BUNDLE_QUARANTINED && !b->rec.links_held)
                intake_release_pins(s, b->rec.id); /* some may be there where links were refused */
        intake_resweep_pins(s);
        /* A supplement's digest is not the unit's; and what vanished is accepted again if it comes
         * back. */
        if (!b->rec.supplement_of[0] && b->rec.state != BUNDLE_VANISHED)
                intake_remember(s, relative, b->rec.digest);
        if ((b->dirty && b->rec.state == BUNDLE_DELIVERED) || b->is_replaced ||
            intake_is_from_links(&b->rec))
                intake_probe_path(s, relative);
        if (s->scan_wanted && s->n_active < INTAKE_ACTIVE_MAX / 2)
                intake_start_scan(s);
}

/* ---- events ---- */

/* The bundle being worked on that a path lies in, if there is one. */
static Bundle *bundle_above(IntakeSource *s, const char *relative) {
        _cleanup_free_ char *path =
                relative[0] ? path_join(s->terms->fixed, relative) : strdup(s->terms->fixed);
        size_t least = strlen(s->terms->fixed);
        while (path && strlen(path) >= least) {
                Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, path);
                if (b)
                        return b;
                char *slash = strrchr(path, '/');
                if (!slash || slash == path)
                        break;
                *slash = '\0';
        }
        return NULL;
}

static void on_change(const char *relative, bool is_dir, void *userdata) {
        IntakeSource *s = userdata;
        Bundle *b = bundle_above(s, relative);
        /* A loose unit is only the files directly in its directory: what lies deeper is another
         * unit's. */
        if (b && !source_terms_is_loose(s->terms, intake_relative(s, b->rec.path))) {
                bool waiting = b->rec.state == BUNDLE_SETTLING && !b->probing;
                if (waiting && !b->dirty)
                        intake_probe_bundle_in(
                                b, MAX(REPROBE_USEC, REPROBE_SHARE * b->look_took_usec));
                b->dirty = true;
                return;
        }
        if (is_dir || s->terms->scan.kind == SOURCE_PROCESS_CORE) {
                intake_probe_path(s, relative);
                return;
        }
        const char *slash = strrchr(relative, '/'); /* many files of one directory are one probe */
        _cleanup_free_ char *dir = strndup(relative, slash ? (size_t)(slash - relative) : 0);
        if (dir)
                intake_probe_path(s, dir);
}

static void on_rescan(const char *why, void *userdata) {
        IntakeSource *s = userdata;
        log_debug("source %s: scanning, because %s", s->config->name, why);
        s->scan_wanted = true;
        intake_start_scan(s);
}

static void on_degraded(const char *why, const char *remedy, void *userdata) {
        IntakeSource *s = userdata;
        _cleanup_free_ char *text = NULL;
        if (asprintf(&text, "%s%s%s", why, remedy ? "; " : "", remedy ? remedy : "") < 0)
                text = NULL;
        if (text && (!s->note || strcmp(s->note, text) != 0))
                log_warning(0, "source %s: %s", s->config->name, text);
        intake_set_note(&s->note, text);
}

/* ---- scans ---- */

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

static void on_task_done(WorkJob *job) {
        SourceTask *t = CONTAINER_OF(job, SourceTask, job);
        list_remove(&t->mine);
        t->done(t);
}

static int submit(IntakeSource *s, WorkerPool *pool, SourceTask *t) {
        t->job.done = on_task_done;
        int r = worker_pool_submit(pool, &t->job);
        if (r >= 0)
                list_append(&s->tasks, &t->mine);
        return r;
}

int intake_source_submit(IntakeSource *s, SourceTask *t) {
        return submit(s, s->probes, t);
}

static void start_watch(IntakeSource *s, const ScanJob *j) {
        if (s->watch || s->config->watch == CONFIG_WATCH_SCAN)
                return;
        if (s->config->watch == CONFIG_WATCH_AUTO && j->on_network) {
                _cleanup_free_ char *text = NULL;
                if (asprintf(&text,
                             "'%s' is on %s, where inotify does not see what other nodes write: "
                             "scanning every scan_interval instead",
                             s->terms->fixed, j->fs_name) >= 0 &&
                    (!s->note || strcmp(s->note, text) != 0)) {
                        intake_set_note(&s->note, text);
                        log_notice("source %s: %s", s->config->name, text);
                }
                return;
        }
        DirWatchCallbacks callbacks = { .on_change = on_change,
                                        .on_rescan = on_rescan,
                                        .on_degraded = on_degraded,
                                        .userdata = s };
        int r = dirwatch_new(&s->watch, s->context->event, s->terms->fixed, &callbacks);
        if (r < 0)
                on_degraded("no inotify instance can be had, so only the scan every scan_interval "
                            "finds what is new",
                            "raise fs.inotify.max_user_instances", s);
}

static int on_scan_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source;
        (void)usec;
        if (s->watch)
                dirwatch_check(s->watch);
        intake_start_scan(s);
        return 0;
}

/* Bundles are probed once their rows are durable; where the commit failed a later scan finds them
 * again. */
static void end_transaction(IntakeSource *s) {
        int r = store_commit(s->context->store);
        size_t n_postponed = 0;
        s->in_transaction = false;
        LIST_FOREACH_SAFE (l, bundle_table_all(s->context->bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (!b->uncommitted)
                        continue;
                b->uncommitted = false;
                if (r >= 0) {
                        intake_probe_bundle(b);
                        continue;
                }
                n_postponed++;
                intake_remember(s, intake_relative(s, b->rec.path),
                                ~b->rec.digest); /* so that the next scan reports it */
                s->n_active--;
                bundle_table_forget(s->context->bundles, b);
        }
        intake_report_postponed(s, r, n_postponed);
}

static void handle_found(IntakeSource *s, ScanJob *j) {
        s->is_postponing = false;
        s->in_transaction =
                store_begin(s->context->store) == 0; /* else each row is committed by itself */
        for (size_t i = 0; i < j->n_found; i++) {
                ScanUnit *u = &j->found[i];
                if (u->on_network && !u->has_own_name) /* must be claimed first, which may block */
                        intake_probe_path(s, u->relative);
                else if (s->n_active < INTAKE_ACTIVE_MAX)
                        intake_on_unit(s, u);
                else
                        s->scan_wanted = true;
        }
        if (s->in_transaction)
                end_transaction(s);
        s->has_logged_postponed = s->is_postponing;
}

static void arm_scan(IntakeSource *s);

static void on_scanned(SourceTask *t) {
        _cleanup_(scan_job_freep) ScanJob *j = CONTAINER_OF(t, ScanJob, task);
        IntakeSource *s = j->source;
        s->is_scanning = false;
        s->scan_usec = j->duration_usec;
        if (j->result < 0 && j->result != -ENOENT)
                log_warning(j->result,
                            "source %s: cannot scan '%s'; check that the agent may read it; trying "
                            "again in scan_interval",
                            s->config->name, s->terms->fixed);
        if (j->result == -ENOENT && !s->was_missing)
                log_info("source %s: '%s' does not exist yet, waiting for it", s->config->name,
                         s->terms->fixed);
        if (j->n_unreadable != s->n_unreadable &&
            j->n_unreadable > 0) { /* logged when it changes, not with every scan */
                log_warning(0,
                            "source %s: %llu directories cannot be read, such as '%s'; give the "
                            "agent CAP_DAC_READ_SEARCH or read permission",
                            s->config->name, (unsigned long long)j->n_unreadable,
                            j->unreadable ? j->unreadable : "?");
                s->context->on_discard("unreadable-directory", j->n_unreadable,
                                       s->context->userdata);
        }
        s->n_unreadable = j->n_unreadable;
        s->scan_failed = j->n_unreadable > 0 || (j->result < 0 && j->result != -ENOENT);
        s->was_missing = j->result == -ENOENT;
        start_watch(s, j); /* calls on_rescan when everything is watched: what came in between is
                              not lost */
        handle_found(s, j);
        intake_attached_sweep(s);
        s->flush_this_scan = false;
        s->has_scanned = true;
        s->scan_wanted = s->scan_wanted || j->has_more;
        if (s->scan_wanted && s->n_active < INTAKE_ACTIVE_MAX / 2) {
                intake_start_scan(s);
                return;
        }
        if (s->hold == INTAKE_HOLDING && !s->scan_wanted)
                set_hold(s, INTAKE_HELD);
        if (s->hold != INTAKE_HELD)
                arm_scan(s);
}

static void arm_scan(IntakeSource *s) {
        int r = timer_arm(&s->scan_timer,
                          &(TimerOrder){ .event = s->context->event,
                                         .usec = s->config->scan_interval_usec,
                                         .slack_usec = s->config->scan_interval_usec / 20,
                                         .handler = on_scan_timer,
                                         .userdata = s });
        if (r < 0)
                log_error(r, "source %s: cannot arm the scan timer; only events find what is new",
                          s->config->name);
}

void intake_start_scan(IntakeSource *s) {
        if (s->hold == INTAKE_HELD)
                return;
        if (s->is_scanning) {
                s->scan_wanted = true;
                return;
        }
        size_t n_max = s->n_active < INTAKE_ACTIVE_MAX ? INTAKE_ACTIVE_MAX - s->n_active : 0;
        ScanJob *j = NULL;
        int r = scan_job_new(&j, s->terms, &s->table, n_max);
        if (r >= 0) {
                j->source = s;
                j->task.done = on_scanned;
                r = submit(s, s->scans, &j->task);
        }
        if (r < 0) {
                scan_job_free(j);
                log_error(r, "source %s: cannot start a scan, trying again in scan_interval",
                          s->config->name);
                arm_scan(s);
                return;
        }
        s->is_scanning = true;
        s->scan_wanted = false;
        s->flush_this_scan = s->flush_wanted;
        s->flush_wanted = false;
}

void intake_source_flush(IntakeSource *s, bool flush) {
        s->flush_wanted = flush;
        LIST_FOREACH_SAFE (l, bundle_table_all(s->context->bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (flush && b->source == s && b->rec.state == BUNDLE_SETTLING)
                        intake_flush_bundle(b);
        }
        intake_start_scan(s);
}

void intake_source_hold(IntakeSource *s, bool on) {
        if (on == (s->hold != INTAKE_OPEN))
                return;
        set_hold(s, on ? INTAKE_HOLDING : INTAKE_OPEN);
        intake_start_scan(s); /* what is there now, or has come meanwhile */
}

/* ---- life ---- */

static int remember_stored(const char *path, uint64_t digest, void *userdata) {
        IntakeSource *s = userdata;
        size_t n = strlen(s->terms->fixed);
        if (strncmp(path, s->terms->fixed, n) != 0)
                return 0;
        const char *relative = path + n;
        while (*relative == '/')
                relative++;
        intake_remember(s, relative, digest);
        return 0;
}

int intake_source_new(IntakeSource **ret, IntakeContext *context, const ConfigSource *config) {
        IntakeSource *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (IntakeSource){ .context = context, .config = config };
        pending_init(&s->pending);
        pending_init(&s->rechecks);
        pending_init(&s->attached);
        list_init(&s->hook_hints);
        list_init(&s->tasks);
        int r = source_terms_new(&s->terms, config, context->instance_id, context->proc_root);
        if (r >= 0)
                r = worker_pool_new(&s->probes, context->event, "nc-probe", 1, WORKER_NORMAL);
        if (r >= 0)
                r = worker_pool_new(&s->scans, context->event, "nc-scan", 1, WORKER_NORMAL);
        if (r >= 0)
                r = store_list_ended(context->store, config->name, remember_stored, s);
        if (r < 0) {
                intake_source_free(s);
                return r;
        }
        intake_sweep_pins(s);
        intake_start_scan(s);
        *ret = s;
        return 0;
}

static bool is_any_running(const IntakeSource *s) {
        LIST_FOREACH (l, &s->tasks)
                if (worker_pool_is_running(&CONTAINER_OF(l, SourceTask, mine)->job))
                        return true;
        return false;
}

/* Queued tasks are dropped; those that run are waited for a little. One that sits in a hung mount
 * is abandoned with what it holds. */
static void stop_workers(IntakeSource *s) {
        worker_pool_abandon(s->probes);
        worker_pool_abandon(s->scans);
        uint64_t until = intake_boot_usec(s) + STOP_USEC;
        while (is_any_running(s) && intake_boot_usec(s) < until)
                (void)usleep(2 * USEC_PER_MSEC); /* a signal only ends the wait sooner */
        LIST_FOREACH_SAFE (l, &s->tasks) {
                SourceTask *t = CONTAINER_OF(l, SourceTask, mine);
                list_remove(&t->mine);
                if (!worker_pool_is_running(&t->job))
                        t->drop(t);
        }
}

IntakeSource *intake_source_free(IntakeSource *s) {
        if (!s)
                return NULL;
        LIST_FOREACH (l, bundle_table_all(s->context->bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->source == s) {
                        b->source = NULL;
                        b->probing = false;
                        b->timer = sd_event_source_disable_unref(b->timer);
                }
        }
        dirwatch_free(s->watch);
        stop_workers(s);
        sd_event_source_disable_unref(s->scan_timer);
        sd_event_source_disable_unref(s->probe_timer);
        pending_done(&s->pending);
        pending_done(&s->rechecks);
        intake_attached_done(s);
        hook_hints_done(s);
        unit_table_done(&s->table);
        source_terms_unref(s->terms);
        free(s->note);
        free(s->hold_note);
        free(s);
        return NULL;
}

void intake_source_rebind(IntakeSource *s, const ConfigSource *config) {
        s->config = config;
}

const ConfigSource *intake_source_config(const IntakeSource *s) {
        return s->config;
}

SourceTerms *intake_source_terms(const IntakeSource *s) {
        return s->terms;
}

void intake_source_view(const IntakeSource *s, IntakeSourceView *ret) {
        *ret = (IntakeSourceView){ .is_watched = s->watch != NULL,
                                   .has_scanned = s->has_scanned,
                                   .note = s->note ? s->note : s->hold_note,
                                   .n_watches = s->watch ? dirwatch_n_watches(s->watch) : 0,
                                   .n_overflows = s->watch ? dirwatch_n_overflows(s->watch) : 0,
                                   .scan_usec = s->scan_usec };
}

bool intake_source_has_seen_all(const IntakeSource *s) {
        return s->has_scanned && !s->scan_failed;
}

bool intake_source_is_idle(const IntakeSource *s) {
        return s->has_scanned && !s->is_scanning && !s->scan_wanted && s->n_probes == 0 &&
               !s->is_listing && pending_is_empty(&s->pending) && pending_is_empty(&s->attached);
}
