/* Probes of paths that an event or a hook has named: whether a unit is there, before the next scan
 * would find it. Two threads probe them, one path of an owner at a time, and an owner whose probe
 * took long rests four times as long: nobody waits for what another user has put there. What cannot
 * be queued is left to a scan. */
#include "agent/intake/path_probes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/intake/hook_hints.h"
#include "agent/intake/probe.h"
#include "agent/intake/units.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"
#include "lib/neuron/scan.h"

int path_probes_init(IntakeSource *s) {
        path_queue_init(&s->paths.queue);
        s->paths.rests = (Owners){ .what = "pauses", .max = UINT64_MAX };
        s->paths.probing = (Owners){ .what = "paths", .max = PATH_THREADS, .max_each = 1 };
        return worker_pool_new(&s->paths.pool, s->context->event, "nc-path", PATH_THREADS,
                               WORKER_NORMAL);
}

void path_probes_done(IntakeSource *s) {
        sd_event_source_disable_unref(s->paths.timer);
        path_queue_done(&s->paths.queue);
        owners_done(&s->paths.probing);
        owners_done(&s->paths.rests);
}

static void probe_next(IntakeSource *s);

/* What an owner rests is over as fast as time passes. */
static void pass_rests(IntakeSource *s) {
        const uint64_t now = source_boot_usec(s);
        owners_release_each(&s->paths.rests, now - s->paths.rested_usec);
        s->paths.rested_usec = now;
}

static void on_path_probed(IntakeSource *s, ProbeJob *p) {
        owners_release(&s->paths.probing, &p->owner, 1);
        pass_rests(s);
        if (p->duration_usec > 0)
                (void)owners_request(&s->paths.rests, &p->owner, REPROBE_SHARE * p->duration_usec,
                                     NULL); /* without memory it does not rest */
        if (p->result == 0) {
                units_handle(s, &p->unit);
        } else if (p->result < 0 && p->result != -ENOENT)
                log_warning(p->result, "source %s: cannot read '%s', trying again at the next scan",
                            s->config->name, p->relative);
        probe_next(s);
}

static int on_probe_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        probe_next(userdata);
        return 0;
}

/* The oldest path of the owner who rests no more, or else for the shortest time. */
static QueuedPath *find_pending(const IntakeSource *s, uint64_t *ret_rest_usec) {
        QueuedPath *found = NULL;
        *ret_rest_usec = UINT64_MAX;
        LIST_FOREACH_ITEM (QueuedPath, entry, link, (ListLink *)&s->paths.queue.all) {
                uint64_t rest = owners_amount(&s->paths.probing, &entry->owner) > 0
                                        ? UINT64_MAX
                                        : owners_amount(&s->paths.rests, &entry->owner);
                if (rest < *ret_rest_usec) {
                        found = entry;
                        *ret_rest_usec = rest;
                }
                if (rest == 0 || s->paths.queue.owners.n_shares == 1)
                        break;
        }
        return found;
}

/* @return the outermost directory above a path, or the path itself, that was a unit or that a hook
 * has named; the caller's; NULL: none */
static char *find_unit_above(const IntakeSource *s, const char *relative) {
        size_t depth = unit_path_depth(relative);
        if (s->spec->scan.kind != SOURCE_NEURON_CORE_DUMP)
                return NULL;
        for (size_t i = path_template_depth(s->spec->template); i <= depth; i++) {
                _cleanup_free_ char *unit = strndup(relative, unit_path_prefix(relative, i));
                _cleanup_free_ char *path = unit ? source_unit_path(s, unit) : NULL;
                if (path && (unit_table_has_path(&s->table, unit) || hook_hints_know_path(s, path)))
                        return TAKE_PTR(unit);
        }
        return NULL;
}

/* @return whether it was started; where not, a scan finds it */
static bool probe_pending(IntakeSource *s, QueuedPath *next) {
        const Owner owner = next->owner;
        _cleanup_free_ char *relative = path_queue_remove(&s->paths.queue, next);
        ProbeJob *p;
        if (owners_request(&s->paths.probing, &owner, 1, NULL) != OWNERS_GRANTED)
                return false;
        if (probe_job_new(&p, s->spec, relative) == 0) {
                p->owner = owner;
                p->known_unit = find_unit_above(s, relative);
                if (source_submit_probe(s, s->paths.pool, p, on_path_probed))
                        return true;
        }
        owners_release(&s->paths.probing, &owner, 1);
        return false;
}

static void probe_next(IntakeSource *s) {
        QueuedPath *next;
        uint64_t rest;
        pass_rests(s);
        do {
                next = s->paths.probing.total < PATH_THREADS ? find_pending(s, &rest) : NULL;
                if (next && rest > 0 &&
                    timer_arm(&s->paths.timer, &(TimerOptions){ .event = s->context->event,
                                                                .usec = rest,
                                                                .slack_usec = rest / 20,
                                                                .handler = on_probe_timer,
                                                                .userdata = s }) >= 0)
                        return;
        } while (next && probe_pending(s, next));
}

/* The first directory or file on the way to it decides: its status is read without following
 * anything that another user may have put there. */
static Owner owner_of_path(const IntakeSource *s, const char *relative) {
        _cleanup_free_ char *first = strndup(relative, strcspn(relative, "/"));
        _cleanup_free_ char *path = first ? source_unit_path(s, first) : NULL;
        struct stat st;
        return owner_of_uid(path && lstat(path, &st) == 0 ? st.st_uid : (uid_t)-1);
}

void path_probes_add(IntakeSource *s, const char *relative) {
        if (s->hold == INTAKE_HELD)
                return; /* the scan after the hold finds it */
        const Owner owner = owner_of_path(s, relative);
        const bool is_first = owners_amount(&s->paths.queue.owners, &owner) == 0;
        if (path_queue_add(&s->paths.queue, relative, &owner) < 0) { /* a scan finds all of them */
                s->scan.is_wanted = true;
                s->calls.start_scan(s);
        }
        /* Else the end of a probe, or the timer, is waited for; but for a thread that could not be
         * started. */
        if (is_first ||
            (s->paths.probing.total == 0 && owners_amount(&s->paths.rests, &owner) == 0))
                probe_next(s);
}
