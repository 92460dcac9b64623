/* What becomes of a unit that a scan or a probe of a path has seen: nothing, since it is known; a
 * probe of its bundle; a new bundle; or a probe for a supplement. */
#include "agent/intake/units.h"

#include "agent/intake/hook_hints.h"
#include "agent/intake/lock_renewal.h"
#include "agent/intake/new_bundle.h"
#include "agent/intake/supplement.h"
#include "agent/intake/unit_notes.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

/* Births are compared, too: a directory that is created again under its name often gets the inode
 * that was freed. */
static bool is_same_unit(const BundleRecord *rec, const ScanUnit *u) {
        return rec->unit_ino == (uint64_t)u->st.st_ino && rec->unit_dev == (uint64_t)u->st.st_dev &&
               (rec->unit_born_usec == 0 || u->born_usec == 0 ||
                rec->unit_born_usec == u->born_usec);
}

/* @return whether a unit may become a bundle: its names say so, or a hook of its owner has named it
 */
static bool is_evidence(IntakeSource *s, const char *path, const ScanUnit *u) {
        return u->is_evidence || hook_hints_name_unit(s, path, u->st.st_uid) ||
               unit_notes_name_unit(s->context->store, &(StoredUnit){ s->config->name, path },
                                    u->st.st_uid);
}

void units_handle(IntakeSource *s, ScanUnit *u) {
        if (unit_table_has(&s->table, u->relative, u->digest))
                return;
        _cleanup_free_ char *path = source_unit_path(s, u->relative);
        if (!path)
                return;
        Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, path);
        if (b && b->rec.state == BUNDLE_SETTLING && !bundle_is_from_links(&b->rec)) {
                source_remember(s, u->relative, u->digest);
                source_probe_bundle(b);
                return;
        }
        if (b) { /* not remembered: it is probed when the bundle has ended */
                bool is_new = u->digest != b->unit.seen_digest &&
                              (u->digest != b->rec.digest || b->rec.supplement_of[0]);
                b->unit.dirty = true;
                b->unit.seen_digest = u->digest;
                if (is_new)
                        source_probe_bundle(b);
                return;
        }
        if (!is_evidence(s, path, u))
                return;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_find_unit(s->context->store, s->config->name, path, &rec);
        if (r == STORE_E_NOT_FOUND) {
                new_bundle_start(s, u, ORIGIN_FOUND, NULL);
                return;
        }
        if (r < 0) {
                log_error(r,
                          "source %s: cannot read the state database, trying '%s' again at the "
                          "next scan",
                          s->config->name, path);
                return;
        }
        if (!bundle_state_is_inactive(rec.state) && !bundle_table_find(s->context->bundles, rec.id))
                return; /* two rows of one unit: this one waits for the next start */
        bool same_unit = is_same_unit(&rec, u);
        bool unique = rec.kind == SOURCE_NEURON_CORE_DUMP && rec.date_time[0];
        if (rec.digest == u->digest && same_unit && rec.state != BUNDLE_VANISHED) {
                source_remember(s, u->relative, u->digest);
                if (rec.state == BUNDLE_DELIVERED) /* a crash may have come before the mark */
                        lock_renewal_mark_delivered(s, u->relative, u->digest);
        } else if (u->is_file || (!same_unit && !unique))
                new_bundle_start(s, u, ORIGIN_FOUND, NULL);
        else if (rec.state == BUNDLE_DELIVERED || bundle_record_is_redelivery(&rec) ||
                 rec.state == BUNDLE_VANISHED)
                supplement_probe(s, u, rec.id);
        else /* quarantined, cancelled or evicted: the operator decides */
                source_remember(s, u->relative, u->digest);
}
