#include "agent/ship_notes.h"

#include <errno.h>
#include <string.h>

#include "agent/store/notes_store.h"
#include "lib/base/parse.h"
#include "lib/dump/names.h"
#include "lib/dump/nrt_status.h"

#define SEEN_MAX 512 /* processes of one user that were seen at devices; a node runs 128 at once */

static bool number_of(const char *text, uint64_t *ret) {
        return text && parse_u64_range(text, 0, INT64_MAX, ret) == 0;
}

static ManifestFailure failure_of(const HookNote *note, uint64_t received_usec) {
        const char *symbol = note->has_error_number ? nrt_status_name(note->error_number) : NULL;
        ManifestFailure f = { .has_code = note->has_error_number,
                              .code = note->error_number,
                              .name = symbol ? symbol : note->error_code,
                              .location = note->error_location,
                              .neff_name = note->neff_name,
                              .neff_uuid = note->neff_uuid,
                              .rank = note->job.source ? note->job.rank : -1,
                              .time_usec = received_usec };
        f.has_pid = number_of(note->pid, &f.pid);
        f.has_tid = number_of(note->tid, &f.tid);
        f.has_log_id = number_of(note->log_id, &f.log_id);
        return f;
}

static int on_note(const StoredNote *stored, void *userdata) {
        ShipNotes *n = userdata;
        const char *why;
        HookNote *note = &n->notes[n->n];
        /* It was filtered before it was stored. */
        int r = hook_note_parse(stored->document, strlen(stored->document), NULL, note, &why);
        if (r < 0)
                return r;
        if (r > 0)
                return 0;
        n->failures[n->n++] = failure_of(note, stored->received_usec);
        return n->n == MANIFEST_FAILURES_MAX;
}

static int read_seen(ShipNotes *ret, Store *store, const BundleRecord *b) {
        *ret = (ShipNotes){ .seen = calloc(SEEN_MAX, sizeof *ret->seen) };
        int n = ret->seen ? store_job_list(store, b->uid, SEEN_MAX, ret->seen) : -ENOMEM;
        ret->n_seen = n > 0 ? (size_t)n : 0;
        if (ret->n_seen == 0)
                ship_notes_done(ret);
        return MIN(n, 0);
}

int ship_notes_read(ShipNotes *ret, Store *store, const BundleRecord *b) {
        ShipNotes n = { .notes = calloc(MANIFEST_FAILURES_MAX, sizeof *n.notes),
                        .failures = calloc(MANIFEST_FAILURES_MAX, sizeof *n.failures) };
        int r = n.notes && n.failures ? store_note_list(store, b->source, b->path, on_note, &n)
                                      : -ENOMEM;
        if (r < 0 || n.n == 0) {
                ship_notes_done(&n);
                *ret = (ShipNotes){ 0 };
                return r < 0 || !source_kind_has_incident(b->kind) ? MIN(r, 0)
                                                                   : read_seen(ret, store, b);
        }
        const JobIdentity *job = &n.notes[0].job; /* moved with what it is in */
        n.has_job = job->source != NULL;
        n.job = (ManifestJob){ .key = job->key[0] ? job->key : NULL,
                               .source = job->source,
                               .rank = job->rank,
                               .world_size = job->world_size };
        *ret = n;
        return 0;
}

void ship_notes_done(ShipNotes *n) {
        for (size_t i = 0; i < n->n; i++)
                hook_note_done(&n->notes[i]);
        free(n->notes);
        free(n->failures);
        for (size_t i = 0; i < n->n_seen; i++)
                stored_job_done(&n->seen[i]);
        free(n->seen);
        *n = (ShipNotes){ 0 };
}

/* ---- without a note ---- */

static bool names_process(const StoredJob *seen, const PlanMember *m, SourceKind kind) {
        const char *slash = strrchr(m->path, '/');
        DumpName name;
        if (m->kind == MEMBER_SNAPSHOT || m->uid != seen->uid)
                return false;
        dump_name_parse(kind, slash ? slash + 1 : m->path, &name);
        return name.pid == seen->pid;
}

static bool is_writer(const StoredJob *seen, const Plan *plan, SourceKind kind) {
        bool is_named = false;
        uint64_t newest = 0;
        for (size_t i = 0; i < plan_n_members(plan); i++) {
                const PlanMember *m = plan_member(plan, i);
                if (m->kind != MEMBER_SNAPSHOT && m->mtime_sec >= 0)
                        newest = MAX(newest,
                                     (uint64_t)m->mtime_sec * USEC_PER_SEC + m->mtime_nsec / 1000);
                is_named = is_named || names_process(seen, m, kind);
        }
        return is_named && seen->seen_usec <= newest;
}

static int64_t number_in(const json_t *job, const char *key) {
        const json_t *v = json_object_get(job, key);
        return json_is_integer(v) && json_integer_value(v) >= 0 ? json_integer_value(v) : -1;
}

bool ship_notes_find_job(const ShipNotes *n, const Plan *plan, SourceKind kind, ManifestJob *ret,
                         json_t **ret_owner) {
        size_t i = 0;
        while (i < n->n_seen && !is_writer(&n->seen[i], plan, kind))
                i++;
        json_t *row = i < n->n_seen ? json_loads(n->seen[i].document, 0, NULL) : NULL;
        const json_t *job = json_object_get(row, "job");
        const char *source = json_string_value(json_object_get(job, "source"));
        if (!source) {
                json_decref(row);
                return false;
        }
        *ret = (ManifestJob){ .key = json_string_value(json_object_get(job, "key")),
                              .source = source,
                              .rank = number_in(job, "rank"),
                              .world_size = number_in(job, "world_size") };
        if (ret->key && !ret->key[0])
                ret->key = NULL;
        *ret_owner = row;
        return true;
}

/* ---- prefixes ---- */

static int on_prefix(const StoredNote *stored, void *userdata) {
        char **ret = userdata;
        if (!stored->s3_prefix)
                return 0;
        *ret = strdup(stored->s3_prefix);
        return *ret ? 1 : -ENOMEM;
}

char *ship_notes_prefix(Store *store, const char *source, const char *unit_path) {
        char *prefix = NULL;
        (void)store_note_list(store, source, unit_path, on_prefix,
                              &prefix); /* none: the destination's own */
        return prefix;
}
