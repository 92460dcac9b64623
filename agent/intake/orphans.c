#include "agent/intake/orphans.h"

#include "lib/base/log.h"

/* What cannot be read may be anything. */
static bool is_over(int r, const BundleRecord *rec, bool is_old) {
        return r == STORE_E_NOT_FOUND ? is_old : r == 0 && bundle_state_is_over(rec->state);
}

static bool is_old(const OrphansContext *c, const AttachmentsUnit *unit) {
        return c->now_usec > unit->changed_usec + ORPHANS_WAIT_USEC &&
               c->steady_usec > ORPHANS_WAIT_USEC;
}

/* @return whether the bundle is over, and what it was given has gone, or goes with the next sweep */
static bool let_go(const OrphansContext *c, const AttachmentsUnit *unit, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_get(c->store, id, &rec);
        if (!is_over(r, &rec, is_old(c, unit)))
                return false;
        r = attachments_release_bundle(c->attachments, unit->source, unit->unit_path, id);
        if (r < 0)
                log_dump(id, LOG_WARNING, r,
                         "cannot remove what was attached to it; in an hour it is tried again");
        return true;
}

static void on_unit(const AttachmentsUnit *unit, void *userdata) {
        const OrphansContext *c = userdata;
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        _cleanup_(attachment_names_done) AttachmentNames ids = { 0 };
        bool is_needed = false;
        if (c->is_configured(unit->source, c->userdata))
                return;
        int r = attachments_bundles(c->attachments, unit->source, unit->unit_path, &ids);
        for (size_t i = 0; i < ids.n; i++)
                is_needed |= !let_go(c, unit, ids.items[i]);
        if (r < 0 || is_needed || !is_old(c, unit))
                return;
        r = store_find_unit(c->store, unit->source, unit->unit_path, &base);
        if (!is_over(r, &base, true))
                return;
        r = attachments_release(c->attachments, unit->source, unit->unit_path);
        if (r < 0)
                log_warning(r,
                            "cannot remove what was attached to '%s'; in an hour it is tried again",
                            unit->unit_path);
        else
                log_notice("source '%s' is not configured any more; what was attached to '%s' is "
                           "let go",
                           unit->source, unit->unit_path);
}

void orphans_sweep(const OrphansContext *c) {
        int r = attachments_list_all(c->attachments, on_unit, (void *)c);
        if (r < 0)
                log_warning(r, "cannot see what is attached to dumps of former sources; in an hour "
                               "it is tried again");
}
