/* SQL by an open store's own connection, since it locks its database: for what a copy of the files
 * does not show, and to damage what it has. */
#pragma once

#include <stdio.h>

#include "agent/store/store_private.h"
#include "tests/harness/unit.h"

typedef struct SqlText {
        char text[65536];
        size_t n;
} SqlText;

static inline int sql_add_row(void *userdata, int n, char **values, char **names) {
        SqlText *t = userdata;
        (void)names;
        for (int i = 0; i < n; i++)
                t->n += (size_t)snprintf(t->text + t->n, sizeof t->text - t->n, "%s%s",
                                         i > 0      ? "|"
                                         : t->n > 0 ? "\n"
                                                    : "",
                                         values[i] ? values[i] : "");
        assert_true(t->n < sizeof t->text);
        return 0;
}

/* @return as the sqlite3 program prints it, without the last newline; the caller's */
static inline char *sql_in_store(Store *s, const char *sql) {
        SqlText t = { .n = 0 };
        assert_int_equal(sqlite3_exec(s->db, sql, sql_add_row, &t, NULL), SQLITE_OK);
        char *copy = strdup(t.text);
        assert_non_null(copy);
        return copy;
}

static inline void assert_sql_in_store(Store *s, const char *sql, const char *expected) {
        char *text = sql_in_store(s, sql);
        assert_string_equal(text, expected);
        free(text);
}
