/* What hooks say of units: how many are at work, whether they are through, whether something is still to be attached. Kept beside the bundles, since a
 * hook may run before its directory is made, and in memory only: after a start the store's notes tell what there is to know. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/intake_private.h"
#include "agent/store/notes_store.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

/* So many units are remembered: then who has most of them forgets one, and one that nobody waits for before one that is waited for. */
#define UNITS_MAX 1024
/* What was said of a unit without a bundle is forgotten after so long, … */
#define FORGET_USEC (10 * USEC_PER_MINUTE)
/* … and it is looked for so often, for so long after something was said. */
#define SEEK_MIN_USEC (100 * USEC_PER_MSEC)
#define SEEK_MAX_USEC (5 * USEC_PER_SEC)
#define SEEK_FOR_USEC USEC_PER_MINUTE

/* A hook may be at work for hook.deadline and this. */
#define GRACE_USEC USEC_PER_SEC
/* Notes that come one after another hold a unit for so much longer than one, in all: anybody may send them. */
#define MORE_NOTES_USEC USEC_PER_MINUTE

typedef struct UnitNote { /* what the hooks of one user say of one unit */
        ListLink link;    /* oldest first */
        char *path;
        uid_t uid;
        uint64_t n_told; /* notes that nobody has counted as unheard */
        unsigned n_open;
        bool finished; /* one was through */
        bool pending;
        Promise *promised; /* files that were not seen; owned */
        size_t n_promised;
        uint64_t said_usec;       /* CLOCK_BOOTTIME, the last time */
        uint64_t first_open_usec; /* CLOCK_BOOTTIME; 0 = none was */
        uint64_t open_until_usec; /* then the hooks' time is over, whatever they say */
} UnitNote;

static uint64_t longest_usec(const IntakeSource *s) {
        return s->context->hook_deadline_usec + GRACE_USEC;
}

static bool is_about(const UnitNote *n, const char *path) {
        return strcmp(n->path, path) == 0;
}

static UnitNote *find_note(IntakeSource *s, const char *path, uid_t uid) {
        LIST_FOREACH (l, &s->unit_notes) {
                UnitNote *n = CONTAINER_OF(l, UnitNote, link);
                if (n->uid == uid && is_about(n, path))
                        return n;
        }
        return NULL;
}

static void drop_note(IntakeSource *s, UnitNote *n) {
        list_remove(&n->link);
        s->n_unit_notes--;
        for (size_t i = 0; i < n->n_promised; i++)
                free(n->promised[i].name);
        free(n->promised);
        free(n->path);
        free(n);
}

static void expire_hooks(const IntakeSource *s, UnitNote *n) {
        if (n->n_open == 0 || intake_boot_usec(s) < n->open_until_usec)
                return;
        n->n_open = 0;
        n->finished = true;
}

static bool is_awaited(const UnitNote *n) {
        return n->n_open > 0 || n->pending;
}

static int highest_first(const void *a, const void *b) {
        uid_t x = *(const uid_t *)a, y = *(const uid_t *)b;
        return x < y ? 1 : x > y ? -1 : 0;
}

/* @return who has most of those that are awaited, or are not; of several the highest uid, a user namespace's. 0 also where there are none. */
static uid_t who_has_most(IntakeSource *s, bool awaited) {
        uid_t uids[UNITS_MAX], most = 0;
        size_t n_uids = 0, n_most = 0;
        LIST_FOREACH (l, &s->unit_notes) {
                const UnitNote *n = CONTAINER_OF(l, UnitNote, link);
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

static bool forget_one_that(IntakeSource *s, bool awaited) {
        uid_t uid = who_has_most(s, awaited);
        LIST_FOREACH_SAFE (l, &s->unit_notes) {
                UnitNote *n = CONTAINER_OF(l, UnitNote, link);
                if (n->uid == uid && is_awaited(n) == awaited) {
                        drop_note(s, n);
                        return true;
                }
        }
        return false;
}

static void make_room(IntakeSource *s) {
        LIST_FOREACH (l, &s->unit_notes)
                expire_hooks(s, CONTAINER_OF(l, UnitNote, link));
        if (!forget_one_that(s, false))
                (void)forget_one_that(s, true); /* there is one */
}

/* @return NULL: it is none of this source, or memory is short */
static UnitNote *note_of(IntakeSource *s, const char *path, uid_t uid) {
        if (!path_is_below(path, s->terms->fixed))
                return NULL;
        UnitNote *n = find_note(s, path, uid);
        if (!n) {
                if (s->n_unit_notes >= UNITS_MAX)
                        make_room(s);
                n = calloc(1, sizeof *n);
                if (!n || !(n->path = strdup(path))) {
                        free(n);
                        return NULL;
                }
                n->uid = uid;
                list_append(&s->unit_notes, &n->link);
                s->n_unit_notes++;
        }
        n->said_usec = intake_boot_usec(s);
        return n;
}

static Bundle *bundle_of(IntakeSource *s, const char *path) {
        return bundle_table_find_unit(s->context->bundles, s->config->name, path);
}

static void look_for(IntakeSource *s, const char *path) {
        Bundle *b = bundle_of(s, path);
        if (!b)
                intake_look_at_path(s, intake_relative(s, path));
        else if (b->source == s && !b->uncommitted)
                intake_look_at(b);
}

/* ---- units that are not there yet ---- */

static void arm_seek(IntakeSource *s);

static int on_seek(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source;
        (void)usec;
        uint64_t now = intake_boot_usec(s);
        LIST_FOREACH_SAFE (l, &s->unit_notes) {
                UnitNote *n = CONTAINER_OF(l, UnitNote, link);
                if (bundle_of(s, n->path))
                        continue;
                if (now - n->said_usec > FORGET_USEC)
                        drop_note(s, n);
                else if (now - n->said_usec < SEEK_FOR_USEC)
                        intake_look_at_path(s, intake_relative(s, n->path));
        }
        arm_seek(s);
        return 0;
}

/* The younger the last word of one that is missing, the sooner. */
static uint64_t seek_in_usec(uint64_t age_usec) {
        return age_usec < SEEK_FOR_USEC ? MIN(MAX(age_usec / 2, SEEK_MIN_USEC), SEEK_MAX_USEC)
                                        : SEEK_FOR_USEC;
}

static void arm_seek(IntakeSource *s) {
        uint64_t now = intake_boot_usec(s), wait = UINT64_MAX;
        LIST_FOREACH (l, &s->unit_notes) {
                const UnitNote *n = CONTAINER_OF(l, UnitNote, link);
                uint64_t in_usec = seek_in_usec(now - n->said_usec);
                if (!bundle_of(s, n->path))
                        wait = MIN(wait, in_usec);
        }
        if (wait == UINT64_MAX)
                return;
        int r = timer_arm(&s->notes_timer, &(TimerOrder){ .event = s->context->event,
                                                          .usec = wait,
                                                          .slack_usec = wait / 20,
                                                          .handler = on_seek,
                                                          .userdata = s });
        if (r < 0)
                log_error(r, "source %s: cannot arm a timer; events and scans find what hooks told",
                          s->config->name);
}

/* ---- what is said ---- */

void intake_source_note(IntakeSource *s, const char *unit_path, uid_t uid) {
        UnitNote *n = note_of(s, unit_path, uid);
        if (!n)
                return;
        n->n_told++;
        n->n_open++;
        if (n->first_open_usec == 0)
                n->first_open_usec = n->said_usec;
        n->open_until_usec =
                MIN(n->said_usec, n->first_open_usec + MORE_NOTES_USEC) + longest_usec(s);
        look_for(s, unit_path);
        arm_seek(s);
}

void intake_source_note_finished(IntakeSource *s, const char *unit_path, uid_t uid) {
        UnitNote *n = note_of(s, unit_path, uid);
        if (!n)
                return;
        n->n_open -= n->n_open > 0;
        n->finished = true;
        look_for(s, unit_path);
        arm_seek(s);
}

/* @return it, or NULL */
static Promise *find_promise(const UnitNote *n, PromiseKind kind, const char *name) {
        for (size_t i = 0; i < n->n_promised; i++)
                if (n->promised[i].kind == kind && strcmp(n->promised[i].name, name) == 0)
                        return &n->promised[i];
        return NULL;
}

static void add_promise(UnitNote *n, PromiseKind kind, const char *name) {
        if (n->n_promised >= INTAKE_PROMISED_MAX || find_promise(n, kind, name))
                return;
        Promise *promised = realloc(n->promised, (n->n_promised + 1) * sizeof *promised);
        if (!promised)
                return; /* it is collected all the same, only not missed */
        n->promised = promised;
        promised[n->n_promised] = (Promise){ kind, strdup(name) };
        n->n_promised += promised[n->n_promised].name != NULL;
}

void intake_source_promised(IntakeSource *s, const char *unit_path, uid_t uid, const char *name) {
        UnitNote *n = note_of(s, unit_path, uid);
        if (n)
                add_promise(n, PROMISE_NAME, name);
}

void intake_source_missing(IntakeSource *s, const char *unit_path, const char *path) {
        UnitNote *n = note_of(s, unit_path, 0); /* it is the agent that says so */
        if (n)
                add_promise(n, path ? PROMISE_PATH : PROMISE_UNNAMED, path ? path : "");
}

void intake_source_pending(IntakeSource *s, const char *unit_path, bool pending) {
        UnitNote *n = note_of(s, unit_path, 0); /* it is the agent that says so */
        if (!n)
                return;
        n->pending = pending;
        Bundle *b = bundle_of(s, unit_path);
        if (!pending && b && b->source == s && !b->uncommitted)
                intake_look_at(b);
}

/* ---- what is made of it ---- */

void intake_note_facts(IntakeSource *s, const Bundle *b, IntakeFacts *facts) {
        bool any_finished = false;
        LIST_FOREACH (l, &s->unit_notes) {
                UnitNote *n = CONTAINER_OF(l, UnitNote, link);
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

void intake_notes_tell_unheard(IntakeSource *s, const Bundle *b) {
        LIST_FOREACH (l, &s->unit_notes) {
                UnitNote *n = CONTAINER_OF(l, UnitNote, link);
                if (n->n_told == 0 || !is_about(n, b->rec.path) ||
                    owners_let_speak(&b->owners, n->uid))
                        continue;
                log_dump(b->rec.id, LOG_NOTICE, 0,
                         "what hooks of uid %u told of it is refused: it has files of uid %u",
                         (unsigned)n->uid, (unsigned)b->owners.uid);
                if (s->context->on_unheard)
                        s->context->on_unheard(n->n_told, s->context->userdata);
                n->n_told = 0;
        }
}

static int ask(const UnitNote *n, ProbeJob *p) {
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

int intake_notes_ask(IntakeSource *s, const char *unit_path, ProbeJob *p) {
        LIST_FOREACH (l, &s->unit_notes) {
                const UnitNote *n = CONTAINER_OF(l, UnitNote, link);
                int r = is_about(n, unit_path) ? ask(n, p) : 0;
                if (r < 0)
                        return r;
        }
        return 0;
}

static void forget_promise(UnitNote *n, const Promise *seen) {
        Promise *p = find_promise(n, seen->kind, seen->name);
        if (!p)
                return;
        free(p->name);
        *p = n->promised[--n->n_promised];
}

void intake_notes_take(IntakeSource *s, const char *unit_path, const ProbeJob *p) {
        LIST_FOREACH (l, &s->unit_notes) {
                UnitNote *n = CONTAINER_OF(l, UnitNote, link);
                for (size_t i = 0; is_about(n, unit_path) && i < p->n_promised; i++)
                        if (p->promised[i].is_seen)
                                forget_promise(n, &p->promised[i].promise);
        }
}

void intake_notes_missing(IntakeSource *s, const Bundle *b,
                          void (*on_promise)(const Promise *p, void *userdata), void *userdata) {
        LIST_FOREACH (l, &s->unit_notes) {
                const UnitNote *n = CONTAINER_OF(l, UnitNote, link);
                if (!is_about(n, b->rec.path) || !owners_let_speak(&b->owners, n->uid))
                        continue;
                for (size_t i = 0; i < n->n_promised; i++)
                        on_promise(&n->promised[i], userdata);
        }
}

typedef struct Told {
        IntakeSource *source;
        uint64_t now_usec, longest_usec;
} Told;

static int on_stored(const StoredNote *stored, void *userdata) {
        const Told *t = userdata;
        uint64_t until = stored->received_usec + t->longest_usec;
        /* A clock that was set back would have it wait for long. */
        bool is_open = stored->finished_usec == 0 && stored->received_usec <= t->now_usec &&
                       until > t->now_usec;
        UnitNote *n = note_of(t->source, stored->unit_path, stored->uid);
        if (!n)
                return 0;
        n->n_told++;
        if (is_open) {
                n->n_open = 1;
                n->first_open_usec = n->said_usec;
                n->open_until_usec = MAX(n->open_until_usec, n->said_usec + (until - t->now_usec));
        }
        n->finished = n->n_open == 0;
        return 0;
}

void intake_notes_of_start(IntakeSource *s, const Bundle *b) {
        Told t = { .source = s,
                   .now_usec = intake_realtime_usec(s),
                   .longest_usec = longest_usec(s) };
        if (b->rec.state == BUNDLE_SETTLING)
                (void)store_note_list(s->context->store,
                                      &(StoredUnit){ b->rec.source, b->rec.path }, on_stored,
                                      &t); /* none: as without hooks */
}

void intake_notes_on_final(IntakeSource *s, const char *unit_path) {
        LIST_FOREACH_SAFE (l, &s->unit_notes) {
                UnitNote *n = CONTAINER_OF(l, UnitNote, link);
                if (is_about(n, unit_path) && !is_awaited(n))
                        drop_note(s, n);
        }
}

void intake_notes_done(IntakeSource *s) {
        LIST_FOREACH_SAFE (l, &s->unit_notes)
                drop_note(s, CONTAINER_OF(l, UnitNote, link));
        sd_event_source_disable_unref(s->notes_timer);
}
