/* Space that the database keeps for a full disk, so that bookkeeping continues on it. Whether a new
 * bundle or note may still be added is decided here; transaction.c asks before each change.
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
#include "agent/store/store_private.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"

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

void store_reserve_update(Store *s) {
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

void store_reserve_open(Store *s) {
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
        store_reserve_update(s);
}
