/* The durable state: bundles and their deliveries in SQLite. The one door to it. Every change is
 * committed (synchronous=FULL) before the call returns, unless it stands between store_begin and
 * store_commit. Runs on the loop. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/neuron/record.h"

#define STORE_SCHEMA_VERSION 6

typedef struct Store Store;

/** Opens or makes `<state_dir>/state.db` (0600) and takes the directory's lock (`<state_dir>/lock`,
 * flock). A database that is corrupt or of a newer schema is put aside as `state.db.corrupt-<time>`
 * (with -wal and -shm) and a new one is begun: *ret_put_aside gets its name (the caller's), to be
 * told. An older schema is upgraded in one transaction. A database that is there is opened on a
 * full disk, too: see store_last_error().
 * @param ret_put_aside  NULL when nothing was; may be NULL itself
 * @return 0; STORE_E_LOCKED and *ret_pid of the holder (0 = unknown); -errno */
enum { STORE_E_LOCKED = 1, STORE_E_NOT_FOUND = 2 };
int store_open(Store **ret, const char *state_dir, char **ret_put_aside, pid_t *ret_pid);
Store *store_close(Store *s);
/** For a database whose rows turn out to be none of ours (-EUCLEAN of a list): puts it aside and
 * begins a new one under the same lock.
 * @param ret_put_aside  its name, the caller's  @return 0 or -errno: then the store can only be
 * closed */
int store_replace_database(Store *s, char **ret_put_aside);

/** What stands between the two is committed as one, or not at all. -EALREADY inside one, -EBUSY
 * when another process writes. A call that fails in between undoes itself only; where SQLite had to
 * undo more (disk full, I/O error), all further changes fail with that error and store_commit
 * returns it, with nothing changed. */
int store_begin(Store *s);
int store_commit(Store *s);
void store_rollback(Store *s); /* undoes what stands after store_begin */

/* All changes: -ENOSPC, -EIO, -EROFS: nothing was changed, and the store can be used further.
 * -EBUSY: another process (a person's sqlite3) holds the database; try again. -EUCLEAN: the
 * database is damaged; the next store_open puts it aside. */

/** Has on_trouble called when a change fails because the state directory is full, fails, is
 * read-only or damaged: once, and again only after store_recover(). It is called inside the change
 * and must not use the store. */
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
/** Reads one. 0 or STORE_E_NOT_FOUND. *ret is to be bundle_record_done(). */
int store_get(Store *s, const char *id, BundleRecord *ret);
/** The newest base bundle (not a supplement) for a unit's path in a source. 0 or STORE_E_NOT_FOUND.
 */
int store_find_unit(Store *s, const char *source, const char *path, BundleRecord *ret);

/** What a source wants to know of its units at a start, quickly: for each base bundle in a final
 * state its path and digest; of several with one path the newest comes last. The path is borrowed
 * for the call, which must not use the store. A negative return of on_unit ends the list and is
 * returned. @return 0, -errno */
int store_list_ended(Store *s, const char *source,
                     int (*on_unit)(const char *path, uint64_t digest, void *userdata),
                     void *userdata);

typedef struct StoreFilter {
        int state;          /* BundleState, or -1 */
        bool active_only;   /* settling, ready, shipping */
        bool held_only;     /* with state delivered or evicted: whose links are still held */
        const char *source; /* NULL = all */
        const char *after;  /* id: page after it, in order of (first_seen, id); NULL */
        unsigned limit;     /* 0 = all */
} StoreFilter;
/** Calls on_bundle for each, oldest first. The record is the store's; a callback that wants to keep
 * it moves it out (`x = *b; *b = (BundleRecord){0}`). It may call the store. A negative return ends
 * the list and is returned, a positive one ends it with 0.
 * @return 0, STORE_E_NOT_FOUND when there is no `after` */
int store_list(Store *s, const StoreFilter *f, int (*on_bundle)(BundleRecord *b, void *userdata),
               void *userdata);

/** Number and bytes of bundles by state; kept by triggers, O(1) whatever the number of rows. A
 * bundle above 2^48 bytes counts as 2^48. */
typedef struct StoreCounts {
        uint64_t bundles[N_BUNDLE_STATES], bytes[N_BUNDLE_STATES];
        uint64_t discovered; /* rows ever added: counted for itself */
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
/** For a supplement: what its base and the other supplements have brought. Its own prints are there
 * as soon as one destination has it, and must not keep it from the others. */
int store_get_earlier_prints(Store *s, const BundleRecord *b, uint64_t **ret, size_t *ret_n);
