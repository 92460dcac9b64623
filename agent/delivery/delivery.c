#include "agent/delivery/delivery.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/neuron/names.h"
#include "uploaders/uploader.h"

bool ship_end(ShipJob *s, ShipResult result, char *error) {
        s->result = result;
        free(s->error);
        s->error = error;
        return false;
}

bool ship_endf(ShipJob *s, ShipResult result, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        char *text = NULL;
        if (vasprintf(&text, fmt, ap) < 0)
                text = NULL;
        va_end(ap);
        return ship_end(s, result, text);
}

bool ship_end_upload(ShipJob *s, int outcome, char *error) {
        s->upload_outcome = MAX(outcome, 0);
        /* A destination that gives back other bytes than it was given is no place for evidence, whatever the bundle. */
        if (outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_AWAY || outcome == UPLOAD_E_DENIED ||
            outcome == UPLOAD_E_MISMATCH)
                return ship_end(s, SHIP_DESTINATION, error);
        if (!error && outcome < 0)
                return ship_endf(s, SHIP_FAILED, "%s", strerror(-outcome));
        return ship_end(s, SHIP_FAILED, error);
}

bool ship_may_go_on(ShipJob *s) {
        return !atomic_load(&s->abort) || ship_endf(s, SHIP_ABORTED, "stopped");
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

int ship_job_init(ShipJob *s, const ShipOrder *order) {
        const Bundle *b = order->bundle;
        int r = bundle_record_copy(&s->rec, &b->rec);
        s->terms = order->terms ? source_terms_ref(order->terms) : NULL;
        s->clock = order->clock;
        s->attached_fd = -1;
        copy_held(&s->held, &b->held);
        s->owners = b->owners;
        s->directory = strdup(order->directory);
        s->instance_id = strdup(order->instance_id);
        s->hostname = strdup(order->hostname);
        s->labels = copy_labels(order->labels);
        s->compressors = order->compressors;
        s->limits = order->limits ? limits_ref(order->limits) : NULL;
        s->level = order->level;
        s->memory_bytes = order->memory_bytes;
        s->tolerant = b->tolerant;
        if (r >= 0 && s->directory && s->instance_id && s->hostname && s->labels)
                return 0;
        ship_job_done(s);
        return -ENOMEM;
}

void ship_job_done(ShipJob *s) {
        bundle_record_done(&s->rec);
        source_terms_unref(s->terms);
        held_files_done(&s->held);
        limits_unref(s->limits);
        free(s->shipped);
        if (s->attached_fd >= 0)
                (void)close(s->attached_fd); /* a directory */
        ship_notes_done(&s->notes);
        free(s->directory);
        free(s->instance_id);
        free(s->hostname);
        for (size_t i = 0; s->labels && s->labels[i]; i++)
                free(s->labels[i]);
        free(s->labels);
        free(s->error);
        free(s->incomplete);
        free(s->prints);
        free(s->attached_prints);
}

#define TRUNCATED_MAX 20 /* told one by one */

static void add_reason(const char *reason, void *userdata) {
        json_array_append_new(((ShipAttempt *)userdata)->reasons, json_string(reason));
}

static const char *last_reason(const ShipAttempt *a) {
        return json_string_value(json_array_get(a->reasons, json_array_size(a->reasons) - 1));
}

static json_t *reasons_so_far(const ShipJob *s) {
        json_t *reasons = s->rec.incomplete ? json_loads(s->rec.incomplete, 0, NULL) : NULL;
        return reasons ? reasons : json_array();
}

/* What hooks told counts by whose files are in the plan. A file that no link holds may have come since it was decided where they go. */
static bool judge_owners(ShipAttempt *a) {
        ShipJob *s = a->s;
        Owners owners = { 0 };
        for (size_t i = 0; i < plan_n_members(a->plan); i++)
                if (plan_member(a->plan, i)->kind != MEMBER_SNAPSHOT) /* what is attached is ours */
                        owners_add(&owners, s->rec.source, plan_member(a->plan, i)->uid, geteuid());
        if (s->rec.s3_prefix && !s->rec.links_held && !owners_cover(&s->owners, &owners))
                return ship_endf(s, SHIP_CHANGED, "'%s' has files of uid %u since it settled",
                                 s->rec.path, (unsigned)owners.uid);
        size_t n_unheard = ship_notes_judge(&s->notes, &owners);
        if (n_unheard > 0)
                log_dump(s->rec.id, LOG_NOTICE, 0,
                         "%zu notes of hooks are not heard about it: it has other users' files",
                         n_unheard);
        return true;
}

static bool make_plan(ShipAttempt *a) {
        ShipJob *s = a->s;
        int r = plan_new(&a->plan);
        if (r >= 0)
                r = ship_members_new(&a->members, s, a->plan, &(ShipReasons){ add_reason, a });
        if (r >= 0)
                r = plan_freeze(a->plan);
        if (r < 0 && r != -ENOENT)
                return ship_endf(s, SHIP_FAILED, "cannot plan the bundle of '%s': %s", s->rec.path,
                                 strerror(-r));
        if (r >= 0 && plan_n_members(a->plan) == 0 && json_array_size(a->reasons) > 0)
                return ship_endf(s, SHIP_FAILED,
                                 "no member of '%s' can be read (%s); give the agent "
                                 "CAP_DAC_READ_SEARCH or read permission",
                                 s->rec.path, last_reason(a));
        if (r == -ENOENT || plan_n_members(a->plan) == 0)
                return ship_endf(s, SHIP_VANISHED, "nothing of '%s' is left", s->rec.path);
        if (!judge_owners(a))
                return false;
        plan_sha256(a->plan, a->plan_sha256);
        atomic_store(&s->total_bytes, plan_stream_bytes(a->plan));
        return true;
}

bool ship_attempt_begin(ShipAttempt *a, ShipJob *s) {
        *a = (ShipAttempt){ .s = s,
                            .reasons = reasons_so_far(s),
                            .turn = { .limits = s->limits, .abort = &s->abort },
                            .created_usec = s->clock->realtime_usec(s->clock) };
        atomic_store(&s->done_bytes, 0);
        a->object_name = bundle_object_name(s->rec.id);
        a->manifest_name = bundle_manifest_name(s->rec.id);
        if (!a->object_name || !a->manifest_name || !a->reasons)
                return ship_endf(s, SHIP_FAILED, "%s", strerror(ENOMEM));
        return make_plan(a) && ship_may_go_on(s);
}

void ship_attempt_done(ShipAttempt *a) {
        plan_free(a->plan);
        ship_members_free(a->members);
        json_decref(a->reasons);
        free(a->object_name);
        free(a->manifest_name);
        *a = (ShipAttempt){ 0 };
}

static int open_member(size_t i, const PlanMember *m, void *userdata) {
        (void)m;
        return ship_members_open(((ShipAttempt *)userdata)->members, i);
}

static void before_read(size_t n, void *userdata) {
        ShipAttempt *a = userdata;
        atomic_fetch_add(&a->s->n_reads, 1);
        limits_before_read(&a->turn, n);
}

BundleWriterOptions ship_attempt_writer(ShipAttempt *a, uint64_t memory_bytes) {
        return (BundleWriterOptions){ .source = a->s->rec.kind,
                                      .compressors = a->s->compressors,
                                      .level = a->s->level,
                                      .memory_bytes = memory_bytes,
                                      .tolerant = a->s->tolerant,
                                      .open_member = open_member,
                                      .before_read = before_read,
                                      .userdata = a };
}

bool ship_attempt_end_writer(ShipAttempt *a, int r, size_t member) {
        ShipJob *s = a->s;
        _cleanup_free_ char *path = member < plan_n_members(a->plan)
                                            ? path_escape(plan_member(a->plan, member)->path)
                                            : NULL;
        if (r == WRITER_E_CHANGED)
                return ship_endf(s, SHIP_CHANGED, "'%s' changed while it was read",
                                 path ? path : "?");
        if (r == -EOVERFLOW)
                return ship_endf(
                        s, SHIP_FAILED,
                        "cannot make the bundle of '%s' within %llu bytes; raise limits.memory",
                        s->rec.path, (unsigned long long)s->memory_bytes);
        if (!path)
                return ship_endf(s, SHIP_FAILED, "cannot make the bundle of '%s': %s", s->rec.path,
                                 strerror(-r));
        return ship_endf(s, SHIP_FAILED, "cannot read '%s' of '%s': %s", path, s->rec.path,
                         strerror(-r));
}

static bool tell_truncated(ShipAttempt *a, size_t i, const MemberResult *m) {
        _cleanup_free_ char *path = path_escape(plan_member(a->plan, i)->path), *text = NULL;
        const char *detail = m->detail ? m->detail : "";
        if (!path || asprintf(&text, "truncated: '%s'%s%s", path, *detail ? ": " : "", detail) < 0)
                return false;
        add_reason(text, a);
        return true;
}

void ship_attempt_judge(ShipAttempt *a, const BundleWriter *writer) {
        size_t n_told = 0, n_bad = 0;
        for (size_t i = 0; i < plan_n_members(a->plan); i++) {
                const MemberResult *m = bundle_writer_member(writer, i);
                if (m->verdict == VERDICT_TRUNCATED && n_bad++ < TRUNCATED_MAX)
                        n_told += tell_truncated(a, i, m);
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

bool ship_attempt_is_ours(ShipAttempt *a, const char *text, size_t n, const char *where,
                          ManifestHead *head) {
        ShipJob *s = a->s;
        int r = manifest_read_head(text, n, head);
        if (r == 0 && memcmp(head->plan, a->plan_sha256, SHA256_SIZE) == 0)
                return true;
        manifest_head_done(head);
        return ship_endf(s, SHIP_FAILED,
                         "'%s' is there already %s; move it away, then `neuron-collect retry %s`",
                         where,
                         r < 0 ? "and is no manifest of ours"
                               : "with other content; it is never overwritten",
                         s->rec.id);
}

bool ship_attempt_was_delivered(ShipAttempt *a, ManifestHead *head) {
        ShipJob *s = a->s;
        s->object_bytes = head->bytes;
        s->complete = head->complete;
        free(s->incomplete);
        s->incomplete = TAKE_PTR(head->reasons);
        return ship_attempt_delivered(a);
}

bool ship_attempt_delivered(ShipAttempt *a) {
        if (ship_members_take_prints(a->members, a->s) < 0) /* the next try finds it delivered */
                return ship_endf(a->s, SHIP_RESOURCES, "%s", strerror(ENOMEM));
        return ship_end(a->s, SHIP_DELIVERED, NULL);
}

static ManifestInfo manifest_info(const ShipAttempt *a, const char **reasons, const char *user) {
        const ShipJob *s = a->s;
        bool incident = source_kind_has_incident(s->rec.kind);
        return (ManifestInfo){
                .id = s->rec.id,
                .object = a->object_name,
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
                .cluster_id = !incident              ? NULL
                              : s->rec.cluster_id[0] ? s->rec.cluster_id
                                                     : "0000000000000000",
                .date_time = incident && s->rec.date_time[0] ? s->rec.date_time : NULL,
                .agreed = "alone",
                .job = s->notes.has_job ? &s->notes.job : NULL,
                .failures = s->notes.failures,
                .n_failures = s->notes.n,
                .agent_version = PACKAGE_VERSION,
                .created_usec = a->created_usec,
        };
}

int ship_attempt_manifest(ShipAttempt *a, const BundleWriter *writer, const Parts *parts,
                          int (*put)(const void *data, size_t n, void *userdata), void *userdata) {
        _cleanup_free_ const char **reasons =
                calloc(json_array_size(a->reasons) + 1, sizeof *reasons);
        if (!reasons)
                return -ENOMEM;
        for (size_t i = 0; i < json_array_size(a->reasons); i++)
                reasons[i] = json_string_value(json_array_get(a->reasons, i));
        char space[4096];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(a->s->rec.uid, &pw, space, sizeof space, &found) != 0)
                found = NULL;
        ManifestInfo info = manifest_info(a, reasons, found ? pw.pw_name : NULL);
        ManifestJob seen;
        json_t *row =
                info.job ? NULL : ship_notes_find_job(&a->s->notes, a->plan, a->s->rec.kind, &seen);
        if (row)
                info.job = &seen;
        const ManifestContent content = { a->plan, writer, parts, a->plan_sha256 };
        int r = manifest_write(&info, &content, put, userdata);
        json_decref(row);
        return r;
}
