/* Probes of a unit, in a thread: its members are walked, counted, checked and held. They decide
 * nothing. */
#include "agent/intake/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "agent/intake/scan_job.h"
#include "agent/retention/links.h"
#include "collectors/host/procfs.h"
#include "lib/base/array.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/bundle/validate.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/tree.h"

/* ---- one member ---- */

static unsigned own_links(const char *member_path, const struct stat *st, void *userdata) {
        ProbeJob *p = userdata;
        unsigned n = link_session_own_links(p->session, member_path, st, &p->has_link);
        return p->has_link ? UINT_MAX : n; /* what is held stays a member */
}

/* Where links are refused the open descriptor holds the file, for the first few members. */
static int hold_descriptor(ProbeJob *p, const ScanMember *m, int unit_fd) {
        if (p->held.n >= PROBE_HELD_FILES_MAX)
                return -EMFILE;
        struct stat st;
        _cleanup_close_ int fd = fs_open_regular(unit_fd, m->path, &st);
        if (fd < 0)
                return fd;
        if (array_grow(&p->held.items, p->held.n, sizeof *p->held.items) < 0)
                return -ENOMEM;
        char *path = strdup(m->path);
        if (!path)
                return -ENOMEM;
        p->held.items[p->held.n++] = (HeldFile){ .path = path, .fd = TAKE_FD(fd) };
        return 0;
}

static int hold_member(ProbeJob *p, const ScanMember *m, int unit_fd) {
        if (p->links_held) {
                int r = link_session_add(p->session,
                                         &(LinkMember){ m->path, unit_fd, m->path, &m->st },
                                         &p->hold_error);
                if (r == 0)
                        p->n_linked++;
                if (r == 0 || r == -ENOENT) /* removed again: the next probe sees it */
                        return 0;
                if (r < 0 && !p->hold_error)
                        (void)asprintf(&p->hold_error, "cannot link '%s': %s", m->path,
                                       strerror(-r)); /* NULL will do */
                p->links_held = false;
        }
        int r = hold_descriptor(p, m, unit_fd);
        if (r < 0)
                p->held.all = false;
        return r == -ENOMEM ? r : 0;
}

/* @return 0; -EMFILE …: whether a process writes it is not known, and the unit waits */
static int check_member(ProbeJob *p, const ScanMember *m, int unit_fd) {
        struct stat st;
        _cleanup_close_ int fd = fs_open_regular(unit_fd, m->path, &st);
        if (fd < 0) /* if not that, gone or unreadable: the plan reports it */
                return tree_error_is_resource(fd) ? fd : 0;
        switch (fs_check_writer(fd)) {
        case 0:
                break;
        case FS_E_WRITER:
                p->writers = INTAKE_WRITERS_SOME;
                break;
        default:
                if (p->writers == INTAKE_WRITERS_NONE)
                        p->writers = INTAKE_WRITERS_UNKNOWN;
        }
        if (!p->contradicted)
                p->contradicted =
                        validate_quick(fd, m->name.kind, (uint64_t)st.st_size) != VERDICT_OK;
        return 0;
}

/* Removed and created again under its name: it starts a bundle of its own when this one has ended,
 * and no file of it belongs to this one. The new one often gets the old one's inode number. */
static bool is_another_unit(const ProbeJob *p, int unit_fd) {
        struct stat st;
        if (p->unit_ino == 0 || p->from_links || fstat(unit_fd, &st) < 0)
                return false;
        return st.st_ino != p->unit_ino ||
               (p->unit_born_usec > 0 && fs_birth_usec(unit_fd) != p->unit_born_usec);
}

/* Also one that is no member: it is there. */
static void mark_promised(ProbeJob *p, const ScanMember *m) {
        for (size_t i = 0; i < p->n_promised; i++)
                if (strcmp(p->promised[i].name, path_name(m->path)) == 0)
                        p->promised[i].is_seen = true;
}

static int on_member(const ScanMember *m, int unit_fd, void *userdata) {
        ProbeJob *p = userdata;
        if (is_another_unit(p, unit_fd)) {
                p->met_another = true;
                return -ENOENT;
        }
        bool has_link = p->has_link; /* own_links() sets it right before, if it is called */
        p->has_link = false;
        mark_promised(p, m);
        /* The base has it, whatever has become of it since. */
        uint64_t print = member_fingerprint(m->path, &m->st);
        if (S_ISREG(m->st.st_mode) &&
            member_fingerprints_contain(p->shipped, p->n_shipped, print)) {
                p->n_shipped_there++;
                return 0;
        }
        if (m->skip != SCAN_SKIP_NONE) {
                (void)scan_unit_add_skip(&p->unit, m); /* without memory it has no example */
                return 0;
        }
        scan_unit_add_member(&p->unit, m, print);
        file_owners_add(&p->owners, m->st.st_uid);
        named_pids_add(&p->pids, m->name.pid);
        int r = p->check_writers ? check_member(p, m, unit_fd) : 0;
        if (r < 0)
                return r;
        if (has_link && p->links_held)
                p->n_linked++;
        else if (p->hold)
                return hold_member(p, m, unit_fd);
        return 0;
}

/* The start time and the pid together identify one process. The owner must be the dump's: in a
 * container the pid in a name means another process here. */
static void check_process(ProbeJob *p) {
        Proc proc = { .dir_fd = -1 };
        if (p->unit.pid <= 0 || p->unit.pid > INT_MAX ||
            procfs_open(&proc, p->spec->proc_root, (pid_t)p->unit.pid, 0) != 0)
                return;
        p->process_seen = proc.uid == p->unit.first.st_uid && proc.stat.state != 'Z' &&
                          proc.stat.state != 'X';
        p->process_start = proc.stat.start_ticks;
        procfs_close(&proc);
}

static bool is_unit_of_path(const char *relative, void *userdata) {
        const ProbeJob *p = userdata;
        return p->known_unit && strcmp(relative, p->known_unit) == 0;
}

static int probe_path(ProbeJob *p) {
        ScanSource scan = p->spec->scan;
        scan.any_links = true; /* links are explained when the bundle is known */
        scan.is_unit = is_unit_of_path;
        scan.is_unit_userdata = p;
        int r = scan_unit_at(&scan, p->relative, &p->unit);
        if (r != 0 || !p->unit.on_network)
                return r;
        _cleanup_free_ char *note = NULL; /* the next scan reports it */
        _cleanup_(unit_locks_scan_freep) UnitLocksScan *locks = NULL;
        r = unit_locks_scan_new(&locks, p->spec->locks, &note);
        if (r == 0)
                r = scan_job_request_lock(locks, p->spec, &p->unit);
        return r == UNIT_LOCKS_E_OTHERS || r == UNIT_LOCKS_E_DONE ? PROBE_E_FOREIGN : r;
}

static int walk(ProbeJob *p) {
        scan_unit_done(&p->unit);
        p->unit = (ScanUnit){ .pid = -1 };
        p->owners = (FileOwners){ 0 };
        named_pids_done(&p->pids);
        p->n_shipped_there = 0;
        p->n_linked = 0;
        held_files_done(&p->held);
        p->held.all = true;
        return scan_members(&(ScanWalk){ .source = &p->spec->scan,
                                         .relative = p->relative,
                                         .loose = source_spec_is_loose(p->spec, p->relative),
                                         .own_links = own_links,
                                         .on_member = on_member,
                                         .userdata = p });
}

/* ---- a unit that is gone: removed, or renamed? ---- */

static int see_member(const ScanMember *m, int unit_fd, void *userdata) {
        ProbeJob *p = userdata;
        (void)unit_fd; /* not read */
        if (m->skip == SCAN_SKIP_NONE)
                (void)link_session_see(p->session, &m->st);
        return 0;
}

static int on_other_unit(ScanUnit *u, void *userdata) {
        ProbeJob *p = userdata;
        if (strcmp(u->relative, p->relative) == 0 || !link_session_see(p->session, &u->first))
                return 0;
        ScanSource scan = p->spec->scan;
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
static bool was_moved(ProbeJob *p) {
        if (!link_session_lives_on(p->session))
                return false;
        ScanSource scan = p->spec->scan;
        scan.any_links = true;
        return scan_source(&scan, on_other_unit, p) >= 0 && link_session_all_seen(p->session);
}

static int walk_links(ProbeJob *p) {
        _cleanup_close_ int fd = links_open(p->spec->link_dirs, p->bundle_id);
        if (fd < 0)
                return -ENOENT;
        char root[64];
        snprintf(root, sizeof root, "/proc/self/fd/%d/.", fd);
        ScanSource scan = p->spec->scan;
        scan.root_override = root;
        scan.any_links = scan.any_owner = true;
        scan.exclude = NULL;
        int r = scan_members(&(ScanWalk){
                .source = &scan,
                .relative = scan.kind == SOURCE_PROCESS_CORE ? path_name(p->relative) : "",
                .on_member = on_member,
                .userdata = p });
        return r == 0 && p->unit.n_files == 0 ? -ENOENT : r;
}

/* A core file that has changed is a bundle of its own. */
static bool is_core_at_source(const ProbeJob *p) {
        struct stat st;
        if (p->spec->scan.kind != SOURCE_PROCESS_CORE)
                return false;
        _cleanup_free_ char *path = path_join(p->spec->fixed, p->relative);
        return path && fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Links of an ended bundle are released when all they hold was shipped everywhere, or when the
 * supplement holds the rest. */
static int recheck_bundle_links(ProbeJob *p) {
        p->unit = (ScanUnit){ .pid = -1 };
        int r = link_session_new(&p->session, p->spec->link_dirs, p->supplement_id,
                                 (size_t)p->spec->scan.max_files);
        if (r < 0)
                return r;
        p->hold = p->links_held = true;
        if (!is_core_at_source(p))
                r = walk_links(p);
        p->session = link_session_free(p->session);
        held_files_done(&p->held); /* where links are refused the old ones are still there */
        if (r < 0 && r != -ENOENT)
                return r;
        if (!p->links_held)
                return PROBE_E_NOT_HELD;
        bool is_supplements = p->unit.n_files > 0 && strcmp(p->bundle_id, p->supplement_id) == 0;
        return p->releases_links && !is_supplements
                       ? links_release(p->spec->link_dirs, p->bundle_id)
                       : 0;
}

static unsigned own_late_links(const char *member_path, const struct stat *st, void *userdata) {
        ProbeJob *p = userdata;
        bool base_has;
        unsigned n = link_session_own_links(p->session, member_path, st, &p->has_link);
        (void)link_session_own_links(p->base_session, member_path, st, &base_has);
        p->base_has_link = base_has;
        return p->has_link || base_has ? UINT_MAX : n;
}

static int on_late_member(const ScanMember *m, int unit_fd, void *userdata) {
        ProbeJob *p = userdata;
        bool has_link = p->has_link, base_has_link = p->base_has_link;
        p->has_link = p->base_has_link = false; /* own_late_links() may not be called */
        if (is_another_unit(p, unit_fd)) {
                p->met_another = true;
                return -ENOENT;
        }
        if (m->skip != SCAN_SKIP_NONE || base_has_link || has_link ||
            member_fingerprints_contain(p->shipped, p->n_shipped,
                                        member_fingerprint(m->path, &m->st)))
                return 0;
        p->n_unheld++;
        if (!p->base_is_held || p->hold_error)
                return 0;
        int r = link_session_add(p->session, &(LinkMember){ m->path, unit_fd, m->path, &m->st },
                                 &p->hold_error);
        p->n_linked += r == 0;
        p->n_unheld -= r == 0 || r == -ENOENT; /* it was removed again: not counted as unheld */
        return r == -ENOMEM ? r : 0;
}

/* Links the late files of a unit. Where no links hold the bundle's own members, only their number
 * tells how many files are late. */
static int hold_late(ProbeJob *p) {
        int r = link_session_new(&p->session, p->spec->link_dirs, p->supplement_id,
                                 (size_t)p->spec->scan.max_files);
        if (r >= 0)
                r = link_session_new(&p->base_session, p->spec->link_dirs, p->bundle_id,
                                     (size_t)p->spec->scan.max_files);
        if (r >= 0)
                r = scan_members(&(ScanWalk){ .source = &p->spec->scan,
                                              .relative = p->relative,
                                              .loose = source_spec_is_loose(p->spec, p->relative),
                                              .own_links = own_late_links,
                                              .on_member = on_late_member,
                                              .userdata = p });
        p->session = link_session_free(p->session);
        p->base_session = link_session_free(p->base_session);
        if (!p->base_is_held)
                p->n_unheld -= MIN(p->n_unheld, p->base_files);
        return r;
}

static int probe_unit(ProbeJob *p) {
        _cleanup_free_ char *path =
                p->relative[0] ? path_join(p->spec->fixed, p->relative) : strdup(p->spec->fixed);
        int r = link_session_new(&p->session, p->spec->link_dirs, p->bundle_id,
                                 (size_t)p->spec->scan.max_files);
        if (r < 0)
                return r;
        if (path)
                link_session_set_unit(p->session, path, p->owner.uid);
        p->links_held = p->hold;
        p->unit = (ScanUnit){ .pid = -1 };
        r = p->links_only ? -ENOENT : walk(p);
        /* A link was refused after others had been made: then descriptors hold all members. */
        if (r == 0 && p->hold && !p->links_held && p->n_linked > 0)
                r = walk(p);
        if (r == 0 && p->unit.n_files == 0 && p->n_shipped_there == 0)
                r = -ENOENT;
        if (p->links_held || p->unit.n_files == 0)
                held_files_done(&p->held);
        if (r == 0)
                check_process(p);
        if (r == -ENOENT && p->hold)
                p->moved = was_moved(p);
        /* It is gone, but our links hold it, and a process that has a member open may still write.
         */
        if (r == -ENOENT && p->hold && !p->moved) {
                p->hold = false;
                p->from_links = true;
                r = walk_links(p);
        }
        p->session = link_session_free(p->session);
        return r;
}

static void probe_run(WorkJob *job) {
        ProbeJob *p = CONTAINER_OF(job, ProbeJob, task.job);
        uint64_t begin = clock_boottime_usec();
        bool first = !p->bundle_id[0] && p->n_shipped == 0;
        p->result = p->is_late            ? hold_late(p)
                    : p->supplement_id[0] ? recheck_bundle_links(p)
                    : first               ? probe_path(p)
                                          : probe_unit(p);
        p->duration_usec = clock_boottime_usec() - begin;
}

static void probe_drop(SourceTask *t) {
        probe_job_free(CONTAINER_OF(t, ProbeJob, task));
}

int probe_job_new(ProbeJob **ret, SourceSpec *spec, const char *relative) {
        ProbeJob *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        p->relative = strdup(relative);
        if (!p->relative) {
                free(p);
                return -ENOMEM;
        }
        p->spec = source_spec_ref(spec);
        p->task.job.run = probe_run;
        p->task.drop = probe_drop;
        *ret = p;
        return 0;
}

ProbeJob *probe_job_free(ProbeJob *p) {
        if (!p)
                return NULL;
        source_spec_unref(p->spec);
        free(p->relative);
        free(p->known_unit);
        free(p->shipped);
        for (size_t i = 0; i < p->n_promised; i++)
                free(p->promised[i].name);
        free(p->promised);
        scan_unit_done(&p->unit);
        free(p->hold_error);
        held_files_done(&p->held);
        named_pids_done(&p->pids);
        free(p);
        return NULL;
}
