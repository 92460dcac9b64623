/* A SETTLING bundle, from one probe of its unit to the next, until rules.c decides that it is
 * complete: then it is READY, with its members held by links or descriptors, and labelled with what
 * it lacks.
 *
 *     settling_probe ─► a probe in the thread ─► on_probed: facts ─► intake_decide()
 *           ▲                                                            │
 *           └──── timer ◄──── wait: keep_waiting ◄──────────────────────┤
 *                                         make_ready or VANISHED ◄───────┘
 *
 * A probe walks the unit, and checks leases and headers in the same walk if the unit could be
 * complete, by what is known when the probe is made, or if its process has ended. Files that come
 * after READY are late_files.c's. */
#include "agent/intake/settling.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "agent/intake/hook_hints.h"
#include "agent/intake/losses.h"
#include "agent/intake/rules.h"
#include "agent/intake/unit_notes.h"
#include "agent/intake/unit_probe.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

/* ---- descriptors that hold files where links are refused, by owner ---- */

#define HELD_MIN UINT64_C(64) /* of an owner: as many as one unit may need */

static uint64_t max_held(void) {
        struct rlimit limit;
        uint64_t n = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 4 : 0;
        return MAX(n, 2 * HELD_MIN);
}

void settling_init(IntakeContext *c) {
        if (c->held.max == 0)
                c->held = (Bound){ .what = "held files",
                                   .max = max_held(),
                                   .max_each = max_held() / 2,
                                   .clock = c->clock };
}

/* Beyond the bound they are not held; the next probe tries again. */
static void hold_by_descriptors(IntakeContext *c, Bundle *b, HeldFiles *held) {
        const Owner owner = owner_of_uid(b->rec.uid);
        held_files_done(&b->unit.held);
        if (held->n > 0 && bound_charge(&c->held, &held->charge, &owner, held->n) != BOUND_OK)
                return;
        b->unit.held = *held;
        *held = (HeldFiles){ 0 };
}

/* ---- from the facts of a probe to a state ---- */

static void make_ready(IntakeSource *s, Bundle *b, const ScanUnit *u, const char *incomplete) {
        losses_report(s, b, u);
        if (incomplete) {
                losses_add_reason(&b->rec, incomplete);
                b->facts.tolerant = true; /* it may still change, but waiting is over */
        }
        hook_hints_label_missing(s, b);
        hook_hints_report_ignored(s, b);
        unit_notes_set_s3_prefix(s->context->store, b);
        sd_event_source_set_enabled(b->unit.timer, SD_EVENT_OFF);
        if (bundle_set_state(s->context->bundles, b, BUNDLE_READY, incomplete) != 0)
                return;
        hook_hints_forget_ready(s, b->rec.path);
        if (b->unit.dirty) /* files came during the last probe: hold them soon */
                source_probe_bundle_in(b,
                                       MAX(REPROBE_USEC, REPROBE_SHARE * b->facts.check_took_usec));
        s->context->on_ready(b, s->context->userdata);
}

/* Records how the members are held. */
static void apply_hold(IntakeSource *s, Bundle *b, UnitWalk *w) {
        const bool is_linked = w->hold == UNIT_WALK_LINKS;
        if (w->unit.n_files > 0)
                b->rec.links_held = is_linked;
        if (w->unit.n_files > 0 && !is_linked)
                hold_by_descriptors(s->context, b, &w->held);
        source_report_hold_error(s, w->hold_error);
}

/* Copies what was counted into the record. */
static void apply_facts(IntakeSource *s, Bundle *b, UnitProbe *p) {
        const ScanUnit *u = &p->walk.unit;
        bool changed = u->digest != b->rec.digest;
        bool was_held = b->rec.links_held;
        losses_label(b, u);
        b->rec.digest = u->digest;
        b->rec.n_files = u->n_files;
        b->rec.bytes = u->bytes;
        apply_hold(s, b, &p->walk);
        b->facts.process = p->process;
        if (changed || was_held != b->rec.links_held)
                bundle_save(s->context->bundles, b);
}

static void keep_waiting(Bundle *b, const IntakeAnswer *answer, uint64_t duration_usec) {
        if (!b->rec.reason || strcmp(b->rec.reason, answer->why) != 0) {
                free(b->rec.reason); /* for `explain`; the row follows with the next change */
                b->rec.reason = strdup(answer->why);
        }
        uint64_t usec = answer->next_usec;
        if (b->unit.dirty) /* something came during the probe: hold it soon */
                usec = MIN(usec, MAX(REPROBE_USEC, REPROBE_SHARE * duration_usec));
        b->unit.dirty = false;
        b->facts.check_took_usec = duration_usec;
        source_probe_bundle_in(b, usec);
}

static void apply_answer(IntakeSource *s, Bundle *b, const UnitProbe *p,
                         const IntakeAnswer *answer) {
        if (answer->verdict == INTAKE_WAIT)
                keep_waiting(b, answer, p->probe.duration_usec);
        else if (answer->verdict == INTAKE_VANISHED)
                (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                                       answer->why); /* a refused transition is logged there */
        else
                make_ready(s, b, &p->walk.unit, answer->why);
}

/* There are files, but none that may be collected: the bundle was not removed at the source. */
static void give_up_unreadable(IntakeSource *s, Bundle *b, const ScanUnit *u) {
        losses_label(b, u);
        losses_report(s, b, u);
        _cleanup_free_ char *reason = NULL;
        if (asprintf(&reason, INTAKE_NOTHING_TAKEN ": %s", b->rec.incomplete) < 0)
                reason = NULL;
        (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                               reason); /* a refused transition is logged there */
}

static IntakeFacts facts_of(const Bundle *b, const UnitProbe *p, bool is_gone) {
        const UnitWalk *w = &p->walk;
        return (IntakeFacts){
                .gone = is_gone,
                .held = b->rec.links_held || (b->unit.held.n > 0 && b->unit.held.all),
                .writers = w->check_writers ? w->writers : INTAKE_WRITERS_UNKNOWN,
                .quiet_usec = b->facts.quiet_usec,
                .process_gone = p->process_gone,
                .contradicted = w->contradicted,
        };
}

/* Records links that the row does not mention. The agent crashed after it had created them, and the
 * source was removed before the next start, so that some members may not be linked. */
static void record_links(Bundle *b, const ScanUnit *u) {
        b->rec.links_held = true;
        if (u->digest != b->rec.digest)
                losses_add_reason(&b->rec, "removed at the source before all of it could be held");
        bundle_save(b->source->context->bundles, b);
}

/* Records whose files the members are, and which processes they name. */
static void apply_members(Bundle *b, UnitWalk *w) {
        b->facts.owners = w->owners;
        bundle_set_pids(b, &w->pids);
}

static IntakeLimits limits_at(const Bundle *b, uint64_t boot_usec) {
        const ConfigSource *config = b->source->config;
        return (IntakeLimits){ .settle_usec = config->settle_usec,
                               .max_wait_usec = config->max_wait_usec,
                               .waited_usec = boot_usec - b->facts.seen_boot_usec,
                               .flush = b->unit.flush };
}

static void decide(IntakeSource *s, Bundle *b, const UnitProbe *p, const IntakeFacts *facts) {
        const IntakeLimits limits = limits_at(b, b->facts.checked_boot_usec);
        /* A hook, a flush or a promised file has made it due since the probe began. */
        if (p->walk.unit.n_files > 0 && p->probe.result == 0 && !p->walk.check_writers &&
            intake_is_due(facts, &limits)) {
                settling_probe(b);
                return;
        }
        const IntakeAnswer answer = intake_decide(facts, &limits);
        apply_answer(s, b, p, &answer);
}

/* @param seen  whether the unit, or our links of it, have members */
static void apply_probe(IntakeSource *s, Bundle *b, UnitProbe *p, bool seen) {
        const ScanUnit *u = &p->walk.unit;
        const bool is_gone = !seen || p->place != UNIT_AT_ITS_PLACE;
        bool changed = seen && u->digest != b->rec.digest;
        /* What has not changed was quiet when the probe began; what has may have just now. */
        const uint64_t checked =
                changed ? source_boot_usec(s) : MAX(p->begun_boot_usec, b->facts.checked_boot_usec);
        b->facts.quiet_usec = intake_quiet_usec(changed, checked - b->facts.checked_boot_usec,
                                                b->facts.quiet_usec);
        b->facts.checked_boot_usec = checked;
        if (!is_gone)
                apply_facts(s, b, p);
        else if (seen) /* our links may have grown */
                b->rec.digest = u->digest;
        IntakeFacts facts = facts_of(b, p, is_gone && p->place != UNIT_IN_LINKS_AND_ELSEWHERE);
        if (seen)
                apply_members(b, &p->walk);
        hook_hints_remove_seen(s, b->rec.path, &p->walk.promised);
        hook_hints_add_facts(s, b, &facts);
        decide(s, b, p, &facts);
}

static void on_probed(IntakeSource *s, IntakeProbe *probe) {
        UnitProbe *p = unit_probe_of(probe);
        const ScanUnit *u = &p->walk.unit;
        Bundle *b = bundle_table_find(s->context->bundles, p->bundle_id);
        if (!b || b->source != s)
                return; /* cancelled meanwhile */
        source_set_unit_state(b, UNIT_WAITING);
        b->unit.is_replaced = b->unit.is_replaced || p->walk.met_another;
        if (b->rec.state != BUNDLE_SETTLING)
                return;
        const bool is_away = probe->result == UNIT_PROBE_E_AWAY;
        if (is_away || (probe->result < 0 && probe->result != -ENOENT)) {
                log_dump(b->rec.id, LOG_WARNING, MIN(probe->result, 0),
                         is_away ? "'%s' has files that cannot be read, and its share is away, "
                                   "trying again"
                                 : "cannot read '%s', trying again",
                         b->rec.path);
                source_probe_bundle_in(b, s->config->scan_interval_usec);
                return;
        }
        bool seen = probe->result == 0 && u->n_files > 0;
        bool is_gone = !seen || p->place != UNIT_AT_ITS_PLACE;
        if (p->place == UNIT_RENAMED) { /* under its new name it is another bundle */
                (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                                       "it was renamed at the source and is shipped under its new "
                                       "name"); /* a refused transition is logged there */
                return;
        }
        if (seen && p->place != UNIT_AT_ITS_PLACE && !b->rec.links_held)
                record_links(b, u);
        if (is_gone && losses_any(u) && !b->rec.links_held)
                give_up_unreadable(s, b, u);
        else
                apply_probe(s, b, p, seen);
}

/* @return whether the unit may be complete, if it has not changed since the last probe */
static bool may_be_complete(const Bundle *b, uint64_t boot_usec) {
        const IntakeLimits limits = limits_at(b, boot_usec);
        IntakeFacts facts = { .quiet_usec = b->facts.quiet_usec + boot_usec -
                                            b->facts.checked_boot_usec };
        hook_hints_add_facts(b->source, b, &facts);
        return intake_is_due(&facts, &limits);
}

/* @return the next probe of the bundle's unit; NULL without memory */
static UnitProbe *new_probe(const Bundle *b) {
        IntakeSource *s = b->source;
        _cleanup_(unit_probe_freep) UnitProbe *p = NULL;
        if (unit_probe_new(&p, s->spec, source_spec_relative(s->spec, b->rec.path), b->rec.id) < 0)
                return NULL;
        UnitWalk *w = &p->walk;
        if (b->rec.supplement_of[0])
                (void)store_get_earlier_prints(s->context->store, &b->rec, &w->shipped,
                                               &w->n_shipped); /* none: all is new */
        if (hook_hints_add_promises(s, b->rec.path, &w->promised) < 0)
                return NULL;
        p->uid = b->rec.uid;
        w->hold = UNIT_WALK_LINKS;
        bool can_names_repeat = s->spec->scan.kind == SOURCE_DIRECTORY ||
                                s->spec->scan.kind == SOURCE_NEURON_PROFILE;
        if (b->rec.links_held && can_names_repeat) {
                w->unit_ino = b->rec.unit_ino;
                w->unit_born_usec = b->rec.unit_born_usec;
        }
        p->links_only = bundle_is_from_links(&b->rec);
        p->waits_for_share =
                s->config->max_wait_usec == 0 ||
                source_boot_usec(s) - b->facts.seen_boot_usec < s->config->max_wait_usec;
        p->process = b->facts.process;
        p->begun_boot_usec = source_boot_usec(s);
        w->check_writers = may_be_complete(b, p->begun_boot_usec);
        return TAKE_PTR(p);
}

void settling_probe(Bundle *b) {
        IntakeSource *s = b->source;
        if (!s || b->rec.state != BUNDLE_SETTLING)
                return;
        if (source_is_probing(b)) {
                b->unit.dirty = true;
                return;
        }
        UnitProbe *p = new_probe(b);
        if (p && probe_submit(s, s->probes, &p->probe, on_probed))
                source_set_unit_state(b, UNIT_PROBING);
        else
                source_probe_bundle_in(b, USEC_PER_SEC);
}

void intake_flush_bundle(Bundle *b) {
        b->unit.flush = true;
        source_probe_bundle(b);
}

void intake_resettle(Bundle *b, const char *why) {
        IntakeSource *s = b->source;
        if (!s || bundle_set_state(s->context->bundles, b, BUNDLE_SETTLING, why) < 0)
                return;
        hook_hints_load(s, b, true); /* they were forgotten when it was READY */
        b->unit.flush = false;
        b->facts.quiet_usec = 0;
        b->facts.checked_boot_usec = source_boot_usec(s);
        source_probe_bundle_in(b, MIN(s->config->settle_usec, USEC_PER_SEC));
}
