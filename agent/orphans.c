#include "agent/orphans.h"

#include "lib/base/log.h"

typedef struct Unit {
        const OrphansContext *context;
        const AttachmentsUnit *unit;
        bool is_old;
        bool is_needed; /* a bundle that is not over was given something */
} Unit;

/* What cannot be read may be anything. */
static bool is_over(int r, const BundleRecord *rec, bool is_old) {
        return r == STORE_E_NOT_FOUND ? is_old : r == 0 && bundle_state_is_over(rec->state);
}

static void on_bundle(const char *id, void *userdata) {
        Unit *u = userdata;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_get(u->context->store, id, &rec);
        if (!is_over(r, &rec, u->is_old)) {
                u->is_needed = true;
                return;
        }
        r = attachments_release_bundle(u->context->attachments, u->unit->source, u->unit->unit_path,
                                       id);
        if (r < 0)
                log_dump(id, LOG_WARNING, r,
                         "cannot remove what was attached to it; in an hour it is tried again");
}

static void on_unit(const AttachmentsUnit *unit, void *userdata) {
        const OrphansContext *c = userdata;
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        Unit u = { c, unit, c->now_usec > unit->changed_usec + ORPHANS_WAIT_USEC, false };
        if (c->is_configured(unit->source, c->userdata))
                return;
        int r = attachments_list_bundles(c->attachments, unit->source, unit->unit_path, on_bundle,
                                         &u);
        if (r < 0 || u.is_needed || !u.is_old)
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
