/* The schema, how an older one is brought up to it, and the statements written against it. What
 * each table means is told in docs/DESIGN.md. A step of the upgrade table is never edited once it
 * was released: a change is a new step. */
#include "agent/store/store_private.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"

#define HEAP_LIMIT (4 * MIB)
#define BUSY_MSEC 1000 /* another program has it open at the start */

/* From nothing to version 1. Bytes above 2^48 count as 2^48, so that a few absurd sparse files
 * cannot overflow a sum. */
static const char upgrade_to_1[] =
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
        " n_files INTEGER NOT NULL,"
        " bytes INTEGER NOT NULL,"
        " oldest_mtime_usec INTEGER NOT NULL,"
        " digest INTEGER NOT NULL,"
        " first_seen_usec INTEGER NOT NULL,"
        " changed_usec INTEGER NOT NULL,"
        " attempts INTEGER NOT NULL,"
        " pinned INTEGER NOT NULL,"
        " links_held INTEGER NOT NULL);"
        "CREATE INDEX bundles_by_state ON bundles (state, first_seen_usec);"
        "CREATE INDEX bundles_by_age ON bundles (first_seen_usec);"
        "CREATE INDEX bundles_by_unit ON bundles (path, source);"
        "CREATE INDEX bundles_by_base ON bundles (supplement_of) WHERE supplement_of <> '';"
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
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT "
        "ROWID;"
        "CREATE TABLE counts ("
        " state TEXT PRIMARY KEY, bundles INTEGER NOT NULL, bytes INTEGER NOT NULL) "
        "WITHOUT ROWID;"
#define CAPPED(row)                                                                                \
        "CASE WHEN " row ".bytes BETWEEN 0 AND 281474976710656 THEN " row                          \
        ".bytes ELSE 281474976710656 END"
#define COUNT_IN                                                                                   \
        " INSERT INTO counts VALUES (new.state, 1, " CAPPED(                                       \
                "new") ")"                                                                         \
                       "  ON CONFLICT (state) DO UPDATE SET bundles = bundles + 1, bytes = bytes " \
                       "+ excluded.bytes;"
#define COUNT_OUT                                                                                  \
        " UPDATE counts SET bundles = bundles - 1, bytes = bytes - " CAPPED(                       \
                "old") " WHERE state = old.state;"
        "CREATE TRIGGER bundles_insert AFTER INSERT ON bundles BEGIN" COUNT_IN " END;"
        "CREATE TRIGGER bundles_update AFTER UPDATE OF state, bytes ON bundles"
        " WHEN old.state <> new.state OR old.bytes <> new.bytes BEGIN" COUNT_OUT COUNT_IN " END;"
        "CREATE TRIGGER bundles_delete AFTER DELETE ON bundles BEGIN" COUNT_OUT " END;";

/* The ledger of uploads. A part's blobs stand last, so that its number and its ETag are read
 * without them. The identity of an abort is never used again (AUTOINCREMENT): who has finished an
 * old one must not strike out a new one. */
static const char upgrade_to_2[] =
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

/* What was discovered is counted apart from what became of it, so that one can be held against the
 * other. The links of what had ended were let go under version 2, which left the mark standing. One
 * index is of what retention goes through; the other has all that a source wants to know of its
 * units at a start. */
static const char upgrade_to_3[] =
        "INSERT INTO counters SELECT 'discovered', count(*) FROM bundles WHERE true"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value;"
        "CREATE TRIGGER bundles_discovered AFTER INSERT ON bundles BEGIN"
        " INSERT INTO counters VALUES ('discovered', 1)"
        "  ON CONFLICT (name) DO UPDATE SET value = value + 1; END;"
        "UPDATE bundles SET links_held = 0"
        " WHERE state IN ('delivered', 'cancelled', 'evicted', 'vanished');"
        "CREATE INDEX bundles_held ON bundles (state, first_seen_usec, id)"
        " WHERE links_held = 1;"
        "DROP INDEX bundles_by_unit;"
        "CREATE INDEX bundles_by_unit ON bundles (source, path, first_seen_usec, state, "
        "digest)"
        " WHERE supplement_of = '';";

/* The hook's notes, and who was seen at the devices. The sums are kept by
 * triggers, so that a flood of notes costs no more for each of them. */
static const char upgrade_to_4[] =
        "ALTER TABLE bundles ADD COLUMN s3_prefix BLOB;"
        "CREATE TABLE notes ("
        " note INTEGER PRIMARY KEY,"
        " id TEXT NOT NULL UNIQUE,"
        " received_usec INTEGER NOT NULL,"
        " uid INTEGER NOT NULL,"
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
        "CREATE INDEX notes_finished ON notes (uid, note) WHERE finished_usec <> 0;"
        "CREATE INDEX notes_open ON notes (note) WHERE finished_usec = 0;"
        "CREATE TABLE note_counts ("
        " uid INTEGER PRIMARY KEY, notes INTEGER NOT NULL, bytes INTEGER NOT NULL);"
        "CREATE TRIGGER notes_insert AFTER INSERT ON notes BEGIN"
        " INSERT INTO note_counts VALUES (new.uid, 1, length(new.document)),"
        "  (-1, 1, length(new.document))"
        "  ON CONFLICT (uid) DO UPDATE SET notes = notes + 1, bytes = bytes + "
        "excluded.bytes; END;"
        "CREATE TRIGGER notes_delete AFTER DELETE ON notes BEGIN"
        " UPDATE note_counts SET notes = notes - 1, bytes = bytes - length(old.document)"
        "  WHERE uid IN (old.uid, -1);"
        " DELETE FROM note_counts WHERE uid = old.uid AND notes = 0; END;"
        "CREATE TABLE jobs ("
        " pid INTEGER NOT NULL,"
        " start_ticks INTEGER NOT NULL,"
        " uid INTEGER NOT NULL,"
        " seen_usec INTEGER NOT NULL,"
        " document BLOB NOT NULL,"
        " PRIMARY KEY (pid, start_ticks)) WITHOUT ROWID;"
        "CREATE INDEX jobs_by_age ON jobs (seen_usec);";

/* When a bundle's directory was made: what tells it from another one that got its inode. And who
 * has most notes, or bytes of them. */
static const char upgrade_to_5[] =
        "ALTER TABLE bundles ADD COLUMN unit_born_usec INTEGER NOT NULL DEFAULT 0;"
        "CREATE INDEX note_counts_by_notes ON note_counts (notes);"
        "CREATE INDEX note_counts_by_bytes ON note_counts (bytes);";

/* Space that the database keeps for a full disk: database.c. */
static const char upgrade_to_6[] = "CREATE TABLE reserve (space BLOB NOT NULL);";

/* Bundles that are delivered once more, to further destinations; and what hooks reported. */
static const char upgrade_to_7[] =
        "ALTER TABLE bundles ADD COLUMN redelivery INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE bundles ADD COLUMN failure BLOB;";

/* The sums of notes are by owner: `uid` of note_counts is the key of notes.c. */
static const char upgrade_to_8[] =
        "ALTER TABLE notes ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;"
        "UPDATE notes SET owner = uid;"
        "DROP INDEX notes_finished;"
        "CREATE INDEX notes_finished ON notes (owner, note) WHERE finished_usec <> 0;"
        "DROP TRIGGER notes_insert; DROP TRIGGER notes_delete;"
        "CREATE TRIGGER notes_insert AFTER INSERT ON notes BEGIN"
        " INSERT INTO note_counts VALUES (new.owner, 1, length(new.document)),"
        "  (-1, 1, length(new.document))"
        "  ON CONFLICT (uid) DO UPDATE SET notes = notes + 1, bytes = bytes + "
        "excluded.bytes; END;"
        "CREATE TRIGGER notes_delete AFTER DELETE ON notes BEGIN"
        " UPDATE note_counts SET notes = notes - 1, bytes = bytes - length(old.document)"
        "  WHERE uid IN (old.owner, -1);"
        " DELETE FROM note_counts WHERE uid = old.owner AND notes = 0; END;";

/* What the failure of a bundle is called: FailureName; and StoredFailure. */
static const char upgrade_to_9[] =
        "ALTER TABLE bundles ADD COLUMN agreed TEXT NOT NULL DEFAULT '';"
        "ALTER TABLE bundles ADD COLUMN failure_cluster_id TEXT NOT NULL DEFAULT '';"
        "ALTER TABLE bundles ADD COLUMN failure_date_time TEXT NOT NULL DEFAULT '';"
        "ALTER TABLE bundles ADD COLUMN derived INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE bundles ADD COLUMN failure_key TEXT NOT NULL DEFAULT '';"
        "ALTER TABLE bundles ADD COLUMN failure_n INTEGER NOT NULL DEFAULT 0;"
        "CREATE TABLE failures ("
        " name TEXT PRIMARY KEY,"
        " key TEXT NOT NULL,"
        " n INTEGER NOT NULL,"
        " time_usec INTEGER NOT NULL,"
        " document BLOB NOT NULL) WITHOUT ROWID;";

/* Crash reports that are still to be made, and the signatures of those that were. */
static const char upgrade_to_10[] =
        "CREATE TABLE reports_pending ("
        " bundle INTEGER PRIMARY KEY REFERENCES bundles (row) ON DELETE CASCADE);"
        "CREATE TABLE signatures ("
        " id TEXT PRIMARY KEY,"
        " n INTEGER NOT NULL,"
        " since_usec INTEGER NOT NULL,"
        " seen_usec INTEGER NOT NULL) WITHOUT ROWID;";

/* The pinned ones, by the unit whose files the pin protects. */
static const char upgrade_to_11[] =
        "CREATE INDEX bundles_pinned ON bundles (unit_ino, unit_dev) WHERE pinned <> 0;";

static const char *const upgrades[STORE_SCHEMA_VERSION] = {
        upgrade_to_1, upgrade_to_2, upgrade_to_3, upgrade_to_4,  upgrade_to_5,  upgrade_to_6,
        upgrade_to_7, upgrade_to_8, upgrade_to_9, upgrade_to_10, upgrade_to_11,
};

/* A bundle's columns, in the order in which bundles.c binds and reads them. */
#define COLUMNS                                                                                    \
        "id, source, kind, path, supplement_of, first_seen_usec, state, reason, complete, "        \
        "incomplete, date_time, cluster_id, n_supplements, uid, unit_dev, unit_ino, n_files, "     \
        "bytes, oldest_mtime_usec, digest, changed_usec, attempts, pinned, links_held, "           \
        "s3_prefix, unit_born_usec, redelivery, failure, agreed, failure_cluster_id, "             \
        "failure_date_time, derived, failure_key, failure_n"

/* The upload underway of bundle ?1 to destination ?2. */
#define THE_UPLOAD                                                                                 \
        "SELECT upload FROM uploads WHERE destination = ?2"                                        \
        " AND bundle = (SELECT row FROM bundles WHERE id = ?1)"
/* Those of bundles that nobody ships. */
#define IDLE_UPLOADS                                                                               \
        "SELECT upload FROM uploads JOIN bundles ON row = bundle"                                  \
        " WHERE state NOT IN ('settling', 'ready', 'shipping')"

static const char *const statements[N_STORE_STATEMENTS] = {
        [STORE_BUNDLE_ADD] =
                "INSERT INTO bundles (" COLUMNS
                ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,"
                " ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28,"
                " ?29, ?30, ?31, ?32, ?33, ?34)",
        [STORE_BUNDLE_UPDATE] =
                "UPDATE bundles SET state = ?7, reason = ?8, complete = ?9, incomplete = ?10,"
                " date_time = ?11, cluster_id = ?12, n_supplements = max(n_supplements, ?13), uid "
                "= ?14,"
                " unit_dev = ?15, unit_ino = ?16, n_files = ?17, bytes = ?18,"
                " oldest_mtime_usec = ?19, digest = ?20, changed_usec = ?21, attempts = ?22,"
                " pinned = ?23, links_held = ?24, s3_prefix = ?25, unit_born_usec = ?26,"
                " redelivery = ?27, failure = ?28, agreed = ?29, failure_cluster_id = ?30,"
                " failure_date_time = ?31, derived = ?32, failure_key = ?33, failure_n = ?34"
                " WHERE id = ?1",
        [STORE_BUNDLE_GET] = "SELECT row, " COLUMNS " FROM bundles WHERE id = ?1",
        [STORE_UNIT_FIND] = "SELECT row, " COLUMNS
                            " FROM bundles WHERE path = ?1 AND source = ?2 AND supplement_of = ''"
                            " ORDER BY first_seen_usec DESC, id DESC LIMIT 1",
        [STORE_UNIT_IS_PINNED] = "SELECT EXISTS (SELECT 1 FROM bundles"
                                 " WHERE pinned <> 0 AND unit_ino = ?1 AND unit_dev = ?2 AND"
                                 " (unit_born_usec = ?3 OR unit_born_usec = 0 OR ?3 = 0))",
        /* the digest of the row with that maximum (sqlite.org, Bare columns in an aggregate query)
         */
        [STORE_UNIT_LIST] =
                "SELECT path, digest, max(first_seen_usec) FROM bundles INDEXED BY bundles_by_unit"
                " WHERE source = ?1 AND path > ?2 AND supplement_of = ''"
                " AND (state = 'quarantined' OR state IN " STORE_OVER ")"
                " GROUP BY path ORDER BY path LIMIT ?3",
        [STORE_NTH_SEEN] = "SELECT first_seen_usec FROM bundles ORDER BY first_seen_usec DESC"
                           " LIMIT 1 OFFSET ?1",
#define FAMILY "(id = ?1 OR (supplement_of = ?1 AND supplement_of <> ''))"
#define FAMILY_MAY_GO                                                                              \
        FAMILY " AND (?2 OR EXISTS (SELECT 1 FROM bundles o JOIN bundles n ON n.source = o.source" \
               " AND n.path = o.path AND n.supplement_of = ''"                                     \
               " AND n.first_seen_usec > o.first_seen_usec WHERE o.id = ?1))"                      \
               " AND NOT EXISTS (SELECT 1 FROM bundles WHERE " FAMILY                              \
               " AND (state NOT IN " STORE_OVER " OR pinned <> 0 OR links_held <> 0))"
        [STORE_FORMER_COUNT] =
                "INSERT INTO counters SELECT 'former:' || state, count(*) FROM bundles"
                " WHERE " FAMILY_MAY_GO " GROUP BY state UNION ALL"
                " SELECT 'former_bytes:' || state, sum(" CAPPED(
                        "bundles") ") FROM bundles"
                                   " WHERE " FAMILY_MAY_GO " GROUP BY state"
                                   " ON CONFLICT (name) DO UPDATE SET value = value + "
                                   "excluded.value",
        [STORE_FORMER_DROP] = "DELETE FROM bundles WHERE " FAMILY_MAY_GO,
        [STORE_COUNT_LACKING] = "SELECT count(*) FROM bundles WHERE row > ?3 AND row <= ?4"
                                " AND +state = 'delivered' AND +source = ?1 AND " LACKS("?2"),
        [STORE_LAST_ROW] = "SELECT ifnull(max(row), 0) FROM bundles",
        [STORE_DELIVERY_PUT] =
                "INSERT INTO deliveries SELECT row, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11"
                " FROM bundles WHERE id = ?1"
                " ON CONFLICT (bundle, position) DO UPDATE SET destination = ?3, state = ?4, proof "
                "= ?5,"
                " object = ?6, bytes = ?7, attempts = ?8, last_error = ?9, next_try_usec = ?10,"
                " done_usec = ?11",
        [STORE_DELIVERY_CUT] = "DELETE FROM deliveries WHERE position >= ?2"
                               " AND bundle = (SELECT row FROM bundles WHERE id = ?1)",
        [STORE_DELIVERY_LIST] = "SELECT destination, state, proof, object, bytes, attempts, "
                                "last_error, next_try_usec,"
                                " done_usec, (SELECT count(*) FROM deliveries WHERE bundle = ?1)"
                                " FROM deliveries WHERE bundle = ?1 ORDER BY position",
        [STORE_COUNTS_LIST] = "SELECT state, bundles, bytes FROM counts UNION ALL"
                              " SELECT substr(name, 8), value, 0 FROM counters"
                              " WHERE name > 'former:' AND name < 'former;' UNION ALL"
                              " SELECT substr(name, 14), 0, value FROM counters"
                              " WHERE name > 'former_bytes:' AND name < 'former_bytes;'",
        [STORE_COUNTER_ADD] = "INSERT INTO counters VALUES (?1, ?2)"
                              " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        [STORE_COUNTER_GET] = "SELECT value FROM counters WHERE name = ?1",
        [STORE_COUNTER_LIST] =
                "SELECT name, value FROM counters"
                " WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1 ORDER BY name",
        [STORE_PRINTS_PUT] = "INSERT INTO prints SELECT row, ?2 FROM bundles WHERE id = ?1"
                             " ON CONFLICT (bundle) DO UPDATE SET prints = excluded.prints",
        [STORE_PRINTS_FAMILY] =
                "SELECT prints FROM prints WHERE bundle IN"
                " (SELECT row FROM bundles WHERE id = ?1"
                "  UNION SELECT row FROM bundles WHERE supplement_of = ?1 AND supplement_of <> '' "
                "AND id <> ?2)",
        [STORE_PRINTS_OWN] = "SELECT prints FROM prints WHERE bundle ="
                             " (SELECT row FROM bundles WHERE id = ?1)",
        [STORE_UPLOAD_ADD] = "INSERT INTO uploads (bundle, destination, key, upload_id, plan, "
                             "packer, created_usec)"
                             " SELECT row, ?2, ?3, ?4, ?5, ?6, ?7 FROM bundles WHERE id = ?1",
        [STORE_UPLOAD_SET_ID] = "UPDATE uploads SET upload_id = ?3 WHERE upload = (" THE_UPLOAD ")",
        [STORE_UPLOAD_GET] = "SELECT key, upload_id, plan, packer, created_usec FROM uploads"
                             " WHERE upload = (" THE_UPLOAD ")",
#define TO_ABORTS(uploads)                                                                         \
        "INSERT OR REPLACE INTO aborts (destination, key, upload_id, since_usec)"                  \
        " SELECT u.destination, u.key, u.upload_id, min(u.created_usec, "                          \
        "ifnull(a.since_usec, u.created_usec)) FROM uploads u"                                     \
        " LEFT JOIN aborts a ON a.destination = u.destination AND a.key = u.key"                   \
        "  AND a.upload_id IS u.upload_id"                                                         \
        " WHERE u.upload IN (" uploads ")"
#define DROP(uploads) "DELETE FROM uploads WHERE upload IN (" uploads ")"
        [STORE_UPLOAD_TO_ABORTS] = TO_ABORTS(THE_UPLOAD),
        [STORE_UPLOAD_DROP] = DROP(THE_UPLOAD),
        [STORE_IDLE_EXISTS] = "SELECT EXISTS (" IDLE_UPLOADS ")",
        [STORE_IDLE_TO_ABORTS] = TO_ABORTS(IDLE_UPLOADS),
        [STORE_IDLE_DROP] = DROP(IDLE_UPLOADS),
        [STORE_UPLOAD_KNOWN] = "SELECT 1 FROM uploads"
                               " WHERE key = ?1 AND ifnull(upload_id, ?2) = ?2",
        [STORE_PART_PUT] =
                "INSERT INTO upload_parts (upload, number, first_frame, n_frames, bytes, is_last, "
                "sha256, etag, frame_bytes, state)"
                " SELECT upload, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 FROM uploads"
                " WHERE upload = (" THE_UPLOAD ")"
                " ON CONFLICT (upload, number) DO UPDATE SET first_frame = ?4, n_frames = ?5, "
                "bytes = ?6, is_last = ?7, sha256 = ?8, etag = ?9, frame_bytes = ?10, state = ?11",
        [STORE_PART_SET_ETAG] = "UPDATE upload_parts SET etag = ?4"
                                " WHERE upload = (" THE_UPLOAD ") AND number = ?3",
        [STORE_PART_NEXT] = "SELECT number, first_frame, n_frames, bytes, is_last, sha256, etag, "
                            "frame_bytes, state FROM upload_parts"
                            " WHERE upload = (" THE_UPLOAD ") AND number > ?3"
                            " ORDER BY number LIMIT 1",
        [STORE_ABORT_ADD] =
                "INSERT OR REPLACE INTO aborts (destination, key, upload_id, since_usec)"
                " VALUES (?1, ?2, ?3, min(?4, ifnull((SELECT since_usec FROM aborts"
                "  WHERE destination = ?1 AND key = ?2 AND upload_id IS ?3), ?4)))",
        [STORE_ABORT_DROP] = "DELETE FROM aborts WHERE abort = ?1",
        [STORE_ABORT_NEXT] = "SELECT abort, key, upload_id, since_usec FROM aborts"
                             " WHERE destination = ?1 AND abort > ?2 ORDER BY abort LIMIT 1",
        [STORE_ABORT_KNOWN] = "SELECT 1 FROM aborts WHERE key = ?1 AND ifnull(upload_id, ?2) = ?2",
        [STORE_ABORT_COUNT] = "SELECT count(*), count(upload_id) FROM aborts"
                              " WHERE destination = ifnull(?1, destination)",
        [STORE_ABORT_DROP_FORMER] = "DELETE FROM aborts WHERE since_usec < ?2"
                                    " AND instr(?1, char(10) || destination || char(10)) = 0",
#define NOTE_COLUMNS                                                                               \
        "id, received_usec, uid, pid, start_ticks, via, source, unit_path, s3_prefix, refused, "   \
        "finished_usec, container, document"
        [STORE_NOTE_ADD] = "INSERT INTO notes (" NOTE_COLUMNS ", owner) VALUES "
                           "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        [STORE_NOTE_FIND] = "SELECT note, finished_usec FROM notes WHERE id = ?1",
        [STORE_NOTE_COUNT] = "SELECT notes, bytes FROM note_counts WHERE uid = ?1",
/* A user namespace's uids are the highest: of many with one note each it is not a person's that
 * goes. `+` has it go by the index of `what`. */
#define NOTE_MOST(what)                                                                            \
        "SELECT c.uid FROM note_counts c WHERE +c.uid >= 0 AND EXISTS"                             \
        " (SELECT 1 FROM notes n WHERE n.owner = c.uid AND n.finished_usec <> 0)"                  \
        " ORDER BY c." what " DESC, c.uid DESC LIMIT 1"
        [STORE_NOTE_MOST_NOTES] = NOTE_MOST("notes"),
        [STORE_NOTE_MOST_BYTES] = NOTE_MOST("bytes"),
#define UNDERWAY "state IN ('settling', 'ready', 'shipping', 'quarantined')"
        [STORE_NOTE_DROP_OF] =
                "DELETE FROM notes WHERE note = ifnull("
                "(SELECT note FROM notes n WHERE n.owner = ?1 AND n.finished_usec <> 0 AND NOT "
                "EXISTS"
                " (SELECT 1 FROM bundles b WHERE b.source = n.source AND b.path = n.unit_path"
                "  AND b.supplement_of = '' AND (b." UNDERWAY " OR EXISTS"
                "  (SELECT 1 FROM bundles x WHERE x.supplement_of = b.id AND x.supplement_of <> ''"
                "   AND x." UNDERWAY "))) ORDER BY note LIMIT 1),"
                " (SELECT min(note) FROM notes WHERE owner = ?1 AND finished_usec <> 0))",
        [STORE_NOTE_SET_PROCESS] =
                "UPDATE notes SET pid = ?2, start_ticks = ?3, container = ifnull(?4, container) "
                "WHERE id = ?1",
        [STORE_NOTE_SET_UNIT] =
                "UPDATE notes SET source = ?2, unit_path = ?3, s3_prefix = ?4, refused = ?5, "
                "container = ifnull(?6, container) WHERE id = ?1",
        [STORE_NOTE_FINISH] = "UPDATE notes SET finished_usec = CASE finished_usec WHEN 0 THEN ?2"
                              " ELSE finished_usec END WHERE id = ?1",
        [STORE_NOTE_NEXT_OF_UNIT] =
                "SELECT note, " NOTE_COLUMNS " FROM notes WHERE source = ?1 AND unit_path = ?2"
                " AND note > ?3 ORDER BY note LIMIT 1",
        [STORE_NOTE_NEXT_OPEN] =
                "SELECT note, " NOTE_COLUMNS " FROM notes WHERE finished_usec = 0 AND note > ?1"
                " ORDER BY note LIMIT 1",
        [STORE_JOB_PUT] = "INSERT INTO jobs VALUES (?1, ?2, ?3, ?4, ?5)"
                          " ON CONFLICT (pid, start_ticks) DO UPDATE SET uid = ?3, seen_usec = ?4,"
                          " document = ?5",
        [STORE_JOB_CUT] = "DELETE FROM jobs WHERE (pid, start_ticks) IN (SELECT pid, start_ticks "
                          "FROM jobs ORDER BY seen_usec DESC, pid LIMIT -1 OFFSET ?1)",
        [STORE_JOB_FIND] = "SELECT pid, start_ticks, uid, seen_usec, document FROM jobs"
                           " WHERE pid = ?1 AND (?2 = 0 OR start_ticks = ?2)"
                           " ORDER BY seen_usec DESC LIMIT 1",
        [STORE_JOB_LIST] = "SELECT pid, start_ticks, uid, seen_usec, document FROM jobs"
                           " WHERE uid = ?1 ORDER BY seen_usec DESC LIMIT ?2",
        [STORE_FAILURE_PUT] = "INSERT INTO failures VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (name)"
                              " DO UPDATE SET key = ?2, n = ?3, time_usec = ?4, document = ?5",
        [STORE_FAILURE_LIST] = "SELECT name, key, n, time_usec, document FROM failures"
                               " ORDER BY name",
        [STORE_FAILURE_DROP] = "DELETE FROM failures WHERE time_usec < ?1 OR name IN (SELECT name"
                               " FROM failures ORDER BY time_usec DESC LIMIT -1 OFFSET ?2)",
        [STORE_REPORT_ADD] = "INSERT OR REPLACE INTO reports_pending"
                             " SELECT row FROM bundles WHERE id = ?1",
        [STORE_REPORT_LIST] = "SELECT id FROM reports_pending JOIN bundles ON row = bundle"
                              " ORDER BY bundle",
        [STORE_REPORT_DROP] = "DELETE FROM reports_pending WHERE bundle ="
                              " (SELECT row FROM bundles WHERE id = ?1)",
        [STORE_SIGNATURE_ADD] = "INSERT INTO signatures VALUES (?1, 1, ?2, ?2) ON CONFLICT (id)"
                                " DO UPDATE SET n = n + 1, seen_usec = ?2",
        [STORE_SIGNATURE_CUT] = "DELETE FROM signatures WHERE id IN (SELECT id FROM signatures"
                                " ORDER BY seen_usec DESC, id LIMIT -1 OFFSET ?1)",
        [STORE_SIGNATURE_LIST] = "SELECT id, n, since_usec FROM signatures"
                                 " ORDER BY seen_usec DESC, id LIMIT ?1",
        [STORE_PAGE_COUNT] = "PRAGMA page_count",
        [STORE_FREE_COUNT] = "PRAGMA freelist_count",
        [STORE_RESERVE_COUNT] = "SELECT count(*) FROM reserve",
        [STORE_RESERVE_ADD] = "INSERT INTO reserve VALUES (zeroblob(?1))",
        [STORE_RESERVE_DROP] = "DELETE FROM reserve WHERE rowid = (SELECT max(rowid) FROM reserve)",
};

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

/* The version of the agent that brought the schema up, as SQLite's application_id: an older one
 * names it. */
#define VERSION_FIELD_BITS 10
#define MAJOR_MAX 256
#define WRITER_SIZE 64

static int encode_version(void) {
        unsigned a = 0, b = 0, c = 0;
        (void)sscanf(PACKAGE_VERSION, "%4u.%3u.%3u", &a, &b, &c); /* missing fields are 0 */
        return (int)(((a << VERSION_FIELD_BITS | b) << VERSION_FIELD_BITS) | c);
}

/* @return of which neuron-collectd an application_id is. Not of another program's, which are the
 * ASCII of a name, mostly, nor of an agent older than this one, which writes no newer schema. */
static const char *name_writer(int id, char text[static WRITER_SIZE]) {
        const int mask = (1 << VERSION_FIELD_BITS) - 1, major = id >> (2 * VERSION_FIELD_BITS);
        if (id < encode_version() || major >= MAJOR_MAX)
                return "another program, or by a neuron-collectd whose version it does not tell";
        (void)snprintf(text, WRITER_SIZE, "neuron-collectd %d.%d.%d", major,
                       id >> VERSION_FIELD_BITS & mask, id & mask);
        return text;
}

static void log_newer(sqlite3 *db, int version) {
        char writer[WRITER_SIZE];
        int id = 0;
        (void)query_number(db, "PRAGMA application_id", &id); /* 0: not known */
        log_error(0,
                  "the state database has version %d, written by %s, and this agent reads versions "
                  "up to %d; install the newer agent again, or set another state_directory",
                  version, name_writer(id, writer), STORE_SCHEMA_VERSION);
}

int store_schema_upgrade(sqlite3 *db, const char *const *steps, int n_steps) {
        int version, r = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        if (r != SQLITE_OK)
                return r;
        r = query_number(db, "PRAGMA user_version", &version);
        if (r == SQLITE_OK && version < 0)
                r = SQLITE_NOTADB;
        for (int i = r == SQLITE_OK ? version : n_steps; i < n_steps && r == SQLITE_OK; i++)
                r = sqlite3_exec(db, steps[i], NULL, NULL, NULL);
        if (r == SQLITE_OK) {
                char sql[96];
                (void)snprintf(sql, sizeof sql,
                               "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
                               encode_version(), MAX(version, n_steps));
                r = sqlite3_exec(db, sql, NULL, NULL, NULL);
        }
        if (r != SQLITE_OK)
                (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL,
                                   NULL); /* nothing to do about it: r says what was wrong */
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

static int bring_up(sqlite3 *db, bool is_to_be_checked) {
        int version, r = sqlite3_exec(db, exclusive, NULL, NULL, NULL);
        if (r == SQLITE_OK)
                r = query_number(db, "PRAGMA user_version", &version);
        if (r != SQLITE_OK)
                return r;
        if (version > STORE_SCHEMA_VERSION) {
                log_newer(db, version);
                return STORE_SCHEMA_IS_NEWER;
        }
        if (is_to_be_checked)
                r = check_pages(db);
        if (r == SQLITE_OK)
                r = sqlite3_exec(db, settings, NULL, NULL, NULL);
        if (r == SQLITE_OK && version < STORE_SCHEMA_VERSION)
                r = store_schema_upgrade(db, upgrades, STORE_SCHEMA_VERSION);
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
        for (size_t i = 0; i < N_STORE_STATEMENTS && r == SQLITE_OK; i++)
                r = sqlite3_prepare_v3(s->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                                       &s->statements[i], NULL);
        if (r == SQLITE_OK)
                r = sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, (int *)NULL);
        return r;
}

int store_schema_prepare_list(Store *s, const char *where, sqlite3_stmt **ret) {
        char sql[2048];
        (void)snprintf(sql, sizeof sql,
                       "SELECT row, " COLUMNS " FROM bundles WHERE %s AND (first_seen_usec, id) > "
                       "(?3, ?4) ORDER BY first_seen_usec, id LIMIT ?8",
                       where);
        return store_errno(s, sqlite3_prepare_v2(s->db, sql, -1, ret, NULL));
}
