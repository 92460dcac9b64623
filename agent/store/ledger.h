/* What is known of uploads underway, so that a crash leads to no second copy and leaves nothing
 * behind at the destination: for each delivery at most one upload with its parts, and the uploads
 * that are to be aborted. Rows in the store; the rules are those of store.h. */
#pragma once

#include "agent/store/store.h"
#include "lib/base/digest.h"

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

/** The intent. An upload that was there before goes to the uploads to be aborted, its parts are
 * dropped. 0 or STORE_E_NOT_FOUND (no such bundle) */
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
/** The upload is complete or was never begun: it and its parts are dropped. Missing is fine. */
int store_ledger_end(Store *s, const char *bundle, const char *destination);
/** It will not be resumed: moves it to the uploads to be aborted, since its created_usec. Missing
 * is fine. */
int store_ledger_abandon(Store *s, const char *bundle, const char *destination);
/** At the start: the same for what a crash left of bundles in a final state. */
int store_ledger_abandon_idle(Store *s);
/** @return whether an upload underway, of any bundle to any destination, has this key and this id,
 * or this key and no id yet: its Create may just be answered. True as well when the database cannot
 * be read: what may be underway is not aborted */
bool store_ledger_knows(Store *s, const char *key, const char *upload_id);

typedef struct LedgerAbort {
        int64_t id;
        const char *destination, *key;
        const char *upload_id; /* NULL = all uploads of that key */
        uint64_t since_usec;   /* CLOCK_REALTIME */
} LedgerAbort;
/** Adds one before anything is created that may have to be aborted. The same one again
 * (destination, key, upload_id, or key alone) replaces the earlier one under a new id and keeps its
 * age, so that rows do not pile up and nobody removes what was added after the one he finished.
 * @param a  borrowed; its id does not count; since_usec: now
 * @param ret_id  for store_abort_done(); may be NULL */
int store_abort_add(Store *s, const LedgerAbort *a, int64_t *ret_id);
int store_abort_done(Store *s, int64_t id); /* missing is fine */
/** The oldest one of a destination after an id; 0 = the oldest of all.
 * @return 0 and *ret (ledger_abort_done, also on an error), STORE_E_NOT_FOUND, -errno */
int store_abort_next(Store *s, const char *destination, int64_t after, LedgerAbort *ret);
void ledger_abort_done(LedgerAbort *a); /* frees key and upload_id; the destination is borrowed */
/** @return whether it is to be aborted, by its id or as one of its key; by any destination */
bool store_abort_knows(Store *s, const char *key, const char *upload_id);
uint64_t store_abort_count(Store *s); /* of all destinations */
