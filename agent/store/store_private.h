/* What the files of the store share. Nobody else includes this. */
#pragma once

#include <errno.h>
#include <sqlite3.h>
#include <string.h>

#include "agent/store/store.h"
#include "lib/base/cleanup.h"

/* Statements that are prepared at open and kept. Preparing all of them also proves that the schema
 * is the one we know. */
typedef enum StoreStatement {
        STORE_BUNDLE_ADD,
        STORE_BUNDLE_UPDATE,
        STORE_BUNDLE_GET,
        STORE_BUNDLE_KEY,
        STORE_UNIT_FIND,
        STORE_UNIT_LIST,
        STORE_DELIVERY_PUT,
        STORE_DELIVERY_CUT,
        STORE_DELIVERY_LIST,
        STORE_COUNTS_LIST,
        STORE_COUNTER_ADD,
        STORE_COUNTER_GET,
        STORE_COUNTER_LIST,
        STORE_PRINTS_PUT,
        STORE_PRINTS_LIST,
        STORE_PRINTS_OTHERS,
        STORE_PRINTS_OWN,
        STORE_UPLOAD_FIND,
        STORE_UPLOAD_ADD,
        STORE_UPLOAD_SET_ID,
        STORE_UPLOAD_GET,
        STORE_UPLOAD_TO_ABORTS,
        STORE_UPLOAD_IDLE,
        STORE_UPLOAD_DROP,
        STORE_UPLOAD_KNOWN,
        STORE_PART_PUT,
        STORE_PART_SET_ETAG,
        STORE_PART_NEXT,
        STORE_ABORT_ADD,
        STORE_ABORT_DROP,
        STORE_ABORT_NEXT,
        STORE_ABORT_KNOWN,
        STORE_ABORT_COUNT,
        STORE_NOTE_ADD,
        STORE_NOTE_FIND,
        STORE_NOTE_COUNT,
        STORE_NOTE_MOST_NOTES,
        STORE_NOTE_MOST_BYTES,
        STORE_NOTE_DROP_OF,
        STORE_NOTE_SET_PROCESS,
        STORE_NOTE_SET_UNIT,
        STORE_NOTE_FINISH,
        STORE_NOTE_NEXT_OF_UNIT,
        STORE_NOTE_NEXT_OPEN,
        STORE_JOB_PUT,
        STORE_JOB_CUT,
        STORE_JOB_FIND,
        STORE_JOB_LIST,
        STORE_PAGE_COUNT,
        STORE_FREE_COUNT,
        STORE_RESERVE_COUNT,
        STORE_RESERVE_ADD,
        STORE_RESERVE_DROP,
        N_STORE_STATEMENTS,
} StoreStatement;

/* {all, one state, active, delivered and held, evicted and held} × {any source, one} × {from the
 * start, after an id} */
#define N_STORE_LISTS 20

struct Store {
        StoreCounts last_counts; /* that could be read */
        sqlite3 *db;
        char *path;
        int dir_fd, lock_fd;
        sqlite3_stmt *statements[N_STORE_STATEMENTS];
        sqlite3_stmt *lists[N_STORE_LISTS]; /* prepared when first asked for */
        bool in_transaction;                /* between store_begin and store_commit */
        int transaction_error;              /* what undid it, told by store_commit */
        int trouble;                        /* of the first change that failed */
        uint64_t max_pages;                 /* the database may not grow above */
        void (*on_trouble)(int error, void *userdata);
        void *on_trouble_userdata;
};

/* One step of the upgrade table: brings the schema from version `index` to `index + 1`. Inside a
 * transaction. */
typedef int (*StoreUpgrade)(sqlite3 *db);

/* schema.c: SQLite results here, not errnos, since opening must tell damage from trouble. */
void store_schema_be_careful(
        sqlite3 *db); /* first of all: nothing is written until the database is known to be ours */
int store_schema_configure(sqlite3 *db);
int store_schema_version(sqlite3 *db, int *ret);
int store_schema_upgrade(sqlite3 *db, const StoreUpgrade *steps, int n_steps);
int store_schema_bring_up(sqlite3 *db); /* all of it: version, settings, check, upgrade.
                                           SQLITE_NOTADB for a newer schema */
int store_schema_check(sqlite3 *db);    /* every page: SQLITE_CORRUPT */
int store_schema_prepare(Store *s);
int store_schema_prepare_list(Store *s, size_t which, const char *where); /* into s->lists[which] */

/* store.c */
int store_errno(Store *s, int result);
int store_savepoint(Store *s);
int store_savepoint_end(Store *s, int r);

/* Remembers an error of a change and reports it. @return it */
int store_note_trouble(Store *s, int r);

/* database.c, the reserve */
/* At open: makes the log and the reserve as large as there is space for. */
void store_reserve_open(Store *s);
/* Before a change: has the database take space from the disk, or else from the reserve. */
void store_reserve_update(Store *s);
/* @return whether a new bundle or note may be added: 0 or -ENOSPC */
int store_reserve_check(Store *s);

/* bundles.c: the row number behind an id. 0, STORE_E_NOT_FOUND, -errno */
int store_find_row(Store *s, const char *id, int64_t *ret_row, uint64_t *ret_first_seen_usec);

/* ledger.c: for statements whose only parameter is a row. 0 or -errno */
int store_run_on_row(Store *s, StoreStatement which, int64_t row);
/* The same for a key and the id of an upload. True as well when it cannot be asked. */
bool store_has_upload(Store *s, StoreStatement which, const char *key, const char *upload_id);

/* Ends a statement's run, so that it can be used again and holds no lock and no pointer of ours. */
static inline void store_reset(sqlite3_stmt *const *st) {
        if (*st) {
                (void)sqlite3_reset(*st); /* repeats the error of the step, which was looked at */
                (void)sqlite3_clear_bindings(*st);
        }
}
#define _cleanup_reset_ _cleanup_(store_reset)

/* What goes into a statement's parameters and comes out of its columns, one after the other. */

/* Binding: one call a parameter, the first failure is kept. Strings and buffers are borrowed until
 * the statement is reset. */

typedef struct Binder {
        sqlite3_stmt *statement;
        int column, result;
} Binder;

static inline void bind_number(Binder *b, uint64_t v) {
        if (b->result == SQLITE_OK) /* all 64 bits are kept: read back by the same cast */
                b->result = sqlite3_bind_int64(b->statement, ++b->column, (int64_t)v);
}

static inline void bind_text(Binder *b, const char *s) {
        if (b->result == SQLITE_OK)
                b->result = sqlite3_bind_text(b->statement, ++b->column, s, -1, SQLITE_STATIC);
}

static inline void bind_blob(Binder *b, const void *data, size_t n) {
        if (b->result == SQLITE_OK) /* a NULL pointer would be NULL, not an empty blob */
                b->result = sqlite3_bind_blob64(b->statement, ++b->column, data ? data : "", n,
                                                SQLITE_STATIC);
}

/* For what may hold a path: any bytes. */
static inline void bind_bytes(Binder *b, const char *s) {
        if (s)
                bind_blob(b, s, strlen(s));
        else if (b->result == SQLITE_OK)
                b->result = sqlite3_bind_null(b->statement, ++b->column);
}

/* Runs what was bound to its end. @return 0 or -errno */
static inline int bind_and_run(Store *s, Binder *b) {
        return store_errno(s, b->result == SQLITE_OK ? sqlite3_step(b->statement) : b->result);
}

/* Reading: the first failure is kept, and what is read after it is zero */

typedef struct Reader {
        sqlite3_stmt *statement;
        int column, error;
} Reader;

static inline uint64_t read_number(Reader *r) {
        return (uint64_t)sqlite3_column_int64(r->statement, r->column++);
}

/* @return a copy of the caller's, NULL for NULL or a failure */
static inline char *read_string(Reader *r, bool may_be_null) {
        int column = r->column++;
        if (r->error < 0)
                return NULL;
        if (sqlite3_column_type(r->statement, column) == SQLITE_NULL) {
                if (!may_be_null)
                        r->error = -EUCLEAN;
                return NULL;
        }
        const char *s = sqlite3_column_blob(r->statement, column); /* NULL for an empty one */
        int n = sqlite3_column_bytes(r->statement, column);
        char *copy = strndup(s ? s : "", (size_t)n);
        if (!copy)
                r->error = -ENOMEM;
        return copy;
}

/* A blob of exactly `size` bytes. */
static inline void read_fixed(Reader *r, void *ret, size_t size) {
        int column = r->column++;
        const void *data = sqlite3_column_blob(r->statement, column);
        if (r->error < 0)
                return;
        if ((size_t)sqlite3_column_bytes(r->statement, column) != size)
                r->error = -EUCLEAN;
        else if (!data)
                r->error = -ENOMEM;
        else
                memcpy(ret, data, size);
}

/* @return a copy of the caller's, never NULL but for a failure */
static inline void *read_blob(Reader *r, size_t *ret_size) {
        int column = r->column++;
        const void *data = sqlite3_column_blob(r->statement, column);
        size_t n = (size_t)sqlite3_column_bytes(r->statement, column);
        if (r->error < 0)
                return NULL;
        void *copy = data || n == 0 ? malloc(n > 0 ? n : 1) : NULL;
        if (!copy) {
                r->error = -ENOMEM;
                return NULL;
        }
        if (n > 0)
                memcpy(copy, data, n);
        *ret_size = n;
        return copy;
}
