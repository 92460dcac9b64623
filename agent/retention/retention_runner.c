/* Releases the files of ended bundles by the operator's policy, and evicts undelivered bundles
 * where that allows it: measures and deletes in the threads of the sources, decides by policy.h
 * on the loop. Nothing is armed while nothing may have to go.
 *
 * Files are deleted only on the strength of a row that is durable: of a delivered bundle, or of
 * one that is evicted with its links still marked as held. So a crash before the row changes
 * nothing, and a crash after it leaves a row with what is still to be done at the next start.
 * The links go with the files, member by member, and the mark is taken off the row last. A
 * bundle that is evicted because the user has deleted its files has none to delete: its row is
 * written without the mark, and intake removes the links, or the next start does. */
#include "agent/retention/retention_runner.h"

#include <errno.h>
#include <search.h>
#include <string.h>

#include "agent/retention/link_deletion.h"
#include "agent/retention/link_usage.h"
#include "agent/retention/policy.h"
#include "lib/base/array.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"

#define ROUND_USEC (10 * USEC_PER_SEC)
#define KICK_USEC (300 * USEC_PER_MSEC)
/* With more bundles than this a kick starts no earlier round. */
#define KICK_BUNDLES_MAX 1000

#define RECHECK_USEC (2 * USEC_PER_SEC)
#define RETRY_OPEN_USEC (60 * USEC_PER_SEC)
#define RETRY_FAILED_USEC (5 * USEC_PER_MINUTE)

/* No more deletions of a source are started in a round; the rest follows when these are done. */
#define DELETIONS_MAX 64
/* With more pins than this only the links of a bundle itself explain its link counts. */
#define LINK_INODES_MAX 100000

typedef enum HeldState {
        HELD_WAITING,
        HELD_DELETING,  /* a task is at it */
        HELD_UNSHIPPED, /* a deletion found content that was not shipped: its links are rechecked */
        HELD_RECHECKED, /* that content is not needed: the next deletion discards it */
        N_HELD_STATES
} HeldState;

/* A copy of the row of a bundle that has ended while links of ours hold its files. */
typedef struct HeldBundle {
        ListLink link;
        char id[BUNDLE_ID_SIZE];
        HeldState state;
        bool is_evicted, is_pinned, is_measured;
        uid_t uid;
        uint64_t first_seen_usec, ended_usec;
        uint64_t not_before_boot_usec; /* after a failure */
        LinkUsage use;
} HeldBundle;

typedef struct Subject { /* a bundle that is measured */
        char id[BUNDLE_ID_SIZE];
        bool is_known;   /* measured before: again only when free space is short */
        uint64_t digest; /* of an undelivered one */
        RetentionItem item;
        LinkUsage use;
} Subject;

typedef struct Measurement {
        SourceTask task;
        struct RunnerSource *owner; /* the loop's side */
        SourceSpec *spec;           /* a reference */
        RetentionPolicy policy;
        Subject *subjects;
        size_t n;
        RetentionSpace space;
        dev_t device;
        bool is_short;
        int result;
} Measurement;

typedef struct Deletion {
        SourceTask task;
        struct RunnerSource *owner; /* the loop's side */
        SourceSpec *spec;           /* a reference */
        char id[BUNDLE_ID_SIZE];
        char *relative;
        LinkDeletion request; /* borrows from the above and from prints */
        uint64_t *prints, *known;
        RetentionWhy why;
        LinkDeletionTally tally;
        int result;
} Deletion;

typedef struct RunnerSource {
        RetentionRunner *runner;
        IntakeSource *source; /* borrowed */
        SourceSpec *spec;     /* its own; borrowed */
        ListLink held;        /* oldest first, about */
        void *held_by_id;     /* tsearch(3) */
        size_t n_held;
        unsigned round; /* in which the measurement that is out was started */
        bool is_measuring, has_device;
        bool has_more;         /* deletions were left for the next round */
        Measurement *measured; /* waits for the others of its file system; owned */
        size_t n_deletions;    /* that are out */
        dev_t device;          /* of the last measurement */
        RetentionReport report;
        char *trouble; /* of the last deletion that failed; owned */
        char *note;    /* owned */
} RunnerSource;

struct RetentionRunner {
        RetentionRunnerContext context;
        RetentionPolicy policy;
        RunnerSource *sources;
        size_t n_sources;
        sd_event_source *timer;
        unsigned round;
        bool is_armed;
        uint64_t due_boot_usec; /* of the timer */
};

static void schedule_round(RetentionRunner *r, uint64_t usec);
static void plan_round(RetentionRunner *r);

static uint64_t boot_usec(const RetentionRunner *r) {
        return r->context.clock->boottime_usec(r->context.clock);
}

static uint64_t realtime_usec(const RetentionRunner *r) {
        return r->context.clock->realtime_usec(r->context.clock);
}

/* ---- held bundles ---- */

static void held_set_state(HeldBundle *h, HeldState state) {
        static const char *const names[] = { "waiting", "deleting", "unshipped", "rechecked" };
        static const unsigned moves[] = {
                [HELD_WAITING] = 1U << HELD_DELETING,
                [HELD_DELETING] = 1U << HELD_WAITING | 1U << HELD_UNSHIPPED,
                [HELD_UNSHIPPED] = 1U << HELD_RECHECKED | 1U << HELD_DELETING,
                [HELD_RECHECKED] = 1U << HELD_DELETING,
        };
        static const StateTable table = { "held source files", names, moves, N_HELD_STATES };
        if (transition_check(&table, h->state, state, h->id) == 0)
                h->state = state;
}

static int compare_held(const void *a, const void *b) {
        return strcmp(((const HeldBundle *)a)->id, ((const HeldBundle *)b)->id);
}

static HeldBundle *held_find(const RunnerSource *s, const char *id) {
        HeldBundle key = { 0 };
        if (strlen(id) >= sizeof key.id)
                return NULL;
        strcpy(key.id, id);
        HeldBundle **found = tfind(&key, &s->held_by_id, compare_held);
        return found ? *found : NULL;
}

static void held_add(RunnerSource *s, const BundleRecord *rec) {
        if (held_find(s, rec->id))
                return;
        HeldBundle *h = calloc(1, sizeof *h);
        if (h)
                strcpy(h->id, rec->id);
        if (!h || !tsearch(h, &s->held_by_id, compare_held)) {
                free(h);
                log_dump(rec->id, LOG_WARNING, -ENOMEM,
                         "its files at the source stay until the next start");
                return;
        }
        h->is_evicted = rec->state == BUNDLE_EVICTED;
        h->is_pinned = rec->pinned;
        h->uid = rec->uid;
        h->first_seen_usec = rec->first_seen_usec;
        h->ended_usec = rec->changed_usec;
        list_append(&s->held, &h->link);
        s->n_held++;
}

static void held_remove(RunnerSource *s, HeldBundle *h) {
        tdelete(h, &s->held_by_id, compare_held);
        list_remove(&h->link);
        s->n_held--;
        free(h);
}

/* Whether nothing may be started with it now. */
static bool held_is_busy(const RunnerSource *s, const HeldBundle *h) {
        return h->state == HELD_DELETING || h->not_before_boot_usec > boot_usec(s->runner) ||
               bundle_table_find(s->runner->context.bundles, h->id) || /* a redelivery */
               (!h->is_evicted && s->runner->context.is_rechecking_links(s->source, h->id));
}

/* A source of that name at another path is another source: it would delete nothing of the bundle.
 */
static int on_stored(BundleRecord *rec, void *userdata) {
        RunnerSource *s = userdata;
        if (path_is_below(rec->path, s->spec->fixed))
                held_add(s, rec);
        return 0;
}

static int load_held(RunnerSource *s) {
        static const BundleState states[] = { BUNDLE_DELIVERED, BUNDLE_EVICTED };
        int r = 0;
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(states); i++)
                r = store_list(s->runner->context.store,
                               &(StoreFilter){ .state = (int)states[i],
                                               .held_only = true,
                                               .source = s->spec->name },
                               on_stored, s);
        return r;
}

static char *unheld_counter(const RunnerSource *s) {
        return strbuf_format("sources_unheld:%s", s->spec->name);
}

/* Counts a delivered bundle whose files are never deleted, since no link of ours holds them. */
static void count_unheld(const RunnerSource *s) {
        _cleanup_free_ char *name = unheld_counter(s);
        if (name)
                (void)store_counter_add(s->runner->context.store, name, 1); /* a figure */
}

static uint64_t n_unheld(const RunnerSource *s) {
        _cleanup_free_ char *name = unheld_counter(s);
        return name ? store_counter(s->runner->context.store, name) : 0;
}

/* ---- deletions ---- */

static Deletion *deletion_free(Deletion *d) {
        if (!d)
                return NULL;
        source_spec_unref(d->spec);
        free(d->relative);
        free(d->prints);
        free(d->known);
        free(d);
        return NULL;
}
DEFINE_CLEANUP(Deletion, deletion_free);

static void deletion_run(WorkJob *job) {
        Deletion *d = CONTAINER_OF(job, Deletion, task.job);
        d->result = link_deletion_run(d->spec->link_dirs, &d->request, &d->tally);
}

static void deletion_drop(SourceTask *t) {
        deletion_free(CONTAINER_OF(t, Deletion, task));
}

static Deletion *deletion_new(SourceSpec *spec, const BundleRecord *rec) {
        const char *relative = source_spec_relative(spec, rec->path);
        const bool is_named =
                unit_is_evidence_by_name((SourceKind)rec->kind, spec->template, relative);
        Deletion *d = calloc(1, sizeof *d);
        if (!d)
                return NULL;
        strcpy(d->id, rec->id);
        list_init(&d->task.mine);
        d->spec = source_spec_ref(spec);
        d->relative = strdup(relative);
        if (!d->relative)
                return deletion_free(d);
        d->request = (LinkDeletion){ .bundle_id = d->id,
                                     .relative = d->relative,
                                     .is_file = rec->kind == SOURCE_PROCESS_CORE,
                                     .leaves_directory = !is_named,
                                     .only_named = !is_named,
                                     .any_content = rec->state == BUNDLE_EVICTED,
                                     .unit_dev = rec->unit_dev };
        d->task.job.run = deletion_run;
        d->task.drop = deletion_drop;
        return d;
}

static void set_trouble(RunnerSource *s, const char *text) {
        free(s->trouble);
        s->trouble = text ? strdup(text) : NULL; /* NULL: then only the log has it */
}

/* Takes the mark off the row that links are held. */
static int clear_links_held(const RunnerSource *s, const char *id, bool was_unheld) {
        Store *store = s->runner->context.store;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_get(store, id, &rec);
        if (r != 0)
                return MIN(r, 0); /* no row, no mark */
        rec.links_held = false;
        r = store_begin(store);
        if (r < 0)
                return r;
        if (was_unheld)
                count_unheld(s);
        (void)store_update(store, &rec); /* the commit reports a failure */
        return store_commit(store);
}

static void count_deleted(const RunnerSource *s, const Deletion *d) {
        Store *store = s->runner->context.store;
        if (d->tally.n_deleted == 0 || d->request.any_content) /* an eviction is a discard */
                return;
        (void)store_counter_add(store, "sources_deleted", d->tally.n_deleted); /* figures */
        (void)store_counter_add(store, "sources_deleted_bytes", d->tally.deleted_bytes);
}

static void log_tally(const Deletion *d) {
        static const char *const why[] = { [RETENTION_NO_REASON] = "started before",
                                           [RETENTION_KEEP_FOR] = "keep_for is over",
                                           [RETENTION_MAX_USE] = "max_use was exceeded",
                                           [RETENTION_KEEP_FREE] = "keep_free was violated" };
        char text[PARSE_FORMAT_SIZE];
        const LinkDeletionTally *t = &d->tally;
        if (t->n_kept > 0)
                log_dump(d->id, LOG_WARNING, 0,
                         "a file appeared in place of one that was being deleted, and its name was "
                         "used again at once: it is beside it now, or above it, as "
                         "'….kept-by-neuron-collectd'");
        if (d->request.only_links)
                return;
        if (d->result == -ENOENT)
                log_dump(d->id, LOG_NOTICE, 0,
                         "no link of ours holds its files any more, so they are not deleted: "
                         "remove them by hand");
        if (t->n_deleted > 0)
                log_dump(d->id, LOG_INFO, 0, "deleted %llu files at the source, %s: %s",
                         (unsigned long long)t->n_deleted,
                         parse_format_human(text, t->deleted_bytes), why[d->why]);
        if (t->n_changed > 0)
                log_dump(d->id, LOG_NOTICE, 0,
                         "kept %llu files at the source that have changed since they were shipped",
                         (unsigned long long)t->n_changed);
        if (t->n_unnamed > 0)
                log_dump(d->id, LOG_NOTICE, 0,
                         "kept %llu files at the source: neither their names nor that of their "
                         "directory say that they are evidence; remove them by hand",
                         (unsigned long long)t->n_unnamed);
        if (t->n_open > 0)
                log_dump(d->id, LOG_INFO, 0,
                         "%llu files at the source are open for writing, trying again",
                         (unsigned long long)t->n_open);
        if (t->n_unshipped > 0)
                log_dump(d->id, LOG_INFO, 0,
                         "kept %llu links to content that was not shipped: they are rechecked",
                         (unsigned long long)t->n_unshipped);
}

/* The same failure is not logged again for each bundle. */
static void note_trouble(RunnerSource *s, const Deletion *d) {
        bool is_refused = d->result == -EACCES || d->result == -EPERM;
        _cleanup_free_ char *text =
                d->result == LINK_DELETION_E_AWAY
                        ? strbuf_format("cannot release delivered files below '%s': their file "
                                        "system is not mounted; mount it, trying again every "
                                        "minute",
                                        d->spec->fixed)
                        : strbuf_format("cannot delete delivered files below '%s': %s; %s",
                                        d->spec->fixed, strerror(-d->result),
                                        is_refused
                                                ? "give the agent CAP_DAC_OVERRIDE and CAP_FOWNER, "
                                                  "or set retention.after_delivery: keep"
                                                : "trying again in 5 minutes");
        bool is_known = s->trouble && text && strcmp(s->trouble, text) == 0;
        log_dump(d->id, is_known ? LOG_DEBUG : LOG_WARNING, 0, "%s", text ? text : "out of memory");
        set_trouble(s, text);
}

static void postpone(RunnerSource *s, HeldBundle *h, uint64_t usec) {
        h->is_measured = false;
        h->not_before_boot_usec = boot_usec(s->runner) + usec;
        schedule_round(s->runner, usec);
}

static void conclude(RunnerSource *s, HeldBundle *h, const Deletion *d) {
        bool is_done = d->result == 0 || d->result == -ENOENT;
        if (is_done)
                set_trouble(s, NULL);
        else if (d->result < 0 || d->result == LINK_DELETION_E_AWAY)
                note_trouble(s, d);
        if (is_done && clear_links_held(s, d->id, d->result == -ENOENT) >= 0) {
                held_remove(s, h);
                return;
        }
        held_set_state(h, d->result == LINK_DELETION_E_UNSHIPPED ? HELD_UNSHIPPED : HELD_WAITING);
        postpone(s, h, d->result < 0 && !is_done ? RETRY_FAILED_USEC : RETRY_OPEN_USEC);
        if (h->state == HELD_UNSHIPPED)
                s->runner->context.recheck_links(s->source, d->id);
}

static void on_deletion_done(SourceTask *t) {
        _cleanup_(deletion_freep) Deletion *d = CONTAINER_OF(t, Deletion, task);
        RunnerSource *s = d->owner;
        HeldBundle *h = held_find(s, d->id);
        s->n_deletions--;
        log_tally(d);
        count_deleted(s, d);
        if (h)
                conclude(s, h, d);
        if (s->n_deletions == 0 && s->has_more) /* else when it is time: what is free may lag */
                schedule_round(s->runner, 0);
        plan_round(s->runner);
}

static int get_prints(Store *store, const BundleRecord *rec, Deletion *d) {
        const char *base = rec->supplement_of[0] ? rec->supplement_of : rec->id;
        int r = store_get_own_prints(store, rec->id, &d->prints, &d->request.n_prints);
        if (r >= 0)
                r = store_get_prints(store, base, &d->known, &d->request.n_known);
        d->request.prints = d->prints;
        d->request.known = d->known;
        return MIN(r, 0);
}

/* The row decides: it may have been pinned since, or be gone. @return 0 and a deletion, 1 not to be
 * deleted, -errno */
static int prepare_deletion(RunnerSource *s, HeldBundle *h, Deletion **ret) {
        RetentionRunner *r = s->runner;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int error = store_get(r->context.store, h->id, &rec);
        if (error < 0)
                return error;
        if (error > 0 || !rec.links_held) {
                held_remove(s, h);
                return 1;
        }
        error = store_unit_is_pinned(r->context.store, &rec);
        if (error < 0)
                return error;
        h->is_pinned = error > 0;
        if (h->is_pinned && r->policy.may_delete && !h->is_evicted)
                return 1;
        _cleanup_(deletion_freep) Deletion *d = deletion_new(s->spec, &rec);
        if (!d)
                return -ENOMEM;
        d->request.only_links = !r->policy.may_delete;
        d->request.discards_unshipped = h->state == HELD_RECHECKED;
        uint64_t now = realtime_usec(r), up = boot_usec(r);
        if (rec.changed_usec <
            now - MIN(now, up)) /* another boot may number the device otherwise */
                d->request.unit_dev = 0;
        error = h->is_evicted ? 0 : get_prints(r->context.store, &rec, d);
        if (error < 0)
                return error;
        *ret = TAKE_PTR(d);
        return 0;
}

static void start_deletion(RunnerSource *s, HeldBundle *h, RetentionWhy why) {
        _cleanup_(deletion_freep) Deletion *d = NULL;
        int r = prepare_deletion(s, h, &d);
        if (r > 0)
                return;
        if (r == 0) {
                d->owner = s;
                d->why = why;
                d->task.done = on_deletion_done;
                r = s->runner->context.submit(s->source, &d->task);
        }
        if (r < 0) {
                log_dump(h->id, LOG_WARNING, r, "cannot start to release its files, trying again");
                postpone(s, h, RETRY_OPEN_USEC);
                return;
        }
        (void)TAKE_PTR(d); /* the source has it */
        held_set_state(h, HELD_DELETING);
        s->n_deletions++;
}

/* Starts what needs no measurement: evicted ones whose files are still there, and with `keep` all
 * links. */
static void start_owed_deletions(RunnerSource *s) {
        uint64_t now = boot_usec(s->runner);
        LIST_FOREACH_ITEM_SAFE (HeldBundle, h, link, &s->held) {
                if (!h->is_evicted && s->runner->policy.may_delete)
                        continue;
                if (held_is_busy(s, h)) {
                        if (h->state != HELD_DELETING) /* no measurement shows when it is due */
                                schedule_round(s->runner, h->not_before_boot_usec > now
                                                                  ? h->not_before_boot_usec - now
                                                                  : RECHECK_USEC);
                        continue;
                }
                if (s->n_deletions >= DELETIONS_MAX) {
                        s->has_more = true;
                        return;
                }
                start_deletion(s, h, RETENTION_NO_REASON);
        }
}

/* ---- measurements ---- */

static Measurement *measurement_free(Measurement *m) {
        if (!m)
                return NULL;
        source_spec_unref(m->spec);
        free(m->subjects);
        free(m);
        return NULL;
}

/* When free space is short all are measured, else only what is not known yet. */
static int measure(Measurement *m) {
        size_t n = 0;
        _cleanup_free_ LinkUsage *uses = calloc(MAX(m->n, (size_t)1), sizeof *uses);
        _cleanup_free_ size_t *which = calloc(MAX(m->n, (size_t)1), sizeof *which);
        if (!uses || !which)
                return -ENOMEM;
        for (size_t i = 0; i < m->n; i++)
                if (m->is_short || !m->subjects[i].is_known) {
                        uses[n].bundle_id = m->subjects[i].id;
                        which[n++] = i;
                }
        int r = link_usage_measure(
                m->spec->link_dirs,
                &(LinkMeasure){ .uses = uses,
                                .n = n,
                                .explain_links = m->is_short,
                                .ask_writers = m->is_short && m->policy.may_evict,
                                .max_inodes = LINK_INODES_MAX });
        for (size_t i = 0; r >= 0 && i < n; i++)
                m->subjects[which[i]].use = uses[i];
        return r;
}

static void measurement_run(WorkJob *job) {
        Measurement *m = CONTAINER_OF(job, Measurement, task.job);
        m->result = link_usage_query_space(m->spec->link_dirs, &m->space, &m->device);
        if (m->result < 0)
                return;
        m->is_short = retention_is_short(&m->policy, &m->space) ||
                      retention_is_short_undelivered(&m->policy, &m->space);
        m->result = measure(m);
}

static void measurement_drop(SourceTask *t) {
        measurement_free(CONTAINER_OF(t, Measurement, task));
}

static Subject *add_subject(Measurement *m, const char *id) {
        if (array_grow(&m->subjects, m->n, sizeof *m->subjects) < 0)
                return NULL;
        Subject *x = &m->subjects[m->n++];
        *x = (Subject){ 0 };
        strcpy(x->id, id);
        return x;
}

static int add_held(Measurement *m, const RunnerSource *s) {
        LIST_FOREACH_ITEM (HeldBundle, h, link, &s->held) {
                if (h->is_evicted)
                        continue;
                if (h->is_pinned) { /* it may not be any more */
                        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                        h->is_pinned = store_get(s->runner->context.store, h->id, &rec) != 0 ||
                                       store_unit_is_pinned(s->runner->context.store, &rec) != 0;
                }
                Subject *x = add_subject(m, h->id);
                if (!x)
                        return -ENOMEM;
                x->is_known = h->is_measured;
                x->use = h->use;
                x->item = (RetentionItem){ .uid = h->uid,
                                           .first_seen_usec = h->first_seen_usec,
                                           .delivered_usec = MAX(h->ended_usec, UINT64_C(1)),
                                           .is_pinned = h->is_pinned,
                                           .is_busy = held_is_busy(s, h) };
        }
        return 0;
}

static bool is_busy(const Bundle *b) {
        return b->rec.state == BUNDLE_SHIPPING || b->n_running > 0 || b->cancel ||
               b->has_target_state || !bundle_is_written(b) || !b->rec.links_held ||
               b->rec.is_redelivery;
}

static int add_undelivered(Measurement *m, const RunnerSource *s) {
        LIST_FOREACH_ITEM (const Bundle, b, link, bundle_table_all(s->runner->context.bundles)) {
                if (b->source != s->source || bundle_state_is_inactive(b->rec.state) ||
                    held_find(s, b->rec.id))
                        continue;
                Subject *x = add_subject(m, b->rec.id);
                if (!x)
                        return -ENOMEM;
                x->digest = b->rec.digest;
                x->is_known = b->used_inodes > 0 && b->used_digest == b->rec.digest;
                x->use.used_bytes = b->used_bytes;
                x->item = (RetentionItem){ .uid = b->rec.uid,
                                           .first_seen_usec = b->rec.first_seen_usec,
                                           .is_pinned = b->rec.pinned,
                                           .is_busy = is_busy(b) };
        }
        return 0;
}

/* Quarantined bundles are not in the table, but they wait for the operator, and use space. */
static int add_quarantined(BundleRecord *rec, void *userdata) {
        Subject *x = add_subject(userdata, rec->id);
        if (!x)
                return -ENOMEM;
        x->item = (RetentionItem){ .uid = rec->uid,
                                   .first_seen_usec = rec->first_seen_usec,
                                   .is_pinned = rec->pinned,
                                   .is_busy = !rec->links_held || rec->is_redelivery };
        return 0;
}

static int collect(Measurement *m, const RunnerSource *s) {
        Store *store = s->runner->context.store;
        StoreCounts counts;
        int r = add_held(m, s);
        if (r >= 0)
                r = add_undelivered(m, s);
        store_counts(store, &counts);
        if (r >= 0 && counts.bundles[BUNDLE_QUARANTINED] > 0)
                r = store_list(
                        store,
                        &(StoreFilter){ .state = BUNDLE_QUARANTINED, .source = m->spec->name },
                        add_quarantined, m);
        return r;
}

/* ---- evictions ---- */

/* @param key, keep_bytes  the bound that was violated, and what it requires */
static const char *shortage_text(char ret[160], const RetentionReport *report, const char *key,
                                 uint64_t keep_bytes) {
        char free_text[PARSE_FORMAT_SIZE], keep_text[PARSE_FORMAT_SIZE];
        if (report->free_bytes < keep_bytes)
                (void)snprintf(ret, 160, "%s were free and %s requires %s",
                               parse_format_human(free_text, report->free_bytes), key,
                               parse_format_human(keep_text, keep_bytes));
        else
                (void)snprintf(ret, 160, "fewer inodes were free than %s requires", key);
        return ret;
}

static Bundle *find_undelivered(const RunnerSource *s, const char *id) {
        const RetentionRunnerContext *c = &s->runner->context;
        Bundle *b = bundle_table_find(c->bundles, id);
        if (!b) { /* a quarantined one, or it ended meanwhile */
                _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                if (store_get(c->store, id, &rec) != 0 || rec.state != BUNDLE_QUARANTINED ||
                    bundle_table_revive(c->bundles, id, s->source, &b) < 0)
                        return NULL;
        }
        if (b->source == s->source && !b->rec.pinned && !is_busy(b) &&
            !bundle_state_is_terminal(b->rec.state))
                return b;
        if (b->rec.state == BUNDLE_QUARANTINED)
                bundle_table_forget(c->bundles, b);
        return NULL;
}

static void evict(RunnerSource *s, const Subject *x, RetentionAct act) {
        const RetentionRunnerContext *c = &s->runner->context;
        _cleanup_free_ char *reason = NULL;
        bool release = act == RETENTION_RELEASE;
        char shortage[160];
        Bundle *b = find_undelivered(s, x->id);
        if (!b)
                return;
        shortage_text(shortage, &s->report, release ? "keep_free_undelivered" : "keep_free",
                      release ? s->report.keep_free_undelivered_bytes : s->report.keep_free_bytes);
        reason = strbuf_format(
                release ? "deleted_by_user: its files were removed at the source before it "
                          "was delivered; %s, so the links that held them were released"
                        : "keep_free: %s, so it was evicted undelivered, as the oldest "
                          "(evict_undelivered: oldest)",
                shortage);
        if (!reason)
                return;
        bool was_quarantined = b->rec.state == BUNDLE_QUARANTINED;
        if (release) /* nothing is at the source to be deleted: intake removes the links */
                b->rec.links_held = false;
        int r = bundle_set_state(c->bundles, b, BUNDLE_EVICTED, reason);
        if (r >= 0) {
                log_dump(x->id, LOG_WARNING, 0, "lost: %s", reason);
                c->on_discard(release ? "deleted_by_user" : "keep_free", 1, c->userdata);
                return;
        }
        log_dump(x->id, LOG_WARNING, r, "cannot evict it undelivered, trying again");
        b->rec.links_held = true; /* it was: is_busy() */
        if (was_quarantined)
                bundle_table_forget(c->bundles, b);
}

/* ---- texts for status ---- */

static char *describe(const RunnerSource *s) {
        const RetentionReport *r = &s->report;
        const RetentionPolicy *t = &s->runner->policy;
        char a[PARSE_FORMAT_SIZE], b[PARSE_FORMAT_SIZE], shortage[160];
        if (r->stays_short)
                return strbuf_format("short of free space: %s, and nothing more may be released; "
                                     "free some, or %s",
                                     shortage_text(shortage, r, "keep_free", r->keep_free_bytes),
                                     !t->may_delete  ? "set retention.after_delivery: delete"
                                     : !t->may_evict ? "set retention.evict_undelivered: oldest"
                                                     : "unpin what is not needed");
        if (r->stays_above_max_use)
                return strbuf_format("over max_use: sources use %s, max_use is %s; %s",
                                     parse_format_human(a, r->used_bytes),
                                     parse_format_human(b, r->max_use_bytes),
                                     t->may_delete
                                             ? "the rest is not delivered yet, or pinned"
                                             : "with after_delivery: keep this is only reported");
        return NULL;
}

static void report(RunnerSource *s, const RetentionReport *now) {
        const RetentionReport was = s->report;
        bool was_bad = was.stays_short || was.stays_above_max_use;
        bool is_bad = now->stays_short || now->stays_above_max_use;
        s->report = *now;
        free(s->note);
        s->note = describe(s);
        if (is_bad && (!was_bad || was.stays_short != now->stays_short))
                log_warning(0, "source %s: %s", s->spec->name,
                            s->note ? s->note : "short of free space");
        else if (!is_bad && was_bad)
                log_notice("source %s: has enough free space again", s->spec->name);
}

/* ---- decisions: the sources of one file system together, or each would free space for the same
 * want ---- */

/* So that the next round need not measure it again. */
static void remember(const RunnerSource *s, const Subject *x) {
        if (!x->use.is_there)
                return;
        HeldBundle *h = x->item.delivered_usec > 0 ? held_find(s, x->id) : NULL;
        Bundle *b = h ? NULL : bundle_table_find(s->runner->context.bundles, x->id);
        if (h) {
                h->use = x->use;
                h->use.has_writer = false;
                h->is_measured = true;
        } else if (b && b->rec.digest == x->digest) {
                b->used_bytes = x->use.used_bytes;
                b->used_inodes = x->use.used_inodes;
                b->used_digest = x->digest;
        }
}

static void apply_measurement(const RunnerSource *s) {
        const Measurement *m = s->measured;
        for (size_t i = 0; i < m->n; i++) {
                Subject *x = &m->subjects[i];
                if (!x->is_known || m->is_short)
                        remember(s, x);
                x->item.bytes = x->use.free_bytes;
                x->item.n_inodes = x->use.free_inodes;
                x->item.used_bytes = x->use.used_bytes;
                x->item.is_only_ours = x->use.is_there && x->use.is_only_ours;
                x->item.is_busy = x->item.is_busy || x->use.has_writer;
        }
}

static bool is_measured_on(const RunnerSource *s, dev_t device) {
        return s->measured && s->device == device;
}

/* @param verdicts  of the source's own subjects */
static void apply_verdicts(RunnerSource *s, const RetentionVerdict *verdicts) {
        size_t n_started = 0;
        for (size_t i = 0; i < s->measured->n; i++) {
                const Subject *x = &s->measured->subjects[i];
                HeldBundle *h;
                if (verdicts[i].act == RETENTION_KEEP)
                        continue;
                if (n_started++ >= DELETIONS_MAX)
                        s->has_more = true;
                else if (verdicts[i].act != RETENTION_DELETE)
                        evict(s, x, verdicts[i].act);
                else if ((h = held_find(s, x->id)) && !held_is_busy(s, h))
                        start_deletion(s, h, verdicts[i].why);
        }
}

/* @param state  items is set here */
static int decide_items(RetentionRunner *r, RetentionState *state, dev_t device) {
        _cleanup_free_ RetentionItem *items = calloc(MAX(state->n, (size_t)1), sizeof *items);
        _cleanup_free_ RetentionVerdict *verdicts =
                calloc(MAX(state->n, (size_t)1), sizeof *verdicts);
        RetentionReport now;
        size_t n = 0;
        if (!items || !verdicts)
                return -ENOMEM;
        for (size_t k = 0; k < r->n_sources; k++)
                for (size_t i = 0;
                     is_measured_on(&r->sources[k], device) && i < r->sources[k].measured->n; i++)
                        items[n++] = r->sources[k].measured->subjects[i].item;
        state->items = items;
        int error = retention_decide(&r->policy, state, verdicts, &now);
        n = 0;
        for (size_t k = 0; error >= 0 && k < r->n_sources; k++) {
                RunnerSource *s = &r->sources[k];
                if (!is_measured_on(s, device))
                        continue;
                report(s, &now);
                apply_verdicts(s, verdicts + n);
                n += s->measured->n;
        }
        return error;
}

static void decide(RetentionRunner *r, dev_t device) {
        RetentionState state = { .now_usec = realtime_usec(r) };
        for (size_t k = 0; k < r->n_sources; k++) {
                RunnerSource *s = &r->sources[k];
                if (!is_measured_on(s, device))
                        continue;
                apply_measurement(s);
                state.n += s->measured->n;
                state.space = s->measured->space;
        }
        int error = decide_items(r, &state, device);
        if (error < 0)
                log_warning(error, "cannot decide which source files are released, trying again");
        for (size_t k = 0; k < r->n_sources; k++)
                if (is_measured_on(&r->sources[k], device))
                        r->sources[k].measured = measurement_free(r->sources[k].measured);
}

/* Whether a measurement that is still out may be of this file system. One of an earlier round
 * hangs: it is not waited for. */
static bool is_awaited(const RetentionRunner *r, dev_t device) {
        for (size_t k = 0; k < r->n_sources; k++) {
                const RunnerSource *s = &r->sources[k];
                if (s->is_measuring && s->round == r->round &&
                    (!s->has_device || s->device == device))
                        return true;
                if (s->n_deletions > 0 && s->has_device && s->device == device)
                        return true; /* they free space: the next round sees how much */
        }
        return false;
}

static void on_measured(SourceTask *t) {
        Measurement *m = CONTAINER_OF(t, Measurement, task);
        RunnerSource *s = m->owner;
        RetentionRunner *r = s->runner;
        s->is_measuring = false;
        measurement_free(s->measured);
        s->measured = NULL;
        s->has_device = m->result >= 0;
        if (m->result < 0) {
                if (m->result != -ENOENT)
                        log_warning(m->result, "source %s: cannot measure '%s', trying again",
                                    m->spec->name, m->spec->fixed);
                measurement_free(m);
        } else {
                s->device = m->device;
                s->measured = m;
        }
        for (size_t k = 0; k < r->n_sources; k++)
                if (r->sources[k].measured && !is_awaited(r, r->sources[k].device))
                        decide(r, r->sources[k].device);
        plan_round(r);
}

static void start_measurement(RunnerSource *s) {
        int r = -ENOMEM;
        if (s->is_measuring || s->n_deletions > 0)
                return;
        Measurement *m = calloc(1, sizeof *m);
        if (m) {
                *m = (Measurement){ .owner = s,
                                    .spec = source_spec_ref(s->spec),
                                    .policy = s->runner->policy };
                m->task.job.run = measurement_run;
                m->task.done = on_measured;
                m->task.drop = measurement_drop;
                list_init(&m->task.mine);
                r = collect(m, s);
        }
        if (r >= 0 && m->n > 0) {
                r = s->runner->context.submit(s->source, &m->task);
                s->is_measuring = r >= 0;
                s->round = s->runner->round;
        }
        if (!s->is_measuring)
                measurement_free(m);
        if (r < 0)
                log_warning(r, "source %s: cannot measure what it uses, trying again",
                            s->spec->name);
}

/* ---- rounds ---- */

static uint64_t n_undelivered(const RetentionRunner *r) {
        StoreCounts counts;
        store_counts(r->context.store, &counts);
        return bundle_table_n(r->context.bundles) + counts.bundles[BUNDLE_QUARANTINED];
}

static uint64_t n_held(const RetentionRunner *r) {
        uint64_t n = 0;
        for (size_t i = 0; i < r->n_sources; i++)
                n += r->sources[i].n_held;
        return n;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        RetentionRunner *r = userdata;
        (void)source, (void)usec;
        r->is_armed = false;
        r->round++;
        for (size_t i = 0; i < r->n_sources; i++) {
                RunnerSource *s = &r->sources[i];
                if (s->n_deletions > 0)
                        continue;
                s->has_more = false;
                start_owed_deletions(s);
                start_measurement(s);
        }
        plan_round(r);
        return 0;
}

/* Starts a round in so long, or earlier when that is planned already. */
static void schedule_round(RetentionRunner *r, uint64_t usec) {
        uint64_t due = boot_usec(r) + usec;
        if (r->is_armed && r->due_boot_usec <= due)
                return;
        int error = timer_arm(&r->timer, &(TimerOptions){ .event = r->context.event,
                                                          .usec = usec,
                                                          .slack_usec = usec / 20,
                                                          .handler = on_timer,
                                                          .userdata = r });
        r->is_armed = error >= 0;
        r->due_boot_usec = due;
        if (error < 0)
                log_error(error, "cannot arm the timer of retention; the next bundle tries again");
}

/* Space may run out at any time, unless no bound is set. */
static uint64_t wait_usec(const RetentionRunner *r) {
        uint64_t now = realtime_usec(r), wait = USEC_INFINITY;
        bool is_bound = r->policy.keep_free.is_on || r->policy.max_use.is_on ||
                        r->policy.keep_free_undelivered.is_on;
        for (size_t i = 0; i < r->n_sources; i++) {
                const RunnerSource *s = &r->sources[i];
                uint64_t due = s->report.next_usec;
                if (s->n_held == 0)
                        continue;
                if (is_bound || !s->has_device || due <= now)
                        return MIN(ROUND_USEC, due > now ? due - now : ROUND_USEC);
                wait = MIN(wait, due - now);
        }
        return n_undelivered(r) > 0 ? MIN(wait, ROUND_USEC) : wait;
}

static void disarm(RetentionRunner *r) {
        if (r->timer)
                (void)sd_event_source_set_enabled(r->timer, SD_EVENT_OFF); /* cannot fail */
        r->is_armed = false;
        for (size_t i = 0; i < r->n_sources; i++) {
                RunnerSource *s = &r->sources[i];
                s->report = (RetentionReport){ .next_usec = UINT64_MAX };
                free(s->note);
                s->note = NULL;
        }
}

static void plan_round(RetentionRunner *r) {
        if (n_undelivered(r) == 0 && n_held(r) == 0) {
                disarm(r);
                return;
        }
        uint64_t wait = wait_usec(r);
        if (wait != USEC_INFINITY)
                schedule_round(r, wait);
}

void retention_runner_kick(RetentionRunner *r) {
        if (!r || r->n_sources == 0)
                return;
        bool is_much = bundle_table_n(r->context.bundles) + n_held(r) > KICK_BUNDLES_MAX;
        schedule_round(r, is_much ? ROUND_USEC : KICK_USEC);
}

/* ---- sources ---- */

static RunnerSource *find_source(const RetentionRunner *r, const IntakeSource *source) {
        for (size_t i = 0; r && source && i < r->n_sources; i++)
                if (r->sources[i].source == source)
                        return &r->sources[i];
        return NULL;
}

void retention_runner_on_final(RetentionRunner *r, const Bundle *b) {
        RunnerSource *s = find_source(r, b->source);
        if (s && bundle_state_is_terminal(b->rec.state) && b->rec.links_held)
                held_add(s, &b->rec);
        else if (s && b->rec.state == BUNDLE_DELIVERED && r->policy.may_delete)
                count_unheld(s);
        retention_runner_kick(r);
}

void retention_runner_on_links_rechecked(RetentionRunner *r, const IntakeSource *source,
                                         const char *id) {
        RunnerSource *s = find_source(r, source);
        HeldBundle *h = s ? held_find(s, id) : NULL;
        if (!h || h->state != HELD_UNSHIPPED)
                return;
        held_set_state(h, HELD_RECHECKED);
        h->not_before_boot_usec = 0;
        retention_runner_kick(r);
}

static void forget_sources(RetentionRunner *r) {
        for (size_t i = 0; i < r->n_sources; i++) {
                RunnerSource *s = &r->sources[i];
                LIST_FOREACH_SAFE (l, &s->held)
                        held_remove(s, CONTAINER_OF(l, HeldBundle, link));
                measurement_free(s->measured);
                free(s->trouble);
                free(s->note);
        }
        free(r->sources);
        r->sources = NULL;
        r->n_sources = 0;
}

void retention_runner_set_sources(RetentionRunner *r, const RetentionRunnerSource *sources,
                                  size_t n) {
        if (!r)
                return;
        forget_sources(r);
        if (n == 0) {
                plan_round(r);
                return;
        }
        r->sources = calloc(n, sizeof *r->sources);
        if (!r->sources) {
                log_error(-ENOMEM, "no source files are released until the next reload");
                return;
        }
        for (size_t i = 0; i < n; i++) {
                RunnerSource *s = &r->sources[r->n_sources++];
                *s = (RunnerSource){ .runner = r,
                                     .source = sources[i].source,
                                     .spec = sources[i].spec,
                                     .report.next_usec = UINT64_MAX };
                list_init(&s->held);
                int error = load_held(s);
                if (error < 0)
                        log_error(error,
                                  "source %s: cannot read which delivered files are held; they "
                                  "stay until the next start",
                                  s->spec->name);
        }
        retention_runner_kick(r);
}

/* ---- life ---- */

static RetentionBound bound_of(const ConfigSize *size) {
        return (RetentionBound){ .bytes = size->bytes,
                                 .permille = size->permille,
                                 .is_permille = size->is_permille,
                                 .is_on =
                                         size->is_permille ? size->permille > 0 : size->bytes > 0 };
}

static void apply_config(RetentionRunner *r, const Config *config) {
        r->policy = (RetentionPolicy){ .may_delete = config->retention.delete_after_delivery,
                                       .may_evict = config->retention.evict_oldest,
                                       .keep_for_usec = config->retention.keep_for_usec,
                                       .max_use = bound_of(&config->retention.max_use),
                                       .keep_free = bound_of(&config->retention.keep_free),
                                       .keep_free_undelivered =
                                               bound_of(&config->retention.keep_free_undelivered) };
        bundle_table_keep_links(r->context.bundles, r->policy.may_delete);
}

int retention_runner_new(RetentionRunner **ret, const RetentionRunnerContext *context,
                         const Config *config) {
        RetentionRunner *r = calloc(1, sizeof *r);
        if (!r)
                return -ENOMEM;
        r->context = *context;
        apply_config(r, config);
        *ret = r;
        return 0;
}

RetentionRunner *retention_runner_free(RetentionRunner *r) {
        if (!r)
                return NULL;
        forget_sources(r);
        sd_event_source_disable_unref(r->timer);
        free(r);
        return NULL;
}

void retention_runner_rebind(RetentionRunner *r, const Config *config) {
        if (!r)
                return;
        apply_config(r, config);
        retention_runner_kick(r);
}

bool retention_runner_is_deleting(const RetentionRunner *r, const char *id) {
        for (size_t i = 0; r && i < r->n_sources; i++) {
                const HeldBundle *h = held_find(&r->sources[i], id);
                if (h && h->state == HELD_DELETING)
                        return true;
        }
        return false;
}

void retention_runner_view(const RetentionRunner *r, const IntakeSource *source, SourceView *ret) {
        const RunnerSource *s = find_source(r, source);
        if (!s)
                return;
        ret->used_bytes = s->report.used_bytes;
        ret->max_use_bytes = s->report.max_use_bytes;
        ret->free_bytes = s->report.free_bytes;
        ret->keep_free_bytes = s->report.keep_free_bytes;
        ret->n_held = s->n_held;
        ret->n_unheld = n_unheld(s);
        ret->retention_note = s->trouble ? s->trouble : s->note;
}
