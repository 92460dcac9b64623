/* Databases of the versions that were released, as they were then: each becomes one of today with
 * all it held. A released version's SQL is never edited. */
#include "tests/agent/store/ledger_test.h"

#include <errno.h>
#include <sqlite3.h>

#include "agent/store/store.h"
#include "agent/store/store_private.h"

/* clang-format off */
static const char version_1[] =
        "CREATE TABLE bundles (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL,\n"
        " kind TEXT NOT NULL, path BLOB NOT NULL, state TEXT NOT NULL, reason BLOB, complete INTEGER NOT NULL,\n"
        " incomplete BLOB, date_time TEXT NOT NULL, cluster_id TEXT NOT NULL, supplement_of TEXT NOT NULL,\n"
        " n_supplements INTEGER NOT NULL, uid INTEGER NOT NULL, unit_dev INTEGER NOT NULL,\n"
        " unit_ino INTEGER NOT NULL, n_files INTEGER NOT NULL, bytes INTEGER NOT NULL,\n"
        " oldest_mtime_usec INTEGER NOT NULL, digest INTEGER NOT NULL, first_seen_usec INTEGER NOT NULL,\n"
        " changed_usec INTEGER NOT NULL, attempts INTEGER NOT NULL, pinned INTEGER NOT NULL,\n"
        " links_held INTEGER NOT NULL);\n"
        "CREATE INDEX bundles_by_state ON bundles (state, first_seen_usec);\n"
        "CREATE INDEX bundles_by_age ON bundles (first_seen_usec);\n"
        "CREATE INDEX bundles_by_unit ON bundles (path, source);\n"
        "CREATE INDEX bundles_by_base ON bundles (supplement_of) WHERE supplement_of <> '';\n"
        "CREATE TABLE deliveries (bundle INTEGER NOT NULL REFERENCES bundles (row) ON DELETE CASCADE,\n"
        " position INTEGER NOT NULL, destination TEXT NOT NULL, state TEXT NOT NULL, proof TEXT, object BLOB,\n"
        " bytes INTEGER NOT NULL, attempts INTEGER NOT NULL, last_error BLOB, next_try_usec INTEGER NOT NULL,\n"
        " done_usec INTEGER NOT NULL, PRIMARY KEY (bundle, position)) WITHOUT ROWID;\n"
        "CREATE TABLE prints (bundle INTEGER PRIMARY KEY REFERENCES bundles (row) ON DELETE CASCADE,\n"
        " prints BLOB NOT NULL);\n"
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;\n"
        "CREATE TABLE counts (state TEXT PRIMARY KEY, bundles INTEGER NOT NULL, bytes INTEGER NOT NULL)\n"
        " WITHOUT ROWID;\n"
        "CREATE TRIGGER bundles_insert AFTER INSERT ON bundles BEGIN\n"
        " INSERT INTO counts VALUES (new.state, 1, CASE WHEN new.bytes BETWEEN 0 AND 281474976710656\n"
        " THEN new.bytes ELSE 281474976710656 END)\n"
        " ON CONFLICT (state) DO UPDATE SET bundles = bundles + 1, bytes = bytes + excluded.bytes; END;\n"
        "CREATE TRIGGER bundles_update AFTER UPDATE OF state, bytes ON bundles\n"
        " WHEN old.state <> new.state OR old.bytes <> new.bytes BEGIN\n"
        " UPDATE counts SET bundles = bundles - 1, bytes = bytes - CASE WHEN old.bytes BETWEEN 0 AND\n"
        " 281474976710656 THEN old.bytes ELSE 281474976710656 END WHERE state = old.state;\n"
        " INSERT INTO counts VALUES (new.state, 1, CASE WHEN new.bytes BETWEEN 0 AND 281474976710656\n"
        " THEN new.bytes ELSE 281474976710656 END)\n"
        " ON CONFLICT (state) DO UPDATE SET bundles = bundles + 1, bytes = bytes + excluded.bytes; END;\n"
        "CREATE TRIGGER bundles_delete AFTER DELETE ON bundles BEGIN\n"
        " UPDATE counts SET bundles = bundles - 1, bytes = bytes - CASE WHEN old.bytes BETWEEN 0 AND\n"
        " 281474976710656 THEN old.bytes ELSE 281474976710656 END WHERE state = old.state; END;\n";

static const char version_1_rows[] =
        "INSERT INTO bundles VALUES (1, 'neuron-core-dump-20260527T052135-0123456789ab', 'core-dumps',\n"
        " 'neuron-core-dump', CAST('/tmp/dt-1' AS BLOB), 'shipping', CAST('being sent' AS BLOB), 1, NULL,\n"
        " '20260527-051233', 'd99e36ea74c263ca', '', 1, 1000, 5, -9, 3, 4096, 17, -1, 100, 200, 2, 1, 1);\n"
        "INSERT INTO bundles VALUES (2, 'neuron-core-dump-20260527T052135-0123456789ab-s1', 'core-dumps',\n"
        " 'neuron-core-dump', x'2F746D702FFF', 'delivered', NULL, 0, CAST('[\"truncated\"]' AS BLOB), '', '',\n"
        " 'neuron-core-dump-20260527T052135-0123456789ab', 0, 0, 5, 10, 1, 50, 18, 7, 101, 201, 0, 0, 0);\n"
        "INSERT INTO deliveries VALUES (1, 0, 'archive', 'delivered', 'readback', CAST('/fsx/x' AS BLOB),\n"
        " 333, 1, CAST('was full' AS BLOB), 0, 190);\n"
        "INSERT INTO deliveries VALUES (1, 1, 'copy', 'pending', NULL, NULL, 0, 4, NULL, 999, 0);\n"
        "INSERT INTO prints VALUES (2, x'0100000000000000FFFFFFFFFFFFFFFF');\n"
        "INSERT INTO counters VALUES ('bytes_sent', 12345);\n"
        "PRAGMA user_version = 1;\n";
static const char version_2[] =
        "CREATE TABLE uploads (upload INTEGER PRIMARY KEY,\n"
        " bundle INTEGER NOT NULL REFERENCES bundles (row) ON DELETE CASCADE, destination TEXT NOT NULL,\n"
        " key BLOB NOT NULL, upload_id BLOB, plan BLOB NOT NULL, packer TEXT NOT NULL,\n"
        " created_usec INTEGER NOT NULL, UNIQUE (bundle, destination));\n"
        "CREATE INDEX uploads_by_key ON uploads (key);\n"
        "CREATE TABLE upload_parts (part INTEGER PRIMARY KEY,\n"
        " upload INTEGER NOT NULL REFERENCES uploads (upload) ON DELETE CASCADE, number INTEGER NOT NULL,\n"
        " first_frame INTEGER NOT NULL, n_frames INTEGER NOT NULL, bytes INTEGER NOT NULL,\n"
        " is_last INTEGER NOT NULL, sha256 BLOB NOT NULL, etag BLOB, frame_bytes BLOB NOT NULL,\n"
        " state BLOB NOT NULL, UNIQUE (upload, number));\n"
        "CREATE TABLE aborts (abort INTEGER PRIMARY KEY AUTOINCREMENT, destination TEXT NOT NULL,\n"
        " key BLOB NOT NULL, upload_id BLOB, since_usec INTEGER NOT NULL);\n"
        "CREATE UNIQUE INDEX aborts_by_upload ON aborts (destination, key, ifnull(upload_id, x''));\n"
        "INSERT INTO uploads VALUES (7, 1, 'copy', CAST('k' AS BLOB), CAST('u1' AS BLOB), zeroblob(32), 'p', 5);\n"
        "INSERT INTO upload_parts VALUES (1, 7, 1, 0, 1, 9, 0, zeroblob(32), CAST('e' AS BLOB), x'09000000', x'01');\n"
        "INSERT INTO aborts VALUES (3, 'copy', CAST('gone' AS BLOB), NULL, 4);\n"
        /* Every state with its links still marked as held, as version 2 left them. */
        "INSERT INTO bundles SELECT column1, 's' || column1, 'dumps', 'directory', CAST('/x' AS BLOB),\n"
        " column2, NULL, 1, NULL, '', '', '', 0, 0, 1, 1, 1, 10, 1, 1, 50, 60, 0, 0, 1\n"
        " FROM (VALUES (11, 'settling'), (12, 'ready'), (13, 'shipping'), (14, 'delivered'),\n"
        " (15, 'quarantined'), (16, 'evicted'), (17, 'cancelled'), (18, 'vanished'));\n"
        "PRAGMA user_version = 2;\n";
/* What version 3 changed of version 2, and a bundle of its time. */
static const char version_3[] =
        "INSERT INTO counters SELECT 'discovered', count(*) FROM bundles WHERE true\n"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value;\n"
        "CREATE TRIGGER bundles_discovered AFTER INSERT ON bundles BEGIN\n"
        " INSERT INTO counters VALUES ('discovered', 1)\n"
        " ON CONFLICT (name) DO UPDATE SET value = value + 1; END;\n"
        "UPDATE bundles SET links_held = 0 WHERE state IN ('delivered', 'cancelled', 'evicted', 'vanished');\n"
        "CREATE INDEX bundles_held ON bundles (state, first_seen_usec, id) WHERE links_held = 1;\n"
        "DROP INDEX bundles_by_unit;\n"
        "CREATE INDEX bundles_by_unit ON bundles (source, path, first_seen_usec, state, digest)\n"
        " WHERE supplement_of = '';\n"
        "INSERT INTO bundles VALUES (99, 'of3', 'dumps', 'directory', CAST('/y' AS BLOB),\n"
        " 'delivered', NULL, 1, NULL, '', '', '', 0, 0, 1, 1, 1, 10, 1, 1, 50, 60, 0, 0, 1);\n"
        "PRAGMA user_version = 3;\n";
static const char version_4[] =
        "ALTER TABLE bundles ADD COLUMN s3_prefix BLOB;\n"
        "CREATE TABLE notes ( note INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, received_usec INTEGER NOT NULL, uid INTEGER NOT"
        " NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL, via TEXT NOT NULL, source TEXT, unit_path BLOB, s3_prefix"
        " BLOB, refused BLOB, finished_usec INTEGER NOT NULL, container TEXT, document BLOB NOT NULL);\n"
        "CREATE INDEX notes_by_unit ON notes (source, unit_path) WHERE source IS NOT NULL;\n"
        "CREATE INDEX notes_finished ON notes (uid, note) WHERE finished_usec <> 0;\n"
        "CREATE INDEX notes_open ON notes (note) WHERE finished_usec = 0;\n"
        "CREATE TABLE note_counts ( uid INTEGER PRIMARY KEY, notes INTEGER NOT NULL, bytes INTEGER NOT NULL);\n"
        "CREATE TRIGGER notes_insert AFTER INSERT ON notes BEGIN INSERT INTO note_counts VALUES (new.uid, 1,"
        " length(new.document)), (-1, 1, length(new.document)) ON CONFLICT (uid) DO UPDATE SET notes = notes + 1, bytes = bytes"
        " + excluded.bytes; END;\n"
        "CREATE TRIGGER notes_delete AFTER DELETE ON notes BEGIN UPDATE note_counts SET notes = notes - 1, bytes = bytes -"
        " length(old.document) WHERE uid IN (old.uid, -1); DELETE FROM note_counts WHERE uid = old.uid AND notes = 0; END;\n"
        "CREATE TABLE jobs ( pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL, uid INTEGER NOT NULL, seen_usec INTEGER NOT"
        " NULL, document BLOB NOT NULL, PRIMARY KEY (pid, start_ticks)) WITHOUT ROWID;\n"
        "CREATE INDEX jobs_by_age ON jobs (seen_usec);\n"
        "INSERT INTO bundles VALUES (98, 'of4', 'jobs', 'directory', CAST('/z' AS BLOB),\n"
        " 'delivered', NULL, 1, NULL, '', '', '', 0, 0, 1, 1, 1, 10, 1, 1, 51, 60, 0, 0, 0,\n"
        " CAST('s3://bucket/granted' AS BLOB));\n"
        "PRAGMA user_version = 4;\n";
static const char version_5[] =
        "ALTER TABLE bundles ADD COLUMN unit_born_usec INTEGER NOT NULL DEFAULT 0;\n"
        "CREATE INDEX note_counts_by_notes ON note_counts (notes);\n"
        "CREATE INDEX note_counts_by_bytes ON note_counts (bytes);\n"
        "INSERT INTO notes VALUES (1, 'of5', 9, 1000, 7, 8, 'socket', 'jobs', CAST('/z' AS BLOB), NULL, NULL, 0, NULL,"
        " CAST('{}' AS BLOB));\n"
        "INSERT INTO bundles VALUES (97, 'of5', 'jobs', 'directory', CAST('/w' AS BLOB),\n"
        " 'ready', NULL, 1, NULL, '', '', '', 0, 0, 1, 1, 1, 10, 1, 1, 52, 60, 0, 0, 1, NULL, 77);\n"
        "PRAGMA user_version = 5;\n";
static const char version_8[] =
        "CREATE TABLE reserve (space BLOB NOT NULL);\n"
        "ALTER TABLE bundles ADD COLUMN redelivery INTEGER NOT NULL DEFAULT 0;\n"
        "ALTER TABLE bundles ADD COLUMN failure BLOB;\n"
        "ALTER TABLE notes ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;\n"
        "UPDATE notes SET owner = uid;\n"
        "DROP INDEX notes_finished;\n"
        "CREATE INDEX notes_finished ON notes (owner, note) WHERE finished_usec <> 0;\n"
        "DROP TRIGGER notes_insert; DROP TRIGGER notes_delete;\n"
        "CREATE TRIGGER notes_insert AFTER INSERT ON notes BEGIN INSERT INTO note_counts VALUES (new.owner, 1,"
        " length(new.document)), (-1, 1, length(new.document)) ON CONFLICT (uid) DO UPDATE SET notes = notes + 1, bytes = bytes"
        " + excluded.bytes; END;\n"
        "CREATE TRIGGER notes_delete AFTER DELETE ON notes BEGIN UPDATE note_counts SET notes = notes - 1, bytes = bytes -"
        " length(old.document) WHERE uid IN (old.owner, -1); DELETE FROM note_counts WHERE uid = old.owner AND notes = 0; END;\n"
        "INSERT INTO bundles VALUES (96, 'of8', 'jobs', 'neuron-core-dump', CAST('/v' AS BLOB),\n"
        " 'shipping', NULL, 1, NULL, '20260527-051233', '00000000000000ff', '', 0, 0, 1, 1, 1, 10, 1, 1, 53, 60, 0, 0,\n"
        " 1, NULL, 78, 1, CAST('{}' AS BLOB));\n"
        "PRAGMA user_version = 8;\n";
/* clang-format on */

#define N_SQL 7
#define BASE "neuron-core-dump-20260527T052135-0123456789ab"

static void make_old(const Scratch *scratch, const char *const sql[N_SQL], bool in_wal) {
        char path[PATH_MAX + 16];
        sqlite3 *db = NULL;

        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(mkdir(path, 0711), 0);
        (void)snprintf(path, sizeof path, "%s/state/state.db", scratch->path);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        if (in_wal) /* as after a kill: the old agent's last changes are in its log alone */
                (void)sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, (int *)NULL);
        assert_int_equal(sqlite3_exec(db, "PRAGMA journal_mode=WAL", NULL, NULL, NULL), SQLITE_OK);
        for (size_t i = 0; i < N_SQL && sql[i]; i++)
                assert_int_equal(sqlite3_exec(db, sql[i], NULL, NULL, NULL), SQLITE_OK);
        (void)sqlite3_close(db);
}

static void assert_first_bundle(Store *s) {
        const DeliveryRecord deliveries[] = {
                { .destination = (char *)"archive",
                  .state = DELIVERY_DONE,
                  .proof = PROOF_READBACK,
                  .object = (char *)"/fsx/x",
                  .bytes = 333,
                  .attempts = 1,
                  .last_error = (char *)"was full",
                  .done_usec = 190 },
                { .destination = (char *)"copy", .attempts = 4, .next_try_usec = 999 },
        };
        const BundleRecord expected = { .id = BASE,
                                        .source = (char *)"core-dumps",
                                        .kind = SOURCE_NEURON_CORE_DUMP,
                                        .path = (char *)"/tmp/dt-1",
                                        .state = BUNDLE_SHIPPING,
                                        .reason = (char *)"being sent",
                                        .complete = true,
                                        .date_time = "20260527-051233",
                                        .cluster_id = "d99e36ea74c263ca",
                                        .n_supplements = 1,
                                        .uid = 1000,
                                        .unit_dev = 5,
                                        .unit_ino = (uint64_t)-9,
                                        .n_files = 3,
                                        .bytes = 4096,
                                        .oldest_mtime_usec = 17,
                                        .digest = UINT64_MAX,
                                        .first_seen_usec = 100,
                                        .changed_usec = 200,
                                        .attempts = 2,
                                        .pinned = true,
                                        .links_held = true,
                                        .deliveries = (DeliveryRecord *)deliveries,
                                        .n_deliveries = 2 };
        BundleRecord b;

        assert_int_equal(store_get(s, BASE, &b), 0);
        assert_same_record(&b, &expected);
        bundle_record_done(&b);
}

static void a_database_of_version_1_is_upgraded_with_all_it_held(void **state) {
        static const char *const sql[N_SQL] = { version_1, version_1_rows };
        const Scratch *scratch = *state;

        for (unsigned in_wal = 0; in_wal < 2; in_wal++) {
                char command[PATH_MAX + 32];
                uint64_t *prints;
                size_t n;
                BundleRecord b;
                StoreCounts counts;

                make_old(scratch, sql, in_wal);
                Store *s = open_store(scratch);
                assert_sqlite3(scratch, "PRAGMA user_version; PRAGMA integrity_check", "11\nok");
                assert_first_bundle(s);
                assert_int_equal(store_get(s, BASE "-s1", &b), 0);
                assert_string_equal(b.path, "/tmp/\xff");
                assert_string_equal(b.incomplete, "[\"truncated\"]");
                bundle_record_done(&b);
                assert_int_equal(store_get_prints(s, BASE, &prints, &n), 0);
                assert_int_equal(n, 2);
                assert_true(prints[0] == 1 && prints[1] == UINT64_MAX);
                free(prints);
                assert_int_equal(store_counter(s, "bytes_sent"), 12345);
                store_counts(s, &counts);
                assert_int_equal(counts.bytes[BUNDLE_SHIPPING], 4096);
                assert_int_equal(counts.bundles[BUNDLE_DELIVERED], 1);
                assert_int_equal(counts.discovered, 2);

                /* And it does all that a new one does. */
                LedgerUpload u = intent(NULL, 1);
                LedgerPart p = some_part(1, 2, 3);
                assert_int_equal(store_ledger_begin(s, BASE, "copy", &u), 0);
                assert_int_equal(store_ledger_put_part(s, BASE, "copy", &p), 0);
                assert_int_equal(store_ledger_abandon(s, BASE, "copy"), 0);
                assert_int_equal(store_abort_count(s, NULL, false), 1);
                store_close(s);
                s = open_store(scratch); /* a second time there is nothing to upgrade */
                assert_first_bundle(s);
                store_close(s);
                (void)snprintf(command, sizeof command, "rm -r '%s/state'", scratch->path);
                assert_int_equal(system(command), 0);
        }
}

static void a_database_of_version_2_counts_discoveries_and_holds_no_released_links(void **state) {
        static const char *const sql[N_SQL] = { version_1, version_1_rows, version_2 };
        const Scratch *scratch = *state;
        LedgerUpload u = { 0 };
        LedgerAbort to_abort = { 0 };
        StoreCounts counts;

        make_old(scratch, sql, true);
        Store *s = open_store(scratch);
        assert_sqlite3(scratch, "PRAGMA user_version; PRAGMA integrity_check", "11\nok");
        store_counts(s, &counts);
        assert_int_equal(counts.discovered, 10);
        assert_int_equal(store_counts_difference(&counts), 0);
        assert_sqlite3(scratch,
                       "SELECT group_concat(state) FROM (SELECT DISTINCT state FROM bundles"
                       " WHERE links_held = 1 ORDER BY state)",
                       "quarantined,ready,settling,shipping");
        assert_int_equal(store_ledger_get(s, BASE, "copy", &u), 0);
        assert_string_equal(u.upload_id, "u1");
        ledger_upload_done(&u);
        assert_int_equal(parts_of(s, BASE, "copy"), 1);
        assert_int_equal(store_abort_next(s, "copy", 0, &to_abort), 0);
        assert_string_equal(to_abort.key, "gone");
        ledger_abort_done(&to_abort);
        store_close(s);
}

static void a_database_of_version_3_keeps_its_bundles_and_accepts_notes(void **state) {
        static const char *const sql[N_SQL] = { version_1, version_1_rows, version_2, version_3 };
        const Scratch *scratch = *state;
        const StoredNote note = { .id = (char *)"00112233445566778899aabbccddeeff",
                                  .document = (char *)"{}" };
        BundleRecord b;
        StoreCounts counts;

        make_old(scratch, sql, true);
        Store *s = open_store(scratch);
        assert_sqlite3(scratch, "PRAGMA user_version; PRAGMA integrity_check", "11\nok");
        assert_first_bundle(s);
        assert_int_equal(store_get(s, "of3", &b), 0);
        assert_null(b.s3_prefix);
        assert_true(b.links_held); /* of version 3, where the mark is true */
        b.s3_prefix = strdup("s3://bucket/other");
        assert_int_equal(store_update(s, &b), 0);
        bundle_record_done(&b);
        store_counts(s, &counts);
        assert_int_equal(counts.discovered, 11);
        assert_int_equal(store_note_add(s, &note), 0);
        store_close(s);
        s = open_store(scratch);
        assert_sqlite3(scratch, "SELECT count(*) FROM notes", "1");
        assert_int_equal(store_get(s, "of3", &b), 0);
        assert_string_equal(b.s3_prefix, "s3://bucket/other");
        bundle_record_done(&b);
        store_close(s);
}

static void a_database_of_version_4_does_not_know_when_its_directories_were_made(void **state) {
        static const char *const sql[N_SQL] = { version_1, version_1_rows, version_2, version_3,
                                                version_4 };
        const Scratch *scratch = *state;
        BundleRecord b;

        make_old(scratch, sql, true);
        Store *s = open_store(scratch);
        assert_sqlite3(scratch, "PRAGMA user_version; PRAGMA integrity_check", "11\nok");
        assert_first_bundle(s);
        assert_int_equal(store_get(s, "of4", &b), 0);
        assert_string_equal(b.s3_prefix, "s3://bucket/granted");
        assert_int_equal(b.unit_born_usec, 0);
        b.unit_born_usec = 1234567;
        assert_int_equal(store_update(s, &b), 0);
        bundle_record_done(&b);
        store_close(s);
        assert_sqlite3(scratch, "SELECT unit_born_usec FROM bundles WHERE id = 'of4'", "1234567");
}

static int find_note(const StoredNote *n, void *userdata) {
        *(bool *)userdata = strcmp(n->id, "of5") == 0;
        return 0;
}

static void a_database_of_version_5_keeps_counts_and_notes_and_gets_a_reserve(void **state) {
        static const char *const sql[N_SQL] = { version_1, version_1_rows, version_2,
                                                version_3, version_4,      version_5 };
        const Scratch *scratch = *state;
        StoreCounts counts;
        bool is_found = false;
        BundleRecord b;

        make_old(scratch, sql, true);
        Store *s = open_store(scratch);
        assert_sqlite3(scratch,
                       "PRAGMA user_version; PRAGMA integrity_check;"
                       "SELECT count(*), sum(length(space)) FROM reserve",
                       "11\nok\n4|4194304");
        assert_first_bundle(s);
        assert_int_equal(store_get(s, "of5", &b), 0);
        assert_int_equal(b.unit_born_usec, 77);
        assert_true(b.links_held && b.state == BUNDLE_READY);
        bundle_record_done(&b);
        assert_int_equal(store_note_list_open(s, find_note, &is_found), 0);
        assert_true(is_found);
        store_counts(s, &counts);
        assert_int_equal(counts.discovered, 13);
        assert_int_equal(store_counts_difference(&counts), 0);
        store_close(s);
}

/* Its bundles were delivered under their own names, and continue so. */
static void a_database_of_version_8_has_no_names_of_failures(void **state) {
        static const char *const sql[N_SQL] = { version_1, version_1_rows, version_2, version_3,
                                                version_4, version_5,      version_8 };
        const Scratch *scratch = *state;
        BundleRecord b;

        make_old(scratch, sql, true);
        Store *s = open_store(scratch);
        assert_sqlite3(scratch, "PRAGMA user_version; PRAGMA integrity_check", "11\nok");
        assert_first_bundle(s);
        assert_int_equal(store_get(s, "of8", &b), 0);
        assert_true(b.is_redelivery);
        assert_string_equal(b.failure, "{}");
        assert_string_equal(b.name.agreed, "");
        assert_string_equal(bundle_record_cluster_id(&b), "00000000000000ff");
        assert_string_equal(bundle_record_date_time(&b), "20260527-051233");
        b.name = (FailureName){ .agreed = "store",
                                .cluster_id = "d99e36ea74c263ca",
                                .date_time = "20260527-051230",
                                .derived = true,
                                .key = "00112233445566aa",
                                .n = UINT32_MAX };
        assert_int_equal(store_update(s, &b), 0);
        bundle_record_done(&b);
        assert_int_equal(store_failure_put(s, &(StoredFailure){ .name = "00112233445566aa/1",
                                                                .key = "00112233445566aa",
                                                                .n = 1,
                                                                .document = "{}" }),
                         0);
        store_close(s);
        assert_sqlite3(scratch,
                       "SELECT agreed, failure_cluster_id, failure_date_time, derived, failure_key,"
                       " failure_n FROM bundles WHERE id = 'of8'",
                       "store|d99e36ea74c263ca|20260527-051230|1|00112233445566aa|4294967295");
}

static void an_upgraded_database_has_the_tables_of_a_new_one(void **state) {
        static const char *const sql[N_SQL] = { version_1, version_1_rows };
        /* White space is the SQL's, and no difference. */
        static const char schema[] =
                "SELECT type, name, replace(replace(replace(sql, char(10), ' '), '( ', '('), '  ', "
                "' ') FROM sqlite_schema ORDER BY 1, 2";
        const Scratch *scratch = *state;
        char command[PATH_MAX + 32];

        store_close(open_store(scratch));
        char *new = ask_sqlite3(scratch, "state.db", schema);
        (void)snprintf(command, sizeof command, "rm -r '%s/state'", scratch->path);
        assert_int_equal(system(command), 0);
        make_old(scratch, sql, false);
        store_close(open_store(scratch));
        char *upgraded = ask_sqlite3(scratch, "state.db", schema);
        assert_string_equal(upgraded, new);
        assert_non_null(strstr(new, "upload_parts"));
        free(new);
        free(upgraded);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_database_of_version_1_is_upgraded_with_all_it_held),
                TEST(a_database_of_version_2_counts_discoveries_and_holds_no_released_links),
                TEST(a_database_of_version_3_keeps_its_bundles_and_accepts_notes),
                TEST(a_database_of_version_4_does_not_know_when_its_directories_were_made),
                TEST(a_database_of_version_5_keeps_counts_and_notes_and_gets_a_reserve),
                TEST(a_database_of_version_8_has_no_names_of_failures),
                TEST(an_upgraded_database_has_the_tables_of_a_new_one),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
