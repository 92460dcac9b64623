#include "agent/intake/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "lib/base/array.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/bundle/validate.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/tree.h"

/* ---- what was last seen at each unit's path ---- */

static uint64_t key_of(const char *relative) {
        /* SHA-256, since names are untrusted: nobody can make two paths collide. */
        uint8_t hash[SHA256_SIZE];
        uint64_t key;
        sha256_of(relative, strlen(relative), hash);
        memcpy(&key, hash, sizeof key);
        return key ? key : 1;
}

static size_t slot_of(const UnitTable *t, uint64_t key) {
        size_t i = (size_t)key & (t->n_slots - 1);
        while (t->keys[i] && t->keys[i] != key)
                i = (i + 1) & (t->n_slots - 1);
        return i;
}

static int grow(UnitTable *t) {
        UnitTable bigger = { .n_slots = t->n_slots ? 2 * t->n_slots : 64 };
        bigger.keys = calloc(bigger.n_slots, sizeof *bigger.keys);
        bigger.digests = calloc(bigger.n_slots, sizeof *bigger.digests);
        if (!bigger.keys || !bigger.digests) {
                unit_table_done(&bigger);
                return -ENOMEM;
        }
        for (size_t i = 0; i < t->n_slots; i++)
                if (t->keys[i]) {
                        size_t to = slot_of(&bigger, t->keys[i]);
                        bigger.keys[to] = t->keys[i];
                        bigger.digests[to] = t->digests[i];
                        bigger.n++;
                }
        unit_table_done(t);
        *t = bigger;
        return 0;
}

int unit_table_put(UnitTable *t, const char *relative, uint64_t digest) {
        uint64_t key = key_of(relative);
        if (2 * (t->n + 1) > t->n_slots) {
                int r = grow(t);
                if (r < 0)
                        return r;
        }
        size_t i = slot_of(t, key);
        t->n += t->keys[i] == 0;
        t->keys[i] = key;
        t->digests[i] = digest;
        return 0;
}

bool unit_table_has(const UnitTable *t, const char *relative, uint64_t digest) {
        if (t->n_slots == 0)
                return false;
        uint64_t key = key_of(relative);
        size_t i = slot_of(t, key);
        return t->keys[i] == key && t->digests[i] == digest;
}

bool unit_table_has_path(const UnitTable *t, const char *relative) {
        return t->n_slots > 0 && t->keys[slot_of(t, key_of(relative))] != 0;
}

static int unit_table_copy(UnitTable *ret, const UnitTable *from) {
        UnitTable t = *from;
        size_t size = t.n_slots * sizeof *t.keys;
        if (size > 0) {
                t.keys = malloc(size);
                t.digests = malloc(size);
                if (!t.keys || !t.digests) {
                        unit_table_done(&t);
                        return -ENOMEM;
                }
                memcpy(t.keys, from->keys, size);
                memcpy(t.digests, from->digests, size);
        }
        *ret = t;
        return 0;
}

void unit_table_done(UnitTable *t) {
        free(t->keys);
        free(t->digests);
        *t = (UnitTable){ 0 };
}

/* ---- one member ---- */

static unsigned own_links(const char *member_path, const struct stat *st, void *userdata) {
        ProbeJob *p = userdata;
        unsigned n = pins_session_own_links(p->session, member_path, st, &p->has_link);
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
                int r = pins_session_add(p->session,
                                         &(PinsMember){ m->path, unit_fd, m->path, &m->st },
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
        file_owners_add(&p->owners, p->spec->name, m->st.st_uid, geteuid());
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

static uint64_t newest_usec(int64_t newest_change_nsec) {
        return newest_change_nsec > 0 ? (uint64_t)newest_change_nsec / 1000 : 0;
}

/* Requests the lock of a unit on a file system that nodes share. @return as unit_locks_request() */
static int request_unit(UnitLocksScan *locks, const SourceSpec *t, const ScanUnit *u) {
        return unit_locks_request(locks,
                                  &(UnitPart){ .relative = u->relative,
                                               .instance_id = u->has_own_name ? t->instance_id : "",
                                               .digest = u->digest,
                                               .newest_usec = newest_usec(u->newest_change_nsec) });
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
                r = request_unit(locks, p->spec, &p->unit);
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
                (void)pins_session_see(p->session, &m->st);
        return 0;
}

static int on_other_unit(ScanUnit *u, void *userdata) {
        ProbeJob *p = userdata;
        if (strcmp(u->relative, p->relative) == 0 || !pins_session_see(p->session, &u->first))
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
        if (!pins_session_lives_on(p->session))
                return false;
        ScanSource scan = p->spec->scan;
        scan.any_links = true;
        return scan_source(&scan, on_other_unit, p) >= 0 && pins_session_all_seen(p->session);
}

static int walk_links(ProbeJob *p) {
        _cleanup_close_ int fd = pins_open(p->spec->pins, p->bundle_id);
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
        int r = pins_session_new(&p->session, p->spec->pins, p->supplement_id,
                                 (size_t)p->spec->scan.max_files);
        if (r < 0)
                return r;
        p->hold = p->links_held = true;
        if (!is_core_at_source(p))
                r = walk_links(p);
        p->session = pins_session_free(p->session);
        held_files_done(&p->held); /* where links are refused the old ones are still there */
        if (r < 0 && r != -ENOENT)
                return r;
        if (!p->links_held)
                return PROBE_E_NOT_HELD;
        bool is_supplements = p->unit.n_files > 0 && strcmp(p->bundle_id, p->supplement_id) == 0;
        return p->releases_links && !is_supplements ? pins_release(p->spec->pins, p->bundle_id) : 0;
}

static unsigned own_late_links(const char *member_path, const struct stat *st, void *userdata) {
        ProbeJob *p = userdata;
        bool base_has;
        unsigned n = pins_session_own_links(p->session, member_path, st, &p->has_link);
        (void)pins_session_own_links(p->base_session, member_path, st, &base_has);
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
        if (m->skip == SCAN_SKIP_UNREADABLE)
                (void)scan_unit_add_skip(&p->unit, m); /* without memory it has no example */
        if (m->skip != SCAN_SKIP_NONE || base_has_link || has_link ||
            member_fingerprints_contain(p->shipped, p->n_shipped,
                                        member_fingerprint(m->path, &m->st)))
                return 0;
        p->n_unheld++;
        if (!p->base_is_held || p->hold_error)
                return 0;
        int r = pins_session_add(p->session, &(PinsMember){ m->path, unit_fd, m->path, &m->st },
                                 &p->hold_error);
        p->n_linked += r == 0;
        p->n_unheld -= r == 0 || r == -ENOENT; /* it was removed again: not counted as unheld */
        return r == -ENOMEM ? r : 0;
}

/* Links the late files of a unit. Where no links hold the bundle's own members, only their number
 * tells how many files are late. */
static int hold_late(ProbeJob *p) {
        int r = pins_session_new(&p->session, p->spec->pins, p->supplement_id,
                                 (size_t)p->spec->scan.max_files);
        if (r >= 0)
                r = pins_session_new(&p->base_session, p->spec->pins, p->bundle_id,
                                     (size_t)p->spec->scan.max_files);
        if (r >= 0)
                r = scan_members(&(ScanWalk){ .source = &p->spec->scan,
                                              .relative = p->relative,
                                              .loose = source_spec_is_loose(p->spec, p->relative),
                                              .own_links = own_late_links,
                                              .on_member = on_late_member,
                                              .userdata = p });
        p->session = pins_session_free(p->session);
        p->base_session = pins_session_free(p->base_session);
        if (!p->base_is_held)
                p->n_unheld -= MIN(p->n_unheld, p->base_files);
        if (r == 0 && p->unit.skipped[SCAN_SKIP_UNREADABLE] > 0 &&
            unit_locks_is_away(p->spec->locks))
                r = -ESTALE;
        if (r < 0 && r != -ENOENT) /* it was not seen whether they are gone */
                p->n_unheld = p->n_was_unheld;
        return r;
}

static int walk_and_hold(ProbeJob *p) {
        int r = walk(p);
        /* A link was refused after others had been made: then descriptors hold all members. */
        return r == 0 && p->hold && !p->links_held && p->n_linked > 0 ? walk(p) : r;
}

/* When an NFS export is withdrawn, a client lists the unit from its cache, but the members cannot
 * be read. They are left out only if they cannot be read either once the server has answered. */
static int check_unreadable(ProbeJob *p) {
        int r = 0;
        for (unsigned i = 0; r == 0 && i < 2 && p->unit.skipped[SCAN_SKIP_UNREADABLE] > 0; i++) {
                if (unit_locks_is_away(p->spec->locks))
                        return PROBE_E_AWAY;
                if (i == 0)
                        r = walk_and_hold(p);
        }
        return r;
}

static int probe_unit(ProbeJob *p) {
        _cleanup_free_ char *path =
                p->relative[0] ? path_join(p->spec->fixed, p->relative) : strdup(p->spec->fixed);
        int r = pins_session_new(&p->session, p->spec->pins, p->bundle_id,
                                 (size_t)p->spec->scan.max_files);
        if (r < 0)
                return r;
        if (path)
                pins_session_set_unit(p->session, path, p->owner.uid);
        p->links_held = p->hold;
        p->unit = (ScanUnit){ .pid = -1 };
        r = p->links_only ? -ENOENT : walk_and_hold(p);
        if (r == 0 && p->waits_for_share)
                r = check_unreadable(p);
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
                p->lives_on = p->links_only && pins_session_lives_on(p->session);
                r = walk_links(p);
        }
        p->session = pins_session_free(p->session);
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

/* ---- the walk over a source: which units are new or have changed ---- */

/* A later scan finds it again. */
static void drop_found(ScanJob *s, const Owner *owner) {
        size_t i = s->n_found;
        while (i > 0 && s->found[i - 1].st.st_uid != owner->uid)
                i--;
        if (i == 0)
                return;
        scan_unit_done(&s->found[i - 1]);
        s->found[i - 1] = s->found[--s->n_found];
        owners_release(&s->owners, owner, 1);
        s->has_more = true;
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
        r = is_known ? 0 : request_unit(s->locks, s->spec, u);
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
        Owner most;
        r = owners_request(&s->owners, &owner, 1, &most);
        if (r == OWNERS_DISPLACE) {
                drop_found(s, &most);
                r = owners_request(&s->owners, &owner, 1, &most);
        }
        if (r < 0)
                return r;
        if (r != OWNERS_GRANTED) {
                s->has_more = true;
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

/* What is on a file system that is not mounted is not gone. */
static void check_ended(ScanJob *s, int fixed_fd) {
        struct stat st;
        for (size_t i = 0; i < s->n_ended && fstat(fixed_fd, &st) == 0; i++) {
                EndedUnit *e = &s->ended[i];
                if (strcmp(e->rec.source, s->spec->name) != 0 ||
                    !path_is_below(e->rec.path, s->spec->fixed) ||
                    (uint64_t)st.st_dev != e->rec.unit_dev)
                        continue;
                const char *relative = source_spec_relative(s->spec, e->rec.path);
                int fd = relative[0] ? fs_open_beneath(fixed_fd, relative, O_PATH) : fixed_fd;
                e->is_gone = fd == -ENOENT || fd == -ENOTDIR;
                if (relative[0] && fd >= 0)
                        (void)close(fd);
                fd = pins_open(s->spec->pins, e->rec.id);
                e->is_held = fd != -ENOENT;
                if (fd >= 0)
                        (void)close(fd);
        }
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
        check_ended(s, fd);
        (void)pins_secure_root(s->spec->pins, &s->moved_aside); /* what is pinned reports it */
        s->root_note = scan_check_root(s->spec->fixed);
        s->result = s->on_network && !s->locks ? -ENOMEM : scan_source(&scan, on_scanned_unit, s);
        s->locks = unit_locks_scan_free(s->locks);
        s->duration_usec = clock_boottime_usec() - begin;
}

static void scan_drop(SourceTask *t) {
        scan_job_free(CONTAINER_OF(t, ScanJob, task));
}

int scan_job_new(ScanJob **ret, SourceSpec *spec, const UnitTable *known, uint64_t max_found) {
        _cleanup_(scan_job_freep) ScanJob *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        s->spec = source_spec_ref(spec);
        s->owners = (Owners){ .what = "found units", .max = max_found };
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
        for (size_t i = 0; i < s->n_ended; i++)
                bundle_record_done(&s->ended[i].rec);
        free(s->ended);
        free(s->moved_aside);
        free(s->lock_note);
        free(s->root_note);
        owners_done(&s->owners);
        unit_table_done(&s->seen);
        unit_table_done(&s->known);
        source_spec_unref(s->spec);
        free(s);
        return NULL;
}
