/* What the hook told, and who was seen at the devices: rows in the store. The rules are those of
 * store.h: 0 says that it is durable. A note that cannot be written was not accepted, and the hook
 * puts it into the mailbox: -ENOSPC while new ones are paused, see store_last_error(). */
#pragma once

#include "agent/store/store.h"

#define STORE_NOTES_MAX 10000
#define STORE_NOTES_MAX_OF_UID 1000
#define STORE_NOTES_MAX_BYTES ((uint64_t)64 << 20) /* of documents, all together */
#define STORE_NOTES_MAX_BYTES_OF_UID ((uint64_t)16 << 20)
#define STORE_JOBS_MAX 4096

typedef struct StoredNote {
        char *id;               /* 32 hex digits */
        uint64_t received_usec; /* CLOCK_REALTIME */
        uid_t uid;              /* of the hook */
        pid_t pid;              /* of the process that failed, on this machine; 0 = not known */
        uint64_t start_ticks;   /* of pid; 0 = not known */
        bool by_mailbox;
        char *source, *unit_path; /* NULL = the directory that it named was refused */
        char *s3_prefix;          /* `s3://bucket/prefix`, when it was granted; NULL */
        char *refused;            /* what was refused and why, a sentence; NULL */
        uint64_t finished_usec;   /* CLOCK_REALTIME; 0 = its hook may still write files */
        char *container;          /* NULL */
        char *document;           /* hook_note_format(): filtered and redacted */
} StoredNote;

/** Frees what it owns, and zeroes it. */
void stored_note_done(StoredNote *n);

/** Adds one, durably (or with the transaction that is open). Where its uid has too many, its oldest
 * finished ones go; where there are too many in all, those of the uid that has most notes, or most
 * bytes where these are short (of several the highest uid). A note whose bundle is underway goes
 * behind the others.
 * @return 0; STORE_E_NOTE_TWICE: the id is there, and nothing was changed; STORE_E_NOTES_FULL: none
 * can go; -errno */
enum { STORE_E_NOTE_TWICE = 3, STORE_E_NOTES_FULL = 4 };
int store_note_add(Store *s, const StoredNote *n);
/** What was found out about the process after it was added: takes pid and start_ticks of n, and
 * container where it is not NULL. 0 or STORE_E_NOT_FOUND */
int store_note_set_process(Store *s, const StoredNote *n);
/** Its directory came after it: takes source, unit_path, s3_prefix and refused of n, and container
 * where it is not NULL. 0 or STORE_E_NOT_FOUND */
int store_note_set_unit(Store *s, const StoredNote *n);
/** Its hook has ended. The second time changes nothing. 0 or STORE_E_NOT_FOUND */
int store_note_finish(Store *s, const char *id, uint64_t now_usec);

typedef struct StoredUnit { /* borrowed */
        const char *source, *path;
} StoredUnit;
/** The note is borrowed for the call, which may use the store. A negative return ends the list and
 * is returned, a positive one ends it with 0. */
typedef int (*StoreOnNote)(const StoredNote *n, void *userdata);

/** The notes about a unit, in the order in which they came. */
int store_note_list(Store *s, const StoredUnit *unit, StoreOnNote on_note, void *userdata);
/** Those whose hook is not known to have ended. */
int store_note_list_open(Store *s, StoreOnNote on_note, void *userdata);

typedef struct StoredJob {
        pid_t pid; /* on this machine */
        uint64_t start_ticks;
        uid_t uid;
        uint64_t seen_usec; /* CLOCK_REALTIME */
        char *document;     /* JSON, filtered and redacted */
} StoredJob;
void stored_job_done(StoredJob *j);

/** Puts one: by pid and start_ticks there is one row. Above STORE_JOBS_MAX those that were not seen
 * for the longest time go. */
int store_job_put(Store *s, const StoredJob *j);
/** @param start_ticks  0 = whichever was seen last under this pid  @return 0 and *ret
 * (stored_job_done), or STORE_E_NOT_FOUND */
int store_job_find(Store *s, pid_t pid, uint64_t start_ticks, StoredJob *ret);
/** The jobs of a user, the last seen first. @param ret  the caller's, at least `max` @return how
 * many (stored_job_done each), -errno */
int store_job_list(Store *s, uid_t uid, size_t max, StoredJob *ret);
