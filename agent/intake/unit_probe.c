/* A probe of a unit whose bundle is known, in a thread: of a SETTLING bundle, whose members it
 * holds, or of a delivered one, to see what was not shipped. A unit that is gone was removed or
 * renamed: if all its files are in other units of the source, it was renamed; else our links are
 * probed in its place. */
#include "agent/intake/unit_probe.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"

/* @return whether a process with that pid is alive; then *ret is it */
static bool find_process(const UnitProbe *p, int64_t pid, UnitProcess *ret) {
        Proc proc = { .dir_fd = -1 };
        if (pid <= 0 || pid > INT_MAX ||
            procfs_open(&proc, p->probe.spec->proc_root, (pid_t)pid, 0) != 0)
                return false;
        const bool is_alive = proc.stat.state != 'Z' && proc.stat.state != 'X';
        *ret = (UnitProcess){ (pid_t)pid, proc.uid, proc.stat.start_ticks };
        procfs_close(&proc);
        return is_alive;
}

/* The start time and the pid together identify one process. */
static void check_process(UnitProbe *p) {
        UnitProcess now;
        if (p->process.pid == 0)
                return;
        p->process_gone = !find_process(p, p->process.pid, &now) || now.uid != p->process.uid ||
                          now.start_ticks != p->process.start_ticks;
        p->walk.check_writers = p->walk.check_writers || p->process_gone;
}

/* The owner must be the dump's: in a container the pid in a name means another process here. */
static void learn_process(UnitProbe *p) {
        const ScanUnit *u = &p->walk.unit;
        UnitProcess now;
        if (p->process.pid == 0 && find_process(p, u->pid, &now) && now.uid == u->first.st_uid)
                p->process = now;
}

/* ---- a unit that is gone: removed, or renamed? ---- */

static int see_member(const ScanMember *m, int unit_fd, void *userdata) {
        UnitProbe *p = userdata;
        (void)unit_fd; /* not read */
        if (m->skip == SCAN_SKIP_NONE)
                (void)link_session_see(p->walk.session, &m->st);
        return 0;
}

static int on_other_unit(ScanUnit *u, void *userdata) {
        UnitProbe *p = userdata;
        if (strcmp(u->relative, p->probe.relative) == 0 ||
            !link_session_see(p->walk.session, &u->first))
                return 0;
        ScanSource scan = p->probe.spec->scan;
        scan.any_links = true;
        int r = scan_members(&(ScanWalk){ .source = &scan,
                                          .relative = u->relative,
                                          .loose = u->loose,
                                          .on_member = see_member,
                                          .userdata = p });
        return r == -ENOMEM ? r : 0; /* that one was removed too */
}

/* Names elsewhere are not enough: what was moved out of the source is shipped by this bundle only.
 * The source is walked only when all files have other names. */
static bool was_moved(UnitProbe *p) {
        if (!link_session_lives_on(p->walk.session))
                return false;
        ScanSource scan = p->probe.spec->scan;
        scan.any_links = true;
        return scan_source(&scan, on_other_unit, p) >= 0 && link_session_all_seen(p->walk.session);
}

static int walk_and_hold(UnitWalk *w) {
        int r = unit_walk_members(w);
        /* A link was refused after others had been made: then descriptors hold all members. */
        return r == 0 && w->hold == UNIT_WALK_DESCRIPTORS && w->n_linked > 0 ? unit_walk_members(w)
                                                                             : r;
}

/* When an NFS export is withdrawn, a client lists the unit from its cache, but the members cannot
 * be read. They are left out only if they cannot be read either once the server has answered. */
static int check_unreadable(UnitProbe *p) {
        UnitWalk *w = &p->walk;
        int r = 0;
        for (unsigned i = 0; r == 0 && i < 2 && w->unit.skipped[SCAN_SKIP_UNREADABLE] > 0; i++) {
                if (unit_locks_is_away(w->spec->locks))
                        return UNIT_PROBE_E_AWAY;
                if (i == 0)
                        r = walk_and_hold(w);
        }
        return r;
}

/* Walks our links, since the unit is gone. A process that has a member open may still write. */
static int walk_links(UnitProbe *p) {
        UnitWalk *w = &p->walk;
        w->hold = UNIT_WALK_COUNTS;
        p->place = p->links_only && link_session_lives_on(w->session) ? UNIT_IN_LINKS_AND_ELSEWHERE
                                                                      : UNIT_IN_LINKS;
        return unit_walk_links(w, p->bundle_id);
}

static int walk_unit(UnitProbe *p) {
        UnitWalk *w = &p->walk;
        const bool holds = w->hold != UNIT_WALK_COUNTS;
        w->unit = (ScanUnit){ .pid = -1 };
        check_process(p);
        int r = p->links_only ? -ENOENT : walk_and_hold(w);
        if (r == 0 && p->waits_for_share)
                r = check_unreadable(p);
        if (r == 0 && w->unit.n_files == 0 && w->n_shipped_there == 0)
                r = -ENOENT;
        if (w->hold == UNIT_WALK_LINKS || w->unit.n_files == 0)
                held_files_done(&w->held);
        if (r == 0)
                learn_process(p);
        if (r != -ENOENT || !holds)
                return r;
        if (!was_moved(p))
                return walk_links(p);
        p->place = UNIT_RENAMED;
        return r;
}

static int run(IntakeProbe *probe) {
        UnitProbe *p = unit_probe_of(probe);
        const SourceSpec *spec = probe->spec;
        _cleanup_free_ char *path =
                probe->relative[0] ? path_join(spec->fixed, probe->relative) : strdup(spec->fixed);
        int r = link_session_new(&p->walk.session, spec->link_dirs, p->bundle_id,
                                 (size_t)spec->scan.max_files);
        if (r < 0)
                return r;
        if (path)
                link_session_set_unit(p->walk.session, path, p->uid);
        r = walk_unit(p);
        p->walk.session = link_session_free(p->walk.session);
        return r;
}

static void free_probe(IntakeProbe *p) {
        unit_probe_free(unit_probe_of(p));
}

int unit_probe_new(UnitProbe **ret, SourceSpec *spec, const char *relative, const char *bundle_id) {
        static const ProbeKind kind = { run, free_probe };
        UnitProbe *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        int r = probe_init(&p->probe, &kind, spec, relative);
        if (r < 0) {
                free(p);
                return r;
        }
        p->walk.spec = p->probe.spec;
        p->walk.relative = p->probe.relative;
        strcpy(p->bundle_id, bundle_id);
        *ret = p;
        return 0;
}

UnitProbe *unit_probe_free(UnitProbe *p) {
        if (!p)
                return NULL;
        unit_walk_done(&p->walk);
        probe_done(&p->probe);
        free(p);
        return NULL;
}
