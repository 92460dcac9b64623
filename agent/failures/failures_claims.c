/* Claims of this node: set, handed to the agreement, stored in the state database, restored from
 * it.
 *
 * A claim says what this node knows of one process: that it is alive, has ended or has failed, and
 * what became of its bundle. Each change gets a higher revision, so that other nodes see which one
 * is newer. The state database has each claim that is not merely alive, together with the decision
 * that it belongs to, so that after a restart a bundle gets the name that its failure has already.
 *
 * What makes claims change is in failures_reports.c. */
#include "agent/failures/failures_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/peers/record.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/log.h"
#include "lib/neuron/record.h"

#define REVISION_EPOCH_SEC UINT64_C(1767225600) /* 2026 */

void failures_init_claim(const Failures *f, Claim *c) {
        *c = (Claim){ .rank = -1, .world_size = -1, .started_usec = INT64_MIN };
        (void)strcpy(c->boot_id, f->boot_id);
}

uint32_t failures_number_of_unknown(const char *what) {
        uint8_t digest[SHA256_SIZE];
        uint32_t number;
        sha256_of(what, strlen(what), digest);
        memcpy(&number, digest, sizeof number);
        return CLAIM_PID_UNKNOWN | number;
}

void failures_set_names(const Failures *f, Claim *c, const char *cluster_id,
                        const char *date_time) {
        Decision d = { .date_time = "20000101-000000" };
        char now[CLOCK_ISO_SIZE];
        uint64_t usec;
        (void)snprintf(d.cluster_id, sizeof d.cluster_id, "%s", cluster_id ? cluster_id : "");
        if (decision_name_is_valid(&d))
                (void)strcpy(c->cluster_id, d.cluster_id);
        if (!date_time || date_time_parse(date_time, &usec) < 0)
                date_time = clock_format_compact(
                        now, f->context.clock->realtime_usec(f->context.clock), '-');
        (void)snprintf(c->date_time, sizeof c->date_time, "%s", date_time);
}

/* Stores a claim, with the decision that it belongs to; that failure's number first in the rows of
 * its bundles, which after a crash is done again. */
static void store_claim(Failures *f, const FailureProcess *p) {
        if (p->n > 0)
                failures_number_bundles(f, p);
        _cleanup_(record_done) Record r = { .n = p->n };
        const Decision *d = p->n > 0 ? agreement_find(f->agreement, p->key->key, &p->claim) : NULL;
        char name[CLAIM_BOOT_ID_SIZE + 48];
        Claim c = p->claim;
        size_t n;
        claim_shift(&c, failures_realtime_offset(f));
        (void)snprintf(name, sizeof name, "%s-%u-%llu", c.boot_id, c.pid,
                       (unsigned long long)c.start_ticks);
        (void)strcpy(r.key, p->key->key);
        (void)snprintf(r.instance_id, sizeof r.instance_id, "%s", f->context.instance_id);
        _cleanup_free_ char *claim =
                claim_set_add(&r.claims, &c) >= 0 ? record_format(&r, &n) : NULL;
        _cleanup_free_ char *decision = d ? decision_format(d, p->key->job.key, &n) : strdup("");
        _cleanup_free_ char *text =
                claim && decision ? strbuf_format("%s%s", claim, decision) : NULL;
        int64_t time_usec = d ? d->opened_usec : failures_now_usec(f);
        StoredFailure row = { .name = name,
                              .key = r.key,
                              .n = p->n,
                              .time_usec = (uint64_t)(time_usec + failures_realtime_offset(f)),
                              .document = text };
        int error = text ? store_failure_put(f->context.store, &row) : -ENOMEM;
        if (error < 0)
                log_warning(error,
                            "failure %s: a claim cannot be stored; after a restart it is missing",
                            r.key);
}

void failures_claim_process(Failures *f, FailureProcess *p) {
        const char *key = p->key->key;
        /* Counted from the time, revisions rise even after the state database was lost. */
        uint64_t sec = f->context.clock->realtime_usec(f->context.clock) / USEC_PER_SEC;
        uint32_t least = sec > REVISION_EPOCH_SEC ? (uint32_t)(sec - REVISION_EPOCH_SEC) : 0;
        p->claim.revision = MAX(p->claim.revision + 1, least);
        p->changed_usec = failures_now_usec(f);
        claim_bound_ranks(&p->claim);
        f->meeting_usec = 0;
        bool is_seen = p->claim.pid < CLAIM_PID_UNKNOWN;
        log_debug("failure %s: rank %lld, pid %lld: %s, bundle %s", key, (long long)p->claim.rank,
                  is_seen ? (long long)p->claim.pid : -1, claim_state_name(p->claim.state),
                  claim_bundle_name(p->claim.bundle_state));
        int r = agreement_claim(f->agreement, key, &p->claim, failures_is_local(f, p->key),
                                failures_now_usec(f));
        if (r < 0) {
                f->table.n_dropped++;
                log_warning(r, "failure %s: a claim is dropped", key);
        } else if (p->claim.state != CLAIM_ALIVE)
                store_claim(f, p);
        f->wake(f);
}

void failures_set_process_bundle(Failures *f, FailureProcess *p, const char *bundle,
                                 ClaimBundle state) {
        if (p->claim.bundle_state == state && strcmp(p->claim.bundle, bundle) == 0)
                return;
        p->claim.bundle_state = state;
        (void)strcpy(p->claim.bundle, bundle);
        failures_claim_process(f, p);
}

void failures_set_unit_bundle(Failures *f, const FailureUnit *u, ClaimBundle state) {
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table)
        if (p->unit == u && p->claim.bundle_state != CLAIM_BUNDLE_DELIVERED)
                failures_set_process_bundle(f, p, u->bundle, state);
}

bool failures_place_claims(Failures *f) {
        bool any = false;
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table) {
                /* A live process is in each failure that it lives through: it has none of its own.
                 */
                if (p->claim.state == CLAIM_ALIVE || (p->is_placed && p->n > 0))
                        continue;
                const Decision *d = agreement_find(f->agreement, p->key->key, &p->claim);
                if (!d || (p->is_placed && d->n == 0))
                        continue;
                any = any || !p->is_placed;
                p->is_placed = true;
                p->n = d->n;
                if (p->n > 0)
                        store_claim(f, p);
        }
        return any;
}

int failures_prune(Failures *f) {
        uint64_t realtime = f->context.clock->realtime_usec(f->context.clock);
        uint64_t keep = (uint64_t)AGREEMENT_KEEP_USEC;
        int64_t now = failures_now_usec(f);
        LIST_FOREACH_ITEM_SAFE (FailureProcess, p, entry.link, &f->table.processes) {
                int64_t keep_usec = p->is_placed ? AGREEMENT_KEEP_USEC : (int64_t)USEC_PER_HOUR;
                if (!(p->unit && p->unit->bundle[0]) && p->claim.state != CLAIM_ALIVE &&
                    now - p->changed_usec > keep_usec)
                        failure_table_free_process(&f->table, p);
        }
        failure_table_free_empty_keys(&f->table);
        f->prune_usec = now + (int64_t)USEC_PER_MINUTE;
        return realtime > keep ? store_failure_drop(f->context.store, realtime - keep) : 0;
}

/* ---- after a restart ---- */

/* Reads what store_claim() has written. */
static int restore_claim(const StoredFailure *s, void *userdata) {
        Failures *f = userdata;
        _cleanup_(record_done) Record r = { 0 };
        Decision d = { 0 };
        size_t n_claim = strcspn(s->document, "\n");
        const char *decision = s->document + n_claim;
        if (record_parse(s->document, n_claim, s->key, s->n, &r) < 0 || r.claims.n != 1 ||
            (s->n > 0 && decision_parse(decision, strlen(decision), s->key, s->n, &d) < 0))
                return 0;
        Claim c = r.claims.items[0];
        int64_t now = failures_now_usec(f);
        claim_shift(&c, -failures_realtime_offset(f));
        /* CLOCK_REALTIME may have been set back since. */
        d.opened_usec = MIN((int64_t)s->time_usec - failures_realtime_offset(f), now);
        FailureKey *k = failure_table_get_key(&f->table, s->key, 0);
        FailureProcess *p = k ? failure_table_get_process(&f->table, k, &c, 0) : NULL;
        if (!p)
                return 0;
        p->changed_usec = now;
        p->n = s->n;
        p->is_placed = s->n > 0;
        k->n_reported = MAX(k->n_reported, p->n);
        return p->is_placed ? agreement_restore(f->agreement, &d, &c, now)
                            : agreement_claim(f->agreement, s->key, &c, false, now);
}

/* Completes what the last run did not do if it ended between the delivery of a bundle and the
 * change of its claims. */
static void restore_delivered(Failures *f) {
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table) {
                _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                const char *bundle = p->claim.bundle;
                if (p->claim.bundle_state == CLAIM_BUNDLE_PENDING && bundle[0] &&
                    !bundle_table_find(f->context.bundles, bundle) &&
                    store_get(f->context.store, bundle, &rec) == 0 && rec.state == BUNDLE_DELIVERED)
                        failures_set_process_bundle(f, p, rec.id, CLAIM_BUNDLE_DELIVERED);
        }
}

void failures_restore(Failures *f) {
        int r = failures_prune(f);
        if (r >= 0)
                r = store_failure_list(f->context.store, restore_claim, f);
        if (r < 0)
                log_warning(r, "failures of the past cannot be read from the state database");
        restore_delivered(f);
}
