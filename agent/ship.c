#include "agent/ship.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pwd.h>
#include <string.h>

#include "agent/ship_members.h"
#include "lib/base/clock.h"
#include "lib/base/path.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/plan.h"
#include "lib/bundle/writer.h"

#define STRIPE_BYTES (8 * MIB)
/* A member that changes while it is read means a new plan; so often, then the bundle goes back to settling. */
#define PLANS_MAX 3

/* One attempt with one plan. */
typedef struct Attempt {
        ShipJob *s;
        ShipMembers *members;
        Plan *plan;
        BundleWriter *writer;
        VolumeObject *object, *manifest;
        Parts parts;
        Sha256 manifest_sha;
        uint64_t manifest_bytes;
        json_t *reasons;
        char *path, *manifest_path; /* below the volume's root */
        uint8_t plan_sha256[SHA256_SIZE];
        bool replace_manifest; /* there is one of this plan, but its object is not what it says */
} Attempt;

static void attempt_done(Attempt *a) {
        volume_object_free(a->manifest);
        volume_object_free(a->object);
        bundle_writer_free(a->writer);
        plan_free(a->plan);
        ship_members_free(a->members);
        parts_done(&a->parts);
        json_decref(a->reasons);
        free(a->path);
        free(a->manifest_path);
}

static ShipResult fail(ShipJob *s, ShipResult result, char *error) {
        free(s->error);
        s->error = error;
        return result;
}

static _printf_(3, 4) ShipResult failf(ShipJob *s, ShipResult result, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        char *text = NULL;
        if (vasprintf(&text, fmt, ap) < 0)
                text = NULL;
        va_end(ap);
        return fail(s, result, text);
}

/* What an uploader's outcome means for the delivery. */
static ShipResult from_upload(ShipJob *s, int outcome, char *error) {
        s->destination_full = outcome == UPLOAD_E_FULL;
        /* A volume that reads back other bytes than were written is no place for evidence, whatever the bundle. */
        if (outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_AWAY || outcome == UPLOAD_E_MISMATCH)
                return fail(s, SHIP_DESTINATION, error);
        if (!error && outcome < 0)
                return failf(s, SHIP_FAILED, "%s", strerror(-outcome));
        return fail(s, SHIP_FAILED, error);
}

/* Asked before each step that shows: a worker that hung and was given up may wake while another one ships the same bundle. */
static bool is_stopped(ShipJob *s) {
        return atomic_load(&s->abort);
}

static void add_reason(const char *reason, void *userdata) {
        json_array_append_new(((Attempt *)userdata)->reasons, json_string(reason));
}

static int open_member(size_t i, const PlanMember *m, void *userdata) {
        (void)m;
        return ship_members_open(((Attempt *)userdata)->members, i);
}

static ShipResult make_plan(Attempt *a) {
        ShipJob *s = a->s;
        int r = plan_new(&a->plan);
        if (r >= 0)
                r = ship_members_new(&a->members, s, a->plan, add_reason, a);
        if (r >= 0)
                r = plan_freeze(a->plan);
        if (r == -ENOENT)
                return failf(s, SHIP_VANISHED, "nothing of '%s' is left", s->rec.path);
        if (r < 0)
                return failf(s, SHIP_FAILED, "cannot plan the bundle of '%s': %s", s->rec.path,
                             strerror(-r));
        if (plan_n_members(a->plan) == 0 && json_array_size(a->reasons) > 0)
                return failf(s, SHIP_FAILED,
                             "no member of '%s' can be read (%s); give the agent "
                             "CAP_DAC_READ_SEARCH or read permission",
                             s->rec.path,
                             json_string_value(
                                     json_array_get(a->reasons, json_array_size(a->reasons) - 1)));
        if (plan_n_members(a->plan) == 0)
                return failf(s, SHIP_VANISHED, "nothing of '%s' is left", s->rec.path);
        plan_sha256(a->plan, a->plan_sha256);
        atomic_store(&s->total_bytes, plan_stream_bytes(a->plan));
        return SHIP_DELIVERED;
}

static bool object_is_whole(const Attempt *a, const ManifestHead *head) {
        VolumeStripe *stripes = calloc(head->n_parts, sizeof *stripes);
        if (!stripes)
                return false;
        for (size_t i = 0; i < head->n_parts; i++) {
                stripes[i].bytes = head->parts[i].bytes;
                memcpy(stripes[i].sha256, head->parts[i].sha256, SHA256_SIZE);
        }
        int r = volume_verify(a->s->volume, a->path, stripes, head->n_parts);
        free(stripes);
        return r == 0;
}

/* The manifest is written last, so one that names this very plan means that an earlier run got through and died before it could
 * write that down. Its object is read back all the same: somebody may have removed it since.
 * @return SHIP_DELIVERED when it is there, SHIP_ABORTED as «go on», SHIP_FAILED when another bundle has the name */
static ShipResult look_for_manifest(Attempt *a) {
        ShipJob *s = a->s;
        _cleanup_free_ char *text = NULL;
        _cleanup_(manifest_head_done) ManifestHead head = { 0 };
        size_t n = 0;
        int r = volume_read_head(s->volume, a->manifest_path, MANIFEST_HEAD_MAX_BYTES, &text, &n);
        if (r < 0)
                return SHIP_ABORTED;
        r = manifest_read_head(text, n, &head);
        if (r < 0)
                return failf(s, SHIP_FAILED,
                             "'%s/%s' is there already and is no manifest of ours; move it away, "
                             "then `neuron-collect retry %s`",
                             s->root, a->manifest_path, s->rec.id);
        if (memcmp(head.plan, a->plan_sha256, SHA256_SIZE) != 0)
                return failf(s, SHIP_FAILED,
                             "'%s/%s' is there already with other content; it is never "
                             "overwritten: move it away, then `neuron-collect retry %s`",
                             s->root, a->manifest_path, s->rec.id);
        if (!object_is_whole(a, &head)) {
                a->replace_manifest = true;
                return SHIP_ABORTED;
        }
        s->object_bytes = head.bytes;
        s->complete = head.complete;
        free(s->incomplete);
        s->incomplete = TAKE_PTR(head.reasons);
        return SHIP_DELIVERED;
}

static ShipResult begin_object(Attempt *a) {
        ShipJob *s = a->s;
        char *error = NULL;
        int r = volume_begin(s->volume, a->path, s->size_hint_bytes, &a->object, &error);
        return r == 0 ? SHIP_DELIVERED : from_upload(s, r, error);
}

static ShipResult writer_failed(Attempt *a, int r) {
        size_t i = bundle_writer_failed_member(a->writer);
        if (i >= plan_n_members(a->plan))
                return failf(a->s, SHIP_FAILED, "cannot make the bundle of '%s': %s",
                             a->s->rec.path, strerror(-r));
        _cleanup_free_ char *path = path_escape(plan_member(a->plan, i)->path);
        return failf(a->s, SHIP_FAILED, "cannot read '%s' of '%s': %s", path ? path : "?",
                     a->s->rec.path, strerror(-r));
}

static ShipResult put_frames(Attempt *a) {
        ShipJob *s = a->s;
        BundleWriterOptions options = { .source = s->rec.kind,
                                        .compressors = s->compressors,
                                        .level = s->level,
                                        .memory_bytes = s->memory_bytes,
                                        .tolerant = s->tolerant,
                                        .open_member = open_member,
                                        .userdata = a };
        int r = bundle_writer_new(&a->writer, a->plan, &options);
        if (r < 0)
                return failf(
                        s, SHIP_FAILED,
                        "cannot make the bundle of '%s' within %llu bytes: %s; raise limits.memory",
                        s->rec.path, (unsigned long long)s->memory_bytes, strerror(-r));
        uint64_t total = plan_stream_bytes(a->plan);
        BundleFrame frame;
        while ((r = bundle_writer_next(a->writer, &frame)) == WRITER_FRAME) {
                char *error = NULL;
                int w = volume_write(a->object, frame.data, frame.bytes, &error);
                if (w != 0)
                        return from_upload(s, w, error);
                uint64_t done = frame.stream_offset + frame.stream_bytes;
                bool closed;
                w = parts_add_frame(&a->parts, frame.data, frame.bytes, total - done, &closed);
                if (w < 0)
                        return failf(s, SHIP_FAILED, "%s", strerror(-w));
                atomic_fetch_add(&s->sent_bytes, frame.bytes);
                atomic_store(&s->done_bytes, done);
                atomic_store(&s->read_bytes, bundle_writer_bytes_read(a->writer));
                if (is_stopped(s))
                        return failf(s, SHIP_ABORTED, "stopped");
        }
        if (r == WRITER_E_CHANGED) {
                _cleanup_free_ char *path = path_escape(
                        plan_member(a->plan, bundle_writer_failed_member(a->writer))->path);
                return failf(s, SHIP_CHANGED, "'%s' changed while it was read", path ? path : "?");
        }
        return r < 0 ? writer_failed(a, r) : SHIP_DELIVERED;
}

static ShipResult finish_object(Attempt *a) {
        ShipJob *s = a->s;
        const void *table;
        size_t n;
        char *error = NULL;
        int r = bundle_writer_seek_table(a->writer, &table, &n);
        if (r >= 0)
                r = parts_finish(&a->parts, table, n);
        if (r < 0)
                return failf(s, SHIP_FAILED, "cannot make the seek table: %s", strerror(-r));
        r = volume_write(a->object, table, n, &error);
        if (r != 0)
                return from_upload(s, r, error);
        atomic_fetch_add(&s->sent_bytes, n);
        VolumeStripe *stripes = calloc(MAX(a->parts.n, (size_t)1), sizeof *stripes);
        if (!stripes)
                return failf(s, SHIP_FAILED, "%s", strerror(ENOMEM));
        for (size_t i = 0; i < a->parts.n; i++) {
                stripes[i].bytes = a->parts.items[i].bytes;
                memcpy(stripes[i].sha256, a->parts.items[i].sha256, SHA256_SIZE);
        }
        if (is_stopped(s)) {
                free(stripes);
                return failf(s, SHIP_ABORTED, "stopped");
        }
        r = volume_commit(a->object, stripes, a->parts.n, &error);
        if (r == UPLOAD_E_EXISTS && !is_stopped(s)) {
                /* Without a manifest it is no bundle: what a crash left of an earlier plan. The name is ours, so it may go. */
                free(error);
                error = NULL;
                r = volume_replace(a->object, stripes, a->parts.n, &error);
        }
        free(stripes);
        s->object_bytes = a->parts.total_bytes;
        return r == 0 || r == UPLOAD_E_SAME ? (free(error), SHIP_DELIVERED)
                                            : from_upload(s, r, error);
}

static void judge_members(Attempt *a) {
        size_t n_told = 0, n_bad = 0;
        for (size_t i = 0; i < plan_n_members(a->plan); i++) {
                const MemberResult *m = bundle_writer_member(a->writer, i);
                if (m->verdict != VERDICT_TRUNCATED || n_bad++ >= 20)
                        continue;
                _cleanup_free_ char *path = path_escape(plan_member(a->plan, i)->path),
                                    *text = NULL;
                if (path && asprintf(&text, "truncated: '%s'%s%s", path,
                                     m->detail && *m->detail ? ": " : "",
                                     m->detail ? m->detail : "") >= 0) {
                        add_reason(text, a);
                        n_told++;
                }
        }
        if (n_bad > n_told) {
                _cleanup_free_ char *text = NULL;
                if (asprintf(&text, "truncated: %zu more members", n_bad - n_told) >= 0)
                        add_reason(text, a);
        }
        a->s->complete = json_array_size(a->reasons) == 0;
        free(a->s->incomplete);
        a->s->incomplete =
                json_array_size(a->reasons) ? json_dumps(a->reasons, JSON_COMPACT) : NULL;
}

typedef struct ManifestPut {
        Attempt *a;
        int outcome;
        char *error;
} ManifestPut;

static int put_manifest_piece(const void *data, size_t n, void *userdata) {
        ManifestPut *put = userdata;
        sha256_update(&put->a->manifest_sha, data, n);
        put->a->manifest_bytes += n;
        put->outcome = volume_write(put->a->manifest, data, n, &put->error);
        return put->outcome == 0 ? 0 : -EIO;
}

static ManifestInfo manifest_info(Attempt *a, const char **reasons, const char *user) {
        ShipJob *s = a->s;
        bool incident = source_kind_has_incident(s->rec.kind);
        return (ManifestInfo){
                .id = s->rec.id,
                .object = path_name(a->path),
                .supplement_of = s->rec.supplement_of[0] ? s->rec.supplement_of : NULL,
                .kind = s->rec.kind,
                .bytes = s->object_bytes,
                .complete = s->complete,
                .reasons = reasons,
                .instance_id = s->instance_id,
                .hostname = s->hostname,
                .labels = (const char *const *)s->labels,
                .source_name = s->rec.source,
                .source_path = s->rec.path,
                .uid = s->rec.uid,
                .user = user,
                .cluster_id =
                        incident ? (s->rec.cluster_id[0] ? s->rec.cluster_id : "0000000000000000")
                                 : NULL,
                .date_time = incident && s->rec.date_time[0] ? s->rec.date_time : NULL,
                .agreed = "alone",
                .agent_version = PACKAGE_VERSION,
                .created_usec = clock_system()->realtime_usec(clock_system()),
        };
}

static ShipResult put_manifest(Attempt *a) {
        ShipJob *s = a->s;
        ManifestPut put = { .a = a };
        if (is_stopped(s))
                return failf(s, SHIP_ABORTED, "stopped");
        int r = volume_begin(s->volume, a->manifest_path, 0, &a->manifest, &put.error);
        if (r != 0)
                return from_upload(s, r, put.error);
        const char **reasons = calloc(json_array_size(a->reasons) + 1, sizeof *reasons);
        if (!reasons)
                return failf(s, SHIP_FAILED, "%s", strerror(ENOMEM));
        for (size_t i = 0; i < json_array_size(a->reasons); i++)
                reasons[i] = json_string_value(json_array_get(a->reasons, i));
        char space[4096];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(s->rec.uid, &pw, space, sizeof space, &found) != 0)
                found = NULL;
        ManifestInfo info = manifest_info(a, reasons, found ? pw.pw_name : NULL);
        sha256_init(&a->manifest_sha);
        r = manifest_write(&info, a->plan, a->writer, &a->parts, a->plan_sha256, put_manifest_piece,
                           &put);
        free(reasons);
        if (r < 0)
                return put.outcome != 0 ? from_upload(s, put.outcome, put.error)
                                        : failf(s, SHIP_FAILED, "cannot write the manifest: %s",
                                                strerror(-r));
        VolumeStripe whole = { .bytes = a->manifest_bytes };
        sha256_final(&a->manifest_sha, whole.sha256);
        if (is_stopped(s))
                return failf(s, SHIP_ABORTED, "stopped");
        r = volume_commit(a->manifest, &whole, 1, &put.error);
        if (r == UPLOAD_E_EXISTS && a->replace_manifest && !is_stopped(s)) {
                free(put.error);
                put.error = NULL;
                r = volume_replace(a->manifest, &whole, 1, &put.error);
        }
        if (r == 0 || r == UPLOAD_E_SAME) {
                free(put.error);
                return SHIP_DELIVERED;
        }
        return from_upload(s, r, put.error);
}

static ShipResult attempt_run(Attempt *a) {
        ShipJob *s = a->s;
        ShipResult r = make_plan(a);
        if (r != SHIP_DELIVERED)
                return r;
        if (is_stopped(s))
                return failf(s, SHIP_ABORTED, "stopped");
        /* Temporary names that a crash left, even one between link and unlink; what cannot be removed, begin tells. */
        (void)volume_sweep(s->volume, a->path);
        (void)volume_sweep(s->volume, a->manifest_path);
        r = look_for_manifest(a);
        if (r != SHIP_ABORTED)
                return r;
        if (is_stopped(s))
                return failf(s, SHIP_ABORTED, "stopped");
        atomic_store(&s->done_bytes, 0);
        r = begin_object(a);
        if (r == SHIP_DELIVERED)
                r = put_frames(a);
        if (r == SHIP_DELIVERED)
                r = finish_object(a);
        if (r == SHIP_DELIVERED) {
                judge_members(a);
                r = put_manifest(a);
        }
        return r;
}

static json_t *reasons_so_far(const ShipJob *s) {
        json_t *reasons = s->rec.incomplete ? json_loads(s->rec.incomplete, 0, NULL) : NULL;
        return reasons ? reasons : json_array();
}

void ship_run(WorkJob *job) {
        ShipJob *s = CONTAINER_OF(job, ShipJob, job);
        for (int i = 0; i < PLANS_MAX; i++) {
                Attempt a = { .s = s, .reasons = reasons_so_far(s) };
                parts_init(&a.parts, STRIPE_BYTES);
                s->result = SHIP_FAILED;
                if (asprintf(&a.path, "%s/%s.tar.zst", s->directory, s->rec.id) < 0)
                        a.path = NULL;
                if (asprintf(&a.manifest_path, "%s/%s.manifest.json", s->directory, s->rec.id) < 0)
                        a.manifest_path = NULL;
                if (a.path && a.manifest_path && a.reasons)
                        s->result = attempt_run(&a);
                if (s->result == SHIP_DELIVERED)
                        ship_members_take_prints(a.members, &s->prints, &s->n_prints, &s->digest);
                attempt_done(&a);
                if (s->result != SHIP_CHANGED)
                        return;
        }
}

static char **copy_labels(char **labels) {
        size_t n = 0;
        while (labels && labels[n])
                n++;
        char **copy = calloc(n + 1, sizeof *copy);
        for (size_t i = 0; copy && i < n; i++)
                copy[i] = strdup(labels[i]);
        return copy;
}

int ship_job_new(ShipJob **ret, const Bundle *b, SourceTerms *terms, const ShipOrder *order) {
        ShipJob *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        s->job.run = ship_run;
        int r = bundle_record_copy(&s->rec, &b->rec);
        s->terms = terms ? source_terms_ref(terms) : NULL;
        s->held.items = b->held.n ? calloc(b->held.n, sizeof *s->held.items) : NULL;
        for (size_t i = 0; s->held.items && i < b->held.n; i++) {
                HeldFile h = { .path = strdup(b->held.items[i].path),
                               .fd = fcntl(b->held.items[i].fd, F_DUPFD_CLOEXEC, 0) };
                if (h.path && h.fd >= 0)
                        s->held.items[s->held.n++] = h;
                else
                        free(h.path);
        }
        s->held.all = b->held.all && s->held.n == b->held.n;
        s->volume = order->volume;
        s->root = strdup(order->root);
        s->directory = strdup(order->directory);
        s->instance_id = strdup(order->instance_id);
        s->hostname = strdup(order->hostname);
        s->labels = copy_labels(order->labels);
        s->compressors = order->compressors;
        s->level = order->level;
        s->memory_bytes = order->memory_bytes;
        s->size_hint_bytes = order->size_hint_bytes;
        s->tolerant = b->tolerant;
        if (r < 0 || !s->root || !s->directory || !s->instance_id || !s->hostname || !s->labels) {
                ship_job_free(s);
                return -ENOMEM;
        }
        *ret = s;
        return 0;
}

ShipJob *ship_job_free(ShipJob *s) {
        if (!s)
                return NULL;
        bundle_record_done(&s->rec);
        source_terms_unref(s->terms);
        held_files_done(&s->held);
        free(s->shipped);
        free(s->root);
        free(s->directory);
        free(s->instance_id);
        free(s->hostname);
        for (size_t i = 0; s->labels && s->labels[i]; i++)
                free(s->labels[i]);
        free(s->labels);
        free(s->error);
        free(s->incomplete);
        free(s->prints);
        free(s);
        return NULL;
}
