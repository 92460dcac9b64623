/* Supplements: a bundle with what came into a unit after its bundle had been delivered. Supplement
 * number N of a bundle has its id and `-sN`. A probe compares the unit with the fingerprints of all
 * that was shipped of it; only what is new gets into the supplement.
 */
#include "agent/intake/supplement.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/lock_renewal.h"
#include "agent/intake/new_bundle.h"
#include "agent/intake/unit_probe.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

int supplement_base(const IntakeSource *s, const char *id, BundleRecord *ret) {
        char base_id[BUNDLE_ID_SIZE];
        const char *suffix = strrchr(id, '-');
        if (!bundle_id_is_valid(id) || suffix[1] != 's')
                return STORE_E_NOT_FOUND;
        (void)snprintf(base_id, sizeof base_id, "%.*s", (int)(suffix - id), id);
        return store_get(s->context->store, base_id, ret);
}

int supplement_next_id(const IntakeSource *s, const Bundle *b, char ret[BUNDLE_ID_SIZE]) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        const char *base_id = b->rec.supplement_of;
        if (!base_id[0])
                return new_bundle_supplement_id(ret, &b->rec, b->rec.n_supplements + 1);
        int r = store_get(s->context->store, base_id, &base);
        return r == 0 ? new_bundle_supplement_id(ret, &base, base.n_supplements + 1) : -ENOENT;
}

/* @return whether the last supplement is quarantined, cancelled or evicted, and had the same
 * content */
static bool is_refused_by_operator(const IntakeSource *s, const BundleRecord *base,
                                   uint64_t digest) {
        char id[BUNDLE_ID_SIZE];
        _cleanup_(bundle_record_done) BundleRecord last = { 0 };
        if (base->n_supplements == 0 ||
            new_bundle_supplement_id(id, base, base->n_supplements) < 0 ||
            store_get(s->context->store, id, &last) != 0)
                return false;
        return (last.state == BUNDLE_QUARANTINED || last.state == BUNDLE_CANCELLED ||
                last.state == BUNDLE_EVICTED) &&
               last.digest == digest;
}

bool supplement_start(IntakeSource *s, ScanUnit *u, Origin origin, BundleRecord *base) {
        if (is_refused_by_operator(s, base, u->digest))
                return false;
        free(u->relative);
        u->relative = strdup(source_spec_relative(s->spec, base->path));
        if (!u->relative)
                return true; /* a later scan, or the next start */
        u->st = (struct stat){ .st_uid = base->uid };
        if (origin != ORIGIN_LINKS) {
                u->st.st_dev = (dev_t)base->unit_dev;
                u->st.st_ino = (ino_t)base->unit_ino;
                u->born_usec = base->unit_born_usec;
        }
        new_bundle_start(s, u, origin, base);
        return true;
}

static void on_probed(IntakeSource *s, IntakeProbe *probe) {
        UnitProbe *p = unit_probe_of(probe);
        _cleanup_free_ char *path = source_unit_path(s, probe->relative);
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        if (probe->result != 0 || !path ||
            bundle_table_find_unit(s->context->bundles, s->config->name, path) ||
            store_find_unit(s->context->store, s->config->name, path, &base) != 0)
                return;
        if (p->walk.unit.n_files == 0) { /* nothing new; some files may have been removed */
                source_remember(s, probe->relative, p->seen_digest);
                base.digest = p->seen_digest; /* so that the next start does not probe again */
                lock_renewal_mark_delivered(s, probe->relative, p->seen_digest);
                (void)store_update(s->context->store, &base); /* else it does */
                return;
        }
        if (!supplement_start(s, &p->walk.unit, ORIGIN_SUPPLEMENT, &base))
                source_remember(s, probe->relative, p->seen_digest);
}

void supplement_probe(IntakeSource *s, const ScanUnit *u, const char *base_id) {
        _cleanup_(unit_probe_freep) UnitProbe *p = NULL;
        if (unit_probe_new(&p, s->spec, u->relative, base_id) < 0)
                return; /* the next scan tries again */
        p->seen_digest = u->digest;
        p->waits_for_share = true;
        int r = store_get_prints(s->context->store, base_id, &p->walk.shipped, &p->walk.n_shipped);
        if (r < 0) {
                log_error(r, "source %s: cannot read what was shipped of '%s'", s->config->name,
                          u->relative);
                return;
        }
        (void)probe_submit(s, s->probes, &TAKE_PTR(p)->probe,
                           on_probed); /* logged there; the next scan tries again */
}
