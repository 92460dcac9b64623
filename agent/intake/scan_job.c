/* A scan of a source, in a thread: one walk that finds the units which are new or have changed,
 * takes the unit locks on a file system that nodes share, and notes what it could not read. It
 * decides nothing about bundles; source_scan.c does, on the loop. */
#include "agent/intake/scan_job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/retention/links.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

static uint64_t newest_usec(int64_t newest_change_nsec) {
        return newest_change_nsec > 0 ? (uint64_t)newest_change_nsec / 1000 : 0;
}

int scan_job_request_lock(UnitLocksScan *locks, const SourceSpec *t, const ScanUnit *u) {
        return unit_locks_request(locks,
                                  &(UnitPart){ .relative = u->relative,
                                               .instance_id = u->has_own_name ? t->instance_id : "",
                                               .digest = u->digest,
                                               .newest_usec = newest_usec(u->newest_change_nsec) });
}

/* Requests the locks of other nodes' parts of a unit, to take over those of dead nodes. A part that
 * was delivered is remembered in `seen` as `UNIT//INSTANCE`, which is never a path.
 * @return 1: this agent has acquired a part; 0: none; -ENOMEM */
static int request_foreign_parts(ScanJob *s, const ScanUnit *u) {
        int any_acquired = 0;
        for (size_t i = 0; i < u->n_foreign; i++) {
                const ScanForeign *f = &u->foreign[i];
                _cleanup_free_ char *name = NULL;
                if (asprintf(&name, "%s//%s", u->relative, f->instance_id) < 0)
                        return -ENOMEM;
                bool is_known = unit_table_has(&s->known, name, f->digest);
                int r = is_known ? UNIT_LOCKS_E_DONE
                                 : unit_locks_request(
                                           s->locks, &(UnitPart){ .relative = u->relative,
                                                                  .instance_id = f->instance_id,
                                                                  .digest = f->digest,
                                                                  .newest_usec = newest_usec(
                                                                          f->newest_change_nsec) });
                if (r == UNIT_LOCKS_E_DONE)
                        r = unit_table_put(&s->seen, name, f->digest);
                else
                        any_acquired |= r == 0;
                if (r < 0)
                        return r;
        }
        return any_acquired;
}

/* Acquires the lock of a unit on a file system that nodes share, and those of other nodes' parts.
 * @return 0: the unit is this node's, with all members; 1: not this node's; -ENOMEM */
static int lock_unit(ScanJob *s, ScanUnit *u, bool is_known) {
        int r = u->n_foreign > 0 ? request_foreign_parts(s, u) : 0;
        if (r > 0) { /* this node's unit has more members now: scan it again */
                _cleanup_free_ char *relative = TAKE_PTR(u->relative);
                scan_unit_done(u);
                r = scan_unit_at(&s->scan, relative, u);
                if (r < 0 && r != -ENOMEM)
                        return 1; /* it is gone */
                is_known = r == 0 && unit_table_has(&s->known, u->relative, u->digest);
        }
        if (r != 0 || u->n_files == 0)
                return r < 0 ? r : 1;
        r = is_known ? 0 : scan_job_request_lock(s->locks, s->spec, u);
        if (r == UNIT_LOCKS_E_DONE) { /* not requested again until the unit changes */
                r = unit_table_put(&s->seen, u->relative, u->digest);
                return r < 0 ? r : 1;
        }
        return r;
}

static int on_scanned_unit(ScanUnit *u, void *userdata) {
        ScanJob *s = userdata;
        bool is_known = unit_table_has(&s->known, u->relative, u->digest);
        if (u->on_network && !s->locks && !is_known)
                return 0; /* the share came back during this scan: the next one finds it */
        if (u->on_network && s->locks) {
                int r = lock_unit(s, u, is_known);
                if (r != 0)
                        return MIN(r, 0);
                is_known = unit_table_has(&s->known, u->relative, u->digest);
        }
        int r = unit_table_put(&s->seen, u->relative, is_known ? u->digest : ~u->digest);
        if (is_known || r < 0)
                return r;
        const Owner owner = { .uid = u->st.st_uid };
        if (bound_spend(&s->bound, &owner, 1) != BOUND_OK) {
                s->has_more = true; /* a later scan finds it again */
                return 0;
        }
        if (array_grow(&s->found, s->n_found, sizeof *s->found) < 0)
                return -ENOMEM;
        s->found[s->n_found++] = *u;
        *u = (ScanUnit){ 0 };
        return 0;
}

static void on_unreadable(const char *relative, void *userdata) {
        ScanJob *s = userdata;
        if (s->n_unreadable++ == 0)
                s->unreadable = path_escape(relative);
}

static bool is_known_unit(const char *relative, void *userdata) {
        const ScanJob *s = userdata;
        return unit_table_has_path(&s->known, relative);
}

static void on_left_out(const ScanMember *m, void *userdata) {
        ScanJob *s = userdata;
        (void)scan_unit_add_skip(&s->left_out, m); /* without memory it has no example */
}

static void scan_run(WorkJob *job) {
        ScanJob *s = CONTAINER_OF(job, ScanJob, task.job);
        uint64_t begin = clock_boottime_usec();
        ScanSource scan = s->spec->scan;
        scan.any_links = true;
        scan.on_unreadable = on_unreadable;
        scan.on_left_out = on_left_out;
        scan.is_unit = is_known_unit;
        scan.is_unit_userdata = s;
        _cleanup_close_ int fd = scan_open_fixed(s->spec->fixed);
        if (fd >= 0)
                s->on_network = fs_is_network(fd, &s->fs_name);
        if (s->on_network && unit_locks_scan_new(&s->locks, s->spec->locks, &s->lock_note) == 0)
                unit_locks_scan_apply(s->locks, &scan);
        s->scan = scan;
        history_check(&s->ended, s->spec, fd);
        (void)link_dirs_secure(s->spec->link_dirs,
                               &s->moved_aside); /* a failure is reported when links are made */
        s->root_note = scan_check_root(s->spec->fixed);
        s->result = s->on_network && !s->locks ? -ENOMEM : scan_source(&scan, on_scanned_unit, s);
        s->locks = unit_locks_scan_free(s->locks);
        s->duration_usec = clock_boottime_usec() - begin;
}

static void scan_drop(SourceTask *t) {
        scan_job_free(CONTAINER_OF(t, ScanJob, task));
}

int scan_job_new(ScanJob **ret, SourceSpec *spec, const UnitTable *known, uint64_t max,
                 uint64_t max_each) {
        _cleanup_(scan_job_freep) ScanJob *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        s->spec = source_spec_ref(spec);
        s->bound = (Bound){ .what = "found units", .max = max, .max_each = max_each };
        s->task.job.run = scan_run;
        s->task.drop = scan_drop;
        int r = unit_table_copy(&s->known, known);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

ScanJob *scan_job_free(ScanJob *s) {
        if (!s)
                return NULL;
        for (size_t i = 0; i < s->n_found; i++)
                scan_unit_done(&s->found[i]);
        free(s->found);
        free(s->unreadable);
        scan_unit_done(&s->left_out);
        history_done(&s->ended);
        free(s->moved_aside);
        free(s->lock_note);
        free(s->root_note);
        bound_done(&s->bound);
        unit_table_done(&s->seen);
        unit_table_done(&s->known);
        source_spec_unref(s->spec);
        free(s);
        return NULL;
}
