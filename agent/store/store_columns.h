/* What goes into a statement's parameters and comes out of its columns, one after the other. For the files of the store alone. */
#pragma once

#include <errno.h>
#include <string.h>

#include "agent/store/store_private.h"
#include "lib/base/cleanup.h"

/* Binding: one call a parameter, the first failure is kept. Strings and buffers are borrowed until the statement is reset. */

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
