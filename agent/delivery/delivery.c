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

bool delivery_end(Delivery *d, DeliveryResult result, char *error) {
        d->result = result;
        free(d->error);
        d->error = error;
        return false;
}

bool delivery_endf(Delivery *d, DeliveryResult result, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        char *text = NULL;
        if (vasprintf(&text, fmt, ap) < 0)
                text = NULL;
        va_end(ap);
        return delivery_end(d, result, text);
}

bool delivery_end_upload(Delivery *d, int outcome, char *error) {
        d->upload_outcome = MAX(outcome, 0);
        /* A destination that gives back other bytes than it was given is no place for evidence,
         * whatever the bundle. */
        if (outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_AWAY || outcome == UPLOAD_E_DENIED ||
            outcome == UPLOAD_E_MISMATCH)
                return delivery_end(d, RESULT_DESTINATION_FAILED, error);
        if (!error && outcome < 0)
                return delivery_endf(d, RESULT_FAILED, "%s", strerror(-outcome));
        return delivery_end(d, RESULT_FAILED, error);
}

bool delivery_may_continue(Delivery *d) {
        return !atomic_load(&d->abort) || delivery_endf(d, RESULT_ABORTED, "stopped");
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

int delivery_init(Delivery *d, const DeliveryRequest *order) {
        const Bundle *b = order->bundle;
        int r = bundle_record_copy(&d->rec, &b->rec);
        d->terms = order->terms ? source_terms_ref(order->terms) : NULL;
        d->clock = order->clock;
        d->attached_fd = -1;
        copy_held(&d->held, &b->held);
        d->owners = b->owners;
        d->directory = strdup(order->directory);
        d->instance_id = strdup(order->instance_id);
        d->hostname = strdup(order->hostname);
        d->labels = copy_labels(order->labels);
        d->compressors = order->compressors;
        d->limits = order->limits ? rate_limits_ref(order->limits) : NULL;
        d->level = order->level;
        d->memory_bytes = order->memory_bytes;
        d->tolerant = b->tolerant;
        if (r >= 0 && d->directory && d->instance_id && d->hostname && d->labels)
                return 0;
        delivery_done(d);
        return -ENOMEM;
}

void delivery_done(Delivery *d) {
        bundle_record_done(&d->rec);
        source_terms_unref(d->terms);
        held_files_done(&d->held);
        rate_limits_unref(d->limits);
        free(d->shipped);
        if (d->attached_fd >= 0)
                (void)close(d->attached_fd); /* a directory */
        delivery_notes_done(&d->notes);
        free(d->directory);
        free(d->instance_id);
        free(d->hostname);
        for (size_t i = 0; d->labels && d->labels[i]; i++)
                free(d->labels[i]);
        free(d->labels);
        free(d->error);
        free(d->incomplete);
        free(d->prints);
        free(d->attached_prints);
}

#define TRUNCATED_MAX 20 /* named one by one */

static void add_reason(const char *reason, void *userdata) {
        json_array_append_new(((DeliveryAttempt *)userdata)->reasons, json_string(reason));
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
        Owners owners = { 0 };
        for (size_t i = 0; i < plan_n_members(a->plan); i++)
                if (plan_member(a->plan, i)->kind != MEMBER_SNAPSHOT) /* what is attached is ours */
                        owners_add(&owners, d->rec.source, plan_member(a->plan, i)->uid, geteuid());
        if (d->rec.s3_prefix && !d->rec.links_held && !owners_cover(&d->owners, &owners))
                return delivery_endf(d, RESULT_CHANGED, "'%s' has files of uid %u since it settled",
                                     d->rec.path, (unsigned)owners.uid);
        size_t n_unheard = delivery_notes_filter(&d->notes, &owners);
        if (n_unheard > 0)
                log_dump(d->rec.id, LOG_NOTICE, 0,
                         "%zu notes of hooks are not heard about it: it has other users' files",
                         n_unheard);
        return true;
}

static bool build_plan(DeliveryAttempt *a) {
        Delivery *d = a->delivery;
        int r = plan_new(&a->plan);
        if (r >= 0)
                r = delivery_members_new(&a->members, d, a->plan,
                                         &(IncompleteReasons){ add_reason, a });
        if (r >= 0)
                r = plan_freeze(a->plan);
        if (r < 0 && r != -ENOENT)
                return delivery_endf(d, RESULT_FAILED, "cannot plan the bundle of '%s': %s",
                                     d->rec.path, strerror(-r));
        if (r >= 0 && plan_n_members(a->plan) == 0 && json_array_size(a->reasons) > 0)
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
                return delivery_endf(d, RESULT_FAILED, "%s", strerror(ENOMEM));
        return build_plan(a) && delivery_may_continue(d);
}

void delivery_attempt_done(DeliveryAttempt *a) {
        plan_free(a->plan);
        delivery_members_free(a->members);
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
                return delivery_endf(d, RESULT_FAILED, "cannot make the bundle of '%s': %s",
                                     d->rec.path, strerror(-r));
        return delivery_endf(d, RESULT_FAILED, "cannot read '%s' of '%s': %s", path, d->rec.path,
                             strerror(-r));
}

static bool add_truncated_reason(DeliveryAttempt *a, size_t i, const MemberResult *m) {
        _cleanup_free_ char *path = path_escape(plan_member(a->plan, i)->path), *text = NULL;
        const char *detail = m->detail ? m->detail : "";
        if (!path || asprintf(&text, "truncated: '%s'%s%s", path, *detail ? ": " : "", detail) < 0)
                return false;
        add_reason(text, a);
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
                        add_reason(text, a);
        }
        a->delivery->complete = json_array_size(a->reasons) == 0;
        free(a->delivery->incomplete);
        a->delivery->incomplete =
                json_array_size(a->reasons) ? json_dumps(a->reasons, JSON_COMPACT) : NULL;
}

bool delivery_attempt_owns_manifest(DeliveryAttempt *a, const char *text, size_t n,
                                    const char *where, ManifestHead *head) {
        Delivery *d = a->delivery;
        int r = manifest_read_head(text, n, head);
        if (r == 0 && memcmp(head->plan, a->plan_sha256, SHA256_SIZE) == 0)
                return true;
        manifest_head_done(head);
        return delivery_endf(
                d, RESULT_FAILED,
                "'%s' is there already %s; move it away, then `neuron-collect retry %s`", where,
                r < 0 ? "and is no manifest of ours"
                      : "with other content; it is never overwritten",
                d->rec.id);
}

bool delivery_attempt_delivered_before(DeliveryAttempt *a, ManifestHead *head) {
        Delivery *d = a->delivery;
        d->object_bytes = head->bytes;
        d->complete = head->complete;
        free(d->incomplete);
        d->incomplete = TAKE_PTR(head->reasons);
        return delivery_attempt_delivered(a);
}

bool delivery_attempt_delivered(DeliveryAttempt *a) {
        if (delivery_members_export_prints(a->members, a->delivery) <
            0) /* the next try finds it delivered */
                return delivery_endf(a->delivery, RESULT_NO_RESOURCES, "%s", strerror(ENOMEM));
        return delivery_end(a->delivery, RESULT_DELIVERED, NULL);
}

static ManifestInfo manifest_info(const DeliveryAttempt *a, const char **reasons,
                                  const char *user) {
        const Delivery *d = a->delivery;
        bool incident = source_kind_has_incident(d->rec.kind);
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
                .cluster_id = !incident              ? NULL
                              : d->rec.cluster_id[0] ? d->rec.cluster_id
                                                     : "0000000000000000",
                .date_time = incident && d->rec.date_time[0] ? d->rec.date_time : NULL,
                .agreed = "alone",
                .job = d->notes.has_job ? &d->notes.job : NULL,
                .failures = d->notes.failures,
                .n_failures = d->notes.n,
                .agent_version = PACKAGE_VERSION,
                .created_usec = a->created_usec,
        };
}

int delivery_attempt_write_manifest(DeliveryAttempt *a, const BundleWriter *writer,
                                    const Parts *parts,
                                    int (*put)(const void *data, size_t n, void *userdata),
                                    void *userdata) {
        _cleanup_free_ const char **reasons =
                calloc(json_array_size(a->reasons) + 1, sizeof *reasons);
        if (!reasons)
                return -ENOMEM;
        for (size_t i = 0; i < json_array_size(a->reasons); i++)
                reasons[i] = json_string_value(json_array_get(a->reasons, i));
        char space[4096];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(a->delivery->rec.uid, &pw, space, sizeof space, &found) != 0)
                found = NULL;
        ManifestInfo info = manifest_info(a, reasons, found ? pw.pw_name : NULL);
        ManifestJob seen;
        json_t *row = info.job ? NULL
                               : delivery_notes_find_job(&a->delivery->notes, a->plan,
                                                         a->delivery->rec.kind, &seen);
        if (row)
                info.job = &seen;
        const ManifestContent content = { a->plan, writer, parts, a->plan_sha256 };
        int r = manifest_write(&info, &content, put, userdata);
        json_decref(row);
        return r;
}
