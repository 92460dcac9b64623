/* Ends an undelivered bundle as EVICTED, with the reason in its row: either because the operator
 * prefers the loss to a full disk, or because the user has deleted its files and only our links
 * still hold them. The files themselves go later: those of an evicted bundle by a deletion, on the
 * strength of the row; links alone by intake. Which bundle is evicted is decided by policy.c. */
#include "agent/retention/eviction.h"

#include <stdlib.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"

bool eviction_is_busy(const Bundle *b) {
        return b->rec.state == BUNDLE_SHIPPING || b->shipping.n_running > 0 || b->shipping.cancel ||
               b->shipping.has_target_state || !bundle_is_written(b) || !b->rec.links_held ||
               bundle_record_is_redelivery(&b->rec);
}

static Bundle *find_undelivered(const Eviction *e) {
        Bundle *b = bundle_table_find(e->bundles, e->id);
        if (!b) { /* a quarantined one, or it ended meanwhile */
                _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                if (store_get(e->store, e->id, &rec) != 0 || rec.state != BUNDLE_QUARANTINED ||
                    bundle_table_revive(e->bundles, e->id, e->source, &b) < 0)
                        return NULL;
        }
        if (b->source == e->source && !b->rec.pinned && !eviction_is_busy(b) &&
            !bundle_state_is_terminal(b->rec.state))
                return b;
        if (b->rec.state == BUNDLE_QUARANTINED)
                bundle_table_forget(e->bundles, b);
        return NULL;
}

bool eviction_run(const Eviction *e) {
        _cleanup_free_ char *reason = NULL;
        bool release = e->act == RETENTION_RELEASE;
        char shortage[RETENTION_SHORTAGE_SIZE];
        Bundle *b = find_undelivered(e);
        if (!b)
                return false;
        retention_report_shortage(e->report, release ? "keep_free_undelivered" : "keep_free",
                                  release ? e->report->keep_free_undelivered_bytes
                                          : e->report->keep_free_bytes,
                                  shortage);
        reason = strbuf_format(
                release ? "deleted_by_user: its files were removed at the source before it "
                          "was delivered; %s, so the links that held them were released"
                        : "keep_free: %s, so it was evicted undelivered, as the oldest "
                          "(evict_undelivered: oldest)",
                shortage);
        if (!reason)
                return false;
        bool was_quarantined = b->rec.state == BUNDLE_QUARANTINED;
        if (release) /* nothing is at the source to be deleted: intake removes the links */
                b->rec.links_held = false;
        int r = bundle_set_state(e->bundles, b, BUNDLE_EVICTED, reason);
        if (r >= 0) {
                log_dump(e->id, LOG_WARNING, 0, "lost: %s", reason);
                return true;
        }
        log_dump(e->id, LOG_WARNING, r, "cannot evict it undelivered, trying again");
        b->rec.links_held = true; /* it was: eviction_is_busy() */
        if (was_quarantined)
                bundle_table_forget(e->bundles, b);
        return false;
}
