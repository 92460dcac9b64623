/* What hooks reported about a unit, for the manifests of its bundles. Reads the notes from the
 * store, drops those of users who may not annotate the unit's files, and chooses those that a
 * bundle's manifest names: first the notes of processes that have files in the bundle. Where the
 * unit's own user has sent no note, the job comes from the processes that were seen at devices.
 *
 * The notes come from users and are untrusted: they were filtered when they were stored
 * (agent/hooknotes), and here they only count by the owners of the files. Who writes the manifest,
 * and when a delivery reads its notes, is delivery_attempt.c's and the scheduler's business. */
#include "agent/delivery/delivery_notes.h"

#include <errno.h>
#include <string.h>

#include "lib/base/parse.h"
#include "lib/neuron/names.h"
#include "lib/neuron/nrt_status.h"

/* Processes of one user that were seen at devices; a node runs 128 at once. */
#define SEEN_MAX 512

static bool parse_number(const char *text, uint64_t *ret) {
        return text && parse_u64_range(text, 0, INT64_MAX, ret) == 0;
}

static ManifestFailure build_failure(const DeliveryNote *n) {
        const HookNote *note = &n->note;
        const char *symbol = note->has_error_number ? nrt_status_name(note->error_number) : NULL;
        ManifestFailure f = { .has_code = note->has_error_number,
                              .code = note->error_number,
                              .name = symbol ? symbol : note->error_code,
                              .location = note->error_location,
                              .neff_name = note->neff_name,
                              .neff_uuid = note->neff_uuid,
                              .container = n->container,
                              .rank = note->job.source ? note->job.rank : -1,
                              .time_usec = n->received_usec };
        f.has_pid = parse_number(note->pid, &f.pid);
        f.has_tid = parse_number(note->tid, &f.tid);
        f.has_log_id = parse_number(note->log_id, &f.log_id);
        return f;
}

/* Selects the notes of a bundle: first those of processes that have files in it, in the order of
 * arrival, then the others. A supplement whose processes are known gets only the first kind: ranks
 * share a directory, and other ranks' files are in other bundles.
 * @param ret  room for all of them; the notes are borrowed @return their number */
static size_t select_notes(const DeliveryNotes *n, const NamedPids *pids, bool is_supplement,
                           const DeliveryNote **ret) {
        bool is_known = pids->n > 0 && !pids->is_cut;
        size_t n_selected = 0;
        for (int has_files = 1; has_files >= 0; has_files--)
                for (size_t i = 0; i < n->n && (has_files || !is_supplement || !is_known); i++) {
                        uint64_t pid = 0;
                        (void)parse_number(n->items[i].note.pid, &pid); /* or 0 */
                        if (named_pids_contain(pids, (int64_t)pid) == (has_files > 0))
                                ret[n_selected++] = &n->items[i];
                }
        return n_selected;
}

/* @param n  may be NULL @return ret, borrowing from n; NULL: the note names no job */
static const ManifestJob *job_of_note(const DeliveryNote *n, ManifestJob *ret) {
        const JobIdentity *job = n ? &n->note.job : NULL;
        if (!job || !job->source)
                return NULL;
        *ret = (ManifestJob){ .key = job->key[0] ? job->key : NULL,
                              .source = job->source,
                              .rank = job->rank,
                              .world_size = job->world_size };
        return ret;
}

static void note_done(DeliveryNote *n) {
        hook_note_done(&n->note);
        free(n->container);
}

typedef struct NotesReading {
        DeliveryNotes notes;
        const FileOwners *owners;
} NotesReading;

static int on_note(const StoredNote *stored, void *userdata) {
        NotesReading *reading = userdata;
        DeliveryNotes *n = &reading->notes;
        DeliveryNote *item = &n->items[n->n];
        uid_t sender =
                note_sender(&(Owner){ .uid = stored->uid }, stored->container, stored->by_mailbox)
                        .uid;
        if (!uid_may_annotate(reading->owners, sender))
                return 0;
        /* It was filtered before it was stored. */
        int r = hook_note_parse_stored(stored->document, &item->note);
        if (r != 0)
                return MIN(r, 0);
        item->uid = sender;
        item->received_usec = stored->received_usec;
        /* without memory it is left out */
        item->container = stored->container ? strdup(stored->container) : NULL;
        return ++n->n == MANIFEST_FAILURES_MAX;
}

static int read_seen(DeliveryNotes *ret, Store *store, const BundleRecord *b) {
        ret->seen = calloc(SEEN_MAX, sizeof *ret->seen);
        int n = ret->seen ? store_job_list(store, b->uid, SEEN_MAX, ret->seen) : -ENOMEM;
        ret->n_seen = n > 0 ? (size_t)n : 0;
        return MIN(n, 0);
}

/* Those of others may turn out not to count. */
static bool has_own(const DeliveryNotes *n, uid_t uid) {
        for (size_t i = 0; i < n->n; i++)
                if (n->items[i].uid == uid || n->items[i].uid == 0)
                        return true;
        return false;
}

int delivery_notes_read(DeliveryNotes *ret, Store *store, const Bundle *b) {
        const BundleRecord *rec = &b->rec;
        NotesReading reading = { .owners = &b->facts.owners };
        DeliveryNotes *n = &reading.notes;
        n->items = calloc(MANIFEST_FAILURES_MAX, sizeof *n->items);
        int r = n->items ? store_note_list(store, &(StoredUnit){ rec->source, rec->path }, on_note,
                                           &reading)
                         : -ENOMEM;
        if (r >= 0 && source_kind_has_incident(rec->kind) && !has_own(n, rec->uid))
                r = read_seen(n, store, rec);
        if (r < 0 || (n->n == 0 && n->n_seen == 0)) {
                delivery_notes_done(n);
                *ret = (DeliveryNotes){ 0 };
                return MIN(r, 0);
        }
        *ret = *n;
        return 0;
}

size_t delivery_notes_filter(DeliveryNotes *n, const FileOwners *owners) {
        size_t n_kept = 0, n_before = n->n;
        for (size_t i = 0; i < n_before; i++)
                if (uid_may_annotate(owners, n->items[i].uid))
                        n->items[n_kept++] = n->items[i];
                else
                        note_done(&n->items[i]);
        n->n = n_kept;
        return n_before - n_kept;
}

void delivery_notes_done(DeliveryNotes *n) {
        for (size_t i = 0; i < n->n; i++)
                note_done(&n->items[i]);
        free(n->items);
        for (size_t i = 0; i < n->n_seen; i++)
                stored_job_done(&n->seen[i]);
        free(n->seen);
        *n = (DeliveryNotes){ 0 };
}

bool delivery_notes_set_failure(Bundle *b, const DeliveryNotes *n) {
        const DeliveryNote *notes[MANIFEST_FAILURES_MAX];
        ManifestJob job;
        char *text = NULL;
        if (select_notes(n, &b->pids, b->rec.supplement_of[0], notes) > 0) {
                const ManifestFailure first = build_failure(notes[0]);
                text = manifest_summarize_failure(&first, job_of_note(notes[0], &job));
        }
        bool is_known = b->rec.supplement_of[0] && b->pids.n > 0; /* its processes have no note */
        if (text ? b->rec.failure && strcmp(b->rec.failure, text) == 0
                 : !b->rec.failure || !is_known) {
                free(text);
                return false;
        }
        free(b->rec.failure);
        b->rec.failure = text;
        return true;
}

bool delivery_notes_record_failure(Store *store, Bundle *b) {
        DeliveryNotes notes = { 0 };
        (void)delivery_notes_read(&notes, store, b); /* else its delivery reads them */
        bool has_changed = delivery_notes_set_failure(b, &notes);
        delivery_notes_done(&notes);
        return has_changed;
}

/* ---- for the manifest ---- */

int delivery_notes_describe(const DeliveryNotes *n, const NamedPids *pids, bool is_supplement,
                            DeliveryNotesText *ret) {
        const DeliveryNote *notes[MANIFEST_FAILURES_MAX];
        DeliveryNotesText t = { .n_failures = select_notes(n, pids, is_supplement, notes) };
        t.failures = calloc(t.n_failures + 1, sizeof *t.failures);
        if (!t.failures)
                return -ENOMEM;
        for (size_t i = 0; i < t.n_failures; i++)
                t.failures[i] = build_failure(notes[i]);
        t.has_job = job_of_note(t.n_failures > 0 ? notes[0] : NULL, &t.job);
        *ret = t;
        return 0;
}

void delivery_notes_text_done(DeliveryNotesText *t) {
        free(t->failures);
        *t = (DeliveryNotesText){ 0 };
}
