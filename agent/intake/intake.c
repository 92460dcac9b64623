/* A source, from intake_source_new() to intake_source_free(), and what it is told: a hook has
 * started, a bundle has ended. Each is passed on to the modules of the folder, which README.md
 * draws; source.h says which of them writes what.
 *
 * A bundle is probed by its state: settling.c before READY, late_files.c after. */
#include "agent/intake/intake.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/intake/admission.h"
#include "agent/intake/ended_links.h"
#include "agent/intake/hook_hints.h"
#include "agent/intake/late_files.h"
#include "agent/intake/link_sweep.h"
#include "agent/intake/lock_renewal.h"
#include "agent/intake/path_probes.h"
#include "agent/intake/settling.h"
#include "agent/intake/source_scan.h"
#include "agent/intake/source_watch.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

static void probe_bundle(Bundle *b) {
        if (b->unit.state == UNIT_UNCOMMITTED)
                return;
        if (bundle_is_underway(b) && b->unit.dirty)
                late_files_hold(b);
        else
                settling_probe(b);
}

/* The unit is probed even if the hint was refused: its note may be the only one to name it. */
static void probe_hinted_unit(IntakeSource *s, const char *path) {
        if (!path_is_below(path, s->spec->fixed))
                return;
        Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, path);
        if (!b)
                path_probes_add(s, source_spec_relative(s->spec, path));
        else if (b->source == s)
                source_probe_bundle(b);
}

void intake_source_on_hook_started(IntakeSource *s, const char *unit_path, const Owner *o) {
        hook_hints_start(s, unit_path, o);
        probe_hinted_unit(s, unit_path);
}

void intake_source_on_hook_finished(IntakeSource *s, const char *unit_path, const Owner *o) {
        hook_hints_finish(s, unit_path, o);
        probe_hinted_unit(s, unit_path);
}

void intake_source_probe_path(IntakeSource *s, const char *path) {
        if (path_is_below(path, s->spec->fixed))
                path_probes_add(s, source_spec_relative(s->spec, path));
}

void intake_source_on_final(IntakeSource *s, Bundle *b) {
        const char *relative = source_spec_relative(s->spec, b->rec.path);
        admission_release(b);
        hook_hints_forget_unit(s, b->rec.path);
        late_files_on_final(s, b);
        ended_links_on_final(s, b);
        link_sweep_repeat(s);
        /* A supplement's digest is not the unit's; and what vanished is accepted again if it comes
         * back. */
        if (!b->rec.supplement_of[0] && b->rec.state != BUNDLE_VANISHED)
                source_remember(s, relative, b->rec.digest);
        if (!b->rec.supplement_of[0] && b->rec.state == BUNDLE_DELIVERED)
                lock_renewal_mark_delivered(s, relative, b->rec.digest);
        if ((b->unit.dirty && b->rec.state == BUNDLE_DELIVERED) || b->unit.is_replaced ||
            bundle_is_from_links(&b->rec))
                path_probes_add(s, relative);
        if ((s->scan.is_wanted && admission_allows_scan(s)) || admission_is_resumable(s))
                source_scan_start(s);
}

/* ---- life ---- */

static int remember_stored(const char *path, uint64_t digest, void *userdata) {
        IntakeSource *s = userdata;
        if (path_is_below(path, s->spec->fixed))
                source_remember(s, source_spec_relative(s->spec, path), digest);
        return 0;
}

/* Some thousand rows at a time, so that nobody waits for them. Whatever asks meanwhile is answered
 * by the rows themselves. */
static int load_known(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)usec;
        int r = store_list_ended(s->context->store, s->config->name, &s->loaded_path,
                                 remember_stored, s);
        if (r < 0)
                log_warning(r, "source %s: cannot read what is known of its units",
                            s->config->name);
        if (r >= 0 && s->loaded_path && timer_rearm(source, 0) >= 0)
                return 0;
        s->load_timer = sd_event_source_disable_unref(s->load_timer);
        source_scan_start(s);
        return 0;
}

int intake_source_new(IntakeSource **ret, IntakeContext *context, const ConfigSource *config) {
        IntakeSource *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (IntakeSource){ .context = context, .config = config };
        s->calls.probe_bundle = probe_bundle;
        s->calls.start_scan = source_scan_start;
        s->calls.arm_scan = source_scan_arm;
        admission_init(context);
        settling_init(context);
        hook_hints_init(context);
        source_watch_init(context);
        ended_links_init(s);
        list_init(&s->tasks);
        int r = path_probes_init(s);
        if (r >= 0)
                r = source_spec_new(&s->spec, config, context->instance_id, context->proc_root);
        if (r >= 0 && context->trusted_uids)
                r = link_dirs_set_trusted(s->spec->link_dirs, context->trusted_uids);
        if (r >= 0 && context->link_list)
                r = link_dirs_set_list(s->spec->link_dirs, context->link_list);
        if (r >= 0)
                r = worker_pool_new(&s->probes, context->event, "nc-probe", 1, WORKER_NORMAL);
        if (r >= 0)
                r = source_scan_init(s);
        if (r >= 0)
                r = timer_arm(&s->load_timer, &(TimerOptions){ .event = context->event,
                                                               .slack_usec = USEC_PER_MSEC,
                                                               .handler = load_known,
                                                               .userdata = s });
        if (r < 0) {
                intake_source_free(s);
                return r;
        }
        link_sweep_start(s);
        *ret = s;
        return 0;
}

/* How long a stop waits for workers that are busy. */
#define STOP_USEC (2 * USEC_PER_SEC)

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
        worker_pool_abandon(s->paths.pool);
        worker_pool_abandon(s->scan.pool);
        uint64_t until = source_boot_usec(s) + STOP_USEC;
        while (lock_renewal_has_marks(s) && source_boot_usec(s) < until)
                (void)usleep(2 * USEC_PER_MSEC); /* as below */
        worker_pool_abandon(s->renewal.pool);
        while (is_any_running(s) && source_boot_usec(s) < until)
                (void)usleep(2 * USEC_PER_MSEC); /* a signal only ends the wait sooner */
        LIST_FOREACH_ITEM_SAFE (SourceTask, t, mine, &s->tasks) {
                list_remove(&t->mine);
                if (!worker_pool_is_running(&t->job))
                        t->drop(t);
        }
}

IntakeSource *intake_source_free(IntakeSource *s) {
        if (!s)
                return NULL;
        LIST_FOREACH_ITEM (Bundle, b, link, bundle_table_all(s->context->bundles)) {
                if (b->source == s) {
                        admission_release(b);
                        b->source = NULL;
                        source_set_unit_state(b, UNIT_WAITING);
                        b->unit.timer = sd_event_source_disable_unref(b->unit.timer);
                }
        }
        source_watch_done(s);
        stop_workers(s);
        sd_event_source_disable_unref(s->load_timer);
        source_scan_done(s);
        free(s->loaded_path);
        path_probes_done(s);
        ended_links_done(s);
        link_sweep_done(s);
        lock_renewal_done(s);
        hook_hints_done(s);
        unit_table_done(&s->table);
        source_spec_unref(s->spec);
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

SourceSpec *intake_source_spec(const IntakeSource *s) {
        return s->spec;
}
