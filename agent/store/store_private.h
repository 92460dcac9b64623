/* The struct of the store, its statements, and what its files offer each other. Only they include
 * it. */
#pragma once

#include <errno.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/types.h>

#include "agent/store/store.h"
#include "lib/base/cleanup.h"

/* Statements that are prepared at open and kept. Preparing all of them also proves that the schema
 * is the one we know. */
typedef enum StoreStatement {
        STORE_BUNDLE_ADD,
        STORE_BUNDLE_UPDATE,
        STORE_BUNDLE_NUMBER,
        STORE_BUNDLE_GET,
        STORE_UNIT_FIND,
        STORE_UNIT_IS_PINNED,
        STORE_UNIT_LIST,
        STORE_NTH_SEEN,
        STORE_FORMER_COUNT,
        STORE_FORMER_DROP,
        STORE_COUNT_LACKING,
        STORE_LAST_ROW,
        STORE_DELIVERY_PUT,
        STORE_DELIVERY_CUT,
        STORE_DELIVERY_LIST,
        STORE_COUNTS_LIST,
        STORE_COUNTER_ADD,
        STORE_COUNTER_GET,
        STORE_COUNTER_LIST,
        STORE_PRINTS_PUT,
        STORE_PRINTS_FAMILY,
        STORE_PRINTS_OWN,
        STORE_UPLOAD_ADD,
        STORE_UPLOAD_SET_ID,
        STORE_UPLOAD_GET,
        STORE_UPLOAD_TO_ABORTS,
        STORE_UPLOAD_DROP,
        STORE_IDLE_EXISTS,
        STORE_IDLE_TO_ABORTS,
        STORE_IDLE_DROP,
        STORE_UPLOAD_KNOWN,
        STORE_PART_PUT,
        STORE_PART_SET_ETAG,
        STORE_PART_NEXT,
        STORE_ABORT_ADD,
        STORE_ABORT_DROP,
        STORE_ABORT_NEXT,
        STORE_ABORT_KNOWN,
        STORE_ABORT_COUNT,
        STORE_ABORT_DROP_FORMER,
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
        STORE_FAILURE_PUT,
        STORE_FAILURE_LIST,
        STORE_FAILURE_DROP,
        STORE_REPORT_ADD,
        STORE_REPORT_LIST,
        STORE_REPORT_DROP,
        STORE_SIGNATURE_ADD,
        STORE_SIGNATURE_CUT,
        STORE_SIGNATURE_LIST,
        STORE_PAGE_COUNT,
        STORE_FREE_COUNT,
        STORE_RESERVE_COUNT,
        STORE_RESERVE_ADD,
        STORE_RESERVE_DROP,
        N_STORE_STATEMENTS,
} StoreStatement;

struct Store {
        StoreCounts last_counts; /* that could be read */
        sqlite3 *db;
        char *path;
        int dir_fd, lock_fd;
        bool is_to_be_checked; /* page by page, when it is opened */
        bool is_damaged;
        sqlite3_stmt *statements[N_STORE_STATEMENTS];
        bool in_transaction;   /* between store_begin and store_commit */
        int transaction_error; /* what undid it; store_commit returns it */
        int trouble;           /* of the first change that failed */
        uint64_t max_pages;    /* max_page_count: the database does not grow above it */
        struct {
                dev_t dev;
                ino_t ino; /* 0: was not there */
        } files[2];        /* the database and its log */
        void (*on_trouble)(int error, void *userdata);
        void *on_trouble_userdata;
};

#define LACKS(destination)                                                                         \
        "NOT EXISTS (SELECT 1 FROM deliveries WHERE bundle = row AND destination = " destination ")"
#define LACKS_COPY(names)                                                                          \
        "NOT EXISTS (SELECT 1 FROM deliveries WHERE bundle = row AND ("                            \
        "substr(object, 1, 5) = x'73333a2f2f' OR instr(" names ", '/' || destination || '/')))"

/* The final states that need no decision of an operator. */
#define STORE_OVER "('delivered', 'evicted', 'cancelled', 'vanished')"

/* Bytes of a row as they are summed: above 2^48 they count as 2^48, so that a few absurd sparse
 * files cannot overflow a sum. */
#define STORE_CAPPED(row)                                                                          \
        "CASE WHEN " row ".bytes BETWEEN 0 AND 281474976710656 THEN " row                          \
        ".bytes ELSE 281474976710656 END"

/* ---- schema.c and statements.c return SQLite's results, not errnos, since opening has to tell
 * damage from an I/O error ---- */

#define STORE_SCHEMA_IS_ANOTHER (-1) /* no result of SQLite; nothing was written */
/* All of it: settings, the schema's number, the check, the tables of a new database, the
 * statements. */
int store_schema_open(Store *s);

int store_statements_prepare(Store *s);
void store_statements_finalize(Store *s);
/* @param ret  of a list of bundles, the caller's */
int store_statements_prepare_list(Store *s, const char *where, sqlite3_stmt **ret);

/* ---- reserve.c ---- */

void store_reserve_open(Store *s);
/* Before a change: makes room ahead, fills the reserve up, or uses it. */
void store_reserve_update(Store *s);
/* @return whether a new bundle or note may be added: 0 or -ENOSPC */
int store_reserve_check(Store *s);

/* ---- transaction.c ---- */

#define STORE_DAMAGED "state.db-damaged" /* a file: the next start checks every page */

int store_sqlite_errno(sqlite3 *db, int result);
int store_errno(Store *s, int result);
/* From now on store_is_in_place() compares with the files that are there. */
void store_remember_files(Store *s);
int store_savepoint(Store *s);
int store_savepoint_end(Store *s, int r);
struct Binder;
/* Runs a change that was bound, in a savepoint of its own. @return 0, STORE_E_NOT_FOUND when it
 * changed no row, -errno */
int store_change(Store *s, struct Binder *b);

/* Ends a statement's run, so that it can be used again and holds no lock and no pointer of ours. */
static inline void store_reset(sqlite3_stmt *const *st) {
        if (*st) {
                (void)sqlite3_reset(*st); /* repeats the error of the step, which was handled */
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

static inline void binder_done(Binder *b) {
        store_reset(&b->statement);
}
#define _cleanup_binder_ _cleanup_(binder_done)

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

/* Binds a text that may hold any bytes, such as a path; NULL is NULL. */
static inline void bind_bytes(Binder *b, const char *s) {
        if (s)
                bind_blob(b, s, strlen(s));
        else if (b->result == SQLITE_OK)
                b->result = sqlite3_bind_null(b->statement, ++b->column);
}

/* Runs what was bound to its next row, or to its end. @return 0, STORE_E_NOT_FOUND at the end,
 * -errno */
static inline int next_row(Store *s, Binder *b) {
        int r = b->result == SQLITE_OK ? sqlite3_step(b->statement) : b->result;
        return r == SQLITE_ROW ? 0 : r == SQLITE_DONE ? STORE_E_NOT_FOUND : store_errno(s, r);
}

/* Runs a change that was bound to its end. @return 0 or -errno */
static inline int run_change(Store *s, Binder *b) {
        int r = next_row(s, b);
        return r == STORE_E_NOT_FOUND ? 0 : r;
}

/* Runs a change whose only parameter is this. @return 0 or -errno */
static inline int run_with_number(Store *s, StoreStatement which, uint64_t v) {
        _cleanup_binder_ Binder b = { .statement = s->statements[which] };
        bind_number(&b, v);
        return run_change(s, &b);
}

/* Reading: the first failure is kept, and what is read after it is zero */

typedef struct ColumnReader {
        sqlite3_stmt *statement;
        int column, error;
} ColumnReader;

static inline uint64_t read_number(ColumnReader *r) {
        return (uint64_t)sqlite3_column_int64(r->statement, r->column++);
}

/* @return a copy of the caller's, NULL for NULL or a failure */
static inline char *read_string(ColumnReader *r, bool may_be_null) {
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
static inline void read_fixed(ColumnReader *r, void *ret, size_t size) {
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
static inline void *read_blob(ColumnReader *r, size_t *ret_size) {
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
