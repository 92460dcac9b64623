/* How the database is changed: transactions, and what a change that fails means.
 *
 * Every change of the store goes through here. It is refused when the files at the database's path
 * are not those that were opened, since SQLite would go on writing to files that no later start
 * finds. It is a savepoint, so that it happens as a whole by itself and inside a transaction of the
 * caller. An error of SQLite becomes an errno; one that tells of the disk or of damage is trouble,
 * which is reported once, until store_recover() has proved that the database can be written.
 *
 * What the rows mean is up to the files that have the rows. */
#include "agent/store/store_private.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

/* ---- errors ---- */

int store_sqlite_errno(sqlite3 *db, int result) {
        int error = db ? sqlite3_system_errno(db) : 0;

        switch (result & 0xff) {
        case SQLITE_OK:
        case SQLITE_ROW:
        case SQLITE_DONE:
                return 0;
        case SQLITE_NOMEM:
                return -ENOMEM;
        case SQLITE_FULL:
                return -ENOSPC;
        case SQLITE_READONLY:
                return -EROFS;
        case SQLITE_PERM:
        case SQLITE_AUTH:
                return -EACCES;
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
                return -EBUSY;
        case SQLITE_CORRUPT:
        case SQLITE_NOTADB:
                return -EUCLEAN;
        case SQLITE_CONSTRAINT:
                return result == SQLITE_CONSTRAINT_UNIQUE || result == SQLITE_CONSTRAINT_PRIMARYKEY
                               ? -EEXIST
                               : -EINVAL;
        case SQLITE_TOOBIG:
                return -E2BIG;
        case SQLITE_CANTOPEN:
                return error > 0 ? -error : -EIO;
        case SQLITE_IOERR: /* SQLite calls only ENOSPC "full" by itself */
                if (result == SQLITE_IOERR_NOMEM)
                        return -ENOMEM;
                return error == ENOSPC || error == EDQUOT ? -ENOSPC
                       : error == EROFS                   ? -EROFS
                                                          : -EIO;
        default:
                return -EIO;
        }
}

int store_errno(Store *s, int result) {
        int r = store_sqlite_errno(s->db, result);
        if (r == -EUCLEAN && !s->is_damaged) { /* the next start checks, and puts it aside */
                s->is_damaged = true;
                (void)fs_write_file(s->dir_fd, STORE_DAMAGED, "", 0,
                                    0600); /* as much as it can do */
        }
        return r;
}

static bool is_trouble(int error) {
        return error == -ENOSPC || error == -EIO || error == -EROFS || error == -EUCLEAN ||
               error == -EBUSY || error == -ESTALE;
}

static int note_trouble(Store *s, int r) {
        if (s->trouble < 0 || !is_trouble(r))
                return r;
        s->trouble = r;
        if (s->on_trouble)
                s->on_trouble(r, s->on_trouble_userdata);
        return r;
}

void store_on_trouble(Store *s, void (*on_trouble)(int error, void *userdata), void *userdata) {
        s->on_trouble = on_trouble;
        s->on_trouble_userdata = userdata;
}

int store_last_error(const Store *s) {
        return s->trouble;
}

static int store_exec(Store *s, const char *sql) {
        return store_errno(s, sqlite3_exec(s->db, sql, NULL, NULL, NULL));
}

/* ---- is it still in place? ---- */

static int stat_file(const Store *s, size_t i, struct stat *ret) {
        char path[PATH_MAX];
        int n = snprintf(path, sizeof path, "%s%s", s->path, i == 0 ? "" : "-wal");
        if (n < 0 || (size_t)n >= sizeof path)
                return -ENAMETOOLONG;
        return fstatat(AT_FDCWD, path, ret, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

void store_remember_files(Store *s) {
        struct stat st;
        for (size_t i = 0; i < ELEMENTSOF(s->files); i++)
                if (stat_file(s, i, &st) == 0) {
                        s->files[i].dev = st.st_dev;
                        s->files[i].ino = st.st_ino;
                }
}

/* Where that is not known (EIO, EACCES) the change itself fails or succeeds. */
bool store_is_in_place(const Store *s) {
        struct stat st;
        for (size_t i = 0; i < ELEMENTSOF(s->files); i++) {
                int r = s->files[i].ino == 0 ? -EAGAIN : stat_file(s, i, &st);
                if (r == -ENOENT || r == -ENOTDIR ||
                    (r == 0 && (st.st_dev != s->files[i].dev || st.st_ino != s->files[i].ino)))
                        return false;
        }
        return true;
}

/* ---- transactions ---- */

int store_begin(Store *s) {
        int r;

        if (s->in_transaction)
                return -EALREADY;
        if (!store_is_in_place(s))
                return note_trouble(s, -ESTALE);
        store_reserve_update(s);
        r = store_exec(s, "BEGIN IMMEDIATE");
        if (r < 0)
                return note_trouble(s, r);
        s->in_transaction = true;
        s->transaction_error = 0;
        return 0;
}

static void roll_back(Store *s) {
        if (!sqlite3_get_autocommit(s->db))
                (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL,
                                   NULL); /* fails only where SQLite did it already */
}

int store_commit(Store *s) {
        int r = s->transaction_error;

        if (!s->in_transaction)
                return -EINVAL;
        if (r == 0)
                r = store_exec(s, "COMMIT");
        roll_back(s);
        s->in_transaction = false;
        s->transaction_error = 0;
        return note_trouble(s, r);
}

void store_rollback(Store *s) {
        roll_back(s);
        s->in_transaction = false;
        s->transaction_error = 0;
}

/* A savepoint is a transaction where there is none, so each change is whole by itself and inside a
 * bigger one. */
int store_savepoint(Store *s) {
        if (s->transaction_error < 0)
                return s->transaction_error;
        if (!s->in_transaction && !store_is_in_place(s))
                return note_trouble(s, -ESTALE);
        store_reserve_update(s);
        return note_trouble(s, store_exec(s, "SAVEPOINT change"));
}

int store_savepoint_end(Store *s, int r) {
        if (r == 0)
                r = store_exec(s, "RELEASE change");
        if (r == 0)
                return 0;
        if (!sqlite3_get_autocommit(s->db) &&
            store_exec(s, "ROLLBACK TO change; RELEASE change") < 0)
                roll_back(s);
        if (s->in_transaction && sqlite3_get_autocommit(s->db))
                s->transaction_error = r < 0 ? r : -EIO; /* what came before it is undone as well */
        return note_trouble(s, r);
}

int store_change(Store *s, Binder *b) {
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = run_change(s, b);
        if (r == 0 && sqlite3_changes(s->db) == 0)
                r = STORE_E_NOT_FOUND;
        return store_savepoint_end(s, r);
}

/* A write, as a proof. */
static int count_recovery(Store *s) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_COUNTER_ADD] };
        bind_text(&b, "store_troubles");
        bind_number(&b, 1);
        return store_change(s, &b);
}

int store_recover(Store *s) {
        if (!store_is_in_place(s))
                return -ESTALE;
        store_reserve_update(s);
        int r = store_reserve_check(s);
        if (r == 0)
                r = count_recovery(s);
        if (r == 0)
                s->trouble = 0;
        return r;
}
