-- state.db of a state directory with a dump that was copied out of a container and is not
-- delivered, as schema version 5 wrote it. @PATH@ is the copy, @DEV@ and @INO@ its directory's.
PRAGMA user_version = 5;
CREATE TABLE bundles ( row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL,
 kind TEXT NOT NULL, path BLOB NOT NULL, state TEXT NOT NULL, reason BLOB, complete INTEGER NOT
 NULL, incomplete BLOB, date_time TEXT NOT NULL, cluster_id TEXT NOT NULL, supplement_of TEXT
 NOT NULL, n_supplements INTEGER NOT NULL, uid INTEGER NOT NULL, unit_dev INTEGER NOT NULL,
 unit_ino INTEGER NOT NULL, n_files INTEGER NOT NULL, bytes INTEGER NOT NULL, oldest_mtime_usec
 INTEGER NOT NULL, digest INTEGER NOT NULL, first_seen_usec INTEGER NOT NULL, changed_usec
 INTEGER NOT NULL, attempts INTEGER NOT NULL, pinned INTEGER NOT NULL, links_held INTEGER NOT
 NULL, s3_prefix BLOB, unit_born_usec INTEGER NOT NULL DEFAULT 0);
CREATE TABLE deliveries ( bundle INTEGER NOT NULL REFERENCES bundles (row) ON DELETE CASCADE,
 position INTEGER NOT NULL, destination TEXT NOT NULL, state TEXT NOT NULL, proof TEXT, object
 BLOB, bytes INTEGER NOT NULL, attempts INTEGER NOT NULL, last_error BLOB, next_try_usec INTEGER
 NOT NULL, done_usec INTEGER NOT NULL, PRIMARY KEY (bundle, position)) WITHOUT ROWID;
CREATE TABLE prints ( bundle INTEGER PRIMARY KEY REFERENCES bundles (row) ON DELETE CASCADE,
 prints BLOB NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE counts ( state TEXT PRIMARY KEY, bundles INTEGER NOT NULL, bytes INTEGER NOT NULL)
 WITHOUT ROWID;
CREATE TABLE uploads ( upload INTEGER PRIMARY KEY, bundle INTEGER NOT NULL REFERENCES bundles
 (row) ON DELETE CASCADE, destination TEXT NOT NULL, key BLOB NOT NULL, upload_id BLOB, plan
 BLOB NOT NULL, packer TEXT NOT NULL, created_usec INTEGER NOT NULL, UNIQUE (bundle,
 destination));
CREATE TABLE upload_parts ( part INTEGER PRIMARY KEY, upload INTEGER NOT NULL REFERENCES uploads
 (upload) ON DELETE CASCADE, number INTEGER NOT NULL, first_frame INTEGER NOT NULL, n_frames
 INTEGER NOT NULL, bytes INTEGER NOT NULL, is_last INTEGER NOT NULL, sha256 BLOB NOT NULL, etag
 BLOB, frame_bytes BLOB NOT NULL, state BLOB NOT NULL, UNIQUE (upload, number));
CREATE TABLE aborts ( abort INTEGER PRIMARY KEY AUTOINCREMENT, destination TEXT NOT NULL, key
 BLOB NOT NULL, upload_id BLOB, since_usec INTEGER NOT NULL);
CREATE TABLE notes ( note INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, received_usec INTEGER
 NOT NULL, uid INTEGER NOT NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL, via TEXT
 NOT NULL, source TEXT, unit_path BLOB, s3_prefix BLOB, refused BLOB, finished_usec INTEGER NOT
 NULL, container TEXT, document BLOB NOT NULL);
CREATE TABLE note_counts ( uid INTEGER PRIMARY KEY, notes INTEGER NOT NULL, bytes INTEGER NOT
 NULL);
CREATE TABLE jobs ( pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL, uid INTEGER NOT NULL,
 seen_usec INTEGER NOT NULL, document BLOB NOT NULL, PRIMARY KEY (pid, start_ticks)) WITHOUT
 ROWID;
CREATE INDEX bundles_by_state ON bundles (state, first_seen_usec);
CREATE INDEX bundles_by_age ON bundles (first_seen_usec);
CREATE INDEX bundles_by_base ON bundles (supplement_of) WHERE supplement_of <> '';
CREATE TRIGGER bundles_insert AFTER INSERT ON bundles BEGIN INSERT INTO counts VALUES
 (new.state, 1, CASE WHEN new.bytes BETWEEN 0 AND 281474976710656 THEN new.bytes ELSE
 281474976710656 END)  ON CONFLICT (state) DO UPDATE SET bundles = bundles + 1, bytes = bytes +
 excluded.bytes; END;
CREATE TRIGGER bundles_update AFTER UPDATE OF state, bytes ON bundles WHEN old.state <>
 new.state OR old.bytes <> new.bytes BEGIN UPDATE counts SET bundles = bundles - 1, bytes =
 bytes - CASE WHEN old.bytes BETWEEN 0 AND 281474976710656 THEN old.bytes ELSE 281474976710656
 END WHERE state = old.state; INSERT INTO counts VALUES (new.state, 1, CASE WHEN new.bytes
 BETWEEN 0 AND 281474976710656 THEN new.bytes ELSE 281474976710656 END)  ON CONFLICT (state) DO
 UPDATE SET bundles = bundles + 1, bytes = bytes + excluded.bytes; END;
CREATE TRIGGER bundles_delete AFTER DELETE ON bundles BEGIN UPDATE counts SET bundles = bundles
 - 1, bytes = bytes - CASE WHEN old.bytes BETWEEN 0 AND 281474976710656 THEN old.bytes ELSE
 281474976710656 END WHERE state = old.state; END;
CREATE INDEX uploads_by_key ON uploads (key);
CREATE UNIQUE INDEX aborts_by_upload ON aborts (destination, key, ifnull(upload_id, x''));
CREATE TRIGGER bundles_discovered AFTER INSERT ON bundles BEGIN INSERT INTO counters VALUES
 ('discovered', 1)  ON CONFLICT (name) DO UPDATE SET value = value + 1; END;
CREATE INDEX bundles_held ON bundles (state, first_seen_usec, id) WHERE links_held = 1;
CREATE INDEX bundles_by_unit ON bundles (source, path, first_seen_usec, state, digest) WHERE
 supplement_of = '';
CREATE INDEX notes_by_unit ON notes (source, unit_path) WHERE source IS NOT NULL;
CREATE INDEX notes_finished ON notes (uid, note) WHERE finished_usec <> 0;
CREATE INDEX notes_open ON notes (note) WHERE finished_usec = 0;
CREATE TRIGGER notes_insert AFTER INSERT ON notes BEGIN INSERT INTO note_counts VALUES (new.uid,
 1, length(new.document)),  (-1, 1, length(new.document))  ON CONFLICT (uid) DO UPDATE SET notes
 = notes + 1, bytes = bytes + excluded.bytes; END;
CREATE TRIGGER notes_delete AFTER DELETE ON notes BEGIN UPDATE note_counts SET notes = notes -
 1, bytes = bytes - length(old.document)  WHERE uid IN (old.uid, -1); DELETE FROM note_counts
 WHERE uid = old.uid AND notes = 0; END;
CREATE INDEX jobs_by_age ON jobs (seen_usec);
CREATE INDEX note_counts_by_notes ON note_counts (notes);
CREATE INDEX note_counts_by_bytes ON note_counts (bytes);
INSERT INTO bundles VALUES(1, 'neuron-core-dump-20260527T051233-a243fbd7011b',
 'containers-core-dumps', 'neuron-core-dump', @PATH@, 'ready', NULL, 1, NULL, '20260527-051233',
 'd99e36ea74c263ca', '', 0, 0, @DEV@, @INO@, 3, 1100925, 1795364656458206, -4673300791766587319,
 1795364656673181, 1795364657685605, 0, 0, 1, NULL, 0);
INSERT INTO deliveries VALUES(1,0,'archive','pending',NULL,NULL,0,0,NULL,0,0);
INSERT INTO counters VALUES('container_copies:whole',1);
INSERT INTO counters VALUES('hook_notes:socket',1);
INSERT INTO notes
 VALUES(1, 'cc5284f1a341c41d9bf14b28b14a1134', 1795364656462833, 0, 20252, 243835, 'socket',
 'containers-core-dumps', @PATH@, NULL, NULL, 1795364656593100, NULL, CAST('{"schema":
 "neuron-collectd/hook-note/1", "id": "cc5284f1a341c41d9bf14b28b14a1134", "written_usec":
 1795364656462417, "arguments": {"neff_name": "model.neff", "neff_uuid":
 "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f", "date_time": "20260527-051233", "pid": "7", "tid": "1",
 "log_id": "4", "instance_id": "i-0a1b2c3d4e5f60718", "cluster_id": "d99e36ea74c263ca",
 "error_location": "nrt_execute", "error_code": "1200", "local_output_dir": "/dumps"},
 "environment": {}}' AS BLOB));
