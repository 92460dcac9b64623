/* Files that come into a unit while its bundle is READY or SHIPPING: links hold them at once, under
 * the id of the bundle's next supplement. When the bundle is delivered, the recheck of these links
 * starts the supplement; when it is cancelled or evicted, they are released. */
#include "agent/intake/late_files.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/ended_links.h"
#include "agent/intake/losses.h"
#include "agent/intake/probe.h"
#include "agent/intake/supplement.h"
#include "agent/intake/unit_walk.h"
#include "agent/retention/link_rule.h"
#include "agent/retention/link_session.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/ids.h"

/* ---- the probe, in a thread ---- */

/* Members that the bundle neither ships nor holds are linked for the supplement. */
typedef struct LateProbe {
        IntakeProbe probe; /* result: 0, -ENOENT: the unit is gone, -errno */
        char bundle_id[BUNDLE_ID_SIZE];
        char supplement_id[BUNDLE_ID_SIZE];
        uint64_t *shipped; /* sorted fingerprints of what was shipped of this unit; owned */
        size_t n_shipped;
        bool base_is_held;     /* by links; else all but base_files files count as unheld */
        uint64_t base_files;   /* of the bundle */
        uint64_t n_was_unheld; /* at the probe before */
        uint64_t unit_ino, unit_born_usec; /* as UnitWalk has them */

        uint64_t n_unreadable; /* members */
        uint64_t n_unheld;     /* members that this agent does not hold */
        uint64_t n_linked;     /* members that were linked now */
        bool met_another;      /* another unit is in the unit's place */
        char *hold_error;      /* why links could not be made, and the remedy; owned */

        LinkSession *session, *base_session; /* while it runs: of the supplement, of the bundle */
        bool has_link, base_has_link; /* while it runs: the current member has a link of theirs */
} LateProbe;

static LateProbe *late_probe_of(IntakeProbe *p) {
        return CONTAINER_OF(p, LateProbe, probe);
}

static unsigned own_links(const char *member_path, const struct stat *st, void *userdata) {
        LateProbe *p = userdata;
        bool base_has;
        unsigned n = link_session_own_links(p->session, member_path, st, &p->has_link);
        (void)link_session_own_links(p->base_session, member_path, st, &base_has);
        p->base_has_link = base_has;
        return p->has_link || base_has ? UINT_MAX : n;
}

static int on_member(const ScanMember *m, int unit_fd, void *userdata) {
        LateProbe *p = userdata;
        bool has_link = p->has_link, base_has_link = p->base_has_link;
        p->has_link = p->base_has_link = false; /* own_links() may not be called */
        if (unit_walk_is_another(unit_fd, p->unit_ino, p->unit_born_usec)) {
                p->met_another = true;
                return -ENOENT;
        }
        p->n_unreadable += m->skip == SCAN_SKIP_UNREADABLE;
        if (m->skip != SCAN_SKIP_NONE || base_has_link || has_link ||
            member_fingerprints_contain(p->shipped, p->n_shipped,
                                        member_fingerprint(m->path, &m->st)))
                return 0;
        p->n_unheld++;
        if (!p->base_is_held || p->hold_error)
                return 0;
        int r = link_session_add(p->session, &(LinkMember){ m->path, unit_fd, m->path, &m->st },
                                 &p->hold_error);
        p->n_linked += r == 0;
        p->n_unheld -= r == 0 || r == -ENOENT; /* it was removed again: not counted as unheld */
        return r == -ENOMEM ? r : 0;
}

/* Where no links hold the bundle's own members, only their number tells how many files are late. */
static int run(IntakeProbe *probe) {
        LateProbe *p = late_probe_of(probe);
        const SourceSpec *spec = probe->spec;
        int r = link_session_new(&p->session, spec->link_dirs, p->supplement_id,
                                 (size_t)spec->scan.max_files);
        if (r >= 0)
                r = link_session_new(&p->base_session, spec->link_dirs, p->bundle_id,
                                     (size_t)spec->scan.max_files);
        if (r >= 0)
                r = scan_members(&(ScanWalk){ .source = &spec->scan,
                                              .relative = probe->relative,
                                              .loose = source_spec_is_loose(spec, probe->relative),
                                              .own_links = own_links,
                                              .on_member = on_member,
                                              .userdata = p });
        p->session = link_session_free(p->session);
        p->base_session = link_session_free(p->base_session);
        if (!p->base_is_held)
                p->n_unheld -= MIN(p->n_unheld, p->base_files);
        if (r == 0 && p->n_unreadable > 0 && unit_locks_is_away(spec->locks))
                r = -ESTALE;
        if (r < 0 && r != -ENOENT) /* whether files are gone is not known */
                p->n_unheld = p->n_was_unheld;
        return r;
}

static void free_probe(IntakeProbe *probe) {
        LateProbe *p = late_probe_of(probe);
        probe_done(probe);
        free(p->shipped);
        free(p->hold_error);
        free(p);
}

static LateProbe *new_probe(IntakeSource *s, const Bundle *b) {
        static const ProbeKind kind = { run, free_probe };
        LateProbe *p = calloc(1, sizeof *p);
        if (p &&
            probe_init(&p->probe, &kind, s->spec, source_spec_relative(s->spec, b->rec.path)) < 0) {
                free(p);
                return NULL;
        }
        return p;
}

/* ---- on the loop ---- */

static void handle_late_links(IntakeSource *s, const BundleRecord *rec, const char *supplement_id) {
        const LinkFate fate = link_rule(&(LinkFacts){ .base = rec, .is_of_source = true });
        if (fate == LINKS_RECHECK)
                intake_recheck_links(s, supplement_id);
        else if (fate == LINKS_RELEASE)
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

static void on_probed(IntakeSource *s, IntakeProbe *probe) {
        const LateProbe *p = late_probe_of(probe);
        Bundle *b = bundle_table_find(s->context->bundles, p->bundle_id);
        uint64_t n_held = p->n_unheld + p->n_linked;
        bool is_another_due = b && b->unit.state == UNIT_PROBING_AGAIN;
        if (b && b->source == s) {
                source_set_unit_state(b, UNIT_WAITING);
                b->unit.is_replaced = b->unit.is_replaced || p->met_another;
                b->unit.has_late = b->unit.has_late || p->n_linked > 0;
                b->unit.n_unheld = p->n_unheld;
                b->facts.check_took_usec = probe->duration_usec;
                if (probe->result < 0 && probe->result != -ENOENT)
                        b->unit.seen_digest = 0; /* the next scan starts another probe */
        }
        log_dump(p->bundle_id, LOG_DEBUG, MIN(probe->result, 0),
                 "looked at what came late: %llu files are held now, %llu cannot be",
                 (unsigned long long)p->n_linked, (unsigned long long)p->n_unheld);
        source_report_hold_error(s, p->hold_error);
        if ((probe->result == 0 || probe->result == -ENOENT) && p->n_was_unheld > n_held)
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
        else if (bundle_is_underway(b) && is_another_due)
                source_probe_bundle_in(b, MAX(REPROBE_USEC, REPROBE_SHARE * probe->duration_usec));
}

void late_files_hold(Bundle *b) {
        IntakeSource *s = b->source;
        if (s->spec->scan.kind == SOURCE_PROCESS_CORE || bundle_is_from_links(&b->rec))
                return;
        if (source_is_probing(b)) {
                source_set_unit_state(b, UNIT_PROBING_AGAIN);
                return;
        }
        LateProbe *p = new_probe(s, b);
        const char *base_id = b->rec.supplement_of[0] ? b->rec.supplement_of : b->rec.id;
        if (!p)
                return; /* the next event or scan tries again */
        if (supplement_next_id(s, b, p->supplement_id) < 0 ||
            store_get_prints(s->context->store, base_id, &p->shipped, &p->n_shipped) < 0) {
                free_probe(&p->probe);
                return; /* the next event or scan tries again */
        }
        strcpy(p->bundle_id, b->rec.id);
        p->base_is_held = b->rec.links_held || bundle_record_is_redelivery(&b->rec);
        p->base_files = b->rec.n_files;
        p->n_was_unheld = b->unit.n_unheld;
        if (s->spec->scan.kind != SOURCE_NEURON_CORE_DUMP) {
                p->unit_ino = b->rec.unit_ino;
                p->unit_born_usec = b->rec.unit_born_usec;
        }
        if (probe_submit(s, s->probes, &p->probe, on_probed))
                source_set_unit_state(b, UNIT_PROBING);
}

void late_files_on_final(IntakeSource *s, Bundle *b) {
        char supplement_id[BUNDLE_ID_SIZE];
        if (b->unit.n_unheld > 0)
                late_files_hold(b);
        if (b->unit.has_late && supplement_next_id(s, b, supplement_id) == 0)
                handle_late_links(s, &b->rec, supplement_id);
}
