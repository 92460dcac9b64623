/* What a note may ask for, decided without touching a file: which unit its directory is, whether
 * its bucket prefix is granted, how many notes a user may send. All that comes in is a stranger's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"

/* ---- which unit a directory is ---- */

typedef struct NoteLocation {
        char *source;   /* its name */
        char *fixed;    /* the fixed part of its path */
        char *relative; /* of the unit, below it; "" = itself */
        bool by_name;   /* its path is another one here: found by its last components alone */
} NoteLocation;
void note_location_done(NoteLocation *p);

/** The first source whose directories have units, and that the directory lies in.
 * @param directory  as the note has it
 * @param ret_why    static, a sentence; only with NOTES_E_REFUSED
 * @return 0; NOTES_E_REFUSED: it can be in none; -ENOMEM */
enum { NOTE_E_NO_UNIT = 1 };
int note_location_find(const Config *c, const char *directory, NoteLocation *ret,
                       const char **ret_why);
/** For a directory that is in no source by its path (a container sees another one): the unit of
 * that name in the i-th source, where there may be one.
 * @return 0; NOTES_E_REFUSED: this source has none of that name; -ENOMEM */
int note_location_find_by_name(const Config *c, size_t i, const char *directory, NoteLocation *ret);

/* ---- notes_unit.c: whether the directory is there, and whose it is. In a worker: a mount may
 * hang. ---- */

#define NOTE_LOCATIONS_MAX 16

/* Owns all it has. */
typedef struct DirectoryCheck {
        uid_t uid; /* of the hook */
        NoteLocation locations[NOTE_LOCATIONS_MAX];
        size_t n_locations;
        /* The answer: */
        const NoteLocation *found; /* one of places; NULL: refused */
        const char *why;           /* static; NULL when found */
        bool is_absent;            /* it is not there: it may come */
        bool is_late;              /* it could not be checked in time: the same */
        size_t n_absent;           /* places where no directory of that name is */
} DirectoryCheck;
void directory_check_done(DirectoryCheck *l);

/** Determines the places to check, from text alone. @return 0; NOTES_E_REFUSED and why; -ENOMEM */
int directory_check_prepare(DirectoryCheck *l, const Config *c, const char *directory, uid_t uid);
/** Looks. Blocks. */
void directory_check_run(DirectoryCheck *l);

/* ---- what its hook has written ---- */

typedef struct HookFinish {
        bool without_record, without_snapshot;
} HookFinish;

/** Reads `finished` or `finished without record`, `… snapshot`, `… record snapshot`. @param data  a
 * packet @return whether it is of this form */
bool hook_finish_parse(const char *data, size_t n, HookFinish *ret);

/* ---- where its copy may go ---- */

#define NOTE_PREFIX_MAX 512

/** Judges `s3://bucket/prefix`: it must be below one of hook.allow_prefixes, or, where there are
 * none, below the fixed part of the prefix of an s3 destination with that bucket; and there must be
 * a destination with that bucket.
 * @return NULL: granted; else why not, a static sentence */
const char *hooknotes_check_prefix(const Config *c, const char *prefix);

/* ---- how many ---- */

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

/** Takes one from the user's allowance. Of more users than can be remembered, those are forgotten
 * who have used least.
 * @param now_usec  of a clock that never goes back @return whether there was one */
bool note_ratelimit_consume(NoteRatelimit *a, uid_t uid, uint64_t now_usec);

/* ---- how many may lie in the mailbox ---- */

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
