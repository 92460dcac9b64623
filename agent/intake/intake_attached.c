/* What was attached to a unit after its bundle began goes out as a supplement of its own, which touches neither the source nor its links. And what was
 * attached is let go of when the bundle that has it is over. The directories in the state directory are the truth: a crash at any point is
 * found by the next sweep. */

#include "agent/intake/intake_private.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

/* What was attached to a unit that never became a bundle is let go after so long, with a clock that is not set forward meanwhile. */
#define NOBODYS_USEC (7 * USEC_PER_DAY)

static void release_all(IntakeSource *s, const char *path) {
        int r = attachments_release(s->context->attachments, s->config->name, path);
        if (r < 0)
                log_warning(r,
                            "source %s: cannot remove what was attached to '%s'; a later scan "
                            "tries again",
                            s->config->name, path);
}

static void release_of(IntakeSource *s, const char *path, const char *id) {
        int r = attachments_release_bundle(s->context->attachments, s->config->name, path, id);
        if (r < 0)
                log_dump(id, LOG_WARNING, r,
                         "cannot remove what was attached to it; a later scan tries again");
}

/* Something waits, and nobody works on the unit: is there a base that it can follow? */
static void consider(IntakeSource *s, const char *path) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        uint64_t bytes;
        size_t n = attachments_waiting(s->context->attachments, s->config->name, path, &bytes);
        if (n == 0 || bundle_table_find_unit(s->context->bundles, s->config->name, path) ||
            store_find_unit(s->context->store, s->config->name, path, &base) != 0)
                return; /* whatever comes next for this unit, or a scan, looks again */
        switch (base.state) {
        case BUNDLE_DELIVERED:
                intake_begin_of_attachments(s, &base, n, bytes);
                break;
        case BUNDLE_EVICTED:
        case BUNDLE_CANCELLED:
        case BUNDLE_VANISHED:
                release_all(s, path);
                break;
        default: /* quarantined: the operator may bring it back */
                break;
        }
}

static int on_attached(sd_event_source *source, uint64_t usec, void *userdata) {
        IntakeSource *s = userdata;
        (void)source;
        (void)usec;
        while (!pending_is_empty(&s->attached)) {
                _cleanup_free_ char *path = pending_take(&s->attached);
                consider(s, path);
        }
        return 0;
}

/* Not at once: the bundle that ends is still in the table. */
static void consider_soon(IntakeSource *s, const char *path) {
        int r = pending_add(&s->attached, path);
        if (r >= 0)
                r = timer_arm(&s->attached_timer, &(TimerOrder){ .event = s->context->event,
                                                                 .usec = 0,
                                                                 .handler = on_attached,
                                                                 .userdata = s });
        if (r < 0)
                log_warning(r, "source %s: a later scan looks at what was attached to '%s'",
                            s->config->name, path);
}

void intake_source_attached(IntakeSource *s, const char *unit_path) {
        if (path_is_below(unit_path, s->terms->fixed))
                consider_soon(s, unit_path);
}

void intake_attached_on_final(IntakeSource *s, const Bundle *b) {
        if (!s->context->attachments || b->rec.state == BUNDLE_QUARANTINED)
                return;
        release_of(s, b->rec.path, b->rec.id);
        if (attachments_waiting(s->context->attachments, s->config->name, b->rec.path, NULL) > 0)
                consider_soon(s, b->rec.path);
}

/* A hook may run before the directory is made that it is to write into: what it began so shortly before is the new one's. */
void intake_attached_renewed(IntakeSource *s, const char *path) {
        IntakeContext *c = s->context;
        uint64_t now = intake_realtime_usec(s);
        uint64_t before = now - MIN(now, c->hook_deadline_usec + USEC_PER_SEC);
        if (c->on_renewed)
                c->on_renewed(s->config->name, path, before, c->userdata);
        int r = c->attachments
                        ? attachments_release_before(c->attachments, s->config->name, path, before)
                        : 0;
        if (r < 0)
                log_warning(r, "source %s: what was attached to an earlier '%s' cannot be removed",
                            s->config->name, path);
        else if (r > 0)
                log_notice("source %s: '%s' is another one than before; %d files that came too "
                           "late for the earlier one are let go",
                           s->config->name, path, r);
}

/* ---- what a crash left ---- */

static void release_if_over(IntakeSource *s, const char *path, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (bundle_table_find(s->context->bundles, id) ||
            store_get(s->context->store, id, &rec) != 0)
                return; /* of what is not known nothing is taken away */
        if (bundle_state_is_over(rec.state))
                release_of(s, path, id);
}

static void on_unit(const char *path, uint64_t changed_usec, void *userdata) {
        IntakeSource *s = userdata;
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        _cleanup_(attachment_names_done) AttachmentNames ids = { 0 };
        uint64_t now = intake_realtime_usec(s);
        if (!path_is_below(path, s->terms->fixed))
                return;
        int r = attachments_bundles(s->context->attachments, s->config->name, path, &ids);
        for (size_t i = 0; i < ids.n; i++)
                release_if_over(s, path, ids.items[i]);
        if (r < 0)
                log_warning(r, "source %s: cannot see what is attached to '%s'", s->config->name,
                            path);
        if (attachments_waiting(s->context->attachments, s->config->name, path, NULL) == 0)
                return;
        if (now > changed_usec + NOBODYS_USEC && s->steady_usec > NOBODYS_USEC &&
            !bundle_table_find_unit(s->context->bundles, s->config->name, path) &&
            store_find_unit(s->context->store, s->config->name, path, &base) == STORE_E_NOT_FOUND) {
                log_notice("source %s: '%s' never became a bundle; what was attached to it is let "
                           "go",
                           s->config->name, path);
                release_all(s, path);
                return;
        }
        consider_soon(s, path);
}

void intake_attached_sweep(IntakeSource *s) {
        if (!s->context->attachments)
                return;
        s->steady_usec = clock_steady_usec(&s->steady, s->context->clock);
        int r = attachments_list(s->context->attachments, s->config->name, on_unit, s);
        if (r < 0)
                log_warning(r, "source %s: cannot see what is attached; a later scan tries again",
                            s->config->name);
}

void intake_attached_done(IntakeSource *s) {
        pending_done(&s->attached);
        sd_event_source_disable_unref(s->attached_timer);
}
