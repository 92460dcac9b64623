/* From a decision to a deletion, and what its row says then.
 *
 * The order, and why. Files go only on the strength of a row that is durable: of a delivered bundle, or of one that is evicted with its
 * links still marked as held. So a crash before the row changes nothing; a crash after it leaves a row that says what is still to be
 * done, and the next start does the rest. The links go with the files, member by member, and the mark is taken off the row last. Who is
 * evicted because the user has deleted the files has no files to go: its row is written without the mark, and intake lets go of the
 * links, or the next start's sweep does. */
#include <errno.h>
#include <string.h>

#include "agent/retention/retainer_private.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define OPEN_AGAIN_USEC (60 * USEC_PER_SEC)
#define LAST_LOOK_USEC (2 * USEC_PER_SEC)
#define FAILED_AGAIN_USEC (5 * USEC_PER_MINUTE)

static void set_trouble(Retained *s, const char *text) {
        free(s->trouble);
        s->trouble = text ? strdup(text) : NULL; /* NULL: then only the log has it */
}

/* ---- what came of it ---- */

static int take_mark_off(const Retained *s, const char *id, bool was_unheld) {
        Store *store = s->retainer->context.store;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_get(store, id, &rec);
        if (r != 0)
                return MIN(r, 0); /* no row, no mark */
        rec.links_held = false;
        r = store_begin(store);
        if (r < 0)
                return r;
        if (was_unheld)
                unheld_count(s);
        (void)store_update(store, &rec); /* a failure is told by the commit */
        return store_commit(store);
}

static void count_deleted(const Retained *s, const ActJob *j) {
        Store *store = s->retainer->context.store;
        if (j->tally.n_deleted == 0 || j->order.any_content) /* an eviction is a discard */
                return;
        (void)store_counter_add(store, "sources_deleted", j->tally.n_deleted); /* figures */
        (void)store_counter_add(store, "sources_deleted_bytes", j->tally.deleted_bytes);
}

static const char *why_text(RetentionWhy why) {
        return why == RETENTION_KEEP_FOR    ? "keep_for is over"
               : why == RETENTION_MAX_USE   ? "max_use was exceeded"
               : why == RETENTION_KEEP_FREE ? "keep_free was violated"
                                            : "begun before";
}

static void tell(const ActJob *j) {
        char text[PARSE_FORMAT_SIZE];
        const PinsTally *t = &j->tally;
        if (t->kept) {
                _cleanup_free_ char *escaped = path_escape(t->kept);
                log_dump(j->id, LOG_WARNING, 0,
                         "a file came into the place of one that was being deleted, and its name "
                         "was taken again at once: it is '%s' now",
                         escaped ? escaped : "?");
        }
        if (j->only_links)
                return;
        if (j->result == -ENOENT)
                log_dump(j->id, LOG_NOTICE, 0,
                         "nothing of ours holds its files any more, so they are not deleted: "
                         "remove them by hand");
        if (t->n_deleted > 0)
                log_dump(j->id, LOG_INFO, 0, "deleted %llu files at the source, %s: %s",
                         (unsigned long long)t->n_deleted,
                         parse_format_human(text, t->deleted_bytes), why_text(j->why));
        if (t->n_changed > 0)
                log_dump(j->id, LOG_NOTICE, 0,
                         "left %llu files at the source that have changed since they were shipped",
                         (unsigned long long)t->n_changed);
        if (t->n_open > 0)
                log_dump(j->id, LOG_INFO, 0,
                         "%llu files at the source are open for writing, trying again",
                         (unsigned long long)t->n_open);
        if (t->n_unshipped > 0)
                log_dump(j->id, LOG_INFO, 0,
                         "left %llu links to what was not shipped: they are looked at first",
                         (unsigned long long)t->n_unshipped);
}

static void note_away(Retained *s, const ActJob *j) {
        _cleanup_free_ char *text = NULL;
        if (asprintf(&text,
                     "cannot let go of delivered files below '%s': their file system is not there "
                     "now; mount it, trying again every minute",
                     j->terms->fixed) < 0)
                text = NULL;
        bool is_known = s->trouble && text && strcmp(s->trouble, text) == 0;
        log_dump(j->id, is_known ? LOG_DEBUG : LOG_WARNING, 0, "%s", text ? text : "out of memory");
        set_trouble(s, text);
}

static void note_failure(Retained *s, const ActJob *j) {
        _cleanup_free_ char *text = NULL;
        bool refused = j->result == -EACCES || j->result == -EPERM;
        if (asprintf(&text, "cannot delete delivered files below '%s': %s; %s", j->terms->fixed,
                     strerror(-j->result),
                     refused ? "give the agent CAP_DAC_OVERRIDE and CAP_FOWNER, or set "
                               "retention.after_delivery: keep"
                             : "trying again in 5 minutes") < 0)
                text = NULL;
        bool is_known = s->trouble && text && strcmp(s->trouble, text) == 0;
        log_dump(j->id, is_known ? LOG_DEBUG : LOG_WARNING, 0, "%s", text ? text : "out of memory");
        set_trouble(s, text);
}

static void put_off(Retained *s, HeldItem *h, uint64_t usec) {
        h->is_busy = false;
        h->is_measured = false;
        h->not_before_boot_usec = retainer_boot_usec(s->retainer) + usec;
        retainer_look_in(s->retainer, usec);
}

/* A row that cannot be written is tried again, and nothing but the row. */
static void finish(Retained *s, HeldItem *h, const ActJob *j) {
        bool was_unheld = j->result == -ENOENT;
        int r = take_mark_off(s, j->id, was_unheld);
        if (!h)
                return;
        if (r >= 0) {
                held_remove(s, h);
                return;
        }
        h->is_over = true;
        h->was_unheld = was_unheld;
        put_off(s, h, OPEN_AGAIN_USEC);
}

static void on_act_done(SourceTask *e) {
        ActJob *j = CONTAINER_OF(e, ActJob, errand);
        Retained *s = j->owner;
        HeldItem *h = held_find(s, j->id);
        s->n_acts--;
        tell(j);
        count_deleted(s, j);
        if (j->result == 0 || j->result == -ENOENT) {
                set_trouble(s, NULL);
                finish(s, h, j);
        } else if (h) {
                put_off(s, h, j->result < 0 ? FAILED_AGAIN_USEC : OPEN_AGAIN_USEC);
                if (j->result < 0)
                        note_failure(s, j);
                else if (j->result == PINS_E_AWAY)
                        note_away(s, j);
                h->awaits_look = j->result == PINS_E_UNSHIPPED;
                if (h->awaits_look)
                        s->retainer->context.recheck_links(s->source, j->id);
        }
        if (s->n_acts == 0 && s->has_more) /* else when it is time: what is free may lag behind */
                retainer_look_in(s->retainer, 0);
        act_job_free(j);
        retainer_plan(s->retainer);
}

/* ---- beginning ---- */

/* Another boot may have given the device another number. */
static void set_known_device(const Retainer *r, PinsOrder *order, const BundleRecord *rec) {
        uint64_t now = r->context.clock->realtime_usec(r->context.clock);
        uint64_t up = retainer_boot_usec(r);
        if (rec->changed_usec < now - MIN(now, up))
                order->unit_dev = 0;
}

static int get_prints(Store *store, const BundleRecord *rec, ActJob *j) {
        const char *base = rec->supplement_of[0] ? rec->supplement_of : rec->id;
        int r = store_get_own_prints(store, rec->id, &j->prints, &j->order.n_prints);
        if (r >= 0)
                r = store_get_prints(store, base, &j->known, &j->order.n_known);
        j->order.prints = j->prints;
        j->order.known = j->known;
        return MIN(r, 0);
}

/* The row decides: it may have been pinned since, or be gone. @return 0 and a job, 1 not to be done, -errno */
static int make_act(Retained *s, HeldItem *h, ActJob **ret) {
        Retainer *r = s->retainer;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int error = store_get(r->context.store, h->id, &rec);
        if (error < 0)
                return error;
        if (error > 0 || !rec.links_held) {
                held_remove(s, h);
                return 1;
        }
        h->is_pinned = rec.pinned;
        if (rec.pinned && r->terms.may_delete && !h->is_evicted)
                return 1;
        error = act_job_new(ret, s->terms, &rec);
        if (error < 0)
                return error;
        (*ret)->only_links = !r->terms.may_delete;
        (*ret)->order.drops_unshipped = h->was_looked_at;
        h->was_looked_at = false;
        set_known_device(r, &(*ret)->order, &rec);
        return h->is_evicted ? 0 : get_prints(r->context.store, &rec, *ret);
}

bool retainer_act(Retained *s, HeldItem *h, RetentionWhy why) {
        ActJob *j = NULL;
        int r = make_act(s, h, &j);
        if (r == 0) {
                j->owner = s;
                j->why = why;
                j->errand.done = on_act_done;
                r = s->retainer->context.submit(s->source, &j->errand);
        }
        if (r == 0) {
                h->is_busy = true;
                s->n_acts++;
                return true;
        }
        act_job_free(j);
        if (r < 0) {
                log_dump(h->id, LOG_WARNING, r,
                         "cannot begin to let go of its files, trying again");
                put_off(s, h, OPEN_AGAIN_USEC);
        }
        return false;
}

/* No measure tells when these are due. */
static void look_when_free(Retained *s, const HeldItem *h) {
        uint64_t now = retainer_boot_usec(s->retainer);
        if (!h->is_busy)
                retainer_look_in(s->retainer, h->not_before_boot_usec > now
                                                      ? h->not_before_boot_usec - now
                                                      : LAST_LOOK_USEC);
}

static void write_owed(Retained *s, HeldItem *h) {
        if (take_mark_off(s, h->id, h->was_unheld) >= 0)
                held_remove(s, h);
        else
                put_off(s, h, OPEN_AGAIN_USEC);
}

void retainer_act_on_owed(Retained *s) {
        LIST_FOREACH_SAFE (l, &s->held) {
                HeldItem *h = CONTAINER_OF(l, HeldItem, link);
                bool is_owed = h->is_over || h->is_evicted || !s->retainer->terms.may_delete;
                if (!is_owed)
                        continue;
                if (held_is_busy(s, h)) {
                        look_when_free(s, h);
                        continue;
                }
                if (h->is_over) {
                        write_owed(s, h);
                        continue;
                }
                if (s->n_acts >= RETAINER_ACTS_MAX) {
                        s->has_more = true;
                        return;
                }
                (void)retainer_act(s, h, RETENTION_NO_REASON); /* else at a later look */
        }
}
