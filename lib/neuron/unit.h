/* The rules by which paths of a source make one unit, and by which a unit has an owner. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/neuron/names.h"
#include "lib/neuron/record.h"

typedef struct UnitQuery {
        SourceKind kind;
        size_t template_depth; /* path_template_depth() */
        const char *relative;  /* below the fixed part, raw; "" = itself */
        bool is_dir;           /* else a file of any type */
        /* Profiles: depth of the outermost directory, among `relative` and those above it, that
         * directly holds a `*.ntff` file, a trace, an `i-…_pid_` directory or `plugins/profile`
         * (an output directory); -1 = none, and for other kinds. */
        int ntff_depth;
} UnitQuery;

typedef struct UnitMatch {
        size_t depth; /* so many leading components of `relative` are the unit's path */
        bool is_file; /* the unit is this one file */
        bool loose;   /* the unit is the files directly in that directory, no more */
} UnitMatch;

/** Finds the unit that a path belongs to, by depth alone: of neuron-core-dump the names decide
 * after that.
 *  - neuron-core-dump, directory: the directory at exactly the template's depth, whatever its name
 *    is, with all below it. A file above that depth belongs to the loose unit of its directory.
 *  - process-core: each file is a unit.
 *  - neuron-profile: the outermost `<instance>_pid_<pid>` directory with all below it; without one
 *    the outermost output directory (UnitQuery), with all below it but such `_pid_` directories.
 * @return false: to none */
bool unit_match(const UnitQuery *q, UnitMatch *ret);

/** @return whether the name of a unit is evidence of its kind: it matches the template (of
 * process-core in its last components), or is a profile's `_pid_` directory. In other units only
 * members are evidence, by their own names.
 * @param relative  the unit, below the fixed part */
bool unit_is_evidence_by_name(SourceKind kind, const PathTemplate *t, const char *relative);
/** @return whether the name of a file is evidence, whatever unit it lies in */
bool member_is_evidence_by_name(const char *name);
/** @return the number of components of a clean relative path; 0 for "" */
size_t unit_path_depth(const char *relative);
/** @return length in bytes of a clean relative path's first n components, without the slash after
 * them */
size_t unit_path_prefix(const char *relative, size_t n);
/** @return whether a relative path is clean: no empty component, no `.` or `..`, not absolute; ""
 *   is clean */
bool unit_path_is_clean(const char *relative);

/** @param relative  a unit's path
 * @return whether a directory of this name inside it begins another unit */
bool unit_ends_at(SourceKind kind, const char *relative, const char *name);

typedef enum UnitOwner {
        UNIT_OWNER_US,      /* the name has our id */
        UNIT_OWNER_UNNAMED, /* no id: ours on a local file system, on a network one
                             * that of the node that claims it */
        UNIT_OWNER_FOREIGN,
} UnitOwner;

/** Classifies the instance id found in a name or path ("" = none).
 *
 *  | ours    | found          | local   | network |
 *  |---------|----------------|---------|---------|
 *  | any     | ours           | us      | us      |
 *  | any     | none           | unnamed | unnamed |
 *  | EC2 id  | another EC2 id | foreign | foreign |
 *  | EC2 id  | any other word | unnamed | unnamed |
 *  | no EC2  | anything else  | unnamed | foreign |
 *
 * The fourth row: `trace_pid_7` and `unknown-nd0-…` have a word where an id could stand; no other
 * instance will ever collect them. */
UnitOwner unit_owner(const char *ours, const char *found, bool on_network);
