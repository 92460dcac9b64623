/* The row of a new bundle: of a unit that was found, or of a supplement. The bundle is SETTLING,
 * and is probed when its row is durable. Whether a unit becomes a bundle is decided by units.c,
 * supplement.c and link_sweep.c. */
#include "agent/intake/new_bundle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/admission.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

int new_bundle_fill_deliveries(const IntakeSource *s, BundleRecord *rec) {
        const StringList *names = &s->config->destinations;
        rec->deliveries = calloc(names->n, sizeof *rec->deliveries);
        if (!rec->deliveries)
                return -ENOMEM;
        rec->n_deliveries = names->n;
        for (size_t i = 0; i < names->n; i++) {
                rec->deliveries[i].destination = strdup(names->items[i]);
                if (!rec->deliveries[i].destination)
                        return -ENOMEM;
        }
        return 0;
}

int new_bundle_supplement_id(char ret[BUNDLE_ID_SIZE], const BundleRecord *base, unsigned number) {
        int n = snprintf(ret, BUNDLE_ID_SIZE, "%s-s%u", base->id, number);
        return n < 0 || n >= BUNDLE_ID_SIZE ? -EOVERFLOW : 0;
}

/* Sets what is known of the unit, and whose it is. @return 0, -ENOMEM */
static int set_unit(const IntakeSource *s, const ScanUnit *u, BundleRecord *rec) {
        *rec = (BundleRecord){ .kind = s->spec->scan.kind,
                               .state = BUNDLE_SETTLING,
                               .complete = true,
                               .uid = u->st.st_uid,
                               .unit_dev = (uint64_t)u->st.st_dev,
                               .unit_ino = (uint64_t)u->st.st_ino,
                               .unit_born_usec = u->born_usec,
                               .n_files = u->n_files,
                               .bytes = u->bytes,
                               .oldest_mtime_usec = u->oldest_mtime_usec,
                               .digest = u->digest };
        rec->source = strdup(s->config->name);
        rec->path = source_unit_path(s, u->relative);
        if (!rec->source || !rec->path)
                return -ENOMEM;
        if (s->context->describe)
                s->context->describe(s, rec, s->context->userdata);
        return 0;
}

/* @param base  NULL, or the bundle that this is supplement number base->n_supplements of
 * @param rec  of set_unit() */
static int add_bundle(IntakeSource *s, const ScanUnit *u, const BundleRecord *base,
                      BundleRecord *rec, Bundle **ret) {
        if (source_kind_has_incident(rec->kind)) {
                strcpy(rec->date_time, u->values.date_time);
                strcpy(rec->cluster_id, u->values.cluster_id);
        }
        if (base) {
                int r = new_bundle_supplement_id(rec->id, base, base->n_supplements);
                if (r < 0)
                        return r;
                strcpy(rec->supplement_of, base->id);
                strcpy(rec->date_time, base->date_time);
                strcpy(rec->cluster_id, base->cluster_id);
                if (base->s3_prefix && !(rec->s3_prefix = strdup(base->s3_prefix)))
                        return -ENOMEM;
        } else
                bundle_id_from_unit(&(BundleOrigin){ .kind = rec->kind,
                                                     .source = rec->source,
                                                     .instance_id = s->context->instance_id },
                                    u, rec->path, rec->id);
        int r = rec->n_deliveries > 0 ? 0 : new_bundle_fill_deliveries(s, rec);
        return r < 0 ? r : bundle_table_add(s->context->bundles, rec, s, ret);
}

static uint64_t since_newest_usec(const IntakeSource *s, const ScanUnit *u) {
        uint64_t now = source_realtime_usec(s);
        uint64_t newest = u->newest_change_nsec > 0 ? (uint64_t)u->newest_change_nsec / 1000 : 0;
        return now > newest ? now - newest : 0;
}

/* With a full disk every scan fails to record each of many units: the first failure is logged. */
void new_bundle_report_postponed(IntakeSource *s, int error, size_t n) {
        if (n == 0)
                return;
        log_write(s->rows.has_logged_postponed ? LOG_DEBUG : LOG_ERR, error, NULL,
                  "source %s: cannot record what was found in the state database; a later scan "
                  "tries again",
                  s->config->name);
        s->rows.is_postponing = s->rows.has_logged_postponed = true;
}

/* Records the number of a supplement before the supplement: a crash in between leaves a gap, but no
 * number is used twice. @return whether it was recorded */
static bool reserve_number(IntakeSource *s, BundleRecord *base) {
        base->n_supplements++;
        int r = store_update(s->context->store, base);
        if (r != 0)
                log_dump(base->id, LOG_ERR, MIN(r, 0),
                         "cannot record a supplement in the state database, trying again at the "
                         "next scan");
        return r == 0;
}

Bundle *new_bundle_record(IntakeSource *s, const ScanUnit *u, Origin origin, BundleRecord *base) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        Bundle *b = NULL;
        Charge charge = { 0 };
        int r = set_unit(s, u, &rec);
        rec.origin = origin;
        rec.links_held = origin == ORIGIN_LINKS;
        if (r < 0 || !admission_request(s, rec.path, rec.uid, &charge))
                return NULL;
        if (!base || reserve_number(s, base)) /* it logs a failure */
                r = add_bundle(s, u, base, &rec, &b);
        if (b) {
                b->unit.charge = charge;
                if (s->context->on_found)
                        s->context->on_found(b, s->context->userdata);
                return b;
        }
        bound_release(&charge);
        if (r == -EEXIST)
                log_notice("source %s: '%s' has the identity of a bundle that is known already, "
                           "leaving it",
                           s->config->name, u->relative);
        if (r == -EEXIST)
                source_remember(s, u->relative, u->digest);
        else if (r < 0)
                new_bundle_report_postponed(s, r, 1);
        return NULL;
}

void new_bundle_start(IntakeSource *s, const ScanUnit *u, Origin origin, BundleRecord *base) {
        Bundle *b = new_bundle_record(s, u, origin, base);
        if (!b)
                return;
        source_remember(s, u->relative, u->digest);
        b->unit.flush = s->scan.flush;
        /* Links of ours have not changed a ctime yet, so that the newest change is known. A copy in
         * progress with old mtimes has new ctimes, and does not look quiet. */
        b->facts.quiet_usec = since_newest_usec(s, u);
        b->facts.seen_boot_usec = b->facts.checked_boot_usec = source_boot_usec(s);
        if (s->rows.in_transaction)
                source_set_unit_state(b, UNIT_UNCOMMITTED);
        else
                source_probe_bundle(b);
}

/* ---- the rows of many, in one transaction ---- */

int new_bundle_begin(IntakeSource *s) {
        int r = store_begin(s->context->store);
        s->rows.in_transaction = r >= 0;
        return r;
}

int new_bundle_commit(IntakeSource *s) {
        int r = store_commit(s->context->store);
        size_t n_postponed = 0;
        s->rows.in_transaction = false;
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, bundle_table_all(s->context->bundles)) {
                if (b->unit.state != UNIT_UNCOMMITTED)
                        continue;
                source_set_unit_state(b, UNIT_WAITING);
                if (r >= 0) {
                        source_probe_bundle(b);
                        continue;
                }
                n_postponed++;
                source_remember(s, source_spec_relative(s->spec, b->rec.path),
                                ~b->rec.digest); /* a digest that the unit does not have: the next
                                                    scan reports it again */
                admission_release(b);
                bundle_table_forget(s->context->bundles, b);
        }
        new_bundle_report_postponed(s, r, n_postponed);
        return r;
}

void new_bundle_on_walk_end(IntakeSource *s) {
        s->rows.is_postponing = false;
}

void new_bundle_on_scan_end(IntakeSource *s) {
        s->rows.has_logged_postponed = s->rows.is_postponing;
}
