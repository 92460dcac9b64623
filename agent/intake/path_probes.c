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
#include "agent/intake/scan_job.h"
#include "agent/intake/units.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"
#include "lib/neuron/scan.h"

int path_probes_init(IntakeSource *s) {
        path_queue_init(&s->paths.queue, PATH_QUEUE_MAX_OF_OWNER, s->context->clock);
        s->paths.rests = (Bound){ .max = UINT64_MAX,
                                  .max_each = UINT64_MAX,
                                  .fade_usec = 1,
                                  .clock = s->context->clock };
        s->paths.probing = (Bound){ .max = PATH_THREADS, .max_each = 1 };
        return worker_pool_new(&s->paths.pool, s->context->event, "nc-path", PATH_THREADS,
                               WORKER_NORMAL);
}

void path_probes_done(IntakeSource *s) {
        sd_event_source_disable_unref(s->paths.timer);
        path_queue_done(&s->paths.queue);
        bound_done(&s->paths.probing);
        bound_done(&s->paths.rests);
}

/* ---- the probe, in a thread ---- */

enum { PATH_PROBE_E_FOREIGN = 2 };

typedef struct PathProbe {
        IntakeProbe probe; /* result: 0; SCAN_E_NO_UNIT; PATH_PROBE_E_FOREIGN: another node has
                              locked the unit, or delivered it; -ENOENT; -errno */
        Charge charge;     /* of the path's owner, who has one probe at a time */
        char *known_unit;  /* the path, or a directory above it, that is a unit whatever its name;
                              owned; NULL */
        ScanUnit unit;     /* with result 0 */
} PathProbe;

static PathProbe *path_probe_of(IntakeProbe *p) {
        return CONTAINER_OF(p, PathProbe, probe);
}

static bool is_known_unit(const char *relative, void *userdata) {
        const PathProbe *p = userdata;
        return p->known_unit && strcmp(relative, p->known_unit) == 0;
}

static int run(IntakeProbe *probe) {
        PathProbe *p = path_probe_of(probe);
        ScanSource scan = probe->spec->scan;
        scan.any_links = true; /* links are explained when the bundle is known */
        scan.is_unit = is_known_unit;
        scan.is_unit_userdata = p;
        int r = scan_unit_at(&scan, probe->relative, &p->unit);
        if (r != 0 || !p->unit.on_network)
                return r;
        _cleanup_free_ char *note = NULL; /* the next scan reports it */
        _cleanup_(unit_locks_scan_freep) UnitLocksScan *locks = NULL;
        r = unit_locks_scan_new(&locks, probe->spec->locks, &note);
        if (r == 0)
                r = scan_job_request_lock(locks, probe->spec, &p->unit);
        return r == UNIT_LOCKS_E_OTHERS || r == UNIT_LOCKS_E_DONE ? PATH_PROBE_E_FOREIGN : r;
}

static void free_probe(IntakeProbe *probe) {
        PathProbe *p = path_probe_of(probe);
        probe_done(probe);
        bound_release(&p->charge);
        scan_unit_done(&p->unit);
        free(p->known_unit);
        free(p);
}

static PathProbe *new_probe(IntakeSource *s, const char *relative) {
        static const ProbeKind kind = { run, free_probe };
        PathProbe *p = calloc(1, sizeof *p);
        if (p && probe_init(&p->probe, &kind, s->spec, relative) < 0) {
                free(p);
                return NULL;
        }
        return p;
}

/* ---- who is probed next ---- */

static void probe_next(IntakeSource *s);

static void on_probed(IntakeSource *s, IntakeProbe *probe) {
        PathProbe *p = path_probe_of(probe);
        const Owner owner = *bound_owner(&p->charge);
        bound_release(&p->charge);
        if (probe->duration_usec > 0) /* without memory it does not rest */
                (void)bound_spend(&s->paths.rests, &owner, REPROBE_SHARE * probe->duration_usec);
        if (probe->result == 0)
                units_handle(s, &p->unit);
        else if (probe->result < 0 && probe->result != -ENOENT)
                log_warning(probe->result,
                            "source %s: cannot read '%s', trying again at the next scan",
                            s->config->name, probe->relative);
        probe_next(s);
}

static int on_probe_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        probe_next(userdata);
        return 0;
}

/* @return the oldest path whose owner does not rest; else the one whose owner rests for the
 * shortest time */
static QueuedPath *find_pending(IntakeSource *s, uint64_t *ret_rest_usec) {
        QueuedPath *found = NULL;
        *ret_rest_usec = UINT64_MAX;
        LIST_FOREACH_ITEM (QueuedPath, entry, link, &s->paths.queue.all) {
                const Owner *owner = bound_owner(&entry->charge);
                uint64_t rest = bound_amount(&s->paths.probing, owner) > 0
                                        ? UINT64_MAX
                                        : bound_amount(&s->paths.rests, owner);
                if (rest < *ret_rest_usec) {
                        found = entry;
                        *ret_rest_usec = rest;
                }
                if (rest == 0 || s->paths.queue.bound.n_accounts == 1)
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
                if (path && (unit_table_has_path(&s->table, unit) || hook_hints_may_name(s, path)))
                        return TAKE_PTR(unit);
        }
        return NULL;
}

/* @return whether the probe was started; if not, a scan finds the unit */
static bool probe_pending(IntakeSource *s, QueuedPath *next) {
        const Owner owner = *bound_owner(&next->charge);
        _cleanup_free_ char *relative = path_queue_remove(&s->paths.queue, next);
        PathProbe *p = new_probe(s, relative);
        if (!p)
                return false;
        p->known_unit = find_unit_above(s, relative);
        if (bound_charge(&s->paths.probing, &p->charge, &owner, 1) == BOUND_OK)
                return probe_submit(s, s->paths.pool, &p->probe, on_probed);
        free_probe(&p->probe);
        return false;
}

static void probe_next(IntakeSource *s) {
        QueuedPath *next;
        uint64_t rest;
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

/* @return the owner of the first directory or file on the way to the path: its status is read
 * without following anything that another user may have put there */
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
        const bool is_first = bound_amount(&s->paths.queue.bound, &owner) == 0;
        if (path_queue_add(&s->paths.queue, relative, &owner) < 0)
                s->calls.start_scan(s); /* it finds what was not queued */
        /* Otherwise the end of a probe or the timer continues, unless a thread could not be
         * started. */
        if (is_first || (s->paths.probing.total == 0 && bound_amount(&s->paths.rests, &owner) == 0))
                probe_next(s);
}
