/* Which unit the directory of a note is, and whether the note may be about it. Hook notes are
 * untrusted input. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "config/config.h"

typedef struct NoteLocation { /* where the directory of a note may lie */
        char *source;         /* its name */
        char *fixed;          /* the fixed part of its path */
        char *relative;       /* of the unit, below it; "" = itself */
        bool by_name;         /* its path is another one here: found by its last components alone */
        bool is_skipped;      /* its file system does not answer: it is not opened */
} NoteLocation;

#define NOTE_LOCATIONS_MAX 16

typedef struct DirectoryCheck {
        uid_t uid; /* of the hook */
        /* The file of the hook's mount table, where its container is known: it may name only what
         * is mounted in there. NULL: it is in none, or not known to be. Owned */
        char *mounts;
        NoteLocation locations[NOTE_LOCATIONS_MAX];
        size_t n_locations;
        size_t current; /* the location that is being checked; atomic */
        /* The result: */
        const NoteLocation *found; /* one of the locations; NULL: refused */
        const char *why;           /* static; NULL when found */
        bool is_absent;            /* missing: it may be created yet */
        bool is_late;              /* its file system does not answer: is_absent, too */
        size_t n_absent;           /* locations where no directory of that name is */
} DirectoryCheck;
void directory_check_done(DirectoryCheck *l);

/** Determines the locations to check, from text alone. @return 0; 1: no source has it, and why;
 * -ENOMEM
 */
int directory_check_prepare(DirectoryCheck *l, const Config *c, const char *directory, uid_t uid);
/** Opens the locations. Blocks: for a worker, since a mount may hang. */
void directory_check_run(DirectoryCheck *l);

/* Parts of directory_check_prepare(): */

enum { NOTE_E_NO_UNIT = 1 };
/** Finds the first source whose directories have units and that the directory lies in.
 * @param directory  as the note has it @param ret_why  static, a sentence; only with NOTE_E_NO_UNIT
 * @return 0; NOTE_E_NO_UNIT: no source has it; -ENOMEM */
int note_location_find(const Config *c, const char *directory, NoteLocation *ret,
                       const char **ret_why);
/** Finds the unit of that name in the i-th source, for a directory whose path is in no source,
 * since a container sees another one.
 * @return 0; NOTE_E_NO_UNIT: this source has no unit of that name; -ENOMEM */
int note_location_find_by_name(const Config *c, size_t i, const char *directory, NoteLocation *ret);
void note_location_done(NoteLocation *p);
