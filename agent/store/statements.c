/* Every SQL statement that runs on an open database, against the tables of schema.c. All are
 * prepared when the database is opened and kept; a database whose tables lack something that they
 * need is noticed then. The list of bundles alone is put together for each call, because its
 * condition varies.
 *
 * The columns of a statement are bound and read by the file whose rows they are: bundles.c,
 * ledger.c, notes.c, failures.c, reports.c, counters.c, reserve.c. */
#include "agent/store/store_private.h"

#include <stdio.h>

/* A bundle's columns, in the order in which bundles.c binds and reads them. */
#define COLUMNS                                                                                    \
        "id, source, kind, path, supplement_of, first_seen_usec, state, reason, complete, "        \
        "incomplete, date_time, cluster_id, n_supplements, uid, unit_dev, unit_ino, n_files, "     \
        "bytes, oldest_mtime_usec, digest, changed_usec, attempts, pinned, links_held, "           \
        "s3_prefix, unit_born_usec, origin, failure, agreed, failure_cluster_id, "                 \
        "failure_date_time, derived, failure_key, failure_n, about, subject"

/* The upload of bundle ?1 to destination ?2 that is underway. */
#define THE_UPLOAD                                                                                 \
        "SELECT upload FROM uploads WHERE destination = ?2"                                        \
        " AND bundle = (SELECT row FROM bundles WHERE id = ?1)"
/* Uploads of bundles that are not shipped any more. */
#define IDLE_UPLOADS                                                                               \
        "SELECT upload FROM uploads JOIN bundles ON row = bundle"                                  \
        " WHERE state NOT IN ('settling', 'ready', 'shipping')"

static const char *const statements[N_STORE_STATEMENTS] = {
        [STORE_BUNDLE_ADD] =
                "INSERT INTO bundles (" COLUMNS
                ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,"
                " ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28,"
                " ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36)",
        [STORE_BUNDLE_UPDATE] =
                "UPDATE bundles SET state = ?7, reason = ?8, complete = ?9, incomplete = ?10,"
                " date_time = ?11, cluster_id = ?12, n_supplements = max(n_supplements, ?13), uid "
                "= ?14,"
                " unit_dev = ?15, unit_ino = ?16, n_files = ?17, bytes = ?18,"
                " oldest_mtime_usec = ?19, digest = ?20, changed_usec = ?21, attempts = ?22,"
                " pinned = ?23, links_held = ?24, s3_prefix = ?25, unit_born_usec = ?26,"
                " origin = ?27, failure = ?28, agreed = ?29, failure_cluster_id = ?30,"
                " failure_date_time = ?31, derived = ?32, failure_key = ?33, failure_n = ?34,"
                " about = ?35, subject = ?36"
                " WHERE id = ?1",
        [STORE_BUNDLE_NUMBER] = "UPDATE bundles SET failure_key = ?2, failure_n = ?3 WHERE id = ?1",
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
                " SELECT 'former_bytes:' || state, sum(" STORE_CAPPED(
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

int store_statements_prepare(Store *s) {
        int r = SQLITE_OK;
        for (size_t i = 0; i < N_STORE_STATEMENTS && r == SQLITE_OK; i++)
                r = sqlite3_prepare_v3(s->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                                       &s->statements[i], NULL);
        return r;
}

void store_statements_finalize(Store *s) {
        for (size_t i = 0; i < N_STORE_STATEMENTS; i++) {
                (void)sqlite3_finalize(s->statements[i]); /* repeats an error that was handled */
                s->statements[i] = NULL;
        }
}

int store_statements_prepare_list(Store *s, const char *where, sqlite3_stmt **ret) {
        char sql[2048];
        (void)snprintf(sql, sizeof sql,
                       "SELECT row, " COLUMNS " FROM bundles WHERE %s AND (first_seen_usec, id) > "
                       "(?3, ?4) ORDER BY first_seen_usec, id LIMIT ?8",
                       where);
        return sqlite3_prepare_v2(s->db, sql, -1, ret, NULL);
}
