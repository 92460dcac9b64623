/* Files that come into a unit while its bundle is READY or SHIPPING: links hold them at once, under
 * the id of the bundle's next supplement. When the bundle is delivered, the recheck of these links
 * starts the supplement; when it is cancelled or evicted, they are released. */
#include "agent/intake/late_files.h"

#include <errno.h>
#include <string.h>

#include "agent/intake/ended_links.h"
#include "agent/intake/losses.h"
#include "agent/intake/probe.h"
#include "agent/intake/supplement.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"

/* Starts the supplement of late files once all destinations have the bundle, and releases their
 * links if the bundle was cancelled or evicted. In every other state the links stay. */
static void handle_late_links(IntakeSource *s, const BundleRecord *rec, const char *supplement_id) {
        if (rec->state == BUNDLE_DELIVERED || rec->is_redelivery)
                intake_recheck_links(s, supplement_id);
        else if (rec->state == BUNDLE_CANCELLED || rec->state == BUNDLE_EVICTED)
                ended_links_release(s, supplement_id);
}

static void report_vanished_files(IntakeSource *s, const char *id, uint64_t n) {
        _cleanup_(bundle_record_done) BundleRecord stored = { 0 };
        Bundle *b = bundle_table_find(s->context->bundles, id);
        BundleRecord *rec = b ? &b->rec : &stored;
        _cleanup_free_ char *text = strbuf_format(
                "vanished: %llu %s that came while it was being delivered could not be held, and "
                "%s removed before a supplement had %s",
                (unsigned long long)n, n == 1 ? "file" : "files", n == 1 ? "was" : "were",
                n == 1 ? "it" : "them");
        if (!text || (!b && store_get(s->context->store, id, &stored) != 0))
                return;
        log_dump(id, LOG_WARNING, 0, "%s", text);
        s->context->on_discard("vanished-file", n, s->context->userdata);
        losses_add_reason(rec, text);
        if (b)
                bundle_save(s->context->bundles, b);
        else
                (void)store_update(s->context->store,
                                   rec); /* on error: the metric has counted it */
}

static void on_late_probed(IntakeSource *s, ProbeJob *p) {
        Bundle *b = bundle_table_find(s->context->bundles, p->bundle_id);
        uint64_t n_held = p->n_unheld + p->n_linked;
        if (b && b->source == s) {
                b->probing = false;
                b->is_replaced = b->is_replaced || p->met_another;
                b->has_late = b->has_late || p->n_linked > 0;
                b->n_unheld = p->n_unheld;
                b->check_took_usec = p->duration_usec;
                if (p->result < 0 && p->result != -ENOENT)
                        b->seen_digest = 0; /* the next scan starts another probe */
        }
        log_dump(p->bundle_id, LOG_DEBUG, MIN(p->result, 0),
                 "looked at what came late: %llu files are held now, %llu cannot be",
                 (unsigned long long)p->n_linked, (unsigned long long)p->n_unheld);
        source_report_hold_error(s, p->hold_error);
        if ((p->result == 0 || p->result == -ENOENT) && p->n_was_unheld > n_held)
                report_vanished_files(s, p->bundle_id, p->n_was_unheld - n_held);
        if (!b && p->n_linked > 0) {
                _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                if (store_get(s->context->store, p->bundle_id, &rec) == 0)
                        handle_late_links(s, &rec, p->supplement_id);
        }
        if (!b || b->source != s)
                return;
        if (b->rec.state == BUNDLE_SETTLING)
                source_probe_bundle(b);
        else if (bundle_is_underway(b) && b->probe_wanted)
                source_probe_bundle_in(b, MAX(REPROBE_USEC, REPROBE_SHARE * p->duration_usec));
        b->probe_wanted = false;
}

/* Starts a probe of a READY or SHIPPING bundle's unit that links the files which came late. */
void late_files_hold(Bundle *b) {
        IntakeSource *s = b->source;
        _cleanup_(probe_job_freep) ProbeJob *p = NULL;
        if (s->spec->scan.kind == SOURCE_PROCESS_CORE || bundle_is_of_attachments(&b->rec) ||
            bundle_is_from_links(&b->rec))
                return;
        if (b->probing) {
                b->probe_wanted = true;
                return;
        }
        const char *base_id = b->rec.supplement_of[0] ? b->rec.supplement_of : b->rec.id;
        if (probe_job_new(&p, s->spec, source_spec_relative(s->spec, b->rec.path)) < 0 ||
            supplement_next_id(s, b, p->supplement_id) < 0 ||
            store_get_prints(s->context->store, base_id, &p->shipped, &p->n_shipped) < 0)
                return; /* the next event or scan tries again */
        strcpy(p->bundle_id, b->rec.id);
        p->is_late = true;
        p->base_is_held = b->rec.links_held || b->rec.is_redelivery;
        p->base_files = b->rec.n_files;
        p->n_was_unheld = b->n_unheld;
        if (s->spec->scan.kind != SOURCE_NEURON_CORE_DUMP) {
                p->unit_ino = b->rec.unit_ino;
                p->unit_born_usec = b->rec.unit_born_usec;
        }
        b->probing = source_submit_probe(s, s->probes, TAKE_PTR(p), on_late_probed);
}

void late_files_on_final(IntakeSource *s, Bundle *b) {
        char supplement_id[BUNDLE_ID_SIZE];
        if (b->n_unheld > 0)
                late_files_hold(b);
        if (b->has_late && supplement_next_id(s, b, supplement_id) == 0)
                handle_late_links(s, &b->rec, supplement_id);
}
