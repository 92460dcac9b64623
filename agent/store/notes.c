/* Rows of hook notes and of jobs. Their numbers are bounded here, in the transaction that adds one:
 * a note of an owner with too many, or of the owner with the most, is deleted. What a note may say,
 * and whom it concerns, is decided in agent/hooknotes. */

#include <errno.h>
#include <stdlib.h>

#include "agent/store/store_private.h"

#define OWNER_ALL (-1) /* the row of note_counts that has the sums of all */

/* The uid, and above it 31 bits of a hash (FNV-1a) of the container: 0 on the host. */
static int64_t owner_key(const StoredNote *n) {
        uint32_t hash = 2166136261U;
        for (const char *c = n->container; c && *c; c++)
                hash = (hash ^ (uint8_t)*c) * 16777619U;
        return (int64_t)((n->container ? (uint64_t)(hash >> 1) << 32 : 0) | n->uid);
}

void stored_note_done(StoredNote *n) {
        free(n->id);
        free(n->source);
        free(n->unit_path);
        free(n->s3_prefix);
        free(n->refused);
        free(n->container);
        free(n->document);
        *n = (StoredNote){ 0 };
}

void stored_job_done(StoredJob *j) {
        free(j->document);
        *j = (StoredJob){ 0 };
}

/* ---- bounds ---- */

typedef struct NoteSum {
        uint64_t notes, bytes;
} NoteSum;

static int count_of(Store *s, int64_t owner, NoteSum *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_NOTE_COUNT] };
        bind_number(&b, (uint64_t)owner);
        int r = next_row(s, &b);
        *ret = (NoteSum){ 0 };
        if (r == 0)
                *ret = (NoteSum){ (uint64_t)sqlite3_column_int64(b.statement, 0),
                                  (uint64_t)sqlite3_column_int64(b.statement, 1) };
        return r < 0 ? r : 0;
}

/* @return 0 and the owner who has the most, among those with a finished note; STORE_E_NOTES_FULL:
 * no note is finished */
static int find_most(Store *s, StoreStatement most, int64_t *ret_owner) {
        _cleanup_binder_ Binder b = { .statement = s->statements[most] };
        int r = next_row(s, &b);
        if (r == 0)
                *ret_owner = sqlite3_column_int64(b.statement, 0);
        return r == STORE_E_NOT_FOUND ? STORE_E_NOTES_FULL : r;
}

/* Deletes the owner's oldest finished note; notes whose bundle is underway are deleted last.
 * @return 0; STORE_E_NOTES_FULL: none has finished */
static int drop_oldest(Store *s, int64_t owner) {
        int r = run_with_number(s, STORE_NOTE_DROP_OF, (uint64_t)owner);
        return r < 0 ? r : sqlite3_changes(s->db) > 0 ? 0 : STORE_E_NOTES_FULL;
}

/* Makes room for one more of so many bytes. @param owner  OWNER_ALL: among all; then the owner
 * loses notes who has the most of what is short */
static int make_room(Store *s, int64_t owner, uint64_t bytes, const NoteSum *max) {
        for (;;) {
                NoteSum sum = { 0 };
                int64_t whose = owner;
                int r = count_of(s, owner, &sum);
                if (r < 0)
                        return r;
                bool has_place = sum.notes < max->notes;
                if (has_place && sum.bytes + bytes <= max->bytes)
                        return 0;
                if (owner == OWNER_ALL)
                        r = find_most(s, has_place ? STORE_NOTE_MOST_BYTES : STORE_NOTE_MOST_NOTES,
                                      &whose);
                if (r == 0)
                        r = drop_oldest(s, whose);
                if (r != 0)
                        return r;
        }
}

/* ---- notes ---- */

/* @return 0 when it is there, STORE_E_NOT_FOUND, -errno */
static int find_note(Store *s, const char *id) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_NOTE_FIND] };
        bind_text(&b, id);
        return next_row(s, &b);
}

static int write_note(Store *s, const StoredNote *n) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_NOTE_ADD] };
        bind_text(&b, n->id);
        bind_number(&b, n->received_usec);
        bind_number(&b, n->uid);
        bind_number(&b, (uint64_t)n->pid);
        bind_number(&b, n->start_ticks);
        bind_text(&b, n->by_mailbox ? "mailbox" : "socket");
        bind_text(&b, n->source);
        bind_bytes(&b, n->unit_path);
        bind_bytes(&b, n->s3_prefix);
        bind_bytes(&b, n->refused);
        bind_number(&b, n->finished_usec);
        bind_text(&b, n->container);
        bind_bytes(&b, n->document);
        bind_number(&b, (uint64_t)owner_key(n));
        return run_change(s, &b);
}

static int add_note(Store *s, const StoredNote *n) {
        static const NoteSum of_one = { STORE_NOTES_MAX_OF_OWNER, STORE_NOTES_MAX_BYTES_OF_OWNER },
                             of_all = { STORE_NOTES_MAX, STORE_NOTES_MAX_BYTES };
        uint64_t bytes = strlen(n->document);

        int r = find_note(s, n->id);
        if (r != STORE_E_NOT_FOUND)
                return r == 0 ? STORE_E_NOTE_TWICE : r;
        r = store_reserve_check(s);
        if (r == 0)
                r = make_room(s, owner_key(n), bytes, &of_one);
        if (r == 0)
                r = make_room(s, OWNER_ALL, bytes, &of_all);
        return r == 0 ? write_note(s, n) : r;
}

int store_note_add(Store *s, const StoredNote *n) {
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        return store_savepoint_end(s, add_note(s, n));
}

int store_note_set_process(Store *s, const StoredNote *n) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_NOTE_SET_PROCESS] };
        bind_text(&b, n->id);
        bind_number(&b, (uint64_t)n->pid);
        bind_number(&b, n->start_ticks);
        bind_text(&b, n->container);
        return store_change(s, &b);
}

int store_note_set_unit(Store *s, const StoredNote *n) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_NOTE_SET_UNIT] };
        bind_text(&b, n->id);
        bind_text(&b, n->source);
        bind_bytes(&b, n->unit_path);
        bind_bytes(&b, n->s3_prefix);
        bind_bytes(&b, n->refused);
        bind_text(&b, n->container);
        return store_change(s, &b);
}

int store_note_finish(Store *s, const char *id, uint64_t now_usec) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_NOTE_FINISH] };
        bind_text(&b, id);
        bind_number(&b, now_usec);
        return store_change(s, &b);
}

/* @param ret_row  its place in the order */
static int read_note(sqlite3_stmt *st, int64_t *ret_row, StoredNote *n) {
        ColumnReader r = { .statement = st };

        *ret_row = (int64_t)read_number(&r);
        n->id = read_string(&r, false);
        n->received_usec = read_number(&r);
        n->uid = (uid_t)read_number(&r);
        n->pid = (pid_t)read_number(&r);
        n->start_ticks = read_number(&r);
        _cleanup_free_ char *via = read_string(&r, false);
        n->by_mailbox = via && strcmp(via, "mailbox") == 0;
        n->source = read_string(&r, true);
        n->unit_path = read_string(&r, true);
        n->s3_prefix = read_string(&r, true);
        n->refused = read_string(&r, true);
        n->finished_usec = read_number(&r);
        n->container = read_string(&r, true);
        n->document = read_string(&r, false);
        return r.error;
}

/* @param unit  of STORE_NOTE_NEXT_OF_UNIT
 * @return 0, STORE_E_NOT_FOUND at the end, -errno; -EUCLEAN: the row is invalid, and *at is behind
 * it */
static int next_note(Store *s, StoreStatement which, const StoredUnit *unit, int64_t *at,
                     StoredNote *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[which] };
        if (unit) {
                bind_text(&b, unit->source);
                bind_bytes(&b, unit->path);
        }
        bind_number(&b, (uint64_t)*at);
        int r = next_row(s, &b);
        return r == 0 ? read_note(b.statement, at, ret) : r;
}

static int list_notes(Store *s, const StoredUnit *unit, StoreOnNote on_note, void *userdata) {
        StoreStatement which = unit ? STORE_NOTE_NEXT_OF_UNIT : STORE_NOTE_NEXT_OPEN;
        int64_t at = 0;
        int r = 0;

        while (r == 0 || r == -EUCLEAN) { /* that one no agent wrote */
                _cleanup_(stored_note_done) StoredNote n = { 0 };
                r = next_note(s, which, unit, &at, &n);
                if (r == 0 && (r = on_note(&n, userdata)) == -EUCLEAN)
                        return r;
        }
        return r < 0 ? r : 0;
}

int store_note_list(Store *s, const StoredUnit *unit, StoreOnNote on_note, void *userdata) {
        return list_notes(s, unit, on_note, userdata);
}

int store_note_list_open(Store *s, StoreOnNote on_note, void *userdata) {
        return list_notes(s, NULL, on_note, userdata);
}

/* ---- jobs ---- */

int store_job_put(Store *s, const StoredJob *j) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_JOB_PUT] };
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        bind_number(&b, (uint64_t)j->pid);
        bind_number(&b, j->start_ticks);
        bind_number(&b, j->uid);
        bind_number(&b, j->seen_usec);
        bind_bytes(&b, j->document);
        r = run_change(s, &b);
        return store_savepoint_end(s,
                                   r == 0 ? run_with_number(s, STORE_JOB_CUT, STORE_JOBS_MAX) : r);
}

static int read_job(sqlite3_stmt *st, StoredJob *ret) {
        ColumnReader reader = { .statement = st };
        _cleanup_(stored_job_done) StoredJob j = { .pid = (pid_t)read_number(&reader) };
        j.start_ticks = read_number(&reader);
        j.uid = (uid_t)read_number(&reader);
        j.seen_usec = read_number(&reader);
        j.document = read_string(&reader, false);
        if (reader.error < 0)
                return reader.error;
        *ret = j;
        j = (StoredJob){ 0 }; /* it is theirs now */
        return 0;
}

int store_job_find(Store *s, pid_t pid, uint64_t start_ticks, StoredJob *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_JOB_FIND] };
        bind_number(&b, (uint64_t)pid);
        bind_number(&b, start_ticks);
        int r = next_row(s, &b);
        return r == 0 ? read_job(b.statement, ret) : r;
}

int store_job_list(Store *s, uid_t uid, size_t max, StoredJob *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_JOB_LIST] };
        size_t n = 0;
        int r = 0;

        bind_number(&b, uid);
        bind_number(&b, max);
        while (r == 0 && n < max && (r = next_row(s, &b)) == 0) {
                r = read_job(b.statement, &ret[n]);
                n += r == 0;
                r = r == -EUCLEAN ? 0 : r; /* no agent wrote it */
        }
        if (r >= 0)
                return (int)n;
        while (n > 0)
                stored_job_done(&ret[--n]);
        return r;
}
