/* Which bundles of this node belong to a failure, for the node's record. Those that were named
 * after it have the name of its decision in their rows, dumps as well as what the agent itself has
 * made of them. A dump that went alone has not; its processes' claims have its id, and what
 * supplements it or is about it has that id, too.
 *
 * A row may lack the number of a failure that had none when the bundle was named: of a job that is
 * on this node alone, the arbiter gives it later. */
#include "agent/failures/failures_private.h"

#include <errno.h>
#include <string.h>

#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

typedef struct BundleListing {
        const Decision *failure;
        NodeBundles *to;
} BundleListing;

static int add_bundle(const BundleRecord *rec, NodeBundles *to) {
        const char *raw = NULL;
        for (size_t i = 0; !raw && i < rec->n_deliveries; i++)
                raw = rec->deliveries[i].state == DELIVERY_DONE ? rec->deliveries[i].object : NULL;
        _cleanup_free_ char *object = raw ? path_escape(raw) : NULL;
        return raw && !object ? -ENOMEM : node_bundles_add(to, rec->id, rec->state, object);
}

static int on_named(BundleRecord *rec, void *userdata) {
        const BundleListing *l = userdata;
        bool is_of_failure = strcmp(rec->name.cluster_id, l->failure->cluster_id) == 0 &&
                             strcmp(rec->name.date_time, l->failure->date_time) == 0;
        return is_of_failure ? add_bundle(rec, l->to) : 0;
}

static int on_other(BundleRecord *rec, void *userdata) {
        return add_bundle(rec, userdata);
}

/* Adds a dump that a claim names and its row does not: with its supplements, and what is about it.
 */
static int add_claimed(Failures *f, const char *id, NodeBundles *to) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (!*id || node_bundles_contain(to, id))
                return 0;
        int r = store_get(f->context.store, id, &rec);
        if (r == STORE_E_NOT_FOUND)
                return 0;
        if (r == 0)
                r = add_bundle(&rec, to);
        if (r == 0)
                r = store_list(f->context.store, &(StoreFilter){ .state = -1, .base = id },
                               on_other, to);
        return r < 0 ? r
                     : store_list(f->context.store, &(StoreFilter){ .state = -1, .subject = id },
                                  on_other, to);
}

void failures_add_bundles(const Decision *failure, NodeBundles *ret, void *userdata) {
        Failures *f = userdata;
        BundleListing l = { .failure = failure, .to = ret };
        StoreFilter filter = { .state = -1, .failure_key = failure->key };
        const uint32_t numbers[] = { failure->n, 0 };
        int r = 0;
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(numbers); i++) {
                filter.failure_n = numbers[i];
                r = store_list(f->context.store, &filter, on_named, &l);
        }
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table)
        if (r >= 0 && p->n == failure->n && strcmp(p->key->key, failure->key) == 0)
                r = add_claimed(f, p->claim.bundle, ret);
        if (r < 0)
                log_warning(r, "failure %s/%u: this node's record lacks bundles", failure->key,
                            failure->n);
}

/* @return the decision about the bundle that this one supplements or is about, by the claim that
 * names that; NULL: none */
static const Decision *decision_of_base(const Failures *f, const BundleRecord *rec) {
        const char *base = rec->supplement_of[0] ? rec->supplement_of : rec->subject;
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table)
        if (*base && strcmp(p->claim.bundle, base) == 0)
                return agreement_find(f->agreement, p->key->key, &p->claim);
        return NULL;
}

void failures_record_bundle(Failures *f, const BundleRecord *rec) {
        const FailureName *name = &rec->name;
        const Decision *d = decision_of_base(f, rec);
        int64_t now = failures_now_usec(f);
        if (d)
                agreement_on_bundle(f->agreement, d->key, d->cluster_id, d->date_time, now);
        if (name->key[0])
                agreement_on_bundle(f->agreement, name->key, name->cluster_id, name->date_time,
                                    now);
        if (d || name->key[0])
                f->wake(f);
}
