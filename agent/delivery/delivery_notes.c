#include "agent/delivery/delivery.h"

#include <errno.h>
#include <string.h>

#include "agent/store/notes_store.h"
#include "lib/base/parse.h"
#include "lib/neuron/names.h"
#include "lib/neuron/nrt_status.h"

#define SEEN_MAX                                                                                   \
        512 /* processes of one user that were seen at devices; a node runs 128 at once            \
             */

static bool parse_number(const char *text, uint64_t *ret) {
        return text && parse_u64_range(text, 0, INT64_MAX, ret) == 0;
}

static ManifestFailure build_failure(const HookNote *note, uint64_t received_usec) {
        const char *symbol = note->has_error_number ? nrt_status_name(note->error_number) : NULL;
        ManifestFailure f = { .has_code = note->has_error_number,
                              .code = note->error_number,
                              .name = symbol ? symbol : note->error_code,
                              .location = note->error_location,
                              .neff_name = note->neff_name,
                              .neff_uuid = note->neff_uuid,
                              .rank = note->job.source ? note->job.rank : -1,
                              .time_usec = received_usec };
        f.has_pid = parse_number(note->pid, &f.pid);
        f.has_tid = parse_number(note->tid, &f.tid);
        f.has_log_id = parse_number(note->log_id, &f.log_id);
        return f;
}

typedef struct Reading {
        DeliveryNotes notes;
        const Owners *owners;
} Reading;

static int on_note(const StoredNote *stored, void *userdata) {
        Reading *reading = userdata;
        DeliveryNotes *n = &reading->notes;
        const char *why;
        HookNote *note = &n->notes[n->n];
        if (!uid_may_annotate(reading->owners, stored->uid))
                return 0;
        /* It was filtered before it was stored. */
        int r = hook_note_parse(stored->document, strlen(stored->document), NULL, note, &why);
        if (r < 0)
                return r;
        if (r > 0)
                return 0;
        n->failures[n->n] = build_failure(note, stored->received_usec);
        n->containers[n->n] = stored->container ? strdup(stored->container) : NULL;
        n->failures[n->n].container = n->containers[n->n]; /* without memory it is left out */
        n->uids[n->n] = stored->uid;
        n->n++;
        return n->n == MANIFEST_FAILURES_MAX;
}

static int read_seen(DeliveryNotes *ret, Store *store, const BundleRecord *b) {
        ret->seen = calloc(SEEN_MAX, sizeof *ret->seen);
        int n = ret->seen ? store_job_list(store, b->uid, SEEN_MAX, ret->seen) : -ENOMEM;
        ret->n_seen = n > 0 ? (size_t)n : 0;
        return MIN(n, 0);
}

static void update_job(DeliveryNotes *n) {
        const JobIdentity *job = n->n > 0 ? &n->notes[0].job : NULL; /* moves with what it is in */
        n->has_job = job && job->source;
        n->job = n->has_job ? (ManifestJob){ .key = job->key[0] ? job->key : NULL,
                                             .source = job->source,
                                             .rank = job->rank,
                                             .world_size = job->world_size }
                            : (ManifestJob){ 0 };
}

/* Those of others may turn out not to be heard. */
static bool has_own(const DeliveryNotes *n, uid_t uid) {
        for (size_t i = 0; i < n->n; i++)
                if (n->uids[i] == uid || n->uids[i] == 0)
                        return true;
        return false;
}

int delivery_notes_read(DeliveryNotes *ret, Store *store, const Bundle *b) {
        const BundleRecord *rec = &b->rec;
        Reading reading = { .owners = &b->owners };
        DeliveryNotes *n = &reading.notes;
        n->notes = calloc(MANIFEST_FAILURES_MAX, sizeof *n->notes);
        n->failures = calloc(MANIFEST_FAILURES_MAX, sizeof *n->failures);
        n->containers = calloc(MANIFEST_FAILURES_MAX, sizeof *n->containers);
        n->uids = calloc(MANIFEST_FAILURES_MAX, sizeof *n->uids);
        int r = n->notes && n->failures && n->containers && n->uids
                        ? store_note_list(store, &(StoredUnit){ rec->source, rec->path }, on_note,
                                          &reading)
                        : -ENOMEM;
        if (r >= 0 && source_kind_has_incident(rec->kind) && !has_own(n, rec->uid))
                r = read_seen(n, store, rec);
        if (r < 0 || (n->n == 0 && n->n_seen == 0)) {
                delivery_notes_done(n);
                *ret = (DeliveryNotes){ 0 };
                return MIN(r, 0);
        }
        update_job(n);
        *ret = *n;
        return 0;
}

static void move_note(DeliveryNotes *n, size_t to, size_t from) {
        if (to == from)
                return;
        n->notes[to] = n->notes[from];
        n->failures[to] = n->failures[from];
        n->containers[to] = n->containers[from];
        n->uids[to] = n->uids[from];
}

size_t delivery_notes_filter(DeliveryNotes *n, const Owners *owners) {
        size_t n_heard = 0, n_told = n->n;
        for (size_t i = 0; i < n_told; i++)
                if (uid_may_annotate(owners, n->uids[i]))
                        move_note(n, n_heard++, i);
                else {
                        hook_note_done(&n->notes[i]);
                        free(n->containers[i]);
                }
        n->n = n_heard;
        update_job(n);
        return n_told - n_heard;
}

void delivery_notes_done(DeliveryNotes *n) {
        for (size_t i = 0; i < n->n; i++) {
                hook_note_done(&n->notes[i]);
                free(n->containers[i]);
        }
        free(n->containers);
        free(n->notes);
        free(n->failures);
        free(n->uids);
        for (size_t i = 0; i < n->n_seen; i++)
                stored_job_done(&n->seen[i]);
        free(n->seen);
        *n = (DeliveryNotes){ 0 };
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

static int64_t json_number(const json_t *job, const char *key) {
        const json_t *v = json_object_get(job, key);
        return json_is_integer(v) && json_integer_value(v) >= 0 ? json_integer_value(v) : -1;
}

json_t *delivery_notes_find_job(const DeliveryNotes *n, const Plan *plan, SourceKind kind,
                                ManifestJob *ret) {
        size_t i = n->n > 0 ? n->n_seen : 0; /* a note that is heard knows better, or nobody does */
        while (i < n->n_seen && !is_writer(&n->seen[i], plan, kind))
                i++;
        json_t *row = i < n->n_seen ? json_loads(n->seen[i].document, 0, NULL) : NULL;
        const json_t *job = json_object_get(row, "job");
        const char *source = json_string_value(json_object_get(job, "source"));
        if (!source) {
                json_decref(row);
                return NULL;
        }
        *ret = (ManifestJob){ .key = json_string_value(json_object_get(job, "key")),
                              .source = source,
                              .rank = json_number(job, "rank"),
                              .world_size = json_number(job, "world_size") };
        if (ret->key && !ret->key[0])
                ret->key = NULL;
        return row;
}
