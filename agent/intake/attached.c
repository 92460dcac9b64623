/* What hooknotes/attachments.c has attached to units of this source. What was attached after a
 * unit's bundle began is shipped as a supplement of its own; what a bundle was given is removed
 * when the bundle has ended.
 *
 * The directories in the state directory are the truth: a crash at any point is found by the next
 * sweep, which every scan ends with. The sweep also removes, after a while, what was attached to
 * units that never became a bundle, and to those of sources that are not configured any more. */
#include "agent/intake/attached.h"

#include <errno.h>
#include <string.h>

#include "agent/intake/source.h"
#include "agent/intake/supplement.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

/* What was attached to a unit that never became a bundle is released after so long, by a clock that
 * was not set forward. */
#define UNCLAIMED_USEC (7 * USEC_PER_DAY)
static void release_all(IntakeSource *s, const char *source, const char *path) {
        int r = attachments_release(s->context->attachments, source, path);
        if (r < 0)
                log_warning(r,
                            "source %s: cannot remove what was attached to '%s'; a later scan "
                            "tries again",
                            source, path);
}

static void release_of(IntakeSource *s, const char *source, const char *path, const char *id) {
        int r = attachments_release_bundle(s->context->attachments, source, path, id);
        if (r < 0)
                log_dump(id, LOG_WARNING, r,
                         "cannot remove what was attached to it; a later scan tries again");
}

/* If no bundle of the unit is active, ships what waits as a supplement of the delivered bundle, or
 * removes it if the bundle was given up. */
static void supplement_or_release(IntakeSource *s, const char *path) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        uint64_t bytes;
        if (attachments_are_coming(s->context->attachments, s->config->name, path))
                return; /* intake_source_on_attached() is called when all are there */
        size_t n = attachments_waiting(s->context->attachments, s->config->name, path, &bytes);
        if (n == 0 || bundle_table_find_unit(s->context->bundles, s->config->name, path) ||
            store_find_unit(s->context->store, s->config->name, path, &base) != 0)
                return; /* the next event of this unit, or a scan, checks again */
        switch (base.state) {
        case BUNDLE_DELIVERED:
                supplement_of_attachments(s, &base, n, bytes);
                break;
        case BUNDLE_EVICTED:
        case BUNDLE_CANCELLED:
        case BUNDLE_VANISHED:
                release_all(s, s->config->name, path);
                break;
        default: /* quarantined: the operator may restore it */
                break;
        }
}

static int on_attached(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source, (void)usec;
        while (!path_queue_is_empty(&s->attached.queue)) {
                _cleanup_free_ char *path = path_queue_pop(&s->attached.queue);
                supplement_or_release(s, path);
        }
        return 0;
}

/* The unit is handled in the next turn of the loop: the bundle that ends is still in the table. */
static void queue_unit(IntakeSource *s, const char *path) {
        int r = path_queue_add(&s->attached.queue, path, &(Owner){ 0 });
        if (r >= 0)
                r = timer_arm(&s->attached.timer, &(TimerOptions){ .event = s->context->event,
                                                                   .usec = 0,
                                                                   .handler = on_attached,
                                                                   .userdata = s });
        if (r < 0)
                log_warning(r, "source %s: a later scan handles what was attached to '%s'",
                            s->config->name, path);
}

void intake_source_on_attached(IntakeSource *s, const char *unit_path) {
        if (path_is_below(unit_path, s->spec->fixed))
                queue_unit(s, unit_path);
}

void attached_on_final(IntakeSource *s, const Bundle *b) {
        if (!s->context->attachments || b->rec.state == BUNDLE_QUARANTINED)
                return;
        release_of(s, s->config->name, b->rec.path, b->rec.id);
        if (attachments_waiting(s->context->attachments, s->config->name, b->rec.path, NULL) > 0)
                queue_unit(s, b->rec.path);
}

/* ---- the sweep ---- */

#define FORMER_USEC USEC_PER_DAY

/* A bundle whose row cannot be read has not ended. @param r  what the store returned @param
 * if_unknown  the answer for a bundle that the store does not have @return whether the bundle is
 * not shipped any more */
static bool has_ended(int r, const BundleRecord *rec, bool if_unknown) {
        return r == STORE_E_NOT_FOUND ? if_unknown : r == 0 && bundle_state_is_terminal(rec->state);
}

/* @return whether the bundle has ended: its attachments are removed, now or by the next sweep */
static bool release_if_ended(IntakeSource *s, const AttachmentsUnit *unit, const char *id,
                             bool if_unknown) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (bundle_table_find(s->context->bundles, id) ||
            !has_ended(store_get(s->context->store, id, &rec), &rec, if_unknown))
                return false;
        release_of(s, unit->source, unit->unit_path, id);
        return true;
}

/* Returns to the unit what is assigned to a supplement whose row was lost with the database: no
 * scan finds that supplement again, so the next one of the unit ships the files. A file stays
 * assigned while another of its name waits; a later sweep returns it. */
static void return_of_lost(IntakeSource *s, const AttachmentsUnit *unit, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 }, base = { 0 };
        _cleanup_(attachment_names_done) AttachmentNames names = { 0 };
        if (bundle_table_find(s->context->bundles, id) || supplement_base(s, id, &base) != 0 ||
            store_get(s->context->store, id, &rec) != STORE_E_NOT_FOUND)
                return;
        _cleanup_close_ int fd = attachments_open_assigned(s->context->attachments, unit->source,
                                                           unit->unit_path, id);
        int r = fd < 0 ? fd : attachment_names(fd, &names);
        for (size_t i = 0; r == 0 && i < names.n; i++)
                r = attachments_return(fd, names.items[i]);
        if (r < 0)
                log_dump(id, LOG_WARNING, r,
                         "cannot return what was attached to it; a later scan tries again");
        attachment_names_done(&names);
        names = (AttachmentNames){ 0 };
        if (r == 0 && attachment_names(fd, &names) == 0 && names.n == 0)
                release_of(s, unit->source, unit->unit_path, id);
}

static void on_attached_unit(const AttachmentsUnit *unit, void *userdata) {
        IntakeSource *s = userdata;
        const IntakeContext *c = s->context;
        const char *path = unit->unit_path;
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        _cleanup_(attachment_names_done) AttachmentNames ids = { 0 };
        bool is_mine = strcmp(unit->source, s->config->name) == 0, is_needed = false;
        bool is_former =
                !is_mine && c->is_configured && !c->is_configured(unit->source, c->userdata);
        if (is_mine ? !path_is_below(path, s->spec->fixed) : !is_former)
                return;
        uint64_t wait = is_former ? FORMER_USEC : UNCLAIMED_USEC;
        bool is_old = source_realtime_usec(s) > unit->changed_usec + wait &&
                      s->attached.steady_usec > wait;
        int r = attachments_bundles(c->attachments, unit->source, path, &ids);
        for (size_t i = 0; i < ids.n; i++) {
                is_needed |= !release_if_ended(s, unit, ids.items[i], is_former && is_old);
                if (is_mine)
                        return_of_lost(s, unit, ids.items[i]);
        }
        if (r < 0)
                log_warning(r, "source %s: cannot see what is attached to '%s'", unit->source,
                            path);
        if (r < 0 || attachments_waiting(c->attachments, unit->source, path, NULL) == 0)
                return;
        r = is_old && !bundle_table_find_unit(c->bundles, unit->source, path)
                    ? store_find_unit(c->store, unit->source, path, &base)
                    : -EAGAIN;
        if ((is_mine || !is_needed) &&
            (r == STORE_E_NOT_FOUND || (is_former && has_ended(r, &base, true)))) {
                log_notice("source %s: '%s' %s; what was attached to it is removed", unit->source,
                           path,
                           is_former ? "is of a source that is not configured any more"
                                     : "never became a bundle");
                release_all(s, unit->source, path);
        } else if (is_mine)
                queue_unit(s, path);
}

void attached_sweep(IntakeSource *s) {
        if (!s->context->attachments)
                return;
        s->attached.steady_usec = clock_step_age_usec(&s->attached.steady, s->context->clock);
        int r = attachments_list_all(s->context->attachments, on_attached_unit, s);
        if (r < 0)
                log_warning(r, "source %s: cannot see what is attached; a later scan tries again",
                            s->config->name);
}

void attached_init(IntakeSource *s) {
        path_queue_init(&s->attached.queue, PATH_QUEUE_MAX, NULL);
}

void attached_done(IntakeSource *s) {
        sd_event_source_disable_unref(s->attached.timer);
        path_queue_done(&s->attached.queue);
}
