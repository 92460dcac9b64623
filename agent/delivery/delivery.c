#include "agent/delivery/delivery.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "agent/delivery/destination.h"
#include "agent/store/store.h"
#include "collectors/crash/crash.h"
#include "lib/base/array.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/member_digest.h"
#include "lib/bundle/page_cache.h"
#include "lib/bundle/validate.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "lib/neuron/nrt_status.h"
#include "lib/neuron/tree.h"
#include "uploaders/uploader.h"

/* ---- notes of hooks ---- */

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

typedef struct Reading {
        DeliveryNotes notes;
        const FileOwners *owners;
} Reading;

static int on_note(const StoredNote *stored, void *userdata) {
        Reading *reading = userdata;
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
        Reading reading = { .owners = &b->owners };
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

/* @return whether the row changes */
static bool set_failure(Bundle *b, const DeliveryNotes *n) {
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

bool delivery_record_failure(Store *store, Bundle *b) {
        DeliveryNotes notes = { 0 };
        (void)delivery_notes_read(&notes, store, b); /* else its delivery reads them */
        bool has_changed = set_failure(b, &notes);
        delivery_notes_done(&notes);
        return has_changed;
}

void delivery_read_notes(Delivery *d, Store *store, Bundle *b) {
        int r = delivery_notes_read(&d->notes, store, b);
        if (r < 0)
                log_dump(
                        b->rec.id, LOG_WARNING, r,
                        "cannot read the notes of hooks about it; the manifest is written without");
        (void)set_failure(b, &d->notes); /* the row is written when the delivery starts */
}

void delivery_report_pids(Delivery *d, Bundle *b) {
        named_pids_done(&b->pids);
        b->pids = d->pids;
        d->pids = (NamedPids){ 0 };
        (void)set_failure(b, &d->notes);
}

/* ---- without a note ---- */

static bool is_below_attached(const char *path) {
        return strncmp(path, ATTACHED_PREFIX, strlen(ATTACHED_PREFIX)) == 0;
}

/* Whatever its name says: files of the source there have kind `other`. */
static bool is_ours(const PlanMember *m) {
        return m->kind == MEMBER_SNAPSHOT ||
               (m->kind == MEMBER_CRASH_REPORT && is_below_attached(m->path));
}

static int64_t member_pid(const PlanMember *m, SourceKind kind) {
        DumpName name;
        dump_name_parse(kind, path_name(m->path), &name);
        return name.pid;
}

static bool names_process(const StoredJob *seen, const PlanMember *m, SourceKind kind) {
        return !is_ours(m) && m->uid == seen->uid && member_pid(m, kind) == seen->pid;
}

static bool is_writer(const StoredJob *seen, const Plan *plan, SourceKind kind) {
        bool is_named = false;
        uint64_t newest = 0;
        for (size_t i = 0; i < plan_n_members(plan); i++) {
                const PlanMember *m = plan_member(plan, i);
                if (!is_ours(m) && m->mtime_sec >= 0)
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

/* The job of a unit without a note: that of the last seen process whose pid is in the name of a
 * file of the same owner, and which was seen before the unit's last change. A hint: users choose
 * the names of their files, but can name only their own processes.
 * @return what *ret points into, for json_decref(); NULL: there is none */
static json_t *find_job(const DeliveryNotes *n, const Plan *plan, SourceKind kind,
                        ManifestJob *ret) {
        size_t i = n->n > 0 ? n->n_seen : 0; /* a note that counts is more reliable */
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

/* ---- the delivery ---- */

static bool end_delivery(Delivery *d, DeliveryResult result, char *error) {
        d->result = result;
        free(d->error);
        d->error = error;
        return false;
}

bool delivery_endf(Delivery *d, DeliveryResult result, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        char *text = strbuf_vformat(fmt, ap);
        va_end(ap);
        return end_delivery(d, result, text);
}

/* @return whether reading a source failed by an error that ends when its file server is back */
static bool is_transient_source_error(int r) {
        return r == -EIO || r == -ESTALE || r == -ETIMEDOUT || r == -ENOTCONN || r == -EHOSTDOWN ||
               r == -EHOSTUNREACH || r == -EREMOTEIO;
}

/* @return whether an error is only possible when a file server is away: it is not the bundle's
 * fault. A disk never returns these. */
static bool is_server_away(int r) {
        return r == -ETIMEDOUT || r == -ENOTCONN || r == -EHOSTDOWN || r == -EHOSTUNREACH;
}

DeliveryResult delivery_result_of(int r) {
        return tree_error_is_resource(r) || is_server_away(r) ? RESULT_NO_RESOURCES : RESULT_FAILED;
}

bool delivery_end_upload(Delivery *d, int outcome, char *error) {
        d->upload_outcome = MAX(outcome, 0);
        /* A destination that gives back other bytes than it was given is no place for evidence,
         * whatever the bundle. */
        if (outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_UNREACHABLE ||
            outcome == UPLOAD_E_NETWORK || outcome == UPLOAD_E_DENIED ||
            outcome == UPLOAD_E_REFUSED || outcome == UPLOAD_E_MISMATCH)
                return end_delivery(d, RESULT_DESTINATION_FAILED, error);
        if (outcome >= 0)
                return end_delivery(d, RESULT_FAILED, error);
        /* the name is too long or invalid at this destination; other bundles' may be as well */
        d->upload_outcome = UPLOAD_E_REFUSED;
        return end_delivery(
                d,
                tree_error_is_resource(outcome) ? RESULT_NO_RESOURCES : RESULT_DESTINATION_FAILED,
                error ? error
                      : strbuf_format("cannot write below '%s': %s; shorten or correct the "
                                      "destination's path",
                                      d->directory, strerror(-outcome)));
}

bool delivery_may_continue(Delivery *d) {
        return !atomic_load(&d->abort) || delivery_endf(d, RESULT_ABORTED, "stopped");
}

static void copy_held(HeldFiles *to, const HeldFiles *from) {
        to->items = from->n ? calloc(from->n, sizeof *to->items) : NULL;
        for (size_t i = 0; to->items && i < from->n; i++) {
                HeldFile h = { .path = strdup(from->items[i].path),
                               .fd = fcntl(from->items[i].fd, F_DUPFD_CLOEXEC, 0) };
                if (h.path && h.fd >= 0)
                        to->items[to->n++] = h;
                else
                        free(h.path);
        }
        to->all = from->all && to->n == from->n;
}

int delivery_init(Delivery *d, const Destination *at, const Bundle *b, const char *directory) {
        const Scheduler *s = at->scheduler;
        SourceSpec *spec = s->context.get_source_spec(b);
        int r = bundle_record_copy(&d->rec, &b->rec);
        d->spec = spec ? source_spec_ref(spec) : NULL;
        d->clock = s->context.clock;
        d->attached_fd = -1;
        copy_held(&d->held, &b->held);
        d->owners = b->owners;
        d->directory = strdup(directory);
        d->instance_id = strdup(s->context.instance_id);
        d->hostname = strdup(s->context.hostname);
        d->labels = strings_copy(s->config->node.labels.items);
        d->compressors = s->compressors;
        d->limits = rate_limits_ref(s->limits);
        d->level = (int)s->config->limits.compression_level;
        d->memory_bytes = at->type->memory_bytes(at);
        d->tolerant = b->tolerant;
        if (r >= 0 && d->directory && d->instance_id && d->hostname && d->labels)
                return 0;
        delivery_done(d);
        return -ENOMEM;
}

void delivery_done(Delivery *d) {
        bundle_record_done(&d->rec);
        source_spec_unref(d->spec);
        held_files_done(&d->held);
        rate_limits_unref(d->limits);
        free(d->shipped);
        if (d->attached_fd >= 0)
                (void)close(d->attached_fd); /* a directory */
        delivery_notes_done(&d->notes);
        free(d->directory);
        free(d->refusal);
        free(d->instance_id);
        free(d->hostname);
        strings_free(d->labels);
        free(d->error);
        free(d->incomplete);
        free(d->prints);
        free(d->attached_prints);
        named_pids_done(&d->pids);
}

#define TRUNCATED_MAX 20 /* named one by one */
/* @param userdata  the array of reasons */
static void add_reason(const char *reason, void *userdata) {
        json_t *reasons = userdata, *v;
        size_t i;
        json_array_foreach(reasons, i, v) {
                if (strcmp(json_string_value(v), reason) == 0)
                        return; /* intake, or an earlier delivery, has seen it */
        }
        json_array_append_new(reasons, json_string(reason));
}

static const char *last_reason(const DeliveryAttempt *a) {
        return json_string_value(json_array_get(a->reasons, json_array_size(a->reasons) - 1));
}

static json_t *initial_reasons(const Delivery *d) {
        json_t *reasons = d->rec.incomplete ? json_loads(d->rec.incomplete, 0, NULL) : NULL;
        return reasons ? reasons : json_array();
}

/* Notes count by the owners of the files in the plan. A file that no link holds may have come
 * since it was decided where they go. */
static bool check_owners(DeliveryAttempt *a) {
        Delivery *d = a->delivery;
        FileOwners owners = { 0 };
        named_pids_done(&d->pids);
        for (size_t i = 0; i < plan_n_members(a->plan); i++) {
                const PlanMember *m = plan_member(a->plan, i);
                if (!is_below_attached(m->path))
                        named_pids_add(&d->pids, member_pid(m, d->rec.kind));
                if (!is_ours(m)) /* this agent has created attached files */
                        file_owners_add(&owners, d->rec.source, m->uid, geteuid());
        }
        if (d->rec.s3_prefix && !d->rec.links_held && !d->rec.is_redelivery &&
            !file_owners_cover(&d->owners, &owners))
                return delivery_endf(d, RESULT_CHANGED, "'%s' has files of uid %u since it settled",
                                     d->rec.path, (unsigned)owners.uid);
        size_t n_ignored = delivery_notes_filter(&d->notes, &owners);
        d->n_notes_ignored = MAX(d->n_notes_ignored, n_ignored);
        return true;
}

static bool build_plan(DeliveryAttempt *a) {
        Delivery *d = a->delivery;
        size_t n_reasons = json_array_size(a->reasons); /* that it had */
        int r = plan_new(&a->plan);
        if (r >= 0)
                r = delivery_members_new(&a->members, d, a->plan, a->reasons);
        if (r >= 0)
                r = plan_freeze(a->plan);
        d->complete = d->rec.complete && json_array_size(a->reasons) == n_reasons;
        d->is_transient = is_transient_source_error(r);
        if (r < 0 && r != -ENOENT)
                return delivery_endf(d, delivery_result_of(r), "cannot plan the bundle of '%s': %s",
                                     d->rec.path, strerror(-r));
        if (r >= 0 && plan_n_members(a->plan) == 0 && json_array_size(a->reasons) > n_reasons)
                return delivery_endf(d, RESULT_FAILED,
                                     "no member of '%s' can be read (%s); give the agent "
                                     "CAP_DAC_READ_SEARCH or read permission",
                                     d->rec.path, last_reason(a));
        if (r == -ENOENT || plan_n_members(a->plan) == 0)
                return delivery_endf(d, RESULT_VANISHED, "nothing of '%s' is left", d->rec.path);
        if (!check_owners(a))
                return false;
        plan_sha256(a->plan, a->plan_sha256);
        atomic_store(&d->total_bytes, plan_stream_bytes(a->plan));
        return true;
}

bool delivery_attempt_start(DeliveryAttempt *a, Delivery *d) {
        *a = (DeliveryAttempt){ .delivery = d,
                                .reasons = initial_reasons(d),
                                .reader = { .limits = d->limits, .abort = &d->abort },
                                .created_usec = d->clock->realtime_usec(d->clock) };
        atomic_store(&d->done_bytes, 0);
        a->object_name = bundle_object_name(d->rec.id);
        a->manifest_name = bundle_manifest_name(d->rec.id);
        if (!a->object_name || !a->manifest_name || !a->reasons)
                return delivery_endf(d, RESULT_NO_RESOURCES, "%s", strerror(ENOMEM));
        return build_plan(a) && delivery_may_continue(d);
}

void delivery_attempt_done(DeliveryAttempt *a) {
        plan_free(a->plan);
        delivery_members_free(a->members);
        manifest_stream_free(a->stream);
        manifest_head_done(&a->earlier);
        free(a->earlier_members);
        json_decref(a->reasons);
        free(a->object_name);
        free(a->manifest_name);
        *a = (DeliveryAttempt){ 0 };
}

static int open_member(size_t i, const PlanMember *m, void *userdata) {
        (void)m;
        return delivery_members_open(((DeliveryAttempt *)userdata)->members, i);
}

static void before_read(size_t n, void *userdata) {
        DeliveryAttempt *a = userdata;
        atomic_fetch_add(&a->delivery->n_reads, 1);
        rate_limits_before_read(&a->reader, n);
}

BundleWriterOptions delivery_attempt_writer_options(DeliveryAttempt *a, uint64_t memory_bytes) {
        return (BundleWriterOptions){ .source = a->delivery->rec.kind,
                                      .compressors = a->delivery->compressors,
                                      .level = a->delivery->level,
                                      .memory_bytes = memory_bytes,
                                      .tolerant = a->delivery->tolerant,
                                      .open_member = open_member,
                                      .before_read = before_read,
                                      .userdata = a };
}

bool delivery_attempt_end_writer(DeliveryAttempt *a, int r, size_t member) {
        Delivery *d = a->delivery;
        d->is_transient = is_transient_source_error(r);
        _cleanup_free_ char *path = member < plan_n_members(a->plan)
                                            ? path_escape(plan_member(a->plan, member)->path)
                                            : NULL;
        if (r == WRITER_E_CHANGED)
                return delivery_endf(d, RESULT_CHANGED, "'%s' changed while it was read",
                                     path ? path : "?");
        if (r == -EOVERFLOW)
                return delivery_endf(
                        d, RESULT_FAILED,
                        "cannot make the bundle of '%s' within %llu bytes; raise limits.memory",
                        d->rec.path, (unsigned long long)d->memory_bytes);
        if (!path)
                return delivery_endf(d, delivery_result_of(r), "cannot make the bundle of '%s': %s",
                                     d->rec.path, strerror(-r));
        return delivery_endf(d, delivery_result_of(r), "cannot read '%s' of '%s': %s", path,
                             d->rec.path, strerror(-r));
}

static bool add_truncated_reason(DeliveryAttempt *a, size_t i, const MemberResult *m) {
        _cleanup_free_ char *path = path_escape(plan_member(a->plan, i)->path), *text = NULL;
        const char *detail = m->detail ? m->detail : "";
        if (!path || asprintf(&text, "truncated: '%s'%s%s", path, *detail ? ": " : "", detail) < 0)
                return false;
        add_reason(text, a->reasons);
        return true;
}

void delivery_attempt_add_verdicts(DeliveryAttempt *a, const BundleWriter *writer) {
        size_t n_told = 0, n_bad = 0;
        for (size_t i = 0; i < plan_n_members(a->plan); i++) {
                const MemberResult *m = bundle_writer_member(writer, i);
                if (m->verdict == VERDICT_TRUNCATED && n_bad++ < TRUNCATED_MAX)
                        n_told += add_truncated_reason(a, i, m);
        }
        if (n_bad > n_told) {
                _cleanup_free_ char *text = NULL;
                if (asprintf(&text, "truncated: %zu more members", n_bad - n_told) >= 0)
                        add_reason(text, a->reasons);
        }
        if (n_bad > 0)
                a->delivery->complete = false;
        free(a->delivery->incomplete);
        a->delivery->incomplete =
                json_array_size(a->reasons) ? json_dumps(a->reasons, JSON_COMPACT) : NULL;
}

/* ---- what an earlier run has delivered ---- */

typedef struct EarlierMember {
        bool is_there; /* by path and size */
        bool is_sparse_digest;
        uint8_t sha256[SHA256_SIZE];
} EarlierMember;

static size_t find_member(const Plan *plan, const char *path) {
        size_t from = 0, to = plan_n_members(plan);
        while (from < to) {
                size_t middle = from + (to - from) / 2;
                int order = strcmp(plan_member(plan, middle)->path, path);
                if (order == 0)
                        return middle;
                if (order < 0)
                        from = middle + 1;
                else
                        to = middle;
        }
        return SIZE_MAX;
}

static int on_earlier_member(const ManifestMember *m, void *userdata) {
        DeliveryAttempt *a = userdata;
        size_t i = find_member(a->plan, m->path);
        if (i == SIZE_MAX || plan_member(a->plan, i)->bytes != m->bytes)
                return 0;
        EarlierMember *e = &a->earlier_members[i];
        *e = (EarlierMember){ .is_there = true, .is_sparse_digest = m->is_sparse_digest };
        memcpy(e->sha256, m->sha256, sizeof e->sha256);
        return 0;
}

static int start_manifest(DeliveryAttempt *a) {
        a->earlier_members = calloc(plan_n_members(a->plan) + 1, sizeof *a->earlier_members);
        return a->earlier_members ? manifest_stream_new(&a->stream, on_earlier_member, a) : -ENOMEM;
}

bool delivery_attempt_read_manifest(DeliveryAttempt *a, const void *data, size_t n) {
        int r = a->stream ? 0 : start_manifest(a);
        if (r == 0)
                r = manifest_stream_feed(a->stream, data, n);
        if (r < 0 && r != -EINVAL) /* one that is none of ours is reported at its end */
                return delivery_endf(a->delivery, RESULT_NO_RESOURCES,
                                     "cannot read the manifest that is there: %s", strerror(-r));
        return delivery_may_continue(a->delivery);
}

bool delivery_attempt_end_manifest(DeliveryAttempt *a, const char *where, EarlierCopy *ret) {
        Delivery *d = a->delivery;
        int r = manifest_stream_end(a->stream, &a->earlier);
        a->stream = manifest_stream_free(a->stream);
        if (r == MANIFEST_E_TRUNCATED) {
                log_dump(d->rec.id, LOG_NOTICE, 0,
                         "'%s' has no end: no proof of a delivery, it is written again", where);
                *ret = EARLIER_TRUNCATED;
                return true;
        }
        if (r < 0 || strcmp(a->earlier.id, d->rec.id) != 0)
                return delivery_endf(d, RESULT_FAILED,
                                     "'%s' exists already and is not a manifest of this bundle; "
                                     "move it away, then `neuron-collect retry %s`",
                                     where, d->rec.id);
        *ret = memcmp(a->earlier.plan, a->plan_sha256, SHA256_SIZE) == 0 ? EARLIER_OF_PLAN
                                                                         : EARLIER_OTHER_PLAN;
        return true;
}

bool delivery_attempt_end_damaged(DeliveryAttempt *a, const char *where) {
        return delivery_endf(a->delivery, RESULT_FAILED,
                             "'%s' exists already with other content, and its object is missing or "
                             "differs from it; move both away, then `neuron-collect retry %s`",
                             where, a->delivery->rec.id);
}

/* @return 1: the member's bytes are those of the digest; 0: they are not, it is gone, or it changed
 * since the plan; -errno: it could not be read, which is no answer */
static int has_digest(DeliveryAttempt *a, size_t i, uint8_t *buffer) {
        const EarlierMember *e = &a->earlier_members[i];
        const PlanMember *m = plan_member(a->plan, i);
        uint8_t sha256[SHA256_SIZE];
        struct stat st;
        bool is_sparse;
        MemberDigest digest;
        _cleanup_close_ int fd = delivery_members_open(a->members, i);
        if (fd < 0)
                return tree_error_is_resource(fd) || fd == -EIO ? fd : 0;
        _cleanup_(page_cache_close) PageCache pages;
        page_cache_open(&pages, fd, m->bytes);
        member_digest_init(&digest);
        for (uint64_t at = 0, n; at < m->bytes; at += n) {
                n = MIN(m->bytes - at, (uint64_t)PAGE_CACHE_READ_BYTES);
                page_cache_prepare(&pages, at, m->bytes);
                before_read((size_t)n, a);
                int r = atomic_load(&a->delivery->abort) ? -ECANCELED
                                                         : fs_pread_all(fd, buffer, (size_t)n, at);
                if (r < 0)
                        return r == -ENODATA ? 0 : r;
                member_digest_update(&digest, buffer, n);
                atomic_fetch_add(&a->delivery->done_bytes, n); /* a sign of life */
        }
        member_digest_final(&digest, sha256, &is_sparse);
        if (fstat(fd, &st) < 0)
                return -errno;
        return (uint64_t)st.st_size == m->bytes && (uint64_t)st.st_ino == m->ino &&
               st.st_mtim.tv_sec == m->mtime_sec && st.st_mtim.tv_nsec == (long)m->mtime_nsec &&
               is_sparse == e->is_sparse_digest && memcmp(sha256, e->sha256, sizeof sha256) == 0;
}

static bool compare_members(DeliveryAttempt *a) {
        Delivery *d = a->delivery;
        size_t n_differ = 0, n = plan_n_members(a->plan);
        _cleanup_free_ uint8_t *buffer = malloc(PAGE_CACHE_READ_BYTES);
        if (!buffer)
                return delivery_endf(d, RESULT_NO_RESOURCES, "%s", strerror(ENOMEM));
        for (size_t i = 0; i < n; i++) {
                int r = a->earlier_members[i].is_there ? has_digest(a, i, buffer) : 0;
                if (r < 0)
                        return delivery_may_continue(d) && delivery_attempt_end_writer(a, r, i);
                if (r == 0) {
                        delivery_members_leave_out(a->members, i);
                        n_differ++;
                }
        }
        log_dump(d->rec.id, LOG_NOTICE, 0,
                 "it was delivered before, by a run whose state is lost; %zu of %zu files are not "
                 "in that bundle%s",
                 n_differ, n, n_differ > 0 ? " and follow in a supplement" : "");
        return delivery_may_continue(d);
}

bool delivery_attempt_delivered_before(DeliveryAttempt *a) {
        Delivery *d = a->delivery;
        if (memcmp(a->earlier.plan, a->plan_sha256, SHA256_SIZE) != 0 && !compare_members(a))
                return false;
        d->was_there = true;
        d->object_bytes = a->earlier.bytes;
        d->complete = a->earlier.complete;
        free(d->incomplete);
        d->incomplete = TAKE_PTR(a->earlier.reasons);
        return delivery_attempt_delivered(a);
}

bool delivery_attempt_delivered(DeliveryAttempt *a) {
        int r = delivery_members_export_prints(a->members, a->delivery);
        if (r < 0) /* the next try finds it delivered */
                return delivery_endf(a->delivery, RESULT_NO_RESOURCES, "%s", strerror(-r));
        return end_delivery(a->delivery, RESULT_DELIVERED, NULL);
}

static ManifestInfo manifest_info(const DeliveryAttempt *a, const char **reasons, const char *user,
                                  char derived[static CLOCK_ISO_SIZE]) {
        const Delivery *d = a->delivery;
        clock_format_compact(derived, d->rec.oldest_mtime_usec, '-');
        bool incident = source_kind_has_incident(d->rec.kind);
        const char *cluster_id = bundle_record_cluster_id(&d->rec);
        const char *date_time = bundle_record_date_time(&d->rec);
        return (ManifestInfo){
                .id = d->rec.id,
                .object = a->object_name,
                .supplement_of = d->rec.supplement_of[0] ? d->rec.supplement_of : NULL,
                .kind = d->rec.kind,
                .bytes = d->object_bytes,
                .complete = d->complete,
                .reasons = reasons,
                .instance_id = d->instance_id,
                .hostname = d->hostname,
                .labels = (const char *const *)d->labels,
                .source_name = d->rec.source,
                .source_path = d->rec.path,
                .uid = d->rec.uid,
                .user = user,
                .cluster_id = !incident       ? NULL
                              : cluster_id[0] ? cluster_id
                                              : "0000000000000000",
                .date_time = !incident       ? NULL
                             : date_time[0]  ? date_time
                             : cluster_id[0] ? derived /* as in its place */
                                             : NULL,
                .is_derived = d->rec.name.derived || !date_time[0],
                .agreed = d->rec.name.agreed[0] ? d->rec.name.agreed : "alone",
                .failure_key = d->rec.name.key,
                .failure_n = d->rec.name.n,
                .agent_version = PACKAGE_VERSION,
                .created_usec = a->created_usec,
        };
}

int delivery_attempt_write_manifest(DeliveryAttempt *a, const BundleWriter *writer,
                                    const Parts *parts,
                                    int (*put)(const void *data, size_t n, void *userdata),
                                    void *userdata) {
        const Delivery *d = a->delivery;
        const DeliveryNote *notes[MANIFEST_FAILURES_MAX];
        size_t n_notes = select_notes(&d->notes, &d->pids, d->rec.supplement_of[0], notes);
        _cleanup_free_ const char **reasons =
                calloc(json_array_size(a->reasons) + 1, sizeof *reasons);
        _cleanup_free_ ManifestFailure *failures = calloc(n_notes + 1, sizeof *failures);
        if (!reasons || !failures)
                return -ENOMEM;
        for (size_t i = 0; i < n_notes; i++)
                failures[i] = build_failure(notes[i]);
        for (size_t i = 0; i < json_array_size(a->reasons); i++)
                reasons[i] = json_string_value(json_array_get(a->reasons, i));
        char space[4096];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(d->rec.uid, &pw, space, sizeof space, &found) != 0)
                found = NULL;
        char derived[CLOCK_ISO_SIZE];
        ManifestInfo info = manifest_info(a, reasons, found ? pw.pw_name : NULL, derived);
        ManifestJob job;
        info.failures = failures;
        info.n_failures = n_notes;
        info.job = job_of_note(n_notes > 0 ? notes[0] : NULL, &job);
        json_t *row = info.job ? NULL : find_job(&d->notes, a->plan, d->rec.kind, &job);
        if (row)
                info.job = &job;
        const ManifestContent content = { a->plan, writer, parts, a->plan_sha256 };
        int r = manifest_write(&info, &content, put, userdata);
        json_decref(row);
        return r;
}

/* ---- the members ---- */

#define REASONS_MAX 20

/* By the plan's index. */
typedef struct Member {
        uint64_t print;
        MemberKind kind;
        int held_fd;      /* borrowed of the job; -1: opened below root_fd */
        bool is_attached; /* opened below the job's attached_fd */
        bool is_left_out; /* of what was delivered */
} Member;

struct DeliveryMembers {
        const Delivery *delivery;
        Plan *plan;         /* borrowed */
        LinkSession *links; /* while the source is walked */
        int root_fd;
        Member *members;
        size_t n;
        AttachmentNames attached; /* paths in the bundle */
        size_t next_attached;
        bool has_source; /* a member of the source was found */
        bool has_more;   /* … and left out: an attachment has its name */
        json_t *reasons; /* borrowed */
        size_t n_unreadable;
        ScanUnit left_out; /* since intake saw it: skipped, skipped_example */
};

static void skip_member(DeliveryMembers *m, const char *path, int error) {
        if (m->n_unreadable++ >= REASONS_MAX)
                return;
        _cleanup_free_ char *escaped = path_escape(path), *text = NULL;
        if (escaped &&
            asprintf(&text,
                     error == -ENOENT ? "removed: '%s' was removed before it could be read"
                                      : "unreadable: '%s' (%s)",
                     escaped, strerror(-error)) >= 0)
                add_reason(text, m->reasons);
}

static int add_to_plan(DeliveryMembers *m, const char *path, int fd, const Member *member) {
        if (array_grow(&m->members, m->n, sizeof *m->members) < 0)
                return -ENOMEM;
        int r = plan_add(m->plan, path, member->kind, fd);
        if (r >= 0)
                m->members[m->n++] = *member;
        return r;
}

/* ---- attached members ---- */

static int open_attached(const DeliveryMembers *m, const char *path) {
        struct stat st;
        return fs_open_regular(m->delivery->attached_fd, path + strlen(ATTACHED_PREFIX), &st);
}

static MemberKind attached_kind(const char *name) {
        DumpName d;
        dump_name_parse(SOURCE_DIRECTORY, name, &d);
        return strcmp(name, CRASH_FILE) == 0 || strcmp(name, CRASH_TEXT_FILE) == 0 ||
                               d.kind == MEMBER_CRASH_REPORT
                       ? MEMBER_CRASH_REPORT
                       : MEMBER_SNAPSHOT;
}

static int add_attached(DeliveryMembers *m, const char *path) {
        struct stat st;
        _cleanup_close_ int fd = open_attached(m, path);
        if (fd < 0) {
                skip_member(m, path, fd);
                return 0;
        }
        if (fstat(fd, &st) < 0)
                return -errno;
        Member member = { .print = member_fingerprint(path, &st),
                          .kind = attached_kind(path_name(path)),
                          .held_fd = -1,
                          .is_attached = true };
        return add_to_plan(m, path, fd, &member);
}

/* The plan wants its members in order: adds those that come before a path of the source, or all
 * that are left.
 * @return 0; 1: one of them has this very path; -errno */
static int add_attached_before(DeliveryMembers *m, const char *path) {
        while (m->next_attached < m->attached.n) {
                const char *next = m->attached.items[m->next_attached];
                int order = path ? strcmp(next, path) : -1;
                if (order > 0)
                        return 0;
                if (order == 0)
                        return 1;
                m->next_attached++;
                int r = add_attached(m, next);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Not what was shipped before; of a redelivery nothing but that. */
static bool is_wanted(const DeliveryMembers *m, uint64_t print) {
        const Delivery *d = m->delivery;
        return member_fingerprints_contain(d->shipped, d->n_shipped, print) == d->rec.is_redelivery;
}

static bool is_attachment_wanted(const DeliveryMembers *m, const char *path) {
        struct stat st;
        const char *name = path + strlen(ATTACHED_PREFIX);
        return fstatat(m->delivery->attached_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
               is_wanted(m, member_fingerprint(path, &st));
}

static int find_attached(DeliveryMembers *m) {
        _cleanup_(attachment_names_done) AttachmentNames names = { 0 };
        if (m->delivery->attached_fd < 0)
                return 0;
        int r = attachment_names(m->delivery->attached_fd, &names);
        if (r < 0)
                return r;
        m->attached.items = calloc(names.n + 1, sizeof *m->attached.items);
        if (!m->attached.items)
                return -ENOMEM;
        for (size_t i = 0; i < names.n; i++) {
                _cleanup_free_ char *path = path_join(ATTACHMENTS_DIRECTORY, names.items[i]);
                if (!path)
                        return -ENOMEM;
                if (is_attachment_wanted(m, path))
                        m->attached.items[m->attached.n++] = TAKE_PTR(path);
        }
        return 0;
}

static void add_collision_reason(DeliveryMembers *m, const char *path) {
        _cleanup_free_ char *text = NULL;
        if (asprintf(
                    &text,
                    "name taken: '%s' of the source has the name of a file that the agent adds; it "
                    "follows in a supplement",
                    path) >= 0)
                add_reason(text, m->reasons);
}

/* ---- members of the source ---- */

static int add_member(DeliveryMembers *m, const char *path, int fd, int held_fd) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        Member member = { .print = member_fingerprint(path, &st), .held_fd = held_fd };
        if (!is_wanted(m, member.print))
                return 0;
        m->has_source = true;
        int r = add_attached_before(m, path);
        if (r > 0) {
                m->has_more = true;
                add_collision_reason(m, path);
        }
        if (r != 0)
                return MIN(r, 0);
        DumpName name;
        dump_name_parse(m->delivery->rec.kind, path_name(path), &name);
        if (is_below_attached(path)) /* a file of the source does not pass for one of ours */
                name.kind = MEMBER_OTHER;
        member.kind = name.kind;
        return add_to_plan(m, path, fd, &member);
}

static int on_member(const ScanMember *member, int unit_fd, void *userdata) {
        DeliveryMembers *m = userdata;
        if (member->skip != SCAN_SKIP_NONE) {
                bool is_shipped = S_ISREG(member->st.st_mode) &&
                                  !is_wanted(m, member_fingerprint(member->path, &member->st));
                return is_shipped || !scan_skip_is_loss(member->skip)
                               ? 0
                               : scan_unit_add_skip(&m->left_out, member);
        }
        if (m->root_fd < 0) {
                m->root_fd = fcntl(unit_fd, F_DUPFD_CLOEXEC, 0);
                if (m->root_fd < 0)
                        return -errno;
        }
        struct stat st;
        _cleanup_close_ int fd = fs_open_regular(unit_fd, member->path, &st);
        if (tree_error_is_resource(fd) || is_server_away(fd))
                return fd; /* not the bundle's fault: tried again */
        if (fd < 0) {
                skip_member(m, member->path, fd);
                return 0;
        }
        return add_member(m, member->path, fd, -1);
}

static unsigned own_links(const char *member_path, const struct stat *st, void *userdata) {
        const DeliveryMembers *m = userdata;
        bool has;
        unsigned n = link_session_own_links(m->links, member_path, st, &has);
        return has ? UINT_MAX : n; /* what is held stays a member */
}

static int add_from_source(DeliveryMembers *m) {
        const SourceSpec *t = m->delivery->spec;
        const char *relative = m->delivery->rec.path + strlen(t->fixed);
        while (*relative == '/')
                relative++;
        int r = link_session_new(&m->links, t->link_dirs, m->delivery->rec.id,
                                 (size_t)t->scan.max_files);
        if (r < 0)
                return r;
        r = scan_members(&(ScanWalk){ .source = &t->scan,
                                      .relative = relative,
                                      .loose = source_spec_is_loose(t, relative),
                                      .own_links = own_links,
                                      .on_member = on_member,
                                      .userdata = m });
        m->links = link_session_free(m->links);
        return r;
}

/* The links were judged when they were made: whatever is there is ours to ship. */
static int add_from_links(DeliveryMembers *m) {
        _cleanup_close_ int fd = links_open(m->delivery->spec->link_dirs, m->delivery->rec.id);
        if (fd < 0)
                return fd;
        char root[64];
        snprintf(root, sizeof root, "/proc/self/fd/%d/.", fd);
        ScanSource scan = m->delivery->spec->scan;
        scan.root_override = root;
        scan.any_links = scan.any_owner = true;
        scan.exclude = NULL;
        const char *relative = m->delivery->rec.kind == SOURCE_PROCESS_CORE
                                       ? path_name(m->delivery->rec.path)
                                       : "";
        return scan_members(&(ScanWalk){
                .source = &scan, .relative = relative, .on_member = on_member, .userdata = m });
}

static int compare_held(const void *a, const void *b) {
        return strcmp((*(HeldFile *const *)a)->path, (*(HeldFile *const *)b)->path);
}

static int add_from_held(DeliveryMembers *m) {
        const HeldFiles *h = &m->delivery->held;
        _cleanup_free_ const HeldFile **sorted = calloc(h->n, sizeof *sorted);
        if (!sorted)
                return -ENOMEM;
        for (size_t i = 0; i < h->n; i++)
                sorted[i] = &h->items[i];
        qsort(sorted, h->n, sizeof *sorted, compare_held);
        int r = 0;
        for (size_t i = 0; r >= 0 && i < h->n; i++)
                r = add_member(m, sorted[i]->path, sorted[i]->fd, sorted[i]->fd);
        return r;
}

static int find_source_members(DeliveryMembers *m) {
        if (m->delivery->rec.links_held) {
                int r = add_from_links(m);
                if (r != -ENOENT || m->n > 0)
                        return r;
        }
        if (m->delivery->held.n > 0 && m->delivery->held.all)
                return add_from_held(m);
        return add_from_source(m);
}

/* Attachments alone are no dump: one of which nothing can be read fails or vanishes as it would
 * without them. A supplement may be made of them. */
static int find_members(DeliveryMembers *m) {
        bool is_supplement = m->delivery->rec.supplement_of[0] != '\0';
        int r = find_attached(m);
        if (r >= 0 && !bundle_is_of_attachments(&m->delivery->rec))
                r = find_source_members(m);
        if (r == -ENOENT && is_supplement && m->attached.n > 0)
                r = 0;
        return r < 0 || (!m->has_source && !is_supplement) ? r : add_attached_before(m, NULL);
}

static void add_left_out_reasons(const DeliveryMembers *m) {
        for (int i = 0; i < N_SCAN_SKIPS; i++) {
                _cleanup_free_ char *text = scan_skip_reason((ScanSkip)i, m->left_out.skipped[i],
                                                             m->left_out.skipped_example[i]);
                if (text)
                        add_reason(text, m->reasons);
        }
        if (m->n_unreadable > REASONS_MAX) {
                char text[64];
                snprintf(text, sizeof text, "unreadable: %zu more members",
                         m->n_unreadable - REASONS_MAX);
                add_reason(text, m->reasons);
        }
}

static void add_lost_reason(const DeliveryMembers *m) {
        char text[128];
        snprintf(text, sizeof text,
                 "redelivered: %zu of %zu members that were shipped are gone or have changed since",
                 m->delivery->n_shipped - m->n, m->delivery->n_shipped);
        add_reason(text, m->reasons);
}

int delivery_members_new(DeliveryMembers **ret, const Delivery *d, Plan *plan, json_t *reasons) {
        DeliveryMembers *m = calloc(1, sizeof *m);
        if (!m)
                return -ENOMEM;
        *m = (DeliveryMembers){ .delivery = d, .plan = plan, .root_fd = -1, .reasons = reasons };
        int r = find_members(m);
        add_left_out_reasons(m);
        if (r >= 0 && d->rec.is_redelivery && m->n > 0 && m->n < d->n_shipped)
                add_lost_reason(m);
        /* What a supplement lacks its base may have. */
        if (r >= 0 && d->rec.kind == SOURCE_NEURON_PROFILE && !d->rec.supplement_of[0])
                r = validate_set(plan, add_reason, reasons);
        if (r < 0) {
                delivery_members_free(m);
                return r;
        }
        *ret = m;
        return 0;
}

DeliveryMembers *delivery_members_free(DeliveryMembers *m) {
        if (!m)
                return NULL;
        if (m->root_fd >= 0)
                (void)close(m->root_fd); /* a directory */
        attachment_names_done(&m->attached);
        scan_unit_done(&m->left_out);
        free(m->members);
        free(m);
        return NULL;
}

int delivery_members_open(const DeliveryMembers *m, size_t i) {
        const Member *member = &m->members[i];
        const char *path = plan_member(m->plan, i)->path;
        if (member->is_attached)
                return open_attached(m, path);
        if (member->held_fd >= 0) {
                int fd = fcntl(member->held_fd, F_DUPFD_CLOEXEC, 0);
                return fd < 0 ? -errno : fd;
        }
        struct stat st;
        return fs_open_regular(m->root_fd, path, &st);
}

void delivery_members_leave_out(DeliveryMembers *m, size_t i) {
        m->members[i].is_left_out = true;
}

int delivery_members_export_prints(DeliveryMembers *m, Delivery *d) {
        if (!m)
                return 0;
        uint64_t *prints = calloc(m->n + 1, sizeof *prints),
                 *attached = calloc(m->attached.n + 1, sizeof *attached);
        if (!prints || !attached) {
                free(prints);
                free(attached);
                return -ENOMEM;
        }
        free(d->prints);
        free(d->attached_prints);
        d->prints = prints;
        d->attached_prints = attached;
        d->n_prints = d->n_attached_prints = 0;
        d->has_more = m->has_more;
        d->digest = 0;
        named_pids_done(&d->pids);
        for (size_t i = 0; i < m->n; i++) {
                if (m->members[i].is_left_out) {
                        d->has_more = true;
                        const char *path = plan_member(m->plan, i)->path;
                        /* A file of ours is shipped by a supplement, as if it had come late. */
                        int r = m->members[i].is_attached
                                        ? attachments_return(d->attached_fd,
                                                             path + strlen(ATTACHED_PREFIX))
                                        : 0;
                        if (r < 0)
                                return r;
                        continue;
                }
                prints[d->n_prints++] = m->members[i].print;
                if (m->members[i].is_attached) {
                        attached[d->n_attached_prints++] = m->members[i].print;
                        continue;
                }
                d->digest += m->members[i].print;
                named_pids_add(&d->pids, member_pid(plan_member(m->plan, i), d->rec.kind));
        }
        qsort(prints, d->n_prints, sizeof *prints, array_compare_keys);
        qsort(attached, d->n_attached_prints, sizeof *attached, array_compare_keys);
        return 0;
}
