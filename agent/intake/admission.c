/* Which bundles are worked on: at most INTAKE_ACTIVE_MAX of all sources, and of one owner of units
 * half of them. Beyond that a new unit is refused: it has no row and no links, and a later scan
 * finds it again, when half of what was short is free, or within a minute. Units that hooks have
 * named have a bound of their own beside this one, so that a failure that was reported does not
 * wait behind what nobody has reported. New units of one owner are also bounded in a minute
 * (INTAKE_NEW_MAX).
 *
 * A bundle holds its place by a Charge until it has ended. After a start or a reload, the bundles
 * that the store knows come back here (intake_source_resume_bundle()); they are worked on whether
 * there is space or not. */
#include "agent/intake/admission.h"

#include "agent/intake/hook_hints.h"
#include "lib/base/cleanup.h"

void admission_init(IntakeContext *c) {
        if (c->active.max == 0)
                c->active = (Bound){ .what = "active units",
                                     .max = INTAKE_ACTIVE_MAX,
                                     .max_each = INTAKE_ACTIVE_MAX / 2,
                                     .clock = c->clock };
        if (c->hook_units.max == 0)
                c->hook_units = (Bound){ .what = "active units that hooks have named",
                                         .max = INTAKE_HOOK_UNITS_MAX,
                                         .max_each = INTAKE_HOOK_UNITS_MAX_OF_OWNER,
                                         .clock = c->clock };
        if (c->new_units.max == 0)
                c->new_units = (Bound){ .what = "new units in a minute",
                                        .max = UINT64_MAX,
                                        .max_each = INTAKE_NEW_MAX,
                                        .fade_usec = USEC_PER_MINUTE / INTAKE_NEW_MAX,
                                        .clock = c->clock };
}

void admission_defer(IntakeSource *s, BoundAnswer why, const Owner *owner) {
        if (why != BOUND_OK) {
                s->admission.refused = why;
                s->admission.owner = *owner;
        }
        if (s->admission.has_late)
                return;
        s->admission.has_late = true;
        s->calls.arm_scan(s);
}

/* @return whether the owner has used up the new units of a minute. What is there when the source is
 * held does not wait. */
static bool is_too_fast(IntakeSource *s, const Owner *owner) {
        IntakeContext *c = s->context;
        return !c->takes_all && s->hold == INTAKE_OPEN &&
               bound_spend(&c->new_units, owner, 1) != BOUND_OK;
}

bool admission_request(IntakeSource *s, const char *path, uid_t uid, Charge *ret) {
        IntakeContext *c = s->context;
        const Owner owner = owner_of_uid(uid);
        const bool is_named = hook_hints_name_unit(s, path, uid);
        if (!is_named && is_too_fast(s, &owner)) {
                admission_defer(s, BOUND_OK, &owner);
                return false;
        }
        Bound *bound =
                is_named && !bound_has_space(&c->active, &owner, 1) ? &c->hook_units : &c->active;
        const BoundAnswer answer = bound_charge(bound, ret, &owner, 1);
        if (answer != BOUND_OK)
                admission_defer(s, answer, &owner);
        return answer == BOUND_OK;
}

void admission_release(Bundle *b) {
        held_files_done(&b->unit.held);
        bound_release(&b->unit.charge);
}

void admission_on_scan(IntakeSource *s) {
        s->admission = (SourceAdmission){ 0 };
}

bool admission_allows_scan(const IntakeSource *s) {
        const IntakeContext *c = s->context;
        return c->takes_all || s->hold == INTAKE_HOLDING || c->active.total < c->active.max / 2;
}

bool admission_is_resumable(IntakeSource *s) {
        Bound *active = &s->context->active;
        const BoundAnswer why = s->admission.refused;
        const bool is_free = why == BOUND_E_OWNER ? bound_amount(active, &s->admission.owner) <=
                                                            active->max_each / 2
                                                  : active->total <= active->max / 2;
        if (why == BOUND_OK || !is_free)
                return false;
        s->admission.refused = BOUND_OK;
        return true;
}

/* @return the bound that a bundle of an earlier run is charged to; NULL: none has space. Those
 * beyond the first one were units that hooks had named. */
static Bound *find_space(IntakeContext *c, const Owner *owner) {
        return bound_has_space(&c->active, owner, 1)       ? &c->active
               : bound_has_space(&c->hook_units, owner, 1) ? &c->hook_units
                                                           : NULL;
}

void intake_source_resume_bundle(IntakeSource *s, Bundle *b) {
        b->source = s;
        b->unit.has_late = true; /* perhaps: an earlier run may have created links */
        if (bundle_record_is_redelivery(&b->rec)) /* it was delivered: its unit is not probed */
                return;
        source_set_unit_state(b, UNIT_WAITING);
        const Owner owner = owner_of_uid(b->rec.uid);
        Bound *bound = find_space(s->context, &owner);
        if (!bound_owner(&b->unit.charge) && bound) /* it is worked on in any case */
                (void)bound_charge(bound, &b->unit.charge, &owner, 1);
        /* Our links have changed the ctimes, so `settle` starts again. */
        b->facts.quiet_usec = 0;
        b->facts.seen_boot_usec = b->facts.checked_boot_usec = source_boot_usec(s);
        /* The time before this start counts towards max_wait, but max_wait does not end before
         * `settle` has passed since the start: the agent may have been down for long, or the clock
         * may have been set. */
        uint64_t now = source_realtime_usec(s), max_wait = s->config->max_wait_usec;
        uint64_t most = max_wait > s->config->settle_usec ? max_wait - s->config->settle_usec : 0;
        uint64_t before = now > b->rec.first_seen_usec ? now - b->rec.first_seen_usec : 0;
        before = MIN(before, most);
        b->facts.seen_boot_usec -= MIN(b->facts.seen_boot_usec, before);
        hook_hints_load(s, b, false);
        source_probe_bundle(b);
}
