/* The tables of the state database, and bringing up a database that has just been opened: it gets
 * our settings, is checked, and is either new, and gets the tables, or has them already. What each
 * table means is in docs/DESIGN.md; the statements are in statements.c.
 *
 * There is one schema, and no upgrade. A database carries the schema's number (user_version) and a
 * fingerprint of the text below (application_id). Where one of them differs, another build has
 * written the database, older or newer: nothing is written to it, and database.c puts it aside. So
 * two builds with the same text share their state, and a change of the text needs no further care
 * before a version with upgrades is released. */
#include "agent/store/store_private.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/digest.h"
#include "lib/base/log.h"

#define HEAP_LIMIT (4 * MIB)
#define BUSY_MSEC 1000 /* another program has it open at the start */

#define COUNT_IN                                                                                   \
        " INSERT INTO counts VALUES (new.state, 1, " STORE_CAPPED(                                 \
                "new") ")"                                                                         \
                       "  ON CONFLICT (state) DO UPDATE SET bundles = bundles + 1,"                \
                       "  bytes = bytes + excluded.bytes;"
#define COUNT_OUT                                                                                  \
        " UPDATE counts SET bundles = bundles - 1, bytes = bytes - " STORE_CAPPED(                 \
                "old") "  WHERE state = old.state;"

/* Bundles, their deliveries, and the fingerprints of their members. Triggers keep the sums by state
 * (`counts`), and how many bundles were ever discovered: counted apart from what became of them, so
 * that one can be compared with the other. */
static const char bundles[] =
        "CREATE TABLE bundles ("
        " row INTEGER PRIMARY KEY,"
        " id TEXT NOT NULL UNIQUE,"
        " source TEXT NOT NULL,"
        " kind TEXT NOT NULL,"
        " path BLOB NOT NULL,"
        " state TEXT NOT NULL,"
        " reason BLOB,"
        " complete INTEGER NOT NULL,"
        " incomplete BLOB,"
        " date_time TEXT NOT NULL,"
        " cluster_id TEXT NOT NULL,"
        " supplement_of TEXT NOT NULL,"
        " n_supplements INTEGER NOT NULL,"
        " uid INTEGER NOT NULL,"
        " unit_dev INTEGER NOT NULL,"
        " unit_ino INTEGER NOT NULL,"
        " unit_born_usec INTEGER NOT NULL," /* tells the directory from another one of its inode */
        " n_files INTEGER NOT NULL,"
        " bytes INTEGER NOT NULL,"
        " oldest_mtime_usec INTEGER NOT NULL,"
        " digest INTEGER NOT NULL,"
        " first_seen_usec INTEGER NOT NULL,"
        " changed_usec INTEGER NOT NULL,"
        " attempts INTEGER NOT NULL,"
        " pinned INTEGER NOT NULL,"
        " links_held INTEGER NOT NULL,"
        " origin TEXT NOT NULL,"
        " s3_prefix BLOB,"
        " failure BLOB,"         /* what hooks reported */
        " agreed TEXT NOT NULL," /* from here on: FailureName */
        " failure_cluster_id TEXT NOT NULL,"
        " failure_date_time TEXT NOT NULL,"
        " derived INTEGER NOT NULL,"
        " failure_key TEXT NOT NULL,"
        " failure_n INTEGER NOT NULL,"
        " about BLOB," /* of what the agent itself has made */
        " subject TEXT NOT NULL);"
        "CREATE INDEX bundles_by_state ON bundles (state, first_seen_usec);"
        "CREATE INDEX bundles_by_age ON bundles (first_seen_usec);"
        /* all that a source reads of its units at a start */
        "CREATE INDEX bundles_by_unit ON bundles (source, path, first_seen_usec, state, digest)"
        " WHERE supplement_of = '';"
        "CREATE INDEX bundles_by_base ON bundles (supplement_of) WHERE supplement_of <> '';"
        "CREATE INDEX bundles_by_subject ON bundles (subject) WHERE subject <> '';"
        "CREATE INDEX bundles_by_failure ON bundles (failure_key, failure_n)"
        " WHERE failure_key <> '';"
        /* what retention goes through */
        "CREATE INDEX bundles_held ON bundles (state, first_seen_usec, id) WHERE links_held = 1;"
        "CREATE INDEX bundles_pinned ON bundles (unit_ino, unit_dev) WHERE pinned <> 0;"
        "CREATE TABLE deliveries ("
        " bundle INTEGER NOT NULL REFERENCES bundles (row) ON DELETE CASCADE,"
        " position INTEGER NOT NULL,"
        " destination TEXT NOT NULL,"
        " state TEXT NOT NULL,"
        " proof TEXT,"
        " object BLOB,"
        " bytes INTEGER NOT NULL,"
        " attempts INTEGER NOT NULL,"
        " last_error BLOB,"
        " next_try_usec INTEGER NOT NULL,"
        " done_usec INTEGER NOT NULL,"
        " PRIMARY KEY (bundle, position)) WITHOUT ROWID;"
        "CREATE TABLE prints ("
        " bundle INTEGER PRIMARY KEY REFERENCES bundles (row) ON DELETE CASCADE,"
        " prints BLOB NOT NULL);"
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE counts ("
        " state TEXT PRIMARY KEY, bundles INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE TRIGGER bundles_insert AFTER INSERT ON bundles BEGIN" COUNT_IN " END;"
        "CREATE TRIGGER bundles_update AFTER UPDATE OF state, bytes ON bundles"
        " WHEN old.state <> new.state OR old.bytes <> new.bytes BEGIN" COUNT_OUT COUNT_IN " END;"
        "CREATE TRIGGER bundles_delete AFTER DELETE ON bundles BEGIN" COUNT_OUT " END;"
        "CREATE TRIGGER bundles_discovered AFTER INSERT ON bundles BEGIN"
        " INSERT INTO counters VALUES ('discovered', 1)"
        "  ON CONFLICT (name) DO UPDATE SET value = value + 1; END;";

/* The ledger of uploads. A part's blobs are its last columns, so that its number and its ETag are
 * read without them. The identity of an abort is never used again (AUTOINCREMENT): a caller that
 * has finished an old abort must not delete a new one. */
static const char ledger[] =
        "CREATE TABLE uploads ("
        " upload INTEGER PRIMARY KEY,"
        " bundle INTEGER NOT NULL REFERENCES bundles (row) ON DELETE CASCADE,"
        " destination TEXT NOT NULL,"
        " key BLOB NOT NULL,"
        " upload_id BLOB,"
        " plan BLOB NOT NULL,"
        " packer TEXT NOT NULL,"
        " created_usec INTEGER NOT NULL,"
        " UNIQUE (bundle, destination));"
        "CREATE INDEX uploads_by_key ON uploads (key);"
        "CREATE TABLE upload_parts ("
        " part INTEGER PRIMARY KEY,"
        " upload INTEGER NOT NULL REFERENCES uploads (upload) ON DELETE CASCADE,"
        " number INTEGER NOT NULL,"
        " first_frame INTEGER NOT NULL,"
        " n_frames INTEGER NOT NULL,"
        " bytes INTEGER NOT NULL,"
        " is_last INTEGER NOT NULL,"
        " sha256 BLOB NOT NULL,"
        " etag BLOB,"
        " frame_bytes BLOB NOT NULL,"
        " state BLOB NOT NULL,"
        " UNIQUE (upload, number));"
        "CREATE TABLE aborts ("
        " abort INTEGER PRIMARY KEY AUTOINCREMENT,"
        " destination TEXT NOT NULL,"
        " key BLOB NOT NULL,"
        " upload_id BLOB,"
        " since_usec INTEGER NOT NULL);"
        "CREATE UNIQUE INDEX aborts_by_upload"
        " ON aborts (destination, key, ifnull(upload_id, x''));";

/* The notes of hooks, and the jobs that were seen at the devices. Triggers keep the sums of notes
 * by owner, so that a flood of notes costs no more for each of them: `uid` of note_counts is the
 * key of an owner (notes.c), and -1 is all of them. */
static const char notes[] =
        "CREATE TABLE notes ("
        " note INTEGER PRIMARY KEY,"
        " id TEXT NOT NULL UNIQUE,"
        " received_usec INTEGER NOT NULL,"
        " uid INTEGER NOT NULL,"
        " owner INTEGER NOT NULL,"
        " pid INTEGER NOT NULL,"
        " start_ticks INTEGER NOT NULL,"
        " via TEXT NOT NULL,"
        " source TEXT,"
        " unit_path BLOB,"
        " s3_prefix BLOB,"
        " refused BLOB,"
        " finished_usec INTEGER NOT NULL,"
        " container TEXT,"
        " document BLOB NOT NULL);"
        "CREATE INDEX notes_by_unit ON notes (source, unit_path) WHERE source IS NOT NULL;"
        "CREATE INDEX notes_finished ON notes (owner, note) WHERE finished_usec <> 0;"
        "CREATE INDEX notes_open ON notes (note) WHERE finished_usec = 0;"
        "CREATE TABLE note_counts ("
        " uid INTEGER PRIMARY KEY, notes INTEGER NOT NULL, bytes INTEGER NOT NULL);"
        "CREATE INDEX note_counts_by_notes ON note_counts (notes);"
        "CREATE INDEX note_counts_by_bytes ON note_counts (bytes);"
        "CREATE TRIGGER notes_insert AFTER INSERT ON notes BEGIN"
        " INSERT INTO note_counts VALUES (new.owner, 1, length(new.document)),"
        "  (-1, 1, length(new.document))"
        "  ON CONFLICT (uid) DO UPDATE SET notes = notes + 1, bytes = bytes + excluded.bytes; END;"
        "CREATE TRIGGER notes_delete AFTER DELETE ON notes BEGIN"
        " UPDATE note_counts SET notes = notes - 1, bytes = bytes - length(old.document)"
        "  WHERE uid IN (old.owner, -1);"
        " DELETE FROM note_counts WHERE uid = old.owner AND notes = 0; END;"
        "CREATE TABLE jobs ("
        " pid INTEGER NOT NULL,"
        " start_ticks INTEGER NOT NULL,"
        " uid INTEGER NOT NULL,"
        " seen_usec INTEGER NOT NULL,"
        " document BLOB NOT NULL,"
        " PRIMARY KEY (pid, start_ticks)) WITHOUT ROWID;"
        "CREATE INDEX jobs_by_age ON jobs (seen_usec);";

/* This node's claims with what was decided (StoredFailure), the crash reports that are still to be
 * made, the signatures of those that were, and the space that reserve.c keeps for a full disk. */
static const char others[] =
        "CREATE TABLE failures ("
        " name TEXT PRIMARY KEY,"
        " key TEXT NOT NULL,"
        " n INTEGER NOT NULL,"
        " time_usec INTEGER NOT NULL,"
        " document BLOB NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE reports_pending ("
        " bundle INTEGER PRIMARY KEY REFERENCES bundles (row) ON DELETE CASCADE);"
        "CREATE TABLE signatures ("
        " id TEXT PRIMARY KEY,"
        " n INTEGER NOT NULL,"
        " since_usec INTEGER NOT NULL,"
        " seen_usec INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE reserve (space BLOB NOT NULL);";

static const char *const schema[] = { bundles, ledger, notes, others };

/* The index of the log (-shm) is on the heap: mapped from a file, it ends the process by SIGBUS
 * where a file system that copies on write has no space left for a page of it. SQLite decides that
 * at the first access to a database in WAL mode (sqlite.org/wal.html, "Use of WAL Without
 * Shared-Memory"). */
static const char exclusive[] = "PRAGMA locking_mode=EXCLUSIVE";
/* wal_autocheckpoint: 1 MiB of 4 KiB pages. */
static const char settings[] =
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
        "PRAGMA cache_size=-512; PRAGMA mmap_size=0; PRAGMA temp_store=MEMORY;"
        "PRAGMA journal_size_limit=-1; PRAGMA wal_autocheckpoint=256;";

/* @return what an application_id can hold of the digest of the schema's text */
static int schema_fingerprint(void) {
        uint8_t digest[SHA256_SIZE];
        uint32_t first;
        Sha256 s;
        sha256_init(&s);
        for (size_t i = 0; i < ELEMENTSOF(schema); i++)
                sha256_update(&s, schema[i], strlen(schema[i]));
        sha256_final(&s, digest);
        memcpy(&first, digest, sizeof first);
        return (int)(le32toh(first) & INT32_MAX);
}

/* @param ret  of the first row  @return SQLITE_OK, SQLITE_DONE without a row, another error */
static int query_number(sqlite3 *db, const char *sql, int *ret) {
        sqlite3_stmt *st = NULL;
        int r = sqlite3_prepare_v2(db, sql, -1, &st, NULL);
        if (r == SQLITE_OK)
                r = sqlite3_step(st);
        if (r == SQLITE_ROW) {
                *ret = sqlite3_column_int(st, 0);
                r = SQLITE_OK;
        }
        (void)sqlite3_finalize(st); /* repeats the error of the step */
        return r;
}

/* Fails where one of the tables is there: a database that lost its number is damaged. */
static int create_tables(sqlite3 *db) {
        char numbers[96];
        (void)snprintf(numbers, sizeof numbers,
                       "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
                       schema_fingerprint(), STORE_SCHEMA_VERSION);
        int r = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        for (size_t i = 0; i < ELEMENTSOF(schema) && r == SQLITE_OK; i++)
                r = sqlite3_exec(db, schema[i], NULL, NULL, NULL);
        if (r == SQLITE_OK)
                r = sqlite3_exec(db, numbers, NULL, NULL, NULL);
        if (r != SQLITE_OK)
                (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL); /* r says what was wrong */
        return r;
}

/* Not the function pragma_quick_check(1), which takes the number for a table's name in
 * SQLite 3.46. @return SQLITE_OK, SQLITE_CORRUPT, another error */
static int check_pages(sqlite3 *db) {
        sqlite3_stmt *st = NULL;
        int r = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &st, NULL);
        if (r == SQLITE_OK)
                r = sqlite3_step(st);
        if (r == SQLITE_ROW) {
                const char *text = (const char *)sqlite3_column_text(st, 0);
                r = text && strcmp(text, "ok") == 0 ? SQLITE_OK : SQLITE_CORRUPT;
        }
        (void)sqlite3_finalize(st); /* repeats the error of the step */
        return r;
}

/* @return SQLITE_CORRUPT: a row is in a state that no agent knows */
static int check_states(sqlite3 *db) {
        int is_wrong = 0;
        int r = query_number(db,
                             "SELECT EXISTS (SELECT 1 FROM bundles WHERE state NOT IN ('settling', "
                             "'ready', 'shipping', 'delivered', 'quarantined', 'evicted', "
                             "'cancelled', 'vanished'))",
                             &is_wrong);
        return r == SQLITE_OK && is_wrong ? SQLITE_CORRUPT : r;
}

/* @param ret_is_new  it has no number, so no tables yet */
static int check_schema(sqlite3 *db, bool *ret_is_new) {
        int version = 0, fingerprint = 0;
        int r = query_number(db, "PRAGMA user_version", &version);
        if (r == SQLITE_OK)
                r = query_number(db, "PRAGMA application_id", &fingerprint);
        if (r != SQLITE_OK)
                return r;
        *ret_is_new = version == 0;
        if (version == 0 ||
            (version == STORE_SCHEMA_VERSION && fingerprint == schema_fingerprint()))
                return SQLITE_OK;
        log_debug("the state database has version %d and fingerprint %d, not %d and %d", version,
                  fingerprint, STORE_SCHEMA_VERSION, schema_fingerprint());
        return STORE_SCHEMA_IS_ANOTHER;
}

static int bring_up(sqlite3 *db, bool is_to_be_checked) {
        bool is_new = false;
        int r = sqlite3_exec(db, exclusive, NULL, NULL, NULL);
        if (r == SQLITE_OK)
                r = check_schema(db, &is_new);
        if (r == SQLITE_OK && is_to_be_checked)
                r = check_pages(db);
        if (r == SQLITE_OK)
                r = sqlite3_exec(db, settings, NULL, NULL, NULL);
        if (r == SQLITE_OK && is_new)
                r = create_tables(db);
        if (r == SQLITE_OK && is_to_be_checked)
                r = check_states(db);
        return r;
}

int store_schema_open(Store *s) {
        /* Nothing is written before the database is known to be ours. These cannot fail for an open
         * connection. */
        (void)sqlite3_extended_result_codes(s->db, 1);
        (void)sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, (int *)NULL);
        (void)sqlite3_soft_heap_limit64((sqlite3_int64)HEAP_LIMIT); /* returns the limit before */
        (void)sqlite3_busy_timeout(s->db, BUSY_MSEC);
        int r = bring_up(s->db, s->is_to_be_checked);
        if (r == SQLITE_OK)
                r = store_statements_prepare(s);
        if (r == SQLITE_OK)
                r = sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, (int *)NULL);
        return r;
}
