/* What a note may ask for, decided without touching a file: which unit its directory is, whether its bucket prefix is granted, how many notes a
 * user may send. All that comes in is a stranger's. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"

/* ---- which unit a directory is ---- */

typedef struct NotesPlace {
        char *source;   /* its name */
        char *fixed;    /* the fixed part of its path */
        char *relative; /* of the unit, below it; "" = itself */
        bool by_name;   /* its path is another one here: found by its last components alone */
} NotesPlace;
void notes_place_done(NotesPlace *p);

/** The first source whose directories have units, and that the directory lies in.
 * @param directory  as the note has it
 * @param ret_why    static, a sentence; only with NOTES_E_REFUSED
 * @return 0; NOTES_E_REFUSED: it can be in none; -ENOMEM */
enum { NOTES_E_REFUSED = 1 };
int notes_place_find(const Config *c, const char *directory, NotesPlace *ret, const char **ret_why);
/** For a directory that is in no source by its path (a container sees another one): the unit of that name in the i-th source, where there may be one.
 * @return 0; NOTES_E_REFUSED: this source has none of that name; -ENOMEM */
int notes_place_by_name(const Config *c, size_t i, const char *directory, NotesPlace *ret);

/* ---- what its hook has written ---- */

typedef struct NotesFinish {
        bool without_record, without_snapshot;
} NotesFinish;

/** Reads `finished` or `finished without record`, `… snapshot`, `… record snapshot`. @param data  a packet @return whether it is of this form */
bool notes_finish_parse(const char *data, size_t n, NotesFinish *ret);

/* ---- where its copy may go ---- */

#define NOTES_PREFIX_MAX 512

/** Judges `s3://bucket/prefix`: it must be below one of hook.allow_prefixes, or, where there are none, below the fixed part of the prefix of an s3
 * destination with that bucket; and there must be a destination with that bucket.
 * @return NULL: granted; else why not, a static sentence */
const char *notes_prefix_judge(const Config *c, const char *prefix);

/* ---- how many ---- */

/* A job of 128 threads that fails four times in a row is heard at once; then one note a second and user. */
#define NOTES_BURST 512
#define NOTES_REFILL_USEC 1000000
#define NOTES_USERS_MAX 64

typedef struct NotesAllowance { /* zero = nobody has sent any */
        struct {
                uid_t uid;
                uint64_t
                        used_usec; /* notes that count, each NOTES_REFILL_USEC, as of at_usec; 0 = free */
                uint64_t at_usec;
        } users[NOTES_USERS_MAX];
} NotesAllowance;

/** Takes one from the user's allowance. Of more users than can be remembered, those are forgotten who have used least.
 * @param now_usec  of a clock that never goes back @return whether there was one */
bool notes_allowance_take(NotesAllowance *a, uid_t uid, uint64_t now_usec);

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
