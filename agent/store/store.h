/* The durable state, in SQLite: bundles, deliveries, uploads, notes, jobs, claims, reports. All
 * access to the database goes through this header. Every change is committed (synchronous=FULL)
 * before the call returns, unless it stands between store_begin and store_commit. Runs on the loop.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/digest.h"
#include "lib/neuron/record.h"

#define STORE_SCHEMA_VERSION 1

typedef struct Store Store;

/** Opens or creates `<state_dir>/state.db` (0600) and takes the directory's lock
 * (`<state_dir>/lock`, flock). A database that cannot be used is put aside, with -wal and -shm, and
 * a new one is created: a damaged one as `state.db.corrupt-<time>`, one of another schema, which
 * another build of the agent has written, as `state.db.other-build-<time>`. A database that is
 * there is opened on a full disk, too: see store_last_error().
 * Where no new one can be created (-ENOSPC) the old one has its name again.
 * @param ret_put_aside  the name that it has now, the caller's, to be logged; NULL when nothing was
 * put aside. NULL itself: nothing is put aside
 * @return 0; STORE_E_LOCKED and *ret_pid of the holder (0 = unknown); STORE_E_UNUSABLE: it would
 * have to be put aside; -errno */
enum { STORE_E_LOCKED = 1, STORE_E_NOT_FOUND = 2, STORE_E_UNUSABLE = 3 };
int store_open(Store **ret, const char *state_dir, char **ret_put_aside, pid_t *ret_pid);
/** @return whether what was put aside under this name is of another build, and not damaged */
bool store_is_of_other_build(const char *put_aside);
Store *store_close(Store *s);
/** @return whether the database and its log are still the files at its path. If the directory was
 * removed or replaced, a store would write to files that no later start finds: all its changes fail
 * with -ESTALE. */
bool store_is_in_place(const Store *s);
/** What stands between the two is committed as one, or not at all. -EALREADY inside one, -EBUSY
 * when another process writes. A call that fails in between undoes itself only; where SQLite had to
 * undo more (disk full, I/O error), all further changes fail with that error and store_commit
 * returns it, with nothing changed. */
int store_begin(Store *s);
int store_commit(Store *s);
void store_rollback(Store *s); /* undoes what stands after store_begin */

/* All changes: -ENOSPC, -EIO, -EROFS: nothing was changed, and the store can be used further.
 * -EBUSY: another process (a person's sqlite3) holds the database; try again. -EUCLEAN: the
 * database is damaged; the next store_open puts it aside. -ESTALE: see store_is_in_place(). */

/** Has on_trouble called when a change fails because the state directory is full, fails, is
 * read-only, damaged or not there any more: once, and again only after store_recover(). It is
 * called inside the change and must not use the store. */
void store_on_trouble(Store *s, void (*on_trouble)(int error, void *userdata), void *userdata);
/** @return that error until store_recover() succeeds, else 0. -ENOSPC: the disk is full and the
 * space reserved for new bundles and notes is used up; what is known can still be updated. */
int store_last_error(const Store *s);
/** Tries to write and to fill up the reserve, and ends the trouble if both succeed. @return 0 or
 * -errno */
int store_recover(Store *s);

/** Inserts a new bundle with its deliveries. -EEXIST when the id is there. */
int store_add(Store *s, const BundleRecord *b);
/** Writes all mutable fields of the bundle and of its deliveries: all but source, kind, path,
 * supplement_of, first_seen_usec. The deliveries become those of the record. 0 or STORE_E_NOT_FOUND
 */
int store_update(Store *s, const BundleRecord *b);
/** Writes only which failure a bundle is of, in whatever state it is. 0 or STORE_E_NOT_FOUND */
int store_set_failure_number(Store *s, const char *id, const char *key, uint32_t n);
/** Reads one. 0 or STORE_E_NOT_FOUND. *ret is to be bundle_record_done(). */
int store_get(Store *s, const char *id, BundleRecord *ret);
/** The newest base bundle (not a supplement) for a unit's path in a source. 0 or STORE_E_NOT_FOUND.
 */
int store_find_unit(Store *s, const char *source, const char *path, BundleRecord *ret);
/** Tells whether the bundle, or another bundle of the same unit, is pinned. A unit is the same by
 * device, inode and, if known, the time of its creation: with a bind mount or a symlink one unit
 * has two paths, and may belong to two sources. Supplements count.
 * @return 1, 0, or -errno */
int store_unit_is_pinned(Store *s, const BundleRecord *b);

/** Lists the units of a source that have ended, for its start: each path with the digest of its
 * newest base bundle in a final state, some thousand paths a call. The path is borrowed for the
 * call, which must not use the store. A negative return of on_unit ends the list and is returned.
 * @param after  the last path of the page before; NULL for the first one, and after the last; the
 * caller's
 * @return 0, -errno */
int store_list_ended(Store *s, const char *source, char **after,
                     int (*on_unit)(const char *path, uint64_t digest, void *userdata),
                     void *userdata);

typedef struct StoreFilter {
        int state;               /* BundleState, or -1 */
        bool active_only;        /* settling, ready, shipping */
        bool held_only;          /* with state delivered or evicted: whose links are still held */
        const char *source;      /* NULL = all */
        const char *subject;     /* those that are about this bundle, alone; NULL */
        const char *base;        /* the supplements of this bundle, alone; NULL */
        const char *failure_key; /* those of this failure, alone; NULL */
        uint32_t failure_n;
        const char *lacks; /* with state delivered and source: without a delivery to this one */
        const char *no_copy_at; /* with state delivered: no copy in a bucket, nor at these
                                   destinations, `/a/b/` */
        const char *after;      /* id: page after it, in order of (first_seen, id); NULL */
        unsigned limit;         /* 0 = all */
        /* Base bundles that ended before this, as did their supplements; 0 = whenever */
        uint64_t ended_before_usec;
        uint64_t surplus_usec; /* and those that were seen first until then */
} StoreFilter;
/** Calls on_bundle for each, oldest first. The record is the store's; a callback that wants to keep
 * it moves it out (`x = *b; *b = (BundleRecord){0}`). It may call the store. A negative return ends
 * the list and is returned, a positive one ends it with 0.
 * @return 0, STORE_E_NOT_FOUND when there is no `after` */
int store_list(Store *s, const StoreFilter *f, int (*on_bundle)(BundleRecord *b, void *userdata),
               void *userdata);

/** @return when the newest row but n was seen first; 0: there are no more than n */
uint64_t store_nth_seen_usec(Store *s, uint64_t n);
/** Deletes the row of a bundle whose unit is gone, or has a newer bundle, with those of its
 * supplements; store_counts() continues counting them.
 * @return 0; STORE_E_NOT_FOUND: not all have ended, some are held or pinned, or it is neither gone
 * nor replaced; -errno */
int store_drop_ended(Store *s, const char *id, bool is_gone);

/** @return how many of the delivered bundles of a source in these rows have no delivery to a
 * destination. Reads them. */
typedef struct StoreRows {
        int64_t from, to; /* from < row <= to */
} StoreRows;
uint64_t store_count_lacking(Store *s, const char *source, const char *destination, StoreRows rows);
int64_t store_last_row(Store *s); /* 0: there is none */

/** Number and bytes of bundles by state, those without a row any more too; kept by triggers, O(1)
 * whatever the number of rows. A bundle above 2^48 bytes counts as 2^48. */
typedef struct StoreCounts {
        uint64_t bundles[N_BUNDLE_STATES], bytes[N_BUNDLE_STATES];
        uint64_t discovered; /* rows ever added; counted independently of the states */
} StoreCounts;
void store_counts(Store *s, StoreCounts *ret);
/** @return discovered less the sum of the states: 0, or what was lost (> 0) or counted twice (< 0)
 */
int64_t store_counts_difference(const StoreCounts *c);

/** Counters that live as long as the state: `bytes_delivered`, `bytes_sent`, `bytes_read`,
 * `discard:symlink` … added to and read by name. `discovered` is the store's own. */
int store_counter_add(Store *s, const char *name, uint64_t n);
uint64_t store_counter(Store *s, const char *name);
/** Calls on_counter for each whose name begins with `prefix`, in order of name. The name is
 * borrowed for the call, which must not use the store. @return 0, -errno */
int store_counter_list(Store *s, const char *prefix,
                       void (*on_counter)(const char *name, uint64_t value, void *userdata),
                       void *userdata);

/** The members of a shipped bundle, as a set of fingerprints (for supplements), in any order.
 * Replaces. 0 or STORE_E_NOT_FOUND */
int store_set_prints(Store *s, const char *id, const uint64_t *prints, size_t n);
/** Union over the bundle `id` and all its supplements, sorted, each once. *ret is the
 * caller's; NULL with *ret_n = 0 when there are none. */
int store_get_prints(Store *s, const char *id, uint64_t **ret, size_t *ret_n);
/** As store_get_prints for the bundle alone, without its supplements. */
int store_get_own_prints(Store *s, const char *id, uint64_t **ret, size_t *ret_n);
/** The fingerprints that a supplement need not deliver again: those of its base and of the other
 * supplements. Its own are written as soon as one destination has it, and must not keep its members
 * from the other destinations. */
int store_get_earlier_prints(Store *s, const BundleRecord *b, uint64_t **ret, size_t *ret_n);

/* ---- the ledger: uploads underway, so that a crash neither causes a second copy nor leaves parts
 * at the destination. Each delivery has at most one upload, with its parts; other uploads are
 * queued to be aborted ---- */

typedef struct LedgerUpload {
        char *key;       /* of the object */
        char *upload_id; /* NULL = the intent only: CreateMultipartUpload may or may not have been
                            answered */
        uint8_t plan[SHA256_SIZE];
        char *packer;          /* packer_signature() */
        uint64_t created_usec; /* CLOCK_REALTIME */
} LedgerUpload;
void ledger_upload_done(LedgerUpload *u);

typedef struct LedgerPart {
        unsigned number; /* from 1 */
        uint64_t first_frame, n_frames;
        const uint32_t *frame_bytes;
        uint64_t bytes;
        uint8_t sha256[SHA256_SIZE];
        bool is_last;
        const void *state; /* of the writer, to continue after it */
        size_t state_bytes;
        const char *etag; /* NULL = not known to have arrived */
} LedgerPart;

/** Records the intent to create an upload. An earlier upload of this delivery is queued to be
 * aborted, and its parts are deleted. 0 or STORE_E_NOT_FOUND (no such bundle) */
int store_ledger_begin(Store *s, const char *bundle, const char *destination,
                       const LedgerUpload *u);
/** 0 or STORE_E_NOT_FOUND (no upload underway). -EINVAL for an empty id, which no server gives */
int store_ledger_set_upload_id(Store *s, const char *bundle, const char *destination,
                               const char *upload_id);
/** 0 and *ret (ledger_upload_done), or STORE_E_NOT_FOUND */
int store_ledger_get(Store *s, const char *bundle, const char *destination, LedgerUpload *ret);
/** Puts a part; one that is there (same number) is replaced, its ETag too. 0 or STORE_E_NOT_FOUND
 * (no upload underway); -EINVAL for number 0 */
int store_ledger_put_part(Store *s, const char *bundle, const char *destination,
                          const LedgerPart *p);
/** @param p  only number and etag count  @return 0 or STORE_E_NOT_FOUND (no upload underway, or it
 * has no such part) */
int store_ledger_set_etag(Store *s, const char *bundle, const char *destination,
                          const LedgerPart *p);
typedef struct LedgerReader {
        int (*on_part)(const LedgerPart *p, void *userdata);
        void *userdata;
} LedgerReader;
/** In order of number; the part is borrowed for the call, which may use the store. A negative
 * return of on_part ends it and is returned, a positive one ends it with 0. No upload underway: no
 * part. -EUCLEAN: an invalid row; start over. */
int store_ledger_parts(Store *s, const char *bundle, const char *destination,
                       const LedgerReader *reader);
/** Deletes the upload and its parts: it is complete, or was never started. It may be missing. */
int store_ledger_end(Store *s, const char *bundle, const char *destination);
/** Queues the upload to be aborted, with the age that it has: it will not be resumed. It may be
 * missing. */
int store_ledger_abandon(Store *s, const char *bundle, const char *destination);
/** At the start: does the same for the uploads of bundles in a final state, which a crash has left.
 */
int store_ledger_abandon_idle(Store *s);
/**
 * @return whether an upload underway, of any bundle to any destination, has this key and this id,
 * or this key and no id yet, because its CreateMultipartUpload may be underway. True also when the
 * database cannot be read, so that no upload is aborted that may be in use */
bool store_ledger_knows(Store *s, const char *key, const char *upload_id);

typedef struct LedgerAbort {
        int64_t id;
        const char *destination, *key;
        const char *upload_id; /* NULL = all uploads of that key */
        uint64_t since_usec;   /* CLOCK_REALTIME */
} LedgerAbort;
/** Queues an upload to be aborted, before the upload is created. The same upload again
 * (destination, key and upload_id, or key alone) replaces its row: the row keeps its age and gets a
 * new id, so that rows do not pile up, and a caller that has finished an old row does not delete
 * the new one.
 * @param a  borrowed; its id does not count; since_usec: now
 * @param ret_id  for store_abort_done(); may be NULL */
int store_abort_add(Store *s, const LedgerAbort *a, int64_t *ret_id);
int store_abort_done(Store *s, int64_t id); /* missing is fine */
/** The oldest one of a destination after an id; 0 = the oldest of all.
 * @return 0 and *ret (ledger_abort_done, also on an error), STORE_E_NOT_FOUND, -errno */
int store_abort_next(Store *s, const char *destination, int64_t after, LedgerAbort *ret);
/** Deletes what was queued before this time for destinations that are not configured.
 * @param destinations  that are: a newline, and each name with a newline after it */
int store_abort_drop_former(Store *s, const char *destinations, uint64_t before_usec);
void ledger_abort_done(LedgerAbort *a); /* frees key and upload_id; the destination is borrowed */
/** @return whether it is to be aborted, by its id or as one of its key; by any destination */
bool store_abort_knows(Store *s, const char *key, const char *upload_id);
/** @param destination  NULL: of all of them
 * @param is_id_known  without the keys that are only listed again, because the answer of their
 * CreateMultipartUpload was lost */
uint64_t store_abort_count(Store *s, const char *destination, bool is_id_known);

/* ---- the notes of hooks, and the processes that were seen at the devices. A note that cannot be
 * written is not accepted, and its hook puts it into the mailbox: -ENOSPC while new notes are
 * paused, see store_last_error() ---- */

#define STORE_NOTES_MAX 10000
#define STORE_NOTES_MAX_OF_OWNER 1000
#define STORE_NOTES_MAX_BYTES ((uint64_t)64 << 20) /* of documents, all together */
#define STORE_NOTES_MAX_BYTES_OF_OWNER ((uint64_t)16 << 20)
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

/** Adds one, durably (or with the transaction that is open). If its owner (uid and container) has
 * too many notes, the owner's oldest finished ones are deleted. If there are too many in all, those
 * of the owner with the most notes are deleted, or with the most bytes if bytes are short; of
 * several owners, of the one with the highest uid. Notes whose bundle is underway are deleted last.
 * @return 0; STORE_E_NOTE_TWICE: the id is there, and nothing was changed; STORE_E_NOTES_FULL: no
 * note can be deleted; -errno */
enum { STORE_E_NOTE_TWICE = 3, STORE_E_NOTES_FULL = 4 };
int store_note_add(Store *s, const StoredNote *n);
/** Updates the note's process, which was found after the note was added: pid and start_ticks of n,
 * and container if it is not NULL. 0 or STORE_E_NOT_FOUND */
int store_note_set_process(Store *s, const StoredNote *n);
/** Updates the note's unit, whose directory was created after the note was added: source,
 * unit_path, s3_prefix and refused of n, and container if it is not NULL. 0 or STORE_E_NOT_FOUND */
int store_note_set_unit(Store *s, const StoredNote *n);
/** Marks that the note's hook has ended. A second call changes nothing. 0 or STORE_E_NOT_FOUND */
int store_note_finish(Store *s, const char *id, uint64_t now_usec);

typedef struct StoredUnit { /* borrowed */
        const char *source, *path;
} StoredUnit;
/** The note is borrowed for the call, which may use the store. A negative return ends the list and
 * is returned, a positive one ends it with 0. */
typedef int (*StoreOnNote)(const StoredNote *n, void *userdata);

/** The notes about a unit, in the order in which they came. */
int store_note_list(Store *s, const StoredUnit *unit, StoreOnNote on_note, void *userdata);
/** The notes whose hook is not known to have ended. */
int store_note_list_open(Store *s, StoreOnNote on_note, void *userdata);

typedef struct StoredJob {
        pid_t pid; /* on this machine */
        uint64_t start_ticks;
        uid_t uid;
        uint64_t seen_usec; /* CLOCK_REALTIME */
        char *document;     /* JSON, filtered and redacted */
} StoredJob;
void stored_job_done(StoredJob *j);

/** Adds or replaces the row of this pid and start_ticks. Above STORE_JOBS_MAX, the rows are deleted
 * that were not seen for the longest time. */
int store_job_put(Store *s, const StoredJob *j);
/**
 * @param start_ticks  0 = the process that was seen last with this pid
 * @return 0 and *ret (stored_job_done), or STORE_E_NOT_FOUND */
int store_job_find(Store *s, pid_t pid, uint64_t start_ticks, StoredJob *ret);
/** The jobs of a user, the last seen first. @param ret  the caller's, at least `max` @return how
 * many (stored_job_done each), -errno */
int store_job_list(Store *s, uid_t uid, size_t max, StoredJob *ret);

/* ---- this node's claims with their decisions, so that a restart changes neither ---- */

#define STORE_FAILURES_MAX 8192

typedef struct StoredFailure { /* borrowed */
        const char *name;      /* the process of a claim */
        const char *key;
        uint32_t n;         /* of its failure; 0: none yet */
        uint64_t time_usec; /* CLOCK_REALTIME: when it was opened, or the last change of such a
                               claim */
        const char *document;
} StoredFailure;
/** Adds or replaces the claim of that name. */
int store_failure_put(Store *s, const StoredFailure *f);
/** In order of name. A negative return of on_failure, which must not change failures, ends it and
 * is returned. */
int store_failure_list(Store *s, int (*on_failure)(const StoredFailure *f, void *userdata),
                       void *userdata);
/** Deletes the claims of an earlier time, and the oldest above STORE_FAILURES_MAX. */
int store_failure_drop(Store *s, uint64_t before_usec);

/* ---- crash reports: which bundles still get one, and the signatures of earlier crashes ---- */

#define STORE_SIGNATURES_MAX 256
#define STORE_SIGNATURE_SIZE 65

/** Records that this bundle gets a report, also if the agent is killed before. A second call
 * changes nothing. 0 or STORE_E_NOT_FOUND */
int store_report_add(Store *s, const char *bundle_id);
/** In the order of the bundles. on_report may end the report that it is called for; a negative
 * return ends the list and is returned. */
int store_report_list_pending(Store *s, int (*on_report)(const char *bundle_id, void *userdata),
                              void *userdata);
typedef struct StoredSignature {
        char id[STORE_SIGNATURE_SIZE];
        uint64_t n, since_usec; /* crashes; CLOCK_REALTIME: the first one */
} StoredSignature;
/** Deletes that record: the report was made, or never will be. The record may be missing.
 * @param signature  its count is increased; NULL: the report has none. Above STORE_SIGNATURES_MAX,
 * those are deleted that were not seen for the longest time */
int store_report_end(Store *s, const char *bundle_id, const char *signature, uint64_t now_usec);
/** @param ret  STORE_SIGNATURES_MAX, the caller's  @return how many, -errno */
int store_signature_list(Store *s, StoredSignature *ret);
