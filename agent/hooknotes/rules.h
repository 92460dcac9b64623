/* What a note may request: which unit its directory is and whose, whether its bucket prefix is
 * granted, how many notes a user may send. Hook notes are untrusted input. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/neuron/owners.h"

/* ---- which unit a directory is ---- */

typedef struct NoteLocation {
        char *source;    /* its name */
        char *fixed;     /* the fixed part of its path */
        char *relative;  /* of the unit, below it; "" = itself */
        bool by_name;    /* its path is another one here: found by its last components alone */
        bool is_skipped; /* its file system does not answer: it is not opened */
} NoteLocation;

/* ---- whether the directory exists, and whose it is ---- */

#define NOTE_LOCATIONS_MAX 16

/* Owns its locations. */
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

/* ---- what the hook has written ---- */

typedef struct HookFinish {
        bool without_record, without_snapshot;
} HookFinish;

/** Reads `finished` or `finished without record`, `… snapshot`, `… record snapshot`. @param data  a
 * packet @return whether it is of this form */
bool hook_finish_parse(const char *data, size_t n, HookFinish *ret);

/* ---- bucket prefix ---- */

#define NOTE_PREFIX_MAX 512

/** Verifies `s3://bucket/prefix`: it must be below one of hook.allow_prefixes, or, where there are
 * none, below the fixed part of the prefix of an s3 destination with that bucket; and there must be
 * a destination with that bucket.
 * @return NULL: granted; else why not, a static sentence */
const char *hooknotes_check_prefix(const Config *c, const char *prefix);

/* ---- rate of notes ---- */

/* Two jobs of 128 threads that fail four times in a row are accepted at once; then one note a
 * second and owner. */
#define NOTE_BURST 1024
#define NOTE_REFILL_USEC USEC_PER_SEC

typedef struct NoteRatelimit { /* owners.max and .what set, else zero = nobody has sent any */
        Owners owners;         /* notes that count, as of refilled_usec */
        uint64_t refilled_usec;
} NoteRatelimit;

/** Consumes one note of the owner's rate. Beyond the burst whoever has used most gives way.
 * @param now_usec  CLOCK_BOOTTIME @return whether it is within the rate */
bool note_ratelimit_consume(NoteRatelimit *a, const Owner *o, uint64_t now_usec);

/* ---- quota of the mailbox ---- */

#define MAILBOX_FILES_MAX 1000
