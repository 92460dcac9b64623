/* Deletes at the source the files that a bundle's links hold, and the links; or only the links.
 * Blocking: call it from a worker. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/retention/link_dirs.h"

typedef struct LinkDeletion { /* borrowed */
        const char *bundle_id;
        bool only_links;        /* the files stay; LINK_DELETION_E_* as below, but never -ENOENT */
        const char *relative;   /* the unit, below the fixed part; "" = the fixed part itself */
        bool is_file;           /* the unit is that one file */
        bool leaves_directory;  /* the unit's own directory stays, even if it is empty */
        bool only_named;        /* files and directories stay whose own names are no evidence */
        bool any_content;       /* evicted: members are deleted as they are, else only as shipped */
        const uint64_t *prints; /* sorted fingerprints of what this bundle has shipped */
        size_t n_prints;
        /* Sorted fingerprints of what other bundles of the unit have shipped. The last link to
         * content that is neither here nor in prints stays. */
        const uint64_t *known;
        size_t n_known;
        bool discards_unshipped; /* a recheck has found that nobody needs the rest */
        uint64_t unit_dev;       /* st_dev of the unit; 0: not known */
} LinkDeletion;

typedef struct LinkDeletionTally {
        uint64_t n_deleted, deleted_bytes;
        uint64_t n_gone;      /* their names at the source are gone, or other files' */
        uint64_t n_changed;   /* changed since they were shipped: not deleted */
        uint64_t n_unnamed;   /* only_named: not deleted */
        uint64_t n_open;      /* open for writing: not deleted, and our links stay too */
        uint64_t n_unshipped; /* only our links hold what was not shipped: the links stay */
        uint64_t n_kept;      /* another file that was moved, and whose name was in use again */
} LinkDeletionTally;

/** Deletes a name only if it is the linked inode with the content that was shipped, then the
 * directories of the unit that are empty. May be interrupted at any point and called again. What it
 * did is durable when it returns 0.
 * @param ret  added to, whatever is returned
 * @return 0: no link of ours is left; LINK_DELETION_E_OPEN: only what is open for writing is left;
 *   LINK_DELETION_E_UNSHIPPED: only what was not shipped, and perhaps what is open;
 *   LINK_DELETION_E_AWAY: there are no links, no unit, and their file system is not mounted;
 *   -ENOENT: the unit exists and has no links; -EBUSY: another call is running; -EINVAL: bundle_id
 * is no name; -errno: what was not deleted is still held by links */
enum { LINK_DELETION_E_OPEN = 2, LINK_DELETION_E_UNSHIPPED = 3, LINK_DELETION_E_AWAY = 4 };
int link_deletion_run(LinkDirs *dirs, const LinkDeletion *request, LinkDeletionTally *ret);
