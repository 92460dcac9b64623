/* One walk over the members of a unit, in a thread: what was shipped before, left out or promised
 * is told apart; the rest is counted, checked for writers, and held. Members are held by hard
 * links; where a link is refused, the first UNIT_WALK_HELD_FILES_MAX are held by open descriptors.
 *
 * What the counts mean is the caller's to decide. */
#include "agent/intake/unit_walk.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/retention/links.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/bundle/validate.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/tree.h"

static unsigned own_links(const char *member_path, const struct stat *st, void *userdata) {
        UnitWalk *w = userdata;
        unsigned n = link_session_own_links(w->session, member_path, st, &w->has_link);
        return w->has_link ? UINT_MAX
                           : n; /* a file that is held stays a member, whatever links it has */
}

/* Where links are refused the open descriptor holds the file, for the first few members. */
static int hold_descriptor(UnitWalk *w, const ScanMember *m, int unit_fd) {
        if (w->held.n >= UNIT_WALK_HELD_FILES_MAX)
                return -EMFILE;
        struct stat st;
        _cleanup_close_ int fd = fs_open_regular(unit_fd, m->path, &st);
        if (fd < 0)
                return fd;
        if (array_grow(&w->held.items, w->held.n, sizeof *w->held.items) < 0)
                return -ENOMEM;
        char *path = strdup(m->path);
        if (!path)
                return -ENOMEM;
        w->held.items[w->held.n++] = (HeldFile){ .path = path, .fd = TAKE_FD(fd) };
        return 0;
}

static int hold_member(UnitWalk *w, const ScanMember *m, int unit_fd) {
        if (w->hold == UNIT_WALK_LINKS) {
                int r = link_session_add(w->session,
                                         &(LinkMember){ m->path, unit_fd, m->path, &m->st },
                                         &w->hold_error);
                if (r == 0)
                        w->n_linked++;
                if (r == 0 || r == -ENOENT) /* removed again: the next probe sees it */
                        return 0;
                if (r < 0 && !w->hold_error)
                        (void)asprintf(&w->hold_error, "cannot link '%s': %s", m->path,
                                       strerror(-r)); /* without memory there is no text */
                w->hold = UNIT_WALK_DESCRIPTORS;
        }
        int r = hold_descriptor(w, m, unit_fd);
        if (r < 0)
                w->held.all = false;
        return r == -ENOMEM ? r : 0;
}

/* @return 0; -EMFILE …: whether a process writes it is not known, and the unit waits */
static int check_member(UnitWalk *w, const ScanMember *m, int unit_fd) {
        struct stat st;
        _cleanup_close_ int fd = fs_open_regular(unit_fd, m->path, &st);
        if (fd < 0) /* a member that is gone or unreadable is reported by the plan */
                return tree_error_is_resource(fd) ? fd : 0;
        switch (fs_check_writer(fd)) {
        case 0:
                break;
        case FS_E_WRITER:
                w->writers = INTAKE_WRITERS_SOME;
                break;
        default:
                if (w->writers == INTAKE_WRITERS_NONE)
                        w->writers = INTAKE_WRITERS_UNKNOWN;
        }
        if (!w->contradicted)
                w->contradicted =
                        validate_quick(fd, m->name.kind, (uint64_t)st.st_size) != VERDICT_OK;
        return 0;
}

bool unit_walk_is_another(int unit_fd, uint64_t ino, uint64_t born_usec) {
        struct stat st;
        if (ino == 0 || fstat(unit_fd, &st) < 0)
                return false;
        return st.st_ino != ino || (born_usec > 0 && fs_birth_usec(unit_fd) != born_usec);
}

static int on_member(const ScanMember *m, int unit_fd, void *userdata) {
        UnitWalk *w = userdata;
        bool has_link = w->has_link; /* own_links() sets it right before, if it is called */
        w->has_link = false;
        promised_files_mark(&w->promised, path_name(m->path)); /* a member or not, it is there */
        /* The base has it, whatever has become of it since. */
        uint64_t print = member_fingerprint(m->path, &m->st);
        if (S_ISREG(m->st.st_mode) &&
            member_fingerprints_contain(w->shipped, w->n_shipped, print)) {
                w->n_shipped_there++;
                return 0;
        }
        if (m->skip != SCAN_SKIP_NONE) {
                (void)scan_unit_add_skip(&w->unit, m); /* without memory it has no example */
                return 0;
        }
        scan_unit_add_member(&w->unit, m, print);
        file_owners_add(&w->owners, m->st.st_uid);
        named_pids_add(&w->pids, m->name.pid);
        int r = w->check_writers ? check_member(w, m, unit_fd) : 0;
        if (r < 0)
                return r;
        if (has_link && w->hold == UNIT_WALK_LINKS)
                w->n_linked++;
        else if (w->hold != UNIT_WALK_COUNTS)
                return hold_member(w, m, unit_fd);
        return 0;
}

static int on_member_in_place(const ScanMember *m, int unit_fd, void *userdata) {
        UnitWalk *w = userdata;
        if (unit_walk_is_another(unit_fd, w->unit_ino, w->unit_born_usec)) {
                w->met_another = true;
                return -ENOENT;
        }
        return on_member(m, unit_fd, w);
}

int unit_walk_members(UnitWalk *w) {
        scan_unit_done(&w->unit);
        w->unit = (ScanUnit){ .pid = -1 };
        w->owners = (FileOwners){ 0 };
        named_pids_done(&w->pids);
        w->n_shipped_there = 0;
        w->n_linked = 0;
        held_files_done(&w->held);
        w->held.all = true;
        return scan_members(&(ScanWalk){ .source = &w->spec->scan,
                                         .relative = w->relative,
                                         .loose = source_spec_is_loose(w->spec, w->relative),
                                         .own_links = own_links,
                                         .on_member = on_member_in_place,
                                         .userdata = w });
}

int unit_walk_links(UnitWalk *w, const char *bundle_id) {
        _cleanup_close_ int fd = links_open(w->spec->link_dirs, bundle_id);
        if (fd < 0)
                return -ENOENT;
        char root[64];
        snprintf(root, sizeof root, "/proc/self/fd/%d/.", fd);
        ScanSource scan = w->spec->scan;
        scan.root_override = root;
        scan.any_links = scan.any_owner = true;
        scan.exclude = NULL;
        int r = scan_members(&(ScanWalk){
                .source = &scan,
                .relative = scan.kind == SOURCE_PROCESS_CORE ? path_name(w->relative) : "",
                .on_member = on_member,
                .userdata = w });
        return r == 0 && w->unit.n_files == 0 ? -ENOENT : r;
}

void unit_walk_done(UnitWalk *w) {
        free(w->shipped);
        promised_files_done(&w->promised);
        scan_unit_done(&w->unit);
        named_pids_done(&w->pids);
        held_files_done(&w->held);
        free(w->hold_error);
}
