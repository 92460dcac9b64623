/* What a bundle lacks: files that a scan left out, and files that were promised or removed. The
 * reasons stand in the bundle's row (`incomplete`), in the log, and in bundle_discards_total. Who
 * finds out that something is missing decides when to say so; here it is only said. */
#include "agent/intake/losses.h"

#include <jansson.h>
#include <stdlib.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"

bool losses_any(const ScanUnit *u) {
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++)
                if (u->skipped[skip] && scan_skip_is_loss((ScanSkip)skip))
                        return true;
        return false;
}

/* What is left out stands in the row from the first probe: a unit that is removed before it is
 * complete is known by its links alone, which do not say what they lack. */
void losses_label(Bundle *b, const ScanUnit *u) {
        json_t *reasons = json_array();
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++) {
                _cleanup_free_ char *text = scan_skip_reason((ScanSkip)skip, u->skipped[skip],
                                                             u->skipped_example[skip]);
                if (text)
                        json_array_append_new(reasons, json_string(text));
        }
        free(b->rec.incomplete);
        b->rec.incomplete = json_array_size(reasons) ? json_dumps(reasons, JSON_COMPACT) : NULL;
        b->rec.complete = !losses_any(u);
        json_decref(reasons);
}

void losses_report_skip(IntakeSource *s, const char *id, const ScanUnit *u, ScanSkip skip,
                        uint64_t n_counted) {
        _cleanup_free_ char *text =
                scan_skip_reason(skip, u->skipped[skip], u->skipped_example[skip]);
        if (!text)
                return;
        log_write(LOG_WARNING, 0, id, "source %s: %s; %s", s->config->name, text,
                  scan_skip_remedy(skip));
        if (u->skipped[skip] > n_counted)
                s->context->on_discard(scan_skip_name(skip), u->skipped[skip] - n_counted,
                                       s->context->userdata);
}

void losses_report(IntakeSource *s, const Bundle *b, const ScanUnit *u) {
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++)
                losses_report_skip(s, b->rec.id, u, (ScanSkip)skip, 0);
}

void losses_add_reason(BundleRecord *rec, const char *reason) {
        json_t *reasons = rec->incomplete ? json_loads(rec->incomplete, 0, NULL) : NULL;
        if (!reasons)
                reasons = json_array();
        json_array_append_new(reasons, json_string(reason));
        free(rec->incomplete);
        rec->incomplete = json_dumps(reasons, JSON_COMPACT);
        rec->complete = false;
        json_decref(reasons);
}
