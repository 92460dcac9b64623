/* From a bundle to READY: the hints of hooks, and probes until it is complete by the rules. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/intake_private.h"
#include "agent/store/notes_store.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

/* ---- hints of hooks: how many are running, whether they have finished, whether something is still
 * to be attached. Kept beside the bundles, since a hook may run before its directory is created,
 * and in memory only: after a start the notes in the store replace them. ---- */

/* So many units are remembered. Beyond that the user with most of them loses one, rather one that
 * nothing waits for. */
#define UNITS_MAX 1024
/* Hints about a unit without a bundle are forgotten after so long, … */
#define FORGET_USEC (10 * USEC_PER_MINUTE)
/* … and the unit is probed so often, for so long after the last one. */
#define SEEK_MIN_USEC (100 * USEC_PER_MSEC)
#define SEEK_MAX_USEC (5 * USEC_PER_SEC)
#define SEEK_FOR_USEC USEC_PER_MINUTE
/* A hook may run for hook.deadline and this. */
#define GRACE_USEC USEC_PER_SEC
/* Notes that follow each other hold a unit for so much longer than one, in all: any user may send
 * them. */
#define MORE_NOTES_USEC USEC_PER_MINUTE
typedef struct HookHint { /* of the hooks of one user about one unit */
        ListLink link;    /* oldest first */
        char *path;
        uid_t uid;
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

static HookHint *find_hint(IntakeSource *s, const char *path, uid_t uid) {
        LIST_FOREACH (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (n->uid == uid && is_about(n, path))
                        return n;
        }
        return NULL;
}

static void hint_free(IntakeSource *s, HookHint *n) {
        list_remove(&n->link);
        s->n_hook_hints--;
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

static int highest_first(const void *a, const void *b) {
        uid_t x = *(const uid_t *)a, y = *(const uid_t *)b;
        return x < y ? 1 : x > y ? -1 : 0;
}

/* @return the uid with most of those that are awaited, or are not; of several the highest uid,
 * which is one of a user namespace; 0 if there are none */
static uid_t uid_with_most(IntakeSource *s, bool awaited) {
        uid_t uids[UNITS_MAX], most = 0;
        size_t n_uids = 0, n_most = 0;
        LIST_FOREACH (l, &s->hook_hints) {
                const HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (is_awaited(n) == awaited && n_uids < UNITS_MAX)
                        uids[n_uids++] = n->uid;
        }
        qsort(uids, n_uids, sizeof *uids, highest_first);
        for (size_t i = 0, from = 0; i < n_uids; i++) {
                if (uids[i] != uids[from])
                        from = i;
                if (i - from + 1 > n_most) {
                        n_most = i - from + 1;
                        most = uids[i];
                }
        }
        return most;
}

static bool evict_one(IntakeSource *s, bool awaited) {
        uid_t uid = uid_with_most(s, awaited);
        LIST_FOREACH_SAFE (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (n->uid == uid && is_awaited(n) == awaited) {
                        hint_free(s, n);
                        return true;
                }
        }
        return false;
}

static void evict_hint(IntakeSource *s) {
        LIST_FOREACH (l, &s->hook_hints)
                expire_hooks(s, CONTAINER_OF(l, HookHint, link));
        if (!evict_one(s, false))
                (void)evict_one(s, true); /* cannot fail */
}

/* @return NULL: not of this source, or memory is short */
static HookHint *get_hint(IntakeSource *s, const char *path, uid_t uid) {
        if (!path_is_below(path, s->terms->fixed))
                return NULL;
        HookHint *n = find_hint(s, path, uid);
        if (!n) {
                if (s->n_hook_hints >= UNITS_MAX)
                        evict_hint(s);
                n = calloc(1, sizeof *n);
                if (!n || !(n->path = strdup(path))) {
                        free(n);
                        return NULL;
                }
                n->uid = uid;
                list_append(&s->hook_hints, &n->link);
                s->n_hook_hints++;
        }
        n->last_usec = intake_boot_usec(s);
        return n;
}

static Bundle *bundle_of(IntakeSource *s, const char *path) {
        return bundle_table_find_unit(s->context->bundles, s->config->name, path);
}

static void probe_hinted_unit(IntakeSource *s, const char *path) {
        Bundle *b = bundle_of(s, path);
        if (!b)
                intake_probe_path(s, intake_relative(s, path));
        else if (b->source == s)
                intake_probe_bundle(b);
}

/* ---- units that are not there yet ---- */

static void arm_seek(IntakeSource *s);

static int on_seek(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source, (void)usec;
        uint64_t now = intake_boot_usec(s);
        LIST_FOREACH_SAFE (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (bundle_of(s, n->path))
                        continue;
                if (now - n->last_usec > FORGET_USEC)
                        hint_free(s, n);
                else if (now - n->last_usec < SEEK_FOR_USEC)
                        intake_probe_path(s, intake_relative(s, n->path));
        }
        arm_seek(s);
        return 0;
}

/* The younger the last hint about one that is missing, the sooner. */
static uint64_t seek_in_usec(uint64_t age_usec) {
        return age_usec < SEEK_FOR_USEC ? MIN(MAX(age_usec / 2, SEEK_MIN_USEC), SEEK_MAX_USEC)
                                        : SEEK_FOR_USEC;
}

static void arm_seek(IntakeSource *s) {
        uint64_t now = intake_boot_usec(s), wait = UINT64_MAX;
        LIST_FOREACH (l, &s->hook_hints) {
                const HookHint *n = CONTAINER_OF(l, HookHint, link);
                uint64_t in_usec = seek_in_usec(now - n->last_usec);
                if (!bundle_of(s, n->path))
                        wait = MIN(wait, in_usec);
        }
        if (wait == UINT64_MAX)
                return;
        int r = timer_arm(&s->hints_timer, &(TimerOptions){ .event = s->context->event,
                                                            .usec = wait,
                                                            .slack_usec = wait / 20,
                                                            .handler = on_seek,
                                                            .userdata = s });
        if (r < 0)
                log_error(
                        r,
                        "source %s: cannot arm a timer; only events and scans find announced units",
                        s->config->name);
}

/* ---- hints ---- */

void intake_source_on_hook_started(IntakeSource *s, const char *unit_path, uid_t uid) {
        HookHint *n = get_hint(s, unit_path, uid);
        if (!n)
                return;
        n->n_uncounted++;
        n->n_open++;
        if (n->first_open_usec == 0)
                n->first_open_usec = n->last_usec;
        n->open_until_usec =
                MIN(n->last_usec, n->first_open_usec + MORE_NOTES_USEC) + longest_usec(s);
        probe_hinted_unit(s, unit_path);
        arm_seek(s);
}

void intake_source_on_hook_finished(IntakeSource *s, const char *unit_path, uid_t uid) {
        HookHint *n = get_hint(s, unit_path, uid);
        if (!n)
                return;
        n->n_open -= n->n_open > 0;
        n->finished = true;
        probe_hinted_unit(s, unit_path);
        arm_seek(s);
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
        Promise *promised = realloc(n->promised, (n->n_promised + 1) * sizeof *promised);
        if (!promised)
                return; /* it is collected anyway, but not missed */
        n->promised = promised;
        promised[n->n_promised] = (Promise){ .name = strdup(name) };
        n->n_promised += promised[n->n_promised].name != NULL;
}

void intake_source_expect_file(IntakeSource *s, const char *unit_path, uid_t uid,
                               const char *name) {
        HookHint *n = get_hint(s, unit_path, uid);
        if (n)
                add_promise(n, name);
}

void intake_source_missing(IntakeSource *s, const char *unit_path) {
        HookHint *n = get_hint(s, unit_path, 0); /* the agent itself reports it */
        if (n)
                add_promise(n, "");
}

void intake_source_set_pending(IntakeSource *s, const char *unit_path, bool pending) {
        HookHint *n = get_hint(s, unit_path, 0); /* the agent itself reports it */
        if (!n)
                return;
        n->pending = pending;
        Bundle *b = bundle_of(s, unit_path);
        if (!pending && b && b->source == s)
                intake_probe_bundle(b);
}

/* ---- use of the hints ---- */

static void add_hint_facts(IntakeSource *s, const Bundle *b, IntakeFacts *facts) {
        bool any_finished = false;
        LIST_FOREACH (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (!is_about(n, b->rec.path) || !uid_may_annotate(&b->owners, n->uid))
                        continue;
                expire_hooks(s, n);
                facts->n_hooks += n->n_open;
                any_finished = any_finished || n->finished;
                facts->pending = facts->pending || n->pending;
                facts->missing = facts->missing || (n->n_promised > 0 && n->n_open == 0);
        }
        facts->hooks_finished = any_finished && facts->n_hooks == 0;
}

static void report_ignored_hints(IntakeSource *s, const Bundle *b) {
        LIST_FOREACH (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (n->n_uncounted == 0 || !is_about(n, b->rec.path) ||
                    uid_may_annotate(&b->owners, n->uid))
                        continue;
                log_dump(b->rec.id, LOG_NOTICE, 0,
                         "hook notes of uid %u are ignored: it has files of uid %u",
                         (unsigned)n->uid, (unsigned)b->owners.uid);
                if (s->context->on_unheard)
                        s->context->on_unheard(n->n_uncounted, s->context->userdata);
                n->n_uncounted = 0;
        }
}

static int add_expected(const HookHint *n, ProbeJob *p) {
        size_t n_wanted = p->n_promised + n->n_promised;
        if (n->n_promised == 0)
                return 0;
        Promise *promised = realloc(p->promised, n_wanted * sizeof *promised);
        if (!promised)
                return -ENOMEM;
        p->promised = promised;
        for (size_t i = 0; i < n->n_promised; i++) {
                char *name = strdup(n->promised[i].name);
                if (!name)
                        return -ENOMEM;
                promised[p->n_promised++] = (Promise){ .name = name };
        }
        return 0;
}

static int expect_promised(IntakeSource *s, const char *unit_path, ProbeJob *p) {
        LIST_FOREACH (l, &s->hook_hints) {
                const HookHint *n = CONTAINER_OF(l, HookHint, link);
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
        LIST_FOREACH (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                for (size_t i = 0; is_about(n, unit_path) && i < p->n_promised; i++)
                        if (p->promised[i].is_seen)
                                remove_promise(n, p->promised[i].name);
        }
}

typedef struct LoadContext {
        IntakeSource *source;
        uint64_t now_usec, longest_usec;
} LoadContext;

static int on_stored(const StoredNote *stored, void *userdata) {
        const LoadContext *t = userdata;
        uint64_t until = stored->received_usec + t->longest_usec;
        /* With a clock that was set back it would wait for long. */
        bool is_open = stored->finished_usec == 0 && stored->received_usec <= t->now_usec &&
                       until > t->now_usec;
        HookHint *n = get_hint(t->source, stored->unit_path, stored->uid);
        if (!n)
                return 0;
        n->n_uncounted++;
        if (is_open) {
                n->n_open = 1;
                n->first_open_usec = n->last_usec;
                n->open_until_usec = MAX(n->open_until_usec, n->last_usec + (until - t->now_usec));
        }
        n->finished = n->n_open == 0;
        return 0;
}

static void load_hints(IntakeSource *s, const Bundle *b) {
        LoadContext t = { .source = s,
                          .now_usec = intake_realtime_usec(s),
                          .longest_usec = longest_usec(s) };
        if (b->rec.state == BUNDLE_SETTLING)
                (void)store_note_list(s->context->store,
                                      &(StoredUnit){ b->rec.source, b->rec.path }, on_stored,
                                      &t); /* none: as without hooks */
}

void hook_hints_on_final(IntakeSource *s, const char *unit_path) {
        LIST_FOREACH_SAFE (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (is_about(n, unit_path) && !is_awaited(n))
                        hint_free(s, n);
        }
}

void hook_hints_done(IntakeSource *s) {
        LIST_FOREACH_SAFE (l, &s->hook_hints)
                hint_free(s, CONTAINER_OF(l, HookHint, link));
        sd_event_source_disable_unref(s->hints_timer);
}

/* ---- probes until rules.h decides that a bundle is complete ---- */

static int on_bundle_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        intake_probe_bundle(userdata);
        return 0;
}

void intake_probe_bundle_in(Bundle *b, uint64_t usec) {
        int r = timer_arm(&b->timer, &(TimerOptions){ .event = b->source->context->event,
                                                      .usec = usec,
                                                      .slack_usec = usec / 20,
                                                      .handler = on_bundle_timer,
                                                      .userdata = b });
        if (r < 0)
                log_dump(b->rec.id, LOG_ERR, r, "cannot arm a timer, it waits for the next scan");
}

static const char *remedy_for(ScanSkip skip) {
        switch (skip) {
        case SCAN_SKIP_SYMLINK:
        case SCAN_SKIP_HARDLINK:
                return "copy the file itself into the dump if it belongs there";
        case SCAN_SKIP_UNREADABLE:
                return "give the agent CAP_DAC_READ_SEARCH or read permission";
        case SCAN_SKIP_TOO_MANY:
                return "raise the source's max_files";
        case SCAN_SKIP_TOO_BIG:
                return "raise the source's max_bytes";
        case SCAN_SKIP_TOO_DEEP:
                return "make the tree flatter";
        default:
                return "only regular files are collected";
        }
}

/* Members that were left out are logged and counted, and where evidence may be missing the bundle
 * is labelled. */
static void record_losses(IntakeSource *s, Bundle *b, const ScanUnit *u) {
        json_t *reasons = json_array();
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++) {
                if (!u->skipped[skip] || skip == SCAN_SKIP_FOREIGN || skip == SCAN_SKIP_EXCLUDED)
                        continue;
                _cleanup_free_ char *text = NULL;
                if (asprintf(&text, "%s: %llu left out, such as '%s'",
                             scan_skip_name((ScanSkip)skip), (unsigned long long)u->skipped[skip],
                             u->skipped_example[skip] ? u->skipped_example[skip] : "?") < 0)
                        continue;
                if (scan_skip_is_loss((ScanSkip)skip))
                        json_array_append_new(reasons, json_string(text));
                log_dump(b->rec.id, LOG_WARNING, 0, "%s; %s", text, remedy_for((ScanSkip)skip));
                s->context->on_discard(scan_skip_name((ScanSkip)skip), u->skipped[skip],
                                       s->context->userdata);
        }
        free(b->rec.incomplete);
        b->rec.incomplete = json_array_size(reasons) ? json_dumps(reasons, JSON_COMPACT) : NULL;
        b->rec.complete = json_array_size(reasons) == 0;
        json_decref(reasons);
}

static void add_reason(Bundle *b, const char *reason) {
        json_t *reasons = b->rec.incomplete ? json_loads(b->rec.incomplete, 0, NULL) : NULL;
        if (!reasons)
                reasons = json_array();
        json_array_append_new(reasons, json_string(reason));
        free(b->rec.incomplete);
        b->rec.incomplete = json_dumps(reasons, JSON_COMPACT);
        b->rec.complete = false;
        json_decref(reasons);
}

#define MISSING_MAX 8 /* that are named */
static void add_missing(Bundle *b, const char *promised) {
        if (!promised[0]) {
                const char *why = "missing: the copy out of its container ended before all was "
                                  "there";
                add_reason(b, why);
                log_dump(b->rec.id, LOG_WARNING, 0, "%s", why);
                return;
        }
        _cleanup_free_ char *name = path_escape(promised), *text = NULL;
        if (asprintf(&text, "missing: '%s' was promised by its hook", name ? name : "?") < 0)
                text = NULL;
        add_reason(b, text ? text : "missing: a file that was promised by its hook");
        log_dump(b->rec.id, LOG_WARNING, 0, "%s; the hook died, or its file system does not answer",
                 text ? text : "a promised file is missing");
}

/* Labels what was promised and has not been seen. */
static void record_missing(IntakeSource *s, Bundle *b) {
        size_t n_missing = 0;
        LIST_FOREACH (l, &s->hook_hints) {
                const HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (!is_about(n, b->rec.path) || !uid_may_annotate(&b->owners, n->uid))
                        continue;
                for (size_t i = 0; i < n->n_promised; i++)
                        if (++n_missing <= MISSING_MAX)
                                add_missing(b, n->promised[i].name);
        }
        if (n_missing > MISSING_MAX)
                add_reason(b, "missing: and more that was promised by hooks");
}

typedef struct Granted {
        const Owners *owners;
        const char *same; /* NULL: any */
        char *found;
} Granted;

static int on_prefix(const StoredNote *stored, void *userdata) {
        Granted *g = userdata;
        if (!stored->s3_prefix || !uid_may_annotate(g->owners, stored->uid) ||
            (g->same && strcmp(g->same, stored->s3_prefix) != 0))
                return 0;
        g->found = strdup(stored->s3_prefix);
        return g->found ? 1 : -ENOMEM;
}

void intake_set_s3_prefix(Store *store, Bundle *b) {
        BundleRecord *rec = &b->rec;
        Granted g = { .owners = &b->owners, .same = rec->s3_prefix };
        const StoredUnit unit = { rec->source, rec->path };
        bool may_get_one = !rec->supplement_of[0] && !bundle_has_begun(b);
        if (!rec->s3_prefix && !may_get_one)
                return;
        (void)store_note_list(store, &unit, on_prefix, &g); /* none: own */
        if (!g.found && g.same && may_get_one) {
                g.same = NULL;
                (void)store_note_list(store, &unit, on_prefix, &g); /* as above */
        }
        free(rec->s3_prefix);
        rec->s3_prefix = g.found;
}

static void make_ready(IntakeSource *s, Bundle *b, const ScanUnit *u, const char *incomplete) {
        if (u->n_files > 0 || !incomplete)
                record_losses(s, b, u);
        if (incomplete) {
                add_reason(b, incomplete);
                b->tolerant = true; /* it may still change, but waiting is over */
        }
        record_missing(s, b);
        report_ignored_hints(s, b);
        intake_set_s3_prefix(s->context->store, b);
        sd_event_source_set_enabled(b->timer, SD_EVENT_OFF);
        if (bundle_set_state(s->context->bundles, b, BUNDLE_READY, incomplete) == 0)
                s->context->on_ready(b, s->context->userdata);
}

/* How the members are held. */
static void apply_hold(IntakeSource *s, Bundle *b, ProbeJob *p) {
        if (p->links_held != b->rec.links_held && p->unit.n_files > 0)
                b->rec.links_held = p->links_held;
        if (p->unit.n_files > 0 && !p->links_held) {
                held_files_done(&b->held);
                b->held = p->held;
                p->held = (HeldFiles){ 0 };
        }
        if (p->hold_error && (!s->hold_note || strcmp(s->hold_note, p->hold_error) != 0)) {
                intake_set_note(&s->hold_note, p->hold_error);
                log_warning(0, "source %s: %s", s->config->name, p->hold_error);
        }
}

static void record_process(Bundle *b, const ProbeJob *p) {
        if (p->process_seen && !b->process_seen) {
                b->process_seen = true;
                b->process_start = p->process_start;
        }
}

/* Copies what was counted into the record. */
static void apply_facts(IntakeSource *s, Bundle *b, ProbeJob *p) {
        bool changed = p->unit.digest != b->rec.digest;
        bool was_held = b->rec.links_held;
        b->rec.digest = p->unit.digest;
        b->rec.n_files = p->unit.n_files;
        b->rec.bytes = p->unit.bytes;
        apply_hold(s, b, p);
        record_process(b, p);
        if (changed || was_held != b->rec.links_held)
                bundle_save(s->context->bundles, b);
}

static void update_quiet(IntakeSource *s, Bundle *b, bool changed) {
        uint64_t now = intake_boot_usec(s);
        b->quiet_usec = intake_quiet_usec(changed, now - b->checked_boot_usec, b->quiet_usec);
        b->checked_boot_usec = now;
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
        switch (answer->verdict) {
        case INTAKE_WAIT:
                keep_waiting(b, answer, p->duration_usec);
                break;
        case INTAKE_COMPLETE:
                make_ready(s, b, &p->unit, NULL);
                break;
        case INTAKE_INCOMPLETE:
                make_ready(s, b, &p->unit, answer->why);
                break;
        case INTAKE_VANISHED:
                (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                                       answer->why); /* a refused transition is logged there */
                break;
        }
}

/* There are files, but none that may be collected: this is not reported as removed. */
static void give_up_unreadable(IntakeSource *s, Bundle *b, const ScanUnit *u) {
        record_losses(s, b, u);
        _cleanup_free_ char *reason = NULL;
        if (asprintf(&reason, "no file of it may be collected: %s", b->rec.incomplete) < 0)
                reason = NULL;
        (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                               reason); /* a refused transition is logged there */
}

static bool has_losses(const ScanUnit *u) {
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++)
                if (u->skipped[skip] && scan_skip_is_loss((ScanSkip)skip))
                        return true;
        return false;
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

static void on_probed(IntakeSource *s, ProbeJob *p) {
        Bundle *b = bundle_table_find(s->context->bundles, p->bundle_id);
        if (!b || b->source != s)
                return; /* cancelled meanwhile */
        b->probing = false;
        b->is_replaced = b->is_replaced || p->met_another;
        if (b->rec.state != BUNDLE_SETTLING)
                return;
        if (p->result < 0 && p->result != -ENOENT) {
                log_dump(b->rec.id, LOG_WARNING, p->result, "cannot read '%s', trying again",
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
        if (gone && has_losses(&p->unit) && !b->rec.links_held) {
                give_up_unreadable(s, b, &p->unit);
                return;
        }
        update_quiet(s, b, seen && p->unit.digest != b->rec.digest);
        if (!gone)
                apply_facts(s, b, p);
        else if (seen) /* our links may have grown */
                b->rec.digest = p->unit.digest;
        IntakeLimits terms = { .settle_usec = s->config->settle_usec,
                               .max_wait_usec = s->config->max_wait_usec,
                               .waited_usec = intake_boot_usec(s) - b->seen_boot_usec,
                               .flush = b->flush };
        IntakeFacts facts = facts_of(s, b, p);
        facts.gone = gone;
        if (seen)
                b->owners = p->owners;
        remove_seen(s, b->rec.path, p);
        add_hint_facts(s, b, &facts);
        /* Leases and headers are checked only when it could be complete: for most probes a walk is
         * enough. */
        if (seen && !p->check_writers && intake_is_due(&facts, &terms)) {
                b->check = true;
                intake_probe_bundle(b);
                return;
        }
        IntakeAnswer answer = intake_decide(&facts, &terms);
        if (!answer.only_pending)
                b->whole_boot_usec = 0;
        else if (b->whole_boot_usec == 0)
                b->whole_boot_usec = intake_boot_usec(s);
        apply_answer(s, b, p, &answer);
}

static void accept_attachments(IntakeSource *s, Bundle *b) {
        if (bundle_set_state(s->context->bundles, b, BUNDLE_READY, NULL) == 0)
                s->context->on_ready(b, s->context->userdata);
}

void intake_probe_bundle(Bundle *b) {
        IntakeSource *s = b->source;
        /* Nothing may act on a bundle before its row is durable. */
        if (!s || b->rec.state != BUNDLE_SETTLING || b->uncommitted)
                return;
        if (b->probing) {
                b->dirty = true;
                return;
        }
        if (bundle_is_of_attachments(&b->rec)) { /* they are complete, and ours */
                accept_attachments(s, b);
                return;
        }
        ProbeJob *p;
        if (probe_job_new(&p, s->terms, intake_relative(s, b->rec.path)) < 0) {
                intake_probe_bundle_in(b, USEC_PER_SEC);
                return;
        }
        strcpy(p->bundle_id, b->rec.id);
        if (b->rec.supplement_of[0])
                (void)store_get_earlier_prints(s->context->store, &b->rec, &p->shipped,
                                               &p->n_shipped); /* none: all is new */
        if (expect_promised(s, b->rec.path, p) < 0) {
                probe_job_free(p);
                intake_probe_bundle_in(b, USEC_PER_SEC);
                return;
        }
        p->hold = true;
        bool can_names_repeat = s->terms->scan.kind == SOURCE_DIRECTORY ||
                                s->terms->scan.kind == SOURCE_NEURON_PROFILE;
        if (b->rec.links_held && can_names_repeat) {
                p->unit_ino = b->rec.unit_ino;
                p->unit_born_usec = b->rec.unit_born_usec;
        }
        p->links_only = intake_is_from_links(&b->rec);
        p->check_writers = b->check || b->flush ||
                           b->quiet_usec + intake_boot_usec(s) - b->checked_boot_usec >=
                                   s->config->settle_usec;
        b->check = false;
        b->probing = intake_probe_submit(s, p, on_probed);
        if (!b->probing)
                intake_probe_bundle_in(b, USEC_PER_SEC);
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
        b->probing = false;
        s->n_active++;
        b->is_active = true;
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
