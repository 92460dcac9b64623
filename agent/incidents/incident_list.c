/* The list of incidents, each with its directory on the disk: which ones are added, kept, removed
 * to free space, and resumed when the agent starts.
 *
 * There are at most 200 incidents with 1 GiB of files. An incident that has ended leaves the list
 * with its directory, which is agent/evidence's then; what an operator has requested stays, and at
 * a limit the oldest of these goes. When the agent starts, incident_list_sweep() reads the
 * directories that an earlier agent left, and each incident continues in the state that its
 * directory shows. */
#include "agent/incidents/incident_list.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/incidents/incident_directory.h"
#include "agent/incidents/incident_machine.h"
#include "agent/store/store.h"
#include "collectors/snapshot.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

Incident *incident_list_release(Incident *x) {
        if (!x)
                return NULL;
        if (x->writing && sd_event_source_get_enabled(x->writing, NULL) > 0)
                incident_directory_write(x); /* the agent ends */
        return incident_free(x);
}

void incident_list_remove(Incident *x) {
        x->writing = sd_event_source_disable_unref(x->writing);
        if (x->place != INCIDENT_IN_SNAPSHOTS && x->place != INCIDENT_STUCK) {
                incident_list_release(x);
                return;
        }
        const char *parent = x->owner->snapshots;
        _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = fd < 0 ? -errno : fs_remove_tree(fd, x->name);
        if (r < 0)
                log_warning(r, "cannot remove '%s/%s'; remove it by hand", parent, x->name);
        incident_list_release(x);
}

/* ---- space ---- */

/* What is no answer to an operator is the only copy of evidence. */
static bool is_removable(const Incident *x) {
        return x->state == INCIDENT_ENDED && !incident_is_evidence(x);
}

static bool has_space(const Incidents *i) {
        uint64_t bytes = 0;
        LIST_FOREACH (l, &i->incidents)
                bytes += CONTAINER_OF(l, Incident, link)->bytes;
        return i->n_incidents < INCIDENT_DIRECTORIES_MAX && bytes < INCIDENT_BYTES_MAX;
}

/* @return the oldest removable incident; NULL */
static Incident *find_removable(Incidents *i) {
        LIST_FOREACH_ITEM (Incident, x, link, &i->incidents)
                if (is_removable(x))
                        return x;
        return NULL;
}

bool incident_list_free_space(Incidents *i) {
        Incident *x;
        if (!evidence_has_space_for_snapshot(i->context.evidence))
                return false; /* it is not these that use it */
        while (!has_space(i) && (x = find_removable(i)))
                incident_list_remove(x);
        return has_space(i);
}

/* ---- a new one ---- */

/* A name that exists is that of other evidence: the clock may have been set back, and several
 * incidents may start within a second. */
Incident *incident_list_add_new(Incidents *i, const char *trigger, int *ret_r) {
        char stamp[CLOCK_ISO_SIZE], name[INCIDENT_NAME_SIZE], published[EVIDENCE_NAME_MAX];
        *ret_r = -EEXIST;
        for (unsigned tries = 0; *ret_r == -EEXIST && tries < 4 * INCIDENT_DIRECTORIES_MAX;
             tries++) {
                (void)snprintf(name, sizeof name, "%s-%u",
                               clock_format_compact(stamp, incident_realtime_usec(i), 'T'),
                               ++i->last_number);
                if (evidence_has(i->context.evidence,
                                 incident_directory_evidence_name(name, published)))
                        continue;
                Incident *x = incident_new(i, name);
                *ret_r = -ENOMEM;
                if (!x)
                        return NULL;
                x->begun_usec = incident_realtime_usec(i);
                x->begun_boot_usec = incident_boot_usec(i);
                x->trigger = strdup(trigger);
                *ret_r = x->trigger ? incident_directory_create(x) : -ENOMEM;
                if (*ret_r == 0)
                        return x;
                incident_list_remove(x);
        }
        return NULL;
}

/* ---- incidents of an earlier agent ---- */

static void raise_last_number(Incidents *i, const char *name) {
        const char *dash = strrchr(name, '-');
        unsigned long n = dash ? strtoul(dash + 1, NULL, 10) : 0;
        if (n < UINT_MAX / 2)
                i->last_number = MAX(i->last_number, (unsigned)n);
}

/* The name is gone, or is that of something that is no directory. */
static bool is_no_directory(int error) {
        return error == -ENOENT || error == -ENOTDIR || error == -ELOOP;
}

/* @return 0, -errno */
static int read_directory(Incident *x, bool *ret_over) {
        Incidents *i = x->owner;
        x->directory = path_join(i->snapshots, x->name);
        x->begun_usec = incident_realtime_usec(i);
        x->begun_boot_usec = incident_boot_usec(i);
        int r = x->directory ? incident_directory_open(x) : -ENOMEM;
        return r == 0 ? incident_directory_read(x, ret_over) : r;
}

static void resume_incident(Incident *x, bool is_over) {
        if (faccessat(x->dir_fd, SNAPSHOT_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                incident_set_content(x, INCIDENT_WHOLE);
        if (is_over)
                incident_machine_resume_end(x);
        else if (incident_has_snapshot(x) && incident_machine_start_recheck(x))
                log_notice("incident %s: its second snapshot is still to come", x->name);
        else if (incident_has_snapshot(x))
                incident_machine_resume_resting(x);
        else {
                log_notice("incident %s: its snapshot was interrupted; what is there of it is "
                           "gathered",
                           x->name);
                incident_machine_salvage(x);
        }
        incident_directory_close(x);
}

/* A directory that cannot be read now may be about dumps: it stays for the next start. */
static void resume_directory(Incidents *i, const char *name) {
        bool is_over = false;
        raise_last_number(i, name);
        Incident *x = incident_new(i, name);
        int r = x ? read_directory(x, &is_over) : -ENOMEM;
        if (r < 0) {
                if (!is_no_directory(r))
                        log_warning(r,
                                    "'%s/%s' of an earlier agent cannot be read; it is kept and "
                                    "read at the next start",
                                    i->snapshots, name);
                incident_list_release(x); /* its directory stays */
                return;
        }
        incident_set_place(x, INCIDENT_IN_SNAPSHOTS);
        x->bytes = incident_directory_measure(x);
        resume_incident(x, is_over);
}

int incident_list_sweep(Incidents *i) {
        _cleanup_closedir_ DIR *d = opendir(i->snapshots);
        _cleanup_(incident_texts_done) IncidentTexts names = { 0 };
        if (!d)
                return -errno;
        const struct dirent *e;
        while ((e = readdir(d)))
                if (e->d_name[0] != '.' && strlen(e->d_name) < INCIDENT_NAME_SIZE)
                        (void)incident_texts_add(&names, 4 * INCIDENT_DIRECTORIES_MAX,
                                                 e->d_name); /* else at the next start */
        if (names.n > 0)
                qsort(names.items, names.n, sizeof *names.items,
                      array_compare_strings); /* a name begins with its time */
        for (size_t k = 0; k < names.n; k++)
                resume_directory(i, names.items[k]);
        return 0;
}
