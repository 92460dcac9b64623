/* When to look, and for whom. Nothing is armed while no bundle is undelivered and none is held. */
#include "agent/retention/retainer.h"

#include <errno.h>

#include "agent/retention/retainer_private.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

#define LOOK_USEC (10 * USEC_PER_SEC)
#define KICK_USEC (300 * USEC_PER_MSEC)
/* With more than this to go through, a kick makes no look come earlier. */
#define KICK_ITEMS_MAX 1000

uint64_t retainer_boot_usec(const Retainer *r) {
        return r->context.clock->boottime_usec(r->context.clock);
}

static RetentionBound bound_of(const ConfigSize *size) {
        return (RetentionBound){ .bytes = size->bytes,
                                 .permille = size->permille,
                                 .is_permille = size->is_permille,
                                 .is_on =
                                         size->is_permille ? size->permille > 0 : size->bytes > 0 };
}

static void take_config(Retainer *r, const Config *config) {
        r->terms = (RetentionTerms){ .may_delete = config->retention.delete_after_delivery,
                                     .may_evict = config->retention.evict_oldest,
                                     .keep_for_usec = config->retention.keep_for_usec,
                                     .max_use = bound_of(&config->retention.max_use),
                                     .keep_free = bound_of(&config->retention.keep_free) };
        bundle_table_keep_links(r->context.bundles, r->terms.may_delete);
}

/* ---- when ---- */

static uint64_t n_undelivered(const Retainer *r) {
        StoreCounts counts;
        store_counts(r->context.store, &counts);
        return bundle_table_n(r->context.bundles) + counts.bundles[BUNDLE_QUARANTINED];
}

static uint64_t n_held(const Retainer *r) {
        uint64_t n = 0;
        for (size_t i = 0; i < r->n_sources; i++)
                n += r->sources[i].n_held;
        return n;
}

static void look(Retainer *r) {
        r->round++;
        for (size_t i = 0; i < r->n_sources; i++) {
                Retained *s = &r->sources[i];
                if (s->n_acts > 0)
                        continue;
                s->has_more = false;
                retainer_act_on_owed(s);
                retainer_measure(s);
        }
        retainer_plan(r);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Retainer *r = userdata;
        (void)source;
        (void)usec;
        r->is_armed = false;
        look(r);
        return 0;
}

void retainer_look_in(Retainer *r, uint64_t usec) {
        uint64_t due = retainer_boot_usec(r) + usec;
        if (r->is_armed && r->due_boot_usec <= due)
                return;
        int error = timer_arm(&r->timer, &(TimerOrder){ .event = r->context.event,
                                                        .usec = usec,
                                                        .slack_usec = usec / 20,
                                                        .handler = on_timer,
                                                        .userdata = r });
        r->is_armed = error >= 0;
        r->due_boot_usec = due;
        if (error < 0)
                log_error(error, "cannot arm the timer of retention; the next bundle tries again");
}

/* Room may run out at any time, unless nobody asks for any. */
static uint64_t wait_usec(const Retainer *r) {
        uint64_t now = r->context.clock->realtime_usec(r->context.clock), wait = USEC_INFINITY;
        bool is_bound = r->terms.keep_free.is_on || r->terms.max_use.is_on;
        for (size_t i = 0; i < r->n_sources; i++) {
                const Retained *s = &r->sources[i];
                uint64_t due = s->report.next_usec;
                if (s->n_held == 0)
                        continue;
                if (is_bound || !s->has_room || due <= now)
                        return MIN(LOOK_USEC, due > now ? due - now : LOOK_USEC);
                wait = MIN(wait, due - now);
        }
        return n_undelivered(r) > 0 ? MIN(wait, LOOK_USEC) : wait;
}

/* Where there is nothing that could go, room is nobody's business here. */
static void rest(Retainer *r) {
        if (r->timer)
                (void)sd_event_source_set_enabled(r->timer, SD_EVENT_OFF); /* cannot fail */
        r->is_armed = false;
        for (size_t i = 0; i < r->n_sources; i++) {
                Retained *s = &r->sources[i];
                s->report = (RetentionReport){ .next_usec = UINT64_MAX };
                free(s->note);
                s->note = NULL;
        }
}

void retainer_plan(Retainer *r) {
        if (n_undelivered(r) == 0 && n_held(r) == 0) {
                rest(r);
                return;
        }
        uint64_t wait = wait_usec(r);
        if (wait != USEC_INFINITY)
                retainer_look_in(r, wait);
}

void retainer_kick(Retainer *r) {
        if (!r || r->n_sources == 0)
                return;
        bool is_much = bundle_table_n(r->context.bundles) + n_held(r) > KICK_ITEMS_MAX;
        retainer_look_in(r, is_much ? LOOK_USEC : KICK_USEC);
}

/* ---- whom ---- */

static Retained *find_source(const Retainer *r, const IntakeSource *source) {
        for (size_t i = 0; r && source && i < r->n_sources; i++)
                if (r->sources[i].source == source)
                        return &r->sources[i];
        return NULL;
}

void retainer_on_final(Retainer *r, const Bundle *b) {
        Retained *s = find_source(r, b->source);
        if (s && bundle_state_is_over(b->rec.state) && b->rec.links_held)
                held_add(s, &b->rec);
        else if (s && b->rec.state == BUNDLE_DELIVERED && r->terms.may_delete)
                unheld_count(s);
        retainer_kick(r);
}

void retainer_on_links_rechecked(Retainer *r, const IntakeSource *source, const char *id) {
        Retained *s = find_source(r, source);
        HeldItem *h = s ? held_find(s, id) : NULL;
        if (!h || !h->awaits_look)
                return;
        h->awaits_look = false;
        h->was_looked_at = true;
        h->not_before_boot_usec = 0;
        retainer_kick(r);
}

static void forget_sources(Retainer *r) {
        for (size_t i = 0; i < r->n_sources; i++) {
                Retained *s = &r->sources[i];
                held_clear(s);
                measure_job_free(s->measured);
                free(s->trouble);
                free(s->note);
        }
        free(r->sources);
        r->sources = NULL;
        r->n_sources = 0;
}

void retainer_set_sources(Retainer *r, const RetainerSource *sources, size_t n) {
        if (!r)
                return;
        forget_sources(r);
        if (n == 0) {
                retainer_plan(r);
                return;
        }
        r->sources = calloc(n, sizeof *r->sources);
        if (!r->sources) {
                log_error(-ENOMEM, "nothing is let go of until the next reload");
                return;
        }
        for (size_t i = 0; i < n; i++) {
                Retained *s = &r->sources[r->n_sources++];
                *s = (Retained){ .retainer = r,
                                 .source = sources[i].source,
                                 .terms = sources[i].terms };
                s->report.next_usec = UINT64_MAX;
                list_init(&s->held);
        }
        int error = held_load(r);
        if (error < 0)
                log_error(error, "cannot read which delivered sources are held; they stay until "
                                 "the next start");
        retainer_kick(r);
}

/* ---- life ---- */

int retainer_new(Retainer **ret, const RetainerContext *context, const Config *config) {
        Retainer *r = calloc(1, sizeof *r);
        if (!r)
                return -ENOMEM;
        r->context = *context;
        take_config(r, config);
        *ret = r;
        return 0;
}

Retainer *retainer_free(Retainer *r) {
        if (!r)
                return NULL;
        forget_sources(r);
        sd_event_source_disable_unref(r->timer);
        free(r);
        return NULL;
}

void retainer_rebind(Retainer *r, const Config *config) {
        if (!r)
                return;
        take_config(r, config);
        retainer_kick(r);
}

bool retainer_is_letting_go(const Retainer *r, const char *id) {
        for (size_t i = 0; r && i < r->n_sources; i++) {
                const HeldItem *h = held_find(&r->sources[i], id);
                if (h && h->is_busy)
                        return true;
        }
        return false;
}

/* ---- for status ---- */

size_t retainer_view(Retainer *r, RetainerView *ret, size_t max) {
        size_t n = r ? MIN(max, r->n_sources) : 0;
        for (size_t i = 0; i < n; i++) {
                const Retained *s = &r->sources[i];
                ret[i] = (RetainerView){ .source = s->terms->name,
                                         .used_bytes = s->report.used_bytes,
                                         .max_use_bytes = s->report.max_use_bytes,
                                         .free_bytes = s->report.free_bytes,
                                         .keep_free_bytes = s->report.keep_free_bytes,
                                         .n_held = s->n_held,
                                         .n_unheld = unheld_n(s),
                                         .note = s->trouble ? s->trouble : s->note };
        }
        return n;
}
