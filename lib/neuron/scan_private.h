/* What the files of a scan share. Private to lib/neuron. */
#pragma once

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "lib/neuron/names.h"
#include "lib/neuron/scan.h"
#include "lib/neuron/unit.h"

/* ---- scan_root.c ---- */

/** Opens what a source's paths are relative to. @return a descriptor of the caller's; as
 *   scan_open_fixed() */
int scan_open_start(const ScanSource *s);

/* ---- scan_members.c ---- */

/* The path of the current entry, and how to go one component down and up again. */
typedef struct ScanPath {
        char text[PATH_MAX];
        size_t n;
} ScanPath;

/** @param n_prefix  bytes of what will stand before it
 * @return false when the path is too long for a system call */
bool scan_path_enter(ScanPath *p, size_t n_prefix, const char *name);
/** @param n  length of the path before */
void scan_path_leave(ScanPath *p, size_t n);

/** @param relative  the unit; NULL: not known yet
 * @return the owner of what has this id in its name, where this instance may act for others */
UnitOwner scan_acting_owner(const ScanSource *s, const char *relative, const char *found,
                            bool on_network);
/** @return whether this agent may own some of what has this id */
bool scan_may_be_owned(const ScanSource *s, const char *found, bool on_network);

/** @return whether the directory directly holds an entry with a name of dump_name_is_of_dump(): 1
 * or 0; negative only for lack of memory or descriptors. Other errors are found when it is walked.
 */
int scan_holds_dump_name(DIR *dir);

/** Opens the directory of a unit, of a file unit the one that it lies in. @return 0, -errno */
int scan_open_unit(const ScanWalk *w, int fixed_fd, DIR **ret);
/** @param foreign  the instance that the unit's path gives all members to; NULL
 * @param dir  of scan_open_unit() */
int scan_walk_members(const ScanWalk *walk, bool on_network, const char *foreign, DIR *dir);

/* ---- scan_unit.c ---- */

typedef struct ScanOwner { /* by a path */
        UnitOwner owner;
        char instance_id[INSTANCE_ID_SIZE]; /* that it names, or "" */
} ScanOwner;

/** Finds the owner of the units below a component. @param relative  the unit; NULL: not known yet
 */
ScanOwner scan_component_owner(const ScanSource *s, bool on_network, const char *relative, size_t i,
                               const char *component);

typedef struct ScanLocation { /* where a unit lies */
        const ScanSource *source;
        bool on_network;
        const char *relative; /* the unit's path */
        bool is_file, loose;
        bool is_evidence; /* as in ScanUnit */
} ScanLocation;

/** Walks the unit and fills *ret, which is scan_unit_done() by the caller, also after a failure.
 * @param dir  as for scan_walk_members()
 * @return 0, also with no members; SCAN_E_FOREIGN: its path names another instance, nothing was
 * walked; -ENOENT: the file is gone */
enum { SCAN_E_FOREIGN = 1 };
int scan_unit_fill(const ScanLocation *p, DIR *dir, ScanUnit *ret);
