/* Hints of hooks about units: how many hooks are running, whether one has finished, which files
 * they have promised. They make a unit wait, or accept a shorter quiet.
 *
 * Hints are kept beside the bundles, because a hook may run before its directory is created, and in
 * memory only: after a start the notes in the store replace them. There is one for each unit and
 * owner of hooks; the list is the context's, so that its bounds hold for all sources. A hint beyond
 * them is refused: its unit is probed once for each note, as the notes in the store name it, and is
 * complete as if no hook had named it. Nobody's hooks use up the hints of root's hooks. Whether a
 * hint counts for a bundle is decided when it is used, when the owners of the unit's files are
 * known.
 *
 * To probe a unit when a hint arrives is the caller's. */
#include "agent/intake/hook_hints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/losses.h"
#include "agent/intake/unit_notes.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

#define HINTS_MAX 1024 /* of root outside of containers as many again */
#define HINTS_MAX_OF_OWNER 128
/* Hints about a unit without a bundle are forgotten after so long, by a scan. */
#define FORGET_USEC (10 * USEC_PER_MINUTE)
/* A hook may run for hook.deadline and this. */
#define GRACE_USEC USEC_PER_SEC
/* Several notes make a unit wait at most so much longer than one note: any user may send them. */
#define MORE_NOTES_USEC USEC_PER_MINUTE

typedef struct HookHint { /* of the hooks of one owner about one unit */
        ListLink link;    /* oldest first */
        IntakeSource *source;
        char *path;
        Charge charge;        /* of the hooks' owner */
        uint64_t n_uncounted; /* notes that have not been counted as ignored */
        unsigned n_open;
        bool finished;            /* one has finished */
        PromisedFiles promised;   /* that were not seen */
        uint64_t last_usec;       /* CLOCK_BOOTTIME, the last time */
        uint64_t first_open_usec; /* CLOCK_BOOTTIME; 0 = none was */
        uint64_t open_until_usec; /* the deadline of the hooks */
} HookHint;

void hook_hints_init(IntakeContext *c) {
        if (c->hints.max > 0)
                return;
        c->hints = (Bound){ .what = "units of hooks",
                            .max = HINTS_MAX,
                            .max_each = HINTS_MAX_OF_OWNER,
                            .clock = c->clock };
        c->root_hints = (Bound){ .what = "units of root's hooks",
                                 .max = HINTS_MAX,
                                 .max_each = HINTS_MAX,
                                 .clock = c->clock };
        list_init(&c->hook_hints);
}

static uint64_t longest_usec(const IntakeSource *s) {
        return s->context->hook_deadline_usec + GRACE_USEC;
}

static bool is_about(const HookHint *n, const char *path) {
        return strcmp(n->path, path) == 0;
}

static const Owner root = {
        .uid = 0
}; /* outside of containers: its hints have a bound of their own */

static uid_t hint_uid(const HookHint *n) {
        return bound_owner(&n->charge)->uid;
}

static HookHint *find_hint(IntakeSource *s, const char *path, const Owner *o) {
        LIST_FOREACH_ITEM (HookHint, n, link, &s->context->hook_hints)
                if (owner_is_same(bound_owner(&n->charge), o) && is_about(n, path))
                        return n;
        return NULL;
}

static void hint_free(HookHint *n) {
        list_remove(&n->link);
        bound_release(&n->charge);
        promised_files_done(&n->promised);
        free(n->path);
        free(n);
}

static void expire_hooks(const IntakeSource *s, HookHint *n) {
        if (n->n_open == 0 || source_boot_usec(s) < n->open_until_usec)
                return;
        n->n_open = 0;
        n->finished = true;
}

static bool is_awaited(const HookHint *n) {
        return n->n_open > 0;
}

static HookHint *hint_new(IntakeSource *s, const char *path, const Owner *o) {
        IntakeContext *c = s->context;
        Bound *bound = owner_is_same(o, &root) ? &c->root_hints : &c->hints;
        HookHint *n = calloc(1, sizeof *n);
        if (!n || !(n->path = strdup(path)) || bound_charge(bound, &n->charge, o, 1) != BOUND_OK) {
                if (n)
                        free(n->path);
                free(n);
                return NULL;
        }
        n->source = s;
        list_append(&c->hook_hints, &n->link);
        return n;
}

/* @return NULL: not of this source, there are too many, or memory is short */
static HookHint *get_hint(IntakeSource *s, const char *path, const Owner *o) {
        if (!path_is_below(path, s->spec->fixed))
                return NULL;
        HookHint *n = find_hint(s, path, o);
        if (!n)
                n = hint_new(s, path, o);
        if (n)
                n->last_usec = source_boot_usec(s);
        return n;
}

/* ---- what hooks tell ---- */

void hook_hints_start(IntakeSource *s, const char *unit_path, const Owner *o) {
        HookHint *n = get_hint(s, unit_path, o);
        if (!n)
                return;
        n->n_uncounted++;
        n->n_open++;
        if (n->first_open_usec == 0)
                n->first_open_usec = n->last_usec;
        n->open_until_usec =
                MIN(n->last_usec, n->first_open_usec + MORE_NOTES_USEC) + longest_usec(s);
}

void hook_hints_finish(IntakeSource *s, const char *unit_path, const Owner *o) {
        HookHint *n = get_hint(s, unit_path, o);
        if (!n)
                return;
        n->n_open -= n->n_open > 0;
        n->finished = true;
}

static void add_promise(HookHint *n, const char *name) {
        if (n->promised.n < INTAKE_PROMISED_MAX)
                (void)promised_files_add(
                        &n->promised,
                        name); /* without memory the file is collected, but nothing waits for it */
}

void intake_source_expect_file(IntakeSource *s, const char *unit_path, const Owner *o,
                               const char *name) {
        HookHint *n = get_hint(s, unit_path, o);
        if (n)
                add_promise(n, name);
}

typedef struct StoredHints {
        IntakeSource *source;
        bool are_counted; /* the notes that are ignored, by hook_hints_report_ignored() */
} StoredHints;

static int on_stored(const StoredNote *stored, void *userdata) {
        const StoredHints *l = userdata;
        IntakeSource *s = l->source;
        uint64_t now = source_realtime_usec(s), until = stored->received_usec + longest_usec(s);
        /* A note from the future is not open: the clock was set back, and the unit would wait for
         * long. */
        bool is_open = stored->finished_usec == 0 && stored->received_usec <= now && until > now;
        const Owner sender = unit_notes_sender(stored);
        HookHint *n = get_hint(s, stored->unit_path, &sender);
        if (!n)
                return 0;
        n->n_uncounted += !l->are_counted;
        if (is_open) {
                n->n_open = 1;
                n->first_open_usec = n->last_usec;
                n->open_until_usec = MAX(n->open_until_usec, n->last_usec + (until - now));
        }
        n->finished = n->n_open == 0;
        return 0;
}

void hook_hints_load(IntakeSource *s, const Bundle *b, bool are_counted) {
        StoredHints l = { s, are_counted };
        if (are_counted && hook_hints_know_path(s, b->rec.path))
                return; /* those know more */
        if (b->rec.state == BUNDLE_SETTLING)
                (void)store_note_list(s->context->store,
                                      &(StoredUnit){ b->rec.source, b->rec.path }, on_stored,
                                      &l); /* none: as without hooks */
}

/* ---- use of the hints ---- */

bool hook_hints_name_unit(IntakeSource *s, const char *path, uid_t uid) {
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints)
                if (unit_notes_may_name(hint_uid(n), uid) && is_about(n, path))
                        return true;
        return false;
}

bool hook_hints_know_path(const IntakeSource *s, const char *path) {
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints)
                if (is_about(n, path))
                        return true;
        return false;
}

/* What was refused is in the store alone. */
bool hook_hints_may_name(const IntakeSource *s, const char *path) {
        const IntakeContext *c = s->context;
        return hook_hints_know_path(s, path) ||
               (c->hints.n_refused + c->root_hints.n_refused > 0 &&
                unit_notes_have_unit(c->store, &(StoredUnit){ s->config->name, path }));
}

int hook_hints_for_each_unit(const IntakeSource *s,
                             int (*units_handle)(const char *path, void *userdata),
                             void *userdata) {
        int r = 0;
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints)
                if (r >= 0 && n->source == s)
                        r = units_handle(n->path, userdata);
        return r;
}

void hook_hints_add_facts(IntakeSource *s, const Bundle *b, IntakeFacts *facts) {
        bool any_finished = false;
        LIST_FOREACH_ITEM (HookHint, n, link, &s->context->hook_hints) {
                if (!is_about(n, b->rec.path) || !uid_may_annotate(&b->facts.owners, hint_uid(n)))
                        continue;
                expire_hooks(s, n);
                facts->n_hooks += n->n_open;
                any_finished = any_finished || n->finished;
                facts->missing = facts->missing || (n->promised.n > 0 && n->n_open == 0);
        }
        facts->hooks_finished = any_finished && facts->n_hooks == 0;
}

void hook_hints_report_ignored(IntakeSource *s, Bundle *b) {
        LIST_FOREACH_ITEM (HookHint, n, link, &s->context->hook_hints) {
                if (n->n_uncounted == 0 || !is_about(n, b->rec.path) ||
                    uid_may_annotate(&b->facts.owners, hint_uid(n)))
                        continue;
                if (b->facts.owners.has_several)
                        log_dump(b->rec.id, LOG_NOTICE, 0,
                                 "hook notes of uid %u are ignored: it has files of several users",
                                 (unsigned)hint_uid(n));
                else
                        log_dump(b->rec.id, LOG_NOTICE, 0,
                                 "hook notes of uid %u are ignored: it has files of uid %u",
                                 (unsigned)hint_uid(n), (unsigned)b->facts.owners.uid);
                b->facts.has_logged_notes = true;
                if (s->context->on_unheard)
                        s->context->on_unheard(n->n_uncounted, s->context->userdata);
                n->n_uncounted = 0;
        }
}

int hook_hints_add_promises(IntakeSource *s, const char *unit_path, PromisedFiles *ret) {
        int r = 0;
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints)
                for (size_t i = 0; r >= 0 && is_about(n, unit_path) && i < n->promised.n; i++)
                        r = promised_files_add(ret, n->promised.items[i].name);
        return r;
}

void hook_hints_remove_seen(IntakeSource *s, const char *unit_path, const PromisedFiles *p) {
        LIST_FOREACH_ITEM (HookHint, n, link, &s->context->hook_hints)
                for (size_t i = 0; is_about(n, unit_path) && i < p->n; i++)
                        if (p->items[i].is_seen)
                                promised_files_remove(&n->promised, p->items[i].name);
}

#define MISSING_MAX 8 /* that are named */
static void add_missing(Bundle *b, const char *promised) {
        _cleanup_free_ char *name = path_escape(promised), *text = NULL;
        if (asprintf(&text, "missing: '%s' was promised by its hook", name ? name : "?") < 0)
                text = NULL;
        losses_add_reason(&b->rec, text ? text : "missing: a file that was promised by its hook");
        log_dump(b->rec.id, LOG_WARNING, 0, "%s; the hook died, or its file system does not answer",
                 text ? text : "a promised file is missing");
}

void hook_hints_label_missing(IntakeSource *s, Bundle *b) {
        size_t n_missing = 0;
        LIST_FOREACH_ITEM (const HookHint, n, link, &s->context->hook_hints) {
                if (!is_about(n, b->rec.path) || !uid_may_annotate(&b->facts.owners, hint_uid(n)))
                        continue;
                for (size_t i = 0; i < n->promised.n; i++)
                        if (++n_missing <= MISSING_MAX)
                                add_missing(b, n->promised.items[i].name);
        }
        if (n_missing > MISSING_MAX)
                losses_add_reason(&b->rec, "missing: and more that was promised by hooks");
}

/* ---- their end ---- */

/* A unit that no event has reported is found when its hook ends, or by a scan. */
void hook_hints_forget_old(IntakeSource *s) {
        LIST_FOREACH_ITEM_SAFE (HookHint, n, link, &s->context->hook_hints)
                if (n->source == s &&
                    !bundle_table_find_unit(s->context->bundles, s->config->name, n->path) &&
                    source_boot_usec(s) - n->last_usec > FORGET_USEC)
                        hint_free(n);
}

void hook_hints_forget_ready(IntakeSource *s, const char *unit_path) {
        LIST_FOREACH_ITEM_SAFE (HookHint, n, link, &s->context->hook_hints)
                if (is_about(n, unit_path) && !is_awaited(n) && n->promised.n == 0)
                        hint_free(n);
}

void hook_hints_forget_unit(IntakeSource *s, const char *unit_path) {
        LIST_FOREACH_ITEM_SAFE (HookHint, n, link, &s->context->hook_hints)
                if (is_about(n, unit_path) && !is_awaited(n))
                        hint_free(n);
}

void hook_hints_done(IntakeSource *s) {
        LIST_FOREACH_ITEM_SAFE (HookHint, n, link, &s->context->hook_hints)
                if (n->source == s)
                        hint_free(n);
}
