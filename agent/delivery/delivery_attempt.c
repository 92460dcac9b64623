/* One attempt of a delivery with one plan: from the members to the text of the manifest. It freezes
 * the plan, opens members for the packer, collects why the bundle is not complete, and writes the
 * manifest. Where a manifest is at the destination already, it tells whether that is proof of an
 * earlier delivery of this plan or of another one, and compares the members with it.
 *
 * How the object gets to the destination is delivery_volume.c's and delivery_s3.c's; both make
 * a new attempt when a member changed while it was read. All but reading the earlier manifest
 * blocks, and runs in the worker of the delivery. */
#include "agent/delivery/delivery_attempt.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/evidence/about.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/bundle/member_digest.h"
#include "lib/bundle/page_cache.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "lib/neuron/tree.h"

#define TRUNCATED_MAX 20 /* named one by one */

static const char *last_reason(const DeliveryAttempt *a) {
        return json_string_value(json_array_get(a->reasons, json_array_size(a->reasons) - 1));
}

static json_t *initial_reasons(const Delivery *d) {
        json_t *reasons = d->rec.incomplete ? json_loads(d->rec.incomplete, 0, NULL) : NULL;
        return reasons ? reasons : json_array();
}

/* Drops the notes of users who own no file of the plan. Where no link holds the files, another
 * user's file may have come since the bundle's place was decided: then the bundle has to settle
 * again. */
static bool check_owners(DeliveryAttempt *a) {
        Delivery *d = a->delivery;
        FileOwners owners = { 0 };
        named_pids_done(&d->pids);
        for (size_t i = 0; i < plan_n_members(a->plan); i++) {
                const PlanMember *m = plan_member(a->plan, i);
                named_pids_add(&d->pids, delivery_member_pid(m, d->rec.kind));
                file_owners_add(&owners, m->uid);
        }
        if (d->rec.s3_prefix && !d->rec.links_held && !bundle_record_is_redelivery(&d->rec) &&
            !file_owners_cover(&d->owners, &owners))
                return delivery_endf(d, RESULT_CHANGED, "'%s' has files of uid %u since it settled",
                                     d->rec.path, (unsigned)owners.uid);
        size_t n_ignored = delivery_notes_filter(&d->notes, &owners);
        d->n_notes_ignored = MAX(d->n_notes_ignored, n_ignored);
        return true;
}

/* @return whether there is nothing that this delivery could ship. When all members have changed
 * since another destination got the bundle, an empty one is shipped, whose manifest says so. */
static bool is_empty(const DeliveryAttempt *a) {
        return plan_n_members(a->plan) == 0 && !delivery_members_have_changed(a->members);
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
        if (r < 0 && r != -ENOENT)
                return delivery_endf(d, delivery_result_of_source(r),
                                     "cannot plan the bundle of '%s': %s", d->rec.path,
                                     strerror(-r));
        if (r >= 0 && is_empty(a) && json_array_size(a->reasons) > n_reasons)
                return delivery_endf(d, RESULT_FAILED,
                                     "no member of '%s' can be read (%s); give the agent "
                                     "CAP_DAC_READ_SEARCH or read permission",
                                     d->rec.path, last_reason(a));
        if (r == -ENOENT || is_empty(a))
                return delivery_endf(d, RESULT_VANISHED, "nothing of '%s' is left", d->rec.path);
        if (!check_owners(a))
                return false;
        plan_sha256(a->plan, a->plan_sha256);
        atomic_store(&d->run.total_bytes, plan_stream_bytes(a->plan));
        return true;
}

bool delivery_attempt_start(DeliveryAttempt *a, Delivery *d) {
        *a = (DeliveryAttempt){ .delivery = d,
                                .reasons = initial_reasons(d),
                                .reader = { .limits = d->limits, .abort = &d->run.abort },
                                .created_usec = d->clock->realtime_usec(d->clock) };
        atomic_store(&d->run.done_bytes, 0);
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
        atomic_fetch_add(&a->delivery->run.n_reads, 1);
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
                        d->rec.path, (unsigned long long)d->memory.bytes);
        if (!path)
                return delivery_endf(d, delivery_result_of_source(r),
                                     "cannot make the bundle of '%s': %s", d->rec.path,
                                     strerror(-r));
        return delivery_endf(d, delivery_result_of_source(r), "cannot read '%s' of '%s': %s", path,
                             d->rec.path, strerror(-r));
}

static bool add_truncated_reason(DeliveryAttempt *a, size_t i, const MemberResult *m) {
        _cleanup_free_ char *path = path_escape(plan_member(a->plan, i)->path), *text = NULL;
        const char *detail = m->detail ? m->detail : "";
        if (!path || asprintf(&text, "truncated: '%s'%s%s", path, *detail ? ": " : "", detail) < 0)
                return false;
        delivery_members_add_reason(text, a->reasons);
        return true;
}

void delivery_attempt_add_verdicts(DeliveryAttempt *a, const BundleWriter *writer) {
        size_t n_named = 0, n_bad = 0;
        for (size_t i = 0; i < plan_n_members(a->plan); i++) {
                const MemberResult *m = bundle_writer_member(writer, i);
                if (m->verdict == VERDICT_TRUNCATED && n_bad++ < TRUNCATED_MAX)
                        n_named += add_truncated_reason(a, i, m);
        }
        if (n_bad > n_named) {
                _cleanup_free_ char *text = NULL;
                if (asprintf(&text, "truncated: %zu more members", n_bad - n_named) >= 0)
                        delivery_members_add_reason(text, a->reasons);
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
        if (r < 0 && r != -EINVAL) /* text that is no manifest is reported at its end */
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
                int r = atomic_load(&a->delivery->run.abort)
                                ? -ECANCELED
                                : fs_pread_all(fd, buffer, (size_t)n, at);
                if (r < 0)
                        return r == -ENODATA ? 0 : r;
                member_digest_update(&digest, buffer, n);
                atomic_fetch_add(&a->delivery->run.done_bytes, n); /* a sign of life */
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
        d->object = DELIVERY_OBJECT_EARLIER;
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
        return delivery_end(a->delivery, RESULT_DELIVERED, NULL);
}

/* ---- the manifest ---- */

static bool names_process(const StoredJob *seen, const PlanMember *m, SourceKind kind) {
        return m->uid == seen->uid && delivery_member_pid(m, kind) == seen->pid;
}

static bool is_writer(const StoredJob *seen, const Plan *plan, SourceKind kind) {
        bool is_named = false;
        uint64_t newest = 0;
        for (size_t i = 0; i < plan_n_members(plan); i++) {
                const PlanMember *m = plan_member(plan, i);
                if (m->mtime_sec >= 0)
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

static ManifestInfo manifest_info(const DeliveryAttempt *a, const char **reasons, const char *user,
                                  char derived[static CLOCK_ISO_SIZE]) {
        const Delivery *d = a->delivery;
        clock_format_compact(derived, d->rec.oldest_mtime_usec, '-');
        bool incident = bundle_record_has_failure(&d->rec);
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
        _cleanup_(delivery_notes_text_done) DeliveryNotesText text = { 0 };
        _cleanup_(about_done) About about = { 0 };
        _cleanup_free_ const char **reasons =
                calloc(json_array_size(a->reasons) + 1, sizeof *reasons);
        int r = delivery_notes_describe(&d->notes, &d->pids, d->rec.supplement_of[0], &text);
        if (r < 0 || !reasons ||
            (d->rec.about && about_parse(d->rec.about, strlen(d->rec.about), &about) == -ENOMEM))
                return -ENOMEM;
        for (size_t i = 0; i < json_array_size(a->reasons); i++)
                reasons[i] = json_string_value(json_array_get(a->reasons, i));
        char space[4096];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(d->rec.uid, &pw, space, sizeof space, &found) != 0)
                found = NULL;
        char derived[CLOCK_ISO_SIZE];
        ManifestInfo info = manifest_info(a, reasons, found ? pw.pw_name : NULL, derived);
        info.related = (const char(*)[BUNDLE_ID_SIZE])about.related;
        info.n_related = about.n_related;
        info.failures = text.failures;
        info.n_failures = text.n_failures;
        json_t *row = text.has_job ? NULL : find_job(&d->notes, a->plan, d->rec.kind, &text.job);
        info.job = text.has_job || row ? &text.job : NULL;
        const ManifestContent content = { a->plan, writer, parts, a->plan_sha256 };
        r = manifest_write(&info, &content, put, userdata);
        json_decref(row);
        return r;
}
