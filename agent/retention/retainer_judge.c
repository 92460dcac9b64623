/* From measures to acts. The sources of one file system are judged together, or each would make room for the same want. */
#include <errno.h>
#include <string.h>

#include "agent/retention/retainer_private.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"

/* ---- what is to be measured ---- */

typedef struct Collection {
        Retained *source;
        MeasureJob *job;
        size_t n_allocated;
} Collection;

static Subject *add_subject(Collection *c, const char *id) {
        MeasureJob *j = c->job;
        if (j->n == c->n_allocated) {
                size_t n = c->n_allocated ? 2 * c->n_allocated : 64;
                Subject *bigger = reallocarray(j->subjects, n, sizeof *bigger);
                if (!bigger)
                        return NULL;
                j->subjects = bigger;
                c->n_allocated = n;
        }
        Subject *x = &j->subjects[j->n++];
        *x = (Subject){ 0 };
        strcpy(x->id, id);
        return x;
}

bool held_is_busy(const Retained *s, const HeldItem *h) {
        return h->is_busy || h->not_before_boot_usec > retainer_boot_usec(s->retainer) ||
               (!h->is_evicted && s->retainer->context.is_rechecking_links(s->source, h->id));
}

static int add_held(Collection *c) {
        Retained *s = c->source;
        LIST_FOREACH_SAFE (l, &s->held) {
                HeldItem *h = CONTAINER_OF(l, HeldItem, link);
                if (h->is_evicted || h->is_over)
                        continue;
                if (h->is_pinned) { /* it may not be any more */
                        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                        h->is_pinned = store_get(s->retainer->context.store, h->id, &rec) != 0 ||
                                       rec.pinned;
                }
                Subject *x = add_subject(c, h->id);
                if (!x)
                        return -ENOMEM;
                x->is_known = h->is_measured;
                x->use = h->use;
                x->item = (RetentionItem){ .first_seen_usec = h->first_seen_usec,
                                           .delivered_usec = MAX(h->ended_usec, UINT64_C(1)),
                                           .is_pinned = h->is_pinned,
                                           .is_busy = held_is_busy(s, h) };
        }
        return 0;
}

static bool is_busy(const Bundle *b) {
        return b->rec.state == BUNDLE_SHIPPING || b->n_running > 0 || b->cancel || b->has_wish ||
               b->unsaved || b->uncommitted || !b->rec.links_held;
}

static int add_undelivered(Collection *c) {
        LIST_FOREACH (l, bundle_table_all(c->source->retainer->context.bundles)) {
                const Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->source != c->source->source || bundle_state_is_final(b->rec.state))
                        continue;
                Subject *x = add_subject(c, b->rec.id);
                if (!x)
                        return -ENOMEM;
                x->digest = b->rec.digest;
                x->is_known = b->used_inodes > 0 && b->used_digest == b->rec.digest;
                x->use.used_bytes = b->used_bytes;
                x->item = (RetentionItem){ .first_seen_usec = b->rec.first_seen_usec,
                                           .is_pinned = b->rec.pinned,
                                           .is_busy = is_busy(b) };
        }
        return 0;
}

/* They are not in the table, but they wait for the operator, and take room. */
static int add_quarantined(BundleRecord *rec, void *userdata) {
        Subject *x = add_subject(userdata, rec->id);
        if (!x)
                return -ENOMEM;
        x->item = (RetentionItem){ .first_seen_usec = rec->first_seen_usec,
                                   .is_pinned = rec->pinned,
                                   .is_busy = !rec->links_held };
        return 0;
}

static int collect(Collection *c) {
        const Retainer *r = c->source->retainer;
        StoreCounts counts;
        int error = add_held(c);
        if (error >= 0)
                error = add_undelivered(c);
        store_counts(r->context.store, &counts);
        if (error >= 0 && counts.bundles[BUNDLE_QUARANTINED] > 0)
                error = store_list(r->context.store,
                                   &(StoreFilter){ .state = BUNDLE_QUARANTINED,
                                                   .source = c->job->terms->name },
                                   add_quarantined, c);
        return error;
}

/* ---- what is to be done ---- */

static const char *room_text(char ret[160], const RetentionReport *report) {
        char free_text[PARSE_FORMAT_SIZE], keep_text[PARSE_FORMAT_SIZE];
        if (report->free_bytes < report->keep_free_bytes)
                (void)snprintf(ret, 160, "%s were free and keep_free asks for %s",
                               parse_format_human(free_text, report->free_bytes),
                               parse_format_human(keep_text, report->keep_free_bytes));
        else
                (void)snprintf(ret, 160, "fewer inodes were free than keep_free asks for");
        return ret;
}

static Bundle *find_undelivered(const Retained *s, const char *id) {
        const RetainerContext *c = &s->retainer->context;
        Bundle *b = bundle_table_find(c->bundles, id);
        if (!b) { /* a quarantined one, or it ended meanwhile */
                _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                if (store_get(c->store, id, &rec) != 0 || rec.state != BUNDLE_QUARANTINED ||
                    bundle_table_revive(c->bundles, id, s->source, &b) < 0)
                        return NULL;
        }
        bool may = b->source == s->source && !b->rec.pinned && !is_busy(b) &&
                   !bundle_state_is_over(b->rec.state);
        if (may)
                return b;
        if (b->rec.state == BUNDLE_QUARANTINED)
                bundle_table_forget(c->bundles, b);
        return NULL;
}

static void evict(Retained *s, const Subject *x, RetentionAct act) {
        const RetainerContext *c = &s->retainer->context;
        _cleanup_free_ char *reason = NULL;
        char room[160];
        Bundle *b = find_undelivered(s, x->id);
        if (!b)
                return;
        bool release = act == RETENTION_RELEASE;
        room_text(room, &s->report);
        if (asprintf(&reason,
                     release ? "deleted_by_user: its files were removed at the source before it "
                               "was delivered; %s, so the links that held them were let go"
                             : "keep_free: %s, so it was let go undelivered, as the oldest "
                               "(evict_undelivered: oldest)",
                     room) < 0) {
                reason = NULL;
                return;
        }
        bool was_quarantined = b->rec.state == BUNDLE_QUARANTINED;
        if (release) /* nothing is at the source to be deleted: intake lets go of the links */
                b->rec.links_held = false;
        int r = c->on_evict(b, reason, c->userdata);
        if (r >= 0) {
                log_dump(x->id, LOG_WARNING, 0, "lost: %s", reason);
                c->on_discard(release ? "deleted_by_user" : "keep_free", 1, c->userdata);
                return;
        }
        log_dump(x->id, LOG_WARNING, r, "cannot let it go undelivered, trying again");
        b->rec.links_held = true; /* it was: is_busy() */
        if (was_quarantined)
                bundle_table_forget(c->bundles, b);
}

static void carry_out(Retained *s, const Subject *x, const RetentionVerdict *v) {
        if (v->act == RETENTION_DELETE) {
                HeldItem *h = held_find(s, x->id);
                if (h && !held_is_busy(s, h))
                        (void)retainer_act(s, h, v->why); /* else at a later look */
        } else
                evict(s, x, v->act);
}

/* ---- what status says ---- */

static bool stays(const RetentionReport *r) {
        return r->stays_short || r->stays_over_use;
}

static char *describe(const Retained *s) {
        const RetentionReport *r = &s->report;
        const RetentionTerms *t = &s->retainer->terms;
        char a[PARSE_FORMAT_SIZE], b[PARSE_FORMAT_SIZE], room[160], *text = NULL;
        int n = 0;
        if (r->stays_short)
                n = asprintf(&text,
                             "short of room: %s, and nothing more may be let go; free some, or %s",
                             room_text(room, r),
                             !t->may_delete  ? "set retention.after_delivery: delete"
                             : !t->may_evict ? "set retention.evict_undelivered: oldest"
                                             : "unpin what is not wanted");
        else if (r->stays_over_use)
                n = asprintf(&text, "over max_use: sources take %s, max_use is %s; %s",
                             parse_format_human(a, r->used_bytes),
                             parse_format_human(b, r->max_use_bytes),
                             t->may_delete ? "the rest is not delivered yet, or pinned"
                                           : "with after_delivery: keep that is only said");
        return n < 0 ? NULL : text;
}

static void report(Retained *s, const RetentionReport *now) {
        bool was = stays(&s->report);
        bool was_short = s->report.stays_short;
        s->report = *now;
        free(s->note);
        s->note = describe(s);
        if (stays(now) && (!was || was_short != now->stays_short))
                log_warning(0, "source %s: %s", s->terms->name,
                            s->note ? s->note : "short of room");
        else if (!stays(now) && was)
                log_notice("source %s: has room again", s->terms->name);
}

/* ---- deciding ---- */

static void fill_item(Subject *x) {
        x->item.bytes = x->use.free_bytes;
        x->item.n_inodes = x->use.free_inodes;
        x->item.used_bytes = x->use.used_bytes;
        x->item.is_only_ours = x->use.is_there && x->use.is_only_ours;
        x->item.is_busy = x->item.is_busy || x->use.has_writer;
}

/* So that the next look need not measure it again. */
static void remember(const Retained *s, const Subject *x) {
        if (!x->use.is_there)
                return;
        HeldItem *h = x->item.delivered_usec > 0 ? held_find(s, x->id) : NULL;
        Bundle *b = h ? NULL : bundle_table_find(s->retainer->context.bundles, x->id);
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

static void take_measure(Retained *s) {
        for (size_t i = 0; i < s->measured->n; i++) {
                Subject *x = &s->measured->subjects[i];
                if (!x->is_known || s->measured->is_short)
                        remember(s, x);
                fill_item(x);
        }
}

static bool is_of(const Retained *s, dev_t device) {
        return s->measured && s->room.device == device;
}

/* Of some file system all that was measured. */
static int judge_items(Retainer *r, RetentionState *state, dev_t device) {
        _cleanup_free_ RetentionItem *items = calloc(MAX(state->n, (size_t)1), sizeof *items);
        _cleanup_free_ RetentionVerdict *verdicts =
                calloc(MAX(state->n, (size_t)1), sizeof *verdicts);
        RetentionReport now;
        if (!items || !verdicts)
                return -ENOMEM;
        size_t n = 0;
        for (size_t k = 0; k < r->n_sources; k++)
                for (size_t i = 0; is_of(&r->sources[k], device) && i < r->sources[k].measured->n;
                     i++)
                        items[n++] = r->sources[k].measured->subjects[i].item;
        state->items = items;
        int error = retention_decide(&r->terms, state, verdicts, &now);
        if (error < 0)
                return error;
        n = 0;
        for (size_t k = 0; k < r->n_sources; k++) {
                Retained *s = &r->sources[k];
                if (!is_of(s, device))
                        continue;
                report(s, &now);
                size_t n_begun = 0;
                for (size_t i = 0; i < s->measured->n; i++, n++) {
                        if (verdicts[n].act == RETENTION_KEEP)
                                continue;
                        if (n_begun++ < RETAINER_ACTS_MAX)
                                carry_out(s, &s->measured->subjects[i], &verdicts[n]);
                        else
                                s->has_more = true;
                }
        }
        return 0;
}

static void judge(Retainer *r, dev_t device) {
        RetentionState state = { .now_usec = r->context.clock->realtime_usec(r->context.clock) };
        for (size_t k = 0; k < r->n_sources; k++) {
                Retained *s = &r->sources[k];
                if (!is_of(s, device))
                        continue;
                take_measure(s);
                state.n += s->measured->n;
                state.room = (RetentionRoom){ s->room.total_bytes, s->room.free_bytes,
                                              s->room.total_inodes, s->room.free_inodes };
        }
        int error = judge_items(r, &state, device);
        if (error < 0)
                log_warning(error, "cannot judge what is to be let go of, trying again");
        for (size_t k = 0; k < r->n_sources; k++)
                if (is_of(&r->sources[k], device))
                        r->sources[k].measured = measure_job_free(r->sources[k].measured);
}

/* Whether one that is still out may be of this file system. One from an earlier round hangs: it is not waited for. */
static bool is_awaited(const Retainer *r, dev_t device) {
        for (size_t k = 0; k < r->n_sources; k++) {
                const Retained *s = &r->sources[k];
                if (s->is_measuring && s->round == r->round &&
                    (!s->has_room || s->room.device == device))
                        return true;
                if (s->n_acts > 0 && s->has_room && s->room.device == device)
                        return true; /* it is making room: the next look sees how much */
        }
        return false;
}

static void on_measured(SourceTask *e) {
        MeasureJob *j = CONTAINER_OF(e, MeasureJob, errand);
        Retained *s = j->owner;
        Retainer *r = s->retainer;
        s->is_measuring = false;
        measure_job_free(s->measured);
        s->measured = NULL;
        s->has_room = j->result >= 0;
        if (j->result < 0) {
                if (j->result != -ENOENT)
                        log_warning(j->result, "source %s: cannot measure '%s', trying again",
                                    j->terms->name, j->terms->fixed);
                measure_job_free(j);
        } else {
                s->room = j->room;
                s->measured = j;
        }
        for (size_t k = 0; k < r->n_sources; k++)
                if (r->sources[k].measured && !is_awaited(r, r->sources[k].room.device))
                        judge(r, r->sources[k].room.device);
        retainer_plan(r);
}

void retainer_measure(Retained *s) {
        MeasureJob *j = NULL;
        if (s->is_measuring || s->n_acts > 0)
                return;
        int r = measure_job_new(&j, s->terms);
        if (r >= 0) {
                Collection c = { .source = s, .job = j };
                j->owner = s;
                j->policy = s->retainer->terms;
                j->errand.done = on_measured;
                r = collect(&c);
        }
        if (r >= 0 && j->n > 0) {
                r = s->retainer->context.submit(s->source, &j->errand);
                s->is_measuring = r >= 0;
                s->round = s->retainer->round;
        }
        if (s->is_measuring)
                return;
        measure_job_free(j);
        if (r < 0)
                log_warning(r, "source %s: cannot measure what it takes, trying again",
                            s->terms->name);
}
