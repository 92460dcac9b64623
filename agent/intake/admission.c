/* Which bundles are worked on: at most INTAKE_ACTIVE_MAX of all sources, shared between the owners
 * of their units. When the bound is reached, the owner with the most bundles has the newest one
 * parked: the bundle leaves memory, keeps its row and its links, and is resumed when half of the
 * bound is free. A unit that a hook has reported is never parked. New units of one owner are also
 * bounded in a minute (INTAKE_NEW_MAX).
 *
 * After a start or a reload, the bundles that the store knows come back here
 * (intake_source_resume_bundle()). */
#include "agent/intake/admission.h"

#include "agent/intake/hook_hints.h"
#include "agent/intake/settling.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

void admission_init(IntakeContext *c) {
        if (c->active.max == 0)
                c->active = (Owners){ .what = "active units", .max = INTAKE_ACTIVE_MAX };
        if (c->new_units.max == 0)
                c->new_units = (Owners){ .what = "new units of an owner in a minute",
                                         .max = UINT64_MAX,
                                         .max_each = INTAKE_NEW_MAX };
}

/* @return whether the bundle can be parked: it can be resumed later from its row in the store
 * alone, as no worker, no descriptor and no request of an operator depends on it */
static bool may_park(const Bundle *b) {
        return b->source && b->source->hold != INTAKE_HELD && b->is_active && !b->uncommitted &&
               !b->flush && !b->cancel && !b->has_target_state && b->n_running == 0 &&
               b->held.n == 0 &&
               (b->rec.state == BUNDLE_SETTLING || b->rec.state == BUNDLE_READY) &&
               bundle_is_written(b) && !bundle_is_of_attachments(&b->rec);
}

/* Parks the newest bundle of an owner. @return whether there was one */
static bool park_one(IntakeContext *c, const Owner *owner) {
        ListLink *all = bundle_table_all(c->bundles);
        for (ListLink *l = all->prev; l != all; l = l->prev) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->rec.uid != owner->uid || !may_park(b) ||
                    hook_hints_name_unit(b->source, b->rec.path, owner->uid))
                        continue;
                log_dump(b->rec.id, LOG_DEBUG, 0,
                         "waits until fewer bundles are worked on: its owner has most of them");
                b->source->admission.has_parked = true;
                owners_release(&c->active, owner, 1);
                owners_count_refused(&c->active, owner, c->clock->boottime_usec(c->clock));
                bundle_table_forget(c->bundles, b);
                return true;
        }
        return false;
}

/* @return whether the owner has used up the new units of this minute. A unit that a hook has
 * reported does not wait, nor one that is there when the source is held. */
static bool is_too_fast(IntakeSource *s, const char *path, const Owner *owner) {
        IntakeContext *c = s->context;
        uint64_t now = source_boot_usec(s);
        if (now > c->minute_boot_usec + USEC_PER_MINUTE) {
                owners_done(&c->new_units);
                c->minute_boot_usec = now;
        }
        if (c->takes_all || s->hold != INTAKE_OPEN || hook_hints_name_unit(s, path, owner->uid) ||
            owners_request(&c->new_units, owner, 1, NULL) == OWNERS_GRANTED)
                return false;
        owners_count_refused(&c->new_units, owner, now);
        if (!s->admission.has_late) {
                s->admission.has_late = true;
                s->calls.arm_scan(s);
        }
        return true;
}

bool admission_request(IntakeSource *s, const char *path, uid_t uid) {
        IntakeContext *c = s->context;
        Owner owner = owner_of_uid(uid), most;
        if (is_too_fast(s, path, &owner))
                return false;
        int r = owners_request(&c->active, &owner, 1, &most);
        if (r == OWNERS_DISPLACE && park_one(c, &most))
                r = owners_request(&c->active, &owner, 1, &most);
        if (r == OWNERS_REFUSED && hook_hints_name_unit(s, path, uid) && park_one(c, &owner))
                r = owners_request(&c->active, &owner, 1, &most);
        if (r == OWNERS_GRANTED)
                return true;
        s->scan.is_wanted = true;
        owners_count_refused(&c->active, &owner, source_boot_usec(s));
        return false;
}

void admission_release(IntakeSource *s, Bundle *b) {
        Owner owner = owner_of_uid(b->rec.uid);
        settling_release_held(s->context, b);
        if (b->is_active) /* a bundle that was restored from quarantine is not counted */
                owners_release(&s->context->active, &owner, 1);
        b->is_active = false;
}

bool admission_has_space(const IntakeSource *s) {
        return s->context->active.total < s->context->active.max / 2;
}

void intake_source_resume_bundle(IntakeSource *s, Bundle *b) {
        b->source = s;
        b->has_late = true;       /* perhaps: an earlier run may have created links */
        if (b->rec.is_redelivery) /* it was delivered: its unit is not probed */
                return;
        b->probing = false;
        Owner owner = owner_of_uid(b->rec.uid);
        b->is_active = owners_request(&s->context->active, &owner, 1, NULL) == OWNERS_GRANTED;
        /* Our links have changed the ctimes, so `settle` starts again. */
        b->quiet_usec = 0;
        b->seen_boot_usec = b->checked_boot_usec = source_boot_usec(s);
        /* The time before this start counts towards max_wait, but max_wait does not end before
         * `settle` has passed since the start: the agent may have been down for long, or the clock
         * may have been set. */
        uint64_t now = source_realtime_usec(s), max_wait = s->config->max_wait_usec;
        uint64_t most = max_wait > s->config->settle_usec ? max_wait - s->config->settle_usec : 0;
        uint64_t before = now > b->rec.first_seen_usec ? now - b->rec.first_seen_usec : 0;
        before = MIN(before, most);
        b->seen_boot_usec -= MIN(b->seen_boot_usec, before);
        if (bundle_is_of_attachments(&b->rec)) { /* not now: the agent is still being set up */
                if (b->rec.state == BUNDLE_SETTLING)
                        source_probe_bundle_in(b, 0);
                return;
        }
        hook_hints_load(s, b);
        source_probe_bundle(b);
}

bool admission_is_resumable(const IntakeSource *s) {
        const Owners *active = &s->context->active;
        return s->admission.has_parked && active->total + 1 == active->max / 2;
}

static int resume_one(BundleRecord *rec, void *userdata) {
        IntakeSource *s = userdata;
        IntakeContext *c = s->context;
        Owner owner = owner_of_uid(rec->uid);
        Bundle *b = NULL;
        if (bundle_table_find(c->bundles, rec->id))
                return 0;
        if (owners_request(&c->active, &owner, 1, NULL) == OWNERS_GRANTED) {
                owners_release(&c->active, &owner, 1); /* intake_source_resume_bundle() counts it */
                if (bundle_table_revive(c->bundles, rec->id, s, &b) == 0) {
                        intake_source_resume_bundle(s, b);
                        if (b->rec.state == BUNDLE_READY)
                                c->on_ready(b, c->userdata);
                        return 0;
                }
        }
        s->admission.has_parked = true; /* its unit has another bundle now, or there is no space */
        return 0;
}

void admission_resume_parked(IntakeSource *s) {
        if (!s->admission.has_parked || !admission_has_space(s))
                return;
        s->admission.has_parked = false;
        int r = store_list(
                s->context->store,
                &(StoreFilter){ .state = -1, .active_only = true, .source = s->config->name },
                resume_one, s);
        if (r < 0) {
                log_warning(r,
                            "source %s: cannot read which bundles wait; a later scan tries again",
                            s->config->name);
                s->admission.has_parked = true;
        }
}
