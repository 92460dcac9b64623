/* The state directory: its lock, opening the database in it or putting a broken one aside,
 * transactions, the reserve for a full disk, and counters. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/store/store.h"
#include "agent/store/store_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define DATABASE "state.db"
#define PUT_ASIDE_TRIES 1000
#define PREFETCH_STEP ((off_t)MIB)
/* A larger database is not read as a whole before the agent starts, unless damage was met. */
#define CHECKED_MAX ((off_t)(32 * MIB))
#define DAMAGED "state.db-damaged"
/* What SQLite may keep beside the database; it goes where the database goes. */
static const char *const suffixes[] = { "", "-wal", "-shm", "-journal" };

DEFINE_CLEANUP(Store, store_close);

static int sqlite_errno(sqlite3 *db, int result) {
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
        int r = sqlite_errno(s->db, result);
        if (r == -EUCLEAN && !s->is_damaged) { /* the next start checks, and puts it aside */
                s->is_damaged = true;
                (void)fs_write_file(s->dir_fd, DAMAGED, "", 0, 0600); /* as much as it can do */
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

/* The directory and its lock */

static int open_state_dir(const char *path, int *ret) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
                if (errno != ENOENT)
                        return -errno;
                int r = fs_mkdir_p(path, 0711);
                if (r < 0)
                        return r;
                fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                if (fd < 0 || fchmod(fd, 0711) < 0) /* whatever the umask said */
                        return -errno;
        }
        *ret = TAKE_FD(fd);
        return 0;
}

static pid_t read_pid(int fd) {
        char text[32];
        uint64_t pid = 0;
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        if (n <= 0)
                return 0;
        text[n] = '\0';
        text[strcspn(text, "\n")] = '\0';
        return parse_u64_range(text, 1, INT32_MAX, &pid) < 0 ? 0 : (pid_t)pid;
}

/* Where there is no room for the number, there is none. */
static void write_pid(int fd) {
        char text[32];
        int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
        if (pwrite(fd, text, (size_t)n, 0) != n || ftruncate(fd, n) < 0)
                (void)!ftruncate(fd, 0); /* at least not another one's */
}

/* The locks are the two flocks; the number in the file is for people. The directory's holds also
 * where there is no room for the file. */
/* The second kind of lock names its holder to a probe (collectors/supervisor.c), which serves no
 * other process. */
static void name_holder(int fd) {
        struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
        (void)fcntl(fd, F_SETLK,
                    &whole); /* refused: no probe serves this agent, and that is said */
}

static int acquire_lock(Store *s, pid_t *ret_pid) {
        int taken = flock(s->dir_fd, LOCK_EX | LOCK_NB), error = errno;

        s->lock_fd = openat(s->dir_fd, "lock",
                            O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (s->lock_fd < 0 && errno != ENOSPC && errno != EDQUOT)
                return -errno;
        if (taken == 0 && s->lock_fd >= 0) {
                taken = flock(s->lock_fd, LOCK_EX | LOCK_NB);
                error = errno;
        }
        if (taken < 0) {
                if (error != EWOULDBLOCK)
                        return -error;
                *ret_pid = s->lock_fd >= 0 ? read_pid(s->lock_fd) : 0;
                return STORE_E_LOCKED;
        }
        if (s->lock_fd >= 0) {
                write_pid(s->lock_fd);
                name_holder(s->lock_fd);
        }
        return 0;
}

/* Space that the database keeps for a full disk, so that bookkeeping continues on it.
 *
 * In WAL mode a commit writes the log, and a checkpoint writes the database file. Neither needs
 * space on the disk if both only write over blocks that they have:
 * - the log is made LOG_BYTES long once and never truncated (journal_size_limit=-1, PERSIST_WAL).
 *   After a checkpoint at 256 pages SQLite writes it from its beginning again;
 * - the database may use only pages for which the file has blocks. Before each change the file is
 *   extended AHEAD_PAGES beyond its pages, and max_page_count is set to that. On a full disk it is
 * the number of pages there are: without this limit a commit would fit into the log and its
 * checkpoint would fail for ever;
 * - the table `reserve` holds rows of zeros. On a full disk they are deleted one by one, and their
 *   pages become free pages of the database.
 * File systems that copy on write (btrfs, ZFS) need space even to write over a block. There the
 * first change that fails pauses the intake. */

#define PAGE_BYTES 4096
#define CHUNK_BYTES ((int)MIB) /* the file's length is a multiple of it */
#define AHEAD_PAGES 512
#define LOG_BYTES (4 * MIB)
/* 1,000 bundles take 0.8 MiB with one destination, 1.3 MiB with three, and 2 KiB more for each hook
 * note (measured with 400 bundles: 808 bytes each for rows, indexes and fingerprints). The free
 * pages of the last row are left to the deliveries: new bundles and notes pause before. */
#define RESERVE_ROWS 4
#define ROW_BYTES ((uint64_t)MIB)
#define FREE_PAGES_MIN 256
/* @return 0 when it cannot be read: then there is nothing to count on */
static uint64_t query_number(Store *s, StoreStatement which) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[which];
        return sqlite3_step(st) == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(st, 0) : 0;
}

static void set_max_pages(Store *s, uint64_t n) {
        char sql[64];

        if (n == s->max_pages)
                return;
        (void)snprintf(sql, sizeof sql, "PRAGMA max_page_count=%llu", (unsigned long long)n);
        if (sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK)
                s->max_pages = n;
}

/* Has the file system allocate blocks for pages to come. @return whether it did */
static bool extend_file(Store *s) {
        uint64_t n_pages = query_number(s, STORE_PAGE_COUNT), chunk = CHUNK_BYTES / PAGE_BYTES;
        uint64_t target = (n_pages + AHEAD_PAGES + chunk - 1) / chunk * chunk;
        sqlite3_int64 bytes = (sqlite3_int64)(target * PAGE_BYTES);
        /* posix_fallocate(3), or a byte written to each block; only an fstat(2) when it has them */
        bool is_extended =
                sqlite3_file_control(s->db, "main", SQLITE_FCNTL_SIZE_HINT, &bytes) == SQLITE_OK;

        set_max_pages(s, is_extended ? target : n_pages);
        return is_extended;
}

static bool add_row(Store *s) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_RESERVE_ADD];
        return sqlite3_bind_int64(st, 1, ROW_BYTES) == SQLITE_OK && sqlite3_step(st) == SQLITE_DONE;
}

static void drop_row(Store *s) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_RESERVE_DROP];
        if (sqlite3_step(st) == SQLITE_DONE && sqlite3_changes(s->db) > 0)
                log_warning(0, "the state directory is full: using the space reserved in the "
                               "database; free space on its disk");
}

static void reserve_update(Store *s) {
        bool is_extended = extend_file(s);

        if (!is_extended && query_number(s, STORE_FREE_COUNT) < FREE_PAGES_MIN)
                drop_row(s);
        else if (sqlite3_get_autocommit(s->db)) /* a change that is rolled back fills up nothing */
                while (is_extended && query_number(s, STORE_RESERVE_COUNT) < RESERVE_ROWS &&
                       add_row(s))
                        is_extended = extend_file(s);
}

int store_reserve_check(Store *s) {
        bool is_extended = s->max_pages > query_number(s, STORE_PAGE_COUNT);
        return is_extended || query_number(s, STORE_RESERVE_COUNT) > 0 ? 0 : -ENOSPC;
}

static void reserve_open(Store *s) {
        int persist = 1, chunk = CHUNK_BYTES;

        /* Both are known to SQLite's own file system layer and cannot fail there. */
        (void)sqlite3_file_control(s->db, "main", SQLITE_FCNTL_PERSIST_WAL, &persist);
        (void)sqlite3_file_control(s->db, "main", SQLITE_FCNTL_CHUNK_SIZE, &chunk);
        s->max_pages = 0;
        /* SQLite locks the database and the index, never the log: this close(2) releases nothing.
         */
        _cleanup_close_ int fd =
                openat(s->dir_fd, "state.db-wal", O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0)
                (void)posix_fallocate(fd, 0, LOG_BYTES); /* else it grows as long as it can */
        reserve_update(s);
}

/* Whether it is still there */

static int stat_file(const Store *s, size_t i, struct stat *ret) {
        char path[PATH_MAX];
        int n = snprintf(path, sizeof path, "%s%s", s->path, suffixes[i]);
        if (n < 0 || (size_t)n >= sizeof path)
                return -ENAMETOOLONG;
        return fstatat(AT_FDCWD, path, ret, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static void remember_files(Store *s) {
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

/* Opening */

static void store_finalize(Store *s) {
        for (size_t i = 0; i < N_STORE_STATEMENTS; i++) {
                (void)sqlite3_finalize(s->statements[i]); /* repeats an error that was looked at */
                s->statements[i] = NULL;
        }
        (void)sqlite3_close(s->db); /* SQLITE_BUSY only with statements left, and there are none */
        s->db = NULL;
}

/* Makes the file 0600 before SQLite would make it by the umask; -wal and -shm follow its mode.
 * @param ret_foreign  something that is no regular file is in the way, and nothing was done */
static int prepare_file(Store *s, bool *ret_foreign) {
        struct stat st;

        *ret_foreign = false;
        for (size_t i = 0; i < ELEMENTSOF(suffixes); i++) {
                char name[32];
                (void)snprintf(name, sizeof name, DATABASE "%s", suffixes[i]);
                if (fstatat(s->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
                        if (!S_ISREG(st.st_mode))
                                *ret_foreign = true;
                } else if (errno != ENOENT)
                        return -errno;
        }
        if (*ret_foreign)
                return 0;

        _cleanup_close_ int fd = openat(
                s->dir_fd, DATABASE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if ((st.st_mode & 07777) != 0600 && fchmod(fd, 0600) < 0)
                return -errno;
        /* Every page is about to be checked, in the order of the trees: read from a cold disk in
         * the order of the file, that is ten times as fast. The kernel takes a few MiB a call. */
        s->is_damaged = false;
        s->is_to_be_checked = unlinkat(s->dir_fd, DAMAGED, 0) == 0 || st.st_size <= CHECKED_MAX;
        for (off_t at = 0; s->is_to_be_checked && at < st.st_size; at += PREFETCH_STEP)
                (void)posix_fadvise(fd, at, PREFETCH_STEP, POSIX_FADV_WILLNEED); /* only a hint */
        return 0;
}

/* Whether a result at open says that this is no database of ours, in contrast to a disk that fails
 * or is full. */
static bool is_damage(int result) {
        if (result == STORE_SCHEMA_IS_NEWER)
                return false;
        switch (result & 0xff) {
        case SQLITE_CORRUPT:
        case SQLITE_NOTADB:
        case SQLITE_FORMAT:
        case SQLITE_ERROR:      /* a table or column that the statements need is not there */
        case SQLITE_CONSTRAINT: /* an upgrade met rows that cannot be */
        case SQLITE_MISMATCH:
                return true;
        default:
                return false;
        }
}

static int on_active(BundleRecord *b, void *userdata) {
        (void)b, (void)userdata;
        return 0;
}

/* Invalid rows in a database that SQLite finds intact: something else has written to it. One that
 * is active would be missed. @return -EUCLEAN, -errno */
static int check_active(Store *s) {
        return store_list(s, &(StoreFilter){ .state = -1, .active_only = true }, on_active, NULL);
}

/* *ret_damaged: closed again, nothing was written to it. */
static int open_database(Store *s, bool *ret_damaged) {
        int r = prepare_file(s, ret_damaged);
        if (r < 0 || *ret_damaged)
                return r;

        r = sqlite3_open_v2(s->path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
        if (r == SQLITE_OK)
                r = store_schema_open(s);
        *ret_damaged = r != SQLITE_OK && is_damage(r);
        if (r != SQLITE_OK)
                r = r == STORE_SCHEMA_IS_NEWER ? STORE_E_NEWER : sqlite_errno(s->db, r);
        else {
                r = check_active(s);
                *ret_damaged = r == -EUCLEAN;
        }
        if (r == 0)
                reserve_open(s);
        else
                store_finalize(s);
        return *ret_damaged ? 0 : r;
}

static int put_aside(Store *s, char **ret) {
        char when[CLOCK_ISO_SIZE], from[32], to[128];

        (void)clock_format_compact(when, clock_realtime_usec(), 'T');
        for (unsigned i = 1; i <= PUT_ASIDE_TRIES; i++) {
                int n = snprintf(to, sizeof to, DATABASE ".corrupt-%s", when);
                if (i > 1)
                        (void)snprintf(to + n, sizeof to - (size_t)n, ".%u", i);
                if (renameat2(s->dir_fd, DATABASE, s->dir_fd, to, RENAME_NOREPLACE) == 0 ||
                    errno == ENOENT)
                        break;
                if (errno != EEXIST || i == PUT_ASIDE_TRIES)
                        return -errno;
        }

        _cleanup_free_ char *name = strdup(to);
        if (!name)
                return -ENOMEM;
        for (size_t i = 1; i < ELEMENTSOF(suffixes); i++) {
                (void)snprintf(from, sizeof from, DATABASE "%s", suffixes[i]);
                (void)snprintf(to, sizeof to, "%s%s", name, suffixes[i]);
                if (renameat(s->dir_fd, from, s->dir_fd, to) < 0 && errno != ENOENT)
                        return -errno;
        }
        *ret = TAKE_PTR(name);
        return fs_sync_dir(s->dir_fd);
}

static int open_or_put_aside(Store *s, char **ret_aside) {
        bool damaged = false;
        int r = open_database(s, &damaged);
        if (r == 0 && damaged) {
                r = put_aside(s, ret_aside);
                if (r == 0)
                        r = open_database(s, &damaged);
                if (r == 0 && damaged)
                        r = -EIO; /* a new one is broken too: it is the disk */
        }
        if (r == 0)
                r = fs_sync_dir(s->dir_fd); /* a new database is there after a power cut, too */
        return r;
}

int store_open(Store **ret, const char *state_dir, char **ret_put_aside, pid_t *ret_pid) {
        _cleanup_free_ char *aside = NULL;
        int r;

        _cleanup_(store_closep) Store *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        s->dir_fd = s->lock_fd = -1;
        s->path = path_join(state_dir, DATABASE);
        if (!s->path)
                return -ENOMEM;
        r = open_state_dir(state_dir, &s->dir_fd);
        if (r < 0)
                return r;
        r = acquire_lock(s, ret_pid);
        if (r != 0)
                return r;
        r = open_or_put_aside(s, &aside);
        if (r != 0)
                return r;
        if (ret_put_aside)
                *ret_put_aside = TAKE_PTR(aside);
        remember_files(s);
        *ret = TAKE_PTR(s);
        return 0;
}

Store *store_close(Store *s) {
        if (!s)
                return NULL;
        store_finalize(s); /* rolls back what is not committed */
        if (s->lock_fd >= 0)
                (void)close(s->lock_fd); /* gives the lock back */
        if (s->dir_fd >= 0)
                (void)close(s->dir_fd);
        free(s->path);
        free(s);
        return NULL;
}

/* Transactions */

int store_begin(Store *s) {
        int r;

        if (s->in_transaction)
                return -EALREADY;
        if (!store_is_in_place(s))
                return note_trouble(s, -ESTALE);
        reserve_update(s);
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
        reserve_update(s);
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

int store_recover(Store *s) {
        if (!store_is_in_place(s))
                return -ESTALE;
        reserve_update(s);
        int r = store_reserve_check(s);
        if (r == 0)
                r = store_counter_add(s, "store_troubles", 1); /* a write, as a proof */
        if (r == 0)
                s->trouble = 0;
        return r;
}

/* Sums that are known without counting: by state, kept by triggers, and by name, kept by the
 * caller. */

/* @param ret  0 when there is none, or it cannot be read  @return 0 or -errno */
static int read_counter(Store *s, const char *name, uint64_t *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_COUNTER_GET] };
        bind_text(&b, name);
        int r = next_row(s, &b);
        *ret = r == 0 ? (uint64_t)sqlite3_column_int64(b.statement, 0) : 0;
        return MIN(r, 0);
}

void store_counts(Store *s, StoreCounts *ret) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_COUNTS_LIST];

        int r;
        *ret = (StoreCounts){ 0 };
        while ((r = sqlite3_step(st)) == SQLITE_ROW) {
                const char *name = (const char *)sqlite3_column_text(st, 0);
                BundleState state;
                if (!name || bundle_state_parse(name, &state) < 0)
                        continue; /* of a state that only another version knows: cannot be shown */
                ret->bundles[state] += (uint64_t)sqlite3_column_int64(st, 1);
                ret->bytes[state] += (uint64_t)sqlite3_column_int64(st, 2);
        }
        if (r == SQLITE_DONE && read_counter(s, "discovered", &ret->discovered) == 0)
                s->last_counts = *ret;
        else /* a disk that cannot be read: nothing of it has become less */
                *ret = s->last_counts;
}

int64_t store_counts_difference(const StoreCounts *c) {
        uint64_t sum = 0;

        for (BundleState state = 0; state < N_BUNDLE_STATES; state++)
                sum += c->bundles[state];
        return (int64_t)(c->discovered - sum);
}

int store_counter_add(Store *s, const char *name, uint64_t n) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_COUNTER_ADD] };
        bind_text(&b, name);
        bind_number(&b, n);
        return n > INT64_MAX ? -ERANGE : store_change(s, &b);
}

uint64_t store_counter(Store *s, const char *name) {
        uint64_t n;
        (void)read_counter(s, name, &n); /* what cannot be read counts for nothing */
        return n;
}

int store_counter_list(Store *s, const char *prefix,
                       void (*on_counter)(const char *name, uint64_t value, void *userdata),
                       void *userdata) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_COUNTER_LIST] };
        int r;
        bind_text(&b, prefix);
        while ((r = next_row(s, &b)) == 0) {
                const char *name = (const char *)sqlite3_column_text(b.statement, 0);
                if (name)
                        on_counter(name, (uint64_t)sqlite3_column_int64(b.statement, 1), userdata);
        }
        return MIN(r, 0);
}
