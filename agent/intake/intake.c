/* A source: its events and scans; from a path to a bundle; hints of hooks, and probes until the
 * bundle is READY; what is held or attached when it has ended. */
#include "agent/intake/intake.h"

#include <errno.h>
#include <jansson.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "agent/intake/probe.h"
#include "agent/store/store.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/dirwatch.h"
#include "lib/event/timer.h"
#include "lib/neuron/ids.h"

/* A unit that changes all the time is probed no more often than this, and units of one owner never
 * for more than a fifth of the time. */
#define REPROBE_USEC (100 * USEC_PER_MSEC)
#define REPROBE_SHARE 4

/* Paths that wait to be probed: first in, first out, each once, and not more than PENDING_MAX. */
#define PENDING_MAX 10000
/* Paths that are probed at a time, of one owner one: nobody waits for what another has put there.
 */
#define PATH_THREADS 2

typedef struct Pending {
        ListLink all;
        void *by_path; /* tsearch(3) */
        Owners owners;
} Pending;

/* New bundles: accepted, until the scan that is running or queued is over, or not at all. */
typedef enum IntakeHold { INTAKE_OPEN, INTAKE_HOLDING, INTAKE_HELD, N_INTAKE_HOLDS } IntakeHold;

struct IntakeSource {
        IntakeContext *context;     /* borrowed */
        const ConfigSource *config; /* borrowed */
        SourceSpec *spec;
        DirWatch *watch; /* NULL: scans only */
        /* Of one thread each, but for paths: a hung mount blocks no more, and neither a long scan
         * nor a probe of many files delays the discovery of others. */
        WorkerPool *probes, *paths, *scans;
        ListLink tasks; /* that are out */
        size_t n_probes;
        char *note;      /* for status; owned */
        char *hold_note; /* why files are not held by links; owned */
        char *root_note; /* scan_check_root(); owned */
        char *lock_note; /* unit_locks_scan_new(); owned */

        /* Of a source that nodes share; NULL until a scan has found that they do. */
        WorkerPool *lock_pool;
        sd_event_source *renew_timer;
        bool is_renewing;
        size_t n_marks; /* of deliveries, that lock_pool is writing */
        struct {
                char *relative; /* owned */
                uint64_t digest;
        } * unmarked; /* marks that could not be written: the next renewal tries them again */
        size_t n_unmarked;
        bool has_logged_unmarked; /* since a mark was last written */
        UnitLocksHeld others;     /* what other nodes held at the last renewal */
        char *unseen; /* why the last scan could not read all of it; owned; NULL: it did */

        UnitTable table;
        sd_event_source *load_timer;     /* NULL: all that is known is in the table */
        char *loaded_path;               /* that was last; owned */
        char last_ended[BUNDLE_ID_SIZE]; /* the next scan checks the rows after it; "" = the oldest
                                          */
        bool has_late;                   /* new units wait for the next minute */
        bool has_parked;                 /* rows of bundles that gave way wait for space */
        IntakeHold hold;
        sd_event_source *scan_timer;
        ScanJob *found; /* what is_scanning has found, and is being handled */
        sd_event_source *found_timer;
        bool is_scanning, scan_wanted, has_scanned;
        bool was_missing; /* the last scan did not find the fixed part */
        bool scan_failed; /* the last scan did not read all, or could not record what it found */
        bool flush_wanted, flush_this_scan;       /* what it finds is flushed */
        bool in_transaction;                      /* rows are written but not yet durable */
        bool is_postponing, has_logged_postponed; /* bundles of this scan cannot be recorded */
        uint64_t scan_usec, n_unreadable;         /* of the last scan */
        uint64_t scan_start_usec;                 /* of the scan that runs, CLOCK_BOOTTIME */
        uint64_t n_left_out[N_SCAN_SKIPS];        /* of the last scan, in no bundle */

        Pending pending;      /* paths to be probed */
        Owners probing;       /* whose paths are being probed */
        Owners rests;         /* microseconds in which no path of an owner is probed … */
        uint64_t rested_usec; /* … from here on, CLOCK_BOOTTIME */
        sd_event_source *probe_timer;

        Pending rechecks;                /* ids whose links wait for a recheck */
        char rechecking[BUNDLE_ID_SIZE]; /* whose recheck is out; "" */
        size_t n_releases;               /* of links, that are out */
        bool is_listing;                 /* links that a crash left */
        char *unlisted_links;            /* a note of links without a row; owned; NULL: none */
        bool sweep_wanted; /* a recheck found something, and its unit is another bundle's for now */

        Pending attached; /* paths of units that may have attachments to be shipped */
        sd_event_source *attached_timer;
        ClockStep steady; /* checked by each sweep of attachments */
        uint64_t steady_usec;
};

/* ---- paths that wait ---- */

typedef struct PendingPath {
        ListLink link;
        char *path;
        Owner owner;
} PendingPath;

static int compare_paths(const void *a, const void *b) {
        return strcmp(((const PendingPath *)a)->path, ((const PendingPath *)b)->path);
}

static void pending_init(Pending *p) {
        *p = (Pending){ .owners = { .what = "paths that wait", .max = PENDING_MAX } };
        list_init(&p->all);
}

static char *pending_remove(Pending *p, PendingPath *entry) {
        char *path = entry->path;
        tdelete(entry, &p->by_path, compare_paths);
        list_remove(&entry->link);
        owners_release(&p->owners, &entry->owner, 1);
        free(entry);
        return path;
}

static char *pending_pop(Pending *p) {
        return pending_remove(p, CONTAINER_OF(p->all.next, PendingPath, link));
}

static bool pending_has(const Pending *p, const char *path) {
        PendingPath key = { .path = (char *)path };
        return tfind(&key, &p->by_path, compare_paths) != NULL;
}

static bool pending_is_empty(const Pending *p) {
        return list_is_empty(&p->all);
}

static void pending_done(Pending *p) {
        while (!pending_is_empty(p))
                free(pending_pop(p));
        owners_done(&p->owners);
}

/* The newest one of an owner gives way. */
static void pending_drop(Pending *p, const Owner *owner) {
        for (ListLink *l = p->all.prev; l != &p->all; l = l->prev) {
                PendingPath *entry = CONTAINER_OF(l, PendingPath, link);
                if (owner_is_same(&entry->owner, owner)) {
                        free(pending_remove(p, entry));
                        return;
                }
        }
}

/* @return 0; -E2BIG: this path, or one of another owner who has more, is not among them;
 * -ENOMEM */
static int pending_add(Pending *p, const char *path, const Owner *owner) {
        Owner most;
        if (pending_has(p, path))
                return 0;
        int r = owners_request(&p->owners, owner, 1, &most),
            result = r == OWNERS_GRANTED ? 0 : -E2BIG;
        if (r == OWNERS_DISPLACE) {
                pending_drop(p, &most);
                r = owners_request(&p->owners, owner, 1, &most);
        }
        if (r != OWNERS_GRANTED)
                return MIN(r, -E2BIG);
        PendingPath *entry = calloc(1, sizeof *entry);
        char *copy = strdup(path);
        if (entry && copy) {
                *entry = (PendingPath){ .path = copy, .owner = *owner };
                if (tsearch(entry, &p->by_path, compare_paths)) {
                        list_append(&p->all, &entry->link);
                        return result;
                }
        }
        owners_release(&p->owners, owner, 1);
        free(entry);
        free(copy);
        return -ENOMEM;
}

/* ---- a source's paths, clocks and threads ---- */

static uint64_t intake_boot_usec(const IntakeSource *s) {
        return s->context->clock->boottime_usec(s->context->clock);
}

static uint64_t intake_realtime_usec(const IntakeSource *s) {
        return s->context->clock->realtime_usec(s->context->clock);
}

static void intake_set_note(char **note, const char *text) {
        if (*note && text && strcmp(*note, text) == 0)
                return;
        free(*note);
        *note = text ? strdup(text) : NULL;
}

/* @return absolute, the caller's; NULL without memory */
static char *unit_path(const IntakeSource *s, const char *relative) {
        return relative[0] ? path_join(s->spec->fixed, relative) : strdup(s->spec->fixed);
}

static void intake_remember(IntakeSource *s, const char *relative, uint64_t digest) {
        /* Forgotten for want of memory: it is probed once more. */
        (void)unit_table_put(&s->table, relative, digest);
}

static void on_task_done(WorkJob *job) {
        SourceTask *t = CONTAINER_OF(job, SourceTask, job);
        list_remove(&t->mine);
        t->done(t);
}

static int intake_supplement_id(char ret[BUNDLE_ID_SIZE], const BundleRecord *base,
                                unsigned number) {
        int n = snprintf(ret, BUNDLE_ID_SIZE, "%s-s%u", base->id, number);
        return n < 0 || n >= BUNDLE_ID_SIZE ? -EOVERFLOW : 0;
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

static void on_probe_done(SourceTask *t) {
        _cleanup_(probe_job_freep) ProbeJob *p = CONTAINER_OF(t, ProbeJob, task);
        p->source->n_probes--;
        p->done(p->source, p);
}

static bool intake_probe_submit(IntakeSource *s, WorkerPool *pool, ProbeJob *p,
                                void (*done)(IntakeSource *s, ProbeJob *p)) {
        p->source = s;
        p->done = done;
        p->task.done = on_probe_done;
        int r = submit(s, pool, &p->task);
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

static void intake_probe_path(IntakeSource *s, const char *relative);
static void mark_delivered(IntakeSource *s, const char *relative, uint64_t digest);
static void intake_probe_bundle(Bundle *b);
static void intake_release_pins(IntakeSource *s, const char *id);
static void intake_start_scan(IntakeSource *s);
static void arm_scan(IntakeSource *s);

/* ---- hints of hooks: how many are running, whether they have finished, whether something is still
 * to be attached. Kept beside the bundles, since a hook may run before its directory is created,
 * and in memory only: after a start the notes in the store replace them. ---- */

#define HINTS_MAX 1024
#define HINTS_MAX_OF_OWNER 128
/* Hints about a unit without a bundle are forgotten after so long, by a scan. */
#define FORGET_USEC (10 * USEC_PER_MINUTE)
/* A hook may run for hook.deadline and this. */
#define GRACE_USEC USEC_PER_SEC
/* Notes that follow each other hold a unit for so much longer than one, in all: any user may send
 * them. */
#define MORE_NOTES_USEC USEC_PER_MINUTE
typedef struct HookHint { /* of the hooks of one owner about one unit */
        ListLink link;    /* oldest first */
        IntakeSource *source;
        char *path;
        Owner owner;
        uint64_t n_uncounted; /* notes that have not been counted as ignored */
        unsigned n_open;
        bool finished; /* one has finished */
        bool pending;
        Promise *promised; /* files that were not seen; owned */
        size_t n_promised;
        uint64_t last_usec;       /* CLOCK_BOOTTIME, the last time */
        uint64_t first_open_usec; /* CLOCK_BOOTTIME; 0 = none was */
        uint64_t open_until_usec; /* the deadline of the hooks */
} HookHint;

static uint64_t longest_usec(const IntakeSource *s) {
        return s->context->hook_deadline_usec + GRACE_USEC;
}

static bool is_about(const HookHint *n, const char *path) {
        return strcmp(n->path, path) == 0;
}

static const Owner agent_itself = { .uid = 0 }; /* reports what is attached */

static HookHint *find_hint(IntakeSource *s, const char *path, const Owner *o) {
        LIST_FOREACH_ITEM (HookHint, n, link, &s->context->hook_hints)
                if (owner_is_same(&n->owner, o) && is_about(n, path))
                        return n;
        return NULL;
}

static void hint_free(HookHint *n) {
        list_remove(&n->link);
        owners_release(&n->source->context->hints, &n->owner, 1);
        for (size_t i = 0; i < n->n_promised; i++)
                free(n->promised[i].name);
        free(n->promised);
        free(n->path);
        free(n);
}

static void expire_hooks(const IntakeSource *s, HookHint *n) {
        if (n->n_open == 0 || intake_boot_usec(s) < n->open_until_usec)
                return;
        n->n_open = 0;
        n->finished = true;
}

static bool is_awaited(const HookHint *n) {
        return n->n_open > 0 || n->pending;
}

/* Removes the oldest hint of an owner, rather one that nothing waits for. */
static void evict_hint(IntakeSource *s, const Owner *o) {
        HookHint *found = NULL;
        LIST_FOREACH_ITEM (HookHint, n, link, &s->context->hook_hints) {
                expire_hooks(s, n);
                if (owner_is_same(&n->owner, o) &&
                    (!found || (is_awaited(found) && !is_awaited(n))))
                        found = n;
        }
        owners_count_refused(&s->context->hints, o, intake_boot_usec(s));
        hint_free(found); /* who has most has one */
}

/* Whoever has most loses one, be it the one who asks. @return 0, -ENOMEM */
static int request_hint(IntakeSource *s, const Owner *o) {
        Owners *hints = &s->context->hints;
        Owner most;
        int r;
        if (!owner_is_same(o, &agent_itself) && owners_amount(hints, o) >= HINTS_MAX_OF_OWNER)
                evict_hint(s, o);
        while ((r = owners_request(hints, o, 1, &most)) > OWNERS_GRANTED)
                evict_hint(s, r == OWNERS_DISPLACE ? &most : o);
        return r;
}

/* @return NULL: not of this source, or memory is short */
static HookHint *get_hint(IntakeSource *s, const char *path, const Owner *o) {
        if (!path_is_below(path, s->spec->fixed))
                return NULL;
        HookHint *n = find_hint(s, path, o);
        if (!n) {
                n = calloc(1, sizeof *n);
                if (!n || !(n->path = strdup(path)) || request_hint(s, o) < 0) {
                        if (n)
                                free(n->path);
                        free(n);
                        return NULL;
                }
                n->source = s;
                n->owner = *o;
                list_append(&s->context->hook_hints, &n->link);
        }
        n->last_usec = intake_boot_usec(s);
        return n;
}

static Owner owner_of(uint64_t uid);
static Bundle *bundle_of(IntakeSource *s, const char *path) {
        return bundle_table_find_unit(s->context->bundles, s->config->name, path);
}

static void probe_hinted_unit(IntakeSource *s, const char *path) {
        Bundle *b = bundle_of(s, path);
        if (!b)
                intake_probe_path(s, source_spec_relative(s->spec, path));
        else if (b->source == s)
                intake_probe_bundle(b);
}

/* A unit that an event has not shown is found when its hook ends, or by a scan; here hints about
 * units that never came are forgotten. */
static void forget_old_hints(IntakeSource *s) {
        LIST_FOREACH_ITEM_SAFE (HookHint, n, link, &s->context->hook_hints)
                if (n->source == s && !bundle_of(s, n->path) &&
                    intake_boot_usec(s) - n->last_usec > FORGET_USEC)
                        hint_free(n);
}

/* ---- hints ---- */

void intake_source_on_hook_started(IntakeSource *s, const char *unit_path, const Owner *o) {
        HookHint *n = get_hint(s, unit_path, o);
        if (!n)
                return;
        n->n_uncounted++;
        n->n_open++;
        if (n->first_open_usec == 0)
                n->first_open_usec = n->last_usec;
        n->open_until_usec =
                MIN(n->last_usec, n->first_open_usec + MORE_NOTES_USEC) + longest_usec(s);
        probe_hinted_unit(s, unit_path);
}

void intake_source_on_hook_finished(IntakeSource *s, const char *unit_path, const Owner *o) {
        HookHint *n = get_hint(s, unit_path, o);
        if (!n)
                return;
        n->n_open -= n->n_open > 0;
        n->finished = true;
        probe_hinted_unit(s, unit_path);
}

/* @return it, or NULL */
static Promise *find_promise(const HookHint *n, const char *name) {
        for (size_t i = 0; i < n->n_promised; i++)
                if (strcmp(n->promised[i].name, name) == 0)
                        return &n->promised[i];
        return NULL;
}

static void add_promise(HookHint *n, const char *name) {
        if (n->n_promised >= INTAKE_PROMISED_MAX || find_promise(n, name))
                return;
        if (array_grow(&n->promised, n->n_promised, sizeof *n->promised) < 0)
                return; /* it is collected anyway, but not missed */
        n->promised[n->n_promised] = (Promise){ .name = strdup(name) };
        n->n_promised += n->promised[n->n_promised].name != NULL;
}

void intake_source_expect_file(IntakeSource *s, const char *unit_path, const Owner *o,
                               const char *name) {
        HookHint *n = get_hint(s, unit_path, o);
        if (n)
                add_promise(n, name);
}

void intake_source_missing(IntakeSource *s, const char *unit_path) {
        HookHint *n = get_hint(s, unit_path, &agent_itself);
        if (n)
                add_promise(n, "");
}

void intake_source_set_pending(IntakeSource *s, const char *unit_path, bool pending) {
        HookHint *n = get_hint(s, unit_path, &agent_itself);
        if (!n)
                return;
        n->pending = pending;
        Bundle *b = bundle_of(s, unit_path);
        if (!pending && b && b->source == s)
                intake_probe_bundle(b);
}

void intake_on_report_end(Bundle *b) {
        if (b->source && b->rec.state == BUNDLE_SETTLING)
                intake_probe_bundle(b);
}

/* ---- use of the hints ---- */

static void add_hint_facts(IntakeSource *s, const Bundle *b, IntakeFacts *facts) {
        bool any_finished = false;
        LIST_FOREACH_ITEM (HookHint, n, link, &s->context->hook_hints) {
                if (!is_about(n, b->rec.path) || !uid_may_annotate(&b->owners, n->owner.uid))
                        continue;
                expire_hooks(s, n);
                facts->n_hooks += n->n_open;
                any_finished = any_finished || n->finished;
                facts->pending = facts->pending || n->pending;
                facts->missing = facts->missing || (n->n_promised > 0 && n->n_open == 0);
        }
        facts->hooks_finished = any_finished && facts->n_hooks == 0;
}

static void report_ignored_hints(IntakeSource *s, Bundle *b) {
        LIST_FOREACH_ITEM (HookHint, n, link, &s->context->hook_hints) {
                if (n->n_uncounted == 0 || !is_about(n, b->rec.path) ||
                    uid_may_annotate(&b->owners, n->owner.uid))
                        continue;
                if (b->owners.has_several)
                        log_dump(b->rec.id, LOG_NOTICE, 0,
                                 "hook notes of uid %u are ignored: it has files of several users",
                                 (unsigned)n->owner.uid);
                else
                        log_dump(b->rec.id, LOG_NOTICE, 0,
                                 "hook notes of uid %u are ignored: it has files of uid %u",
                                 (unsigned)n->owner.uid, (unsigned)b->owners.uid);
                b->has_logged_notes = true;
                if (s->context->on_unheard)
                        s->context->on_unheard(n->n_uncounted, s->context->userdata);
                n->n_uncounted = 0;
        }
}

static int add_expected(const HookHint *n, ProbeJob *p) {
        for (size_t i = 0; i < n->n_promised; i++) {
                char *name = strdup(n->promised[i].name);
                if (!name || array_grow(&p->promised, p->n_promised, sizeof *p->promised) < 0) {
                        free(name);
                        return -ENOMEM;
                }
                p->promised[p->n_promised++] = (Promise){ .name = name };
        }
        return 0;
}

static int expect_promised(IntakeSource *s, const char *unit_path, ProbeJob *p) {
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints) {
                int r = is_about(n, unit_path) ? add_expected(n, p) : 0;
                if (r < 0)
                        return r;
        }
        return 0;
}

static void remove_promise(HookHint *n, const char *name) {
        Promise *p = find_promise(n, name);
        if (!p)
                return;
        free(p->name);
        *p = n->promised[--n->n_promised];
}

static void remove_seen(IntakeSource *s, const char *unit_path, const ProbeJob *p) {
        LIST_FOREACH_ITEM (HookHint, n, link, &s->context->hook_hints)
                for (size_t i = 0; is_about(n, unit_path) && i < p->n_promised; i++)
                        if (p->promised[i].is_seen)
                                remove_promise(n, p->promised[i].name);
}

static Owner sender_of(const StoredNote *stored) {
        return note_sender(&(Owner){ .uid = stored->uid }, stored->container, stored->by_mailbox);
}

static int on_stored(const StoredNote *stored, void *userdata) {
        IntakeSource *s = userdata;
        uint64_t now = intake_realtime_usec(s), until = stored->received_usec + longest_usec(s);
        /* With a clock that was set back it would wait for long. */
        bool is_open = stored->finished_usec == 0 && stored->received_usec <= now && until > now;
        const Owner sender = sender_of(stored);
        HookHint *n = get_hint(s, stored->unit_path, &sender);
        if (!n)
                return 0;
        n->n_uncounted++;
        if (is_open) {
                n->n_open = 1;
                n->first_open_usec = n->last_usec;
                n->open_until_usec = MAX(n->open_until_usec, n->last_usec + (until - now));
        }
        n->finished = n->n_open == 0;
        return 0;
}

static void load_hints(IntakeSource *s, const Bundle *b) {
        if (b->rec.state == BUNDLE_SETTLING)
                (void)store_note_list(s->context->store,
                                      &(StoredUnit){ b->rec.source, b->rec.path }, on_stored,
                                      s); /* none: as without hooks */
}

static void hook_hints_on_final(IntakeSource *s, const char *unit_path) {
        LIST_FOREACH_ITEM_SAFE (HookHint, n, link, &s->context->hook_hints)
                if (is_about(n, unit_path) && !is_awaited(n))
                        hint_free(n);
}

static void hook_hints_done(IntakeSource *s) {
        LIST_FOREACH_ITEM_SAFE (HookHint, n, link, &s->context->hook_hints)
                if (n->source == s)
                        hint_free(n);
}

/* ---- probes until rules.h decides that a bundle is complete ---- */

static int on_bundle_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        intake_probe_bundle(userdata);
        return 0;
}

static void intake_probe_bundle_in(Bundle *b, uint64_t usec) {
        int r = timer_arm(&b->timer, &(TimerOptions){ .event = b->source->context->event,
                                                      .usec = usec,
                                                      .slack_usec = usec / 20,
                                                      .handler = on_bundle_timer,
                                                      .userdata = b });
        if (r < 0)
                log_dump(b->rec.id, LOG_ERR, r, "cannot arm a timer, it waits for the next scan");
}

static bool has_losses(const ScanUnit *u) {
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++)
                if (u->skipped[skip] && scan_skip_is_loss((ScanSkip)skip))
                        return true;
        return false;
}

/* What is left out stands in the row from the first probe: a unit that is removed before it is
 * complete is known by its links alone, which do not say what they lack. */
static void label_losses(Bundle *b, const ScanUnit *u) {
        json_t *reasons = json_array();
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++) {
                _cleanup_free_ char *text = scan_skip_reason((ScanSkip)skip, u->skipped[skip],
                                                             u->skipped_example[skip]);
                if (text)
                        json_array_append_new(reasons, json_string(text));
        }
        free(b->rec.incomplete);
        b->rec.incomplete = json_array_size(reasons) ? json_dumps(reasons, JSON_COMPACT) : NULL;
        b->rec.complete = !has_losses(u);
        json_decref(reasons);
}

/* Logs that a scan left members out for one reason, and counts those that are new.
 * @param id  the bundle that lacks them; NULL: they belong to no bundle
 * @param n_counted  how many of them bundle_discards_total has already */
static void report_skip(IntakeSource *s, const char *id, const ScanUnit *u, ScanSkip skip,
                        uint64_t n_counted) {
        _cleanup_free_ char *text =
                scan_skip_reason(skip, u->skipped[skip], u->skipped_example[skip]);
        if (!text)
                return;
        log_write(LOG_WARNING, 0, id, "source %s: %s; %s", s->config->name, text,
                  scan_skip_remedy(skip));
        if (u->skipped[skip] > n_counted)
                s->context->on_discard(scan_skip_name(skip), u->skipped[skip] - n_counted,
                                       s->context->userdata);
}

static void report_losses(IntakeSource *s, const Bundle *b, const ScanUnit *u) {
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++)
                report_skip(s, b->rec.id, u, (ScanSkip)skip, 0);
}

static void add_reason(BundleRecord *rec, const char *reason) {
        json_t *reasons = rec->incomplete ? json_loads(rec->incomplete, 0, NULL) : NULL;
        if (!reasons)
                reasons = json_array();
        json_array_append_new(reasons, json_string(reason));
        free(rec->incomplete);
        rec->incomplete = json_dumps(reasons, JSON_COMPACT);
        rec->complete = false;
        json_decref(reasons);
}

#define MISSING_MAX 8 /* that are named */
static void add_missing(Bundle *b, const char *promised) {
        if (!promised[0]) {
                const char *why = "missing: the copy out of its container ended before all was "
                                  "there";
                add_reason(&b->rec, why);
                log_dump(b->rec.id, LOG_WARNING, 0, "%s", why);
                return;
        }
        _cleanup_free_ char *name = path_escape(promised), *text = NULL;
        if (asprintf(&text, "missing: '%s' was promised by its hook", name ? name : "?") < 0)
                text = NULL;
        add_reason(&b->rec, text ? text : "missing: a file that was promised by its hook");
        log_dump(b->rec.id, LOG_WARNING, 0, "%s; the hook died, or its file system does not answer",
                 text ? text : "a promised file is missing");
}

/* Labels what was promised and has not been seen. */
static void record_missing(IntakeSource *s, Bundle *b) {
        size_t n_missing = 0;
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints) {
                if (!is_about(n, b->rec.path) || !uid_may_annotate(&b->owners, n->owner.uid))
                        continue;
                for (size_t i = 0; i < n->n_promised; i++)
                        if (++n_missing <= MISSING_MAX)
                                add_missing(b, n->promised[i].name);
        }
        if (n_missing > MISSING_MAX)
                add_reason(&b->rec, "missing: and more that was promised by hooks");
}

typedef struct Granted {
        const FileOwners *owners;
        const char *same; /* NULL: none */
        char *first;
        bool has_same;
} Granted;

static int on_prefix(const StoredNote *stored, void *userdata) {
        Granted *g = userdata;
        if (!stored->s3_prefix || !uid_may_annotate(g->owners, sender_of(stored).uid))
                return 0;
        g->has_same = g->same && strcmp(g->same, stored->s3_prefix) == 0;
        if (!g->first && !(g->first = strdup(stored->s3_prefix)))
                return -ENOMEM;
        return g->has_same; /* then the others do not matter */
}

/* One that it has stays only if a note of its unit that counts was granted it; one that has none,
 * and was never begun, gets that of the first that was granted any. A supplement goes where its
 * base went, or, where that cannot be known any more, to the destination's own. */
static void intake_set_s3_prefix(Store *store, Bundle *b) {
        BundleRecord *rec = &b->rec;
        _cleanup_free_ char *old = rec->s3_prefix;
        Granted g = { .owners = &b->owners, .same = old };
        bool may_get_one = !rec->supplement_of[0] && !bundle_has_begun(b);
        rec->s3_prefix = NULL;
        if (old || may_get_one)
                (void)store_note_list(store, &(StoredUnit){ rec->source, rec->path }, on_prefix,
                                      &g); /* none: own */
        if (g.has_same)
                rec->s3_prefix = TAKE_PTR(old);
        else if (may_get_one)
                rec->s3_prefix = TAKE_PTR(g.first);
        free(g.first);
}

static void make_ready(IntakeSource *s, Bundle *b, const ScanUnit *u, const char *incomplete) {
        report_losses(s, b, u);
        if (incomplete) {
                add_reason(&b->rec, incomplete);
                b->tolerant = true; /* it may still change, but waiting is over */
        }
        record_missing(s, b);
        report_ignored_hints(s, b);
        intake_set_s3_prefix(s->context->store, b);
        sd_event_source_set_enabled(b->timer, SD_EVENT_OFF);
        if (bundle_set_state(s->context->bundles, b, BUNDLE_READY, incomplete) != 0)
                return;
        if (b->dirty) /* files came during the last probe: hold them soon */
                intake_probe_bundle_in(b, MAX(REPROBE_USEC, REPROBE_SHARE * b->check_took_usec));
        s->context->on_ready(b, s->context->userdata);
}

static bool intake_is_from_links(const BundleRecord *rec) {
        return rec->supplement_of[0] && rec->unit_ino == 0;
}

/* ---- descriptors that hold files, by owner ---- */

#define HELD_MIN 64 /* one unit's */

static uint64_t max_held(void) {
        struct rlimit limit;
        uint64_t n = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 4 : 0;
        return MAX(n, (uint64_t)HELD_MIN);
}

static void release_held(IntakeContext *c, Bundle *b) {
        const Owner owner = { .uid = (uid_t)b->rec.uid };
        owners_release(&c->held, &owner, b->held.n);
        held_files_done(&b->held);
}

/* The newest bundle of an owner gives way. @return whether there was one */
static bool release_newest_held(IntakeContext *c, const Owner *owner) {
        ListLink *all = bundle_table_all(c->bundles);
        for (ListLink *l = all->prev; l != all; l = l->prev) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->rec.uid != owner->uid || b->held.n == 0)
                        continue;
                release_held(c, b);
                return true;
        }
        return false;
}

static void hold_by_descriptors(IntakeContext *c, Bundle *b, HeldFiles *held) {
        const Owner owner = { .uid = (uid_t)b->rec.uid };
        Owner most;
        int r = OWNERS_GRANTED;
        release_held(c, b);
        if (held->n > 0)
                while ((r = owners_request(&c->held, &owner, held->n, &most)) == OWNERS_DISPLACE &&
                       release_newest_held(c, &most))
                        owners_count_refused(&c->held, &most, c->clock->boottime_usec(c->clock));
        if (r == OWNERS_GRANTED) {
                b->held = *held;
                *held = (HeldFiles){ 0 };
        } else
                owners_count_refused(&c->held, &owner, c->clock->boottime_usec(c->clock));
}

static void report_hold_error(IntakeSource *s, const ProbeJob *p) {
        if (!p->hold_error || (s->hold_note && strcmp(s->hold_note, p->hold_error) == 0))
                return;
        intake_set_note(&s->hold_note, p->hold_error);
        log_warning(0, "source %s: %s", s->config->name, p->hold_error);
}

/* How the members are held. */
static void apply_hold(IntakeSource *s, Bundle *b, ProbeJob *p) {
        if (p->links_held != b->rec.links_held && p->unit.n_files > 0)
                b->rec.links_held = p->links_held;
        if (p->unit.n_files > 0 && !p->links_held)
                hold_by_descriptors(s->context, b, &p->held);
        report_hold_error(s, p);
}

/* Copies what was counted into the record. */
static void apply_facts(IntakeSource *s, Bundle *b, ProbeJob *p) {
        bool changed = p->unit.digest != b->rec.digest;
        bool was_held = b->rec.links_held;
        b->rec.digest = p->unit.digest;
        b->rec.n_files = p->unit.n_files;
        b->rec.bytes = p->unit.bytes;
        apply_hold(s, b, p);
        if (p->process_seen && !b->process_seen) {
                b->process_seen = true;
                b->process_start = p->process_start;
        }
        if (changed || was_held != b->rec.links_held)
                bundle_save(s->context->bundles, b);
}

static void keep_waiting(Bundle *b, const IntakeAnswer *answer, uint64_t duration_usec) {
        if (!b->rec.reason || strcmp(b->rec.reason, answer->why) != 0) {
                free(b->rec.reason); /* for `explain`; the row follows with the next change */
                b->rec.reason = strdup(answer->why);
        }
        uint64_t usec = answer->next_usec;
        if (b->dirty) /* something came during the probe: hold it soon */
                usec = MIN(usec, MAX(REPROBE_USEC, REPROBE_SHARE * duration_usec));
        b->dirty = false;
        b->check_took_usec = duration_usec;
        intake_probe_bundle_in(b, usec);
}

static void apply_answer(IntakeSource *s, Bundle *b, const ProbeJob *p,
                         const IntakeAnswer *answer) {
        if (answer->verdict == INTAKE_WAIT)
                keep_waiting(b, answer, p->duration_usec);
        else if (answer->verdict == INTAKE_VANISHED)
                (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                                       answer->why); /* a refused transition is logged there */
        else
                make_ready(s, b, &p->unit, answer->why);
}

/* There are files, but none that may be collected: this is not reported as removed. */
static void give_up_unreadable(IntakeSource *s, Bundle *b, const ScanUnit *u) {
        label_losses(b, u);
        report_losses(s, b, u);
        _cleanup_free_ char *reason = NULL;
        if (asprintf(&reason, INTAKE_NOTHING_TAKEN ": %s", b->rec.incomplete) < 0)
                reason = NULL;
        (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                               reason); /* a refused transition is logged there */
}

/* All but whether it is gone. */
static IntakeFacts facts_of(const IntakeSource *s, const Bundle *b, const ProbeJob *p) {
        uint64_t whole_usec = b->whole_boot_usec;
        return (IntakeFacts){
                .held = b->rec.links_held || (b->held.n > 0 && b->held.all),
                .writers = p->check_writers ? p->writers : INTAKE_WRITERS_UNKNOWN,
                .quiet_usec = b->quiet_usec,
                .process_gone = b->process_seen &&
                                !(p->process_seen && p->process_start == b->process_start),
                .contradicted = p->contradicted,
                .whole_usec = whole_usec > 0 ? intake_boot_usec(s) - whole_usec : 0,
        };
}

/* Records links that the row does not mention. The agent crashed after it had created them, and the
 * source was removed before the next start, so that some members may not be linked. */
static void record_links(Bundle *b, const ProbeJob *p) {
        b->rec.links_held = true;
        if (p->unit.digest != b->rec.digest)
                add_reason(&b->rec, "removed at the source before all of it could be held");
        bundle_save(b->source->context->bundles, b);
}

static void on_probed(IntakeSource *s, ProbeJob *p) {
        Bundle *b = bundle_table_find(s->context->bundles, p->bundle_id);
        if (!b || b->source != s)
                return; /* cancelled meanwhile */
        b->probing = false;
        b->is_replaced = b->is_replaced || p->met_another;
        if (b->rec.state != BUNDLE_SETTLING)
                return;
        if (p->result == PROBE_E_AWAY || (p->result < 0 && p->result != -ENOENT)) {
                log_dump(b->rec.id, LOG_WARNING, MIN(p->result, 0),
                         p->result == PROBE_E_AWAY
                                 ? "'%s' has files that cannot be read, and its share is away, "
                                   "trying again"
                                 : "cannot read '%s', trying again",
                         b->rec.path);
                intake_probe_bundle_in(b, s->config->scan_interval_usec);
                return;
        }
        bool seen = p->result == 0 && p->unit.n_files > 0;
        bool gone = !seen || p->from_links;
        if (gone && p->moved) { /* under its new name it is another bundle */
                (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                                       "it was renamed at the source and is shipped under its new "
                                       "name"); /* a refused transition is logged there */
                return;
        }
        if (seen && p->from_links && !b->rec.links_held)
                record_links(b, p);
        if (gone && has_losses(&p->unit) && !b->rec.links_held) {
                give_up_unreadable(s, b, &p->unit);
                return;
        }
        uint64_t now = intake_boot_usec(s);
        bool changed = seen && p->unit.digest != b->rec.digest;
        b->quiet_usec = intake_quiet_usec(changed, now - b->checked_boot_usec, b->quiet_usec);
        b->checked_boot_usec = now;
        if (!gone) {
                label_losses(b, &p->unit);
                apply_facts(s, b, p);
        } else if (seen) /* our links may have grown */
                b->rec.digest = p->unit.digest;
        IntakeLimits limits = { .settle_usec = s->config->settle_usec,
                                .max_wait_usec = s->config->max_wait_usec,
                                .waited_usec = now - b->seen_boot_usec,
                                .flush = b->flush };
        IntakeFacts facts = facts_of(s, b, p);
        facts.gone = gone && !p->lives_on;
        if (seen) {
                b->owners = p->owners;
                named_pids_done(&b->pids);
                b->pids = p->pids;
                p->pids = (NamedPids){ 0 };
        }
        remove_seen(s, b->rec.path, p);
        add_hint_facts(s, b, &facts);
        /* Leases and headers are checked only when it could be complete: for most probes a walk is
         * enough. */
        if (seen && !p->check_writers && intake_is_due(&facts, &limits)) {
                b->check = true;
                intake_probe_bundle(b);
                return;
        }
        IntakeAnswer answer = intake_decide(&facts, &limits);
        if ((answer.verdict == INTAKE_COMPLETE || answer.verdict == INTAKE_INCOMPLETE ||
             answer.only_pending) &&
            s->context->on_whole && s->context->on_whole(b, s->context->userdata)) {
                facts.reporting = true;
                answer = intake_decide(&facts, &limits);
        }
        if (!answer.only_pending)
                b->whole_boot_usec = 0;
        else if (b->whole_boot_usec == 0)
                b->whole_boot_usec = now;
        apply_answer(s, b, p, &answer);
}

/* ---- files that come into a unit while its bundle is READY or SHIPPING: links hold them at once;
 * when the bundle is delivered, the recheck of these links starts the supplement ---- */

static bool is_underway(const Bundle *b) {
        return b->rec.state == BUNDLE_READY || b->rec.state == BUNDLE_SHIPPING;
}

/* Starts the supplement of late files once all destinations have the bundle, and releases their
 * links if the bundle was cancelled or evicted. In every other state the links stay. */
static void handle_late_links(IntakeSource *s, const BundleRecord *rec, const char *supplement_id) {
        if (rec->state == BUNDLE_DELIVERED || rec->is_redelivery)
                intake_recheck_links(s, supplement_id);
        else if (rec->state == BUNDLE_CANCELLED || rec->state == BUNDLE_EVICTED)
                intake_release_pins(s, supplement_id);
}

static void report_vanished_files(IntakeSource *s, const char *id, uint64_t n) {
        _cleanup_(bundle_record_done) BundleRecord stored = { 0 };
        Bundle *b = bundle_table_find(s->context->bundles, id);
        BundleRecord *rec = b ? &b->rec : &stored;
        _cleanup_free_ char *text = strbuf_format(
                "vanished: %llu %s that came while it was being delivered could not be held, and "
                "%s removed before a supplement had %s",
                (unsigned long long)n, n == 1 ? "file" : "files", n == 1 ? "was" : "were",
                n == 1 ? "it" : "them");
        if (!text || (!b && store_get(s->context->store, id, &stored) != 0))
                return;
        log_dump(id, LOG_WARNING, 0, "%s", text);
        s->context->on_discard("vanished-file", n, s->context->userdata);
        add_reason(rec, text);
        if (b)
                bundle_save(s->context->bundles, b);
        else
                (void)store_update(s->context->store,
                                   rec); /* on error: the metric has counted it */
}

static void on_late_probed(IntakeSource *s, ProbeJob *p) {
        Bundle *b = bundle_table_find(s->context->bundles, p->bundle_id);
        uint64_t n_held = p->n_unheld + p->n_linked;
        if (b && b->source == s) {
                b->probing = false;
                b->is_replaced = b->is_replaced || p->met_another;
                b->has_late = b->has_late || p->n_linked > 0;
                b->n_unheld = p->n_unheld;
                b->check_took_usec = p->duration_usec;
                if (p->result < 0 && p->result != -ENOENT)
                        b->seen_digest = 0; /* the next scan starts another probe */
        }
        log_dump(p->bundle_id, LOG_DEBUG, MIN(p->result, 0),
                 "looked at what came late: %llu files are held now, %llu cannot be",
                 (unsigned long long)p->n_linked, (unsigned long long)p->n_unheld);
        report_hold_error(s, p);
        if ((p->result == 0 || p->result == -ENOENT) && p->n_was_unheld > n_held)
                report_vanished_files(s, p->bundle_id, p->n_was_unheld - n_held);
        if (!b && p->n_linked > 0) {
                _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                if (store_get(s->context->store, p->bundle_id, &rec) == 0)
                        handle_late_links(s, &rec, p->supplement_id);
        }
        if (!b || b->source != s)
                return;
        if (b->rec.state == BUNDLE_SETTLING)
                intake_probe_bundle(b);
        else if (is_underway(b) && b->probe_wanted)
                intake_probe_bundle_in(b, MAX(REPROBE_USEC, REPROBE_SHARE * p->duration_usec));
        b->probe_wanted = false;
}

/* @return 0 and the id of the next supplement of the bundle's unit; -ENOENT, -EOVERFLOW: there is
 * none */
static int get_next_supplement(const IntakeSource *s, const Bundle *b, char ret[BUNDLE_ID_SIZE]) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        const char *base_id = b->rec.supplement_of;
        if (!base_id[0])
                return intake_supplement_id(ret, &b->rec, b->rec.n_supplements + 1);
        int r = store_get(s->context->store, base_id, &base);
        return r == 0 ? intake_supplement_id(ret, &base, base.n_supplements + 1) : -ENOENT;
}

/* Starts a probe of a READY or SHIPPING bundle's unit that links the files which came late. */
static void intake_hold_late(Bundle *b) {
        IntakeSource *s = b->source;
        _cleanup_(probe_job_freep) ProbeJob *p = NULL;
        if (s->spec->scan.kind == SOURCE_PROCESS_CORE || bundle_is_of_attachments(&b->rec) ||
            intake_is_from_links(&b->rec))
                return;
        if (b->probing) {
                b->probe_wanted = true;
                return;
        }
        const char *base_id = b->rec.supplement_of[0] ? b->rec.supplement_of : b->rec.id;
        if (probe_job_new(&p, s->spec, source_spec_relative(s->spec, b->rec.path)) < 0 ||
            get_next_supplement(s, b, p->supplement_id) < 0 ||
            store_get_prints(s->context->store, base_id, &p->shipped, &p->n_shipped) < 0)
                return; /* the next event or scan tries again */
        strcpy(p->bundle_id, b->rec.id);
        p->is_late = true;
        p->base_is_held = b->rec.links_held || b->rec.is_redelivery;
        p->base_files = b->rec.n_files;
        p->n_was_unheld = b->n_unheld;
        if (s->spec->scan.kind != SOURCE_NEURON_CORE_DUMP) {
                p->unit_ino = b->rec.unit_ino;
                p->unit_born_usec = b->rec.unit_born_usec;
        }
        b->probing = intake_probe_submit(s, s->probes, TAKE_PTR(p), on_late_probed);
}

static void intake_probe_bundle(Bundle *b) {
        IntakeSource *s = b->source;
        /* Nothing may act on a bundle before its row is durable. */
        if (s && is_underway(b) && !b->uncommitted && b->dirty) {
                intake_hold_late(b);
                return;
        }
        if (!s || b->rec.state != BUNDLE_SETTLING || b->uncommitted)
                return;
        if (b->probing) {
                b->dirty = true;
                return;
        }
        if (bundle_is_of_attachments(&b->rec)) { /* they are complete, and ours */
                if (bundle_set_state(s->context->bundles, b, BUNDLE_READY, NULL) == 0)
                        s->context->on_ready(b, s->context->userdata);
                return;
        }
        ProbeJob *p;
        if (probe_job_new(&p, s->spec, source_spec_relative(s->spec, b->rec.path)) < 0) {
                intake_probe_bundle_in(b, USEC_PER_SEC);
                return;
        }
        strcpy(p->bundle_id, b->rec.id);
        p->owner = owner_of(b->rec.uid);
        if (b->rec.supplement_of[0])
                (void)store_get_earlier_prints(s->context->store, &b->rec, &p->shipped,
                                               &p->n_shipped); /* none: all is new */
        if (expect_promised(s, b->rec.path, p) < 0) {
                probe_job_free(p);
                intake_probe_bundle_in(b, USEC_PER_SEC);
                return;
        }
        p->hold = true;
        bool can_names_repeat = s->spec->scan.kind == SOURCE_DIRECTORY ||
                                s->spec->scan.kind == SOURCE_NEURON_PROFILE;
        if (b->rec.links_held && can_names_repeat) {
                p->unit_ino = b->rec.unit_ino;
                p->unit_born_usec = b->rec.unit_born_usec;
        }
        p->links_only = intake_is_from_links(&b->rec);
        p->waits_for_share = s->config->max_wait_usec == 0 ||
                             intake_boot_usec(s) - b->seen_boot_usec < s->config->max_wait_usec;
        p->check_writers = b->check || b->flush ||
                           b->quiet_usec + intake_boot_usec(s) - b->checked_boot_usec >=
                                   s->config->settle_usec;
        b->check = false;
        b->probing = intake_probe_submit(s, s->probes, p, on_probed);
        if (!b->probing)
                intake_probe_bundle_in(b, USEC_PER_SEC);
}

/* ---- from a path to a bundle: what is new, what was shipped before, what came late ---- */

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
                .kind = s->spec->scan.kind,
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

/* ---- how many are worked on, by owner ---- */

static Owner owner_of(uint64_t uid) {
        return (Owner){ .uid = (uid_t)uid };
}

static bool may_name_unit(uid_t by, uid_t uid) {
        return by == uid || by == 0 || (uid == 0 && by == UID_CONTAINER_ROOT);
}

/* A hook has reported it: it never gives way. */
static bool is_noted(IntakeSource *s, const char *path, uid_t uid) {
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints)
                if (may_name_unit(n->owner.uid, uid) && is_about(n, path))
                        return true;
        return false;
}

/* Whether nothing but its row is needed to continue with it later. */
static bool may_park(const Bundle *b) {
        return b->source && b->source->hold != INTAKE_HELD && b->is_active && !b->uncommitted &&
               !b->flush && !b->cancel && !b->has_target_state && b->n_running == 0 &&
               b->held.n == 0 &&
               (b->rec.state == BUNDLE_SETTLING || b->rec.state == BUNDLE_READY) &&
               bundle_is_written(b) && !bundle_is_of_attachments(&b->rec);
}

/* The newest one of an owner gives way. @return whether there was one */
static bool park_one(IntakeContext *c, const Owner *owner) {
        ListLink *all = bundle_table_all(c->bundles);
        for (ListLink *l = all->prev; l != all; l = l->prev) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->rec.uid != owner->uid || !may_park(b) ||
                    is_noted(b->source, b->rec.path, owner->uid))
                        continue;
                log_dump(b->rec.id, LOG_DEBUG, 0,
                         "waits until fewer bundles are worked on: its owner has most of them");
                b->source->has_parked = true;
                owners_release(&c->active, owner, 1);
                owners_count_refused(&c->active, owner, c->clock->boottime_usec(c->clock));
                bundle_table_forget(c->bundles, b);
                return true;
        }
        return false;
}

/* @return whether its owner has had all that one may have in this minute. What a hook has reported
 * does not wait, nor what is there when the intake closes. */
static bool is_too_fast(IntakeSource *s, const char *path, const Owner *owner) {
        IntakeContext *c = s->context;
        uint64_t now = intake_boot_usec(s);
        if (now > c->minute_boot_usec + USEC_PER_MINUTE) {
                owners_done(&c->new_units);
                c->minute_boot_usec = now;
        }
        if (c->takes_all || s->hold != INTAKE_OPEN || is_noted(s, path, owner->uid) ||
            owners_request(&c->new_units, owner, 1, NULL) == OWNERS_GRANTED)
                return false;
        owners_count_refused(&c->new_units, owner, now);
        if (!s->has_late) {
                s->has_late = true;
                arm_scan(s);
        }
        return true;
}

/* @return whether one more of this owner may be worked on: it is counted */
static bool admit(IntakeSource *s, const char *path, uid_t uid) {
        IntakeContext *c = s->context;
        Owner owner = owner_of(uid), most;
        if (is_too_fast(s, path, &owner))
                return false;
        int r = owners_request(&c->active, &owner, 1, &most);
        if (r == OWNERS_DISPLACE && park_one(c, &most))
                r = owners_request(&c->active, &owner, 1, &most);
        if (r == OWNERS_REFUSED && is_noted(s, path, uid) && park_one(c, &owner))
                r = owners_request(&c->active, &owner, 1, &most);
        if (r == OWNERS_GRANTED)
                return true;
        s->scan_wanted = true;
        owners_count_refused(&c->active, &owner, intake_boot_usec(s));
        return false;
}

static void release_active(IntakeSource *s, Bundle *b) {
        Owner owner = owner_of(b->rec.uid);
        release_held(s->context, b);
        if (b->is_active) /* one that was restored from quarantine does not count */
                owners_release(&s->context->active, &owner, 1);
        b->is_active = false;
}

static bool has_much_space(const IntakeSource *s) {
        return s->context->active.total < s->context->active.max / 2;
}

static int resume_one(BundleRecord *rec, void *userdata) {
        IntakeSource *s = userdata;
        IntakeContext *c = s->context;
        Owner owner = owner_of(rec->uid);
        Bundle *b = NULL;
        if (bundle_table_find(c->bundles, rec->id))
                return 0;
        if (owners_request(&c->active, &owner, 1, NULL) == OWNERS_GRANTED) {
                owners_release(&c->active, &owner, 1); /* intake_source_adopt() counts it */
                if (bundle_table_revive(c->bundles, rec->id, s, &b) == 0) {
                        intake_source_adopt(s, b);
                        if (b->rec.state == BUNDLE_READY)
                                c->on_ready(b, c->userdata);
                        return 0;
                }
        }
        s->has_parked = true; /* its unit has another bundle now, or there is no space */
        return 0;
}

static void resume_parked(IntakeSource *s) {
        if (!s->has_parked || !has_much_space(s))
                return;
        s->has_parked = false;
        int r = store_list(
                s->context->store,
                &(StoreFilter){ .state = -1, .active_only = true, .source = s->config->name },
                resume_one, s);
        if (r < 0) {
                log_warning(r,
                            "source %s: cannot read which bundles wait; a later scan tries again",
                            s->config->name);
                s->has_parked = true;
        }
}

/* @param base  as for add_bundle()  @return NULL: later, or never; logged */
static Bundle *record_bundle(IntakeSource *s, const ScanUnit *u, BundleRecord *base) {
        _cleanup_free_ char *path = unit_path(s, u->relative);
        Bundle *b = NULL;
        if (!path || !admit(s, path, u->st.st_uid))
                return NULL;
        bool is_reserved = !base || reserve_number(s, base); /* it logs a failure */
        int r = is_reserved ? add_bundle(s, u, base, &b) : 0;
        if (b) {
                b->is_active = true;
                if (s->context->on_found)
                        s->context->on_found(b, s->context->userdata);
                return b;
        }
        Owner owner = owner_of(u->st.st_uid);
        owners_release(&s->context->active, &owner, 1);
        if (r == -EEXIST)
                log_notice("source %s: '%s' has the identity of a bundle that is known already, "
                           "leaving it",
                           s->config->name, u->relative);
        if (r == -EEXIST)
                intake_remember(s, u->relative, u->digest);
        else if (r < 0)
                report_postponed(s, r, 1);
        return NULL;
}

static void supplement_attachments(IntakeSource *s, BundleRecord *base, size_t n, uint64_t bytes) {
        ScanUnit u = { .relative = (char *)source_spec_relative(s->spec, base->path), /* borrowed */
                       .n_files = n,
                       .bytes = bytes,
                       .oldest_mtime_usec = base->oldest_mtime_usec };
        u.st = (struct stat){ .st_uid = base->uid, .st_dev = (dev_t)BUNDLE_DEV_OF_ATTACHMENTS };
        Bundle *b = record_bundle(s, &u, base);
        if (b) /* else the next sweep */
                intake_probe_bundle(b);
}

static void start_bundle(IntakeSource *s, const ScanUnit *u, BundleRecord *base) {
        Bundle *b = record_bundle(s, u, base);
        if (!b)
                return;
        intake_remember(s, u->relative, u->digest);
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

static bool intake_start_supplement(IntakeSource *s, ProbeJob *p, BundleRecord *base) {
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
                mark_delivered(s, p->relative, p->seen_digest);
                (void)store_update(s->context->store, &rec); /* else it does */
                return;
        }
        if (!intake_start_supplement(s, p, &rec))
                intake_remember(s, p->relative, p->seen_digest);
}

static void probe_for_supplement(IntakeSource *s, const ScanUnit *u, const char *base_id) {
        ProbeJob *p;
        if (probe_job_new(&p, s->spec, u->relative) < 0)
                return;
        strcpy(p->bundle_id, base_id);
        p->seen_digest = u->digest;
        p->waits_for_share = true;
        int r = store_get_prints(s->context->store, base_id, &p->shipped, &p->n_shipped);
        if (r < 0) {
                log_error(r, "source %s: cannot read what was shipped of '%s'", s->config->name,
                          u->relative);
                probe_job_free(p);
                return;
        }
        (void)intake_probe_submit(
                s, s->probes, p,
                on_supplement_probed); /* logged there; the next scan tries again */
}

typedef struct NamedBy {
        uid_t uid;
        bool is_found;
} NamedBy;

static int on_naming_note(const StoredNote *stored, void *userdata) {
        NamedBy *by = userdata;
        by->is_found = may_name_unit(sender_of(stored).uid, by->uid);
        return by->is_found;
}

/* @return whether a unit may become a bundle: its names say so, or a hook of its owner has named it
 */
static bool is_evidence(IntakeSource *s, const char *path, const ScanUnit *u) {
        NamedBy by = { .uid = u->st.st_uid };
        if (u->is_evidence || is_noted(s, path, u->st.st_uid))
                return true;
        (void)store_note_list(s->context->store, &(StoredUnit){ s->config->name, path },
                              on_naming_note, &by); /* on error: the next scan reads again */
        return by.is_found;
}

/* A unit was seen whose content is not what was last known of its path. */
static void on_unit(IntakeSource *s, ScanUnit *u) {
        if (unit_table_has(&s->table, u->relative, u->digest))
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
                bool is_new = u->digest != b->seen_digest &&
                              (u->digest != b->rec.digest || b->rec.supplement_of[0]);
                b->dirty = true;
                b->seen_digest = u->digest;
                if (is_new)
                        intake_probe_bundle(b);
                return;
        }
        if (!is_evidence(s, path, u))
                return;
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
        if (!bundle_state_is_inactive(rec.state) && !bundle_table_find(s->context->bundles, rec.id))
                return; /* parked */
        bool same_unit = is_same_unit(&rec, u);
        bool unique = rec.kind == SOURCE_NEURON_CORE_DUMP && rec.date_time[0];
        if (rec.digest == u->digest && same_unit && rec.state != BUNDLE_VANISHED) {
                intake_remember(s, u->relative, u->digest);
                if (rec.state == BUNDLE_DELIVERED) /* a crash may have come before the mark */
                        mark_delivered(s, u->relative, u->digest);
        } else if (u->is_file || (!same_unit && !unique)) {
                if (!same_unit)
                        release_earlier_attachments(s, path);
                start_bundle(s, u, NULL);
        } else if (rec.state == BUNDLE_DELIVERED || rec.is_redelivery ||
                   rec.state == BUNDLE_VANISHED)
                probe_for_supplement(s, u, rec.id);
        else /* quarantined, cancelled or evicted: the operator decides */
                intake_remember(s, u->relative, u->digest);
}

static void probe_next(IntakeSource *s);

/* What an owner rests is over as fast as time passes. */
static void pass_rests(IntakeSource *s) {
        const uint64_t now = intake_boot_usec(s);
        owners_release_each(&s->rests, now - s->rested_usec);
        s->rested_usec = now;
}

static void on_path_probed(IntakeSource *s, ProbeJob *p) {
        owners_release(&s->probing, &p->owner, 1);
        pass_rests(s);
        if (p->duration_usec > 0)
                (void)owners_request(&s->rests, &p->owner, REPROBE_SHARE * p->duration_usec,
                                     NULL); /* without memory it does not rest */
        if (p->result == 0) {
                on_unit(s, &p->unit);
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

/* The oldest path of the owner who rests no more, or else for the shortest time. */
static PendingPath *find_pending(const IntakeSource *s, uint64_t *ret_rest_usec) {
        PendingPath *found = NULL;
        *ret_rest_usec = UINT64_MAX;
        LIST_FOREACH_ITEM (PendingPath, entry, link, (ListLink *)&s->pending.all) {
                uint64_t rest = owners_amount(&s->probing, &entry->owner) > 0
                                        ? UINT64_MAX
                                        : owners_amount(&s->rests, &entry->owner);
                if (rest < *ret_rest_usec) {
                        found = entry;
                        *ret_rest_usec = rest;
                }
                if (rest == 0 || s->pending.owners.n_shares == 1)
                        break;
        }
        return found;
}

static bool is_hinted(const IntakeSource *s, const char *path) {
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints)
                if (is_about(n, path))
                        return true;
        return false;
}

/* @return the outermost directory above a path, or the path itself, that was a unit or that a hook
 * has named; the caller's; NULL: none */
static char *find_unit_above(const IntakeSource *s, const char *relative) {
        size_t depth = unit_path_depth(relative);
        if (s->spec->scan.kind != SOURCE_NEURON_CORE_DUMP)
                return NULL;
        for (size_t i = path_template_depth(s->spec->template); i <= depth; i++) {
                _cleanup_free_ char *unit = strndup(relative, unit_path_prefix(relative, i));
                _cleanup_free_ char *path = unit ? unit_path(s, unit) : NULL;
                if (path && (unit_table_has_path(&s->table, unit) || is_hinted(s, path)))
                        return TAKE_PTR(unit);
        }
        return NULL;
}

/* @return whether it was started; where not, a scan finds it */
static bool probe_pending(IntakeSource *s, PendingPath *next) {
        const Owner owner = next->owner;
        _cleanup_free_ char *relative = pending_remove(&s->pending, next);
        ProbeJob *p;
        if (owners_request(&s->probing, &owner, 1, NULL) != OWNERS_GRANTED)
                return false;
        if (probe_job_new(&p, s->spec, relative) == 0) {
                p->owner = owner;
                p->known_unit = find_unit_above(s, relative);
                if (intake_probe_submit(s, s->paths, p, on_path_probed))
                        return true;
        }
        owners_release(&s->probing, &owner, 1);
        return false;
}

static void probe_next(IntakeSource *s) {
        PendingPath *next;
        uint64_t rest;
        pass_rests(s);
        do {
                next = s->probing.total < PATH_THREADS ? find_pending(s, &rest) : NULL;
                if (next && rest > 0 &&
                    timer_arm(&s->probe_timer, &(TimerOptions){ .event = s->context->event,
                                                                .usec = rest,
                                                                .slack_usec = rest / 20,
                                                                .handler = on_probe_timer,
                                                                .userdata = s }) >= 0)
                        return;
        } while (next && probe_pending(s, next));
}

/* The first directory or file on the way to it decides: its status is read without following
 * anything that another user may have put there. */
static Owner owner_of_path(const IntakeSource *s, const char *relative) {
        _cleanup_free_ char *first = strndup(relative, strcspn(relative, "/"));
        _cleanup_free_ char *path = first ? unit_path(s, first) : NULL;
        struct stat st;
        return owner_of(path && lstat(path, &st) == 0 ? st.st_uid : (uid_t)-1);
}

static void intake_probe_path(IntakeSource *s, const char *relative) {
        if (s->hold == INTAKE_HELD)
                return; /* the scan after the hold finds it */
        const Owner owner = owner_of_path(s, relative);
        const bool is_first = owners_amount(&s->pending.owners, &owner) == 0;
        if (pending_add(&s->pending, relative, &owner) < 0) { /* a scan finds all of them */
                s->scan_wanted = true;
                intake_start_scan(s);
        }
        /* Else the end of a probe, or the timer, is waited for; but for a thread that could not be
         * started. */
        if (is_first || (s->probing.total == 0 && owners_amount(&s->rests, &owner) == 0))
                probe_next(s);
}

/* The links of bundles that have ended: those that are not needed are released, those of delivered
 * bundles are rechecked.
 *
 * The destinations of a bundle may have read a file at different times. When its owner has removed
 * or replaced the file since, the links alone hold what one of them lacks: that is shipped as a
 * supplement, from links of its own. These are made before the links of the bundle are released,
 * and both before the supplement has a row; so whenever this is cut, the next start finds links of
 * which not all was shipped, and rechecks them. */

/* ---- jobs: links are listed and released in the thread that makes them; thousands take their time
 * ---- */

typedef struct FoundPins {
        ListLink link;
        char *id;   /* what the directory is called: not necessarily the id of a bundle */
        char *path; /* absolute */
        char *unit; /* absolute path of the unit they hold; NULL: unknown, or of another source */
        uid_t unit_uid;
        bool is_unit_gone;
} FoundPins;

typedef struct PinsJob {
        SourceTask task;
        IntakeSource *source; /* for done() */
        SourceSpec *spec;
        char bundle_id[BUNDLE_ID_SIZE]; /* whose pins are released; "": all are listed */
        ListLink found;
        int result;
} PinsJob;

static PinsJob *pins_job_free(PinsJob *p) {
        if (!p)
                return NULL;
        LIST_FOREACH_ITEM_SAFE (FoundPins, f, link, &p->found) {
                free(f->id);
                free(f->path);
                free(f->unit);
                free(f);
        }
        source_spec_unref(p->spec);
        free(p);
        return NULL;
}

DEFINE_CLEANUP(PinsJob, pins_job_free);

static int on_pins(const char *id, const char *path, void *userdata) {
        PinsJob *p = userdata;
        FoundPins *f = calloc(1, sizeof *f);
        if (!f)
                return -ENOMEM;
        list_append(&p->found, &f->link);
        f->id = strdup(id);
        f->path = strdup(path);
        if (!f->id || !f->path)
                return -ENOMEM;
        _cleanup_free_ char *unit = NULL;
        struct stat st;
        if (pins_read_unit(p->spec->pins, id, &unit, &f->unit_uid) < 0 ||
            !path_is_below(unit, p->spec->fixed))
                return 0;
        f->is_unit_gone = lstat(unit, &st) < 0 && (errno == ENOENT || errno == ENOTDIR);
        f->unit = TAKE_PTR(unit);
        return 0;
}

static void pins_job_run(WorkJob *job) {
        PinsJob *p = CONTAINER_OF(job, PinsJob, task.job);
        p->result = p->bundle_id[0] ? pins_release(p->spec->pins, p->bundle_id)
                                    : pins_list(p->spec->pins, on_pins, p);
}

static void pins_job_drop(SourceTask *t) {
        pins_job_free(CONTAINER_OF(t, PinsJob, task));
}

/* @return whether it was started; if not, the next start does it: rather too many links than one
 * too few */
static bool pins_job_start(IntakeSource *s, const char *bundle_id, void (*done)(SourceTask *t)) {
        _cleanup_(pins_job_freep) PinsJob *p = calloc(1, sizeof *p);
        if (!p)
                return false;
        list_init(&p->found);
        strcpy(p->bundle_id, bundle_id);
        p->source = s;
        p->spec = source_spec_ref(s->spec);
        p->task = (SourceTask){ .job.run = pins_job_run, .done = done, .drop = pins_job_drop };
        if (intake_source_submit(s, &p->task) < 0)
                return false;
        (void)TAKE_PTR(p);
        return true;
}

static void on_released(SourceTask *t) {
        _cleanup_(pins_job_freep) PinsJob *p = CONTAINER_OF(t, PinsJob, task);
        p->source->n_releases--;
        if (p->result < 0 && p->result != -ENOENT)
                log_dump(p->bundle_id, LOG_WARNING, p->result,
                         "cannot remove hard links for '%s'; the next start tries again",
                         p->spec->fixed);
}

static void intake_release_pins(IntakeSource *s, const char *id) {
        if (pins_job_start(s, id, on_released)) /* else the next start sweeps */
                s->n_releases++;
}

/* ---- sweep: what a crash left ---- */

typedef enum Fate {
        FATE_KEEP,
        FATE_UNKNOWN, /* to the store */
        FATE_RELEASE, /* not needed any more */
        FATE_RECHECK,
} Fate;

/* @return 0 and the base's record; STORE_E_NOT_FOUND; -errno */
static int get_base(const IntakeSource *s, const char *id, BundleRecord *ret) {
        char base_id[BUNDLE_ID_SIZE];
        const char *suffix = strrchr(id, '-');
        if (!bundle_id_is_valid(id) || suffix[1] != 's')
                return STORE_E_NOT_FOUND;
        (void)snprintf(base_id, sizeof base_id, "%.*s", (int)(suffix - id), id);
        return store_get(s->context->store, base_id, ret);
}

static bool is_delivered_here(const IntakeSource *s, const BundleRecord *rec) {
        return (rec->state == BUNDLE_DELIVERED || rec->is_redelivery) &&
               strcmp(rec->source, s->config->name) == 0 &&
               path_is_below(rec->path, s->spec->fixed);
}

/* @param rec  NULL: there is no row. @return whether these links, which nobody works on, are to be
 * rechecked */
static bool must_recheck(const IntakeSource *s, const BundleRecord *rec, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        if (rec)
                return is_delivered_here(s, rec);
        return !bundle_table_find(s->context->bundles, id) && get_base(s, id, &base) == 0 &&
               is_delivered_here(s, &base);
}

/* Decides about links without a row that hold late files of a bundle's unit: by the bundle's state.
 */
static Fate fate_of_late(const IntakeSource *s, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        if (get_base(s, id, &base) != 0)
                return FATE_UNKNOWN;
        bool is_given_up = base.state == BUNDLE_CANCELLED || base.state == BUNDLE_EVICTED;
        return is_given_up && strcmp(base.source, s->config->name) == 0 ? FATE_RELEASE : FATE_KEEP;
}

static Fate fate_of(const IntakeSource *s, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (bundle_table_find(s->context->bundles, id))
                return FATE_KEEP;
        int r = store_get(s->context->store, id, &rec);
        if (r < 0) /* what cannot be read is left alone */
                return FATE_KEEP;
        if (must_recheck(s, r == 0 ? &rec : NULL, id))
                return FATE_RECHECK;
        if (r > 0)
                return fate_of_late(s, id);
        /* A delivered one is rechecked by its own source; links that the row still mentions are
         * released by retention. */
        bool is_over = rec.state == BUNDLE_CANCELLED || rec.state == BUNDLE_VANISHED ||
                       rec.state == BUNDLE_EVICTED;
        return is_over && !rec.links_held ? FATE_RELEASE : FATE_KEEP;
}

/* Sources that share a file system share the pins: logged once. */
static void log_unknown(const char *path, size_t n) {
        static char *logged;
        if (logged && strcmp(logged, path) == 0)
                return;
        _cleanup_free_ char *escaped = path_escape(path);
        log_notice("unknown pins, kept: '%s' and %zu more beside it; remove the directory by "
                   "hand if its bundle is not needed",
                   escaped ? escaped : "?", n - 1);
        free(logged);
        logged = strdup(path);
}

/* ---- a lost state directory: bundles that are only held by links ---- */

/* Sets date_time and cluster_id: from the unit's path, else the time from the id and zeros. */
static void set_incident(const IntakeSource *s, const FoundPins *f, BundleRecord *rec) {
        TemplateValues values = { 0 };
        const char *time = f->id + strlen(source_kind_name(rec->kind)) + 1;
        if (path_template_match(s->spec->scan.template, source_spec_relative(s->spec, f->unit),
                                &values)) {
                strcpy(rec->date_time, values.date_time);
                strcpy(rec->cluster_id, values.cluster_id);
                return;
        }
        (void)snprintf(rec->date_time, sizeof rec->date_time, "%.8s-%.6s", time, time + 9);
        (void)snprintf(rec->cluster_id, sizeof rec->cluster_id, "%016d", 0);
}

static bool is_of_kind(const IntakeSource *s, const char *id) {
        const char *kind = source_kind_name(s->spec->scan.kind);
        return bundle_id_is_valid(id) && strncmp(id, kind, strlen(kind)) == 0 &&
               id[strlen(kind)] == '-' && strrchr(id, '-')[1] != 's';
}

/* Creates the row of a bundle again whose unit was removed at the source.
 * @return whether it was created */
static bool restore_bundle(IntakeSource *s, const FoundPins *f) {
        _cleanup_(bundle_record_done) BundleRecord rec = { .kind = s->spec->scan.kind,
                                                           .state = BUNDLE_SETTLING,
                                                           .complete = true,
                                                           .uid = f->unit_uid,
                                                           .links_held = true };
        Bundle *b = NULL;
        if (!f->unit || !f->is_unit_gone || !is_of_kind(s, f->id) ||
            bundle_table_find_unit(s->context->bundles, s->config->name, f->unit))
                return false;
        strcpy(rec.id, f->id);
        rec.source = strdup(s->config->name);
        rec.path = strdup(f->unit);
        if (!rec.source || !rec.path || fill_deliveries(s, &rec) < 0)
                return false;
        if (source_kind_has_incident(rec.kind))
                set_incident(s, f, &rec);
        if (bundle_table_add(s->context->bundles, &rec, s, &b) < 0)
                return false; /* bundle_table_add() has logged it */
        log_dump(f->id, LOG_NOTICE, 0,
                 "its row was lost with the state; its files are removed at '%s' and delivered "
                 "from the links that hold them",
                 f->unit);
        if (s->context->on_found)
                s->context->on_found(b, s->context->userdata);
        intake_source_adopt(s, b);
        return true;
}

/* Notes links of which the database has no bundle. Only after a scan: units that are still at the
 * source get their rows by it. */
static void note_unlisted_links(IntakeSource *s, size_t n, const char *path) {
        _cleanup_free_ char *escaped = n > 0 ? path_escape(path) : NULL, *text = NULL;
        if (n > 0)
                text = strbuf_format("hard links hold %zu %s that the state database does not "
                                     "have, such as '%s'; save what is needed, then remove the "
                                     "directory",
                                     n, n == 1 ? "bundle" : "bundles", escaped ? escaped : "?");
        s->sweep_wanted = s->sweep_wanted || n > 0;
        intake_set_note(&s->unlisted_links, s->has_scanned ? text : NULL);
}

static bool is_supplement_id(const char *id) {
        const char *suffix = strrchr(id, '-');
        return suffix && suffix[1] == 's';
}

/* Only what is known to be over is released: an id may be another source's, or its row lost with a
 * damaged database. */
static void on_listed(SourceTask *t) {
        _cleanup_(pins_job_freep) PinsJob *p = CONTAINER_OF(t, PinsJob, task);
        IntakeSource *s = p->source;
        const char *kind = source_kind_name(s->spec->scan.kind);
        const char *unknown = NULL, *of_kind = NULL;
        size_t n_unknown = 0, n_of_kind = 0;
        s->is_listing = false;
        if (p->result < 0 && p->result != -ENOENT)
                log_warning(p->result,
                            "cannot list hard links for '%s'; the next start tries again",
                            p->spec->fixed);
        /* Supplements come last: with a lost database their bases are restored first. */
        for (int is_last = 0; is_last < 2; is_last++)
                LIST_FOREACH_ITEM (const FoundPins, f, link, &p->found) {
                        if (!f->id || !f->path || is_supplement_id(f->id) != (is_last > 0))
                                continue;
                        Fate fate = fate_of(s, f->id);
                        if (fate == FATE_RELEASE)
                                intake_release_pins(s, f->id);
                        else if (fate == FATE_RECHECK)
                                intake_recheck_links(s, f->id);
                        else if (fate == FATE_UNKNOWN && !restore_bundle(s, f)) {
                                unknown = n_unknown++ == 0 ? f->path : unknown;
                                if (strncmp(f->id, kind, strlen(kind)) == 0)
                                        of_kind = n_of_kind++ == 0 ? f->path : of_kind;
                        }
                }
        note_unlisted_links(s, n_of_kind, of_kind);
        if (n_unknown > 0)
                log_unknown(unknown, n_unknown);
}

static void intake_sweep_pins(IntakeSource *s) {
        s->is_listing = pins_job_start(s, "", on_listed);
}

static void intake_resweep_pins(IntakeSource *s) {
        if (!s->sweep_wanted || s->is_listing)
                return;
        s->sweep_wanted = false;
        intake_sweep_pins(s);
}

/* ---- rechecks ---- */

static void start_next(IntakeSource *s);

/* @return whether all is as it was when the recheck started, so that a supplement may start */
static bool may_supplement(IntakeSource *s, const ProbeJob *p, const BundleRecord *base) {
        char id[BUNDLE_ID_SIZE];
        Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, base->path);
        if (b && strcmp(b->rec.id, p->supplement_id) == 0) { /* it may have read them too early */
                b->dirty = true;
                return false;
        }
        if (b) {
                s->sweep_wanted = true;
                return false;
        }
        if (intake_supplement_id(id, base, base->n_supplements + 1) < 0)
                return false;
        if (strcmp(id, p->supplement_id) != 0) { /* that name was used up meanwhile */
                intake_recheck_links(s, p->supplement_id);
                return false;
        }
        return true;
}

static void report_rechecked(IntakeSource *s, const char *id) {
        if (s->context->on_links_rechecked)
                s->context->on_links_rechecked(s, id, s->context->userdata);
}

static void handle_recheck(IntakeSource *s, ProbeJob *p) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        if (p->result != 0) {
                log_dump(p->bundle_id, LOG_WARNING, MIN(p->result, 0),
                         "cannot check whether its links hold what was not shipped%s%s; they stay, "
                         "and the next start checks again",
                         p->hold_error ? ": " : "", p->hold_error ? p->hold_error : "");
                return;
        }
        if (p->unit.n_files == 0) {
                report_rechecked(s, p->bundle_id);
                return;
        }
        if (store_get(s->context->store, p->base_id, &base) != 0 || !may_supplement(s, p, &base))
                return;
        if (!intake_start_supplement(s, p, &base)) { /* the operator has refused it */
                intake_release_pins(s, p->supplement_id);
                report_rechecked(s, p->bundle_id);
        }
}

static void on_rechecked(IntakeSource *s, ProbeJob *p) {
        s->rechecking[0] = '\0';
        handle_recheck(s, p);
        start_next(s);
}

/* @return 0 and a job; 1: there is nothing to be checked any more; -errno */
static int prepare(IntakeSource *s, const char *id, ProbeJob **ret) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 }, base = { 0 };
        _cleanup_(probe_job_freep) ProbeJob *p = NULL;
        int r = store_get(s->context->store, id, &rec);
        bool is_known = r == 0, is_base = is_known && !rec.supplement_of[0];
        if (r < 0)
                return r;
        r = is_base ? store_get(s->context->store, id, &base) : get_base(s, id, &base);
        if (r < 0)
                return r;
        if (r > 0 || !is_delivered_here(s, is_known ? &rec : &base))
                return 1;
        r = probe_job_new(&p, s->spec, source_spec_relative(s->spec, base.path));
        if (r < 0)
                return r;
        strcpy(p->bundle_id, id);
        strcpy(p->base_id, base.id);
        p->releases_links = !is_known || !rec.links_held;
        r = intake_supplement_id(p->supplement_id, &base, base.n_supplements + 1);
        if (r >= 0)
                r = store_get_prints(s->context->store, base.id, &p->shipped, &p->n_shipped);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(p);
        return 0;
}

static void start_next(IntakeSource *s) {
        while (!s->rechecking[0] && !pending_is_empty(&s->rechecks)) {
                _cleanup_free_ char *id = pending_pop(&s->rechecks);
                ProbeJob *p = NULL;
                int r = prepare(s, id, &p);
                if (r == 0 &&
                    intake_probe_submit(s, s->probes, p, on_rechecked)) /* a failure is logged */
                        strcpy(s->rechecking, id);
                else if (r < 0)
                        log_dump(id, LOG_WARNING, r,
                                 "cannot check its links; they stay, and the next start checks");
        }
}

void intake_recheck_links(IntakeSource *s, const char *id) {
        if (pending_add(&s->rechecks, id, &(Owner){ 0 }) < 0)
                log_dump(id, LOG_WARNING, 0,
                         "too many links wait to be checked; they stay, and the next start checks");
        start_next(s);
}

bool intake_is_rechecking_links(const IntakeSource *s, const char *id) {
        return s->is_listing || strcmp(s->rechecking, id) == 0 || pending_has(&s->rechecks, id);
}

/* ---- attachments: what was attached to a unit after its bundle began is shipped as a supplement
 * of its own, and what was attached is released when the bundle that has it is over. The
 * directories in the state directory are the truth: a crash at any point is found by the next
 * sweep. ---- */

/* What was attached to a unit that never became a bundle is released after so long, by a clock that
 * was not set forward. */
#define UNCLAIMED_USEC (7 * USEC_PER_DAY)
static void release_all(IntakeSource *s, const char *source, const char *path) {
        int r = attachments_release(s->context->attachments, source, path);
        if (r < 0)
                log_warning(r,
                            "source %s: cannot remove what was attached to '%s'; a later scan "
                            "tries again",
                            source, path);
}

static void release_of(IntakeSource *s, const char *source, const char *path, const char *id) {
        int r = attachments_release_bundle(s->context->attachments, source, path, id);
        if (r < 0)
                log_dump(id, LOG_WARNING, r,
                         "cannot remove what was attached to it; a later scan tries again");
}

/* Something waits: if no bundle of the unit is active, and there is a base, a supplement ships it.
 */
static void supplement_or_release(IntakeSource *s, const char *path) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        uint64_t bytes;
        if (attachments_are_coming(s->context->attachments, s->config->name, path))
                return; /* who attaches them tells when all are there */
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
                release_all(s, s->config->name, path);
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
        int r = pending_add(&s->attached, path, &(Owner){ 0 });
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
        if (path_is_below(unit_path, s->spec->fixed))
                queue_attached(s, unit_path);
}

static void release_attachments_on_final(IntakeSource *s, const Bundle *b) {
        if (!s->context->attachments || b->rec.state == BUNDLE_QUARANTINED)
                return;
        release_of(s, s->config->name, b->rec.path, b->rec.id);
        if (attachments_waiting(s->context->attachments, s->config->name, b->rec.path, NULL) > 0)
                queue_attached(s, b->rec.path);
}

/* ---- what a crash left, and what is attached to dumps of sources that are not configured any
 * more: the source may be configured again, so that it is kept for a while ---- */

#define FORMER_USEC USEC_PER_DAY

/* What cannot be read has not ended.
 * @param r          of the store
 * @param if_unknown of a bundle that the store does not have
 * @return whether nobody ships it any more */
static bool has_ended(int r, const BundleRecord *rec, bool if_unknown) {
        return r == STORE_E_NOT_FOUND ? if_unknown : r == 0 && bundle_state_is_terminal(rec->state);
}

/* @return whether the bundle has ended: its attachments are removed, now or by the next sweep */
static bool release_if_ended(IntakeSource *s, const AttachmentsUnit *unit, const char *id,
                             bool if_unknown) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (bundle_table_find(s->context->bundles, id) ||
            !has_ended(store_get(s->context->store, id, &rec), &rec, if_unknown))
                return false;
        release_of(s, unit->source, unit->unit_path, id);
        return true;
}

static void on_attached_unit(const AttachmentsUnit *unit, void *userdata) {
        IntakeSource *s = userdata;
        const IntakeContext *c = s->context;
        const char *path = unit->unit_path;
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        _cleanup_(attachment_names_done) AttachmentNames ids = { 0 };
        bool is_mine = strcmp(unit->source, s->config->name) == 0, is_needed = false;
        bool is_former =
                !is_mine && c->is_configured && !c->is_configured(unit->source, c->userdata);
        if (is_mine ? !path_is_below(path, s->spec->fixed) : !is_former)
                return;
        uint64_t wait = is_former ? FORMER_USEC : UNCLAIMED_USEC;
        bool is_old = intake_realtime_usec(s) > unit->changed_usec + wait && s->steady_usec > wait;
        int r = attachments_bundles(c->attachments, unit->source, path, &ids);
        for (size_t i = 0; i < ids.n; i++)
                is_needed |= !release_if_ended(s, unit, ids.items[i], is_former && is_old);
        if (r < 0)
                log_warning(r, "source %s: cannot see what is attached to '%s'", unit->source,
                            path);
        if (r < 0 || attachments_waiting(c->attachments, unit->source, path, NULL) == 0)
                return;
        r = is_old && !bundle_table_find_unit(c->bundles, unit->source, path)
                    ? store_find_unit(c->store, unit->source, path, &base)
                    : -EAGAIN;
        if ((is_mine || !is_needed) &&
            (r == STORE_E_NOT_FOUND || (is_former && has_ended(r, &base, true)))) {
                log_notice("source %s: '%s' %s; what was attached to it is removed", unit->source,
                           path,
                           is_former ? "is of a source that is not configured any more"
                                     : "never became a bundle");
                release_all(s, unit->source, path);
        } else if (is_mine)
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

static void end_late(IntakeSource *s, Bundle *b) {
        char supplement_id[BUNDLE_ID_SIZE];
        if (b->n_unheld > 0)
                intake_hold_late(b);
        if (b->has_late && get_next_supplement(s, b, supplement_id) == 0)
                handle_late_links(s, &b->rec, supplement_id);
}

void intake_source_on_final(IntakeSource *s, Bundle *b) {
        const char *relative = source_spec_relative(s->spec, b->rec.path);
        release_active(s, b);
        /* A quarantined one can be restored; of others the row has whether links are still needed.
         */
        release_attachments_on_final(s, b);
        hook_hints_on_final(s, b->rec.path);
        end_late(s, b);
        /* A supplement of attachments can have the same id as the links of late files. */
        if (b->rec.state == BUNDLE_DELIVERED && (b->dirty || bundle_is_of_attachments(&b->rec)))
                intake_recheck_links(s, b->rec.id);
        else if (b->rec.state != BUNDLE_QUARANTINED && !b->rec.links_held)
                intake_release_pins(s, b->rec.id); /* some may be there where links were refused */
        intake_resweep_pins(s);
        /* A supplement's digest is not the unit's; and what vanished is accepted again if it comes
         * back. */
        if (!b->rec.supplement_of[0] && b->rec.state != BUNDLE_VANISHED)
                intake_remember(s, relative, b->rec.digest);
        if (!b->rec.supplement_of[0] && b->rec.state == BUNDLE_DELIVERED)
                mark_delivered(s, relative, b->rec.digest);
        if ((b->dirty && b->rec.state == BUNDLE_DELIVERED) || b->is_replaced ||
            intake_is_from_links(&b->rec))
                intake_probe_path(s, relative);
        /* Once for all that wait, not for each that ends. */
        bool resumes = s->has_parked && s->context->active.total + 1 == s->context->active.max / 2;
        if ((s->scan_wanted || resumes) && has_much_space(s))
                intake_start_scan(s);
}

void intake_flush_bundle(Bundle *b) {
        b->flush = true;
        intake_probe_bundle(b);
}

void intake_resettle(Bundle *b, const char *why) {
        IntakeSource *s = b->source;
        if (!s || bundle_set_state(s->context->bundles, b, BUNDLE_SETTLING, why) < 0)
                return;
        b->flush = false;
        b->quiet_usec = 0;
        b->checked_boot_usec = intake_boot_usec(s);
        intake_probe_bundle_in(b, MIN(s->config->settle_usec, USEC_PER_SEC));
}

void intake_source_adopt(IntakeSource *s, Bundle *b) {
        b->source = s;
        b->has_late = true;       /* perhaps: an earlier run may have created links */
        if (b->rec.is_redelivery) /* delivered long since: nothing is to be found out */
                return;
        b->probing = false;
        Owner owner = owner_of(b->rec.uid);
        b->is_active = owners_request(&s->context->active, &owner, 1, NULL) == OWNERS_GRANTED;
        /* Our links have changed the ctimes, so `settle` starts again. */
        b->quiet_usec = 0;
        b->seen_boot_usec = b->checked_boot_usec = intake_boot_usec(s);
        /* The time before this start counts, but max_wait does not end before `settle` has passed
         * since: the agent may have been down for long, or the clock may have been set. */
        uint64_t now = intake_realtime_usec(s), max_wait = s->config->max_wait_usec;
        uint64_t most = max_wait > s->config->settle_usec ? max_wait - s->config->settle_usec : 0;
        uint64_t before = now > b->rec.first_seen_usec ? now - b->rec.first_seen_usec : 0;
        before = MIN(before, most);
        b->seen_boot_usec -= MIN(b->seen_boot_usec, before);
        if (bundle_is_of_attachments(&b->rec)) { /* deferred: the agent is not complete yet */
                if (b->rec.state == BUNDLE_SETTLING)
                        intake_probe_bundle_in(b, 0);
                return;
        }
        load_hints(s, b);
        intake_probe_bundle(b);
}

/* ---- events ---- */

/* The bundle being worked on that a path lies in, if there is one. */
static Bundle *bundle_above(IntakeSource *s, const char *relative) {
        _cleanup_free_ char *path = unit_path(s, relative);
        size_t least = strlen(s->spec->fixed);
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
        if (b && !source_spec_is_loose(s->spec, source_spec_relative(s->spec, b->rec.path))) {
                const uint64_t soon = MAX(REPROBE_USEC, REPROBE_SHARE * b->check_took_usec);
                bool waiting = b->rec.state == BUNDLE_SETTLING && !b->probing;
                bool is_armed = b->timer && sd_event_source_get_enabled(b->timer, NULL) > 0;
                if ((waiting && !b->dirty) || (is_underway(b) && !b->probing && !is_armed))
                        intake_probe_bundle_in(b, soon);
                b->probe_wanted = b->probe_wanted || (is_underway(b) && b->probing);
                b->dirty = true;
                return;
        }
        if (is_dir || s->spec->scan.kind == SOURCE_PROCESS_CORE) {
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

/* @param text  the source's from now on; NULL: no memory */
static void log_note(IntakeSource *s, int level, char *text) {
        if (text && (!s->note || strcmp(s->note, text) != 0))
                log_write(level, 0, NULL, "source %s: %s", s->config->name, text);
        free(s->note);
        s->note = text;
}

static void on_degraded(const char *why, const char *remedy, void *userdata) {
        log_note(userdata, LOG_WARNING,
                 strbuf_format("%s%s%s", why, remedy ? "; " : "", remedy ? remedy : ""));
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

/* Each takes memory, here and in the kernel. No user has more than half. */
static bool may_watch(uid_t uid, void *userdata) {
        const IntakeSource *s = userdata;
        Owners *watched = &s->context->watched;
        Owner owner = owner_of(uid);
        if (owners_request(watched, &owner, 1, NULL) == OWNERS_GRANTED)
                return true;
        owners_count_refused(watched, &owner, intake_boot_usec(s));
        return false;
}

static void on_unwatched(uid_t uid, void *userdata) {
        const IntakeSource *s = userdata;
        Owner owner = owner_of(uid);
        owners_release(&s->context->watched, &owner, 1);
}

static void start_watch(IntakeSource *s, const ScanJob *j) {
        bool is_polled = s->config->watch == CONFIG_WATCH_AUTO && j->on_network;
        if (is_polled) /* it may have been mounted since the watch began */
                s->watch = dirwatch_free(s->watch);
        if (s->watch || s->config->watch == CONFIG_WATCH_SCAN)
                return;
        if (is_polled) {
                log_note(s, LOG_NOTICE,
                         strbuf_format("'%s' is on %s, where inotify does not see what other nodes "
                                       "write: scanning every scan_interval instead",
                                       s->spec->fixed, j->fs_name));
                return;
        }
        DirWatchCallbacks callbacks = { .on_change = on_change,
                                        .on_rescan = on_rescan,
                                        .on_degraded = on_degraded,
                                        .may_watch = may_watch,
                                        .on_unwatched = on_unwatched,
                                        .userdata = s };
        int r = dirwatch_new(&s->watch, s->context->event, s->spec->fixed, &callbacks);
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
 * again. @return 0, -errno of the commit */
static int end_transaction(IntakeSource *s) {
        int r = store_commit(s->context->store);
        size_t n_postponed = 0;
        s->in_transaction = false;
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, bundle_table_all(s->context->bundles)) {
                if (!b->uncommitted)
                        continue;
                b->uncommitted = false;
                if (r >= 0) {
                        intake_probe_bundle(b);
                        continue;
                }
                n_postponed++;
                intake_remember(s, source_spec_relative(s->spec, b->rec.path),
                                ~b->rec.digest); /* so that the next scan reports it */
                release_active(s, b);
                bundle_table_forget(s->context->bundles, b);
        }
        report_postponed(s, r, n_postponed);
        return r;
}

/* ---- sources that nodes share: this node renews its locks, and publishes what it holds ---- */

#define UNMARKED_MAX 1024 /* deliveries whose mark is written again at the next renewal */

typedef struct UnitLockJob {
        SourceTask task;
        IntakeSource *source; /* for done(); NULL: nobody waits for it */
        SourceSpec *spec;     /* a reference */
        char *delivered;      /* the unit to mark as delivered; owned; NULL: renew */
        uint64_t digest;      /* of delivered */
        UnitLocksHeld own, others;
        int result;
} UnitLockJob;

static UnitLockJob *lock_job_free(UnitLockJob *b) {
        if (!b)
                return NULL;
        source_spec_unref(b->spec);
        free(b->delivered);
        free(b);
        return NULL;
}

static void lock_job_run(WorkJob *job) {
        UnitLockJob *b = CONTAINER_OF(job, UnitLockJob, task.job);
        if (b->delivered)
                b->result = unit_locks_mark_delivered(b->spec->locks, b->delivered, b->digest);
        else
                b->result = unit_locks_renew(b->spec->locks, &b->own, &b->others);
}

static void lock_job_drop(SourceTask *t) {
        lock_job_free(CONTAINER_OF(t, UnitLockJob, task));
}

/* The row says that it is delivered: only the mark for other nodes is missing. */
static void keep_unmarked(IntakeSource *s, UnitLockJob *b) {
        bool is_kept = s->n_unmarked < UNMARKED_MAX &&
                       array_grow(&s->unmarked, s->n_unmarked, sizeof *s->unmarked) == 0;
        if (!s->has_logged_unmarked)
                log_warning(b->result,
                            "source %s: cannot mark '%s' for other nodes as delivered, so that one "
                            "may deliver it again if this node dies; %s",
                            s->config->name, b->delivered,
                            is_kept ? "trying again at each scan" : "too many are tried again");
        s->has_logged_unmarked = true;
        if (!is_kept)
                return;
        s->unmarked[s->n_unmarked].relative = TAKE_PTR(b->delivered);
        s->unmarked[s->n_unmarked++].digest = b->digest;
}

static void on_lock_job_done(SourceTask *t) {
        UnitLockJob *b = CONTAINER_OF(t, UnitLockJob, task);
        IntakeSource *s = b->source;
        if (b->delivered) {
                s->n_marks--;
                if (b->result < 0)
                        keep_unmarked(s, b);
                else
                        s->has_logged_unmarked = false;
        } else {
                s->is_renewing = false;
                s->others = b->result == 0 ? b->others : (UnitLocksHeld){ 0 };
        }
        lock_job_free(b);
}

/* @param delivered  the unit to mark as delivered; NULL: renew @return whether the job was started
 */
static bool lock_job_start(IntakeSource *s, const char *delivered, uint64_t digest,
                           const UnitLocksHeld *own) {
        UnitLockJob *b = calloc(1, sizeof *b);
        if (!b)
                return false;
        *b = (UnitLockJob){ .source = s, .spec = source_spec_ref(s->spec), .digest = digest };
        b->task = (SourceTask){ .job.run = lock_job_run,
                                .done = on_lock_job_done,
                                .drop = lock_job_drop };
        b->delivered = delivered ? strdup(delivered) : NULL;
        if (own)
                b->own = *own;
        if ((!delivered || b->delivered) && submit(s, s->lock_pool, &b->task) >= 0)
                return true;
        lock_job_free(b);
        return false;
}

/* Other nodes do not take over a unit that is marked. Without the mark they may deliver it again.
 */
static void mark_delivered(IntakeSource *s, const char *relative, uint64_t digest) {
        if (s->lock_pool && lock_job_start(s, relative, digest, NULL))
                s->n_marks++;
}

static void mark_again(IntakeSource *s) {
        size_t n = s->n_marks > 0 ? 0 : s->n_unmarked;
        for (size_t i = 0; i < n; i++) {
                mark_delivered(s, s->unmarked[i].relative, s->unmarked[i].digest);
                free(s->unmarked[i].relative);
        }
        s->n_unmarked -= n;
}

static void renew_locks(IntakeSource *s) {
        UnitLocksHeld own = { 0 };
        uint64_t now = intake_realtime_usec(s);
        if (s->is_renewing) /* the last renewal hangs */
                return;
        mark_again(s);
        LIST_FOREACH_ITEM (const Bundle, b, link, bundle_table_all(s->context->bundles)) {
                if (b->source != s || b->rec.is_redelivery)
                        continue;
                own.n_units++;
                own.oldest_usec = MAX(own.oldest_usec, now - MIN(now, b->rec.first_seen_usec));
        }
        s->is_renewing = lock_job_start(s, NULL, 0, &own);
}

static int on_renew_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)usec;
        renew_locks(userdata);
        return timer_rearm(source, UNIT_LOCKS_RENEW_USEC);
}

static void start_renewing(IntakeSource *s) {
        int r = s->lock_pool ? 0
                             : worker_pool_new(&s->lock_pool, s->context->event, "nc-share", 1,
                                               WORKER_NORMAL);
        if (r >= 0 && !s->renew_timer)
                r = timer_arm(&s->renew_timer, &(TimerOptions){ .event = s->context->event,
                                                                .usec = UNIT_LOCKS_RENEW_USEC,
                                                                .slack_usec = USEC_PER_SEC,
                                                                .handler = on_renew_timer,
                                                                .userdata = s });
        if (r < 0)
                log_error(r,
                          "source %s: cannot renew this node's locks; other nodes may deliver its "
                          "units, too",
                          s->config->name);
        else
                renew_locks(s);
}

/* ---- rows of bundles that have ended long ago: they go when their units are gone ---- */

#define ENDED_MAX 1024 /* that a scan checks */

static int on_ended(BundleRecord *rec, void *userdata) {
        ScanJob *j = userdata;
        j->ended[j->n_ended++] = (EndedUnit){ .rec = *rec, .is_held = true };
        *rec = (BundleRecord){ 0 };
        return 0;
}

/* Has the scan check the oldest of them after those of the scan before. */
static void add_ended(IntakeSource *s, ScanJob *j) {
        const IntakeContext *c = s->context;
        uint64_t now = intake_realtime_usec(s);
        const StoreFilter f = { .state = -1,
                                .after = s->last_ended[0] ? s->last_ended : NULL,
                                .limit = ENDED_MAX,
                                .ended_before_usec = now - MIN(now - 1, c->history_usec),
                                .surplus_usec = store_nth_seen_usec(c->store, INTAKE_HISTORY_MAX) };
        j->ended = c->history_usec > 0 ? calloc(ENDED_MAX, sizeof *j->ended) : NULL;
        int r = j->ended ? store_list(c->store, &f, on_ended, j) : 0;
        bool has_more = r == 0 && j->n_ended == ENDED_MAX;
        strcpy(s->last_ended, has_more ? j->ended[ENDED_MAX - 1].rec.id : "");
}

/* Drops them until it is late, in the transaction of its caller. After an error, which the store
 * reports, the rest is left for later scans. @return how many */
static size_t drop_ended(IntakeSource *s, ScanJob *j, uint64_t until_usec) {
        const IntakeContext *c = s->context;
        size_t n = 0;
        int r = 0;
        for (; r >= 0 && j->n_ended_handled < j->n_ended && intake_boot_usec(s) < until_usec;
             j->n_ended_handled++) {
                const EndedUnit *e = &j->ended[j->n_ended_handled];
                if (e->is_held || bundle_table_find_unit(c->bundles, e->rec.source, e->rec.path))
                        continue;
                r = store_drop_ended(c->store, e->rec.id, e->is_gone);
                n += r == 0;
        }
        if (r < 0)
                j->n_ended_handled = j->n_ended;
        return n;
}

static void report_dropped(const IntakeSource *s, const ScanJob *j) {
        if (j->n_dropped > 0)
                log_info("source %s: deleted the rows of %zu bundles that ended long ago and whose "
                         "files are gone (retention.history)",
                         s->config->name, j->n_dropped);
}

/* Rows of what was found are written, and those of what is gone are dropped, in slices of the loop,
 * each one transaction. */
#define FOUND_SLICE_USEC (20 * USEC_PER_MSEC)

static void end_scan(IntakeSource *s) {
        s->has_logged_postponed = s->is_postponing;
        s->has_scanned = true;
        s->is_scanning = s->flush_this_scan = false;
        s->scan_wanted = s->scan_wanted || s->found->has_more;
        sweep_attachments(s);
        intake_resweep_pins(s);
        report_dropped(s, s->found);
        s->found = scan_job_free(s->found);
        forget_old_hints(s);
        resume_parked(s);
        if (s->scan_wanted && has_much_space(s)) {
                intake_start_scan(s);
                return;
        }
        /* Scans again until all can be read: before that a drain is not safe. */
        if (s->hold == INTAKE_HOLDING && !s->scan_wanted && !s->has_parked && !s->scan_failed)
                set_hold(s, INTAKE_HELD);
        if (s->hold != INTAKE_HELD)
                arm_scan(s);
}

static int on_found(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        ScanJob *j = s->found;
        (void)source, (void)usec;
        uint64_t until = intake_boot_usec(s) + FOUND_SLICE_USEC;
        int r = store_begin(s->context->store);
        if (r < 0) { /* each row would wait for the database's lock by itself */
                report_postponed(s, r, j->n_found - j->n_handled);
                end_scan(s);
                return 0;
        }
        s->in_transaction = true;
        for (; j->n_handled < j->n_found && intake_boot_usec(s) < until; j->n_handled++) {
                ScanUnit *u = &j->found[j->n_handled];
                on_unit(s, u);
        }
        const size_t n_dropped = drop_ended(s, j, until);
        if (end_transaction(s) >= 0)
                j->n_dropped += n_dropped;
        if ((j->n_handled == j->n_found && j->n_ended_handled == j->n_ended) ||
            timer_arm(&s->found_timer, &(TimerOptions){ .event = s->context->event,
                                                        .slack_usec = USEC_PER_MSEC,
                                                        .handler = on_found,
                                                        .userdata = s }) < 0)
                end_scan(s); /* the next scan finds the rest */
        return 0;
}

static void report_locks(IntakeSource *s, const ScanJob *j) {
        if (j->lock_note && (!s->lock_note || strcmp(s->lock_note, j->lock_note) != 0))
                log_warning(0, "source %s: %s", s->config->name, j->lock_note);
        intake_set_note(&s->lock_note, j->lock_note);
        if (j->on_network)
                start_renewing(s);
}

static void report_root(IntakeSource *s, const ScanJob *j) {
        if (j->moved_aside) {
                log_warning(0,
                            "source %s: another user had made the directory for the agent's links, "
                            "which is now '%s'; find out why, and remove it",
                            s->config->name, j->moved_aside);
                s->context->on_discard("squatter", 1, s->context->userdata);
        }
        if (j->root_note && !s->root_note)
                log_warning(0, "source %s: %s", s->config->name, j->root_note);
        intake_set_note(&s->root_note, j->root_note);
}

#define READ_REMEDY "give the agent CAP_DAC_READ_SEARCH or read permission"

/* @return why the scan did not read all of the source, and the remedy; the caller's; NULL: it read
 * all, the source does not exist yet, or lack of memory */
static char *describe_unseen(const ScanJob *j) {
        _cleanup_free_ char *fixed = path_escape(j->spec->fixed);
        const char *path = fixed ? fixed : "?";
        if (j->result == -ELOOP)
                return strbuf_format("'%s' is, or lies behind, a symlink of another user, which is "
                                     "not followed; remove it, or write the path that it leads to",
                                     path);
        if (j->result == -ENOTDIR)
                return strbuf_format("'%s' is not a directory, or lies below a file; remove that "
                                     "file, or fix the source's path",
                                     path);
        if (j->result < 0 && j->result != -ENOENT)
                return strbuf_format("'%s' cannot be read: %s%s", path, strerror(-j->result),
                                     j->result == -EACCES || j->result == -EPERM ? "; " READ_REMEDY
                                                                                 : "");
        if (j->n_unreadable == 0)
                return NULL;
        return strbuf_format("%llu %s below '%s' cannot be read, such as '%s'; " READ_REMEDY,
                             (unsigned long long)j->n_unreadable,
                             j->n_unreadable == 1 ? "directory" : "directories", path,
                             j->unreadable ? j->unreadable : "?");
}

/* Logs why the scan did not read all: when the reason changes, not after every scan. */
static void report_unseen(IntakeSource *s, const ScanJob *j) {
        _cleanup_free_ char *why = describe_unseen(j);
        if (j->result == -ENOENT && !s->was_missing)
                log_info("source %s: '%s' does not exist yet, waiting for it", s->config->name,
                         s->spec->fixed);
        if (why && (!s->unseen || strcmp(s->unseen, why) != 0))
                log_warning(0, "source %s: %s; trying again in scan_interval", s->config->name,
                            why);
        if (j->n_unreadable != s->n_unreadable && j->n_unreadable > 0)
                s->context->on_discard("unreadable-directory", j->n_unreadable,
                                       s->context->userdata);
        intake_set_note(&s->unseen, why);
        s->n_unreadable = j->n_unreadable;
        s->scan_failed = j->n_unreadable > 0 || (j->result < 0 && j->result != -ENOENT);
        s->was_missing = j->result == -ENOENT;
}

static void on_scanned(SourceTask *t) {
        _cleanup_(scan_job_freep) ScanJob *j = CONTAINER_OF(t, ScanJob, task);
        IntakeSource *s = j->source;
        s->scan_usec = j->duration_usec;
        report_unseen(s, j);
        report_root(s, j);
        report_locks(s, j);
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++) {
                if (s->n_left_out[skip] < j->left_out.skipped[skip])
                        report_skip(s, NULL, &j->left_out, (ScanSkip)skip, s->n_left_out[skip]);
                s->n_left_out[skip] = j->left_out.skipped[skip];
        }
        start_watch(s, j); /* calls on_rescan when everything is watched: what came in between is
                              not lost */
        if (j->result == 0) {
                unit_table_done(&s->table);
                s->table = j->seen;
                j->seen = (UnitTable){ 0 };
        }
        s->is_postponing = s->has_late = false;
        s->found = TAKE_PTR(j);
        (void)on_found(NULL, 0, s);
}

static void arm_scan(IntakeSource *s) {
        uint64_t usec =
                MIN(s->config->scan_interval_usec, s->has_late ? USEC_PER_MINUTE : UINT64_MAX);
        int r = timer_arm(&s->scan_timer, &(TimerOptions){ .event = s->context->event,
                                                           .usec = usec,
                                                           .slack_usec = usec / 20,
                                                           .handler = on_scan_timer,
                                                           .userdata = s });
        if (r < 0)
                log_error(r, "source %s: cannot arm the scan timer; only events find what is new",
                          s->config->name);
}

static int add_known(ScanJob *j, const char *path) {
        if (!path_is_below(path, j->spec->fixed))
                return 0;
        const char *relative = source_spec_relative(j->spec, path);
        return unit_table_has_path(&j->known, relative) ? 0
                                                        : unit_table_put(&j->known, relative, 0);
}

/* Adds the units of dumps that a scan does not recognise by their names. */
static int add_nameless(IntakeSource *s, ScanJob *j) {
        int r = 0;
        if (s->spec->scan.kind != SOURCE_NEURON_CORE_DUMP)
                return 0;
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints)
                if (r >= 0 && n->source == s)
                        r = add_known(j, n->path);
        LIST_FOREACH_ITEM (const Bundle, b, link, bundle_table_all(s->context->bundles))
                if (r >= 0 && b->source == s &&
                    !unit_is_evidence_by_name(SOURCE_NEURON_CORE_DUMP, s->spec->template,
                                              source_spec_relative(s->spec, b->rec.path)))
                        r = add_known(j, b->rec.path);
        return r;
}

static void intake_start_scan(IntakeSource *s) {
        if (s->hold == INTAKE_HELD)
                return;
        if (s->is_scanning || s->load_timer) {
                s->scan_wanted = true;
                return;
        }
        ScanJob *j = NULL;
        int r = scan_job_new(&j, s->spec, &s->table, s->context->active.max);
        if (r >= 0)
                r = add_nameless(s, j);
        if (r >= 0) {
                add_ended(s, j);
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
        s->scan_start_usec = s->context->clock->boottime_usec(s->context->clock);
        s->scan_wanted = false;
        s->flush_this_scan = s->flush_wanted;
        s->flush_wanted = false;
}

void intake_source_flush(IntakeSource *s, bool flush) {
        s->flush_wanted = flush;
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, bundle_table_all(s->context->bundles))
                if (flush && b->source == s && b->rec.state == BUNDLE_SETTLING)
                        intake_flush_bundle(b);
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
        if (path_is_below(path, s->spec->fixed))
                intake_remember(s, source_spec_relative(s->spec, path), digest);
        return 0;
}

/* Some thousand rows at a time, so that nobody waits for them. Whatever asks meanwhile is answered
 * by the rows themselves. */
static int load_known(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)usec;
        int r = store_list_ended(s->context->store, s->config->name, &s->loaded_path,
                                 remember_stored, s);
        if (r < 0)
                log_warning(r, "source %s: cannot read what is known of its units",
                            s->config->name);
        if (r >= 0 && s->loaded_path && timer_rearm(source, 0) >= 0)
                return 0;
        s->load_timer = sd_event_source_disable_unref(s->load_timer);
        intake_start_scan(s);
        return 0;
}

int intake_source_new(IntakeSource **ret, IntakeContext *context, const ConfigSource *config) {
        IntakeSource *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (IntakeSource){ .context = context, .config = config, .has_parked = true };
        if (context->active.max == 0)
                context->active = (Owners){ .what = "active units", .max = INTAKE_ACTIVE_MAX };
        if (context->held.max == 0)
                context->held = (Owners){ .what = "held files", .max = max_held() };
        s->rests = (Owners){ .what = "pauses", .max = UINT64_MAX };
        s->probing = (Owners){ .what = "paths", .max = PATH_THREADS, .max_each = 1 };
        if (context->new_units.max == 0)
                context->new_units = (Owners){ .what = "new units of an owner in a minute",
                                               .max = UINT64_MAX,
                                               .max_each = INTAKE_NEW_MAX };
        if (context->hints.max == 0) {
                context->hints = (Owners){ .what = "units of hooks", .max = HINTS_MAX };
                list_init(&context->hook_hints);
        }
        if (context->watched.max == 0)
                context->watched = (Owners){ .what = "watched directories",
                                             .max = INTAKE_WATCHED_MAX,
                                             .max_each = INTAKE_WATCHED_MAX / 2 };
        pending_init(&s->pending);
        pending_init(&s->rechecks);
        pending_init(&s->attached);
        list_init(&s->tasks);
        int r = source_spec_new(&s->spec, config, context->instance_id, context->proc_root);
        if (r >= 0 && context->trusted_uids)
                r = pins_set_trusted(s->spec->pins, context->trusted_uids);
        if (r >= 0 && context->link_list)
                r = pins_list_places_in(s->spec->pins, context->link_list);
        if (r >= 0)
                r = worker_pool_new(&s->probes, context->event, "nc-probe", 1, WORKER_NORMAL);
        if (r >= 0)
                r = worker_pool_new(&s->paths, context->event, "nc-path", PATH_THREADS,
                                    WORKER_NORMAL);
        if (r >= 0)
                r = worker_pool_new(&s->scans, context->event, "nc-scan", 1, WORKER_NORMAL);
        if (r >= 0)
                r = timer_arm(&s->load_timer, &(TimerOptions){ .event = context->event,
                                                               .slack_usec = USEC_PER_MSEC,
                                                               .handler = load_known,
                                                               .userdata = s });
        if (r < 0) {
                intake_source_free(s);
                return r;
        }
        intake_sweep_pins(s);
        *ret = s;
        return 0;
}

/* How long a stop waits for workers that are busy. */
#define STOP_USEC (2 * USEC_PER_SEC)

static bool is_any_running(const IntakeSource *s) {
        LIST_FOREACH (l, &s->tasks)
                if (worker_pool_is_running(&CONTAINER_OF(l, SourceTask, mine)->job))
                        return true;
        return false;
}

/* @return whether marks of deliveries are still to be written. Without its mark another node would
 * take a delivered unit over and deliver it again. */
static bool has_pending_marks(const IntakeSource *s) {
        LIST_FOREACH_ITEM (SourceTask, t, mine, (ListLink *)&s->tasks)
                if (t->done == on_lock_job_done && CONTAINER_OF(t, UnitLockJob, task)->delivered &&
                    !worker_pool_poll(&t->job))
                        return true;
        return false;
}

/* Queued tasks are dropped; those that run are waited for a little. One that sits in a hung mount
 * is abandoned with what it holds. */
static void stop_workers(IntakeSource *s) {
        worker_pool_abandon(s->probes);
        worker_pool_abandon(s->paths);
        worker_pool_abandon(s->scans);
        uint64_t until = intake_boot_usec(s) + STOP_USEC;
        while (has_pending_marks(s) && intake_boot_usec(s) < until)
                (void)usleep(2 * USEC_PER_MSEC); /* as below */
        worker_pool_abandon(s->lock_pool);
        while (is_any_running(s) && intake_boot_usec(s) < until)
                (void)usleep(2 * USEC_PER_MSEC); /* a signal only ends the wait sooner */
        LIST_FOREACH_ITEM_SAFE (SourceTask, t, mine, &s->tasks) {
                list_remove(&t->mine);
                if (!worker_pool_is_running(&t->job))
                        t->drop(t);
        }
}

IntakeSource *intake_source_free(IntakeSource *s) {
        if (!s)
                return NULL;
        LIST_FOREACH_ITEM (Bundle, b, link, bundle_table_all(s->context->bundles)) {
                if (b->source == s) {
                        release_active(s, b);
                        b->source = NULL;
                        b->probing = false;
                        b->timer = sd_event_source_disable_unref(b->timer);
                }
        }
        dirwatch_free(s->watch);
        stop_workers(s);
        sd_event_source_disable_unref(s->load_timer);
        sd_event_source_disable_unref(s->scan_timer);
        sd_event_source_disable_unref(s->found_timer);
        scan_job_free(s->found);
        sd_event_source_disable_unref(s->probe_timer);
        free(s->loaded_path);
        pending_done(&s->pending);
        owners_done(&s->probing);
        owners_done(&s->rests);
        pending_done(&s->rechecks);
        pending_done(&s->attached);
        sd_event_source_disable_unref(s->attached_timer);
        sd_event_source_disable_unref(s->renew_timer);
        hook_hints_done(s);
        unit_table_done(&s->table);
        source_spec_unref(s->spec);
        free(s->note);
        free(s->hold_note);
        free(s->root_note);
        free(s->lock_note);
        free(s->unseen);
        free(s->unlisted_links);
        for (size_t i = 0; i < s->n_unmarked; i++)
                free(s->unmarked[i].relative);
        free(s->unmarked);
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
        return s->spec;
}

/* A mount whose server is away never answers. A scan counts as stalled after the longer of these:
 * one minute, or ten times the duration of the last scan. */
#define SCAN_STALL_USEC (60 * USEC_PER_SEC)
#define SCAN_STALL_FACTOR 10

bool intake_source_is_stalled(const IntakeSource *s) {
        uint64_t limit = MAX(SCAN_STALL_USEC, SCAN_STALL_FACTOR * s->scan_usec);
        return s->is_scanning && !s->found &&
               s->context->clock->boottime_usec(s->context->clock) - s->scan_start_usec > limit;
}

const char *intake_source_unseen(const IntakeSource *s) {
        if (intake_source_is_stalled(s))
                return "its scan has not ended for a minute or more: its file system hangs, or is "
                       "very slow";
        return !s->has_scanned     ? "it has not been scanned completely yet"
               : s->unseen         ? s->unseen
               : s->unlisted_links ? s->unlisted_links
               : s->scan_failed ? "what was found there cannot be recorded in the state database; "
                                  "free space in the state directory, or fix its disk"
                                : NULL;
}

static const char *degraded_by(const IntakeSource *s) {
        return intake_source_is_stalled(s) || (s->has_scanned && s->scan_failed)
                       ? intake_source_unseen(s)
               : s->root_note ? s->root_note
               : s->watch && dirwatch_n_left_out(s->watch)
                       ? "some directories are not watched, since "
                         "there are too many: what is new there "
                         "is found by the next scan; see "
                         "`bounded` in the status"
                       : NULL;
}

const char *intake_source_view(const IntakeSource *s, SourceView *ret) {
        const char *degraded = degraded_by(s);
        const char *note = s->lock_note ? s->lock_note : s->hold_note ? s->hold_note : s->note;
        *ret = (SourceView){ .name = s->config->name,
                             .kind = source_kind_name((SourceKind)s->config->kind),
                             .path = s->config->path,
                             .watch = s->watch ? "inotify" : "scan",
                             .note = degraded ? degraded : note,
                             .unseen = s->has_scanned || intake_source_is_stalled(s)
                                               ? intake_source_unseen(s)
                                               : NULL,
                             .n_watches = s->watch ? dirwatch_n_watches(s->watch) : 0,
                             .n_overflows = s->watch ? dirwatch_n_overflows(s->watch) : 0,
                             .n_others = s->others.n_units,
                             .n_other_nodes = s->others.n_nodes,
                             .others_oldest_seconds = s->others.oldest_usec / USEC_PER_SEC,
                             .n_dead_links = s->others.n_dead_links,
                             .last_scan_seconds = (double)s->scan_usec / 1e6 };
        return degraded;
}

/* A renewal publishes what this node holds. No evidence depends on it, so that nothing waits for
 * it. */
static bool is_renewal(const SourceTask *t) {
        return t->done == on_lock_job_done && !CONTAINER_OF(t, UnitLockJob, task)->delivered;
}

bool intake_source_is_busy(const IntakeSource *s) {
        LIST_FOREACH_ITEM (SourceTask, t, mine, (ListLink *)&s->tasks)
                if (!is_renewal(t))
                        return true;
        return false;
}

bool intake_source_is_idle(const IntakeSource *s) {
        return s->has_scanned && !s->is_scanning && !s->scan_wanted && s->n_probes == 0 &&
               s->n_marks == 0 && s->n_releases == 0 && !s->is_listing && !s->has_parked &&
               !s->has_late && pending_is_empty(&s->pending) && pending_is_empty(&s->attached);
}
