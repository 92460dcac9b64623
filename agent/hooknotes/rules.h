/* What a note may request: which unit its directory is and whose, whether its bucket prefix is
 * granted, how many notes a user may send. Hook notes are untrusted input. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"

/* ---- which unit a directory is ---- */

typedef struct NoteLocation {
        char *source;    /* its name */
        char *fixed;     /* the fixed part of its path */
        char *relative;  /* of the unit, below it; "" = itself */
        bool by_name;    /* its path is another one here: found by its last components alone */
        bool is_skipped; /* its file system does not answer: it is not opened */
} NoteLocation;
void note_location_done(NoteLocation *p);

/** The first source whose directories have units, and that the directory lies in.
 * @param directory  as the note has it
 * @param ret_why    static, a sentence; only with NOTE_E_NO_UNIT
 * @return 0; NOTE_E_NO_UNIT: no source has it; -ENOMEM */
enum { NOTE_E_NO_UNIT = 1 };
int note_location_find(const Config *c, const char *directory, NoteLocation *ret,
                       const char **ret_why);
/** For a directory that is in no source by its path (a container sees another one): the unit of
 * that name in the i-th source, where there may be one.
 * @return 0; NOTE_E_NO_UNIT: this source has no unit of that name; -ENOMEM */
int note_location_find_by_name(const Config *c, size_t i, const char *directory, NoteLocation *ret);

/* ---- whether the directory exists, and whose it is ---- */

#define NOTE_LOCATIONS_MAX 16

/* Owns its locations. */
typedef struct DirectoryCheck {
        uid_t uid; /* of the hook */
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

/** Determines the locations to check, from text alone. @return 0; NOTE_E_NO_UNIT and why; -ENOMEM
 */
int directory_check_prepare(DirectoryCheck *l, const Config *c, const char *directory, uid_t uid);
/** Opens the locations. Blocks: for a worker, since a mount may hang. */
void directory_check_run(DirectoryCheck *l);
/** @return the fixed part of the location that is being checked now, also by another thread */
const char *directory_check_current(const DirectoryCheck *l);
/** Excludes the locations of a source that does not answer. */
void directory_check_skip(DirectoryCheck *l, const char *fixed);

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

/* A job of 128 threads that fails four times in a row is accepted at once; then one note a second
 * and user. */
#define NOTE_BURST 512
#define NOTE_REFILL_USEC 1000000
#define NOTE_USERS_MAX 64

typedef struct NoteRatelimit { /* zero = nobody has sent any */
        struct {
                uid_t uid;
                uint64_t used_usec; /* notes that count, each NOTES_REFILL_USEC, as of at_usec; 0 =
                                       free */
                uint64_t at_usec;
        } users[NOTE_USERS_MAX];
} NoteRatelimit;

/** Consumes one note of the user's rate. Of more users than NOTE_USERS_MAX, those who have used
 * least are forgotten.
 * @param now_usec  CLOCK_BOOTTIME @return whether it is within the rate */
bool note_ratelimit_consume(NoteRatelimit *a, uid_t uid, uint64_t now_usec);

/* ---- quota of the mailbox ---- */

#define MAILBOX_FILES_MAX 1000
#define MAILBOX_FILES_MAX_OF_UID 256

typedef struct MailboxQuota { /* zero = nothing counted */
        struct {
                uid_t uid;
                unsigned n;
        } users[MAILBOX_FILES_MAX];
        size_t n_users;
        unsigned n;
} MailboxQuota;

/** Counts one file of this user. @return whether it may stay */
bool mailbox_quota_consume(MailboxQuota *q, uid_t uid);
