/* What hooks say of units: how many are running, whether they have finished, whether something is
 * still to be attached. Kept beside the bundles, since a hook may run before its directory is
 * created, and in memory only: after a start the notes in the store say the same. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/intake_private.h"
#include "agent/store/notes_store.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

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

typedef struct HookHint { /* what the hooks of one user say of one unit */
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
        else if (b->source == s && !b->uncommitted)
                intake_probe_bundle(b);
}

/* ---- units that are not there yet ---- */

static void arm_seek(IntakeSource *s);

static int on_seek(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source;
        (void)usec;
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
        int r = timer_arm(&s->hints_timer, &(TimerOrder){ .event = s->context->event,
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

void intake_source_note(IntakeSource *s, const char *unit_path, uid_t uid) {
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

void intake_source_note_finished(IntakeSource *s, const char *unit_path, uid_t uid) {
        HookHint *n = get_hint(s, unit_path, uid);
        if (!n)
                return;
        n->n_open -= n->n_open > 0;
        n->finished = true;
        probe_hinted_unit(s, unit_path);
        arm_seek(s);
}

/* @return it, or NULL */
static Promise *find_promise(const HookHint *n, PromiseKind kind, const char *name) {
        for (size_t i = 0; i < n->n_promised; i++)
                if (n->promised[i].kind == kind && strcmp(n->promised[i].name, name) == 0)
                        return &n->promised[i];
        return NULL;
}

static void add_promise(HookHint *n, PromiseKind kind, const char *name) {
        if (n->n_promised >= INTAKE_PROMISED_MAX || find_promise(n, kind, name))
                return;
        Promise *promised = realloc(n->promised, (n->n_promised + 1) * sizeof *promised);
        if (!promised)
                return; /* it is collected anyway, but not missed */
        n->promised = promised;
        promised[n->n_promised] = (Promise){ kind, strdup(name) };
        n->n_promised += promised[n->n_promised].name != NULL;
}

void intake_source_promised(IntakeSource *s, const char *unit_path, uid_t uid, const char *name) {
        HookHint *n = get_hint(s, unit_path, uid);
        if (n)
                add_promise(n, PROMISE_NAME, name);
}

void intake_source_missing(IntakeSource *s, const char *unit_path, const char *path) {
        HookHint *n = get_hint(s, unit_path, 0); /* the agent itself says so */
        if (n)
                add_promise(n, path ? PROMISE_PATH : PROMISE_UNNAMED, path ? path : "");
}

void intake_source_pending(IntakeSource *s, const char *unit_path, bool pending) {
        HookHint *n = get_hint(s, unit_path, 0); /* the agent itself says so */
        if (!n)
                return;
        n->pending = pending;
        Bundle *b = bundle_of(s, unit_path);
        if (!pending && b && b->source == s && !b->uncommitted)
                intake_probe_bundle(b);
}

/* ---- use of the hints ---- */

void hook_hints_add_facts(IntakeSource *s, const Bundle *b, IntakeFacts *facts) {
        bool any_finished = false;
        LIST_FOREACH (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (!is_about(n, b->rec.path) || !owners_let_speak(&b->owners, n->uid))
                        continue;
                expire_hooks(s, n);
                facts->n_hooks += n->n_open;
                any_finished = any_finished || n->finished;
                facts->pending = facts->pending || n->pending;
                facts->missing = facts->missing || (n->n_promised > 0 && n->n_open == 0);
        }
        facts->hooks_finished = any_finished && facts->n_hooks == 0;
}

void hook_hints_report_ignored(IntakeSource *s, const Bundle *b) {
        LIST_FOREACH (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (n->n_uncounted == 0 || !is_about(n, b->rec.path) ||
                    owners_let_speak(&b->owners, n->uid))
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
        ProbePromise *promised = realloc(p->promised, n_wanted * sizeof *promised);
        if (!promised)
                return -ENOMEM;
        p->promised = promised;
        for (size_t i = 0; i < n->n_promised; i++) {
                char *name = strdup(n->promised[i].name);
                if (!name)
                        return -ENOMEM;
                promised[p->n_promised++] =
                        (ProbePromise){ .promise = { n->promised[i].kind, name } };
        }
        return 0;
}

int hook_hints_add_expected(IntakeSource *s, const char *unit_path, ProbeJob *p) {
        LIST_FOREACH (l, &s->hook_hints) {
                const HookHint *n = CONTAINER_OF(l, HookHint, link);
                int r = is_about(n, unit_path) ? add_expected(n, p) : 0;
                if (r < 0)
                        return r;
        }
        return 0;
}

static void remove_promise(HookHint *n, const Promise *seen) {
        Promise *p = find_promise(n, seen->kind, seen->name);
        if (!p)
                return;
        free(p->name);
        *p = n->promised[--n->n_promised];
}

void hook_hints_remove_seen(IntakeSource *s, const char *unit_path, const ProbeJob *p) {
        LIST_FOREACH (l, &s->hook_hints) {
                HookHint *n = CONTAINER_OF(l, HookHint, link);
                for (size_t i = 0; is_about(n, unit_path) && i < p->n_promised; i++)
                        if (p->promised[i].is_seen)
                                remove_promise(n, &p->promised[i].promise);
        }
}

void hook_hints_foreach_missing(IntakeSource *s, const Bundle *b,
                                void (*on_promise)(const Promise *p, void *userdata),
                                void *userdata) {
        LIST_FOREACH (l, &s->hook_hints) {
                const HookHint *n = CONTAINER_OF(l, HookHint, link);
                if (!is_about(n, b->rec.path) || !owners_let_speak(&b->owners, n->uid))
                        continue;
                for (size_t i = 0; i < n->n_promised; i++)
                        on_promise(&n->promised[i], userdata);
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

void hook_hints_load(IntakeSource *s, const Bundle *b) {
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
