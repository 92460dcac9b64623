/* A source: its events, its scans, its start and end; from a path to a bundle. */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/intake.h"
#include "agent/intake/intake_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"
#include "lib/neuron/ids.h"

/* ---- what was last seen at each unit's path ---- */

uint64_t unit_table_key(const char *relative) {
        /* SHA-256, since names are untrusted: nobody can make two paths collide. */
        uint8_t hash[SHA256_SIZE];
        uint64_t key;
        sha256_of(relative, strlen(relative), hash);
        memcpy(&key, hash, sizeof key);
        return key ? key : 1;
}

static void intake_remember(IntakeSource *s, const char *relative, uint64_t digest);
static void intake_start_scan(IntakeSource *s);

static size_t slot_of(const UnitTable *t, uint64_t key) {
        size_t i = (size_t)key & (t->n_slots - 1);
        while (t->keys[i] && t->keys[i] != key)
                i = (i + 1) & (t->n_slots - 1);
        return i;
}

static int grow(UnitTable *t) {
        UnitTable bigger = { .n_slots = t->n_slots ? 2 * t->n_slots : 64 };
        bigger.keys = calloc(bigger.n_slots, sizeof *bigger.keys);
        bigger.digests = calloc(bigger.n_slots, sizeof *bigger.digests);
        if (!bigger.keys || !bigger.digests) {
                unit_table_done(&bigger);
                return -ENOMEM;
        }
        for (size_t i = 0; i < t->n_slots; i++)
                if (t->keys[i]) {
                        size_t to = slot_of(&bigger, t->keys[i]);
                        bigger.keys[to] = t->keys[i];
                        bigger.digests[to] = t->digests[i];
                        bigger.n++;
                }
        unit_table_done(t);
        *t = bigger;
        return 0;
}

int unit_table_put(UnitTable *t, uint64_t key, uint64_t digest) {
        if (2 * (t->n + 1) > t->n_slots) {
                int r = grow(t);
                if (r < 0)
                        return r;
        }
        size_t i = slot_of(t, key);
        t->n += t->keys[i] == 0;
        t->keys[i] = key;
        t->digests[i] = digest;
        return 0;
}

bool unit_table_get(const UnitTable *t, uint64_t key, uint64_t *ret_digest) {
        if (t->n_slots == 0)
                return false;
        size_t i = slot_of(t, key);
        if (!t->keys[i])
                return false;
        *ret_digest = t->digests[i];
        return true;
}

int unit_table_copy(UnitTable *ret, const UnitTable *from) {
        UnitTable t = *from;
        size_t size = t.n_slots * sizeof *t.keys;
        if (size > 0) {
                t.keys = malloc(size);
                t.digests = malloc(size);
                if (!t.keys || !t.digests) {
                        unit_table_done(&t);
                        return -ENOMEM;
                }
                memcpy(t.keys, from->keys, size);
                memcpy(t.digests, from->digests, size);
        }
        *ret = t;
        return 0;
}

void unit_table_done(UnitTable *t) {
        free(t->keys);
        free(t->digests);
        *t = (UnitTable){ 0 };
}

/* ---- paths that wait ---- */

typedef struct PendingPath {
        ListLink link;
        char *path;
} PendingPath;

static int compare_paths(const void *a, const void *b) {
        return strcmp(((const PendingPath *)a)->path, ((const PendingPath *)b)->path);
}

void pending_init(Pending *p) {
        *p = (Pending){ 0 };
        list_init(&p->all);
}

int pending_add(Pending *p, const char *path) {
        PendingPath key = { .path = (char *)path };
        if (tfind(&key, &p->by_path, compare_paths))
                return 0;
        if (p->n >= PENDING_MAX) {
                pending_done(p);
                return -E2BIG;
        }
        PendingPath *entry = calloc(1, sizeof *entry);
        char *copy = strdup(path);
        if (!entry || !copy) {
                free(entry);
                free(copy);
                return -ENOMEM;
        }
        entry->path = copy;
        if (!tsearch(entry, &p->by_path, compare_paths)) {
                free(entry);
                free(copy);
                return -ENOMEM;
        }
        list_append(&p->all, &entry->link);
        p->n++;
        return 0;
}

char *pending_pop(Pending *p) {
        PendingPath *entry = CONTAINER_OF(p->all.next, PendingPath, link);
        char *path = entry->path;
        tdelete(entry, &p->by_path, compare_paths);
        list_remove(&entry->link);
        p->n--;
        free(entry);
        return path;
}

bool pending_has(const Pending *p, const char *path) {
        PendingPath key = { .path = (char *)path };
        return tfind(&key, &p->by_path, compare_paths) != NULL;
}

bool pending_is_empty(const Pending *p) {
        return list_is_empty(&p->all);
}

void pending_done(Pending *p) {
        while (!pending_is_empty(p))
                free(pending_pop(p));
}

/* ---- from a path to a bundle: what is new, what was shipped before, what came late ---- */

/* @return absolute, the caller's; NULL without memory */
static char *unit_path(const IntakeSource *s, const char *relative) {
        return relative[0] ? path_join(s->terms->fixed, relative) : strdup(s->terms->fixed);
}

static int fill_deliveries(const IntakeSource *s, BundleRecord *rec) {
        const StringList *names = &s->config->destinations;
        rec->deliveries = calloc(names->n, sizeof *rec->deliveries);
        if (!rec->deliveries)
                return -ENOMEM;
        rec->n_deliveries = names->n;
        for (size_t i = 0; i < names->n; i++) {
                rec->deliveries[i].destination = strdup(names->items[i]);
                if (!rec->deliveries[i].destination)
                        return -ENOMEM;
        }
        return 0;
}

/* @param base  NULL, or the bundle that this is supplement number base->n_supplements of */
static int add_bundle(IntakeSource *s, const ScanUnit *u, const BundleRecord *base, Bundle **ret) {
        _cleanup_(bundle_record_done) BundleRecord rec = {
                .kind = s->terms->scan.kind,
                .state = BUNDLE_SETTLING,
                .complete = true,
                .uid = u->st.st_uid,
                .unit_dev = (uint64_t)u->st.st_dev,
                .unit_ino = (uint64_t)u->st.st_ino,
                .unit_born_usec = u->born_usec,
                .n_files = u->n_files,
                .bytes = u->bytes,
                .oldest_mtime_usec = u->oldest_mtime_usec,
                .digest = u->digest,
                .links_held = base && u->st.st_ino == 0 &&
                              (uint64_t)u->st.st_dev != BUNDLE_DEV_OF_ATTACHMENTS,
        };
        rec.source = strdup(s->config->name);
        rec.path = unit_path(s, u->relative);
        if (!rec.source || !rec.path)
                return -ENOMEM;
        if (source_kind_has_incident(rec.kind)) {
                strcpy(rec.date_time, u->values.date_time);
                strcpy(rec.cluster_id, u->values.cluster_id);
        }
        if (base) {
                int r = intake_supplement_id(rec.id, base, base->n_supplements);
                if (r < 0)
                        return r;
                strcpy(rec.supplement_of, base->id);
                strcpy(rec.date_time, base->date_time);
                strcpy(rec.cluster_id, base->cluster_id);
                if (base->s3_prefix && !(rec.s3_prefix = strdup(base->s3_prefix)))
                        return -ENOMEM;
        } else
                bundle_id_from_unit(&(BundleOrigin){ .kind = rec.kind,
                                                     .source = rec.source,
                                                     .instance_id = s->context->instance_id },
                                    u, rec.path, rec.id);
        int r = fill_deliveries(s, &rec);
        return r < 0 ? r : bundle_table_add(s->context->bundles, &rec, s, ret);
}

static uint64_t since_newest_usec(const IntakeSource *s, const ScanUnit *u) {
        uint64_t now = intake_realtime_usec(s);
        uint64_t newest = u->newest_change_nsec > 0 ? (uint64_t)u->newest_change_nsec / 1000 : 0;
        return now > newest ? now - newest : 0;
}

/* With a full disk this happens at every scan, for each of many: logged when it starts. */
static void report_postponed(IntakeSource *s, int error, size_t n) {
        if (n == 0)
                return;
        s->scan_failed = true;
        log_write(s->has_logged_postponed ? LOG_DEBUG : LOG_ERR, error, NULL,
                  "source %s: cannot record what was found in the state database; a later scan "
                  "tries again",
                  s->config->name);
        s->is_postponing = s->has_logged_postponed = true;
}

/* The number is recorded first: a crash between the two leaves a gap, never two of one name.
 * @return whether it was recorded */
static bool reserve_number(IntakeSource *s, BundleRecord *base) {
        base->n_supplements++;
        int r = store_update(s->context->store, base);
        if (r != 0)
                log_dump(base->id, LOG_ERR, MIN(r, 0),
                         "cannot record a supplement in the state database, trying again at the "
                         "next "
                         "scan");
        return r == 0;
}

static void count_active(IntakeSource *s, Bundle *b) {
        s->n_active++;
        b->is_active = true;
        if (s->context->on_found)
                s->context->on_found(b, s->context->userdata);
}

static void supplement_attachments(IntakeSource *s, BundleRecord *base, size_t n, uint64_t bytes) {
        Bundle *b = NULL;
        ScanUnit u = { .relative = (char *)intake_relative(s, base->path), /* borrowed */
                       .n_files = n,
                       .bytes = bytes,
                       .oldest_mtime_usec = base->oldest_mtime_usec };
        u.st = (struct stat){ .st_uid = base->uid, .st_dev = (dev_t)BUNDLE_DEV_OF_ATTACHMENTS };
        if (!reserve_number(s, base))
                return;
        int r = add_bundle(s, &u, base, &b);
        if (r < 0) {
                log_dump(base->id, LOG_ERR, r,
                         "cannot record a supplement with what was attached to it, trying again at "
                         "the next scan");
                return;
        }
        count_active(s, b);
        intake_probe_bundle(b);
}

static void start_bundle(IntakeSource *s, const ScanUnit *u, BundleRecord *base) {
        if (base && !reserve_number(s, base))
                return;
        Bundle *b = NULL;
        int r = add_bundle(s, u, base, &b);
        if (r == -EEXIST) {
                log_notice("source %s: '%s' has the identity of a bundle that is known already, "
                           "leaving it",
                           s->config->name, u->relative);
                intake_remember(s, u->relative, u->digest);
                return;
        }
        if (r < 0) {
                report_postponed(s, r, 1);
                return;
        }
        intake_remember(s, u->relative, u->digest);
        count_active(s, b);
        b->flush = s->flush_this_scan;
        /* No link of ours has changed a ctime yet: old mtimes of a copy in progress do not make it
         * look quiet. */
        b->quiet_usec = since_newest_usec(s, u);
        b->seen_boot_usec = b->checked_boot_usec = intake_boot_usec(s);
        b->uncommitted = s->in_transaction;
        intake_probe_bundle(b);
}

/* A directory that is created again under its name often gets the inode that was freed. */
static bool is_same_unit(const BundleRecord *rec, const ScanUnit *u) {
        return rec->unit_ino == (uint64_t)u->st.st_ino && rec->unit_dev == (uint64_t)u->st.st_dev &&
               (rec->unit_born_usec == 0 || u->born_usec == 0 ||
                rec->unit_born_usec == u->born_usec);
}

/* A hook may run before its directory is created: what it started so shortly before belongs to the
 * new unit. */
static void release_earlier_attachments(IntakeSource *s, const char *path) {
        IntakeContext *c = s->context;
        uint64_t now = intake_realtime_usec(s);
        uint64_t before = now - MIN(now, c->hook_deadline_usec + USEC_PER_SEC);
        if (c->on_renewed)
                c->on_renewed(s->config->name, path, before, c->userdata);
        int r = c->attachments
                        ? attachments_release_before(c->attachments, s->config->name, path, before)
                        : 0;
        if (r < 0)
                log_warning(r, "source %s: what was attached to an earlier '%s' cannot be removed",
                            s->config->name, path);
        else if (r > 0)
                log_notice("source %s: '%s' is another one than before; %d files that came too "
                           "late for the earlier one are removed",
                           s->config->name, path, r);
}

static void probe_for_supplement(IntakeSource *s, const ScanUnit *u, const char *base_id);
static void probe_next(IntakeSource *s);
static bool is_old(const OrphansContext *c, const AttachmentsUnit *unit);
static void arm_scan(IntakeSource *s);

/* A unit was seen whose content is not what was last known of its path. */
static void on_unit(IntakeSource *s, ScanUnit *u) {
        uint64_t known;
        if (unit_table_get(&s->table, unit_table_key(u->relative), &known) && known == u->digest)
                return;
        _cleanup_free_ char *path = unit_path(s, u->relative);
        if (!path)
                return;
        Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, path);
        if (b && b->rec.state == BUNDLE_SETTLING && !intake_is_from_links(&b->rec)) {
                intake_remember(s, u->relative, u->digest);
                intake_probe_bundle(b);
                return;
        }
        if (b) { /* not remembered: it is probed when the bundle has ended */
                b->dirty = true;
                return;
        }
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_find_unit(s->context->store, s->config->name, path, &rec);
        if (r == STORE_E_NOT_FOUND) {
                start_bundle(s, u, NULL);
                return;
        }
        if (r < 0) {
                log_error(r,
                          "source %s: cannot read the state database, trying '%s' again at the "
                          "next scan",
                          s->config->name, path);
                return;
        }
        bool same_unit = is_same_unit(&rec, u);
        bool unique = rec.kind == SOURCE_NEURON_CORE_DUMP && rec.date_time[0];
        if (rec.digest == u->digest && same_unit && rec.state != BUNDLE_VANISHED)
                intake_remember(s, u->relative, u->digest);
        else if (u->is_file || (!same_unit && !unique)) {
                if (!same_unit)
                        release_earlier_attachments(s, path);
                start_bundle(s, u, NULL);
        } else if (rec.state == BUNDLE_DELIVERED || rec.state == BUNDLE_VANISHED)
                probe_for_supplement(s, u, rec.id);
        else /* quarantined, cancelled or evicted: the operator decides */
                intake_remember(s, u->relative, u->digest);
}

/* ---- probes ---- */

static void on_probe_done(SourceTask *t) {
        _cleanup_(probe_job_freep) ProbeJob *p = CONTAINER_OF(t, ProbeJob, task);
        p->source->n_probes--;
        p->done(p->source, p);
}

bool intake_probe_submit(IntakeSource *s, ProbeJob *p, void (*done)(IntakeSource *s, ProbeJob *p)) {
        p->source = s;
        p->done = done;
        p->task.done = on_probe_done;
        int r = intake_source_submit(s, &p->task);
        if (r < 0) {
                log_error(r,
                          "source %s: cannot start a worker thread, trying again at the next scan",
                          s->config->name);
                probe_job_free(p);
                return false;
        }
        s->n_probes++;
        return true;
}

int intake_supplement_id(char ret[BUNDLE_ID_SIZE], const BundleRecord *base, unsigned number) {
        int n = snprintf(ret, BUNDLE_ID_SIZE, "%s-s%u", base->id, number);
        return n < 0 || n >= BUNDLE_ID_SIZE ? -EOVERFLOW : 0;
}

/* The last supplement is quarantined, cancelled or evicted, and this would only be the same again.
 */
static bool is_refused_by_operator(const IntakeSource *s, const BundleRecord *base,
                                   uint64_t digest) {
        char id[BUNDLE_ID_SIZE];
        _cleanup_(bundle_record_done) BundleRecord last = { 0 };
        if (base->n_supplements == 0 || intake_supplement_id(id, base, base->n_supplements) < 0 ||
            store_get(s->context->store, id, &last) != 0)
                return false;
        return (last.state == BUNDLE_QUARANTINED || last.state == BUNDLE_CANCELLED ||
                last.state == BUNDLE_EVICTED) &&
               last.digest == digest;
}

bool intake_start_supplement(IntakeSource *s, ProbeJob *p, BundleRecord *base) {
        if (is_refused_by_operator(s, base, p->unit.digest))
                return false;
        free(p->unit.relative);
        p->unit.relative = strdup(p->relative);
        if (!p->unit.relative)
                return true; /* a later scan, or the next start */
        p->unit.st = (struct stat){ .st_uid = base->uid };
        if (!p->supplement_id[0]) { /* else it is as intake_is_from_links() requires */
                p->unit.st.st_dev = (dev_t)base->unit_dev;
                p->unit.st.st_ino = (ino_t)base->unit_ino;
                p->unit.born_usec = base->unit_born_usec;
        }
        start_bundle(s, &p->unit, base);
        return true;
}

static void on_supplement_probed(IntakeSource *s, ProbeJob *p) {
        _cleanup_free_ char *path = unit_path(s, p->relative);
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (p->result != 0 || !path ||
            bundle_table_find_unit(s->context->bundles, s->config->name, path) ||
            store_find_unit(s->context->store, s->config->name, path, &rec) != 0)
                return;
        if (p->unit.n_files == 0) { /* nothing new; some files may have been removed */
                intake_remember(s, p->relative, p->seen_digest);
                rec.digest = p->seen_digest; /* so that the next start does not probe again */
                (void)store_update(s->context->store, &rec); /* else it does */
                return;
        }
        if (!intake_start_supplement(s, p, &rec))
                intake_remember(s, p->relative, p->seen_digest);
}

static void probe_for_supplement(IntakeSource *s, const ScanUnit *u, const char *base_id) {
        ProbeJob *p;
        if (probe_job_new(&p, s->terms, u->relative) < 0)
                return;
        strcpy(p->bundle_id, base_id);
        p->seen_digest = u->digest;
        int r = store_get_prints(s->context->store, base_id, &p->shipped, &p->n_shipped);
        if (r < 0) {
                log_error(r, "source %s: cannot read what was shipped of '%s'", s->config->name,
                          u->relative);
                probe_job_free(p);
                return;
        }
        (void)intake_probe_submit(
                s, p, on_supplement_probed); /* logged there; the next scan tries again */
}

static void on_path_probed(IntakeSource *s, ProbeJob *p) {
        s->is_probing_path = false;
        s->probe_not_before_usec = intake_boot_usec(s) + REPROBE_SHARE * p->duration_usec;
        if (p->result == 0) {
                if (s->n_active < INTAKE_ACTIVE_MAX)
                        on_unit(s, &p->unit);
                else
                        s->scan_wanted = true;
        } else if (p->result < 0 && p->result != -ENOENT)
                log_warning(p->result, "source %s: cannot read '%s', trying again at the next scan",
                            s->config->name, p->relative);
        probe_next(s);
}

static int on_probe_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        probe_next(userdata);
        return 0;
}

static void probe_next(IntakeSource *s) {
        if (s->is_probing_path || pending_is_empty(&s->pending))
                return;
        uint64_t now = intake_boot_usec(s);
        if (now < s->probe_not_before_usec) {
                int r = timer_arm(
                        &s->probe_timer,
                        &(TimerOptions){ .event = s->context->event,
                                         .usec = s->probe_not_before_usec - now,
                                         .slack_usec = (s->probe_not_before_usec - now) / 20,
                                         .handler = on_probe_timer,
                                         .userdata = s });
                if (r >= 0)
                        return;
        }
        _cleanup_free_ char *relative = pending_pop(&s->pending);
        ProbeJob *p;
        if (probe_job_new(&p, s->terms, relative) < 0)
                return;
        s->is_probing_path = intake_probe_submit(s, p, on_path_probed);
}

void intake_probe_path(IntakeSource *s, const char *relative) {
        if (s->hold == INTAKE_HELD)
                return; /* the scan after the hold finds it */
        int r = pending_add(&s->pending, relative);
        if (r < 0) { /* too many, or no memory: a scan finds them all */
                s->scan_wanted = true;
                intake_start_scan(s);
                return;
        }
        probe_next(s);
}

/* ---- attachments: what was attached to a unit after its bundle began is shipped as a supplement
 * of its own, and what was attached is released when the bundle that has it is over. The
 * directories in the state directory are the truth: a crash at any point is found by the next
 * sweep. ---- */

/* What was attached to a unit that never became a bundle is released after so long, by a clock that
 * was not set forward. */
#define UNCLAIMED_USEC (7 * USEC_PER_DAY)
static void release_all(IntakeSource *s, const char *path) {
        int r = attachments_release(s->context->attachments, s->config->name, path);
        if (r < 0)
                log_warning(r,
                            "source %s: cannot remove what was attached to '%s'; a later scan "
                            "tries again",
                            s->config->name, path);
}

static void release_of(IntakeSource *s, const char *path, const char *id) {
        int r = attachments_release_bundle(s->context->attachments, s->config->name, path, id);
        if (r < 0)
                log_dump(id, LOG_WARNING, r,
                         "cannot remove what was attached to it; a later scan tries again");
}

/* Something waits: if no bundle of the unit is active, and there is a base, a supplement ships it.
 */
static void supplement_or_release(IntakeSource *s, const char *path) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        uint64_t bytes;
        size_t n = attachments_waiting(s->context->attachments, s->config->name, path, &bytes);
        if (n == 0 || bundle_table_find_unit(s->context->bundles, s->config->name, path) ||
            store_find_unit(s->context->store, s->config->name, path, &base) != 0)
                return; /* the next event of this unit, or a scan, checks again */
        switch (base.state) {
        case BUNDLE_DELIVERED:
                supplement_attachments(s, &base, n, bytes);
                break;
        case BUNDLE_EVICTED:
        case BUNDLE_CANCELLED:
        case BUNDLE_VANISHED:
                release_all(s, path);
                break;
        default: /* quarantined: the operator may restore it */
                break;
        }
}

static int on_attached(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source, (void)usec;
        while (!pending_is_empty(&s->attached)) {
                _cleanup_free_ char *path = pending_pop(&s->attached);
                supplement_or_release(s, path);
        }
        return 0;
}

/* Not at once: the bundle that ends is still in the table. */
static void queue_attached(IntakeSource *s, const char *path) {
        int r = pending_add(&s->attached, path);
        if (r >= 0)
                r = timer_arm(&s->attached_timer, &(TimerOptions){ .event = s->context->event,
                                                                   .usec = 0,
                                                                   .handler = on_attached,
                                                                   .userdata = s });
        if (r < 0)
                log_warning(r, "source %s: a later scan handles what was attached to '%s'",
                            s->config->name, path);
}

void intake_source_on_attached(IntakeSource *s, const char *unit_path) {
        if (path_is_below(unit_path, s->terms->fixed))
                queue_attached(s, unit_path);
}

static void release_attachments_on_final(IntakeSource *s, const Bundle *b) {
        if (!s->context->attachments || b->rec.state == BUNDLE_QUARANTINED)
                return;
        release_of(s, b->rec.path, b->rec.id);
        if (attachments_waiting(s->context->attachments, s->config->name, b->rec.path, NULL) > 0)
                queue_attached(s, b->rec.path);
}

/* ---- what a crash left ---- */

static void release_if_final(IntakeSource *s, const char *path, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (bundle_table_find(s->context->bundles, id) ||
            store_get(s->context->store, id, &rec) != 0)
                return; /* what is not known is kept */
        if (bundle_state_is_terminal(rec.state))
                release_of(s, path, id);
}

static void on_attached_unit(const AttachmentsUnit *unit, void *userdata) {
        IntakeSource *s = userdata;
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        _cleanup_(attachment_names_done) AttachmentNames ids = { 0 };
        uint64_t now = intake_realtime_usec(s);
        const char *path = unit->unit_path;
        if (strcmp(unit->source, s->config->name) != 0 || !path_is_below(path, s->terms->fixed))
                return;
        int r = attachments_bundles(s->context->attachments, s->config->name, path, &ids);
        for (size_t i = 0; i < ids.n; i++)
                release_if_final(s, path, ids.items[i]);
        if (r < 0)
                log_warning(r, "source %s: cannot see what is attached to '%s'", s->config->name,
                            path);
        if (attachments_waiting(s->context->attachments, s->config->name, path, NULL) == 0)
                return;
        if (now > unit->changed_usec + UNCLAIMED_USEC && s->steady_usec > UNCLAIMED_USEC &&
            !bundle_table_find_unit(s->context->bundles, s->config->name, path) &&
            store_find_unit(s->context->store, s->config->name, path, &base) == STORE_E_NOT_FOUND) {
                log_notice("source %s: '%s' never became a bundle; what was attached to it is "
                           "removed",
                           s->config->name, path);
                release_all(s, path);
                return;
        }
        queue_attached(s, path);
}

static void sweep_attachments(IntakeSource *s) {
        if (!s->context->attachments)
                return;
        s->steady_usec = clock_step_age_usec(&s->steady, s->context->clock);
        int r = attachments_list_all(s->context->attachments, on_attached_unit, s);
        if (r < 0)
                log_warning(r, "source %s: cannot see what is attached; a later scan tries again",
                            s->config->name);
}

static void attachments_queue_done(IntakeSource *s) {
        pending_done(&s->attached);
        sd_event_source_disable_unref(s->attached_timer);
}

/* ---- sources that are not configured any more ---- */

/* What cannot be read is not over. */
static bool has_ended(int r, const BundleRecord *rec, bool is_old) {
        return r == STORE_E_NOT_FOUND ? is_old : r == 0 && bundle_state_is_terminal(rec->state);
}

static bool is_old(const OrphansContext *c, const AttachmentsUnit *unit) {
        return c->now_usec > unit->changed_usec + ORPHANS_WAIT_USEC &&
               c->steady_usec > ORPHANS_WAIT_USEC;
}

/* @return whether the bundle is over: its attachments are removed, now or with the next sweep */
static bool release_if_ended(const OrphansContext *c, const AttachmentsUnit *unit, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_get(c->store, id, &rec);
        if (!has_ended(r, &rec, is_old(c, unit)))
                return false;
        r = attachments_release_bundle(c->attachments, unit->source, unit->unit_path, id);
        if (r < 0)
                log_dump(id, LOG_WARNING, r,
                         "cannot remove what was attached to it; in an hour it is tried again");
        return true;
}

static void on_orphaned_unit(const AttachmentsUnit *unit, void *userdata) {
        const OrphansContext *c = userdata;
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        _cleanup_(attachment_names_done) AttachmentNames ids = { 0 };
        bool is_needed = false;
        if (c->is_configured(unit->source, c->userdata))
                return;
        int r = attachments_bundles(c->attachments, unit->source, unit->unit_path, &ids);
        for (size_t i = 0; i < ids.n; i++)
                is_needed |= !release_if_ended(c, unit, ids.items[i]);
        if (r < 0 || is_needed || !is_old(c, unit))
                return;
        r = store_find_unit(c->store, unit->source, unit->unit_path, &base);
        if (!has_ended(r, &base, true))
                return;
        r = attachments_release(c->attachments, unit->source, unit->unit_path);
        if (r < 0)
                log_warning(r,
                            "cannot remove what was attached to '%s'; in an hour it is tried again",
                            unit->unit_path);
        else
                log_notice("source '%s' is not configured any more; what was attached to '%s' is "
                           "removed",
                           unit->source, unit->unit_path);
}

void orphans_sweep(const OrphansContext *c) {
        int r = attachments_list_all(c->attachments, on_orphaned_unit, (void *)c);
        if (r < 0)
                log_warning(r, "cannot see what is attached to dumps of former sources; in an hour "
                               "it is tried again");
}

/* ---- the source ---- */

/* How long a stop waits for workers that are busy. */
#define STOP_USEC (2 * USEC_PER_SEC)
uint64_t intake_boot_usec(const IntakeSource *s) {
        return s->context->clock->boottime_usec(s->context->clock);
}

uint64_t intake_realtime_usec(const IntakeSource *s) {
        return s->context->clock->realtime_usec(s->context->clock);
}

static void intake_remember(IntakeSource *s, const char *relative, uint64_t digest) {
        /* Forgotten for want of memory: it is probed once more. */
        (void)unit_table_put(&s->table, unit_table_key(relative), digest);
}

void intake_set_note(char **note, const char *text) {
        if (*note && text && strcmp(*note, text) == 0)
                return;
        free(*note);
        *note = text ? strdup(text) : NULL;
}

/* "" for the fixed part itself, else what follows it and the slash. */
const char *intake_relative(const IntakeSource *s, const char *path) {
        size_t n = strlen(s->terms->fixed);
        const char *rest = path + (strncmp(path, s->terms->fixed, n) == 0 ? n : 0);
        while (*rest == '/')
                rest++;
        return rest;
}

void intake_source_on_final(IntakeSource *s, Bundle *b) {
        const char *relative = intake_relative(s, b->rec.path);
        s->n_active -= b->is_active; /* one that was restored from quarantine does not count */
        /* A quarantined one can be restored; of others the row has whether links are still needed.
         */
        release_attachments_on_final(s, b);
        hook_hints_on_final(s, b->rec.path);
        if (b->rec.state == BUNDLE_DELIVERED && b->dirty)
                intake_recheck_links(s, b->rec.id);
        else if (b->rec.state != BUNDLE_QUARANTINED && !b->rec.links_held)
                intake_release_pins(s, b->rec.id); /* some may be there where links were refused */
        intake_resweep_pins(s);
        /* A supplement's digest is not the unit's; and what vanished is accepted again if it comes
         * back. */
        if (!b->rec.supplement_of[0] && b->rec.state != BUNDLE_VANISHED)
                intake_remember(s, relative, b->rec.digest);
        if ((b->dirty && b->rec.state == BUNDLE_DELIVERED) || b->is_replaced ||
            intake_is_from_links(&b->rec))
                intake_probe_path(s, relative);
        if (s->scan_wanted && s->n_active < INTAKE_ACTIVE_MAX / 2)
                intake_start_scan(s);
}

/* ---- events ---- */

/* The bundle being worked on that a path lies in, if there is one. */
static Bundle *bundle_above(IntakeSource *s, const char *relative) {
        _cleanup_free_ char *path = unit_path(s, relative);
        size_t least = strlen(s->terms->fixed);
        while (path && strlen(path) >= least) {
                Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, path);
                if (b)
                        return b;
                char *slash = strrchr(path, '/');
                if (!slash || slash == path)
                        break;
                *slash = '\0';
        }
        return NULL;
}

static void on_change(const char *relative, bool is_dir, void *userdata) {
        IntakeSource *s = userdata;
        Bundle *b = bundle_above(s, relative);
        /* A loose unit is only the files directly in its directory: what lies deeper is another
         * unit's. */
        if (b && !source_spec_is_loose(s->terms, intake_relative(s, b->rec.path))) {
                bool waiting = b->rec.state == BUNDLE_SETTLING && !b->probing;
                if (waiting && !b->dirty)
                        intake_probe_bundle_in(
                                b, MAX(REPROBE_USEC, REPROBE_SHARE * b->check_took_usec));
                b->dirty = true;
                return;
        }
        if (is_dir || s->terms->scan.kind == SOURCE_PROCESS_CORE) {
                intake_probe_path(s, relative);
                return;
        }
        const char *slash = strrchr(relative, '/'); /* many files of one directory are one probe */
        _cleanup_free_ char *dir = strndup(relative, slash ? (size_t)(slash - relative) : 0);
        if (dir)
                intake_probe_path(s, dir);
}

static void on_rescan(const char *why, void *userdata) {
        IntakeSource *s = userdata;
        log_debug("source %s: scanning, because %s", s->config->name, why);
        s->scan_wanted = true;
        intake_start_scan(s);
}

static void on_degraded(const char *why, const char *remedy, void *userdata) {
        IntakeSource *s = userdata;
        _cleanup_free_ char *text = NULL;
        if (asprintf(&text, "%s%s%s", why, remedy ? "; " : "", remedy ? remedy : "") < 0)
                text = NULL;
        if (text && (!s->note || strcmp(s->note, text) != 0))
                log_warning(0, "source %s: %s", s->config->name, text);
        intake_set_note(&s->note, text);
}

/* ---- scans ---- */

static void set_hold(IntakeSource *s, IntakeHold hold) {
        static const char *const names[] = { "open", "holding", "held" };
        static const unsigned moves[] = {
                [INTAKE_OPEN] = 1U << INTAKE_HOLDING,
                [INTAKE_HOLDING] = 1U << INTAKE_OPEN | 1U << INTAKE_HELD,
                [INTAKE_HELD] = 1U << INTAKE_OPEN,
        };
        static const StateTable table = { "source", names, moves, N_INTAKE_HOLDS };
        if (transition_check(&table, s->hold, hold, NULL) == 0)
                s->hold = hold;
}

static void on_task_done(WorkJob *job) {
        SourceTask *t = CONTAINER_OF(job, SourceTask, job);
        list_remove(&t->mine);
        t->done(t);
}

static int submit(IntakeSource *s, WorkerPool *pool, SourceTask *t) {
        t->job.done = on_task_done;
        int r = worker_pool_submit(pool, &t->job);
        if (r >= 0)
                list_append(&s->tasks, &t->mine);
        return r;
}

int intake_source_submit(IntakeSource *s, SourceTask *t) {
        return submit(s, s->probes, t);
}

static void start_watch(IntakeSource *s, const ScanJob *j) {
        if (s->watch || s->config->watch == CONFIG_WATCH_SCAN)
                return;
        if (s->config->watch == CONFIG_WATCH_AUTO && j->on_network) {
                _cleanup_free_ char *text = NULL;
                if (asprintf(&text,
                             "'%s' is on %s, where inotify does not see what other nodes write: "
                             "scanning every scan_interval instead",
                             s->terms->fixed, j->fs_name) >= 0 &&
                    (!s->note || strcmp(s->note, text) != 0)) {
                        intake_set_note(&s->note, text);
                        log_notice("source %s: %s", s->config->name, text);
                }
                return;
        }
        DirWatchCallbacks callbacks = { .on_change = on_change,
                                        .on_rescan = on_rescan,
                                        .on_degraded = on_degraded,
                                        .userdata = s };
        int r = dirwatch_new(&s->watch, s->context->event, s->terms->fixed, &callbacks);
        if (r < 0)
                on_degraded("no inotify instance can be had, so only the scan every scan_interval "
                            "finds what is new",
                            "raise fs.inotify.max_user_instances", s);
}

static int on_scan_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source, (void)usec;
        if (s->watch)
                dirwatch_check(s->watch);
        intake_start_scan(s);
        return 0;
}

/* Bundles are probed once their rows are durable; where the commit failed a later scan finds them
 * again. */
static void end_transaction(IntakeSource *s) {
        int r = store_commit(s->context->store);
        size_t n_postponed = 0;
        s->in_transaction = false;
        LIST_FOREACH_SAFE (l, bundle_table_all(s->context->bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (!b->uncommitted)
                        continue;
                b->uncommitted = false;
                if (r >= 0) {
                        intake_probe_bundle(b);
                        continue;
                }
                n_postponed++;
                intake_remember(s, intake_relative(s, b->rec.path),
                                ~b->rec.digest); /* so that the next scan reports it */
                s->n_active--;
                bundle_table_forget(s->context->bundles, b);
        }
        report_postponed(s, r, n_postponed);
}

static void handle_found(IntakeSource *s, ScanJob *j) {
        s->is_postponing = false;
        s->in_transaction =
                store_begin(s->context->store) == 0; /* else each row is committed by itself */
        for (size_t i = 0; i < j->n_found; i++) {
                ScanUnit *u = &j->found[i];
                if (u->on_network && !u->has_own_name) /* must be claimed first, which may block */
                        intake_probe_path(s, u->relative);
                else if (s->n_active < INTAKE_ACTIVE_MAX)
                        on_unit(s, u);
                else
                        s->scan_wanted = true;
        }
        if (s->in_transaction)
                end_transaction(s);
        s->has_logged_postponed = s->is_postponing;
}

static void on_scanned(SourceTask *t) {
        _cleanup_(scan_job_freep) ScanJob *j = CONTAINER_OF(t, ScanJob, task);
        IntakeSource *s = j->source;
        s->is_scanning = false;
        s->scan_usec = j->duration_usec;
        if (j->result < 0 && j->result != -ENOENT)
                log_warning(j->result,
                            "source %s: cannot scan '%s'; check that the agent may read it; trying "
                            "again in scan_interval",
                            s->config->name, s->terms->fixed);
        if (j->result == -ENOENT && !s->was_missing)
                log_info("source %s: '%s' does not exist yet, waiting for it", s->config->name,
                         s->terms->fixed);
        if (j->n_unreadable != s->n_unreadable &&
            j->n_unreadable > 0) { /* logged when it changes, not with every scan */
                log_warning(0,
                            "source %s: %llu directories cannot be read, such as '%s'; give the "
                            "agent CAP_DAC_READ_SEARCH or read permission",
                            s->config->name, (unsigned long long)j->n_unreadable,
                            j->unreadable ? j->unreadable : "?");
                s->context->on_discard("unreadable-directory", j->n_unreadable,
                                       s->context->userdata);
        }
        s->n_unreadable = j->n_unreadable;
        s->scan_failed = j->n_unreadable > 0 || (j->result < 0 && j->result != -ENOENT);
        s->was_missing = j->result == -ENOENT;
        start_watch(s, j); /* calls on_rescan when everything is watched: what came in between is
                              not lost */
        handle_found(s, j);
        sweep_attachments(s);
        s->flush_this_scan = false;
        s->has_scanned = true;
        s->scan_wanted = s->scan_wanted || j->has_more;
        if (s->scan_wanted && s->n_active < INTAKE_ACTIVE_MAX / 2) {
                intake_start_scan(s);
                return;
        }
        if (s->hold == INTAKE_HOLDING && !s->scan_wanted)
                set_hold(s, INTAKE_HELD);
        if (s->hold != INTAKE_HELD)
                arm_scan(s);
}

static void arm_scan(IntakeSource *s) {
        int r = timer_arm(&s->scan_timer,
                          &(TimerOptions){ .event = s->context->event,
                                           .usec = s->config->scan_interval_usec,
                                           .slack_usec = s->config->scan_interval_usec / 20,
                                           .handler = on_scan_timer,
                                           .userdata = s });
        if (r < 0)
                log_error(r, "source %s: cannot arm the scan timer; only events find what is new",
                          s->config->name);
}

static void intake_start_scan(IntakeSource *s) {
        if (s->hold == INTAKE_HELD)
                return;
        if (s->is_scanning) {
                s->scan_wanted = true;
                return;
        }
        size_t n_max = s->n_active < INTAKE_ACTIVE_MAX ? INTAKE_ACTIVE_MAX - s->n_active : 0;
        ScanJob *j = NULL;
        int r = scan_job_new(&j, s->terms, &s->table, n_max);
        if (r >= 0) {
                j->source = s;
                j->task.done = on_scanned;
                r = submit(s, s->scans, &j->task);
        }
        if (r < 0) {
                scan_job_free(j);
                log_error(r, "source %s: cannot start a scan, trying again in scan_interval",
                          s->config->name);
                arm_scan(s);
                return;
        }
        s->is_scanning = true;
        s->scan_wanted = false;
        s->flush_this_scan = s->flush_wanted;
        s->flush_wanted = false;
}

void intake_source_flush(IntakeSource *s, bool flush) {
        s->flush_wanted = flush;
        LIST_FOREACH_SAFE (l, bundle_table_all(s->context->bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (flush && b->source == s && b->rec.state == BUNDLE_SETTLING)
                        intake_flush_bundle(b);
        }
        intake_start_scan(s);
}

void intake_source_hold(IntakeSource *s, bool on) {
        if (on == (s->hold != INTAKE_OPEN))
                return;
        set_hold(s, on ? INTAKE_HOLDING : INTAKE_OPEN);
        intake_start_scan(s); /* what is there now, or has come meanwhile */
}

/* ---- life ---- */

static int remember_stored(const char *path, uint64_t digest, void *userdata) {
        IntakeSource *s = userdata;
        size_t n = strlen(s->terms->fixed);
        if (strncmp(path, s->terms->fixed, n) != 0)
                return 0;
        const char *relative = path + n;
        while (*relative == '/')
                relative++;
        intake_remember(s, relative, digest);
        return 0;
}

int intake_source_new(IntakeSource **ret, IntakeContext *context, const ConfigSource *config) {
        IntakeSource *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (IntakeSource){ .context = context, .config = config };
        pending_init(&s->pending);
        pending_init(&s->rechecks);
        pending_init(&s->attached);
        list_init(&s->hook_hints);
        list_init(&s->tasks);
        int r = source_spec_new(&s->terms, config, context->instance_id, context->proc_root);
        if (r >= 0)
                r = worker_pool_new(&s->probes, context->event, "nc-probe", 1, WORKER_NORMAL);
        if (r >= 0)
                r = worker_pool_new(&s->scans, context->event, "nc-scan", 1, WORKER_NORMAL);
        if (r >= 0)
                r = store_list_ended(context->store, config->name, remember_stored, s);
        if (r < 0) {
                intake_source_free(s);
                return r;
        }
        intake_sweep_pins(s);
        intake_start_scan(s);
        *ret = s;
        return 0;
}

static bool is_any_running(const IntakeSource *s) {
        LIST_FOREACH (l, &s->tasks)
                if (worker_pool_is_running(&CONTAINER_OF(l, SourceTask, mine)->job))
                        return true;
        return false;
}

/* Queued tasks are dropped; those that run are waited for a little. One that sits in a hung mount
 * is abandoned with what it holds. */
static void stop_workers(IntakeSource *s) {
        worker_pool_abandon(s->probes);
        worker_pool_abandon(s->scans);
        uint64_t until = intake_boot_usec(s) + STOP_USEC;
        while (is_any_running(s) && intake_boot_usec(s) < until)
                (void)usleep(2 * USEC_PER_MSEC); /* a signal only ends the wait sooner */
        LIST_FOREACH_SAFE (l, &s->tasks) {
                SourceTask *t = CONTAINER_OF(l, SourceTask, mine);
                list_remove(&t->mine);
                if (!worker_pool_is_running(&t->job))
                        t->drop(t);
        }
}

IntakeSource *intake_source_free(IntakeSource *s) {
        if (!s)
                return NULL;
        LIST_FOREACH (l, bundle_table_all(s->context->bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->source == s) {
                        b->source = NULL;
                        b->probing = false;
                        b->timer = sd_event_source_disable_unref(b->timer);
                }
        }
        dirwatch_free(s->watch);
        stop_workers(s);
        sd_event_source_disable_unref(s->scan_timer);
        sd_event_source_disable_unref(s->probe_timer);
        pending_done(&s->pending);
        pending_done(&s->rechecks);
        attachments_queue_done(s);
        hook_hints_done(s);
        unit_table_done(&s->table);
        source_spec_unref(s->terms);
        free(s->note);
        free(s->hold_note);
        free(s);
        return NULL;
}

void intake_source_rebind(IntakeSource *s, const ConfigSource *config) {
        s->config = config;
}

const ConfigSource *intake_source_config(const IntakeSource *s) {
        return s->config;
}

SourceSpec *intake_source_spec(const IntakeSource *s) {
        return s->terms;
}

void intake_source_view(const IntakeSource *s, IntakeSourceView *ret) {
        *ret = (IntakeSourceView){ .is_watched = s->watch != NULL,
                                   .has_scanned = s->has_scanned,
                                   .note = s->note ? s->note : s->hold_note,
                                   .n_watches = s->watch ? dirwatch_n_watches(s->watch) : 0,
                                   .n_overflows = s->watch ? dirwatch_n_overflows(s->watch) : 0,
                                   .scan_usec = s->scan_usec };
}

bool intake_source_has_seen_all(const IntakeSource *s) {
        return s->has_scanned && !s->scan_failed;
}

bool intake_source_is_idle(const IntakeSource *s) {
        return s->has_scanned && !s->is_scanning && !s->scan_wanted && s->n_probes == 0 &&
               !s->is_listing && pending_is_empty(&s->pending) && pending_is_empty(&s->attached);
}
